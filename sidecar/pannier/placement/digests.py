"""The digest of what each group runs, the same for a running Pannier and for a command line. Pure.

A group's identity has the command of its launcher in it, with a socket and a Python of its own, so
that two processes never agree about it. This one is the identity of the same group without it.

Must not: follow a rule of its own; the identity is `render`'s.
"""

from collections.abc import Mapping

import msgspec

from pannier.render.argv import Launch
from pannier.render.llama_swap import GroupLaunch, group_launch


def digests_of(groups: Mapping[str, GroupLaunch], host: str) -> dict[str, str]:
    """Digest by group id; `host` is what runs the groups, as the question of the plan names it."""
    return {
        group.id: group_launch(
            group.id,
            [_without_launcher(launch) for launch in group.launches],
            swap=group.swap,
            host=host,
            launcher=(),
        ).identity
        for group in groups.values()
    }


def _without_launcher(launch: Launch) -> Launch:
    """The launch of the engine alone; `--instance ID --` ends what stands before it."""
    mark = ("--instance", launch.instance, "--")
    for at in range(len(launch.argv) - len(mark) + 1):
        if launch.argv[at : at + len(mark)] == mark:
            return msgspec.structs.replace(launch, argv=launch.argv[at + len(mark) :])
    return launch
