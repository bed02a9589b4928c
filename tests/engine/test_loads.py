"""A load is never silent: from the first request to ready, and when it fails."""

import asyncio
import contextlib
import json
import shutil
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from tests.engine.serving import PATIENCE_S, Json, Serve, row_of

pytestmark = pytest.mark.timeout(150)

CHAT: Json = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2}


async def watched(serve: Serve, model: str, until: str) -> list[Json]:
    """The rows of a model, as the events tell them, until it is in a state."""
    rows: list[Json] = []
    async with asyncio.timeout(PATIENCE_S), contextlib.aclosing(serve.events()) as events:
        async for name, value in events:
            for row in value["data"] if name in ("snapshot", "config") else [value]:
                if row["id"] == model and (not rows or rows[-1] != row):
                    rows.append(row)
                    if row["state"] == until:
                        return rows
    raise AssertionError("the events ended")


def steps(rows: list[Json]) -> list[tuple[str, str | None]]:
    """State and stage of the rows, each as long as it lasts."""
    found: list[tuple[str, str | None]] = []
    for row in rows:
        step = (row["state"], row["stage"])
        if not found or found[-1] != step:
            found.append(step)
    return found


async def test_a_load_is_seen_from_the_first_request_to_ready(
    slow_device: Callable[[float], Any], serve: Serve, programs: Any
) -> None:
    device = slow_device(24e6)
    serve.engine.update(device.engine)
    serve.write(
        {"smollm2": {"path": str(programs.model), "context": 512, "preload": False}},
        placement={"chat": {"devices": ["RPC0"]}},
    )
    await serve.start()
    cold = await serve.row("smollm2")
    assert (cold["state"], cold["stage"], cold["fraction"]) == ("cold", None, None)
    assert (await serve.get("/readyz"))[0] == 200, "what nobody asked for is not waited for"

    watcher = asyncio.create_task(watched(serve, "smollm2", "ready"), name="watcher")
    answer = asyncio.create_task(
        serve.post("/v1/chat/completions", {"model": "smollm2", **CHAT}), name="answer"
    )
    await serve.wait_for(lambda seen: row_of(seen, "smollm2")["stage"] == "weights")

    # While it loads: the list is quick, and the row of one model is waited for.
    began = time.monotonic()
    status, text = await serve.get("/v1/models")
    assert (status, time.monotonic() - began < 3) == (200, True)
    listed = json.loads(text)["data"][0]
    assert listed["status"] == {"value": "loading"}
    assert listed["pannier"]["stage"] == "weights"
    status, text = await serve.get(f"/v1/readiness/smollm2?wait={PATIENCE_S:.0f}")
    assert json.loads(text)["state"] == "ready"

    status, body, _ = await answer
    assert status == 200, body
    rows = await watcher
    seen = steps(rows)
    wanted: list[tuple[str, str | None]] = [
        ("cold", None), ("queued", "queued"), ("loading", "starting"), ("loading", "weights"),
        ("loading", "warming_up"), ("ready", None),
    ]  # fmt: skip
    assert seen == wanted
    loading = [row for row in rows if row["state"] == "loading"]
    fractions = [row["fraction"] for row in loading if row["stage"] == "weights"]
    assert fractions == sorted(fractions)
    assert len({f for f in fractions if f is not None}) >= 5, fractions
    assert all(f < 1 for f in fractions if f is not None)
    assert {row["source"] for row in loading if row["stage"] == "weights"} == {"engine"}
    elapsed = [row["elapsed_s"] for row in rows if row["elapsed_s"] is not None]
    assert elapsed == sorted(elapsed)
    etas = [row["eta_s"] for row in loading if row["eta_s"] is not None]
    assert etas
    assert all(eta < 60 for eta in etas), etas
    assert all(row["bytes_total"] == programs.model.stat().st_size for row in loading)
    assert rows[-1]["fraction"] == 1.0
    assert rows[-1]["instances"][0]["devices"] == ["RPC0"]
    later = await serve.row("smollm2")
    assert later["elapsed_s"] == rows[-1]["elapsed_s"], "the time of a load ends with it"
    await serve.stop()


async def test_requests_share_a_load_and_one_that_leaves_does_not_stop_it(
    slow_device: Callable[[float], Any], serve: Serve, programs: Any
) -> None:
    device = slow_device(7e6)
    serve.engine.update(device.engine)
    serve.write({"smollm2": {"path": str(programs.model), "context": 512, "preload": False}})
    await serve.start()
    body = {"model": "smollm2", **CHAT}
    one = asyncio.create_task(serve.post("/v1/chat/completions", body))
    await serve.state("smollm2", "loading")
    two = asyncio.create_task(serve.post("/v1/chat/completions", body))

    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{serve.url}/v1/chat/completions", json={**body, "stream": True}) as streamed,
    ):
        assert streamed.status == 200
        assert streamed.content_type == "text/event-stream"
        assert await streamed.content.readline() == b": loading\n"
        row = await serve.row("smollm2")
        assert row["state"] == "loading"
        assert len(serve.engines()) == 1

        one.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await one
        device.lift()
        lines = [line async for line in streamed.content]
    assert lines[-2:] == [b"data: [DONE]\n", b"\n"]
    status, answer, _ = await two
    assert status == 200, answer
    assert len(serve.engines()) == 1
    assert (await serve.row("smollm2"))["state"] == "ready"


