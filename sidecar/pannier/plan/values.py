"""The plan as a value: what runs where, how large it is, and why.

The one answer of the planner to everybody: the view shows it, the preview shows another one made
the same way, the renderer turns it into command lines, and nothing runs that is not in it. Sizes
are bytes, and a footprint's parts stay apart, so that a person can follow the sum.

Must not: decide anything.
"""

from typing import Literal

import msgspec

from pannier.config.schema import KvPair
from pannier.devices.inventory import Device
from pannier.gguf.footprint.values import DeviceShare, HostShare


class Instance(msgspec.Struct, frozen=True, kw_only=True):
    """One llama-server: a model, or a replica of it.

    `devices` are the engine's labels in the order of the split, and `device_bytes` goes with them;
    none: on the CPU. `tensor_split` are units per device, or what a person pinned. `context` in
    tokens per slot. `gpu_layers` counts units, `cpu_moe` layers whose experts stay in RAM. `exact`
    is false for sizes that are an upper bound or an estimate from the file's size; `measured` is
    true where an earlier load told them.
    """

    id: str
    model: str
    role: str
    replica: int = 0
    devices: tuple[str, ...] = ()
    tensor_split: tuple[int, ...] | None = None
    context: int
    slots: int
    kv_type: str | KvPair = "f16"
    batch: int = 2048
    ubatch: int = 512
    gpu_layers: int | Literal["auto", "all"] = "auto"
    cpu_moe: int | Literal["all"] = 0
    projector_on_device: bool = True
    device_bytes: tuple[DeviceShare, ...] = ()
    host_bytes: HostShare = HostShare()
    exact: bool = True
    measured: bool = False
    pinned: bool = False
    file_bytes: int
    load_timeout_s: int

    @property
    def bytes_needed(self) -> int:
        """What it takes on its devices, or of RAM where it has none."""
        if self.devices:
            return sum(share.total for share in self.device_bytes)
        return self.host_bytes.total


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """What one host runs. With `swap`, one member is resident at a time."""

    id: str
    members: tuple[str, ...]
    swap: bool = False


class Unplaceable(msgspec.Struct, frozen=True, kw_only=True):
    """A model that cannot be served: what it needs, by parts, and what there is, by device.

    `have` is the most that one launch could get. `ways_out` are what would help, the cheapest
    first.
    """

    model: str
    need: int
    have: int
    reason: str
    parts: dict[str, int] = {}
    have_by_device: dict[str, int] = {}
    ways_out: tuple[str, ...] = ()


class Rejected(msgspec.Struct, frozen=True, kw_only=True):
    """A manual spec that cannot be obeyed, as canonical JSON, and why (AP-10 to AP-13)."""

    spec: str
    reason: str


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """The decision: what runs where.

    `manual` says that a person's spec is obeyed, `spec` which (canonical JSON). `tight` is the
    shortfall per device of each instance that does not fit, `co_tenants` which instances share a
    device, by its label. `reasons` are sentences about choices that a person may wonder about.
    """

    generation: int = 0
    manual: bool = False
    spec: str | None = None
    rejected: Rejected | None = None
    devices: tuple[Device, ...] = ()
    instances: tuple[Instance, ...] = ()
    groups: tuple[Group, ...] = ()
    unplaceable: tuple[Unplaceable, ...] = ()
    skipped_not_installed: tuple[str, ...] = ()
    tight: dict[str, dict[str, int]] = {}
    co_tenants: dict[str, tuple[str, ...]] = {}
    reasons: tuple[str, ...] = ()

    def instance(self, instance_id: str) -> Instance:
        """The instance of that id; KeyError when the plan has none."""
        for instance in self.instances:
            if instance.id == instance_id:
                return instance
        raise KeyError(instance_id)

    def instances_of(self, model: str) -> tuple[Instance, ...]:
        """The replicas of a model, in order; empty when it is not placed."""
        return tuple(instance for instance in self.instances if instance.model == model)
