"""The journal of a vhost: what its queues have published and acked lately, in the order in which it became durable.

One journal for all queues, because the disk is asked once for all of them: with a journal for each queue, a thousand
dirty queues would cost a thousand syncs (docs/decisions/0007 has the measurements). What outlives the journal's few
files moves on to the segments of its queue (scatter.py). The files themselves are journal_files.py's.

An epoch is one block, one write, one fdatasync:

    publishes gather --begin_if_due--> build the block (in the loop) --> store, journal written and synced (in a thread)
        --> settled (in the loop): places are JOURNAL, waiters are told, the next epoch may begin

Acks do not begin an epoch: they ride with the next one, are sent off by `tick`, or when `ACKS_MAX` have gathered. A
message that is acked before its epoch begins is left out of it.

In a vhost with followers the log comes before the files, and keeps the promise:

    build the block (in the loop) --> the log has it: waiters are told --> journal written and synced (in a thread) --> settled
                                      the next epoch goes to the log while this one goes to the files

What must stay true:
- one epoch is under way at a time, with a log two at most, one to the log and the one before to the files; a block is
  written behind all settled ones, and the message store's files that it refers to are synced before it;
- after a failed write or sync nothing more is written to that file, no waiter of the epoch is told ok (the log has told
  them, where there is one), and the epoch's content is tried again in a new file, on each `tick`, until the disk takes it;
- an epoch that the log has taken is written to the files only if the one before it was: so they have a prefix of the log;
- a message that goes from one queue to another (a dead letter, a delayed message) is published and acked in one epoch, and
  stands in the first queue until that is on disk.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Final

from librt.strings import BytesWriter
from mypy_extensions import i64

from rabbitpy_broker.storage.files import Disk
from rabbitpy_broker.storage.journal_files import BLOCK_HEAD, JournalFile, JournalFiles, aligned, block_head
from rabbitpy_broker.storage.message_store import MessageStore
from rabbitpy_broker.storage.store_writer import Flush
from rabbitpy_broker.storage.sync import EpochLog, EpochWaiter, StoreHost, SyncGroup, Threads
from rabbitpy_broker.storage.trouble import Trouble

ACKS_MAX: Final[i64] = 4_096
FILES_MAX: Final[i64] = 4  # files in use above which whoever needs the oldest has to move on
ALL_SETTLED: Final[i64] = 1 << 62


class FileKeeper:
    """Somebody who may need journal files to stay."""

    def oldest_file(self) -> i64:
        """The number of the oldest file that is needed; 0: none."""
        raise NotImplementedError


class JournalUser(FileKeeper):
    """One queue, for the journal. `dirty`: the journal has it on its list, and will ask for a section. `has_parts`: it has
    written none, because it is so large that it is worth handing over as it is (`section_parts`).
    """

    def __init__(self, queue_id: int) -> None:
        self.queue_id = queue_id
        self.deleted = False
        self.dirty = False
        self.has_parts = False

    def write_section(self, out: BytesWriter) -> i64:
        """Writes what is due into the block that is being built, and is not `dirty` any more.

        Returns how many publishes were left out, because they were acked before.
        """
        raise NotImplementedError

    def section_parts(self) -> list[bytes]:
        """The section that `write_section` has not written, in parts, for the end of the block. Not `has_parts` any more."""
        raise NotImplementedError

    def epoch_settled(self, ok: bool, file_num: i64, payload_offset: i64) -> None:
        """`ok`: what `write_section` wrote is on disk, in that file, the block's payload from `payload_offset` on.
        Not `ok`: it may be there or not, and is to be written again.

        Of two epochs that are under way the older one is settled first with `ok`, and the newer one without.
        """
        raise NotImplementedError

    def leave_oldest_file(self) -> None:
        """There are too many files, and the user's oldest is the journal's oldest."""
        raise NotImplementedError

    def tick(self) -> None:
        """About once a second."""
        raise NotImplementedError


class EpochWrite:
    """An epoch that is under way, and the job of a thread for it: the message store's part, then the journal's."""

    def __init__(self, disk: Disk, folder: str, size_limit: int, epoch: i64, payload: list[bytes]) -> None:
        self.disk = disk
        self.folder = folder
        self.size_limit = size_limit
        self.epoch = epoch
        self.payload = payload
        self.payload_size: i64 = 0
        for part in payload:
            self.payload_size += len(part)
        self.users: list[JournalUser] = []  # that have a section in it
        self.waiters: list[EpochWaiter] = []
        self.file_waiters: list[EpochWaiter] = []  # told when the files have it, whatever the log says
        self.is_logged = False  # or it is certain that it will not be
        self.error: Exception | None = None
        self.unwanted: list[JournalFile] = []  # removed before anything is written: oldest first, like those reused
        self.note: Callable[[], None] | None = None  # comes before a file is removed, or written over
        self.number = 0  # of the block
        self.file: JournalFile | None = None  # None: everything was elided, or goes to the message store only
        self.flush: Flush | None = None
        self.flushed = False
        self.head = b""
        self.seconds = 0.0

    def set_file(self, file: JournalFile) -> None:
        """One block, at the end of `file`."""
        self.head = block_head(self.number, file.nonce, self.payload)
        self.file = file

    def run(self) -> None:
        """Raises OSError."""
        began = time.monotonic()
        if self.note is not None:
            self.note()
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
        block = [self.head, *self.payload]
        if target.header:
            file.write_at(0, target.header)
            file.write_parts(int(target.end), block)
            file.sync()
            target.header = b""
        else:
            file.write_synced(int(target.end), block)


class Journal(SyncGroup):
    """`users` are all queues with a place in it, by queue_id; `keepers` are others that may need its files."""

    def __init__(
        self,
        disk: Disk,
        threads: Threads,
        folder: str,
        messages: MessageStore,
        trouble: Trouble,
        host: StoreHost | None,
    ) -> None:
        super().__init__()
        self.disk = disk
        self.threads = threads
        self.messages = messages
        self.trouble = trouble
        self.host = host
        self.log: EpochLog | None = None  # what comes before the files, in a vhost with followers
        self.files = JournalFiles(disk, folder)
        self.users: dict[int, JournalUser] = {}
        self.keepers: list[FileKeeper] = []
        # the epoch that is filling
        self._dirty: list[JournalUser] = []
        self._waiters: list[EpochWaiter] = []
        self._file_waiters: list[EpochWaiter] = []
        self._publishes = False
        self._acks: i64 = 0
        self._acks_wanted = False
        self._marked = False
        self._retry = False  # after trouble
        # the epochs that are under way
        self.busy = False  # the next one may not begin yet
        self._logging: EpochWrite | None = None  # to the log, or there already and behind one that goes to the files
        self._write: EpochWrite | None = None  # to the files, or it has failed there
        # figures
        self.epochs: i64 = 0
        self.epoch_failures: i64 = 0
        self.synced_bytes: i64 = 0
        self.sync_seconds = 0.0
        self.elided: i64 = 0

    # -- what is due ----------------------------------------------------------------------------------------------

    def is_replicated(self) -> bool:
        return self.log is not None

    def wait(self, waiter: EpochWaiter) -> None:
        self._waiters.append(waiter)
        if not self._marked:
            self._mark()

    def wait_for_acks(self, waiter: EpochWaiter) -> bool:
        """Has the waiter told when all acks of until now are in the files; has them written soon. False when they are there."""
        if self._dirty:
            self._file_waiters.append(waiter)
            self._acks_wanted = True
            if not self._marked:
                self._mark()
            return True
        newest = self._logging or self._write
        if newest is None:
            return False
        newest.file_waiters.append(waiter)
        return True

    def section_due(self, user: JournalUser) -> None:
        """The user, which is not `dirty`, has something for the next epoch."""
        user.dirty = True
        self._dirty.append(user)

    def publishes_due(self) -> None:
        """A user has something for the next epoch that somebody may wait for."""
        self._publishes = True
        if not self._marked:
            self._mark()

    def acks_due(self, count: i64) -> None:
        """A user has acks for the next epoch."""
        self._acks += count
        if self._acks >= ACKS_MAX and not self._marked:
            self._acks_wanted = True
            self._mark()

    def requeues_wanted(self) -> None:
        """A user has to write something again soon, since the file that has it is in the way."""
        self._acks_wanted = True
        if not self._marked:
            self._mark()

    def _mark(self) -> None:
        self._marked = True
        if self.host is not None:
            self.host.sync_due(self)
        elif self._retry:
            self.begin_if_due()

    def begin_if_due(self) -> None:
        self._marked = False
        if self.busy or (self.trouble.epoch and not self._retry):
            return  # it goes on when the epoch that is under way is settled, or at a tick
        self._retry = False
        if self._publishes or self._acks_wanted or self._waiters:
            self._begin()
        elif self.trouble.epoch:
            self._probe()

    def flush(self) -> None:
        """Sends off whatever there is, acks too, if no epoch is under way."""
        if not self.busy and (self._dirty or self._waiters):
            self._begin()

    def is_settled(self) -> bool:
        """True when all that was published and acked is on disk, in the journal or in segments."""
        return not (self.is_writing() or self._dirty or self._waiters)

    def is_writing(self) -> bool:
        """True while an epoch is under way, to the log or to the files."""
        return self.busy or self._write is not None

    def tick(self) -> None:
        """About once a second: acks that nobody rode with, and another try after trouble. Users tick besides."""
        if not self.busy and (self._dirty or self._waiters or self.trouble.epoch):
            self._retry = True
            self._acks_wanted = len(self._dirty) > 0
            if not self._marked:
                self._mark()

    def ticking_users(self) -> Iterator[None]:
        """What users do about once a second, one at a time; they may come and go meanwhile."""
        for queue_id in list(self.users):
            user = self.users.get(queue_id)
            if user is not None:
                user.tick()
            yield

    # -- an epoch -------------------------------------------------------------------------------------------------

    def copy(self, user: JournalUser, number: i64) -> None:
        """Has what the user writes, an epoch of another journal, written as the next block, under its number there.

        What other users have due stands in the same block. Assumes: no epoch is under way.
        """
        assert not self.is_writing(), "kept by: whoever follows copies one epoch at a time"
        self.section_due(user)
        self._begin(number)

    def _begin(self, number: i64 = -1) -> None:
        """Closes the epoch that is filling, builds its block, and has it written; its number is its own, or `number`.

        Ensures: the block has a section of every dirty user that is not deleted, and nobody is dirty; the message store's
        flush has every large message that the block refers to; whoever waited is told of this epoch, and everything that
        comes from now on belongs to the next one.
        Assumes: no epoch is under way (`busy`); `before_epoch` may publish and ack, and that is part of this epoch.
        """
        if self.host is not None:
            self.host.before_epoch()
        if self.log is not None:
            self.log.begin()
        out = BytesWriter()
        users = self._dirty
        self._dirty = []
        self._publishes = False
        self._acks = 0
        self._acks_wanted = False
        parts: list[bytes] = []
        for user in users:
            if not user.deleted:
                self.elided += user.write_section(out)
                if user.has_parts:
                    parts.extend(user.section_parts())
        small = out.getvalue()
        write = self._new_write([small, *parts] if small else parts, number)
        write.users = users
        write.waiters = self._waiters
        write.file_waiters = self._file_waiters
        self._waiters = []
        self._file_waiters = []
        self._send(write)

    def _probe(self) -> None:
        """Nothing is due, but the disk has failed: a block that says nothing tells whether it works again."""
        self._send(self._new_write([bytes(12)], -1))

    def _new_write(self, payload: list[bytes], number: i64) -> EpochWrite:
        """The epoch that is filling, closed: the next one begins to fill."""
        write = EpochWrite(self.disk, self.files.folder, int(self.files.size_limit), self.epoch, payload)
        write.number = int(number if number >= 0 else self.epoch)
        self.epoch += 1
        return write

    def _send(self, write: EpochWrite) -> None:
        """Has the epoch written: to the log, if there is one, and behind that to the files."""
        self.busy = True
        if self.log is None:
            write.flush = self.messages.begin_flush()
            self._write_files(write)
        else:  # all of a vhost with followers is in its blocks: its message store has nothing to flush
            self._logging = write
            self.log.append(write.payload, self._logged)

    def _logged(self, number: int, error: Exception | None) -> None:
        """The log has the epoch that was on its way to it; with `error`, it has not or may not."""
        write = self._logging
        assert write is not None, "kept by: _send"
        write.number = number
        write.error = error
        write.is_logged = True
        self._tell(write, error is None)
        self._go_on()
        self._mark_if_due()

    def _write_files(self, write: EpochWrite) -> None:
        """Has a thread write it to the files. Assumes: no other is being written there."""
        if write.payload:
            file = self._file_for(write)
            write.set_file(file)
            write.unwanted = self.files.take_unwanted()
            if self.files.notes is not None and (file.header or write.unwanted):
                write.note = self.files.notes.take(int(self.files.number))
        self._write = write
        self.threads.run(write.run, self._done)

    def _done(self, error: Exception | None) -> None:
        """The thread is back.

        Ensures: without `error` the file's end is behind the block, and users and waiters are told ok. With one nobody is,
        the file is never written to again, and the users have all of it due for the next epoch.
        Assumes: `error` None means that the store's records, then the block, are synced.
        """
        write = self._write
        assert write is not None, "kept by: _write_files"
        file = write.file
        if write.flush is not None:
            self.messages.flush_settled(write.flush, write.flushed)
        if error is None:
            self._write = None
            self.busy = self._logging is not None
            self._written(write)
        else:
            write.error = error
            self.files.not_removed(write.unwanted)
            if file is not None:
                self.files.failed(file)
        self._go_on()
        self._mark_if_due()

    def _go_on(self) -> None:
        """After a step of an epoch: sends the one that the log has to the files, if they are free, or lets fail what has."""
        ahead, behind = self._logging, self._write
        if ahead is not None and not ahead.is_logged:
            return  # also one that has failed waits for it: they fail together, the newer one first
        if behind is not None and behind.error is None:
            return
        if behind is not None or (ahead is not None and ahead.error is not None):
            self._failed(ahead, behind)
        elif ahead is not None:
            self._logging = None
            self.busy = False
            self._write_files(ahead)

    def _written(self, write: EpochWrite) -> None:
        """It is in the files."""
        self.epochs += 1
        self.sync_seconds += write.seconds
        file = write.file
        file_num: i64 = 0
        base: i64 = 0
        if file is not None:
            file_num = file.num
            base = file.end + BLOCK_HEAD
            self.synced_bytes += write.payload_size
            file.end = aligned(base + write.payload_size)
            self.files.number = write.number
        elif self.log is not None and write.number > self.files.number:  # what the log has of it is definitions
            self.files.number = write.number
        for user in write.users:
            if not user.deleted:
                user.epoch_settled(True, file_num, base)
        if self.log is None:
            self.messages.settled()
        self._tell(write, True)
        self._tell_file_waiters(write, True)
        if self.files.count() > FILES_MAX:
            self._free_oldest_file()
        if self.trouble.epoch and file is not None:
            self.trouble.epoch_failed("")

    def _failed(self, ahead: EpochWrite | None, behind: EpochWrite | None) -> None:
        """What is under way has failed: nothing of it is in the files."""
        self._logging = None
        self._write = None
        self.busy = False
        reason: Exception | None = None
        for write in (ahead, behind):
            if write is None:
                continue
            self.epoch_failures += 1
            reason = write.error or reason
            for user in write.users:
                if not user.deleted:
                    user.epoch_settled(False, 0, 0)
            self.files.settle_later(self.epoch)
            self._tell(write, False)
            self._tell_file_waiters(write, False)
        self.trouble.epoch_failed(f"{type(reason).__name__}: {reason}")

    def _tell(self, write: EpochWrite, ok: bool) -> None:
        """Tells those who wait for it, unless they know."""
        waiters = write.waiters
        write.waiters = []
        epoch = write.epoch
        for waiter in waiters:
            waiter.epoch_settled(epoch, ok)

    def _tell_file_waiters(self, write: EpochWrite, ok: bool) -> None:
        waiters = write.file_waiters
        write.file_waiters = []
        for waiter in waiters:
            waiter.epoch_settled(write.epoch, ok)

    def _mark_if_due(self) -> None:
        if (self._publishes or self._acks_wanted or self._waiters) and not self._marked:
            self._mark()

    # -- files ----------------------------------------------------------------------------------------------------

    def current_file_num(self) -> i64:
        """The number of a file: places and ACKs that are due now will be in it or a later one."""
        return max(1, self.files.num)

    def trim(self) -> None:
        """Sets files aside that nobody needs any more."""
        self._trim(self._settled())

    def _trim(self, settled: i64) -> None:
        if self.files.count() >= 2:
            self.files.set_aside(self._oldest_needed(), self.epoch, settled)

    def needed_files(self) -> list[list[int]]:
        """Number and end of each file that the next start has to read, the oldest first."""
        oldest = self._oldest_needed()
        return self.files.ends_from(oldest) if oldest > 0 else []

    def _file_for(self, write: EpochWrite) -> JournalFile:
        file = self.files.with_room(write.payload_size)
        if file is None:
            settled = write.epoch + 1 if write.users else ALL_SETTLED  # it has the ACKs that were due before
            self._trim(settled)
            file = self.files.begin(settled)
        return file

    def _settled(self) -> i64:
        """The number of an epoch: ACKs that became due while an earlier one was filling are on disk."""
        oldest = self._write or self._logging
        if oldest is not None:
            return oldest.epoch
        return self.epoch if self._dirty else ALL_SETTLED

    def _oldest_needed(self) -> i64:
        """The number of the oldest file that must stay; 0: none need."""
        oldest: i64 = 0
        for user in self.users.values():
            needed = user.oldest_file()
            if needed > 0 and (oldest == 0 or needed < oldest):
                oldest = needed
        for keeper in self.keepers:
            needed = keeper.oldest_file()
            if needed > 0 and (oldest == 0 or needed < oldest):
                oldest = needed
        return oldest

    def _free_oldest_file(self) -> None:
        """Too many files: the queues that need the oldest have to let go of it."""
        self.trim()
        if self.files.count() <= FILES_MAX:
            return
        oldest = self.files.oldest()
        for user in self.users.values():
            if user.oldest_file() == oldest:
                user.leave_oldest_file()

    def close(self) -> None:
        """Closes the files; nothing is written."""
        self.files.close()
