"""Which headers pass through, in both directions. Pure.

Hop-by-hop headers end here (RFC 9110, section 7.6.1), with those that `Connection` names. A
client's keys and cookies never reach an engine; an engine's cookies and its name never reach a
client.

Must not: add anything; what an upstream needs comes from its host.
"""

from collections.abc import Mapping

from multidict import CIMultiDict

_HOP_BY_HOP = frozenset(
    {
        "connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection",
        "te", "trailer", "transfer-encoding", "upgrade",
    }
)  # fmt: skip

_NOT_UP = frozenset(
    {
        "authorization", "x-api-key", "cookie", "host", "content-length", "forwarded", "origin",
        "referer", "expect", "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto",
        "x-forwarded-port", "x-real-ip",
    }
)  # fmt: skip

_NOT_DOWN = frozenset(
    {"set-cookie", "server", "date", "content-length", "access-control-allow-origin",
     "access-control-allow-credentials"}
)  # fmt: skip


def to_upstream(headers: Mapping[str, str]) -> CIMultiDict[str]:
    """The headers that an engine gets of a client's."""
    return _without(headers, _NOT_UP)


def to_client(headers: Mapping[str, str]) -> CIMultiDict[str]:
    """The headers that a client gets of an engine's."""
    return _without(headers, _NOT_DOWN)


def _without(headers: Mapping[str, str], dropped: frozenset[str]) -> CIMultiDict[str]:
    named = {
        part.strip().lower()
        for name, value in headers.items()
        if name.lower() == "connection"
        for part in value.split(",")
    }
    gone = dropped | _HOP_BY_HOP | named
    return CIMultiDict((name, value) for name, value in headers.items() if name.lower() not in gone)
