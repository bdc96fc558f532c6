"""Reading a stream: one reader for each consumer, with the chunk it is at and one that was read ahead.

    chunk(offset)   in memory, or read ahead: here it is, and the next one is read meanwhile
                    else None: a thread reads it, and the host is told when it is there

Chunks in memory are shared by all readers. What is on disk is read in threads, a chunk at a time, small ones together up
to a MiB, each with the segment opened anew: ten thousand consumers hold no file open.

What must stay true: a reader gets each offset at most once from a call to the next with a higher one, and never one at or
above `committed`; damaged chunks are left out, wrong data are never given.
"""

from __future__ import annotations

from mypy_extensions import i64, mypyc_attr

from rabbitpy_broker.storage.files import Disk, DiskFile
from rabbitpy_broker.storage.records import FormatError
from rabbitpy_broker.storage.segment import Damage
from rabbitpy_broker.storage.stream_chunk import StreamChunk, StreamFilter
from rabbitpy_broker.storage.stream_files import (
    CHUNK_HEAD,
    HEADER_SIZE,
    ChunkHead,
    StreamIndex,
    Walk,
    read_chunk,
    read_chunk_head,
)
from rabbitpy_broker.storage.stream_segments import UNKNOWN, StreamSegment, StreamSegments


@mypyc_attr(allow_interpreted_subclasses=True)
class ReaderHost:
    """Whoever reads: a consumer."""

    def readable(self) -> None:
        """The reader has come on, and may have a chunk now. Called in the loop."""
        raise NotImplementedError


class StreamMemory:
    """The chunks of a stream that are in memory, in order, up to `committed`; the first `stored` are in segments as well."""

    def __init__(self) -> None:
        self.chunks: list[StreamChunk] = []
        self.stored: i64 = 0
        self.committed: i64 = 0
        self.first_offset: i64 = 0  # `committed` when there are none

    def add(self, chunk: StreamChunk) -> None:
        """The next chunk; an epoch that had it is settled."""
        if not self.chunks:
            self.first_offset = chunk.first_offset
        self.chunks.append(chunk)
        self.committed = chunk.end_offset

    def drop(self, count: i64) -> None:
        """The first `count`, which are stored, leave memory."""
        del self.chunks[:count]
        self.stored -= count
        self.first_offset = self.chunks[0].first_offset if self.chunks else self.committed

    def find(self, offset: i64) -> i64:
        """The number of the chunk with this offset, or the next one."""
        chunks = self.chunks
        low: i64 = 0
        high: i64 = len(chunks)
        while low < high:
            middle = (low + high) // 2
            if chunks[middle].end_offset <= offset:
                low = middle + 1
            else:
                high = middle
        return low


