"""The scatter of one queue: its places on their way from the journal, or from RAM, to its segments.

    begin_scatter   takes what the journal has of the queue, its new acks, and what is to be paged
    next_writes     blocks of them, for the files of the segments: acks first, then places in their order
    end_scatter     all of that is in the segments now, or nothing of it

What must stay true: until `end_scatter` says ok, places stay where they were (JOURNAL, PAGING) and may be acked; whoever is
acked meanwhile gets an ACK in its segment with a later scatter; segments that are written to are `busy`, and stay.
"""

from __future__ import annotations

from typing import Final

from librt.strings import BytesWriter
from mypy_extensions import i64

from rabbitpy_broker.storage.place import GONE, JOURNAL, PAGING, Place
from rabbitpy_broker.storage.queue_index import Mover, QueueIndex, write_publish
from rabbitpy_broker.storage.records import (
    ACK,
    DELIVER,
    PUBLISH_HEAD,
    FormatError,
    check_publish,
    write_ranges,
)
from rabbitpy_broker.storage.scatter import BlockWrite, Scatter, ScatterSource
from rabbitpy_broker.storage.segment import BlockCounts, Segment, block, file_header
from rabbitpy_broker.storage.seq_ids import SeqIds

COPY_BYTES: Final[i64] = 524_288  # of the journal, with one read
COPY_GAP: Final[i64] = 4_096  # that is not wanted, between two entries of one read


class NewAcks:
    """The new acks and deliveries of one segment, on their way to its file."""

    def __init__(self, segment: Segment) -> None:
        self.segment = segment
        self.acks = segment.new_acks
        self.acked_bytes = segment.new_acked_bytes
        self.delivers = segment.new_delivers
        segment.new_acks = SeqIds()
        segment.new_acked_bytes = 0
        segment.new_delivers = []

    def put_back(self) -> None:
        """The acks and deliveries are new again."""
        segment = self.segment
        segment.new_acks.put_before(self.acks)
        segment.new_acked_bytes += self.acked_bytes
        segment.new_delivers = self.delivers + segment.new_delivers


class Entries:
    """The PUBLISH entries of places, one behind the other: `size` bytes in `parts`, and where in them each place's message is.

    What the journal has is copied as it stands there, many entries at a time; the others are made of their messages.
    """

    def __init__(self, index: QueueIndex) -> None:
        self.index = index
        self.parts: list[bytes] = []
        self.offsets: list[i64] = []
        self.size: i64 = 0

    def set(self, places: list[Place]) -> None:
        """Raises OSError, FormatError, DamagedError."""
        try:
            self._copy_all(places)
        except (OSError, FormatError):  # memory may have what the journal has not
            self.parts = []
            self.offsets = []
            self.size = 0
            self._make(places)

    def _copy_all(self, places: list[Place]) -> None:
        """But for those that are not in the journal, or not as they are now."""
        at: i64 = 0
        count: i64 = len(places)
        while at < count:
            end = at
            while end < count and _is_copied(places[end]):
                end += 1
            while at < end:
                at = self._copy(places, at, end)
            while end < count and not _is_copied(places[end]):
                end += 1
            if at < end:
                self._make(places[at:end])
            at = end

    def _copy(self, places: list[Place], at: i64, end: i64) -> i64:
        """Copies entries of places[at:end] that one read can fetch; returns the first that it did not."""
        first = places[at]
        file_num = first.file_num
        low = first.offset - PUBLISH_HEAD
        high = low
        last = at
        while last < end:
            place = places[last]
            begin = place.offset - PUBLISH_HEAD
            if (
                place.file_num != file_num
                or begin < high
                or begin - high > COPY_GAP
                or place.offset + place.size - low > COPY_BYTES
            ) and last > at:
                break
            high = place.offset + place.size
            last += 1
        data = self.index.read_journal(file_num, low, high)
        run: i64 = 0  # where in `data` a run of neighbours begins
        pos: i64 = 0  # and ends
        base = self.size  # `size` when `data` begins, less what is left out of it
        while at < last:
            place = places[at]
            begin = place.offset - PUBLISH_HEAD - low
            check_publish(data, begin, place.seq_id, place.size)
            if begin != pos:
                self.parts.append(data[run:pos])
                base -= begin - pos
                run = begin
            self.offsets.append(base + begin + PUBLISH_HEAD)
            pos = begin + PUBLISH_HEAD + place.size
            at += 1
        self.parts.append(data if run == 0 and pos == len(data) else data[run:pos])
        self.size = base + pos
        return last

    def _make(self, places: list[Place]) -> None:
        absent = [place for place in places if place.message is None and place.stored is None]
        try:
            self.index.read_messages(absent, True)
            out = BytesWriter()
            for place in places:
                self.offsets.append(self.size + len(out) + PUBLISH_HEAD)
                place.size = write_publish(out, place)
        finally:
            for place in absent:
                place.message = None
        self.parts.append(out.getvalue())
        self.size += len(out)


