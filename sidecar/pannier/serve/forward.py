"""Sends a request on to the instance of its model and the answer back, byte for byte.

A request for a cold model waits for its load. A streaming one gets SSE comments meanwhile, so that
no proxy between gives up; until the first of them nothing is sent, so that a failure can still be a
proper status. After the first byte nothing is ever tried again: a stream that breaks ends with one
error event and without `[DONE]`, which is what a client can tell from a whole answer.

Must not: build a path from a client's text. The routes are a fixed table, and so are their
upstreams.
"""

import asyncio
import contextlib
import io
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager

import aiohttp
import msgspec
from aiohttp import web

from pannier.errors import PannierError
from pannier.fleet.host import Upstream
from pannier.progress.hub import Latest
from pannier.serve.asked import read_asked
from pannier.serve.errors import ApiError, from_error
from pannier.serve.headers import to_client, to_upstream
from pannier.serve.snapshot import Snapshot
from pannier.serve.waiting import QUIET_S, Waiting

Lend = Callable[[str], AbstractAsyncContextManager[Upstream]]

MAX_BODY = 64 * 1024 * 1024
"""A few images as base64; aiohttp's own limit of 1 MiB is less than one."""

_LARGE_BODY = 256 * 1024

ROUTES: dict[str, str] = {
    "/v1/chat/completions": "/v1/chat/completions",
    "/v1/completions": "/v1/completions",
    "/v1/embeddings": "/v1/embeddings",
    "/v1/responses": "/v1/responses",
    "/v1/messages": "/v1/messages",
    "/v1/messages/count_tokens": "/v1/messages/count_tokens",
    "/v1/rerank": "/v1/rerank",
    "/v1/reranking": "/v1/rerank",
    "/rerank": "/v1/rerank",
    "/reranking": "/v1/rerank",
    "/infill": "/infill",
    "/tokenize": "/tokenize",
    "/detokenize": "/detokenize",
    "/apply-template": "/apply-template",
    "/v1/audio/transcriptions": "/v1/audio/transcriptions",
}

_ENDS_WITH_DONE = frozenset({"/v1/chat/completions", "/v1/completions"})
_DONE = b"[DONE]"
_ERROR = b'data: {"error"'


def upstream_session() -> aiohttp.ClientSession:
    """The one client session towards engines: no limits but our own, no cookies, no redirects."""
    return aiohttp.ClientSession(
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=5),
        connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=10),
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
        skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding"),
        trust_env=False,
    )