class ChunkRead:
    """The job of a thread: the chunk with offset `asked`, or the next one of its segment that may be wanted.

    `chunk` is None when the segment has none; then and otherwise everything from `asked` up to `next_offset` that is not in
    it is not wanted or damaged. `next_position` is where the next chunk begins.
    """

    def __init__(self, segments: StreamSegments, number: i64, asked: i64, position: i64, wanted: StreamFilter | None) -> None:
        segment = segments.segments[number]
        self.segment = segment
        self.asked = asked
        self.chunk: StreamChunk | None = None
        self.next_offset = asked
        self.next_position: i64 = UNKNOWN
        self.damage: list[Damage] = []
        self.index_fault = ""
        self._disk: Disk = segments.disk
        self._queue_id = segments.queue_id
        self._stem = segments.stem(segment)
        self._size = segment.size
        self._index_size = segment.index_size
        self._end_offset = segments.end_of(number)
        self._position = position
        self._wanted = wanted
        self._sizes = segments.sizes
        self._parts: list[StreamChunk] = []

    def run(self) -> None:
        """Raises OSError."""
        file = self._disk.open(f"{self._stem}.stream")
        try:
            if self._position == UNKNOWN:
                self._position = self._locate(file, self.asked)
            while self._read_some(file):
                pass
        finally:
            file.close()
        self.next_position = self._position
        if self._parts:
            self.chunk = _joined(self._parts)
            self.next_offset = self.chunk.end_offset
        elif self._position >= self._size:
            self.next_offset = self._end_offset

    def _locate(self, file: DiskFile, offset: i64) -> i64:
        """Where the chunk with this offset begins, or the one in front of it."""
        try:
            return self._locate_in_index(offset)
        except FileNotFoundError as error:
            self.index_fault = str(error)
        except FormatError as error:
            self.index_fault = str(error)
        walk = Walk(file, self._size, HEADER_SIZE)
        while True:
            head = walk.next()
            if head is None or head.end_offset > offset:
                return walk.at

    def _locate_in_index(self, offset: i64) -> i64:
        file = self._disk.open(f"{self._stem}.index")
        try:
            index = self._open_index(file)
            if index.count == 0:
                raise FormatError("an index without records")
            if index.record(index.count - 1).end_position != self._size:
                raise FormatError("an index that ends before its segment")
            number = index.below(offset + 1)
            return index.record(max(0, number - 1)).position
        finally:
            file.close()

    def _open_index(self, file: DiskFile) -> StreamIndex:
        size: i64 = file.size() if self._index_size == UNKNOWN else self._index_size
        return StreamIndex(file, self._queue_id, self.segment.first_offset, size)

    def _after(self, position: i64) -> i64:
        """Where the next chunk behind a damaged one begins: as the index says, which has it if anything has."""
        try:
            file = self._disk.open(f"{self._stem}.index")
            try:
                record = self._open_index(file).behind(position)
                return record.position if record is not None else self._size
            finally:
                file.close()
        except FileNotFoundError as error:
            self.index_fault = str(error)
        except FormatError as error:
            self.index_fault = str(error)
        return self._size

    def _read_some(self, file: DiskFile) -> bool:
        """Goes on by a chunk, or several small ones; False when there is enough, or nothing more."""
        position = self._position
        if position >= self._size:
            return False
        first = file.read_at(int(position), int(CHUNK_HEAD))
        head = read_chunk_head(first, 0)
        if head is None or position + head.size > self._size:
            return self._pass_damage(position, "unreadable")
        if head.size < self._sizes.small_bytes:
            return self._read_window(file)
        if self._parts:
            return False
        if not self._is_wanted(file, head, position):
            self._position = position + head.size
            return True
        chunk = read_chunk(file, position, head)
        if chunk is None:
            return self._pass_damage(position, "its checksum is wrong")
        self._position = position + head.size
        self._parts.append(chunk)
        return False

    def _read_window(self, file: DiskFile) -> bool:
        """Small chunks, up to `read_bytes` of them."""
        start = self._position
        window = file.read_at(int(start), int(min(self._sizes.read_bytes, self._size - start)))
        pos: i64 = 0
        end: i64 = len(window)
        while pos + CHUNK_HEAD <= end:
            head = read_chunk_head(window, pos)
            if head is None:
                break  # it is looked at by itself, as is what is cut off here
            if pos + head.size > end:
                break
            bits = window[pos + CHUNK_HEAD : pos + CHUNK_HEAD + head.filter_size]
            wanted = head.end_offset > self.asked and (self._wanted is None or self._wanted.may_match(bits))
            if wanted:
                if self._parts and self._parts[-1].end_offset != head.first_offset:
                    return False
                chunk = _small_chunk(window, pos, head, bits)
                if chunk is None:
                    return self._pass_damage(start + pos, "its checksum is wrong")
                self._parts.append(chunk)
            elif self._parts:
                return False
            pos += head.size
            self._position = start + pos
        return not self._parts

    def _is_wanted(self, file: DiskFile, head: ChunkHead, position: i64) -> bool:
        if head.end_offset <= self.asked:
            return False
        if self._wanted is None:
            return True
        return self._wanted.may_match(file.read_at(int(position + CHUNK_HEAD), int(head.filter_size)))

    def _pass_damage(self, position: i64, reason: str) -> bool:
        """On behind what cannot be read, unless there is something to give before."""
        if self._parts:
            return False
        behind = self._after(position)
        self.damage.append(Damage(f"{self._stem}.stream", int(position), int(behind - position), reason))
        self._position = behind
        return True


def _small_chunk(window: bytes, pos: i64, head: ChunkHead, bits: bytes) -> StreamChunk | None:
    """None when its checksum is wrong."""
    at = pos + CHUNK_HEAD + head.filter_size
    data = window[at : at + head.data_size]
    if not head.fits(bits, data):
        return None
    return StreamChunk(data, head.first_offset, head.count, head.timestamp_ms, bits)


def _joined(parts: list[StreamChunk]) -> StreamChunk:
    """Neighbours as one chunk; its filter is not needed any more."""
    if len(parts) == 1:
        return parts[0]
    first, last = parts[0], parts[-1]
    data = b"".join([part.data for part in parts])
    return StreamChunk(data, first.first_offset, last.end_offset - first.first_offset, last.timestamp_ms, b"")


