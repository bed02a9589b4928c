"""Runs the plugin in Open WebUI's own loader and filter pipeline, without a server.

    python loader_program.py PLUGIN < scenarios.json

It is started with the Python of an environment that has the real package. What happened in each
scenario, one message each, is printed as JSON.
"""

import asyncio
import json
import os
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

os.environ.update(
    DATA_DIR=tempfile.gettempdir(), WEBUI_SECRET_KEY="for tests", FROM_INIT_PY="true",
    OFFLINE_MODE="True", HF_HUB_OFFLINE="1", GLOBAL_LOG_LEVEL="ERROR",
)  # fmt: skip

from open_webui.models.config import Config
from open_webui.models.functions import Functions
from open_webui.utils import filter as pipeline
from open_webui.utils import plugin as loader

NAME = "pannier_progress"

Json = dict[str, Any]


async def message(source: str, scenario: Json) -> Json:
    """One message through the pipeline, and what its page was sent."""
    function, kind, header, module = await loader.load_function_module_by_id(NAME, source)
    state = SimpleNamespace(OPENAI_MODELS=scenario["models"])
    request: Any = SimpleNamespace(app=SimpleNamespace(state=state), state=SimpleNamespace())
    loader.set_function_module_in_cache(request, NAME, source, function, module)

    async def stored_valves(ids: list[str]) -> Json:
        return {NAME: scenario["valves"]}

    Functions.get_function_valves_by_ids = stored_valves
    Config.configure(defaults=scenario["config"], enable_persistent=False)
    events: list[Json] = []
    begun = asyncio.Event()

    async def emit(event: Json) -> None:
        events.append(event)
        begun.set()

    metadata = scenario["metadata"]
    extra = {
        "__event_emitter__": emit, "__event_call__": None, "__user__": {"id": "u"},
        "__metadata__": metadata, "__oauth_token__": None, "__request__": request,
        "__model__": scenario["model"], "__chat_id__": metadata["chat_id"],
        "__message_id__": metadata["message_id"],
    }  # fmt: skip
    stored = SimpleNamespace(id=NAME, content=source, type="filter", is_active=True)
    body = {"model": scenario["model"]["id"], "messages": [], "metadata": metadata}
    context = pipeline.get_filter_context(request)
    task = asyncio.create_task(
        pipeline.process_filter_functions(request, context, [stored], "inlet", body, extra)
    )
    if scenario["stop"]:
        await begun.wait()
        task.cancel()
    end = {}
    try:
        returned, _ = await task
        end["body"] = returned
    except asyncio.CancelledError:
        end["stopped"] = True
    except Exception as error:
        end["raised"] = str(error)
    return {"type": kind, "header": header, "sent": body, "events": events, **end}


async def main(source: str, scenarios: Json) -> Json:
    """The scenarios, one after the other, and what the loader makes of the text."""
    told: Json = {name: await message(source, scenario) for name, scenario in scenarios.items()}
    return {**told, "rewritten": loader.replace_imports(source)}


if __name__ == "__main__":
    print(json.dumps(asyncio.run(main(Path(sys.argv[1]).read_text(), json.load(sys.stdin)))))
