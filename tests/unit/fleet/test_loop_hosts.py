"""The fleet over both real hosts: a request, a failure, a swap, a crash and a limit look alike."""

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import aiohttp
import psutil
import pytest
from tests.fakes.host import files, launch
from tests.fakes.hosted import LLAMA_SWAP, PATIENCE_S, CountedPorts
from tests.launching import FAKE_ENGINE, alive

from pannier.errors import LoadError
from pannier.fleet.host import Workplace, launcher_command
from pannier.fleet.loop import Desired, Fleet
from pannier.fleet.process import child_environment
from pannier.fleet.store import Store, hold
from pannier.render.llama_swap import GroupLaunch, group_launch

swap_here = pytest.mark.skipif(not LLAMA_SWAP.exists(), reason=f"no llama-swap at {LLAMA_SWAP}")


@pytest.fixture(params=["direct", pytest.param("llama-swap", marks=swap_here)])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def ports() -> CountedPorts:
    return CountedPorts()


@pytest.fixture
def store(tmp_path: Path):
    with hold(tmp_path / "state", tmp_path / "run" / "pannier") as store:
        yield store


@pytest.fixture
async def fleet(store: Store, ports: CountedPorts) -> AsyncIterator[Fleet]:
    place = Workplace(store=store, ports=ports, env=child_environment(os.environ))
    async with Fleet(place, drain_s=2.0) as fleet:
        yield fleet
    assert ports.in_use() == 0
    assert list(store.groups.iterdir()) == []


@pytest.fixture
def run(fleet: Fleet, store: Store, kind: str) -> Callable[..., GroupLaunch]:
    def apply(*ids: str, engine: tuple[str, ...] = (), swap: bool = False, **changes: object):
        argv = (sys.executable, FAKE_ENGINE, *engine)
        launches = [launch(each, argv=(*argv, "--alias", each), **changes) for each in ids]
        launcher = launcher_command(store.socket)
        one = group_launch("g", launches, swap=swap, host=kind, launcher=launcher)
        fleet.apply(Desired({"g": one}, files(one), kind, str(LLAMA_SWAP)))
        return one

    return apply


async def until(fleet: Fleet, instance: str, phase: str) -> int | None:
    """Waits for the phase of an instance; its engine's process id then."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            version, view = fleet.view.version, fleet.view.value.instance(instance)
            if view is not None and view.phase == phase:
                return view.pid
            await fleet.view.newer(version)


async def chat(fleet: Fleet, instance: str) -> str:
    async with fleet.lend(instance) as upstream:
        body = {"model": instance, "messages": []}
        url = f"{upstream.url}/v1/chat/completions"
        async with (
            aiohttp.ClientSession(headers=upstream.headers) as session,
            session.post(url, json=body) as answer,
        ):
            assert answer.status == 200
            return str((await answer.json())["model"])


async def test_a_request_loads_a_model_and_is_answered_by_it(fleet, run):
    run("a", "b")
    assert await asyncio.gather(chat(fleet, "a"), chat(fleet, "b"), chat(fleet, "a")) == [
        "a",
        "b",
        "a",
    ]


async def test_a_load_that_fails_is_told_in_the_engines_words(fleet, run):
    run("a", engine=("--fail-after", "0.1", "--fail-words", "error: unknown model architecture"))
    with pytest.raises(LoadError) as caught:
        await chat(fleet, "a")
    assert caught.value.failure.code == "engine-exited"
    assert caught.value.failure.detail == "error: unknown model architecture"


async def test_in_a_swap_set_one_engine_lives_at_a_time(fleet, run):
    run("a", "b", swap=True)
    engines: set[int] = set()
    for name in ("a", "b", "a"):
        assert await chat(fleet, name) == name
        view = fleet.view.value.instance(name)
        assert view is not None
        engines.add(view.pid or 0)
        assert [pid for pid in engines if alive(pid)] == [view.pid]
    assert len(engines) == 3


async def test_a_crashed_preloaded_model_comes_back(fleet, run):
    run("a", preload=True)
    first = await until(fleet, "a", "ready")
    psutil.Process(first).kill()
    await until(fleet, "a", "failed")
    assert await until(fleet, "a", "ready") != first


async def test_an_edit_in_the_middle_of_a_load_ends_it_and_the_request_waits_on(fleet, run):
    run("a", engine=("--load-seconds", "600"))
    waiting = asyncio.create_task(chat(fleet, "a"))
    old = await until(fleet, "a", "loading")
    run("a", engine=("--load-seconds", "0.1"))
    assert await waiting == "a"
    assert old is None or not alive(old)


async def test_a_client_that_leaves_in_the_middle_of_a_load_lets_it_go_on(fleet, run):
    run("a", engine=("--load-seconds", "1"))
    waiting = asyncio.create_task(chat(fleet, "a"))
    await until(fleet, "a", "loading")
    waiting.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await waiting
    await until(fleet, "a", "ready")
    view = fleet.view.value.instance("a")
    assert view is not None
    assert (view.asked, view.inflight) == (0, 0)


async def test_a_load_that_takes_too_long_is_called_so(fleet, run):
    """llama-swap has the same limit, at least 15 s, and it asks the launcher to end."""
    run("a", engine=("--load-seconds", "600"), load_timeout_s=1)
    with pytest.raises(LoadError) as caught:
        await chat(fleet, "a")
    assert caught.value.failure.code == "load-timeout"
    await until(fleet, "a", "failed")
