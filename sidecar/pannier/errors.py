"""What can go wrong, in words for the person who reads it.

Two kinds, never mixed. A `Problem` is a finding about something a person wrote: problems are
collected, so that one look shows all of them, and returned as values. An exception of the
`PannierError` tree says that an action could not be done: it carries a stable `code` for programs,
a message for people and, where there is one, a hint that says what to do next.

Must not: log, print, exit or decide a status code. The edges do that.
"""

from collections.abc import Sequence

import msgspec


class Problem(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=False):
    """One finding in a file that a person wrote.

    `code` is stable and machine readable ("unknown-key"), `where` the key path
    ("models.qwen3-8b.role"), `line` the 1-based line of that key in the file, `message` says what
    was found and what is allowed, `hint` what to do.
    """

    code: str
    where: str
    message: str
    line: int | None = None
    hint: str | None = None

    def text(self, file: str = "config.toml") -> str:
        """The problem as one line: `config.toml:12: models.a.role: … (hint)`."""
        place = f"{file}:{self.line}" if self.line is not None else file
        hint = f" ({self.hint})" if self.hint else ""
        where = f"{self.where}: " if self.where else ""
        return f"{place}: {where}{self.message}{hint}"


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """Why a load or a process failed; shown in readiness and sent to the waiting clients.

    `message` is one sentence of ours, `detail` quotes the engine's own last words, `hint` says what
    a person can do.
    """

    code: str
    message: str
    detail: str | None = None
    hint: str | None = None

    def text(self) -> str:
        """The failure as one paragraph."""
        return "; ".join(part for part in (self.message, self.detail, self.hint) if part)


class PannierError(Exception):
    """Base of all errors of Pannier: `code` for programs, message and `hint` for people."""

    code = "error"

    def __init__(self, message: str, *, hint: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        if code is not None:
            self.code = code

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message


class ConfigError(PannierError):
    """config.toml cannot be used: all its problems at once."""

    code = "config"

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        count = len(self.problems)
        super().__init__(f"{count} problem{'s' if count != 1 else ''} in config.toml")


class EngineError(PannierError):
    """llama-server or llama-swap could not be found, installed or asked."""

    code = "engine"


class StoreError(PannierError):
    """The state folder cannot be used: not writable, or held by another Pannier."""

    code = "state-folder"


class HostError(PannierError):
    """What runs a group (llama-swap or our own launchers) could not be started."""

    code = "host"


class LoadError(PannierError):
    """A model could not be made ready; carries the `Failure` that readiness shows."""

    code = "load-failed"

    def __init__(self, failure: Failure) -> None:
        self.failure = failure
        super().__init__(failure.text(), code=failure.code)


class UnavailableError(PannierError):
    """A model is known but cannot be served now: not installed, unplaceable, or being replaced."""

    code = "unavailable"


class GgufError(PannierError):
    """A file is no GGUF that can be used: where in it (`offset` in bytes) and why."""

    code = "gguf"

    def __init__(self, reason: str, *, offset: int = 0, path: str | None = None) -> None:
        self.reason = reason
        self.offset = offset
        self.path = path
        place = f" (at byte {offset})" if offset else ""
        super().__init__(f"{path or 'GGUF'}: {reason}{place}")
