"""The machine as the planner counts it: room per device and of RAM, and what a form needs of it.

Capacity of a device = total - what other processes hold - reserve; our own resident models never
count as used. A machine without devices has one room, the RAM, and models run on the CPU there. On
unified memory what a model keeps in RAM comes out of the same room.

Must not: choose a device.
"""

from collections.abc import Mapping

import msgspec

from pannier.devices.inventory import DEFAULT_RESERVE, Device, Inventory
from pannier.plan.demand import Demand, Form
from pannier.plan.items import Item, Way
from pannier.plan.wide import Wide, bytes_on, evenly, fewest, fill, wide_of

UNKNOWN_ROOM = 1 << 60
"""RAM where it cannot be read: then memory refuses nothing."""


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """Rooms in bytes. `devices` is empty on a machine without; `capacity` then has one room."""

    devices: tuple[Device, ...]
    capacity: tuple[int, ...]
    host: int

    @property
    def names(self) -> tuple[str, ...]:
        """The labels of the rooms; "host" for RAM."""
        return tuple(device.label for device in self.devices) or ("host",)

    @property
    def dedicated(self) -> bool:
        """Whether there are devices with memory of their own: only there a load may be tried."""
        return any(not device.unified for device in self.devices)

    @property
    def shared(self) -> tuple[bool, ...]:
        """Of each room, whether it is the RAM that all programs share."""
        return tuple(device.unified for device in self.devices) or (True,)

    def backends(self, devices: tuple[int, ...]) -> tuple[str, ...]:
        """Their backends, in this order; none on a machine without devices."""
        return tuple(self.devices[at].backend for at in devices) if self.devices else ()


def machine_of(
    inventory: Inventory, reserve: int | Mapping[str, int], ours_in_ram: int = 0
) -> Machine:
    """The rooms of an inventory whose devices carry their reserves (`with_reserves`).

    `reserve` is looked at for RAM alone ("host" in a table); `ours_in_ram` is what our own resident
    models hold of it.
    """
    kept = reserve if isinstance(reserve, int) else reserve.get("host", DEFAULT_RESERVE)
    ram = inventory.host.available + ours_in_ram
    total = inventory.host.total
    host = max(0, min(ram, total or ram) - kept) if inventory.host.available else UNKNOWN_ROOM
    if not inventory.devices:
        return Machine(devices=(), capacity=(host,), host=UNKNOWN_ROOM)
    capacity = tuple(device.capacity for device in inventory.devices)
    return Machine(devices=inventory.devices, capacity=capacity, host=host)


class Pin(msgspec.Struct, frozen=True, kw_only=True):
    """Devices that a person chose, in the order of the split, and its weights."""

    devices: tuple[int, ...]
    split: tuple[int, ...] | None = None
    force: bool = False


