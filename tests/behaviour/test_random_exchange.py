"""Random exchanges, which RabbitMQ has as a plugin."""

from __future__ import annotations

from collections.abc import Callable

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from behaviour.helpers import confirming, ready

Maker = Callable[..., str]

pytestmark = pytest.mark.differs("RabbitMQ needs its plugin rabbitmq_random_exchange enabled")


@pytest.fixture
def channel(connection: pika.BlockingConnection) -> BlockingChannel:
    return confirming(connection)


def test_each_message_goes_to_one_queue(channel: BlockingChannel, queue: Maker, exchange: Maker) -> None:
    source, one, two = exchange("x-random"), queue(), queue()
    channel.queue_bind(one, source, "any")
    channel.queue_bind(two, source, "other")
    for number in range(200):
        properties = pika.BasicProperties(headers={"CC": ["any", "other"]}) if number % 2 else None
        channel.basic_publish(source, "neither", b"", properties)
    counts = [ready(channel, one), ready(channel, two)]
    assert sum(counts) == 200
    assert min(counts) > 50


def test_bindings_may_come_and_go(channel: BlockingChannel, queue: Maker, exchange: Maker) -> None:
    source, one, two = exchange("x-random"), queue(), queue()
    channel.queue_bind(one, source)
    channel.queue_bind(two, source)
    channel.queue_unbind(one, source)
    for _ in range(20):
        channel.basic_publish(source, "", b"")
    assert (ready(channel, one), ready(channel, two)) == (0, 20)
    channel.queue_delete(two)
    with pytest.raises(pika.exceptions.UnroutableError):
        channel.basic_publish(source, "", b"", mandatory=True)
