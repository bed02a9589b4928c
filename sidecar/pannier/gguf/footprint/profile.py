"""A model as the footprint needs it: everything that its header alone decides, made once.

What a launch can change (context, slots, cache types, devices, ...) is in none of it, so a planner
that tries thousands of settings reads a header once. An architecture that is not in the tables
becomes an upper bound: all layers keep all cells, all tensors are loaded, and its computation is as
wide as all of a layer's matrices together.

Must not: raise for anything a header may hold.
"""

import msgspec

from pannier.gguf.footprint.architecture import GRADED, KNOWN
from pannier.gguf.footprint.keys import Keys
from pannier.gguf.footprint.shape import Shape, shape_of
from pannier.gguf.footprint.unknown import bounding_shape, bounding_weights, bounding_widths
from pannier.gguf.footprint.weights import Weights, largest_expert, weights_of
from pannier.gguf.footprint.widths import Widths, widths_of
from pannier.gguf.header import Header

_RANK = 4
"""LLAMA_POOLING_TYPE_RANK, include/llama.h."""


class Profile(msgspec.Struct, frozen=True, kw_only=True):
    """What of a model does not depend on how it is launched.

    `exact` is false when the architecture is not known or its numbers are not usable; `notes` then
    say which. `largest` is the bytes of the largest tensor of any layer, `largest_expert` of any
    experts.
    `head_sizes` are the sizes of heads of K and V, with the query heads for each KV head.
    """

    shape: Shape
    weights: Weights
    widths: Widths
    exact: bool
    largest_expert: int
    largest: int
    reranks: bool
    head_sizes: frozenset[tuple[int, int, int]]
    notes: tuple[str, ...] = ()

    @property
    def architecture(self) -> str:
        """The name that the file gives itself; empty when it gives none."""
        return self.shape.architecture

    @property
    def units(self) -> int:
        """What `-ngl` and `-ts` count: the layers, and the output layer as one more."""
        return self.shape.layers + 1

    @property
    def has_experts(self) -> bool:
        """Whether there are experts to keep in RAM."""
        return any(self.weights.experts) or any(self.weights.mtp_experts)

    @property
    def expert_layers(self) -> int:
        """The layers up to the last one with experts: the most that `--n-cpu-moe` moves."""
        return max((il + 1 for il, size in enumerate(self.weights.experts) if size), default=0)

    @property
    def has_kv(self) -> bool:
        """Whether memory grows with the context."""
        return any(self.shape.cached)

    @property
    def is_causal(self) -> bool:
        """Whether a prompt may be longer than one micro-batch; false for encoders."""
        return self.shape.causal

    @property
    def embeds(self) -> bool:
        """Whether the file says that it is made for embeddings or for ranking."""
        return self.shape.pooled > 0 or not self.has_logits

    @property
    def has_logits(self) -> bool:
        """Whether it predicts tokens: it has an output matrix, its own or the embeddings."""
        return self.weights.tied > 0 or self.shape.causal

    @property
    def drafts(self) -> bool:
        """Whether the file has layers that draft tokens (MTP)."""
        return self.shape.trunk < self.shape.layers

    @property
    def indivisible(self) -> str | None:
        """Why it must not be split over devices, if so."""
        if self.shape.shared_from is None:
            return None
        return (
            f"the last {self.shape.layers - self.shape.shared_from} layers of a {self.architecture}"
            " model read the KV cache of earlier ones: split, each device would copy it"
        )


def profile_of(header: Header) -> Profile:
    """What `header` says of a model. Never raises."""
    keys = Keys(header)
    shape = shape_of(keys)
    notes = _doubts(keys, shape)
    if notes:
        shape = bounding_shape(shape, keys, header.tensors)
        weights = bounding_weights(weights_of(shape, header.tensors))
        widths = bounding_widths(shape, keys, header.tensors)
    else:
        weights = weights_of(shape, header.tensors)
        widths = widths_of(shape, keys, header.tensors)
    if shape.architecture in GRADED:
        notes = (*notes, GRADED[shape.architecture])
    expert, largest = largest_expert(header.tensors)
    return Profile(
        shape=shape,
        weights=weights,
        widths=widths,
        exact=not notes,
        largest_expert=expert,
        largest=largest,
        reranks=shape.pooled == _RANK,
        head_sizes=_head_sizes(shape),
        notes=notes,
    )


def trained_context(profile: Profile) -> int:
    """Tokens of the window that the model was trained on; 0 when the file does not say."""
    return profile.shape.trained


def _doubts(keys: Keys, shape: Shape) -> tuple[str, ...]:
    """Why the numbers of this header cannot be taken as they are; empty when they can."""
    name = shape.architecture
    if not name:
        return ("the file names no architecture: this is an upper bound from its tensors",)
    if name not in KNOWN:
        return (
            f'the architecture "{name}" is not known here: this is an upper bound from its tensors',
        )
    missing = [
        key for key in ("block_count", "embedding_length", "context_length") if not keys.count(key)
    ]
    if not any(shape.heads) and not any(shape.recurrent):
        missing.append("attention.head_count")
    odd = sorted(keys.odd.union(missing))
    if odd:
        listed = ", ".join(f"{name}.{key}" for key in odd)
        return (f"{listed} cannot be used: this is an upper bound from the file's tensors",)
    return ()


def _head_sizes(shape: Shape) -> frozenset[tuple[int, int, int]]:
    sizes = set()
    for il in range(shape.trunk):
        shared = shape.kv_heads[il]
        if shared and (shape.cached[il] or not shape.recurrent[il]):
            sizes.add((shape.k[il] // shared, shape.v[il] // shared, shape.heads[il] // shared))
    return frozenset(sizes)
