"""config x inventory x files -> Plan: which model runs where, and why.

Pure and deterministic: the same input gives the same plan, in whatever order the models stand in
the file. Every model is an instance of its own group, so that an edit touches nothing else; models
that cannot be resident together share a swap set. A machine without devices is planned as one
device, the host's memory.

The sizes are estimates from the files (`estimate_bytes`); they decide what shares a device, never
what llama-server allocates.

Must not: read files, ask devices, or look at what runs.
"""

from collections.abc import Mapping

import msgspec

from pannier.config.schema import Config, Model, Placement
from pannier.devices.inventory import Device, Inventory
from pannier.gguf.model_files import ModelFiles
from pannier.plan.roles import MIB, ROLES, load_ceiling_s
from pannier.plan.rooms import Room, rooms_of

DEFAULT_CONTEXT = 8192
"""Tokens per slot when the config names none; llama-server lowers it to the trained window."""


class Instance(msgspec.Struct, frozen=True, kw_only=True):
    """One llama-server: a model, or a replica of it. Bytes; `context` in tokens per slot."""

    id: str
    model: str
    role: str
    replica: int = 0
    devices: tuple[str, ...] = ()
    tensor_split: tuple[int, ...] | None = None
    context: int
    slots: int
    bytes_needed: int
    file_bytes: int
    load_timeout_s: int


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """What one host runs. With `swap`, one member is resident at a time."""

    id: str
    members: tuple[str, ...]
    swap: bool = False


class Unplaceable(msgspec.Struct, frozen=True, kw_only=True):
    """A model that cannot be served, with what it needs and what there is, in bytes."""

    model: str
    need: int
    have: int
    reason: str


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """The decision: what runs where. `tight` is the shortfall in bytes per device of a model."""

    generation: int = 0
    devices: tuple[Device, ...] = ()
    instances: tuple[Instance, ...] = ()
    groups: tuple[Group, ...] = ()
    unplaceable: tuple[Unplaceable, ...] = ()
    skipped_not_installed: tuple[str, ...] = ()
    tight: dict[str, dict[str, int]] = {}
    reasons: tuple[str, ...] = ()

    def instance(self, instance_id: str) -> Instance:
        """The instance of that id; KeyError when the plan has none."""
        for instance in self.instances:
            if instance.id == instance_id:
                return instance
        raise KeyError(instance_id)

    def instances_of(self, model: str) -> tuple[Instance, ...]:
        """The replicas of a model, in order; empty when it is not placed."""
        return tuple(instance for instance in self.instances if instance.model == model)


class _Choice(msgspec.Struct):
    """Where one instance goes: mutable only while the plan is being made."""

    instance: Instance
    rooms: list[Room]
    keep: bool
    swap_room: Room | None = None


