"""The routes of Pannier on one aiohttp application.

A table: which path is answered by which handler. Order of the middlewares: errors outermost, so
that a refusal has OpenAI's shape too, then who may talk to us.

Must not: hold logic; each handler lives with its subject.
"""

import aiohttp
from aiohttp import web

from pannier.progress.hub import Latest
from pannier.serve.errors import openai_errors
from pannier.serve.forward import MAX_BODY, ROUTES, Forwarder, Lend
from pannier.serve.openai import OpenAiRoutes
from pannier.serve.openapi import openapi_json
from pannier.serve.placement import PlacementRoutes, Placements
from pannier.serve.readiness import ReadinessRoutes
from pannier.serve.router_dialect import Levers, RouterRoutes
from pannier.serve.security import Gate, guard
from pannier.serve.snapshot import Snapshot
from pannier.serve.streams import Streams
from pannier.serve.waiting import QUIET_S


def make_app(
    snapshots: Latest[Snapshot],
    lend: Lend,
    session: aiohttp.ClientSession,
    gate: Gate,
    levers: Levers,
    placements: Placements,
    *,
    quiet_s: float = QUIET_S,
) -> web.Application:
    """The application; the caller owns the session and the runner.

    `quiet_s` is how long a stream waits for its model before it is kept open by comments.
    """
    app = web.Application(client_max_size=MAX_BODY, middlewares=[openai_errors, guard(gate)])
    streams = Streams()
    readiness = ReadinessRoutes(snapshots, streams)
    models = OpenAiRoutes(snapshots)
    router = RouterRoutes(snapshots, models, levers, streams)
    forwarder = Forwarder(session, snapshots, models.choose, lend, quiet_s=quiet_s)
    get = app.router.add_get
    get("/v1/models", models.models)
    get("/v1/models/{model:.+}", models.model)
    get("/v1/readiness", readiness.everything)
    get("/v1/readiness/events", readiness.events, allow_head=False)
    get("/v1/readiness/{model:.+}", readiness.one)
    get("/models", models.models)
    get("/models/sse", router.events, allow_head=False)
    app.router.add_post("/models/load", router.load)
    app.router.add_post("/models/unload", router.unload)
    PlacementRoutes(snapshots, placements, gate).add_to(app)
    described = openapi_json(ROUTES)

    async def openapi(request: web.Request) -> web.Response:
        headers = {"X-Content-Type-Options": "nosniff"}
        return web.Response(body=described, content_type="application/json", headers=headers)

    get("/openapi.json", openapi)
    get("/livez", readiness.livez)
    get("/readyz", readiness.readyz)
    get("/healthz", readiness.readyz)
    for path in ROUTES:
        app.router.add_post(path, forwarder.handle)

    async def close_streams(app: web.Application) -> None:
        streams.close()

    app.on_shutdown.append(close_streams)
    return app
