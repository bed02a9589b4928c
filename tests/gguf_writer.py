"""Writes GGUF files: any header one can say, and micro models that a real llama-server serves.

The micro models have two layers of 64 dimensions with small random weights (the same for the same
seed), load in milliseconds and answer nonsense, but they answer: chat (llama), embed (qwen3, pooled
on the last token) and rerank (qwen3 with a two-label classifier). `slow_chat` is one whose load can
be watched: its feed-forward layers are a hole in the file, so it costs no disk.
"""

import os
import random
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import BinaryIO

Value = bool | int | float | str | list[bool] | list[int] | list[float] | list[str]

Fill = Callable[[], float] | None
"""Where the numbers of a tensor come from; None: zeros, as a hole in the file."""

ALIGNMENT = 32
KINDS = {
    "F32": (0, 1, 4),
    "F16": (1, 1, 2),
    "Q4_0": (2, 32, 18),
    "Q5_1": (7, 32, 24),
    "Q8_0": (8, 32, 34),
    "Q4_K": (12, 256, 144),
    "Q5_K": (13, 256, 176),
    "Q6_K": (14, 256, 210),
    "IQ4_XS": (23, 256, 136),
    "BF16": (30, 1, 2),
    "MXFP4": (39, 32, 17),
}
"""By name: number, values in a block, bytes of a block (ggml.h and ggml-common.h, build 11434)."""

LAST, RANK = 3, 4
"""llama.cpp's pooling types: the last token; a classifier over it."""

_U32, _I32, _FLOAT, _BOOL, _TEXT, _ARRAY = 4, 5, 6, 7, 8, 9


class GgufWriter:
    """Collects metadata and tensors, and writes them as GGUF version 3.

    Tensors are F32 unless another `kind` is named; numbers can be filled in for F32 alone.
    """

    def __init__(self, arch: str, name: str) -> None:
        self.arch = arch
        self._metadata: list[bytes] = []
        self._tensors: list[tuple[str, tuple[int, ...], str, Fill]] = []
        self.meta("general.architecture", arch)
        self.meta("general.name", name)

    def meta(self, key: str, value: Value) -> None:
        """Add one key; whole numbers become u32, in arrays i32."""
        self._metadata.append(_text(key) + _value(value))

    def arch_meta(self, **values: Value) -> None:
        """Add keys of the architecture; `__` in a name becomes a dot."""
        for name, value in values.items():
            self.meta(f"{self.arch}.{name.replace('__', '.')}", value)

    def tensor(self, name: str, *dims: int, fill: Fill = None, kind: str = "F32") -> None:
        """Add a tensor; `dims` in ggml's order, the row length first."""
        assert kind == "F32" or fill is None, f"{name}: only F32 can be filled"
        assert dims[0] % KINDS[kind][1] == 0, f"{name}: {dims[0]} are no whole blocks of {kind}"
        self._tensors.append((name, dims, kind, fill))

    def header(self) -> bytes:
        """All that comes before the tensors' bytes, padded to where those begin."""
        infos, offset = [], 0
        for name, dims, kind, _ in self._tensors:
            shape = struct.pack(f"<I{len(dims)}Q", len(dims), *dims)
            infos.append(_text(name) + shape + struct.pack("<IQ", KINDS[kind][0], offset))
            offset += _aligned(_size(dims, kind))
        counts = struct.pack("<IQQ", 3, len(self._tensors), len(self._metadata))
        header = b"GGUF" + counts + b"".join(self._metadata) + b"".join(infos)
        return header.ljust(_aligned(len(header)), b"\0")

    @property
    def size(self) -> int:
        """Bytes of the whole file."""
        body = sum(_aligned(_size(dims, kind)) for _, dims, kind, _ in self._tensors)
        return len(self.header()) + body

    def write(self, path: Path) -> Path:
        """Write the file and return its path; what is not filled is a hole and costs no disk."""
        with path.open("wb") as file:
            file.write(self.header())
            for _, dims, kind, fill in self._tensors:
                if fill is None:
                    file.seek(_aligned(_size(dims, kind)), os.SEEK_CUR)
                else:
                    _write_floats(file, _count(dims), fill)
            file.truncate()
        return path


def _text(text: str) -> bytes:
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw


def _value(value: Value) -> bytes:
    match value:
        case bool():
            return struct.pack("<I?", _BOOL, value)
        case int():
            return struct.pack("<II", _U32, value)
        case float():
            return struct.pack("<If", _FLOAT, value)
        case str():
            return struct.pack("<I", _TEXT) + _text(value)
        case _:
            return _array(value)


def _array(values: Sequence[int] | Sequence[float] | Sequence[str]) -> bytes:
    if all(isinstance(one, bool) for one in values):
        kind, raw = _BOOL, bytes(map(bool, values))
    elif all(isinstance(one, int) for one in values):
        kind, raw = _I32, struct.pack(f"<{len(values)}i", *values)
    elif all(isinstance(one, float) for one in values):
        kind, raw = _FLOAT, struct.pack(f"<{len(values)}f", *values)
    else:
        kind, raw = _TEXT, b"".join(_text(str(one)) for one in values)
    return struct.pack("<IIQ", _ARRAY, kind, len(values)) + raw


def _count(dims: Sequence[int]) -> int:
    total = 1
    for dim in dims:
        total *= dim
    return total


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def _size(dims: Sequence[int], kind: str) -> int:
    _, block, size = KINDS[kind]
    return _count(dims) // block * size


