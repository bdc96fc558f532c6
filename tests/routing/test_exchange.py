"""What every exchange type does alike: bindings made, repeated and removed, and what an exchange knows about itself."""

from __future__ import annotations

import pytest

from rabbitpy_broker.destination import EXCHANGE, QUEUE, Destination
from rabbitpy_broker.routing.exchange import Exchange
from rabbitpy_broker.routing.resolve import EXCHANGE_TYPES, make_exchange
from rabbitpy_broker.wire.field_table import FieldTable, field_table

NONE = FieldTable()


@pytest.fixture(params=("direct", "fanout", "headers", "topic"))
def exchange(request: pytest.FixtureRequest) -> Exchange:
    return make_exchange(request.param, "source", True, False, False, NONE)


@pytest.fixture
def queue() -> Destination:
    return Destination(QUEUE, "name")


def matched(exchange: Exchange, routing_key: str = "key") -> list[Destination]:
    found: dict[Destination, None] = {}
    exchange.match(routing_key, None, found)
    return list(found)


def test_types_are_those_of_the_specification_and_of_the_usual_plugins() -> None:
    plugins = {"x-consistent-hash", "x-delayed-message", "x-random", "x-super-stream"}
    assert set(EXCHANGE_TYPES) == {"direct", "fanout", "topic", "headers"} | plugins


@pytest.mark.parametrize("type", ("direct", "fanout", "headers", "topic"))
def test_exchange_keeps_what_it_was_declared_with(type: str) -> None:
    arguments = field_table({"alternate-exchange": "spare"})
    exchange = make_exchange(type, "source", True, True, True, arguments)
    assert (exchange.kind, exchange.name, exchange.type) == (EXCHANGE, "source", type)
    assert (exchange.durable, exchange.auto_delete, exchange.internal) == (True, True, True)
    assert exchange.arguments is arguments
    assert exchange.alternate == "spare"
    assert exchange.cacheable == (type != "headers")


def test_new_exchange_has_no_bindings(exchange: Exchange) -> None:
    assert (exchange.alternate, exchange.durable, exchange.auto_delete) == ("", True, False)
    assert not exchange.had_binding
    assert (exchange.binding_count(), exchange.bindings(), matched(exchange)) == (0, [], [])


def test_binding_stands_at_both_ends(exchange: Exchange, queue: Destination) -> None:
    arguments = field_table({"x-match": "all"})
    binding = exchange.bind(queue, "key", arguments, True)
    assert binding is not None
    assert (binding.source, binding.destination, binding.binding_key) == (exchange, queue, "key")
    assert binding.arguments is arguments
    assert binding.durable
    assert exchange.bindings() == list(queue.incoming) == [binding]
    assert exchange.had_binding
    assert matched(exchange) == [queue]


def test_equal_binding_is_not_made_twice(exchange: Exchange, queue: Destination) -> None:
    assert exchange.bind(queue, "key", field_table({"a": 1, "b": "2"}), True) is not None
    assert exchange.bind(queue, "key", field_table({"b": "2", "a": 1}), True) is None
    assert (exchange.binding_count(), len(queue.incoming)) == (1, 1)


@pytest.mark.parametrize("other", [{}, {"a": 2}, {"a": 1.0}, {"a": True}, {"b": 1}, {"a": 1, "b": 1}, {"a": [1]}])
def test_other_arguments_are_another_binding(
    exchange: Exchange, queue: Destination, other: dict[str, object]
) -> None:
    first = exchange.bind(queue, "key", field_table({"a": 1}), False)
    second = exchange.bind(queue, "key", field_table(other), False)
    assert second is not None
    assert exchange.bindings() == [first, second]
    assert exchange.unbind(queue, "key", field_table({"a": 1})) is first
    assert exchange.bindings() == list(queue.incoming) == [second]


