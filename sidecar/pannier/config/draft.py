"""Changes to a text, gathered first and made in one go, so that all offsets are those of the text.

Lines are taken out as a person would do it: with the blank line above them where another one or the
end of the file follows, or where the lines above that one go too, so that no gap is left. What is
put at the end of a file and taken out again leaves the same bytes, also where the file does not end
with a line break.

Must not: change a line break, a blank line or anything else that it was not told to change.
"""

from collections.abc import Sequence

from pannier.config.spans import line_end, line_start

Span = tuple[int, int]


class Draft:
    """The changes so far. Spans that are replaced do not overlap."""

    def __init__(self, text: str) -> None:
        self.text = text
        first = text.find("\n")
        self._break = "\r\n" if first > 0 and text[first - 1] == "\r" else "\n"
        self._edits: list[tuple[int, int, str]] = []
        self._cuts: list[Span] = []

    def replace(self, start: int, end: int, new: str) -> None:
        """Put other characters in the place of these."""
        self._edits.append((start, end, new))

    def cut_lines(self, start: int, end: int) -> None:
        """Take out all lines from the one of `start` to the one of `end`."""
        self._cuts.append((line_start(self.text, start), line_end(self.text, end)))

    def replace_lines(self, start: int, end: int, lines: Sequence[str]) -> None:
        """Put other lines in the place of all those from `start` to `end`."""
        first, last = line_start(self.text, start), line_end(self.text, end)
        ended = self.text.endswith("\n", first, last)
        self.replace(first, last, self._break.join(lines) + (self._break if ended else ""))

    def add_lines(self, at: int, lines: Sequence[str]) -> None:
        """Put lines behind the line of `at`; at the end of the text behind all of it."""
        place = line_end(self.text, at)
        new = self._break.join(lines)
        unended = place > 0 and self.text[place - 1] != "\n"
        self.replace(place, place, self._break + new if unended else new + self._break)

    def made(self) -> str:
        """The text with all changes."""
        parts: list[str] = []
        at = 0
        cuts = [(start, end, "") for start, end in self._gaps()]
        for start, end, new in sorted([*cuts, *self._edits], key=lambda edit: edit[:2]):
            parts += [self.text[at:start], new]
            at = max(at, end)
        return "".join([*parts, self.text[at:]])

    def _gaps(self) -> list[Span]:
        cuts = _joined(self._cuts)
        before = [-1, *(end for _, end in cuts)]
        gaps = _joined(
            [self._with_blank_above(cut, last) for cut, last in zip(cuts, before, strict=False)]
        )
        if gaps and gaps[-1][1] == len(self.text) and not self.text.endswith("\n"):
            start, end = gaps.pop()
            kept = self.text[:start].removesuffix("\n")
            gaps.append((len(kept.removesuffix("\r")) if len(kept) < start else start, end))
        return gaps

    def _with_blank_above(self, cut: Span, last: int) -> Span:
        """`last` is where the cut before this one ends: one blank line between the two goes too."""
        start, end = cut
        above = line_start(self.text, start - 1) if start else start
        following = self.text[end : line_end(self.text, end)]
        is_blank = self.text[above:start] in ("\n", "\r\n")  # with a space in it, it is a person's
        return (above if is_blank and (not following.strip() or above == last) else start, end)


def _joined(spans: Sequence[Span]) -> list[Span]:
    """The same characters in as few spans as there can be."""
    found: list[Span] = []
    for start, end in sorted(spans):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        else:
            found.append((start, end))
    return found
