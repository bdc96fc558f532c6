"""Auto-delete queues go with their last consumer, auto-delete exchanges with their last binding."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pamqp.commands as amqp
import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from support import closes_channel, eventually
from wire_client import WireClient

Maker = Callable[..., str]
Connect = Callable[..., pika.BlockingConnection]


def assert_no_queue(channel: BlockingChannel, name: str) -> None:
    with closes_channel(404, f"no queue '{name}' in vhost '/'"):
        channel.queue_declare(name, passive=True)


def assert_no_exchange(connection: pika.BlockingConnection, name: str) -> None:
    with closes_channel(404, f"no exchange '{name}' in vhost '/'"):
        connection.channel().exchange_declare(name, passive=True)


# --- queues ------------------------------------------------------------------------------------------------------------


def test_queue_goes_with_its_last_consumer(channel: BlockingChannel, queue: Maker) -> None:
    """Gone before cancel-ok."""
    name = queue(auto_delete=True)
    channel.basic_cancel(channel.basic_consume(name, lambda *_: None))
    assert_no_queue(channel, name)


def test_queue_stays_while_another_consumer_is_left(channel: BlockingChannel, queue: Maker) -> None:
    name = queue(auto_delete=True)
    first, second = (channel.basic_consume(name, lambda *_: None) for _ in range(2))
    channel.basic_cancel(first)
    channel.queue_declare(name, passive=True)
    channel.basic_cancel(second)
    assert_no_queue(channel, name)


def test_queue_stays_before_it_had_a_consumer(channel: BlockingChannel, queue: Maker) -> None:
    name = queue(auto_delete=True)
    channel.basic_publish("", name, b"x")
    eventually(lambda: channel.basic_get(name, auto_ack=True)[0])
    channel.queue_declare(name, passive=True)


def test_queue_goes_when_the_consumers_channel_closes(
    connection: pika.BlockingConnection, channel: BlockingChannel, queue: Maker
) -> None:
    name, consuming = queue(auto_delete=True), connection.channel()
    consuming.basic_consume(name, lambda *_: None)
    consuming.close()
    assert_no_queue(channel, name)


def test_queue_goes_when_the_consumers_connection_closes(
    connect: Connect, channel: BlockingChannel, queue: Maker
) -> None:
    name, consuming = queue(auto_delete=True), connect()
    consuming.channel().basic_consume(name, lambda *_: None)
    consuming.close()
    assert_no_queue(channel, name)


def test_queue_goes_when_its_consumer_vanishes(
    raw: Callable[..., WireClient], wire: WireClient, queue: Maker
) -> None:
    name, consuming = queue(auto_delete=True), raw().open()
    consuming.open_channel(1)
    consuming.call(1, amqp.Basic.Consume(queue=name), amqp.Basic.ConsumeOk)
    consuming.close()

    def gone() -> bool:
        wire.method(1, amqp.Queue.Declare(queue=name, passive=True))
        if isinstance(wire.read_command()[1], amqp.Queue.DeclareOk):
            return False
        wire.method(1, amqp.Channel.CloseOk())
        return True

    eventually(gone)


def test_queue_goes_with_messages_and_all(channel: BlockingChannel, queue: Maker) -> None:
    name = queue(auto_delete=True)
    for _ in range(5):
        channel.basic_publish("", name, b"x")
    channel.basic_qos(prefetch_count=1)
    channel.basic_cancel(channel.basic_consume(name, lambda *_: None))
    assert_no_queue(channel, name)


# --- exchanges ---------------------------------------------------------------------------------------------------------


def test_exchange_goes_with_its_last_binding(
    connection: pika.BlockingConnection, channel: BlockingChannel, exchange: Maker, queue: Maker
) -> None:
    source, name = exchange(auto_delete=True), queue()
    channel.queue_bind(name, source, "a")
    channel.queue_bind(name, source, "b")
    channel.queue_unbind(name, source, "a")
    channel.exchange_declare(source, passive=True)
    channel.queue_unbind(name, source, "b")
    assert_no_exchange(connection, source)


def test_exchange_stays_before_it_had_a_binding(channel: BlockingChannel, exchange: Maker) -> None:
    source = exchange(auto_delete=True)
    channel.basic_publish(source, "nowhere", b"x")
    channel.queue_unbind("no-such-queue", source, "key")
    channel.exchange_declare(source, passive=True)


def test_exchange_goes_when_its_last_queue_is_deleted(
    connection: pika.BlockingConnection, channel: BlockingChannel, exchange: Maker, queue: Maker
) -> None:
    source, name = exchange(auto_delete=True), queue()
    channel.queue_bind(name, source, "key")
    channel.queue_delete(name)
    assert_no_exchange(connection, source)


def test_exchange_goes_when_its_last_queue_dies_with_a_connection(
    connect: Connect, connection: pika.BlockingConnection, exchange: Maker, new_name: Maker
) -> None:
    source, name, owner = exchange(auto_delete=True), new_name("exclusive"), connect()
    theirs = owner.channel()
    theirs.queue_declare(name, exclusive=True)
    theirs.queue_bind(name, source, "key")
    owner.close()
    assert_no_exchange(connection, source)


def test_exchange_goes_when_its_last_exchange_is_deleted(
    connection: pika.BlockingConnection, channel: BlockingChannel, exchange: Maker
) -> None:
    source, destination = exchange(auto_delete=True), exchange()
    channel.exchange_bind(destination, source, "key")
    channel.exchange_delete(destination)
    assert_no_exchange(connection, source)


def test_chain_of_exchanges_goes_together(
    connection: pika.BlockingConnection, channel: BlockingChannel, exchange: Maker, queue: Maker
) -> None:
    """Each is the last binding of the one before it."""
    chain, end = [exchange("fanout", auto_delete=True) for _ in range(4)], queue()
    for source, destination in itertools.pairwise(chain):
        channel.exchange_bind(destination, source)
    channel.queue_bind(end, chain[-1])
    channel.queue_delete(end)
    for name in chain:
        assert_no_exchange(connection, name)


def test_circle_of_exchanges_goes_together(
    connection: pika.BlockingConnection, channel: BlockingChannel, exchange: Maker
) -> None:
    first, second = exchange("fanout", auto_delete=True), exchange("fanout", auto_delete=True)
    channel.exchange_bind(second, first)
    channel.exchange_bind(first, second)
    channel.exchange_delete(second)
    assert_no_exchange(connection, first)


def test_exchange_that_is_only_a_destination_stays(channel: BlockingChannel, exchange: Maker) -> None:
    source, destination = exchange("fanout"), exchange("fanout", auto_delete=True)
    channel.exchange_bind(destination, source)
    channel.exchange_unbind(destination, source)
    channel.exchange_declare(destination, passive=True)


@pytest.mark.parametrize("durable", [False, True])
def test_exchange_that_went_may_be_declared_again(
    channel: BlockingChannel, exchange: Maker, queue: Maker, durable: bool
) -> None:
    source, name = exchange(auto_delete=True), queue()
    channel.queue_bind(name, source, "key")
    channel.queue_unbind(name, source, "key")
    channel.exchange_declare(source, "topic", durable=durable)
