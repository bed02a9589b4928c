"""Decoders with experts, with their published dimensions.

Must not: hold anything with states.
"""

from functools import partial
from typing import Any

from tests.gguf_models.draft import Cut, Draft, size
from tests.gguf_writer import GgufWriter


def mixture(
    cut: Cut,
    arch: str,
    *,
    vocabulary: int,
    experts: int,
    used: int,
    expert: int | None = None,
    lead: int = 0,
    every: int = 1,
    shared: int = 0,
    shared_router: bool = False,
    tied: bool = False,
    norm: Any = None,
    bias: bool = False,
    out_bias: bool = False,
    fused: bool = False,
    norm_bias: bool = False,
    router_bias: bool = False,
    dense_too: bool = False,
    before: tuple[str, ...] = ("attn_norm", "ffn_norm"),
    after: tuple[str, ...] = (),
    rope: tuple[str, ...] = (),
    next_tokens: int = 0,
    keys: dict[str, Any] | None = None,
    **shape: Any,
) -> GgufWriter:
    """A decoder whose feed-forward is a choice of experts, behind `lead` dense layers.

    `expert` is the width of one, where it is not that of the dense layers; `every` how many layers
    there are for one with experts; `next_tokens` layers at the end predict further tokens.
    """
    shape["layers"] += next_tokens
    draft = Draft(cut, arch, **shape)
    draft.expert_meta(experts, used, expert)
    for key, value in (keys or {}).items():
        draft.arch_meta(**{key: value})
    if lead:
        draft.arch_meta(leading_dense_block_count=lead)
    if next_tokens:
        draft.arch_meta(nextn_predict_layers=next_tokens)
    draft.embeddings(vocabulary, tied=tied, norm_bias=norm_bias)
    if arch == "phimoe":
        draft.weight("output.bias", vocabulary)
    if rope:
        draft.rope_frequencies(*rope)
    for layer in range(draft.layers):
        draft.norms(layer, *before, *after, bias=norm_bias)
        draft.attention(layer, norm=norm, bias=bias, out_bias=out_bias, fused=fused)
        routed = layer >= lead and (layer + 1) % every == 0
        if routed:
            inner = expert or draft.at(draft.inner, layer)
            draft.experts(layer, experts, inner, router_bias=router_bias)
            if shared:
                draft.shared_expert(layer, shared, router=shared_router)
        if dense_too or not routed:
            draft.feed(layer)
        if layer >= draft.layers - next_tokens:
            next_token(draft, layer)
    return draft


def next_token(draft: Draft, layer: int) -> None:
    """What a layer that predicts a further token has beside the ordinary tensors."""
    draft.block(layer, "nextn.eh_proj.weight", 2 * draft.width, draft.width)
    draft.norms(layer, "nextn.enorm", "nextn.hnorm", "nextn.shared_head_norm")


def gpt_oss(cut: Cut, *, vocabulary: int, experts: int, **shape: Any) -> GgufWriter:
    """Experts in MXFP4 and everything else in Q8_0; sinks; every other layer has a window."""
    draft = Draft(cut, "gpt-oss", quant="Q8_0", **shape)
    heads, inner = draft.at(draft.heads, 0), draft.at(draft.inner, 0)
    draft.expert_meta(experts, 4, inner)
    draft.arch_meta(attention__sliding_window=128, rope__dimension_count=draft.head)
    draft.embeddings(vocabulary, tied=False)
    for layer in range(draft.layers):
        draft.norms(layer, "attn_norm", "post_attention_norm")
        draft.attention(layer, bias=True, out_bias=True)
        draft.block(layer, "attn_sinks.weight", heads)
        draft.experts(layer, experts, inner, kind="MXFP4")
        draft.block(layer, "ffn_gate_inp.bias", experts)
        for name, wide in (("gate", inner), ("up", inner), ("down", draft.width)):
            draft.block(layer, f"ffn_{name}_exps.bias", wide, experts)
    return draft


