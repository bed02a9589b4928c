import asyncio
import json
import os
import shlex
import signal
import sys
import time
import urllib.request
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest
from tests.gguf_writer import slow_chat, write_micro
from tests.launching import Launching, alive, free_port, get, gone

from pannier.engine.locate import find_llama_server, find_llama_swap

LENT_SWAP = Path(__file__).resolve().parents[3] / "shared" / "bin" / "llama-swap"

PARENT = "import subprocess, sys; sys.exit(subprocess.Popen(sys.argv[1:]).wait())"
SMALL = ("-c", "1024", "-np", "1", "-fit", "off", "--host", "127.0.0.1", "--no-warmup")


@pytest.fixture(scope="module")
def llama_server() -> str:
    """The real one: PANNIER_LLAMA_SERVER, or the one that Pannier finds."""
    found = find_llama_server()
    if found is None:
        pytest.skip("no llama-server here; `pannier engine install` gets one")
    return found.path


@pytest.fixture(scope="module")
def llama_swap() -> str:
    """The real one: the one beside the checkout, or the one that Pannier finds."""
    if LENT_SWAP.exists():
        return str(LENT_SWAP)
    found = find_llama_swap()
    if found is None:
        pytest.skip("no llama-swap here; `pannier engine install` gets one")
    return found.path


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    write_micro(folder)
    return folder


@pytest.fixture(scope="module")
def micro_chat(models: Path) -> Path:
    return models / "micro-chat.gguf"


@pytest.fixture
async def launching(tmp_path: Path, llama_server: str) -> AsyncIterator[Launching]:
    launching = Launching(tmp_path, [llama_server])
    await launching.server.start()
    yield launching
    assert await launching.close() == [], "a process outlived its launcher"


@pytest.fixture
def stuck(tmp_path: Path) -> Path:
    """A model whose load never ends: opening it waits for a writer that does not come."""
    path = tmp_path / "stuck.gguf"
    os.mkfifo(path)
    return path


def send(port: int, path: str, body: dict[str, object]) -> bytes:
    raw = json.dumps(body).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", raw)
    with urllib.request.urlopen(request, timeout=20) as answer:
        return bytes(answer.read())


async def test_it_becomes_ready_and_goes_on_serving(launching: Launching, micro_chat: Path) -> None:
    launching.launch("-m", str(micro_chat), *SMALL)
    ready = await launching.phase("ready")
    assert ready.progress_lines
    assert (ready.meta or {})["meta"]["n_ctx"] == 1024
    assert "loading" in {report.phase for report in launching.reports}
    asked = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}
    answer = await asyncio.to_thread(send, ready.port, "/v1/chat/completions", asked)
    assert json.loads(answer)["usage"]["completion_tokens"] > 0
    assert launching.reports[-1].phase == "ready"


async def test_the_progress_of_a_long_load_rises(launching: Launching, models: Path) -> None:
    model = await asyncio.to_thread(slow_chat, models / "slow.gguf", 600)
    launching.launch("-m", str(model), *SMALL, "-b", "32", "--load-mode", "none", "--no-repack")
    ready = await launching.phase("ready")
    values = [report.value for report in launching.reports if report.value is not None]
    assert values == sorted(values)
    assert any(0 < value < 1 for value in values), "nothing between the start and the end"
    read = [report.rchar for report in launching.reports if report.rchar is not None]
    assert read == sorted(read)
    assert read[-1] > 0.55e9
    assert ready.stage == "text_model"


async def test_a_killed_engine_is_reported(launching: Launching, micro_chat: Path) -> None:
    process = launching.launch("-m", str(micro_chat), *SMALL)
    ready = await launching.phase("ready")
    os.kill(ready.pid or 0, signal.SIGKILL)
    exited = await launching.phase("exited")
    assert exited.exit
    assert (exited.exit.signal, exited.exit.asked) == ("SIGKILL", False)
    assert await launching.ended(process) == 128 + signal.SIGKILL


@pytest.mark.parametrize("moment", ["first moment", "later"])
async def test_a_signal_stops_it_cleanly(
    launching: Launching, micro_chat: Path, moment: str
) -> None:
    process = launching.launch("-m", str(micro_chat), *SMALL)
    ready = await launching.phase("ready")
    if moment == "later":
        await asyncio.to_thread(get, ready.port, "/v1/models")
    began = time.monotonic()
    process.terminate()
    assert await launching.ended(process, 5) == 0
    assert time.monotonic() - began < 2.5
    exited = await launching.phase("exited")
    assert exited.exit
    assert (exited.exit.code, exited.exit.asked) == (0, True)


async def test_a_stop_while_it_loads_is_done_at_once(launching: Launching, stuck: Path) -> None:
    process = launching.launch("-m", str(stuck), *SMALL)
    loading = await launching.phase("loading")
    began = time.monotonic()
    process.terminate()
    await launching.ended(process)
    assert time.monotonic() - began < 1
    assert not alive(loading.pid or 0)


@pytest.mark.parametrize("phase", ["loading", "ready"])
async def test_a_killed_launcher_takes_its_engine_along(
    launching: Launching, micro_chat: Path, stuck: Path, phase: str
) -> None:
    model = stuck if phase == "loading" else micro_chat
    process = launching.launch("-m", str(model), *SMALL)
    report = await launching.phase(phase)
    process.kill()
    await gone(report.pid or 0, 1)


