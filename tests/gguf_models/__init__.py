"""Models to measure against: real dimensions and no weights.

Each is a header and a hole: a file of 40 GB costs some kB of disk, llama.cpp loads it (its weights
are zeros), and its allocation-free planner plans it. The dimensions are those that the models'
makers published; what matters here is the shape of each family, not who made it.

Must not: be used where an answer matters. They answer nonsense.
"""

import io
from pathlib import Path
from typing import Any

from tests.gguf_models.dense import DENSE
from tests.gguf_models.draft import Cut
from tests.gguf_models.encoders import ENCODERS
from tests.gguf_models.experts import EXPERTS
from tests.gguf_models.projectors import PROJECTORS
from tests.gguf_models.recurrent import RECURRENT
from tests.gguf_models.uneven import UNEVEN
from tests.gguf_writer import GgufWriter

from pannier.gguf.header import Header, read_header

WHOLE = Cut()

MODELS = {**DENSE, **UNEVEN, **EXPERTS, **RECURRENT, **ENCODERS}

__all__ = ["EXPERTS", "MODELS", "PROJECTORS", "WHOLE", "Cut", "header_of", "make", "write"]


def make(name: str, cut: Cut = WHOLE, **changed: Any) -> GgufWriter:
    """A model or projector by name, whole or `cut` down, with single dimensions `changed`."""
    return (MODELS | PROJECTORS)[name](cut, **changed)


def write(folder: Path, name: str, cut: Cut = WHOLE, **changed: Any) -> Path:
    """The file of a model in `folder`; it is as large as the real one, and takes no disk."""
    return make(name, cut, **changed).write(folder / f"{name}.gguf")


def header_of(name: str, cut: Cut = WHOLE, **changed: Any) -> Header:
    """What the reader makes of a model, without a file."""
    writer = make(name, cut, **changed)
    return read_header(io.BytesIO(writer.header()), writer.size)
