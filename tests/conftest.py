"""The options of the test suite, and what holds for all tests: nothing outlives one of them.

Neither a process, a listening port nor a task. A process is ours when it descends from this one or
was given a path below this run's temporary folder; so an orphan is found too, and other runs on the
same machine are left alone. What was there before the test (a server that the tests of a module
share) may stay, with all that it started.
"""

import asyncio
import contextlib
import inspect
import os
import socket
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import psutil
import pytest

if (_ROOT := str(Path(__file__).resolve().parent.parent)) not in sys.path:
    sys.path.insert(0, _ROOT)  # `pytest` alone does not put it there, `python -m pytest` does

_PATIENCE_S = 5.0
"""A process that was told to end may take a moment on a busy machine."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden",
        action="store_true",
        help="write the expected files of tests/golden anew instead of comparing with them",
    )


def pytest_configure(config: pytest.Config) -> None:
    # "There is no loop", said once: else pytest-asyncio makes one by asking for it and never closes
    # it, which is an error at the end of a run now and then, with filterwarnings = error.
    asyncio.set_event_loop(None)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if isinstance(item, pytest.Function) and inspect.iscoroutinefunction(item.function):
            # First, so that it looks last: after the fixtures of the test itself have ended theirs.
            item.fixturenames.insert(0, "no_task_is_left")


@pytest.fixture
async def no_task_is_left() -> AsyncIterator[None]:
    """No asyncio task is pending after a test."""
    yield
    mine = asyncio.current_task()
    if left := asyncio.all_tasks() - {mine}:
        await asyncio.wait(left, timeout=_PATIENCE_S)
    left = asyncio.all_tasks() - {mine}
    assert not left, f"tasks are left: {left}"


@pytest.fixture(autouse=True)
def nothing_is_left(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No process and no listening port of ours is left after a test."""
    pids, sockets = _pids(), _listening()
    yield
    mark = str(tmp_path_factory.getbasetemp())
    end = time.monotonic() + _PATIENCE_S
    while (left := _ours(_pids() - pids, pids, mark)) and time.monotonic() < end:
        psutil.wait_procs(left, timeout=0.1)
    words = [_words(process) for process in left]
    for process in left:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    assert not words, "processes are left: " + "; ".join(words)
    ports = _listening() - sockets
    assert not ports, f"ports are still listened on: {sorted(ports)}"


def _pids() -> set[int]:
    return set(psutil.pids())


def _ours(new: set[int], before: set[int], mark: str) -> list[psutil.Process]:
    """Of the new processes those that are ours and do not belong to one that was there before."""
    found = []
    for pid in new:
        with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            process = psutil.Process(pid)
            parents = [each.pid for each in process.parents()]
            mine = os.getpid() in parents
            if process.status() == psutil.STATUS_ZOMBIE and parents[:1] != [os.getpid()]:
                continue
            between = parents[: parents.index(os.getpid())] if mine else []
            kept = any(pid in before for pid in between)
            if not kept and (mine or any(mark in text for text in _given(process))):
                found.append(process)
    return found


def _given(process: psutil.Process) -> list[str]:
    given = list(process.cmdline())
    with contextlib.suppress(psutil.AccessDenied):
        given += process.environ().values()
    return given


def _words(process: psutil.Process) -> str:
    try:
        return f"{process.pid} ({process.status()}) {' '.join(process.cmdline())[:300]}"
    except psutil.Error:
        return str(process.pid)


def _listening() -> set[tuple[str, str]]:
    """The addresses on which this process listens; nothing where there is no /proc."""
    folder = Path("/proc/self/fd")
    found: set[tuple[str, str]] = set()
    for entry in folder.iterdir() if folder.is_dir() else ():
        with contextlib.suppress(OSError):
            if not str(entry.readlink()).startswith("socket:"):
                continue
            with socket.socket(fileno=os.dup(int(entry.name))) as copy:
                if copy.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                    found.add((copy.family.name, str(copy.getsockname())))
    return found
