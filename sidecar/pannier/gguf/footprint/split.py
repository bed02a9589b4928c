"""How llama.cpp divides the units of a model among devices: `-ngl` and `-ts`, to the bit.

Units are the layers in their order and then the output layer. The last `-ngl` of them go on
devices; each goes to the first device whose share, summed up and divided by the sum of all, is
above the unit's place, in float32 (`std::upper_bound` in `llama_model_base::load_tensors`,
src/llama-model.cpp, b11434). Integers that add up to the units give exactly those counts.

Must not: know what a unit weighs.
"""

from collections.abc import Sequence
from itertools import pairwise
from struct import Struct

LARGEST = 1 << 40
"""No share that anybody means; sums of such are still exact enough in single precision."""

_FLOAT = Struct("f")


def on_devices(units: int, gpu_layers: int | None, devices: int) -> int:
    """How many of the units go on devices; counted from the end, the output layer first."""
    if devices == 0:
        return 0
    return units if gpu_layers is None or gpu_layers < 0 else min(gpu_layers, units)


def counts(units: int, shares: Sequence[int]) -> tuple[int, ...]:
    """Units of each device when `units` are put on devices with these `-ts` shares.

    Shares that are all zero, negative or beyond LARGEST count as equal: what llama.cpp does with
    them depends on the memory that is free in that moment.
    """
    if not shares:
        return ()
    if len(shares) == 1 or units == 0:
        return (units, *(0,) * (len(shares) - 1))
    if not any(shares) or min(shares) < 0 or max(shares) > LARGEST:
        shares = (1,) * len(shares)
    if sum(shares) == units and 0 not in shares:
        return tuple(shares)  # whole units: no unit's place is within a rounding of an edge
    total, sums = 0.0, []
    for share in shares:
        total = _single(total + _single(share))
        sums.append(total)
    starts = [_first_at(_single(sum_ / total), units) for sum_ in sums[:-1]]
    return tuple(end - start for start, end in pairwise((0, *starts, units)))


def _first_at(edge: float, units: int) -> int:
    """The first unit whose place is not below `edge`: the one that the next device takes."""
    unit = max(0, min(units, int(edge * units) - 1))
    while unit < units and _single(_single(unit) / _single(units)) < edge:
        unit += 1
    return unit


def _single(value: float) -> float:
    """The nearest float32; infinity where there is none."""
    try:
        single: float = _FLOAT.unpack(_FLOAT.pack(value))[0]
    except OverflowError:
        return float("inf")
    return single
