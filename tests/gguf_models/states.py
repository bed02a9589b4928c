"""The parts of a layer that keep a state instead of keys and values, each kind once.

Must not: know a whole model; those are in `recurrent`.
"""

from functools import partial

from tests.gguf_models.draft import Draft


def state_meta(
    draft: Draft, *, inner: int, state: int, rank: int, conv: int = 4, groups: int = 0
) -> None:
    """The sizes of the states; `rank` is how many heads they have, in the newer kinds."""
    draft.arch_meta(
        ssm__conv_kernel=conv,
        ssm__inner_size=inner,
        ssm__state_size=state,
        ssm__time_step_rank=rank,
    )
    if groups:
        draft.arch_meta(ssm__group_count=groups)


def mamba_mixer(
    draft: Draft, layer: int, inner: int, state: int, rank: int, normed: bool = False
) -> None:
    """The states of the first mamba: one decay for each channel and state."""
    block = partial(draft.block, layer)
    block("ssm_in.weight", draft.width, 2 * inner)
    block("ssm_conv1d.weight", 4, inner)
    block("ssm_conv1d.bias", inner)
    block("ssm_x.weight", inner, rank + 2 * state)
    block("ssm_dt.weight", rank, inner)
    block("ssm_dt.bias", inner)
    block("ssm_a", state, inner)
    block("ssm_d", inner)
    block("ssm_out.weight", inner, draft.width)
    if normed:
        for name, wide in (("dt", rank), ("b", state), ("c", state)):
            block(f"ssm_{name}_norm.weight", wide)


def mamba2_mixer(
    draft: Draft, layer: int, *, inner: int, state: int, groups: int, heads: int, norm: bool = True
) -> None:
    """The states of the second mamba: one decay for each head."""
    block, wide = partial(draft.block, layer), inner + 2 * groups * state
    block("ssm_in.weight", draft.width, inner + wide + heads)
    block("ssm_conv1d.weight", 4, wide)
    block("ssm_conv1d.bias", wide)
    block("ssm_dt.bias", heads)
    block("ssm_a", 1, heads)
    block("ssm_d", 1, heads)
    if norm:
        block("ssm_norm.weight", inner // groups, groups)
    block("ssm_out.weight", inner, draft.width)


def delta_mixer(
    draft: Draft, layer: int, key: int, value: int, heads: int, state: int, *, fused: bool
) -> None:
    """Gated delta nets; `fused` has decay and strength in one tensor."""
    block, wide = partial(draft.block, layer), 2 * key + value
    block("attn_qkv.weight", draft.width, wide)
    block("attn_gate.weight", draft.width, value)
    block("ssm_conv1d.weight", 4, wide)
    block("ssm_dt.bias", heads)
    block("ssm_a", heads)
    if fused:
        block("ssm_ba.weight", draft.width, 2 * heads)
    else:
        block("ssm_beta.weight", draft.width, heads)
        block("ssm_alpha.weight", draft.width, heads)
    block("ssm_norm.weight", state)
    block("ssm_out.weight", value, draft.width)


def kda_mixer(draft: Draft, layer: int, head: int, heads: int) -> None:
    """Delta attention with a decay for each channel."""
    block, wide = partial(draft.block, layer), head * heads
    for part in "qkv":
        block(f"attn_{part}.weight", draft.width, wide)
        block(f"ssm_conv1d_{part}.weight", 4, 1, wide)
    for part in "fg":
        block(f"ssm_{part}_a.weight", draft.width, head)
        block(f"ssm_{part}_b.weight", head, wide)
    block("ssm_beta.weight", draft.width, heads)
    block("ssm_a", 1, heads)
    block("ssm_dt.bias", wide)
    block("ssm_norm.weight", head)
    block("attn_output.weight", wide, draft.width)


def rwkv6_mixer(draft: Draft, layer: int) -> None:
    """What only the sixth version has."""
    block, width, mix, decay = partial(draft.block, layer), draft.width, 64, 128
    block("time_mix_w1.weight", width, 5 * mix)
    block("time_mix_w2.weight", mix, width, 5)
    block("time_mix_lerp_x.weight", width, 1, 1)
    block("time_mix_lerp_fused.weight", width, 1, 1, 5)
    block("time_mix_first.weight", 64, width // 64, kind="F32")
    block("time_mix_decay.weight", width)
    block("time_mix_decay_w1.weight", width, decay)
    block("time_mix_decay_w2.weight", decay, width)
    block("time_mix_gate.weight", width, width)
    block("channel_mix_lerp_r.weight", width, 1, 1)
    block("channel_mix_receptance.weight", width, width)


def rwkv7_mixer(draft: Draft, layer: int) -> None:
    """What only the seventh version has."""
    block, width = partial(draft.block, layer), draft.width
    ranks = {"w": 96, "a": 96, "v": 96 if layer == 0 else 64}
    for part, rank in ranks.items():
        block(f"time_mix_{part}0.weight", width)
        block(f"time_mix_{part}1.weight", width, rank)
        block(f"time_mix_{part}2.weight", rank, width)
    block("time_mix_g1.weight", width, 320)
    block("time_mix_g2.weight", 320, width)
    block("time_mix_lerp_fused.weight", width, 1, 1, 6)
    for part in ("k_k", "k_a", "r_k"):
        block(f"time_mix_{part}.weight", width)
