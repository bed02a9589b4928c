"""An owner that runs on a machine in memory, for tests in loop time."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

import pytest
from tests.fakes.host import Machine, files, group, launch

from pannier.errors import LoadError
from pannier.fleet.owner import GroupOwner, Surroundings
from pannier.progress.parse import Report
from pannier.render.argv import Launch
from pannier.render.llama_swap import GroupLaunch


class Owned:
    """An owner, its task and its machine."""

    def __init__(self, launches: GroupLaunch, machine: Machine) -> None:
        self.machine = machine
        self.learned: list[tuple[str, float]] = []
        self.measured: list[Report] = []
        self._news = asyncio.Event()
        around = Surroundings(
            make_host=machine.make_host,
            usual_load=lambda path: None,
            remember_load=lambda path, seconds: self.learned.append((path, seconds)),
            loaded=lambda launch, files, report: self.measured.append(report),
            changed=self._news.set,
            say=lambda line: None,
            tell=lambda line: None,
            drain_s=30.0,
        )
        self.owner = GroupOwner(launches, files(launches), around)
        machine.report, machine.lost = self.owner.report, self.owner.lost
        self.task = asyncio.create_task(self.owner.run())

    async def until(self, phase: str, instance: str | None = None) -> None:
        """Waits until the group, or one of its members, is in a phase."""
        while phase != self.phase(instance):
            self._news.clear()
            await self._news.wait()

    def phase(self, instance: str | None = None) -> str:
        view = self.owner.view()
        if instance is None:
            return view.phase
        return next(each.phase for each in view.instances if each.id == instance)

    def counts(self, instance: str = "a") -> tuple[int, int]:
        """Requests that wait, and that are being served."""
        found = next(each for each in self.owner.view().instances if each.id == instance)
        return found.asked, found.inflight

    async def settled(self) -> None:
        """All messages that were posted are dealt with."""
        while not self.owner._mail.empty():  # noqa: ASYNC110  nothing tells of an empty mailbox
            await asyncio.sleep(0)
        await asyncio.sleep(0)

    async def failure(self, instance: str = "a") -> str:
        """The code of what a request for the instance is refused with."""
        with pytest.raises(LoadError) as caught:
            await self.owner.acquire(instance)
        return caught.value.failure.code


@contextlib.asynccontextmanager
async def owning(machine: Machine) -> AsyncIterator[Callable[..., Owned]]:
    """Starts owners; at the end they are stopped, and no host may run."""
    running: list[Owned] = []

    def start(*launches: Launch, swap: bool = False) -> Owned:
        owned = Owned(group("g", *(launches or (launch("a"), launch("b"))), swap=swap), machine)
        running.append(owned)
        return owned

    yield start
    machine.stop_s = machine.unload_s = 0.0  # loop time is over
    for owned in running:
        owned.owner.stop()
        owned.owner.stop_now()
        await asyncio.gather(owned.task, return_exceptions=True)
    assert not any(host.running for host in machine.hosts)


def now() -> float:
    return asyncio.get_running_loop().time()
