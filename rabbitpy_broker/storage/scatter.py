"""The scatter of a vhost: what the journal has long enough is written to the segments of its queues, in a thread.

    scatter_later, cut_later, remove_tree   gather what is to be done
      --> a batch: chunks of blocks are gathered in the loop (`ScatterSource.next_writes`) and written in a thread, with the
          removals that are due; at the end all its files are synced
          --> `end_scatter` of every source: all of it counts, or nothing

One batch is under way at a time. What comes meanwhile is for the next one.

What must stay true:
- the journal is ahead of the segments: no ACK is written to one, and no segment is cut or removed, before the epoch with
  the acks that allow it is settled; such a chunk waits for it (`_run_behind_the_journal`);
- the journal files that have the ACKs of what is cut or removed stay until that is gone for good (`Removals`);
- a batch that has failed counts for nothing, and is tried again at a tick.
"""

from __future__ import annotations

import os
from typing import Any, Final

from mypy_extensions import i64

from rabbitpy_broker.errors import BrokerError
from rabbitpy_broker.storage.files import Disk, DiskFile
from rabbitpy_broker.storage.journal import FileKeeper, Journal
from rabbitpy_broker.storage.message_store import MessageStore
from rabbitpy_broker.storage.place import Place
from rabbitpy_broker.storage.segment import Segment
from rabbitpy_broker.storage.store_writer import Flush
from rabbitpy_broker.storage.sync import EpochWaiter, Threads
from rabbitpy_broker.storage.trouble import Trouble

CHUNK_BYTES: Final[i64] = 1_048_576
BATCH_BYTES: Final[i64] = 33_554_432
SOURCE_PLACES: Final[i64] = 32_768  # of one source in one batch
# What one batch takes along: its files are open together while they are synced, and the journal's files wait for its end.
BATCH_SOURCES: Final = 500


class ScatterStopped(BrokerError):
    """The broker stops: nothing of the batch counts. The journal has it all, and the next scatter writes it again."""


class BlockWrite:
    """One block on its way to a segment file, with the places in it and where their bytes will stand.

    `data` has the bytes in parts, `size` of them in all, for `offset` in the file.
    """

    def __init__(self, segment: Segment, transient: bool, path: str, offset: i64, data: list[bytes]) -> None:
        self.segment = segment
        self.transient = transient
        self.path = path
        self.offset = offset
        self.data = data
        self.size: i64 = 0
        for part in data:
            self.size += len(part)
        self.end: i64 = offset + self.size  # of the file
        self.places: list[Place] = []
        self.offsets: list[i64] = []  # of the places' messages, from `entries_at` in the file on
        self.entries_at: i64 = 0
        self.stored: i64 = 0
        self.has_acks = False


