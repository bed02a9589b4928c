"""The launcher's event loop: file descriptors, named timers, signals. Nothing else.

asyncio would cost more than the whole start of a launcher (60 ms against 30 ms), and it brings
child watchers of its own. This loop sleeps until something happens: with no timer set, an idle
launcher never wakes.

Must not: know what it waits for.
"""

import contextlib
import os
import selectors
import signal
import time
from collections.abc import Callable, Iterable

READ = selectors.EVENT_READ
WRITE = selectors.EVENT_WRITE

FOREVER = float("inf")


class Loop:
    """One thread's waiting room."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._timers: dict[str, tuple[float, Callable[[], None]]] = {}
        self._caught: list[tuple[Callable[[int], None], int]] = []
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_read, False)
        os.set_blocking(self._wake_write, False)
        self.watch(self._wake_read, READ, self._woken)

    def time(self) -> float:
        """Seconds on the clock that the timers use."""
        return time.monotonic()

    def watch(self, fd: int, events: int, callback: Callable[[], None]) -> None:
        """Call back whenever `fd` is ready; a second call for the same `fd` replaces the first."""
        try:
            self._selector.modify(fd, events, callback)
        except KeyError:
            self._selector.register(fd, events, callback)

    def unwatch(self, fd: int) -> None:
        """Forget `fd`; to be called before it is closed."""
        with contextlib.suppress(KeyError):
            self._selector.unregister(fd)

    def after(self, name: str, delay: float, callback: Callable[[], None]) -> None:
        """Call back once after `delay` seconds; a timer of the same name is replaced."""
        self._timers[name] = (self.time() + delay, callback)

    def has(self, name: str) -> bool:
        """Whether the timer `name` is set."""
        return name in self._timers

    def cancel(self, name: str) -> None:
        """Forget the timer `name`, if it is set."""
        self._timers.pop(name, None)

    def on_signals(self, numbers: Iterable[int], callback: Callable[[int], None]) -> None:
        """Call back for these signals, between two steps of the loop and never inside one."""
        signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
        for number in numbers:
            signal.signal(number, lambda caught, _: self._caught.append((callback, caught)))

    def run(self, done: Callable[[], bool], limit: float = FOREVER) -> None:
        """Serve events until `done` says so, or for `limit` seconds."""
        end = self.time() + limit
        while not done() and self.time() < end:
            due = min((due for due, _ in self._timers.values()), default=FOREVER)
            wait = min(due, end) - self.time()
            for key, _ in self._selector.select(None if wait == FOREVER else max(wait, 0)):
                # A callback may have forgotten a descriptor that was ready in the same round.
                if self._selector.get_map().get(key.fd) is not None:
                    key.data()
            while self._caught:
                caught, number = self._caught.pop(0)
                caught(number)
            self._call_due()

    def _call_due(self) -> None:
        now = self.time()
        for name, timer in list(self._timers.items()):
            due, callback = timer
            if due <= now and self._timers.get(name) is timer:
                del self._timers[name]
                callback()

    def _woken(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._wake_read, 512)
