"""What is shown of a plan, row by row; the numbers of the specification are in the names."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fakes.values import GIB, config_of, files_of, machine, plan_of

from pannier.devices.inventory import Inventory
from pannier.errors import Problem
from pannier.plan.placement import make_plan
from pannier.plan.values import Plan
from pannier.plan.view import inventory_of, view_of
from pannier.plan.view import plan_of as plan_in


def config(tables="", **models):
    text = "".join(
        f'[models.{name}]\npath = "/m/{name}.gguf"\n{keys}\n' for name, keys in models.items()
    )
    return config_of(text + tables or "[server]\n")


def view(conf, inventory, gib=4.0):
    return view_of(plan_of(conf, inventory, gib), inventory)


def test_ap_2_a_device_row_has_what_a_card_is_and_who_holds_it():
    inventory = machine(24)
    device = msgspec.structs.replace(
        inventory.devices[0], uuid="GPU-1234", pci="0000:01:00.0", used_by_us=3, used_by_others=GIB,
        free=5 * GIB, reserve=GIB,
    )  # fmt: skip
    (row,) = view(config(), Inventory(devices=(device,), engine_backend="cuda")).gpus
    assert (row.index, row.backend, row.label, row.name) == (0, "cuda", "CUDA0", "Card 0")
    assert (row.total_bytes, row.free_bytes) == (24 * GIB, 5 * GIB)
    assert (row.uuid, row.pci) == ("GPU-1234", "0000:01:00.0")
    assert (row.used_by_us, row.used_by_others, row.reserve) == (3, GIB, GIB)
    assert (row.takers, row.planned_bytes, row.left_bytes) == ((), 0, 22 * GIB)


def test_ap_3_a_role_row_keeps_each_split_with_its_devices():
    tables = "[placement.a]\ndevices = [0, 1]\ntensor_split = [3, 1]\n"
    shown = view(config(tables, a="", b=""), machine(24, 24))
    rows = {row.model: row for row in shown.roles}
    assert (rows["a"].devices, rows["a"].tensor_split) == (("CUDA0", "CUDA1"), (3, 1))
    assert rows["b"].tensor_split is None
    (instance,) = rows["a"].instances
    assert (instance.devices, instance.tensor_split) == (("CUDA0", "CUDA1"), (3, 1))
    assert len(instance.device_bytes) == 2


def test_ap_3_replicas_on_different_devices_are_not_merged_into_one_split():
    plan = plan_of(config("[placement.a]\ndevices = [0, 1]\nreplicas = 2\n", a=""), machine(24, 24))
    one = msgspec.structs.replace(plan.instances[0], id="a#0", devices=("CUDA0",))
    two = msgspec.structs.replace(
        one, id="a#1", replica=1, devices=("CUDA1", "CUDA2"), tensor_split=(2, 1)
    )
    (row,) = view_of(
        msgspec.structs.replace(plan, instances=(one, two), groups=()), machine()
    ).roles
    assert (row.replicas, row.devices, row.tensor_split) == (2, ("CUDA0", "CUDA1", "CUDA2"), None)
    assert [each.tensor_split for each in row.instances] == [None, (2, 1)]


def test_ap_5_roles_are_in_plan_order_and_the_rest_by_name():
    models = {
        "z": 'role = "chat"', "y": 'role = "vision"', "x": 'role = "rerank"', "w": 'role = "embed"',
        "b": 'role = "embed"',
    }  # fmt: skip
    plan = plan_of(config(**models), machine(48), 1.0)
    shown = view_of(plan, machine(48))
    assert [row.model for row in shown.roles] == ["b", "w", "x", "y", "z"]
    assert [row.role for row in shown.roles] == ["embed", "embed", "rerank", "vision", "chat"]
    mixed = msgspec.structs.replace(
        plan,
        instances=plan.instances[::-1],
        tight={"z": {"CUDA0": 1}, "b": {"CUDA0": 2}},
        co_tenants={"CUDA1": ("z", "b"), "CUDA0": ("y", "x")},
    )
    shown = view_of(mixed, machine(48))
    assert [row.model for row in shown.roles] == ["b", "w", "x", "y", "z"]
    assert [row.instance for row in shown.tight] == ["b", "z"]
    assert [(row.device, row.instances) for row in shown.co_tenants] == [
        ("CUDA0", ("x", "y")),
        ("CUDA1", ("b", "z")),
    ]


def test_ap_6_four_facts_are_four_fields_and_an_empty_table_explains_itself():
    cards = view(config(a="", b="", c="", d=""), machine(24), {"a": 2, "b": 2, "c": 60, "d": -1})
    assert cards.skipped_not_installed == ("d",)
    assert [row.instance for row in cards.tight] == ["c"]
    assert [row.device for row in cards.co_tenants] == ["CUDA0"]
    assert (cards.unplaceable, cards.empty) == ((), None)
    host = view(config(a=""), machine(ram_gib=8), 40.0)
    (refused,) = host.unplaceable
    assert refused.need > refused.have
    assert refused.parts["weights"] == 40 * GIB
    assert refused.ways_out
    assert host.empty == "no model runs: 1 cannot be placed on this machine"
    assert view(config(), machine(24)).empty == "the config has no models"
    assert view(config(a=""), machine(24), -1).empty == "no model runs: 1 not installed"


def test_ap_7_what_is_tight_says_by_how_much_on_each_device():
    shown = view(config(a="", b=""), machine(8), {"a": 40.0, "b": 5.0})
    (row,) = shown.tight
    assert row.instance == "a"
    assert set(row.shortfall) == {"CUDA0"}
    assert all(missing > 0 for missing in row.shortfall.values())
    zero = view_of(Plan(tight={"a": {"CUDA0": 0}}), machine(8))
    assert zero.tight == ()


def test_ap_8_a_swap_set_counts_once_at_its_largest_member():
    conf = config(a="", b="", e='role = "embed"')
    plan = plan_of(conf, machine(24), {"a": 15.0, "b": 14.0, "e": 1.0})
    (row,) = view_of(plan, machine(24)).gpus
    taken = {taker.group: taker for taker in row.takers}
    swap = next(taker for taker in row.takers if taker.swap)
    sizes = [plan.instance(member).device_bytes[0].total for member in swap.members]
    assert len(sizes) > 1
    assert swap.bytes == max(sizes)
    assert row.planned_bytes == sum(taker.bytes for taker in taken.values())
    assert row.planned_bytes < sum(sizes) + taken["e"].bytes
    assert row.left_bytes == 24 * GIB - row.planned_bytes


@pytest.mark.parametrize(
    ("inventory", "backend", "why"),
    [
        (machine(24), "cuda", None),
        (machine(), "cpu", "the engine listed no device: models run on the CPU"),
        (Inventory(notes=("it took too long",)), "unknown", "it took too long"),
        (Inventory(), "unknown", "the engine did not list its devices"),
    ],
    ids=["cards", "no cards", "silent with a reason", "silent"],
)
def test_ap_9_the_backend_is_the_readings_and_an_empty_list_alone_proves_nothing(
    inventory, backend, why
):
    shown = view_of(Plan(), inventory)
    assert (shown.engine_backend, shown.no_gpus) == (backend, why)


def test_ap_10_without_a_spec_the_plan_is_automatic():
    shown = view(config(a=""), machine(24))
    assert (shown.manual, shown.spec, shown.rejected_spec) == (False, None, None)


def test_ap_11_a_spec_that_is_obeyed_is_shown_in_its_one_spelling():
    shown = view(config("[placement.a]\nforce = false\ndevices = [0]\n", a=""), machine(24))
    assert (shown.manual, shown.rejected_spec) == (True, None)
    assert shown.spec == {"a": {"devices": [0]}}


def test_ap_12_a_spec_that_does_not_fit_any_more_is_rejected_and_comes_back_when_it_does():
    conf = config("[placement.a]\ndevices = [1]\n", a="")
    shown = view(conf, machine(24))
    assert (shown.manual, shown.spec) == (False, None)
    assert shown.rejected_spec.spec == {"a": {"devices": [1]}}
    assert shown.rejected_spec.reason
    assert [row.devices for row in shown.roles] == [("CUDA0",)], "the automatic plan runs"
    again = view(conf, machine(24, 24))
    assert (again.manual, again.rejected_spec) == (True, None)
    assert [row.devices for row in again.roles] == [("CUDA1",)]


def test_ap_13_a_saved_placement_that_cannot_be_read_is_rejected_and_breaks_no_view():
    broken = Problem(code="type", where="placement.a.devices", line=9, message="expected a list")
    other = Problem(code="type", where="models.a.slots", message="expected a number")
    plan = plan_of(config(a=""), machine(24))
    shown = view_of(plan, machine(24), problems=(other, broken))
    assert shown.rejected_spec.spec is None
    assert "expected a list" in shown.rejected_spec.reason
    assert "number" not in shown.rejected_spec.reason
    assert [row.model for row in shown.roles] == ["a"]
    assert view_of(plan, machine(24), problems=(other,)).rejected_spec is None


def test_ap_13_an_empty_placement_is_no_placement():
    shown = view_of(Plan(spec="{}"), machine(24))
    assert shown.spec is None


def test_v_1_a_view_is_a_function_of_plan_and_devices():
    conf, inventory = config(a="", b=""), machine(24, 24)
    files = files_of(conf)
    one, other = (
        view_of(make_plan(conf, inventory, files), inventory, {"a": "1", "b": "2"})
        for _ in range(2)
    )
    assert msgspec.json.encode(one) == msgspec.json.encode(other)


def test_the_etag_is_of_what_is_planned_and_not_of_free_memory():
    conf, inventory = config(a="", b=""), machine(24, 24)
    plan = plan_of(conf, inventory)
    etag = view_of(plan, inventory, {"a": "1"}).etag
    busy = msgspec.structs.replace(
        inventory,
        devices=tuple(msgspec.structs.replace(each, free=0) for each in inventory.devices),
    )
    later = msgspec.structs.replace(plan, generation=7)
    assert view_of(later, busy, {"a": "1"}).etag == etag
    assert view_of(plan, inventory, {"a": "2"}).etag != etag, "another command line"
    pinned = plan_of(config("[placement.a]\ndevices = [1]\n", a="", b=""), inventory)
    assert view_of(pinned, inventory, {"a": "1"}).etag != etag


def test_a_view_tells_the_machine_and_who_runs_where_to_the_next_planner():
    conf = config(a="", b='role = "embed"')
    inventory = machine(24, 12)
    plan = plan_of(conf, inventory)
    shown = msgspec.json.decode(
        msgspec.json.encode(view_of(plan, inventory)), type=type(view_of(plan, inventory))
    )
    assert inventory_of(shown) == inventory
    assert plan_in(shown).instances == plan.instances
    assert plan_in(shown).groups == plan.groups


SIZES = st.lists(st.sampled_from([-1.0, 0.5, 3.0, 7.0, 11.0, 30.0]), max_size=5)
CARDS = st.lists(st.sampled_from([8.0, 12.0, 24.0]), max_size=3)


@given(SIZES, CARDS)
@settings(deadline=None, max_examples=60)
def test_every_model_is_shown_once_and_every_byte_belongs_to_somebody(sizes, cards):
    names = {f"m{at}": size for at, size in enumerate(sizes)}
    inventory = machine(*cards, ram_gib=16)
    plan = plan_of(config(**dict.fromkeys(names, "")), inventory, names)
    shown = view_of(plan, inventory)
    told = [row.model for row in shown.roles] + [each.model for each in shown.unplaceable]
    assert sorted([*told, *shown.skipped_not_installed]) == sorted(names)
    for row in shown.gpus:
        assert row.planned_bytes == sum(taker.bytes for taker in row.takers)
        members = [each for taker in row.takers for each in taker.members]
        assert len(members) == len(set(members))
        assert sorted(members) == sorted(i.id for i in plan.instances if row.label in i.devices)
        tight = any(row.label in each.shortfall for each in shown.tight)
        assert tight or row.planned_bytes + row.left_bytes == row.total_bytes - row.reserve
    assert all(missing > 0 for each in shown.tight for missing in each.shortfall.values())
    assert (shown.empty is None) == bool(shown.roles)
