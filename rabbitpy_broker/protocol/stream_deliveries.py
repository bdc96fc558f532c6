"""A consumer of a stream on a channel: its deliveries are copies of stored bytes, and are noted as runs of delivery tags."""

from __future__ import annotations

from mypy_extensions import i64

from rabbitpy_broker.protocol.deliveries import ChannelConsumer, Deliveries
from rabbitpy_broker.protocol.stream_unacked import StreamUnacked
from rabbitpy_broker.queues.stream_cursor import StreamReceiver
from rabbitpy_broker.queues.stream_queue import StreamQueue
from rabbitpy_broker.wire.field_table import FieldTable
from rabbitpy_broker.wire.stream_encoder import message_at, write_deliveries


class StreamConsumer(ChannelConsumer, StreamReceiver):
    """A basic.consume on a stream. Its prefetch is above 0, and it acks."""

    def __init__(
        self, deliveries: Deliveries, stream: StreamQueue, tag: str, exclusive: bool, arguments: FieldTable
    ) -> None:
        super().__init__(deliveries, stream, tag, False, exclusive, 0, arguments)
        self.stream = stream
        if deliveries.streams is None:
            deliveries.streams = StreamUnacked()
        self._unacked = deliveries.streams

    def room(self) -> i64:
        output = self._output
        if output.is_full():
            output.starved = True
            return 0
        return self.prefetch_limit - self.unacked_count

    def deliver_entries(self, data: bytes, pos: i64, count: i64) -> tuple[i64, i64]:
        deliveries = self.deliveries
        output = self._output
        first = deliveries.next_tag
        end, done = write_deliveries(
            output.out, deliveries.number, self._prefix, first, data, pos, count, output.frame_max, output.high_water_mark
        )
        deliveries.next_tag = first + done
        self._unacked.add(self.stream, self, first, first + done)
        self.unacked_count += done
        self.stream.taken += done
        self.delivered += done
        if not output.marked:
            output.due()
        if deliveries.is_traced():
            self._trace(data, pos, end)
        return end, done

    def _trace(self, data: bytes, pos: i64, end: i64) -> None:
        """Has the firehose see what was delivered."""
        while pos < end:
            message = message_at(data, pos)
            self.deliveries.trace(message, self.stream)
            pos += 6 + len(message.address) + len(message.content)
