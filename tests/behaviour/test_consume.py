"""basic.consume and basic.cancel: tags, order, and what a consumer is given."""

from __future__ import annotations

import re
from collections.abc import Callable

import pamqp.commands as amqp
import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from behaviour.helpers import (
    Inbox,
    confirming,
    fence,
    fill,
    ready,
    take_all_flagged,
    wait_until,
    wire_deliveries,
)
from support import closes_channel, eventually, unique
from wire_client import WireClient

Maker = Callable[..., str]
Connect = Callable[..., pika.BlockingConnection]

CONSUME = (60, 20)


@pytest.fixture
def channel(connection: pika.BlockingConnection) -> BlockingChannel:
    """In confirm mode: what was published has reached its queues when basic_publish returns."""
    return confirming(connection)


def consume(client: WireClient, queue: str, tag: str = "", **settings: object) -> str:
    ok = client.call(1, amqp.Basic.Consume(queue=queue, consumer_tag=tag, **settings), amqp.Basic.ConsumeOk)
    return ok.consumer_tag


def cancel(client: WireClient, tag: str) -> str:
    return client.call(1, amqp.Basic.Cancel(consumer_tag=tag), amqp.Basic.CancelOk).consumer_tag


# --- tags ----------------------------------------------------------------------------------------------------------------


def test_consumer_has_the_tag_it_asked_for(wire: WireClient, channel: BlockingChannel, queue: Maker) -> None:
    name = queue()
    assert consume(wire, name, "mine ☃") == "mine ☃"
    channel.basic_publish("", name, b"x")
    assert wire.expect_content(1, amqp.Basic.Deliver).method.consumer_tag == "mine ☃"


def test_broker_gives_tags_nobody_else_has(wire: WireClient, queue: Maker) -> None:
    name = queue()
    tags = {consume(wire, name) for _ in range(20)}
    assert len(tags) == 20
    assert all(re.fullmatch(r"amq\.ctag-[A-Za-z0-9_-]{22}", tag) for tag in tags)


def test_reusing_a_tag_closes_the_connection(wire: WireClient, queue: Maker) -> None:
    first, second = queue(), queue()
    consume(wire, first, "taken")
    wire.method(1, amqp.Basic.Consume(queue=second, consumer_tag="taken"))
    wire.expect_close(530, "attempt to reuse consumer tag 'taken'", *CONSUME)


def test_tag_may_be_used_on_every_channel(wire: WireClient, queue: Maker) -> None:
    name = queue()
    wire.open_channel(2)
    for number in (1, 2):
        ok = wire.call(number, amqp.Basic.Consume(queue=name, consumer_tag="same"), amqp.Basic.ConsumeOk)
        assert ok.consumer_tag == "same"


def test_tag_is_free_after_cancel(wire: WireClient, queue: Maker) -> None:
    name = queue()
    for _ in range(3):
        assert consume(wire, name, "again") == "again"
        cancel(wire, "again")


# --- which queue ---------------------------------------------------------------------------------------------------------


def test_absent_queue(wire: WireClient) -> None:
    name = unique("absent")
    wire.method(1, amqp.Basic.Consume(queue=name))
    wire.expect_channel_close(1, 404, f"no queue '{name}' in vhost '/'", *CONSUME)


def test_empty_name_is_the_queue_declared_last(wire: WireClient, channel: BlockingChannel, new_name: Maker) -> None:
    first, last = new_name("first"), new_name("last")
    for name in (first, last):
        wire.call(1, amqp.Queue.Declare(queue=name), amqp.Queue.DeclareOk)
    consume(wire, "")
    channel.basic_publish("", first, b"first")
    channel.basic_publish("", last, b"last")
    assert wire.expect_content(1, amqp.Basic.Deliver).body == b"last"
    wire.expect_silence(1)


def test_empty_name_without_a_declared_queue(wire: WireClient) -> None:
    wire.method(1, amqp.Basic.Consume(queue=""))
    wire.expect_channel_close(1, 404, "no previously declared queue", *CONSUME)


def test_several_queues_on_one_channel(channel: BlockingChannel, queue: Maker) -> None:
    inboxes = [Inbox(channel, queue(), auto_ack=True) for _ in range(5)]
    for inbox in inboxes:
        channel.basic_publish("", inbox.queue, inbox.queue.encode())
    for inbox in inboxes:
        assert inbox.wait_for(1) == [inbox.queue.encode()]
        assert inbox.deliveries[0].consumer_tag == inbox.tag


def test_unknown_arguments_are_ignored(channel: BlockingChannel, queue: Maker) -> None:
    name = queue()
    fill(channel, name, 1)
    assert Inbox(channel, name, arguments={"x-nonsense": {"a": [1]}}).wait_for(1) == [b"0"]


