"""What the made models have in common: a writer that knows layers, widths and quantization.

Tensor names and shapes are those that llama.cpp b11434 asks for (src/models/*.cpp). The mixture of
types is what people ship as Q4_K_M: more bits for the values of the attention, the way down of
every other layer, and the output; norms, routers and states in F32.

Must not: write weights. Everything is a hole.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from tests.gguf_writer import KINDS, GgufWriter, Value

Vocabulary = Literal["none", "full"]
PerLayer = int | Sequence[int]

_EXACT = ("norm", "gate_inp", "conv1d", "ssm_a", "ssm_d", "altup", "lerp")
"""Parts of names of tensors that stay F32 in every file that people ship."""


@dataclass(frozen=True)
class Cut:
    """How a model is made: with or without its tokens, with all its layers or the first few.

    A full vocabulary is megabytes of header, and only a server that answers requests needs one.
    """

    vocabulary: Vocabulary = "none"
    layers: int | None = None


class Draft(GgufWriter):
    """A model that is being put together, one part after the other.

    `heads`, `kv` and `inner` are numbers or one for each layer; `head` the size of a head, where
    it is not width / heads.
    """

    def __init__(
        self,
        cut: Cut,
        arch: str,
        *,
        layers: int,
        width: int,
        inner: PerLayer,
        window: int,
        heads: PerLayer = 0,
        kv: PerLayer | None = None,
        head: int | None = None,
        quant: str = "Q4_K",
        epsilon: str = "layer_norm_rms_epsilon",
    ) -> None:
        super().__init__(arch, f"Made {arch}")
        self.cut, self.width, self.quant = cut, width, quant
        self.layers = min(layers, cut.layers or layers)
        self.inner, self.heads = inner, heads
        self.kv = heads if kv is None else kv
        most = max(heads) if isinstance(heads, Sequence) else heads
        self.head = head or (width // most if most else 0)
        self.meta("general.quantization_version", 2)
        self.arch_meta(
            block_count=self.layers,
            embedding_length=width,
            feed_forward_length=self.each(inner),
            context_length=window,
            rope__freq_base=1e6,
        )
        self.arch_meta(**{f"attention__{epsilon}": 1e-6})
        if most:
            self.arch_meta(attention__head_count=self.each(heads))
            self.arch_meta(attention__head_count_kv=self.each(self.kv))
        if head:
            self.arch_meta(attention__key_length=head, attention__value_length=head)

    def each(self, value: PerLayer) -> int | list[int]:
        """A value, or the values of the layers that are left."""
        return list(value)[: self.layers] if isinstance(value, Sequence) else value

    def at(self, value: PerLayer, layer: int) -> int:
        """The value of one layer."""
        return value[layer] if isinstance(value, Sequence) else value

    def weight(self, name: str, *dims: int, kind: str | None = None) -> None:
        """Add a tensor of the type that it has in shipped files, or of `kind`."""
        if kind is None:
            vector = len(dims) == 1 or not name.endswith(".weight")
            exact = vector or any(part in name for part in _EXACT)
            kind = "F32" if exact else self.quant
        if dims[0] % KINDS[kind][1]:  # as llama-quantize falls back
            kind = "Q8_0" if dims[0] % 32 == 0 else "F16"
        self.tensor(name, *dims, kind=kind)

    def block(self, layer: int, name: str, *dims: int, kind: str | None = None) -> None:
        """Add a tensor of a layer."""
        self.weight(f"blk.{layer}.{name}", *dims, kind=kind)

    def norms(self, layer: int, *names: str, size: int = 0, bias: bool = False) -> None:
        """Add norms of a layer, as wide as the model if not said otherwise."""
        for name in names:
            self.block(layer, f"{name}.weight", size or self.width)
            if bias:
                self.block(layer, f"{name}.bias", size or self.width)

    def better(self, layer: int) -> str | None:
        """The type of what gets more bits in every other layer."""
        return "Q6_K" if self.quant == "Q4_K" and layer % 2 == 0 else None

    def tokens(self, count: int) -> None:
        """Add the vocabulary: its size alone, or one with which every text can be said."""
        self.arch_meta(vocab_size=count)
        if self.cut.vocabulary == "none":
            self.meta("tokenizer.ggml.model", "no_vocab")
            return
        spoken = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
        words = count - len(spoken)
        self.meta("tokenizer.ggml.model", "llama")
        self.meta("tokenizer.ggml.tokens", spoken + [f"\u2581w{at}" for at in range(words)])
        self.meta(
            "tokenizer.ggml.scores", [0.0] * len(spoken) + [-float(at) for at in range(words)]
        )
        self.meta("tokenizer.ggml.token_type", [2, 3, 3] + [6] * 256 + [1] * words)
        self.meta("tokenizer.ggml.bos_token_id", 1)
        self.meta("tokenizer.ggml.eos_token_id", 2)

    def embeddings(self, count: int, *, tied: bool, norm_bias: bool = False) -> None:
        """Add vocabulary, token embeddings, last norm, and the output unless it is tied."""
        self.tokens(count)
        mixed = self.quant == "Q4_K"
        kind = ("Q6_K" if tied else "Q4_K") if mixed else self.quant
        self.weight("token_embd.weight", self.width, count, kind=kind)
        self.weight("output_norm.weight", self.width)
        if norm_bias:
            self.weight("output_norm.bias", self.width)
        if not tied:
            kind = "Q6_K" if mixed else self.quant
            self.weight("output.weight", self.width, count, kind=kind)

    def attention(
        self,
        layer: int,
        *,
        head: int | None = None,
        kv: int | None = None,
        bias: bool = False,
        out_bias: bool = False,
        norm: Literal["head", "all", "each"] | None = None,
        fused: bool = False,
        gated: bool = False,
        shared: bool = False,
        mixed: bool = True,
    ) -> None:
        """Add the attention of a layer.

        `norm` of queries and keys is over a head, over all, or one for each head; `gated` doubles
        the queries (qwen3next); `shared` layers take keys and values from an earlier one; `mixed`
        gives values more bits in every other layer.
        """
        heads, kv = self.at(self.heads, layer), self.at(self.kv, layer) if kv is None else kv
        head = head or self.head
        q, k = heads * head * (2 if gated else 1), kv * head
        parts = {"qkv": q + 2 * k} if fused else {"q": q} if shared else {"q": q, "k": k, "v": k}
        for part, size in parts.items():
            kind = self.better(layer) if part == "v" and mixed else None
            self.block(layer, f"attn_{part}.weight", self.width, size, kind=kind)
            if bias:
                self.block(layer, f"attn_{part}.bias", size)
        self.block(layer, "attn_output.weight", heads * head, self.width)
        if out_bias:
            self.block(layer, "attn_output.bias", self.width)
        for part, count in (("q", heads),) if shared else (("q", heads), ("k", kv)):
            match norm:
                case "head":
                    self.block(layer, f"attn_{part}_norm.weight", head)
                case "all":
                    self.block(layer, f"attn_{part}_norm.weight", count * head)
                case "each":
                    self.block(layer, f"attn_{part}_norm.weight", head, count)

    def feed(
        self,
        layer: int,
        inner: int | None = None,
        *,
        gate: Literal["own", "fused"] | None = "own",
        bias: bool = False,
    ) -> None:
        """Add the feed-forward of a layer; its gate is a tensor of its own, part of up, or not."""
        inner = inner or self.at(self.inner, layer)
        up = 2 * inner if gate == "fused" else inner
        if gate == "own":
            self.block(layer, "ffn_gate.weight", self.width, inner)
        self.block(layer, "ffn_up.weight", self.width, up)
        self.block(layer, "ffn_down.weight", inner, self.width, kind=self.better(layer))
        if bias:
            self.block(layer, "ffn_up.bias", up)
            self.block(layer, "ffn_down.bias", self.width)

    def experts(
        self,
        layer: int,
        count: int,
        inner: int,
        *,
        gate: bool = True,
        kind: str | None = None,
        router_bias: bool = False,
    ) -> None:
        """Add the routed experts of a layer and their router."""
        self.block(layer, "ffn_gate_inp.weight", self.width, count)
        if router_bias:
            self.block(layer, "exp_probs_b.bias", count)
        if gate:
            self.block(layer, "ffn_gate_exps.weight", self.width, inner, count, kind=kind)
        self.block(layer, "ffn_up_exps.weight", self.width, inner, count, kind=kind)
        self.block(layer, "ffn_down_exps.weight", inner, self.width, count, kind=kind)

    def shared_expert(
        self, layer: int, inner: int, *, gate: bool = True, router: bool = False
    ) -> None:
        """Add the expert that every token passes."""
        if router:
            self.block(layer, "ffn_gate_inp_shexp.weight", self.width)
        if gate:
            self.block(layer, "ffn_gate_shexp.weight", self.width, inner)
        self.block(layer, "ffn_up_shexp.weight", self.width, inner)
        self.block(layer, "ffn_down_shexp.weight", inner, self.width)

    def expert_meta(self, count: int, used: int, inner: int | None = None, **more: Value) -> None:
        """Say how many experts there are and how many of them a token passes."""
        self.arch_meta(expert_count=count, expert_used_count=used)
        if inner:
            self.arch_meta(expert_feed_forward_length=inner)
        self.arch_meta(**more)

    def rope_frequencies(self, *names: str, size: int = 0) -> None:
        """Add factors of the rope, which all layers share."""
        for name in names or ("rope_freqs",):
            self.weight(f"{name}.weight", (size or self.head) // 2, kind="F32")


def size(
    layers: int, width: int, inner: PerLayer, heads: PerLayer, kv: PerLayer, *rest: int
) -> dict[str, Any]:
    """The published size of a model in one line: what is named here, vocabulary and window."""
    vocabulary, window = rest
    return {
        "layers": layers,
        "width": width,
        "inner": inner,
        "heads": heads,
        "kv": kv,
        "vocabulary": vocabulary,
        "window": window,
    }
