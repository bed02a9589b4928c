"""Runs one program to its end: bounded in time, its whole process group gone afterwards.

The output goes to a file, not to a pipe: a grandchild that keeps a pipe open (compilers do) would
hold up the wait for the program itself, and a file is at the same time the log that a person can
read when a build fails. The program leads its own session, so that a stop reaches what it started;
a long one is also *watched*: should Pannier be killed, its open end of a pipe closes, and a small
guard in the session ends the session.

Must not: interpret what a program prints.
"""

import asyncio
import contextlib
import os
import re
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO, TypeVar

import msgspec

_T = TypeVar("_T")
_ERROR = re.compile(r"\berror:|CMake Error|undefined reference|No space left", re.IGNORECASE)
_KEPT = 8 << 20
_POLL = 0.2
_GUARD = """
import os, signal, subprocess, sys, threading
def watch():
    os.read(0, 1)  # returns when the other end is gone
    os.killpg(0, signal.SIGKILL)
threading.Thread(target=watch, daemon=True).start()
code = subprocess.call(sys.argv[1:], stdin=subprocess.DEVNULL)
if code < 0:
    signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)
sys.exit(code)
"""
_GRACE = 3.0


class Ended(msgspec.Struct, frozen=True, kw_only=True):
    """How a program ended: `code` is negative for a signal, as in `subprocess`."""

    code: int
    output: str
    timed_out: bool = False

    def tail(self, lines: int = 12) -> str:
        """The last lines that say something."""
        kept = [line.rstrip() for line in self.output.splitlines() if line.strip()]
        return "\n".join(kept[-lines:])

    def telling(self, lines: int = 12) -> str:
        """The lines that say what went wrong: from the first error on, and the end.

        A build tool reports a failed tool that reports a failed compiler; its last lines are about
        itself.
        """
        kept = [line.rstrip() for line in self.output.splitlines() if line.strip()]
        first = next((at for at, line in enumerate(kept) if _ERROR.search(line)), None)
        if first is None or first >= len(kept) - lines:
            return self.tail(lines)
        start = max(0, first - 2)
        return "\n".join([*kept[start : start + lines - 3], "…", *kept[-2:]])

    def reason(self) -> str:
        """Why it did not end well, in words."""
        if self.timed_out:
            return "took too long and was stopped"
        if "GLIBC_" in self.output and "not found" in self.output:
            return "needs a newer C library (glibc) than this system has"
        if self.code == -signal.SIGILL:
            return "was built for another CPU (illegal instruction)"
        if self.code < 0:
            with contextlib.suppress(ValueError):
                return f"was ended by {signal.Signals(-self.code).name}"
            return f"was ended by signal {-self.code}"
        return f"ended with exit code {self.code}"


async def run(
    argv: Sequence[str],
    *,
    seconds: float,
    env: Mapping[str, str] | None = None,
    log: Path | None = None,
    on_line: Callable[[str], None] | None = None,
    on_tick: Callable[[], None] | None = None,
    watched: bool = False,
) -> Ended:
    """Run *argv* for at most *seconds*; *on_line* hears each line, *on_tick* the passing of time.

    Raises OSError when the program cannot be started at all.
    """
    with (
        log.open("w+b") if log is not None else tempfile.TemporaryFile() as out,
        _stdin(watched=watched) as stdin,
    ):
        if watched:
            argv = [sys.executable, "-c", _GUARD, *argv]
        reader = _Lines(out, on_line)
        process = await asyncio.create_subprocess_exec(
            *argv,
            stdin=stdin,
            stdout=out,
            stderr=out,
            env=dict(env) if env is not None else None,
            start_new_session=True,
        )
        waiter = asyncio.create_task(process.wait(), name=f"wait-{process.pid}")
        try:
            timed_out = await _watch(waiter, seconds, reader, on_tick)
        finally:
            # Also on cancel: nothing that we started goes on without us.
            if not waiter.done():
                await _end_group(process.pid, waiter)
        reader.read(last=True)
        return Ended(code=waiter.result(), output=reader.text(), timed_out=timed_out)


@contextlib.contextmanager
def _stdin(*, watched: bool) -> Iterator[int]:
    """Nothing to read; when *watched*, its end tells that this process is gone."""
    ends = os.pipe() if watched else (os.open(os.devnull, os.O_RDONLY),)
    try:
        yield ends[0]
    finally:
        for end in ends:
            os.close(end)


async def in_thread(function: Callable[..., _T], *args: object) -> _T:
    """`asyncio.to_thread` that is over when it returns, also on cancel.

    What comes after may remove the files that the thread works on.
    """
    task = asyncio.create_task(asyncio.to_thread(function, *args))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait({task})
        raise


async def _watch(
    waiter: asyncio.Task[int],
    seconds: float,
    reader: "_Lines",
    on_tick: Callable[[], None] | None,
) -> bool:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    while not waiter.done():
        left = deadline - loop.time()
        if left <= 0:
            return True
        await asyncio.wait({waiter}, timeout=min(_POLL, left))
        reader.read()
        if on_tick is not None:
            on_tick()
    return False


async def _end_group(pid: int, waiter: asyncio.Task[int]) -> None:
    _signal_group(pid, signal.SIGTERM)
    await asyncio.wait({waiter}, timeout=_GRACE)
    _signal_group(pid, signal.SIGKILL)
    await asyncio.wait({waiter})
    # The rest of the group dies a moment later, and may still write where we clean up next. In a
    # container without an init its zombies stay, so this is bounded.
    for _ in range(40):
        if not _signal_group(pid, 0):
            break
        await asyncio.sleep(0.025)


def _signal_group(pid: int, number: int) -> bool:
    # PermissionError: macOS says so for a group of which only zombies are left.
    try:
        os.killpg(pid, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


class _Lines:
    """Follows a file that somebody else writes; keeps the end of it."""

    def __init__(self, file: BinaryIO, on_line: Callable[[str], None] | None) -> None:
        self._file = file
        self._on_line = on_line
        self._at = 0
        self._kept = b""
        self._open = b""

    def read(self, *, last: bool = False) -> None:
        # pread leaves the offset alone: the writer shares it.
        while chunk := os.pread(self._file.fileno(), 1 << 16, self._at):
            self._at += len(chunk)
            self._kept = (self._kept + chunk)[-_KEPT:]
            if self._on_line is not None:
                *lines, self._open = (self._open + chunk).replace(b"\r", b"\n").split(b"\n")
                self._open = self._open[-4096:]
                for line in lines:
                    self._on_line(line.decode("utf-8", "replace"))
        if last and self._open and self._on_line is not None:
            self._on_line(self._open.decode("utf-8", "replace"))
            self._open = b""

    def text(self) -> str:
        return self._kept.decode("utf-8", "replace")
