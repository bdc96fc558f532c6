"""One RAM duration for all queues: how many seconds' worth of messages each may hold in memory.

    queue -- its RAM duration, every few seconds --> MemoryMonitor -- the desired one, at each look at memory --> queues

A fast queue and a slow one are treated alike when the messages that they hold in memory last equally long. So the
monitor takes the average of what the queues report and divides it by how far the broker is above the paging mark,
limit * paging_ratio: twice the mark, half the duration. Queues make it a number of messages with their rates
(rates.py), page out what is more, and report again; so the duration settles where memory does.

  memory below the paging mark        infinite: nothing is paged out
  disk alarm                          infinite: paging out would only fill the disk, and the store may not write at all
  memory above it                     average / (used / mark)
  no queue with a finite duration     0: what does not move is not missed in memory, and waiting would not free any
  limit 0                             0: no memory is allowed at all

When everything is on disk all queues report 0, and a share of 0 stays 0: nothing would come back before memory fell
below the mark, and a process gives memory back late. Therefore, while memory is below GROW_BELOW of the limit, a second
is added to the sum that the queues share.

RabbitMQ divides by used / limit instead, with which the queues settle at the limit, where publishers are blocked.
"""

from __future__ import annotations

from math import inf
from typing import Final

GROW_BELOW: Final = 0.95  # of the limit
GROWTH_S: Final = 1.0  # for all queues together


class MemoryMonitor:
    """`desired` is the RAM duration for every queue, as of the last `update`; infinite at first."""

    def __init__(self, limit_bytes: int, paging_ratio: float) -> None:
        self.desired = inf
        self._limit = float(limit_bytes)
        self._paging_ratio = paging_ratio
        self._durations: dict[int, float] = {}  # the finite ones only

    def set_limit(self, limit_bytes: int) -> None:
        """Takes effect with the next update."""
        self._limit = float(limit_bytes)

    def report(self, queue_id: int, duration: float) -> None:
        """Seconds that the queue's messages in RAM would last at its rates; infinite when it is idle."""
        if duration == inf:
            self._durations.pop(queue_id, None)
        else:
            self._durations[queue_id] = duration

    def reset(self) -> None:
        """All queues are about to report anew."""
        self._durations.clear()

    def forget(self, queue_id: int) -> None:
        """The queue is gone; nothing happens if it never reported."""
        self._durations.pop(queue_id, None)

    def asks_for_reports(self, memory_used: int, disk_alarm: bool = False) -> bool:
        """Whether `update` will look at what queues report."""
        return not disk_alarm and self._limit > 0.0 and memory_used >= self._limit * self._paging_ratio

    def update(self, memory_used: int, disk_alarm: bool = False) -> float:
        """Works out, keeps in `desired` and returns the RAM duration for all queues, in seconds."""
        self.desired = self._desired_duration(float(memory_used), disk_alarm)
        return self.desired

    def _desired_duration(self, used: float, disk_alarm: bool) -> float:
        if disk_alarm:
            return inf
        if self._limit <= 0.0:
            return 0.0
        mark = self._limit * self._paging_ratio
        if used < mark:
            return inf
        if not self._durations:
            return 0.0
        durations_s = 0.0
        for duration in self._durations.values():
            durations_s += duration
        if used < self._limit * GROW_BELOW:
            durations_s += GROWTH_S
        return durations_s / len(self._durations) * mark / used