@pytest.mark.parametrize("phase", ["loading", "ready"])
async def test_a_killed_parent_takes_launcher_and_engine_along(
    launching: Launching, micro_chat: Path, stuck: Path, phase: str
) -> None:
    model = stuck if phase == "loading" else micro_chat
    command = launching.command("-m", str(model), *SMALL)
    parent = launching.start([sys.executable, "-c", PARENT, *command])
    report = await launching.phase(phase)
    parent.kill()
    await gone(report.launcher, 4)
    await gone(report.pid or 0, 1)


async def refusal(launching: Launching, *arguments: str, port: int | None = None) -> str:
    process = launching.launch(*arguments, port=port)
    exited = await launching.phase("exited")
    assert exited.exit
    assert (exited.exit.asked, exited.exit.out_of_memory) == (False, False)
    assert await launching.ended(process) == exited.exit.code == 1
    assert "ready" not in {report.phase for report in launching.reports}
    return exited.exit.reason or ""


async def test_a_missing_model_is_said_in_the_engines_words(launching: Launching) -> None:
    reason = await refusal(launching, "-m", "/nowhere/model.gguf", *SMALL)
    assert "/nowhere/model.gguf" in reason
    assert "No such file" in reason


async def test_a_file_that_is_no_model_is_said_in_the_engines_words(
    launching: Launching, tmp_path: Path
) -> None:
    bad = tmp_path / "bad.gguf"
    await asyncio.to_thread(bad.write_bytes, b"not a model at all" * 100)
    assert "invalid magic" in await refusal(launching, "-m", str(bad), *SMALL)


async def test_an_unknown_flag_is_said_in_the_engines_words(
    launching: Launching, micro_chat: Path
) -> None:
    reason = await refusal(launching, "-m", str(micro_chat), *SMALL, "--bogus-flag")
    assert reason == "error: invalid argument: --bogus-flag"


async def test_a_taken_port_is_said_in_the_engines_words(
    launching: Launching, micro_chat: Path
) -> None:
    first = launching.launch("-m", str(micro_chat), *SMALL)
    port = (await launching.phase("ready")).port
    before = len(launching.reports)
    launching.launch("-m", str(micro_chat), *SMALL, port=port)
    exited = await launching.until(
        lambda report: report.phase == "exited" and report.launcher != first.pid, since=before
    )
    assert exited.exit
    assert "bind" in (exited.exit.reason or "")
    phases = [r.phase for r in launching.reports if r.launcher == exited.launcher]
    assert "ready" not in phases


async def swap(launching: Launching, llama_swap: str, folder: Path, model: Path) -> tuple[int, int]:
    """Start a real llama-swap with one model; its pid and its port."""
    engine, port = free_port(), free_port()
    command = launching.command("-m", str(model), *SMALL, port=engine)
    entry = {"cmd": shlex.join(command), "proxy": f"http://127.0.0.1:{engine}"}
    config = folder / "llama-swap.json"
    text = json.dumps({"healthCheckTimeout": 60, "models": {"a": entry}})
    await asyncio.to_thread(config.write_text, text)
    words = [llama_swap, "-config", str(config), "-listen", f"127.0.0.1:{port}"]
    process = launching.start(words)
    async with asyncio.timeout(15):
        while not await asyncio.to_thread(answers, port):
            pass
    return process.pid, port


def answers(port: int) -> bool:
    try:
        return bool(get(port, "/health"))
    except OSError:
        return False


def post(port: int, path: str) -> None:
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", method="POST")
    urllib.request.urlopen(request, timeout=10).close()


async def test_under_llama_swap_it_loads_reports_and_is_unloaded_quickly(
    launching: Launching, llama_swap: str, micro_chat: Path, tmp_path: Path
) -> None:
    _, port = await swap(launching, llama_swap, tmp_path, micro_chat)
    assert b"ok" in await asyncio.to_thread(get, port, "/upstream/a/health")
    ready = await launching.phase("ready")
    assert "loading" in {report.phase for report in launching.reports}
    began = time.monotonic()
    await asyncio.to_thread(post, port, "/api/models/unload/a")
    exited = await launching.phase("exited")
    assert time.monotonic() - began < 1
    assert exited.exit
    assert (exited.exit.code, exited.exit.asked) == (0, True)
    assert not alive(ready.pid or 0)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
async def test_when_llama_swap_ends_nothing_of_it_is_left(
    launching: Launching, llama_swap: str, micro_chat: Path, tmp_path: Path, number: int
) -> None:
    leader, port = await swap(launching, llama_swap, tmp_path, micro_chat)
    await asyncio.to_thread(get, port, "/upstream/a/health")
    ready = await launching.phase("ready")
    os.kill(leader, number)
    await gone(ready.pid or 0, 4)
    await gone(ready.launcher, 2)


async def test_a_launcher_is_small(launching: Launching, micro_chat: Path) -> None:
    process = launching.launch("-m", str(micro_chat), *SMALL)
    await launching.phase("ready")
    assert psutil.Process(process.pid).memory_info().rss < 30e6, "it counts once for each model"


@pytest.mark.parametrize(
    ("role", "flag", "path", "asked", "answered"),
    [
        ("embed", "--embeddings", "/v1/embeddings", {"input": "a"}, b'"embedding":['),
        ("rerank", "--reranking", "/v1/rerank", {"query": "a", "documents": ["b"]}, b"score"),
    ],
)
async def test_the_micro_models_are_really_served(
    launching: Launching,
    models: Path,
    role: str,
    flag: str,
    path: str,
    asked: dict[str, object],
    answered: bytes,
) -> None:
    launching.launch("-m", str(models / f"micro-{role}.gguf"), *SMALL, flag)
    ready = await launching.phase("ready")
    assert answered in await asyncio.to_thread(send, ready.port, path, asked)
