"""The deliveries of a channel: its consumers, the unacked messages, and how much it may still get.

Every message goes out by `hand_out`: basic.deliver and basic.get count, number and note it there, and differ in the
frames that follow.

A consumer is ready while its connection takes output and neither the channel's prefetch_limit (qos global=true, shared)
nor its own (qos global=false, fixed when it was made) is used up. A consumer without acks has no limit of its own, but
waits while the channel's limit is used up.

Deliveries are counted by their consumers, so that somebody can be told who gets how many; `count` adds them up for the channel.

What must stay true: `prefetch_used` is the number of unacked deliveries to consumers (basic.get takes none); each
message in `unacked` is held by a consumer or a getter of this channel; what a consumer has counted is kept when it leaves
`consumers`.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from rabbitpy_broker.events.journal import Origin
from rabbitpy_broker.message import Message
from rabbitpy_broker.protocol.ack_timeout import AckMarks
from rabbitpy_broker.protocol.channel_host import ChannelHost
from rabbitpy_broker.protocol.counters import Counters
from rabbitpy_broker.protocol.firehose import Firehose, Tapped
from rabbitpy_broker.protocol.stream_unacked import StreamUnacked
from rabbitpy_broker.protocol.unacked import Unacked
from rabbitpy_broker.queues.consumers import Consumer
from rabbitpy_broker.queues.msg_status import Holder, MsgStatus
from rabbitpy_broker.queues.queue import Queue
from rabbitpy_broker.wire.encoder import write_deliver
from rabbitpy_broker.wire.field_table import FieldTable

GETTERS_KEPT: Final = 64


class Deliveries:
    """The deliveries of one channel, which `tapped` names. After `close` its consumers belong to nobody."""

    def __init__(
        self, host: ChannelHost, number: i64, counters: Counters, origin: Origin | None, firehose: Firehose, tapped: Tapped
    ) -> None:
        self.host = host
        self.output = host.output
        self.number = number
        self.origin = origin  # the channel, in the records of the event journal
        self.consumers: dict[str, ChannelConsumer] = {}
        self.unacked = Unacked()
        self.streams: StreamUnacked | None = None  # those of streams, when there has been a consumer of one
        self.ack_marks = AckMarks()
        self.next_tag: i64 = 1
        self.prefetch_limit: i64 = 0  # shared by the channel's consumers
        self.prefetch_used: i64 = 0
        self.consumer_prefetch: i64 = 0  # the limit of each consumer that is started from now on
        self.counters = counters
        self._firehose = firehose
        self._tapped = tapped
        self._vhost = tapped.vhost
        self._getters: dict[Queue, Getter] = {}
        self._wake_first = 0
        self._ended_delivered: i64 = 0  # to consumers that have ended
        self._ended_no_ack: i64 = 0
        self._closed = False

    # -- out ------------------------------------------------------------------------------------------------------

    def user(self) -> str:
        """The name of the channel's user."""
        return self._tapped.user

    def hand_out(self, message: Message, queue: Queue, redelivered: bool, status: MsgStatus | None) -> i64:
        """Gives a message its delivery tag, and notes it as unacked unless `status` is None; the caller writes the frames."""
        tag = self.next_tag
        self.next_tag = tag + 1
        if status is not None:
            status.delivery_tag = tag
            self.unacked.add(status)
        if redelivered or self._vhost.tracing:
            self._note(message, queue, redelivered)
        return tag

    def _note(self, message: Message, queue: Queue, redelivered: bool) -> None:
        if redelivered:
            self.counters.redelivered += 1
            queue.redelivered += 1
        if self._vhost.tracing:
            self.trace(message, queue, redelivered)

    def is_traced(self) -> bool:
        """Whether the firehose wants to see what is delivered."""
        return self._vhost.tracing

    def trace(self, message: Message, queue: Queue, redelivered: bool = False) -> None:
        """Shows the firehose a delivery."""
        self._firehose.delivered(self._tapped, message, queue, redelivered)

    def unacked_count(self) -> i64:
        """How many deliveries are not settled."""
        streams = self.streams
        return self.unacked.count if streams is None else self.unacked.count + streams.count

    def got(self, queue: Queue, message: Message, status: MsgStatus, acked: bool) -> i64:
        """Hands a message out for basic.get; returns its delivery tag. With `acked` the queue has it back at once, as
        acked.
        """
        redelivered = status.redelivered
        if acked:
            self.counters.got_no_ack += 1
            queue.got_no_ack += 1
            queue.ack(status)
            return self.hand_out(message, queue, redelivered, None)
        self.counters.got += 1
        queue.got += 1
        getter = self._getter(queue)
        getter.unacked_count += 1
        status.held_by = getter
        return self.hand_out(message, queue, redelivered, status)

    def _getter(self, queue: Queue) -> Getter:
        getter = self._getters.get(queue)
        if getter is None:
            if len(self._getters) >= GETTERS_KEPT:
                self._getters = {}
            getter = Getter(self, queue)
            self._getters[queue] = getter
        return getter

    def oldest_tag(self) -> i64:
        """The delivery that has waited longest; 0 when all are settled."""
        status = self.unacked.oldest()
        run = self.streams.oldest() if self.streams is not None else None
        if run is None:
            return status.delivery_tag if status is not None else 0
        return run.first if status is None else min(run.first, status.delivery_tag)

    def holder_of(self, tag: i64) -> tuple[str, str]:
        """Consumer tag ("" for basic.get) and queue of the delivery that has waited longest, which has this tag."""
        status = self.unacked.oldest()
        if status is not None and status.delivery_tag == tag:
            holder = status.held_by
            return holder.tag if isinstance(holder, ChannelConsumer) else "", queue_of(status).name
        run = self.streams.oldest() if self.streams is not None else None
        assert run is not None, "kept by: the caller, which has it from oldest_tag"
        return run.consumer.tag, run.queue.name

    def count(self) -> None:
        """Brings the channel's counts of deliveries up to date."""
        delivered, no_ack = self._ended_delivered, self._ended_no_ack
        for consumer in self.consumers.values():
            if consumer.no_ack:
                no_ack += consumer.delivered
            else:
                delivered += consumer.delivered
        self.counters.delivered = delivered
        self.counters.delivered_no_ack = no_ack

    # -- back -----------------------------------------------------------------------------------------------------

    def release(self, status: MsgStatus) -> Queue:
        """Uncounts a delivery that was taken out of `unacked`; returns its queue.

        Assumes: Queue.ack, reject or requeue has not run yet, since they clear `held_by`.
        """
        holder = status.held_by
        if isinstance(holder, ChannelConsumer):
            self.prefetch_used -= 1
            return holder.queue
        return queue_of(status)

    def give_back(self, status: MsgStatus) -> Queue:
        """As `release`, of a delivery that is rejected or requeued."""
        holder = status.held_by
        if isinstance(holder, ChannelConsumer):
            holder.returned += 1
        return self.release(status)

    # -- consumers ------------------------------------------------------------------------------------------------

    def wake_consumers(self) -> None:
        """Puts parked consumers back into their queues' rounds, because some allowance is freed in this turn.

        Another consumer is the first each time, since the first queue to be drained may use the whole allowance.
        """
        consumers = list(self.consumers.values())
        if not consumers:
            return
        first = self._wake_first % len(consumers)
        self._wake_first = first + 1
        for consumer in consumers[first:] + consumers[:first]:
            if consumer.parked:
                consumer.queue.wake(consumer)
                self.touch(consumer.queue)

    def touch(self, queue: Queue) -> None:
        """Has the queue drained at the end of the turn, if it has messages and a consumer for them."""
        if queue.has_work():
            self.output.turn.touch(queue)

    def cancelled(self, consumer: ChannelConsumer) -> None:
        """Forgets a consumer whose queue has gone."""
        if self.forget(consumer) and not self._closed:
            self.host.notify_cancelled(self.number, consumer.tag)

    def forget(self, consumer: ChannelConsumer) -> bool:
        """Keeps the count of a consumer that ends; False when it has ended before."""
        if self.consumers.pop(consumer.tag, None) is None:
            return False
        self._ended(consumer)
        return True

    def _ended(self, consumer: ChannelConsumer) -> None:
        if consumer.no_ack:
            self._ended_no_ack += consumer.delivered
        else:
            self._ended_delivered += consumer.delivered

    def close(self) -> list[Queue]:
        """Takes every consumer from its queue; returns the auto-delete queues that have lost their last consumer."""
        self._closed = True
        left: list[Queue] = []
        for consumer in self.consumers.values():
            self._ended(consumer)
            if consumer.queue.cancel(consumer):
                left.append(consumer.queue)
        self.consumers = {}
        return left


