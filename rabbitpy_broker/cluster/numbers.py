"""What a node counts of the logs that it appends to: how long appends take, how much they bring, how many fail.

    owner's writer --> CountedLog --> the engine's log

What must stay true: a counter never falls while the broker lives, so what is counted of one vhost is counted of all as well, and
stays when the vhost is deleted; an append is counted when its outcome is known, and passes through unchanged. What is counted
costs an append, of which there is one for each epoch, and a message nothing.
"""

from __future__ import annotations

import asyncio
import bisect
import time
from collections import deque
from collections.abc import Callable
from typing import Final

from rabbitpy_broker.cluster.log import Reader, ReplicatedLog

BOUNDS_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)  # of the histogram of appends
SLOT_S: Final = 10.0
SLOTS: Final = 3
SLOW_S: Final = 0.25  # appends that take so long on average, for SLOTS slots, are slow


class Pace:
    """How long the appends of the last SLOTS * SLOT_S seconds have taken. `clock` is in seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._slots: deque[list[float]] = deque()  # number of the slot, appends, seconds

    def appended(self, seconds: float) -> None:
        """An append took so long."""
        number = self._clock() // SLOT_S
        if not self._slots or self._slots[-1][0] != number:
            self._drop(number)
            self._slots.append([number, 0, 0.0])
        self._slots[-1][1] += 1
        self._slots[-1][2] += seconds

    def mean_s(self) -> float | None:
        """Of one append; None if there was none."""
        self._drop(self._clock() // SLOT_S)
        count = sum(slot[1] for slot in self._slots)
        return sum(slot[2] for slot in self._slots) / count if count else None

    def slow_s(self) -> float:
        """`mean_s` where the appends of each slot are slow, and there is more than one such slot; else 0."""
        mean = self.mean_s()
        if mean is None or len(self._slots) < 2 or any(seconds < SLOW_S * count for _, count, seconds in self._slots):
            return 0.0
        return mean

    def _drop(self, number: float) -> None:
        while self._slots and self._slots[0][0] <= number - SLOTS:
            self._slots.popleft()


class LogNumbers:
    """Of the log of one vhost, or of all. `buckets` has a number for each bound, and one for what took longer."""

    def __init__(self, whole: LogNumbers | None = None) -> None:
        self.appends = 0
        self.appended_bytes = 0
        self.append_seconds = 0.0
        self.append_failures = 0
        self.takeovers = 0
        self.buckets = [0] * (len(BOUNDS_S) + 1)
        self.pace = Pace()
        self._whole = whole

    def appended(self, size: int, seconds: float) -> None:
        """A block of so many bytes is in the log."""
        self.appends += 1
        self.appended_bytes += size
        self.append_seconds += seconds
        self.pace.appended(seconds)
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
