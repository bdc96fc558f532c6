"""Browsing a stream: by offset, which stands where the seq_id of another queue's message stands.

What must stay true: a reader of one's own is used, which tells nobody of damage and counts nothing; only what is committed is
shown.
"""

from __future__ import annotations

from collections.abc import Iterator

from mypy_extensions import i64

from rabbitpy_broker.errors import BrokerError
from rabbitpy_broker.queues.browse import LAST, Browse, Browsing, Peeks, Seen, lanes_of
from rabbitpy_broker.queues.queue import Queue
from rabbitpy_broker.queues.stream_queue import StreamQueue
from rabbitpy_broker.storage.peek import Job, content_of
from rabbitpy_broker.storage.stream_chunk import StreamChunk
from rabbitpy_broker.storage.stream_log import StreamLog
from rabbitpy_broker.storage.stream_reader import ChunkRead
from rabbitpy_broker.storage.stream_segments import UNKNOWN
from rabbitpy_broker.wire.stream_encoder import entry_end, message_at


class ChunkPeek(Job):
    """Reads the chunk with an offset, or the next one of its segment. `fault`: why the disk gave nothing."""

    def __init__(self, log: StreamLog, offset: i64) -> None:
        super().__init__()
        self.fault = ""
        self.offset = offset
        self.read = ChunkRead(log.segments, log.segments.number_of(offset), offset, UNKNOWN, None)

    def run(self) -> None:
        try:
            self.read.run()
        except OSError as error:
            self.fault = str(error)
        except BrokerError as error:
            self.fault = str(error)
        chunk = self.read.chunk
        if chunk is not None:
            self.bytes_read = len(chunk.data)


class StreamBrowse(Browsing):
    """As Browse, of a stream: all that is in it is ready."""

    def __init__(
        self, log: StreamLog, start: tuple[int, int] | None, forward: bool, limit: int, *, ready: bool, cut: int, most_bytes: int
    ) -> None:
        super().__init__()
        self._log = log
        self._forward = forward
        self._limit = limit if ready else 0
        self._cut = cut
        self._most_bytes = most_bytes
        self._bytes = 0
        self._start = start

    def steps(self) -> Iterator[Job]:
        """See Browse.steps. Against the order the messages of a page are read in their order, and turned round."""
        log = self._log
        low, high = log.first_offset, log.committed
        if self._limit == 0:
            return
        if self._start is not None:
            if self._forward:
                low = max(low, self._start[1] + 1)
            else:
                high = min(high, self._start[1])
        if not self._forward:
            self.more = high - self._limit > low
            low = max(low, high - self._limit)
        offset = low
        while offset < high and len(self.found) < self._limit and self._bytes <= self._most_bytes:
            chunk = self._in_memory(offset)
            if chunk is None:
                peek = ChunkPeek(log, offset)
                yield peek
                chunk = peek.read.chunk
                behind = chunk.first_offset if chunk is not None else max(peek.read.next_offset, offset + 1)
                if behind > max(offset, log.first_offset):
                    self._hole(offset, peek)
                if chunk is None:
                    offset = behind if peek.read.next_offset > offset else high
                    continue
            offset = self._take(chunk, max(offset, chunk.first_offset), high)
        if self._forward:
            self.more = offset < high
        else:
            self.found.reverse()

    def _in_memory(self, offset: i64) -> StreamChunk | None:
        memory = self._log.memory
        if offset < memory.first_offset:
            return None
        at = memory.find(offset)
        return memory.chunks[at] if at < len(memory.chunks) else None

    def _hole(self, offset: i64, peek: ChunkPeek) -> None:
        reasons = [peek.fault] if peek.fault else [damage.reason for damage in peek.read.damage]
        if reasons:
            seen = Seen(0, offset)
            seen.damaged = reasons[0]
            self.found.append(seen)

    def _take(self, chunk: StreamChunk, offset: i64, high: i64) -> i64:
        """Takes messages of a chunk; returns the first offset that it did not."""
        pos = chunk.position(offset)
        while offset < min(chunk.end_offset, high) and len(self.found) < self._limit and self._bytes <= self._most_bytes:
            message = message_at(chunk.data, pos)
            seen = Seen(0, offset)
            seen.stage = "stream"
            seen.position = offset - self._log.first_offset
            seen.size = message.body_size
            seen.stored_ms = chunk.timestamp_ms
            seen.content = content_of(message, self._cut)
            self.found.append(seen)
            self._bytes += int(seen.size) if self._cut < 0 else min(int(seen.size), self._cut)
            pos = entry_end(chunk.data, pos)
            offset += 1
        return offset


def browsing(
    queue: Queue,
    peeks: Peeks,
    start: tuple[int, int] | None,
    forward: bool,
    limit: int,
    *,
    ready: bool = True,
    unacked: bool = True,
    cut: int = -1,
    most_bytes: int = LAST,
    positions: bool = True,
) -> Browsing:
    """A browse of a queue of any type."""
    if isinstance(queue, StreamQueue):
        return StreamBrowse(queue.log, start, forward, limit, ready=ready, cut=cut, most_bytes=most_bytes)
    return Browse(
        queue.backing,
        peeks,
        start,
        forward,
        limit,
        ready=ready,
        unacked=unacked,
        cut=cut,
        most_bytes=most_bytes,
        positions=positions,
    )


def id_of(queue: Queue) -> int:
    """The queue's number in the store."""
    if isinstance(queue, StreamQueue):
        return queue.log.queue_id
    return lanes_of(queue.backing)[-1].index.queue_id


def newest(queue: Queue) -> dict[int, int]:
    """Of each lane that has had any message, the seq_id of the newest."""
    if isinstance(queue, StreamQueue):
        return {0: int(queue.log.committed) - 1} if queue.log.committed > 0 else {}
    lanes = lanes_of(queue.backing)
    return {int(lane.priority): int(lane.next_seq_id) - 1 for lane in lanes if lane.next_seq_id > 0}
