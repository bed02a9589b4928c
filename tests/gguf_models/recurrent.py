"""Decoders with states instead of keys and values, in all layers or in most.

Must not: hold anything that keeps keys and values alone.
"""

from functools import partial
from typing import Any

from tests.gguf_models.draft import Cut, Draft, size
from tests.gguf_models.experts import latent_keys, latent_queries, next_token
from tests.gguf_models.states import (
    delta_mixer,
    kda_mixer,
    mamba2_mixer,
    mamba_mixer,
    rwkv6_mixer,
    rwkv7_mixer,
    state_meta,
)
from tests.gguf_writer import GgufWriter


def mamba(
    cut: Cut, *, vocabulary: int, inner: int, state: int, rank: int, **shape: Any
) -> GgufWriter:
    """States alone."""
    draft = Draft(cut, "mamba", inner=0, **shape)
    state_meta(draft, inner=inner, state=state, rank=rank)
    draft.embeddings(vocabulary, tied=True)
    for layer in range(draft.layers):
        draft.norms(layer, "attn_norm")
        mamba_mixer(draft, layer, inner, state, rank)
    return draft


def mamba2(
    cut: Cut, *, vocabulary: int, inner: int, state: int, groups: int, rank: int, **shape: Any
) -> GgufWriter:
    """States alone, of the second kind."""
    draft = Draft(cut, "mamba2", inner=0, **shape)
    state_meta(draft, inner=inner, state=state, rank=rank, groups=groups)
    draft.embeddings(vocabulary, tied=True)
    for layer in range(draft.layers):
        draft.norms(layer, "attn_norm")
        mamba2_mixer(draft, layer, inner=inner, state=state, groups=groups, heads=rank)
    return draft


def jamba(cut: Cut, *, vocabulary: int, **shape: Any) -> GgufWriter:
    """Attention in one layer of eight, experts in every second."""
    layers = shape["layers"]
    shape["kv"] = [shape["kv"] if layer % 8 == 4 else 0 for layer in range(layers)]
    draft = Draft(cut, "jamba", **shape)
    state, rank, inner = 16, draft.width // 16, 2 * draft.width
    state_meta(draft, inner=inner, state=state, rank=rank)
    draft.expert_meta(16, 2)
    draft.embeddings(vocabulary, tied=False)
    for layer in range(draft.layers):
        draft.norms(layer, "attn_norm", "ffn_norm")
        if draft.at(draft.kv, layer):
            draft.attention(layer)
        else:
            mamba_mixer(draft, layer, inner, state, rank, normed=True)
        if layer % 2:
            draft.experts(layer, 16, draft.at(draft.inner, layer))
        else:
            draft.feed(layer)
    return draft


def falcon_h1(
    cut: Cut, *, vocabulary: int, state: int, groups: int, rank: int, ssm: int, **shape: Any
) -> GgufWriter:
    """Attention and states side by side in every layer."""
    draft = Draft(cut, "falcon-h1", **shape)
    state_meta(draft, inner=ssm, state=state, rank=rank, groups=groups)
    draft.arch_meta(rope__dimension_count=draft.head)
    draft.embeddings(vocabulary, tied=False)
    for layer in range(draft.layers):
        draft.norms(layer, "attn_norm")
        draft.block(layer, "ffn_norm", draft.width)
        draft.attention(layer)
        mamba2_mixer(draft, layer, inner=ssm, state=state, groups=groups, heads=rank)
        draft.feed(layer)
    return draft


