"""The streams of a child: what it says goes on to our own output, and is cut into lines on the way.

The child must never wait for our reader. llama-swap reads its children's output promptly, a
terminal that was stopped does not, and a reader that died is a broken pipe; so our own output is
written without blocking, what it does not take is kept up to a bound, and what is beyond that is
left out with a line that says how much.

Must not: interpret a line.
"""

import contextlib
import os
import socket
import stat
import sys
from collections.abc import Callable

from pannier.fleet.launcher_loop import READ, WRITE, Loop

CHUNK = 64 * 1024
"""What one read takes: the size of a pipe."""

BACKLOG = 256 * 1024
"""What is kept for a slow reader."""

DRAIN = 64
"""Chunks that are still read after the child's end: a grandchild may hold the pipe and write on."""


class Output:
    """One of our own two output streams, written without ever blocking."""

    def __init__(self, loop: Loop, fd: int) -> None:
        self._loop = loop
        self._backlog = bytearray()
        self._left_out = 0
        self._waiting = False
        self._write, self._fd = _nonblocking(fd)

    def write(self, piece: bytes) -> None:
        """Pass `piece` on now or later, or leave it out if the reader is too far behind."""
        if self._fd < 0 or not piece:
            return
        if len(self._backlog) + len(piece) > BACKLOG:
            self._left_out += len(piece)
            return
        if self._left_out and len(self._backlog) < BACKLOG // 2:
            note = f"\n[{self._left_out} bytes left out: the reader was too slow]\n"
            self._backlog += note.encode()
            self._left_out = 0
        self._backlog += piece
        if not self._waiting:
            self._flush()

    def drained(self) -> bool:
        """Whether nothing is kept back."""
        return not self._backlog

    def _flush(self) -> None:
        try:
            while self._backlog:
                del self._backlog[: self._write(bytes(self._backlog[:CHUNK]))]
        except BlockingIOError:
            if not self._waiting:
                self._waiting = True
                self._loop.watch(self._fd, WRITE, self._flush)
            return
        except OSError:
            # The reader is gone; the child is none the wiser.
            self._backlog.clear()
            self._stop_waiting()
            self._fd = -1
            return
        self._stop_waiting()

    def _stop_waiting(self) -> None:
        if self._waiting:
            self._waiting = False
            self._loop.unwatch(self._fd)


def _nonblocking(fd: int) -> tuple[Callable[[bytes], int], int]:
    """A way to write to `fd` that does not block, and the descriptor to wait on.

    Setting O_NONBLOCK on the descriptor itself would set it for everybody who shares it: a shell,
    or other launchers. Opening it anew through /proc gives an open file of our own.
    """
    try:
        mode = os.fstat(fd).st_mode
    except OSError:
        return _nowhere, -1
    if stat.S_ISREG(mode):
        return lambda piece: os.write(fd, piece), fd  # A file never makes its writer wait.
    if stat.S_ISSOCK(mode):
        ours = socket.socket(fileno=os.dup(fd))
        return lambda piece: ours.send(piece, socket.MSG_DONTWAIT), ours.fileno()
    own = fd
    with contextlib.suppress(OSError):
        own = os.open(f"/proc/self/fd/{fd}", os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY)
    if own == fd and sys.platform != "linux":
        os.set_blocking(fd, False)
    return lambda piece: os.write(own, piece), own


def _nowhere(piece: bytes) -> int:
    return len(piece)


class Lines:
    """Cuts a stream into lines; of a line longer than `limit` only its beginning is kept."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._part = b""

    def feed(self, chunk: bytes) -> list[bytes]:
        """The lines that `chunk` completes, without their ends."""
        first, *others = chunk.split(b"\n")
        self._part = (self._part + first)[: self._limit]
        if not others:
            return []
        lines = [self._part, *others[:-1]]
        self._part = others[-1][: self._limit]
        return lines

    def rest(self) -> list[bytes]:
        """The last line, if the stream ended in the middle of one."""
        part, self._part = self._part, b""
        return [part] if part else []


class Source:
    """One output stream of the child."""

    def __init__(self, loop: Loop, fd: int, on_chunk: Callable[[bytes], None]) -> None:
        self._loop = loop
        self._fd = fd
        self._on_chunk = on_chunk
        os.set_blocking(fd, False)
        loop.watch(fd, READ, self._ready)

    def drain(self) -> None:
        """Read what is there now, and no more after that."""
        for _ in range(DRAIN):
            if self._fd < 0 or not self._read():
                break
        self._close()

    def _ready(self) -> None:
        self._read()

    def _read(self) -> bool:
        """Read one chunk; False when there is none."""
        try:
            chunk = os.read(self._fd, CHUNK)
        except BlockingIOError:
            return False
        except OSError:
            chunk = b""
        if not chunk:
            self._close()
            return False
        self._on_chunk(chunk)
        return True

    def _close(self) -> None:
        if self._fd >= 0:
            self._loop.unwatch(self._fd)
            os.close(self._fd)
            self._fd = -1
