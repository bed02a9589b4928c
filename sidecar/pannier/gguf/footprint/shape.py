"""The dimensions of a model: its hyper-parameters as llama.cpp takes them from the metadata.

The defaults are those of `llama_model_base::load_hparams` (src/llama-model.cpp, b11434): as many KV
heads as heads, heads of width embedding / heads, and so on, with what an architecture adds to that
from `architecture`. Everything that differs between layers is a tuple, one element per layer.

Must not: look at tensors, or say how many bytes anything takes.
"""

import msgspec

from pannier.gguf.footprint.architecture import (
    BOTH,
    BY_INTERVAL,
    HYBRID,
    INDEXED,
    KEEPS_MTP_CACHE,
    MTP_ASIDE,
    NO_CACHE,
    RECURRENT,
    SHARED_KV_FROM,
    SLIDING,
    SLIDING_WHERE_IT_ATTENDS,
    Sliding,
)
from pannier.gguf.footprint.keys import Keys

MOST_LAYERS = 512
"""LLAMA_MAX_LAYERS, src/llama-hparams.h."""

_LATENT = ("attention.key_length_mla", "attention.value_length_mla")

_UNSAID = 32_000


class Kind(msgspec.Struct, frozen=True):
    """What layers of one kind keep: rows of `k` and `v`, for a window if it slides; a state."""

    k: int
    v: int
    slides: bool
    cached: bool
    state: bool


class Shape(msgspec.Struct, frozen=True, kw_only=True):
    """Counts and widths, in elements.

    `layers` are all blocks of the file, `trunk` those before the MTP layers. `k` and `v` are the
    widths of a row of the KV cache of each layer as it attends, whether or not the layer has a
    cache (`cached`) or a state (`recurrent`); `kinds` are all the different layers, and `kind_of`
    the place of each layer among them. `state` is the elements of one layer's
    state of one slot, of both kinds together. `window` 0: nothing slides.
    """

    architecture: str
    layers: int
    trunk: int
    embd: int
    vocab: int
    trained: int
    heads: tuple[int, ...]
    kv_heads: tuple[int, ...]
    head_k: int
    head_v: int
    k: tuple[int, ...]
    v: tuple[int, ...]
    sliding: tuple[bool, ...]
    window: int
    cached: tuple[bool, ...]
    recurrent: tuple[bool, ...]
    kinds: tuple[Kind, ...]
    kind_of: tuple[int, ...]
    index: int
    state: int
    compressed: bool
    shared_from: int | None
    experts: int
    used: int
    per_layer_embd: int
    causal: bool
    pooled: int


def shape_of(keys: Keys) -> Shape:
    """The dimensions in `keys`. What is missing or unusable is zero, or llama.cpp's default."""
    name = keys.architecture
    layers = min(keys.count("block_count"), MOST_LAYERS)
    trunk = layers - min(keys.count("nextn_predict_layers"), layers)
    embd = keys.count("embedding_length")
    heads = keys.per_layer("attention.head_count", layers)
    kv_heads = heads
    if keys.has("attention.head_count_kv"):
        kv_heads = keys.per_layer("attention.head_count_kv", layers)
    most_heads = max(heads, default=0)
    width = embd // (heads[0] or most_heads) if most_heads else 0
    head_k = keys.count("attention.key_length", width)
    head_v = keys.count("attention.value_length", width)
    recurrent = _recurrent(keys, name, layers, trunk, kv_heads)
    window, sliding = _sliding(keys, name, layers, trunk, recurrent)
    cached = _cached(keys, name, layers, trunk, recurrent)
    k = _rows(keys, "attention.key_length", head_k, kv_heads, sliding)
    v = _rows(keys, "attention.value_length", head_v, kv_heads, sliding)
    kinds, kind_of = kinds_of(k, v, sliding, cached, recurrent, trunk)
    return Shape(
        architecture=name,
        layers=layers,
        trunk=trunk,
        embd=embd,
        vocab=keys.length("tokenizer.ggml.tokens") or keys.count("vocab_size", _UNSAID),
        trained=keys.count("context_length"),
        heads=heads,
        kv_heads=kv_heads,
        head_k=head_k,
        head_v=head_v,
        k=k,
        v=v,
        sliding=sliding,
        window=window if any(sliding) else 0,
        cached=cached,
        recurrent=recurrent,
        kinds=kinds,
        kind_of=kind_of,
        index=keys.count("attention.indexer.key_length") if name in INDEXED else 0,
        state=_state(keys, embd, most_heads, head_k),
        compressed=min(map(keys.count, _LATENT)) > 0,
        shared_from=_shared_from(keys, name, layers),
        experts=keys.count("expert_count"),
        used=keys.count("expert_used_count"),
        per_layer_embd=keys.count("embedding_length_per_layer_input"),
        causal=keys.flag("attention.causal", name not in NO_CACHE),
        pooled=keys.count("pooling_type"),
    )


def _rows(
    keys: Keys, name: str, head: int, kv_heads: tuple[int, ...], sliding: tuple[bool, ...]
) -> tuple[int, ...]:
    """The width of a row of K or V of each layer."""
    narrow = keys.count(f"{name}_swa", head)
    return tuple(
        count * (narrow if slides else head)
        for count, slides in zip(kv_heads, sliding, strict=True)
    )


