"""An exclusive consumer is the only one of its queue."""

from __future__ import annotations

from collections.abc import Callable

import pamqp.commands as amqp
import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from behaviour.helpers import Inbox, confirming, fill, take_all
from support import eventually
from wire_client import WireClient

Maker = Callable[..., str]
Connect = Callable[..., pika.BlockingConnection]

CONSUME = (60, 20)


@pytest.fixture
def channel(connection: pika.BlockingConnection) -> BlockingChannel:
    """In confirm mode: what was published has reached its queues when basic_publish returns."""
    return confirming(connection)


def refused(client: WireClient, queue: str, exclusive: bool) -> None:
    client.method(1, amqp.Basic.Consume(queue=queue, exclusive=exclusive))
    client.expect_channel_close(1, 403, f"queue '{queue}' in vhost '/' in exclusive use", *CONSUME)


@pytest.mark.parametrize("exclusive", [False, True])
def test_nobody_consumes_beside_an_exclusive_consumer(
    wire: WireClient, channel: BlockingChannel, queue: Maker, exclusive: bool
) -> None:
    name = queue()
    inbox = Inbox(channel, name, exclusive=True)
    refused(wire, name, exclusive)
    bodies = fill(channel, name, 5)
    assert inbox.wait_for(5) == bodies


def test_exclusive_use_needs_a_queue_without_consumers(
    wire: WireClient, channel: BlockingChannel, queue: Maker
) -> None:
    name = queue()
    Inbox(channel, name)
    refused(wire, name, exclusive=True)
    wire.open_channel(1)
    wire.call(1, amqp.Basic.Consume(queue=name), amqp.Basic.ConsumeOk)


def test_same_channel_is_refused_as_well(wire: WireClient, queue: Maker) -> None:
    name = queue()
    wire.call(1, amqp.Basic.Consume(queue=name, exclusive=True), amqp.Basic.ConsumeOk)
    refused(wire, name, exclusive=False)


@pytest.mark.parametrize("end", ["cancel", "close the channel", "close the connection"])
def test_queue_is_free_when_the_consumer_has_gone(
    connect: Connect, wire: WireClient, channel: BlockingChannel, queue: Maker, end: str
) -> None:
    name = queue()
    connection = connect()
    consuming = connection.channel()
    inbox = Inbox(consuming, name, exclusive=True)
    if end == "cancel":
        consuming.basic_cancel(inbox.tag)
    elif end == "close the channel":
        consuming.close()
    else:
        connection.close()
    eventually(lambda: channel.queue_declare(name, passive=True).method.consumer_count == 0)
    wire.call(1, amqp.Basic.Consume(queue=name, exclusive=True), amqp.Basic.ConsumeOk)


def test_the_rest_is_allowed_beside_it(connect: Connect, channel: BlockingChannel, queue: Maker) -> None:
    name = queue()
    consuming = connect().channel()
    consuming.basic_qos(prefetch_count=1)
    inbox = Inbox(consuming, name, exclusive=True)
    fill(channel, name, 4)
    inbox.wait_for(1)
    assert channel.basic_get(name, auto_ack=True)[2] == b"1"
    assert take_all(channel, name) == [b"2", b"3"]
    fill(channel, name, 2)
    assert channel.queue_purge(name).method.message_count == 2
    channel.queue_delete(name)
