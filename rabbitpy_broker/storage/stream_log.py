"""A stream as the store has it: messages with the offsets 0, 1, 2 ..., which are read and not consumed.

    append --epoch--> journal, and memory --move--> segments --retention--> nothing
           (filling)  (pending)            (stored)

An append writes its entry into the bytes of the epoch that is filling. These bytes become one chunk: it is written to
the journal, in the section of the stream's queue_id, and when the epoch is settled it is pending: readers see it from then
on. Pending chunks are moved to the stream's segments (stream_scatter.py), as larger chunks, when 8 MiB of them have
gathered, when the stream idles, when they have waited for MOVE_TICKS, and when the journal wants its oldest file back.
A few chunks that are stored stay in memory for readers near the tail, until the stream idles.

What must stay true:
- an offset is given to one message, for ever: `committed` never goes back, and neither does a start's `next_offset` go
  back behind it;
- nothing at or above `committed` is shown to a reader: a crash may take it back;
- the journal's files with pending chunks stay until the segments with them are synced;
- `chunks` is in order, and has everything from the end of the segments to `committed`; the first `stored` of it are in
  segments as well.
"""

from __future__ import annotations

from typing import Final

from librt.strings import BytesWriter, write_i32_be, write_i64_be
from mypy_extensions import i32, i64, mypyc_attr

from rabbitpy_broker.storage.journal import Journal, JournalUser
from rabbitpy_broker.storage.records import STREAM_HEAD, write_stream_head
from rabbitpy_broker.storage.stream_chunk import NO_VALUE, StreamChunk, filter_mask, write_entry
from rabbitpy_broker.storage.stream_reader import ReaderHost, StreamMemory, StreamReader
from rabbitpy_broker.storage.stream_segments import UNKNOWN, StreamSegment, StreamSegments

SEGMENT_BYTES: Final[i64] = 500_000_000
FILTER_SIZE: Final[i64] = 16
LARGE_SECTION: Final[i64] = 16_384  # it is handed over as it is; smaller ones are copied into the block
MOVE_TICKS: Final[i64] = 5  # so long may a chunk be pending while the stream does not idle


@mypyc_attr(allow_interpreted_subclasses=True)
class StreamReaderHost:
    """Whoever hands a stream to its consumers: the queue."""

    def committed(self) -> None:
        """`StreamLog.committed` or `first_offset` has moved. Called in the loop, when an epoch is settled, and by retention."""
        raise NotImplementedError


class StreamMover:
    """Moves pending chunks to segments, and removes files: the scatter of streams (stream_scatter.py)."""

    def move(self, log: StreamLog) -> None:
        """Has what is pending moved, soon; see `StreamLog.begin_move`."""
        raise NotImplementedError

    def remove(self, log: StreamLog, segments: list[StreamSegment]) -> None:
        """Has the files of these segments removed, in this order, soon."""
        raise NotImplementedError

    def forget(self, log: StreamLog) -> None:
        """The stream is deleted; its folder goes."""
        raise NotImplementedError

    def now_ms(self) -> i64:
        """Milliseconds since 1970."""
        raise NotImplementedError


class Filling:
    """The chunk that the epoch that is filling will make. `mask` has the bits of its filter."""

    def __init__(self) -> None:
        self.out = BytesWriter()
        self.count: i64 = 0
        self.filter_size: i64 = 0  # 0: no message has a filter value so far
        self.mask = 0
        self.last_value = NO_VALUE  # of those that are in `mask`
        self.is_any_without = False  # some message has no filter value

    def add_value(self, value: bytes | None, size: i64) -> None:
        """The filter value of the next message, and how large filters are to be."""
        if value is None or size <= 0:
            self.is_any_without = True
            return
        if self.filter_size == 0:
            self.filter_size = size
        elif value == self.last_value:
            return
        self.mask |= filter_mask(value, int(self.filter_size))
        self.last_value = value

    def chunk(self, end_offset: i64, timestamp_ms: i64) -> StreamChunk:
        """What has gathered, as a chunk."""
        bits = b""
        if self.filter_size > 0:
            if self.is_any_without:
                self.mask |= filter_mask(NO_VALUE, int(self.filter_size))
            bits = self.mask.to_bytes(int(self.filter_size), "big")
        return StreamChunk(self.out.getvalue(), end_offset - self.count, self.count, timestamp_ms, bits)


