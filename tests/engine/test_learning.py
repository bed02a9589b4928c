"""What loads really took: read from the engine's lines, kept in the state folder, found again."""

import asyncio
import contextlib
import re
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path

import msgspec
import pytest
from tests.engine.oracle import rpc_devices
from tests.engine.serving import PATIENCE_S, Failed, Serve
from tests.gguf_writer import micro_chat as write_chat

from pannier.devices.inventory import Device
from pannier.engine.locate import probe_llama_server
from pannier.fleet.learned_store import LearnedStore, key_of
from pannier.fleet.learner import Learner
from pannier.gguf.footprint.estimate import footprint
from pannier.gguf.footprint.profile import profile_of
from pannier.gguf.footprint.values import Footprint, LaunchSettings
from pannier.gguf.header import read_header
from pannier.gguf.learned import Learned, Load, decode
from pannier.gguf.measured import Measurement, drift
from pannier.gguf.model_files import ModelFiles
from pannier.progress.parse import Report, Said
from pannier.render.argv import Launch

MIB = 1024 * 1024

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def rpc_pair(llama_server: str, tmp_path: Path) -> Iterator[list[str]]:
    """Two devices, each a ggml-rpc-server of its own."""
    with rpc_devices(llama_server, 2, tmp_path / "rpc.log") as endpoints:
        yield endpoints


def learned_file(serve: Serve) -> Path:
    return serve.state_folder / "learned.toml"


def read(serve: Serve) -> Learned:
    found: Learned | None = None
    with contextlib.suppress(FileNotFoundError):
        found = decode(learned_file(serve).read_bytes())
    return found or Learned()


async def learned(serve: Serve, count: int, since: float = 0.0) -> tuple[Load, ...]:
    """Waits until so many loads are in the file, all of them learned after `since`."""
    end = time.monotonic() + PATIENCE_S
    while True:
        loads = tuple(load for load in read(serve).loads if load.took.at >= since)
        if len(loads) >= count:
            assert len(loads) == count
            return loads
        if time.monotonic() > end:
            raise Failed(f"{len(loads)} of {count} loads are learned")
        await asyncio.sleep(0.05)


def printed(log_file: Path) -> dict[str, dict[str, int]]:
    """What an engine's own log says, read by an eye of its own: bytes by buffer and word."""
    found: dict[str, dict[str, int]] = {}
    pattern = re.compile(r" (\S+) +(model|KV|RS|output|compute) buffer size = +([\d.]+) MiB")
    for line in log_file.read_text(errors="replace").splitlines():
        if match := pattern.search(line):
            name, word, size = match[1], match[2], round(float(match[3]) * MIB)
            row = found.setdefault(name, {})
            row[word] = size if word in ("output", "compute") else row.get(word, 0) + size
    return found


async def told(serve: Serve, words: str) -> None:
    """Waits until serve has said this in its log."""
    end = time.monotonic() + PATIENCE_S
    while words not in serve.log_file.read_text(errors="replace"):
        if time.monotonic() > end:
            raise Failed(f"not in the log: {words}")
        await asyncio.sleep(0.05)


async def test_a_load_on_two_devices_is_remembered_as_the_engine_printed_it(
    serve: Serve, micro_chat: Path, rpc_pair: list[str], llama_server: str, tmp_path: Path
) -> None:
    own_log = tmp_path / "engine.log"
    serve.write(
        {"a": {"path": str(micro_chat), "context": 4096, "args": ["--log-file", str(own_log)]}},
        engine={"rpc": rpc_pair},
        placement={"a": {"devices": [0, 1], "tensor_split": [1, 1]}},
    )
    await serve.start()
    await serve.ready("a")
    (load,) = await learned(serve, 1)
    log = printed(own_log)
    assert len(load.took.devices) == len(load.key.devices) == 2
    for endpoint, took in zip(rpc_pair, load.took.devices, strict=True):
        said = log[f"RPC0[{endpoint}]"]
        assert took.weights == said["model"] > 0
        assert took.kv == said.get("KV", 0)
        assert took.compute == said["compute"]
    assert sum(took.kv for took in load.took.devices) > 0
    assert sum(took.compute for took in load.took.devices) > 0
    host = load.took.host
    assert host.compute == log["CPU"]["compute"] + log["CPU"]["output"]
    assert host.mapped + host.resident == sum(
        row["model"] for name, row in log.items() if name.startswith("CPU") and "model" in row
    )
    build, _ = await probe_llama_server(llama_server)
    assert (load.key.build, load.took.build, load.architecture) == (build, build, "llama")
    assert "-c 4096" in load.key.arguments
    assert all(endpoint in name for endpoint, name in zip(rpc_pair, load.key.devices, strict=True))
    await serve.stop()
    assert read(serve).loads == (load,)


