"""What is not known or not usable: an upper bound that says so, and never an exception."""

import msgspec
import pytest
from tests.gguf_models import MODELS, header_of

from pannier.gguf.footprint.estimate import footprint
from pannier.gguf.footprint.prices import prices
from pannier.gguf.footprint.profile import profile_of
from pannier.gguf.footprint.projector import projector_of
from pannier.gguf.footprint.values import LaunchSettings
from pannier.gguf.header import Array, Header

BASE = LaunchSettings(context=8192)
SETTINGS = [
    BASE,
    msgspec.structs.replace(BASE, slots=4, kv_k="q8_0", kv_v="q8_0"),
    msgspec.structs.replace(BASE, devices=("cuda", "cuda", "cuda"), split=(1, 2, 3)),
    msgspec.structs.replace(BASE, flash_attention="off", ubatch=1024),
    msgspec.structs.replace(BASE, gpu_layers=7, cpu_moe=None),
]
EMPTY = Header(version=3, metadata={}, tensors=(), file_size=0)


def renamed(header: Header, name: str) -> Header:
    """The same header of an architecture of another name."""
    old = str(header.metadata["general.architecture"])
    metadata = {
        name + key.removeprefix(old) if key.startswith(f"{old}.") else key: value
        for key, value in header.metadata.items()
    }
    return msgspec.structs.replace(header, metadata={**metadata, "general.architecture": name})


@pytest.mark.parametrize("name", list(MODELS))
def test_an_architecture_of_no_known_name_takes_at_least_what_the_known_one_does(name):
    header = header_of(name)
    known, unknown = profile_of(header), profile_of(renamed(header, "nobody"))
    assert not unknown.exact
    assert "nobody" in unknown.notes[0]
    for settings in SETTINGS:
        real, bound = footprint(known, settings), footprint(unknown, settings)
        for ours, theirs in zip(bound.devices, real.devices, strict=True):
            assert ours.kv >= theirs.kv
            assert ours.compute >= theirs.compute
        more = sum(d.weights for d in bound.devices) - sum(d.weights for d in real.devices)
        assert more >= 0


def test_a_file_that_says_nothing_is_a_bound_of_what_it_holds():
    found = profile_of(EMPTY)
    assert not found.exact
    assert footprint(found, BASE).devices[0].weights == 0
    assert prices(found, BASE).units


def test_tensors_alone_give_a_bound():
    header = header_of("llama31-8b")
    named = {"general.architecture": "nobody"}
    bare = profile_of(msgspec.structs.replace(header, metadata=named))
    found, real = footprint(bare, BASE).devices[0], footprint(profile_of(header), BASE).devices[0]
    assert found.weights == real.weights
    assert found.kv >= real.kv
    assert found.compute >= real.compute


@pytest.mark.parametrize(
    "odd",
    ["text", -1, 1e300, float("nan"), float("inf"), 2**63, True, None]
    + [Array(kind=4, count=3, values=v) for v in ((), (1,), (-1, 2, 3), (2**40, 1, 1), None)],
    ids=lambda odd: type(odd).__name__ + str(odd)[:24].replace(" ", ""),
)
@pytest.mark.parametrize("key", ["block_count", "embedding_length", "attention.head_count"])
def test_a_number_that_is_none_makes_a_bound_or_nothing_worse(key, odd):
    header = header_of("llama31-8b")
    metadata = dict(header.metadata)
    if odd is None:
        del metadata[f"llama.{key}"]
    else:
        metadata[f"llama.{key}"] = odd
    found = profile_of(msgspec.structs.replace(header, metadata=metadata))
    for settings in SETTINGS:
        shares = footprint(found, settings).devices
        assert all(min(d.weights, d.kv, d.compute) >= 0 for d in shares)
        assert sum(d.weights for d in shares) > 0


def test_numbers_that_cannot_be_used_are_named():
    header = header_of("llama31-8b")
    metadata = {**header.metadata, "llama.embedding_length": "wide"}
    found = profile_of(msgspec.structs.replace(header, metadata=metadata))
    assert "llama.embedding_length" in found.notes[0]


def test_an_empty_projector_is_a_guess():
    assert projector_of(EMPTY).notes
