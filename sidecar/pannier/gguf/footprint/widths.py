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

from pannier.gguf.footprint.architecture import BOTH, NO_LOGITS, SENDS_BACK
from pannier.gguf.footprint.keys import Keys
from pannier.gguf.footprint.shape import Shape
from pannier.gguf.header import Tensor

Dims = Mapping[str, tuple[int, ...]]

_WEIGHT = re.compile(r"(?:enc\.|dec\.)?blk\.(\d{1,3})\.(.+)\.weight")

_WKV_STAGES = {"rwkv6": 41, "rwkv6qwen2": 41, "rwkv7": 61, "arwkv7": 61}
"""Quarters of a row of the embeddings at once in the time mix: src/models/rwkv6-base.cpp
and rwkv7-base.cpp."""


_STREAMS = frozenset({"gemma3n"})
"""Carry several rows of a token from layer to layer at once: `n_altup`, src/models/gemma3n.cpp."""


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
    `scattered_alone` where layers are in RAM, and a stage is `loose` where the embeddings enter.
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
    scattered_alone: int
    mixed: int
    loose: int
    turned: int
    logits: int
    state: int


def widths_of(shape: Shape, keys: Keys, tensors: Iterable[Tensor]) -> Widths:
    """The widths of a model from its matrices. Zero where nothing is known."""
    layers: list[dict[str, tuple[int, ...]]] = [{} for _ in range(shape.layers)]
    placed = False
    for tensor in tensors:
        placed = placed or tensor.name.startswith("position_embd")
        found = _WEIGHT.fullmatch(tensor.name)
        if found and int(found[1]) < shape.trunk:
            layers[int(found[1])][found[2]] = tensor.dims
    stage = experts = 0
    rows = shape.embd * shape.used
    seen: set[tuple[object, ...]] = set()
    for il, dims in enumerate(layers):
        kind = (shape.heads[il], shape.k[il], shape.v[il], *sorted(dims.items()))
        if kind in seen:
            continue
        seen.add(kind)
        mixture = _experts(dims, shape)
        experts = max(experts, mixture)
        stage = max(stage, _mixer(dims, shape, il, keys), _feed(dims, shape))
    crossing, returning = _between(shape, layers)
    attends = [il for il in range(shape.trunk) if not shape.recurrent[il] or shape.cached[il]]
    return Widths(
        stage=max(stage, experts) + (5 * shape.embd if shape.architecture in _STREAMS else 0),
        dense_stage=stage,
        experts=experts,
        border=_border(shape, layers),
        gathered=rows if experts else 0,
        away=_away(shape, layers),
        enters=not placed,
        normed=any("attn_norm" in dims for dims in layers) or not any(layers),
        input=shape.embd * (1 + keys.count("n_deepstack_layers")),
        held=shape.per_layer_embd * shape.trunk,
        chosen=keys.count("attention.indexer.top_k") * shape.trunk if shape.index else 0,
        heads=max((shape.heads[il] for il in attends if not shape.sliding[il]), default=0),
        narrow_heads=max((shape.heads[il] for il in attends if shape.sliding[il]), default=0),
        beside=_beside(shape, keys, layers),
        value=max(shape.v, default=0),
        crossing=crossing,
        returning=returning,
        piped=_piped(shape, layers),
        streams=33 * shape.embd if shape.architecture in _STREAMS else 0,
        scattered=_scattered(shape, layers),
        scattered_alone=_scattered_alone(shape, layers),
        mixed=4 * shape.embd if shape.architecture in _WKV_STAGES else 0,
        loose=13 * shape.embd // 4 if shape.architecture in BOTH else 0,
        turned=3 * shape.embd if any("shortconv.in_proj" in dims for dims in layers) else 0,
        logits=shape.embd if shape.architecture in NO_LOGITS else shape.vocab,
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
        return embd * _WKV_STAGES[shape.architecture] // 4
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
    width = 3 * inner if gated else inner
    if "ffn_norm" not in dims and "post_attention_norm" not in dims:
        width += shape.embd  # beside the attention, whose output is kept
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
    early = shape.embd if shape.architecture == "smallthinker" else 0  # routes before it attends
    return inner + others + (down if down > others else 0) + 2 * shape.experts + early


def _beside(shape: Shape, keys: Keys, layers: list[dict[str, tuple[int, ...]]]) -> int:
    """What is alive beside the scores: the queries, or what they gather."""
    widest = max(shape.heads, default=0)
    if shape.compressed:
        lora = keys.count("attention.kv_lora_rank")
        return widest * (shape.head_k + lora) + _widest_query(layers) + shape.embd
    query = _widest_query(layers)
    wide = 7 * shape.embd if keys.count("n_deepstack_layers") else 0
    fused = max((_out(dims, "attn_qkv") for dims in layers), default=0)
    return 2 * max(query, widest * max(shape.head_k, shape.head_v)) + fused + wide


def _widest_query(layers: list[dict[str, tuple[int, ...]]]) -> int:
    return max((_out(dims, "attn_q_b") or _out(dims, "attn_q") for dims in layers), default=0)


def _between(shape: Shape, layers: list[dict[str, tuple[int, ...]]]) -> tuple[int, int]:
    """What recurrent layers send to the next device, and back: parts of the layer at the border."""
    embd = shape.embd
    if shape.architecture in _WKV_STAGES:
        return 3 * embd // 2, embd
    if not any("ssm_in" in dims for dims in layers):
        return 0, 0
    if shape.architecture not in SENDS_BACK:
        return embd // 4, embd // 4
    return (
        max(_out(dims, "ssm_in") for dims in layers),
        max(_in(dims, "ssm_out") for dims in layers),
    )


def _piped(shape: Shape, layers: list[dict[str, tuple[int, ...]]]) -> int:
    """What a pipeline holds once more: queries wider than the row itself, and MLA's parts."""
    if shape.compressed:
        return 9 * shape.embd // 4
    return max(0, _widest_query(layers) - shape.embd)


def _scattered(shape: Shape, layers: list[dict[str, tuple[int, ...]]]) -> int:
    """Where experts are beside a shared one, rows lie high in the buffer and split what is free."""
    if shape.per_layer_embd or shape.architecture in _STREAMS:
        return 47 * shape.embd
    query = _widest_query(layers)
    if any("ffn_down_shexp" in dims for dims in layers) and _fits(shape, layers):
        return 7 * shape.embd
    return query if query < shape.embd else 0


def _fits(shape: Shape, layers: list[dict[str, tuple[int, ...]]]) -> bool:
    """Whether the experts' ways down fit into what their ups and gates leave."""
    inner = max((_in(dims, "ffn_down_exps") for dims in layers), default=0)
    return shape.embd <= 2 * inner


def _scattered_alone(shape: Shape, layers: list[dict[str, tuple[int, ...]]]) -> int:
    """The same without a pipeline, where the first layers are in RAM."""
    if shape.per_layer_embd or not any("ffn_down_shexp" in dims for dims in layers):
        return 0
    return (7 if _fits(shape, layers) else 9) * shape.embd


def _border(shape: Shape, layers: list[dict[str, tuple[int, ...]]]) -> int:
    """Experts' rows of the last layer in RAM, which come to the device one by one.

    With a shared expert they are summed up before, and with few experts they fit into what is free.
    """
    inner = max((_in(dims, "ffn_down_exps") for dims in layers), default=0)
    shared = any("ffn_down_shexp" in dims for dims in layers)
    if not inner or shared:
        return 0
    if shape.used <= 2:
        return 3 * shape.embd if any("ssm_in" in dims for dims in layers) else 0
    if shape.used < 8:
        return 2 * shape.embd
    return (shape.used + 2 if _fits(shape, layers) else 3) * shape.embd


def _away(shape: Shape, layers: list[dict[str, tuple[int, ...]]]) -> int:
    """Queries, keys and values of some layers, on their way to a cache in RAM; fitted."""
    query = max(_widest_query(layers), max(shape.heads, default=0) * shape.head_k)
    cache = max(shape.k, default=0) + max(shape.v, default=0)
    return 10 * cache + 3 * query + 7 * shape.embd if cache else 0
