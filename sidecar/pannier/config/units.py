"""Sizes and durations, written as text with a unit: "512MiB", "1h30m".

A bare number in a config file is a riddle (bytes or MiB? seconds or minutes?), so numbers are
refused and the unit is always spelled out. Both types are ordinary numbers to the rest of Pannier:
a `Size` is an `int` of bytes, a `Duration` a `float` of seconds. What is written back is exact, so
that a value that was read and printed is read as the same value again.

Must not: guess a unit, or round a size up (a reserve of "0.3GiB" is at most that many bytes).
"""

import re
from fractions import Fraction
from typing import ClassVar, Self

_SIZE_UNITS = {
    "B": 1,
    "KB": 10**3,
    "KiB": 2**10,
    "MB": 10**6,
    "MiB": 2**20,
    "GB": 10**9,
    "GiB": 2**30,
    "TB": 10**12,
    "TiB": 2**40,
}
_SPELLINGS = {spelling: n for unit, n in _SIZE_UNITS.items() for spelling in (unit, unit.lower())}
_LARGEST_FIRST = sorted(_SIZE_UNITS.items(), key=lambda item: -item[1])
_MILLISECONDS = {"h": 3_600_000, "m": 60_000, "s": 1_000, "ms": 1}

SIZE_PATTERN = r"^[0-9]{1,19}(\.[0-9]{1,9})? ?(" + "|".join(_SPELLINGS) + r")$"
DURATION_PATTERN = "^" + "".join(
    rf"([0-9]{{1,9}}(\.[0-9]{{1,9}})?{unit})?" for unit in _MILLISECONDS
)
DURATION_PATTERN += "$"


class Size(int):
    """A number of bytes."""

    pattern: ClassVar[str] = SIZE_PATTERN
    examples: ClassVar[tuple[str, ...]] = ("512MiB", "1.5GiB", "2GB")
    allowed: ClassVar[str] = 'a size with its unit, such as "512MiB" or "1.5GiB"'
    units: ClassVar[str] = "units: " + ", ".join(_SIZE_UNITS)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read "512MiB"; a fraction of a byte is dropped. Raises ValueError."""
        match = re.fullmatch(r"([0-9]{1,19}(?:\.[0-9]{1,9})?) ?([A-Za-z]{1,3})", text, re.ASCII)
        if match is None or match[2] not in _SPELLINGS:
            raise ValueError(f"expected {cls.allowed}; {cls.units}")
        count = int(Fraction(match[1]) * _SPELLINGS[match[2]])
        if count >= 2**63:
            raise ValueError("expected a size below 8 million TiB")
        return cls(count)

    def __str__(self) -> str:
        """The same number of bytes in the largest unit that divides it."""
        if self:
            for unit, factor in _LARGEST_FIRST:
                if self % factor == 0:
                    return f"{self // factor}{unit}"
        return "0B"


class Duration(float):
    """A length of time in seconds, exact to the millisecond."""

    pattern: ClassVar[str] = DURATION_PATTERN
    examples: ClassVar[tuple[str, ...]] = ("250ms", "90s", "5m", "1h30m", "0s")
    allowed: ClassVar[str] = 'a duration with its unit, such as "90s" or "1h30m"'
    units: ClassVar[str] = "units: h, m, s, ms, in this order"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read "1h30m"; less than a millisecond is dropped. Raises ValueError."""
        match = re.fullmatch(DURATION_PATTERN, text, re.ASCII) if text else None
        if match is None:
            raise ValueError(f"expected {cls.allowed}; {cls.units}")
        total = Fraction(0)
        for part in re.findall(r"([0-9.]+)(h|ms|m|s)", text):
            total += Fraction(part[0]) * _MILLISECONDS[part[1]]
        return cls(int(total) / 1000)

    def __str__(self) -> str:
        """The same length of time as people write it: "1h30m", "250ms", "0s"."""
        rest, text = round(self * 1000), ""
        for unit, factor in _MILLISECONDS.items():
            count, rest = divmod(rest, factor)
            text += f"{count}{unit}" if count else ""
        return text or "0s"


def encode_unit(value: object) -> str:
    """The `enc_hook` of msgspec for whoever writes a Config out: a size or duration as its text."""
    if isinstance(value, Size | Duration):
        return str(value)
    raise NotImplementedError(f"no text for {type(value).__name__}")
