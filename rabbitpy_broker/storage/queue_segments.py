"""The segments of one queue: what is alive in each, read back, and counted off.

Segment number n has the places with seq_ids from n * entry_count on, in a file for those that survive a restart and in
another for paged transient ones. Who writes to them is the scatter (queue_scatter.py).
"""

from __future__ import annotations

from librt.strings import read_i32_be, read_i64_be
from mypy_extensions import i64

from rabbitpy_broker.storage.damage import DamageLog
from rabbitpy_broker.storage.files import Disk
from rabbitpy_broker.storage.large_messages import LargeMessages
from rabbitpy_broker.storage.place import SEGMENT, TRANSIENT, Place, PlaceMaker
from rabbitpy_broker.storage.records import PUBLISH, PUBLISH_HEAD, REDELIVERED, STORED, Entry, checksum
from rabbitpy_broker.storage.segment import (
    BLOCK_HEAD,
    HEADER_SIZE,
    Damage,
    Segment,
    check_file_header,
    live_entries,
    parse,
    read_block_head,
)
from rabbitpy_broker.storage.terms import SegmentTerms, ranges


class PurgedSegment:
    """A file of a segment that stays, and what is purged of it."""

    def __init__(self, segment: Segment, transient: bool) -> None:
        self.segment = segment
        self.transient = transient
        self.entries: list[Entry] = []