def _is_copied(place: Place) -> bool:
    """True when the entry that the journal has of it is just as the segment's is to be."""
    return place.where == JOURNAL and not place.redelivered


class QueueScatter(ScatterSource, Mover):
    """Of one index. `batches` is the vhost's Scatter, which writes for all its queues."""

    def __init__(self, index: QueueIndex, batches: Scatter) -> None:
        super().__init__(index.segments.path)
        self.index = index
        self.segments = index.segments
        self.batches = batches
        self.due = False
        self.to_page: list[Place] = []
        # on the way to segments
        self._places: list[Place] = []
        self._paging: list[Place] = []
        self._upto: i64 = 0  # how many of both are written
        self._acks: list[NewAcks] = []
        self._acks_written = False
        self._ack_file: i64 = 0  # as QueueIndex.ack_file, of what is on the way
        self._began: i64 = 0  # the journal file that was written to then
        index.mover = self

    def scatter(self) -> None:
        if not self.due and not self.deleted and not self.unreadable:
            self.due = True
            self.batches.scatter_later(self)

    def scatter_unless_busy(self) -> None:
        if not self.batches.is_busy():
            self.scatter()

    def page(self, place: Place) -> None:
        self.to_page.append(place)
        self.scatter()

    def moving(self) -> i64:
        count: i64 = 0
        for place in self._places:
            if place.where == JOURNAL:
                count += 1
        return count

    def oldest_file(self) -> i64:
        oldest = self._ack_file
        for place in self._places:
            if place.where == JOURNAL:
                if oldest == 0 or place.file_num < oldest:
                    oldest = place.file_num
                break
        return oldest

    def remove(self, segment: Segment) -> None:
        index = self.index
        del self.segments.by_num[segment.num]
        if segment.size > 0:
            acked_from = index.ack_file if index.ack_file > 0 else index.journal.current_file_num()
            if 0 < self._ack_file < acked_from:
                acked_from = self._ack_file
            self.batches.cut_later(self.segments.path_of(segment.num, False), 0, acked_from)
        if segment.transient_size > 0:
            self.batches.cut_later(self.segments.path_of(segment.num, True), 0, 0)

    def forget(self) -> None:
        self.deleted = True
        self.to_page = []
        path = self.path if self.segments.has_files else ""
        self.batches.forget(self, path, now=self.index.journal.log is None)  # an owner's goes when that is noted

    def tick(self) -> None:
        self.unreadable = False
        if self.index.is_idle() and self.index.has_journal_entries():
            self.scatter()

    # -- a batch --------------------------------------------------------------------------------------------------

    def begin_scatter(self, limit: i64) -> None:
        index = self.index
        self.due = False
        index.compact()
        self._places = index.in_journal[:limit]
        index.in_journal = index.in_journal[limit:]
        self._paging = self.to_page
        self.to_page = []
        self._upto = 0
        self._acks = []
        self._acks_written = False
        self._ack_file = index.ack_file
        self._began = index.journal.current_file_num()
        index.ack_file = 0
        for segment in self.segments.by_num.values():
            if segment.new_acks.count > 0 or segment.new_delivers:
                segment.busy = True
                self._acks.append(NewAcks(segment))

    def next_writes(self, ends: dict[str, int], limit_bytes: i64) -> list[BlockWrite]:
        """See ScatterSource.

        Ensures: over all calls of a batch, each place that `begin_scatter` took is in one block, unless it was settled
        before its block was built; acks come before places. A block's bytes are reserved: it begins where the file's last
        one ends, and `ends` is behind it. No message that was not in RAM stays there.
        Assumes: nobody else writes to these segments until `end_scatter`. When it raises, the batch drops this queue.
        """
        if self.deleted:
            return []
        writes: list[BlockWrite] = []
        if not self._acks_written:
            self._acks_written = True
            for new in self._acks:
                if self.segments.by_num.get(new.segment.num) is new.segment:
                    writes.append(self._ack_write(ends, new))
        places = self._places
        entry_count = self.segments.entry_count
        total: i64 = len(places)
        all_places: i64 = total + len(self._paging)
        at = self._upto
        written: i64 = 0
        while at < all_places and written < limit_bytes:
            transient = at >= total
            start = at
            first = self._paging[at - total] if transient else places[at]
            segment_num = first.seq_id // entry_count
            group: list[Place] = []
            border = all_places if transient else total
            while at < border and written < limit_bytes:
                place = self._paging[at - total] if transient else places[at]
                if place.seq_id // entry_count != segment_num:
                    break
                at += 1
                if place.where == GONE:
                    continue
                group.append(place)
                written += place.body_size + 100
            assert at > start, "kept by: the first place of a group is in its segment"
            if group:
                writes.append(self._publish_write(ends, segment_num, transient, group))
        self._upto = at
        return writes

    def _ack_write(self, ends: dict[str, int], new: NewAcks) -> BlockWrite:
        out = BytesWriter()
        counts = BlockCounts()
        counts.acks = new.acks.count
        counts.acked_bytes = new.acked_bytes
        new.acks.write(out, ACK)
        write_ranges(out, DELIVER, new.delivers)
        write = self._block_write(ends, new.segment, False, [out.getvalue()], counts)
        write.has_acks = new.acks.count > 0
        return write

    def _publish_write(
        self, ends: dict[str, int], segment_num: i64, transient: bool, group: list[Place]
    ) -> BlockWrite:
        segment = self.segments.make(segment_num)
        segment.busy = True
        counts = BlockCounts()
        for place in group:
            counts.publishes += 1
            counts.published_bytes += place.body_size
            if place.stored is not None:
                counts.stored += 1
        entries = Entries(self.index)
        entries.set(group)
        write = self._block_write(ends, segment, transient, entries.parts, counts)
        for place in group:
            if place.redelivered:
                segment.delivered.add(place.seq_id)
        write.places = group
        write.offsets = entries.offsets
        write.entries_at = write.end - entries.size
        write.stored = counts.stored
        return write

    def _block_write(
        self, ends: dict[str, int], segment: Segment, transient: bool, payload: list[bytes], counts: BlockCounts
    ) -> BlockWrite:
        path = self.segments.path_of(segment.num, transient)
        data = block(payload, counts)
        end = ends.get(path)
        offset: i64 = segment.transient_size if transient else segment.size
        if end is not None:
            offset = end
        if offset == 0:
            self.segments.has_files = True
            data.insert(0, file_header(self.segments.queue_id, int(segment.num), transient))
        write = BlockWrite(segment, transient, path, offset, data)
        self.segments.writes += 1
        self.batches.do_not_cut(path)
        ends[path] = int(write.end)
        return write

    def end_scatter(self, ok: bool, writes: list[BlockWrite]) -> None:
        """See ScatterSource.

        Ensures: with `ok` every place in `writes` is in its segment, and one that was settled meanwhile has an ACK due
        there. Without, every place is in `in_journal` or to be paged again, as before `begin_scatter`; acks are new
        again; the files are to be cut to what counted before. Either way no segment is `busy`, and one with nothing
        alive is removed.
        Assumes: `writes` are all blocks of the batch for this queue; with `ok` they are synced.
        """
        index = self.index
        places, paging, acks = self._places, self._paging, self._acks
        self._places = []
        self._paging = []
        self._acks = []
        ack_file = self._ack_file
        self._ack_file = 0
        if self.deleted:
            return
        if ok:
            for write in writes:
                self._written(write)
        else:
            for new in acks:
                new.put_back()
            if ack_file > 0:
                index.ack_file = ack_file
            for write in writes:
                # It may be there or not, now or after a crash; the ACKs of what is in it stay until it is not.
                size = write.segment.transient_size if write.transient else write.segment.size
                self.batches.cut_later(write.path, size, self._began)
        touched = [new.segment for new in acks]
        touched.extend([write.segment for write in writes])
        for segment in touched:
            segment.busy = False
        left = [place for place in places if place.where == JOURNAL]
        if left:
            index.in_journal = left + index.in_journal
        unpaged = [place for place in paging if place.where == PAGING]
        if unpaged:
            self.to_page = unpaged + self.to_page
        for segment in touched:
            if segment.live == 0 and self.segments.by_num.get(segment.num) is segment:
                self.remove(segment)
        if ok and index.listener is not None:
            index.listener.scattered()

    def _written(self, write: BlockWrite) -> None:
        index = self.index
        segment = write.segment
        if write.transient:
            segment.transient_size = write.end
        else:
            segment.size = write.end
            if write.places:
                self.segments.highest = max(self.segments.highest, write.places[-1].seq_id)
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
                index.journal_live -= 1
            if where == GONE:
                # Settled meanwhile: its ACK is in the journal or due, and the segment is to have one as well.
                self.segments.acked(segment, place.seq_id, place.body_size, write.transient)
                if not write.transient and index.ack_file == 0:
                    index.ack_file = self._began
            else:
                place.scattered(write.entries_at + write.offsets[at])
                if place.redelivered and not write.transient:
                    self.segments.delivered(place)  # handed out since the block was built
            at += 1

    def due_again(self) -> None:
        self.due = True

    def go_on(self) -> None:
        if self.index.journal_live > self.index.max_entries or self.to_page:
            self.scatter()
