"""The questions of a check to journal and segment files that a start does not ask: does all that is sound make sense?

A start takes a block whose checksum is right as it is. A check looks into it: are epochs in order, are messages whole,
does the head of a block say what its entries are, and is each place published once and acked at most once?
"""

from __future__ import annotations

from librt.strings import read_i32_be, read_i64_be
from mypy_extensions import i64

from rabbitpy_broker.storage.finding import Finding
from rabbitpy_broker.storage.journal_files import ALIGNMENT, aligned
from rabbitpy_broker.storage.journal_files import BLOCK_HEAD as JOURNAL_BLOCK_HEAD
from rabbitpy_broker.storage.journal_scan import FoundFile, block_at
from rabbitpy_broker.storage.records import (
    ACK,
    DELIVER,
    MSG_ID_SIZE,
    PUBLISH,
    PUBLISH_HEAD,
    RANGE_SIZE,
    STORED,
    STREAM,
    Entry,
    FormatError,
    is_sealed,
    read_entries,
    read_message,
)
from rabbitpy_broker.storage.segment import BLOCK_HEAD, HEADER_SIZE, BlockCounts, Parsed, read_block_head
from rabbitpy_broker.storage.stream_chunk import check_entries


class FileCheck:
    """Of one file; `findings` are damage, but for the torn tail of a journal file."""

    def __init__(self, path: str, data: bytes) -> None:
        self.path = path
        self.data = data
        self.findings: list[Finding] = []

    def damage(self, offset: i64, text: str) -> None:
        """Notes it."""
        self.findings.append(Finding(self.path, offset, text, True))

    def check_publish(self, entry: Entry) -> None:
        """Checks that a publish entry holds a message, or the id of one."""
        at = entry.data - PUBLISH_HEAD
        if entry.flags & STORED:
            if entry.size != MSG_ID_SIZE:
                self.damage(at, f"seq_id {entry.seq_id}: a msg_id of {entry.size} bytes")
            return
        try:
            body_size = read_message(self.data, entry.data, entry.data + entry.size).body_size
        except FormatError as error:
            self.damage(at, f"seq_id {entry.seq_id}: {error}")
            return
        if body_size != entry.body_size:
            self.damage(at, f"seq_id {entry.seq_id}: a body of {body_size} bytes, and {entry.body_size} are to be there")


class JournalFileCheck(FileCheck):
    """Of a file that `replay` has read, `found`."""

    def __init__(self, found: FoundFile, data: bytes) -> None:
        super().__init__(found.path, data)
        self._found = found

    def check(self, epoch: int) -> None:
        """`epoch`: the last one in the files before it."""
        found, data = self._found, self.data
        if _is_torn(data, found):
            self.findings.append(Finding(found.path, found.end, "torn tail", False))
        last: i64 = epoch
        pos: i64 = ALIGNMENT
        while pos < found.end:
            length = block_at(data, pos, found)
            if length < 0:  # `replay` has named it
                pos += ALIGNMENT
                continue
            this = read_i64_be(data, pos + 8)
            if this <= last:
                self.damage(pos, f"epoch {this} comes behind epoch {last}")
            last = max(last, this)
            start = pos + JOURNAL_BLOCK_HEAD
            try:
                self._check_sections(start, start + length)
            except FormatError as error:
                self.damage(pos, str(error))
            pos = aligned(start + length)

    def _check_sections(self, pos: i64, end: i64) -> None:
        data = self.data
        while pos + 12 <= end:
            size = i64(read_i32_be(data, pos + 8)) & 0xFFFFFFFF
            pos += 12
            if pos + size > end:
                raise FormatError("a section that is longer than its block")
            for entry in read_entries(data, pos, pos + size):
                if entry.kind == PUBLISH:
                    self.check_publish(entry)
                elif entry.kind == STREAM:
                    begin = entry.data + entry.filter_size
                    check_entries(data[begin : begin + entry.size], entry.count)
            pos += size


