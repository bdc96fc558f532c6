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

The index and the references are here. What is not written yet is store_writer.py's, what nobody refers to any more
store_garbage.py's, and both work on one StoreFolder. Who calls what, all in the loop but for `Flush.run`:

  begin_flush     once at the beginning of *each* epoch, in the same moment in which the journal collects what the epoch
                  will hold, also when nothing is unwritten: removals up to here are part of this epoch
  Flush.run       in a thread, before the journal's own block is written
  flush_settled   when the thread is back
  settled         after flush_settled, when the epoch is on disk, and before the next begin_flush

What must stay true:
  - an entry is in the index as long as a place refers to it, and no longer;
  - `valid_bytes` of a file are the bytes of the records that entries in the index point to;
  - a message is in RAM until its record is written, and read from its file after that.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Final, cast

from mypy_extensions import i64

from rabbitpy_broker.message import Message, StoreEntry
from rabbitpy_broker.storage.files import Disk
from rabbitpy_broker.storage.records import MSG_ID_SIZE, stored_size
from rabbitpy_broker.storage.store_file import (
    MERGING_SUFFIX,
    RECORD_HEAD,
    SUFFIX,
    DamagedError,
    StoreFile,
    decode_record,
    file_num_of,
)
from rabbitpy_broker.storage.store_folder import StoreFolder
from rabbitpy_broker.storage.store_garbage import StoreGarbage
from rabbitpy_broker.storage.store_recovery import StoreRecovery
from rabbitpy_broker.storage.store_writer import Flush, StoreWriter
from rabbitpy_broker.storage.sync import Threads

