"""Plan x what runs -> what our engines hold of each device.

NVML tells by process ids who holds what, where it can; elsewhere what was planned for the models in
memory has to do. Without it our own models would look like somebody else's, and a plan made while
they run would move them out of their own way.

Must not: decide anything; a reading takes it as what is known.
"""

from pannier.devices.join import Ours
from pannier.fleet.view import FleetView, InstanceView
from pannier.plan.values import Plan

_IN_MEMORY = ("loading", "ready", "draining", "unloading")


def holdings(plan: Plan, fleet: FleetView) -> Ours:
    """The processes of our engines, and the bytes that are planned for them, by UUID or label.

    A model that loads counts whole: what it is about to take is not free for a plan either. One
    that leaves counts until it is gone, by what it was started to take: the plan may be another
    one by now, and not know it any more.
    """
    names = {device.label: device.uuid or device.label for device in plan.devices}
    found = [view for group in fleet.groups for view in group.instances]
    views = [view for view in found if view.phase in _IN_MEMORY]
    expected: dict[str, int] = {}
    for view in views:
        for label, count in _parts(view, plan).items():
            name = names.get(label, label)
            expected[name] = expected.get(name, 0) + count
    return Ours(
        pids=frozenset(view.pid for view in views if view.pid is not None), expected=expected
    )


def _parts(view: InstanceView, plan: Plan) -> dict[str, int]:
    """Bytes by label: of its own launch, or of the plan where only the file's size is known."""
    if view.planned and len(view.planned) == len(view.devices):
        return dict(zip(view.devices, view.planned, strict=True))
    for instance in plan.instances:
        if instance.id == view.id:
            sizes = zip(instance.devices, instance.device_bytes, strict=True)
            return {label: share.total for label, share in sizes}
    return {}
