"""What a llama-server takes of a card beside its buffers, from the driver's word to the next plan.

The engine is the fake one behind a front that lists cards and, once started, stands in the process
list of the stand-in for NVIDIA's library: a real process under its real id.
"""

import asyncio
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.engine.conftest import MakeServe
from tests.engine.programs import Programs
from tests.engine.serving import PATIENCE_S, Failed, Serve
from tests.launching import FAKE_ENGINE
from tests.nvml import rigs
from tests.nvml.stand_in import StandIn, build

from pannier.gguf.learned import Load, decode
from pannier.gguf.measured import peak

MIB = 1024 * 1024

pytestmark = pytest.mark.timeout(150)

FRONT = """#!{python}
import json, os, sys
if "--version" in sys.argv:
    print("version: 11434 (0123abc)")
elif "--help" in sys.argv:
    print("usage")
elif "--list-devices" in sys.argv:
    print("Available devices:\\n" + {listing!r})
else:
    rig = json.loads({machine!r})
    card = rig["cards"][0]
    seen = {{"pid": os.getpid() + {shift}, "bytes": {used}}}
    card.update(used=card["used"] + {used}, free=card["free"] - {used}, compute=[seen])
    with open({rig!r} + ".new", "w") as file:
        json.dump(rig, file)
    os.replace({rig!r} + ".new", {rig!r})
    os.execv({python!r}, [{python!r}, {engine!r}, *sys.argv[1:], "--log-text", {lines!r}])
"""

LINES = """\
0.00.011.709 I llama_prepare_model_devices: using device CUDA0 (NVIDIA GeForce RTX 4090) (0000:01:00.0) - 24078 MiB free
0.00.019.020 I load_tensors:   CPU_Mapped model buffer size =     0.10 MiB
0.00.019.021 I load_tensors:        CUDA0 model buffer size =   100.00 MiB
0.00.021.654 I llama_kv_cache:      CUDA0 KV buffer size =    20.00 MiB
0.00.025.202 I sched_reserve:       CUDA0 compute buffer size =    30.00 MiB
0.00.025.209 I sched_reserve:         CPU compute buffer size =     9.00 MiB
"""  # noqa: E501
BUFFERS = 150 * MIB


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def card(library: Path, tmp_path: Path) -> StandIn:
    """A driver with one card."""
    made = StandIn(library, tmp_path)
    made.put(rigs.ONE)
    return made


OnCard = Callable[..., Serve]


@pytest.fixture
def on_card(
    make_serve: MakeServe, programs: Programs, card: StandIn, tmp_path: Path, micro_chat: Path
) -> OnCard:
    """Makes a `pannier serve` with one model on the card; `used` is what its engine will hold."""

    def make(used: int, shift: int = 0) -> Serve:
        server = tmp_path / "engine" / "llama-server"
        server.parent.mkdir()
        server.write_text(
            FRONT.format(
                python=sys.executable, rig=str(card.path), used=used, shift=shift, lines=LINES,
                listing="  CUDA0: NVIDIA GeForce RTX 4090 (24078 MiB, 24000 MiB free)",
                engine=FAKE_ENGINE, machine=rigs.ONE.to_json().decode(),
            )
        )  # fmt: skip
        server.chmod(0o755)
        seen = {name: card.environment()[name] for name in ("LD_LIBRARY_PATH", "NVML_RIG")}
        serve = make_serve(
            programs={**programs.environ, **seen, "PANNIER_LLAMA_SERVER": str(server)}
        )
        serve.write({"a": {"path": str(micro_chat), "context": 4096}})
        return serve

    return make


async def learned(serve: Serve, holds: Callable[[Load], bool] = lambda _: True) -> Load:
    """Waits for the one load that is remembered to be as it should."""
    end = time.monotonic() + PATIENCE_S
    path = serve.state_folder / "learned.toml"
    while True:
        found = decode(path.read_bytes()) if path.exists() else None
        if found is not None and found.loads and holds(found.loads[0]):
            (load,) = found.loads
            return load
        if time.monotonic() > end:
            raise Failed(f"not learned: {found}")
        await asyncio.sleep(0.05)


