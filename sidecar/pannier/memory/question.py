"""What a person asks of `pannier memory`, the launch that it means, and the answer. Pure.

The options are words of config.toml, so the launch is the one that `serve` would make of them: the
same batches for embedders, no prompt cache, few checkpoints, and weights that are read, not mapped.

Must not: read the file; what only it says, the trained window, is handed in.
"""

import msgspec

from pannier.gguf.footprint.values import FlashAttention, Footprint, LaunchSettings, Pooling

MOST_DEVICES = 16
"""`llama_max_devices`, src/llama.cpp, b11434."""

UNSAID_CONTEXT = 8192
"""Tokens where neither the person nor the file says how many."""


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """The options as they were given.

    `context` in tokens as LaunchSettings counts them, None: the trained window. `gpu_layers` and
    `cpu_moe` None: all. `split` has one weight for each of the `devices`, None: equal ones.
    """

    model: str
    mmproj: str | None = None
    draft: str | None = None
    context: int | None = None
    slots: int = 1
    unified: bool = False
    kv_k: str = "f16"
    kv_v: str = "f16"
    flash_attention: FlashAttention = "auto"
    batch: int = 2048
    ubatch: int = 512
    gpu_layers: int | None = None
    cpu_moe: int | None = 0
    backend: str = "cuda"
    devices: int = 1
    split: tuple[int, ...] | None = None
    pooling: Pooling = "none"

    def settings(self, trained: int) -> LaunchSettings:
        """The launch of a model that was trained on a window of so many tokens; 0: not known."""
        context = self.context or trained or UNSAID_CONTEXT
        batch, ubatch = self.batch, self.ubatch
        if self.pooling != "none":
            # One input must fit one physical batch, else the request is refused.
            batch = ubatch = min(context, max(batch, ubatch))
        return LaunchSettings(
            context=context,
            slots=self.slots,
            unified=self.unified,
            kv_k=self.kv_k,
            kv_v=self.kv_v,
            flash_attention=self.flash_attention,
            batch=batch,
            ubatch=ubatch,
            gpu_layers=self.gpu_layers,
            cpu_moe=self.cpu_moe,
            devices=(self.backend,) * self.devices,
            split=self.split,
            pooling=self.pooling,
        )


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What a launch takes. `parts` is the number of the model's files."""

    model: str
    parts: int
    architecture: str
    settings: LaunchSettings
    footprint: Footprint
    notes: tuple[str, ...] = ()
