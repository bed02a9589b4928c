"""Fixtures of the plugin's tests: the plugin, a stand-in for Pannier, and a chat in between."""

import importlib.util
import sys
import types
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web
from tests.unit.plugin.stand_in import NAME, PLUGIN, Chat, Connections, StandIn


@pytest.fixture
async def sidecar() -> AsyncIterator[StandIn]:
    made = StandIn()
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", made.handle)
    runner = web.AppRunner(app, shutdown_timeout=0.01, handler_cancellation=True)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    made.url = f"http://127.0.0.1:{port}"
    yield made
    made.end_streams()
    await runner.cleanup()


@pytest.fixture
def plugin(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """The plugin as a module, with waits that suit a test."""
    spec = importlib.util.spec_from_file_location("pannier_progress", PLUGIN)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for name, value in {
        "ANSWER_S": 5.0, "TICK_S": 0.02, "SILENT_S": 5.0, "GONE_S": 0.3, "AGAIN_S": 0.2,
        "OLD_S": 5.0, "LEAST_PACE_S": 0.0, "MOST_PACE_S": 0.0,
    }.items():  # fmt: skip
        monkeypatch.setattr(module, name, value)
    for variable in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(variable, raising=False)
    return module


@pytest.fixture
def connections(monkeypatch: pytest.MonkeyPatch) -> Connections:
    """In the place where Open WebUI keeps them."""
    made = Connections()

    class Config:
        @staticmethod
        async def get(key: str) -> Any:
            return made.values[key]

    module = types.ModuleType("open_webui.models.config")
    module.Config = Config  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "open_webui", types.ModuleType("open_webui"))
    monkeypatch.setitem(sys.modules, "open_webui.models", types.ModuleType("open_webui.models"))
    monkeypatch.setitem(sys.modules, "open_webui.models.config", module)
    return made


@pytest.fixture
def function(plugin: types.ModuleType) -> Any:
    """The filter as Open WebUI holds it, that shows everything at once."""
    made = plugin.Filter()
    made.valves = plugin.Filter.Valves(min_seconds=0)
    return made


@pytest.fixture
def chat(function: Any, sidecar: StandIn, connections: Connections) -> Chat:
    """A message to the stand-in's model, from the page of a chat."""
    index = connections.add(f"{sidecar.url}/v1")
    model = {"id": NAME, "name": NAME, "urlIdx": index, "pannier": {"model": NAME}}
    return Chat(function, model)