async def test_models_on_the_cpu_are_remembered_each_and_once(
    serve: Serve, micro_chat: Path, micro_embed: Path
) -> None:
    models = {
        "a": {"path": str(micro_chat), "context": 4096},
        "e": {"path": str(micro_embed), "context": 4096, "role": "embed"},
    }
    serve.write(models)
    await serve.start()
    await serve.ready()
    first = await learned(serve, 2)
    assert {load.architecture for load in first} == {"llama", "qwen3"}
    assert all(load.took.devices == () for load in first)
    for load in first:
        assert load.took.host.kv > 0
        assert load.took.host.compute > 0
        assert load.took.host.mapped + load.took.host.resident > 0
    await serve.stop()

    # A second run remembers, and what is loaded again is the same load.
    since = time.time()
    await serve.start()
    await serve.ready()
    second = await learned(serve, 2, since)
    assert {load.key for load in second} == {load.key for load in first}
    sizes = {load.key: load.took.host for load in first}
    assert {load.key: load.took.host for load in second} == sizes
    assert len(read(serve).loads) == 2
    await serve.stop()


async def test_another_context_is_another_load_and_another_name_is_not(
    serve: Serve, micro_chat: Path
) -> None:
    serve.write({"a": {"path": str(micro_chat), "context": 4096}})
    await serve.start()
    await serve.ready("a")
    (small,) = await learned(serve, 1)
    serve.write({"a": {"path": str(micro_chat), "context": 2048}})
    loads = await learned(serve, 2)
    kv = {"-c 4096" in load.key.arguments: load.took.host.kv for load in loads}
    assert kv[True] == 2 * kv[False] == small.took.host.kv

    since = time.time()
    serve.write({"b": {"path": str(micro_chat), "context": 4096}})
    (again,) = await learned(serve, 1, since)
    assert again.key == small.key
    assert len(read(serve).loads) == 2


async def test_nothing_is_written_where_the_config_does_not_want_it(
    serve: Serve, micro_chat: Path
) -> None:
    models = {"a": {"path": str(micro_chat), "context": 4096}}
    serve.write(models, memory={"learn": False})
    await serve.start()
    await serve.ready("a")
    await told(serve, "a: took ")
    await serve.stop()
    assert not learned_file(serve).exists()


async def test_a_damaged_file_is_set_aside_and_begun_anew(serve: Serve, micro_chat: Path) -> None:
    serve.write({"a": {"path": str(micro_chat), "context": 4096}})
    serve.state_folder.mkdir()
    learned_file(serve).write_bytes(b'version = 1\n[[loads]]\nkey = "\xff')
    await serve.start()
    await serve.ready("a")
    await learned(serve, 1)
    aside = serve.state_folder / "learned.toml.damaged"
    assert aside.read_bytes().endswith(b"\xff")
    assert "learned.toml was damaged" in serve.log_file.read_text()
    await serve.stop()


async def test_a_file_that_is_replaced_by_another_model_is_another_load(
    serve: Serve, tmp_path: Path
) -> None:
    model = write_chat(tmp_path / "model.gguf")
    serve.write({"a": {"path": str(model), "context": 4096}})
    await serve.start()
    await serve.ready("a")
    await learned(serve, 1)
    with model.open("ab") as file:
        file.write(b"\0" * 4096)
    serve.write({"a": {"path": str(model), "context": 4096, "slots": 2}})
    loads = await learned(serve, 2)
    assert loads[0].key.files != loads[1].key.files


async def test_a_verbosity_of_the_person_is_kept_and_then_nothing_is_learned(
    serve: Serve, micro_chat: Path, tmp_path: Path
) -> None:
    own_log = tmp_path / "engine.log"
    args = ["--log-verbosity", "3", "--log-file", str(own_log)]
    serve.write({"quiet": {"path": str(micro_chat), "context": 4096, "args": args}})
    await serve.start()
    await serve.ready("quiet")
    await told(serve, "quiet: its memory is not learned: llama-server printed no sizes")
    await serve.stop()
    assert "model loaded" in own_log.read_text()
    assert printed(own_log) == {}
    assert not learned_file(serve).exists()


async def test_a_draft_model_is_remembered_apart(
    serve: Serve, micro_chat: Path, rpc_pair: list[str], tmp_path: Path
) -> None:
    own_log = tmp_path / "engine.log"
    model = {"path": str(micro_chat), "draft": str(micro_chat), "context": 4096}
    serve.write(
        {"a": {**model, "args": ["--log-file", str(own_log)]}},
        engine={"rpc": rpc_pair},
        placement={"a": {"devices": [0, 1], "tensor_split": [1, 1]}},
    )
    await serve.start()
    await serve.ready("a")
    (load,) = await learned(serve, 1)
    first, found, second = own_log.read_text(errors="replace").partition("loading draft model")
    assert found
    for name, text in (("main", first), ("draft", second)):
        (tmp_path / name).write_text(text)
    main, draft = printed(tmp_path / "main"), printed(tmp_path / "draft")
    for endpoint, took in zip(rpc_pair, load.took.devices, strict=True):
        name = f"RPC0[{endpoint}]"
        assert took.weights + took.kv + took.compute == sum(main[name].values())
        assert took.draft == sum(draft[name].values()) > 0
    assert load.took.host.draft == sum(
        sum(row.values()) for name, row in draft.items() if name.startswith("CPU")
    )
    await serve.stop()


