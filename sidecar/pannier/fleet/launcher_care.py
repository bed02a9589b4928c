"""The care for one child process: it starts, is passed on, is stopped cleanly, and leaves nothing.

The child gets a process group of its own, so that a signal to ours reaches it only through us, but
stays in our session, by which Pannier finds what is left after an accident. It dies with us by the
kernel's death signal, and we end with our parent by a pidfd of it: llama-swap is a Go program,
whose threads come and go, and a death signal is bound to the thread that started the process.

Must not: know what the child is. `Guard` is the care for llama-swap; the engine's is elsewhere.
"""

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence

from pannier.fleet.launcher_loop import READ, Loop
from pannier.fleet.launcher_output import Output, Source

PARENT_DIED_S = 3.0
"""How long a clean stop may take when nobody is left to serve."""

FLUSH_S = 1.0
"""How long our own exit waits for a slow reader."""

EXIT_NOT_STARTED = 127

_PR_SET_PDEATHSIG = 1
_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Care:
    """Runs `command` to its end. What is special about a child is in the `_on…` methods."""

    death_signal = signal.SIGKILL

    def __init__(self, loop: Loop, command: Sequence[str], *, stop_timeout: float) -> None:
        self.loop = loop
        self.command = list(command)
        self.stop_timeout = stop_timeout
        self.child: subprocess.Popen[bytes] | None = None
        self.status: int | None = None
        """None while it runs, then its exit code, negative for a signal."""
        self.stopping = False
        self.orphaned = False
        self._parent = os.getppid()
        self._out = Output(loop, 1)
        self._err = Output(loop, 2)
        self._sources: list[Source] = []

    def run(self) -> int:
        """Start the child, serve until it ended, and return the exit code that mirrors its own."""
        self.loop.on_signals(_STOP_SIGNALS, self._on_signal)
        self.loop.on_signals([signal.SIGCHLD], lambda _: self._reap())
        try:
            self.child = _start(self.command, self.death_signal, self._environment())
        except OSError as error:
            self.status = EXIT_NOT_STARTED
            words = f"cannot start {self.command[0]}: {error.strerror}"
            self._err.write(f"launcher: {words}\n".encode())
            self._on_not_started(words)
        else:
            self._attend(self.child)
            self.loop.run(lambda: self.status is not None)
            for source in self._sources:
                source.drain()
            self._on_ended()
        self.loop.run(self._told, FLUSH_S)
        code = self.status if self.status is not None else EXIT_NOT_STARTED
        return code if code >= 0 else 128 - code

    def stop(self, timeout: float) -> None:
        """Begin a clean stop; after `timeout` seconds the child is killed."""
        if self.status is not None:
            return
        if not self.loop.has("kill") or timeout < self.stop_timeout:
            self.loop.after("kill", timeout, self.kill)
        if not self.stopping:
            self.stopping = True
            self._on_stop()

    def kill(self) -> None:
        """End the child and whatever it started."""
        self.signal_child(signal.SIGKILL)

    def signal_child(self, number: int) -> None:
        """Signal the child's whole process group."""
        if self.child is not None and self.status is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.child.pid, number)

    def _attend(self, child: "subprocess.Popen[bytes]") -> None:
        """Watch all that can happen to it."""
        if child.stdout is None or child.stderr is None:
            raise AssertionError("the child has no pipes")
        self._sources = [
            Source(self.loop, os.dup(child.stdout.fileno()), self._on_stdout),
            Source(self.loop, os.dup(child.stderr.fileno()), self._on_stderr),
        ]
        child.stdout.close()
        child.stderr.close()
        _watch_parent(self.loop, self._parent, self._on_parent_died)
        self._reap()
        self._on_started(child)

    def _reap(self) -> None:
        if self.child is None or self.status is not None:
            return
        status = self.child.poll()
        if status is not None:
            # Before the number can be anyone else's: what a wrapper script has left behind.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.child.pid, signal.SIGKILL)
            self.status = status

    def _on_signal(self, number: int) -> None:
        self.stop(self.stop_timeout)

    def _on_parent_died(self) -> None:
        self.orphaned = not self.stopping
        self.stop(min(PARENT_DIED_S, self.stop_timeout))

    def _environment(self) -> dict[str, str] | None:
        return None

    def _told(self) -> bool:
        return self._out.drained() and self._err.drained()

    def _on_stdout(self, chunk: bytes) -> None:
        self._out.write(chunk)

    def _on_stderr(self, chunk: bytes) -> None:
        self._err.write(chunk)

    def _on_started(self, child: "subprocess.Popen[bytes]") -> None:
        """The child runs."""

    def _on_not_started(self, words: str) -> None:
        """The child could not be started."""

    def _on_stop(self) -> None:
        """A clean stop begins."""
        self.signal_child(signal.SIGTERM)

    def _on_ended(self) -> None:
        """The child has ended and its last words are read."""


class Guard(Care):
    """The care for llama-swap: a second signal ends it at once."""

    # llama-swap stops its models when it is asked to, so it is asked also when we are killed.
    death_signal = signal.SIGTERM

    def _on_signal(self, number: int) -> None:
        if self.stopping:
            self.kill()
        else:
            self.stop(self.stop_timeout)


def _start(
    command: Sequence[str], death_signal: int, environment: dict[str, str] | None
) -> "subprocess.Popen[bytes]":
    """Start `command` with three pipes, in its own process group, bound to our life."""
    ours = os.getpid()
    prctl = ctypes.CDLL(None, use_errno=True).prctl if sys.platform == "linux" else None

    def bind() -> None:
        if prctl is not None:
            prctl(_PR_SET_PDEATHSIG, int(death_signal), 0, 0, 0)
            if os.getppid() != ours:  # We died before the kernel could know that it matters.
                os._exit(EXIT_NOT_STARTED)

    return subprocess.Popen(
        command,
        bufsize=0,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
        process_group=0,
        preexec_fn=bind,  # Safe: we have one thread.
    )


def _watch_parent(loop: Loop, parent: int, on_died: Callable[[], None]) -> None:
    """Call back once when our parent has ended, also when it ended before we looked."""

    def poll() -> None:
        if os.getppid() != parent:
            on_died()
        else:
            loop.after("parent", 1.0, poll)

    try:
        pidfd = os.pidfd_open(parent)
    except ProcessLookupError:
        on_died()
        return
    except (AttributeError, OSError):
        poll()  # macOS, or a kernel that has no pidfd.
        return

    def died() -> None:
        loop.unwatch(pidfd)
        os.close(pidfd)
        on_died()

    loop.watch(pidfd, READ, died)
    if os.getppid() != parent:
        died()
