"""The devices of this machine as a value: what the plan is made against.

One reading of the world, taken by the edges beside this module and never changed afterwards.
`engine_backend` comes from the same reading as the devices (spec AP-9): an empty list proves a
machine without GPUs only when the engine answered.

Must not: read anything itself, or know about models.
"""

import re
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
}

_RANKING: tuple[EngineBackend, ...] = ("cuda", "rocm", "metal", "sycl", "vulkan")


DEVICE_ORDER = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
"""One order of cards for everybody that asks or runs an engine: NVML's. CUDA's own is by speed."""


class Device(msgspec.Struct, frozen=True, kw_only=True):
    """One device as llama-server names it. Sizes in bytes; `index` counts within the inventory."""

    index: int
    backend: EngineBackend
    label: str
    name: str
    total: int
    free: int
    uuid: str | None = None
    pci: str | None = None


class HostMemory(msgspec.Struct, frozen=True, kw_only=True):
    """RAM of the machine in bytes; zero where it is not known."""

    total: int = 0
    available: int = 0


class Inventory(msgspec.Struct, frozen=True, kw_only=True):
    """Every device that models can be placed on, and the host's memory."""

    devices: tuple[Device, ...] = ()
    engine_backend: EngineBackend = "unknown"
    host: HostMemory = HostMemory()
    notes: tuple[str, ...] = ()

    def find(self, name: int | str) -> Device | None:
        """The device that a person means by an index, a label ("CUDA0") or a UUID."""
        for device in self.devices:
            if name == device.index or name in (device.label, device.uuid):
                return device
        return None


def backend_of(label: str) -> EngineBackend:
    """The backend that an engine label such as "CUDA0" or "RPC[host:port]" belongs to."""
    prefix = re.match("[A-Za-z]*", label)
    return _BACKENDS.get(prefix.group() if prefix else "", "unknown")


def from_engine(
    listed: tuple[Device, ...] | None, host: HostMemory, notes: tuple[str, ...] = ()
) -> Inventory:
    """The inventory out of the engine's own list; `None` means that the engine did not answer.

    One backend per machine by rank, RPC devices beside it: the same card shown by CUDA and by
    Vulkan must not be planned twice. Devices without memory are software renderers: dropped, with
    a note.
    """
    if listed is None:
        return Inventory(engine_backend="unknown", host=host, notes=notes)
    real = [device for device in listed if device.total > 0]
    dropped = [f"{device.label} has no memory: not used" for device in listed if device.total <= 0]
    present = {device.backend for device in real}
    chosen = next((backend for backend in _RANKING if backend in present), None)
    kept = [device for device in real if device.backend in (chosen, "rpc")]
    used = f"{chosen} is used on this machine" if chosen else "not a kind that is planned on"
    dropped += [
        f"{device.label} is {device.backend}: {used}" for device in real if device not in kept
    ]
    renumbered = tuple(
        msgspec.structs.replace(device, index=index) for index, device in enumerate(kept)
    )
    backend: EngineBackend = chosen or ("rpc" if renumbered else "cpu")
    return Inventory(
        devices=renumbered, engine_backend=backend, host=host, notes=(*notes, *dropped)
    )
