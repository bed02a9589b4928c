"""What depends on the kind of device: pipelines, flash attention, and what a process takes besides.

Backends are those of llama.cpp b11434 (ggml/src/ggml-*): which of them can run asynchronously and
so in a pipeline, which copy weights from RAM for large batches, for which sizes of heads each has a
flash attention, and what a process takes on a device that is in no buffer of llama.cpp's.

Must not: know a model beyond the sizes of its heads.
"""

MIB = 1 << 20

PIPELINED = frozenset({"cuda", "rocm", "vulkan", "sycl", "rpc", "metal"})
"""`caps.async` and `caps.events` in ggml-cuda.cu, ggml-vulkan.cpp, ggml-sycl.cpp, ggml-rpc.cpp,
ggml-metal.cpp."""

RPC_PIPELINED_SINCE = 11_000
"""Builds before did not pipeline over RPC (seen: b10435 does not, b11434 does)."""

FETCHES_WEIGHTS = frozenset({"cuda", "rocm", "vulkan", "sycl", "metal"})
"""Whose `offload_op` takes matrix products with weights in RAM over from 32 tokens on."""

WIDENS_CACHE = frozenset({"cuda", "rocm"})
"""Flash attention makes a K and V in f16 of a cache in another type, within its output
(`ggml_cuda_flash_attn_ext_get_alloc_size`, ggml-cuda/fattn.cu)."""

_SAME_SIZES = frozenset({40, 64, 72, 80, 96, 112, 128, 256})
_PAIRS = {(192, 128): 8, (320, 256): 32, (512, 512): 2, (576, 512): 2}
"""Of K and V, with the heads that must share a KV head: ggml-cuda/fattn.cu."""

_METAL_SIZES = frozenset({32, 40, 48, 64, 72, 80, 96, 112, 128, 192, 256, 320, 512, 576})
"""ggml-metal/ggml-metal-device.m."""

_OVERHEAD = {
    "cuda": 512 * MIB,
    "rocm": 512 * MIB,
    "sycl": 256 * MIB,
    "vulkan": 128 * MIB,
    "metal": 64 * MIB,
}


def default_overhead(backend: str) -> int:
    """Bytes that a process takes on a device beside llama.cpp's buffers, before it is measured.

    CUDA: the primary context and cuBLAS take 107 MiB on an RTX 4060 Ti, about 455 MiB on an RTX
    4090, 555 to 749 MiB on an RTX PRO 6000 (llama.cpp pull requests 15860 and 23604, issue 27953);
    Ollama reserves 457 MiB. HIP as CUDA. Vulkan, SYCL: pipelines, descriptors and staging, no
    context of that size; start values. Metal: pipelines and residency sets in shared memory. RPC:
    the process that has the context is the server at the other end: nothing on our side.
    """
    return _OVERHEAD.get(backend, 0)


def pipelines(backends: tuple[str, ...], build: int) -> bool:
    """Whether llama.cpp runs these devices, of which it has several, as a pipeline."""
    if len(backends) < 2 or not PIPELINED.issuperset(backends):
        return False
    return "rpc" not in backends or build >= RPC_PIPELINED_SINCE


def has_flash_attention(backend: str, head_k: int, head_v: int, shared: int) -> bool:
    """Whether a backend has one for such heads; `shared`: query heads for each KV head.

    What an RPC server has behind it is not known, and taken to have one.
    """
    if backend in ("cuda", "rocm"):
        if head_k == head_v and head_k in _SAME_SIZES:
            return True
        needed = _PAIRS.get((head_k, head_v))
        return needed is not None and shared >= 2 and shared % needed == 0
    if backend == "metal":
        return head_k in _METAL_SIZES and head_k >= head_v
    return head_k % 8 == 0 and head_v % 8 == 0 if backend == "vulkan" else True
