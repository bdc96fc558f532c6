"""A stream: a queue whose messages stay, and are read by any number of consumers, each at its own offset.

  publish --with its offset--> StreamLog --committed--> cursor of each consumer --entries--> its channel

A publish answers SYNCING, and nobody is shown a message before it is on disk. An ack gives a consumer credit for another
message, and so does every other way to settle: nothing comes back. What goes is taken by retention, in whole segments.

A turn's budget is shared by the cursors that are due. One that used its share up comes after the others in the next turn.

What must stay true: a cursor that could go on is on the list `_due`, and then the queue is touched.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from rabbitpy_broker.errors import INTERNAL_ERROR, NOT_IMPLEMENTED, ConnectionClosed
from rabbitpy_broker.events import layout
from rabbitpy_broker.events.journal import QueueEvents
from rabbitpy_broker.message import Message
from rabbitpy_broker.queues.backing_queue import CONFIRMED, SYNCING
from rabbitpy_broker.queues.consumers import Consumer
from rabbitpy_broker.queues.msg_status import MsgStatus
from rabbitpy_broker.queues.queue import Queue
from rabbitpy_broker.queues.queue_host import QueueHost
from rabbitpy_broker.queues.queue_settings import QueueSettings
from rabbitpy_broker.queues.stream_backing import StreamBacking
from rabbitpy_broker.queues.stream_cursor import CursorOwner, StreamCursor, StreamReceiver
from rabbitpy_broker.queues.stream_start import AT_OFFSET, AT_TIME, FIRST, LAST, StreamStart
from rabbitpy_broker.storage.stream_log import StreamLog, StreamReaderHost, StreamSettings
from rabbitpy_broker.wire.content_header import ContentHeader
from rabbitpy_broker.wire.edit_header import shown
from rabbitpy_broker.wire.field_table import FieldTable
from rabbitpy_broker.wire.offset_header import with_offset

SMALLEST_SHARE: Final[i64] = 64  # messages that each cursor may look at, however many are due


def stream_settings(settings: QueueSettings) -> StreamSettings:
    """What of a queue's settings is its log's."""
    of_log = StreamSettings()
    of_log.max_length_bytes = settings.max_length_bytes
    of_log.max_age_ms = settings.max_age_ms
    of_log.max_segment_bytes = settings.max_segment_bytes
    of_log.filter_size = settings.filter_size
    return of_log


class StreamQueue(Queue, CursorOwner):
    """`cursors` has one for each consumer. A stream is durable, and belongs to no connection."""

    def __init__(
        self, host: QueueHost, vhost: str, name: str, arguments: FieldTable, log: StreamLog, settings: QueueSettings
    ) -> None:
        self.log = log
        self.cursors: dict[Consumer, StreamCursor] = {}
        self._due: list[StreamCursor] = []
        super().__init__(host, vhost, name, True, False, None, arguments, StreamBacking(log), settings)
        log.on_committed = _Committed(self)

    def apply(self, settings: QueueSettings) -> None:
        self.settings = settings
        self.log.settings = stream_settings(settings)

    def record(self, events: QueueEvents) -> None:
        self.events = events  # it follows messages that are consumed: of those here it says that they came

    # -- publish and deliver --------------------------------------------------------------------------------------

    def publish(self, message: Message) -> i64:
        self.published += 1
        seen = self.deduplication
        if seen is not None:
            header = ContentHeader(message.header_payload())
            if seen.is_duplicate(header):
                self._record_not_taken(layout.DUPLICATE)
                return CONFIRMED
            seen.remember(header)
        if message.has_bcc:
            message = shown(message)
        log = self.log
        stamped = with_offset(message.content, message.header_end, log.next_offset)
        if self.events is not None:
            self.events.not_taken(layout.STREAM)
        log.append(message.address, stamped.content, stamped.filter_value, self.host.now_ms())
        return SYNCING

    def committed(self) -> None:
        """More messages may be shown."""
        for cursor in self.cursors.values():
            if not cursor.consumer.parked:
                self.cursor_due(cursor)

    def cursor_due(self, cursor: StreamCursor) -> None:
        if not cursor.due:
            cursor.due = True
            self._due.append(cursor)
        if not self.touched:
            self.host.touch(self)

    def drain(self, budget: i64) -> bool:
        """Lets each cursor that is due go on by its share of the budget; True when some have more to do."""
        due = self._due
        self._due = []
        share = max(SMALLEST_SHARE, budget // max(1, len(due)))
        for cursor in due:
            cursor.due = False
            if cursor.closed:
                continue
            if cursor.advance(share) >= share:
                cursor.due = True
                self._due.append(cursor)
        return bool(self._due)

    def has_work(self) -> bool:
        return bool(self._due)

    # -- consumers ------------------------------------------------------------------------------------------------

    def attach(self, consumer: Consumer, receiver: StreamReceiver, start: StreamStart) -> None:
        """Adds a consumer, which is its own receiver. Raises 541 when the disk cannot say where a time is."""
        try:
            offset = self._offset_of(start)
        except OSError as error:
            raise ConnectionClosed(INTERNAL_ERROR, f"queue '{self.name}' cannot be read: {error}") from None
        self.consumers.members[consumer] = None
        self._count_consumers()
        cursor = StreamCursor(self, self.log, consumer, receiver, start, offset)
        self.cursors[consumer] = cursor
        self.cursor_due(cursor)

    def _offset_of(self, start: StreamStart) -> i64:
        log = self.log
        if start.kind == FIRST:
            return log.first_offset
        if start.kind == LAST:
            return log.last_chunk_offset()
        if start.kind == AT_OFFSET:
            return start.number
        if start.kind == AT_TIME:
            return log.offset_at(start.number)
        return log.next_offset

    def cancel(self, consumer: Consumer) -> bool:
        cursor = self.cursors.pop(consumer, None)
        if cursor is not None:
            del self.consumers.members[consumer]
            self._count_consumers()
            cursor.close()
        return False

    def credit(self, consumer: Consumer, count: i64) -> None:
        """A consumer, or one that was, has settled so many deliveries."""
        consumer.unacked_count -= count
        self.acked += count
        self.wake(consumer)

    def wake(self, consumer: Consumer) -> None:
        if consumer.parked:
            consumer.parked = False
            cursor = self.cursors.get(consumer)
            if cursor is not None:
                self.cursor_due(cursor)

    # -- what there is --------------------------------------------------------------------------------------------

    def ready_count(self) -> i64:
        return self.log.committed - self.log.first_offset

    def ready_bytes(self) -> i64:
        return self.log.size_bytes

    def get(self) -> MsgStatus | None:
        raise self.not_supported("basic.get")

    def purge(self) -> i64:
        raise self.not_supported("queue.purge")

    def not_supported(self, what: str) -> ConnectionClosed:
        """The refusal of what a stream cannot do."""
        text = f"{what} not supported by stream queues queue '{self.name}' in vhost '{self.vhost}'"
        return ConnectionClosed(NOT_IMPLEMENTED, text)

    def delete(self) -> i64:
        kept = self.ready_count()
        self.deleted = True
        for consumer in list(self.consumers.members):
            self.cancel(consumer)
            consumer.cancelled()
        self._due = []
        self.log.on_committed = None
        self.backing.delete()
        if self.events is not None:
            self.events.deleted(0)
        return kept

    def check(self) -> None:
        """For tests and `--check-invariants`. Raises AssertionError."""
        self.backing.check()
        assert list(self.cursors) == list(self.consumers.members), "a cursor for each consumer"
        for cursor in self.cursors.values():
            consumer = cursor.consumer
            assert consumer.unacked_count >= 0, f"{consumer.tag} has settled more than it got"
            assert cursor.due or cursor.is_waiting(), f"{consumer.tag} is forgotten: there is more"
            assert not cursor.due or self.touched, f"{consumer.tag} is due, and nobody comes"


class _Committed(StreamReaderHost):
    """Hands the log's call to the queue."""

    def __init__(self, queue: StreamQueue) -> None:
        self._queue = queue

    def committed(self) -> None:
        self._queue.committed()
