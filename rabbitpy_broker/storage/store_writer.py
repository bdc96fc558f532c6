"""The messages that a message store has not written yet. They get to disk with an epoch, in a flush that a thread runs.

    add             an entry is unwritten: its message is in RAM, and when it is removed now it never meets the disk
    begin_flush     what is unwritten is placed behind what is written, in new files where one is full
    Flush.run       in a thread: writes and syncs it
    flush_settled   the entries have their file and offset; or, after a failure, are unwritten again

What was written last stays in RAM, up to `cache_limit_bytes`: most of it is delivered next.

What must stay true:
  - files are only ever appended to, and only one of them, which is marked `is_current`;
  - after a failed write or sync the file is not written again: nothing behind its `total_bytes` is trusted, and
    everything that the flush held is written anew, to another file. The same msg_id in two files is therefore normal
    when files are scanned (a compaction that was cut short leaves the same): the later file's is kept;
  - one flush is under way at a time; an entry is unwritten, in the flush, or has a `file_num`.
"""

from __future__ import annotations

from collections import deque

from mypy_extensions import i64

from rabbitpy_broker.message import Message, StoreEntry
from rabbitpy_broker.storage.files import DiskFile
from rabbitpy_broker.storage.store_file import (
    HEADER_SIZE,
    RECORD_HEAD,
    WINDOW_BYTES,
    StoreFile,
    close_quietly,
    encode_record,
    file_header,
)
from rabbitpy_broker.storage.store_folder import StoreFolder
from rabbitpy_broker.storage.store_garbage import StoreGarbage


class FlushPart:
    """The part of a flush that goes to one file: `entries` back to back from `offset` on."""

    def __init__(self, file: StoreFile, offset: i64, is_new: bool) -> None:
        self.file = file
        self.offset = offset
        self.end = offset
        self.is_new = is_new
        self.entries: list[StoreEntry] = []
        self.messages: list[Message] = []  # entry.message is the loop's, and may go while a thread writes
        self.opened: DiskFile | None = None


class Flush:
    """Writes what was unwritten when an epoch began. On failure the files are as they were, or not used again."""

    def __init__(self, folder: StoreFolder, parts: list[FlushPart]) -> None:
        self._disk = folder.disk
        self._path = folder.path
        self._transient = folder.transient
        self._paths = [folder.path_of(part.file.file_num) for part in parts]
        self.parts = parts
        self.is_written = False

    def run(self) -> None:
        """In a thread. Raises OSError."""
        try:
            for part, path in zip(self.parts, self._paths, strict=True):
                self._write(part, path)
            if not self._transient:
                self._sync()
        except OSError:
            self._take_back()
            raise
        for part in self.parts[:-1]:
            close_quietly(part.opened)
        self.is_written = True

    def close(self) -> None:
        for part in self.parts:
            close_quietly(part.opened)

    def _write(self, part: FlushPart, path: str) -> None:
        if part.opened is None:
            part.opened = self._disk.open(path, create=part.is_new)
        pieces: list[bytes] = []
        size: i64 = 0
        at = part.offset
        if part.is_new:
            pieces.append(file_header(part.file, self._transient))
            size = HEADER_SIZE
            at = 0
        for i in range(len(part.entries)):
            head, body = encode_record(part.entries[i].msg_id, part.messages[i])
            pieces.append(head)
            pieces.append(body)
            size += RECORD_HEAD + len(body)
            if size >= WINDOW_BYTES:
                part.opened.write_at(at, b"".join(pieces))
                at += size
                size = 0
                pieces = []
        if pieces:
            part.opened.write_at(at, b"".join(pieces))

    def _sync(self) -> None:
        opened: list[DiskFile] = []
        is_new = False
        for part in self.parts:
            if part.opened is not None:
                opened.append(part.opened)
            is_new = is_new or part.is_new
        self._disk.sync_all(opened)
        if is_new:
            self._disk.sync_dir(self._path)

    def _take_back(self) -> None:
        """Gives the space back where that is possible: on a full disk it is needed."""
        for part in self.parts:
            if part.opened is None:
                continue
            try:
                part.opened.truncate(part.offset)
                if part.is_new:
                    self._disk.remove(part.opened.path)
            except OSError:
                pass  # what is left is superfluous, and found to be so at the next start
            close_quietly(part.opened)


