"""Encoders, which keep nothing between requests, with their published dimensions.

Must not: hold embedding models that are decoders; those are with the dense ones.
"""

from functools import partial
from typing import Any

from tests.gguf_models.draft import Cut, Draft, size
from tests.gguf_writer import GgufWriter

MEAN, CLS, RANK = 1, 2, 4
"""llama.cpp's pooling types."""


def _word_pieces(draft: Draft, count: int) -> None:
    """The vocabulary of the BERTs: five marks, then words."""
    draft.arch_meta(vocab_size=count)
    draft.meta("tokenizer.ggml.token_type_count", 2)
    if draft.cut.vocabulary == "none":
        draft.meta("tokenizer.ggml.model", "no_vocab")
        return
    marks = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    draft.meta("tokenizer.ggml.model", "bert")
    draft.meta("tokenizer.ggml.tokens", marks + [f"\u2581w{at}" for at in range(count - 5)])
    draft.meta("tokenizer.ggml.token_type", [3] * 5 + [1] * (count - 5))
    for at, mark in enumerate(("padding", "unknown", "cls", "seperator", "mask")):
        draft.meta(f"tokenizer.ggml.{mark}_token_id", at)
    draft.meta("tokenizer.ggml.bos_token_id", 2)
    draft.meta("tokenizer.ggml.eos_token_id", 3)


def bert(
    cut: Cut,
    arch: str,
    *,
    vocabulary: int,
    positions: bool = False,
    pooling: int = CLS,
    classifier: bool = False,
    fused: bool = False,
    bias: bool = True,
    gate: Any = None,
    feed_bias: bool = True,
    moe_every: int = 0,
    types: bool = True,
    **shape: Any,
) -> GgufWriter:
    """Norms behind the sums, everything with biases; learned positions in the oldest."""
    draft = Draft(cut, arch, quant="F16", epsilon="layer_norm_epsilon", **shape)
    draft.arch_meta(attention__causal=False, pooling_type=pooling)
    if moe_every:
        draft.expert_meta(8, 2, moe_every_n_layers=moe_every)
    _word_pieces(draft, vocabulary)
    width = draft.width
    if classifier:
        draft.arch_meta(classifier__output_labels=["score"])
    draft.weight("token_embd.weight", width, vocabulary)
    if types:
        draft.weight("token_types.weight", width, 2, kind="F32")
    if positions:
        draft.weight("position_embd.weight", width, shape["window"], kind="F16")
    for end in ("weight", "bias"):
        draft.weight(f"token_embd_norm.{end}", width)
    if classifier:
        draft.weight("cls.weight", width, width)
        draft.weight("cls.bias", width)
        draft.weight("cls.output.weight", width, 1, kind="F32")
        draft.weight("cls.output.bias", 1)
    for layer in range(draft.layers):
        draft.attention(layer, fused=fused, bias=bias, out_bias=bias)
        draft.norms(layer, "attn_output_norm", "layer_output_norm", bias=True)
        if moe_every and layer % moe_every == 1:
            draft.experts(layer, 8, draft.at(draft.inner, layer), gate=False)
        else:
            draft.feed(layer, gate=gate, bias=feed_bias)
    return draft


def modern_bert(cut: Cut, *, vocabulary: int, **shape: Any) -> GgufWriter:
    """Norms before, gates, and windows in two layers of three."""
    draft = Draft(cut, "modern-bert", quant="F16", epsilon="layer_norm_epsilon", **shape)
    draft.arch_meta(
        attention__causal=False,
        attention__sliding_window=128,
        rope__freq_base_swa=1e4,
        pooling_type=MEAN,
    )
    _word_pieces(draft, vocabulary)
    draft.weight("token_embd.weight", draft.width, vocabulary)
    draft.weight("token_embd_norm.weight", draft.width)
    draft.weight("output_norm.weight", draft.width)
    for layer in range(draft.layers):
        draft.norms(layer, *(("attn_norm",) if layer else ()), "ffn_norm")
        draft.attention(layer, fused=True)
        draft.feed(layer, gate="fused")
    return draft


def gemma_embedding(cut: Cut, *, vocabulary: int, **shape: Any) -> GgufWriter:
    """Gemma 3 that looks both ways, with windows in five layers of six."""
    draft = Draft(cut, "gemma-embedding", quant="Q8_0", **shape)
    draft.arch_meta(
        attention__sliding_window=512, pooling_type=MEAN, rope__dimension_count=draft.head
    )
    draft.embeddings(vocabulary, tied=True)
    for layer in range(draft.layers):
        draft.norms(layer, "attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm")
        draft.attention(layer, norm="head")
        draft.feed(layer)
    return draft


ENCODERS = {
    "bge-large": partial(
        bert, arch="bert", **size(24, 1024, 4096, 16, 16, 30522, 512), positions=True
    ),
    "bge-m3": partial(
        bert, arch="bert", **size(24, 1024, 4096, 16, 16, 250002, 8192), positions=True
    ),
    "bge-reranker-like": partial(
        bert,
        arch="bert",
        **size(24, 1024, 4096, 16, 16, 30522, 8192),
        positions=True,
        pooling=RANK,
        classifier=True,
    ),
    "bge-reranker-v2-m3": partial(
        bert,
        arch="bert",
        **size(24, 1024, 4096, 16, 16, 250002, 8192),
        positions=True,
        pooling=RANK,
        classifier=True,
    ),
    "nomic-embed-v15": partial(
        bert,
        arch="nomic-bert",
        **size(12, 768, 3072, 12, 12, 30522, 2048),
        pooling=MEAN,
        fused=True,
        bias=False,
        gate="own",
        feed_bias=False,
    ),
    "nomic-embed-v2-moe": partial(
        bert,
        arch="nomic-bert-moe",
        **size(12, 768, 3072, 12, 12, 250048, 512),
        pooling=MEAN,
        fused=True,
        moe_every=2,
    ),
    "jina-v2-code": partial(
        bert,
        arch="jina-bert-v2",
        **size(12, 768, 3072, 12, 12, 61056, 8192),
        pooling=MEAN,
        gate="own",
    ),
    "jina-v3": partial(
        bert,
        arch="jina-bert-v3",
        **size(24, 1024, 4096, 16, 16, 250002, 8192),
        pooling=MEAN,
        fused=True,
        types=False,
    ),
    "modernbert-base": partial(modern_bert, **size(22, 768, 1152, 12, 12, 50368, 8192)),
    "embeddinggemma-300m": partial(
        gemma_embedding, **size(24, 768, 1152, 3, 1, 262144, 2048), head=256
    ),
}
