"""The latest value of something, for any number of readers that wait for news.

Latest wins: a slow reader skips what it missed and never holds up the writer or another reader.
There is no queue to grow.

Must not: know what the value is.
"""

import asyncio
from typing import Generic, TypeVar

T = TypeVar("T")


class Latest(Generic[T]):
    """A value with a version. One owner publishes; readers wait for a version newer than theirs."""

    def __init__(self, value: T) -> None:
        self._value = value
        self._version = 0
        self._news: asyncio.Future[None] | None = None

    @property
    def value(self) -> T:
        """The latest value."""
        return self._value

    @property
    def version(self) -> int:
        """Rises by one with every publish."""
        return self._version

    def publish(self, value: T) -> None:
        """Replaces the value and wakes all that wait."""
        self._value = value
        self._version += 1
        if self._news is not None and not self._news.done():
            self._news.set_result(None)
        self._news = None

    async def newer(self, version: int) -> T:
        """The latest value once its version is above `version`; at once if it is already."""
        while self._version <= version:
            if self._news is None:
                self._news = asyncio.get_running_loop().create_future()
            # Shielded: one reader that is cancelled must not cancel the others' wait.
            await asyncio.shield(self._news)
        return self._value
