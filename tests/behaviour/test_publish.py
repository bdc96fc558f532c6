"""Publishing: who takes a message, when it counts, and what happens when the way to a queue changes under way."""

from __future__ import annotations

from collections.abc import Callable

import pamqp.commands as amqp
import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from behaviour.helpers import confirming, ready, take_all
from support import closes_channel, eventually, unique
from wire_client import WireClient

Maker = Callable[..., str]
Connect = Callable[..., pika.BlockingConnection]

PUBLISH = (60, 40)


@pytest.fixture
def channel(connection: pika.BlockingConnection) -> BlockingChannel:
    """In confirm mode: what was published has reached its queues when basic_publish returns."""
    return confirming(connection)


def test_default_exchange_routes_by_queue_name(channel: BlockingChannel, queue: Maker) -> None:
    first, second = queue(), queue()
    channel.basic_publish("", first, b"a")
    channel.basic_publish("", second, b"b")
    assert (take_all(channel, first), take_all(channel, second)) == ([b"a"], [b"b"])


def test_absent_exchange_closes_the_channel_after_the_publish_has_returned(wire: WireClient) -> None:
    name = unique("absent")
    wire.publish(1, name, "key", b"x")
    wire.expect_channel_close(1, 404, f"no exchange '{name}' in vhost '/'", *PUBLISH)


def test_publishes_behind_one_to_an_absent_exchange_are_ignored(
    wire: WireClient, channel: BlockingChannel, queue: Maker
) -> None:
    name, absent = queue(), unique("absent")
    wire.publish(1, "", name, b"before")
    wire.publish(1, absent, "key", b"x")
    wire.publish(1, "", name, b"behind")
    wire.expect_channel_close(1, 404, f"no exchange '{absent}' in vhost '/'", *PUBLISH)
    wire.open_channel(1)
    eventually(lambda: ready(channel, name) > 0)
    assert take_all(channel, name) == [b"before"]


def test_message_without_a_queue_is_dropped_in_silence(wire: WireClient) -> None:
    wire.publish(1, "", unique("absent"), b"x")
    wire.publish(1, "amq.direct", unique("key"), b"x")
    wire.publish(1, "amq.fanout", "", b"x")
    wire.expect_silence(1)


def test_messages_of_one_channel_keep_their_order(wire: WireClient, channel: BlockingChannel, queue: Maker) -> None:
    name = queue()
    bodies = [b"%d" % number for number in range(1000)]
    for body in bodies:
        wire.publish(1, "", name, body)
    eventually(lambda: ready(channel, name) == len(bodies))
    assert take_all(channel, name) == bodies


def test_messages_of_two_channels_keep_their_order_in_each(
    wire: WireClient, channel: BlockingChannel, queue: Maker
) -> None:
    name = queue()
    wire.open_channel(2)
    for number in range(500):
        wire.publish(1, "", name, b"a%d" % number)
        wire.publish(2, "", name, b"b%d" % number)
    eventually(lambda: ready(channel, name) == 1000)
    bodies = take_all(channel, name)
    assert [body for body in bodies if body.startswith(b"a")] == [b"a%d" % number for number in range(500)]
    assert [body for body in bodies if body.startswith(b"b")] == [b"b%d" % number for number in range(500)]


@pytest.mark.parametrize("key", ["", "k" * 255, "ключ ☃"], ids=["empty", "longest", "not ASCII"])
def test_any_routing_key_routes_and_arrives(
    channel: BlockingChannel, queue: Maker, exchange: Maker, key: str
) -> None:
    source, name = exchange("direct"), queue()
    channel.queue_bind(name, source, key)
    channel.basic_publish(source, key, b"x")
    method, _, body = channel.basic_get(name, auto_ack=True)
    assert (method.exchange, method.routing_key, body) == (source, key, b"x")


# --- the way to the queue changes while a channel publishes --------------------------------------------------------------


def test_binding_counts_from_the_next_publish_on(channel: BlockingChannel, queue: Maker, exchange: Maker) -> None:
    source, name = exchange("direct"), queue()
    channel.basic_publish(source, "key", b"before")
    channel.queue_bind(name, source, "key")
    channel.basic_publish(source, "key", b"bound")
    channel.queue_unbind(name, source, "key")
    channel.basic_publish(source, "key", b"after")
    assert take_all(channel, name) == [b"bound"]


def test_binding_made_by_another_connection_counts_at_once(
    connect: Connect, channel: BlockingChannel, queue: Maker, exchange: Maker
) -> None:
    source, name = exchange("topic"), queue()
    channel.basic_publish(source, "a.b", b"before")
    connect().channel().queue_bind(name, source, "a.*")
    channel.basic_publish(source, "a.b", b"bound")
    assert take_all(channel, name) == [b"bound"]


def test_binding_between_exchanges_counts_at_once(channel: BlockingChannel, queue: Maker, exchange: Maker) -> None:
    outer, inner, name = exchange("fanout"), exchange("fanout"), queue()
    channel.exchange_bind(inner, outer)
    channel.basic_publish(outer, "", b"before")
    channel.queue_bind(name, inner)
    channel.basic_publish(outer, "", b"bound")
    channel.exchange_unbind(inner, outer)
    channel.basic_publish(outer, "", b"after")
    assert take_all(channel, name) == [b"bound"]


def test_deleted_exchange_is_absent_for_those_who_published_to_it(
    connect: Connect, channel: BlockingChannel, exchange: Maker
) -> None:
    name = exchange("direct")
    channel.basic_publish(name, "key", b"x")
    connect().channel().exchange_delete(name)
    with closes_channel(404, f"no exchange '{name}' in vhost '/'"):
        channel.basic_publish(name, "key", b"x")


def test_redeclared_queue_gets_what_is_published_from_then_on(
    connect: Connect, channel: BlockingChannel, queue: Maker
) -> None:
    name = queue()
    channel.basic_publish("", name, b"old")
    other = connect().channel()
    other.queue_delete(name)
    channel.basic_publish("", name, b"nowhere")
    other.queue_declare(name)
    channel.basic_publish("", name, b"new")
    assert take_all(channel, name) == [b"new"]


def test_queue_declared_after_the_first_publish_to_its_name_is_found(
    channel: BlockingChannel, new_name: Maker
) -> None:
    name = new_name("later")
    channel.basic_publish("", name, b"too early")
    channel.queue_declare(name)
    channel.basic_publish("", name, b"x")
    assert take_all(channel, name) == [b"x"]


# --- what a message may say of itself --------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", [0, 3, 255])
def test_unknown_delivery_mode_closes_the_channel(wire: WireClient, queue: Maker, mode: int) -> None:
    wire.method(1, amqp.Basic.Publish(exchange="", routing_key=queue()))
    wire.header(1, 1, b"\x10\x00" + bytes([mode]))
    wire.body(1, b"x")
    wire.expect_channel_close(1, 406, f"invalid message: {{delivery_mode_unknown,{mode}}}", *PUBLISH)


def test_ready_counts_grow_with_each_publish(channel: BlockingChannel, queue: Maker) -> None:
    name = queue()
    counts = []
    for _ in range(3):
        channel.basic_publish("", name, b"x")
        counts.append(ready(channel, name))
    assert counts == [1, 2, 3]
