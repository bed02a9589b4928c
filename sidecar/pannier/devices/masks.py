"""Visible-device masks: which cards a process sees by its environment, and what a child is given.

CUDA's own rule (CUDA C++ Programming Guide, "CUDA Environment Variables"): entries are indices or
UUIDs, a UUID may be shortened as long as it means one card; the first entry that names nothing ends
the list. Programs that follow the driver (PyTorch among them) agree that an entry which is there
twice leaves no card at all, and that an index ends at its first character that is no digit.

A pin hides every other card: a card that a process can see costs it a context and may be written
to, whatever the split says. For NVIDIA that is CUDA_VISIBLE_DEVICES with UUIDs; elsewhere it is
`--device` with the engine's names, under the environment that they were listed with. We never set
more than that one variable: HIP counts within what ROCR has left over, so two mean something else.

Must not: read the environment; it is passed in.
"""

import re
from collections.abc import Mapping, Sequence

import msgspec

from pannier.devices.inventory import Device, EngineBackend
from pannier.devices.reading import Card

CUDA_MASK = "CUDA_VISIBLE_DEVICES"

ROCM_MASKS = ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL", CUDA_MASK)
"""What hides AMD cards; HIP takes CUDA's variable for its own too (HIP manual, "GPU isolation")."""

VIRTUAL = "GGML_CUDA_DEVICES"
"""Makes llama.cpp show one card as several (ggml-cuda.cu, b11434), which have labels alone."""

_INDEX = re.compile(r"\s*([+-]?\d+)", re.ASCII)
_LONGEST_INDEX = 18


class Selection(msgspec.Struct, frozen=True, kw_only=True):
    """How a llama-server is given its devices: variables, flags, and their names in that process.

    `labels` are in the order of the devices that were asked for; a `tensor_split` counts by it.
    """

    env: dict[str, str] = {}
    flags: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()


def visible_cards(cards: Sequence[Card], environ: Mapping[str, str]) -> tuple[Card, ...]:
    """The cards that a CUDA process sees under this environment, in its order.

    `cards` are in NVML's order, which is CUDA's under CUDA_DEVICE_ORDER=PCI_BUS_ID. A process sees
    one MIG instance at most, and no whole card beside it (MIG User Guide, "CUDA Device
    Enumeration").
    """
    seen = allowed_cards(cards, environ)
    instance = next((card for card in seen if card.parent is not None), None)
    return (instance,) if instance is not None else seen


def allowed_cards(cards: Sequence[Card], environ: Mapping[str, str]) -> tuple[Card, ...]:
    """The cards that the mask lets through; of MIG instances a process sees the first alone."""
    able = [card for card in cards if card.compute_capable]
    mask = environ.get(CUDA_MASK)
    return tuple(able if mask is None else _masked(able, mask))


def _masked(cards: Sequence[Card], mask: str) -> list[Card]:
    entries = [entry.strip() for entry in mask.split(",")]
    by_uuid = entries[0].startswith(("GPU-", "MIG-"))
    seen: list[Card] = []
    for entry in entries:
        card = _by_uuid(cards, entry) if by_uuid else _by_index(cards, entry)
        if card is None:
            break
        if card in seen:
            return []
        seen.append(card)
    return seen


def _by_uuid(cards: Sequence[Card], entry: str) -> Card | None:
    """The one card whose UUID starts with the entry; kinds are not mixed within a mask."""
    if not entry.startswith(("GPU-", "MIG-")):
        return None
    found = [card for card in cards if card.uuid and card.uuid.startswith(entry)]
    return found[0] if len(found) == 1 else None


def _by_index(cards: Sequence[Card], entry: str) -> Card | None:
    """The card with this index; a MIG card counts as one, and shows its first instance."""
    match = _INDEX.match(entry)
    if match is None or len(match[1]) > _LONGEST_INDEX:
        return None
    whole: list[Card] = []
    for card in cards:
        if card.parent is None or all(card.parent != other.parent for other in whole):
            whole.append(card)
    index = int(match[1])
    return whole[index] if 0 <= index < len(whole) else None


