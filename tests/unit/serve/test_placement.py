"""The placement over HTTP and the service behind it: real files, edits, plans and writes."""

import asyncio
import io
import json

import msgspec
import pytest
from aiohttp import web
from tests.fakes.desk import TWO_CARDS, TWO_MODELS, Desk
from tests.fakes.values import machine

from pannier.errors import Failure, LoadError, PannierError, Problem
from pannier.placement.live import LivePlacement
from pannier.plan.request import HTTP_REFUSAL, ApplyError, StaleError
from pannier.plan.spec import PlacementError
from pannier.plan.view import View
from pannier.serve.placement import told
from pannier.serve.security import access_of

PATH = "/v1/placement"
ON_ONE = {"a": {"devices": [1]}}
OUT = Failure(code="engine-exited", message="a ended while it was loading")
ADMIN = "admin-key-admin-key-1"
CLIENT = "client-key-client-key"


@pytest.fixture
async def placed(stand):
    """The stand with the snapshots of its desk, as a running Pannier has them."""
    stand.snapshots.publish(stand.desk.snapshots.value)
    return stand


@pytest.fixture
async def desk(tmp_path):
    return Desk(tmp_path)


@pytest.fixture
async def live(desk):
    service = LivePlacement(desk)
    yield service
    await service.aclose()


async def send(stand, method, path=PATH, body=None, **headers):
    """Status, decoded body and headers."""
    options = {"headers": {name.replace("_", "-"): value for name, value in headers.items()}}
    if body is not None:
        data = body if isinstance(body, bytes) else msgspec.json.encode(body)
        options["data"] = io.BytesIO(data)
        options["headers"]["Content-Type"] = "application/json"
    async with stand.client.request(method, stand.url + path, **options) as answer:
        return answer.status, msgspec.json.decode(await answer.read()), answer.headers


def where(view):
    return {row.model: row.devices for row in view.roles}


def other(devices):
    """The other one of two cards."""
    return "CUDA1" if devices == ("CUDA0",) else "CUDA0"


# Reading.


async def test_v_2_reading_the_placement_starts_nothing_and_says_its_etag(placed):
    status, seen, headers = await send(placed, "GET")
    assert status == 200
    assert headers["ETag"] == f'"{seen["etag"]}"'
    assert headers["Cache-Control"] == "no-store"
    view = msgspec.convert(seen, View)
    assert [row.model for row in view.roles] == ["a", "b"]
    assert view.config == str(placed.desk.path)
    assert (placed.lent, placed.wished, placed.unloaded) == ([], [], [])
    assert placed.desk.adopted == [1], "nothing was applied but the first config"


async def test_v_1_the_preview_is_what_is_applied_and_changes_nothing(placed):
    desk = placed.desk
    status, tried, _ = await send(placed, "POST", f"{PATH}/preview", ON_ONE)
    assert (status, tried["manual"], tried["spec"]) == (200, True, ON_ONE)
    assert desk.adopted == [1]
    assert desk.path.read_text() == TWO_MODELS
    status, after, _ = await send(placed, "PUT", body=ON_ONE)
    assert (status, after["etag"]) == (200, tried["etag"])
    for plan in (tried, after):
        plan.pop("generation")
    assert tried == after


async def test_v_1_the_preview_of_nothing_is_the_automatic_plan(placed):
    await send(placed, "PUT", body=ON_ONE)
    status, seen, _ = await send(placed, "POST", f"{PATH}/preview", b"null")
    assert (status, seen["manual"], seen["spec"]) == (200, False, None)


@pytest.mark.parametrize(
    ("body", "status", "says"),
    [
        (b"{", 400, "not valid JSON"),
        (b"[]", 400, "expected an object"),
        ({"c": {"devices": [0]}}, 400, "found \"c\""),
        ({"a": {"devices": [9]}}, 422, "CUDA0"),
        ({"a": {"devices": ["CUDA7"]}}, 422, "CUDA7"),
        (b" ", 400, "empty"),
        (b" " * ((1 << 20) + 1), 413, "at most"),
    ],
    ids=["broken", "list", "unknown model", "no device", "no label", "empty", "huge"],
)  # fmt: skip
@pytest.mark.parametrize("method", ["POST", "PUT"])
async def test_ap_16_what_is_refused_is_told_and_nothing_is_written(
    placed, method, body, status, says
):
    path = f"{PATH}/preview" if method == "POST" else PATH
    found, seen, _ = await send(placed, method, path, body)
    assert found == status, seen
    assert set(seen["error"]) == {"message", "type", "param", "code"}
    assert says in seen["error"]["message"]
    assert placed.desk.path.read_text() == TWO_MODELS
    assert placed.desk.adopted == [1]


