"""What a llama-server took in memory, read from the lines that it prints while it loads.

There is no other source: no route of the server and no file tells bytes per device. At verbosity 4
llama.cpp prints one line for each buffer that it makes (b11434: llama-model.cpp `load_tensors`,
llama-kv-cache.cpp, llama-memory-recurrent.cpp, llama-context.cpp `sched_reserve`, mtmd/clip.cpp).
Those lines are not an interface, so everything here takes what it knows and shrugs at the rest.
The names are the process's own: what another process calls CUDA1 may be CUDA0 here.

Must not: import anything beyond the standard library, or judge what the numbers mean.
"""

import re
from collections.abc import Mapping, Sequence

from pannier.fleet.launcher_words import readable, unprefixed

VERBOSITY = "LLAMA_ARG_LOG_VERBOSITY"
VERBOSITY_FLAGS = frozenset(
    {"-lv", "--verbosity", "--log-verbosity", "-v", "--verbose", "--log-verbose", "--log-disable"}
)
PRINTS_MEMORY = "4"
"""The lowest verbosity that prints the lines. Measured on b11434: 22 lines for a request instead of
9, none with its text, and no difference in requests or tokens per second."""

_MIB = 1024 * 1024
_MOST = 128
"""Buffers, and devices: more than any machine has, and a report stays a small line."""

_LARGEST_MIB = 1 << 30

_BUFFER = re.compile(
    r"(?P<where>\w+): +(?P<name>\S{1,80}) +(?:(?P<kind>\w[\w ]{0,40}?) +)?buffer size = +"
    r"(?P<mib>\d{1,12}(?:\.\d+)?) MiB"
)
_KINDS = {"model": "weights", "KV": "kv", "RS": "kv", "LoRA": "adapter"}
_AGAIN = {"compute": "compute", "output": "output"}
"""Buffers that are made anew in the same context: the last line counts, not the sum."""

_LISTED = re.compile(
    r"(?:cmn +common_param: +)?- (?P<label>\S{1,80}) *: (?P<name>.{0,80}) \(\d+ MiB, \d+ MiB"
)
_USED = re.compile(r"\w+: using device (?P<label>\S{1,80}) \((?P<name>.{0,80}?)\) ")
_PROJECTOR = re.compile(r"\w+: CLIP using (?P<name>\S{1,80}) backend")
_PROJECTOR_SIZE = re.compile(r"load_hparams: model size: +(?P<mib>\d{1,12}(?:\.\d+)?) MiB")
_COPIES = re.compile(r"\w+: .*\bsched copies = (?P<copies>\d{1,4})\b")
_BUILD = re.compile(r".*\bbuild:? (?P<build>\d{1,9}) \(\w+\) with ")

_FIT_BEGINS, _FIT_ENDS = "fitting params to device memory", "fitting params to free memory took"
"""Between the two the engine tries sizes; at verbosity 5 it prints buffers that it never makes."""

_OF_INTEREST = re.compile(
    rb"buffer size|model size|fitting params|loading model tensors|constructing|using device"
    rb"|CLIP using|sched copies|MiB free|\bbuild"
)
"""Looked for first: a load may print a hundred thousand other lines."""


def with_memory_lines(environ: Mapping[str, str], command: Sequence[str]) -> dict[str, str]:
    """The environment in which an engine prints its memory, unless a person chose a verbosity."""
    chosen = VERBOSITY in environ or any(
        word.partition("=")[0] in VERBOSITY_FLAGS for word in command
    )
    return dict(environ) if chosen else {**environ, VERBOSITY: PRINTS_MEMORY}


