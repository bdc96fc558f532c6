"""x-single-active-consumer: one consumer of the queue gets everything; the others wait until it has gone."""

from __future__ import annotations

from collections.abc import Callable

import pamqp.commands as amqp
import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from behaviour.helpers import Inbox, confirming, fill, ready, take_all, wait_until, wire_deliveries
from support import eventually
from wire_client import WireClient

Maker = Callable[..., str]
Connect = Callable[..., pika.BlockingConnection]

CONSUME = (60, 20)
SINGLE = {"x-single-active-consumer": True}
ENDS = ["cancel", "close the channel", "close the connection"]


@pytest.fixture
def channel(connection: pika.BlockingConnection) -> BlockingChannel:
    """In confirm mode: what was published has reached its queues when basic_publish returns."""
    return confirming(connection)


@pytest.fixture
def inbox(connect: Connect) -> Callable[..., Inbox]:
    """`inbox(queue, prefetch=0, ...)` is a consumer on a connection of its own."""

    def open_inbox(queue: str, prefetch: int = 0, **consume: object) -> Inbox:
        channel = connect().channel()
        channel.basic_qos(prefetch_count=prefetch)
        return Inbox(channel, queue, **consume)

    return open_inbox


def end(inbox: Inbox, how: str) -> None:
    if how == "cancel":
        inbox.channel.basic_cancel(inbox.tag)
    elif how == "close the channel":
        inbox.channel.close()
    else:
        inbox.channel.connection.close()


def consume(client: WireClient, queue: str, prefetch: int) -> None:
    client.call(1, amqp.Basic.Qos(prefetch_count=prefetch), amqp.Basic.QosOk)
    client.call(1, amqp.Basic.Consume(queue=queue), amqp.Basic.ConsumeOk)


def test_first_consumer_gets_everything(
    channel: BlockingChannel, queue: Maker, inbox: Callable[..., Inbox]
) -> None:
    name = queue(arguments=SINGLE)
    first, second, third = (inbox(name) for _ in range(3))
    bodies = fill(channel, name, 30)
    assert first.wait_for(30) == bodies
    assert (second.settled(), third.settled()) == ([], [])


def test_all_consumers_are_counted(channel: BlockingChannel, queue: Maker) -> None:
    name = queue(arguments=SINGLE)
    for _ in range(3):
        Inbox(channel, name)
    assert channel.queue_declare(name, passive=True).method.consumer_count == 3


def test_consumers_of_one_channel_take_turns_too(channel: BlockingChannel, queue: Maker) -> None:
    name = queue(arguments=SINGLE)
    first, second = Inbox(channel, name), Inbox(channel, name)
    fill(channel, name, 3)
    first.wait_for(3)
    channel.basic_cancel(first.tag)
    fill(channel, name, 2, start=3)
    assert second.wait_for(2) == [b"3", b"4"]


@pytest.mark.parametrize("how", ENDS)
def test_next_one_takes_over(
    channel: BlockingChannel, queue: Maker, inbox: Callable[..., Inbox], how: str
) -> None:
    name = queue(arguments=SINGLE)
    first, second, third = (inbox(name, auto_ack=True) for _ in range(3))
    fill(channel, name, 5)
    first.wait_for(5)
    end(first, how)
    bodies = fill(channel, name, 5, start=5)
    assert second.wait_for(5) == bodies
    assert third.settled() == []
    end(second, how)
    bodies = fill(channel, name, 5, start=10)
    assert third.wait_for(5) == bodies


def test_next_one_takes_over_when_the_connection_is_lost(
    raw: Callable[..., WireClient], channel: BlockingChannel, queue: Maker, inbox: Callable[..., Inbox]
) -> None:
    name = queue(arguments=SINGLE)
    client = raw().open()
    client.open_channel(1)
    client.call(1, amqp.Basic.Consume(queue=name), amqp.Basic.ConsumeOk)
    second = inbox(name)
    bodies = fill(channel, name, 3)
    client.close()
    assert second.wait_for(3) == bodies
    assert [delivery.redelivered for delivery in second.deliveries] == [True] * 3


