"""The KV cache and the recurrent state: how many cells a launch has, and what a layer takes.

A layer that attends keeps one row of K and one of V per cell, of the width and type that were
chosen (none of V where attention is compressed to one latent row, MLA); one that slides has cells
for its window alone; a recurrent one keeps a state of fixed size per slot, in f32, whatever the
context. After `llama_context`'s constructor, src/llama-kv-cache*.cpp and
src/llama-memory-recurrent.cpp of llama.cpp b11434.

Must not: know on which device a layer is.
"""

import msgspec

from pannier.gguf.footprint.architecture import ROLLBACK
from pannier.gguf.footprint.shape import Shape
from pannier.gguf.footprint.values import LaunchSettings
from pannier.gguf.quant import KV_TYPES

PAD = 256
"""Cells come in steps of this: `GGML_PAD(cparams.n_ctx, 256)`, src/llama-context.cpp."""

MOST_CONTEXT = 1 << 31
"""Tokens; `n_ctx` is an unsigned 32-bit number, and nothing that is known to run needs more."""

MOST_SLOTS = 256
"""LLAMA_MAX_SEQ, src/llama-cparams.h."""

DRAFTED = 3
"""Tokens that are drafted at once by default: `n_max`, common/common.h."""

F32 = 4


class Cells(msgspec.Struct, frozen=True, kw_only=True):
    """What a launch's numbers become inside llama.cpp.

    `batch`, `ubatch` are tokens; `per_stream` the cells of one stream that does not slide, `narrow`
    of one that does; there are `streams` of each. `slots` are the recurrent states, and `states`
    the copies kept of each.
    """

    batch: int
    ubatch: int
    per_stream: int
    narrow: int
    streams: int
    slots: int
    states: int


def cells_of(shape: Shape, settings: LaunchSettings) -> Cells:
    """The cells of `shape` launched with `settings`; anything below one counts as one."""
    slots = min(max(1, settings.slots), MOST_SLOTS)
    asked = max(1, settings.context) * (1 if settings.unified else slots)
    asked = min(asked, MOST_CONTEXT)
    ubatch = max(1, settings.ubatch)
    batch = max(1, settings.batch)
    if settings.pooling != "none":
        batch = ubatch
    if shape.causal:
        batch = min(batch, asked)
    ubatch = min(ubatch, batch)
    streams = 1 if settings.unified else slots
    per_stream = _padded(_padded(asked) // streams)
    window = shape.window * (slots if settings.unified else 1)
    narrow = per_stream if settings.swa_full else _padded(min(per_stream, window + ubatch))
    drafts = settings.mtp and shape.architecture in ROLLBACK
    return Cells(
        batch=batch,
        ubatch=ubatch,
        per_stream=per_stream,
        narrow=narrow,
        streams=streams,
        slots=slots,
        states=1 + DRAFTED if drafts else 1,
    )


def layer_bytes(shape: Shape, settings: LaunchSettings, cells: Cells, fused: bool) -> list[int]:
    """Bytes of cache and state of every layer. `fused`: flash attention is on.

    Without it V lies transposed, as wide in every layer as in the widest ([TAG_V_CACHE_VARIABLE],
    src/llama-kv-cache.cpp). An unknown type counts as f16.
    """
    widest = None if fused else max(shape.v, default=0)
    state = F32 * shape.state * cells.slots * cells.states
    sizes = []
    for kind in shape.kinds:
        size = state if kind.state else 0
        if kind.cached:
            v = kind.v if widest is None else widest
            rows = cells.narrow if kind.slides else cells.per_stream
            size += rows * _rows(shape, settings, cells, kind.k, v)
        sizes.append(size)
    return [sizes[kind] for kind in shape.kind_of]


def _rows(shape: Shape, settings: LaunchSettings, cells: Cells, k: int, v: int) -> int:
    row = row_bytes(settings.kv_k, k) + row_bytes(settings.kv_k, shape.index)
    if not shape.compressed:
        row += row_bytes(settings.kv_v, v)
    return row * cells.streams


def row_bytes(kind: str, elements: int) -> int:
    """Bytes of a row of `elements`, rounded up to whole blocks; an unknown type counts as f16."""
    known = KV_TYPES.get(kind) or KV_TYPES["f16"]
    return -(-elements // known.block) * known.size


def mtp_bytes(shape: Shape, cells: Cells) -> list[int]:
    """Bytes of cache of every layer in the second context that drafts with the MTP layers.

    In f16, whatever the types of the main one (`common_base_params_to_speculative`,
    common/speculative.cpp).
    """
    plain = LaunchSettings(context=1)
    return [
        _rows(shape, plain, cells, k, v) * cells.per_stream if il >= shape.trunk else 0
        for il, (k, v) in enumerate(zip(shape.k, shape.v, strict=True))
    ]


def snapshot_bytes(shape: Shape, settings: LaunchSettings, cells: Cells) -> int:
    """Bytes of one checkpoint of one slot: what a prompt cannot be rolled back without.

    The cells of the layers that slide, for the window alone, and the recurrent state
    (`LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY`, src/llama-kv-cache-iswa.cpp and
    src/llama-memory-hybrid.cpp); nothing for plain attention, where no checkpoint is made, nor
    when the layers that slide keep all cells.
    """
    size = F32 * shape.state * sum(shape.recurrent[: shape.trunk])
    if shape.window and not settings.swa_full:
        kept = min(cells.narrow, cells.per_stream)
        for il, slides in enumerate(shape.sliding):
            if slides and shape.cached[il]:
                row = row_bytes(settings.kv_k, shape.k[il]) + row_bytes(settings.kv_v, shape.v[il])
                size += row * kept
    return size


def _padded(cells: int) -> int:
    return -(-cells // PAD) * PAD
