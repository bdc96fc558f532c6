"""Queues: names, declaring, redeclaring, deleting, purging."""

from __future__ import annotations

import re
from collections.abc import Callable

import pamqp.commands as amqp
import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from support import closes_channel, eventually, unique
from wire_client import WireClient, longstr, shortstr

Maker = Callable[..., str]

DECLARE, PURGE, DELETE = (50, 10), (50, 30), (50, 40)


@pytest.fixture
def channel(connection: pika.BlockingConnection) -> BlockingChannel:
    """In confirm mode: what was published has reached its queues when basic_publish returns."""
    channel = connection.channel()
    channel.confirm_delivery()
    return channel


def count(channel: BlockingChannel, queue: str) -> int:
    return int(channel.queue_declare(queue, passive=True).method.message_count)


# --- names -------------------------------------------------------------------------------------------------------------


def test_server_gives_names_nobody_else_has(channel: BlockingChannel) -> None:
    names = {channel.queue_declare("", exclusive=True).method.queue for _ in range(20)}
    assert len(names) == 20
    assert all(re.fullmatch(r"amq\.gen-[A-Za-z0-9_-]{22}", name) for name in names)


def test_server_given_name_may_only_be_declared_passively(wire: WireClient) -> None:
    name = wire.call(1, amqp.Queue.Declare(queue="", exclusive=True), amqp.Queue.DeclareOk).queue
    wire.call(1, amqp.Queue.Declare(queue=name, passive=True), amqp.Queue.DeclareOk)
    wire.method(1, amqp.Queue.Declare(queue=name, exclusive=True))
    wire.expect_channel_close(1, 403, f"queue name '{name}' contains reserved prefix 'amq.*'", *DECLARE)


def test_reserved_prefix_is_refused(wire: WireClient) -> None:
    wire.method(1, amqp.Queue.Declare(queue="amq.restricted_queue_name"))
    text = "queue name 'amq.restricted_queue_name' contains reserved prefix 'amq.*'"
    wire.expect_channel_close(1, 403, text, *DECLARE)


def test_passive_declare_of_a_reserved_name_only_asks(wire: WireClient) -> None:
    wire.method(1, amqp.Queue.Declare(queue="amq.restricted_queue_name", passive=True))
    wire.expect_channel_close(1, 404, "no queue 'amq.restricted_queue_name' in vhost '/'", *DECLARE)


@pytest.mark.parametrize("name", ["x" * 200, "with space", "ünïcödé-☃", "slash/colon:dot.", "{}[]'\"<>\\"])
def test_any_utf8_name_will_do(channel: BlockingChannel, new_name: Maker, name: str) -> None:
    name = new_name(name)
    assert channel.queue_declare(name).method.queue == name
    channel.basic_publish("", name, b"x")
    assert count(channel, name) == 1


def test_longest_name_is_255_octets(wire: WireClient, channel: BlockingChannel) -> None:
    name = unique("x" * 255)[-255:]
    wire.method(1, (*DECLARE, b"\x00\x00" + shortstr(name) + b"\x00" + longstr("")))
    assert wire.expect(1, amqp.Queue.DeclareOk).queue == name
    channel.queue_delete(name)


@pytest.mark.parametrize("written", ["{}\n", "\r{}", "{}\r\n"])
def test_line_ends_are_stripped_from_declared_names(wire: WireClient, new_name: Maker, written: str) -> None:
    name = new_name("lines")
    arguments = b"\x00\x00" + shortstr(written.format(name)) + b"\x00" + longstr("")
    assert wire.call(1, (*DECLARE, arguments), amqp.Queue.DeclareOk).queue == name


def test_text_of_an_error_is_cut_to_fit(wire: WireClient) -> None:
    """A reply text is a short string of at most 255 octets."""
    name = "x" * 250
    wire.method(1, amqp.Queue.Declare(queue=name, passive=True))
    close = wire.expect(1, amqp.Channel.Close)
    assert close.reply_code == 404
    assert close.reply_text == f"NOT_FOUND - no queue '{name}"[:252] + "..."


