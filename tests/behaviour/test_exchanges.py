"""Exchanges: what exists from the start, declaring, redeclaring, deleting."""

from __future__ import annotations

from collections.abc import Callable

import pamqp.commands as amqp
import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from support import closes_channel, unique
from wire_client import WireClient, field_table, longstr, shortstr

DECLARE, DELETE, BIND, UNBIND = (40, 10), (40, 20), (40, 30), (40, 40)
QUEUE_BIND, QUEUE_UNBIND = (50, 20), (50, 50)
DEFAULT_TEXT = "operation not permitted on the default exchange"

PREDECLARED = [
    ("amq.direct", "direct", False),
    ("amq.fanout", "fanout", False),
    ("amq.topic", "topic", False),
    ("amq.headers", "headers", False),
    ("amq.match", "headers", False),
    ("amq.rabbitmq.trace", "topic", True),
]


@pytest.fixture
def channel(connection: pika.BlockingConnection) -> BlockingChannel:
    """In confirm mode: what was published has reached its queues when basic_publish returns."""
    channel = connection.channel()
    channel.confirm_delivery()
    return channel


@pytest.mark.parametrize("name, type, internal", PREDECLARED)
def test_predeclared_exchange_exists_and_may_be_redeclared(
    channel: BlockingChannel, name: str, type: str, internal: bool
) -> None:
    channel.exchange_declare(name, passive=True)
    channel.exchange_declare(name, type, durable=True, internal=internal)


def test_redeclaring_a_predeclared_exchange_differently_is_refused(wire: WireClient) -> None:
    wire.method(1, amqp.Exchange.Declare(exchange="amq.fanout", exchange_type="direct", durable=True))
    text = "inequivalent arg 'type' for exchange 'amq.fanout' in vhost '/': received 'direct' but current is 'fanout'"
    wire.expect_channel_close(1, 406, text, *DECLARE)


@pytest.mark.parametrize("type", ["direct", "fanout", "topic", "headers"])
def test_declare_is_answered_and_may_be_repeated(
    wire: WireClient, new_name: Callable[[str], str], type: str
) -> None:
    declare = amqp.Exchange.Declare(exchange=new_name("again"), exchange_type=type)
    for _ in range(2):
        wire.call(1, declare, amqp.Exchange.DeclareOk)


def test_reserved_prefix_is_refused(wire: WireClient) -> None:
    wire.method(1, amqp.Exchange.Declare(exchange="amq.test", exchange_type="direct"))
    wire.expect_channel_close(1, 403, "exchange name 'amq.test' contains reserved prefix 'amq.*'", *DECLARE)


def test_passive_declare_of_a_reserved_name_only_asks(wire: WireClient) -> None:
    wire.method(1, amqp.Exchange.Declare(exchange="amq.test", passive=True))
    wire.expect_channel_close(1, 404, "no exchange 'amq.test' in vhost '/'", *DECLARE)


@pytest.mark.parametrize("name", ["amq.fanout", "amq.direct", "amq.rabbitmq.trace"])
def test_predeclared_exchange_cannot_be_deleted(wire: WireClient, name: str) -> None:
    wire.method(1, amqp.Exchange.Delete(exchange=name))
    wire.expect_channel_close(
        1, 403, f"deletion of system exchange '{name}' in vhost '/' not allowed", *DELETE
    )


@pytest.mark.parametrize(
    "method, ids",
    [
        (amqp.Exchange.Declare(exchange="", exchange_type="direct", durable=True), DECLARE),
        (amqp.Exchange.Delete(exchange=""), DELETE),
        (amqp.Exchange.Bind(destination="amq.fanout", source=""), BIND),
        (amqp.Exchange.Bind(destination="", source="amq.fanout"), BIND),
        (amqp.Exchange.Unbind(destination="amq.fanout", source=""), UNBIND),
        (amqp.Exchange.Unbind(destination="", source="amq.fanout"), UNBIND),
    ],
    ids=["declare", "delete", "bind from", "bind to", "unbind from", "unbind to"],
)
def test_default_exchange_cannot_be_touched(
    wire: WireClient, method: amqp.Frame, ids: tuple[int, int]
) -> None:
    wire.method(1, method)
    wire.expect_channel_close(1, 403, DEFAULT_TEXT, *ids)


