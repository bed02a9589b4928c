"""The owner of a group with a host in memory: limits, waits and reports, hours in milliseconds."""

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest
from tests.fakes.host import Machine, launch
from tests.fakes.owned import Owned, now, owning

from pannier.errors import LoadError
from pannier.fleet.backoff import LONGEST_S, STEADY_S
from pannier.fleet.owner import LOAD_MARGIN_S, SWAP_DRAIN_S

pytestmark = pytest.mark.looptime


@pytest.fixture
def machine() -> Machine:
    return Machine()


@pytest.fixture
async def run(machine: Machine) -> AsyncIterator[Callable[..., Owned]]:
    async with owning(machine) as start:
        yield start


# --- loads ----------------------------------------------------------------------------------------


async def test_a_hundred_requests_at_once_make_one_load(run, machine):
    owned = run()
    tickets = await asyncio.gather(*(owned.owner.acquire("a") for _ in range(100)))
    assert machine.count("load a") == 1
    assert owned.counts()[1] == 100
    assert {ticket.granted.result().url for ticket in tickets} == {"http://g/a"}
    for ticket in tickets:
        owned.owner.release(ticket)
    await owned.settled()
    assert owned.counts()[1] == 0


async def test_a_request_that_comes_before_the_owner_began_is_served(run, machine):
    owned = run()
    ticket = await owned.owner.acquire("a")
    assert machine.done == ["start g", "load a"]
    owned.owner.release(ticket)


async def test_a_load_that_takes_too_long_is_stopped_and_called_so(run, machine):
    machine.load_s = None
    owned = run(launch("a", load_timeout_s=100))
    began = now()
    assert await owned.failure() == "load-timeout"
    assert now() - began == pytest.approx(100 + LOAD_MARGIN_S + 1.5, abs=0.5)
    assert machine.count("unload a") == 1
    assert owned.phase("a") == "failed"


async def test_the_time_of_an_earlier_load_does_not_end_a_later_one(run, machine):
    machine.load_s = None
    owned = run(launch("a", load_timeout_s=100))
    waiting = asyncio.create_task(owned.owner.acquire("a"))
    await asyncio.sleep(60)
    machine.host.crash("a")
    with pytest.raises(LoadError, match="GGML_ASSERT"):
        await waiting
    waiting = asyncio.create_task(owned.owner.acquire("a"))
    await asyncio.sleep(80)
    machine.host.ready("a")
    owned.owner.release(await waiting)


async def test_a_host_that_cannot_load_says_why(run, machine):
    owned = run()
    await owned.until("ready")
    machine.load_error = OSError(24, "Too many open files")
    assert await owned.failure() == "start-failed"


async def test_a_load_that_became_ready_is_remembered_with_its_seconds(run, machine):
    owned = run()
    owned.owner.release(await owned.owner.acquire("a"))
    assert owned.learned == [("/models/a.gguf", 2.0)]


async def test_what_shall_be_loaded_at_the_start_is(run, machine):
    owned = run(launch("a", preload=True), launch("b"), launch("c", preload=True))
    await owned.until("ready", "a")
    assert [line for line in machine.done if "load" in line] == ["load a", "load c"]


async def test_in_a_swap_set_only_the_first_is_loaded_at_the_start(run, machine):
    owned = run(launch("a", preload=True), launch("b", preload=True), swap=True)
    await asyncio.sleep(60)
    assert [line for line in machine.done if "load" in line] == ["load a"]
    assert owned.phase("b") == "cold"


# --- waits ----------------------------------------------------------------------------------------


async def test_a_host_that_does_not_start_is_tried_with_rising_waits_then_given_up(run, machine):
    machine.start_fails = 99
    owned = run(launch("a", preload=True))
    await owned.until("failed")
    assert machine.count("start g") == 6
    assert 31 + 6 <= now() <= 31 * 1.25 + 12
    await asyncio.sleep(10_000)
    assert machine.count("start g") == 6
    machine.start_fails = 0
    owned.owner.release(await owned.owner.acquire("a"))


async def test_a_host_that_dies_again_and_again_is_given_up(run, machine):
    owned = run(launch("a", preload=True))
    for _ in range(6):
        await owned.until("ready")
        machine.host.dies()
        await asyncio.sleep(LONGEST_S / 2)
    await owned.until("failed")
    await asyncio.sleep(10_000)
    assert machine.count("start g") == 6


