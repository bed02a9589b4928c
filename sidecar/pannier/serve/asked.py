"""What a request asks for: the model and whether it wants a stream. Pure.

Only these two are read from a stranger's body; everything else is the engine's to judge and is sent
on as it came, byte for byte.

Must not: change a body, or accept one whose model could be read two ways.
"""

from email.message import Message
from email.parser import BytesParser

import msgspec

from pannier.serve.errors import ApiError


class Asked(msgspec.Struct, frozen=True):
    """The parts of a body that decide where a request goes."""

    model: str | msgspec.UnsetType = msgspec.UNSET
    stream: bool | None = None


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
    message: Message = BytesParser().parsebytes(
        b"Content-Type: " + content_type.encode("ascii", "replace") + b"\r\n\r\n" + body
    )
    fields: dict[str, str] = {}
    for part in message.walk():
        name = part.get_param("name", header="content-disposition")
        if isinstance(name, str) and part.get_filename() is None:
            payload = part.get_payload(decode=True)
            if isinstance(payload, bytes):
                fields.setdefault(name, payload.decode(errors="replace").strip())
    if not fields.get("model"):
        raise ApiError(400, "the form names no model", code="missing_model", param="model")
    return fields["model"], fields.get("stream", "").lower() == "true"