class MemoryLines:
    """Adds up the buffers of one engine from its lines, in the order in which it prints them.

    The model comes first, then its draft model, then the projector. A second context on the same
    weights is a draft too (multi-token prediction).
    """

    def __init__(self) -> None:
        self.build: str | None = None
        self.copies: int | None = None
        self._models = 0
        self._contexts = 0
        self._fitting = False
        self._listed: list[tuple[str, str]] = []
        self._used: list[tuple[str, str]] = []
        self._projector = ""
        self._projectors = 0
        self._bytes: dict[tuple[str, str, str], int] = {}

    def take(self, line: bytes) -> None:
        """Read one line of the engine's log."""
        if not _OF_INTEREST.search(line):
            return
        text = unprefixed(readable(line))
        if _FIT_BEGINS in text or _FIT_ENDS in text:
            self._fitting = _FIT_BEGINS in text
        elif self._fitting:
            return
        elif "buffer size" in text:
            self._buffer(text)
        elif text.startswith("load_tensors: loading model tensors"):
            self._models += 1
        elif text.startswith("llama_context: constructing"):
            self._contexts += 1
        else:
            self._other(text)

    def devices(self) -> list[str]:
        """The devices of the model in the order of its split, named as their buffers are."""
        return [self._buffer_name(label, name) for label, name in self._used]

    def found(self) -> dict[str, dict[str, int]] | None:
        """Bytes by buffer type and what they are for; None when no line said anything."""
        result: dict[str, dict[str, int]] = {}
        for (name, kind, _), size in self._bytes.items():
            row = result.setdefault(name, {})
            row[kind] = row.get(kind, 0) + size
        return result or None

    def _buffer(self, text: str) -> None:
        line = _BUFFER.fullmatch(text)
        size = _bytes(line)
        if line is None or size is None:
            return
        name, kind = line["name"], line["kind"] or ""
        if "compute_meta" in line["where"]:
            self._put(name, "projector", f"compute {self._projectors}", size)
            return
        use = _AGAIN.get(kind) or _KINDS.get(kind)
        if use is None:
            # Caches of single architectures have words of their own ("DSV4 csa state").
            use = "kv" if kind.endswith(" state") else "other"
        part = f"{self._contexts} {kind}"
        if self._models > 1 or self._contexts > 1:
            use = "draft"
        if kind in _AGAIN:
            self._put(name, use, part, size)
        else:
            self._put(name, use, part, size + self._bytes.get((name, use, part), 0))

    def _put(self, name: str, use: str, part: str, size: int) -> None:
        key = (name, use, part)
        if key in self._bytes or len(self._bytes) < _MOST:
            self._bytes[key] = size

    def _other(self, text: str) -> None:
        if found := _USED.match(text):
            if self._models == 0 and len(self._used) < _MOST:
                self._used.append((found["label"], found["name"]))
        elif found := _PROJECTOR.fullmatch(text):
            self._projector = found["name"]
            self._projectors += 1
        elif found := _PROJECTOR_SIZE.fullmatch(text):
            # The size of the file: an encoder for images and one for sound say it once each.
            if self._projector and (size := _bytes(found)) is not None:
                self._put(self._projector, "projector", "weights", size)
        elif found := _COPIES.fullmatch(text):
            if self._contexts <= 1:
                self.copies = int(found["copies"])
        elif found := _LISTED.match(text):
            if len(self._listed) < _MOST:
                self._listed.append((found["label"], found["name"]))
        elif self.build is None and (found := _BUILD.match(text)) and int(found["build"]) > 0:
            self.build = f"b{int(found['build'])}"

    def _buffer_name(self, label: str, name: str) -> str:
        """RPC buffers count within their server: `RPC1` at 10.0.0.9:50052 is `RPC0[10.0.0.9:…]`."""
        if not label.startswith("RPC"):
            return label
        peers = [each for each, other in self._listed or self._used if other == name]
        return f"RPC{peers.index(label) if label in peers else 0}[{name}]"


def _bytes(line: re.Match[str] | None) -> int | None:
    """The bytes of a line in MiB with two decimals; None for what no machine has."""
    if line is None or float(line["mib"]) > _LARGEST_MIB:
        return None
    return round(float(line["mib"]) * _MIB)
