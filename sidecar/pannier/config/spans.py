"""Where each table, key and value of a TOML text begins and ends, as offsets of characters.

What changes a file that a person wrote has to know which characters it may touch. This is a pass
over a text that the standard parser has accepted already: it only finds the borders of statements
and never judges them. Line ends may be of either kind, as offsets are those of the text as it is.

Must not: be given a text that is not valid TOML (what it returns then means nothing), or one with a
byte order mark.
"""

import re
import tomllib

import msgspec

Path = tuple[str, ...]
"""Keys from the root on; which entry of an array of tables it is, is left out."""

_BLANK = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")
_SPACE = re.compile(r"[ \t]*")
_KEY = re.compile(r"""[A-Za-z0-9_-]+|"(?:[^"\\\n]|\\.)*"|'[^'\n]*'""")
_STRING = (
    r'"""(?:[^"\\]|\\.|"{1,2}(?!"))*"{3,5}'
    r"|'''(?:[^']|'{1,2}(?!'))*'{3,5}"
    r"""|"(?:[^"\\\n]|\\.)*"|'[^'\n]*'"""
)
_TEXT = re.compile(_STRING, re.DOTALL)
_INSIDE = re.compile(rf"(?:{_STRING})|#[^\n]*|(?P<open>[\[{{])|(?P<close>[\]}}])", re.DOTALL)
_SCALAR = re.compile(r"[^,\]}\r\n#]*")


class Assignment(msgspec.Struct, frozen=True):
    """`key = value`: the key from `start`, the value from `value` to `end`, comments excluded."""

    path: Path
    start: int
    value: int
    end: int


class Table(msgspec.Struct, frozen=True):
    """A header from `start` to `end` and the assignments below it; the root has path () at 0."""

    path: Path
    start: int
    end: int
    array: bool
    assignments: tuple[Assignment, ...]

    @property
    def last(self) -> int:
        """The end of the table's last statement."""
        return self.assignments[-1].end if self.assignments else self.end


def tables(text: str) -> tuple[Table, ...]:
    """All tables in the order of the text; the first one is the root."""
    found: list[Table] = []
    path: Path = ()
    start = end = 0
    array = False
    assignments: list[Assignment] = []
    at = _skip(_BLANK, text, 0)
    while at < len(text):
        if text[at] != "[":
            assignments.append(_assignment(text, at, path))
            at = assignments[-1].end
        else:
            found.append(Table(path, start, end, array, tuple(assignments)))
            assignments = []
            start, array = at, text.startswith("[[", at)
            path, at = _key(text, at + 1 + array)
            at = end = at + 1 + array
        at = _skip(_BLANK, text, at)
    return (*found, Table(path, start, end, array, tuple(assignments)))


def members(text: str, assignment: Assignment) -> tuple[Assignment, ...]:
    """The assignments in an inline table, in order; not those of tables within it."""
    found: list[Assignment] = []
    at = _skip(_BLANK, text, assignment.value + 1)
    while at < assignment.end and text[at] != "}":
        found.append(_assignment(text, at, assignment.path))
        at = _skip(_BLANK, text, found[-1].end)
        if text.startswith(",", at):
            at = _skip(_BLANK, text, at + 1)
    return tuple(found)


def line_start(text: str, at: int) -> int:
    """Where the line of a character begins."""
    return text.rfind("\n", 0, at) + 1


def line_end(text: str, at: int) -> int:
    """Where the line of a character ends, its line break included."""
    found = text.find("\n", at)
    return len(text) if found < 0 else found + 1


def _assignment(text: str, at: int, table: Path) -> Assignment:
    path, after = _key(text, at)
    value = _skip(_SPACE, text, after + 1)  # behind the "="
    return Assignment((*table, *path), at, value, _value_end(text, value))


def _key(text: str, at: int) -> tuple[Path, int]:
    """A dotted key, and where the space behind it ends."""
    parts: list[str] = []
    while True:
        begin = _skip(_SPACE, text, at)
        end = _skip(_KEY, text, begin)
        parts.append(_plain(text[begin:end]))
        at = _skip(_SPACE, text, end)
        if not text.startswith(".", at):
            return tuple(parts), at
        at += 1


def _value_end(text: str, at: int) -> int:
    if text[at] in "\"'":
        return _skip(_TEXT, text, at)
    if text[at] in "[{":
        depth = 0
        for token in _INSIDE.finditer(text, at):
            depth += (token["open"] is not None) - (token["close"] is not None)
            if depth == 0:
                return token.end()
    end = _skip(_SCALAR, text, at)
    return at + len(text[at:end].rstrip(" \t"))


def _skip(pattern: re.Pattern[str], text: str, at: int) -> int:
    match = pattern.match(text, at)
    return match.end() if match else at


def _plain(raw: str) -> str:
    """The key that a quoted or bare spelling means."""
    if raw.startswith('"'):
        return str(tomllib.loads(f"k = {raw}")["k"])
    return raw[1:-1] if raw.startswith("'") else raw
