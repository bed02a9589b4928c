"""Which device of the engine's list is which card of NVML's: by order, name and size. Pure.

The engine names no card in a way that NVML knows. Under CUDA_DEVICE_ORDER=PCI_BUS_ID both count in
one order, so a device is the next card that fits; where the engine leaves cards out, only what is
the same card in the first and in the last possible reading is certain. Under any other order a
device is certain when a single card fits it.

Must not: guess between two cards that fit equally well. A wrong UUID pins a model to a wrong card.
"""

from collections.abc import Mapping, Sequence

from pannier.devices.inventory import Device
from pannier.devices.reading import Card

_LEAST_SHARE = 0.90
"""CUDA's total is NVML's without what the driver keeps: 143,167 of 143,771 MiB on an H200, 24,080
of 24,564 on an RTX 4090; small cards keep the most of theirs."""

_ROUNDED = 1024 * 1024
"""The engine prints whole MiB."""


def match_cards(
    devices: Sequence[Device], cards: Sequence[Card], *, same_order: bool
) -> tuple[Card | None, ...]:
    """For each device its card, or None where that is not certain. No card is given twice."""
    if same_order:
        first = _in_order(devices, cards)
        last = _in_order(devices[::-1], cards[::-1])
        if first is not None and last is not None:
            pairs = zip(first, reversed(last), strict=True)
            return tuple(one if one is other else None for one, other in pairs)
    return _by_fit(devices, cards)


def _in_order(devices: Sequence[Device], cards: Sequence[Card]) -> list[Card] | None:
    """Each device with the next card that fits it; None when one is left over."""
    left = iter(cards)
    found = [next((card for card in left if fits(device, card)), None) for device in devices]
    whole = [card for card in found if card is not None]
    return whole if len(whole) == len(devices) else None


def _by_fit(devices: Sequence[Device], cards: Sequence[Card]) -> tuple[Card | None, ...]:
    fitting = [[card for card in cards if fits(device, card)] for device in devices]
    wanted = [id(card) for each in fitting for card in each]
    return tuple(
        each[0] if len(each) == 1 and wanted.count(id(each[0])) == 1 else None for each in fitting
    )


def fits(device: Device, card: Card) -> bool:
    """Whether a device may be this card, by its name and size as far as NVML tells them."""
    return _same_name(device.name, card.name) and _same_size(device, card)


def _same_name(one: str, other: str) -> bool:
    if not one or not other:
        return True
    one, other = (name.lower().removeprefix("nvidia ").strip() for name in (one, other))
    return one == other


def _same_size(device: Device, card: Card) -> bool:
    if card.total is None or card.unified:
        return True
    return _LEAST_SHARE * card.total - _ROUNDED <= device.total <= card.total + _ROUNDED


def is_same_order(environ: Mapping[str, str]) -> bool:
    """Whether CUDA counts its cards in NVML's order under this environment."""
    return environ.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID"
