"""The ggml types: each one's block, against llama.cpp's own package, and sizes made of them."""

import gguf
import pytest

from pannier.gguf.quant import GGML_TYPES, KV_TYPES, kv_bytes, tensor_bytes

STALE = "Q8_1"
"""The package still has the block of before 2023, with two floats; ggml-common.h has two halves."""

THEIRS = {
    int(kind): (kind.name, *gguf.GGML_QUANT_SIZES[kind])
    for kind in gguf.GGMLQuantizationType
    if kind.name != STALE
}
B11434 = """
    f32 0 1 4, f16 1 1 2, q4_0 2 32 18, q4_1 3 32 20, q5_0 6 32 22, q5_1 7 32 24, q8_0 8 32 34,
    q8_1 9 32 36, q2_K 10 256 84, q3_K 11 256 110, q4_K 12 256 144, q5_K 13 256 176,
    q6_K 14 256 210, q8_K 15 256 292, iq2_xxs 16 256 66, iq2_xs 17 256 74, iq3_xxs 18 256 98,
    iq1_s 19 256 50, iq4_nl 20 32 18, iq3_s 21 256 110, iq2_s 22 256 82, iq4_xs 23 256 136,
    i8 24 1 1, i16 25 1 2, i32 26 1 4, i64 27 1 8, f64 28 1 8, iq1_m 29 256 56, bf16 30 1 2,
    tq1_0 34 256 54, tq2_0 35 256 66, mxfp4 39 32 17, nvfp4 40 64 36, q1_0 41 128 18, q2_0 42 64 18
"""
"""Name, number, elements and bytes of a block: written down apart from the table, from the
static_asserts of ggml-common.h."""


def test_the_table_is_that_of_the_build():
    lines = [line.split() for line in B11434.split(",")]
    expected = {int(number): (name, int(block), int(size)) for name, number, block, size in lines}
    found = {number: (kind.name, kind.block, kind.size) for number, kind in GGML_TYPES.items()}
    assert found == expected


@pytest.mark.parametrize("number", sorted(THEIRS.keys() & GGML_TYPES.keys()))
def test_a_type_is_the_one_of_llama_cpps_package(number):
    name, block, size = THEIRS[number]
    ours = GGML_TYPES[number]
    assert (ours.name.lower(), ours.block, ours.size) == (name.lower(), block, size)


def test_the_package_knows_nearly_all_types():
    assert len(THEIRS.keys() & GGML_TYPES.keys()) >= 30


@pytest.mark.parametrize("number", [4, 5, 31, 32, 33, 36, 37, 38, 43, 2**32 - 1, -1])
def test_a_type_that_was_removed_or_never_was_is_named(number):
    with pytest.raises(ValueError, match=f"ggml type {number} is not known"):
        tensor_bytes(number, (32,))


@pytest.mark.parametrize(
    ("kind", "dims", "size"),
    [
        (0, (), 4),
        (0, (5,), 20),
        (1, (4096, 151936), 4096 * 151936 * 2),
        (12, (4096, 12288), 4096 * 12288 // 256 * 144),
        (14, (2048, 768, 128), 2048 * 768 * 128 // 256 * 210),
        (39, (2880, 2880, 32), 2880 * 2880 * 32 // 32 * 17),
        (8, (64, 0), 0),
        (8, (0,), 0),
    ],
)
def test_the_bytes_of_a_tensor(kind, dims, size):
    assert tensor_bytes(kind, dims) == size


def test_a_row_that_is_no_whole_number_of_blocks_is_refused():
    with pytest.raises(ValueError, match="rows of 100 elements, but q4_0 stores 32"):
        tensor_bytes(2, (100, 32))


@pytest.mark.parametrize(
    ("kind", "size"),
    [
        ("f32", 4096),
        ("f16", 2048),
        ("bf16", 2048),
        ("q8_0", 1088),
        ("q4_0", 576),
        ("q4_1", 640),
        ("iq4_nl", 576),
        ("q5_0", 704),
        ("q5_1", 768),
    ],
)
def test_the_bytes_of_a_row_of_the_cache(kind, size):
    assert kv_bytes(kind, 1024) == size


def test_the_types_of_the_cache_are_those_that_llama_server_takes():
    assert " ".join(KV_TYPES) == "f32 f16 bf16 q8_0 q4_0 q4_1 iq4_nl q5_0 q5_1"


@pytest.mark.parametrize("kind", ["Q8_0", "q4_K", "", "f8"])
def test_another_type_of_the_cache_is_refused_with_those_there_are(kind):
    with pytest.raises(ValueError, match="f16, bf16, q8_0"):
        kv_bytes(kind, 1024)


def test_a_row_of_the_cache_that_is_no_whole_number_of_blocks_is_refused():
    with pytest.raises(ValueError, match="rows of 80 elements, but q8_0 stores 32"):
        kv_bytes("q8_0", 80)
