"""The owner task of one group: messages in, effects out, views published.

It holds the only reference to the group's state and feeds it one event at a time; `state.py`
decides, the host carries out, the launchers report. Requests hold a ticket while they wait and
while they are served, so that a client that leaves is counted out exactly once, whatever moment it
picks.

Must not: decide. A new rule belongs into `state.py`, where it can be tested without a process.
"""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from typing import assert_never

from pannier.errors import Failure, HostError, LoadError
from pannier.fleet import messages as m
from pannier.fleet.backoff import STEADY_S, delay_s
from pannier.fleet.host import Hooks, Host, Upstream
from pannier.fleet.news import news
from pannier.fleet.slot import Slot, exit_failure
from pannier.fleet.state import GroupState, initial, step
from pannier.fleet.view import GroupView, InstanceView
from pannier.gguf.model_files import ModelFiles
from pannier.progress import tracker
from pannier.progress.parse import Report
from pannier.render.argv import Launch
from pannier.render.llama_swap import GroupLaunch

SWAP_DRAIN_S = 300.0
"""How long a running answer may keep another model of its swap set waiting."""

LOAD_MARGIN_S = 15.0
"""Our own wait is longer than llama-swap's (spec SC-17), so that its reason comes first."""

_REPORT_GRACE_S = 1.0
"""A launcher's last words travel by another way than the news of its end, and may come later."""


_REPLACED = Failure(code="replaced", message="the group of this model has just ended")

log = logging.getLogger(__name__)


class Ticket:
    """A request that waits for an instance or is served by it; it must be given back once."""

    def __init__(self, instance: str) -> None:
        self.instance = instance
        self.granted: asyncio.Future[Upstream] = asyncio.get_running_loop().create_future()
        self.phase = "new"


class Surroundings:
    """What an owner needs of the world around it, passed in by the fleet."""

    def __init__(
        self,
        *,
        make_host: Callable[[GroupLaunch, Hooks], Host],
        usual_load: Callable[[str], float | None],
        remember_load: Callable[[str, float], None],
        loaded: Callable[[Launch, ModelFiles, Report], None],
        changed: Callable[[], None],
        say: Callable[[str], None],
        tell: Callable[[str], None],
        drain_s: float,
    ) -> None:
        self.make_host = make_host
        self.usual_load = usual_load
        self.remember_load = remember_load
        self.loaded = loaded
        self.changed = changed
        self.say = say
        self.tell = tell
        self.drain_s = drain_s


