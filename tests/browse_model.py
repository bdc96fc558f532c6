"""What a test of browsing needs: a walk over pages without threads, and everything that a queue is, as plain values."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from rabbitpy_broker.queues.backing_queue import BackingQueue
from rabbitpy_broker.queues.browse import Browse, Peeks, Seen
from storage.faulty_disk import CrankedThreads, MemoryDisk

PLAIN = (int, float, str, bytes, bool, type(None))


def run(browse: Browse, between: Callable[[], None] = lambda: None) -> list[Seen]:
    """To its end; `between` is called before and after each job."""
    for job in browse.steps():
        between()
        job.run()
        between()
    return browse.found


def pages(
    backing: BackingQueue, limit: int, *, forward: bool = True, peeks: Peeks | None = None, **options: Any
) -> list[Seen]:
    """All messages, by pages of `limit`."""
    found: list[Seen] = []
    peeks = peeks or Peeks()
    start = None
    while True:
        browse = Browse(backing, peeks, start, forward, limit, **options)
        page = run(browse)
        found += page
        if not browse.more:
            return found
        assert page, "a page is not empty when there is more"
        start = (int(page[-1].lane), int(page[-1].seq_id))


def everything(*roots: object) -> list[object]:
    """Each object that can be reached, with all that it holds: equal for two moments between which nothing has changed.

    Not the disk, whose log says what was done to it, and not the threads.
    """
    numbers: dict[int, int] = {}
    keep: list[object] = []
    found: list[object] = []
    todo: deque[object] = deque(roots)

    def name(value: object) -> object:
        if isinstance(value, PLAIN):
            return value
        if id(value) not in numbers:
            numbers[id(value)] = len(numbers)
            keep.append(value)
            todo.append(value)
        return ("object", numbers[id(value)])

    for root in roots:
        name(root)
    todo = deque(roots)
    while todo:
        value = todo.popleft()
        if isinstance(value, MemoryDisk):
            found.append(len(value.log))
        elif isinstance(value, CrankedThreads) or callable(value):
            pass
        elif isinstance(value, dict):
            found.append([(name(key), name(held)) for key, held in value.items()])
        elif isinstance(value, (list, tuple, deque)):
            found.append([name(held) for held in value])
        elif isinstance(value, (set, frozenset)):
            found.append(sorted(map(repr, map(name, value))))
        elif isinstance(value, bytearray):
            found.append(bytes(value))
        elif hasattr(value, "__dict__"):
            found.append((type(value).__name__, [(key, name(held)) for key, held in vars(value).items()]))
        else:
            found.append(type(value).__name__)
    return found
