"""The owner of a group: which news of launchers and hosts it believes, and what a fault does."""

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest
from tests.fakes.host import Machine, launch
from tests.fakes.owned import Owned, now, owning

from pannier.errors import LoadError
from pannier.progress.parse import Said

pytestmark = pytest.mark.looptime


@pytest.fixture
def machine() -> Machine:
    return Machine()


@pytest.fixture
async def run(machine: Machine) -> AsyncIterator[Callable[..., Owned]]:
    async with owning(machine) as start:
        yield start


async def loading(owned, machine):
    """A request that waits for a load which ends only when a test says so."""
    machine.load_s = None
    waiting = asyncio.create_task(owned.owner.acquire("a"))
    await owned.until("loading", "a")
    await asyncio.sleep(1)
    return waiting


async def test_reports_of_an_earlier_launcher_are_not_believed(run, machine):
    owned = run()
    waiting = await loading(owned, machine)
    machine.host.say("a")
    earlier = machine.host.engines["a"]
    machine.host.crash("a")
    with pytest.raises(LoadError):
        await waiting
    waiting = await loading(owned, machine)
    machine.host.say("a", launcher=earlier, phase="ready")
    await asyncio.sleep(10)
    assert owned.phase("a") == "loading"
    machine.host.ready("a")
    owned.owner.release(await waiting)


async def test_a_launcher_that_an_earlier_run_left_behind_is_not_believed(run, machine):
    """It has the same name, and the port of that run."""
    owned = run()
    waiting = await loading(owned, machine)
    machine.host.say("a", launcher=1, port=9999, phase="ready")
    await asyncio.sleep(10)
    assert owned.phase("a") == "loading"
    machine.host.ready("a")
    owned.owner.release(await waiting)


async def test_a_lost_connection_without_a_last_word_is_an_end(run, machine):
    owned = run()
    waiting = await loading(owned, machine)
    machine.host.say("a")
    began = now()
    machine.host.vanish("a")
    with pytest.raises(LoadError) as caught:
        await waiting
    assert caught.value.failure.code == "engine-gone"
    assert now() - began == pytest.approx(1.0, abs=0.1)


async def test_a_launcher_that_connects_again_in_time_has_not_ended(run, machine):
    owned = run()
    ticket = await owned.owner.acquire("a")
    owned.owner.lost("a", machine.host.engines["a"])
    await asyncio.sleep(0.5)
    machine.host.ready("a")
    await asyncio.sleep(60)
    assert owned.phase("a") == "ready"
    owned.owner.release(ticket)


async def test_the_lost_connection_of_an_earlier_launcher_says_nothing(run, machine):
    owned = run()
    ticket = await owned.owner.acquire("a")
    owned.owner.lost("a", 1)
    await asyncio.sleep(60)
    assert owned.phase("a") == "ready"
    owned.owner.release(ticket)


async def test_a_launcher_that_never_spoke_is_an_end_when_its_host_says_so(run, machine):
    owned = run()
    waiting = await loading(owned, machine)
    machine.host.hooks.gone("a", "No module named pannier")
    with pytest.raises(LoadError, match="No module named pannier"):
        await waiting


async def test_the_last_words_of_a_launcher_win_over_the_news_of_its_end(run, machine):
    owned = run()
    waiting = await loading(owned, machine)
    machine.host.hooks.gone("a", "the launcher ended with code 1")
    machine.host.crash("a", out_of_memory=True, reason="cudaMalloc failed")
    with pytest.raises(LoadError) as caught:
        await waiting
    assert caught.value.failure.code == "out-of-memory"
    assert caught.value.failure.detail == "cudaMalloc failed"


async def test_an_end_is_told_once(run, machine):
    owned = run(launch("a", preload=True))
    await owned.until("ready", "a")
    launcher = machine.host.engines["a"]
    machine.host.crash("a")
    owned.owner.lost("a", launcher)
    machine.host.hooks.gone("a", "the launcher ended")
    await owned.settled()
    assert owned.owner._state.members["a"].crashes == 1


