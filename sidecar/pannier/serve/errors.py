"""Every error that leaves Pannier has OpenAI's body, whatever went wrong and wherever.

The real client reads `error.{message,type,param,code}`, retries 408, 409, 429 and 5xx by itself and
honours `Retry-After` and `x-should-retry` (seen in openai 3.57); so a failure that a retry cannot
mend says so.

Must not: show a command line, a path of ours or a traceback to a client.
"""

import logging

import msgspec
from aiohttp import web
from aiohttp.typedefs import Handler

from pannier.errors import Failure, LoadError, PannierError, UnavailableError

log = logging.getLogger("pannier.serve")


class ApiError(PannierError):
    """An answer that is an error: status, OpenAI's type and code, and when to try again."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str,
        kind: str = "invalid_request_error",
        param: str | None = None,
        retry_after_s: int | None = None,
        should_retry: bool | None = None,
        allow: str | None = None,
    ) -> None:
        super().__init__(message, code=code)
        self.status = status
        self.kind = kind
        self.param = param
        self.retry_after_s = retry_after_s
        self.should_retry = should_retry
        self.allow = allow

    def body(self) -> bytes:
        """OpenAI's error object."""
        # A message may quote a header, and a header may hold bytes that are no text.
        message = str(self).encode(errors="replace").decode()
        return msgspec.json.encode(
            {
                "error": {
                    "message": message,
                    "type": self.kind,
                    "param": self.param,
                    "code": self.code,
                }
            }
        )

    def frame(self) -> bytes:
        """The same as one event of a stream whose headers are gone already."""
        return b"data: " + self.body() + b"\n\n"

    def response(self) -> web.Response:
        """The same as a response."""
        headers = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
        if self.retry_after_s is not None:
            headers["Retry-After"] = str(self.retry_after_s)
        if self.should_retry is not None:
            headers["x-should-retry"] = "true" if self.should_retry else "false"
        if self.allow:
            headers["Allow"] = self.allow
        if self.status == 401:
            headers["WWW-Authenticate"] = "Bearer"
        return web.Response(
            status=self.status, body=self.body(), content_type="application/json", headers=headers
        )


def from_error(error: PannierError) -> ApiError:
    """What a client is told about an error of the parts below."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, LoadError):
        return from_failure(error.failure)
    retry = 5 if isinstance(error, UnavailableError) else None
    return ApiError(503, str(error), code=error.code, kind="server_error", retry_after_s=retry)


def from_failure(failure: Failure) -> ApiError:
    """A load that failed: trying again at once would only fail again, but for a replaced one."""
    passing = failure.code in ("replaced", "unloaded", "queued", "loading")
    return ApiError(
        503,
        failure.text(),
        code=failure.code,
        kind="server_error",
        retry_after_s=2 if passing else 30,
        should_retry=passing,
    )


@web.middleware
async def openai_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Turns everything that a handler raises into OpenAI's shape."""
    try:
        return await handler(request)
    except PannierError as error:
        return from_error(error).response()
    except web.HTTPRequestEntityTooLarge as error:
        return ApiError(413, error.text or "the request is too large", code="too_large").response()
    except web.HTTPException as error:
        return _from_http(request, error).response()
    except Exception:
        log.exception("%s %s broke", request.method, request.path)
        return ApiError(
            500, "a fault inside Pannier; see its log", code="internal_error", kind="server_error"
        ).response()


def _from_http(request: web.Request, error: web.HTTPException) -> ApiError:
    if error.status == 404:
        return ApiError(404, f"there is no {request.path} here", code="not_found")
    if error.status == 405:
        allowed = error.headers.get("Allow", "")
        message = f"{request.path} does not take {request.method}; allowed: {allowed}"
        return ApiError(405, message, code="method_not_allowed", allow=allowed)
    return ApiError(error.status, error.reason, code="http_error")
