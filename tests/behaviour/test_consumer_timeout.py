"""consumer_timeout: a channel that does not ack a delivery in time is closed, and the message given to others."""

from __future__ import annotations

import time
from collections.abc import Callable

import pamqp.commands as amqp
import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from behaviour.helpers import Inbox, confirming, fill, ready, wait_until
from broker_process import BrokerProcess
from support import eventually
from wire_client import WireClient

pytestmark = pytest.mark.own

Connect = Callable[..., pika.BlockingConnection]
Raw = Callable[..., WireClient]

TIMEOUT_MS = 500


@pytest.fixture
def own(own_broker: Callable[..., BrokerProcess]) -> BrokerProcess:
    return own_broker(config={"consumer_timeout": TIMEOUT_MS})


@pytest.fixture
def channel(own: BrokerProcess, connect: Connect) -> BlockingChannel:
    """In confirm mode, with a queue `q`."""
    channel = confirming(connect(to=own))
    channel.queue_declare("q", durable=True)
    return channel


@pytest.fixture
def wire(own: BrokerProcess, raw: Raw) -> WireClient:
    """With channel 1 open, and patient enough for a slow machine."""
    client = raw(to=own, timeout=15.0).open()
    client.open_channel(1)
    return client


def expect_timeout(client: WireClient, channel: int) -> None:
    client.expect_channel_close(
        channel,
        406,
        f"delivery acknowledgement on channel {channel} timed out. Timeout value used: {TIMEOUT_MS} ms. "
        "This timeout value can be configured, see consumers doc guide to learn more",
    )


def outlast_the_timeout(channel: BlockingChannel) -> None:
    """Returns when a message that lives for three times the timeout has expired."""
    probe = channel.queue_declare("", exclusive=True).method.queue
    channel.basic_publish("", probe, b"x", pika.BasicProperties(expiration=str(3 * TIMEOUT_MS)))
    eventually(lambda: ready(channel, probe) == 0, 15.0)


def test_channel_that_does_not_ack_is_closed(wire: WireClient, channel: BlockingChannel) -> None:
    wire.call(1, amqp.Basic.Consume(queue="q"), amqp.Basic.ConsumeOk)
    start = time.monotonic()
    fill(channel, "q", 1)
    wire.expect_content(1, amqp.Basic.Deliver)
    expect_timeout(wire, 1)
    assert time.monotonic() - start >= TIMEOUT_MS / 1000 - 0.01


def test_other_channels_and_the_connection_go_on(wire: WireClient, channel: BlockingChannel) -> None:
    wire.open_channel(7)
    fill(channel, "q", 1)
    wire.call(7, amqp.Basic.Consume(queue="q"), amqp.Basic.ConsumeOk)
    wire.expect_content(7, amqp.Basic.Deliver)
    expect_timeout(wire, 7)
    wire.expect_silence(1)
    wire.open_channel(7)


def test_message_is_requeued_and_given_to_another_consumer(
    own: BrokerProcess, connect: Connect, wire: WireClient, channel: BlockingChannel
) -> None:
    wire.call(1, amqp.Basic.Qos(prefetch_count=2), amqp.Basic.QosOk)
    wire.call(1, amqp.Basic.Consume(queue="q"), amqp.Basic.ConsumeOk)
    fill(channel, "q", 2)
    for _ in range(2):
        wire.expect_content(1, amqp.Basic.Deliver)
    other = connect(to=own).channel()
    inbox = Inbox(other, "q")
    assert inbox.bodies == []
    wait_until(lambda: len(inbox.bodies) == 2, other, timeout=15.0)
    inbox.ack(*inbox.tags)
    assert [(delivery.body, delivery.redelivered) for delivery in inbox.deliveries] == [(b"0", True), (b"1", True)]
    expect_timeout(wire, 1)


def test_delivery_of_a_get_counts_as_well(wire: WireClient, channel: BlockingChannel) -> None:
    fill(channel, "q", 2)
    wire.method(1, amqp.Basic.Get(queue="q"))
    wire.expect_content(1, amqp.Basic.GetOk)
    expect_timeout(wire, 1)
    assert ready(channel, "q") == 2


def test_message_of_a_cancelled_consumer_counts_as_well(wire: WireClient, channel: BlockingChannel) -> None:
    fill(channel, "q", 1)
    wire.call(1, amqp.Basic.Consume(queue="q", consumer_tag="t"), amqp.Basic.ConsumeOk)
    wire.expect_content(1, amqp.Basic.Deliver)
    wire.call(1, amqp.Basic.Cancel(consumer_tag="t"), amqp.Basic.CancelOk)
    expect_timeout(wire, 1)


def test_consumer_without_acks_is_not_timed(wire: WireClient, channel: BlockingChannel) -> None:
    fill(channel, "q", 1)
    wire.call(1, amqp.Basic.Consume(queue="q", no_ack=True), amqp.Basic.ConsumeOk)
    wire.expect_content(1, amqp.Basic.Deliver)
    outlast_the_timeout(channel)
    wire.expect_silence(1)


