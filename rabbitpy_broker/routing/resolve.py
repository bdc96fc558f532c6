"""From an exchange to queues: along exchange-to-exchange bindings and to alternate exchanges.

Each exchange is asked once, so cycles end. Each queue is found once, however many ways lead to it. An exchange whose
own bindings choose nothing hands the message on to its alternate exchange; an alternate that does not exist is no
error.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from rabbitpy_broker.destination import EXCHANGE, Destination
from rabbitpy_broker.errors import COMMAND_INVALID, ConnectionClosed
from rabbitpy_broker.routing.consistent_hash import ConsistentHashExchange
from rabbitpy_broker.routing.delayed import DelayedExchange, inner_type
from rabbitpy_broker.routing.direct import DirectExchange
from rabbitpy_broker.routing.exchange import Binding, Exchange
from rabbitpy_broker.routing.fanout import FanoutExchange
from rabbitpy_broker.routing.headers import HeadersExchange
from rabbitpy_broker.routing.random_choice import RandomExchange
from rabbitpy_broker.routing.super_stream import SuperStreamExchange
from rabbitpy_broker.routing.topic import TopicExchange
from rabbitpy_broker.wire.content_header import ContentHeader
from rabbitpy_broker.wire.field_table import FieldTable


def _make_delayed(name: str, durable: bool, auto_delete: bool, internal: bool, arguments: FieldTable) -> Exchange:
    """A delayed message exchange around an exchange of its `x-delayed-type`."""
    inner = inner_type(arguments)
    if inner not in EXCHANGE_TYPES:
        raise ConnectionClosed(COMMAND_INVALID, f"unknown exchange type '{inner}'")
    made = EXCHANGE_TYPES[inner](name, durable, auto_delete, internal, arguments)
    return DelayedExchange(name, durable, auto_delete, internal, arguments, made)


# What `declare` may ask for; all are made alike.
EXCHANGE_TYPES: Final[dict[str, Callable[[str, bool, bool, bool, FieldTable], Exchange]]] = {
    "direct": DirectExchange,
    "fanout": FanoutExchange,
    "headers": HeadersExchange,
    "topic": TopicExchange,
    "x-consistent-hash": ConsistentHashExchange,
    "x-delayed-message": _make_delayed,
    "x-random": RandomExchange,
    "x-super-stream": SuperStreamExchange,
}


def make_exchange(
    type: str, name: str, durable: bool, auto_delete: bool, internal: bool, arguments: FieldTable
) -> Exchange:
    """An exchange of one of EXCHANGE_TYPES; the caller has checked that `type` is one of them.

    Raises ChannelClosed (406) for arguments that this type does not take.
    """
    return EXCHANGE_TYPES[type](name, durable, auto_delete, internal, arguments)


def resolve(
    exchange: Exchange, exchanges: dict[str, Exchange], routing_keys: list[str], header: ContentHeader | None
) -> list[Destination]:
    """The queues for a message published to `exchange`, in the order they were found.

    A message has one routing key, and more when its sender selects further ones (CC and BCC).
    """
    queues: dict[Destination, None] = {}
    asked: set[Exchange] = {exchange}
    todo: list[Exchange] = [exchange]
    while todo:
        source = todo.pop()
        found: dict[Destination, None] = {}
        source.match(routing_keys[0], header, found)
        if source.by_each_key:
            for further in routing_keys[1:]:
                source.match(further, header, found)
        if not found and source.alternate:
            alternate = exchanges.get(source.alternate)
            if alternate is not None:
                found[alternate] = None
        for destination in found:
            if destination.kind != EXCHANGE:
                queues[destination] = None
            elif isinstance(destination, Exchange) and destination not in asked:
                asked.add(destination)
                todo.append(destination)
    return list(queues)


def is_cacheable(exchange: Exchange, exchanges: dict[str, Exchange]) -> bool:
    """True when the routing key alone decides, here and at every exchange that can be reached."""
    reached: dict[Exchange, None] = {exchange: None}
    todo: list[Exchange] = [exchange]
    while todo:
        source = todo.pop()
        if not source.cacheable:
            return False
        onward: list[Exchange] = []
        if source.alternate and source.alternate in exchanges:
            onward.append(exchanges[source.alternate])
        onward.extend(source.exchange_destinations())
        for other in onward:
            if other not in reached:
                reached[other] = None
                todo.append(other)
    return True


def upstream(exchange: Exchange) -> list[Exchange]:
    """Every exchange whose messages can come to this one by bindings, itself first."""
    reached: dict[Exchange, None] = {exchange: None}
    todo: list[Exchange] = [exchange]
    while todo:
        for binding in todo.pop().incoming:
            assert isinstance(binding, Binding)
            if binding.source not in reached:
                reached[binding.source] = None
                todo.append(binding.source)
    return list(reached)
