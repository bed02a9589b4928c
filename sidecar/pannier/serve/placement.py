"""`/v1/placement`: the plan that runs, another one to look at, and changes where they are allowed.

The routes translate: a body into what the placement service takes, its refusals into OpenAI's
errors, its ETag into a header. Reading comes from memory and starts nothing (spec V-2). A change
reaches everybody who uses this Pannier, so it needs the config's permission and the admin's key.

Must not: plan or write by itself.
"""

from collections.abc import Callable
from typing import Protocol

import msgspec
from aiohttp import hdrs, web

from pannier.config.edit import EditError
from pannier.config.write_file import WriteError
from pannier.errors import ConfigError, PannierError
from pannier.plan.request import (
    HTTP_REFUSAL,
    HTTP_WAYS,
    LARGEST_SPEC,
    ApplyError,
    MalformedSpecError,
    StaleError,
)
from pannier.plan.spec import PlacementError
from pannier.plan.view import View
from pannier.progress.hub import Latest
from pannier.serve.errors import ApiError
from pannier.serve.readiness import reply
from pannier.serve.security import Gate, require_admin
from pannier.serve.snapshot import Snapshot


class Placements(Protocol):
    """The placement service, as these routes use it."""

    def get_placement(self) -> View:
        """The plan that runs, from memory."""

    async def preview_placement(self, text: str | bytes | None) -> View:
        """What would run with this spec."""

    async def set_placement(
        self, text: str | bytes | None, matches: Callable[[str], bool] = lambda _: True
    ) -> View:
        """Writes, applies and waits."""


class PlacementRoutes:
    """The handlers."""

    def __init__(self, snapshots: Latest[Snapshot], placements: Placements, gate: Gate) -> None:
        self._snapshots = snapshots
        self._placements = placements
        self._gate = gate

    def add_to(self, app: web.Application) -> None:
        """Their paths."""
        app.router.add_get("/v1/placement", self.get)
        app.router.add_post("/v1/placement/preview", self.preview)
        app.router.add_put("/v1/placement", self.put)
        app.router.add_delete("/v1/placement", self.delete)

    async def get(self, request: web.Request) -> web.Response:
        """GET /v1/placement."""
        return self._answer(self._placements.get_placement())

    async def preview(self, request: web.Request) -> web.Response:
        """POST /v1/placement/preview: a spec, or null for the automatic plan."""
        try:
            view = await self._placements.preview_placement(await _body(request))
        except PannierError as error:
            raise told(error) from error
        return reply(self._with_refusal(view))

    async def put(self, request: web.Request) -> web.Response:
        """PUT /v1/placement: a spec."""
        self._check_allowed(request)
        return await self._set(request, await _body(request))

    async def delete(self, request: web.Request) -> web.Response:
        """DELETE /v1/placement: back to the automatic plan."""
        self._check_allowed(request)
        return await self._set(request, None)

    async def _set(self, request: web.Request, body: bytes | None) -> web.Response:
        try:
            view = await self._placements.set_placement(body, _matches(request))
        except PannierError as error:
            raise told(error) from error
        return self._answer(view)

    def _check_allowed(self, request: web.Request) -> None:
        require_admin(request, self._gate.access)
        if not self._snapshots.value.config.server.allow_http_placement:
            message = f"{HTTP_REFUSAL} ({HTTP_WAYS})"
            raise ApiError(409, message, code="placement-not-allowed", should_retry=False)

    def _answer(self, view: View) -> web.Response:
        answer = reply(self._with_refusal(view))
        answer.headers[hdrs.ETAG] = f'"{view.etag}"'
        return answer

    def _with_refusal(self, view: View) -> View:
        if self._snapshots.value.config.server.allow_http_placement:
            return view
        return msgspec.structs.replace(view, changes_refused=f"{HTTP_REFUSAL} ({HTTP_WAYS})")


def told(error: PannierError) -> PannierError:
    """A refusal of the service as an answer; other errors stay what they are."""
    kinds: tuple[tuple[type[PannierError], int], ...] = (
        (MalformedSpecError, 400),
        (PlacementError, 422),
        (StaleError, 412),
        (EditError, 409),
        (WriteError, 409),
        (ConfigError, 409),
    )
    if isinstance(error, ApplyError):
        return ApiError(503, str(error), code=error.code, kind="server_error", should_retry=False)
    for kind, status in kinds:
        if isinstance(error, kind):
            message = str(error)
            if isinstance(error, ConfigError):
                message += ": " + "; ".join(each.text() for each in error.problems[:10])
            return ApiError(status, message, code=error.code, should_retry=False)
    return error


async def _body(request: web.Request) -> bytes:
    too_large = ApiError(413, f"a spec has at most {LARGEST_SPEC} bytes", code="too_large")
    if (request.content_length or 0) > LARGEST_SPEC:
        raise too_large
    body = b""
    async for piece in request.content.iter_any():
        body += piece
        if len(body) > LARGEST_SPEC:
            raise too_large
    if not body.strip():
        message = "the body is empty; send a placement spec, or null for the automatic plan"
        raise ApiError(400, message, code="not-json")
    return body


def _matches(request: web.Request) -> Callable[[str], bool]:
    """What If-Match asks of the ETag of now; without one everything matches."""
    given = request.headers.getall(hdrs.IF_MATCH, [])
    if not given:
        return lambda _: True
    # Weak ones never match here (RFC 9110, 13.1.1).
    wanted = {each.strip() for line in given for each in line.split(",")}
    return lambda etag: bool(wanted & {"*", f'"{etag}"'})
