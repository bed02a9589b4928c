"""A plan as text for a person: who runs where, a bar for each device, changes, reasons. Pure.

Made for terminals of 80 columns and more; what is longer is wrapped, never cut, as a reason that
ends in the middle helps nobody.

Must not: say anything that the view does not say.
"""

import json
import textwrap
from collections.abc import Sequence

from pannier.plan.diff import Change
from pannier.plan.explain import gib
from pannier.plan.values import Instance
from pannier.plan.view import GpuRow, HostRow, Taker, View

_MARKS = {"create": "+", "replace": "~", "keep": "=", "remove": "-"}
_GLYPHS = "█▓▒░"
_OTHERS, _KEPT, _FREE, _TOO_MUCH = "x", "-", "·", "!"


def view_lines(view: View, width: int = 80) -> list[str]:
    """The placement: instances, what is not served, devices, reasons."""
    lines = _head(view, width)
    lines += _table(view) or [view.empty or "no models"]
    lines += _wrapped(
        [f"{name}: not installed" for name in view.skipped_not_installed]
        + [f"{each.model}: cannot be placed: {each.reason}" for each in view.unplaceable],
        width,
    )
    for each in view.unplaceable:
        lines += _unplaceable(each.parts, each.have_by_device, each.ways_out, width)
    for tight in view.tight:
        short = ", ".join(f"{gib(count)} on {label}" for label, count in tight.shortfall.items())
        lines += _wrapped([f"{tight.instance}: tight, {short} missing"], width)
    lines.append("")
    for row in view.gpus:
        lines += _gpu(row, width)
    if view.no_gpus:
        lines += _wrapped([f"no devices: {view.no_gpus}"], width)
    if not view.gpus:
        lines += _ram(view.host, width)
    said = [f"why: {reason}" for reason in view.reasons if reason not in (view.no_gpus or "")]
    return [*lines, *([""] if said else []), *_wrapped(said, width)]


def change_lines(found: Sequence[Change], against: str | None, width: int = 80) -> list[str]:
    """What applying it would do to each group; `against` is the address of what was compared."""
    if not found:
        return []
    where = f"against what runs on {against}" if against else "nothing runs: all is new"
    lines = [f"changes, {where}"]
    longest = max(len(each.group) for each in found)
    for each in found:
        members = ", ".join(each.members) if each.members != (each.group,) else ""
        why = "; ".join(filter(None, (members, *each.why)))
        line = f"  {_MARKS[each.kind]} {each.kind:<7}  {each.group:<{longest}}  {why}".rstrip()
        lines += textwrap.wrap(line, width, subsequent_indent=" " * 13) or [line]
    return lines


def _head(view: View, width: int) -> list[str]:
    if view.rejected_spec is not None:
        return _wrapped(
            [f"the placement in the config is not used: {view.rejected_spec.reason}"], width
        )
    spec = json.dumps(view.spec, ensure_ascii=False)
    return _wrapped([f"by a placement, the rest automatic: {spec}"], width) if view.manual else []


def _table(view: View) -> list[str]:
    swaps = {member: g.id for g in view.groups if g.swap for member in g.members}
    rows = [
        (
            each.id,
            each.role,
            _where(each),
            f"{each.context} x {each.slots}",
            f"{'' if each.exact or each.measured else 'about '}{gib(each.bytes_needed)}",
            f"in turn, {swaps[each.id]}" if each.id in swaps else "",
        )
        for row in view.roles
        for each in row.instances
    ]
    if not rows:
        return []
    head = ("model", "role", "where", "context", "takes", "")
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    return [
        "  ".join(cell.ljust(size) for cell, size in zip(row, widths, strict=True)).rstrip()
        for row in (head, *rows)
    ]


def _where(each: Instance) -> str:
    place = "+".join(each.devices) or "CPU"
    return f"{place} {':'.join(map(str, each.tensor_split))}" if each.tensor_split else place


def _unplaceable(
    parts: dict[str, int], have: dict[str, int], ways: Sequence[str], width: int
) -> list[str]:
    needs = ", ".join(f"{name} {gib(count)}" for name, count in parts.items())
    rooms = ", ".join(f"{label} {gib(max(0, count))}" for label, count in have.items())
    said = [f"needs: {needs}"] if needs else []
    said += [f"have: {rooms}"] if rooms else []
    said += [f"would help: {way}" for way in ways]
    return [f"  {line}" for line in _wrapped(said, width - 2)]


def _gpu(row: GpuRow, width: int) -> list[str]:
    name = f"{row.label}  {row.name}, {gib(row.total_bytes)}"
    parts = [(_name(taker), taker.bytes) for taker in row.takers]
    return [*_wrapped([name], width), *_bar(parts, row, width)]


def _ram(row: HostRow, width: int) -> list[str]:
    parts = [f"{_name(taker)} {gib(taker.bytes)}" for taker in row.takers]
    free = f"RAM {gib(row.total_bytes)}, {gib(row.available_bytes)} free now"
    return _wrapped([f"{free}{': ' if parts else ''}{', '.join(parts)}"], width)


def _name(taker: Taker) -> str:
    return f"{' or '.join(taker.members)} in turn" if taker.swap else taker.members[0]


def _bar(parts: list[tuple[str, int]], row: GpuRow, width: int) -> list[str]:
    """A bar over the whole device, and what each of its glyphs is."""
    room = max(10, min(width - 4, 72))
    shares = [(glyph_of(at), name, size) for at, (name, size) in enumerate(parts)]
    shares += [(_OTHERS, "other programs", row.used_by_others)] if row.used_by_others else []
    shares += [(_KEPT, "kept free", row.reserve)] if row.reserve else []
    total = max(row.total_bytes, 1)
    drawn, taken = "", 0
    for glyph, _, size in shares:
        taken += size
        drawn += glyph * (min(room, round(taken * room / total)) - len(drawn))
    legend = [f"{glyph} {name} {gib(size)}" for glyph, name, size in shares]
    if taken > row.total_bytes:
        drawn = f"{drawn[: room - 1]}{_TOO_MUCH}"
        legend.append(f"{_TOO_MUCH} too much by {gib(taken - row.total_bytes)}")
    else:
        legend.append(f"{_FREE} free {gib(row.left_bytes)}")
    return [f"  {drawn.ljust(room, _FREE)}", *_flowed(legend, width)]


def _flowed(entries: Sequence[str], width: int) -> list[str]:
    """Entries beside each other, none of which is broken where it fits a line."""
    lines: list[str] = []
    for entry in entries:
        if lines and len(lines[-1]) + 3 + len(entry) <= width:
            lines[-1] += f"   {entry}"
        else:
            lines += textwrap.wrap(
                entry, width, initial_indent="  ", subsequent_indent="    ", break_long_words=False
            )
    return lines


def glyph_of(at: int) -> str:
    """What the bar shows for the taker at a place; neighbours differ."""
    return _GLYPHS[at % len(_GLYPHS)]


def _wrapped(said: Sequence[str], width: int) -> list[str]:
    return [
        line
        for each in said
        for line in textwrap.wrap(each, width, subsequent_indent="  ", break_long_words=False)
    ]
