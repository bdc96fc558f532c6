"""Looking at the store of a vhost that no broker uses: which messages are in it, and is every byte as it should be?

Everything is read by the readers by which the next start will read it (vhost_scan.py, queue_scan.py, store_scan.py). So
`live` gives the messages that the next start will have. What is found on the way is a `Finding`, and either damage or a
note. What a killed broker, or a power cut, can leave is a note:

  journal    bytes behind the last sound block; a file without a header, as it is before its first write; a file that the
             terms do not name, whatever is in it
  segments   bytes behind the last sound block of a segment to which a scatter was writing: the last one of its queue,
             or one whose places the journal mentions; after a clean stop, those behind what the terms name. Its header,
             when the journal has every place that is in it
  store      a torn tail, a message that is there twice, a compaction that was cut short, unreadable bytes that nothing
             refers to; messages without reference are counted, no more
  streams    see stream_check.py
  folders    of queues without definition; files that the terms do not name

Everything else that is not as the writer of the file leaves it is damage. A check looks at what a start takes as it is,
too (file_checks.py).

What must stay true: nothing is ever written, here or by what is called from here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, cast

from mypy_extensions import i64

from rabbitpy_broker.errors import StartError
from rabbitpy_broker.message import Message
from rabbitpy_broker.storage.file_checks import JournalFileCheck, SegmentCheck
from rabbitpy_broker.storage.files import Disk
from rabbitpy_broker.storage.finding import Finding
from rabbitpy_broker.storage.journal_files import ALIGNMENT, aligned
from rabbitpy_broker.storage.journal_files import BLOCK_HEAD as JOURNAL_BLOCK_HEAD
from rabbitpy_broker.storage.journal_scan import HEADER_SIZE as JOURNAL_HEADER_SIZE
from rabbitpy_broker.storage.journal_scan import FoundFile, Replay, ReplayedQueue, block_at, read_header
from rabbitpy_broker.storage.queue_scan import QueueByTerms, QueueFiles, own_places, read_file, refuse_newer
from rabbitpy_broker.storage.records import (
    PUBLISH_HEAD,
    REDELIVERED,
    STORED,
    Entry,
    FormatError,
    is_sealed,
    read_message,
)
from rabbitpy_broker.storage.segment import Damage, live_entries, parse
from rabbitpy_broker.storage.store_file import RECORD_HEAD, DamagedError, OpenFiles, decode_record, file_path
from rabbitpy_broker.storage.store_scan import StoreScan
from rabbitpy_broker.storage.stream_check import StreamCheck, StreamMessage
from rabbitpy_broker.storage.terms import KNOWN_VERSIONS, SegmentTerms
from rabbitpy_broker.storage.vhost_scan import VHostScan

OPEN_FILES_MAX: Final[i64] = 8
BEHIND_ALL: Final = 1 << 62


class Counts:
    """The contents of a vhost in numbers; `bytes` are those of the bodies of `messages`, of streams all that is stored."""

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


class SegmentContent:
    """One segment as the next start has it: its live entries by seq_id, and the bytes of the file."""

    def __init__(self, num: int, path: str, data: bytes, live: dict[int, Entry]) -> None:
        self.num = num
        self.path = path
        self.data = data
        self.live = live


class JournalPlaces:
    """The places of one queue that the journal alone has: given out in order, between those of segments.

    `in_segments`: those of them that turn out to be in one.
    """

    def __init__(
        self,
        seq_ids: list[int],
        in_segments: set[int],
        journal: Replay,
        queue_id: int,
        redelivered: set[int] | None,
    ) -> None:
        self._order = seq_ids
        self._in_segments = in_segments
        self._at = 0
        replayed = journal.queues.get(queue_id)
        self._replayed = ReplayedQueue() if replayed is None else replayed
        self._paths = {int(one.num): one.path for one in journal.files}
        self._redelivered = redelivered  # which are, None for all

    def before(self, below: int) -> Iterator[LivePlace]:
        """Gives out the places before `below` that it has not given out yet."""
        while self._at < len(self._order) and self._order[self._at] < below:
            seq_id = self._order[self._at]
            self._at += 1
            if seq_id not in self._in_segments:
                path = self._paths[self._replayed.file_nums[seq_id]]
                redelivered = self._redelivered is None or seq_id in self._redelivered
                yield LivePlace(self._replayed.published[seq_id], path, None, redelivered)


def bytes_to_read(disk: Disk, path: str) -> int:
    """About how much a check of the vhost at `path` is going to read."""
    folders = [f"{path}/journal", f"{path}/journal", f"{path}/msg_store_persistent"]  # the journal twice
    folders.extend([f"{path}/queues/{name}" for name in disk.list_dir(f"{path}/queues")])
    total = 0
    for folder in folders:
        for name in disk.list_dir(folder):
            if name.endswith((".journal", ".store", ".segment", ".stream")):
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
        self._store_path = f"{path}/msg_store_persistent"
        self._messages: StoreScan | None = None
        self.scan = VHostScan(disk, path, segment_entry_count, self._has_read)
        self.scan.read()
        self._judge_terms_and_journal()

    @property
    def is_clean(self) -> bool:
        """True after a clean stop."""
        return self.scan.terms is not None

    def _has_read(self, size: int) -> None:
        if self._progress is not None:
            self._progress(size)

    def _damage(self, path: str, offset: i64, text: str) -> None:
        self.findings.append(Finding(path, offset, text, True))

    def _note(self, path: str, offset: i64, text: str) -> None:
        self.findings.append(Finding(path, offset, text, False))

    def _read(self, path: str) -> bytes:
        data = read_file(self._disk, path)
        self._has_read(len(data))
        return data

    # -- everything -----------------------------------------------------------------------------------------------

    def check(self, queue_ids: list[int], stream_ids: Iterable[int] = ()) -> None:
        """Walks over everything that the queues and streams of the definitions have; see `findings` and `counts` then."""
        stream_ids = list(stream_ids)
        if not self._disk.exists(self.path):
            self._note(self.path, -1, "the vhost has no store yet")
        known: dict[str, None] = {}
        for queue_id in [*queue_ids, *stream_ids]:
            name = f"{queue_id:016x}"
            if name in known:
                self._damage(self.path, -1, f"two queues have the queue_id {name}")
            known[name] = None
        for folder in ("damaged", "msg_store_persistent/damaged"):
            if self._disk.list_dir(f"{self.path}/{folder}"):
                self._note(f"{self.path}/{folder}", -1, "copies of files in which a start has found damage")
        for name in self.scan.folders:
            if name not in known:
                self._note(
                    f"{self.path}/queues/{name}", -1, "a queue without definition; the next start removes it"
                )
        self._check_journal_files()
        self.counts.queues = len(queue_ids) + len(stream_ids)
        for stream_id in dict.fromkeys(stream_ids):
            self._check_stream(stream_id)
        messages = self._scan_messages()
        for queue_id in dict.fromkeys(queue_ids):
            for place in self.live(queue_id):
                self.counts.messages += 1
                self.counts.bytes += place.body_size
                if place.stored:
                    msg_id = self._bytes_of(place)
                    if messages.add_ref(msg_id) is None:
                        text = f"seq_id {place.seq_id} is message {msg_id.hex()}, which the message store does not have"
                        self._damage(place.path, place.offset - PUBLISH_HEAD, text)
        self._judge_messages(messages)
        self.counts.stored_messages = len(messages.entries)
        self.counts.garbage = len(messages.garbage())
        if self.scan.terms is not None:
            self._check_message_terms(self.scan.terms.messages, messages)

    # -- streams --------------------------------------------------------------------------------------------------

    def _check_stream(self, queue_id: int) -> None:
        scan = self.scan.stream(queue_id)
        check = StreamCheck(self._disk, scan, self._has_read)
        for chunk in check.chunks():
            self.counts.messages += chunk.count
            self.counts.bytes += len(chunk.data)
        self.counts.segments += len(scan.segments)
        self.findings.extend(check.findings)

    def stream_messages(self, queue_id: int) -> Iterator[StreamMessage]:
        """The messages of a stream in order."""
        check = StreamCheck(self._disk, self.scan.stream(queue_id), self._has_read)
        yield from check.messages()
        self.findings.extend(check.findings)

    # -- recovery terms and journal -------------------------------------------------------------------------------

    def _judge_terms_and_journal(self) -> None:
        scan = self.scan
        version = scan.terms_version
        if version > 0 and version not in KNOWN_VERSIONS:
            known = " and ".join([str(one) for one in KNOWN_VERSIONS])
            raise StartError(f"{scan.terms_path} has format version {version}, this broker knows versions {known}")
        self.findings.extend(scan.faults)
        for one in scan.journal.damage:
            self._damage(one.path, one.offset, one.reason)
        with_header = [one.path for one in scan.journal.files]
        for name in self._disk.list_dir(scan.journal_path):
            path = f"{scan.journal_path}/{name}"
            if not name.endswith(".journal") or path in with_header:
                continue
            if scan.terms is None:
                self._judge_headless(path)
            elif read_header(self._disk, path) is None:
                self._note(path, 0, "without a header; not needed any more")

    def _judge_headless(self, path: str) -> None:
        """A header is smaller than what a disk writes at once: it is there, or the old one is, or zeros are."""
        data = self._read(path)
        if not any(data[:JOURNAL_HEADER_SIZE]):
            probe = FoundFile(path, 0, data[ALIGNMENT + 16 : ALIGNMENT + 24], 0, 0)
            length = block_at(data, ALIGNMENT, probe)
            if length < 0 or block_at(data, aligned(ALIGNMENT + JOURNAL_BLOCK_HEAD + length), probe) < 0:
                self._note(path, 0, "a file that was never written to")
                return
        elif data[:4] == b"RPJF" and is_sealed(data[:JOURNAL_HEADER_SIZE]):
            raise StartError(
                f"{path} has format version {int.from_bytes(data[4:8], 'big')}, this broker does not know it"
            )
        self._damage(path, 0, "its header is damaged, and nothing behind it is read")

    def _check_journal_files(self) -> None:
        epoch: i64 = 0
        for found in self.scan.journal.files:  # the oldest first
            self.counts.journal_files += 1
            check = JournalFileCheck(found, self._read(found.path))
            check.check(int(epoch))
            self.findings.extend(check.findings)
            epoch = max(epoch, found.epoch)

    # -- queues ---------------------------------------------------------------------------------------------------

    def live(self, queue_id: int) -> Iterator[LivePlace]:
        """Every place that the next start will have, in the queue's order. Judges the queue's segments on the way."""
        if self.scan.terms is None:
            yield from self._live_by_scan(queue_id)
        else:
            yield from self._live_by_terms(queue_id)

    def _live_by_scan(self, queue_id: int) -> Iterator[LivePlace]:
        queue = self.scan.queue_by_scan(queue_id)
        in_journal = JournalPlaces(sorted(queue.published), queue.in_segments, self.scan.journal, queue_id, None)
        self._judge_names(queue.files)
        for num in queue.files.nums:
            found = queue.segment(num, False)
            self.counts.segments += 1
            parsed = found.parsed
            assert parsed is not None, "kept by: heads are not enough here"
            for one in found.damage:
                self._damage_of_segment(one, parsed.header)
            for one in found.torn:
                text = parsed.header if one.offset == 0 else f"torn tail, {one.size} bytes: {one.reason}"
                self._note(one.path, one.offset, text)
            check = SegmentCheck(found.path, parsed, num * int(self._entry_count), (num + 1) * int(self._entry_count))
            check.check()
            self.findings.extend(check.findings)
            for seq_id in sorted(found.live):
                yield from in_journal.before(seq_id)
                yield LivePlace(found.live[seq_id], found.path, parsed.data, True)
        yield from in_journal.before(BEHIND_ALL)

    def _live_by_terms(self, queue_id: int) -> Iterator[LivePlace]:
        queue = self.scan.queue_by_terms(queue_id)
        self._judge_names(queue.files)
        self.findings.extend(queue.faults)
        for path, size in queue.cuts:
            if size == 0:
                self._note(path, -1, "the recovery terms do not name it; the next start removes it")
            else:
                left = self._disk.size(path) - size
                self._note(path, size, f"{left} bytes of a scatter that was cut short")
        terms = queue.terms
        seq_ids = [seq_id for seq_id in terms.in_journal if seq_id in queue.published]
        journal_alone = set(seq_ids)
        in_segments: set[int] = set()
        redelivered = set(terms.redelivered)
        in_journal = JournalPlaces(seq_ids, in_segments, self.scan.journal, queue_id, redelivered)
        last_seq_id = max(seq_ids, default=-1)
        there = set(queue.files.nums)
        for one in sorted(terms.segments, key=_num):
            if one.num not in there:
                continue  # it is missed, as was said
            self.counts.segments += 1
            content = self._segment_by_terms(queue, one, journal_alone, in_segments)
            for seq_id in sorted(content.live):
                entry = content.live[seq_id]
                yield from in_journal.before(seq_id)
                is_redelivered = entry.flags & REDELIVERED != 0 or seq_id < terms.redelivered_below
                yield LivePlace(entry, content.path, content.data, is_redelivered)
                last_seq_id = max(last_seq_id, seq_id)
        if last_seq_id >= terms.next_seq_id:
            text = f"queue {queue_id:016x}: the next seq_id is to be {terms.next_seq_id}, and {last_seq_id} is there"
            self._damage(self.scan.terms_path, -1, text)
        yield from in_journal.before(BEHIND_ALL)

    def _segment_by_terms(
        self, queue: QueueByTerms, terms: SegmentTerms, in_journal: set[int], in_segments: set[int]
    ) -> SegmentContent:
        """A segment as QueueSegments.read will read it when its messages are due."""
        num = int(terms.num)
        path = queue.files.path_of(num)
        data = self._read(path)[: terms.size]
        parsed = parse(data, path, queue.queue_id, num)
        refuse_newer(parsed, path)
        for one in parsed.damage:
            self._damage_of_segment(one, parsed.header)
        if parsed.header:
            self._damage(path, 0, parsed.header)
        if parsed.torn:
            self._damage(path, parsed.size, f"{parsed.torn} unreadable bytes: torn tail")
        segment = terms.segment(self._entry_count)
        check = SegmentCheck(path, parsed, int(segment.first_seq_id), int(segment.first_seq_id + segment.entry_count))
        check.check()
        self.findings.extend(check.findings)
        for seq_id in check.published:
            if seq_id in in_journal:
                in_segments.add(seq_id)
                text = f"seq_id {seq_id} is here and, as the recovery terms say, in the journal alone"
                self._damage(path, -1, text)
        live = live_entries(segment, own_places(segment, parsed))
        self._check_segment_terms(path, terms, live, check, len(data))
        return SegmentContent(num, path, data, live)

    def _judge_names(self, files: QueueFiles) -> None:
        for path in files.strange:
            self._damage(path, -1, "no segment has such a name")

    def _damage_of_segment(self, one: Damage, header: str) -> None:
        text = one.reason if one.reason == header else f"{one.size} unreadable bytes: {one.reason}"
        self._damage(one.path, one.offset, text)

    def _check_segment_terms(
        self, path: str, terms: SegmentTerms, live: dict[int, Entry], check: SegmentCheck, size: int
    ) -> None:
        live_bytes = sum([int(entry.body_size) for entry in live.values()])
        acked = [check.published[one] for one in terms.acked if one in check.published]
        acked_bytes = sum([int(entry.body_size) for entry in acked])
        twice = [one for one in terms.acked if one in check.acked]
        for name, found, expected in (
            ("messages", len(live), int(terms.live)),
            ("bytes", live_bytes, int(terms.live_bytes)),
            ("stored messages", int(check.stored), int(terms.stored)),
            ("size", size, int(terms.size)),
            ("acked messages", len(acked) - len(twice), len(terms.acked)),
            ("bytes of acked messages", acked_bytes, int(terms.acked_bytes)),
        ):
            if found != expected:
                self._damage(path, -1, f"{name}: {found}, and the recovery terms say {expected}")

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

    def _scan_messages(self) -> StoreScan:
        """The message store, read whole, once."""
        if self._messages is None:
            self._messages = StoreScan(self._disk, self._store_path, {})
            self._messages.read(self._has_read)
        return self._messages

    def _judge_messages(self, messages: StoreScan) -> None:
        """A reference comes after the sync of its message: as long as none is missed, faults are what a crash left.

        But for a damaged header in front of a message that is referred to: both were synced together.
        """
        for path, kind, text in messages.findings():
            if kind == "damaged":
                header = text == "the file's header" and messages.is_referred_to(path)
                is_damage = header or len(messages.missed) > 0
                self.findings.append(
                    Finding(path, -1, text if is_damage else f"{text}, to which nothing refers", is_damage)
                )
            elif kind != "count":
                self._note(path, -1, f"{kind}: {text}")

    def _check_message_terms(self, terms: object, messages: StoreScan) -> None:
        """Each message that the terms name is where they say, and has as many places as they say."""
        path = self.scan.terms_path
        _, _, files, entries = cast("list[Any]", terms)
        sizes: dict[int, int] = {}
        for file_num, _, total_bytes in files:
            file = file_path(self._store_path, file_num)
            size = self._disk.size(file) if self._disk.exists(file) else 0
            sizes[file_num] = size
            if size < total_bytes:
                self._damage(file, size, f"it ends here, and had {total_bytes} bytes when the broker stopped")
        opened = OpenFiles(self._disk, self._store_path, OPEN_FILES_MAX)
        refs = messages.references()
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
                        file_path(self._store_path, file_num), offset, f"message {msg_id.hex()} should begin here"
                    )
        finally:
            opened.close_all()
        for msg_id in refs:
            if msg_id not in named:
                self._damage(path, -1, f"message {msg_id.hex()} has places, and is not named")

    # -- messages -------------------------------------------------------------------------------------------------

    def messages(self, queue_id: int) -> Iterator[tuple[LivePlace, Message | None]]:
        """The live places of a queue in order, each with its message; None, and a finding, when that cannot be read."""
        opened = OpenFiles(self._disk, self._store_path, OPEN_FILES_MAX)
        try:
            for place in self.live(queue_id):
                yield place, self._message_of(place, opened)
        finally:
            opened.close_all()

    def requeues(self, queue_id: int, seq_id: i64) -> int:
        """How often a live place came back, where that is kept."""
        replayed = self.scan.journal.queues.get(queue_id)
        return replayed.requeues.get(seq_id, 0) if replayed is not None else 0

    def _message_of(self, place: LivePlace, opened: OpenFiles) -> Message | None:
        data = self._bytes_of(place)
        try:
            if not place.stored:
                return read_message(data, 0, len(data))
            entry = self._scan_messages().entries.get(data)
            if entry is not None:
                path = file_path(self._store_path, entry.file_num)
                record = opened.read_at(entry.file_num, entry.offset, RECORD_HEAD + entry.size)
                return decode_record(record, path, entry.offset, data)
            error = f"message {data.hex()}, which the message store does not have"
        except (FormatError, DamagedError) as caught:
            error = str(caught)
        self._damage(place.path, place.offset - PUBLISH_HEAD, f"seq_id {place.seq_id}: {error}")
        return None


def _num(terms: SegmentTerms) -> int:
    return terms.num
