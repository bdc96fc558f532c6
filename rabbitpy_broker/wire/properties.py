"""Content headers: checked in place, decoded only when somebody asks (spec 4.2.6.1).

  header payload = class(2) weight(2) body size(8) flags(2) properties, in the order of their flags

`check_header` walks the properties once, without building anything, so that a malformed header ends with its publisher
and never reaches a consumer. `decode_headers` reads the one table that routing needs, `short_property` one text.
"""

from __future__ import annotations

from typing import Final

from librt.strings import read_i16_be, read_i32_be
from mypy_extensions import i64

from rabbitpy_broker.wire.field_table import MAX_DEPTH, FieldTable, decode_table

HEADERS: Final[i64] = 0x2000
DELIVERY_MODE: Final[i64] = 0x1000
PRIORITY: Final[i64] = 0x0800
CORRELATION_ID: Final[i64] = 0x0400
REPLY_TO: Final[i64] = 0x0200
EXPIRATION: Final[i64] = 0x0100
MESSAGE_ID: Final[i64] = 0x0080
TIMESTAMP: Final[i64] = 0x0040
USER_ID: Final[i64] = 0x0010

MALFORMED: Final[i64] = -1
TRANSIENT: Final[i64] = 0
PERSISTENT: Final[i64] = 1
TO_CHECK: Final[i64] = 2  # added: user_id, expiration, reply_to, CC, BCC or a delivery_mode that need a closer look

_FIRST: Final[i64] = 14


def check_header(data: bytes, pos: i64, end: i64) -> i64:
    """Walks the header payload data[pos:end].

    Ensures: the answer is PERSISTENT or TRANSIENT, with TO_CHECK added when a property needs a closer look, or
    MALFORMED. A payload that is not MALFORMED can be walked by the other functions here without a check of bounds.
    Nothing is built.
    """
    if end - pos < _FIRST:
        return MALFORMED
    flags: i64 = i64(read_i16_be(data, pos + 12)) & 0xFFFF
    at = pos + _FIRST
    if flags == DELIVERY_MODE:  # nearly every message of bulk traffic has this property alone
        if at + 1 != end:
            return MALFORMED
        value: i64 = i64(data[at])
        return PERSISTENT if value == 2 else _persistence(value)
    if flags == 0:
        return TRANSIENT if at == end else MALFORMED
    mode = TRANSIENT
    if flags & (USER_ID | EXPIRATION | REPLY_TO):
        mode = TO_CHECK
    bit: i64 = 0x8000
    while bit >= 4:
        if flags & bit:
            if bit == HEADERS:
                table = at
                at = skip_table(data, at, end, 0)
                if at < 0:
                    return MALFORMED
                if data.find(b"CC", table, at) > 0:  # a search costs less than a look at each key
                    mode |= TO_CHECK
            elif bit == DELIVERY_MODE:
                if at >= end:
                    return MALFORMED
                mode |= _persistence(i64(data[at]))
                at += 1
            elif bit == PRIORITY:
                at += 1
            elif bit == TIMESTAMP:
                at += 8
            else:
                if at >= end:
                    return MALFORMED
                at += 1 + i64(data[at])
            if at > end:
                return MALFORMED
        bit >>= 1
    if flags & 3 or at != end:
        return MALFORMED
    return mode


def _persistence(mode: i64) -> i64:
    if mode == 2:
        return PERSISTENT
    return TRANSIENT if mode == 1 else TO_CHECK


def skip_table(data: bytes, pos: i64, end: i64, depth: i64) -> i64:
    """The position behind the table at `pos`, or -1 when it is malformed or runs over `end`."""
    if pos + 4 > end or depth > MAX_DEPTH:
        return -1
    size: i64 = i64(read_i32_be(data, pos))
    at = pos + 4
    limit = at + size
    if size < 0 or limit > end:
        return -1
    while at < limit:
        at += 1 + i64(data[at])
        if at >= limit:
            return -1
        at = _skip_value(data, at, limit, depth)
        if at < 0:
            return -1
    return limit


