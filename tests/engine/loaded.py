"""What a real llama-server allocated, read from its log: MiB by device, and on the host.

Must not: ask the server anything but whether it is up; a made model cannot answer.
"""

import re
import subprocess
import time
import urllib.error
import urllib.request
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

from tests.engine.oracle import PATIENCE_S, launch_flags
from tests.engine.serving import free_port

from pannier.gguf.footprint.values import LaunchSettings

_LINE = re.compile(
    r"(?P<who>\w+): +(?P<name>\S+) +(?P<what>model|KV|RS|compute) buffer size"
    r" = +(?P<mib>[\d.]+) MiB|(?P<begins>constructing llama_context)"
)
_PROJECTOR = re.compile(r"load_hparams: model size: +([\d.]+) MiB")


@dataclass
class Buffers:
    """MiB of one model and its context, by the name of a buffer's place."""

    weights: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    kv: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    compute: dict[str, float] = field(default_factory=dict)

    def on(self, endpoint: str) -> tuple[float, float, float]:
        """Weights, cache and compute on a device."""
        weights, kv, compute = (
            sum(mib for name, mib in table.items() if f"[{endpoint}]" in name)
            for table in (self.weights, self.kv, self.compute)
        )
        return weights, kv, compute


@dataclass
class Allocated:
    """All of a server: the model, what drafts for it, and the projector."""

    model: Buffers = field(default_factory=Buffers)
    draft: Buffers = field(default_factory=Buffers)
    projector: float = 0.0
    encoder: dict[str, float] = field(default_factory=dict)


def load(
    server: str, file: Path, settings: LaunchSettings, endpoints: list[str], *more: str
) -> Allocated:
    """Start a server, wait until it is up, end it, and read what it said."""
    port, log_file = free_port(), file.with_suffix(".log")
    argv = [server, "-m", str(file), "--host", "127.0.0.1", "--port", str(port), "-lv", "4"]
    argv += ["-fit", "off", *launch_flags(settings, endpoints), *more]
    argv += ["--spec-type", "draft-mtp"] if settings.mtp else []
    argv += ["-kvu"] if settings.unified and settings.slots > 1 else []
    argv += {"none": [], "embed": ["--embeddings"], "rerank": ["--rerank"]}[settings.pooling]
    with log_file.open("wb") as log:
        process = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=file.parent
        )
    try:
        _wait(process, port, log_file)
    finally:
        process.kill()
        process.wait()
    return parse(log_file.read_text(errors="replace"))


def parse(said: str) -> Allocated:
    """The last reservation of compute counts; a cache may have several buffers in one place.

    The second model and the second context that are made are those of the draft.
    """
    found, contexts = Allocated(), 0
    for line in _LINE.finditer(said):
        if line["begins"]:
            contexts += 1
            continue
        name, mib = line["name"], float(line["mib"])
        if line["who"] == "reserve_compute_meta":
            found.encoder[name] = mib
        elif line["what"] == "model":
            (found.draft if contexts else found.model).weights[name] += mib
        elif line["what"] == "compute":
            (found.draft if contexts > 1 else found.model).compute[name] = mib
        else:
            (found.draft if contexts > 1 else found.model).kv[name] += mib
    if size := _PROJECTOR.search(said):
        found.projector = float(size[1])
    return found


def _wait(process: subprocess.Popen[bytes], port: int, log_file: Path) -> None:
    end = time.monotonic() + PATIENCE_S
    while True:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5):
                return
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            time.sleep(0.05)
        said = log_file.read_text(errors="replace")[-3000:] if process.poll() is not None else ""
        assert process.poll() is None, f"llama-server ended with {process.returncode}: {said}"
        assert time.monotonic() < end, "llama-server did not come up"
