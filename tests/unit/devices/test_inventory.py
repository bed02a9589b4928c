"""Which of the engine's devices are planned on, and what is said of the others."""

import msgspec
import pytest

from pannier.config.units import Size
from pannier.devices.inventory import (
    DEFAULT_RESERVE,
    Device,
    HostMemory,
    backend_of,
    from_engine,
    in_order,
    same_devices,
    with_reserves,
)

HOST = HostMemory(total=1 << 36, available=1 << 35)


def device(label, total=1 << 34, **fields):
    return Device(
        index=0, backend=backend_of(label), label=label, name="x", total=total, free=total, **fields
    )


def labels(*names):
    return from_engine(tuple(device(name) for name in names), HOST)


@pytest.mark.parametrize(
    ("label", "backend"),
    [
        ("CUDA0", "cuda"), ("ROCm12", "rocm"), ("HIP0", "rocm"), ("MTL0", "metal"),
        ("SYCL0", "sycl"), ("Vulkan3", "vulkan"), ("RPC0", "rpc"), ("RPC[a:1]", "rpc"),
        ("RPC0[10.0.0.7:50052]", "rpc"), ("CANN0", "unknown"), ("", "unknown"), ("7", "unknown"),
    ],
)  # fmt: skip
def test_a_label_tells_its_backend(label, backend):
    assert backend_of(label) == backend


def test_one_backend_is_used_so_that_no_card_counts_twice():
    inventory = labels("Vulkan0", "CUDA0", "Vulkan1", "CUDA1")
    assert [(d.index, d.label) for d in inventory.devices] == [(0, "CUDA0"), (1, "CUDA1")]
    assert inventory.engine_backend == "cuda"
    assert "Vulkan0 is vulkan: cuda is used on this machine" in inventory.notes


def test_rpc_devices_are_used_beside_the_machine_s_own():
    assert [d.label for d in labels("CUDA0", "RPC0", "RPC1").devices] == ["CUDA0", "RPC0", "RPC1"]
    assert labels("RPC0").engine_backend == "rpc"


def test_a_software_renderer_has_no_memory_and_is_not_used():
    inventory = from_engine((device("Vulkan0"), device("Vulkan1", total=0)), HOST)
    assert [d.label for d in inventory.devices] == ["Vulkan0"]
    assert inventory.notes == ("Vulkan1 has no memory: not used",)


@pytest.mark.parametrize(
    "name",
    ["llvmpipe (LLVM 19.1.1, 256 bits)", "lavapipe", "SwiftShader Device", "softpipe",
     "Microsoft Basic Render Driver"],
)  # fmt: skip
def test_a_software_renderer_is_the_cpu_however_much_memory_it_claims(name):
    renderer = msgspec.structs.replace(device("Vulkan1"), name=name)
    inventory = from_engine((device("Vulkan0"), renderer), HOST)
    assert [d.label for d in inventory.devices] == ["Vulkan0"]
    assert name in inventory.notes[0]
    assert from_engine((renderer,), HOST).engine_backend == "cpu"


def test_the_cpu_in_a_list_of_devices_is_none():
    assert from_engine((device("CPU"),), HOST).devices == ()


@pytest.mark.parametrize(
    ("labels_", "chosen"),
    [
        (("Vulkan0", "ROCm0"), "rocm"), (("SYCL0", "Vulkan0"), "sycl"),
        (("MTL0", "Vulkan0"), "metal"), (("ROCm0", "CUDA0"), "cuda"), (("SYCL0", "MTL0"), "metal"),
        (("RPC0", "Vulkan0"), "vulkan"),
    ],
)  # fmt: skip
def test_the_best_backend_of_a_machine_is_used(labels_, chosen):
    assert labels(*labels_).engine_backend == chosen


def test_a_kind_of_device_that_is_not_known_is_said_in_words():
    inventory = labels("CANN0")
    assert inventory.devices == ()
    (note,) = inventory.notes
    assert "CANN0" in note
    assert "None" not in note


