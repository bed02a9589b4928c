"""What a launcher says about its llama-server: one JSON line, one `Report`.

The launcher sends its full state with every line, so a reader needs no history: the latest line is
the truth, and a lost one costs nothing. This module turns such a line into a value and refuses
everything else with a `ValueError`, whatever the bytes are, since they come from another process.
Unknown fields are accepted (a newer launcher may say more), another version is not.

Must not: read a socket or a clock, or judge what a report means. The tracker does that.
"""

from typing import Any, Literal

import msgspec

VERSION = 1
"""The version of the report line that this module reads."""

Phase = Literal["starting", "loading", "ready", "stopping", "exited"]
"""Where an instance is in its life, as its launcher sees it."""

Stage = Literal["text_model", "spec_model", "mmproj_model"]
"""The part that the engine loads now, in the engine's own words."""


class Exit(msgspec.Struct, frozen=True, kw_only=True):
    """How a llama-server ended.

    `code` is its exit code, absent when a signal ended it; `asked` says that we stopped it, and
    `orphaned` that this was because what had started the launcher is gone; `reason` is the one line
    that says best why, `tail` its last words.
    """

    code: int | None = None
    signal: str | None = None
    asked: bool = False
    orphaned: bool = False
    out_of_memory: bool = False
    reason: str | None = None
    tail: tuple[str, ...] = ()


class Said(msgspec.Struct, frozen=True, kw_only=True):
    """What the engine said of itself while it loaded.

    `devices` are those of its model in the order of the split, by its own names; `copies` is how
    often it holds a batch to keep several devices busy; `build` is absent where it knows none.
    """

    build: str | None = None
    devices: tuple[str, ...] = ()
    copies: int | None = None


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The full state of one instance, as its launcher saw it last.

    `value` is the engine's own fraction of the current stage, `rchar` the bytes that the process
    has read so far (`/proc/PID/io`), both absent where they are not known. `progress_lines` says
    whether the engine speaks the progress protocol at all. `meta` is what the engine said of itself
    when it became ready. `memory` is what the load took, in bytes by buffer type (the engine's own
    name) and use (weights, kv, compute, output, projector, draft, adapter, other), told soon after
    ready together with `engine`, and absent where the engine printed nothing. Times are seconds
    since the engine was started.
    """

    v: int
    instance: str
    launcher: int
    pid: int | None
    port: int
    phase: Phase
    stages: tuple[str, ...] = ()
    stage: Stage | None = None
    value: float | None = None
    rchar: int | None = None
    progress_lines: bool = False
    meta: dict[str, Any] | None = None
    memory: dict[str, dict[str, int]] | None = None
    engine: Said | None = None
    elapsed_s: float = 0.0
    ready_s: float | None = None
    exit: Exit | None = None


_DECODER = msgspec.json.Decoder(Report)


def decode_report(line: bytes) -> Report:
    """Read one report line; anything that is not a report of our version raises `ValueError`."""
    try:
        report = _DECODER.decode(line)
    except RecursionError:
        raise ValueError("not a report: nested too deeply") from None
    except (msgspec.MsgspecError, ValueError) as error:
        raise ValueError(f"not a report: {error}") from None
    if report.v != VERSION:
        raise ValueError(f"not a report of version {VERSION}: version {report.v}")
    if report.value is not None and not 0.0 <= report.value <= 1.0:
        raise ValueError(f"not a report: the value {report.value} is not a fraction")
    if not 0 <= report.port <= 65535:
        raise ValueError(f"not a report: {report.port} is not a port")
    if not report.instance:
        raise ValueError("not a report: the instance has no name")
    return report
