"""The queue index: for each place of one queue, what the disk knows of it.

    publish  --epoch-->  journal  --scatter-->  segment  --all acked-->  nothing
             (PENDING, WRITING)  (JOURNAL)      (SEGMENT)

The journal is shared by the queues of a vhost (journal.py says why); segments are the queue's own. A publish goes to
the journal with the next epoch. It stays there until the journal is *scattered*, on one of three occasions: too many
entries of the queue are in it, the queue idles, or memory is to be freed (delta has no room for a place that is not in
a segment). Then what is still alive is written to the segments, which are synced, and the journal can do without it.
Where publish and ack meet before the epoch is written, nothing is ever written; where they meet in the journal, no
segment is.

Paged transient messages use the same segments in files of their own, and never the journal.

What must stay true:
- a PUBLISH entry that the disk may have gets an ACK entry in a later block when its place is settled;
- journal files from `oldest_file()` on are kept: what stands before is in synced segments, or gone;
- `in_journal` is in seq_id order, and everything in it comes behind everything in segments;
- a segment is deleted when nothing in it is alive, except while a scatter writes to it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from librt.strings import BytesWriter, write_i32_be, write_i64_be
from mypy_extensions import i32, i64

from rabbitpy_broker.storage.files import Disk
from rabbitpy_broker.storage.message_store import MessageStore
from rabbitpy_broker.storage.place import (
    BETA,
    GONE,
    JOURNAL,
    PAGING,
    PENDING,
    RAM,
    RELOG,
    SEGMENT,
    TRANSIENT,
    WRITING,
    Place,
    PlaceMaker,
)
from rabbitpy_broker.storage.records import (
    ACK,
    DELIVER,
    MSG_ID_SIZE,
    PUBLISH_HEAD,
    REDELIVERED,
    STORED,
    Entry,
    read_message,
    stored_size,
    write_message,
    write_publish_head,
    write_range,
    write_ranges,
)
from rabbitpy_broker.storage.segment import (
    BLOCK_HEAD,
    HEADER_SIZE,
    BlockCounts,
    Damage,
    Segment,
    block,
    file_header,
    live_entries,
    parse,
)
from rabbitpy_broker.storage.terms import SegmentTerms, ranges

if TYPE_CHECKING:
    from rabbitpy_broker.storage.journal import Journal

READ_AHEAD_BYTES: i64 = 524_288
COMPACT_ABOVE: i64 = 1_024


class SegmentWrite:
    """One block on its way to a segment file, with the places in it and where their bytes will stand."""

    def __init__(self, segment: Segment, transient: bool, path: str, offset: i64, data: bytes) -> None:
        self.segment = segment
        self.transient = transient
        self.path = path
        self.offset = offset
        self.data = data
        self.places: list[Place] = []
        self.offsets: list[i64] = []
        self.sizes: list[i64] = []
        self.stored: i64 = 0
        self.has_acks = False

    def is_first(self) -> bool:
        """True when it begins the file: `data` has the file's header before the block."""
        return self.offset == HEADER_SIZE


class PurgedSegment:
    """A file of a segment that stays, and what is purged of it."""

    def __init__(self, segment: Segment, transient: bool) -> None:
        self.segment = segment
        self.transient = transient
        self.entries: list[Entry] = []


class ScatterListener:
    """Who wants to know that a scatter has ended: the queue, for what it has had paged."""

    def scattered(self) -> None:
        """Places that were on their way are in segments."""
        raise NotImplementedError