def kinds_of(
    k: tuple[int, ...],
    v: tuple[int, ...],
    sliding: tuple[bool, ...],
    cached: tuple[bool, ...],
    recurrent: tuple[bool, ...],
    trunk: int,
) -> tuple[tuple[Kind, ...], tuple[int, ...]]:
    """The different layers there are, and which of them each layer is. MTP layers have no state."""
    places: dict[Kind, int] = {}
    listed = []
    for il, widths in enumerate(zip(k, v, sliding, cached, strict=True)):
        kind = Kind(*widths, state=recurrent[il] and il < trunk)
        listed.append(places.setdefault(kind, len(places)))
    return tuple(places), tuple(listed)


def _recurrent(
    keys: Keys, name: str, layers: int, trunk: int, kv_heads: tuple[int, ...]
) -> tuple[bool, ...]:
    if name in RECURRENT or name in BOTH:
        return (True,) * layers
    if name not in HYBRID:
        return (False,) * layers
    if name in BY_INTERVAL:
        listed = keys.array("attention.recurrent_layers")
        if listed is not None:
            return tuple(bool(value) for value in (*listed, *(0,) * layers)[:layers])
        every = keys.count("full_attention_interval", BY_INTERVAL[name]) or layers
        return tuple(il < trunk and (il + 1) % every != 0 for il in range(layers))
    idle = keys.per_layer("feed_forward_length", layers)
    feeds = name.startswith("nemotron_h")
    return tuple(
        il < trunk and kv_heads[il] == 0 and not (feeds and idle[il]) for il in range(layers)
    )


def _sliding(
    keys: Keys, name: str, layers: int, trunk: int, recurrent: tuple[bool, ...]
) -> tuple[int, tuple[bool, ...]]:
    """The window in tokens, and which layers have it. Shape: one bool per layer."""
    window = keys.count("attention.sliding_window")
    nowhere = (False,) * layers
    if name in SLIDING_WHERE_IT_ATTENDS:
        return (window, tuple(not state for state in recurrent)) if window else (0, nowhere)
    rule = SLIDING.get(name)
    if rule is None or not _slides(rule, keys.has("attention.sliding_window"), window, trunk):
        return 0, nowhere
    if rule.fixed or not window:
        window = rule.window
    listed = keys.array("attention.sliding_window_pattern")
    if listed is not None:
        return window, tuple(bool(value) for value in (*listed, *(0,) * layers)[:layers])
    period = keys.count("attention.sliding_window_pattern", rule.period)
    if rule.period == 0:
        return window, nowhere
    return window, tuple(il < trunk and _is_sliding(il, period, rule) for il in range(layers))


def _slides(rule: Sliding, said: bool, window: int, trunk: int) -> bool:
    if rule.when == "always":
        return True
    if rule.when == "unless_zero":
        return not said or window > 0
    if rule.when == "64_layers":
        return trunk == 64
    return window > 0


def _is_sliding(il: int, period: int, rule: Sliding) -> bool:
    """`llama_hparams::set_swa_pattern`, src/llama-hparams.cpp."""
    if period == 0:
        return True
    return il % period != 0 if rule.dense_first else il % period < period - 1


def _cached(
    keys: Keys, name: str, layers: int, trunk: int, recurrent: tuple[bool, ...]
) -> tuple[bool, ...]:
    """Which layers own a KV cache: the filters of `create_memory`, src/llama-model.cpp."""
    if name in NO_CACHE or name in RECURRENT:
        return (False,) * layers
    if name in BOTH:
        return (True,) * layers
    shared = _shared_from(keys, name, layers)
    first = layers if shared is None else shared
    kept = layers if name in KEEPS_MTP_CACHE or trunk == 0 else trunk
    fed = keys.per_layer("feed_forward_length", layers)
    feeds = name.startswith("nemotron_h")
    return tuple(
        il < first and il < kept and not recurrent[il] and not (feeds and fed[il])
        for il in range(layers)
    )


def _shared_from(keys: Keys, name: str, layers: int) -> int | None:
    shared = keys.count("attention.shared_kv_layers")
    if shared:
        return max(0, layers - shared)
    known = SHARED_KV_FROM.get(name)
    return known if known is not None and known < layers else None


def _state(keys: Keys, embd: int, heads: int, head_k: int) -> int:
    """`n_embd_r` plus `n_embd_s`, src/llama-hparams.cpp: the elements of one recurrent state."""
    wkv = keys.count("wkv.head_size")
    if wkv:
        return keys.count("token_shift_count", 2) * embd + embd * wkv
    conv = keys.count("ssm.conv_kernel")
    if keys.has("shortconv.l_cache"):
        return embd * max(0, keys.count("shortconv.l_cache") - 1)
    kda = keys.count("kda.head_dim")
    if kda:
        return 3 * (conv - 1 if conv else 3) * heads * kda + kda * kda * heads
    if keys.architecture == "minimax-01":
        return head_k * head_k * heads
    inner, size = keys.count("ssm.inner_size"), keys.count("ssm.state_size")
    rolling = inner + 2 * keys.count("ssm.group_count") * size
    return max(0, conv - 1) * rolling + size * inner


def aside(shape: Shape) -> range:
    """The MTP layers that stay in the file unless they are asked for."""
    return range(shape.trunk if shape.architecture in MTP_ASIDE else shape.layers, shape.layers)
