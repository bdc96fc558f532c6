"""Field tables: what is encoded is decoded again, with its types, and malformed bytes are a ValueError."""

from __future__ import annotations

import struct
from decimal import Decimal

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pamqp import decode as pamqp_decode

from rabbitpy_broker.wire.field_table import MAX_DEPTH, FieldTable, decode_table, encode_table, field_table

TEXTS = st.text(max_size=8)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False)
    | TEXTS
    | st.binary(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=8,
)
TABLES = st.dictionaries(TEXTS, VALUES, max_size=4)

# letter, octets of the value, value
EVERY_TYPE = (
    ("t", b"\x01", True),
    ("b", b"\xff", -1),
    ("B", b"\xff", 255),
    ("s", b"\xff\xfe", -2),
    ("u", b"\xff\xfe", 65534),
    ("I", b"\xff\xff\xff\xfd", -3),
    ("i", b"\xff\xff\xff\xfd", 4294967293),
    ("l", b"\xff" * 8, -1),
    ("L", b"\xff" * 8, -1),
    ("f", struct.pack(">f", 0.5), 0.5),
    ("d", struct.pack(">d", 0.1), 0.1),
    ("D", b"\x02\x00\x00\x01\x3a", Decimal("3.14")),
    ("D", b"\xff\xff\xff\xff\xff", Decimal(-1).scaleb(-255)),
    ("S", b"\x00\x00\x00\x02\xc3\xa4", "ä"),
    ("S", b"\x00\x00\x00\x01\xff", b"\xff"),
    ("x", b"\x00\x00\x00\x01a", b"a"),
    ("T", b"\xff" * 8, 2**64 - 1),
    ("V", b"", None),
    ("A", b"\x00\x00\x00\x03t\x01V", [True, None]),
    ("F", b"\x00\x00\x00\x04\x01kt\x00", {"k": False}),
)


def table(body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + body


def nested(kind: bytes, depth: int) -> bytes:
    value = b"V"
    for _ in range(depth):
        value = kind + table(b"\x01k" + value if kind == b"F" else value)
    return table(b"\x01k" + value)


@given(TABLES, st.binary(max_size=4), st.binary(max_size=4))
def test_what_is_encoded_is_decoded_again(values, before, behind):
    encoded = encode_table(values)
    decoded, end = decode_table(before + encoded + behind, len(before))
    assert decoded == values
    assert end == len(before) + len(encoded)
    assert decoded.raw == encoded[4:]
    assert encode_table(decoded) == encoded
    assert decoded.same_as(field_table(values))


@pytest.mark.parametrize("letter,octets,value", EVERY_TYPE)
def test_every_type_is_known_by_its_letter(letter, octets, value):
    encoded = table(b"\x01k" + letter.encode() + octets)
    decoded, end = decode_table(encoded, 0)
    assert decoded == {"k": value}
    assert type(decoded["k"]) is type(value) or isinstance(decoded["k"], FieldTable)
    assert (decoded.types, end) == ({"k": letter.replace("L", "l")}, len(encoded))
    assert encode_table(decoded) == encoded


@given(TABLES)
def test_pamqp_reads_it_alike(values):
    assert pamqp_decode.field_table(encode_table(values))[1] == decode_table(encode_table(values), 0)[0]


@settings(max_examples=200)
@example(nested(b"F", 5000), 0, 0)
@example(nested(b"A", 5000), 0, 0)
@given(TABLES.map(encode_table), st.integers(0, 80), st.integers(0, 255))
def test_damaged_tables_are_read_or_are_a_value_error(encoded, at, octet):
    data = bytearray(encoded)
    if at < len(data):
        data[at] = octet
    try:
        decoded, end = decode_table(bytes(data), 0)
    except ValueError:
        return
    assert end <= len(data)
    assert decode_table(encode_table(decoded), 0)[0].raw == decoded.raw


@given(st.binary(max_size=40), st.integers(0, 40))
def test_any_bytes_are_a_table_or_a_value_error(data, pos):
    try:
        _, end = decode_table(data, pos)
    except ValueError:
        return
    assert pos + 4 <= end <= len(data)


@given(TABLES.map(encode_table), st.data())
def test_a_table_that_is_cut_off_is_a_value_error(encoded, data):
    cut = data.draw(st.integers(0, len(encoded) - 1))
    with pytest.raises(ValueError):
        decode_table(encoded[:cut], 0)


@pytest.mark.parametrize("kind", (b"F", b"A"))
def test_nesting_is_cut_at_the_same_depth_for_tables_and_arrays(kind):
    decode_table(nested(kind, MAX_DEPTH), 0)
    with pytest.raises(ValueError, match="nested deeper"):
        decode_table(nested(kind, MAX_DEPTH + 1), 0)


def test_tables_are_the_same_whatever_the_order_but_not_with_other_types():
    one = decode_table(table(b"\x01ab\x01\x01bb\x02"), 0)[0]
    assert one.same_as(decode_table(table(b"\x01bb\x02\x01ab\x01"), 0)[0])
    assert not one.same_as(decode_table(table(b"\x01aB\x01\x01bb\x02"), 0)[0])
    assert one.is_integer("a") and one.type_name("a") == "byte" and one.type_name("c") == "none"


def test_keys_longer_than_a_short_string_are_refused():
    with pytest.raises(ValueError, match="255"):
        encode_table({"k" * 256: 1})
