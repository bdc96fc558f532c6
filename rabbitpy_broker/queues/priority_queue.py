"""A queue with priorities (x-max-priority): one variable queue for each priority that was ever used.

`fetch` serves the highest priority that has messages, oldest first. A message without a priority has priority 0, a
message above the maximum has the maximum. `MsgStatus.priority` says in which lane a message is. Each lane has a queue
index of its own on disk, so nothing there knows of priorities.

What must stay true: the counts are the sums of the lanes'; no lane above `_highest` has ready messages.
"""

from __future__ import annotations

import hashlib

from mypy_extensions import i64, mypyc_attr, u8

from rabbitpy_broker.events.journal import QueueEvents
from rabbitpy_broker.message import Message
from rabbitpy_broker.queues.backing_queue import AckWaits, BackingQueue, Figures
from rabbitpy_broker.queues.msg_status import MsgStatus
from rabbitpy_broker.storage.place import Place
from rabbitpy_broker.storage.queue_index import QueueIndex
from rabbitpy_broker.wire.properties import priority as priority_of


def lane_id(queue_id: int, priority: int) -> int:
    """The queue_id of one lane, made of the queue's own id, which is that of priority 0."""
    if priority == 0:
        return queue_id
    name = queue_id.to_bytes(8, "big") + bytes([priority])
    return int.from_bytes(hashlib.blake2b(name, digest_size=8, person=b"priority").digest(), "big")


@mypyc_attr(allow_interpreted_subclasses=True)
class LaneMaker:
    """Makes the variable queue of a priority when its first message comes."""

    def make_lane(self, priority: u8) -> BackingQueue:
        raise NotImplementedError


class Lane:
    """The messages of one priority, and their counts as the sums contain them."""

    def __init__(self, backing: BackingQueue) -> None:
        self.backing = backing
        self.len: i64 = 0
        self.unacked: i64 = 0
        self.ready_bytes: i64 = 0
        self.unacked_bytes: i64 = 0


