"""What is given up when a model does not fit, rung by rung, each with its numbers.

The rooms are made to measure: what a form takes, or one byte less.
"""

import msgspec
import pytest
from tests.fakes.rigs import files, fleet, models, profile, rig
from tests.fakes.values import GIB, model

from pannier.plan.demand import Demand, contexts
from pannier.plan.fit import ladder
from pannier.plan.machine import UNKNOWN_ROOM, Machine, Sizes, machine_of

PLENTY = 1 << 50


def demand(made, *, failed_at=None, **keys):
    return Demand(
        name="a",
        model=model(**keys),
        files=files("/m/a.gguf", made),
        known=profile(made),
        failed_at=failed_at,
    )


def one_card(room):
    card = rig(1000).devices[0]
    return Machine(devices=(card,), capacity=(room,), host=PLENTY)


def fitted(wanted, room, host=PLENTY):
    machine = one_card(room)
    return ladder(wanted, Sizes(machine), machine.capacity, host)


def need(wanted, form):
    return wanted.takes(form, ("cuda",)).devices[0].total


def ram(wanted, form):
    return wanted.takes(form, ("cuda",)).host.total


def least(wanted):
    """The form with the least context and nothing given up."""
    return wanted.form(contexts(wanted)[-1])


def test_what_fits_gives_up_nothing():
    wanted = demand("llama31-8b", context=16384)
    found = fitted(wanted, need(wanted, wanted.form(16384)))
    assert found.at(0) == wanted.form(16384)
    assert found.steps == ()


def test_the_context_goes_first_in_halves_down_to_the_least():
    wanted = demand("llama31-8b", context=16384)
    assert [form.context for form in fitted(wanted, PLENTY).forms] == [16384, 8192, 4096]
    found = fitted(wanted, need(wanted, wanted.form(16384)) - 1)
    assert [form.context for form in found.forms] == [8192, 8192, 4096]
    assert found.steps == ()


def test_then_the_projector_goes_to_ram():
    wanted = demand("gemma3-4b+mmproj-gemma3-4b", role="vision", context=8192)
    found = fitted(wanted, need(wanted, least(wanted)) - 1)
    assert found.at(0) == msgspec.structs.replace(least(wanted), projector_on_device=False)
    assert found.steps == ("a: the projector (0.91 GiB) stays in RAM: slower",)


def test_then_the_experts_of_as_few_layers_as_will_do():
    wanted = demand("qwen3-30b-a3b", context=8192)
    found = fitted(wanted, need(wanted, least(wanted)) - 1)
    assert found.at(0) == msgspec.structs.replace(least(wanted), cpu_moe=1)
    assert found.steps == ("a: the experts of 1 of 48 layers stay in RAM: slower",)
    nine = fitted(wanted, 9 * GIB).at(0)
    assert need(wanted, nine) <= 9 * GIB
    assert need(wanted, msgspec.structs.replace(nine, cpu_moe=nine.cpu_moe - 1)) > 9 * GIB


def test_then_layers_and_no_more_of_them_than_must():
    wanted = demand("llama31-8b", context=8192)
    found = fitted(wanted, need(wanted, least(wanted)) - 1)
    assert found.at(0) == msgspec.structs.replace(least(wanted), gpu_layers=32)
    assert found.steps == ("a: 1 of 33 layers stay in RAM: slower",)
    three = fitted(wanted, 3 * GIB).at(0)
    assert need(wanted, three) <= 3 * GIB
    assert need(wanted, msgspec.structs.replace(three, gpu_layers=three.gpu_layers + 1)) > 3 * GIB


def test_all_rungs_in_their_order():
    wanted = demand("gemma3-27b+mmproj-gemma3-27b", role="vision", context=8192)
    steps = fitted(wanted, 8 * GIB).steps
    assert steps == (
        "a: the projector (0.92 GiB) stays in RAM: slower",
        "a: 37 of 63 layers stay in RAM: slower",
    )


def test_what_no_room_holds_runs_on_the_cpu():
    wanted = demand("llama31-8b", context=4096)
    found = fitted(wanted, 1)
    assert found.at(0).gpu_layers == 0


@pytest.mark.parametrize(
    ("keys", "moved"),
    [
        ({"gpu_layers": "all", "cpu_moe": 0}, None),
        ({"gpu_layers": 49, "cpu_moe": 0}, None),
        ({"gpu_layers": "all"}, ("a: the experts of 1 of 48 layers stay in RAM: slower",)),
        ({"cpu_moe": 0}, ("a: 1 of 49 layers stay in RAM: slower",)),
    ],
    ids=["both-fixed", "a-number-is-fixed-too", "layers-fixed", "experts-fixed"],
)
def test_what_a_person_wrote_as_a_number_is_no_rung(keys, moved):
    wanted = demand("qwen3-30b-a3b", context=4096, **keys)
    found = fitted(wanted, need(wanted, least(wanted)) - 1)
    assert (found and found.steps) == moved


