"""The hot frames, written straight into a connection's output buffer.

Each writer appends whole frames: nothing here can fail half-way, so frames of different channels never mix. Single
octets are cast to u8: `append` of any other type is a generic call in compiled code, and cost a fifth of a delivery.
"""

from __future__ import annotations

from typing import Final

from librt.strings import BytesWriter, write_i32_be, write_i64_be
from mypy_extensions import i32, i64, u8

from rabbitpy_broker.message import Message
from rabbitpy_broker.wire.edit_header import shown

_ACK: Final[i64] = 80
_NACK: Final[i64] = 120


def write_content(out: BytesWriter, channel: i64, message: Message, frame_max: i64) -> None:
    """Header and body frames of a message, cut to `frame_max` (0: not cut)."""
    if message.has_bcc:
        message = shown(message)
    out.append(2)
    out.append(u8((channel >> 8) & 255))
    out.append(u8(channel & 255))
    content = message.content
    at: i64 = len(out)
    header_end = message.header_end
    size: i64 = len(content)
    if size == header_end:
        out.write(content)
    elif frame_max == 0 or size - header_end <= frame_max:
        out.write(content)
        at += header_end
        out[at + 1] = u8((channel >> 8) & 255)
        out[at + 2] = u8(channel & 255)
    else:
        out.write(content[:header_end])
        at = header_end + 7
        last: i64 = size - 1
        while at < last:
            end: i64 = at + frame_max - 8
            if end > last:
                end = last
            out.append(3)
            out.append(u8((channel >> 8) & 255))
            out.append(u8(channel & 255))
            write_i32_be(out, i32(end - at))
            out.write(content[at:end])
            out.append(0xCE)
            at = end


def write_deliver(
    out: BytesWriter, channel: i64, prefix: bytes, delivery_tag: i64, redelivered: bool, message: Message, frame_max: i64
) -> None:
    """basic.deliver with its content; `prefix` is the method id and the consumer tag, encoded."""
    address = message.address
    out.append(1)
    out.append(u8((channel >> 8) & 255))
    out.append(u8(channel & 255))
    write_i32_be(out, i32(len(prefix) + 9 + len(address)))
    out.write(prefix)
    write_i64_be(out, delivery_tag)
    out.append(1 if redelivered else 0)
    out.write(address)
    out.append(0xCE)
    write_content(out, channel, message, frame_max)


def write_get_ok(
    out: BytesWriter, channel: i64, delivery_tag: i64, redelivered: bool, message: Message, left: i64, frame_max: i64
) -> None:
    """basic.get-ok with its content; `left` is the number of messages still ready."""
    address = message.address
    out.append(1)
    out.append(u8((channel >> 8) & 255))
    out.append(u8(channel & 255))
    write_i32_be(out, i32(4 + 9 + len(address) + 4))
    out.write(b"\x00\x3c\x00\x47")
    write_i64_be(out, delivery_tag)
    out.append(1 if redelivered else 0)
    out.write(address)
    write_i32_be(out, i32(left & 0x7FFFFFFF))
    out.append(0xCE)
    write_content(out, channel, message, frame_max)


def write_return(
    out: BytesWriter, channel: i64, code: i64, text: bytes, message: Message, frame_max: i64
) -> None:
    """basic.return with its content."""
    address = message.address
    out.append(1)
    out.append(u8((channel >> 8) & 255))
    out.append(u8(channel & 255))
    write_i32_be(out, i32(4 + 2 + 1 + len(text) + len(address)))
    out.write(b"\x00\x3c\x00\x32")
    out.append(u8((code >> 8) & 255))
    out.append(u8(code & 255))
    out.append(u8(len(text)))
    out.write(text)
    out.write(address)
    out.append(0xCE)
    write_content(out, channel, message, frame_max)


def write_ack(out: BytesWriter, channel: i64, delivery_tag: i64, multiple: bool) -> None:
    """basic.ack, broker to publisher."""
    _write_settle(out, channel, _ACK, delivery_tag, multiple)


def write_nack(out: BytesWriter, channel: i64, delivery_tag: i64, multiple: bool) -> None:
    """basic.nack, broker to publisher."""
    _write_settle(out, channel, _NACK, delivery_tag, multiple)


def _write_settle(out: BytesWriter, channel: i64, method: i64, delivery_tag: i64, multiple: bool) -> None:
    out.append(1)
    out.append(u8((channel >> 8) & 255))
    out.append(u8(channel & 255))
    out.write(b"\x00\x00\x00\x0d\x00\x3c\x00")
    out.append(u8(method))
    write_i64_be(out, delivery_tag)
    out.append(1 if multiple else 0)
    out.append(0xCE)
