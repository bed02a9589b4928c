"""Changes the `placement` tables of a config.toml that a person wrote, and nothing else in it.

No TOML writer gives back every byte that it was given, so the text is never written anew: the spans
of what has to change are found, and only those are replaced. All spellings are known ([placement.x]
wherever it stands, a [placement] around it, inline tables, dotted keys); what is there keeps its
spelling and its comments, a value that stays keeps its bytes. A table goes from its header to its
last key: comments above and below it stay when it goes. What comes out is read again and compared,
so that no surprise in a file can turn into another meaning.

Must not: return a text that means anything but what was asked, or touch a byte outside the tables
(one blank line above a table goes with it, where a blank line or the end of the file follows or
the lines above go as well).
"""

import tomllib
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import tomlkit

from pannier.config.draft import Draft
from pannier.config.load import parse
from pannier.config.schema import Placement
from pannier.config.shape import Plain
from pannier.config.spans import Assignment, Table, line_start, members, tables
from pannier.errors import ConfigError, PannierError

_BOM = "\ufeff"
_ROOT = "placement"
_DEFAULTS: dict[str, Any] = {
    field.name: None if field.required else field.default
    for field in msgspec.structs.fields(Placement)
}


class EditError(PannierError):
    """The placement tables cannot be changed as asked; nothing was changed."""

    code = "edit"


def edit_placement(text: str, wanted: Mapping[str, Placement] | None) -> str:
    """The text with exactly these placements; None or an empty mapping takes the tables out.

    `text` is the file's content decoded as UTF-8, with its byte order mark and line breaks. Raises
    ConfigError where the file has problems outside the placement tables, and EditError where the
    result would not be a valid config.
    """
    body = text.removeprefix(_BOM)
    placements = dict(wanted or {})
    tree = _tree_of(body)
    result = _edited(body, tree.get(_ROOT), placements)
    _verify(result, tree, placements)
    return text[: len(text) - len(body)] + result


def _tree_of(body: str) -> dict[str, Any]:
    """The plain values of a text whose problems, if any, are those of the placement tables."""
    try:
        parse(_bytes(body))
    except ConfigError as error:
        if not all(p.code == "empty" or _is_placement(p.where) for p in error.problems):
            raise
    return tomllib.loads(body)


def _is_placement(where: str) -> bool:
    return where == _ROOT or where.startswith((f"{_ROOT}.", f"{_ROOT}["))


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")  # the reader refuses those, in its own words


def _verify(result: str, before: Mapping[str, Plain], wanted: Mapping[str, Placement]) -> None:
    try:
        config = parse(_bytes(result))
    except ConfigError as error:
        raise EditError(
            f"config.toml would not be valid after the change: {error.problems[0].text()}"
        ) from error
    after = tomllib.loads(result)
    if config.placement != wanted or _rest(after) != _rest(before):
        raise EditError(
            "the placement tables are written in a way that cannot be changed safely",
            hint="write them as [placement.NAME] tables, or change the file by hand",
        )


def _rest(tree: Mapping[str, Plain]) -> dict[str, Any]:
    return {key: value for key, value in tree.items() if key != _ROOT}


class _Home(msgspec.Struct):
    """Where one entry stands: in tables of its own, or in assignments of the tables around it."""

    tables: list[Table] = []
    loose: list[Assignment] = []
    depth: int = 0  # how many keys of a field's path the header above it has said already


def _edited(text: str, found: Plain, wanted: Mapping[str, Placement]) -> str:
    draft = Draft(text)
    root, *below = tables(text)
    own = [table for table in below if table.path[0] == _ROOT]
    loose = [each for each in root.assignments if each.path[0] == _ROOT]
    whole = next((each for each in loose if len(each.path) == 1), None)
    if whole is not None and wanted and isinstance(found, dict):
        draft.replace(whole.value, whole.end, _inline_placement(text, whole, found, wanted))
        return draft.made()
    missing = dict(wanted)
    gone = own
    if wanted and isinstance(found, dict):
        loose, gone = [], []
        for key, home in _homes(root, own).items():
            if key in wanted and _edit_entry(draft, home, found[key], wanted[key]):
                del missing[key]
            else:
                loose += home.loose
                gone += home.tables
    for each in loose:
        draft.cut_lines(each.start, each.end)
    _replace_tables(draft, own, gone, missing)
    return draft.made()


def _homes(root: Table, own: Sequence[Table]) -> dict[str, _Home]:
    homes: dict[str, _Home] = {}
    for table in (root, *own):
        if len(table.path) > 1:
            home = homes.setdefault(table.path[1], _Home())
            home.tables.append(table)
            home.depth = len(table.path)
            continue
        for each in table.assignments:
            if each.path[0] == _ROOT:
                home = homes.setdefault(each.path[1], _Home())
                home.loose.append(each)
                home.depth = len(table.path)
    return homes


def _replace_tables(
    draft: Draft, own: Sequence[Table], gone: Sequence[Table], missing: Mapping[str, Placement]
) -> None:
    """Take tables out and write new ones: in the place of one that goes, else behind the last one.

    Without any, they come at the end of the file, the one place that belongs to no other table.
    """
    lines: list[str] = []
    for key, placement in missing.items():
        lines += ["", f"[{_ROOT}.{_key(key)}]"]
        lines += [f"{field} = {value}" for field, value in _changes({}, placement).items()]
    gone = sorted(gone, key=lambda table: table.start)
    if lines and gone:
        draft.replace_lines(gone[0].start, gone[0].last, lines[1:])
        gone = gone[1:]
    elif lines:
        last = own[-1].last if own else len(draft.text)
        draft.add_lines(last, lines if draft.text else lines[1:])
    for table in gone:
        draft.cut_lines(table.start, table.last)


