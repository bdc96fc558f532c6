"""An alternate exchange gets what its exchange cannot route."""

from __future__ import annotations

from collections.abc import Callable

import pika
import pika.exceptions
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from support import unique

Maker = Callable[..., str]


@pytest.fixture
def channel(connection: pika.BlockingConnection) -> BlockingChannel:
    """In confirm mode: what was published has reached its queues when basic_publish returns."""
    channel = connection.channel()
    channel.confirm_delivery()
    return channel


def count(channel: BlockingChannel, queue: str) -> int:
    return int(channel.queue_declare(queue, passive=True).method.message_count)


def with_alternate(exchange: Maker, alternate: str, type: str = "direct") -> str:
    return exchange(type, arguments={"alternate-exchange": alternate})


def test_unroutable_message_goes_to_the_alternate(
    channel: BlockingChannel, exchange: Maker, queue: Maker
) -> None:
    alternate, name = exchange("fanout"), queue()
    source = with_alternate(exchange, alternate)
    channel.queue_bind(name, alternate)
    channel.basic_publish(source, "nowhere", b"x")
    method, _, body = channel.basic_get(name, auto_ack=True)
    assert (method.exchange, method.routing_key, body) == (source, "nowhere", b"x")


def test_routable_message_does_not(channel: BlockingChannel, exchange: Maker, queue: Maker) -> None:
    alternate, main, spare = exchange("fanout"), queue(), queue()
    source = with_alternate(exchange, alternate)
    channel.queue_bind(main, source, "key")
    channel.queue_bind(spare, alternate)
    channel.basic_publish(source, "key", b"x")
    assert (count(channel, main), count(channel, spare)) == (1, 0)


def test_alternates_chain(channel: BlockingChannel, exchange: Maker, queue: Maker) -> None:
    last, name = exchange("fanout"), queue()
    channel.queue_bind(name, last)
    first = with_alternate(exchange, with_alternate(exchange, with_alternate(exchange, last)))
    channel.basic_publish(first, "nowhere", b"x")
    assert count(channel, name) == 1


def test_missing_alternate_drops_the_message(channel: BlockingChannel, exchange: Maker) -> None:
    channel.basic_publish(with_alternate(exchange, unique("absent")), "nowhere", b"x")
    assert channel.is_open


def test_circle_of_alternates_ends(channel: BlockingChannel, new_name: Maker) -> None:
    first, second, itself = new_name("first"), new_name("second"), new_name("itself")
    for name, alternate in ((first, second), (second, first), (itself, itself)):
        channel.exchange_declare(name, arguments={"alternate-exchange": alternate})
        channel.basic_publish(name, "nowhere", b"x")
    channel.basic_publish(first, "nowhere", b"x")
    assert channel.is_open


def test_mandatory_message_is_not_returned_when_the_alternate_routes_it(
    channel: BlockingChannel, exchange: Maker, queue: Maker
) -> None:
    alternate, name = exchange("fanout"), queue()
    channel.queue_bind(name, alternate)
    channel.basic_publish(with_alternate(exchange, alternate), "nowhere", b"x", mandatory=True)
    assert count(channel, name) == 1


def test_mandatory_message_is_returned_when_nobody_routes_it(
    channel: BlockingChannel, exchange: Maker
) -> None:
    source = with_alternate(exchange, exchange("fanout"))
    with pytest.raises(pika.exceptions.UnroutableError) as caught:
        channel.basic_publish(source, "nowhere", b"x", mandatory=True)
    returned = caught.value.messages[0]
    assert (returned.method.reply_code, returned.method.exchange, returned.body) == (312, source, b"x")


def test_alternate_is_asked_for_each_exchange_on_the_way(
    channel: BlockingChannel, exchange: Maker, queue: Maker
) -> None:
    """An exchange reached through a binding asks its own alternate when it finds no route."""
    alternate, name = exchange("fanout"), queue()
    inner = with_alternate(exchange, alternate)
    outer = exchange("fanout")
    channel.exchange_bind(inner, outer)
    channel.queue_bind(name, alternate)
    channel.basic_publish(outer, "nowhere", b"x")
    assert count(channel, name) == 1


def test_alternate_may_be_declared_later(
    channel: BlockingChannel, exchange: Maker, queue: Maker, new_name: Maker
) -> None:
    alternate, name = new_name("later"), queue()
    source = with_alternate(exchange, alternate)
    channel.exchange_declare(alternate, "fanout")
    channel.queue_bind(name, alternate)
    channel.basic_publish(source, "nowhere", b"x")
    assert count(channel, name) == 1


def test_internal_exchange_may_be_the_alternate(
    channel: BlockingChannel, exchange: Maker, queue: Maker
) -> None:
    alternate, name = exchange("fanout", internal=True), queue()
    channel.queue_bind(name, alternate)
    channel.basic_publish(with_alternate(exchange, alternate), "nowhere", b"x")
    assert count(channel, name) == 1
