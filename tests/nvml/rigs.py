"""Machines to read: what cards they have, as values that write the file of the stand-in.

Sizes are those of real cards. A rig's cards stand in NVML's order, that of the PCI bus; where CUDA
by itself would count them otherwise (the fastest first), `cuda_order` gives the indices so. Codes
are those of NVIDIA's nvml.h.
"""

from enum import IntEnum

import msgspec

MIB = 1024 * 1024
GIB = 1024 * MIB


class Code(IntEnum):
    """What a function of NVML may return."""

    UNINITIALIZED = 1
    INVALID_ARGUMENT = 2
    NOT_SUPPORTED = 3
    NO_PERMISSION = 4
    NOT_FOUND = 6
    DRIVER_NOT_LOADED = 9
    TIMEOUT = 10
    FUNCTION_NOT_FOUND = 13
    GPU_IS_LOST = 15
    RESET_REQUIRED = 16
    VERSION_MISMATCH = 18
    NO_DATA = 21
    UNKNOWN = 999


class Process(msgspec.Struct, frozen=True, kw_only=True):
    """A process on a card; no bytes: the driver does not tell them."""

    pid: int
    bytes: int | None = None


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """What a card and a MIG instance have both. Sizes in bytes, None: not supported."""

    name: str | None
    uuid: str | None
    total: int | None
    used: int | None = 0
    free: int | None = None
    compute: tuple[Process, ...] | None = ()
    graphics: tuple[Process, ...] | None = ()
    errors: dict[str, int] = {}
    hang_ms: dict[str, int] = {}


class Card(Part, frozen=True, kw_only=True):
    """`mig`: None where the card has no such mode, else 0 or 1."""

    pci: str | None
    capability: tuple[int, int] | None = (8, 6)
    compute_mode: int = 0
    mig: int | None = None
    instances: tuple[Part | None, ...] = ()


class Rig(msgspec.Struct, frozen=True, kw_only=True):
    """A machine. `ram` is its memory in bytes, which is no business of the library's."""

    driver: str | None = "580.95.05"
    cards: tuple[Card, ...] = ()
    errors: dict[str, int] = {}
    hang_ms: dict[str, int] = {}
    ram: int = 128 * GIB
    cuda_order: tuple[int, ...] | None = None

    def to_json(self) -> bytes:
        """What the library reads."""
        return msgspec.json.encode(self)

    def with_card(self, index: int, **changes: object) -> "Rig":
        """The same machine with one card changed."""
        cards = list(self.cards)
        cards[index] = msgspec.structs.replace(cards[index], **changes)
        return msgspec.structs.replace(self, cards=tuple(cards))

    def failing(self, code: int, *functions: str) -> "Rig":
        """The same machine, on which these functions return this code."""
        more = {**self.errors, **dict.fromkeys(functions, int(code))}
        return msgspec.structs.replace(self, errors=more)

    def hanging(self, milliseconds: int, *functions: str) -> "Rig":
        """The same machine, on which these functions take this long (or until it is changed)."""
        return msgspec.structs.replace(self, hang_ms=dict.fromkeys(functions, milliseconds))


def card(
    name: str,
    mib: int,
    *,
    bus: int = 1,
    used: int = 0,
    number: int = 0,
    reserved: int = 0,
    **more: object,
) -> Card:
    """A card of this many MiB, of which `used` and `reserved` MiB are not free."""
    fields: dict[str, object] = {
        "name": name,
        "uuid": f"GPU-{number or bus:08x}-0000-4000-8000-{bus:012x}",
        "pci": f"00000000:{bus:02X}:00.0",
        "total": mib * MIB,
        "used": used * MIB,
        "free": (mib - used - reserved) * MIB,
    }
    return msgspec.convert({**fields, **more}, Card)


def rtx_4090(bus: int, **more: object) -> Card:
    return card(
        "NVIDIA GeForce RTX 4090", 24564, bus=bus, capability=(8, 9),
        **{"reserved": 484, "used": 10, **more},
    )  # fmt: skip


def rtx_3060(bus: int, **more: object) -> Card:
    return card("NVIDIA GeForce RTX 3060", 12288, bus=bus, **{"reserved": 377, "used": 8, **more})


