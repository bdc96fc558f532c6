"""Values as RabbitMQ's error texts show them: in Erlang's notation, in one line, where RabbitMQ breaks long ones.

`erlang_text` shows JSON values, `as_erlang` those of field tables.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

# How Erlang shows what cannot stand for itself between quotes.
_ESCAPES: Final = {
    8: "\\b", 9: "\\t", 10: "\\n", 11: "\\v", 12: "\\f", 13: "\\r", 27: "\\e", 34: '\\"', 92: "\\\\",
}  # fmt: skip
_ASCII: Final = frozenset([*_ESCAPES, *range(32, 127)])
_LATIN: Final = _ASCII | frozenset(range(160, 256))


def erlang_text(value: object) -> str:
    """A value inside a policy or a limit; an object is a map."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return "[" + ",".join(map(erlang_text, value)) + "]"
    if isinstance(value, dict):
        return "#{" + ",".join(f"{erlang_text(key)} => {erlang_text(value[key])}" for key in sorted(value)) + "}"
    if not isinstance(value, str):
        return str(value)
    return _binary(value.encode("utf-8", "surrogatepass"), _ASCII)


def erlang_pairs(value: Mapping[str, object]) -> str:
    """A policy's definition or limits themselves: a list of pairs, by name."""
    return "[" + ",".join(f"{{{erlang_text(name)},{erlang_text(value[name])}}}" for name in sorted(value)) + "]"


def as_erlang(value: object) -> str:
    """A value of a field table. Arrays and tables are not worth a printer of Erlang terms."""
    if value is None:
        return "undefined"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (list, dict)):
        return "[...]" if value else "[]"
    if not isinstance(value, (str, bytes)):
        return str(value)
    return _binary(value.encode("utf-8") if isinstance(value, str) else value, _LATIN)


def _binary(octets: bytes, printable: frozenset[int]) -> str:
    if not octets:
        return "<<>>"
    if not printable.issuperset(octets):
        return "<<" + ",".join(map(str, octets)) + ">>"
    return '<<"' + octets.decode("utf-8", "replace").translate(_ESCAPES) + '">>'
