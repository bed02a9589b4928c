"""The row of a model in every state that there is, in the exact shape of its JSON."""

import json

import msgspec
import pytest
from tests.fakes.snapshots import snapshot_of
from tests.fakes.values import machine

from pannier.errors import Failure
from pannier.fleet.view import FleetView
from pannier.gguf.model_files import ModelFiles
from pannier.progress.parse import Report
from pannier.progress.tracker import advance, begin, end
from pannier.serve.rows import listing, row, rows, wanted_ready

ONE = '[models.a]\npath = "/m/a.gguf"\naliases = ["gpt"]\n'
SWAP = "".join(f'[models.{name}]\npath = "/m/{name}"\n' for name in "ab")
REPLICAS = '[models.a]\npath = "/m/a"\n[placement.a]\ndevices = [0]\nreplicas = 2\n'
FILES = ModelFiles(path="/m/a.gguf", weights=1000)
NOTHING = {
    "stage": None, "fraction": None, "bytes_done": None, "bytes_total": None, "eta_s": None,
    "elapsed_s": None, "source": None, "stalled": False, "making_room": None, "error": None,
}  # fmt: skip


def half_way():
    report = Report(
        v=1, instance="a", launcher=1, pid=100, port=9000, phase="loading",
        stage="text_model", value=0.5, stages=("text_model",), progress_lines=True,
    )  # fmt: skip
    return advance(begin(FILES, 100.0), report, FILES, 110.0)


def shown(snapshot, model="a", now=110.0):
    return json.loads(msgspec.json.encode(row(snapshot, model, now)))


def instance(**fields):
    return {
        "id": "a", "state": "cold", "stage": None, "fraction": None, "group": "a", "pid": None,
        "port": None, "devices": ["CUDA0"], **fields,
    }  # fmt: skip


def whole(state, *instances, **fields):
    return {
        "id": "a", "object": "model.readiness", "role": "chat", "aliases": ["gpt"], "state": state,
        **NOTHING, "instances": list(instances), **fields,
    }  # fmt: skip


def test_cold():
    assert shown(snapshot_of(ONE, "cold")) == whole("cold", instance())


def test_ap_31_32_a_cold_model_shows_nothing_of_its_last_load():
    old = end(half_way(), 111.0)
    assert shown(snapshot_of(ONE, "cold", progress=old)) == whole("cold", instance())


def test_queued():
    assert shown(snapshot_of(ONE, "queued")) == whole(
        "queued", instance(state="queued", stage="queued"), stage="queued"
    )


def test_queued_until_another_has_made_room():
    assert shown(snapshot_of(ONE, "queued", making_room="b")) == whole(
        "queued",
        instance(state="queued", stage="making_room"),
        stage="making_room",
        making_room="b",
    )


def test_a_group_that_waits_for_what_it_needs_is_queued_when_it_is_wanted():
    assert shown(snapshot_of(ONE, waiting=("a",)))["state"] == "queued"
    lazy = ONE + "preload = false\n"
    assert shown(snapshot_of(lazy, waiting=("a",)))["state"] == "cold"


def test_loading():
    assert shown(snapshot_of(ONE, "loading", progress=half_way())) == whole(
        "loading",
        instance(state="loading", stage="weights", fraction=0.475),
        stage="weights", fraction=0.475, bytes_done=500, bytes_total=1000, eta_s=11.1,
        elapsed_s=10.0, source="engine",
    )  # fmt: skip


def test_loading_before_anything_is_known():
    row = shown(snapshot_of(ONE, "loading", progress=begin(FILES, 100.0)))
    assert (row["stage"], row["fraction"], row["elapsed_s"]) == ("starting", None, 10.0)


def test_loading_and_stalled():
    assert shown(snapshot_of(ONE, "loading", progress=half_way()), now=200.0)["stalled"] is True


def test_ap_30_ready_is_what_the_fleet_knows_and_not_that_nothing_loads():
    ready = Report(v=1, instance="a", launcher=1, pid=100, port=9000, phase="ready")
    done = advance(half_way(), ready, FILES, 112.0)
    assert shown(snapshot_of(ONE, "ready", progress=done), now=500.0) == whole(
        "ready",
        instance(state="ready", fraction=1.0, pid=100, port=9000),
        fraction=1.0, bytes_done=1000, bytes_total=1000, elapsed_s=12.0, source="engine",
    )  # fmt: skip
    nothing = msgspec.structs.replace(snapshot_of(ONE), fleet=FleetView())
    assert shown(nothing)["state"] != "ready"


def test_ap_34_a_model_that_was_evicted_is_not_ready_whatever_its_last_load_says():
    ready = Report(v=1, instance="a", launcher=1, pid=100, port=9000, phase="ready")
    done = advance(half_way(), ready, FILES, 112.0)
    for phase in ("cold", "queued", "draining", "unloading"):
        row = shown(snapshot_of(ONE, phase, progress=done))
        assert row["state"] in ("cold", "queued", "draining")
        assert row["fraction"] is None


