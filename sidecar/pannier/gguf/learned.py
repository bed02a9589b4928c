"""What earlier loads took, and what that says about the next one. Pure.

The same engine, files, arguments and devices take the same bytes again, so an exact match replaces
the estimate. Short of that two things carry over: how far compute was above its estimate for the
same engine build and architecture, and what a process takes on a device beside its buffers,
whatever the model.

Must not: read a file, a clock or a device; the store beside the fleet does.
"""

import hashlib
from collections.abc import Sequence

import msgspec

from pannier.gguf.footprint.values import Footprint
from pannier.gguf.measured import Bytes, Measurement, corrected, peak

VERSION = 1
"""The version of the file that this module reads and writes."""

MOST_LOADS = 256
"""Loads that are kept, the latest; a file of them has some hundred KiB."""


class Key(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What makes two loads the same to memory. Made of texts that the caller gives.

    `build` is the engine's version, `files` stands for the content of all files, `arguments` comes
    from `arguments_of`, and `devices` from `device_identity`, in the order of the split.
    """

    build: str
    files: str
    arguments: str
    devices: tuple[str, ...]


class Load(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """One remembered load. `above` is how far compute was over its estimate on any device."""

    key: Key
    took: Measurement
    architecture: str = ""
    above: Bytes = 0


class Learned(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All that is remembered, at most one load for each key, the oldest first."""

    version: int = VERSION
    loads: tuple[Load, ...] = ()

    def find(self, key: Key) -> Measurement | None:
        """What exactly this load took the last time."""
        return next((load.took for load in self.loads if load.key == key), None)

    def remember(
        self,
        key: Key,
        took: Measurement,
        *,
        architecture: str = "",
        estimate: Footprint | None = None,
    ) -> "Learned":
        """With one load more; of the same load only the latest stays, with its largest overhead."""
        before = self.find(key)
        load = Load(
            key=key,
            took=took if before is None else _with_peaks(took, before),
            architecture=architecture,
            above=_above(took, estimate),
        )
        kept = [each for each in self.loads if each.key != key]
        loads = sorted([*kept, load], key=lambda each: each.took.at)
        return Learned(loads=tuple(loads[-MOST_LOADS:]))

    def compute_above(self, build: str, architecture: str) -> int:
        """Bytes that compute was over its estimate at most, for this build and architecture."""
        return max(
            (
                load.above
                for load in self.loads
                if architecture and (load.key.build, load.architecture) == (build, architecture)
            ),
            default=0,
        )

    def overhead(self, device: str) -> int | None:
        """The largest overhead of a process on a device (its identity); None: never measured."""
        seen = [
            each.overhead
            for load in self.loads
            for name, each in zip(load.key.devices, load.took.devices, strict=False)
            if name == device and each.overhead is not None
        ]
        return max(seen, default=None)

    def apply(self, footprint: Footprint, key: Key, architecture: str = "") -> Footprint:
        """The footprint as experience corrects it: measured, or with what carries over."""
        took = self.find(key)
        if took is not None and len(took.devices) == len(footprint.devices):
            return _with_overheads(corrected(footprint, took), self, key)
        above = self.compute_above(key.build, architecture)
        raised = tuple(
            msgspec.structs.replace(each, compute=each.compute + above) if each.layers else each
            for each in footprint.devices
        )
        return _with_overheads(msgspec.structs.replace(footprint, devices=raised), self, key)


def device_identity(*, uuid: str | None, label: str, name: str, total: int) -> str:
    """What a device is recognised by: its UUID, else what the engine says of it."""
    return uuid or f"{label} {name} {total}"


def _above(took: Measurement, estimate: Footprint | None) -> int:
    if estimate is None or len(estimate.devices) != len(took.devices):
        return 0
    return max(
        (
            each.compute - share.compute
            for share, each in zip(estimate.devices, took.devices, strict=True)
            if each.compute > share.compute
        ),
        default=0,
    )


def _with_peaks(took: Measurement, before: Measurement) -> Measurement:
    if len(took.devices) != len(before.devices):
        return took
    devices = []
    for new, old in zip(took.devices, before.devices, strict=True):
        seen = [each for each in (new.overhead, old.overhead) if each is not None]
        devices.append(msgspec.structs.replace(new, overhead=max(seen, default=None)))
    return msgspec.structs.replace(took, devices=tuple(devices))


def _with_overheads(footprint: Footprint, learned: Learned, key: Key) -> Footprint:
    devices = []
    for share, name in zip(footprint.devices, key.devices, strict=False):
        seen = learned.overhead(name)
        devices.append(
            share if seen is None else msgspec.structs.replace(share, overhead=peak(seen))
        )
    rest = footprint.devices[len(devices) :]
    return msgspec.structs.replace(footprint, devices=(*devices, *rest))


def encode(learned: Learned) -> bytes:
    """The content of the file, TOML."""
    return msgspec.toml.encode(learned)


def decode(content: bytes) -> Learned | None:
    """What a file remembers; None when another version wrote it. Raises ValueError for damage."""
    try:
        version = msgspec.toml.decode(content, type=_Version, strict=True).version
        if version != VERSION:
            return None
        found = msgspec.toml.decode(content, type=Learned, strict=True)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise ValueError(f"not a file of learned loads: {error}") from None
    return msgspec.structs.replace(found, loads=found.loads[-MOST_LOADS:])


class _Version(msgspec.Struct):
    version: int


def digest(texts: Sequence[str]) -> str:
    """One short text that stands for several, for the `files` of a key."""
    return hashlib.sha256("\0".join(texts).encode("utf-8", "surrogateescape")).hexdigest()[:32]