# --- declare -----------------------------------------------------------------------------------------------------------


def test_declare_ok_counts_messages_and_consumers(channel: BlockingChannel, queue: Maker) -> None:
    name = queue()
    for _ in range(3):
        channel.basic_publish("", name, b"x")
    channel.basic_get(name)
    answer = channel.queue_declare(name).method
    assert (answer.queue, answer.message_count, answer.consumer_count) == (name, 2, 0)
    channel.basic_qos(prefetch_count=1)
    channel.basic_consume(name, lambda *_: None)
    assert channel.queue_declare(name).method.consumer_count == 1


@pytest.mark.parametrize(
    "changed, argument, received, current",
    [
        ({"durable": True}, "durable", "true", "false"),
        ({"auto_delete": True}, "auto_delete", "true", "false"),
    ],
    ids=["durable", "auto_delete"],
)
def test_redeclaring_differently_is_refused(
    wire: WireClient, queue: Maker, changed: dict[str, bool], argument: str, received: str, current: str
) -> None:
    name = queue()
    wire.method(1, amqp.Queue.Declare(queue=name, **changed))
    text = f"inequivalent arg '{argument}' for queue '{name}' in vhost '/': received '{received}' but current is '{current}'"
    wire.expect_channel_close(1, 406, text, *DECLARE)


@pytest.mark.parametrize("setting", ["durable", "auto_delete"])
def test_redeclaring_with_less_is_refused(wire: WireClient, queue: Maker, setting: str) -> None:
    name = queue(**{setting: True})
    wire.method(1, amqp.Queue.Declare(queue=name))
    text = f"inequivalent arg '{setting}' for queue '{name}' in vhost '/': received 'false' but current is 'true'"
    wire.expect_channel_close(1, 406, text, *DECLARE)


def test_passive_declare_of_an_absent_queue(wire: WireClient) -> None:
    name = unique("absent")
    wire.method(1, amqp.Queue.Declare(queue=name, passive=True))
    wire.expect_channel_close(1, 404, f"no queue '{name}' in vhost '/'", *DECLARE)


def test_passive_declare_does_not_look_at_the_settings(wire: WireClient, queue: Maker) -> None:
    declare = amqp.Queue.Declare(
        queue=queue(), passive=True, durable=True, auto_delete=True, arguments={"x-expires": -1}
    )
    wire.call(1, declare, amqp.Queue.DeclareOk)


def test_passive_declare_needs_a_name(wire: WireClient, queue: Maker) -> None:
    wire.call(1, amqp.Queue.Declare(queue=queue(), passive=True), amqp.Queue.DeclareOk)
    wire.method(1, amqp.Queue.Declare(queue="", passive=True))
    wire.expect_channel_close(1, 404, "no queue '' in vhost '/'", *DECLARE)


def test_no_wait_declare_is_not_answered(wire: WireClient, channel: BlockingChannel, new_name: Maker) -> None:
    name = new_name("nowait")
    wire.method(1, amqp.Queue.Declare(queue=name, nowait=True))
    wire.expect_silence(1)
    channel.queue_declare(name, passive=True)


def test_no_wait_declare_still_reports_errors(wire: WireClient) -> None:
    wire.method(1, amqp.Queue.Declare(queue="amq.nowait", nowait=True))
    wire.expect_channel_close(1, 403, "queue name 'amq.nowait' contains reserved prefix 'amq.*'", *DECLARE)


# --- delete ------------------------------------------------------------------------------------------------------------


def test_delete_answers_with_the_number_of_ready_messages(channel: BlockingChannel, queue: Maker) -> None:
    name = queue()
    for _ in range(3):
        channel.basic_publish("", name, b"x")
    channel.basic_get(name)
    assert channel.queue_delete(name).method.message_count == 2


def test_deleted_queue_is_gone(channel: BlockingChannel, queue: Maker) -> None:
    name = queue()
    channel.queue_delete(name)
    with closes_channel(404, f"no queue '{name}' in vhost '/'"):
        channel.queue_declare(name, passive=True)


