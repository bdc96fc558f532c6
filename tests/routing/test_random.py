"""Random: one binding a message, each as often as the others."""

from __future__ import annotations

import random
from collections import Counter

from rabbitpy_broker.destination import QUEUE, Destination
from rabbitpy_broker.routing.random_choice import RandomExchange
from rabbitpy_broker.wire.field_table import FieldTable

NONE = FieldTable()
A, B = Destination(QUEUE, "a"), Destination(QUEUE, "b")


def seeded() -> RandomExchange:
    return RandomExchange("source", False, False, False, NONE, random.Random(1))


def match(exchange: RandomExchange, key: str = "") -> list[str]:
    found: dict[Destination, None] = {}
    exchange.match(key, None, found)
    return [queue.name for queue in found]


def test_without_bindings_nothing_is_found() -> None:
    assert match(seeded()) == []


def test_one_binding_is_picked_and_the_key_does_not_matter() -> None:
    exchange = seeded()
    exchange.bind(A, "only this", NONE, False)
    exchange.bind(B, "or that", NONE, False)
    picked = [match(exchange, "neither") for _ in range(100)]
    assert {len(found) for found in picked} == {1}
    assert {found[0] for found in picked} == {"a", "b"}


def test_each_binding_counts() -> None:
    exchange = seeded()
    for key in ("one", "two", "three"):
        exchange.bind(A, key, NONE, False)
    exchange.bind(B, "one", NONE, False)
    counts = Counter(match(exchange)[0] for _ in range(4_000))
    assert 2_800 < counts["a"] < 3_200
    for key in ("one", "two", "three"):
        exchange.unbind(A, key, NONE)
    assert {match(exchange)[0] for _ in range(100)} == {"b"}


def test_it_is_not_cacheable() -> None:
    assert not seeded().cacheable
