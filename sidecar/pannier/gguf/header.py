"""The header of a GGUF file as a value, and the bounded reader that makes it.

Must not: open a file, or read a tensor's data.
"""

import msgspec

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

    `file_size` is the bytes of all files.
    """

    version: int
    metadata: dict[str, Number | str | Array]
    tensors: tuple[Tensor, ...]
    file_size: int
