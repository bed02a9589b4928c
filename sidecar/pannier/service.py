"""The composition root: builds everything, keeps it in step, and takes it down again.

Three tasks and a server: the watcher hints, the reloader prepares and applies, the mirror copies
what the fleet does into the snapshot that HTTP answers from. A reload validates and plans
completely before it touches anything; one that fails changes nothing but the problems that are
shown.

Must not: hold a rule of its own. What is decided here is only order.
"""

import asyncio
import contextlib
import errno
import logging
import os
import signal
import time
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from pathlib import Path

import msgspec
from aiohttp import web

from pannier.config.read_file import read_settled
from pannier.config.schema import split_listen
from pannier.config.watch import Signature, has_settled, hints
from pannier.devices.inventory import Device, Inventory, same_devices, with_reserves
from pannier.devices.join import Ours
from pannier.devices.monitor import Monitor
from pannier.devices.nvml import Nvml
from pannier.devices.usage import held_by
from pannier.errors import ConfigError, PannierError, Problem
from pannier.fleet.backoff import delay_s
from pannier.fleet.holdings import holdings
from pannier.fleet.host import Workplace, launcher_command
from pannier.fleet.learned_store import LearnedStore
from pannier.fleet.learner import Learner
from pannier.fleet.loop import RELOAD_DRAIN_S, Desired, Fleet
from pannier.fleet.ports import Ports
from pannier.fleet.process import child_environment
from pannier.fleet.store import hold, runtime_folder, state_folder
from pannier.fleet.view import FleetView
from pannier.gguf.measured import Measurement
from pannier.placement.digests import digests_of
from pannier.placement.live import LivePlacement
from pannier.plan.spec import PlacementSpec
from pannier.planning import Answer
from pannier.progress.hub import Latest
from pannier.reload import FailedLoad, Prepared, Preparer, Situation
from pannier.serve.app import make_app
from pannier.serve.forward import upstream_session
from pannier.serve.router_dialect import Levers
from pannier.serve.security import Gate
from pannier.serve.snapshot import ConfigStatus, Snapshot

log = logging.getLogger("pannier")


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """What `serve` is told on its command line."""

    config: Path
    state: Path | None = None
    drain_s: float = RELOAD_DRAIN_S


