"""Problems of one config file, collected: none hides another, and none is a mere echo of another.

A value that could not be read is replaced by a stand-in so that the rest can still be checked. Any
later finding that rests on such a value would be about the stand-in and not about what the person
wrote, so it is dropped here, in one place.

Must not: decide what is wrong.
"""

import difflib
from collections.abc import Iterable, Mapping

from pannier.config.locate import Path, key_path, line_of
from pannier.errors import Problem

_MAX_GUESSES = 200  # comparing texts is slow; a file with more slips than this has no typos


class Findings:
    """The problems found so far, and the paths whose values could not be read."""

    def __init__(self, lines: Mapping[Path, int], unread: Iterable[Path] = ()) -> None:
        self._lines = lines
        self._guesses = _MAX_GUESSES
        self._problems: list[Problem] = []
        self.unread: set[Path] = set(unread)

    def line(self, path: Path) -> int | None:
        """The line of a key path."""
        return line_of(self._lines, path)

    def refuse(self, code: str, path: Path, message: str, hint: str | None = None) -> None:
        """Note a value that cannot be read at all."""
        self._note(code, path, message, hint)
        self.unread.add(path)

    def add(
        self,
        code: str,
        path: Path,
        message: str,
        hint: str | None = None,
        *,
        needs: Iterable[Path] = (),
    ) -> None:
        """Note a value that breaks a rule; `needs` are other paths that the finding rests on."""
        if not any(self._is_unread(each) for each in (path, *needs)):
            self._note(code, path, message, hint)

    def nearest(self, word: str, known: Iterable[str]) -> str | None:
        """`did you mean "…"?`, where a known word is near."""
        if self._guesses <= 0 or len(word) > 64:
            return None
        self._guesses -= 1
        found = difflib.get_close_matches(word, list(known), n=1)
        return f'did you mean "{found[0]}"?' if found else None

    def problems(self) -> list[Problem]:
        """All problems, in the order of the file."""
        return sorted(self._problems, key=lambda problem: problem.line or 0)

    def _note(self, code: str, path: Path, message: str, hint: str | None) -> None:
        problem = Problem(
            code=code, where=key_path(path), line=self.line(path), message=message, hint=hint
        )
        self._problems.append(problem)

    def _is_unread(self, path: Path) -> bool:
        return any(path[:end] in self.unread for end in range(len(path) + 1))
