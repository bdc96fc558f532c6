"""Looking at the store of a vhost that no broker uses: which messages are in it, and is every byte as it should be?

Everything is read in the way in which the next start will read it (vhost_store.py): after a clean stop, when there are
terms, what they name of segments and journal; else the segments and, over them, the journal. So `live` gives the messages
that the next start will have. What is found on the way is a `Finding`, and either damage or a note. What a killed broker,
or a power cut, can leave is a note:

  journal    bytes behind the last sound block; a file without a header, as it is before its first write; a file that the
             terms do not name, whatever is in it
  segments   bytes behind the last sound block of a segment to which a scatter was writing: the last one of its queue,
             or one whose places the journal mentions; after a clean stop, those behind what the terms name. Its header,
             when the journal has every place that is in it
  store      a torn tail, a message that is there twice, a compaction that was cut short, unreadable bytes that nothing
             refers to; messages without reference are counted, no more
  folders    of queues without definition; files that the terms do not name

Everything else that is not as the writer of the file leaves it is damage.

What must stay true: nothing is ever written, here or by what is called from here.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from typing import Any, Final, cast

from librt.strings import read_i32_be, read_i64_be
from mypy_extensions import i64

from rabbitpy_broker.errors import StartError
from rabbitpy_broker.message import Message
from rabbitpy_broker.storage.files import Disk
from rabbitpy_broker.storage.journal_files import ALIGNMENT, aligned
from rabbitpy_broker.storage.journal_files import BLOCK_HEAD as JOURNAL_BLOCK_HEAD
from rabbitpy_broker.storage.records import (
    ACK,
    DELIVER,
    MSG_ID_SIZE,
    PUBLISH,
    PUBLISH_HEAD,
    RANGE_SIZE,
    REDELIVERED,
    STORED,
    Entry,
    FormatError,
    is_sealed,
    read_entries,
    read_message,
)
from rabbitpy_broker.storage.recovery import HEADER_SIZE as JOURNAL_HEADER_SIZE
from rabbitpy_broker.storage.recovery import FoundFile, Replay, ReplayedQueue, _block_at, read_header, replay
from rabbitpy_broker.storage.segment import BLOCK_HEAD, HEADER_SIZE, BlockCounts, Parsed, _read_head, parse
from rabbitpy_broker.storage.store_file import (
    RECORD_HEAD,
    DamagedError,
    OpenFiles,
    RecordScan,
    decode_record,
    file_num_of,
    file_path,
)
from rabbitpy_broker.storage.store_scan import StoreScan
from rabbitpy_broker.storage.terms import (
    KNOWN_VERSIONS,
    TERMS,
    QueueTerms,
    SegmentTerms,
    Terms,
    read_terms,
    terms_version,
)

OPEN_FILES_MAX: Final[i64] = 8


class Finding:
    """Something that is not as it is after a clean stop. `offset` is -1 where it concerns the whole file."""

    def __init__(self, path: str, offset: i64, text: str, is_damage: bool) -> None:
        self.path = path
        self.offset = offset
        self.text = text
        self.is_damage = is_damage


class Counts:
    """What a vhost has; `bytes` are those of the bodies of `messages`."""

    def __init__(self) -> None:
        self.queues: i64 = 0
        self.messages: i64 = 0
        self.bytes: i64 = 0
        self.segments: i64 = 0
        self.journal_files: i64 = 0
        self.stored_messages: i64 = 0
        self.garbage: i64 = 0  # stored messages that no place refers to


class LivePlace:
    """A place that the next start will have. What `size` counts is the message or, when it is `stored`, its msg_id."""

    def __init__(self, entry: Entry, path: str, data: bytes | None, redelivered: bool) -> None:
        self.seq_id = entry.seq_id
        self.expiry = entry.expiry
        self.body_size = entry.body_size
        self.stored = entry.flags & STORED != 0
        self.redelivered = redelivered
        self.path = path
        self.offset = entry.data
        self.size = entry.size
        self.data = data  # the bytes of the whole file, or None: they are to be read


class _Ranges:
    """A set of seq_ids that is kept as ranges: a purge acks millions at once."""

    def __init__(self, ranges: list[tuple[int, int]]) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []
        for first, count in sorted(ranges):
            if self._ends and first <= self._ends[-1]:
                self._ends[-1] = max(self._ends[-1], first + count)
            else:
                self._starts.append(first)
                self._ends.append(first + count)

    def has(self, seq_id: int) -> bool:
        at = bisect_right(self._starts, seq_id) - 1
        return at >= 0 and seq_id < self._ends[at]

    def touches(self, start: int, end: int) -> bool:
        """Whether anything of [start, end) is in it."""
        at = bisect_right(self._starts, end - 1) - 1
        return at >= 0 and self._ends[at] > start


class _SegmentContent:
    """What the entries of a segment file say."""

    def __init__(self) -> None:
        self.published: dict[int, Entry] = {}
        self.acked: dict[int, None] = {}
        self.delivered: dict[int, None] = {}
        self.stored: i64 = 0


class _Silent:
    """A log for `replay`, which writes there what is found here anyway."""

    def warning(self, event: str, **fields: Any) -> None:
        """Says nothing."""


def queue_folder(queue_id: int) -> str:
    return f"{queue_id:016x}"


def bytes_to_read(disk: Disk, path: str) -> int:
    """About how much a check of the vhost at `path` is going to read."""
    folders = [f"{path}/journal", f"{path}/journal", f"{path}/msg_store_persistent"]  # the journal twice
    folders.extend([f"{path}/queues/{name}" for name in disk.list_dir(f"{path}/queues")])
    total = 0
    for folder in folders:
        for name in disk.list_dir(folder):
            if name.endswith((".journal", ".store", ".segment")):
                total += disk.size(f"{folder}/{name}")
    return total


class Inspection:
    """One vhost's store. `progress` is told of bytes that were read, time and again.

    `check`, or `live` of the queues that are wanted; `findings` grows meanwhile. Reading raises OSError, and StartError
    for a format of the future.
    """

    def __init__(
        self, disk: Disk, path: str, segment_entry_count: i64, progress: Callable[[int], None] | None = None
    ) -> None:
        self.path = path
        self.findings: list[Finding] = []
        self.counts = Counts()
        self._disk = disk
        self._progress = progress
        self._entry_count = segment_entry_count
        self._terms = self._read_terms()
        self._journal = self._read_journal()
        self._paths: dict[int, str] = {int(one.num): one.path for one in self._journal.files}

    @property
    def is_clean(self) -> bool:
        """True after a clean stop."""
        return self._terms is not None

    def _damage(self, path: str, offset: i64, text: str) -> None:
        self.findings.append(Finding(path, offset, text, True))

    def _note(self, path: str, offset: i64, text: str) -> None:
        self.findings.append(Finding(path, offset, text, False))

    def _read(self, path: str) -> bytes:
        file = self._disk.open(path)
        try:
            data: bytes = file.read_at(0, int(file.size()))
        finally:
            file.close()
        if self._progress is not None:
            self._progress(len(data))
        return data

    # -- everything -----------------------------------------------------------------------------------------------

    def check(self, queue_ids: list[int]) -> None:
        """Walks over everything that the queues of the definitions have; see `findings` and `counts` then."""
        if not self._disk.exists(self.path):
            self._note(self.path, -1, "the vhost has no store yet")
        known: dict[str, None] = {}
        for queue_id in queue_ids:
            if queue_folder(queue_id) in known:
                self._damage(self.path, -1, f"two queues have the queue_id {queue_id:016x}")
            known[queue_folder(queue_id)] = None
        for folder in ("damaged", "msg_store_persistent/damaged"):
            if self._disk.list_dir(f"{self.path}/{folder}"):
                self._note(f"{self.path}/{folder}", -1, "copies of files in which a start has found damage")
        for name in self._disk.list_dir(f"{self.path}/queues"):
            if name not in known:
                self._note(
                    f"{self.path}/queues/{name}", -1, "a queue without definition; the next start removes it"
                )
        for found in self._journal.files:
            self.counts.journal_files += 1
            self._check_journal_file(found)
        self.counts.queues = len(queue_ids)
        stored: dict[bytes, int] = {}
        faults = self._verify_store(stored)
        refs: dict[bytes, int] = {}
        missing: i64 = 0
        for queue_id in dict.fromkeys(queue_ids):
            for place in self.live(queue_id):
                self.counts.messages += 1
                self.counts.bytes += place.body_size
                if place.stored:
                    msg_id = self._bytes_of(place)
                    refs[msg_id] = refs.get(msg_id, 0) + 1
                    if msg_id not in stored:
                        missing += 1
                        text = f"seq_id {place.seq_id} is message {msg_id.hex()}, which the message store does not have"
                        self._damage(place.path, place.offset - PUBLISH_HEAD, text)
        self._judge_store(faults, stored, refs, missing > 0)
        self.counts.stored_messages = len(stored)
        self.counts.garbage = len([msg_id for msg_id in stored if msg_id not in refs])
        if self._terms is not None:
            self._check_message_terms(self._terms.messages, refs)

    # -- recovery terms -------------------------------------------------------------------------------------------

    def _read_terms(self) -> Terms | None:
        path = f"{self.path}/{TERMS}"
        if not self._disk.exists(path):
            return None
        data = self._read(path)
        version = terms_version(data)
        if version == 0:
            self._damage(path, 0, "its checksum is wrong")
            return None
        if version not in KNOWN_VERSIONS:
            known = " and ".join([str(one) for one in KNOWN_VERSIONS])
            raise StartError(f"{path} has format version {version}, this broker knows versions {known}")
        return read_terms(data)

    def _check_message_terms(self, terms: object, refs: dict[bytes, int]) -> None:
        """Each message that the terms name is where they say, and has as many places as they say."""
        path = f"{self.path}/{TERMS}"
        folder = f"{self.path}/msg_store_persistent"
        _, _, files, entries = cast("list[Any]", terms)
        sizes: dict[int, int] = {}
        for file_num, _, total_bytes in files:
            file = file_path(folder, file_num)
            size = self._disk.size(file) if self._disk.exists(file) else 0
            sizes[file_num] = size
            if size < total_bytes:
                self._damage(file, size, f"it ends here, and had {total_bytes} bytes when the broker stopped")
        opened = OpenFiles(self._disk, folder, OPEN_FILES_MAX)
        named: dict[bytes, None] = {}
        try:
            for msg_id, file_num, offset, size, ref_count in entries:
                named[msg_id] = None
                if refs.get(msg_id, 0) != ref_count:
                    text = f"message {msg_id.hex()} has {refs.get(msg_id, 0)} places, and {ref_count} are to be there"
                    self._damage(path, -1, text)
                if offset + RECORD_HEAD + size > sizes.get(file_num, 0):
                    continue  # the file's end is missing, as was said
                head = opened.read_at(file_num, offset, int(RECORD_HEAD))
                if not is_sealed(head) or head[8:24] != msg_id or int.from_bytes(head[4:8], "big") != size:
                    self._damage(
                        file_path(folder, file_num), offset, f"message {msg_id.hex()} should begin here"
                    )
        finally:
            opened.close_all()
        for msg_id in refs:
            if msg_id not in named:
                self._damage(path, -1, f"message {msg_id.hex()} has places, and is not named")

    def _check_segment_terms(
        self, path: str, terms: SegmentTerms, live: dict[int, Entry], content: _SegmentContent, size: int
    ) -> None:
        live_bytes = sum([int(entry.body_size) for entry in live.values()])
        acked = [content.published[one] for one in terms.acked if one in content.published]
        acked_bytes = sum([int(entry.body_size) for entry in acked])
        twice = [one for one in terms.acked if one in content.acked]
        for name, found, expected in (
            ("messages", len(live), int(terms.live)),
            ("bytes", live_bytes, int(terms.live_bytes)),
            ("stored messages", int(content.stored), int(terms.stored)),
            ("size", size, int(terms.size)),
            ("acked messages", len(acked) - len(twice), len(terms.acked)),
            ("bytes of acked messages", acked_bytes, int(terms.acked_bytes)),
        ):
            if found != expected:
                self._damage(path, -1, f"{name}: {found}, and the recovery terms say {expected}")

    # -- journal --------------------------------------------------------------------------------------------------

    def _read_journal(self) -> Replay:
        folder = f"{self.path}/journal"
        terms = self._terms
        found = replay(self._disk, folder, _Silent(), None if terms is None else terms.journal)
        if self._progress is not None:
            self._progress(int(found.bytes))
        for one in found.damage:
            self._damage(one.path, one.offset, one.reason)
        if terms is not None and not self._has_journal(terms, found):
            self._terms = None  # the next start scans
            return self._read_journal()
        with_header = [one.path for one in found.files]
        for name in self._disk.list_dir(folder):
            path = f"{folder}/{name}"
            if not name.endswith(".journal") or path in with_header:
                continue
            if terms is None:
                self._judge_headless(path)
            elif read_header(self._disk, path) is None:
                self._note(path, 0, "without a header; not needed any more")
        return found

    def _has_journal(self, terms: Terms, found: Replay) -> bool:
        """Whether the journal files are what the terms say."""
        files = {int(one.num): one for one in found.files}
        fits = not found.damage
        for num, end in terms.journal.items():
            file = files.get(num)
            if file is None:
                self._damage(f"{self.path}/journal", -1, f"file number {num} is missing; the recovery terms name it")
                fits = False
            elif file.end < end:
                self._damage(file.path, file.end, f"it ends here, and had {end} bytes when the broker stopped")
                fits = False
        return fits

    def _judge_headless(self, path: str) -> None:
        """A header is smaller than what a disk writes at once: it is there, or the old one is, or zeros are."""
        data = self._read(path)
        if not any(data[:JOURNAL_HEADER_SIZE]):
            probe = FoundFile(path, 0, data[ALIGNMENT + 16 : ALIGNMENT + 24], 0, 0)
            length = _block_at(data, ALIGNMENT, probe)
            if length < 0 or _block_at(data, aligned(ALIGNMENT + JOURNAL_BLOCK_HEAD + length), probe) < 0:
                self._note(path, 0, "a file that was never written to")
                return
        elif data[:4] == b"RPJF" and is_sealed(data[:JOURNAL_HEADER_SIZE]):
            raise StartError(
                f"{path} has format version {int.from_bytes(data[4:8], 'big')}, this broker does not know it"
            )
        self._damage(path, 0, "its header is damaged, and nothing behind it is read")

    def _check_journal_file(self, found: FoundFile) -> None:
        """What `replay` does not ask: epochs increase, and what is published is a message, or the id of one."""
        data = self._read(found.path)
        if _is_torn(data, found):
            self._note(found.path, found.end, "torn tail")
        pos: i64 = ALIGNMENT
        epoch: i64 = 0
        for before in self._journal.files:
            if before.num < found.num:
                epoch = max(epoch, before.epoch)
        while pos < found.end:
            length = _block_at(data, pos, found)
            if length < 0:  # `replay` has named it
                pos += ALIGNMENT
                continue
            this = read_i64_be(data, pos + 8)
            if this <= epoch:
                self._damage(found.path, pos, f"epoch {this} comes behind epoch {epoch}")
            epoch = max(epoch, this)
            start = pos + JOURNAL_BLOCK_HEAD
            try:
                self._check_sections(data, start, start + length, found.path)
            except FormatError as error:
                self._damage(found.path, pos, str(error))
            pos = aligned(start + length)

    def _check_sections(self, data: bytes, pos: i64, end: i64, path: str) -> None:
        while pos + 12 <= end:
            size = i64(read_i32_be(data, pos + 8)) & 0xFFFFFFFF
            pos += 12
            if pos + size > end:
                raise FormatError("a section that is longer than its block")
            for entry in read_entries(data, pos, pos + size):
                if entry.kind == PUBLISH:
                    self._check_publish(data, entry, path)
            pos += size

    def _check_publish(self, data: bytes, entry: Entry, path: str) -> None:
        at = entry.data - PUBLISH_HEAD
        if entry.flags & STORED:
            if entry.size != MSG_ID_SIZE:
                self._damage(path, at, f"seq_id {entry.seq_id}: a msg_id of {entry.size} bytes")
            return
        try:
            body_size = read_message(data, entry.data, entry.data + entry.size).body_size
        except FormatError as error:
            self._damage(path, at, f"seq_id {entry.seq_id}: {error}")
            return
        if body_size != entry.body_size:
            text = (
                f"seq_id {entry.seq_id}: a body of {body_size} bytes, and {entry.body_size} are to be there"
            )
            self._damage(path, at, text)

    # -- queues ---------------------------------------------------------------------------------------------------

    def live(self, queue_id: int) -> Iterator[LivePlace]:
        """Every place that the next start will have, in the queue's order. Judges the queue's segments on the way."""
        replayed = self._journal.queues.get(queue_id)
        if replayed is None:
            replayed = ReplayedQueue()
        terms = None if self._terms is None else self._terms.queue(queue_id)
        acked = _Ranges(replayed.acked if terms is None else [])
        only_in_journal = self._only_in_journal(queue_id, terms, replayed)
        redelivered: set[int] | None = None
        redelivered_below = 1 << 62
        by_num: dict[int, SegmentTerms] = {}
        if terms is not None:
            redelivered = set(terms.redelivered)
            redelivered_below = int(terms.redelivered_below)
            by_num = {int(one.num): one for one in terms.segments}
        mentioned = {seq_id // int(self._entry_count) for seq_id in replayed.published}
        last_seq_id = max(only_in_journal, default=-1)
        segments = self._segments(queue_id, terms)
        for num, path in segments:
            self.counts.segments += 1
            start = num * int(self._entry_count)
            end = start + int(self._entry_count)
            may_be_torn = num in mentioned or acked.touches(start, end) or num == segments[-1][0]
            data = self._read(path)
            one = by_num.get(num)
            if one is not None and len(data) > one.size:
                self._note(path, one.size, f"{len(data) - one.size} bytes of a scatter that was cut short")
                data = data[: one.size]
            parsed = parse(data, path, queue_id, num)
            content = self._content(parsed, path, start, end)
            self._judge_segment(parsed, path, may_be_torn and not self.is_clean, content, replayed)
            gone = set() if one is None else set(one.acked)
            delivered = set() if one is None else set(one.delivered)
            live: dict[int, Entry] = {}
            for seq_id in sorted(content.published):
                if only_in_journal.pop(seq_id, None) is not None and terms is not None:
                    self._damage(path, -1, f"seq_id {seq_id} is here and, as the recovery terms say, in the journal alone")
                if seq_id not in content.acked and not acked.has(seq_id) and seq_id not in gone:
                    live[seq_id] = content.published[seq_id]
            if one is not None:
                self._check_segment_terms(path, one, live, content, len(data))
            for seq_id, entry in live.items():
                yield from self._journal_places(only_in_journal, seq_id, replayed, redelivered)
                is_redelivered = entry.flags & REDELIVERED != 0 or seq_id in content.delivered or seq_id in delivered
                yield LivePlace(entry, path, data, is_redelivered or seq_id < redelivered_below)
                last_seq_id = max(last_seq_id, seq_id)
        if terms is not None and last_seq_id >= terms.next_seq_id:
            text = f"queue {queue_id:016x}: the next seq_id is to be {terms.next_seq_id}, and {last_seq_id} is there"
            self._damage(f"{self.path}/{TERMS}", -1, text)
        yield from self._journal_places(only_in_journal, 1 << 62, replayed, redelivered)

    def _only_in_journal(
        self, queue_id: int, terms: QueueTerms | None, replayed: ReplayedQueue
    ) -> dict[int, Entry]:
        """In order. Without terms, segments may have some of them as well."""
        if terms is None:
            return {seq_id: replayed.published[seq_id] for seq_id in sorted(replayed.published)}
        found: dict[int, Entry] = {}
        for seq_id in terms.in_journal:
            entry = replayed.published.get(seq_id)
            if entry is None:
                text = f"queue {queue_id:016x}: seq_id {seq_id} is missing; the recovery terms name it"
                self._damage(f"{self.path}/journal", -1, text)
            else:
                found[seq_id] = entry
        return found

    def _segments(self, queue_id: int, terms: QueueTerms | None) -> list[tuple[int, str]]:
        """Number and path of each persistent segment file that the next start reads."""
        folder = f"{self.path}/queues/{queue_folder(queue_id)}"
        expected: dict[int, None] = {}
        if terms is not None:
            for one in terms.segments:
                expected[int(one.num)] = None
        found: list[tuple[int, str]] = []
        for name in self._disk.list_dir(folder):
            stem, _, kind = name.partition(".")
            if kind != "segment":
                continue  # transient ones are removed at each start
            path = f"{folder}/{name}"
            try:
                num = int(stem, 16)
            except ValueError:
                self._damage(path, -1, "no segment has such a name")
                continue
            if terms is None or num in expected:
                found.append((num, path))
            elif not terms.is_known:
                self._damage(path, -1, "the recovery terms do not know its queue")
            else:
                self._note(path, -1, "the recovery terms do not name it; the next start removes it")
        for num in expected:
            path = f"{folder}/{num:08x}.segment"
            if not self._disk.exists(path):
                self._damage(path, -1, "it is missing; the recovery terms name it")
        return sorted(found)

    def _content(self, parsed: Parsed, path: str, start: int, end: int) -> _SegmentContent:
        """The entries block by block, each block compared with its head."""
        content = _SegmentContent()
        data = parsed.data
        entries = parsed.entries
        unsound = {one.offset for one in parsed.damage}
        at: i64 = 0
        pos: i64 = HEADER_SIZE
        while pos < parsed.size:
            said = _read_head(data, pos)
            assert said is not None, "kept by: parse, which has read it"
            block_at = pos
            pos += BLOCK_HEAD
            stop = pos + (i64(read_i32_be(data, block_at + 4)) & 0xFFFFFFFF)
            if int(pos) in unsound:
                pos = stop
                continue
            counts = BlockCounts()
            while pos < stop:
                entry = entries[at]
                at += 1
                pos += PUBLISH_HEAD + entry.size if entry.kind == PUBLISH else RANGE_SIZE
                if entry.kind == PUBLISH:
                    self._take_publish(content, counts, entry, data, path, start, end)
                else:
                    self._take_range(content, counts, entry, path, block_at, start, end, not parsed.damage)
            if (
                counts.publishes != said.publishes
                or counts.acks != said.acks
                or counts.published_bytes != said.published_bytes
                or counts.stored != said.stored
                or (counts.acked_bytes != said.acked_bytes and not parsed.damage)
            ):
                self._damage(
                    path, block_at, f"the head says {_counted(said)}, and there are {_counted(counts)}"
                )
        return content

    def _take_publish(
        self,
        content: _SegmentContent,
        counts: BlockCounts,
        entry: Entry,
        data: bytes,
        path: str,
        start: int,
        end: int,
    ) -> None:
        seq_id = int(entry.seq_id)
        counts.publishes += 1
        counts.published_bytes += entry.body_size
        if entry.flags & STORED:
            counts.stored += 1
            content.stored += 1
        where = entry.data - PUBLISH_HEAD
        if not start <= seq_id < end:
            self._damage(path, where, f"seq_id {seq_id} does not belong to this segment")
        elif seq_id in content.published:
            self._damage(path, where, f"seq_id {seq_id} is published twice")
        else:
            content.published[seq_id] = entry
        self._check_publish(data, entry, path)

    def _take_range(
        self,
        content: _SegmentContent,
        counts: BlockCounts,
        entry: Entry,
        path: str,
        block_at: i64,
        start: int,
        end: int,
        is_whole: bool,
    ) -> None:
        first, behind = int(entry.seq_id), int(entry.seq_id + entry.count)
        if entry.kind == ACK:
            counts.acks += entry.count
        if not start <= first < behind <= end:
            self._damage(path, block_at, f"seq_ids {first} to {behind - 1} do not belong to this segment")
            return
        for seq_id in range(first, behind):
            published = content.published.get(seq_id)
            if entry.kind == DELIVER:
                content.delivered[seq_id] = None
            elif published is None:
                if is_whole:
                    self._damage(path, block_at, f"seq_id {seq_id} is acked and was never published")
            elif seq_id in content.acked:
                self._damage(path, block_at, f"seq_id {seq_id} is acked twice")
            else:
                content.acked[seq_id] = None
                counts.acked_bytes += published.body_size

    def _judge_segment(
        self, parsed: Parsed, path: str, may_be_torn: bool, content: _SegmentContent, replayed: ReplayedQueue
    ) -> None:
        for one in parsed.damage:
            self._damage(one.path, one.offset, f"{one.size} unreadable bytes: {one.reason}")
        if parsed.header:
            if _is_of_the_future(parsed.data):
                raise StartError(f"{path}: {parsed.header}")
            is_new = may_be_torn and not [one for one in content.published if one not in replayed.published]
            self.findings.append(Finding(path, 0, parsed.header, not is_new))
        if parsed.torn:
            is_damage = not may_be_torn or len(parsed.damage) > 0
            kind = "unreadable" if is_damage else "a scatter that was cut short"
            self.findings.append(
                Finding(path, parsed.size, f"torn tail, {parsed.torn} bytes: {kind}", is_damage)
            )

    def _journal_places(
        self, places: dict[int, Entry], below: int, replayed: ReplayedQueue, redelivered: set[int] | None
    ) -> Iterator[LivePlace]:
        """Takes the places before `below` out of `places`, which is in order. `redelivered`: which are, None for all."""
        while places:
            seq_id = next(iter(places))
            if seq_id >= below:
                return
            path = self._paths[replayed.file_nums[seq_id]]
            yield LivePlace(places.pop(seq_id), path, None, redelivered is None or seq_id in redelivered)

    def _bytes_of(self, place: LivePlace) -> bytes:
        if place.data is not None:
            return place.data[place.offset : place.offset + place.size]
        file = self._disk.open(place.path)
        try:
            data: bytes = file.read_at(int(place.offset), int(place.size))
        finally:
            file.close()
        return data

    # -- message store --------------------------------------------------------------------------------------------

    def _verify_store(self, stored: dict[bytes, int]) -> list[Finding]:
        """Fills `stored` with msg_id -> size. What may be damage, or not, is returned."""
        folder = f"{self.path}/msg_store_persistent"
        faults: list[Finding] = []
        scan = StoreScan(self._disk, folder, {})
        scan.read(self._progress)
        stored.update({msg_id: int(entry.size) for msg_id, entry in scan.entries.items()})
        for path, kind, text in scan.findings():
            if kind == "count":
                continue
            if kind == "damaged":
                faults.append(Finding(path, -1, text, True))
            else:
                self._note(path, -1, f"{kind}: {text}")
        return faults

    def _judge_store(
        self, faults: list[Finding], stored: dict[bytes, int], refs: dict[bytes, int], is_any_missing: bool
    ) -> None:
        """A reference comes after the sync of its message: as long as none is missed, faults are what a crash left."""
        for fault in faults:
            fault.is_damage = is_any_missing or self._is_referred_to_header(fault, stored, refs)
            if not fault.is_damage:
                fault.text += ", to which nothing refers"
            self.findings.append(fault)

    def _is_referred_to_header(
        self, fault: Finding, stored: dict[bytes, int], refs: dict[bytes, int]
    ) -> bool:
        """Whether it is a header in front of a message that is referred to: both were synced together."""
        if fault.text != "the file's header":
            return False
        file = self._disk.open(fault.path)
        try:
            scan = RecordScan(file, file.size())
            records = scan.read()
            while records:
                for record in records:
                    if record.msg_id in refs:
                        return True
                records = scan.read()
        finally:
            file.close()
        return False

    # -- messages -------------------------------------------------------------------------------------------------

    def locate(self, wanted: dict[bytes, tuple[int, int, int]]) -> None:
        """Fills in file_num, offset and size of the record for each msg_id in `wanted` that the message store has."""
        folder = f"{self.path}/msg_store_persistent"
        for name in self._disk.list_dir(folder):
            file_num = file_num_of(name)
            if file_num < 0:
                continue
            file = self._disk.open(f"{folder}/{name}")
            try:
                scan = RecordScan(file, file.size())
                before = scan.sound_end
                records = scan.read()
                while records:
                    for record in records:
                        if record.msg_id in wanted:
                            wanted[record.msg_id] = (int(file_num), int(record.offset), int(record.size()))
                    if self._progress is not None:
                        self._progress(int(scan.sound_end - before))
                    before = scan.sound_end
                    records = scan.read()
            finally:
                file.close()

    def messages(self, queue_id: int) -> Iterator[tuple[LivePlace, Message | None]]:
        """The live places of a queue in order, each with its message; None, and a finding, when that cannot be read."""
        before = list(self.findings)
        wanted: dict[bytes, tuple[int, int, int]] = {}
        for place in self.live(queue_id):
            if place.stored:
                wanted[self._bytes_of(place)] = (0, 0, 0)
        if wanted:
            self.locate(wanted)
        self.findings = before  # those of this walk come again with the next
        folder = f"{self.path}/msg_store_persistent"
        opened = OpenFiles(self._disk, folder, OPEN_FILES_MAX)
        try:
            for place in self.live(queue_id):
                yield place, self._message_of(place, wanted, opened, folder)
        finally:
            opened.close_all()

    def _message_of(
        self, place: LivePlace, located: dict[bytes, tuple[int, int, int]], opened: OpenFiles, folder: str
    ) -> Message | None:
        data = self._bytes_of(place)
        try:
            if not place.stored:
                return read_message(data, 0, len(data))
            file_num, offset, size = located[data]
            if file_num > 0:
                return decode_record(
                    opened.read_at(file_num, offset, size), file_path(folder, file_num), offset, data
                )
            error = f"message {data.hex()}, which the message store does not have"
        except (FormatError, DamagedError) as caught:
            error = str(caught)
        self._damage(place.path, place.offset - PUBLISH_HEAD, f"seq_id {place.seq_id}: {error}")
        return None


def _is_torn(data: bytes, found: FoundFile) -> bool:
    """Whether a block of this file begins behind the last sound one: old blocks have a sound head with another nonce."""
    head = data[found.end : found.end + JOURNAL_BLOCK_HEAD]
    return head[16:24] == found.nonce or (head[:4] == b"RPJB" and not is_sealed(head))


def _counted(counts: BlockCounts) -> str:
    return (
        f"{counts.publishes} publishes of {counts.published_bytes} bytes, {counts.stored} of them stored, "
        f"and {counts.acks} acks of {counts.acked_bytes} bytes"
    )


def _is_of_the_future(data: bytes) -> bool:
    """A sound header with a version that is not ours."""
    head = data[:HEADER_SIZE]
    return (
        len(head) == HEADER_SIZE
        and head[:4] == b"RPSG"
        and is_sealed(head)
        and head[4:8] > b"\x00\x00\x00\x01"
    )
