"""A host in memory: it implements the protocol of a host and speaks for the launchers, as told.

A `Machine` is what all hosts of a test run on: it says how long things take and what fails, and
records what was done. Its engines report as real launchers do, with a new process id each.
"""

import asyncio
import itertools
from collections.abc import Callable

from pannier.errors import Failure, HostError
from pannier.fleet.host import Hooks, Upstream
from pannier.gguf.model_files import ModelFiles
from pannier.progress.parse import Exit, Report
from pannier.render.argv import Launch
from pannier.render.llama_swap import GroupLaunch, group_launch


def launch(instance: str, **changes: object) -> Launch:
    given: dict[str, object] = {
        "instance": instance,
        "argv": ("llama-server", "-m", f"{instance}.gguf"),
        "env": {},
        "ttl_s": 0.0,
        "preload": False,
        "load_timeout_s": 600,
        "file_bytes": 1000,
        "devices": (),
    }
    return Launch(**{**given, **changes})  # type: ignore[arg-type]


def group(name: str, *launches: Launch, swap: bool = False) -> GroupLaunch:
    return group_launch(name, launches, swap=swap, host="direct", launcher=("launcher",))


def files(*groups: GroupLaunch) -> dict[str, ModelFiles]:
    return {
        each.instance: ModelFiles(path=f"/models/{each.instance}.gguf", weights=1000)
        for one in groups
        for each in one.launches
    }


class Machine:
    """How the world of a test behaves, and what happened in it."""

    def __init__(self) -> None:
        self.report: Callable[[Report], None] = lambda report: None
        self.lost: Callable[[str, int], None] = lambda instance, launcher: None
        self.hosts: list[FakeHost] = []
        self.done: list[str] = []
        self.start_fails = 0
        self.start_bug: Exception | None = None
        self.start_s = 1.0
        self.load_s: float | None = 2.0
        self.load_error: Exception | None = None
        self.unload_s = 0.5
        self.stop_s = 1.0
        self.pids = itertools.count(1000)

    @property
    def host(self) -> "FakeHost":
        return self.hosts[-1]

    def make_host(self, launch: GroupLaunch, hooks: Hooks) -> "FakeHost":
        host = FakeHost(self, launch, hooks)
        self.hosts.append(host)
        return host

    def count(self, what: str) -> int:
        return self.done.count(what)


class FakeHost:
    """Runs a group of no processes."""

    def __init__(self, machine: Machine, group: GroupLaunch, hooks: Hooks) -> None:
        self.machine = machine
        self.group = group
        self.hooks = hooks
        self.engines: dict[str, int] = {}
        self.becoming: dict[str, asyncio.TimerHandle] = {}
        self.running = False

    async def start(self) -> None:
        self.machine.done.append(f"start {self.group.id}")
        self.running = True
        await asyncio.sleep(self.machine.start_s)
        if self.machine.start_bug is not None:
            raise self.machine.start_bug
        if self.machine.start_fails > 0:
            self.machine.start_fails -= 1
            raise HostError("it did not start", hint="look at it")

    async def load(self, instance: str) -> None:
        assert self.running, "a load without a host"
        self.machine.done.append(f"load {instance}")
        if self.machine.load_error is not None:
            raise self.machine.load_error
        self.engines[instance] = next(self.machine.pids)
        if self.machine.load_s is not None:
            loop = asyncio.get_running_loop()
            self.becoming[instance] = loop.call_later(self.machine.load_s, self.ready, instance)

    async def unload(self, instance: str) -> None:
        assert self.running, "an unload without a host"
        self.machine.done.append(f"unload {instance}")
        await asyncio.sleep(self.machine.unload_s)
        self._ends(instance, Exit(code=0, asked=True))

    async def stop(self) -> None:
        if self.running:
            self.machine.done.append(f"stop {self.group.id}")
            await asyncio.sleep(self.machine.stop_s)
        self.running = False
        for instance in list(self.engines):
            self._forget(instance)

    def upstream(self, instance: str) -> Upstream:
        return Upstream(url=f"http://{self.group.id}/{instance}")

    def port(self, instance: str) -> int | None:
        return 8000 if self.running else None

    # What a test makes happen.

    def ready(self, instance: str) -> None:
        self.say(instance, phase="ready", ready_s=self.machine.load_s or 1.0)

    def crash(self, instance: str, **changes: object) -> None:
        given: dict[str, object] = {"code": 3, "reason": "GGML_ASSERT failed"}
        self._ends(instance, Exit(**{**given, **changes}))  # type: ignore[arg-type]

    def vanish(self, instance: str) -> int:
        """The launcher is killed: its connection ends without a word."""
        launcher = self._forget(instance)
        self.machine.lost(instance, launcher)
        return launcher

    def dies(self) -> None:
        """The host itself ends, and what it ran with it."""
        for instance in list(self.engines):
            self._forget(instance)
        self.hooks.down(Failure(code="llama-swap-ended", message="llama-swap ended with code 1"))

    def say(self, instance: str, **changes: object) -> None:
        """A report of the engine that runs, or of the launcher that is given."""
        given: dict[str, object] = {
            "v": 1,
            "instance": instance,
            "launcher": self.engines.get(instance, 1),
            "pid": 7,
            "port": 8000,
            "phase": "loading",
        }
        self.machine.report(Report(**{**given, **changes}))  # type: ignore[arg-type]

    def _forget(self, instance: str) -> int:
        timer = self.becoming.pop(instance, None)
        if timer is not None:
            timer.cancel()
        return self.engines.pop(instance)

    def _ends(self, instance: str, end: Exit) -> None:
        if instance in self.engines:
            launcher = self._forget(instance)
            self.say(instance, phase="exited", launcher=launcher, exit=end)
