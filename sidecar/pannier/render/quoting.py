"""argv -> one command line that llama-swap splits into the same argv again. Pure.

llama-swap has no list form for `cmd`: it splits a text by POSIX shlex rules, on Windows by the
Microsoft rules, after macros were put in and comment lines dropped. What those steps would change
cannot be expressed at all and is refused (spec SC-7).

Must not: repair an argument. A wrong argument that arrives is worse than a clear refusal.
"""

import re
import shlex
from collections.abc import Sequence

_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_NOT_YAML = re.compile("[\ud800-\udfff\ufffe\uffff]")
"""With the control characters what YAML cannot hold, and bytes of a name that are not UTF-8: a real
llama-swap refuses the whole config for one of them."""


def unrenderable(text: str) -> str | None:
    """Why this text cannot stand in a llama-swap config, or None when it can."""
    if "${" in text:
        return "contains `${`, which llama-swap takes for a macro"
    found = _CONTROL.search(text)
    if found:
        return f"contains the control character U+{ord(found.group()):04X}"
    found = _NOT_YAML.search(text)
    return f"contains U+{ord(found.group()):04X}, which is no text" if found else None


def command_line(argv: Sequence[str], *, windows: bool = False) -> str:
    """The command line for `argv`. Raises ValueError for what cannot be expressed."""
    for argument in argv:
        reason = unrenderable(argument)
        if reason:
            raise ValueError(f"the argument {argument!r} {reason}")
    if argv and argv[0].startswith("#"):
        raise ValueError("a command that begins with `#` is a comment to llama-swap")
    if windows:
        return " ".join(map(_windows_quote, argv))
    return shlex.join(argv)


def _windows_quote(argument: str) -> str:
    """Always in quotes: `list2cmdline` goes wrong when the whole command ends in a backslash.

    Backslashes count double before a quote and before the closing quote, and single elsewhere.
    """
    out = []
    backslashes = 0
    for char in argument:
        if char == "\\":
            backslashes += 1
            continue
        out.append("\\" * (backslashes * 2 + 1 if char == '"' else backslashes) + char)
        backslashes = 0
    return '"' + "".join(out) + "\\" * (backslashes * 2) + '"'
