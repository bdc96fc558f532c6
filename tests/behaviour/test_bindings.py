"""Bindings of queues and of exchanges: made, repeated, removed, and what a message does at the end of them."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pamqp.commands as amqp
import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from support import unique
from wire_client import WireClient

Maker = Callable[..., str]


@pytest.fixture
def channel(connection: pika.BlockingConnection) -> BlockingChannel:
    """In confirm mode: what was published has reached its queues when basic_publish returns."""
    channel = connection.channel()
    channel.confirm_delivery()
    return channel


def count(channel: BlockingChannel, queue: str) -> int:
    return int(channel.queue_declare(queue, passive=True).method.message_count)


def confirmed(wire: WireClient, exchange: str, routing_key: str) -> None:
    """Publishes on a fresh channel in confirm mode and waits for the confirm."""
    wire.open_channel(2)
    wire.call(2, amqp.Confirm.Select(), amqp.Confirm.SelectOk)
    wire.publish(2, exchange, routing_key, b"x")
    wire.expect(2, amqp.Basic.Ack)
    wire.call(2, amqp.Channel.Close(200, "", 0, 0), amqp.Channel.CloseOk)


def drain(channel: BlockingChannel, queue: str) -> list[bytes]:
    bodies = []
    while (got := channel.basic_get(queue, auto_ack=True))[0]:
        bodies.append(got[2])
    return bodies


def test_every_queue_is_bound_to_the_default_exchange_by_its_name(
    channel: BlockingChannel, queue: Maker
) -> None:
    name = queue()
    channel.basic_publish("", name, b"hello")
    assert drain(channel, name) == [b"hello"]


def test_direct_exchange_matches_the_whole_key(
    channel: BlockingChannel, exchange: Maker, queue: Maker
) -> None:
    source, red, blue = exchange("direct"), queue(), queue()
    channel.queue_bind(red, source, "red")
    channel.queue_bind(blue, source, "blue")
    for key in ("red", "blue", "green", "red.blue", ""):
        channel.basic_publish(source, key, key.encode())
    assert (drain(channel, red), drain(channel, blue)) == ([b"red"], [b"blue"])


def test_direct_exchange_serves_every_queue_of_a_key(
    channel: BlockingChannel, exchange: Maker, queue: Maker
) -> None:
    source, names = exchange("direct"), [queue() for _ in range(5)]
    for name in names:
        channel.queue_bind(name, source, "shared")
    channel.basic_publish(source, "shared", b"x")
    assert [count(channel, name) for name in names] == [1] * 5


def test_fanout_ignores_the_key(channel: BlockingChannel, exchange: Maker, queue: Maker) -> None:
    source, first, second = exchange("fanout"), queue(), queue()
    channel.queue_bind(first, source, "a")
    channel.queue_bind(second, source, "b")
    channel.basic_publish(source, "c", b"x")
    assert (count(channel, first), count(channel, second)) == (1, 1)


@pytest.mark.parametrize("type", ["direct", "fanout", "topic", "headers"])
def test_one_copy_per_queue_however_many_bindings_match(
    channel: BlockingChannel, exchange: Maker, queue: Maker, type: str
) -> None:
    source, name = exchange(type), queue()
    for number in range(3):
        channel.queue_bind(name, source, "key", arguments={"number": number})
    channel.queue_bind(name, source, "#")
    channel.basic_publish(source, "key", b"x")
    assert count(channel, name) == 1


def test_binding_twice_is_binding_once(channel: BlockingChannel, exchange: Maker, queue: Maker) -> None:
    source, name = exchange(), queue()
    channel.queue_bind(name, source, "key")
    channel.queue_bind(name, source, "key")
    channel.queue_unbind(name, source, "key")
    channel.basic_publish(source, "key", b"x")
    assert count(channel, name) == 0


def test_bindings_with_other_arguments_are_other_bindings(
    channel: BlockingChannel, exchange: Maker, queue: Maker
) -> None:
    source, name = exchange(), queue()
    channel.queue_bind(name, source, "key", arguments={"a": 1})
    channel.queue_bind(name, source, "key", arguments={"a": 2})
    channel.queue_unbind(name, source, "key", arguments={"a": 1})
    channel.queue_unbind(name, source, "key")
    channel.basic_publish(source, "key", b"x")
    assert count(channel, name) == 1


def test_other_queues_keep_their_binding_when_one_is_unbound(
    channel: BlockingChannel, exchange: Maker, queue: Maker
) -> None:
    source, stays, goes = exchange(), queue(), queue()
    channel.queue_bind(stays, source, "key")
    channel.queue_bind(goes, source, "key")
    channel.queue_unbind(goes, source, "key")
    channel.basic_publish(source, "key", b"x")
    assert (count(channel, stays), count(channel, goes)) == (1, 0)


def test_unbinding_what_was_never_bound_succeeds(wire: WireClient, exchange: Maker, queue: Maker) -> None:
    source, name = exchange(), queue()
    wire.call(1, amqp.Queue.Unbind(queue=name, exchange=source, routing_key="never"), amqp.Queue.UnbindOk)


@pytest.mark.parametrize("missing", ["queue", "exchange", "both"])
def test_unbinding_something_absent_succeeds(
    wire: WireClient, exchange: Maker, queue: Maker, missing: str
) -> None:
    source = exchange() if missing == "queue" else unique("absent")
    name = queue() if missing == "exchange" else unique("absent")
    wire.call(1, amqp.Queue.Unbind(queue=name, exchange=source, routing_key="key"), amqp.Queue.UnbindOk)


def test_binding_an_absent_queue(wire: WireClient, exchange: Maker) -> None:
    name = unique("absent")
    wire.method(1, amqp.Queue.Bind(queue=name, exchange=exchange(), routing_key="key"))
    wire.expect_channel_close(1, 404, f"no queue '{name}' in vhost '/'", 50, 20)


def test_binding_to_an_absent_exchange(wire: WireClient, queue: Maker) -> None:
    name = unique("absent")
    wire.method(1, amqp.Queue.Bind(queue=queue(), exchange=name, routing_key="key"))
    wire.expect_channel_close(1, 404, f"no exchange '{name}' in vhost '/'", 50, 20)


@pytest.mark.parametrize("missing", ["source", "destination"])
def test_binding_an_exchange_to_an_absent_one(wire: WireClient, exchange: Maker, missing: str) -> None:
    absent, present = unique("absent"), exchange()
    source, destination = (absent, present) if missing == "source" else (present, absent)
    wire.method(1, amqp.Exchange.Bind(destination=destination, source=source, routing_key="key"))
    wire.expect_channel_close(1, 404, f"no exchange '{absent}' in vhost '/'", 40, 30)


def test_unbinding_absent_exchanges_succeeds(wire: WireClient) -> None:
    unbind = amqp.Exchange.Unbind(destination=unique("absent"), source=unique("absent"), routing_key="key")
    wire.call(1, unbind, amqp.Exchange.UnbindOk)


def test_empty_queue_name_is_the_last_declared_one(
    wire: WireClient, new_name: Maker, exchange: Maker
) -> None:
    """An empty routing key beside it is replaced too."""
    first, last, source = new_name("first"), new_name("last"), exchange()
    wire.call(1, amqp.Queue.Declare(queue=first), amqp.Queue.DeclareOk)
    wire.call(1, amqp.Queue.Declare(queue=last), amqp.Queue.DeclareOk)
    wire.call(1, amqp.Queue.Bind(queue="", exchange=source, routing_key=""), amqp.Queue.BindOk)
    confirmed(wire, source, last)
    confirmed(wire, source, "")
    assert wire.call(1, amqp.Queue.Declare(queue=last), amqp.Queue.DeclareOk).message_count == 1
    assert wire.call(1, amqp.Queue.Declare(queue=first), amqp.Queue.DeclareOk).message_count == 0


def test_empty_queue_name_keeps_a_routing_key_that_is_given(
    wire: WireClient, new_name: Maker, exchange: Maker
) -> None:
    name, source = new_name("last"), exchange()
    wire.call(1, amqp.Queue.Declare(queue=name), amqp.Queue.DeclareOk)
    wire.call(1, amqp.Queue.Bind(queue="", exchange=source, routing_key="key"), amqp.Queue.BindOk)
    confirmed(wire, source, "key")
    assert wire.call(1, amqp.Queue.Declare(queue=name), amqp.Queue.DeclareOk).message_count == 1


@pytest.mark.parametrize(
    "method, ids",
    [
        (amqp.Queue.Bind(queue="", exchange="amq.direct", routing_key="key"), (50, 20)),
        (amqp.Queue.Unbind(queue="", exchange="amq.direct", routing_key="key"), (50, 50)),
        (amqp.Queue.Purge(queue=""), (50, 30)),
        (amqp.Queue.Delete(queue=""), (50, 40)),
        (amqp.Basic.Consume(queue=""), (60, 20)),
        (amqp.Basic.Get(queue=""), (60, 70)),
    ],
    ids=["bind", "unbind", "purge", "delete", "consume", "get"],
)
def test_empty_queue_name_before_any_declare(
    wire: WireClient, method: amqp.Frame, ids: tuple[int, int]
) -> None:
    wire.method(1, method)
    wire.expect_channel_close(1, 404, "no previously declared queue", *ids)


def test_no_wait_bind_and_unbind_are_not_answered(
    wire: WireClient, channel: BlockingChannel, exchange: Maker, queue: Maker
) -> None:
    source, name = exchange(), queue()
    wire.method(1, amqp.Queue.Bind(queue=name, exchange=source, routing_key="key", nowait=True))
    wire.expect_silence(1)
    channel.basic_publish(source, "key", b"x")
    assert count(channel, name) == 1


def test_durable_queue_may_be_bound_to_a_transient_exchange(
    channel: BlockingChannel, exchange: Maker, queue: Maker
) -> None:
    source, name = exchange(durable=False), queue(durable=True)
    channel.queue_bind(name, source, "key")
    channel.basic_publish(source, "key", b"x")
    assert count(channel, name) == 1


# --- exchange to exchange ----------------------------------------------------------------------------------------------


def test_messages_pass_from_exchange_to_exchange(
    channel: BlockingChannel, exchange: Maker, queue: Maker
) -> None:
    outer, inner, name = exchange("topic"), exchange("direct"), queue()
    channel.exchange_bind(inner, outer, "stock.#")
    channel.queue_bind(name, inner, "stock.nyse")
    for key in ("stock.nyse", "stock.lse", "nyse"):
        channel.basic_publish(outer, key, key.encode())
    assert drain(channel, name) == [b"stock.nyse"]


def test_binding_exchanges_twice_is_binding_once(
    channel: BlockingChannel, exchange: Maker, queue: Maker
) -> None:
    outer, inner, name = exchange("fanout"), exchange("fanout"), queue()
    channel.queue_bind(name, inner)
    channel.exchange_bind(inner, outer, "key")
    channel.exchange_bind(inner, outer, "key")
    channel.basic_publish(outer, "", b"x")
    assert count(channel, name) == 1
    channel.exchange_unbind(inner, outer, "key")
    channel.exchange_unbind(inner, outer, "key")
    channel.basic_publish(outer, "", b"y")
    assert count(channel, name) == 1


def test_queue_reached_by_several_ways_gets_one_copy(
    channel: BlockingChannel, exchange: Maker, queue: Maker
) -> None:
    top, left, right, bottom = (exchange("fanout") for _ in range(4))
    name = queue()
    for source, destination in ((top, left), (top, right), (left, bottom), (right, bottom)):
        channel.exchange_bind(destination, source)
    channel.queue_bind(name, bottom)
    channel.queue_bind(name, left)
    channel.queue_bind(name, top)
    channel.basic_publish(top, "", b"x")
    assert count(channel, name) == 1


def test_circles_end(channel: BlockingChannel, exchange: Maker, queue: Maker) -> None:
    names = [exchange("fanout") for _ in range(3)]
    ends = [queue() for _ in range(3)]
    for index, name in enumerate(names):
        channel.exchange_bind(names[(index + 1) % 3], name)
        channel.exchange_bind(name, name)
        channel.queue_bind(ends[index], name)
    channel.basic_publish(names[0], "", b"x")
    assert [count(channel, end) for end in ends] == [1, 1, 1]


def test_long_chain_of_exchanges_is_followed_to_its_end(
    channel: BlockingChannel, exchange: Maker, queue: Maker
) -> None:
    names, end = [exchange("fanout") for _ in range(50)], queue()
    for source, destination in itertools.pairwise(names):
        channel.exchange_bind(destination, source)
    channel.queue_bind(end, names[-1])
    channel.basic_publish(names[0], "", b"x")
    assert drain(channel, end) == [b"x"]


def test_deleting_an_exchange_takes_it_out_of_the_way(
    channel: BlockingChannel, exchange: Maker, queue: Maker
) -> None:
    outer, inner, name = exchange("fanout"), exchange("fanout"), queue()
    channel.exchange_bind(inner, outer)
    channel.queue_bind(name, inner)
    channel.exchange_delete(inner)
    channel.basic_publish(outer, "", b"x")
    assert count(channel, name) == 0


def test_delivery_names_the_exchange_the_message_was_published_to(
    channel: BlockingChannel, exchange: Maker, queue: Maker
) -> None:
    outer, inner, name = exchange("fanout"), exchange("fanout"), queue()
    channel.exchange_bind(inner, outer)
    channel.queue_bind(name, inner)
    channel.basic_publish(outer, "the.key", b"x")
    method = channel.basic_get(name, auto_ack=True)[0]
    assert (method.exchange, method.routing_key) == (outer, "the.key")
