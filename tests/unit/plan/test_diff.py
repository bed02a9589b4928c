"""What applying a plan does to each group."""

from tests.fakes.values import config_of, machine, plan_of

from pannier.plan.diff import Change, changes, nothing_to_do
from pannier.plan.values import Plan

TWO = '[models.a]\npath = "/m/a"\ncontext = 512\n[models.b]\npath = "/m/b"\n'


def plan(text=TWO, *cards, gib=4.0):
    return plan_of(config_of(text), machine(*cards or (24, 24)), gib)


def test_where_nothing_runs_all_is_created():
    found = changes(Plan(), plan(), {}, {"a": "1", "b": "2"})
    assert [(each.group, each.kind) for each in found] == [("a", "create"), ("b", "create")]
    assert not nothing_to_do(found)


def test_what_is_equal_is_kept_and_there_is_nothing_to_do():
    found = changes(plan(), plan(), {"a": "1", "b": "2"}, {"a": "1", "b": "2"})
    assert {each.kind for each in found} == {"keep"}
    assert nothing_to_do(found)
    assert nothing_to_do(())


def test_what_differs_is_replaced_with_the_reason():
    after = plan(TWO.replace("512", "1024"))
    found = changes(plan(), after, {"a": "1", "b": "2"}, {"a": "3", "b": "2"})
    assert found[0] == Change(
        group="a", kind="replace", members=("a",), why=("context 512 -> 1024",)
    )
    assert found[1].kind == "keep"


def test_a_move_names_both_places():
    before = plan(TWO + "[placement.a]\ndevices = [0]\n")
    after = plan(TWO + "[placement.a]\ndevices = [0, 1]\ntensor_split = [3, 1]\n")
    (found, _) = changes(before, after, {"a": "1", "b": "2"}, {"a": "3", "b": "2"})
    assert "devices CUDA0 -> CUDA0+CUDA1 (3:1)" in found.why


def test_a_command_line_that_differs_is_said_even_where_the_plan_is_the_same():
    (found, _) = changes(plan(), plan(), {"a": "1", "b": "2"}, {"a": "9", "b": "2"})
    assert found.why == ("its command line, environment or engine differs",)


def test_what_is_not_planned_any_more_is_removed_at_the_end():
    found = changes(plan(), Plan(), {"b": "2", "a": "1"}, {})
    assert [(each.group, each.kind, each.members) for each in found] == [
        ("a", "remove", ("a",)),
        ("b", "remove", ("b",)),
    ]


def test_who_joins_and_leaves_a_swap_set_is_named():
    three = TWO + '[models.c]\npath = "/m/c"\n'
    before, after = plan(TWO, 24, gib=15.0), plan(three, 24, gib=15.0)
    (group,) = after.groups
    (found,) = changes(before, after, {group.id: "1"}, {group.id: "2"})
    assert "c joins" in found.why
    (back,) = changes(after, before, {group.id: "2"}, {group.id: "1"})
    assert "c leaves" in back.why