def nemotron_h(
    cut: Cut, *, vocabulary: int, pattern: str, heads: int, kv: int, inner: int, **shape: Any
) -> GgufWriter:
    """Each layer is one thing: states (M), attention (*) or feed-forward (-)."""
    ssm, state, groups, rank = 10240, 128, 8, 128
    draft = Draft(
        cut,
        "nemotron_h",
        layers=len(pattern),
        heads=heads,
        kv=[kv if kind == "*" else 0 for kind in pattern],
        inner=[inner if kind == "-" else 0 for kind in pattern],
        epsilon="layer_norm_epsilon",
        **shape,
    )
    draft.arch_meta(attention__layer_norm_rms_epsilon=1e-5)
    state_meta(draft, inner=ssm, state=state, rank=rank, groups=groups)
    draft.embeddings(vocabulary, tied=False)
    for layer, kind in enumerate(pattern[: draft.layers]):
        draft.norms(layer, "attn_norm")
        match kind:
            case "M":
                mamba2_mixer(draft, layer, inner=ssm, state=state, groups=groups, heads=rank)
            case "*":
                draft.attention(layer)
            case _:
                draft.feed(layer, gate=None)
    return draft


def granite_hybrid(
    cut: Cut, *, vocabulary: int, attention: tuple[int, ...], kv: int, **shape: Any
) -> GgufWriter:
    """Attention in a few layers, experts and a shared expert in all."""
    layers, count, shared = shape["layers"], 64, 1024
    if cut.layers:
        attention = (1,)
    each = [kv if layer in attention else 0 for layer in range(layers)]
    draft = Draft(cut, "granitehybrid", kv=each, **shape)
    inner, state, rank = 2 * draft.width, 128, 48
    draft.expert_meta(count, 6, expert_shared_feed_forward_length=shared)
    state_meta(draft, inner=inner, state=state, rank=rank, groups=1)
    draft.arch_meta(
        attention__scale=0.0078125,
        embedding_scale=12.0,
        residual_scale=0.22,
        logit_scale=6.0,
        rope__dimension_count=draft.head,
    )
    draft.embeddings(vocabulary, tied=True)
    for layer in range(draft.layers):
        draft.norms(layer, "attn_norm", "ffn_norm")
        if each[layer]:
            draft.attention(layer)
        else:
            mamba2_mixer(draft, layer, inner=inner, state=state, groups=1, heads=rank)
        draft.experts(layer, count, draft.at(draft.inner, layer))
        draft.shared_expert(layer, shared)
    return draft


def delta(
    cut: Cut,
    arch: str,
    *,
    vocabulary: int,
    value_heads: int,
    key_heads: int,
    rotated: int,
    experts: int = 0,
    expert: int = 512,
    next_tokens: int = 0,
    sections: bool = True,
    **shape: Any,
) -> GgufWriter:
    """Gated delta nets in three layers of four, gated attention in the fourth."""
    state = 128
    shape["layers"] += next_tokens
    draft = Draft(cut, arch, **shape)
    state_meta(
        draft, inner=value_heads * state, state=state, rank=value_heads, groups=key_heads, conv=4
    )
    draft.arch_meta(rope__dimension_count=rotated)
    if sections:
        draft.arch_meta(rope__dimension_sections=[11, 11, 10, 0])
    if experts:
        used = 10 if experts == 512 else 8
        draft.expert_meta(experts, used, expert, expert_shared_feed_forward_length=expert)
    if next_tokens:
        draft.arch_meta(nextn_predict_layers=next_tokens)
    draft.embeddings(vocabulary, tied=False)
    key, value = key_heads * state, value_heads * state
    for layer in range(draft.layers):
        ahead = next_tokens > 0 and layer >= draft.layers - next_tokens
        draft.norms(layer, "attn_norm", "post_attention_norm")
        if ahead or layer % 4 == 3:
            draft.attention(layer, norm="head", gated=True)
        else:
            delta_mixer(draft, layer, key, value, value_heads, state, fused=arch == "qwen3next")
        if experts:
            draft.experts(layer, experts, expert)
            draft.shared_expert(layer, expert, router=True)
        else:
            draft.feed(layer)
        if ahead:
            next_token(draft, layer)
    return draft


