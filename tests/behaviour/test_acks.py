"""Settling deliveries: ack, nack and reject, one or many, and what is refused."""

from __future__ import annotations

from collections.abc import Callable

import pamqp.commands as amqp
import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from behaviour.helpers import Inbox, confirming, fence, fill, ready, take_all, take_all_flagged
from support import eventually
from wire_client import WireClient

Maker = Callable[..., str]
Connect = Callable[..., pika.BlockingConnection]

ACK, REJECT, NACK = (60, 80), (60, 90), (60, 120)


@pytest.fixture
def channel(connection: pika.BlockingConnection) -> BlockingChannel:
    """In confirm mode: what was published has reached its queues when basic_publish returns."""
    return confirming(connection)


@pytest.fixture
def inbox(connect: Connect, channel: BlockingChannel, queue: Maker) -> Inbox:
    """A consumer that has been given "0" to "9" with the tags 1 to 10."""
    name = queue()
    fill(channel, name, 10)
    inbox = Inbox(connect().channel(), name)
    inbox.wait_for(10)
    return inbox


def left(inbox: Inbox, channel: BlockingChannel, count: int) -> list[bytes]:
    """What returns to the queue when the consumer's channel closes."""
    inbox.channel.close()
    eventually(lambda: ready(channel, inbox.queue) == count)
    return take_all(channel, inbox.queue)


# --- what is acked is gone -----------------------------------------------------------------------------------------------


def test_ack_takes_one(inbox: Inbox, channel: BlockingChannel) -> None:
    inbox.ack(4)
    assert left(inbox, channel, 9) == [b"0", b"1", b"2", b"4", b"5", b"6", b"7", b"8", b"9"]


def test_acks_may_come_in_any_order(inbox: Inbox, channel: BlockingChannel) -> None:
    inbox.ack(10, 1, 7, 3, 8, 2)
    assert left(inbox, channel, 4) == [b"3", b"4", b"5", b"8"]


def test_multiple_ack_takes_all_up_to_it(inbox: Inbox, channel: BlockingChannel) -> None:
    inbox.ack(2)
    inbox.channel.basic_ack(6, multiple=True)
    assert left(inbox, channel, 4) == [b"6", b"7", b"8", b"9"]


def test_multiple_ack_of_tag_zero_takes_everything(inbox: Inbox, channel: BlockingChannel) -> None:
    inbox.channel.basic_ack(0, multiple=True)
    assert left(inbox, channel, 0) == []


@pytest.mark.parametrize("method", [amqp.Basic.Ack, amqp.Basic.Nack])
def test_multiple_of_tag_zero_with_nothing_unacked_is_ok(wire: WireClient, method: type[amqp.Frame]) -> None:
    wire.method(1, method(delivery_tag=0, multiple=True))
    wire.expect_silence(1)


def test_multiple_ack_covers_all_queues_of_the_channel(
    connect: Connect, channel: BlockingChannel, queue: Maker
) -> None:
    consuming = connect().channel()
    inboxes = [Inbox(consuming, queue()) for _ in range(3)]
    for inbox in inboxes:
        fill(channel, inbox.queue, 3)
    for inbox in inboxes:
        inbox.wait_for(3)
    consuming.basic_ack(9, multiple=True)
    consuming.close()
    for inbox in inboxes:
        fence(channel, inbox.queue)
        assert ready(channel, inbox.queue) == 0


def test_thousands_of_single_acks(connect: Connect, channel: BlockingChannel, queue: Maker) -> None:
    name = queue()
    fill(channel, name, 3000)
    inbox = Inbox(connect().channel(), name)
    inbox.wait_for(3000)
    inbox.ack(*reversed(inbox.tags))
    assert left(inbox, channel, 0) == []


# --- nack and reject -----------------------------------------------------------------------------------------------------


def test_nack_without_requeue_drops(inbox: Inbox, channel: BlockingChannel) -> None:
    inbox.channel.basic_nack(3, requeue=False)
    inbox.channel.basic_nack(6, multiple=True, requeue=False)
    assert left(inbox, channel, 4) == [b"6", b"7", b"8", b"9"]


def test_reject_without_requeue_drops(inbox: Inbox, channel: BlockingChannel) -> None:
    inbox.channel.basic_reject(3, requeue=False)
    assert left(inbox, channel, 9) == [b"0", b"1", b"3", b"4", b"5", b"6", b"7", b"8", b"9"]


def test_nack_multiple_of_tag_zero_drops_everything(inbox: Inbox, channel: BlockingChannel) -> None:
    inbox.channel.basic_nack(0, multiple=True, requeue=False)
    assert left(inbox, channel, 0) == []


@pytest.mark.parametrize("how", ["nack", "reject"])
def test_requeued_message_is_ready_and_marked(inbox: Inbox, channel: BlockingChannel, how: str) -> None:
    inbox.channel.basic_cancel(inbox.tag)
    if how == "nack":
        inbox.channel.basic_nack(5)
    else:
        inbox.channel.basic_reject(5)
    eventually(lambda: ready(channel, inbox.queue) == 1)
    assert take_all_flagged(channel, inbox.queue) == [(True, b"4")]


def test_nack_multiple_requeues_all_up_to_it(inbox: Inbox, channel: BlockingChannel) -> None:
    inbox.channel.basic_cancel(inbox.tag)
    inbox.channel.basic_nack(4, multiple=True)
    eventually(lambda: ready(channel, inbox.queue) == 4)
    assert take_all_flagged(channel, inbox.queue) == [(True, b"0"), (True, b"1"), (True, b"2"), (True, b"3")]


