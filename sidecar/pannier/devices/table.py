"""An inventory as text for a person: what `pannier status` prints. Pure.

Every name that a pin may use stands in its row, and the number that nvidia-smi gives a card where
it is another one than ours: people compare the two.

Must not: leave out a card because it is not used; that is the one that people ask about.
"""

from collections.abc import Sequence

from pannier.devices.inventory import Device, Inventory

_GIB = 1024**3
_SHORT_UUID = 12

_Row = tuple[str, ...]


def inventory_lines(found: Inventory) -> list[str]:
    """The table of devices, the host's memory, what uses them, and the notes."""
    lines = _table(found.devices, found.unused)
    host = found.host
    ram = f"RAM {_gib(host.total)} GiB, {_gib(host.available)} GiB free"
    if not found.devices:
        what = "no GPU" if found.engine_backend == "cpu" else "devices unknown"
        ram = f"{what}; {ram}"
    lines.append(ram)
    lines.append(f"engine backend: {found.engine_backend}")
    lines += _orders(found.devices)
    if found.stale:
        lines.append(f"stale: {found.stale}")
    return [*lines, *(f"note: {note}" for note in found.notes)]


def _table(devices: Sequence[Device], unused: Sequence[Device]) -> list[str]:
    """Sizes in GiB. A card that is not used has a dash for its index."""
    if not devices and not unused:
        return []
    with_smi = any(each.nvml_index not in (None, each.index) for each in (*devices, *unused))
    head = ("", "label", "name", "GiB", "free", "ours", "others", "reserve", "uuid", "pci")
    rows: list[_Row] = [(*head, "nvidia-smi") if with_smi else head]
    for index, each in [*((str(e.index), e) for e in devices), *(("-", e) for e in unused)]:
        rows.append(_row(index, each, with_smi=with_smi))
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    return [_line(row, widths) for row in rows]


def _row(index: str, device: Device, *, with_smi: bool) -> _Row:
    mark = " (unified)" if device.unified else ""
    row: _Row = (
        index,
        device.label or "-",
        f"{device.name}{mark}",
        *map(_gib, (device.total, device.free, device.used_by_us, device.used_by_others)),
        _gib(device.reserve),
        (device.uuid or "-")[:_SHORT_UUID],
        device.pci or "-",
    )
    return (*row, "-" if device.nvml_index is None else str(device.nvml_index)) if with_smi else row


def _line(row: _Row, widths: Sequence[int]) -> str:
    """Numbers to the right, words to the left."""
    numbers = range(3, 8)
    cells = [
        cell.rjust(width) if at in numbers else cell.ljust(width)
        for at, (cell, width) in enumerate(zip(row, widths, strict=True))
    ]
    return "  ".join(cells).rstrip()


def _orders(devices: Sequence[Device]) -> list[str]:
    """Both orders where the engine's is not ours, which is by PCI bus."""
    here = [device for device in devices if device.backend != "rpc"]
    by_label = sorted(here, key=lambda device: (len(device.label), device.label))
    if by_label == here:
        return []
    ours = ", ".join(device.label for device in here)
    engine = ", ".join(device.label for device in by_label)
    return [
        f"by PCI bus, as `devices` of [placement] counts: {ours}; as the engine lists: {engine}"
    ]


def _gib(count: int) -> str:
    return f"{count / _GIB:.1f}"
