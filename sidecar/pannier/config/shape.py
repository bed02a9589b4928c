"""What a type annotation of the schema allows, for the two that walk it: the reader and the editor.

msgspec's own type information refuses a custom type in a union ("a size, or a table of sizes"), and
stops at the first mistake; a file that a person wrote deserves all of them. So both walkers take an
annotation apart here: alternatives, their constraints, and the words for what is allowed.

Must not: know any key by name.
"""

import functools
import types
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal, TypeAlias, Union, get_args, get_origin

import msgspec

from pannier.config.units import Duration, Size

UNITS = (Size, Duration)

# Both are anything at all to a type checker, and two different things to a reader.
Annotation: TypeAlias = Any
"""The annotation of a field: a type, a union, or an Annotated one."""
Plain: TypeAlias = Any
"""A value as the TOML parser gives it, or as it was read from there."""


class Shape(msgspec.Struct, frozen=True, kw_only=True):
    """One alternative of an annotation: a bare type and what is demanded of its values.

    `kind` is one of bool, int, str, Size, Duration, Literal, list, dict, or a Struct class; `inner`
    is the annotation of the elements of a list or of the values of a dict.
    """

    kind: Annotation
    choices: tuple[str, ...] = ()
    inner: Annotation = None
    ge: int | None = None
    le: int | None = None
    min_length: int | None = None


@functools.cache
def fields_of(cls: type[msgspec.Struct]) -> tuple[msgspec.structs.FieldInfo, ...]:
    """The fields of a table, which msgspec would gather anew for each table of a file."""
    return msgspec.structs.fields(cls)


@functools.cache
def shapes(annotation: Annotation) -> tuple[Shape, ...]:
    """The alternatives of an annotation, in the order in which they are written."""
    return tuple(_walk(annotation, {}))


def meta_of(annotation: Annotation) -> msgspec.Meta | None:
    """What the schema says to people about a field: the outermost note, which is the last."""
    origin: Plain = get_origin(annotation)
    note: Plain = get_args(annotation)[-1] if origin is Annotated else None
    return note if isinstance(note, msgspec.Meta) else None


def _walk(annotation: Annotation, limits: dict[str, Any]) -> Iterator[Shape]:
    origin: Plain = get_origin(annotation)
    if origin is Annotated:
        bare, *notes = get_args(annotation)
        for note in notes:
            found = {name: getattr(note, name) for name in ("ge", "le", "min_length")}
            limits = limits | {name: value for name, value in found.items() if value is not None}
        yield from _walk(bare, limits)
    elif origin in (Union, types.UnionType):
        for part in get_args(annotation):
            if part is not type(None):  # TOML has no null: an absent key is how one writes it
                yield from _walk(part, limits)
    elif origin is Literal:
        yield Shape(kind=Literal, choices=get_args(annotation))
    elif origin is tuple:
        yield Shape(kind=list, inner=get_args(annotation)[0], **limits)
    elif origin is dict:
        yield Shape(kind=dict, inner=get_args(annotation)[1])
    else:
        yield Shape(kind=annotation, **limits)


def is_table(kind: Annotation) -> bool:
    """Whether values of this kind are tables with fixed keys."""
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)


@functools.cache
def describe(annotation: Annotation) -> str:
    """What the annotation allows, in words: `a whole number from 1 to 256`, `"auto" or "on"`."""
    parts = []
    for shape in shapes(annotation):
        if shape.kind is Literal:
            parts += [f'"{choice}"' for choice in shape.choices]
        else:
            parts.append(_words(shape))
    return either(parts)


def either(parts: Sequence[str]) -> str:
    """Join alternatives: `a, b or c`."""
    return " or ".join(filter(None, [", ".join(parts[:-1]), parts[-1]]))


def _words(shape: Shape) -> str:
    if shape.kind is bool:
        return "true or false"
    if shape.kind is int:
        if shape.ge is not None and shape.le is not None:
            return f"a whole number from {shape.ge} to {shape.le}"
        return "a whole number"
    if shape.kind is str:
        return "text in quotes"
    if shape.kind is list:
        least = "at least one entry, each " if shape.min_length else ""
        return f"a list of {least}{describe(shape.inner)}"
    if shape.kind in UNITS:
        return str(shape.kind.allowed)
    if is_table(shape.kind):
        keys = [f.encode_name for f in fields_of(shape.kind)]
        return f"a table with {', '.join(keys)}" if len(keys) <= 4 else "a table"
    return f"a table of {describe(shape.inner)}"


def describe_value(value: object) -> str:
    """What was found, in words: `text "2"`, `the number 1.0`, `a list`."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return f"text {quote(value)}"
    if isinstance(value, int | float):
        long = isinstance(value, int) and abs(value) >= 10**30
        return "a number with too many digits" if long else f"the number {value}"
    if isinstance(value, list):
        return "a list" if value else "an empty list"
    return "a table" if isinstance(value, dict) else "a date or time"


def quote(text: str, limit: int = 60) -> str:
    """The text in quotes, safe to print in one line of a terminal, shortened in the middle."""
    if len(text) > limit:
        text = f"{text[: limit // 2]}…{text[-limit // 3 :]}"
    return '"' + "".join(map(_printable, text)) + '"'


def _printable(char: str) -> str:
    if char in '"\\':
        return "\\" + char
    if char.isprintable():
        return char
    return f"\\u{ord(char):04X}" if ord(char) < 0x10000 else f"\\U{ord(char):08X}"
