"""Which model runs where, case by case; what holds for every case is in tests/property."""

import msgspec
import pytest
from tests.fakes.values import GIB, config_of, files_of, machine, plan_of

from pannier.plan.placement import make_plan


def config(**roles):
    """Models by name and the rest of their table."""
    text = "".join(
        f'[models.{name}]\npath = "/m/{name}.gguf"\n{keys}\n' for name, keys in roles.items()
    )
    return config_of(text or "[server]\n")


def where(plan):
    return {instance.id: instance.devices for instance in plan.instances}


def test_no_model_is_a_plan_too():
    plan = plan_of(config(), machine(24))
    assert (plan.instances, plan.groups, plan.reasons) == ((), (), ())


def test_each_model_that_fits_has_a_group_of_its_own():
    plan = plan_of(config(a="", b=""), machine(24))
    assert [(group.id, group.members, group.swap) for group in plan.groups] == [
        ("a", ("a",), False),
        ("b", ("b",), False),
    ]


def test_a_model_goes_where_there_is_most_room():
    assert where(plan_of(config(a=""), machine(12, 24))) == {"a": ("CUDA1",)}


def test_two_models_do_not_crowd_on_one_card_of_two():
    assert set(where(plan_of(config(a="", b=""), machine(24, 24))).values()) == {
        ("CUDA0",),
        ("CUDA1",),
    }


def test_a_model_that_no_card_holds_is_split_over_as_few_as_hold_it():
    plan = plan_of(config(a=""), machine(24, 24, 24), 30.0)
    (instance,) = plan.instances
    assert instance.devices == ("CUDA0", "CUDA1")
    assert instance.tensor_split is not None
    assert plan.tight == {}


def test_models_that_do_not_fit_together_take_turns_and_the_plan_says_so():
    plan = plan_of(config(a="", b=""), machine(24), 15.0)
    (group,) = plan.groups
    assert (group.id, group.members, group.swap) == ("swap-CUDA0", ("a", "b"), True)
    assert plan.reasons == ("a, b share CUDA0: not all fit at once",)


def test_small_models_stay_resident_beside_a_swap_set():
    text = config(a="", b="", e='role = "embed"')
    plan = plan_of(text, machine(24), {"a": 15.0, "b": 15.0, "e": 1.0})
    assert {group.id: group.swap for group in plan.groups} == {"e": False, "swap-CUDA0": True}


def test_what_is_kept_is_placed_before_what_is_not_and_never_swapped():
    text = config(a="", z="keep = true")
    plan = plan_of(text, machine(24), 15.0)
    assert plan.groups[0].members in [("a",), ("z",)]
    assert not any(group.swap for group in plan.groups)
    assert "z" not in plan.tight


