"""Any header is read as it was written, damaged ones are refused, and llama.cpp's reader agrees."""

import io
import struct
from pathlib import Path

import gguf
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fuzz import pieces
from tests.gguf_writer import GgufWriter

from pannier.errors import GgufError
from pannier.gguf.header import MAX_KEPT, Array, Header, Tensor, read_header
from pannier.gguf.quant import GGML_TYPES, tensor_bytes

LAYOUTS = {
    pieces.U8: ("B", st.integers(0, 2**8 - 1)),
    pieces.I8: ("b", st.integers(-(2**7), 2**7 - 1)),
    pieces.U16: ("H", st.integers(0, 2**16 - 1)),
    pieces.I16: ("h", st.integers(-(2**15), 2**15 - 1)),
    pieces.U32: ("I", st.integers(0, 2**32 - 1)),
    pieces.I32: ("i", st.integers(-(2**31), 2**31 - 1)),
    pieces.F32: ("f", st.floats(width=32, allow_nan=False)),
    pieces.BOOL: ("?", st.booleans()),
    pieces.U64: ("Q", st.integers(0, 2**64 - 1)),
    pieces.I64: ("q", st.integers(-(2**63), 2**63 - 1)),
    pieces.F64: ("d", st.floats(allow_nan=False)),
}
UNICODE = st.characters(exclude_categories=["Cs"])
NAMES = st.text(UNICODE, min_size=1, max_size=15)


@st.composite
def values(draw):
    """A value of the metadata: its type, its bytes, and what it is read as."""
    kind = draw(st.sampled_from([*LAYOUTS, pieces.TEXT]))
    many = draw(st.booleans())
    if kind == pieces.TEXT:
        texts = draw(st.lists(st.text(UNICODE, max_size=90), min_size=1, max_size=200))
        if many:
            raw = b"".join(map(pieces.text, texts))
            return kind, len(texts), raw, Array(kind=kind, count=len(texts))
        return kind, None, pieces.text(texts[0]), texts[0]
    letter, one = LAYOUTS[kind]
    if not many:
        value = draw(one)
        return kind, None, struct.pack(f"<{letter}", value), value
    found = draw(st.lists(one, max_size=20)) * draw(st.sampled_from([1, 1, 300]))
    raw = struct.pack(f"<{len(found)}{letter}", *found)
    kept = tuple(found) if len(found) <= MAX_KEPT else None
    return kind, len(found), raw, Array(kind=kind, count=len(found), values=kept)


