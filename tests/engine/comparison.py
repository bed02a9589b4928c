"""A footprint beside the truth: the settings that are compared, and what counts as wrong.

Weights and cache must be equal. Compute may be a little off: too little by 8 MiB, which no reserve
is smaller than, too much by 64 MiB or by one fiftieth of the device's total.
"""

from collections.abc import Callable
from dataclasses import dataclass

from tests.engine.oracle import MIB, Truth

from pannier.gguf.footprint.values import DeviceShare, Footprint, HostShare, LaunchSettings

UNDER_MIB = 8
OVER_MIB = 64
OVER_SHARE = 0.02
OVER_UNEVEN = 0.6
UNEVEN = {"nemotron-nano-9b-v2", "openelm-3b"}
"""Models whose layers differ so much that what a device computes depends on which it has.

A footprint tells the dearest run of layers for every split, as a search over splits needs. There it
may be too much by this share of the compute itself, and never too little.
"""

Choice = Callable[[int], LaunchSettings]
"""Settings for a model with so many units (layers and output)."""


@dataclass(frozen=True)
class Row:
    """One device or the host, in MiB. The truth is whole MiB with the rest cut off."""

    model: str
    setting: str
    place: str
    weights: float
    kv: float
    compute: float
    truth: Truth
    promised: bool = True
    uneven: bool = False

    @property
    def error(self) -> float:
        """How much too much compute is told; negative: too little. Nought within the cut."""
        over = self.compute - self.truth.compute
        return over if over < 0 else max(over - 1, 0.0)

    @property
    def wrong(self) -> list[str]:
        """What is wrong, in words."""
        truth, said = self.truth, []
        if int(self.weights) != truth.weights:
            said.append(f"weights {self.weights:.2f} are {truth.weights}")
        if int(self.kv) != truth.kv:
            said.append(f"cache {self.kv:.2f} is {truth.kv}")
        total = truth.weights + truth.kv + truth.compute
        over = max(OVER_MIB, OVER_SHARE * total, self.uneven * OVER_UNEVEN * truth.compute)
        if self.promised and not -UNDER_MIB <= self.error <= over:
            said.append(f"compute {self.compute:.2f} is {truth.compute} ({self.error:+.1f})")
        return said

    def __str__(self) -> str:
        return f"{self.model}, {self.setting}, {self.place}: " + "; ".join(self.wrong)


def rows(
    model: str, setting: str, footprint: Footprint, devices: list[Truth], host: Truth
) -> list[Row]:
    """Estimate and truth of each device, and of the host.

    The compute of a model that must not be split is not promised where it is split all the same.
    """
    split = len(devices) > 1
    promised = footprint.indivisible is None or not split
    uneven = split and model in UNEVEN

    def row(place: str, share: DeviceShare | HostShare, truth: Truth) -> Row:
        weights, kv, compute = (each / MIB for each in (share.weights, share.kv, share.compute))
        return Row(model, setting, place, weights, kv, compute, truth, promised, uneven)

    found = [
        row(f"device {number}", share, truth)
        for number, (share, truth) in enumerate(zip(footprint.devices, devices, strict=True))
    ]
    return [*found, row("host", footprint.host, host)]


def _fixed(devices: int, *split: int, **options: object) -> Choice:
    options.setdefault("context", 8192)
    options["devices"] = ("rpc",) * devices
    options["split"] = split or None
    settings = LaunchSettings(**options)  # type: ignore[arg-type]  # one of its fields each
    return lambda units: settings


def _offloaded(share: float, devices: int, *split: int) -> Choice:
    """So much of the model on devices, the first layers in RAM."""
    return lambda units: _fixed(devices, *split, gpu_layers=round(units * share))(units)


def _q8(devices: int, *split: int, context: int = 32768) -> Choice:
    return _fixed(devices, *split, context=context, kv_k="q8_0", kv_v="q8_0")


EVERY_RUN: dict[str, Choice] = {
    "1 device": _fixed(1),
    "2 devices 3:2, 32k, q8_0": _q8(2, 3, 2),
    "3 devices 5:3:2, 4 slots": _fixed(3, 5, 3, 2, slots=4),
    "2 devices 1:3, ub 2048": _fixed(2, 1, 3, ubatch=2048),
    "FA off, ub 128": _fixed(1, flash_attention="off", ubatch=128),
    "2 devices, two fifths offloaded": _offloaded(0.4, 2, 2, 1),
}
"""What each run of the tests asks of every model."""

EVERYTHING: dict[str, Choice] = EVERY_RUN | {
    "1 device, 32k": _fixed(1, context=32768),
    "1 device, odd 3 x 6666": _fixed(1, context=6666, slots=3),
    "1 device, q4_0 keys": _fixed(1, kv_k="q4_0"),
    "1 device, batch 512": _fixed(1, batch=512),
    "1 device, batch 8192": _fixed(1, batch=8192, ubatch=8192),
    "1 device, swa-full": _fixed(1, swa_full=True, context=32768),
    "1 device, cache in RAM": _fixed(1, kv_offload=False),
    "2 devices": _fixed(2),
    "2 devices 7:1": _fixed(2, 7, 1),
    "2 devices, FA off, 32k": _fixed(2, flash_attention="off", context=32768),
    "2 devices, cache in RAM": _fixed(2, kv_offload=False),
    "3 devices 1:1:1, 32k": _fixed(3, context=32768),
    "3 devices, q8_0, 4 slots": _q8(3, context=8192),
    "1 device, nine tenths offloaded": _offloaded(0.9, 1),
    "no device": _fixed(0),
}
"""What the table of accuracy is made from."""

EXPERTS_IN_RAM: dict[str, Choice] = {
    "2 devices 3:2, experts of 5 in RAM": _fixed(2, 3, 2, cpu_moe=5),
    "1 device, all experts in RAM": _fixed(1, cpu_moe=None),
}
"""For models with experts, in every run."""
