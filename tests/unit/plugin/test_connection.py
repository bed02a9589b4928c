"""Where the plugin finds Pannier, and with which key it goes there."""

import sys
import types
from types import SimpleNamespace

import pytest
from tests.unit.plugin.stand_in import NAME


@pytest.fixture
def ready(sidecar):
    sidecar.now("ready")
    return sidecar


def app_with(**models):
    return SimpleNamespace(app=SimpleNamespace(state=SimpleNamespace(OPENAI_MODELS=models)))


async def test_the_address_is_that_of_the_models_own_connection(chat, ready, connections):
    connections.values["openai.api_base_urls"].insert(0, "http://127.0.0.1:9/v1")
    connections.values["openai.api_keys"].insert(0, "not-this-one")
    connections.values["openai.api_keys"][1] = "this-one"
    connections.values["openai.api_configs"] = {"0": {}, "1": {}}
    chat.model["urlIdx"] = 1

    await chat.send()

    assert ready.paths == ["GET /v1/readiness/qwen3"]
    assert ready.headers[0]["Authorization"] == "Bearer this-one"


@pytest.mark.parametrize("tail", ["", "/", "/v1", "/v1/", " "])
async def test_the_address_may_be_written_in_any_usual_way(chat, ready, connections, tail):
    connections.values["openai.api_base_urls"][0] = ready.url + tail

    await chat.send()

    assert ready.paths == ["GET /v1/readiness/qwen3"]


async def test_a_path_before_v1_is_kept(chat, ready, connections):
    connections.values["openai.api_base_urls"][0] = f"{ready.url}/pannier/v1"

    await chat.send()

    assert ready.paths == ["GET /pannier/v1/readiness/qwen3"]


async def test_without_a_key_none_is_sent(chat, ready):
    await chat.send()

    assert "Authorization" not in ready.headers[0]


async def test_every_call_carries_the_key(chat, sidecar, connections):
    connections.values["openai.api_keys"][0] = "k1"
    chat.start()
    await sidecar.streaming()
    sidecar.now("ready")
    await chat.end()

    assert len(sidecar.paths) == 3
    assert [each["Authorization"] for each in sidecar.headers] == ["Bearer k1"] * 3


@pytest.mark.parametrize("kind", ["none", "session", "system_oauth"])
async def test_a_connection_that_sends_no_key_sends_none_here_too(chat, ready, connections, kind):
    connections.values["openai.api_keys"][0] = "k1"
    connections.values["openai.api_configs"]["0"] = {"auth_type": kind}

    await chat.send()

    assert "Authorization" not in ready.headers[0]


async def test_headers_of_the_connection_are_sent_but_not_their_templates(chat, ready, connections):
    connections.values["openai.api_configs"]["0"] = {
        "headers": {"X-Team": "blue", "X-Message": "{{MESSAGE_ID}}"}
    }

    await chat.send()

    assert ready.headers[0]["X-Team"] == "blue"
    assert "X-Message" not in ready.headers[0]


async def test_a_prefixed_id_is_asked_for_by_pannier_s_own_name(chat, ready, connections):
    connections.values["openai.api_configs"]["0"] = {"prefix_id": "box"}
    chat.model.update(id="box.qwen3", name="box.qwen3")

    await chat.send()

    assert ready.paths == ["GET /v1/readiness/qwen3"]


async def test_a_name_with_slashes_and_signs_reaches_pannier_whole(chat, sidecar):
    name = "org/model:q4 100%?#ä"
    sidecar.now("ready", name)
    chat.model["pannier"] = {"model": name}

    assert await chat.send() is chat.body
    assert sidecar.paths == [f"GET /v1/readiness/{name}"]
    assert chat.events == []


async def test_a_workspace_model_waits_for_the_model_below_it(chat, sidecar, connections):
    base = chat.model
    chat.model = {"id": "helper", "name": "Helper", "info": {"base_model_id": "box.qwen3"}}
    chat.request = app_with(**{"box.qwen3": base})
    chat.start()
    await sidecar.streaming()
    sidecar.now("loading", stage="starting")
    await chat.shows("Starting qwen3")
    sidecar.now("ready")
    await chat.end()

    assert sidecar.asked == [NAME]


@pytest.mark.parametrize("info", [None, {}, {"base_model_id": None}, {"base_model_id": "gone"}])
async def test_a_workspace_model_of_others_is_left_alone(chat, ready, info):
    chat.model = {"id": "helper", "info": info}
    chat.request = app_with(other={"id": "other"})

    assert await chat.send() is chat.body
    assert ready.paths == []


async def test_base_url_wins_and_the_key_of_the_connection_stays_at_home(
    chat, ready, plugin, connections
):
    connections.values["openai.api_base_urls"][0] = "http://127.0.0.1:9/v1"
    connections.values["openai.api_keys"][0] = "of the connection"
    chat.function.valves = plugin.Filter.Valves(base_url=f"{ready.url}/v1/")

    await chat.send()

    assert ready.paths == ["GET /v1/readiness/qwen3"]
    assert "Authorization" not in ready.headers[0]


async def test_api_key_wins(chat, ready, plugin, connections):
    connections.values["openai.api_keys"][0] = "of the connection"
    chat.function.valves = plugin.Filter.Valves(api_key="of the valve")

    await chat.send()

    assert ready.headers[0]["Authorization"] == "Bearer of the valve"


async def test_without_open_webui_s_settings_the_message_goes_on(chat, ready, monkeypatch, caplog):
    monkeypatch.setitem(
        sys.modules, "open_webui.models.config", types.ModuleType("of another time")
    )

    assert await chat.send() is chat.body
    assert ready.paths == []
    assert len(caplog.records) == 1


@pytest.mark.parametrize("change", [{"urlIdx": 7}, {"urlIdx": None}, {"pannier": "qwen3"}])
async def test_a_model_that_fits_no_connection_does_not_hold_the_message(
    chat, ready, caplog, change
):
    chat.model.update(change)

    assert await chat.send() is chat.body
    assert len(caplog.records) == 1


@pytest.mark.parametrize("values", [None, []])
async def test_connections_without_settings_of_their_own(chat, ready, connections, values):
    connections.values["openai.api_configs"] = None
    connections.values["openai.api_keys"] = values

    await chat.send()

    assert ready.paths == ["GET /v1/readiness/qwen3"]
