"""The fleet with hosts in memory: edits, replacements and the requests that wait through them."""

import asyncio
import itertools
import logging
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from tests.fakes.host import Machine, files, group, launch
from tests.fakes.owned import now

from pannier.errors import LoadError, UnavailableError
from pannier.fleet.host import Workplace
from pannier.fleet.loop import RELOAD_DRAIN_S, Desired, Fleet
from pannier.fleet.owner import Surroundings
from pannier.fleet.ports import Ports
from pannier.fleet.store import hold
from pannier.render.llama_swap import GroupLaunch

pytestmark = pytest.mark.looptime


class FleetInMemory(Fleet):
    """A fleet whose hosts are in memory."""

    def __init__(self, place: Workplace, machine: Machine) -> None:
        super().__init__(place)
        self.machine = machine
        machine.report, machine.lost = self._report, self._lost

    def _surroundings(self, desired: Desired) -> Surroundings:
        around = super()._surroundings(desired)
        around.make_host = self.machine.make_host
        return around

    def run(self, *groups: GroupLaunch) -> None:
        self.apply(Desired({each.id: each for each in groups}, files(*groups), "direct"))

    async def until(self, wanted: Callable[[], object]) -> None:
        while not wanted():
            await self.view.newer(self.view.version)

    def running(self) -> dict[str, str]:
        return {each.id: each.phase for each in self.view.value.groups}

    def phase(self, instance: str) -> str | None:
        found = self.view.value.instance(instance)
        return found.phase if found else None


@pytest.fixture
def machine() -> Machine:
    return Machine()


@pytest.fixture
def place(tmp_path: Path):
    with hold(tmp_path / "state", tmp_path / "run" / "pannier") as store:
        yield Workplace(store=store, ports=Ports(), env={})


@pytest.fixture
async def fleet(machine: Machine, place: Workplace) -> AsyncIterator[FleetInMemory]:
    async with FleetInMemory(place, machine) as fleet:
        yield fleet
        machine.stop_s = machine.unload_s = 0.0  # loop time is over
        fleet.stop_now()


ONE = group("one", launch("a"), launch("b"))
ONE_CHANGED = group("one", launch("a", ttl_s=60), launch("b"))
TWO = group("two", launch("c"))


async def test_what_is_desired_runs_and_what_is_not_any_more_ends(fleet, machine):
    fleet.run(ONE, TWO)
    await fleet.until(lambda: fleet.running() == {"one": "ready", "two": "ready"})
    fleet.run(TWO)
    await fleet.until(lambda: fleet.running() == {"two": "ready"})
    assert machine.done == ["start one", "start two", "stop one"]


async def test_an_edit_that_changes_nothing_touches_nothing(fleet, machine):
    fleet.run(ONE)
    async with fleet.lend("a"):
        for _ in range(100):
            fleet.run(ONE)
            await asyncio.sleep(0.01)
    assert machine.done == ["start one", "load a"]


async def test_an_edit_of_one_group_leaves_the_other_and_its_streams_alone(fleet, machine):
    fleet.run(ONE, TWO)
    async with fleet.lend("c"):
        for number in range(1, 11):
            fleet.run(group("one", launch("a", ttl_s=float(number))), TWO)
            await fleet.until(lambda: "one" in fleet.running())
            await asyncio.sleep(60)
        assert fleet.phase("c") == "ready"
    assert machine.count("start two") == 1
    assert "stop two" not in machine.done
    assert machine.count("start one") == 11


async def test_the_last_of_many_edits_wins(fleet, machine):
    fleet.run(ONE)
    await fleet.until(lambda: fleet.running() == {"one": "ready"})
    for number in range(1, 6):
        fleet.run(group("one", launch("a", ttl_s=float(number))))
        await asyncio.sleep(0.1 * number)
    fleet.run(TWO)
    await fleet.until(lambda: fleet.running() == {"two": "ready"})
    assert machine.done[-1] in ("start two", "stop one")


async def test_an_edit_that_is_taken_back_ends_in_the_first_picture(fleet, machine):
    fleet.run(ONE)
    await fleet.until(lambda: fleet.running() == {"one": "ready"})
    fleet.run(ONE_CHANGED)
    fleet.run(ONE)
    await asyncio.sleep(60)
    assert fleet.view.value.groups[0].identity == ONE.identity
    assert machine.done == ["start one"]


async def test_a_request_that_waits_moves_over_to_the_group_that_follows(fleet, machine):
    machine.load_s = None
    fleet.run(ONE)
    waiting = asyncio.create_task(url(fleet, "a"))
    await fleet.until(lambda: fleet.phase("a") == "loading")
    machine.load_s = 2.0
    fleet.run(ONE_CHANGED)
    assert await waiting == "http://one/a"
    assert machine.done == ["start one", "load a", "stop one", "start one", "load a"]


