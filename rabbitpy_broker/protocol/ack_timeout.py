"""How long a channel's oldest delivery has waited for its ack, found out at ticks alone.

No delivery notes its time. At a tick the channel notes a mark instead: the time, and the delivery tag that comes next.
A delivery whose tag is below a mark had been made by then. So the oldest mark above the oldest unacked delivery gives
the least age of that delivery; it may be older by less than a tick. A channel that has nothing unacked keeps no marks.

What must stay true: marks are in the order of their times and of their tags.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

SHORTEST_TICK_MS: Final = 100
LONGEST_TICK_MS: Final = 60_000


def tick_ms(timeout_ms: int) -> int:
    """The interval at which the marks are to be looked at."""
    return min(max(timeout_ms // 10, SHORTEST_TICK_MS), LONGEST_TICK_MS)


class AckMarks:
    """The marks of one channel; times are in milliseconds of a clock that only goes forward."""

    def __init__(self) -> None:
        self._marks: list[tuple[int, int]] = []  # time, next delivery tag

    def tick(self, now_ms: i64, oldest_tag: i64, next_tag: i64) -> i64:
        """Notes a mark; returns how long the delivery `oldest_tag` has waited at least. Tag 0: no delivery is unacked."""
        marks = self._marks
        if oldest_tag == 0:
            marks.clear()
            return 0
        settled = 0
        while settled < len(marks) and marks[settled][1] <= oldest_tag:
            settled += 1
        del marks[:settled]
        if not marks or marks[-1][1] < next_tag:
            marks.append((now_ms, next_tag))
        return now_ms - marks[0][0]

    def age(self, now_ms: i64, tag: i64) -> i64:
        """How long the delivery `tag`, which is unacked, has waited at least."""
        for marked_ms, next_tag in self._marks:
            if next_tag > tag:
                return now_ms - marked_ms
        return 0
