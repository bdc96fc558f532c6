"""Consistent hash exchanges, which RabbitMQ has as a plugin."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from behaviour.helpers import confirming, ready
from broker_process import BrokerProcess
from support import closes_channel

Maker = Callable[..., str]
Properties = pika.BasicProperties

pytestmark = pytest.mark.differs("RabbitMQ needs its plugin rabbitmq_consistent_hash_exchange enabled")


@pytest.fixture
def channel(connection: pika.BlockingConnection) -> BlockingChannel:
    return confirming(connection)


def bound(channel: BlockingChannel, queue: Maker, source: str, *weights: str) -> list[str]:
    names = []
    for weight in weights:
        names.append(queue())
        channel.queue_bind(names[-1], source, weight)
    return names


def spread(channel: BlockingChannel, queues: list[str]) -> list[int]:
    """How many messages each has, which are gone then."""
    counts = [ready(channel, name) for name in queues]
    for name in queues:
        channel.queue_purge(name)
    return counts


def test_key_decides_and_weights_are_shares(channel: BlockingChannel, queue: Maker, exchange: Maker) -> None:
    source = exchange("x-consistent-hash")
    queues = bound(channel, queue, source, "1", "3")
    for number in range(400):
        channel.basic_publish(source, f"key {number}", b"")
    first, second = spread(channel, queues)
    assert first + second == 400
    assert 50 < first < 150
    for _ in range(20):
        channel.basic_publish(source, "one and the same", b"")
    assert sorted(spread(channel, queues)) == [0, 20]


def test_binding_and_unbinding_are_followed(channel: BlockingChannel, queue: Maker, exchange: Maker) -> None:
    source = exchange("x-consistent-hash")
    one, two = bound(channel, queue, source, "10", "10")
    for number in range(100):
        channel.basic_publish(source, f"key {number}", b"")
    before = spread(channel, [one, two])
    assert min(before) > 20
    channel.queue_unbind(two, source, "10")
    for number in range(100):
        channel.basic_publish(source, f"key {number}", b"")
    assert spread(channel, [one, two]) == [100, 0]
    channel.queue_bind(two, source, "10")
    for number in range(100):
        channel.basic_publish(source, f"key {number}", b"")
    assert spread(channel, [one, two]) == before


@pytest.mark.parametrize(
    "arguments, properties",
    [
        ({"hash-header": "id"}, lambda n: Properties(headers={"id": n})),
        ({"hash-property": "message_id"}, lambda n: Properties(message_id=str(n))),
        ({"hash-property": "correlation_id"}, lambda n: Properties(correlation_id=str(n))),
        ({"hash-property": "timestamp"}, lambda n: Properties(timestamp=n)),
    ],
)
def test_header_or_property_decides(
    channel: BlockingChannel, queue: Maker, exchange: Maker, arguments: dict[str, Any], properties: Callable[[int], Properties]
) -> None:
    source = exchange("x-consistent-hash", arguments=arguments)
    queues = bound(channel, queue, source, "10", "10", "10")
    for number in range(60):
        channel.basic_publish(source, "the same key", b"", properties(number))
    assert min(spread(channel, queues)) > 5
    for number in range(60):
        channel.basic_publish(source, f"key {number}", b"", properties(7))
    assert sorted(spread(channel, queues)) == [0, 0, 60]
    for number in range(60):
        channel.basic_publish(source, f"key {number}", b"")
    assert sorted(spread(channel, queues)) == [0, 0, 60]


def test_copies_make_no_difference(channel: BlockingChannel, queue: Maker, exchange: Maker) -> None:
    source = exchange("x-consistent-hash")
    queues = bound(channel, queue, source, "10", "10", "10")
    for number in range(30):
        properties = Properties(headers={"CC": [f"a{number}", f"b{number}"]})
        channel.basic_publish(source, f"key {number}", b"", properties)
    assert sum(spread(channel, queues)) == 30


@pytest.mark.parametrize(
    "key, text",
    [("heavy", 'The binding key must be an integer: <<"heavy">>'), ("0", "The binding key must be greater than 0")],
)
def test_binding_key_is_a_weight(channel: BlockingChannel, queue: Maker, exchange: Maker, key: str, text: str) -> None:
    source, name = exchange("x-consistent-hash"), queue()
    with closes_channel(406, text):
        channel.queue_bind(name, source, key)


@pytest.mark.parametrize(
    "arguments, text",
    [
        ({"hash-property": "app_id"}, "Unsupported property: app_id"),
        ({"hash-header": "a", "hash-property": "message_id"}, "hash-header and hash-property are mutually exclusive"),
        ({"hash-header": 1}, "hash-header must be a longstr, not signedint"),
    ],
)
def test_arguments_are_checked_before_it_is_made(
    connection: pika.BlockingConnection, channel: BlockingChannel, new_name: Maker, arguments: dict[str, Any], text: str
) -> None:
    name = new_name("exchange")
    with closes_channel(406, text):
        channel.exchange_declare(name, "x-consistent-hash", arguments=arguments)
    with closes_channel(404, f"no exchange '{name}' in vhost '/'"):
        connection.channel().exchange_declare(name, passive=True)


@pytest.mark.own
def test_messages_go_the_same_ways_after_a_restart(
    own_broker: Callable[..., BrokerProcess], connect: Callable[..., pika.BlockingConnection]
) -> None:
    broker = own_broker()
    found = []
    for _ in range(2):
        channel = confirming(connect(to=broker))
        channel.exchange_declare("hash", "x-consistent-hash", durable=True)
        for name in "abc":
            channel.queue_declare(name, durable=True)
            channel.queue_bind(name, "hash", "7")
        for number in range(60):
            channel.basic_publish("hash", f"key {number}", b"")
        found.append(spread(channel, ["a", "b", "c"]))
        channel.connection.close()
        broker.restart()
    assert found[0] == found[1]
    assert sum(found[0]) == 60
