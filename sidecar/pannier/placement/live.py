"""The placement of a running Pannier: shown, tried, set, and waited for.

A change is planned completely, then written, then applied, all under the lock that reloads take
too, so that our own write is no second reload and nobody's edit is lost. The wait for the models
comes after the lock: an edit meanwhile goes first, and the waiting caller is told what runs then.
A change that does not come to life is taken back, in the file and in what runs.

Must not: keep a caller's going away from ending what was begun.
"""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Protocol

import msgspec

from pannier import planning
from pannier.config.read_file import read_settled
from pannier.config.write_file import WriteError, write_file
from pannier.errors import Failure
from pannier.placement.digests import digests_of
from pannier.placement.edits import with_spec
from pannier.placement.waiting import GRACE_S, Awaited, wait_applied
from pannier.plan.request import ApplyError, StaleError, read_spec
from pannier.plan.spec import PlacementError, PlacementSpec
from pannier.plan.view import View, etag_of, view_of
from pannier.progress.hub import Latest
from pannier.reload import Prepared
from pannier.serve.rows import row
from pannier.serve.snapshot import Snapshot


class Desk(Protocol):
    """What a running Pannier gives: its latest state, and the one place where it is changed."""

    path: Path
    content: bytes
    prepared: Prepared
    snapshots: Latest[Snapshot]
    changing: asyncio.Lock

    async def prepare(self, content: bytes) -> Prepared:
        """Everything that follows from this content. Raises ConfigError."""

    async def preview(self, spec: PlacementSpec) -> planning.Answer:
        """What would run with this spec. Raises PlacementError."""

    def adopt(self, content: bytes, prepared: Prepared) -> int:
        """Runs it from now on; returns its generation."""

    def plans_anew(self) -> bool:
        """Whether the same config is about to be planned again, after a load ran out of memory."""


class _Begun(msgspec.Struct, frozen=True, kw_only=True):
    """A change that was written and applied, with what is needed to take it back."""

    spec: PlacementSpec
    content: bytes
    before: bytes
    old: Prepared
    generation: int
    failed_before: frozenset[str]


class LivePlacement:
    """The service of one running Pannier; `aclose` ends what still waits."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._tasks: set[asyncio.Task[View]] = set()

    def get_placement(self) -> View:
        """The plan that runs, from memory."""
        return shown(self._desk.snapshots.value)

    async def preview_placement(self, text: str | bytes | None) -> View:
        """What would run with this spec; none: the automatic plan. Raises PlacementError."""
        snapshot = self._desk.snapshots.value
        made = await self._desk.preview(read_spec(text, snapshot.config.models))
        digests = digests_of(made.groups, self._desk.prepared.question.host)
        return view_of(made.plan, snapshot.inventory, digests, config=snapshot.status.path)

    async def set_placement(
        self, text: str | bytes | None, matches: Callable[[str], bool] = lambda _: True
    ) -> View:
        """Writes, applies and waits; the view after it. `matches` judges the ETag of now.

        Raises PlacementError, ConfigError, WriteError, StaleError, or ApplyError when it was taken
        back. It goes on when the caller is cancelled.
        """
        return await self._to_its_end(self._set(text, matches))

    async def aclose(self) -> None:
        """Ends the waits; what was applied stays."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _to_its_end(self, work: Coroutine[Any, Any, View]) -> View:
        task = asyncio.create_task(work, name="a change of the placement")
        self._tasks.add(task)
        task.add_done_callback(self._over)
        return await asyncio.shield(task)

    def _over(self, task: asyncio.Task[View]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # nobody may be there any more to be told

    async def _set(self, text: str | bytes | None, matches: Callable[[str], bool]) -> View:
        begun = await self._begin(text, matches)
        if begun is not None:
            await self._wait(begun)
        return self.get_placement()

    async def _begin(
        self, text: str | bytes | None, matches: Callable[[str], bool]
    ) -> _Begun | None:
        """Plans, writes and applies; None when all is so already."""
        desk = self._desk
        async with desk.changing:
            now = self.get_placement()
            if not matches(now.etag):
                raise StaleError(
                    "the placement has been changed meanwhile",
                    hint="look at it again, and make the change on what is there now",
                )
            spec = read_spec(text, desk.snapshots.value.config.models)
            before = await read_settled(desk.path)
            content = with_spec(before, spec)
            prepared = await desk.prepare(content)
            if prepared.plan.rejected is not None:
                raise PlacementError(prepared.plan.rejected.reason)
            planned = etag_of(prepared.plan, digests_of(prepared.groups, prepared.question.host))
            if content == desk.content and planned == now.etag:
                return None
            await asyncio.to_thread(write_file, desk.path, content, before=before)
            old, failed = desk.prepared, _failed(desk.snapshots.value)
            generation = desk.adopt(content, prepared)
        return _Begun(
            spec=spec,
            content=content,
            before=before,
            old=old,
            generation=generation,
            failed_before=failed,
        )

    async def _wait(self, begun: _Begun) -> None:
        """Until its models are there, or somebody else has changed the config."""
        desk, generation = self._desk, begun.generation
        while True:
            changed = {
                group.id: group.identity
                for group in desk.prepared.groups.values()
                if group.id not in begun.old.groups
                or begun.old.groups[group.id].identity != group.identity
            }
            awaited = Awaited(
                generation=generation, groups=changed, failed_before=begun.failed_before
            )
            outcome = await wait_applied(desk.snapshots, awaited)
            if outcome.failure is not None and not await self._is_replanned(generation):
                await self._take_back(begun, outcome.instance or "a model", outcome.failure)
            if outcome.failure is None and not outcome.replaced:
                return
            if desk.content != begun.content or desk.snapshots.value.stopping:
                return
            generation = desk.snapshots.value.generation
            rejected = desk.prepared.plan.rejected
            if rejected is not None:
                failure = Failure(code="placement", message=rejected.reason)
                await self._take_back(begun, "the placement", failure)

    async def _is_replanned(self, generation: int) -> bool:
        """Whether the same config was planned again, smaller, after a load ran out of memory."""
        desk = self._desk
        if not desk.plans_anew() and desk.snapshots.value.generation == generation:
            return False
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(10 * GRACE_S):
                while desk.snapshots.value.generation == generation:
                    await desk.snapshots.newer(desk.snapshots.version)
        return desk.snapshots.value.generation != generation

    async def _take_back(self, begun: _Begun, what: str, failure: Failure) -> None:
        """Puts the file and the running plan back; always raises ApplyError."""
        desk = self._desk
        told = f"the placement was not applied: {what}: {failure.text()}"
        async with desk.changing:
            if desk.content != begun.content:
                raise ApplyError(told, hint="the config has been changed meanwhile, and stays so")
            try:
                await asyncio.to_thread(write_file, desk.path, begun.before, before=begun.content)
            except WriteError as error:
                raise ApplyError(told, hint=f"it is still in the file: {error}") from error
            desk.adopt(begun.before, begun.old)
        raise ApplyError(told, hint="config.toml and what runs are as they were before")


def shown(snapshot: Snapshot) -> View:
    """The view of the plan that runs."""
    return view_of(
        snapshot.plan,
        snapshot.inventory,
        snapshot.digests,
        config=snapshot.status.path,
        problems=snapshot.status.problems,
    )


def _failed(snapshot: Snapshot) -> frozenset[str]:
    """Instances that do not run as it is."""
    return frozenset(
        each.id
        for model in snapshot.config.models
        for each in row(snapshot, model, 0.0).instances
        if each.state == "failed"
    )
