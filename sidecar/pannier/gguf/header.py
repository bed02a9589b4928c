"""The header of a GGUF file as a value, and the bounded reader that makes it.

What llama.cpp b11434 accepts is read, what it refuses is refused, rule by rule (ggml/src/gguf.cpp
and src/llama-model-loader.cpp there); beyond that there are bounds on what a header may cost, far
above any real one. Files come from strangers: every count, length and offset is compared with the
bytes that are there before it is used, so a read takes some 40 MiB and a second at the very most.

Must not: open a file, or read a tensor's data.
"""

from collections.abc import Sequence
from struct import Struct, unpack_from
from typing import BinaryIO

import msgspec

from pannier.errors import GgufError
from pannier.gguf.cursor import Cursor
from pannier.gguf.quant import tensor_bytes

MAX_KEYS = 8_192
MAX_TENSORS = 32_768
"""Real files have less than 100 keys, and 2,500 tensors; 20,000 where experts are apart."""

MAX_KEPT = 4096
"""Elements up to which an array of numbers is kept."""

MAX_KEPT_IN_ALL = 131_072
MAX_TEXT = 1 << 20
"""Bytes after which a text is cut."""

MAX_TEXT_IN_ALL = 4 << 20
"""Bytes of keys, names and texts that are kept of one file."""

_LONGEST_KEY = 65_535  # as the GGUF specification has it
_LONGEST_NAME = 63  # GGML_MAX_NAME, ggml.h, less the zero byte that ends it
_MOST_DIMS = 4  # GGML_MAX_DIMS, ggml.h
_MOST_ELEMENTS = 2**63 - 1
_LONGEST_ARRAY = 1 << 30  # GGUF_MAX_ARRAY_ELEMENTS, and for texts GGUF_MAX_STRING_LENGTH, gguf.cpp

_U32, _TEXT, _ARRAY = 4, 8, 9
_NUMBERS = {
    0: Struct("<B"),
    1: Struct("<b"),
    2: Struct("<H"),
    3: Struct("<h"),
    _U32: Struct("<I"),
    5: Struct("<i"),
    6: Struct("<f"),
    7: Struct("<?"),
    10: Struct("<Q"),
    11: Struct("<q"),
    12: Struct("<d"),
}
"""How the numbers of the metadata are stored, by GGUF's number for their type."""

_SHAPES = tuple(Struct(f"<{rank}QIQ") for rank in range(_MOST_DIMS + 1))
"""How dims, type and offset of a tensor are stored, by the number of dims."""

_SMALLEST_FILE = 4 + 4 + 8 + 8
_SMALLEST_KEY = 8 + 1 + 4 + 1
_SMALLEST_TENSOR = 8 + 4 + 4 + 8

_ALL_TENSORS = "split.tensors.count"

_OTHERS = (
    (b"\0\0\0\0", "begins with zeros: its download was not finished, or it was damaged"),
    (b"<", "holds a web page, not a model: download it again"),
    (b"version https://git-lfs", "is a pointer of git-lfs, not the model: fetch the file itself"),
    (b"PK", "is a zip archive or a PyTorch file: a GGUF of the model is needed"),
    (b"ggjt", "is of the kind before GGUF: get a newer file of the model"),
    (b"tjgg", "is of the kind before GGUF: get a newer file of the model"),
    (b"lmgg", "is of the kind before GGUF: get a newer file of the model"),
)

Number = bool | int | float


class Array(msgspec.Struct, frozen=True, kw_only=True):
    """An array of the metadata: the GGUF type of its elements and how many there are.

    `values` is kept for numeric arrays of at most 4096 elements (per-layer settings); arrays of
    texts and longer ones (vocabularies) are counted and skipped: None.
    """

    kind: int
    count: int
    values: tuple[Number, ...] | None = None


class Tensor(msgspec.Struct, frozen=True, kw_only=True):
    """One tensor: `dims` in ggml's order, row length first; `kind` the ggml type; `size` bytes."""

    name: str
    dims: tuple[int, ...]
    kind: int
    size: int


class Header(msgspec.Struct, frozen=True, kw_only=True):
    """What one GGUF file, or all shards of a model together, say about themselves.

    `file_size` is the bytes of all files. Texts of the metadata are cut after a MiB; bytes that
    are no UTF-8 are shown as replacement characters.
    """

    version: int
    metadata: dict[str, Number | str | Array]
    tensors: tuple[Tensor, ...]
    file_size: int


def read_header(file: BinaryIO, size: int) -> Header:
    """The header of the GGUF in `file`, which has `size` bytes.

    Raises GgufError, with the place and the reason, for whatever llama.cpp would not load either
    and for headers beyond the bounds above; an OSError of the file itself passes, and nothing else
    is raised. `file` is only asked to seek and read.
    """
    return _Reader(Cursor(file, size)).read()


