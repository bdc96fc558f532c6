"""Requeued messages return to their old places: the queue stays in publish order, whoever gives back what and when."""

from __future__ import annotations

import random
from collections.abc import Callable

import pamqp.commands as amqp
import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from behaviour.helpers import Inbox, confirming, fill, ready, take_all, take_all_flagged, wire_deliveries
from support import eventually
from wire_client import WireClient

Maker = Callable[..., str]
Connect = Callable[..., pika.BlockingConnection]


@pytest.fixture
def channel(connection: pika.BlockingConnection) -> BlockingChannel:
    """In confirm mode: what was published has reached its queues when basic_publish returns."""
    return confirming(connection)


def test_requeued_message_returns_to_its_old_place(channel: BlockingChannel, queue: Maker) -> None:
    name = queue()
    fill(channel, name, 5)
    tags = [channel.basic_get(name)[0].delivery_tag for _ in range(3)]
    channel.basic_ack(tags[0])
    channel.basic_nack(tags[1])
    eventually(lambda: ready(channel, name) == 3)
    assert take_all_flagged(channel, name) == [(True, b"1"), (False, b"3"), (False, b"4")]
    channel.basic_nack(tags[2])
    eventually(lambda: ready(channel, name) == 1)
    assert take_all_flagged(channel, name) == [(True, b"2")]


def test_older_message_goes_before_younger_requeued_ones(channel: BlockingChannel, queue: Maker) -> None:
    name = queue()
    bodies = fill(channel, name, 6)
    tags = [channel.basic_get(name)[0].delivery_tag for _ in range(6)]
    for count, index in enumerate((4, 1, 5, 0, 3, 2), start=1):
        channel.basic_reject(tags[index])
        eventually(lambda count=count: ready(channel, name) == count)
    assert take_all(channel, name) == bodies


def test_requeued_messages_go_before_what_was_published_since(channel: BlockingChannel, queue: Maker) -> None:
    name = queue()
    fill(channel, name, 3)
    for _ in range(3):
        channel.basic_get(name)
    fill(channel, name, 3, start=3)
    channel.basic_nack(0, multiple=True)
    eventually(lambda: ready(channel, name) == 6)
    assert take_all_flagged(channel, name) == [(number < 3, b"%d" % number) for number in range(6)]


@pytest.mark.parametrize("end", ["channel", "connection", "socket"])
def test_two_thousand_messages_in_flight_come_back_in_order(
    wire: WireClient, channel: BlockingChannel, queue: Maker, end: str
) -> None:
    name = queue()
    bodies = fill(channel, name, 2500)
    wire.call(1, amqp.Basic.Qos(prefetch_count=2000), amqp.Basic.QosOk)
    wire.call(1, amqp.Basic.Consume(queue=name), amqp.Basic.ConsumeOk)
    assert [content.body for content in wire_deliveries(wire, 1, 2000)] == bodies[:2000]
    if end == "channel":
        wire.method(1, amqp.Channel.Close(reply_code=200, reply_text="", class_id=0, method_id=0))
    elif end == "connection":
        wire.method(0, amqp.Connection.Close(reply_code=200, reply_text="", class_id=0, method_id=0))
    else:
        wire.close()
    eventually(lambda: ready(channel, name) == 2500)
    flagged = take_all_flagged(channel, name)
    assert [body for _, body in flagged] == bodies
    assert [redelivered for redelivered, _ in flagged] == [True] * 2000 + [False] * 500


def test_messages_of_several_consumers_come_back_into_one_order(
    connect: Connect, channel: BlockingChannel, queue: Maker
) -> None:
    name = queue()
    connections = [connect() for _ in range(3)]
    inboxes = [Inbox(connection.channel(), name) for connection in connections]
    bodies = fill(channel, name, 300)
    for inbox in inboxes:
        inbox.wait_for(100)
    # Cancelled first, or the others would be given what the first gives back.
    for inbox in inboxes:
        inbox.channel.basic_cancel(inbox.tag)
    for connection in (connections[1], connections[2], connections[0]):
        connection.close()
    eventually(lambda: ready(channel, name) == 300)
    assert take_all_flagged(channel, name) == [(True, body) for body in bodies]


def test_random_settling_leaves_the_rest_in_order(connect: Connect, channel: BlockingChannel, queue: Maker) -> None:
    name = queue()
    bodies = fill(channel, name, 300)
    dice = random.Random(7)
    remaining = list(bodies)
    for _ in range(5):
        getting = connect().channel()
        taken = [getting.basic_get(name)[::2] for _ in range(dice.randrange(1, len(remaining)))]
        dice.shuffle(taken)
        for method, body in taken:
            if dice.random() < 0.3:
                getting.basic_ack(method.delivery_tag)
                remaining.remove(body)
            elif dice.random() < 0.5:
                getting.basic_nack(method.delivery_tag)
        getting.close()
        eventually(lambda: ready(channel, name) == len(remaining))
    assert take_all(channel, name) == remaining


def test_consumer_that_requeues_gets_the_same_message_again(
    connect: Connect, channel: BlockingChannel, queue: Maker
) -> None:
    name = queue()
    fill(channel, name, 3)
    consuming = connect().channel()
    consuming.basic_qos(prefetch_count=1)
    inbox = Inbox(consuming, name)
    for count in range(1, 6):
        inbox.wait_for(count)
        consuming.basic_reject(inbox.tags[-1])
    inbox.wait_for(6)
    assert [(delivery.body, delivery.redelivered) for delivery in inbox.deliveries] == [(b"0", False)] + [(b"0", True)] * 5


def test_redelivered_mark_stays_with_the_message(connect: Connect, channel: BlockingChannel, queue: Maker) -> None:
    name = queue()
    fill(channel, name, 2)
    for _ in range(2):
        getting = connect().channel()
        getting.basic_get(name)
        getting.close()
        eventually(lambda: ready(channel, name) == 2)
    assert take_all_flagged(channel, name) == [(True, b"0"), (False, b"1")]