def test_consumer_that_waits_is_not_timed(wire: WireClient, channel: BlockingChannel) -> None:
    wire.call(1, amqp.Basic.Consume(queue="q"), amqp.Basic.ConsumeOk)
    outlast_the_timeout(channel)
    wire.expect_silence(1)


@pytest.mark.parametrize("settle", ["ack", "reject", "nack"])
def test_settled_delivery_is_not_timed(wire: WireClient, channel: BlockingChannel, settle: str) -> None:
    fill(channel, "q", 1)
    wire.call(1, amqp.Basic.Consume(queue="q"), amqp.Basic.ConsumeOk)
    tag = wire.expect_content(1, amqp.Basic.Deliver).method.delivery_tag
    methods = {"ack": amqp.Basic.Ack(tag), "reject": amqp.Basic.Reject(tag, False), "nack": amqp.Basic.Nack(tag, False, False)}
    wire.method(1, methods[settle])
    outlast_the_timeout(channel)
    wire.expect_silence(1)


def test_ack_that_waits_for_its_commit_is_not_timed(wire: WireClient, channel: BlockingChannel) -> None:
    fill(channel, "q", 1)
    wire.call(1, amqp.Tx.Select(), amqp.Tx.SelectOk)
    wire.call(1, amqp.Basic.Consume(queue="q"), amqp.Basic.ConsumeOk)
    wire.method(1, amqp.Basic.Ack(wire.expect_content(1, amqp.Basic.Deliver).method.delivery_tag))
    outlast_the_timeout(channel)
    wire.call(1, amqp.Tx.Commit(), amqp.Tx.CommitOk)
    wire.expect_silence(1)


def test_oldest_delivery_counts_though_later_ones_are_acked(wire: WireClient, channel: BlockingChannel) -> None:
    fill(channel, "q", 3)
    wire.call(1, amqp.Basic.Consume(queue="q"), amqp.Basic.ConsumeOk)
    tags = [wire.expect_content(1, amqp.Basic.Deliver).method.delivery_tag for _ in range(3)]
    for tag in tags[1:]:
        wire.method(1, amqp.Basic.Ack(tag))
    expect_timeout(wire, 1)
    assert ready(channel, "q") == 1


def test_consumer_that_acks_each_in_time_goes_on_for_longer_than_the_timeout(
    own_broker: Callable[..., BrokerProcess], connect: Connect
) -> None:
    own = own_broker(config={"consumer_timeout": 3 * TIMEOUT_MS})  # a slow machine must not be a slow consumer
    channel = confirming(connect(to=own))
    channel.queue_declare("q", durable=True)
    consuming = connect(to=own).channel()
    inbox = Inbox(consuming, "q")
    start, number = time.monotonic(), 0
    while time.monotonic() - start < 5 * TIMEOUT_MS / 1000:
        fill(channel, "q", 1, start=number)
        number += 1
        inbox.wait_for(number)
        inbox.ack(inbox.deliveries[-1].tag)
    assert consuming.is_open
    assert inbox.settled() == [b"%d" % each for each in range(number)]


def test_close_is_logged(own: BrokerProcess, wire: WireClient, channel: BlockingChannel) -> None:
    fill(channel, "q", 1)
    wire.call(1, amqp.Basic.Consume(queue="q", consumer_tag="slow"), amqp.Basic.ConsumeOk)
    wire.expect_content(1, amqp.Basic.Deliver)
    expect_timeout(wire, 1)
    entry = eventually(lambda: own.events("acknowledgement timed out"))[0]
    assert (entry["consumer"], entry["queue"], entry["timeout_ms"]) == ("slow", "q", TIMEOUT_MS)


def test_zero_switches_it_off(own_broker: Callable[..., BrokerProcess], connect: Connect, raw: Raw) -> None:
    own = own_broker(config={"consumer_timeout": 0})
    channel = confirming(connect(to=own))
    channel.queue_declare("q")
    fill(channel, "q", 1)
    client = raw(to=own).open()
    client.open_channel(1)
    client.call(1, amqp.Basic.Consume(queue="q"), amqp.Basic.ConsumeOk)
    client.expect_content(1, amqp.Basic.Deliver)
    outlast_the_timeout(channel)
    client.expect_silence(1)


def test_delivery_of_a_stream_counts_as_well(wire: WireClient, channel: BlockingChannel) -> None:
    channel.queue_declare("s", durable=True, arguments={"x-queue-type": "stream"})
    fill(channel, "s", 3)
    wire.call(1, amqp.Basic.Qos(prefetch_count=3), amqp.Basic.QosOk)
    wire.call(1, amqp.Basic.Consume(queue="s", arguments={"x-stream-offset": "first"}), amqp.Basic.ConsumeOk)
    for _ in range(3):
        wire.expect_content(1, amqp.Basic.Deliver)
    wire.method(1, amqp.Basic.Ack(delivery_tag=2))
    expect_timeout(wire, 1)
    assert ready(channel, "s") == 3