async def test_an_engine_that_was_stopped_for_loading_too_long_by_its_host_is_called_so(
    run, machine
):
    """llama-swap has a limit of its own and asks the launcher to end: nobody here asked for it."""
    owned = run(launch("a", load_timeout_s=100))
    waiting = await loading(owned, machine)
    machine.host.say("a")
    await asyncio.sleep(100)
    machine.host.crash("a", code=0, asked=True, reason=None)
    with pytest.raises(LoadError) as caught:
        await waiting
    assert caught.value.failure.code == "load-timeout"
    assert owned.phase("a") == "failed"


async def test_a_host_that_unloads_an_idle_member_by_itself_leaves_it_cold(run, machine):
    owned = run(launch("a", ttl_s=60))
    owned.owner.release(await owned.owner.acquire("a"))
    machine.host.crash("a", code=0, asked=True, reason=None)
    await owned.until("cold", "a")
    owned.owner.release(await owned.owner.acquire("a"))


async def test_an_engine_that_the_host_started_by_itself_serves_the_next_request(run, machine):
    """llama-swap loads for any request: one that was let through as the engine died, say."""
    owned = run()
    await owned.until("ready")
    machine.host.engines["a"] = 4242
    machine.host.ready("a")
    await asyncio.sleep(1)
    machine.load_s = None
    owned.owner.release(await asyncio.wait_for(owned.owner.acquire("a"), 5))


async def test_an_engine_of_a_host_that_died_is_not_taken_for_a_running_one(run, machine):
    owned = run(launch("a", preload=True))
    await owned.until("ready", "a")
    machine.host.dies()
    await owned.until("failed", "a")
    machine.load_s = None
    await owned.until("loading", "a")
    await asyncio.sleep(10)
    assert owned.phase("a") == "loading"


async def test_a_fault_while_the_host_starts_is_a_host_that_did_not_start(run, machine):
    machine.start_bug = ValueError("a fault of ours")
    owned = run()
    assert await owned.failure() == "host-failed"
    assert owned.phase() == "backoff"


async def test_a_fault_in_the_owner_answers_who_waits_and_stops_the_host(run, machine):
    owned = run()
    waiting = await loading(owned, machine)
    owned.owner._mail.put_nowait("no event")
    with pytest.raises(LoadError) as caught:
        await waiting
    assert caught.value.failure.code == "replaced", "the request moves to the group that follows"
    with pytest.raises(AttributeError):
        await owned.task
    assert not machine.host.running


async def test_a_request_to_an_owner_that_is_over_does_not_wait(run, machine):
    owned = run()
    owned.owner.stop()
    await owned.task
    assert owned.owner.leaving
    assert await owned.failure() == "replaced"


async def test_an_owner_that_is_cancelled_twice_leaves_no_host(run, machine):
    machine.stop_s = 5
    owned = run()
    owned.owner.release(await owned.owner.acquire("a"))
    owned.owner.stop()
    await owned.until("stopping")
    await asyncio.sleep(1)
    owned.task.cancel()
    await asyncio.gather(owned.task, return_exceptions=True)
    assert not machine.host.running


async def test_what_a_load_took_is_told_once_per_load_and_shown(run, machine):
    owned = run()
    waiting = await loading(owned, machine)
    machine.host.ready("a")
    owned.owner.release(await waiting)
    memory = {"CPU": {"kv": 5}}
    said = {"memory": memory, "engine": Said(build="b1")}
    machine.host.say("a", phase="ready", **said)
    machine.host.say("a", phase="ready", **said)
    assert [report.memory for report in owned.measured] == [memory]
    assert owned.owner.view().instances[0].memory == memory

    machine.host.crash("a")
    waiting = await loading(owned, machine)
    assert owned.owner.view().instances[0].memory is None
    machine.host.ready("a")
    owned.owner.release(await waiting)
    machine.host.say("a", phase="ready", engine=Said())
    assert [report.memory for report in owned.measured] == [memory, None]
