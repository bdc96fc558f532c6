"""The queue actor: one FIFO of messages and its consumers.

A queue owns its backing queue and its consumers; others only call its methods, each of which runs to completion. A
message that arrives at an empty queue with a ready consumer goes straight to it; any other waits in the backing queue
until `drain` hands it out. `drain` is called by the broker's run queue (`protocol/turn.py`) for queues that were
touched: by an ack, a requeue, a new consumer, a drained output buffer, an expiry.

A *plain* queue has no maximum length, no time to live and no deduplication, and pays nothing for them. Any other queue
takes the longer way, and so does a message with an expiration in any queue. Expired messages go when they are the
oldest: before a delivery, and at a timer for the next expiry. A message that the queue does not keep (rejected,
expired, one too many, delivered too often) is handed to the vhost if the queue has a dead-letter exchange.

What must stay true: when messages are ready and a consumer is in the round, the queue is touched, so that a drain is
due; a message is held by one consumer at most; a consumer's `unacked_count` is the number of messages that it holds;
while the oldest message has an expiry a timer is due for then or earlier.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from rabbitpy_broker.errors import ACCESS_REFUSED, INTERNAL_ERROR, ChannelClosed, ConnectionClosed
from rabbitpy_broker.events import layout
from rabbitpy_broker.events.journal import Origin
from rabbitpy_broker.message import Message
from rabbitpy_broker.queues.backing_queue import CONFIRMED, REJECTED, SYNCING, WAITING, BackingQueue
from rabbitpy_broker.queues.consumers import Consumer, Consumers
from rabbitpy_broker.queues.deduplication import deduplication
from rabbitpy_broker.queues.max_length import MaxLength
from rabbitpy_broker.queues.msg_status import MsgStatus
from rabbitpy_broker.queues.queue_host import BackedQueue, QueueHost
from rabbitpy_broker.queues.queue_settings import QueueSettings
from rabbitpy_broker.queues.timers import Timed
from rabbitpy_broker.wire.content_header import ContentHeader
from rabbitpy_broker.wire.field_table import FieldTable

DROP_BUDGET: Final[i64] = 1_024  # expired messages that one publish or get may have to drop


class Queue(BackedQueue, Timed):
    """`owner` is the connection an exclusive queue belongs to, None for others.

    Large, because a message has one way from publish to settle, and each step of it asks the same settings, consumers and
    backing queue.
    """

    def __init__(
        self,
        host: QueueHost,
        vhost: str,
        name: str,
        durable: bool,
        auto_delete: bool,
        owner: object | None,
        arguments: FieldTable,
        backing: BackingQueue,
        settings: QueueSettings,
    ) -> None:
        super().__init__(vhost, name, durable, backing, settings)
        self.host = host
        self.auto_delete = auto_delete
        self.owner = owner
        self.arguments = arguments
        self.quorum = settings.quorum
        self.stream = settings.stream
        self.single_active = arguments.get("x-single-active-consumer") is True
        self.consumers = Consumers(self.single_active)
        self.consumer_count: i64 = 0  # of all its consumers: here for whoever asks thousands of queues
        self.taken: i64 = 0  # messages handed out, the measure of its consumers' progress
        self.taken_no_ack: i64 = 0  # those of them that went to consumers that do not ack
        self.redelivered: i64 = 0  # and those that had been handed out before
        self.acked: i64 = 0  # what basic.get took without acks counts
        self.got: i64 = 0  # by basic.get, to be acked
        self.got_no_ack: i64 = 0
        self.get_empty: i64 = 0  # basic.get that found none
        self.looked_at: i64 = 0  # its activity when it was looked at last (activity.py)
        self._wake_at: i64 = 0  # the earliest expiry that a timer is due for, 0 for none
        self._used_at: i64 = host.from_ms()
        self._expires_at: i64 = 0  # as _wake_at, for the queue itself
        self._requeues: dict[int, int] = {}  # requeues of each message; kept only with x-delivery-limit
        self.max_length = MaxLength(settings)
        self.deduplication = deduplication(arguments, f"queue '{name}' in vhost '{vhost}'", host.clock())
        self.plain = True
        self.apply(settings)

    def apply(self, settings: QueueSettings) -> None:
        """Follows these settings from now on; called again when a policy has changed."""
        if settings.expires != self.settings.expires:
            self._used_at = self.host.from_ms()
        self.settings = settings
        self.max_length = MaxLength(settings)
        self.plain = not self.max_length.any and settings.message_ttl < 0 and self.deduplication is None
        self.backing.message_ttl = settings.message_ttl
        self.backing.set_lazy(settings.lazy)
        self.backing.set_confirm_mode(settings.confirm_mode)
        self.backing.set_delivery_limit(settings.delivery_limit)
        if settings.delivery_limit < 0:
            self._requeues = {}
        if settings.expires > 0:
            self._expect_disuse()
        if self.max_length.any and self.max_length.exceeded(self.backing):
            self.host.touch(self)
        if self.backing.may_expire:
            self._expect_expiry()

    # -- publish and deliver --------------------------------------------------------------------------------------

    def publish(self, message: Message) -> i64:
        self.published += 1
        if not self.plain or message.expiration >= 0:
            return self._publish_special(message)
        backing = self.backing
        if backing.len == 0:
            consumer = self.consumers.next_ready()
            if consumer is not None:
                return self._deliver_at_once(consumer, message)
        return backing.publish(message)

    def _publish_special(self, message: Message) -> i64:
        """`publish` when deduplication, a maximum length or a time to live applies."""
        seen = self.deduplication
        if seen is None:
            return self._publish_limited(message)
        header = ContentHeader(message.header_payload())
        if seen.is_duplicate(header):
            self._record_not_taken(layout.DUPLICATE)
            return CONFIRMED
        outcome = self._publish_limited(message)
        if outcome != REJECTED:
            seen.remember(header)
        return outcome

    def _publish_limited(self, message: Message) -> i64:
        """`publish` when a maximum length or a time to live applies: refuses the message, or takes it and makes room."""
        backing = self.backing
        if backing.may_expire:
            self._drop_expired(self.host.now_ms(), DROP_BUDGET, None)
        if self.max_length.refuses(backing, message.body_size):
            if self.max_length.dead_letters_rejected:
                if self.settings.dead_letter_exchange is not None:
                    self.host.dead_letter(self, message, None, "maxlen")
                else:
                    self.host.gave_up("maxlen", self.quorum)
            self._record_not_taken(layout.REFUSED)
            return REJECTED
        if backing.len == 0:
            consumer = self.consumers.next_ready()
            if consumer is not None:
                return self._deliver_at_once(consumer, message)
        outcome = backing.publish(message)
        _, gone = self._make_room(DROP_BUDGET, message)
        if backing.may_expire:
            _, expired = self._drop_expired(self.host.now_ms(), DROP_BUDGET, message)
            gone = gone or expired
            self._expect_expiry()
        if gone and outcome == WAITING and self.settings.dead_letter_exchange is None:
            return REJECTED
        return outcome  # WAITING stays: a message that was dead-lettered at once is waited for

    def refusal(self, message: Message) -> str:
        seen = self.deduplication
        if seen is not None and seen.is_duplicate(ContentHeader(message.header_payload())):
            return "has had one of the same identity"
        if self.max_length.refuses(self.backing, message.body_size):
            return "is full"
        return ""

    def _make_room(self, budget: i64, newest: Message | None) -> tuple[i64, bool]:
        """Drops the oldest messages beyond the maximum length, at most `budget`.

        Returns how many were dropped, and whether `newest` was one of them. At the budget the queue is touched, to go
        on later.
        """
        dropped: i64 = 0
        gone = False
        with_body = self.settings.dead_letter_exchange is not None
        while dropped < budget and self.max_length.any and self.max_length.exceeded(self.backing):
            try:
                status = self.backing.fetch() if with_body else self.backing.fetch_place()
            except OSError:  # as in drain; the queue stays too long until it can be read
                self.unreadable = True
                break
            dropped += 1
            gone = gone or (newest is not None and status.message is newest)
            self._discard(status, "maxlen")
        if dropped == budget:
            self.host.touch(self)
        return dropped, gone

    def _drop_expired(self, now_ms: i64, budget: i64, newest: Message | None) -> tuple[i64, bool]:
        """As `_make_room`, for the oldest messages as far as they have expired."""
        dropped: i64 = 0
        gone = False
        with_body = self.settings.dead_letter_exchange is not None
        while dropped < budget:
            try:
                status = self.backing.fetch_expired(now_ms, with_body)
            except OSError:  # as in drain
                self.unreadable = True
                break
            if status is None:
                break
            dropped += 1
            gone = gone or (newest is not None and status.message is newest)
            self._discard(status, "expired")
        return dropped, gone

    def _discard(self, status: MsgStatus, reason: str) -> None:
        """Gives up an unacked message that nobody holds: to the dead-letter exchange, or for good.

        On an OSError it goes back to its place, and is given up again later.
        """
        if self.settings.dead_letter_exchange is not None:
            try:
                loaded = self.backing.load(status)
            except OSError:  # the message goes back to its place until it can be read
                self.unreadable = True
                if self.events is not None:
                    self._record_settle(layout.REQUEUE, status)
                self.backing.requeue([status])
                return
            self.forget_requeues(status)
            message = status.message
            if loaded and message is not None:
                if reason != "rejected":
                    self.record_end(status, reason, 1)
                self.host.dead_letter(self, message, status, reason)
                return
            self.record_end(status, "damaged", 0)
        else:
            self.host.gave_up(reason, self.quorum)
            if reason != "rejected":
                self.record_end(status, reason, 0)
        self.forget_requeues(status)
        self.backing.drop(status)

    def record_end(self, status: MsgStatus, reason: str, letters: i64) -> None:
        """Records the end of a message; `letters` is the number of dead letters that follow, 0 or 1."""
        events = self.events
        if events is not None:
            number = layout.REASONS[reason]
            event = layout.EXPIRE if number == layout.EXPIRED else layout.DROP
            events.settle(event, status.seq_id, i64(status.priority), number, letters)

    def _record_not_taken(self, reason: i64) -> None:
        events = self.events
        if events is not None:
            events.not_taken(reason)

    def forget_requeues(self, status: MsgStatus) -> None:
        if self._requeues:
            self._requeues.pop(_key(status), None)

    def _deliver_at_once(self, consumer: Consumer, message: Message) -> i64:
        """Gives a message to a ready consumer without putting it into the queue. Assumes: the queue is empty."""
        self.taken += 1
        if consumer.no_ack:
            self.taken_no_ack += 1
            if self.events is not None:
                self._record_at_once(consumer, message, None)
            consumer.deliver(message, False, None)
            return CONFIRMED
        status = self.backing.publish_delivered(message)
        status.held_by = consumer
        consumer.unacked_count += 1
        if self.events is not None:
            self._record_at_once(consumer, message, status)
        consumer.deliver(message, False, status)
        return self.backing.delivered_outcome(message)

    def _record_at_once(self, consumer: Consumer, message: Message, status: MsgStatus | None) -> None:
        events = self.events
        if events is None:
            return
        if status is None:
            events.deliver_at_once(consumer.origin, -1, 0, message, layout.NO_ACK)
        else:
            kept: i64 = 0
            if self.backing.delivered_outcome(message) == SYNCING:
                kept = layout.KEPT
            events.deliver_at_once(consumer.origin, status.seq_id, i64(status.priority), message, kept)

    def drain(self, budget: i64) -> bool:
        backing = self.backing
        if not self.plain:
            return self._drain_special(budget)
        consumers = self.consumers
        while backing.len > 0 and not backing.may_expire:  # `fetch` may set may_expire
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
            self._deliver(consumer, status)
        return backing.may_expire and self._drain_special(budget)

    def _deliver(self, consumer: Consumer, status: MsgStatus) -> None:
        self.taken += 1
        message = status.message
        assert message is not None, "kept by: BackingQueue.fetch"
        redelivered = status.redelivered
        if redelivered and self.quorum:
            message = self.backing.shown(message, status)
        if self.events is not None:
            self.record_delivery(consumer.origin, status, layout.NO_ACK if consumer.no_ack else 0)
        if consumer.no_ack:
            self.taken_no_ack += 1
            consumer.deliver(message, redelivered, None)
            self.forget_requeues(status)
            self.backing.ack(status)
        else:
            status.held_by = consumer
            consumer.unacked_count += 1
            consumer.deliver(message, redelivered, status)

    def record_delivery(self, origin: Origin | None, status: MsgStatus, flags: i64) -> None:
        """Records that a message that waited is handed out, to a consumer or by basic.get."""
        events = self.events
        if events is not None:
            events.deliver(origin, status.seq_id, i64(status.priority), status.body_size, status.redelivered, flags)

    def _drain_special(self, budget: i64) -> bool:
        """`drain` when the oldest message may have expired, or the queue may be too long."""
        backing = self.backing
        now_ms = self.host.now_ms()
        budget -= self._make_room(budget, None)[0]
        while True:
            if backing.may_expire:
                budget -= self._drop_expired(now_ms, budget, None)[0]
            if budget == 0:
                return True
            consumer = self.consumers.next_ready() if backing.len > 0 and not self.unreadable else None
            if consumer is None:
                if backing.len == 0 and backing.unacked == 0:
                    backing.may_expire = False
                else:
                    self._expect_expiry()
                return False
            budget -= 1
            try:
                status = backing.fetch()
            except OSError:  # as in drain
                self.unreadable = True
                return False
            self._deliver(consumer, status)

    def get(self) -> MsgStatus | None:
        """Takes the oldest ready message for basic.get, None when there is none; it comes back as a delivery does."""
        self.note_used()
        if self.backing.may_expire:
            while self._drop_expired(self.host.now_ms(), DROP_BUDGET, None)[0] == DROP_BUDGET:
                pass
        if self.backing.len == 0:
            return None
        try:
            status = self.backing.fetch()
        except OSError as error:
            raise ConnectionClosed(INTERNAL_ERROR, f"queue '{self.name}' cannot be read: {error}") from None
        self.taken += 1
        if self.backing.may_expire:  # get-ok counts the messages that are left: none of them may have expired
            self._drop_expired(self.host.now_ms(), DROP_BUDGET, None)
            self._expect_expiry()
        return status

    # -- settle ---------------------------------------------------------------------------------------------------

    def ack(self, status: MsgStatus) -> None:
        """Ends a message that its consumer has acked."""
        self.acked += 1
        self._release(status)
        if self._requeues:
            self._requeues.pop(_key(status), None)
        if self.events is not None:
            self._record_settle(layout.ACK, status)
        self.backing.ack(status)

    def reject(self, status: MsgStatus) -> None:
        """Ends a message that its consumer refused, and that nobody else shall get."""
        self._release(status)
        events = self.events
        if events is not None:
            letters = 1 if self.settings.dead_letter_exchange is not None and not self.deleted else 0
            events.settle(layout.NACK, status.seq_id, i64(status.priority), 0, letters)
        if self.deleted:
            self.backing.drop(status)
        else:
            self._discard(status, "rejected")

    def requeue(self, statuses: list[MsgStatus], left: bool = False) -> None:
        """Puts messages back into their old places, or where the backing queue has them; the caller touches the queue.

        `left`: their holder did not give them back, but is gone.
        """
        for status in statuses:
            self._release(status)
        if (self.settings.delivery_limit >= 0 or self.quorum) and not self.deleted:
            statuses = self._below_limit(statuses)
        if statuses:
            if self.events is not None:
                self._record_requeue(statuses)
            if left:
                self.backing.requeue_left(statuses)
            else:
                self.backing.requeue(statuses)
        self._make_room(DROP_BUDGET, None)
        if self.backing.may_expire:
            self._expect_expiry()

    def _record_settle(self, event: i64, status: MsgStatus) -> None:
        events = self.events
        if events is not None:
            events.settle(event, status.seq_id, i64(status.priority), 0, 0)

    def _record_requeue(self, statuses: list[MsgStatus]) -> None:
        for status in statuses:
            if self.deleted:
                self.record_end(status, "deleted", 0)
            elif status.light:
                self.record_end(status, "not_kept", 0)
            else:
                self._record_settle(layout.REQUEUE, status)

    def _below_limit(self, statuses: list[MsgStatus]) -> list[MsgStatus]:
        """Gives up the messages that came back more often than x-delivery-limit allows; returns the others."""
        back: list[MsgStatus] = []
        limit = self.settings.delivery_limit
        for status in statuses:
            if status.light:  # does not come back
                back.append(status)
            elif self._count_requeue(status) > limit >= 0:
                self._discard(status, "delivery_limit")
            else:
                back.append(status)
        return back

    def _count_requeue(self, status: MsgStatus) -> i64:
        if self.quorum:
            return self.backing.count_requeue(status)
        key = _key(status)
        times = self._requeues.get(key, 0) + 1
        self._requeues[key] = times
        return times

    def _release(self, status: MsgStatus) -> None:
        holder = status.held_by
        if holder is not None:
            holder.unacked_count -= 1
            status.held_by = None
            if isinstance(holder, Consumer) and holder.parked:
                self.consumers.wake(holder)

    # -- consumers ------------------------------------------------------------------------------------------------

    def consume(self, consumer: Consumer) -> None:
        """Adds a consumer; the caller touches the queue. Raises 403 when exclusive use forbids it."""
        members = self.consumers.members
        if not self.quorum:  # which knows no exclusive consumers, as in RabbitMQ
            if consumer.exclusive and (members or self.single_active):
                raise self._in_exclusive_use()
            if members and next(iter(members)).exclusive:
                raise self._in_exclusive_use()
        self.consumers.add(consumer)
        self._count_consumers()

    def _count_consumers(self) -> None:
        self.consumer_count = len(self.consumers.members)

    def _in_exclusive_use(self) -> ChannelClosed:
        return ChannelClosed(ACCESS_REFUSED, f"queue '{self.name}' in vhost '{self.vhost}' in exclusive use")

    def cancel(self, consumer: Consumer) -> bool:
        """Removes a consumer, not the messages it holds; returns True when the queue is now to be auto-deleted."""
        if consumer not in self.consumers.members:
            return False
        self.consumers.remove(consumer)
        self._count_consumers()
        if self.consumer_count:
            if self.single_active:
                self.host.touch(self)
            return False
        self.note_used()
        if self.settings.expires > 0:
            self._expect_disuse()
        return self.auto_delete

    def wake(self, consumer: Consumer) -> None:
        """A consumer that was parked may take more; the caller touches the queue."""
        self.consumers.wake(consumer)

    def has_work(self) -> bool:
        """True when a drain may hand something out."""
        return self.backing.len > 0 and bool(self.consumers.levels)

    # -- time -----------------------------------------------------------------------------------------------------

    def note_used(self) -> None:
        """Notes a use of the queue: a declaration, a get, or the end of its last consumer."""
        if self.settings.expires > 0:
            self._used_at = self.host.from_ms()

    def _expect_expiry(self) -> None:
        try:
            expiry = self.backing.next_expiry()
        except OSError:  # as in drain
            self.unreadable = True
            return
        if expiry > 0 and (self._wake_at == 0 or expiry < self._wake_at):
            self._wake_at = expiry
            self.host.wake_at(expiry, self)

    def _expect_disuse(self) -> None:
        when = self._used_at + self.settings.expires
        if self._expires_at == 0 or when < self._expires_at:
            self._expires_at = when
            self.host.wake_at(when, self)

    def waits_for(self, when_ms: i64) -> bool:
        return not self.deleted and (when_ms == self._wake_at or when_ms == self._expires_at)

    def timer_due(self, now_ms: i64) -> None:
        if self.deleted:
            return
        if 0 < self._wake_at <= now_ms:
            self._wake_at = 0
            self.host.touch(self)
        if 0 < self._expires_at <= now_ms:
            self._expires_at = 0
            if self.settings.expires > 0 and self.consumer_count == 0:
                if now_ms >= self._used_at + self.settings.expires:
                    self.host.queue_expired(self)
                else:
                    self._expect_disuse()

    # -- what there is --------------------------------------------------------------------------------------------

    def ready_count(self) -> i64:
        """Messages that consumers may have; of a stream those that it keeps."""
        return self.backing.len

    def ready_bytes(self) -> i64:
        """The bytes of their bodies; of a stream those that it has on disk."""
        return self.backing.ready_bytes

    # -- the end of messages --------------------------------------------------------------------------------------

    def purge(self) -> i64:
        """Drops every ready message and returns how many there were; the unacked stay."""
        try:
            if self.backing.unacked == 0:
                self._requeues = {}
            purged = self.backing.purge()
        except OSError as error:
            raise ConnectionClosed(INTERNAL_ERROR, f"queue '{self.name}' cannot be read: {error}") from None
        if self.events is not None:
            self.events.purge(purged, 0)
        return purged

    def delete(self) -> i64:
        """Ends the queue: tells its consumers, drops its messages; returns how many were ready."""
        ready = self.backing.len
        self.deleted = True
        for consumer in list(self.consumers.members):
            self.consumers.remove(consumer)
            self._count_consumers()
            consumer.cancelled()
        self.backing.delete()
        if self.events is not None:
            self.events.deleted(ready)
        return ready


def _key(status: MsgStatus) -> int:
    """One number for a message of any lane: the seq_ids of each priority begin at 0."""
    return int(status.seq_id) * 256 + int(status.priority)