async def test_a_host_that_dies_once_a_day_is_never_given_up(run, machine):
    owned = run()
    for _ in range(20):
        await owned.until("ready")
        await asyncio.sleep(86_400)
        machine.host.dies()
    await owned.until("ready")


async def test_a_preloaded_member_comes_back_after_its_host_died(run, machine):
    owned = run(launch("a", preload=True))
    await owned.until("ready", "a")
    machine.host.dies()
    await owned.until("failed", "a")
    await owned.until("ready", "a")
    assert machine.done == ["start g", "load a", "stop g", "start g", "load a"]


async def test_a_crashing_preloaded_member_is_given_up_and_a_request_loads_it(run, machine):
    owned = run(launch("a", preload=True))
    for _ in range(6):
        await owned.until("ready", "a")
        machine.host.crash("a")
        await owned.until("failed", "a")
    await asyncio.sleep(10_000)
    assert machine.count("load a") == 6
    owned.owner.release(await owned.owner.acquire("a"))


async def test_a_member_that_was_steady_between_its_crashes_is_never_given_up(run, machine):
    owned = run(launch("a", preload=True))
    for _ in range(20):
        await owned.until("ready", "a")
        await asyncio.sleep(STEADY_S + 1)
        machine.host.crash("a")
        await owned.until("failed", "a")
    await owned.until("ready", "a")


async def test_a_crashed_member_that_nobody_wants_loaded_stays_away(run, machine):
    owned = run()
    owned.owner.release(await owned.owner.acquire("a"))
    machine.host.crash("a")
    await asyncio.sleep(10_000)
    assert machine.count("load a") == 1


async def test_an_idle_member_leaves_after_its_ttl_and_a_used_one_does_not(run, machine):
    owned = run(launch("a", ttl_s=600))
    ticket = await owned.owner.acquire("a")
    await asyncio.sleep(3600)
    assert owned.phase("a") == "ready"
    owned.owner.release(ticket)
    await asyncio.sleep(500)
    owned.owner.release(await owned.owner.acquire("a"))
    await asyncio.sleep(500)
    assert owned.phase("a") == "ready"
    await asyncio.sleep(101)
    assert owned.phase("a") == "cold"


# --- drains ---------------------------------------------------------------------------------------


async def test_an_answer_that_never_ends_keeps_another_member_out_for_five_minutes(run, machine):
    owned = run(swap=True)
    endless = await owned.owner.acquire("a")
    began = now()
    ticket = await owned.owner.acquire("b")
    assert now() - began == pytest.approx(SWAP_DRAIN_S + 2.5, abs=0.1)
    owned.owner.release(endless)
    owned.owner.release(ticket)
    await owned.settled()
    assert (owned.counts("a")[1], owned.counts("b")[1]) == (0, 0)


async def test_who_makes_room_is_named(run, machine):
    owned = run(swap=True)
    first = await owned.owner.acquire("a")
    waiting = asyncio.create_task(owned.owner.acquire("b"))
    await owned.until("draining", "a")
    assert owned.owner.view().instances[1].making_room == "a"
    owned.owner.release(first)
    owned.owner.release(await waiting)


async def test_a_group_that_ends_waits_for_its_answers_up_to_the_limit(run, machine):
    owned = run()
    ticket = await owned.owner.acquire("a")
    began = now()
    owned.owner.stop()
    await owned.task
    assert now() - began == pytest.approx(30 + machine.stop_s, abs=0.1)
    owned.owner.release(ticket)


async def test_a_group_that_ends_is_gone_when_its_last_answer_is(run, machine):
    owned = run()
    ticket = await owned.owner.acquire("a")
    owned.owner.stop()
    await owned.until("draining")
    began = now()
    owned.owner.release(ticket)
    await owned.task
    assert now() - began == pytest.approx(machine.stop_s, abs=0.1)


async def test_a_second_stop_does_not_wait_for_answers(run, machine):
    owned = run()
    await owned.owner.acquire("a")
    began = now()
    owned.owner.stop()
    owned.owner.stop_now()
    await owned.task
    assert now() - began == pytest.approx(machine.stop_s, abs=0.1)


async def test_a_stop_does_not_wait_for_a_host_that_is_still_starting(run, machine):
    machine.start_s = 1000
    owned = run()
    await owned.until("starting")
    owned.owner.stop()
    await owned.task
    assert now() < 10
    assert not machine.host.running
