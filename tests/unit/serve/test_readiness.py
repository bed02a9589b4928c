"""`/v1/readiness`, its events, the model list and the probes, over a real port."""

import asyncio
import contextlib
import json
import socket
from urllib.parse import quote

import msgspec
import pytest
from tests.fakes.snapshots import snapshot_of
from tests.fakes.values import machine
from yarl import URL

from pannier.errors import Problem
from pannier.serve import streams

from .conftest import PATIENCE

EVENTS = "/v1/readiness/events"
BROKEN = Problem(code="syntax", where="models.a", message="no", line=3)


class Reader:
    """Reads events off an open stream; comments are events named ":"."""

    def __init__(self, answer):
        self.answer = answer

    async def next(self):
        lines = []
        async with asyncio.timeout(PATIENCE):
            while True:
                line = (await self.answer.content.readuntil(b"\n")).decode().rstrip("\n")
                if not line:
                    break
                lines.append(line)
        if lines[0].startswith(":"):
            return ":", None, None
        fields = dict(line.split(": ", 1) for line in lines)
        return fields.get("event"), json.loads(fields["data"]), int(fields["id"])


@contextlib.asynccontextmanager
async def events(stand, path=EVENTS, **headers):
    async with stand.client.get(stand.url + path, headers=headers) as answer:
        yield Reader(answer)


async def test_the_first_event_is_a_full_snapshot_and_then_come_rows(stand):
    async with events(stand) as reader:
        name, data, number = await reader.next()
        assert (name, number) == ("snapshot", 1)
        assert data == json.loads((await stand.get("/v1/readiness"))[1])
        stand.snapshots.publish(snapshot_of(phases={"a": "ready", "b": "failed"}))
        name, row, number = await reader.next()
        assert (name, row["id"], row["state"], number) == ("model", "b", "failed", 2)


async def test_a_reader_that_comes_back_gets_a_snapshot_whatever_it_saw_last(stand):
    async with events(stand, **{"Last-Event-ID": "99"}) as reader:
        assert (await reader.next())[0] == "snapshot"


async def test_a_broken_save_is_told_and_what_runs_stays_ready(stand):
    async with events(stand) as reader:
        await reader.next()
        stand.snapshots.publish(snapshot_of(problems=(BROKEN,)))
        name, data, _ = await reader.next()
    assert name == "config"
    assert data["config"]["problems"][0]["line"] == 3
    assert (await stand.get("/readyz"))[0] == 200
    _, verbose = await stand.get("/readyz?verbose")
    assert b"[-] config: 1 problem" in verbose
    assert b"config.toml:3" in verbose
    assert b"\nready\n" in verbose


async def test_a_model_that_is_added_is_told(stand):
    async with events(stand) as reader:
        await reader.next()
        text = '[models.c]\npath = "/m/c"\n'
        stand.snapshots.publish(snapshot_of(text, generation=2))
        name, data, _ = await reader.next()
    assert name == "config"
    assert (data["generation"], [row["id"] for row in data["data"]]) == (2, ["c"])


async def test_a_quiet_stream_is_kept_alive(stand, monkeypatch):
    monkeypatch.setattr("pannier.serve.readiness.KEEP_ALIVE_S", 0.02)
    async with events(stand) as reader:
        assert [(await reader.next())[0] for _ in range(3)] == ["snapshot", ":", ":"]


async def test_news_that_changes_nothing_is_no_event(stand, monkeypatch):
    monkeypatch.setattr("pannier.serve.readiness.KEEP_ALIVE_S", 0.05)
    async with events(stand) as reader:
        await reader.next()
        for _ in range(3):
            stand.snapshots.publish(snapshot_of())
            await asyncio.sleep(0)
        assert (await reader.next())[0] == ":"


async def test_the_newest_row_is_the_one_that_is_sent(stand):
    async with events(stand) as reader:
        await reader.next()
        for phase in ("failed", "loading", "queued"):
            stand.snapshots.publish(snapshot_of(phases={"a": phase, "b": "ready"}))
        assert (await reader.next())[1]["state"] == "queued"


async def until(holds):
    async with asyncio.timeout(PATIENCE):
        while not holds():  # noqa: ASYNC110  what it looks at has no event
            await asyncio.sleep(0.01)


