"""Requests go through to the engine and answers come back, as they are, or as a clear error."""

import json

import aiohttp
import pytest
from tests.fakes.snapshots import snapshot_of
from tests.fakes.upstream import says
from tests.fakes.values import machine

from pannier.serve.forward import MAX_BODY, ROUTES

from .conftest import UPSTREAM_KEY

CHAT = "/v1/chat/completions"
ASK = {"model": "a", "messages": [{"role": "user", "content": "hi"}]}
STREAM = {**ASK, "stream": True}
CHUNK = b'data: {"choices": [{"delta": {"content": "hi"}}]}\n\n'


@pytest.mark.parametrize("path", ROUTES)
async def test_each_route_has_its_fixed_upstream_path(stand, path):
    status, _ = await stand.post(path, ASK)
    assert status == 200
    assert stand.upstream.last.path == "/upstream/x" + ROUTES[path]


async def test_a_body_is_passed_on_byte_for_byte(stand):
    body = b' {"model" : "a",\n "x": 1.0, "k": "\xc3\xbc", "k": 2 }  '
    async with stand.client.post(
        stand.url + CHAT, data=body, headers={"Content-Type": "application/json"}
    ) as answer:
        assert answer.status == 200
    assert stand.upstream.last.body == body
    assert stand.upstream.last.headers["Content-Type"] == "application/json"


async def test_an_answer_is_passed_on_byte_for_byte(stand):
    body = bytes(range(256)) * 4096
    stand.upstream.answer = says(200, body, kind="application/octet-stream")
    async with stand.client.post(stand.url + CHAT, json=ASK) as answer:
        assert answer.headers["Content-Type"] == "application/octet-stream"
        assert answer.headers["Content-Length"] == str(len(body))
        assert await answer.read() == body


async def test_a_compressed_answer_stays_compressed(stand):
    stand.upstream.answer = says(200, b"\x1f\x8bnot really", headers={"Content-Encoding": "gzip"})
    async with stand.client.post(stand.url + CHAT, json=ASK) as answer:
        assert answer.headers["Content-Encoding"] == "gzip"
        assert await answer.read() == b"\x1f\x8bnot really"


@pytest.mark.parametrize("status", [400, 404, 422, 429, 500, 501, 503])
async def test_an_error_of_the_engine_is_passed_on_as_it_is(stand, status):
    body = b'{"error": {"code": 1, "message": "of the engine", "type": "x"}}'
    stand.upstream.answer = says(status, body)
    async with stand.client.post(stand.url + CHAT, json=ASK) as answer:
        assert (answer.status, await answer.read()) == (status, body)


@pytest.mark.parametrize(
    "body",
    [
        b'{"src":"llama-swap","error":"upstream command exited prematurely"}',
        b'{"src": "llama-swap", "error": "no"}',
        b'{"error": {"message": "from llama-swap", "type": "server_error", "param": null}}',
        b"",
        b"<html>502</html>",
    ],
)
@pytest.mark.parametrize("status", [500, 502, 503])
async def test_an_error_of_what_stands_between_has_openai_s_shape_too(stand, status, body):
    kind = "application/json" if body.startswith(b"{") else "text/html"
    stand.upstream.answer = says(status, body, kind=kind, headers={"Server": ""})
    got, answer = await stand.post(CHAT, ASK)
    assert got >= 500
    assert set(answer["error"]) == {"message", "type", "param", "code"}
    assert answer["error"]["code"] in ("engine_gone", "engine_error")


# --- headers --------------------------------------------------------------------------------------


async def test_what_belongs_to_the_client_alone_never_reaches_the_engine(stand):
    secret = {
        "Authorization": "Bearer of-the-client", "x-api-key": "of-the-client", "Cookie": "a=b",
        "X-Forwarded-For": "1.2.3.4", "Forwarded": "for=1.2.3.4", "X-Real-IP": "1.2.3.4",
        "Proxy-Authorization": "Basic of-the-client", "Referer": "http://secret/",
        "Connection": "X-Mine", "X-Mine": "hop", "TE": "trailers", "Keep-Alive": "5",
    }  # fmt: skip
    await stand.post(CHAT, ASK, headers={**secret, "X-Request-Id": "r1"})
    seen = stand.upstream.last.headers
    assert seen["Authorization"] == UPSTREAM_KEY
    assert seen["X-Request-Id"] == "r1"
    assert not [
        name for name in secret if name in seen and name not in ("Authorization", "Connection")
    ]
    assert "of-the-client" not in str(dict(seen))


async def test_what_belongs_to_the_engine_alone_never_reaches_the_client(stand):
    own = {"Set-Cookie": "a=b", "Server": "llama.cpp", "Access-Control-Allow-Origin": "*",
           "Keep-Alive": "timeout=5", "X-Kept": "yes"}  # fmt: skip
    stand.upstream.answer = says(200, b"{}", headers=own)
    async with stand.client.post(stand.url + CHAT, json=ASK) as answer:
        assert answer.headers["X-Kept"] == "yes"
        assert "llama.cpp" not in str(answer.headers)
        for name in ("Set-Cookie", "Access-Control-Allow-Origin", "Keep-Alive"):
            assert name not in answer.headers
        assert len(answer.headers.getall("Content-Type")) == 1


async def test_a_redirect_is_not_followed(stand):
    stand.upstream.answer = says(302, b"", headers={"Location": stand.upstream.url + "/unload"})
    async with stand.client.post(stand.url + CHAT, json=ASK, allow_redirects=False) as answer:
        assert answer.status == 302
    assert len(stand.upstream.seen) == 1


