"""What `pannier memory` prints: a table for a person, or the same bytes for programs. Pure.

In both every row adds up. For programs the host has no place of its own for a projector and a
draft, so what of them is in RAM counts as weights there.

Must not: compute anything but sums.
"""

from collections.abc import Sequence

import msgspec

from pannier.gguf.footprint.values import DeviceShare, HostShare
from pannier.memory.question import Answer

MIB = 1 << 20
GIB = 1 << 30

_ALWAYS = ("weights", "kv", "compute")
_PARTS = (*_ALWAYS, "projector", "draft", "overhead", "prompt_cache", "checkpoints")


class Device(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes on one device; `total` is the sum of the others."""

    weights: int
    kv: int
    compute: int
    projector: int
    draft: int
    overhead: int
    total: int


class Host(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes of RAM; `weights` with all that a projector and a draft take there."""

    weights: int
    kv: int
    compute: int
    prompt_cache: int
    checkpoints: int
    total: int


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The answer for programs, devices in the order of the split."""

    model: str
    architecture: str
    exact: bool
    measured: bool
    devices: tuple[Device, ...]
    host: Host
    notes: tuple[str, ...]


def report_of(answer: Answer) -> Report:
    """The answer in bytes."""
    taken = answer.footprint
    return Report(
        model=printable(answer.model),
        architecture=printable(answer.architecture),
        exact=taken.exact,
        measured=taken.measured,
        devices=tuple(_device(share) for share in taken.devices),
        host=_host(taken.host),
        notes=tuple(printable(note) for note in answer.notes),
    )


def lines_of(answer: Answer) -> list[str]:
    """The answer for a person, in MiB."""
    taken = answer.footprint
    count = len(taken.devices)
    table = _table(
        [
            *(
                (f"device {place}, {answer.settings.devices[place]}", share)
                for place, share in enumerate(taken.devices)
            ),
            ("RAM", taken.host),
        ]
    )
    on_devices = sum(share.total for share in taken.devices)
    there = f"{on_devices / GIB:.2f} GiB on {_many(count, 'device')}, " if count else ""
    lines = [
        _title(answer),
        _launch(answer),
        "",
        *table,
        "",
        f"total: {there}{taken.host.total / GIB:.2f} GiB of RAM; {_kind(answer)}",
        *(f"note: {note}" for note in answer.notes),
    ]
    return [printable(line) for line in lines]


def printable(text: str) -> str:
    """Without what a terminal would obey, and without what cannot be encoded."""
    return "".join(char if char.isprintable() else "?" for char in text)


def _device(share: DeviceShare) -> Device:
    return Device(
        weights=share.weights,
        kv=share.kv,
        compute=share.compute,
        projector=share.projector,
        draft=share.draft,
        overhead=share.overhead,
        total=share.total,
    )


def _host(share: HostShare) -> Host:
    return Host(
        weights=share.weights + share.projector + share.draft,
        kv=share.kv,
        compute=share.compute,
        prompt_cache=share.prompt_cache,
        checkpoints=share.checkpoints,
        total=share.total,
    )


def _title(answer: Answer) -> str:
    parts = f" in {answer.parts} files" if answer.parts > 1 else ""
    return f"{answer.model}{parts}: {answer.architecture or 'no architecture named'}"


def _launch(answer: Answer) -> str:
    launch = answer.settings
    slots = _many(launch.slots, "slot")
    shared = f"shared by {slots}" if launch.unified else f"for each of {slots}"
    tokens = f"{launch.context} tokens" + (f" {shared}" if launch.slots > 1 else "")
    kv = launch.kv_k if launch.kv_k == launch.kv_v else f"{launch.kv_k} and {launch.kv_v}"
    attention = f"flash attention {launch.flash_attention}"
    return f"{tokens}, {kv} cache, {attention}, batches of {launch.batch} and {launch.ubatch}"


def _kind(answer: Answer) -> str:
    taken = answer.footprint
    if taken.measured:
        return "measured"
    if taken.indivisible and len(taken.devices) > 1:
        return "not sure, estimated from the header"
    return f"{'exact' if taken.exact else 'an upper bound'}, estimated from the header"


def _table(rows: Sequence[tuple[str, DeviceShare | HostShare]]) -> list[str]:
    """Right-aligned columns; a part that is nowhere has none."""
    sizes = [(name, {part: getattr(share, part, 0) for part in _PARTS}) for name, share in rows]
    shown = [part for part in _PARTS if part in _ALWAYS or any(size[part] for _, size in sizes)]
    cells = [["MiB", *(part.replace("_", " ") for part in shown), "total"]]
    for (name, size), (_, share) in zip(sizes, rows, strict=True):
        cells.append([name, *(_mib(size[part]) for part in shown), _mib(share.total)])
    widths = [max(len(row[column]) for row in cells) for column in range(len(cells[0]))]
    return [
        "  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]) for row in cells
    ]


def _mib(size: int) -> str:
    return f"{size / MIB:.2f}"


def _many(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"
