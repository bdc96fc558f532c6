"""An exclusive queue is its connection's alone, and goes with it."""

from __future__ import annotations

from collections.abc import Callable

import pamqp.commands as amqp
import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from support import closes_channel, eventually
from wire_client import WireClient

Maker = Callable[..., str]
Connect = Callable[..., pika.BlockingConnection]


def locked(name: str) -> str:
    return (
        f"cannot obtain exclusive access to locked queue '{name}' in vhost '/'. It could be originally declared on "
        "another connection or the exclusive property value does not match that of the original declaration."
    )


@pytest.mark.parametrize(
    "make, ids",
    [
        (lambda name: amqp.Queue.Declare(queue=name, exclusive=True), (50, 10)),
        (lambda name: amqp.Queue.Declare(queue=name), (50, 10)),
        (lambda name: amqp.Queue.Declare(queue=name, passive=True), (50, 10)),
        (lambda name: amqp.Basic.Consume(queue=name), (60, 20)),
        (lambda name: amqp.Basic.Get(queue=name), (60, 70)),
        (lambda name: amqp.Queue.Purge(queue=name), (50, 30)),
        (lambda name: amqp.Queue.Delete(queue=name), (50, 40)),
        (lambda name: amqp.Queue.Bind(queue=name, exchange="amq.direct", routing_key="key"), (50, 20)),
    ],
    ids=["declare exclusive", "declare", "passive", "consume", "get", "purge", "delete", "bind"],
)
def test_other_connections_are_kept_out(
    wire: WireClient, queue: Maker, make: Callable[[str], amqp.Frame], ids: tuple[int, int]
) -> None:
    name = queue(exclusive=True)
    wire.method(1, make(name))
    wire.expect_channel_close(1, 405, locked(name), *ids)


def test_other_connections_may_not_unbind_it(
    wire: WireClient, channel: BlockingChannel, queue: Maker
) -> None:
    name = queue(exclusive=True)
    channel.queue_bind(name, "amq.direct", "key")
    wire.method(1, amqp.Queue.Unbind(queue=name, exchange="amq.direct", routing_key="key"))
    wire.expect_channel_close(1, 405, locked(name), 50, 50)


def test_other_channels_of_the_connection_may_use_it(
    connection: pika.BlockingConnection, queue: Maker
) -> None:
    name = queue(exclusive=True)
    other = connection.channel()
    other.queue_declare(name, exclusive=True)
    other.queue_bind(name, "amq.direct", name)
    other.basic_publish("amq.direct", name, b"x")
    assert other.basic_get(name, auto_ack=True)[2] == b"x"


def test_everybody_may_publish_to_it(connect: Connect, channel: BlockingChannel, queue: Maker) -> None:
    name = queue(exclusive=True)
    connect().channel().basic_publish("", name, b"x")
    assert eventually(lambda: channel.basic_get(name, auto_ack=True)[2]) == b"x"


def test_redeclaring_it_as_shared_is_refused(channel: BlockingChannel, queue: Maker) -> None:
    name = queue(exclusive=True)
    with closes_channel(405, locked(name)):
        channel.queue_declare(name)


def test_redeclaring_a_shared_queue_as_exclusive_is_refused(channel: BlockingChannel, queue: Maker) -> None:
    name = queue()
    with closes_channel(405, locked(name)):
        channel.queue_declare(name, exclusive=True)


def test_passive_declare_does_not_compare_the_setting(channel: BlockingChannel, queue: Maker) -> None:
    channel.queue_declare(queue(exclusive=True), passive=True)


def test_it_outlives_its_channel(connection: pika.BlockingConnection, new_name: Maker) -> None:
    name, first = new_name("outlives"), connection.channel()
    first.queue_declare(name, exclusive=True)
    first.close()
    connection.channel().queue_declare(name, passive=True)


def test_it_outlives_its_last_consumer(channel: BlockingChannel, queue: Maker) -> None:
    name = queue(exclusive=True)
    channel.basic_cancel(channel.basic_consume(name, lambda *_: None))
    channel.queue_declare(name, passive=True)


@pytest.mark.parametrize("durable", [False, True])
def test_it_is_gone_when_its_connection_has_closed(
    connect: Connect, channel: BlockingChannel, new_name: Maker, durable: bool
) -> None:
    """Gone before close-ok: whoever connects next finds nothing of it."""
    name, owner = new_name("gone"), connect()
    owner.channel().queue_declare(name, exclusive=True, durable=durable)
    owner.close()
    with closes_channel(404, f"no queue '{name}' in vhost '/'"):
        channel.queue_declare(name, passive=True)


def test_reconnecting_client_may_declare_it_at_once(connect: Connect, new_name: Maker) -> None:
    name = new_name("again")
    for _ in range(20):
        owner = connect()
        owner.channel().queue_declare(name, exclusive=True)
        owner.close()


def test_it_is_gone_when_its_client_vanishes(
    raw: Callable[..., WireClient], connect: Connect, channel: BlockingChannel, new_name: Maker
) -> None:
    name, owner = new_name("vanished"), raw().open()
    owner.open_channel(1)
    owner.call(1, amqp.Queue.Declare(queue=name, exclusive=True), amqp.Queue.DeclareOk)
    owner.close()

    def declared_by_another() -> bool:
        client = raw().open()
        client.open_channel(1)
        client.method(1, amqp.Queue.Declare(queue=name, exclusive=True))
        return isinstance(client.read_command()[1], amqp.Queue.DeclareOk)

    eventually(declared_by_another)


def test_its_bindings_go_with_it(
    connect: Connect, channel: BlockingChannel, exchange: Maker, new_name: Maker
) -> None:
    name, source, owner = new_name("bound"), exchange(), connect()
    theirs = owner.channel()
    theirs.queue_declare(name, exclusive=True)
    theirs.queue_bind(name, source, "key")
    owner.close()
    channel.exchange_delete(source, if_unused=True)
