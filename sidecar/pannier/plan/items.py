"""What the search places, in numbers, and what it says of where it goes.

An item is one llama-server: the ways in which it may be put on devices, or the prices of a split,
and what it costs to move it or to let it share. Everything here is true of items whatever the
others do; what depends on them is in the search.

Must not: know models, contexts or names of devices.
"""

from collections.abc import Sequence

import msgspec

from pannier.plan.wide import Wide, fewest

Way = tuple[tuple[int, int], ...]
"""One way to place an item: (device, bytes) of every device that it takes."""

Cost = tuple[int, int, int, int]
"""Pooled items in swap sets; items that share; devices beyond one each; items that move."""

NO_COST_YET: Cost = (1 << 30, 1 << 30, 1 << 30, 1 << 30)


class Item(msgspec.Struct, frozen=True, kw_only=True):
    """One llama-server to place. `host` in bytes of RAM; `home` where it runs now."""

    id: str
    ways: tuple[Way, ...] = ()
    wide: Wide | None = None
    host: int = 0
    pooled: bool = False
    keep: bool = False
    home: tuple[int, ...] = ()

    @property
    def size(self) -> int:
        """The least bytes that it takes on devices."""
        if self.wide is not None:
            return self.wide.volume
        return min(sum(need for _, need in way) for way in self.ways)


class Placed(msgspec.Struct, frozen=True, kw_only=True):
    """Where an item goes: its way, or for a wide one the devices; `group` counts swap sets."""

    item: Item
    group: int
    devices: tuple[int, ...]
    way: Way | None


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """A placement of all items, and what it costs."""

    cost: Cost
    placed: tuple[Placed, ...]


def devices_of(way: Way) -> tuple[int, ...]:
    """The devices of a way."""
    return tuple([device for device, _ in way])


def least_on_one(item: Item) -> int:
    """The least that it takes on any one device."""
    return min((need for way in item.ways for _, need in way), default=0)


def even_on_all(item: Item, capacity: Sequence[int]) -> bool:
    """Whether it takes the same on every device that is large enough, and has no home."""
    if item.wide is not None or item.home or not item.size:
        return False
    size = item.size
    return item.ways == tuple(((at, size),) for at, room in enumerate(capacity) if room >= size)


def kinds_of(items: Sequence[Item], capacity: Sequence[int]) -> list[object]:
    """Which devices are the same to every item; None for one that differs from all others."""
    special = {device for item in items for device in item.home}
    special |= {d for item in items for way in item.ways if len(way) > 1 for d, _ in way}
    special |= {
        device
        for item in items
        if item.wide is not None and len(item.wide.devices) < len(capacity)
        for device in item.wide.devices
    }
    alone = [{way[0][0]: way[0][1] for way in item.ways if len(way) == 1} for item in items]
    kinds = [
        None if device in special else (size, tuple(needs.get(device) for needs in alone))
        for device, size in enumerate(capacity)
    ]
    return [kind if kind is not None and kinds.count(kind) > 1 else None for kind in kinds]


def fits_alone(item: Item, capacity: Sequence[int]) -> bool:
    """Whether these devices hold it while there is nothing else."""
    if item.wide is not None:
        return fewest(item.wide, capacity) is not None
    return any(all(need <= capacity[device] for device, need in way) for way in item.ways)


def turn_of(item: Item) -> tuple[bool, bool, int, bool, str]:
    """The order of the search: wide ones, then those that may stay where they run; large first."""
    return item.wide is None, not item.home, -item.size, not item.keep, item.id
