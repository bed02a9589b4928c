"""The message goes on, whatever is wrong with Pannier; only a load that failed ends the chat."""

import asyncio
import logging

import pytest
from aiohttp import web
from tests.unit.plugin.stand_in import NAME, Chat, a_row, until


@pytest.fixture
def logged(caplog):
    caplog.set_level(logging.WARNING, "pannier_progress")
    return lambda: [record.getMessage() for record in caplog.records]


async def answer_404(request):
    return web.json_response({"error": {"message": "not here"}}, status=404)


async def test_a_caller_of_the_api_does_not_wait(chat, sidecar):
    chat.metadata = {"chat_id": "", "session_id": None, "message_id": None}

    assert await chat.send() is chat.body
    assert sidecar.paths == []


@pytest.mark.parametrize("metadata", [{}, {"chat_id": "c"}, {"session_id": "s"}])
async def test_nobody_looks_so_nothing_is_awaited(chat, sidecar, metadata):
    chat.metadata = metadata

    await chat.send()

    assert sidecar.paths == []


async def test_without_an_emitter_nothing_is_awaited(function, chat, sidecar):
    body = {"model": NAME}

    assert await function.inlet(body) is body
    assert sidecar.paths == []


async def test_a_direct_connection_of_the_browser_is_left_alone(chat, sidecar):
    chat.metadata = {**Chat.BROWSER, "direct": True}

    await chat.send()

    assert sidecar.paths == []


async def test_a_model_of_another_server_is_left_alone(chat, sidecar, logged):
    chat.model = {"id": "gpt-4o", "urlIdx": 0, "openai": {"id": "gpt-4o"}}

    assert await chat.send() is chat.body
    assert sidecar.paths == []
    assert logged() == []


async def test_a_sidecar_that_is_down_costs_one_line_in_the_log(
    chat, connections, unused_port, logged
):
    connections.values["openai.api_base_urls"][0] = f"http://127.0.0.1:{unused_port}/v1"

    assert await chat.send() is chat.body
    assert chat.events == []
    assert len(logged()) == 1
    assert "the message goes on" in logged()[0]


@pytest.fixture
def unused_port(unused_tcp_port_factory):
    return unused_tcp_port_factory()


async def test_a_sidecar_that_does_not_answer_is_not_waited_for(
    chat, sidecar, logged, plugin, monkeypatch
):
    monkeypatch.setattr(plugin, "ANSWER_S", 0.3)

    async def never(request):
        await asyncio.sleep(60)

    sidecar.answers[f"/v1/readiness/{NAME}"] = never

    assert await chat.send() is chat.body
    assert len(logged()) == 1


@pytest.mark.parametrize(
    "text", ["", "null", "[]", "[1]", "{}", "<html>", "\x00\xff", '"ready"', "{" * 9999]
)  # fmt: skip
async def test_garbage_is_not_taken_for_an_answer(chat, sidecar, logged, text):
    async def garbage(request):
        return web.Response(body=text.encode("latin1"))

    sidecar.answers[f"/v1/readiness/{NAME}"] = garbage

    assert await chat.send() is chat.body
    assert chat.events == []
    assert len(logged()) == 1


@pytest.mark.parametrize("status", [401, 403, 404, 500, 502, 503])
async def test_a_refusal_is_not_the_end_of_the_chat(chat, sidecar, logged, status):
    async def refuse(request):
        return web.json_response({"error": {"message": "no"}}, status=status)

    sidecar.answers[f"/v1/readiness/{NAME}"] = refuse

    assert await chat.send() is chat.body
    assert len(logged()) == 1


async def test_a_redirect_is_not_followed(chat, sidecar, logged):
    async def redirect(request):
        body, headers = {"error": {"message": "no"}}, {"Location": "/v1/readiness/elsewhere"}
        return web.json_response(body, status=302, headers=headers)

    sidecar.answers[f"/v1/readiness/{NAME}"] = redirect

    assert await chat.send() is chat.body
    assert sidecar.paths == [f"GET /v1/readiness/{NAME}"]
    assert len(logged()) == 1


