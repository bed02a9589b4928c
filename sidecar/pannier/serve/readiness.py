"""`/v1/readiness`, its event stream, and the probes: how far everything is.

All of it comes from the latest snapshot; nothing here asks a process. Each subscriber keeps its own
pace: it compares the rows of the moment with those it sent last, so a slow one skips and holds up
nobody.

Must not: start or load anything (spec V-2).
"""

import asyncio
import contextlib

import msgspec
from aiohttp import web

from pannier.progress.hub import Latest
from pannier.serve.errors import ApiError
from pannier.serve.rows import listing, row, rows, wanted_ready
from pannier.serve.shapes import Row
from pannier.serve.snapshot import Snapshot
from pannier.serve.streams import EventStream, Streams

KEEP_ALIVE_S = 10.0

LONGEST_WAIT_S = 1800.0

_TICK_S = 1.0
"""While a model loads its elapsed and remaining seconds change without any event."""


def reply(value: object, status: int = 200) -> web.Response:
    """A JSON answer of ours."""
    return web.Response(
        status=status,
        body=msgspec.json.encode(value),
        content_type="application/json",
        headers={"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"},
    )


class ReadinessRoutes:
    """The handlers; they share the latest snapshot."""

    def __init__(self, snapshots: Latest[Snapshot], streams: Streams) -> None:
        self._snapshots = snapshots
        self._streams = streams

    async def everything(self, request: web.Request) -> web.Response:
        """GET /v1/readiness."""
        return reply(listing(self._snapshots.value, _now()))

    async def one(self, request: web.Request) -> web.Response:
        """GET /v1/readiness/{model}?wait=SECONDS: at once, or when it is ready or has failed."""
        end = _now() + _seconds(request)
        while True:
            version, snapshot = self._snapshots.version, self._snapshots.value
            model = snapshot.model_of(request.match_info["model"])
            if model is None:
                name = request.match_info["model"]
                raise ApiError(404, f"there is no model {name!r}", code="model_not_found")
            found = row(snapshot, model, _now())
            left = end - _now()
            settled = found.state in ("ready", "failed", "not_installed", "unplaceable")
            if settled or left <= 0 or snapshot.stopping:
                return reply(found)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await self._snapshots.newer(version)

    async def events(self, request: web.Request) -> web.StreamResponse:
        """GET /v1/readiness/events: a snapshot, then each row that changes."""
        return await self._streams.serve(request, self._send_events)

    async def _send_events(self, stream: EventStream) -> None:
        version, snapshot = self._snapshots.version, self._snapshots.value
        await stream.send("snapshot", listing(snapshot, _now()))
        sent = {each.id: each for each in rows(snapshot, _now())}
        told = _config_key(snapshot)
        spoke = _now()
        while True:
            loading = any(each.state == "loading" for each in sent.values())
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_TICK_S if loading else KEEP_ALIVE_S):
                    await self._snapshots.newer(version)
            version, snapshot = self._snapshots.version, self._snapshots.value
            before = stream.count
            if _config_key(snapshot) != told:
                told = _config_key(snapshot)
                await stream.send("config", listing(snapshot, _now()))
                sent = {each.id: each for each in rows(snapshot, _now())}
            for each in rows(snapshot, _now()):
                if _news(sent.get(each.id), each):
                    sent[each.id] = each
                    await stream.send("model", each)
            if stream.count != before:
                spoke = _now()
            elif _now() - spoke >= KEEP_ALIVE_S:
                spoke = _now()
                await stream.comment("keep-alive")

    async def livez(self, request: web.Request) -> web.Response:
        """GET /livez: the loop runs. Says nothing about models."""
        return web.Response(text="ok\n")

    async def readyz(self, request: web.Request) -> web.Response:
        """GET /readyz: 200 when the config is applied and every wanted model is ready."""
        snapshot = self._snapshots.value
        conditions = _conditions(snapshot, verbose="verbose" in request.query)
        good = all(ok for ok, needed, _ in conditions if needed)
        lines = [f"[{'+' if ok else '-'}] {text}" for ok, _, text in conditions]
        body = "\n".join((*lines, "ready" if good else "not ready")) + "\n"
        if "verbose" not in request.query:
            body = "ok\n" if good else "not ready\n"
        return web.Response(status=200 if good else 503, text=body)


def _news(before: Row | None, after: Row) -> bool:
    """Whether a row is worth an event: seconds alone count once a second, by the caller's tick."""
    if before is None or before.state != after.state or after.state == "loading":
        return before != after
    still = {"elapsed_s": None, "eta_s": None}
    return msgspec.structs.replace(before, **still) != msgspec.structs.replace(after, **still)


def _config_key(snapshot: Snapshot) -> tuple[object, ...]:
    return (snapshot.generation, snapshot.shown_status)


def _conditions(snapshot: Snapshot, *, verbose: bool) -> list[tuple[bool, bool, str]]:
    """Conditions as (holds, is needed for ready, text).

    A broken edit is shown and does not make Pannier unready: what was running goes on.
    """
    found: list[tuple[bool, bool, str]] = []
    problems = snapshot.status.problems
    text = (
        "config: applied" if not problems else f"config: {len(problems)} problems in the last save"
    )
    found.append((not problems, False, text))
    found += [(False, False, f"config: {problem.text()}") for problem in problems if verbose]
    found += [(True, False, f"note: {note}") for note in snapshot.status.notes]
    found.append(_devices(snapshot))
    found.append((not snapshot.stopping, True, "running" if not snapshot.stopping else "stopping"))
    for model in snapshot.config.models:
        shown = row(snapshot, model, 0.0)
        because = f": {shown.error.message}" if shown.error else ""
        ok = wanted_ready(snapshot, model)
        fine = ok and shown.error is None
        found.append((fine, not ok, f"model {model}: {shown.state}{because}"))
    return found


def _devices(snapshot: Snapshot) -> tuple[bool, bool, str]:
    """The devices as a condition. A silence of the driver stops nothing, so it is not needed."""
    inventory = snapshot.inventory
    if inventory.stale is not None:
        return False, False, f"devices: stale, what runs goes on: {inventory.stale}"
    if inventory.engine_backend == "unknown":
        return False, False, "devices: not known, the engine did not list them"
    labels = ", ".join(device.label for device in inventory.devices)
    return True, False, f"devices: {labels or 'the CPU'}"


def _seconds(request: web.Request) -> float:
    text = request.query.get("wait", "0")
    try:
        wait = float(text)
    except ValueError:
        wait = -1.0
    if not 0.0 <= wait <= LONGEST_WAIT_S:
        raise ApiError(
            400,
            f"wait is {text!r}; allowed: 0 to {LONGEST_WAIT_S:.0f} seconds",
            code="bad_wait",
            param="wait",
        )
    return wait


def _now() -> float:
    return asyncio.get_running_loop().time()
