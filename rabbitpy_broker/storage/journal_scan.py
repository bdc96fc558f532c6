"""The journal, read: which places of which queues were published and acked in it. Nothing is changed.

The files are read in the order of their numbers, which stand in their headers (a file's name is only a slot). A file
ends where no block with its nonce begins. One sync is under way at a time, so a crash can only have spoiled the last
block: what is not whole there is cut off, nobody was told that it was safe. If a sound block of the same file follows
one that is not, or a file ends before where the next one says that it ended, that is damage, and is reported. A file
that the next one passes over was given up after its first write failed; what may be in it is in the next one as well.

What must stay true: replaying entries that have been replayed, or that segments have as well, changes nothing.
"""

from __future__ import annotations

from collections.abc import Container
from typing import Final

from librt.strings import read_i32_be, read_i64_be
from mypy_extensions import i64

from rabbitpy_broker.storage.files import Disk
from rabbitpy_broker.storage.journal_files import ALIGNMENT, BLOCK_HEAD, VERSION, aligned
from rabbitpy_broker.storage.records import (
    PUBLISH,
    REQUEUED,
    STORED,
    STREAM,
    Entry,
    FormatError,
    checksum,
    is_sealed,
    read_entries,
)
from rabbitpy_broker.storage.segment import Damage

HEADER_SIZE: Final[i64] = 44


class ReplayedChunk:
    """A chunk of a stream in the journal file of that path and number: its filter begins at `position`, its data behind that."""

    def __init__(self, entry: Entry, path: str, file_num: int) -> None:
        self.path = path
        self.file_num = file_num
        self.position = int(entry.data)
        self.filter_size = int(entry.filter_size)
        self.size = int(entry.size)
        self.first_offset = int(entry.seq_id)
        self.count = int(entry.count)
        self.end_offset = int(entry.seq_id + entry.count)
        self.timestamp_ms = int(entry.expiry)


class ReplayedQueue:
    """One queue as the journal has it. `acked` has (first seq_id, count); `top` is the highest seq_id it mentions.

    `requeues`: how often what is not acked has come back; the first file that says so of anything is `requeues_file`.
    Of a stream there are `chunks` and nothing else, in the order in which they were written.
    """

    def __init__(self) -> None:
        self.published: dict[int, Entry] = {}  # and not acked
        self.file_nums: dict[int, int] = {}
        self.msg_ids: dict[int, bytes] = {}
        self.acked: list[tuple[int, int]] = []
        self.requeues: dict[int, int] = {}
        self.requeues_file = 0
        self.chunks: list[ReplayedChunk] = []
        self.top: i64 = -1


class FoundFile:
    """A journal file as the disk has it."""

    def __init__(self, path: str, num: int, nonce: bytes, previous: int, previous_end: int) -> None:
        self.path = path
        self.num = num
        self.nonce = nonce
        self.previous = previous
        self.previous_end = previous_end
        self.last: i64 = 0  # where the last block begins; 0: there is none
        self.end: i64 = ALIGNMENT
        self.blocks: i64 = 0
        self.epoch: i64 = 0
        self.torn: i64 = 0


class Replay:
    """The whole journal of a vhost, replayed."""

    def __init__(self) -> None:
        self.files: list[FoundFile] = []
        self.headless: list[str] = []  # files that were being made
        self.queues: dict[int, ReplayedQueue] = {}
        self.damage: list[Damage] = []
        self.bytes: i64 = 0
        self.slots: i64 = 0  # the first number that no file has as its slot


def read_header(disk: Disk, path: str) -> FoundFile | None:
    """The file's header, None when it has none that is sound."""
    file = disk.open(path)
    try:
        head: bytes = file.read_at(0, int(HEADER_SIZE))
    finally:
        file.close()
    if len(head) < HEADER_SIZE or head[:4] != b"RPJF" or not is_sealed(head):
        return None
    if int.from_bytes(head[4:8], "big") != VERSION:
        return None
    return FoundFile(
        path,
        int.from_bytes(head[8:16], "big"),
        head[16:24],
        int.from_bytes(head[24:32], "big"),
        int.from_bytes(head[32:40], "big"),
    )


def replay(disk: Disk, folder: str, wanted: Container[int] | None = None) -> Replay:
    """Reads every journal file in `folder`, or those whose number is wanted. Raises OSError."""
    result = Replay()
    for name in sorted(disk.list_dir(folder)):
        if not name.endswith(".journal"):
            continue
        path = f"{folder}/{name}"
        slot = name.removesuffix(".journal")
        if slot.isdigit():
            result.slots = max(result.slots, i64(int(slot)) + 1)
        found = read_header(disk, path)
        if found is None:
            result.headless.append(path)
        elif wanted is None or found.num in wanted:
            result.files.append(found)
    result.files.sort(key=_num)
    for at, found in enumerate(result.files):
        _replay_file(disk, found, result)
        if at > 0:
            before = result.files[at - 1]
            if found.previous > before.num:
                result.damage.append(Damage(folder, 0, -1, f"journal file {found.previous} is missing"))
            elif found.previous == before.num and before.end < found.previous_end:
                size = int(found.previous_end - before.end)
                result.damage.append(Damage(before.path, int(before.end), size, "its end is missing"))
    return result


