"""Finds what a load like this one took, among all that `serve` has remembered. Pure.

Whoever asks has neither an engine nor devices at hand, so a load counts when its arguments mean the
same launch: the same units on as many devices of the same backend, whatever these are called and
however the split was written. Of several, the newest engine build tells, and of that the load that
took the most: devices of one backend differ in what a process takes besides.

Must not: take a load whose arguments hold anything that is not understood here.
"""

import re
from datetime import UTC, datetime

from pannier.devices.inventory import backend_of
from pannier.gguf.arguments import arguments_of
from pannier.gguf.footprint.split import counts, on_devices
from pannier.gguf.footprint.values import LaunchSettings, Pooling
from pannier.gguf.learned import Learned, Load

_FLAG = re.compile(r"-{1,2}[A-Za-z]")

_LAST_DAY = 4e9
"""Seconds since 1970: the year 2096."""

_POOLED: dict[Pooling, tuple[str, ...]] = {
    "none": (),
    "embed": ("--embedding",),
    "rerank": ("--reranking",),
}


def argv_of(settings: LaunchSettings, *, projector: bool, draft: bool) -> tuple[str, ...]:
    """The arguments that `serve` starts llama-server with for these settings; files unnamed."""
    slots = 1 if settings.unified else settings.slots
    argv = ["llama-server", "-m", "-", "-c", str(settings.context * slots)]
    argv += ["-np", str(settings.slots), "-b", str(settings.batch), "-ub", str(settings.ubatch)]
    argv += ["-ctk", settings.kv_k, "-ctv", settings.kv_v, "-fa", settings.flash_attention]
    argv += ["--cache-ram", str(settings.cache_ram >> 20)]
    argv += ["--ctx-checkpoints", str(settings.checkpoints)]
    argv += ["-kvu"] if settings.unified else []
    if len(settings.devices) > 1:
        shares = settings.split or (1,) * len(settings.devices)
        argv += ["-ts", ",".join(map(str, shares))]
    if settings.cpu_moe is None:
        argv += ["--cpu-moe"]
    elif settings.cpu_moe:
        argv += ["--n-cpu-moe", str(settings.cpu_moe)]
    argv += ["-ngl", "all" if settings.gpu_layers is None else str(settings.gpu_layers)]
    argv += ["--mmproj", "-"] if projector else []
    argv += ["-md", "-"] if draft else []
    argv += _POOLED[settings.pooling]
    return (*argv, "-fit", "off", "--load-mode", "none", "--no-ui", "--offline")


def terms(arguments: str, units: int, devices: int) -> frozenset[tuple[str, str]]:
    """What canonical arguments mean for a model of so many units on so many devices.

    Which devices they are is left out. Equal terms are launches that take the same bytes, and
    words that are not understood stay as they are.
    """
    found = _flags(arguments)
    found.pop("-dev", None)
    layers = found.pop("-ngl", "all")
    shares = found.pop("-ts", "")
    if found.get("-sm") == "layer":  # the default
        del found["-sm"]
    if found.get("--load-mode") == "none":
        del found["--load-mode"]
        found["--no-mmap"] = ""
    if found.get("-ncmoe") == "0":
        del found["-ncmoe"]
    number = int(layers) if re.fullmatch("[0-9]{1,9}", layers) else None  # "all"
    there = on_devices(units, number, devices)
    found["units"] = str(there)
    if devices > 1:
        numbers = re.fullmatch("[0-9]{1,12}(?:,[0-9]{1,12})*", shares)
        split = tuple(map(int, shares.split(","))) if numbers else ()
        # Without a split, or with another number of shares, free memory decides.
        found["split"] = str(counts(there, split)) if len(split) == devices else f"? {shares}"
    return frozenset(found.items())


def loads_like(
    learned: Learned, settings: LaunchSettings, units: int, *, projector: bool, draft: bool
) -> tuple[Load, ...]:
    """The loads that were launched like this, of whatever files; the best one to go by first."""
    devices = len(settings.devices)
    argv = argv_of(settings, projector=projector, draft=draft)
    wanted = terms(arguments_of(argv, {}), units, devices)
    found = [
        load
        for load in learned.loads
        if len(load.key.devices) == len(load.took.devices) == devices
        and tuple(map(backend_of, _labels(load))) == settings.devices
        and terms(load.key.arguments, units, devices) == wanted
    ]
    return tuple(sorted(found, key=_rank, reverse=True))


def in_words(load: Load) -> str:
    """Which load it was, for a person."""
    where = ", ".join(_labels(load)) or "the CPU"
    # The file is ours, but anybody may have edited it.
    known = 0 < load.took.at < _LAST_DAY
    day = f", {datetime.fromtimestamp(load.took.at, UTC).date()}" if known else ""
    return f"llama-server {load.key.build} took this on {where}{day}"


def _rank(load: Load) -> tuple[int, int, float]:
    number = re.fullmatch("b([0-9]{1,9})", load.key.build)
    took = load.took
    size = sum(each.buffers + (each.overhead or 0) for each in took.devices) + took.host.buffers
    return int(number[1]) if number else 0, size, took.at


def _labels(load: Load) -> tuple[str, ...]:
    """The engine's names of the devices of a load."""
    said = _flags(load.key.arguments).get("-dev", "none")
    return () if said == "none" else tuple(said.split(","))


def _flags(arguments: str) -> dict[str, str]:
    """Canonical arguments by flag; of flags that add up, all values."""
    found: dict[str, str] = {}
    flag = ""
    for word in arguments.split(" "):
        if _FLAG.match(word):
            flag = word
            found[flag] = f"{found[flag]} +" if flag in found else ""
        else:
            found[flag] = f"{found.get(flag, '')} {word}".strip()
    return found
