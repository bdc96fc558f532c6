"""The series of queues: what was done with each at the looks, and which of them move.

Compiled: a look asks each queue that has changed, and each of those that had before. What must stay true: whoever's rates are
not 0 is in `_moving`, the latest change last; `touched` has the queues that a look found changed, or unchanged for the first
time.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Final

from rabbitpy_broker.management.api.rates import (
    BASIC,
    QUEUE,
    Looks,
    Retention,
    Series,
    Values,
    queue_values,
)
from rabbitpy_broker.queues.queue import Queue

NO_DISK: Final[Values] = (0, 0)
TOGETHER: Final = 50  # queues in one step


class QueueSeries:
    """Of all queues with which something has been done. `disk` is what those have read and written, as DISK says."""

    def __init__(self, rate_s: float, kept: Retention = BASIC) -> None:
        self.touched: list[Queue] = []
        self.disk: Values = NO_DISK
        self.looks: Looks = 0, 0.0, 0.0
        self._rate_s = rate_s
        self._kept = kept
        self._look = 0
        self._eras = 0  # begins with every queue's series dropped
        self._all: dict[Queue, Series] = {}
        self._moving: dict[Queue, Series] = {}
        self._fresh: list[Queue] = []  # changed in this look

    def count(self) -> int:
        """How many there are."""
        return len(self._all)

    def of(self, queue: Queue) -> Series | None:
        """That of a queue, up to the last look."""
        series = self._all.get(queue)
        if series is not None:
            series.catch_up(self.looks)
        return series

    def moment(self, queue: Queue) -> float:
        """A number that stays the same as long as its rates, and since when it is idle, do though nothing happens: when the last
        look was while it moves, none above 0 when it is at rest.
        """
        series = self._moving.get(queue)
        if series is not None:
            series.catch_up(self.looks)
            if not series.has_settled():
                return series.checked
        return -float(self._eras)

    def begin(self, look: int) -> list[Queue]:
        """Begins a look; the queues that the one before has found changed."""
        self._look = look
        self.touched = []
        fresh, self._fresh = self._fresh, []
        return fresh

    def note(self, queues: list[Queue], nothing_at: float | None, full: int) -> Iterator[None]:
        """Adds what is counted of queues that have changed. Those without a series had done nothing at `nothing_at`; only so many
        series as `full` keep more than the latest looks.
        """
        for start in range(0, len(queues), TOGETHER):
            self._note(queues[start : start + TOGETHER], nothing_at, full)
            yield

    def _note(self, queues: list[Queue], nothing_at: float | None, full: int) -> None:
        now = time.time()
        for queue in queues:
            values = queue_values(queue)
            series = self._all.get(queue)
            before = NO_DISK
            if series is None:
                begun, begins = (now, values) if nothing_at is None else (nothing_at, (0,) * len(values))
                series = self._all[queue] = Series(QUEUE, begun, begins, self._kept, self._rate_s)
            else:
                series.catch_up(self.looks)
                before = series.values[-2:]
            series.add(now, values, full=len(self._all) <= full)
            series.look = self._look
            self._moving.pop(queue, None)
            self._moving[queue] = series
            self._fresh.append(queue)
            self.touched.append(queue)
            self._add_disk(values[-2:], before)

    def settle(self, fresh: list[Queue]) -> Iterator[None]:
        """Queues that had changed in the look before and have not in this one, and those whose rates come to rest. Nothing
        changes of those between: they catch up when somebody asks.
        """
        for start in range(0, len(fresh), TOGETHER):
            self._pause(fresh[start : start + TOGETHER])
            yield
        while self._rest():
            yield

    def _pause(self, fresh: list[Queue]) -> None:
        now = time.time()
        for queue in fresh:
            series = self._moving.get(queue)
            if series is not None and series.look != self._look:
                self.touched.append(queue)
                self._pass(series, now)

    def _rest(self) -> bool:
        """Lets go of those that have come to rest; whether there may be more of them. The first have moved for longest."""
        now = time.time()
        settled: list[Queue] = []
        for queue, series in self._moving.items():
            if series.look != self._look:
                self._pass(series, now)
            if not series.has_settled():
                break
            settled.append(queue)
            if len(settled) == TOGETHER:
                break
        for queue in settled:
            del self._moving[queue]
        return len(settled) == TOGETHER

    def _pass(self, series: Series, now: float) -> None:
        """Nothing has changed in this look."""
        series.catch_up(self.looks)
        series.add(now, series.values)
        series.look = self._look

    def forget(self, vhosts: set[str]) -> Iterator[None]:
        """Drops the series of queues that are deleted, or in other vhosts."""
        if not vhosts:
            self._eras += 1
        for queue, series in list(self._all.items()):
            if (queue.deleted or queue.vhost not in vhosts) and self._all.pop(queue, None) is not None:
                self._moving.pop(queue, None)
                self._add_disk(NO_DISK, series.values[-2:])
            yield

    def _add_disk(self, now: Values, before: Values) -> None:
        if now != before:
            self.disk = (self.disk[0] + now[0] - before[0], self.disk[1] + now[1] - before[1])
