"""NVML's codes in a person's words, and what its answers mean. Pure.

The driver's own texts ("Unknown Error") name neither the cause nor what to do; these do, for the
codes that people report. The rule for memory that is shared with the CPU stands here too: NVML has
no function that tells it.

Must not: import pynvml, so that words can be had on machines without it.
"""

import re

UNINITIALIZED = 1
INVALID_ARGUMENT = 2
NOT_SUPPORTED = 3
NO_PERMISSION = 4
NOT_FOUND = 6
DRIVER_NOT_LOADED = 9
LIBRARY_NOT_FOUND = 12
FUNCTION_NOT_FOUND = 13
GONE = frozenset((15, 16))
"""NVML_ERROR_GPU_IS_LOST and NVML_ERROR_RESET_REQUIRED: one card, until it is reset."""
WHOLE = frozenset((UNINITIALIZED, DRIVER_NOT_LOADED, 18, 999))
"""Uninitialized, no driver, versions differ, unknown: NVML itself, when every card says so."""

_WORDS = {
    NOT_SUPPORTED: "the driver does not support it on this card",
    NO_PERMISSION: "no permission",
    DRIVER_NOT_LOADED: "the NVIDIA driver is not loaded",
    LIBRARY_NOT_FOUND: "libnvidia-ml.so.1 was not found (no NVIDIA driver, or not passed into the"
    " container)",
    FUNCTION_NOT_FOUND: "this driver is too old for it",
    15: "the card is lost: it fell off the bus (dmesg says why); a restart of the machine brings"
    " it back",
    16: "the card has to be reset before it can be used (nvidia-smi --gpu-reset)",
    18: "the driver was updated while its old version is still loaded: restart the machine",
    999: "Unknown Error (in a container this follows `systemctl daemon-reload` on the host: start"
    " the container anew)",
}

_SHARED = re.compile(r"\b(GB10|Thor|Orin|Xavier|Tegra|Jetson)\b", re.IGNORECASE)
"""NVIDIA's chips whose memory is the host's, by the names that NVML gives (DGX Spark, Jetson)."""
_ALIKE = 1000
"""A total within a thousandth of MemTotal is the host's memory. Not looser: a card of 24 GiB in a
machine of 24 GiB has its own, and MemTotal is some percent below what is built in."""


def words(code: int, text: str) -> str:
    """What a code of NVML means; `text` is the driver's own, for codes that have no words here."""
    return _WORDS.get(code) or f"NVML error {code}: {text}"


def normal_pci(bus_id: str) -> str | None:
    """Gives "00000000:C1:00.0" as "0000:c1:00.0", as the kernel spells it; None: no bus id."""
    match = re.fullmatch(
        r"(?:([0-9a-f]{1,8}):)?([0-9a-f]{2}):([0-9a-f]{2})\.([0-7])", bus_id.strip().lower()
    )
    if match is None:
        return None
    return f"{int(match[1] or '0', 16):04x}:{match[2]}:{match[3]}.{match[4]}"


def shares_memory(name: str, total: int | None, ram: int, *, refused: bool) -> bool:
    """Whether a card's memory is the host's: by its kind, never by being large.

    `total` and `ram` in bytes, `ram` 0 where it is not known; `refused`: the driver does not
    support the question, as on GB10 with most drivers.
    """
    if refused or _SHARED.search(name):
        return True
    return bool(total and ram) and abs((total or 0) - ram) * _ALIKE <= ram
