"""Reports of a launcher -> how far a load is. Pure; the time is passed in.

Three sources, the best one that speaks: the engine's own progress lines, the bytes that its process
has read, and how long earlier loads of the same file took. A fraction never goes back, whatever a
source says, and stays below one until the engine has answered: what comes after the weights (the
caches, the warm-up) has no number anywhere, and a bar that waits at 100 % would lie.

Must not: read a clock or a file, or decide that a load failed.
"""

from typing import Literal

import msgspec

from pannier.gguf.model_files import ModelFiles
from pannier.progress.parse import Report

LoadStage = Literal["starting", "weights", "projector", "draft", "warming_up"]
Source = Literal["engine", "io", "history"]

READ_SHARE = 0.95
"""Part of the bar that reading takes; the tail after it took 5 to 25 % of a load where measured."""

STALLED_S = 15.0
"""Seconds without any advance after which a load is shown as stalled."""

SILENT_S = 2.0
"""Seconds of loading without a number before earlier loads speak for the engine: one that tells its
progress does so every 0.2 s, and the guess must not run ahead of it."""

_STAGES: dict[str, LoadStage] = {
    "text_model": "weights",
    "mmproj_model": "projector",
    "spec_model": "draft",
}

_IO_DONE = 0.98
"""Of the file, by bytes read: header reads and alignment make the last percent inexact."""


class LoadProgress(msgspec.Struct, frozen=True, kw_only=True):
    """One load. Times are loop seconds; bytes are those that the load reads in all.

    `fraction` is None while no source has said anything. `usual_s` is what earlier loads took, and
    `silent_since` the moment from which the engine loads and nothing can be read off it.
    """

    began: float
    moved: float
    total: int
    stage: LoadStage = "starting"
    fraction: float | None = None
    source: Source | None = None
    usual_s: float | None = None
    silent_since: float | None = None
    ended: float | None = None


class Shown(msgspec.Struct, frozen=True, kw_only=True):
    """A load at one moment, in the shape of a readiness row."""

    stage: LoadStage | None
    fraction: float | None
    bytes_done: int | None
    bytes_total: int | None
    eta_s: float | None
    elapsed_s: float
    source: Source | None
    stalled: bool


def begin(files: ModelFiles, now: float, usual_s: float | None = None) -> LoadProgress:
    """A load that has just been asked for."""
    return LoadProgress(began=now, moved=now, total=files.total, usual_s=usual_s)


def advance(progress: LoadProgress, report: Report, files: ModelFiles, now: float) -> LoadProgress:
    """The load after one more report. Idempotent, and never backwards."""
    if progress.ended is not None:
        return progress
    if report.phase == "ready":
        return msgspec.structs.replace(
            progress, stage="warming_up", fraction=1.0, moved=now, ended=now
        )
    if report.phase != "loading":
        return progress
    if report.value is not None and report.stage is not None:
        stage, read = _by_engine(report, files)
        source: Source = "engine"
    elif report.rchar is not None and files.total and not report.progress_lines:
        read = report.rchar / files.total
        stage, source = ("weights" if read < _IO_DONE else "warming_up"), "io"
    else:
        since = now if progress.silent_since is None else progress.silent_since
        return msgspec.structs.replace(progress, silent_since=since)
    shown = progress.fraction if progress.fraction is not None else _by_history(progress, now)
    fraction = max(shown or 0.0, min(1.0, read) * READ_SHARE)
    moved = now if (fraction, stage) != (progress.fraction, progress.stage) else progress.moved
    return msgspec.structs.replace(
        progress, stage=stage, fraction=fraction, source=source, moved=moved
    )


def end(progress: LoadProgress, now: float) -> LoadProgress:
    """The load stopped without becoming ready: its time stands still."""
    if progress.ended is not None:
        return progress
    return msgspec.structs.replace(progress, ended=now)


def show(progress: LoadProgress, now: float) -> Shown:
    """The load as it looks at this moment."""
    elapsed = (progress.ended if progress.ended is not None else now) - progress.began
    done = progress.ended is not None
    fraction, source = progress.fraction, progress.source
    if source is None and not done:
        fraction = _by_history(progress, now)
        source = None if fraction is None else "history"
    return Shown(
        stage=None if done else progress.stage,
        fraction=None if fraction is None else round(fraction, 4),
        bytes_done=_bytes(fraction, progress.total) if source != "history" else None,
        bytes_total=progress.total or None,
        eta_s=None if done else _eta(fraction, source, elapsed, progress.usual_s),
        elapsed_s=round(elapsed, 2),
        source=source,
        stalled=not done and progress.stage != "warming_up" and now - progress.moved > STALLED_S,
    )


def _by_history(progress: LoadProgress, now: float) -> float | None:
    """How far earlier loads of this file were by now; None while another source may still speak."""
    since = progress.silent_since
    if not progress.usual_s or since is None or now - since < SILENT_S:
        return None
    return min(READ_SHARE, (now - progress.began) / progress.usual_s)


def _by_engine(report: Report, files: ModelFiles) -> tuple[LoadStage, float]:
    """Stage and part of all bytes: each stage counts by the size of its file."""
    sizes = {
        "text_model": files.weights,
        "mmproj_model": files.projector_bytes,
        "spec_model": files.draft_bytes,
    }
    current, value = report.stage or "text_model", report.value or 0.0
    stages = [stage for stage in report.stages if stage in sizes] or [current]
    total = sum(sizes[stage] for stage in stages)
    before = stages[: stages.index(current)] if current in stages else []
    last = current == stages[-1]
    stage: LoadStage = "warming_up" if last and value >= 1.0 else _STAGES[current]
    if total <= 0:
        return stage, value
    return stage, (sum(sizes[name] for name in before) + sizes[current] * value) / total


def _bytes(fraction: float | None, total: int) -> int | None:
    if fraction is None or not total:
        return None
    return round(min(1.0, fraction / READ_SHARE) * total)


def _eta(
    fraction: float | None, source: Source | None, elapsed: float, usual_s: float | None
) -> float | None:
    """Seconds left: by the rate so far, or by earlier loads. None while neither can be trusted."""
    if source == "history" and usual_s:
        return round(max(0.0, usual_s - elapsed), 1)
    if fraction is None or fraction < 0.03 or elapsed < 0.5:
        return None
    return round(elapsed * (1.0 - fraction) / fraction, 1)
