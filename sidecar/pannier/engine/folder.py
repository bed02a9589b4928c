"""The managed folder: where installed programs live, whole or not at all.

    <data home>/pannier/engine/
      llama-server-b11434-cpu/     a program with its libraries, as it was unpacked or built
      bin/llama-server             the link that says which one counts
      .lock  .tmp-*                one install at a time; its unfinished work

A program is made ready in a temporary folder beside the others and gets its place by one rename; a
second rename moves the link. Whatever is interrupted leaves the last state and a temporary folder,
which the next install clears away: it holds the lock, so the folder is nobody's.

Must not: know where programs come from.
"""

import asyncio
import contextlib
import os
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import msgspec

from pannier.engine.locate import ORIGIN, Origin
from pannier.errors import EngineError

if sys.platform != "win32":
    import fcntl


class ManagedFolder:
    """The managed folder at *root*; made when it is first locked."""

    def __init__(self, root: Path) -> None:
        self.root = root

    @contextlib.asynccontextmanager
    async def locked(self, say: Callable[[str], None]) -> AsyncIterator[None]:
        """Hold the folder against a second install; wait for a first one, and say so."""
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            lock = os.open(self.root / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise EngineError(
                f"{self.root} cannot be written: {error.strerror or error}",
                hint="set XDG_DATA_HOME to a folder that can be written",
            ) from error
        try:
            waited = 0
            while not _try_lock(lock):
                if waited % 60 == 0:
                    say(f"another install is at work in {self.root}; waiting for it")
                waited += 1
                await asyncio.sleep(0.5)
            self._sweep()
            yield
        finally:
            os.close(lock)

    @contextlib.contextmanager
    def temporary(self) -> Iterator[Path]:
        """A folder on the same file system for unfinished work; gone afterwards."""
        folder = Path(tempfile.mkdtemp(prefix=".tmp-", dir=self.root))
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def place(self, origin: Origin) -> Path:
        """Where the program of *origin* lives."""
        suffix = f"-{origin.backend}" if origin.backend else ""
        return self.root / f"{origin.program}-{origin.version}{suffix}"

    def adopt(self, ready: Path, origin: Origin) -> Path:
        """Give the folder *ready* its place and make it the one that counts."""
        (ready / ORIGIN).write_bytes(msgspec.json.format(msgspec.json.encode(origin)))
        place = self.place(origin)
        with self.temporary() as aside:
            if place.exists():
                # Servers that run from it keep their files open.
                place.rename(aside / "old")
            try:
                ready.rename(place)
            except OSError:
                if (aside / "old").exists():
                    (aside / "old").rename(place)
                raise
        self.choose(place, origin.program)
        return place / origin.program

    def choose(self, place: Path, program: str) -> None:
        """Make the program in *place* the one that counts, by one rename."""
        links = self.root / "bin"
        links.mkdir(exist_ok=True)
        with self.temporary() as aside:
            link = aside / "link"
            link.symlink_to(Path("..") / place.name / program)
            link.replace(links / program)

    def _sweep(self) -> None:
        for leftover in self.root.glob(".tmp-*"):
            shutil.rmtree(leftover, ignore_errors=True)


def _try_lock(lock: int) -> bool:
    if sys.platform == "win32":
        return True  # Windows: two installs at once do the work twice; the rename decides.
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
