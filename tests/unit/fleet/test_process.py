"""A child and its session, with real processes: output, end, and nothing left behind."""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import psutil
import pytest
from tests.launching import alive

from pannier.errors import HostError
from pannier.fleet import process
from pannier.fleet.process import TAIL_LINES, Child, child_environment, spawn
from pannier.fleet.sweep import Session, kill_session, members

ORPHAN = """
import os, signal, sys, time
if os.fork() == 0:
    os.setpgid(0, 0)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    print("grandchild", os.getpid(), flush=True)
    time.sleep(600)
"""
"""A program part: a grandchild in its own process group, which holds the pipe and ignores TERM."""


class Lines:
    """The lines that a child said, to be waited for."""

    def __init__(self) -> None:
        self.all: list[str] = []
        self._news = asyncio.Event()

    def __call__(self, line: str) -> None:
        self.all.append(line)
        self._news.set()

    async def until(self, part: str) -> str:
        async with asyncio.timeout(20):
            while not any(part in line for line in self.all):
                self._news.clear()
                await self._news.wait()
        return next(line for line in self.all if part in line)


@pytest.fixture
def said() -> Lines:
    return Lines()


@pytest.fixture
async def run(said: Lines) -> AsyncIterator[Callable]:
    children: list[Child] = []

    async def start(program: str) -> Child:
        env = child_environment(os.environ)
        child = await spawn([sys.executable, "-c", program], env=env, say=said)
        children.append(child)
        return child

    yield start
    for child in children:
        await child.stop(0.0)


async def test_the_end_of_a_child_is_seen_while_a_grandchild_holds_its_output(run, said):
    child = await run(ORPHAN + "time.sleep(0.2); sys.exit(7)")
    grandchild = int((await said.until("grandchild")).split()[1])
    async with asyncio.timeout(10):
        assert await child.wait() == 7
    assert alive(grandchild)
    await child.stop(1.0)
    assert not alive(grandchild)


async def test_a_stop_ends_a_grandchild_in_a_group_of_its_own_that_ignores_term(run, said):
    child = await run(ORPHAN + "time.sleep(600)")
    grandchild = int((await said.until("grandchild")).split()[1])
    assert os.getpgid(grandchild) != child.pid
    await child.stop(10.0)
    assert child.returncode == -signal.SIGTERM
    assert members(child.pid) == []
    assert not alive(grandchild)


async def test_a_child_that_ignores_term_is_killed_when_its_time_is_over(run, said):
    child = await run(
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
        "print('deaf', flush=True); time.sleep(600)"
    )
    await said.until("deaf")
    await child.stop(0.2)
    assert child.returncode == -signal.SIGKILL


async def test_a_stop_that_is_cancelled_still_leaves_nothing(run, said):
    child = await run(ORPHAN + "signal.signal(15, signal.SIG_IGN); print('up'); time.sleep(600)")
    await said.until("grandchild")
    stop = asyncio.create_task(child.stop(600))
    await asyncio.sleep(0)
    stop.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await stop
    assert members(child.pid) == []


async def test_a_child_that_ended_can_be_stopped_and_stopped_again(run):
    child = await run("pass")
    await child.wait()
    await child.stop(1.0)
    await child.stop(1.0)
    assert child.returncode == 0


async def test_a_stop_does_not_touch_a_process_that_has_the_number_now(run):
    """A child that ended long ago: its number may be another's, and that one leads a session."""
    stranger = await run("import time; time.sleep(600)")
    await kill_session(Session(stranger.pid, stranger.session.started - 1))
    assert alive(stranger.pid)


async def test_a_log_burst_arrives_whole_and_the_tail_is_bounded(run, said):
    child = await run("for n in range(20000): print('line', n)")
    assert await child.wait() == 0
    await said.until("line 19999")
    assert len(said.all) == 20000
    assert child.tail() == tuple(f"line {n}" for n in range(20000 - TAIL_LINES, 20000))


async def test_a_line_that_never_ends_is_cut_and_not_kept(run, said):
    child = await run("import sys; sys.stdout.write('x' * 5_000_000 + '\\nend\\n')")
    await said.until("end")
    await child.wait()
    assert max(map(len, said.all)) <= 2000
    assert len(child.tail()) <= TAIL_LINES


