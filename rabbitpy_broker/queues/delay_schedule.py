"""The schedule of delayed messages: which of millions is due when, with eight bytes of its own for each.

    far    buckets of 1,024 ms, each a list in the order of publishing, and a heap of the buckets
    near   the buckets that have been opened: a list for each ms, and a heap of those ms
    due    the one ms that is being handed out

A bucket is opened when nothing nearer is left: its places are dealt to their ms. Nothing is ever sorted, and places of
one ms stay in the order in which they were added.

What must stay true: everything near is in a bucket up to `_opened`, everything far behind it; no list is empty.
"""

from __future__ import annotations

import heapq
from typing import Final

from mypy_extensions import i64

from rabbitpy_broker.storage.place import Place

BUCKET_BITS: Final[i64] = 10


class DelaySchedule:
    """`Place.expiry` is the time at which a place is due, in ms since 1970. `count` is the number of places."""

    def __init__(self) -> None:
        self.count: i64 = 0
        self._far: dict[int, list[Place]] = {}
        self._far_heap: list[int] = []
        self._near: dict[int, list[Place]] = {}
        self._near_heap: list[int] = []
        self._opened: i64 = -1
        self._due: list[Place] = []
        self._due_at: i64 = 0

    def add(self, place: Place) -> None:
        """Adds a place behind all that are due in the same ms."""
        self.count += 1
        due = place.expiry
        bucket = due >> BUCKET_BITS
        if bucket <= self._opened:
            self._add_near(due, place)
            return
        places = self._far.get(bucket)
        if places is None:
            self._far[bucket] = [place]
            heapq.heappush(self._far_heap, bucket)
        else:
            places.append(place)

    def _add_near(self, due: i64, place: Place) -> None:
        places = self._near.get(due)
        if places is None:
            self._near[due] = [place]
            heapq.heappush(self._near_heap, due)
        else:
            places.append(place)

    def _open(self) -> None:
        """Opens the next bucket. Assumes: nothing is near."""
        bucket = heapq.heappop(self._far_heap)
        self._opened = bucket
        for place in self._far.pop(bucket):
            self._add_near(place.expiry, place)

    def next_ms(self) -> i64:
        """The time at which the first place is due; 0 when there is none."""
        if self._due_at < len(self._due):
            return self._due[self._due_at].expiry
        if not self._near_heap:
            if not self._far_heap:
                return 0
            self._open()
        return self._near_heap[0]

    def take(self, now_ms: i64, limit: i64) -> list[Place]:
        """Takes the places that are due, the earliest first, at most `limit`."""
        taken: list[Place] = []
        while limit > 0:
            due = self.next_ms()
            if due == 0 or due > now_ms:
                break
            if self._due_at >= len(self._due):
                self._due = self._near.pop(heapq.heappop(self._near_heap))
                self._due_at = 0
            part = self._due[self._due_at : self._due_at + limit]
            self._due_at += len(part)
            limit -= len(part)
            taken.extend(part)
        if self._due_at >= len(self._due):
            self._due = []
            self._due_at = 0
        self.count -= len(taken)
        return taken

    def put_back(self, places: list[Place]) -> None:
        """Puts back the places that `take` gave last, or the last of them."""
        self._due = places + self._due[self._due_at :]
        self._due_at = 0
        self.count += len(places)

    def upcoming(self, limit: i64) -> list[Place]:
        """The next places in order, without taking them, as far as they are near; at most `limit`."""
        found = self._due[self._due_at : self._due_at + limit]
        for due in sorted(self._near_heap):
            if len(found) >= limit:
                break
            found.extend(self._near[due][: limit - len(found)])
        return found

    def behind(self, due_ms: i64, seq_id: i64, limit: i64) -> list[Place]:
        """The places behind that time, or of that time and behind that seq_id, in the order of both; they stay."""
        found: list[Place] = []
        self._add_behind(self._due[self._due_at :], due_ms, seq_id, found)
        for due in sorted(self._near):
            if len(found) >= limit:
                break
            if due >= due_ms:
                self._add_behind(self._near[due], due_ms, seq_id, found)
        for bucket in sorted(self._far):
            if len(found) >= limit:
                break
            if bucket >= due_ms >> BUCKET_BITS:
                self._add_behind(self._far[bucket], due_ms, seq_id, found)
        return found[:limit]

    def _add_behind(self, places: list[Place], due_ms: i64, seq_id: i64, found: list[Place]) -> None:
        behind = [place for place in places if place.expiry > due_ms or (place.expiry == due_ms and place.seq_id > seq_id)]
        behind.sort(key=_due_and_seq_id)
        found.extend(behind)

    def all(self) -> list[Place]:
        """All places, in no order."""
        found = self._due[self._due_at :]
        for places in self._near.values():
            found.extend(places)
        for places in self._far.values():
            found.extend(places)
        return found

    def clear(self) -> None:
        """Forgets all places."""
        self.count = 0
        self._far = {}
        self._far_heap = []
        self._near = {}
        self._near_heap = []
        self._due = []
        self._due_at = 0


def _due_and_seq_id(place: Place) -> tuple[int, int]:
    return place.expiry, place.seq_id
