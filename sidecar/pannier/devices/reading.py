"""What NVML said of the NVIDIA cards of this machine, as a value.

Each field may be missing on its own: drivers refuse single functions on laptops, in containers, on
MIG instances and on chips that share memory with the CPU. What is missing is None and named in
`problems`; what was read stays.

Must not: guess. What is concluded from it is concluded by whoever joins it with other sources.
"""

from typing import Literal

import msgspec


class CardProcess(msgspec.Struct, frozen=True, kw_only=True):
    """A process that holds memory of a card; `bytes` is None where the driver does not tell."""

    pid: int
    bytes: int | None = None
    kind: Literal["compute", "graphics"] = "compute"


class Card(msgspec.Struct, frozen=True, kw_only=True):
    """One card, or one MIG instance in place of its card. Sizes in bytes, None: not told.

    `index` counts in NVML's order; `pci` is a bus id such as "0000:01:00.0" (an instance has its
    card's); `parent` is the UUID of the card of a MIG instance; `processes` is None where they may
    not be seen; `unified` says that the memory is the host's; `compute_capable` is False for a card
    on which CUDA cannot run now: lost, or an empty one in MIG mode.
    """

    index: int
    name: str = ""
    uuid: str | None = None
    pci: str | None = None
    total: int | None = None
    used: int | None = None
    free: int | None = None
    unified: bool = False
    compute_capable: bool = True
    parent: str | None = None
    processes: tuple[CardProcess, ...] | None = None
    problems: tuple[str, ...] = ()


class NvmlReading(msgspec.Struct, frozen=True, kw_only=True):
    """One reading. `lost` says why there is none (no library, a hang, a driver that went away).

    `absent` is True where NVML was never there (no library, no driver): a machine without NVIDIA
    cards is no fault.
    """

    driver: str | None = None
    cards: tuple[Card, ...] = ()
    problems: tuple[str, ...] = ()
    lost: str | None = None
    absent: bool = False
