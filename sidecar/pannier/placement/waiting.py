"""Waits until a model, a role or a whole change of the placement is ready.

All of it from the snapshots, as they are published: a waiter wakes on change. Ready is positive,
the engine answered for this model; that nothing loads is not ready, and a stored phase of an
earlier moment is not either, so every wake looks again (spec AP-24 to AP-34).

Must not: ask for a load, or gate on what another surface was shown.
"""

import asyncio
import contextlib
from collections.abc import Callable, Mapping

import msgspec

from pannier.errors import Failure
from pannier.fleet.view import GroupView
from pannier.progress.hub import Latest
from pannier.serve.rows import row
from pannier.serve.shapes import Row
from pannier.serve.snapshot import Snapshot

LONGEST_S = 1800.0
GRACE_S = 3.0
"""Between an apply and the first sign of a load (AP-1)."""

_TICK_S = 1.0
"""While something loads its seconds change, and a caller may want to stop, without any event."""

_COMING = ("queued", "loading", "draining")


def nobody_aborts() -> bool:
    """The default of `should_abort`."""
    return False


async def wait_ready(
    snapshots: Latest[Snapshot],
    name: str,
    *,
    timeout_s: float = LONGEST_S,
    on_progress: Callable[[Row], None] = lambda _: None,
    should_abort: Callable[[], bool] = nobody_aborts,
) -> bool:
    """Whether a model (id or alias), or every model of a role, became ready in time.

    False: it was aborted, nothing is loading and nothing came within the grace, the deadline is
    over, or there is no such model. `on_progress` is called for loads in flight only.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_s
    grace = loop.time() + GRACE_S
    while True:
        version, snapshot = snapshots.version, snapshots.value
        models = _models(snapshot, name)
        if _all_ready(snapshot, models):
            return True
        if should_abort() or not models or snapshot.stopping:
            return False
        now = loop.time()
        found = [row(snapshot, model, now) for model in models]
        for each in found:
            if each.state == "loading":
                on_progress(each)
        coming = any(each.state in _COMING for each in found)
        grace = now + GRACE_S if coming else grace
        if now >= min(deadline, grace):
            return False
        await _news(snapshots, version, min(deadline, grace, now + _TICK_S if coming else grace))


class Awaited(msgspec.Struct, frozen=True, kw_only=True):
    """The groups that a change has to bring up: their identities by id.

    `failed_before` are instances that did not run before either: they undo nothing.
    """

    generation: int
    groups: Mapping[str, str]
    failed_before: frozenset[str] = frozenset()


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """How a wait for a change ended; `failure` of the `instance` that could not be loaded."""

    replaced: bool = False
    instance: str | None = None
    failure: Failure | None = None


async def wait_applied(
    snapshots: Latest[Snapshot], awaited: Awaited, *, timeout_s: float = LONGEST_S
) -> Outcome:
    """Returns when every awaited group runs with what it preloads, or one of them has failed.

    A later generation ends it, as somebody else has changed the config since.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_s
    grace = loop.time() + GRACE_S
    while True:
        version, snapshot = snapshots.version, snapshots.value
        if snapshot.generation != awaited.generation or snapshot.stopping:
            return Outcome(replaced=True)
        failed = _failed(snapshot, awaited)
        if failed is not None:
            return failed
        missing = [each for each in awaited.groups if not _is_up(snapshot, awaited, each)]
        if not missing:
            return Outcome()
        now = loop.time()
        coming = any(_is_coming(snapshot, awaited, each) for each in missing)
        grace = now + GRACE_S if coming else grace
        if now >= min(deadline, grace):
            return Outcome()
        await _news(snapshots, version, min(deadline, grace))


async def _news(snapshots: Latest[Snapshot], version: int, until: float) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout_at(until):
            await snapshots.newer(version)


def _models(snapshot: Snapshot, name: str) -> tuple[str, ...]:
    """The models that a name means: one, or those of a role that have a place."""
    model = snapshot.model_of(name)
    if model is not None:
        return (model,)
    found = (key for key, each in snapshot.config.models.items() if each.role == name)
    return tuple(model for model in found if snapshot.plan.instances_of(model))


def _all_ready(snapshot: Snapshot, models: tuple[str, ...]) -> bool:
    """Every model is ready; of a swap set one member is, as no more can be."""
    ready = {model for model in models if row(snapshot, model, 0.0).state == "ready"}
    for group in snapshot.plan.groups:
        members = {snapshot.plan.instance(each).model for each in group.members}
        if group.swap and members & ready and len(models) > 1:
            ready |= members
    return bool(models) and set(models) <= ready


def _group(snapshot: Snapshot, awaited: Awaited, group: str) -> GroupView | None:
    """The group as it is to run; None while another one has its name, or none has."""
    for view in snapshot.fleet.groups:
        leaves = view.phase in ("draining", "stopping")
        if view.id == group and view.identity == awaited.groups[group] and not leaves:
            return view
    return None


def _preloads(snapshot: Snapshot, group: str) -> tuple[str, ...]:
    members = next((each.members for each in snapshot.plan.groups if each.id == group), ())
    models = snapshot.config.models
    return tuple(m for m in members if models[snapshot.plan.instance(m).model].preload)


def _is_up(snapshot: Snapshot, awaited: Awaited, group: str) -> bool:
    view = _group(snapshot, awaited, group)
    if view is None:
        return False
    wanted = set(_preloads(snapshot, group)) - awaited.failed_before
    if not wanted:
        return view.phase == "ready"
    ready = {each.id for each in view.instances if each.phase in ("ready", "draining")}
    swap = any(each.swap for each in snapshot.plan.groups if each.id == group)
    return bool(ready & wanted) if swap else wanted <= ready


def _failed(snapshot: Snapshot, awaited: Awaited) -> Outcome | None:
    for group in awaited.groups:
        view = _group(snapshot, awaited, group)
        if view is None:
            continue
        if view.failure is not None and view.phase == "failed":
            return Outcome(instance=group, failure=view.failure)
        for each in view.instances:
            new = each.id not in awaited.failed_before
            if each.phase == "failed" and each.failure is not None and new:
                return Outcome(instance=each.id, failure=each.failure)
    return None


def _is_coming(snapshot: Snapshot, awaited: Awaited, group: str) -> bool:
    """Whether there is a sign of it: the old one leaves, it starts, or something of it loads."""
    view = _group(snapshot, awaited, group)
    if view is None:
        leaving = any(g.phase in ("draining", "stopping") for g in snapshot.fleet.groups)
        return leaving or group in snapshot.fleet.waiting
    busy = ("queued", "loading", "unloading", "draining")
    return view.phase != "ready" or any(each.phase in busy for each in view.instances)