def test_ap_33_failed_has_its_reason_and_its_time_stands_still():
    row = shown(snapshot_of(ONE, "failed", progress=end(half_way(), 113.0)), now=900.0)
    assert (row["state"], row["stage"], row["eta_s"], row["stalled"]) == (
        "failed",
        None,
        None,
        False,
    )
    assert row["elapsed_s"] == 13.0
    assert row["error"] == {
        "code": "out-of-memory", "message": "a ran out of memory",
        "detail": None, "hint": "use less",
    }  # fmt: skip


@pytest.mark.parametrize("phase", ["cold", "queued", "loading", "ready", "draining", "unloading"])
def test_ap_33_without_a_failure_there_is_no_error(phase):
    old = Failure(code="old", message="of an earlier try")
    snapshot = snapshot_of(ONE, phase)
    view = snapshot.fleet.groups[0].instances[0]
    group = msgspec.structs.replace(
        snapshot.fleet.groups[0], instances=(msgspec.structs.replace(view, failure=old),)
    )
    snapshot = msgspec.structs.replace(snapshot, fleet=FleetView(groups=(group,)))
    assert shown(snapshot)["error"] is None


@pytest.mark.parametrize("phase", ["draining", "unloading"])
def test_draining(phase):
    assert shown(snapshot_of(ONE, phase))["state"] == "draining"


@pytest.mark.parametrize("phase", ["draining", "stopping"])
def test_a_group_on_its_way_out_drains_whatever_its_members_do(phase):
    assert shown(snapshot_of(ONE, "ready", group_phase=phase))["state"] == "draining"


def test_not_installed():
    row = shown(snapshot_of(ONE, gib=-1))
    assert (row["state"], row["instances"]) == ("not_installed", [])
    assert row["error"]["code"] == "not-installed"
    assert "/m/a.gguf" in row["error"]["message"]
    assert "by itself" in row["error"]["hint"]


def test_unplaceable():
    row = shown(snapshot_of(ONE, inventory=machine(ram_gib=8), gib=100))
    assert row["state"] == "unplaceable"
    assert "112.5 GiB" in row["error"]["message"]
    assert "smaller" in row["error"]["hint"]


def test_a_pin_on_a_device_that_is_not_there_is_rejected_and_the_model_served():
    snapshot = snapshot_of(ONE + "[placement.a]\ndevices = [7]\n")
    assert shown(snapshot)["state"] != "unplaceable"
    assert "device 7" in snapshot.plan.rejected.reason


@pytest.mark.parametrize(
    ("phases", "state"),
    [
        (("failed", "ready"), "ready"), (("cold", "loading"), "loading"),
        (("failed", "cold"), "cold"), (("queued", "draining"), "queued"),
        (("failed", "failed"), "failed"),
    ],
)  # fmt: skip
def test_r_1_a_model_of_replicas_shows_the_best_of_them_and_all_below(phases, state):
    snapshot = snapshot_of(REPLICAS, dict(zip(("a#0", "a#1"), phases, strict=True)))
    found = shown(snapshot)
    assert found["state"] == state
    assert [each["id"] for each in found["instances"]] == ["a#0", "a#1"]
    assert [each["state"] for each in found["instances"]] == list(phases)


def test_r_1_every_member_of_a_swap_set_has_its_row():
    snapshot = snapshot_of(SWAP, {"a": "ready", "b": "cold"}, inventory=machine(6), gib=4.0)
    assert [(each.id, each.state) for each in rows(snapshot, 0.0)] == [
        ("a", "ready"),
        ("b", "cold"),
    ]
    assert {each.instances[0].group for each in rows(snapshot, 0.0)} == {"swap-CUDA0"}


def test_one_member_of_a_swap_set_that_is_ready_is_enough():
    snapshot = snapshot_of(SWAP, {"a": "ready", "b": "cold"}, inventory=machine(6), gib=4.0)
    assert listing(snapshot, 0.0).ready
    snapshot = snapshot_of(SWAP, {"a": "loading", "b": "cold"}, inventory=machine(6), gib=4.0)
    assert not listing(snapshot, 0.0).ready


def test_a_model_without_a_place_is_shown_and_not_waited_for():
    assert wanted_ready(snapshot_of(ONE, gib=-1), "a")


def test_the_list_has_the_keys_that_clients_read():
    made = json.loads(msgspec.json.encode(listing(snapshot_of(), 0.0)))
    assert list(made) == ["object", "ready", "generation", "host", "config", "data"]
    assert list(made["config"]) == ["path", "loaded_at", "problems", "notes"]
    assert [each["id"] for each in made["data"]] == ["a", "b"]
