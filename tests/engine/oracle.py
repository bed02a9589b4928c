"""llama.cpp's own planner as the truth: what a launch would take, without taking it.

`llama-fit-params -fitp on` makes the model, its cache and its graph as a server does, allocates
nothing, and prints MiB for each device. The devices are real `ggml-rpc-server` processes on
loopback, so there can be several where there is no GPU.

What it cannot be asked: a cache that slots share, and embedding servers. It reserves logits for a
whole batch, not for one row of each slot.
"""

import re
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.engine.serving import free_port, listens

from pannier.engine.locate import beside
from pannier.gguf.footprint.values import LaunchSettings

PATIENCE_S = 60
MIB = 1 << 20

_ROW = re.compile(r"^(\S+) (\d+) (\d+) (\d+) *$", re.MULTILINE)


@dataclass(frozen=True)
class Truth:
    """Whole MiB on one device or on the host; what is left after the point is cut off.

    The program's log knows hundredths, but ends with the process wherever it is.
    """

    weights: int
    kv: int
    compute: int


class Refused(Exception):
    """llama.cpp does not start with this model and these settings; the words are its own."""


@contextmanager
def rpc_devices(server: str, count: int, log_file: Path) -> Iterator[list[str]]:
    """So many devices; yields their endpoints, and ends their processes."""
    program = beside(server, "ggml-rpc-server")
    assert program, "no ggml-rpc-server beside llama-server"
    ports = [free_port() for _ in range(count)]
    processes = []
    try:
        with log_file.open("ab") as log:
            for port in ports:
                argv = [program, "-H", "127.0.0.1", "-p", str(port)]
                streams: dict[str, Any] = {"stdout": log, "stderr": log}
                processes.append(subprocess.Popen(argv, stdin=subprocess.DEVNULL, **streams))
        end = time.monotonic() + PATIENCE_S
        while not all(listens(port) for port in ports):
            assert time.monotonic() < end, log_file.read_text(errors="replace")[-2000:]
            time.sleep(0.02)
        yield [f"127.0.0.1:{port}" for port in ports]
    finally:
        for process in processes:
            process.kill()
            process.wait()


def launch_flags(settings: LaunchSettings, endpoints: list[str]) -> list[str]:
    """The flags of llama.cpp that say the same as `settings`; devices are endpoints in order."""
    one = settings
    flags = ["-c", str(one.context if one.unified else one.context * one.slots)]
    flags += ["-np", str(one.slots), "-b", str(one.batch), "-ub", str(one.ubatch)]
    flags += ["-ctk", one.kv_k, "-ctv", one.kv_v, "-fa", one.flash_attention]
    flags += ["-lm", "mmap" if one.mapped else "none"]
    flags += ["-ngl", "all" if one.gpu_layers is None else str(one.gpu_layers)]
    if one.devices:
        flags += ["--rpc", ",".join(endpoints[: len(one.devices)])]
        flags += ["-ts", ",".join(map(str, one.split or [1] * len(one.devices)))]
    else:
        flags += ["-dev", "none"]
    if one.cpu_moe is None:
        flags += ["-cmoe"]
    elif one.cpu_moe:
        flags += ["-ncmoe", str(one.cpu_moe)]
    flags += ["--swa-full"] if one.swa_full else []
    flags += [] if one.kv_offload else ["-nkvo"]
    return flags


class Oracle:
    """Asks the planner that lies beside a llama-server, with the devices at `endpoints`."""

    def __init__(self, server: str, endpoints: list[str]) -> None:
        found = beside(server, "llama-fit-params")
        assert found, "no llama-fit-params beside llama-server"
        self._program = found
        self._endpoints = endpoints

    def ask(self, file: Path, settings: LaunchSettings) -> tuple[list[Truth], Truth]:
        """What each device takes, in their order, and the host. Raises Refused."""
        assert not settings.unified or settings.slots == 1, "the planner has no such option"
        flags = launch_flags(settings, self._endpoints)
        # Weights that the CPU keeps in another order are in no line of the answer.
        argv = [self._program, "-m", str(file), "-fitp", "on", "--no-repack", *flags]
        done = subprocess.run(
            argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=PATIENCE_S, check=False
        )
        rows = _ROW.findall(done.stdout.decode(errors="replace"))
        if done.returncode or len(rows) != len(settings.devices) + 1:
            said = done.stderr.decode(errors="replace")
            raise Refused(_why(said) or said[-600:])
        truths = [Truth(int(weights), int(kv), int(compute)) for _, weights, kv, compute in rows]
        return truths[:-1], truths[-1]


def _why(said: str) -> str:
    """The lines of a log that say what was wrong."""
    words = ("error", "failed", "requires", "what():", "not support", "GGML_ASSERT", "fatal")
    lines = [line for line in said.splitlines() if any(word in line for word in words)]
    return "\n".join(lines[:4])
