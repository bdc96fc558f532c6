"""x-max-length and x-max-length-bytes: what happens to the message that is one too many."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pamqp.commands as amqp
import pika
import pika.exceptions
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from behaviour.helpers import Inbox, confirming, confirms, fence, fill, ready, take_all, take_all_flagged
from support import eventually
from wire_client import WireClient

Maker = Callable[..., str]
Connect = Callable[..., pika.BlockingConnection]

COMMIT = (90, 20)
REJECTS = ["reject-publish", "reject-publish-dlx"]


@pytest.fixture
def channel(connection: pika.BlockingConnection) -> BlockingChannel:
    """In confirm mode: what was published has reached its queues when basic_publish returns."""
    return confirming(connection)


def limited(length: int | None = None, octets: int | None = None, overflow: str | None = None) -> dict[str, Any]:
    arguments = {"x-max-length": length, "x-max-length-bytes": octets, "x-overflow": overflow}
    return {key: value for key, value in arguments.items() if value is not None}


def refused(channel: BlockingChannel, queue: str, body: bytes = b"x") -> bool:
    """Publishes to the queue and says whether the broker refused it."""
    try:
        channel.basic_publish("", queue, body)
    except pika.exceptions.NackError:
        return True
    return False


# --- drop-head ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("overflow", [None, "drop-head"], ids=["by default", "asked for"])
def test_oldest_messages_are_dropped(channel: BlockingChannel, queue: Maker, overflow: str | None) -> None:
    name = queue(arguments=limited(3, overflow=overflow))
    fill(channel, name, 10)
    assert ready(channel, name) == 3
    assert take_all(channel, name) == [b"7", b"8", b"9"]


def test_up_to_its_length_the_queue_drops_nothing(channel: BlockingChannel, queue: Maker) -> None:
    name = queue(arguments=limited(10))
    assert fill(channel, name, 10) == take_all(channel, name)


def test_length_zero_keeps_nothing(channel: BlockingChannel, queue: Maker) -> None:
    name = queue(arguments=limited(0))
    fill(channel, name, 3)
    assert take_all(channel, name) == []


@pytest.mark.parametrize("arguments", [limited(0), limited(octets=0)], ids=["messages", "bytes"])
def test_length_zero_delivers_to_a_consumer_that_waits(
    channel: BlockingChannel, queue: Maker, arguments: dict[str, Any]
) -> None:
    inbox = Inbox(channel, queue(arguments=arguments))
    bodies = fill(channel, inbox.queue, 3)
    assert inbox.wait_for(3) == bodies


def test_bytes_of_bodies_are_counted(channel: BlockingChannel, queue: Maker) -> None:
    name = queue(arguments=limited(octets=10))
    channel.basic_publish("", name, b"1234", pika.BasicProperties(headers={"not": "counted" * 100}))
    channel.basic_publish("", name, b"123456")
    assert ready(channel, name) == 2
    channel.basic_publish("", name, b"x")
    assert take_all(channel, name) == [b"123456", b"x"]


def test_as_many_are_dropped_as_the_new_one_needs(channel: BlockingChannel, queue: Maker) -> None:
    name = queue(arguments=limited(octets=10))
    for _ in range(5):
        channel.basic_publish("", name, b"12")
    channel.basic_publish("", name, b"12345678")
    assert take_all(channel, name) == [b"12", b"12345678"]


def test_message_larger_than_the_limit_empties_the_queue_and_goes_itself(
    channel: BlockingChannel, queue: Maker
) -> None:
    name = queue(arguments=limited(octets=10))
    fill(channel, name, 5)
    channel.basic_publish("", name, b"12345678901")
    assert take_all(channel, name) == []


def test_empty_bodies_need_no_bytes(channel: BlockingChannel, queue: Maker) -> None:
    name = queue(arguments=limited(octets=0))
    for _ in range(5):
        channel.basic_publish("", name, b"")
    assert take_all(channel, name) == [b""] * 5


@pytest.mark.parametrize("limits", [limited(2, 100), limited(100, 2)], ids=["messages", "bytes"])
def test_whichever_limit_is_reached_first_counts(
    channel: BlockingChannel, queue: Maker, limits: dict[str, Any]
) -> None:
    name = queue(arguments=limits)
    fill(channel, name, 5)
    assert take_all(channel, name) == [b"3", b"4"]


def test_unacked_messages_are_not_counted(channel: BlockingChannel, queue: Maker) -> None:
    name = queue(arguments=limited(2))
    channel.basic_qos(prefetch_count=2)
    inbox = Inbox(channel, name)
    bodies = fill(channel, name, 4)
    assert inbox.wait_for(2) == bodies[:2]
    assert ready(channel, name) == 2
    inbox.ack(*inbox.tags)
    assert inbox.wait_for(4) == bodies


def test_unacked_bytes_are_not_counted(channel: BlockingChannel, queue: Maker) -> None:
    name = queue(arguments=limited(octets=4))
    channel.basic_publish("", name, b"1234")
    assert channel.basic_get(name)[2] == b"1234"
    channel.basic_publish("", name, b"5678")
    assert ready(channel, name) == 1


@pytest.mark.parametrize("how", ["nack", "recover", "close"])
def test_requeueing_above_the_limit_drops_from_the_head(
    channel: BlockingChannel, connect: Connect, queue: Maker, how: str
) -> None:
    """The head is where the requeued messages return to, so they are what goes."""
    name = queue(arguments=limited(3))
    fill(channel, name, 3)
    getting = connect().channel()
    for _ in range(3):
        tag = getting.basic_get(name)[0].delivery_tag
    fill(channel, name, 2, start=3)
    if how == "nack":
        getting.basic_nack(tag, multiple=True)
        fence(getting, name)
    elif how == "recover":
        getting.basic_recover(requeue=True)
        fence(getting, name)
    else:
        getting.close()
    eventually(lambda: ready(channel, name) == 3)
    assert take_all_flagged(channel, name) == [(True, b"2"), (False, b"3"), (False, b"4")]


def test_consumer_that_keeps_up_gets_everything(channel: BlockingChannel, queue: Maker) -> None:
    inbox = Inbox(channel, queue(arguments=limited(1)), auto_ack=True)
    bodies = fill(channel, inbox.queue, 100)
    assert inbox.wait_for(100) == bodies


def test_dropped_messages_are_confirmed(wire: WireClient, queue: Maker) -> None:
    name = queue(durable=True, arguments=limited(1))
    wire.call(1, amqp.Confirm.Select(), amqp.Confirm.SelectOk)
    for _ in range(20):
        wire.publish(1, "", name, b"x")
    assert confirms(wire, 1, upto=20) == [("ack", tag) for tag in range(1, 21)]


def test_dropped_persistent_messages_are_confirmed(channel: BlockingChannel, queue: Maker) -> None:
    name = queue(durable=True, arguments=limited(1))
    for number in range(10):
        channel.basic_publish("", name, b"%d" % number, pika.BasicProperties(delivery_mode=2))
    assert take_all(channel, name) == [b"9"]


def test_limit_of_one_queue_does_not_touch_another(channel: BlockingChannel, queue: Maker, exchange: Maker) -> None:
    source, small, large = exchange("fanout"), queue(arguments=limited(1)), queue()
    for name in (small, large):
        channel.queue_bind(name, source)
    for body in (b"0", b"1", b"2"):
        channel.basic_publish(source, "", body)
    assert (take_all(channel, small), take_all(channel, large)) == ([b"2"], [b"0", b"1", b"2"])


def test_transaction_is_held_to_the_limit_when_it_commits(
    channel: BlockingChannel, connect: Connect, queue: Maker
) -> None:
    name = queue(arguments=limited(2))
    fill(channel, name, 2)
    tx = connect().channel()
    tx.tx_select()
    for number in range(2, 5):
        tx.basic_publish("", name, b"%d" % number)
    fence(tx, name)
    assert ready(channel, name) == 2
    tx.tx_commit()
    assert take_all(channel, name) == [b"3", b"4"]


# --- reject-publish ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("overflow", REJECTS)
@pytest.mark.parametrize("limits", [{"length": 3}, {"octets": 3}], ids=["messages", "bytes"])
def test_full_queue_refuses_and_keeps_the_old_ones(
    channel: BlockingChannel, queue: Maker, overflow: str, limits: dict[str, int]
) -> None:
    name = queue(arguments=limited(**limits, overflow=overflow))
    assert [refused(channel, name, b"%d" % number) for number in range(6)] == [False] * 3 + [True] * 3
    assert take_all(channel, name) == [b"0", b"1", b"2"]


@pytest.mark.parametrize("overflow", REJECTS)
def test_refused_publishes_are_nacked_one_by_one(wire: WireClient, queue: Maker, overflow: str) -> None:
    name = queue(arguments=limited(2, overflow=overflow))
    wire.call(1, amqp.Confirm.Select(), amqp.Confirm.SelectOk)
    for _ in range(6):
        wire.publish(1, "", name, b"x")
    expected = [("ack", 1), ("ack", 2), ("nack", 3), ("nack", 4), ("nack", 5), ("nack", 6)]
    assert confirms(wire, 1, upto=6) == expected


def test_message_is_refused_that_would_take_the_queue_over_its_bytes(channel: BlockingChannel, queue: Maker) -> None:
    name = queue(arguments=limited(octets=5, overflow="reject-publish"))
    assert refused(channel, name, b"123456")
    assert not refused(channel, name, b"1234")
    assert refused(channel, name, b"12")
    assert not refused(channel, name, b"1")
    assert take_all(channel, name) == [b"1234", b"1"]


def test_length_zero_refuses_everything(channel: BlockingChannel, queue: Maker) -> None:
    name = queue(arguments=limited(0, overflow="reject-publish"))
    assert refused(channel, name)
    assert take_all(channel, name) == []


def test_length_zero_refuses_even_with_a_consumer_that_waits(channel: BlockingChannel, queue: Maker) -> None:
    inbox = Inbox(channel, queue(arguments=limited(0, overflow="reject-publish")))
    assert refused(channel, inbox.queue)
    assert inbox.settled() == []


def test_queue_takes_messages_again_when_there_is_room(channel: BlockingChannel, queue: Maker) -> None:
    name = queue(arguments=limited(1, overflow="reject-publish"))
    assert [refused(channel, name) for _ in range(2)] == [False, True]
    channel.basic_get(name)  # unacked, it is not counted
    assert [refused(channel, name) for _ in range(2)] == [False, True]
    channel.queue_purge(name)
    assert not refused(channel, name)


def test_requeueing_above_the_limit_drops_nothing_when_publishes_are_refused(
    channel: BlockingChannel, queue: Maker
) -> None:
    name = queue(arguments=limited(2, overflow="reject-publish"))
    fill(channel, name, 2)
    for _ in range(2):
        tag = channel.basic_get(name)[0].delivery_tag
    fill(channel, name, 2, start=2)
    channel.basic_nack(tag, multiple=True)
    fence(channel, name)
    assert refused(channel, name)
    assert take_all(channel, name) == [b"0", b"1", b"2", b"3"]


def test_one_full_queue_of_several_makes_it_a_nack(channel: BlockingChannel, queue: Maker, exchange: Maker) -> None:
    """The queues that have room keep the message all the same."""
    source, full, roomy = exchange("fanout"), queue(arguments=limited(0, overflow="reject-publish")), queue()
    for name in (full, roomy):
        channel.queue_bind(name, source)
    with pytest.raises(pika.exceptions.NackError):
        channel.basic_publish(source, "", b"x")
    assert (take_all(channel, full), take_all(channel, roomy)) == ([], [b"x"])


def test_refused_mandatory_message_is_not_returned(wire: WireClient, queue: Maker) -> None:
    name = queue(arguments=limited(0, overflow="reject-publish"))
    wire.call(1, amqp.Confirm.Select(), amqp.Confirm.SelectOk)
    wire.publish(1, "", name, b"x", mandatory=True)
    assert confirms(wire, 1, upto=1) == [("nack", 1)]


def test_without_confirms_the_refused_are_just_gone(
    channel: BlockingChannel, connection: pika.BlockingConnection, queue: Maker
) -> None:
    name = queue(arguments=limited(2, overflow="reject-publish"))
    plain = connection.channel()
    fill(plain, name, 5)
    fence(plain, name)
    assert take_all(channel, name) == [b"0", b"1"]


def test_transaction_of_which_a_publish_is_refused_completes_in_part_and_says_so(
    wire: WireClient, channel: BlockingChannel, queue: Maker
) -> None:
    name = queue(arguments=limited(2, overflow="reject-publish"))
    wire.call(1, amqp.Tx.Select(), amqp.Tx.SelectOk)
    for body in (b"0", b"1", b"2"):
        wire.publish(1, "", name, body)
    wire.method(1, amqp.Tx.Commit())
    wire.expect_channel_close(1, 406, "partial tx completion", *COMMIT)
    assert take_all(channel, name) == [b"0", b"1"]


def test_prefetched_messages_make_room(channel: BlockingChannel, queue: Maker) -> None:
    name = queue(arguments=limited(2, overflow="reject-publish"))
    channel.basic_qos(prefetch_count=3)
    inbox = Inbox(channel, name)
    accepted = []
    for number in range(3):
        accepted.append(refused(channel, name, b"%d" % number))
        inbox.wait_for(number + 1)
    accepted += [refused(channel, name, b"%d" % number) for number in range(3, 6)]
    assert accepted == [False] * 5 + [True]
    inbox.ack(*inbox.tags)
    assert inbox.wait_for(5) == [b"0", b"1", b"2", b"3", b"4"]


def test_expired_messages_make_room(channel: BlockingChannel, queue: Maker) -> None:
    name = queue(arguments={**limited(1, overflow="reject-publish"), "x-message-ttl": 200})
    channel.basic_publish("", name, b"old")
    eventually(lambda: not refused(channel, name))
