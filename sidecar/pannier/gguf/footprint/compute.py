"""The compute buffers: what one process reserves on each device for the largest graph it runs.

A buffer holds, for every token of a micro-batch: the rows that pass from layer to layer, the widest
stage of a layer, and on the last device the logits; and beside them the attention masks, which grow
with the context. Devices that work in a pipeline keep four copies of whatever comes in from
outside. After `llama_context::sched_reserve` and ggml's graph allocator (src/llama-context.cpp,
ggml/src/ggml-alloc.c, ggml-backend.cpp); the counts of rows are what b11434's allocation-free
planner reserves, over all families that are known here.

Must not: depend on which layers a device has, only on its place in the row.
"""

from typing import Literal

import msgspec

from pannier.gguf.footprint.borders import STATES_IN_RAM
from pannier.gguf.footprint.cache import Cells
from pannier.gguf.footprint.shape import Shape
from pannier.gguf.footprint.values import LaunchSettings
from pannier.gguf.footprint.widths import Widths

F32 = 4
COPIES = 4
"""GGML_SCHED_MAX_COPIES, ggml/src/ggml-backend.cpp: copies of inputs in a pipeline."""

FIRST_ROWS = 4
"""Rows of a token on the device where the embeddings enter: they come three times (token, vector
and mixed input, `build_inp_embd`), and one is alive beside the layer's own."""

ROWS = 2
"""Rows of a token on any other device: the layer's input, and what it adds to it."""

ENTERING = 3
CROSSING = 2
"""Rows that come from outside, and are kept in every copy: at the embeddings, and between two
devices (a layer's input and the norm of it)."""

HOST_ROWS = 4
HOST_ROWS_COPIED = 10
HOST_ROWS_WIDE = 37
"""Rows of a token in pinned RAM when all layers are on devices: without a pipeline and with one;
in quarters where a row of the embeddings is wider than the model."""

STATES = 2
"""A recurrent layer's states of all slots: as gathered, and as they come out of its scan."""

INDEXED_CELL = 10
"""Bytes per token and cell of an indexer's scores, their order and the mask made of them."""

SLACK = 1 << 18
"""Bytes for positions, indices and alignment, too small to count one by one."""


Kept = Literal["none", "some", "all"]


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """The numbers of one launch that set its buffers; bytes but for `tokens` and `outputs`.

    `masks` are the attention masks and the places of V, `scores` the largest matrix of scores or a
    cache made anew, `copies` of inputs. `entering`: the embeddings enter on a device; `split`:
    layers are in RAM too; `attends`: attention runs where the layer is; `rotated`: K is turned
    before it is quantized; `kept`: the experts of layers on devices that are computed in RAM;
    `shared`: a cache in RAM that layers on devices read, which is copied to them.
    """

    tokens: int
    outputs: int
    masks: int
    scores: int
    copies: int
    entering: bool
    split: bool = False
    attends: bool = True
    shared: int = 0
    rotated: bool = False
    kept: Kept = "none"


def load_of(
    shape: Shape,
    widths: Widths,
    settings: LaunchSettings,
    cells: Cells,
    fused: bool,
    piped: bool,
    whole: bool,
    kept: Kept,
    widened: tuple[int, int],
) -> Load:
    """What a launch asks of every device. `whole`: all layers are on devices.

    `widened` are the bytes per element of K and of V that a fused attention makes anew.
    """
    tokens = min(cells.ubatch, cells.per_stream * cells.streams)
    masks, scores = _masks(shape, widths, cells, fused, tokens)
    if fused and any(widened):
        scores = _widened(shape, cells, widened)
    outputs = settings.outputs
    if outputs is None:
        outputs = cells.slots if settings.pooling == "none" else cells.batch
    return Load(
        tokens=tokens,
        outputs=min(max(1, outputs), tokens),
        masks=masks,
        scores=scores,
        copies=COPIES if piped else 1,
        entering=whole and widths.enters,
        split=not whole,
        attends=settings.kv_offload or not fused,
        shared=_shared(shape, cells),
        rotated=settings.kv_k not in ("f16", "f32", "bf16"),
        kept=kept,
    )


def _masks(shape: Shape, widths: Widths, cells: Cells, fused: bool, tokens: int) -> tuple[int, int]:
    """Bytes of the masks and of the largest scores. Without flash attention both are in f32.

    MLA then also makes a V out of its rows, turned, in f16.
    """
    wide = any(kind.cached and not kind.slides for kind in shape.kinds)
    narrow = any(kind.cached and kind.slides for kind in shape.kinds)
    columns, narrow_columns = cells.per_stream, cells.narrow
    cached = wide or narrow
    if not cached and not any(kind.state for kind in shape.kinds):
        wide, narrow = True, any(kind.slides for kind in shape.kinds)
        columns = narrow_columns = tokens
    element = F32 // 2 if fused else F32
    masks = element * tokens * (columns * wide + narrow_columns * narrow)
    if fused:
        return masks, 0
    masks += 2 * F32 * tokens * widths.value * (wide + narrow) * cached
    scores = max(widths.heads * columns * wide, widths.narrow_heads * narrow_columns * narrow)
    turned = F32 // 2 * max(shape.k) * columns * cells.streams if shape.compressed else 0
    return masks, F32 * tokens * scores + turned


