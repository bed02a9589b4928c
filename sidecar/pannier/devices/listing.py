"""What llama-server answers when it is asked for its devices, as a value. Pure.

`--list-devices` prints a line for each device after "Available devices:", behind whatever its
backends say while they start (common/arg.cpp, b11434). Only that Vulkan names cards whose memory is
the host's ("uma: 1") is read out of the latter.

Must not: take an answer that is no list for an empty one.
"""

import re

import msgspec

from pannier.devices.inventory import Device, backend_of

_MIB = 1024 * 1024
_LINE = re.compile(
    r"^\s+(?P<label>\S+): (?P<name>.*) \((?P<total>\d{1,12}) MiB, (?P<free>\d{1,12}) MiB free\)"
)
_SHARES_MEMORY = re.compile(r"ggml_vulkan: (\d+) = .*\| uma: 1 \|")


class EngineList(msgspec.Struct, frozen=True, kw_only=True):
    """The engine's devices in its order; None when it did not answer, for that `reason`."""

    devices: tuple[Device, ...] | None = None
    reason: str | None = None


def parse_device_list(text: str) -> tuple[Device, ...] | None:
    """The devices in the output of `--list-devices`, or None when it is not such an output.

    A line that repeats a label is passed over: a label that means two devices means none.
    """
    before, found, listing = text.partition("Available devices:")
    if not found:
        return None
    shares = {f"Vulkan{number}" for number in _SHARES_MEMORY.findall(before)}
    devices: dict[str, Device] = {}
    for match in filter(None, map(_LINE.match, listing.splitlines())):
        label, backend = match["label"], backend_of(match["label"])
        devices.setdefault(
            label,
            Device(
                index=len(devices),
                backend=backend,
                label=label,
                name=match["name"],
                total=int(match["total"]) * _MIB,
                free=int(match["free"]) * _MIB,
                unified=backend == "metal" or label in shares,
            ),
        )
    return tuple(devices.values())