def kimi_linear(cut: Cut, *, vocabulary: int, heads: int, **shape: Any) -> GgufWriter:
    """Delta attention with a decay for each channel, latent attention in every fourth layer."""
    layers, head, rank, nope, rope = shape["layers"], 128, 512, 128, 64
    del shape["kv"]
    full = [layer % 4 == 3 or layer == layers - 1 for layer in range(layers)]
    draft = Draft(
        cut, "kimi-linear", heads=heads, kv=[1 if whole else 0 for whole in full], **shape
    )
    draft.expert_meta(256, 8, 1024, expert_shared_count=1, leading_dense_block_count=1)
    draft.arch_meta(
        expert_gating_func=2,
        attention__kv_lora_rank=rank,
        attention__key_length=rank + rope,
        attention__value_length=rank,
        attention__key_length_mla=nope + rope,
        attention__value_length_mla=head,
        rope__dimension_count=rope,
        ssm__conv_kernel=4,
        kda__head_dim=head,
    )
    draft.embeddings(vocabulary, tied=False)
    for layer in range(draft.layers):
        draft.norms(layer, "attn_norm", "ffn_norm")
        if full[layer]:
            draft.norms(layer, "attn_kv_a_norm", size=rank)
            latent_queries(draft, layer, heads * (nope + rope), 0)
            latent_keys(draft, layer, heads, rank, nope, rope, head, split=True)
        else:
            kda_mixer(draft, layer, head, heads)
        if layer == 0:
            draft.feed(layer)
        else:
            draft.experts(layer, 256, 1024, router_bias=True)
            draft.shared_expert(layer, 1024)
    return draft


def short_convolution(
    cut: Cut,
    arch: str,
    *,
    vocabulary: int,
    attention: tuple[int, ...],
    kv: int,
    experts: int = 0,
    **shape: Any,
) -> GgufWriter:
    """Convolutions over three tokens in most layers, attention in some."""
    layers, width, cached, lead = shape["layers"], shape["width"], 3, 2
    if cut.layers:
        attention = (1,)
    each = [kv if layer in attention else 0 for layer in range(layers)]
    draft = Draft(cut, arch, kv=each, **shape)
    draft.arch_meta(shortconv__l_cache=cached)
    if experts:
        draft.expert_meta(experts, 4, 1792, leading_dense_block_count=lead, expert_gating_func=2)
    draft.tokens(vocabulary)
    draft.weight("token_embd.weight", width, vocabulary, kind="Q6_K")
    draft.weight("token_embd_norm.weight", width)
    for layer in range(draft.layers):
        draft.norms(layer, "attn_norm", "ffn_norm")
        if each[layer]:
            draft.attention(layer, norm="head")
        else:
            draft.block(layer, "shortconv.conv.weight", cached, width, kind="F32")
            draft.block(layer, "shortconv.in_proj.weight", width, 3 * width)
            draft.block(layer, "shortconv.out_proj.weight", width, width)
        if experts and layer >= lead:
            draft.experts(layer, experts, 1792, router_bias=True)
        else:
            draft.feed(layer)
    return draft


def rwkv(cut: Cut, arch: str, *, vocabulary: int, inner: int, **shape: Any) -> GgufWriter:
    """Weighted keys and values in a state for each head, the sixth and the seventh version."""
    draft = Draft(cut, arch, inner=inner, epsilon="layer_norm_epsilon", **shape)
    draft.arch_meta(attention__head_count=0, wkv__head_size=64)
    draft.tokens(vocabulary)
    width = draft.width
    draft.weight("token_embd.weight", width, vocabulary, kind="Q4_K")
    for name in ("token_embd_norm", "output_norm"):
        draft.weight(f"{name}.weight", width)
        draft.weight(f"{name}.bias", width)
    draft.weight("output.weight", width, vocabulary, kind="Q6_K")
    mixer = rwkv6_mixer if arch == "rwkv6" else rwkv7_mixer
    if arch == "rwkv6":
        draft.arch_meta(time_mix_extra_dim=64, time_decay_extra_dim=128)
    else:
        draft.arch_meta(
            attention__decay_lora_rank=96,
            attention__iclr_lora_rank=96,
            attention__value_residual_mix_lora_rank=64,
            attention__gate_lora_rank=320,
        )
    for layer in range(draft.layers):
        draft.norms(layer, "attn_norm", "attn_norm_2", "time_mix_ln", bias=True)
        mixer(draft, layer)
        for name in ("key", "value", "receptance", "output"):
            draft.block(layer, f"time_mix_{name}.weight", width, width)
        draft.block(layer, "channel_mix_lerp_k.weight", width, 1, 1)
        draft.block(layer, "channel_mix_key.weight", width, inner)
        draft.block(layer, "channel_mix_value.weight", inner, width)
    return draft


