"""The offset of a message in its stream, written into its content header once, when it is published: a delivery is then a
copy of what is stored.

  content = size(4) header payload CE ...          header payload = class(2) weight(2) body size(8) flags(2) properties

`x-stream-offset` is the last item of the headers table, a signed 64 bit integer ("l"). What a publisher has put there under
that name is gone, as in RabbitMQ; every other octet stays as it was.
"""

from __future__ import annotations

from typing import Final

from librt.strings import BytesWriter, read_i16_be, read_i32_be, write_i16_be, write_i32_be, write_i64_be
from mypy_extensions import i16, i32, i64

from rabbitpy_broker.wire.edit_header import without_header
from rabbitpy_broker.wire.properties import HEADERS, find_header, find_property

FILTER_VALUE: Final = b"x-stream-filter-value"
_OFFSET: Final = b"x-stream-offset"
_OUR_NAMES: Final = b"x-stream-"
_ITEM: Final = b"\x0fx-stream-offsetl"
_ITEM_SIZE: Final[i64] = 25  # with its value
_FLAGS_AT: Final[i64] = 16  # in a content
_PROPERTIES_AT: Final[i64] = 18
_CONTENT_TYPE: Final[i64] = 0x8000
_CONTENT_ENCODING: Final[i64] = 0x4000


class Stamped:
    """A content with its offset, and the value that consumers filter by: None when the message has none."""

    def __init__(self, content: bytes, filter_value: bytes | None) -> None:
        self.content = content
        self.filter_value = filter_value


def with_offset(content: bytes, header_end: i64, offset: i64) -> Stamped:
    """The content of a message with its offset. Assumes a header that passed `check_header`."""
    filter_value: bytes | None = None
    flags: i64 = i64(read_i16_be(content, _FLAGS_AT)) & 0xFFFF
    at = _PROPERTIES_AT
    if flags & _CONTENT_TYPE:
        at += 1 + i64(content[at])
    if flags & _CONTENT_ENCODING:
        at += 1 + i64(content[at])
    size: i64 = 0
    if flags & HEADERS:
        size = i64(read_i32_be(content, at))
        if content.find(_OUR_NAMES, at, at + 4 + size) > 0:  # a search costs less than a look at each key
            payload = content[4 : header_end - 1]
            filter_value = filter_value_of(payload, at - 4)
            if find_header(payload, at - 4, _OFFSET)[0] > 0:
                payload = without_header(payload, _OFFSET)
                content = len(payload).to_bytes(4, "big") + payload + content[header_end - 1 :]
                header_end = 5 + len(payload)
                size = i64(read_i32_be(content, at))
    added = _ITEM_SIZE if flags & HEADERS else _ITEM_SIZE + 4
    out = BytesWriter()
    write_i32_be(out, i32(header_end - 5 + added))
    out.write(content[4:_FLAGS_AT])
    write_i16_be(out, _signed(flags | HEADERS))
    out.write(content[_PROPERTIES_AT:at])
    write_i32_be(out, i32(size + _ITEM_SIZE))
    if flags & HEADERS:
        at += 4
        out.write(content[at : at + size])
        at += size
    out.write(_ITEM)
    write_i64_be(out, offset)
    out.write(content[at:])
    return Stamped(out.getvalue(), filter_value)


def _signed(flags: i64) -> i16:
    return i16(flags - 0x10000) if flags & 0x8000 else i16(flags)


def filter_value_of(payload: bytes, table: i64) -> bytes | None:
    """The filter value in the headers table at `table` of a header payload; None when there is none, or it is no string."""
    start, end = find_header(payload, table, FILTER_VALUE)
    if start == 0 or payload[start] != 83:  # S
        return None
    return payload[start + 5 : end]


def filter_value_in(data: bytes, start: i64) -> bytes | None:
    """The filter value of the content that begins at `start`."""
    size: i64 = i64(read_i32_be(data, start))
    end = start + 4 + size
    if data.find(FILTER_VALUE, start, end) < 0:
        return None
    payload = data[start + 4 : end]
    table = find_property(payload, HEADERS)
    return filter_value_of(payload, table) if table > 0 else None
