"""A swap set while the search makes it: its members, and what it is charged for.

A set is charged its largest member, on each device and of RAM; one with a single member is a
resident. Wide members take their devices at last, when all others have theirs: until then the set
has a territory, which no other set with wide members enters. It changes in place, as the search
takes its steps back, and is no part of any result.

Must not: choose anything; that is what the search is for.
"""

from collections.abc import Sequence

import msgspec

from pannier.plan.items import Item, Way
from pannier.plan.wide import fewest

Chosen = dict[str, tuple[tuple[int, ...], Way | None]]
"""Where members of sets with wide ones go."""


class SwapSet:
    """A swap set in the making; one with a single member is a resident."""

    __slots__ = ("charge", "host", "keep", "members", "pooled", "territory", "wide")

    def __init__(self, item: Item) -> None:
        self.charge: dict[int, int] = {}
        self.host = 0
        self.members: list[tuple[Item, Way | None]] = []
        self.keep = item.keep
        self.pooled = item.pooled  # of the only member; meaningless for more
        self.wide = item.wide is not None
        self.territory: tuple[int, ...] = ()

    def lacks(self) -> int:
        """What its largest wide member takes at least, beyond what the others have taken."""
        volume = max([item.size for item, _ in self.members if item.wide is not None])
        return max(0, volume - sum(self.charge.values()))

    def rooms(self, rooms: Sequence[int], where: Sequence[int] | None = None) -> list[int]:
        """What it may take on each device: what is left, and what it has already."""
        own = list(rooms)
        for device, need in self.charge.items():
            own[where[device] if where else device] += need
        return own

    def spoiled(self) -> bool:
        """Whether one more member makes a pooled resident share."""
        return self.pooled and len(self.members) == 1


def put_inside(
    group: SwapSet, territory: tuple[int, ...], rooms: Sequence[int]
) -> tuple[Chosen, int, int] | None:
    """Every wide member of a set within its territory: who takes which, devices, moves."""
    chosen: Chosen = {}
    extra = moved = 0
    for item, _ in group.members:
        if item.wide is None:
            continue
        within = tuple(device for device in item.wide.devices if device in territory)
        narrowed = msgspec.structs.replace(item.wide, devices=within)
        devices = fewest(narrowed, rooms, item.home)
        if devices is None:
            return None
        chosen[item.id] = (devices, None)
        extra += len(devices) - 1
        moved += int(bool(item.home) and devices != item.home)
    return chosen, extra, moved


def more_for(group: SwapSet, way: Way) -> Way:
    """What a set has to grow by on each device to hold this way too."""
    grown = ((device, need - group.charge.get(device, 0)) for device, need in way)
    return tuple([(device, need) for device, need in grown if need > 0])
