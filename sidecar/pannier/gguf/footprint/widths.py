"""How wide a model's computation is at its widest: floats per token that are alive at once.

llama.cpp reserves one buffer per device for the worst graph it will run. Its size is set by the few
tensors that are alive together in the widest stage of a layer: the attention, or the feed-forward
network, or the experts, or a recurrent mixer. Each stage's width follows from the dimensions of its
matrices. The sums below name the tensors of `src/llama-graph.cpp` and `src/models/*.cpp` that are
alive; they were compared with what b11434's allocation-free planner reserves.

Must not: know settings; what it counts in is floats for each token of a batch.
"""

import re
from collections.abc import Iterable, Mapping

import msgspec

from pannier.gguf.footprint.keys import Keys
from pannier.gguf.footprint.shape import Shape
from pannier.gguf.header import Tensor

Dims = Mapping[str, tuple[int, ...]]

_WEIGHT = re.compile(r"(?:enc\.|dec\.)?blk\.(\d{1,3})\.(.+)\.weight")

_WKV_STAGES = {"rwkv6": 21, "rwkv6qwen2": 21, "rwkv7": 31, "arwkv7": 31}
"""Half embeddings per token at once in the time mix; src/models/rwkv6-base.cpp, rwkv7-base.cpp."""


class Widths(msgspec.Struct, frozen=True, kw_only=True):
    """Floats per token.

    `stage` is the widest stage of any layer, beside what every stage has; `experts` the widest of
    the experts alone. `input` is a row of the embeddings as they enter, `held` what is kept from
    the first layer to the last. Without flash attention a layer has `heads` rows of scores, a
    sliding one `narrow_heads`, and `beside` them. `crossing` and `returning` go between devices in
    addition to the row itself. `state` is in bytes for each slot, not per token.
    """

    stage: int
    experts: int
    input: int
    held: int
    heads: int
    narrow_heads: int
    beside: int
    value: int
    crossing: int
    returning: int
    state: int


def widths_of(shape: Shape, keys: Keys, tensors: Iterable[Tensor]) -> Widths:
    """The widths of a model from its matrices. Zero where nothing is known."""
    layers: list[dict[str, tuple[int, ...]]] = [{} for _ in range(shape.layers)]
    for tensor in tensors:
        found = _WEIGHT.fullmatch(tensor.name)
        if found and int(found[1]) < shape.trunk:
            layers[int(found[1])][found[2]] = tensor.dims
    stage = experts = crossing = returning = 0
    seen: set[tuple[object, ...]] = set()
    for il, dims in enumerate(layers):
        kind = (shape.heads[il], shape.k[il], shape.v[il], *sorted(dims.items()))
        if kind in seen:
            continue
        seen.add(kind)
        mixture = _experts(dims, shape)
        experts = max(experts, mixture)
        stage = max(stage, mixture, _mixer(dims, shape, il, keys), _feed(dims, shape))
        if shape.architecture in ("mamba", "mamba2", "jamba") and "ssm_in" in dims:
            crossing = max(crossing, _out(dims, "ssm_in"))
            returning = max(returning, _in(dims, "ssm_out"))
    attends = [il for il in range(shape.trunk) if not shape.recurrent[il] or shape.cached[il]]
    return Widths(
        stage=stage,
        experts=experts,
        input=shape.embd * (1 + keys.count("n_deepstack_layers")),
        held=_held(shape, keys),
        heads=max((shape.heads[il] for il in attends if not shape.sliding[il]), default=0),
        narrow_heads=max((shape.heads[il] for il in attends if shape.sliding[il]), default=0),
        beside=_beside(shape, keys, layers),
        value=max(shape.v, default=0),
        crossing=crossing,
        returning=returning,
        state=4 * shape.state if any(shape.recurrent) else 0,
    )


def _out(dims: Dims, name: str) -> int:
    found = dims.get(name, ())
    return found[1] if len(found) > 1 else 0