class QueueSegments:
    """`by_num` has those with anything alive in them; `reads` and `writes` count what the disk was asked for."""

    def __init__(
        self,
        disk: Disk,
        path: str,
        queue_id: int,
        entry_count: i64,
        large: LargeMessages,
        damage: DamageLog,
        maker: PlaceMaker,
    ) -> None:
        self.disk = disk
        self.path = path
        self.queue_id = queue_id
        self.entry_count = entry_count
        self.large = large
        self.damage = damage
        self.maker = maker
        self.by_num: dict[int, Segment] = {}
        self.has_files = False
        self.highest: i64 = -1  # no place behind it is in a segment that must survive
        self.redelivered_below: i64 = 0  # places before that may have been delivered before a crash
        self.reads: i64 = 0
        self.writes: i64 = 0

    def path_of(self, num: i64, transient: bool) -> str:
        return f"{self.path}/{int(num):08x}.{'transient' if transient else 'segment'}"

    def boundary(self, seq_id: i64) -> i64:
        """The first seq_id of the segment behind that of `seq_id`."""
        return (seq_id // self.entry_count + 1) * self.entry_count

    def of(self, place: Place) -> Segment:
        """The segment that has the place."""
        return self.by_num[place.seq_id // self.entry_count]

    def make(self, num: i64) -> Segment:
        """The segment with this number, which may be new."""
        segment = self.by_num.get(num)
        if segment is None:
            segment = Segment(num, self.entry_count)
            self.by_num[num] = segment
        return segment

    # -- counting off ---------------------------------------------------------------------------------------------

    def acked(self, segment: Segment, seq_id: i64, body_size: i64, transient: bool) -> None:
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

    def delivered(self, place: Place) -> None:
        """The place goes to delta, or the broker stops; it had been handed out before."""
        segment = self.of(place)
        if place.seq_id not in segment.delivered:
            segment.delivered.add(place.seq_id)
            if place.where == SEGMENT:
                segment.new_delivers.append(place.seq_id)

    # -- reading --------------------------------------------------------------------------------------------------

    def read(self, num: i64) -> list[Place]:
        """Every live place of a segment, in order, without messages.

        Damage is reported, and the places that it hit are counted off and forgotten. Raises OSError.
        """
        segment = self.by_num.get(num)
        if segment is None:
            return []
        found: list[Place] = []
        if segment.size > 0:
            self._read_file(segment, False, found)
        if segment.transient_size > 0:
            self._read_file(segment, True, found)
            found.sort(key=_seq_id)
        return found

    def read_bytes(self, place: Place, low: i64, high: i64) -> bytes:
        """A part of the file that has the place. Raises OSError."""
        path = self.path_of(place.seq_id // self.entry_count, place.where == TRANSIENT)
        self.reads += 1
        file = self.disk.open(path)
        try:
            data: bytes = file.read_at(int(low), int(high - low))
        finally:
            file.close()
        if len(data) != high - low:
            raise OSError(f"{path} does not have bytes {low} to {high}")
        return data

    def _read_whole(self, segment: Segment, transient: bool) -> bytes:
        self.reads += 1
        size = int(segment.transient_size if transient else segment.size)
        file = self.disk.open(self.path_of(segment.num, transient))
        try:
            data: bytes = file.read_at(0, size)
        finally:
            file.close()
        return data

    def _read_file(self, segment: Segment, transient: bool, found: list[Place]) -> None:
        if segment.delivered or not self._read_plain(segment, transient, found):
            self._read_any(segment, transient, found)

    def _read_plain(self, segment: Segment, transient: bool, found: list[Place]) -> bool:
        """As `_read_any` for what most files are: sound blocks of embedded publishes in the queue's order, and nothing else.

        They are read block by block. False where there is anything else; `found` is then as it was.
        """
        size: i64 = segment.transient_size if transient else segment.size
        places: list[Place] = []
        self.reads += 1
        file = self.disk.open(self.path_of(segment.num, transient))
        try:
            if check_file_header(file.read_at(0, int(HEADER_SIZE)), self.queue_id, int(segment.num)):
                return False
            pos: i64 = HEADER_SIZE
            while pos < size:
                head = file.read_at(int(pos), int(BLOCK_HEAD))
                counts = read_block_head(head, 0)
                if counts is None or counts.acks > 0 or counts.stored > 0:
                    return False
                pos += BLOCK_HEAD
                payload = file.read_at(int(pos), int(counts.payload))
                if pos + len(payload) > size or checksum(payload) != counts.checksum:
                    return False
                if not self._take_publishes(payload, pos, segment, transient, places):
                    return False
                pos += counts.payload
        finally:
            file.close()
        found.extend(places)
        return True

    def _take_publishes(
        self, payload: bytes, base: i64, segment: Segment, transient: bool, places: list[Place]
    ) -> bool:
        """The live places of a block whose payload begins at `base` in its file. False when it has more than publishes."""
        where: i64 = TRANSIENT if transient else SEGMENT
        last: i64 = places[-1].seq_id if places else -1
        size: i64 = len(payload)
        at: i64 = 0
        while at + PUBLISH_HEAD <= size:
            flags = i64(payload[at]) - PUBLISH
            seq_id = read_i64_be(payload, at + 1)
            if (flags != 0 and flags != REDELIVERED) or seq_id <= last:
                return False
            last = seq_id
            message_size = i64(read_i32_be(payload, at + 21)) & 0xFFFFFFFF
            if not segment.is_acked(seq_id):
                place = self.maker.make_place(seq_id, i64(read_i32_be(payload, at + 17)) & 0xFFFFFFFF)
                place.redelivered = flags != 0 or seq_id < self.redelivered_below
                place.found(where, 0, base + at + PUBLISH_HEAD, message_size, read_i64_be(payload, at + 9))
                places.append(place)
            at += PUBLISH_HEAD + message_size
        return at == size

    def _read_any(self, segment: Segment, transient: bool, found: list[Place]) -> None:
        path = self.path_of(segment.num, transient)
        data = self._read_whole(segment, transient)
        parsed = parse(data, path, self.queue_id, int(segment.num))
        entries = live_entries(segment, parsed)
        lost: i64 = 0
        for seq_id in sorted(entries):
            entry = entries[seq_id]
            place = self.maker.make_place(entry.seq_id, entry.body_size)
            place.redelivered = bool(entry.flags & REDELIVERED) or entry.seq_id < self.redelivered_below
            place.found(TRANSIENT if transient else SEGMENT, 0, entry.data, entry.size, entry.expiry)
            if entry.flags & STORED and not self.large.find(
                place, data[entry.data : entry.data + entry.size], transient
            ):
                lost += 1
                place.settled()
                self.acked(segment, place.seq_id, place.body_size, transient)
                continue
            found.append(place)
        damage = parsed.damage
        if parsed.header:
            damage.append(Damage(path, 0, int(HEADER_SIZE), parsed.header))
        if damage or parsed.torn or lost:
            if parsed.torn:
                damage.append(Damage(path, int(parsed.size), int(parsed.torn), "unreadable"))
            if damage:
                self.damage.keep_aside(path, data)
            self.damage.segment_damaged(self.queue_id, path, damage, int(lost))

    # -- the end of many ------------------------------------------------------------------------------------------

    def plan_purge(self, keep: list[Place]) -> list[PurgedSegment]:
        """The entries that a purge has to count off segments which cannot go as a whole: they have some of `keep`, or a
        scatter writes to them. Changes nothing. Raises OSError.
        """
        plan: list[PurgedSegment] = []
        kept = {int(place.seq_id) for place in keep}
        nums = {int(place.seq_id // self.entry_count) for place in keep if place.where in (SEGMENT, TRANSIENT)}
        for segment in self.by_num.values():
            if int(segment.num) not in nums and not segment.busy:
                continue
            for transient in (False, True):
                if (segment.transient_size if transient else segment.size) == 0:
                    continue
                part = PurgedSegment(segment, transient)
                path = self.path_of(segment.num, transient)
                data = self._read_whole(segment, transient)
                for entry in live_entries(segment, parse(data, path, self.queue_id, int(segment.num))).values():
                    if int(entry.seq_id) not in kept:
                        part.entries.append(entry)
                plan.append(part)
        return plan

    # -- a clean stop and the start after it --------------------------------------------------------------------------

    def terms(self) -> list[object]:
        """The segments' part of the recovery terms; terms.py has the form."""
        segments: list[object] = []
        for one in self.by_num.values():
            live = one.live - one.transient_live
            if one.size > 0 and live > 0:
                segments.append(
                    [
                        int(one.num),
                        int(live),
                        int(one.live_bytes - one.transient_live_bytes),
                        int(one.stored),
                        int(one.size),
                        one.new_acks.terms(),
                        int(one.new_acked_bytes),
                        ranges(sorted(one.new_delivers)),
                    ]
                )
        return segments

    def take(self, terms: SegmentTerms) -> None:
        """A segment as the terms have it."""
        self.by_num[terms.num] = terms.segment(self.entry_count)


def _seq_id(place: Place) -> int:
    return place.seq_id
