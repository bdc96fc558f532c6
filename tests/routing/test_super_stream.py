"""Super streams: the hash that RabbitMQ's clients compute chooses the partition, by its number."""

from __future__ import annotations

from collections import Counter

import pytest

from rabbitpy_broker.destination import QUEUE, Destination
from rabbitpy_broker.routing.super_stream import PARTITION_ORDER, SEED, SuperStreamExchange, murmur3
from rabbitpy_broker.wire.field_table import FieldTable, field_table

NONE = FieldTable()


def match(exchange: SuperStreamExchange, key: str) -> list[str]:
    found: dict[Destination, None] = {}
    exchange.match(key, None, found)
    return [queue.name for queue in found]


def with_partitions(*orders: int | None) -> SuperStreamExchange:
    """Partitions named by their order, bound one after the other."""
    exchange = SuperStreamExchange("source", True, False, False, NONE)
    for order in orders:
        arguments = NONE if order is None else field_table({PARTITION_ORDER: order})
        exchange.bind(Destination(QUEUE, f"p{order}"), str(order), arguments, True)
    return exchange


@pytest.mark.parametrize(
    ("data", "seed", "value"),
    [
        (b"", 0, 0),
        (b"", 1, 0x514E28B7),
        (b"", 0xFFFFFFFF, 0x81F16F39),
        (b"\xff\xff\xff\xff", 0, 0x76293B50),
        (b"\x21\x43\x65\x87", 0x5082EDEE, 0x2362F9DE),
        (b"\x21\x43\x65", 0, 0x7E4A8634),
        (b"\x21\x43", 0, 0xA0F7B07A),
        (b"\x21", 0, 0x72661CF4),
        (b"Hello, world!", 0x9747B28C, 0x24884CBA),
        (b"The quick brown fox jumps over the lazy dog", 0x9747B28C, 0x2FA826CD),
    ],
)
def test_the_hash_is_murmur3(data: bytes, seed: int, value: int) -> None:
    """Values that the implementations of it are commonly tried with."""
    assert murmur3(data, seed) == value


def test_partition_is_the_hash_modulo_their_number() -> None:
    exchange = with_partitions(2, 0, 1)
    for number in range(100):
        key = f"key {number}"
        assert match(exchange, key) == [f"p{murmur3(key.encode(), SEED) % 3}"]


def test_keys_are_spread_over_all_partitions() -> None:
    exchange = with_partitions(*range(5))
    counts = Counter(match(exchange, str(number))[0] for number in range(5_000))
    assert len(counts) == 5
    assert min(counts.values()) > 800


def test_partitions_without_a_number_come_last_in_the_order_of_binding() -> None:
    exchange = with_partitions(None, 1, 0)
    assert [partition.name for partition in exchange.partitions()] == ["p0", "p1", "pNone"]


def test_without_partitions_nothing_is_found() -> None:
    exchange = with_partitions(0)
    assert match(exchange, "x") == ["p0"]
    exchange.remove(exchange.bindings()[0])
    assert match(exchange, "x") == []
