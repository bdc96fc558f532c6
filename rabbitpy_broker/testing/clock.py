"""Time on demand: a clock that goes with the world's until somebody advances it, and what an advance does on its way.

    advance(3600)   from one time that somebody waits for to the next, an hour on: at each of them what is due is done, and the
                    turns that follow from it are run, before the clock goes on

So a message that expires after ten minutes, is dead-lettered into a queue where it may wait for twenty, and expires there
again, has been through both when `advance` returns.

Clients live in the world's time. They cannot write an hour's heartbeats in a moment; so their connections are not given up,
unless the client is silent: half-open (trouble.py), or because the caller says that all of them are. A silent client's
deadlines go by the broker's clock.

What must stay true: the clock never goes back; `advance` runs in the broker's loop, between two of its callbacks, and nothing
that the broker could do is left undone when it returns.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Final, Protocol

from rabbitpy_broker.queues.clock import Clock

MS: Final = 1_000_000
STEPS_MAX: Final = 1_000_000  # of one advance: more is a loop that does not end


class SettableClock(Clock):
    """The system's clock, `ahead_ns` later."""

    def __init__(self) -> None:
        self.ahead_ns = 0

    def now_ns(self) -> int:
        return time.time_ns() + self.ahead_ns

    def set_to(self, when_ns: int) -> None:
        """Goes on to `when_ns`, unless it is that late already."""
        self.ahead_ns = max(self.ahead_ns, when_ns - time.time_ns())


class Waiting(Protocol):
    """Somebody for whom time passes. Times are in ms of the clock."""

    def next_ms(self) -> int:
        """The next time at which there is something to do; 0: none."""

    def pass_time(self, now_ms: int) -> None:
        """Does what is due by now."""


class Settling(Protocol):
    """The broker, as far as an advance needs it."""

    def settle(self) -> None:
        """Runs turns and disk work until nothing is left to do."""


def advance(clock: SettableClock, seconds: float, waiting: Iterable[Waiting], broker: Settling) -> None:
    """Lets `seconds` pass, for all who wait. Raises ValueError for a negative time."""
    if seconds < 0:
        raise ValueError(f"time only goes forward: {seconds} s")
    everybody = list(waiting)
    broker.settle()
    end_ns = clock.now_ns() + int(seconds * 1_000_000_000)
    for _ in range(STEPS_MAX):
        times = [when for when in (each.next_ms() for each in everybody) if when and when * MS <= end_ns]
        if not times:
            break
        clock.set_to(min(times) * MS)
        now_ms = int(clock.now_ms())
        for each in everybody:
            when = each.next_ms()
            if when and when <= now_ms:
                each.pass_time(now_ms)
        broker.settle()
    else:
        raise RuntimeError(f"there is no end to what happens within {seconds} s")
    clock.set_to(end_ns)
    for each in everybody:
        each.pass_time(int(clock.now_ms()))
    broker.settle()