def test_what_is_kept_and_fits_nowhere_is_tight_by_what_is_missing():
    plan = plan_of(config(a="keep = true", b="keep = true"), machine(24), 15.0)
    need = 15 * GIB + 15 * GIB // 8  # weights and an eighth
    assert plan.tight == {"b": {"CUDA0": 2 * need - (24 * GIB - GIB // 2)}}


def test_a_lonely_model_that_is_too_large_is_tight_in_a_group_of_its_own():
    plan = plan_of(config(a=""), machine(8), 10.0)
    assert [(group.id, group.swap) for group in plan.groups] == [("a", False)]
    assert plan.reasons == ("a does not fit CUDA0: 3.75 GiB are missing",)


def test_ap_7_one_tight_model_does_not_make_another_tight_that_fits():
    plan = plan_of(config(a="", b=""), machine(8), {"a": 40.0, "b": 5.0})
    assert set(plan.tight) == {"a"}


def test_without_devices_the_memory_of_the_host_is_the_one_device():
    plan = plan_of(config(a="", b=""), machine(ram_gib=8), {"a": 2.0, "b": 40.0})
    assert where(plan) == {"a": ()}
    (refused,) = plan.unplaceable
    assert (refused.model, refused.need > refused.have) == ("b", True)
    assert refused.reason == "it needs 45.00 GiB, and this machine has 7.50 GiB for it"


def test_kept_models_that_fill_the_host_leave_no_room_that_is_not_there():
    plan = plan_of(config(a="keep = true", b=""), machine(ram_gib=8), 5.0)
    assert where(plan) == {"a": ()}
    assert plan.unplaceable[0].have < 3 * GIB


def test_a_host_that_does_not_tell_its_memory_refuses_nothing():
    plan = plan_of(config(a=""), machine(ram_gib=0), 500.0)
    assert where(plan) == {"a": ()}


def test_a_file_that_is_not_there_takes_no_room():
    plan = plan_of(config(a="", b=""), machine(24), {"a": -1, "b": 20.0})
    assert plan.skipped_not_installed == ("a",)
    assert where(plan) == {"b": ("CUDA0",)}


PINNED = '[models.a]\npath = "/m/a.gguf"\n[placement.a]\n'


def test_a_pin_on_a_device_that_is_not_there_names_those_that_are():
    plan = plan_of(config_of(PINNED + 'devices = ["CUDA9"]\n'), machine(24))
    assert plan.rejected is not None
    assert plan.rejected.reason == (
        "placement of a names device 'CUDA9'; the devices of this machine: 0 (CUDA0)"
    )
    assert where(plan) == {"a": ("CUDA0",)}


def test_a_device_that_is_named_twice_in_two_ways_is_reported():
    plan = plan_of(config_of(PINNED + 'devices = [0, "CUDA0"]\n'), machine(24))
    assert plan.rejected is not None
    assert "CUDA0 twice" in plan.rejected.reason


def test_replicas_have_numbers_and_share_the_devices_of_their_pin():
    plan = plan_of(config_of(PINNED + "devices = [1]\nreplicas = 2\n"), machine(24, 24))
    assert where(plan) == {"a#0": ("CUDA1",), "a#1": ("CUDA1",)}
    assert [group.id for group in plan.groups] == ["a#0", "a#1"]
    assert plan.instances_of("a") == plan.instances


def test_a_pin_that_is_too_small_is_refused_and_with_force_obeyed_and_called_tight():
    pinned = PINNED + "devices = [1]\n"
    refused = plan_of(config_of(pinned), machine(80, 8), 10.0)
    assert refused.rejected is not None
    assert where(refused) == {"a": ("CUDA0",)}
    forced = plan_of(config_of(pinned + "force = true\n"), machine(80, 8), 10.0)
    assert where(forced) == {"a": ("CUDA1",)}
    assert list(forced.tight["a"]) == ["CUDA1"]


def test_the_pin_of_a_model_wins_over_that_of_its_role():
    text = PINNED + "devices = [1]\n[placement.chat]\ndevices = [0]\n"
    assert where(plan_of(config_of(text), machine(24, 24))) == {"a": ("CUDA1",)}


def test_what_is_pinned_has_its_room_before_the_rest_is_placed():
    text = '[models.e]\nrole = "embed"\npath = "/m/e.gguf"\n' + PINNED + "devices = [1]\n"
    plan = plan_of(config_of(text), machine(24, 26), {"e": 20.0, "a": 20.0})
    assert where(plan) == {"e": ("CUDA0",), "a": ("CUDA1",)}
    assert plan.tight == {}


def test_a_model_may_have_the_name_that_a_swap_set_would_have():
    text = '[models.swap-CUDA0]\npath = "/m/x.gguf"\nkeep = true\n'
    text += "".join(f'[models.{name}]\npath = "/m/{name}.gguf"\n' for name in "ab")
    plan = plan_of(config_of(text), machine(24), {"a": 15.0, "b": 15.0, "swap-CUDA0": 1.0})
    assert sorted(group.id for group in plan.groups) == ["swap-CUDA0", "swap-swap-CUDA0"]


def test_the_plan_is_in_plan_order():
    text = config(c="", v='role = "vision"', r='role = "rerank"', e='role = "embed"')
    assert [each.id for each in plan_of(text, machine(80)).instances] == ["e", "r", "v", "c"]


def test_an_instance_or_model_that_is_not_planned():
    plan = plan_of(config(a=""), machine(24))
    assert plan.instances_of("b") == ()
    with pytest.raises(KeyError):
        plan.instance("b")


def test_the_notes_of_the_inventory_come_first_among_the_reasons():
    inventory = msgspec.structs.replace(machine(8), notes=("a note",))
    assert plan_of(config(a=""), inventory, 10.0).reasons[0] == "a note"


def test_a_plan_looks_at_nothing_but_its_arguments():
    text = config(a="", b="")
    one = make_plan(text, machine(24), files_of(text))
    assert one == make_plan(text, machine(24), files_of(text))
