"""Field tables: the typed key-value lists of AMQP (spec 4.2.5.5, with RabbitMQ's type letters).

A `FieldTable` is a dict of plain Python values that remembers each value's wire type and the bytes it came from:
queue equivalence needs the type (10 is not 10.0, the error text says "of type 'byte'"), definitions keep the bytes.
Two tables are the same when keys, types and values are, whatever the order.

  letter  type            Python value          letter  type         Python value
  t       bool            bool                  S       longstr      str (bytes if not UTF-8)
  b B     byte, unsigned  int                   x       binary       bytes
  s u     short, unsigned int                   T       timestamp    int (seconds)
  I i     signed, unsigned 32-bit int           D       decimal      Decimal
  l L     long (64-bit signed)      int         A       array        list
  f d     float, double   float                 F       table        FieldTable
  V       void            None

Nesting is cut at MAX_DEPTH: RabbitMQ has no such limit, but a frame full of table headers would otherwise be a stack
of tens of thousands of calls. Malformed bytes raise ValueError; the caller turns it into a 502.
"""

from __future__ import annotations

import struct
from decimal import Decimal
from typing import Final

MAX_DEPTH: Final = 64

TYPE_NAMES: Final[dict[str, str]] = {
    "t": "bool",
    "b": "byte",
    "B": "unsignedbyte",
    "s": "short",
    "u": "unsignedshort",
    "I": "signedint",
    "i": "unsignedint",
    "l": "long",
    "L": "long",
    "f": "float",
    "d": "double",
    "D": "decimal",
    "S": "longstr",
    "A": "array",
    "T": "timestamp",
    "F": "table",
    "V": "void",
    "x": "binary",
}
INTEGER_TYPES: Final = frozenset("bBsuIilL")

_FIXED: Final[dict[str, struct.Struct]] = {
    "t": struct.Struct(">?"),
    "b": struct.Struct(">b"),
    "B": struct.Struct(">B"),
    "s": struct.Struct(">h"),
    "u": struct.Struct(">H"),
    "I": struct.Struct(">i"),
    "i": struct.Struct(">I"),
    "l": struct.Struct(">q"),
    "L": struct.Struct(">q"),
    "f": struct.Struct(">f"),
    "d": struct.Struct(">d"),
    "T": struct.Struct(">Q"),
}


class FieldTable(dict[str, object]):
    """A dict with `types` (key -> letter, "l" for "L" too) and `raw` (the encoded table without its length)."""

    def __init__(self) -> None:
        super().__init__()
        self.types: dict[str, str] = {}
        self.raw: bytes = b""

    def type_name(self, key: str) -> str:
        """The AMQP name of the type of `key`'s value, "none" when it is absent."""
        letter = self.types.get(key)
        return "none" if letter is None else TYPE_NAMES[letter]

    def is_integer(self, key: str) -> bool:
        letter = self.types.get(key)
        return letter is not None and letter in INTEGER_TYPES

    def same_as(self, other: FieldTable) -> bool:
        """True when keys, types and values are equal, whatever the order."""
        return self.raw == other.raw or (self.types == other.types and dict(self) == dict(other))


def decode_table(data: bytes, pos: int, depth: int = 0) -> tuple[FieldTable, int]:
    """Reads the table whose 4-byte length stands at `pos`; returns it and the position behind it.

    Raises ValueError when the bytes are not a table.
    """
    if depth > MAX_DEPTH:
        raise ValueError(f"field table nested deeper than {MAX_DEPTH}")
    start, end = _extent(data, pos)
    table = FieldTable()
    table.raw = data[start:end]
    at = start
    while at < end:
        key_end = at + 1 + data[at]
        if key_end >= end:
            raise ValueError("field table key runs over the end of its table")
        key = data[at + 1 : key_end].decode("utf-8")
        letter = chr(data[key_end])
        value, at = _decode_value(data, key_end, end, depth)
        table[key] = value
        table.types[key] = "l" if letter == "L" else letter  # two letters of one type
    return table, end


