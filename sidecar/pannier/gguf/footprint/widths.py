"""How wide a model's computation is at its widest: floats per token that are alive at once.

llama.cpp reserves one buffer per device for the worst graph it will run. Its size is set by the few
tensors that are alive together in the widest stage of a layer: the attention, or the feed-forward
network, or the experts, or a recurrent mixer. Each stage's width follows from the dimensions of its
matrices. The sums below name the tensors of `src/llama-graph.cpp` and `src/models/*.cpp` that are
alive; they were compared with what b11434's allocation-free planner reserves.

Must not: know settings; what it counts in is floats for each token of a batch.
"""

from collections.abc import Iterable

import msgspec

from pannier.gguf.footprint.architecture import BOTH, NO_LOGITS
from pannier.gguf.footprint.borders import (
    STREAMS,
    WKV,
    away,
    between,
    border,
    piped,
    scattered,
    scattered_alone,
    scattered_first,
    widest_query,
)
from pannier.gguf.footprint.keys import Keys
from pannier.gguf.footprint.matrices import Dims, Matrices, matrices_of, width_in, width_out
from pannier.gguf.footprint.shape import Shape
from pannier.gguf.header import Tensor

_WKV_STAGES = {"rwkv6": 41, "rwkv6qwen2": 41, "rwkv7": 61, "arwkv7": 61}
"""Quarters of a row of the embeddings at once in the time mix: src/models/rwkv6-base.cpp
and rwkv7-base.cpp."""


class Widths(msgspec.Struct, frozen=True, kw_only=True):
    """Floats per token.

    `stage` is the widest stage of any layer beside what every stage has, `experts` the widest of
    the experts alone, `dense_stage` of all others. `gathered` are the rows of a token's experts,
    which go between RAM and device with the layer; `border` is what they cost where the layers in
    RAM end. `away` is what goes to and fro when attention is in RAM. `enters`: the embeddings are
    added up on the first device, not in RAM; `normed`: layers begin with a norm. `input` is a row
    of the embeddings as they enter, `held` what is kept from the first layer to the last, `chosen`
    the choices of an indexer, which are kept for every layer and come with scores of all cells.

    Without flash attention a layer has `heads` rows of scores, a sliding one `narrow_heads`, and
    `beside` them; `value` is the widest row of V. In a pipeline every copy also has `crossing` on
    devices but the first and `returning` on devices but the last; `piped` and `streams` are once
    on each, `turned` where K is quantized, and `mixed` with a stage after the first device.
    `scattered` is what logits and scores cannot reuse there; without a pipeline that is
    `scattered_first`, and `scattered_alone` where layers are in RAM; a stage is `loose` where the
    embeddings enter.
    `logits` is the width of an output row. `state` is in bytes for each slot, not per token.
    """

    stage: int
    dense_stage: int
    experts: int
    border: int
    gathered: int
    away: int
    enters: bool
    normed: bool
    input: int
    held: int
    chosen: int
    heads: int
    narrow_heads: int
    beside: int
    value: int
    crossing: int
    returning: int
    piped: int
    streams: int
    scattered: int
    scattered_first: int
    scattered_alone: int
    mixed: int
    loose: int
    turned: int
    logits: int
    state: int


def widths_of(shape: Shape, keys: Keys, tensors: Iterable[Tensor]) -> Widths:
    """The widths of a model from its matrices. Zero where nothing is known."""
    tensors = tuple(tensors)
    layers = matrices_of(shape, tensors)
    stage, experts = _stages(shape, keys, layers)
    crossing, returning = between(shape, layers)
    return Widths(
        stage=max(stage, experts) + (5 * shape.embd if shape.architecture in STREAMS else 0),
        dense_stage=stage,
        experts=experts,
        border=border(shape, layers),
        gathered=shape.embd * (shape.used + 2) if experts else 0,
        away=away(shape, layers),
        enters=not any(tensor.name.startswith("position_embd") for tensor in tensors),
        normed=any("attn_norm" in dims for dims in layers) or not any(layers),
        input=shape.embd * (1 + keys.count("n_deepstack_layers")),
        held=shape.per_layer_embd * shape.trunk,
        chosen=keys.count("attention.indexer.top_k") * shape.trunk if shape.index else 0,
        heads=_heads(shape, False),
        narrow_heads=_heads(shape, True),
        beside=_beside(shape, keys, layers),
        value=max(shape.v, default=0),
        crossing=crossing,
        returning=returning,
        piped=piped(shape, layers),
        streams=33 * shape.embd if shape.architecture in STREAMS else 0,
        scattered=scattered(shape, layers),
        scattered_first=scattered_first(shape, layers),
        scattered_alone=scattered_alone(shape, layers),
        mixed=4 * shape.embd if shape.architecture in WKV else 0,
        loose=13 * shape.embd // 4 if shape.architecture in BOTH else 0,
        turned=3 * shape.embd if any("shortconv.in_proj" in dims for dims in layers) else 0,
        logits=shape.embd if shape.architecture in NO_LOGITS else shape.vocab,
        state=4 * shape.state if any(shape.recurrent) else 0,
    )


