"""The JSON Schema of config.toml, for editors that complete, explain and check while one types.

Made from the structs of the schema, so it cannot say anything else than the reader does. Draft-07
and without `$ref`: TOML editors differ in which later keywords they know, and in what they do with
a description beside a reference, while everything here is old and plain.

Must not: hold the rules that compare values; an editor cannot know them, the reader reports them.
"""

from typing import Any, Literal

import msgspec

from pannier.config.shape import UNITS, Annotation, Shape, is_table, meta_of, shapes

DRAFT = "http://json-schema.org/draft-07/schema#"


def json_schema(cls: type[msgspec.Struct]) -> dict[str, Any]:
    """The schema of a file whose top level is `cls`."""
    return {"$schema": DRAFT, "title": _summary(cls)} | _table(cls)


def _table(cls: type[msgspec.Struct]) -> dict[str, Any]:
    fields = msgspec.structs.fields(cls)
    schema: dict[str, Any] = {
        "type": "object",
        "description": _summary(cls),
        "additionalProperties": False,
        "properties": {field.encode_name: _field(field) for field in fields},
    }
    required = [field.encode_name for field in fields if field.required]
    return schema | ({"required": required} if required else {})


def _field(field: msgspec.structs.FieldInfo) -> dict[str, Any]:
    schema = _any_of(field.type)
    note = meta_of(field.type)
    if note is not None and note.description is not None:
        schema["description"] = note.description
    if note is not None and note.examples is not None:
        schema["examples"] = note.examples
    default = _default(field)
    if default is not None:
        schema["default"] = default
    return schema


def _default(field: msgspec.structs.FieldInfo) -> object:
    if field.default_factory is not msgspec.NODEFAULT:
        return field.default_factory()
    if field.default is msgspec.NODEFAULT or isinstance(field.default, msgspec.Struct):
        return None
    return str(field.default) if isinstance(field.default, UNITS) else field.default


def _any_of(annotation: Annotation) -> dict[str, Any]:
    options = [_shape(shape) for shape in shapes(annotation)]
    return options[0] if len(options) == 1 else {"anyOf": options}


def _shape(shape: Shape) -> dict[str, Any]:
    if is_table(shape.kind):
        return _table(shape.kind)
    if shape.kind is Literal:
        return {"type": "string", "enum": list(shape.choices)}
    if shape.kind in UNITS:
        return {
            "type": "string",
            "pattern": shape.kind.pattern,
            "minLength": 2,
            "examples": list(shape.kind.examples),
        }
    if shape.kind is dict:
        return {"type": "object", "additionalProperties": _any_of(shape.inner)}
    if shape.kind is list:
        return _limited({"type": "array", "items": _any_of(shape.inner)}, minItems=shape.min_length)
    if shape.kind is int:
        return _limited({"type": "integer"}, minimum=shape.ge, maximum=shape.le)
    if shape.kind is bool:
        return {"type": "boolean"}
    return _limited({"type": "string"}, minLength=shape.min_length)


def _limited(schema: dict[str, Any], **limits: int | None) -> dict[str, Any]:
    return schema | {name: limit for name, limit in limits.items() if limit is not None}


def _summary(cls: type[msgspec.Struct]) -> str:
    return (cls.__doc__ or "").partition("\n")[0]
