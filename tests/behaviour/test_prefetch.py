"""basic.qos: how many unacked deliveries a consumer, or a channel, may have.

global=false is a limit of each consumer started later; global=true is one limit for all consumers of the channel, and
counts from then on. 0 is no limit.
"""

from __future__ import annotations

from collections.abc import Callable

import pamqp.commands as amqp
import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from behaviour.helpers import Inbox, confirming, fill, wait_until
from support import eventually
from wire_client import WireClient

Maker = Callable[..., str]
Connect = Callable[..., pika.BlockingConnection]


@pytest.fixture
def channel(connection: pika.BlockingConnection) -> BlockingChannel:
    """In confirm mode: what was published has reached its queues when basic_publish returns."""
    return confirming(connection)


@pytest.fixture
def consuming(connect: Connect) -> BlockingChannel:
    """A channel to consume on, on a connection of its own."""
    return connect().channel()


def exactly(inbox: Inbox, count: int) -> None:
    """The consumer is given so many, and no more."""
    inbox.wait_for(count)
    assert len(inbox.settled()) == count


# --- per consumer --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 2, 10, 99])
def test_consumer_gets_no_more_than_its_limit(
    consuming: BlockingChannel, channel: BlockingChannel, queue: Maker, count: int
) -> None:
    name = queue()
    bodies = fill(channel, name, 100)
    consuming.basic_qos(prefetch_count=count)
    inbox = Inbox(consuming, name)
    exactly(inbox, count)
    assert inbox.bodies == bodies[:count]


def test_limit_holds_for_messages_published_later(
    consuming: BlockingChannel, channel: BlockingChannel, queue: Maker
) -> None:
    name = queue()
    consuming.basic_qos(prefetch_count=3)
    inbox = Inbox(consuming, name)
    fill(channel, name, 10)
    exactly(inbox, 3)


@pytest.mark.parametrize("settle", ["ack", "nack", "reject"])
def test_each_settled_delivery_makes_room_for_one(
    consuming: BlockingChannel, channel: BlockingChannel, queue: Maker, settle: str
) -> None:
    name = queue()
    bodies = fill(channel, name, 10)
    consuming.basic_qos(prefetch_count=2)
    inbox = Inbox(consuming, name)
    for settled in range(8):
        exactly(inbox, settled + 2)
        tag = inbox.tags[settled]
        if settle == "ack":
            consuming.basic_ack(tag)
        elif settle == "nack":
            consuming.basic_nack(tag, requeue=False)
        else:
            consuming.basic_reject(tag, requeue=False)
    assert inbox.wait_for(10) == bodies


def test_multiple_ack_makes_room_for_all_of_them(
    consuming: BlockingChannel, channel: BlockingChannel, queue: Maker
) -> None:
    name = queue()
    fill(channel, name, 30)
    consuming.basic_qos(prefetch_count=10)
    inbox = Inbox(consuming, name)
    exactly(inbox, 10)
    consuming.basic_ack(7, multiple=True)
    exactly(inbox, 17)
    consuming.basic_ack(0, multiple=True)
    exactly(inbox, 27)


def test_requeued_delivery_makes_room_and_comes_again(
    consuming: BlockingChannel, channel: BlockingChannel, queue: Maker
) -> None:
    name = queue()
    fill(channel, name, 3)
    consuming.basic_qos(prefetch_count=1)
    inbox = Inbox(consuming, name)
    exactly(inbox, 1)
    consuming.basic_nack(1)
    exactly(inbox, 2)
    assert [(delivery.body, delivery.redelivered) for delivery in inbox.deliveries] == [(b"0", False), (b"0", True)]


def test_each_consumer_has_the_limit_for_itself(
    consuming: BlockingChannel, channel: BlockingChannel, queue: Maker
) -> None:
    name = queue()
    consuming.basic_qos(prefetch_count=2)
    inboxes = [Inbox(consuming, name) for _ in range(3)]
    fill(channel, name, 20)
    for inbox in inboxes:
        exactly(inbox, 2)