def _is_torn(data: bytes, found: FoundFile) -> bool:
    """Whether a block of this file begins behind the last sound one: old blocks have a sound head with another nonce."""
    head = data[found.end : found.end + JOURNAL_BLOCK_HEAD]
    return head[16:24] == found.nonce or (head[:4] == b"RPJB" and not is_sealed(head))


class SegmentCheck(FileCheck):
    """Of a segment with the places [start, end). `published` has the first entry of each, `acked` those with an ACK."""

    def __init__(self, path: str, parsed: Parsed, start: int, end: int) -> None:
        super().__init__(path, parsed.data)
        self.published: dict[int, Entry] = {}
        self.acked: dict[int, None] = {}
        self.stored: i64 = 0
        self._parsed = parsed
        self._start = start
        self._end = end
        self._block = 0  # where the block begins that is looked at

    def check(self) -> None:
        """The entries block by block, each block compared with its head."""
        parsed, data = self._parsed, self.data
        unsound = {one.offset for one in parsed.damage}
        at: i64 = 0
        pos: i64 = HEADER_SIZE
        while pos < parsed.size:
            said = read_block_head(data, pos)
            assert said is not None, "kept by: parse, which has read it"
            self._block = int(pos)
            pos += BLOCK_HEAD
            stop = pos + (i64(read_i32_be(data, pos - BLOCK_HEAD + 4)) & 0xFFFFFFFF)
            if int(pos) in unsound:
                pos = stop
                continue
            counts = BlockCounts()
            while pos < stop:
                entry = parsed.entries[at]
                at += 1
                if entry.kind == PUBLISH:
                    pos += PUBLISH_HEAD + entry.size
                    self._take_publish(counts, entry)
                else:
                    pos += RANGE_SIZE
                    self._take_range(counts, entry)
            if (
                counts.publishes != said.publishes
                or counts.acks != said.acks
                or counts.published_bytes != said.published_bytes
                or counts.stored != said.stored
                or (counts.acked_bytes != said.acked_bytes and not parsed.damage)
            ):
                self.damage(self._block, f"the head says {_counted(said)}, and there are {_counted(counts)}")

    def _take_publish(self, counts: BlockCounts, entry: Entry) -> None:
        seq_id = int(entry.seq_id)
        counts.publishes += 1
        counts.published_bytes += entry.body_size
        if entry.flags & STORED:
            counts.stored += 1
            self.stored += 1
        where = entry.data - PUBLISH_HEAD
        if not self._start <= seq_id < self._end:
            self.damage(where, f"seq_id {seq_id} does not belong to this segment")
        elif seq_id in self.published:
            self.damage(where, f"seq_id {seq_id} is published twice")
        else:
            self.published[seq_id] = entry
        self.check_publish(entry)

    def _take_range(self, counts: BlockCounts, entry: Entry) -> None:
        first, behind = int(entry.seq_id), int(entry.seq_id + entry.count)
        if entry.kind == ACK:
            counts.acks += entry.count
        if not self._start <= first < behind <= self._end:
            self.damage(self._block, f"seq_ids {first} to {behind - 1} do not belong to this segment")
            return
        if entry.kind == DELIVER:
            return
        for seq_id in range(first, behind):
            published = self.published.get(seq_id)
            if published is None:
                if not self._parsed.damage:
                    self.damage(self._block, f"seq_id {seq_id} is acked and was never published")
            elif seq_id in self.acked:
                self.damage(self._block, f"seq_id {seq_id} is acked twice")
            else:
                self.acked[seq_id] = None
                counts.acked_bytes += published.body_size


def _counted(counts: BlockCounts) -> str:
    return (
        f"{counts.publishes} publishes of {counts.published_bytes} bytes, {counts.stored} of them stored, "
        f"and {counts.acks} acks of {counts.acked_bytes} bytes"
    )
