"""Devices through the real llama-server: its own list, and a driver that comes and goes beside it.

The cards are those of the stand-in for NVIDIA's library. The engine uses none of them, as it is
built without CUDA; its devices are remote: `ggml-rpc-server` on loopback.
"""

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.engine.conftest import MakeServe
from tests.engine.programs import Programs
from tests.engine.serving import PATIENCE_S, Serve, free_port, listens, row_of
from tests.nvml import rigs
from tests.nvml.rigs import Code
from tests.nvml.stand_in import StandIn, build

from pannier.config.schema import Engine
from pannier.devices.engine_probe import list_devices, question_of
from pannier.engine.locate import beside

pytestmark = pytest.mark.timeout(150)

SILENT = "nvmlDeviceGetCount_v2"


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def cards(library: Path, tmp_path: Path) -> StandIn:
    """A driver with two cards."""
    made = StandIn(library, tmp_path)
    made.put(rigs.TWO_24)
    return made


@pytest.fixture
def remote(programs: Programs, tmp_path: Path) -> Iterator[Callable[..., str]]:
    """Starts a remote device; its endpoint."""
    program = beside(programs.server, "ggml-rpc-server")
    if program is None:
        pytest.skip("no ggml-rpc-server beside llama-server")
    started: list[subprocess.Popen[bytes]] = []

    def start(port: int | None = None) -> str:
        port = port or free_port()
        with (tmp_path / f"rpc-{port}.log").open("wb") as log:
            argv = [program, "-H", "127.0.0.1", "-p", str(port)]
            started.append(subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log))
        end = time.monotonic() + PATIENCE_S
        while not listens(port):
            assert time.monotonic() < end, "the remote device does not listen"
            time.sleep(0.02)
        return f"127.0.0.1:{port}"

    yield start
    for each in started:
        each.kill()
        each.wait()


async def test_remote_devices_are_listed_by_the_engine(
    llama_server: str, remote: Callable[..., str]
) -> None:
    endpoints = [remote(), remote()]
    found = await list_devices(question_of(llama_server, Engine(rpc=tuple(endpoints)), os.environ))
    assert found.devices is not None, found.reason
    assert [(each.label, each.backend, each.name) for each in found.devices] == [
        ("RPC0", "rpc", endpoints[0]), ("RPC1", "rpc", endpoints[1]),
    ]  # fmt: skip
    ram = psutil.virtual_memory().total
    assert all(0.5 * ram < each.total <= ram for each in found.devices)


async def test_without_devices_the_engine_says_so(llama_server: str) -> None:
    found = await list_devices(question_of(llama_server, Engine(), os.environ))
    assert (found.devices, found.reason) == ((), None)


async def test_a_remote_device_that_does_not_answer_is_named(
    llama_server: str, remote: Callable[..., str]
) -> None:
    nobody = f"127.0.0.1:{free_port()}"
    found = await list_devices(question_of(llama_server, Engine(rpc=(remote(), nobody)), {}))
    assert found.devices is None
    assert nobody in (found.reason or "")


