"""The manual placement spec: what a person writes when the automatic plan is not what they want.

One value with two spellings. Over HTTP it is a JSON object, read with the tolerance that JSON needs
(1.0 and "2" are whole numbers there, as some clients know no others); in config.toml it is the
`placement` tables, where types are strict. What is read is canonical: equal specs are equal values
and equal texts, and every spec that is read can also be written to config.toml.

Must not: know the hardware. Whether a device exists, has room or can be split over is the
planner's business, which raises the same `PlacementError`.
"""

import difflib
import json
import re
from collections.abc import Collection, Mapping
from typing import Any, Self, TypeAlias, get_args

import msgspec

from pannier.config.locate import key_path
from pannier.config.schema import Config, DeviceIndex, Placement, Role, Weight
from pannier.config.shape import Plain, describe_value, quote, shapes
from pannier.errors import PannierError

Device: TypeAlias = int | str
"""An index of the inventory, or a label ("CUDA0", "RPC1") or UUID."""

FIELDS = ("devices", "force", "replicas", "tensor_split")
_ROLES: tuple[str, ...] = get_args(Role)
_LAST_INDEX = shapes(DeviceIndex)[0].le or 0
_MOST_WEIGHT = shapes(Weight)[0].le or 0
_MOST_REPLICAS = next(
    shapes(field.type)[0].le or 0
    for field in msgspec.structs.fields(Placement)
    if field.name == "replicas"
)
_LONGEST_LABEL = 128
_MOST_SHOWN = 10
_DIGITS = re.compile(r"[0-9]{1,18}", re.ASCII)


class PlacementError(PannierError, ValueError):
    """A placement spec that is malformed, or that does not fit the hardware (PS-1)."""

    code = "placement"


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """Where one model, or every model of a role, runs.

    The order of `devices` is the order of the split, and the first one is the main device.
    `tensor_split` has one weight for each device. `force` places it where memory is too small.
    """

    devices: tuple[Device, ...]
    tensor_split: tuple[int, ...] | None = None
    replicas: int = 1
    force: bool = False


class PlacementSpec(msgspec.Struct, frozen=True):
    """All entries by role or model id, sorted by that key; made by the functions below, or `of`.

    Equal content is an equal value with an equal hash. An empty spec is legal (PS-3).
    """

    entries: tuple[tuple[str, Entry], ...] = ()

    @classmethod
    def of(cls, entries: Mapping[str, Entry]) -> Self:
        """The spec of entries that have been checked."""
        return cls(tuple(sorted(entries.items())))

    def get(self, key: str) -> Entry | None:
        """The entry that is written under exactly this role or model id."""
        return dict(self.entries).get(key)

    def __str__(self) -> str:
        return to_json(self)


def parse_spec(text: str | bytes | None, *, models: Collection[str]) -> PlacementSpec:
    """Read the JSON spelling; `models` are the ids that may stand beside the roles.

    Raises PlacementError.
    """
    try:
        plain = text.decode("utf-8-sig") if isinstance(text, bytes) else text
        value = json.loads("" if plain is None else plain, object_pairs_hook=_object)
    except PlacementError:
        raise
    except RecursionError as error:
        raise PlacementError("not valid JSON: nested too deep", code="not-json") from error
    except ValueError as error:  # not UTF-8, not JSON, or more digits than Python converts
        reason = "nothing was given" if text is None else str(error)
        raise PlacementError(f"not valid JSON: {reason}", code="not-json") from error
    return spec_of(value, models=models)


def spec_of(value: Plain, *, models: Collection[str]) -> PlacementSpec:
    """The spec of a JSON value that has been decoded already. Raises PlacementError."""
    if not isinstance(value, dict):
        raise PlacementError(f"expected an object by role or model id, found {_shown(value)}")
    return _spec(value, models, strict=False)


def spec_of_config(config: Config) -> PlacementSpec:
    """The spec that the `placement` tables of a config are. Raises PlacementError."""
    tables = {}
    for key, placement in config.placement.items():
        table: dict[str, Any] = {
            "devices": list(placement.devices),
            "replicas": placement.replicas,
            "force": placement.force,
        }
        if placement.tensor_split is not None:
            table["tensor_split"] = list(placement.tensor_split)
        tables[key] = table
    return _spec(tables, config.models, strict=True)


def placements_of(spec: PlacementSpec) -> dict[str, Placement]:
    """The same as the `placement` tables of a config, to be written there."""
    return {
        key: Placement(
            devices=entry.devices,
            tensor_split=entry.tensor_split,
            replicas=entry.replicas,
            force=entry.force,
        )
        for key, entry in spec.entries
    }


def entry_for(spec: PlacementSpec, model_id: str, role: str) -> Entry | None:
    """What the spec says about a model: under its id, else under its role; None: automatic."""
    return spec.get(model_id) or spec.get(role)