def a100(bus: int, **more: object) -> Card:
    return card(
        "NVIDIA A100-SXM4-80GB", 81920, bus=bus, capability=(8, 0),
        **{"reserved": 729, "used": 4, "mig": 0, **more},
    )  # fmt: skip


def instance(number: int, mib: int, slices: str, used: int = 13) -> Part:
    """A MIG instance of an A100; graphics do not exist on it."""
    return Part(
        name=f"NVIDIA A100-SXM4-80GB MIG {slices}",
        uuid=f"MIG-{number:08x}-1111-5222-8333-444455556666",
        total=mib * MIB, used=used * MIB, free=(mib - used) * MIB, graphics=None,
    )  # fmt: skip


NONE = Rig()
ONE = Rig(cards=(rtx_4090(1),))
TWO_24 = Rig(cards=(rtx_4090(1), rtx_4090(0x41)))
TWENTY_FOUR_AND_12 = Rig(cards=(rtx_4090(1), rtx_3060(2)))
FOUR_UNLIKE = Rig(
    cards=(rtx_3060(0x0A), rtx_4090(0x21), rtx_4090(0x41), rtx_4090(0xC1)),
    cuda_order=(1, 2, 3, 0),
)
"""24+24+24+12, and the smallest is the first on the bus."""
EIGHT_80_ONE_BUSY = Rig(
    cards=tuple(
        a100(
            0x10 * (i + 1) - 1, used=78_560 if i == 5 else 4,
            compute=[{"pid": 4242, "bytes": 78_540 * MIB}] if i == 5 else [],
        )
        for i in range(8)
    ),
    ram=1024 * GIB,
)  # fmt: skip
"""One of eight is in use to 97 % by somebody else."""
FORTY_EIGHT_AND_16 = Rig(
    cards=(
        card("NVIDIA RTX A6000", 49140, bus=1, reserved=550, used=3),
        card("NVIDIA GeForce RTX 4060 Ti", 16380, bus=2, reserved=280, capability=(8, 9)),
    )
)
TWELVE_AND_3 = Rig(
    cards=(
        rtx_3060(1),
        card("NVIDIA GeForce GTX 1060 3GB", 3072, bus=2, reserved=65, capability=(6, 1)),
    )
)
MIG = Rig(
    cards=(
        a100(1, mig=1, instances=[instance(1, 40192, "3g.40gb"), None,
                                  instance(2, 19968, "2g.20gb")]),
        a100(2),
    )
)  # fmt: skip
"""Two instances of one card, beside a whole one."""
_SPARK_RAM = 125_513_228 * 1024
_GB10 = msgspec.structs.replace(
    card("NVIDIA GB10", 0, capability=(12, 1), pci="0000000F:01:00.0"),
    total=None, used=None, free=None,
)  # fmt: skip
UNIFIED = Rig(cards=(_GB10,), ram=_SPARK_RAM)
"""DGX Spark: memory is "not supported"."""
UNIFIED_AS_RAM = UNIFIED.with_card(
    0, name="NVIDIA N1X", total=_SPARK_RAM, used=9 * GIB, free=_SPARK_RAM - 9 * GIB
)
"""A chip whose driver gives the system's memory as the card's, under a name nobody knows."""
ONE_LOST = TWO_24.with_card(1, errors={"nvmlDeviceGetHandleByIndex_v2": int(Code.GPU_IS_LOST)})
PROCESSES_DENIED = TWO_24.failing(
    Code.NO_PERMISSION,
    "nvmlDeviceGetComputeRunningProcesses_v3",
    "nvmlDeviceGetGraphicsRunningProcesses_v3",
)

RIGS = {
    "no card": NONE,
    "one": ONE,
    "24+24": TWO_24,
    "24+12": TWENTY_FOUR_AND_12,
    "12+24+24+24": FOUR_UNLIKE,
    "8x80, one busy": EIGHT_80_ONE_BUSY,
    "48+16": FORTY_EIGHT_AND_16,
    "12+3": TWELVE_AND_3,
    "MIG": MIG,
    "unified": UNIFIED,
    "unified as RAM": UNIFIED_AS_RAM,
    "one lost": ONE_LOST,
    "processes denied": PROCESSES_DENIED,
}
