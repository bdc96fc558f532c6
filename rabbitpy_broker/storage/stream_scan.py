"""One stream as the disk has it: its segments, and behind them what the journal has. Nothing is changed: a start applies what
is found here, a check prints it. How much is read does not depend on how long the stream is: names and sizes of files, a few
records of the last segment's index, and what the journal has.

The journal has, without a gap, everything from some offset on that may not be in segments. What segments have from there on
was written by a move of which nobody knows whether it was synced, and of which a failed sync may have left what only the
kernel knows: so it does not count, and is moved again. A chunk that begins before that offset was synced: the journal has let
go of part of it. After a clean stop the terms tell the offset, and the journal has nothing else that counts.

The first segment's name is the stream's first offset: what the journal has below was removed by retention. So this file is
never removed, not even when nothing in it counts: it is begun again.

A start leaves everything as it is: the next move cuts what does not count, and removes `strays`, before anything new counts.

What must stay true: the offsets that are found have no gap, unless damage has made one; `next_offset` is above each of them.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from rabbitpy_broker.storage.files import Disk, DiskFile
from rabbitpy_broker.storage.finding import Finding
from rabbitpy_broker.storage.journal_scan import ReplayedChunk
from rabbitpy_broker.storage.records import FormatError
from rabbitpy_broker.storage.stream_chunk import StreamChunk
from rabbitpy_broker.storage.stream_files import (
    CHUNK_HEAD,
    HEADER_SIZE,
    RECORD_SIZE,
    IndexRecord,
    StreamIndex,
    Walk,
    header_fault,
    read_chunk_head,
    segment_stem,
)
from rabbitpy_broker.storage.stream_segments import UNKNOWN, StreamSegment

BEHIND_ALL: Final = 1 << 62
UNSOUND_MAX: Final[i64] = 256


class StreamFiles:
    """The files in a stream's folder: the first offsets of its segments, in order, and those of indexes; other names."""

    def __init__(self, path: str, names: list[str]) -> None:
        self.path = path
        self.firsts: list[int] = []
        self.indexes: set[int] = set()
        self.strange: list[str] = []
        for name in names:
            stem, _, kind = name.partition(".")
            if len(stem) != 20 or not stem.isdigit() or kind not in ("stream", "index"):
                self.strange.append(f"{path}/{name}")
            elif kind == "stream":
                self.firsts.append(int(stem))
            else:
                self.indexes.add(int(stem))