def test_requeued_message_goes_to_another_consumer(inbox: Inbox, connect: Connect) -> None:
    other = Inbox(connect().channel(), inbox.queue)
    inbox.channel.basic_cancel(inbox.tag)
    inbox.channel.basic_reject(1)
    assert other.wait_for(1) == [b"0"]
    assert other.deliveries[0].redelivered


# --- what is refused -----------------------------------------------------------------------------------------------------

SETTLES = [
    pytest.param(lambda tag: amqp.Basic.Ack(delivery_tag=tag), ACK, id="ack"),
    pytest.param(lambda tag: amqp.Basic.Ack(delivery_tag=tag, multiple=True), ACK, id="ack multiple"),
    pytest.param(lambda tag: amqp.Basic.Nack(delivery_tag=tag), NACK, id="nack"),
    pytest.param(lambda tag: amqp.Basic.Nack(delivery_tag=tag, requeue=False), NACK, id="nack without requeue"),
    pytest.param(lambda tag: amqp.Basic.Nack(delivery_tag=tag, multiple=True), NACK, id="nack multiple"),
    pytest.param(lambda tag: amqp.Basic.Reject(delivery_tag=tag), REJECT, id="reject"),
    pytest.param(lambda tag: amqp.Basic.Reject(delivery_tag=tag, requeue=False), REJECT, id="reject without requeue"),
]


@pytest.mark.parametrize("settle, ids", SETTLES)
def test_tag_that_was_never_given(
    wire: WireClient, settle: Callable[[int], amqp.Frame], ids: tuple[int, int]
) -> None:
    wire.method(1, settle(82))
    wire.expect_channel_close(1, 406, "unknown delivery tag 82", *ids)


@pytest.mark.parametrize("settle, ids", SETTLES)
def test_tag_above_the_last_one(
    wire: WireClient, channel: BlockingChannel, queue: Maker, settle: Callable[[int], amqp.Frame], ids: tuple[int, int]
) -> None:
    name = queue()
    fill(channel, name, 2)
    for _ in range(2):
        wire.method(1, amqp.Basic.Get(queue=name))
        wire.expect_content(1, amqp.Basic.GetOk)
    wire.method(1, settle(3))
    wire.expect_channel_close(1, 406, "unknown delivery tag 3", *ids)
    eventually(lambda: ready(channel, name) == 2)


@pytest.mark.parametrize("settle, ids", SETTLES)
def test_tag_that_is_settled_already(
    wire: WireClient, channel: BlockingChannel, queue: Maker, settle: Callable[[int], amqp.Frame], ids: tuple[int, int]
) -> None:
    name = queue()
    fill(channel, name, 3)
    for _ in range(3):
        wire.method(1, amqp.Basic.Get(queue=name))
        wire.expect_content(1, amqp.Basic.GetOk)
    wire.method(1, amqp.Basic.Ack(delivery_tag=2))
    wire.method(1, settle(2))
    wire.expect_channel_close(1, 406, "unknown delivery tag 2", *ids)
    eventually(lambda: ready(channel, name) == 2)
    assert take_all_flagged(channel, name) == [(True, b"0"), (True, b"2")]


@pytest.mark.parametrize("settle, ids", SETTLES)
def test_tag_of_a_delivery_without_ack(
    wire: WireClient, channel: BlockingChannel, queue: Maker, settle: Callable[[int], amqp.Frame], ids: tuple[int, int]
) -> None:
    name = queue()
    wire.call(1, amqp.Basic.Consume(queue=name, no_ack=True), amqp.Basic.ConsumeOk)
    fill(channel, name, 1)
    assert wire.expect_content(1, amqp.Basic.Deliver).method.delivery_tag == 1
    wire.method(1, settle(1))
    wire.expect_channel_close(1, 406, "unknown delivery tag 1", *ids)


@pytest.mark.parametrize(
    "settle, ids", [param for param in SETTLES if param.id not in {"ack multiple", "nack multiple"}]
)
def test_tag_zero_is_no_single_delivery(
    wire: WireClient, channel: BlockingChannel, queue: Maker, settle: Callable[[int], amqp.Frame], ids: tuple[int, int]
) -> None:
    name = queue()
    fill(channel, name, 1)
    wire.method(1, amqp.Basic.Get(queue=name))
    wire.expect_content(1, amqp.Basic.GetOk)
    wire.method(1, settle(0))
    wire.expect_channel_close(1, 406, "unknown delivery tag 0", *ids)


def test_tags_belong_to_their_channel(wire: WireClient, channel: BlockingChannel, queue: Maker) -> None:
    name = queue()
    fill(channel, name, 1)
    wire.open_channel(2)
    wire.method(1, amqp.Basic.Get(queue=name))
    wire.expect_content(1, amqp.Basic.GetOk)
    wire.method(2, amqp.Basic.Ack(delivery_tag=1))
    wire.expect_channel_close(2, 406, "unknown delivery tag 1", *ACK)
    wire.method(1, amqp.Basic.Ack(delivery_tag=1))
    wire.expect_silence(1)
    assert ready(channel, name) == 0


def test_acks_before_the_refused_one_count(inbox: Inbox, channel: BlockingChannel) -> None:
    inbox.ack(1, 2, 3)
    with pytest.raises(pika.exceptions.ChannelClosedByBroker):
        inbox.channel.basic_ack(1)
        fence(inbox.channel, inbox.queue)
    eventually(lambda: ready(channel, inbox.queue) == 7)
    assert take_all_flagged(channel, inbox.queue)[0] == (True, b"3")
