"""Getting disk space back: two neighbouring files of a message store that are half garbage become one.

  copying    Threads read the sources a window at a time; in between, in the loop, it is decided which of the records
             found are still wanted, and the next step writes those behind each other into a file with a name of its own.
  switching  When that file is complete, synced and has its final name, the entries of what was copied are moved over,
             a slice at a time. Until its turn an entry is read where it was.
  after      The sources hold nothing that is wanted any more. They go the way of all files of pure garbage: not before
             every removal of a message in them is settled.

What must stay true: a message that an index on disk may refer to is whole in a synced file at any moment. So a message
that was removed before its record came up is not copied, although an index may still refer to it after a crash: its
source stays until it cannot. One that is removed after it was copied is garbage in the new file.

On failure (a full disk, a damaged record) nothing has been moved, or what could not be moved keeps its source.
"""

from __future__ import annotations

from typing import Any

from mypy_extensions import i64

from rabbitpy_broker.message import StoreEntry
from rabbitpy_broker.storage.files import DiskFile
from rabbitpy_broker.storage.store_file import (
    HEADER_SIZE,
    MERGING_SUFFIX,
    RECORD_HEAD,
    WINDOW_RECORDS,
    Record,
    RecordScan,
    StoreFile,
    close_quietly,
    file_header,
)
from rabbitpy_broker.storage.store_folder import StoreFolder
from rabbitpy_broker.storage.sync import Threads


def choose_pair(files: list[StoreFile], file_size_limit_bytes: i64) -> list[StoreFile]:
    """Of the closed files, in no order, the two neighbours to merge; [] when garbage is no more than half of all bytes.

    Files of pure garbage do not count: they go on their own.
    """
    eligible = [file for file in files if file.valid_bytes > 0 and not file.is_stuck]
    total: i64 = 0
    garbage: i64 = 0
    for file in eligible:
        total += file.total_bytes
        garbage += file.garbage_bytes()
    if 2 * garbage <= total:
        return []
    eligible.sort(key=_position)
    best: list[StoreFile] = []
    best_garbage: i64 = 0
    for i in range(len(eligible) - 1):
        a = eligible[i]
        b = eligible[i + 1]
        pair_garbage = a.garbage_bytes() + b.garbage_bytes()
        pair_valid = a.valid_bytes + b.valid_bytes
        if pair_garbage > best_garbage and HEADER_SIZE + pair_valid <= file_size_limit_bytes:
            best = [a, b]
            best_garbage = pair_garbage
    return best


def _position(file: StoreFile) -> tuple[int, int]:
    return file.position, file.file_num


class CompactionHost:
    """The owner of a compaction, which hears of its end."""

    def compacted(self, compaction: Compaction) -> None:
        """Called once, in the loop: no source is busy any more. `compaction.ok` tells whether there is a new file."""
        raise NotImplementedError


