"""What a request asks for: the model and whether it wants a stream. Pure.

Only these two are read from a stranger's body; everything else is the engine's to judge and is sent
on as it came, byte for byte.

Of two equal keys the last one counts, for us as for llama-server.

Must not: change a body.
"""

from collections.abc import Iterator
from email.message import Message
from email.parser import BytesHeaderParser

import msgspec

from pannier.serve.errors import ApiError


class Asked(msgspec.Struct, frozen=True):
    """The parts of a body that decide where a request goes."""

    model: str | msgspec.UnsetType = msgspec.UNSET
    stream: bool | None = None


_MOST_PARTS = 100
_LONGEST_HEAD = 8192

_DECODER = msgspec.json.Decoder(Asked)


def read_asked(body: bytes, content_type: str) -> tuple[str, bool]:
    """Model name and wish for a stream. Raises ApiError (400) with what is missing or wrong."""
    if content_type.lower().startswith("multipart/form-data"):
        return _from_multipart(body, content_type)
    try:
        asked = _DECODER.decode(body)
    except RecursionError:
        raise ApiError(400, "the JSON is nested too deeply", code="invalid_json") from None
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ApiError(400, f"the body is not valid: {error}", code="invalid_json") from None
    if not isinstance(asked.model, str) or not asked.model:
        raise ApiError(400, "the body names no model", code="missing_model", param="model")
    return asked.model, bool(asked.stream)


def _from_multipart(body: bytes, content_type: str) -> tuple[str, bool]:
    fields: dict[str, str] = {}
    for head, content in _parts(body, content_type):
        part = BytesHeaderParser().parsebytes(head)
        name = part.get_param("name", header="content-disposition")
        if isinstance(name, str) and part.get_filename() is None:
            fields.setdefault(name, content.decode(errors="replace").strip())
    if not fields.get("model"):
        raise ApiError(400, "the form names no model", code="missing_model", param="model")
    return fields["model"], fields.get("stream", "").lower() == "true"


def _parts(body: bytes, content_type: str) -> Iterator[tuple[bytes, bytes]]:
    """Head and content of each part of a form; what a part holds is never looked into.

    A whole MIME parser would do that: it is slow on a large recording, and a form of forms takes it
    beyond the depth that Python has.
    """
    header = Message()
    header["Content-Type"] = content_type.encode("ascii", "replace").decode()
    boundary = header.get_param("boundary")
    if not isinstance(boundary, str) or not boundary:
        return
    mark = b"\r\n--" + boundary.encode("ascii", "replace")
    for part in (b"\r\n" + body).split(mark, _MOST_PARTS)[1:]:
        head, found, content = part.partition(b"\r\n\r\n")
        if found and len(head) <= _LONGEST_HEAD:
            yield head.removeprefix(b"\r\n"), content
