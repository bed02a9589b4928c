"""A manual spec, met with the hardware: which devices each replica of a model is pinned to.

The spec knows no hardware (PS-19); here its devices are looked up, and what cannot be is refused
with what there is. Replicas go to different devices first: where one device holds a replica, each
gets one of those that the person named.

Must not: weigh one model against another.
"""

from pannier.devices.inventory import Inventory
from pannier.devices.masks import why_not_together
from pannier.plan.demand import Demand, contexts
from pannier.plan.machine import Pin, Sizes
from pannier.plan.spec import Entry, PlacementError, PlacementSpec, entry_for


def pins_of(
    spec: PlacementSpec, demand: Demand, inventory: Inventory, sizes: Sizes
) -> tuple[Pin | None, ...]:
    """One pin for each replica; one None for a model that the spec leaves out.

    Raises PlacementError.
    """
    entry = entry_for(spec, demand.name, demand.model.role)
    if entry is None:
        return (None,)
    devices = _devices(entry, demand.name, inventory)
    whole = Pin(devices=devices, split=entry.tensor_split, force=entry.force)
    if entry.replicas == 1 or entry.tensor_split is not None or len(devices) == 1:
        return (_checked(demand, whole),) * entry.replicas
    needs, _ = sizes.alone(demand, demand.form(contexts(demand)[-1]))
    large_enough = [at for at in devices if needs[at] <= sizes.machine.capacity[at]]
    if not large_enough:
        return (_checked(demand, whole),) * entry.replicas
    return tuple(
        Pin(devices=(large_enough[replica % len(large_enough)],), force=entry.force)
        for replica in range(entry.replicas)
    )


def _checked(demand: Demand, pin: Pin) -> Pin:
    """The pin, if the model can be split over its devices at all. Raises PlacementError."""
    devices, layers = len(pin.devices), demand.form(contexts(demand)[-1]).gpu_layers
    if devices < 2:
        return pin
    if demand.indivisible and not pin.force:
        raise PlacementError(f"{demand.name} must not be split: {demand.indivisible}")
    if layers is not None and layers < devices:
        raise PlacementError(
            f"{demand.name} has {layers} layers for devices (`gpu_layers`), and its placement names"
            f" {devices} devices: each needs at least one"
        )
    return pin


def _devices(entry: Entry, name: str, inventory: Inventory) -> tuple[int, ...]:
    """The indices of what a person named. Raises PlacementError."""
    found = []
    for wanted in entry.devices:
        device = inventory.find(wanted)
        if device is None:
            known = ", ".join(f"{d.index} ({d.label})" for d in inventory.devices) or "none"
            raise PlacementError(
                f"placement of {name} names device {wanted!r}; the devices of this machine: {known}"
            )
        if device in found:
            raise PlacementError(
                f"placement of {name} names the device {device.label} twice, once as {wanted!r}"
            )
        found.append(device)
    if reason := why_not_together(found):
        raise PlacementError(f"placement of {name}: {reason}")
    return tuple(device.index for device in found)
