"""What is left over goes to contexts: those that were asked for first, then the open ones.

The search places every model with a context that is enough; here each grows on the devices that it
has, never at the expense of another. An open context that runs now is kept as it is where it can
be: a plan made anew moves nothing that need not move.

Must not: change devices or swap sets.
"""

from collections.abc import Sequence

import msgspec

from pannier.plan.demand import Demand, Form, ceiling
from pannier.plan.machine import Machine, Pin, Sizes
from pannier.plan.pack import Packing, Spot, charges
from pannier.plan.pack import left as packed
from pannier.plan.wide import bytes_on, evenly, fill

SPARED = 2
"""Of memory that models share with all other programs, open contexts leave one part in so many."""

STEP = 1024
"""Tokens; a finer step would change rendered configs for nothing that anybody notices."""


class Grown(msgspec.Struct, kw_only=True):
    """One launch while its context grows: mutable only here.

    `running` is its context now, `split` the units per device of it.
    """

    id: str
    demand: Demand
    form: Form
    spot: Spot
    sizes: Sizes
    pin: Pin | None = None
    running: int | None = None
    split: tuple[int, ...] | None = None


class Growth:
    """The rooms while contexts grow."""

    def __init__(
        self,
        packing: Packing,
        launches: Sequence[Grown],
        machine: Machine,
        placed: Sequence[Spot],
    ) -> None:
        self._machine = machine
        self._launches = {launch.id: launch for launch in launches}
        growing = {launch.id for launch in launches}
        self._fixed = [spot for spot in placed if spot.id not in growing]
        self._host_room = packing.host_room
        self._spared = [0] * len(machine.capacity)
        self._hosts = {each.id: self._host_of(each, each.form) for each in launches}

    def run(self) -> None:
        """Grows all of them as far as they can, fairly: everybody doubles before anybody fills."""
        for launch in self._launches.values():
            if launch.running:
                self._try(launch, min(launch.running, ceiling(launch.demand)))
        asked = [each for each in self._launches.values() if each.demand.model.context is not None]
        open_ones = [
            each
            for each in self._launches.values()
            if each.demand.model.context is None and each.form.context != each.running
        ]
        self._grow(asked)
        left = packed(self._spots(), self._machine.capacity)
        shared = self._machine.shared
        self._spared = [
            room // SPARED if on_host else 0 for room, on_host in zip(left, shared, strict=True)
        ]
        self._grow(open_ones)

    def _grow(self, launches: Sequence[Grown]) -> None:
        self._double(launches)
        for launch in launches:
            self._fill(launch)

    def _double(self, launches: Sequence[Grown]) -> None:
        growing = list(launches)
        while growing:
            growing = [
                launch
                for launch in growing
                if self._try(launch, min(launch.form.context * 2, ceiling(launch.demand)))
            ]

    def _fill(self, launch: Grown) -> None:
        """The most that fits, in steps."""
        low, high = launch.form.context // STEP + 1, (ceiling(launch.demand) - 1) // STEP
        while low <= high:
            middle = (low + high) // 2
            if self._try(launch, middle * STEP):
                low = middle + 1
            else:
                high = middle - 1

    def _try(self, launch: Grown, context: int) -> bool:
        """Takes a larger context when there is room for it."""
        if context <= launch.form.context:
            return False
        form = launch.demand.widened(launch.form, context)
        more_host = self._host_of(launch, form) - self._hosts[launch.id]
        if more_host > self._host_room:
            return False
        spot = self._spot(launch, form)
        if spot is None:
            return False
        self._host_room -= more_host
        self._hosts[launch.id] += more_host
        launch.form, launch.spot = form, spot
        return True

    def _host_of(self, launch: Grown, form: Form) -> int:
        return launch.sizes.item(launch.demand, form, launch.pin).host

    def _spot(self, launch: Grown, form: Form) -> Spot | None:
        """Where it is, with more of it; None when that does not fit beside the others."""
        rooms = self._rooms(launch)
        spot = launch.spot
        if spot.layers is not None:
            wide = launch.sizes.wide(launch.demand, form, spot.devices)
            if fill(wide, rooms, spot.devices) is None:
                return None
            layers = spot.layers
            taken = bytes_on(wide, layers)
            pairs = zip(spot.devices, taken, strict=True)
            if layers != launch.split or any(need > rooms[at] for at, need in pairs):
                layers = evenly(wide, rooms, self._machine.capacity, spot.devices)
                taken = bytes_on(wide, layers)
            return msgspec.structs.replace(spot, layers=layers, taken=taken)
        item = launch.sizes.item(launch.demand, form, launch.pin)
        for way in item.ways:
            if tuple(at for at, _ in way) == spot.devices:
                fits = all(need <= rooms[at] for at, need in way)
                taken = tuple(need for _, need in way)
                return msgspec.structs.replace(spot, taken=taken) if fits else None
        return None

    def _spots(self) -> list[Spot]:
        return [*self._fixed, *(each.spot for each in self._launches.values())]

    def _rooms(self, launch: Grown) -> list[int]:
        """What this launch may take: all but what the other sets are charged."""
        pairs = zip(self._machine.capacity, self._spared, strict=True)
        rooms = [capacity - spared for capacity, spared in pairs]
        for group, charge in charges(self._spots()).items():
            if group != launch.spot.group:
                for device, need in charge.items():
                    rooms[device] -= need
        return rooms