def test_redeclared_queue_begins_empty_and_unbound(
    channel: BlockingChannel, queue: Maker, exchange: Maker
) -> None:
    name, source = queue(), exchange()
    channel.queue_bind(name, source, "key")
    channel.basic_publish("", name, b"x")
    channel.queue_delete(name)
    channel.queue_declare(name)
    channel.basic_publish(source, "key", b"x")
    assert count(channel, name) == 0


def test_deleting_an_absent_queue_succeeds(wire: WireClient) -> None:
    assert wire.call(1, amqp.Queue.Delete(queue=unique("absent")), amqp.Queue.DeleteOk).message_count == 0


def test_delete_if_empty_spares_messages(wire: WireClient, channel: BlockingChannel, queue: Maker) -> None:
    name = queue()
    channel.basic_publish("", name, b"x")
    wire.method(1, amqp.Queue.Delete(queue=name, if_empty=True))
    wire.expect_channel_close(1, 406, f"queue '{name}' in vhost '/' not empty", *DELETE)
    channel.queue_purge(name)
    channel.queue_delete(name, if_empty=True)


def test_delete_if_unused_spares_consumers(wire: WireClient, channel: BlockingChannel, queue: Maker) -> None:
    name = queue()
    tag = channel.basic_consume(name, lambda *_: None)
    wire.method(1, amqp.Queue.Delete(queue=name, if_unused=True))
    wire.expect_channel_close(1, 406, f"queue '{name}' in vhost '/' in use", *DELETE)
    channel.basic_cancel(tag)
    channel.queue_delete(name, if_unused=True)


def test_no_wait_delete_is_not_answered(wire: WireClient, channel: BlockingChannel, queue: Maker) -> None:
    name = queue()
    wire.method(1, amqp.Queue.Delete(queue=name, nowait=True))
    wire.expect_silence(1)
    with closes_channel(404, f"no queue '{name}' in vhost '/'"):
        channel.queue_declare(name, passive=True)


# --- purge -------------------------------------------------------------------------------------------------------------


def test_purge_removes_and_counts_what_is_ready(channel: BlockingChannel, queue: Maker) -> None:
    name = queue()
    for _ in range(5):
        channel.basic_publish("", name, b"x")
    channel.basic_get(name)
    assert channel.queue_purge(name).method.message_count == 4
    assert channel.queue_purge(name).method.message_count == 0


def test_purge_leaves_what_is_unacknowledged(
    connect: Callable[..., pika.BlockingConnection], channel: BlockingChannel, queue: Maker
) -> None:
    name = queue()
    channel.basic_publish("", name, b"held")
    other = connect()
    other.channel().basic_get(name)
    channel.queue_purge(name)
    other.close()
    eventually(lambda: count(channel, name) == 1)
    method, _, body = channel.basic_get(name, auto_ack=True)
    assert (body, method.redelivered) == (b"held", True)


def test_purging_an_absent_queue(wire: WireClient) -> None:
    name = unique("absent")
    wire.method(1, amqp.Queue.Purge(queue=name))
    wire.expect_channel_close(1, 404, f"no queue '{name}' in vhost '/'", *PURGE)


def test_no_wait_purge_is_not_answered(wire: WireClient, channel: BlockingChannel, queue: Maker) -> None:
    name = queue()
    channel.basic_publish("", name, b"x")
    wire.method(1, amqp.Queue.Purge(queue=name, nowait=True))
    wire.expect_silence(1)
    assert count(channel, name) == 0


@pytest.mark.parametrize(
    "method, ids", [(amqp.Basic.Consume, (60, 20)), (amqp.Basic.Get, (60, 70))], ids=["consume", "get"]
)
def test_reading_from_an_absent_queue(
    wire: WireClient, method: type[amqp.Frame], ids: tuple[int, int]
) -> None:
    name = unique("absent")
    wire.method(1, method(queue=name))
    wire.expect_channel_close(1, 404, f"no queue '{name}' in vhost '/'", *ids)
