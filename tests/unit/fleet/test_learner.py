"""What the learner asks the driver for, and what it makes of the answers that come later."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path

import pytest

from pannier.devices.inventory import Device
from pannier.fleet.learned_store import LearnedStore
from pannier.fleet.learner import Learner
from pannier.gguf.footprint.values import DeviceShare, Footprint, HostShare
from pannier.gguf.learned import Key
from pannier.gguf.measured import GROWTH, Measurement, peak
from pannier.gguf.model_files import ModelFiles
from pannier.progress.parse import Report, Said
from pannier.render.argv import Launch

MIB = 1024 * 1024
PATIENCE_S = 20.0
CARDS = ("GPU-1", "GPU-2")

pytestmark = pytest.mark.timeout(60)


class Service:
    """Devices, and what the driver tells of processes: as a test sets it."""

    def __init__(self, uuids: Sequence[str | None] = CARDS) -> None:
        self.devices = {
            f"CUDA{index}": Device(
                index=index, backend="cuda", label=f"CUDA{index}", name="Card", uuid=uuid,
                total=24 << 30, free=24 << 30,
            )
            for index, uuid in enumerate(uuids)
        }  # fmt: skip
        self.held: dict[int, dict[str, int]] = {}
        self.asked: list[int] = []
        self.wants = True

    def learns(self) -> bool:
        return self.wants

    def devices_of(self, labels: Sequence[str]) -> tuple[Device, ...]:
        return tuple(self.devices[label] for label in labels)

    async def held_by(self, pid: int) -> Mapping[str, int]:
        self.asked.append(pid)
        return self.held.get(pid, {})

    def took(self, instance: str, took: Measurement, notes: tuple[str, ...]) -> None:
        pass


class Lesson:
    """A learner that runs, its service, and a model on two cards."""

    def __init__(self, folder: Path, service: Service) -> None:
        self.service = service
        self.store = LearnedStore(folder / "state")
        self.learner = Learner(self.store)
        self.learner.follow(service)
        self.model = folder / "model.gguf"
        self.model.write_bytes(b"no header that anybody can read")
        self.program = folder / "llama-server"
        self.program.write_text("#!/bin/sh\necho 'version: 11434 (0123abc)'\n")
        self.program.chmod(0o755)

    def post(self, pid: int | None = 7, context: int = 4096) -> None:
        argv = (str(self.program), "-m", str(self.model), "-c", str(context), "-fit", "off")
        launch = Launch(
            instance="a", argv=argv, env={}, ttl_s=0.0, preload=True, load_timeout_s=60,
            file_bytes=1, devices=tuple(self.service.devices),
        )  # fmt: skip
        report = Report(
            v=1, instance="a", launcher=1, pid=pid, port=3, phase="ready",
            memory={"CUDA0": {"weights": 100 * MIB}, "CUDA1": {"weights": 50 * MIB}},
            engine=Said(devices=("CUDA0", "CUDA1")),
        )  # fmt: skip
        self.learner.post(launch, ModelFiles(path=str(self.model)), report)

    async def learned(self, *overheads: int | None) -> Key:
        """Waits until the latest load is remembered with these."""
        found: list[int | None] = []
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE_S):
                while True:
                    loads = LearnedStore(self.store.path.parent).learned.loads
                    found = [each.overhead for each in loads[-1].took.devices] if loads else []
                    if found == list(overheads):
                        return loads[-1].key
                    await asyncio.sleep(0.02)
        raise AssertionError(f"{found} are learned, not {overheads}")

    def look(self, *pids: int) -> None:
        self.learner.look(frozenset(pids), lambda pid: self.service.held.get(pid, {}))


@contextlib.asynccontextmanager
async def lesson(folder: Path, service: Service | None = None) -> AsyncIterator[Lesson]:
    (folder / "state").mkdir()
    made = Lesson(folder, service or Service())
    task = asyncio.create_task(made.learner.run(), name="a learner")
    try:
        yield made
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_the_overhead_of_each_card_is_learned_and_carries_over_to_other_loads(
    tmp_path: Path,
) -> None:
    service = Service()
    service.held[7] = {"GPU-1": 400 * MIB, "GPU-2": 450 * MIB}
    async with lesson(tmp_path, service) as one:
        one.post()
        key = await one.learned(300 * MIB, 400 * MIB)
        assert service.asked == [7]
    guess = Footprint(
        devices=tuple(DeviceShare(weights=9, overhead=512 * MIB, layers=1) for _ in CARDS),
        host=HostShare(),
    )
    again = LearnedStore(tmp_path / "state").learned
    same = again.apply(guess, key)
    assert [each.weights for each in same.devices] == [100 * MIB, 50 * MIB]
    other = again.apply(guess, Key(build="b1", files="o", arguments="-c 1", devices=CARDS))
    assert [each.weights for each in other.devices] == [9, 9]
    for found in (same, other):
        assert [each.overhead for each in found.devices] == [peak(300 * MIB), peak(400 * MIB)]


async def test_a_card_that_is_not_told_stays_not_measured(tmp_path: Path) -> None:
    service = Service()
    service.held[7] = {"GPU-1": 400 * MIB}
    async with lesson(tmp_path, service) as one:
        one.post()
        await one.learned(300 * MIB, None)


@pytest.mark.parametrize("kind", ["no-uuid", "no-pid"])
async def test_the_driver_is_not_asked_where_it_cannot_know(tmp_path: Path, kind: str) -> None:
    service = Service((None, None) if kind == "no-uuid" else CARDS)
    service.held[7] = {"": 400 * MIB, **dict.fromkeys(CARDS, 400 * MIB)}
    async with lesson(tmp_path, service) as one:
        one.post(None if kind == "no-pid" else 7)
        await one.learned(None, None)
        assert service.asked == []


async def test_more_at_a_later_reading_is_learned_and_less_is_not(tmp_path: Path) -> None:
    service = Service()
    service.held[7] = {"GPU-1": 400 * MIB}
    async with lesson(tmp_path, service) as one:
        one.post()
        await one.learned(300 * MIB, None)
        service.held[7] = {"GPU-1": 390 * MIB, "GPU-2": 60 * MIB}
        one.look(7)
        await one.learned(300 * MIB, 10 * MIB)
        service.held[7] = {"GPU-1": 400 * MIB + GROWTH, "GPU-2": 60 * MIB + GROWTH}
        one.look(7)
        service.held[7] = {"GPU-1": 401 * MIB + GROWTH}
        one.look(7)
        await one.learned(301 * MIB + GROWTH, 10 * MIB)
        assert len(one.store.learned.loads) == 1


@pytest.mark.parametrize("kind", ["it-ended", "nothing-shall-be-learned"])
async def test_a_later_reading_says_nothing_of_a_load_that_is_over_or_not_wanted(
    tmp_path: Path, kind: str
) -> None:
    service = Service()
    async with lesson(tmp_path, service) as one:
        one.post()
        first = await one.learned(None, None)
        service.wants = kind == "it-ended"
        one.look(*(() if kind == "it-ended" else (7,)))
        service.held[7] = {"GPU-1": 900 * MIB}  # the number is another process's by now
        one.look(7)
        service.wants, service.held[8] = True, {"GPU-1": 200 * MIB}
        one.post(8, context=2048)  # they are taken one after the other: this one is behind
        await one.learned(100 * MIB, None)
        before = one.store.learned.find(first)
        assert before is not None
        assert [each.overhead for each in before.devices] == [None, None]
