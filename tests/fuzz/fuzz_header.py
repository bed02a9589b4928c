"""Fuzzes the reader of GGUF headers.

    python -m tests.fuzz.fuzz_header -max_total_time=600 CORPUS...

Whatever the bytes are, the reader gives a header or raises GgufError, within a second and 64 MiB.
New inputs are written into the first folder, libFuzzer's rule; the seeds of tests/fuzz/corpus are
always read as well. A fault ends the run with a status other than 0 and writes `crash-*`.
"""

import io
import resource
import sys
import time

import atheris

with atheris.instrument_imports(include=["pannier.gguf"]):
    from pannier.gguf import header

from tests.fuzz.seeds import CORPUS, SEEDS

from pannier.errors import GgufError

LONGEST_S = 5.0
"""A second is what is promised; instrumented code on a busy machine takes a few times as long."""

MOST_BYTES = 64 << 20


def peak() -> int:
    """The most memory this process ever had, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def check(raw: bytes) -> None:
    """One input, once as it is and once as the head of a file that claims to be large."""
    for size in (len(raw), len(raw) + (1 << 40)):
        before, began = peak(), time.process_time()
        error, found = None, None
        try:
            found = header.read_header(io.BytesIO(raw), size)
        except GgufError as refused:
            error = refused
        assert error is None or (error.reason and 0 <= error.offset <= size), error
        assert found is None or found.file_size == size
        assert found is None or sum(tensor.size for tensor in found.tensors) <= size
        assert time.process_time() - began < LONGEST_S
        assert peak() - before < MOST_BYTES


def main(arguments: list[str]) -> None:
    """Take libFuzzer's arguments."""
    for raw, _ in SEEDS.values():
        check(raw)
    atheris.Setup([*arguments, str(CORPUS)], check, enable_python_coverage=True)
    atheris.Fuzz()


if __name__ == "__main__":
    main(sys.argv)