class StreamScan:
    """See the top of this file. `terms` are StreamLog.terms of a clean stop, None after a crash.

    `segments` and `chunks`, which are the journal's, are what the next start has, `strays` the stems of files that do not count
    at all, `cut` how much the last segment's file has behind what counts. `faults`: what the terms say, and is not there;
    `damage`: what was lost. Reading raises OSError.
    """

    def __init__(
        self, disk: Disk, queue_id: int, files: StreamFiles, replayed: list[ReplayedChunk], terms: list[int] | None
    ) -> None:
        self.files = files
        self.queue_id = queue_id
        self.segments: list[StreamSegment] = []
        self.chunks: list[ReplayedChunk] = []
        self.strays: list[str] = []
        self.cut = 0
        self.faults: list[Finding] = []
        self.damage: list[Finding] = []
        self.first_offset = files.firsts[0] if files.firsts else 0
        self.end_offset = self.first_offset  # of what counts in segments
        self.next_offset = self.first_offset
        self.last_chunk: i64 = UNKNOWN
        self._disk = disk
        stored = terms[0] if terms is not None else -1
        self._take_journal(replayed, stored)
        border = stored if terms is not None else self.chunks[0].first_offset if self.chunks else BEHIND_ALL
        self._take_segments(max(border, self.first_offset))
        self._join()
        if terms is not None:
            self._compare(terms[1])
        if not self.segments:
            self.first_offset = self.chunks[0].first_offset if self.chunks else self.next_offset

    def _take_journal(self, replayed: list[ReplayedChunk], stored: int) -> None:
        """What the journal has twice, because an epoch has failed, counts once."""
        end = max(stored, self.first_offset)
        for chunk in sorted(replayed, key=_first_offset):
            if chunk.end_offset > end:
                self.chunks.append(chunk)
                end = chunk.end_offset

    def _stem(self, first_offset: i64) -> str:
        return segment_stem(self.files.path, first_offset)

    # -- segments -------------------------------------------------------------------------------------------------

    def _take_segments(self, border: int) -> None:
        """Chunks that begin below the border count."""
        firsts, indexes = self.files.firsts, self.files.indexes
        kept = [first for first in firsts if first < border] or firsts[:1]
        self.strays = [self._stem(first) for first in sorted((set(firsts) | indexes) - set(kept))]
        for first in kept:
            segment = StreamSegment(first, self._disk.size(f"{self._stem(first)}.stream"))
            segment.has_bad_index = first not in indexes
            self.segments.append(segment)
        if kept:
            self._look_at_last(self.segments[-1], border)

    def _look_at_last(self, segment: StreamSegment, border: int) -> None:
        """Finds where the last segment's chunks below the border end."""
        self.end_offset = int(segment.first_offset)
        if segment.first_offset >= border or segment.size <= HEADER_SIZE:
            self._counts(segment, 0, 0)  # it is begun again
            return
        stem = self._stem(segment.first_offset)
        file = self._disk.open(f"{stem}.stream")
        try:
            fault = header_fault(file.read_at(0, int(HEADER_SIZE)), b"RPST", self.queue_id, segment.first_offset)
            if fault:
                self._is_damaged(segment, 0, fault)
            last, index_size = self._last_in_index(file, segment, border)
            self._walk(file, segment, border, last, index_size)
        finally:
            file.close()

    def _last_in_index(self, file: DiskFile, segment: StreamSegment, border: int) -> tuple[IndexRecord | None, i64]:
        """The last record of a chunk below the border that is there, and the size of the index up to it. None: there is none
        that helps, and the index is to be made again.
        """
        if not segment.has_bad_index:
            last, index_size = self._in_index(segment, border)
            if last is not None:
                if last.end_position > segment.size:
                    text = f"it ends here, and its index knows of {last.end_position} bytes"
                    self._is_damaged(segment, int(segment.size), text)
                    self.next_offset = max(self.next_offset, int(last.end_offset))
                elif _is_there(file, last):
                    return last, index_size
        segment.has_bad_index = True
        return None, UNKNOWN

    def _in_index(self, segment: StreamSegment, border: int) -> tuple[IndexRecord | None, i64]:
        file = self._disk.open(f"{self._stem(segment.first_offset)}.index")
        try:
            index = StreamIndex(file, self.queue_id, segment.first_offset, file.size())
            count = _sound_below(index, border)
            if count > 0:
                return index.record(count - 1), HEADER_SIZE + count * RECORD_SIZE
        except FormatError:
            pass  # it is made again
        finally:
            file.close()
        return None, UNKNOWN

    def _walk(
        self, file: DiskFile, segment: StreamSegment, border: int, last: IndexRecord | None, index_size: i64
    ) -> None:
        """From the last chunk that the index knows on, chunk by chunk: mostly there is none behind it."""
        walk = Walk(file, segment.size, last.position if last is not None else HEADER_SIZE)
        end = walk.position
        while True:
            head = walk.next()
            if head is None or head.first_offset >= border:
                break
            end = walk.position
            self.end_offset = int(head.end_offset)
            self.last_chunk = head.first_offset
            segment.last_timestamp_ms = head.timestamp_ms
            if last is not None and head.first_offset > last.first_offset:
                segment.has_bad_index = True
        if head is None and end < segment.size and (border == BEHIND_ALL or self.end_offset < border):
            self._is_damaged(segment, int(end), f"{int(segment.size - end)} unreadable bytes")
            return
        self._counts(segment, end, UNKNOWN if segment.has_bad_index else index_size)

    def _counts(self, segment: StreamSegment, size: i64, index_size: i64) -> None:
        """So much of the last segment, and of its index."""
        self.cut = int(segment.size - size)
        segment.size = size
        segment.index_size = index_size
        if size == 0:
            segment.has_bad_index = False

    def _is_damaged(self, segment: StreamSegment, offset: int, text: str) -> None:
        """It stays as it is: what comes next is for another segment."""
        self.damage.append(Finding(f"{self._stem(segment.first_offset)}.stream", offset, text, True))
        segment.is_damaged = True

    # -- the journal behind them ----------------------------------------------------------------------------------

    def _join(self) -> None:
        """The journal's chunks come behind the segments; what both have counts there."""
        self.chunks = [chunk for chunk in self.chunks if chunk.end_offset > self.end_offset]
        at = self.end_offset
        for chunk in self.chunks:
            if chunk.first_offset > at:
                self._is_missing(at, chunk.first_offset)
            at = chunk.end_offset
        self.next_offset = max(self.next_offset, at)

    def _compare(self, next_offset: int) -> None:
        """With the terms."""
        if self.next_offset > next_offset:
            text = f"offsets end at {self.next_offset}, and the recovery terms say {next_offset}"
            self.faults.append(Finding(self.files.path, -1, text, True))
        elif self.next_offset < next_offset:
            self._is_missing(self.next_offset, next_offset)
            self.next_offset = next_offset

    def _is_missing(self, first: int, end: int) -> None:
        text = f"the messages with offsets {first} to {end - 1} are missing"
        self.damage.append(Finding(self.files.path, -1, text, True))

    def load(self) -> list[StreamChunk]:
        """The journal's chunks, without what the segments have. Raises OSError."""
        found: list[StreamChunk] = []
        file: DiskFile | None = None
        path = ""
        try:
            for one in self.chunks:
                if file is None or one.path != path:
                    if file is not None:
                        file.close()
                    file = self._disk.open(one.path)
                    path = one.path
                data = file.read_at(one.position, one.filter_size + one.size)
                bits, data = data[: one.filter_size], data[one.filter_size :]
                chunk = StreamChunk(data, one.first_offset, one.count, one.timestamp_ms, bits)
                chunk.file_num = one.file_num
                found.append(chunk.part(max(chunk.first_offset, self.end_offset), chunk.end_offset))
        finally:
            if file is not None:
                file.close()
        return found


def _first_offset(chunk: ReplayedChunk) -> int:
    return chunk.first_offset


def _is_there(file: DiskFile, record: IndexRecord) -> bool:
    head = read_chunk_head(file.read_at(int(record.position), int(CHUNK_HEAD)), 0)
    return head is not None and head.first_offset == record.first_offset and head.size == record.size


def _sound_below(index: StreamIndex, border: int) -> i64:
    """How many records are of chunks below the border; what is unsound at the end of an index was not synced, or is damaged.
    Raises OSError and FormatError.
    """
    last = index.count
    while index.count > 0:
        try:
            index.record(index.count - 1)
            break
        except FormatError:
            index.count -= 1
            if last - index.count > UNSOUND_MAX:
                raise
    return index.below(border)
