"""The journal of a vhost: what its queues have published and acked lately, in the order in which it became durable.

One journal for all queues, because the disk is asked once for all of them: with a journal for each queue, a thousand
dirty queues would cost a thousand syncs (docs/decisions/0007 has the measurements). What outlives the journal's few
files moves on to the segments of its queue (queue_index.py).

An epoch is one block, one write, one fdatasync:

    publishes gather --begin_if_due--> build the block (in the loop) --> store, journal written and synced (in a thread)
        --> settled (in the loop): places are JOURNAL, waiters are told, the next epoch may begin

Acks do not begin an epoch: they ride with the next one, are sent off by `tick`, or when `ACKS_MAX` have gathered. A
message that is acked before its epoch begins is left out of it.

A file; all integers are big-endian, blocks begin at multiples of 4,096 so that a torn write spoils no older block:

  header  0 4 "RPJF"   4 4 format version   8 8 file_num   16 8 nonce   24 8 file_num before (0: none)
         32 8 where that file ended   40 4 CRC-32C                                                     zeros to 4,096
  block   0 4 "RPJB"   4 4 payload length   8 8 epoch   16 8 nonce   24 4 CRC-32C of the payload
         28 4 CRC-32C of bytes 0..28   32 payload: sections of  queue_id(8)  length(4)  entries (records.py)

A file that no queue needs is written over as the next one: overwriting a file's own blocks costs half the sync of
making new ones. Its old blocks carry another nonce, which is random, so that no message can imitate one. Files are
always taken from the oldest end; what a crash leaves is therefore the journal's last part, never one with a hole.

What must stay true:
- one epoch is under way at a time; its block is written behind all settled ones, and the message store's files that it
  refers to are synced before it;
- after a failed write or sync nothing more is written to that file, no waiter of the epoch is told ok, and the epoch's
  content is tried again in a new file, on each `tick`, until the disk takes it;
- a file is taken for reuse only when no queue needs it or any before it;
- the journal is ahead of the segments: no ACK is written to one, no segment is removed and no journal file written over
  before the epoch with the acks that allow it is settled. A message that goes from one queue to another (a dead letter, a
  delayed message) is published and acked in one epoch, and stands in the first queue until that is on disk.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from librt.strings import BytesWriter
from mypy_extensions import i64

from rabbitpy_broker.errors import BrokerError
from rabbitpy_broker.storage.files import Disk, DiskFile
from rabbitpy_broker.storage.message_store import Flush, MessageStore
from rabbitpy_broker.storage.records import checksum, sealed
from rabbitpy_broker.storage.segment import Damage
from rabbitpy_broker.storage.sync import EpochWaiter, SyncGroup, Threads

if TYPE_CHECKING:
    from rabbitpy_broker.storage.queue_index import QueueIndex, SegmentWrite

VERSION: Final = 1
ALIGNMENT: Final[i64] = 4_096
BLOCK_HEAD: Final[i64] = 32
ACKS_MAX: Final[i64] = 4_096
FILES_MAX: Final[i64] = 4  # files in use above which their oldest entries are scattered
SPARE_MAX: Final = 2
SCATTER_CHUNK_BYTES: Final[i64] = 1_048_576
SCATTER_BATCH_BYTES: Final[i64] = 33_554_432
SCATTER_PLACES: Final[i64] = 32_768
# What one scatter takes along: its files are open together while they are synced, and the journal's files wait for its end.
SCATTER_QUEUES: Final = 500


class ScatterStopped(BrokerError):
    """The broker stops: nothing of the scatter counts. The journal has it all, and the next one writes it again."""


def file_header(file_num: int, nonce: bytes, previous: int, previous_end: int) -> bytes:
    """The first block of a file."""
    head = b"RPJF" + VERSION.to_bytes(4, "big") + file_num.to_bytes(8, "big") + nonce
    head = sealed(head + previous.to_bytes(8, "big") + previous_end.to_bytes(8, "big"))
    return head.ljust(int(ALIGNMENT), b"\x00")


def aligned(size: i64) -> i64:
    """The next multiple of ALIGNMENT."""
    return (size + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT


class JournalFile:
    """`end` is where the next block begins; `file` is None until it is first written to. `path` is a slot, reused."""

    def __init__(self, path: str, num: i64, nonce: bytes) -> None:
        self.path = path
        self.num = num
        self.nonce = nonce
        self.end: i64 = ALIGNMENT
        self.header = b""  # to be written with the first block
        self.file: DiskFile | None = None
        self.is_new = True  # the slot does not exist on disk
        self.spare_from: i64 = 0  # the epoch that was filling when no queue needed it any more


class EpochWrite:
    """What a thread does for an epoch: the message store's part, then the journal's."""

    def __init__(self, disk: Disk, folder: str, size_limit: int) -> None:
        self.disk = disk
        self.folder = folder
        self.size_limit = size_limit
        self.unwanted: list[JournalFile] = []  # removed before anything is written: oldest first, like those reused
        self.file: JournalFile | None = None  # None: everything was elided, or goes to the message store only
        self.flush: Flush | None = None
        self.flushed = False
        self.head = b""
        self.payload = b""
        self.seconds = 0.0

    def set_payload(self, file: JournalFile, epoch: int, payload: bytes) -> None:
        """One block, at the end of `file`."""
        head = b"RPJB" + len(payload).to_bytes(4, "big") + epoch.to_bytes(8, "big") + file.nonce
        self.head = sealed(head + checksum(payload).to_bytes(4, "big"))
        self.payload = payload
        self.file = file

    def run(self) -> None:
        """Raises OSError."""
        began = time.monotonic()
        if self.unwanted:
            for old in self.unwanted:
                self.disk.remove(old.path)
            self.disk.sync_dir(self.folder)
        if self.flush is not None:
            self.flush.run()
        self.flushed = True
        if self.file is not None:
            self._write(self.file)
        self.seconds = time.monotonic() - began

    def _write(self, target: JournalFile) -> None:
        file = target.file
        if file is None:
            file = self.disk.open(target.path, create=True)
            target.file = file
            if target.is_new:
                file.allocate(self.size_limit)
                self.disk.sync_dir(self.folder)
                target.is_new = False
        if target.header:
            file.write_at(0, target.header)
        file.write_at(int(target.end), self.head)
        file.write_at(int(target.end + BLOCK_HEAD), self.payload)
        file.sync()
        target.header = b""


class SegmentsWrite:
    """What a thread does for a scatter: one chunk of blocks, or, at the end, the syncs; removals on the way.

    The loop may set `is_stopped` meanwhile: then it ends with the file it is at.
    """

    def __init__(self, disk: Disk) -> None:
        self.disk = disk
        self.is_stopped = False
        self.writes: list[SegmentWrite] = []
        self.flush: Flush | None = None
        self.removals: list[str] = []
        self.cut_sizes: dict[str, int] = {}
        self.trees: list[str] = []
        self.sync: list[str] = []
        self.made: set[str] = set()

    def run(self) -> None:
        """Raises OSError and ScatterStopped."""
        for path in self.removals:
            self._go_on()
            self._cut(path, self.cut_sizes.get(path, 0))
        for folder in sorted({os.path.dirname(path) for path in self.removals}):
            self._go_on()
            if self.disk.exists(folder):  # its queue may be gone by now
                self.disk.sync_dir(folder)
        for path in self.trees:
            self._go_on()
            self.disk.remove_tree(path)
        self._go_on()
        if self.flush is not None:
            self.flush.run()
        for write in self.writes:
            self._go_on()
            self._write(write)
        if self.sync:
            self._sync()

    def _go_on(self) -> None:
        if self.is_stopped:
            raise ScatterStopped("the broker stops")

    def _cut(self, path: str, size: int) -> None:
        if size == 0:
            self.disk.remove(path)
        elif self.disk.exists(path):
            file = self.disk.open(path)
            try:
                if file.size() > size:
                    file.truncate(size)
                    file.sync()
            finally:
                file.close()

    def _write(self, write: SegmentWrite) -> None:
        folder = os.path.dirname(write.path)
        if folder not in self.made:
            self.disk.add_dir(folder)  # its name is synced with the files
            self.made.add(folder)
        file = self.disk.open(write.path, create=True)
        try:
            at = 0 if write.is_first() else int(write.offset)
            if file.size() > at:
                file.truncate(at)
            file.write_at(at, write.data)
        finally:
            file.close()

    def _sync(self) -> None:
        files: list[DiskFile] = []
        try:
            for path in self.sync:
                files.append(self.disk.open(path))
            self.disk.sync_all(files, self._go_on)
        finally:
            for file in files:
                file.close()
        folders = sorted({os.path.dirname(path) for path in self.sync})
        for folder in [*folders, *sorted({os.path.dirname(folder) for folder in folders})]:
            self._go_on()
            self.disk.sync_dir(folder)


class Journal(SyncGroup):
    """`on_due` puts the journal on the list of those whose `begin_if_due` the turn calls; `log` is a structlog logger.

    `on_trouble` is told a reason when the disk fails, and "" when it works again.
    """

    def __init__(
        self,
        disk: Disk,
        threads: Threads,
        folder: str,
        persistent_messages: MessageStore,
        transient_messages: MessageStore,
        log: Any,
    ) -> None:
        super().__init__()
        self.disk = disk
        self.threads = threads
        self.folder = folder
        self.persistent_messages = persistent_messages
        self.transient_messages = transient_messages
        self.log = log
        self.on_due: Callable[[SyncGroup], None] | None = None
        self.on_trouble: Callable[[str], None] | None = None
        self.before_epoch: Callable[[], None] | None = None  # called before an epoch is written
        self.segment_entry_count: i64 = 16_384
        self.max_entries: i64 = 32_768
        self.file_size_limit: i64 = 33_554_432
        self.indexes: dict[int, QueueIndex] = {}
        # the epoch that is filling
        self.dirty: list[QueueIndex] = []
        self._waiters: list[EpochWaiter] = []
        self._publishes = False
        self._acks: i64 = 0
        self._acks_wanted = False
        self._marked = False
        self._retry = False  # after trouble
        # the epoch that is under way
        self.busy = False
        self._writing: list[QueueIndex] = []
        self._told: list[EpochWaiter] = []
        self._write: EpochWrite | None = None
        self.trouble = ""  # why the last epoch failed
        self.scatter_trouble = ""  # why the last scatter failed
        # files, oldest first; the last is written to
        self.file_num: i64 = 0
        self._files: list[JournalFile] = []
        self._spare: list[JournalFile] = []
        self._unwanted: list[JournalFile] = []
        self._roll = True
        self._slots: i64 = 0
        # scatter
        self._scatter_due: dict[QueueIndex, None] = {}
        self._scatter_busy = False
        self._job: SegmentsWrite | None = None  # what a thread does for it now
        self._is_stopping = False  # nothing is scattered any more
        self._batch: list[QueueIndex] = []
        self._batch_at = 0
        self._batch_bytes: i64 = 0
        self._batch_ends: dict[str, int] = {}
        self._batch_writes: dict[int, list[SegmentWrite]] = {}
        self._batch_made: set[str] = set()
        self._batch_removals: dict[str, int] = {}
        self._batch_trees: list[str] = []
        self._batch_flush: Flush | None = None
        self._held: SegmentsWrite | None = None  # until `_held_epoch` is settled
        self._held_epoch: i64 = 0
        self.removals: dict[str, int] = {}  # files to be cut: the oldest journal file that must stay until they are
        self._removing: list[int] = []  # the same, of those that are being cut or written over
        self._cut_sizes: dict[str, int] = {}
        self._trees: list[str] = []
        # figures
        self.epochs: i64 = 0
        self.epoch_failures: i64 = 0
        self.synced_bytes: i64 = 0
        self.sync_seconds = 0.0
        self.elided: i64 = 0
        self.scatters: i64 = 0
        self.damages: list[Damage] = []

    # -- what is due ----------------------------------------------------------------------------------------------

    def wait(self, waiter: EpochWaiter) -> None:
        self._waiters.append(waiter)
        if not self._marked:
            self._mark()

    def publishes_due(self) -> None:
        """An index has something for the next epoch that somebody may wait for."""
        self._publishes = True
        if not self._marked:
            self._mark()

    def acks_due(self, count: i64) -> None:
        """An index has acks for the next epoch."""
        self._acks += count
        if self._acks >= ACKS_MAX and not self._marked:
            self._acks_wanted = True
            self._mark()

    def _mark(self) -> None:
        self._marked = True
        if self.on_due is not None:
            self.on_due(self)
        elif self._retry:
            self.begin_if_due()

    def begin_if_due(self) -> None:
        self._marked = False
        if self.busy or (self.trouble and not self._retry):
            return  # it goes on when the epoch that is under way is settled, or at a tick
        self._retry = False
        if self._publishes or self._acks_wanted or self._waiters:
            self._begin()
        elif self.trouble:
            self._probe()

    def flush(self) -> None:
        """Sends off whatever there is, acks too, if no epoch is under way."""
        if not self.busy and (self.dirty or self._waiters):
            self._begin()

    def stop_scatter(self) -> None:
        """The broker stops: no scatter begins any more, and one that is under way has failed from now on.

        Its thread ends with the file it is at, and nobody waits for that: it writes behind what is sound in a segment, or
        removes what nobody needs.
        """
        if self._is_stopping:
            return
        self._is_stopping = True
        if not self._scatter_busy:
            return
        if self._held is not None:  # no thread has it yet
            self._held = None
            self._flush_done(False)
            self._scatter_busy = False
        elif self._job is not None:
            self._job.is_stopped = True
        self._give_up_batch()

    def is_settled(self) -> bool:
        """True when all that was published and acked is on disk, in the journal or in segments."""
        return not (self.busy or self.dirty or self._waiters)

    def is_busy(self) -> bool:
        """True while a thread writes for it."""
        return self.busy or self._scatter_busy

    def _has_settled(self, epoch: i64) -> bool:
        """True when what was acked while this epoch was filling is on disk."""
        if not (self.dirty or self._writing):
            return True
        return epoch < (self.epoch - 1 if self.busy else self.epoch)

    # -- epochs ---------------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        if self.before_epoch is not None:
            self.before_epoch()
        out = BytesWriter()
        indexes = self.dirty
        self._writing = indexes
        self.dirty = []
        self._publishes = False
        self._acks = 0
        self._acks_wanted = False
        for index in indexes:
            if not index.deleted:
                index.write_section(out)
        payload = out.getvalue()
        self._told = self._waiters
        self._waiters = []
        self.epoch += 1
        write = EpochWrite(self.disk, self.folder, int(self.file_size_limit))
        write.flush = self.persistent_messages.begin_flush()
        if payload:
            write.set_payload(self._file_for(len(payload)), int(self.epoch - 1), payload)
            write.unwanted = self._unwanted
            self._unwanted = []
        self._write = write
        self.busy = True
        self.threads.run(write.run, self._done)

    def _file_for(self, size: i64) -> JournalFile:
        if not self._roll:
            file = self._files[-1]
            if file.end == ALIGNMENT or file.end + BLOCK_HEAD + size <= self.file_size_limit:
                return file
        previous, previous_end = 0, 0
        if self._files:
            previous, previous_end = int(self._files[-1].num), int(self._files[-1].end)
        self.trim()
        self.file_num += 1
        nonce = os.urandom(8)
        if self._spare and self._has_settled(self._spare[0].spare_from):
            old = self._spare.pop(0)
            file = JournalFile(old.path, self.file_num, nonce)
            file.file = old.file
            file.is_new = False
        else:
            file = JournalFile(f"{self.folder}/{int(self._slots):04d}.journal", self.file_num, nonce)
            self._slots += 1
        file.header = file_header(int(self.file_num), nonce, previous, previous_end)
        self._files.append(file)
        self._roll = False
        return file

    def _done(self, error: Exception | None) -> None:
        """The thread is back."""
        self.busy = False
        write = self._write
        assert write is not None, "kept by: _begin"
        self._write = None
        file = write.file
        if write.flush is not None:
            self.persistent_messages.flush_settled(write.flush, write.flushed)
        if error is None:
            self.epochs += 1
            self.sync_seconds += write.seconds
            file_num: i64 = 0
            base: i64 = 0
            if file is not None:
                file_num = file.num
                base = file.end + BLOCK_HEAD
                self.synced_bytes += len(write.payload)
                file.end = aligned(base + len(write.payload))
            self._settle(True, file_num, base)
            if self.trouble and file is not None:
                self._set_trouble("", self.scatter_trouble)
        else:
            self.epoch_failures += 1
            self._unwanted = write.unwanted + self._unwanted
            if file is not None:
                self._drop_file(file)
            self._settle(False, 0, 0)
            self._set_trouble(f"{type(error).__name__}: {error}", self.scatter_trouble)
        if (self._publishes or self._acks_wanted or self._waiters) and not self._marked:
            self._mark()

    def _drop_file(self, file: JournalFile) -> None:
        """Nothing more is written to it. What it had before still counts, unless that is nothing."""
        self._roll = True
        if file.end == ALIGNMENT:
            self._files.remove(file)
            if file.file is not None:
                file.file.close()
                file.file = None
            self._unwanted.append(file)

    def _settle(self, ok: bool, file_num: i64, payload_offset: i64) -> None:
        writing, told = self._writing, self._told
        self._writing = []
        self._told = []
        for index in writing:
            if not index.deleted:
                index.epoch_settled(ok, file_num, payload_offset)
        if ok:
            self.persistent_messages.settled()
        epoch = self.epoch - 1
        for waiter in told:
            waiter.epoch_settled(epoch, ok)
        if not ok:  # it is all in the next one again
            self._held_epoch = self.epoch
            for spare in self._spare:
                spare.spare_from = self.epoch
        held = self._held
        if held is not None and epoch >= self._held_epoch:
            self._held = None
            self._run(held)
        if ok and len(self._files) > FILES_MAX and not self._scatter_busy:
            self._scatter_oldest()

    def _set_trouble(self, epochs: str, scatter: str) -> None:
        before = self.trouble or self.scatter_trouble
        self.trouble = epochs
        self.scatter_trouble = scatter
        now = epochs or scatter
        if bool(now) == bool(before):
            return
        if now:
            self.log.error("disk failed", folder=self.folder, error=now)
        else:
            self.log.warning("disk works again", folder=self.folder)
        if self.on_trouble is not None:
            self.on_trouble(now)

    # -- files ----------------------------------------------------------------------------------------------------

    def add_file(self, path: str, num: i64, nonce: bytes, end: i64, file: DiskFile) -> None:
        """A file that an earlier run has left and whose entries are still needed; recovery adds them oldest first."""
        found = JournalFile(path, num, nonce)
        found.end = end
        found.file = file
        found.is_new = False
        self._files.append(found)
        self.file_num = num

    def use_slots_from(self, slot: i64) -> None:
        """Slots below are taken."""
        self._slots = slot

    def current_file_num(self) -> i64:
        """What is due now will be in this file or a later one."""
        return max(1, self.file_num)

    def files(self) -> i64:
        """Files with entries that are needed."""
        return len(self._files)

    def file_bytes(self) -> i64:
        """Bytes of entries in those files."""
        total: i64 = 0
        for file in self._files:
            total += file.end
        return total

    def read(self, file_num: i64, offset: int, size: int) -> bytes:
        """Bytes of a journal file. Raises OSError."""
        for file in self._files:
            if file.num == file_num and file.file is not None:
                data: bytes = file.file.read_at(offset, size)
                if len(data) == size:
                    return data
        raise OSError(f"the journal file {file_num} does not have bytes {offset} to {offset + size}")

    def read_file(self, path: str, offset: int, size: int) -> bytes:
        """Bytes of a segment file. Raises OSError."""
        file = self.disk.open(path)
        try:
            data: bytes = file.read_at(offset, size)
        finally:
            file.close()
        if len(data) != size:
            raise OSError(f"{path} does not have bytes {offset} to {offset + size}")
        return data

    def trim(self) -> None:
        """Sets files aside that no queue needs any more."""
        if len(self._files) < 2:
            return
        oldest = self.file_num
        needed = self._oldest_needed()
        if 0 < needed < oldest:
            oldest = needed
        while len(self._files) > 1 and self._files[0].num < oldest:
            spare = self._files.pop(0)
            spare.spare_from = self.epoch
            self._spare.append(spare)
        while len(self._spare) > SPARE_MAX and self._has_settled(self._spare[0].spare_from):
            unwanted = self._spare.pop(0)
            if unwanted.file is not None:
                unwanted.file.close()
                unwanted.file = None
            self._unwanted.append(unwanted)

    def _oldest_needed(self) -> i64:
        """The number of the oldest file that must stay; 0: none need."""
        oldest: i64 = 0
        for index in self.indexes.values():
            needed = index.oldest_file()
            if needed > 0 and (oldest == 0 or needed < oldest):
                oldest = needed
        for acked_from in [*self._removing, *self.removals.values()]:
            if acked_from > 0 and (oldest == 0 or acked_from < oldest):
                oldest = acked_from
        return oldest

    def needed_files(self) -> list[list[int]]:
        """Number and end of each file that the next start has to read, the oldest first."""
        oldest = self._oldest_needed()
        if oldest == 0:
            return []
        return [[int(file.num), int(file.end)] for file in self._files if file.num >= oldest]

    def _scatter_oldest(self) -> None:
        """Too many files: the queues that need the oldest have to let go of it."""
        self.trim()
        if len(self._files) <= FILES_MAX:
            return
        oldest = self._files[0].num
        for index in self.indexes.values():
            needed = index.oldest_file()
            if needed == oldest:
                index.scatter()

    # -- scatter --------------------------------------------------------------------------------------------------

    def scatter_later(self, index: QueueIndex) -> None:
        """`QueueIndex.scatter` calls this."""
        self._scatter_due[index] = None
        if not self._scatter_busy and not self.scatter_trouble:
            self._begin_batch()

    def cut_later(self, path: str, size: i64, acked_from: i64) -> None:
        """Has a segment's file cut to its first `size` bytes, or removed when that is 0, in a thread.

        What is published in the rest is acked, now or later, in journal files from `acked_from` on (0: it needs no ACK):
        they stay until the rest is gone for good.
        """
        self.removals[path] = int(acked_from)
        self._cut_sizes[path] = int(size)

    def do_not_cut(self, path: str) -> None:
        """The file is about to be written to, from where it is sound; the journal files stay until that is synced."""
        acked_from = self.removals.pop(path, 0)
        if acked_from > 0:
            self._removing.append(acked_from)

    def push_removals(self) -> None:
        """Has the files removed that are to be."""
        if not self._scatter_busy and (self._scatter_due or self.removals or self._trees):
            self._begin_batch()

    def _begin_batch(self) -> None:
        if self._is_stopping:
            return
        self._scatter_busy = True
        self._batch = []
        self._batch_at = 0
        self._batch_bytes = 0
        self._batch_ends = {}
        self._batch_writes = {}
        self._batch_made = set()
        self._next_chunk()

    def _next_chunk(self) -> None:
        """Gathers about SCATTER_CHUNK_BYTES of blocks and has them written; when there are none, syncs what was."""
        job = SegmentsWrite(self.disk)
        job.made = self._batch_made
        self._gather(job)
        job.removals = list(self.removals)
        job.cut_sizes = {path: self._cut_sizes.get(path, 0) for path in self.removals}
        self._removing.extend(self.removals.values())
        self._batch_removals.update(self.removals)
        self.removals = {}
        job.trees = self._trees
        self._batch_trees.extend(self._trees)
        self._trees = []
        if self.transient_messages.has_unwritten():
            job.flush = self.transient_messages.begin_flush()
            self._batch_flush = job.flush
        if job.writes or job.flush is not None or job.removals or job.trees:
            if job.removals or any(write.has_acks for write in job.writes):
                self._run_behind_the_journal(job)
            else:
                self._run(job)
            return
        synced: dict[str, None] = {}
        for index in self._batch:
            for write in self._batch_writes.get(index.queue_id, []):
                if not write.transient and not index.deleted:
                    synced[write.path] = None
        job.sync = list(synced)
        self._job = job
        self.threads.run(job.run, self._batch_done)

    def _run(self, job: SegmentsWrite) -> None:
        self._job = job
        self.threads.run(job.run, self._chunk_done)

    def _run_behind_the_journal(self, job: SegmentsWrite) -> None:
        """Runs the job when all acks of until now are settled; has them settled soon."""
        if not (self.dirty or self.busy):
            self._run(job)
            return
        self._held = job
        self._held_epoch = self.epoch if self.dirty else self.epoch - 1
        if self.dirty:
            self._acks_wanted = True
            if not self._marked:
                self._mark()

    def _gather(self, job: SegmentsWrite) -> None:
        gathered: i64 = 0
        while gathered < SCATTER_CHUNK_BYTES:
            if self._batch_at == len(self._batch):
                if (
                    not self._scatter_due
                    or self._batch_bytes + gathered >= SCATTER_BATCH_BYTES
                    or len(self._batch) >= SCATTER_QUEUES
                ):
                    break
                index = next(iter(self._scatter_due))
                if index in self._batch:
                    break  # what has come since is for the next batch
                del self._scatter_due[index]
                if index.deleted:
                    continue
                index.begin_scatter(SCATTER_PLACES)
                self._batch.append(index)
            index = self._batch[self._batch_at]
            try:
                writes = index.next_writes(self._batch_ends, SCATTER_CHUNK_BYTES - gathered)
            except (OSError, BrokerError) as error:  # this queue stays as it is, the others go on
                self.log.error("queue cannot be read", path=index.path, error=str(error))
                index.unreadable = True
                self._batch.pop(self._batch_at)
                self._batch_writes.pop(index.queue_id, None)
                index.end_scatter(False, [])
                continue
            if not writes:
                self._batch_at += 1
                continue
            for write in writes:
                gathered += len(write.data)
            job.writes.extend(writes)
            self._batch_writes.setdefault(index.queue_id, []).extend(writes)
        self._batch_bytes += gathered

    def _chunk_done(self, error: Exception | None) -> None:
        self._flush_done(error is None)
        if error is None and not self._is_stopping:
            self._next_chunk()
        else:
            self._batch_done(error)

    def _flush_done(self, ok: bool) -> None:
        if self._batch_flush is not None:
            self.transient_messages.flush_settled(self._batch_flush, ok)
            self._batch_flush = None

    def _batch_done(self, error: Exception | None) -> None:
        """Everything that the batch wrote counts now, or nothing of it."""
        self._job = None
        if self._is_stopping:  # it was given up then
            self._scatter_busy = False
            return
        if error is not None:
            self._give_up_batch()
            self._scatter_busy = False
            self._set_trouble(self.trouble, f"{type(error).__name__}: {error}")
            return
        batch = self._end_batch(True)
        self._scatter_busy = False
        self._set_trouble(self.trouble, "")
        self._batch_removals = {}
        self._batch_trees = []
        self._removing = []
        if not self.removals:
            self._cut_sizes = {}
        self.scatters += 1
        for index in batch:
            if not index.deleted and (index.journal_live > self.max_entries or index.to_page):
                index.scatter()
        self.trim()
        self.push_removals()

    def _end_batch(self, ok: bool) -> list[QueueIndex]:
        batch = self._batch
        for index in batch:  # still busy: what they ask for now is for the next batch
            index.end_scatter(ok, self._batch_writes.get(index.queue_id, []))
        self._batch = []
        self._batch_writes = {}
        return batch

    def _give_up_batch(self) -> None:
        """Nothing of it counts; it is tried again at a tick."""
        for index in self._end_batch(False):
            if not index.deleted:
                index.scatter_due = True
                self._scatter_due[index] = None
        for path, acked_from in self._batch_removals.items():
            self.removals.setdefault(path, acked_from)
        self._trees = self._batch_trees + self._trees
        self._batch_trees = []

    # -- now and then ---------------------------------------------------------------------------------------------

    def tick(self) -> None:
        """About once a second: acks that nobody rode with, queues that idle, and another try after trouble."""
        if not self.busy and (self.dirty or self._waiters or self.trouble):
            self._retry = True
            self._acks_wanted = len(self.dirty) > 0
            if not self._marked:
                self._mark()
        if self.scatter_trouble and not self._scatter_busy:
            self._begin_batch()
        for index in list(self.indexes.values()):
            index.unreadable = False
            if index.is_idle() and index.has_journal_entries():
                index.scatter()
        self.push_removals()

    def _probe(self) -> None:
        """Nothing is due, but the disk has failed: an empty block tells whether it works again."""
        write = EpochWrite(self.disk, self.folder, int(self.file_size_limit))
        write.flush = self.persistent_messages.begin_flush()
        write.set_payload(self._file_for(12), int(self.epoch), bytes(12))
        self.epoch += 1
        self._write = write
        self.busy = True
        self.threads.run(write.run, self._done)

    # -- queues ---------------------------------------------------------------------------------------------------

    def forget(self, index: QueueIndex) -> None:
        """The queue is deleted: its entries mean nothing any more, and its folder goes."""
        self.indexes.pop(index.queue_id, None)
        self._scatter_due.pop(index, None)
        if index.has_files:
            self._trees.append(index.path)
            self.push_removals()

    def forget_all(self) -> None:
        """What the recovery terms have said does not hold."""
        self.indexes = {}
        self.removals = {}
        self._cut_sizes = {}

    def keep_aside(self, path: str, data: bytes) -> None:
        """Copies a damaged file, once, to where nobody writes. Raises OSError."""
        folder = f"{os.path.dirname(self.folder)}/damaged"
        inside, name = os.path.split(path)
        copy = f"{folder}/{os.path.basename(inside)}-{name}"
        if self.disk.exists(copy):
            return
        self.disk.make_dir(folder)
        file = self.disk.open(copy, create=True)
        try:
            file.write_at(0, data)
        finally:
            file.close()

    def report_damage(self, index: QueueIndex, path: str, damage: list[Damage], lost: int) -> None:
        """Something of a segment cannot be read."""
        self.damages.extend(damage)
        for one in damage:
            self.log.error(
                "segment damaged",
                path=one.path,
                offset=one.offset,
                size=one.size,
                reason=one.reason,
                queue_id=f"{index.queue_id:016x}",
            )
        if lost:
            self.log.error("messages lost", path=path, messages=lost, reason="not in the message store")

    def close(self) -> None:
        """Closes the files; nothing is written."""
        for file in self._files + self._spare:
            if file.file is not None:
                file.file.close()
                file.file = None
