"""The bytes of the store: entries and blocks, the same in the journal and in segments. All integers are big-endian.

An entry says one thing about one place, or a range of places, in a queue:

  publish   0 1 kind 1, flags    1 8 seq_id    9 8 expiry     17 4 body size   21 4 size of what follows
            25  the message, or (STORED) the 16 bytes of its msg_id in the message store
  ack       0 1 kind 2           1 8 first seq_id    9 4 count
  deliver   0 1 kind 3           1 8 first seq_id    9 4 count
  requeued  0 1 kind 4           1 8 first seq_id    9 4 count       13 4 how often each of them was requeued
  stream    0 1 kind 5           1 8 first offset    9 4 count       13 8 timestamp, milliseconds since 1970
           21 4 size of the filter   25 4 size of the data   29 filter, data: a chunk of a stream (stream_chunk.py)

  flags     0x10 REDELIVERED    0x20 STORED      expiry: milliseconds since 1970, 0 for none

A message, here and in the message store, is what message.py calls address and content:

  0 2 size of address    2 4 header_end    6 1 persistent, 0 or 1    7 address, content

Entries are only ever written and read in blocks, and a block has a CRC-32C over its entries and another over its own
head: what a block holds is either all there or not there at all. One checksum for a whole block costs nothing beside
one for each entry (50 us/MiB).

What must stay true: every reader checks every length against the end of its block (`FormatError`), although a sound
CRC says that we wrote it.
"""

from __future__ import annotations

from typing import Final

from crc32c import crc32c
from librt.strings import (
    BytesWriter,
    read_i16_be,
    read_i32_be,
    read_i64_be,
    write_i16_be,
    write_i32_be,
    write_i64_be,
)
from mypy_extensions import i16, i32, i64, u8

from rabbitpy_broker.errors import BrokerError
from rabbitpy_broker.message import Message

PUBLISH: Final[i64] = 1
ACK: Final[i64] = 2
DELIVER: Final[i64] = 3
REQUEUED: Final[i64] = 4  # in the journal only, and of quorum queues
STREAM: Final[i64] = 5  # in the journal only, and of streams
KIND: Final[i64] = 0x0F
REDELIVERED: Final[i64] = 0x10
STORED: Final[i64] = 0x20

PUBLISH_HEAD: Final[i64] = 25
RANGE_SIZE: Final[i64] = 13
REQUEUED_SIZE: Final[i64] = 17
STREAM_HEAD: Final[i64] = 29
MESSAGE_HEAD: Final[i64] = 7
MSG_ID_SIZE: Final[i64] = 16

_FLAGS_AT: Final[i64] = 16  # in a content: which properties there are
_HEADERS: Final[i64] = 0x20
_BCC: Final = b"\x03BCC"  # the header's name as it stands in a table


class FormatError(BrokerError):
    """Bytes that have a sound checksum and make no sense."""


def checksum(data: bytes, before: int = 0) -> int:
    """CRC-32C (Castagnoli) of `data`, or of all of it when `before` is that of what stands before."""
    return int(crc32c(data, before))


def sealed(head: bytes) -> bytes:
    """`head` and its own CRC-32C behind it."""
    return head + checksum(head).to_bytes(4, "big")


def is_sealed(head: bytes) -> bool:
    """True when the last four bytes are the CRC-32C of those before."""
    return len(head) > 4 and checksum(head[:-4]) == int.from_bytes(head[-4:], "big")


# -- messages ---------------------------------------------------------------------------------------------------------


def stored_size(message: Message) -> i64:
    """Bytes that `write_message` will write."""
    return MESSAGE_HEAD + len(message.address) + len(message.content)


def write_message(out: BytesWriter, message: Message) -> None:
    write_i16_be(out, i16(len(message.address)))
    write_i32_be(out, i32(message.header_end))
    out.append(u8(1) if message.persistent else u8(0))
    out.write(message.address)
    out.write(message.content)


def read_message(data: bytes, pos: i64, end: i64) -> Message:
    """The message in data[pos:end]. Raises FormatError."""
    if end - pos < MESSAGE_HEAD or end > len(data):
        raise FormatError("a message that is cut off")
    address_size = i64(read_i16_be(data, pos)) & 0xFFFF
    header_end = i64(read_i32_be(data, pos + 2)) & 0xFFFFFFFF
    content = pos + MESSAGE_HEAD + address_size
    if content + header_end > end or header_end < 19 or address_size < 2:
        raise FormatError("a message whose parts do not fit")
    message = Message(data[pos + MESSAGE_HEAD : content], data[content:end], header_end, data[pos + 6] == 1)
    if i64(data[content + _FLAGS_AT]) & _HEADERS:
        message.has_bcc = data.find(_BCC, content, content + header_end) > 0
    return message


# -- entries ----------------------------------------------------------------------------------------------------------


def write_publish_head(out: BytesWriter, flags: i64, seq_id: i64, expiry: i64, body_size: i64, size: i64) -> None:
    """The head of a publish entry; the caller writes the `size` bytes that follow."""
    out.append(u8(PUBLISH | flags))
    write_i64_be(out, seq_id)
    write_i64_be(out, expiry)
    write_i32_be(out, i32(body_size))
    write_i32_be(out, i32(size))


