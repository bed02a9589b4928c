"""The ggml types: how many bytes a tensor or a row of the KV cache takes.

A quantized type packs a fixed number of elements of one row into a block of a fixed number of
bytes, so every size is exact from the dimensions alone. The table is ggml's own at llama.cpp b11434
(`enum ggml_type` in ggml/include/ggml.h, the blocks' sizes in ggml/src/ggml-common.h). Types that
were removed from ggml are no types here either: llama-server refuses files that hold them.

Must not: know what a tensor is for.
"""

from collections.abc import Sequence

import msgspec


class GgmlType(msgspec.Struct, frozen=True):
    """One type: `block` elements of a row are stored together in `size` bytes."""

    name: str
    block: int
    size: int


GGML_TYPES: dict[int, GgmlType] = {
    0: GgmlType("f32", 1, 4),
    1: GgmlType("f16", 1, 2),
    2: GgmlType("q4_0", 32, 18),
    3: GgmlType("q4_1", 32, 20),
    6: GgmlType("q5_0", 32, 22),
    7: GgmlType("q5_1", 32, 24),
    8: GgmlType("q8_0", 32, 34),
    9: GgmlType("q8_1", 32, 36),
    10: GgmlType("q2_K", 256, 84),
    11: GgmlType("q3_K", 256, 110),
    12: GgmlType("q4_K", 256, 144),
    13: GgmlType("q5_K", 256, 176),
    14: GgmlType("q6_K", 256, 210),
    15: GgmlType("q8_K", 256, 292),
    16: GgmlType("iq2_xxs", 256, 66),
    17: GgmlType("iq2_xs", 256, 74),
    18: GgmlType("iq3_xxs", 256, 98),
    19: GgmlType("iq1_s", 256, 50),
    20: GgmlType("iq4_nl", 32, 18),
    21: GgmlType("iq3_s", 256, 110),
    22: GgmlType("iq2_s", 256, 82),
    23: GgmlType("iq4_xs", 256, 136),
    24: GgmlType("i8", 1, 1),
    25: GgmlType("i16", 1, 2),
    26: GgmlType("i32", 1, 4),
    27: GgmlType("i64", 1, 8),
    28: GgmlType("f64", 1, 8),
    29: GgmlType("iq1_m", 256, 56),
    30: GgmlType("bf16", 1, 2),
    34: GgmlType("tq1_0", 256, 54),
    35: GgmlType("tq2_0", 256, 66),
    39: GgmlType("mxfp4", 32, 17),
    40: GgmlType("nvfp4", 64, 36),
    41: GgmlType("q1_0", 128, 18),
    42: GgmlType("q2_0", 64, 18),
}
"""By ggml's number, as a file's tensor table names them."""

KV_TYPES: dict[str, GgmlType] = {
    kind.name: kind for kind in (GGML_TYPES[number] for number in (0, 1, 30, 8, 2, 3, 20, 6, 7))
}
"""What `--cache-type-k` and `-v` take (`kv_cache_types`, common/arg.cpp, b11434), by name."""


def tensor_bytes(kind: int, dims: Sequence[int]) -> int:
    """Bytes of a tensor of `dims` (row length first) elements of ggml type number `kind`.

    Raises ValueError with the reason for a type that is none, or a row that is no whole number of
    blocks. No dims: one element.
    """
    known = GGML_TYPES.get(kind)
    if known is None:
        raise ValueError(f"the ggml type {kind} is not known to llama.cpp b11434")
    row = dims[0] if dims else 1
    if row % known.block:
        raise ValueError(f"rows of {row} elements, but {known.name} stores {known.block} at a time")
    blocks = row // known.block
    for dim in dims[1:]:
        blocks *= dim
    return blocks * known.size


def kv_bytes(kind: str, elements: int) -> int:
    """Bytes of one row of `elements` of a KV cache of type `kind` ("f16", "q8_0", ...).

    Raises ValueError with the reason for a name that is none, or a row that is no whole number of
    blocks.
    """
    known = KV_TYPES.get(kind)
    if known is None:
        raise ValueError(f'no KV cache type is named "{kind}"; there are {", ".join(KV_TYPES)}')
    if elements % known.block:
        raise ValueError(
            f"rows of {elements} elements, but {known.name} stores {known.block} at a time"
        )
    return elements // known.block * known.size
