"""NVML for the event loop: one reading at a time, in one thread, with a time limit.

A driver can hang for minutes (a card that falls off the bus) or for ever. So a reading runs in a
daemon thread; when the time is over the loop goes on with a reading that says `lost`, the thread is
left to finish, and no second one begins before it has: a hung driver costs one thread, not one for
each try. What a late thread brings is old and is dropped. The end of the process waits for nobody.

Must not: raise because of NVML, or block the loop.
"""

import asyncio
import contextlib
import threading
from collections.abc import Callable

from pannier.devices.host import host_memory
from pannier.devices.inventory import HostMemory
from pannier.devices.nvml_read import NvmlSession
from pannier.devices.reading import NvmlReading

READ_SECONDS = 10.0
"""The first reading of a machine with eight cards and no persistence daemon takes some seconds."""

_Answer = asyncio.Future[NvmlReading]


class Nvml:
    """Reads NVML off the loop. Belongs to one event loop; several tasks may read at once."""

    def __init__(self, host: Callable[[], HostMemory] = host_memory) -> None:
        """`host` reads the memory of chips that share the host's; it is called in the thread."""
        self._host = host
        self._session = NvmlSession()
        self._answer: _Answer | None = None
        self._began = 0.0
        self._is_late = False
        self._lock = threading.Lock()
        self._is_reading = False
        self._is_closed = False

    async def read(self, seconds: float = READ_SECONDS) -> NvmlReading:
        """One reading, within this time. Never raises but for cancellation."""
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        while not self._is_closed:
            try:
                answer, was_late = self._answer or self._start(loop), self._is_late
            except RuntimeError as error:  # at the limit of threads
                return NvmlReading(lost=f"it cannot be read: {error}")
            try:
                async with asyncio.timeout_at(end):
                    reading = await asyncio.shield(answer)
            except TimeoutError:
                self._is_late = True
                waited = loop.time() - self._began
                return NvmlReading(lost=f"NVML has not answered for {waited:.0f} s: it hangs")
            if not was_late:
                return reading
        return NvmlReading(lost="it is no longer read: Pannier is stopping")

    def close(self) -> None:
        """Ends NVML without waiting: at once, or when the reading that hangs returns."""
        with self._lock:
            begins = not self._is_reading and not self._is_closed
            self._is_closed = True
        if begins:
            threading.Thread(target=self._session.shut_down, name="nvml", daemon=True).start()

    def _start(self, loop: asyncio.AbstractEventLoop) -> _Answer:
        answer: _Answer = loop.create_future()
        thread = threading.Thread(target=self._work, args=(loop, answer), name="nvml", daemon=True)
        self._began, self._is_late, self._is_reading = loop.time(), False, True
        try:
            thread.start()
        except RuntimeError:
            self._is_reading = False
            raise
        self._answer = answer
        return answer

    def _work(self, loop: asyncio.AbstractEventLoop, answer: _Answer) -> None:
        try:
            reading = self._session.read(self._host())
        except Exception as error:
            # Whatever a driver brings about: the caller is promised a reading.
            reading = NvmlReading(lost=f"its answer could not be read: {error!r}")
        with self._lock:
            self._is_reading = False
            is_closed = self._is_closed
        if is_closed:
            self._session.shut_down()
        with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
            loop.call_soon_threadsafe(self._finish, answer, reading)

    def _finish(self, answer: _Answer, reading: NvmlReading) -> None:
        self._answer = None
        if not answer.done():
            answer.set_result(reading)