def check_publish(data: bytes, pos: i64, seq_id: i64, size: i64) -> None:
    """Raises FormatError when data[pos:] does not begin with this PUBLISH entry, not redelivered."""
    if (
        pos + PUBLISH_HEAD + size > len(data)
        or i64(data[pos]) & ~STORED != PUBLISH
        or read_i64_be(data, pos + 1) != seq_id
        or i64(read_i32_be(data, pos + 21)) != size
    ):
        raise FormatError(f"message {seq_id} does not stand where it was written")


def write_ranges(out: BytesWriter, kind: i64, seq_ids: list[int]) -> None:
    """ACK or DELIVER entries for these places, in as few ranges as their order allows."""
    at: i64 = 0
    size: i64 = len(seq_ids)
    while at < size:
        first: i64 = seq_ids[at]
        count: i64 = 1
        while at + count < size and i64(seq_ids[at + count]) == first + count:
            count += 1
        write_range(out, kind, first, count)
        at += count


def write_range(out: BytesWriter, kind: i64, first: i64, count: i64) -> None:
    out.append(u8(kind))
    write_i64_be(out, first)
    write_i32_be(out, i32(count))


def write_requeues(out: BytesWriter, requeues: list[tuple[int, int]]) -> None:
    """REQUEUED entries for these pairs of seq_id and how often, sorted; neighbours with the same number in one."""
    at = 0
    while at < len(requeues):
        first, times = requeues[at]
        count = 1
        while at + count < len(requeues) and requeues[at + count] == (first + count, times):
            count += 1
        write_range(out, REQUEUED, first, count)
        write_i32_be(out, i32(min(times, 0x7FFFFFFF)))
        at += count


def write_stream_head(
    out: BytesWriter, first_offset: i64, count: i64, timestamp_ms: i64, filter_size: i64, size: i64
) -> None:
    """The head of a stream entry; the caller writes the filter and the `size` bytes of data that follow."""
    out.append(u8(STREAM))
    write_i64_be(out, first_offset)
    write_i32_be(out, i32(count))
    write_i64_be(out, timestamp_ms)
    write_i32_be(out, i32(filter_size))
    write_i32_be(out, i32(size))


class Entry:
    """One entry, as `read_entries` finds it. `data` is where a publish's message or msg_id begins, `size` its length.

    `times`: how often each was requeued. Of a stream entry `seq_id` is the first offset, `expiry` the timestamp, and `data`
    where the filter begins, of `filter_size` bytes, with `size` bytes of data behind it.
    """

    def __init__(self, kind: i64, flags: i64, seq_id: i64, count: i64) -> None:
        self.kind = kind
        self.flags = flags
        self.seq_id = seq_id
        self.count = count
        self.expiry: i64 = 0
        self.body_size: i64 = 0
        self.data: i64 = 0
        self.size: i64 = 0
        self.times: i64 = 0
        self.filter_size: i64 = 0


def read_entries(data: bytes, pos: i64, end: i64) -> list[Entry]:
    """The entries in data[pos:end]. Raises FormatError."""
    found: list[Entry] = []
    if end > len(data):
        raise FormatError("entries that are cut off")
    while pos < end:
        first = i64(data[pos])
        kind = first & KIND
        if kind == PUBLISH:
            if end - pos < PUBLISH_HEAD:
                raise FormatError("a publish entry that is cut off")
            entry = Entry(PUBLISH, first & ~KIND, read_i64_be(data, pos + 1), 1)
            entry.expiry = read_i64_be(data, pos + 9)
            entry.body_size = i64(read_i32_be(data, pos + 17)) & 0xFFFFFFFF
            entry.size = i64(read_i32_be(data, pos + 21)) & 0xFFFFFFFF
            entry.data = pos + PUBLISH_HEAD
            pos = entry.data + entry.size
            if pos > end:
                raise FormatError("a publish entry that is longer than its block")
        elif kind == ACK or kind == DELIVER:
            if end - pos < RANGE_SIZE:
                raise FormatError("a range that is cut off")
            entry = Entry(kind, 0, read_i64_be(data, pos + 1), i64(read_i32_be(data, pos + 9)) & 0xFFFFFFFF)
            pos += RANGE_SIZE
        elif kind == REQUEUED:
            if end - pos < REQUEUED_SIZE:
                raise FormatError("a requeued entry that is cut off")
            entry = Entry(kind, 0, read_i64_be(data, pos + 1), i64(read_i32_be(data, pos + 9)) & 0xFFFFFFFF)
            entry.times = i64(read_i32_be(data, pos + RANGE_SIZE)) & 0xFFFFFFFF
            pos += REQUEUED_SIZE
        elif kind == STREAM:
            entry = _read_stream_head(data, pos, end)
            pos = entry.data + entry.filter_size + entry.size
        else:
            raise FormatError(f"an entry of unknown kind {first}")
        found.append(entry)
    return found


def _read_stream_head(data: bytes, pos: i64, end: i64) -> Entry:
    if end - pos < STREAM_HEAD:
        raise FormatError("a stream entry that is cut off")
    entry = Entry(STREAM, 0, read_i64_be(data, pos + 1), i64(read_i32_be(data, pos + 9)) & 0xFFFFFFFF)
    entry.expiry = read_i64_be(data, pos + 13)
    entry.filter_size = i64(read_i32_be(data, pos + 21)) & 0xFFFFFFFF
    entry.size = i64(read_i32_be(data, pos + 25)) & 0xFFFFFFFF
    entry.data = pos + STREAM_HEAD
    if entry.data + entry.filter_size + entry.size > end:
        raise FormatError("a stream entry that is longer than its block")
    return entry
