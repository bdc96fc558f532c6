"""The store of one vhost: its journal, its two message stores and the indexes of its queues, started and stopped.

    <path>/journal/<slot>.journal               what was published and acked lately, of all queues
           queues/<queue_id>/<num>.segment      the rest of each queue's index, and its small messages
                             <num>.transient    paged transient messages; removed at each start
           msg_store_persistent/<num>.store     large messages
           msg_store_transient/                 paged large transient messages; removed at each start
           recovery_terms                       what is in everything above; only after a clean stop
           damaged/                             copies of files in which damage was found

A stop has the last epoch synced and writes `recovery_terms` (terms.py), nothing else: it does not scatter, so that it takes
the same few syncs for one queue and for fifty thousand. The start after it reads the terms and, for what was not scattered
yet, the journal; the terms are removed before anything is changed. Without them the store is recovered by scanning: the
message store's files and the journal are read whole; of segments only the heads of blocks, except where the journal or the
message store has to know more. Every message that is found after a crash counts as redelivered: the disk does not know
what was delivered last.

What must stay true: no index is made for a queue_id that was used before; files of a queue_id that the definitions do
not have are removed; whenever a stop is cut short, the journal has all that was promised.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

from mypy_extensions import i64

from rabbitpy_broker.errors import StartError
from rabbitpy_broker.storage.damage import DamageLog
from rabbitpy_broker.storage.files import Disk
from rabbitpy_broker.storage.journal import Journal
from rabbitpy_broker.storage.large_messages import LargeMessages
from rabbitpy_broker.storage.message_store import MessageStore
from rabbitpy_broker.storage.place import Place, PlaceMaker
from rabbitpy_broker.storage.queue_index import QueueIndex
from rabbitpy_broker.storage.queue_scatter import QueueScatter
from rabbitpy_broker.storage.queue_segments import QueueSegments
from rabbitpy_broker.storage.records import PUBLISH, STORED, Entry
from rabbitpy_broker.storage.recovery import Replay, ReplayedQueue, replay
from rabbitpy_broker.storage.scatter import Scatter
from rabbitpy_broker.storage.segment import (
    HEADER_SIZE,
    Damage,
    Parsed,
    Segment,
    file_header,
    live_entries,
    parse,
    restore,
    walk,
)
from rabbitpy_broker.storage.sync import StoreHost, Threads
from rabbitpy_broker.storage.terms import TERMS, TERMS_VERSION, QueueTerms, Terms, TermsWrite, read_terms
from rabbitpy_broker.storage.trouble import Trouble


def vhost_folder(name: str) -> str:
    """The name of a vhost's folder: readable, unless that would be too long for a file system."""
    quoted = quote(name, safe="")
    if len(quoted) <= 100 and quoted not in (".", ".."):
        return quoted
    return "vhost-" + hashlib.sha256(name.encode("utf-8")).hexdigest()[:32]


class StoreSettings:
    """Sizes in bytes; the names are the configuration's where it has them."""

    def __init__(self) -> None:
        self.msg_store_file_size_limit: i64 = 16_777_216
        self.queue_index_embed_msgs_below: i64 = 4_096
        self.queue_index_max_journal_entries: i64 = 32_768
        self.segment_entry_count: i64 = 16_384
        self.journal_file_size_limit: i64 = 33_554_432


class RecoveredQueue:
    """What a queue begins with: see VariableQueue.recovered."""

    def __init__(self, index: QueueIndex) -> None:
        self.index = index
        self.next_seq_id: i64 = 0
        self.delta_end: i64 = 0
        self.places: list[Place] = []
        self.messages: i64 = 0


