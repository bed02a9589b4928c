"""Looks at the child from outside: is it ready, is it the one that answers, what has it read.

A 200 from `/health` proves nothing alone: a foreign server on the port answers just as well. So
the listening socket must belong to the child, by the inode that `/proc/net/tcp` shows for the port
and `/proc/PID/fd` for the process; without `/proc`, `/v1/models` must name the alias it was given.

Must not: block (an accepted connection may never be answered) or trust anything but the child.
"""

import contextlib
import errno
import os
import socket
from collections.abc import Callable, Iterator, Sequence

from pannier.fleet.launcher_loop import READ, WRITE, Loop
from pannier.render.flags import HOST_ADDRESS

ANSWER_S = 2.0
"""How long a probe waits; the engine answers within 3 ms also while it loads."""

_LISTEN = "0A"
_BODY = 64 * 1024


class Probe:
    """One GET at a time to the child's port; `on_answer(status, body)`, status 0 for no answer."""

    def __init__(self, loop: Loop, port: int, on_answer: Callable[[str, int, bytes], None]) -> None:
        self._loop = loop
        self._port = port
        self._on_answer = on_answer
        self._socket: socket.socket | None = None
        self._path = ""
        self._request = b""
        self._answer = b""

    def ask(self, path: str) -> None:
        """Ask, unless an answer is still awaited."""
        if self._socket is not None:
            return
        self._path, self._answer = path, b""
        self._request = (
            f"GET {path} HTTP/1.1\r\nHost: {HOST_ADDRESS}:{self._port}\r\nConnection: close\r\n\r\n"
        ).encode()
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self._socket.setblocking(False)
        self._loop.after("answer", ANSWER_S, self._end)
        if self._socket.connect_ex((HOST_ADDRESS, self._port)) in (0, errno.EINPROGRESS):
            self._loop.watch(self._socket.fileno(), WRITE, self._send)
        else:
            self._end()

    def stop(self) -> None:
        """Give the question up."""
        self._loop.cancel("answer")
        if self._socket is not None:
            self._loop.unwatch(self._socket.fileno())
            self._socket.close()
            self._socket = None

    def _send(self) -> None:
        if self._socket is None:
            return
        try:
            self._request = self._request[self._socket.send(self._request) :]
        except OSError:
            self._end()
            return
        if not self._request:
            self._loop.watch(self._socket.fileno(), READ, self._receive)

    def _receive(self) -> None:
        if self._socket is None:
            return
        try:
            piece = self._socket.recv(_BODY)
        except BlockingIOError:
            return
        except OSError:
            piece = b""
        self._answer += piece
        if not piece or len(self._answer) > _BODY or self._health_known():
            self._end()

    def _health_known(self) -> bool:
        """`/health` is told by its first line; no need to wait for the end of the connection."""
        return self._path == "/health" and b"\r\n" in self._answer

    def _end(self) -> None:
        self.stop()
        words = self._answer[:16].split(None, 2)
        known = len(words) >= 2 and words[0].startswith(b"HTTP/") and words[1].isdigit()
        body = self._answer.partition(b"\r\n\r\n")[2]
        self._on_answer(self._path, int(words[1]) if known else 0, body)


def owns_port(pid: int, port: int) -> bool | None:
    """Whether every listener of `port` is the child or of its process group; None: cannot be told.

    Every one: with SO_REUSEPORT two servers share a port and the kernel deals the requests out.
    """
    try:
        inodes = set(_listeners(port))
        if not inodes:
            return False
        ours = _sockets(pid)
        if not inodes <= ours:
            for member in _group(pid):
                ours |= _sockets(member)
    except OSError:
        return None
    return inodes <= ours


def _listeners(port: int) -> Iterator[str]:
    wanted = f":{port:04X}"
    tables = [_text("/proc/net/tcp")]
    with contextlib.suppress(OSError):
        tables.append(_text("/proc/net/tcp6"))
    for table in tables:
        for row in table.splitlines()[1:]:
            fields = row.split(None, 10)
            if fields[3] == _LISTEN and fields[1].endswith(wanted):
                yield f"socket:[{fields[9]}]"


def _sockets(pid: int) -> set[str]:
    found = set()
    for entry in os.scandir(f"/proc/{pid}/fd"):
        with contextlib.suppress(OSError):
            found.add(os.readlink(entry.path))  # noqa: PTH115
    return found


def _group(leader: int) -> Iterator[int]:
    """The other processes of the child's group: a wrapper script keeps the server as its child."""
    for entry in os.scandir("/proc"):
        if entry.name.isdigit() and int(entry.name) != leader:
            with contextlib.suppress(OSError):
                if os.getpgid(int(entry.name)) == leader:
                    yield int(entry.name)


def names_alias(body: bytes, command: Sequence[str]) -> bool:
    """Whether a `/v1/models` answer names the `--alias` of the command (no alias: any answer)."""
    for at, word in enumerate(command[:-1]):
        if word in ("--alias", "-a"):
            return any(f'"{name}"'.encode() in body for name in command[at + 1].split(","))
    return True


def bytes_read(pid: int) -> int | None:
    """What the process has read so far, from files and page cache alike; None where it is not told.

    With `--load-mode none` it follows the load within 7 %; with mmap it stays near zero.
    """
    with contextlib.suppress(OSError, ValueError, IndexError):
        return int(_text(f"/proc/{pid}/io").split()[1])
    return None


def oom_kills() -> int:
    """How often the kernel has killed for lack of memory: on the whole host, and in our cgroup."""
    total = _counter("/proc/vmstat")
    with contextlib.suppress(OSError):
        for row in _text("/proc/self/cgroup").splitlines():
            group = row.rpartition("::")[2] if row.startswith("0::") else None
            if group is not None:
                total += _counter(f"/sys/fs/cgroup{group}/memory.events")
    return total


def _counter(path: str) -> int:
    with contextlib.suppress(OSError, ValueError, IndexError):
        for row in _text(path).splitlines():
            if row.startswith("oom_kill "):
                return int(row.split()[1])
    return 0


def _text(path: str) -> str:
    """A file of the system. Without pathlib, whose import is a sixth of our start."""
    with open(path) as file:  # noqa: PTH123
        return file.read()
