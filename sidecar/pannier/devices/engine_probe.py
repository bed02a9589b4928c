"""Asks llama-server which devices it can use: its answer is the truth about what can be planned on.

`llama-server --list-devices` is the only source that knows the engine's own labels, AMD, Intel,
Apple and RPC devices. On CUDA it makes a context for a moment, so it is asked at start and on
reload, not in a loop. No answer is "unknown", never "no GPU".

Must not: plan, or keep anything.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from pannier.config.schema import Engine
from pannier.devices.inventory import (
    DEVICE_ORDER,
    Device,
    HostMemory,
    Inventory,
    backend_of,
    from_engine,
)
from pannier.engine.process import run

PROBE_SECONDS = 20.0
"""A cold CUDA driver takes some seconds to start; a hung one must not hold Pannier up."""

_MIB = 1024 * 1024
_LINE = re.compile(
    r"^\s+(?P<label>\S+): (?P<name>.*) \((?P<total>\d+) MiB, (?P<free>\d+) MiB free\)"
)


def parse_device_list(text: str) -> tuple[Device, ...] | None:
    """The devices in the output of `--list-devices`, or None when it is not such an output."""
    _, found, listing = text.partition("Available devices:")
    if not found:
        return None
    devices: list[Device] = []
    for line in listing.splitlines():
        match = _LINE.match(line)
        if match:
            devices.append(
                Device(
                    index=len(devices),
                    backend=backend_of(match["label"]),
                    label=match["label"],
                    name=match["name"],
                    total=int(match["total"]) * _MIB,
                    free=int(match["free"]) * _MIB,
                )
            )
    return tuple(devices)


def host_memory(meminfo: Path = Path("/proc/meminfo")) -> HostMemory:
    """RAM by /proc/meminfo; zeros on systems without it."""
    try:
        lines = meminfo.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return HostMemory()
    kib = {
        key: int(rest.split()[0])
        for key, _, rest in (line.partition(":") for line in lines)
        if rest
    }
    return HostMemory(
        total=kib.get("MemTotal", 0) * 1024, available=kib.get("MemAvailable", 0) * 1024
    )


def asking_environment(engine: Engine, environ: Mapping[str, str]) -> dict[str, str]:
    """What an engine is asked with: what it will run with, as far as its devices go by it.

    `environ` is what children get of ours. Whoever shows, plans or runs asks with this, so that
    a card has one index for all of them.
    """
    return {**environ, **DEVICE_ORDER, **engine.env}


async def probe(
    llama_server: str,
    *,
    rpc: Sequence[str] = (),
    env: Mapping[str, str],
    seconds: float = PROBE_SECONDS,
) -> Inventory:
    """The inventory as the engine sees it with the fleet's environment. Never raises."""
    argv = [llama_server, "--list-devices"]
    if rpc:
        argv[1:1] = ["--rpc", ",".join(rpc)]
    memory = host_memory()
    try:
        ended = await run(argv, seconds=seconds, env=env)
    except OSError as error:
        return _unknown(memory, error.strerror or str(error))
    listed = parse_device_list(ended.output)
    if ended.timed_out or listed is None:
        return _unknown(memory, ": ".join(filter(None, (ended.reason(), ended.tail(1)))))
    return from_engine(listed, memory)


def _unknown(memory: HostMemory, reason: str) -> Inventory:
    """The engine did not answer: that is not the same as a machine without GPUs."""
    return from_engine(None, memory, (f"the engine did not list its devices: {reason}",))
