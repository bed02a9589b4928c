"""A streaming request that waits for a load: kept alive, told, and ended with the reason."""

import asyncio

import openai
import pytest
from tests.fakes.snapshots import snapshot_of
from tests.fakes.upstream import says, streams

from pannier.errors import Failure, LoadError, UnavailableError
from pannier.serve import waiting

from .conftest import PATIENCE

CHAT = "/v1/chat/completions"
STREAM = {"model": "a", "messages": [], "stream": True}
CHUNK = b'data: {"choices": [{"delta": {"content": "hi"}}]}\n\n'
HEADER = '[server]\nevent_header = "X-Status"\n'


@pytest.fixture
def short(monkeypatch):
    """Status events come soon; the quiet time before a comment is short in the stand already."""
    monkeypatch.setattr(waiting, "FIRST_EVENT_S", 0.02)
    monkeypatch.setattr(waiting, "EVENT_S", 0.02)


async def first_piece(answer):
    return await asyncio.wait_for(answer.content.readany(), PATIENCE)


async def test_a_waiting_stream_is_kept_alive_and_then_flows(stand):
    stand.granted.clear()
    stand.upstream.answer = streams(CHUNK)
    async with stand.client.post(stand.url + CHAT, json=STREAM) as answer:
        assert answer.headers["Content-Type"].startswith("text/event-stream")
        assert "no-transform" in answer.headers["Cache-Control"]
        assert (await first_piece(answer)).startswith(b": loading\n\n")
        stand.granted.set()
        rest = await answer.read()
    assert rest.replace(b": loading\n\n", b"") == CHUNK + b"data: [DONE]\n\n"


async def test_a_request_without_a_stream_gets_nothing_before_its_answer(stand):
    stand.granted.clear()
    asking = asyncio.create_task(stand.post(CHAT, {**STREAM, "stream": False}))
    await asyncio.wait_for(stand.asked.wait(), PATIENCE)
    await asyncio.sleep(0.1)
    stand.granted.set()
    assert await asyncio.wait_for(asking, PATIENCE) == (200, {"ok": True})


@pytest.mark.parametrize(
    "error",
    [LoadError(Failure(code="out-of-memory", message="no memory")), UnavailableError("gone")],
)
async def test_a_load_that_fails_after_the_first_comment_ends_with_one_error(stand, error):
    stand.granted.clear()
    stand.refusal = error
    async with stand.client.post(stand.url + CHAT, json=STREAM) as answer:
        assert answer.status == 200
        await first_piece(answer)
        stand.granted.set()
        rest = await answer.read()
    assert rest.count(b'data: {"error"') == 1
    assert error.code.encode() in rest
    assert b"[DONE]" not in rest


@pytest.mark.parametrize("status", [400, 500])
async def test_an_engine_that_refuses_after_the_first_comment_is_heard(stand, status):
    stand.granted.clear()
    stand.upstream.answer = says(status, b'{"error": {"message": "too long", "code": 1}}')
    async with stand.client.post(stand.url + CHAT, json=STREAM) as answer:
        await first_piece(answer)
        stand.granted.set()
        rest = await answer.read()
    assert b"too long" in rest
    assert rest.count(b'data: {"error"') == 1


async def test_a_client_that_leaves_while_it_waits_gives_its_place_up(stand):
    stand.granted.clear()
    async with stand.client.post(stand.url + CHAT, json=STREAM) as answer:
        await first_piece(answer)
    await asyncio.wait_for(stand.gave_up.wait(), PATIENCE)


async def test_only_who_asks_by_the_header_gets_status_events(stand, short):
    text = HEADER + '[models.a]\npath = "/m/a"\n'
    stand.snapshots.publish(snapshot_of(text, "loading"))
    stand.upstream.answer = streams(CHUNK)
    for headers, told in (({"X-Status": "1"}, True), ({"X-Status": ""}, False), ({}, False)):
        stand.granted.clear()
        async with stand.client.post(stand.url + CHAT, json=STREAM, headers=headers) as answer:
            piece = await first_piece(answer)
            assert (b'"type":"status"' in piece) is told
            stand.granted.set()
            rest = await answer.read()
            assert (b'"done":true' in rest) is told


async def test_a_model_that_is_removed_while_a_stream_waits_for_it_is_told(stand, short):
    text = HEADER + '[models.a]\npath = "/m/a"\n'
    stand.snapshots.publish(snapshot_of(text, "loading"))
    stand.granted.clear()
    stand.refusal = UnavailableError("a is not part of the config any more")
    headers = {"X-Status": "1"}
    async with stand.client.post(stand.url + CHAT, json=STREAM, headers=headers) as answer:
        await first_piece(answer)
        stand.snapshots.publish(snapshot_of('[models.b]\npath = "/m/b"\n', generation=2))
        await asyncio.sleep(0.1)
        stand.granted.set()
        rest = await asyncio.wait_for(answer.read(), PATIENCE)
    assert rest.count(b'data: {"error"') == 1


# --- the real client ------------------------------------------------------------------------------


@pytest.fixture
async def client(stand):
    async with openai.AsyncOpenAI(base_url=stand.url + "/v1", api_key="k", max_retries=2) as made:
        yield made


async def chat(client, **options):
    return await client.chat.completions.create(
        model=options.pop("model", "a"), messages=[{"role": "user", "content": "hi"}], **options
    )


async def test_the_openai_client_gets_the_classes_that_it_has_for_this(stand, client):
    with pytest.raises(openai.NotFoundError) as unknown:
        await chat(client, model="zzz")
    assert unknown.value.code == "model_not_found"
    stand.upstream.answer = says(400, b'{"error": {"message": "no", "code": 400, "type": "x"}}')
    with pytest.raises(openai.BadRequestError, match="no"):
        await chat(client)
    assert len(stand.upstream.seen) == 1


async def test_the_openai_client_tries_again_only_what_may_work_the_next_time(stand, client):
    stand.refusal = LoadError(Failure(code="out-of-memory", message="no memory"))
    with pytest.raises(openai.InternalServerError, match="no memory"):
        await chat(client)
    assert stand.lent == ["a"], "a load that fails again must not be tried again by itself"


async def test_the_openai_client_comes_back_after_a_reload(stand, client, monkeypatch):
    monkeypatch.setattr("openai._base_client.BaseClient._calculate_retry_timeout", lambda *a: 0.0)
    stand.refusal = LoadError(Failure(code="replaced", message="changed"))
    with pytest.raises(openai.InternalServerError):
        await chat(client)
    assert len(stand.lent) == 3


async def test_the_openai_client_raises_where_a_stream_breaks(stand, client):
    stand.upstream.answer = streams(CHUNK, dies=True)
    stream = await chat(client, stream=True)
    assert (await anext(stream)).choices[0].delta.content == "hi"
    with pytest.raises(openai.APIError, match="went away"):
        await anext(stream)


async def test_the_openai_client_does_not_mind_the_comments_of_a_load(stand, client):
    stand.granted.clear()
    stand.upstream.answer = streams(CHUNK)
    asking = asyncio.create_task(chat(client, stream=True))
    await asyncio.wait_for(stand.asked.wait(), PATIENCE)
    await asyncio.sleep(0.1)
    stand.granted.set()
    chunks = [chunk async for chunk in await asyncio.wait_for(asking, PATIENCE)]
    assert [chunk.choices[0].delta.content for chunk in chunks] == ["hi"]


async def test_the_openai_client_lists_the_models(stand, client):
    models = (await client.models.list()).data
    assert [model.id for model in models] == ["a", "b"]
    assert (await client.models.retrieve("a")).owned_by == "pannier"
