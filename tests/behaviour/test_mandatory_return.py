"""basic.return: a mandatory message that reached no queue comes back whole, before its confirm."""

from __future__ import annotations

import struct
from collections.abc import Callable

import pamqp.commands as amqp
import pamqp.frame
import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from behaviour.helpers import read_anything
from support import unique
from wire_client import BODY, Delivered, WireClient, shortstr

Maker = Callable[..., str]

# content-type, delivery-mode and message-id, as the flags say
PROPERTIES = b"\x90\x80" + shortstr("text/plain") + b"\x02" + shortstr("the one")


def publish_mandatory(client: WireClient, exchange: str, key: str, body: bytes) -> None:
    client.method(1, amqp.Basic.Publish(exchange=exchange, routing_key=key, mandatory=True))
    client.header(1, len(body), PROPERTIES)
    if body:
        client.body(1, body)


@pytest.mark.parametrize("exchange", ["", "amq.direct", "amq.topic", "amq.headers"])
def test_unroutable_message_comes_back_whole(wire: WireClient, exchange: str) -> None:
    key = unique("nowhere")
    publish_mandatory(wire, exchange, key, b"some body")
    returned = wire.expect_content(1, amqp.Basic.Return)
    method = returned.method
    assert (method.reply_code, method.reply_text) == (312, "NO_ROUTE")
    assert (method.exchange, method.routing_key) == (exchange, key)
    assert returned.header[12:] == PROPERTIES
    assert returned.body == b"some body"


def test_empty_message_comes_back_without_a_body_frame(wire: WireClient) -> None:
    publish_mandatory(wire, "", unique("nowhere"), b"")
    returned = wire.expect_content(1, amqp.Basic.Return)
    assert returned.header[4:12] == bytes(8)
    wire.expect_silence(1)


def test_large_message_comes_back_in_frames_the_publisher_can_take(raw: Callable[..., WireClient]) -> None:
    client = raw().open(frame_max=4096)
    client.open_channel(1)
    body = bytes(range(256)) * 100
    client.method(1, amqp.Basic.Publish(exchange="", routing_key=unique("nowhere"), mandatory=True))
    client.header(1, len(body))
    for start in range(0, len(body), 4088):
        client.body(1, body[start : start + 4088])
    returned = client.expect_content(1, amqp.Basic.Return)
    assert returned.body == body
    assert all(len(frame.payload) <= 4088 for frame in returned.frames)


def test_message_that_is_not_mandatory_does_not_come_back(wire: WireClient) -> None:
    wire.publish(1, "", unique("nowhere"), b"x")
    wire.expect_silence(1)


def test_message_that_reached_a_queue_does_not_come_back(wire: WireClient, queue: Maker) -> None:
    publish_mandatory(wire, "", queue(), b"x")
    wire.expect_silence(1)


def test_one_queue_is_enough(wire: WireClient, channel: BlockingChannel, queue: Maker, exchange: Maker) -> None:
    outer, inner, name = exchange("fanout"), exchange("fanout"), queue()
    channel.exchange_bind(inner, outer)
    publish_mandatory(wire, outer, "", b"x")
    assert wire.expect_content(1, amqp.Basic.Return).method.exchange == outer
    channel.queue_bind(name, inner)
    publish_mandatory(wire, outer, "", b"x")
    wire.expect_silence(1)


def test_return_comes_before_the_confirm(wire: WireClient) -> None:
    wire.call(1, amqp.Confirm.Select(), amqp.Confirm.SelectOk)
    for tag in (1, 2, 3):
        publish_mandatory(wire, "", unique("nowhere"), b"x")
        wire.expect_content(1, amqp.Basic.Return)
        ack = wire.expect(1, amqp.Basic.Ack)
        assert ack.delivery_tag == tag


def test_every_return_of_a_burst_comes_before_its_confirm(wire: WireClient) -> None:
    wire.call(1, amqp.Confirm.Select(), amqp.Confirm.SelectOk)
    for number in range(100):
        publish_mandatory(wire, "", "nowhere-at-all", b"%d" % number)
    returned, acked = 0, 0
    while acked < 100:
        came = read_anything(wire, 1)
        if isinstance(came, Delivered):
            assert came.body == b"%d" % returned
            returned += 1
        else:
            assert isinstance(came, amqp.Basic.Ack)
            acked = came.delivery_tag
        assert acked <= returned
    assert returned == 100


@pytest.mark.parametrize("before", [1, 2, 5])
def test_earlier_publishes_are_confirmed_before_a_return(wire: WireClient, before: int) -> None:
    """All come in one write. A client may count what it has been told before it looks at what came back."""
    wire.call(1, amqp.Confirm.Select(), amqp.Confirm.SelectOk)
    nowhere = amqp.Basic.Publish(routing_key="nowhere-at-all")
    empty = struct.pack(">BHIHHQH", 2, 1, 14, 60, 0, 0, 0) + b"\xce"
    returned = amqp.Basic.Publish(routing_key="nowhere-at-all", mandatory=True)
    wire.send((pamqp.frame.marshal(nowhere, 1) + empty) * before + pamqp.frame.marshal(returned, 1) + empty)
    told: set[int] = set()
    while len(told) < before:
        ack = read_anything(wire, 1)
        assert isinstance(ack, amqp.Basic.Ack)
        told |= set(range(1, ack.delivery_tag + 1)) if ack.multiple else {ack.delivery_tag}
    assert told == set(range(1, before + 1))
    assert isinstance(read_anything(wire, 1), Delivered)
    last = read_anything(wire, 1)
    assert isinstance(last, amqp.Basic.Ack)
    assert last.delivery_tag == before + 1


def test_frames_of_returns_and_deliveries_do_not_mix(wire: WireClient, queue: Maker) -> None:
    name = queue()
    wire.call(1, amqp.Basic.Consume(queue=name, no_ack=True), amqp.Basic.ConsumeOk)
    large = bytes(120_000)
    for _ in range(30):
        wire.method(1, amqp.Basic.Publish(exchange="", routing_key=unique("nowhere"), mandatory=True))
        wire.header(1, 3 * len(large))
        for _ in range(3):
            wire.body(1, large)
        wire.publish(1, "", name, large)
    kinds = []
    while len(kinds) < 60:
        came = read_anything(wire, 1)
        assert isinstance(came, Delivered)
        assert all(frame.type == BODY for frame in came.frames[1:])
        kinds.append(type(came.method))
        assert len(came.body) == (360_000 if kinds[-1] is amqp.Basic.Return else 120_000)
    assert kinds.count(amqp.Basic.Return) == kinds.count(amqp.Basic.Deliver) == 30


def test_pika_sees_what_came_back(connection: pika.BlockingConnection) -> None:
    channel = connection.channel()
    channel.confirm_delivery()
    properties = pika.BasicProperties(headers={"a": [1, {"b": True}]}, correlation_id="c", timestamp=1_700_000_000)
    with pytest.raises(pika.exceptions.UnroutableError) as caught:
        channel.basic_publish("", unique("nowhere"), b"body", properties, mandatory=True)
    (message,) = caught.value.messages
    assert message.method.reply_text == "NO_ROUTE"
    assert message.properties == properties
    assert message.body == b"body"


def test_queue_deleted_since_the_last_publish_no_longer_takes_it(
    wire: WireClient, channel: BlockingChannel, queue: Maker
) -> None:
    name = queue()
    publish_mandatory(wire, "", name, b"x")
    wire.expect_silence(1)
    channel.queue_delete(name)
    publish_mandatory(wire, "", name, b"x")
    assert wire.expect_content(1, amqp.Basic.Return).method.routing_key == name