class VHostStore:
    """`recover` comes first and once. `log` is a structlog logger. Without a host nothing is synced but at a tick."""

    def __init__(
        self,
        disk: Disk,
        threads: Threads,
        path: str,
        settings: StoreSettings,
        log: Any,
        host: StoreHost | None = None,
    ) -> None:
        self.disk = disk
        self.path = path
        self.settings = settings
        self.log = log
        self.clean = True
        self._scanned: i64 = 0
        self._highest_in_segments: i64 = -1
        self._began = 0.0
        self._reported = 0.0
        self._unsynced: list[str] = []  # segments that the last scatter may have written to
        self._folders: dict[str, None] = {}  # of queues, as a start finds them
        limit = settings.msg_store_file_size_limit
        try:
            for folder in ("journal", "queues"):
                disk.make_dir(f"{path}/{folder}")
            self.persistent_messages = MessageStore(
                disk, threads, f"{path}/msg_store_persistent", limit, False, log
            )
            self.transient_messages = MessageStore(disk, threads, f"{path}/msg_store_transient", limit, True, log)
        except OSError as error:
            raise StartError(f"cannot use {path}: {error}") from None
        self.damage = DamageLog(disk, path, log)
        self.large = LargeMessages(self.persistent_messages, self.transient_messages)
        folder = f"{path}/journal"
        self.trouble = Trouble(folder, host, log)
        self.journal = Journal(disk, threads, folder, self.persistent_messages, self.trouble, host)
        self.journal.files.size_limit = settings.journal_file_size_limit
        self.scatter = Scatter(disk, threads, self.journal, self.transient_messages, self.trouble, log)

    def new_index(self, queue_id: int, durable: bool, maker: PlaceMaker) -> QueueIndex:
        """The index of a queue that is new. Makes nothing on disk."""
        path = f"{self.path}/queues/{queue_id:016x}"
        entry_count = self.settings.segment_entry_count
        segments = QueueSegments(self.disk, path, queue_id, entry_count, self.large, self.damage, maker)
        max_entries = self.settings.queue_index_max_journal_entries
        index = QueueIndex(self.journal, segments, self.large, queue_id, durable, max_entries)
        QueueScatter(index, self.scatter)
        if durable:
            self.journal.users[queue_id] = index
        return index

    # -- start ----------------------------------------------------------------------------------------------------

    def forget(self, index: QueueIndex) -> None:
        """A queue that was asked for in `recover`, and of which nothing was found, is not to be."""
        self.journal.users.pop(index.queue_id, None)

    def recover(self, makers: dict[int, PlaceMaker]) -> dict[int, RecoveredQueue]:
        """Brings back the durable queues, by queue_id; each with the maker of its places.

        Raises StartError when the disk cannot be read.
        """
        queue_ids = list(makers)
        began = self._began = self._reported = time.monotonic()
        try:
            self._folders = dict.fromkeys(self.disk.list_dir(f"{self.path}/queues"))
            found = self._recover_clean(makers)
            if found is None:
                self.clean = False
                found = self._recover_by_scan(makers)
            self._remove_strangers(queue_ids)
        except OSError as error:
            raise StartError(f"cannot recover {self.path}: {error}") from None
        seconds = time.monotonic() - began
        self.log.info(
            "store recovered",
            path=self.path,
            clean=self.clean,
            queues=len(queue_ids),
            messages=sum([int(queue.messages) for queue in found.values()]),
            mb=round(int(self._scanned) / 1e6, 1),
            mb_per_s=round(int(self._scanned) / 1e6 / seconds, 1) if seconds > 0 else 0.0,
            seconds=round(seconds, 3),
        )
        return found

    def _read(self, path: str) -> bytes:
        file = self.disk.open(path)
        try:
            data: bytes = file.read_at(0, file.size())
        finally:
            file.close()
        return data

    def _remove_strangers(self, queue_ids: list[int]) -> None:
        known = {f"{queue_id:016x}" for queue_id in queue_ids}
        for name in self._folders:
            if name not in known:
                self.disk.remove_tree(f"{self.path}/queues/{name}")
        self._folders = {}

    def _make(self, queue_id: int, maker: PlaceMaker) -> RecoveredQueue:
        return RecoveredQueue(self.new_index(queue_id, True, maker))

    def _segment_nums(self, index: QueueIndex) -> list[int]:
        """The numbers of the segments that have a file; transient ones are removed on the way."""
        nums: list[int] = []
        if f"{index.queue_id:016x}" not in self._folders:
            return nums
        for name in self.disk.list_dir(index.segments.path):
            stem, _, kind = name.partition(".")
            if kind == "transient":
                self.disk.remove(f"{index.segments.path}/{name}")
            elif kind == "segment":
                nums.append(int(stem, 16))
        index.segments.has_files = index.segments.has_files or len(nums) > 0
        return sorted(nums)

    # -- after a clean stop ---------------------------------------------------------------------------------------

    def _recover_clean(self, makers: dict[int, PlaceMaker]) -> dict[int, RecoveredQueue] | None:
        """None when there are no terms, or they do not fit what is there."""
        path = f"{self.path}/{TERMS}"
        if not self.disk.exists(path):
            return None
        data = self._read(path)
        self._scanned += len(data)
        terms = read_terms(data)
        found: dict[int, RecoveredQueue] | None = None
        if terms is not None:
            found = self._take_terms(terms, makers)
        if found is None:
            self.log.warning("recovery terms do not fit", path=path)
            self.journal.users = {}
            self.scatter.removals.forget_all()
        self.disk.remove(path)
        self.disk.sync_dir(self.path)
        return found

    def _take_terms(self, terms: Terms, makers: dict[int, PlaceMaker]) -> dict[int, RecoveredQueue] | None:
        replayed = self._replay_needed(terms)
        if replayed is None or not self.persistent_messages.load_terms(terms.messages):
            return None
        found = self._load_queues(terms, replayed, makers)
        if found is None:
            return None
        # As long as the terms are there nothing else is asked, so what they do not name may go in any order.
        needed = {one.path for one in replayed.files}
        for name in self.disk.list_dir(f"{self.path}/journal"):
            if f"{self.path}/journal/{name}" not in needed:
                self.disk.remove(f"{self.path}/journal/{name}")
        self.disk.sync_dir(f"{self.path}/journal")
        replayed.headless = []
        self._take_journal(replayed)
        self.journal.files.num = terms.journal_file
        self.journal.epoch = terms.epoch
        return found

    def _replay_needed(self, terms: Terms) -> Replay | None:
        """What the journal files say that the terms name; None when they are not what they were."""
        if not terms.journal:
            return Replay()
        replayed = replay(self.disk, f"{self.path}/journal", self.log, terms.journal)
        self._scanned += replayed.bytes
        ends = {int(one.num): int(one.end) for one in replayed.files}
        for num, end in terms.journal.items():
            if ends.get(num, 0) < end:
                return None
        return None if replayed.damage else replayed

    def _load_queues(
        self, terms: Terms, replayed: Replay, makers: dict[int, PlaceMaker]
    ) -> dict[int, RecoveredQueue] | None:
        found: dict[int, RecoveredQueue] = {}
        nothing = ReplayedQueue()
        for queue_id, maker in makers.items():
            queue = self._make(queue_id, maker)
            found[queue_id] = queue
            one = terms.queue(queue_id)
            if not self._load_segments(queue, one, min(terms.journal, default=0)):
                return None
            if not self._load_places(queue, one, replayed.queues.get(queue_id, nothing)):
                return None
        return found

    def _load_segments(self, queue: RecoveredQueue, terms: QueueTerms, journal_file: int) -> bool:
        """False when the files are not what the terms say."""
        index = queue.index
        nums = self._segment_nums(index)
        if nums and not terms.is_known:
            return False
        queue.next_seq_id = terms.next_seq_id
        queue.delta_end = terms.delta_end()
        index.segments.redelivered_below = terms.redelivered_below
        index.segments.highest = terms.highest_in_segments
        left = set(nums)
        for segment in terms.segments:
            if segment.num not in left:
                return False
            path = index.segments.path_of(segment.num, False)
            size = self.disk.size(path)
            if size < segment.size:
                return False
            if size > segment.size:  # a scatter was stopped there
                self.scatter.cut_later(path, segment.size, journal_file)
            left.remove(segment.num)
            index.take_segment(segment, journal_file)
            queue.messages += segment.live
        for num in left:  # all of it is acked, or was never synced
            self.scatter.cut_later(index.segments.path_of(num, False), 0, journal_file)
        return True

    def _load_places(self, queue: RecoveredQueue, terms: QueueTerms, replayed: ReplayedQueue) -> bool:
        """False when the journal does not have what the terms say."""
        index = queue.index
        redelivered = set(terms.redelivered)
        for seq_id in terms.in_journal:
            entry = replayed.published.get(seq_id)
            if entry is None:
                return False
            place = index.segments.maker.make_place(entry.seq_id, entry.body_size)
            place.redelivered = seq_id in redelivered
            if entry.flags & STORED:
                place.stored = self.persistent_messages.lookup(replayed.msg_ids[seq_id])
                if place.stored is None:
                    return False
            index.take_place(place, replayed.file_nums[seq_id], entry)
        queue.places = list(index.in_journal)
        queue.messages += len(queue.places)
        return True

    # -- after a crash --------------------------------------------------------------------------------------------

    def _recover_by_scan(self, makers: dict[int, PlaceMaker]) -> dict[int, RecoveredQueue]:
        self.persistent_messages.recover_by_scan(self._read_on)
        replayed = replay(self.disk, f"{self.path}/journal", self.log)
        self._scanned += replayed.bytes
        self.damage.file_damaged(replayed.damage)
        for path in sorted({one.path for one in replayed.damage if one.path.endswith(".journal")}):
            self.damage.keep_aside(path, self._read(path))
        for one in replayed.files:
            if one.torn:
                self.log.warning("journal cut", path=one.path, offset=int(one.end), size=int(one.torn))
        self._unsynced = []
        found: dict[int, RecoveredQueue] = {}
        done: i64 = 0
        messages: i64 = 0
        for queue_id, maker in makers.items():
            queue = self._make(queue_id, maker)
            found[queue_id] = queue
            self._recover_queue(queue, replayed.queues.get(queue_id), replayed)
            done += 1
            messages += queue.messages
            self._progress(0, queues=int(done), of=len(makers), messages=int(messages))
        self._sync_segments()
        self._take_journal(replayed)
        dropped = self.persistent_messages.drop_unreferenced()
        if dropped:
            self.log.info("unreferenced messages dropped", path=self.path, messages=dropped)
        return found

    def _read_on(self, read_bytes: int) -> None:
        self._progress(read_bytes, queues=0, of=0, messages=0)

    def _progress(self, read_bytes: int, queues: int, of: int, messages: int) -> None:
        """A line in the log for each second that it takes."""
        self._scanned += read_bytes
        now = time.monotonic()
        if now - self._reported < 1.0:
            return
        self._reported = now
        mb = int(self._scanned) / 1e6
        self.log.info(
            "recovering",
            path=self.path,
            queues=queues,
            of=of,
            messages=messages,
            mb=round(mb, 1),
            mb_per_s=round(mb / (now - self._began), 1),
        )

    def _sync_segments(self) -> None:
        """What a killed broker had written to segments and not synced is relied on from now on."""
        for at in range(0, len(self._unsynced), 500):
            files = [self.disk.open(path) for path in self._unsynced[at : at + 500] if self.disk.exists(path)]
            try:
                self.disk.sync_all(files)
            finally:
                for file in files:
                    file.close()
        for folder in sorted({path.rpartition("/")[0] for path in self._unsynced}):
            self.disk.sync_dir(folder)
        self._unsynced = []

    def _take_journal(self, replayed: Replay) -> None:
        """The files stay as they are until their entries are scattered; what is written goes into a new one."""
        journal = self.journal
        epoch: i64 = 0
        for path in replayed.headless:
            data = self._read(path)
            if data.count(0) != len(data):
                self.damage.keep_aside(path, data)
            self.disk.remove(path)
        for one in replayed.files:
            file = self.disk.open(one.path)
            if one.torn:
                file.truncate(int(one.end))
            # What a killed broker had written and not synced is relied on from now on.
            file.sync()
            journal.files.add(one.path, one.num, one.nonce, one.end, file)
            epoch = max(epoch, one.epoch)
        journal.epoch = epoch + 1
        journal.files.use_slots_from(replayed.slots)

    def _recover_queue(self, queue: RecoveredQueue, replayed: ReplayedQueue | None, everything: Replay) -> None:
        index = queue.index
        self._highest_in_segments = -1
        if replayed is None:
            replayed = ReplayedQueue()
        top = replayed.top
        nums = self._segment_nums(index)
        count = self.settings.segment_entry_count
        mentioned = {seq_id // count for seq_id in replayed.published}
        acked = _by_segment(replayed.acked, count, nums)
        mentioned.update(acked)
        first_file: i64 = everything.files[0].num if everything.files else 1
        for num in nums:
            segment = Segment(num, count)
            path = index.segments.path_of(num, False)
            is_last = num == nums[-1]
            if num not in mentioned and not is_last:
                walked = walk(self.disk, path, index.queue_id, num)
                if walked is not None and walked[0].stored == 0:
                    counts, size = walked
                    segment.live = counts.publishes - counts.acks
                    segment.live_bytes = counts.published_bytes - counts.acked_bytes
                    segment.size = size
                    self._scanned += 100
                    if segment.live > 0:
                        index.segments.by_num[num] = segment
                        behind = segment.first_seq_id + count
                        self._highest_in_segments = max(self._highest_in_segments, behind - 1)
                    else:
                        self.disk.remove(path)
                    top = max(top, segment.first_seq_id)
                    continue
            may_be_torn = num in mentioned or is_last
            ranges = acked.get(num, [])
            top = max(top, self._recover_segment(queue, segment, replayed, ranges, first_file, may_be_torn))
        for segment in index.segments.by_num.values():
            queue.messages += segment.live
        queue.delta_end = top + 1
        self._take_places(queue, replayed)
        if index.in_journal:
            first_place = index.in_journal[0].seq_id
            highest = self._highest_in_segments
            queue.delta_end = min(queue.delta_end, max(first_place, highest + 1))
        index.segments.highest = self._highest_in_segments
        queue.next_seq_id = top + 1
        index.segments.redelivered_below = top + 1
        queue.places = list(index.in_journal)
        queue.messages += len(queue.places)

    def _recover_segment(
        self,
        queue: RecoveredQueue,
        segment: Segment,
        replayed: ReplayedQueue,
        acked: list[tuple[int, int]],
        first_file: i64,
        may_be_torn: bool,
    ) -> i64:
        """Reads a segment whole, and applies what the journal knows of it. Returns its highest seq_id."""
        index = queue.index
        path = index.segments.path_of(segment.num, False)
        data = self._read(path)
        self._unsynced.append(path)
        self._scanned += len(data)
        parsed = parse(data, path, index.queue_id, int(segment.num))
        unknown = False
        for entry in parsed.entries:
            if entry.kind == PUBLISH and entry.seq_id not in replayed.published:
                unknown = True
        self._judge(parsed, path, data, may_be_torn, unknown)
        self._cut_what_the_journal_has(segment, parsed, path, replayed, acked)
        restore(segment, parsed)
        highest: i64 = -1
        for entry in parsed.entries:
            if entry.kind == PUBLISH:
                highest = max(highest, entry.seq_id)
        live = live_entries(segment, parsed)
        for first, many in acked:
            if many <= len(live):
                for seq_id in range(first, first + many):
                    self._ack(index, segment, live, seq_id, first_file)
            else:
                for seq_id in [seq_id for seq_id in live if first <= seq_id < first + many]:
                    self._ack(index, segment, live, seq_id, first_file)
        for entry in list(live.values()):
            if entry.flags & STORED:
                msg_id = data[entry.data : entry.data + entry.size]
                if self.persistent_messages.add_ref(msg_id) is None:
                    self.damage.message_lost(path, int(entry.seq_id))
                    self._ack(index, segment, live, entry.seq_id, first_file)
        if live:
            index.segments.by_num[segment.num] = segment
            self._highest_in_segments = max(self._highest_in_segments, *live)
        else:
            self.disk.remove(path)
        return highest

    def _cut_what_the_journal_has(
        self, segment: Segment, parsed: Parsed, path: str, replayed: ReplayedQueue, acked: list[tuple[int, int]]
    ) -> None:
        """Cuts a segment from the first block on that the journal has whole: the next scatter writes it again.

        Its sync may have failed before the crash. Then the kernel shows what was written, takes it for clean, and would
        sync nothing. A block that has a message which the journal does not have is sound: the journal has let go of part
        of it, which it does after the sync only. What stands behind a block is younger than the block, and the journal
        lets go of the oldest first: so nothing is cut that the journal does not have.
        """
        published = replayed.published
        end = segment.first_seq_id + segment.entry_count
        known = {seq_id for seq_id in published if segment.first_seq_id <= seq_id < end}
        for begin, many in acked:
            known.update(range(max(begin, int(segment.first_seq_id)), min(begin + many, int(end))))
        for number, (offset, first) in enumerate(parsed.starts):
            last = parsed.starts[number + 1][1] if number + 1 < len(parsed.starts) else len(parsed.entries)
            publishes = [int(entry.seq_id) for entry in parsed.entries[first:last] if entry.kind == PUBLISH]
            doubled = [seq_id for seq_id in publishes if seq_id in published]
            if not doubled:
                continue
            if known.issuperset(publishes):
                parsed.entries = parsed.entries[:first]
                parsed.size = offset
                file = self.disk.open(path)
                try:
                    file.truncate(offset)
                finally:
                    file.close()
                return
            for seq_id in doubled:
                del published[seq_id]

    def _ack(
        self, index: QueueIndex, segment: Segment, live: dict[int, Entry], seq_id: int, first_file: i64
    ) -> None:
        entry = live.pop(seq_id, None)
        if entry is None:
            return
        segment.mark_acked(seq_id)
        segment.live -= 1
        segment.live_bytes -= entry.body_size
        segment.new_acks.append(seq_id)
        segment.new_acked_bytes += entry.body_size
        index.ack_file = first_file

    def _judge(self, parsed: Parsed, path: str, data: bytes, may_be_torn: bool, has_unknown: bool) -> None:
        """A torn tail is cut where a scatter may have been cut short; anything else is damage, and is kept aside.

        So is a header that is not sound, unless the journal has all that is behind it: then the file was new.
        """
        damage = parsed.damage
        if parsed.header and (has_unknown or not may_be_torn):
            damage.append(Damage(path, 0, int(HEADER_SIZE), parsed.header))
        if parsed.torn and not (may_be_torn and not damage):
            damage.append(Damage(path, int(parsed.size), int(parsed.torn), "unreadable"))
        elif parsed.torn or parsed.header:
            self.log.warning("segment cut", path=path, offset=int(parsed.size), size=int(parsed.torn))
        if damage:
            self.damage.keep_aside(path, data)
        self.damage.file_damaged(damage)
        if parsed.torn or parsed.header:
            file = self.disk.open(path)
            try:
                if parsed.torn:
                    file.truncate(int(parsed.size))
                if parsed.header:
                    num = int(path.rpartition("/")[2].partition(".")[0], 16)
                    queue_id = int(path.split("/")[-2], 16)
                    file.write_at(0, file_header(queue_id, num, False))
            finally:
                file.close()

    def _take_places(self, queue: RecoveredQueue, replayed: ReplayedQueue) -> None:
        """The places that only the journal has."""
        index = queue.index
        for seq_id in sorted(replayed.published):
            entry = replayed.published[seq_id]
            place = index.segments.maker.make_place(entry.seq_id, entry.body_size)
            place.redelivered = True
            if entry.flags & STORED:
                place.stored = self.persistent_messages.add_ref(replayed.msg_ids[seq_id])
                if place.stored is None:
                    self.damage.message_lost(self.journal.files.folder, int(entry.seq_id))
                    index.filling.acks.append(seq_id)
                    continue
            index.take_place(place, replayed.file_nums[seq_id], entry)

    def tick(self) -> None:
        """About once a second."""
        for _ in self.ticking():
            pass

    def ticking(self) -> Iterator[None]:
        """The same, in steps that are small however many queues there are."""
        self.journal.tick()
        yield from self.journal.ticking_users()
        self.scatter.tick()
        self.persistent_messages.compact_if_due()
        self.transient_messages.compact_if_due()

    def is_busy(self) -> bool:
        """True while a thread writes for it."""
        return self.journal.busy or self.scatter.is_busy()

    # -- stop -----------------------------------------------------------------------------------------------------

    def stop_work(self) -> None:
        """From now on nothing is scattered or compacted; what is under way ends soon."""
        self.scatter.stop()
        self.persistent_messages.stop_compacting()
        self.transient_messages.stop_compacting()

    def push(self) -> bool:
        """After `stop_work`: has the last epoch written; True when nothing is under way any more. Call it until then."""
        self.journal.flush()
        return self.journal.is_settled() and not (
            self.persistent_messages.is_compacting() or self.transient_messages.is_compacting()
        )

    def stop(self, next_seq_ids: dict[QueueIndex, int]) -> TermsWrite:
        """After `push`: closes the store. What is given is still to be done, in a thread. `next_seq_ids` has every durable
        queue's.
        """
        terms = {
            "version": TERMS_VERSION,
            "queues": {
                f"{index.queue_id:016x}": index.terms(next_seq_id) for index, next_seq_id in next_seq_ids.items()
            },
            "messages": self.persistent_messages.save_terms(),
            "journal_file": int(self.journal.files.num),
            "epoch": int(self.journal.epoch),
            "journal": self.journal.needed_files(),
        }
        self.journal.close()
        self.transient_messages.close()
        return TermsWrite(self.disk, self.path, terms)

    def abandon(self) -> None:
        """Closes files without a word: the next start recovers by scanning."""
        self.journal.close()
        self.persistent_messages.close()
        self.transient_messages.close()


def _by_segment(
    ranges: list[tuple[int, int]], entry_count: i64, nums: list[int]
) -> dict[int, list[tuple[int, int]]]:
    """Which of the ranges (first seq_id, count) meet each segment; a range over several meets those that there are."""
    found: dict[int, list[tuple[int, int]]] = {}
    for first, many in ranges:
        low, high = int(first // entry_count), int((first + many - 1) // entry_count)
        for num in [low] if low == high else [num for num in nums if low <= num <= high]:
            found.setdefault(num, []).append((first, many))
    return found
