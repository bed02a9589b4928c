"""Which of the engine's devices are planned on, and what is said of the others."""

import msgspec
import pytest

from pannier.devices.inventory import Device, HostMemory, backend_of, from_engine

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
