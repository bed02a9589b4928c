"""The reader of headers: what it keeps and what it counts, its bounds, and shards made one."""

import io
import struct
import tracemalloc
from collections.abc import Callable

import msgspec
import pytest
from tests.fuzz import pieces
from tests.fuzz.pieces import array, gguf, key, tensor, text, u16, u32

from pannier.errors import GgufError
from pannier.gguf import cursor, header
from pannier.gguf.header import Array, Header, Tensor, join, read_header

F32, TEXT = pieces.F32, pieces.TEXT


def read(raw: bytes) -> Header:
    return read_header(io.BytesIO(raw), len(raw))


def refusal(raw: bytes) -> GgufError:
    with pytest.raises(GgufError) as caught:
        read(raw)
    return caught.value


class Watched(io.BytesIO):
    """A file that knows what was read of it."""

    def __init__(self, raw: bytes) -> None:
        super().__init__(raw)
        self.bytes_read = 0

    def read(self, count: int | None = -1) -> bytes:
        found = super().read(count)
        self.bytes_read += len(found)
        return found


# --- what is kept ---------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [2, 3])
def test_a_header_is_its_metadata_and_its_tensors(version):
    raw = gguf(
        key("general.architecture", TEXT, text("llama")),
        u32("llama.block_count", 32),
        tensors=(tensor("a", 8, 3), tensor("b", 256, kind=12, offset=96)),
        body=96 + 144,
        version=version,
    )
    assert read(raw) == Header(
        version=version,
        metadata={"general.architecture": "llama", "llama.block_count": 32},
        tensors=(
            Tensor(name="a", dims=(8, 3), kind=0, size=96),
            Tensor(name="b", dims=(256,), kind=12, size=144),
        ),
        file_size=len(raw),
    )


@pytest.mark.parametrize(
    ("kind", "layout", "value"),
    [
        (pieces.U8, "B", 255),
        (pieces.I8, "b", -1),
        (pieces.U16, "H", 65535),
        (pieces.I16, "h", -2),
        (pieces.U32, "I", 2**32 - 1),
        (pieces.I32, "i", -3),
        (pieces.F32, "f", 0.5),
        (pieces.BOOL, "?", True),
        (pieces.U64, "Q", 2**64 - 1),
        (pieces.I64, "q", -(2**63)),
        (pieces.F64, "d", 1e300),
    ],
)
def test_a_number_of_every_type_is_itself_alone_and_in_an_array(kind, layout, value):
    raw = gguf(
        key("one", kind, struct.pack(f"<{layout}", value)),
        array("three", kind, 3, struct.pack(f"<3{layout}", value, value, value)),
    )
    found = read(raw).metadata
    assert found == {"one": value, "three": Array(kind=kind, count=3, values=(value,) * 3)}
    assert type(found["one"]) is type(value)


def test_any_byte_but_zero_is_true():
    assert read(gguf(key("a", pieces.BOOL, b"\x07"))).metadata["a"] is True


def test_texts_that_are_no_utf_8_can_still_be_shown():
    found = read(gguf(key("a", TEXT, text(b"caf\xe9 \xed\xa0\x80")))).metadata["a"]
    assert isinstance(found, str)
    assert found.startswith("caf\ufffd")
    assert msgspec.json.decode(msgspec.json.encode(found)) == found


@pytest.mark.parametrize("count", [0, 1, 4096])
def test_an_array_of_numbers_is_kept_up_to_4096(count):
    values = tuple(range(count))
    raw = gguf(array("a", pieces.I32, count, struct.pack(f"<{count}i", *values)), u32("b", 1))
    assert read(raw).metadata["a"] == Array(kind=pieces.I32, count=count, values=values)


def test_a_longer_array_is_counted_and_what_follows_is_read():
    raw = gguf(array("a", F32, 300_000, bytes(1_200_000)), u32("b", 7))
    assert read(raw).metadata == {"a": Array(kind=F32, count=300_000), "b": 7}


LENGTHS: dict[str, Callable[[int], int]] = {
    "empty": lambda _: 0,
    "short": lambda at: at % 12,
    "about as long as is matched in blocks": lambda at: 60 + at % 8,
    "one long among short": lambda at: 5000 if at == 700 else 3,
    "each longer than the last": lambda at: at,
    "longer than a chunk": lambda at: 2_100_000 if at == 64 else 6,
}