def _edit_entry(draft: Draft, home: _Home, raw: Plain, placement: Placement) -> bool:
    """Change what differs, where it stands; False where the entry has to be written anew."""
    if not _is_plain(raw):
        return False
    changes = _changes(raw, placement)
    if home.tables:
        if len(home.tables) > 1 or home.depth != 2:
            return False
        _edit_lines(draft, home, home.tables[0].assignments, changes)
    elif len(home.loose[0].path) == 2:
        whole = home.loose[0]
        if changes:
            draft.replace(whole.value, whole.end, _inline_entry(draft.text, whole, changes))
    else:
        _edit_lines(draft, home, home.loose, changes)
    return True


def _edit_lines(
    draft: Draft, home: _Home, fields: Sequence[Assignment], changes: Mapping[str, str | None]
) -> None:
    """Change the fields of an entry that stand on lines of their own."""
    first = min([each.start for each in fields] or [home.tables[0].start])
    indent = draft.text[line_start(draft.text, first) : first]
    written = {each.path[2]: each for each in fields}
    lines = []
    for field, value in changes.items():
        each = written.get(field)
        if each is not None and value is not None:
            draft.replace(each.value, each.end, value)
        elif each is not None:
            draft.cut_lines(each.start, each.end)
        else:
            path = (*fields[0].path[:2], field)[home.depth :] if fields else (field,)
            lines.append(f"{indent}{'.'.join(map(_key, path))} = {value}")
    if lines:
        draft.add_lines(max([each.end for each in fields] or [home.tables[0].end]), lines)


def _inline_placement(
    text: str, whole: Assignment, found: Mapping[str, Plain], wanted: Mapping[str, Placement]
) -> str:
    """The value of `placement = { … }`: entries in it are inline tables or dotted keys."""
    items = members(text, whole)
    now = {item: text[item.start : item.end] for item in items}
    added: list[str] = []
    missing = dict(wanted)
    homes: dict[str, list[Assignment]] = {}
    for item in items:
        homes.setdefault(item.path[1], []).append(item)
    for key, mine in homes.items():
        if key not in wanted or not _is_plain(found[key]):
            for item in mine:
                del now[item]
            continue
        changes = _changes(found[key], missing.pop(key))
        if len(mine[0].path) == 2:
            (item,) = mine
            value = _inline_entry(text, item, changes) if changes else text[item.value : item.end]
            now[item] = text[item.start : item.value] + value
            continue
        for field, new in _changed_members(text, mine, changes, now):
            added.append(f"{_key(key)}.{field} = {new}")
    for key, placement in missing.items():
        fields = [f"{field} = {value}" for field, value in _changes({}, placement).items()]
        added.append(f"{_key(key)} = {{ {', '.join(fields)} }}")
    return _joined(text, whole, items, now, added)


def _inline_entry(text: str, whole: Assignment, changes: Mapping[str, str | None]) -> str:
    """The value of `chat = { devices = […], … }` with some fields changed."""
    items = members(text, whole)
    now = {item: text[item.start : item.end] for item in items}
    added = [f"{field} = {value}" for field, value in _changed_members(text, items, changes, now)]
    return _joined(text, whole, items, now, added)


def _changed_members(
    text: str,
    items: Sequence[Assignment],
    changes: Mapping[str, str | None],
    now: dict[Assignment, str],
) -> list[tuple[str, str]]:
    """Change the fields of one entry in `now`; returns those that are not there yet."""
    written = {item.path[2]: item for item in items}
    added = []
    for field, value in changes.items():
        item = written.get(field)
        if item is not None and value is not None:
            now[item] = text[item.start : item.value] + value
        elif item is not None:
            del now[item]
        elif value is not None:
            added.append((field, value))
    return added


def _joined(
    text: str,
    whole: Assignment,
    items: Sequence[Assignment],
    now: Mapping[Assignment, str],
    added: Sequence[str],
) -> str:
    """An inline table of the members that stay, with the commas and spaces before them."""
    opening = text[whole.value : items[0].start] if items else "{ "
    closing = text[items[-1].end : whole.end] if items else " }"
    joined = ""
    for before, item in zip([None, *items], items, strict=False):
        if item in now:
            comma = text[before.end : item.start] if before is not None else ""
            joined += (comma if joined else "") + now[item]
    for new in added:
        joined += (", " if joined else "") + new
    return opening + joined + closing


def _is_plain(raw: Plain) -> bool:
    """Whether an entry has no other keys than a placement, each of which is one value."""
    if not isinstance(raw, dict):
        return False
    return all(key in _DEFAULTS and not isinstance(raw[key], dict) for key in raw)


def _changes(raw: Mapping[str, Plain], placement: Placement) -> dict[str, str | None]:
    """The fields to write as TOML, or to take out (None), so that `raw` means the placement."""
    changes: dict[str, str | None] = {}
    for field, default in _DEFAULTS.items():
        value = getattr(placement, field)
        plain = list(value) if isinstance(value, tuple) else value
        # By their texts, as 1, 1.0 and true are equal to Python and different to TOML.
        if repr(raw.get(field, default)) != repr(plain):
            changes[field] = None if plain is None else tomlkit.item(plain).as_string()
    return changes


def _key(key: str) -> str:
    return tomlkit.key(key).as_string()
