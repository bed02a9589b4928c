"""`/v1/models`, and which instance serves a name.

The list is what the config has, also what cannot be served now: a row says why (`pannier.state`,
`pannier.error`) instead of being hidden. It comes from memory and is answered while anything loads.

Must not: forward; it only chooses.
"""

import asyncio
import difflib

from aiohttp import web

from pannier.progress.hub import Latest
from pannier.serve.errors import ApiError, from_failure
from pannier.serve.readiness import reply
from pannier.serve.rows import row, rows
from pannier.serve.shapes import Row
from pannier.serve.snapshot import Snapshot

ROUTER_STATUS = {
    "ready": "loaded",
    "loading": "loading",
    "queued": "loading",
    "draining": "unloaded",
    "failed": "failed",
}
"""The words of llama.cpp's router for our states; what is not here is "unloaded"."""


class OpenAiRoutes:
    """The model list and the choice of an instance, from the latest snapshot."""

    def __init__(self, snapshots: Latest[Snapshot]) -> None:
        self._snapshots = snapshots

    async def models(self, request: web.Request) -> web.Response:
        """GET /v1/models."""
        snapshot = self._snapshots.value
        data = [_model(snapshot, each) for each in rows(snapshot, _now())]
        return reply({"object": "list", "data": data})

    async def model(self, request: web.Request) -> web.Response:
        """GET /v1/models/{id}; an id may hold slashes."""
        snapshot = self._snapshots.value
        name = self.known(snapshot, request.match_info["model"])
        return reply(_model(snapshot, row(snapshot, name, _now())))

    def choose(self, name: str) -> str:
        """The instance for a model's id or alias: a ready one before others, then the least busy.

        Raises ApiError 404 for a name that nothing has, 503 for a model that cannot be served.
        """
        snapshot = self._snapshots.value
        if snapshot.stopping:
            raise ApiError(
                503, "Pannier is stopping", code="stopping", kind="server_error", retry_after_s=5
            )
        model = self.known(snapshot, name)
        instances = snapshot.plan.instances_of(model)
        if not instances:
            shown = row(snapshot, model, _now())
            assert shown.error is not None  # noqa: S101  rows() gives a reason with no instance
            raise from_failure(shown.error)
        return min((instance.id for instance in instances), key=lambda each: _busy(snapshot, each))

    @staticmethod
    def known(snapshot: Snapshot, name: str) -> str:
        """The model of that id or alias. Raises ApiError 404, with the nearest name."""
        model = snapshot.model_of(name)
        if model is not None:
            return model
        names = [*snapshot.config.models]
        near = difflib.get_close_matches(name, names, n=1)
        known = (
            f"did you mean {near[0]!r}?" if near else f"known models: {', '.join(names) or 'none'}"
        )
        raise ApiError(
            404,
            f"the model {name!r} does not exist; {known}",
            code="model_not_found",
            param="model",
        )


def _busy(snapshot: Snapshot, instance: str) -> tuple[int, int, str]:
    view = snapshot.fleet.instance(instance)
    if view is None:
        return (2, 0, instance)
    return (0 if view.phase == "ready" else 1, view.asked + view.inflight, instance)


def _model(snapshot: Snapshot, shown: Row) -> dict[str, object]:
    devices = sorted({device for instance in shown.instances for device in instance.devices})
    return {
        "id": shown.id,
        "object": "model",
        "created": int(snapshot.status.loaded_at),
        "owned_by": "pannier",
        "status": {"value": ROUTER_STATUS.get(shown.state, "unloaded")},
        "pannier": {
            "model": shown.id,
            "role": shown.role,
            "aliases": shown.aliases,
            "state": shown.state,
            "available": shown.state not in ("not_installed", "unplaceable"),
            "stage": shown.stage,
            "fraction": shown.fraction,
            "devices": devices,
            "error": shown.error,
        },
    }


def _now() -> float:
    return asyncio.get_running_loop().time()
