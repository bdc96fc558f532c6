"""One queue as the disk has it: its segments and, over them, the journal. Nothing is changed: a start applies what is
found here, a check prints it. There are two readers, for the two ways in which a broker ends:

    QueueByTerms   after a clean stop. The terms tell what counts, and it is only looked at whether it is there
    QueueScan      after a crash. Segments are read one after the other, in order, and what the journal says is applied

After a crash a scatter may have been cut short. It may have been writing to the last segment of a queue, and to those
that the journal mentions. What cannot be read at the end of such a segment, or its header where the journal has every
place behind it, is what the scatter has left: nobody needs it. Anything else that is not sound is damage.

What must stay true: a place that is published and not acked is found once, in its segment (`ScannedSegment.live`) or in
the journal (`published`).
"""

from __future__ import annotations

from collections.abc import Callable

from mypy_extensions import i64

from rabbitpy_broker.errors import StartError
from rabbitpy_broker.storage.files import Disk
from rabbitpy_broker.storage.finding import Finding
from rabbitpy_broker.storage.journal_scan import ReplayedQueue
from rabbitpy_broker.storage.records import PUBLISH, Entry, is_sealed
from rabbitpy_broker.storage.segment import (
    HEADER_SIZE,
    VERSION,
    Damage,
    Parsed,
    Segment,
    live_entries,
    parse,
    restore,
    walk,
)
from rabbitpy_broker.storage.terms import QueueTerms

WALK_BYTES = 100  # about what is read of a segment of which the heads are enough


class QueueFiles:
    """The files in a queue's folder: the numbers of its segments, and what is left of transient ones."""

    def __init__(self, path: str, names: list[str]) -> None:
        self.path = path
        self.nums: list[int] = []
        self.transient: list[str] = []
        self.strange: list[str] = []  # nobody gives a segment such a name
        for name in names:
            stem, _, kind = name.partition(".")
            if kind == "transient":
                self.transient.append(f"{path}/{name}")
            elif kind == "segment":
                try:
                    self.nums.append(int(stem, 16))
                except ValueError:
                    self.strange.append(f"{path}/{name}")
        self.nums.sort()

    def path_of(self, num: i64) -> str:
        """The path of the segment with this number."""
        return f"{self.path}/{int(num):08x}.segment"


def read_file(disk: Disk, path: str) -> bytes:
    """The whole file. Raises OSError."""
    file = disk.open(path)
    try:
        data: bytes = file.read_at(0, file.size())
    finally:
        file.close()
    return data


# -- after a clean stop -----------------------------------------------------------------------------------------------


class QueueByTerms:
    """One queue, as the terms have it.

    `faults`: where the disk does not have what the terms say; the start scans then. `cuts` has the file of a segment and
    how much of it counts, for each that has more. `published`: the journal's entries, among them those of the places that it
    alone has, which `terms` name.
    """

    def __init__(
        self,
        disk: Disk,
        queue_id: int,
        files: QueueFiles,
        entry_count: i64,
        terms: QueueTerms,
        replayed: ReplayedQueue,
        journal: str,
    ) -> None:
        self.files = files
        self.queue_id = queue_id
        self.terms = terms
        self.faults: list[Finding] = []
        self.cuts: list[tuple[str, int]] = []
        self.published = replayed.published
        if files.nums or terms.segments:
            self._look_at_segments(disk, entry_count)
        for seq_id in terms.in_journal:
            if seq_id not in replayed.published:
                text = f"queue {queue_id:016x}: seq_id {seq_id} is missing; the recovery terms name it"
                self.faults.append(Finding(journal, -1, text, True))

    def _look_at_segments(self, disk: Disk, entry_count: i64) -> None:
        files = self.files
        left = set(files.nums)
        for one in self.terms.segments:
            path = files.path_of(one.num)
            if one.num not in left:
                self.faults.append(Finding(path, -1, "it is missing; the recovery terms name it", True))
                continue
            left.remove(one.num)
            size = disk.size(path)
            if size < one.size:
                text = f"it ends here, and had {one.size} bytes when the broker stopped"
                self.faults.append(Finding(path, size, text, True))
            elif size > one.size:
                self.cuts.append((path, int(one.size)))
            if not one.fits(entry_count):
                text = "the recovery terms name acked places that belong to another segment"
                self.faults.append(Finding(path, -1, text, True))
        for num in sorted(left):
            if self.terms.is_known:  # all of it is acked, or was never synced
                self.cuts.append((files.path_of(num), 0))
            else:
                text = "the recovery terms do not know its queue"
                self.faults.append(Finding(files.path_of(num), -1, text, True))