class _Reader:
    """One reading: the cursor and what is left of the bounds."""

    def __init__(self, cursor: Cursor) -> None:
        self._cursor = cursor
        self._text_left = MAX_TEXT_IN_ALL
        self._values_left = MAX_KEPT_IN_ALL
        self._alignment = 32

    def read(self) -> Header:
        cursor = self._cursor
        version = self._version()
        tensors = self._count("tensors", MAX_TENSORS, _SMALLEST_TENSOR)
        keys = self._count("keys", MAX_KEYS, _SMALLEST_KEY)
        metadata = self._metadata(keys)
        return Header(
            version=version,
            metadata=metadata,
            tensors=self._tensors(tensors),
            file_size=cursor.size,
        )

    def _version(self) -> int:
        cursor = self._cursor
        if not cursor.size:
            raise GgufError("the file is empty")
        begin = cursor.peek(min(cursor.size, _SMALLEST_FILE))
        if begin[:4] != b"GGUF":
            raise GgufError(_not_gguf(begin))
        cursor.skip(4)
        version = cursor.u32()
        if version in (2, 3):
            return version
        if version and version & 0xFFFF == 0:
            reason = "the numbers are big-endian: a little-endian file of the model is needed"
        elif version == 1:
            reason = "GGUF version 1 is no longer supported: get a newer file of the model"
        else:
            reason = f"GGUF version {version} is none that is supported (2 and 3 are)"
        raise GgufError(reason, offset=4)

    def _count(self, what: str, most: int, smallest: int) -> int:
        """A count of things that take `smallest` bytes each at least."""
        place = self._cursor.at
        count = self._cursor.u64()
        if count > most:
            raise GgufError(f"{count} {what}, but at most {most} are read", offset=place)
        if count * smallest > self._cursor.left:
            raise GgufError(f"{count} {what} do not fit into the file", offset=place)
        return count

    def _text(self, what: str, longest: int) -> str:
        """A text of up to `longest` bytes that is kept whole."""
        place = self._cursor.at
        length = self._cursor.u64()
        if length > longest:
            raise GgufError(f"{what} of {length} bytes, but {longest} is the longest", offset=place)
        return self._kept(length, place)

    def _kept(self, length: int, place: int) -> str:
        self._text_left -= length
        if self._text_left < 0:
            raise GgufError(f"more than {MAX_TEXT_IN_ALL >> 20} MiB of texts", offset=place)
        return self._cursor.take(length).decode("utf-8", "replace")

    # --- metadata ---------------------------------------------------------------------------------

    def _metadata(self, count: int) -> dict[str, Number | str | Array]:
        found: dict[str, Number | str | Array] = {}
        for _ in range(count):
            place = self._cursor.at
            key = self._text("a key", _LONGEST_KEY)
            if not key:
                raise GgufError("a key without a name", offset=place)
            if key in found:
                raise GgufError(f'the key "{_short(key)}" comes twice', offset=place)
            place = self._cursor.at
            kind = self._cursor.u32()
            if key == "general.alignment":
                found[key] = self._alignment = self._read_alignment(kind, place)
            elif (layout := _NUMBERS.get(kind)) is not None:
                found[key] = self._cursor.unpack(layout)[0]
            elif kind == _TEXT:
                found[key] = self._long_text()
            elif kind == _ARRAY:
                found[key] = self._array(key)
            else:
                raise GgufError(f'"{_short(key)}" is of the unknown type {kind}', offset=place)
        return found

    def _read_alignment(self, kind: int, place: int) -> int:
        if kind != _U32:
            raise GgufError(f"general.alignment is of type {kind}, not a u32 (4)", offset=place)
        alignment = self._cursor.u32()
        if alignment.bit_count() != 1:
            raise GgufError(f"general.alignment is {alignment}, no power of two", offset=place)
        return alignment

    def _long_text(self) -> str:
        """A text of any length the file has; what is beyond a MiB is stepped over."""
        place = self._cursor.at
        length = self._cursor.u64()
        if length > min(_LONGEST_ARRAY, self._cursor.left):
            raise GgufError(f"a text of {length} bytes does not fit into the file", offset=place)
        text = self._kept(min(length, MAX_TEXT), place)
        self._cursor.skip(max(length - MAX_TEXT, 0))
        return text

    def _array(self, key: str) -> Array:
        place = self._cursor.at
        kind, count = self._cursor.u32(), self._cursor.u64()
        layout = _NUMBERS.get(kind)
        if layout is None and kind != _TEXT:
            reason = "another array" if kind == _ARRAY else f"the unknown type {kind}"
            raise GgufError(f'"{_short(key)}" is an array of {reason}', offset=place)
        width = layout.size if layout else 8
        if count > _LONGEST_ARRAY or count * width > self._cursor.left:
            raise GgufError(f"an array of {count} does not fit into the file", offset=place)
        if layout is None:
            self._cursor.skip_texts(count)
            return Array(kind=kind, count=count)
        if count > MAX_KEPT:
            self._cursor.skip(count * width)
            return Array(kind=kind, count=count)
        self._values_left -= count
        if self._values_left < 0:
            raise GgufError(f"more than {MAX_KEPT_IN_ALL:,} numbers in arrays", offset=place)
        values = unpack_from(f"<{count}{layout.format[1:]}", self._cursor.take(count * width))
        return Array(kind=kind, count=count, values=values)

    # --- tensors ----------------------------------------------------------------------------------

    def _tensors(self, count: int) -> tuple[Tensor, ...]:
        """The tensor table; as llama.cpp has it, each one's data follow on those of the last."""
        found: dict[str, Tensor] = {}
        end = 0
        for _ in range(count):
            place = self._cursor.at
            tensor = self._tensor(end)
            if tensor.name in found:
                raise GgufError(f'the tensor "{tensor.name}" comes twice', offset=place)
            found[tensor.name] = tensor
            end = _padded(end + tensor.size, self._alignment)
        tensors = tuple(found.values())
        if tensors:
            self._check_data(tensors, _padded(self._cursor.at, self._alignment))
        return tensors

    def _tensor(self, begin: int) -> Tensor:
        """One tensor, whose data begin `begin` bytes into all data."""
        cursor = self._cursor
        name = self._text("the name of a tensor", _LONGEST_NAME)
        place = cursor.at
        rank = cursor.u32()
        if rank > _MOST_DIMS:
            raise GgufError(f'"{name}" has {rank} dims, at most 4 are possible', offset=place)
        *sizes, kind, offset = cursor.unpack(_SHAPES[rank])
        dims, elements = tuple(map(int, sizes)), 1
        for dim in dims:
            elements *= dim
            if elements > _MOST_ELEMENTS or dim > _MOST_ELEMENTS:
                raise GgufError(f'"{name}" has too many elements: {dims}', offset=place)
        try:
            size = tensor_bytes(int(kind), dims)
        except ValueError as error:
            raise GgufError(f'"{name}": {error}', offset=place) from None
        if offset != begin:
            raise GgufError(
                f'the data of "{name}" begin at {offset}, but those before end at {begin}',
                offset=place,
            )
        return Tensor(name=name, dims=dims, kind=int(kind), size=size)

    def _check_data(self, tensors: Sequence[Tensor], place: int) -> None:
        """All data, the first at `place`, are in the file."""
        size = self._cursor.size
        for tensor in tensors:
            if place + tensor.size > size:
                raise GgufError(
                    f'the data of "{tensor.name}" end at byte {place + tensor.size}, but the file '
                    f"has {size}: it is not complete",
                    offset=min(place, size),
                )
            place = _padded(place + tensor.size, self._alignment)