class StreamSettings:
    """What policies and arguments may change. -1: none."""

    def __init__(self) -> None:
        self.max_length_bytes: i64 = -1
        self.max_age_ms: i64 = -1
        self.max_segment_bytes: i64 = SEGMENT_BYTES
        self.filter_size: i64 = FILTER_SIZE


class StreamLog(JournalUser):
    """One stream. `next_offset` is what the next append gets. `first_timestamp_ms` and `last_timestamp_ms` are -1 while the
    stream is empty. `settings` may be changed at any time.
    """

    def __init__(self, journal: Journal, segments: StreamSegments, mover: StreamMover, queue_id: int) -> None:
        super().__init__(queue_id)
        self.journal = journal
        self.segments = segments
        self.mover = mover
        self.settings = StreamSettings()
        self.on_committed: StreamReaderHost | None = None
        self.memory = StreamMemory()
        self.next_offset: i64 = 0
        self.first_timestamp_ms: i64 = -1
        self.last_timestamp_ms: i64 = -1
        self.pending_bytes: i64 = 0  # not in segments yet, what is not committed too
        self.moving: i64 = 0  # chunks behind the stored ones that a move has taken
        self._filling = Filling()
        self._writing: list[list[StreamChunk]] = []  # in the epochs that are under way, the oldest first
        self._again: list[StreamChunk] = []  # of an epoch that has failed: first in the next one
        self._is_due = False  # the journal knows that there is something for the next epoch
        self._is_active = False  # since the last tick
        self._ticks: i64 = 0  # since the last move
        self._readers: dict[StreamReader, None] = {}

    @property
    def first_offset(self) -> i64:
        """The offset of the oldest message that is kept; `next_offset` while the stream is empty."""
        return self.segments.first_offset

    @property
    def committed(self) -> i64:
        """Offsets below are durable, and may be shown."""
        return self.memory.committed

    @property
    def size_bytes(self) -> i64:
        """Of everything from `first_offset` on, with what is not committed yet."""
        return self.segments.bytes + self.pending_bytes

    def memory_bytes(self) -> i64:
        """Of chunks in memory, without those of readers."""
        total: i64 = 0
        for chunk in self.memory.chunks:
            total += len(chunk.data)
        return total

    def segment_count(self) -> i64:
        """Segments that have files."""
        return len(self.segments.segments)

    # -- append ---------------------------------------------------------------------------------------------------

    def append(self, address: bytes, content: bytes, filter_value: bytes | None, now_ms: i64) -> i64:
        """A message; returns its offset. It is part of the epoch that is filling, so the caller's answer is SYNCING.

        `now_ms` is in milliseconds since 1970; a clock that goes back is taken to stand still.
        """
        filling = self._filling
        out = filling.out
        before: i64 = len(out)
        write_entry(out, address, content)
        self.pending_bytes += len(out) - before
        filling.count += 1
        if filter_value is not None or filling.filter_size > 0 or not filling.is_any_without:
            filling.add_value(filter_value, self.settings.filter_size)
        if now_ms > self.last_timestamp_ms:
            self.last_timestamp_ms = now_ms
        offset = self.next_offset
        self.next_offset = offset + 1
        if not self._is_due:
            self._due()
        return offset

    def _due(self) -> None:
        self._is_due = True
        self._is_active = True
        if self.first_timestamp_ms < 0:
            self.first_timestamp_ms = self.last_timestamp_ms
        if not self.dirty:
            self.journal.section_due(self)
        self.journal.publishes_due()

    # -- reading --------------------------------------------------------------------------------------------------

    def reader(self, host: ReaderHost) -> StreamReader:
        """A new reader. Whoever has it closes it."""
        reader = StreamReader(self.memory, self.segments, host)
        self._readers[reader] = None
        return reader

    def offset_at(self, timestamp_ms: i64) -> i64:
        """The first offset of the first chunk that is not older; some of its messages may be. `next_offset` when all are.

        Reads a few records of indexes where the chunk is not in memory.
        """
        chunks = self.memory.chunks
        low: i64 = 0
        high: i64 = len(chunks)
        while low < high:
            middle = (low + high) // 2
            if chunks[middle].timestamp_ms < timestamp_ms:
                low = middle + 1
            else:
                high = middle
        if low == 0:
            offset = self.segments.offset_at(timestamp_ms)
            if offset != UNKNOWN and offset < self.memory.first_offset:
                return max(offset, self.first_offset)
        return chunks[low].first_offset if low < len(chunks) else self.next_offset

    def last_chunk_offset(self) -> i64:
        """The first offset of the last chunk that may be shown; `next_offset` when there is none."""
        chunks = self.memory.chunks
        if chunks:
            return chunks[-1].first_offset
        return self.segments.last_chunk if self.segments.last_chunk != UNKNOWN else self.next_offset

    # -- the epoch ------------------------------------------------------------------------------------------------

    def write_section(self, out: BytesWriter) -> i64:
        """See JournalUser.

        Ensures: the section has one entry for each chunk of the last of `_writing`, in order: first what a failed epoch had.
        """
        self.dirty = False
        self._is_due = False
        writing = self._again
        self._again = []
        filling = self._filling
        if filling.count > 0:
            self._filling = Filling()
            writing.append(filling.chunk(self.next_offset, self.last_timestamp_ms))
        self._writing.append(writing)
        size: i64 = 0
        for chunk in writing:
            size += len(chunk.data)
        if size > LARGE_SECTION:
            self.has_parts = True
        elif size > 0:
            for part in self.section_parts():
                out.write(part)
        return 0

    def section_parts(self) -> list[bytes]:
        self.has_parts = False
        size: i64 = 0
        writing = self._writing[-1]
        for chunk in writing:
            size += STREAM_HEAD + len(chunk.filter_bits) + len(chunk.data)
        parts: list[bytes] = []
        head = BytesWriter()
        write_i64_be(head, i64(self.queue_id - (1 << 64) if self.queue_id >> 63 else self.queue_id))
        write_i32_be(head, i32(size))
        for chunk in writing:
            data = chunk.data
            filter_size: i64 = len(chunk.filter_bits)
            write_stream_head(head, chunk.first_offset, chunk.count, chunk.timestamp_ms, filter_size, len(data))
            head.write(chunk.filter_bits)
            parts.append(head.getvalue())
            parts.append(data)
            head = BytesWriter()
        return parts

    def epoch_settled(self, ok: bool, file_num: i64, payload_offset: i64) -> None:
        if not ok:
            self._again = self._writing.pop() + self._again
            self._due()
            return
        writing = self._writing.pop(0)
        for chunk in writing:
            chunk.file_num = file_num
            self.memory.add(chunk)
        if self.on_committed is not None and writing:
            self.on_committed.committed()
        sizes = self.segments.sizes
        if self.pending_bytes >= sizes.move_bytes or self._pending() >= sizes.move_chunks:
            self._move()

    # -- journal files and segments -------------------------------------------------------------------------------

    def _pending(self) -> i64:
        """Chunks that are committed and not in segments."""
        return len(self.memory.chunks) - self.memory.stored

    def oldest_file(self) -> i64:
        memory = self.memory
        return memory.chunks[memory.stored].file_num if self._pending() > 0 else 0

    def copied(self, chunk: StreamChunk) -> None:
        """A chunk that the journal has, of another node's stream. What of it is here already does not count again."""
        if chunk.end_offset <= self.next_offset:
            return
        if chunk.first_offset < self.next_offset:
            file_num = chunk.file_num
            chunk = chunk.part(self.next_offset, chunk.end_offset)
            chunk.file_num = file_num
        self.next_offset = chunk.end_offset
        self.last_timestamp_ms = chunk.timestamp_ms
        if self.first_timestamp_ms < 0:
            self.first_timestamp_ms = chunk.timestamp_ms
        self.pending_bytes += len(chunk.data)
        self._is_active = True
        self.memory.add(chunk)
        if self.pending_bytes >= self.segments.sizes.move_bytes or self._pending() >= self.segments.sizes.move_chunks:
            self._move()

    def leave_oldest_file(self) -> None:
        self._move()

    def _move(self) -> None:
        if self.moving == 0 and self._pending() > 0 and not self.deleted:
            self.mover.move(self)

    def begin_move(self, limit_bytes: i64) -> list[StreamChunk]:
        """The oldest pending chunks, about so many bytes of them; `moved` tells what became of them."""
        taken: list[StreamChunk] = []
        at = self.memory.stored
        chunks = self.memory.chunks
        size: i64 = 0
        while at < len(chunks) and size < limit_bytes:
            taken.append(chunks[at])
            size += len(chunks[at].data)
            at += 1
        self.moving = len(taken)
        return taken

    def move_failed(self) -> None:
        """Nothing of what `begin_move` gave counts."""
        self.moving = 0

    def moved(self) -> None:
        """What `begin_move` gave is in segments, synced; the table of segments has it."""
        memory = self.memory
        end = memory.stored + self.moving
        at = memory.stored
        while at < end:
            self.pending_bytes -= len(memory.chunks[at].data)
            at += 1
        memory.stored = end
        self.moving = 0
        self._ticks = 0
        self._leave_memory(self.segments.sizes.kept_bytes)
        self.evaluate_retention()
        if self.pending_bytes >= self.segments.sizes.move_bytes:
            self._move()

    def _leave_memory(self, kept_bytes: i64) -> None:
        """Of the stored chunks so many bytes of the newest stay in memory."""
        memory = self.memory
        at = memory.stored
        kept: i64 = 0
        while at > 0 and kept + len(memory.chunks[at - 1].data) <= kept_bytes:
            at -= 1
            kept += len(memory.chunks[at].data)
        memory.drop(at)

    def evaluate_retention(self) -> None:
        """Removes the oldest segments if they are too many or too old. Never the one that is written to."""
        settings = self.settings
        if len(self.segments.segments) < 2 or (settings.max_length_bytes < 0 and settings.max_age_ms < 0):
            return
        oldest_ms = self.mover.now_ms() - settings.max_age_ms if settings.max_age_ms >= 0 else i64(-1)
        gone = self.segments.drop(settings.max_length_bytes, oldest_ms, self.pending_bytes)
        if gone:
            self.first_timestamp_ms = self.segments.first_timestamp()
            self.mover.remove(self, gone)
            if self.on_committed is not None:
                self.on_committed.committed()

    def tick(self) -> None:
        """About once a second: an idle stream leaves memory and journal; readers that met trouble try again."""
        for reader in list(self._readers):
            if reader.is_closed:
                del self._readers[reader]
            else:
                reader.retry()
        self._ticks += 1
        if self._pending() > 0 and (not self._is_active or self._ticks >= MOVE_TICKS):
            self._move()
        if not self._is_active and self.memory.stored > 0:
            self._leave_memory(0)
        self._is_active = False
        self.evaluate_retention()

    # -- start and end --------------------------------------------------------------------------------------------

    def recovered(self, next_offset: i64, chunks: list[StreamChunk]) -> None:
        """The table of segments is as a start has found it; the journal has `chunks` behind it, in synced files.

        Where offsets are missing, damage has taken them.
        """
        memory = self.memory
        self.next_offset = next_offset
        self.segments.end_offset = chunks[0].first_offset if chunks else next_offset
        memory.committed = next_offset
        memory.first_offset = next_offset
        for chunk in chunks:
            memory.add(chunk)
            self.pending_bytes += len(chunk.data)
        memory.committed = next_offset
        if self.segments.segments:
            self.first_timestamp_ms = self.segments.first_timestamp()
            self.last_timestamp_ms = self.segments.segments[-1].last_timestamp_ms
        if chunks:
            self.last_timestamp_ms = chunks[-1].timestamp_ms
            if self.first_timestamp_ms < 0:
                self.first_timestamp_ms = chunks[0].timestamp_ms

    def terms(self) -> list[int]:
        """The stream's part of the recovery terms: the offset behind what is in segments, and the next one."""
        return [int(self.segments.end_offset), int(self.next_offset)]

    def delete(self) -> None:
        """The stream is gone, and its folder goes."""
        self.deleted = True
        for reader in list(self._readers):
            reader.close()
        self._readers = {}
        self.memory = StreamMemory()
        self.journal.users.pop(self.queue_id, None)
        self.mover.forget(self)

    def check(self) -> None:
        """Compares what there is with the top of this file. Raises AssertionError."""
        memory, segments = self.memory, self.segments
        waiting: i64 = 0
        for chunks in [*self._writing, self._again]:
            for chunk in chunks:
                waiting += chunk.count
        assert memory.committed + waiting + self._filling.count == self.next_offset, "an offset is given twice, or left out"
        assert 0 <= memory.stored <= memory.stored + self.moving <= len(memory.chunks)
        assert memory.first_offset == (memory.chunks[0].first_offset if memory.chunks else memory.committed)
        behind = memory.first_offset
        for chunk in memory.chunks:
            assert chunk.first_offset >= behind, "chunks overlap, or are out of order"
            behind = chunk.end_offset
        assert behind <= memory.committed
        if self._pending() > 0:
            assert segments.end_offset == memory.chunks[memory.stored].first_offset, "between segments and memory"
        else:
            assert segments.end_offset == memory.committed
        segments.check()