@pytest.mark.parametrize("status", [404, 405, 500])
async def test_a_load_that_cannot_be_asked_for_does_not_hold_the_message(
    chat, sidecar, logged, status
):
    async def refuse(request):
        return web.json_response({"error": {"message": "no"}}, status=status)

    sidecar.answers["/models/load"] = refuse

    assert await chat.send() is chat.body
    assert len(logged()) == 1


async def test_a_model_that_cannot_be_served_ends_the_chat_with_the_reason(chat, sidecar, plugin):
    async def refuse(request):
        message = "qwen3 needs 40.0 GiB, there is 24.0 GiB"
        return web.json_response({"error": {"message": message}}, status=503)

    sidecar.answers["/models/load"] = refuse

    with pytest.raises(
        plugin.LoadFailedError, match=r"^qwen3 needs 40\.0 GiB, there is 24\.0 GiB$"
    ):
        await chat.send()


async def test_a_load_that_fails_ends_the_chat_with_the_reason(chat, sidecar, plugin, logged):
    chat.start()
    await sidecar.streaming()
    sidecar.now("loading", stage="weights", fraction=0.1)
    await chat.shows("10%")
    error = {"code": "exit", "message": "llama-server ended", "detail": "bad magic", "hint": None}
    sidecar.now("failed", error=error)

    with pytest.raises(plugin.LoadFailedError, match=r"^llama-server ended; bad magic$"):
        await chat.end()
    assert chat.last["description"] == "qwen3 could not be loaded"
    assert chat.last["done"] is True
    assert logged() == []


@pytest.mark.parametrize("error", [None, {}, {"message": None}])
async def test_a_failure_without_a_reason_says_so(chat, sidecar, plugin, error):
    chat.start()
    await sidecar.streaming()
    sidecar.now("loading")
    sidecar.now("failed", error=error)

    with pytest.raises(plugin.LoadFailedError, match=r"^the load failed$"):
        await chat.end()


async def test_the_failure_of_an_earlier_load_is_not_taken_for_this_one(chat, sidecar):
    sidecar.now("failed", error={"message": "yesterday"})
    chat.start()
    await sidecar.streaming()
    await asyncio.sleep(0.05)
    sidecar.now("loading", stage="starting")
    await chat.shows("Starting")
    sidecar.now("ready")

    assert await chat.end() is chat.body
    assert sidecar.asked == [NAME]


@pytest.mark.parametrize("state", ["not_installed", "unplaceable"])
async def test_a_model_that_an_edit_takes_away_ends_the_chat_with_the_reason(
    chat, sidecar, plugin, state
):
    chat.start()
    await sidecar.streaming()
    sidecar.now("loading", stage="starting")
    await chat.shows("Starting")
    sidecar.now(state, error={"message": "qwen3 has no place"})

    with pytest.raises(plugin.LoadFailedError, match=r"^qwen3 has no place$"):
        await chat.end()


async def test_a_load_that_fails_at_once_in_the_same_way_is_a_failure(
    chat, sidecar, plugin, monkeypatch
):
    monkeypatch.setattr(plugin, "OLD_S", 0.2)
    sidecar.now("failed", error={"message": "as yesterday"})

    with pytest.raises(plugin.LoadFailedError, match="as yesterday"):
        await chat.send()
    assert sidecar.asked == [NAME]


async def test_without_events_it_asks_every_second(chat, sidecar):
    sidecar.answers["/v1/readiness/events"] = answer_404
    sidecar.on_ask = lambda: sidecar.now("loading", stage="weights", fraction=0.6)
    chat.start()
    await chat.shows("60%")
    sidecar.now("ready")

    assert await chat.end() is chat.body
    assert chat.last["description"].startswith("qwen3 is ready")


async def test_events_that_are_elsewhere_are_not_followed_there(chat, sidecar):
    async def redirect(request):
        return web.Response(status=302, headers={"Location": "/elsewhere"})

    sidecar.answers["/v1/readiness/events"] = redirect
    sidecar.on_ask = lambda: sidecar.now("loading", stage="weights", fraction=0.6)
    chat.start()
    await chat.shows("60%")
    sidecar.now("ready")
    await chat.end()

    assert "GET /elsewhere" not in sidecar.paths


