"""The engine's list and NVML's reading as one inventory: who is who, whose memory it is, and why
a card is not used."""

import msgspec
import pytest

from pannier.devices.inventory import Device, HostMemory, backend_of
from pannier.devices.join import Ours, join, with_memory
from pannier.devices.listing import EngineList
from pannier.devices.reading import Card, CardProcess, NvmlReading

MIB = 1 << 20
GIB = 1 << 30
ORDERED = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
HOST = HostMemory(total=128 * GIB, available=100 * GIB)
BIG, SMALL = "NVIDIA GeForce RTX 4090", "NVIDIA GeForce RTX 3060"
NO_NVML = NvmlReading(absent=True)


def card(index, name=BIG, *, gib=24, used=0, bus=None, **fields):
    total = gib * GIB
    values = {
        "uuid": f"GPU-{index}0000000",
        "pci": f"0000:{index + 1 if bus is None else bus:02x}:00.0",
        "total": total,
        "used": used,
        "free": total - used,
        "processes": (),
        **fields,
    }
    return Card(index=index, name=name, **values)


def device(label, name=BIG, *, gib=24.0, free=None):
    total = int(gib * GIB) - 400 * MIB
    return Device(
        index=0, backend=backend_of(label), label=label, name=name, total=total,
        free=total if free is None else free,
    )  # fmt: skip


def joined(devices, reading, environ=ORDERED, **options):
    listed = EngineList(devices=tuple(devices))
    return join(listed, reading, environ=environ, host=HOST, **options)


def told(inventory):
    return [(each.index, each.label, each.uuid) for each in inventory.devices]


def test_a_card_has_the_engine_s_name_and_size_and_nvml_s_uuid_and_use():
    held = (CardProcess(pid=7, bytes=3 * GIB), CardProcess(pid=8, bytes=2 * GIB))
    reading = NvmlReading(cards=(card(0, used=5 * GIB, processes=held),))
    inventory = joined([device("CUDA0")], reading, ours=Ours(pids=frozenset({7})), read_at=4.0)
    (found,) = inventory.devices
    assert (found.label, found.uuid, found.pci) == ("CUDA0", "GPU-00000000", "0000:01:00.0")
    assert found.total == 24 * GIB - 400 * MIB
    assert found.free == 19 * GIB
    assert found.used_by_us == 3 * GIB
    assert found.used_by_others == 2 * GIB - 400 * MIB
    assert found.nvml_index == 0
    assert (inventory.engine_backend, inventory.notes, inventory.read_at) == ("cuda", (), 4.0)


def test_report_32_what_other_processes_hold_is_no_capacity_and_what_we_hold_is():
    """lms#2295: a guard that ignores other processes."""
    held = (CardProcess(pid=7, bytes=10 * GIB), CardProcess(pid=8, bytes=12 * GIB))
    reading = NvmlReading(cards=(card(0, used=22 * GIB, processes=held),))
    inventory = joined([device("CUDA0")], reading, ours=Ours(pids=frozenset({7})))
    (found,) = inventory.devices
    assert found.capacity == found.total - found.used_by_others
    assert found.capacity == found.free + 10 * GIB


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 1, 0, 2), (2, 3, 1, 0)])
def test_report_69_the_order_is_that_of_the_pci_bus_however_cards_are_listed(order):
    """oll#9286; the mask decides the engine's order, the bus ours."""
    cards = tuple(card(at, name=f"card {at}") for at in range(4))
    mask = ",".join(map(str, order))
    listed = [device(f"CUDA{at}", name=f"card {number}") for at, number in enumerate(order)]
    inventory = joined(listed, NvmlReading(cards=cards), {**ORDERED, "CUDA_VISIBLE_DEVICES": mask})
    assert [each.name for each in inventory.devices] == [f"card {at}" for at in range(4)]
    assert [each.index for each in inventory.devices] == [0, 1, 2, 3]
    assert [each.label for each in inventory.devices] == [
        f"CUDA{order.index(at)}" for at in range(4)
    ]


def test_report_3_cards_that_cuda_counts_by_speed_are_known_by_name_and_size():
    """gst#1633: nvidia-smi shows the small card first, CUDA by itself the fast one."""
    reading = NvmlReading(cards=(card(0, SMALL, gib=12), card(1)))
    fastest_first = [device("CUDA0"), device("CUDA1", SMALL, gib=12)]
    for environ in (ORDERED, {"CUDA_DEVICE_ORDER": "FASTEST_FIRST"}, {}):
        inventory = joined(fastest_first, reading, environ)
        assert told(inventory) == [(0, "CUDA1", "GPU-00000000"), (1, "CUDA0", "GPU-10000000")]


def test_report_74_two_cards_of_one_kind_in_an_order_nobody_knows_get_no_uuid():
    """kcp#1023: a guess would pin a model to the wrong card."""
    reading = NvmlReading(cards=(card(0), card(1)))
    inventory = joined([device("CUDA0"), device("CUDA1")], reading, {})
    assert [each.uuid for each in inventory.devices] == [None, None]
    assert inventory.unused == ()
    assert all("not certain which of NVML's cards" in note for note in inventory.notes)
    assert len(inventory.notes) == 2


