"""What one load really took: from the launcher's report to bytes by device and use. Pure.

An estimate is a rule; a measurement is what happened. Here the engine's buffer names become the
planned devices, a footprint gets the measured bytes in place of the computed ones, and the two are
compared: weights and caches follow rules that are exact, so where they are off by more than a
rounding the rules have changed, and a person is told.

Must not: read a file, a clock or a device; whoever measures hands everything in.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated

import msgspec
from msgspec import Meta

from pannier.gguf.footprint.values import DeviceShare, Footprint, HostShare

DRIFT = 1024 * 1024
"""Bytes by which weights and caches may differ: the engine prints them in hundredths of a MiB."""

PEAK_PERCENT = 105
"""Of a measured overhead: unlike buffers it grows, with the first long prompts."""

MOST_OVERHEAD = 4 * 1024**3
"""Bytes beside the buffers of a device beyond which it is no overhead any more.

A CUDA context takes 0.1 to 0.75 GiB, long prompts add some hundred MiB (public reports). More is a
buffer that no line told, or another program's process: it must not be planned for every model.
"""

GROWTH = 16 * 1024 * 1024
"""Bytes by which a later overhead has to be larger to be worth a write to the disk."""

Bytes = Annotated[int, Meta(ge=0, le=1 << 60)]


class OnDevice(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """Bytes on one device by use. `overhead` is what is beside the buffers; None: not measured."""

    weights: Bytes = 0
    kv: Bytes = 0
    compute: Bytes = 0
    projector: Bytes = 0
    draft: Bytes = 0
    adapter: Bytes = 0
    overhead: Bytes | None = None

    @property
    def buffers(self) -> int:
        """All that is in buffers."""
        parts = self.weights + self.kv + self.compute
        return parts + self.projector + self.draft + self.adapter


class OnHost(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """Bytes of RAM by use. `mapped` is the range that is mapped, which may be more than is used."""

    mapped: Bytes = 0
    resident: Bytes = 0
    kv: Bytes = 0
    compute: Bytes = 0
    projector: Bytes = 0
    draft: Bytes = 0
    adapter: Bytes = 0

    @property
    def buffers(self) -> int:
        """All that is in buffers, the mapped range included."""
        parts = self.mapped + self.resident + self.kv + self.compute
        return parts + self.projector + self.draft + self.adapter


class Measurement(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """What one load took. `devices` in the order of the split; `at` is seconds since 1970."""

    devices: tuple[OnDevice, ...]
    host: OnHost
    build: str
    at: float


def measurement(
    memory: Mapping[str, Mapping[str, int]],
    names: Sequence[str],
    *,
    devices: int,
    build: str,
    at: float,
) -> Measurement | None:
    """What the launcher reported, by device and host.

    `memory` is bytes by buffer type and use, `names` are the engine's own names of its devices in
    the order of the split, `devices` is how many were planned. None when the engine used other
    ones than planned: then nobody knows what was measured.
    """
    if not memory or len(names) != devices or len(set(names)) != devices:
        return None
    on: list[dict[str, int]] = [{} for _ in names]
    host: dict[str, int] = {}
    for buffer, uses in memory.items():
        at_device = _device_of(buffer, names)
        for use, size in uses.items():
            if at_device is not None:
                field = _DEVICE_USES.get(use, "compute")
                on[at_device][field] = on[at_device].get(field, 0) + size
            else:
                field = _host_field(buffer, use)
                host[field] = host.get(field, 0) + size
    try:
        return msgspec.convert(
            {"devices": on, "host": host, "build": build, "at": at}, type=Measurement
        )
    except msgspec.ValidationError:
        return None


def with_overhead(took: Measurement, used: Sequence[int | None]) -> Measurement:
    """The measurement with what the process holds of each device beside its buffers.

    `used` is bytes by device in the order of the split, all that the driver counts for the process;
    None where it does not tell. Less than the buffers, or far more, says nothing about overhead. Of
    what is known already and what is told now the larger stays.
    """
    if len(used) != len(took.devices):
        return took
    devices = tuple(
        msgspec.structs.replace(each, overhead=_overhead(size, each))
        for each, size in zip(took.devices, used, strict=True)
    )
    return msgspec.structs.replace(took, devices=devices)


def _overhead(used: int | None, each: OnDevice) -> int | None:
    if used is None or not 0 <= used - each.buffers <= MOST_OVERHEAD:
        return each.overhead
    return max(used - each.buffers, each.overhead or 0)


def has_grown(before: Measurement, now: Measurement) -> bool:
    """Whether an overhead is much larger, or known at last."""
    return any(
        new.overhead is not None and (old.overhead is None or new.overhead > old.overhead + GROWTH)
        for old, new in zip(before.devices, now.devices, strict=True)
    )


_DEVICE_USES = {use: use for use in ("weights", "kv", "compute", "projector", "draft", "adapter")}
"""The output buffer, and what a later engine names, is made with the context like compute."""


def _device_of(buffer: str, names: Sequence[str]) -> int | None:
    """Some backends have several buffer types for a device: `MTL0` and `MTL0_Mapped`."""
    for at, name in enumerate(names):
        if buffer == name or buffer.startswith(f"{name}_"):
            return at
    return None


def _host_field(buffer: str, use: str) -> str:
    if use == "weights":
        return "mapped" if buffer.endswith("_Mapped") else "resident"
    return _DEVICE_USES.get(use, "compute")


def corrected(footprint: Footprint, took: Measurement) -> Footprint:
    """The footprint with the measured bytes in place of the computed ones.

    What no line tells stays: layers, prompt cache, checkpoints, and an overhead that was not
    measured. A measurement on another number of devices changes nothing.
    """
    if len(footprint.devices) != len(took.devices):
        return footprint
    devices = tuple(
        DeviceShare(
            weights=each.weights + each.adapter,
            kv=each.kv,
            compute=each.compute,
            projector=each.projector,
            draft=each.draft,
            overhead=share.overhead if each.overhead is None else peak(each.overhead),
            layers=share.layers,
        )
        for share, each in zip(footprint.devices, took.devices, strict=True)
    )
    return msgspec.structs.replace(
        footprint, devices=devices, host=_corrected_host(footprint.host, took.host), measured=True
    )


def _corrected_host(share: HostShare, took: OnHost) -> HostShare:
    return HostShare(
        # The line tells the range in the file; what of it is used, only the estimate knows.
        mapped=min(took.mapped, share.weights or took.mapped),
        resident=took.resident + took.adapter,
        kv=took.kv,
        compute=took.compute,
        projector=took.projector,
        draft=took.draft,
        prompt_cache=share.prompt_cache,
        checkpoints=share.checkpoints,
    )


def drift(footprint: Footprint, took: Measurement) -> tuple[str, ...]:
    """Sentences for a person where weights or caches are not what the rules say; usually none."""
    if len(footprint.devices) != len(took.devices):
        return ()
    pairs: list[tuple[str, int, int]] = []
    for at, (share, each) in enumerate(zip(footprint.devices, took.devices, strict=True)):
        where = f"on its device {at + 1} of {len(took.devices)}"
        pairs.append((f"weights {where}", share.weights, each.weights))
        pairs.append((f"KV cache {where}", share.kv, each.kv))
    if not took.host.mapped:
        pairs.append(("weights in RAM", footprint.host.weights, took.host.resident))
    pairs.append(("KV cache in RAM", footprint.host.kv, took.host.kv))
    return tuple(
        f"new architecture or changed rules: {what}: {_mib(computed)} were computed, llama-server"
        f" allocated {_mib(allocated)}; this load is planned with what was measured, other"
        f" settings of this model may be off: give memory.reserve more room, and report it"
        for what, computed, allocated in pairs
        if abs(computed - allocated) > DRIFT
    )


def in_words(took: Measurement, labels: Sequence[str]) -> str:
    """What a load took, for the log; `labels` are Pannier's names of its devices."""
    parts = [
        f"{_mib(each.buffers)} on {label}{_beside(each.overhead)}"
        for label, each in zip(labels, took.devices, strict=False)
    ]
    return ", ".join([*parts, f"{_mib(took.host.buffers)} of RAM"])


def _beside(overhead: int | None) -> str:
    return "" if overhead is None else f" and {_mib(overhead)} beside its buffers"


def _mib(size: int) -> str:
    return f"{size / (1024 * 1024):.2f} MiB"


def peak(overhead: int) -> int:
    """The bytes to plan for a measured overhead."""
    return overhead * PEAK_PERCENT // 100