class StoreWriter:
    """Of one message store. `writes` counts the messages that were written, also those that nobody wanted by then."""

    def __init__(self, folder: StoreFolder, garbage: StoreGarbage, cache_limit_bytes: i64) -> None:
        self.folder = folder
        self.garbage = garbage
        self.cache_limit_bytes = cache_limit_bytes
        self.writes: i64 = 0
        self.unwritten: dict[bytes, StoreEntry] = {}
        # written last: the messages of these are in RAM; what is released stays counted until its turn comes
        self.cached: deque[StoreEntry] = deque()
        self._cached_bytes: i64 = 0
        self._flush: Flush | None = None
        self._current: StoreFile | None = None
        self._current_opened: DiskFile | None = None

    def add(self, entry: StoreEntry) -> None:
        """The entry, which has its message, is to be written with the next flush."""
        self.unwritten[entry.msg_id] = entry

    def elide(self, entry: StoreEntry) -> bool:
        """The entry, which has no file, is not wanted any more. False when the flush under way has it."""
        return self.unwritten.pop(entry.msg_id, None) is not None

    # -- a flush ----------------------------------------------------------------------------------------------------------

    def begin_flush(self) -> Flush | None:
        """An epoch begins: what must be written for it; None when that is nothing.

        Ensures: every entry that was unwritten is in one part of the flush, behind all that is written in its file, and
        nothing is unwritten. Nothing of it counts before `flush_settled`.
        Assumes: the last flush is settled.
        """
        assert self._flush is None, "kept by: who begins epochs, one at a time"
        if not self.unwritten:
            return None
        entries = list(self.unwritten.values())
        self.unwritten = {}
        self._flush = Flush(self.folder, self._placed(entries))
        return self._flush

    def _placed(self, entries: list[StoreEntry]) -> list[FlushPart]:
        """The entries in order behind what is written, new files where one is full."""
        parts: list[FlushPart] = []
        part: FlushPart | None = None
        limit = self.folder.file_size_limit_bytes
        if self._current is not None:
            part = FlushPart(self._current, self._current.total_bytes, False)
            part.opened = self._current_opened
        for entry in entries:
            size = RECORD_HEAD + entry.size
            if part is None or (part.end > HEADER_SIZE and part.end + size > limit):
                part = FlushPart(self.folder.new_file(), HEADER_SIZE, True)
            if not part.entries:
                parts.append(part)
            part.entries.append(entry)
            message = entry.message
            assert message is not None, "kept by: an unwritten message is in RAM"
            part.messages.append(message)
            part.end += size
        return parts

    def flush_settled(self, flush: Flush, ok: bool) -> None:
        """The thread is back with this flush.

        Ensures: when the flush is written, its entries have `file_num` and `offset`, also if the epoch failed elsewhere;
        those that were removed meanwhile are garbage. Otherwise all that is still wanted is unwritten again, before what
        has come since, and the file that was current is never written to again.
        Assumes: `ok` only if the flush is written.
        """
        assert flush is self._flush, "kept by: begin_flush"
        assert flush.is_written or not ok, "kept by: Flush.run"
        self._flush = None
        if flush.is_written:
            self._flush_written(flush)
        else:
            flush.close()
            self._leave_current()
            unwritten: dict[bytes, StoreEntry] = {}
            for part in flush.parts:
                for entry in part.entries:
                    if entry.ref_count > 0:
                        unwritten[entry.msg_id] = entry
            unwritten.update(self.unwritten)
            self.unwritten = unwritten

    def _flush_written(self, flush: Flush) -> None:
        left = self._current
        for part in flush.parts:
            file = part.file
            self.folder.files[file.file_num] = file
            file.total_bytes = part.end
            offset = part.offset
            for entry in part.entries:
                self.writes += 1
                if entry.ref_count > 0:
                    entry.file_num = file.file_num
                    entry.offset = offset
                    file.valid_bytes += RECORD_HEAD + entry.size
                    self.cached.append(entry)
                    self._cached_bytes += entry.size
                else:
                    self.garbage.add(file, entry.size)
                offset += RECORD_HEAD + entry.size
        self._trim_cache()
        last = flush.parts[-1]
        if left is not None and flush.parts[0].file is not left:
            close_quietly(self._current_opened)  # nothing fitted into it any more
        self._set_current(last.file, last.opened)
        closed = [part.file for part in flush.parts if part.file is not last.file]
        if left is not None and left is not last.file:
            closed.append(left)
        if closed:
            self.garbage.files_closed(closed)

    def _set_current(self, file: StoreFile | None, opened: DiskFile | None) -> None:
        if self._current is not None:
            self._current.is_current = False
        if file is not None:
            file.is_current = True
        self._current = file
        self._current_opened = opened

    def _leave_current(self) -> None:
        """The current file is not written any more; the next flush begins a new one."""
        left = self._current
        close_quietly(self._current_opened)
        self._set_current(None, None)
        if left is not None:
            self.garbage.remove_files([left])

    def _trim_cache(self) -> None:
        while self._cached_bytes > self.cache_limit_bytes:
            entry = self.cached.popleft()
            self._cached_bytes -= entry.size
            entry.message = None

    # -- start and stop ---------------------------------------------------------------------------------------------------

    def go_on_in(self, file: StoreFile | None) -> None:
        """The next flush goes to this file, behind what it has; None: to a new one."""
        self._set_current(file, None)

    def is_settled(self) -> bool:
        """True when nothing is unwritten or being written."""
        return self._flush is None and not self.unwritten

    def close(self) -> None:
        """Closes the current file, but for one that a flush under way writes to."""
        if self._flush is None:
            close_quietly(self._current_opened)
            self._current_opened = None

    def flushing(self) -> list[StoreEntry]:
        """The entries in the flush under way."""
        parts = self._flush.parts if self._flush is not None else []
        return [entry for part in parts for entry in part.entries]
