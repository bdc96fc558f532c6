"""Publish-side deduplication at exchanges, with LavinMQ's arguments and headers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pamqp.commands as amqp
import pika
import pika.exceptions
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from behaviour.helpers import confirming, confirms, ready, take_all
from support import closes_channel, eventually
from wire_client import WireClient, field_table, longstr

Maker = Callable[..., str]

pytestmark = pytest.mark.differs("RabbitMQ has no deduplication")
ON = {"x-message-deduplication": True}


@pytest.fixture
def channel(connection: pika.BlockingConnection) -> BlockingChannel:
    return confirming(connection)


@pytest.fixture
def bound(channel: BlockingChannel, queue: Maker, exchange: Maker) -> Callable[..., tuple[str, str]]:
    """`bound(type, **arguments)` gives an exchange that drops duplicates, and a queue that is bound to it by "key"."""

    def make(type: str = "direct", **arguments: Any) -> tuple[str, str]:
        given = {f"x-{name.replace('_', '-')}": value for name, value in arguments.items()}
        source, name = exchange(type, arguments={**ON, **given}), queue()
        channel.queue_bind(name, source, "key")
        return source, name

    return make


def publish(
    channel: BlockingChannel,
    exchange: str,
    identity: Any,
    body: bytes = b"",
    key: str = "key",
    mandatory: bool = False,
    **more: Any,
) -> None:
    headers = {"x-deduplication-header": identity, **{f"x-{name.replace('_', '-')}": value for name, value in more.items()}}
    channel.basic_publish(exchange, key, body, pika.BasicProperties(headers=headers), mandatory)


@pytest.mark.parametrize("type", ["direct", "topic", "fanout", "headers"])
def test_second_message_of_an_identity_is_dropped(channel: BlockingChannel, bound: Any, type: str) -> None:
    source, name = bound(type)
    for identity, body in (("1", b"a"), ("1", b"b"), ("2", b"c"), (1, b"d"), ("2", b"e")):
        publish(channel, source, identity, body)
    for body in (b"f", b"g"):
        channel.basic_publish(source, "key", body)
    assert take_all(channel, name) == [b"a", b"c", b"d", b"f", b"g"]


def test_each_exchange_remembers_for_itself(channel: BlockingChannel, bound: Any) -> None:
    first, one = bound()
    second, two = bound()
    publish(channel, first, "1")
    publish(channel, second, "1")
    publish(channel, "", "1", key=one)
    assert (ready(channel, one), ready(channel, two)) == (2, 1)


def test_only_the_exchange_of_the_publish_looks(channel: BlockingChannel, bound: Any, exchange: Maker) -> None:
    inner, name = bound()
    outer = exchange("fanout")
    channel.exchange_bind(inner, outer)
    for _ in range(2):
        publish(channel, outer, "1")
    assert ready(channel, name) == 2


def test_header_size_and_ttl_are_arguments(channel: BlockingChannel, bound: Any) -> None:
    source, name = bound(deduplication_header="id", cache_size=1)
    for identity in ("1", "1", "2", "1"):
        channel.basic_publish(source, "key", b"", pika.BasicProperties(headers={"id": identity}))
    assert ready(channel, name) == 3
    source, name = bound(cache_ttl=1)

    def is_taken_again() -> bool:
        publish(channel, source, "1")
        return ready(channel, name) >= 2

    assert eventually(is_taken_again)


def test_message_may_say_how_long_it_is_remembered(channel: BlockingChannel, bound: Any) -> None:
    source, name = bound(cache_ttl=3_600_000)
    publish(channel, source, "long")

    def is_taken_again() -> bool:
        publish(channel, source, "short", cache_ttl=1)
        return ready(channel, name) >= 3

    assert eventually(is_taken_again)
    before = ready(channel, name)
    publish(channel, source, "long")
    assert ready(channel, name) == before


def test_duplicate_is_confirmed_and_returned_when_it_is_mandatory(channel: BlockingChannel, bound: Any) -> None:
    source, name = bound()
    publish(channel, source, "1", mandatory=True)
    publish(channel, source, "1")
    with pytest.raises(pika.exceptions.UnroutableError):
        publish(channel, source, "1", mandatory=True)
    assert ready(channel, name) == 1


def test_message_that_went_nowhere_is_not_remembered(channel: BlockingChannel, bound: Any) -> None:
    source, name = bound()
    publish(channel, source, "1", key="unbound")
    publish(channel, source, "1")
    assert ready(channel, name) == 1


def test_message_that_was_refused_may_be_sent_again(channel: BlockingChannel, queue: Maker, exchange: Maker) -> None:
    source = exchange("fanout", arguments=ON)
    name = queue(arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
    channel.queue_bind(name, source)
    publish(channel, source, "1")
    with pytest.raises(pika.exceptions.NackError):
        publish(channel, source, "2")
    assert take_all(channel, name) == [b""]
    publish(channel, source, "2", b"again")
    assert take_all(channel, name) == [b"again"]


def test_copies_of_a_message_are_not_its_duplicates(channel: BlockingChannel, bound: Any, queue: Maker) -> None:
    source, one = bound()
    two = queue()
    channel.queue_bind(two, source, "copy")
    for _ in range(2):
        headers = {"x-deduplication-header": "1", "CC": ["copy"]}
        channel.basic_publish(source, "key", b"", pika.BasicProperties(headers=headers))
    assert (ready(channel, one), ready(channel, two)) == (1, 1)


def test_transaction_looks_at_its_commit(
    connect: Callable[..., pika.BlockingConnection], channel: BlockingChannel, bound: Any
) -> None:
    source, name = bound()
    tx = connect().channel()
    tx.tx_select()
    publish(tx, source, "1", b"rolled back")
    tx.tx_rollback()
    publish(tx, source, "1", b"first")
    publish(tx, source, "1", b"second")
    tx.tx_commit()
    assert take_all(channel, name) == [b"first"]


def test_pipelined_duplicates_are_all_confirmed(wire: WireClient, channel: BlockingChannel, bound: Any) -> None:
    source, name = bound()
    wire.call(1, amqp.Confirm.Select(), amqp.Confirm.SelectOk)
    table = field_table(("x-deduplication-header", "S", longstr(b"1")))
    for _ in range(10):
        wire.method(1, amqp.Basic.Publish(exchange=source, routing_key="key"))
        wire.header(1, 0, b"\x20\x00" + table)
    assert confirms(wire, 1, 10) == [("ack", tag) for tag in range(1, 11)]
    assert ready(channel, name) == 1


@pytest.mark.parametrize(
    "arguments, key, why",
    [
        ({"x-message-deduplication": 1}, "x-message-deduplication", "{unacceptable_type,signedint}"),
        ({**ON, "x-cache-size": 0}, "x-cache-size", "{value_zero,0}"),
        ({**ON, "x-cache-ttl": "soon"}, "x-cache-ttl", '"expected integer, got longstr"'),
    ],
)
def test_arguments_are_checked(channel: BlockingChannel, new_name: Maker, arguments: dict[str, Any], key: str, why: str) -> None:
    name = new_name("exchange")
    with closes_channel(406, f"invalid arg '{key}' for exchange '{name}' in vhost '/': {why}"):
        channel.exchange_declare(name, "direct", arguments=arguments)
