"""A person's placement, met with the hardware: obeyed exactly, or refused with what there is."""

import msgspec
import pytest
from tests.fakes.rigs import fleet, models, rig

HERE = "[placement.a]\n"


def planned(made, pin, inventory, keys="context = 4096"):
    return fleet(models(a=keys) + HERE + pin, {"a": made}).plan(inventory)


def where(plan):
    return {instance.id: instance.devices for instance in plan.instances}


def refusal(plan):
    """Why the spec is not used; the automatic plan is there instead."""
    assert plan.rejected is not None
    assert not plan.manual
    assert not any(instance.pinned for instance in plan.instances)
    assert plan.reasons[0] == f"the placement of the config is not used: {plan.rejected.reason}"
    return plan.rejected.reason


def test_a_pin_is_obeyed_against_every_preference():
    plan = planned("llama31-8b", "devices = [1]\n", rig(24, 8))
    assert where(plan) == {"a": ("CUDA1",)}
    assert plan.manual
    assert plan.spec == '{"a": {"devices": [1]}}'
    assert plan.instances[0].pinned


def test_a_split_that_is_not_needed_is_obeyed_with_its_weights_and_order():
    (instance,) = planned(
        "llama31-8b", "devices = [1, 0]\ntensor_split = [3, 1]\n", rig(24, 24)
    ).instances
    assert (instance.devices, instance.tensor_split) == (("CUDA1", "CUDA0"), (3, 1))
    first, second = (share.layers for share in instance.device_bytes)
    assert (first + second, first > second) == (33, True)


def test_without_weights_a_split_is_as_even_as_it_can_be():
    (instance,) = planned("llama31-8b", "devices = [0, 1]\n", rig(24, 24)).instances
    first, second = instance.tensor_split
    assert first + second == 33
    assert abs(first - second) <= 2


def test_the_order_of_the_cards_decides_what_an_index_means():
    plan = planned("llama31-8b", "devices = [0]\n", rig(8, 24, pci=(9, 4)))
    assert where(plan) == {"a": ("CUDA1",)}


def test_a_pin_that_is_too_small_is_refused_with_need_have_and_device():
    plan = planned("qwen3-32b", "devices = [1]\n", rig(24, 12), 'gpu_layers = "all"')
    assert refusal(plan) == (
        "a needs 19.68 GiB on CUDA1, which has 11.50 GiB for it: 8.18 GiB are missing"
        " (other devices, a smaller context or `force = true`, which loads it anyway"
        ' ("tight"))'
    )
    assert where(plan) == {"a": ("CUDA0",)}


def test_what_is_open_is_given_up_before_a_pin_is_refused():
    plan = planned("qwen3-32b", "devices = [1]\n", rig(24, 12))
    assert plan.rejected is None
    assert where(plan) == {"a": ("CUDA1",)}
    assert plan.tight == {}
    assert plan.reasons == ("a: 29 of 65 layers stay in RAM: slower",)


def test_force_obeys_a_pin_that_is_too_small_and_says_by_how_much():
    plan = planned("qwen3-32b", "devices = [1]\nforce = true\n", rig(24, 12), 'gpu_layers = "all"')
    assert where(plan) == {"a": ("CUDA1",)}
    assert plan.tight["a"]["CUDA1"] == plan.instances[0].bytes_needed - int(11.5 * 2**30)
    assert plan.reasons == ("a does not fit CUDA1: 8.18 GiB are missing",)


def test_one_refusal_makes_the_whole_spec_unused():
    text = models(a="context = 4096", b="context = 4096") + "[placement.b]\ndevices = [1]\n"
    cast = fleet(text + HERE + "devices = [7]\n", {"a": "llama31-8b", "b": "llama31-8b"})
    plan = cast.plan(rig(24, 24))
    assert refusal(plan) == (
        "placement of a names device 7; the devices of this machine: 0 (CUDA0), 1 (CUDA1)"
    )


def test_missing_ram_is_named_and_not_forced():
    pin = "devices = [0]\nforce = true\n"
    plan = planned("llama31-8b", pin, rig(24, ram_gib=0.6))
    assert "of RAM beside its devices, and this machine has 0.10 GiB" in refusal(plan)


def test_on_shared_memory_nothing_is_forced():
    pin = "devices = [0]\nforce = true\n"
    plan = planned("qwen3-32b", pin, rig(16, unified=True, ram_gib=16))
    assert "CUDA0, which has 15.50 GiB" in refusal(plan)


def test_instances_of_different_cards_are_not_pinned_together():
    plan = planned("llama31-8b", "devices = [0, 1]\n", rig(20, 20, mig=(0, 1)))
    assert "CUDA0" in refusal(plan)


@pytest.mark.parametrize("more", ["", "replicas = 2\ntensor_split = [1, 1]\n"], ids=["one", "two"])
def test_a_model_that_must_not_be_split_is_not_but_for_force(more):
    pin = f"devices = [0, 1]\n{more}"
    assert refusal(planned("gemma4-e4b", pin, rig(24, 24))).startswith("a must not be split: ")
    plan = planned("gemma4-e4b", pin + "force = true\n", rig(24, 24))
    assert set(where(plan).values()) == {("CUDA0", "CUDA1")}


def test_a_layer_for_each_device_is_the_least():
    plan = planned("llama31-8b", "devices = [0, 1, 2]\n", rig(24, 24, 24), "gpu_layers = 2")
    assert refusal(plan) == (
        "a has 2 layers for devices (`gpu_layers`), and its placement names 3 devices:"
        " each needs at least one"
    )


def test_replicas_have_devices_of_their_own_first():
    plan = planned("bge-m3", "devices = [2, 0, 1]\nreplicas = 4\n", rig(8, 8, 8), 'role = "embed"')
    assert where(plan) == {
        "a#0": ("CUDA2",),
        "a#1": ("CUDA0",),
        "a#2": ("CUDA1",),
        "a#3": ("CUDA2",),
    }
    assert [instance.replica for instance in plan.instances] == [0, 1, 2, 3]


def test_a_device_that_holds_no_replica_is_left_to_the_others():
    plan = planned("qwen3-32b", "devices = [0, 1, 2]\nreplicas = 2\n", rig(24, 8, 24))
    assert where(plan) == {"a#0": ("CUDA0",), "a#1": ("CUDA2",)}


def test_replicas_that_no_device_holds_are_split_over_all_of_them():
    plan = planned("qwen3-32b", "devices = [0, 1, 2]\nreplicas = 2\n", rig(16, 16, 16))
    assert where(plan) == dict.fromkeys(("a#0", "a#1"), ("CUDA0", "CUDA1", "CUDA2"))


def test_what_a_spec_leaves_out_is_placed_beside_it():
    text = models(a="context = 4096", b="context = 4096") + HERE + "devices = [0]\n"
    plan = fleet(text, {"a": "llama31-8b", "b": "qwen3-32b"}).plan(rig(24, 24))
    assert where(plan) == {"a": ("CUDA0",), "b": ("CUDA1",)}
    assert [instance.pinned for instance in plan.instances] == [True, False]


def test_the_devices_of_a_pin_may_be_named_by_uuid():
    inventory = rig(24, 24)
    named = msgspec.structs.replace(inventory.devices[1], uuid="GPU-12345678-abcd")
    inventory = msgspec.structs.replace(inventory, devices=(inventory.devices[0], named))
    plan = planned("llama31-8b", 'devices = ["GPU-12345678"]\n', inventory)
    assert where(plan) == {"a": ("CUDA1",)}
