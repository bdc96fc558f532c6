"""The files of a stream: segments with its chunks, and beside each an index that tells where they are.

A segment has the number of its first offset as its name, 20 digits. All integers are big-endian:

  <first offset>.stream
  header  0 4 "RPST"   4 4 format version   8 8 queue_id   16 8 first offset   24 4 zero   28 4 CRC-32C of 0..28
  chunk   0 4 "RPSC"   4 4 size of the data   8 8 first offset   16 8 timestamp, ms since 1970   24 4 count
         28 4 size of the filter   32 4 CRC-32C of filter and data   36 4 CRC-32C of 0..36   40 filter, then data

  <first offset>.index
  header  0 4 "RPSI"   4 4 format version   8 8 queue_id   16 8 first offset   24 4 zero   28 4 CRC-32C of 0..28
  record  0 8 first offset   8 8 timestamp   16 8 position of the chunk in the segment   24 4 its size, with head and filter
         28 4 count   32 4 CRC-32C of 0..32

Chunks lie back to back, and so do records, one for each chunk. Everything in an index can be had from the heads of the chunks
(`walk`), and is, when it is missing or makes no sense.

What must stay true: both files are append-only; a chunk is believed with a sound head only, its data with a sound checksum.
"""

from __future__ import annotations

from typing import Final

from librt.strings import BytesWriter, read_i32_be, read_i64_be, write_i32_be, write_i64_be
from mypy_extensions import i32, i64

from rabbitpy_broker.storage.files import Disk, DiskFile
from rabbitpy_broker.storage.records import FormatError, checksum, is_sealed, sealed
from rabbitpy_broker.storage.stream_chunk import StreamChunk

VERSION: Final = 1
HEADER_SIZE: Final[i64] = 32
CHUNK_HEAD: Final[i64] = 40
RECORD_SIZE: Final[i64] = 36
_WINDOW: Final[i64] = 32_768  # of heads that are walked over
_ALL_RECORDS: Final[i64] = 65_536  # bytes of an index that are read at once rather than bisected


def segment_stem(folder: str, first_offset: i64) -> str:
    """The path of a segment's files without their endings."""
    return f"{folder}/{int(first_offset):020d}"


def segment_header(queue_id: int, first_offset: i64) -> bytes:
    return _header(b"RPST", queue_id, first_offset)


def index_header(queue_id: int, first_offset: i64) -> bytes:
    return _header(b"RPSI", queue_id, first_offset)


def _header(magic: bytes, queue_id: int, first_offset: i64) -> bytes:
    head = magic + VERSION.to_bytes(4, "big") + queue_id.to_bytes(8, "big") + int(first_offset).to_bytes(8, "big")
    return sealed(head + bytes(4))


def header_fault(data: bytes, magic: bytes, queue_id: int, first_offset: i64) -> str:
    """The fault of a header at the start of `data`, "" when there is none."""
    head = data[:HEADER_SIZE]
    if len(head) < HEADER_SIZE or head[:4] != magic or not is_sealed(head):
        return "its header is damaged"
    if int.from_bytes(head[4:8], "big") != VERSION:
        return f"it has format version {int.from_bytes(head[4:8], 'big')}, this broker knows {VERSION}"
    if int.from_bytes(head[8:16], "big") != queue_id or i64(int.from_bytes(head[16:24], "big")) != first_offset:
        return "it belongs to another stream or another offset"
    return ""


# -- chunks -----------------------------------------------------------------------------------------------------------


class ChunkHead:
    """The head of a chunk. `size` counts the whole chunk, `data_size` its data."""

    def __init__(self, data: bytes, pos: i64) -> None:
        self.data_size: i64 = i64(read_i32_be(data, pos + 4)) & 0xFFFFFFFF
        self.first_offset: i64 = read_i64_be(data, pos + 8)
        self.timestamp_ms: i64 = read_i64_be(data, pos + 16)
        self.count: i64 = i64(read_i32_be(data, pos + 24)) & 0xFFFFFFFF
        self.filter_size: i64 = i64(read_i32_be(data, pos + 28)) & 0xFFFFFFFF
        self.checksum: i64 = i64(read_i32_be(data, pos + 32)) & 0xFFFFFFFF
        self.end_offset: i64 = self.first_offset + self.count
        self.size: i64 = CHUNK_HEAD + self.filter_size + self.data_size

    def fits(self, filter_bits: bytes, data: bytes) -> bool:
        """Whether these are what it is the head of."""
        return len(data) == self.data_size and i64(checksum(data, checksum(filter_bits))) == self.checksum


