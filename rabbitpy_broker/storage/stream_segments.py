"""The segments of one stream: a small table, however long the stream is, and what is asked of it.

A segment holds the offsets from its name up to the name of the next; the last one, to which chunks are appended, up to
`end_offset`. What the table does not have is found in the segments' indexes, on the disk.

What must stay true: `first_offset` grows only, and so does `end_offset`; nothing is read of a segment behind `size`, or of its
index behind `index_size`, where a thread may be writing.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from rabbitpy_broker.storage.damage import DamageLog
from rabbitpy_broker.storage.files import Disk
from rabbitpy_broker.storage.records import FormatError
from rabbitpy_broker.storage.segment import Damage
from rabbitpy_broker.storage.stream_files import IndexRecord, StreamIndex, segment_stem
from rabbitpy_broker.storage.sync import Threads

UNKNOWN: Final[i64] = -1


class StreamSizes:
    """Bytes, but for `move_chunks`. A chunk that is written has about `chunk_bytes`. Pending chunks are moved when there are
    `move_bytes` or `move_chunks` of them, `batch_bytes` at once; `kept_bytes` of stored ones stay in memory. One read has
    `read_bytes` of chunks that are smaller than `small_bytes`, or one that is not.
    """

    def __init__(self) -> None:
        self.chunk_bytes: i64 = 1_048_576
        self.move_bytes: i64 = 8_388_608
        self.move_chunks: i64 = 4_096
        self.batch_bytes: i64 = 67_108_864
        self.kept_bytes: i64 = 4_194_304
        self.read_bytes: i64 = 1_048_576
        self.small_bytes: i64 = 262_144


class StreamSegment:
    """One segment. `last_timestamp_ms` is UNKNOWN until it is asked for."""

    def __init__(self, first_offset: i64, size: i64) -> None:
        self.first_offset = first_offset
        self.size = size
        self.index_size: i64 = UNKNOWN  # all of the file
        self.last_timestamp_ms: i64 = UNKNOWN
        self.is_damaged = False
        self.has_bad_index = False  # it is made again when nothing is appended any more


class StreamSegments:
    """The segments in `path`, the oldest first. `bytes` are those of all files of segments, without indexes."""

    def __init__(
        self, disk: Disk, threads: Threads, path: str, queue_id: int, damage: DamageLog, sizes: StreamSizes
    ) -> None:
        self.disk = disk
        self.threads = threads
        self.path = path
        self.queue_id = queue_id
        self.damage = damage
        self.sizes = sizes
        self.segments: list[StreamSegment] = []
        self.first_offset: i64 = 0  # of the stream
        self.end_offset: i64 = 0  # behind the last chunk that is stored
        self.last_chunk: i64 = UNKNOWN  # the first offset of the last chunk that is stored
        self.bytes: i64 = 0
        self.reads: i64 = 0
        self.strays: list[str] = []  # stems of files that a failed batch has made, and that are in no table

    def stem(self, segment: StreamSegment) -> str:
        """The path of its files without their endings."""
        return segment_stem(self.path, segment.first_offset)

    def number_of(self, offset: i64) -> i64:
        """The number in the table of the segment that has this offset: the last that does not begin behind it, or the first."""
        low: i64 = 0
        high: i64 = len(self.segments)
        while low < high:
            middle = (low + high) // 2
            if self.segments[middle].first_offset <= offset:
                low = middle + 1
            else:
                high = middle
        return max(0, low - 1)

    def end_of(self, number: i64) -> i64:
        """The offset behind the segment of this number."""
        if number + 1 < len(self.segments):
            return self.segments[number + 1].first_offset
        return self.end_offset

    def take(self, written: list[StreamSegment], end_offset: i64, last_chunk: i64) -> None:
        """The last segment has become longer, if it is the first of these, and the others are new; all are synced."""
        for segment in written:
            if self.segments and self.segments[-1].first_offset == segment.first_offset:
                self.bytes -= self.segments[-1].size
                self.segments[-1] = segment
            else:
                self.segments.append(segment)
            self.bytes += segment.size
        self.end_offset = end_offset
        self.last_chunk = last_chunk

    # -- the index ------------------------------------------------------------------------------------------------

    def last_timestamp(self, segment: StreamSegment) -> i64:
        """Of its last chunk; UNKNOWN when that cannot be read now."""
        if segment.last_timestamp_ms == UNKNOWN:
            record = self._record(segment, UNKNOWN, UNKNOWN)
            if record is not None:
                segment.last_timestamp_ms = record.timestamp_ms
        return segment.last_timestamp_ms

    def first_timestamp(self) -> i64:
        """Of the first chunk that is stored; UNKNOWN when that cannot be read now, or there is none."""
        if not self.segments:
            return UNKNOWN
        record = self._record(self.segments[0], 0, UNKNOWN)
        return record.timestamp_ms if record is not None else UNKNOWN

    def offset_at(self, timestamp_ms: i64) -> i64:
        """The first offset of the first chunk whose timestamp is not below; UNKNOWN when all are. Where an index cannot be
        read an earlier one.
        """
        low: i64 = 0
        high: i64 = len(self.segments)
        while low < high:
            middle = (low + high) // 2
            last = self.last_timestamp(self.segments[middle])
            if last != UNKNOWN and last < timestamp_ms:
                low = middle + 1
            else:
                high = middle
        if low == len(self.segments):
            return UNKNOWN
        segment = self.segments[low]
        record = self._record(segment, UNKNOWN, timestamp_ms)
        return record.first_offset if record is not None else segment.first_offset

    def _record(self, segment: StreamSegment, number: i64, timestamp_ms: i64) -> IndexRecord | None:
        """The record of that number, or else the first that is not older, or else the last. None when it cannot be read."""
        self.reads += 1
        try:
            file = self.disk.open(self.stem(segment) + ".index")
            try:
                size: i64 = file.size() if segment.index_size == UNKNOWN else segment.index_size
                index = StreamIndex(file, self.queue_id, segment.first_offset, size)
                if number == UNKNOWN:
                    number = index.count - 1 if timestamp_ms == UNKNOWN else index.older(timestamp_ms)
                return index.record(number) if 0 <= number < index.count else None
            finally:
                file.close()
        except FileNotFoundError as error:
            self.index_is_bad(segment, str(error))
        except FormatError as error:
            self.index_is_bad(segment, str(error))
        except OSError as error:
            self.damage.queue_unreadable(self.path, str(error))
        return None

    def _as_it_is(self, segment: StreamSegment) -> StreamSegment:
        """What the table has of it now, since it may have become longer meanwhile."""
        if not self.segments:
            return segment
        now = self.segments[self.number_of(segment.first_offset)]
        return now if now.first_offset == segment.first_offset else segment

    # -- damage ---------------------------------------------------------------------------------------------------

    def index_is_bad(self, segment: StreamSegment, reason: str) -> None:
        """It is made again when the segment is not written to any more."""
        segment = self._as_it_is(segment)
        if not segment.has_bad_index:
            segment.has_bad_index = True
            self.damage.log.warning("stream index is not used", path=self.stem(segment) + ".index", error=reason)

    def is_damaged(self, segment: StreamSegment, damage: list[Damage]) -> None:
        """Some of its chunks cannot be read; it is told once."""
        segment = self._as_it_is(segment)
        if not segment.is_damaged:
            segment.is_damaged = True
            self.damage.segment_damaged(self.queue_id, self.stem(segment) + ".stream", damage, 0)

    # -- what goes ------------------------------------------------------------------------------------------------

    def drop(self, max_bytes: i64, oldest_ms: i64, pending: i64) -> list[StreamSegment]:
        """Takes the oldest segments out of the table, and returns them: while there are more than `max_bytes` in all, with
        those that are pending, and while their messages are older than `oldest_ms` (-1: any number; any age). Never the last.
        """
        gone: list[StreamSegment] = []
        while len(self.segments) > 1:
            oldest = self.segments[0]
            if max_bytes < 0 or self.bytes + pending <= max_bytes:
                if oldest_ms < 0:
                    break
                last = self.last_timestamp(oldest)
                if last == UNKNOWN or last >= oldest_ms:
                    break
            self.segments.pop(0)
            self.bytes -= oldest.size
            self.first_offset = self.segments[0].first_offset
            gone.append(oldest)
        return gone

    def check(self) -> None:
        """Compares what there is with the top of this file. Raises AssertionError."""
        firsts = [segment.first_offset for segment in self.segments]
        assert firsts == sorted(set(firsts)), "segments are out of order, or one is there twice"
        assert not firsts or (firsts[0] == self.first_offset and firsts[-1] <= self.end_offset)
        total: i64 = 0
        for segment in self.segments:
            total += segment.size
        assert self.bytes == total, "bytes of segments"