def test_limit_counts_for_consumers_started_later_only(
    consuming: BlockingChannel, channel: BlockingChannel, queue: Maker
) -> None:
    first, second, third = queue(), queue(), queue()
    for name in (first, second, third):
        fill(channel, name, 10)
    unlimited = Inbox(consuming, first)
    consuming.basic_qos(prefetch_count=4)
    four = Inbox(consuming, second)
    consuming.basic_qos(prefetch_count=0)
    again_unlimited = Inbox(consuming, third)
    exactly(unlimited, 10)
    exactly(four, 4)
    exactly(again_unlimited, 10)


def test_consumer_keeps_its_limit_when_qos_changes(
    consuming: BlockingChannel, channel: BlockingChannel, queue: Maker
) -> None:
    name = queue()
    fill(channel, name, 20)
    consuming.basic_qos(prefetch_count=2)
    inbox = Inbox(consuming, name)
    exactly(inbox, 2)
    consuming.basic_qos(prefetch_count=10)
    exactly(inbox, 2)
    consuming.basic_qos(prefetch_count=1)
    consuming.basic_ack(0, multiple=True)
    exactly(inbox, 4)


def test_zero_is_no_limit(consuming: BlockingChannel, channel: BlockingChannel, queue: Maker) -> None:
    name = queue()
    fill(channel, name, 500)
    consuming.basic_qos(prefetch_count=0)
    exactly(Inbox(consuming, name), 500)


def test_consumer_without_acks_is_not_limited(
    consuming: BlockingChannel, channel: BlockingChannel, queue: Maker
) -> None:
    name = queue()
    fill(channel, name, 20)
    consuming.basic_qos(prefetch_count=1)
    exactly(Inbox(consuming, name, auto_ack=True), 20)


def test_other_channels_are_not_limited(connect: Connect, channel: BlockingChannel, queue: Maker) -> None:
    name, connection = queue(), connect()
    fill(channel, name, 20)
    connection.channel().basic_qos(prefetch_count=1)
    exactly(Inbox(connection.channel(), name), 20)


# --- per channel ---------------------------------------------------------------------------------------------------------


def both(inboxes: list[Inbox], count: int) -> None:
    """All of them together are given so many, and no more."""
    wait_until(lambda: sum(len(inbox.bodies) for inbox in inboxes) >= count, inboxes[0].channel)
    assert sum(len(inbox.settled()) for inbox in inboxes) == count


def test_channel_limit_is_shared_by_its_consumers(
    consuming: BlockingChannel, channel: BlockingChannel, queue: Maker
) -> None:
    consuming.basic_qos(prefetch_count=5, global_qos=True)
    inboxes = [Inbox(consuming, queue()) for _ in range(3)]
    for inbox in inboxes:
        fill(channel, inbox.queue, 10)
    both(inboxes, 5)
    consuming.basic_ack(2, multiple=True)
    both(inboxes, 7)
    consuming.basic_ack(0, multiple=True)
    both(inboxes, 12)


def test_channel_limit_counts_for_consumers_that_are_there(
    consuming: BlockingChannel, channel: BlockingChannel, queue: Maker
) -> None:
    name = queue()
    inbox = Inbox(consuming, name)
    consuming.basic_qos(prefetch_count=3, global_qos=True)
    fill(channel, name, 10)
    exactly(inbox, 3)


def test_raising_the_channel_limit_counts_at_once(
    consuming: BlockingChannel, channel: BlockingChannel, queue: Maker
) -> None:
    name = queue()
    fill(channel, name, 20)
    consuming.basic_qos(prefetch_count=2, global_qos=True)
    inbox = Inbox(consuming, name)
    exactly(inbox, 2)
    consuming.basic_qos(prefetch_count=7, global_qos=True)
    exactly(inbox, 7)


def test_lowering_the_channel_limit_counts_at_once(
    consuming: BlockingChannel, channel: BlockingChannel, queue: Maker
) -> None:
    name = queue()
    fill(channel, name, 20)
    consuming.basic_qos(prefetch_count=5, global_qos=True)
    inbox = Inbox(consuming, name)
    exactly(inbox, 5)
    consuming.basic_qos(prefetch_count=2, global_qos=True)
    inbox.ack(1, 2, 3)
    exactly(inbox, 5)
    inbox.ack(4)
    exactly(inbox, 6)


