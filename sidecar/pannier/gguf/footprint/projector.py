"""The projector of a vision or audio model: what clip takes beside the language model.

All its tensors go to one device, and one buffer is made for the largest input that it is told to
expect. After tools/mtmd/clip.cpp of llama.cpp b11434.

Must not: know the language model.
"""

import msgspec

from pannier.gguf.header import Header


class Projector(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes of a projector: its tensors, and its buffer for the largest input."""

    weights: int
    compute: int
    exact: bool = True
    notes: tuple[str, ...] = ()


def projector_of(header: Header) -> Projector:
    """What a projector takes. Never raises."""
    weights = sum(tensor.size for tensor in header.tensors)
    return Projector(weights=weights, compute=weights // 4 + (64 << 20), exact=False)