def test_waiting_consumer_that_leaves_is_passed_over(
    channel: BlockingChannel, queue: Maker, inbox: Callable[..., Inbox]
) -> None:
    name = queue(arguments=SINGLE)
    first, second, third = (inbox(name) for _ in range(3))
    end(second, "cancel")
    end(first, "close the connection")
    bodies = fill(channel, name, 2)
    assert third.wait_for(2) == bodies


def test_queue_keeps_messages_while_nobody_is_left(
    channel: BlockingChannel, queue: Maker, inbox: Callable[..., Inbox]
) -> None:
    name = queue(arguments=SINGLE)
    end(inbox(name), "cancel")
    bodies = fill(channel, name, 3)
    assert inbox(name).wait_for(3) == bodies


def test_consumer_that_comes_back_stands_at_the_end(
    channel: BlockingChannel, queue: Maker, inbox: Callable[..., Inbox]
) -> None:
    name = queue(arguments=SINGLE)
    first, second = inbox(name), inbox(name)
    end(first, "cancel")
    again = Inbox(first.channel, name)
    bodies = fill(channel, name, 2)
    assert second.wait_for(2) == bodies
    assert again.settled() == []


def test_cancelled_consumer_keeps_its_unacked_messages(
    channel: BlockingChannel, queue: Maker, inbox: Callable[..., Inbox]
) -> None:
    name = queue(arguments=SINGLE)
    first, second = inbox(name), inbox(name)
    fill(channel, name, 2)
    first.wait_for(2)
    end(first, "cancel")
    fill(channel, name, 2, start=2)
    assert second.wait_for(2) == [b"2", b"3"]
    first.channel.basic_ack(first.tags[0])
    first.channel.basic_nack(first.tags[1])
    assert second.wait_for(3)[2:] == [b"1"]
    assert second.deliveries[-1].redelivered


@pytest.mark.differs("RabbitMQ 3.10's queue crashes after the active one was cancelled with its prefetch used up")
def test_next_one_gets_at_once_what_the_cancelled_one_might_not_take(
    channel: BlockingChannel, queue: Maker, inbox: Callable[..., Inbox]
) -> None:
    name = queue(arguments=SINGLE)
    first, second = inbox(name, prefetch=2), inbox(name)
    fill(channel, name, 4)
    first.wait_for(2)
    end(first, "cancel")
    assert second.wait_for(2) == [b"2", b"3"]


@pytest.mark.parametrize("how", ["close the channel", "lose the connection"])
def test_messages_of_the_one_that_died_come_again_first(
    wire: WireClient, channel: BlockingChannel, queue: Maker, inbox: Callable[..., Inbox], how: str
) -> None:
    """A wire client, because pika cancels its consumers before it closes a channel."""
    name = queue(arguments=SINGLE)
    consume(wire, name, prefetch=3)
    second = inbox(name)
    bodies = fill(channel, name, 6)
    tags = [delivered.method.delivery_tag for delivered in wire_deliveries(wire, 1, 3)]
    wire.method(1, amqp.Basic.Ack(tags[0]))
    wire_deliveries(wire, 1, 1)
    if how == "close the channel":
        wire.call(1, amqp.Channel.Close(200, "", 0, 0), amqp.Channel.CloseOk)
    else:
        wire.close()
    assert second.wait_for(5) == bodies[1:]
    assert [delivery.redelivered for delivery in second.deliveries] == [True] * 3 + [False] * 2


def test_others_get_nothing_while_the_active_one_may_take_no_more(
    channel: BlockingChannel, queue: Maker, inbox: Callable[..., Inbox]
) -> None:
    name = queue(arguments=SINGLE)
    first, second = inbox(name, prefetch=1), inbox(name, prefetch=10)
    bodies = fill(channel, name, 3)
    first.wait_for(1)
    assert (second.settled(), ready(channel, name)) == ([], 2)
    for count in range(1, 3):
        first.ack(first.deliveries[-1].tag)
        first.wait_for(count + 1)
    assert (first.bodies, second.settled()) == (bodies, [])


