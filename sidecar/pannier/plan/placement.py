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


class _Draft(msgspec.Struct):
    """The plan while it is being made."""

    rooms: list[Room]
    choices: list[_Choice] = []
    unplaceable: list[Unplaceable] = []
    tight: dict[str, dict[str, int]] = {}
    reasons: list[str] = []


def estimate_bytes(model: Model, files: ModelFiles) -> int:
    """Bytes that a model takes on its devices, estimated from its files alone.

    Weights, an eighth of them (256 MiB at least) for KV cache and compute buffers, and the
    projector times 1.4 (its encode buffer).
    """
    overhead = max(256 * MIB, files.weights // 8) * max(1, model.slots // 4)
    return files.weights + files.draft_bytes + overhead + files.projector_bytes * 7 // 5


def make_plan(config: Config, inventory: Inventory, files: Mapping[str, ModelFiles]) -> Plan:
    """The plan for this config on these devices. Never raises for a valid config.

    What a person pinned comes first, then what is never swapped out, then the rest: whoever has no
    choice must not find the room taken by those who have one.
    """
    draft = _Draft(rooms_of(config.memory.reserve, inventory))
    names = sorted(config.models, key=lambda name: (ROLES[config.models[name].role].rank, name))
    absent = tuple(name for name in names if files[name].missing)
    installed = [name for name in names if name not in absent]
    pinned = [name for name in installed if _placement_of(config, name)]
    for name in pinned:
        _place_pinned(name, config, files[name], draft, inventory)
    free = [name for name in installed if name not in pinned]
    waiting: list[_Choice] = []
    for name in sorted(free, key=lambda name: not config.models[name].keep):
        model = config.models[name]
        need = estimate_bytes(model, files[name])
        choice = _Choice(_instance(name, model, files[name], 0, None, need), [], model.keep)
        if _place_alone(choice, draft.rooms) or _place_split(choice, draft.rooms):
            draft.choices.append(choice)
        elif choice.keep:
            _squeeze(choice, draft)
        else:
            waiting.append(choice)
    for choice in waiting:
        _share(choice, draft)
    return _plan(draft, inventory, absent)


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
    name: str, config: Config, files: ModelFiles, draft: _Draft, inventory: Inventory
) -> None:
    """Obeys a manual placement exactly, or says why it cannot be. What is too small is tight."""
    model, spec = config.models[name], _placement_of(config, name)
    assert spec is not None  # noqa: S101  asked for pinned models only
    need = estimate_bytes(model, files)
    found = [(wanted, inventory.find(wanted)) for wanted in spec.devices]
    reason = _bad_pin(found, inventory)
    if reason:
        draft.unplaceable.append(Unplaceable(model=name, need=need, have=0, reason=reason))
        return
    labels = [device.label for _, device in found if device is not None]
    chosen = [next(room for room in draft.rooms if room.label == label) for label in labels]
    shares = spec.tensor_split or tuple(1 for _ in chosen)
    for replica in range(spec.replicas):
        instance = _instance(name, model, files, replica, spec, need)
        for room, share in zip(chosen, shares, strict=True):
            short = room.charge(need * share // sum(shares))
            if short:
                draft.tight.setdefault(instance.id, {})[room.name] = short
        split = shares if len(chosen) > 1 else None
        instance = msgspec.structs.replace(instance, tensor_split=split)
        draft.choices.append(_Choice(instance, list(chosen), model.keep))


def _bad_pin(found: list[tuple[int | str, Device | None]], inventory: Inventory) -> str | None:
    """Why these devices cannot be taken: one is not there, or is named in two ways."""
    labels = set()
    for wanted, device in found:
        if device is None:
            known = ", ".join(f"{d.index} ({d.label})" for d in inventory.devices) or "none"
            return f"placement names device {wanted!r}; the devices of this machine: {known}"
        if device.label in labels:
            return f"placement names the device {device.label} twice, once as {wanted!r}"
        labels.add(device.label)
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


def _squeeze(choice: _Choice, draft: _Draft) -> None:
    """Where a model is never swapped out and does not fit beside what is there: tight."""
    room = max(draft.rooms, key=lambda room: (room.free, -room.order))
    if room.label is None:
        draft.unplaceable.append(_too_large(choice, room.free))
        return
    short = room.charge(choice.instance.bytes_needed)
    draft.tight[choice.instance.id] = {room.label: short}
    choice.rooms = [room]
    draft.choices.append(choice)


def _share(choice: _Choice, draft: _Draft) -> None:
    """Joins the swap set of the roomiest device, moving residents into it until the largest fits.

    Roomiest by what it would have with all its movable residents in the swap set.
    """
    need = choice.instance.bytes_needed
    room = max(draft.rooms, key=lambda room: (_have(room, draft), -room.order))
    have = _have(room, draft)
    if need > have:
        if room.label is None:
            draft.unplaceable.append(_too_large(choice, have))
            return
        draft.tight[choice.instance.id] = {room.label: need - have}
    alone = _movable(room, draft)
    while min(need, have) > room.free + room.swap_bytes:
        resident = alone.pop()
        resident.swap_room = room
        room.free += resident.instance.bytes_needed
        room.charge_swap(resident.instance.bytes_needed)
    room.charge_swap(min(need, have))
    choice.rooms, choice.swap_room = [room], room
    draft.choices.append(choice)


def _movable(room: Room, draft: _Draft) -> list[_Choice]:
    """Residents of a device that may be swapped out, those that are moved last first."""
    return [
        choice
        for choice in draft.choices
        if choice.rooms == [room]
        and not choice.keep
        and choice.swap_room is None
        and choice.instance.id not in draft.tight
    ]


def _have(room: Room, draft: _Draft) -> int:
    """What the swap set of a device may take at most."""
    moved = sum(choice.instance.bytes_needed for choice in _movable(room, draft))
    return room.free + room.swap_bytes + moved


def _too_large(choice: _Choice, have: int) -> Unplaceable:
    return Unplaceable(
        model=choice.instance.model,
        need=choice.instance.bytes_needed,
        have=have,
        reason="it needs more memory than the machine has for it; a smaller quantisation,"
        " a smaller context or fewer slots would help",
    )


def _plan(draft: _Draft, inventory: Inventory, absent: tuple[str, ...]) -> Plan:
    order = sorted(draft.choices, key=lambda c: (ROLES[c.instance.role].rank, c.instance.id))
    instances = tuple(
        msgspec.structs.replace(
            c.instance, devices=tuple(room.label for room in c.rooms if room.label is not None)
        )
        for c in order
    )
    shared: dict[str, list[str]] = {}
    for choice in order:
        if choice.swap_room:
            shared.setdefault(choice.swap_room.name, []).append(choice.instance.id)
    swapped = {name: members for name, members in sorted(shared.items()) if len(members) > 1}
    together = {member for members in swapped.values() for member in members}
    groups = [
        Group(id=c.instance.id, members=(c.instance.id,))
        for c in order
        if c.instance.id not in together
    ]
    taken = {instance.id for instance in instances}
    groups += [
        Group(id=_group_id(name, taken), members=tuple(members), swap=True)
        for name, members in swapped.items()
    ]
    reasons = [
        f"{', '.join(members)} share {name}: not all fit at once"
        for name, members in swapped.items()
    ]
    reasons += [
        f"{instance_id} does not fit {label}: {missing / 1024**3:.1f} GiB are missing"
        for instance_id, short in sorted(draft.tight.items())
        for label, missing in short.items()
    ]
    return Plan(
        devices=inventory.devices,
        instances=instances,
        groups=tuple(groups),
        unplaceable=tuple(draft.unplaceable),
        skipped_not_installed=absent,
        tight=dict(sorted(draft.tight.items())),
        reasons=(*inventory.notes, *reasons),
    )


def _group_id(room: str, taken: set[str]) -> str:
    """The id of a device's swap set: one that no model has."""
    name = f"swap-{room}"
    while name in taken:
        name = f"swap-{name}"
    return name
