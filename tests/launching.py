"""Starts real launchers for tests, hears their reports through the real server, leaves nothing.

Every launcher gets a session of its own, as Pannier gives one to what it starts; at the end of the
test the session must be empty.
"""

import asyncio
import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import IO, Any

import psutil

from pannier.fleet.reports import ReportServer
from pannier.progress.parse import Report

FAKE_ENGINE = str(Path(__file__).parent / "fakes" / "llama_server.py")
LAUNCHER = (sys.executable, "-m", "pannier.fleet.launcher")
PATIENCE = 15.0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def session_of(leader: int) -> list[int]:
    """The living processes of a session."""
    found = []
    for pid in psutil.pids():
        with contextlib.suppress(ProcessLookupError, psutil.Error, PermissionError):
            if os.getsid(pid) == leader and alive(pid):
                found.append(pid)
    return found


def alive(pid: int) -> bool:
    """Whether the process runs; a zombie that init has yet to collect does not."""
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def wait_gone(pid: int, within: float = PATIENCE) -> None:
    """Wait for the end of a process that is not our child: the kernel tells it by a pidfd."""
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        ready, _, _ = select.select([pidfd], [], [], within)
    finally:
        os.close(pidfd)
    assert ready, f"process {pid} still runs after {within} s"


async def gone(pid: int, within: float = PATIENCE) -> None:
    await asyncio.to_thread(wait_gone, pid, within)


def get(port: int, path: str) -> bytes:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
        return bytes(answer.read())


class Launching:
    """A report server, and the launchers that report to it."""

    def __init__(self, folder: Path, engine: Sequence[str]) -> None:
        self.socket = folder / "run" / "reports.sock"
        self.engine = list(engine)
        self.reports: list[Report] = []
        self.lost: list[tuple[str, int]] = []
        self.processes: list[subprocess.Popen[bytes]] = []
        self._news = asyncio.Condition()
        self._tasks: set[asyncio.Task[None]] = set()
        self.server = self._server()

    def _server(self) -> ReportServer:
        return ReportServer(self.socket, on_report=self._on_report, on_lost=self._on_lost)

    async def restart_server(self, between: Callable[[], Awaitable[None]]) -> None:
        await self.server.close()
        await between()
        self.server = self._server()
        await self.server.start()

    def _on_report(self, report: Report) -> None:
        self.reports.append(report)
        self._tell()

    def _on_lost(self, instance: str, launcher: int) -> None:
        self.lost.append((instance, launcher))
        self._tell()

    def _tell(self) -> None:
        async def notify() -> None:
            async with self._news:
                self._news.notify_all()

        task = asyncio.get_running_loop().create_task(notify())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def until(self, wanted: Callable[[Report], bool], *, since: int = 0) -> Report:
        """The first report that is wanted, among those from number `since` on."""
        async with asyncio.timeout(PATIENCE), self._news:
            await self._news.wait_for(lambda: any(wanted(one) for one in self.reports[since:]))
        return next(one for one in self.reports[since:] if wanted(one))

    async def phase(self, name: str, *, since: int = 0) -> Report:
        return await self.until(lambda report: report.phase == name, since=since)

    def command(self, *arguments: str, port: int | None = None, stop: float = 10) -> list[str]:
        """The command line of a launcher around the engine."""
        words = ["--instance", "a", "--socket", str(self.socket), "--stop-timeout", str(stop)]
        last = ["--port", str(port or free_port())]
        return [*LAUNCHER, *words, "--", *self.engine, *arguments, *last]

    def start(
        self, command: Sequence[str], *, stdout: int | IO[Any] = subprocess.DEVNULL
    ) -> "subprocess.Popen[bytes]":
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self.processes.append(process)
        return process

    def launch(self, *arguments: str, **options: Any) -> "subprocess.Popen[bytes]":
        return self.start(self.command(*arguments, **options))

    async def ended(self, process: "subprocess.Popen[bytes]", within: float = PATIENCE) -> int:
        return await asyncio.to_thread(process.wait, within)

    async def close(self) -> list[int]:
        """End everything; the processes that should not have been there any more."""
        for process in self.processes:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        for process in self.processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                await self.ended(process, 12)
        left = [pid for process in self.processes for pid in session_of(process.pid)]
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for process in self.processes:
            process.wait(5)
            if process.stdout is not None:
                process.stdout.close()
        await self.server.close()
        await asyncio.gather(*self._tasks)
        return left