class QueueIndex:
    """`durable` is False for a queue that goes with the broker: it uses transient segments only."""

    def __init__(self, journal: Journal, path: str, queue_id: int, durable: bool, maker: PlaceMaker) -> None:
        self.journal = journal
        self.maker = maker
        self.path = path
        self.queue_id = queue_id
        self.durable = durable
        self.disk: Disk = journal.disk
        self.entry_count: i64 = journal.segment_entry_count
        self.segments: dict[int, Segment] = {}
        self.listener: ScatterListener | None = None
        self.deleted = False
        self.has_files = False
        self.disk_reads: i64 = 0
        self.disk_writes: i64 = 0
        # for the next epoch
        self.pending: list[Place] = []
        self.pending_acks: list[int] = []
        self.pending_ranges: list[tuple[int, int]] = []  # acked by purge: first seq_id, count
        self.publishes_due = False  # the journal knows that `pending` is not empty
        self.dirty = False  # the journal will ask for a section
        # in the epoch that is on its way
        self.writing: list[Place] = []
        self.writing_offsets: list[i64] = []  # within the block's payload
        self.writing_acks: list[int] = []
        self.writing_ranges: list[tuple[int, int]] = []
        # in the journal
        self.in_journal: list[Place] = []
        self.journal_live: i64 = 0
        self.ack_file: i64 = 0  # the oldest journal file with an ACK that its segment does not have; 0: none
        # on the way to segments
        self.scatter_due = False
        self.unreadable = False  # until the next tick: what a scatter wants to move cannot be read
        self.scattering: list[Place] = []
        self.scattered_upto: i64 = 0
        self.to_page: list[Place] = []
        self.paging: list[Place] = []
        self._scattering_acks: list[tuple[Segment, list[int], i64, list[int]]] = []
        self._acks_scattered = False
        self._scattering_ack_file: i64 = 0
        self._scatter_began: i64 = 0  # the journal file that was written to then
        self.redelivered_below: i64 = 0  # places before that may have been delivered before a crash
        self.highest_in_segments: i64 = -1  # no place behind it is in a segment that must survive
        self.active = False  # since the last tick

    # -- publish and ack ------------------------------------------------------------------------------------------

    def publish(self, place: Place) -> None:
        """The place and its message are to be durable: with the journal's next epoch."""
        place.where = PENDING
        self.pending.append(place)
        if not self.publishes_due:
            self.publishes_due = True
            self._mark_dirty()
            self.journal.publishes_due()

    def _mark_dirty(self) -> None:
        self.active = True
        if not self.dirty:
            self.dirty = True
            self.journal.dirty.append(self)

    def ack(self, place: Place) -> None:
        """The place is settled; the caller has no further use for it. Releases what the stores hold for it."""
        where = place.where
        place.where = GONE
        place.message = None
        if where == PENDING or where == PAGING:
            pass  # nothing of it is on disk; who is about to write it will see that it is gone
        elif where == SEGMENT or where == TRANSIENT:
            self._ack_in_segment(place, where == TRANSIENT)
        elif where != RAM and where != BETA:
            self._ack_due(place.seq_id)
            if where == JOURNAL:
                self.journal_live -= 1
                if len(self.in_journal) > 2 * self.journal_live + COMPACT_ABOVE:
                    self._compact()
        self.release(place)

    def release(self, place: Place) -> None:
        """The message store may forget the message as far as this place is concerned."""
        entry = place.stored
        if entry is not None:
            place.stored = None
            self._store_of(place).release(entry)

    def _store_of(self, place: Place) -> MessageStore:
        journal = self.journal
        return journal.transient_messages if place.in_transient_store else journal.persistent_messages

    def _ack_due(self, seq_id: i64) -> None:
        self.pending_acks.append(seq_id)
        if not self.dirty:
            self._mark_dirty()
        self.journal.acks_due(1)

    def _ack_in_segment(self, place: Place, transient: bool) -> None:
        seq_id = place.seq_id
        segment = self.segments[seq_id // self.entry_count]
        self._settle_in_segment(segment, seq_id, place.body_size, transient)
        if not transient:
            if self.ack_file == 0:
                self.ack_file = self.journal.current_file_num()
            self._ack_due(seq_id)
        if segment.live == 0 and not segment.busy:
            self._delete_segment(segment)

    def _settle_in_segment(self, segment: Segment, seq_id: i64, body_size: i64, transient: bool) -> None:
        """Counts a place off its segment; the file is told with the next scatter."""
        segment.mark_acked(seq_id)
        segment.live -= 1
        segment.live_bytes -= body_size
        if transient:
            segment.transient_live -= 1
            segment.transient_live_bytes -= body_size
        else:
            segment.new_acks.append(seq_id)
            segment.new_acked_bytes += body_size

    def _delete_segment(self, segment: Segment) -> None:
        """Nothing in it is alive. Whoever acked it has seen to the ACK entries in the journal."""
        del self.segments[segment.num]
        if segment.size > 0:
            acked_from = self.ack_file if self.ack_file > 0 else self.journal.current_file_num()
            if 0 < self._scattering_ack_file < acked_from:
                acked_from = self._scattering_ack_file
            self.journal.cut_later(self.segment_path(segment.num, False), 0, acked_from)
        if segment.transient_size > 0:
            self.journal.cut_later(self.segment_path(segment.num, True), 0, 0)

    def _compact(self) -> None:
        self.in_journal = [place for place in self.in_journal if place.where == JOURNAL]

    # -- the epoch ------------------------------------------------------------------------------------------------

    def write_section(self, out: BytesWriter) -> None:
        """Writes what is due into the block that the journal is building."""
        self.dirty = False
        self.publishes_due = False
        writing: list[Place] = []
        size: i64 = 0
        elided: i64 = 0
        for place in self.pending:
            if place.where == GONE:
                elided += 1
                continue
            place.where = WRITING
            writing.append(place)
            size += PUBLISH_HEAD + self._payload_size(place)
        self.journal.elided += elided
        self.pending = []
        self.writing = writing
        self.disk_writes += len(writing)
        self.writing_acks = self.pending_acks
        self.pending_acks = []
        self.writing_ranges = self.pending_ranges
        self.pending_ranges = []
        acks = BytesWriter()
        write_ranges(acks, ACK, self.writing_acks)
        for first, count in self.writing_ranges:
            write_range(acks, ACK, first, count)
        size += len(acks)
        offsets: list[i64] = []
        if size > 0:
            write_i64_be(out, _signed(self.queue_id))
            write_i32_be(out, i32(size))
            for place in writing:
                offsets.append(len(out) + PUBLISH_HEAD)
                place.size = self._write_publish(out, place)
            out.write(acks.getvalue())
        self.writing_offsets = offsets

    def _payload_size(self, place: Place) -> i64:
        """Bytes of what follows the head of its publish entry."""
        message = place.message
        if place.stored is not None:
            return MSG_ID_SIZE
        assert message is not None, "kept by: a message is dropped only where its body can be read back"
        return stored_size(message)

    def _write_publish(self, out: BytesWriter, place: Place) -> i64:
        """Writes the entry of a place; returns the size of what follows its head."""
        flags: i64 = REDELIVERED if place.redelivered else 0
        entry = place.stored
        if entry is not None:
            write_publish_head(out, flags | STORED, place.seq_id, place.expiry, place.body_size, MSG_ID_SIZE)
            out.write(entry.msg_id)
            return MSG_ID_SIZE
        message = place.message
        assert message is not None, "kept by: a message is dropped only where its body can be read back"
        size = stored_size(message)
        write_publish_head(out, flags, place.seq_id, place.expiry, place.body_size, size)
        write_message(out, message)
        return size

    def epoch_settled(self, ok: bool, file_num: i64, payload_offset: i64) -> None:
        """What `write_section` wrote is on disk from `payload_offset` of that file on; or, not `ok`, may be or not."""
        writing = self.writing
        self.writing = []
        if not ok:
            self._epoch_failed(writing)
            return
        in_journal = self.in_journal
        at: i64 = 0
        for place in writing:
            if place.where == WRITING:
                place.where = JOURNAL
                place.file_num = file_num
                place.offset = payload_offset + self.writing_offsets[at]
                in_journal.append(place)
                self.journal_live += 1
            at += 1
        self.writing_acks = []
        self.writing_ranges = []
        if self.journal_live > self.journal.max_entries:
            self.scatter()

    def _epoch_failed(self, writing: list[Place]) -> None:
        """Everything goes into the next epoch again, before what has come since."""
        again: list[Place] = []
        for place in writing:
            if place.where == WRITING:
                place.where = RELOG
                again.append(place)
        self.pending = again + self.pending
        self.pending_acks = self.writing_acks + self.pending_acks
        self.pending_ranges = self.writing_ranges + self.pending_ranges
        self.writing_acks = []
        self.writing_ranges = []
        self._mark_dirty()
        if self.pending:
            self.publishes_due = True
            self.journal.publishes_due()

    # -- scatter --------------------------------------------------------------------------------------------------

    def scatter(self) -> None:
        """Has what is in the journal moved to the segments, soon."""
        if not self.scatter_due and not self.deleted and not self.unreadable:
            self.scatter_due = True
            self.journal.scatter_later(self)

    def page(self, place: Place) -> None:
        """Has a transient place (RAM or BETA) written to a transient segment, soon."""
        place.where = PAGING
        self.to_page.append(place)
        self.scatter()

    def is_idle(self) -> bool:
        """True when nothing has happened since the last call."""
        idle = not self.active
        self.active = False
        return idle

    def has_journal_entries(self) -> bool:
        """True when a scatter would move something."""
        return self.journal_live > 0 or self.ack_file > 0

    def oldest_file(self) -> i64:
        """The oldest journal file that this queue needs; 0: none."""
        oldest: i64 = 0
        if self.in_journal:
            if len(self.in_journal) > self.journal_live:
                self._compact()
            if self.in_journal:
                oldest = self.in_journal[0].file_num
        for place in self.scattering:
            if place.where == JOURNAL:
                if oldest == 0 or place.file_num < oldest:
                    oldest = place.file_num
                break
        for file_num in (self.ack_file, self._scattering_ack_file):
            if file_num > 0 and (oldest == 0 or file_num < oldest):
                oldest = file_num
        return oldest

    def begin_scatter(self, limit: i64) -> None:
        """Takes what this scatter will write: at most `limit` places of the journal, all acks, all paged places."""
        self.scatter_due = False
        self._compact()
        self.scattering = self.in_journal[:limit]
        self.in_journal = self.in_journal[limit:]
        self.paging = self.to_page
        self.to_page = []
        self.scattered_upto = 0
        self._scattering_acks = []
        self._acks_scattered = False
        self._scattering_ack_file = self.ack_file
        self._scatter_began = self.journal.current_file_num()
        self.ack_file = 0
        for segment in self.segments.values():
            if segment.new_acks or segment.new_delivers:
                segment.busy = True
                self._scattering_acks.append(
                    (segment, segment.new_acks, segment.new_acked_bytes, segment.new_delivers)
                )
                segment.new_acks = []
                segment.new_acked_bytes = 0
                segment.new_delivers = []

    def next_writes(self, ends: dict[str, int], limit_bytes: i64) -> list[SegmentWrite]:
        """The next blocks, about `limit_bytes` of them; empty when there are no more. `ends` has each file's length so far."""
        if self.deleted:
            return []
        writes: list[SegmentWrite] = []
        if not self._acks_scattered:
            self._acks_scattered = True
            for segment, acks, acked_bytes, delivers in self._scattering_acks:
                if self.segments.get(segment.num) is segment:
                    writes.append(self._ack_write(ends, segment, acks, acked_bytes, delivers))
        places = self.scattering
        total: i64 = len(places)
        all_places: i64 = total + len(self.paging)
        at = self.scattered_upto
        written: i64 = 0
        while at < all_places and written < limit_bytes:
            transient = at >= total
            start = at
            first = self.paging[at - total] if transient else places[at]
            segment_num = first.seq_id // self.entry_count
            group: list[Place] = []
            border = all_places if transient else total
            while at < border and written < limit_bytes:
                place = self.paging[at - total] if transient else places[at]
                if place.seq_id // self.entry_count != segment_num:
                    break
                at += 1
                if place.where == GONE:
                    continue
                group.append(place)
                written += place.body_size + 100
            assert at > start, "kept by: the first place of a group is in its segment"
            if group:
                absent = [place for place in group if place.message is None and place.stored is None]
                try:
                    self.read_messages(absent, True)
                    writes.append(self._publish_write(ends, segment_num, transient, group))
                finally:
                    for place in absent:
                        place.message = None
        self.scattered_upto = at
        return writes

    def _ack_write(
        self, ends: dict[str, int], segment: Segment, acks: list[int], acked_bytes: i64, delivers: list[int]
    ) -> SegmentWrite:
        out = BytesWriter()
        counts = BlockCounts()
        counts.acks = len(acks)
        counts.acked_bytes = acked_bytes
        write_ranges(out, ACK, acks)
        write_ranges(out, DELIVER, delivers)
        write = self._write(ends, segment, False, out.getvalue(), counts)
        write.has_acks = len(acks) > 0
        return write

    def _publish_write(
        self, ends: dict[str, int], segment_num: i64, transient: bool, group: list[Place]
    ) -> SegmentWrite:
        segment = self.segments.get(segment_num)
        if segment is None:
            segment = Segment(segment_num, self.entry_count)
            self.segments[segment_num] = segment
        segment.busy = True
        out = BytesWriter()
        counts = BlockCounts()
        offsets: list[i64] = []
        sizes: list[i64] = []
        for place in group:
            offsets.append(len(out) + PUBLISH_HEAD)
            sizes.append(self._write_publish(out, place))
            if place.redelivered:
                segment.delivered.add(place.seq_id)
            counts.publishes += 1
            counts.published_bytes += place.body_size
            if place.stored is not None:
                counts.stored += 1
        write = self._write(ends, segment, transient, out.getvalue(), counts)
        base = write.offset + BLOCK_HEAD
        write.places = group
        write.offsets = [base + offset for offset in offsets]
        write.sizes = sizes
        write.stored = counts.stored
        return write

    def _write(
        self, ends: dict[str, int], segment: Segment, transient: bool, payload: bytes, counts: BlockCounts
    ) -> SegmentWrite:
        path = self.segment_path(segment.num, transient)
        data = block(payload, counts)
        end = ends.get(path)
        offset: i64 = segment.transient_size if transient else segment.size
        if end is not None:
            offset = end
        write = SegmentWrite(segment, transient, path, offset, data)
        self.disk_writes += 1
        self.journal.do_not_cut(path)
        if offset == 0:
            self.has_files = True
            write.data = file_header(self.queue_id, int(segment.num), transient) + data
            write.offset = HEADER_SIZE
            offset = HEADER_SIZE
        ends[path] = int(offset + len(data))
        return write

    def end_scatter(self, ok: bool, writes: list[SegmentWrite]) -> None:
        """All `writes` of this queue are on disk, synced; or not `ok`: nothing of them counts."""
        scattering, paging = self.scattering, self.paging
        acks = self._scattering_acks
        self.scattering = []
        self.paging = []
        self._scattering_acks = []
        ack_file = self._scattering_ack_file
        self._scattering_ack_file = 0
        if self.deleted:
            return
        if ok:
            for write in writes:
                self._written(write)
        else:
            for segment, seq_ids, acked_bytes, delivers in acks:
                segment.new_acks = seq_ids + segment.new_acks
                segment.new_acked_bytes += acked_bytes
                segment.new_delivers = delivers + segment.new_delivers
            if ack_file > 0:
                self.ack_file = ack_file
            for write in writes:
                # It may be there or not, now or after a crash; the ACKs of what is in it stay until it is not.
                size = write.segment.transient_size if write.transient else write.segment.size
                self.journal.cut_later(write.path, size, self._scatter_began)
        touched = [segment for segment, _, _, _ in acks]
        touched.extend([write.segment for write in writes])
        for segment in touched:
            segment.busy = False
        left = [place for place in scattering if place.where == JOURNAL]
        if left:
            self.in_journal = left + self.in_journal
        unpaged = [place for place in paging if place.where == PAGING]
        if unpaged:
            self.to_page = unpaged + self.to_page
        for segment in touched:
            if segment.live == 0 and self.segments.get(segment.num) is segment:
                self._delete_segment(segment)
        if ok and self.listener is not None:
            self.listener.scattered()

    def _written(self, write: SegmentWrite) -> None:
        segment = write.segment
        end: i64 = len(write.data)
        if not write.is_first():
            end += write.offset
        if write.transient:
            segment.transient_size = end
        else:
            segment.size = end
            if write.places:
                self.highest_in_segments = max(self.highest_in_segments, write.places[-1].seq_id)
        segment.stored += write.stored
        at: i64 = 0
        for place in write.places:
            segment.live += 1
            segment.live_bytes += place.body_size
            if write.transient:
                segment.transient_live += 1
                segment.transient_live_bytes += place.body_size
            where = place.where
            if where == JOURNAL:
                self.journal_live -= 1
            if where == GONE:
                # Settled meanwhile: its ACK is in the journal or due, and the segment is to have one as well.
                self._settle_in_segment(segment, place.seq_id, place.body_size, write.transient)
                if not write.transient and self.ack_file == 0:
                    self.ack_file = self._scatter_began
            else:
                place.where = TRANSIENT if write.transient else SEGMENT
                place.offset = write.offsets[at]
                place.size = write.sizes[at]
                if place.redelivered and not write.transient:
                    self.deliver(place)  # handed out since the block was built
            at += 1

    # -- reading --------------------------------------------------------------------------------------------------

    def segment_path(self, num: i64, transient: bool) -> str:
        return f"{self.path}/{int(num):08x}.{'transient' if transient else 'segment'}"

    def boundary(self, seq_id: i64) -> i64:
        """The first seq_id of the segment behind that of `seq_id`."""
        return (seq_id // self.entry_count + 1) * self.entry_count

    def read_segment(self, num: i64) -> list[Place]:
        """Every live place of a segment, in order, without messages.

        What is damaged is reported, counted off and forgotten. Raises OSError.
        """
        segment = self.segments.get(num)
        if segment is None:
            return []
        found: list[Place] = []
        if segment.size > 0:
            self._read_file(segment, False, found)
        if segment.transient_size > 0:
            self._read_file(segment, True, found)
            found.sort(key=_seq_id)
        return found

    def _read_whole(self, segment: Segment, transient: bool) -> bytes:
        self.disk_reads += 1
        size = int(segment.transient_size if transient else segment.size)
        file = self.disk.open(self.segment_path(segment.num, transient))
        try:
            data: bytes = file.read_at(0, size)
        finally:
            file.close()
        return data

    def _read_file(self, segment: Segment, transient: bool, found: list[Place]) -> None:
        path = self.segment_path(segment.num, transient)
        data = self._read_whole(segment, transient)
        parsed = parse(data, path, self.queue_id, int(segment.num))
        entries = live_entries(segment, parsed)
        journal = self.journal
        lost: i64 = 0
        for seq_id in sorted(entries):
            entry = entries[seq_id]
            place = self.maker.make_place(entry.seq_id, entry.body_size)
            place.expiry = entry.expiry
            place.redelivered = bool(entry.flags & REDELIVERED) or entry.seq_id < self.redelivered_below
            place.where = TRANSIENT if transient else SEGMENT
            place.offset = entry.data
            place.size = entry.size
            if entry.flags & STORED:
                place.in_transient_store = transient
                place.stored = self._store_of(place).lookup(data[entry.data : entry.data + entry.size])
                if place.stored is None:
                    lost += 1
                    place.where = GONE
                    self._settle_in_segment(segment, place.seq_id, place.body_size, transient)
                    continue
            found.append(place)
        damage = parsed.damage
        if parsed.header:
            damage.append(Damage(path, 0, int(HEADER_SIZE), parsed.header))
        if damage or parsed.torn or lost:
            if parsed.torn:
                damage.append(Damage(path, int(parsed.size), int(parsed.torn), "unreadable"))
            if damage:
                journal.keep_aside(path, data)
            journal.report_damage(self, path, damage, int(lost))

    def read_messages(self, places: list[Place], keep_dropped: bool) -> None:
        """Brings the messages of these places, neighbours in the queue, into RAM. Raises OSError, FormatError, DamagedError.

        `keep_dropped`: for a scatter, which wants the embedded ones only.
        """
        at: i64 = 0
        count: i64 = len(places)
        while at < count:
            first = places[at]
            if first.message is not None or (keep_dropped and first.stored is not None):
                at += 1
                continue
            entry = first.stored
            if entry is not None:
                first.message = self._store_of(first).read(entry)
                at += 1
                continue
            low = first.offset
            high = low + first.size
            last = at + 1
            while last < count:
                place = places[last]
                if (
                    place.message is not None
                    or place.stored is not None
                    or place.where != first.where
                    or place.file_num != first.file_num
                    or place.offset < high
                    or place.offset - high > 4_096
                    or place.offset + place.size - low > READ_AHEAD_BYTES
                    or (first.where != JOURNAL and place.seq_id // self.entry_count != first.seq_id // self.entry_count)
                ):
                    break
                high = place.offset + place.size
                last += 1
            data = self._read_span(first, low, high)
            while at < last:
                place = places[at]
                begin = place.offset - low
                place.message = read_message(data, begin, begin + place.size)
                at += 1

    def _read_span(self, place: Place, low: i64, high: i64) -> bytes:
        self.disk_reads += 1
        if place.where == JOURNAL:
            return self.journal.read(place.file_num, int(low), int(high - low))
        path = self.segment_path(place.seq_id // self.entry_count, place.where == TRANSIENT)
        return self.journal.read_file(path, int(low), int(high - low))

    def deliver(self, place: Place) -> None:
        """The place goes to delta, or the broker stops; it had been handed out before."""
        segment = self.segments[place.seq_id // self.entry_count]
        if place.seq_id not in segment.delivered:
            segment.delivered.add(place.seq_id)
            if place.where == SEGMENT:
                segment.new_delivers.append(place.seq_id)

    # -- a clean stop and the start after it --------------------------------------------------------------------------

    def terms(self, next_seq_id: i64) -> list[object]:
        """What the next start has to know of this queue; terms.py has the form."""
        segments: list[object] = []
        for one in self.segments.values():
            live = one.live - one.transient_live
            if one.size > 0 and live > 0:
                segments.append(
                    [
                        int(one.num),
                        int(live),
                        int(one.live_bytes - one.transient_live_bytes),
                        int(one.stored),
                        int(one.size),
                        ranges(sorted(one.new_acks)),
                        int(one.new_acked_bytes),
                        ranges(sorted(one.new_delivers)),
                    ]
                )
        in_journal = [place for place in self.in_journal if place.where == JOURNAL]
        return [
            int(next_seq_id),
            int(self.redelivered_below),
            segments,
            int(self.highest_in_segments),
            ranges([int(place.seq_id) for place in in_journal]),
            ranges([int(place.seq_id) for place in in_journal if place.redelivered]),
        ]

    def take_segment(self, terms: SegmentTerms, journal_file: i64) -> None:
        """A segment as the terms have it. `journal_file` is the oldest one that may have its ACKs."""
        segment = Segment(terms.num, self.entry_count)
        segment.live = terms.live
        segment.live_bytes = terms.live_bytes
        segment.stored = terms.stored
        segment.size = terms.size
        for seq_id in terms.acked:
            segment.mark_acked(seq_id)
        segment.new_acks = terms.acked
        segment.new_acked_bytes = terms.acked_bytes
        segment.delivered = set(terms.delivered)
        segment.new_delivers = terms.delivered
        if terms.acked:
            self.ack_file = max(1, journal_file)
        self.segments[segment.num] = segment

    def take_place(self, place: Place, file_num: i64, entry: Entry) -> None:
        """A place that the journal alone has."""
        place.expiry = entry.expiry
        place.where = JOURNAL
        place.file_num = file_num
        place.offset = entry.data
        place.size = entry.size
        self.in_journal.append(place)
        self.journal_live += 1

    # -- the end of many ------------------------------------------------------------------------------------------

    def plan_purge(self, keep: list[Place]) -> list[PurgedSegment]:
        """What `purge` has to know of segments that cannot go as a whole: they have some of `keep`, or a scatter writes
        to them. Changes nothing. Raises OSError.
        """
        plan: list[PurgedSegment] = []
        kept = {int(place.seq_id) for place in keep}
        nums = {int(place.seq_id // self.entry_count) for place in keep if place.where in (SEGMENT, TRANSIENT)}
        for segment in self.segments.values():
            if int(segment.num) not in nums and not segment.busy:
                continue
            for transient in (False, True):
                if (segment.transient_size if transient else segment.size) == 0:
                    continue
                part = PurgedSegment(segment, transient)
                path = self.segment_path(segment.num, transient)
                data = self._read_whole(segment, transient)
                for entry in live_entries(segment, parse(data, path, self.queue_id, int(segment.num))).values():
                    if int(entry.seq_id) not in kept:
                        part.entries.append(entry)
                plan.append(part)
        return plan

    def purge(self, keep: list[Place], low: i64, high: i64, plan: list[PurgedSegment]) -> None:
        """Every place in [low, high) is settled but for `keep`, which is sorted by seq_id.

        The caller has marked the places that it has in memory as GONE, and has released what the message stores had
        for all of them.
        """
        self.pending = [place for place in self.pending if place.where != GONE]
        self._compact()
        self.journal_live = len(self.in_journal)
        for place in self.scattering:
            if place.where == JOURNAL:
                self.journal_live += 1
        if self.durable:
            start = low
            for place in keep:
                if place.seq_id > start:
                    self.pending_ranges.append((int(start), int(place.seq_id - start)))
                start = max(start, place.seq_id + 1)
            if high > start:
                self.pending_ranges.append((int(start), int(high - start)))
            self._mark_dirty()
            self.journal.acks_due(1)
        in_part: set[int] = set()
        for part in plan:
            in_part.add(part.segment.num)
            for entry in part.entries:
                self._settle_in_segment(part.segment, entry.seq_id, entry.body_size, part.transient)
                if not part.transient and self.ack_file == 0:
                    self.ack_file = self.journal.current_file_num()
        for segment in list(self.segments.values()):
            if segment.num not in in_part:
                segment.live = 0
            if segment.live == 0 and not segment.busy:
                self._delete_segment(segment)

    def delete(self) -> None:
        """The queue is gone, and its folder goes."""
        self.deleted = True
        self.pending = []
        self.pending_acks = []
        self.pending_ranges = []
        self.in_journal = []
        self.journal_live = 0
        self.ack_file = 0
        self.to_page = []
        self.segments = {}
        self.journal.forget(self)


def _seq_id(place: Place) -> int:
    return place.seq_id


def _signed(queue_id: int) -> i64:
    """A 64-bit queue_id as the integer that has the same bits."""
    return i64(queue_id - (1 << 64) if queue_id >> 63 else queue_id)