async def test_a_request_that_waits_for_a_model_that_is_removed_is_told(fleet, machine):
    machine.load_s = None
    fleet.run(ONE)
    waiting = asyncio.create_task(url(fleet, "a"))
    await fleet.until(lambda: fleet.phase("a") == "loading")
    fleet.run(TWO)
    with pytest.raises(UnavailableError, match="not part of the config"):
        await waiting


async def test_a_request_that_comes_while_a_group_is_replaced_waits_for_the_new_one(fleet, machine):
    fleet.run(ONE)
    async with fleet.lend("a"):
        fleet.run(ONE_CHANGED)
        await fleet.until(lambda: fleet.running() == {"one": "draining"})
        assert fleet.view.value.waiting == ("one",)
        waiting = asyncio.create_task(url(fleet, "a"))
        await asyncio.sleep(1)
        assert not waiting.done()
    assert await waiting == "http://one/a"


async def test_a_changed_group_lets_its_answers_end_and_then_the_new_one_starts(fleet, machine):
    fleet.run(ONE)
    async with fleet.lend("a"):
        fleet.run(ONE_CHANGED)
        began = now()
        await fleet.until(lambda: machine.count("start one") == 2)
        assert now() - began == pytest.approx(RELOAD_DRAIN_S + machine.stop_s, abs=0.1)


async def test_a_group_that_needs_the_card_of_another_waits_until_that_one_is_gone(fleet, machine):
    fleet.run(group("one", launch("a", devices=("CUDA0",))))
    await fleet.until(lambda: fleet.running() == {"one": "ready"})
    fleet.run(group("new", launch("d", devices=("CUDA0",))))
    await fleet.until(lambda: fleet.running() == {"new": "ready"})
    assert machine.done == ["start one", "stop one", "start new"]


async def test_a_failed_load_reaches_the_request_and_the_next_request_loads_afresh(fleet, machine):
    machine.load_s = None
    fleet.run(ONE)
    waiting = asyncio.create_task(url(fleet, "a"))
    await fleet.until(lambda: fleet.phase("a") == "loading")
    await asyncio.sleep(1)
    machine.host.crash("a")
    with pytest.raises(LoadError, match="GGML_ASSERT"):
        await waiting
    machine.load_s = 1.0
    assert await url(fleet, "a") == "http://one/a"


async def test_a_hundred_requests_make_one_load_and_leave_nothing_behind(fleet, machine):
    fleet.run(ONE)
    await asyncio.gather(*(url(fleet, "a") for _ in range(100)))
    await fleet.until(lambda: fleet.view.value.instance("a").inflight == 0)
    assert machine.count("load a") == 1


async def test_leaving_the_fleet_ends_everything(machine, place):
    async with FleetInMemory(place, machine) as fleet:
        fleet.run(ONE, TWO)
        async with fleet.lend("a"):
            pass
    assert not any(host.running for host in machine.hosts)
    assert not place.store.socket.exists()


async def test_leaving_the_fleet_in_the_middle_of_a_start_ends_everything(machine, place):
    machine.start_s = 10_000
    async with FleetInMemory(place, machine) as fleet:
        fleet.run(ONE, TWO)
        await fleet.until(lambda: len(machine.hosts) == 2)
    assert not any(host.running for host in machine.hosts)
    assert now() < 100


async def test_a_fault_in_an_owner_is_told_and_tried_again_with_a_pause(fleet, machine, caplog):
    starts = []
    make_host = machine.make_host

    def broken(launch, hooks):
        starts.append(now())
        host = make_host(launch, hooks)
        asyncio.get_running_loop().call_soon(
            fleet._owners[fleet._keys]._mail.put_nowait, "no event"
        )
        return host

    machine.make_host = broken
    with caplog.at_level(logging.ERROR, "pannier.fleet"):
        fleet.run(ONE)
        await asyncio.sleep(100)
    machine.make_host = make_host
    await fleet.until(lambda: fleet.running() == {"one": "ready"})
    assert 2 <= len(starts) <= 100
    assert all(later - earlier >= 1.0 for earlier, later in itertools.pairwise(starts))
    assert "the group one broke" in caplog.text


async def test_a_picture_that_cannot_be_carried_out_does_not_end_the_fleet(fleet, machine, caplog):
    with caplog.at_level(logging.ERROR, "pannier.fleet"):
        fleet.apply(Desired({"one": ONE}, {}, "direct"))
        await asyncio.sleep(1)
    assert "KeyError" in caplog.text
    fleet.run(TWO)
    await fleet.until(lambda: fleet.running() == {"two": "ready"})


async def url(fleet: Fleet, instance: str) -> str:
    async with fleet.lend(instance) as upstream:
        return upstream.url
