"""One queue of a vhost that another node owns: what its journal says of places is done here, and nothing else is.

Places that the journal alone has are in memory, by seq_id, as the owner's queue has them; the scatter moves them to segments as
it does for the owner. Of what segments have only counts are in memory: the first ack in a segment reads which of its places are
alive and how large their bodies are, without the bodies.

    publish   a place of the journal, unless it is there already: the owner has tried a failed epoch again
    ack       counts off a place, wherever it is; one that is not there was acked before
    requeued  how often places came back

Each message is written twice, to the journal and to a segment, unless it is acked before. So more of them stay in the journal
than the owner leaves in its own (`max_entries`): here they cost a place in memory, there the message. The journal's files bound
their bytes, and a queue that idles lets go of them.

What must stay true: as in queue_index.py; `next_seq_id` is behind every seq_id that was ever published or acked.
"""

from __future__ import annotations

from typing import Final

from librt.strings import read_i32_be, read_i64_be
from mypy_extensions import i64

from rabbitpy_broker.storage.files import Disk, DiskFile
from rabbitpy_broker.storage.place import JOURNAL, SEGMENT, Place
from rabbitpy_broker.storage.queue_index import COMPACT_ABOVE, ScatterListener
from rabbitpy_broker.storage.records import (
    ACK,
    DELIVER,
    KIND,
    MSG_ID_SIZE,
    PUBLISH,
    PUBLISH_HEAD,
    RANGE_SIZE,
    STORED,
    Entry,
)
from rabbitpy_broker.storage.segment import BLOCK_HEAD, HEADER_SIZE, Segment, read_block_head
from rabbitpy_broker.storage.vhost_recovery import RecoveredQueue

SMALL_WINDOW: Final[i64] = 4_096
WINDOW: Final[i64] = 65_536
LIVE_MAX: Final = 4  # segments of one queue whose living places are in memory


class Window:
    """A file, read in pieces: neighbours with one read, and little where what is between is large."""

    def __init__(self, file: DiskFile, size: i64) -> None:
        self._file = file
        self._size = size
        self._begin: i64 = 0
        self._data = b""

    def at(self, pos: i64, count: i64) -> bytes:
        """So many bytes from there on; fewer where the file ends. Raises OSError."""
        begin = pos - self._begin
        if begin < 0 or begin + count > len(self._data):
            is_far = begin > len(self._data) + SMALL_WINDOW
            wanted = max(count, SMALL_WINDOW if is_far else WINDOW)
            self._data = self._file.read_at(int(pos), int(min(wanted, self._size - pos)))
            self._begin = pos
            begin = 0
        return self._data[begin : begin + count]


class LivePlaces:
    """The places of a segment's file that nobody has acked: sizes of bodies by seq_id, and what is in the message store."""

    def __init__(self) -> None:
        self.sizes: dict[int, int] = {}
        self.msg_ids: dict[int, bytes] = {}

    def pop(self, seq_id: int) -> int:
        """The size of the body of a place that is acked now; -1: it is not alive."""
        return self.sizes.pop(seq_id, -1)


def live_places(disk: Disk, path: str, segment: Segment) -> LivePlaces:
    """Reads the heads of a segment's entries. It stops where the file makes no sense, as its reader will find. Raises OSError."""
    found = LivePlaces()
    file = disk.open(path)
    try:
        window = Window(file, segment.size)
        pos: i64 = HEADER_SIZE
        while pos + BLOCK_HEAD <= segment.size:
            counts = read_block_head(window.at(pos, BLOCK_HEAD), 0)
            if counts is None:
                break
            pos += BLOCK_HEAD
            end = min(pos + counts.payload, segment.size)
            while pos < end:
                size = _take_entry(window, pos, segment, found)
                if size < 0:
                    return found
                pos += size
    finally:
        file.close()
    return found