def test_experts_need_the_ram_for_them():
    wanted = demand("qwen3-30b-a3b", context=4096, gpu_layers="all")
    form = fitted(wanted, 9 * GIB).at(0)
    assert fitted(wanted, 9 * GIB, ram(wanted, form)).at(0) == form
    assert fitted(wanted, 9 * GIB, ram(wanted, form) - 1) is None


def test_a_split_is_tried_before_anything_is_given_up():
    plan = fleet(models(a="context = 131072"), {"a": "phi35-mini"}).plan(rig(32, 32))
    (instance,) = plan.instances
    assert (instance.context, len(instance.devices)) == (131072, 2)
    assert plan.reasons == ()


def test_what_neither_devices_nor_ram_hold_is_left_to_the_engine():
    plan = fleet(models(a="context = 4096"), {"a": "glm45-air"}).plan(rig(24, ram_gib=16))
    assert list(plan.tight) == ["a"]
    assert plan.instances[0].gpu_layers == "auto"
    told = models(a='context = 4096\ngpu_layers = "all"')
    plan = fleet(told, {"a": "glm45-air"}).plan(rig(24, ram_gib=16))
    assert plan.instances[0].gpu_layers == "all"


def test_a_size_that_is_all_that_is_known_has_no_rungs():
    plan = fleet(models(a=""), {}, 30.0).plan(rig(24))
    assert list(plan.tight) == ["a"]


# --- a load that ran out of memory ----------------------------------------------------------------


def test_out_of_memory_takes_one_step_of_context():
    wanted = demand("llama31-8b", context=16384, failed_at=16384)
    assert [form.context for form in fitted(wanted, PLENTY).forms] == [8192, 4096]


def test_out_of_memory_with_the_least_context_moves_one_thing_more():
    wanted = demand("gemma3-4b+mmproj-gemma3-4b", role="vision", context=4096, failed_at=4096)
    found = fitted(wanted, PLENTY)
    assert not found.at(0).projector_on_device
    assert found.at(0).gpu_layers is None
    bare = fitted(demand("llama31-8b", context=4096, failed_at=4096), PLENTY)
    assert bare.at(0).gpu_layers == 32


def test_out_of_memory_with_nothing_left_to_give_up_is_tried_as_it_is():
    wanted = demand("llama31-8b", context=4096, gpu_layers="all", failed_at=4096)
    assert fitted(wanted, PLENTY).at(0) == least(wanted)


def test_the_plan_says_what_ran_out_of_memory():
    cast = fleet(models(a="context = 16384"), {"a": "llama31-8b"})
    plan = cast.plan(rig(24), failed_at={"a": 16384})
    assert plan.instances[0].context == 8192
    assert plan.reasons == (
        "a: context 8192 instead of 16384 tokens: with 16384 it ran out of memory",
    )


# --- the machine as a whole -----------------------------------------------------------------------


def test_on_unified_memory_nothing_is_won_by_moving_to_ram():
    plan = fleet(models(a="context = 4096"), {"a": "qwen3-32b"}).plan(
        rig(16, unified=True, ram_gib=16)
    )
    assert plan.instances == ()
    assert [each.model for each in plan.unplaceable] == ["a"]


def test_without_devices_the_context_is_what_can_be_given_up():
    plan = fleet(models(a="context = 65536"), {"a": "llama31-8b"}).plan(rig(ram_gib=10))
    (instance,) = plan.instances
    assert 4096 <= instance.context < 65536
    assert instance.host_bytes.total <= 10 * GIB - 512 * 2**20


def test_a_model_that_must_not_be_split_gives_up_something_else():
    made = "gemma4-e4b:Q8_0"
    plan = fleet(models(a="context = 8192"), {"a": made}).plan(rig(4, 4))
    (instance,) = plan.instances
    assert profile(made).model.indivisible
    assert len(instance.devices) == 1
    assert isinstance(instance.gpu_layers, int)


def test_instances_of_one_card_are_never_split_over():
    cast = fleet(models(a="context = 4096"), {"a": "qwen3-30b-a3b"})
    assert len(cast.plan(rig(12, 12)).instances[0].devices) == 2
    (instance,) = cast.plan(rig(12, 12, mig=(0, 1))).instances
    assert len(instance.devices) == 1
    assert instance.cpu_moe


def test_ram_that_is_unknown_refuses_nothing():
    assert machine_of(rig(8, ram_gib=0), 0).host == UNKNOWN_ROOM
