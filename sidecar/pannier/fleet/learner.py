"""The task that remembers what loads took: from a launcher's report to `learned.toml`.

One task, one load after the other, in the background: a load is ready long before anybody has read
the heads of its files and written the result to the disk. What is learned must be beyond doubt,
since plans are made of it, so a load is passed over when the engine used other devices than were
planned, sizes itself by free memory, is not the build that was asked, or has files that changed.
What a process takes beside its buffers grows with long prompts: later readings of the driver that
show more are learned too.

Must not: hold up a load or a request, or take a failure of its own for more than a lost note.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Protocol, TypeVar

import msgspec

from pannier.devices.inventory import Device
from pannier.engine.locate import probe_llama_server
from pannier.errors import EngineError, GgufError
from pannier.fleet.learned_store import LearnedStore, key_of, parts_of
from pannier.gguf.arguments import is_fixed
from pannier.gguf.files import HeaderCache
from pannier.gguf.learned import Key
from pannier.gguf.measured import (
    Measurement,
    drift,
    has_grown,
    in_words,
    measurement,
    with_overhead,
)
from pannier.gguf.model_files import ModelFiles
from pannier.progress.parse import Report
from pannier.render.argv import Launch

log = logging.getLogger("pannier.fleet")

_T = TypeVar("_T")


class Loaded(msgspec.Struct, frozen=True, kw_only=True):
    """A load that is over and told what it took; `began` is wall time, seconds since 1970."""

    launch: Launch
    files: ModelFiles
    report: Report
    began: float


class Kept(msgspec.Struct, frozen=True, kw_only=True):
    """A load that was remembered, whose process may still come to take more."""

    loaded: Loaded
    devices: tuple[Device, ...]
    key: Key
    architecture: str
    took: Measurement


class Pupil(Protocol):
    """What the learner has to know of its service, and whom it tells."""

    def learns(self) -> bool:
        """Whether the config wants loads to be remembered."""

    def devices_of(self, labels: Sequence[str]) -> tuple[Device, ...] | None:
        """The devices with these labels; None when one is not there any more."""

    async def held_by(self, pid: int) -> Mapping[str, int]:
        """Bytes that a process holds now, by the UUID of the card, as far as that is told."""

    def took(self, instance: str, took: Measurement, notes: tuple[str, ...]) -> None:
        """What an instance took is known; `notes` say where that is not what the rules say."""


class Learner:
    """Owns the store. `post` may be called from the loop at any time; `run` is its task."""

    def __init__(self, store: LearnedStore, headers: HeaderCache | None = None) -> None:
        self.store = store
        self._headers = headers or HeaderCache()
        self._loads: asyncio.Queue[Loaded | Kept] = asyncio.Queue()
        self._kept: dict[int, Kept] = {}
        self._pupil: Pupil | None = None

    def follow(self, pupil: Pupil) -> None:
        """From now on loads are judged by what this one knows."""
        self._pupil = pupil

    def post(self, launch: Launch, files: ModelFiles, report: Report) -> None:
        """A load told what it took."""
        began = time.time() - report.elapsed_s
        self._loads.put_nowait(Loaded(launch=launch, files=files, report=report, began=began))

    def look(self, pids: frozenset[int], held_by: Callable[[int], Mapping[str, int]]) -> None:
        """The driver was read anew, and may tell more of our processes, which are these."""
        if self._pupil is None or not self._pupil.learns():
            return
        self._kept = {pid: kept for pid, kept in self._kept.items() if pid in pids}
        for pid, kept in self._kept.items():
            took = with_overhead(kept.took, _used(kept.devices, held_by(pid)))
            if has_grown(kept.took, took):
                more = msgspec.structs.replace(kept, took=took)
                self._kept[pid] = more
                self._loads.put_nowait(more)

    async def run(self) -> None:
        """Learns until it is cancelled; a write that has begun is finished."""
        while True:
            work = await self._loads.get()
            name = (work.loaded if isinstance(work, Kept) else work).launch.instance
            try:
                if isinstance(work, Kept):
                    await _to_its_end(name, partial(self._write, work))
                else:
                    await self._learn(work)
            except (OSError, EngineError) as error:
                log.warning("%s: not learned: %s", name, error)
            except Exception:
                log.exception("what %s took could not be learned", name)

    async def _learn(self, loaded: Loaded) -> None:
        pupil, name = self._pupil, loaded.launch.instance
        if pupil is None:
            return
        devices = pupil.devices_of(loaded.launch.devices)
        build, _ = await probe_llama_server(_program(loaded.launch))
        took = _judged(loaded, devices, build)
        if isinstance(took, str) or devices is None:
            log.info("%s: its memory is not learned: %s", name, took)
            return
        estimate = loaded.launch.estimate
        notes = drift(estimate, took) if estimate is not None else ()
        for note in notes:
            log.warning("%s: %s", name, note)
        pupil.took(name, took, notes)
        pid = loaded.report.pid
        if pid is not None and any(device.uuid for device in devices):
            took = with_overhead(took, _used(devices, await pupil.held_by(pid)))
        log.info("%s: took %s", name, in_words(took, loaded.launch.devices))
        if pupil.learns():
            kept = await _to_its_end(name, partial(self._remember, loaded, devices, took))
            if kept is not None and pid is not None:
                self._kept[pid] = kept

    def _remember(
        self, loaded: Loaded, devices: tuple[Device, ...], took: Measurement
    ) -> Kept | None:
        """Reads and writes files; in a thread. None where it is passed over."""
        name = loaded.launch.instance
        key = key_of(loaded.launch, loaded.files, devices, took.build)
        if not is_fixed(key.arguments):
            log.info("%s: its memory is not learned: it goes by what is free", name)
        elif any(Path(part).stat().st_mtime > loaded.began for part in parts_of(loaded.files)):
            log.info("%s: its memory is not learned: a file has changed since", name)
        else:
            architecture = self._architecture(loaded.files)
            kept = Kept(
                loaded=loaded, devices=devices, key=key, architecture=architecture, took=took
            )
            self._write(kept)
            return kept
        return None

    def _write(self, kept: Kept) -> None:
        self.store.remember(
            kept.key,
            kept.took,
            architecture=kept.architecture,
            estimate=kept.loaded.launch.estimate,
        )

    def _architecture(self, files: ModelFiles) -> str:
        try:
            header = self._headers.read(files.shards or (files.path,))
        except GgufError:  # the engine reads more than we do
            return ""
        return str(header.metadata.get("general.architecture", ""))


async def _to_its_end(name: str, work: Callable[[], _T]) -> _T:
    """In a thread; what has begun is finished even when the task is cancelled."""
    task = asyncio.create_task(asyncio.to_thread(work), name=f"learn {name}")
    try:
        return await asyncio.shield(task)
    finally:
        await asyncio.gather(task, return_exceptions=True)


def _used(devices: Sequence[Device], held: Mapping[str, int]) -> tuple[int | None, ...]:
    """What the driver tells of each device of a load."""
    return tuple(held.get(device.uuid or "") for device in devices)


def _judged(loaded: Loaded, devices: Sequence[Device] | None, build: str) -> Measurement | str:
    """What the load took, or why that cannot be said."""
    said, memory = loaded.report.engine, loaded.report.memory
    if said is None or memory is None:
        return "llama-server printed no sizes"
    if devices is None:
        return "its devices are not there any more"
    if said.build not in (None, build):
        return f"it is {said.build}, and {build} is installed by now"
    took = measurement(memory, said.devices, devices=len(devices), build=build, at=loaded.began)
    return took or f"it uses {', '.join(said.devices) or 'no device'}, which was not planned"


def _program(launch: Launch) -> str:
    """The llama-server of a launch, which may stand behind its launcher."""
    argv = launch.argv
    return argv[argv.index("--") + 1] if "--" in argv else argv[0]
