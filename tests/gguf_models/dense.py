"""Dense decoders, with their published dimensions.

Must not: hold anything with experts or states.
"""

from functools import partial
from typing import Any

from tests.gguf_models.draft import Cut, Draft, size
from tests.gguf_writer import GgufWriter

# One function for what a family has in common; what differs between its models is in the table.


def plain(
    cut: Cut,
    arch: str,
    *,
    vocabulary: int,
    tied: bool = False,
    bias: bool = False,
    norm: Any = None,
    fused: bool = False,
    gate: Any = "own",
    before: tuple[str, ...] = ("attn_norm", "ffn_norm"),
    after: tuple[str, ...] = (),
    rope: tuple[str, ...] = (),
    rotated: int | None = None,
    keys: dict[str, Any] | None = None,
    pooling: int | None = None,
    labels: int = 0,
    **shape: Any,
) -> GgufWriter:
    """A decoder without biases in its norms: llama and the many that differ from it in details."""
    draft = Draft(cut, arch, **shape)
    rotated = rotated or draft.head
    if arch not in ("qwen2", "qwen2vl", "olmo2"):
        draft.arch_meta(rope__dimension_count=rotated)
    if pooling is not None:
        draft.arch_meta(pooling_type=pooling)
    if labels:
        draft.arch_meta(classifier__output_labels=["yes", "no"][:labels])
    for key, value in (keys or {}).items():
        draft.arch_meta(**{key: value})
    draft.embeddings(vocabulary, tied=tied)
    if rope:
        draft.rope_frequencies(*rope, size=rotated)
    if labels:
        draft.weight("cls.output.weight", draft.width, labels, kind="F32")
    for layer in range(draft.layers):
        draft.norms(layer, *before, *after)
        draft.attention(layer, bias=bias, norm=norm, fused=fused)
        draft.feed(layer, gate=gate)
    return draft


def biased(
    cut: Cut,
    arch: str,
    *,
    vocabulary: int,
    tied: bool,
    norms: tuple[str, ...] = ("attn_norm", "ffn_norm"),
    fused: bool = False,
    bias: bool = True,
    out_bias: bool = True,
    gate: Any = None,
    feed_bias: bool = True,
    positions: bool = False,
    rotated: int | None = None,
    **shape: Any,
) -> GgufWriter:
    """A decoder of the older kind: norms with biases, no gate, learned positions in gpt2."""
    draft = Draft(cut, arch, epsilon="layer_norm_epsilon", **shape)
    if rotated:
        draft.arch_meta(rope__dimension_count=rotated)
    draft.embeddings(vocabulary, tied=tied, norm_bias=True)
    if positions:
        draft.weight("position_embd.weight", draft.width, shape["window"], kind="F32")
    for layer in range(draft.layers):
        draft.norms(layer, *norms, bias=True)
        draft.attention(layer, fused=fused, bias=bias, out_bias=out_bias)
        draft.feed(layer, gate=gate, bias=feed_bias)
    return draft


def apertus(cut: Cut, *, vocabulary: int, **shape: Any) -> GgufWriter:
    """No gate, and an activation with numbers of its own (xielu)."""
    draft = Draft(cut, "apertus", **shape)
    draft.arch_meta(rope__dimension_count=draft.head)
    for name in ("alpha_n", "alpha_p", "beta", "eps"):
        draft.meta(f"xielu.{name}", [0.5] * draft.layers)
    draft.embeddings(vocabulary, tied=False)
    draft.rope_frequencies()
    for layer in range(draft.layers):
        draft.norms(layer, "attn_norm", "ffn_norm")
        draft.attention(layer, norm="head")
        draft.feed(layer, gate=None)
    return draft


llama = partial(plain, arch="llama", rope=("rope_freqs",))
qwen3 = partial(plain, arch="qwen3", norm="head", head=128)
AROUND = ("post_attention_norm", "post_ffw_norm")
"""Norms behind attention and feed-forward, as gemma has them beside those before."""
gemma3 = partial(plain, arch="gemma3", norm="head", after=AROUND, tied=True)
gemma2 = partial(plain, arch="gemma2", after=AROUND, tied=True)

