"""Rates: how fast messages come to a queue and leave it, as moving averages of four counters, in messages a second.

    ingress      published                  egress      fetched
    ack_ingress  fetched, now to be acked   ack_egress  acked

An average forgets half of the past every `HALF_LIFE_S`, however often it is updated. It reaches a rate that holds
still, and fades when a rate stops suddenly. The counters only ever grow; the messages between two updates count evenly
over that time.

The RAM duration of a queue is the time for which the messages that it holds in memory would last at these rates. It
makes queues comparable: the memory monitor (memory_monitor.py) gives all of them the same one.
"""

from __future__ import annotations

from math import exp, inf, log
from typing import Final

from mypy_extensions import i64

HALF_LIFE_S: Final = 5.0
IDLE_BELOW: Final = 0.01  # messages a second: what is left of one message after half a minute
SLOW_BELOW: Final = 1.0  # messages a second: below this, an average is worth no look of its own
AT_REST: Final[i64] = 0  # what the averages say of messages that came or went: nothing any more,
SLOW: Final[i64] = 1  # less than SLOW_BELOW,
FADING: Final[i64] = 2  # more

_DECAY: Final = log(2.0) / HALF_LIFE_S


class Rates:
    """`now` is always of one monotonic clock, in seconds; the counters begin at 0."""

    def __init__(self, now: float) -> None:
        self.ingress = 0.0
        self.egress = 0.0
        self.ack_ingress = 0.0
        self.ack_egress = 0.0
        self._updated = now
        self._ins: i64 = 0
        self._outs: i64 = 0
        self._ack_ins: i64 = 0
        self._ack_outs: i64 = 0

    def update(self, now: float, ins: i64, outs: i64, ack_ins: i64, ack_outs: i64) -> None:
        """Takes the current values of the four counters. Without time since the last update it waits for the next."""
        elapsed = now - self._updated
        if elapsed <= 0.0:
            return
        kept = exp(-_DECAY * elapsed)
        self.ingress = _averaged(self.ingress, ins - self._ins, elapsed, kept)
        self.egress = _averaged(self.egress, outs - self._outs, elapsed, kept)
        self.ack_ingress = _averaged(self.ack_ingress, ack_ins - self._ack_ins, elapsed, kept)
        self.ack_egress = _averaged(self.ack_egress, ack_outs - self._ack_outs, elapsed, kept)
        self._updated = now
        self._ins = ins
        self._outs = outs
        self._ack_ins = ack_ins
        self._ack_outs = ack_outs

    def total(self) -> float:
        """The number of messages that come and go in a second, in all four ways."""
        return self.ingress + self.egress + self.ack_ingress + self.ack_egress

    def level(self) -> i64:
        """AT_REST, SLOW or FADING."""
        total = self.total()
        return FADING if total > SLOW_BELOW else SLOW if total > IDLE_BELOW else AT_REST

    def ram_duration(self, ram_count: i64) -> float:
        """The seconds for which `ram_count` messages would last; infinite when nothing moves."""
        if (
            self.ingress < IDLE_BELOW
            and self.egress < IDLE_BELOW
            and self.ack_ingress < IDLE_BELOW
            and self.ack_egress < IDLE_BELOW
        ):
            return inf
        return float(ram_count) / self.total()


def _averaged(average: float, count: i64, elapsed: float, kept: float) -> float:
    return average * kept + float(count) / elapsed * (1.0 - kept)
