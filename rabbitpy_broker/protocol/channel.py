"""One channel: what it has consumed, published and left unsettled.

Publishing and settling are here, since they are the hot part; the other methods are in one file per AMQP class
(`channel_methods`, `exchange_methods`, `queue_methods`, `basic_methods`, `confirm_methods`, `tx_methods`).

What must stay true: each delivery is settled once; `prefetch_used` is the number of unacked deliveries to consumers
(basic.get takes none); a queue that got something back, or whose consumer was woken, is touched.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mypy_extensions import i64

from rabbitpy_broker.errors import (
    NO_ROUTE,
    NOT_IMPLEMENTED,
    PRECONDITION_FAILED,
    SYNTAX_ERROR,
    ChannelClosed,
    ConnectionClosed,
)
from rabbitpy_broker.events.journal import Origin
from rabbitpy_broker.events.layout import DUPLICATE, UNROUTABLE
from rabbitpy_broker.message import SEALED, Message
from rabbitpy_broker.protocol.ack_timeout import AckMarks
from rabbitpy_broker.protocol.confirms import Confirms
from rabbitpy_broker.protocol.deliveries import ChannelConsumer, Getter
from rabbitpy_broker.protocol.turn import DRAIN_BUDGET
from rabbitpy_broker.protocol.tx import Tx
from rabbitpy_broker.protocol.unacked import Unacked
from rabbitpy_broker.queues.backing_queue import CONFIRMED, REJECTED, SYNCING, WAITING
from rabbitpy_broker.queues.msg_status import MsgStatus
from rabbitpy_broker.queues.queue import Queue
from rabbitpy_broker.vhost import Route, VHost
from rabbitpy_broker.wire.assembler import Assembler
from rabbitpy_broker.wire.content_header import ContentHeader
from rabbitpy_broker.wire.edit_header import shown_header
from rabbitpy_broker.wire.encoder import write_return
from rabbitpy_broker.wire.methods import Method, encode_method

if TYPE_CHECKING:
    from rabbitpy_broker.protocol.connection import Connection

ACK: Final[i64] = 0
REJECT: Final[i64] = 1
REQUEUE: Final[i64] = 2


class Channel:
    """`closing`: a channel.close was sent, and everything but close and close-ok is ignored."""

    def __init__(self, connection: Connection, vhost: VHost, number: i64) -> None:
        self.connection = connection
        self.vhost = vhost
        self.number = number
        self.origin: Origin | None = None  # this channel, in the records of the event journal
        if connection.node.events is not None:
            self.origin = connection.new_origin(number)
        self.closing = False
        self.assembler = Assembler()
        self.consumers: dict[str, ChannelConsumer] = {}
        self.unacked = Unacked()
        self.ack_marks = AckMarks()
        self.next_delivery_tag: i64 = 1
        self.prefetch_limit: i64 = 0  # shared by the channel's consumers
        self.prefetch_used: i64 = 0
        self.consumer_prefetch: i64 = 0  # for consumers to come
        self.confirms: Confirms | None = None
        self.tx: Tx | None = None
        self.reply_queue: Queue | None = None  # of direct reply-to
        self.last_queue = ""  # the name that an empty queue name stands for
        self._getters: dict[Queue, Getter] = {}
        self._wake_first = 0
        self.published: i64 = 0
        self.unroutable_returned: i64 = 0
        self.unroutable_dropped: i64 = 0
        self.delivered: i64 = 0
        self.delivered_no_ack: i64 = 0
        self.redelivered: i64 = 0
        self.got: i64 = 0
        self.got_no_ack: i64 = 0
        self.get_empty: i64 = 0
        self.acked: i64 = 0

    def send(self, method: Method) -> None:
        """Writes a method frame."""
        self.connection.out.write(encode_method(self.number, method))
        self.connection.output_due()

    # -- publish --------------------------------------------------------------------------------------------------

    def publish(self, route: Route, message: Message, mandatory: bool) -> None:
        """Takes one complete message: now, or at tx.commit."""
        if self.tx is None:
            self.publish_now(route, message, mandatory)
        else:
            # Found already now: it raises what must not stop a commit half-way.
            queues = route.queues if route.cacheable else self._queues_for(route, message)
            message.waiter = SEALED  # tx.commit-ok says that it is safe
            if self.vhost.tracing:
                self.connection.node.firehose.published(self, route, message, queues)
            self.tx.publishes.append((route, message, mandatory))

    def publish_now(self, route: Route, message: Message, mandatory: bool) -> bool:
        """Routes a message to its queues, then confirms it or notes what it waits for.

        Returns True when the epoch that is filling now holds it for some queue.
        """
        self.published += 1
        if self.origin is not None:
            self._record_publish(route, message, mandatory)
        queues = route.queues if route.cacheable else self._queues_now(route, message)
        if self.vhost.tracing and self.tx is None:
            self.connection.node.firehose.published(self, route, message, queues)
        outcome: i64 = CONFIRMED
        owing: i64 = 0
        syncing = False
        for queue in queues:
            answer = queue.publish(message)
            if answer != CONFIRMED:
                if answer == SYNCING:
                    syncing = True
                elif answer == WAITING:
                    owing += 1
                if answer > outcome:
                    outcome = answer
            if queue.backing.len > self.connection.flow_mark:
                self.connection.congested = queue
        if not queues:
            self._unroutable(message, mandatory)
        if outcome == REJECTED and self.tx is not None:
            self.tx.refused = True
        confirms = self.confirms
        if confirms is not None:
            if outcome == CONFIRMED:
                confirms.publish_confirmed()
            elif outcome == SYNCING:
                confirms.publish_syncing()
            elif outcome == WAITING:
                message.waiter = confirms.publish_waiting(owing, syncing)
            else:
                confirms.publish_rejected()
                exchange = route.exchange
                if exchange is not None and exchange.deduplication is not None:
                    exchange.deduplication.forget(ContentHeader(message.header_payload()))
        return syncing

    def _record_publish(self, route: Route, message: Message, mandatory: bool) -> None:
        origin = self.origin
        if origin is not None:
            if route.event_id == 0:
                route.event_id = origin.journal.exchange(self.vhost.name, route.exchange_name)
            confirms = self.confirms
            seqno: i64 = 0
            if confirms is not None:
                seqno = confirms.published + 1
            origin.publish(route.event_id, message, mandatory, seqno)

    def _queues_for(self, route: Route, message: Message) -> list[Queue]:
        """The queues of a route that is not cacheable."""
        try:
            return self.vhost.queues_for(route, ContentHeader(shown_header(message)))
        except ValueError as error:
            raise ConnectionClosed(SYNTAX_ERROR, f"malformed headers: {error}") from None

    def _queues_now(self, route: Route, message: Message) -> list[Queue]:
        """The same for a message that goes there now: none when it is a duplicate, which it is not once more."""
        exchange = route.exchange
        seen = None if exchange is None else exchange.deduplication
        if seen is None:
            return self._queues_for(route, message)
        header = ContentHeader(message.header_payload())
        if seen.is_duplicate(header):
            if self.origin is not None:
                self.origin.not_routed(False, DUPLICATE)
            return []
        queues = self._queues_for(route, message)
        if queues:
            seen.remember(header)
        return queues

    def _unroutable(self, message: Message, mandatory: bool) -> None:
        if self.origin is not None:
            self.origin.not_routed(mandatory, UNROUTABLE)
        if not mandatory:
            self.unroutable_dropped += 1
            return
        self.unroutable_returned += 1
        connection = self.connection
        if self.confirms is not None:  # a client that counts acks relies on those of earlier publishes coming first
            self.confirms.tell_now()
        write_return(connection.out, self.number, NO_ROUTE, b"NO_ROUTE", message, connection.frame_max)
        connection.output_due()

    # -- settle ---------------------------------------------------------------------------------------------------

    def settle(self, tag: i64, multiple: bool, how: i64) -> None:
        """basic.ack, nack and reject: ACK, REJECT or REQUEUE of one delivery or of all up to it (tag 0: of all)."""
        if not multiple:
            status = self.unacked.take(tag)
            if status is None:
                raise _unknown_tag(tag)
            if self.tx is None and how == ACK:
                if self.prefetch_limit > 0:
                    self.wake_consumers()
                self._ack(status)
                return
            self._settle_all([status], how)
            return
        taken = self.unacked.take_all() if tag == 0 else self.unacked.take_upto(tag)
        if taken is None:
            raise _unknown_tag(tag)
        self._settle_all(taken, how)

    def _settle_all(self, statuses: list[MsgStatus], how: i64) -> None:
        if how != ACK:
            self._refuse_light(statuses)
        if self.tx is None:
            self.settle_now(statuses, how)
        else:
            self.tx.settles.append((statuses, how))

    def _refuse_light(self, statuses: list[MsgStatus]) -> None:
        """Raises 540 when a queue in the mode consumer-ack-light has forgotten one of them: there is no way back."""
        for status in statuses:
            if status.light:
                self.settle_now(statuses, REQUEUE)
                raise ChannelClosed(
                    NOT_IMPLEMENTED, "only basic.ack is possible in the confirm mode 'consumer-ack-light'"
                )

    def settle_now(self, statuses: list[MsgStatus], how: i64) -> None:
        """Gives deliveries, already taken out of `unacked`, back to their queues."""
        if self.prefetch_limit > 0:
            self.wake_consumers()
        if how == ACK:
            for status in statuses:
                self._ack(status)
        elif how == REQUEUE:
            self._requeue(statuses)
        else:
            for status in statuses:
                queue = self._release(status)
                queue.reject(status)
                self._touch(queue)

    def _ack(self, status: MsgStatus) -> None:
        self.acked += 1
        queue = self._release(status)
        queue.ack(status)
        if queue.backing.len > 0 and not queue.touched:
            self.connection.turn.touch(queue)

    def _requeue(self, statuses: list[MsgStatus]) -> None:
        by_queue: dict[Queue, list[MsgStatus]] = {}
        for status in statuses:
            by_queue.setdefault(self._release(status), []).append(status)
        for queue, back in by_queue.items():
            queue.requeue(back)
            self._touch(queue)

    def _release(self, status: MsgStatus) -> Queue:
        """Counts a delivery off this channel; returns the queue it goes back to."""
        holder = status.held_by
        assert holder is not None, "kept by: deliver and basic_get set it, Queue._release clears it"
        if not isinstance(holder, Getter):
            self.prefetch_used -= 1
        return holder.queue

    def _touch(self, queue: Queue) -> None:
        if queue.has_work():
            self.connection.turn.touch(queue)

    def catch_up(self, queue: Queue) -> None:
        """Hands out what is due from the queue now, and not only at the end of the turn.

        For methods that take consumers or messages away, or count them: whoever frees places first and asks then finds them
        filled, as if each method had had a turn of its own.
        """
        if queue.touched:
            queue.drain(DRAIN_BUDGET)

    def recover(self) -> None:
        """basic.recover: everything unacked back to its old place. Raises 540 when not all of it has one."""
        statuses = self.unacked.take_all()
        self._refuse_light(statuses)
        self.settle_now(statuses, REQUEUE)

    # -- consumers ------------------------------------------------------------------------------------------------

    def getter(self, queue: Queue) -> Getter:
        """Who holds what basic.get fetches from this queue."""
        getter = self._getters.get(queue)
        if getter is None:
            if len(self._getters) >= 64:
                self._getters = {}
            getter = Getter(queue)
            self._getters[queue] = getter
        return getter

    def wake_consumers(self) -> None:
        """Some allowance is freed in this turn: puts parked consumers back into their queues' rounds.

        Another consumer is the first each time, since the first queue to be drained may use the whole allowance.
        """
        consumers = list(self.consumers.values())
        if not consumers:
            return
        first = self._wake_first % len(consumers)
        self._wake_first = first + 1
        for consumer in consumers[first:] + consumers[:first]:
            if consumer.parked:
                consumer.queue.consumers.wake(consumer)
                self._touch(consumer.queue)

    def cancel(self, tag: str) -> None:
        """Ends a consumer; what it holds stays unacked. An auto-delete queue goes with its last consumer."""
        consumer = self.consumers.get(tag)
        if consumer is None:
            return
        if not consumer.no_ack:  # what that is given is gone, and who cancels does not look for more
            self.catch_up(consumer.queue)
        del self.consumers[tag]
        if consumer.queue.cancel(consumer):
            self._delete_unused(consumer.queue)

    def _delete_unused(self, queue: Queue) -> None:
        """An auto-delete queue has lost its last consumer."""
        if queue is self.reply_queue:
            self.reply_queue = None
            self.vhost.delete_reply_queue(queue)
        else:
            self.vhost.delete_queue(queue)

    def consumer_cancelled(self, consumer: ChannelConsumer) -> None:
        """The queue went away under a consumer."""
        if self.consumers.pop(consumer.tag, None) is not None and not self.closing:
            self.connection.notify_cancelled(self, consumer.tag)

    # -- end ------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Ends the channel's part in queues: consumers leave, then what is unacked goes back, in order."""
        self.closing = True
        left: list[Queue] = []
        for consumer in self.consumers.values():
            if consumer.queue.cancel(consumer):
                left.append(consumer.queue)
        self.consumers = {}
        if self.tx is not None:
            self.tx.close()
            self.tx = None
        self.settle_now(self.unacked.take_all(), REQUEUE)
        for queue in left:
            if not queue.consumers.members:
                self._delete_unused(queue)
        if self.confirms is not None:
            self.confirms.tell_now()
            self.confirms.close()
        self._count()

    def _count(self) -> None:
        totals = self.connection.node.totals
        totals.channels_closed += 1
        totals.published += self.published
        totals.unroutable_returned += self.unroutable_returned
        totals.unroutable_dropped += self.unroutable_dropped
        totals.delivered += self.delivered
        totals.delivered_no_ack += self.delivered_no_ack
        totals.redelivered += self.redelivered
        totals.got += self.got
        totals.got_no_ack += self.got_no_ack
        totals.get_empty += self.get_empty
        totals.acked += self.acked
        if self.confirms is not None:
            totals.published_confirm += self.confirms.published
            totals.confirmed += self.confirms.confirmed


def _unknown_tag(tag: i64) -> ChannelClosed:
    shown = int(tag) + (1 << 64) if tag < 0 else int(tag)
    return ChannelClosed(PRECONDITION_FAILED, f"unknown delivery tag {shown}")
