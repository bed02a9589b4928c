"""Whatever is killed at whatever moment: nothing is left, and the others do not notice."""

import asyncio
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.engine.serving import Json, Serve, Stream, Watch, frozen, row_of

pytestmark = pytest.mark.timeout(150)


@pytest.fixture
def small(micro_chat: Path) -> Json:
    return {"path": str(micro_chat), "context": 256}


@pytest.fixture
def real(programs: Any) -> Json:
    return {"path": str(programs.model), "context": 2048}


async def back_again(serve: Serve, model: str, old: int) -> Json:
    """Waits until a model is ready in another process; its row."""
    seen = await serve.wait_for(
        lambda seen: (
            row_of(seen, model)["state"] == "ready"
            and row_of(seen, model)["instances"][0]["pid"] != old
        ),
        what=f"{model} is back",
    )
    return row_of(seen, model)


async def test_when_pannier_is_killed_nothing_is_left_and_the_next_start_is_fine(
    serve: Serve, small: Json
) -> None:
    serve.write({"a": small, "b": small})
    await serve.start()
    await serve.ready()
    assert len(serve.engines()) == 2
    serve.running.kill()
    await serve.ended()
    await serve.nothing_left(20)
    await serve.start()
    await serve.ready()
    await serve.stop()


async def test_when_an_engine_is_killed_its_reason_is_told_and_it_is_loaded_again(
    serve: Serve, small: Json, real: Json
) -> None:
    serve.write({"a": real, "b": small})
    await serve.start()
    await serve.ready()
    old, other = await serve.pid("a"), await serve.pid("b")
    failed = asyncio.create_task(serve.state("a", "failed"))
    async with Stream(serve, "a", tokens=1500) as stream:
        os.kill(old, signal.SIGKILL)
        row = await failed
        await stream.end()
    assert row["error"]["code"] == "engine-exited"
    assert "SIGKILL" in row["error"]["message"]
    assert "after it was ready" in row["error"]["message"]
    assert row["instances"][0]["pid"] is None
    assert (row["fraction"], row["elapsed_s"]) == (None, None), "its load is long over"
    assert not stream.done
    told = json.loads(stream.lines[-1].removeprefix("data: "))["error"]
    assert told["code"] == "engine_gone"
    assert told["message"] == (
        "the engine of this model went away while it answered: its answer broke off"
    )
    await back_again(serve, "a", old)
    assert await serve.pid("b") == other
    await serve.stop()


async def test_when_a_launcher_is_killed_its_engine_goes_too_and_comes_back(
    serve: Serve, small: Json
) -> None:
    serve.write({"a": small, "b": small})
    await serve.start()
    await serve.ready()
    old, other = await serve.pid("a"), await serve.pid("b")
    launcher = psutil.Process(old).parent()
    assert launcher is not None
    assert "pannier.fleet.launcher" in launcher.cmdline()
    launcher.kill()
    row = await back_again(serve, "a", old)
    assert row["error"] is None
    assert not psutil.pid_exists(old)
    assert await serve.pid("b") == other
    assert len(serve.engines()) == 2


@pytest.mark.parametrize("host", ["llama-swap"], indirect=True)
async def test_when_a_llama_swap_is_killed_its_group_comes_back_and_the_others_stay(
    serve: Serve, small: Json
) -> None:
    serve.write({"a": small, "b": small})
    await serve.start()
    await serve.ready()
    old, other = await serve.pid("a"), await serve.pid("b")
    swap = next(p for p in psutil.Process(old).parents() if p in serve.swaps())
    told = asyncio.create_task(serve.state("a", "failed"))
    swap.kill()
    row = await told
    assert row["error"]["code"] == "llama-swap-ended"
    assert "SIGKILL" in row["error"]["message"]
    await back_again(serve, "a", old)
    assert not psutil.pid_exists(old)
    assert await serve.pid("b") == other
    assert len(serve.swaps()) == 2
    await serve.stop()


async def test_a_stop_during_a_load_is_quick_and_leaves_nothing(
    slow_device: Callable[[float], Any], serve: Serve, real: Json
) -> None:
    device = slow_device(4e6)
    serve.engine.update(device.engine)
    serve.write({"a": real})
    await serve.start()
    await serve.wait_for(lambda seen: row_of(seen, "a")["stage"] == "weights")
    asked = asyncio.create_task(serve.post("/v1/chat/completions", {"model": "a", "messages": []}))
    await serve.wait_for(lambda seen: True)
    serve.signal(signal.SIGTERM)
    assert await serve.ended(15) == 0
    status, body, _ = await asked
    assert status == 503, body
    assert serve.processes() == []
    serve.assert_clean()


async def test_a_stop_lets_a_stream_end_and_takes_no_new_request(serve: Serve, real: Json) -> None:
    serve.write({"a": real})
    await serve.start()
    await serve.ready()
    async with Stream(serve, "a") as stream:
        with frozen(await serve.pid("a")):
            serve.signal(signal.SIGTERM)
            seen = await serve.wait_for(lambda seen: row_of(seen, "a")["state"] == "draining")
            assert not seen["ready"]
            status, body, headers = await serve.post(
                "/v1/chat/completions", {"model": "a", "messages": []}
            )
            assert (status, body["error"]["code"]) == (503, "stopping")
            assert "Retry-After" in headers
            assert (await serve.get("/readyz"))[0] == 503
            assert (await serve.get("/livez"))[0] == 200
        await stream.end()
    assert stream.done, stream.lines[-2:]
    assert await serve.ended() == 0
    assert serve.processes() == []
    serve.assert_clean()


async def test_a_second_stop_ends_a_stream_at_once(
    make_serve: Callable[..., Serve], real: Json
) -> None:
    serve = make_serve(drain_s=120.0)
    serve.write({"a": real})
    await serve.start()
    await serve.ready()
    async with Stream(serve, "a", tokens=1900) as stream:
        serve.signal(signal.SIGTERM)
        await serve.state("a", "draining")
        serve.signal(signal.SIGTERM)
        # An engine that writes on for its reader is not waited for until its launcher kills it.
        assert await serve.ended(8) == 0
        await stream.end()
    assert not stream.done
    assert '"error"' in stream.lines[-1], stream.lines[-2:]
    assert serve.processes() == []
    serve.assert_clean()


async def test_event_streams_do_not_hold_up_a_stop(serve: Serve, small: Json) -> None:
    serve.write({"a": small})
    await serve.start()
    await serve.ready()
    async with Watch(serve) as watch:
        serve.signal(signal.SIGTERM)
        assert await serve.ended(20) == 0
    assert watch.states("a") in (["ready", "draining", "cold"], ["ready", "draining"])