def _num(found: FoundFile) -> int:
    return found.num


def _replay_file(disk: Disk, found: FoundFile, result: Replay) -> None:
    file = disk.open(found.path)
    try:
        data: bytes = file.read_at(0, int(file.size()))
    finally:
        file.close()
    result.bytes += len(data)
    size: i64 = len(data)
    pos: i64 = ALIGNMENT
    bad: i64 = -1  # where what is not sound begins
    while pos + BLOCK_HEAD <= size:
        length = block_at(data, pos, found)
        if length < 0:
            if bad < 0:
                bad = pos
            pos += ALIGNMENT
            continue
        start = pos + BLOCK_HEAD
        if bad >= 0:
            result.damage.append(Damage(found.path, int(bad), int(pos - bad), "unreadable"))
            bad = -1
        try:
            _replay_block(data, start, start + length, found, result)
        except FormatError as error:
            result.damage.append(Damage(found.path, int(pos), int(BLOCK_HEAD + length), str(error)))
        found.last = pos
        found.blocks += 1
        found.epoch = read_i64_be(data, pos + 8)
        pos = aligned(start + length)
        found.end = pos
    if size > found.end and data[found.end : found.end + 4] == b"RPJB":
        if data[found.end + 16 : found.end + 24] == found.nonce:
            found.torn = size - found.end


def block_at(data: bytes, pos: i64, found: FoundFile) -> i64:
    """The payload length of the sound block at `pos`, -1 when there is none."""
    if data[pos : pos + 4] != b"RPJB" or data[pos + 16 : pos + 24] != found.nonce:
        return -1
    start = pos + BLOCK_HEAD
    if not is_sealed(data[pos:start]):
        return -1
    length = i64(read_i32_be(data, pos + 4)) & 0xFFFFFFFF
    payload = data[start : start + length]
    if len(payload) != length or checksum(payload) != int.from_bytes(data[pos + 24 : pos + 28], "big"):
        return -1
    return length


def _replay_block(data: bytes, pos: i64, end: i64, found: FoundFile, result: Replay) -> None:
    while pos < end:
        if end - pos < 12:
            raise FormatError("a section that is cut off")
        queue_id = int.from_bytes(data[pos : pos + 8], "big")
        pos += 12
        last = pos + (i64(read_i32_be(data, pos - 4)) & 0xFFFFFFFF)
        if last > end:
            raise FormatError("a section that is longer than its block")
        queue = result.queues.get(queue_id)
        if queue is None:
            queue = ReplayedQueue()
            result.queues[queue_id] = queue
        _replay_section(data, pos, last, found, queue)
        pos = last


def _replay_section(data: bytes, pos: i64, end: i64, found: FoundFile, queue: ReplayedQueue) -> None:
    for entry in read_entries(data, pos, end):
        first = entry.seq_id
        if entry.kind == STREAM:
            queue.chunks.append(ReplayedChunk(entry, found.path, found.num))
            continue
        queue.top = max(queue.top, first + entry.count - 1)
        if entry.kind == PUBLISH:
            queue.published[first] = entry
            queue.file_nums[first] = found.num
            if entry.flags & STORED:
                queue.msg_ids[first] = data[entry.data : entry.data + entry.size]
        elif entry.kind == REQUEUED:
            queue.requeues_file = queue.requeues_file or found.num
            for seq_id in range(first, first + entry.count):
                queue.requeues[seq_id] = entry.times
        else:
            if queue.requeues:
                _forget_requeues(queue.requeues, int(first), int(entry.count))
            queue.acked.append((int(first), int(entry.count)))
            if entry.count <= len(queue.published):
                for seq_id in range(first, first + entry.count):
                    queue.published.pop(seq_id, None)
            else:
                for seq_id in [seq_id for seq_id in queue.published if first <= seq_id < first + entry.count]:
                    del queue.published[seq_id]


def _forget_requeues(requeues: dict[int, int], first: int, count: int) -> None:
    """These places are acked."""
    if count <= len(requeues):
        for seq_id in range(first, first + count):
            requeues.pop(seq_id, None)
    else:
        for seq_id in [seq_id for seq_id in requeues if first <= seq_id < first + count]:
            del requeues[seq_id]