def _stages(shape: Shape, keys: Keys, layers: Matrices) -> tuple[int, int]:
    """The widest stage but for experts, and the widest of experts. Equal layers count once."""
    stage = experts = 0
    seen: set[tuple[object, ...]] = set()
    for il, dims in enumerate(layers):
        kind = (shape.heads[il], shape.k[il], shape.v[il], *sorted(dims.items()))
        if kind not in seen:
            seen.add(kind)
            experts = max(experts, _experts(dims, shape))
            stage = max(stage, _mixer(dims, shape, il, keys), _feed(dims, shape))
    return stage, experts


def _heads(shape: Shape, slides: bool) -> int:
    """The most heads of a layer that attends, and slides or not."""
    return max(
        (
            shape.heads[il]
            for il in range(shape.trunk)
            if shape.sliding[il] is slides and (shape.cached[il] or not shape.recurrent[il])
        ),
        default=0,
    )


def _mixer(dims: Dims, shape: Shape, il: int, keys: Keys) -> int:
    """The attention or the recurrent mixer of a layer."""
    embd = shape.embd
    if shape.architecture in _WKV_STAGES:
        return embd * _WKV_STAGES[shape.architecture] // 4
    width = 0
    if "ssm_in" in dims:
        conv, inner = width_out(dims, "ssm_conv1d"), width_in(dims, "ssm_out")
        width = width_out(dims, "ssm_in") + conv + 2 * inner + embd // 2
    elif "ssm_conv1d" in dims:
        width = _delta(dims, shape)
    elif "shortconv.in_proj" in dims:
        width = 7 * embd
    if shape.recurrent[il] and not shape.cached[il]:
        return width
    return max(width, _attention(dims, shape, il, keys))


def _delta(dims: Dims, shape: Shape) -> int:
    """Gated delta nets: the projections, the convolution, and queries, keys and values of it."""
    conv = width_out(dims, "ssm_conv1d")
    inner = width_in(dims, "ssm_out")
    return 2 * conv + 3 * inner + shape.embd


def _attention(dims: Dims, shape: Shape, il: int, keys: Keys) -> int:
    heads, embd = shape.heads[il], shape.embd
    out = heads * shape.head_v
    if shape.compressed:
        lora = keys.count("attention.kv_lora_rank")
        query = width_out(dims, "attn_q_b") or width_out(dims, "attn_q")
        return query + heads * lora + heads * shape.head_k + embd
    if "attn_kv_b" in dims:
        query = width_out(dims, "attn_q_b") or width_out(dims, "attn_q")
        return 3 * query + width_out(dims, "attn_kv_b") + out + embd
    width = heads * (shape.k[il] // max(1, shape.k[il] // max(1, shape.head_k)))
    if "attn_qkv" in dims:
        return embd + width_out(dims, "attn_qkv") + width + shape.k[il]
    query = width_out(dims, "attn_q")
    return embd + query + width + 2 * shape.k[il] + shape.v[il] if query else 0


def _feed(dims: Dims, shape: Shape) -> int:
    """The feed-forward network, and the expert that all tokens share."""
    inner, shared = width_in(dims, "ffn_down"), width_in(dims, "ffn_down_shexp")
    gated = "ffn_gate" in dims or width_out(dims, "ffn_up") >= 2 * inner
    width = 3 * inner if gated else inner
    if "ffn_norm" not in dims and "post_attention_norm" not in dims:
        width += shape.embd  # beside the attention, whose output is kept
    return max(width if inner else 0, 3 * shared + 2 * shape.embd if shared else 0)


def _experts(dims: Dims, shape: Shape) -> int:
    """The experts of a layer: up, gate and their product, and each expert's way down beside them.

    The way down fits into what up and gate leave when it is no wider than both.
    """
    inner = width_in(dims, "ffn_down_exps") * shape.used
    if not inner:
        return 0
    down = width_out(dims, "ffn_down_exps") * shape.used
    others = 2 * inner if "ffn_gate_exps" in dims or "ffn_gate_up_exps" in dims else 0
    early = shape.embd if shape.architecture == "smallthinker" else 0  # routes before it attends
    return inner + others + (down if down > others else 0) + 2 * shape.experts + early


def _beside(shape: Shape, keys: Keys, layers: Matrices) -> int:
    """What is alive beside the scores: the queries, or what they gather."""
    widest = max(shape.heads, default=0)
    if shape.compressed:
        lora = keys.count("attention.kv_lora_rank")
        return widest * (shape.head_k + lora) + widest_query(layers) + shape.embd
    query = widest_query(layers)
    wide = 7 * shape.embd if keys.count("n_deepstack_layers") else 0
    if not any(shape.cached):
        wide += 4 * shape.embd
    if shape.per_layer_embd:
        wide += 3 * shape.embd
    fused = max((width_out(dims, "attn_qkv") for dims in layers), default=0)
    return 2 * max(query, widest * max(shape.head_k, shape.head_v)) + fused + wide