def _write_floats(file: BinaryIO, count: int, fill: Callable[[], float]) -> None:
    raw = struct.pack(f"<{count}f", *(fill() for _ in range(count)))
    file.write(raw.ljust(_aligned(len(raw)), b"\0"))


# The micro models

WIDTH, INNER, HEADS, KV_HEADS, HEAD = 64, 128, 4, 2, 16
VOCABULARY = 384
WINDOW = 4096


def micro_chat(path: Path) -> Path:
    """A chat model."""
    return _transformer("llama", "Micro Chat").write(path)


def wordy_chat(path: Path) -> Path:
    """A chat model with more metadata than Pannier reads; the engine reads it all."""
    writer = _transformer("llama", "Wordy Chat")
    for number in range(9000):
        writer.meta(f"word.{number}", number)
    return writer.write(path)


def write_micro(folder: Path) -> dict[str, Path]:
    """Write all three into `folder` as `micro-ROLE.gguf`; their paths by role."""
    makers = {"chat": micro_chat, "embed": micro_embed, "rerank": micro_rerank}
    return {role: make(folder / f"micro-{role}.gguf") for role, make in makers.items()}


def slow_chat(path: Path, megabytes: int) -> Path:
    """A chat model of about that size, most of it zeros."""
    inner = 1 << 15
    layers = max(megabytes * 1_000_000 // (3 * WIDTH * inner * 4), 1)
    return _transformer("llama", "Slow Chat", layers=layers, inner=inner).write(path)


def micro_embed(path: Path) -> Path:
    """An embedding model: 64 dimensions, pooled on the last token."""
    writer = _transformer("qwen3", "Micro Embed")
    writer.arch_meta(pooling_type=LAST)
    return writer.write(path)


def micro_rerank(path: Path) -> Path:
    """A reranker: a classifier with the labels yes and no."""
    writer = _transformer("qwen3", "Micro Rerank")
    writer.arch_meta(pooling_type=RANK, classifier__output_labels=["yes", "no"])
    writer.tensor("cls.output.weight", WIDTH, 2, fill=_noise(9))
    return writer.write(path)


def _noise(seed: int) -> Callable[[], float]:
    source = random.Random(seed)
    return lambda: source.uniform(-0.2, 0.2)


def _one() -> float:
    return 1.0


def _transformer(arch: str, name: str, layers: int = 2, inner: int = INNER) -> GgufWriter:
    """A dense decoder with tied embeddings, as llama and qwen3 are."""
    writer, noise = GgufWriter(arch, name), _noise(len(name))
    feed = noise if inner == INNER else None
    writer.arch_meta(
        block_count=layers,
        context_length=WINDOW,
        embedding_length=WIDTH,
        feed_forward_length=inner,
        attention__head_count=HEADS,
        attention__head_count_kv=KV_HEADS,
        attention__key_length=HEAD,
        attention__value_length=HEAD,
        attention__layer_norm_rms_epsilon=1e-6,
        rope__dimension_count=HEAD,
        rope__freq_base=10000.0,
        vocab_size=VOCABULARY,
    )
    _tokenizer(writer)
    writer.tensor("token_embd.weight", WIDTH, VOCABULARY, fill=noise)
    writer.tensor("output_norm.weight", WIDTH, fill=_one)
    for layer in range(layers):
        block = f"blk.{layer}"
        writer.tensor(f"{block}.attn_norm.weight", WIDTH, fill=_one)
        writer.tensor(f"{block}.attn_q.weight", WIDTH, HEADS * HEAD, fill=noise)
        writer.tensor(f"{block}.attn_k.weight", WIDTH, KV_HEADS * HEAD, fill=noise)
        writer.tensor(f"{block}.attn_v.weight", WIDTH, KV_HEADS * HEAD, fill=noise)
        writer.tensor(f"{block}.attn_output.weight", HEADS * HEAD, WIDTH, fill=noise)
        if arch == "qwen3":
            writer.tensor(f"{block}.attn_q_norm.weight", HEAD, fill=_one)
            writer.tensor(f"{block}.attn_k_norm.weight", HEAD, fill=_one)
        writer.tensor(f"{block}.ffn_norm.weight", WIDTH, fill=_one)
        writer.tensor(f"{block}.ffn_gate.weight", WIDTH, inner, fill=feed)
        writer.tensor(f"{block}.ffn_up.weight", WIDTH, inner, fill=feed)
        writer.tensor(f"{block}.ffn_down.weight", inner, WIDTH, fill=feed)
    return writer


def _tokenizer(writer: GgufWriter) -> None:
    """SentencePiece with the 256 bytes and some words: every text can be said with it."""
    special, words = ["<unk>", "<s>", "</s>"], VOCABULARY - 3 - 256
    tokens = special + [f"<0x{byte:02X}>" for byte in range(256)]
    tokens += [f"\u2581word{number}" for number in range(words)]
    unknown, control, byte, normal = 2, 3, 6, 1
    writer.meta("tokenizer.ggml.model", "llama")
    writer.meta("tokenizer.ggml.tokens", tokens)
    writer.meta("tokenizer.ggml.scores", [0.0] * 259 + [-float(at) for at in range(words)])
    types = [unknown, control, control] + [byte] * 256 + [normal] * words
    writer.meta("tokenizer.ggml.token_type", types)
    writer.meta("tokenizer.ggml.bos_token_id", 1)
    writer.meta("tokenizer.ggml.eos_token_id", 2)
