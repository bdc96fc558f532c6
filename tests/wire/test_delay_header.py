"""x-delay: which values are a delay, and what becomes of the header when it is over."""

from __future__ import annotations

import struct
from decimal import Decimal

import pamqp.header
import pytest
from pamqp.commands import Basic

from rabbitpy_broker.wire.delay_header import MAX_DELAY_MS, delay_ms, waited
from rabbitpy_broker.wire.field_table import FieldTable, decode_table, field_table
from rabbitpy_broker.wire.properties import decode_headers


def raw_table(value: bytes) -> FieldTable:
    """A table whose x-delay has these bytes, type letter first."""
    body = b"\x07x-delay" + value
    return decode_table(len(body).to_bytes(4, "big") + body, 0)[0]


@pytest.mark.parametrize(
    "value, delay",
    [
        (b"b\x7f", 127),
        (b"B\xff", 255),
        (b"s\x01\x00", 256),
        (b"u\xff\xff", 65_535),
        (b"I\x00\x00\x13\x88", 5_000),
        (b"i\xff\xff\xff\xff", MAX_DELAY_MS),
        (b"l" + (5_000).to_bytes(8, "big"), 5_000),
        (b"L" + (5_000).to_bytes(8, "big"), 5_000),
        (b"d" + struct.pack(">d", 1500.9), 1_500),
        (b"f" + struct.pack(">f", 2.5), 2),
        (b"D\x01\x00\x00\x00\x7b", 12),
        (b"S\x00\x00\x00\x045000", 5_000),
        (b"S\x00\x00\x00\x03+12", 12),
    ],
)
def test_a_number_of_any_kind_is_a_delay(value: bytes, delay: int) -> None:
    assert delay_ms(raw_table(value)) == delay


@pytest.mark.parametrize(
    "value",
    [
        b"l" + (0).to_bytes(8, "big"),
        b"l" + (-5).to_bytes(8, "big", signed=True),
        b"l" + (MAX_DELAY_MS + 1).to_bytes(8, "big"),
        b"d" + struct.pack(">d", 0.9),
        b"d" + struct.pack(">d", float("nan")),
        b"d" + struct.pack(">d", float("inf")),
        b"S\x00\x00\x00\x02 5",
        b"S\x00\x00\x00\x031_0",
        b"S\x00\x00\x00\x00",
        b"S\x00\x00\x00\x01-",
        b"S\x00\x00\x00\x02\xff\xfe",
        b"t\x01",
        b"V",
        b"T" + (5).to_bytes(8, "big"),
        b"x\x00\x00\x00\x015",
        b"A\x00\x00\x00\x00",
    ],
)
def test_anything_else_is_no_delay(value: bytes) -> None:
    assert delay_ms(raw_table(value)) == 0


def test_without_the_header_there_is_no_delay() -> None:
    assert delay_ms(None) == 0
    assert delay_ms(field_table({"other": 5})) == 0


def payload_of(**headers: object) -> bytes:
    properties = Basic.Properties(content_type="text/plain", headers=headers, delivery_mode=2, message_id="m")
    return pamqp.header.ContentHeader(0, 3, properties).marshal()


def turned(payload: bytes) -> bytes:
    headers = decode_headers(payload)
    assert headers is not None
    return waited(payload, headers)


@pytest.mark.parametrize("delay", [1, 5_000, (1 << 31), MAX_DELAY_MS])
def test_the_delay_becomes_negative_and_nothing_else_changes(delay: int) -> None:
    before = payload_of(first="a", **{"x-delay": delay}, last={"deep": [1, Decimal("1.5")]})
    after = turned(before)
    was, now = decode_headers(before), decode_headers(after)
    assert was is not None
    assert now is not None
    assert now["x-delay"] == -delay
    assert now.is_integer("x-delay")
    assert list(now) == list(was)
    assert (now["first"], now["last"]) == (was["first"], was["last"])
    assert delay_ms(now) == 0
    found = pamqp.header.ContentHeader()
    found.unmarshal(after)
    assert (found.properties.content_type, found.properties.delivery_mode) == ("text/plain", 2)
    assert found.properties.message_id == "m"


def test_a_string_becomes_a_number() -> None:
    now = decode_headers(turned(payload_of(**{"x-delay": "700"})))
    assert now is not None
    assert (now["x-delay"], now.type_name("x-delay")) == (-700, "signedint")
