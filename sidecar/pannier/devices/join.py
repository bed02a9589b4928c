"""The engine's list x NVML's reading -> the inventory that is planned on. Pure.

The engine's list says what can be used and what it is called; NVML says which card that is and who
holds its memory. Where they disagree the engine rules and a note says so. A device without a card
(AMD, Intel, Apple, remote) has the engine's numbers alone, taken when it was asked.

Must not: read anything; whatever was read is passed in.
"""

from collections.abc import Mapping, Sequence

import msgspec

from pannier.devices.inventory import Device, HostMemory, Inventory, from_engine, in_order
from pannier.devices.listing import EngineList
from pannier.devices.masks import (
    VIRTUAL,
    allowed_cards,
    container_note,
    mask_words,
    rocm_note,
    visible_cards,
)
from pannier.devices.matching import is_same_order, match_cards
from pannier.devices.reading import Card, NvmlReading
from pannier.devices.usage import Use, used_by

_BY_DIFFERENCE = (
    "NVML does not tell which processes hold the memory (in a container, or in WSL): what our"
    " models should hold is taken off, the rest is others'"
)

_Pairs = dict[str, Card]
"""Engine label -> the card that it is."""


class Ours(msgspec.Struct, frozen=True, kw_only=True):
    """What our engines are known to hold: their process ids, and bytes by device as planned.

    A device is named by its UUID, or its label where it has none. The plan's bytes stand in where
    nobody tells who holds what.
    """

    pids: frozenset[int] = frozenset()
    expected: dict[str, int] = {}


def join(
    listed: EngineList,
    reading: NvmlReading,
    *,
    environ: Mapping[str, str],
    host: HostMemory,
    ours: Ours | None = None,
    read_at: float | None = None,
) -> Inventory:
    """One inventory out of both. `environ` is what the engine was asked with."""
    notes = _notes_on_reading(reading, environ)
    if listed.devices is None:
        why = f"the engine did not list its devices: {listed.reason or 'it said nothing'}"
        notes = (why, *notes)
        unused, more = _unused(reading.cards, (), environ, "unknown until the engine answers")
        return Inventory(
            engine_backend="unknown", host=host, notes=(*notes, *more), unused=unused,
            read_at=read_at,
        )  # fmt: skip
    pairs, uncertain = _pair(listed.devices, reading, environ)
    known = tuple(_with_card(each, pairs.get(each.label)) for each in listed.devices)
    parts, more = _other_instances(known, pairs, reading, environ)
    found = from_engine((*known, *parts), host, (*notes, *uncertain, *more))
    unused, why_unused = _unused(reading.cards, found.devices, environ, _why_not_offered(found))
    if found.engine_backend == "rocm" and (note := rocm_note(environ)):
        why_unused = (*why_unused, note)
    measured = msgspec.structs.replace(
        found, notes=(*found.notes, *why_unused), unused=unused, read_at=read_at
    )
    return with_memory(measured, reading, host=host, ours=ours or Ours(), read_at=read_at)


def with_memory(
    inventory: Inventory,
    reading: NvmlReading,
    *,
    host: HostMemory,
    ours: Ours,
    read_at: float | None = None,
) -> Inventory:
    """The same devices with what is free and who holds the rest, by a reading of this moment."""
    held = {each.uuid: ours.expected.get(each.uuid, 0) for each in inventory.devices if each.uuid}
    uses = used_by(reading, ours.pids, held)
    told = {
        card.uuid: (card, use)
        for card, use in zip(reading.cards, uses, strict=True)
        if card.uuid in held
    }
    devices = []
    for each in inventory.devices:
        card, use = told.get(each.uuid or "", (None, Use()))
        us = use.by_us
        if us is None:
            us = ours.expected.get(each.uuid or each.label, 0)
        devices.append(_measured(each, card, host, us))
    notes = [note for note in inventory.notes if note != _BY_DIFFERENCE]
    if any(use.how == "difference" for _, use in told.values()):
        notes.append(_BY_DIFFERENCE)
    return msgspec.structs.replace(
        inventory, devices=tuple(devices), host=host, notes=tuple(notes), read_at=read_at
    )


def _measured(device: Device, card: Card | None, host: HostMemory, ours: int) -> Device:
    """`ours`: bytes of it that are ours. What is neither free nor ours is others'."""
    free = device.free
    if device.unified and host.available:
        free = host.available
    elif card is not None and card.free is not None:
        free = card.free
    free = min(free, device.total)
    used = device.total - free
    us = min(ours, used)
    return msgspec.structs.replace(device, free=free, used_by_us=us, used_by_others=used - us)


