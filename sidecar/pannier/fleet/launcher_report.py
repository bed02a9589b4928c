"""The launcher's end of the report socket: the latest full state, whenever Pannier can hear it.

There is no queue. While Pannier reads slowly, is away or restarts, changes overwrite each other; at
the next chance it gets the state of that moment. The launcher tries to connect for as long as it
lives, because a Pannier that comes back has no other way to learn what runs.

Must not: wait for Pannier; a load goes on without it.
"""

import contextlib
import socket
from collections.abc import Callable

from pannier.fleet.launcher_loop import READ, WRITE, Loop

RECONNECT_S = 0.5
INTERVAL_S = 0.2
"""Progress is told at most five times a second."""


class Reporter:
    """Sends `current()` on connect and after each `changed()`."""

    def __init__(self, loop: Loop, path: str, current: Callable[[], bytes]) -> None:
        self._loop = loop
        self._path = path
        self._current = current
        self._socket: socket.socket | None = None
        self._outgoing = b""
        self._dirty = True
        self._last = 0.0

    def connect(self) -> bool:
        """Try to reach Pannier; on failure try again later."""
        self._loop.cancel("reconnect")
        if self._socket is not None:
            return True
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.setblocking(False)
        try:
            # A Unix socket connects at once or not at all (EAGAIN: its backlog is full).
            connection.connect(self._path)
        except OSError:
            connection.close()
            self._loop.after("reconnect", RECONNECT_S, self._retry)
            return False
        self._socket = connection
        self._dirty = True
        self._outgoing = b""
        self._flush()
        return self._socket is not None

    def changed(self, *, at_once: bool) -> None:
        """The state is another one; tell it now, or within the interval."""
        self._dirty = True
        wait = self._last + INTERVAL_S - self._loop.time()
        if at_once or wait <= 0:
            self._loop.cancel("report")
            self._flush()
        elif not self._loop.has("report"):
            self._loop.after("report", wait, self._flush)

    def told(self) -> bool:
        """Whether Pannier was sent the newest state."""
        return self._socket is not None and not self._dirty and not self._outgoing

    def _retry(self) -> None:
        self.connect()

    def _flush(self) -> None:
        if self._socket is None:
            return
        try:
            while self._outgoing or self._dirty:
                if not self._outgoing:
                    self._outgoing, self._dirty = self._current(), False
                    self._last = self._loop.time()
                self._outgoing = self._outgoing[self._socket.send(self._outgoing) :]
        except BlockingIOError:
            self._loop.watch(self._socket.fileno(), READ | WRITE, self._ready)
        except OSError:
            self._lost()
        else:
            self._loop.watch(self._socket.fileno(), READ, self._ready)

    def _ready(self) -> None:
        """Pannier never answers: something to read is the end of the connection."""
        if self._socket is None:
            return
        with contextlib.suppress(BlockingIOError):
            try:
                if not self._socket.recv(4096):
                    self._lost()
                    return
            except ConnectionError:
                self._lost()
                return
        if self._outgoing:
            self._flush()

    def _lost(self) -> None:
        if self._socket is None:
            return
        self._loop.unwatch(self._socket.fileno())
        self._socket.close()
        self._socket = None
        self._dirty = True
        self._loop.after("reconnect", RECONNECT_S, self._retry)
