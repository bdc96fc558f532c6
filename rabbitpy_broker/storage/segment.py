"""A segment: the part of a queue index that holds `segment_entry_count` neighbouring places.

A place with seq_id s belongs to segment s // segment_entry_count. A segment has up to two files in its queue's folder,
`<num>.segment` for what must outlive the broker and `<num>.transient` for paged transient messages, which is deleted
at every start. Both are append-only and have the same form; all integers are big-endian:

  header  0 4 "RPSG"   4 4 format version   8 8 queue_id   16 8 segment number   24 4 flags: 1 transient   28 4 CRC-32C
  block   0 4 "RPSB"   4 4 payload length   8 4 publishes   12 4 acks   16 8 body bytes published
         24 8 body bytes acked   32 4 publishes whose message is in the message store   36 4 CRC-32C of the payload
         40 4 CRC-32C of bytes 0..40       44 payload: entries (records.py)

The counts in the heads of the blocks tell how many messages are left without reading one of them: a recovery that
trusts a segment (nothing was written to it since it was synced) walks from head to head. A block is checked whole when
its segment is read.

What must stay true: a place is published once and acked at most once in a segment's files together; `live` and
`live_bytes` count what is published in the files and not acked, in the files or since; the file is not trusted behind
`size` (a write that failed may have left something there, and is written over).

Damage: a block whose payload does not fit its checksum is left out; behind a head that does not fit its own nothing is
read. A file with damage is copied to the folder `damaged` before anything is written to it.
"""

from __future__ import annotations

from typing import Final

from librt.strings import BytesWriter, read_i32_be, read_i64_be, write_i32_be, write_i64_be
from mypy_extensions import i32, i64

from rabbitpy_broker.storage.files import Disk
from rabbitpy_broker.storage.records import (
    ACK,
    DELIVER,
    PUBLISH,
    REDELIVERED,
    STORED,
    Entry,
    FormatError,
    checksum,
    is_sealed,
    read_entries,
    sealed,
)
from rabbitpy_broker.storage.seq_ids import SeqIds

VERSION: Final = 1
HEADER_SIZE: Final[i64] = 32
BLOCK_HEAD: Final[i64] = 44


class Segment:
    """The memory of one segment. `acked` has a 1 for each place that is acked, by its number in the segment."""

    def __init__(self, num: i64, entry_count: i64) -> None:
        self.num = num
        self.first_seq_id: i64 = num * entry_count
        self.entry_count = entry_count
        self.live: i64 = 0
        self.live_bytes: i64 = 0
        self.stored: i64 = 0  # publishes ever written here whose message is in a message store
        self.size: i64 = 0  # sound bytes of the file; 0: there is none
        self.transient_size: i64 = 0
        self.acked: bytearray | None = None
        self.delivered: set[int] = set()  # handed out before they went to delta
        self.new_delivers: list[int] = []  # those of them that the file does not know
        self.new_acks = SeqIds()  # in the persistent file and not yet acked there
        self.new_acked_bytes: i64 = 0
        self.transient_live: i64 = 0  # of `live`, those in the transient file
        self.transient_live_bytes: i64 = 0
        self.busy = False  # a scatter is writing to it

    def is_acked(self, seq_id: i64) -> bool:
        acked = self.acked
        return acked is not None and acked[seq_id - self.first_seq_id] != 0

    def mark_acked(self, seq_id: i64) -> None:
        acked = self.acked
        if acked is None:
            acked = bytearray(self.entry_count)
            self.acked = acked
        acked[seq_id - self.first_seq_id] = 1


class BlockCounts:
    """The counts in the head of a block."""

    def __init__(self) -> None:
        self.payload: i64 = 0  # its size
        self.checksum: i64 = 0  # of the payload
        self.publishes: i64 = 0
        self.acks: i64 = 0
        self.published_bytes: i64 = 0
        self.acked_bytes: i64 = 0
        self.stored: i64 = 0


def file_header(queue_id: int, num: int, transient: bool) -> bytes:
    head = b"RPSG" + VERSION.to_bytes(4, "big") + queue_id.to_bytes(8, "big") + num.to_bytes(8, "big")
    return sealed(head + (b"\x00\x00\x00\x01" if transient else b"\x00\x00\x00\x00"))


def block(payload: list[bytes], counts: BlockCounts) -> list[bytes]:
    """A whole block, ready to be appended: its head, and the parts of its payload."""
    size: i64 = 0
    crc = 0
    for part in payload:
        size += len(part)
        crc = checksum(part, crc)
    out = BytesWriter()
    out.write(b"RPSB")
    write_i32_be(out, i32(size))
    write_i32_be(out, i32(counts.publishes))
    write_i32_be(out, i32(counts.acks))
    write_i64_be(out, counts.published_bytes)
    write_i64_be(out, counts.acked_bytes)
    write_i32_be(out, i32(counts.stored))
    return [sealed(out.getvalue() + crc.to_bytes(4, "big")), *payload]


class Damage:
    """A part of a file that is lost: `offset` and `size` in bytes, size -1 for everything behind it."""

    def __init__(self, path: str, offset: int, size: int, reason: str) -> None:
        self.path = path
        self.offset = offset
        self.size = size
        self.reason = reason


