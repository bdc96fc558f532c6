"""A quorum queue (x-queue-type=quorum) on one node: the group has one member, so what the type adds is in what it promises.

- Every message is persistent, whatever its delivery mode, and its publisher is told when it is synced.
- How often a message came back is counted, shown to consumers as the header x-delivery-count, and outlives the broker
  (`QueueIndex.requeues`). The queue gives up what came back more often than the delivery limit.
- What comes back does not go to its old place. With a delivery limit it is the next to be delivered, in the order in which
  it came back; without one it goes behind everything, so that nobody who gives back what he cannot use stops the queue.
  What a consumer leaves behind is the next in any case.
- Messages of a priority above 4 are urgent: of three deliveries two are of urgent messages, if there are both kinds.

There is a variable queue (a lane) for each of the two kinds; the urgent one is made when the first urgent message comes.

                     +-> urgent  lane 1 ---------------------------+
    publish --------<                                              +--2:1--+
                     +-> normal  lane 0 --+                        |       |
                     +-> _behind ---------+-- by the order of publishing --+--> fetch
    requeue --------<                                                      |
                     +-> _requeued --------------------- before all others-+

What waits in `_requeued` and `_behind` has come back, and is ready; its lane still counts it as unacked, which is all that
the lane has to know of it. So after a restart it is in its old place.

What must stay true: the counts are the sums of the lanes', less what is unacked there and ready here; a message that was
published later has the higher seq_id in whichever lane, so that the two can be compared; lanes are durable, and in the
mode PERSIST.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from mypy_extensions import i64, u8

from rabbitpy_broker.message import Message
from rabbitpy_broker.queues.backing_queue import SYNCING, BackingQueue, Figures
from rabbitpy_broker.queues.msg_ring import MsgRing
from rabbitpy_broker.queues.msg_status import MsgStatus
from rabbitpy_broker.queues.priority_queue import Lane, LaneMaker, PriorityQueue
from rabbitpy_broker.queues.variable_queue import VariableQueue
from rabbitpy_broker.storage.place import Place
from rabbitpy_broker.storage.queue_index import QueueIndex
from rabbitpy_broker.wire.edit_header import with_number
from rabbitpy_broker.wire.properties import priority as priority_of

DELIVERY_COUNT: Final = "x-delivery-count"
NORMAL: Final[i64] = 0
URGENT: Final[i64] = 1
_URGENT_ABOVE: Final[i64] = 4
_SHARE: Final[i64] = 2  # urgent messages for each normal one
_FLAGS_AT: Final[i64] = 16  # in a content: which properties there are
_HAS_PRIORITY: Final[i64] = 0x08

_REQUEUED: Final[i64] = 0
_BEHIND: Final[i64] = 1
_LANE_0: Final[i64] = 2
_LANE_1: Final[i64] = 3


class QuorumQueue(PriorityQueue):
    """See BackingQueue for the contract of the inherited methods. Without `prioritizes` every message is normal."""

    def __init__(self, maker: LaneMaker, prioritizes: bool) -> None:
        super().__init__(URGENT, maker)
        self._prioritizes = prioritizes
        self._limited = True
        self._variable: list[VariableQueue] = []  # by the number of the lane
        self._served: i64 = 0  # fetched since it was last the turn of a normal message
        self._requeued = MsgRing()
        self._behind: deque[tuple[int, MsgStatus]] = deque()  # each with the seq_id of the newest before it

    def add_lane(self, priority: i64, backing: BackingQueue) -> Lane:
        assert isinstance(backing, VariableQueue), "kept by: LaneMaker"
        assert priority == len(self._variable), "kept by: the normal lane is the first"
        self._variable.append(backing)
        return super().add_lane(priority, backing)

    def _lane(self, number: i64) -> Lane:
        """A lane that is there."""
        lane = self._lanes[number]
        assert lane is not None, "kept by: add_lane"
        return lane

    def _variable_of(self, status: MsgStatus) -> VariableQueue:
        return self._variable[i64(status.priority)]

    def held(self) -> i64:
        """How many came back and wait outside their places."""
        return self._requeued.count() + len(self._behind)

    def returned(self, lane: u8) -> set[int]:
        """The seq_ids of what waits outside its place in one lane."""
        return {int(status.seq_id) for status in self._all_held() if status.priority == lane}

    # -- publish --------------------------------------------------------------------------------------------------

    def publish(self, message: Message) -> i64:
        lane = self._lane_for(message)
        outcome = lane.backing.publish(_persistent(message))
        self._count(lane)
        return outcome

    def publish_delivered(self, message: Message) -> MsgStatus:
        lane = self._lane_for(message)
        status = lane.backing.publish_delivered(_persistent(message))
        self._count(lane)
        return status

    def delivered_outcome(self, message: Message) -> i64:
        return SYNCING

    def _lane_for(self, message: Message) -> Lane:
        number = NORMAL
        if self._prioritizes and i64(message.content[_FLAGS_AT]) & _HAS_PRIORITY:
            if priority_of(message.header_payload()) > _URGENT_ABOVE:
                number = URGENT
        if number == URGENT and len(self._variable) == 1:
            self.add_urgent_lane()
        lane = self._lane(number)
        if len(self._variable) > 1:
            self._variable[number].next_seq_id = max(self._variable[NORMAL].next_seq_id, self._variable[URGENT].next_seq_id)
        lane.backing.message_ttl = self.message_ttl
        return lane

    def add_urgent_lane(self) -> None:
        """The first urgent message has come."""
        backing = self.maker.make_lane(u8(1))
        backing.set_ram_duration_target(self._duration)
        if self._events is not None:
            backing.record(self._events)
        self.add_lane(URGENT, backing)

    # -- fetch ----------------------------------------------------------------------------------------------------

    def fetch(self) -> MsgStatus:
        return self._fetch_next(True)

    def fetch_place(self) -> MsgStatus:
        return self._fetch_next(False)

    def _fetch_next(self, with_body: bool) -> MsgStatus:
        while True:
            source = self._source()
            if source != _REQUEUED:
                self._served = 0 if self._served == _SHARE else self._served + 1
            if source >= _LANE_0:
                return self._fetch(self._lane(source - _LANE_0), with_body)
            status = self._take_held(source, with_body)
            if status is not None:
                return status

    def _source(self) -> i64:
        """Where the next message comes from."""
        if self._requeued.count() > 0:
            return _REQUEUED
        normal = self._variable[NORMAL]
        low = _LANE_0
        low_seq_id: i64 = -1
        if self._behind:
            low_seq_id = self._behind[0][0]
            if normal.len == 0 or normal.oldest_seq_id() > low_seq_id:
                low = _BEHIND
        if len(self._variable) == 1 or self._variable[URGENT].len == 0:
            return low
        if low == _LANE_0:
            if normal.len == 0:
                return _LANE_1
            low_seq_id = normal.oldest_seq_id()
        if self._served == _SHARE and self._variable[URGENT].oldest_seq_id() > low_seq_id:
            return low
        return _LANE_1

    def _take_held(self, source: i64, with_body: bool) -> MsgStatus | None:
        """What is first in `_requeued` or `_behind`; None when it turns out to be damaged, and is dropped. Raises OSError."""
        status = self._first_held(source)
        variable = self._variable_of(status)
        there = not with_body or variable.load(status)
        if source == _REQUEUED:
            self._requeued.popleft()
        else:
            self._behind.popleft()
        self._count_held(status, -1)
        if there:
            return status
        self.drop(status)
        variable.lost_unacked(status)
        return None

    def _first_held(self, source: i64) -> MsgStatus:
        if source == _BEHIND:
            return self._behind[0][1]
        status = self._requeued.peek()
        assert status is not None, "kept by: _source"
        return status

    def head(self) -> Message | None:
        if self.len == 0:
            return None
        source = self._source()
        return self._variable[source - _LANE_0].head() if source >= _LANE_0 else self._first_held(source).message

    def take(self, lane: i64, wanted: dict[int, Place | None]) -> list[MsgStatus]:
        held = [status for status in self._all_held() if i64(status.priority) == lane and status.seq_id in wanted]
        if held:
            seq_ids = {int(status.seq_id) for status in held}
            requeued, behind = self._requeued.clear(), self._behind
            self._behind = deque()
            for status in requeued:
                if i64(status.priority) != lane or status.seq_id not in seq_ids:
                    self._requeued.append(status)
            for newest, status in behind:
                if i64(status.priority) != lane or status.seq_id not in seq_ids:
                    self._behind.append((newest, status))
            for status in held:
                self._count_held(status, -1)
        return [*held, *super().take(lane, wanted)]

    def _all_held(self) -> list[MsgStatus]:
        held = [self._requeued.at(at) for at in range(self._requeued.count())]
        held.extend([status for _, status in self._behind])
        return held

    def next_expiry(self) -> i64:
        if self.len == 0:
            return 0
        source = self._source()
        if source < _LANE_0:
            return self._first_held(source).expiry
        lane = self._lane(source - _LANE_0)
        try:
            return lane.backing.next_expiry()
        finally:  # what has to be read for it may turn out to be lost
            if lane.len != lane.backing.len:
                self._count(lane)

    def shown(self, message: Message, status: MsgStatus) -> Message:
        times = self._variable_of(status).index.requeues.get(status.seq_id)
        return with_number(message, DELIVERY_COUNT, times) if times is not None else message

    # -- settle ---------------------------------------------------------------------------------------------------

    def ack(self, status: MsgStatus) -> None:
        self._forget(status)
        super().ack(status)

    def drop(self, status: MsgStatus) -> None:
        self._forget(status)
        super().drop(status)

    def hand_over(self, status: MsgStatus) -> None:
        self._forget(status)
        super().hand_over(status)

    def _forget(self, status: MsgStatus) -> None:
        index = self._variable_of(status).index
        if index.requeues:
            index.forget_requeues(status.seq_id)

    def count_requeue(self, status: MsgStatus) -> i64:
        return self._variable_of(status).index.count_requeue(status.seq_id)

    def set_delivery_limit(self, limit: i64) -> None:
        self._limited = limit >= 0

    def requeue(self, statuses: list[MsgStatus]) -> None:
        if self._limited:
            self.requeue_left(statuses)
            return
        newest = max([int(variable.next_seq_id) for variable in self._variable]) - 1
        for status in statuses:
            if self._came_back(status):
                self._behind.append((newest, status))

    def requeue_left(self, statuses: list[MsgStatus]) -> None:
        for status in statuses:
            if self._came_back(status):
                self._requeued.append(status)

    def _came_back(self, status: MsgStatus) -> bool:
        """False when the queue is deleted, and the message gone."""
        variable = self._variable_of(status)
        if variable.index.deleted:
            self.drop(status)
            return False
        status.redelivered = True
        variable.index.requeue_due(status.seq_id)
        self._count_held(status, 1)
        return True

    def _count_held(self, status: MsgStatus, one: i64) -> None:
        """Unacked in its lane, and ready here; or the reverse for -1."""
        self.len += one
        self.unacked -= one
        self.ready_bytes += one * status.body_size
        self.unacked_bytes -= one * status.body_size

    # -- all ------------------------------------------------------------------------------------------------------

    def purge(self) -> i64:
        purged = super().purge()
        return purged + self._drop_held()

    def delete(self) -> None:
        super().delete()
        self._drop_held()

    def _drop_held(self) -> i64:
        held = self._take_all_held()
        for status in held:
            self.drop(status)
        return len(held)

    def _take_all_held(self) -> list[MsgStatus]:
        held = [*self._requeued.clear(), *[status for _, status in self._behind]]
        self._behind.clear()
        for status in held:
            self._count_held(status, -1)
        return held

    def stop(self, next_seq_ids: dict[QueueIndex, int]) -> None:
        super().requeue(self._take_all_held())
        super().stop(next_seq_ids)

    def set_lazy(self, lazy: bool) -> None:
        pass  # a durable queue's bodies are on disk, and in memory as far as that pays

    def set_confirm_mode(self, mode: i64) -> None:
        pass

    def add_figures(self, figures: Figures) -> None:
        super().add_figures(figures)
        in_ram: i64 = 0
        for variable in self._variable:
            in_ram += variable.ram_unacked_count
        held = self.held()
        in_ram = min(in_ram, held)
        figures.alpha += in_ram
        figures.gamma += held - in_ram
        figures.ready_ram += in_ram
        figures.unacked_ram -= in_ram

    def check(self) -> None:
        """Compares the sums with the lanes; for tests. Raises AssertionError."""
        held = [status for _, status in self._behind]
        held.extend([self._requeued.at(at) for at in range(self._requeued.count())])
        size = sum([int(status.body_size) for status in held])
        ready = sum([int(one.len) for one in self._variable])
        unacked = sum([int(one.unacked) for one in self._variable])
        assert self.len == ready + len(held), "len; kept by: _count, _count_held"
        assert self.unacked == unacked - len(held), "unacked; kept by: _count, _count_held"
        assert self.ready_bytes == sum([int(one.ready_bytes) for one in self._variable]) + size, "ready_bytes"
        assert self.unacked_bytes == sum([int(one.unacked_bytes) for one in self._variable]) - size, "unacked_bytes"
        assert len({(status.seq_id, status.priority) for status in held}) == len(held), "held once; kept by: requeue"
        for status in held:
            assert status.unacked, "what is held is unacked in its lane; kept by: _fetch_next"
            assert status.held_by is None, "what is held is nobody's; kept by: Queue._release"
        for one in self._variable:
            one.check()


def _persistent(message: Message) -> Message:
    """The message, to be kept; the other queues that it was routed to have it as it is."""
    if message.persistent:
        return message
    copy = Message(message.address, message.content, message.header_end, True)
    copy.has_bcc = message.has_bcc
    copy.expiration = message.expiration
    return copy