async def test_cookies_of_an_engine_are_not_sent_to_it_again(stand):
    stand.upstream.answer = says(200, b"{}", headers={"Set-Cookie": "a=b"})
    for _ in range(2):
        await stand.post(CHAT, ASK)
    assert "Cookie" not in stand.upstream.last.headers


# --- what is refused before anything is asked -----------------------------------------------------


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"", "invalid_json"), (b"{", "invalid_json"), (b"[]", "invalid_json"),
        (b"\xff", "invalid_json"), (b"[" * 100_000, "invalid_json"),
        (b'{"x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "invalid_json"),
        (b'{"model": 1}', "invalid_json"), (b"{}", "missing_model"),
        (b'{"model": ""}', "missing_model"), (b'{"model": null}', "invalid_json"),
    ],
    ids=range(10),
)  # fmt: skip
async def test_a_body_without_a_model_is_a_400(stand, body, code):
    async with stand.client.post(
        stand.url + CHAT, data=body, headers={"Content-Type": "application/json"}
    ) as answer:
        assert answer.status == 400
        assert (await answer.json())["error"]["code"] == code
    assert stand.lent == []


async def test_an_unknown_model_is_a_404_with_the_near_name(stand):
    stand.publish(**as_fields(snapshot_of('[models.qwen3-8b]\npath = "/m/a"\n')))
    status, answer = await stand.post(CHAT, {**ASK, "model": "qwen3-8B"})
    assert (status, answer["error"]["code"]) == (404, "model_not_found")
    assert answer["error"]["param"] == "model"
    assert "'qwen3-8b'" in answer["error"]["message"]


def as_fields(snapshot):
    return {name: getattr(snapshot, name) for name in snapshot.__struct_fields__}


async def test_an_alias_names_its_model(stand):
    assert (await stand.post(CHAT, {**ASK, "model": "gpt"}))[0] == 200
    assert stand.lent == ["a"]


@pytest.mark.parametrize(
    ("fields", "code"),
    [({"gib": {"a": -1, "b": 1}}, "not-installed"), ({"gib": {"a": 900, "b": 1}}, "unplaceable")],
)
async def test_a_model_that_cannot_be_served_is_a_503_that_no_retry_mends(stand, fields, code):
    stand.publish(**as_fields(snapshot_of(inventory=machine(), **fields)))
    async with stand.client.post(stand.url + CHAT, json=ASK) as answer:
        assert (answer.status, answer.headers["x-should-retry"]) == (503, "false")
        assert (await answer.json())["error"]["code"] == code
    assert stand.lent == []


async def test_while_it_stops_nothing_new_is_taken(stand):
    stand.publish(stopping=True)
    async with stand.client.post(stand.url + CHAT, json=ASK) as answer:
        assert (answer.status, answer.headers["Retry-After"]) == (503, "5")


async def test_a_body_that_is_too_large_is_refused_by_its_announced_length(stand):
    head = f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    head += f"Content-Length: {MAX_BODY + 1}\r\nConnection: close\r\n\r\n"
    status, answer = await stand.head(head.encode())
    assert status == 413
    assert b'"error"' in answer


async def test_a_body_that_is_too_large_is_refused_when_its_length_was_not_announced(stand):
    async def chunks():
        for _ in range(MAX_BODY // (1 << 20) + 2):
            yield b" " * (1 << 20)

    try:
        async with stand.client.post(
            stand.url + CHAT, data=chunks(), headers={"Content-Type": "application/json"}
        ) as answer:
            assert answer.status == 413
            assert json.loads(await answer.read())["error"]["code"] == "too_large"
    except aiohttp.ClientConnectionError:
        pass  # refused while it was still being sent
    assert stand.upstream.seen == []


@pytest.mark.parametrize("size", [2 << 20, 20 << 20])
async def test_a_body_of_a_few_images_passes(stand, size):
    status, _ = await stand.post(CHAT, {**ASK, "image": "x" * size})
    assert status == 200
    assert len(stand.upstream.last.body) > size


# --- forms ----------------------------------------------------------------------------------------

AUDIO = "/v1/audio/transcriptions"


async def test_the_model_of_a_form_is_found_and_the_form_passed_on(stand):
    form = aiohttp.FormData()
    form.add_field("file", b"\x00model=b\r\n--x" * 1000, filename="a.wav", content_type="audio/wav")
    form.add_field("model", "a")
    async with stand.client.post(stand.url + AUDIO, data=form) as answer:
        assert answer.status == 200
    assert stand.lent == ["a"]
    assert b"\x00model=b" in stand.upstream.last.body
    assert stand.upstream.last.headers["Content-Type"].startswith("multipart/form-data; boundary=")


@pytest.mark.parametrize("content_type", ["multipart/form-data", "multipart/form-data; boundary=x"])
@pytest.mark.parametrize("body", [b"", b"nonsense", b"--x\r\n\r\n--x--", b"--x\r\nA: \xff\r\n\r\n"])
async def test_a_form_without_a_model_is_a_400(stand, content_type, body):
    async with stand.client.post(
        stand.url + AUDIO, data=body, headers={"Content-Type": content_type}
    ) as answer:
        assert answer.status == 400
        assert (await answer.json())["error"]["code"] == "missing_model"


async def test_a_form_of_forms_is_a_400_or_read_but_never_a_fault(stand):
    body = b""
    for depth in range(1500):
        body += b'--b%d\r\nContent-Type: multipart/mixed; boundary="b%d"\r\n\r\n' % (
            depth,
            depth + 1,
        )
    async with stand.client.post(
        stand.url + AUDIO, data=body, headers={"Content-Type": "multipart/form-data; boundary=b0"}
    ) as answer:
        assert answer.status == 400
