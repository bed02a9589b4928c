"""The fleet: makes what runs equal to what is desired, and lends ready instances to requests.

One task compares desired and running groups whenever either changes (`decide.py`) and starts or
stops owners; it is the only writer of both. An edit never waits for an earlier one to be carried
out: it replaces the picture of what is desired, and the next comparison acts on the last one.

Must not: read the config, plan, or know about HTTP.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from types import TracebackType
from typing import Self

from pannier.errors import LoadError, UnavailableError
from pannier.fleet.decide import Running, decide
from pannier.fleet.host import Hooks, Host, HostKind, Upstream, Workplace
from pannier.fleet.host_direct import DirectHost
from pannier.fleet.host_llama_swap import LlamaSwapHost
from pannier.fleet.owner import GroupOwner, Surroundings, Ticket
from pannier.fleet.reports import ReportServer
from pannier.fleet.sweep import boot_id, end_sessions
from pannier.fleet.view import FleetView
from pannier.gguf.model_files import ModelFiles
from pannier.progress.hub import Latest
from pannier.progress.parse import Report
from pannier.render.argv import Launch
from pannier.render.llama_swap import GroupLaunch

RELOAD_DRAIN_S = 30.0
"""How long a changed or removed group lets running answers go on."""

_BROKEN_PAUSE_S = 1.0

log = logging.getLogger("pannier.fleet")
engine_log = logging.getLogger("pannier.engine")


class Desired:
    """What shall run: the launches, the files that each instance reads, and what runs them."""

    def __init__(
        self,
        groups: Mapping[str, GroupLaunch],
        files: Mapping[str, ModelFiles],
        host: HostKind,
        llama_swap: str | None = None,
    ) -> None:
        self.groups = dict(groups)
        self.files = dict(files)
        self.host = host
        self.llama_swap = llama_swap


class Fleet:
    """Runs the groups. An async context: leaving it stops everything, bounded by the drain.

    `loaded` is called in the loop for each load, soon after it is ready, with what it took.
    """

    def __init__(
        self,
        workplace: Workplace,
        *,
        drain_s: float = RELOAD_DRAIN_S,
        loaded: Callable[[Launch, ModelFiles, Report], None] = lambda *_: None,
    ) -> None:
        self._place = workplace
        self._drain_s = drain_s
        self._loaded = loaded
        self._desired = Desired({}, {}, "direct")
        self._owners: dict[int, GroupOwner] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._keys = 0
        self._look = asyncio.Event()
        self._waiting: tuple[str, ...] = ()
        self._reports = ReportServer(
            workplace.store.socket, on_report=self._report, on_lost=self._lost
        )
        self._loop_task: asyncio.Task[None] | None = None
        self.view = Latest(FleetView())

    async def __aenter__(self) -> Self:
        await self._sweep()
        await self._reports.start()
        self._loop_task = asyncio.create_task(self._reconcile(), name="reconcile")
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            await self.stop()
        finally:
            for task in (*self._tasks.values(), self._loop_task):
                if task is not None:
                    task.cancel()
            await asyncio.gather(*self._tasks.values(), return_exceptions=True)
            if self._loop_task is not None:
                await asyncio.gather(self._loop_task, return_exceptions=True)
            await self._reports.close()

    async def _sweep(self) -> None:
        """Ends what an earlier run that was killed left behind."""
        earlier = self._place.store.previous
        if earlier.boot == boot_id():
            found = await end_sessions(earlier.sessions)
            if found:
                log.warning("ended %d processes that an earlier run had left behind", len(found))

    # What the service asks for.

    def apply(self, desired: Desired) -> None:
        """Makes this the picture of what shall run. Returns at once; the last call wins."""
        self._desired = desired
        self._look.set()

    async def stop(self) -> None:
        """Drains and stops everything; returns when nothing is left."""
        self.apply(Desired({}, {}, self._desired.host))
        while self._owners or self._desired.groups:
            await self.view.newer(self.view.version)

    def stop_now(self) -> None:
        """Ends all drains at once: the second Ctrl-C."""
        for owner in self._owners.values():
            owner.stop_now()

    @contextlib.asynccontextmanager
    async def lend(self, instance: str) -> AsyncIterator[Upstream]:
        """Waits until the instance is ready and holds it for the block; loads it when it is cold.

        Raises LoadError when the load fails and UnavailableError when it is not desired any more.
        """
        owner, ticket = await self._acquire(instance)
        try:
            yield ticket.granted.result()
        finally:
            owner.release(ticket)

    async def _acquire(self, instance: str) -> tuple[GroupOwner, Ticket]:
        while True:
            version = self.view.version
            owner = self._owner_of(instance)
            if owner is not None:
                try:
                    return owner, await owner.acquire(instance)
                except LoadError as error:
                    if error.failure.code != "replaced":
                        raise
            if not self._is_desired(instance):
                raise UnavailableError(f"{instance} is not part of the config any more")
            await self.view.newer(version)

    def wish(self, instance: str) -> None:
        """Asks for a load; without effect when the instance is not there."""
        owner = self._owner_of(instance)
        if owner is not None:
            owner.wish(instance)

    def unload(self, instance: str) -> None:
        """Asks for an instance to leave memory; without effect when it is not there."""
        owner = self._owner_of(instance)
        if owner is not None:
            owner.unload(instance)

    def _is_desired(self, instance: str) -> bool:
        return any(
            launch.instance == instance
            for group in self._desired.groups.values()
            for launch in group.launches
        )

    def _owner_of(self, instance: str) -> GroupOwner | None:
        for owner in self._owners.values():
            if not owner.leaving and self._has(owner, instance):
                return owner
        return None

    @staticmethod
    def _has(owner: GroupOwner, instance: str) -> bool:
        return any(launch.instance == instance for launch in owner.launch.launches)

    # The one writer of what runs.

    async def _reconcile(self) -> None:
        while True:
            await self._look.wait()
            self._look.clear()
            try:
                self._compare()
            except Exception:
                # A fault of ours in one picture must not end the one task that acts on all.
                log.exception("what shall run could not be compared with what runs")
                asyncio.get_running_loop().call_later(_BROKEN_PAUSE_S, self._look.set)
            self._publish()

    def _compare(self) -> None:
        running = [
            Running(key=key, launch=owner.launch, leaving=owner.leaving or key not in self._tasks)
            for key, owner in self._owners.items()
        ]
        decision = decide(self._desired.groups, running)
        for key in decision.stop:
            owner = self._owners[key]
            if self._desired.groups:
                why = "changed" if owner.launch.id in self._desired.groups else "removed"
                log.info("group %s: %s, stopping it", owner.launch.id, why)
            owner.stop()
        for group_id in decision.start:
            self._start(self._desired.groups[group_id])
        self._waiting = decision.wait

    def _start(self, launch: GroupLaunch) -> None:
        self._keys += 1
        key, desired = self._keys, self._desired
        files = {each.instance: desired.files[each.instance] for each in launch.launches}
        owner = GroupOwner(launch, files, self._surroundings(desired))
        self._owners[key] = owner
        task = asyncio.create_task(owner.run(), name=f"group {launch.id}")
        self._tasks[key] = task
        task.add_done_callback(lambda done: self._over(key, done))

    def _over(self, key: int, task: asyncio.Task[None]) -> None:
        owner = self._owners.pop(key)
        self._tasks.pop(key)
        if not task.cancelled() and task.exception() is not None:
            log.error("the group %s broke", owner.launch.id, exc_info=task.exception())
            # A fault of ours: tried again, but not in a tight loop.
            asyncio.get_running_loop().call_later(_BROKEN_PAUSE_S, self._look.set)
            return
        self._look.set()

    def _surroundings(self, desired: Desired) -> Surroundings:
        store = self._place.store

        def make_host(launch: GroupLaunch, hooks: Hooks) -> Host:
            if desired.host == "llama-swap" and desired.llama_swap is not None:
                return LlamaSwapHost(launch, self._place, hooks, desired.llama_swap)
            return DirectHost(launch, self._place, hooks)

        return Surroundings(
            make_host=make_host,
            usual_load=store.usual_load,
            remember_load=store.remember_load,
            loaded=self._loaded,
            changed=self._changed,
            say=engine_log.info,
            tell=log.info,
            drain_s=self._drain_s,
        )

    # What happens.

    def _changed(self) -> None:
        self._publish()

    def _publish(self) -> None:
        self.view.publish(
            FleetView(
                groups=tuple(owner.view() for owner in self._owners.values()),
                waiting=self._waiting,
            )
        )

    def _report(self, report: Report) -> None:
        for owner in self._owners.values():
            if self._has(owner, report.instance):
                owner.report(report)

    def _lost(self, instance: str, launcher: int) -> None:
        for owner in self._owners.values():
            if self._has(owner, instance):
                owner.lost(instance, launcher)
