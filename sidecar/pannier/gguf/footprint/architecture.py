"""What llama.cpp knows about an architecture and no file says: small tables, by name.

A GGUF names its architecture and gives its dimensions; which layers slide, which carry a recurrent
state, and which tensors are read is in llama.cpp's code. All of it is read at build b11434: the
place of each table is beside it. A new architecture is a line here; without one a model is an
upper bound, never a refusal.

Must not: read a header.
"""

from typing import Literal

import msgspec


def _names(listed: str) -> frozenset[str]:
    return frozenset(listed.split())


NO_CACHE = _names(
    """bert nomic-bert nomic-bert-moe jina-bert-v2 jina-bert-v3 neo-bert eurobert modern-bert
    gemma-embedding dream llada llada-moe rnd1 clef wavtokenizer-dec"""
)
"""Architectures without a KV cache: `llama_model::create_memory`, src/llama-model.cpp."""

RECURRENT = _names("mamba mamba2 rwkv6 rwkv6qwen2 rwkv7 arwkv7")
"""All layers carry a state and none a KV cache: `llm_arch_is_recurrent`, src/llama-arch.cpp."""

HYBRID = _names(
    """jamba falcon-h1 plamo2 granitehybrid lfm2 lfm2moe nemotron_h nemotron_h_moe qwen3next
    kimi-linear bailingmoe3 qwen35 qwen35moe minimax-01"""
)
"""Some layers carry a state, the others a KV cache: `llm_arch_is_hybrid`, src/llama-arch.cpp."""

BY_INTERVAL = {"qwen3next": 4, "qwen35": 4, "qwen35moe": 4, "minimax-01": 8}
"""Of the hybrids, those whose every n-th layer attends; the key `full_attention_interval` or the
array `attention.recurrent_layers` wins. In the others a layer without KV heads is recurrent
(`load_arch_hparams` in src/models/qwen3next.cpp, qwen35.cpp, qwen35moe.cpp, minimax-01.cpp)."""

BOTH = frozenset({"falcon-h1"})
"""Every layer carries a state and a KV cache: `create_memory`, src/llama-model.cpp."""

ROLLBACK = _names("qwen35 qwen35moe nemotron_h nemotron_h_moe lfm2 lfm2moe bailingmoe3")
"""Keep a state per drafted token: `llm_arch_supports_rs_rollback`, src/llama-arch.cpp."""

MTP_ASIDE = _names(
    """bailingmoe2 bailingmoe3 cohere2moe deepseek2 deepseek32 exaone-moe exaone4 glm-dsa glm4
    glm4moe hy_v3 mimo2 nemotron_h nemotron_h_moe qwen35 qwen35moe qwen3next step35"""
)
"""Whose MTP layers are left in the file unless asked for: TENSOR_SKIP in src/models/*.cpp."""

MTP_NEVER = frozenset({"bailingmoe2", "exaone-moe", "exaone4", "glm4"})
"""Of those, the ones whose MTP layers cannot be asked for."""

KEEPS_MTP_CACHE = frozenset({"bailingmoe3", "nemotron_h", "nemotron_h_moe"})
"""Whose KV cache also has the MTP layers: the filter in `create_memory`, src/llama-model.cpp."""

NO_OUTPUT = _names(
    """bert nomic-bert nomic-bert-moe jina-bert-v2 jina-bert-v3 neo-bert eurobert modern-bert
    clef wavtokenizer-dec"""
)
"""Have no output matrix, so a missing one is not replaced by the embeddings: src/models/*.cpp."""

NO_LOGITS = NO_OUTPUT | {"gemma-embedding"}
"""Give a row of their width, not one of the vocabulary's: src/models/*.cpp."""

SHARED_KV_FROM = {"gemma3n": 20}
"""The first layers that own a KV cache, where no key says it: src/models/gemma3n.cpp."""

TIED_TWICE = frozenset({"gemma3n", "gemma4"})
"""Ask for the copy of the embeddings before the embeddings, and get both: src/models/*.cpp."""

SENDS_BACK = _names("mamba mamba2 jamba nemotron_h nemotron_h_moe")
"""Whose first mixer after a border is computed on both sides of it (seen in b11434's splits)."""

