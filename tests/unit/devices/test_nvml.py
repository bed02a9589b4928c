"""NVML through the real nvidia-ml-py and a library whose machine is what a test says."""

import asyncio
import json
import re
import subprocess
import sys
import threading
from pathlib import Path

import msgspec
import pynvml
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.nvml import rigs
from tests.nvml.rigs import GIB, MIB, RIGS, Code, Process
from tests.nvml.stand_in import NAME, PATIENCE

import pannier
from pannier.devices.inventory import HostMemory
from pannier.devices.nvml import Nvml
from pannier.devices.nvml_read import NvmlSession
from pannier.devices.nvml_words import normal_pci, shares_memory, words
from pannier.devices.reading import NvmlReading

RAM = HostMemory(total=128 * GIB, available=100 * GIB)
HANDLE = "nvmlDeviceGetHandleByIndex_v2"
COUNT = "nvmlDeviceGetCount_v2"
COMPUTE, GRAPHICS = (
    "nvmlDeviceGetComputeRunningProcesses_v3",
    "nvmlDeviceGetGraphicsRunningProcesses_v3",
)
HANG_MS = 600_000
"""Longer than any test may last: what does not wait for it is proved not to."""


def host_of(rig: rigs.Rig) -> HostMemory:
    return HostMemory(total=rig.ram, available=rig.ram // 2)


def read(stand_in, rig: rigs.Rig) -> NvmlReading:
    """One reading in this thread, by a session of its own."""
    stand_in.put(rig)
    session = NvmlSession()
    try:
        return session.read(host_of(rig))
    finally:
        stand_in.put(rigs.NONE)
        session.shut_down()


def workers() -> int:
    return sum(thread.name == "nvml" for thread in threading.enumerate())


# --- machines -------------------------------------------------------------------------------------

MACHINES = {
    "no card": [],
    "one": [("NVIDIA GeForce RTX 4090", 24564, 24070)],
    "24+24": [("NVIDIA GeForce RTX 4090", 24564, 24070)] * 2,
    "24+12": [
        ("NVIDIA GeForce RTX 4090", 24564, 24070),
        ("NVIDIA GeForce RTX 3060", 12288, 11903),
    ],
    "12+24+24+24": [("NVIDIA GeForce RTX 3060", 12288, 11903)]
    + [("NVIDIA GeForce RTX 4090", 24564, 24070)] * 3,
    "8x80, one busy": [
        ("NVIDIA A100-SXM4-80GB", 81920, 2631 if i == 5 else 81187) for i in range(8)
    ],
    "48+16": [("NVIDIA RTX A6000", 49140, 48587), ("NVIDIA GeForce RTX 4060 Ti", 16380, 16100)],
    "12+3": [
        ("NVIDIA GeForce RTX 3060", 12288, 11903),
        ("NVIDIA GeForce GTX 1060 3GB", 3072, 3007),
    ],
    "MIG": [
        ("NVIDIA A100-SXM4-80GB MIG 3g.40gb", 40192, 40179),
        ("NVIDIA A100-SXM4-80GB MIG 2g.20gb", 19968, 19955),
        ("NVIDIA A100-SXM4-80GB", 81920, 81187),
    ],
}


@pytest.mark.parametrize("name", MACHINES)
def test_every_card_is_read_with_its_memory(nvml_here, name):
    reading = read(nvml_here, RIGS[name])
    found = [(card.name, card.total // MIB, card.free // MIB) for card in reading.cards]
    assert found == MACHINES[name]
    assert (reading.driver, reading.lost, reading.problems) == ("580.95.05", None, ())
    assert all(card.problems == () and card.compute_capable for card in reading.cards)
    assert not any(card.unified for card in reading.cards)


def test_cards_stand_in_nvmls_order_with_their_uuids_and_bus_ids(nvml_here):
    reading = read(nvml_here, rigs.FOUR_UNLIKE)
    assert [card.index for card in reading.cards] == [0, 1, 2, 3]
    assert [card.pci for card in reading.cards] == [
        "0000:0a:00.0", "0000:21:00.0", "0000:41:00.0", "0000:c1:00.0",
    ]  # fmt: skip
    assert [card.uuid for card in reading.cards] == [each.uuid for each in rigs.FOUR_UNLIKE.cards]


def test_what_the_driver_keeps_is_neither_used_nor_free(nvml_here):
    (card,) = read(nvml_here, rigs.ONE).cards
    assert (card.used // MIB, (card.total - card.used - card.free) // MIB) == (10, 484)


def test_an_old_driver_is_asked_by_its_old_functions(nvml_here):
    rig = rigs.ONE.with_card(0, compute=(Process(pid=7, bytes=5),))
    functions = ("nvmlDeviceGetMemoryInfo_v2", COMPUTE, GRAPHICS)
    (card,) = read(nvml_here, rig.failing(Code.FUNCTION_NOT_FOUND, *functions)).cards
    assert (card.total // MIB, card.used // MIB, card.free // MIB) == (24564, 494, 24070)
    assert [(each.pid, each.bytes) for each in card.processes] == [(7, 5)]
    assert card.problems == ()


# --- MIG ------------------------------------------------------------------------------------------


def test_instances_stand_in_the_place_of_their_card(nvml_here):
    first, second, whole = read(nvml_here, rigs.MIG).cards
    assert [card.index for card in (first, second, whole)] == [0, 0, 1]
    assert first.uuid.startswith("MIG-")
    assert second.uuid.startswith("MIG-")
    assert first.parent == second.parent == rigs.MIG.cards[0].uuid
    assert (first.pci, whole.pci, whole.parent) == ("0000:01:00.0", "0000:02:00.0", None)


def test_processes_of_an_instance_are_its_own(nvml_here):
    part = rigs.instance(9, 40192, "3g.40gb")
    part = msgspec.structs.replace(part, compute=(Process(pid=3, bytes=MIB),))
    rig = rigs.MIG.with_card(0, instances=(*rigs.MIG.cards[0].instances, part))
    assert [card.processes and card.processes[0].pid for card in read(nvml_here, rig).cards] == [
        (), (), 3, (),
    ]  # fmt: skip


def test_what_the_card_of_an_instance_does_not_tell_is_a_problem_of_the_instance(nvml_here):
    rig = rigs.MIG.with_card(0, errors={"nvmlDeviceGetPciInfo_v3": int(Code.NO_DATA)})
    first, second, whole = read(nvml_here, rig).cards
    assert first.problems == second.problems
    assert "its PCI bus id could not be read" in first.problems[0]
    assert (first.pci, whole.problems) == (None, ())


def test_a_card_in_mig_mode_without_instances_cannot_be_used(nvml_here):
    card, whole = read(nvml_here, rigs.MIG.with_card(0, instances=())).cards
    assert (card.compute_capable, card.parent, whole.compute_capable) == (False, None, True)
    assert "no instance" in card.problems[0]


def test_a_memory_that_an_instance_does_not_tell_is_not_the_hosts(nvml_here):
    part = rigs.instance(9, 0, "1g.10gb")
    part = msgspec.structs.replace(part, total=None)
    (card, _) = read(nvml_here, rigs.MIG.with_card(0, instances=(part,))).cards
    assert (card.unified, card.total) == (False, None)
    assert "its memory could not be read" in card.problems[0]


def test_an_instance_that_fails_is_named_and_the_others_stay(nvml_here):
    bad = msgspec.structs.replace(
        rigs.instance(9, 100, "1g.10gb"), errors={"nvmlDeviceGetUUID": int(Code.UNKNOWN)}
    )
    rig = rigs.MIG.with_card(0, instances=(bad, rigs.instance(2, 100, "1g.10gb")))
    one, two, whole = read(nvml_here, rig).cards
    assert one.uuid is None
    assert "its UUID could not be read" in one.problems[0]
    assert (two.problems, whole.problems) == ((), ())


# --- memory that is the host's (reports 53, 71, 124) ----------------------------------------------


@pytest.mark.parametrize("name", ["unified", "unified as RAM"])
def test_a_chip_without_memory_of_its_own_has_the_hosts(nvml_here, name):
    rig = RIGS[name]
    (card,) = read(nvml_here, rig).cards
    assert (card.unified, card.total, card.free) == (True, rig.ram, rig.ram // 2)
    assert (card.problems, card.compute_capable, card.pci) == ((), True, "000f:01:00.0")


def test_a_chip_that_is_known_by_name_is_unified_whatever_its_driver_says(nvml_here):
    rig = rigs.UNIFIED.with_card(0, total=64 * GIB, used=0, free=64 * GIB)
    (card,) = read(nvml_here, rig).cards
    assert (card.unified, card.total) == (True, rig.ram)


def test_a_chip_that_nobody_knows_is_unified_when_its_memory_is_not_supported(nvml_here):
    rig = rigs.UNIFIED.with_card(0, name="NVIDIA N1X")
    (card,) = read(nvml_here, rig).cards
    assert (card.unified, card.total, card.problems) == (True, rig.ram, ())


def test_shared_memory_of_which_nothing_is_known_is_a_problem(nvml_here):
    (card,) = read(nvml_here, msgspec.structs.replace(rigs.UNIFIED, ram=0)).cards
    assert (card.unified, card.total, card.free) == (True, None, None)
    assert "nothing is known" in card.problems[0]


def test_a_card_that_says_zero_bytes_has_told_nothing(nvml_here):
    (card,) = read(nvml_here, rigs.ONE.with_card(0, total=0, free=0, used=0)).cards
    assert (card.unified, card.total) == (False, None)
    assert "0 bytes" in card.problems[0]


@pytest.mark.parametrize(
    ("name", "total", "ram", "is_shared"),
    [
        ("NVIDIA GeForce RTX 4090", 24564 * MIB, 24_000 * MIB, False),
        ("NVIDIA RTX A6000", 49140 * MIB, 48_200 * MIB, False),
        ("NVIDIA GeForce RTX 4090", 24564 * MIB, 0, False),
        ("NVIDIA GeForce RTX 4090", None, 0, False),
        ("NVIDIA Thor", 100 * GIB, 122 * GIB, True),
        ("Orin (nvgpu)", None, 0, True),
        ("NVIDIA X", 122 * GIB + MIB, 122 * GIB, True),
        ("NVIDIA Torino", 10 * GIB, 122 * GIB, False),
    ],
)
def test_memory_is_shared_by_the_kind_of_chip_and_not_by_its_size(name, total, ram, is_shared):
    assert shares_memory(name, total, ram, refused=False) is is_shared


# --- every field may fail alone -------------------------------------------------------------------

FIELDS = {
    "nvmlDeviceGetName": ({"name": ""}, "its name"),
    "nvmlDeviceGetUUID": ({"uuid": None}, "its UUID"),
    "nvmlDeviceGetPciInfo_v3": ({"pci": None}, "its PCI bus id"),
    "nvmlDeviceGetMemoryInfo": ({"total": None, "used": None, "free": None}, "its memory"),
    "nvmlDeviceGetCudaComputeCapability": ({}, "its compute capability"),
    "nvmlDeviceGetComputeMode": ({}, "its compute mode"),
    "nvmlDeviceGetMigMode": ({}, "its MIG mode"),
    COMPUTE: ({"processes": None}, "its processes"),
    GRAPHICS: ({"processes": None}, "its processes"),
}


@pytest.mark.parametrize("code", [Code.NO_PERMISSION, Code.TIMEOUT, Code.NO_DATA, Code.UNKNOWN])
@pytest.mark.parametrize("function", FIELDS)
def test_a_field_that_fails_is_named_and_the_rest_stays(nvml_here, function, code):
    changed, named = FIELDS[function]
    functions = (function, "nvmlDeviceGetMemoryInfo_v2") if "Memory" in function else (function,)
    errors = dict.fromkeys(functions, int(code))
    whole, other = read(nvml_here, rigs.TWO_24).cards
    reading = read(nvml_here, rigs.TWO_24.with_card(1, errors=errors))
    (problem,) = reading.cards[1].problems
    assert problem.startswith(f"{named} could not be read: ")
    expected = msgspec.structs.replace(other, problems=(problem,), **changed)
    assert reading.cards == (whole, expected)
    assert reading.lost is None


def test_a_driver_that_does_not_tell_its_version_loses_nothing_else(nvml_here):
    reading = read(nvml_here, rigs.ONE.failing(Code.NO_DATA, "nvmlSystemGetDriverVersion"))
    assert (reading.driver, len(reading.cards), reading.lost) == (None, 1, None)
    assert "the driver's version" in reading.problems[0]


@pytest.mark.parametrize("changes", [{"capability": None}, {"compute_mode": 2}])
def test_a_card_on_which_cuda_may_not_run_is_shown_and_says_why(nvml_here, changes):
    (card,) = read(nvml_here, rigs.ONE.with_card(0, **changes)).cards
    assert (card.compute_capable, card.total // MIB) == (False, 24564)
    assert "CUDA does not run" in card.problems[0] or "Prohibited" in card.problems[0]


def test_a_name_that_is_no_text_is_a_problem_of_the_name_alone(nvml_here):
    nvml_here.put(rigs.ONE)
    nvml_here.path.write_bytes(nvml_here.path.read_bytes().replace(b"RTX", b"\xff\xfe"))
    session = NvmlSession()
    (card,) = session.read(RAM).cards
    session.shut_down()
    assert (card.name, card.total // MIB) == ("", 24564)
    assert "its name could not be read" in card.problems[0]


@pytest.mark.parametrize("name", ['a "b" \\ {c}, [d]: e/', "Größe Ⅳ", "x" * 95])
def test_a_name_may_be_any_text(nvml_here, name):
    (card,) = read(nvml_here, rigs.ONE.with_card(0, name=name)).cards
    assert (card.name, card.problems) == (name, ())


def test_a_bus_id_that_is_none_is_a_problem(nvml_here):
    (card,) = read(nvml_here, rigs.ONE.with_card(0, pci="card one")).cards
    assert card.pci is None
    assert "'card one' is no bus id" in card.problems[0]


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("00000000:01:00.0", "0000:01:00.0"),
        ("0000:C1:00.0", "0000:c1:00.0"),
        ("0000000F:01:00.0", "000f:01:00.0"),
        ("00010000:AF:1f.7", "10000:af:1f.7"),
        ("03:00.0", "0000:03:00.0"),
        ("0000:01:00", None),
        ("", None),
        ("0000:01:00.0\n", "0000:01:00.0"),
    ],
)
def test_bus_ids_have_one_spelling(text, normal):
    assert normal_pci(text) == normal


# --- processes ------------------------------------------------------------------------------------


def test_a_process_in_both_lists_is_one_process_with_its_bytes_once(nvml_here):
    rig = rigs.ONE.with_card(
        0,
        compute=(Process(pid=1, bytes=700), Process(pid=2), Process(pid=5)),
        graphics=(Process(pid=3, bytes=30), Process(pid=1, bytes=700), Process(pid=2, bytes=4)),
    )
    (card,) = read(nvml_here, rig).cards
    found = [(each.pid, each.bytes, each.kind) for each in card.processes]
    assert found == [
        (1, 700, "compute"), (2, 4, "compute"), (5, None, "compute"), (3, 30, "graphics"),
    ]  # fmt: skip


def test_many_processes_are_all_read(nvml_here):
    many = tuple(Process(pid=1000 + i, bytes=i) for i in range(300))
    (card,) = read(nvml_here, rigs.ONE.with_card(0, compute=many)).cards
    assert [(each.pid, each.bytes) for each in card.processes] == [(p.pid, p.bytes) for p in many]


def test_processes_that_may_not_be_seen_are_not_none_at_all(nvml_here):
    reading = read(nvml_here, rigs.PROCESSES_DENIED)
    assert [card.processes for card in reading.cards] == [None, None]
    assert reading.cards[0].problems == ("its processes could not be read: no permission",)


def test_a_card_without_graphics_has_no_graphics_processes(nvml_here):
    (card,) = read(nvml_here, rigs.ONE.with_card(0, graphics=None)).cards
    assert (card.processes, card.problems) == ((), ())


# --- loss and return (report 54) ------------------------------------------------------------------


@pytest.mark.parametrize("code", [Code.GPU_IS_LOST, Code.RESET_REQUIRED])
@pytest.mark.parametrize("function", [HANDLE, "nvmlDeviceGetName", "nvmlDeviceGetMemoryInfo_v2"])
def test_a_lost_card_stays_in_the_list_with_one_problem(nvml_here, function, code):
    rig = rigs.TWO_24.with_card(1, errors={function: int(code)})
    fine, lost = read(nvml_here, rig).cards
    assert (fine.compute_capable, fine.problems) == (True, ())
    assert (lost.index, lost.compute_capable, lost.problems) == (1, False, (words(code, ""),))


def test_a_lost_card_is_back_as_soon_as_it_is_back(nvml_here):
    expected = read(nvml_here, rigs.TWO_24)
    session = NvmlSession()
    nvml_here.put(rigs.ONE_LOST)
    assert not session.read(RAM).cards[1].compute_capable
    nvml_here.put(rigs.TWO_24)
    assert session.read(RAM) == expected
    session.shut_down()


def test_a_card_that_may_not_be_used_says_what_to_do(nvml_here):
    rig = rigs.TWO_24.with_card(0, errors={HANDLE: int(Code.NO_PERMISSION)})
    denied, fine = read(nvml_here, rig).cards
    assert (denied.compute_capable, fine.compute_capable) == (False, True)
    assert "device file" in denied.problems[1]


@pytest.mark.parametrize("code", [Code.UNKNOWN, Code.DRIVER_NOT_LOADED, Code.VERSION_MISMATCH])
@pytest.mark.parametrize("function", ["nvmlInitWithFlags", COUNT, HANDLE])
def test_54_nvml_that_fails_as_a_whole_is_lost_and_comes_back_by_itself(nvml_here, function, code):
    session = NvmlSession()
    nvml_here.put(rigs.TWO_24)
    before = session.read(RAM)
    nvml_here.put(rigs.TWO_24.failing(Code.UNKNOWN, COUNT))
    session.read(RAM)  # so that NVML begins anew
    nvml_here.put(rigs.TWO_24.failing(code, function))
    for _ in range(2):
        gone = session.read(RAM)
        assert (gone.cards, gone.absent) == ((), False)
        assert words(code, "") in gone.lost
    nvml_here.put(rigs.TWO_24)
    assert session.read(RAM) == before
    session.shut_down()


def test_nvml_comes_back_although_its_end_failed_in_between(nvml_here):
    session = NvmlSession()
    nvml_here.put(rigs.ONE.failing(Code.UNKNOWN, COUNT, "nvmlShutdown"))
    for _ in range(3):
        assert session.read(RAM).lost
    nvml_here.put(rigs.ONE)
    session.shut_down()
    assert len(session.read(RAM).cards) == 1
    session.shut_down()


def test_one_card_of_several_with_an_unknown_error_is_not_the_loss_of_nvml(nvml_here):
    rig = rigs.TWO_24.with_card(0, errors={HANDLE: int(Code.UNKNOWN)})
    reading = read(nvml_here, rig)
    assert reading.lost is None
    assert [card.compute_capable for card in reading.cards] == [False, True]


def test_cards_that_all_fail_in_one_field_are_not_the_loss_of_nvml(nvml_here):
    rig = rigs.TWO_24
    for index in range(2):
        rig = rig.with_card(index, errors={COMPUTE: int(Code.UNKNOWN)})
    reading = read(nvml_here, rig)
    assert reading.lost is None
    assert [card.free // MIB for card in reading.cards] == [24070, 24070]


def test_a_machine_without_a_driver_is_no_fault_until_it_had_one(nvml_here):
    session = NvmlSession()
    bare = rigs.ONE.failing(Code.DRIVER_NOT_LOADED, "nvmlInitWithFlags", COUNT)
    nvml_here.put(bare)
    never = session.read(RAM)
    assert (never.absent, never.lost) == (True, "the NVIDIA driver is not loaded")
    nvml_here.put(rigs.ONE)
    assert not session.read(RAM).lost
    nvml_here.put(bare)
    assert session.read(RAM).absent is False
    session.shut_down()


def test_a_code_that_nobody_knows_is_shown_as_it_is(nvml_here):
    reading = read(nvml_here, rigs.ONE.failing(777, COUNT))
    assert reading.lost == "NVML error 777: an error of the stand-in"


FUNCTIONS = sorted(
    set(re.findall(r"\bAPI int (nvml\w+)", (Path(rigs.__file__).parent / "nvml.c").read_text()))
)
CODES = st.sampled_from([*map(int, Code), 2, 7, 12, 20, 25, 777])
LIE = ("nvmlShutdown", int(Code.UNINITIALIZED))
ERRORS = st.dictionaries(st.sampled_from(FUNCTIONS), CODES, max_size=5)


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(machine=ERRORS, card=ERRORS, name=st.sampled_from(sorted(RIGS)), data=st.data())
def test_whatever_fails_a_reading_is_a_reading(nvml_here, machine, card, name, data):
    # "Not initialised" as the answer to an end is believed, and here it would be a lie.
    machine = {each: code for each, code in machine.items() if (each, code) != LIE}
    rig = msgspec.structs.replace(RIGS[name], errors=machine)
    if rig.cards:
        index = data.draw(st.integers(0, len(rig.cards) - 1))
        rig = rig.with_card(index, errors=card)
    reading = read(nvml_here, rig)
    if reading.lost:
        assert reading.cards == ()
        return
    assert sorted({each.index for each in reading.cards}) == list(range(len(rig.cards)))
    for each in reading.cards:
        blank = not each.name or None in (each.uuid, each.pci, each.total, each.processes)
        assert each.problems or (each.compute_capable and not blank)


# --- off the loop, in one thread, with a time limit -----------------------------------------------


@pytest.fixture
async def nvml(nvml_here):
    made = Nvml(lambda: RAM)
    yield made
    made.close()


async def test_a_reading_is_the_same_off_the_loop(nvml_here, nvml):
    expected = read(nvml_here, rigs.FOUR_UNLIKE)
    nvml_here.put(rigs.FOUR_UNLIKE)
    assert await nvml.read() == expected


async def test_what_changes_while_it_runs_is_seen_by_the_next_reading(nvml_here, nvml):
    nvml_here.put(rigs.ONE)
    assert (await nvml.read()).cards[0].free // MIB == 24070
    nvml_here.put(rigs.ONE.with_card(0, free=5 * MIB, used=24075 * MIB))
    assert (await nvml.read()).cards[0].free // MIB == 5
    nvml_here.put(rigs.TWENTY_FOUR_AND_12)
    assert len((await nvml.read()).cards) == 2


async def test_the_memory_of_the_host_is_read_anew_each_time(nvml_here):
    told = iter([10 * GIB, 20 * GIB])
    nvml = Nvml(lambda: HostMemory(total=122 * GIB, available=next(told)))
    nvml_here.put(rigs.UNIFIED)
    assert [(await nvml.read()).cards[0].free for _ in range(2)] == [10 * GIB, 20 * GIB]
    nvml.close()


async def test_a_hang_is_a_reading_that_says_lost_and_costs_one_thread(nvml_here, nvml):
    nvml_here.put(rigs.ONE.hanging(HANG_MS, "nvmlDeviceGetMemoryInfo_v2"))
    for _ in range(3):
        reading = await nvml.read(0.05)
        assert "it hangs" in reading.lost
        assert (reading.absent, reading.cards, workers()) == (False, (), 1)
    nvml_here.put(rigs.TWO_24)
    assert len((await nvml.read()).cards) == 2


async def test_what_a_late_thread_brings_is_old_and_is_dropped(nvml_here, nvml):
    # The name is read before the hang, so a reading that was late would still have the old one.
    nvml_here.put(rigs.ONE.hanging(HANG_MS, COMPUTE))
    assert (await nvml.read(0.2)).lost
    nvml_here.put(rigs.ONE.with_card(0, name="another"))
    assert (await nvml.read()).cards[0].name == "another"


@pytest.mark.parametrize("function", ["nvmlInitWithFlags", COUNT, HANDLE])
async def test_the_loop_goes_on_while_a_driver_hangs(nvml_here, nvml, function):
    nvml_here.put(rigs.ONE.hanging(HANG_MS, function))
    reading = asyncio.create_task(nvml.read())
    await asyncio.sleep(0)
    assert workers() == 1
    for _ in range(50):
        await asyncio.sleep(0.001)
    assert not reading.done()
    nvml_here.put(rigs.ONE)
    assert len((await reading).cards) == 1


async def test_readers_at_the_same_time_share_one_reading(nvml_here, nvml):
    nvml_here.put(rigs.TWO_24.hanging(HANG_MS, COUNT))
    readers = [asyncio.create_task(nvml.read()) for _ in range(5)]
    hasty = await nvml.read(0.05)
    assert (bool(hasty.lost), workers()) == (True, 1)
    nvml_here.put(rigs.TWO_24)
    first, *others = await asyncio.gather(*readers)
    assert len(first.cards) == 2
    assert all(other is first for other in others)


async def test_a_reader_that_is_cancelled_takes_nobody_with_it(nvml_here, nvml):
    nvml_here.put(rigs.ONE.hanging(HANG_MS, COUNT))
    one, two = (asyncio.create_task(nvml.read()) for _ in range(2))
    await asyncio.sleep(0)
    assert workers() == 1
    one.cancel()
    with pytest.raises(asyncio.CancelledError):
        await one
    nvml_here.put(rigs.ONE)
    assert len((await two).cards) == 1


async def test_what_nobody_expects_is_a_reading_too(nvml_here):
    def broken() -> HostMemory:
        raise ZeroDivisionError("by the host")

    nvml = Nvml(broken)
    assert "ZeroDivisionError('by the host')" in (await nvml.read()).lost
    nvml.close()


async def ended() -> None:
    for thread in threading.enumerate():
        if thread.name == "nvml":
            await asyncio.to_thread(thread.join, PATIENCE)
    assert not workers()


async def test_an_end_shuts_nvml_down(nvml_here):
    nvml = Nvml(lambda: RAM)
    nvml_here.put(rigs.ONE)
    await nvml.read()
    assert pynvml.nvmlDeviceGetCount() == 1
    nvml.close()
    nvml.close()
    await ended()
    with pytest.raises(pynvml.NVMLError_Uninitialized):
        pynvml.nvmlDeviceGetCount()
    assert "stopping" in (await nvml.read()).lost


async def test_an_end_waits_for_no_driver_and_the_thread_that_hangs_ends_nvml(nvml_here):
    nvml = Nvml(lambda: RAM)
    nvml_here.put(rigs.ONE.hanging(HANG_MS, COUNT))
    assert (await nvml.read(0.05)).lost
    nvml.close()
    assert workers() == 1
    nvml_here.put(rigs.ONE)
    await ended()
    with pytest.raises(pynvml.NVMLError_Uninitialized):
        pynvml.nvmlDeviceGetCount()


# --- in a process of its own, found as the driver's library is found ------------------------------

PROBE = """
import asyncio, sys, msgspec
from pannier.devices.nvml import Nvml
async def main():
    nvml = Nvml()
    reading = await nvml.read(float(sys.argv[1]))
    with open("/proc/self/maps") as maps:
        loaded = sorted({line.split()[-1] for line in maps if ".so" in line})
    print(msgspec.json.encode({"reading": reading, "loaded": loaded}).decode())
    nvml.close()
asyncio.run(main())
"""


def probe(environment: dict[str, str], seconds: float = 30.0) -> dict:
    argv = [sys.executable, "-W", "error", "-c", PROBE, str(seconds)]
    ended = subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=40)
    assert (ended.returncode, ended.stderr) == (0, "")
    return json.loads(ended.stdout)


def test_the_library_is_found_as_the_drivers_is_and_cuda_is_not_loaded(stand_in):
    stand_in.put(rigs.TWO_24)
    answer = probe(stand_in.environment())
    assert len(answer["reading"]["cards"]) == 2
    assert str(stand_in.library) in answer["loaded"]
    assert [path for path in answer["loaded"] if "cuda" in path or "libnvrtc" in path] == []


def test_a_machine_without_the_library_is_no_fault(stand_in, tmp_path):
    (tmp_path / NAME).write_text("no library")  # found before a real one, and refused
    environment = {**stand_in.environment(), "LD_LIBRARY_PATH": str(tmp_path)}
    reading = probe(environment)["reading"]
    assert (reading["absent"], reading["cards"]) == (True, [])
    assert "libnvidia-ml.so.1 was not found" in reading["lost"]


def test_a_process_ends_although_its_driver_hangs(stand_in):
    stand_in.put(rigs.ONE.hanging(HANG_MS, COUNT))
    assert "it hangs" in probe(stand_in.environment(), 0.1)["reading"]["lost"]


def test_a_machine_without_nvidia_ml_py_is_no_fault(stand_in, tmp_path):
    (tmp_path / "pynvml.py").write_text("raise ImportError('not here')")
    reading = probe({**stand_in.environment(), "PYTHONPATH": str(tmp_path)})["reading"]
    assert (reading["absent"], reading["cards"]) == (True, [])
    assert "nvidia-ml-py is not installed" in reading["lost"]


def test_one_module_alone_imports_pynvml():
    modules = Path(pannier.__file__).parent.rglob("*.py")
    importing = [
        path.name
        for path in modules
        if re.search(r"^\s*(import|from) pynvml", path.read_text(), re.M)
    ]
    assert importing == ["nvml_read.py"]