def stuck_reader(stand):
    """A connection that asks for events and never reads."""
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.connect(("127.0.0.1", stand.port))
    connection.sendall(f"GET {EVENTS} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    return connection


def large(generation):
    """A snapshot of some megabytes, so that a few of them fill what a system buffers."""
    words = tuple("x" * 100 + str(number) for number in range(20_000))
    snapshot = snapshot_of(generation=generation)
    problem = msgspec.structs.replace(BROKEN, message=" ".join(words))
    status = msgspec.structs.replace(snapshot.status, problems=(problem,))
    return msgspec.structs.replace(snapshot, status=status)


async def test_a_stuck_reader_holds_nobody_up_and_is_let_go(stand, monkeypatch):
    monkeypatch.setattr(streams, "WRITE_S", 0.3)
    with stuck_reader(stand):
        async with events(stand) as reader:
            await reader.next()
            for generation in range(2, 8):
                stand.snapshots.publish(large(generation))
                name, data, _ = await next_large(reader)
                assert (name, data["generation"]) == ("config", generation)
        await until(lambda: len(stand.runner.server.connections) <= 1)


async def next_large(reader):
    raw = b""
    async with asyncio.timeout(PATIENCE):
        while not raw.endswith(b"\n\n"):
            raw += await reader.answer.content.readany()
    fields = dict(line.split(": ", 1) for line in raw.decode().rstrip("\n").split("\n"))
    return fields["event"], json.loads(fields["data"]), int(fields["id"])


async def test_more_readers_than_the_limit_are_told_to_come_later(stand, monkeypatch):
    monkeypatch.setattr(streams, "MOST_SUBSCRIBERS", 1)
    async with events(stand) as reader:
        await reader.next()
        async with stand.client.get(stand.url + EVENTS) as second:
            assert (second.status, second.headers["Retry-After"]) == (503, "10")


async def test_a_reader_that_leaves_makes_room_for_another(stand, monkeypatch):
    monkeypatch.setattr(streams, "MOST_SUBSCRIBERS", 1)
    for _ in range(3):
        async with asyncio.timeout(PATIENCE), events(stand) as reader:
            await reader.next()
        await until(lambda: not any("events of" in task.get_name() for task in asyncio.all_tasks()))


@pytest.mark.parametrize("path", [EVENTS, "/models/sse"])
async def test_streams_end_at_shutdown_within_a_second(stand, path):
    loop = asyncio.get_running_loop()
    async with events(stand, path) as reader:
        await reader.next()
        began = loop.time()
        await stand.stop()
        assert loop.time() - began < 1.0
        async with asyncio.timeout(PATIENCE):
            while await reader.answer.content.readany():
                pass


@pytest.mark.parametrize("path", [EVENTS, "/models/sse"])
async def test_a_head_request_for_events_is_no_endless_one(stand, path):
    async with asyncio.timeout(PATIENCE), stand.client.head(stand.url + path) as answer:
        assert answer.status in (404, 405)


# --- one model ------------------------------------------------------------------------------------

ODD = '[models."org/model:8b"]\npath = "/m/x"\n[models."c#"]\npath = "/m/y"\n'
ODD += '[models."a b%2Fü"]\npath = "/m/z"\n'


@pytest.mark.parametrize("name", ["org/model:8b", "c#", "a b%2Fü"])
@pytest.mark.parametrize("route", ["/v1/models", "/v1/readiness"])
async def test_an_id_of_any_letters_is_found(stand, route, name):
    stand.snapshots.publish(snapshot_of(ODD))
    url = URL(f"{stand.url}{route}/{quote(name, safe='')}", encoded=True)
    async with stand.client.get(url) as answer:
        assert answer.status == 200
        assert (await answer.json())["id"] == name


async def test_a_slash_in_an_id_may_stand_as_it_is(stand):
    stand.snapshots.publish(snapshot_of(ODD))
    assert (await stand.get("/v1/models/org/model:8b"))[0] == 200


@pytest.mark.parametrize("route", ["/v1/models", "/v1/readiness"])
async def test_an_unknown_id_is_a_404_and_an_alias_is_its_model(stand, route):
    status, body = await stand.get(f"{route}/zzz")
    assert (status, json.loads(body)["error"]["code"]) == (404, "model_not_found")
    assert json.loads((await stand.get(f"{route}/gpt"))[1])["id"] == "a"


@pytest.mark.parametrize("wait", ["x", "-1", "nan", "inf", "1e9", ""])
async def test_a_wait_that_is_no_wait_is_refused(stand, wait):
    assert (await stand.get(f"/v1/readiness/a?wait={wait}"))[0] == 400


async def test_a_wait_ends_when_the_model_is_ready(stand):
    stand.snapshots.publish(snapshot_of(phases="loading"))
    asking = asyncio.create_task(stand.get("/v1/readiness/a?wait=60"))
    await asyncio.sleep(0.05)
    assert not asking.done()
    stand.snapshots.publish(snapshot_of(phases="ready"))
    _, body = await asyncio.wait_for(asking, PATIENCE)
    assert json.loads(body)["state"] == "ready"


async def test_a_wait_ends_at_its_time_with_what_there_is(stand):
    stand.snapshots.publish(snapshot_of(phases="cold"))
    _, body = await asyncio.wait_for(stand.get("/v1/readiness/a?wait=0.05"), PATIENCE)
    assert json.loads(body)["state"] == "cold"
    assert stand.wished == [], "V-2: reading starts nothing"


async def test_a_wait_for_a_model_that_is_removed_is_a_404(stand):
    stand.snapshots.publish(snapshot_of(phases="loading"))
    asking = asyncio.create_task(stand.get("/v1/readiness/a?wait=60"))
    await asyncio.sleep(0.05)
    stand.snapshots.publish(snapshot_of('[models.b]\npath = "/m/b"\n'))
    assert (await asyncio.wait_for(asking, PATIENCE))[0] == 404


async def test_a_wait_does_not_hold_the_end_up(stand):
    stand.snapshots.publish(snapshot_of(phases="loading"))
    asking = asyncio.create_task(stand.get("/v1/readiness/a?wait=60"))
    await asyncio.sleep(0.05)
    stand.publish(stopping=True)
    status, body = await asyncio.wait_for(asking, 1.0)
    assert (status, json.loads(body)["state"]) == (200, "loading")


# --- probes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("phases", "stopping", "status"),
    [("ready", False, 200), ("loading", False, 503), ("failed", False, 503), ("ready", True, 503)],
)
async def test_ready_means_that_every_wanted_model_answers(stand, phases, stopping, status):
    stand.snapshots.publish(msgspec.structs.replace(snapshot_of(phases=phases), stopping=stopping))
    for path in ("/readyz", "/healthz"):
        assert (await stand.get(path))[0] == status
    assert (await stand.get("/livez"))[0] == 200


