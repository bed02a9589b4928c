"""Where the launchers report to: one Unix socket, a `Report` for each line.

Launchers connect, send their full state, then every change, and connect again for as long as they
live; so a Pannier that restarts knows its running instances within half a second. The end of a
connection is itself news: the launcher is gone, or will be back at once. Reports are values handed
to plain callbacks, which the owner posts to its mailbox.

Must not: keep any state of an instance, or answer a launcher. What comes over the socket is judged
like a stranger's input: other users are refused, lines are bounded, garbage ends the connection.
"""

import asyncio
import contextlib
import logging
import os
import socket
import stat
import struct
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

from pannier.errors import StoreError
from pannier.progress.parse import Report, decode_report

log = logging.getLogger(__name__)

MAX_LINE = 64 * 1024
"""A report is 1-10 KiB (20 lines of at most 400 characters at its end); more is garbage."""

_UCRED = struct.Struct("3i")


class ReportServer:
    """Listens on `path` and hands each report to `on_report`.

    `on_lost(instance, launcher_pid)` is called when the connection of a launcher ends, whether it
    died or will reconnect. Callbacks run on the event loop and must not block.
    """

    def __init__(
        self,
        path: Path,
        *,
        on_report: Callable[[Report], None],
        on_lost: Callable[[str, int], None],
    ) -> None:
        self.path = path
        self._on_report = on_report
        self._on_lost = on_lost
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def start(self) -> None:
        """Open the socket for our own user; a socket file left by an earlier run is replaced."""
        listener = _listen(self.path)
        try:
            self._server = await asyncio.start_unix_server(
                self._accept, sock=listener, limit=MAX_LINE
            )
        except BaseException:
            listener.close()
            self.path.unlink(missing_ok=True)
            raise

    async def close(self) -> None:
        """End every connection without calling `on_lost`, and take the socket file away."""
        if self._server is None:
            return
        server, self._server = self._server, None
        server.close()
        self.path.unlink(missing_ok=True)
        connections = list(self._connections)
        for task in connections:
            task.cancel()
        await asyncio.gather(*connections, return_exceptions=True)
        await server.wait_closed()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Start the task of one connection: a plain function, so that the task is ours."""
        name = f"report connection on {self.path.name}"
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer), name=name)
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Read one connection to its end."""
        sender: tuple[str, int] | None = None
        try:
            if not _same_user(writer.get_extra_info("socket")):
                log.warning("refused a report connection of another user")
                return
            while line := await _line(reader):
                report = decode_report(line)
                if sender is None:
                    sender = (report.instance, report.launcher)
                elif sender != (report.instance, report.launcher):
                    raise ValueError("one connection speaks for two launchers")
                self._on_report(report)
        except ValueError as error:
            log.warning("closed a report connection: %s", error)
        except ConnectionError:
            pass  # The launcher died in the middle of a line; the end of the connection says it.
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()
            if sender is not None and self._server is not None:
                self._on_lost(*sender)


async def _line(reader: asyncio.StreamReader) -> bytes:
    """The next whole line, or nothing at the end; a line cut off by the end is not a report."""
    line = await reader.readline()  # Raises ValueError for a line beyond the limit.
    return line if line.endswith(b"\n") else b""


def _listen(path: Path) -> socket.socket:
    """A listening socket at `path`, 0600 in a 0700 folder from its first moment."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.parent.chmod(0o700)
    with contextlib.suppress(FileNotFoundError):
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise StoreError(f"{path} is in the way: it is not a socket", hint="move it away")
        path.unlink()
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(str(path))
        path.chmod(0o600)
        listener.listen(128)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        raise StoreError(
            f"cannot listen on {path}: {error}",
            hint="a socket path may have about 100 characters; choose a shorter state folder",
        ) from error
    return listener


def _same_user(connection: socket.socket) -> bool:
    """Whether the peer is our user; where the system does not say, the folder's mode decides."""
    option = getattr(socket, "SO_PEERCRED", None)
    if option is None:
        return True
    _, uid, _ = _UCRED.unpack(connection.getsockopt(socket.SOL_SOCKET, option, _UCRED.size))
    return bool(uid == os.getuid())