def test_default_exchange_cannot_be_bound_to_queues(wire: WireClient, queue: Callable[..., str]) -> None:
    name = queue()
    wire.method(1, amqp.Queue.Bind(queue=name, exchange="", routing_key="key"))
    wire.expect_channel_close(1, 403, DEFAULT_TEXT, *QUEUE_BIND)
    wire.open_channel(1)
    wire.method(1, amqp.Queue.Unbind(queue=name, exchange="", routing_key="key"))
    wire.expect_channel_close(1, 403, DEFAULT_TEXT, *QUEUE_UNBIND)


@pytest.mark.parametrize(
    "changed, received, current",
    [
        ({"exchange_type": "topic"}, "type", "received 'topic' but current is 'direct'"),
        ({"durable": True}, "durable", "received 'true' but current is 'false'"),
        ({"auto_delete": True}, "auto_delete", "received 'true' but current is 'false'"),
        ({"internal": True}, "internal", "received 'true' but current is 'false'"),
        (
            {"arguments": {"alternate-exchange": "other"}},
            "alternate-exchange",
            "received the value 'other' of type 'longstr' but current is none",
        ),
    ],
    ids=["type", "durable", "auto_delete", "internal", "alternate-exchange"],
)
def test_redeclaring_differently_is_refused(
    wire: WireClient, new_name: Callable[[str], str], changed: dict[str, object], received: str, current: str
) -> None:
    name = new_name("same")
    settings: dict[str, object] = {"exchange": name, "exchange_type": "direct"}
    wire.call(1, amqp.Exchange.Declare(**settings), amqp.Exchange.DeclareOk)
    wire.method(1, amqp.Exchange.Declare(**settings | changed))
    text = f"inequivalent arg '{received}' for exchange '{name}' in vhost '/': {current}"
    wire.expect_channel_close(1, 406, text, *DECLARE)


def test_redeclaring_without_the_alternate_exchange_is_refused(
    channel: BlockingChannel, exchange: Callable[..., str]
) -> None:
    name = exchange(arguments={"alternate-exchange": "other"})
    text = (
        f"inequivalent arg 'alternate-exchange' for exchange '{name}' in vhost '/': "
        "received none but current is the value 'other' of type 'longstr'"
    )
    with closes_channel(406, text):
        channel.exchange_declare(name, "direct")


def test_unknown_arguments_do_not_count(channel: BlockingChannel, exchange: Callable[..., str]) -> None:
    name = exchange(arguments={"nonsense": 1})
    channel.exchange_declare(name, "direct", arguments={"nonsense": 2})
    channel.exchange_declare(name, "direct")


def test_passive_declare_of_an_absent_exchange(wire: WireClient) -> None:
    name = unique("absent")
    wire.method(1, amqp.Exchange.Declare(exchange=name, passive=True))
    wire.expect_channel_close(1, 404, f"no exchange '{name}' in vhost '/'", *DECLARE)


def test_passive_declare_does_not_look_at_the_settings(
    channel: BlockingChannel, exchange: Callable[..., str]
) -> None:
    name = exchange("fanout", durable=True)
    channel.exchange_declare(name, "topic", passive=True, auto_delete=True)


def test_passive_declare_of_an_unknown_type_finds_the_exchange(
    channel: BlockingChannel, exchange: Callable[..., str]
) -> None:
    channel.exchange_declare(exchange("fanout"), "no-such-type", passive=True)


def test_deleted_exchange_is_gone(channel: BlockingChannel, exchange: Callable[..., str]) -> None:
    name = exchange()
    channel.exchange_delete(name)
    with closes_channel(404, f"no exchange '{name}' in vhost '/'"):
        channel.exchange_declare(name, passive=True)


def test_deleting_an_absent_exchange_succeeds(wire: WireClient) -> None:
    wire.call(1, amqp.Exchange.Delete(exchange=unique("absent")), amqp.Exchange.DeleteOk)