@pytest.mark.parametrize("count", [1, 63, 64, 65, 129, 1000])
@pytest.mark.parametrize("kind", LENGTHS)
def test_texts_of_an_array_are_counted_and_what_follows_is_read(kind, count):
    texts = b"".join(text(b"\x01" * LENGTHS[kind](at)) for at in range(count))
    raw = gguf(u32("a", 1), array("b", TEXT, count, texts), u32("c", 3))
    assert read(raw).metadata == {"a": 1, "b": Array(kind=TEXT, count=count), "c": 3}


@pytest.mark.parametrize("shift", range(0, 24, 3))
def test_no_boundary_of_a_chunk_changes_what_is_read(shift):
    keys = [key(f"k{at}", TEXT, text("x" * ((at * 7 + shift) % 1000))) for at in range(2000)]
    tensors = tuple(tensor(f"t{at}", 8, offset=32 * at) for at in range(4000))
    found = read(gguf(u32("s" * (shift + 1), 1), *keys, tensors=tensors, body=32 * 4000))
    assert [len(str(found.metadata[f"k{at}"])) for at in range(2000)] == [
        (at * 7 + shift) % 1000 for at in range(2000)
    ]
    assert [each.name for each in found.tensors] == [f"t{at}" for at in range(4000)]


def test_a_text_of_more_than_a_mib_is_cut_and_what_follows_is_read():
    raw = gguf(key("a", TEXT, text("x" * (3 << 20))), u32("b", 1))
    found = read(raw).metadata
    assert found == {"a": "x" * header.MAX_TEXT, "b": 1}


def test_a_header_alone_is_enough_where_the_size_of_the_file_is_known():
    raw = gguf(tensors=(tensor("a", 1 << 20),))
    assert read_header(io.BytesIO(raw), len(raw) + (4 << 20)).tensors[0].size == 4 << 20


# --- what it costs --------------------------------------------------------------------------------


def test_the_data_are_not_read():
    file = Watched(gguf(tensors=(tensor("a", 1 << 22),), body=4 << 22))
    read_header(file, len(file.getbuffer()))
    assert file.bytes_read <= 64 << 10


def test_a_long_array_is_not_read():
    file = Watched(gguf(array("a", F32, 1 << 22, bytes(4 << 22)), u32("b", 1)))
    read_header(file, len(file.getbuffer()))
    assert file.bytes_read <= 256 << 10


def test_a_header_that_is_longer_than_any_real_one_is_refused():
    long = text("x" * 5_000)
    raw = gguf(array("a", TEXT, 20_000, long * 20_000))
    file = Watched(raw)
    with pytest.raises(GgufError, match="longer than 64 MiB"):
        read_header(file, len(raw))
    assert file.bytes_read <= cursor.MAX_READ


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (lambda: gguf(key_count=header.MAX_KEYS + 1, body=1 << 20), "8193 keys"),
        (lambda: gguf(tensor_count=header.MAX_TENSORS + 1, body=1 << 21), "32769 tensors"),
        (
            lambda: gguf(*(key(f"a{at}", TEXT, text("x" * (1 << 20))) for at in range(5))),
            "more than 4 MiB of texts",
        ),
        (
            lambda: gguf(*(array(f"a{at}", 0, 4096, bytes(4096)) for at in range(33))),
            "more than 131,072 numbers",
        ),
        (
            lambda: gguf(array("a", TEXT, cursor.MAX_TEXTS + 1, bytes(8 * cursor.MAX_TEXTS + 8))),
            "more than 2,097,152 texts",
        ),
        (
            lambda: gguf(array("a", TEXT, cursor.MAX_LONG_TEXTS + 65, text("x" * 64) * 524_353)),
            "more than 524,288 long texts",
        ),
    ],
    ids=["keys", "tensors", "kept texts", "kept numbers", "texts", "long texts"],
)
def test_a_header_beyond_a_bound_is_refused(raw, reason):
    assert reason in refusal(raw()).reason