class ChannelConsumer(Consumer):
    """A basic.consume. `prefetch_limit` 0 means no limit. It has acked what was `delivered` but for what it holds and what it has
    `returned`, by basic.reject, nack or recover.
    """

    def __init__(
        self,
        deliveries: Deliveries,
        queue: Queue,
        tag: str,
        no_ack: bool,
        exclusive: bool,
        priority: i64,
        arguments: FieldTable,
    ) -> None:
        super().__init__(tag, no_ack, exclusive, priority)
        self.deliveries = deliveries
        self.queue = queue
        self.origin = deliveries.origin
        self.arguments = arguments
        self.prefetch_limit = deliveries.consumer_prefetch
        self.delivered: i64 = 0
        self.redelivered: i64 = 0
        self.returned: i64 = 0
        encoded = tag.encode("utf-8")
        self._prefix = b"\x00\x3c\x00\x3c" + bytes([len(encoded)]) + encoded
        self._output = deliveries.output

    def ready(self) -> bool:
        output = self._output
        if output.is_full():
            output.starved = True
            return False
        deliveries = self.deliveries
        if deliveries.prefetch_limit > 0 and deliveries.prefetch_used >= deliveries.prefetch_limit:
            return False
        return self.no_ack or self.prefetch_limit == 0 or self.unacked_count < self.prefetch_limit

    def deliver(self, message: Message, redelivered: bool, status: MsgStatus | None) -> None:
        deliveries = self.deliveries
        tag = deliveries.hand_out(message, self.queue, redelivered, status)
        self.delivered += 1
        if status is not None:
            deliveries.prefetch_used += 1
        if redelivered:
            self.redelivered += 1
        output = self._output
        write_deliver(output.out, deliveries.number, self._prefix, tag, redelivered, message, output.frame_max)
        if not output.marked:
            output.due()

    def acked(self) -> i64:
        """How many of its deliveries it has acked."""
        return 0 if self.no_ack else self.delivered - self.unacked_count - self.returned

    def cancelled(self) -> None:
        self.deliveries.cancelled(self)


class Getter(Holder):
    """Holds the messages that basic.get fetched from one queue; it is in no round and uses no prefetch."""

    def __init__(self, deliveries: Deliveries, queue: Queue) -> None:
        super().__init__()
        self.deliveries = deliveries
        self.queue = queue


def queue_of(status: MsgStatus) -> Queue:
    """The queue of a message that a channel holds."""
    holder = status.held_by
    if isinstance(holder, ChannelConsumer):
        return holder.queue
    assert isinstance(holder, Getter), "kept by: deliver and basic_get set it, Queue._release clears it"
    return holder.queue
