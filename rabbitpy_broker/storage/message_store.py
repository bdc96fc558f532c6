"""The message store: the large messages of a vhost, each once, however many queues it is in.

There are two per vhost. The persistent one is synced with the journal's epochs and survives a crash; the transient one
only takes from memory what does not fit, is never synced, and begins empty. A message has a `StoreEntry` with a random
msg_id in each store that has it; the queue indexes refer to it by msg_id, and `ref_count` says how many places do.
Reference counts are not on disk: after a crash they are counted anew from the indexes.

The life of an entry:

  unwritten   made by `publish`; the message is in RAM, and when it is released now it never meets the disk (elided)
  flushing    part of the flush under way; read from RAM
  written     `file_num` and `offset` are set. RAM keeps only what was written last (`cache_limit_bytes`)
  removed     ref_count 0, no longer in the index; its bytes are garbage. The object is dead: who publishes the same
              message again gets a new entry

Files are only ever appended to, and only one of them. A file of pure garbage is removed, files of much garbage are
merged (compaction.py). Who calls what, all in the loop but for `Flush.run`:

  begin_flush     once at the beginning of *each* epoch, in the same moment in which the journal collects what the epoch
                  will hold, also when nothing is unwritten: removals up to here are part of this epoch
  Flush.run       in a thread, before the journal's own block is written
  flush_settled   when the thread is back
  settled         after flush_settled, when the epoch is on disk, and before the next begin_flush

What must stay true:
  - an index on disk never refers to a message that is not: so a file goes only when every removal of a message in it
    was part of an epoch that is settled. `unsettled_bytes` of a file counts the others;
  - `valid_bytes` of a file are the bytes of the records that entries in the index point to;
  - after a failed write or sync the file is not written again: nothing behind `total_bytes` is trusted, and everything
    that the flush held is written anew, to another file. The same msg_id in two files is therefore normal when files
    are scanned (a compaction that was cut short leaves the same): the later file's is kept.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Final, cast

from mypy_extensions import i64

from rabbitpy_broker.message import Message, StoreEntry
from rabbitpy_broker.storage.compaction import Compaction, choose_pair
from rabbitpy_broker.storage.files import Disk, DiskFile
from rabbitpy_broker.storage.records import MSG_ID_SIZE, stored_size
from rabbitpy_broker.storage.store_file import (
    DAMAGED_FOLDER,
    HEADER_SIZE,
    MERGING_SUFFIX,
    RECORD_HEAD,
    SUFFIX,
    WINDOW_BYTES,
    DamagedError,
    Hole,
    OpenFiles,
    RecordScan,
    StoreFile,
    close_quietly,
    decode_record,
    encode_record,
    file_header,
    file_num_of,
    file_path,
    read_header,
)
from rabbitpy_broker.storage.sync import Threads

CACHE_LIMIT_BYTES: Final[i64] = 4 << 20
MAX_OPEN_FILES: Final[i64] = 8
TERMS_VERSION: Final = 1


class FlushPart:
    """What a flush writes to one file: `entries` back to back from `offset` on."""

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

    def __init__(self, disk: Disk, folder: str, transient: bool, parts: list[FlushPart]) -> None:
        self._disk = disk
        self._folder = folder
        self._transient = transient
        self.parts = parts
        self.is_written = False

    def run(self) -> None:
        """In a thread. Raises OSError."""
        try:
            for part in self.parts:
                self._write(part)
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

    def _write(self, part: FlushPart) -> None:
        if part.opened is None:
            part.opened = self._disk.open(file_path(self._folder, part.file.file_num), create=part.is_new)
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
            self._disk.sync_dir(self._folder)

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


class Removal:
    """Removes files of pure garbage, in a thread. What cannot be removed is tried again at the next start."""

    def __init__(self, disk: Disk, folder: str, log: Any) -> None:
        self._disk = disk
        self._folder = folder
        self._log = log
        self.file_nums: list[int] = []

    def run(self) -> None:
        for file_num in self.file_nums:
            self._disk.remove(file_path(self._folder, file_num))

    def done(self, error: Exception | None) -> None:
        if error is not None:
            self._log.warning("message store file not removed", error=str(error))


class Fault:
    """A scanned file that is not as it should be. Whether by a crash or by damage shows when references are missed."""

    def __init__(self, file: StoreFile, scan: RecordScan, size: i64, is_header_damaged: bool) -> None:
        self.file = file
        self.scan = scan
        self.size = size
        self.is_header_damaged = is_header_damaged

    def places(self) -> list[Hole]:
        """Every place in the file that is wrong."""
        found = [Hole(0, HEADER_SIZE)] if self.is_header_damaged else []
        found.extend(self.scan.holes)
        if self.scan.sound_end < self.size:
            found.append(Hole(self.scan.sound_end, self.size - self.scan.sound_end))
        return found


class MessageStore:
    """See the top of this file. After construction: `recover_by_scan` or `load_terms`; a transient one is ready."""

    def __init__(
        self,
        disk: Disk,
        threads: Threads,
        path: str,
        file_size_limit_bytes: i64,
        transient: bool,
        log: Any,
        cache_limit_bytes: i64 = CACHE_LIMIT_BYTES,
    ) -> None:
        self.path = path
        self.transient = transient
        self._disk = disk
        self._threads = threads
        self._file_size_limit_bytes = file_size_limit_bytes
        self._cache_limit_bytes = cache_limit_bytes
        self._log = log
        self._index: dict[bytes, StoreEntry] = {}
        self._files: dict[int, StoreFile] = {}
        self._open_files = OpenFiles(disk, path, MAX_OPEN_FILES)
        self._next_file_num: i64 = 1
        # being written
        self._unwritten: dict[bytes, StoreEntry] = {}
        self._flush: Flush | None = None
        self._current: StoreFile | None = None
        self._current_opened: DiskFile | None = None
        # written last: the messages of these are in RAM; what is released stays counted until its turn comes
        self._cached: deque[StoreEntry] = deque()
        self._cached_bytes: i64 = 0
        # removed since the last epoch began / in the epoch under way: file_num -> bytes
        self._removed: dict[int, int] = {}
        self._removed_in_epoch: dict[int, int] = {}
        self._compaction: Compaction | None = None
        self._removed_bytes: i64 = 0
        # of _removed_bytes: looking for files to merge costs a walk over all files
        self._look_again_at: i64 = 0
        self._is_stopping = False
        # of a scan, until drop_unreferenced
        self._faults: list[Fault] = []
        self._missed: dict[bytes, None] = {}
        # counters
        self.bytes: i64 = 0  # of live messages, written or not
        self.writes: i64 = 0
        self.elided_writes: i64 = 0
        self.reads: i64 = 0
        self.cache_hits: i64 = 0
        self.compactions: i64 = 0
        if transient:
            disk.remove_tree(path)
        disk.make_dir(path)

    # -- messages ---------------------------------------------------------------------------------------------------------

    def publish(self, message: Message) -> StoreEntry:
        """One more place refers to the message; it is written once, with the next flush after the first `publish`."""
        entry = message.stored_transient if self.transient else message.stored
        if entry is None or entry.ref_count == 0:
            entry = StoreEntry(os.urandom(MSG_ID_SIZE), stored_size(message))
            entry.message = message
            self._index[entry.msg_id] = entry
            self._unwritten[entry.msg_id] = entry
            self._attach(message, entry)
            self.bytes += entry.size
        entry.ref_count += 1
        return entry

    def release(self, entry: StoreEntry) -> None:
        """One place less refers to it. The last one removes it."""
        assert entry.ref_count > 0, "released more often than published"
        entry.ref_count -= 1
        if entry.ref_count > 0:
            return
        del self._index[entry.msg_id]
        entry.message = None
        self.bytes -= entry.size
        if entry.file_num > 0:
            file = self._files[entry.file_num]
            file.valid_bytes -= RECORD_HEAD + entry.size
            self._note_removed(file, entry.size)
            if self.transient:
                self._remove_garbage([file])
        elif self._unwritten.pop(entry.msg_id, None) is not None:
            self.elided_writes += 1

    def read(self, entry: StoreEntry) -> Message:
        """The message. Raises DamagedError, or OSError, after which it may be tried again."""
        message = entry.message
        if message is not None:
            self.cache_hits += 1
            return message
        path = file_path(self.path, entry.file_num)
        if entry.ref_count == 0:
            raise DamagedError(path, entry.offset, entry.msg_id, "the message has been removed")
        data = self._open_files.read_at(entry.file_num, entry.offset, RECORD_HEAD + entry.size)
        message = decode_record(data, path, entry.offset, entry.msg_id)
        self.reads += 1
        self._attach(message, entry)
        return message

    def lookup(self, msg_id: bytes) -> StoreEntry | None:
        return self._index.get(msg_id)

    def _attach(self, message: Message, entry: StoreEntry) -> None:
        if self.transient:
            message.stored_transient = entry
        else:
            message.stored = entry

    def _note_removed(self, file: StoreFile, size: i64) -> None:
        """A message is garbage in this file from now on."""
        size += RECORD_HEAD
        self._removed_bytes += size
        if not self.transient:
            file.unsettled_bytes += size
            self._removed[file.file_num] = self._removed.get(file.file_num, 0) + size

    # -- epochs -----------------------------------------------------------------------------------------------------------

    def has_unwritten(self) -> bool:
        return len(self._unwritten) > 0

    def begin_flush(self) -> Flush | None:
        """An epoch begins. Returns what must be written for it; None when that is nothing."""
        assert self._flush is None, "the last flush is not settled"
        for file_num, size in self._removed.items():
            self._removed_in_epoch[file_num] = self._removed_in_epoch.get(file_num, 0) + size
        self._removed = {}
        if not self._unwritten:
            return None
        entries = list(self._unwritten.values())
        self._unwritten = {}
        self._flush = Flush(self._disk, self.path, self.transient, self._placed(entries))
        return self._flush

    def _placed(self, entries: list[StoreEntry]) -> list[FlushPart]:
        """The entries in order behind what is written, new files where one is full."""
        parts: list[FlushPart] = []
        part: FlushPart | None = None
        if self._current is not None:
            part = FlushPart(self._current, self._current.total_bytes, False)
            part.opened = self._current_opened
        for entry in entries:
            size = RECORD_HEAD + entry.size
            if part is None or (part.end > HEADER_SIZE and part.end + size > self._file_size_limit_bytes):
                part = FlushPart(self._new_file(), HEADER_SIZE, True)
            if not part.entries:
                parts.append(part)
            part.entries.append(entry)
            message = entry.message
            assert message is not None, "an unwritten message is in RAM"
            part.messages.append(message)
            part.end += size
        return parts

    def flush_settled(self, flush: Flush, ok: bool) -> None:
        """The epoch of this flush is on disk (`ok`) or has failed.

        If it failed elsewhere, what `flush.run` has written stays written. Otherwise everything that is still wanted is
        unwritten again.
        """
        assert flush is self._flush
        assert flush.is_written or not ok
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
            unwritten.update(self._unwritten)
            self._unwritten = unwritten

    def _flush_written(self, flush: Flush) -> None:
        left = self._current
        for part in flush.parts:
            file = part.file
            self._files[file.file_num] = file
            file.total_bytes = part.end
            offset = part.offset
            for entry in part.entries:
                self.writes += 1
                if entry.ref_count > 0:
                    entry.file_num = file.file_num
                    entry.offset = offset
                    file.valid_bytes += RECORD_HEAD + entry.size
                    self._cached.append(entry)
                    self._cached_bytes += entry.size
                else:
                    self._note_removed(file, entry.size)
                offset += RECORD_HEAD + entry.size
        self._trim_cache()
        last = flush.parts[-1]
        if left is not None and flush.parts[0].file is not left:
            close_quietly(self._current_opened)  # nothing fitted into it any more
        self._current = last.file
        self._current_opened = last.opened
        closed = [part.file for part in flush.parts if part.file is not last.file]
        if left is not None and left is not last.file:
            closed.append(left)
        if closed:
            self._look_again_at = 0
            self._remove_garbage(closed)

    def _leave_current(self) -> None:
        """The current file is not written any more; the next flush begins a new one."""
        left = self._current
        close_quietly(self._current_opened)
        self._current = None
        self._current_opened = None
        if left is not None:
            self._remove_garbage([left])

    def _trim_cache(self) -> None:
        while self._cached_bytes > self._cache_limit_bytes:
            entry = self._cached.popleft()
            self._cached_bytes -= entry.size
            entry.message = None

    def settled(self) -> None:
        """The epoch that the last `begin_flush` began is on disk: what was removed before it will not come back."""
        files: list[StoreFile] = []
        for file_num, size in self._removed_in_epoch.items():
            file = self._files[file_num]
            file.unsettled_bytes -= size
            files.append(file)
        self._removed_in_epoch = {}
        self._remove_garbage(files)
        self.compact_if_due()

    # -- garbage ----------------------------------------------------------------------------------------------------------

    def _new_file(self) -> StoreFile:
        file = StoreFile(self._next_file_num, self._next_file_num)
        self._next_file_num += 1
        return file

    def _remove_garbage(self, files: list[StoreFile]) -> None:
        """Removes those files that nobody can ask for any more."""
        removal: Removal | None = None
        for file in files:
            if file.valid_bytes > 0 or file.unsettled_bytes > 0 or file.is_busy or file is self._current:
                continue
            if self._files.pop(file.file_num, None) is not None:
                self._open_files.close(file.file_num)
                if removal is None:
                    removal = Removal(self._disk, self.path, self._log)
                removal.file_nums.append(file.file_num)
        if removal is not None:
            self._threads.run(removal.run, removal.done)

    def compact_if_due(self) -> None:
        """Begins a compaction when there is none, more than half of all is garbage, and two files can be merged."""
        if self._compaction is not None or self._is_stopping or self._removed_bytes < self._look_again_at:
            return
        self._look_again_at = self._removed_bytes + self._file_size_limit_bytes // 8
        closed = [file for file in self._files.values() if file is not self._current]
        pair = choose_pair(closed, self._file_size_limit_bytes)
        if not pair:
            return
        target = self._new_file()
        target.position = pair[0].position
        self._compaction = Compaction(
            self._disk,
            self._threads,
            self.path,
            self.transient,
            pair,
            target,
            self._index,
            self._files,
            self._compaction_finished,
            self._log,
        )
        self._compaction.start()

    def stop_compacting(self) -> None:
        """The broker stops: a compaction ends after the step that it is at, and none begins any more."""
        self._is_stopping = True
        if self._compaction is not None:
            self._compaction.cancel()

    def is_compacting(self) -> bool:
        """True while a thread works on a compaction."""
        return self._compaction is not None

    def _compaction_finished(self) -> None:
        compaction = self._compaction
        assert compaction is not None
        self._compaction = None
        self._remove_garbage([*compaction.sources, compaction.target])
        if compaction.ok:
            self.compactions += 1
            self._look_again_at = 0
            self.compact_if_due()

    # -- start and stop ---------------------------------------------------------------------------------------------------

    def recover_by_scan(self, progress: Callable[[int], None] | None = None) -> None:
        """Reads every file. All messages found have ref_count 0: `add_ref` for each reference, then `drop_unreferenced`.

        `progress` is told of bytes read, time and again. Raises OSError and StartError. What `load_terms` has loaded is
        forgotten. What a killed broker had written and not synced is relied on from now on, and therefore synced.
        """
        self._forget_all()
        for name in self._disk.list_dir(self.path):
            file_num = file_num_of(name)
            if file_num >= 0:
                self._recover_file(file_num, progress)
                self._next_file_num = max(self._next_file_num, file_num + 1)
            elif name.endswith(MERGING_SUFFIX):
                self._disk.remove(f"{self.path}/{name}")
        self._disk.sync_dir(self.path)

    def _forget_all(self) -> None:
        self._index.clear()
        self._files.clear()
        self._faults = []
        self._missed = {}
        self._current = None
        self._next_file_num = 1
        self.bytes = 0

    def _recover_file(self, file_num: i64, progress: Callable[[int], None] | None) -> None:
        path = file_path(self.path, file_num)
        opened = self._disk.open(path)
        try:
            size: i64 = opened.size()
            file = read_header(opened.read_at(0, HEADER_SIZE), path, file_num)
            is_header_damaged = file is None
            if file is None:
                file = StoreFile(file_num, file_num)
            scan = RecordScan(opened, size)
            before: i64 = 0
            records = scan.read()
            while records:
                for record in records:
                    self._recover_entry(file, record.msg_id, record.offset, len(record.body))
                if progress is not None:
                    progress(int(scan.sound_end - before))
                before = scan.sound_end
                records = scan.read()
            file.total_bytes = scan.sound_end
            if is_header_damaged or scan.holes or scan.sound_end < size:
                self._faults.append(Fault(file, scan, size, is_header_damaged))
            opened.sync()
        finally:
            close_quietly(opened)
        self._files[file_num] = file

    def _recover_entry(self, file: StoreFile, msg_id: bytes, offset: i64, size: i64) -> None:
        entry = self._index.get(msg_id)
        if entry is None:
            entry = StoreEntry(msg_id, size)
            self._index[msg_id] = entry
            self.bytes += size
        else:
            self._files.get(entry.file_num, file).valid_bytes -= RECORD_HEAD + entry.size
            self.bytes += size - entry.size
            entry.size = size
        entry.file_num = file.file_num
        entry.offset = offset
        file.valid_bytes += RECORD_HEAD + size

    def add_ref(self, msg_id: bytes) -> StoreEntry | None:
        """A recovered index refers to this message; None when it is not there."""
        entry = self._index.get(msg_id)
        if entry is not None:
            entry.ref_count += 1
        else:
            self._missed[msg_id] = None
        return entry

    def drop_unreferenced(self) -> int:
        """After all `add_ref`: forgets what no index refers to. Returns how many those were. Raises OSError.

        A file with faults is mended. Only what was synced can be referred to, so as long as no message was missed the
        faults are what a crash leaves. When one was, they are damage: a copy of the file is kept aside.
        """
        for fault in self._faults:
            self._mend(fault)
        self._faults = []
        self._missed = {}
        dropped = [entry for entry in self._index.values() if entry.ref_count == 0]
        for entry in dropped:
            del self._index[entry.msg_id]
            self.bytes -= entry.size
            self._files[entry.file_num].valid_bytes -= RECORD_HEAD + entry.size
        for file in list(self._files.values()):
            if file.valid_bytes == 0:
                del self._files[file.file_num]
                self._disk.remove(file_path(self.path, file.file_num))
        return len(dropped)

    def _mend(self, fault: Fault) -> None:
        path = file_path(self.path, fault.file.file_num)
        opened = self._disk.open(path)
        try:
            if self._missed:
                self._keep_aside(fault, opened)
            for place in fault.places():
                at, size = int(place.offset), int(place.size)
                if self._missed:
                    self._log.error("message store damaged", file=path, offset=at, bytes=size)
                else:
                    self._log.warning("message store: torn records cut", file=path, offset=at, bytes=size)
            for msg_id in fault.scan.damaged:
                if msg_id in self._missed:
                    self._log.error("message damaged", file=path, msg_id=msg_id.hex())
            if fault.is_header_damaged:
                opened.write_at(0, file_header(fault.file, self.transient))
            if fault.scan.sound_end < fault.size:
                opened.truncate(fault.scan.sound_end)
            opened.sync()
        finally:
            close_quietly(opened)

    def _keep_aside(self, fault: Fault, opened: DiskFile) -> None:
        folder = f"{self.path}/{DAMAGED_FOLDER}"
        self._disk.make_dir(folder)
        copy = file_path(folder, fault.file.file_num)
        if not self._disk.exists(copy) or self._disk.size(copy) != fault.size:
            _copy_file(self._disk, opened, fault.size, copy)

    def save_terms(self) -> object:
        """Closes the store and gives what `load_terms` needs: lists, integers and bytes only. A last flush goes before."""
        assert self._flush is None, "save_terms while a flush is under way"
        assert not self._unwritten, "save_terms before everything is written"
        self.close()
        files = [[f.file_num, f.position, f.total_bytes] for f in self._files.values()]
        entries = [[e.msg_id, e.file_num, e.offset, e.size, e.ref_count] for e in self._index.values()]
        return [TERMS_VERSION, int(self._next_file_num), files, entries]

    def load_terms(self, terms: object) -> bool:
        """Takes over what `save_terms` gave. False when the files do not agree with it: then scan. Raises OSError."""
        try:
            version, next_file_num, files, entries = cast("list[Any]", terms)
            ok = version == TERMS_VERSION and self._load(next_file_num, files, entries)
        except (TypeError, ValueError, KeyError, IndexError):
            ok = False
        if ok:
            self._resume()
        else:
            self._forget_all()
        return ok

    def _load(self, next_file_num: int, files: list[list[int]], entries: list[list[Any]]) -> bool:
        self._next_file_num = next_file_num
        for file_num, position, total_bytes in files:
            path = file_path(self.path, file_num)
            if not self._disk.exists(path) or self._disk.size(path) < total_bytes:
                return False
            file = StoreFile(file_num, position)
            file.total_bytes = total_bytes
            self._files[file_num] = file
        for msg_id, file_num, offset, size, ref_count in entries:
            entry = StoreEntry(msg_id, size)
            entry.file_num = file_num
            entry.offset = offset
            entry.ref_count = ref_count
            file = self._files[file_num]
            file.valid_bytes += RECORD_HEAD + entry.size
            if ref_count < 1 or entry.offset + RECORD_HEAD + entry.size > file.total_bytes:
                return False
            self._index[entry.msg_id] = entry
            self.bytes += entry.size
        return True

    def _resume(self) -> None:
        """After a clean stop: removes what no terms speak of, and goes on writing the last file if it has room."""
        last: StoreFile | None = None
        for name in self._disk.list_dir(self.path):
            file = self._files.get(file_num_of(name))
            path = f"{self.path}/{name}"
            if file is None:
                if name.endswith((SUFFIX, MERGING_SUFFIX)):
                    self._disk.remove(path)
            elif file.valid_bytes == 0:
                del self._files[file.file_num]
                self._disk.remove(path)
            else:
                last = file
        if last is not None and last.total_bytes < self._file_size_limit_bytes:
            if self._disk.size(file_path(self.path, last.file_num)) == last.total_bytes:
                self._current = last

    def close(self) -> None:
        """Closes all files, but for what a flush that is under way writes to. A compaction stops after the step that it
        is at.
        """
        self.stop_compacting()
        self._open_files.close_all()
        if self._flush is None:
            close_quietly(self._current_opened)
            self._current_opened = None

    # -- for people -------------------------------------------------------------------------------------------------------

    def file_summary(self) -> list[tuple[int, int, int]]:
        """(file_num, valid bytes, all bytes) of each file."""
        return [(int(f.file_num), int(f.valid_bytes), int(f.total_bytes)) for f in self._files.values()]

    def counters(self) -> dict[str, int]:
        return {
            "messages": len(self._index),
            "bytes": int(self.bytes),
            "unwritten": len(self._unwritten),
            "files": len(self._files),
            "writes": int(self.writes),
            "elided_writes": int(self.elided_writes),
            "reads": int(self.reads),
            "cache_hits": int(self.cache_hits),
            "compactions": int(self.compactions),
        }

    def check(self) -> None:
        """Asserts what must stay true. Walks over everything: for tests."""
        valid: dict[int, int] = {}
        total: i64 = 0
        parts = self._flush.parts if self._flush is not None else []
        flushing = {entry.msg_id for part in parts for entry in part.entries}
        for msg_id, entry in self._index.items():
            assert entry.msg_id == msg_id
            assert entry.ref_count > 0, "a removed entry in the index"
            total += entry.size
            if entry.file_num > 0:
                valid[entry.file_num] = valid.get(entry.file_num, 0) + RECORD_HEAD + entry.size
                assert entry.offset + RECORD_HEAD + entry.size <= self._files[entry.file_num].total_bytes
            else:
                assert entry.message is not None, "unwritten and not in RAM"
                assert (msg_id in self._unwritten) != (msg_id in flushing), "neither written nor going to be"
        assert total == self.bytes
        assert set(self._unwritten) <= set(self._index)
        unsettled: dict[int, int] = dict(self._removed)
        for file_num, size in self._removed_in_epoch.items():
            unsettled[file_num] = unsettled.get(file_num, 0) + size
        for file_num, file in self._files.items():
            assert file.valid_bytes == valid.get(file_num, 0), "valid_bytes"
            assert file.unsettled_bytes == unsettled.get(file_num, 0), "unsettled_bytes"
            assert file.garbage_bytes() >= file.unsettled_bytes, "more removed than there was"
        assert set(valid) <= set(self._files)
        assert set(unsettled) <= set(self._files), "a file is gone before its removals are settled"


def _copy_file(disk: Disk, source: DiskFile, size: i64, path: str) -> None:
    copy = disk.open(path, create=True)
    try:
        at: i64 = 0
        while at < size:
            copy.write_at(at, source.read_at(at, min(WINDOW_BYTES, size - at)))
            at += WINDOW_BYTES
    finally:
        close_quietly(copy)


def verify(disk: Disk, path: str, found: dict[bytes, int]) -> Iterator[tuple[str, str, str]]:
    """Reads every file of a store that no broker uses, and changes nothing. `found` gets each sound msg_id and its size.

    Yields (file, kind, text). `damaged` is a fault. `torn tail`, `duplicate` and `leftover` are what a crash leaves and
    the next start clears away. One `count` for each file says what it holds.
    """
    for name in disk.list_dir(path):
        file_num = file_num_of(name)
        file_name = f"{path}/{name}"
        if name.endswith(MERGING_SUFFIX):
            yield file_name, "leftover", "a compaction that was cut short"
        if file_num < 0:
            continue
        records: i64 = 0
        duplicates: i64 = 0
        opened = disk.open(file_name)
        try:
            size: i64 = opened.size()
            is_header_damaged = read_header(opened.read_at(0, HEADER_SIZE), file_name, file_num) is None
            scan = RecordScan(opened, size)
            window = scan.read()
            while window:
                for record in window:
                    records += 1
                    if record.msg_id in found:
                        duplicates += 1
                    found[record.msg_id] = len(record.body)
                window = scan.read()
        finally:
            close_quietly(opened)
        if is_header_damaged and records > 0:
            yield file_name, "damaged", "the file's header"
        for hole in scan.holes:
            yield file_name, "damaged", f"{hole.size} bytes at {hole.offset}"
        for msg_id in scan.damaged:
            yield file_name, "damaged", f"message {msg_id.hex()}"
        if scan.sound_end < size:
            yield file_name, "torn tail", f"{size - scan.sound_end} bytes at {scan.sound_end}"
        if duplicates:
            yield file_name, "duplicate", f"{duplicates} messages are in an earlier file too"
        yield file_name, "count", f"{records} messages, {size} bytes"
