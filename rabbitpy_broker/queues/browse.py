"""Browsing: looking at the messages of a queue where they are, ready and unacked ones, without anything changing by it.

A position is a lane (the number of a priority, 0 in most queues) and a seq_id. Seq_ids are never reused and survive a requeue,
so a page goes on behind the last one's end, whatever was consumed meanwhile. The order is that of delivery as far as it
is known beforehand: the highest lane first, each by its seq_ids. What came back to a quorum queue stands in its old place.

    browse = Browse(backing, ...)
    for job in browse.steps():      the loop takes a step, and a thread runs the job that it gives, before the next step
        job.run()
    browse.found

What must stay true: no state of the queue, no count and no file is changed; between two steps anything may happen to the
queue, so nothing of it is kept over a step but positions, and what was read is looked at again before it is believed.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from heapq import nlargest, nsmallest
from typing import Final

from mypy_extensions import i64

from rabbitpy_broker.message import Message
from rabbitpy_broker.queues.backing_queue import BackingQueue
from rabbitpy_broker.queues.delayed_messages import DelayedMessages
from rabbitpy_broker.queues.msg_ring import MsgRing
from rabbitpy_broker.queues.msg_status import Holder, MsgStatus
from rabbitpy_broker.queues.priority_queue import PriorityQueue
from rabbitpy_broker.queues.quorum_queue import QuorumQueue
from rabbitpy_broker.queues.variable_queue import VariableQueue
from rabbitpy_broker.storage.peek import (
    Content,
    Job,
    MessageRead,
    MessageReads,
    PeekedPlace,
    SegmentPeek,
    content_of,
)
from rabbitpy_broker.storage.place import GONE, JOURNAL, SEGMENT, TRANSIENT, Place
from rabbitpy_broker.storage.queue_index import QueueIndex
from rabbitpy_broker.storage.segment import Segment

READY: Final = "ready"
UNACKED: Final = "unacked"
GONE_MEANWHILE: Final = "gone"
LAST: Final = (1 << 62) - 1  # a seq_id behind all others
PEEKS_KEPT: Final = 4
SEGMENTS_COUNTED: Final = 20_000  # in a longer queue nobody is told where in delta a message stands
LOOKS: Final = 3  # at a segment that grows while it is read


class Seen:
    """A message as it was when a browse came by.

    `position` counts the ready messages before it, -1 where that is not known. `held_by` and `delivery_tag` are those of an
    unacked one. `content` is None where there is none to show: `damaged` says why. `size` is that of the body.
    """

    def __init__(self, lane: i64, seq_id: i64) -> None:
        self.lane = lane
        self.seq_id = seq_id
        self.state = READY
        self.position: i64 = -1
        self.size: i64 = 0
        self.redelivered = False
        self.expiry: i64 = 0
        self.returned = False  # it waits, in a quorum queue, outside its place
        self.requeues: i64 = -1  # how often it came back, where that is counted
        self.stage = "alpha"  # as variable_queue.py has them
        self.stored_ms: i64 = 0  # when a stream got it, or a little later
        self.held_by: Holder | None = None
        self.delivery_tag: i64 = 0
        self.content: Content | None = None
        self.message: Message | None = None  # in memory, until `content` is made of it
        self.damaged = ""
        self.place: Place | None = None  # a copy, of what has to be read
        self.in_delta: Place | None = None  # a copy, by which BackingQueue.take finds it


class Peeks:
    """The segments that were looked at last, by queue and number."""

    def __init__(self) -> None:
        self._kept: dict[tuple[int, int], SegmentPeek] = {}

    def of(self, queue: VariableQueue, num: i64) -> SegmentPeek | None:
        """What is known of the segment; it may have grown since."""
        return self._kept.get((queue.index.queue_id, num))

    def forget(self) -> None:
        """All of them: each takes some megabytes."""
        self._kept = {}

    def keep(self, queue: VariableQueue, peek: SegmentPeek) -> None:
        key = (queue.index.queue_id, int(peek.segment.num))
        self._kept.pop(key, None)
        if len(self._kept) >= PEEKS_KEPT:
            del self._kept[next(iter(self._kept))]
        self._kept[key] = peek


def lanes_of(backing: BackingQueue) -> list[VariableQueue]:
    """The variable queues behind a queue, the one with the highest priority first."""
    if isinstance(backing, PriorityQueue):
        return [lane for lane in backing.lanes() if isinstance(lane, VariableQueue)]
    assert isinstance(backing, VariableQueue), "kept by: QueueFactory"
    return [backing]


def lane_of(backing: BackingQueue, number: i64) -> VariableQueue | None:
    """The variable queue of one lane."""
    for lane in lanes_of(backing):
        if i64(lane.priority) == number:
            return lane
    return None


class LaneView:
    """One lane, as it is at this moment: made anew for each step.

    `wanted` is the segment that has to be looked at before the view can go on; -1: none.
    """

    def __init__(
        self, queue: VariableQueue, returned: set[int], before: i64, peeks: Peeks, looks: dict[int, int]
    ) -> None:
        self.queue = queue
        self.lane = i64(queue.priority)
        self.wanted: i64 = -1
        self._returned = returned
        self._before = before  # ready messages in the lanes before this one; -1: not known
        self._peeks = peeks
        self._looks = looks
        self._extras = sorted(queue._extras) if queue.delta_count > 0 else []
        self._held: set[int] | None = None

    # -- ready ----------------------------------------------------------------------------------------------------

    def ready(self, start: i64, forward: bool, limit: i64) -> list[Seen]:
        """The ready messages behind the position `start`, or before it, the nearest first."""
        found: list[Seen] = []
        queue = self.queue
        rings = [queue.q4, queue.q3, queue.q2, queue.q1]
        order = [0, 1, -1, 2, 3] if forward else [3, 2, -1, 1, 0]
        for number in order:
            if len(found) >= limit or self.wanted >= 0:
                break
            if number < 0:
                if queue.delta_count > 0:
                    self._delta(start, forward, limit, found)
            else:
                self._ring(rings[number], self._base(number), start, forward, limit, found)
        return found

    def _base(self, number: int) -> i64:
        """How many ready messages of this lane stand before a ring."""
        queue = self.queue
        if number == 0:
            return 0
        if number == 1:
            return queue.q4.count()
        if number == 2:
            return queue.len - queue.q1.count() - queue.q2.count()
        return queue.len - queue.q1.count()

    def _ring(self, ring: MsgRing, base: i64, start: i64, forward: bool, limit: i64, found: list[Seen]) -> None:
        count = ring.count()
        if count == 0:
            return
        at: i64 = ring.count_upto(start) if forward else ring.count_upto(start - 1) - 1
        while 0 <= at < count and len(found) < limit:
            seen = self._seen(ring.at(at))
            self._set_position(seen, base + at)
            found.append(seen)
            at += 1 if forward else -1

    def _set_position(self, seen: Seen, at: i64) -> None:
        if self._before >= 0 and at >= 0:
            seen.position = self._before + at

    def _seen(self, status: MsgStatus) -> Seen:
        """As it is now. What is in memory is taken, of the rest the place is copied."""
        seen = Seen(self.lane, status.seq_id)
        seen.size = status.body_size
        seen.redelivered = status.redelivered
        seen.expiry = status.expiry
        requeues = self.queue.index.requeues.get(status.seq_id)
        if requeues is not None:
            seen.requeues = requeues
        message = status.message
        if message is None and status.stored is not None:
            message = status.stored.message
        if status.message is None:
            seen.stage = "beta" if status.where not in (JOURNAL, SEGMENT, TRANSIENT) else "gamma"
        if message is not None:
            seen.message = message
        else:
            seen.place = _copy(status)
        return seen

    # -- delta ----------------------------------------------------------------------------------------------------

    def _delta(self, start: i64, forward: bool, limit: i64, found: list[Seen]) -> None:
        queue = self.queue
        low, high = queue.delta_start, queue.delta_end
        if forward:
            low = max(low, start + 1)
        else:
            high = min(high, start)
        entry_count = queue.index.segments.entry_count
        if low >= high:
            return
        num = low // entry_count if forward else (high - 1) // entry_count
        while len(found) < limit and low // entry_count <= num <= (high - 1) // entry_count:
            peek = self._peek(num)
            if self.wanted >= 0:
                return
            members = self._members(num, peek, low, high, forward, limit - len(found))
            self._take(num, peek, members, forward, limit, found)
            num += 1 if forward else -1

    def _peek(self, num: i64) -> SegmentPeek | None:
        """What the files of a segment have; None for one that has none. Sets `wanted` where they have to be read first."""
        segment = self.queue.index.segments.by_num.get(num)
        if segment is None:
            return None
        peek = self._peeks.of(self.queue, num)
        if peek is not None and (peek.is_of(segment) or self._looks.get(num, 0) >= LOOKS):
            return peek
        self.wanted = num
        return None

    def _members(
        self, num: i64, peek: SegmentPeek | None, low: i64, high: i64, forward: bool, limit: i64
    ) -> list[Seen]:
        """What delta has of a segment, from `low` on and before `high`: the first `limit`, or the last, in the queue's order."""
        queue = self.queue
        found: dict[int, Seen] = {}
        segment = queue.index.segments.by_num.get(num)
        if peek is not None and segment is not None:
            for hole in peek.holes:
                seen = Seen(self.lane, max(hole.after + 1, queue.delta_start))
                seen.damaged = hole.reason
                if low <= seen.seq_id < high:
                    found[seen.seq_id] = seen
            self._on_disk(segment, peek.places, low, high, forward, limit, found)
        first, behind = max(low, num * queue.index.segments.entry_count), min(high, self._end(num))
        for seq_id in self._extras:
            if first <= seq_id < behind:
                found[seq_id] = self._seen(queue._extras[seq_id])
        chosen = sorted(found)[:limit] if forward else sorted(found)[-limit:]
        return [found[seq_id] for seq_id in chosen]

    def _on_disk(
        self, segment: Segment, places: list[PeekedPlace], low: i64, high: i64, forward: bool, limit: i64, found: dict[int, Seen]
    ) -> None:
        """Adds the places that are alive, the nearest first."""
        held = self._unacked()
        extras = self.queue._extras
        count: i64 = len(places)
        at: i64 = bisect_right(places, low - 1, key=_seq_id) if forward else bisect_right(places, high - 1, key=_seq_id) - 1
        taken: i64 = 0
        while 0 <= at < count and taken < limit:
            place = places[at]
            seq_id = place.seq_id
            if seq_id < low or seq_id >= high:
                break
            if not segment.is_acked(seq_id) and seq_id not in held and seq_id not in extras:
                found[seq_id] = self._seen_on_disk(place, seq_id in segment.delivered)
                taken += 1
            at += 1 if forward else -1

    def _end(self, num: i64) -> i64:
        return (num + 1) * self.queue.index.segments.entry_count

    def _seen_on_disk(self, place: PeekedPlace, delivered: bool) -> Seen:
        index = self.queue.index
        seen = Seen(self.lane, place.seq_id)
        seen.stage = "delta"
        seen.size = place.body_size
        seen.redelivered = place.redelivered or delivered or place.seq_id < index.segments.redelivered_below
        seen.expiry = place.expiry
        requeues = index.requeues.get(place.seq_id)
        if requeues is not None:
            seen.requeues = requeues
        copy = Place(place.seq_id, None, place.body_size)
        copy.found(place.where, 0, place.offset, place.size, place.expiry)
        if place.msg_id and not index.large.find(copy, place.msg_id, place.in_transient_store):
            seen.damaged = "the message store does not have it"
            return seen
        copy.redelivered = place.redelivered
        seen.in_delta = copy
        stored = copy.stored
        if stored is not None and stored.message is not None:
            seen.message = stored.message
        else:
            seen.place = copy
        return seen

    def _take(
        self, num: i64, peek: SegmentPeek | None, members: list[Seen], forward: bool, limit: i64, found: list[Seen]
    ) -> None:
        """Adds members of a segment, nearest first, with their positions."""
        if not members:
            return
        base = self._delta_before(num, peek, members[0].seq_id)
        count: i64 = len(members)
        at: i64 = 0 if forward else count - 1
        while 0 <= at < count and len(found) < limit:
            seen = members[at]
            if base >= 0 and not seen.damaged:
                self._set_position(seen, base + at)
            found.append(seen)
            at += 1 if forward else -1

    def _delta_before(self, num: i64, peek: SegmentPeek | None, first: i64) -> i64:
        """How many ready messages of this lane stand before the member `first` of a segment of delta; -1: not known.

        All of the segments before, that are alive there: without those that are unacked or stand in a ring, with those
        that came back and are in no segment.
        """
        queue = self.queue
        segments = queue.index.segments
        if self._before < 0 or len(segments.by_num) > SEGMENTS_COUNTED or (peek is not None and peek.holes):
            return -1
        start = queue.delta_start // segments.entry_count
        total = queue.q4.count() + queue.q3.count()
        for segment in segments.by_num.values():
            if start <= segment.num < num:
                total += segment.live
        low, border = start * segments.entry_count, num * segments.entry_count
        for status in queue._unacked.statuses:
            if status.unacked and low <= status.seq_id < border and status.where in (SEGMENT, TRANSIENT):
                total -= 1
        for ring in (queue.q3, queue.q4):
            at = ring.count() - 1
            while at >= 0 and ring.at(at).seq_id >= low:
                if ring.at(at).where in (SEGMENT, TRANSIENT) and ring.at(at).seq_id < border:
                    total -= 1
                at -= 1
        for seq_id, status in queue._extras.items():
            if seq_id < border and status.where not in (SEGMENT, TRANSIENT):
                total += 1
        return total + self._members_before(num, peek, first)

    def _members_before(self, num: i64, peek: SegmentPeek | None, first: i64) -> i64:
        """How many of a segment's members stand before `first`."""
        queue = self.queue
        segment = queue.index.segments.by_num.get(num)
        total: i64 = 0
        low = max(queue.delta_start, num * queue.index.segments.entry_count)
        if peek is not None and segment is not None:
            held = self._unacked()
            for place in peek.places:
                seq_id = place.seq_id
                if seq_id >= first:
                    break
                if seq_id >= low and not segment.is_acked(seq_id) and seq_id not in held and seq_id not in queue._extras:
                    total += 1
        for seq_id in self._extras:
            if low <= seq_id < first:
                total += 1
        return total

    # -- unacked --------------------------------------------------------------------------------------------------

    def _unacked(self) -> set[int]:
        if self._held is None:
            self._held = self.queue._unacked.seq_ids() if self.queue.unacked > 0 else set()
        return self._held

    def unacked(self, start: i64, forward: bool, limit: i64, returned: bool) -> list[Seen]:
        """The messages that somebody holds, or, for `returned`, that came back and wait outside their places."""
        if self.queue.unacked == 0:
            return []
        chosen: dict[int, MsgStatus] = {}
        for status in self.queue._unacked.statuses:
            seq_id = status.seq_id
            if not status.unacked or (seq_id <= start if forward else seq_id >= start):
                continue
            if (seq_id in self._returned) == returned:
                chosen[seq_id] = status
        found: list[Seen] = []
        for seq_id in nsmallest(int(limit), chosen) if forward else nlargest(int(limit), chosen):
            status = chosen[seq_id]
            seen = self._seen(status)
            seen.returned = returned
            if not returned:
                seen.state = UNACKED
                seen.held_by = status.held_by
                seen.delivery_tag = status.delivery_tag
            found.append(seen)
        return found


