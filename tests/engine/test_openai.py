"""The real openai client against `pannier serve`, with real models."""

import asyncio
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import openai
import pytest
from tests.engine.serving import PATIENCE_S, Serve

pytestmark = pytest.mark.timeout(120)

HELLO: list[Any] = [{"role": "user", "content": "Hello!"}]


@pytest.fixture(scope="module")
def serve(
    serve_shared: Callable[[dict[str, Any]], Serve],
    programs: Any,
    micro_chat: Path,
    micro_embed: Path,
    micro_rerank: Path,
) -> Serve:
    return serve_shared(
        {
            "smollm2": {"path": str(programs.model), "context": 2048, "aliases": ["gpt-4o-mini"]},
            "org/micro": {"path": str(micro_chat), "context": 512},
            "vectors": {"path": str(micro_embed), "role": "embed", "context": 512},
            "order": {"path": str(micro_rerank), "role": "rerank", "context": 512},
            "later": {"path": "not/there/yet.gguf"},
        }
    )


async def test_models_are_listed_and_retrieved_by_id_and_alias(serve: Serve) -> None:
    async with serve.client() as client:
        listed = [model async for model in client.models.list()]
        assert [model.id for model in listed] == [
            "smollm2", "org/micro", "vectors", "order", "later",
        ]  # fmt: skip
        assert {model.object for model in listed} == {"model"}
        assert all(model.created > 1_600_000_000 for model in listed)
        assert (await client.models.retrieve("org/micro")).id == "org/micro"
        assert (await client.models.retrieve("gpt-4o-mini")).id == "smollm2"


async def test_a_chat_is_answered_by_the_real_model_under_its_alias_too(serve: Serve) -> None:
    question: list[Any] = [{"role": "user", "content": "Why is the sky blue?"}]
    async with serve.client() as client:
        answers = [
            await client.chat.completions.create(
                model=name, messages=question, max_tokens=24, temperature=0
            )
            for name in ("smollm2", "gpt-4o-mini")
        ]
    for answer in answers:
        assert "light" in (answer.choices[0].message.content or "")
        assert answer.usage is not None
        assert answer.usage.completion_tokens > 0


async def test_a_streamed_chat_comes_in_chunks_and_ends(serve: Serve) -> None:
    async with serve.client() as client:
        stream = await client.chat.completions.create(
            model="smollm2",
            messages=HELLO,
            max_tokens=12,
            temperature=0,
            stream=True,
            stream_options={"include_usage": True},
        )
        chunks = [chunk async for chunk in stream]
    texts = [c.choices[0].delta.content for c in chunks if c.choices]
    assert len([text for text in texts if text]) >= 4
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] in ("stop", "length")
    assert chunks[-1].usage is not None


async def test_a_model_with_a_slash_in_its_id_answers(serve: Serve) -> None:
    async with serve.client() as client:
        answer = await client.chat.completions.create(
            model="org/micro", messages=HELLO, max_tokens=4
        )
        assert answer.model == "org/micro"


async def test_texts_become_vectors_one_or_many(serve: Serve) -> None:
    async with serve.client() as client:
        one = await client.embeddings.create(model="vectors", input="blue sky")
        many = await client.embeddings.create(model="vectors", input=["a", "b", "c"])
    assert len(one.data[0].embedding) == 64
    assert [each.index for each in many.data] == [0, 1, 2]


async def test_documents_are_reranked(serve: Serve) -> None:
    body = {"model": "order", "query": "sky", "documents": ["blue", "green"]}
    status, answer, _ = await serve.post("/v1/rerank", body)
    assert status == 200, answer
    assert {each["index"] for each in answer["results"]} == {0, 1}


async def test_a_model_that_nobody_has_is_a_not_found_error_with_the_nearest_name(
    serve: Serve,
) -> None:
    async with serve.client() as client:
        with pytest.raises(openai.NotFoundError) as raised:
            await client.chat.completions.create(model="smolm2", messages=HELLO)
        assert raised.value.code == "model_not_found"
        assert raised.value.param == "model"
        assert "did you mean 'smollm2'?" in raised.value.message
        with pytest.raises(openai.NotFoundError):
            await client.models.retrieve("smolm2")
        with pytest.raises(openai.NotFoundError):
            await client.embeddings.create(model="nothing", input="a")


async def test_a_model_whose_file_is_missing_says_which(serve: Serve) -> None:
    async with serve.client() as client:
        with pytest.raises(openai.InternalServerError) as raised:
            await client.chat.completions.create(model="later", messages=HELLO)
    assert raised.value.status_code == 503
    assert raised.value.code == "not-installed"
    assert "not/there/yet.gguf" in raised.value.message


async def test_an_error_of_the_engine_passes_through(serve: Serve) -> None:
    async with serve.client() as client:
        with pytest.raises(openai.BadRequestError) as raised:
            await client.chat.completions.create(
                model="org/micro", messages=HELLO, extra_body={"grammar": "root ::= ((("}
            )
        assert raised.value.status_code == 400
        assert "grammar" in raised.value.message.lower()
        long = "word " * 3000
        with pytest.raises(openai.BadRequestError, match="context"):
            await client.chat.completions.create(
                model="org/micro", messages=[{"role": "user", "content": long}], stream=True
            )


async def test_a_body_that_is_none_is_a_400_with_a_reason(serve: Serve) -> None:
    status, answer, _ = await serve.post("/v1/chat/completions", {"messages": HELLO})
    assert (status, answer["error"]["code"]) == (400, "missing_model")


async def test_a_client_that_leaves_in_the_middle_frees_the_engine(serve: Serve) -> None:
    port = (await serve.row("smollm2"))["instances"][0]["port"]

    async def slots() -> list[Any]:
        found: list[Any] = json.loads(
            (await serve.get("/slots", base=f"http://127.0.0.1:{port}"))[1]
        )
        return found

    async with serve.client() as client:
        stream = await client.chat.completions.create(
            model="smollm2",
            messages=HELLO,
            max_tokens=1900,
            stream=True,
            extra_body={"ignore_eos": True},
        )
        read = 0
        async for _ in stream:
            read += 1
            if read == 4:
                break
        assert any(slot["is_processing"] for slot in await slots())
        await stream.close()
    end = time.monotonic() + PATIENCE_S
    while any(slot["is_processing"] for slot in await slots()):
        assert time.monotonic() < end, "the engine goes on for nobody"
        await asyncio.sleep(0.1)
    made = (await slots())[0]["next_token"][0]["n_decoded"]
    assert made < 1500, "the engine wrote on to the end for nobody"
    # And Pannier counts the request out: the model can be asked again.
    async with serve.client() as client:
        await client.chat.completions.create(model="smollm2", messages=HELLO, max_tokens=2)


async def test_everything_is_ready_and_the_probes_say_so(serve: Serve) -> None:
    seen = await serve.readiness()
    states = {row["id"]: row["state"] for row in seen["data"]}
    assert states == {
        "smollm2": "ready", "org/micro": "ready", "vectors": "ready", "order": "ready",
        "later": "not_installed",
    }  # fmt: skip
    assert (await serve.get("/livez"))[0] == 200
    assert "not/there/yet.gguf" in (await serve.get("/readyz?verbose"))[1]