def test_where_the_engine_leaves_one_of_equal_cards_out_only_the_certain_have_uuids():
    reading = NvmlReading(cards=(card(0), card(1), card(2, SMALL, gib=12)))
    inventory = joined([device("CUDA0"), device("CUDA1", SMALL, gib=12)], reading)
    assert [(each.label, each.uuid) for each in inventory.devices] == [
        ("CUDA0", None), ("CUDA1", "GPU-20000000"),
    ]  # fmt: skip
    assert len(inventory.unused) == 1


def test_the_engine_s_list_rules_where_they_disagree():
    reading = NvmlReading(cards=(card(0, "NVIDIA T400", gib=4),))
    inventory = joined([device("CUDA0")], reading)
    (found,) = inventory.devices
    assert (found.name, found.uuid, found.total) == (BIG, None, 24 * GIB - 400 * MIB)
    assert "its memory is the engine's word" in inventory.notes[0]


@pytest.mark.parametrize(
    ("mask", "kept", "hidden"),
    [("1", [1], [0]), ("GPU-0", [0], [1]), ("1,0", [0, 1], []), ("0,7,1", [0], [1])],
)
def test_a_card_behind_the_mask_is_shown_as_hidden(mask, kept, hidden):
    cards = (card(0), card(1))
    seen = [device(f"CUDA{at}") for at in range(len(kept))]
    environ = {**ORDERED, "CUDA_VISIBLE_DEVICES": mask}
    inventory = joined(seen, NvmlReading(cards=cards), environ)
    assert [each.uuid for each in inventory.devices] == [cards[at].uuid for at in kept]
    assert [each.uuid for each in inventory.unused] == [cards[at].uuid for at in hidden]
    notes = [note for note in inventory.notes if f"CUDA_VISIBLE_DEVICES='{mask}'" in note]
    assert len(notes) == len(hidden)


def test_a_card_that_a_build_without_cuda_cannot_use_is_told_with_the_reason():
    inventory = joined([], NvmlReading(cards=(card(0),)))
    assert (inventory.engine_backend, inventory.devices) == ("cpu", ())
    assert [each.uuid for each in inventory.unused] == ["GPU-00000000"]
    assert "built without CUDA" in inventory.notes[0]


def test_ap_9_cards_of_nvml_are_shown_and_not_planned_on_while_the_engine_is_silent():
    listed = EngineList(reason="took too long and was stopped")
    inventory = join(listed, NvmlReading(cards=(card(0),)), environ=ORDERED, host=HOST)
    assert (inventory.engine_backend, inventory.devices) == ("unknown", ())
    assert [each.name for each in inventory.unused] == [BIG]
    assert "took too long" in inventory.notes[0]
    assert "unknown until the engine answers" in inventory.notes[1]


def test_ap_9_an_engine_that_answers_with_nothing_is_the_cpu():
    assert joined([], NO_NVML).engine_backend == "cpu"


@pytest.mark.parametrize("label", ["ROCm0", "Vulkan0", "MTL0", "SYCL0"])
def test_other_makes_come_from_the_engine_alone(label):
    inventory = joined([device(label, free=20 * GIB)], NO_NVML)
    (found,) = inventory.devices
    assert (found.uuid, found.free, found.nvml_index) == (None, 20 * GIB, None)
    assert found.used_by_others == found.total - 20 * GIB


def test_what_is_planned_for_our_models_stands_in_where_nobody_tells():
    ours = Ours(pids=frozenset({7}), expected={"ROCm0": 3 * GIB})
    (found,) = joined([device("ROCm0", free=18 * GIB)], NO_NVML, ours=ours).devices
    assert found.used_by_us == 3 * GIB
    assert found.used_by_us + found.used_by_others + found.free == found.total


def test_in_a_container_with_other_process_ids_the_difference_is_taken_and_told():
    held = (CardProcess(pid=900001, bytes=6 * GIB),)
    reading = NvmlReading(cards=(card(0, used=6 * GIB, processes=held),))
    ours = Ours(pids=frozenset({7}), expected={"GPU-00000000": 5 * GIB})
    inventory = joined([device("CUDA0")], reading, ours=ours)
    assert inventory.devices[0].used_by_us == 5 * GIB
    assert "which processes hold the memory" in inventory.notes[-1]
    again = with_memory(inventory, reading, host=HOST, ours=ours)
    assert again.notes == inventory.notes
    free = with_memory(inventory, reading, host=HOST, ours=Ours())
    assert free.notes == inventory.notes[:-1]


def test_report_53_a_chip_that_shares_memory_goes_by_the_host_s():
    """GB10: nvitop#208, gpustat#179: NVML's memory is not supported."""
    chip = Card(index=0, name="NVIDIA GB10", uuid="GPU-gb10", unified=True)
    listed = [device("CUDA0", "NVIDIA GB10", gib=119.7, free=1)]
    (found,) = joined(listed, NvmlReading(cards=(chip,))).devices
    assert found.unified
    assert found.free == HOST.available
    assert found.used_by_others == found.total - HOST.available
    assert found.uuid == chip.uuid


