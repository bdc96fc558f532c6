"""basic.get: one message at a time, or get-empty."""

from __future__ import annotations

from collections.abc import Callable

import pamqp.commands as amqp
import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from behaviour.helpers import Inbox, confirming, fill, ready
from support import eventually, unique
from wire_client import WireClient

Maker = Callable[..., str]
Connect = Callable[..., pika.BlockingConnection]

GET = (60, 70)


@pytest.fixture
def channel(connection: pika.BlockingConnection) -> BlockingChannel:
    """In confirm mode: what was published has reached its queues when basic_publish returns."""
    return confirming(connection)


def test_empty_queue_is_said_to_be_empty(wire: WireClient, queue: Maker) -> None:
    wire.call(1, amqp.Basic.Get(queue=queue()), amqp.Basic.GetEmpty)


def test_answer_counts_what_remains(channel: BlockingChannel, queue: Maker) -> None:
    name = queue()
    fill(channel, name, 4)
    answers = [channel.basic_get(name) for _ in range(4)]
    assert [method.message_count for method, _, _ in answers] == [3, 2, 1, 0]
    assert [method.delivery_tag for method, _, _ in answers] == [1, 2, 3, 4]
    assert [body for _, _, body in answers] == [b"0", b"1", b"2", b"3"]
    assert channel.basic_get(name) == (None, None, None)


def test_answer_says_where_the_message_came_from(
    channel: BlockingChannel, queue: Maker, exchange: Maker
) -> None:
    name, source = queue(), exchange("topic")
    channel.queue_bind(name, source, "#")
    channel.basic_publish(source, "a.b", b"x", pika.BasicProperties(message_id="the one"))
    method, properties, body = channel.basic_get(name)
    assert (method.exchange, method.routing_key, method.redelivered) == (source, "a.b", False)
    assert (properties.message_id, body) == ("the one", b"x")


def test_unacked_message_comes_back(connect: Connect, channel: BlockingChannel, queue: Maker) -> None:
    name = queue()
    fill(channel, name, 1)
    getting = connect().channel()
    getting.basic_get(name)
    assert getting.basic_get(name) == (None, None, None)
    assert ready(channel, name) == 0
    getting.close()
    eventually(lambda: ready(channel, name) == 1)
    method, _, body = channel.basic_get(name)
    assert (method.redelivered, body) == (True, b"0")


def test_acked_message_is_gone(connect: Connect, channel: BlockingChannel, queue: Maker) -> None:
    name = queue()
    fill(channel, name, 2)
    getting = connect().channel()
    getting.basic_ack(getting.basic_get(name)[0].delivery_tag)
    getting.basic_get(name, auto_ack=True)
    getting.close()
    assert channel.basic_get(name) == (None, None, None)


def test_tag_of_a_get_without_ack_is_unknown(wire: WireClient, channel: BlockingChannel, queue: Maker) -> None:
    name = queue()
    fill(channel, name, 1)
    wire.method(1, amqp.Basic.Get(queue=name, no_ack=True))
    got = wire.expect_content(1, amqp.Basic.GetOk).method
    assert got.delivery_tag == 1
    wire.method(1, amqp.Basic.Ack(delivery_tag=1))
    wire.expect_channel_close(1, 406, "unknown delivery tag 1", 60, 80)


def test_gets_and_deliveries_share_the_channels_tags(channel: BlockingChannel, queue: Maker) -> None:
    fetched, consumed = queue(), queue()
    fill(channel, fetched, 3)
    inbox = Inbox(channel, consumed)
    tags = []
    for count in range(1, 4):
        tags.append(channel.basic_get(fetched)[0].delivery_tag)
        channel.basic_publish("", consumed, b"x")
        inbox.wait_for(count)
    assert tags == [1, 3, 5]
    assert inbox.tags == [2, 4, 6]


def test_absent_queue(wire: WireClient) -> None:
    name = unique("absent")
    wire.method(1, amqp.Basic.Get(queue=name))
    wire.expect_channel_close(1, 404, f"no queue '{name}' in vhost '/'", *GET)


def test_empty_name_is_the_queue_declared_last(wire: WireClient, channel: BlockingChannel, new_name: Maker) -> None:
    name = new_name("last")
    wire.call(1, amqp.Queue.Declare(queue=name), amqp.Queue.DeclareOk)
    fill(channel, name, 1)
    wire.method(1, amqp.Basic.Get(queue=""))
    assert wire.expect_content(1, amqp.Basic.GetOk).body == b"0"


def test_empty_name_without_a_declared_queue(wire: WireClient) -> None:
    wire.method(1, amqp.Basic.Get(queue=""))
    wire.expect_channel_close(1, 404, "no previously declared queue", *GET)


def test_queue_of_another_connection_is_locked(wire: WireClient, channel: BlockingChannel, queue: Maker) -> None:
    name = queue(exclusive=True)
    wire.method(1, amqp.Basic.Get(queue=name))
    text = (
        f"cannot obtain exclusive access to locked queue '{name}' in vhost '/'. It could be originally declared on "
        "another connection or the exclusive property value does not match that of the original declaration."
    )
    wire.expect_channel_close(1, 405, text, *GET)


def test_consumers_and_gets_take_different_messages(connect: Connect, channel: BlockingChannel, queue: Maker) -> None:
    name = queue()
    bodies = fill(channel, name, 10)
    consuming = connect().channel()
    consuming.basic_qos(prefetch_count=5)
    inbox = Inbox(consuming, name)
    inbox.wait_for(5)
    assert [channel.basic_get(name)[2] for _ in range(5)] == bodies[5:]
    assert inbox.bodies == bodies[:5]


def test_many_gets_may_be_sent_ahead(wire: WireClient, channel: BlockingChannel, queue: Maker) -> None:
    name = queue()
    bodies = fill(channel, name, 100)
    for _ in range(101):
        wire.method(1, amqp.Basic.Get(queue=name))
    assert [wire.expect_content(1, amqp.Basic.GetOk).body for _ in range(100)] == bodies
    wire.expect(1, amqp.Basic.GetEmpty)


def test_queue_with_a_single_active_consumer_may_be_fetched_from(
    connect: Connect, channel: BlockingChannel, queue: Maker
) -> None:
    name = queue(arguments={"x-single-active-consumer": True})
    consuming = connect().channel()
    consuming.basic_qos(prefetch_count=1)
    inbox = Inbox(consuming, name)
    fill(channel, name, 2)
    inbox.wait_for(1)
    assert channel.basic_get(name, auto_ack=True)[2] == b"1"