class Browsing:
    """A look at a page of messages: a caller takes its steps. `found` is what it has seen, `more` whether anything is left."""

    def __init__(self) -> None:
        self.found: list[Seen] = []
        self.more = False

    def steps(self) -> Iterator[Job]:
        """See the top of this file. An end: `found` is complete."""
        raise NotImplementedError


class Browse(Browsing):
    """Looks at up to `limit` messages behind `start` (lane, seq_id), or before it, the nearest first.

    `cut` is how many bytes of a body are wanted, -1 for all; of bodies together about `most_bytes` are taken, so that a page
    may end early: `more` says whether anything is left. Without `positions` nobody counts how many messages come before one.
    """

    def __init__(
        self,
        backing: BackingQueue,
        peeks: Peeks,
        start: tuple[int, int] | None,
        forward: bool,
        limit: int,
        *,
        ready: bool = True,
        unacked: bool = True,
        cut: int = -1,
        most_bytes: int = 1 << 40,
        positions: bool = True,
    ) -> None:
        super().__init__()
        self._positions = positions
        self._backing = backing
        self._peeks = peeks
        self._forward = forward
        self._limit = limit
        self._ready = ready
        self._unacked = unacked
        self._cut = cut
        self._most_bytes = most_bytes
        self._bytes = 0
        if start is None:
            start = (1 << 30, -1) if forward else (-1, LAST)
        self._lane, self._at = start
        self._looks: dict[int, int] = {}

    def steps(self) -> Iterator[Job]:
        while len(self.found) <= self._limit:
            view = self._view()
            if view is None:
                return
            part = self._part(view)
            if part:
                part = self._within(part)
                taken = part[: self._limit - len(self.found)]
                for seen in taken:
                    self._show(seen)
                yield from self._load(view.queue, taken)
                self._at = int(part[-1].seq_id)
                self.found.extend([seen for seen in part if seen.state != GONE_MEANWHILE])
                if self._bytes > self._most_bytes and self.found:
                    self._limit = min(self._limit, len(self.found))
            elif view.wanted >= 0:
                yield from self._look(view)
            else:
                self._next_lane()
        self.more = True
        del self.found[self._limit :]

    def _show(self, seen: Seen) -> None:
        """Makes the content of what is in memory, of as much as is wanted."""
        if seen.message is not None:
            seen.content = content_of(seen.message, self._cut)
            seen.message = None

    def _within(self, part: list[Seen]) -> list[Seen]:
        """As many of these as the bytes that are wanted allow, and at least one more than were taken already."""
        for number, seen in enumerate(part):
            size = int(seen.size)
            self._bytes += size if self._cut < 0 else min(size, self._cut)
            if self._bytes > self._most_bytes:
                return part[: number + 1]
        return part

    def _view(self) -> LaneView | None:
        """The lane in which the browse is, or the next one that has anything; None at the end."""
        lanes = lanes_of(self._backing)
        before: i64 = 0
        chosen: VariableQueue | None = None
        for lane in lanes if self._forward else reversed(lanes):
            number = int(lane.priority)
            if number <= self._lane if self._forward else number >= self._lane:
                chosen = lane
                break
        if chosen is None:
            return None
        if int(chosen.priority) != self._lane:
            self._lane = int(chosen.priority)
            self._at = -1 if self._forward else LAST
        returned: set[int] = set()
        if isinstance(self._backing, QuorumQueue):
            returned = self._backing.returned(chosen.priority)
            if returned or len(lanes) > 1:
                before = -1
        elif self._positions:
            for lane in lanes:
                if lane.priority > chosen.priority:
                    before += lane.len
        else:
            before = -1
        return LaneView(chosen, returned, before, self._peeks, self._looks)

    def _next_lane(self) -> None:
        self._lane += -1 if self._forward else 1
        self._at = -1 if self._forward else LAST
        self._looks = {}

    def _part(self, view: LaneView) -> list[Seen]:
        """The next messages of this lane, as far as they are known without reading a segment."""
        limit = self._limit + 1 - len(self.found)
        ready = view.ready(self._at, self._forward, limit) if self._ready else []
        others: list[Seen] = []
        if self._ready:
            others.extend(view.unacked(self._at, self._forward, limit, True))
        if self._unacked:
            others.extend(view.unacked(self._at, self._forward, limit, False))
        if view.wanted >= 0:  # behind what is known something may still come
            others = [seen for seen in others if self._is_before_segment(view, seen)]
        both = ready + others
        both.sort(key=_seen_seq_id, reverse=not self._forward)
        return both[:limit]

    def _is_before_segment(self, view: LaneView, seen: Seen) -> bool:
        segments = view.queue.index.segments
        if self._forward:
            return seen.seq_id < max(view.wanted * segments.entry_count, view.queue.delta_start)
        return seen.seq_id >= min((view.wanted + 1) * segments.entry_count, view.queue.delta_end)

    def _look(self, view: LaneView) -> Iterator[Job]:
        """Looks at the segment that a view wants, unless it has gone."""
        num = int(view.wanted)
        self._looks[num] = self._looks.get(num, 0) + 1
        segment = view.queue.index.segments.by_num.get(num)
        if segment is not None:
            peek = SegmentPeek(view.queue.index, segment)
            yield peek
            self._peeks.keep(view.queue, peek)

    # -- bodies ---------------------------------------------------------------------------------------------------

    def _load(self, queue: VariableQueue, part: list[Seen]) -> Iterator[Job]:
        """Reads what is not in memory. What cannot be read may have moved: it is looked up and read once more."""
        wanted = [seen for seen in part if seen.place is not None]
        for is_last in (False, True):
            failed: list[Seen] = []
            if wanted:
                yield from self._read(queue, wanted, failed)
            if not is_last:
                for seen in failed:
                    yield from self._refind(queue, seen)
                wanted = [seen for seen in failed if seen.place is not None]

    def _read(self, queue: VariableQueue, wanted: list[Seen], failed: list[Seen]) -> Iterator[Job]:
        """Adds what could not be read to `failed`, with the reason."""
        job = MessageReads(queue.index, self._cut)
        reads: list[tuple[Seen, MessageRead]] = []
        for seen in wanted:
            place = seen.place
            assert place is not None, "kept by: the caller"
            try:
                reads.append((seen, job.add(place)))
            except OSError as error:
                seen.damaged = str(error)
                failed.append(seen)
        if reads:
            yield job
        for seen, read in reads:
            if read.content is not None and _is_still(queue.index, read):
                seen.content = read.content
                seen.damaged = ""
            else:
                seen.damaged = read.fault or "it moved while it was read"
                failed.append(seen)

    def _refind(self, queue: VariableQueue, seen: Seen) -> Iterator[Job]:
        """Looks a message up again: it has a place if it is to be read, and a content if it is in memory."""
        for _ in range(LOOKS + 1):
            view = LaneView(queue, set(), -1, self._peeks, self._looks)
            for one in view.ready(seen.seq_id - 1, True, 1) + view.unacked(seen.seq_id - 1, True, 1, False):
                if one.seq_id == seen.seq_id:
                    self._show(one)
                    seen.content, seen.place, seen.damaged = one.content, one.place, one.damaged
                    seen.in_delta = one.in_delta
                    return
            if view.wanted < 0:
                break
            yield from self._look(view)
        seen.place = None
        seen.state = GONE_MEANWHILE