class Listening:
    """A service that has no devices and writes down what it is told."""

    def __init__(self) -> None:
        self.told: list[tuple[str, Measurement, tuple[str, ...]]] = []
        self.news = asyncio.Event()

    def learns(self) -> bool:
        return True

    def devices_of(self, labels: Sequence[str]) -> tuple[Device, ...] | None:
        return () if not labels else None

    async def held_by(self, pid: int) -> dict[str, int]:
        return {}

    def took(self, instance: str, took: Measurement, notes: tuple[str, ...]) -> None:
        self.told.append((instance, took, notes))
        self.news.set()


@contextlib.asynccontextmanager
async def learning(folder: Path) -> AsyncIterator[tuple[Learner, Listening]]:
    learner, listening = Learner(LearnedStore(folder)), Listening()
    learner.follow(listening)
    task = asyncio.create_task(learner.run(), name="a learner")
    try:
        yield learner, listening
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def in_store(learner: Learner) -> None:
    """Waits until something is learned."""
    end = time.monotonic() + PATIENCE_S
    while True:
        if learner.store.learned.loads:
            return
        assert time.monotonic() < end, "nothing is learned"
        await asyncio.sleep(0.02)


def on_the_cpu(program: str, path: Path, **changes: object) -> Launch:
    launch = Launch(
        instance="a",
        argv=(program, "-m", str(path), "-c", "4096", "-np", "1", "-fit", "off"),
        env={},
        ttl_s=0.0,
        preload=True,
        load_timeout_s=60,
        file_bytes=path.stat().st_size,
        devices=(),
    )
    return msgspec.structs.replace(launch, **changes)


def estimated(path: Path, context: int) -> Footprint:
    with path.open("rb") as file:
        header = read_header(file, path.stat().st_size)
    return footprint(profile_of(header), LaunchSettings(context=context, devices=()))


def report(**sizes: int) -> Report:
    return Report(
        v=1, instance="a", launcher=1, pid=2, port=3, phase="ready", elapsed_s=0.0,
        memory={"CPU": sizes}, engine=Said(),
    )  # fmt: skip


async def test_a_cache_that_is_not_what_the_rules_say_is_told_and_learned(
    llama_server: str, micro_chat: Path, tmp_path: Path
) -> None:
    rules = estimated(micro_chat, 4096)
    files = ModelFiles(path=str(micro_chat))
    launch = on_the_cpu(llama_server, micro_chat, estimate=rules)
    async with learning(tmp_path) as (learner, listening):
        said = report(weights=rules.host.weights, kv=rules.host.kv + 2 * MIB, compute=1)
        learner.post(launch, files, said)
        await asyncio.wait_for(listening.news.wait(), PATIENCE_S)
        ((instance, took, notes),) = listening.told
        assert (instance, took.host.kv) == ("a", rules.host.kv + 2 * MIB)
        (note,) = notes
        assert "KV cache in RAM" in note
        await in_store(learner)
    found = LearnedStore(tmp_path).learned
    key = key_of(launch, files, (), took.build)
    assert found.find(key) == took
    planned = found.apply(rules, key, "llama")
    assert planned.measured
    assert planned.host.kv == rules.host.kv + 2 * MIB
    assert drift(planned, took) == ()


@pytest.mark.parametrize("kind", ["fit", "newer-build", "gone-device", "changed-file", "no-lines"])
async def test_what_is_in_doubt_is_not_learned(
    llama_server: str, tmp_path: Path, kind: str
) -> None:
    model = write_chat(tmp_path / "model.gguf")
    files = ModelFiles(path=str(model))
    sure = on_the_cpu(llama_server, model)
    launch, said = sure, report(kv=5)
    match kind:
        case "fit":
            launch = on_the_cpu(llama_server, model, argv=(*sure.argv, "-fit", "on"))
        case "newer-build":
            said = msgspec.structs.replace(said, engine=Said(build="b1"))
        case "gone-device":
            launch = on_the_cpu(llama_server, model, devices=("CUDA7",))
        case "changed-file":
            said = msgspec.structs.replace(said, elapsed_s=3600.0)
        case _:
            said = msgspec.structs.replace(said, memory=None)
    async with learning(tmp_path) as (learner, _):
        learner.post(launch, files, said)
        # They are taken one after the other: this one is behind.
        learner.post(sure, files, report(kv=77))
        await in_store(learner)
    assert [load.took.host.kv for load in LearnedStore(tmp_path).learned.loads] == [77]


async def test_a_load_on_the_cpu_is_what_the_rules_say(serve: Serve, micro_chat: Path) -> None:
    serve.write({"a": {"path": str(micro_chat), "context": 4096}})
    await serve.start()
    await serve.ready("a")
    (load,) = await learned(serve, 1)
    assert drift(estimated(micro_chat, 4096), load.took) == ()
    assert drift(estimated(micro_chat, 32768), load.took) != ()
    await serve.stop()
