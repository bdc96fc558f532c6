"""Purging and deleting a queue while messages are unacked and consumers wait."""

from __future__ import annotations

from collections.abc import Callable

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from behaviour.helpers import Inbox, confirming, fence, fill, ready, take_all, take_all_flagged, wait_until
from support import eventually
from wire_client import WireClient

Maker = Callable[..., str]
Connect = Callable[..., pika.BlockingConnection]


@pytest.fixture
def channel(connection: pika.BlockingConnection) -> BlockingChannel:
    """In confirm mode: what was published has reached its queues when basic_publish returns."""
    return confirming(connection)


def test_purge_counts_what_is_ready_and_spares_what_is_unacked(
    connect: Connect, channel: BlockingChannel, queue: Maker
) -> None:
    name = queue()
    fill(channel, name, 10)
    getting = connect().channel()
    for _ in range(4):
        getting.basic_get(name)
    assert channel.queue_purge(name).method.message_count == 6
    assert channel.queue_purge(name).method.message_count == 0
    getting.basic_ack(1)
    getting.basic_nack(0, multiple=True)
    eventually(lambda: ready(channel, name) == 3)
    assert take_all_flagged(channel, name) == [(True, b"1"), (True, b"2"), (True, b"3")]


def test_delete_counts_what_is_ready(connect: Connect, channel: BlockingChannel, queue: Maker) -> None:
    name = queue()
    fill(channel, name, 10)
    getting = connect().channel()
    for _ in range(4):
        getting.basic_get(name)
    assert channel.queue_delete(name).method.message_count == 6


def test_purged_queue_goes_on(channel: BlockingChannel, queue: Maker) -> None:
    name = queue()
    fill(channel, name, 10)
    channel.queue_purge(name)
    bodies = fill(channel, name, 10, start=10)
    assert take_all(channel, name) == bodies


def test_purge_under_a_consumer(connect: Connect, channel: BlockingChannel, queue: Maker) -> None:
    name = queue()
    fill(channel, name, 10)
    consuming = connect().channel()
    consuming.basic_qos(prefetch_count=2)
    inbox = Inbox(consuming, name)
    inbox.wait_for(2)
    assert channel.queue_purge(name).method.message_count == 8
    bodies = fill(channel, name, 2, start=10)
    inbox.ack(1, 2)
    assert inbox.wait_for(4)[2:] == bodies


@pytest.mark.parametrize("how", ["ack", "nack", "reject", "close"])
def test_messages_of_a_deleted_queue_may_still_be_settled(
    connect: Connect, channel: BlockingChannel, queue: Maker, how: str
) -> None:
    name, other = queue(), queue()
    fill(channel, name, 3)
    getting = connect().channel()
    for _ in range(3):
        getting.basic_get(name)
    channel.queue_delete(name)
    if how == "ack":
        getting.basic_ack(3, multiple=True)
    elif how == "nack":
        getting.basic_nack(3, multiple=True)
    elif how == "reject":
        getting.basic_reject(2)
    else:
        getting.close()
        getting = connect().channel()
    fence(getting, other)


def test_redeclared_queue_does_not_get_the_old_ones_messages(
    connect: Connect, channel: BlockingChannel, queue: Maker
) -> None:
    name = queue()
    fill(channel, name, 6)
    getting = connect().channel()
    for _ in range(3):
        getting.basic_get(name)
    channel.queue_delete(name)
    channel.queue_declare(name)
    getting.basic_nack(0, multiple=True)
    getting.close()
    fence(channel, name)
    assert ready(channel, name) == 0
    fill(channel, name, 1)
    assert take_all(channel, name) == [b"0"]


def test_delete_frees_the_consumers_allowance_for_other_queues(
    connect: Connect, channel: BlockingChannel, queue: Maker
) -> None:
    gone, stays = queue(), queue()
    consuming = connect().channel()
    consuming.basic_qos(prefetch_count=2, global_qos=True)
    first, second = Inbox(consuming, gone), Inbox(consuming, stays)
    fill(channel, gone, 2)
    first.wait_for(2)
    channel.queue_delete(gone)
    bodies = fill(channel, stays, 2)
    first.ack(1, 2)
    wait_until(lambda: second.bodies == bodies, consuming)


def test_purge_of_many_messages(wire: WireClient, channel: BlockingChannel, queue: Maker) -> None:
    name = queue()
    for _ in range(20_000):
        wire.publish(1, "", name, b"x")
    eventually(lambda: ready(channel, name) == 20_000)
    assert channel.queue_purge(name).method.message_count == 20_000
    assert ready(channel, name) == 0