class DelayedBrowse(Browsing):
    """Looks at what a delayed message exchange keeps, behind `start` (due, seq_id), in the order in which it is due.

    As Browse; `Seen.lane` is the time at which it is due, in ms since 1970.
    """

    def __init__(
        self, kept: DelayedMessages, start: tuple[int, int] | None, limit: int, cut: int, most_bytes: int
    ) -> None:
        super().__init__()
        self._kept = kept
        self._start = start or (-1, -1)
        self._limit = limit
        self._cut = cut
        self._most_bytes = most_bytes

    def steps(self) -> Iterator[Job]:
        """See Browse.steps. What is let out while it is read is not found."""
        due_ms, seq_id = self._start
        places = self._kept.schedule.behind(due_ms, seq_id, self._limit + 1)
        job = MessageReads(self._kept.index, self._cut)
        reads: list[tuple[Seen, MessageRead, Place]] = []
        size = 0
        for place in places:
            size += int(place.body_size) if self._cut < 0 else min(int(place.body_size), self._cut)
            if len(self.found) == self._limit or (size > self._most_bytes and self.found):
                self.more = True
                break
            seen = Seen(place.expiry, place.seq_id)
            seen.state = "delayed"
            seen.size = place.body_size
            message = place.message
            if message is None and place.stored is not None:
                message = place.stored.message
            self.found.append(seen)
            if message is not None:
                seen.content = content_of(message, self._cut)
                continue
            seen.stage = "gamma"
            try:
                reads.append((seen, job.add(place), place))
            except OSError as error:
                seen.damaged = str(error)
        if reads:
            yield job
        for seen, read, place in reads:
            if place.where == GONE:
                seen.state = GONE_MEANWHILE
            elif read.content is not None and _is_still(self._kept.index, read):
                seen.content = read.content
            else:
                seen.damaged = read.fault or "it moved while it was read"
        self.found = [seen for seen in self.found if seen.state != GONE_MEANWHILE]


def _is_still(index: QueueIndex, read: MessageRead) -> bool:
    """Whether what was read is what should have been: a file of the journal may have been written over meanwhile."""
    if read.journal_file > 0:
        try:
            index.journal.files.path_of(read.journal_file)
        except OSError:
            return False
    return True


def _copy(status: MsgStatus) -> Place:
    """The place as it is now, without its message."""
    copy = Place(status.seq_id, None, status.body_size)
    copy.where = status.where
    copy.file_num = status.file_num
    copy.offset = status.offset
    copy.size = status.size
    copy.expiry = status.expiry
    copy.stored = status.stored
    copy.in_transient_store = status.in_transient_store
    assert copy.where != GONE, "kept by: what is ready or unacked is not gone"
    return copy


def _seq_id(place: PeekedPlace) -> int:
    return place.seq_id


def _seen_seq_id(seen: Seen) -> int:
    return seen.seq_id
