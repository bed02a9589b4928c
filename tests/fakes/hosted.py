"""Real hosts for tests: their launchers report to a real server, and nothing may outlive them."""

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from tests.fakes.host import launch
from tests.launching import FAKE_ENGINE

from pannier.errors import Failure
from pannier.fleet.host import Hooks, Host, Workplace, launcher_command
from pannier.fleet.host_direct import DirectHost
from pannier.fleet.host_llama_swap import LlamaSwapHost
from pannier.fleet.ports import Ports
from pannier.fleet.process import child_environment
from pannier.fleet.reports import ReportServer
from pannier.fleet.store import Store, hold
from pannier.fleet.sweep import members
from pannier.progress.parse import Report
from pannier.render.llama_swap import GroupLaunch, group_launch

LLAMA_SWAP = Path(__file__).parents[2].parent / "shared" / "bin" / "llama-swap"
PATIENCE_S = 40.0


class CountedPorts(Ports):
    """Ports that tell how many are in use."""

    def in_use(self) -> int:
        return len(self._taken)


class RememberedSessions:
    """A store that also keeps every session that was ever started."""

    def __init__(self, store: Store) -> None:
        self.pids: list[int] = []
        self._remember = store.remember_session
        store.remember_session = self._and_keep  # type: ignore[method-assign]

    def _and_keep(self, session) -> None:  # type: ignore[no-untyped-def]
        self.pids.append(session.pid)
        self._remember(session)


class Hosted:
    """Where hosts are made, and all that they and their launchers said."""

    def __init__(self, store: Store, ports: CountedPorts) -> None:
        self.store = store
        self.ports = ports
        self.place = Workplace(store=store, ports=ports, env=child_environment(os.environ))
        self.sessions = RememberedSessions(store)
        self.reports: list[Report] = []
        self.gone: list[tuple[str, str]] = []
        self.down: list[Failure] = []
        self.lines: list[str] = []
        self.hosts: list[Host] = []
        self._news = asyncio.Event()
        self.server = ReportServer(
            store.socket,
            on_report=lambda report: self._hear(self.reports, report),
            on_lost=lambda instance, launcher: self._news.set(),
        )

    def _hear(self, heard: list, what: object) -> None:
        heard.append(what)
        self._news.set()

    def group(self, *ids: str, arguments: tuple[str, ...] = (), **changes: object) -> GroupLaunch:
        launches = [
            launch(each, argv=(sys.executable, FAKE_ENGINE, "--alias", each, *arguments), **changes)
            for each in ids
        ]
        launcher = launcher_command(self.store.socket)
        return group_launch("g", launches, swap=False, host="test", launcher=launcher)

    def make(self, kind: str, group: GroupLaunch, program: str | None = None) -> Host:
        hooks = Hooks(
            gone=lambda instance, why: self._hear(self.gone, (instance, why)),
            down=lambda failure: self._hear(self.down, failure),
            say=lambda line: self._hear(self.lines, line),
        )
        if kind == "direct":
            host: Host = DirectHost(group, self.place, hooks)
        else:
            host = LlamaSwapHost(group, self.place, hooks, program or str(LLAMA_SWAP))
        self.hosts.append(host)
        return host

    async def until(self, wanted: Callable[[], object]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not wanted():
                self._news.clear()
                await self._news.wait()

    async def phase(self, instance: str, phase: str, since: int = 0) -> Report:
        """The first report of an instance in this phase."""

        def found() -> list[Report]:
            heard = self.reports[since:]
            return [each for each in heard if (each.instance, each.phase) == (instance, phase)]

        await self.until(found)
        return found()[0]

    def nothing_is_left(self) -> None:
        assert [pid for each in self.sessions.pids for pid in members(each)] == []
        assert self.ports.in_use() == 0
        assert list(self.store.groups.iterdir()) == []
        text = (self.store.folder / "memory.toml").read_text() if self.sessions.pids else ""
        assert "pid = " not in text, "a session is still remembered"


@contextlib.asynccontextmanager
async def hosted(folder: Path) -> AsyncIterator[Hosted]:
    with hold(folder / "state", folder / "run" / "pannier") as store:
        place = Hosted(store, CountedPorts())
        async with place.server:
            try:
                yield place
            finally:
                for host in place.hosts:
                    await host.stop()
        place.nothing_is_left()
