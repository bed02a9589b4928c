"""Who goes where: a search over devices and swap sets, in numbers alone.

Every item (one llama-server) has ways to be placed: on one device, on several with given shares (a
pin), or, when no single device holds it, *wide* over any devices. Items whose memory cannot be
there at once share a swap set, which is charged its largest member on each device. What counts, in
this order: few embedders and rerankers in swap sets; few items that have to share one at all; few
devices; few moves. It is a depth-first search with bounds, largest items first; without its limit
on nodes it is exact, with it the first descent is a best-fit, which is what large fleets get.

Three rules bound the space and lose nothing that people want: two swap sets of wide items never
share a device, an item is wide only if no device holds it alone, and an item that is never swapped
out shares no set.

Must not: know models, contexts or names of devices.
"""

import contextlib
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import accumulate, combinations

import msgspec

from pannier.plan.wide import EXACT_DEVICES, Wide, fewest

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


class _Set:
    """A swap set in the making; one with a single member is a resident."""

    __slots__ = ("charge", "host", "keep", "members", "pooled", "territory", "wide")

    def __init__(self, item: Item, way: Way | None) -> None:
        self.charge: dict[int, int] = dict(way or ())
        self.host = item.host
        self.members: list[tuple[Item, Way | None]] = [(item, way)]
        self.keep = item.keep
        self.pooled = item.pooled  # of the only member; meaningless for more
        self.wide = item.wide is not None
        self.territory: tuple[int, ...] = ()

    def volume(self) -> int:
        """What its wide members take together at least."""
        return max(item.size for item, _ in self.members if item.wide is not None)


class _Sizes:
    """How many of the items from one on have to share, by volume alone."""

    def __init__(self, sizes: Sequence[int]) -> None:
        self._total = (0, *accumulate(sizes))
        # Joining saves at most an item's own size. Upper bounds that fall, so that the first are
        # the largest.
        falling = list(accumulate(reversed(sizes), max))[::-1]
        self._saved = (0, *accumulate(falling))

    def over(self, at: int, room: int) -> int:
        """The fewest items from `at` without which the others fit into `room` bytes."""
        over = self._total[-1] - self._total[at] - room
        return 0 if over <= 0 else bisect_left(self._saved, self._saved[at] + over) - at


class _Enough(Exception):
    """The limit on nodes is reached."""


