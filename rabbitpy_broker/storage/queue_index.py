"""The queue index: for each place of one queue, what the disk knows of it.

    publish  --epoch-->  journal  --scatter-->  segment  --all acked-->  nothing
             (PENDING, WRITING)  (JOURNAL)      (SEGMENT)

The journal is shared by the queues of a vhost (journal.py says why); segments are the queue's own (queue_segments.py). A
publish goes to the journal with the next epoch. It stays there until the journal is *scattered* (queue_scatter.py), on one
of three occasions: too many entries of the queue are in it, the queue idles, or memory is to be freed (delta has no room
for a place that is not in a segment). Then what is still alive is written to the segments, which are synced, and the
journal can do without it. Where publish and ack meet before the epoch is written, nothing is ever written; where they
meet in the journal, no segment is.

Paged transient messages use the same segments in files of their own, and never the journal.

How often places of a quorum queue came back (`requeues`) is in the journal and never in segments: it is of few places, and
changes. It rides with the epochs as acks do. When the oldest file that has some of it is to go, all of it is written again.

What must stay true:
- a PUBLISH entry that the disk may have gets an ACK entry in a later block when its place is settled;
- journal files from `oldest_file()` on are kept: what stands before is in synced segments, or gone;
- `in_journal` is in seq_id order, and everything in it comes behind everything in segments;
- a segment is deleted when nothing in it is alive, except while a scatter writes to it.
"""

from __future__ import annotations

from typing import Final

from librt.strings import BytesWriter, write_i32_be, write_i64_be
from mypy_extensions import i32, i64, trait

from rabbitpy_broker.message import Message
from rabbitpy_broker.storage.journal import Journal, JournalUser
from rabbitpy_broker.storage.large_messages import LargeMessages
from rabbitpy_broker.storage.place import (
    BETA,
    GONE,
    JOURNAL,
    PAGING,
    PENDING,
    RAM,
    SEGMENT,
    TRANSIENT,
    WRITING,
    Place,
)
from rabbitpy_broker.storage.queue_segments import PurgedSegment, QueueSegments
from rabbitpy_broker.storage.records import (
    ACK,
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
    write_requeues,
)
from rabbitpy_broker.storage.segment import Segment
from rabbitpy_broker.storage.seq_ids import SeqIds
from rabbitpy_broker.storage.terms import SegmentTerms, ranges

READ_AHEAD_BYTES: Final[i64] = 524_288
COMPACT_ABOVE: Final[i64] = 1_024


@trait
class Mover:
    """The mover of one queue's places to its segments, which it also removes: queue_scatter.py."""

    def scatter(self) -> None:
        """Has what is in the journal moved to the segments, soon."""
        raise NotImplementedError

    def scatter_unless_busy(self) -> None:
        """As `scatter`, but not while a scatter is under way."""
        raise NotImplementedError

    def page(self, place: Place) -> None:
        """Has a transient place written to a transient segment, soon."""
        raise NotImplementedError

    def oldest_file(self) -> i64:
        """The oldest journal file that what is on its way needs; 0: none."""
        raise NotImplementedError

    def moving(self) -> i64:
        """The number of places on their way that are in the journal."""
        raise NotImplementedError

    def remove(self, segment: Segment) -> None:
        """Nothing in it is alive. Whoever acked it has seen to the ACK entries in the journal."""
        raise NotImplementedError

    def forget(self) -> None:
        """The queue is deleted; its folder goes."""
        raise NotImplementedError

    def tick(self) -> None:
        """About once a second: a queue that idles lets go of the journal."""
        raise NotImplementedError


class ScatterListener:
    """Somebody who wants to know that a scatter has ended: the queue, for the messages that it has had paged."""

    def scattered(self) -> None:
        """Places that were on their way are in segments."""
        raise NotImplementedError


class Section:
    """The places and acks of one queue for one epoch."""

    def __init__(self) -> None:
        self.places: list[Place] = []
        self.acks = SeqIds()
        self.ranges: list[tuple[int, int]] = []  # acked by purge: first seq_id, count
        self.requeues: list[int] = []  # seq_ids of places that came back
        self.all_requeues = False  # besides, all that came back before
        self.offsets: list[i64] = []  # of the places, within the block's payload; when it is written


