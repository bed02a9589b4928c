"""What `pannier status` prints: every name that a pin may use, both orders, and why not."""

import msgspec

from pannier.devices.inventory import Device, HostMemory, Inventory
from pannier.devices.table import inventory_lines

GIB = 1 << 30
HOST = HostMemory(total=64 * GIB, available=32 * GIB)


def card(index, label, bus, **fields):
    return Device(
        index=index, backend="cuda", label=label, name="RTX 4090", total=24 * GIB, free=20 * GIB,
        uuid=f"GPU-8932f93{index}-d72c", pci=f"0000:{bus:02x}:00.0", used_by_us=3 * GIB,
        used_by_others=GIB, reserve=GIB // 2, **fields,
    )  # fmt: skip


def test_a_card_is_shown_with_all_its_names_and_sizes():
    found = Inventory(devices=(card(0, "CUDA0", 1),), engine_backend="cuda", host=HOST)
    assert inventory_lines(found) == [
        "   label  name       GiB  free  ours  others  reserve  uuid          pci",
        "0  CUDA0  RTX 4090  24.0  20.0   3.0     1.0      0.5  GPU-8932f930  0000:01:00.0",
        "RAM 64.0 GiB, 32.0 GiB free",
        "engine backend: cuda",
    ]


def test_report_3_both_orders_are_shown_where_they_differ():
    """gst#1633: the order of nvidia-smi and that of the engine."""
    devices = (card(0, "CUDA1", 1, nvml_index=0), card(1, "CUDA0", 2, nvml_index=2))
    lines = inventory_lines(Inventory(devices=devices, engine_backend="cuda", host=HOST))
    assert lines[0].endswith("pci           nvidia-smi")
    assert [line.split()[0] for line in lines[1:3]] == ["0", "1"]
    assert [line.split()[-1] for line in lines[1:3]] == ["0", "2"]
    assert any("counts: CUDA1, CUDA0; as the engine lists: CUDA0, CUDA1" in line for line in lines)


def test_ten_cards_and_more_are_in_the_engine_s_order_too():
    devices = tuple(card(at, f"CUDA{at}", at + 1) for at in range(12))
    lines = inventory_lines(Inventory(devices=devices, host=HOST))
    assert not any("as the engine lists" in line for line in lines)


def test_a_card_that_is_not_used_is_shown_with_the_reason():
    unused = msgspec.structs.replace(card(0, "", 1), uuid=None, pci=None, unified=True)
    found = Inventory(unused=(unused,), engine_backend="cpu", host=HOST, notes=("why not",))
    lines = inventory_lines(found)
    assert lines[1].split()[:2] == ["-", "-"]
    assert "(unified)" in lines[1]
    assert "no GPU; RAM 64.0 GiB, 32.0 GiB free" in lines
    assert lines[-1] == "note: why not"


def test_what_is_not_known_is_not_called_without_gpus():
    lines = inventory_lines(Inventory(host=HOST, stale="NVML is silent"))
    assert lines[0].startswith("devices unknown; RAM")
    assert "stale: NVML is silent" in lines
