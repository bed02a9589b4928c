"""Two states of a group -> the lines of the log between them. Pure.

One place for what the log says of a group, so that every change is told once and in the same words,
whatever event brought it about.

Must not: say anything of what an engine prints; that goes its own way.
"""

from pannier.fleet.state import GroupState

_TOLD = {
    "loading": "loading",
    "ready": "ready",
    "draining": "finishing what it answers, to make room or to unload",
    "unloading": "unloading",
}


def news(group: str, before: GroupState, after: GroupState) -> list[str]:
    """What changed, a line each; empty for changes that only matter inside."""
    lines = []
    if before.phase != after.phase and after.phase in ("backoff", "failed", "draining"):
        why = f": {after.failure.text()}" if after.failure and after.phase != "draining" else ""
        lines.append(f"group {group}: {after.phase}{why}")
    for name, member in after.members.items():
        if member.phase == before.members[name].phase:
            continue
        if member.phase == "failed" and member.failure is not None:
            lines.append(f"{name}: failed: {member.failure.text()}")
        elif member.phase in _TOLD and after.phase == "ready":
            lines.append(f"{name}: {_TOLD[member.phase]}")
    return lines
