"""Notices that config.toml may have changed: a hint, never a reading.

Editors save in odd ways: in place, by a temporary file and rename, by moving the old file away
first, by swapping a symlink to a folder. Watching the file itself loses it at the first rename, so
its folder is watched, without a filter on names (a symlink swap shows up as another name). Where
no notice arrives (bind mounts, network file systems) a look at the file's status every two seconds
does. Whoever gets a hint reads the file and compares the content.

Must not: read the content, or decide that anything changed.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import watchfiles

POLL_S = 2.0
SETTLED_S = 2.0
_DEBOUNCE_MS = 200
_STEP_MS = 50
_COARSEST_S = 2.5

Signature = tuple[object, ...]


def signature(path: Path) -> Signature:
    """What a look at a file's status tells: which file it is, its size and its time of change."""
    try:
        status = path.stat()
    except OSError as error:
        return (type(error).__name__,)
    return (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)


def _is_fresh(path: Path) -> bool:
    """Whether the file is so new that a second save could have the same time of change.

    Some file systems keep that time in steps of two seconds (FAT) or one (older NFS).
    """
    try:
        return abs(time.time() - path.stat().st_mtime) < _COARSEST_S
    except OSError:
        return False


def has_settled(path: Path) -> bool:
    """Whether a file is there and nobody writes it any more: a download may take its time."""
    try:
        changed = path.stat().st_mtime
    except OSError:
        return False
    return abs(time.time() - changed) > SETTLED_S


async def hints(
    path: Path, *, also: Callable[[], Signature] = tuple, poll_s: float = POLL_S
) -> AsyncIterator[None]:
    """Yields whenever it is worth reading `path` again, or when `also` tells something new.

    The first time at once: whoever asks has read the file before, and between that and the first
    look here lie the seconds in which the engine is asked for its devices.
    """
    noticed = asyncio.Event()
    folder = asyncio.create_task(_watch_folder(path.parent, noticed, poll_s), name="config folder")
    seen = (signature(path), also())
    try:
        yield
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(poll_s):
                    await noticed.wait()
            told = noticed.is_set()
            noticed.clear()
            now = (signature(path), also())
            # Notices tell of the whole folder, which may hold files that change all the time.
            if now != seen or (told and _is_fresh(path)):
                seen = now
                yield
    finally:
        folder.cancel()
        await asyncio.gather(folder, return_exceptions=True)


async def _watch_folder(folder: Path, noticed: asyncio.Event, retry_s: float) -> None:
    """Sets the event at every change in the folder; starts again when the folder was gone."""
    while True:
        with contextlib.suppress(OSError, RuntimeError):
            async for _ in watchfiles.awatch(
                folder, recursive=False, debounce=_DEBOUNCE_MS, step=_STEP_MS, watch_filter=None
            ):
                noticed.set()
        await asyncio.sleep(retry_s)