class Compaction:
    """One merge of `sources` into `target`. `index` is the store's own."""

    def __init__(
        self,
        folder: StoreFolder,
        threads: Threads,
        index: dict[bytes, StoreEntry],
        sources: list[StoreFile],
        target: StoreFile,
        host: CompactionHost,
        log: Any,
    ) -> None:
        self._folder = folder
        self._disk = folder.disk
        self._threads = threads
        self._transient = folder.transient
        self._index = index
        self._host = host
        self._log = log
        self.sources = sources
        self.target = target
        self.ok = False
        # A step in a thread and what comes after it in the loop take turns with all of these.
        self._cancelled = False
        self._temporary = folder.path_of(target.file_num) + MERGING_SUFFIX
        self._out: DiskFile | None = None
        self._out_end: i64 = 0
        self._pending: list[bytes] = [file_header(target, folder.transient)]
        self._pending_bytes: i64 = HEADER_SIZE
        self._source_at: i64 = 0
        self._source: DiskFile | None = None
        self._scan: RecordScan | None = None
        self._found: list[Record] = []
        self._copied: list[StoreEntry] = []
        self._offsets: list[int] = []
        self._switched: i64 = 0

    def start(self) -> None:
        for file in self.sources:
            file.is_busy = True
        self.target.is_busy = True
        self._threads.run(self._copy_step, self._copy_step_done)

    def cancel(self) -> None:
        """The store is closing: no further step. A copy that is not in use yet goes, now or at the next start."""
        self._cancelled = True

    # -- copying ----------------------------------------------------------------------------------------------------------

    def _copy_step(self) -> None:
        """In a thread. Writes what the loop has chosen, then finds the next records; none: the copy is completed."""
        if self._out is None:
            self._out = self._disk.open(self._temporary, create=True)
        if self._pending:
            self._out.write_at(self._out_end, b"".join(self._pending))
            self._out_end += self._pending_bytes
            self._pending = []
            self._pending_bytes = 0
        self._found = []
        while not self._found and self._source_at < len(self.sources):
            if self._scan is None:
                file = self.sources[self._source_at]
                self._source = self._disk.open(self._folder.path_of(file.file_num))
                self._scan = RecordScan(self._source, file.total_bytes)
            self._found = self._scan.read()
            if not self._found:
                close_quietly(self._source)
                self._source = None
                self._scan = None
                self._source_at += 1
        if not self._found:
            self._complete(self._out)

    def _complete(self, out: DiskFile) -> None:
        if not self._transient:
            out.sync()
        close_quietly(out)
        self._disk.rename(self._temporary, self._folder.path_of(self.target.file_num))
        if not self._transient:
            self._disk.sync_dir(self._folder.path)

    def _copy_step_done(self, error: Exception | None) -> None:
        if error is not None or self._cancelled:
            self._give_up(error)
        elif self._found:
            self._choose_found()
            self._threads.run(self._copy_step, self._copy_step_done)
        else:
            self.target.total_bytes = self._out_end
            self._folder.files[self.target.file_num] = self.target
            self._switch_slice(None)

    def _choose_found(self) -> None:
        """Takes those of the records that a thread has found to which an entry of the index points.

        Ensures: a copy's offset is that at which the next step writes it.
        """
        file_num = self.sources[self._source_at].file_num
        for record in self._found:
            entry = self._index.get(record.msg_id)
            if entry is not None and entry.file_num == file_num and entry.offset == record.offset:
                self._copied.append(entry)
                self._offsets.append(self._out_end + self._pending_bytes)
                self._pending.append(record.head)
                self._pending.append(record.body)
                self._pending_bytes += record.size()

    def _give_up(self, error: Exception | None) -> None:
        close_quietly(self._source)
        close_quietly(self._out)
        if error is not None:
            self._log.warning("message store not compacted", file=self._temporary, error=str(error))
        self._threads.run(self._remove_copy, self._copy_removed)

    def _remove_copy(self) -> None:
        # When the renaming itself failed, or the sync behind it, either name may be there.
        self._disk.remove(self._temporary)
        self._disk.remove(self._folder.path_of(self.target.file_num))

    def _copy_removed(self, error: Exception | None) -> None:
        """A copy that cannot be removed is found to be superfluous at the next start."""
        self._end()

    # -- switching --------------------------------------------------------------------------------------------------------

    def _switch_slice(self, error: Exception | None) -> None:
        """Moves the entries of the next WINDOW_RECORDS copies over, and asks for another turn until all are moved.

        Ensures: each entry that is still in the index points to its copy; `valid_bytes` of source and target together
        stay as they were. A source that keeps an entry is stuck, and stays.
        Assumes: the target is complete, synced, has its final name and is in the folder's `files`. Entries may be
        removed between two slices; those that were before their slice stay garbage in both files.
        """
        if self._cancelled:
            self._end()  # what is moved is moved; sources and target hold the rest together
            return
        end = min(self._switched + WINDOW_RECORDS, i64(len(self._copied)))
        for i in range(self._switched, end):
            entry = self._copied[i]
            if self._index.get(entry.msg_id) is entry:
                size = RECORD_HEAD + entry.size
                self._folder.files[entry.file_num].valid_bytes -= size
                self.target.valid_bytes += size
                entry.file_num = self.target.file_num
                entry.offset = self._offsets[i]
        self._switched = end
        if end < len(self._copied):
            self._threads.run(_nothing, self._switch_slice)  # lets the loop have its turn
        else:
            for file in self.sources:
                file.is_stuck = file.valid_bytes > 0
                if file.is_stuck:
                    self._log.error(
                        "message store damaged",
                        file=self._folder.path_of(file.file_num),
                        unreadable_bytes=int(file.valid_bytes),
                    )
            self.ok = True
            self._end()

    def _end(self) -> None:
        for file in self.sources:
            file.is_busy = False
        self.target.is_busy = False
        self._host.compacted(self)


def _nothing() -> None:
    """A job without work: its end gives the loop a turn."""
