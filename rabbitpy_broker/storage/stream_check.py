"""Looking at a stream that no broker uses: every chunk is read, and held against its index and its neighbours.

What counts is what StreamScan says that the next start has. What a killed broker or a power cut leaves besides is a note: the
end of a segment to which a move was writing, files that a move has made. What is missing, unreadable or makes no sense is
damage, an index that does not say what its segment has among it, although a start makes it again.

What must stay true: nothing is ever written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from mypy_extensions import i64

from rabbitpy_broker.message import Message
from rabbitpy_broker.storage.files import Disk, DiskFile
from rabbitpy_broker.storage.finding import Finding
from rabbitpy_broker.storage.records import FormatError
from rabbitpy_broker.storage.stream_chunk import StreamChunk, check_entries
from rabbitpy_broker.storage.stream_files import (
    HEADER_SIZE,
    IndexRecord,
    StreamIndex,
    Walk,
    header_fault,
    read_chunk,
    segment_stem,
)
from rabbitpy_broker.storage.stream_scan import StreamScan
from rabbitpy_broker.storage.stream_segments import UNKNOWN, StreamSegment

BEHIND_ALL: Final[i64] = 1 << 62


class StreamMessage:
    """A message at its offset; `timestamp_ms` is that of its chunk."""

    def __init__(self, offset: int, timestamp_ms: int, message: Message) -> None:
        self.offset = offset
        self.timestamp_ms = timestamp_ms
        self.message = message


class StreamCheck:
    """Of the stream that `scan` has found. `findings` is whole when `chunks` is exhausted. Reading raises OSError.

    `progress` is told of bytes that were read, time and again.
    """

    def __init__(self, disk: Disk, scan: StreamScan, progress: Callable[[int], None]) -> None:
        self.findings: list[Finding] = [*scan.faults, *scan.damage]
        self._disk = disk
        self._scan = scan
        self._progress = progress
        self._next_offset: i64 = scan.first_offset

    def chunks(self) -> Iterator[StreamChunk]:
        """Every chunk that the next start has, in order."""
        scan = self._scan
        for path in scan.files.strange:
            self._damage(path, -1, "no file of a stream has such a name")
        for stem in scan.strays:
            self._note(f"{stem}.stream", -1, "made by a move that was cut short; the next move removes it")
        for number, segment in enumerate(scan.segments):
            if number > 0 and segment.first_offset > self._next_offset:
                self._is_missing(scan.files.path, segment.first_offset)
            yield from self._segment(segment)
        if scan.cut and scan.segments:
            last = scan.segments[-1]
            text = f"{scan.cut} bytes of a move that was cut short"
            self._note(f"{segment_stem(scan.files.path, last.first_offset)}.stream", last.size, text)
        for chunk in scan.load():
            self._progress(len(chunk.data))
            self._check(chunk, "the journal", -1)
            yield chunk

    def messages(self) -> Iterator[StreamMessage]:
        """Every message of them."""
        for chunk in self.chunks():
            offset, pos = int(chunk.first_offset), 0
            while pos < len(chunk.data):
                end = pos + 4 + int.from_bytes(chunk.data[pos : pos + 4], "big")
                yield StreamMessage(offset, int(chunk.timestamp_ms), entry_message(chunk.data, pos, end))
                offset, pos = offset + 1, end

    def _damage(self, path: str, offset: i64, text: str) -> None:
        self.findings.append(Finding(path, offset, text, True))

    def _note(self, path: str, offset: i64, text: str) -> None:
        self.findings.append(Finding(path, offset, text, False))

    def _is_missing(self, path: str, end: i64) -> None:
        self._damage(path, -1, f"the messages with offsets {self._next_offset} to {end - 1} are missing")
        self._next_offset = end

    # -- a segment ------------------------------------------------------------------------------------------------

    def _segment(self, segment: StreamSegment) -> Iterator[StreamChunk]:
        if segment.size == 0:
            return  # it is begun again
        scan = self._scan
        stem = segment_stem(scan.files.path, segment.first_offset)
        path = f"{stem}.stream"
        index = IndexCheck(self._disk, f"{stem}.index", scan.queue_id, segment)
        file = self._disk.open(path)
        try:
            fault = header_fault(file.read_at(0, int(HEADER_SIZE)), b"RPST", scan.queue_id, segment.first_offset)
            if fault and not segment.is_damaged:
                self._damage(path, 0, fault)
            yield from self._walk(file, path, segment, index)
        finally:
            file.close()
        self.findings.extend(index.findings)

    def _walk(self, file: DiskFile, path: str, segment: StreamSegment, index: IndexCheck) -> Iterator[StreamChunk]:
        walk = Walk(file, segment.size, HEADER_SIZE)
        while walk.position < segment.size:
            head = walk.next()
            if head is None:
                behind = min(index.behind(walk.position), segment.size)
                if not segment.is_damaged:
                    self._damage(path, walk.position, f"{behind - walk.position} unreadable bytes")
                walk.position = behind
                continue
            self._progress(int(head.size))
            index.has(head.first_offset, head.timestamp_ms, walk.at, head.size, head.count)
            chunk = read_chunk(file, walk.at, head)
            if chunk is None:
                self._damage(path, walk.at, f"{head.size} unreadable bytes: its checksum is wrong")
                self._next_offset = max(self._next_offset, head.end_offset)
                continue
            if self._check(chunk, path, walk.at):
                yield chunk

    def _check(self, chunk: StreamChunk, path: str, position: i64) -> bool:
        """Whether its messages can be read."""
        if chunk.first_offset != self._next_offset and position >= 0:
            if chunk.first_offset > self._next_offset:
                self._is_missing(path, chunk.first_offset)
            else:
                self._damage(path, position, f"offset {chunk.first_offset} comes behind {self._next_offset - 1}")
        self._next_offset = max(self._next_offset, chunk.end_offset)
        try:
            check_entries(chunk.data, chunk.count)
        except FormatError as error:
            self._damage(path, position, f"offset {chunk.first_offset}: {error}")
            return False
        return True


class IndexCheck:
    """Holds an index against the chunks of its segment, which it is told one after the other."""

    def __init__(self, disk: Disk, path: str, queue_id: int, segment: StreamSegment) -> None:
        self.findings: list[Finding] = []
        self._path = path
        self._records: list[IndexRecord] = []
        self._at = 0
        try:
            self._read(disk, queue_id, segment)
        except FileNotFoundError:
            self._damage("it is missing; the next move makes it again")
        except FormatError as error:
            self._damage(f"{error}; the next move makes it again")

    def _read(self, disk: Disk, queue_id: int, segment: StreamSegment) -> None:
        file = disk.open(self._path)
        try:
            size: i64 = file.size() if segment.index_size == UNKNOWN else segment.index_size
            index = StreamIndex(file, queue_id, segment.first_offset, size)
            for number in range(index.count):
                self._records.append(index.record(number))
        finally:
            file.close()

    def _damage(self, text: str) -> None:
        if not self.findings:  # one says it all
            self.findings.append(Finding(self._path, -1, text, True))

    def has(self, first_offset: i64, timestamp_ms: i64, position: i64, size: i64, count: i64) -> None:
        """The next chunk of the segment."""
        while self._at < len(self._records) and self._records[self._at].position < position:
            self._at += 1  # of a chunk that cannot be read
        if self._at == len(self._records):
            self._damage(f"it does not have the chunk at {position}")
            return
        one = self._records[self._at]
        self._at += 1
        found = (one.first_offset, one.timestamp_ms, one.position, one.size, one.count)
        if found != (first_offset, timestamp_ms, position, size, count):
            self._damage(f"it does not say what the chunk at {position} is")

    def behind(self, position: i64) -> i64:
        """Where the chunk behind an unreadable one at `position` begins, or the segment ends."""
        ends: i64 = position
        for one in self._records:
            if one.position > position:
                return one.position
            ends = max(ends, one.end_position)
        return ends if ends > position else BEHIND_ALL


def entry_message(data: bytes, pos: int, end: int) -> Message:
    """The message of the entry at `pos`, which ends at `end`."""
    at = pos + 6 + int.from_bytes(data[pos + 4 : pos + 6], "big")
    content = data[at:end]
    return Message(data[pos + 6 : at], content, 5 + int.from_bytes(content[:4], "big"), True)
