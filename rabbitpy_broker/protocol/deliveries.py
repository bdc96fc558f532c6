"""Consumers of a channel: the queue's side hands a message over, the channel's side counts it and writes the frames.

A consumer is ready while its connection takes output, the channel's prefetch_limit (qos global=true, shared) and its
own (qos global=false, fixed when it was made) are not used up. A consumer without acks has no limit of its own, but
waits while the channel's limit is exhausted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mypy_extensions import i64

from rabbitpy_broker.message import Message
from rabbitpy_broker.queues.consumers import Consumer
from rabbitpy_broker.queues.msg_status import MsgStatus
from rabbitpy_broker.wire.encoder import write_deliver

if TYPE_CHECKING:
    from rabbitpy_broker.protocol.channel import Channel
    from rabbitpy_broker.queues.queue import Queue
    from rabbitpy_broker.wire.field_table import FieldTable


class ChannelConsumer(Consumer):
    """A basic.consume. `prefetch_limit` 0 means no limit."""

    def __init__(
        self,
        channel: Channel,
        queue: Queue,
        tag: str,
        no_ack: bool,
        exclusive: bool,
        priority: i64,
        arguments: FieldTable,
        prefetch_limit: i64,
    ) -> None:
        super().__init__(queue, tag, no_ack, exclusive, priority)
        self.channel = channel
        self.connection = channel.connection
        self.origin = channel.origin
        self.arguments = arguments
        self.prefetch_limit = prefetch_limit
        encoded = tag.encode("utf-8")
        self._prefix = b"\x00\x3c\x00\x3c" + bytes([len(encoded)]) + encoded

    def ready(self) -> bool:
        connection = self.connection
        if connection.output_is_full():
            connection.starved = True
            return False
        channel = self.channel
        if channel.prefetch_limit > 0 and channel.prefetch_used >= channel.prefetch_limit:
            return False
        return self.no_ack or self.prefetch_limit == 0 or self.unacked_count < self.prefetch_limit

    def deliver(self, message: Message, redelivered: bool, status: MsgStatus | None) -> None:
        channel = self.channel
        connection = self.connection
        tag = channel.next_delivery_tag
        channel.next_delivery_tag = tag + 1
        if status is None:
            channel.delivered_no_ack += 1
        else:
            status.delivery_tag = tag
            channel.unacked.add(status)
            channel.prefetch_used += 1
            channel.delivered += 1
        if redelivered:
            channel.redelivered += 1
        if channel.vhost.tracing:
            connection.node.firehose.delivered(channel, message, self.queue, redelivered)
        write_deliver(connection.out, channel.number, self._prefix, tag, redelivered, message, connection.frame_max)
        if not connection.output_marked:
            connection.output_due()

    def cancelled(self) -> None:
        self.channel.consumer_cancelled(self)


class Getter(Consumer):
    """Holds what basic.get fetched from one queue; it is in no round and uses no prefetch."""

    def __init__(self, queue: Queue) -> None:
        super().__init__(queue, "", False, False, 0)