class Sizes:
    """What forms take on the devices of one machine. Remembers, for the time of one plan.

    `rooms` is what one launch may have on each device: the capacity, less what is there to stay.
    No other model is split over devices in `split_over`.
    """

    def __init__(
        self,
        machine: Machine,
        rooms: tuple[int, ...] | None = None,
        split_over: frozenset[int] = frozenset(),
    ) -> None:
        self.machine = machine
        # A process that uses a MIG instance can use no other card beside it.
        self._splittable = tuple(
            at
            for at, device in enumerate(machine.devices)
            if device.parent is None and at not in split_over
        )
        self._rooms = machine.capacity if rooms is None else rooms
        self._items: dict[tuple[str, Form, Pin | None], Item] = {}

    def item(self, demand: Demand, form: Form, pin: Pin | None = None) -> Item:
        """The item of a form: without any way when the machine cannot hold it."""
        key = (demand.name, form, pin)
        if key not in self._items:
            self._items[key] = self._item(demand, form, pin)
        return self._items[key]

    def _item(self, demand: Demand, form: Form, pin: Pin | None) -> Item:
        machine = self.machine
        pooled = demand.pooled
        if not machine.devices:
            need = demand.takes(form, ()).host.total
            return Item(id=demand.name, ways=self._fitting([((0, need),)]), pooled=pooled)
        # What is not on a device with the memory of the host is in that memory all the same.
        if form.gpu_layers == 0 and pin is None and not any(machine.shared):
            host = demand.takes(form, ()).host.total
            return Item(id=demand.name, ways=((),), host=host, pooled=pooled)
        if pin is not None and len(pin.devices) > 1:
            return self._pinned(demand, form, pin)
        allowed = pin.devices if pin else tuple(range(len(machine.devices)))
        needs, host = self.alone(demand, form)
        ways = self._fitting([((at, needs[at]),) for at in allowed])
        wide = None if ways or pin else self._wide(demand, form)
        return Item(id=demand.name, ways=ways, wide=wide, host=host, pooled=pooled)

    def alone(self, demand: Demand, form: Form) -> tuple[tuple[int, ...], int]:
        """Bytes on each device when it has the model for itself, and of RAM beside it."""
        by_backend: dict[tuple[str, bool], tuple[int, int]] = {}
        for device in self.machine.devices:
            key = (device.backend, device.unified)
            if key not in by_backend:
                taken = demand.takes(form, (device.backend,))
                host = taken.host.total
                on_device = taken.devices[0].total + (host if device.unified else 0)
                by_backend[key] = (on_device, 0 if device.unified else host)
        keys = [(device.backend, device.unified) for device in self.machine.devices]
        needs = tuple(by_backend[key][0] for key in keys)
        return needs, max((host for _, host in by_backend.values()), default=0)

    def wide(self, demand: Demand, form: Form, devices: tuple[int, ...]) -> Wide:
        """The form split over these devices in this order."""
        return wide_of(demand.prices(form, self.machine.backends(devices)), devices)

    def fits(self, item: Item, rooms: tuple[int, ...], host: int) -> bool:
        """Whether it fits into these rooms, alone."""
        if item.host > host:
            return False
        if item.wide is not None:
            return fewest(item.wide, rooms) is not None
        return any(all(need <= rooms[at] for at, need in way) for way in item.ways)

    def _wide(self, demand: Demand, form: Form) -> Wide | None:
        splittable = self._splittable
        if len(splittable) < 2 or demand.indivisible or form.gpu_layers == 1:
            return None
        wide = self.wide(demand, form, splittable)
        return wide if fewest(wide, self._rooms) else None

    def _pinned(self, demand: Demand, form: Form, pin: Pin) -> Item:
        """Over exactly these devices: as the person weighs them, or as even as they can be."""
        backends = self.machine.backends(pin.devices)
        split = pin.split or self.even(demand, form, pin.devices)
        ways: tuple[Way, ...] = ()
        host = 0
        if split is not None:
            taken = demand.takes(form, backends, split)
            host = taken.host.total
            needs = tuple(share.total for share in taken.devices)
            ways = self._fitting([tuple(zip(pin.devices, needs, strict=True))])
        return Item(id=demand.name, ways=ways, host=host, pooled=demand.pooled)

    def even(self, demand: Demand, form: Form, devices: tuple[int, ...]) -> tuple[int, ...] | None:
        """Units per device that leave them equally full; None when they cannot hold it."""
        wide = self.wide(demand, form, devices)
        if fill(wide, self._rooms, devices) is None:
            return None
        return evenly(wide, self._rooms, self.machine.capacity, devices)

    def proportional(self, demand: Demand, form: Form, devices: tuple[int, ...]) -> tuple[int, ...]:
        """Units per device by capacity, at least one each: where it does not fit anyway."""
        units = len(self.wide(demand, form, devices).prefix) - 1
        room = [self.machine.capacity[at] for at in devices]
        spare, total = units - len(room), max(1, sum(room))
        layers = [1 + spare * size // total for size in room]
        layers[-1] += units - sum(layers)
        return tuple(layers)

    def needs_of(self, demand: Demand, form: Form, pin: Pin | None) -> dict[int, int]:
        """What a launch would take that does not fit, by device: the shortfall's other side."""
        machine = self.machine
        if not machine.devices:
            return {0: demand.takes(form, ()).host.total}
        devices = pin.devices if pin else self._splittable
        if len(devices) > 1 and not demand.indivisible:
            if pin is not None and pin.split:
                taken = demand.takes(form, machine.backends(devices), pin.split).devices
                return {at: share.total for at, share in zip(devices, taken, strict=True)}
            wide = self.wide(demand, form, devices)
            if len(wide.prefix) > len(devices):
                layers = self.proportional(demand, form, devices)
                split = dict(zip(devices, bytes_on(wide, layers), strict=True))
                if any(need > self._rooms[at] for at, need in split.items()):
                    return split
        needs, _ = self.alone(demand, form)
        anywhere = pin.devices if pin else tuple(range(len(machine.devices)))
        roomiest = max(anywhere, key=lambda at: (self._rooms[at], -at))
        return {roomiest: needs[roomiest]}

    def _fitting(self, ways: list[Way]) -> tuple[Way, ...]:
        return tuple(way for way in ways if all(need <= self._rooms[at] for at, need in way))