def deepseek2(
    cut: Cut,
    *,
    vocabulary: int,
    experts: int,
    used: int,
    expert: int,
    lead: int,
    shared: int,
    q_rank: int = 0,
    router_bias: bool = False,
    latent: bool = True,
    heads: int,
    arch: str = "deepseek2",
    indexer: tuple[int, int] = (0, 0),
    **shape: Any,
) -> GgufWriter:
    """Latent attention: the cache holds one narrow row for all heads, if the file is of that kind.

    Files that are not `latent` are of before that, and keep whole keys and values for each head.
    """
    rank, nope, rope, value = 512, 128, 64, 128
    del shape["kv"]
    draft = Draft(cut, arch, heads=heads, kv=1 if latent else heads, **shape)
    draft.expert_meta(experts, used, expert)
    draft.arch_meta(
        leading_dense_block_count=lead,
        attention__kv_lora_rank=rank,
        expert_shared_count=shared,
        expert_weights_scale=1.0,
        expert_gating_func=2,
        rope__dimension_count=rope,
    )
    if q_rank:
        draft.arch_meta(attention__q_lora_rank=q_rank)
    key = nope + rope
    if latent:
        draft.arch_meta(
            attention__key_length=rank + rope,
            attention__value_length=rank,
            attention__key_length_mla=key,
            attention__value_length_mla=value,
        )
    else:
        draft.arch_meta(attention__key_length=key, attention__value_length=value)
    index_heads, index_size = indexer
    if index_heads:
        draft.arch_meta(
            attention__indexer__head_count=index_heads,
            attention__indexer__key_length=index_size,
            attention__indexer__top_k=2048,
        )
    draft.embeddings(vocabulary, tied=False)
    for layer in range(draft.layers):
        draft.norms(layer, "attn_norm", "ffn_norm")
        draft.norms(layer, "attn_kv_a_norm", size=rank)
        latent_queries(draft, layer, heads * key, q_rank)
        latent_keys(draft, layer, heads, rank, nope, rope, value, split=latent)
        if index_heads:
            draft.norms(layer, "indexer.k_norm", size=index_size, bias=True)
            draft.block(layer, "indexer.proj.weight", draft.width, index_heads)
            draft.block(layer, "indexer.attn_k.weight", draft.width, index_size)
            draft.block(layer, "indexer.attn_q_b.weight", q_rank, index_heads * index_size)
        if layer < lead:
            draft.feed(layer)
        else:
            draft.experts(layer, experts, expert, router_bias=router_bias)
            draft.shared_expert(layer, expert * shared)
    return draft


def latent_queries(draft: Draft, layer: int, out: int, rank: int) -> None:
    """Queries, through a narrow middle where there is one."""
    if rank:
        draft.norms(layer, "attn_q_a_norm", size=rank)
        draft.block(layer, "attn_q_a.weight", draft.width, rank)
        draft.block(layer, "attn_q_b.weight", rank, out)
    else:
        draft.block(layer, "attn_q.weight", draft.width, out)


def latent_keys(
    draft: Draft, layer: int, heads: int, rank: int, nope: int, rope: int, value: int, split: bool
) -> None:
    """Keys and values out of the latent row, in two tensors or (older files) in one."""
    draft.block(layer, "attn_kv_a_mqa.weight", draft.width, rank + rope)
    if split:
        draft.block(layer, "attn_k_b.weight", nope, rank, heads, kind="Q8_0")
        draft.block(layer, "attn_v_b.weight", rank, value, heads, kind="Q8_0")
    else:
        draft.block(layer, "attn_kv_b.weight", rank, heads * (nope + value))
    draft.block(layer, "attn_output.weight", heads * value, draft.width)


qwen3moe = partial(mixture, arch="qwen3moe", norm="head", head=128)
llama4 = partial(
    mixture,
    arch="llama4",
    rope=("rope_freqs",),
    expert=8192,
    shared=8192,
    used=1,
)