def read_chunk_head(data: bytes, pos: i64) -> ChunkHead | None:
    """The head of the chunk at data[pos:], None when it is not a sound one."""
    if len(data) - pos < CHUNK_HEAD or data[pos : pos + 4] != b"RPSC" or not is_sealed(data[pos : pos + CHUNK_HEAD]):
        return None
    return ChunkHead(data, pos)


class ChunkParts:
    """A chunk on its way to a segment, made of neighbours that have filters of the same size, or none."""

    def __init__(self, first: StreamChunk) -> None:
        self.parts: list[bytes] = [first.data]
        self.data_size: i64 = len(first.data)
        self.first_offset = first.first_offset
        self.end_offset = first.end_offset
        self.timestamp_ms = first.timestamp_ms
        self.filter_bits = first.filter_bits

    def takes(self, chunk: StreamChunk, limit: i64) -> bool:
        """Whether it can become longer by this one, which comes next."""
        return (
            self.data_size + len(chunk.data) <= limit
            and len(chunk.filter_bits) == len(self.filter_bits)
            and chunk.first_offset == self.end_offset
        )

    def add(self, chunk: StreamChunk) -> None:
        self.parts.append(chunk.data)
        self.data_size += len(chunk.data)
        self.end_offset = chunk.end_offset
        self.timestamp_ms = chunk.timestamp_ms
        if chunk.filter_bits and chunk.filter_bits != self.filter_bits:
            bits = int.from_bytes(self.filter_bits, "big") | int.from_bytes(chunk.filter_bits, "big")
            self.filter_bits = bits.to_bytes(len(self.filter_bits), "big")

    def size(self) -> i64:
        """Bytes in the segment."""
        return CHUNK_HEAD + len(self.filter_bits) + self.data_size

    def encoded(self) -> list[bytes]:
        """The chunk as it is written, in parts."""
        crc = checksum(self.filter_bits)
        for part in self.parts:
            crc = checksum(part, crc)
        out = BytesWriter()
        out.write(b"RPSC")
        write_i32_be(out, i32(self.data_size))
        write_i64_be(out, self.first_offset)
        write_i64_be(out, self.timestamp_ms)
        write_i32_be(out, i32(self.end_offset - self.first_offset))
        write_i32_be(out, i32(len(self.filter_bits)))
        head = sealed(out.getvalue() + crc.to_bytes(4, "big"))
        if len(self.parts) == 1:
            return [head, self.filter_bits, self.parts[0]]
        return [head, self.filter_bits, b"".join(self.parts)]

    def record(self, position: i64) -> bytes:
        """Its record in the index, when it stands at `position`."""
        return index_record(
            self.first_offset, self.timestamp_ms, position, self.size(), self.end_offset - self.first_offset
        )


# -- the index --------------------------------------------------------------------------------------------------------


def index_record(first_offset: i64, timestamp_ms: i64, position: i64, size: i64, count: i64) -> bytes:
    out = BytesWriter()
    write_i64_be(out, first_offset)
    write_i64_be(out, timestamp_ms)
    write_i64_be(out, position)
    write_i32_be(out, i32(size))
    write_i32_be(out, i32(count))
    return sealed(out.getvalue())


class IndexRecord:
    """Where a chunk is. Raises FormatError for a record that is not sound."""

    def __init__(self, data: bytes, pos: i64) -> None:
        if not is_sealed(data[pos : pos + RECORD_SIZE]):
            raise FormatError("a record of an index that is not sound")
        self.first_offset: i64 = read_i64_be(data, pos)
        self.timestamp_ms: i64 = read_i64_be(data, pos + 8)
        self.position: i64 = read_i64_be(data, pos + 16)
        self.size: i64 = i64(read_i32_be(data, pos + 24)) & 0xFFFFFFFF
        self.count: i64 = i64(read_i32_be(data, pos + 28)) & 0xFFFFFFFF
        self.end_offset: i64 = self.first_offset + self.count
        self.end_position: i64 = self.position + self.size


