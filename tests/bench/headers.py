"""How long the header of a model with a real vocabulary takes, side by side; prints Markdown.

    python -m tests.bench.headers

One file with 152,064 tokens, their types and 151,387 merges (what Qwen3's models have) and 400
tensors; its data are a hole. All readers get it in turns, so that a machine that changes its speed
changes it for all. "Cold" is a new cache, on pages that the operating system has. gguf-parser-go
is measured when its program `gguf-parser` is on PATH, with the start of its process.
"""

import random
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import gguf
from tests.gguf_writer import GgufWriter

from pannier.gguf.files import HeaderCache

TOKENS, MERGES, LAYERS = 152_064, 151_387, 36
ROUNDS = 15
ROUNDS_OF_OTHERS = 2


def write(path: Path) -> Path:
    """The file: pieces of 1 to 14 letters, most of 4 to 9, as byte pairs of a real vocabulary."""
    source = random.Random(3)

    def piece() -> str:
        length = min(max(round(source.gauss(6.4, 2.7)), 1), 14)
        return "".join(source.choices("abcdefghijklmnopqrstuvwxyz\u0120", k=length))

    writer = GgufWriter("qwen3", "bench")
    writer.arch_meta(block_count=LAYERS, context_length=40960, embedding_length=4096)
    writer.meta("tokenizer.ggml.model", "gpt2")
    writer.meta("tokenizer.ggml.tokens", [piece() for _ in range(TOKENS)])
    writer.meta("tokenizer.ggml.token_type", [1] * TOKENS)
    merges = [f"{piece()[:6]} {piece()[:6]}" for _ in range(MERGES)]
    writer.meta("tokenizer.ggml.merges", merges)
    writer.tensor("token_embd.weight", 4096, TOKENS, kind="Q4_K")
    for layer in range(LAYERS):
        for name in ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"):
            writer.tensor(f"blk.{layer}.{name}.weight", 4096, 4096, kind="Q4_K")
        for name in ("attn_norm", "ffn_norm", "attn_q_norm", "attn_k_norm"):
            writer.tensor(f"blk.{layer}.{name}.weight", 4096)
    return writer.write(path)


def timed(call: Callable[[], object]) -> float:
    """Milliseconds of one call."""
    began = time.perf_counter()
    call()
    return (time.perf_counter() - began) * 1000


def readers(path: Path) -> dict[str, tuple[Callable[[], object], int]]:
    """By name: one reading, and how often it is done."""
    kept = HeaderCache()
    kept.read([str(path)])
    found: dict[str, tuple[Callable[[], object], int]] = {
        "Pannier, cold": (lambda: HeaderCache().read([str(path)]), ROUNDS),
        "Pannier, cached": (lambda: kept.read([str(path)]), ROUNDS),
        "gguf.GGUFReader": (lambda: gguf.GGUFReader(path), ROUNDS_OF_OTHERS),
    }
    if program := shutil.which("gguf-parser"):
        argv = [program, "--path", str(path), "--skip-estimate", "--json"]
        found["gguf-parser-go"] = (
            lambda: subprocess.run(argv, check=True, capture_output=True),
            ROUNDS_OF_OTHERS,
        )
    return found


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = write(Path(folder) / "bench.gguf")
        found = readers(path)
        times: dict[str, list[float]] = {name: [] for name in found}
        for turn in range(ROUNDS):
            for name, (call, rounds) in found.items():
                if turn < rounds:
                    times[name].append(timed(call))
    cold = statistics.median(times["Pannier, cold"])
    print("| reader | median ms | least ms | times as long as ours cold |")
    print("| --- | --- | --- | --- |")
    for name, values in times.items():
        median = statistics.median(values)
        print(f"| {name} | {median:.3f} | {min(values):.3f} | {median / cold:.4f} |")


if __name__ == "__main__":
    main()
