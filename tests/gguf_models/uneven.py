"""Dense decoders whose layers differ from each other, or that keep less than their layers ask.

Must not: hold anything with experts or states.
"""

from functools import partial
from typing import Any

from tests.gguf_models.draft import Cut, Draft, size
from tests.gguf_writer import GgufWriter


def gemma4(
    cut: Cut,
    *,
    swa_head: int,
    swa: int,
    shared: int,
    per_layer: int,
    full_kv: int | None = None,
    kv: int,
    vocabulary: int,
    layers: int,
    **shape: Any,
) -> GgufWriter:
    """Windowed layers with smaller heads, five in six; some layers share keys and values."""
    windowed = [layer % 6 != 5 for layer in range(layers)]
    each = [kv if local else full_kv or kv for local in windowed]
    draft = Draft(cut, "gemma4", layers=layers, kv=each, **shape)
    if cut.layers:
        shared = min(shared, 2)
    draft.arch_meta(
        rope__freq_base_swa=1e4,
        attention__key_length_swa=swa_head,
        attention__value_length_swa=swa_head,
        attention__sliding_window=swa,
        attention__sliding_window_pattern=windowed[: draft.layers],
        attention__shared_kv_layers=shared,
        embedding_length_per_layer_input=per_layer,
        rope__dimension_count=draft.head,
        rope__dimension_count_swa=swa_head,
        final_logit_softcapping=30.0,
    )
    draft.embeddings(vocabulary, tied=True)
    if per_layer:
        _per_layer_inputs(draft, per_layer, vocabulary)
    draft.rope_frequencies()
    for layer in range(draft.layers):
        head = swa_head if windowed[layer] else draft.head
        owned = layer < draft.layers - shared
        draft.norms(layer, "attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm")
        draft.attention(layer, head=head, norm="head", shared=not owned, mixed=False)
        draft.feed(layer)
        draft.block(layer, "layer_output_scale.weight", 1)
        if per_layer:
            _per_layer_input(draft, layer, per_layer)
    return draft


def _per_layer_inputs(draft: Draft, size: int, vocabulary: int) -> None:
    """Embeddings that every layer gets anew: large, read row by row, kept on the host."""
    every = size * draft.layers
    draft.weight("per_layer_token_embd.weight", every, vocabulary, kind="Q5_K")
    draft.weight("per_layer_model_proj.weight", draft.width, every, kind="F16")
    draft.weight("per_layer_proj_norm.weight", size)


def _per_layer_input(draft: Draft, layer: int, size: int) -> None:
    draft.block(layer, "inp_gate.weight", draft.width, size)
    draft.block(layer, "proj.weight", size, draft.width)
    draft.norms(layer, "post_norm")


def gemma3n(cut: Cut, *, vocabulary: int, per_layer: int, **shape: Any) -> GgufWriter:
    """Four streams of activations (altup), per-layer inputs, and layers without keys and values."""
    streams, rank = 4, 64
    draft = Draft(cut, "gemma3n", **shape)
    draft.arch_meta(
        attention__sliding_window=512,
        attention__sliding_window_pattern=[layer % 5 != 4 for layer in range(draft.layers)],
        attention__shared_kv_layers=draft.layers - 20,
        embedding_length_per_layer_input=per_layer,
        altup__num_inputs=streams,
    )
    draft.embeddings(vocabulary, tied=True)
    for name in ("altup_proj", "altup_unembd_proj"):
        draft.weight(f"{name}.weight", draft.width, draft.width, streams - 1, kind="F16")
    _per_layer_inputs(draft, per_layer, vocabulary)
    for layer in range(draft.layers):
        draft.norms(layer, "attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm")
        draft.attention(layer, norm="head")
        draft.feed(layer)
        _per_layer_input(draft, layer, per_layer)
        draft.block(layer, "altup_correct_coef.weight", streams, streams)
        draft.norms(layer, "altup_correct_scale", "altup_router_norm", "laurel_post_norm")
        draft.block(layer, "altup_predict_coef.weight", streams, streams * streams)
        draft.block(layer, "altup_router.weight", draft.width, streams)
        draft.block(layer, "laurel_l.weight", draft.width, rank)
        draft.block(layer, "laurel_r.weight", rank, draft.width)
    return draft


