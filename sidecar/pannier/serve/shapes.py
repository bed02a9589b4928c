"""What `/v1/readiness` answers with: the contract of page, plugin and command line. Pure.

The fields and their descriptions are the source of `/openapi.json` too, so that what is served and
what is described are one thing.

Must not: lose or rename a field; clients of other versions read them.
"""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from pannier.errors import Failure
from pannier.serve.snapshot import ConfigStatus

State = Literal[
    "cold", "queued", "loading", "ready", "draining", "failed", "not_installed", "unplaceable"
]
Stage = Literal[
    "queued", "making_room", "starting", "weights", "projector", "draft", "warming_up"
]  # fmt: skip
Source = Literal["engine", "io", "history"]
Fraction = Annotated[float, Meta(ge=0.0, le=1.0)]

_STATE = Meta(
    description="cold: not loaded; queued: waits for its turn; loading; ready: it answered; "
    "draining: finishes what it answers before it leaves; failed: see error; not_installed: a file "
    "is missing; unplaceable: no room here."
)
_STAGE = Meta(
    description="What happens while it is queued or loading; null otherwise. making_room: another "
    "model must leave first."
)
_FRACTION = Meta(
    description="Part of the load that is done, 0 to 1. Never goes back during a load, and reaches "
    "1 only when the model is ready. Null when not known."
)


class InstanceRow(msgspec.Struct, frozen=True, kw_only=True):
    """One llama-server of a model."""

    id: Annotated[str, Meta(description="The model's id, with #N for one of several replicas.")]
    state: Annotated[State, _STATE]
    stage: Annotated[Stage | None, _STAGE]
    fraction: Annotated[Fraction | None, _FRACTION]
    group: Annotated[str, Meta(description="The group of processes that it belongs to.")]
    pid: Annotated[int | None, Meta(description="Process id of its llama-server.")]
    port: Annotated[int | None, Meta(description="Port of its llama-server, on loopback.")]
    devices: Annotated[
        tuple[str, ...], Meta(description="Labels of its devices; empty: it runs on the CPU.")
    ]


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """How one model is, and how far its load."""

    id: Annotated[str, Meta(description="What clients send as the model.")]
    object: Literal["model.readiness"] = "model.readiness"
    role: Annotated[str, Meta(description="chat, vision, embed or rerank.")]
    aliases: Annotated[tuple[str, ...], Meta(description="Other names of the model.")]
    state: Annotated[State, _STATE]
    stage: Annotated[Stage | None, _STAGE] = None
    fraction: Annotated[Fraction | None, _FRACTION] = None
    bytes_done: Annotated[int | None, Meta(description="Bytes of its files that are read.")] = None
    bytes_total: Annotated[int | None, Meta(description="Bytes that the load reads in all.")] = None
    eta_s: Annotated[float | None, Meta(description="Seconds left, estimated.")] = None
    elapsed_s: Annotated[
        float | None, Meta(description="Seconds of the load so far; stands still once it ended.")
    ] = None
    source: Annotated[
        Source | None,
        Meta(
            description="Where the fraction comes from: the engine's own lines, the bytes that it "
            "has read, or how long earlier loads took."
        ),
    ] = None
    stalled: Annotated[bool, Meta(description="Nothing has moved for 15 seconds.")] = False
    making_room: Annotated[
        str | None, Meta(description="The instance that has to leave memory first.")
    ] = None
    error: Annotated[
        Failure | None, Meta(description="Why it failed or cannot be served; null otherwise.")
    ] = None
    instances: Annotated[
        tuple[InstanceRow, ...], Meta(description="The llama-servers of the model.")
    ] = ()


class Listing(msgspec.Struct, frozen=True, kw_only=True):
    """All models at one moment, and the config that they come from."""

    object: Literal["list"] = "list"
    ready: Annotated[bool, Meta(description="Every model that is to be loaded at start is ready.")]
    generation: Annotated[int, Meta(description="Rises with every config that is applied.")]
    host: Annotated[str, Meta(description="What runs the models: llama-swap or direct.")]
    config: Annotated[ConfigStatus, Meta(description="The config file, and what is wrong with it.")]
    data: Annotated[tuple[Row, ...], Meta(description="One row for each model, in file order.")]