def to_json(spec: PlacementSpec) -> str:
    """The canonical text (PS-4): keys sorted, and nothing that is as it would be anyway."""
    written = {}
    for key, entry in spec.entries:
        fields: dict[str, Any] = {"devices": entry.devices}
        if entry.tensor_split is not None:
            fields["tensor_split"] = entry.tensor_split
        if entry.replicas != 1:
            fields["replicas"] = entry.replicas
        if entry.force:
            fields["force"] = True
        written[key] = fields
    return json.dumps(written, sort_keys=True, ensure_ascii=False)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object; of a key that stands twice, most readers would drop one without a word."""
    value: dict[str, Any] = {}
    for name, inner in pairs:
        if name in value:
            raise PlacementError(f"the key {quote(name)} is given twice", code="duplicate-key")
        value[name] = inner
    return value


def _spec(value: dict[Any, Plain], models: Collection[str], *, strict: bool) -> PlacementSpec:
    entries = {}
    for key, fields in value.items():
        if key not in _ROLES and key not in models:
            raise _unknown_target(key, models)
        entries[key] = _Reader(key, strict).entry(fields)
    return PlacementSpec.of(entries)


def _unknown_target(key: Plain, models: Collection[str]) -> PlacementError:
    shown = quote(key) if isinstance(key, str) else _shown(key)
    nearest = difflib.get_close_matches(str(key)[:64], [*_ROLES, *sorted(models)], n=1)
    return PlacementError(
        f"expected a role ({', '.join(_ROLES)}) or the id of a model, found {shown}",
        hint=f'did you mean "{nearest[0]}"?' if nearest else None,
        code="unknown-target",
    )


class _Reader:
    """Reads one entry. `strict`: TOML has whole numbers, so nothing else is taken for one."""

    def __init__(self, key: str, strict: bool) -> None:
        self.key = key
        self.strict = strict

    def entry(self, value: Plain) -> Entry:
        if not isinstance(value, dict):
            raise self.refuse((), f"expected an object with devices, found {_shown(value)}")
        unknown = sorted(quote(str(name)) for name in value if name not in FIELDS)
        if unknown:
            more = f" and {len(unknown) - _MOST_SHOWN} more" if len(unknown) > _MOST_SHOWN else ""
            message = f"unknown keys: {', '.join(unknown[:_MOST_SHOWN])}{more}; "
            raise self.refuse((), f"{message}allowed here: {', '.join(FIELDS)}")
        devices = self.devices(value.get("devices", []))
        split = value.get("tensor_split")
        force = value.get("force", False)
        if not isinstance(force, bool):
            raise self.refuse(("force",), f"expected true or false, found {_shown(force)}")
        return Entry(
            devices=devices,
            tensor_split=None if split is None else self.split(split, len(devices)),
            replicas=self.positive(value.get("replicas", 1), ("replicas",), _MOST_REPLICAS),
            force=force,
        )

    def devices(self, value: Plain) -> tuple[Device, ...]:
        path = ("devices",)
        if not isinstance(value, list):
            raise self.refuse(path, f"must be a list, found {_shown(value)}")
        if not value:
            raise self.refuse(path, "expected at least one device, found none")
        devices = tuple(self.device(each, (*path, at)) for at, each in enumerate(value))
        for at, device in enumerate(devices):
            if isinstance(device, int) and device < 0:
                raise self.refuse((*path, at), f"an index is not negative, found {device}")
        seen: set[Device] = set()
        for at, device in enumerate(devices):
            if device in seen:
                shown = quote(device) if isinstance(device, str) else device
                raise self.refuse((*path, at), f"the device {shown} is listed twice")
            seen.add(device)
        return devices

    def device(self, value: Plain, path: tuple[str | int, ...]) -> Device:
        wanted = f"a device index from 0 to {_LAST_INDEX}, a label or a UUID"
        if isinstance(value, str) and _is_label(value):
            return value
        index = self.whole(value, path, wanted)
        if index > _LAST_INDEX:
            raise self.refuse(path, f"expected {wanted}, found {_shown(value)}")
        return index

    def split(self, value: Plain, count: int) -> tuple[int, ...]:
        path = ("tensor_split",)
        if not isinstance(value, list):
            raise self.refuse(path, f"must be a list, found {_shown(value)}")
        weights = [
            self.whole(each, (*path, at), "a whole number above 0") for at, each in enumerate(value)
        ]
        if len(weights) != count:
            raise self.refuse(
                path, f"expected one weight for each of the {count} devices, found {len(weights)}"
            )
        hint = "a device that shall hold nothing is left out of devices"
        return tuple(
            self.positive(weight, (*path, at), _MOST_WEIGHT, hint)
            for at, weight in enumerate(weights)
        )

    def positive(
        self, value: Plain, path: tuple[str | int, ...], most: int, hint: str | None = None
    ) -> int:
        number = self.whole(value, path, f"a whole number from 1 to {most}")
        if not 1 <= number <= most:
            message = f"expected a whole number from 1 to {most}, found {_shown(number)}"
            raise self.refuse(path, message, hint if number < 1 else None)
        return number

    def whole(self, value: Plain, path: tuple[str | int, ...], wanted: str) -> int:
        """A whole number as the spelling allows it; a bool is an int to Python alone."""
        if type(value) is int:
            return value
        if not self.strict:
            if isinstance(value, float) and value.is_integer():
                return int(value)
            if isinstance(value, str) and _DIGITS.fullmatch(value):
                return int(value)
        raise self.refuse(path, f"expected {wanted}, found {_shown(value)}")

    def refuse(
        self, path: tuple[str | int, ...], message: str, hint: str | None = None
    ) -> PlacementError:
        return PlacementError(f"{key_path((self.key, *path))}: {message}", hint=hint)


def _is_label(text: str) -> bool:
    """Whether a text can be a label or UUID: one plain word or more, and no spelling of a number.

    "+1", "1_0" or " 1" is a mistaken index; taken for a label it would only be an unknown device.
    """
    if not text.strip() or text != text.strip() or len(text) > _LONGEST_LABEL:
        return False
    if not text.isprintable() or "${" in text:  # config.toml does not take these either
        return False
    try:
        float(text)
    except ValueError:
        return True
    return False


def _shown(value: Plain) -> str:
    if value is None:
        return "null"
    if isinstance(value, dict):
        return "an object" if value else "an empty object"
    if isinstance(value, bool | int | float | str | list):
        return describe_value(value)
    return f"a {type(value).__name__}"
