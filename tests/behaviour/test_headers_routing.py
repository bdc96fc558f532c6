"""Headers exchanges: the binding's arguments against the message's headers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pamqp.commands as amqp
import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from wire_client import WireClient, field_table, shortstr

Maker = Callable[..., str]

AB = {"a": "1", "b": 2}
MATCHES: list[tuple[dict[str, Any], dict[str, Any] | None, bool]] = [
    # all is the default
    (AB, {"a": "1", "b": 2}, True),
    (AB, {"a": "1", "b": 2, "c": 3}, True),
    (AB, {"a": "1"}, False),
    (AB, {"a": "1", "b": 3}, False),
    (AB, None, False),
    ({}, {"anything": 1}, True),
    ({}, None, True),
    ({"x-match": "all", **AB}, {"a": "1", "b": 2}, True),
    ({"x-match": "all", **AB}, {"b": 2}, False),
    ({"x-match": "any", **AB}, {"b": 2}, True),
    ({"x-match": "any", **AB}, {"a": "1", "b": 3}, True),
    ({"x-match": "any", **AB}, {"a": "2", "b": 3}, False),
    ({"x-match": "any", **AB}, {}, False),
    ({"x-match": "any"}, {"a": 1}, False),
    ({"x-match": "any"}, None, False),
    # keys that begin with x- count only in the -with-x modes
    ({"x-match": "all", "x-key": "v", "a": 1}, {"a": 1}, True),
    ({"x-match": "any", "x-key": "v"}, {"x-key": "v"}, False),
    ({"x-match": "all-with-x", "x-key": "v", "a": 1}, {"a": 1}, False),
    ({"x-match": "all-with-x", "x-key": "v", "a": 1}, {"a": 1, "x-key": "v"}, True),
    ({"x-match": "any-with-x", "x-key": "v", "a": 1}, {"x-key": "v"}, True),
    ({"x-match": "any-with-x", "x-key": "v", "a": 1}, {"x-key": "w"}, False),
    # a void value in the binding asks only that the key be there
    ({"a": None}, {"a": "whatever"}, True),
    ({"a": None}, {"b": "whatever"}, False),
    ({"x-match": "any", "a": None, "b": 1}, {"a": 7}, True),
    # types matter
    ({"a": "1"}, {"a": 1}, False),
    ({"a": 1}, {"a": True}, False),
    ({"a": True}, {"a": True}, True),
    ({"a": False}, {"a": True}, False),
    ({"a": [1, "x"]}, {"a": [1, "x"]}, True),
    ({"a": [1, "x"]}, {"a": [1, "y"]}, False),
    ({"a": {"b": 1}}, {"a": {"b": 1}}, True),
]


@pytest.fixture
def channel(connection: pika.BlockingConnection) -> BlockingChannel:
    """In confirm mode: what was published has reached its queues when basic_publish returns."""
    channel = connection.channel()
    channel.confirm_delivery()
    return channel


def count(channel: BlockingChannel, queue: str) -> int:
    return int(channel.queue_declare(queue, passive=True).method.message_count)


@pytest.mark.parametrize("arguments, headers, matches", MATCHES, ids=[f"{a}-{h}" for a, h, _ in MATCHES])
def test_match(
    channel: BlockingChannel,
    exchange: Maker,
    queue: Maker,
    arguments: dict[str, Any],
    headers: dict[str, Any] | None,
    matches: bool,
) -> None:
    source, name = exchange("headers"), queue()
    channel.queue_bind(name, source, "ignored", arguments=arguments)
    channel.basic_publish(source, "another", b"x", pika.BasicProperties(headers=headers))
    assert count(channel, name) == (1 if matches else 0)


def test_queue_with_several_matching_bindings_gets_one_copy(
    channel: BlockingChannel, exchange: Maker, queue: Maker
) -> None:
    source, name = exchange("headers"), queue()
    for arguments in ({"a": 1}, {"b": 1}, {"x-match": "any", "a": 1, "b": 1}):
        channel.queue_bind(name, source, "", arguments=arguments)
    channel.basic_publish(source, "", b"x", pika.BasicProperties(headers={"a": 1, "b": 1}))
    assert count(channel, name) == 1


def test_unbinding_needs_the_same_arguments(channel: BlockingChannel, exchange: Maker, queue: Maker) -> None:
    source, name = exchange("headers"), queue()
    channel.queue_bind(name, source, "", arguments={"a": 1})
    channel.queue_unbind(name, source, "", arguments={"a": 2})
    channel.basic_publish(source, "", b"x", pika.BasicProperties(headers={"a": 1}))
    assert count(channel, name) == 1
    channel.queue_unbind(name, source, "", arguments={"a": 1})
    channel.basic_publish(source, "", b"x", pika.BasicProperties(headers={"a": 1}))
    assert count(channel, name) == 1


@pytest.mark.parametrize("exchange_name", ["amq.headers", "amq.match"])
def test_both_predeclared_headers_exchanges_match(
    channel: BlockingChannel, queue: Maker, exchange_name: str
) -> None:
    name = queue()
    channel.queue_bind(name, exchange_name, "", arguments={"for": name})
    channel.basic_publish(exchange_name, "", b"x", pika.BasicProperties(headers={"for": name}))
    assert count(channel, name) == 1


def test_unknown_match_value_is_refused(wire: WireClient, exchange: Maker, queue: Maker) -> None:
    arguments = {"x-match": "all or any I don't mind"}
    wire.method(1, amqp.Queue.Bind(queue=queue(), exchange=exchange("headers"), arguments=arguments))
    text = 'Invalid x-match field value <<"all or any I don\'t mind">>; expected all, any, all-with-x, or any-with-x'
    wire.expect_channel_close(1, 406, text, 50, 20)


def test_match_value_that_is_no_string_is_refused(wire: WireClient, exchange: Maker, queue: Maker) -> None:
    table = field_table(("x-match", "I", (23).to_bytes(4, "big")))
    arguments = (
        b"\x00\x00" + shortstr(queue()) + shortstr(exchange("headers")) + shortstr("") + b"\x00" + table
    )
    wire.method(1, (50, 20, arguments))
    wire.expect_channel_close(
        1, 406, "Invalid x-match field type signedint (value 23); expected longstr", 50, 20
    )


def test_match_value_is_checked_for_exchanges_too(wire: WireClient, exchange: Maker) -> None:
    arguments = {"x-match": "some"}
    bind = amqp.Exchange.Bind(destination=exchange(), source=exchange("headers"), arguments=arguments)
    wire.method(1, bind)
    text = 'Invalid x-match field value <<"some">>; expected all, any, all-with-x, or any-with-x'
    wire.expect_channel_close(1, 406, text, 40, 30)


def test_other_exchange_types_do_not_look_at_x_match(
    channel: BlockingChannel, exchange: Maker, queue: Maker
) -> None:
    source, name = exchange("direct"), queue()
    channel.queue_bind(name, source, "key", arguments={"x-match": "nonsense"})
    channel.basic_publish(source, "key", b"x")
    assert count(channel, name) == 1
