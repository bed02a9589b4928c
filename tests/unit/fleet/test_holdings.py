"""What our engines hold of each device, by what is planned and what runs."""

import msgspec
import pytest
from tests.fakes.snapshots import snapshot_of
from tests.fakes.values import machine

from pannier.fleet.holdings import holdings
from pannier.plan.values import Plan


def test_models_in_memory_and_on_their_way_there_count_and_others_do_not():
    seen = snapshot_of(phases={"a": "ready", "b": "cold"}, inventory=machine(24))
    a, b = (seen.plan.instance(name).bytes_needed for name in ("a", "b"))
    ours = holdings(seen.plan, seen.fleet)
    assert ours.pids == {100}
    assert ours.expected == {"CUDA0": a}
    seen = snapshot_of(phases={"a": "ready", "b": "loading"}, inventory=machine(24))
    assert holdings(seen.plan, seen.fleet).expected == {"CUDA0": a + b}


def test_a_device_is_named_by_its_uuid_where_it_has_one():
    found = machine(24)
    named = msgspec.structs.replace(found.devices[0], uuid="GPU-1")
    seen = snapshot_of(inventory=msgspec.structs.replace(found, devices=(named,)))
    assert set(holdings(seen.plan, seen.fleet).expected) == {"GPU-1"}


def test_a_model_over_two_cards_is_counted_once():
    seen = snapshot_of(
        '[models.a]\npath = "/m/a.gguf"\n[placement.a]\ndevices = [0, 1]\ntensor_split = [3, 1]\n',
        inventory=machine(24, 24), gib=8,
    )  # fmt: skip
    expected = holdings(seen.plan, seen.fleet).expected
    assert set(expected) == {"CUDA0", "CUDA1"}
    assert sum(expected.values()) <= seen.plan.instance("a").bytes_needed
    assert expected["CUDA0"] > expected["CUDA1"] > 0


def test_nothing_runs_and_nothing_is_held():
    seen = snapshot_of(phases="cold")
    ours = holdings(seen.plan, seen.fleet)
    assert (ours.pids, ours.expected) == (frozenset(), {})


@pytest.mark.parametrize("phase", ["draining", "unloading"])
def test_a_model_that_leaves_is_ours_until_it_is_gone(phase):
    seen = snapshot_of(phases={"a": phase, "b": "failed"}, inventory=machine(24))
    ours = holdings(seen.plan, seen.fleet)
    assert ours.expected == {"CUDA0": seen.plan.instance("a").bytes_needed}


def test_a_model_that_the_plan_knows_no_more_is_what_it_was_started_to_take():
    seen = snapshot_of(
        phases={"a": "draining", "b": "ready"}, inventory=machine(24), planned=(7 << 30,)
    )
    (gone, stays) = (holdings(plan, seen.fleet) for plan in (Plan(devices=seen.plan.devices),
                                                             seen.plan))  # fmt: skip
    assert gone.expected == stays.expected == {"CUDA0": 14 << 30}


def test_a_process_that_ended_is_nobody_s():
    """Its number may be that of any program by now."""
    seen = snapshot_of(phases={"a": "ready", "b": "cold"}, inventory=machine(24))
    groups = tuple(
        msgspec.structs.replace(
            group,
            instances=tuple(
                msgspec.structs.replace(each, pid=100 if each.id == "a" else 200)
                for each in group.instances
            ),
        )
        for group in seen.fleet.groups
    )
    assert holdings(seen.plan, msgspec.structs.replace(seen.fleet, groups=groups)).pids == {100}
