"""Projectors, the files beside a vision model that turn an image into its tokens.

Must not: hold language models.
"""

from functools import partial

from tests.gguf_models.draft import Cut
from tests.gguf_writer import GgufWriter


def siglip(
    cut: Cut,
    *,
    out: int,
    layers: int = 27,
    width: int = 1152,
    inner: int = 4304,
    heads: int = 16,
    image: int = 896,
    patch: int = 14,
) -> GgufWriter:
    """The projector of gemma3: SigLIP over one square image, then one matrix."""
    writer = GgufWriter("clip", "Made projector")
    writer.meta("general.type", "mmproj")
    writer.meta("clip.has_vision_encoder", True)
    writer.meta("clip.projector_type", "gemma3")
    writer.meta("clip.use_gelu", True)
    layers = min(layers, cut.layers or layers)
    sizes = {
        "image_size": image,
        "patch_size": patch,
        "embedding_length": width,
        "feed_forward_length": inner,
        "projection_dim": out,
        "block_count": layers,
        "attention.head_count": heads,
    }
    for key, value in sizes.items():
        writer.meta(f"clip.vision.{key}", value)
    writer.meta("clip.vision.attention.layer_norm_epsilon", 1e-6)
    writer.meta("clip.vision.image_mean", [0.5] * 3)
    writer.meta("clip.vision.image_std", [0.5] * 3)
    writer.tensor("mm.input_projection.weight", out, width, kind="F16")
    writer.tensor("mm.soft_emb_norm.weight", width)
    writer.tensor("v.patch_embd.weight", patch, patch, 3, width, kind="F16")
    writer.tensor("v.patch_embd.bias", width)
    writer.tensor("v.position_embd.weight", width, (image // patch) ** 2)
    for end in ("weight", "bias"):
        writer.tensor(f"v.post_ln.{end}", width)
    for layer in range(layers):
        block = f"v.blk.{layer}"
        parts = {"attn_q": (width, width), "attn_k": (width, width), "attn_v": (width, width)}
        parts |= {"attn_out": (width, width), "ffn_up": (width, inner), "ffn_down": (inner, width)}
        for part, dims in parts.items():
            writer.tensor(f"{block}.{part}.weight", *dims, kind="F16")
            writer.tensor(f"{block}.{part}.bias", dims[1])
        for end in ("weight", "bias"):
            writer.tensor(f"{block}.ln1.{end}", width)
            writer.tensor(f"{block}.ln2.{end}", width)
    return writer


PROJECTORS = {
    "mmproj-gemma3-4b": partial(siglip, out=2560),
    "mmproj-gemma3-27b": partial(siglip, out=5376),
}
