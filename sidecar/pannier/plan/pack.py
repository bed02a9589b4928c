"""The best placement of all items over their levels of context: a few searches, one after another.

What counts, in this order: everything is served (an item that fits alone always is, if need be in
a swap set); residents (`search.Cost`); the context that was asked for; devices; moves; even
headroom. Context comes in levels, from what was asked for down to the least: the lowest level at
which as many are resident as at the last one is taken. Headroom is counted in eighths of a device,
which turns the question for the evenest placement into a few questions for any.

Must not: read anything; the same items give the same answer.
"""

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from pannier.plan.search import Cost, Found, Item, Placed, Search
from pannier.plan.wide import bytes_on, evenly

EIGHTHS = 8
"""Headroom is compared in eighths of a device's capacity."""

LIMIT = 20_000
"""Nodes of one search: some 0.3 s in the worst case, never reached by 16 models on 8 cards of
usual sizes (`tests/bench/planning.py`)."""


class Spot(msgspec.Struct, frozen=True, kw_only=True):
    """Where an item ends: bytes on each of its devices, units for a wide one, its set."""

    id: str
    group: int
    devices: tuple[int, ...]
    taken: tuple[int, ...]
    layers: tuple[int, ...] | None = None


class Packing(msgspec.Struct, frozen=True, kw_only=True):
    """All items placed. `headroom` in eighths, of the fullest device; `rooms` what is left."""

    level: int
    cost: Cost
    headroom: int
    spots: dict[str, Spot]
    rooms: tuple[int, ...]
    host_room: int
    exact: bool


def pack(
    levels: Sequence[Sequence[Item]], capacity: Sequence[int], host: int, *, limit: int = LIMIT
) -> Packing | None:
    """The best packing; `levels[n]` are the items with their contexts at level n.

    None when there is no placement at all, which cannot be where every item fits alone beside
    those that are never swapped out.
    """
    exact = True

    def look(items: Sequence[Item], room: Sequence[int], **bounds: object) -> Found | None:
        nonlocal exact
        search = Search(items, room, host, limit=limit, **bounds)  # type: ignore[arg-type]
        found = search.run()
        exact = exact and not search.exhausted
        return found

    level, found = 0, look(levels[0], capacity, below=(0, 1, 0, 0))
    if found is None:
        least = look(levels[-1], capacity) or look(levels[-1], capacity, joins_first=True)
        if least is None:
            return None
        pooled, lost, _, _ = least.cost
        level, found = len(levels) - 1, least
        for at, items in enumerate(levels[:-1]):
            if better := look(items, capacity, below=(pooled, lost + 1, 0, 0)):
                level, found = at, better
                break
    headroom = 0
    pooled, lost, extra, moved = found.cost
    low, high = 1, EIGHTHS - 1
    while low <= high:
        tried = (low + high) // 2
        kept = [size * (EIGHTHS - tried) // EIGHTHS for size in capacity]
        below = (pooled, lost, extra, moved + 1)
        evener = look(levels[level], kept, below=below, first=True)
        if evener:
            headroom, found, low = tried, evener, tried + 1
        else:
            high = tried - 1
    return _packing(found, level, headroom, capacity, host, exact=exact)


def _packing(
    found: Found, level: int, headroom: int, capacity: Sequence[int], host: int, *, exact: bool
) -> Packing:
    """Gives the wide ones their layers, as even as the others leave it."""
    narrow = [placed for placed in found.placed if placed.item.wide is None]
    wide = [placed for placed in found.placed if placed.item.wide is not None]
    spots = {
        placed.item.id: Spot(
            id=placed.item.id,
            group=placed.group,
            devices=placed.devices,
            taken=tuple(need for _, need in placed.way or ()),
        )
        for placed in narrow
    }
    # A set with a wide member is charged at last: its other members lie within what it may take.
    spread = {placed.group for placed in wide}
    settled = [spots[placed.item.id] for placed in narrow if placed.group not in spread]
    rooms = left(settled, capacity)
    for placed in wide:
        spots[placed.item.id] = _spread(placed, rooms, capacity)
    return Packing(
        level=level,
        cost=found.cost,
        headroom=headroom,
        spots=spots,
        rooms=left(spots.values(), capacity),
        host_room=host - host_taken(found.placed),
        exact=exact,
    )


def _spread(placed: Placed, rooms: Sequence[int], capacity: Sequence[int]) -> Spot:
    wide = placed.item.wide
    assert wide is not None  # noqa: S101  asked for wide items only
    layers = evenly(wide, rooms, capacity, placed.devices)
    return Spot(
        id=placed.item.id,
        group=placed.group,
        devices=placed.devices,
        taken=bytes_on(wide, layers),
        layers=layers,
    )


def charges(spots: Iterable[Spot]) -> Mapping[int, dict[int, int]]:
    """Bytes per device of each swap set: its largest member there."""
    sets: dict[int, dict[int, int]] = {}
    for spot in spots:
        charge = sets.setdefault(spot.group, {})
        for device, need in zip(spot.devices, spot.taken, strict=True):
            charge[device] = max(charge.get(device, 0), need)
    return sets


def left(spots: Iterable[Spot], capacity: Sequence[int]) -> tuple[int, ...]:
    """What is left on each device beside these."""
    rooms = list(capacity)
    for charge in charges(spots).values():
        for device, need in charge.items():
            rooms[device] -= need
    return tuple(rooms)


def host_taken(placed: Sequence[Placed]) -> int:
    """RAM of all sets, each at its largest member."""
    largest: dict[int, int] = {}
    for each in placed:
        largest[each.group] = max(largest.get(each.group, 0), each.item.host)
    return sum(largest.values())
