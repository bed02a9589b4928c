"""What is learned is never lost, never leaks into another load, and survives its file."""

import contextlib
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from pannier.gguf.arguments import arguments_of
from pannier.gguf.footprint.values import DeviceShare, Footprint, HostShare
from pannier.gguf.learned import Key, Learned, decode, encode
from pannier.gguf.measured import Measurement, OnDevice, OnHost, corrected, drift, measurement

SIZES = st.integers(0, 1 << 40)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)


def on_device() -> st.SearchStrategy[OnDevice]:
    return st.builds(
        OnDevice,
        weights=SIZES, kv=SIZES, compute=SIZES, projector=SIZES, draft=SIZES, adapter=SIZES,
        overhead=st.none() | SIZES,
    )  # fmt: skip


def on_host() -> st.SearchStrategy[OnHost]:
    return st.builds(OnHost, mapped=SIZES, resident=SIZES, kv=SIZES, compute=SIZES, draft=SIZES)


@st.composite
def loads(draw: st.DrawFn) -> tuple[Key, Measurement, str]:
    """A load as it could be measured: as many devices in the key as were measured."""
    devices = draw(st.lists(on_device(), max_size=3))
    names = st.lists(st.sampled_from(["GPU-1", "GPU-2", "GPU-3"]), unique=True)
    key = Key(
        build=draw(st.sampled_from(["b1", "b2"])),
        files=draw(st.sampled_from(["f", "g"])),
        arguments=draw(TEXTS),
        devices=tuple(draw(names.filter(lambda found: len(found) >= len(devices)))[: len(devices)]),
    )
    at = draw(st.floats(0, 2e9))
    took = Measurement(devices=tuple(devices), host=draw(on_host()), build=key.build, at=at)
    return key, took, draw(st.sampled_from(["", "llama", "qwen3"]))


def shares(count: int) -> st.SearchStrategy[Footprint]:
    one = st.builds(
        DeviceShare, weights=SIZES, kv=SIZES, compute=SIZES, overhead=SIZES, layers=st.just(1)
    )
    many = st.lists(one, min_size=count, max_size=count).map(tuple)
    host = st.builds(HostShare, mapped=SIZES, resident=SIZES, kv=SIZES, prompt_cache=SIZES)
    return st.builds(Footprint, devices=many, host=host)


@settings(max_examples=40)
@given(st.lists(loads(), max_size=8))
def test_the_file_gives_back_what_was_learned(learned_loads: list[tuple[Key, Any, str]]) -> None:
    learned = Learned()
    for key, took, architecture in learned_loads:
        learned = learned.remember(key, took, architecture=architecture)
        found = learned.find(key)
        assert found is not None
        assert found.host == took.host
        assert [(each.weights, each.kv, each.compute) for each in found.devices] == [
            (each.weights, each.kv, each.compute) for each in took.devices
        ]
    assert decode(encode(learned)) == learned
    assert {load.key for load in learned.loads} == {key for key, _, _ in learned_loads}


@settings(max_examples=40)
@given(st.data())
def test_what_was_measured_is_planned_and_is_no_drift_any_more(data: st.DataObject) -> None:
    key, took, _ = data.draw(loads())
    before = data.draw(shares(len(took.devices)))
    after = corrected(before, took)
    assert after.measured
    plain = msgspec.structs.replace(
        took,
        devices=tuple(msgspec.structs.replace(each, adapter=0) for each in took.devices),
        host=msgspec.structs.replace(took.host, adapter=0),
    )
    assert drift(corrected(before, plain), plain) == ()
    for share, measured in zip(after.devices, took.devices, strict=True):
        assert share.total >= measured.buffers + (measured.overhead or 0)
    assert Learned().remember(key, took).apply(before, key) == after


@settings(max_examples=40)
@given(st.data())
def test_what_carries_over_never_lowers_compute_and_touches_no_exact_rule(
    data: st.DataObject,
) -> None:
    key, took, architecture = data.draw(loads())
    estimate = data.draw(shares(len(took.devices)))
    learned = Learned().remember(key, took, architecture=architecture, estimate=estimate)
    count = data.draw(st.integers(0, 3))
    before = data.draw(shares(count))
    names = ("GPU-1", "GPU-2", "GPU-3")[:count]
    other = Key(build=key.build, files="another", arguments="", devices=names)
    after = learned.apply(before, other, architecture)
    assert not after.measured
    for old, new in zip(before.devices, after.devices, strict=True):
        assert new.compute >= old.compute
        assert (new.weights, new.kv, new.layers) == (old.weights, old.kv, old.layers)
    assert after.host == before.host


@given(st.binary(max_size=300))
def test_no_content_of_the_file_does_more_than_raise_a_value_error(content: bytes) -> None:
    for each in (content, b"version = 1\n" + content):
        with contextlib.suppress(ValueError):
            found = decode(each)
            assert found is None or decode(encode(found)) == found


USES = st.sampled_from(["weights", "kv", "compute", "output", "projector", "draft", "new"])
NAMES = st.sampled_from(["CPU", "CPU_Mapped", "CUDA0", "CUDA1", "CUDA_Host", "RPC0[h:1]", "MTL0"])


@given(
    st.dictionaries(NAMES, st.dictionaries(USES, SIZES, min_size=1), min_size=1),
    st.lists(st.sampled_from(["CUDA0", "CUDA1", "RPC0[h:1]"]), unique=True),
)
def test_every_byte_of_the_report_is_somewhere_in_the_measurement(
    memory: dict[str, dict[str, int]], names: list[str]
) -> None:
    found = measurement(memory, names, devices=len(names), build="b", at=0.0)
    assert found is not None
    total = sum(sum(uses.values()) for uses in memory.values())
    assert sum(each.buffers for each in found.devices) + found.host.buffers == total


WORDS = st.lists(
    st.sampled_from(["-c", "--ctx-size", "4096", "-ngl", "all", "-1", "--", "-m", "x", "--a=b"])
    | TEXTS,
    max_size=12,
)


@given(WORDS, st.dictionaries(TEXTS, TEXTS, max_size=3))
def test_any_command_line_has_a_text_and_an_address_is_not_in_it(
    words: list[str], env: dict[str, str]
) -> None:
    plain = ["llama-server", *(word for word in words if word != "--")]
    text = arguments_of(plain, env)
    assert arguments_of([*plain, "--port", "12345"], env) == text
    assert arguments_of(["py", "launcher", "--", *plain], env) == text
