"""Consistent hash (x-consistent-hash): messages with the same key go to the same destination, whatever its name.

The key is the routing key, or a header or property that the arguments `hash-header` and `hash-property` name; the
binding key is the weight of the destination, and each message goes to one destination.

  ring      0 ..a...b..a......c..a..b...c.. 2^64     a point belongs to a destination; points are hashes of its name
  message   hash of its key: it goes to the owner of the first point that is not before it

A destination has POINTS points for each unit of weight. They are the first points of an endless sequence that its name
determines. So a destination that comes or goes moves only the keys next to its own points, and neither the order of
binding nor a restart moves any. Beyond MAX_POINTS in all, every destination keeps half of its points, or a quarter, and
so on; each such step moves keys once. Weights are shares and may be as large as anybody likes.

The ring is made when the first message needs it, so that a thousand bindings made in a row cost one ring.
"""

from __future__ import annotations

from bisect import bisect_left
from hashlib import blake2b
from struct import Struct
from typing import Final

from mypy_extensions import i64

from rabbitpy_broker.destination import Destination
from rabbitpy_broker.erlang_text import as_erlang
from rabbitpy_broker.errors import PRECONDITION_FAILED, ChannelClosed
from rabbitpy_broker.routing.exchange import Binding, Exchange
from rabbitpy_broker.wire.content_header import ContentHeader
from rabbitpy_broker.wire.field_table import FieldTable
from rabbitpy_broker.wire.properties import CORRELATION_ID, MESSAGE_ID

POINTS: Final = 128
MAX_POINTS: Final = 131_072
_EIGHT: Final = Struct(">8Q")
PROPERTIES: Final = ("correlation_id", "message_id", "timestamp")


class ConsistentHashExchange(Exchange):
    """Cacheable only while the routing key is the hashed key. A message without the header or property has an empty key."""

    def __init__(self, name: str, durable: bool, auto_delete: bool, internal: bool, arguments: FieldTable) -> None:
        super().__init__(name, "x-consistent-hash", durable, auto_delete, internal, arguments)
        self._header = _text_argument("hash-header", arguments)
        self._property = _text_argument("hash-property", arguments)
        by_header, by_property = "hash-header" in arguments, "hash-property" in arguments
        if by_header and by_property:
            raise ChannelClosed(PRECONDITION_FAILED, "hash-header and hash-property are mutually exclusive")
        if by_property and self._property not in PROPERTIES:
            raise ChannelClosed(PRECONDITION_FAILED, f"Unsupported property: {self._property}")
        self._by_header = by_header
        self._header_key = self._header.encode("utf-8")
        self.cacheable = not by_header and not by_property
        self.by_each_key = False
        self._weights: dict[Destination, int] = {}
        self._ring: list[int] = []
        self._owners: list[Destination] = []
        self._stale = False

    def check_binding(self, binding_key: str, arguments: FieldTable) -> None:
        digits = binding_key[1:] if binding_key[:1] in ("+", "-") else binding_key
        if not (digits.isascii() and digits.isdigit()):
            raise ChannelClosed(
                PRECONDITION_FAILED, f"The binding key must be an integer: {as_erlang(binding_key)}"
            )
        if int(binding_key) < 1:
            raise ChannelClosed(PRECONDITION_FAILED, "The binding key must be greater than 0")

    def added(self, binding: Binding) -> None:
        target = binding.destination
        self._weights[target] = self._weights.get(target, 0) + int(binding.binding_key)
        self._stale = True

    def removed(self, binding: Binding) -> None:
        target = binding.destination
        self._weights[target] -= int(binding.binding_key)
        if not self._weights[target]:
            del self._weights[target]
        self._stale = True

    def match(self, routing_key: str, header: ContentHeader | None, found: dict[Destination, None]) -> None:
        if self._stale:
            self._make_ring()
        if not self._ring:
            return
        digest = blake2b(self._key(routing_key, header), digest_size=8).digest()
        place: i64 = bisect_left(self._ring, int.from_bytes(digest, "big"))
        found[self._owners[place if place < len(self._ring) else 0]] = None

    def _key(self, routing_key: str, header: ContentHeader | None) -> bytes:
        """The bytes that are hashed. A header counts with its type: 1 and "1" are two keys."""
        if self.cacheable:
            return routing_key.encode("utf-8")
        if header is None:
            return b""
        if self._by_header:
            return header.header(self._header_key)
        if self._property == "timestamp":
            stamp = header.timestamp()
            return b"" if stamp is None else str(stamp).encode("ascii")
        text = header.text(MESSAGE_ID if self._property == "message_id" else CORRELATION_ID)
        return b"" if text is None else text.encode("utf-8")

    def _make_ring(self) -> None:
        total = sum(self._weights.values()) * POINTS
        halvings = 0
        while total >> halvings > MAX_POINTS:
            halvings += 1
        owner_of: dict[int, Destination] = {}
        for owner, weight in self._weights.items():
            count = max((weight * POINTS) >> halvings, 1)
            owner_of.update(dict.fromkeys(points_of(owner, count), owner))
        self._ring = sorted(owner_of)
        self._owners = [owner_of[point] for point in self._ring]
        self._stale = False


def points_of(destination: Destination, count: int) -> list[int]:
    """The first `count` places of a destination on the ring."""
    name = f"{destination.kind}:{destination.name}:".encode()
    points: list[int] = []
    while len(points) < count:
        block = blake2b(name + str(len(points)).encode("ascii")).digest()
        points.extend(_EIGHT.unpack(block))
    return points[:count]


def _text_argument(key: str, arguments: FieldTable) -> str:
    """The value of an argument, "" when it is absent. Raises 406 where it is no longstr; RabbitMQ fails with 541 there."""
    value = arguments.get(key, "")
    if not isinstance(value, str):
        raise ChannelClosed(PRECONDITION_FAILED, f"{key} must be a longstr, not {arguments.type_name(key)}")
    return value
