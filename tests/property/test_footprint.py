"""Whatever the model and the settings: a footprint is sound, and its prices are the same bytes."""

from functools import cache

import msgspec
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from tests.gguf_models import header_of

from pannier.gguf.footprint.estimate import footprint
from pannier.gguf.footprint.prices import prices
from pannier.gguf.footprint.profile import Profile, profile_of
from pannier.gguf.footprint.split import counts
from pannier.gguf.footprint.values import Footprint, LaunchSettings
from pannier.gguf.header import Array, Header, Tensor

calm = settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.too_slow])

SEVERAL = st.sampled_from(
    [
        "llama31-8b",
        "gemma3-4b",
        "gemma4-31b",
        "qwen3-30b-a3b",
        "glm45-air",
        "deepseek-v2-lite",
        "deepseek-v32",
        "mamba-28b",
        "granite4-h-tiny",
        "qwen35-27b",
        "rwkv7-29b",
        "jamba-mini-52b",
        "bge-large",
        "qwen3-embed-06b",
        "qwen3-vl-8b",
        "grok-1",
        "minimax-m2",
        "gpt2-xl",
    ]
)


@cache
def profile(name: str) -> Profile:
    return profile_of(header_of(name))


@st.composite
def launches(draw: st.DrawFn, devices: int | None = None) -> LaunchSettings:
    count = draw(st.integers(1, 4)) if devices is None else devices
    backend = draw(st.sampled_from(["cuda", "rpc", "vulkan", "metal", "rocm"]))
    kv = draw(st.sampled_from(["f16", "q8_0", "q4_0", "bf16"]))
    split = draw(st.none() | st.tuples(*[st.integers(0, 40)] * count))
    return LaunchSettings(
        context=draw(st.integers(1, 300_000)),
        slots=draw(st.integers(1, 8)),
        unified=draw(st.booleans()),
        kv_k=kv,
        kv_v=kv,
        flash_attention=draw(st.sampled_from(["auto", "on", "off"])),  # type: ignore[arg-type]
        batch=draw(st.sampled_from([256, 2048, 4096])),
        ubatch=draw(st.sampled_from([1, 128, 512, 2048])),
        gpu_layers=draw(st.none() | st.integers(0, 90)),
        cpu_moe=draw(st.none() | st.integers(0, 60)),
        devices=(backend,) * count,
        split=split,
        pooling=draw(st.sampled_from(["none", "embed", "rerank"])),  # type: ignore[arg-type]
        swa_full=draw(st.booleans()),
        kv_offload=draw(st.sampled_from([True, True, True, False])),
        mtp=draw(st.sampled_from([False, False, True])),
        mapped=draw(st.booleans()),
    )


def device_bytes(found: Footprint) -> int:
    return sum(share.weights + share.kv + share.compute for share in found.devices)


def host_bytes(found: Footprint) -> int:
    return found.host.weights + found.host.kv + found.host.compute + found.host.checkpoints


@calm
@given(SEVERAL, launches())
def test_nothing_is_negative_and_every_unit_is_somewhere(name, launch):
    found = footprint(profile(name), launch)
    for share in (*found.devices, found.host):
        assert all(value >= 0 for value in msgspec.structs.asdict(share).values())
    on = sum(share.layers for share in found.devices)
    wanted = profile(name).units if launch.gpu_layers is None else launch.gpu_layers
    assert on == min(wanted, profile(name).units)


@calm
@given(SEVERAL, launches(), st.integers(1, 100_000))
def test_more_context_never_takes_less(name, launch, more):
    wider = msgspec.structs.replace(launch, context=launch.context + more)
    less, much = footprint(profile(name), launch), footprint(profile(name), wider)
    assert device_bytes(less) <= device_bytes(much)
    assert host_bytes(less) <= host_bytes(much)


@calm
@given(SEVERAL, launches(), st.integers(1, 8))
def test_more_slots_never_take_less(name, launch, more):
    wider = msgspec.structs.replace(launch, slots=launch.slots + more)
    less, much = footprint(profile(name), launch), footprint(profile(name), wider)
    assert device_bytes(less) <= device_bytes(much)
    assert host_bytes(less) <= host_bytes(much)