async def test_events_that_never_begin_are_replaced_by_asking(chat, sidecar, plugin, monkeypatch):
    monkeypatch.setattr(plugin, "ANSWER_S", 0.5)

    async def never(request):
        await asyncio.sleep(60)

    sidecar.answers["/v1/readiness/events"] = never
    sidecar.on_ask = lambda: sidecar.now("loading", stage="weights", fraction=0.6)
    chat.start()
    await chat.shows("60%")
    sidecar.now("ready")
    await chat.end()


async def test_events_that_end_are_replaced_by_asking(chat, sidecar):
    chat.start()
    await sidecar.streaming()
    sidecar.now("loading", stage="weights", fraction=0.2)
    await chat.shows("20%")
    sidecar.end_streams()
    sidecar.now("loading", stage="weights", fraction=0.7)
    await chat.shows("70%")
    sidecar.now("ready")
    await chat.end()


async def test_events_that_fall_silent_are_replaced_by_asking(chat, sidecar, plugin, monkeypatch):
    monkeypatch.setattr(plugin, "SILENT_S", 0.3)
    chat.start()
    await sidecar.streaming()
    sidecar.rows[NAME] = a_row(state="loading", stage="weights", fraction=0.7)
    await chat.shows("70%")
    sidecar.rows[NAME] = a_row(state="ready")
    await chat.end()


@pytest.mark.parametrize("text", ["data: {\n\n", "data: \xff\n\n", "data: \n\n"])
async def test_events_that_are_garbage_are_replaced_by_asking(chat, sidecar, text):
    chat.start()
    await sidecar.streaming()
    sidecar.say(text)
    sidecar.rows[NAME] = a_row(state="loading", stage="weights", fraction=0.7)
    await chat.shows("70%")
    sidecar.rows[NAME] = a_row(state="ready")
    await chat.end()


@pytest.mark.parametrize("text", ["data: [1]\n\n", "data: {}\n\n", 'data: {"data": [5]}\n\n'])
async def test_events_of_a_shape_that_nobody_sends_let_the_message_go(chat, sidecar, logged, text):
    chat.start()
    await sidecar.streaming()
    sidecar.say(text)

    assert await chat.end() is chat.body
    assert len(logged()) == 1


async def test_an_event_may_come_in_pieces_and_among_comments(chat, sidecar):
    chat.start()
    await sidecar.streaming()
    sidecar.say(": keep-alive\n\nid: 7\nevent: model\nda")
    await asyncio.sleep(0.06)
    sidecar.say('ta: {"id": "qwen3", "state": "loading", "sta')
    await asyncio.sleep(0.06)
    sidecar.say('ge": "starting"}\n\n')
    await chat.shows("Starting")
    sidecar.now("ready")
    await chat.end()


async def test_rows_of_other_models_are_not_shown(chat, sidecar):
    chat.start()
    await sidecar.streaming()
    for state in ("loading", "failed", "ready"):
        sidecar.now(state, "another", stage="weights", fraction=0.9)
        await asyncio.sleep(0.05)
    sidecar.now("loading", stage="weights", fraction=0.1)
    await chat.shows("10%")
    sidecar.now("ready")
    await chat.end()

    assert not any("90%" in line for line in chat.lines)


async def test_a_sidecar_that_goes_away_for_good_lets_the_message_go(chat, sidecar, logged):
    async def gone(request):
        request.transport.abort()
        return web.Response()

    chat.start()
    await sidecar.streaming()
    sidecar.now("loading", stage="starting")
    await chat.shows("Starting")
    sidecar.answers = {"/v1/readiness/events": gone, f"/v1/readiness/{NAME}": gone}
    sidecar.end_streams()

    assert await chat.end() is chat.body
    assert chat.last["description"] == "Lost sight of qwen3; sending the message anyway"
    assert chat.last["done"] is True
    assert len(logged()) == 1


