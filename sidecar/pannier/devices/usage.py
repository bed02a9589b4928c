"""Who holds the memory of each card: we or others. Pure.

By process ids where they are the kernel's own, which is exact. Not everywhere they are: in a
container NVML shows the ids of the host, or none at all; under WSL and on Windows it shows ids
without bytes. There what we are known to hold is subtracted, and `how` says so: the numbers are as
good as that knowledge.

Must not: guess silently. Where nothing is known, both are None.
"""

from collections.abc import Mapping
from typing import Literal

import msgspec

from pannier.devices.reading import Card, NvmlReading


class Use(msgspec.Struct, frozen=True, kw_only=True):
    """What is held of one card, in bytes; None: not known.

    `how`: by process ids, as the difference to what we are known to hold, or not known.
    """

    by_us: int | None = None
    by_others: int | None = None
    how: Literal["pids", "difference", "unknown"] = "unknown"


def used_by(
    reading: NvmlReading, pids: frozenset[int], held: Mapping[str, int] | None = None
) -> tuple[Use, ...]:
    """Of every card of the reading, in its order, what is ours and what is others'.

    `pids` are our engines' processes; `held` is what they are known to hold, bytes by the UUID of
    the card (measured at their load, or planned). It counts only where the ids say nothing.
    """
    listed = {process.pid for card in reading.cards for process in card.processes or ()}
    readable = bool(listed & pids)
    held = held or {}
    return tuple(_use(card, pids, held.get(card.uuid or "", 0), readable) for card in reading.cards)


def held_by(reading: NvmlReading, pid: int) -> dict[str, int]:
    """Bytes that a process holds, by the UUID of the card; cards that do not tell are left out."""
    return {
        card.uuid: process.bytes
        for card in reading.cards
        for process in card.processes or ()
        if card.uuid and process.pid == pid and process.bytes is not None
    }


def _use(card: Card, pids: frozenset[int], held: int, readable: bool) -> Use:
    """`readable`: the ids of the reading are known to be those of our own process table."""
    ours: int | None = None
    if not pids and not held:
        ours = 0
    elif readable and card.processes is not None:
        ours = _sum_of(card, pids)
    if ours is not None:
        return Use(by_us=ours, by_others=_rest(card.used, ours), how="pids")
    if not held:
        return Use()
    ours = held if card.used is None else min(held, card.used)
    return Use(by_us=ours, by_others=_rest(card.used, ours), how="difference")


def _sum_of(card: Card, pids: frozenset[int]) -> int | None:
    """Bytes of our processes on a card; a process is counted once. None: bytes are not told."""
    sizes = {process.pid: process.bytes for process in card.processes or () if process.pid in pids}
    known = [size for size in sizes.values() if size is not None]
    return sum(known) if len(known) == len(sizes) else None


def _rest(used: int | None, ours: int) -> int | None:
    # The driver's two answers are of two moments, so the difference may be below zero.
    return None if used is None else max(0, used - ours)
