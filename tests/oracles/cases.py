"""Random problems for the planner's search, from a seed: always the same for the same seed.

Sizes are small whole numbers, so that exact fits and ties, where searches go wrong, are common.
"""

from collections.abc import Sequence
from itertools import accumulate
from random import Random

import msgspec

from pannier.plan.items import Item, Way
from pannier.plan.wide import Wide


class Case(msgspec.Struct, frozen=True):
    """A problem: items per level of context (the largest first), devices, RAM."""

    levels: tuple[tuple[Item, ...], ...]
    capacity: tuple[int, ...]
    host: int


class Traits(msgspec.Struct, frozen=True):
    """One item, whatever its context: `weight` as a share of all, and what makes it special."""

    id: str
    weight: float
    context: float
    pooled: bool
    keep: bool
    host: int
    home: tuple[int, ...]
    uneven: tuple[int, ...]
    pin: tuple[int, ...]
    units: tuple[int, ...]
    place: tuple[int, int, int]
    devices: tuple[int, ...]


def case(seed: int, *, devices: int, items: int, units: int = 6, plain: bool = False) -> Case:
    """A problem of at most that size; `plain` ones have no pins, no uneven sizes and no homes."""
    random = Random(seed)
    count = random.randint(1, devices)
    sizes = random.choice(([24], [40], [12, 16, 24, 24, 48], range(10, 61)))
    capacity = tuple(random.choice(sizes) for _ in range(count))
    fill = random.choice((0.3, 0.6, 0.8, 0.9, 0.9, 1.0, 1.1, 1.3, 1.6, 2.0, 3.0))
    number = random.randint(1, items)
    weights = [random.random() ** random.choice((1, 2)) + 0.05 for _ in range(number)]
    total = sum(capacity) * fill / sum(weights)
    special = 0.0 if plain else random.choice((0.0, 0.1, 0.3))
    homes = 0.0 if plain else random.choice((0.0, 0.0, 0.5, 0.9))
    each = [
        _traits(random, f"m{n:02}", weight * total, count, special, homes, units)
        for n, weight in enumerate(weights)
    ]
    levels = random.choice((1, 1, 2, 3))
    host = random.choice((10**9, 10**9, sum(t.host for t in each) * random.randint(6, 10) // 10))
    return Case(
        tuple(
            tuple(_item(t, capacity, levels - 1 - level) for t in each) for level in range(levels)
        ),
        capacity,
        host,
    )


def _traits(
    random: Random, name: str, weight: float, count: int, special: float, homes: float, units: int
) -> Traits:
    every = tuple(range(count))
    several = count > 1
    some = tuple(sorted(random.sample(every, random.randint(2, count)))) if several else every
    rare = random.random() < special
    pin = some[:: random.choice((1, 1, -1))]
    home = random.choice((*((d,) for d in every), *((d,) for d in every), some, pin))
    return Traits(
        id=name,
        weight=weight,
        context=random.choice((0.05, 0.3, 0.6)),
        pooled=random.random() < 0.3,
        keep=random.random() < 0.05,
        host=random.choice((0, 0, random.randint(1, 9))),
        home=home if random.random() < homes else (),
        uneven=tuple(random.randint(0, 3) for _ in every) if rare and random.random() < 0.6 else (),
        pin=pin if several and rare and random.random() < 0.5 else (),
        units=tuple(random.randint(1, 3) for _ in range(random.randint(3, units))),
        place=random.choice(((0, 0, 0), (1, 1, 1), (3, 1, 2), (1, 2, 5), (4, 0, 0))),
        devices=some if random.random() < special else every,
    )


def _item(traits: Traits, capacity: Sequence[int], steps: int) -> Item:
    """The item with its context some steps above the least."""
    size = max(1, int(traits.weight * (1 + traits.context * steps)))
    size = min(size, sum(capacity) * 8 // 10)
    ways: tuple[Way, ...] = ()
    wide = None
    if traits.pin:
        share = -(-size // len(traits.pin))
        ways = (tuple((device, share + (n == 0)) for n, device in enumerate(traits.pin)),)
    else:
        more = traits.uneven or (0,) * len(capacity)
        ways = tuple(
            ((device, size + more[device]),)
            for device, room in enumerate(capacity)
            if size + more[device] <= room
        )
        if not ways and len(traits.devices) > 1:
            whole = sum(traits.units)
            units = [max(1, size * unit // whole) for unit in traits.units]
            wide = Wide(prefix=(0, *accumulate(units)), place=traits.place, devices=traits.devices)
    return Item(
        id=traits.id,
        ways=ways,
        wide=wide,
        host=traits.host,
        pooled=traits.pooled,
        keep=traits.keep,
        home=traits.home,
    )
