"""How long footprints and prices take; prints Markdown.

    python -m tests.bench.footprints

A planner asks for them thousands of times while somebody waits: 200 models with 20 settings each
are to take less than two seconds, and one of them less than a millisecond.
"""

import itertools
import statistics
import time
from collections.abc import Callable

from tests.gguf_models import MODELS, header_of

from pannier.gguf.footprint.estimate import footprint
from pannier.gguf.footprint.prices import prices
from pannier.gguf.footprint.profile import Profile, profile_of
from pannier.gguf.footprint.values import LaunchSettings

MANY = 200
SETTINGS = [
    LaunchSettings(
        context=context, slots=slots, kv_k=kv, kv_v=kv, devices=("cuda",) * devices, split=split
    )
    for context, slots, kv in (
        (4096, 1, "f16"),
        (8192, 4, "f16"),
        (65_536, 1, "q8_0"),
        (512, 1, "f16"),
    )
    for devices, split in ((1, None), (2, (3, 1)), (2, None), (3, None), (4, (10, 20, 3, 1)))
]


def timed(call: Callable[[Profile, LaunchSettings], object], models: list[Profile]) -> list[float]:
    """Microseconds of every call, the first of each model left out."""
    found = []
    for model in models:
        call(model, SETTINGS[0])
        for launch in SETTINGS:
            began = time.perf_counter()
            call(model, launch)
            found.append((time.perf_counter() - began) * 1e6)
    return found


def row(name: str, values: list[float]) -> str:
    median, p99 = statistics.median(values), statistics.quantiles(values, n=100)[98]
    return f"| {name} | {len(values)} | {sum(values) / 1e6:.2f} | {median:.0f} | {p99:.0f} |"


def main() -> None:
    headers = [header_of(name) for name in MODELS]
    began = time.perf_counter()
    profiles = [profile_of(header) for header in headers]
    each = (time.perf_counter() - began) / len(profiles) * 1e6
    models = list(itertools.islice(itertools.cycle(profiles), MANY))
    print("| what | calls | s in all | median µs | p99 µs |\n| --- | --- | --- | --- | --- |")
    print(f"| profile_of | {len(profiles)} | {each * len(profiles) / 1e6:.2f} | {each:.0f} | |")
    print(row("footprint", timed(footprint, models)))
    print(row("prices", timed(prices, models)))


if __name__ == "__main__":
    main()
