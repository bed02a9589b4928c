"""Recorded streams of `/v1/readiness/events`: what a client of it sees of each kind of load.

The owner of a group, its state machine and the event stream are the real ones; the machine below is
in memory and runs in loop time, so that a stream is the same to the byte. `streams/NAME.sse` is the
recording, and the contract of the plugin: read the diff after `pytest --update-golden`.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.fakes.host import Machine, launch
from tests.fakes.owned import Owned, owning
from tests.fakes.snapshots import snapshot_of

from pannier.fleet.view import FleetView
from pannier.progress.hub import Latest
from pannier.progress.parse import Exit
from pannier.serve.readiness import ReadinessRoutes
from pannier.serve.snapshot import Snapshot
from pannier.serve.streams import EventStream, Streams

pytestmark = pytest.mark.looptime

HERE = Path(__file__).parent / "streams"
MODELS = "".join(f'[models.{each}]\npath = "/m/{each}.gguf"\npreload = false\n' for each in "ab")


class Recording:
    """Takes what a client would get."""

    def __init__(self) -> None:
        self.text = ""

    async def write(self, data: bytes) -> None:
        self.text += data.decode()


class Scene:
    """One group whose views are published as the service does, and a client that reads."""

    def __init__(self, owned: Owned) -> None:
        self.owned = owned
        self.owner = owned.owner
        self.host = owned.machine
        self._base = snapshot_of(MODELS)
        self.snapshots: Latest[Snapshot] = Latest(self._now())
        owned.owner._around.changed = self._publish
        self.recording = Recording()

    def _now(self) -> Snapshot:
        return msgspec.structs.replace(self._base, fleet=FleetView(groups=(self.owner.view(),)))

    def _publish(self) -> None:
        self.owned._news.set()
        self.snapshots.publish(self._now())

    async def weights(self, instance: str, *values: float) -> None:
        """The launcher speaks up, then tells five times a second what the engine says."""
        await asyncio.sleep(0.1)
        self.host.host.say(instance, phase="starting")
        await self.more_weights(instance, *values)

    async def loading(self, instance: str) -> None:
        """Its turn has come: the host was asked to load it."""
        while self.host.count(f"load {instance}") == 0:  # noqa: ASYNC110  the machine has no news
            await asyncio.sleep(0.1)

    async def more_weights(self, instance: str, *values: float) -> None:
        for value in values:
            await asyncio.sleep(0.2)
            self.host.host.say(
                instance,
                phase="loading",
                stages=("text_model",),
                stage="text_model",
                value=value,
                progress_lines=True,
            )

    async def ready(self, instance: str, after: float = 1.0) -> None:
        await asyncio.sleep(after)
        self.host.host.say(instance, phase="ready", ready_s=2.0, progress_lines=True)
        await self.owned.until("ready", instance)


@contextlib.asynccontextmanager
async def scene(*, swap: bool = False) -> AsyncIterator[Scene]:
    machine = Machine()
    machine.load_s = None  # the test says when an engine is ready
    async with owning(machine) as start:
        owned = start(launch("a"), launch("b"), swap=swap)
        made = Scene(owned)
        await owned.until("ready")
        routes = ReadinessRoutes(made.snapshots, Streams())
        stream: Any = EventStream(made.recording)  # type: ignore[arg-type]  # only write() is used
        reader = asyncio.create_task(routes._send_events(stream), name="reader")
        await asyncio.sleep(0)
        try:
            yield made
            await asyncio.sleep(0.1)
        finally:
            reader.cancel()
            await asyncio.gather(reader, return_exceptions=True)


async def cold(seen: Scene) -> None:
    asked = asyncio.create_task(seen.owner.acquire("a"))
    await seen.loading("a")
    await seen.weights("a", 0.0, 0.25, 0.5, 0.75, 1.0)
    await seen.ready("a")
    seen.owner.release(await asked)


async def warm(seen: Scene) -> None:
    """A second request for a model that is ready: nothing happens that a client could see."""
    await cold(seen)
    seen.recording.text = ""
    seen.owner.release(await seen.owner.acquire("a"))


async def queued_behind_a_swap(seen: Scene) -> None:
    await cold(seen)
    seen.recording.text = ""
    busy = await seen.owner.acquire("a")
    asked = asyncio.create_task(seen.owner.acquire("b"))
    await seen.owned.until("draining", "a")
    await asyncio.sleep(3.0)
    seen.owner.release(busy)
    await seen.loading("b")
    await seen.weights("b", 0.0, 0.5, 1.0)
    await seen.ready("b")
    seen.owner.release(await asked)


async def failed(seen: Scene) -> None:
    asked = asyncio.create_task(seen.owner.acquire("a"))
    await seen.loading("a")
    await seen.weights("a", 0.0, 0.4)
    reason = "llama_model_load: error loading model: tensor 'blk.3.ffn_up.weight' is cut off"
    seen.host.host._ends("a", Exit(code=1, reason=reason))
    await asyncio.gather(asked, return_exceptions=True)
    await seen.owned.until("failed", "a")


async def cancelled(seen: Scene) -> None:
    """Everybody leaves, and then the load is given up by an unload."""
    asked = asyncio.create_task(seen.owner.acquire("a"))
    await seen.loading("a")
    await seen.weights("a", 0.0, 0.3)
    asked.cancel()
    await asyncio.gather(asked, return_exceptions=True)
    await seen.more_weights("a", 0.6)
    seen.owner.unload("a")
    await seen.owned.until("cold", "a")


@pytest.mark.parametrize("load", [cold, warm, queued_behind_a_swap, failed, cancelled])
async def test_the_stream_of_a_load_is_as_recorded(
    load: Callable[[Scene], Awaitable[None]], request: pytest.FixtureRequest
) -> None:
    async with scene(swap=load is queued_behind_a_swap) as seen:
        await load(seen)
    expected = HERE / f"{load.__name__}.sse"
    if request.config.getoption("--update-golden"):
        expected.write_text(seen.recording.text, encoding="utf-8")
    assert expected.exists(), "no recording yet: run pytest --update-golden and read it"
    assert seen.recording.text == expected.read_text(encoding="utf-8")
