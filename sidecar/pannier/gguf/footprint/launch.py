"""One launch of one model, worked out once for the footprint and for the prices.

Both answer the same question, one for a given split and one for all splits, and must agree to the
byte. So everything that either needs is made here: cells, the bytes of each unit, what a device
takes by its place in the row, and what stays on the host.

Must not: know a split.
"""

import msgspec

from pannier.gguf.footprint.backend import (
    FETCHES_WEIGHTS,
    WIDENS_CACHE,
    default_overhead,
    has_flash_attention,
    pipelines,
)
from pannier.gguf.footprint.cache import DRAFTED, Cells, cells_of, layer_bytes
from pannier.gguf.footprint.compute import Kept, Load, device_bytes, load_of
from pannier.gguf.footprint.profile import Profile
from pannier.gguf.footprint.split import on_devices
from pannier.gguf.footprint.values import LaunchSettings


class Launch(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes by unit; `weights` and `caches` have one element per unit, the output layer last.

    Units from `start` on are on devices. `off_experts` are the experts in RAM of layers on devices.
    """

    cells: Cells
    load: Load
    fused: bool
    start: int
    weights: list[int]
    caches: list[int]
    off_experts: int
    first_weights: int
    fetched: int


def launch_of(profile: Profile, settings: LaunchSettings, devices: int) -> Launch:
    """The launch of `profile` with `settings` on that many devices."""
    shape, weights = profile.shape, profile.weights
    cells = cells_of(shape, settings)
    fused = is_fused(profile, settings)
    units = profile.units
    start = units - on_devices(units, settings.gpu_layers, devices)
    aside = experts_in_ram(profile, settings)
    layers, experts, whole = weights.layers, weights.experts, weights.whole
    if settings.mtp:
        layers = tuple(map(int.__add__, layers, weights.mtp))
        experts = tuple(map(int.__add__, experts, weights.mtp_experts))
        whole = tuple(map(int.__add__, layers, experts))
    sizes = [
        *layers[:aside],
        *whole[aside:],
        weights.output + (weights.tied if start < units else weights.tied_in_ram),
    ]
    backends = settings.devices
    piped = (
        devices > 1
        and start == 0
        and not any(experts[:aside])
        and settings.kv_offload
        and pipelines(backends if len(backends) > 1 else backends * 2, settings.build)
    )
    fetches = devices > 0 and not FETCHES_WEIGHTS.isdisjoint(backends)
    load = load_of(
        shape,
        profile.widths,
        settings if settings.outputs is not None else _with_drafts(profile, settings),
        cells,
        fused,
        piped,
        start == 0 and devices > 0,
        _kept(experts[start:], max(0, aside - start), fetches),
        _widened(settings),
    )
    return Launch(
        cells=cells,
        load=load,
        fused=fused,
        start=start,
        weights=sizes,
        caches=[*layer_bytes(shape, settings, cells, fused), 0],
        off_experts=sum(experts[:aside]),
        first_weights=weights.first,
        fetched=_fetched(profile, start, aside) if fetches and load.tokens >= 32 else 0,
    )


def is_fused(profile: Profile, settings: LaunchSettings) -> bool:
    """Whether attention runs fused: asked for, and there is one on every device."""
    if settings.flash_attention == "off" or profile.architecture == "grok":
        return False  # grok: `llama_init_from_model`, src/llama-context.cpp
    quantized = settings.kv_v not in ("f16", "f32", "bf16")
    if settings.flash_attention == "on" or quantized:
        return True
    sizes = profile.head_sizes
    return all(
        has_flash_attention(backend, *size) for backend in set(settings.devices) for size in sizes
    )


def experts_in_ram(profile: Profile, settings: LaunchSettings) -> int:
    """The number of first layers whose experts stay in RAM."""
    return profile.shape.layers if settings.cpu_moe is None else max(0, settings.cpu_moe)


def alone(launch: Launch) -> Launch:
    """The same launch on one device of those: no pipeline."""
    if launch.load.copies == 1:
        return launch
    return msgspec.structs.replace(launch, load=msgspec.structs.replace(launch.load, copies=1))


def place_bytes(profile: Profile, launch: Launch, first: bool, last: bool) -> tuple[int, int]:
    """Weights and compute of a device by its place, beside its units. Bytes."""
    weights = profile.weights.everywhere
    if first and launch.start == 0:
        weights += launch.first_weights
    compute = device_bytes(profile.shape, profile.widths, launch.load, launch.cells, first, last)
    return weights, compute + (launch.fetched if first else 0)


def overhead_of(settings: LaunchSettings, place: int) -> int:
    """Bytes of overhead of the device at a place; past the end as the last one."""
    if settings.overhead is not None:
        return settings.overhead
    return default_overhead(settings.devices[min(place, len(settings.devices) - 1)])


def _with_drafts(profile: Profile, settings: LaunchSettings) -> LaunchSettings:
    """With MTP every slot verifies what was drafted: `common_speculative_get_output_limits`."""
    if not settings.mtp or settings.pooling != "none":
        return settings
    outputs = max(1, settings.slots) * (1 + DRAFTED)
    return msgspec.structs.replace(settings, outputs=outputs)


def _widened(settings: LaunchSettings) -> tuple[int, int]:
    """Bytes per element of K and of V that a fused attention makes anew."""
    if WIDENS_CACHE.isdisjoint(settings.devices):
        return 0, 0
    return (0 if settings.kv_k == "f16" else 2), (0 if settings.kv_v == "f16" else 2)


def _kept(experts: tuple[int, ...], aside: int, fetches: bool) -> Kept:
    """Which experts of the layers on devices are computed in RAM."""
    if not any(experts[:aside]):
        return "none"
    return "some" if fetches or any(experts[aside:]) else "all"


def _fetched(profile: Profile, start: int, aside: int) -> int:
    """Bytes of the largest weight that a device copies from RAM for a large batch."""
    largest = profile.largest if start > 0 else 0
    return max(largest, profile.largest_expert if aside > start else 0)