class Forwarder:
    """Forwards requests. `choose` gives the instance for a model's name or raises ApiError."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        snapshots: Latest[Snapshot],
        choose: Callable[[str], str],
        lend: Lend,
        *,
        quiet_s: float = QUIET_S,
    ) -> None:
        self._session = session
        self._snapshots = snapshots
        self._choose = choose
        self._lend = lend
        self._quiet_s = quiet_s

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """The handler of every route of `ROUTES`."""
        body = await _read_body(request)
        model, stream = read_asked(body, request.headers.get("Content-Type", ""))
        instance = self._choose(model)
        begun: web.StreamResponse | None = None
        async with contextlib.AsyncExitStack() as stack:
            waiting = asyncio.ensure_future(stack.enter_async_context(self._lend(instance)))
            try:
                if stream:
                    begun = await self._waiting(request, instance).until(waiting)
                upstream = await waiting
            except PannierError as error:
                if begun is None:
                    raise
                return await _end_with(begun, from_error(error))
            finally:
                await _settle(waiting)
            return await self._exchange(request, body, upstream, begun)

    def _waiting(self, request: web.Request, instance: str) -> Waiting:
        snapshot = self._snapshots.value
        header = snapshot.config.server.event_header
        return Waiting(
            request,
            self._snapshots,
            snapshot.plan.instance(instance).model,
            events=header is not None and bool(request.headers.get(header, "").strip()),
            quiet_s=self._quiet_s,
        )

    async def _exchange(
        self,
        request: web.Request,
        body: bytes,
        upstream: Upstream,
        begun: web.StreamResponse | None,
    ) -> web.StreamResponse:
        path = ROUTES[request.match_info.route.resource.canonical]  # type: ignore[union-attr]  # our own plain routes have one
        headers = to_upstream(request.headers)
        headers.update(upstream.headers)
        try:
            # A large body goes as a file: in pieces, the loop running on. For a small one the
            # thread that reads a file costs more than the writing.
            data = io.BytesIO(body) if len(body) > _LARGE_BODY else body
            async with self._session.post(
                upstream.url + path, data=data, headers=headers, allow_redirects=False
            ) as answer:
                failed = await _own_failure(answer)
                if failed is None:
                    return await _pass_on(request, answer, path, begun)
        except aiohttp.ClientConnectionError as error:
            failed = _engine_gone(str(error))
        if begun is not None:
            return await _end_with(begun, failed)
        raise failed


async def _settle(waiting: "asyncio.Future[Upstream]") -> None:
    """A handler that is cancelled must not leave its place in the queue behind."""
    if not waiting.done():
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)


async def _read_body(request: web.Request) -> bytes:
    if request.content_length is not None and request.content_length > MAX_BODY:
        raise ApiError(413, f"the body is larger than {MAX_BODY} bytes", code="too_large")
    return await request.read()


async def _pass_on(
    request: web.Request,
    answer: aiohttp.ClientResponse,
    path: str,
    begun: web.StreamResponse | None,
) -> web.StreamResponse:
    events = answer.content_type == "text/event-stream"
    if begun is not None and not events:
        # Headers are gone, and what came is no stream: an error of the engine, as one event.
        return await _end_with(begun, _from_engine(answer.status, await answer.read()))
    response = begun
    if response is None:
        response = web.StreamResponse(status=answer.status, headers=to_client(answer.headers))
        if answer.content_length is not None and not events:
            response.content_length = answer.content_length
        await response.prepare(request)
    last, told = b"", False
    try:
        async for chunk in _chunks(answer):
            told = told or _ERROR in last + chunk
            last = (last + chunk)[-64:]
            await response.write(chunk)
    except aiohttp.ClientError:
        return await _broken(request, response, events, "its answer broke off")
    whole = _DONE in last or told or path not in _ENDS_WITH_DONE
    if events and answer.status == 200 and not whole:
        return await _broken(request, response, events, "its answer broke off")
    await response.write_eof()
    return response


async def _chunks(answer: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    async for chunk in answer.content.iter_any():
        yield chunk


async def _broken(
    request: web.Request, response: web.StreamResponse, events: bool, reason: str
) -> web.StreamResponse:
    """The engine went away in the middle: a stream says so, anything else is cut."""
    if events:
        return await _end_with(response, _engine_gone(reason))
    if request.transport is not None:
        request.transport.abort()
    return response


async def _end_with(response: web.StreamResponse, error: ApiError) -> web.StreamResponse:
    response.force_close()
    with contextlib.suppress(ConnectionError):
        await response.write(error.frame())
        await response.write_eof()
    return response


async def _own_failure(answer: aiohttp.ClientResponse) -> ApiError | None:
    """What stands between us and the engine failed: an empty 5xx, or llama-swap's own error."""
    if answer.status < 500:
        return None
    if answer.content_type == "application/json" and answer.headers.get("Server") == "llama.cpp":
        return None
    text = (await answer.content.read(65536)).decode(errors="replace")
    if answer.content_type == "application/json" and '"src":"llama-swap"' not in text.replace(
        " ", ""
    ):
        return _from_engine(answer.status, text.encode())
    return _engine_gone(f"status {answer.status}")


def _engine_gone(reason: str) -> ApiError:
    return ApiError(
        503,
        f"the engine of this model went away while it answered: {reason}",
        code="engine_gone",
        kind="server_error",
        retry_after_s=2,
    )


def _from_engine(status: int, body: bytes) -> ApiError:
    """An error object of the engine as one of ours, with its words."""
    try:
        found = msgspec.json.decode(body)
        message = found["error"]["message"]
    except (msgspec.MsgspecError, KeyError, TypeError, UnicodeDecodeError):
        message = body[:300].decode(errors="replace") or f"status {status}"
    return ApiError(status, str(message), code="engine_error", kind="server_error")