CACHE_LIMIT_BYTES: Final[i64] = 4 << 20
TERMS_VERSION: Final = 1


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
        self.index: dict[bytes, StoreEntry] = {}
        self.folder = StoreFolder(disk, path, transient, file_size_limit_bytes)
        self.garbage = StoreGarbage(self.folder, threads, self.index, log)
        self.writer = StoreWriter(self.folder, self.garbage, cache_limit_bytes)
        self._log = log
        self.bytes: i64 = 0  # of live messages, written or not
        self.elided_writes: i64 = 0
        self.reads: i64 = 0
        self.cache_hits: i64 = 0

    # -- messages ---------------------------------------------------------------------------------------------------------

    def publish(self, message: Message) -> StoreEntry:
        """One more place refers to the message; it is written once, with the next flush after the first `publish`."""
        entry = message.stored_transient if self.transient else message.stored
        if entry is None or entry.ref_count == 0:
            entry = StoreEntry(os.urandom(MSG_ID_SIZE), stored_size(message))
            entry.message = message
            self.index[entry.msg_id] = entry
            self.writer.add(entry)
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
        del self.index[entry.msg_id]
        entry.message = None
        self.bytes -= entry.size
        if entry.file_num > 0:
            file = self.folder.files[entry.file_num]
            file.valid_bytes -= RECORD_HEAD + entry.size
            self.garbage.add(file, entry.size)
            if self.transient:
                self.garbage.remove_files([file])
        elif self.writer.elide(entry):
            self.elided_writes += 1

    def read(self, entry: StoreEntry) -> Message:
        """The message. Raises DamagedError, or OSError, after which it may be tried again."""
        message = entry.message
        if message is not None:
            self.cache_hits += 1
            return message
        folder = self.folder
        path = folder.path_of(entry.file_num)
        if entry.ref_count == 0:
            raise DamagedError(path, entry.offset, entry.msg_id, "the message has been removed")
        data = folder.opened.read_at(entry.file_num, entry.offset, RECORD_HEAD + entry.size)
        message = decode_record(data, path, entry.offset, entry.msg_id)
        self.reads += 1
        self._attach(message, entry)
        return message

    def lookup(self, msg_id: bytes) -> StoreEntry | None:
        return self.index.get(msg_id)

    def _attach(self, message: Message, entry: StoreEntry) -> None:
        if self.transient:
            message.stored_transient = entry
        else:
            message.stored = entry

    # -- epochs -----------------------------------------------------------------------------------------------------------

    def has_unwritten(self) -> bool:
        return len(self.writer.unwritten) > 0

    def begin_flush(self) -> Flush | None:
        """An epoch begins. Returns what must be written for it; None when that is nothing."""
        self.garbage.begin_epoch()
        return self.writer.begin_flush()

    def flush_settled(self, flush: Flush, ok: bool) -> None:
        """The epoch of this flush is on disk (`ok`) or has failed."""
        self.writer.flush_settled(flush, ok)

    def settled(self) -> None:
        """The epoch that the last `begin_flush` began is on disk."""
        self.garbage.settled()

    # -- compaction -------------------------------------------------------------------------------------------------------

    def compact_if_due(self) -> None:
        """Begins a compaction when there is none, more than half of all is garbage, and two files can be merged."""
        self.garbage.compact_if_due()

    def stop_compacting(self) -> None:
        """The broker stops: a compaction ends after the step that it is at, and none begins any more."""
        self.garbage.stop_compacting()

    def is_compacting(self) -> bool:
        """True while a thread works on a compaction."""
        return self.garbage.is_compacting()

    # -- start and stop ---------------------------------------------------------------------------------------------------

    def recover_by_scan(self, progress: Callable[[int], None] | None = None) -> StoreRecovery:
        """Reads every file. All messages found have ref_count 0: `add_ref` for each reference, then `recovered`.

        `progress` is told of bytes read, time and again. Forgets all that `load_terms` has loaded. Raises OSError and
        StartError.
        """
        self._forget_all()
        recovery = StoreRecovery(self.folder, self.index, self._log)
        recovery.read(progress)
        return recovery

    def recovered(self, recovery: StoreRecovery) -> int:
        """All references were added. Returns how many messages were dropped, because there were none. Raises OSError."""
        dropped = recovery.finish()
        self.bytes = sum([int(entry.size) for entry in self.index.values()])
        return dropped

    def _forget_all(self) -> None:
        self.index.clear()
        self.folder.forget_all()
        self.writer.go_on_in(None)
        self.bytes = 0

    def save_terms(self) -> object:
        """Closes the store and gives what `load_terms` needs: lists, integers and bytes only. A last flush goes before."""
        assert self.writer.is_settled(), "kept by: who stops, after the last epoch"
        self.close()
        files = [[f.file_num, f.position, f.total_bytes] for f in self.folder.files.values()]
        entries = [[e.msg_id, e.file_num, e.offset, e.size, e.ref_count] for e in self.index.values()]
        return [TERMS_VERSION, int(self.folder.next_file_num), files, entries]

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
        folder = self.folder
        folder.next_file_num = next_file_num
        for file_num, position, total_bytes in files:
            path = folder.path_of(file_num)
            if not folder.disk.exists(path) or folder.disk.size(path) < total_bytes:
                return False
            file = StoreFile(file_num, position)
            file.total_bytes = total_bytes
            folder.files[file_num] = file
        for msg_id, file_num, offset, size, ref_count in entries:
            entry = StoreEntry(msg_id, size)
            entry.file_num = file_num
            entry.offset = offset
            entry.ref_count = ref_count
            file = folder.files[file_num]
            file.valid_bytes += RECORD_HEAD + entry.size
            if ref_count < 1 or entry.offset + RECORD_HEAD + entry.size > file.total_bytes:
                return False
            self.index[entry.msg_id] = entry
            self.bytes += entry.size
        return True

    def _resume(self) -> None:
        """After a clean stop: removes what no terms speak of, and goes on writing the last file if it has room."""
        folder = self.folder
        last: StoreFile | None = None
        for name in folder.disk.list_dir(self.path):
            file = folder.files.get(file_num_of(name))
            path = f"{self.path}/{name}"
            if file is None:
                if name.endswith((SUFFIX, MERGING_SUFFIX)):
                    folder.disk.remove(path)
            elif file.valid_bytes == 0:
                del folder.files[file.file_num]
                folder.disk.remove(path)
            else:
                last = file
        if last is not None and last.total_bytes < folder.file_size_limit_bytes:
            if folder.disk.size(folder.path_of(last.file_num)) == last.total_bytes:
                self.writer.go_on_in(last)

    def close(self) -> None:
        """Closes all files, but for what a flush that is under way writes to. A compaction stops after the step that it
        is at. No message is kept in memory any more.
        """
        self.garbage.stop_compacting()
        self.folder.opened.close_all()
        self.writer.close()
        for entry in self.index.values():
            entry.message = None

    # -- for people -------------------------------------------------------------------------------------------------------

    def file_summary(self) -> list[tuple[int, int, int]]:
        """(file_num, valid bytes, all bytes) of each file."""
        return self.folder.summary()

    def counters(self) -> dict[str, int]:
        return {
            "messages": len(self.index),
            "bytes": int(self.bytes),
            "unwritten": len(self.writer.unwritten),
            "files": len(self.folder.files),
            "writes": int(self.writer.writes),
            "elided_writes": int(self.elided_writes),
            "reads": int(self.reads),
            "cache_hits": int(self.cache_hits),
            "compactions": int(self.garbage.compactions),
        }

    def check(self) -> None:
        """Asserts what must stay true. Walks over everything: for tests."""
        valid: dict[int, int] = {}
        total: i64 = 0
        files = self.folder.files
        unwritten = self.writer.unwritten
        flushing = {entry.msg_id for entry in self.writer.flushing()}
        for msg_id, entry in self.index.items():
            assert entry.msg_id == msg_id
            assert entry.ref_count > 0, "a removed entry in the index"
            total += entry.size
            if entry.file_num > 0:
                valid[entry.file_num] = valid.get(entry.file_num, 0) + RECORD_HEAD + entry.size
                assert entry.offset + RECORD_HEAD + entry.size <= files[entry.file_num].total_bytes
            else:
                assert entry.message is not None, "unwritten and not in RAM"
                assert (msg_id in unwritten) != (msg_id in flushing), "neither written nor going to be"
        assert total == self.bytes
        assert set(unwritten) <= set(self.index)
        unsettled = self.garbage.unsettled()
        for file_num, file in files.items():
            assert file.valid_bytes == valid.get(file_num, 0), "valid_bytes"
            assert file.unsettled_bytes == unsettled.get(file_num, 0), "unsettled_bytes"
            assert file.garbage_bytes() >= file.unsettled_bytes, "more removed than there was"
        assert len([file for file in files.values() if file.is_current]) <= 1, "two current files"
        assert set(valid) <= set(files)
        assert set(unsettled) <= set(files), "a file is gone before its removals are settled"
