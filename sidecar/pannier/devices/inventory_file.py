"""An inventory out of a file: what `pannier status --json` printed, on this machine or on another.

So that a plan can be looked at for a machine that is not here, or before a card is bought. Read as
strictly as the config: a key that is not known is a mistake, not something to pass over.

Must not: open a file, or ask a device.
"""

from collections.abc import Iterator

import msgspec

from pannier.devices.inventory import Device, Inventory
from pannier.errors import PannierError

_HINT = "`pannier status --json` writes one that is right"


def parse_inventory(data: bytes, name: str) -> Inventory:
    """The inventory of a file's content: of the key `inventory`, or the content itself.

    A device without `used_by_others` has everything of it that is not free used by others. Raises
    PannierError, whose message starts with `name`.
    """
    try:
        content = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise _wrong(name, f"this is no JSON: {error}") from error
    except RecursionError as error:
        raise _wrong(name, "this is nested too deeply") from error
    if isinstance(content, dict) and "inventory" in content:
        content = content["inventory"]
    if not isinstance(content, dict):
        raise _wrong(name, "an object is expected, with a key `devices`")
    try:
        found = msgspec.convert(_filled(content), Inventory, strict=True)
    except msgspec.ValidationError as error:
        raise _wrong(name, str(error)) from error
    for problem in _problems(found):
        raise _wrong(name, problem)
    return found


def _wrong(name: str, what: str) -> PannierError:
    return PannierError(f"{name}: {what}", hint=_HINT, code="inventory")


def _filled(content: dict[str, object]) -> dict[str, object]:
    devices = content.get("devices")
    if not isinstance(devices, list):
        return content
    return {**content, "devices": [_with_others(device) for device in devices]}


def _with_others(device: object) -> object:
    """What is neither free nor ours is somebody's."""
    if not isinstance(device, dict) or "used_by_others" in device:
        return device
    total, free, ours = (device.get(key, 0) for key in ("total", "free", "used_by_us"))
    if not all(isinstance(each, int) for each in (total, free, ours)):
        return device
    return {**device, "used_by_others": max(0, total - free - ours)}


def _problems(found: Inventory) -> Iterator[str]:
    for key in ("index", "label", "uuid"):
        values = [getattr(each, key) for each in found.devices]
        for value in values:
            if value is not None and values.count(value) > 1:
                yield f"two devices have the {key} {value!r}"
    for at, device in enumerate(found.devices):
        yield from (f"{problem} - at `$.devices[{at}]`" for problem in _faults(device))


def _faults(device: Device) -> Iterator[str]:
    if not device.label:
        yield "a device needs a label, such as CUDA0"
    sizes = ("index", "total", "free", "used_by_us", "used_by_others", "reserve")
    for key in sizes:
        if getattr(device, key) < 0:
            yield f"`{key}` is {getattr(device, key)}, expected 0 or more"
    if device.free > device.total:
        yield f"`free` is {device.free}, more than `total`, {device.total}"
