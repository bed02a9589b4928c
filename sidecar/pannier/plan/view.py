"""Plan x Inventory -> what every surface shows of the placement, as one JSON value.

HTTP, the command line and the page show this and nothing else, so that they cannot disagree. It is
made of the plan that runs, or of the preview of another one, by the same function. What cannot be
served, what is not installed, what does not quite fit and what shares a device are four different
facts and stay four fields. A swap set is counted once on a device, at its largest member there.

Must not: decide anything, or add up members of a swap set.
"""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import Meta

from pannier.devices.inventory import Device, EngineBackend, HostMemory, Inventory
from pannier.errors import Problem
from pannier.plan.roles import ROLES
from pannier.plan.values import Group, Instance, Plan, Unplaceable

_Size: TypeAlias = Callable[[Instance], int | None]
"""What an instance takes of one place, in bytes; None: nothing there."""


class Taker(msgspec.Struct, frozen=True, kw_only=True):
    """A group that takes memory of a device, or of RAM."""

    group: Annotated[str, Meta(description="Id of the group.")]
    members: Annotated[tuple[str, ...], Meta(description="Its instances there.")]
    swap: Annotated[bool, Meta(description="Its members take turns: the largest one counts.")]
    bytes: Annotated[int, Meta(description="What it takes at most, in bytes.")]


class GpuRow(msgspec.Struct, frozen=True, kw_only=True):
    """One device. All sizes in bytes."""

    index: Annotated[int, Meta(description="What `devices` of a placement may name it by.")]
    backend: EngineBackend
    label: Annotated[str, Meta(description="The engine's name of it, such as CUDA0.")]
    name: str
    total_bytes: int
    free_bytes: Annotated[int, Meta(description="Free at the last reading.")]
    uuid: str | None
    pci: str | None
    used_by_us: Annotated[int, Meta(description="What our own engines hold.")]
    used_by_others: Annotated[int, Meta(description="What all other processes hold.")]
    reserve: Annotated[int, Meta(description="What is kept free.")]
    takers: Annotated[tuple[Taker, ...], Meta(description="Who is to take how much of it.")]
    planned_bytes: Annotated[int, Meta(description="All takers together.")]
    left_bytes: Annotated[int, Meta(description="What they and all others leave free.")]
    unified: Annotated[bool, Meta(description="Its memory is the host's.")] = False
    compute_capable: bool = True
    parent: str | None = None
    nvml_index: int | None = None


class HostRow(msgspec.Struct, frozen=True, kw_only=True):
    """The machine's RAM, in bytes."""

    total_bytes: int
    available_bytes: int
    takers: tuple[Taker, ...]
    planned_bytes: int


class RoleRow(msgspec.Struct, frozen=True, kw_only=True):
    """Where one model runs, and its instances with their own devices and split side by side."""

    role: Annotated[str, Meta(description="chat, vision, embed or rerank.")]
    model: str
    devices: Annotated[
        tuple[str, ...], Meta(description="Labels of all its devices; none: on the CPU.")
    ]
    tensor_split: Annotated[
        tuple[int, ...] | None,
        Meta(description="One weight for each of `devices`; null where instances differ."),
    ]
    replicas: int
    instances: tuple[Instance, ...]


class GroupRow(msgspec.Struct, frozen=True, kw_only=True):
    """What one host runs. Equal digests run the same, and an edit leaves them alone."""

    id: str
    members: tuple[str, ...]
    swap: bool
    digest: str | None = None


class TightRow(msgspec.Struct, frozen=True, kw_only=True):
    """An instance that is loaded although it does not quite fit."""

    instance: str
    shortfall: Annotated[dict[str, int], Meta(description="Missing bytes by device, all above 0.")]


class CoTenants(msgspec.Struct, frozen=True, kw_only=True):
    """Instances that share a device."""

    device: str
    instances: tuple[str, ...]


class RejectedSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A placement in config.toml that is not obeyed; null where it cannot even be read."""

    spec: dict[str, Any] | None
    reason: str


class View(msgspec.Struct, frozen=True, kw_only=True):
    """The placement: the devices, who runs where, and what a person should know about it."""

    object: Literal["placement"] = "placement"
    generation: Annotated[int, Meta(description="Rises with every config that is applied.")] = 0
    etag: Annotated[str, Meta(description="For If-Match: differs when the plan does.")] = ""
    config: Annotated[str | None, Meta(description="The config file.")] = None
    manual: Annotated[bool, Meta(description="A person's spec is obeyed.")] = False
    spec: Annotated[
        dict[str, Any] | None, Meta(description="That spec, canonical; null: all automatic.")
    ] = None
    rejected_spec: Annotated[
        RejectedSpec | None, Meta(description="A saved spec that is not obeyed, and why.")
    ] = None
    engine_backend: EngineBackend = "unknown"
    gpus: tuple[GpuRow, ...] = ()
    host: HostRow
    roles: Annotated[
        tuple[RoleRow, ...], Meta(description="In plan order: embed, rerank, vision, chat.")
    ] = ()
    groups: tuple[GroupRow, ...] = ()
    unplaceable: tuple[Unplaceable, ...] = ()
    skipped_not_installed: tuple[str, ...] = ()
    tight: Annotated[tuple[TightRow, ...], Meta(description="By name.")] = ()
    co_tenants: Annotated[tuple[CoTenants, ...], Meta(description="By device.")] = ()
    reasons: tuple[str, ...] = ()
    empty: Annotated[str | None, Meta(description="Why there are no roles.")] = None
    no_gpus: Annotated[str | None, Meta(description="Why there are no devices.")] = None
    changes_refused: Annotated[
        str | None, Meta(description="Why it cannot be changed over HTTP; null: it can.")
    ] = None


def view_of(
    plan: Plan,
    inventory: Inventory,
    digests: Mapping[str, str] | None = None,
    *,
    config: str | None = None,
    problems: Sequence[Problem] = (),
) -> View:
    """The view of a plan. `inventory` tells the memory of now, `digests` the groups' launches.

    `problems` are those of the last save: a placement that cannot be read is shown as rejected.
    """
    digests = digests or {}
    return View(
        generation=plan.generation,
        etag=etag_of(plan, digests),
        config=config,
        manual=plan.manual,
        spec=_object(plan.spec),
        rejected_spec=_rejected(plan, problems),
        engine_backend=inventory.engine_backend,
        gpus=tuple(_gpu(device, takers_on(plan, device.label)) for device in inventory.devices),
        host=_host(inventory.host, takers_of_ram(plan)),
        roles=_roles(plan),
        groups=tuple(
            GroupRow(id=g.id, members=g.members, swap=g.swap, digest=digests.get(g.id))
            for g in plan.groups
        ),
        unplaceable=plan.unplaceable,
        skipped_not_installed=plan.skipped_not_installed,
        tight=_tight(plan),
        co_tenants=tuple(
            CoTenants(device=label, instances=tuple(sorted(ids)))
            for label, ids in sorted(plan.co_tenants.items())
        ),
        reasons=plan.reasons,
        empty=_why_empty(plan),
        no_gpus=_why_no_gpus(inventory),
    )


def etag_of(plan: Plan, digests: Mapping[str, str]) -> str:
    """A digest of what is planned; readings of memory, generations and words are not in it."""
    planned = (
        plan.spec,
        plan.rejected.spec if plan.rejected else None,
        plan.instances,
        plan.groups,
        [each.model for each in plan.unplaceable],
        plan.skipped_not_installed,
        sorted(digests.items()),
    )
    return hashlib.sha256(msgspec.json.encode(planned)).hexdigest()[:32]


def takers_on(plan: Plan, label: str) -> tuple[Taker, ...]:
    """Who takes how much of a device, residents first."""

    def size(instance: Instance) -> int | None:
        if label not in instance.devices:
            return None
        at = instance.devices.index(label)
        return instance.device_bytes[at].total if at < len(instance.device_bytes) else 0

    return _takers(plan, size)


def takers_of_ram(plan: Plan) -> tuple[Taker, ...]:
    """Who takes how much of RAM."""
    return _takers(plan, lambda instance: instance.host_bytes.total or None)


def inventory_of(view: View) -> Inventory:
    """The inventory that a view was made of, as far as it is shown."""
    devices = tuple(
        Device(
            index=row.index, backend=row.backend, label=row.label, name=row.name,
            total=row.total_bytes, free=row.free_bytes, uuid=row.uuid, pci=row.pci,
            used_by_us=row.used_by_us, used_by_others=row.used_by_others, reserve=row.reserve,
            unified=row.unified, compute_capable=row.compute_capable, parent=row.parent,
            nvml_index=row.nvml_index,
        )
        for row in view.gpus
    )  # fmt: skip
    host = HostMemory(total=view.host.total_bytes, available=view.host.available_bytes)
    return Inventory(devices=devices, engine_backend=view.engine_backend, host=host)


def plan_of(view: View) -> Plan:
    """The running plan as far as a new one has to know it: who runs where."""
    return Plan(
        generation=view.generation,
        manual=view.manual,
        instances=tuple(each for row in view.roles for each in row.instances),
        groups=tuple(Group(id=g.id, members=g.members, swap=g.swap) for g in view.groups),
    )


def _takers(plan: Plan, size: _Size) -> tuple[Taker, ...]:
    found = []
    for group in sorted(plan.groups, key=lambda group: group.swap):
        sizes = {member: size(plan.instance(member)) for member in group.members}
        there = {member: count for member, count in sizes.items() if count is not None}
        if there:
            most = max(there.values()) if group.swap else sum(there.values())
            found.append(
                Taker(group=group.id, members=tuple(there), swap=group.swap, bytes=int(most))
            )
    return tuple(found)


def _gpu(device: Device, takers: tuple[Taker, ...]) -> GpuRow:
    planned = sum(taker.bytes for taker in takers)
    return GpuRow(
        index=device.index, backend=device.backend, label=device.label, name=device.name,
        total_bytes=device.total, free_bytes=device.free, uuid=device.uuid, pci=device.pci,
        used_by_us=device.used_by_us, used_by_others=device.used_by_others,
        reserve=device.reserve, takers=takers, planned_bytes=planned,
        left_bytes=max(0, device.capacity - planned), unified=device.unified,
        compute_capable=device.compute_capable, parent=device.parent,
        nvml_index=device.nvml_index,
    )  # fmt: skip


def _host(host: HostMemory, takers: tuple[Taker, ...]) -> HostRow:
    return HostRow(
        total_bytes=host.total,
        available_bytes=host.available,
        takers=takers,
        planned_bytes=sum(taker.bytes for taker in takers),
    )


def _roles(plan: Plan) -> tuple[RoleRow, ...]:
    by_model: dict[str, list[Instance]] = {}
    for instance in plan.instances:
        by_model.setdefault(instance.model, []).append(instance)
    rows = [_role(model, tuple(instances)) for model, instances in by_model.items()]
    return tuple(sorted(rows, key=lambda row: (ROLES[row.role].rank, row.model)))


def _role(model: str, instances: tuple[Instance, ...]) -> RoleRow:
    first = instances[0]
    alike = all(
        (each.devices, each.tensor_split) == (first.devices, first.tensor_split)
        for each in instances
    )
    together = tuple(dict.fromkeys(label for each in instances for label in each.devices))
    return RoleRow(
        role=first.role,
        model=model,
        devices=first.devices if alike else together,
        tensor_split=first.tensor_split if alike else None,
        replicas=len(instances),
        instances=instances,
    )


def _tight(plan: Plan) -> tuple[TightRow, ...]:
    rows = []
    for instance, missing in sorted(plan.tight.items()):
        shortfall = {label: count for label, count in sorted(missing.items()) if count > 0}
        if shortfall:
            rows.append(TightRow(instance=instance, shortfall=shortfall))
    return tuple(rows)


def _rejected(plan: Plan, problems: Sequence[Problem]) -> RejectedSpec | None:
    broken = [each for each in problems if each.where.split(".")[0] == "placement"]
    if broken:
        return RejectedSpec(spec=None, reason="; ".join(each.text() for each in broken))
    if plan.rejected is None:
        return None
    return RejectedSpec(spec=_object(plan.rejected.spec), reason=plan.rejected.reason)


def _object(canonical: str | None) -> dict[str, Any] | None:
    if canonical is None:
        return None
    value = json.loads(canonical)
    return value if isinstance(value, dict) and value else None


def _why_empty(plan: Plan) -> str | None:
    if plan.instances:
        return None
    absent, refused = len(plan.skipped_not_installed), len(plan.unplaceable)
    if not absent and not refused:
        return "the config has no models"
    parts = [f"{absent} not installed"] if absent else []
    parts += [f"{refused} cannot be placed on this machine"] if refused else []
    return f"no model runs: {', '.join(parts)}"


def _why_no_gpus(inventory: Inventory) -> str | None:
    if inventory.devices:
        return None
    if inventory.engine_backend == "cpu":
        return "the engine listed no device: models run on the CPU"
    return "; ".join(inventory.notes) or "the engine did not list its devices"