def test_queue_and_exchange_of_one_name_are_two_destinations(exchange: Exchange, queue: Destination) -> None:
    namesake = make_exchange("fanout", queue.name, False, False, False, NONE)
    assert exchange.bind(queue, "key", NONE, False) is not None
    assert exchange.bind(namesake, "key", NONE, False) is not None
    assert matched(exchange) == [queue, namesake]


def test_destination_of_two_matching_bindings_stays_until_both_are_gone(exchange: Exchange, queue: Destination) -> None:
    exchange.bind(queue, "key", NONE, False)
    exchange.bind(queue, "key", field_table({"x-second": 1}), False)
    assert matched(exchange) == [queue]
    exchange.unbind(queue, "key", NONE)
    assert matched(exchange) == [queue]
    exchange.unbind(queue, "key", field_table({"x-second": 1}))
    assert matched(exchange) == []


def test_unbinding_returns_the_binding(exchange: Exchange, queue: Destination) -> None:
    binding = exchange.bind(queue, "key", NONE, False)
    assert exchange.unbind(queue, "key", NONE) is binding
    assert (exchange.binding_count(), queue.incoming, matched(exchange)) == (0, {}, [])
    assert exchange.had_binding


def test_unbinding_what_is_not_bound_does_nothing(exchange: Exchange, queue: Destination) -> None:
    exchange.bind(queue, "key", NONE, False)
    assert exchange.unbind(queue, "another", NONE) is None
    assert exchange.unbind(queue, "key", field_table({"a": 1})) is None
    assert exchange.unbind(Destination(QUEUE, "other"), "key", NONE) is None
    assert exchange.binding_count() == 1


def test_unbinding_does_not_look_at_x_match(exchange: Exchange, queue: Destination) -> None:
    assert exchange.unbind(queue, "key", field_table({"x-match": "nonsense"})) is None


def test_removing_takes_exactly_that_binding(exchange: Exchange, queue: Destination) -> None:
    other = Destination(QUEUE, "other")
    binding = exchange.bind(queue, "key", NONE, False)
    kept = exchange.bind(other, "key", NONE, False)
    assert binding is not None
    exchange.remove(binding)
    assert exchange.bindings() == [kept]
    assert queue.incoming == {}
    assert matched(exchange) == [other]


def test_exchange_destinations_are_known_once_each(exchange: Exchange, queue: Destination) -> None:
    target = make_exchange("topic", "target", False, False, False, NONE)
    exchange.bind(queue, "key", NONE, False)
    exchange.bind(target, "one", NONE, False)
    exchange.bind(target, "two", NONE, False)
    assert exchange.exchange_destinations() == [target]
    exchange.unbind(target, "one", NONE)
    assert exchange.exchange_destinations() == [target]
    exchange.unbind(target, "two", NONE)
    assert exchange.exchange_destinations() == []


def test_exchange_may_be_bound_to_itself(exchange: Exchange) -> None:
    binding = exchange.bind(exchange, "key", NONE, False)
    assert exchange.bindings() == list(exchange.incoming) == [binding]
    assert exchange.unbind(exchange, "key", NONE) is binding
    assert exchange.incoming == {}


def test_argument_beats_policy_for_the_alternate_exchange() -> None:
    plain = make_exchange("direct", "plain", True, False, False, NONE)
    assert plain.alternate == ""
    plain.apply_policy({"alternate-exchange": "by-policy"})
    assert plain.alternate == "by-policy"
    plain.apply_policy({})
    assert plain.alternate == ""
    own = make_exchange("direct", "own", True, False, False, field_table({"alternate-exchange": "by-argument"}))
    own.apply_policy({"alternate-exchange": "by-policy"})
    assert own.alternate == "by-argument"


def test_match_adds_to_what_was_found_before(exchange: Exchange, queue: Destination) -> None:
    other = Destination(QUEUE, "other")
    exchange.bind(other, "key", NONE, False)
    exchange.bind(queue, "key", NONE, False)
    found: dict[Destination, None] = {queue: None}
    exchange.match("key", None, found)
    assert list(found) == [queue, other]