# Who may.


@pytest.mark.parametrize("method", ["PUT", "DELETE"])
async def test_ap_15_without_the_permission_changes_are_refused_in_one_text(placed, method):
    config = placed.snapshots.value.config
    server = msgspec.structs.replace(config.server, allow_http_placement=False)
    placed.publish(config=msgspec.structs.replace(config, server=server))
    status, seen, _ = await send(placed, method, body=ON_ONE if method == "PUT" else None)
    assert (status, seen["error"]["code"]) == (409, "placement-not-allowed")
    message = seen["error"]["message"]
    assert message.startswith(HTTP_REFUSAL)
    for word in ("allow_http_placement", "every client", "pannier placement set", "the file"):
        assert word in message
    _, shown, _ = await send(placed, "GET")
    _, tried, _ = await send(placed, "POST", f"{PATH}/preview", ON_ONE)
    assert shown["changes_refused"] == tried["changes_refused"] == message
    assert placed.desk.path.read_text() == TWO_MODELS


async def test_ap_15_where_changes_are_allowed_nothing_is_refused_in_advance(placed):
    _, shown, _ = await send(placed, "GET")
    assert shown["changes_refused"] is None


@pytest.mark.parametrize(
    ("clients", "key", "status"),
    [
        ((CLIENT,), CLIENT, 403),
        ((CLIENT,), ADMIN, 200),
        ((CLIENT,), None, 401),
        ((), None, 401),
        ((), "wrong-wrong-wrong-wrong", 403),
        ((), ADMIN, 200),
    ],
)
async def test_changes_need_the_key_of_an_admin(placed, clients, key, status):
    server = placed.snapshots.value.config.server
    placed.gate.access = access_of(server, clients, (ADMIN,))
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    assert (await send(placed, "PUT", body=ON_ONE, **headers))[0] == status
    assert (placed.desk.path.read_text() == TWO_MODELS) == (status != 200)


@pytest.mark.parametrize(
    ("given", "status"),
    [
        ('"{etag}"', 200),
        ("*", 200),
        ('"other", "{etag}"', 200),
        ('"other"', 412),
        ('W/"{etag}"', 412),
        ("{etag}", 412),
    ],
)
async def test_ap_23_a_change_for_another_plan_is_412(placed, given, status):
    _, _, headers = await send(placed, "GET")
    asked = given.format(etag=headers["ETag"].strip('"'))
    found, seen, _ = await send(placed, "PUT", body=ON_ONE, If_Match=asked)
    assert found == status, seen
    assert (placed.desk.path.read_text() == TWO_MODELS) == (status == 412)


async def test_ap_23_of_two_who_looked_at_the_same_plan_one_is_told(live):
    etag = live.get_placement().etag
    answers = await asyncio.gather(
        live.set_placement(b'{"a": {"devices": [1]}}', etag.__eq__),
        live.set_placement(b'{"a": {"devices": [0]}}', etag.__eq__),
        return_exceptions=True,
    )
    assert [type(each) for each in answers] == [View, StaleError]


# Setting.


async def test_ap_17_nothing_takes_the_tables_out(placed):
    await send(placed, "PUT", body=ON_ONE)
    assert "[placement.a]" in placed.desk.path.read_text()
    status, seen, _ = await send(placed, "DELETE")
    assert (status, seen["spec"]) == (200, None)
    assert placed.desk.path.read_text() == TWO_MODELS
    await send(placed, "PUT", body=ON_ONE)
    assert (await send(placed, "PUT", body={}))[0] == 200
    assert placed.desk.path.read_text() == TWO_MODELS


async def test_ap_18_only_the_tables_change_and_it_is_one_reload(live, desk):
    await live.set_placement(b'{"a": {"devices": [1]}}')
    assert desk.path.read_text() == f"{TWO_MODELS}\n[placement.a]\ndevices = [1]\n"
    assert desk.content == desk.path.read_bytes(), "what runs is what the file says"
    assert desk.adopted == [1, 2]
    assert list(desk.path.parent.glob(".*")) == []
    await live.set_placement(b'{"a": {"devices": [1]}}')
    assert desk.adopted == [1, 2], "the same again is no change"


