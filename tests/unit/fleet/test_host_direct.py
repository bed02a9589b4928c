"""Both hosts with real children: start, load, unload and stop in any moment leave nothing."""

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import msgspec
import psutil
import pytest
from tests.fakes.hosted import LLAMA_SWAP, Hosted, hosted
from tests.launching import alive, gone

from pannier.errors import HostError

swap_here = pytest.mark.skipif(not LLAMA_SWAP.exists(), reason=f"no llama-swap at {LLAMA_SWAP}")
both = pytest.mark.parametrize("kind", ["direct", pytest.param("llama-swap", marks=swap_here)])


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Hosted]:
    async with hosted(tmp_path) as place:
        yield place


async def ask(host, instance: str, path: str = "/v1/models") -> bytes:
    upstream = host.upstream(instance)
    async with (
        aiohttp.ClientSession(headers=upstream.headers) as session,
        session.get(f"{upstream.url}{path}") as answer,
    ):
        assert answer.status == 200
        return await answer.read()


@both
async def test_a_member_loads_answers_and_is_unloaded(place, kind):
    host = place.make(kind, place.group("a", "b"))
    await host.start()
    await host.load("a")
    ready = await place.phase("a", "ready")
    assert ready.port == host.port("a")
    assert b'"a"' in await ask(host, "a")
    await host.unload("a")
    assert not alive(ready.launcher)
    assert not alive(ready.pid or 0)
    ended = await place.phase("a", "exited")
    assert ended.exit is not None
    assert ended.exit.asked
    await host.load("a")
    await place.phase("a", "ready", since=place.reports.index(ended))
    await host.stop()
    place.nothing_is_left()


@both
@pytest.mark.parametrize("name", ["qwen3#1", "org/model", "two words", "ü 模型?&%2f", "a\"b'c"])
async def test_an_id_may_hold_what_it_likes(place, kind, name):
    host = place.make(kind, place.group(name, "plain"))
    await host.start()
    await host.load(name)
    await place.phase(name, "ready")
    assert b'"object": "list"' in await ask(host, name)
    await host.unload(name)
    await place.phase(name, "exited")


@both
@pytest.mark.parametrize("moment", ["asked", "starting", "loading", "ready"])
async def test_a_stop_in_any_moment_of_a_load_leaves_nothing(place, kind, moment):
    seconds = "0.1" if moment == "ready" else "600"
    host = place.make(kind, place.group("a", "b", arguments=("--load-seconds", seconds)))
    await host.start()
    await host.load("a")
    await host.load("b")
    if moment != "asked":
        await place.phase("a", moment)
    await host.stop()
    place.nothing_is_left()


@both
@pytest.mark.parametrize("ticks", [0, 1, 3, 6, 12, 40])
async def test_a_start_that_is_cancelled_and_stopped_leaves_nothing(place, kind, ticks):
    host = place.make(kind, place.group("a"))
    start = asyncio.create_task(host.start())
    for _ in range(ticks):
        await asyncio.sleep(0)
    start.cancel()
    await asyncio.gather(start, return_exceptions=True)
    await host.stop()
    place.nothing_is_left()


@both
async def test_a_stop_that_is_cancelled_can_be_finished(place, kind):
    host = place.make(kind, place.group("a"))
    await host.start()
    await host.load("a")
    await place.phase("a", "ready")
    for ticks in (1, 2, 3, 5, 8):
        stop = asyncio.create_task(host.stop())
        for _ in range(ticks):
            await asyncio.sleep(0)
        stop.cancel()
        await asyncio.gather(stop, return_exceptions=True)
    await host.stop()
    place.nothing_is_left()


@both
async def test_a_host_that_was_never_started_can_be_stopped(place, kind):
    host = place.make(kind, place.group("a"))
    await host.stop()
    with pytest.raises(HostError):
        host.upstream("a")
    assert host.port("a") is None


@both
async def test_an_engine_that_fails_to_load_says_why_and_can_be_loaded_again(place, kind):
    host = place.make(kind, place.group("a", arguments=("--fail-after", "0.1")))
    await host.start()
    for _ in range(2):
        since = len(place.reports)
        await host.load("a")
        ended = await place.phase("a", "exited", since)
        assert ended.exit is not None
        assert "No such file" in (ended.exit.reason or "")


@both
async def test_an_engine_that_ignores_everything_is_gone_after_the_stop(place, kind):
    host = place.make(kind, place.group("a", arguments=("--ignore-term",)))
    await host.start()
    await host.load("a")
    ready = await place.phase("a", "ready")
    await asyncio.wait_for(host.stop(), 30)
    assert not alive(ready.pid or 0)


@both
async def test_a_port_that_was_taken_meanwhile_is_changed(place, kind):
    host = place.make(kind, place.group("a"))
    await host.start()
    await host.load("a")
    await place.phase("a", "ready")
    await host.unload("a")
    taken = host.port("a")
    assert taken is not None
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(("127.0.0.1", taken))
        other.listen()
        since = len(place.reports)
        await host.load("a")
        await place.phase("a", "ready", since)
        assert host.port("a") != taken


async def test_a_launcher_that_is_killed_is_told_and_takes_its_engine_along(place):
    host = place.make("direct", place.group("a"))
    await host.start()
    await host.load("a")
    ready = await place.phase("a", "ready")
    (launcher,) = place.sessions.pids
    assert launcher == ready.launcher
    os.kill(launcher, 9)
    await place.until(lambda: place.gone)
    assert place.gone[0][0] == "a"
    await gone(ready.pid or 0)


async def test_a_launcher_that_cannot_run_is_told_with_its_last_words(place):
    group = place.group("a")
    broken = (group.launches[0].argv[0], "-c", "raise SystemExit('no such module')")
    launches = (msgspec.structs.replace(group.launches[0], argv=broken),)
    host = place.make("direct", msgspec.structs.replace(group, launches=launches))
    await host.start()
    await host.load("a")
    await place.until(lambda: place.gone)
    assert place.gone == [("a", "no such module")]


async def test_the_environment_of_a_launch_reaches_the_engine_and_wins(place):
    group = place.group("a", env={"PATH": "/elsewhere", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"})
    host = place.make("direct", group)
    await host.start()
    await host.load("a")
    ready = await place.phase("a", "ready")
    env = psutil.Process(ready.pid).environ()
    assert (env["PATH"], env["CUDA_DEVICE_ORDER"]) == ("/elsewhere", "PCI_BUS_ID")