# -- after a crash ----------------------------------------------------------------------------------------------------


class ScannedSegment:
    """One segment. `segment` has its counts, `live` the entries of what the next start has of it.

    `damage` is what is lost of the file, `torn` what a scatter that was cut short has left. When only the heads of its
    blocks were read there is no `parsed`, and `live` is empty: all that `segment` counts is alive.
    """

    def __init__(self, segment: Segment, path: str) -> None:
        self.segment = segment
        self.path = path
        self.live: dict[int, Entry] = {}
        self.parsed: Parsed | None = None  # the file as it is
        self.damage: list[Damage] = []
        self.torn: list[Damage] = []

    def has_live(self) -> bool:
        """False when the next start needs nothing of it."""
        return self.segment.live > 0 if self.parsed is None else len(self.live) > 0

    def count_off(self, seq_id: int) -> None:
        """The place is acked in the journal, or lost: the file has no ACK of it."""
        entry = self.live.pop(seq_id, None)
        if entry is not None:
            segment = self.segment
            segment.mark_acked(seq_id)
            segment.live -= 1
            segment.live_bytes -= entry.body_size
            segment.new_acks.append(seq_id)
            segment.new_acked_bytes += entry.body_size


class QueueScan:
    """One queue. `segment` for each of `files.nums` in order. `published` is what the journal has, and `in_segments` the
    places of it that a segment has as well, and that count there; it is whole when all segments are read. `top` is the
    highest seq_id that was seen.
    """

    def __init__(
        self,
        disk: Disk,
        queue_id: int,
        files: QueueFiles,
        entry_count: i64,
        replayed: ReplayedQueue,
        progress: Callable[[int], None],
    ) -> None:
        self.files = files
        self.queue_id = queue_id
        self.published = replayed.published
        self.in_segments: set[int] = set()
        self.top: i64 = replayed.top
        self._disk = disk
        self._entry_count = entry_count
        self._progress = progress
        self._acked: dict[int, list[tuple[int, int]]] = {}
        self._mentioned: set[int] = set()  # segments that a scatter may have been writing to
        if files.nums:
            self._acked = _by_segment(replayed.acked, entry_count, files.nums)
            self._mentioned = {seq_id // entry_count for seq_id in replayed.published}
            self._mentioned.update(self._acked)
            self._mentioned.add(files.nums[-1])

    def segment(self, num: int, heads_enough: bool) -> ScannedSegment:
        """The next segment. Raises OSError, and StartError for one of a newer version.

        `heads_enough`: where the journal has nothing to say and nothing is in the message store, the heads of its blocks
        are read and no more.
        """
        segment = Segment(num, self._entry_count)
        found = ScannedSegment(segment, self.files.path_of(num))
        if heads_enough and num not in self._mentioned and self._walk(found):
            self.top = max(self.top, segment.first_seq_id)
            return found
        data = read_file(self._disk, found.path)
        self._progress(len(data))
        parsed = parse(data, found.path, self.queue_id, num)
        refuse_newer(parsed, found.path)
        found.parsed = parsed
        self._judge(found, parsed, num in self._mentioned)
        kept = own_places(segment, self._without_what_the_journal_has(segment, parsed))
        restore(segment, kept)
        for entry in kept.entries:
            if entry.kind == PUBLISH:
                self.top = max(self.top, entry.seq_id)
        found.live = live_entries(segment, kept)
        self._apply_acks(found)
        return found

    def _walk(self, found: ScannedSegment) -> bool:
        walked = walk(self._disk, found.path, self.queue_id, int(found.segment.num))
        if walked is None or walked[0].stored > 0:
            return False
        counts, size = walked
        self._progress(WALK_BYTES)
        found.segment.live = counts.publishes - counts.acks
        found.segment.live_bytes = counts.published_bytes - counts.acked_bytes
        found.segment.size = size
        return True

    def _judge(self, found: ScannedSegment, parsed: Parsed, may_be_torn: bool) -> None:
        """Sorts what is wrong with the file into `damage` and `torn`.

        Ensures: `torn` has nothing that was ever synced, and `damage` everything else that cannot be read.
        Assumes: `may_be_torn` if a scatter may have been writing to the segment; a block that is torn is the last one, so
        behind damage nothing is taken for torn.
        """
        damage = found.damage
        damage.extend(parsed.damage)
        if parsed.header:
            header = Damage(found.path, 0, int(HEADER_SIZE), parsed.header)
            unknown = [one for one in parsed.entries if one.kind == PUBLISH and one.seq_id not in self.published]
            if unknown or not may_be_torn:
                damage.append(header)
            else:
                found.torn.append(header)  # the file was new
        if parsed.torn:
            if may_be_torn and not damage:
                found.torn.append(Damage(found.path, int(parsed.size), int(parsed.torn), "a scatter that was cut short"))
            else:
                damage.append(Damage(found.path, int(parsed.size), int(parsed.torn), "torn tail"))

    def _without_what_the_journal_has(self, segment: Segment, parsed: Parsed) -> Parsed:
        """The segment up to the first block that the journal has whole: the next scatter writes it again.

        Its sync may have failed before the crash. Then the kernel shows what was written, takes it for clean, and would
        sync nothing. A block that has a message which the journal does not have is sound: the journal has let go of part
        of it, which it does after the sync only.

        Ensures: a place that is in what is returned and in `published` is in `in_segments`, every other place of the file
        has its entry in the journal.
        Assumes: what stands behind a block is younger than the block, and the journal lets go of the oldest first.
        """
        published, in_segments = self.published, self.in_segments
        end = segment.first_seq_id + segment.entry_count
        known: set[int]
        if len(published) < segment.entry_count:
            known = {seq_id for seq_id in published if segment.first_seq_id <= seq_id < end}
        else:
            known = {seq_id for seq_id in range(segment.first_seq_id, end) if seq_id in published}
        for begin, many in self._acked.get(segment.num, []):
            known.update(range(max(begin, int(segment.first_seq_id)), min(begin + many, int(end))))
        for number, (offset, first) in enumerate(parsed.starts):
            last = parsed.starts[number + 1][1] if number + 1 < len(parsed.starts) else len(parsed.entries)
            publishes = [int(entry.seq_id) for entry in parsed.entries[first:last] if entry.kind == PUBLISH]
            doubled = [seq_id for seq_id in publishes if seq_id in published and seq_id not in in_segments]
            if not doubled:
                continue
            if known.issuperset(publishes):
                kept = Parsed(parsed.data)
                kept.entries = parsed.entries[:first]
                kept.size = offset
                return kept
            in_segments.update(doubled)
        return parsed

    def _apply_acks(self, found: ScannedSegment) -> None:
        for first, many in self._acked.get(found.segment.num, []):
            if many <= len(found.live):
                for seq_id in range(first, first + many):
                    found.count_off(seq_id)
            else:
                for seq_id in [seq_id for seq_id in found.live if first <= seq_id < first + many]:
                    found.count_off(seq_id)


def own_places(segment: Segment, parsed: Parsed) -> Parsed:
    """The segment without places of others: a block that has some makes no sense, although it is whole."""
    first = segment.first_seq_id
    behind = first + segment.entry_count
    for entry in parsed.entries:
        if entry.kind == PUBLISH and not first <= entry.seq_id < behind:
            break
    else:
        return parsed
    own = Parsed(parsed.data)
    own.size = parsed.size
    own.entries = [one for one in parsed.entries if one.kind != PUBLISH or first <= one.seq_id < behind]
    return own


def refuse_newer(parsed: Parsed, path: str) -> None:
    """Raises StartError for a segment with a sound header of a version that is not known."""
    head = parsed.data[:HEADER_SIZE]
    if parsed.header and len(head) == HEADER_SIZE and head[:4] == b"RPSG" and is_sealed(head):
        if int.from_bytes(head[4:8], "big") > VERSION:
            raise StartError(f"{path}: {parsed.header}")


def _by_segment(
    ranges: list[tuple[int, int]], entry_count: i64, nums: list[int]
) -> dict[int, list[tuple[int, int]]]:
    """The ranges (first seq_id, count) that meet each segment; a range over several meets those that there are."""
    found: dict[int, list[tuple[int, int]]] = {}
    for first, many in ranges:
        low, high = int(first // entry_count), int((first + many - 1) // entry_count)
        for num in [low] if low == high else [num for num in nums if low <= num <= high]:
            found.setdefault(num, []).append((first, many))
    return found
