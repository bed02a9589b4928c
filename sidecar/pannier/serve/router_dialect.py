"""The routes of llama.cpp's own router, as clients of it know them.

Open WebUI's provider "llama.cpp" shows a dot for a loaded model and an Eject button by these: the
status of the model list, `/models/load`, `/models/unload`. They take and give exactly what the
router of llama-server does, and mean what Pannier means: a load is asked for and goes on by
itself.

Must not: wait. A load that blocks its request breaks the proxies in front (unslothai/unsloth
#5206).
"""

import asyncio
import contextlib
from collections.abc import Callable

import msgspec
from aiohttp import web

from pannier.progress.hub import Latest
from pannier.serve.asked import read_asked
from pannier.serve.errors import from_failure
from pannier.serve.openai import ROUTER_STATUS, OpenAiRoutes
from pannier.serve.readiness import KEEP_ALIVE_S, reply
from pannier.serve.rows import row, rows
from pannier.serve.shapes import Row
from pannier.serve.snapshot import Snapshot
from pannier.serve.streams import EventStream, Streams

_STAGES = {"weights": "text_model", "projector": "mmproj_model", "draft": "spec_model"}
"""Our stages in the router's words."""


class Levers(msgspec.Struct, frozen=True, kw_only=True):
    """What a client may ask of an instance: both return at once."""

    wish: Callable[[str], None]
    unload: Callable[[str], None]


class RouterRoutes:
    """The handlers of the router's dialect."""

    def __init__(
        self, snapshots: Latest[Snapshot], models: OpenAiRoutes, levers: Levers, streams: Streams
    ) -> None:
        self._snapshots = snapshots
        self._models = models
        self._levers = levers
        self._streams = streams

    async def load(self, request: web.Request) -> web.Response:
        """POST /models/load {"model"}: asks for it, again after a failure; a ready one stays so."""
        snapshot, model = await self._asked(request)
        found = row(snapshot, model, 0.0)
        if found.state in ("not_installed", "unplaceable") and found.error is not None:
            raise from_failure(found.error)
        for instance in snapshot.plan.instances_of(model):
            self._levers.wish(instance.id)
        return reply({"success": True})

    async def unload(self, request: web.Request) -> web.Response:
        """POST /models/unload {"model"}: running answers end first; a cold one stays so."""
        snapshot, model = await self._asked(request)
        for instance in snapshot.plan.instances_of(model):
            self._levers.unload(instance.id)
        return reply({"success": True})

    async def _asked(self, request: web.Request) -> tuple[Snapshot, str]:
        name, _ = read_asked(await request.read(), request.headers.get("Content-Type", ""))
        snapshot = self._snapshots.value
        return snapshot, self._models.known(snapshot, name)

    async def events(self, request: web.Request) -> web.StreamResponse:
        """GET /models/sse: a `status_change` for every change of a model."""
        return await self._streams.serve(request, self._send)

    async def _send(self, stream: EventStream) -> None:
        sent: dict[str, dict[str, object]] = {}
        version = -1
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(KEEP_ALIVE_S):
                    await self._snapshots.newer(version)
            version, snapshot = self._snapshots.version, self._snapshots.value
            before = stream.count
            for each in rows(snapshot, asyncio.get_running_loop().time()):
                status = _status(each)
                if sent.get(each.id) != status:
                    sent[each.id] = status
                    await stream.send(
                        None, {"model": each.id, "event": "status_change", "data": status}
                    )
            if stream.count == before:
                await stream.comment("keep-alive")


def _status(shown: Row) -> dict[str, object]:
    """The status of a model as the router tells it, with progress while it loads."""
    status: dict[str, object] = {"status": ROUTER_STATUS.get(shown.state, "unloaded")}
    if shown.state == "loading" and shown.fraction is not None:
        current = _STAGES.get(shown.stage or "", "text_model")
        status["progress"] = {"stages": [current], "current": current, "value": shown.fraction}
    if shown.state == "failed" and shown.error is not None:
        status["error"] = shown.error.text()
    return status
