"""The projector of a vision or audio model: what clip takes beside the language model.

All its tensors go to one device, and one buffer grows to the largest input it is given: the widest
layer for every patch of the largest image that its kind accepts, or of 30 seconds of sound. After
tools/mtmd/clip.cpp and clip-model.h of llama.cpp b11434. A start reserves the buffer for a smaller
picture, so a model that loads can still run out of memory at the first large one: the worst case
counts here.

Must not: know the language model.
"""

import msgspec

from pannier.gguf.footprint.keys import Keys
from pannier.gguf.header import Header

F32 = 4
MIB = 1 << 20

_MOST_TOKENS = {
    "qwen2vl_merger": 4096,
    "qwen2.5vl_merger": 4096,
    "qwen3vl_merger": 4096,
    "ling3vl": 4096,
    "glm4v": 4096,
    "kimik25": 4096,
    "muse-glimmer": 4096,
    "mimovl": 4096,
    "exaone4_5": 4096,
    "dots_ocr": 4096,
    "hunyuanvl": 16384,
    "pixtral": 1024,
    "lightonocr": 1024,
    "kimivl": 1024,
    "gemma4v": 1120,
    "gemma4uv": 1120,
    "minimax_m3": 576,
    "lfm2": 256,
}
"""Tokens of the largest image: `set_limit_image_tokens`, clip.cpp, by kind. All others take images
of one size, or slices of it; of mimovl, exaone4_5 and dots_ocr the file says it in pixels."""

_MERGED = {"gemma4v": 3, "gemma4uv": 3, "gemma3": 4, "pixtral": 1, "lightonocr": 1}
_MERGED_ELSE = 2
"""Patches on each side of a token, where the file does not say: `n_merge`, clip.cpp."""

_SOUND = 3000
"""Frames of 10 ms of the longest piece of sound: mtmd-audio.cpp."""

_MEASURED = frozenset({"gemma3"})
"""Kinds whose buffer was compared with what a server reserves."""

_ROWS = 3
"""Rows of the width that are alive beside the widest of a layer (measured with gemma3, b11434)."""


class Projector(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes of a projector: its tensors, and its buffer for the largest input."""

    weights: int
    compute: int
    exact: bool = True
    notes: tuple[str, ...] = ()


def projector_of(header: Header) -> Projector:
    """What the projector in a file takes, with pictures as large as it accepts. Never raises."""
    keys = Keys(header)
    weights = sum(-(-tensor.size // 32) * 32 for tensor in header.tensors)
    sees = any(tensor.name.startswith("v.") for tensor in header.tensors)
    hears = any(tensor.name.startswith("a.") for tensor in header.tensors)
    kind = _kind(keys, header)
    compute = max(_sight(keys, kind) if sees else 0, _hearing(keys) if hears else 0)
    exact = kind in _MEASURED and compute > 0
    if not compute:
        compute = max(256 * MIB, weights // 2)
        return Projector(
            weights=weights,
            compute=compute,
            exact=False,
            notes=(
                "the projector does not say its dimensions: its buffer is a guess from its size",
            ),
        )
    notes = () if exact else ("the projector's buffer is an upper bound for its largest input",)
    return Projector(weights=weights, compute=compute, exact=exact, notes=notes)


def _kind(keys: Keys, header: Header) -> str:
    for name in ("clip.projector_type", "clip.vision.projector_type", "clip.audio.projector_type"):
        if found := keys.text(name):
            return found
    return ""


def _sight(keys: Keys, kind: str) -> int:
    """Bytes of the buffer for one image: every patch as wide as the widest layer and its rows."""
    width = keys.count("vision.embedding_length")
    inner = keys.count("vision.feed_forward_length")
    patches = _patches(keys, kind)
    if not width or not patches:
        return 0
    size = F32 * patches * (inner + _ROWS * width)
    if kind in _MEASURED:
        return size
    return size + F32 * patches * 2 * width + 8 * MIB


def _patches(keys: Keys, kind: str) -> int:
    side = keys.count("vision.patch_size")
    image = keys.count("vision.image_size")
    if not side:
        return 0
    fixed = (image // side) ** 2
    merged = (
        keys.count("vision.spatial_merge_size")
        or keys.count("vision.projector.scale_factor")
        or _MERGED.get(kind, _MERGED_ELSE)
    )
    most = _MOST_TOKENS.get(kind)
    pixels = keys.count("vision.image_max_pixels")
    if pixels:
        return max(fixed, pixels // side**2)
    return max(fixed, most * merged**2) if most else fixed


def _hearing(keys: Keys) -> int:
    """Bytes of the buffer for 30 seconds: before the frames are halved, and one layer after it."""
    width = keys.count("audio.embedding_length")
    inner = keys.count("audio.feed_forward_length")
    heads = keys.count("audio.attention.head_count")
    bins = keys.count("audio.num_mel_bins", 128)
    layer = inner + 6 * width
    scores = _SOUND // 2 * heads
    return F32 * (_SOUND * (3 * bins + 3 * width) + _SOUND // 2 * (layer + scores)) if width else 0
