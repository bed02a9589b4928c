"""What an owner remembers of one instance between two reports: its launcher, its load, its end.

One load after the other goes through a slot; `number` tells them apart, so that news of an earlier
one cannot be taken for this one's.

Must not: post messages or know the group's state.
"""

from pannier.errors import Failure
from pannier.gguf.model_files import ModelFiles
from pannier.progress import tracker
from pannier.progress.parse import Report
from pannier.progress.tracker import LoadProgress
from pannier.render.argv import Launch


class Slot:
    """The current load of an instance. Owned by the group's task."""

    def __init__(self, launch: Launch, files: ModelFiles) -> None:
        self.launch = launch
        self.files = files
        self.number = 0
        self.progress: LoadProgress | None = None
        self.launcher: int | None = None
        self.pid: int | None = None
        self.connected = False
        self.ready = False
        self.memory: dict[str, dict[str, int]] | None = None
        self.measured = False
        self.ended = True
        self.told_to_end = False
        self.verdict: Failure | None = None
        self._over: set[int] = set()

    @property
    def planned(self) -> tuple[int, ...]:
        """Bytes by device that it was started to take; empty where no header told."""
        estimate = self.launch.estimate
        return tuple(share.total for share in estimate.devices) if estimate is not None else ()

    def begin(self, progress: LoadProgress) -> None:
        """A new load; whatever an earlier launcher still says does not belong to it."""
        if self.launcher is not None:
            self._over = {self.launcher}
        self.number += 1
        self.progress = progress
        self.launcher = self.pid = self.verdict = self.memory = None
        self.measured = False
        self.connected = self.ready = self.ended = self.told_to_end = False

    def is_over(self, report: Report) -> bool:
        """Whether this report is of a launcher that was already done with."""
        return report.launcher in self._over

    def take(self, report: Report, now: float) -> bool:
        """Takes a report; true when it is the one that says ready."""
        if self.ended:
            # An engine that nobody here asked for: llama-swap started it for a request of its own.
            self.begin(tracker.begin(self.files, now))
        self.launcher, self.pid = report.launcher, report.pid
        self.connected = True
        if self.progress is not None:
            self.progress = tracker.advance(self.progress, report, self.files, now)
        first = report.phase == "ready" and not self.ready
        self.ready = self.ready or report.phase == "ready"
        return first

    def measures(self, report: Report) -> bool:
        """Whether this report is the one that says what the load took: once per load."""
        self.memory = report.memory or self.memory
        first = report.engine is not None and not self.measured
        self.measured = self.measured or first
        return first

    def was_cut(self, now: float) -> bool:
        """Whether an end that nobody here asked for came to a load when its time was over.

        llama-swap has the same limit as we, and asks the launcher to end like we do.
        """
        began = self.progress.began if self.progress else now
        cut = not (self.told_to_end or self.ready or self.ended)
        return cut and now - began >= self.launch.load_timeout_s

    def took_too_long(self, now: float) -> Failure:
        """Why a load is stopped whose time is over."""
        seconds = now - self.progress.began if self.progress else 0.0
        return Failure(
            code="load-timeout",
            message=f"{self.launch.instance} did not become ready within {seconds:.0f} s",
            hint="the disk may be slow, or the engine hangs; see the log",
        )

    def end(self, now: float) -> None:
        """The engine is gone."""
        self.ended = True
        self.connected = False
        self.pid = None
        if self.launcher is not None:
            self._over.add(self.launcher)
        if self.progress is not None:
            self.progress = tracker.end(self.progress, now)


def exit_failure(report: Report) -> Failure | None:
    """Why the engine ended, in words; None when it was asked to end."""
    end = report.exit
    if end is None or end.asked:
        return None
    how = f"with signal {end.signal}" if end.signal else f"with code {end.code}"
    detail = end.reason or (end.tail[-1] if end.tail else None)
    if detail == f"ended by {end.signal}":
        detail = None  # the message says it
    if end.out_of_memory:
        return Failure(
            code="out-of-memory",
            message=f"{report.instance} ran out of memory (llama-server ended {how})",
            detail=detail,
            hint="a smaller context, fewer slots or a smaller quantisation needs less",
        )
    when = "after it was ready" if report.ready_s is not None else "while it was loading"
    return Failure(
        code="engine-exited",
        message=f"the llama-server of {report.instance} ended {how} {when}",
        detail=detail,
    )
