"""A stand-in for Pannier that tests drive, and a chat that collects what the page would get."""

import asyncio
import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

from aiohttp import web

PLUGIN = Path(__file__).parents[3] / "plugin" / "pannier_progress.py"
NAME = "qwen3"

Json = dict[str, Any]


async def until(holds: Callable[[], Any]) -> Any:
    """Waits for something that happens in another task."""
    async with asyncio.timeout(5):
        while not (found := holds()):  # noqa: ASYNC110  nothing here is told of it by an event
            await asyncio.sleep(0.005)
    return found


def a_row(model: str = NAME, state: str = "cold", **more: Any) -> Json:
    """A row of /v1/readiness with everything that Pannier sends."""
    empty = dict.fromkeys(
        ("stage", "fraction", "bytes_done", "bytes_total", "eta_s", "elapsed_s", "source")
    )
    return {
        "id": model, "object": "model.readiness", "role": "chat", "aliases": [], "state": state,
        **empty, "stalled": False, "making_room": None, "error": None, "instances": [], **more,
    }  # fmt: skip


class StandIn:
    """A Pannier without models: it says what the test tells it to say, and keeps what it hears."""

    def __init__(self) -> None:
        self.rows: dict[str, Json] = {NAME: a_row()}
        self.asked: list[str] = []
        self.headers: list[Any] = []
        self.paths: list[str] = []
        self.streams: set[asyncio.Queue[bytes | None]] = set()
        self.on_ask: Any = None
        self.answers: dict[str, Any] = {}
        """Path -> what answers it instead: a handler."""
        self.url = ""

    def now(self, state: str, model: str = NAME, **more: Any) -> None:
        """The model is so from now on; every open stream hears it."""
        self.rows[model] = a_row(model, state, **more)
        self.say(f"event: model\ndata: {json.dumps(self.rows[model])}\n\n")

    def say(self, text: str) -> None:
        for stream in self.streams:
            stream.put_nowait(text.encode())

    def end_streams(self) -> None:
        for stream in self.streams:
            stream.put_nowait(None)

    def list(self) -> Json:
        return {"object": "list", "data": list(copy.deepcopy(self.rows).values())}

    async def streaming(self, count: int = 1) -> None:
        """Waits until so many chats hear the events."""
        await until(lambda: len(self.streams) >= count)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.paths.append(f"{request.method} {request.path}")
        self.headers.append(request.headers.copy())
        if request.path in self.answers:
            answer: web.StreamResponse = await self.answers[request.path](request)
            return answer
        if request.path == "/models/load":
            model = (await request.json())["model"]
            self.asked.append(model)
            if self.on_ask:
                self.on_ask()
            return web.json_response({"success": True})
        if request.path == "/v1/readiness/events":
            return await self._events(request)
        model = request.path.removeprefix("/v1/readiness/")
        if model not in self.rows:
            return web.json_response({"error": {"message": "there is no such model"}}, status=404)
        return web.json_response(self.rows[model])

    async def _events(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(f"event: snapshot\ndata: {json.dumps(self.list())}\n\n".encode())
        queue: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.streams.add(queue)
        try:
            while (text := await queue.get()) is not None:
                await response.write(text)
        finally:
            self.streams.discard(queue)
        return response


class Connections:
    """What an admin has set in Open WebUI, as its `Config` gives it."""

    def __init__(self) -> None:
        self.values: Json = {
            "openai.api_base_urls": [],
            "openai.api_keys": [],
            "openai.api_configs": {},
        }

    def add(self, url: str, key: str = "", **config: Any) -> int:
        index = len(self.values["openai.api_base_urls"])
        self.values["openai.api_base_urls"].append(url)
        self.values["openai.api_keys"].append(key)
        self.values["openai.api_configs"][str(index)] = config
        return index


class Chat:
    """One message on its way through the filter, and what its page gets."""

    BROWSER: ClassVar[Json] = {
        "chat_id": "c1",
        "session_id": "s1",
        "message_id": "m1",
        "direct": False,
    }

    def __init__(self, function: Any, model: Json, metadata: Json | None = None) -> None:
        self.function = function
        self.model = model
        self.metadata = self.BROWSER if metadata is None else metadata
        self.events: list[Json] = []
        self.times: list[float] = []
        self.request: Any = None
        self.body = {"model": model.get("id"), "messages": [], "stream": True}
        self.task: asyncio.Task[Json] | None = None

    async def emit(self, event: Json) -> None:
        self.events.append(event)
        self.times.append(asyncio.get_running_loop().time())

    async def send(self) -> Json:
        """The body that goes on."""
        async with asyncio.timeout(10):
            body: Json = await self.function.inlet(
                self.body,
                __event_emitter__=self.emit,
                __metadata__=self.metadata,
                __model__=self.model,
                __request__=self.request,
            )
        return body

    def start(self) -> "Chat":
        self.task = asyncio.create_task(self.send())
        return self

    async def end(self) -> Json:
        assert self.task is not None
        return await self.task

    async def shows(self, words: str) -> str:
        """Waits for a line with these words."""

        def shown() -> list[str]:
            assert self.task is not None
            found = [line for line in self.lines if words in line]
            assert found or not self.task.done(), f"over without {words!r}: {self.lines}"
            return found

        found = await until(shown)
        return str(found[-1])

    @property
    def lines(self) -> list[str]:
        return [each["data"]["description"] for each in self.events if each["type"] == "status"]

    @property
    def cards(self) -> list[list[str]]:
        return [each["data"]["embeds"] for each in self.events if each["type"] == "embeds"]

    @property
    def last(self) -> Json:
        found: Json = self.events[-1]["data"]
        return found
