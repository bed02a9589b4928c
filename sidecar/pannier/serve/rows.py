"""Snapshot -> the rows of `/v1/readiness`: what every surface shows of every model. Pure.

The page, the plugin and the command line read these rows and nothing else, so they cannot disagree.
A model of several instances shows the best of them, and all of them below it.

Must not: read a clock; the moment is passed in, in loop seconds.
"""

from pannier.errors import Failure
from pannier.fleet.view import InstanceView
from pannier.progress.tracker import Shown, show
from pannier.serve.shapes import InstanceRow, Listing, Row, Stage, State
from pannier.serve.snapshot import Snapshot

_BEST_FIRST: tuple[State, ...] = (
    "ready", "loading", "queued", "draining", "cold", "failed", "unplaceable", "not_installed",
)  # fmt: skip


def rows(snapshot: Snapshot, now: float) -> tuple[Row, ...]:
    """A row for every model of the config, in its order."""
    return tuple(row(snapshot, model, now) for model in snapshot.config.models)


def listing(snapshot: Snapshot, now: float) -> Listing:
    """The whole list, in the shape of `GET /v1/readiness`."""
    return Listing(
        ready=all(wanted_ready(snapshot, model) for model in snapshot.config.models),
        generation=snapshot.generation,
        host=snapshot.host,
        config=snapshot.shown_status,
        data=rows(snapshot, now),
    )


def row(snapshot: Snapshot, model_id: str, now: float) -> Row:
    """The row of one model. Raises KeyError for a model that the config has not."""
    model = snapshot.config.models[model_id]
    planned = snapshot.plan.instances_of(model_id)
    if not planned:
        state, error = _why_not(snapshot, model_id)
        return Row(id=model_id, role=model.role, aliases=model.aliases, state=state, error=error)
    seen = [
        (instance, snapshot.fleet.instance(instance.id), _state_of(snapshot, instance.id))
        for instance in planned
    ]
    seen.sort(key=lambda each: _BEST_FIRST.index(each[2]))
    _, best, state = seen[0]
    shown = _shown(best, state, now)
    return Row(
        id=model_id,
        role=model.role,
        aliases=model.aliases,
        state=state,
        stage=_stage(best, state, shown),
        fraction=shown.fraction if shown else None,
        bytes_done=shown.bytes_done if shown else None,
        bytes_total=shown.bytes_total if shown else None,
        eta_s=shown.eta_s if shown else None,
        elapsed_s=shown.elapsed_s if shown else None,
        source=shown.source if shown else None,
        stalled=shown.stalled if shown else False,
        making_room=best.making_room if best else None,
        error=best.failure if best and state == "failed" else None,
        instances=tuple(
            _instance_row(instance.id, view, state, now)
            for instance, view, state in sorted(seen, key=lambda each: each[0].replica)
        ),
    )


def wanted_ready(snapshot: Snapshot, model_id: str) -> bool:
    """Whether a model is where the config wants it after a start: preloaded ones are ready.

    One that has no place (a file that is not there, no room) is shown, and not waited for; nor is
    one that was idle for its ttl or was unloaded by somebody, since then.
    """
    if not snapshot.config.models[model_id].preload or not snapshot.plan.instances_of(model_id):
        return True
    group = next(
        (
            g
            for g in snapshot.plan.groups
            if any(i.id in g.members for i in snapshot.plan.instances_of(model_id))
        ),
        None,
    )
    if group is not None and group.swap:
        return any(_was_loaded(snapshot, member) for member in group.members)
    return any(_was_loaded(snapshot, i.id) for i in snapshot.plan.instances_of(model_id))


def _was_loaded(snapshot: Snapshot, instance_id: str) -> bool:
    """Whether an instance is ready, or was loaded before and left memory as it was told to."""
    state, view = _state_of(snapshot, instance_id), snapshot.fleet.instance(instance_id)
    if view is None or state == "ready":
        return view is not None
    return state == "cold" and view.progress is not None and view.progress.fraction == 1.0


def _why_not(snapshot: Snapshot, model_id: str) -> tuple[State, Failure]:
    """Why the plan has no instance of a model."""
    if model_id in snapshot.plan.skipped_not_installed:
        path = snapshot.config.models[model_id].path
        return "not_installed", Failure(
            code="not-installed",
            message=f"a file of {model_id} is not there: {path}",
            hint="it starts by itself when the file appears",
        )
    for missing in snapshot.plan.unplaceable:
        if missing.model == model_id:
            return "unplaceable", Failure(
                code="unplaceable",
                message=f"{model_id} needs {_gib(missing.need)}, there is {_gib(missing.have)}",
                detail=missing.reason,
                hint="what would help: " + "; ".join(missing.ways_out)
                if missing.ways_out
                else None,
            )
    return "failed", Failure(code="not-planned", message=f"{model_id} is not in the plan")


def _gib(count: int) -> str:
    return f"{count / 1024**3:.1f} GiB"


def _state_of(snapshot: Snapshot, instance_id: str) -> State:
    view = snapshot.fleet.instance(instance_id)
    group = next(
        (g for g in snapshot.fleet.groups if view is not None and g.id == view.group), None
    )
    if view is None or (group is not None and group.phase == "absent"):
        # Its group waits until what it needs is free; at a stop nothing comes any more.
        model = snapshot.plan.instance(instance_id).model
        wanted = snapshot.config.models[model].preload and not snapshot.stopping
        return "queued" if wanted else "cold"
    if group is not None and group.phase in ("draining", "stopping"):
        return "draining"
    if view.phase == "loading" and not view.started:
        return "queued"  # asked for, and no process of it has said a word: it waits for its start
    return "draining" if view.phase == "unloading" else view.phase


def _shown(view: InstanceView | None, state: State, now: float) -> Shown | None:
    if view is None or view.progress is None or state in ("cold", "queued", "draining"):
        return None
    if state == "failed" and view.progress.fraction == 1.0:
        return None  # it died later: that load is long over
    return show(view.progress, now)


def _stage(view: InstanceView | None, state: State, shown: Shown | None) -> Stage | None:
    if state == "queued":
        return "making_room" if view is not None and view.making_room else "queued"
    return shown.stage if shown and state == "loading" else None


def _instance_row(
    instance_id: str, view: InstanceView | None, state: State, now: float
) -> InstanceRow:
    shown = _shown(view, state, now)
    return InstanceRow(
        id=instance_id,
        state=state,
        stage=_stage(view, state, shown),
        fraction=shown.fraction if shown else None,
        group=view.group if view else instance_id,
        pid=view.pid if view else None,
        port=view.port if view else None,
        devices=view.devices if view else (),
    )
