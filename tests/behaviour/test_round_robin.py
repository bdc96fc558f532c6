"""Consumers of one queue take turns; one that is not ready is passed over."""

from __future__ import annotations

from collections.abc import Callable

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from behaviour.helpers import Inbox, confirming, fill, wait_until

Maker = Callable[..., str]
Connect = Callable[..., pika.BlockingConnection]


@pytest.fixture
def channel(connection: pika.BlockingConnection) -> BlockingChannel:
    """In confirm mode: what was published has reached its queues when basic_publish returns."""
    return confirming(connection)


def wait_for_all(inboxes: list[Inbox], count: int) -> None:
    wait_until(lambda: sum(len(inbox.bodies) for inbox in inboxes) >= count, *(inbox.channel for inbox in inboxes))


@pytest.mark.parametrize("apart", ["same channel", "channels", "connections"])
@pytest.mark.parametrize("no_ack", [False, True])
def test_consumers_get_the_same_number(
    connect: Connect, channel: BlockingChannel, queue: Maker, apart: str, no_ack: bool
) -> None:
    name = queue()
    if apart == "same channel":
        consuming = connect().channel()
        channels = [consuming] * 3
    elif apart == "channels":
        connection = connect()
        channels = [connection.channel() for _ in range(3)]
    else:
        channels = [connect().channel() for _ in range(3)]
    inboxes = [Inbox(each, name, auto_ack=no_ack) for each in channels]
    fill(channel, name, 300)
    wait_for_all(inboxes, 300)
    assert [len(inbox.bodies) for inbox in inboxes] == [100, 100, 100]


def test_messages_go_round_one_by_one(connect: Connect, channel: BlockingChannel, queue: Maker) -> None:
    name = queue()
    consuming = connect().channel()
    inboxes = [Inbox(consuming, name) for _ in range(3)]
    bodies = fill(channel, name, 9)
    wait_for_all(inboxes, 9)
    assert sorted(inbox.bodies for inbox in inboxes) == sorted([bodies[0::3], bodies[1::3], bodies[2::3]])


def test_busy_consumer_is_passed_over(connect: Connect, channel: BlockingChannel, queue: Maker) -> None:
    name = queue()
    busy, free = connect().channel(), connect().channel()
    busy.basic_qos(prefetch_count=1)
    inboxes = [Inbox(busy, name), Inbox(free, name)]
    fill(channel, name, 20)
    wait_for_all(inboxes, 20)
    assert [len(inbox.bodies) for inbox in inboxes] == [1, 19]


def test_consumer_that_has_acked_takes_part_again(connect: Connect, channel: BlockingChannel, queue: Maker) -> None:
    name = queue()
    inboxes = []
    for _ in range(2):
        consuming = connect().channel()
        consuming.basic_qos(prefetch_count=1)
        inboxes.append(Inbox(consuming, name))
    fill(channel, name, 40)
    acked = [0, 0]

    def ack_each() -> bool:
        for number, inbox in enumerate(inboxes):
            for delivery in inbox.deliveries[acked[number] :]:
                inbox.ack(delivery.tag)
                acked[number] += 1
        return sum(acked) == 40

    wait_until(ack_each, *(inbox.channel for inbox in inboxes))
    assert min(acked) >= 10, f"one of them was hardly served: {acked}"


def test_the_others_share_when_one_leaves(connect: Connect, channel: BlockingChannel, queue: Maker) -> None:
    name = queue()
    inboxes = [Inbox(connect().channel(), name) for _ in range(3)]
    fill(channel, name, 30)
    wait_for_all(inboxes, 30)
    leaving = inboxes.pop()
    leaving.channel.basic_cancel(leaving.tag)
    fill(channel, name, 30)
    wait_for_all(inboxes, 50)
    assert [len(inbox.bodies) for inbox in inboxes] == [25, 25]


def test_newcomer_gets_its_share(connect: Connect, channel: BlockingChannel, queue: Maker) -> None:
    name = queue()
    inboxes = [Inbox(connect().channel(), name)]
    fill(channel, name, 10)
    wait_for_all(inboxes, 10)
    inboxes.append(Inbox(connect().channel(), name))
    fill(channel, name, 20)
    wait_for_all(inboxes, 30)
    assert [len(inbox.bodies) for inbox in inboxes] == [20, 10]