class StreamIndex:
    """The index of a segment, open. Its first `size` bytes count; `count` is the number of records in them.

    Whatever is asked raises OSError, and FormatError when the index makes no sense.
    """

    def __init__(self, file: DiskFile, queue_id: int, first_offset: i64, size: i64) -> None:
        self.count: i64 = max(0, (size - HEADER_SIZE) // RECORD_SIZE)
        self._file = file
        self._data = b""  # of all records, when they are few
        fault = header_fault(file.read_at(0, int(HEADER_SIZE)), b"RPSI", queue_id, first_offset)
        if fault:
            raise FormatError(fault)

    def record(self, number: i64) -> IndexRecord:
        """The record of that number, from 0."""
        whole = self.count * RECORD_SIZE
        if whole > _ALL_RECORDS:
            return IndexRecord(self._file.read_at(int(HEADER_SIZE + number * RECORD_SIZE), int(RECORD_SIZE)), 0)
        if not self._data:
            self._data = self._file.read_at(int(HEADER_SIZE), int(whole))
        return IndexRecord(self._data, number * RECORD_SIZE)

    def below(self, offset: i64) -> i64:
        """How many chunks begin below this offset."""
        low: i64 = 0
        high = self.count
        while low < high:
            middle = (low + high) // 2
            if self.record(middle).first_offset < offset:
                low = middle + 1
            else:
                high = middle
        return low

    def behind(self, position: i64) -> IndexRecord | None:
        """The first record of a chunk that begins behind this position."""
        low: i64 = 0
        high = self.count
        while low < high:
            middle = (low + high) // 2
            if self.record(middle).position <= position:
                low = middle + 1
            else:
                high = middle
        return self.record(low) if low < self.count else None

    def older(self, timestamp_ms: i64) -> i64:
        """How many chunks have a timestamp below this one."""
        low: i64 = 0
        high = self.count
        while low < high:
            middle = (low + high) // 2
            if self.record(middle).timestamp_ms < timestamp_ms:
                low = middle + 1
            else:
                high = middle
        return low


class Walk:
    """The chunks of a segment, found by their heads; their data are not looked at."""

    def __init__(self, file: DiskFile, size: i64, position: i64) -> None:
        self._file = file
        self._size = size
        self._window = b""
        self._window_at: i64 = 0
        self.position = position  # where the next head is looked for
        self.at: i64 = position  # where the last one was found

    def next(self) -> ChunkHead | None:
        """The next head; None when there is no whole chunk with a sound head."""
        pos = self.position
        if pos < self._window_at or pos + CHUNK_HEAD > self._window_at + len(self._window):
            self._window = self._file.read_at(int(pos), int(min(_WINDOW, max(0, self._size - pos))))
            self._window_at = pos
        head = read_chunk_head(self._window, pos - self._window_at)
        if head is None or pos + head.size > self._size:
            return None
        self.at = pos
        self.position = pos + head.size
        return head


def read_chunk(file: DiskFile, position: i64, head: ChunkHead) -> StreamChunk | None:
    """The chunk with this head, None when its checksum is wrong. Raises OSError."""
    at = int(position + CHUNK_HEAD)
    bits = file.read_at(at, int(head.filter_size)) if head.filter_size > 0 else b""
    data = file.read_at(at + int(head.filter_size), int(head.data_size))
    if not head.fits(bits, data):
        return None
    return StreamChunk(data, head.first_offset, head.count, head.timestamp_ms, bits)


def made_index(disk: Disk, stem: str, queue_id: int, first_offset: i64, size: i64) -> tuple[bytes, i64]:
    """The index of a segment as its chunks say, and where the sound ones end. Raises OSError."""
    out = BytesWriter()
    out.write(index_header(queue_id, first_offset))
    file = disk.open(f"{stem}.stream")
    try:
        walk = Walk(file, size, HEADER_SIZE)
        while True:
            head = walk.next()
            if head is None:
                return out.getvalue(), walk.position
            out.write(index_record(head.first_offset, head.timestamp_ms, walk.at, head.size, head.count))
    finally:
        file.close()
