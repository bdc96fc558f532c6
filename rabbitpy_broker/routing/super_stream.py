"""Super streams (x-super-stream): messages with the same routing key go to the same partition, a stream of several.

The hash of the key, murmur3 of 32 bits with a seed of its own, modulo the number of partitions is the partition's number:
RabbitMQ's clients of super streams compute the same, so that both may publish to one. The number of a partition comes from
the argument `x-stream-partition-order` of its binding; without one it is after those that have one, in the order of binding.

What must stay true: who adds a partition moves most keys, so partitions are made once.
"""

from __future__ import annotations

from typing import Final

from librt.strings import read_i32_le
from mypy_extensions import i64

from rabbitpy_broker.destination import Destination
from rabbitpy_broker.routing.exchange import Binding, Exchange
from rabbitpy_broker.wire.content_header import ContentHeader
from rabbitpy_broker.wire.field_table import FieldTable

SEED: Final[i64] = 104_729
PARTITION_ORDER: Final = "x-stream-partition-order"
_UNORDERED: Final = 1 << 63
_MASK: Final[i64] = 0xFFFFFFFF
_C1: Final[i64] = 0xCC9E2D51
_C2: Final[i64] = 0x1B873593


class SuperStreamExchange(Exchange):
    """A queue or exchange that is bound twice is two partitions."""

    def __init__(self, name: str, durable: bool, auto_delete: bool, internal: bool, arguments: FieldTable) -> None:
        super().__init__(name, "x-super-stream", durable, auto_delete, internal, arguments)
        self._partitions: list[Binding] = []

    def added(self, binding: Binding) -> None:
        self._partitions.append(binding)
        self._partitions.sort(key=_order)

    def removed(self, binding: Binding) -> None:
        self._partitions.remove(binding)

    def match(self, routing_key: str, header: ContentHeader | None, found: dict[Destination, None]) -> None:
        partitions = self._partitions
        if partitions:
            number = murmur3(routing_key.encode("utf-8"), SEED) % len(partitions)
            found[partitions[number].destination] = None

    def partitions(self) -> list[Destination]:
        """In the order of their numbers."""
        return [binding.destination for binding in self._partitions]


def _order(binding: Binding) -> int:
    order = binding.arguments.get(PARTITION_ORDER)
    return order if isinstance(order, int) else _UNORDERED


def murmur3(data: bytes, seed: i64) -> i64:
    """MurmurHash3, x86, 32 bits."""
    size: i64 = len(data)
    result = seed
    at: i64 = 0
    while at + 4 <= size:
        result = (_rotated(result ^ _mixed(i64(read_i32_le(data, at)) & _MASK), 13) * 5 + 0xE6546B64) & _MASK
        at += 4
    if at < size:
        result ^= _mixed(int.from_bytes(data[at:], "little"))
    result ^= size
    result = _times(result ^ (result >> 16), 0x85EBCA6B)
    result = _times(result ^ (result >> 13), 0xC2B2AE35)
    return result ^ (result >> 16)


def _mixed(block: i64) -> i64:
    return _times(_rotated(_times(block, _C1), 15), _C2)


def _times(one: i64, other: i64) -> i64:
    """The low 32 bits of a product of two numbers of 32 bits, in two steps that 63 bits hold."""
    return (one * (other & 0xFFFF) + (((one * (other >> 16)) & 0xFFFF) << 16)) & _MASK


def _rotated(value: i64, by: i64) -> i64:
    return ((value << by) | (value >> (32 - by))) & _MASK