def read_block_head(data: bytes, pos: i64) -> BlockCounts | None:
    """The head of the block at data[pos:], None when it is not a sound one."""
    if len(data) - pos < BLOCK_HEAD or data[pos : pos + 4] != b"RPSB" or not is_sealed(data[pos : pos + BLOCK_HEAD]):
        return None
    counts = BlockCounts()
    counts.payload = i64(read_i32_be(data, pos + 4)) & 0xFFFFFFFF
    counts.checksum = i64(read_i32_be(data, pos + 36)) & 0xFFFFFFFF
    counts.publishes = i64(read_i32_be(data, pos + 8))
    counts.acks = i64(read_i32_be(data, pos + 12))
    counts.published_bytes = read_i64_be(data, pos + 16)
    counts.acked_bytes = read_i64_be(data, pos + 24)
    counts.stored = i64(read_i32_be(data, pos + 32))
    return counts


def check_file_header(data: bytes, queue_id: int, num: int) -> str:
    """The fault of a file's header, "" when there is none."""
    head = data[:HEADER_SIZE]
    if len(head) < HEADER_SIZE or head[:4] != b"RPSG" or not is_sealed(head):
        return "its header is damaged"
    if int.from_bytes(head[4:8], "big") != VERSION:
        return f"it has format version {int.from_bytes(head[4:8], 'big')}, this broker knows {VERSION}"
    if int.from_bytes(head[8:16], "big") != queue_id or int.from_bytes(head[16:24], "big") != num:
        return "it belongs to another queue or segment"
    return ""


class Parsed:
    """A segment file that was read: its bytes, entries in file order, sound length, damage."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.entries: list[Entry] = []
        self.size: i64 = 0  # behind the last sound block
        self.torn: i64 = 0  # bytes behind that
        self.damage: list[Damage] = []
        self.blocks: i64 = 0
        self.starts: list[tuple[int, int]] = []  # of each sound block: its offset, and where its entries begin in `entries`
        self.header = ""  # what is wrong with the file's header


def parse(data: bytes, path: str, queue_id: int, num: int) -> Parsed:
    """Reads a whole segment file, checking every block. Bytes at the end that cannot be read are `torn`.

    Whether that, and a header that is not sound, is damage or the trace of a write that was cut short, the caller knows.
    """
    parsed = Parsed(data)
    parsed.header = check_file_header(data, queue_id, num)
    pos: i64 = HEADER_SIZE
    size: i64 = len(data)
    parsed.size = min(pos, size)
    bad: list[Damage] = []
    while pos < size:
        counts = read_block_head(data, pos)
        if counts is None:
            break
        start: i64 = pos + BLOCK_HEAD
        length = counts.payload
        end: i64 = start + length
        if end > size:
            break
        pos = end
        if checksum(data[start:end]) != counts.checksum:
            bad.append(Damage(path, start, length, "checksum"))
            continue
        try:
            found = read_entries(data, start, end)
        except FormatError as error:
            bad.append(Damage(path, start, length, str(error)))
            continue
        parsed.starts.append((int(start - BLOCK_HEAD), len(parsed.entries)))
        parsed.entries.extend(found)
        parsed.blocks += 1
        parsed.size = pos
        parsed.damage.extend(bad)  # a sound block behind it: that was no torn tail
        bad = []
    parsed.torn = size - parsed.size
    return parsed


def walk(disk: Disk, path: str, queue_id: int, num: int) -> tuple[BlockCounts, int] | None:
    """The sums of a file's heads and the length they account for; None when the walk does not end at the file's end."""
    file = disk.open(path)
    try:
        size: i64 = file.size()
        if check_file_header(file.read_at(0, int(HEADER_SIZE)), queue_id, num):
            return None
        total = BlockCounts()
        pos: i64 = HEADER_SIZE
        while pos < size:
            head = file.read_at(int(pos), int(BLOCK_HEAD))
            counts = read_block_head(head, 0)
            if counts is None:
                return None
            total.publishes += counts.publishes
            total.acks += counts.acks
            total.published_bytes += counts.published_bytes
            total.acked_bytes += counts.acked_bytes
            total.stored += counts.stored
            pos += BLOCK_HEAD + counts.payload
        return (total, int(pos)) if pos == size else None
    finally:
        file.close()


def live_entries(segment: Segment, parsed: Parsed) -> dict[int, Entry]:
    """The publishes of a file that nobody has acked, by seq_id; DELIVER entries make them redelivered."""
    found: dict[int, Entry] = {}
    for entry in parsed.entries:
        seq_id = entry.seq_id
        if entry.kind == PUBLISH:
            if not segment.is_acked(seq_id):
                found[seq_id] = entry
        elif entry.kind == ACK:
            for at in range(seq_id, seq_id + entry.count):
                found.pop(at, None)
        elif entry.kind == DELIVER:
            for at in range(seq_id, seq_id + entry.count):
                marked = found.get(at)
                if marked is not None:
                    marked.flags |= REDELIVERED
    for at in segment.delivered:
        marked = found.get(at)
        if marked is not None:
            marked.flags |= REDELIVERED
    return found


def restore(segment: Segment, parsed: Parsed) -> None:
    """Sets a segment's counters and `acked` from its persistent file."""
    segment.live = 0
    segment.live_bytes = 0
    segment.stored = 0
    sizes: dict[int, int] = {}
    for entry in parsed.entries:
        if entry.kind == PUBLISH:
            if entry.seq_id not in sizes:
                sizes[entry.seq_id] = entry.body_size
                if entry.flags & STORED:
                    segment.stored += 1
        elif entry.kind == ACK:
            for at in range(entry.seq_id, entry.seq_id + entry.count):
                if at in sizes:
                    segment.mark_acked(at)
    for seq_id, size in sizes.items():
        if not segment.is_acked(seq_id):
            segment.live += 1
            segment.live_bytes += size
    segment.size = parsed.size