async def device(serve: Serve) -> Any:
    """The one device, as GET /v1/placement shows it."""
    status, text = await serve.get("/v1/placement")
    assert status == 200, text
    (found,) = json.loads(text)["gpus"]
    return found


async def test_what_the_driver_counts_beside_the_buffers_is_in_the_next_plan(
    on_card: OnCard,
) -> None:
    serve = on_card(BUFFERS + 333 * MIB)
    await serve.start()
    await serve.ready("a")
    load = await learned(serve)
    (took,) = load.took.devices
    assert (took.buffers, took.overhead) == (BUFFERS, 333 * MIB)
    assert load.key.devices == (rigs.ONE.cards[0].uuid,)
    assert "and 333.00 MiB beside its buffers" in serve.log_file.read_text()
    guessed = (await device(serve))["planned_bytes"]
    assert guessed > BUFFERS, "nothing was known yet"

    # Under another name it is the same load, and now it is known whole.
    path = serve.config.read_text()
    serve.write(path.replace("[models.a]", "[models.b]"))
    await serve.ready("b")
    seen = await device(serve)
    assert seen["planned_bytes"] == BUFFERS + peak(333 * MIB) != guessed
    await serve.stop()


async def test_what_a_later_reading_shows_more_is_remembered_too(
    on_card: OnCard, card: StandIn
) -> None:
    """Long prompts make it grow (ik_llama.cpp#687: 34 KiB for each token of an MLA model)."""
    serve = on_card(BUFFERS + 333 * MIB)
    await serve.start()
    await serve.ready("a")
    await learned(serve)
    more = BUFFERS + 700 * MIB
    process = rigs.Process(pid=await serve.pid("a"), bytes=more)
    card.put(rigs.ONE.with_card(0, used=more, compute=(process,)))
    config = serve.config.read_text()
    serve.write(config + "\n[models.b]\npath = '/nowhere/b.gguf'\n")  # a reload reads the driver
    load = await learned(serve, lambda load: load.took.devices[0].overhead == 700 * MIB)
    assert load.took.devices[0].buffers == BUFFERS
    await serve.stop()


@pytest.mark.parametrize("kind", ["foreign-ids", "no-ids", "not-allowed"])
async def test_in_a_container_our_own_model_is_not_taken_for_somebody_else_s(
    on_card: OnCard, card: StandIn, kind: str
) -> None:
    held = BUFFERS + 333 * MIB
    serve = on_card(held, 1_000_000)
    await serve.start()
    await serve.ready("a")
    await learned(serve)
    base = rigs.PROCESSES_DENIED if kind == "not-allowed" else rigs.ONE
    seen = () if kind == "no-ids" else (rigs.Process(pid=2_000_000, bytes=held),)
    (one, *_) = base.cards
    others = 3 * 1024 * MIB
    changes = {"used": one.used + held + others, "free": one.free - held - others, "compute": seen}
    alone = msgspec.structs.replace(base, cards=base.cards[:1])
    card.put(alone.with_card(0, **changes))
    config = serve.config.read_text()
    serve.write(config + "\n[models.b]\npath = '/nowhere/b.gguf'\n")
    await serve.wait_for(lambda seen: any(each["id"] == "b" for each in seen["data"]))
    found = await device(serve)
    assert found["used_by_us"] > held
    assert others - 256 * MIB < found["used_by_others"] <= others
    await serve.stop()


@pytest.mark.parametrize(
    ("used", "shift"),
    [(BUFFERS + 333 * MIB, 1_000_000), (BUFFERS - MIB, 0), (BUFFERS + (9 << 30), 0)],
    ids=["foreign-ids", "less-than-its-buffers", "far-more"],
)
async def test_what_the_driver_does_not_tell_is_not_made_up(
    on_card: OnCard, used: int, shift: int
) -> None:
    serve = on_card(used, shift)
    await serve.start()
    await serve.ready("a")
    (took,) = (await learned(serve)).took.devices
    assert (took.buffers, took.overhead) == (BUFFERS, None)
    await serve.stop()