class Service:
    """A running Pannier. Made by `running`."""

    def __init__(
        self,
        path: Path,
        prepared: Prepared,
        preparer: Preparer,
        monitor: Monitor,
        fleet: Fleet,
        learner: Learner,
    ) -> None:
        self.path = path
        self._preparer = preparer
        self._monitor = monitor
        self._devices = prepared.inventory
        self._fleet = fleet
        self._learner = learner
        self._wanted = asyncio.Event()
        self.changing = asyncio.Lock()
        self.prepared = prepared
        self.content = b""
        self._failed: dict[str, FailedLoad] = {}
        self._plan_anew = False
        self.gate = Gate(prepared.access)
        self.listen = prepared.config.server.listen
        self.address = self.listen
        self.snapshots = Latest(
            Snapshot(
                generation=0,
                host=prepared.host,
                status=ConfigStatus(path=str(path), loaded_at=time.time()),
                config=prepared.config,
                plan=prepared.plan,
                inventory=prepared.inventory,
            )
        )

    def reload(self) -> None:
        """Asks for a reading of the config; one that runs already is followed by another."""
        self._wanted.set()

    def start(self, content: bytes) -> None:
        """Applies the first config."""
        self.content = content
        self._learner.follow(self)
        self._apply(self.prepared)
        self._monitor.follow(self)

    async def watch(self) -> None:
        """The task that asks for a reload when the file may have changed or a model came."""
        async for _ in hints(self.path, also=self._files_that_came):
            self.reload()

    def _files_that_came(self) -> Signature:
        """Of the files that were missing, those that have come."""
        return tuple(path for path in self.prepared.missing if has_settled(Path(path)))

    def ours(self) -> Ours:
        """What our engines hold (for the monitor of devices)."""
        snapshot = self.snapshots.value
        return holdings(snapshot.plan, snapshot.fleet)

    def is_changing(self) -> bool:
        """Whether memory is moving: something loads or leaves, or does not quite fit."""
        snapshot = self.snapshots.value
        phases = {each.phase for group in snapshot.fleet.groups for each in group.instances}
        return bool(phases & {"loading", "unloading"}) or bool(
            snapshot.plan.tight and phases & {"ready"}
        )

    def devices_read(self, inventory: Inventory) -> None:
        """Shows a reading; other devices are a reason to plan anew, other free memory is none."""
        shown = with_reserves(inventory, self.prepared.config.memory.reserve)
        self.snapshots.publish(msgspec.structs.replace(self.snapshots.value, inventory=shown))
        self._learner.look(self.ours().pids, partial(held_by, self._monitor.reading))
        if not same_devices(inventory, self._devices):
            self._devices = inventory
            log.info("the devices of this machine are others now")
            self.reload()

    def learns(self) -> bool:
        """Whether the config wants loads to be remembered (for the learner)."""
        return self.prepared.config.memory.learn

    def devices_of(self, labels: Sequence[str]) -> tuple[Device, ...] | None:
        """The devices of a launch, None when one is gone."""
        found = [self.prepared.inventory.find(label) for label in labels]
        there = tuple(device for device in found if device is not None)
        return there if len(there) == len(found) else None

    async def held_by(self, pid: int) -> dict[str, int]:
        """What a process holds now, by the UUID of the card (for the learner)."""
        return await self._monitor.held_by(pid)

    def took(self, instance: str, took: Measurement, notes: tuple[str, ...]) -> None:
        """Shows where a load took other sizes than the rules say, until it takes those again."""
        before = self.snapshots.value
        known = {name: said for name, said in before.memory_notes.items() if name != instance}
        if notes or instance in before.memory_notes:
            known = {**known, instance: notes} if notes else known
            self.snapshots.publish(msgspec.structs.replace(before, memory_notes=known))

    async def learn(self) -> None:
        """The task that remembers what loads took."""
        await self._learner.run()

    async def reloader(self) -> None:
        """The task that reloads: one after the other, and the last edit always wins."""
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            await self._reload()

    async def _same_devices(self) -> bool:
        """Whether the devices are those that were planned on; they are read for it."""
        found = await self._preparer.devices(self.prepared.config)
        return same_devices(self.prepared.inventory, found)

    async def _reload(self) -> None:
        async with self.changing:
            try:
                content = await read_settled(self.path)
                same = content == self.content and not self._files_that_came()
                if same and not self._plan_anew and await self._same_devices():
                    self._show_problems(())
                    return
                self._plan_anew = False
                prepared = await self.prepare(content)
            except ConfigError as error:
                self._show_problems(error.problems)
                return
            self.adopt(content, prepared)

    async def prepare(self, content: bytes) -> Prepared:
        """Everything that follows from this content, as things are. Raises ConfigError."""
        return await self._preparer.prepare(content, self._situation())

    def adopt(self, content: bytes, prepared: Prepared) -> int:
        """Runs it from now on, as what this content says; returns its generation."""
        self.content = content
        self._devices = prepared.inventory
        if not self.snapshots.value.stopping:  # else what is being stopped would be started again
            self._apply(prepared)
        return self.snapshots.value.generation

    async def preview(self, spec: PlacementSpec) -> Answer:
        """What would run with this spec, as things are. Raises PlacementError."""
        now = self._situation()
        question = msgspec.structs.replace(
            self.prepared.question,
            inventory=self.snapshots.value.inventory,
            running=now.running,
            resident=now.resident,
            learned=now.learned,
        )
        return await self._preparer.answer(question, spec)

    def plans_anew(self) -> bool:
        """Whether the same config is about to be planned again, one step smaller."""
        return self._plan_anew

    def _situation(self) -> Situation:
        """What a plan made now should know of what runs."""
        snapshot = self.snapshots.value
        views = [view for group in snapshot.fleet.groups for view in group.instances]
        return Situation(
            running=snapshot.plan,
            resident=frozenset(view.id for view in views if view.phase in ("ready", "loading")),
            failed=dict(self._failed),
            learned=self._learner.store.learned,
        )

    def _ran_out(self, fleet: FleetView) -> None:
        """A load that ran out of memory makes the next plan of its model smaller, once."""
        planned = {instance.id: instance for instance in self.prepared.plan.instances}
        for view in (view for group in fleet.groups for view in group.instances):
            instance = planned.get(view.id)
            if instance is None or view.failure is None or view.failure.code != "out-of-memory":
                continue
            load = FailedLoad(
                model=self.prepared.config.models[instance.model], context=instance.context
            )
            before = self._failed.get(instance.model)
            if before is None or before.model != load.model:
                self._failed[instance.model] = load
                self._plan_anew = True
                log.warning("%s ran out of memory: it is planned one step smaller", instance.id)
                self.reload()

    def _apply(self, prepared: Prepared) -> None:
        self.prepared = prepared
        self.gate.access = prepared.access
        self._fleet.apply(
            Desired(prepared.groups, prepared.files, prepared.host, prepared.llama_swap)
        )
        problems = self._needs_restart(prepared)
        before = self.snapshots.value
        generation = before.generation + 1
        plan = msgspec.structs.replace(prepared.plan, generation=generation)
        self.snapshots.publish(
            msgspec.structs.replace(
                before,
                generation=generation,
                host=prepared.host,
                status=ConfigStatus(path=str(self.path), loaded_at=time.time(), problems=problems),
                config=prepared.config,
                plan=plan,
                digests=digests_of(prepared.groups, prepared.question.host),
            )
        )
        count = len(prepared.config.models)
        many = f"{count} model{'' if count == 1 else 's'}"
        log.info("config applied, generation %d: %s, host %s", generation, many, prepared.host)
        for reason in plan.reasons:
            log.info("plan: %s", reason)

    def _needs_restart(self, prepared: Prepared) -> tuple[Problem, ...]:
        wanted = prepared.config.server.listen
        if wanted == self.listen:
            return ()
        message = f"it is {wanted} now; until a restart Pannier stays on {self.listen}"
        return (Problem(code="needs-restart", where="server.listen", message=message),)

    def _show_problems(self, problems: tuple[Problem, ...]) -> None:
        before = self.snapshots.value
        problems = problems or self._needs_restart(self.prepared)
        if before.status.problems == problems:
            return
        if any(problem.code != "needs-restart" for problem in problems):
            log.error("the config was not applied; what runs goes on as before")
        for problem in problems:
            log.error("%s", problem.text(str(self.path)))
        if not problems:
            log.info("the config is in order again; what runs is what it says")
        status = msgspec.structs.replace(before.status, problems=problems)
        self.snapshots.publish(msgspec.structs.replace(before, status=status))

    async def mirror(self) -> None:
        """The task that copies the fleet's view into the snapshot."""
        version = -1
        while True:
            view = await self._fleet.view.newer(version)
            version = self._fleet.view.version
            self.snapshots.publish(msgspec.structs.replace(self.snapshots.value, fleet=view))
            self._ran_out(view)
            self._monitor.wake()

    def busy(self) -> int:
        """Requests that are being answered or wait."""
        groups = self._fleet.view.value.groups
        return sum(each.inflight + each.asked for group in groups for each in group.instances)

    def stop_now(self) -> None:
        """Ends running answers."""
        self._fleet.stop_now()

    def stopping(self) -> None:
        """From now on no new request is taken."""
        self.snapshots.publish(msgspec.structs.replace(self.snapshots.value, stopping=True))


