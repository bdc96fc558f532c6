"""A consumer whose queue is deleted is told so by basic.cancel, if its client said that it understands that."""

from __future__ import annotations

from collections.abc import Callable

import pamqp.commands as amqp
import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from behaviour.helpers import CAPABLE, fence, wait_until
from wire_client import WireClient

Maker = Callable[..., str]
Connect = Callable[..., pika.BlockingConnection]


@pytest.fixture
def capable(raw: Callable[..., WireClient]) -> WireClient:
    """A client with the capability, channel 1 open."""
    client = raw().open(client_properties=CAPABLE)
    client.open_channel(1)
    return client


def test_deleting_the_queue_cancels_its_consumer(capable: WireClient, channel: BlockingChannel, queue: Maker) -> None:
    name = queue()
    capable.call(1, amqp.Basic.Consume(queue=name, consumer_tag="one"), amqp.Basic.ConsumeOk)
    channel.queue_delete(name)
    notice = capable.expect(1, amqp.Basic.Cancel)
    assert (notice.consumer_tag, notice.nowait) == ("one", True)
    capable.expect_silence(1)


def test_every_consumer_is_told_once(capable: WireClient, channel: BlockingChannel, queue: Maker) -> None:
    name, other = queue(), queue()
    for tag in ("a", "b", "c"):
        capable.call(1, amqp.Basic.Consume(queue=name, consumer_tag=tag), amqp.Basic.ConsumeOk)
    capable.call(1, amqp.Basic.Consume(queue=other, consumer_tag="other"), amqp.Basic.ConsumeOk)
    channel.queue_delete(name)
    assert sorted(capable.expect(1, amqp.Basic.Cancel).consumer_tag for _ in range(3)) == ["a", "b", "c"]
    capable.expect_silence(1)


@pytest.mark.parametrize("properties", [None, {"capabilities": {"consumer_cancel_notify": False}}], ids=["no", "false"])
def test_client_without_the_capability_is_told_nothing(
    raw: Callable[..., WireClient], channel: BlockingChannel, queue: Maker, properties: dict[str, object] | None
) -> None:
    client = raw().open(client_properties=properties)
    client.open_channel(1)
    name = queue()
    client.call(1, amqp.Basic.Consume(queue=name), amqp.Basic.ConsumeOk)
    channel.queue_delete(name)
    client.expect_silence(1)


def test_the_one_who_deletes_is_told_too(capable: WireClient, queue: Maker) -> None:
    name = queue()
    capable.call(1, amqp.Basic.Consume(queue=name, consumer_tag="own"), amqp.Basic.ConsumeOk)
    capable.method(1, amqp.Queue.Delete(queue=name))
    answers = {type(capable.read_command()[1]) for _ in range(2)}
    assert answers == {amqp.Basic.Cancel, amqp.Queue.DeleteOk}


def test_tag_is_free_and_cancelling_it_is_harmless(
    capable: WireClient, channel: BlockingChannel, queue: Maker
) -> None:
    name, next_queue = queue(), queue()
    capable.call(1, amqp.Basic.Consume(queue=name, consumer_tag="one"), amqp.Basic.ConsumeOk)
    channel.queue_delete(name)
    capable.expect(1, amqp.Basic.Cancel)
    capable.call(1, amqp.Basic.Cancel(consumer_tag="one"), amqp.Basic.CancelOk)
    capable.call(1, amqp.Basic.Consume(queue=next_queue, consumer_tag="one"), amqp.Basic.ConsumeOk)
    channel.basic_publish("", next_queue, b"x")
    assert capable.expect_content(1, amqp.Basic.Deliver).body == b"x"


def test_what_it_had_delivered_may_still_be_settled(
    capable: WireClient, channel: BlockingChannel, queue: Maker
) -> None:
    name = queue()
    capable.call(1, amqp.Basic.Consume(queue=name), amqp.Basic.ConsumeOk)
    for _ in range(4):
        channel.basic_publish("", name, b"x")
    tags = [capable.expect_content(1, amqp.Basic.Deliver).method.delivery_tag for _ in range(4)]
    channel.queue_delete(name)
    capable.expect(1, amqp.Basic.Cancel)
    capable.method(1, amqp.Basic.Ack(delivery_tag=tags[0]))
    capable.method(1, amqp.Basic.Nack(delivery_tag=tags[1], requeue=True))
    capable.method(1, amqp.Basic.Reject(delivery_tag=tags[2], requeue=False))
    capable.expect_silence(1)
    capable.method(1, amqp.Basic.Ack(delivery_tag=tags[0]))
    capable.expect_channel_close(1, 406, f"unknown delivery tag {tags[0]}", 60, 80)


def test_own_cancel_is_not_notified(capable: WireClient, queue: Maker) -> None:
    name = queue()
    capable.call(1, amqp.Basic.Consume(queue=name, consumer_tag="one"), amqp.Basic.ConsumeOk)
    capable.call(1, amqp.Basic.Cancel(consumer_tag="one"), amqp.Basic.CancelOk)
    capable.call(1, amqp.Queue.Delete(queue=name), amqp.Queue.DeleteOk)
    capable.expect_silence(1)


def test_pika_calls_back(connect: Connect, channel: BlockingChannel, queue: Maker) -> None:
    name = queue()
    consumer = connect().channel()
    cancelled: list[str] = []
    consumer.add_on_cancel_callback(lambda frame: cancelled.append(frame.method.consumer_tag))
    tag = consumer.basic_consume(name, lambda *_: None)
    fence(consumer, name)
    assert cancelled == []
    channel.queue_delete(name)
    wait_until(lambda: cancelled == [tag], consumer)
