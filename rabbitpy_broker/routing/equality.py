"""The equality of arguments and of header values, as clients know it from RabbitMQ.

There are two questions, and they have different answers:

- Are two bindings the same one? They are when their arguments have the same keys, types and values, in any order.
  {a: int 1} and {a: long 1} are two bindings.
- Does a header have the value that a binding asks for? Numbers are compared by value: any integer type, float, double
  and
  timestamp. Strings and binaries are compared by their octets. A bool equals only a bool. Arrays, tables and decimals
  must be the same to the octet: the types and the order inside them count, and 1.0 is not 1.00.

Both work on the encoded values, because the decoded ones have lost the types inside arrays. So a table must have come
over the wire, or be made as if it had (`field_table`).
"""

from __future__ import annotations

from typing import Final

from rabbitpy_broker.wire.field_table import FieldTable, _decode_value

_NOTHING: Final[frozenset[tuple[str, bytes]]] = frozenset()


def identity(arguments: FieldTable) -> frozenset[tuple[str, bytes]]:
    """A value that is the same for the arguments of equal bindings, and only for those."""
    return frozenset(_encoded_values(arguments).items()) if arguments else _NOTHING


def comparable(table: FieldTable, key: str) -> object:
    """A value that is the same for equal header values: a number, or octets that begin with a type letter."""
    value = table[key]
    if isinstance(value, str):
        return b"S" + value.encode("utf-8")
    if isinstance(value, bytes):
        return b"S" + value
    if isinstance(value, bool):
        return b"t1" if value else b"t0"
    if isinstance(value, (int, float)):
        return value
    return _encoded_values(table)[key]


def _encoded_values(table: FieldTable) -> dict[str, bytes]:
    """Each key's value as it came, type letter first."""
    raw = table.raw
    encoded: dict[str, bytes] = {}
    at = 0
    while at < len(raw):
        start = at + 1 + raw[at]
        key = raw[at + 1 : start].decode("utf-8")
        at = _decode_value(raw, start, len(raw), 0)[1]
        value = raw[start:at]
        encoded[key] = b"l" + value[1:] if value.startswith(b"L") else value  # two letters of one type
    return encoded
