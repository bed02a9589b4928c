"""What `pannier engine` shows: progress while it works, and what was found.

A build takes minutes and is never silent: on a terminal one line that is rewritten, elsewhere a
plain line at each tenth and at least every ten seconds. What counts as progress is what the build
itself prints ("[ 44%]" of make, "[12/300]" of ninja); the time is ours.

Must not: decide or start anything.
"""

import re
import shutil
import sys
import time
from collections.abc import Callable
from typing import TextIO

import msgspec

from pannier.engine.locate import Features

Say = Callable[[str], None]
Show = Callable[[str], None]

_EVERY = 10.0
_QUICK = 2.0
_PERCENT = re.compile(r"^\s*\[\s*(\d{1,3})%\]")
_STEPS = re.compile(r"^\s*\[(\d+)/(\d+)\]")
_PHASES = (
    (re.compile(r"^\s*(Collecting|Downloading|Obtaining) "), "getting the source"),
    (re.compile(r"^\s*(Installing build dependencies|Installing collected)"), "getting cmake"),
    (re.compile(r"^\s*(Building wheel|running bdist_wheel|-- )"), "configuring"),
    (re.compile(r"^go: downloading "), "getting the source"),
)


class Progress:
    """One piece of work: hears the lines and the ticks, tells how far it is.

    *say* takes whole lines; *show*, on a terminal, the line that is rewritten.
    """

    def __init__(
        self,
        label: str,
        say: Say,
        *,
        show: Show | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._label = label
        self._say = say
        self._show = show
        self._clock = clock
        self._start = clock()
        self._said_at = self._start
        self._said = 0
        self._percent: int | None = None
        self._phase = ""

    def line(self, text: str) -> None:
        """Hear one line of the build's output."""
        if percent := _PERCENT.match(text):
            self._reach(int(percent[1]))
        elif steps := _STEPS.match(text):
            self._reach(100 * int(steps[1]) // max(1, int(steps[2])))
        elif self._percent is None:
            for pattern, phase in _PHASES:
                if pattern.match(text):
                    self._phase = phase
        self.tick()

    def part(self, fraction: float) -> None:
        """Hear how much of a download is here."""
        self._reach(int(fraction * 100))
        self.tick()

    def tick(self) -> None:
        """Tell where things are, if it is time to."""
        if self._show is not None:
            self._show(self._text())
            return
        silent = self._clock() - self._said_at
        tenth = (self._percent or 0) // 10
        if silent >= _EVERY or (tenth > self._said and silent >= _QUICK):
            self._said, self._said_at = tenth, self._clock()
            self._say(self._text())

    def done(self) -> None:
        """End the line that is rewritten; what came of it is said by the caller."""
        if self._show is not None:
            self._show("")

    @property
    def elapsed(self) -> str:
        """The time so far: `1:52`."""
        seconds = int(self._clock() - self._start)
        return f"{seconds // 60}:{seconds % 60:02}"

    def _reach(self, percent: int) -> None:
        self._percent = max(self._percent or 0, min(100, percent))

    def _text(self) -> str:
        where = f"{self._percent} %" if self._percent is not None else self._phase or "started"
        return f"{self._label}: {where}, {self.elapsed}"


class Printer:
    """Writes lines to *stream*, and on a terminal one that is rewritten."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._open = False

    @property
    def show(self) -> Show | None:
        """How to rewrite a line; None where that cannot be."""
        return self._rewrite if self._stream.isatty() else None

    def say(self, text: str) -> None:
        """Write whole lines."""
        self._rewrite("")
        print(text, file=self._stream, flush=True)

    def _rewrite(self, text: str) -> None:
        if not text and not self._open:
            return
        width = shutil.get_terminal_size().columns - 1
        print(f"\r\x1b[K{text[:width]}", end="", file=self._stream, flush=True)
        self._open = bool(text)


class Server(msgspec.Struct, frozen=True, kw_only=True):
    """A llama-server that was found and asked."""

    path: str
    version: str
    source: str
    features: Features


class Swap(msgspec.Struct, frozen=True, kw_only=True):
    """A llama-swap that was found and asked."""

    path: str
    version: str
    source: str


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """What `pannier engine status` says; the shape of its `--json`."""

    llama_server: Server | None
    llama_swap: Swap | None
    host: str


def status_lines(status: Status) -> list[str]:
    """The status for people."""
    lines = []
    if (server := status.llama_server) is None:
        lines.append("llama-server   not found; `pannier engine install` gets one")
    else:
        lines.append(f"llama-server   {server.version}  {server.path}  ({_from(server.source)})")
        for name, (there, without) in _features(server.features).items():
            lines.append(f"  {name:<16} {'yes' if there else f'no: {without}'}")
    if (swap := status.llama_swap) is None:
        lines.append("llama-swap     not found; it is not needed: Pannier runs llama-server itself")
    else:
        lines.append(f"llama-swap     {swap.version}  {swap.path}  ({_from(swap.source)})")
    lines.append(f"host           {status.host}")
    return lines


def _from(source: str) -> str:
    return {
        "config": "named in config.toml",
        "environment": "named in the environment",
        "path": "on PATH",
        "managed": "installed by Pannier",
    }[source]


def _features(features: Features) -> dict[str, tuple[bool, str]]:
    return {
        "progress lines": (features.progress_lines, "progress comes from file reads and time"),
        "--load-mode": (features.load_mode, "older; --no-mmap is used"),
        "llama-fit-params": (features.fit_params, "memory is estimated by Pannier alone"),
        "rpc": (features.rpc, "devices of other machines cannot be used"),
    }
