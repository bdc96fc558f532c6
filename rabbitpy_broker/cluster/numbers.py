"""What a node counts of the logs that it appends to: how long appends take, how much they bring, how many fail.

    owner's writer --> CountedLog --> the engine's log

What must stay true: a counter never falls while the broker lives, so what is counted of one vhost is counted of all as well, and
stays when the vhost is deleted; an append is counted when its outcome is known, and passes through unchanged.
"""

from __future__ import annotations

import asyncio
import bisect
import time
from typing import Final

from rabbitpy_broker.cluster.log import Reader, ReplicatedLog

BOUNDS_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)  # of the histogram of appends


class LogNumbers:
    """Of the log of one vhost, or of all. `buckets` has a number for each bound, and one for what took longer."""

    def __init__(self, whole: LogNumbers | None = None) -> None:
        self.appends = 0
        self.appended_bytes = 0
        self.append_seconds = 0.0
        self.append_failures = 0
        self.takeovers = 0
        self.buckets = [0] * (len(BOUNDS_S) + 1)
        self._whole = whole

    def appended(self, size: int, seconds: float) -> None:
        """A block of so many bytes is in the log."""
        self.appends += 1
        self.appended_bytes += size
        self.append_seconds += seconds
        self.buckets[bisect.bisect_left(BOUNDS_S, seconds)] += 1
        if self._whole is not None:
            self._whole.appended(size, seconds)

    def failed(self) -> None:
        """An append was refused, not possible, or has an unknown outcome."""
        self.append_failures += 1
        if self._whole is not None:
            self._whole.failed()

    def took_over(self) -> None:
        """This node has become the owner."""
        self.takeovers += 1
        if self._whole is not None:
            self._whole.took_over()


class Numbers:
    """Of all logs of a node."""

    def __init__(self) -> None:
        self.whole = LogNumbers()
        self.logs: dict[str, LogNumbers] = {}

    def of(self, vhost: str) -> LogNumbers:
        """From the first time that it is asked for."""
        found = self.logs.get(vhost)
        if found is None:
            found = self.logs[vhost] = LogNumbers(self.whole)
        return found


class CountedLog(ReplicatedLog):
    """A log whose appends are counted."""

    def __init__(self, log: ReplicatedLog, numbers: LogNumbers) -> None:
        self.name = log.name
        self._log = log
        self._numbers = numbers

    def append(self, block: bytes, *, term: int, expected: int | None = None) -> asyncio.Future[int]:
        began, size = time.monotonic(), len(block)
        appending = self._log.append(block, term=term, expected=expected)

        def done(future: asyncio.Future[int]) -> None:
            if future.cancelled() or future.exception() is not None:
                self._numbers.failed()
            else:
                self._numbers.appended(size, time.monotonic() - began)

        appending.add_done_callback(done)
        return appending

    async def end(self) -> int:
        return await self._log.end()

    async def first(self) -> int:
        return await self._log.first()

    async def trim(self, below: int) -> None:
        await self._log.trim(below)

    def reader(self, position: int) -> Reader:
        return self._log.reader(position)
