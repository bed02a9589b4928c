"""Keeps one inventory true while Pannier runs: one task owns it, everybody else asks or looks.

The engine is asked at the start, on a reload, and when NVML's set of cards changed; NVML in
between, and only while it matters: reading wakes a sleeping laptop card, so with nothing of ours in
memory nobody reads. A silence of either keeps the last inventory, marked stale, and is tried again
with growing pauses. What goes on the loop is only waiting: NVML has its own thread with a time
limit, the engine is a process with one.

Must not: plan, or stop anything because a reading failed.
"""

import asyncio
import contextlib
import logging
import random
import time
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Protocol, Self

from pannier.devices.engine_probe import Question, list_devices
from pannier.devices.host import host_memory
from pannier.devices.inventory import HostMemory, Inventory
from pannier.devices.join import Ours
from pannier.devices.listing import EngineList
from pannier.devices.reading import NvmlReading
from pannier.devices.settle import Moment, Seen, is_covered, needs_list, settle
from pannier.devices.usage import held_by

log = logging.getLogger("pannier")

WHILE_CHANGING_S = 2.0
"""While a model loads, or what is planned does not quite fit."""

WHILE_RESIDENT_S = 30.0
"""While models are in memory and nothing moves: soon enough to say that a card was lost."""


class NvmlReader(Protocol):
    """What reads NVML: bounded in time, never raising (see nvml.py)."""

    async def read(self) -> NvmlReading:
        """One reading; `lost` says why there is none."""

    def close(self) -> None:
        """Ends it without waiting for a driver that hangs."""


class Residents(Protocol):
    """What the monitor has to know about what runs, and whom it tells."""

    def ours(self) -> Ours:
        """What our engines hold."""

    def is_changing(self) -> bool:
        """Whether memory is moving: something loads, or is tight."""

    def devices_read(self, inventory: Inventory) -> None:
        """Called after every reading, in the loop; must not wait."""


async def _host_memory() -> HostMemory:
    return await asyncio.to_thread(host_memory)


_Ask = Callable[[Question], Awaitable[EngineList]]
_Answer = asyncio.Future[Inventory]


class Monitor:
    """The owner of the inventory; an async context manager, whose task runs within the block.

    `pause_s(attempt, jitter)` gives the seconds before retry number `attempt`, from 1.
    """

    def __init__(
        self,
        nvml: NvmlReader,
        *,
        pause_s: Callable[[int, float], float],
        ask: _Ask = list_devices,
        host: Callable[[], Awaitable[HostMemory]] = _host_memory,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._nvml = nvml
        self._ask = ask
        self._host = host
        self._pause_s = pause_s
        self._clock = clock
        self._seen = Seen()
        self._question: Question | None = None
        self._answered: Question | None = None
        self._residents: Residents | None = None
        self._requests: deque[tuple[Question, _Answer]] = deque()
        self._woken = asyncio.Event()
        self._failures = 0
        self._retry_at: float | None = None
        self._ask_again = False
        self._task: asyncio.Task[None] | None = None

    @property
    def value(self) -> Inventory:
        """The inventory that holds now."""
        return self._seen.inventory

    @property
    def reading(self) -> NvmlReading:
        """The last reading of NVML that was one."""
        return self._seen.reading

    async def held_by(self, pid: int) -> dict[str, int]:
        """Bytes that a process holds now, by the UUID of the card, where NVML tells it.

        A reading of its own, as bounded as any; the inventory stays what it is. Never raises but
        for cancellation: empty where nothing is told (no NVML, a container, WSL).
        """
        return held_by(await self._nvml.read(), pid)

    def follow(self, residents: Residents) -> None:
        """From now on readings know what runs, and are told."""
        self._residents = residents
        self.wake()

    def wake(self) -> None:
        """Something began or ended to change: the pause is counted anew."""
        self._woken.set()

    async def inventory(self, question: Question) -> Inventory:
        """A fresh inventory for a plan. Never raises but for cancellation."""
        future: _Answer = asyncio.get_running_loop().create_future()
        self._requests.append((question, future))
        self.wake()
        return await future

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._own(), name="devices")
        return self

    async def __aexit__(self, *exc: object) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        for _, future in self._requests:
            future.cancel()
        self._nvml.close()

    async def _own(self) -> None:
        while True:
            question, future = await self._next()
            try:
                await self._read(question)
            except Exception:
                # A defect here must not take the plan, the waiting reload or the readings with it.
                log.exception("the devices could not be read; the last inventory stays")
                self._failed()
            finally:
                if future is not None and not future.done():
                    future.set_result(self.value)
            if self._residents is not None:
                self._residents.devices_read(self.value)

    async def _next(self) -> tuple[Question | None, _Answer | None]:
        """The next one that asks, or (None, None) when a pause is over."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        while not self._requests:
            self._woken.clear()
            end = self._due(began)
            if end is not None and loop.time() >= end:
                return None, None
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(end):
                    await self._woken.wait()
        return self._requests.popleft()

    def _due(self, began: float) -> float | None:
        """When to read without being asked, in loop seconds; None: not at all."""
        if self._question is None:
            return None
        if self._retry_at is not None:
            return self._retry_at
        if self._residents is None or self._seen.reading.absent:
            return None
        if self._residents.is_changing():
            return began + WHILE_CHANGING_S
        return began + WHILE_RESIDENT_S if self._residents.ours().pids else None

    async def _read(self, question: Question | None) -> None:
        """One reading: NVML always, the engine where its answer may be another one."""
        asked = question is not None
        another = asked and question != self._question
        question = question or self._question
        if question is None:
            return
        reading = await self._nvml.read()
        must = another or self._ask_again or needs_list(self._seen, reading)
        # What NVML does not cover has no other source of what is free now; a reload needs it.
        must = must or (asked and not is_covered(self.value))
        listed = await self._ask(question) if must else None
        self._question = question
        now = Moment(
            reading=reading,
            listed=listed,
            another=question != self._answered,
            host=await self._host(),
            environ=question.env,
            ours=self._residents.ours() if self._residents is not None else Ours(),
            read_at=self._clock(),
        )
        self._seen = settle(self._seen, now)
        refused = listed is not None and self._seen.listed is not listed
        self._ask_again = refused or (listed is not None and listed.devices is None)
        if listed is not None and not self._ask_again:
            self._answered = question
        self._count(failed=self._ask_again or (bool(reading.lost) and not reading.absent))

    def _count(self, *, failed: bool) -> None:
        """Counts failures, and says in the log when the devices went silent or came back."""
        if failed:
            stale = self.value.stale
            if stale and not self._failures:
                log.warning("devices: %s; the last list stays, nothing is stopped", stale)
            self._failed()
            return
        if self._failures:
            log.info("devices: read again after %d tries", self._failures)
        self._failures, self._retry_at = 0, None

    def _failed(self) -> None:
        self._failures += 1
        pause = self._pause_s(self._failures, random.random())  # noqa: S311 (spreads retries)
        self._retry_at = asyncio.get_running_loop().time() + pause
