"""Every route against every way in: who is let through, and with which answer who is not."""

import pytest

from pannier.config.schema import Server
from pannier.serve.forward import MAX_BODY, ROUTES
from pannier.serve.security import access_of, host_name

READS = (
    "/v1/models", "/v1/models/a", "/v1/readiness", "/v1/readiness/a", "/v1/placement", "/models",
    "/openapi.json", "/livez", "/readyz", "/healthz",
)  # fmt: skip
STREAMS = ("/v1/readiness/events", "/models/sse")
CHANGES = ("/models/load", "/models/unload")
OPEN = ("/livez", "/readyz", "/healthz")
FORMS = ("/v1/audio/transcriptions",)
KEY = "client-key-client-key"
ADMIN = "admin-key-admin-key-1"
BODY = b'{"model": "a"}'
JSON = "application/json"

GETS = [("GET", path) for path in (*READS, *STREAMS)]
POSTS = [("POST", path) for path in (*ROUTES, *CHANGES)]
EVERY = [*GETS, *POSTS]


async def ask(stand, method, path, *, host="localhost", body=None, kind=JSON, **headers):
    """One request as bytes; its status and its answer's head."""
    data = BODY if body is None and method == "POST" else body or b""
    lines = [f"{method} {path} HTTP/1.1", *([f"Host: {host}"] if host is not None else [])]
    if method == "POST":
        lines += [f"Content-Type: {kind}", f"Content-Length: {len(data)}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    request = "\r\n".join([*lines, "Connection: close", "", ""]).encode("latin-1") + data
    if path in STREAMS:
        return await stand.head(request)
    return await stand.raw(request)


def let_in(status, answer):
    return status == 200 or (status == 400 and b"missing_model" in answer)


# What is sent, and whether it is let in; where not, with which status and code.
TABLE = {
    "plain": ({}, None),
    "host with port": ({"host": "127.0.0.1:8484"}, None),
    "IPv6 host": ({"host": "[::1]:8484"}, None),
    "host in capitals with a dot": ({"host": "LOCALHOST."}, None),
    "own page": ({"host": "localhost:8484", "Origin": "http://localhost:8484"}, None),
    "same origin by the browser": ({"Sec_Fetch_Site": "same-origin"}, None),
    "bad host": ({"host": "evil.example"}, (403, "host_not_allowed")),
    "rebinding name": ({"host": "127.0.0.1.evil.example:8484"}, (403, "host_not_allowed")),
    "user in the host": ({"host": "127.0.0.1@evil.example"}, (403, "host_not_allowed")),
    "all addresses as host": ({"host": "0.0.0.0:8484"}, (403, "host_not_allowed")),
    "foreign origin": ({"Origin": "http://evil.example"}, (403, "origin_not_allowed")),
    "null origin": ({"Origin": "null"}, (403, "origin_not_allowed")),
    "other port's origin": (
        {"host": "localhost:8484", "Origin": "http://localhost:3000"},
        (403, "origin_not_allowed"),
    ),
    "origin that is not text": ({"Origin": "http://\xff"}, (403, "origin_not_allowed")),
    "cross-site fetch": ({"Sec_Fetch_Site": "cross-site"}, (403, "cross_site")),
    "web socket": ({"Upgrade": "websocket"}, (400, "no_websocket")),
}


@pytest.mark.parametrize("case", TABLE)
async def test_who_may_come_in(stand, case):
    headers, refusal = TABLE[case]
    for method, path in EVERY:
        status, answer = await ask(stand, method, path, **headers)
        if refusal is None:
            assert let_in(status, answer), (path, answer)
        else:
            code = f'"code":"{refusal[1]}"'.encode()
            assert (status, code in answer) == (refusal[0], True), (path, answer)
    assert refusal is None or stand.lent == []


KEYS = {
    "no key": ({}, False),
    "wrong key": ({"Authorization": "Bearer wrong"}, False),
    "key without Bearer": ({"Authorization": KEY}, False),
    "key as Basic": ({"Authorization": f"Basic {KEY}"}, False),
    "key that is not text": ({"Authorization": "Bearer \xff"}, False),
    "half a key": ({"x_api_key": KEY[:-1]}, False),
    "empty key": ({"x_api_key": ""}, False),
    "key as Bearer": ({"Authorization": f"Bearer {KEY}"}, True),
    "key as bearer": ({"Authorization": f"bearer  {KEY} "}, True),
    "key in x-api-key": ({"x_api_key": KEY}, True),
    "admin key": ({"Authorization": f"Bearer {ADMIN}"}, True),
}


@pytest.mark.parametrize("case", KEYS)
async def test_which_keys_open(stand, case):
    stand.gate.access = access_of(Server(), [KEY], [ADMIN])
    headers, opens = KEYS[case]
    for method, path in EVERY:
        status, answer = await ask(stand, method, path, **headers)
        if opens or path in OPEN:
            assert let_in(status, answer), (path, answer)
        else:
            assert (status, b"invalid_api_key" in answer) == (401, True), (path, answer)
            assert b"WWW-Authenticate: Bearer" in answer
            assert KEY.encode() not in answer
    assert opens or stand.lent == []


@pytest.mark.parametrize("path", OPEN)
async def test_a_probe_without_a_key_is_terse(stand, path):
    stand.gate.access = access_of(Server(), [KEY])
    _, answer = await ask(stand, "GET", path)
    assert b"model" not in answer
    status, _ = await ask(stand, "GET", path + "?verbose")
    assert status == 401


@pytest.mark.parametrize(
    "kind",
    ["application/x-www-form-urlencoded", "text/plain", "multipart/form-data; boundary=x", "", "x"],
)
async def test_what_a_plain_form_can_send_is_refused(stand, kind):
    for method, path in POSTS:
        status, answer = await ask(stand, method, path, kind=kind)
        if path in FORMS and kind.startswith("multipart"):
            assert (status, b"missing_model" in answer) == (400, True)
        else:
            assert (status, b"content_type" in answer) == (415, True), (path, answer)
    assert stand.lent == []


STRANGE = [
    "/v1/../unload", "/v1/%2e%2e/unload", "/v1/..%2funload", "//unload", "/unload", "/running",
    "/upstream/a/v1/models", "/v1/chat/completions/../../x", "/v1/models/../../unload", "/logs",
    "/%00", "/v1/chat/completions/", "/V1/chat/completions",
]  # fmt: skip


async def test_no_path_of_a_client_s_choice_reaches_an_engine(stand):
    for path in STRANGE:
        for method in ("GET", "POST"):
            status, _ = await ask(stand, method, path)
            assert status in (400, 404, 405), path
    assert stand.upstream.seen == []


async def test_the_wrong_method_is_told(stand):
    for method, path in EVERY:
        status, answer = await ask(stand, "POST" if method == "GET" else "GET", path)
        assert (status in (404, 405), b'"error"' in answer) == (True, True), (path, answer)
    assert stand.lent == []


async def test_a_body_that_is_announced_too_large_is_not_read(stand):
    for method, path in POSTS:
        head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {JSON}\r\n"
        head += f"Content-Length: {MAX_BODY + 1}\r\nConnection: close\r\n\r\n"
        assert (await stand.head(head.encode()))[0] == 413, path


@pytest.mark.parametrize(
    "head",
    [
        "GET /v1/models HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n",
        "GET /v1/models HTTP/1.1\r\n",
        "POST /tokenize HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n",
    ],
    ids=["two hosts", "no host", "two lengths"],
)
async def test_a_request_that_can_be_read_two_ways_is_refused(stand, head):
    status, _ = await stand.raw((head + "Connection: close\r\n\r\n").encode())
    assert status in (400, 403)
    assert stand.upstream.seen == []


async def test_answers_of_ours_are_not_sniffed_and_not_kept(stand):
    for path in READS:
        _, answer = await ask(stand, "GET", path)
        head = answer.partition(b"\r\n\r\n")[0].lower()
        assert b"access-control-allow-origin" not in head
        if path not in OPEN:
            assert b"x-content-type-options: nosniff" in head
            assert path == "/openapi.json" or b"cache-control: no-store" in head, path


# --- the rules that a config asks for -------------------------------------------------------------


@pytest.mark.parametrize(
    ("listen", "host", "allowed"),
    [
        ("127.0.0.1:1", "gpu.lan", False),
        ("192.168.1.5:1", "192.168.1.5", True),
        ("192.168.1.5:1", "192.168.1.6", False),
        ("0.0.0.0:1", "192.168.1.6:8484", True),
        ("0.0.0.0:1", "evil.example", False),
        ("0.0.0.0:1", "0.0.0.0:8484", False),
        ("[::]:1", "[fd00::1]:8484", True),
        ("[0:0:0:0:0:0:0:0]:1", "192.168.1.6", True),
        ("GPU.lan:1", "gpu.LAN", True),
    ],
)
async def test_the_hosts_that_a_listen_address_lets_in(stand, listen, host, allowed):
    stand.gate.access = access_of(Server(listen=listen))
    status, _ = await ask(stand, "GET", "/v1/models", host=host)
    assert status == (200 if allowed else 403)


async def test_hosts_and_origins_of_the_config_are_let_in(stand):
    server = Server(allowed_hosts=("GPU.lan", "fd00::7"), allowed_origins=("https://Chat.example",))
    stand.gate.access = access_of(server)
    for host in ("gpu.lan:8484", "[fd00::7]", "GPU.LAN."):
        assert (await ask(stand, "GET", "/v1/models", host=host))[0] == 200
    for origin, status in (("https://chat.example", 200), ("http://chat.example", 403)):
        assert (await ask(stand, "GET", "/v1/models", Origin=origin))[0] == status


@pytest.mark.parametrize(
    ("header", "name"),
    [
        ("localhost", "localhost"), ("LocalHost:1", "localhost"), ("localhost.:1", "localhost"),
        ("[::1]:1", "::1"), ("::1", "::1"), (" a ", "a"), ("", ""), ("[", ""), (":1", ""),
    ],
)  # fmt: skip
def test_the_name_in_a_host_header(header, name):
    assert host_name(header) == name


def test_without_admin_keys_the_client_keys_are_those():
    assert access_of(Server(), [KEY]).admin_keys == (KEY,)
    assert access_of(Server(), [KEY], [ADMIN]).admin_keys == (ADMIN,)