def pannier(environ: Mapping[str, str], *argv: object) -> str:
    ended = subprocess.run(
        [sys.executable, "-m", "pannier", *map(str, argv)],
        capture_output=True, text=True, timeout=60, env=dict(environ),
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def test_status_and_a_plan_from_its_file_say_what_a_plan_here_says(
    programs: Programs, cards: StandIn, remote: Callable[..., str], micro_chat: Path, tmp_path: Path
) -> None:
    environ = {**cards.environment(), **programs.environ}
    config, file = tmp_path / "config.toml", tmp_path / "inventory.json"
    config.write_text(
        f'[engine]\nrpc = ["{remote()}"]\n[memory]\nreserve = "1GiB"\n'
        f'[models.a]\npath = "{micro_chat}"\ncontext = 4096\n'
    )
    file.write_text(pannier(environ, "status", "--json", "--config", config))
    shown = json.loads(file.read_text())
    assert shown["engine"] == programs.server
    (device,) = shown["inventory"]["devices"]
    assert (device["label"], device["reserve"]) == ("RPC0", 1 << 30)
    assert [each["uuid"] for each in shown["inventory"]["unused"]] == [
        card.uuid for card in rigs.TWO_24.cards
    ]
    text = pannier(environ, "status", "--config", config)
    assert "built without CUDA" in text
    assert str(rigs.TWO_24.cards[0].uuid)[:12] in text

    here, elsewhere = (
        json.loads(pannier(environ, "plan", "--json", "--config", config, *more))
        for more in ((), ("--inventory", file))
    )
    for plan in (here, elsewhere):
        (device,) = plan.pop("devices")
        assert device["label"] == "RPC0"
    assert here == elsewhere


def with_cards(make_serve: MakeServe, programs: Programs, cards: StandIn, **engine: Any) -> Serve:
    seen = {name: cards.environment()[name] for name in ("LD_LIBRARY_PATH", "NVML_RIG")}
    return make_serve(programs={**programs.environ, **seen}, engine=engine)


async def devices_of(serve: Serve) -> str:
    _, text = await serve.get("/readyz?verbose")
    return next(line for line in text.splitlines() if "devices:" in line)


async def until(serve: Serve, holds: Callable[[str], bool]) -> None:
    """Waits for the condition of the devices."""
    end = time.monotonic() + PATIENCE_S
    while not holds(line := await devices_of(serve)):
        assert time.monotonic() < end, line
        await asyncio.sleep(0.1)


async def test_report_54_a_driver_that_goes_silent_stops_nothing_and_is_shown(
    make_serve: MakeServe, programs: Programs, cards: StandIn, micro_chat: Path
) -> None:
    """nvidia-container-toolkit#48: "Unknown Error" while models are in memory."""
    serve = with_cards(make_serve, programs, cards)
    models = {"a": {"path": str(micro_chat), "context": 4096}}
    serve.write(models)
    await serve.start()
    await serve.ready("a")
    before = await serve.pid("a")
    assert "[+]" in await devices_of(serve)

    cards.put(rigs.TWO_24.failing(Code.UNKNOWN, SILENT))
    serve.write({**models, "b": {**models["a"], "preload": False}})
    await until(serve, lambda line: line.startswith("[-] devices: stale"))
    seen = await serve.readiness()
    assert "the last list stays" in seen["config"]["notes"][0]
    assert seen["config"]["problems"] == []
    assert (await serve.row("a"))["state"] == "ready"
    assert await serve.pid("a") == before
    generation = seen["generation"]

    cards.put(rigs.TWO_24)
    await until(serve, lambda line: line.startswith("[+]"))
    seen = await serve.readiness()
    assert seen["config"]["notes"] == []
    assert seen["generation"] == generation, "what came back is no reason to plan anew"
    assert await serve.pid("a") == before


async def test_a_remote_device_that_comes_late_is_planned_on_by_itself(
    make_serve: MakeServe, programs: Programs, cards: StandIn, remote: Callable[..., str],
    micro_chat: Path,
) -> None:  # fmt: skip
    """The engine lists nothing until all its endpoints answer; it is asked until then."""
    port = free_port()
    serve = with_cards(make_serve, programs, cards, rpc=[f"127.0.0.1:{port}"])
    serve.write({"a": {"path": str(micro_chat), "context": 4096, "preload": False}})
    await serve.start()
    assert "not known" in await devices_of(serve)
    remote(port)
    await until(serve, lambda line: line == "[+] devices: RPC0")
    row = (await serve.wait_for(lambda seen: row_of(seen, "a")["instances"][0]["devices"]))["data"]
    assert row[0]["instances"][0]["devices"] == ["RPC0"]
    status, body, _ = await serve.post(
        "/v1/chat/completions",
        {"model": "a", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2},
    )
    assert status == 200, body