class GroupOwner:
    """Runs one group from its start until nothing of it is left."""

    def __init__(
        self, launch: GroupLaunch, files: dict[str, ModelFiles], around: Surroundings
    ) -> None:
        self.launch = launch
        self._around = around
        self._loop = asyncio.get_running_loop()
        self._mail: asyncio.Queue[m.Event | Ticket | tuple[Ticket]] = asyncio.Queue()
        self._state: GroupState = initial(
            tuple(each.instance for each in launch.launches), swap=launch.swap
        )
        self._slots = {each.instance: Slot(each, files[each.instance]) for each in launch.launches}
        self._tickets: dict[str, list[Ticket]] = {each.instance: [] for each in launch.launches}
        self._host: Host | None = None
        self._calls: dict[str, asyncio.Task[None]] = {}
        self._timers: dict[tuple[str, str | None], asyncio.TimerHandle] = {}
        self._over = False
        self._mail.put_nowait(m.Begin())  # before any request can be

    # What others may call. All of it only posts a message or reads a view.

    async def acquire(self, instance: str) -> Ticket:
        """Waits until the instance is ready and holds it; `release` must follow.

        Raises LoadError when the load fails, with code "replaced" when the group is on its way out.
        """
        if self._over:
            raise _replaced()
        ticket = Ticket(instance)
        self._mail.put_nowait(ticket)
        try:
            await ticket.granted
        except asyncio.CancelledError:
            self.release(ticket)
            raise
        return ticket

    def release(self, ticket: Ticket) -> None:
        """The request of this ticket is over, served or not."""
        self._mail.put_nowait((ticket,))

    def wish(self, instance: str) -> None:
        """Asks for a load without waiting for it. Idempotent; after a failed load a new one."""
        self._mail.put_nowait(m.Asked(instance, holds=False))

    def unload(self, instance: str) -> None:
        """Asks for the instance to leave memory when its running requests are done."""
        self._mail.put_nowait(m.UnloadAsked(instance))

    def stop(self) -> None:
        """Asks the group to end: drain, stop, release."""
        self._mail.put_nowait(m.StopAsked())

    def stop_now(self) -> None:
        """Ends the drain at once."""
        self._mail.put_nowait(m.GroupDrainOver())

    @property
    def leaving(self) -> bool:
        """Whether the group was asked to end, or has ended."""
        return self._over or self._state.phase in ("draining", "stopping")

    def view(self) -> GroupView:
        """The group as it is now."""
        return GroupView(
            id=self.launch.id,
            identity=self.launch.identity,
            phase=self._state.phase,
            failure=self._state.failure,
            instances=tuple(self._instance_view(name) for name in self._slots),
        )

    def _instance_view(self, name: str) -> InstanceView:
        member, slot = self._state.members[name], self._slots[name]
        room = None
        if self._state.queue[:1] == (name,):
            leaving = (
                other
                for other, each in self._state.members.items()
                if each.phase in ("draining", "unloading")
            )
            room = next(leaving, None)
        return InstanceView(
            id=name,
            group=self.launch.id,
            phase=member.phase,
            started=slot.launcher is not None,
            asked=member.asked,
            inflight=member.inflight,
            devices=slot.launch.devices,
            planned=slot.planned,
            pid=slot.pid,
            port=self._host.port(name) if self._host else None,
            progress=slot.progress,
            memory=slot.memory,
            failure=member.failure,
            making_room=room,
        )

    # The task.

    async def run(self) -> None:
        """Lives until the group was asked to end and nothing of it is left."""
        try:
            preload = [each.instance for each in self.launch.launches if each.preload]
            # In a swap set only one can be resident; the others would only push each other out.
            for instance in preload[:1] if self.launch.swap else preload:
                self.wish(instance)
            while True:
                item = await self._mail.get()
                self._take(item)
                self._around.changed()
                if self._state.phase == "absent":
                    return
        finally:
            self._over = True
            self._refuse_all()
            for timer in self._timers.values():
                timer.cancel()
            for call in self._calls.values():
                call.cancel()
            await asyncio.gather(*self._calls.values(), return_exceptions=True)
            await self._end_host()

    def _refuse_all(self) -> None:
        """Nobody waits for an owner that is over, whatever ended it."""
        while not self._mail.empty():
            late = self._mail.get_nowait()
            if isinstance(late, Ticket):
                self._tickets[late.instance].append(late)
        for name in self._tickets:
            self._refuse(name, _REPLACED)

    def _take(self, item: m.Event | Ticket | tuple[Ticket]) -> None:
        if isinstance(item, Ticket):
            if not item.granted.done():
                item.phase = "waiting"
                self._tickets[item.instance].append(item)
                self._feed(m.Asked(item.instance))
        elif isinstance(item, tuple):
            self._give_back(item[0])
        else:
            self._feed(item)

    def _give_back(self, ticket: Ticket) -> None:
        was, ticket.phase = ticket.phase, "over"
        if was == "waiting":
            self._tickets[ticket.instance].remove(ticket)
            self._feed(m.Left(ticket.instance))
        elif was == "granted":
            self._feed(m.Done(ticket.instance))

    def _feed(self, event: m.Event) -> None:
        before = self._state
        self._state, effects = step(before, event)
        for line in news(self.launch.id, before, self._state):
            self._around.tell(line)
        for effect in effects:
            self._carry_out(effect)

    def _carry_out(self, effect: m.Effect) -> None:  # noqa: C901  one line per kind of effect
        match effect:
            case m.StartHost():
                self._call("host", self._start_host)
            case m.StopHost():
                if starting := self._calls.get("host"):
                    starting.cancel()  # what it began is stopped with the host
                self._call("host", self._stop_host)
            case m.WatchHost():
                self._later("host steady", None, STEADY_S, m.HostSteady())
            case m.RetryHost(attempt=attempt):
                self._cancel_timer("host steady", None)
                self._later("retry", None, delay_s(attempt, random.random()), m.RetryDue())  # noqa: S311
            case m.Load(member=name):
                self._begin_load(name)
            case m.Unload():
                self._slots[effect.member].told_to_end = True
                self._call(effect.member, lambda: self._unload(effect.member))
            case m.Grant(member=name):
                self._cancel_timer("idle", name)
                self._grant(name)
            case m.Refuse(member=name, failure=failure):
                self._refuse(name, failure)
            case m.LoadAgain(member=name, attempt=attempt):
                if self._slots[name].launch.preload:
                    wait = delay_s(attempt, random.random())  # noqa: S311  jitter
                    self._later("again", name, wait, m.AgainDue(name))
            case m.WatchIdle(member=name):
                ttl = self._slots[name].launch.ttl_s
                if ttl > 0:
                    self._later("idle", name, ttl, m.IdleOver(name))
            case m.WatchDrain(member=name):
                self._later("drain", name, SWAP_DRAIN_S, m.DrainOver(name))
            case m.WatchGroupDrain():
                self._later("drain", None, self._around.drain_s, m.GroupDrainOver())
            case _:
                assert_never(effect)

    def _grant(self, name: str) -> None:
        waiting, self._tickets[name] = self._tickets[name], []
        for ticket in waiting:
            ticket.phase = "granted"
            if not ticket.granted.done() and self._host is not None:
                ticket.granted.set_result(self._host.upstream(name))

    def _refuse(self, name: str, failure: Failure) -> None:
        waiting, self._tickets[name] = self._tickets[name], []
        for ticket in waiting:
            ticket.phase = "over"
            if not ticket.granted.done():
                ticket.granted.set_exception(LoadError(failure))

    # Effects on the host, one call at a time per instance.

    def _call(self, key: str, call: Callable[[], Awaitable[None]]) -> None:
        """Runs a call after the calls it must not overtake: of its key; for "host", all others."""
        calls = self._calls
        before = {task for each, task in calls.items() if key in ("host", each)}

        async def in_turn() -> None:
            if before:
                await asyncio.wait(before)
            await call()

        self._calls[key] = asyncio.create_task(in_turn(), name=f"{self.launch.id}: {key}")

    async def _start_host(self) -> None:
        await self._end_host()
        hooks = Hooks(
            gone=self._gone,
            down=lambda failure: self._mail.put_nowait(m.HostDown(failure)),
            say=self._around.say,
        )
        self._host = self._around.make_host(self.launch, hooks)
        try:
            await self._host.start()
        except HostError as error:
            failure = Failure(code="host-failed", message=error.message, hint=error.hint)
            self._mail.put_nowait(m.HostDown(failure))
        except Exception as error:
            log.exception("the host of %s could not be started", self.launch.id)
            self._mail.put_nowait(m.HostDown(Failure(code="host-failed", message=repr(error))))
        else:
            self._mail.put_nowait(m.HostUp())

    async def _stop_host(self) -> None:
        await self._end_host()
        self._mail.put_nowait(m.Stopped())

    async def _end_host(self) -> None:
        if self._host is not None:
            await self._host.stop()  # when this is cancelled, it can be stopped again
            self._host = None
        for name, slot in self._slots.items():
            if not slot.ended:
                slot.end(self._loop.time())
                self._cancel_timer("steady", name)
                self._cancel_timer("load", name)

    def _begin_load(self, name: str) -> None:
        slot = self._slots[name]
        if slot.ended:
            usual = self._around.usual_load(slot.files.path)
            slot.begin(tracker.begin(slot.files, self._loop.time(), usual))
        elif slot.ready:  # llama-swap had started it for a request of its own
            self._mail.put_nowait(m.Ready(name))
        self._call(name, lambda: self._load(name))

    async def _load(self, name: str) -> None:
        slot, host = self._slots[name], self._host
        if host is None:
            return
        limit = slot.launch.load_timeout_s + LOAD_MARGIN_S
        self._cancel_timer("load", name)
        number = slot.number
        self._timers["load", name] = self._loop.call_later(limit, self._load_over, name, number)
        try:
            await host.load(name)
        except HostError as error:
            self._ended(name, Failure(code="start-failed", message=error.message, hint=error.hint))
        except Exception as error:
            log.exception("%s could not be started", name)
            self._ended(name, Failure(code="start-failed", message=repr(error)))

    def _load_over(self, name: str, number: int) -> None:
        """The time for a load is over: it is stopped, and its end is told as this."""
        slot = self._slots[name]
        if number != slot.number or slot.ended or self._state.members[name].phase != "loading":
            return
        slot.verdict = slot.took_too_long(self._loop.time())
        self._call(name, lambda: self._unload(name))

    async def _unload(self, name: str) -> None:
        if self._host is not None:
            await self._host.unload(name)
        self._ended(name, None)

    # What launchers and hosts tell.

    def report(self, report: Report) -> None:
        """A launcher of this group said something."""
        slot = self._slots[report.instance]
        if slot.is_over(report) or self._host is None:
            return
        if report.port != self._host.port(report.instance):
            return  # a launcher that an earlier run left behind
        now = self._loop.time()
        first_ready = slot.take(report, now)
        if first_ready:
            self._around.remember_load(slot.files.path, report.ready_s or report.elapsed_s)
            self._cancel_timer("load", report.instance)
            self._later("steady", report.instance, STEADY_S, m.Steady(report.instance))
            self._mail.put_nowait(m.Ready(report.instance))
        if slot.measures(report):
            self._around.loaded(slot.launch, slot.files, report)
        if report.phase == "exited" and report.exit is not None:
            if report.exit.orphaned:
                self._doubt(report.instance, "its llama-swap is gone")  # the host knows why
            else:
                self._ended(report.instance, exit_failure(report))
        if self._mail.empty():  # else the picture is half of a change: the rest is in the mail
            self._around.changed()

    def lost(self, instance: str, launcher: int) -> None:
        """The connection of a launcher ended."""
        slot = self._slots[instance]
        if launcher == slot.launcher:
            slot.connected = False
            self._doubt(instance, "its launcher was killed")

    def _gone(self, instance: str, why: str) -> None:
        self._doubt(instance, why)

    def _doubt(self, instance: str, why: str) -> None:
        """Something says that the engine is gone: true, unless its launcher soon speaks."""
        slot = self._slots[instance]
        number = slot.number

        def check() -> None:
            if number == slot.number and not slot.ended and not slot.connected:
                failure = Failure(
                    code="engine-gone", message=f"{instance} ended without a word", detail=why
                )
                self._ended(instance, failure)

        self._later("doubt", instance, _REPORT_GRACE_S, check)

    def _ended(self, name: str, failure: Failure | None) -> None:
        """The engine of the running load is gone; told to the state machine once per load."""
        slot = self._slots[name]
        if slot.ended:
            return
        if failure is None and slot.was_cut(self._loop.time()):
            failure = slot.took_too_long(self._loop.time())
        slot.end(self._loop.time())
        self._cancel_timer("steady", name)
        self._cancel_timer("load", name)
        self._mail.put_nowait(m.Ended(name, slot.verdict or failure))

    # Timers.

    def _later(
        self, kind: str, name: str | None, seconds: float, then: m.Event | Callable[[], None]
    ) -> None:
        self._cancel_timer(kind, name)
        call = then if callable(then) else (lambda: self._mail.put_nowait(then))
        self._timers[kind, name] = self._loop.call_later(seconds, call)

    def _cancel_timer(self, kind: str, name: str | None) -> None:
        timer = self._timers.pop((kind, name), None)
        if timer is not None:
            timer.cancel()


def _replaced() -> LoadError:
    return LoadError(_REPLACED)
