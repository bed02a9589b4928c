"""The last inventory x what was read now -> the inventory that holds from here on. Pure.

One broken answer must not lose what runs: while NVML or the engine is silent the last inventory
stays and says that it is old. And a card that comes or goes must not rename the others: what a
person pinned by index and what is told apart by label stays where it was.

Must not: decide when to read again.
"""

import msgspec

from pannier.devices.inventory import Device, HostMemory, Inventory
from pannier.devices.join import Ours, join, with_memory
from pannier.devices.listing import EngineList
from pannier.devices.reading import Card, NvmlReading


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of this machine's devices: the answers that were good, and what they made."""

    listed: EngineList = EngineList(reason="it was not asked yet")
    reading: NvmlReading = NvmlReading(absent=True)
    inventory: Inventory = Inventory()


class Moment(msgspec.Struct, frozen=True, kw_only=True):
    """What was read now. `listed` is None where the engine was not asked.

    `another`: the question was not that of the last good list (another engine, other endpoints).
    """

    reading: NvmlReading
    host: HostMemory
    environ: dict[str, str]
    ours: Ours
    read_at: float
    listed: EngineList | None = None
    another: bool = False


def settle(before: Seen, now: Moment) -> Seen:
    """What is known after a reading; `inventory.stale` says what of it is old, and why."""
    silent = _silent(before, now)
    reading = before.reading if silent else now.reading
    broken = _broken_list(before, now, reading) if now.listed is not None else None
    stale = f"NVML: {silent}" if silent else None
    if silent and (now.listed is None or broken is not None):
        return _kept(before, before.inventory, silent)
    if now.listed is None or broken is not None:
        # The devices are those of before; who holds their memory is NVML's to say.
        measured = with_memory(
            before.inventory, now.reading, host=now.host, ours=now.ours, read_at=now.read_at
        )
        if broken is not None:
            return _kept(before, measured, broken)
        inventory = msgspec.structs.replace(measured, stale=None)
        return Seen(listed=before.listed, reading=reading, inventory=inventory)
    made = join(
        now.listed, reading, environ=now.environ, host=now.host, ours=now.ours, read_at=now.read_at
    )
    named = keep_names(before.inventory, msgspec.structs.replace(made, stale=stale))
    return Seen(listed=now.listed, reading=reading, inventory=named)


def card_set(reading: NvmlReading) -> tuple[tuple[str | None, bool], ...]:
    """What has to be equal for the engine to give the same list: the cards that can be used."""
    return tuple((card.uuid, card.compute_capable) for card in reading.cards)


def needs_list(before: Seen, now: NvmlReading) -> bool:
    """Whether the engine has to be asked, by NVML's word: a card came, went, or was lost."""
    return not now.lost and card_set(now) != card_set(before.reading)


def is_covered(inventory: Inventory) -> bool:
    """Whether NVML alone tells what moves: every device that is in use is a card of its."""
    return all(device.nvml_index is not None for device in inventory.devices)


def _silent(before: Seen, now: Moment) -> str | None:
    """Why NVML is silent now although it has spoken before."""
    if now.reading.lost and before.reading.cards:
        return now.reading.lost
    return None


def _kept(before: Seen, inventory: Inventory, why: str) -> Seen:
    stale = msgspec.structs.replace(inventory, stale=why)
    return msgspec.structs.replace(before, inventory=stale)


def _broken_list(before: Seen, now: Moment, reading: NvmlReading) -> str | None:
    """Why the engine's answer is not to be believed; there is nothing to keep at the first one.

    Another engine may well have no CUDA; the same one does not lose it while its cards are there.
    """
    if now.listed is None or not before.inventory.devices:
        return None
    if now.listed.devices is None:
        return f"the engine did not list its devices: {now.listed.reason or 'it said nothing'}"
    if now.another:
        return None
    had = {each.uuid for each in before.inventory.devices if each.nvml_index is not None}
    there = [card for card in reading.cards if card.compute_capable and card.uuid in had]
    if there and not any(each.backend == "cuda" for each in now.listed.devices):
        return (
            f"the engine lists no CUDA device any more, while NVML sees {_count(there)} that it"
            " listed before"
        )
    return None


def _count(cards: list[Card]) -> str:
    return f"{len(cards)} card{'' if len(cards) == 1 else 's'}"


def keep_names(before: Inventory, after: Inventory) -> Inventory:
    """The new devices under the indices and labels that they had before.

    Only where every CUDA device is known by its UUID: a child is then given its cards by UUID, and
    the label is a name among people. A new card takes the first index and label that are free.
    """
    cuda = [device for device in after.devices if device.backend == "cuda"]
    if any(device.uuid is None for device in cuda):
        return after
    had = {_identity(device): device for device in before.devices}
    kept = {key: had[key] for device in after.devices if (key := _identity(device)) in had}
    indices = {device.index for device in kept.values()}
    labels = {device.label for device in kept.values()}
    named: list[Device] = []
    for device in after.devices:
        old = kept.get(_identity(device))
        if old is None:
            index = _free(device.index, indices)
            label = _free_label(device.label, labels) if device.backend == "cuda" else device.label
        else:
            index, label = old.index, old.label
        indices.add(index)
        labels.add(label)
        named.append(msgspec.structs.replace(device, index=index, label=label))
    named.sort(key=lambda device: device.index)
    return msgspec.structs.replace(after, devices=tuple(named))


def _identity(device: Device) -> tuple[str, ...]:
    if device.backend == "cuda" and device.uuid:
        return ("cuda", device.uuid)
    return (device.backend, device.label, device.name)


def _free(wanted: int, taken: set[int]) -> int:
    choices: tuple[int, ...] = (wanted, *range(len(taken) + 1))
    return next(number for number in choices if number not in taken)


def _free_label(wanted: str, taken: set[str]) -> str:
    choices = (wanted, *(f"CUDA{number}" for number in range(len(taken) + 1)))
    return next(label for label in choices if label not in taken)