@st.composite
def files(draw):
    """A whole file, the header that it has, and how many bytes of the file must be there."""
    alignment = draw(st.sampled_from([1, 8, 32, 4096]))
    metadata = draw(st.dictionaries(NAMES, values(), max_size=8))
    metadata.pop("general.alignment", None)
    keys = [pieces.u32("general.alignment", alignment)]
    for name, (kind, count, raw, _) in metadata.items():
        one = pieces.key(name, kind, raw)
        keys.append(one if count is None else pieces.array(name, kind, count, raw))
    lines, tensors, end, needed = [], [], 0, 0
    for name in draw(st.lists(NAMES, unique=True, max_size=8)):
        kind = draw(st.sampled_from(sorted(GGML_TYPES)))
        row = GGML_TYPES[kind].block * draw(st.integers(1, 3))
        dims = (row, *draw(st.lists(st.integers(0, 4), max_size=3)))
        size = tensor_bytes(kind, dims)
        lines.append(pieces.tensor(name, *dims, kind=kind, offset=end))
        tensors.append(Tensor(name=name, dims=dims, kind=kind, size=size))
        needed = end + size
        end += -(-size // alignment) * alignment
    version = draw(st.sampled_from([2, 3]))
    raw = pieces.gguf(*keys, tensors=tuple(lines), body=end, version=version, alignment=alignment)
    read = {name: value for name, (_, _, _, value) in metadata.items()}
    expected = {"general.alignment": alignment, **read}
    header = Header(version=version, metadata=expected, tensors=tuple(tensors), file_size=len(raw))
    return raw, header, len(raw) - end + needed


def read(raw: bytes) -> Header:
    return read_header(io.BytesIO(raw), len(raw))


def tried(raw: bytes) -> Header | GgufError:
    """What the reader has to say; anything but its one error passes."""
    try:
        return read(raw)
    except GgufError as error:
        return error


@given(files())
def test_what_was_written_is_read(written):
    raw, expected, _ = written
    assert read(raw) == expected


@given(files(), st.data())
def test_what_was_cut_is_refused_unless_only_padding_is_missing(written, data):
    raw, expected, needed = written
    left = data.draw(st.integers(0, len(raw) - 1) | st.integers(needed - 3, len(raw) - 1))
    found = tried(raw[:left])
    if isinstance(found, GgufError):
        assert left < needed
        assert 0 <= found.offset <= left
    else:
        assert left >= needed
        assert found.tensors == expected.tensors


@given(files(), st.data())
def test_what_was_changed_is_a_header_or_is_refused(written, data):
    raw = bytearray(written[0])
    for _ in range(data.draw(st.integers(1, 4))):
        begin = data.draw(st.integers(0, len(raw)))
        end = begin + data.draw(st.integers(0, 8))
        raw[begin:end] = data.draw(
            st.sampled_from([b"", b"\0", b"\xff" * 8, b"\0" * 8, b"\xff" * 4, b"\x80"])
            | st.binary(max_size=8)
        )
    found = tried(bytes(raw))
    if isinstance(found, GgufError):
        assert 0 <= found.offset <= len(raw)
    else:
        assert sum(each.size for each in found.tensors) <= found.file_size == len(raw)


@given(st.binary(max_size=300), st.sampled_from([b"", b"GGUF\3\0\0\0", b"GGUF\2\0\0\0"]))
def test_any_bytes_are_a_header_or_are_refused(raw, begin):
    found = tried(begin + raw)
    assert isinstance(found, Header) or found.reason


def theirs(path: Path) -> tuple[dict[str, object], list[tuple[object, ...]]]:
    reader = gguf.GGUFReader(path)
    metadata = {
        name: field.contents()
        for name, field in reader.fields.items()
        if not name.startswith("GGUF.")
    }
    tensors = [
        (each.name, tuple(map(int, each.shape)), int(each.tensor_type), int(each.n_bytes))
        for each in reader.tensors
    ]
    del reader  # it maps the file
    return metadata, tensors


def plain(value: object) -> object:
    """A value of ours as the other reader has it; texts of arrays are not kept."""
    if not isinstance(value, Array):
        return value
    return list(value.values) if value.values is not None else value.count


def like(ours: object, other: object) -> object:
    return len(other) if isinstance(ours, int) and isinstance(other, list) else other


@st.composite
def writers(draw):
    writer = GgufWriter("llama", draw(st.text(UNICODE, max_size=10)))
    value = (
        st.booleans()
        | st.integers(0, 2**32 - 1)
        | st.floats(width=32, allow_nan=False)
        | st.text(UNICODE, max_size=50)
        | st.lists(st.integers(-(2**31), 2**31 - 1), min_size=1, max_size=50)
        | st.lists(st.floats(width=32, allow_nan=False), min_size=1, max_size=50)
        | st.lists(st.text(UNICODE, max_size=20), min_size=1, max_size=200)
    )
    words = st.text("abcdefgh.", min_size=1, max_size=12)
    for name, each in draw(st.dictionaries(words, value, max_size=6)).items():
        writer.arch_meta(**{name: each})
    for name in draw(st.lists(words, unique=True, max_size=6)):
        dims = [256 * draw(st.integers(1, 4)), *draw(st.lists(st.integers(1, 5), max_size=3))]
        writer.tensor(name, *dims, kind=draw(st.sampled_from(["F32", "F16", "Q4_0", "Q6_K"])))
    return writer


@pytest.mark.timeout(180)
@settings(max_examples=40, deadline=None)
@given(writers())
def test_llama_cpps_own_reader_agrees(tmp_path_factory, writer):
    path = writer.write(tmp_path_factory.mktemp("agrees") / "a.gguf")
    metadata, tensors = theirs(path)
    with path.open("rb") as file:
        ours = read_header(file, path.stat().st_size)
    found = {name: plain(value) for name, value in ours.metadata.items()}
    assert found == {name: like(found[name], other) for name, other in metadata.items()}
    assert [(each.name, each.dims, each.kind, each.size) for each in ours.tensors] == tensors