def _extent(data: bytes, pos: int) -> tuple[int, int]:
    """The start and the end of the bytes that a 4-byte length at `pos` announces."""
    if pos + 4 > len(data):
        raise ValueError("length is cut off")
    start = pos + 4
    end = start + int.from_bytes(data[pos:start], "big")
    if end > len(data):
        raise ValueError("length points behind the end of the frame")
    return start, end


def _decode_value(data: bytes, pos: int, limit: int, depth: int) -> tuple[object, int]:
    """Reads the type letter at `pos` and the value behind it."""
    letter = chr(data[pos])
    pos += 1
    fixed = _FIXED.get(letter)
    if fixed is not None:
        end = pos + fixed.size
        if end > limit:
            raise ValueError("field value is cut off")
        return fixed.unpack_from(data, pos)[0], end
    if letter == "V":
        return None, pos
    if letter == "D":
        if pos + 5 > limit:
            raise ValueError("field value is cut off")
        return Decimal(int.from_bytes(data[pos + 1 : pos + 5], "big", signed=True)).scaleb(-data[pos]), pos + 5
    if letter == "F":
        table, end = decode_table(data, pos, depth + 1)
        return _inside(table, end, limit), end
    start, end = _extent(data, pos)
    if letter == "S":
        return _inside(_text_or_bytes(data[start:end]), end, limit), end
    if letter == "x":
        return _inside(data[start:end], end, limit), end
    if letter == "A":
        if depth >= MAX_DEPTH:
            raise ValueError(f"field array nested deeper than {MAX_DEPTH}")
        _inside(None, end, limit)
        items: list[object] = []
        while start < end:
            item, start = _decode_value(data, start, end, depth + 1)
            items.append(item)
        return items, end
    raise ValueError(f"unknown field type {letter!r}")


def _inside(value: object, end: int, limit: int) -> object:
    if end > limit:
        raise ValueError("field value runs over the end of its table")
    return value


def _text_or_bytes(raw: bytes) -> object:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        return raw


def encode_table(values: dict[str, object]) -> bytes:
    """The wire form, length included. Types are chosen from the Python values: int -> l, str -> S, and so on.

    A `FieldTable` keeps its own bytes.
    """
    body = values.raw if isinstance(values, FieldTable) and values.raw else _encode_items(values)
    return len(body).to_bytes(4, "big") + body


def field_table(values: dict[str, object]) -> FieldTable:
    """A `FieldTable` of plain values, as if it had come over the wire."""
    return decode_table(encode_table(values), 0)[0]


def _encode_items(values: dict[str, object]) -> bytes:
    parts: list[bytes] = []
    for key, value in values.items():
        name = key.encode("utf-8")
        if len(name) > 255:
            raise ValueError("field table key is longer than 255 octets")
        parts.append(bytes([len(name)]) + name + encode_value(value))
    return b"".join(parts)


def encode_value(value: object) -> bytes:
    """The bytes of a value with its type letter before them."""
    if value is None:
        return b"V"
    if isinstance(value, bool):
        return b"t\x01" if value else b"t\x00"
    if isinstance(value, int):
        return b"l" + value.to_bytes(8, "big", signed=True)
    if isinstance(value, float):
        return b"d" + struct.pack(">d", value)
    if isinstance(value, str):
        raw = value.encode("utf-8")
        return b"S" + len(raw).to_bytes(4, "big") + raw
    if isinstance(value, bytes):
        return b"x" + len(value).to_bytes(4, "big") + value
    if isinstance(value, dict):
        return b"F" + encode_table(value)
    if isinstance(value, list):
        body = b"".join([encode_value(item) for item in value])
        return b"A" + len(body).to_bytes(4, "big") + body
    raise ValueError(f"no field type for {type(value).__name__}")