async def test_a_load_that_all_clients_left_goes_on_to_ready(
    serve: Serve, micro_chat: Path
) -> None:
    serve.write({"a": {"path": str(micro_chat), "context": 512, "preload": False}})
    await serve.start()
    only = asyncio.create_task(serve.post("/v1/chat/completions", {"model": "a", **CHAT}))
    await serve.state("a", "loading", "ready")  # before, nothing was begun that could go on
    only.cancel()
    await asyncio.gather(only, return_exceptions=True)
    await serve.ready("a")


async def test_a_file_that_is_no_model_fails_with_the_engines_words_and_loads_once_repaired(
    serve: Serve, micro_chat: Path
) -> None:
    broken = serve.folder / "broken.gguf"
    broken.write_bytes(b"this is no model" * 64)
    serve.write({"a": {"path": "broken.gguf", "context": 512, "preload": False}})
    await serve.start()
    watcher = asyncio.create_task(watched(serve, "a", "failed"))
    await asyncio.sleep(0)
    status, body, headers = await serve.post("/v1/chat/completions", {"model": "a", **CHAT})
    assert status == 503
    row = (await watcher)[-1]
    assert row["error"]["code"] == "engine-exited"
    assert "magic" in row["error"]["detail"]
    assert row["stage"] is None
    assert body["error"]["code"] == "engine-exited"
    assert "magic" in body["error"]["message"]
    assert body["error"]["type"] == "server_error"
    assert int(headers["Retry-After"]) >= 1
    assert headers["x-should-retry"] == "false"

    shutil.copy(micro_chat, broken)
    status, body, _ = await serve.post("/v1/chat/completions", {"model": "a", **CHAT})
    assert status == 200, body
    fixed = await serve.row("a")
    assert (fixed["state"], fixed["error"]) == ("ready", None)


async def test_a_flag_that_the_engine_refuses_fails_with_its_words(
    serve: Serve, micro_chat: Path
) -> None:
    model = {"path": str(micro_chat), "context": 512}
    serve.write({"a": {**model, "args": ["--no-such-flag"]}, "b": model})
    await serve.start()
    row = await serve.state("a", "failed")
    assert "--no-such-flag" in row["error"]["detail"]
    assert "a" in row["error"]["message"]
    await serve.ready("b")
    status, text = await serve.get("/readyz?verbose")
    assert status == 503
    assert "[-] model a: failed" in text
    # A streaming request is told by a status, not by a stream.
    status, body, _ = await serve.post(
        "/v1/chat/completions", {"model": "a", **CHAT, "stream": True}
    )
    assert status == 503
    assert "--no-such-flag" in body["error"]["message"]


async def test_a_port_that_was_taken_meanwhile_is_changed(serve: Serve, micro_chat: Path) -> None:
    serve.write({"a": {"path": str(micro_chat), "context": 512, "preload": False}})
    await serve.start()
    seen = await serve.wait_for(lambda seen: row_of(seen, "a")["instances"][0]["port"])
    port = row_of(seen, "a")["instances"][0]["port"]
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", port))
        taken.listen()
        status, body, _ = await serve.post("/v1/chat/completions", {"model": "a", **CHAT})
        assert status == 200, body
        assert (await serve.row("a"))["instances"][0]["port"] != port


LATE = """#!{python}
import os, pathlib, socket, sys
if "--port" in sys.argv and pathlib.Path({flag!r}).exists():
    taken = socket.socket()
    taken.bind(("127.0.0.1", int(sys.argv[-1])))
    taken.listen()
    os.set_inheritable(taken.fileno(), True)
os.execv({engine!r}, [{engine!r}, *sys.argv[1:]])
"""
"""A llama-server whose port is taken in the last moment, as long as a flag file is there."""


async def test_a_port_that_is_taken_in_the_last_moment_is_told_in_the_engines_words(
    serve: Serve, programs: Any, micro_chat: Path, tmp_path: Path
) -> None:
    flag, engine = tmp_path / "taken", tmp_path / "llama-server"
    engine.write_text(LATE.format(python=sys.executable, flag=str(flag), engine=programs.server))
    engine.chmod(0o755)
    flag.touch()
    serve.engine["llama_server"] = str(engine)
    serve.write({"a": {"path": str(micro_chat), "context": 512, "preload": False}})
    await serve.start()
    status, body, _ = await serve.post("/v1/chat/completions", {"model": "a", **CHAT})
    row = await serve.row("a")
    assert status == 503, body
    assert row["state"] == "failed"
    assert "bind" in row["error"]["detail"]
    assert str(row["instances"][0]["port"]) in row["error"]["detail"]
    flag.unlink()
    status, body, _ = await serve.post("/v1/chat/completions", {"model": "a", **CHAT})
    assert status == 200, body


async def test_a_wait_ends_at_its_time_and_refuses_nonsense(serve: Serve, micro_chat: Path) -> None:
    serve.write({"a": {"path": str(micro_chat), "context": 512, "preload": False}})
    await serve.start()
    status, text = await serve.get("/v1/readiness/a?wait=0.2")
    assert (status, json.loads(text)["state"]) == (200, "cold")
    assert (await serve.get("/v1/readiness/a?wait=soon"))[0] == 400
    assert (await serve.get("/v1/readiness/nobody?wait=1"))[0] == 404