async def test_a_model_that_is_not_preloaded_is_not_waited_for(stand):
    stand.snapshots.publish(snapshot_of('[models.a]\npath = "/m/a"\npreload = false\n', "cold"))
    assert (await stand.get("/readyz"))[0] == 200


def with_devices(inventory, **fields):
    return msgspec.structs.replace(
        snapshot_of(), inventory=msgspec.structs.replace(inventory, **fields)
    )


async def test_report_54_stale_devices_are_shown_and_stop_nothing(stand):
    """nvidia-container-toolkit#48: the driver goes silent while models run."""
    found = machine(24, 24)
    stand.snapshots.publish(with_devices(found))
    assert b"[+] devices: CUDA0, CUDA1\n" in (await stand.get("/readyz?verbose"))[1]
    stand.snapshots.publish(with_devices(found, stale="NVML: Unknown Error"))
    status, verbose = await stand.get("/readyz?verbose")
    assert status == 200
    assert b"[-] devices: stale, what runs goes on: NVML: Unknown Error\n" in verbose
    config = json.loads((await stand.get("/v1/readiness"))[1])["config"]
    assert config["notes"] == ["devices: the last list stays: NVML: Unknown Error"]
    assert config["problems"] == []


async def test_devices_that_go_stale_and_come_back_are_an_event_each(stand):
    async with events(stand) as reader:
        await reader.next()
        for stale, notes in (("it hangs", 1), (None, 0)):
            stand.snapshots.publish(with_devices(machine(24), stale=stale))
            name, data, _ = await reader.next()
            assert (name, len(data["config"]["notes"])) == ("config", notes)


async def test_memory_that_moves_is_no_event(stand):
    async with events(stand) as reader:
        await reader.next()
        stand.snapshots.publish(with_devices(machine(24), read_at=1.0))
        stand.snapshots.publish(snapshot_of(phases={"a": "failed", "b": "ready"}))
        assert (await reader.next())[0] == "model"


async def test_devices_that_are_not_known_are_said_to_be(stand):
    stand.snapshots.publish(with_devices(machine(), engine_backend="unknown"))
    assert b"[-] devices: not known" in (await stand.get("/readyz?verbose"))[1]
    stand.snapshots.publish(with_devices(machine()))
    assert b"[+] devices: the CPU\n" in (await stand.get("/readyz?verbose"))[1]
