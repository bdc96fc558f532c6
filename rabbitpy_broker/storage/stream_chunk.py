"""A chunk: neighbouring messages of a stream as bytes, in memory, in the journal and in segments alike.

The data of a chunk are its entries, one behind the other. All integers are big-endian and without sign:

  entry   0 4 size of what follows     4 2 size of address     6 address: exchange and routing key, each a length octet
          and its bytes      behind it content: header frame and body frame, as message.py has them

The offset of an entry is that of the chunk's first message and the number of entries before it: offsets have no gaps inside
a chunk. A cursor is therefore a chunk, a position in its data and an offset, and a delivery copies slices.

A chunk has a Bloom filter when some message in it has a filter value: BITS_SET bits for each value. A message without one
counts as one with the empty value. A chunk without a filter has only messages without values.

What must stay true: a chunk never changes; whoever reads one from a disk checks its checksum before.
"""

from __future__ import annotations

import hashlib
from typing import Final

from librt.strings import BytesWriter, read_i32_be, write_i16_be, write_i32_be
from mypy_extensions import i16, i32, i64

from rabbitpy_broker.storage.records import FormatError

ENTRY_HEAD: Final[i64] = 6
BITS_SET: Final[i64] = 4
NO_VALUE: Final = b""
_MASKS_MAX: Final = 4_096


class StreamChunk:
    """`count` messages from `first_offset` on, up to `end_offset`, which is not in it; `timestamp_ms` is that of the newest,
    in milliseconds since 1970. `filter_bits` is b"" for no filter. `file_num` is the journal file that has it, 0 for none.
    """

    def __init__(self, data: bytes, first_offset: i64, count: i64, timestamp_ms: i64, filter_bits: bytes) -> None:
        self.data = data
        self.first_offset = first_offset
        self.count = count
        self.end_offset: i64 = first_offset + count
        self.timestamp_ms = timestamp_ms
        self.filter_bits = filter_bits
        self.file_num: i64 = 0

    def position(self, offset: i64) -> i64:
        """Where in `data` the entry with this offset begins; len(data) for `end_offset`."""
        data = self.data
        pos: i64 = 0
        left = offset - self.first_offset
        while left > 0:
            pos += 4 + (i64(read_i32_be(data, pos)) & 0xFFFFFFFF)
            left -= 1
        return pos

    def cut_at(self, begin: i64, offset: i64, limit_bytes: i64) -> tuple[i64, i64]:
        """From the entry at `begin`, which has `offset`, on: where about `limit_bytes` end, at least one entry, and the offset
        there.
        """
        data = self.data
        end: i64 = len(data)
        pos = begin
        while pos < end:
            pos += 4 + (i64(read_i32_be(data, pos)) & 0xFFFFFFFF)
            offset += 1
            if pos - begin >= limit_bytes:
                break
        return pos, offset

    def part(self, first: i64, end: i64) -> StreamChunk:
        """The messages from offset `first` to `end`, which is not among them."""
        if first == self.first_offset and end == self.end_offset:
            return self
        data = self.data[self.position(first) : self.position(end)]
        chunk = StreamChunk(data, first, end - first, self.timestamp_ms, self.filter_bits)
        chunk.file_num = self.file_num
        return chunk


def write_entry(out: BytesWriter, address: bytes, content: bytes) -> None:
    """One entry."""
    size: i64 = 2 + len(address) + len(content)
    write_i32_be(out, i32(size))
    write_i16_be(out, i16(len(address)))
    out.write(address)
    out.write(content)


def check_entries(data: bytes, count: i64) -> None:
    """Raises FormatError when these are not `count` whole entries."""
    pos: i64 = 0
    end: i64 = len(data)
    found: i64 = 0
    while pos < end:
        if end - pos < ENTRY_HEAD:
            raise FormatError("an entry of a stream that is cut off")
        size = i64(read_i32_be(data, pos)) & 0xFFFFFFFF
        address = i64(int.from_bytes(data[pos + 4 : pos + 6], "big"))
        pos += 4 + size
        if pos > end or address + 2 > size:
            raise FormatError("an entry of a stream whose parts do not fit")
        found += 1
    if found != count:
        raise FormatError(f"{found} entries of a stream, and {count} are to be there")


# -- filters ----------------------------------------------------------------------------------------------------------

_masks: Final[dict[tuple[bytes, int], int]] = {}


def filter_mask(value: bytes, size: int) -> int:
    """The bits of a value in a filter of `size` bytes, as a number."""
    key = (value, size)
    mask = _masks.get(key, 0)
    if mask == 0:
        digest = int.from_bytes(hashlib.blake2b(value, digest_size=8).digest(), "big")
        first, step = digest >> 32, (digest & 0xFFFFFFFF) | 1
        for number in range(int(BITS_SET)):
            mask |= 1 << (first + number * step) % (8 * size)
        if len(_masks) >= _MASKS_MAX:
            _masks.clear()
        _masks[key] = mask
    return mask


class StreamFilter:
    """What a reader wants to see: messages with one of these values and, with `match_unfiltered`, those without any."""

    def __init__(self, values: list[bytes], match_unfiltered: bool) -> None:
        self.match_unfiltered = match_unfiltered
        self._values = [*values, NO_VALUE] if match_unfiltered else list(values)

    def may_match(self, filter_bits: bytes) -> bool:
        """False when no message of a chunk with this filter can be wanted."""
        size = len(filter_bits)
        if size == 0:
            return self.match_unfiltered
        bits = int.from_bytes(filter_bits, "big")
        for value in self._values:
            mask = filter_mask(value, size)
            if bits & mask == mask:
                return True
        return False
