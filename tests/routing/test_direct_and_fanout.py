"""The two simple types: direct compares the whole key, fanout does not look at it."""

from __future__ import annotations

from rabbitpy_broker.destination import QUEUE, Destination
from rabbitpy_broker.routing.direct import DirectExchange
from rabbitpy_broker.routing.exchange import Exchange
from rabbitpy_broker.routing.fanout import FanoutExchange
from rabbitpy_broker.wire.field_table import FieldTable

NONE = FieldTable()
ONE, TWO = Destination(QUEUE, "one"), Destination(QUEUE, "two")


def matched(exchange: Exchange, routing_key: str) -> list[Destination]:
    found: dict[Destination, None] = {}
    exchange.match(routing_key, None, found)
    return list(found)


def direct() -> DirectExchange:
    return DirectExchange("source", False, False, False, NONE)


def test_direct_gives_every_destination_of_the_key() -> None:
    exchange = direct()
    exchange.bind(ONE, "a", NONE, False)
    exchange.bind(TWO, "a", NONE, False)
    exchange.bind(TWO, "b", NONE, False)
    assert matched(exchange, "a") == [ONE, TWO]
    assert matched(exchange, "b") == [TWO]
    assert matched(exchange, "c") == []


def test_direct_takes_wildcards_and_dots_as_they_are() -> None:
    exchange = direct()
    exchange.bind(ONE, "a.*", NONE, False)
    exchange.bind(TWO, "#", NONE, False)
    assert matched(exchange, "a.b") == []
    assert matched(exchange, "a.*") == [ONE]
    assert matched(exchange, "#") == [TWO]


def test_direct_knows_the_empty_key() -> None:
    exchange = direct()
    exchange.bind(ONE, "", NONE, False)
    assert matched(exchange, "") == [ONE]
    assert matched(exchange, "a") == []


def test_direct_keeps_nothing_of_keys_that_are_gone() -> None:
    exchange = direct()
    exchange.bind(ONE, "a", NONE, False)
    exchange.unbind(ONE, "a", NONE)
    assert exchange._by_key == {}


def test_fanout_gives_each_destination_once_for_any_key() -> None:
    exchange = FanoutExchange("source", False, False, False, NONE)
    for key in ("a", "b"):
        exchange.bind(ONE, key, NONE, False)
        exchange.bind(TWO, key, NONE, False)
    assert matched(exchange, "c") == [ONE, TWO]
    exchange.unbind(ONE, "a", NONE)
    assert matched(exchange, "") == [ONE, TWO]
    exchange.unbind(ONE, "b", NONE)
    assert matched(exchange, "") == [TWO]
