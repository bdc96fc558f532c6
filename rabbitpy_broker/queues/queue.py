"""The queue actor: one FIFO of messages and those who consume it.

A queue owns its backing queue and its consumers; others only call its methods, each of which runs to completion. A
message that arrives at an empty queue with a ready consumer goes straight to it; any other waits in the backing queue
until `drain` hands it out. `drain` is called by the broker's run queue (`protocol/turn.py`) for queues that were
touched: by an ack, a requeue, a new consumer, a drained output buffer.

What must stay true: when messages are ready and a consumer is in the round, the queue is touched, so that a drain is
due; a message is held by one consumer at most; a consumer's `unacked_count` is the number of messages that it holds.
"""

from __future__ import annotations

from mypy_extensions import i64

from rabbitpy_broker.destination import QUEUE, Destination
from rabbitpy_broker.errors import ACCESS_REFUSED, INTERNAL_ERROR, ChannelClosed, ConnectionClosed
from rabbitpy_broker.message import Message
from rabbitpy_broker.queues.backing_queue import CONFIRMED, REJECTED, WAITING, BackingQueue
from rabbitpy_broker.queues.consumers import Consumer, Consumers
from rabbitpy_broker.queues.limits import Limits
from rabbitpy_broker.queues.msg_status import MsgStatus
from rabbitpy_broker.wire.field_table import FieldTable


class Queue(Destination):
    """`owner` is the connection an exclusive queue belongs to, None for others."""

    def __init__(
        self,
        vhost: str,
        name: str,
        durable: bool,
        auto_delete: bool,
        owner: object | None,
        arguments: FieldTable,
        backing: BackingQueue,
    ) -> None:
        super().__init__(QUEUE, name)
        self.vhost = vhost
        self.durable = durable
        self.auto_delete = auto_delete
        self.owner = owner
        self.arguments = arguments
        self.backing = backing
        self.limits = Limits(arguments)
        self.consumers = Consumers()
        self.deleted = False
        self.touched = False
        self.unreadable = False  # the disk did not give a message that was due
        self.published: i64 = 0
        self.taken: i64 = 0  # messages handed out, the measure of its consumers' progress

    # -- publish and deliver --------------------------------------------------------------------------------------

    def publish(self, message: Message) -> i64:
        """Takes one message; returns CONFIRMED, SYNCING, WAITING or REJECTED (see backing_queue)."""
        self.published += 1
        backing = self.backing
        if self.limits.any:
            return self._publish_limited(message)
        if backing.len == 0:
            consumer = self.consumers.next_ready()
            if consumer is not None:
                return self._deliver_at_once(consumer, message)
        return backing.publish(message)

    def _publish_limited(self, message: Message) -> i64:
        """As publish, for a queue with a length limit: refuses, or takes and makes room."""
        backing = self.backing
        if self.limits.refuses(backing, message.body_size()):
            return REJECTED
        if backing.len == 0:
            consumer = self.consumers.next_ready()
            if consumer is not None:
                return self._deliver_at_once(consumer, message)
        outcome = backing.publish(message)
        if self._make_room(message) and outcome == WAITING:
            return REJECTED
        return outcome

    def _make_room(self, newest: Message | None) -> bool:
        """Drops the oldest messages beyond the limits; True when `newest` had to go as well."""
        dropped = False
        while self.limits.any and self.limits.exceeded(self.backing):
            try:
                status = self.backing.fetch()
            except OSError:  # as in drain; the queue stays too long until it can be read
                self.unreadable = True
                return dropped
            dropped = dropped or status.message is newest
            self.backing.drop(status)
        return dropped

    def _deliver_at_once(self, consumer: Consumer, message: Message) -> i64:
        """A message that finds the queue empty and a consumer ready never waits in it."""
        self.taken += 1
        if consumer.no_ack:
            consumer.deliver(message, False, None)
            return CONFIRMED
        status = self.backing.publish_delivered(message)
        status.held_by = consumer
        consumer.unacked_count += 1
        consumer.deliver(message, False, status)
        return self.backing.delivered_outcome(message)

    def drain(self, budget: i64) -> bool:
        """Hands out at most `budget` ready messages; returns True when it stopped because of that."""
        backing = self.backing
        consumers = self.consumers
        while backing.len > 0:
            if budget == 0:
                return True
            consumer = consumers.next_ready()
            if consumer is None:
                return False
            budget -= 1
            try:
                status = backing.fetch()
            except OSError:  # logged by fetch; the message is still there, and is tried again at a tick
                self.unreadable = True
                return False
            self.taken += 1
            message = status.message
            assert message is not None, "kept by: BackingQueue.fetch"
            if consumer.no_ack:
                consumer.deliver(message, status.redelivered, None)
                backing.ack(status)
            else:
                status.held_by = consumer
                consumer.unacked_count += 1
                consumer.deliver(message, status.redelivered, status)
        return False

    def get(self) -> MsgStatus | None:
        """Takes the oldest ready message for basic.get, None when there is none; it comes back like a delivery."""
        if self.backing.len == 0:
            return None
        try:
            status = self.backing.fetch()
        except OSError as error:
            raise ConnectionClosed(INTERNAL_ERROR, f"queue '{self.name}' cannot be read: {error}") from None
        self.taken += 1
        return status

    # -- settle ---------------------------------------------------------------------------------------------------

    def ack(self, status: MsgStatus) -> None:
        """The consumer has it."""
        self._release(status)
        self.backing.ack(status)

    def reject(self, status: MsgStatus) -> None:
        """The consumer does not want it, and nobody else shall have it."""
        self._release(status)
        self.backing.drop(status)

    def requeue(self, statuses: list[MsgStatus]) -> None:
        """Back to their old places; the caller touches the queue."""
        for status in statuses:
            self._release(status)
        self.backing.requeue(statuses)
        self._make_room(None)

    def _release(self, status: MsgStatus) -> None:
        consumer = status.held_by
        if consumer is not None:
            consumer.unacked_count -= 1
            status.held_by = None
            if consumer.parked:
                self.consumers.wake(consumer)

    # -- consumers ------------------------------------------------------------------------------------------------

    def consume(self, consumer: Consumer) -> None:
        """Adds a consumer; the caller touches the queue. Raises 403 when exclusive use forbids it."""
        members = self.consumers.members
        if members and (consumer.exclusive or next(iter(members)).exclusive):
            raise ChannelClosed(ACCESS_REFUSED, f"queue '{self.name}' in vhost '{self.vhost}' in exclusive use")
        self.consumers.add(consumer)

    def cancel(self, consumer: Consumer) -> bool:
        """Removes a consumer, not the messages it holds; returns True when the queue is now to be auto-deleted."""
        if consumer not in self.consumers.members:
            return False
        self.consumers.remove(consumer)
        return self.auto_delete and not self.consumers.members

    def has_work(self) -> bool:
        """True when a drain may hand something out."""
        return self.backing.len > 0 and bool(self.consumers.levels)

    # -- the end of messages --------------------------------------------------------------------------------------

    def purge(self) -> i64:
        """Drops every ready message and returns how many there were; the unacked stay."""
        try:
            return self.backing.purge()
        except OSError as error:
            raise ConnectionClosed(INTERNAL_ERROR, f"queue '{self.name}' cannot be read: {error}") from None

    def delete(self) -> i64:
        """Ends the queue: its consumers are told, its messages are gone; returns how many were ready."""
        ready = self.backing.len
        self.deleted = True
        for consumer in list(self.consumers.members):
            self.consumers.remove(consumer)
            consumer.cancelled()
        self.backing.delete()
        return ready
