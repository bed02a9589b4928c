"""Snapshots by hand: what HTTP answers from, without a fleet."""

from collections.abc import Mapping

import msgspec
from tests.fakes.values import config_of, machine, plan_of

from pannier.devices.inventory import Inventory
from pannier.errors import Failure, Problem
from pannier.fleet.view import FleetView, GroupView, InstanceView
from pannier.progress.tracker import LoadProgress
from pannier.serve.snapshot import ConfigStatus, Snapshot

TWO = '[models.a]\npath = "/m/a.gguf"\naliases = ["gpt"]\n[models.b]\npath = "/m/b.gguf"\n'
OUT_OF_MEMORY = Failure(code="out-of-memory", message="a ran out of memory", hint="use less")


def snapshot_of(
    text: str = TWO,
    phases: Mapping[str, str] | str = "ready",
    *,
    inventory: Inventory | None = None,
    gib: float | Mapping[str, float] = 1.0,
    progress: LoadProgress | None = None,
    group_phase: str = "ready",
    waiting: tuple[str, ...] = (),
    problems: tuple[Problem, ...] = (),
    generation: int = 1,
    **fields: object,
) -> Snapshot:
    """A snapshot of these models, whose instances are in these phases.

    A group named in `waiting` is not there yet; `fields` are set on every instance.
    """
    config = config_of(text)
    plan = plan_of(config, inventory or machine(24), gib)

    def view(instance_id: str, group: str) -> InstanceView:
        phase = phases if isinstance(phases, str) else phases.get(instance_id, "cold")
        return InstanceView(
            id=instance_id,
            group=group,
            phase=phase,  # type: ignore[arg-type]
            devices=plan.instance(instance_id).devices,
            pid=100 if phase == "ready" else None,
            port=9000 if phase == "ready" else None,
            progress=progress,
            failure=OUT_OF_MEMORY if phase == "failed" else None,
            **fields,  # type: ignore[arg-type]
        )

    groups = tuple(
        GroupView(
            id=group.id,
            identity="0",
            phase=group_phase,  # type: ignore[arg-type]
            instances=tuple(view(member, group.id) for member in group.members),
        )
        for group in plan.groups
        if group.id not in waiting
    )
    return Snapshot(
        generation=generation,
        host="direct",
        status=ConfigStatus(path="/etc/config.toml", loaded_at=1796068293.0, problems=problems),
        config=config,
        plan=msgspec.structs.replace(plan, generation=generation),
        fleet=FleetView(groups=groups, waiting=waiting),
    )
