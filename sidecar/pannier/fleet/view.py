"""What the fleet shows of itself: immutable values that readers may keep.

Must not: be used to decide anything inside the fleet. A read that gates a change is a race; only a
group's owner decides about its group.
"""

import msgspec

from pannier.errors import Failure
from pannier.fleet.state import GroupPhase, MemberPhase
from pannier.progress.tracker import LoadProgress


class InstanceView(msgspec.Struct, frozen=True, kw_only=True):
    """One instance as its group's owner sees it.

    `started` says that its process has spoken, `making_room` names who must leave first. `memory`
    is what the load took, in bytes by the engine's own buffer types and uses, once that is known.
    `planned` is what it was started to take, in bytes by device; empty where only its file's size
    was known.
    """

    id: str
    group: str
    phase: MemberPhase
    started: bool = True
    asked: int = 0
    inflight: int = 0
    devices: tuple[str, ...] = ()
    planned: tuple[int, ...] = ()
    pid: int | None = None
    port: int | None = None
    progress: LoadProgress | None = None
    memory: dict[str, dict[str, int]] | None = None
    failure: Failure | None = None
    making_room: str | None = None


class GroupView(msgspec.Struct, frozen=True, kw_only=True):
    """One running group. `identity` is the digest of what it runs."""

    id: str
    identity: str
    phase: GroupPhase
    failure: Failure | None = None
    instances: tuple[InstanceView, ...] = ()


class FleetView(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that runs, and what shall run and does not yet (`waiting`, group ids)."""

    groups: tuple[GroupView, ...] = ()
    waiting: tuple[str, ...] = ()

    def instance(self, instance_id: str) -> InstanceView | None:
        """The view of an instance; the group that is not being stopped wins."""
        found = [
            (group, view)
            for group in self.groups
            for view in group.instances
            if view.id == instance_id
        ]
        found.sort(key=lambda pair: pair[0].phase in ("draining", "stopping", "absent"))
        return found[0][1] if found else None
