"""Plan x what runs -> what our engines hold of each device.

NVML tells by process ids who holds what, where it can; elsewhere what was planned for the models in
memory has to do. Without it our own models would look like somebody else's, and a plan made while
they run would move them out of their own way.

Must not: decide anything; a reading takes it as what is known.
"""

from pannier.devices.join import Ours
from pannier.fleet.view import FleetView
from pannier.plan.values import Instance, Plan


def holdings(plan: Plan, fleet: FleetView) -> Ours:
    """The processes of our engines, and the bytes that are planned for them, by UUID or label.

    A model that loads counts whole: what it is about to take is not free for a plan either.
    """
    names = {device.label: device.uuid or device.label for device in plan.devices}
    planned = {instance.id: instance for instance in plan.instances}
    views = [view for group in fleet.groups for view in group.instances]
    expected: dict[str, int] = {}
    for view in views:
        if view.phase not in ("ready", "loading") or view.id not in planned:
            continue
        for label, count in _parts(planned[view.id]).items():
            name = names.get(label, label)
            expected[name] = expected.get(name, 0) + count
    return Ours(
        pids=frozenset(view.pid for view in views if view.pid is not None), expected=expected
    )


def _parts(instance: Instance) -> dict[str, int]:
    """Bytes by label."""
    sizes = zip(instance.devices, instance.device_bytes, strict=True)
    return {label: share.total for label, share in sizes}
