"""Shows loads in a terminal: a bar that grows in place, or plain lines where there is no terminal.

The same rows that the chat's plugin shows, drawn with characters.

Must not: know where the rows come from.
"""

import shutil
from collections.abc import Iterable
from typing import TextIO

from pannier.serve.shapes import Row
from pannier.serve.words import amount, bar, remaining, what

_WIDTH = 24


def line(row: Row) -> str:
    """One load as one line: name, bar, percent, bytes, what happens, seconds left."""
    fraction = row.fraction or 0.0
    parts = [f"{row.id:<16} {bar(fraction, _WIDTH)} {fraction * 100:3.0f} %"]
    parts += [each for each in (amount(row), what(row), remaining(row)) if each]
    return "  ".join(parts)


class Bars:
    """Draws rows again and again on one stream."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._live = stream.isatty()
        self._drawn = 0
        self._said: dict[str, tuple[str, str | None, int]] = {}

    def draw(self, rows: Iterable[Row]) -> None:
        """The rows as they are now."""
        if self._live:
            self._redraw([line(row) for row in rows])
        else:
            self._say_news(rows)

    def _redraw(self, lines: list[str]) -> None:
        width = shutil.get_terminal_size().columns - 1
        up = f"\x1b[{self._drawn}A" if self._drawn else ""
        text = "".join(f"\x1b[K{each[:width]}\n" for each in lines)
        self._stream.write(up + text)
        self._stream.flush()
        self._drawn = len(lines)

    def _say_news(self, rows: Iterable[Row]) -> None:
        """A line when the state or the stage changes, and at every tenth of the way."""
        for row in rows:
            now = (row.state, row.stage, int((row.fraction or 0.0) * 10))
            if now != self._said.get(row.id) and row.state != "cold":
                self._said[row.id] = now
                print(line(row), file=self._stream, flush=True)
