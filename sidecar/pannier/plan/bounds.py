"""What no placement can get round: how many items have to share, and how far a model is split.

The search drops a branch when even these bounds make it no better than what is found already. They
look at numbers alone, never at who could take which device, so that each costs microseconds: by
volume (what does not fit into the room that is left has to share), by count (a device of 24 GiB
holds two items of 11 GiB and no third), and for split models by whole units. Each may be too
hopeful, none may ever be too dark: the brute force of the tests finds a bound that is.

Must not: know what an item is beyond its sizes, or decide anything.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import accumulate

import msgspec

from pannier.plan.wide import Wide

COUNTED = 512
"""Items times devices up to which they are counted too; beyond, volume alone has to do."""


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """What a bound knows of an item: its least bytes in all and on any one device, its RAM.

    `kind` is set when it is like all others of its kind but for its size; `alone` when it is on one
    device whatever happens.
    """

    size: int
    least: int
    host: int
    pooled: bool
    kind: bool | None
    alone: bool


class _Over:
    """By volume: the fewest items from one on without which the others fit."""

    def __init__(self, sizes: Sequence[int | None]) -> None:
        kept = [size for size in sizes if size is not None]
        self._start = (0, *accumulate(size is not None for size in sizes))
        self._total = (0, *accumulate(kept))
        # Without an item no more than its own size is saved. Upper bounds that fall, so that the
        # first are the largest.
        self._saved = (0, *accumulate(list(accumulate(reversed(kept), max))[::-1]))

    def total(self, at: int) -> int:
        """Bytes of all from `at`."""
        return self._total[-1] - self._total[self._start[at]]

    def over(self, at: int, room: int) -> int:
        """How many; more than there are when not even none of them would fit."""
        start = self._start[at]
        over = self._total[-1] - self._total[start] - room
        return 0 if over <= 0 else bisect_left(self._saved, self._saved[start] + over) - start


class Shares:
    """The fewest items that share, of those not yet placed (in the order of the search)."""

    def __init__(self, entries: Sequence[Entry], devices: int, host: int) -> None:
        counts = len(entries) * devices <= COUNTED
        self._falling = [
            sorted((e for e in entries[at:] if e.alone), key=lambda e: -e.size) if counts else []
            for at in range(len(entries) + 1)
        ]
        least = accumulate((entry.least for entry in reversed(entries)), min)
        self._least = (*reversed(tuple(least)), 0)
        self._entries = entries
        self._by_volume: dict[tuple[bool, bool], tuple[_Over, _Over, _Over]] = {}
        self._hosts = None
        if sum(entry.host for entry in entries) > host:
            self._hosts = _Over([entry.host for entry in entries])

    def least(
        self,
        at: int,
        rooms: Sequence[int],
        wide: int,
        host: int,
        held: tuple[bool, bool],
    ) -> tuple[int, int] | None:
        """Pooled items that share, and all that do, from `at` on; None when it cannot be.

        `rooms` is what each device has for them at most, `wide` what split ones before `at` will
        take of that; of the kinds that are `held` (not pooled, pooled) none may share any more.
        """
        least = self._least[at]
        room = sum([room for room in rooms if room >= least])
        if wide:
            room = min(room, sum(rooms) - wide)
        if held not in self._by_volume:
            self._by_volume[held] = self._volumes(held)
        settled, others, of_pooled = self._by_volume[held]
        room -= settled.total(at)
        if room < 0:
            return None
        pooled, least = of_pooled.over(at, room), others.over(at, room)
        if self._hosts is not None:
            least = max(least, self._hosts.over(at, host))
        if self._falling[at]:
            counted = self._count(at, rooms, wide, held)
            if counted is None:
                return None
            pooled, least = max(pooled, counted[0]), max(least, counted[1])
        return pooled, max(pooled, least)

    def _volumes(self, held: tuple[bool, bool]) -> tuple[_Over, _Over, _Over]:
        """Those that are held; all others; the pooled ones of the others."""
        bound = [entry.kind is not None and held[entry.kind] for entry in self._entries]
        each = list(zip(self._entries, bound, strict=True))
        return (
            _Over([entry.size if held else None for entry, held in each]),
            _Over([None if held else entry.size for entry, held in each]),
            _Over([None if held or not entry.pooled else entry.size for entry, held in each]),
        )

    def _count(
        self, at: int, rooms: Sequence[int], wide: int, held: tuple[bool, bool]
    ) -> tuple[int, int] | None:
        """Of the largest alone: only so many have a place each, and room on large enough devices.

        What is split may as well take the small devices, and only the rest of it the large ones.
        """
        there_pooled = volume = least = least_pooled = 0
        free, free_pooled = [0], 0
        for there, entry in enumerate(self._falling[at], 1):
            size = entry.size
            bound = entry.kind is not None and held[entry.kind]
            volume += size
            there_pooled += bound or entry.pooled
            if not bound:
                free.append(free[-1] + size)
                free_pooled += entry.pooled
            places = sum([room // size for room in rooms])
            least = max(least, there - places)
            least_pooled = max(least_pooled, there_pooled - places)
            large = [room for room in rooms if room >= size]
            over = volume - sum(large) + max(0, wide - (sum(rooms) - sum(large)))
            if over > 0:
                least = max(least, bisect_left(free, over))
            if least >= len(free) or least_pooled > free_pooled:
                return None
        return least_pooled, least


class Units:
    """The fewest devices of a split, by whole units, as if their order made no difference."""

    def __init__(self, wide: Wide) -> None:
        sizes = [
            after - before for before, after in zip(wide.prefix, wide.prefix[1:], strict=False)
        ]
        self._smallest = (0, *accumulate(sorted(sizes)))
        self._beside = min(wide.place)
        self._allowed = frozenset(wide.devices)

    def devices(self, rooms: Sequence[int], within: Sequence[int]) -> int | None:
        """How many of these devices at least; None when they cannot hold it."""
        smallest, beside = self._smallest, self._beside
        units = [
            bisect_right(smallest, rooms[device] - beside) - 1
            for device in within
            if device in self._allowed and rooms[device] > beside
        ]
        left, count = len(smallest) - 1, 0
        for most in sorted(units, reverse=True):
            if left <= 0 or most == 0:
                break
            left -= most
            count += 1
        return None if left > 0 else max(2, count)


def best_pair(sizes: Sequence[int], room: int) -> int:
    """The most that two of these falling sizes take of a room; 0 when no two fit."""
    best, low, high = 0, 0, len(sizes) - 1
    while low < high:
        if sizes[low] + sizes[high] > room:
            low += 1
        else:
            best = max(best, sizes[low] + sizes[high])
            high -= 1
    return best