async def test_ap_19_where_nothing_is_to_be_loaded_nothing_is_waited_for(tmp_path):
    cold = TWO_MODELS.replace('"a.gguf"', '"a.gguf"\npreload = false')
    desk = Desk(tmp_path, cold)
    desk.silent = frozenset({"a"})
    live = LivePlacement(desk)
    async with asyncio.timeout(10):
        view = await live.set_placement(b'{"a": {"devices": [1]}}')
    assert where(view)["a"] == ("CUDA1",)
    assert desk.snapshots.value.fleet.instance("a").phase == "cold"
    await live.aclose()


async def test_ap_20_only_what_changed_is_waited_for_and_the_other_group_is_the_same(desk, live):
    before = {name: group.identity for name, group in desk.prepared.groups.items()}
    here = where(live.get_placement())
    spec = {"b": {"devices": here["b"]}, "a": {"devices": [other(here["a"])]}}
    desk.silent = frozenset({"a"})
    task = asyncio.create_task(live.set_placement(msgspec.json.encode(spec)))
    while desk.adopted != [1, 2]:
        await desk.snapshots.newer(desk.snapshots.version)
    for phases in ({"a": "loading", "b": "cold"}, {"a": "loading", "b": "ready"}):
        desk.say(phases)
        await asyncio.sleep(0.01)
        assert not task.done()
    desk.say({"a": "ready"})
    async with asyncio.timeout(10):
        await task
    after = {name: group.identity for name, group in desk.prepared.groups.items()}
    assert after["b"] == before["b"]
    assert after["a"] != before["a"]


async def test_what_could_not_be_loaded_before_either_undoes_no_change(desk, live):
    desk.failing = {"b": OUT}
    desk.adopt(desk.content, desk.prepared)
    here = where(live.get_placement())
    spec = {name: {"devices": [other(devices)]} for name, devices in here.items()}
    async with asyncio.timeout(10):
        view = await live.set_placement(msgspec.json.encode(spec))
    assert view.spec == spec


async def test_ap_21_a_preview_under_load_does_not_count_our_own_models_as_taken(tmp_path):
    full = msgspec.structs.replace(
        TWO_CARDS,
        devices=tuple(
            msgspec.structs.replace(each, free=0, used_by_us=each.total)
            for each in TWO_CARDS.devices
        ),
    )
    desk = Desk(tmp_path, inventory=full)
    live = LivePlacement(desk)
    for device in (0, 1):
        view = await live.preview_placement(f'{{"a": {{"devices": [{device}]}}}}')
        assert where(view)["a"] == (f"CUDA{device}",)
        assert view.tight == ()
    await live.aclose()


async def test_ap_22_the_answer_is_the_view_after_the_change(placed):
    status, seen, headers = await send(placed, "PUT", body=ON_ONE)
    assert (status, seen["generation"], seen["spec"]) == (200, 2, ON_ONE)
    assert headers["ETag"] == f'"{seen["etag"]}"'


async def test_ap_22_what_cannot_be_loaded_is_taken_back_in_file_and_plan(desk, live):
    before = live.get_placement()
    desk.failing = {"a": OUT}
    with pytest.raises(ApplyError, match="a ended while it was loading") as refused:
        await live.set_placement(b'{"a": {"devices": [1]}, "b": {"devices": [1]}}')
    assert "as they were before" in str(refused.value)
    assert desk.path.read_text() == TWO_MODELS
    assert live.get_placement().etag == before.etag
    assert desk.adopted == [1, 2, 3]


async def test_ap_22_over_http_it_is_503_and_no_client_tries_again(placed):
    placed.desk.failing = {"a": OUT, "b": OUT}
    spec = {"a": {"devices": [1]}, "b": {"devices": [0]}}
    status, seen, headers = await send(placed, "PUT", body=spec)
    assert (status, seen["error"]["code"]) == (503, "placement-not-applied")
    assert headers["x-should-retry"] == "false"