def test_a_quarter_of_the_largest_header_takes_less_than_a_quarter_of_64_mib():
    face = "\U0001f600".encode()
    tensors = tuple(
        tensor(face + b"%05d" % at + b"x" * 54, 0, 2**40, 300, 300)
        for at in range(header.MAX_TENSORS // 4)
    )
    values = struct.pack("<16d", *range(16))
    count = header.MAX_KEYS // 4 - 1
    keys = [array(face + b"%05d" % at, pieces.F64, 16, values) for at in range(count)]
    left = header.MAX_TEXT_IN_ALL // 4 - 63 * len(tensors) - 9 * count - 1
    raw = gguf(*keys, key("t", TEXT, text(face * (left // 4))), tensors=tensors)
    file = io.BytesIO(raw)
    tracemalloc.start()
    try:
        assert len(read_header(file, len(raw)).tensors) == header.MAX_TENSORS // 4
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()


# --- what is refused (tests/fuzz has each kind of damage) -----------------------------------------


@pytest.mark.parametrize("cut", range(0, 400, 7))
def test_a_file_that_was_cut_is_refused_with_the_place(cut):
    raw = gguf(
        key("general.architecture", TEXT, text("llama")),
        array("a", TEXT, 9, text("word") * 9),
        array("b", F32, 9, bytes(36)),
        tensors=(tensor("a", 8), tensor("b", 8, offset=32)),
        body=64,
    )
    assert 0 <= refusal(raw[: min(cut, len(raw) - 1)]).offset <= cut


def test_a_file_that_shrinks_while_it_is_read_is_refused():
    raw = gguf(u32("a", 1))
    with pytest.raises(GgufError, match="become shorter"):
        read_header(io.BytesIO(raw[:-2]), len(raw))


@pytest.mark.parametrize(
    ("begin", "words"),
    [
        (b"PK\x03\x04", "PyTorch"),
        (b"<html>", "web page"),
        (b"version https://git-lfs.github.com/spec/v1\n", "git-lfs"),
        (b"tjgg", "before GGUF"),
        (bytes(4096), "download was not finished"),
        (b"hello", "begins with b'hell'"),
    ],
)
def test_what_is_no_gguf_is_called_by_its_name(begin, words):
    assert words in refusal(begin).reason


def test_an_error_says_where_and_why():
    raw = gguf(u32("a", 1), u32("general.alignment", 3))
    assert str(refusal(raw)) == (
        f"GGUF: general.alignment is 3, no power of two (at byte {len(raw) - 8})"
    )


def test_a_fault_of_the_disk_is_not_called_a_fault_of_the_file():
    class Broken(io.BytesIO):
        def read(self, count: int | None = -1) -> bytes:
            raise OSError(5, "Input/output error")

    with pytest.raises(OSError, match="Input/output error"):
        read_header(Broken(b"GGUF"), 100)


# --- shards ---------------------------------------------------------------------------------------


def shard(number: int, count: int, *names: str, total: int | None = None, **more: int) -> Header:
    keys = [u16("split.no", number), u16("split.count", count)]
    keys += [u32("split.tensors.count", total)] if total is not None else []
    keys += [u32(name, value) for name, value in more.items()]
    tensors = tuple(tensor(name, 8, offset=32 * at) for at, name in enumerate(names))
    return read(gguf(*keys, tensors=tensors, body=32 * len(names)))


def test_shards_are_one_model_with_the_metadata_of_the_first():
    shards = [shard(0, 3, total=3, layers=7), shard(1, 3, "a", "b"), shard(2, 3, "c", layers=9)]
    found = join(shards)
    assert [each.name for each in found.tensors] == ["a", "b", "c"]
    assert found.metadata["layers"] == 7
    assert found.file_size == sum(each.file_size for each in shards)


@pytest.mark.parametrize("keys", [(), (u16("split.count", 1),), (u16("split.count", 0),)])
def test_a_model_of_one_file_is_that_file(keys):
    whole = read(gguf(*keys))
    assert join([whole]) is whole


@pytest.mark.parametrize(
    ("reason", "shards"),
    [
        ("has 2 files, its name says 1", [shard(0, 2, "a", total=1)]),
        ("has 1 file, its name says 2", [read(gguf()), read(gguf())]),
        ("has 3 files, its name says 2", [shard(0, 3, "a", total=2), shard(1, 3, "b")]),
        ("file 1 of 2 says of itself: split.no 1", [shard(1, 2, "b", total=2), shard(0, 2, "a")]),
        ("file 2 of 2 says of itself: split.no None", [shard(0, 2, "a", total=2), read(gguf())]),
        ("in more than one of 2 files", [shard(0, 2, "a", total=2), shard(1, 2, "a")]),
        ("2 tensors in 2 files, but", [shard(0, 2, "a", total=5), shard(1, 2, "b")]),
        ("split.tensors.count is None", [shard(0, 2, "a"), shard(1, 2, "b")]),
        ("without a file", []),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_files_that_do_not_belong_together_are_refused(reason, shards):
    with pytest.raises(GgufError) as caught:
        join(shards)
    assert reason in caught.value.reason


def test_a_count_of_shards_that_is_no_number_is_none():
    odd = read(gguf(key("split.count", TEXT, text("two"))))
    assert join([odd]) is odd
