"""Time that stands still until a test turns it on, and timers that go by it."""

from __future__ import annotations

from rabbitpy_broker.queues.clock import Clock
from rabbitpy_broker.queues.timers import Timers


class CrankedClock(Clock):
    """`now` is in ms since 1970, and `more_ns` beyond that."""

    def __init__(self, now: int = 1_700_000_000_000) -> None:
        self.now = now
        self.more_ns = 0

    def now_ns(self) -> int:
        return self.now * 1_000_000 + self.more_ns


class CrankedTime:
    """A clock and its timers: `advance` turns the clock on from one timer that is due to the next."""

    def __init__(self, now: int = 1_700_000_000_000) -> None:
        self.clock = CrankedClock(now)
        self.timers = Timers(self.clock, self._arm)
        self.armed_s: float | None = None

    def _arm(self, seconds: float) -> None:
        self.armed_s = seconds

    def advance(self, ms: int) -> None:
        end = self.clock.now + ms
        while 0 < self.timers.next_ms() <= end:
            self.clock.now = max(self.clock.now, self.timers.next_ms())
            self.timers.run()
        self.clock.now = end