class StreamReader:
    """One consumer's way through a stream. `reading`: a thread is at work for it. `error`: why the disk gave nothing, until
    it is tried again at the next tick of the stream.
    """

    def __init__(self, memory: StreamMemory, segments: StreamSegments, host: ReaderHost) -> None:
        self.is_closed = False
        self.reading = False
        self.error = ""
        self._memory = memory
        self._segments = segments
        self._host = host
        self._wanted: StreamFilter | None = None
        self._is_waited_for = False
        self._current: StreamChunk | None = None
        self._ahead: StreamChunk | None = None
        self._ahead_from: i64 = 0  # what was asked for: nothing between this and `_ahead` is wanted
        self._skip_from: i64 = 0  # nothing of these is wanted
        self._skip_to: i64 = 0
        self._next_segment: StreamSegment | None = None  # where the last read ended, and at which offset
        self._next_position: i64 = 0
        self._next_offset: i64 = 0

    def set_filter(self, values: list[bytes], match_unfiltered: bool) -> None:
        """Chunks of which no message can match are left out from now on. Messages of other chunks are not looked at."""
        self._wanted = StreamFilter(values, match_unfiltered) if values else None
        self._ahead = None
        self._skip_to = self._skip_from
        self._current = None

    def chunk(self, offset: i64) -> StreamChunk | None:
        """The chunk that has this offset or, when that is gone, damaged or not wanted, the next one: its `first_offset` is
        higher then.

        None: there is none yet, and `StreamReaderHost.committed` tells when there may be; or it is being read (`reading`),
        and `ReaderHost.readable` tells when there may be.
        """
        current = self._current
        if current is not None and current.first_offset <= offset < current.end_offset:
            return current
        memory = self._memory
        offset = max(offset, self._segments.first_offset)
        if self._skip_from <= offset < self._skip_to:
            offset = self._skip_to
        ahead = self._ahead
        if ahead is not None and self._ahead_from <= offset < ahead.end_offset:
            self._current = ahead
            self._ahead = None
            self._read_ahead(ahead.end_offset)
            return ahead
        if offset >= memory.committed:
            return None
        if offset >= memory.first_offset:
            return self._chunk_in_memory(offset)
        self._is_waited_for = True
        if not self.reading and not self.error:
            self._read(offset)
        return None

    def close(self) -> None:
        """It is not used any more."""
        self.is_closed = True
        self._current = None
        self._ahead = None

    def retry(self) -> None:
        """About once a second: another try after the disk gave nothing."""
        if self.error and not self.is_closed:
            self.error = ""
            self._host.readable()

    def _chunk_in_memory(self, offset: i64) -> StreamChunk | None:
        memory = self._memory
        wanted = self._wanted
        at = memory.find(offset)
        count: i64 = len(memory.chunks)
        while at < count:
            chunk = memory.chunks[at]
            if wanted is None or wanted.may_match(chunk.filter_bits):
                self._current = chunk
                return chunk
            at += 1
        self._skipped(offset, memory.committed)
        return None

    def _skipped(self, offset: i64, end: i64) -> None:
        if offset != self._skip_to:
            self._skip_from = offset
        self._skip_to = end

    def _read_ahead(self, offset: i64) -> None:
        if not self.reading and not self.error and offset < self._memory.first_offset:
            self._read(offset)

    def _read(self, offset: i64) -> None:
        segments = self._segments
        number = segments.number_of(offset)
        segment = segments.segments[number]
        position: i64 = UNKNOWN
        if segment is self._next_segment and offset == self._next_offset:
            position = self._next_position
        elif offset == segment.first_offset:
            position = HEADER_SIZE
        self.reading = True
        segments.reads += 1
        job = ChunkRead(segments, number, offset, position, self._wanted)
        segments.threads.run(job.run, ReadDone(self, job).done)

    def has_read(self, job: ChunkRead, error: Exception | None) -> None:
        """The thread is back."""
        self.reading = False
        segments = self._segments
        segment = job.segment
        is_there = segment.first_offset >= segments.first_offset
        if job.index_fault and is_there:
            segments.index_is_bad(segment, job.index_fault)
        if job.damage and is_there:
            segments.is_damaged(segment, job.damage)
        if self.is_closed:
            return
        if isinstance(error, FileNotFoundError):
            self._is_missing(job, is_there)
        elif error is not None:
            self.error = str(error)
            segments.damage.queue_unreadable(segments.path, self.error)
            return
        else:
            self._next_segment = segment
            self._next_position = job.next_position
            self._next_offset = job.next_offset
            if job.chunk is not None:
                self._ahead = job.chunk
                self._ahead_from = job.asked
            else:
                self._skipped(job.asked, job.next_offset)
                if job.next_offset < self._memory.first_offset:
                    self._read(max(job.next_offset, segments.first_offset))
                    return
        if self._is_waited_for:
            self._is_waited_for = False
            self._host.readable()

    def _is_missing(self, job: ChunkRead, is_there: bool) -> None:
        """Retention has removed the segment meanwhile, or somebody else has."""
        if is_there:
            segments = self._segments
            missing = Damage(f"{segments.stem(job.segment)}.stream", 0, -1, "it is missing")
            segments.is_damaged(job.segment, [missing])
            self._skipped(job.asked, segments.end_of(segments.number_of(job.asked)))


class ReadDone:
    """What a read is for."""

    def __init__(self, reader: StreamReader, job: ChunkRead) -> None:
        self._reader = reader
        self._job = job

    def done(self, error: Exception | None) -> None:
        """The thread is back."""
        self._reader.has_read(self._job, error)
