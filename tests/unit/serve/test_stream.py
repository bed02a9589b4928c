"""Streams, engines that die, loads that fail, clients that leave."""

import asyncio

import aiohttp
import pytest
from aiohttp import web
from tests.fakes.upstream import LLAMA, dies, hangs, streams

from pannier.errors import Failure, LoadError, UnavailableError

from .conftest import PATIENCE

CHAT = "/v1/chat/completions"
ASK = {"model": "a", "messages": [{"role": "user", "content": "hi"}]}
STREAM = {**ASK, "stream": True}
CHUNK = b'data: {"choices": [{"delta": {"content": "hi"}}]}\n\n'


# --- streams --------------------------------------------------------------------------------------


async def streamed(stand, body=STREAM, path=CHAT):
    async with stand.client.post(stand.url + path, json=body) as answer:
        return answer.status, await answer.read()


async def test_a_stream_passes_byte_for_byte(stand):
    stand.upstream.answer = streams(CHUNK, b": comment\n", b"\n", CHUNK)
    assert await streamed(stand) == (200, CHUNK + b": comment\n\n" + CHUNK + b"data: [DONE]\n\n")


async def test_the_first_chunk_does_not_wait_for_the_second(stand):
    more = asyncio.Event()
    stand.upstream.answer = streams(CHUNK, CHUNK, between=more)
    async with stand.client.post(stand.url + CHAT, json=STREAM) as answer:
        assert await asyncio.wait_for(answer.content.readany(), PATIENCE) == CHUNK
        more.set()
        assert (await answer.read()).endswith(b"data: [DONE]\n\n")


@pytest.mark.parametrize("ending", [{"dies": True}, {"done": False}])
async def test_a_stream_that_breaks_ends_with_one_error_and_without_done(stand, ending):
    stand.upstream.answer = streams(CHUNK, **ending)
    status, body = await streamed(stand)
    assert status == 200
    assert body.startswith(CHUNK)
    assert body.count(b'data: {"error"') == 1
    assert body.endswith(b"}}\n\n")
    assert b"[DONE]" not in body


async def test_an_error_that_the_engine_streams_is_not_told_twice(stand):
    error = b'data: {"error": {"code": 500, "message": "' + b"x" * 300 + b'", "type": "e"}}\n\n'
    stand.upstream.answer = streams(CHUNK, error, done=False)
    _, body = await streamed(stand)
    assert body == CHUNK + error


async def test_a_stream_of_another_dialect_needs_no_done(stand):
    stand.upstream.answer = streams(b"event: response.completed\ndata: {}\n\n", done=False)
    _, body = await streamed(stand, path="/v1/responses")
    assert body == b"event: response.completed\ndata: {}\n\n"


async def test_an_answer_that_is_cut_is_not_taken_for_a_whole_one(stand):
    async def cut(seen):
        response = web.StreamResponse(headers={**LLAMA, "Content-Type": "application/json"})
        await response.prepare(seen.request)
        await response.write(b'{"half": ')
        seen.request.transport.abort()
        return response

    stand.upstream.answer = cut
    with pytest.raises(aiohttp.ClientError):
        await streamed(stand)


async def test_an_engine_that_dies_before_it_answers_is_a_503_to_try_again(stand):
    stand.upstream.answer = dies
    async with stand.client.post(stand.url + CHAT, json=ASK) as answer:
        assert (answer.status, answer.headers["Retry-After"]) == (503, "2")
        assert (await answer.json())["error"]["code"] == "engine_gone"


@pytest.mark.parametrize("body", [ASK, STREAM])
async def test_a_client_that_leaves_ends_the_work_of_the_engine(stand, body):
    stand.upstream.answer = hangs
    asking = asyncio.create_task(streamed(stand, body))
    async with asyncio.timeout(PATIENCE):
        await stand.upstream.asked.wait()
        asking.cancel()
        await stand.upstream.cancelled.wait()


async def test_a_client_that_leaves_in_mid_stream_ends_the_work_of_the_engine(stand):
    stand.upstream.answer = streams(CHUNK, CHUNK, between=asyncio.Event())
    async with stand.client.post(stand.url + CHAT, json=STREAM) as answer:
        await answer.content.readany()
    await asyncio.wait_for(stand.upstream.cancelled.wait(), PATIENCE)


async def test_a_client_that_leaves_the_queue_gives_its_place_up(stand):
    stand.granted.clear()
    asking = asyncio.create_task(streamed(stand, ASK))
    async with asyncio.timeout(PATIENCE):
        await stand.asked.wait()
        asking.cancel()
        await stand.gave_up.wait()


@pytest.mark.parametrize(
    ("error", "code", "retry"),
    [
        (LoadError(Failure(code="out-of-memory", message="no memory")), "out-of-memory", "false"),
        (LoadError(Failure(code="replaced", message="changed")), "replaced", "true"),
        (UnavailableError("gone"), "unavailable", None),
    ],
)
async def test_a_load_that_fails_at_once_is_a_proper_status(stand, error, code, retry):
    stand.refusal = error
    for body in (ASK, STREAM):
        async with stand.client.post(stand.url + CHAT, json=body) as answer:
            assert (answer.status, answer.headers.get("x-should-retry")) == (503, retry)
            assert answer.headers["Retry-After"]
            assert (await answer.json())["error"]["code"] == code