@contextlib.asynccontextmanager
async def running(options: Options) -> AsyncIterator[Service]:
    """A Pannier that serves for as long as the block runs, and leaves nothing behind.

    Raises ConfigError, StoreError, or PannierError for a listen address that cannot be used.
    """
    state = (options.state or state_folder(os.environ, Path.home())).absolute()
    with hold(state, runtime_folder(os.environ, state)) as store:
        env = child_environment(os.environ)
        path = options.config.absolute()
        async with Monitor(Nvml(), pause_s=delay_s) as monitor:
            preparer = Preparer(path, env, launcher_command(store.socket), monitor)
            content = await read_settled(path)
            learner = Learner(LearnedStore(store.folder))
            now = Situation(learned=learner.store.learned)
            prepared = await preparer.prepare(content, now)
            place = Workplace(store=store, ports=Ports(), env=env)
            fleet = Fleet(place, drain_s=options.drain_s, loaded=learner.post)
            service = Service(path, prepared, preparer, monitor, fleet, learner)
            async with _serving(service, fleet):
                service.start(content)
                try:
                    yield service
                finally:
                    service.stopping()
                    await fleet.stop()


@contextlib.asynccontextmanager
async def _serving(service: Service, fleet: Fleet) -> AsyncIterator[None]:
    """Everything that runs for as long as the service does."""
    async with upstream_session() as session:
        levers = Levers(wish=fleet.wish, unload=fleet.unload)
        async with contextlib.aclosing(LivePlacement(service)) as placements:
            app = make_app(service.snapshots, fleet.lend, session, service.gate, levers, placements)
            async with _listening(app, service), fleet, _tasks(service):
                yield


