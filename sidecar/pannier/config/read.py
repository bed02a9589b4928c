"""Turns the plain values of a TOML file into the structs of the schema, every field on its own.

Strict, because a guess about what was meant is a bug report later: text is not a number, 1 is not
true, 1.0 is not a whole number. Every mistake becomes a finding in plain English, and reading goes
on with the default in its place.

Must not: know any key by name, or compare two values with each other.
"""

import re
from typing import Any, Literal

import msgspec
from msgspec import UNSET

from pannier.config.findings import Findings
from pannier.config.locate import Path
from pannier.config.shape import (
    UNITS,
    Annotation,
    Plain,
    Shape,
    describe,
    describe_value,
    fields_of,
    is_table,
    quote,
    shapes,
)

# Control characters, and the three further characters that other readers take for a line end.
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")


def read_table(
    cls: type[msgspec.Struct], value: dict[str, Plain], path: Path, findings: Findings
) -> Plain:
    """Read a table with fixed keys; what could not be read holds its default or a stand-in."""
    fields = fields_of(cls)
    known = [field.encode_name for field in fields]
    for key in value:
        if key not in known:
            _unknown_key(key, known, (*path, key), findings)
    given: dict[str, Any] = {}
    for field in fields:
        place = (*path, field.encode_name)
        found: Plain = UNSET
        if field.encode_name in value:
            found = read_value(field.type, value[field.encode_name], place, findings)
        elif field.required:
            findings.refuse("missing-key", place, f"required: {describe(field.type)}")
        if found is not UNSET:
            given[field.name] = found
        elif field.required:
            given[field.name] = _stand_in(field.type)
    return cls(**given)


def read_value(annotation: Annotation, value: Plain, path: Path, findings: Findings) -> Plain:
    """Read one value; UNSET where it is of no allowed kind (a finding says so)."""
    options = shapes(annotation)
    shape = next((option for option in options if _fits(option.kind, value)), None)
    if shape is None:
        message = f"expected {describe(annotation)}, found {describe_value(value)}"
        findings.refuse("wrong-type", path, message, _type_hint(options, value))
        return UNSET
    if is_table(shape.kind):
        return read_table(shape.kind, value, path, findings)
    if shape.kind is dict:
        return _read_map(shape, value, path, findings)
    if shape.kind is list:
        return _read_list(annotation, shape, value, path, findings)
    return _read_scalar(annotation, shape, value, path, findings)


def _fits(kind: Annotation, value: Plain) -> bool:
    if kind is bool or kind is int:
        return type(value) is kind  # bool is an int to Python, and to nobody else
    if kind is list:
        return isinstance(value, list)
    if kind is dict or is_table(kind):
        return isinstance(value, dict)
    return isinstance(value, str)


def _read_map(shape: Shape, value: dict[str, Plain], path: Path, findings: Findings) -> Plain:
    read: dict[str, Any] = {}
    for key, inner in value.items():
        place = (*path, key)
        _check_text(key, place, findings, what="a name")
        if not key:
            findings.refuse("empty-text", place, "a name must not be empty")
        found = read_value(shape.inner, inner, place, findings)
        read[key] = _stand_in(shape.inner) if found is UNSET else found
    return read


def _read_list(
    annotation: Annotation, shape: Shape, value: list[Plain], path: Path, findings: Findings
) -> Plain:
    if len(value) < (shape.min_length or 0):
        message = f"expected {describe(annotation)}, found {describe_value(value)}"
        findings.refuse("empty-list", path, message)
        return UNSET
    read = []
    for number, inner in enumerate(value):
        found = read_value(shape.inner, inner, (*path, number), findings)
        read.append(_stand_in(shape.inner) if found is UNSET else found)
    return tuple(read)


def _read_scalar(
    annotation: Annotation, shape: Shape, value: Plain, path: Path, findings: Findings
) -> Plain:
    if shape.kind in UNITS:
        try:
            return shape.kind.parse(value)
        except ValueError as error:
            findings.refuse("bad-unit", path, f"{error}, found {describe_value(value)}")
            return UNSET
    if shape.kind is str and value:
        return value if _check_text(value, path, findings) else UNSET
    code, hint = None, None
    if shape.kind is Literal and value not in shape.choices:
        code = "not-allowed"
        hint = findings.nearest(value, shape.choices) or _type_hint(shapes(annotation), value)
    elif shape.kind is int and not _within(value, shape):
        code = "out-of-range"
    elif shape.kind is str and shape.min_length:
        findings.refuse("empty-text", path, 'expected text that is not empty, found ""')
        return UNSET
    if code is None:
        return value
    message = f"expected {describe(annotation)}, found {describe_value(value)}"
    findings.refuse(code, path, message, hint)
    return UNSET


def _within(value: int, shape: Shape) -> bool:
    too_small = shape.ge is not None and value < shape.ge
    return not too_small and (shape.le is None or value <= shape.le)


def _check_text(text: str, path: Path, findings: Findings, what: str = "text") -> bool:
    """One line of plain text: all of it reaches command lines, file names or HTTP headers."""
    control = _CONTROL.search(text)
    if control is not None:
        name = f"U+{ord(control.group()):04X}"
        found = "a line break" if control.group() == "\n" else f"the control character {name}"
        findings.refuse("bad-text", path, f"{what} must not hold {found}, found {quote(text)}")
        return False
    if "${" in text:
        message = f'{what} must not hold "${{", found {quote(text)}'
        findings.refuse("bad-text", path, message, "nothing is expanded here: write the value")
        return False
    return True


def _unknown_key(key: str, known: list[str], path: Path, findings: Findings) -> None:
    hint = findings.nearest(key, known)
    message = "unknown key" if hint else f"unknown key; allowed here: {', '.join(known)}"
    findings.refuse("unknown-key", path, message, hint)


def _type_hint(options: tuple[Shape, ...], value: Plain) -> str | None:
    """What to write instead, where the mistake is a common one."""
    kinds = [option.kind for option in options]
    for kind in kinds:
        if kind in UNITS:
            return str(kind.units)
    if isinstance(value, str):
        if int in kinds and re.fullmatch(r"[+-]?[0-9]{1,18}", value, re.ASCII):
            return "write it without quotes"
        if bool in kinds and value in ("true", "false"):
            return "write it without quotes"
        if list in kinds:
            return f"write [{quote(value)}]"
    elif str in kinds and int not in kinds and not isinstance(value, list | dict):
        return "put it in quotes"
    return None


def _stand_in(annotation: Annotation) -> Plain:
    """A value of the right kind, for checks that go on after one could not be read."""
    shape = shapes(annotation)[0]
    if is_table(shape.kind):
        required = [field for field in fields_of(shape.kind) if field.required]
        return shape.kind(**{field.name: _stand_in(field.type) for field in required})
    if shape.kind is Literal:
        return shape.choices[0]
    return () if shape.kind is list else shape.kind()
