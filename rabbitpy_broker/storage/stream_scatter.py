"""The scatter of a vhost's streams: pending chunks are moved from the journal's files to segments, in a thread.

    move, remove, forget   gather what is to be done
      --> a batch, one job of a thread: what is removed goes, then the chunks of each stream are written behind its last
          segment, or to new ones, with their index; at the end all these files and the folders of new ones are synced
          --> the streams' tables have all of it, or nothing

One batch is under way at a time. What comes meanwhile is for the next one. Small chunks are written as larger ones, and
chunks that are too large, which long epochs make, as several.

What must stay true:
- a stream lets go of the journal when its chunks, and the names of their files, are synced; not before;
- a batch that has failed counts for nothing: it is tried again at a tick, behind what is sound, and a file that it has made
  and that the next try does not make is removed before anything of that counts;
- segments go oldest first, a segment before its index, and their names are synced before the next batch.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Final

from mypy_extensions import i64

from rabbitpy_broker.storage.files import Disk, DiskFile
from rabbitpy_broker.storage.journal import Journal
from rabbitpy_broker.storage.scatter import ScatterStopped
from rabbitpy_broker.storage.stream_chunk import StreamChunk
from rabbitpy_broker.storage.stream_files import (
    HEADER_SIZE,
    ChunkParts,
    index_header,
    made_index,
    segment_header,
    segment_stem,
)
from rabbitpy_broker.storage.stream_log import StreamLog, StreamMover
from rabbitpy_broker.storage.stream_segments import StreamSegment, StreamSizes
from rabbitpy_broker.storage.sync import Threads
from rabbitpy_broker.storage.trouble import Trouble

BATCH_STREAMS: Final = 250  # its files are open together while they are synced


def wall_ms() -> int:
    """Milliseconds since 1970."""
    return int(time.time() * 1000)


class StreamMove:
    """One stream's part of a batch: `chunks`, which are to be behind what its segments have.

    `written` has the segments as they are then: the last one, if it became longer, and new ones.
    """

    def __init__(self, log: StreamLog, chunks: list[StreamChunk]) -> None:
        segments = log.segments
        self.log = log
        self.path = segments.path
        self.queue_id = log.queue_id
        self.chunks = chunks
        self.strays = segments.strays  # stems of files that a failed batch has made
        self.written: list[StreamSegment] = []
        self.made: list[str] = []  # stems of files that this batch has made
        self.last_chunk: i64 = 0
        self.to_sync: list[str] = []
        last = segments.segments[-1] if segments.segments else None
        # A segment that is begun again may have a name that was never synced, in a folder that was not.
        self.is_first = last is None or last.size == 0
        self.names_changed = self.is_first or len(self.strays) > 0
        self._chunk_bytes = segments.sizes.chunk_bytes
        self._max_bytes = log.settings.max_segment_bytes
        self._segment: StreamSegment | None = _copy(last) if last is not None else None
        self._remade = [one for one in segments.segments if one.has_bad_index]

    def run(self, disk: Disk, go_on: Callable[[], None]) -> None:
        """Writes, and syncs nothing. Raises OSError, and what `go_on` raises."""
        disk.add_dir(self.path)
        for stem in self.strays:
            disk.remove(f"{stem}.stream")
            disk.remove(f"{stem}.index")
        for segment in self._remade:
            go_on()
            self._remake_index(disk, segment)
        pieces = pieces_of(self.chunks, self._chunk_bytes)
        at = 0
        while at < len(pieces):
            go_on()
            at = self._fill_segment(disk, pieces, at, go_on)

    def _fill_segment(self, disk: Disk, pieces: list[ChunkParts], at: int, go_on: Callable[[], None]) -> int:
        """Writes pieces from number `at` on to one segment; returns the number of the first that is for another."""
        segment = self._segment_for(disk, pieces[at])
        stem = segment_stem(self.path, segment.first_offset)
        size = segment.size
        file = disk.open(f"{stem}.stream", create=True)
        records: list[bytes] = []
        try:
            if file.size() > size:
                file.truncate(int(size))
            if size == 0:
                file.write_at(0, segment_header(self.queue_id, segment.first_offset))
                size = HEADER_SIZE
            while at < len(pieces) and (size == HEADER_SIZE or size + pieces[at].size() <= self._max_bytes):
                piece = pieces[at]
                records.append(piece.record(size))
                file.write_parts(int(size), piece.encoded())
                size += piece.size()
                segment.last_timestamp_ms = piece.timestamp_ms
                self.last_chunk = piece.first_offset
                at += 1
                go_on()
        finally:
            file.close()
        segment.size = size
        self._write_index(disk, stem, segment, records)
        self.to_sync.append(f"{stem}.stream")
        self.to_sync.append(f"{stem}.index")
        self.written.append(segment)
        self._segment = segment
        return at

    def _segment_for(self, disk: Disk, piece: ChunkParts) -> StreamSegment:
        """The segment for the next piece, as it is now; a new one when the last is full or damaged."""
        last = self._segment
        if last is not None and not last.is_damaged:
            if last.size <= HEADER_SIZE or last.size + piece.size() <= self._max_bytes:
                return last
            if not self.written:
                self._cut(disk, last)
        segment = StreamSegment(piece.first_offset, 0)
        segment.index_size = 0
        self.made.append(segment_stem(self.path, piece.first_offset))
        self.names_changed = True
        return segment

    def _cut(self, disk: Disk, segment: StreamSegment) -> None:
        """Nothing is appended to it any more: what a failed move has left at its end would count from now on."""
        stem = segment_stem(self.path, segment.first_offset)
        for path, size in ((f"{stem}.stream", segment.size), (f"{stem}.index", segment.index_size)):
            if not disk.exists(path):
                continue  # somebody has removed it, which whoever reads it will find
            file = disk.open(path)
            try:
                if file.size() > size >= HEADER_SIZE:
                    file.truncate(int(size))
                    self.to_sync.append(path)
            finally:
                file.close()

    def _write_index(self, disk: Disk, stem: str, segment: StreamSegment, records: list[bytes]) -> None:
        file = disk.open(f"{stem}.index", create=True)
        try:
            if segment.index_size <= 0:
                records.insert(0, index_header(self.queue_id, segment.first_offset))
                segment.index_size = 0
            if file.size() > segment.index_size:
                file.truncate(int(segment.index_size))
            data = b"".join(records)
            file.write_at(int(segment.index_size), data)
        finally:
            file.close()
        segment.index_size += len(data)

    def _remake_index(self, disk: Disk, segment: StreamSegment) -> None:
        stem = segment_stem(self.path, segment.first_offset)
        if not disk.exists(f"{stem}.stream"):
            return  # it is lost, as its readers have been told
        data, _ = made_index(disk, stem, self.queue_id, segment.first_offset, segment.size)
        file = disk.open(f"{stem}.index", create=True)
        try:
            file.truncate(0)
            file.write_at(0, data)
        finally:
            file.close()
        self.to_sync.append(f"{stem}.index")
        self.names_changed = True
        last = self._segment
        if last is not None and last.first_offset == segment.first_offset:
            last.index_size = len(data)

    def done(self) -> None:
        """All of it is synced."""
        segments = self.log.segments
        for segment in self._remade:
            segment.has_bad_index = False
        segments.strays = []
        if self.chunks:
            segments.take(self.written, self.chunks[-1].end_offset, self.last_chunk)
            self.log.moved()

    def failed(self) -> None:
        """Nothing of it counts. The stream's first segment is no stray: its name is the stream's first offset, and the next
        try makes it again. Were it removed, a crash might leave a later one as the first.
        """
        segments = self.log.segments
        made = self.made if segments.segments else self.made[1:]
        segments.strays = [*segments.strays, *[stem for stem in made if stem not in segments.strays]]
        self.log.move_failed()


def _copy(segment: StreamSegment) -> StreamSegment:
    copy = StreamSegment(segment.first_offset, segment.size)
    copy.index_size = segment.index_size
    copy.is_damaged = segment.is_damaged
    return copy


def pieces_of(chunks: list[StreamChunk], chunk_bytes: i64) -> list[ChunkParts]:
    """The same messages in chunks of about `chunk_bytes`."""
    found: list[ChunkParts] = []
    for chunk in chunks:
        for part in cut(chunk, chunk_bytes):
            if found and found[-1].takes(part, chunk_bytes):
                found[-1].add(part)
            else:
                found.append(ChunkParts(part))
    return found


def cut(chunk: StreamChunk, chunk_bytes: i64) -> list[StreamChunk]:
    """A chunk in parts of about `chunk_bytes`; a message is never cut."""
    if len(chunk.data) < 2 * chunk_bytes:
        return [chunk]
    found: list[StreamChunk] = []
    data = chunk.data
    begin: i64 = 0
    offset = chunk.first_offset
    while begin < len(data):
        end, behind = chunk.cut_at(begin, offset, chunk_bytes)
        found.append(StreamChunk(data[begin:end], offset, behind - offset, chunk.timestamp_ms, chunk.filter_bits))
        begin, offset = end, behind
    return found


class SegmentRemoval:
    """A segment whose files are to go. `kept_at` is where a damaged one is kept instead; "" for others."""

    def __init__(self, stem: str, kept_at: str) -> None:
        self.stem = stem
        self.kept_at = kept_at

    def run(self, disk: Disk) -> None:
        """Raises OSError."""
        path = f"{self.stem}.stream"
        if self.kept_at and disk.exists(path):
            disk.make_dir(os.path.dirname(self.kept_at))
            disk.rename(path, self.kept_at)
        disk.remove(path)
        disk.remove(f"{self.stem}.index")


class StreamBatch:
    """The job of a thread. The loop may set `is_stopped` meanwhile: then it ends with the chunk it is at."""

    def __init__(self, disk: Disk) -> None:
        self.disk = disk
        self.is_stopped = False
        self.moves: list[StreamMove] = []
        self.removals: list[SegmentRemoval] = []
        self.trees: list[str] = []

    def run(self) -> None:
        """Raises OSError and ScatterStopped."""
        for tree in self.trees:
            self._go_on()
            self.disk.remove_tree(tree)
        folders: dict[str, None] = {}
        for removal in self.removals:
            self._go_on()
            removal.run(self.disk)
            folders[os.path.dirname(removal.stem)] = None
        for move in self.moves:
            self._go_on()
            move.run(self.disk, self._go_on)
        self._sync(folders)

    def _go_on(self) -> None:
        if self.is_stopped:
            raise ScatterStopped("the broker stops")

    def _sync(self, folders: dict[str, None]) -> None:
        files: list[DiskFile] = []
        try:
            for move in self.moves:
                for path in move.to_sync:
                    files.append(self.disk.open(path))
            self.disk.sync_all(files, self._go_on)
        finally:
            for file in files:
                file.close()
        above: dict[str, None] = {}
        for move in self.moves:
            if move.names_changed:
                folders[move.path] = None
            if move.is_first:
                above[os.path.dirname(move.path)] = None
        for folder in [*folders, *above]:
            self._go_on()
            if self.disk.exists(folder):
                self.disk.sync_dir(folder)


class StreamScatter(StreamMover):
    """See the top of this file. `streams` are all, by queue_id. `batches` counts those that ended well. `clock` gives
    milliseconds since 1970.
    """

    def __init__(self, disk: Disk, threads: Threads, journal: Journal, trouble: Trouble, sizes: StreamSizes) -> None:
        self.disk = disk
        self.threads = threads
        self.journal = journal
        self.trouble = trouble
        self.streams: dict[int, StreamLog] = {}
        self.clock: Callable[[], int] = wall_ms
        self.batches: i64 = 0
        self._sizes = sizes
        self._due: dict[StreamLog, None] = {}
        self._removals: list[SegmentRemoval] = []
        self._trees: list[str] = []
        self._batch: StreamBatch | None = None
        self._is_stopping = False

    def now_ms(self) -> i64:
        return self.clock()

    def is_busy(self) -> bool:
        """True while a batch is under way."""
        return self._batch is not None

    def is_due(self) -> bool:
        """True while something waits for a batch."""
        return bool(self._due or self._removals or self._trees)

    # -- what is asked for ----------------------------------------------------------------------------------------

    def move(self, log: StreamLog) -> None:
        self._due[log] = None
        if not self.trouble.streams:
            self._push()

    def remove(self, log: StreamLog, segments: list[StreamSegment]) -> None:
        table = log.segments
        for segment in segments:
            stem = table.stem(segment)
            kept_at = f"{table.damage.folder}/damaged/{log.queue_id:016x}-{os.path.basename(stem)}.stream"
            self._removals.append(SegmentRemoval(stem, kept_at if segment.is_damaged else ""))
        if not self.trouble.streams:
            self._push()

    def forget(self, log: StreamLog) -> None:
        self.streams.pop(log.queue_id, None)
        self._due.pop(log, None)
        self._trees.append(log.segments.path)
        if not self.trouble.streams and log.journal.log is None:  # an owner's goes when that is noted
            self._push()

    def tick(self) -> None:
        """About once a second: another try after trouble."""
        self._push()

    def stop(self) -> None:
        """The broker stops: no batch begins any more, and one that is under way has failed from now on; nobody waits for its
        thread, which writes behind what is sound, or removes what nobody needs.
        """
        self._is_stopping = True
        if self._batch is not None:
            self._batch.is_stopped = True

    # -- a batch --------------------------------------------------------------------------------------------------

    def _push(self) -> None:
        """Begins a batch if there is anything to do, and none is under way."""
        if self._batch is not None or self._is_stopping or not self.is_due():
            return
        batch = StreamBatch(self.disk)
        left = self._sizes.batch_bytes
        while self._due and left > 0 and len(batch.moves) < BATCH_STREAMS:
            log = next(iter(self._due))
            del self._due[log]
            if log.deleted:
                continue
            chunks = log.begin_move(left)
            for chunk in chunks:
                left -= len(chunk.data)
            batch.moves.append(StreamMove(log, chunks))
        batch.removals, self._removals = self._removals, []
        batch.trees, self._trees = self._trees, []
        self._batch = batch
        self.threads.run(batch.run, self._done)

    def _done(self, error: Exception | None) -> None:
        batch = self._batch
        assert batch is not None, "kept by: _push"
        if self._is_stopping:
            self._batch = None
            return
        if error is not None:
            self._give_up(batch)
            self._batch = None
            self.trouble.streams_failed(f"{type(error).__name__}: {error}")
            return
        self.trouble.streams_failed("")
        for move in batch.moves:  # still busy: what these ask for is for the next batch
            if not move.log.deleted:
                move.done()
        self._batch = None
        self.batches += 1
        self.journal.trim()
        self._push()

    def _give_up(self, batch: StreamBatch) -> None:
        """Nothing of it counts; it is tried again at a tick."""
        for move in batch.moves:
            if not move.log.deleted:
                move.failed()
                self._due[move.log] = None
        self._removals = batch.removals + self._removals
        self._trees = batch.trees + self._trees
