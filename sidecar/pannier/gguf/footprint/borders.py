"""What crosses a border: between two devices, between RAM and a device, and what it leaves behind.

Beside the rows that every layer passes on, some architectures send parts of a layer, and where
tensors of unlike sizes come and go the allocator leaves holes that later ones do not fit into. The
widths here are floats per token, fitted to what b11434's allocation-free planner reserves.

Must not: know settings.
"""

from pannier.gguf.footprint.architecture import SENDS_BACK
from pannier.gguf.footprint.matrices import Matrices, width_in, width_out
from pannier.gguf.footprint.shape import Shape

_LATE = frozenset({"rwkv7", "arwkv7"})
"""Whose logits come when the rows of a layer still lie in their way (fitted)."""

STREAMS = frozenset({"gemma3n"})
"""Carry several rows of a token from layer to layer at once: `n_altup`, src/models/gemma3n.cpp."""

STATES_IN_RAM = {"lfm2": 134, "jamba": 66, "falcon-h1": 31, "nemotron_h": 75, "nemotron_h_moe": 75}
"""Rows of a token that go through RAM when recurrent states are there; the others' are few."""

WKV = frozenset({"rwkv6", "rwkv6qwen2", "rwkv7", "arwkv7"})
"""Mix a row with the one before it: src/models/rwkv6-base.cpp, rwkv7-base.cpp."""


def widest_query(layers: Matrices) -> int:
    """The width of the queries of the layer where they are widest."""
    return max(
        (width_out(dims, "attn_q_b") or width_out(dims, "attn_q") for dims in layers), default=0
    )


def between(shape: Shape, layers: Matrices) -> tuple[int, int]:
    """What recurrent layers send to the next device, and back: parts of the layer at the border."""
    embd = shape.embd
    if shape.architecture in WKV:
        return 3 * embd // 2, embd
    if not any("ssm_in" in dims for dims in layers):
        return 0, 0
    if shape.architecture not in SENDS_BACK:
        return embd // 4, embd // 4
    return (
        max(width_out(dims, "ssm_in") for dims in layers),
        max(width_in(dims, "ssm_out") for dims in layers),
    )


def piped(shape: Shape, layers: Matrices) -> int:
    """What a pipeline holds once more: queries wider than the row itself, and MLA's parts."""
    if shape.compressed:
        return 9 * shape.embd // 4
    more = shape.embd if shape.architecture in SENDS_BACK else 0
    return max(0, max(shape.heads, default=0) * shape.head_k - shape.embd) + more


def scattered(shape: Shape, layers: Matrices) -> int:
    """Where experts are beside a shared one, rows lie high in the buffer and split what is free."""
    if shape.per_layer_embd or shape.architecture in STREAMS:
        return 47 * shape.embd
    if any("ffn_down_shexp" in dims for dims in layers) and fits(shape, layers):
        return 7 * shape.embd
    return max(scattered_first(shape, layers), 4 * shape.embd * (shape.architecture in _LATE))


def scattered_first(shape: Shape, layers: Matrices) -> int:
    """The same without a pipeline, where the embeddings enter on a device."""
    if shape.architecture in SENDS_BACK and shape.experts:
        return 9 * shape.embd
    query = widest_query(layers)
    return query if query < shape.embd else 0


def fits(shape: Shape, layers: Matrices) -> bool:
    """Whether the experts' ways down fit into what their ups and gates leave."""
    inner = max((width_in(dims, "ffn_down_exps") for dims in layers), default=0)
    return shape.embd <= 2 * inner


def scattered_alone(shape: Shape, layers: Matrices) -> int:
    """The same without a pipeline, where the first layers are in RAM."""
    if shape.per_layer_embd or not any("ffn_down_shexp" in dims for dims in layers):
        return 0
    return (7 if fits(shape, layers) else 9) * shape.embd


def border(shape: Shape, layers: Matrices) -> int:
    """Experts' rows of the last layer in RAM, which come to the device one by one.

    With a shared expert they are summed up before, and with few experts they fit into what is free.
    """
    inner = max((width_in(dims, "ffn_down_exps") for dims in layers), default=0)
    shared = any("ffn_down_shexp" in dims for dims in layers)
    if not inner or shared:
        return 0
    if shape.used <= 2:
        return 3 * shape.embd if any("ssm_in" in dims for dims in layers) else 0
    if shape.used < 8:
        return 2 * shape.embd
    return (shape.used + 2 if fits(shape, layers) else 5) * shape.embd


def away(shape: Shape, layers: Matrices) -> int:
    """Queries, keys and values of some layers, on their way to a cache in RAM; fitted."""
    query = max(widest_query(layers), max(shape.heads, default=0) * shape.head_k)
    cache = max(shape.k, default=0) + max(shape.v, default=0)
    return 10 * cache + 3 * query + 7 * shape.embd if cache else 0