def test_lifting_the_channel_limit_counts_at_once(
    consuming: BlockingChannel, channel: BlockingChannel, queue: Maker
) -> None:
    name = queue()
    fill(channel, name, 50)
    consuming.basic_qos(prefetch_count=1, global_qos=True)
    inbox = Inbox(consuming, name)
    exactly(inbox, 1)
    consuming.basic_qos(prefetch_count=0, global_qos=True)
    exactly(inbox, 50)


def test_both_limits_hold(consuming: BlockingChannel, channel: BlockingChannel, queue: Maker) -> None:
    first, second = queue(), queue()
    fill(channel, first, 20)
    fill(channel, second, 20)
    consuming.basic_qos(prefetch_count=4)
    consuming.basic_qos(prefetch_count=6, global_qos=True)
    inboxes = [Inbox(consuming, first)]
    exactly(inboxes[0], 4)
    inboxes.append(Inbox(consuming, second))
    both(inboxes, 6)
    assert [len(inbox.bodies) for inbox in inboxes] == [4, 2]


def test_limit_of_a_channel_is_its_own(connect: Connect, channel: BlockingChannel, queue: Maker) -> None:
    name, connection = queue(), connect()
    limited, free = connection.channel(), connection.channel()
    limited.basic_qos(prefetch_count=1, global_qos=True)
    inboxes = [Inbox(limited, name), Inbox(free, name)]
    fill(channel, name, 20)
    wait_until(lambda: sum(len(inbox.bodies) for inbox in inboxes) == 20, free)
    assert [len(inbox.bodies) for inbox in inboxes] == [1, 19]


def test_consumer_without_acks_waits_while_the_channel_limit_is_used_up(
    consuming: BlockingChannel, channel: BlockingChannel, queue: Maker
) -> None:
    acked, unacked = queue(), queue()
    consuming.basic_qos(prefetch_count=2, global_qos=True)
    with_acks = Inbox(consuming, acked)
    fill(channel, acked, 2)
    exactly(with_acks, 2)
    without = Inbox(consuming, unacked, auto_ack=True)
    fill(channel, unacked, 10)
    exactly(without, 0)
    with_acks.ack(1)
    exactly(without, 10)


def test_consumer_without_acks_uses_nothing_of_the_channel_limit(
    consuming: BlockingChannel, channel: BlockingChannel, queue: Maker
) -> None:
    name = queue()
    consuming.basic_qos(prefetch_count=2, global_qos=True)
    fill(channel, name, 10)
    exactly(Inbox(consuming, name, auto_ack=True), 10)


def test_cancelled_consumer_still_uses_the_channel_limit(
    consuming: BlockingChannel, channel: BlockingChannel, queue: Maker
) -> None:
    name = queue()
    fill(channel, name, 10)
    consuming.basic_qos(prefetch_count=3, global_qos=True)
    first = Inbox(consuming, name)
    exactly(first, 3)
    consuming.basic_cancel(first.tag)
    second = Inbox(consuming, name)
    exactly(second, 0)
    first.ack(1, 2)
    exactly(second, 2)


# --- basic.get, recover --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("per_channel", [False, True])
def test_get_is_not_counted(
    consuming: BlockingChannel, channel: BlockingChannel, queue: Maker, per_channel: bool
) -> None:
    name = queue()
    fill(channel, name, 10)
    consuming.basic_qos(prefetch_count=2, global_qos=per_channel)
    got = [consuming.basic_get(name)[2] for _ in range(5)]
    assert got == [b"0", b"1", b"2", b"3", b"4"]
    inbox = Inbox(consuming, name)
    exactly(inbox, 2)
    assert consuming.basic_get(name)[2] == b"7"
    consuming.basic_ack(1)  # fetched, not delivered
    exactly(inbox, 2)