class QueueIndex(JournalUser):
    """`durable` is False for a queue that goes with the broker: it uses transient segments only.

    `mover` sets itself here when it is made, before anything else.
    """

    def __init__(
        self,
        journal: Journal,
        segments: QueueSegments,
        large: LargeMessages,
        queue_id: int,
        durable: bool,
        max_entries: i64,
    ) -> None:
        super().__init__(queue_id)
        self.journal = journal
        self.segments = segments
        self.large = large
        self.mover: Mover
        self.listener: ScatterListener | None = None
        self.durable = durable
        self.max_entries = max_entries
        self.filling = Section()  # for the next epoch
        self.writing: list[Section] = []  # in the epochs that are on their way, the oldest first
        self.publishes_due = False  # the journal knows that there are some in `filling`
        self.in_journal: list[Place] = []
        self.journal_live: i64 = 0
        self.ack_file: i64 = 0  # the oldest journal file with an ACK that its segment does not have; 0: none
        self.requeues_file: i64 = 0  # the oldest journal file with something of `requeues`; 0: none
        self.active = False  # since the last tick
        self.requeues: dict[int, int] = {}  # by seq_id: how often it came back, of what is not settled, where that counts

    # -- publish and ack ------------------------------------------------------------------------------------------

    def publish(self, place: Place) -> None:
        """The place and its message are to be durable: with the journal's next epoch."""
        place.due()
        self.filling.places.append(place)
        if not self.publishes_due:
            self.publishes_due = True
            self._section_due()
            self.journal.publishes_due()

    def _section_due(self) -> None:
        self.active = True
        if not self.dirty:
            self.journal.section_due(self)

    def ack(self, place: Place) -> None:
        """The place is settled; the caller has no further use for it. Releases what the stores hold for it."""
        where = place.where
        place.settled()
        if where == PENDING or where == PAGING:
            pass  # nothing of it is on disk; who is about to write it will see that it is gone
        elif where == SEGMENT or where == TRANSIENT:
            self._ack_in_segment(place, where == TRANSIENT)
        elif where != RAM and where != BETA:
            self._ack_due(place.seq_id)
            if where == JOURNAL:
                self.journal_live -= 1
                if len(self.in_journal) > 2 * self.journal_live + COMPACT_ABOVE:
                    self.compact()
        if place.stored is not None:
            self.large.release(place)

    def _ack_due(self, seq_id: i64) -> None:
        self.filling.acks.append(seq_id)
        if not self.dirty:
            self._section_due()
        self.journal.acks_due(1)

    def _ack_in_segment(self, place: Place, transient: bool) -> None:
        seq_id = place.seq_id
        segment = self.segments.of(place)
        self.segments.acked(segment, seq_id, place.body_size, transient)
        if not transient:
            if self.ack_file == 0:
                self.ack_file = self.journal.current_file_num()
            self._ack_due(seq_id)
        if segment.live == 0 and not segment.busy:
            self.mover.remove(segment)

    # -- what comes back ------------------------------------------------------------------------------------------

    def count_requeue(self, seq_id: i64) -> i64:
        """A place has come back; returns how often it has now."""
        times = self.requeues.get(seq_id, 0) + 1
        self.requeues[seq_id] = times
        return times

    def requeue_due(self, seq_id: i64) -> None:
        """What `count_requeue` has counted is to be on disk, soon; nobody waits for it."""
        if not self.durable or self.deleted:
            return
        self.filling.requeues.append(seq_id)
        if not self.dirty:
            self._section_due()
        self.journal.acks_due(1)

    def forget_requeues(self, seq_id: i64) -> None:
        """The place is settled."""
        self.requeues.pop(seq_id, None)
        if not self.requeues:
            self.requeues_file = 0

    def _requeues_of(self, section: Section) -> list[tuple[int, int]]:
        """What the section says of places that are still there."""
        requeues = self.requeues
        seq_ids = set(requeues) if section.all_requeues else set(section.requeues)
        return [(seq_id, requeues[seq_id]) for seq_id in sorted(seq_ids) if seq_id in requeues]

    def compact(self) -> None:
        """Forgets what is in the journal no more."""
        self.in_journal = [place for place in self.in_journal if place.where == JOURNAL]

    # -- the epoch ------------------------------------------------------------------------------------------------

    def write_section(self, out: BytesWriter) -> i64:
        """See JournalUser.

        Ensures: the section has every place in `filling` that was not settled, in order, and every ACK; exactly as many
        bytes as its head says. The last of `writing` holds what the section has, each place is WRITING, and `offsets` says
        where in the block's payload its message or msg_id begins. `filling` is empty.
        Assumes: `out` is the payload of the block from its first byte on; each place has its message.
        """
        self.dirty = False
        self.publishes_due = False
        section = self.filling
        self.filling = Section()
        self.writing.append(section)
        places: list[Place] = []
        size: i64 = 0
        elided: i64 = 0
        for place in section.places:
            if place.where == GONE:
                elided += 1
                continue
            place.writing()
            places.append(place)
            size += PUBLISH_HEAD + _payload_size(place)
        section.places = places
        self.segments.writes += len(places)
        acks = BytesWriter()
        section.acks.write(acks, ACK)
        for first, count in section.ranges:
            write_range(acks, ACK, first, count)
        if section.requeues or section.all_requeues:
            write_requeues(acks, self._requeues_of(section))
        size += len(acks)
        if size > 0:
            offsets = section.offsets
            write_i64_be(out, _signed(self.queue_id))
            write_i32_be(out, i32(size))
            for place in places:
                offsets.append(len(out) + PUBLISH_HEAD)
                place.size = write_publish(out, place)
            out.write(acks.getvalue())
        return elided

    def epoch_settled(self, ok: bool, file_num: i64, payload_offset: i64) -> None:
        if not ok:
            self._epoch_failed(self.writing.pop())
            return
        section = self.writing.pop(0)
        in_journal = self.in_journal
        at: i64 = 0
        for place in section.places:
            if place.where == WRITING:
                place.journaled(file_num, payload_offset + section.offsets[at])
                in_journal.append(place)
                self.journal_live += 1
            at += 1
        if section.all_requeues:
            self.requeues_file = 0
        if (section.requeues or section.all_requeues) and self.requeues and self.requeues_file == 0:
            self.requeues_file = file_num
        if self.journal_live > self.max_entries:
            self.mover.scatter()

    def _epoch_failed(self, section: Section) -> None:
        """Everything goes into the next epoch again, before what has come since."""
        again: list[Place] = []
        for place in section.places:
            if place.where == WRITING:
                place.not_written()
                again.append(place)
        filling = self.filling
        filling.places = again + filling.places
        filling.acks.put_before(section.acks)
        filling.ranges = section.ranges + filling.ranges
        filling.requeues = section.requeues + filling.requeues
        filling.all_requeues = section.all_requeues or filling.all_requeues
        self._section_due()
        if filling.places:
            self.publishes_due = True
            self.journal.publishes_due()

    # -- journal files --------------------------------------------------------------------------------------------

    def has_journal_entries(self) -> bool:
        """True when a scatter would move something."""
        return self.journal_live > 0 or self.ack_file > 0

    def oldest_file(self) -> i64:
        oldest = self.mover.oldest_file()
        if self.in_journal:
            if len(self.in_journal) > self.journal_live:
                self.compact()
            if self.in_journal:
                file_num = self.in_journal[0].file_num
                if oldest == 0 or file_num < oldest:
                    oldest = file_num
        if self.ack_file > 0 and (oldest == 0 or self.ack_file < oldest):
            oldest = self.ack_file
        if self.requeues_file > 0 and (oldest == 0 or self.requeues_file < oldest):
            oldest = self.requeues_file
        return oldest

    def leave_oldest_file(self) -> None:
        if self.requeues_file > 0 and self.requeues_file == self.oldest_file() and not self._writes_all_requeues():
            self.filling.all_requeues = True
            self._section_due()
            self.journal.requeues_wanted()
        self.mover.scatter_unless_busy()

    def _writes_all_requeues(self) -> bool:
        return any(section.all_requeues for section in self.writing)

    def scatter(self) -> None:
        """Has what is in the journal moved to the segments, soon."""
        self.mover.scatter()

    def page(self, place: Place) -> None:
        """Has a transient place (RAM or BETA) written to a transient segment, soon."""
        place.paging()
        self.mover.page(place)

    def tick(self) -> None:
        self.mover.tick()

    def is_idle(self) -> bool:
        """True when nothing has happened since the last call."""
        idle = not self.active
        self.active = False
        return idle

    # -- reading --------------------------------------------------------------------------------------------------

    def read_messages(self, places: list[Place], keep_dropped: bool) -> None:
        """Brings the messages of these places, neighbours in the queue, into RAM. Raises OSError, FormatError, DamagedError.

        `keep_dropped`: for a scatter, which wants the embedded ones only.
        """
        entry_count = self.segments.entry_count
        at: i64 = 0
        count: i64 = len(places)
        while at < count:
            first = places[at]
            if first.message is not None or (keep_dropped and first.stored is not None):
                at += 1
                continue
            if first.stored is not None:
                first.message = self.large.read(first)
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
                    or (first.where != JOURNAL and place.seq_id // entry_count != first.seq_id // entry_count)
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

    def read_journal(self, file_num: i64, low: i64, high: i64) -> bytes:
        """A part of one of the journal's files. Raises OSError."""
        self.segments.reads += 1
        return self.journal.files.read(file_num, int(low), int(high - low))

    def _read_span(self, place: Place, low: i64, high: i64) -> bytes:
        if place.where == JOURNAL:
            return self.read_journal(place.file_num, low, high)
        return self.segments.read_bytes(place, low, high)

    # -- a clean stop and the start after it --------------------------------------------------------------------------

    def terms(self, next_seq_id: i64) -> list[object]:
        """The queue's part of the recovery terms; terms.py has the form."""
        in_journal = [place for place in self.in_journal if place.where == JOURNAL]
        return [
            int(next_seq_id),
            int(self.segments.redelivered_below),
            self.segments.terms(),
            int(self.segments.highest),
            ranges([int(place.seq_id) for place in in_journal]),
            ranges([int(place.seq_id) for place in in_journal if place.redelivered]),
        ]

    def take_segment(self, terms: SegmentTerms, journal_file: i64) -> None:
        """A segment as the terms have it. `journal_file` is the oldest one that may have its ACKs."""
        self.segments.take(terms)
        if terms.acked:
            self.ack_file = max(1, journal_file)

    def take_place(self, place: Place, file_num: i64, entry: Entry) -> None:
        """A place that the journal alone has."""
        place.found(JOURNAL, file_num, entry.data, entry.size, entry.expiry)
        self.in_journal.append(place)
        self.journal_live += 1

    def take_requeues(self, requeues: dict[int, int], journal_file: i64) -> None:
        """How often places came back, of which some may be gone. `journal_file` is the oldest one that says so of any.

        After all places and segments were taken.
        """
        in_journal = {int(place.seq_id) for place in self.in_journal}
        for seq_id, times in requeues.items():
            if seq_id in in_journal or not self.is_known_gone(seq_id):
                self.requeues[seq_id] = times
        if self.requeues:
            self.requeues_file = journal_file

    def is_known_gone(self, seq_id: i64) -> bool:
        """Of a place that the journal does not have: whether its segment is gone, or has it acked."""
        segment = self.segments.by_num.get(seq_id // self.segments.entry_count)
        return segment is None or segment.is_acked(seq_id)

    # -- the end of many ------------------------------------------------------------------------------------------

    def purge(self, keep: list[Place], low: i64, high: i64, plan: list[PurgedSegment]) -> None:
        """Every place in [low, high) is settled but for `keep`, which is sorted by seq_id.

        The caller has marked the places that it has in memory as GONE, and has released what the message stores had
        for all of them. `plan` is what `QueueSegments.plan_purge` gave.
        """
        filling = self.filling
        if self.requeues:
            kept = {int(place.seq_id) for place in keep}
            self.requeues = {seq_id: times for seq_id, times in self.requeues.items() if seq_id in kept}
            if not self.requeues:
                self.requeues_file = 0
        filling.places = [place for place in filling.places if place.where != GONE]
        self.compact()
        self.journal_live = len(self.in_journal) + self.mover.moving()
        if self.durable:
            start = low
            for place in keep:
                if place.seq_id > start:
                    filling.ranges.append((int(start), int(place.seq_id - start)))
                start = max(start, place.seq_id + 1)
            if high > start:
                filling.ranges.append((int(start), int(high - start)))
            self._section_due()
            self.journal.acks_due(1)
        in_part: set[int] = set()
        for part in plan:
            in_part.add(part.segment.num)
            for entry in part.entries:
                self.segments.acked(part.segment, entry.seq_id, entry.body_size, part.transient)
                if not part.transient and self.ack_file == 0:
                    self.ack_file = self.journal.current_file_num()
        for segment in list(self.segments.by_num.values()):
            if segment.num not in in_part:
                segment.live = 0
            if segment.live == 0 and not segment.busy:
                self.mover.remove(segment)

    def delete(self) -> None:
        """The queue is gone, and its folder goes."""
        self.deleted = True
        self.filling = Section()
        self.in_journal = []
        self.journal_live = 0
        self.ack_file = 0
        self.requeues = {}
        self.requeues_file = 0
        self.segments.by_num = {}
        self.journal.users.pop(self.queue_id, None)
        self.mover.forget()


def write_publish(out: BytesWriter, place: Place) -> i64:
    """Writes the PUBLISH entry of a place, which has its message; returns the size of what follows its head."""
    flags: i64 = 0
    if place.redelivered:
        flags = REDELIVERED
    entry = place.stored
    if entry is not None:
        write_publish_head(out, flags | STORED, place.seq_id, place.expiry, place.body_size, MSG_ID_SIZE)
        out.write(entry.msg_id)
        return MSG_ID_SIZE
    message = _message_of(place)
    size = stored_size(message)
    write_publish_head(out, flags, place.seq_id, place.expiry, place.body_size, size)
    write_message(out, message)
    return size


def _payload_size(place: Place) -> i64:
    """Bytes of what follows the head of its publish entry."""
    if place.stored is not None:
        return MSG_ID_SIZE
    return stored_size(_message_of(place))


def _message_of(place: Place) -> Message:
    message = place.message
    assert message is not None, "kept by: a message is dropped only where its body can be read back"
    return message


def _signed(queue_id: int) -> i64:
    """A 64-bit queue_id as the integer that has the same bits."""
    return i64(queue_id - (1 << 64) if queue_id >> 63 else queue_id)