def _in(dims: Dims, name: str) -> int:
    found = dims.get(name, ())
    return found[0] if found else 0


def _mixer(dims: Dims, shape: Shape, il: int, keys: Keys) -> int:
    """The attention or the recurrent mixer of a layer."""
    embd = shape.embd
    if shape.architecture in _WKV_STAGES:
        return embd * _WKV_STAGES[shape.architecture] // 2
    width = 0
    if "ssm_in" in dims:
        conv, inner = _out(dims, "ssm_conv1d"), _in(dims, "ssm_out")
        width = _out(dims, "ssm_in") + conv + 2 * inner + embd // 2
    elif "ssm_conv1d" in dims:
        width = _delta(dims, shape)
    elif "shortconv.in_proj" in dims:
        width = 7 * embd
    if shape.recurrent[il] and not shape.cached[il]:
        return width
    return max(width, _attention(dims, shape, il, keys))


def _delta(dims: Dims, shape: Shape) -> int:
    """Gated delta nets: the projections, the convolution, and queries, keys and values of it."""
    conv = _out(dims, "ssm_conv1d")
    inner = _in(dims, "ssm_out")
    return 2 * conv + 3 * inner + shape.embd


def _attention(dims: Dims, shape: Shape, il: int, keys: Keys) -> int:
    heads, embd = shape.heads[il], shape.embd
    out = heads * shape.head_v
    if shape.compressed:
        lora = keys.count("attention.kv_lora_rank")
        query = _out(dims, "attn_q_b") or _out(dims, "attn_q")
        return query + heads * lora + heads * shape.head_k + embd
    if "attn_kv_b" in dims:
        query = _out(dims, "attn_q_b") or _out(dims, "attn_q")
        return 3 * query + _out(dims, "attn_kv_b") + out + embd
    width = heads * (shape.k[il] // max(1, shape.k[il] // max(1, shape.head_k)))
    if "attn_qkv" in dims:
        return embd + _out(dims, "attn_qkv") + width + shape.k[il]
    query = _out(dims, "attn_q")
    return embd + query + width + 2 * shape.k[il] + shape.v[il] if query else 0


def _feed(dims: Dims, shape: Shape) -> int:
    """The feed-forward network, and the expert that all tokens share."""
    inner, shared = _in(dims, "ffn_down"), _in(dims, "ffn_down_shexp")
    gated = "ffn_gate" in dims or _out(dims, "ffn_up") >= 2 * inner
    width = 3 * inner if gated else inner + shape.embd
    return max(width if inner else 0, 3 * shared + 2 * shape.embd if shared else 0)


def _experts(dims: Dims, shape: Shape) -> int:
    """The experts of a layer: up, gate and their product, and each expert's way down beside them.

    The way down fits into what up and gate leave when it is no wider than both.
    """
    inner = _in(dims, "ffn_down_exps") * shape.used
    if not inner:
        return 0
    down = _out(dims, "ffn_down_exps") * shape.used
    others = 2 * inner if "ffn_gate_exps" in dims or "ffn_gate_up_exps" in dims else 0
    return inner + others + (down if down > others else 0) + 2 * shape.experts


def _held(shape: Shape, keys: Keys) -> int:
    """Rows that every layer reads: embeddings per layer, and the choices of an indexer."""
    chosen = keys.count("attention.indexer.top_k") if shape.index else 0
    return shape.per_layer_embd * shape.trunk + chosen * shape.trunk


def _beside(shape: Shape, keys: Keys, layers: list[dict[str, tuple[int, ...]]]) -> int:
    """What is alive beside the scores: the queries, or what they gather."""
    widest = max(shape.heads, default=0)
    if shape.compressed:
        lora = keys.count("attention.kv_lora_rank")
        return widest * max(shape.head_k, lora)
    query = max((_out(dims, "attn_q_b") or _out(dims, "attn_q") for dims in layers), default=0)
    return max(query, widest * max(shape.head_k, shape.head_v))
