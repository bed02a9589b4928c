"""What a streaming request gets while its model loads.

Comments, so that no proxy gives up; and for a client that asked for them (Open WebUI, by the
header that the config names) status events, which its chat shows under the model's name. Until the
first of either nothing is sent, so that a load that fails early is still a proper error.

Must not: send an event to a client that did not ask: a strict one would choke on it.
"""

import asyncio

import msgspec
from aiohttp import web

from pannier.fleet.host import Upstream
from pannier.progress.hub import Latest
from pannier.serve.rows import row
from pannier.serve.shapes import Row
from pannier.serve.snapshot import Snapshot
from pannier.serve.streams import sse_response
from pannier.serve.words import chat_line

QUIET_S = 5.0
"""Seconds before a waiting stream is begun with a comment, and between two of them. Common proxies
give up after 60 s without a byte."""

EVENT_S = 2.0
"""Between two events of one stage: Open WebUI stores each of them in the chat."""

FIRST_EVENT_S = 0.7
"""A load that is over sooner is not worth a line that flashes."""


class Waiting:
    """One request that waits for `model`; `events` says that it asked for status events."""

    def __init__(
        self,
        request: web.Request,
        snapshots: Latest[Snapshot],
        model: str,
        *,
        events: bool,
        quiet_s: float = QUIET_S,
    ) -> None:
        self._request = request
        self._snapshots = snapshots
        self._model = model
        self._events = events
        self._quiet_s = quiet_s
        self._response: web.StreamResponse | None = None
        self._stage: tuple[str, str | None] | None = None
        self._told = 0.0

    async def until(self, ready: "asyncio.Future[Upstream]") -> web.StreamResponse | None:
        """Waits for `ready`, whatever it brings; the response that was begun meanwhile, if any."""
        tick = FIRST_EVENT_S if self._events else self._quiet_s
        while not (await asyncio.wait({ready}, timeout=tick))[0]:
            if not self._events:
                await self._write(b": loading\n\n")
            else:
                await self._tell(self._row())
        if self._stage is not None:
            shown = self._row()
            # Without a last event that is done, the line in the chat would shimmer for ever.
            text = chat_line(shown) if shown else f"{self._model}: not in the config any more"
            await self._write(_event(text, done=True))
        return self._response

    async def _tell(self, shown: Row | None) -> None:
        if shown is None:
            return
        now = asyncio.get_running_loop().time()
        stage = (shown.state, shown.stage)
        if stage != self._stage or now - self._told >= EVENT_S:
            self._stage, self._told = stage, now
            await self._write(_event(chat_line(shown), done=False))

    def _row(self) -> Row | None:
        """None once an edit has removed the model; the loan ends soon, and says so."""
        snapshot = self._snapshots.value
        if self._model not in snapshot.config.models:
            return None
        return row(snapshot, self._model, asyncio.get_running_loop().time())

    async def _write(self, data: bytes) -> None:
        if self._response is None:
            self._response = sse_response()
            await self._response.prepare(self._request)
        await self._response.write(data)


def _event(text: str, *, done: bool) -> bytes:
    """A status event in the shape that Open WebUI takes from an upstream (0.12.4)."""
    status = {"description": text, "done": done, "action": "model_load"}
    body = msgspec.json.encode({"event": {"type": "status", "data": status}})
    return b"data: " + body + b"\n\n"