def test_ap_9_no_answer_is_unknown_and_an_empty_one_is_the_cpu():
    assert from_engine(None, HOST, ("why",)).engine_backend == "unknown"
    assert from_engine(None, HOST, ("why",)).notes == ("why",)
    assert from_engine((), HOST).engine_backend == "cpu"


def test_a_device_is_found_by_index_label_or_uuid():
    found = msgspec.structs.replace(device("CUDA0"), uuid="GPU-1")
    inventory = from_engine((found, device("CUDA1")), HOST)
    for name in (0, "CUDA0", "GPU-1"):
        assert inventory.find(name) == inventory.devices[0]
    for name in (2, "0", "cuda0", ""):
        assert inventory.find(name) is None


def test_the_start_of_a_uuid_is_enough_when_it_means_one_card():
    one, other = "GPU-8932f937-d72c", "GPU-8932f937-aaaa"
    inventory = from_engine((device("CUDA0", uuid=one), device("CUDA1", uuid=other)), HOST)
    assert inventory.find("GPU-8932f937-d") == inventory.devices[0]
    assert inventory.find("GPU-8932f937") is None
    assert from_engine((device("CUDA0", uuid=one),), HOST).find("GPU-8932f93") is None


def test_cards_stand_in_the_order_of_the_bus_where_every_bus_is_known():
    buses = ("0000:41:00.0", "0000:01:00.0", "0001:00:00.0", None)
    cards = [device(f"CUDA{at}", pci=bus) for at, bus in enumerate(buses)]
    assert [each.label for each in in_order(cards[:3])] == ["CUDA1", "CUDA0", "CUDA2"]
    assert [each.label for each in in_order(cards)] == ["CUDA0", "CUDA1", "CUDA2", "CUDA3"]
    assert [each.index for each in in_order(cards)] == [0, 1, 2, 3]


def test_what_others_hold_and_what_is_kept_free_is_no_capacity():
    card = device("CUDA0", total=100, used_by_us=30, used_by_others=20, reserve=10)
    assert card.capacity == 70
    assert msgspec.structs.replace(card, used_by_others=200).capacity == 0


def test_a_reserve_is_for_all_or_by_label_or_uuid():
    found = from_engine((device("CUDA0", uuid="GPU-1"), device("CUDA1"), device("CUDA2")), HOST)
    assert [each.reserve for each in with_reserves(found, 7).devices] == [7, 7, 7]
    table = {"GPU-1": 1, "CUDA1": 2, "CUDA9": 3}
    kept = [each.reserve for each in with_reserves(found, table).devices]
    assert kept == [1, 2, DEFAULT_RESERVE]


def test_a_reserve_of_a_config_can_be_sent_on_as_json():
    found = from_engine((device("CUDA0"), device("CUDA1")), HOST)
    for reserve in (Size.parse("1GiB"), {"CUDA0": Size.parse("1GiB")}):
        kept = with_reserves(found, reserve)
        assert msgspec.json.decode(msgspec.json.encode(kept), type=type(kept)) == kept


@pytest.mark.parametrize(
    "change", [{"uuid": "GPU-2"}, {"total": 1}, {"label": "CUDA7"}, {"name": "y"}, {"pci": "p"}]
)
def test_another_card_is_another_inventory(change):
    found = from_engine((device("CUDA0"),), HOST)
    other = msgspec.structs.replace(
        found, devices=(msgspec.structs.replace(found.devices[0], **change),)
    )
    assert not same_devices(found, other)


def test_the_same_cards_at_another_time_are_the_same_devices():
    found = from_engine((device("CUDA0"),), HOST)
    full = msgspec.structs.replace(
        found.devices[0], free=1, used_by_us=5, used_by_others=6, reserve=7
    )
    later = msgspec.structs.replace(
        found, devices=(full,), read_at=9.0, stale="why", notes=("n",), host=HostMemory()
    )
    assert same_devices(found, later)
    assert not same_devices(found, msgspec.structs.replace(found, engine_backend="rocm"))
