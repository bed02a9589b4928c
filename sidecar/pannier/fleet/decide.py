"""Desired groups against running ones -> what to stop and what to start. Pure, level-triggered.

It looks at the whole picture each time, never at a delta, so a lost wake-up or an edit in the
middle of another one cannot leave a wrong half behind. Groups that run what is desired are not
mentioned at all: an edit touches only what it changes.

Must not: order things in time. Whoever carries this out asks again after every change.
"""

from collections.abc import Mapping, Sequence

import msgspec

from pannier.render.llama_swap import GroupLaunch


class Running(msgspec.Struct, frozen=True, kw_only=True):
    """A group that runs, or is on its way out. `key` tells two runs of one group apart."""

    key: int
    launch: GroupLaunch
    leaving: bool


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """Keys of runs to stop, ids of groups to start, ids that wait until something is gone."""

    stop: tuple[int, ...] = ()
    start: tuple[str, ...] = ()
    wait: tuple[str, ...] = ()


def decide(desired: Mapping[str, GroupLaunch], running: Sequence[Running]) -> Decision:
    """What has to happen now. Idempotent: carried out, it decides nothing more."""
    kept = {
        run.launch.id
        for run in running
        if not run.leaving
        and run.launch.id in desired
        and desired[run.launch.id].identity == run.launch.identity
    }
    stop = tuple(run.key for run in running if not run.leaving and run.launch.id not in kept)
    going = [run for run in running if run.leaving or run.launch.id not in kept]
    start: list[str] = []
    wait: list[str] = []
    for group_id, launch in sorted(desired.items()):
        if group_id not in kept:
            blocked = any(_needs_what_it_holds(launch, run.launch) for run in going)
            (wait if blocked else start).append(group_id)
    return Decision(stop=stop, start=tuple(start), wait=tuple(wait))


def _needs_what_it_holds(new: GroupLaunch, old: GroupLaunch) -> bool:
    """No instance runs twice, and the memory of a device is free only when the old is gone."""
    instances = {launch.instance for launch in old.launches}
    devices = {device for launch in old.launches for device in launch.devices}
    return old.id == new.id or any(
        launch.instance in instances or devices.intersection(launch.devices)
        for launch in new.launches
    )
