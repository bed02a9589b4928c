"""The pieces of a GGUF file as bytes, so that each can be wrong by itself."""

import struct

U8, I8, U16, I16, U32, I32, F32, BOOL, TEXT, ARRAY, U64, I64, F64 = range(13)
"""GGUF's numbers for the types of metadata."""


def text(value: str | bytes, length: int | None = None) -> bytes:
    """A text after its length, or after another length."""
    raw = value if isinstance(value, bytes) else value.encode()
    return struct.pack("<Q", len(raw) if length is None else length) + raw


def key(name: str | bytes, kind: int, raw: bytes) -> bytes:
    """One key of the metadata, its value as bytes."""
    return text(name) + struct.pack("<I", kind) + raw


def array(name: str | bytes, kind: int, count: int, raw: bytes) -> bytes:
    """A key whose value is an array that says it has `count` elements."""
    return key(name, ARRAY, struct.pack("<IQ", kind, count) + raw)


def u32(name: str | bytes, value: int) -> bytes:
    """A key with a whole number."""
    return key(name, U32, struct.pack("<I", value))


def u16(name: str | bytes, value: int) -> bytes:
    """A key with a short whole number, as those of shards are."""
    return key(name, U16, struct.pack("<H", value))


def tensor(
    name: str | bytes, *dims: int, kind: int = 0, offset: int = 0, rank: int | None = None
) -> bytes:
    """One line of the tensor table; `rank` is the number of dims that it says it has."""
    said = len(dims) if rank is None else rank
    return text(name) + struct.pack(f"<I{len(dims)}QIQ", said, *dims, kind, offset)


def gguf(
    *keys: bytes,
    tensors: tuple[bytes, ...] = (),
    body: int = 0,
    version: int = 3,
    magic: bytes = b"GGUF",
    key_count: int | None = None,
    tensor_count: int | None = None,
    alignment: int = 32,
) -> bytes:
    """A file of these parts with `body` bytes of data; the counts can be said to be others."""
    counts = struct.pack(
        "<IQQ",
        version,
        len(tensors) if tensor_count is None else tensor_count,
        len(keys) if key_count is None else key_count,
    )
    head = magic + counts + b"".join(keys) + b"".join(tensors)
    return head + bytes(-len(head) % alignment if tensors else 0) + bytes(body)
