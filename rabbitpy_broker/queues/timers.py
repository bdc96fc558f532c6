"""The timers of a broker: one heap for all queues, behind one timer of the loop.

A timer is not cancelled. Whoever is called looks whether there is still something to do. When most of the heap may be
times that nobody waits for any more (of queues that are gone, of messages that were consumed), these are swept out.

What must stay true: while the heap is not empty the loop's timer is armed for its first entry or earlier.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Final

from mypy_extensions import i64, trait

from rabbitpy_broker.queues.clock import Clock

LONGEST_S = 3_600.0  # the calendar may be set while we wait
SWEEP_ABOVE: Final[i64] = 1_024


@trait
class Timed:
    """An object that a timer can call."""

    def timer_due(self, now_ms: i64) -> None:
        """Does what the time that was asked for brings."""
        raise NotImplementedError

    def waits_for(self, when_ms: i64) -> bool:
        """False when a call at this time, which was asked for, would find nothing to do."""
        raise NotImplementedError


class Timers:
    """`arm(seconds)` has `run` called then; a later call replaces an earlier one. `fault` gets the exceptions of those
    called.
    """

    def __init__(self, clock: Clock, arm: Callable[[float], None], fault: Callable[[Exception], None] | None = None) -> None:
        self.clock = clock
        self._arm = arm
        self._fault = fault
        self._heap: list[tuple[int, int, Timed]] = []
        self._count = 0  # of those asked for: first come, first called at equal times
        self._armed_for: i64 = 0  # 0: not armed
        self._sweep_above = SWEEP_ABOVE

    def at(self, when_ms: i64, who: Timed) -> None:
        """Has `who.timer_due` called at `when_ms`, never before this call has returned."""
        self._count += 1
        heapq.heappush(self._heap, (when_ms, self._count, who))
        if len(self._heap) > self._sweep_above:
            self._sweep()
        if self._armed_for == 0 or when_ms < self._armed_for:
            self._rearm()

    def stop(self) -> None:
        """Calls nobody any more, whoever asks."""
        self._heap.clear()
        self._armed_for = -1

    def _sweep(self) -> None:
        """Leaves one entry for each time that somebody waits for."""
        kept: dict[tuple[int, Timed], tuple[int, int, Timed]] = {}
        for entry in self._heap:
            if entry[2].waits_for(entry[0]):
                kept.setdefault((entry[0], entry[2]), entry)
        self._heap = list(kept.values())
        heapq.heapify(self._heap)
        self._sweep_above = max(SWEEP_ABOVE, 2 * i64(len(self._heap)))

    def _rearm(self) -> None:
        self._armed_for = self._heap[0][0]
        wait_s = float(int(self._armed_for - self.clock.now_ms())) / 1000
        self._arm(min(max(wait_s, 0.0), LONGEST_S))

    def run(self) -> None:
        """Calls everybody whose time has come."""
        now_ms = self.clock.now_ms()
        due: list[Timed] = []
        while self._heap and self._heap[0][0] <= now_ms:
            due.append(heapq.heappop(self._heap)[2])
        self._armed_for = 0
        if self._heap:
            self._rearm()
        for who in due:
            try:
                who.timer_due(now_ms)
            except Exception as fault:
                if self._fault is None:
                    raise
                self._fault(fault)

    def next_ms(self) -> int:
        """The first time that is due; 0 when nobody waits."""
        return self._heap[0][0] if self._heap else 0
