"""The seq_ids of places that were acked, as ranges: most acks come in the order of their queue, and then cost a count.

What must stay true: what `append` was given is written once each, in ranges that overlap none.
"""

from __future__ import annotations

from librt.strings import BytesWriter
from mypy_extensions import i64

from rabbitpy_broker.storage.records import write_range


class SeqIds:
    """`count` is how many there are. Each is given once."""

    def __init__(self) -> None:
        self.count: i64 = 0
        self._ranges: list[tuple[int, int]] = []  # first, and the one behind the last; without the newest range
        self._first: i64 = 0
        self._behind: i64 = -1  # -1: there is no newest range

    def append(self, seq_id: i64) -> None:
        """One more."""
        self.count += 1
        if seq_id == self._behind:
            self._behind = seq_id + 1
            return
        if self._behind >= 0:
            self._ranges.append((int(self._first), int(self._behind)))
        self._first = seq_id
        self._behind = seq_id + 1

    def ranges(self) -> list[tuple[int, int]]:
        """First, and the one behind the last, of each range, in the order in which they came."""
        if self._behind < 0:
            return self._ranges
        return [*self._ranges, (int(self._first), int(self._behind))]

    def put_before(self, older: SeqIds) -> None:
        """All of `older` come before these."""
        self._ranges = older.ranges() + self._ranges
        self.count += older.count

    def write(self, out: BytesWriter, kind: i64) -> None:
        """An entry of this kind (records.py) for each range."""
        for first, behind in self._ranges:
            write_range(out, kind, first, behind - first)
        if self._behind >= 0:
            write_range(out, kind, self._first, self._behind - self._first)

    def terms(self) -> list[int]:
        """First, count, first, count ... in order, neighbours as one."""
        found: list[int] = []
        for first, behind in sorted(self.ranges()):
            if found and found[-2] + found[-1] == first:
                found[-1] += behind - first
            else:
                found.append(first)
                found.append(behind - first)
        return found
