"""The line of each key in a TOML text.

The standard parser gives values without places, and a problem without a line is a search. This is
a second, much simpler pass over a text that the parser has accepted already: it only has to find
where keys and list entries begin, never to judge them. Entries of lists and of arrays of tables are
numbers in a path: ("models", "a", "args", 2).

Must not: be given a text that is not valid TOML (what it returns then means nothing).
"""

import re
import tomllib
from collections.abc import Mapping

from pannier.config.shape import quote

Path = tuple[str | int, ...]

_BLANK = re.compile(r"(?:[ \t\n]|#[^\n]*)*")
_SPACE = re.compile(r"[ \t]*")
_KEY = re.compile(r"""[A-Za-z0-9_-]+|"(?:[^"\\\n]|\\.)*"|'[^'\n]*'""")
_STRING = re.compile(
    r'"""(?:[^"\\]|\\.|"{1,2}(?!"))*"{3,5}'
    r"|'''(?:[^']|'{1,2}(?!'))*'{3,5}"
    r"""|"(?:[^"\\\n]|\\.)*"|'[^'\n]*'""",
    re.DOTALL,
)
_SCALAR = re.compile(r"[^,\]}\n#]*")
_BARE = re.compile(r"[A-Za-z0-9_-]+")


def key_lines(text: str) -> dict[Path, int]:
    """The 1-based line where each key, table and list entry is first named."""
    return _Scan(text.replace("\r\n", "\n")).run()


def line_of(lines: Mapping[Path, int], path: Path) -> int | None:
    """The line of a path, or of the nearest table around it that has one."""
    for end in range(len(path), 0, -1):
        if path[:end] in lines:
            return lines[path[:end]]
    return None


def key_path(path: Path) -> str:
    """A path as one writes it in TOML: `models."a.b".args[2]`."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            text += "." if text else ""
            text += part if _BARE.fullmatch(part) else quote(part, 128)
    return text


class _Scan:
    """One pass: a position in the text, the line at that position, and the keys seen so far."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.line = 1
        self.lines: dict[Path, int] = {}
        self.counts: dict[Path, int] = {}  # arrays of tables: how many tables there are so far

    def run(self) -> dict[Path, int]:
        table: Path = ()
        self.skip(_BLANK)
        while self.at < len(self.text):
            if self.peek("[["):
                self.at += 2
                table = self.header(self.key(), array=True)
                self.at += 2
            elif self.peek("["):
                self.at += 1
                table = self.header(self.key(), array=False)
                self.at += 1
            else:
                self.assignment(table)
            self.skip(_BLANK)
        return self.lines

    def peek(self, what: str) -> bool:
        return self.text.startswith(what, self.at)

    def skip(self, pattern: re.Pattern[str]) -> str:
        match = pattern.match(self.text, self.at)
        found = match.group() if match else ""
        self.at += len(found)
        self.line += found.count("\n")
        return found

    def key(self) -> tuple[str, ...]:
        parts = []
        while True:
            self.skip(_SPACE)
            raw = self.skip(_KEY)
            parts.append(_plain(raw))
            self.skip(_SPACE)
            if not self.peek("."):
                return tuple(parts)
            self.at += 1

    def header(self, key: tuple[str, ...], *, array: bool) -> Path:
        path: Path = ()
        for number, part in enumerate(key):
            path = (*path, part)
            self.lines.setdefault(path, self.line)
            if array and number == len(key) - 1:
                self.counts[path] = self.counts.get(path, 0) + 1
            if path in self.counts:
                path = (*path, self.counts[path] - 1)
                self.lines.setdefault(path, self.line)
        return path

    def assignment(self, table: Path) -> None:
        path = table
        for part in self.key():
            path = (*path, part)
            self.lines.setdefault(path, self.line)
        self.at += 1  # the "="
        self.skip(_SPACE)
        self.value(path)

    def value(self, path: Path) -> None:
        if self.peek("["):
            self.at += 1
            self.list(path)
        elif self.peek("{"):
            self.at += 1
            self.inline_table(path)
        elif self.peek('"') or self.peek("'"):
            self.skip(_STRING)
        else:
            self.skip(_SCALAR)

    def list(self, path: Path) -> None:
        number = 0
        self.skip(_BLANK)
        while not self.peek("]") and self.at < len(self.text):
            entry = (*path, number)
            self.lines[entry] = self.line
            self.value(entry)
            self.separator()
            number += 1
        self.at += 1

    def inline_table(self, path: Path) -> None:
        self.skip(_BLANK)
        while not self.peek("}") and self.at < len(self.text):
            self.assignment(path)
            self.separator()
        self.at += 1

    def separator(self) -> None:
        self.skip(_BLANK)
        if self.peek(","):
            self.at += 1
            self.skip(_BLANK)


def _plain(raw: str) -> str:
    """The key that a quoted or bare spelling means."""
    if raw.startswith('"'):
        return str(tomllib.loads(f"k = {raw}")["k"])
    return raw[1:-1] if raw.startswith("'") else raw
