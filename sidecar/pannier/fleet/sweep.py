"""Finds and ends what belongs to a session of processes, ours of now or of a run that was killed.

Every child is started as the leader of its own session, and a session id is inherited by all that
comes from it, whatever process groups llama-swap makes: so the survivors of a killed llama-swap are
found by `session == its pid`. A recorded session counts only on the same boot, and only when its
leader is the process that was recorded or is gone: a process id can be used again.

Must not: touch a process that is not provably ours.
"""

import asyncio
import contextlib
import os
import signal
from collections.abc import Iterable
from pathlib import Path

import msgspec

_PROC = Path("/proc")


class Session(msgspec.Struct, frozen=True):
    """A session that we started: its leader's pid and start time (clock ticks since boot)."""

    pid: int
    started: int


def boot_id(file: Path = Path("/proc/sys/kernel/random/boot_id")) -> str:
    """Names this boot of the machine; empty where it is not known."""
    try:
        return file.read_text(encoding="ascii").strip()
    except OSError:
        return ""


def start_time(pid: int) -> int | None:
    """Start time of a process in clock ticks since boot, None when it is not there."""
    fields = _stat(pid)
    return int(fields[19]) if fields else None


def members(session: int) -> list[int]:
    """The living processes of a session; empty where there is no /proc."""
    if not _PROC.is_dir():
        return []
    found = []
    for entry in _PROC.iterdir():
        if entry.name.isdigit():
            fields = _stat(int(entry.name))
            if fields and int(fields[3]) == session and fields[0] not in ("Z", "X"):
                found.append(int(entry.name))
    return found


def is_ours(session: Session) -> bool:
    """False when the leader's pid now belongs to another process."""
    now = start_time(session.pid)
    return now is None or now == session.started


async def end_sessions(sessions: Iterable[Session], *, grace_s: float = 3.0) -> list[int]:
    """Ends all that is left of these sessions: TERM, then KILL. Returns the pids it found."""
    ours = [session for session in sessions if is_ours(session)]
    found = [pid for session in ours for pid in members(session.pid)]
    _signal(found, signal.SIGTERM)
    if not await _gone(ours, grace_s):
        _signal([pid for session in ours for pid in members(session.pid)], signal.SIGKILL)
        await _gone(ours, grace_s)
    return found


async def kill_session(session: Session) -> None:
    """Kills what is left of a session of ours; when its number is another's by now, nothing."""
    if not is_ours(session):
        return
    _signal(members(session.pid), signal.SIGKILL)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(session.pid, signal.SIGKILL)
    await _gone([session], 2.0)


async def _gone(sessions: list[Session], seconds: float) -> bool:
    """Whether the sessions emptied in time. /proc has no event for another's child: looked at."""
    end = asyncio.get_running_loop().time() + seconds
    while any(members(session.pid) for session in sessions):
        if asyncio.get_running_loop().time() > end:
            return False
        await asyncio.sleep(0.02)
    return True


def _signal(pids: Iterable[int], number: signal.Signals) -> None:
    for pid in pids:
        try:
            os.kill(pid, number)
        except (ProcessLookupError, PermissionError):
            continue


def _stat(pid: int) -> list[str] | None:
    """Fields of /proc/PID/stat from the state on (proc(5), field 3); the name may hold anything."""
    try:
        text = (_PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    return text.rpartition(")")[2].split()
