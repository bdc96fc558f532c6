"""The firehose without a socket: in what order copies come, and what is never copied."""

from __future__ import annotations

import pytest
from pamqp.commands import Basic, Queue, Tx

from rabbitpy_broker.wire.field_table import FieldTable
from sans_io import BODY, HEADER, METHOD, content, frame, method, publish

TRACE = "amq.rabbitmq.trace"


@pytest.fixture
def peer(broker):
    """Channel 1 consumes from "copies", which gets all of the firehose; the queue "q" is there."""
    peer = broker.connect()
    peer.open_channel(1)
    peer.open_channel(2)
    peer.call(1, Queue.Declare(queue="q"))
    peer.call(1, Queue.Declare(queue="copies"))
    peer.call(1, Queue.Bind(queue="copies", exchange=TRACE, routing_key="#"))
    peer.feed(method(1, Basic.Consume(queue="copies", no_ack=True)))
    broker.vhost.tracing = True
    return peer


def copies(frames):
    """The routing keys of the copies among these frames."""
    commands = [one.command() for one in frames if one.index() == 0x003C003C]
    return [command.routing_key for command in commands if command.exchange == TRACE]


def test_publish_is_copied_before_the_delivery_that_it_causes(peer):
    peer.feed(method(2, Basic.Consume(queue="q", no_ack=True)))
    assert copies(peer.feed(publish(2, "", "q", b"x"))) == ["publish.", "deliver.q"]


def test_deliveries_of_a_backlog_are_copied_each(broker, peer):
    broker.vhost.tracing = False
    for body in (b"0", b"1", b"2"):
        assert copies(peer.feed(publish(2, "", "q", body))) == []
    broker.vhost.tracing = True
    assert copies(peer.feed(method(2, Basic.Consume(queue="q")))) == ["deliver.q"] * 3


def test_get_is_copied_and_an_empty_one_is_not(peer):
    peer.feed(publish(2, "", "q", b"x"))
    assert copies(peer.feed(method(2, Basic.Get(queue="q", no_ack=True)))) == ["deliver.q"]
    assert copies(peer.feed(method(2, Basic.Get(queue="q", no_ack=True)))) == []


def test_publish_in_a_transaction_is_copied_once_and_at_once(peer):
    peer.call(2, Tx.Select())
    assert copies(peer.feed(publish(2, "", "q", b"x"))) == ["publish."]
    assert copies(peer.feed(method(2, Tx.Commit()))) == []
    assert copies(peer.feed(publish(2, "", "q", b"y"))) == ["publish."]
    assert copies(peer.feed(method(2, Tx.Rollback()))) == []


def test_publish_through_a_headers_exchange_is_copied(peer):
    peer.call(2, Queue.Bind(queue="q", exchange="amq.headers", routing_key="", arguments={"k": 1}))
    assert copies(peer.feed(publish(2, "amq.headers", "", b"x"))) == ["publish.amq.headers"]
    peer.call(2, Tx.Select())
    assert copies(peer.feed(publish(2, "amq.headers", "", b"x"))) == ["publish.amq.headers"]


def test_reply_is_copied_as_a_publish_only(peer):
    answer = peer.call(2, Basic.Consume(queue="amq.rabbitmq.reply-to", consumer_tag="r", no_ack=True))
    assert isinstance(answer, Basic.ConsumeOk)
    (name,) = peer.broker.vhost.reply_queues
    assert copies(peer.feed(publish(2, "", name, b"reply"))) == ["publish."]


def test_key_of_a_copy_is_cut_to_what_a_short_string_holds(broker, peer):
    name = "é" * 127
    broker.vhost.declare_exchange(name, "fanout", False, False, False, FieldTable())
    address = bytes([254]) + name.encode() + b"\x00"
    long_publish = frame(METHOD, 2, b"\x00\x3c\x00\x28\x00\x00" + address + b"\x00") + content(2, b"")
    assert copies(peer.feed(long_publish)) == ["publish." + "é" * 123]


def test_large_body_is_copied_whole(peer):
    body = bytes(range(256)) * 2_000
    frames = peer.feed(method(2, Basic.Publish(exchange="", routing_key="q")) + content(2, body))
    assert b"".join(one.payload for one in frames if one.type == BODY) == body


def test_time_stamp_that_needs_64_bits_keeps_them(peer):
    stamp = b"\x00\x40" + b"\xff" * 8
    header = frame(HEADER, 2, b"\x00\x3c\x00\x00" + bytes(8) + stamp)
    frames = peer.feed(method(2, Basic.Publish(exchange="", routing_key="q")) + header)
    (copy,) = [one for one in frames if one.type == HEADER]
    assert b"\x09timestampl" + b"\xff" * 8 in copy.payload


def test_nothing_is_copied_while_it_is_off(broker, peer):
    broker.vhost.tracing = False
    assert copies(peer.feed(publish(2, "", "q", b"x") + method(2, Basic.Get(queue="q", no_ack=True)))) == []
    assert broker.vhost.queues["copies"].published == 0


def test_copy_is_octet_for_octet_what_tracing_plug_ins_know(peer):
    """As a RabbitMQ 3.10 writes it, but for the names of node and connection."""
    properties = (
        b"\xb8\x40\x01c" + b"\x00\x00\x00\x07\x01kI\x00\x00\x00\x01" + b"\x01\x00" + (7).to_bytes(8, "big")
    )
    frames = peer.feed(method(2, Basic.Publish(exchange="", routing_key="q")) + content(2, b"x", properties))
    (copy,) = [one.payload for one in frames if one.type == HEADER]
    table = (
        b"\rexchange_nameS\x00\x00\x00\x00\x0crouting_keysA\x00\x00\x00\x06S\x00\x00\x00\x01q"
        b"\npropertiesF\x00\x00\x00W\ttimestampI\x00\x00\x00\x07\x08priorityI\x00\x00\x00\x00"
        b"\rdelivery_modeI\x00\x00\x00\x01\x07headersF\x00\x00\x00\x07\x01kI\x00\x00\x00\x01"
        b"\x0ccontent_typeS\x00\x00\x00\x01c\x04nodeS\x00\x00\x00\x04test\x05vhostS\x00\x00\x00\x01/"
        b"\nconnectionS\x00\x00\x00\x0epeer -> broker\x07channelI\x00\x00\x00\x02\x04userS\x00\x00\x00\x05guest"
        b"\rrouted_queuesA\x00\x00\x00\x06S\x00\x00\x00\x01q"
    )
    size = len(table).to_bytes(4, "big")
    assert copy == b"\x00\x3c\x00\x00" + (1).to_bytes(8, "big") + b"\x20\x00" + size + table
