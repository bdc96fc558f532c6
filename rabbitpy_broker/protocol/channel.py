"""One channel: its publishes, and how it settles the messages that it was handed (deliveries.py).

Publishing and settling are here, since they are the hot part; the other methods are in one file per AMQP class
(`channel_methods`, `exchange_methods`, `queue_methods`, `basic_methods`, `confirm_methods`, `tx_methods`).

What must stay true: each delivery is settled once; a queue that got a message back, or whose consumer was woken, is
touched; a publish is answered once, by its confirm or, in a transaction, by the commit-ok.
"""

from __future__ import annotations

from typing import Any, Final

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
from rabbitpy_broker.message import NO_RESEND, Message
from rabbitpy_broker.protocol.access import Access
from rabbitpy_broker.protocol.channel_host import ChannelHost
from rabbitpy_broker.protocol.confirms import Confirms
from rabbitpy_broker.protocol.counters import Counters
from rabbitpy_broker.protocol.deliveries import Deliveries
from rabbitpy_broker.protocol.firehose import Tapped
from rabbitpy_broker.protocol.message_rules import check_properties
from rabbitpy_broker.protocol.node import Node
from rabbitpy_broker.protocol.stream_unacked import Run, StreamUnacked
from rabbitpy_broker.protocol.turn import DRAIN_BUDGET
from rabbitpy_broker.protocol.tx import Tx
from rabbitpy_broker.queues.backing_queue import CONFIRMED, REJECTED, SYNCING, WAITING
from rabbitpy_broker.queues.msg_status import MsgStatus
from rabbitpy_broker.queues.queue import Queue
from rabbitpy_broker.queues.queue_host import HostedQueue
from rabbitpy_broker.routing.routes import Route
from rabbitpy_broker.wire.assembler import Assembler
from rabbitpy_broker.wire.content_header import ContentHeader
from rabbitpy_broker.wire.edit_header import shown_header
from rabbitpy_broker.wire.encoder import write_return

ACK: Final[i64] = 0
REJECT: Final[i64] = 1
REQUEUE: Final[i64] = 2
LEAVE: Final[i64] = 3  # as REQUEUE, by a channel that ends


