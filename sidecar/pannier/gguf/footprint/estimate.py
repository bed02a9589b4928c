"""What one llama-server takes with given settings: per device and on the host.

The sum of the parts: weights and cache by unit, compute by place, the projector and the draft on
the first device, what a process takes besides; and on the host what is left of all of it, and what
llama-server keeps there of its own. Pure and fast: a planner calls it thousands of times.

Must not: choose any setting.
"""

import msgspec

from pannier.gguf.footprint.architecture import UNEVEN
from pannier.gguf.footprint.cache import mtp_bytes, snapshot_bytes
from pannier.gguf.footprint.compute import device_bytes, host_bytes
from pannier.gguf.footprint.launch import Launch, launch_of, overhead_of, place_bytes
from pannier.gguf.footprint.profile import Profile
from pannier.gguf.footprint.projector import Projector
from pannier.gguf.footprint.split import counts
from pannier.gguf.footprint.values import DeviceShare, Footprint, HostShare, LaunchSettings

_UNEVEN = (
    "split, the buffers of this architecture depend on where its layers are divided:"
    " they are an upper bound"
)

_STATES = "with recurrent states in RAM the buffers there are an upper bound"
_REFUSED = "flash attention is off: llama-server refuses a quantized cache of V without it"


def footprint(
    profile: Profile,
    settings: LaunchSettings,
    *,
    projector: Projector | None = None,
    draft: Profile | None = None,
) -> Footprint:
    """Bytes of `profile` launched with `settings`, one share for each of its devices.

    `projector` goes whole to the first device, or to the host; `draft` is launched beside it on the
    same devices with the same context, as llama-server does. Never raises.
    """
    launch = launch_of(profile, settings, len(settings.devices))
    shares = settings.split or (1,) * len(settings.devices)
    shares = (*shares, *(0,) * len(settings.devices))[: len(settings.devices)]
    runs = counts(profile.units - launch.start, shares)
    devices = _devices(profile, settings, launch, runs)
    host = _host(profile, settings, launch, runs)
    notes = _notes(settings, launch)
    exact = profile.exact
    if profile.architecture in UNEVEN and sum(run > 0 for run in runs) > 1:
        exact = False
        notes += (_UNEVEN,)
    if not settings.kv_offload and any(kind.state for kind in profile.shape.kinds):
        exact = False
        notes += (_STATES,)
    if settings.mtp and profile.drafts:
        devices, host = _with_mtp(profile, settings, launch, devices, host)
    if projector is not None:
        devices, host = _with_projector(projector, settings, devices, host)
        exact = exact and projector.exact
        notes += projector.notes
    if draft is not None:
        devices, host = _with_draft(draft, settings, devices, host)
        exact = exact and draft.exact
        notes += tuple(f"draft: {note}" for note in draft.notes)
    return Footprint(
        devices=tuple(devices),
        host=host,
        exact=exact,
        indivisible=profile.indivisible,
        notes=profile.notes + notes,
    )


def _devices(
    profile: Profile, settings: LaunchSettings, launch: Launch, runs: tuple[int, ...]
) -> list[DeviceShare]:
    used = [place for place, run in enumerate(runs) if run]
    found, at = [], launch.start
    for place, run in enumerate(runs):
        weights = compute = kv = 0
        if run:
            first, last = place == used[0], place == used[-1]
            weights, compute = place_bytes(profile, launch, first, last)
            weights += sum(launch.weights[at : at + run])
            kv = sum(launch.caches[at : at + run]) if settings.kv_offload else 0
        found.append(
            DeviceShare(
                weights=weights,
                kv=kv,
                compute=compute,
                overhead=overhead_of(settings, place),
                layers=run,
            )
        )
        at += run
    return found


def _host(
    profile: Profile, settings: LaunchSettings, launch: Launch, runs: tuple[int, ...]
) -> HostShare:
    own = launch.start
    weights = profile.weights.inputs + sum(launch.weights[:own]) + launch.off_experts
    if own or not runs:
        weights += launch.first_weights + profile.weights.everywhere
    kept = sum(launch.caches[:own]) if settings.kv_offload else sum(launch.caches)
    serves = settings.pooling == "none"
    snapshot = snapshot_bytes(profile.shape, settings, launch.cells) if serves else 0
    return HostShare(
        mapped=weights if settings.mapped else 0,
        resident=0 if settings.mapped else weights,
        kv=kept,
        compute=host_bytes(
            profile.shape,
            profile.widths,
            launch.load,
            launch.cells,
            layers=own > 0,
            experts=launch.off_experts > 0,
            output=own == profile.units,
        ),
        prompt_cache=settings.cache_ram if serves and profile.is_causal else 0,
        checkpoints=max(0, settings.checkpoints) * launch.cells.slots * snapshot,
    )


def _with_mtp(
    profile: Profile,
    settings: LaunchSettings,
    launch: Launch,
    devices: list[DeviceShare],
    host: HostShare,
) -> tuple[list[DeviceShare], HostShare]:
    """The second context that drafts: its cache, and its buffers where the MTP layers are."""
    cache = sum(mtp_bytes(profile.shape, launch.cells))
    load = msgspec.structs.replace(launch.load, outputs=launch.cells.slots, entering=True)
    compute = device_bytes(profile.shape, profile.widths, load, launch.cells, True, True)
    last = max((place for place, share in enumerate(devices) if share.layers), default=None)
    if last is None or not settings.kv_offload:
        return devices, msgspec.structs.replace(host, draft=host.draft + cache + compute)
    share = devices[last]
    devices[last] = msgspec.structs.replace(share, draft=share.draft + cache + compute)
    return devices, host


def _with_projector(
    projector: Projector,
    settings: LaunchSettings,
    devices: list[DeviceShare],
    host: HostShare,
) -> tuple[list[DeviceShare], HostShare]:
    size = projector.weights + projector.compute
    if devices and settings.projector_on_device:
        devices[0] = msgspec.structs.replace(devices[0], projector=size)
        return devices, host
    return devices, msgspec.structs.replace(host, projector=size)


def _with_draft(
    draft: Profile,
    settings: LaunchSettings,
    devices: list[DeviceShare],
    host: HostShare,
) -> tuple[list[DeviceShare], HostShare]:
    """The draft with the context, slots, devices and shares of its target, and its own f16 cache.

    `common_base_params_to_speculative`, `common_speculative_init_result`: common/speculative.cpp.
    """
    own = msgspec.structs.replace(
        settings,
        kv_k="f16",
        kv_v="f16",
        gpu_layers=None,
        cpu_moe=0,
        pooling="none",
        mtp=False,
        cache_ram=0,
        checkpoints=0,
        overhead=0,
        outputs=max(1, settings.slots),
    )
    beside = footprint(draft, own)
    joined = [
        msgspec.structs.replace(share, draft=share.draft + other.total)
        for share, other in zip(devices, beside.devices, strict=True)
    ]
    return joined, msgspec.structs.replace(host, draft=host.draft + beside.host.total)


def _notes(settings: LaunchSettings, launch: Launch) -> tuple[str, ...]:
    quantized = settings.kv_v not in ("f16", "f32", "bf16")
    return (_REFUSED,) if quantized and not launch.fused else ()
