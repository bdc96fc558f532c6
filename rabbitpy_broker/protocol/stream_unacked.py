"""The deliveries of streams on a channel that are not settled yet, as runs of neighbouring delivery tags.

Nothing of a message is kept: to settle a delivery is to give its consumer credit. Where settles come in the order of the
deliveries there is one run or a few, however many deliveries are open; one that is settled out of order cuts its run in two.

What must stay true: runs are in the order of their tags, do not overlap, and none is empty.
"""

from __future__ import annotations

from mypy_extensions import i64

from rabbitpy_broker.queues.consumers import Consumer
from rabbitpy_broker.queues.stream_queue import StreamQueue


class Run:
    """Deliveries of a queue to one consumer, with the tags from `first` up to `end`, which is not among them."""

    def __init__(self, queue: StreamQueue, consumer: Consumer, first: i64, end: i64) -> None:
        self.queue = queue
        self.consumer = consumer
        self.first = first
        self.end = end

    def settle(self) -> None:
        """Gives the consumer credit for all of them."""
        self.queue.credit(self.consumer, self.end - self.first)


class StreamUnacked:
    """`count` is the number of deliveries that are not settled. What is taken out is settled by whoever takes it."""

    def __init__(self) -> None:
        self.count: i64 = 0
        self._runs: list[Run] = []

    def add(self, queue: StreamQueue, consumer: Consumer, first: i64, end: i64) -> None:
        """Adds deliveries, whose tags are higher than all before."""
        self.count += end - first
        runs = self._runs
        if runs:
            last = runs[-1]
            if last.end == first and last.consumer is consumer:
                last.end = end
                return
        runs.append(Run(queue, consumer, first, end))

    def oldest(self) -> Run | None:
        """The run whose first delivery has waited longest."""
        return self._runs[0] if self._runs else None

    def all(self) -> list[Run]:
        """Every run, in order; they stay."""
        return list(self._runs)

    def has(self, tag: i64) -> bool:
        """Whether the delivery with this tag is here."""
        at = self._find(tag)
        return at < len(self._runs) and self._runs[at].first <= tag

    def take(self, tag: i64) -> Run | None:
        """Removes one delivery; None when it is not here."""
        at = self._find(tag)
        runs = self._runs
        if at == len(runs):
            return None
        run = runs[at]
        if run.first > tag:
            return None
        self.count -= 1
        taken = Run(run.queue, run.consumer, tag, tag + 1)
        if run.first == tag:
            run.first = tag + 1
            if run.first == run.end:
                runs.pop(at)
        elif run.end == tag + 1:
            run.end = tag
        else:
            runs.insert(at + 1, Run(run.queue, run.consumer, tag + 1, run.end))
            run.end = tag
        return taken

    def take_upto(self, tag: i64) -> list[Run]:
        """Removes all deliveries up to `tag`, whether that one is here or not."""
        at = self._find(tag)
        runs = self._runs
        taken = runs[:at]
        if at < len(runs) and runs[at].first <= tag:
            run = runs[at]
            taken.append(Run(run.queue, run.consumer, run.first, tag + 1))
            run.first = tag + 1
            if run.first == run.end:
                at += 1
        del runs[:at]
        for one in taken:
            self.count -= one.end - one.first
        return taken

    def take_all(self) -> list[Run]:
        """Removes every delivery."""
        taken = self._runs
        self._runs = []
        self.count = 0
        return taken

    def put_back(self, runs: list[Run]) -> None:
        """Takes deliveries in again, for a rolled back transaction."""
        for run in runs:
            self.count += run.end - run.first
        self._runs.extend(runs)
        self._runs.sort(key=_first)

    def _find(self, tag: i64) -> i64:
        """The first run that ends behind `tag`."""
        runs = self._runs
        low: i64 = 0
        high: i64 = len(runs)
        if high > 0 and runs[0].end > tag:
            return 0
        while low < high:
            at = (low + high) // 2
            if runs[at].end <= tag:
                low = at + 1
            else:
                high = at
        return low


def _first(run: Run) -> int:
    return run.first
