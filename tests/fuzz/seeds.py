"""The corpus of the fuzzer: one file for each way in which readers of GGUF were broken, and why.

    python -m tests.fuzz.seeds

writes them into tests/fuzz/corpus. Each is the smallest file of its kind, and comes with what the
reader says to it; None: it is a header. The shapes are those of the published faults of other
readers: counts that overflow an allocation (CVE-2024-21836 tensors, -23605 keys, -21825 arrays),
lengths of texts that do (CVE-2024-23496), more dims than there is room for (CVE-2024-21802), sums
of sizes that wrap (CVE-2025-53630 and, after its repair, CVE-2026-27940), data beyond the file
(CVE-2026-7482), and what the issue trackers of llama.cpp and gguf-parser-go have.
"""

import struct
from pathlib import Path

from tests.fuzz.pieces import (
    ARRAY,
    BOOL,
    F32,
    I8,
    TEXT,
    U8,
    U32,
    U64,
    array,
    gguf,
    key,
    tensor,
    text,
    u16,
    u32,
)

CORPUS = Path(__file__).parent / "corpus"

NAME = key("general.architecture", TEXT, text("llama"))
MOST = 2**64 - 1

SEEDS: dict[str, tuple[bytes, str | None]] = {
    # the start of the file
    "empty": (b"", "empty"),
    "one-byte": (b"G", "no GGUF"),
    "magic-alone": (b"GGUF", "not complete"),
    "zeros": (bytes(64), "zeros"),
    "web-page": (b"<!DOCTYPE html><html>", "web page"),
    "version-0": (gguf(version=0), "version 0"),
    "version-1": (gguf(version=1), "version 1"),
    "version-2": (gguf(NAME, version=2), None),
    "version-4": (gguf(version=4), "version 4"),
    "big-endian": (b"GGUF" + struct.pack(">IQQ", 3, 1, 1) + bytes(64), "big-endian"),
    # counts
    "no-tensors-no-keys": (gguf(), None),
    "keys-2-64": (gguf(NAME, key_count=MOST), "at most 8192"),
    "keys-2-63": (gguf(NAME, key_count=2**63), "at most 8192"),
    "keys-that-wrap-an-allocation": (gguf(NAME, key_count=2**64 // 88 + 1), "at most 8192"),
    "keys-beyond-the-file": (gguf(NAME, key_count=8000), "do not fit"),
    "keys-one-too-many": (gguf(NAME, key_count=2), "not complete"),
    "tensors-2-64": (gguf(NAME, tensor_count=MOST), "at most 32768"),
    "tensors-beyond-the-file": (gguf(NAME, tensor_count=32768), "do not fit"),
    "tensors-one-too-many": (
        gguf(NAME, tensors=(tensor("a", 8),), tensor_count=2, body=32),
        "the data of",
    ),
    # keys
    "key-2-64-long": (gguf(text("a", MOST) + bytes(32)), "bytes, but 65535"),
    "key-beyond-the-file": (gguf(text("a", 65535) + bytes(32)), "not complete"),
    "key-without-a-name": (gguf(u32("", 1)), "without a name"),
    "key-twice": (gguf(u32("a", 1), u32("a", 1)), "twice"),
    "key-that-is-no-utf-8": (gguf(u32(b"\xff\xfe\x80", 1)), None),
    "key-with-a-zero-byte": (gguf(u32(b"a\0b", 1)), None),
    "type-13": (gguf(key("a", 13, bytes(8))), "unknown type 13"),
    "type-2-32": (gguf(key("a", 2**32 - 1, bytes(8))), "unknown type"),
    "bool-7": (gguf(key("a", BOOL, b"\x07")), None),
    "float-nan": (gguf(key("a", F32, b"\xff\xff\xff\xff")), None),
    "number-cut-off": (gguf(key("abcdef", U64, b"\x01\x02")), "not complete"),
    # texts
    "text-2-64-long": (gguf(key("a", TEXT, text("a", MOST))), "does not fit"),
    "text-2-63-long": (gguf(key("a", TEXT, text("a", 2**63))), "does not fit"),
    "text-beyond-the-file": (gguf(key("a", TEXT, text("a", 2))), "does not fit"),
    "text-empty": (gguf(key("a", TEXT, text(""))), None),
    "text-that-is-no-utf-8": (gguf(key("a", TEXT, text(b"\xed\xa0\x80\xff"))), None),
    # arrays
    "array-empty": (gguf(array("a", U8, 0, b"")), None),
    "array-2-64": (gguf(array("a", U8, MOST, b"abc")), "does not fit"),
    "array-that-wraps-an-allocation": (gguf(array("a", U64, 2**61 + 1, bytes(8))), "does not fit"),
    "array-beyond-the-file": (gguf(array("a", U32, 3, bytes(8))), "does not fit"),
    "array-of-an-unknown-type": (gguf(array("a", 13, 1, bytes(8))), "unknown type 13"),
    "array-of-arrays": (
        gguf(array("a", ARRAY, 1, struct.pack("<IQ", U8, 1) + b"a")),
        "another array",
    ),
    "array-nested-deep": (gguf(key("a", ARRAY, struct.pack("<IQ", ARRAY, 1) * 60)), "another"),
    "array-of-bools": (gguf(array("a", BOOL, 3, b"\x00\x01\xff")), None),
    "array-of-signed": (gguf(array("a", I8, 2, b"\xff\x80")), None),
    "texts-2-62": (gguf(array("a", TEXT, 2**62, text("b"))), "does not fit"),
    "texts-beyond-the-file": (gguf(array("a", TEXT, 2, text("b", 1))), "does not fit"),
    "texts-one-too-many": (gguf(array("a", TEXT, 2, text("b" * 8))), "not complete"),
    "texts-whose-last-is-too-long": (
        gguf(array("a", TEXT, 3, text("b") + text("c") + text("d", 2**62) + bytes(9))),
        "not complete",
    ),
    "texts-whose-lengths-wrap": (
        gguf(array("a", TEXT, 3, text("b", 2**64 - 8) + bytes(16))),
        "not complete",
    ),
    "texts-in-blocks": (gguf(array("a", TEXT, 66, text("") * 64 + text("bc") * 2)), None),
    # alignment
    "alignment-0": (gguf(u32("general.alignment", 0)), "no power of two"),
    "alignment-24": (gguf(u32("general.alignment", 24)), "no power of two"),
    "alignment-of-another-type": (gguf(u16("general.alignment", 32)), "not a u32"),
    "alignment-array": (gguf(array("general.alignment", U32, 1, bytes(4))), "not a u32"),
    "alignment-1": (
        gguf(u32("general.alignment", 1), tensors=(tensor("a", 8),), body=32, alignment=1),
        None,
    ),
    "alignment-2-31": (
        gguf(u32("general.alignment", 2**31), tensors=(tensor("a", 8),), body=32),
        "not complete",
    ),
    # tensors
    "tensor": (gguf(NAME, tensors=(tensor("a", 8),), body=32), None),
    "tensor-without-a-name": (gguf(tensors=(tensor("", 8),), body=32), None),
    "tensor-name-63": (gguf(tensors=(tensor("a" * 63, 8),), body=32), None),
    "tensor-name-64": (gguf(tensors=(tensor("a" * 64, 8),), body=32), "63 is the longest"),
    "tensor-name-2-64": (gguf(tensors=(text("a", MOST) + bytes(64),)), "63 is the longest"),
    "tensor-twice": (
        gguf(tensors=(tensor("a", 8), tensor("a", 8, offset=32)), body=64),
        "twice",
    ),
    "dims-0": (gguf(tensors=(tensor("a"),), body=4), None),
    "dims-5": (gguf(tensors=(tensor("a", 1, 1, 1, 1, 1),), body=32), "5 dims"),
    "dims-255": (gguf(tensors=(tensor("a", 8, rank=255),), body=32), "255 dims"),
    "dims-2-32": (gguf(tensors=(tensor("a", 8, rank=2**32 - 1),), body=32), "dims"),
    "dim-zero": (gguf(tensors=(tensor("a", 8, 0),)), None),
    "dim-negative": (gguf(tensors=(tensor("a", MOST),), body=32), "too many elements"),
    "dim-negative-after-a-zero": (gguf(tensors=(tensor("a", 8, 0, MOST),)), "too many elements"),
    "dims-that-wrap": (gguf(tensors=(tensor("a", 2**32, 2**32),), body=32), "too many elements"),
    "dims-that-wrap-to-few": (
        gguf(tensors=(tensor("a", 2**33, 2**31, 1, 1),), body=32),
        "too many elements",
    ),
    "dims-that-wrap-before-a-zero": (
        gguf(tensors=(tensor("a", 2**40, 2**40, 0),)),
        "too many elements",
    ),
    "bytes-that-wrap": (gguf(tensors=(tensor("a", 2**62),), body=32), "not complete"),
    "bytes-that-wrap-in-sum": (
        gguf(
            tensors=tuple(
                tensor(name, 2**60, kind=24, offset=at * 2**60) for at, name in enumerate("abcd")
            )
        ),
        "not complete",
    ),
    "row-that-is-no-block": (gguf(tensors=(tensor("a", 33, kind=2),), body=32), "stores 32"),
    "ggml-type-removed": (gguf(tensors=(tensor("a", 32, kind=4),), body=32), "ggml type 4"),
    "ggml-type-43": (gguf(tensors=(tensor("a", 32, kind=43),), body=32), "ggml type 43"),
    "ggml-type-negative": (gguf(tensors=(tensor("a", 32, kind=2**32 - 1),), body=32), "ggml type"),
    "offset-2-64": (gguf(tensors=(tensor("a", 8, offset=MOST),), body=32), "begin at"),
    "offset-misaligned": (
        gguf(tensors=(tensor("a", 2), tensor("b", 2, offset=8)), body=64),
        "begin at 8",
    ),
    "offset-overlapping": (
        gguf(tensors=(tensor("a", 8), tensor("b", 8, offset=0)), body=64),
        "begin at 0",
    ),
    "data-one-byte-short": (gguf(tensors=(tensor("a", 8),), body=31), "not complete"),
    "data-missing": (gguf(tensors=(tensor("a", 4096, 4096),)), "not complete"),
    "padding-missing": (gguf(tensors=(tensor("a", 0),), alignment=1), "not complete"),
}
"""By name: the file, and what the reader says to it."""


def write() -> None:
    """Make the folder of the corpus hold these files and no others."""
    CORPUS.mkdir(exist_ok=True)
    for path in CORPUS.iterdir():
        if path.name not in SEEDS:
            path.unlink()
    for name, (raw, _) in SEEDS.items():
        (CORPUS / name).write_bytes(raw)


if __name__ == "__main__":
    write()
