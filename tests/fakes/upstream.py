"""An engine for tests of the HTTP side: a real server that answers as it is told, and remembers."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from aiohttp import web
from multidict import CIMultiDictProxy

Answer = Callable[["Seen"], Awaitable[web.StreamResponse]]
LLAMA = {"Server": "llama.cpp"}


class Seen:
    """One request as it arrived."""

    def __init__(self, request: web.Request, body: bytes) -> None:
        self.request = request
        self.path = request.raw_path
        self.headers: CIMultiDictProxy[str] = request.headers
        self.body = body


class FakeUpstream:
    """Answers every POST with `answer`; `cancelled` is set when a client of it went away."""

    def __init__(self) -> None:
        self.url = ""
        self.seen: list[Seen] = []
        self.answer: Answer = says(200, b'{"ok": true}')
        self.asked = asyncio.Event()
        self.cancelled = asyncio.Event()

    @property
    def last(self) -> Seen:
        return self.seen[-1]

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        seen = Seen(request, await request.read())
        self.seen.append(seen)
        self.asked.set()
        try:
            return await self.answer(seen)
        except asyncio.CancelledError:
            self.cancelled.set()
            raise

    @asynccontextmanager
    async def running(self) -> AsyncIterator["FakeUpstream"]:
        app = web.Application(client_max_size=1 << 30)
        app.router.add_route("*", "/{path:.*}", self._handle)
        runner = web.AppRunner(
            app, handler_cancellation=True, shutdown_timeout=0.2, access_log=None
        )
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            self.url = f"http://127.0.0.1:{runner.addresses[0][1]}/upstream/x"
            yield self
        finally:
            await runner.cleanup()


def says(
    status: int,
    body: bytes,
    *,
    kind: str = "application/json",
    headers: dict[str, str] | None = None,
) -> Answer:
    """A whole answer."""

    async def answer(seen: Seen) -> web.StreamResponse:
        return web.Response(
            status=status, body=body, headers={**LLAMA, "Content-Type": kind, **(headers or {})}
        )

    return answer


def streams(
    *chunks: bytes,
    done: bool = True,
    dies: bool = False,
    first: asyncio.Event | None = None,
    between: asyncio.Event | None = None,
    status: int = 200,
) -> Answer:
    """An event stream; it may end without [DONE], die, or wait before or after its first chunk."""

    async def answer(seen: Seen) -> web.StreamResponse:
        if first is not None:
            await first.wait()
        response = web.StreamResponse(
            status=status, headers={**LLAMA, "Content-Type": "text/event-stream"}
        )
        await response.prepare(seen.request)
        for chunk in chunks:
            await response.write(chunk)
            if between is not None:
                await between.wait()
        if dies:
            assert seen.request.transport is not None
            seen.request.transport.abort()
            return response
        if done:
            await response.write(b"data: [DONE]\n\n")
        await response.write_eof()
        return response

    return answer


async def hangs(seen: Seen) -> web.StreamResponse:
    """No answer, for ever."""
    await asyncio.Event().wait()
    raise AssertionError


async def dies(seen: Seen) -> web.StreamResponse:
    """The connection is cut before a byte of an answer."""
    assert seen.request.transport is not None
    seen.request.transport.abort()
    raise asyncio.CancelledError
