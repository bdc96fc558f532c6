"""Direct reply-to: requests carry amq.rabbitmq.reply-to, replies come without a queue that anybody declared."""

from __future__ import annotations

import re
from collections.abc import Callable

import pamqp.commands as amqp
import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from wire_client import WireClient, longstr, shortstr

REPLY_TO = "amq.rabbitmq.reply-to"
CONSUME, PUBLISH, DECLARE = (60, 20), (60, 40), (50, 10)


def reply_to_of_a_request(requester: BlockingChannel, server: BlockingChannel, queue: str) -> str:
    """What the server finds as reply_to of a request."""
    requester.basic_publish("", queue, b"?", pika.BasicProperties(reply_to=REPLY_TO, correlation_id="7"))
    for method, properties, _ in server.consume(queue, auto_ack=True, inactivity_timeout=5):
        assert method is not None, "the request did not come"
        assert properties.correlation_id == "7"
        server.cancel()
        return str(properties.reply_to)
    raise AssertionError("no request")


def test_reply_comes_back_across_connections(
    connect: Callable[..., pika.BlockingConnection], queue: Callable[..., str]
) -> None:
    requester, server = connect().channel(), connect().channel()
    requests = queue()
    replies: list[bytes] = []
    requester.basic_consume(REPLY_TO, lambda *args: replies.append(args[3]), auto_ack=True)
    reply_to = reply_to_of_a_request(requester, server, requests)
    # Clients tell it from an ordinary queue by this shape.
    assert re.fullmatch(r"amq\.rabbitmq\.reply-to\.[A-Za-z0-9+/]+=*\.[A-Za-z0-9+/]{22}==", reply_to)
    server.basic_publish("", reply_to, b"!")
    requester.connection.process_data_events(5)
    assert replies == [b"!"]


def test_bcc_of_a_request_is_hidden_as_of_any_message(
    connect: Callable[..., pika.BlockingConnection], queue: Callable[..., str]
) -> None:
    requester, server = connect().channel(), connect().channel()
    first, second = queue(), queue()
    requester.basic_consume(REPLY_TO, lambda *_: None, auto_ack=True)
    requester.confirm_delivery()
    requester.basic_publish("", first, b"?", pika.BasicProperties(reply_to=REPLY_TO, headers={"BCC": [second]}))
    for name in (first, second):
        _, properties, _ = server.basic_get(name, auto_ack=True)
        assert (properties.headers, properties.reply_to.startswith(REPLY_TO + ".")) == ({}, True)


def test_the_requesters_name_can_be_asked_for_while_it_is_there(
    connect: Callable[..., pika.BlockingConnection], queue: Callable[..., str], wire: WireClient
) -> None:
    requester, server = connect().channel(), connect().channel()
    tag = requester.basic_consume(REPLY_TO, lambda *_: None, auto_ack=True)
    reply_to = reply_to_of_a_request(requester, server, queue())
    passive_declare = (*DECLARE, b"\x00\x00" + shortstr(reply_to) + b"\x01" + longstr(""))
    wire.method(1, passive_declare)
    wire.expect(1, amqp.Queue.DeclareOk)
    requester.basic_cancel(tag)
    requester.close()
    wire.method(1, passive_declare)
    wire.expect_channel_close(1, 404, f"no queue '{reply_to}' in vhost '/'", *DECLARE)


def test_mandatory_reply_to_a_requester_that_is_gone_is_returned(
    connect: Callable[..., pika.BlockingConnection], queue: Callable[..., str], wire: WireClient
) -> None:
    requester, server = connect().channel(), connect().channel()
    requester.basic_consume(REPLY_TO, lambda *_: None, auto_ack=True)
    reply_to = reply_to_of_a_request(requester, server, queue())
    requester.close()
    wire.publish(1, "", reply_to, b"!", mandatory=True)
    content = wire.expect_content(1, amqp.Basic.Return)
    assert content.body == b"!"


