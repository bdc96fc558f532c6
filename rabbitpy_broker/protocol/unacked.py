"""The deliveries of a channel that are not settled yet, in delivery_tag order.

A list and the index of its head. Most acks are for the oldest delivery or near it, and tags without gaps stand at `tag
- first tag`, so an ack finds its entry without search or hashing. After gaps (deliveries that expect no ack take tags
too) a binary search finds it. An entry that is settled out of order leaves a tombstone, so that the search still works;
when tombstones are the greater half they are swept out. A tombstone is known by its seq_id: the message of a delivery
may be None too, when its body is on disk only.

What must stay true: delivery_tags increase; the entry at the head, if any, is no tombstone.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from rabbitpy_broker.queues.msg_status import TOMBSTONE, MsgStatus

_TRIM: Final[i64] = 512


class Unacked:
    """`count` is the number of deliveries that are not settled."""

    def __init__(self) -> None:
        self.count: i64 = 0
        self._items: list[MsgStatus] = []
        self._head: i64 = 0

    def add(self, status: MsgStatus) -> None:
        """Adds a delivery; its delivery_tag is higher than all before."""
        self._items.append(status)
        self.count += 1

    def oldest(self) -> MsgStatus | None:
        """The delivery that has waited longest; it stays."""
        return self._items[self._head] if self.count > 0 else None

    def first(self, count: i64) -> list[MsgStatus]:
        """The deliveries that have waited longest, `count` at most; they stay."""
        upto = self._head + count
        return [status for status in self._items[self._head : upto] if status.seq_id != TOMBSTONE]

    def all(self) -> list[MsgStatus]:
        """Every delivery, oldest first; they stay."""
        return [status for status in self._items[self._head :] if status.seq_id != TOMBSTONE]

    def take(self, tag: i64) -> MsgStatus | None:
        """Removes one delivery; None when it is not (or no longer) there."""
        at = self._find(tag)
        if at < 0:
            return None
        status = self._items[at]
        self.count -= 1
        if at == self._head:
            self._advance(at + 1)
        else:
            stone = MsgStatus(TOMBSTONE, None)
            stone.delivery_tag = tag
            self._items[at] = stone
            if len(self._items) - self._head > 2 * self.count + _TRIM:
                self._sweep()
        return status

    def take_upto(self, tag: i64) -> list[MsgStatus] | None:
        """Removes all deliveries up to `tag`, oldest first; None when `tag` itself is not there."""
        at = self._find(tag)
        if at < 0:
            return None
        taken = [status for status in self._items[self._head : at + 1] if status.seq_id != TOMBSTONE]
        self.count -= len(taken)
        self._advance(at + 1)
        return taken

    def has(self, tag: i64) -> bool:
        """Whether the delivery with this tag is there."""
        return self._find(tag) >= 0

    def take_below(self, tag: i64) -> list[MsgStatus]:
        """Removes all deliveries with lower tags, oldest first."""
        items = self._items
        end = self._head
        while end < len(items) and items[end].delivery_tag < tag:
            end += 1
        taken = [status for status in items[self._head : end] if status.seq_id != TOMBSTONE]
        self.count -= len(taken)
        self._advance(end)
        return taken

    def take_all(self) -> list[MsgStatus]:
        """Removes every delivery, oldest first."""
        taken = [status for status in self._items[self._head :] if status.seq_id != TOMBSTONE]
        self._items = []
        self._head = 0
        self.count = 0
        return taken

    def put_back(self, statuses: list[MsgStatus]) -> None:
        """Takes deliveries in again, for a rolled back transaction."""
        items = self.take_all()
        items.extend(statuses)
        items.sort(key=_delivery_tag)
        self._items = items
        self.count = len(items)

    def _find(self, tag: i64) -> i64:
        items = self._items
        low = self._head
        high: i64 = len(items)
        if low == high:
            return -1
        at: i64 = low + tag - items[low].delivery_tag
        if at < low:
            return -1
        if at >= high or items[at].delivery_tag != tag:
            while low < high:
                at = (low + high) // 2
                if items[at].delivery_tag < tag:
                    low = at + 1
                else:
                    high = at
            at = low
            if at >= len(items) or items[at].delivery_tag != tag:
                return -1
        return at if items[at].seq_id != TOMBSTONE else -1

    def _advance(self, head: i64) -> None:
        items = self._items
        size: i64 = len(items)
        while head < size and items[head].seq_id == TOMBSTONE:
            head += 1
        if head == size:
            self._items = []
            self._head = 0
            return
        before = self._head
        while before < head:
            items[before] = _GONE
            before += 1
        self._head = head
        if head >= _TRIM and head * 2 > size:
            del items[:head]
            self._head = 0

    def _sweep(self) -> None:
        self._items = [status for status in self._items[self._head :] if status.seq_id != TOMBSTONE]
        self._head = 0


def _delivery_tag(status: MsgStatus) -> int:
    return status.delivery_tag


_GONE = MsgStatus(TOMBSTONE, None)
