"""Consistent hash: what is hashed, what a weight may be, and that the ring is kept from one message to the next."""

from __future__ import annotations

from collections import Counter

import pytest

from content_headers import payload_of
from rabbitpy_broker.destination import QUEUE, Destination
from rabbitpy_broker.errors import PRECONDITION_FAILED, ChannelClosed
from rabbitpy_broker.routing.consistent_hash import MAX_POINTS, POINTS, ConsistentHashExchange, points_of
from rabbitpy_broker.wire.content_header import ContentHeader
from rabbitpy_broker.wire.field_table import FieldTable, field_table

NONE = FieldTable()
QUEUES = [Destination(QUEUE, name) for name in "abc"]


def exchange(arguments: dict[str, object] | None = None, weights: tuple[str, ...] = ("1", "1", "1")) -> ConsistentHashExchange:
    made = ConsistentHashExchange("source", False, False, False, field_table(arguments or {}))
    for queue, weight in zip(QUEUES, weights, strict=False):
        made.bind(queue, weight, NONE, False)
    return made


def target(source: ConsistentHashExchange, key: str = "", **properties: object) -> str:
    found: dict[Destination, None] = {}
    source.match(key, ContentHeader(payload_of(**properties)), found)
    assert len(found) == 1
    return next(iter(found)).name


def test_without_bindings_nothing_is_found() -> None:
    found: dict[Destination, None] = {}
    exchange(weights=()).match("key", None, found)
    assert found == {}


def test_key_decides_whatever_the_order_of_binding() -> None:
    one, other = exchange(), exchange(weights=())
    for queue in reversed(QUEUES):
        other.bind(queue, "1", NONE, False)
    keys = [f"key {n}" for n in range(200)]
    assert [target(one, key) for key in keys] == [target(other, key) for key in keys]
    assert {target(one, key) for key in keys} == {"a", "b", "c"}


@pytest.mark.parametrize("weights", [("1", "2", "5"), ("10", "20", "50"), ("1000000", "2000000", "5000000")])
def test_weights_are_shares(weights: tuple[str, ...]) -> None:
    source = exchange(weights=weights)
    counts = Counter(target(source, str(n)) for n in range(8_000))
    assert counts["a"] == pytest.approx(1_000, rel=0.3)
    assert counts["b"] == pytest.approx(2_000, rel=0.3)
    assert counts["c"] == pytest.approx(5_000, rel=0.3)


def test_weights_of_several_bindings_add_up() -> None:
    twice = exchange(weights=("1", "2"))
    twice.bind(QUEUES[0], "4", NONE, False)
    once = exchange(weights=("5", "2"))
    keys = [str(n) for n in range(500)]
    assert [target(twice, key) for key in keys] == [target(once, key) for key in keys]
    assert twice.unbind(QUEUES[0], "4", NONE) is not None
    less = exchange(weights=("1", "2"))
    assert [target(twice, key) for key in keys] == [target(less, key) for key in keys]


def test_huge_weights_cost_no_more_than_the_largest_ring() -> None:
    source = exchange(weights=("9" * 255, "1"))
    assert target(source, "any") == "a"
    assert POINTS <= len(source._ring) <= MAX_POINTS + len(QUEUES)


def test_header_is_hashed_with_its_type() -> None:
    source = exchange({"hash-header": "id"})
    assert not source.cacheable
    targets = [target(source, str(n), headers={"id": "same", "n": n}) for n in range(50)]
    assert len(set(targets)) == 1
    assert {target(source, headers={"id": str(n)}) for n in range(50)} == {"a", "b", "c"}
    assert {target(source, headers={"id": n}) for n in range(50)} == {"a", "b", "c"}
    assert {target(source, headers={"id": [n]}) for n in range(50)} == {"a", "b", "c"}


@pytest.mark.parametrize("name", ["message_id", "correlation_id"])
def test_properties_are_hashed(name: str) -> None:
    source = exchange({"hash-property": name})
    assert not source.cacheable
    assert len({target(source, str(n), **{name: "same"}) for n in range(50)}) == 1
    assert {target(source, **{name: str(n)}) for n in range(50)} == {"a", "b", "c"}


def test_timestamp_is_hashed() -> None:
    source = exchange({"hash-property": "timestamp"})
    from_stamp = {target(source, timestamp=1_700_000_000 + n) for n in range(50)}
    assert from_stamp == {"a", "b", "c"}


@pytest.mark.parametrize("arguments", [{"hash-header": "id"}, {"hash-property": "message_id"}, {"hash-property": "timestamp"}])
def test_messages_without_it_go_all_to_one_queue(arguments: dict[str, object]) -> None:
    source = exchange(arguments)
    assert len({target(source, str(n)) for n in range(50)}) == 1
    assert len({target(source, str(n), headers={"other": n}) for n in range(50)}) == 1


@pytest.mark.parametrize(
    "key, text",
    [
        ("", "The binding key must be an integer: <<>>"),
        ("a", 'The binding key must be an integer: <<"a">>'),
        ("1.5", 'The binding key must be an integer: <<"1.5">>'),
        (" 1", 'The binding key must be an integer: <<" 1">>'),
        ("\u0661", 'The binding key must be an integer: <<"\u0661">>'),
        ("0", "The binding key must be greater than 0"),
        ("-1", "The binding key must be greater than 0"),
    ],
)
def test_binding_key_must_be_a_weight(key: str, text: str) -> None:
    with pytest.raises(ChannelClosed) as caught:
        exchange(weights=()).bind(QUEUES[0], key, NONE, False)
    assert (caught.value.code, caught.value.text) == (PRECONDITION_FAILED, text)


@pytest.mark.parametrize("key", ["1", "+3", "01"])
def test_weights_are_written_as_erlang_reads_them(key: str) -> None:
    assert target(exchange(weights=(key,))) == "a"


@pytest.mark.parametrize(
    "arguments, text",
    [
        ({"hash-property": "app_id"}, "Unsupported property: app_id"),
        ({"hash-property": ""}, "Unsupported property: "),
        ({"hash-header": "a", "hash-property": "message_id"}, "hash-header and hash-property are mutually exclusive"),
        ({"hash-header": 5}, "hash-header must be a longstr, not long"),
        ({"hash-property": [1]}, "hash-property must be a longstr, not array"),
    ],
)
def test_arguments_are_checked(arguments: dict[str, object], text: str) -> None:
    with pytest.raises(ChannelClosed) as caught:
        exchange(arguments)
    assert (caught.value.code, caught.value.text) == (PRECONDITION_FAILED, text)


def test_points_of_a_destination_are_the_first_of_one_row() -> None:
    assert points_of(QUEUES[0], 5) == points_of(QUEUES[0], 100)[:5]
    assert len(set(points_of(QUEUES[0], 1_000) + points_of(QUEUES[1], 1_000))) == 2_000