def test_report_53_every_field_of_a_card_may_be_missing():
    bare = Card(index=0)
    (found,) = joined([device("CUDA0", free=9 * GIB)], NvmlReading(cards=(bare,))).devices
    assert (found.uuid, found.free) == (None, 9 * GIB)


def test_report_54_a_lost_nvml_leaves_the_engine_s_numbers_and_a_note():
    reading = NvmlReading(lost="Failed to initialize NVML: Unknown Error")
    inventory = joined([device("CUDA0", free=9 * GIB)], reading)
    assert inventory.devices[0].free == 9 * GIB
    assert "Unknown Error" in inventory.notes[0]


def test_no_nvml_at_all_is_no_word_worth():
    assert joined([device("ROCm0")], NvmlReading(absent=True, lost="no library")).notes == ()


def test_what_a_card_would_not_tell_is_noted_by_its_name():
    cards = (card(0, problems=("its processes could not be read: no permission",)),)
    inventory = joined([device("CUDA0")], NvmlReading(cards=cards, problems=("NVML: old",)))
    assert inventory.notes == (
        "NVML: old",
        f"{BIG} (GPU-00000000): its processes could not be read: no permission",
    )


def test_a_lost_card_is_shown_with_what_the_driver_says():
    lost = Card(index=1, compute_capable=False, problems=("it is lost: restart the machine",))
    inventory = joined([device("CUDA0")], NvmlReading(cards=(card(0), lost)))
    assert told(inventory) == [(0, "CUDA0", "GPU-00000000")]
    assert len(inventory.unused) == 1
    assert "it is lost: restart the machine" in inventory.notes[-1]


# --- MIG ------------------------------------------------------------------------------------------

PARTS = (
    card(0, "NVIDIA A100 MIG 3g.40gb", gib=40, uuid="MIG-aaaaaaaa", parent="GPU-p"),
    card(0, "NVIDIA A100 MIG 2g.20gb", gib=20, uuid="MIG-bbbbbbbb", parent="GPU-p"),
    card(1, "NVIDIA A100", gib=80),
)


def test_all_mig_instances_are_devices_though_a_process_sees_one():
    inventory = joined([device("CUDA0", PARTS[0].name, gib=40)], NvmlReading(cards=PARTS))
    assert told(inventory) == [
        (0, "CUDA0", "MIG-aaaaaaaa"), (1, "CUDA1", "MIG-bbbbbbbb"), (2, "CUDA2", "GPU-10000000"),
    ]  # fmt: skip
    assert [each.parent for each in inventory.devices] == ["GPU-p", "GPU-p", None]
    assert inventory.unused == ()
    assert "one MIG instance" in inventory.notes[-1]


def test_a_mig_mask_shows_its_instance_alone():
    environ = {**ORDERED, "CUDA_VISIBLE_DEVICES": "MIG-bbbbbbbb"}
    inventory = joined([device("CUDA0", PARTS[1].name, gib=20)], NvmlReading(cards=PARTS), environ)
    assert told(inventory) == [(0, "CUDA0", "MIG-bbbbbbbb")]
    assert len(inventory.unused) == 2


def test_without_cuda_the_parts_of_a_card_are_no_devices_either():
    inventory = joined([], NvmlReading(cards=PARTS))
    assert inventory.devices == ()
    assert len(inventory.unused) == 3


def test_virtual_devices_of_one_card_are_not_taken_for_cards():
    environ = {**ORDERED, "GGML_CUDA_DEVICES": "2"}
    halves = [device("CUDA0", gib=12), device("CUDA1", gib=12)]
    inventory = joined(halves, NvmlReading(cards=(card(0),)), environ)
    assert [each.uuid for each in inventory.devices] == [None, None]
    assert "GGML_CUDA_DEVICES" in inventory.notes[0]


# --- containers and other masks -------------------------------------------------------------------


def test_a_container_without_cards_says_how_to_start_it_with_them():
    inventory = joined([], NO_NVML, {**ORDERED, "NVIDIA_VISIBLE_DEVICES": "void"})
    assert "--gpus all" in inventory.notes[0]


def test_two_masks_are_noted_where_amd_cards_are_used_and_nowhere_else():
    environ = {**ORDERED, "HIP_VISIBLE_DEVICES": "0", "CUDA_VISIBLE_DEVICES": "0"}
    assert any("keep one" in note for note in joined([device("ROCm0")], NO_NVML, environ).notes)
    assert joined([device("CUDA0")], NvmlReading(cards=(card(0),)), environ).notes == ()


def test_a_remote_device_is_beside_the_cards_and_behind_them():
    inventory = joined([device("RPC0"), device("CUDA0")], NvmlReading(cards=(card(0),)))
    assert told(inventory) == [(0, "CUDA0", "GPU-00000000"), (1, "RPC0", None)]


def test_an_inventory_survives_its_own_json():
    inventory = joined(
        [device("CUDA0"), device("RPC0")], NvmlReading(cards=(card(0), card(1))), read_at=1.5
    )
    assert msgspec.json.decode(msgspec.json.encode(inventory), type=type(inventory)) == inventory
