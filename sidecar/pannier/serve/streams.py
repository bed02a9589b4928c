"""Server-sent events of ours: their wire format, their limits, and their end at shutdown.

Each subscriber has a task of its own and keeps its own pace. aiohttp waits at shutdown for every
handler that still streams, so the streams are ended by us.

Must not: know what is streamed.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

import msgspec
from aiohttp import web

from pannier.serve.errors import ApiError

MOST_SUBSCRIBERS = 64
WRITE_S = 20.0
"""A reader that takes nothing for this long is let go."""


def sse_response() -> web.StreamResponse:
    """A response that is an event stream which no proxy shall hold back."""
    return web.StreamResponse(
        headers={
            "Content-Type": "text/event-stream; charset=utf-8",
            "Cache-Control": "no-cache, no-transform",
            "X-Accel-Buffering": "no",
            "X-Content-Type-Options": "nosniff",
        }
    )


class EventStream:
    """Writes events with rising ids; a reader that is stuck raises TimeoutError."""

    def __init__(self, response: web.StreamResponse) -> None:
        self._response = response
        self.count = 0

    async def send(self, event: str | None, value: object) -> None:
        """One event; without a name it is the default kind, "message"."""
        self.count += 1
        payload = msgspec.json.encode(value).decode()
        name = f"event: {event}\n" if event else ""
        await self._write(f"id: {self.count}\n{name}data: {payload}\n\n")

    async def comment(self, text: str) -> None:
        """A line that readers skip: it keeps the connection from being given up."""
        await self._write(f": {text}\n\n")

    async def _write(self, text: str) -> None:
        async with asyncio.timeout(WRITE_S):
            await self._response.write(text.encode())


class Streams:
    """All open event streams of the application."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    async def serve(
        self, request: web.Request, send: Callable[[EventStream], Awaitable[None]]
    ) -> web.StreamResponse:
        """Runs `send` on a new stream until it or the reader ends, or Pannier stops."""
        if len(self._tasks) >= MOST_SUBSCRIBERS:
            raise ApiError(503, "too many event streams are open", code="busy", retry_after_s=10)
        response = sse_response()
        await response.prepare(request)

        async def run() -> None:
            await send(EventStream(response))

        # A task of its own, so that a shutdown can end the stream without cancelling the handler.
        task = asyncio.create_task(run(), name=f"events of {request.path}")
        self._tasks.add(task)
        try:
            await asyncio.wait({task})
        finally:
            self._tasks.discard(task)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        with contextlib.suppress(ConnectionError):
            await response.write_eof()
        return response

    def close(self) -> None:
        """Ends all streams."""
        for task in self._tasks:
            task.cancel()
