"""`pannier memory` knows the loads that a real `pannier serve` has seen, and only those."""

import asyncio
import contextlib
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.engine.oracle import rpc_devices
from tests.engine.serving import PATIENCE_S, Failed, Serve

from pannier.gguf.learned import Load, decode
from pannier.gguf.measured import peak

pytestmark = pytest.mark.timeout(120)

CONTEXT = ("--context", "4096")


@pytest.fixture
def rpc_pair(llama_server: str, tmp_path: Path) -> Iterator[list[str]]:
    """Two devices, each a ggml-rpc-server of its own."""
    with rpc_devices(llama_server, 2, tmp_path / "rpc.log") as endpoints:
        yield endpoints


async def learned(serve: Serve, count: int) -> tuple[Load, ...]:
    """Waits until so many loads are remembered."""
    end = time.monotonic() + PATIENCE_S
    while True:
        with contextlib.suppress(FileNotFoundError):
            found = decode((serve.state_folder / "learned.toml").read_bytes())
            if found is not None and len(found.loads) >= count:
                return found.loads
        if time.monotonic() > end:
            raise Failed(f"{count} loads are not learned")
        await asyncio.sleep(0.05)


async def memory(serve: Serve, model: Path, *options: str) -> dict[str, Any]:
    """What `pannier memory --json` says, in a process of its own."""
    argv = ["-m", "pannier", "memory", str(model), "--state", str(serve.state_folder), "--json"]
    process = await asyncio.create_subprocess_exec(
        sys.executable, *argv, *options, stdout=asyncio.subprocess.PIPE
    )
    out, _ = await asyncio.wait_for(process.communicate(), PATIENCE_S)
    assert process.returncode == 0
    found: dict[str, Any] = json.loads(out)
    return found


def adds_up(found: dict[str, Any]) -> bool:
    rows = [*found["devices"], found["host"]]
    return all(sum(row.values()) == 2 * row["total"] for row in rows)


async def test_models_that_serve_has_loaded_on_the_cpu_are_measured(
    serve: Serve, micro_chat: Path, micro_embed: Path, micro_rerank: Path
) -> None:
    given = {
        "chat": (micro_chat, (), None),
        "embed": (micro_embed, ("--embedding",), "--embedding"),
        "rerank": (micro_rerank, ("--rerank",), "--reranking"),
    }
    serve.write(
        {
            role: {"path": str(path), "role": role, "context": 4096}
            for role, (path, _, _) in given.items()
        }
    )
    await serve.start()
    await serve.ready()
    loads = {pooling(load): load for load in await learned(serve, 3)}
    for path, options, flag in given.values():
        # While serve runs: its lock is not needed.
        found = await memory(serve, path, *CONTEXT, "--devices", "0", *options)
        assert found["measured"]
        assert adds_up(found)
        took = loads[flag].took.host
        host = found["host"]
        assert (host["kv"], host["compute"]) == (took.kv, took.compute)
        assert host["weights"] == took.mapped + took.resident
        assert any(loads[flag].key.build in note for note in found["notes"])
    await serve.stop()
    other = await memory(serve, micro_chat, "--context", "8192", "--devices", "0")
    assert not other["measured"]
    assert other["host"]["kv"] == 2 * loads[None].took.host.kv
    assert not (await memory(serve, micro_embed, *CONTEXT, "--devices", "0"))["measured"]
    assert not (await memory(serve, micro_chat, *CONTEXT))["measured"]


def pooling(load: Load) -> str | None:
    """The argument that makes an embedder or a ranker."""
    words = load.key.arguments.split()
    return next((flag for flag in ("--embedding", "--reranking") if flag in words), None)


async def test_a_load_with_a_draft_on_two_devices_is_known_by_its_settings_not_by_their_names(
    serve: Serve, micro_chat: Path, rpc_pair: list[str]
) -> None:
    model = {"path": str(micro_chat), "draft": str(micro_chat), "context": 4096, "slots": 2}
    serve.write(
        {"a": {**model, "kv_type": {"k": "f32", "v": "f16"}}},
        engine={"rpc": rpc_pair},
        placement={"a": {"devices": [0, 1], "tensor_split": [1, 1]}},
    )
    await serve.start()
    await serve.ready("a")
    (load,) = await learned(serve, 1)
    await serve.stop()
    launch = (*CONTEXT, "--slots", "2", "--kv-type", "f32,f16", "--draft", str(micro_chat))
    on_two = (*launch, "--backend", "rpc", "--devices", "2")
    found = await memory(serve, micro_chat, *on_two)
    assert found["measured"]
    assert adds_up(found)
    for row, took in zip(found["devices"], load.took.devices, strict=True):
        assert (row["weights"], row["kv"], row["compute"], row["draft"]) == (
            took.weights,
            took.kv,
            took.compute,
            took.draft,
        )
        assert row["overhead"] == peak(took.overhead or 0)
    # Of three units 1,1 and 2,1 make the same split; 1,2 makes another one.
    assert (await memory(serve, micro_chat, *on_two, "--tensor-split", "2,1"))["measured"]
    assert not (await memory(serve, micro_chat, *on_two, "--tensor-split", "1,2"))["measured"]
    assert not (await memory(serve, micro_chat, *launch, "--devices", "2"))["measured"]
    assert not (await memory(serve, micro_chat, *on_two, "--unified"))["measured"]