UNEVEN = SENDS_BACK | {"openelm"}
"""Whose buffers on several devices depend on which layers these have: they are the widest here."""

INDEXED = frozenset({"deepseek32", "glm-dsa"})
"""Keep one more row of K per token for the indexer: src/llama-kv-cache-dsa.cpp."""

ROW_NORM_OUT = frozenset({"lfm2", "lfm2moe"})
"""Call the norm before the output `token_embd_norm`: LLM_TENSOR_OUTPUT_NORM_LFM2,
src/llama-arch.cpp."""

SlidingWhen = Literal["key", "positive", "always", "unless_zero", "64_layers"]


class Sliding(msgspec.Struct, frozen=True, kw_only=True):
    """Which layers slide: all but every `period`-th; `dense_first`: that is the first of them.

    `period` 0: only as the file's array says. `when`: the window is in the file ("key"), or
    positive in the file, or always (`window` is the default then), or unless the file says zero,
    or only with 64 layers.
    """

    period: int
    dense_first: bool = False
    window: int = 0
    when: SlidingWhen = "positive"
    fixed: bool = False


SLIDING = {
    "afmoe": Sliding(period=4),
    "cohere2": Sliding(period=4, when="key"),
    "cohere2moe": Sliding(period=4, dense_first=True, when="key"),
    "exaone-moe": Sliding(period=4, window=128, when="always"),
    "exaone4": Sliding(period=4, window=4096, when="64_layers"),
    "gemma2": Sliding(period=2, window=4096, when="always"),
    "gemma3": Sliding(period=6),
    "gemma3n": Sliding(period=5, when="key"),
    "gemma4": Sliding(period=0, when="key"),
    "gemma-embedding": Sliding(period=6, when="key"),
    "gpt-oss": Sliding(period=2, when="key"),
    "granite_swa": Sliding(period=0, when="key"),
    "laguna": Sliding(period=4, dense_first=True),
    "llama4": Sliding(period=4, window=8192, when="unless_zero", fixed=True),
    "maple": Sliding(period=0, when="key"),
    "mellum": Sliding(period=4),
    "mimo2": Sliding(period=0, when="key"),
    "modern-bert": Sliding(period=3, dense_first=True),
    "muse-glimmer": Sliding(period=4, when="key"),
    "olmo2": Sliding(period=4),
    "plamo3": Sliding(period=8),
    "smallthinker": Sliding(period=4, dense_first=True, window=4096, fixed=True),
    "spark2_5": Sliding(period=0, when="key"),
    "step35": Sliding(period=0, when="key"),
}
"""`load_arch_hparams` in src/models/*.cpp; `fixed`: the window is this and not the file's."""

SLIDING_WHERE_IT_ATTENDS = frozenset({"lfm2"})
"""With a window in the file all layers slide that are not recurrent: src/models/lfm2.cpp."""

DENSE = _names(
    """llama deci falcon grok gpt2 gptneox mpt baichuan starcoder refact bloom stablelm qwen
    qwen2 qwen2moe qwen2vl qwen3 qwen3moe qwen3vl qwen3vlmoe phi2 phi3 phimoe plamo codeshell
    orion internlm2 minicpm minicpm3 gemma starcoder2 xverse command-r dbrx olmo olmoe openelm
    arctic deepseek deepseek2 deepseek2-ocr chatglm glm4 glm4moe bitnet jais jais2 nemotron
    exaone granite granitemoe chameleon plm bailingmoe bailingmoe2 dots1 arcee ernie4_5
    ernie4_5-moe hunyuan-moe hunyuan-dense hunyuan_vl hy_v3 smollm3 seed_oss grovemoe apertus
    minimax-m2 cogvlm pangu-embedded mistral3 mistral4 paddleocr llama-embed maincoder
    talkie"""
)
"""Plain attention in every layer, as the file's dimensions say: src/models/*.cpp."""

GRADED: dict[str, str] = {}
"""Known architectures whose computation is not exact yet, with the words that say so."""

KNOWN = DENSE | NO_CACHE | RECURRENT | HYBRID | INDEXED | frozenset(SLIDING)
"""Architectures whose footprint is exact; for any other it is an upper bound."""