def minicpm3(cut: Cut, *, vocabulary: int, **shape: Any) -> GgufWriter:
    """Latent attention that keeps whole keys and values for each head."""
    nope, rope, value, q_rank, kv_rank = 64, 32, 64, 768, 256
    draft = Draft(cut, "minicpm3", **shape)
    heads = draft.at(draft.heads, 0)
    draft.arch_meta(
        attention__q_lora_rank=q_rank,
        attention__kv_lora_rank=kv_rank,
        attention__key_length=nope + rope,
        attention__value_length=value,
        rope__dimension_count=rope,
    )
    draft.embeddings(vocabulary, tied=True)
    draft.rope_frequencies("rope_factors_long", "rope_factors_short", size=rope)
    for layer in range(draft.layers):
        draft.norms(layer, "attn_norm", "ffn_norm")
        draft.norms(layer, "attn_q_a_norm", size=q_rank)
        draft.norms(layer, "attn_kv_a_norm", size=kv_rank)
        draft.block(layer, "attn_q_a.weight", draft.width, q_rank)
        draft.block(layer, "attn_q_b.weight", q_rank, heads * (nope + rope))
        draft.block(layer, "attn_kv_a_mqa.weight", draft.width, kv_rank + rope)
        draft.block(layer, "attn_kv_b.weight", kv_rank, heads * (nope + value))
        draft.block(layer, "attn_output.weight", heads * value, draft.width)
        draft.feed(layer)
    return draft


def deci(cut: Cut, *, vocabulary: int, **shape: Any) -> GgufWriter:
    """Layers of which some have no attention and each its own width inside."""
    draft = Draft(cut, "deci", **shape)
    draft.arch_meta(rope__dimension_count=draft.head)
    draft.embeddings(vocabulary, tied=False)
    draft.rope_frequencies()
    for layer in range(draft.layers):
        if draft.at(draft.kv, layer):
            draft.norms(layer, "attn_norm")
            draft.attention(layer)
        draft.norms(layer, "ffn_norm")
        draft.feed(layer)
    return draft


def openelm(cut: Cut, *, vocabulary: int, **shape: Any) -> GgufWriter:
    """Heads and inner widths that grow from layer to layer."""
    draft = Draft(cut, "openelm", **shape)
    draft.arch_meta(rope__dimension_count=draft.head)
    draft.embeddings(vocabulary, tied=True)
    for layer in range(draft.layers):
        draft.norms(layer, "attn_norm", "ffn_norm")
        draft.attention(layer, fused=True, norm="head")
        draft.feed(layer)
    return draft


_OPENELM = [12] * 5 + [16] * 13 + [20] * 12 + [24] * 6
_NAS_KV = [8 if layer < 42 or layer > 70 or layer % 7 == 0 else 0 for layer in range(80)]

UNEVEN = {
    "gemma3n-e4b": partial(
        gemma3n, **size(35, 2048, 16384, 8, 2, 262400, 32768), head=256, per_layer=256
    ),
    "gemma4-e4b": partial(
        gemma4,
        **size(42, 2560, 10240, 8, 2, 262144, 131072),
        head=512,
        swa_head=256,
        swa=512,
        shared=18,
        per_layer=256,
    ),
    "gemma4-31b": partial(
        gemma4,
        **size(60, 5376, 21504, 32, 16, 262144, 262144),
        full_kv=4,
        head=512,
        swa_head=256,
        swa=1024,
        shared=0,
        per_layer=0,
    ),
    "minicpm3-4b": partial(minicpm3, **size(62, 2560, 6400, 40, 40, 73448, 32768)),
    "nemotron-nas-49b": partial(
        deci,
        layers=80,
        width=8192,
        inner=[28672 if kv else 14336 for kv in _NAS_KV],
        heads=[64 if kv else 0 for kv in _NAS_KV],
        kv=_NAS_KV,
        vocabulary=128256,
        window=131072,
    ),
    "openelm-3b": partial(
        openelm,
        layers=36,
        width=3072,
        inner=[256 * round((1.5 + 10.5 * layer / 35) * 1024 / 256) for layer in range(36)],
        heads=_OPENELM,
        kv=[heads // 4 for heads in _OPENELM],
        head=128,
        vocabulary=32000,
        window=2048,
    ),
}
