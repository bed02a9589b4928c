"""Footprints against what real servers allocate: models of each family with their first layers.

The vocabulary is small as well, so that each loads in a moment; all other dimensions are real.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.engine.comparison import OVER_MIB, UNDER_MIB
from tests.engine.loaded import Allocated, load
from tests.engine.oracle import MIB, rpc_devices
from tests.gguf_models import Cut, header_of, write
from tests.gguf_models.draft import Vocabulary

from pannier.gguf.footprint.estimate import footprint
from pannier.gguf.footprint.profile import profile_of
from pannier.gguf.footprint.projector import projector_of
from pannier.gguf.footprint.values import Footprint, LaunchSettings

pytestmark = pytest.mark.timeout(120)

WORDS = 8192
NOTHING_LESS: Mapping[str, int] = {}
ROUNDED = 0.0051
"""The log rounds each buffer to hundredths."""


@dataclass(frozen=True)
class Launch:
    """A model, the layers and experts that are left of it, and how it is started."""

    model: str
    layers: int
    settings: LaunchSettings
    changed: dict[str, int]

    def __str__(self) -> str:
        one = self.settings
        kind = "" if one.pooling == "none" else f", {one.pooling}"
        slots = f", {one.slots} slots" + (" shared" if one.unified else "")
        return f"{self.model}, {len(one.devices)} devices, {one.kv_v}{kind}{slots}"


def launch(
    model: str,
    layers: int,
    devices: int = 1,
    less: Mapping[str, int] = NOTHING_LESS,
    **settings: Any,
) -> Launch:
    if devices == 2:
        settings.setdefault("split", (1, 1))
    made = LaunchSettings(**{"context": 2048, "devices": ("rpc",) * devices, **settings})
    return Launch(model, layers, made, {"vocabulary": WORDS, **less})


Q8: dict[str, Any] = {"kv_k": "q8_0", "kv_v": "q8_0"}
NARROW = {"width": 2048, "inner": 4096, "heads": 16, "experts": 8, "lead": 1}
EMBED: dict[str, Any] = {"pooling": "embed", "batch": 512}
RERANK: dict[str, Any] = {"pooling": "rerank", "batch": 512}

# A last device with a single layer takes less than is told, since only the rows that are asked
# for leave that layer: each has two. States are loaded on one device: with two, the first decode
# of this build ends the RPC server.
LAUNCHES = [
    launch("llama32-1b", 4),
    launch("llama32-1b", 6, 2, slots=3, context=1100),
    launch("llama32-1b", 6, 2, slots=3, unified=True, **Q8),
    launch("phi35-mini", 5, 2, **Q8),
    launch("qwen3-4b", 5, 2, ubatch=128),
    launch("qwen15-moe-a27b", 5, 2, {"experts": 8}),
    launch("gpt-oss-20b", 2, 1, {"experts": 4}, slots=2),
    launch("deepseek-v3", 6, 2, NARROW, **Q8),
    launch("minicpm3-4b", 4),
    launch("olmo3-7b", 5, 2, context=5000, slots=2),
    launch("olmo3-7b", 4, context=5000, slots=2, unified=True),
    launch("gemma3-4b", 7, 2),
    launch("gemma4-e4b", 8),
    launch("mamba2-27b", 3, slots=2),
    launch("granite4-h-tiny", 3, slots=3),
    launch("falcon-h1-7b", 2, **Q8),
    launch("lfm2-12b", 4),
    launch("qwen35-35b-a3b", 6, 1, {"experts": 16}),
    launch("rwkv7-29b", 2),
    launch("qwen3-embed-06b", 6, 2, **EMBED),
    launch("qwen3-rerank-06b", 4, slots=2, **RERANK),
    launch("bge-m3", 5, 2, **EMBED),
    launch("bge-reranker-like", 3, context=512, **RERANK),
    launch("modernbert-base", 4, **EMBED),
    launch("embeddinggemma-300m", 7, **EMBED),
]


@pytest.fixture(scope="module")
def endpoints(llama_server: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    log = tmp_path_factory.mktemp("devices") / "rpc.log"
    with rpc_devices(llama_server, 2, log) as made:
        yield made


def compare(mine: Footprint, real: Allocated, endpoints: list[str]) -> None:
    for number, (share, endpoint) in enumerate(zip(mine.devices, endpoints, strict=False)):
        weights, kv, compute = real.model.on(endpoint)
        assert share.weights / MIB == pytest.approx(weights, abs=ROUNDED), f"weights of {number}"
        assert share.kv / MIB == pytest.approx(kv, abs=2 * ROUNDED), f"cache of {number}"
        over = share.compute / MIB - compute
        assert -UNDER_MIB <= over <= OVER_MIB, f"compute of {number}: {over:+.2f} on {compute}"


@pytest.mark.parametrize("one", LAUNCHES, ids=str)
def test_a_real_load_takes_what_the_footprint_says(
    one: Launch, llama_server: str, endpoints: list[str], tmp_path: Path
) -> None:
    # A reranker's server reads a pair once to learn how it is written, which takes words.
    words: Vocabulary = "full" if one.settings.pooling == "rerank" else "none"
    cut = Cut(words, one.layers)
    file = write(tmp_path, one.model, cut, **one.changed)
    real = load(llama_server, file, one.settings, endpoints, "--no-warmup")
    mine = footprint(profile_of(header_of(one.model, cut, **one.changed)), one.settings)
    assert real.model.weights
    assert real.model.compute
    compare(mine, real, endpoints)


@pytest.mark.parametrize("devices", [1, 2])
def test_a_projector_is_on_the_first_device_with_all_that_an_image_takes(
    devices: int, llama_server: str, endpoints: list[str], tmp_path: Path
) -> None:
    cut = Cut("full", 8)
    file = write(tmp_path, "gemma3-4b", cut, vocabulary=WORDS)
    beside = write(tmp_path, "mmproj-gemma3-4b", Cut(layers=3))
    settings = launch("gemma3-4b", 8, devices).settings
    real = load(llama_server, file, settings, endpoints, "--mmproj", str(beside))
    profile = profile_of(header_of("gemma3-4b", cut, vocabulary=WORDS))
    projector = projector_of(header_of("mmproj-gemma3-4b", Cut(layers=3)))
    mine = footprint(profile, settings, projector=projector)
    compare(mine, real, endpoints)
    assert real.projector > 100, "the log no longer tells the size of a projector"
    first, *others = mine.devices
    encoder = sum(mib for name, mib in real.encoder.items() if endpoints[0] in name)
    taken = real.projector + encoder
    assert -UNDER_MIB <= first.projector / MIB - taken <= OVER_MIB
    assert not any(share.projector for share in others)
    assert not any(endpoints[1] in name for name in real.encoder)


@pytest.mark.parametrize("devices", [1, 2])
def test_a_draft_is_where_the_model_is_with_all_that_it_takes(
    devices: int, llama_server: str, endpoints: list[str], tmp_path: Path
) -> None:
    settings = launch("llama32-1b", 6, devices, slots=2).settings
    files = {}
    for name, layers in (("model", 6), ("draft", 5)):
        (tmp_path / name).mkdir()
        files[name] = write(tmp_path / name, "llama32-1b", Cut("full", layers), vocabulary=WORDS)
    more = ("-md", str(files["draft"]), "--no-warmup")
    real = load(llama_server, files["model"], settings, endpoints, *more)
    whole, small = (
        profile_of(header_of("llama32-1b", Cut("full", layers), vocabulary=WORDS))
        for layers in (6, 5)
    )
    mine = footprint(whole, settings, draft=small)
    compare(mine, real, endpoints)
    assert_drafts(mine, real, endpoints)


def test_layers_that_predict_further_tokens_draft_with_a_cache_of_their_own(
    llama_server: str, endpoints: list[str], tmp_path: Path
) -> None:
    settings = launch("qwen35-35b-a3b", 6, slots=2, mtp=True).settings
    cut, less = Cut("full", 6), {"vocabulary": WORDS, "experts": 16}
    file = write(tmp_path, "qwen35-35b-a3b", cut, **less)
    real = load(llama_server, file, settings, endpoints, "--no-warmup")
    mine = footprint(profile_of(header_of("qwen35-35b-a3b", cut, **less)), settings)
    compare(mine, real, endpoints)
    assert_drafts(mine, real, endpoints)


def assert_drafts(mine: Footprint, real: Allocated, endpoints: list[str]) -> None:
    assert real.draft.compute, "the server did not draft"
    for share, endpoint in zip(mine.devices, endpoints, strict=False):
        over = share.draft / MIB - sum(real.draft.on(endpoint))
        assert -UNDER_MIB <= over <= OVER_MIB, f"{over:+.2f}"