def mask_words(environ: Mapping[str, str]) -> str | None:
    """The mask that hides cards here, as a person would write it, or None where none is set."""
    mask = environ.get(CUDA_MASK)
    return None if mask is None else f"{CUDA_MASK}={mask!r}"


def container_note(environ: Mapping[str, str]) -> str | None:
    """Why a container may have no NVIDIA card, by the variable that its runtime was given.

    A list there has done its work before we started: its indices are the host's, and what this
    container has is all that NVML shows. So only "nothing" is worth a word.
    """
    wanted = environ.get("NVIDIA_VISIBLE_DEVICES")
    if wanted is None or wanted.strip() not in ("", "void", "none"):
        return None
    return (
        f"this container was started without NVIDIA cards (NVIDIA_VISIBLE_DEVICES={wanted!r}):"
        " start it with `--gpus all` to use them"
    )


def rocm_note(environ: Mapping[str, str]) -> str | None:
    """A warning where AMD cards are hidden by more than one variable, which rarely means that."""
    found = [name for name in ROCM_MASKS if name in environ]
    if len(found) < 2:
        return None
    return (
        f"{' and '.join(found)} are set together: each counts within what the one before it has"
        " left over; keep one of them"
    )


def why_not_together(devices: Sequence[Device]) -> str | None:
    """Why one process cannot use these devices together, or None when it can."""
    parts = [device for device in devices if device.parent is not None]
    here = [device for device in devices if device.backend != "rpc"]
    if parts and len(here) > 1:
        return (
            f"{parts[0].label} is a MIG instance: a CUDA process can use one of them,"
            " and no other card beside it"
        )
    return None


def device_selection(
    devices: Sequence[Device], environ: Mapping[str, str], *, backend: EngineBackend = "unknown"
) -> Selection:
    """What makes a llama-server use exactly these devices, in this order.

    `environ` is what the engine was asked with, mask included: what comes out replaces that mask
    and shows nothing that it hid. No devices: the CPU alone; `backend` is then the machine's, so
    that no CUDA context is made for nothing. Raises ValueError for devices that cannot be used
    together (`why_not_together`).
    """
    if reason := why_not_together(devices):
        raise ValueError(reason)
    if not devices:
        hidden = {CUDA_MASK: ""} if backend == "cuda" else {}
        return Selection(env=hidden, flags=("-dev", "none"))
    env = child_mask(devices, environ)
    labels = labels_in_child(devices) if env else tuple(device.label for device in devices)
    return Selection(env=env, flags=("-dev", ",".join(labels)), labels=labels)


def child_mask(devices: Sequence[Device], environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that hide every other card from a child; none where `--device` has to do.

    By UUID. Without one (no NVML), by what the n-th entry of our own mask says, as the label counts
    within it.
    """
    cards = [device for device in devices if device.backend == "cuda"]
    if not cards or VIRTUAL in environ:
        return {}
    entries = [device.uuid or _entry(device, environ) for device in cards]
    # Never both kinds in one mask: the driver would stop at the first of the other kind.
    if any(device.uuid is None for device in cards):
        entries = [_entry(device, environ) for device in cards]
    return {} if None in entries else {CUDA_MASK: ",".join(filter(None, entries))}


def _entry(device: Device, environ: Mapping[str, str]) -> str | None:
    """The entry of the mask that made this label, or the label's number where there is no mask."""
    number = device.label.removeprefix("CUDA")
    if not number.isdecimal():
        return None
    mask = environ.get(CUDA_MASK)
    if mask is None:
        return number
    entries = [entry.strip() for entry in mask.split(",")]
    return entries[int(number)] if int(number) < len(entries) else None


def labels_in_child(devices: Sequence[Device]) -> tuple[str, ...]:
    """The names that devices have in a child that sees only these: CUDA counts from 0 again."""
    labels: list[str] = []
    count = 0
    for device in devices:
        if device.backend == "cuda":
            labels.append(f"CUDA{count}")
            count += 1
        else:
            labels.append(device.label)
    return tuple(labels)