class Search:
    """One search. `below` is the cost that a placement has to stay under."""

    def __init__(
        self,
        items: Sequence[Item],
        capacity: Sequence[int],
        host: int,
        *,
        below: Cost = NO_COST_YET,
        limit: int,
        first: bool = False,
        joins_first: bool = False,
    ) -> None:
        # Wide ones first, then the largest; the order of the file plays no part.
        self._items = sorted(items, key=lambda i: (i.wide is None, -i.size, not i.keep, i.id))
        self._room, self._host = list(capacity), host
        self._best = below
        self._found: Found | None = None
        self._limit, self._first, self._joins_first = limit, first, joins_first
        self._sets: list[_Set] = []
        self._nodes = 0
        self._all = _Sizes([item.size for item in self._items])
        self._pooled = _Sizes([item.size * item.pooled for item in self._items])
        least = list(accumulate((_least_way(item) for item in reversed(self._items)), min))
        self._least = [*reversed(least), 0]
        # Of items that differ in size alone, the smallest are resident: once one could have joined
        # a set at no cost and was made resident, no smaller one of its kind joins (`_chosen`).
        self._plain = [_plain(item, capacity) for item in self._items]
        self._chosen: dict[bool, list[int]] = {True: [], False: []}
        self._wides = sum(item.wide is not None for item in self._items)
        self._kind = _kinds(self._items, capacity)
        # Wide ones take at least so many devices beyond one, whatever else there is.
        self._floor = sum(_extra(item.wide, capacity) for item in self._items if item.wide)

    def run(self) -> Found | None:
        """The best placement below the bound, or None. With a limit: the best that was seen."""
        if all(item.ways or item.wide for item in self._items):
            with contextlib.suppress(_Enough):
                self._place(0, (0, 0, self._floor, 0))
        return self._found

    @property
    def exhausted(self) -> bool:
        """Whether the limit ended it."""
        return self._nodes > self._limit

    def _place(self, at: int, cost: Cost, *, settled: bool = False) -> None:
        self._nodes += 1
        if self._nodes > self._limit:
            raise _Enough
        if at == self._wides and not settled and self._sets:
            for _ in self._territories([group for group in self._sets if group.wide]):
                self._place(at, cost, settled=True)
            return
        if at == len(self._items):
            self._finish(cost)
            return
        pooled, lost, extra, moved = cost
        room = self._usable(at)
        if room is None:
            return
        least = (pooled + self._pooled.over(at, room), lost + self._all.over(at, room))
        if (*least, extra, moved) >= self._best:
            return
        item = self._items[at]
        joins, free = self._joins(item)
        kind = self._plain[at]
        if kind is not None and any(host >= item.host for host in self._chosen[kind]):
            joins, free = [], False
        opens = self._opens(item)
        chosen = self._chosen[kind] if kind is not None and free else []
        for group, way in [*joins, *opens] if self._joins_first else [*opens, *joins]:
            after = self._cost(cost, item, group, way)
            if after < self._best:
                undo = self._take(item, group, way)
                chosen.append(item.host if group is None else -1)
                self._place(at + 1, after, settled=settled)
                chosen.pop()
                self._untake(group, undo)

    def _usable(self, at: int) -> int | None:
        """Room that items from `at` could be resident in; None when the wide ones lack theirs."""
        wide = [group for group in self._sets if group.wide]
        if not wide:
            return sum(room for room in self._room if room >= self._least[at])
        room = sum(self._room)
        for group in wide:
            volume = group.volume()
            room -= volume
            if room < 0 or (group.territory and self._in(group.territory) < volume):
                return None
        return room

    def _in(self, territory: tuple[int, ...]) -> int:
        """Room on these devices together."""
        return sum(self._room[device] for device in territory)

    def _opens(self, item: Item) -> list[tuple[_Set | None, Way | None]]:
        """Ways to be resident: at home first, then where the least room is left over."""
        if item.host > self._host:
            return []
        if item.wide is not None:
            return [(None, None)]
        fits = []
        seen = set()
        for way in item.ways:
            if all(need <= self._room[device] for device, need in way):
                key = tuple(self._alike(device) for device, _ in way)
                if key not in seen:
                    seen.add(key)
                    left = sum(self._room[device] - need for device, need in way)
                    fits.append((_devices(way) != item.home, left, way))
        return [(None, way) for _, _, way in sorted(fits)]

    def _alike(self, device: int) -> object:
        """Devices with equal keys lead to equal searches: one of them is enough."""
        if self._kind[device] is None:
            return device
        there = sorted(
            (group.charge[device], len(group.members), group.keep, group.pooled)
            for group in self._sets
            if device in group.charge
        )
        if any(device in g.charge and len(g.charge) > 1 for g in self._sets):
            return device
        return (self._kind[device], self._room[device], tuple(there))

    def _joins(self, item: Item) -> tuple[list[tuple[_Set | None, Way | None]], bool]:
        """Swap sets that it may join: what spoils no pooled resident first, then what grows least.

        Of sets that need not grow for it one is as good as another, and better than any that does:
        nothing that is placed later can tell the difference. True if there is one that is free.
        """
        if item.keep:
            return [], False
        free: dict[tuple[int, bool], tuple[int, int, int]] = {}
        joins: list[tuple[int, int, int, Way | None]] = []
        for number, group in enumerate(self._sets):
            if group.keep or item.host - group.host > self._host:
                continue
            spoiled = int(group.pooled and len(group.members) == 1)
            if group.wide:
                joins.append((spoiled, 0, number, None))
                continue
            for at, way in enumerate(item.ways):
                more = _more(group, way)
                if not more and item.host <= group.host:
                    key = (spoiled, _devices(way) == item.home)
                    free[key] = min(free.get(key, (len(way), number, at)), (len(way), number, at))
                elif more != way and all(need <= self._room[device] for device, need in more):
                    joins.append((spoiled, sum(need for _, need in more), number, way))
        if (0, True) in free or ((0, False) in free and not item.home):
            joins = []
        first = sorted(free.items(), key=lambda each: (each[0][0], not each[0][1]))
        ordered: list[tuple[_Set | None, Way | None]] = [
            (self._sets[number], item.ways[at]) for _, (_, number, at) in first
        ]
        ordered += [(self._sets[number], way) for _, _, number, way in sorted(joins, key=_order)]
        return ordered, (0, False) in free or (0, True) in free

    def _cost(self, cost: Cost, item: Item, group: _Set | None, way: Way | None) -> Cost:
        pooled, lost, extra, moved = cost
        if group is not None:
            lost += 1
            pooled += int(item.pooled) + int(group.pooled and len(group.members) == 1)
        if way is not None and item.home:
            moved += int(_devices(way) != item.home)
        return (pooled, lost, extra, moved)

    def _take(self, item: Item, group: _Set | None, way: Way | None) -> tuple[Way, int]:
        """Books it, and returns what has to be given back."""
        if group is None:
            group = _Set(item, way)
            self._sets.append(group)
            more, host = way or (), item.host
        else:
            more = _more(group, way) if way is not None else ()
            host = max(0, item.host - group.host)
            for device, need in more:
                group.charge[device] = group.charge.get(device, 0) + need
            group.host += host
            group.members.append((item, way))
        for device, need in more:
            self._room[device] -= need
        self._host -= host
        return more, host

    def _untake(self, group: _Set | None, undo: tuple[Way, int]) -> None:
        more, host = undo
        for device, need in more:
            self._room[device] += need
        self._host += host
        if group is None:
            self._sets.pop()
            return
        group.members.pop()
        group.host -= host
        for device, need in more:
            group.charge[device] -= need
            if not group.charge[device]:
                del group.charge[device]

    def _finish(self, cost: Cost) -> None:
        """All items have their sets: gives the wide ones their devices, and keeps the best."""
        pooled, lost, extra, moved = cost
        extra -= self._floor
        chosen: dict[str, tuple[tuple[int, ...], Way | None]] = {}
        for group in self._sets:
            if group.wide:
                inside = self._inside(group)
                if inside is None:
                    return
                chosen |= inside[0]
                extra, moved = extra + inside[1], moved + inside[2]
        after = (pooled, lost, extra, moved)
        if after < self._best:
            self._best = after
            self._found = Found(cost=after, placed=tuple(self._placed(chosen)))
            if self._first:
                raise _Enough

    def _placed(self, chosen: dict[str, tuple[tuple[int, ...], Way | None]]) -> Iterator[Placed]:
        for number, group in enumerate(self._sets):
            for item, way in group.members:
                devices, taken = chosen.get(item.id) or (_devices(way or ()), way)
                yield Placed(item=item, group=number, devices=devices, way=taken)

    def _territories(self, wide: list[_Set], used: frozenset[int] = frozenset()) -> Iterator[None]:
        """Gives each set of wide items devices of its own, in every way that differs."""
        free = tuple(device for device in range(len(self._room)) if device not in used)
        group, others = wide[0], wide[1:]
        for territory in self._candidates(group, free, last=not others):
            if self._in(territory) >= group.volume():
                group.territory = territory
                if others:
                    yield from self._territories(others, used | set(territory))
                else:
                    yield
        group.territory = ()

    def _candidates(
        self, group: _Set, free: tuple[int, ...], *, last: bool
    ) -> Iterator[tuple[int, ...]]:
        """Territories of a set: the last one gets what is left, the others the fewest first."""
        if last:
            yield free
        elif len(free) > EXACT_DEVICES:
            group.territory = free
            inside = self._inside(group)
            devices = (
                {device for taken, _ in inside[0].values() for device in taken} if inside else ()
            )
            yield tuple(sorted(devices))
        else:
            seen = set()
            for count in range(2, len(free) + 1):
                for territory in combinations(free, count):
                    key = tuple(sorted(repr(self._alike(device)) for device in territory))
                    if key not in seen:
                        seen.add(key)
                        yield territory

    def _inside(
        self, group: _Set
    ) -> tuple[dict[str, tuple[tuple[int, ...], Way | None]], int, int] | None:
        """Every member of a wide set within its territory: who takes which, devices, moves."""
        territory = group.territory
        chosen: dict[str, tuple[tuple[int, ...], Way | None]] = {}
        extra = moved = 0
        for item, _ in group.members:
            if item.wide is not None:
                within = tuple(device for device in item.wide.devices if device in territory)
                narrowed = msgspec.structs.replace(item.wide, devices=within)
                devices = fewest(narrowed, self._room, item.home)
                if devices is None:
                    return None
                chosen[item.id] = (devices, None)
                extra += len(devices) - 1
                moved += int(bool(item.home) and devices != item.home)
                continue
            fits = [
                (bool(item.home) and _devices(way) != item.home, way)
                for way in item.ways
                if all(d in territory and need <= self._room[d] for d, need in way)
            ]
            if not fits:
                return None
            there, way = min(fits)
            moved += int(there)
            chosen[item.id] = (_devices(way), way)
        return chosen, extra, moved