@calm
@given(SEVERAL, launches(), st.integers(1, 4096))
def test_a_larger_micro_batch_never_takes_less(name, launch, more):
    wider = msgspec.structs.replace(launch, ubatch=launch.ubatch + more)
    less, much = footprint(profile(name), launch), footprint(profile(name), wider)
    assert device_bytes(less) <= device_bytes(much)
    assert host_bytes(less) <= host_bytes(much)


@calm
@given(SEVERAL, launches(), st.lists(st.integers(1, 9), min_size=4, max_size=4))
def test_weights_and_cache_do_not_depend_on_the_split(name, launch, shares):
    """But for the rope factors, which each device has for itself."""
    other = msgspec.structs.replace(launch, split=tuple(shares[: len(launch.devices)]))
    one, two = footprint(profile(name), launch), footprint(profile(name), other)
    spare = profile(name).weights.everywhere * len(launch.devices)
    difference = sum(d.weights for d in one.devices) - sum(d.weights for d in two.devices)
    assert abs(difference) <= spare
    assert sum(d.kv for d in one.devices) == sum(d.kv for d in two.devices)
    assert one.host == two.host


@calm
@given(SEVERAL, launches(), st.lists(st.integers(1, 30), min_size=4, max_size=4))
def test_prices_are_the_footprint_of_every_split(name, launch, shares):
    count = len(launch.devices)
    launch = msgspec.structs.replace(launch, split=tuple(shares[:count]), mtp=False)
    found = footprint(profile(name), launch)
    assume(all(share.layers for share in found.devices))
    price = prices(profile(name), launch)
    places = [price.middle] * count
    places[0], places[-1] = price.first, price.last
    if count == 1:
        places = [price.alone]
    at = 0
    for share, place in zip(found.devices, places, strict=True):
        assert share.total == sum(price.units[at : at + share.layers]) + place
        at += share.layers
    assert at == len(price.units)


@given(st.integers(0, 513), st.lists(st.integers(0, 1 << 20), min_size=1, max_size=8))
def test_every_unit_is_on_one_device_and_shares_that_are_units_are_exact(units, shares):
    found = counts(units, shares)
    assert sum(found) == units
    assert len(found) == len(shares)
    if sum(shares) == units:
        assert found == tuple(shares)


@given(st.integers(1, 513), st.lists(st.integers(1, 999), min_size=2, max_size=6))
def test_no_device_is_more_than_a_unit_from_its_share(units, shares):
    for found, share in zip(counts(units, shares), shares, strict=True):
        assert abs(found - units * share / sum(shares)) < 1 + 1e-3


NUMBERS = st.one_of(
    st.integers(-3, 1 << 40), st.floats(), st.booleans(), st.text(max_size=5), st.none()
)


@st.composite
def strange_headers(draw: st.DrawFn) -> Header:
    """Headers with the keys and tensors of a real one, and numbers of all sorts."""
    real = header_of(draw(st.sampled_from(["llama31-8b", "gemma4-e4b", "granite4-h-tiny"])))
    metadata = dict(real.metadata)
    changed = st.sampled_from(sorted(metadata))
    for key in draw(st.lists(changed, max_size=4, unique=True)):
        value = draw(NUMBERS)
        values = draw(st.lists(st.integers(-2, 1 << 34), max_size=5))
        array = Array(kind=5, count=len(values), values=tuple(values))
        metadata[key] = draw(st.sampled_from([value, array])) if value is not None else array
    tensors = draw(st.lists(st.sampled_from(real.tensors), max_size=8))
    odd = Tensor(
        name=draw(st.sampled_from(["", "blk.999.x.weight", "blk.0.attn_q.weight", "x" * 63])),
        dims=draw(st.lists(st.integers(0, 1 << 40), max_size=4).map(tuple)),
        kind=draw(st.integers(0, 99)),
        size=draw(st.integers(0, 1 << 50)),
    )
    everything = (*real.tensors, odd) if draw(st.booleans()) else (*tensors, odd)
    return Header(version=3, metadata=metadata, tensors=everything, file_size=0)


@calm
@given(strange_headers(), launches())
def test_no_header_makes_a_footprint_fail(header, launch):
    model = profile_of(header)
    found = footprint(model, launch)
    prices(model, launch)
    for share in found.devices:
        assert min(share.weights, share.kv, share.compute, share.total) >= 0