def test_delete_if_unused_spares_an_exchange_with_bindings(
    wire: WireClient, channel: BlockingChannel, exchange: Callable[..., str], queue: Callable[..., str]
) -> None:
    name, bound = exchange(), queue()
    channel.queue_bind(bound, name, "key")
    wire.method(1, amqp.Exchange.Delete(exchange=name, if_unused=True))
    wire.expect_channel_close(1, 406, f"exchange '{name}' in vhost '/' in use", *DELETE)
    channel.queue_unbind(bound, name, "key")
    channel.exchange_delete(name, if_unused=True)


def test_exchange_that_is_only_a_destination_is_not_in_use(
    channel: BlockingChannel, exchange: Callable[..., str]
) -> None:
    source, destination = exchange(), exchange()
    channel.exchange_bind(destination, source, "key")
    channel.exchange_delete(destination, if_unused=True)
    channel.exchange_delete(source, if_unused=True)


def test_deleting_an_exchange_deletes_its_bindings(
    channel: BlockingChannel, new_name: Callable[[str], str], queue: Callable[..., str]
) -> None:
    name, bound = new_name("again"), queue()
    channel.exchange_declare(name)
    channel.queue_bind(bound, name, "key")
    channel.exchange_delete(name)
    channel.exchange_declare(name)
    channel.basic_publish(name, "key", b"lost")
    assert channel.queue_declare(bound, passive=True).method.message_count == 0


def test_nobody_may_publish_to_an_internal_exchange(wire: WireClient, exchange: Callable[..., str]) -> None:
    name = exchange(internal=True)
    wire.publish(1, name, "key")
    wire.expect_channel_close(1, 403, f"cannot publish to internal exchange '{name}' in vhost '/'", 60, 40)


def test_internal_exchange_passes_on_what_is_bound_to_it(
    channel: BlockingChannel, exchange: Callable[..., str], queue: Callable[..., str]
) -> None:
    outer, inner, end = exchange("fanout"), exchange("fanout", internal=True), queue()
    channel.exchange_bind(inner, outer)
    channel.queue_bind(end, inner)
    channel.basic_publish(outer, "", b"through")
    assert channel.basic_get(end, auto_ack=True)[2] == b"through"


@pytest.mark.parametrize("written", ["{}\n", "\r{}", "{}\r\n"])
def test_line_ends_are_stripped_from_declared_names(
    wire: WireClient, channel: BlockingChannel, new_name: Callable[[str], str], written: str
) -> None:
    name = new_name("lines")
    arguments = b"\x00\x00" + shortstr(written.format(name)) + shortstr("direct") + b"\x00" + longstr("")
    wire.call(1, (*DECLARE, arguments), amqp.Exchange.DeclareOk)
    channel.exchange_declare(name, passive=True)


def test_no_wait_declare_and_delete_are_not_answered(
    wire: WireClient, channel: BlockingChannel, new_name: Callable[[str], str]
) -> None:
    name = new_name("nowait")
    wire.method(1, amqp.Exchange.Declare(exchange=name, exchange_type="direct", nowait=True))
    wire.expect_silence(1)
    channel.exchange_declare(name, passive=True)
    wire.method(1, amqp.Exchange.Delete(exchange=name, nowait=True))
    wire.expect_silence(1)
    with closes_channel(404, f"no exchange '{name}' in vhost '/'"):
        channel.exchange_declare(name, passive=True)


def test_publish_to_an_absent_exchange_closes_the_channel(wire: WireClient) -> None:
    name = unique("absent")
    wire.publish(1, name, "key", b"body")
    wire.expect_channel_close(1, 404, f"no exchange '{name}' in vhost '/'", 60, 40)


def test_alternate_exchange_must_be_a_name(wire: WireClient, new_name: Callable[[str], str]) -> None:
    name = new_name("alternate")
    table = field_table(("alternate-exchange", "I", b"\x00\x00\x00\x05"))
    wire.method(1, (*DECLARE, b"\x00\x00" + shortstr(name) + shortstr("direct") + b"\x00" + table))
    text = f"invalid type 'signedint' for arg 'alternate-exchange' in exchange '{name}' in vhost '/'"
    wire.expect_channel_close(1, 406, text, *DECLARE)