def test_nacked_message_returns_to_the_active_one(
    channel: BlockingChannel, queue: Maker, inbox: Callable[..., Inbox]
) -> None:
    name = queue(arguments=SINGLE)
    first, second = inbox(name, prefetch=1), inbox(name)
    fill(channel, name, 2)
    first.wait_for(1)
    first.channel.basic_nack(first.tags[0])
    assert first.wait_for(2) == [b"0", b"0"]
    assert (first.deliveries[1].redelivered, second.settled()) == (True, [])


def test_consumer_of_higher_priority_does_not_take_over(
    channel: BlockingChannel, queue: Maker, inbox: Callable[..., Inbox]
) -> None:
    name = queue(arguments=SINGLE)
    first = inbox(name, arguments={"x-priority": 1})
    important = inbox(name, arguments={"x-priority": 100})
    bodies = fill(channel, name, 5)
    assert first.wait_for(5) == bodies
    assert important.settled() == []


def test_of_those_who_wait_the_highest_priority_is_next(
    channel: BlockingChannel, queue: Maker, inbox: Callable[..., Inbox]
) -> None:
    name = queue(arguments=SINGLE)
    first = inbox(name)
    low, high = inbox(name, arguments={"x-priority": 1}), inbox(name, arguments={"x-priority": 5})
    end(first, "cancel")
    bodies = fill(channel, name, 2)
    assert high.wait_for(2) == bodies
    assert low.settled() == []


def test_get_is_allowed_beside_it(channel: BlockingChannel, queue: Maker, inbox: Callable[..., Inbox]) -> None:
    name = queue(arguments=SINGLE)
    active = inbox(name, prefetch=1)
    fill(channel, name, 3)
    active.wait_for(1)
    assert take_all(channel, name) == [b"1", b"2"]


def test_get_is_allowed_without_consumers(channel: BlockingChannel, queue: Maker) -> None:
    name = queue(arguments=SINGLE)
    bodies = fill(channel, name, 2)
    assert take_all(channel, name) == bodies


@pytest.mark.parametrize("others", [0, 1])
def test_exclusive_consumer_is_refused(wire: WireClient, channel: BlockingChannel, queue: Maker, others: int) -> None:
    name = queue(arguments=SINGLE)
    for _ in range(others):
        Inbox(channel, name)
    wire.method(1, amqp.Basic.Consume(queue=name, exclusive=True))
    wire.expect_channel_close(1, 403, f"queue '{name}' in vhost '/' in exclusive use", *CONSUME)


def test_auto_delete_waits_for_the_last_consumer(
    channel: BlockingChannel, queue: Maker, inbox: Callable[..., Inbox]
) -> None:
    name = queue(auto_delete=True, arguments=SINGLE)
    first, second = inbox(name), inbox(name)
    end(first, "cancel")
    bodies = fill(channel, name, 1)
    assert second.wait_for(1) == bodies


def test_false_is_an_ordinary_queue(channel: BlockingChannel, queue: Maker, inbox: Callable[..., Inbox]) -> None:
    name = queue(arguments={"x-single-active-consumer": False})
    first, second = inbox(name), inbox(name)
    fill(channel, name, 10)
    wait_until(lambda: len(first.bodies) + len(second.bodies) == 10, first.channel, second.channel)
    assert (len(first.bodies), len(second.bodies)) == (5, 5)


def test_order_is_kept_over_many_changes(raw: Callable[..., WireClient], channel: BlockingChannel, queue: Maker) -> None:
    """Ten consumers, each of which acks eight messages and dies with the next two unacked."""
    name = queue(arguments=SINGLE)
    clients = []
    for _ in range(10):
        clients.append(raw().open())
        clients[-1].open_channel(1)
        consume(clients[-1], name, prefetch=2)
    bodies = fill(channel, name, 90)
    acked: list[bytes] = []
    for client in clients:
        held = wire_deliveries(client, 1, 2)
        for _ in range(8):
            first = held.pop(0)
            client.method(1, amqp.Basic.Ack(first.method.delivery_tag))
            acked.append(first.body)
            held += wire_deliveries(client, 1, 1)
        client.close()
    assert acked == bodies[:80]
    eventually(lambda: ready(channel, name) == 10)
    assert take_all(channel, name) == bodies[80:]