@pytest.mark.differs("RabbitMQ returns every mandatory reply, though it has delivered it")
def test_mandatory_reply_that_was_delivered_is_not_returned(
    connect: Callable[..., pika.BlockingConnection], queue: Callable[..., str], wire: WireClient
) -> None:
    requester, server = connect().channel(), connect().channel()
    requester.basic_consume(REPLY_TO, lambda *_: None, auto_ack=True)
    reply_to = reply_to_of_a_request(requester, server, queue())
    wire.publish(1, "", reply_to, b"!", mandatory=True)
    wire.expect_silence(1)


def test_a_reply_consumer_cannot_acknowledge(wire: WireClient) -> None:
    wire.method(1, amqp.Basic.Consume(queue=REPLY_TO))
    wire.expect_channel_close(1, 406, "reply consumer cannot acknowledge", *CONSUME)


def test_there_is_one_reply_consumer_a_channel(wire: WireClient) -> None:
    wire.call(1, amqp.Basic.Consume(queue=REPLY_TO, no_ack=True), amqp.Basic.ConsumeOk)
    wire.method(1, amqp.Basic.Consume(queue=REPLY_TO, no_ack=True))
    wire.expect_channel_close(1, 406, "reply consumer already set", *CONSUME)


def test_a_request_without_a_reply_consumer_is_refused(wire: WireClient) -> None:
    wire.method(1, amqp.Basic.Publish(routing_key="nowhere"))
    wire.header(1, 0, properties=b"\x02\x00\x15" + REPLY_TO.encode())
    wire.expect_channel_close(1, 406, "fast reply consumer does not exist", *PUBLISH)


def test_a_reply_queue_is_for_its_requester_alone(
    connect: Callable[..., pika.BlockingConnection], queue: Callable[..., str], wire: WireClient
) -> None:
    requester, server = connect().channel(), connect().channel()
    requester.basic_consume(REPLY_TO, lambda *_: None, auto_ack=True)
    reply_to = reply_to_of_a_request(requester, server, queue())
    name = b"\x00\x00" + shortstr(reply_to)
    for method, rest in (
        (CONSUME, b"\x00\x02" + longstr("")),
        ((60, 70), b"\x00"),  # basic.get
        ((50, 30), b"\x00"),  # queue.purge
        ((50, 20), shortstr("amq.direct") + b"\x00\x00" + longstr("")),  # queue.bind
    ):
        wire.method(1, (*method, name + rest))
        wire.expect_channel_close(1, 404, f"no queue '{reply_to}' in vhost '/'", *method)
        wire.open_channel(1)


def test_unbinding_and_deleting_a_reply_queue_is_ok_and_does_nothing(
    connect: Callable[..., pika.BlockingConnection], queue: Callable[..., str], wire: WireClient
) -> None:
    requester, server = connect().channel(), connect().channel()
    replies: list[bytes] = []
    requester.basic_consume(REPLY_TO, lambda *args: replies.append(args[3]), auto_ack=True)
    reply_to = reply_to_of_a_request(requester, server, queue())
    name = b"\x00\x00" + shortstr(reply_to)
    wire.call(1, (50, 50, name + shortstr("amq.direct") + b"\x00" + longstr("")), amqp.Queue.UnbindOk)
    wire.call(1, (50, 40, name + b"\x00"), amqp.Queue.DeleteOk)
    server.basic_publish("", reply_to, b"!")
    requester.connection.process_data_events(5)
    assert replies == [b"!"]


def test_a_reply_queue_is_no_queue_to_an_operator(
    ctl: Callable[..., str], own_vhost: str, connect: Callable[..., pika.BlockingConnection]
) -> None:
    requester = connect(vhost=own_vhost).channel()
    requester.basic_consume(REPLY_TO, lambda *_: None, auto_ack=True)
    requester.queue_declare("q")
    assert ctl("-q", "list_queues", "-p", own_vhost, "--no-table-headers", "name").split() == ["q"]
    assert ctl("-q", "list_consumers", "-p", own_vhost, "--no-table-headers").split() == []


def test_name_that_was_asked_for_is_the_last_queues(wire: WireClient) -> None:
    wire.call(1, (*DECLARE, b"\x00\x00" + shortstr(REPLY_TO) + b"\x01" + longstr("")), amqp.Queue.DeclareOk)
    wire.method(1, amqp.Queue.Purge())
    wire.expect_channel_close(1, 404, f"no queue '{REPLY_TO}' in vhost '/'", 50, 30)
