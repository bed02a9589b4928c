"""Walks forward over the head of a binary file, with every step inside the file and a budget.

A header is read in chunks, as nobody knows its length beforehand; what is not kept (vocabularies,
of which a model has several hundred thousand pieces) is stepped over, and what reaches beyond a
chunk is not even read. So memory is that of one chunk and time that of the budget, whatever a file
claims. Stepping over texts is written for speed, as the whole of a plan waits for it.

Must not: know what the bytes mean, or trust a length before it was compared with the file's.
"""

import re
from struct import Struct
from typing import BinaryIO

from pannier.errors import GgufError

MAX_READ = 64 << 20
"""Bytes that are read of one file; the largest real header (262,144 tokens, scores, merges) is 20
MB."""

MAX_TEXTS = 2 << 20
MAX_LONG_TEXTS = 1 << 19
"""Texts that are stepped over in one file, and how many of them one by one, because they or one of
their neighbours are long. Real vocabularies have up to 800,000 with their merges."""

_FIRST_CHUNK = 64 << 10
_LARGEST_CHUNK = 1 << 20

_U32 = Struct("<I")
_U64 = Struct("<Q")

_BLOCK = 64
_SHORT = 64
_short_texts = re.compile(
    b"(?:%b){%d}"
    % (
        b"|".join(
            b"%b\\0{7}.{%d}" % (re.escape(bytes([length])), length)
            for length in sorted(range(_SHORT), key=lambda length: abs(length - 7))
        ),
        _BLOCK,
    ),
    re.DOTALL,
).match
"""Matches exactly `_BLOCK` texts of fewer than `_SHORT` bytes, each after its length in 8 bytes.

Three to four times as fast as a loop over the lengths. The commonest lengths come first; as all
alternatives begin with a different byte, there is one way at most to match, and no backtracking.
"""


class Cursor:
    """A place in `file`, of which `size` bytes are there: it goes forward only.

    Each method raises GgufError when the file ends before what it was asked for; an OSError of the
    file itself passes.
    """

    def __init__(self, file: BinaryIO, size: int) -> None:
        self.size = size
        self._file = file
        self._buffer = b""
        self._base = 0
        self._at = 0
        self._chunk = _FIRST_CHUNK
        self._budget = MAX_READ
        self._texts = MAX_TEXTS
        self._long_texts = MAX_LONG_TEXTS

    @property
    def at(self) -> int:
        """The place, in bytes from the start of the file."""
        return self._base + self._at

    @property
    def left(self) -> int:
        """Bytes from here to the end of the file."""
        return self.size - self._base - self._at

    def unpack(self, layout: Struct) -> tuple[bool | int | float, ...]:
        """The values of `layout` at this place."""
        at = self._step(layout.size)  # before the buffer is looked at: it may be another then
        return layout.unpack_from(self._buffer, at)

    def u32(self) -> int:
        """A whole number of four bytes."""
        at = self._step(4)
        number: int = _U32.unpack_from(self._buffer, at)[0]
        return number

    def u64(self) -> int:
        """A whole number of eight bytes."""
        at = self._step(8)
        number: int = _U64.unpack_from(self._buffer, at)[0]
        return number

    def peek(self, count: int) -> bytes:
        """The next `count` bytes, without going on."""
        self._ensure(count)
        return self._buffer[self._at : self._at + count]

    def take(self, count: int) -> bytes:
        """The next `count` bytes; the caller has bounded what it asks for."""
        at = self._step(count)
        return self._buffer[at : at + count]

    def skip(self, count: int) -> None:
        """Go on by `count` bytes, read or not."""
        if count > self.left:
            raise self._ends(self.at, count)
        self._at += count

    def skip_texts(self, count: int) -> None:
        """Step over `count` texts, each the length in eight bytes and then as many bytes."""
        self._texts -= count
        if self._texts < 0:
            raise GgufError(f"more than {MAX_TEXTS:,} texts in arrays", offset=self.at)
        while count:
            while count >= _BLOCK and (block := _short_texts(self._buffer, self._at)):
                self._at = block.end()
                count -= _BLOCK
            count -= self._skip_one_by_one(min(count, _BLOCK))

    def _skip_one_by_one(self, count: int) -> int:
        """Step over up to `count` texts, at least one if there are any; how many it was."""
        if not count:
            return 0
        if self._long_texts <= 0:
            raise GgufError(f"more than {MAX_LONG_TEXTS:,} long texts in arrays", offset=self.at)
        self._ensure(8)
        buffer, at, begin = self._buffer, self._at, self._at
        last, left = len(buffer) - 8, count
        while left and at <= last:
            begin = at
            at += 8 + _U64.unpack_from(buffer, at)[0]
            left -= 1
        if self._base + at > self.size:
            raise self._ends(self._base + begin, at - begin)
        self._at = at
        self._long_texts -= count - left
        return count - left

    def _step(self, count: int) -> int:
        """Go on by `count` bytes, which are then in the buffer; where in it they begin."""
        at = self._at
        if at + count > len(self._buffer):
            self._ensure(count)
            at = 0
        self._at = at + count
        return at

    def _ensure(self, count: int) -> None:
        """Have the next `count` bytes in the buffer; it begins at this place if they were not."""
        if self._at + count <= len(self._buffer):
            return
        place, wanted = self.at, max(count, self._chunk)
        if count > self.left:
            raise self._ends(place, count)
        self._budget -= min(wanted, self.left)
        if self._budget < 0:
            raise GgufError(f"the header is longer than {MAX_READ >> 20} MiB", offset=place)
        self._file.seek(place)
        self._buffer = self._file.read(wanted)
        self._base, self._at = place, 0
        self._chunk = min(2 * self._chunk, _LARGEST_CHUNK)
        if len(self._buffer) < count:
            raise GgufError("the file has become shorter while it was read", offset=place)

    def _ends(self, place: int, count: int) -> GgufError:
        return GgufError(
            f"{count} bytes are to follow here, but the file has {self.size - place} more: it is "
            "damaged or not complete",
            offset=place,
        )
