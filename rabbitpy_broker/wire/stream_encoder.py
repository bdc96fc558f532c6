"""Deliveries of a stream, written straight from its stored bytes into a connection's output buffer.

  entry   size of what follows(4)  size of address(2)  address  content          (storage/stream_chunk.py)

Address and content stand in an entry as they stand in the frames of basic.deliver, so nothing is taken apart, and no object
is made for a message.
"""

from __future__ import annotations

from typing import Final

from librt.strings import BytesWriter, read_i16_be, read_i32_be, write_i32_be, write_i64_be
from mypy_extensions import i32, i64, u8

from rabbitpy_broker.message import Message

_ADDRESS_AT: Final[i64] = 6


def entry_end(data: bytes, pos: i64) -> i64:
    """The position behind the entry at `pos`."""
    return pos + 4 + (i64(read_i32_be(data, pos)) & 0xFFFFFFFF)


def content_start(data: bytes, pos: i64) -> i64:
    """Where the content of the entry at `pos` begins."""
    return pos + _ADDRESS_AT + (i64(read_i16_be(data, pos + 4)) & 0xFFFF)


def message_at(data: bytes, pos: i64) -> Message:
    """The message of the entry at `pos`."""
    start = content_start(data, pos)
    header_end: i64 = i64(read_i32_be(data, start)) + 5
    return Message(data[pos + _ADDRESS_AT : start], data[start : entry_end(data, pos)], header_end, True)


def write_deliveries(
    out: BytesWriter, channel: i64, prefix: bytes, tag: i64, data: bytes, pos: i64, count: i64, frame_max: i64, mark: i64
) -> tuple[i64, i64]:
    """basic.deliver for the entries from `pos` on, with tags from `tag` on, until `out` has `mark` bytes: at most `count`, at
    least one. `prefix` is the method id and the consumer tag, encoded.

    Returns the position behind the last, and how many there were.
    """
    high: i64 = (channel >> 8) & 255
    low: i64 = channel & 255
    to_channel = bytes([int(high), int(low)])
    begin = b"\x01" + to_channel
    between = b"\xce\x02" + to_channel
    fixed: i64 = len(prefix) + 9
    done: i64 = 0
    while done < count:
        end: i64 = pos + 4 + (i64(read_i32_be(data, pos)) & 0xFFFFFFFF)
        size: i64 = i64(read_i16_be(data, pos + 4)) & 0xFFFF
        address = pos + _ADDRESS_AT
        start = address + size
        out.write(begin)
        write_i32_be(out, i32(fixed + size))
        out.write(prefix)
        write_i64_be(out, tag)
        out.append(0)
        out.write(data[address:start])
        out.write(between)
        body: i64 = start + i64(read_i32_be(data, start)) + 5
        if frame_max == 0 or end - body <= frame_max:
            at: i64 = len(out) + body - start
            out.write(data[start:end])
            if body < end:
                out[at + 1] = u8(high)
                out[at + 2] = u8(low)
        else:
            out.write(data[start:body])
            _write_pieces(out, to_channel, data, body + 7, end - 1, frame_max)
        tag += 1
        done += 1
        pos = end
        if len(out) >= mark:
            break
    return pos, done


def _write_pieces(out: BytesWriter, to_channel: bytes, data: bytes, at: i64, last: i64, frame_max: i64) -> None:
    """The body from `at` to `last` in frames of at most `frame_max`."""
    while at < last:
        end: i64 = at + frame_max - 8
        if end > last:
            end = last
        out.append(3)
        out.write(to_channel)
        write_i32_be(out, i32(end - at))
        out.write(data[at:end])
        out.append(0xCE)
        at = end