@contextlib.asynccontextmanager
async def _listening(app: web.Application, service: Service) -> AsyncIterator[None]:
    runner = web.AppRunner(
        app,
        handler_cancellation=True,
        access_log=None,
        shutdown_timeout=3.0,
        keepalive_timeout=75.0,
    )
    await runner.setup()
    try:
        await _bind(runner, service)
        yield
    finally:
        await runner.cleanup()


async def _bind(runner: web.AppRunner, service: Service) -> None:
    host, port = split_listen(service.listen)
    try:
        await web.TCPSite(runner, host, port, reuse_address=True).start()
    except OSError as error:
        raise PannierError(
            f"cannot listen on {service.listen}: {os.strerror(error.errno or errno.EADDRINUSE)}",
            hint="another program uses it, or it is not an address of this machine;"
            " change server.listen",
            code="listen",
        ) from error
    service.address = _bound(runner, service.listen)


def _bound(runner: web.AppRunner, wanted: str) -> str:
    """The address with its real port, where the config leaves it to the system (port 0)."""
    host, port = split_listen(wanted)
    if port or not runner.addresses:
        return wanted
    shown = f"[{host}]" if ":" in host else host
    return f"{shown}:{runner.addresses[0][1]}"


@contextlib.asynccontextmanager
async def _tasks(service: Service) -> AsyncIterator[None]:
    tasks = [
        asyncio.create_task(work(), name=work.__name__)
        for work in (service.watch, service.reloader, service.mirror, service.learn)
    ]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class _Control:
    """What the signals do: the first one stops, the second ends the drain, HUP reloads."""

    def __init__(self) -> None:
        self.stop = asyncio.Event()
        self.service: Service | None = None

    def end(self) -> None:
        if not self.stop.is_set():
            self.stop.set()
        elif self.service is not None:
            self.service.stop_now()

    def reload(self) -> None:
        if self.service is not None:
            self.service.reload()


async def serve(options: Options, started: Callable[[Service], None] | None = None) -> None:
    """Serves until SIGTERM or Ctrl-C; a second one ends running answers at once."""
    loop = asyncio.get_running_loop()
    control = _Control()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, control.end)
    loop.add_signal_handler(signal.SIGHUP, control.reload)
    async with running(options) as service:
        control.service = service
        if started is not None:
            started(service)
        await control.stop.wait()
        busy = service.busy()
        if busy:
            log.info("stopping; %d running answers may end, a second Ctrl-C ends them too", busy)


def announce(service: Service) -> None:
    """Says at start where Pannier listens and what runs the models."""
    log.info("Pannier listens on http://%s (OpenAI API under /v1)", service.address)
    snapshot = service.snapshots.value
    if snapshot.host == "llama-swap":
        log.info('llama-swap runs the models; `host = "direct"` under [engine] does without it')
    elif snapshot.config.engine.host == "direct":
        log.info("Pannier's own host runs the models, as `host` under [engine] says")
    else:
        log.info("Pannier's own host runs the models; `pannier engine install` gets llama-swap")
