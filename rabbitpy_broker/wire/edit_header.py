"""Changes to a content header: another headers table, a property removed; every other octet stays as it was.

This file also says what clients may see of a message: everything but the header BCC.

A table is taken apart into items. An item is a key and the bytes of its value with the type letter before them, so an
item that nobody changes keeps its bytes. A key that is not UTF-8 comes out as it went in.
"""

from __future__ import annotations

from mypy_extensions import i64

from rabbitpy_broker.message import Message
from rabbitpy_broker.wire.properties import HEADERS, find_header, find_property, property_end, value_end

FLAGS_AT = 12
PROPERTIES_AT = 14


def split_table(raw: bytes) -> dict[str, bytes]:
    """The items of a table (without its length) in their order; the last one where a key stands twice. Raises ValueError."""
    items: dict[str, bytes] = {}
    at = 0
    while at < len(raw):
        key_end = at + 1 + raw[at]
        if key_end >= len(raw):
            raise ValueError("field table key runs over the end of its table")
        key = raw[at + 1 : key_end].decode("utf-8", "surrogateescape")
        at = int(value_end(raw, key_end, len(raw)))
        if at < 0:
            raise ValueError("malformed field value")
        items[key] = raw[key_end:at]
    return items


def join_table(items: dict[str, bytes]) -> bytes:
    """The table (without its length) of these items."""
    parts: list[bytes] = []
    for key, value in items.items():
        name = key.encode("utf-8", "surrogateescape")
        parts.append(bytes([len(name)]) + name + value)
    return b"".join(parts)


def elements(value: bytes) -> list[bytes]:
    """The values of an array, each with its type letter; none when it is no array."""
    found: list[bytes] = []
    if value[:1] != b"A":
        return found
    at = 5
    while at < len(value):
        end = int(value_end(value, at, len(value)))
        found.append(value[at:end])
        at = end
    return found


def texts(value: bytes) -> list[str]:
    """The strings in an array; none when it is no array."""
    return [one[5:].decode("utf-8", "replace") for one in elements(value) if one[:1] == b"S"]


def blind_keys(message: Message) -> list[str]:
    """The routing keys in a message's BCC."""
    payload = message.header_payload()
    table = find_property(payload, HEADERS)
    if not message.has_bcc or table == 0:
        return []
    start, end = find_header(payload, table, b"BCC")
    return texts(payload[start:end])


def shown(message: Message) -> Message:
    """The message as clients may see it."""
    return message.with_header(shown_header(message)) if message.has_bcc else message


def shown_header(message: Message) -> bytes:
    """The message's header payload, as clients and exchanges may see it."""
    payload = message.header_payload()
    if message.has_bcc and find_property(payload, HEADERS) > 0:
        return without_header(payload, b"BCC")
    return payload


def raw_headers(payload: bytes) -> bytes:
    """The headers table (without its length) of a header payload; empty when it has none."""
    at = int(find_property(payload, HEADERS))
    return payload[at + 4 : int(property_end(payload, HEADERS, at))] if at else b""


def with_headers(payload: bytes, raw: bytes) -> bytes:
    """The payload with this headers table (without its length) in place of the table that it has, if it has one."""
    flags = int.from_bytes(payload[FLAGS_AT:PROPERTIES_AT], "big")
    at = int(find_property(payload, HEADERS))
    if at:
        end = int(property_end(payload, HEADERS, at))
    else:
        at = end = _behind(payload, flags)
    changed = (flags | int(HEADERS)).to_bytes(2, "big")
    return payload[:FLAGS_AT] + changed + payload[PROPERTIES_AT:at] + len(raw).to_bytes(4, "big") + raw + payload[end:]


def with_number(message: Message, key: str, number: int) -> Message:
    """The message with this header, a long; in place of the one of that name that it may have."""
    payload = message.header_payload()
    items = split_table(raw_headers(payload))
    items[key] = b"l" + number.to_bytes(8, "big", signed=True)
    return message.with_header(with_headers(payload, join_table(items)))


def without_header(payload: bytes, key: bytes) -> bytes:
    """The payload without the items of that key in its headers table. Assumes that it has such a table."""
    table = find_property(payload, HEADERS)
    end = property_end(payload, HEADERS, table)
    kept: list[bytes] = []
    at = since = table + 4
    while at < end:
        value = at + 1 + i64(payload[at])
        after = value_end(payload, value, end)
        if payload[at + 1 : value] == key:
            kept.append(payload[since:at])
            since = after
        at = after
    kept.append(payload[since:end])
    return with_headers(payload, b"".join(kept))


def without_property(payload: bytes, wanted: int) -> bytes:
    """The payload without one property; the same payload when it has no such property."""
    at = int(find_property(payload, wanted))
    if not at:
        return payload
    flags = int.from_bytes(payload[FLAGS_AT:PROPERTIES_AT], "big") & ~wanted
    end = int(property_end(payload, wanted, at))
    return payload[:FLAGS_AT] + flags.to_bytes(2, "big") + payload[PROPERTIES_AT:at] + payload[end:]


def _behind(payload: bytes, flags: int) -> int:
    """The position at which the headers begin: behind content_type and content_encoding."""
    at = PROPERTIES_AT
    for bit in (0x8000, 0x4000):
        if flags & bit:
            at += 1 + payload[at]
    return at
