"""The devices of this machine as a value: what the plan is made against.

One reading of the world, taken by the edges beside this module and never changed afterwards.
`engine_backend` comes from the same reading as the devices (spec AP-9): an empty list proves a
machine without GPUs only when the engine answered. Free memory moves all the time and is no reason
to plan anew; `same_devices` compares what is.

Must not: read anything itself, or know about models.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Literal

import msgspec

EngineBackend = Literal["cuda", "rocm", "metal", "sycl", "vulkan", "rpc", "cpu", "unknown"]

_BACKENDS: dict[str, EngineBackend] = {
    "CUDA": "cuda",
    "ROCm": "rocm",
    "HIP": "rocm",
    "MTL": "metal",
    "Metal": "metal",
    "SYCL": "sycl",
    "Vulkan": "vulkan",
    "RPC": "rpc",
    "CPU": "cpu",
}

_RANKING: tuple[EngineBackend, ...] = ("cuda", "rocm", "metal", "sycl", "vulkan")

_SOFTWARE = re.compile(r"llvmpipe|lavapipe|softpipe|swiftshader|basic render", re.IGNORECASE)
"""Renderers that run on the CPU and call themselves devices: Mesa's, Google's, Microsoft's."""

DEVICE_ORDER = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
"""One order of cards for everybody that asks or runs an engine: NVML's. CUDA's own is by speed."""

DEFAULT_RESERVE = 512 * 1024 * 1024
"""Bytes kept free on a device that a table of reserves does not name; the default of the config."""

_SHORTEST_PREFIX = len("GPU-") + 8
"""Of a UUID, what `pannier status` shows in its table; shorter ones are taken for a mistake."""


class Device(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One device that llama-server offers. Sizes in bytes.

    `index` counts within the inventory, by PCI bus where that is known; `label` is the engine's
    name of it; `used_by_us` is what our own engines hold of it and `used_by_others` what all other
    processes hold; `reserve` is kept free; `unified` says that its memory is the host's;
    `parent` is the UUID of the card that a MIG instance is a part of; `nvml_index` is the number
    that nvidia-smi gives it.
    """

    index: int
    backend: EngineBackend
    label: str
    name: str
    total: int
    free: int
    uuid: str | None = None
    pci: str | None = None
    used_by_us: int = 0
    used_by_others: int = 0
    reserve: int = 0
    unified: bool = False
    compute_capable: bool = True
    parent: str | None = None
    nvml_index: int | None = None

    @property
    def capacity(self) -> int:
        """Bytes that our models may take in all: our own never count as unavailable."""
        return max(0, self.total - self.used_by_others - self.reserve)


class HostMemory(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """RAM of the machine in bytes; zero where it is not known."""

    total: int = 0
    available: int = 0


class Inventory(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Every device that models can be placed on, and the host's memory.

    `unused` are cards that are there and that the engine does not offer; `notes` say why, and
    whatever else a person should know. `read_at` is wall time, seconds since 1970. `stale` is why
    this reading is older than it should be, None when it is not.
    """

    devices: tuple[Device, ...] = ()
    engine_backend: EngineBackend = "unknown"
    host: HostMemory = HostMemory()
    notes: tuple[str, ...] = ()
    unused: tuple[Device, ...] = ()
    read_at: float | None = None
    stale: str | None = None

    def find(self, name: int | str) -> Device | None:
        """The device that a person means by an index, a label ("CUDA0") or a UUID.

        The start of a UUID is enough when it is the start of only one.
        """
        for device in self.devices:
            if name == device.index or name in (device.label, device.uuid):
                return device
        if isinstance(name, int) or len(name) < _SHORTEST_PREFIX:
            return None
        meant = [each for each in self.devices if each.uuid and each.uuid.startswith(name)]
        return meant[0] if len(meant) == 1 else None


def same_devices(one: Inventory, other: Inventory) -> bool:
    """Whether two readings are of the same devices: free memory, times and words may differ."""
    return _identity(one) == _identity(other)


def _identity(inventory: Inventory) -> tuple[object, ...]:
    now = {"free": 0, "used_by_us": 0, "used_by_others": 0, "reserve": 0}
    devices = tuple(msgspec.structs.replace(each, **now) for each in inventory.devices)
    return (inventory.engine_backend, devices)


def with_reserves(inventory: Inventory, reserve: int | Mapping[str, int]) -> Inventory:
    """The inventory with what is to be kept free, in bytes: of every device, or by a table.

    A table names devices by label or UUID; the others keep `DEFAULT_RESERVE`.
    """

    # int(): a size of the config is one of its own kind, which JSON does not know.
    def kept(device: Device) -> int:
        if isinstance(reserve, int):
            return int(reserve)
        return int(reserve.get(device.label, reserve.get(device.uuid or "", DEFAULT_RESERVE)))

    devices = (msgspec.structs.replace(each, reserve=kept(each)) for each in inventory.devices)
    return msgspec.structs.replace(inventory, devices=tuple(devices))


def backend_of(label: str) -> EngineBackend:
    """The backend that an engine label such as "CUDA0" or "RPC[host:port]" belongs to."""
    prefix = re.match("[A-Za-z]*", label)
    return _BACKENDS.get(prefix.group() if prefix else "", "unknown")


def from_engine(
    listed: tuple[Device, ...] | None, host: HostMemory, notes: tuple[str, ...] = ()
) -> Inventory:
    """The inventory out of the engine's own list; `None` means that the engine did not answer.

    One backend per machine by rank, RPC devices beside it: the same card shown by CUDA and by
    Vulkan must not be planned twice. Software renderers and devices without memory are dropped,
    with a note.
    """
    if listed is None:
        return Inventory(engine_backend="unknown", host=host, notes=notes)
    real = [device for device in listed if _why_dropped(device) is None]
    dropped = [why for device in listed if (why := _why_dropped(device)) is not None]
    present = {device.backend for device in real}
    chosen = next((backend for backend in _RANKING if backend in present), None)
    kept = [device for device in real if device.backend in (chosen, "rpc")]
    used = f"{chosen} is used on this machine" if chosen else "not a kind that is planned on"
    dropped += [
        f"{device.label} is {device.backend}: {used}" for device in real if device not in kept
    ]
    backend: EngineBackend = chosen or ("rpc" if kept else "cpu")
    return Inventory(
        devices=in_order(kept), engine_backend=backend, host=host, notes=(*notes, *dropped)
    )


def in_order(devices: Iterable[Device]) -> tuple[Device, ...]:
    """The devices numbered: this machine's by PCI bus where all are known, then the remote ones.

    Cards of which one has no bus id keep the order that they came in.
    """
    here: list[Device] = []
    remote: list[Device] = []
    for device in devices:
        (remote if device.backend == "rpc" else here).append(device)
    if all(device.pci for device in here):
        here.sort(key=lambda device: device.pci or "")
    return tuple(
        msgspec.structs.replace(device, index=index) for index, device in enumerate(here + remote)
    )


def _why_dropped(device: Device) -> str | None:
    """Why a device of the engine's list is none that models can be placed on."""
    if device.total <= 0:
        return f"{device.label} has no memory: not used"
    if device.backend == "cpu" or _SOFTWARE.search(device.name):
        return f"{device.label} ({device.name}) is the CPU under another name: not used"
    return None
