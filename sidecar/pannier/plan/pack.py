"""The best placement of all items over their levels of context: a few searches, one after another.

What counts, in this order: everything is served (an item that fits alone always is, if need be in
a swap set); residents (`search.Cost`); the context that was asked for; devices; moves; even
headroom. Context comes in levels, from what was asked for down to the least: the lowest level at
which as many are resident as at the last one is taken. Headroom is counted in eighths of a device,
which turns the question for the evenest placement into a few questions for any.

Must not: read anything; the same items give the same answer.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from pannier.plan.items import NO_COST_YET, Cost, Found, Item, Placed
from pannier.plan.search import BEST, FIRST, ONE_SET, POOLED, Mode, Search
from pannier.plan.wide import bytes_on, evenly

EIGHTHS = 8
"""Headroom is compared in eighths of a device's capacity."""

LIMIT = 5_000
"""Nodes of all searches of one packing: about a second, never reached by 16 models on 8 cards that
each fit a card (`tests/bench/planning.py`)."""

DESCENTS = 4
"""Nodes that every search may have, in descents to the last item: a first placement costs one."""


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
    levels: Sequence[Sequence[Item]],
    capacity: Sequence[int],
    host: int,
    *,
    limit: int = LIMIT,
    even: bool = True,
) -> Packing | None:
    """The best packing; `levels[n]` are the items with their contexts at level n.

    Without `even` each item is where it leaves the least room: what else comes has the largest.
    None when there is no placement at all, which cannot be where every item fits alone beside
    those that are never swapped out.
    """
    ask = _Questions(capacity, host, limit)
    level, found = _resident(ask, [[_homeless(item) for item in items] for items in levels])
    if found is None:
        return None
    found = _at_home(ask, levels[level], found)
    pooled, lost, extra, moved = found.cost
    headroom, low, high = 0, 1, EIGHTHS - 1 if even else 0
    while low <= high:
        tried = (low + high) // 2
        kept = [size * (EIGHTHS - tried) // EIGHTHS for size in capacity]
        evener = ask.any(levels[level], (pooled, lost, extra, moved + 1), kept)
        if evener:
            headroom, found, low = tried, evener, tried + 1
        else:
            high = tried - 1
    return _packing(found, level, headroom, capacity, host, exact=ask.exact)


class _Questions:
    """Searches on one machine with one account of nodes; `exact` while each came to its end."""

    def __init__(self, capacity: Sequence[int], host: int, limit: int) -> None:
        self._capacity, self._host, self._left = capacity, host, limit
        self.exact = True

    def any(
        self, items: Sequence[Item], below: Cost, rooms: Sequence[int] | None = None
    ) -> Found | None:
        """Some placement that costs less."""
        return self._run(self._search(items, below, FIRST, rooms))

    def next(self, items: Sequence[Item], below: Cost) -> tuple[Found | None, int]:
        """Some placement that costs less; if there is none, how many share in any other."""
        search = self._search(items, below, FIRST)
        return self._run(search), search.beyond

    def one_set(self, items: Sequence[Item]) -> Found | None:
        """A placement with one swap set, which there is when each item fits alone."""
        return self._run(self._search(items, NO_COST_YET, ONE_SET))

    def best(self, items: Sequence[Item], below: Cost, mode: Mode = BEST) -> Found | None:
        """The one that costs least, if less than that."""
        return self._run(self._search(items, below, mode))

    def _search(
        self, items: Sequence[Item], below: Cost, mode: Mode, rooms: Sequence[int] | None = None
    ) -> Search:
        # Half of what is left, so that no question is left without; in any case a few descents.
        limit = max(DESCENTS * (len(items) + 1), self._left // 2)
        rooms = self._capacity if rooms is None else rooms
        return Search(items, rooms, self._host, below=below, limit=limit, mode=mode)

    def _run(self, search: Search) -> Found | None:
        found = search.run()
        self._left -= search.nodes
        self.exact = self.exact and not search.exhausted
        return found


def _resident(ask: _Questions, levels: Sequence[Sequence[Item]]) -> tuple[int, Found | None]:
    """The level of context, and the best placement there as if nothing ran anywhere."""
    level, found = 0, ask.any(levels[0], (0, 1, 0, 0))
    if found is None:
        level, found = len(levels) - 1, _fewest_shared(ask, levels[-1])
        if found is None:
            return _where_it_can(ask, levels)
        pooled, lost, _, _ = found.cost
        for at, items in enumerate(levels[:-1]):
            if better := ask.any(items, (pooled, lost + 1, 0, 0)):
                level, found = at, better
                break
    return level, ask.best(levels[level], found.cost) or found


def _where_it_can(ask: _Questions, levels: Sequence[Sequence[Item]]) -> tuple[int, Found | None]:
    """With the least context there is no placement; with more a model may be split that was not."""
    for level, items in enumerate(levels[:-1]):
        found = _fewest_shared(ask, items)
        if found is not None:
            return level, ask.best(items, found.cost) or found
    return len(levels) - 1, None


def _fewest_shared(ask: _Questions, items: Sequence[Item]) -> Found | None:
    """Some placement of those that share least."""
    few = ask.best(items, NO_COST_YET, POOLED)
    if few is None:
        if ask.exact:
            return None
        few = ask.any(items, NO_COST_YET) or ask.one_set(items)
        if few is None:
            return None
        few = _least(few, 0, lambda most: (ask.any(items, (most + 1, 0, 0, 0)), 0), ask)
    pooled, _, extra, moved = few.cost
    sets = {each.group for each in few.placed}
    guess = msgspec.structs.replace(few, cost=(pooled, len(items) - len(sets), extra, moved))
    return _least(guess, 1, lambda most: ask.next(items, (pooled, most + 1, 0, 0)), ask)


def _at_home(ask: _Questions, items: Sequence[Item], found: Found) -> Found:
    """As good a placement that moves least."""
    homes = {item.id: item.home for item in items if item.home}
    moved = sum(homes.get(each.item.id, each.devices) != each.devices for each in found.placed)
    pooled, lost, extra, _ = found.cost
    found = msgspec.structs.replace(found, cost=(pooled, lost, extra, moved))
    return _least(found, 3, lambda most: (ask.any(items, (pooled, lost, extra, most + 1)), 0), ask)


def _least(
    guess: Found, part: int, some: Callable[[int], tuple[Found | None, int]], ask: _Questions
) -> Found:
    """The placement with the least of one part of the cost: none at all, then one, and so on.

    A bound that is too low is turned down quickly, and the right one is no guess. Once a question
    found no end, the rest is halved instead, and the answer is the least that was seen.
    """
    low = 0
    while low < guess.cost[part]:
        tried = low if ask.exact else (low + guess.cost[part] - 1) // 2
        fewer, beyond = some(tried)
        if fewer is not None:
            guess = fewer
            if ask.exact:
                return guess
        else:
            low = max(tried + 1, beyond if ask.exact else 0)
    return guess


def _homeless(item: Item) -> Item:
    return msgspec.structs.replace(item, home=()) if item.home else item


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
