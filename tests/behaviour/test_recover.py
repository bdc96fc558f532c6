"""basic.recover: everything unacked on the channel goes back to its queues."""

from __future__ import annotations

from collections.abc import Callable

import pamqp.commands as amqp
import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from behaviour.helpers import Inbox, confirming, fill, ready, take_all_flagged
from support import eventually
from wire_client import WireClient

Maker = Callable[..., str]
Connect = Callable[..., pika.BlockingConnection]


@pytest.fixture
def channel(connection: pika.BlockingConnection) -> BlockingChannel:
    """In confirm mode: what was published has reached its queues when basic_publish returns."""
    return confirming(connection)


def get(client: WireClient, queue: str) -> amqp.Basic.GetOk:
    client.method(1, amqp.Basic.Get(queue=queue))
    return client.expect_content(1, amqp.Basic.GetOk).method


def test_recover_is_answered(wire: WireClient) -> None:
    wire.call(1, amqp.Basic.Recover(requeue=True), amqp.Basic.RecoverOk)


def test_recover_async_is_not_answered(wire: WireClient, channel: BlockingChannel, queue: Maker) -> None:
    name = queue()
    fill(channel, name, 2)
    get(wire, name)
    wire.method(1, (60, 100, b"\x01"))  # requeue=true
    wire.expect_silence(1)
    eventually(lambda: ready(channel, name) == 2)
    assert take_all_flagged(channel, name) == [(True, b"0"), (False, b"1")]


def test_fetched_messages_go_back_in_order(wire: WireClient, channel: BlockingChannel, queue: Maker) -> None:
    name = queue()
    fill(channel, name, 5)
    for _ in range(4):
        tag = get(wire, name).delivery_tag
    wire.method(1, amqp.Basic.Ack(delivery_tag=2))
    wire.call(1, amqp.Basic.Recover(requeue=True), amqp.Basic.RecoverOk)
    eventually(lambda: ready(channel, name) == 4)
    assert take_all_flagged(channel, name) == [(True, b"0"), (True, b"2"), (True, b"3"), (False, b"4")]
    wire.method(1, amqp.Basic.Ack(delivery_tag=tag))
    wire.expect_channel_close(1, 406, f"unknown delivery tag {tag}", 60, 80)


def test_consumer_gets_them_again(channel: BlockingChannel, queue: Maker) -> None:
    name = queue()
    bodies = fill(channel, name, 10)
    inbox = Inbox(channel, name)
    inbox.wait_for(10)
    inbox.ack(1, 5)
    channel.basic_recover(requeue=True)
    again = bodies[1:4] + bodies[5:]
    assert inbox.wait_for(18)[10:] == again
    assert all(delivery.redelivered for delivery in inbox.deliveries[10:])
    assert inbox.tags[10:] == list(range(11, 19))


def test_other_channels_keep_theirs(connect: Connect, channel: BlockingChannel, queue: Maker) -> None:
    name = queue()
    fill(channel, name, 2)
    keeping, recovering = connect().channel(), connect().channel()
    keeping.basic_get(name)
    recovering.basic_get(name)
    recovering.basic_recover(requeue=True)
    eventually(lambda: ready(channel, name) == 1)
    assert take_all_flagged(channel, name) == [(True, b"1")]


def test_every_queue_gets_back_its_own(channel: BlockingChannel, connect: Connect, queue: Maker) -> None:
    names = [queue() for _ in range(3)]
    getting = connect().channel()
    for name in names:
        channel.basic_publish("", name, name.encode())
    for name in names:
        getting.basic_get(name)
    getting.basic_recover(requeue=True)
    for name in names:
        eventually(lambda name=name: ready(channel, name) == 1)
        assert take_all_flagged(channel, name) == [(True, name.encode())]
