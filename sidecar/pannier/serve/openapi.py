"""`/openapi.json`: our own routes, described from the types that are served. Pure.

What is forwarded is described by whoever made it (OpenAI, llama.cpp); of it the document says only
that it is forwarded, and which errors are ours.

Must not: describe by hand what a type already says.
"""

from collections.abc import Iterable

import msgspec

from pannier import __version__
from pannier.config.schema import Placement
from pannier.plan.view import View
from pannier.serve.shapes import Listing, Row

_REF = "#/components/schemas/{name}"

_ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string", "description": "For a person."},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"], "description": "For a program; stable."},
            },
        }
    },
}

_MODEL_PARAM = {
    "name": "model",
    "in": "path",
    "required": True,
    "schema": {"type": "string"},
    "description": "Id or alias of a model.",
}
_WAIT_PARAM = {
    "name": "wait",
    "in": "query",
    "schema": {"type": "number", "minimum": 0, "maximum": 1800},
    "description": "Seconds to wait for it to be ready, or to have failed.",
}
_OBJECT = {"type": "object"}
_MODEL_BODY = {
    "required": True,
    "content": {
        "application/json": {
            "schema": {
                "type": "object",
                "required": ["model"],
                "properties": {"model": {"type": "string"}},
            }
        }
    },
}


def openapi_json(forwarded: Iterable[str]) -> bytes:
    """The document; `forwarded` are the paths that go on to an engine."""
    _, components = msgspec.json.schema_components(
        [Listing, Row, View, Placement], ref_template=_REF
    )
    listing, row = _ref("Listing"), _ref("Row")
    paths: dict[str, object] = {
        "/v1/readiness": _get("How every model is, and how far its load.", listing),
        "/v1/readiness/{model}": _get(
            "How one model is; at once, or after waiting.",
            row,
            params=[_MODEL_PARAM, _WAIT_PARAM],
            errors={"400": "wait is no such number.", "404": "There is no such model."},
        ),
        "/v1/readiness/events": _events(
            "A `snapshot` event with the whole list first, then a `model` event with the row that "
            "changed, a `config` event with the whole list after each reload or broken save, and a "
            "comment every 10 s. Ids rise; after a reconnect a snapshot follows again."
        ),
        "/v1/models": _get("The models, as OpenAI lists them, each with its state.", _OBJECT),
        "/v1/models/{model}": _get(
            "One model.", _OBJECT, params=[_MODEL_PARAM], errors={"404": "There is no such model."}
        ),
        **_placement(),
        "/models": _get("The models, as llama.cpp's router lists them.", _OBJECT),
        "/models/load": _post("Asks for a load; answers at once."),
        "/models/unload": _post("Asks a model to leave memory; answers at once."),
        "/models/sse": _events("A `status_change` for every change, as llama.cpp's router tells."),
        "/livez": _text("200 while Pannier runs."),
        "/readyz": _text("200 when the config is applied and every wanted model is ready."),
        "/healthz": _text("The same as /readyz."),
    }
    for path in forwarded:
        paths[path] = _post("Forwarded to the llama-server of the model.", body=False)
    document = {
        "openapi": "3.1.0",
        "info": {"title": "Pannier", "version": __version__},
        "paths": paths,
        "components": {
            "schemas": {**components, "Error": _ERROR},
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    }
    return msgspec.json.encode(document)


def _placement() -> dict[str, object]:
    """The placement: shown, tried and changed."""
    view = _ref("View")
    spec = {
        "type": ["object", "null"],
        "additionalProperties": _ref("Placement"),
        "description": "By role or model id, as the [placement] tables of config.toml.",
    }
    body = {"required": True, "content": _json(spec)}
    shown = _get("Where every model runs, from memory; its ETag is for If-Match.", view)
    bad = {"400": "This is no placement spec.", "422": "It does not fit this machine."}
    refused = {
        "403": "A host or origin that is not allowed, or not an admin's key.",
        "409": "Changes over HTTP are not allowed, or config.toml cannot be changed now.",
        "412": "If-Match names another plan than the one of now.",
        "503": "Its models could not be loaded; file and plan were put back.",
    }
    etag = {"name": "If-Match", "in": "header", "schema": {"type": "string"}}

    def change(summary: str, errors: dict[str, str]) -> dict[str, object]:
        answers = {"200": {"description": "OK", "content": _json(view)}, **_errors(errors)}
        return {"summary": summary, "parameters": [etag], "responses": answers}

    put = {
        **change("Writes this placement to config.toml, applies it, and waits for its models.",
                 {**bad, **refused}),
        "requestBody": body,
    }  # fmt: skip
    delete = change("Takes the placement out of config.toml: all is automatic again.", refused)
    answers = {"200": {"description": "OK", "content": _json(view)}, **_errors(bad)}
    preview = {
        "summary": "What would run with this placement, or without any (null); changes nothing.",
        "requestBody": body,
        "responses": answers,
    }
    return {
        "/v1/placement": {**shown, "put": put, "delete": delete},
        "/v1/placement/preview": {"post": preview},
    }


def _ref(name: str) -> dict[str, object]:
    return {"$ref": _REF.format(name=name)}


def _json(schema: object) -> dict[str, object]:
    return {"application/json": {"schema": schema}}


def _errors(more: dict[str, str]) -> dict[str, object]:
    told = {"401": "A key is needed.", "403": "This host or origin is not allowed.", **more}
    return {
        status: {"description": text, "content": _json(_ref("Error"))}
        for status, text in told.items()
    }


def _get(
    summary: str,
    schema: object,
    *,
    params: Iterable[object] = (),
    errors: dict[str, str] | None = None,
) -> dict[str, object]:
    answers = {"200": {"description": "OK", "content": _json(schema)}, **_errors(errors or {})}
    return {"get": {"summary": summary, "parameters": list(params), "responses": answers}}


def _post(summary: str, *, body: bool = True) -> dict[str, object]:
    errors = {
        "400": "The body names no model, or is not valid.",
        "404": "There is no such model.",
        "415": "The body is neither JSON nor a form with files.",
        "503": "The model cannot be served now; the message says why.",
    }
    wanted = _MODEL_BODY if body else {"required": True, "content": _json(_OBJECT)}
    answers = {"200": {"description": "OK", "content": _json(_OBJECT)}, **_errors(errors)}
    return {"post": {"summary": summary, "requestBody": wanted, "responses": answers}}


def _events(summary: str) -> dict[str, object]:
    stream = {"text/event-stream": {"schema": {"type": "string"}}}
    answers = {
        "200": {"description": "A stream.", "content": stream},
        **_errors({"503": "Too many streams are open."}),
    }
    return {"get": {"summary": summary, "responses": answers}}


def _text(summary: str) -> dict[str, object]:
    plain = {"text/plain": {"schema": {"type": "string"}}}
    answers = {
        "200": {"description": "Yes.", "content": plain},
        "503": {"description": "No.", "content": plain},
    }
    return {"get": {"summary": summary, "responses": answers}}