class PriorityQueue(BackingQueue):
    """See BackingQueue for the contract of the inherited methods."""

    def __init__(self, max_priority: i64, maker: LaneMaker) -> None:
        super().__init__()
        self._max_priority = max_priority
        self.maker = maker
        self._lanes: list[Lane | None] = [None] * (max_priority + 1)
        self._used: list[Lane] = []  # the highest priority first
        self._highest: i64 = 0
        self._lazy = False
        self._confirm_mode: i64 = 0
        self._duration = float("inf")
        self._events: QueueEvents | None = None

    def add_lane(self, priority: i64, backing: BackingQueue) -> Lane:
        """Takes a variable queue, empty or as it was recovered."""
        lane = Lane(backing)
        self._lanes[priority] = lane
        self._used = [one for one in reversed(self._lanes) if one is not None]
        self._count(lane)
        self.may_expire = self.may_expire or backing.may_expire
        if lane.len > 0 and priority > self._highest:
            self._highest = priority
        return lane

    def _lane_for(self, message: Message) -> Lane:
        """The lane of a message that is published now."""
        priority = min(priority_of(message.header_payload()), self._max_priority)
        if priority > self._highest:
            self._highest = priority
        lane = self._lanes[priority]
        if lane is None:
            backing = self.maker.make_lane(u8(priority))
            backing.set_lazy(self._lazy)
            backing.set_confirm_mode(self._confirm_mode)
            backing.set_ram_duration_target(self._duration)
            if self._events is not None:
                backing.record(self._events)
            lane = self.add_lane(priority, backing)
        lane.backing.message_ttl = self.message_ttl
        return lane

    def publishes_waiting(self) -> i64:
        waiting: i64 = 0
        for lane in self._used:
            waiting += lane.backing.publishes_waiting()
        return waiting

    def _lane_of(self, status: MsgStatus) -> Lane:
        lane = self._lanes[status.priority]
        assert lane is not None, "kept by: a status is made by a lane"
        return lane

    def _count(self, lane: Lane) -> None:
        """Brings the sums up to date with one lane."""
        backing = lane.backing
        self.len += backing.len - lane.len
        self.unacked += backing.unacked - lane.unacked
        self.ready_bytes += backing.ready_bytes - lane.ready_bytes
        self.unacked_bytes += backing.unacked_bytes - lane.unacked_bytes
        lane.len = backing.len
        lane.unacked = backing.unacked
        lane.ready_bytes = backing.ready_bytes
        lane.unacked_bytes = backing.unacked_bytes
        if backing.may_expire:
            self.may_expire = True

    # -- publish and fetch ----------------------------------------------------------------------------------------

    def publish(self, message: Message) -> i64:
        lane = self._lane_for(message)
        outcome = lane.backing.publish(message)
        self._count(lane)
        return outcome

    def publish_delivered(self, message: Message) -> MsgStatus:
        lane = self._lane_for(message)
        status = lane.backing.publish_delivered(message)
        self._count(lane)
        return status

    def delivered_outcome(self, message: Message) -> i64:
        return self._lane_for(message).backing.delivered_outcome(message)

    def _first(self) -> Lane:
        """The highest lane with messages. Raises OSError when the counts say that there are some and no lane has any."""
        while self._highest >= 0:
            lane = self._lanes[self._highest]
            if lane is not None and lane.backing.len > 0:
                return lane
            if self._highest == 0:
                break
            self._highest -= 1
        raise OSError("the messages that were left cannot be read")

    def fetch(self) -> MsgStatus:
        return self._fetch(self._first(), True)

    def fetch_place(self) -> MsgStatus:
        return self._fetch(self._first(), False)

    def _fetch(self, lane: Lane, with_body: bool) -> MsgStatus:
        try:
            return lane.backing.fetch() if with_body else lane.backing.fetch_place()
        finally:
            self._count(lane)

    def take(self, lane: i64, wanted: dict[int, Place | None]) -> list[MsgStatus]:
        found = self._lanes[lane] if 0 <= lane < len(self._lanes) else None
        if found is None:
            return []
        taken = found.backing.take(lane, wanted)
        self._count(found)
        return taken

    def next_expiry(self) -> i64:
        """The expiry at the head of the highest lane. A lower lane's expired messages go when they come to the head, as in
        RabbitMQ.
        """
        if self.len == 0:
            return 0
        try:
            lane = self._first()
        except OSError:  # the counted messages are lost
            return 0
        try:
            return lane.backing.next_expiry()
        finally:  # the read may have found that messages are lost
            if lane.len != lane.backing.len:
                self._count(lane)

    def load(self, status: MsgStatus) -> bool:
        return self._lane_of(status).backing.load(status)

    # -- settle ---------------------------------------------------------------------------------------------------

    def ack(self, status: MsgStatus) -> None:
        lane = self._lane_of(status)
        lane.backing.ack(status)
        self._count(lane)

    def drop(self, status: MsgStatus) -> None:
        lane = self._lane_of(status)
        lane.backing.drop(status)
        self._count(lane)

    def hand_over(self, status: MsgStatus) -> None:
        lane = self._lane_of(status)
        lane.backing.hand_over(status)
        self._count(lane)

    def requeue(self, statuses: list[MsgStatus]) -> None:
        by_priority: dict[int, list[MsgStatus]] = {}
        for status in statuses:
            by_priority.setdefault(int(status.priority), []).append(status)
        for priority, back in by_priority.items():
            lane = self._lane_of(back[0])
            lane.backing.requeue(back)
            self._count(lane)
            if priority > self._highest:
                self._highest = priority

    # -- all lanes alike ------------------------------------------------------------------------------------------

    def purge(self) -> i64:
        purged: i64 = 0
        for lane in self._used:
            try:
                purged += lane.backing.purge()
            finally:
                self._count(lane)
        return purged

    def delete(self) -> None:
        for lane in self._used:
            lane.backing.delete()
            self._count(lane)

    def tick(self, now: float) -> None:
        for lane in self._used:
            lane.backing.tick(now)

    def stop(self, next_seq_ids: dict[QueueIndex, int]) -> None:
        for lane in self._used:
            lane.backing.stop(next_seq_ids)

    def note_seq_ids(self, found: dict[int, int]) -> None:
        for lane in self._used:
            lane.backing.note_seq_ids(found)

    def set_lazy(self, lazy: bool) -> None:
        self._lazy = lazy
        for lane in self._used:
            lane.backing.set_lazy(lazy)

    def set_confirm_mode(self, mode: i64) -> None:
        self._confirm_mode = mode
        for lane in self._used:
            lane.backing.set_confirm_mode(mode)

    def record(self, events: QueueEvents) -> None:
        self._events = events
        for lane in self._used:
            lane.backing.record(events)

    def lanes(self) -> list[BackingQueue]:
        """The lanes that exist, the highest priority first."""
        return [lane.backing for lane in self._used]

    def head(self) -> Message | None:
        for lane in self._used:
            if lane.backing.len > 0:
                return lane.backing.head()
        return None

    def add_waits(self, waits: AckWaits) -> None:
        for lane in self._used:
            lane.backing.add_waits(waits)

    def add_figures(self, figures: Figures) -> None:
        for lane in self._used:
            lane.backing.add_figures(figures)

    def ram_duration(self) -> float:
        shortest = float("inf")
        for lane in self._used:
            shortest = min(shortest, lane.backing.ram_duration())
        return shortest

    def set_ram_duration_target(self, duration: float) -> None:
        self._duration = duration
        for lane in self._used:
            lane.backing.set_ram_duration_target(duration)

    def count_owing(self) -> i64:
        owing: i64 = 0
        for lane in self._used:
            owing += lane.backing.count_owing()
        return owing

    def check(self) -> None:
        """Compares the sums with the lanes; for tests. Raises AssertionError."""
        backings = self.lanes()
        assert self.len == sum([int(one.len) for one in backings]), "len; kept by: _count"
        assert self.unacked == sum([int(one.unacked) for one in backings]), "unacked; kept by: _count"
        for priority in range(int(self._highest) + 1, len(self._lanes)):
            lane = self._lanes[priority]
            assert lane is None or lane.backing.len == 0, "_highest; kept by: publish, requeue"
        for one in backings:
            one.check()
