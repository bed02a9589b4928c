"""Against numbers of llama.cpp's own planner: weights and cache to the byte, compute by the rule.

`planned.json` are its numbers for the models of tests/gguf_models; tests/engine asks it anew, for
more models and settings, where an engine is installed.
"""

import json
from functools import cache
from pathlib import Path

import pytest
from tests.gguf_models import header_of

from pannier.gguf.footprint.estimate import footprint
from pannier.gguf.footprint.profile import Profile, profile_of
from pannier.gguf.footprint.values import Footprint, LaunchSettings

MIB = 1 << 20
PLANNED = json.loads(Path(__file__).with_name("planned.json").read_text())["models"]

UNDER = 8 * MIB
OVER = 64 * MIB
SHARE = 0.02
NO_PIPELINE_OVER_RPC = 10_435


@cache
def profile(name: str) -> Profile:
    return profile_of(header_of(name))


def settings(name: str, model: str) -> LaunchSettings:
    """The launch that a name stands for: '2dev c32k np4u 1,1 pp4' has four unified slots."""
    parts = name.split()
    devices = int(parts[0][0])
    context = int(parts[1][1:-1]) * 1024
    slots, unified = int(parts[2][2]), parts[2].endswith("u")
    rest = parts[3:]
    split = next((tuple(map(int, part.split(","))) for part in rest if "," in part), None)
    embeds = "embed" in model or "rerank" in model or model.startswith("bge")
    outputs = 512 if "nout512" in rest else None
    return LaunchSettings(
        context=context if unified else context // slots,
        slots=slots,
        unified=unified,
        kv_k="q8_0" if "q8" in rest else "f16",
        kv_v="q8_0" if "q8" in rest else "f16",
        flash_attention="off" if "faoff" in rest else "auto",
        ubatch=2048 if "ub2k" in rest else 512,
        swa_full="swafull" in rest,
        gpu_layers=10 if "ngl10" in rest else None,
        devices=("rpc",) * devices,
        split=split,
        pooling="embed" if embeds else "none",
        outputs=outputs,
        build=11_434 if "pp4" in rest else NO_PIPELINE_OVER_RPC,
    )


def cases() -> list[tuple[str, str]]:
    return [(model, name) for model, rows in PLANNED.items() for name in rows]


def found(model: str, name: str) -> tuple[Footprint, list[list[int]]]:
    return footprint(profile(model), settings(name, model)), PLANNED[model][name]


@pytest.mark.parametrize(("model", "name"), cases())
def test_weights_and_cache_are_those_of_the_planner(model, name):
    print_, rows = found(model, name)
    ours = [[share.weights, share.kv] for share in print_.devices]
    assert ours == [row[:2] for row in rows[:-1]]
    assert print_.host.kv == rows[-1][1]
    if "ngl" not in name:
        assert print_.host.weights == rows[-1][0]


@pytest.mark.parametrize(("model", "name"), cases())
def test_compute_is_hardly_ever_below_and_little_above(model, name):
    print_, rows = found(model, name)
    if print_.indivisible and name[0] != "1":
        pytest.skip("is never split")
    for share, row in zip(print_.devices, rows, strict=False):
        error = share.compute - row[2]
        assert -UNDER <= error <= max(OVER, SHARE * sum(row)), (share.compute, row[2])


@pytest.mark.parametrize("model", list(PLANNED))
def test_the_hosts_buffer_is_not_below_where_all_layers_are_on_devices(model):
    print_, rows = found(model, "1dev c32k np1")
    assert print_.host.compute >= rows[-1][2] - UNDER


def test_every_model_of_the_table_is_exact():
    assert all(profile(model).exact for model in PLANNED)
