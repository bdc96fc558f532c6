"""The ring of a consistent hash exchange: a queue that comes or goes moves only the keys that it gets or had."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from rabbitpy_broker.destination import QUEUE, Destination
from rabbitpy_broker.routing.consistent_hash import MAX_POINTS, POINTS, ConsistentHashExchange
from rabbitpy_broker.wire.field_table import FieldTable

NONE = FieldTable()
KEYS = [f"key.{n}" for n in range(1_000)]
quick = settings(derandomize=True, deadline=None, max_examples=30)
weights = st.dictionaries(st.text("abcdefgh", min_size=1, max_size=3), st.integers(1, 20), min_size=1, max_size=12)


def owners(exchange: ConsistentHashExchange) -> list[str]:
    result: list[str] = []
    for key in KEYS:
        found: dict[Destination, None] = {}
        exchange.match(key, None, found)
        result += [queue.name for queue in found]
    return result


def exchange_of(given_weights: dict[str, int]) -> ConsistentHashExchange:
    exchange = ConsistentHashExchange("source", False, False, False, NONE)
    for name, weight in given_weights.items():
        exchange.bind(Destination(QUEUE, name), str(weight), NONE, False)
    return exchange


@quick
@given(weights, st.integers(1, 20))
def test_a_queue_that_comes_takes_only_its_share(bound: dict[str, int], weight: int) -> None:
    exchange = exchange_of(bound)
    before = owners(exchange)
    newcomer = Destination(QUEUE, "newcomer")
    exchange.bind(newcomer, str(weight), NONE, False)
    after = owners(exchange)
    assert len(before) == len(after) == len(KEYS)
    moved = [now for was, now in zip(before, after, strict=True) if was != now]
    assert set(moved) <= {"newcomer"}
    assert len(moved) <= len(KEYS) * weight / (sum(bound.values()) + weight) * 1.5 + 30
    exchange.unbind(newcomer, str(weight), NONE)
    assert owners(exchange) == before


@quick
@given(weights)
def test_every_message_goes_to_one_queue_and_shares_follow_weights(bound: dict[str, int]) -> None:
    result = owners(exchange_of(bound))
    assert len(result) == len(KEYS)
    total = sum(bound.values())
    assert total * POINTS <= MAX_POINTS
    for name, weight in bound.items():
        expected = len(KEYS) * weight / total
        assert abs(result.count(name) - expected) <= expected * 0.5 + 30