def _skip_value(data: bytes, pos: i64, limit: i64, depth: i64) -> i64:
    """The position behind the value whose type letter stands at `pos`; -1 when it is malformed or runs over `limit`.

    Assumes: pos < limit <= len(data). Ensures: calls are nested at most MAX_DEPTH deep.
    """
    letter: i64 = i64(data[pos])
    at = pos + 1
    if letter == 83 or letter == 120:  # S, x
        if at + 4 > limit:
            return -1
        size: i64 = i64(read_i32_be(data, at))
        if size < 0:
            return -1
        at += 4 + size
    elif letter == 70:  # F
        return skip_table(data, at, limit, depth + 1)
    elif letter == 65:  # A
        if at + 4 > limit or depth >= MAX_DEPTH:
            return -1
        end: i64 = at + 4 + i64(read_i32_be(data, at))
        at += 4
        if end < at or end > limit:
            return -1
        while at < end:
            at = _skip_value(data, at, end, depth + 1)
            if at < 0:
                return -1
    elif letter == 116 or letter == 98 or letter == 66:  # t b B
        at += 1
    elif letter == 115 or letter == 117:  # s u
        at += 2
    elif letter == 73 or letter == 105 or letter == 102:  # I i f
        at += 4
    elif letter == 68:  # D
        at += 5
    elif letter == 108 or letter == 76 or letter == 100 or letter == 84:  # l L d T
        at += 8
    elif letter != 86:  # V
        return -1
    return at if at <= limit else -1


def decode_headers(payload: bytes) -> FieldTable | None:
    """The `headers` property of a header payload that passed `check_header`; None when it has none.

    Raises ValueError for keys that are not UTF-8.
    """
    flags = int.from_bytes(payload[12:14], "big")
    if not flags & HEADERS:
        return None
    at = _FIRST
    for bit in (0x8000, 0x4000):
        if flags & bit:
            at += 1 + payload[at]
    return decode_table(payload, at)[0]


def value_end(payload: bytes, pos: i64, limit: i64) -> i64:
    """The end of the value whose type letter stands at `pos`. Assumes a header payload that passed `check_header`."""
    return _skip_value(payload, pos, limit, 0)


def find_header(payload: bytes, table: i64, key: bytes) -> tuple[i64, i64]:
    """Start and end of the value of `key`, type letter included, in the table at `table`; (0, 0) when the key is not
    there.
    """
    at = table + 4
    limit = at + i64(read_i32_be(payload, table))
    size: i64 = len(key)
    while at < limit:
        length: i64 = i64(payload[at])
        value = at + 1 + length
        end = _skip_value(payload, value, limit, 0)
        if length == size and payload[at + 1 : value] == key:
            return value, end
        at = end
    return i64(0), i64(0)


def short_property(payload: bytes, wanted: i64) -> bytes | None:
    """A short string property of a header payload that passed `check_header`; None when it has none."""
    at = find_property(payload, wanted)
    return payload[at + 1 : at + 1 + i64(payload[at])] if at > 0 else None


def priority(payload: bytes) -> i64:
    """The priority of a header payload that passed `check_header`; 0 when it has none."""
    at = find_property(payload, PRIORITY)
    return i64(payload[at]) if at > 0 else 0


def delivery_mode(payload: bytes) -> int:
    """The delivery_mode of a header payload that passed `check_header`; 1 when it has none."""
    at = find_property(payload, DELIVERY_MODE)
    return payload[at] if at > 0 else 1


def replace_short_property(payload: bytes, wanted: i64, value: bytes) -> bytes:
    """The payload with another value for a short string property that it has."""
    at = find_property(payload, wanted)
    assert at > 0, "kept by: the caller, which has read the property"
    return payload[:at] + bytes([len(value)]) + value + payload[at + 1 + i64(payload[at]) :]


def property_end(payload: bytes, wanted: i64, at: i64) -> i64:
    """The end of the property that begins at `at`."""
    if wanted == HEADERS:
        return skip_table(payload, at, len(payload), 0)
    if wanted == DELIVERY_MODE or wanted == PRIORITY:
        return at + 1
    if wanted == TIMESTAMP:
        return at + 8
    return at + 1 + i64(payload[at])


def find_property(payload: bytes, wanted: i64) -> i64:
    """The start of a property in a header payload that passed `check_header`; 0 when the property is not there."""
    flags: i64 = int.from_bytes(payload[12:14], "big")
    if not flags & wanted:
        return 0
    at = _FIRST
    bit: i64 = 0x8000
    while bit > wanted:
        if flags & bit:
            at = property_end(payload, bit, at)
        bit >>= 1
    return at