EXPERTS = {
    "qwen3-30b-a3b": partial(
        qwen3moe,
        **size(48, 2048, 6144, 32, 4, 151936, 40960),
        experts=128,
        used=8,
        expert=768,
    ),
    "qwen3-235b-a22b": partial(
        qwen3moe,
        **size(94, 4096, 12288, 64, 4, 151936, 40960),
        experts=128,
        used=8,
        expert=1536,
    ),
    "qwen15-moe-a27b": partial(
        mixture,
        arch="qwen2moe",
        **size(24, 2048, 5632, 16, 16, 151936, 8192),
        experts=60,
        used=4,
        expert=1408,
        shared=5632,
        shared_router=True,
        bias=True,
        keys={"expert_shared_feed_forward_length": 5632},
    ),
    "glm45-air": partial(
        mixture,
        arch="glm4moe",
        **size(46, 4096, 10944, 96, 8, 151552, 131072),
        head=128,
        experts=128,
        used=8,
        expert=1408,
        shared=1408,
        lead=1,
        bias=True,
        router_bias=True,
        before=("attn_norm", "post_attention_norm"),
        next_tokens=1,
        keys={
            "expert_shared_count": 1,
            "expert_weights_scale": 1.0,
            "expert_weights_norm": True,
            "expert_gating_func": 2,
            "rope__dimension_count": 128,
        },
    ),
    "gpt-oss-20b": partial(
        gpt_oss, **size(24, 2880, 2880, 64, 8, 201088, 131072), head=64, experts=32
    ),
    "gpt-oss-120b": partial(
        gpt_oss, **size(36, 2880, 2880, 64, 8, 201088, 131072), head=64, experts=128
    ),
    "deepseek-v2-lite": partial(
        deepseek2,
        **size(27, 2048, 10944, 16, 16, 102400, 163840),
        experts=64,
        used=6,
        expert=1408,
        lead=1,
        shared=2,
    ),
    "deepseek-v2-lite-nomla": partial(
        deepseek2,
        **size(27, 2048, 10944, 16, 16, 102400, 163840),
        experts=64,
        used=6,
        expert=1408,
        lead=1,
        shared=2,
        latent=False,
    ),
    "deepseek-v3": partial(
        deepseek2,
        **size(61, 7168, 18432, 128, 128, 129280, 163840),
        experts=256,
        used=8,
        expert=2048,
        lead=3,
        shared=1,
        q_rank=1536,
        router_bias=True,
    ),
    "deepseek-v32": partial(
        deepseek2,
        **size(61, 7168, 18432, 128, 128, 129280, 163840),
        arch="deepseek32",
        experts=256,
        used=8,
        expert=2048,
        lead=3,
        shared=1,
        q_rank=1536,
        router_bias=True,
        indexer=(64, 128),
    ),
    "mixtral-8x7b": partial(
        mixture,
        arch="llama",
        **size(32, 4096, 14336, 32, 8, 32000, 32768),
        experts=8,
        used=2,
        keys={"rope__dimension_count": 128},
    ),
    "llama4-scout": partial(
        llama4,
        **size(48, 5120, 16384, 40, 8, 202048, 10485760),
        experts=16,
        keys={"interleave_moe_layer_step": 1, "rope__dimension_count": 128},
    ),
    "llama4-maverick": partial(
        llama4,
        **size(48, 5120, 16384, 40, 8, 202048, 1048576),
        experts=128,
        every=2,
        keys={"interleave_moe_layer_step": 2, "rope__dimension_count": 128},
    ),
    "dbrx-132b": partial(
        mixture,
        arch="dbrx",
        **size(40, 6144, 10752, 48, 8, 100352, 32768),
        experts=16,
        used=4,
        fused=True,
        before=("attn_norm", "attn_output_norm"),
        epsilon="layer_norm_epsilon",
        keys={"attention__clamp_kqv": 8.0},
    ),
    "grok-1": partial(
        mixture,
        arch="grok",
        **size(64, 6144, 32768, 48, 8, 131072, 8192),
        experts=8,
        used=2,
        before=("attn_norm", "attn_output_norm", "ffn_norm", "layer_output_norm"),
    ),
    "smallthinker-21b": partial(
        mixture,
        arch="smallthinker",
        **size(52, 2560, 768, 28, 4, 151936, 16384),
        head=128,
        experts=64,
        used=6,
        expert=768,
        keys={"attention__sliding_window": 4096, "expert_gating_func": 2},
    ),
    "hunyuan-a13b": partial(
        mixture,
        arch="hunyuan-moe",
        **size(32, 4096, 3072, 32, 8, 128167, 262144),
        head=128,
        experts=64,
        used=8,
        expert=3072,
        shared=3072,
        norm="head",
        tied=True,
        keys={"expert_shared_feed_forward_length": 3072},
    ),
    "ling-mini-2": partial(
        mixture,
        arch="bailingmoe2",
        **size(20, 2048, 5120, 16, 4, 157184, 32768),
        head=128,
        experts=256,
        used=8,
        expert=512,
        shared=512,
        lead=1,
        norm="head",
        fused=True,
        router_bias=True,
        keys={"expert_shared_count": 1, "expert_gating_func": 2},
    ),
    "ernie45-21b-a3b": partial(
        mixture,
        arch="ernie4_5-moe",
        **size(28, 2560, 12288, 20, 4, 103424, 131072),
        head=128,
        experts=64,
        used=6,
        expert=1536,
        shared=3072,
        lead=1,
        tied=True,
        router_bias=True,
        keys={"interleave_moe_layer_step": 1, "expert_shared_feed_forward_length": 3072},
    ),
    "minimax-m2": partial(
        mixture,
        arch="minimax-m2",
        **size(62, 3072, 1536, 48, 8, 200064, 196608),
        head=128,
        experts=256,
        used=8,
        expert=1536,
        norm="all",
        router_bias=True,
        keys={"rope__dimension_count": 64, "expert_gating_func": 2},
    ),
    "granite31-3b-moe": partial(
        mixture,
        arch="granitemoe",
        **size(32, 1536, 512, 24, 8, 49155, 131072),
        experts=40,
        used=8,
        tied=True,
        keys={"logit_scale": 6.0},
    ),
    "phi35-moe": partial(
        mixture,
        arch="phimoe",
        **size(32, 4096, 6400, 32, 8, 32064, 131072),
        experts=16,
        used=2,
        bias=True,
        out_bias=True,
        norm_bias=True,
        rope=("rope_factors_long", "rope_factors_short"),
    ),
}