class Channel:
    """`closing`: channel.close was sent, and every method but close and close-ok is ignored."""

    def __init__(self, host: ChannelHost, node: Node, access: Access, number: i64, origin: Origin | None) -> None:
        self.host = host
        self.output = host.output
        self.node = node
        self.access = access
        self.vhost = access.vhost
        self.number = number
        self.origin = origin  # this channel, in the records of the event journal
        self.closing = False
        self.counters = Counters()
        self.assembler = Assembler()
        self.tapped = Tapped(access.vhost, host.name, number, access.user.name)
        self.deliveries = Deliveries(host, number, self.counters, origin, node.firehose, self.tapped)
        self.confirms: Confirms | None = None
        self.tx: Tx | None = None
        self.reply_queue: Queue | None = None  # the reply queue of direct reply-to
        self.last_queue = ""  # an empty queue name stands for this name

    def send(self, method: Any) -> None:
        """Writes a method frame."""
        self.output.send(self.number, method)

    # -- publish --------------------------------------------------------------------------------------------------

    def publish(self, route: Route, message: Message, mandatory: bool) -> bool:
        """Routes a message to its queues, then confirms it or notes what it waits for; on a transactional channel at
        tx.commit.

        Assumes: `route` is valid, and the user may publish to it.

        Ensures: each queue got the message once. In confirm mode one publish_seqno is used up; it is decided now, or by
        the epoch that is filling (some queue answered SYNCING), or by the queues that answered WAITING. A message
        without a queue is returned if it is mandatory. True is returned when the epoch that is filling holds the
        message for some queue.

        On an error of routing no queue has the message, and the exception says what ends.
        """
        if self.tx is not None and not self.tx.committing:
            self._publish_at_commit(self.tx, route, message, mandatory)
            return False
        self.counters.published += 1
        if self.origin is not None:
            self._record_publish(route, message, mandatory)
        queues = route.queues if route.cacheable else self._queues_now(route, message)
        if self.vhost.tracing and self.tx is None:
            self.node.firehose.published(self.tapped, route, message, queues)
        routed = route.routed
        routed.published_in += 1
        routed.published_out += len(queues)
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
            if queue.kept.len > self.host.flow_mark:
                self.host.congested = queue
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

    def publish_checked(self, route: Route, message: Message, mandatory: bool) -> None:
        """As publish, of a message that has properties with rules."""
        copies: list[str] = []
        message = check_properties(message, self.access.user, self.reply_queue, copies)
        if copies:
            if route.exchange is not None:
                for routing_key in copies:
                    self.access.check_topic("write", route.exchange, routing_key)
            route = Route(route.address, route.exchange_name, route.routing_key, route.exchange, route.routed)
            route.copies = copies
            route.cacheable = False
        self.publish(route, message, mandatory)

    def _publish_at_commit(self, tx: Tx, route: Route, message: Message, mandatory: bool) -> None:
        # The queues are looked up now: an error must come here, not in the middle of a commit.
        queues = route.queues if route.cacheable else self._queues_for(route, message)
        message.waiter = NO_RESEND  # tx.commit-ok says that it is safe
        if self.vhost.tracing:
            self.node.firehose.published(self.tapped, route, message, queues)
        tx.publishes.append((route, message, mandatory))

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

    def _queues_for(self, route: Route, message: Message) -> list[HostedQueue]:
        """The queues of a route that is not cacheable."""
        try:
            return self.vhost.routes.queues_for(route, ContentHeader(shown_header(message)))
        except ValueError as error:
            raise ConnectionClosed(SYNTAX_ERROR, f"malformed headers: {error}") from None

    def _queues_now(self, route: Route, message: Message) -> list[HostedQueue]:
        """As `_queues_for`, with deduplication: no queues for a duplicate; the identity of any other message is remembered
        when it has queues.
        """
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
            self.counters.unroutable_dropped += 1
            return
        self.counters.unroutable_returned += 1
        output = self.output
        if self.confirms is not None:  # a client that counts acks relies on those of earlier publishes coming first
            self.confirms.tell_now()
        write_return(output.out, self.number, NO_ROUTE, b"NO_ROUTE", message, output.frame_max)
        output.due()

    # -- settle ---------------------------------------------------------------------------------------------------

    def settle(self, tag: i64, multiple: bool, how: i64) -> None:
        """basic.ack, nack and reject: ACK, REJECT or REQUEUE of one delivery or of all up to it (tag 0: of all).

        Ensures: the deliveries are out of `unacked`, and settled at once or, in a transaction, at tx.commit. Raises 406
        for an unknown tag, and nothing is changed; 540 for a REJECT or REQUEUE of a light message, after a requeue of all.
        """
        deliveries = self.deliveries
        if not multiple:
            status = deliveries.unacked.take(tag)
            if status is None:
                if deliveries.streams is not None and self._settle_of_stream(deliveries.streams, tag):
                    return
                raise _unknown_tag(tag)
            if self.tx is None and how == ACK:
                if deliveries.prefetch_limit > 0:
                    deliveries.wake_consumers()
                self._ack(status)
                return
            self._settle_all([status], how)
            return
        if deliveries.streams is not None:
            taken = self._take_with_streams(deliveries.streams, tag)
        else:
            taken = deliveries.unacked.take_all() if tag == 0 else deliveries.unacked.take_upto(tag)
        if taken is None:
            raise _unknown_tag(tag)
        self._settle_all(taken, how)

    def _settle_of_stream(self, streams: StreamUnacked, tag: i64) -> bool:
        """Settles one delivery of a stream; False when there is none of that tag."""
        run = streams.take(tag)
        if run is None:
            return False
        self._settle_runs([run])
        return True

    def _take_with_streams(self, streams: StreamUnacked, tag: i64) -> list[MsgStatus] | None:
        """Settles the deliveries of streams up to `tag` (0: all), and takes those of other queues out of `unacked`.

        None when there is no delivery of that tag; then nothing is settled.
        """
        unacked = self.deliveries.unacked
        if tag == 0:
            runs, taken = streams.take_all(), unacked.take_all()
        elif streams.has(tag) or unacked.has(tag):
            runs, taken = streams.take_upto(tag), unacked.take_below(tag + 1)
        else:
            return None
        self._settle_runs(runs)
        return taken

    def _settle_runs(self, runs: list[Run]) -> None:
        """Whatever way they are settled, nothing comes back: their consumers may get as many more."""
        if self.tx is not None:
            self.tx.runs.extend(runs)
        else:
            self._credit(runs)

    def _credit(self, runs: list[Run]) -> None:
        for run in runs:
            self.counters.acked += run.end - run.first
            run.settle()

    def _settle_all(self, statuses: list[MsgStatus], how: i64) -> None:
        if how != ACK:
            self._refuse_light(statuses)
        if self.tx is None:
            self.settle_now(statuses, how)
        else:
            self.tx.settles.append((statuses, how))

    def _refuse_light(self, statuses: list[MsgStatus]) -> None:
        """Raises 540 when a queue in the mode consumer-ack-light has forgotten one of these messages: it cannot come back."""
        for status in statuses:
            if status.light:
                self.settle_now(statuses, REQUEUE)
                raise ChannelClosed(
                    NOT_IMPLEMENTED, "only basic.ack is possible in the confirm mode 'consumer-ack-light'"
                )

    def settle_now(self, statuses: list[MsgStatus], how: i64) -> None:
        """Gives deliveries that were taken out of `unacked` back to their queues."""
        deliveries = self.deliveries
        if deliveries.prefetch_limit > 0:
            deliveries.wake_consumers()
        if how == ACK:
            for status in statuses:
                self._ack(status)
        elif how == REQUEUE:
            self._requeue(statuses, False)
        elif how == LEAVE:
            self._requeue(statuses, True)
        else:
            for status in statuses:
                queue = deliveries.give_back(status)
                queue.reject(status)
                deliveries.touch(queue)

    def _ack(self, status: MsgStatus) -> None:
        self.counters.acked += 1
        queue = self.deliveries.release(status)
        queue.ack(status)
        if queue.backing.len > 0 and not queue.touched:
            self.output.turn.touch(queue)

    def _requeue(self, statuses: list[MsgStatus], left: bool) -> None:
        by_queue: dict[Queue, list[MsgStatus]] = {}
        for status in statuses:
            by_queue.setdefault(self.deliveries.give_back(status), []).append(status)
        for queue, back in by_queue.items():
            queue.requeue(back, left)
            self.deliveries.touch(queue)

    def catch_up(self, queue: Queue) -> None:
        """Drains a touched queue now, and not only at the end of the turn.

        Methods that take consumers or messages away, or count them, call it first: they then find the queue as if each
        method had had a turn of its own.
        """
        if queue.touched:
            queue.drain(DRAIN_BUDGET)

    def recover(self) -> None:
        """basic.recover: puts every unacked message back into its old place. Raises 540 when one of them has no place any
        more.
        """
        if self.deliveries.streams is not None:
            self._credit(self.deliveries.streams.take_all())
        statuses = self.deliveries.unacked.take_all()
        self._refuse_light(statuses)
        self.settle_now(statuses, REQUEUE)

    # -- consumers ------------------------------------------------------------------------------------------------

    def cancel(self, tag: str) -> None:
        """Ends a consumer; the messages that it holds stay unacked. An auto-delete queue goes with its last consumer."""
        consumers = self.deliveries.consumers
        consumer = consumers.get(tag)
        if consumer is None:
            return
        if not consumer.no_ack:  # with no_ack its messages are gone when delivered, and a client that cancels reads no more
            self.catch_up(consumer.queue)
        self.deliveries.forget(consumer)
        if consumer.queue.cancel(consumer):
            self._delete_unused(consumer.queue)

    def _delete_unused(self, queue: Queue) -> None:
        """Deletes an auto-delete queue that has lost its last consumer."""
        if queue is self.reply_queue:
            self.reply_queue = None
            self.vhost.delete_reply_queue(queue)
        else:
            self.vhost.delete_queue(queue)

    # -- end ------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Ends the channel's part in queues: consumers leave, then unacked messages go back, in order."""
        self.closing = True
        left = self.deliveries.close()
        if self.tx is not None:
            self.rollback(self.tx)
            self.tx.close()
            self.tx = None
        self.settle_now(self.deliveries.unacked.take_all(), LEAVE)
        for queue in left:
            if queue.consumer_count == 0:
                self._delete_unused(queue)
        if self.confirms is not None:
            self.confirms.tell_now()
            self.confirms.close()
        totals = self.node.totals
        totals.channels_closed += 1
        counted = self.counted()
        totals.closed_channels.add(counted)
        totals.closed_of(self.vhost.name).add(counted)

    def rollback(self, tx: Tx) -> None:
        """Forgets the publishes of a transaction, and puts its deliveries back among the unacked."""
        for statuses, _ in tx.take()[1]:
            self.deliveries.unacked.put_back(statuses)
        runs = tx.take_runs()
        if self.deliveries.streams is not None:
            self.deliveries.streams.put_back(runs)

    def settle_committed(self, tx: Tx) -> None:
        """Settles the deliveries of streams that a transaction has settled."""
        self._credit(tx.take_runs())

    def counted(self) -> Counters:
        """The counts of this channel."""
        counters = self.counters
        self.deliveries.count()
        if self.confirms is not None:
            counters.published_confirm = self.confirms.published
            counters.confirmed = self.confirms.confirmed
        return counters


def _unknown_tag(tag: i64) -> ChannelClosed:
    shown = int(tag) + (1 << 64) if tag < 0 else int(tag)
    return ChannelClosed(PRECONDITION_FAILED, f"unknown delivery tag {shown}")
