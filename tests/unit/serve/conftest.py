"""The HTTP side on a real port, with a real upstream behind it and snapshots by hand."""

import asyncio
import contextlib
import io
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
from aiohttp import web
from tests.fakes.desk import Desk
from tests.fakes.snapshots import snapshot_of
from tests.fakes.upstream import FakeUpstream

from pannier.config.schema import Server
from pannier.fleet.host import Upstream
from pannier.placement.live import LivePlacement
from pannier.progress.hub import Latest
from pannier.serve.app import make_app
from pannier.serve.forward import upstream_session
from pannier.serve.router_dialect import Levers
from pannier.serve.security import Gate, access_of
from pannier.serve.snapshot import Snapshot

UPSTREAM_KEY = "Bearer the-key-of-this-run"
PATIENCE = 15.0
QUIET_S = 0.05


class Stand:
    """A running HTTP side. `granted` unset: loans wait; `refusal`: what they end with."""

    def __init__(self, upstream: FakeUpstream, desk: Desk) -> None:
        self.upstream = upstream
        self.desk = desk
        self.snapshots: Latest[Snapshot] = Latest(snapshot_of())
        self.gate = Gate(access_of(Server()))
        self.granted = asyncio.Event()
        self.granted.set()
        self.refusal: Exception | None = None
        self.lent: list[str] = []
        self.open_loans = 0
        self.asked = asyncio.Event()
        self.gave_up = asyncio.Event()
        self.wished: list[str] = []
        self.unloaded: list[str] = []
        self.url = ""
        self.port = 0
        self.runner: web.AppRunner | None = None
        self.client: aiohttp.ClientSession

    @contextlib.asynccontextmanager
    async def lend(self, instance: str) -> AsyncIterator[Upstream]:
        self.lent.append(instance)
        self.asked.set()
        try:
            await self.granted.wait()
        except asyncio.CancelledError:
            self.gave_up.set()
            raise
        if self.refusal is not None:
            raise self.refusal
        self.open_loans += 1
        try:
            yield Upstream(url=self.upstream.url, headers={"Authorization": UPSTREAM_KEY})
        finally:
            self.open_loans -= 1

    def publish(self, **fields: Any) -> None:
        self.snapshots.publish(msgspec.structs.replace(self.snapshots.value, **fields))

    async def post(self, path: str, body: object, **options: Any) -> tuple[int, Any]:
        data = io.BytesIO(msgspec.json.encode(body))
        options["headers"] = {"Content-Type": "application/json", **options.get("headers", {})}
        async with self.client.post(self.url + path, data=data, **options) as answer:
            return answer.status, msgspec.json.decode(await answer.read())

    async def get(self, path: str, **options: Any) -> tuple[int, bytes]:
        async with self.client.get(self.url + path, **options) as answer:
            return answer.status, await answer.read()

    async def raw(self, request: bytes) -> tuple[int, bytes]:
        """Sends bytes as they are; status and the whole answer."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            writer.write(request)
            await writer.drain()
            async with asyncio.timeout(PATIENCE):
                answer = await reader.read()
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()
        return int(answer.split(b" ", 2)[1]) if answer else 0, answer

    async def head(self, request: bytes) -> tuple[int, bytes]:
        """As `raw`, but it reads no more than the head and a first piece of a stream."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            writer.write(request)
            async with asyncio.timeout(PATIENCE):
                answer = await reader.readuntil(b"\r\n\r\n")
                answer += await reader.read(65536)
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()
        return int(answer.split(b" ", 2)[1]), answer

    async def stop(self) -> None:
        if self.runner is not None:
            await self.runner.cleanup()
            self.runner = None


@pytest.fixture
async def stand(tmp_path: Path) -> AsyncIterator[Stand]:
    """As `service.py` sets the HTTP side up."""
    async with FakeUpstream().running() as upstream, upstream_session() as session:
        stand = Stand(upstream, Desk(tmp_path))
        levers = Levers(wish=stand.wished.append, unload=stand.unloaded.append)
        placements = LivePlacement(stand.desk)
        app = make_app(
            stand.snapshots, stand.lend, session, stand.gate, levers, placements, quiet_s=QUIET_S
        )
        stand.runner = web.AppRunner(
            app, handler_cancellation=True, access_log=None, shutdown_timeout=3.0
        )
        await stand.runner.setup()
        await web.TCPSite(stand.runner, "127.0.0.1", 0).start()
        stand.port = stand.runner.addresses[0][1]
        stand.url = f"http://127.0.0.1:{stand.port}"
        async with aiohttp.ClientSession(auto_decompress=False) as stand.client:
            yield stand
        await stand.stop()
        await placements.aclose()
        assert stand.open_loans == 0, "a loan was not given back"
