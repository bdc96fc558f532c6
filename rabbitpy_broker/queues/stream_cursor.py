"""Where one consumer is in its stream, and the way from there to what it may have next.

  reader ----chunk----> cursor ----entries----> receiver (the consumer's channel)
                        offset, position

A cursor is one of these: *due*, on its queue's list, for a drain to deal with; *parked*, because its receiver takes nothing
now (prefetch used up, output full), until the queue or the channel wakes it; *reading*, until a thread has brought a chunk
or, after trouble, until the next tick; or *at the tail*, until more is committed. Acks give credit back and move nothing: what
was delivered never comes again.

What must stay true: offsets that are delivered increase; a cursor that could go on is due.
"""

from __future__ import annotations

from mypy_extensions import i64, trait

from rabbitpy_broker.queues.consumers import Consumer
from rabbitpy_broker.queues.stream_start import StreamStart
from rabbitpy_broker.storage.stream_chunk import StreamChunk
from rabbitpy_broker.storage.stream_log import StreamLog
from rabbitpy_broker.storage.stream_reader import ReaderHost
from rabbitpy_broker.wire.offset_header import filter_value_in
from rabbitpy_broker.wire.stream_encoder import content_start, entry_end


@trait
class StreamReceiver:
    """A consumer as its cursor sees it; `protocol/stream_deliveries.py` implements it."""

    def room(self) -> i64:
        """How many messages may be delivered now; 0 when the output is full, or all credit is used."""
        raise NotImplementedError

    def deliver_entries(self, data: bytes, pos: i64, count: i64) -> tuple[i64, i64]:
        """Delivers entries from `pos` on, `count` at most and, as long as there is room, at least one.

        Returns the position behind the last, and how many there were.
        """
        raise NotImplementedError


@trait
class CursorOwner:
    """The queue, as its cursors see it."""

    def cursor_due(self, cursor: StreamCursor) -> None:
        """Has the cursor go on at the end of this turn."""
        raise NotImplementedError


class StreamCursor(ReaderHost):
    """`offset` is that of the next message; `due`: it is on the list of its queue."""

    def __init__(
        self, owner: CursorOwner, log: StreamLog, consumer: Consumer, receiver: StreamReceiver, start: StreamStart, offset: i64
    ) -> None:
        self.owner = owner
        self.log = log
        self.consumer = consumer
        self.receiver = receiver
        self.reader = log.reader(self)
        self.offset = offset
        self.due = False
        self.delivered: i64 = 0
        self.last_offset: i64 = -1  # of what was delivered last
        self.closed = False
        self._chunk: StreamChunk | None = None
        self._pos: i64 = 0
        self._values = start.values
        self._match_unfiltered = start.match_unfiltered
        if start.values is not None:
            self.reader.set_filter(start.values, start.match_unfiltered)

    def readable(self) -> None:
        """The chunk that `advance` asked for is there."""
        if not self.closed:
            self.owner.cursor_due(self)

    def advance(self, budget: i64) -> i64:
        """Delivers what may go out now, and looks at `budget` messages at most; returns how many it looked at.

        Less than the budget: the cursor is parked, reading or at the tail.
        """
        used: i64 = 0
        while used < budget:
            if self.offset >= self.log.committed:
                break
            room = self.receiver.room()
            if room <= 0:
                self.consumer.parked = True
                break
            chunk = self._chunk_here()
            if chunk is None:
                break
            count = min(budget - used, chunk.end_offset - self.offset)
            if self._values is None:
                used += self._deliver(chunk, min(count, room))
            else:
                used += self._deliver_wanted(chunk, count, room)
        return used

    def _chunk_here(self) -> StreamChunk | None:
        """The chunk with the next message, and the position in it; None when the cursor has to wait."""
        chunk = self._chunk
        if chunk is not None:
            if self.offset < chunk.end_offset:
                return chunk
            self._chunk = None
        chunk = self.reader.chunk(self.offset)
        if chunk is None:
            return None
        if chunk.first_offset > self.offset:  # retention has taken what was there, or it is not wanted
            self.offset = chunk.first_offset
        self._pos = chunk.position(self.offset)
        self._chunk = chunk
        return chunk

    def _deliver(self, chunk: StreamChunk, count: i64) -> i64:
        pos, done = self.receiver.deliver_entries(chunk.data, self._pos, count)
        self._pos = pos
        self.offset += done
        self.delivered += done
        self.last_offset = self.offset - 1
        return done

    def _deliver_wanted(self, chunk: StreamChunk, count: i64, room: i64) -> i64:
        """Looks at `count` messages, and delivers those that the filter wants, as long as there is room."""
        looked: i64 = 0
        while looked < count:
            if self._is_wanted(chunk.data, self._pos):
                if room <= 0 and self.receiver.room() <= 0:
                    break
                room = 0  # from now on it is asked each time: the output may be full
                self._deliver(chunk, 1)
            else:
                self._pos = entry_end(chunk.data, self._pos)
                self.offset += 1
            looked += 1
        return looked

    def _is_wanted(self, data: bytes, pos: i64) -> bool:
        value = filter_value_in(data, content_start(data, pos))
        if value is None:
            return self._match_unfiltered
        return self._values is not None and value in self._values

    def is_waiting(self) -> bool:
        """Whether somebody will make it due when it can go on."""
        reader = self.reader
        at_tail = self.offset >= self.log.committed or self._values is not None  # a filter may want nothing that is there
        return self.consumer.parked or at_tail or reader.reading or bool(reader.error)

    def lag(self) -> i64:
        """How many committed messages are still before it."""
        return max(0, self.log.committed - max(self.offset, self.log.first_offset))

    def close(self) -> None:
        self.closed = True
        self._chunk = None
        self.reader.close()