def _take_entry(window: Window, pos: i64, segment: Segment, found: LivePlaces) -> i64:
    """Returns the size of the entry at `pos`, -1 when there is none."""
    head = window.at(pos, PUBLISH_HEAD)
    if len(head) < RANGE_SIZE:
        return -1
    kind = i64(head[0]) & KIND
    seq_id = read_i64_be(head, 1)
    if kind == PUBLISH:
        if len(head) < PUBLISH_HEAD:
            return -1
        size = i64(read_i32_be(head, 21)) & 0xFFFFFFFF
        if not segment.is_acked(seq_id):
            found.sizes[seq_id] = i64(read_i32_be(head, 17)) & 0xFFFFFFFF
            if i64(head[0]) & STORED:
                found.msg_ids[seq_id] = window.at(pos + PUBLISH_HEAD, MSG_ID_SIZE)
        return PUBLISH_HEAD + size
    if kind != ACK and kind != DELIVER:
        return -1
    if kind == ACK:
        count = i64(read_i32_be(head, 9)) & 0xFFFFFFFF
        for at in range(seq_id, seq_id + count):
            found.sizes.pop(int(at), None)
    return RANGE_SIZE


class FollowedQueue(ScatterListener):
    """Around an index, as a start has found it."""

    def __init__(self, found: RecoveredQueue, max_entries: i64) -> None:
        self.index = found.index
        self._owners_max_entries: i64 = found.index.max_entries
        found.index.max_entries = max(max_entries, found.index.max_entries)
        self.next_seq_id: i64 = found.next_seq_id
        self._in_journal: dict[int, Place] = {}
        self._live: dict[int, LivePlaces] = {}
        for place in found.places:
            place.redelivered = False  # all is, for the next owner; until then entries are copied as they are
            self._in_journal[place.seq_id] = place
        self.index.listener = self

    def scattered(self) -> None:
        moved: list[int] = []  # the oldest
        for seq_id, place in self._in_journal.items():
            if place.where == JOURNAL:
                break
            moved.append(seq_id)
        for seq_id in moved:
            del self._in_journal[seq_id]
        self._live.clear()

    # -- what the journal says ----------------------------------------------------------------------------------------

    def publish(self, entry: Entry, file_num: i64, base: i64, data: bytes) -> None:
        """`base` is where in the journal's file the block's payload `data` begins."""
        index = self.index
        seq_id = entry.seq_id
        if seq_id < self.next_seq_id and self._is_alive(seq_id):
            return
        self.next_seq_id = max(self.next_seq_id, seq_id + 1)
        place = index.segments.maker.make_place(seq_id, entry.body_size)
        if entry.flags & STORED and not index.large.find(place, data[entry.data : entry.data + entry.size], False):
            return
        entry.data += base
        index.take_place(place, file_num, entry)
        index.active = True
        self._in_journal[seq_id] = place
        if index.journal_live > index.max_entries:
            index.mover.scatter()

    def _is_alive(self, seq_id: i64) -> bool:
        """Of one that may not be new: others may have used it and told nobody."""
        if seq_id in self._in_journal:
            return True
        segment = self.index.segments.by_num.get(seq_id // self.index.segments.entry_count)
        return segment is not None and seq_id in self._live_of(segment).sizes

    def ack(self, first: i64, count: i64, file_num: i64) -> None:
        """`file_num` is the journal file that says so. Raises OSError."""
        index = self.index
        index.active = True
        self.next_seq_id = max(self.next_seq_id, first + count)
        if index.requeues:
            for seq_id in [seq_id for seq_id in index.requeues if first <= seq_id < first + count]:
                index.forget_requeues(seq_id)
        in_journal = self._in_journal
        seq_ids: list[int]
        if count <= len(in_journal):
            seq_ids = [int(first)] if count == 1 else list(range(int(first), int(first + count)))
        else:
            seq_ids = [seq_id for seq_id in in_journal if first <= seq_id < first + count]
        left = count
        for one in seq_ids:
            place = in_journal.pop(one, None)
            if place is not None:
                left -= 1
                self._ack_place(place, file_num)
        if left > 0:
            self._ack_in_segments(first, count, file_num)

    def _ack_place(self, place: Place, file_num: i64) -> None:
        index = self.index
        where = place.where
        place.settled()
        if where == JOURNAL:
            index.journal_live -= 1
            if len(index.in_journal) > 2 * index.journal_live + COMPACT_ABOVE:
                index.compact()
        elif where == SEGMENT:
            segment = index.segments.of(place)
            self._count_off(segment, place.seq_id, place.body_size, file_num)
            self._removed_if_empty(segment)
        index.large.release(place)

    def _ack_in_segments(self, first: i64, count: i64, file_num: i64) -> None:
        by_num = self.index.segments.by_num
        if not by_num:
            return
        entry_count = self.index.segments.entry_count
        low = first // entry_count
        high = (first + count - 1) // entry_count
        if low == high:
            segment = by_num.get(low)
            if segment is not None:
                self._ack_in(segment, first, first + count, file_num)
            return
        for num in sorted(by_num):
            if low <= num <= high:
                self._ack_in(by_num[num], first, first + count, file_num)

    def _ack_in(self, segment: Segment, first: i64, behind: i64, file_num: i64) -> None:
        """The places in [first, behind) that the segment has."""
        begin = max(first, segment.first_seq_id)
        end = min(behind, segment.first_seq_id + segment.entry_count)
        if end - begin == segment.entry_count and not segment.busy and segment.stored == 0:
            segment.live = 0  # a purge: nobody needs to know how large they were
        else:
            live = self._live_of(segment)
            for seq_id in range(int(begin), int(end)):
                size = live.pop(seq_id)
                if size >= 0:
                    self._count_off(segment, seq_id, size, file_num)
                    msg_id = live.msg_ids.pop(seq_id, None)
                    if msg_id is not None:
                        self._release(msg_id)
        self._removed_if_empty(segment)

    def _count_off(self, segment: Segment, seq_id: i64, body_size: i64, file_num: i64) -> None:
        self.index.segments.acked(segment, seq_id, body_size, False)
        if self.index.ack_file == 0:
            self.index.ack_file = file_num

    def _removed_if_empty(self, segment: Segment) -> None:
        if segment.live == 0 and not segment.busy:
            self._live.pop(segment.num, None)
            self.index.mover.remove(segment)

    def _live_of(self, segment: Segment) -> LivePlaces:
        live = self._live.get(segment.num)
        if live is None:
            if len(self._live) >= LIVE_MAX:
                del self._live[next(iter(self._live))]
            segments = self.index.segments
            if segment.size > 0:
                segments.reads += 1
                live = live_places(segments.disk, segments.path_of(segment.num, False), segment)
            else:
                live = LivePlaces()
            self._live[segment.num] = live
        return live

    def _release(self, msg_id: bytes) -> None:
        store = self.index.large.persistent
        entry = store.lookup(msg_id)
        if entry is not None:
            store.release(entry)

    def requeued(self, entry: Entry, file_num: i64) -> None:
        """How often these places have come back so far."""
        index = self.index
        for seq_id in range(int(entry.seq_id), int(entry.seq_id + entry.count)):
            if seq_id in self._in_journal or not index.is_known_gone(seq_id):
                index.requeues[seq_id] = entry.times
                if index.requeues_file == 0:
                    index.requeues_file = file_num

    # -- the end of following -----------------------------------------------------------------------------------------

    def idle(self) -> None:
        """Lets go of what only saves reads."""
        self._live.clear()

    def hand_over(self) -> RecoveredQueue:
        """For whoever owns the queue from now on: as after a crash, everything counts as redelivered."""
        index = self.index
        index.max_entries = self._owners_max_entries
        index.compact()
        found = RecoveredQueue(index)
        places = [place for place in self._in_journal.values() if place.where == JOURNAL]
        for place in places:
            place.redelivered = True
        found.places = places
        found.next_seq_id = self.next_seq_id
        found.delta_end = self.next_seq_id
        if places:
            found.delta_end = min(self.next_seq_id, max(places[0].seq_id, index.segments.highest + 1))
        index.segments.redelivered_below = self.next_seq_id
        self._in_journal = {}
        self._live = {}
        return found

    def delete(self) -> None:
        """The owner has none of that queue any more. Raises OSError."""
        index = self.index
        for place in self._in_journal.values():
            index.large.release(place)
        for segment in list(index.segments.by_num.values()):
            if segment.stored > 0:
                for msg_id in self._live_of(segment).msg_ids.values():
                    self._release(msg_id)
        index.listener = None
        index.delete()