def test_recover_frees_the_limit(consuming: BlockingChannel, channel: BlockingChannel, queue: Maker) -> None:
    name = queue()
    fill(channel, name, 5)
    consuming.basic_qos(prefetch_count=2)
    inbox = Inbox(consuming, name)
    exactly(inbox, 2)
    consuming.basic_recover(requeue=True)
    exactly(inbox, 4)
    assert [delivery.redelivered for delivery in inbox.deliveries] == [False, False, True, True]
    assert inbox.bodies == [b"0", b"1", b"0", b"1"]


def test_recover_frees_the_channel_limit(consuming: BlockingChannel, channel: BlockingChannel, queue: Maker) -> None:
    """Which messages come next is left open: RabbitMQ frees the limit before the messages are back in their places."""
    name = queue()
    fill(channel, name, 5)
    consuming.basic_qos(prefetch_count=2, global_qos=True)
    inbox = Inbox(consuming, name)
    exactly(inbox, 2)
    consuming.basic_recover(requeue=True)
    exactly(inbox, 4)


# --- fairness ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("prefetch", [1, 2, 5])
def test_channel_limit_is_shared_fairly_over_queues(
    consuming: BlockingChannel, channel: BlockingChannel, queue: Maker, prefetch: int
) -> None:
    consuming.basic_qos(prefetch_count=prefetch, global_qos=True)
    names = [queue() for _ in range(2)]
    for name in names:
        fill(channel, name, 100)
    inboxes = [Inbox(consuming, name) for name in names]
    acked = 0

    def ack_what_came() -> bool:
        nonlocal acked
        delivered = max((tag for inbox in inboxes for tag in inbox.tags), default=0)
        if delivered > acked:
            consuming.basic_ack(delivered, multiple=True)
            acked = delivered
        return acked >= 100

    wait_until(ack_what_came, consuming)
    assert all(len(inbox.bodies) >= 10 for inbox in inboxes), [len(inbox.bodies) for inbox in inboxes]


def test_limited_consumers_of_one_queue_share_it(connect: Connect, channel: BlockingChannel, queue: Maker) -> None:
    name = queue()
    inboxes = []
    for _ in range(4):
        consuming = connect().channel()
        consuming.basic_qos(prefetch_count=5)
        inboxes.append(Inbox(consuming, name))
    fill(channel, name, 100)
    for inbox in inboxes:
        exactly(inbox, 5)


def test_slow_consumer_does_not_hold_up_another_queue(
    consuming: BlockingChannel, channel: BlockingChannel, queue: Maker
) -> None:
    slow, quick = queue(), queue()
    consuming.basic_qos(prefetch_count=1)
    Inbox(consuming, slow)
    fast = Inbox(consuming, quick)
    fill(channel, slow, 10)
    bodies = fill(channel, quick, 10)
    for count in range(1, 11):
        fast.wait_for(count)
        fast.ack(fast.tags[-1])
    assert fast.bodies == bodies


def test_prefetch_size_is_refused(wire: WireClient) -> None:
    wire.method(1, amqp.Basic.Qos(prefetch_size=1000))
    wire.expect_close(540, "prefetch_size!=0 (1000)", 60, 10)


def test_limit_goes_with_the_channel(wire: WireClient, channel: BlockingChannel, queue: Maker) -> None:
    name = queue()
    fill(channel, name, 3)
    wire.call(1, amqp.Basic.Qos(prefetch_count=1), amqp.Basic.QosOk)
    wire.call(1, amqp.Channel.Close(reply_code=200, reply_text="", class_id=0, method_id=0), amqp.Channel.CloseOk)
    wire.open_channel(1)
    wire.call(1, amqp.Basic.Consume(queue=name), amqp.Basic.ConsumeOk)
    assert [wire.expect_content(1, amqp.Basic.Deliver).body for _ in range(3)] == [b"0", b"1", b"2"]


def test_what_a_limited_consumer_may_not_take_stays_ready(
    consuming: BlockingChannel, channel: BlockingChannel, queue: Maker
) -> None:
    name = queue()
    fill(channel, name, 10)
    consuming.basic_qos(prefetch_count=3)
    exactly(Inbox(consuming, name), 3)
    eventually(lambda: channel.queue_declare(name, passive=True).method.message_count == 7)