async def test_a_sidecar_that_restarts_is_found_again_and_asked_again(
    chat, sidecar, plugin, monkeypatch
):
    monkeypatch.setattr(plugin, "GONE_S", 5.0)

    async def gone(request):
        request.transport.abort()
        return web.Response()

    chat.start()
    await sidecar.streaming()
    sidecar.now("loading", stage="starting")
    await chat.shows("Starting")
    sidecar.answers = {"/v1/readiness/events": gone, f"/v1/readiness/{NAME}": gone}
    sidecar.end_streams()
    await asyncio.sleep(0.3)
    sidecar.rows[NAME] = a_row()
    sidecar.on_ask = lambda: sidecar.now("loading", stage="weights", fraction=0.5)
    sidecar.answers = {}
    await chat.shows("50%")
    sidecar.now("ready")
    await chat.end()

    assert sidecar.asked == [NAME, NAME]


async def test_a_model_that_leaves_the_config_lets_the_message_go(chat, sidecar, logged):
    chat.start()
    await sidecar.streaming()
    sidecar.now("loading", stage="starting")
    await chat.shows("Starting")
    del sidecar.rows[NAME]
    sidecar.end_streams()

    assert await chat.end() is chat.body
    assert len(logged()) == 1


async def test_after_max_wait_the_message_is_sent_anyway(chat, sidecar, plugin):
    chat.function.valves = plugin.Filter.Valves(min_seconds=0, max_wait=0.2)
    chat.start()
    await sidecar.streaming()
    sidecar.now("loading", stage="starting")

    assert await chat.end() is chat.body
    assert chat.last["description"] == "qwen3 still loads; sending the message anyway"
    assert chat.last["done"] is True


async def test_a_page_that_takes_no_lines_does_not_hold_the_message(chat, sidecar, logged):
    async def broken(event):
        raise RuntimeError("no database")

    chat.emit = broken
    chat.start()
    await sidecar.streaming()
    sidecar.now("loading", stage="starting")
    await until(logged)
    assert not chat.task.done(), "it waits all the same"
    sidecar.now("ready")

    assert await chat.end() is chat.body
    assert all("no database" in line for line in logged())


# Stop.


async def test_stop_ends_the_wait_at_once_and_says_so(chat, sidecar):
    chat.start()
    await sidecar.streaming()
    sidecar.now("loading", stage="weights", fraction=0.3)
    await chat.shows("30%")
    began = asyncio.get_running_loop().time()
    chat.task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await chat.end()

    assert asyncio.get_running_loop().time() - began < 1
    assert chat.last["description"] == "Stopped waiting for qwen3"
    assert chat.last["done"] is True
    await until(lambda: not sidecar.streams)


async def test_stop_while_the_first_answer_is_awaited(chat, sidecar):
    async def slow(request):
        await asyncio.sleep(60)

    sidecar.answers[f"/v1/readiness/{NAME}"] = slow
    chat.start()
    await until(lambda: sidecar.paths)
    chat.task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await chat.end()
    assert chat.events == []


async def test_stop_while_the_load_is_asked_for(chat, sidecar):
    async def slow(request):
        await asyncio.sleep(60)

    sidecar.answers["/models/load"] = slow
    chat.start()
    await until(lambda: "POST /models/load" in sidecar.paths)
    chat.task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await chat.end()


async def test_stop_while_it_asks_every_second(chat, sidecar):
    sidecar.answers["/v1/readiness/events"] = answer_404
    sidecar.on_ask = lambda: sidecar.now("loading", stage="starting")
    chat.start()
    await chat.shows("Starting")
    chat.task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await chat.end()
    assert chat.last["description"] == "Stopped waiting for qwen3"


async def test_stop_while_a_line_is_on_its_way(chat, sidecar):
    reached = asyncio.Event()
    arrived = []

    async def slow(event):
        reached.set()
        if not event["data"]["done"]:
            await asyncio.sleep(60)
        arrived.append(event["data"])

    chat.emit = slow
    chat.start()
    await sidecar.streaming()
    sidecar.now("loading", stage="starting")
    await reached.wait()
    chat.task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await chat.end()

    assert [each["description"] for each in arrived] == ["Stopped waiting for qwen3"]


async def test_stop_of_one_chat_leaves_the_other(chat, sidecar):
    other = Chat(chat.function, chat.model)
    chat.start()
    other.start()
    await sidecar.streaming(2)
    chat.task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await chat.end()
    sidecar.now("ready")

    assert await other.end() is other.body