def _order(join: tuple[int, int, int, Way | None]) -> tuple[int, int, int]:
    return join[:3]


def _devices(way: Way) -> tuple[int, ...]:
    return tuple(device for device, _ in way)


def _more(group: _Set, way: Way) -> Way:
    """What a set has to grow by on each device to hold this way too."""
    grown = ((device, need - group.charge.get(device, 0)) for device, need in way)
    return tuple((device, need) for device, need in grown if need > 0)


def _extra(wide: Wide, capacity: Sequence[int]) -> int:
    """Devices beyond one that a wide item takes on an empty machine."""
    return len(fewest(wide, capacity) or (0, 0)) - 1


def _plain(item: Item, capacity: Sequence[int]) -> bool | None:
    """The kind of an item that takes the same on every device that is large enough, else None."""
    if item.wide is not None or item.keep or item.home:
        return None
    size = item.size
    everywhere = tuple(((at, size),) for at, room in enumerate(capacity) if room >= size)
    return item.pooled if item.ways == everywhere else None


def _least_way(item: Item) -> int:
    """The least that it takes on any one device."""
    return min((need for way in item.ways for _, need in way), default=0)


def _kinds(items: Sequence[Item], capacity: Sequence[int]) -> list[object]:
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
    return [
        None if device in special else (size, tuple(needs.get(device) for needs in alone))
        for device, size in enumerate(capacity)
    ]
