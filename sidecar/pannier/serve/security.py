"""Who may talk to Pannier: checked on every request, before any route is looked at.

Web pages on the same machine are the likely attacker: they can reach loopback, by DNS rebinding
even as "their own" host. So the Host must be a name that we know, an Origin must be allowed, and
anything that changes or computes something must come as JSON, which a plain form cannot send.

Must not: log a key, or compare one with `==`.
"""

import hmac
import ipaddress
from collections.abc import Iterable

import msgspec
from aiohttp import hdrs, web
from aiohttp.typedefs import Handler, Middleware

from pannier.config.schema import Server, split_listen
from pannier.serve.errors import ApiError

_LOOPBACK_NAMES = frozenset({"127.0.0.1", "::1", "localhost"})

OPEN_PATHS = frozenset({"/livez", "/readyz", "/healthz"})
"""Probes have no keys; these routes show no model, no path and no secret without one."""

_FORM_PATHS = frozenset({"/v1/audio/transcriptions"})
"""Where the API wants a form. A web page can send one without asking first, so only here."""


class Access(msgspec.Struct, frozen=True, kw_only=True):
    """Who is let in: host names, origins, keys of clients and admins (no key: everybody)."""

    hosts: frozenset[str]
    origins: frozenset[str]
    any_address: bool
    client_keys: tuple[str, ...] = ()
    admin_keys: tuple[str, ...] = ()


def access_of(
    server: Server, client_keys: Iterable[str] = (), admin_keys: Iterable[str] = ()
) -> Access:
    """The rules that a config asks for."""
    bound, _ = split_listen(server.listen)
    wide = _is_unspecified(bound)
    clients = tuple(client_keys)
    hosts = {*_LOOPBACK_NAMES, *map(host_name, server.allowed_hosts)}
    return Access(
        hosts=frozenset(hosts if wide else {*hosts, bound.lower()}),
        origins=frozenset(origin.rstrip("/").lower() for origin in server.allowed_origins),
        any_address=wide,
        client_keys=clients,
        admin_keys=tuple(admin_keys) or clients,
    )


def host_name(header: str) -> str:
    """The host of a Host header: without port, brackets, case and a trailing dot."""
    text = header.strip().lower()
    if text.startswith("["):
        return text[1:].partition("]")[0]
    return (text if text.count(":") > 1 else text.partition(":")[0]).rstrip(".")


def check(request: web.Request, access: Access) -> None:
    """Raises ApiError (403, 415 or 401) for a request that is not let in."""
    _check_host(request, access)
    _check_browser(request, access)
    if request.method not in ("GET", "HEAD", "OPTIONS"):
        _check_body(request)
    open_to_all = request.path in OPEN_PATHS and "verbose" not in request.query
    if access.client_keys and not open_to_all:
        _check_key(request, (*access.client_keys, *access.admin_keys))


def require_admin(request: web.Request, access: Access) -> None:
    """Raises ApiError (401, 403) where a change needs a key that was not sent."""
    if not access.admin_keys:
        return
    try:
        _check_key(request, access.admin_keys)
    except ApiError:
        if presented_key(request) is None:
            raise
        raise ApiError(403, "this needs an admin key", code="admin_key_needed") from None


def _check_body(request: web.Request) -> None:
    kind = request.content_type.lower()
    form = kind == "multipart/form-data" and request.path in _FORM_PATHS
    if request.body_exists and kind != "application/json" and not form:
        raise ApiError(
            415, f"the content type is {kind}; send application/json", code="content_type"
        )
    limit = request.client_max_size
    if request.content_length is not None and request.content_length > limit:
        raise ApiError(413, f"the body is larger than {limit} bytes", code="too_large")


def presented_key(request: web.Request) -> str | None:
    """The one place that reads a key from a request."""
    scheme, _, token = request.headers.get(hdrs.AUTHORIZATION, "").partition(" ")
    if scheme.lower() == "bearer" and token.strip():
        return token.strip()
    return request.headers.get("x-api-key")


def _check_host(request: web.Request, access: Access) -> None:
    name = host_name(request.headers.get(hdrs.HOST, ""))
    if name in access.hosts or (access.any_address and _is_address(name)):
        return
    raise ApiError(
        403,
        f"the host name {name!r} is not known here; add it to server.allowed_hosts",
        code="host_not_allowed",
    )


def _is_unspecified(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False


def _is_address(name: str) -> bool:
    """An address cannot be rebound by DNS; 0.0.0.0 reaches loopback from a browser."""
    try:
        return not ipaddress.ip_address(name).is_unspecified
    except ValueError:
        return False


def _check_browser(request: web.Request, access: Access) -> None:
    origin = request.headers.get(hdrs.ORIGIN)
    if origin is not None:
        # With its port: another program's page on this machine is a stranger too.
        own = origin.partition("://")[2].lower() == request.headers.get(hdrs.HOST, "").lower()
        if not own and origin.rstrip("/").lower() not in access.origins:
            raise ApiError(
                403,
                f"the web page {origin} is not allowed; add it to server.allowed_origins",
                code="origin_not_allowed",
            )
    elif request.headers.get("Sec-Fetch-Site") == "cross-site":
        raise ApiError(403, "requests from other web pages are refused", code="cross_site")
    if request.headers.get(hdrs.UPGRADE, "").lower() == "websocket":
        raise ApiError(400, "there are no web sockets here", code="no_websocket")


def _check_key(request: web.Request, keys: tuple[str, ...]) -> None:
    # Headers are bytes: what is no UTF-8 must be a wrong key and not a fault.
    given = (presented_key(request) or "").encode(errors="surrogateescape")
    # All keys are compared, so that the time tells nothing about which one was close.
    matches = [hmac.compare_digest(given, key.encode()) for key in keys]
    if not any(matches):
        raise ApiError(401, "a valid API key is needed", code="invalid_api_key")


class Gate:
    """Holds the rules of this moment; the service replaces them with each config."""

    def __init__(self, access: Access) -> None:
        self.access = access


def guard(gate: Gate) -> Middleware:
    """The middleware that lets a request in or not, by the rules of this moment."""

    @web.middleware
    async def middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
        check(request, gate.access)
        return await handler(request)

    return middleware
