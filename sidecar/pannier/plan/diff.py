"""Plan x Plan -> what applying it would do to each group: create, replace, keep or remove.

By the digests of what the groups run, as the fleet itself compares them: what is equal is not
touched. The sentences beside a replaced group say what differs in its instances.

Must not: call a group changed by anything but its digest.
"""

from collections.abc import Mapping
from typing import Literal

import msgspec

from pannier.plan.values import Group, Instance, Plan

Kind = Literal["create", "replace", "keep", "remove"]


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """What happens to one group, and why where it is replaced."""

    group: str
    kind: Kind
    members: tuple[str, ...] = ()
    why: tuple[str, ...] = ()


def changes(
    before: Plan, after: Plan, running: Mapping[str, str], planned: Mapping[str, str]
) -> tuple[Change, ...]:
    """The changes, the new plan's groups in their order first, then what goes.

    `running` and `planned` are the digests by group of what runs and of what would.
    """
    found = []
    for group in after.groups:
        old, new = running.get(group.id), planned.get(group.id)
        kind: Kind = "create" if old is None else "keep" if old == new else "replace"
        why = _why(before, after, group) if kind == "replace" else ()
        found.append(Change(group=group.id, kind=kind, members=group.members, why=why))
    kept = {group.id for group in after.groups}
    members = {group.id: group.members for group in before.groups}
    found += [
        Change(group=gone, kind="remove", members=members.get(gone, ()))
        for gone in sorted(running.keys() - kept)
    ]
    return tuple(found)


def nothing_to_do(found: tuple[Change, ...]) -> bool:
    """Whether applying would touch nothing."""
    return all(change.kind == "keep" for change in found)


def _why(before: Plan, after: Plan, group: Group) -> tuple[str, ...]:
    old = next((each.members for each in before.groups if each.id == group.id), ())
    why = []
    if came := [member for member in group.members if member not in old]:
        why.append(f"{', '.join(came)} joins")
    if gone := [member for member in old if member not in group.members]:
        why.append(f"{', '.join(gone)} leaves")
    was = {instance.id: instance for instance in before.instances}
    for member in group.members:
        if member in was:
            moved = _differences(was[member], after.instance(member))
            why += [f"{member}: {each}" for each in moved] if len(group.members) > 1 else moved
    return tuple(why) or ("its command line, environment or engine differs",)


def _differences(old: Instance, new: Instance) -> list[str]:
    pairs = (
        ("devices", _where(old), _where(new)),
        ("context", old.context, new.context),
        ("slots", old.slots, new.slots),
        ("cache", str(old.kv_type), str(new.kv_type)),
        ("layers on devices", old.gpu_layers, new.gpu_layers),
        ("layers with experts in RAM", old.cpu_moe, new.cpu_moe),
    )
    return [f"{name} {was} -> {now}" for name, was, now in pairs if was != now]


def _where(instance: Instance) -> str:
    place = "+".join(instance.devices) or "CPU"
    split = instance.tensor_split
    return f"{place} ({':'.join(map(str, split))})" if split else place
