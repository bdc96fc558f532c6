"""How RabbitMQ shows a value in its error texts."""

from __future__ import annotations

from typing import Final

# How Erlang shows what cannot stand for itself between quotes; every other octet of these ranges is shown as it is.
_ESCAPES: Final = {
    8: "\\b", 9: "\\t", 10: "\\n", 11: "\\v", 12: "\\f", 13: "\\r", 27: "\\e", 34: '\\"', 92: "\\\\",
}  # fmt: skip
_PRINTABLE: Final = frozenset([*_ESCAPES, *range(32, 127), *range(160, 256)])


def as_erlang(value: object) -> str:
    """A value as RabbitMQ's error texts show it. Arrays and tables are not worth a printer of Erlang terms."""
    if value is None:
        return "undefined"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (list, dict)):
        return "[...]" if value else "[]"
    if not isinstance(value, (str, bytes)):
        return str(value)
    octets = value.encode("utf-8") if isinstance(value, str) else value
    if not octets:
        return "<<>>"
    if not _PRINTABLE.issuperset(octets):
        return "<<" + ",".join([str(octet) for octet in octets]) + ">>"
    return '<<"' + octets.decode("utf-8", "replace").translate(_ESCAPES) + '">>'
