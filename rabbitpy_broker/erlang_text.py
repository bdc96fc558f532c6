"""JSON values as RabbitMQ's error texts show them: in Erlang's notation, in one line, where RabbitMQ breaks long ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

_PRINTABLE: Final = frozenset(range(0x20, 0x7F)) | frozenset(b"\b\t\n\v\f\r\x1b")
_ESCAPES: Final = str.maketrans(
    {'"': '\\"', "\\": "\\\\", "\b": "\\b", "\t": "\\t", "\n": "\\n", "\v": "\\v", "\f": "\\f", "\r": "\\r", "\x1b": "\\e"}
)


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
    octets = value.encode("utf-8", "surrogatepass")
    if not octets:
        return "<<>>"
    if not _PRINTABLE.issuperset(octets):
        return "<<" + ",".join(map(str, octets)) + ">>"
    return '<<"' + value.translate(_ESCAPES) + '">>'


def erlang_pairs(value: Mapping[str, object]) -> str:
    """A policy's definition or limits themselves: a list of pairs, by name."""
    return "[" + ",".join(f"{{{erlang_text(name)},{erlang_text(value[name])}}}" for name in sorted(value)) + "]"