RECURRENT = {
    "mamba-28b": partial(
        mamba,
        layers=64,
        width=2560,
        window=1048576,
        vocabulary=50280,
        inner=5120,
        state=16,
        rank=160,
    ),
    "mamba2-27b": partial(
        mamba2,
        layers=64,
        width=2560,
        window=1048576,
        vocabulary=50288,
        inner=5120,
        state=128,
        groups=1,
        rank=80,
    ),
    "jamba-mini-52b": partial(jamba, **size(32, 4096, 14336, 32, 8, 65536, 262144)),
    "falcon-h1-7b": partial(
        falcon_h1,
        **size(44, 3072, 12288, 12, 2, 130048, 262144),
        head=128,
        ssm=3072,
        state=256,
        groups=1,
        rank=24,
    ),
    "nemotron-nano-9b-v2": partial(
        nemotron_h,
        pattern="M-M-M-MM-M-M-M*-M-M-M*-M-M-M-M*-M-M-M-M*-M-MM-M-M-M-M-M-",
        width=4480,
        inner=15680,
        heads=40,
        kv=8,
        head=128,
        vocabulary=131072,
        window=131072,
    ),
    "granite4-h-tiny": partial(
        granite_hybrid,
        **size(40, 1536, 512, 12, 4, 100352, 131072),
        attention=(5, 15, 25, 35),
    ),
    "qwen3next-80b": partial(
        delta,
        arch="qwen3next",
        **size(48, 2048, 512, 16, 2, 151936, 262144),
        head=256,
        value_heads=32,
        key_heads=16,
        rotated=64,
        experts=512,
        sections=False,
    ),
    "qwen35-27b": partial(
        delta,
        arch="qwen35",
        **size(64, 5120, 17408, 24, 4, 248320, 262144),
        head=256,
        value_heads=48,
        key_heads=16,
        rotated=64,
        next_tokens=1,
    ),
    "qwen35-35b-a3b": partial(
        delta,
        arch="qwen35moe",
        **size(40, 2048, 512, 16, 2, 248320, 262144),
        head=256,
        value_heads=32,
        key_heads=16,
        rotated=64,
        experts=256,
        next_tokens=1,
    ),
    "kimi-linear-48b": partial(kimi_linear, **size(27, 2304, 9216, 32, 1, 163840, 1048576)),
    "lfm2-12b": partial(
        short_convolution,
        arch="lfm2",
        **size(16, 2048, 8192, 32, 8, 65536, 128000),
        attention=(2, 5, 8, 10, 12, 14),
    ),
    "lfm2-8b-a1b": partial(
        short_convolution,
        arch="lfm2moe",
        **size(24, 2048, 7168, 32, 8, 65536, 128000),
        attention=(2, 6, 10, 14, 18, 21),
        experts=32,
    ),
    "rwkv6-7b": partial(
        rwkv, arch="rwkv6", layers=32, width=4096, inner=14336, vocabulary=65536, window=1048576
    ),
    "rwkv7-29b": partial(
        rwkv, arch="rwkv7", layers=32, width=2560, inner=10240, vocabulary=65536, window=1048576
    ),
}
