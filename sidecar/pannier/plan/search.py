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
from collections.abc import Iterator, Sequence
from itertools import accumulate, combinations, permutations, product
from typing import Literal

from pannier.plan.bounds import Entry, Shares, Units, best_pair
from pannier.plan.items import (
    NO_COST_YET,
    Cost,
    Found,
    Item,
    Placed,
    Way,
    devices_of,
    even_on_all,
    fits_alone,
    kinds_of,
    least_on_one,
    turn_of,
)
from pannier.plan.swap_set import Chosen, SwapSet, more_for, put_inside
from pannier.plan.wide import EXACT_DEVICES, Wide, fewest

Mode = Literal["best", "first", "pooled", "one set"]
"""What is asked for: the best; any; the fewest pooled that share, whatever else it costs; any in
which all that may be swapped out share one set."""

BEST: Mode = "best"
FIRST: Mode = "first"
POOLED: Mode = "pooled"
ONE_SET: Mode = "one set"


PARTS = 16
"""One choice of territories gets such a part of the nodes: there is often one that is easier."""


class _Enough(Exception):
    """The limit on nodes is reached, or what was asked for is found."""


Choice = tuple[SwapSet | None, Way | None]
"""The set to join (None: a new one), and the way."""


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
        mode: Mode = BEST,
    ) -> None:
        self._possible = all(fits_alone(item, capacity) for item in items)
        if not self._possible:
            items = []
        # Wide ones first, then those that may stay, then the largest; the order of the file plays
        # no part.
        self._items = sorted(items, key=turn_of)
        self._sizes = [item.size for item in self._items]
        self._room, self._host = list(capacity), host
        self._best = below
        self._found: Found | None = None
        self._limit, self._first = limit, mode in (FIRST, ONE_SET)
        self._pooled_only, self._one_set = mode == POOLED, mode == ONE_SET
        self._sets: list[SwapSet] = []
        self._on: list[list[SwapSet]] = [[] for _ in capacity]
        self.nodes = 0  # how many were looked at
        self.exhausted = False  # whether the limit ended it, or a part of it
        self._until, self._done = limit, False
        self.beyond = NO_COST_YET[1]  # the fewest sharing among what was turned down for its cost
        # Of items that differ in size alone, the smallest are resident: once one could have joined
        # a set at no cost and was made resident, no smaller one of its kind joins (`_chosen`).
        even = [even_on_all(item, capacity) for item in self._items]
        self._plain = [
            item.pooled if same and not item.keep else None
            for item, same in zip(self._items, even, strict=True)
        ]
        self._chosen: tuple[list[int], list[int]] = ([], [])
        self._even = [*reversed(list(accumulate(reversed(even), min))), True]
        hosts = accumulate((item.host for item in reversed(self._items)), max)
        self._tallest = [*reversed(list(hosts)), 0]
        self._shares = Shares([*map(_entry, self._items, self._plain)], len(self._room), host)
        self._scarce = sum(item.host for item in self._items) > host
        self._wides = [(item, Units(item.wide)) for item in self._items if item.wide is not None]
        self._kind = kinds_of(self._items, capacity)
        self._alone = [{w[0][0]: w for w in item.ways if len(w) == 1} for item in self._items]
        self._several = [[w for w in item.ways if len(w) != 1] for item in self._items]
        self._floor = [_extra(item.wide, capacity) for item, _ in self._wides if item.wide]

    def run(self) -> Found | None:
        """The best placement below the bound, or None. With a limit: the best that was seen."""
        if self._possible:
            with contextlib.suppress(_Enough):
                self._place(0, (0, 0, sum(self._floor), 0), settled=not self._wides)
        return self._found

    def _tick(self) -> None:
        self.nodes += 1
        if self.nodes > self._until:
            self.exhausted = True
            raise _Enough

    def _settle(self, at: int, cost: Cost) -> None:
        """Goes on with each choice of territories; with a limit, not with one of them for ever."""
        for _ in self._territories([group for group in self._sets if group.wide]):
            spread = self._spread()
            if spread is None:
                continue
            self._until = min(self._limit, self.nodes + 2 * len(self._items) + self._limit // PARTS)
            try:
                self._place(at, (*cost[:2], spread, cost[3]), settled=True)
            except _Enough:
                if self._done or self.nodes >= self._limit:
                    raise
            finally:
                self._until = self._limit

    def _place(self, at: int, cost: Cost, *, settled: bool) -> None:
        self._tick()
        if at == len(self._wides) and not settled:
            self._settle(at, cost)
            return
        shares = self._least(at, cost)
        if shares is None:
            return
        if at == len(self._items):
            self._finish(cost)
            return
        choices, kind = self._choices(at, cost, shares)
        chosen = [] if kind is None else self._chosen[kind]
        for group, way in choices:
            after = self._cost(cost, self._items[at], group, way)
            if self._worse(after) or (self._pooled_only and after[0] >= self._best[0]):
                continue
            opened, more, host = self._take(self._items[at], group, way)
            chosen.append(self._items[at].host if group is None else -1)
            try:
                spread = self._spread() if settled and more and self._wides else after[2]
                if spread is not None:
                    self._place(at + 1, (*after[:2], spread, after[3]), settled=settled)
            finally:
                chosen.pop()
                self._untake(opened, more, host, new=group is None)

    def _least(self, at: int, cost: Cost) -> tuple[int, int] | None:
        """Pooled ones and all that share at least from here on; None if that is no better."""
        pooled, lost, extra, moved = cost
        wide = sum([group.lacks() for group in self._sets if group.wide])
        if at == len(self._items):
            return None if sum(self._room) < wide or cost >= self._best else (0, 0)
        most = max([group.host for group in self._sets if not group.keep], default=0)
        if self._tallest[at] > most + self._host:
            return None
        held = (self._holds(False, at), self._holds(True, at))
        shares = self._shares.least(at, self._room, wide, self._host, held)
        if shares is None:
            return None
        if self._pooled_only:
            return None if pooled + shares[0] >= self._best[0] else shares
        least = (pooled + shares[0], lost + shares[1], extra, moved)
        return None if self._worse(least) else shares

    def _worse(self, cost: Cost) -> bool:
        """Whether it is no better than what is found; remembers the least that was turned down."""
        if cost < self._best:
            return False
        if cost[0] <= self._best[0]:
            self.beyond = min(self.beyond, cost[1])
        return True

    def _holds(self, kind: bool, at: int) -> bool:
        """Whether no item of this kind from `at` on joins a set any more."""
        return max(self._chosen[kind], default=-1) >= self._tallest[at]

    def _choices(
        self, at: int, cost: Cost, shares: tuple[int, int]
    ) -> tuple[list[Choice], bool | None]:
        """What to try with an item; its kind when making it resident binds the smaller ones."""
        item, kind = self._items[at], self._plain[at]
        joins: list[Choice] = []
        free = False
        bound = kind is not None and any(host >= item.host for host in self._chosen[kind])
        shared = (cost[0], cost[1] + (not self._pooled_only), *cost[2:])
        if not (bound or item.keep or self._worse(shared)):
            joins, free = self._joins(at)
        if self._pooled_only and free and not item.pooled:
            return joins[:1], None
        if self._one_set and not item.keep and any(not group.keep for group in self._sets):
            return joins, None
        opens = self._opens(at)
        # If some have to share, then the largest, which leave the most room to others.
        joins_first = shares[0 if item.pooled else 1] > 0 or (self._pooled_only and not item.pooled)
        choices = [*joins, *opens] if joins_first else [*opens, *joins]
        return choices, kind if free else None

    def _spread(self) -> int | None:
        """Devices beyond one that the wide ones take at least; None when they lack room."""
        within = {
            item.id: (group.territory, group.rooms(self._room) if group.charge else self._room)
            for group in self._sets
            if group.wide
            for item, _ in group.members
        }
        total = 0
        for (item, units), floor in zip(self._wides, self._floor, strict=True):
            territory, rooms = within[item.id]
            devices = units.devices(rooms, territory)
            if devices is None:
                return None
            total += max(floor, devices - 1)
        return total

    def _opens(self, at: int) -> list[Choice]:
        """Ways to be resident: at home first, then where the least room is left over."""
        item = self._items[at]
        if item.host > self._host:
            return []
        if item.wide is not None:
            return [(None, None)]
        fits = []
        seen = set()
        for way in item.ways:
            if all(need <= self._room[device] for device, need in way):
                key = tuple([self._alike(device) for device, _ in way])
                if key not in seen:
                    seen.add(key)
                    left = sum([self._room[device] - need for device, need in way])
                    fits.append((devices_of(way) != item.home, left, way))
        fits.sort()
        if len(fits) > 1 and self._even[at] and not self._wides:
            fits = [fit for fit in fits if self._closes(at, fit[2])][:1] or fits
        return [(None, way) for _, _, way in fits]

    def _closes(self, at: int, way: Way) -> bool:
        """Whether nothing that is left would fill this device better than the item alone.

        Then there is no need to try it elsewhere: what would be here could change places with it
        (Martello and Toth's dominance for bins). True only of items that take the same everywhere.
        """
        device, room = way[0][0], self._room[way[0][0]]
        size, left = self._sizes[at], self._sizes[at + 1 :]
        if any(not group.keep and group.charge[device] < size for group in self._on[device]):
            return False
        if len(left) < 2 or left[-1] + left[-2] > room:
            return True
        if len(left) > 2 and sum(left[-3:]) <= room:
            return False
        return best_pair(left, room) <= size

    def _alike(self, device: int) -> object:
        """Devices with equal keys lead to equal searches: one of them is enough."""
        if self._kind[device] is None:
            return device
        there = [
            (g.charge[device], len(g.members), g.keep, g.pooled, g.host) for g in self._on[device]
        ]
        if any(len(group.charge) > 1 for group in self._on[device]):
            return device
        territory = [n for n, g in enumerate(self._sets) if device in g.territory]
        return (self._kind[device], self._room[device], tuple(sorted(there)), tuple(territory))

    def _joins(self, at: int) -> tuple[list[Choice], bool]:
        """Swap sets that it may join: what spoils no pooled resident first, then what grows least.

        Of sets that need not grow for it one is as good as another, and better than any that does:
        nothing that is placed later can tell the difference. True if there is one that is free.
        """
        item = self._items[at]
        free: dict[tuple[int, bool, int], tuple[int, Way | None]] = {}
        joins: list[tuple[int, int, int, Way | None]] = []
        for number, group in enumerate(self._sets):
            if group.keep or item.host - group.host > self._host:
                continue
            spoiled = int(group.spoiled())
            for more, way in self._grown(at, group):
                if more == 0 and item.host <= group.host:
                    at_home = way is not None and devices_of(way) == item.home
                    # Which pooled resident shares first does make a difference.
                    free.setdefault((spoiled, not at_home, number * spoiled), (number, way))
                else:
                    joins.append((spoiled, max(0, more), number, way))
        if (0, False, 0) in free or ((0, True, 0) in free and not item.home):
            joins = []
        ranked = [(spoiled, -1, n, way) for (spoiled, _, _), (n, way) in sorted(free.items())]
        ranked += sorted(joins, key=_order)
        ranked.sort(key=lambda join: join[0])
        ordered: list[Choice] = [(self._sets[number], way) for _, _, number, way in ranked]
        return ordered, (0, False, 0) in free or (0, True, 0) in free

    def _grown(self, at: int, group: SwapSet) -> Iterator[tuple[int, Way | None]]:
        """Ways into a set, and by how much it would grow; -1 when that is seen at the end."""
        item, alone = self._items[at], self._alone[at]
        if item.wide is not None:
            if group.wide:
                yield -1, None
            return
        for device, charge in group.charge.items():
            way = alone.get(device)
            if way is not None:
                more = max(0, way[0][1] - charge)
                if more <= self._room[device]:
                    yield more, way
        # On other devices it could as well be resident, were it not for RAM, or for a wide member
        # that takes them anyway.
        elsewhere = self._scarce or group.wide
        others = [way for device, way in alone.items() if device not in group.charge]
        seen = set()
        for way in [*self._several[at], *(others if elsewhere else ())]:
            grown = more_for(group, way)
            if group.wide and not all(device in group.territory for device, _ in way):
                continue
            if (elsewhere or grown != way or not way) and all(
                need <= self._room[device] for device, need in grown
            ):
                key = tuple([self._alike(device) for device, _ in way])
                if key not in seen:
                    seen.add(key)
                    yield sum([need for _, need in grown]), way

    def _cost(self, cost: Cost, item: Item, group: SwapSet | None, way: Way | None) -> Cost:
        pooled, lost, extra, moved = cost
        if group is not None:
            lost += not self._pooled_only
            pooled += int(item.pooled) + int(group.spoiled())
        if way is not None and item.home:
            moved += int(devices_of(way) != item.home)
        return (pooled, lost, extra, moved)

    def _take(self, item: Item, group: SwapSet | None, way: Way | None) -> tuple[SwapSet, Way, int]:
        """Books it, and returns what has to be given back."""
        if group is None:
            group = SwapSet(item)
            self._sets.append(group)
        more = more_for(group, way) if way is not None else ()
        host = max(0, item.host - group.host)
        for device, need in more:
            if device not in group.charge:
                self._on[device].append(group)
            group.charge[device] = group.charge.get(device, 0) + need
            self._room[device] -= need
        group.host += host
        group.members.append((item, way))
        self._host -= host
        return group, more, host

    def _untake(self, group: SwapSet, more: Way, host: int, *, new: bool) -> None:
        for device, need in more:
            self._room[device] += need
            group.charge[device] -= need
            if not group.charge[device]:
                del group.charge[device]
                self._on[device].pop()
        self._host += host
        group.host -= host
        group.members.pop()
        if new:
            self._sets.pop()

    def _finish(self, cost: Cost) -> None:
        """All items have their sets: gives the wide ones their devices, and keeps the best."""
        if not self._wides:
            self._keep(cost, {}, tuple(range(len(self._room))))
            return
        for where in self._arrangements():
            rooms = [0] * len(where)
            for device, there in enumerate(where):
                rooms[there] = self._room[device]
            chosen: Chosen = {}
            extra, moved = 0, cost[3]
            for group in self._sets:
                if group.wide:
                    territory = tuple(sorted(where[device] for device in group.territory))
                    inside = put_inside(group, territory, group.rooms(rooms, where))
                    if inside is None:
                        break
                    chosen |= inside[0]
                    extra, moved = extra + inside[1], moved + inside[2]
            else:
                self._keep((cost[0], cost[1], extra, moved), chosen, where)
                if extra == cost[2] and moved == cost[3]:
                    return

    def _keep(self, cost: Cost, chosen: Chosen, where: tuple[int, ...]) -> None:
        if cost < self._best:
            self._best = cost
            self._found = Found(cost=cost, placed=tuple(self._placed(chosen, where)))
            if self._first:
                self._done = True
                raise _Enough

    def _placed(self, chosen: Chosen, where: tuple[int, ...]) -> Iterator[Placed]:
        for number, group in enumerate(self._sets):
            for item, way in group.members:
                moved = tuple((where[device], need) for device, need in way or ())
                devices, taken = chosen.get(item.id) or (devices_of(moved), moved)
                yield Placed(item=item, group=number, devices=devices, way=taken)

    def _arrangements(self) -> Iterator[tuple[int, ...]]:
        """Devices that are the same, in every order that differs: to a split the order matters."""
        yield tuple(range(len(self._room)))
        if len(self._room) > EXACT_DEVICES:
            return
        classes: dict[object, list[int]] = {}
        for device, kind in enumerate(self._kind):
            classes.setdefault(device if kind is None else (kind,), []).append(device)
        seen = set()
        for orders in product(*(permutations(alike) for alike in classes.values())):
            where = [0] * len(self._room)
            for alike, order in zip(classes.values(), orders, strict=True):
                for device, there in zip(alike, order, strict=True):
                    where[device] = there
            key = tuple(self._alike(where.index(there)) for there in range(len(where)))
            if key not in seen:
                seen.add(key)
                self._tick()
                yield tuple(where)

    def _territories(
        self, wide: list[SwapSet], used: frozenset[int] = frozenset()
    ) -> Iterator[None]:
        """Gives each set of wide items devices of its own, in every way that differs."""
        free = tuple(device for device in range(len(self._room)) if device not in used)
        group, others = wide[0], wide[1:]
        for territory in self._candidates(group, free, last=not others):
            if sum(self._room[device] for device in territory) >= group.lacks():
                group.territory = territory
                if others:
                    yield from self._territories(others, used | set(territory))
                else:
                    yield
                group.territory = ()

    def _candidates(
        self, group: SwapSet, free: tuple[int, ...], *, last: bool
    ) -> Iterator[tuple[int, ...]]:
        """Territories of a set: the last one gets what is left, the others the fewest first."""
        if last:
            yield free
        elif len(free) > EXACT_DEVICES:
            inside = put_inside(group, free, self._room)
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


def _order(join: tuple[int, int, int, Way | None]) -> tuple[int, int, int]:
    return join[:3]


def _extra(wide: Wide, capacity: Sequence[int]) -> int:
    """Devices beyond one that a wide item takes on an empty machine."""
    if len(capacity) > EXACT_DEVICES:
        return 1
    return len(fewest(wide, capacity) or (0, 0)) - 1


def _entry(item: Item, kind: bool | None) -> Entry:
    alone = item.wide is None and all(len(way) == 1 for way in item.ways)
    return Entry(
        size=item.size,
        least=least_on_one(item),
        host=item.host,
        pooled=item.pooled,
        kind=kind,
        alone=alone and item.size > 0,
    )
