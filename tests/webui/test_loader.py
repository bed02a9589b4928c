"""The plugin in Open WebUI's own loader and filter pipeline, from the real package.

One process with the real package sends a message in each scenario; the tests look at what came
of it. The Pannier behind it is the stand-in of the plugin's own tests.
"""

import asyncio
import json
import os
from pathlib import Path

import pytest
from aiohttp import web
from tests.unit.plugin.stand_in import PLUGIN, StandIn, a_row
from tests.webui.environments import environment

import pannier

pytestmark = pytest.mark.timeout(1600)  # the first time it installs the package

PROGRAM = Path(__file__).with_name("loader_program.py")
PAGE = {"chat_id": "c1", "session_id": "s1", "message_id": "m1", "user_id": "u"}
CALLER = {"chat_id": "", "session_id": None, "message_id": None, "user_id": "u"}


def scenario(url, name, **changes):
    model = {"id": f"box.{name}", "urlIdx": 1, "pannier": {"model": name}}
    return {
        "model": model,
        "models": {},
        "metadata": PAGE,
        "valves": {"min_seconds": 0},
        "stop": False,
        "config": {
            "openai.api_base_urls": ["http://127.0.0.1:9/v1", f"{url}/v1"],
            "openai.api_keys": ["", "of the second"],
            "openai.api_configs": {"1": {"prefix_id": "box"}},
        },
        **changes,
    }


async def messages(python):
    """Runs the scenarios; what came of them, and the stand-in that they met."""
    sidecar = StandIn()
    for name in ("warm", "cold", "broken", "slow", "below"):
        sidecar.rows[name] = a_row(name, "ready" if name == "warm" else "cold")
    steps = {
        "cold": [
            ("loading", {"stage": "starting"}),
            ("loading", {"stage": "weights", "fraction": 0.4}),
            ("ready", {}),
        ],
        "below": [("loading", {"stage": "starting"}), ("ready", {})],
        "broken": [("failed", {"error": {"message": "no such tensor"}})],
        "slow": [("loading", {"stage": "starting"})],
    }

    def asked():
        name = sidecar.asked[-1]
        loop = asyncio.get_running_loop()
        for number, (state, more) in enumerate(steps[name], start=1):
            loop.call_later(0.3 * number, lambda s=state, m=more: sidecar.now(s, name, **m))

    sidecar.on_ask = asked
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", sidecar.handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1, handler_cancellation=True)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    preset = {"id": "helper", "info": {"base_model_id": "box.below"}}
    scenarios = {
        "warm": scenario(url, "warm"),
        "cold": scenario(url, "cold"),
        "broken": scenario(url, "broken"),
        "stopped": scenario(url, "slow", stop=True),
        "caller": scenario(url, "cold", metadata=CALLER),
        "preset": scenario(
            url, "below", model=preset, models={"box.below": scenario(url, "below")["model"]}
        ),
        "card": scenario(url, "slow", stop=True, valves={"min_seconds": 0, "style": "card"}),
    }
    process = await asyncio.create_subprocess_exec(
        str(python), str(PROGRAM), str(PLUGIN),
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
        env={"PATH": os.environ["PATH"]},
    )  # fmt: skip
    try:
        async with asyncio.timeout(120):
            out, _ = await process.communicate(json.dumps(scenarios).encode())
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
        await runner.cleanup()
    assert process.returncode == 0
    return json.loads(out.splitlines()[-1]), sidecar


@pytest.fixture(scope="module")
def told(say):
    python = environment("loader", say) / "bin" / "python"
    found, sidecar = asyncio.run(messages(python))
    return {**found, "keys": {each.get("Authorization") for each in sidecar.headers}}


def lines(told):
    return [each["data"]["description"] for each in told["events"] if each["type"] == "status"]


def test_the_loader_takes_it_for_a_filter_with_a_header(told):
    assert told["warm"]["type"] == "filter"
    assert told["warm"]["header"]["title"] == "Pannier load progress"
    assert told["warm"]["header"]["version"] == pannier.__version__
    assert "requirements" not in told["warm"]["header"]


def test_the_import_rewriting_leaves_the_text_as_it_is(told):
    assert told["rewritten"] == PLUGIN.read_text()


def test_a_warm_model_gets_its_message_at_once_and_unchanged(told):
    assert told["warm"]["body"] == told["warm"]["sent"]
    assert told["warm"]["events"] == []


def test_a_cold_model_is_shown_from_the_first_line_to_the_last(told):
    assert told["cold"]["body"] == told["cold"]["sent"]
    shown = lines(told["cold"])
    assert any(line.startswith("Starting cold") for line in shown)
    assert "Loading cold ▰▰▰▰▱▱▱▱▱▱ 40%" in shown
    assert shown[-1].startswith("cold is ready after")
    assert told["cold"]["events"][-1]["data"]["done"] is True


def test_the_key_of_the_right_connection_is_sent(told):
    assert told["keys"] == {"Bearer of the second"}


def test_a_failed_load_is_the_text_of_the_error(told):
    assert told["broken"]["raised"] == "no such tensor"


def test_stop_reaches_the_plugin_and_passes_through(told):
    assert told["stopped"]["stopped"] is True
    assert lines(told["stopped"])[-1] == "Stopped waiting for slow"


def test_a_caller_of_the_api_does_not_wait(told):
    assert told["caller"]["body"] == told["caller"]["sent"]
    assert told["caller"]["events"] == []


def test_a_workspace_model_waits_for_the_model_below_it(told):
    assert lines(told["preset"])[-1].startswith("below is ready after")


def test_stored_valves_are_used(told):
    assert [bool(each["data"].get("embeds")) for each in told["card"]["events"]] == [
        True, False, False,
    ]  # fmt: skip
