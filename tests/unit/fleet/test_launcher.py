import asyncio
import http.server
import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator

import psutil
import pytest
from tests.launching import LAUNCHER, Launching, alive, free_port, get, gone

PARENT = "import subprocess, sys; sys.exit(subprocess.Popen(sys.argv[1:]).wait())"
"""A parent that does nothing but wait; as llama-swap, it takes nobody along when it is killed."""


class Foreign(http.server.BaseHTTPRequestHandler):
    """A server that is not ours and answers 200 to everything."""

    asked = threading.Semaphore(0)

    def do_GET(self) -> None:
        body = b'{"data":[{"id":"a"}]}'
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
        self.asked.release()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        pass


@pytest.fixture
def foreign() -> Iterator[int]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Foreign) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server.server_address[1]
        server.shutdown()
        thread.join()


async def test_progress_rises_and_ends_in_ready(launching: Launching) -> None:
    launching.launch("--load-seconds", "1.5", "--stages", "text_model,mmproj_model")
    ready = await launching.phase("ready")
    loading = [report for report in launching.reports if report.phase == "loading"]
    positions = [(r.stages.index(r.stage), r.value or 0) for r in loading if r.stage]
    assert positions == sorted(positions)
    assert len(set(positions)) >= 4
    assert {report.stage for report in loading} == {"text_model", "mmproj_model"}
    assert all(report.progress_lines and report.pid for report in loading)
    assert len(launching.reports) <= 2 + 5 * (ready.ready_s or 0) + 3, "more than five a second"
    assert ready.ready_s is not None
    assert ready.ready_s >= 1.5
    assert (ready.meta or {})["meta"]["n_ctx"] == 1024
    assert ready.rchar


async def test_an_engine_without_progress_lines_is_ready_by_its_health(
    launching: Launching,
) -> None:
    launching.launch("--no-progress-lines", "--load-seconds", "0.6")
    loading = await launching.phase("loading")
    assert (loading.progress_lines, loading.value) == (False, None)
    assert loading.rchar is not None
    ready = await launching.phase("ready")
    assert (ready.progress_lines, ready.meta) == (False, None)


async def test_its_stdin_stays_open_so_that_it_goes_on_serving(launching: Launching) -> None:
    launching.launch()
    ready = await launching.phase("ready")
    body = json.dumps({"messages": [{"role": "user", "content": "hi"}]}).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{ready.port}/v1/chat/completions", body)
    answer = await asyncio.to_thread(lambda: urllib.request.urlopen(request, timeout=5).read())
    assert json.loads(answer)["choices"][0]["message"]["content"].startswith("token0")
    assert launching.reports[-1].phase == "ready"


async def test_a_killed_engine_is_reported_in_the_moment_it_happens(launching: Launching) -> None:
    process = launching.launch()
    ready = await launching.phase("ready")
    assert ready.pid
    os.kill(ready.pid, signal.SIGKILL)
    exited = await launching.phase("exited")
    assert exited.exit
    assert (exited.exit.code, exited.exit.signal, exited.exit.asked) == (None, "SIGKILL", False)
    assert exited.exit.reason == "ended by SIGKILL"
    assert not exited.exit.out_of_memory
    assert await launching.ended(process) == 128 + signal.SIGKILL


async def test_an_engine_that_ends_by_itself_tells_its_code_and_its_last_complaint(
    launching: Launching,
) -> None:
    process = launching.launch("--die-after-ready", "0.1", "--exit-code", "7")
    exited = await launching.phase("exited")
    assert exited.exit
    assert (exited.exit.code, exited.exit.asked) == (7, False)
    assert exited.exit.reason == "GGML_ASSERT(fake) failed"
    assert exited.ready_s is not None
    assert await launching.ended(process) == 7


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
@pytest.mark.parametrize("protocol", [True, False], ids=["protocol", "plain"])
async def test_a_signal_stops_it_cleanly(
    launching: Launching, number: signal.Signals, protocol: bool
) -> None:
    process = launching.launch(*([] if protocol else ["--no-progress-lines"]))
    await launching.phase("ready")
    process.send_signal(number)
    assert await launching.ended(process, 3) == 0
    exited = await launching.phase("exited")
    assert exited.exit
    assert (exited.exit.code, exited.exit.asked, exited.exit.reason) == (0, True, None)
    assert "stopping" in {report.phase for report in launching.reports}