async def test_an_edit_while_a_change_is_waited_for_goes_first_and_is_never_taken_back(desk, live):
    desk.silent = frozenset({"a"})
    task = asyncio.create_task(live.set_placement(b'{"a": {"devices": [1]}}'))
    while desk.adopted != [1, 2]:
        await desk.snapshots.newer(desk.snapshots.version)
    edited = TWO_MODELS.replace('path = "a.gguf"', 'path = "a.gguf"\ncontext = 1024')
    desk.path.write_text(edited)
    desk.adopt(edited.encode(), await desk.prepare(edited.encode()))
    async with asyncio.timeout(10):
        view = await task
    assert (view.generation, view.spec) == (3, None)
    assert desk.path.read_text() == edited


async def test_a_caller_who_goes_away_does_not_end_what_was_begun(desk, live):
    desk.silent = frozenset({"a"})
    task = asyncio.create_task(live.set_placement(b'{"a": {"devices": [1]}}'))
    while desk.adopted != [1, 2]:
        await desk.snapshots.newer(desk.snapshots.version)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    desk.failing = {"a": OUT}
    desk.say({"a": "failed"})
    while desk.adopted != [1, 2, 3]:
        await desk.snapshots.newer(desk.snapshots.version)
    assert desk.path.read_text() == TWO_MODELS, "it was taken back all the same"


async def test_a_plan_made_smaller_after_a_load_ran_out_of_memory_is_waited_for_too(desk, live):
    desk.silent = frozenset({"a"})
    task = asyncio.create_task(live.set_placement(b'{"a": {"devices": [1]}}'))
    while desk.adopted != [1, 2]:
        await desk.snapshots.newer(desk.snapshots.version)
    desk.anew = True
    desk.failing = {"a": Failure(code="out-of-memory", message="a ran out of memory")}
    desk.say({"a": "failed"})
    await asyncio.sleep(0.01)
    desk.failing, desk.silent, desk.anew = {}, frozenset(), False
    desk.adopt(desk.content, desk.prepared)
    async with asyncio.timeout(10):
        view = await task
    assert (view.generation, view.spec) == (3, ON_ONE)


async def test_a_file_that_is_broken_elsewhere_is_not_written(placed):
    broken = TWO_MODELS + "[sever]\n"
    placed.desk.path.write_text(broken)
    status, seen, _ = await send(placed, "PUT", body=ON_ONE)
    assert (status, seen["error"]["code"]) == (409, "config")
    assert "sever" in seen["error"]["message"]
    assert placed.desk.path.read_text() == broken


async def test_a_spec_that_a_smaller_machine_cannot_obey_is_422(tmp_path):
    desk = Desk(tmp_path, inventory=machine(24))
    live = LivePlacement(desk)
    with pytest.raises(PlacementError):
        await live.set_placement(b'{"a": {"devices": [1]}}')
    assert desk.path.read_text() == TWO_MODELS
    await live.aclose()


def test_other_errors_stay_what_they_are():
    error = LoadError(OUT)
    assert told(error) is error
    assert isinstance(told(PlacementError("x")), PannierError)


async def test_ap_13_a_broken_save_is_shown_as_rejected_and_the_plan_stays(live, desk):
    problem = Problem(code="type", where="placement.a", line=1, message="expected a table")
    before = desk.snapshots.value
    status = msgspec.structs.replace(before.status, problems=(problem,))
    desk.snapshots.publish(msgspec.structs.replace(before, status=status))
    view = live.get_placement()
    assert "expected a table" in view.rejected_spec.reason
    assert [row.model for row in view.roles] == ["a", "b"]


async def test_the_routes_are_described(stand):
    _, body = await stand.get("/openapi.json")
    document = json.loads(body)
    described = {path: set(document["paths"][path]) for path in (PATH, f"{PATH}/preview")}
    assert described == {PATH: {"get", "put", "delete"}, f"{PATH}/preview": {"post"}}
    served = {
        (route.resource.canonical, route.method.lower())
        for route in stand.runner.app.router.routes()
        if isinstance(route, web.ResourceRoute) and route.resource.canonical.startswith(PATH)
        and route.method != "HEAD"
    }  # fmt: skip
    assert served == {(path, method) for path, methods in described.items() for method in methods}
    fields = document["components"]["schemas"]["View"]["properties"]
    assert {"gpus", "roles", "tight", "co_tenants", "unplaceable", "rejected_spec"} <= set(fields)
