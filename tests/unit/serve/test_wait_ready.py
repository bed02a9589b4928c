"""Waiting for a model, a role or a change, on a clock of its own: minutes in milliseconds."""

import asyncio

import msgspec
import pytest
from tests.fakes.snapshots import OUT_OF_MEMORY, snapshot_of
from tests.fakes.values import machine

from pannier.placement.waiting import GRACE_S, LONGEST_S, Awaited, wait_applied, wait_ready
from pannier.progress.hub import Latest
from pannier.serve.snapshot import Snapshot

pytestmark = pytest.mark.looptime

ROLES = """\
[models.a]
path = "/m/a.gguf"
aliases = ["gpt"]
[models.b]
path = "/m/b.gguf"
[models.e]
role = "embed"
path = "/m/e.gguf"
"""


def now() -> float:
    return asyncio.get_running_loop().time()


def latest(phases, text=ROLES, **more) -> Latest[Snapshot]:
    return Latest(snapshot_of(text, phases, **more))


async def later(snapshots: Latest[Snapshot], *steps: tuple[float, object], **more: object) -> None:
    for seconds, phases in steps:
        await asyncio.sleep(seconds)
        snapshots.publish(snapshot_of(ROLES, phases, **more))


@pytest.mark.parametrize("name", ["a", "gpt", "chat"])
async def test_ap_24_what_is_ready_is_ready_at_once_before_anything_else_is_asked(name):
    began = now()
    assert await wait_ready(latest("ready"), name, timeout_s=0.0, should_abort=lambda: True)
    assert now() == began


async def test_ap_24_the_abort_comes_before_the_snapshot_is_looked_at():
    began, told = now(), []
    assert not await wait_ready(
        latest("loading"), "a", on_progress=told.append, should_abort=lambda: True
    )
    assert (now(), told) == (began, [])


async def test_ap_25_progress_is_told_for_loads_in_flight_only():
    snapshots, told = latest({"a": "loading", "b": "ready"}), []
    task = asyncio.create_task(later(snapshots, (1.5, {"a": "ready", "b": "ready"})))
    assert await wait_ready(snapshots, "chat", on_progress=told.append)
    await task
    assert told
    assert {(row.id, row.state) for row in told} == {("a", "loading")}


async def test_ap_26_a_load_in_flight_renews_the_grace_and_without_one_it_ends():
    snapshots = latest({"a": "loading"})
    task = asyncio.create_task(later(snapshots, (100.0, {"a": "cold"})))
    began = now()
    assert not await wait_ready(snapshots, "a")
    await task
    assert 100.0 + GRACE_S - 1.1 <= now() - began <= 100.0 + GRACE_S


async def test_ap_26_what_comes_within_the_grace_is_waited_for():
    snapshots = latest({"a": "cold"})
    steps = (GRACE_S - 0.5, {"a": "loading"}), (60.0, {"a": "ready"})
    task = asyncio.create_task(later(snapshots, *steps))
    assert await wait_ready(snapshots, "a")
    await task


async def test_ap_27_the_deadline_beats_a_load_that_goes_on():
    began = now()
    assert not await wait_ready(latest({"a": "loading"}), "a", timeout_s=10.0)
    assert now() - began == 10.0
    assert LONGEST_S == 1800.0


async def test_ap_27_it_wakes_on_change():
    snapshots = latest({"a": "loading"})
    task = asyncio.create_task(later(snapshots, (0.25, {"a": "ready"})))
    began = now()
    assert await wait_ready(snapshots, "a")
    await task
    assert now() - began == 0.25


async def test_ap_28_with_nothing_of_a_role_there_is_nothing_to_wait_for():
    began = now()
    for name in ("rerank", "nobody"):
        assert not await wait_ready(latest("loading"), name)
    assert now() == began


async def test_ap_30_that_nothing_loads_is_not_ready():
    for phase in ("cold", "failed", "draining"):
        assert not await wait_ready(latest({"a": phase}), "a", timeout_s=30.0)


async def test_ap_34_a_model_that_was_ready_and_has_left_is_not_ready():
    snapshots = latest({"a": "ready"})
    assert await wait_ready(snapshots, "a")
    snapshots.publish(snapshot_of(ROLES, {"a": "cold"}))
    assert not await wait_ready(snapshots, "a")


async def test_of_a_swap_set_one_member_is_all_that_can_be_ready():
    text = '[models.a]\npath = "/m/a"\n[models.b]\npath = "/m/b"\n'
    snapshots = latest({"a": "ready"}, text, inventory=machine(24), gib=15.0)
    assert [group.swap for group in snapshots.value.plan.groups] == [True]
    assert await wait_ready(snapshots, "chat")
    assert not await wait_ready(snapshots, "b"), "asked for by name it has to be that one"


def awaited(snapshots: Latest[Snapshot], *groups: str, **more: object) -> Awaited:
    return Awaited(generation=snapshots.value.generation, groups=dict.fromkeys(groups, "0"), **more)


async def test_ap_1_a_change_without_a_sign_of_a_load_ends_after_the_grace():
    snapshots = latest({"a": "cold"})
    began = now()
    outcome = await wait_applied(snapshots, awaited(snapshots, "a"))
    assert (outcome.failure, now() - began) == (None, GRACE_S)


async def test_ap_28_a_change_that_restarts_nothing_stalls_nobody():
    began = now()
    snapshots = latest("loading")
    assert (await wait_applied(snapshots, awaited(snapshots))).failure is None
    assert now() == began


async def test_a_change_is_over_when_its_groups_run_and_others_do_not_matter():
    snapshots = latest({"a": "loading", "b": "loading"})
    task = asyncio.create_task(later(snapshots, (200.0, {"a": "ready", "b": "loading"})))
    began = now()
    await wait_applied(snapshots, awaited(snapshots, "a"))
    await task
    assert now() - began == 200.0


async def test_a_group_of_the_same_name_that_runs_something_else_does_not_count():
    snapshots = latest("ready")
    before = snapshots.value
    old = tuple(msgspec.structs.replace(g, identity="old") for g in before.fleet.groups)
    fleet = msgspec.structs.replace(before.fleet, groups=old, waiting=("a",))
    snapshots.publish(msgspec.structs.replace(before, fleet=fleet))
    task = asyncio.create_task(later(snapshots, (50.0, "ready")))
    began = now()
    await wait_applied(snapshots, awaited(snapshots, "a"))
    await task
    assert now() - began == 50.0


async def test_a_load_that_fails_ends_the_wait_with_its_reason():
    snapshots = latest({"a": "failed", "b": "loading"})
    outcome = await wait_applied(snapshots, awaited(snapshots, "a", "b"))
    assert (outcome.instance, outcome.failure) == ("a", OUT_OF_MEMORY)


async def test_one_that_failed_before_is_not_waited_for():
    snapshots = latest({"a": "failed", "b": "ready"})
    wanted = awaited(snapshots, "a", "b", failed_before=frozenset({"a"}))
    assert (await wait_applied(snapshots, wanted)).failure is None


async def test_another_generation_ends_the_wait():
    snapshots = latest({"a": "loading"})
    task = asyncio.create_task(later(snapshots, (5.0, {"a": "loading"}), generation=2))
    outcome = await wait_applied(snapshots, awaited(snapshots, "a"))
    await task
    assert outcome.replaced