def _widened(shape: Shape, cells: Cells, widened: tuple[int, int]) -> int:
    """Bytes of the largest layer's K and V made anew; MLA's V is a part of its K."""
    k, v = widened
    v = 0 if shape.compressed else v
    return cells.streams * max(
        (
            (k * kind.k + v * kind.v) * (cells.narrow if kind.slides else cells.per_stream)
            for kind in shape.kinds
            if kind.cached
        ),
        default=0,
    )


def _shared(shape: Shape, cells: Cells) -> int:
    """Bytes of the caches that layers without one of their own read: two of each kind, in f16."""
    if shape.shared_from is None:
        return 0
    return cells.streams * sum(
        4 * (kind.k + kind.v) * (cells.narrow if kind.slides else cells.per_stream)
        for kind in shape.kinds
        if kind.cached
    )


def device_bytes(
    shape: Shape, widths: Widths, load: Load, cells: Cells, first: bool, last: bool
) -> int:
    """The compute buffer of a device by its place; `last` has the output layer."""
    token = F32 * load.tokens
    enters = first and load.entering
    rows = _rows(shape, widths, load, enters, first)
    wide = enters and widths.input > shape.embd
    gathered = token * widths.gathered if load.kept != "none" else 0
    stage = token * widths.dense_stage + gathered
    if load.kept != "all":
        stage = max(stage, token * widths.stage)
    stage += STATES * widths.state * cells.slots
    scattered = token * (widths.scattered_first if enters else widths.scattered_alone)
    if load.kept == "all":
        scattered = 0  # no experts' rows lie in the way
    if load.copies > 1:
        rows += _copied_rows(shape, widths, load, enters, first, last)
        scattered = token * widths.scattered
        stage += 0 if first else token * widths.mixed
    if load.scores:
        beside = token * widths.beside + gathered
        stage = max(stage, load.scores + beside + min(scattered, load.scores))
    if load.split:
        stage += load.shared
    if not load.attends:
        stage = max(stage + token * (FIRST_ROWS + 1) * shape.embd, token * widths.away)
    if last:
        logits = F32 * load.outputs * (widths.logits + shape.embd)
        stage = stage + logits if wide else max(stage, logits + min(scattered, logits))
    if load.copies == 1 and enters:
        stage += token * widths.loose
    held = token * (widths.held * load.copies + widths.chosen)
    if widths.chosen:
        stage += INDEXED_CELL * load.tokens * cells.per_stream
    masks = load.masks * load.copies if load.attends else 0
    return token * rows + stage + held + masks + SLACK


def _rows(shape: Shape, widths: Widths, load: Load, enters: bool, first: bool) -> int:
    """Floats per token of the rows that pass from layer to layer, and between RAM and device."""
    if enters:
        rows = (FIRST_ROWS + (widths.input > shape.embd)) * widths.input
        rows += shape.embd if load.rotated and shape.window else 0
    elif load.copies > 1:
        rows = ROWS * shape.embd
    elif first and not load.split:
        rows = shape.embd  # the embeddings were added up in RAM
    else:
        rows = (ROWS + 1) * shape.embd + (widths.piped if shape.window else 0)
    if load.copies == 1 and not first:
        rows += widths.returning + widths.crossing // 2
    if load.split and first:
        rows += widths.border + widths.crossing // 4
    return rows


def _copied_rows(
    shape: Shape, widths: Widths, load: Load, enters: bool, first: bool, last: bool
) -> int:
    """Floats per token of what comes in from outside in every copy, and once more with it."""
    wide = widths.input > shape.embd
    if enters:
        entering, once = (ENTERING + wide) * widths.input, wide * widths.input * 3 // 2
    else:
        entering, once = (CROSSING if widths.normed else 1) * shape.embd, shape.embd
    if not first:
        entering += widths.crossing
    if not last:
        entering += widths.returning
    once += widths.turned if load.rotated else 0
    return load.copies * entering + widths.piped + widths.streams + once


def host_bytes(
    shape: Shape,
    widths: Widths,
    load: Load,
    cells: Cells,
    *,
    layers: bool,
    experts: bool,
    output: bool,
) -> int:
    """The compute buffer of the host: `layers` of its own, or `experts` of others."""
    token = F32 * load.tokens
    rows = HOST_ROWS * widths.input
    if load.copies > 1:
        wide = widths.input > shape.embd
        rows = HOST_ROWS_WIDE * widths.input // 4 if wide else HOST_ROWS_COPIED * widths.input
    rows += 0 if widths.enters else shape.embd
    rows += shape.embd if widths.held else 0
    masks = load.masks
    if widths.chosen:
        masks += F32 // 2 * load.tokens * cells.per_stream
    size = token * (rows + widths.held) + masks * load.copies + SLACK
    if not load.attends and any(kind.state for kind in shape.kinds):
        size += token * STATES_IN_RAM.get(shape.architecture, 3) * shape.embd
    if not (layers or experts):
        return size
    stage = token * widths.experts if experts else 0
    if layers:
        size += token * widths.chosen
        stage = max(stage, token * widths.stage + STATES * widths.state * cells.slots)
    if layers:
        size += token * (widths.input - shape.embd)
        stage = max(stage, load.scores + token * widths.beside)
    if output:
        stage = max(stage, F32 * load.outputs * (widths.logits + shape.embd))
    return size + stage + token * shape.embd
