"""One child process and its session: start, output, exit, stop.

The child is the leader of its own session, so everything that comes from it can be found and ended.
Its output goes through a pipe of our own, never asyncio's PIPE: there `wait()` can hang for as long
as a grandchild holds the pipe (python/cpython#119710).

Must not: decide when to start or stop; the hosts do.
"""

import asyncio
import contextlib
import os
import re
import signal
from collections import deque
from collections.abc import Callable, Mapping, Sequence

from pannier.errors import HostError
from pannier.fleet.sweep import Session, kill_session, start_time

TAIL_LINES = 60
_LONGEST_LINE = 2000

_PASSED = {
    "PATH", "HOME", "USER", "LOGNAME", "LANG", "TZ", "TMPDIR", "SHELL", "TERM", "VIRTUAL_ENV",
    "SYSTEMROOT", "PYTHONPATH", "PYTHONHOME", "PYTHONUTF8",
}  # fmt: skip
_PASSED_PREFIXES = (
    "LC_", "LD_LIBRARY_", "DYLD_", "CUDA_", "NVIDIA_", "HIP_", "HSA_", "ROCR_", "ROCM_", "GPU_",
    "AMD_", "SYCL_", "ONEAPI_", "ZE_", "VK_", "MESA_", "GGML_", "LLAMA_", "OMP_", "MTMD_", "XDG_",
)  # fmt: skip

_SECRET = re.compile(r"(API_KEY|_TOKEN|SECRET|PASSWORD)(_FILE)?$")
"""LLAMA_API_KEY is a client's key on many machines; a server would demand it of us."""


def child_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """What a child gets of our environment: what engines need, not whatever secrets we hold."""
    return {
        name: value
        for name, value in environ.items()
        if (name in _PASSED or name.startswith(_PASSED_PREFIXES)) and not _SECRET.search(name)
    }


class Child:
    """A running child. Made by `spawn`; its host owns it and must `stop` it."""

    def __init__(self, process: asyncio.subprocess.Process, say: Callable[[str], None]) -> None:
        self._process = process
        self._say = say
        self._tail: deque[str] = deque(maxlen=TAIL_LINES)
        self._transport: asyncio.ReadTransport | None = None
        self.session = Session(process.pid, start_time(process.pid) or 0)

    @property
    def pid(self) -> int:
        """Process id, and id of the session."""
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """None while it runs; negative for a signal."""
        return self._process.returncode

    def tail(self) -> tuple[str, ...]:
        """Its last lines of output."""
        return tuple(self._tail)

    async def wait(self) -> int:
        """Waits for the child itself, not for what it started."""
        return await self._process.wait()

    async def stop(self, grace_s: float) -> None:
        """Ends the child and its session: TERM, wait, KILL, sweep. A dead child is fine."""
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(grace_s):
                await self._process.wait()
        except TimeoutError:
            pass
        finally:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            await kill_session(self.session)
            await self._process.wait()
            self.close()

    def close(self) -> None:
        """Lets go of the output pipe; for a child that ended by itself."""
        if self._transport is not None:
            self._transport.close()
            self._transport = None

    def take_line(self, line: bytes) -> None:
        """A line of output: kept for the tail and said to the log, with no control characters."""
        text = line[:_LONGEST_LINE].decode(errors="replace").rstrip()
        if text:
            clean = "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
            self._tail.append(clean)
            self._say(clean)

    async def read_from(self, handle: int) -> None:
        """Reads the output pipe from now on."""
        loop = asyncio.get_running_loop()
        self._transport, _ = await loop.connect_read_pipe(
            lambda: _Lines(self.take_line), os.fdopen(handle, "rb", buffering=0)
        )


class _Lines(asyncio.Protocol):
    """Cuts a stream of bytes into lines; a line that never ends is cut, not kept."""

    def __init__(self, take: Callable[[bytes], None]) -> None:
        self._take = take
        self._rest = b""

    def data_received(self, data: bytes) -> None:
        *lines, rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._take(line)
        self._rest = rest if len(rest) <= _LONGEST_LINE else b""
        if len(rest) > _LONGEST_LINE:
            self._take(rest)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._rest:
            self._take(self._rest)
            self._rest = b""


async def spawn(
    argv: Sequence[str], *, env: Mapping[str, str], say: Callable[[str], None]
) -> Child:
    """Starts a child in its own session, with our pipe as its output and no input.

    Must be called from the loop's own thread: the parent-death signal of what the launcher starts
    is bound to the thread that spawned it. Raises HostError when it cannot be started.
    """
    try:
        reader, writer = os.pipe()
    except OSError as error:
        raise HostError(f"{argv[0]} cannot be started: {error.strerror}") from error
    try:
        process = await asyncio.create_subprocess_exec(
            *argv,
            env=dict(env),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=writer,
            stderr=writer,
            start_new_session=True,
            umask=0o077,
        )
    except OSError as error:
        os.close(reader)
        raise HostError(f"{argv[0]} cannot be started: {error.strerror}") from error
    except BaseException:
        os.close(reader)
        raise
    finally:
        os.close(writer)
    child = Child(process, say)
    try:
        await child.read_from(reader)
    except BaseException:
        await child.stop(0.0)  # nobody else knows of it yet
        raise
    return child
