"""`check_header` walks a header without building anything; here it is compared with decoding all of it."""

from __future__ import annotations

import struct

from hypothesis import example, given, settings
from hypothesis import strategies as st

from rabbitpy_broker.wire.field_table import MAX_DEPTH, decode_table, encode_table
from rabbitpy_broker.wire.properties import (
    MALFORMED,
    PERSISTENT,
    TO_CHECK,
    TRANSIENT,
    check_header,
    decode_headers,
)

# Spec 4.2.6.1, in the order of their flags from the highest bit down.
PROPERTIES = (
    "shortstr", "shortstr", "table", "octet", "octet", "shortstr", "shortstr", "shortstr", "shortstr", "timestamp",
    "shortstr", "shortstr", "shortstr", "shortstr",
)  # fmt: skip

TEXTS = st.text(max_size=8)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False)
    | TEXTS
    | st.binary(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)
TABLES = st.dictionaries(TEXTS, VALUES, max_size=3)


def shortstr(text: str) -> bytes:
    raw = text.encode()
    return bytes([len(raw)]) + raw


@st.composite
def headers(draw) -> bytes:
    """A valid header payload."""
    flags, parts = 0, []
    for at, kind in enumerate(PROPERTIES):
        if not draw(st.booleans()):
            continue
        flags |= 0x8000 >> at
        if kind == "shortstr":
            parts.append(shortstr(draw(TEXTS)))
        elif kind == "table":
            parts.append(encode_table(draw(TABLES)))
        elif kind == "octet":
            parts.append(bytes([draw(st.sampled_from((0, 1, 2, 9, 255)))]))
        else:
            parts.append(draw(st.binary(min_size=8, max_size=8)))
    size = draw(st.integers(0, 2**63 - 1))
    return struct.pack(">HHQH", 60, 0, size, flags) + b"".join(parts)


@st.composite
def damaged_headers(draw) -> bytes:
    """A header with some octets changed, cut off or added."""
    data = bytearray(draw(headers()))
    for _ in range(draw(st.integers(0, 3))):
        data[draw(st.integers(12, len(data) - 1))] = draw(st.integers(0, 255))
    if draw(st.booleans()):
        del data[draw(st.integers(0, len(data))) :]
    return bytes(data) + draw(st.binary(max_size=3))


def decode(payload: bytes) -> int | None:
    """What `check_header` is to answer, found the slow way."""
    if len(payload) < 14:
        return MALFORMED
    flags = int.from_bytes(payload[12:14], "big")
    if flags & 3:
        return MALFORMED
    at, mode = 14, 1
    for number, kind in enumerate(PROPERTIES):
        if not flags & (0x8000 >> number):
            continue
        if kind == "table":
            try:
                at = decode_table(payload, at)[1]
            except UnicodeDecodeError:
                return None  # what keys say is not check_header's business
            except ValueError:
                return MALFORMED
            continue
        if at >= len(payload):
            return MALFORMED
        if number == 3:
            mode = payload[at]
        at += 8 if kind == "timestamp" else 1 if kind == "octet" else 1 + payload[at]
        if at > len(payload):
            return MALFORMED
    if at != len(payload):
        return MALFORMED
    to_check = flags & 0x0310 or mode not in (1, 2)
    return (PERSISTENT if mode == 2 else TRANSIENT) + (TO_CHECK if to_check else 0)


def nested(kind: bytes, depth: int) -> bytes:
    """A header whose table holds `depth` tables or arrays, each in the one before."""
    value = b"V"
    for _ in range(depth):
        inner = b"\x01k" + value if kind == b"F" else value
        value = kind + struct.pack(">I", len(inner)) + inner
    body = b"\x01k" + value
    return struct.pack(">HHQHI", 60, 0, 0, 0x2000, len(body)) + body


@given(headers())
def test_valid_headers_are_taken(payload):
    assert check_header(payload, 0, len(payload)) == decode(payload) != MALFORMED


@settings(max_examples=200)
@example(nested(b"A", MAX_DEPTH))
@example(nested(b"A", MAX_DEPTH + 1))
@example(nested(b"A", MAX_DEPTH + 2))
@example(nested(b"F", MAX_DEPTH))
@example(nested(b"F", MAX_DEPTH + 1))
@example(nested(b"A", 5000))
@example(nested(b"F", 5000))
@example(b"\x00\x3c\x00\x00" + bytes(8) + b"\x20\x00\x00\x00\x00\x08\x00x\x00\x00\x00\x02CC")
@given(damaged_headers())
def test_damaged_headers_are_malformed_exactly_when_they_cannot_be_decoded(payload):
    expected = decode(payload)
    if expected is None:
        return
    found = check_header(payload, 0, len(payload))
    if found != expected:  # CC is searched for, whether it is a key or not
        assert found == expected | TO_CHECK and expected != MALFORMED and b"CC" in payload


@given(damaged_headers(), st.binary(max_size=5), st.binary(max_size=5))
def test_what_stands_around_a_header_does_not_matter(payload, before, behind):
    alone = check_header(payload, 0, len(payload))
    assert check_header(before + payload + behind, len(before), len(before) + len(payload)) == alone


@given(damaged_headers())
def test_a_header_that_passed_gives_its_table_or_says_that_its_keys_are_no_text(payload):
    if check_header(payload, 0, len(payload)) == MALFORMED:
        return
    try:
        table = decode_headers(payload)
    except UnicodeDecodeError:
        return
    assert (table is not None) == bool(payload[12] & 0x20)


@given(st.binary(max_size=60))
def test_no_bytes_upset_it(data):
    assert check_header(data, 0, len(data)) in range(MALFORMED, PERSISTENT + TO_CHECK + 1)
