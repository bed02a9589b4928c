"""The room of each device while a plan is being made.

Capacity of a device = what is free on it - the reserve. A machine without devices has one room, the
host's memory, with no label: models there run on the CPU.

Must not: outlive the making of one plan; it is the one mutable thing in it.
"""

from collections.abc import Mapping

import msgspec

from pannier.devices.inventory import Device, Inventory
from pannier.plan.roles import MIB

DEFAULT_RESERVE = 512 * MIB
"""Bytes kept free on a device that a table of reserves does not name."""


class Room(msgspec.Struct, kw_only=True):
    """Bytes left on one device; `swap_bytes` is the share of its swap set, its largest member."""

    order: int
    label: str | None
    capacity: int
    free: int
    swap_bytes: int = 0

    @property
    def name(self) -> str:
        """The device's label, or "host"."""
        return self.label or "host"

    def charge(self, need: int) -> int:
        """Takes `need`, at most what is free; returns what is missing."""
        short = max(0, need - self.free)
        self.free -= need - short
        return short

    def charge_swap(self, need: int) -> None:
        """Grows the share of the swap set to `need`, when it is larger than its members so far."""
        more = max(0, need - self.swap_bytes)
        self.swap_bytes += more
        self.free -= more


def rooms_of(reserve: int | Mapping[str, int], inventory: Inventory) -> list[Room]:
    """One room per device in inventory order, or the host alone. `reserve` in bytes."""
    if not inventory.devices:
        kept = reserve if isinstance(reserve, int) else reserve.get("host", DEFAULT_RESERVE)
        # 0 when /proc/meminfo is not there: then memory cannot refuse anything.
        have = max(0, inventory.host.available - kept) if inventory.host.available else 1 << 60
        return [Room(order=0, label=None, capacity=have, free=have)]
    rooms = []
    for device in inventory.devices:
        kept = reserve if isinstance(reserve, int) else _reserve_of(device, reserve)
        have = max(0, device.free - kept)
        rooms.append(Room(order=device.index, label=device.label, capacity=have, free=have))
    return rooms


def _reserve_of(device: Device, reserve: Mapping[str, int]) -> int:
    """A table of reserves names devices by label or UUID; the others keep the usual one."""
    return reserve.get(device.label, reserve.get(device.uuid or "", DEFAULT_RESERVE))