@pytest.mark.parametrize("value", [True, False])
def test_cancel_on_failover_has_no_effect(channel: BlockingChannel, queue: Maker, value: bool) -> None:
    name = queue()
    fill(channel, name, 1)
    assert Inbox(channel, name, arguments={"x-cancel-on-ha-failover": value}).wait_for(1) == [b"0"]


def test_cancel_on_failover_is_a_boolean(channel: BlockingChannel, queue: Maker) -> None:
    name = queue()
    text = f"invalid arg 'x-cancel-on-ha-failover' for queue '{name}' in vhost '/': {{unacceptable_type,longstr}}"
    with closes_channel(406, text):
        Inbox(channel, name, arguments={"x-cancel-on-ha-failover": "yes"})


def test_stream_offset_is_refused(channel: BlockingChannel, queue: Maker) -> None:
    name = queue()
    text = f"invalid arg 'x-stream-offset' for queue '{name}' in vhost '/' of queue type rabbit_classic_queue"
    with closes_channel(406, text):
        Inbox(channel, name, arguments={"x-stream-offset": "first"})


def test_declare_counts_consumers(channel: BlockingChannel, connect: Connect, queue: Maker) -> None:
    name = queue()
    mine, other = Inbox(channel, name), connect().channel()
    theirs = Inbox(other, name)
    assert channel.queue_declare(name, passive=True).method.consumer_count == 2
    channel.basic_cancel(mine.tag)
    assert channel.queue_declare(name, passive=True).method.consumer_count == 1
    other.close()
    eventually(lambda: channel.queue_declare(name, passive=True).method.consumer_count == 0)
    assert theirs.bodies == []


# --- deliveries ----------------------------------------------------------------------------------------------------------


def test_delivery_says_where_the_message_came_from(
    wire: WireClient, channel: BlockingChannel, queue: Maker, exchange: Maker
) -> None:
    name, source = queue(), exchange("topic")
    channel.queue_bind(name, source, "a.#")
    tag = consume(wire, name)
    channel.basic_publish(source, "a.b.c", b"body")
    deliver = wire.expect_content(1, amqp.Basic.Deliver).method
    assert (deliver.consumer_tag, deliver.delivery_tag, deliver.redelivered) == (tag, 1, False)
    assert (deliver.exchange, deliver.routing_key) == (source, "a.b.c")


def test_backlog_comes_in_order_and_after_the_consume_ok(
    wire: WireClient, channel: BlockingChannel, queue: Maker
) -> None:
    name = queue()
    bodies = fill(channel, name, 200)
    consume(wire, name)
    delivered = wire_deliveries(wire, 1, 200)
    assert [content.body for content in delivered] == bodies
    assert [content.method.delivery_tag for content in delivered] == list(range(1, 201))


def test_new_messages_come_behind_the_backlog(channel: BlockingChannel, queue: Maker) -> None:
    name = queue()
    fill(channel, name, 10)
    inbox = Inbox(channel, name)
    fill(channel, name, 10, start=10)
    assert inbox.wait_for(20) == [b"%d" % number for number in range(20)]


def test_delivery_tags_are_counted_by_the_channel_over_all_its_consumers(
    channel: BlockingChannel, queue: Maker
) -> None:
    inboxes = [Inbox(channel, queue()) for _ in range(3)]
    for _ in range(4):
        for inbox in inboxes:
            channel.basic_publish("", inbox.queue, b"x")
    for inbox in inboxes:
        inbox.wait_for(4)
    assert sorted(tag for inbox in inboxes for tag in inbox.tags) == list(range(1, 13))


def test_message_without_ack_is_gone_when_it_was_delivered(
    connect: Connect, channel: BlockingChannel, queue: Maker
) -> None:
    name = queue()
    fill(channel, name, 10)
    consumer = connect().channel()
    Inbox(consumer, name, auto_ack=True).wait_for(10)
    consumer.close()
    fence(channel, name)
    assert ready(channel, name) == 0


def test_message_with_ack_comes_back_when_the_channel_closes(
    connect: Connect, channel: BlockingChannel, queue: Maker
) -> None:
    name = queue()
    bodies = fill(channel, name, 10)
    consumer = connect().channel()
    Inbox(consumer, name).wait_for(10)
    consumer.close()
    eventually(lambda: ready(channel, name) == 10)
    assert take_all_flagged(channel, name) == [(True, body) for body in bodies]


