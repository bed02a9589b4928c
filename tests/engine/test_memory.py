"""Models that share memory: swap sets and idle times."""

import asyncio
import contextlib
import time
from pathlib import Path

import psutil
import pytest
from tests.engine.serving import PATIENCE_S, Json, Serve, Stream, frozen, row_of
from tests.gguf_writer import wordy_chat

pytestmark = pytest.mark.timeout(150)

CHAT: Json = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2}


@pytest.fixture
def two_that_do_not_fit(serve: Serve) -> tuple[dict[str, Json], Json]:
    """Two models of a third of the free memory each, where little more than one may be used.

    Their headers are longer than Pannier reads, so that they are weighed by their files, which are
    micro models with a hole behind them: large for the planner, not on the disk.
    """
    free = psutil.virtual_memory().available
    models: dict[str, Json] = {}
    for name in ("a", "b"):
        file = wordy_chat(serve.folder / f"{name}.gguf")
        with file.open("r+b") as out:
            out.truncate(free // 3)
        models[name] = {"path": file.name, "context": 4096, "preload": False}
    return models, {"reserve": f"{free * 44 // 100 // 2**20}MiB"}


async def test_models_that_do_not_fit_together_make_room_for_each_other(
    serve: Serve, two_that_do_not_fit: tuple[dict[str, Json], Json]
) -> None:
    models, memory = two_that_do_not_fit
    serve.write(models, memory=memory)
    await serve.start()
    status, body, _ = await serve.post("/v1/chat/completions", {"model": "a", **CHAT})
    assert status == 200, body
    seen = await serve.readiness()
    assert [row["state"] for row in seen["data"]] == ["ready", "cold"]
    first = await serve.pid("a")

    async with Stream(serve, "a", tokens=600) as stream:
        with frozen(first):
            asked = asyncio.create_task(
                serve.post("/v1/chat/completions", {"model": "b", **CHAT}), name="b"
            )
            seen = await serve.wait_for(lambda seen: row_of(seen, "b")["making_room"])
            row = row_of(seen, "b")
            assert row["making_room"] == "a"
            assert (row["state"], row["stage"]) == ("queued", "making_room")
            assert row_of(seen, "a")["state"] == "draining"
            assert len(serve.engines()) == 1
            # Who asks for the first again meanwhile stands behind.
            again = asyncio.create_task(
                serve.post("/v1/chat/completions", {"model": "a", **CHAT}), name="a again"
            )
            await serve.wait_for(lambda seen: True)
            assert not again.done()
        await stream.end()
        assert stream.done, stream.lines[-2:]
    status, body, _ = await asked
    assert status == 200, body
    status, body, _ = await again
    assert status == 200, body
    seen = await serve.readiness()
    assert [row["state"] for row in seen["data"]] == ["ready", "cold"]
    assert await serve.pid("a") != first
    assert len(serve.engines()) == 1
    await serve.stop()


async def test_two_of_a_swap_set_are_never_there_at_once_however_they_are_asked(
    serve: Serve, two_that_do_not_fit: tuple[dict[str, Json], Json]
) -> None:
    models, memory = two_that_do_not_fit
    serve.write(models, memory=memory)
    await serve.start()
    most = 0

    async def count() -> None:
        nonlocal most
        async with contextlib.aclosing(serve.events()) as events:
            async for _ in events:
                most = max(most, len(serve.engines()))

    counting = asyncio.create_task(count(), name="count")
    answers = await asyncio.gather(
        *(
            serve.post("/v1/chat/completions", {"model": model, **CHAT})
            for model in ("a", "b", "b", "a", "a", "b")
        )
    )
    counting.cancel()
    await asyncio.gather(counting, return_exceptions=True)
    assert [status for status, _, _ in answers] == [200] * 6, answers
    assert most == 1


async def test_an_idle_model_leaves_and_comes_back_at_the_next_request(
    serve: Serve, programs: object, micro_chat: Path
) -> None:
    small: Json = {"path": str(micro_chat), "context": 4096}
    serve.write({"a": {**small, "ttl": "2s"}, "b": small})
    await serve.start()
    await serve.ready()
    first, port = await serve.pid("a"), (await serve.row("a"))["instances"][0]["port"]
    assert port
    async with Stream(serve, "a", tokens=500) as stream:
        with frozen(first):
            began = time.monotonic()
            await asyncio.sleep(3.5)
            row = await serve.row("a")
            assert row["state"] == "ready", f"unloaded while it answers: {row}"
            assert time.monotonic() - began < PATIENCE_S
        await stream.end()
        assert stream.done
    row = await serve.state("a", "cold")
    assert row["error"] is None
    assert row["instances"][0]["pid"] is None
    assert (await serve.get("/readyz"))[0] == 200, "an idle model is no fault"
    assert (await serve.row("b"))["state"] == "ready"
    await serve.wait_for(lambda seen: len(serve.engines()) == 1)
    status, body, _ = await serve.post("/v1/chat/completions", {"model": "a", **CHAT})
    assert status == 200, body
    assert await serve.pid("a") != first
