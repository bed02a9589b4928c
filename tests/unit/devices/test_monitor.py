"""The one owner of the inventory: when it reads, what it keeps, and that nobody waits for ever.

The first half runs in virtual time, with a driver and an engine that say what a test wants; the
second through the real nvidia-ml-py and real processes.
"""

import asyncio
import contextlib
import itertools
import sys

import msgspec
import pytest
from tests.nvml import rigs
from tests.nvml.rigs import Code
from tests.unit.devices.test_settle import LOST, cards, listed

from pannier.config.schema import Engine
from pannier.devices.engine_probe import Question, question_of
from pannier.devices.inventory import HostMemory, same_devices
from pannier.devices.join import Ours
from pannier.devices.listing import EngineList
from pannier.devices.monitor import WHILE_CHANGING_S, WHILE_RESIDENT_S, Monitor
from pannier.devices.nvml import Nvml
from pannier.devices.reading import NvmlReading
from pannier.fleet.backoff import LONGEST_S, delay_s

ENV = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
QUESTION = Question(server="/opt/llama-server", env=ENV)
ABSENT = NvmlReading(absent=True, lost="no library")


class Driver:
    """What reads NVML, by a value that a test may change."""

    def __init__(self, reading):
        self.reading = reading
        self.times = []
        self.is_closed = False

    async def read(self):
        self.times.append(asyncio.get_running_loop().time())
        return self.reading

    def close(self):
        self.is_closed = True


class Machine:
    """A monitor and what it looks at: driver, engine, and what runs."""

    def __init__(self, reading, answer, *, pids=(), changing=False):
        self.driver = Driver(reading)
        self.answer = answer
        self.asked = []
        self.told = []
        self.pids = frozenset(pids)
        self.changing = changing
        self.monitor = Monitor(
            self.driver, pause_s=lambda attempt, _: delay_s(attempt, 0.0), ask=self.ask,
            host=self.host, clock=lambda: 5.0,
        )  # fmt: skip

    async def host(self):
        return HostMemory()

    async def ask(self, question):
        self.asked.append(question)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    def ours(self):
        return Ours(pids=self.pids)

    def is_changing(self):
        return self.changing

    def devices_read(self, inventory):
        self.told.append(inventory)

    async def __aenter__(self):
        await self.monitor.__aenter__()
        return self

    async def __aexit__(self, *exc):
        await self.monitor.__aexit__(*exc)
        assert self.driver.is_closed

    async def start(self):
        found = await self.monitor.inventory(QUESTION)
        self.monitor.follow(self)
        await asyncio.sleep(0)
        return found


@pytest.mark.looptime
async def test_the_engine_is_asked_at_the_start_and_not_again_for_what_nvml_tells():
    async with Machine(cards(0, 1), listed(0, 1)) as machine:
        found = await machine.start()
        assert [each.label for each in found.devices] == ["CUDA0", "CUDA1"]
        machine.driver.reading = cards(0, 1, free=2)
        again = await machine.monitor.inventory(QUESTION)
        assert again.devices[0].free < found.devices[0].free
        assert len(machine.asked) == 1


@pytest.mark.looptime
async def test_another_question_is_asked():
    other = Question(server="/opt/llama-server", rpc=("a:1",), env=ENV)
    async with Machine(cards(0), listed(0)) as machine:
        await machine.start()
        await machine.monitor.inventory(other)
        assert machine.asked == [QUESTION, other]


@pytest.mark.looptime
async def test_what_nvml_does_not_tell_is_asked_at_each_reload_and_a_machine_without_gpus_once():
    amd = EngineList(devices=listed(0).devices)
    async with Machine(ABSENT, amd) as machine:
        for _ in range(3):
            await machine.monitor.inventory(QUESTION)
        assert len(machine.asked) == 3
    async with Machine(ABSENT, EngineList(devices=())) as machine:
        for _ in range(3):
            found = await machine.monitor.inventory(QUESTION)
        assert found.engine_backend == "cpu"
        assert len(machine.asked) == 1


