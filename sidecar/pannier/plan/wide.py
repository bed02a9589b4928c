"""How a model is put on several devices: which layers go where, given the room on each.

llama-server splits by whole layers, in the order of the devices, so a split is a run of units per
device. What a device takes beside its run depends on its place alone (`Prices`), and every device
is checked on its own: the sum of all cards is no measure of anything.

Must not: choose between models, or give a device nothing to hold.
"""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate, combinations

import msgspec

from pannier.gguf.footprint.values import Prices

FINE = 1024
"""Steps in which an even filling is looked for: a tenth of a percent of a device."""

EXACT_DEVICES = 8
"""Up to so many devices all subsets are looked at (247 of 8); beyond, the roomiest are taken."""


class Wide(msgspec.Struct, frozen=True, kw_only=True):
    """A model to be split: bytes.

    `prefix[n]` is what its first n units take; `place` (first, middle, last) what a device takes
    beside them, projector included; `devices` those it may use.
    """

    prefix: tuple[int, ...]
    place: tuple[int, int, int]
    devices: tuple[int, ...]

    @property
    def volume(self) -> int:
        """The least bytes that it takes on all its devices together."""
        return self.prefix[-1] + self.place[0] + self.place[2]


def wide_of(prices: Prices, devices: tuple[int, ...], *, on_first: int = 0) -> Wide:
    """The wide form of a model; `on_first` is what the first device carries beside (projector)."""
    return Wide(
        prefix=(0, *accumulate(prices.units)),
        place=(prices.first + on_first, prices.middle, prices.last),
        devices=devices,
    )


def fill(wide: Wide, rooms: Sequence[int], devices: Sequence[int]) -> tuple[int, ...] | None:
    """Units per device, each device in its order as full as it gets; None when it does not fit.

    Filling the earlier devices first leaves the fewest units for the later ones, so that None
    means that no split over exactly these devices fits.
    """
    prefix, last = wide.prefix, len(devices) - 1
    units, position, layers = len(prefix) - 1, 0, []
    for place, device in enumerate(devices):
        beside = wide.place[0 if place == 0 else 2 if place == last else 1]
        room = rooms[device] - beside
        upto = bisect_right(prefix, prefix[position] + room) - 1
        upto = min(upto, units - (last - place))
        if upto <= position:
            return None
        layers.append(upto - position)
        position = upto
    return tuple(layers) if position == units else None


def bytes_on(wide: Wide, layers: Sequence[int]) -> tuple[int, ...]:
    """Bytes on each device of a split."""
    taken, position, last = [], 0, len(layers) - 1
    for place, count in enumerate(layers):
        beside = wide.place[0 if place == 0 else 2 if place == last else 1]
        taken.append(wide.prefix[position + count] - wide.prefix[position] + beside)
        position += count
    return tuple(taken)


def evenly(
    wide: Wide, rooms: Sequence[int], capacity: Sequence[int], devices: Sequence[int]
) -> tuple[int, ...]:
    """The split that leaves the devices equally full, in shares of their capacity.

    `devices` must be able to hold it (`fill`).
    """
    best = fill(wide, rooms, devices)
    assert best is not None  # noqa: S101  the caller has asked
    low, high = 0, FINE
    while low < high:
        share = (low + high) // 2
        capped = list(rooms)
        for device in devices:
            spared = capacity[device] * (FINE - share) // FINE
            capped[device] = rooms[device] - spared
        found = fill(wide, capped, devices)
        if found is None:
            low = share + 1
        else:
            best, high = found, share
    return best


def subsets(wide: Wide, rooms: Sequence[int], count: int) -> Iterable[tuple[int, ...]]:
    """Sets of `count` devices that could hold it by volume, the roomiest first."""
    least = min(wide.place)
    usable = {device: rooms[device] - least for device in wide.devices if rooms[device] > least}
    by_room = sorted(usable, key=lambda device: (-usable[device], device))[:count]
    if len(by_room) < count or sum(usable[device] for device in by_room) < wide.prefix[-1]:
        return []
    if len(usable) > EXACT_DEVICES:
        return [tuple(sorted(by_room))]
    large_enough = [
        (-total, chosen)
        for chosen in combinations(sorted(usable), count)
        if (total := sum(usable[device] for device in chosen)) >= wide.prefix[-1]
    ]
    return [chosen for _, chosen in sorted(large_enough)]


def fewest(wide: Wide, rooms: Sequence[int], home: tuple[int, ...] = ()) -> tuple[int, ...] | None:
    """The fewest devices that hold it, of these where it runs now, else the roomiest; or None."""
    at_home = set(home) <= set(wide.devices) and list(home) == sorted(home)
    for count in range(2, len(wide.devices) + 1):
        if len(home) == count and at_home and fill(wide, rooms, home):
            return home
        for chosen in subsets(wide, rooms, count):
            if fill(wide, rooms, chosen):
                return chosen
    return None