def test_each_message_goes_to_one_consumer(connect: Connect, channel: BlockingChannel, queue: Maker) -> None:
    name = queue()
    inboxes = [Inbox(connect().channel(), name) for _ in range(4)]
    bodies = fill(channel, name, 100)
    wait_until(lambda: sum(len(inbox.bodies) for inbox in inboxes) >= 100, *(inbox.channel for inbox in inboxes))
    assert sorted(body for inbox in inboxes for body in inbox.bodies) == sorted(bodies)


def test_consumer_may_publish_to_its_own_queue(channel: BlockingChannel, queue: Maker) -> None:
    name = queue()
    inbox = Inbox(channel, name, auto_ack=True)
    for number in range(50):
        channel.basic_publish("", name, b"%d" % number)
        assert inbox.wait_for(number + 1)[-1] == b"%d" % number


# --- cancel --------------------------------------------------------------------------------------------------------------


def test_cancelled_consumer_gets_nothing_more(wire: WireClient, channel: BlockingChannel, queue: Maker) -> None:
    name = queue()
    tag = consume(wire, name)
    assert cancel(wire, tag) == tag
    channel.basic_publish("", name, b"x")
    wire.expect_silence(1)
    assert ready(channel, name) == 1


def test_cancelling_an_unknown_consumer_succeeds(wire: WireClient) -> None:
    assert cancel(wire, "nobody") == "nobody"


def test_cancel_does_not_requeue(channel: BlockingChannel, connect: Connect, queue: Maker) -> None:
    name = queue()
    fill(channel, name, 5)
    consumer = connect().channel()
    inbox = Inbox(consumer, name)
    inbox.wait_for(5)
    consumer.basic_cancel(inbox.tag)
    fence(consumer, name)
    assert ready(channel, name) == 0
    consumer.basic_ack(3, multiple=True)
    consumer.basic_nack(4)
    consumer.basic_nack(5, requeue=False)
    eventually(lambda: ready(channel, name) == 1)
    assert take_all_flagged(channel, name) == [(True, b"3")]


def test_other_consumers_of_the_channel_go_on(channel: BlockingChannel, queue: Maker) -> None:
    name = queue()
    first, second = Inbox(channel, name, auto_ack=True), Inbox(channel, name, auto_ack=True)
    channel.basic_cancel(first.tag)
    bodies = fill(channel, name, 10)
    assert second.wait_for(10) == bodies
    assert first.bodies == []


def test_consuming_again_goes_on_where_the_cancelled_consumer_stopped(
    channel: BlockingChannel, queue: Maker
) -> None:
    name = queue()
    bodies = fill(channel, name, 10)
    channel.basic_qos(prefetch_count=4)
    first = Inbox(channel, name)
    first.wait_for(4)
    channel.basic_cancel(first.tag)
    channel.basic_qos(prefetch_count=0)
    assert Inbox(channel, name).wait_for(6) == bodies[4:]


# --- no-wait -------------------------------------------------------------------------------------------------------------


def test_no_wait_consume_is_not_answered(wire: WireClient, channel: BlockingChannel, queue: Maker) -> None:
    name = queue()
    wire.method(1, amqp.Basic.Consume(queue=name, consumer_tag="quiet", nowait=True))
    wire.expect_silence(1)
    channel.basic_publish("", name, b"x")
    assert wire.expect_content(1, amqp.Basic.Deliver).method.consumer_tag == "quiet"


def test_no_wait_consume_still_reports_errors(wire: WireClient) -> None:
    name = unique("absent")
    wire.method(1, amqp.Basic.Consume(queue=name, consumer_tag="quiet", nowait=True))
    wire.expect_channel_close(1, 404, f"no queue '{name}' in vhost '/'", *CONSUME)


def test_no_wait_cancel_is_not_answered(wire: WireClient, channel: BlockingChannel, queue: Maker) -> None:
    name = queue()
    consume(wire, name, "quiet")
    wire.method(1, amqp.Basic.Cancel(consumer_tag="quiet", nowait=True))
    wire.expect_silence(1)
    eventually(lambda: channel.queue_declare(name, passive=True).method.consumer_count == 0)


def test_consumer_of_a_closed_channel_is_gone(connect: Connect, channel: BlockingChannel, queue: Maker) -> None:
    name = queue()
    connection = connect()
    closing = connection.channel()
    inbox = Inbox(closing, name)
    closing.close()
    fill(channel, name, 1)
    connection.process_data_events(0)
    assert inbox.bodies == []
    assert ready(channel, name) == 1


def test_pika_notices_a_refused_consume(channel: BlockingChannel) -> None:
    name = unique("absent")
    with closes_channel(404, f"no queue '{name}' in vhost '/'"):
        channel.basic_consume(name, lambda *_: None)