@pytest.mark.looptime
@pytest.mark.parametrize(
    ("state", "pause"),
    [
        ({"changing": True}, WHILE_CHANGING_S),
        ({"pids": (7,)}, WHILE_RESIDENT_S),
        ({}, None),
    ],
    ids=["changing", "resident", "idle"],
)
async def test_nvml_is_read_as_often_as_something_can_have_changed(state, pause):
    """A reading wakes a laptop's card, so with nothing in memory nobody reads."""
    async with Machine(cards(0), listed(0), **state) as machine:
        await machine.start()
        machine.driver.times.clear()
        await asyncio.sleep(100.5)
        gaps = [later - one for one, later in itertools.pairwise(machine.driver.times)]
        assert set(gaps) == (set() if pause is None else {pause})
        assert len(machine.driver.times) == (0 if pause is None else 100.5 // pause)
        assert len(machine.asked) == 1


@pytest.mark.looptime
async def test_no_nvml_is_never_asked_by_itself():
    async with Machine(ABSENT, listed(0), changing=True, pids=(7,)) as machine:
        await machine.start()
        machine.driver.times.clear()
        await asyncio.sleep(1000)
        assert machine.driver.times == []


@pytest.mark.looptime
async def test_a_load_that_begins_is_followed_at_once():
    async with Machine(cards(0), listed(0)) as machine:
        await machine.start()
        await asyncio.sleep(500)
        machine.driver.times.clear()
        machine.changing = True
        machine.monitor.wake()
        await asyncio.sleep(WHILE_CHANGING_S * 2.5)
        assert len(machine.driver.times) >= 2


@pytest.mark.looptime
async def test_report_54_a_lost_driver_stops_nothing_and_is_tried_with_growing_pauses():
    """nvidia-container-toolkit#48, nvidia-docker#1730."""
    async with Machine(cards(0, 1), listed(0, 1), pids=(7,)) as machine:
        before = await machine.start()
        machine.driver.reading = LOST
        await asyncio.sleep(WHILE_RESIDENT_S + 0.5)
        assert machine.monitor.value.stale == LOST.lost
        machine.driver.times.clear()
        await asyncio.sleep(1000)
        gaps = [later - one for one, later in itertools.pairwise(machine.driver.times)]
        assert gaps == sorted(gaps)
        assert max(gaps) == LONGEST_S
        assert gaps[0] < 10
        assert all(same_devices(each, before) for each in machine.told)
        machine.driver.reading = cards(0, 1)
        await asyncio.sleep(LONGEST_S)
        assert machine.monitor.value.stale is None
        assert len(machine.asked) == 1


@pytest.mark.looptime
async def test_a_card_that_vanishes_and_returns_is_told_twice_and_the_others_keep_their_names():
    async with Machine(cards(0, 1), listed(0, 1), pids=(7,)) as machine:
        before = await machine.start()
        machine.driver.reading, machine.answer = cards(1), listed(1)
        await asyncio.sleep(WHILE_RESIDENT_S + 0.5)
        (left,) = machine.told[-1].devices
        assert (left.uuid, left.label, left.index) == ("GPU-10000000", "CUDA1", 1)
        machine.driver.reading, machine.answer = cards(0, 1), listed(0, 1)
        await asyncio.sleep(WHILE_RESIDENT_S + 0.5)
        assert same_devices(machine.told[-1], before)
        assert len(machine.asked) == 3


@pytest.mark.looptime
async def test_memory_that_moves_is_told_and_is_no_other_inventory():
    async with Machine(cards(0), listed(0), changing=True) as machine:
        before = await machine.start()
        for free in (15, 10, 5):
            machine.driver.reading = cards(0, free=free)
            await asyncio.sleep(WHILE_CHANGING_S)
        assert len({each.devices[0].free for each in machine.told}) >= 3
        assert all(same_devices(each, before) for each in machine.told)


@pytest.mark.looptime
async def test_one_broken_answer_never_loses_what_runs():
    async with Machine(cards(0, 1), listed(0, 1), pids=(7,)) as machine:
        before = await machine.start()
        machine.answer = EngineList(reason="it hung")
        other = Question(server="/opt/other", env=ENV)
        kept = await machine.monitor.inventory(other)
        assert same_devices(kept, before)
        assert kept.stale
        await asyncio.sleep(100)
        assert len(machine.asked) > 3
        machine.answer = listed(0, 1)
        await asyncio.sleep(LONGEST_S)
        assert machine.monitor.value.stale is None
        assert machine.asked[-1] == other


@pytest.mark.looptime
async def test_an_engine_that_loses_cuda_with_one_of_its_cards_is_asked_until_it_is_back():
    async with Machine(cards(0, 1), listed(0, 1), pids=(7,)) as machine:
        before = await machine.start()
        machine.driver.reading, machine.answer = cards(1), EngineList(devices=())
        await asyncio.sleep(WHILE_RESIDENT_S + 0.5)
        assert machine.monitor.value.stale
        assert same_devices(machine.monitor.value, before)
        machine.answer = listed(1)
        await asyncio.sleep(LONGEST_S)
        assert [each.label for each in machine.monitor.value.devices] == ["CUDA1"]
        assert machine.monitor.value.stale is None


@pytest.mark.looptime
async def test_another_engine_without_cuda_is_believed():
    async with Machine(cards(0, 1), listed(0, 1)) as machine:
        await machine.start()
        machine.answer = EngineList(devices=())
        found = await machine.monitor.inventory(Question(server="/opt/cpu", env=ENV))
        assert (found.engine_backend, found.stale) == ("cpu", None)


@pytest.mark.looptime
async def test_an_engine_that_is_silent_at_the_start_is_asked_until_it_answers():
    async with Machine(cards(0), EngineList(reason="the driver is not loaded yet")) as machine:
        found = await machine.start()
        assert found.engine_backend == "unknown"
        machine.answer = listed(0)
        await asyncio.sleep(10)
        assert machine.monitor.value.engine_backend == "cuda"
        assert not same_devices(machine.told[-1], found)


@pytest.mark.looptime
async def test_a_defect_while_reading_keeps_the_last_inventory_and_answers_who_waits(caplog):
    async with Machine(cards(0), listed(0)) as machine:
        before = await machine.start()
        machine.answer = RuntimeError("a defect")
        kept = await machine.monitor.inventory(Question(server="/opt/other", env=ENV))
        assert kept == before
        assert "a defect" in caplog.text
        machine.answer = listed(0)
        assert await machine.monitor.inventory(QUESTION)


@pytest.mark.looptime
async def test_many_that_ask_at_once_are_all_answered_and_one_that_leaves_harms_nobody():
    async with Machine(cards(0), listed(0)) as machine:
        asking = [asyncio.create_task(machine.monitor.inventory(QUESTION)) for _ in range(5)]
        await asyncio.sleep(0)
        asking[2].cancel()
        answers = await asyncio.gather(*asking, return_exceptions=True)
        assert isinstance(answers[2], asyncio.CancelledError)
        assert all(
            same_devices(each, machine.monitor.value) for each in answers if each is not answers[2]
        )


@pytest.mark.looptime
async def test_who_waits_at_the_end_does_not_wait_for_ever():
    started = asyncio.Event()

    async def never(question):
        started.set()
        await asyncio.Event().wait()

    machine = Machine(cards(0), listed(0))
    async with Monitor(machine.driver, pause_s=delay_s, ask=never, host=machine.host) as monitor:
        waiting = [asyncio.create_task(monitor.inventory(QUESTION)) for _ in range(2)]
        await started.wait()
    for each in waiting:
        with contextlib.suppress(asyncio.CancelledError):
            await each


# --- through the real nvidia-ml-py and real processes ---------------------------------------------

ENGINE = """#!{python}
import pathlib
print(pathlib.Path({path!r}).read_text())
"""


class RealMachine:
    """A machine made of a rig and a program that lists what a file says."""

    def __init__(self, folder, stand_in):
        self.answer = folder / "answer"
        self.server = folder / "llama-server"
        self.server.write_text(ENGINE.format(python=sys.executable, path=str(self.answer)))
        self.server.chmod(0o755)
        self.stand_in = stand_in
        self.told = []

    def put(self, rig):
        """This rig, and an engine that lists those of its cards that can be used, by bus."""
        able = [card for card in rig.cards if not card.errors]
        self.answer.write_text(
            "Available devices:\n"
            + "".join(
                f"  CUDA{at}: {card.name} ({(card.total >> 20) * 98 // 100} MiB, 1 MiB free)\n"
                for at, card in enumerate(able)
            )
        )
        self.stand_in.put(rig)

    def question(self):
        return question_of(str(self.server), Engine(), {})

    def ours(self):
        return Ours()

    def is_changing(self):
        return False

    def devices_read(self, inventory):
        self.told.append(inventory)


@pytest.fixture
def machine(tmp_path, nvml_here):
    return RealMachine(tmp_path, nvml_here)


def fast(attempt, jitter):
    return 0.05


async def until(monitor, condition):
    async with asyncio.timeout(20):
        while not condition(monitor.value):
            monitor.wake()
            await asyncio.sleep(0.02)


@pytest.mark.parametrize(
    "rig",
    [rigs.ONE, rigs.TWO_24, rigs.TWENTY_FOUR_AND_12, rigs.FOUR_UNLIKE, rigs.EIGHT_80_ONE_BUSY,
     rigs.FORTY_EIGHT_AND_16, rigs.TWELVE_AND_3],
    ids=["1", "24+24", "24+12", "12+24+24+24", "8x80", "48+16", "12+3"],
)  # fmt: skip
async def test_every_card_of_a_rig_is_known_by_both(machine, rig):
    machine.put(rig)
    async with Monitor(Nvml(), pause_s=fast) as monitor:
        found = await monitor.inventory(machine.question())
    assert [each.uuid for each in found.devices] == [card.uuid for card in rig.cards]
    assert [each.pci for each in found.devices] == sorted(each.pci for each in found.devices)
    assert found.unused == ()
    for device, card in zip(found.devices, rig.cards, strict=True):
        assert device.free == min(card.free, device.total)


async def test_a_card_that_somebody_else_fills_has_no_room(machine):
    machine.put(rigs.EIGHT_80_ONE_BUSY)
    async with Monitor(Nvml(), pause_s=fast) as monitor:
        found = await monitor.inventory(machine.question())
    room = [each.capacity / each.total for each in found.devices]
    assert min(room) == room[5] < 0.05
    assert sorted(room)[1] > 0.99


async def test_report_3_a_rig_that_cuda_counts_by_speed_is_known_all_the_same(machine):
    rig = rigs.TWENTY_FOUR_AND_12
    machine.put(rigs.Rig(cards=rig.cards[::-1]))
    machine.stand_in.put(rig)
    async with Monitor(Nvml(), pause_s=fast) as monitor:
        found = await monitor.inventory(machine.question())
    assert [each.uuid for each in found.devices] == [card.uuid for card in rig.cards]
    assert [each.label for each in found.devices] == ["CUDA1", "CUDA0"]


async def test_the_instances_of_a_card_are_devices(machine):
    machine.put(rigs.MIG)
    whole, parts = rigs.MIG.cards[1], [part for part in rigs.MIG.cards[0].instances if part]
    listing = f"Available devices:\n  CUDA0: {parts[0].name} (40000 MiB, 1 MiB free)\n"
    machine.answer.write_text(listing)
    async with Monitor(Nvml(), pause_s=fast) as monitor:
        found = await monitor.inventory(machine.question())
    assert [each.uuid for each in found.devices] == [*(part.uuid for part in parts), whole.uuid]
    assert [each.parent is not None for each in found.devices] == [True, True, False]


@pytest.mark.parametrize("rig", [rigs.UNIFIED, rigs.UNIFIED_AS_RAM], ids=["GB10", "as RAM"])
async def test_report_53_a_chip_that_shares_memory_is_read_from_the_host(machine, rig):
    machine.stand_in.put(rig)
    (chip,) = rig.cards
    machine.answer.write_text(
        f"Available devices:\n  CUDA0: {chip.name} (122571 MiB, 100000 MiB free)\n"
    )
    ram = HostMemory(total=rig.ram, available=rig.ram // 2)

    async def host():
        return ram

    async with Monitor(Nvml(lambda: ram), pause_s=fast, host=host) as monitor:
        (found,) = (await monitor.inventory(machine.question())).devices
    assert found.unified
    assert found.uuid == chip.uuid
    assert found.free == ram.available
    assert found.used_by_others == found.total - found.free


async def test_a_lost_card_leaves_the_other_alone_and_is_back_when_it_is_back(machine):
    machine.put(rigs.TWO_24)
    async with Monitor(Nvml(), pause_s=fast) as monitor:
        before = await monitor.inventory(machine.question())
        machine.put(rigs.ONE_LOST)
        one = await monitor.inventory(machine.question())
        assert [each.label for each in one.devices] == ["CUDA0"]
        assert any("lost" in note.lower() for note in one.notes)
        machine.put(rigs.TWO_24)
        assert same_devices(await monitor.inventory(machine.question()), before)


async def test_report_54_an_unknown_error_is_survived_and_left_behind(machine):
    machine.put(rigs.TWO_24)
    async with Monitor(Nvml(), pause_s=fast) as monitor:
        before = await monitor.inventory(machine.question())
        monitor.follow(machine)
        machine.stand_in.put(rigs.TWO_24.failing(Code.UNKNOWN, "nvmlDeviceGetCount_v2"))
        lost = await monitor.inventory(machine.question())
        assert lost.stale
        assert lost.devices == before.devices
        machine.stand_in.put(rigs.TWO_24)
        await until(monitor, lambda value: value.stale is None)
        assert all(same_devices(each, before) for each in machine.told)


async def test_a_driver_that_hangs_does_not_hold_up_a_reload(machine):
    machine.put(rigs.ONE)

    class Impatient(Nvml):
        async def read(self, seconds=0.2):
            return await super().read(seconds)

    async with Monitor(Impatient(), pause_s=fast) as monitor:
        before = await monitor.inventory(machine.question())
        machine.stand_in.put(rigs.ONE.hanging(600_000, "nvmlDeviceGetCount_v2"))
        async with asyncio.timeout(15):
            kept = await monitor.inventory(machine.question())
        assert kept.devices == before.devices
        assert "hangs" in (kept.stale or "")
        machine.stand_in.put(rigs.ONE)
        await until(monitor, lambda value: value.stale is None)


HELD = 5 * rigs.GIB


def shared(others=0, pid=7, **more):
    """A card on which a process holds 5 GiB and others the rest."""
    (one,) = rigs.ONE.cards
    return rigs.ONE.with_card(
        0,
        used=one.used + HELD + others,
        free=one.free - HELD - others,
        compute=(rigs.Process(pid=pid, bytes=HELD), rigs.Process(pid=8, bytes=others)),
        **more,
    )


def denied(others):
    return msgspec.structs.replace(shared(others), errors=rigs.PROCESSES_DENIED.errors)


@pytest.mark.parametrize(
    ("rig", "exact"),
    [
        (shared(3 * rigs.GIB), True),
        (shared(3 * rigs.GIB, pid=1_000_007), False),
        (shared(3 * rigs.GIB).with_card(0, compute=()), False),
        (shared(3 * rigs.GIB).with_card(0, compute=(rigs.Process(pid=7),)), False),
        (denied(3 * rigs.GIB), False),
    ],
    ids=["our-ids", "foreign-ids", "no-ids", "ids-without-bytes", "not-allowed"],
)
async def test_our_own_models_never_count_as_others(machine, rig, exact):
    """In a container or in WSL the driver does not say who holds what; we know what we hold."""
    machine.put(rigs.ONE)
    machine.stand_in.put(rig)
    planned = HELD - 256 * rigs.MIB
    uuid = rigs.ONE.cards[0].uuid
    machine.ours = lambda: Ours(pids=frozenset({7}), expected={uuid: planned})
    async with Monitor(Nvml(), pause_s=fast) as monitor:
        monitor.follow(machine)
        found = await monitor.inventory(machine.question())
        (device,) = found.devices
        assert device.used_by_us == (HELD if exact else planned)
        assert device.used_by_us + device.used_by_others + device.free == device.total
        most = 3 * rigs.GIB + 16 * rigs.MIB + HELD - device.used_by_us
        assert 3 * rigs.GIB <= device.used_by_others < most
        assert any("which processes hold the memory" in note for note in found.notes) != exact
        assert (await monitor.held_by(7) == {uuid: HELD}) == exact
        assert exact or await monitor.held_by(7) == {}


async def test_what_a_process_holds_is_of_this_moment_and_leaves_the_inventory_alone(machine):
    machine.put(rigs.ONE)
    async with Monitor(Nvml(), pause_s=fast) as monitor:
        before = await monitor.inventory(machine.question())
        assert await monitor.held_by(7) == {}
        machine.stand_in.put(shared())
        assert await monitor.held_by(7) == {rigs.ONE.cards[0].uuid: HELD}
        assert monitor.value is before


async def test_a_process_on_an_instance_of_a_card_is_found_there(machine):
    machine.put(rigs.MIG)
    whole = rigs.MIG.cards[0]
    parts = tuple(
        part and msgspec.structs.replace(part, compute=(rigs.Process(pid=7, bytes=at + 1),))
        for at, part in enumerate(whole.instances)
    )
    machine.stand_in.put(rigs.MIG.with_card(0, instances=parts))
    async with Monitor(Nvml(), pause_s=fast) as monitor:
        assert await monitor.held_by(7) == {parts[0].uuid: 1, parts[2].uuid: 3}


@pytest.mark.parametrize("kind", ["no-driver", "hangs", "lost"])
async def test_a_driver_that_says_nothing_tells_nothing_of_a_process_and_holds_up_nobody(
    machine, kind
):
    class Impatient(Nvml):
        async def read(self, seconds=0.2):
            return await super().read(seconds)

    machine.stand_in.put(
        {
            "no-driver": shared().failing(
                Code.DRIVER_NOT_LOADED, "nvmlInitWithFlags", "nvmlInit_v2"
            ),
            "hangs": shared().hanging(600_000, "nvmlDeviceGetCount_v2"),
            "lost": shared(errors={"nvmlDeviceGetHandleByIndex_v2": int(Code.GPU_IS_LOST)}),
        }[kind]
    )
    async with Monitor(Impatient(), pause_s=fast) as monitor, asyncio.timeout(15):
        assert await monitor.held_by(7) == {}
        machine.stand_in.put(rigs.ONE)


async def test_a_driver_that_is_unloaded_is_lost_and_one_that_never_was_is_no_fault(machine):
    machine.put(rigs.ONE)
    async with Monitor(Nvml(), pause_s=fast) as monitor:
        await monitor.inventory(machine.question())
        gone = rigs.ONE.failing(Code.DRIVER_NOT_LOADED, "nvmlInit_v2", "nvmlDeviceGetCount_v2")
        machine.stand_in.put(gone)
        assert (await monitor.inventory(machine.question())).stale
    async with Monitor(Nvml(), pause_s=fast) as monitor:
        found = await monitor.inventory(machine.question())
        assert found.stale is None
        assert found.notes == ()
