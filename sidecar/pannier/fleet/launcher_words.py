"""What the engine says, as values: progress lines, and the line that says why it ended.

The progress protocol is internal to llama.cpp: everything here takes what it knows and shrugs at
the rest. Reasons are chosen from the engine's own last lines, since no code of ours can say it
better than "failed to open GGUF file '…' (No such file or directory)".

Must not: do anything but turn bytes into values.
"""

import json
import re
from collections.abc import Iterable, Sequence

PROGRESS = b"cmd_child_to_router:state:"
EXIT_COMMAND = b"cmd_router_to_child:exit\n"

STAGES = ("text_model", "spec_model", "mmproj_model")

TAIL_LINES = 40
LINE_LENGTH = 400

_PREFIX = re.compile(r"^(?:\d+\.\d+\.\d+\.\d+|\[[\d :.TZ+-]+\])?\s*(?:[A-Z]\s+)?")
"""`0.00.006.258 E `: the time since the start and the level."""

_LEVEL = re.compile(rb"^(?:\d+\.\d+\.\d+\.\d+|\[[\d :.TZ+-]+\])\s+([A-Z])\s")

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_COLOUR = re.compile(rb"\x1b\[[0-9;]*m")

_MEMORY = re.compile(
    r"out of memory|failed to allocate|unable to allocate|cudaMalloc failed|bad_alloc"
    r"|ErrorOutOfDeviceMemory|ErrorOutOfHostMemory|cannot allocate memory|insufficient memory",
    re.IGNORECASE,
)
_CAUSE = re.compile(
    r"\b(?:error|failed|unable|could ?n[o']t|cannot|invalid|unknown|unsupported|missing"
    r"|assert|abort(?:ed)?|terminate|what\(\)|no such)",
    re.IGNORECASE,
)
_CONSEQUENCE = re.compile(
    r"exiting due to|trying to fit params|: failed to load model$|failed to load model,? '[^']*'$"
    r"|cleaning up|for more info",
    re.IGNORECASE,
)
"""What the engine says after the line that matters, each seen on b11434."""


def progress(line: bytes) -> dict[str, object] | None:
    """The state that a progress line tells, or None if it tells none that we can read."""
    try:
        told = json.loads(line[len(PROGRESS) :], parse_constant=lambda _: None)
    except (ValueError, RecursionError):
        return None
    return told if isinstance(told, dict) else None


def fraction(value: object) -> float | None:
    """A number within 0 and 1, or None."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return min(max(float(value), 0.0), 1.0)
    return None


def readable(line: bytes) -> str:
    """A line for people: without colours, bounded, its control characters escaped."""
    plain = _COLOUR.sub(b"", line[: LINE_LENGTH * 4]).rstrip()
    text = plain.decode("utf-8", "replace")
    return _CONTROL.sub(_escape, text)[:LINE_LENGTH]


def unprefixed(text: str) -> str:
    """A readable line without the time and the level before it."""
    return _PREFIX.sub("", text, count=1).strip()


def complains(line: bytes) -> bool:
    """Whether a line may be a complaint: it is marked as one, or not marked at all.

    What crashes prints without marks. At verbosity 4 there are hundreds of lines marked as mere
    information, and words such as "unknown" or "missing" are in some of them.
    """
    level = _LEVEL.match(line)
    return level is None or level[1] in b"WE"


def _escape(found: re.Match[str]) -> str:
    return " " if found[0] == "\t" else f"\\x{ord(found[0]):02x}"


def out_of_memory(lines: Iterable[str]) -> bool:
    """Whether one of the last lines says that an allocation failed."""
    return any(_MEMORY.search(line) for line in lines)


def why(lines: Sequence[str], *, was_ready: bool) -> str | None:
    """The line that says best why the engine ended.

    While it loads the first complaint is the cause and the others follow from it; once it served,
    earlier complaints were survived, so the last one counts.
    """
    texts = [text for line in lines if (text := _PREFIX.sub("", line).strip())]
    ordered = texts[::-1] if was_ready else texts
    for wanted in (_MEMORY, _CAUSE):
        for text in ordered:
            if wanted.search(text) and not _CONSEQUENCE.search(text):
                return text
    return next((text for text in reversed(texts) if _CAUSE.search(text)), None)
