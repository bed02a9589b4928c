"""The best placement by trying every one: all swap sets, all devices, all splits.

Nothing is left out but what is already over a capacity, or no better than the best seen: memory
and cost only grow while items are added. A model that is split is one more list of ways here, one
for each run of units on each choice of devices, so that no rule of filling is taken on trust.
"""

from collections.abc import Iterator, Sequence
from itertools import combinations
from operator import add, getitem, gt

import msgspec

from pannier.plan.items import Item
from pannier.plan.wide import Wide

Key = tuple[int, int, int, int, int]
"""Pooled items in swap sets; joins; devices beyond one each; moves; minus the headroom."""

NONE: Key = (1 << 30, 0, 0, 0, 0)


class Option(msgspec.Struct, frozen=True):
    """One way of one item: bytes on every device (0: not there), and what it costs."""

    bytes: tuple[int, ...]
    mask: int
    extra: int
    moved: int


class Members(msgspec.Struct, frozen=True):
    """A swap set so far: its largest member per device and of RAM."""

    bytes: tuple[int, ...]
    mask: int
    host: int
    count: int
    pooled: int
    keep: bool
    wide: bool


def answer(
    levels: Sequence[Sequence[Item]], capacity: Sequence[int], host: int
) -> tuple[int, Key] | None:
    """The level of context and the key of the best placement, or None when there is none."""
    last = best(levels[-1], capacity, host)
    for level, items in enumerate(levels[:-1]):
        found = best(items, capacity, host, below=(last[0], last[1] + 1, 0, 0, -8))
        if found != NONE:
            return level, found
    return None if last == NONE else (len(levels) - 1, last)


def best(unsorted: Sequence[Item], capacity: Sequence[int], host: int, *, below: Key = NONE) -> Key:
    """The least key of all placements that stay below; NONE when there is none."""
    if not all(item.ways or item.wide for item in unsorted):
        return NONE
    items = sorted(unsorted, key=lambda item: -item.size)  # sooner over a capacity, or done well
    options = [sorted(_options(item, capacity), key=_price) for item in items]
    if not all(options):
        return NONE
    # What the items from one on cost whatever the others do.
    extra = [sum(each[0].extra for each in options[at:]) for at in range(len(items) + 1)]
    evenness = [_evenness(size) for size in capacity]
    least = below

    def go(at: int, sets: tuple[Members, ...], used: tuple[int, ...], key: Key) -> None:
        nonlocal least
        if at == len(items):
            least = min(least, key)
            return
        item = items[at]
        for number, old in reversed(tuple(enumerate((*sets, None)))):
            if old is not None and (old.keep or item.keep):
                continue
            was = old or Members((0,) * len(capacity), 0, 0, 0, 0, False, False)
            pooled, joins, before, moved, _ = key
            if old is not None:
                pooled += item.pooled + (old.pooled if old.count == 1 else 0)
                joins += 1
            if (pooled, joins, before + extra[at]) > least[:3]:
                continue
            for option in options[at]:
                now = tuple(map(add, used, map(_grown, was.bytes, option.bytes)))
                if any(map(gt, now, capacity)):
                    continue
                new = _with(was, item, option)
                after = (*sets[:number], new, *sets[number + 1 :])
                headroom = min(map(getitem, evenness, now))
                cost = (pooled, joins, before + option.extra, moved + option.moved, -headroom)
                surely = (*cost[:2], cost[2] + extra[at + 1], *cost[3:])
                ram = sum(each.host for each in after)
                if surely < least and ram <= host and not _overlap(after):
                    go(at + 1, after, now, cost)

    go(0, (), (0,) * len(capacity), (0, 0, 0, 0, -7))
    return NONE if least == below else least


def _price(option: Option) -> tuple[int, int]:
    return option.extra, option.moved


def _grown(was: int, need: int) -> int:
    """How much a set's largest member grows by."""
    return need - was if need > was else 0


def _with(old: Members, item: Item, option: Option) -> Members:
    """The set with one more member."""
    return Members(
        tuple(map(max, old.bytes, option.bytes)),
        old.mask | option.mask,
        max(old.host, item.host),
        old.count + 1,
        old.pooled + item.pooled,
        item.keep,
        old.wide or item.wide is not None,
    )


def _overlap(sets: tuple[Members, ...]) -> bool:
    """Whether two sets that have split members use the same device."""
    seen = 0
    for each in sets:
        if each.wide:
            if seen & each.mask:
                return True
            seen |= each.mask
    return False


def _evenness(size: int) -> list[int]:
    """By bytes used of a device: the most eighths that could be taken away from it."""
    return [max(q for q in range(8) if used <= size * (8 - q) // 8) for used in range(size + 1)]


def _options(item: Item, capacity: Sequence[int]) -> Iterator[Option]:
    ways = list(item.ways) if item.wide is None else list(_splits(item.wide))
    for way in ways:
        needs = [0] * len(capacity)
        for device, need in way:
            needs[device] = need
        if all(need <= size for need, size in zip(needs, capacity, strict=True)):
            devices = tuple(device for device, _ in way)
            yield Option(
                tuple(needs),
                sum(1 << device for device in devices),
                len(devices) - 1 if item.wide is not None else 0,
                int(bool(item.home) and devices != item.home),
            )


def _splits(wide: Wide) -> Iterator[tuple[tuple[int, int], ...]]:
    """Every run of at least one unit on each of two devices or more, in their order."""
    units = len(wide.prefix) - 1
    for count in range(2, len(wide.devices) + 1):
        for devices in combinations(sorted(wide.devices), count):
            for cuts in combinations(range(1, units), count - 1):
                ends = (0, *cuts, units)
                yield tuple(
                    (
                        device,
                        wide.prefix[ends[n + 1]]
                        - wide.prefix[ends[n]]
                        + wide.place[0 if n == 0 else 2 if n == count - 1 else 1],
                    )
                    for n, device in enumerate(devices)
                )