async def test_a_stop_while_it_loads_is_done_at_once(launching: Launching) -> None:
    process = launching.launch("--load-seconds", "60")
    loading = await launching.phase("loading")
    began = time.monotonic()
    process.terminate()
    await launching.ended(process)
    assert time.monotonic() - began < 1
    assert not alive(loading.pid or 0)
    exited = await launching.phase("exited")
    assert exited.exit
    assert exited.exit.asked


async def test_an_engine_that_will_not_stop_is_killed_after_the_timeout(
    launching: Launching,
) -> None:
    process = launching.launch("--ignore-term", stop=1)
    await launching.phase("ready")
    began = time.monotonic()
    process.terminate()
    assert await launching.ended(process) == 128 + signal.SIGKILL
    assert 0.9 < time.monotonic() - began < 3
    exited = await launching.phase("exited")
    assert exited.exit
    assert (exited.exit.signal, exited.exit.asked) == ("SIGKILL", True)
    assert not exited.exit.out_of_memory


@pytest.mark.parametrize("phase", ["loading", "ready"])
async def test_a_killed_launcher_takes_its_engine_along(launching: Launching, phase: str) -> None:
    process = launching.launch("--load-seconds", "60" if phase == "loading" else "0.2")
    report = await launching.phase(phase)
    process.kill()
    await gone(report.pid or 0, 1)
    await launching.ended(process)


@pytest.mark.parametrize("phase", ["loading", "ready"])
async def test_a_killed_parent_takes_launcher_and_engine_along(
    launching: Launching, phase: str
) -> None:
    seconds = "60" if phase == "loading" else "0.2"
    command = launching.command("--load-seconds", seconds)
    parent = launching.start([sys.executable, "-c", PARENT, *command])
    report = await launching.phase(phase)
    parent.kill()
    await gone(report.launcher, 4)
    await gone(report.pid or 0, 1)
    exited = await launching.phase("exited")
    assert exited.exit
    assert exited.exit.asked


async def test_a_failed_load_quotes_the_cause_and_not_what_follows_from_it(
    launching: Launching,
) -> None:
    process = launching.launch("--fail-after", "0.2", "-m", "/models/none.gguf")
    exited = await launching.phase("exited")
    assert exited.exit
    assert exited.exit.reason == (
        "gguf_init_from_file: failed to open GGUF file '/models/none.gguf'"
        " (No such file or directory)"
    )
    assert exited.exit.tail[-1].endswith("exiting due to model loading error")
    assert not exited.exit.out_of_memory
    assert await launching.ended(process) == 1


async def test_a_failed_allocation_is_out_of_memory(launching: Launching) -> None:
    words = "ggml_backend_cuda_buffer_type_alloc_buffer: cudaMalloc failed: out of memory"
    launching.launch("--fail-after", "0.1", "--fail-words", words)
    exited = await launching.phase("exited")
    assert exited.exit
    assert exited.exit.out_of_memory
    assert exited.exit.reason == words


async def test_a_program_that_is_not_there_is_an_exit_with_a_reason(launching: Launching) -> None:
    launching.engine = ["/nowhere/llama-server"]
    process = launching.launch()
    exited = await launching.phase("exited")
    assert exited.exit
    assert (exited.pid, exited.exit.code) == (None, 127)
    assert exited.exit.reason == "cannot start /nowhere/llama-server: No such file or directory"
    assert await launching.ended(process) == 127


async def test_a_taken_port_is_never_ready_and_says_why(launching: Launching, foreign: int) -> None:
    launching.launch(port=foreign)
    exited = await launching.phase("exited")
    assert exited.exit
    assert "bind" in (exited.exit.reason or "")
    assert "ready" not in {report.phase for report in launching.reports}


async def test_a_foreign_server_that_answers_does_not_make_it_ready(
    launching: Launching, foreign: int
) -> None:
    launching.engine = [sys.executable, "-c", "import time; time.sleep(60)"]
    process = launching.launch(port=foreign)
    for _ in range(4):
        assert await asyncio.to_thread(Foreign.asked.acquire, timeout=5)
    process.terminate()
    await launching.phase("exited")
    phases = [report.phase for report in launching.reports]
    assert set(phases) == {"starting", "stopping", "exited"}


async def test_a_server_that_comes_back_gets_the_full_state(launching: Launching) -> None:
    process = launching.launch("--load-seconds", "0.4")
    loading = await launching.phase("loading")

    async def ready_meanwhile() -> None:
        while b"ok" not in await asyncio.to_thread(health, loading.port):
            pass

    await launching.restart_server(ready_meanwhile)
    ready = await launching.phase("ready")
    assert (ready.pid, ready.launcher, ready.progress_lines) == (loading.pid, process.pid, True)
    assert ready.meta


