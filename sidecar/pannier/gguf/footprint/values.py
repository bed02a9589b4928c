"""What goes into a footprint and what comes out: launch settings, and bytes per device and host.

The settings are Pannier's, not llama-server's: `context` counts tokens per slot, as config.toml
does. One definition of it, everywhere: without a unified cache llama-server is given
`-c context * slots` and every slot has `context` tokens; with one (`-kvu`) it is given
`-c context` and all slots share them.

Must not: compute anything but sums.
"""

from typing import Literal

import msgspec

FlashAttention = Literal["auto", "on", "off"]
Pooling = Literal["none", "embed", "rerank"]

MEASURED_BUILD = 11434
"""The llama.cpp build whose allocations the constants of this folder were measured on."""


class LaunchSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Everything about a launch that decides memory.

    `devices` are the backends ("cuda", "rpc", ...) of the devices that the layers are put on, in
    the order of the split; none: all on the CPU. `split` are the `-ts` integers, one for each
    device; None: equal shares. `gpu_layers` counts from the end, the output layer included; None:
    all. `cpu_moe` is the number of first layers whose experts stay in RAM; None: all. `overhead`
    is what a process takes on a device beside its buffers, in bytes; None: by backend. `outputs`
    is how many rows of logits are reserved; None: as llama-server does. `cache_ram` in bytes.
    """

    context: int
    slots: int = 1
    unified: bool = False
    kv_k: str = "f16"
    kv_v: str = "f16"
    flash_attention: FlashAttention = "auto"
    batch: int = 2048
    ubatch: int = 512
    gpu_layers: int | None = None
    cpu_moe: int | None = 0
    devices: tuple[str, ...] = ("cuda",)
    split: tuple[int, ...] | None = None
    pooling: Pooling = "none"
    projector_on_device: bool = True
    swa_full: bool = False
    kv_offload: bool = True
    mtp: bool = False
    mapped: bool = False
    cache_ram: int = 0
    checkpoints: int = 4
    overhead: int | None = None
    outputs: int | None = None
    build: int = MEASURED_BUILD


class DeviceShare(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes on one device. `layers` counts the units of the split there, the output layer one."""

    weights: int = 0
    kv: int = 0
    compute: int = 0
    projector: int = 0
    draft: int = 0
    overhead: int = 0
    layers: int = 0

    @property
    def total(self) -> int:
        """All of it."""
        parts = self.weights + self.kv + self.compute + self.projector + self.draft
        return parts + self.overhead


class HostShare(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes of RAM. `mapped` is page cache that can be dropped, `resident` weights cannot."""

    mapped: int = 0
    resident: int = 0
    kv: int = 0
    compute: int = 0
    projector: int = 0
    draft: int = 0
    prompt_cache: int = 0
    checkpoints: int = 0

    @property
    def weights(self) -> int:
        """Weights in RAM, mapped or not."""
        return self.mapped + self.resident

    @property
    def total(self) -> int:
        """All of it."""
        parts = self.weights + self.kv + self.compute + self.projector + self.draft
        return parts + self.prompt_cache + self.checkpoints


class Footprint(msgspec.Struct, frozen=True, kw_only=True):
    """What one llama-server takes. `exact` is false for an upper bound from the tensors alone.

    `indivisible` is the reason why this model must not be split over devices, if there is one.
    """

    devices: tuple[DeviceShare, ...]
    host: HostShare
    exact: bool = True
    measured: bool = False
    indivisible: str | None = None
    notes: tuple[str, ...] = ()


class Prices(msgspec.Struct, frozen=True, kw_only=True):
    """The same bytes by unit, for whoever looks for a split.

    `units` are the device bytes (weights and KV) of every unit that goes on devices, first layer
    first, the output layer last; devices take consecutive runs of them. Beside its units a device
    takes what the others are, all of it per device and independent of the run: `alone` when it
    holds all units, else `first`, `middle` or `last` by its place. Projector and draft are in none
    of them. For every split, units plus place equal the device's total of `footprint` less those.
    """

    units: tuple[int, ...]
    alone: int
    first: int
    middle: int
    last: int