def estimate_bytes(model: Model, files: ModelFiles) -> int:
    """Bytes that a model takes on its devices, estimated from its files alone.

    Weights, an eighth of them (256 MiB at least) for KV cache and compute buffers, and the
    projector times 1.4 (its encode buffer).
    """
    overhead = max(256 * MIB, files.weights // 8) * max(1, model.slots // 4)
    return files.weights + files.draft_bytes + overhead + files.projector_bytes * 7 // 5


def make_plan(config: Config, inventory: Inventory, files: Mapping[str, ModelFiles]) -> Plan:
    """The plan for this config on these devices. Never raises for a valid config."""
    rooms = rooms_of(config.memory.reserve, inventory)
    names = sorted(config.models, key=lambda name: (ROLES[config.models[name].role].rank, name))
    absent = tuple(name for name in names if files[name].missing)
    choices: list[_Choice] = []
    unplaceable: list[Unplaceable] = []
    tight: dict[str, dict[str, int]] = {}
    reasons: list[str] = []
    waiting: list[_Choice] = []
    for name in (name for name in names if name not in absent):
        model, spec = config.models[name], _placement_of(config, name)
        need = estimate_bytes(model, files[name])
        for replica in range(spec.replicas if spec else 1):
            choice = _Choice(
                _instance(name, model, files[name], replica, spec, need), [], model.keep
            )
            problem = _place_pinned(choice, spec, rooms, inventory) if spec else None
            if problem:
                unplaceable.append(problem)
            elif spec or _place_alone(choice, rooms) or _place_split(choice, rooms):
                choices.append(choice)
            else:
                waiting.append(choice)
    for choice in waiting:
        problem = _share(choice, choices, rooms, tight)
        if problem:
            unplaceable.append(problem)
        else:
            choices.append(choice)
            reasons.append(
                f"{choice.instance.id} shares {choice.rooms[0].name}: not all fit at once"
            )
    return _plan(choices, inventory, tuple(unplaceable), absent, tight, reasons)


def _placement_of(config: Config, name: str) -> Placement | None:
    """The manual placement of a model: its own table wins over its role's."""
    return config.placement.get(name) or config.placement.get(config.models[name].role)


def _instance(
    name: str, model: Model, files: ModelFiles, replica: int, spec: Placement | None, need: int
) -> Instance:
    replicas = spec.replicas if spec else 1
    return Instance(
        id=name if replicas == 1 else f"{name}#{replica}",
        model=name,
        role=model.role,
        replica=replica,
        context=model.context or DEFAULT_CONTEXT,
        slots=model.slots,
        bytes_needed=need,
        file_bytes=files.total,
        load_timeout_s=load_ceiling_s(model.role, files.total),
    )


def _place_pinned(
    choice: _Choice, spec: Placement, rooms: list[Room], inventory: Inventory
) -> Unplaceable | None:
    """Obeys a manual placement exactly, or says why it cannot be."""
    chosen: list[Room] = []
    for wanted in spec.devices:
        device = inventory.find(wanted)
        if device is None:
            known = ", ".join(f"{d.index} ({d.label})" for d in inventory.devices) or "none"
            reason = f"placement names device {wanted!r}; the devices of this machine: {known}"
            return Unplaceable(
                model=choice.instance.model,
                need=choice.instance.bytes_needed,
                have=0,
                reason=reason,
            )
        chosen.append(next(room for room in rooms if room.label == device.label))
    choice.rooms = chosen
    shares = spec.tensor_split or tuple(1 for _ in chosen)
    for room, share in zip(chosen, shares, strict=True):
        room.free -= choice.instance.bytes_needed * share // sum(shares)
    choice.instance = msgspec.structs.replace(
        choice.instance, tensor_split=shares if len(chosen) > 1 else None
    )
    return None


def _place_alone(choice: _Choice, rooms: list[Room]) -> bool:
    """On the one device with the most room, when that is enough."""
    room = max(rooms, key=lambda room: (room.free, -room.order))
    if room.free < choice.instance.bytes_needed:
        return False
    room.free -= choice.instance.bytes_needed
    choice.rooms = [room]
    return True


def _place_split(choice: _Choice, rooms: list[Room]) -> bool:
    """Over as few devices as hold it, the roomiest first, in shares of 256 MiB of their room."""
    by_room = sorted(rooms, key=lambda room: (-room.free, room.order))
    need = choice.instance.bytes_needed
    for count in range(2, len(by_room) + 1):
        chosen = sorted(by_room[:count], key=lambda room: room.order)
        shares = [room.free // (256 * MIB) for room in chosen]
        if min(shares) < 1:
            return False
        parts = [need * share // sum(shares) + 256 * MIB for share in shares]
        if all(part <= room.free for part, room in zip(parts, chosen, strict=True)):
            for part, room in zip(parts, chosen, strict=True):
                room.free -= part
            choice.rooms = chosen
            choice.instance = msgspec.structs.replace(choice.instance, tensor_split=tuple(shares))
            return True
    return False


def _share(
    choice: _Choice, placed: list[_Choice], rooms: list[Room], tight: dict[str, dict[str, int]]
) -> Unplaceable | None:
    """Joins the swap set of the largest device, moving residents into it until the largest fits."""
    room = max(rooms, key=lambda room: (room.capacity, -room.order))
    need = choice.instance.bytes_needed
    if need > room.capacity:
        if room.label is None:
            return Unplaceable(
                model=choice.instance.model,
                need=need,
                have=room.capacity,
                reason="it needs more memory than the machine has; a smaller quantisation,"
                " a smaller context or fewer slots would help",
            )
        tight[choice.instance.id] = {room.label: need - room.capacity}
    alone = [c for c in placed if c.rooms == [room] and not c.keep and c.swap_room is None]
    while need > room.free + room.swap_bytes and alone:
        resident = alone.pop()
        resident.swap_room = room
        room.free += resident.instance.bytes_needed
        room.charge_swap(resident.instance.bytes_needed)
    room.charge_swap(need)
    choice.rooms, choice.swap_room = [room], room
    return None


def _plan(
    choices: list[_Choice],
    inventory: Inventory,
    unplaceable: tuple[Unplaceable, ...],
    absent: tuple[str, ...],
    tight: dict[str, dict[str, int]],
    reasons: list[str],
) -> Plan:
    order = sorted(choices, key=lambda c: (ROLES[c.instance.role].rank, c.instance.id))
    instances = tuple(
        msgspec.structs.replace(
            c.instance, devices=tuple(room.label for room in c.rooms if room.label is not None)
        )
        for c in order
    )
    groups = [Group(id=c.instance.id, members=(c.instance.id,)) for c in order if not c.swap_room]
    shared: dict[str, list[str]] = {}
    for choice in order:
        if choice.swap_room:
            shared.setdefault(f"swap-{choice.swap_room.name}", []).append(choice.instance.id)
    groups += [
        Group(id=group, members=tuple(members), swap=len(members) > 1)
        for group, members in sorted(shared.items())
    ]
    return Plan(
        devices=inventory.devices,
        instances=instances,
        groups=tuple(groups),
        unplaceable=unplaceable,
        skipped_not_installed=absent,
        tight=dict(sorted(tight.items())),
        reasons=(*inventory.notes, *reasons),
    )
