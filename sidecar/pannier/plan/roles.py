"""What each role means to the planner and the renderer: order, floors, batches.

One table, so that adding a role is one line and no `if role ==` grows elsewhere.

Must not: hold anything that a person can set; those are keys of config.toml.
"""

import math

import msgspec

MIB = 1024 * 1024

SLOWEST_DISK = 150 * MIB
"""Bytes per second that a load is granted at least (spec SC-15): a busy hard disk."""


class Role(msgspec.Struct, frozen=True, kw_only=True):
    """What the planner and the renderer know of a role.

    `rank` is the plan order; `load_floor_s` the least seconds a cold load is granted (SC-15);
    `pooled` says that one input must fit one physical batch (embeddings and reranking).
    """

    rank: int
    load_floor_s: int
    pooled: bool = False
    engine_flags: tuple[str, ...] = ()


ROLES: dict[str, Role] = {
    # An embedder that hangs must not hold its callers for ten minutes (SC-18).
    "embed": Role(rank=0, load_floor_s=120, pooled=True, engine_flags=("--embeddings",)),
    "rerank": Role(rank=1, load_floor_s=600, pooled=True, engine_flags=("--reranking",)),
    "vision": Role(rank=2, load_floor_s=600),
    "chat": Role(rank=3, load_floor_s=600),
}


def load_ceiling_s(role: str, file_bytes: int) -> int:
    """Whole seconds after which a cold load counts as stuck: max(floor, bytes / 150 MiB/s)."""
    return max(ROLES[role].load_floor_s, math.ceil(file_bytes / SLOWEST_DISK))
