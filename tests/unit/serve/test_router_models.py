"""The model list, and the choice of an instance among replicas."""

import json

import msgspec
import pytest
from tests.fakes.snapshots import snapshot_of

from pannier.fleet.view import FleetView
from pannier.progress.hub import Latest
from pannier.serve.errors import ApiError
from pannier.serve.openai import OpenAiRoutes

REPLICAS = '[models.a]\npath = "/m/a"\n[placement.a]\ndevices = [0]\nreplicas = 3\n'


def with_load(**inflight):
    """Three replicas, of which these serve so many requests."""
    snapshot = snapshot_of(REPLICAS)
    groups = tuple(
        msgspec.structs.replace(
            group,
            instances=tuple(
                msgspec.structs.replace(view, inflight=inflight[view.id.replace("#", "")])
                for view in group.instances
            ),
        )
        for group in snapshot.fleet.groups
    )
    return msgspec.structs.replace(snapshot, fleet=FleetView(groups=groups))


def choice(snapshot, name="a"):
    return OpenAiRoutes(Latest(snapshot)).choose(name)


def test_the_replica_that_is_least_busy_is_chosen_and_the_first_of_equals():
    assert choice(with_load(a0=2, a1=1, a2=3)) == "a#1"
    assert choice(with_load(a0=1, a1=1, a2=1)) == "a#0"


@pytest.mark.parametrize("other", ["cold", "loading", "failed", "draining"])
def test_a_ready_replica_comes_before_every_other(other):
    assert choice(snapshot_of(REPLICAS, {"a#0": other, "a#1": other, "a#2": "ready"})) == "a#2"


def test_without_any_that_runs_the_first_is_asked_to():
    assert choice(snapshot_of(REPLICAS, "cold")) == "a#0"


def test_a_name_that_nothing_is_near_gets_the_names_that_there_are():
    with pytest.raises(ApiError, match="known models: a, b") as error:
        choice(snapshot_of(), "zzzzzz")
    assert error.value.status == 404


async def test_a_row_of_the_list_has_both_dialects(stand):
    _, body = await stand.get("/v1/models")
    row = json.loads(body)["data"][0]
    assert (row["id"], row["object"], row["owned_by"]) == ("a", "model", "pannier")
    assert row["status"] == {"value": "loaded"}
    assert row["pannier"]["aliases"] == ["gpt"]
    assert row["pannier"]["devices"] == ["CUDA0"]


@pytest.mark.parametrize(
    ("phase", "value"),
    [("cold", "unloaded"), ("queued", "loading"), ("loading", "loading"), ("failed", "failed"),
     ("ready", "loaded"), ("draining", "unloaded")],
)  # fmt: skip
async def test_each_state_has_a_word_of_the_router(stand, phase, value):
    stand.snapshots.publish(snapshot_of(phases=phase))
    _, body = await stand.get("/models")
    assert {row["status"]["value"] for row in json.loads(body)["data"]} == {value}


async def test_what_cannot_be_served_is_listed_with_its_reason(stand):
    stand.snapshots.publish(snapshot_of(gib={"a": -1, "b": 1}))
    _, body = await stand.get("/v1/models/a")
    shown = json.loads(body)["pannier"]
    assert (shown["available"], shown["error"]["code"]) == (False, "not-installed")


async def test_a_load_and_an_unload_reach_every_replica(stand):
    stand.snapshots.publish(snapshot_of(REPLICAS, "cold"))
    assert await stand.post("/models/load", {"model": "a"}) == (200, {"success": True})
    assert await stand.post("/models/unload", {"model": "a"}) == (200, {"success": True})
    assert stand.wished == stand.unloaded == ["a#0", "a#1", "a#2"]


async def test_a_load_of_what_cannot_be_loaded_is_refused(stand):
    stand.snapshots.publish(snapshot_of(gib={"a": -1, "b": 1}))
    assert (await stand.post("/models/load", {"model": "a"}))[0] == 503
    assert (await stand.post("/models/load", {"model": "zzz"}))[0] == 404
    assert stand.wished == []