class ScatterSource:
    """One queue, for the scatter. `unreadable` is True, until the next tick, after its messages could not be read."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.deleted = False
        self.unreadable = False

    def begin_scatter(self, limit: i64) -> None:
        """Takes what this batch will write: at most `limit` places of the journal, all acks, all paged places."""
        raise NotImplementedError

    def next_writes(self, ends: dict[str, int], limit_bytes: i64) -> list[BlockWrite]:
        """The next blocks, about `limit_bytes` of them; empty when there are no more. `ends` has each file's length so far.

        Raises OSError and BrokerError when messages cannot be read.
        """
        raise NotImplementedError

    def end_scatter(self, ok: bool, writes: list[BlockWrite]) -> None:
        """All `writes` of this queue are on disk, synced; or not `ok`: nothing of them counts."""
        raise NotImplementedError

    def due_again(self) -> None:
        """The batch of the source has failed: the source waits for another."""
        raise NotImplementedError

    def go_on(self) -> None:
        """The batch of the source has ended well; the source may ask for the next one."""
        raise NotImplementedError

class Removals(FileKeeper):
    """Files of segments that are to be cut or removed, and folders; each with the oldest journal file that has to stay."""

    def __init__(self) -> None:
        self._due: dict[str, int] = {}  # path: the oldest journal file that must stay until it is done; 0: none
        self._sizes: dict[str, int] = {}  # what is left of it; 0: nothing
        self._trees: list[str] = []
        # of the batch that is under way
        self._taken: dict[str, int] = {}
        self._taken_trees: list[str] = []
        self._keeping: list[int] = []  # journal files, also of what is being written over

    def any_due(self) -> bool:
        """True when there is something for the next chunk."""
        return bool(self._due or self._trees)

    def cut_later(self, path: str, size: i64, acked_from: i64) -> None:
        """See Scatter."""
        self._due[path] = int(acked_from)
        self._sizes[path] = int(size)

    def do_not_cut(self, path: str) -> None:
        """See Scatter."""
        acked_from = self._due.pop(path, 0)
        if acked_from > 0:
            self._keeping.append(acked_from)

    def remove_tree(self, path: str) -> None:
        """A folder goes, with all that is in it."""
        self._trees.append(path)

    def take(self, job: ScatterJob) -> None:
        """Has the job do what is due."""
        job.removals = list(self._due)
        job.cut_sizes = {path: self._sizes.get(path, 0) for path in self._due}
        job.trees = self._trees
        self._keeping.extend(self._due.values())
        self._taken.update(self._due)
        self._taken_trees.extend(self._trees)
        self._due = {}
        self._trees = []

    def done(self) -> None:
        """All that was taken is gone for good."""
        self._taken = {}
        self._taken_trees = []
        self._keeping = []
        if not self._due:
            self._sizes = {}

    def give_up(self) -> None:
        """The cuts and removals that were taken are due again."""
        for path, acked_from in self._taken.items():
            self._due.setdefault(path, acked_from)
        self._trees = self._taken_trees + self._trees
        self._taken_trees = []

    def forget_all(self) -> None:
        """None of the cuts that were asked for is to be done."""
        self._due = {}
        self._sizes = {}

    def oldest_file(self) -> i64:
        oldest: i64 = 0
        for acked_from in [*self._keeping, *self._due.values()]:
            if acked_from > 0 and (oldest == 0 or acked_from < oldest):
                oldest = acked_from
        return oldest


class ScatterJob:
    """The job of a thread for a batch: one chunk of blocks, or, at the end, the syncs; removals on the way.

    The loop may set `is_stopped` meanwhile: then it ends with the file it is at.
    """

    def __init__(self, disk: Disk) -> None:
        self.disk = disk
        self.is_stopped = False
        self.writes: list[BlockWrite] = []
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

    def _write(self, write: BlockWrite) -> None:
        folder = os.path.dirname(write.path)
        if folder not in self.made:
            self.disk.add_dir(folder)  # its name is synced with the files
            self.made.add(folder)
        file = self.disk.open(write.path, create=True)
        try:
            at = int(write.offset)
            if file.size() > at:
                file.truncate(at)
            file.write_parts(at, write.data)
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


class Batch:
    """The sources that one batch has taken so far, and what is written for each."""

    def __init__(self) -> None:
        self.sources: list[ScatterSource] = []
        self.at = 0  # the source that is being gathered from
        self.bytes: i64 = 0
        self.ends: dict[str, int] = {}
        self.writes: dict[ScatterSource, list[BlockWrite]] = {}
        self.made: set[str] = set()  # folders
        self.flush: Flush | None = None  # of the message store for paged messages, with the chunk that is under way

    def add(self, source: ScatterSource, writes: list[BlockWrite]) -> None:
        """Blocks of a source that is in the batch."""
        self.writes.setdefault(source, []).extend(writes)

    def drop(self, source: ScatterSource) -> None:
        """The source that is being gathered from leaves the batch, and nothing of it counts."""
        self.sources.pop(self.at)
        self.writes.pop(source, None)
        source.end_scatter(False, [])

    def end(self, ok: bool) -> None:
        """Tells the sources."""
        for source in self.sources:
            source.end_scatter(ok, self.writes.get(source, []))


class Scatter(EpochWaiter):
    """See the top of this file. `scatters` counts the batches that ended well. `log` is a structlog logger."""

    def __init__(
        self,
        disk: Disk,
        threads: Threads,
        journal: Journal,
        transient_messages: MessageStore,
        trouble: Trouble,
        log: Any,
    ) -> None:
        self.disk = disk
        self.threads = threads
        self.journal = journal
        self.transient_messages = transient_messages
        self.trouble = trouble
        self.log = log
        self.scatters: i64 = 0
        self.removals = Removals()
        journal.keepers.append(self.removals)
        self._due: dict[ScatterSource, None] = {}
        self._batch: Batch | None = None
        self._job: ScatterJob | None = None  # what a thread does for it now
        self._held: ScatterJob | None = None  # what waits for the journal
        self._is_stopping = False  # nothing is scattered any more
        self._is_running = False  # a thread has something of a batch, which may have been given up

    # -- what is asked for ----------------------------------------------------------------------------------------

    def is_busy(self) -> bool:
        """True while a batch is under way."""
        return self._is_running

    def scatter_later(self, source: ScatterSource) -> None:
        """Has what the source has in the journal moved to its segments, soon."""
        self._due[source] = None
        if not self._is_running and not self.trouble.scatter:
            self._begin_batch()

    def cut_later(self, path: str, size: i64, acked_from: i64) -> None:
        """Has a segment's file cut to its first `size` bytes, or removed when that is 0.

        The places that are published in the rest are acked, now or later, in journal files from `acked_from` on (0: they
        need no ACK): these files stay until the rest is gone for good.
        """
        self.removals.cut_later(path, size, acked_from)

    def do_not_cut(self, path: str) -> None:
        """The file is about to be written to, from where it is sound; the journal files stay until that is synced."""
        self.removals.do_not_cut(path)

    def forget(self, source: ScatterSource, folder: str, *, now: bool) -> None:
        """The source is deleted; its folder, if it has one, goes: with the next batch, which may begin now."""
        self._due.pop(source, None)
        if folder:
            self.removals.remove_tree(folder)
            if now:
                self.push()

    def push(self) -> None:
        """Begins a batch if there is anything to do, removals too."""
        if not self._is_running and (self._due or self.removals.any_due()):
            self._begin_batch()

    def tick(self) -> None:
        """About once a second: another try after trouble, and what nothing else has begun."""
        if self.trouble.scatter and not self._is_running:
            self._begin_batch()
        self.push()

    def stop(self) -> None:
        """The broker stops: no batch begins any more, and one that is under way has failed from now on.

        Its thread ends with the file it is at, and nobody waits for that: it writes behind what is sound in a segment, or
        removes what nobody needs.
        """
        if self._is_stopping:
            return
        self._is_stopping = True
        batch = self._batch
        if not self._is_running or batch is None:
            return
        if self._held is not None:  # no thread has it yet
            self._held = None
            self._flushed(batch, False)
            self._is_running = False
        elif self._job is not None:
            self._job.is_stopped = True
        self._give_up(batch)

    # -- a batch --------------------------------------------------------------------------------------------------

    def _begin_batch(self) -> None:
        if self._is_stopping:
            return
        self._is_running = True
        self._batch = Batch()
        self._next_chunk(self._batch)

    def _next_chunk(self, batch: Batch) -> None:
        """Gathers about CHUNK_BYTES of blocks and has them written; when there are none, syncs what was.

        Ensures: what is written is in the batch, and what is cut or removed is taken from `removals`. A chunk with ACKs or
        removals runs when the journal has all acks of until now. The last job of a batch syncs every persistent file
        that it wrote to.
        Assumes: the batch is under way, and no thread has a job of it.
        """
        job = ScatterJob(self.disk)
        job.made = batch.made
        self._gather(batch, job)
        self.removals.take(job)
        if self.transient_messages.has_unwritten():
            job.flush = self.transient_messages.begin_flush()
            batch.flush = job.flush
        if job.writes or job.flush is not None or job.removals or job.trees:
            if job.removals or any(write.has_acks for write in job.writes):
                self._run_behind_the_journal(job)
            else:
                self._run(job)
            return
        synced: dict[str, None] = {}
        for source in batch.sources:
            for write in batch.writes.get(source, []):
                if not write.transient and not source.deleted:
                    synced[write.path] = None
        job.sync = list(synced)
        self._job = job
        self.threads.run(job.run, self._batch_done)

    def _run(self, job: ScatterJob) -> None:
        self._job = job
        self.threads.run(job.run, self._chunk_done)

    def _run_behind_the_journal(self, job: ScatterJob) -> None:
        """Runs the job when all acks of until now are on disk; has them written soon."""
        if self.journal.wait_for_acks(self):
            self._held = job
        else:
            self._run(job)

    def epoch_settled(self, epoch: i64, ok: bool) -> None:
        held = self._held
        if held is not None:
            self._held = None
            if ok:
                self._run(held)
            else:  # it is all in the next one again
                self._run_behind_the_journal(held)

    def _gather(self, batch: Batch, job: ScatterJob) -> None:
        gathered: i64 = 0
        while gathered < CHUNK_BYTES:
            if batch.at == len(batch.sources):
                if (
                    not self._due
                    or batch.bytes + gathered >= BATCH_BYTES
                    or len(batch.sources) >= BATCH_SOURCES
                ):
                    break
                source = next(iter(self._due))
                if source in batch.sources:
                    break  # what has come since is for the next batch
                del self._due[source]
                if source.deleted:
                    continue
                source.begin_scatter(SOURCE_PLACES)
                batch.sources.append(source)
            source = batch.sources[batch.at]
            try:
                writes = source.next_writes(batch.ends, CHUNK_BYTES - gathered)
            except (OSError, BrokerError) as error:  # this queue stays as it is, the others go on
                self.log.error("queue cannot be read", path=source.path, error=str(error))
                source.unreadable = True
                batch.drop(source)
                continue
            if not writes:
                batch.at += 1
                continue
            for write in writes:
                gathered += write.size
            job.writes.extend(writes)
            batch.add(source, writes)
        batch.bytes += gathered

    def _chunk_done(self, error: Exception | None) -> None:
        batch = self._batch
        assert batch is not None, "kept by: _begin_batch, _batch_done"
        self._flushed(batch, error is None)
        if error is None and not self._is_stopping:
            self._next_chunk(batch)
        else:
            self._batch_done(error)

    def _flushed(self, batch: Batch, ok: bool) -> None:
        if batch.flush is not None:
            self.transient_messages.flush_settled(batch.flush, ok)
            batch.flush = None

    def _batch_done(self, error: Exception | None) -> None:
        """Everything that the batch wrote counts now, or nothing of it."""
        batch = self._batch
        assert batch is not None, "kept by: _begin_batch"
        self._job = None
        if self._is_stopping:  # it was given up then
            self._is_running = False
            return
        if error is not None:
            self._give_up(batch)
            self._is_running = False
            self.trouble.scatter_failed(f"{type(error).__name__}: {error}")
            return
        batch.end(True)  # still running: what the sources ask for now is for the next batch
        self._is_running = False
        self.trouble.scatter_failed("")
        self.removals.done()
        self.scatters += 1
        for source in batch.sources:
            if not source.deleted:
                source.go_on()
        self.journal.trim()
        self.push()

    def _give_up(self, batch: Batch) -> None:
        """Nothing of it counts; it is tried again at a tick."""
        batch.end(False)
        for source in batch.sources:
            if not source.deleted:
                source.due_again()
                self._due[source] = None
        batch.sources = []
        batch.writes = {}
        self.removals.give_up()
