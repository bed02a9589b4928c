"""The upper bound of a model whose architecture is not known, or whose numbers are unusable.

Whatever llama.cpp may do with the tensors of a file, it does not load more than all of them, does
not keep more KV than full rows for all cells of all layers, and hardly has more alive at once than
the outputs of all matrices of one layer. Numbers that the metadata does not give are taken from the
dimensions of the tensors.

Must not: be exact about anything.
"""

import re
from collections.abc import Iterable

import msgspec

from pannier.gguf.footprint.keys import Keys
from pannier.gguf.footprint.shape import MOST_LAYERS, Shape, kinds_of
from pannier.gguf.footprint.weights import Weights
from pannier.gguf.footprint.widths import Widths, widths_of
from pannier.gguf.header import Tensor

_LAYER = re.compile(r"(?:\w+\.)?blk\.(\d{1,3})\.(.+)")


def bounding_shape(shape: Shape, keys: Keys, tensors: Iterable[Tensor]) -> Shape:
    """A shape that takes at least what any known one with these tensors would."""
    tensors = tuple(tensors)
    layers = max(shape.layers, _layers(tensors))
    embd = max(shape.embd, _row(tensors, "token_embd.weight"), _row(tensors, "output_norm.weight"))
    heads = max((*shape.heads, 1))
    state = shape.state if any(shape.recurrent) else max(shape.state, _state(keys, embd))
    width_k = max((*shape.k, heads * shape.head_k, _widest(tensors, "attn_k.weight")))
    width_v = max((*shape.v, heads * shape.head_v, _widest(tensors, "attn_v.weight")))
    cached = any(shape.k) or any("attn" in tensor.name for tensor in tensors)
    k = (_kv_width(tensors, "k", width_k),) * layers
    v = (_kv_width(tensors, "v", width_v),) * layers
    caches, states = (cached,) * layers, (state > 0,) * layers
    kinds, kind_of = kinds_of(k, v, (False,) * layers, caches, states, layers)
    return msgspec.structs.replace(
        shape,
        layers=layers,
        trunk=layers,
        embd=embd,
        vocab=max(
            shape.vocab, _rows(tensors, "token_embd.weight"), _rows(tensors, "output.weight")
        ),
        heads=(heads,) * layers,
        kv_heads=(max((*shape.kv_heads, 1)),) * layers,
        k=k,
        v=v,
        sliding=(False,) * layers,
        window=0,
        cached=caches,
        recurrent=states,
        kinds=kinds,
        kind_of=kind_of,
        index=max(shape.index, keys.count("attention.indexer.key_length")),
        state=state,
        compressed=False,
        shared_from=None,
        causal=True,
    )


def bounding_weights(weights: Weights) -> Weights:
    """With the tensors that belong to no layer on the device in any case."""
    return msgspec.structs.replace(weights, first=0, output=weights.output + weights.first)


def bounding_widths(shape: Shape, keys: Keys, tensors: Iterable[Tensor]) -> Widths:
    """Widths with the outputs of all matrices of the widest layer alive at once."""
    tensors = tuple(tensors)
    known = widths_of(shape, keys, tensors)
    sums = [0] * MOST_LAYERS
    used = max(1, shape.used)
    for tensor in tensors:
        found = _LAYER.match(tensor.name)
        if found and int(found[1]) < MOST_LAYERS and len(tensor.dims) > 1:
            experts = len(tensor.dims) > 2 or "_exps" in found[2]
            sums[int(found[1])] += max(tensor.dims[:2]) * (used if experts else 1)
    stage = max(known.stage, 2 * max(sums)) + 8 * shape.embd
    return msgspec.structs.replace(
        known,
        stage=stage,
        dense_stage=stage,
        enters=True,
        normed=True,
        experts=max(known.experts, stage),
        heads=max(shape.heads, default=0),
        beside=max(known.beside, stage),
        crossing=max(known.crossing, 4 * shape.embd),
        returning=max(known.returning, 2 * shape.embd),
    )


def _layers(tensors: Iterable[Tensor]) -> int:
    numbers = [int(found[1]) for tensor in tensors if (found := _LAYER.match(tensor.name))]
    return min(MOST_LAYERS, max(numbers, default=-1) + 1)


def _row(tensors: Iterable[Tensor], name: str) -> int:
    return max((t.dims[0] for t in tensors if t.name == name and t.dims), default=0)


def _rows(tensors: Iterable[Tensor], name: str) -> int:
    return max((t.dims[1] for t in tensors if t.name == name and len(t.dims) > 1), default=0)


def _widest(tensors: Iterable[Tensor], end: str) -> int:
    found = (t.dims[1] for t in tensors if t.name.endswith(end) and len(t.dims) > 1)
    return max(found, default=0)


def _kv_width(tensors: Iterable[Tensor], letter: str, said: int) -> int:
    """The width of a row of K or V: what the matrices give, else what the metadata says."""
    own = _widest(tensors, f"attn_{letter}.weight")
    latent = _widest(tensors, "attn_kv_a_mqa.weight")
    return max(own, latent) if own and not latent else max(said, latent)


def _state(keys: Keys, embd: int) -> int:
    """A state of any kind, as wide as the widest of them."""
    inner, size = keys.count("ssm.inner_size"), keys.count("ssm.state_size")
    conv = keys.count("ssm.conv_kernel")
    mamba = conv * (inner + 2 * keys.count("ssm.group_count") * size) + inner * size
    wkv = keys.count("wkv.head_size")
    kda = keys.count("kda.head_dim")
    heads = keys.count("attention.head_count")
    return max(
        mamba,
        embd * (2 + wkv) if wkv else 0,
        embd * keys.count("shortconv.l_cache"),
        heads * kda * (3 * (conv or 4) + kda),
    )
