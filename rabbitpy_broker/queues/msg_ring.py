"""A double-ended list of MsgStatus in seq_id order, for queues of millions.

A plain list and the index of its head: `collections.deque` has no native form in compiled code, and costs five times
as much per message there. The space before the head is given back when it is the greater half of the list, so each
entry is moved at most once on average.

What must stay true: entries before `_head` are None, those from `_head` on are not; seq_ids increase.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from rabbitpy_broker.queues.msg_status import MsgStatus
from rabbitpy_broker.storage.place import Place

_TRIM: Final[i64] = 512


class MsgRing:
    """Append at the tail, take from the head or by seq_id, merge requeued entries into their places."""

    def __init__(self) -> None:
        self._items: list[MsgStatus | None] = []
        self._head: i64 = 0

    def __len__(self) -> int:
        return len(self._items) - self._head

    def count(self) -> i64:
        """The number of entries."""
        return len(self._items) - self._head

    def append(self, status: MsgStatus) -> None:
        self._items.append(status)

    def pop_newest(self) -> MsgStatus:
        """Takes the newest entry; there must be one."""
        status = self._items.pop()
        assert status is not None, "kept by: no entry from _head on is None"
        return status

    def newest(self) -> MsgStatus | None:
        """The newest entry, or None."""
        return self._items[-1] if self._head < len(self._items) else None

    def at(self, place: i64) -> MsgStatus:
        """The entry with index `place`; 0 is the oldest."""
        status = self._items[self._head + place]
        assert status is not None, "kept by: no entry from _head on is None"
        return status

    def count_upto(self, seq_id: i64) -> i64:
        """The number of entries whose seq_id is not higher."""
        return self._behind(seq_id) - self._head

    def take_from(self, place: i64) -> list[MsgStatus]:
        """Removes and returns all entries but the oldest `place` ones."""
        cut = self._head + place
        taken = [status for status in self._items[cut:] if status is not None]
        del self._items[cut:]
        return taken

    def prepend(self, older: list[MsgStatus]) -> None:
        """Puts entries, in order, before all others."""
        head = self._head
        count: i64 = len(older)
        if head >= count:
            self._head = head - count
            self._items[head - count : head] = older
        else:
            self._items[head:head] = older

    def extend(self, newer: list[MsgStatus]) -> None:
        """Puts entries, in order, behind all others."""
        self._items.extend(newer)

    def popleft(self) -> MsgStatus:
        """Takes the oldest entry; there must be one."""
        head = self._head
        status = self._items[head]
        assert status is not None, "kept by: no entry from _head on is None"
        self._items[head] = None
        head += 1
        self._head = head
        if head >= _TRIM and head * 2 > len(self._items):
            del self._items[:head]
            self._head = 0
        return status

    def peek(self) -> MsgStatus | None:
        """The oldest entry, or None."""
        return self._items[self._head] if self._head < len(self._items) else None

    def merge(self, requeued: list[MsgStatus]) -> None:
        """Puts entries, sorted by seq_id, back into their places. The cost is the smaller number of entries before or
        behind them.
        """
        items = self._items
        head = self._head
        low = self._behind(requeued[0].seq_id)
        high = self._behind(requeued[-1].seq_id)
        merged: list[MsgStatus | None] = []
        at = low
        for back in requeued:
            while at < high:
                status = items[at]
                assert status is not None, "kept by: no entry from _head on is None"
                if status.seq_id > back.seq_id:
                    break
                merged.append(status)
                at += 1
            merged.append(back)
        merged.extend(items[at:high])
        grown: i64 = len(requeued)
        if head >= grown and low - head < len(items) - high:
            items[head - grown : low - grown] = items[head:low]
            items[low - grown : high] = merged
            self._head = head - grown
        else:
            items[low:high] = merged

    def take_out(self, wanted: dict[int, Place | None]) -> list[MsgStatus]:
        """Removes and returns, in order, the entries with these seq_ids. The cost is the number of entries from the first to
        the last of them.
        """
        taken: list[MsgStatus] = []
        low = self._behind(min(wanted) - 1)
        high = self._behind(max(wanted))
        kept: list[MsgStatus | None] = []
        for status in self._items[low:high]:
            if status is not None and status.seq_id in wanted:
                taken.append(status)
            else:
                kept.append(status)
        if taken:
            self._items[low:high] = kept
        return taken

    def _behind(self, seq_id: i64) -> i64:
        """The index of the first entry with a higher seq_id."""
        low = self._head
        high: i64 = len(self._items)
        while low < high:
            at = (low + high) // 2
            status = self._items[at]
            assert status is not None, "kept by: no entry from _head on is None"
            if status.seq_id > seq_id:
                high = at
            else:
                low = at + 1
        return low

    def clear(self) -> list[MsgStatus]:
        """Empties the ring and returns what was in it."""
        left = [status for status in self._items[self._head :] if status is not None]
        self._items = []
        self._head = 0
        return left
