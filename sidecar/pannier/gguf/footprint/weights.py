"""Where the tensors of a file go: bytes of weights by unit of the split.

llama.cpp gives each tensor to the input layer (always on the host), to a repeating layer or to the
output layer by its name (`LLM_TENSOR_INFOS`, src/llama-arch.cpp, b11434), and loads every tensor
that its code asks for; files with others are refused. So the tensor table alone says all, but for
two things: a missing output matrix is the embeddings, loaded a second time where the output is, and
MTP layers stay in the file unless they are asked for.

Must not: know about devices or settings.
"""

import re
from collections.abc import Iterable

import msgspec

from pannier.gguf.footprint.architecture import NO_OUTPUT, ROW_NORM_OUT, TIED_TWICE
from pannier.gguf.footprint.shape import Shape, aside
from pannier.gguf.header import Tensor

ALIGNMENT = 128
"""Bytes to which a tensor is padded in a buffer of a device: ggml/src/ggml-cuda/ggml-cuda.cu."""

HOST_ALIGNMENT = 32
"""The same on the host and for an RPC server without a GPU: TENSOR_ALIGNMENT, ggml-impl.h."""

REPACKED = frozenset({2, 12, 20})
"""Types (q4_0, q4_K, iq4_nl) that a CPU with AVX2 or NEON repacks: ggml-cpu/repack.cpp."""

_BLOCK = re.compile(r"(?:enc\.|dec\.)?blk\.(\d{1,3})\.(.+)")

EXPERTS = re.compile(r"ffn_(up|down|gate|gate_up)_(ch|)exps")
"""What `--cpu-moe` and `--n-cpu-moe` move: LLM_FFN_EXPS_REGEX, common/common.h."""

_INPUT = ("token_embd", "position_embd", "token_types", "per_layer_token_embd")
_FIRST = ("token_embd_norm", "per_layer_model_proj", "per_layer_proj_norm", "hrm_z_l_init")
"""Named without a layer, and made with the first one: `create_tensor(..., 0)` in src/models."""

_EVERYWHERE = ("rope_freqs", "rope_factors_long", "rope_factors_short")
"""Copied to every device that has layers (TENSOR_DUPLICATED in src/models)."""

_UNREAD = ("masked_embd_centroids", "masked_embd_ordering")


class Weights(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes of weights, padded as in a buffer.

    `layers` are what each layer holds but for its experts, `experts` those, `whole` both. `output`
    goes with the output layer, `tied` is the copy of the embeddings there; in RAM they are mostly
    copied only if their type is repacked for matrix products: `tied_in_ram`. `inputs` are on the
    host always, `first` with the first layer, `everywhere` once on every device that has a layer.
    `mtp` and `mtp_experts` are layers that are only there when asked for, and zero in the others.
    """

    layers: tuple[int, ...]
    experts: tuple[int, ...]
    whole: tuple[int, ...]
    mtp: tuple[int, ...]
    mtp_experts: tuple[int, ...]
    inputs: int
    first: int
    everywhere: int
    output: int
    tied: int
    tied_in_ram: int


def weights_of(shape: Shape, tensors: Iterable[Tensor]) -> Weights:
    """The bytes by place. Tensors of layers that the model does not have go to the output."""
    plain, experts = [0] * shape.layers, [0] * shape.layers
    sums = dict.fromkeys(("inputs", "first", "everywhere", "output"), 0)
    embeddings, has_output, repacked = 0, False, False
    for tensor in tensors:
        size = _padded(tensor.size)
        found = _BLOCK.match(tensor.name)
        if found and int(found[1]) < shape.layers:
            place = experts if EXPERTS.search(found[2]) else plain
            place[int(found[1])] += size
            continue
        base = tensor.name.partition(".")[0]
        if base == "token_embd":
            embeddings += size
            repacked = tensor.kind in REPACKED
        has_output = has_output or tensor.name == "output.weight"
        place_name = _place(base, shape)
        if place_name:
            sums[place_name] += size
    asides = aside(shape)
    tied = 0 if has_output or shape.architecture in NO_OUTPUT else embeddings
    kept = tuple(0 if il in asides else size for il, size in enumerate(plain))
    kept_experts = tuple(0 if il in asides else size for il, size in enumerate(experts))
    return Weights(
        layers=kept,
        experts=kept_experts,
        whole=tuple(map(int.__add__, kept, kept_experts)),
        mtp=tuple(size if il in asides else 0 for il, size in enumerate(plain)),
        mtp_experts=tuple(size if il in asides else 0 for il, size in enumerate(experts)),
        tied=tied,
        tied_in_ram=tied if repacked or shape.architecture in TIED_TWICE else 0,
        **sums,
    )


def _place(base: str, shape: Shape) -> str:
    if base == "token_embd_norm" and shape.architecture in ROW_NORM_OUT:
        return "output"
    if base in _UNREAD:
        return ""
    if base in _INPUT:
        return "inputs"
    if base in _FIRST:
        return "first"
    return "everywhere" if base in _EVERYWHERE else "output"


def _padded(size: int) -> int:
    return -(-size // HOST_ALIGNMENT) * HOST_ALIGNMENT


def largest_expert(tensors: Iterable[Tensor]) -> tuple[int, int]:
    """Bytes of the largest tensor of experts, and of the largest tensor of any layer."""
    expert = largest = 0
    for tensor in tensors:
        if _BLOCK.match(tensor.name):
            largest = max(largest, tensor.size)
            if EXPERTS.search(tensor.name):
                expert = max(expert, tensor.size)
    return expert, largest