def health(port: int) -> bytes:
    try:
        return get(port, "/health")
    except OSError:
        return b""


async def test_a_reader_that_never_reads_holds_nobody_up(launching: Launching) -> None:
    read, write = os.pipe()
    try:
        command = launching.command("--log-burst", "2000000")
        process = launching.start(command, stdout=write)
        os.close(write)
        await launching.phase("ready")
        process.terminate()
        await launching.ended(process, 4)
    finally:
        os.close(read)


async def test_a_reader_that_went_away_holds_nobody_up(launching: Launching) -> None:
    read, write = os.pipe()
    process = launching.start(launching.command("--log-burst", "300000"), stdout=write)
    os.close(write)
    os.close(read)
    await launching.phase("ready")
    process.terminate()
    assert await launching.ended(process, 3) == 0


async def test_what_the_engine_says_is_passed_on_without_the_progress(
    launching: Launching,
) -> None:
    process = launching.start(launching.command(), stdout=subprocess.PIPE)
    await launching.phase("ready")
    process.terminate()
    output, _ = await asyncio.to_thread(process.communicate, timeout=5)
    assert b"llama_server: model loaded" in output
    assert b"cmd_child_to_router" not in output


async def test_a_flood_of_log_lines_stays_within_bounded_memory(launching: Launching) -> None:
    process = launching.launch("--log-burst", "100000000")
    await launching.phase("ready")
    assert psutil.Process(process.pid).memory_info().rss < 60e6


async def test_a_guard_mirrors_the_exit_code(launching: Launching) -> None:
    guard = [*LAUNCHER, "--guard", "--"]
    process = launching.start([*guard, sys.executable, "-c", "raise SystemExit(9)"])
    assert await launching.ended(process) == 9
    shot = "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)"
    process = launching.start([*guard, sys.executable, "-c", shot])
    assert await launching.ended(process) == 128 + signal.SIGSEGV


STUBBORN = (
    "import signal; signal.signal(signal.SIGTERM, lambda *_: print('asked', flush=True));"
    "print('up', flush=True)\nwhile True: signal.pause()"
)


@pytest.mark.parametrize("how", ["second signal", "timeout"])
async def test_a_guard_kills_what_will_not_stop(launching: Launching, how: str) -> None:
    timeout = "60" if how == "second signal" else "0.5"
    guard = [*LAUNCHER, "--guard", "--stop-timeout", timeout, "--"]
    process = launching.start([*guard, sys.executable, "-c", STUBBORN], stdout=subprocess.PIPE)
    assert process.stdout
    assert await asyncio.to_thread(process.stdout.readline) == b"up\n"
    process.terminate()
    assert await asyncio.to_thread(process.stdout.readline) == b"asked\n"
    if how == "second signal":
        process.send_signal(signal.SIGINT)
    assert await launching.ended(process, 3) == 128 + signal.SIGKILL


async def test_a_guard_ends_with_its_parent(launching: Launching) -> None:
    port = free_port()
    engine = [*launching.engine, "--no-progress-lines", "--port", str(port)]
    command = [*LAUNCHER, "--guard", "--", *engine]
    parent = launching.start([sys.executable, "-c", PARENT, *command], stdout=subprocess.PIPE)
    assert parent.stdout
    while b"model loaded" not in await asyncio.to_thread(parent.stdout.readline):
        pass
    guard = psutil.Process(parent.pid).children()[0].pid
    parent.kill()
    await gone(guard, 4)


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["--guard"],
        ["--guard", "--"],
        ["--bogus", "--", "x"],
        ["--instance", "a", "--", "x", "--port", "1"],
        ["--instance", "a", "--socket", "s", "--", "x"],
        ["--instance", "a", "--socket", "s", "--", "x", "--port", "y"],
        ["--instance", "a", "--socket", "s", "--stop-timeout", "soon", "--", "x", "--port", "1"],
    ],
    ids=" ".join,
)
def test_a_wrong_command_line_is_a_usage_error(words: list[str]) -> None:
    done = subprocess.run([*LAUNCHER, *words], capture_output=True, text=True, timeout=10)
    assert done.returncode == 64
    assert "usage:" in done.stderr


def test_it_imports_the_standard_library_alone() -> None:
    code = "import sys, pannier.fleet.launcher; print(*sys.modules)"
    loaded = subprocess.check_output([sys.executable, "-c", code], text=True).split()
    assert not {"asyncio", "msgspec", "aiohttp", "typing_extensions"} & set(loaded)
