"""Addresses as a person writes them: "127.0.0.1:8484", "[::1]:8484", "http://attic:8484".

One reading of "host:port" for everything that has one (the listener, RPC endpoints), so that the
check of the file and the place that binds cannot disagree about what an address means.

Must not: resolve a name. Whether a name exists is known only where it is used, and when.
"""

import ipaddress
import re
from urllib.parse import urlsplit

_NAME = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]{0,251}[A-Za-z0-9_])?", re.ASCII)
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^\s/?#@,*]+", re.ASCII)


def split_listen(text: str) -> tuple[str, int]:
    """Split "127.0.0.1:8484", "name:8484" or "[::1]:8484" into host and port (0 to 65535).

    Raises ValueError whose text says what is allowed.
    """
    return _split(text, lowest_port=0)


def split_endpoint(text: str) -> tuple[str, int]:
    """Split the address of something to connect to: as `split_listen`, but port 0 is refused."""
    return _split(text, lowest_port=1)


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a listener on `host`: 127.0.0.0/8, ::1, localhost."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_url(text: str) -> None:
    """Accept the base URL of a peer; raises ValueError whose text says what is allowed."""
    try:
        parts = urlsplit(text)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
        parts = urlsplit("")
    if not usable or re.search(r"\s", text):
        raise ValueError('expected an http or https URL, such as "http://10.0.0.9:8484"')
    if parts.username is not None:
        raise ValueError("expected a URL without a user name; a key belongs in api_key_file")
    if "?" in text or "#" in text:
        raise ValueError("expected a URL without a query or a fragment")


def check_origin(text: str) -> None:
    """Accept a browser origin; raises ValueError whose text says what is allowed."""
    if not _ORIGIN.fullmatch(text):
        raise ValueError('expected scheme, host and port only, such as "https://chat.example:8443"')


def check_host_name(text: str) -> None:
    """Accept what a Host header names, without its port; raises ValueError with what is allowed."""
    if not _is_host(text):
        raise ValueError('expected a host name or address without a port, such as "gpu.lan"')


def _split(text: str, *, lowest_port: int) -> tuple[str, int]:
    host, colon, digits = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
        known = ":" in host and _is_host(host)
    else:
        known = ":" not in host and _is_host(host)
    if not colon or not known:
        raise ValueError('expected "address:port", such as "127.0.0.1:8484" or "[::1]:8484"')
    port = int(digits) if re.fullmatch(r"[0-9]{1,5}", digits, re.ASCII) else -1
    if not lowest_port <= port <= 65535:
        raise ValueError(f"expected a port from {lowest_port} to 65535")
    return host, port


def _is_host(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        # What looks like an IPv4 address but is none ("300.0.0.1", "10.1") is a slip, not a name.
        return bool(_NAME.fullmatch(text)) and not re.fullmatch(r"[0-9.]+", text)
    return True
