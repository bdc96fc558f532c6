"""The start of a vhost's store: what the readers have found on disk (vhost_scan.py) is applied, once, and the object that
does it is thrown away.

After a clean stop the terms are compared with the files; what they say is taken over, and they are removed before
anything is changed. Without terms, or when they do not fit, the store is recovered by scanning: the message store's files
and the journal are read whole; of segments only the heads of blocks, except where the journal or the message store has to
know more. Every message that is found after a crash counts as redelivered: the disk does not know what was delivered last.

What must stay true: whatever a killed broker had written and not synced is synced before anything relies on it, of the
journal after it was written anew; a start that is cut short leaves what the next one needs.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

from mypy_extensions import i64

from rabbitpy_broker.errors import StartError
from rabbitpy_broker.storage.damage import DamageLog
from rabbitpy_broker.storage.files import Disk, DiskFile
from rabbitpy_broker.storage.journal import Journal
from rabbitpy_broker.storage.journal_files import ALIGNMENT
from rabbitpy_broker.storage.journal_scan import FoundFile, Replay
from rabbitpy_broker.storage.message_store import MessageStore
from rabbitpy_broker.storage.place import Place, PlaceMaker
from rabbitpy_broker.storage.queue_index import QueueIndex
from rabbitpy_broker.storage.queue_scan import QueueByTerms, QueueFiles, QueueScan, ScannedSegment, read_file
from rabbitpy_broker.storage.records import STORED
from rabbitpy_broker.storage.scatter import Scatter
from rabbitpy_broker.storage.segment import file_header
from rabbitpy_broker.storage.store_recovery import StoreRecovery
from rabbitpy_broker.storage.stream_log import StreamLog
from rabbitpy_broker.storage.terms import Terms
from rabbitpy_broker.storage.vhost_scan import VHostScan


class RecoveredQueue:
    """The beginning of a queue after a start: see VariableQueue.recovered."""

    def __init__(self, index: QueueIndex) -> None:
        self.index = index
        self.next_seq_id: i64 = 0
        self.delta_end: i64 = 0
        self.places: list[Place] = []
        self.messages: i64 = 0


class RecoverableStore:
    """The store of one vhost, as far as a start works on it."""

    disk: Disk
    path: str
    log: Any  # a structlog logger
    damage: DamageLog
    journal: Journal
    scatter: Scatter
    persistent_messages: MessageStore
    streams: dict[int, StreamLog]

    def new_index(self, queue_id: int, durable: bool, maker: PlaceMaker) -> QueueIndex:
        """The index of a queue, empty. Makes nothing on disk."""
        raise NotImplementedError

    def empty_stream(self, queue_id: int) -> StreamLog:
        """A stream, empty. Makes nothing on disk."""
        raise NotImplementedError


class Progress:
    """How far a start is: a line in the log for each second that it takes. It knows nothing of the start itself, so that
    all that was read is freed with it.
    """

    def __init__(self, path: str, log: Any, of: int) -> None:
        self.path = path
        self.log = log
        self.read_bytes: i64 = 0
        self.queues = 0
        self.of = of
        self.messages: i64 = 0
        self.began = time.monotonic()
        self._reported = self.began

    def has_read(self, size: int) -> None:
        """So many bytes more were read."""
        self.read_bytes += size
        now = time.monotonic()
        if now - self._reported < 1.0:
            return
        self._reported = now
        mb = int(self.read_bytes) / 1e6
        self.log.info(
            "recovering",
            path=self.path,
            queues=self.queues,
            of=self.of,
            messages=int(self.messages),
            mb=round(mb, 1),
            mb_per_s=round(mb / (now - self.began), 1),
        )

    def end(self, clean: bool) -> None:
        """The start is over."""
        seconds = time.monotonic() - self.began
        mb = int(self.read_bytes) / 1e6
        self.log.info(
            "store recovered",
            path=self.path,
            clean=clean,
            queues=self.of,
            messages=int(self.messages),
            mb=round(mb, 1),
            mb_per_s=round(mb / seconds, 1) if seconds > 0 else 0.0,
            seconds=round(seconds, 3),
        )


class VHostRecovery:
    """One start. `makers` has the durable queues, by queue_id, each with the maker of its places; `stream_ids` are streams'."""

    def __init__(
        self, store: RecoverableStore, entry_count: i64, makers: dict[int, PlaceMaker], stream_ids: Iterable[int]
    ) -> None:
        self.clean = True
        self._stream_ids = list(stream_ids)
        self._store = store
        self._disk = store.disk
        self._makers = makers
        self._progress = Progress(store.path, store.log, len(makers) + len(self._stream_ids))
        self._scan = VHostScan(store.disk, store.path, entry_count, self._progress.has_read)

    def run(self) -> dict[int, RecoveredQueue]:
        """Brings back the queues. Raises StartError when the disk cannot be read."""
        store = self._store
        try:
            self._scan.read()
            found = self._recover_clean()
            if found is None:
                self.clean = False
                found = self._recover_by_scan()
            self._remove_strangers()
        except OSError as error:
            raise StartError(f"cannot recover {store.path}: {error}") from None
        self._progress.end(self.clean)
        return found

    def _remove_strangers(self) -> None:
        known = {f"{queue_id:016x}" for queue_id in [*self._makers, *self._stream_ids]}
        for name in self._scan.folders:
            if name not in known:
                self._disk.remove_tree(f"{self._store.path}/queues/{name}")

    def _new_queue(self, queue_id: int, files: QueueFiles) -> RecoveredQueue:
        """Its transient segments are removed on the way."""
        queue = RecoveredQueue(self._store.new_index(queue_id, True, self._makers[queue_id]))
        for path in files.transient:
            self._disk.remove(path)
        if files.nums:
            queue.index.segments.has_files = True
        return queue

    # -- after a clean stop -----------------------------------------------------------------------------------------------

    def _recover_clean(self) -> dict[int, RecoveredQueue] | None:
        """None when there are no terms, or they do not fit what is there."""
        scan = self._scan
        if scan.terms_version < 0:
            return None
        found: dict[int, RecoveredQueue] | None = None
        if scan.terms is not None:
            found = self._take_terms(scan.terms)
            if found is None:
                scan.read_without_terms()
        if found is None:
            self._store.log.warning("recovery terms do not fit", path=scan.terms_path)
            self._store.journal.users = {}
            self._store.streams.clear()
            self._store.scatter.removals.forget_all()
        self._disk.remove(scan.terms_path)
        self._disk.sync_dir(self._store.path)
        return found

    def _take_terms(self, terms: Terms) -> dict[int, RecoveredQueue] | None:
        """Ensures: when it does not return None, journal and segments are as they were when the broker stopped.

        Assumes: as long as the terms are there nothing else is asked, so what they do not name may go in any order.
        """
        store, replayed = self._store, self._scan.journal
        if not store.persistent_messages.load_terms(terms.messages):
            return None
        found: dict[int, RecoveredQueue] = {}
        journal_file = min(terms.journal, default=0)
        for queue_id in self._makers:
            queue = self._queue_by_terms(queue_id, journal_file)
            if queue is None:
                self._progress.messages = 0
                return None
            found[queue_id] = queue
            self._progress.messages += queue.messages
        if not self._recover_streams():
            self._progress.messages = 0
            return None
        needed = {one.path for one in replayed.files}
        for name in self._disk.list_dir(self._scan.journal_path):
            if f"{self._scan.journal_path}/{name}" not in needed:
                self._disk.remove(f"{self._scan.journal_path}/{name}")
        self._disk.sync_dir(self._scan.journal_path)
        self._take_journal(replayed)
        store.journal.files.num = terms.journal_file
        store.journal.epoch = terms.epoch
        return found

    def _queue_by_terms(self, queue_id: int, journal_file: int) -> RecoveredQueue | None:
        """None when the disk does not have what the terms say."""
        by_terms = self._scan.queue_by_terms(queue_id)
        queue = self._new_queue(queue_id, by_terms.files)
        if by_terms.faults:
            return None
        terms, index = by_terms.terms, queue.index
        queue.next_seq_id = terms.next_seq_id
        queue.delta_end = terms.delta_end()
        index.segments.redelivered_below = terms.redelivered_below
        index.segments.highest = terms.highest_in_segments
        for segment in terms.segments:
            index.take_segment(segment, journal_file)
            queue.messages += segment.live
        for path, size in by_terms.cuts:
            self._store.scatter.cut_later(path, size, journal_file)
        if terms.in_journal and not self._places_by_terms(index, by_terms):
            return None
        queue.places = list(index.in_journal)
        queue.messages += len(queue.places)
        self._take_requeues(index)
        return queue

    def _take_requeues(self, index: QueueIndex) -> None:
        replayed = self._scan.journal.queues.get(index.queue_id)
        if replayed is not None and replayed.requeues:
            index.take_requeues(replayed.requeues, replayed.requeues_file)

    def _places_by_terms(self, index: QueueIndex, by_terms: QueueByTerms) -> bool:
        """The places that the journal alone has. False when the message store does not have a message of one."""
        replayed = self._scan.journal.queues[index.queue_id]
        redelivered = set(by_terms.terms.redelivered)
        for seq_id in by_terms.terms.in_journal:
            entry = replayed.published[seq_id]
            place = index.segments.maker.make_place(entry.seq_id, entry.body_size)
            place.redelivered = seq_id in redelivered
            if entry.flags & STORED:
                place.stored = self._store.persistent_messages.lookup(replayed.msg_ids[seq_id])
                if place.stored is None:
                    return False
            index.take_place(place, replayed.file_nums[seq_id], entry)
        return True

    # -- after a crash ----------------------------------------------------------------------------------------------------

    def _recover_by_scan(self) -> dict[int, RecoveredQueue]:
        store, replayed = self._store, self._scan.journal
        stored = store.persistent_messages.recover_by_scan(self._progress.has_read)
        self._tell_of_journal(replayed)
        found: dict[int, RecoveredQueue] = {}
        unsynced: list[str] = []  # segments that the last scatter may have written to
        for queue_id in self._makers:
            queue = self._queue_by_scan(queue_id, stored, unsynced)
            found[queue_id] = queue
            self._progress.queues += 1
            self._progress.messages += queue.messages
            self._progress.has_read(0)
        self._recover_streams()
        folders = sorted({path.rpartition("/")[0] for path in unsynced})
        self._disk.sync_names([path for path in unsynced if self._disk.exists(path)], folders)
        self._take_journal(replayed)
        dropped = store.persistent_messages.recovered(stored)
        if dropped:
            store.log.info("unreferenced messages dropped", path=store.path, messages=dropped)
        return found

    def _tell_of_journal(self, replayed: Replay) -> None:
        store = self._store
        for path in replayed.headless:
            store.log.warning("journal file without a header", path=path)
        store.damage.file_damaged(replayed.damage)
        for path in sorted({one.path for one in replayed.damage if one.path.endswith(".journal")}):
            store.damage.keep_aside(path, read_file(self._disk, path))
        for one in replayed.files:
            if one.torn:
                store.log.warning("journal cut", path=one.path, offset=int(one.end), size=int(one.torn))

    def _queue_by_scan(self, queue_id: int, stored: StoreRecovery, unsynced: list[str]) -> RecoveredQueue:
        by_scan = self._scan.queue_by_scan(queue_id)
        queue = self._new_queue(queue_id, by_scan.files)
        index = queue.index
        files = self._scan.journal.files
        first_file: i64 = files[0].num if files else 1
        highest: i64 = -1
        for num in by_scan.files.nums:
            found = by_scan.segment(num, True)
            segment = found.segment
            if found.parsed is not None:
                unsynced.append(found.path)
                self._mend(found, queue_id)
                self._add_refs(found, stored)
                if segment.new_acks.count:
                    index.ack_file = first_file
            if not found.has_live():
                self._disk.remove(found.path)
                continue
            index.segments.by_num[segment.num] = segment
            queue.messages += segment.live
            if found.parsed is None:
                highest = max(highest, segment.first_seq_id + segment.entry_count - 1)
            else:
                highest = max(highest, *found.live)
        queue.next_seq_id = by_scan.top + 1
        queue.delta_end = by_scan.top + 1
        self._places_by_scan(index, by_scan, stored)
        if index.in_journal:
            queue.delta_end = min(queue.delta_end, max(index.in_journal[0].seq_id, highest + 1))
        index.segments.highest = highest
        index.segments.redelivered_below = by_scan.top + 1
        queue.places = list(index.in_journal)
        queue.messages += len(queue.places)
        self._take_requeues(index)
        return queue

    def _mend(self, found: ScannedSegment, queue_id: int) -> None:
        """The file is cut to what counts of it. A copy of a damaged one is kept aside before.

        Ensures: the file is sound from its header to `segment.size`, where it ends.
        Assumes: the journal has all that is cut, or nobody was promised it.
        """
        damage, parsed, segment = found.damage, found.parsed, found.segment
        assert parsed is not None, "kept by: the caller"
        if damage:
            self._store.damage.keep_aside(found.path, parsed.data)
            self._store.damage.file_damaged(damage)
        for one in found.torn:
            self._store.log.warning("segment cut", path=found.path, offset=one.offset, size=one.size)
        if parsed.header or segment.size < len(parsed.data):
            file = self._disk.open(found.path)
            try:
                if segment.size < len(parsed.data):
                    file.truncate(int(segment.size))
                if parsed.header:
                    file.write_at(0, file_header(queue_id, int(segment.num), False))
            finally:
                file.close()

    def _add_refs(self, found: ScannedSegment, stored: StoreRecovery) -> None:
        """Counts the references to the message store; what it does not have is lost."""
        parsed = found.parsed
        assert parsed is not None, "kept by: the caller"
        for entry in list(found.live.values()):
            if entry.flags & STORED:
                if stored.add_ref(parsed.data[entry.data : entry.data + entry.size]) is None:
                    self._store.damage.message_lost(found.path, int(entry.seq_id))
                    found.count_off(entry.seq_id)

    def _places_by_scan(self, index: QueueIndex, by_scan: QueueScan, stored: StoreRecovery) -> None:
        """The places that the journal alone has."""
        if not by_scan.published:
            return
        replayed = self._scan.journal.queues[index.queue_id]
        for seq_id in sorted(by_scan.published):
            if seq_id in by_scan.in_segments:
                continue
            entry = by_scan.published[seq_id]
            place = index.segments.maker.make_place(entry.seq_id, entry.body_size)
            place.redelivered = True
            if entry.flags & STORED:
                place.stored = stored.add_ref(replayed.msg_ids[seq_id])
                if place.stored is None:
                    self._store.damage.message_lost(self._store.journal.files.folder, int(entry.seq_id))
                    index.filling.acks.append(seq_id)
                    continue
            index.take_place(place, replayed.file_nums[seq_id], entry)

    # -- streams ----------------------------------------------------------------------------------------------------------

    def _recover_streams(self) -> bool:
        """False when the disk does not have what the terms say of one."""
        for queue_id in self._stream_ids:
            found = self._scan.stream(queue_id)
            if found.faults:
                return False
            if found.damage:
                self._store.damage.stream_damaged(found.damage)
            log = self._store.empty_stream(queue_id)
            segments = log.segments
            segments.segments = found.segments
            segments.first_offset = found.first_offset
            segments.last_chunk = found.last_chunk
            segments.strays = found.strays
            for segment in found.segments:
                segments.bytes += segment.size
            log.recovered(found.next_offset, found.load())
            self._progress.queues += 1
            self._progress.messages += log.next_offset - log.first_offset
        return True

    # -- the journal ------------------------------------------------------------------------------------------------------

    def _take_journal(self, replayed: Replay) -> None:
        """The files stay as they are until their entries are scattered; what is written goes into a new one.

        Ensures: every block that counts is synced, and no block is behind what counts in its file.
        Assumes: `replayed` has the files in the order of their numbers, and what is torn was promised to nobody.
        """
        journal = self._store.journal
        epoch: i64 = 0
        if not self.clean:
            for path in replayed.headless:
                data = read_file(self._disk, path)
                if data.count(0) != len(data):
                    self._store.damage.keep_aside(path, data)
                self._disk.remove(path)
        for one in replayed.files:
            file = self._disk.open(one.path)
            if one.torn:
                file.truncate(int(one.end))
            if not self.clean:
                _write_last_block_anew(file, one)
            file.sync()
            journal.files.add(one.path, one.num, one.nonce, one.end, file)
            epoch = max(epoch, one.epoch)
        journal.epoch = epoch + 1
        journal.files.number = epoch
        journal.files.use_slots_from(replayed.slots)


def _write_last_block_anew(file: DiskFile, found: FoundFile) -> None:
    """Its sync may have failed before the crash. Then the kernel shows what it could not write, takes it for clean, and would
    sync nothing. The header was synced with the first block.
    """
    begin = int(found.last) if found.last > ALIGNMENT else 0
    file.write_at(begin, file.read_at(begin, int(found.end) - begin))