DENSE = {
    "llama31-8b": partial(llama, **size(32, 4096, 14336, 32, 8, 128256, 131072)),
    "llama32-1b": partial(llama, **size(16, 2048, 8192, 32, 8, 128256, 131072), tied=True),
    "llama31-70b": partial(llama, **size(80, 8192, 28672, 64, 8, 128256, 131072)),
    "mistral-7b": partial(
        plain,
        arch="llama",
        **size(32, 4096, 14336, 32, 8, 32000, 32768),
        quant="Q8_0",
        keys={"attention__sliding_window": 4096},
    ),
    "mistral-nemo-12b": partial(
        plain, arch="llama", **size(40, 5120, 14336, 32, 8, 131072, 131072), head=128
    ),
    "qwen25-7b": partial(
        plain, arch="qwen2", **size(28, 3584, 18944, 28, 4, 152064, 32768), bias=True
    ),
    "qwen25-vl-7b": partial(
        plain,
        arch="qwen2vl",
        **size(28, 3584, 18944, 28, 4, 152064, 128000),
        bias=True,
        keys={"rope__dimension_sections": [16, 24, 24, 0]},
    ),
    "qwen3-4b": partial(qwen3, **size(36, 2560, 9728, 32, 8, 151936, 40960), tied=True),
    "qwen3-32b": partial(qwen3, **size(64, 5120, 25600, 64, 8, 151936, 40960)),
    "qwen3-vl-8b": partial(
        plain,
        arch="qwen3vl",
        **size(36, 4096, 12288, 32, 8, 151936, 262144),
        norm="head",
        head=128,
        keys={"rope__dimension_sections": [24, 20, 20, 0], "n_deepstack_layers": 3},
    ),
    "qwen3-embed-06b": partial(
        qwen3, **size(28, 1024, 3072, 16, 8, 151669, 32768), tied=True, quant="Q8_0", pooling=3
    ),
    "qwen3-embed-4b": partial(
        qwen3, **size(36, 2560, 9728, 32, 8, 151665, 40960), tied=True, pooling=3
    ),
    "qwen3-rerank-06b": partial(
        qwen3,
        **size(28, 1024, 3072, 16, 8, 151669, 40960),
        tied=True,
        quant="Q8_0",
        pooling=4,
        labels=2,
    ),
    "gemma-7b": partial(
        plain, arch="gemma", **size(28, 3072, 24576, 16, 16, 256000, 8192), head=256, tied=True
    ),
    "gemma2-9b": partial(
        gemma2,
        **size(42, 3584, 14336, 16, 8, 256000, 8192),
        head=256,
        keys={"attention__sliding_window": 4096},
    ),
    "gemma2-27b": partial(
        gemma2,
        **size(46, 4608, 36864, 32, 16, 256000, 8192),
        head=128,
        keys={"attention__sliding_window": 4096},
    ),
    "gemma3-4b": partial(
        gemma3,
        **size(34, 2560, 10240, 8, 4, 262208, 131072),
        head=256,
        keys={"attention__sliding_window": 1024},
    ),
    "gemma3-27b": partial(
        gemma3,
        **size(62, 5376, 21504, 32, 16, 262208, 131072),
        head=128,
        keys={"attention__sliding_window": 1024},
    ),
    "command-r7b": partial(
        plain,
        arch="cohere2",
        **size(32, 4096, 14336, 32, 8, 256000, 131072),
        before=("attn_norm",),
        tied=True,
        epsilon="layer_norm_epsilon",
        keys={"attention__sliding_window": 4096, "logit_scale": 0.25},
    ),
    "command-r-35b": partial(
        plain,
        arch="command-r",
        **size(40, 8192, 22528, 64, 64, 256000, 131072),
        before=("attn_norm",),
        tied=True,
        epsilon="layer_norm_epsilon",
        keys={"logit_scale": 0.0625},
    ),
    "phi35-mini": partial(
        plain,
        arch="phi3",
        **size(32, 3072, 8192, 32, 32, 32064, 131072),
        fused=True,
        gate="fused",
        rope=("rope_factors_long", "rope_factors_short"),
        keys={"attention__sliding_window": 262144},
    ),
    "phi4-14b": partial(
        plain,
        arch="phi3",
        **size(40, 5120, 17920, 40, 10, 100352, 16384),
        fused=True,
        gate="fused",
        keys={"attention__sliding_window": 0},
    ),
    "exaone4-32b": partial(
        plain,
        arch="exaone4",
        **size(64, 5120, 27392, 40, 8, 102400, 131072),
        norm="head",
        before=(),
        after=AROUND,
        rope=("rope_freqs",),
        keys={"attention__sliding_window": 4096},
    ),
    "olmo2-7b": partial(
        plain,
        arch="olmo2",
        **size(32, 4096, 11008, 32, 32, 100352, 4096),
        norm="all",
        before=(),
        after=AROUND,
    ),
    "olmo3-7b": partial(
        plain,
        arch="olmo2",
        **size(32, 4096, 11008, 32, 32, 100278, 65536),
        norm="all",
        before=(),
        after=AROUND,
        keys={"attention__sliding_window": 4096},
    ),
    "glm4-9b": partial(
        plain,
        arch="glm4",
        **size(40, 4096, 13696, 32, 2, 151552, 32768),
        gate="fused",
        after=AROUND,
        bias=True,
        head=128,
        rotated=64,
    ),
    "granite33-8b": partial(
        plain,
        arch="granite",
        **size(40, 4096, 12800, 32, 8, 49159, 131072),
        tied=True,
        keys={
            "logit_scale": 16.0,
            "residual_scale": 0.22,
            "embedding_scale": 12.0,
            "attention__scale": 0.0078125,
        },
    ),
    "smollm3-3b": partial(
        plain, arch="smollm3", **size(36, 2048, 11008, 16, 4, 128256, 65536), tied=True
    ),
    "seed-oss-36b": partial(
        plain,
        arch="seed_oss",
        **size(64, 5120, 27648, 80, 8, 155136, 524288),
        before=("attn_norm",),
        after=("post_attention_norm",),
        bias=True,
        head=128,
    ),
    "internlm2-20b": partial(plain, arch="internlm2", **size(48, 6144, 16384, 48, 8, 92544, 32768)),
    "starcoder2-7b": partial(
        biased, arch="starcoder2", **size(32, 4608, 18432, 36, 4, 49152, 16384), tied=False
    ),
    "stablelm2-16b": partial(
        biased,
        arch="stablelm",
        **size(24, 2048, 5632, 32, 32, 100352, 4096),
        tied=False,
        out_bias=False,
        gate="own",
        feed_bias=False,
        rotated=16,
    ),
    "falcon-7b": partial(
        biased,
        arch="falcon",
        **size(32, 4544, 18176, 71, 1, 65024, 2048),
        norms=("attn_norm",),
        tied=False,
        fused=True,
        bias=False,
        out_bias=False,
        feed_bias=False,
        quant="Q8_0",
    ),
    "gpt2-xl": partial(
        biased,
        arch="gpt2",
        **size(48, 1600, 6400, 25, 25, 50257, 1024),
        tied=True,
        fused=True,
        positions=True,
        quant="F16",
    ),
    "apertus-8b": partial(apertus, **size(32, 4096, 21504, 32, 8, 131072, 65536)),
}
