"""Whether something has been done with a queue since somebody looked: a number that follows from its counts.

Whoever lists or samples thousands of queues asks for this number instead of a row of each, and makes rows of those that it
has changed for. Nothing is told here of a message: a walk reads counts that are kept anyway.

What must stay true: `activity` is 0 for a queue with which nothing has been done; equal numbers mean equal counts, but once in
2 ** 43 times. Whoever relies on it for long looks at each queue now and then all the same.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from rabbitpy_broker.queues.queue import Queue
from rabbitpy_broker.queues.rates import AT_REST
from rabbitpy_broker.queues.variable_queue import VariableQueue

ALWAYS: Final[i64] = -1  # what is shown of it has to be made in any case
_MASK: Final[i64] = (1 << 43) - 1
_FACTOR: Final[i64] = 1_000_003  # times a masked number, and a count added, this stays below 2 ** 63


class Lengths:
    """Messages of many queues together."""

    def __init__(self) -> None:
        self.ready: i64 = 0
        self.unacked: i64 = 0


def _with(mark: i64, count: i64) -> i64:
    return (mark * _FACTOR + (count & _MASK)) & _MASK


def activity(queue: Queue) -> i64:
    """Follows from what was published, delivered and acked, and from how many messages and consumers there are."""
    return _activity(queue, queue.ready_count(), queue.backing.unacked)


def _activity(queue: Queue, ready: i64, unacked: i64) -> i64:
    mark = _with(queue.published & _MASK, queue.taken)
    mark = _with(mark, queue.acked)
    mark = _with(mark, queue.get_empty)
    mark = _with(mark, queue.redelivered)
    mark = _with(mark, ready)
    mark = _with(mark, unacked)
    return _with(mark, queue.consumer_count)


def shown_activity(queue: Queue) -> i64:
    """The same of all that lists show of a queue but its rates and averages, its policies and what follows from them, and what it
    was declared as; another number once the last look has seen what was done. ALWAYS for a queue of another kind than the plain
    one, and for one whose consumers lists name.

    It asks no more objects than it must, and of those what lies together: of thousands, each line is a miss of the processor's
    caches. What is where in a queue, and who waits for an ack, changes with one of its steps only.
    """
    backing = queue.backing
    if not isinstance(backing, VariableQueue):
        return ALWAYS
    mark = _with(activity(queue), queue.looked_at)
    if queue.consumer_count:
        if queue.single_active:
            return ALWAYS
        for consumer in queue.consumers.members:
            if consumer.exclusive:
                return ALWAYS
        for level in queue.consumers.levels:
            if level.round:
                mark = _with(mark, 1)
                break
    mark = _with(mark, queue.got)
    mark = _with(mark, queue.got_no_ack)
    mark = _with(mark, queue.taken_no_ack)
    return _with(mark, backing.steps)


def fading(queue: Queue) -> i64:
    """The level of a plain queue's rates (rates.py)."""
    backing = queue.backing
    return backing.rates_level if isinstance(backing, VariableQueue) else AT_REST


def done_since(queues: list[Queue], start: i64, stop: i64, lengths: Lengths, anew: bool) -> list[Queue]:
    """Those of the queues from `start` to `stop` with which something has been done since the last look, and has them looked at;
    with `anew`, since they were declared. The lengths of all are added up.
    """
    found: list[Queue] = []
    for at in range(start, min(stop, len(queues))):
        queue = queues[at]
        if queue.deleted:
            continue
        ready, unacked = queue.ready_count(), queue.backing.unacked
        lengths.ready += ready
        lengths.unacked += unacked
        mark = _activity(queue, ready, unacked)
        if mark != queue.looked_at or (anew and mark != 0):
            queue.looked_at = mark
            found.append(queue)
    return found