def join(headers: Sequence[Header]) -> Header:
    """One header out of those of all shards of a model, in their order.

    The metadata are the first one's, as llama.cpp reads no other's. Raises GgufError when the files
    do not belong together: another count, order, number of tensors, or a tensor in two of them.
    """
    if not headers:
        raise GgufError("a model without a file")
    first = headers[0]
    count = first.metadata.get("split.count")
    if not isinstance(count, int) or count <= 1:
        count = 1
    if count != len(headers):
        raise GgufError(
            f"the first file says that the model has {count} file{'s' * (count > 1)}, its name "
            f"says {len(headers)}: names of shards must stay as they were"
        )
    if count == 1:
        return first
    for position, header in enumerate(headers):
        number = header.metadata.get("split.no")
        if number != position:
            raise GgufError(f"file {position + 1} of {count} says of itself: split.no {number}")
    tensors = {tensor.name: tensor for header in headers for tensor in header.tensors}
    found, wanted = sum(len(one.tensors) for one in headers), first.metadata.get(_ALL_TENSORS)
    if found != len(tensors):
        raise GgufError(f"{found - len(tensors)} tensors are in more than one of {count} files")
    if found != wanted:
        raise GgufError(f"{found} tensors in {count} files, but {_ALL_TENSORS} is {wanted}")
    return Header(
        version=first.version,
        metadata=first.metadata,
        tensors=tuple(tensors.values()),
        file_size=sum(header.file_size for header in headers),
    )


def _padded(size: int, alignment: int) -> int:
    return (size + alignment - 1) & -alignment


def _short(text: str) -> str:
    return text if len(text) <= 64 else f"{text[:60]}..."


def _not_gguf(begin: bytes) -> str:
    for start, reason in _OTHERS:
        if begin.startswith(start):
            return f"the file {reason}"
    return f"no GGUF: the file begins with {begin[:4]!r}"