async def test_a_last_line_without_an_end_is_heard(run, said):
    await run("import sys; sys.stdout.write('no newline')")
    assert await said.until("no newline") == "no newline"


async def test_control_characters_of_a_child_do_not_reach_the_log(run, said):
    raw = "a\\x1b[31mred\\rback\\x00\\x07\\u2028\\x85end"
    await run(f"import sys; sys.stdout.buffer.write('{raw}\\n'.encode() + b'\\xff\\xfe bytes\\n')")
    line = await said.until("end")
    assert line == r"a\x1b[31mred\rback\x00\x07\u2028\x85end"
    assert (await said.until("bytes")).isprintable()


async def test_a_child_has_no_input_its_own_session_and_private_files(run, said):
    child = await run(
        "import os, sys; mask = os.umask(0); print(os.getsid(0) == os.getpid(), mask,"
        "repr(sys.stdin.read()), flush=True)"
    )
    assert await said.until("True") == "True 63 ''"
    assert child.session.pid == child.pid


async def test_what_cannot_be_started_is_a_host_error_and_leaks_nothing(said):
    before = open_files()
    for _ in range(5):
        with pytest.raises(HostError, match="cannot be started: No such file"):
            await spawn(["/no/such/program"], env={}, say=said)
    assert open_files() == before


@pytest.mark.parametrize("ticks", range(6))
async def test_a_start_that_is_cancelled_leaves_no_process_and_no_pipe(said, ticks, tmp_path):
    before = open_files()
    mark = tmp_path / "mark"
    argv = [sys.executable, "-c", "import time; time.sleep(600)", str(mark)]
    start = asyncio.create_task(spawn(argv, env=dict(os.environ), say=said))
    for _ in range(ticks):
        await asyncio.sleep(0)
    start.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await (await start).stop(0.0)
    assert not started_with(mark)
    assert open_files() <= before


async def test_a_start_that_is_cancelled_as_its_output_is_connected_leaves_no_process(
    said, tmp_path, monkeypatch
):
    async def never(self, handle):
        os.close(handle)
        await asyncio.Event().wait()

    monkeypatch.setattr(process.Child, "read_from", never)
    mark = tmp_path / "mark"
    argv = [sys.executable, "-c", "import time; time.sleep(600)", str(mark)]
    start = asyncio.create_task(spawn(argv, env=dict(os.environ), say=said))
    async with asyncio.timeout(20):
        while not started_with(mark):  # noqa: ASYNC110  a start has no event for others
            await asyncio.sleep(0.01)
    start.cancel()
    with pytest.raises(asyncio.CancelledError):
        await start
    assert not started_with(mark)


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def started_with(mark: Path) -> list[int]:
    """The processes that have the mark on their command line."""
    found = []
    for pid in psutil.pids():
        with contextlib.suppress(psutil.Error):
            if str(mark) in psutil.Process(pid).cmdline():
                found.append(pid)
    return found


def test_a_child_gets_what_engines_need_and_no_secrets():
    needed = {
        "PATH": "/bin",
        "HOME": "/root",
        "LD_LIBRARY_PATH": "/opt/cuda",
        "CUDA_VISIBLE_DEVICES": "0",
        "NVIDIA_VISIBLE_DEVICES": "all",
        "HIP_VISIBLE_DEVICES": "0",
        "ROCR_VISIBLE_DEVICES": "0",
        "GGML_CUDA_ENABLE_UNIFIED_MEMORY": "1",
        "LLAMA_CACHE": "/cache",
        "VK_ICD_FILENAMES": "x",
        "OMP_NUM_THREADS": "4",
        "LC_ALL": "C.UTF-8",
    }
    secret = {
        "HF_TOKEN": "s",
        "AWS_SECRET_ACCESS_KEY": "s",
        "OPENAI_API_KEY": "s",
        "LLAMA_API_KEY": "s",
        "LLAMA_ARG_API_KEY_FILE": "s",
        "PANNIER_ADMIN_KEY": "s",
        "DATABASE_URL": "s",
        "SSH_AUTH_SOCK": "s",
        "CREDENTIALS_DIRECTORY": "s",
    }
    assert child_environment({**needed, **secret}) == needed