def _pair(
    listed: Sequence[Device], reading: NvmlReading, environ: Mapping[str, str]
) -> tuple[_Pairs, tuple[str, ...]]:
    """The card of each CUDA device of the engine's list, and what is to be said of the others."""
    devices = [each for each in listed if each.backend == "cuda" and each.total > 0]
    if not devices or not reading.cards:
        return {}, ()
    if VIRTUAL in environ:
        return {}, (f"{VIRTUAL} is set: the devices are parts of cards, pinned by label alone",)
    seen = visible_cards(reading.cards, environ)
    found = match_cards(devices, seen, same_order=is_same_order(environ))
    pairs = {
        device.label: card for device, card in zip(devices, found, strict=True) if card is not None
    }
    lost = [device for device in devices if device.label not in pairs]
    return pairs, tuple(
        f"{device.label}: it is not certain which of NVML's cards this is ({device.name},"
        f" {_mib(device.total)}); its memory is the engine's word"
        for device in lost
    )


def _with_card(device: Device, card: Card | None) -> Device:
    if card is None:
        return device
    return msgspec.structs.replace(
        device,
        uuid=card.uuid,
        pci=card.pci,
        unified=card.unified,
        compute_capable=card.compute_capable,
        parent=card.parent,
        nvml_index=card.index,
    )


def _other_instances(
    known: Sequence[Device], pairs: _Pairs, reading: NvmlReading, environ: Mapping[str, str]
) -> tuple[tuple[Device, ...], tuple[str, ...]]:
    """What a process cannot see beside the MIG instance that it sees, and another process can.

    The engine sees one instance and has shown by it that CUDA works; the rest is NVML's word.
    """
    hidden = [
        card
        for card in allowed_cards(reading.cards, environ)
        if all(card is not other for other in visible_cards(reading.cards, environ))
    ]
    if not hidden or not any(card.parent for card in pairs.values()):
        return (), ()
    first = len(known)
    devices = tuple(
        _of_card(card, label=f"CUDA{first + number}")
        for number, card in enumerate(card for card in hidden if card.total and card.uuid)
    )
    names = ", ".join(f"{each.label} ({_short(each.uuid)})" for each in devices)
    note = (
        "a process sees one MIG instance and nothing beside it; listed by NVML and named by"
        f" Pannier: {names}"
    )
    return devices, (note,) if devices else ()


def _of_card(card: Card, label: str) -> Device:
    """A device with NVML's word alone."""
    total = card.total or 0
    return Device(
        index=card.index, backend="cuda", label=label, name=card.name, total=total,
        free=card.free or 0, uuid=card.uuid, pci=card.pci, unified=card.unified,
        compute_capable=card.compute_capable, parent=card.parent, nvml_index=card.index,
    )  # fmt: skip


def _unused(
    cards: Sequence[Card],
    taken: Sequence[Device],
    environ: Mapping[str, str],
    why: str,
) -> tuple[tuple[Device, ...], tuple[str, ...]]:
    """The cards that nothing can be placed on, and why.

    Of cards that may be a device whose card is not certain, as many are left out as there are such.
    """
    uuids = {device.uuid for device in taken}
    uncertain = sum(device.backend == "cuda" and not device.uuid for device in taken)
    left = [card for card in cards if card.uuid not in uuids or card.uuid is None]
    allowed = allowed_cards(cards, environ)
    devices, notes = [], []
    for card in left:
        if not card.compute_capable:
            reason = "; ".join(card.problems) or "CUDA cannot run on it"
        elif card not in allowed:
            reason = f"hidden by {mask_words(environ)}"
        elif uncertain > 0:
            uncertain -= 1
            continue
        else:
            reason = why
        devices.append(_of_card(card, label=""))
        notes.append(f"{card.name or 'a card'} ({_short(card.uuid)}): not used: {reason}")
    return in_order(devices), tuple(notes)


def _why_not_offered(found: Inventory) -> str:
    if any(device.backend == "cuda" for device in found.devices):
        return "the engine does not list it"
    return (
        "the engine lists no CUDA device; this llama-server was built without CUDA,"
        " or CUDA cannot start (the driver may be too old for it)"
    )


def _notes_on_reading(reading: NvmlReading, environ: Mapping[str, str]) -> tuple[str, ...]:
    notes = list(reading.problems)
    if reading.lost and not reading.absent:
        notes.append(f"NVML: {reading.lost}; the memory of NVIDIA cards is the engine's word")
    notes += [
        f"{card.name or 'a card'} ({_short(card.uuid)}): {problem}"
        for card in reading.cards
        if card.compute_capable
        for problem in card.problems
    ]
    if not reading.cards and (note := container_note(environ)):
        notes.append(note)
    return tuple(notes)


def _short(uuid: str | None) -> str:
    return (uuid or "no UUID")[:12]


def _mib(count: int) -> str:
    return f"{count >> 20} MiB"
