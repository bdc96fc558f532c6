"""Sender-selected distribution: the headers CC and BCC hold further routing keys, and BCC is taken away on the way."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import pamqp.commands as amqp
import pika
import pika.exceptions
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from behaviour.helpers import confirming, confirms, fence, ready
from support import closes_channel, unique
from wire_client import WireClient, field_table, longstr

Maker = Callable[..., str]

HEADERS_FLAG = b"\x20\x00"


@pytest.fixture
def channel(connection: pika.BlockingConnection) -> BlockingChannel:
    """In confirm mode: what was published has reached its queues when basic_publish returns."""
    return confirming(connection)


def publish(
    channel: BlockingChannel, exchange: str, key: str, body: bytes = b"", mandatory: bool = False, **headers: Any
) -> None:
    channel.basic_publish(exchange, key, body, pika.BasicProperties(headers=headers), mandatory)


def take(channel: BlockingChannel, queue: str) -> list[dict[str, Any]]:
    """The headers of all messages in the queue, which is empty then."""
    found = []
    while True:
        method, properties, _ = channel.basic_get(queue, auto_ack=True)
        if method is None:
            return found
        found.append(properties.headers)


def array(*items: bytes) -> bytes:
    return longstr(b"".join(items))


def string(octets: bytes) -> bytes:
    return b"S" + longstr(octets)


def publish_raw(client: WireClient, key: str, table: bytes, mandatory: bool = False) -> None:
    client.method(1, amqp.Basic.Publish(exchange="", routing_key=key, mandatory=mandatory))
    client.header(1, 0, HEADERS_FLAG + table)


# --- where it goes -------------------------------------------------------------------------------------------------------


def test_message_goes_to_its_key_and_to_those_in_cc_and_bcc(channel: BlockingChannel, queue: Maker) -> None:
    first, second, third = queue(), queue(), queue()
    publish(channel, "", first, CC=[second], BCC=[third], other=1)
    for name in (first, second, third):
        assert take(channel, name) == [{"CC": [second], "other": 1}]


def test_each_queue_gets_it_once(channel: BlockingChannel, queue: Maker) -> None:
    name = queue()
    publish(channel, "", name, CC=[name, name], BCC=[name])
    assert take(channel, name) == [{"CC": [name, name]}]


@pytest.mark.parametrize("type, binding_key", [("direct", "one.word"), ("topic", "one.word"), ("topic", "#.word")])
def test_exchanges_look_at_every_key(
    channel: BlockingChannel, queue: Maker, exchange: Maker, type: str, binding_key: str
) -> None:
    source, name = exchange(type), queue()
    channel.queue_bind(name, source, binding_key)
    publish(channel, source, "not bound", CC=["one.word"])
    publish(channel, source, "not bound", BCC=["nor this", "one.word"])
    assert take(channel, name) == [{"CC": ["one.word"]}, {}]


@pytest.mark.parametrize("type", ["fanout", "headers"])
def test_types_that_look_at_no_key_give_one_message(channel: BlockingChannel, queue: Maker, exchange: Maker, type: str) -> None:
    source, name = exchange(type), queue()
    channel.queue_bind(name, source, "key")
    publish(channel, source, "key", CC=["key", "other"])
    assert len(take(channel, name)) == 1


def test_keys_go_along_bindings_between_exchanges(channel: BlockingChannel, queue: Maker, exchange: Maker) -> None:
    source, onward, name = exchange("fanout"), exchange("direct"), queue()
    channel.exchange_bind(onward, source)
    channel.queue_bind(name, onward, "copied")
    publish(channel, source, "not bound", CC=["copied"])
    assert len(take(channel, name)) == 1


def test_alternate_exchange_is_for_messages_of_which_no_key_matches(
    channel: BlockingChannel, queue: Maker, exchange: Maker
) -> None:
    other, lost, name = exchange("fanout"), queue(), queue()
    source = exchange("direct", arguments={"alternate-exchange": other})
    channel.queue_bind(lost, other)
    channel.queue_bind(name, source, "bound")
    publish(channel, source, "unbound", CC=["bound"])
    assert (ready(channel, lost), ready(channel, name)) == (0, 1)
    publish(channel, source, "unbound", CC=["unbound too"])
    assert (ready(channel, lost), ready(channel, name)) == (1, 1)


def test_headers_exchange_does_not_see_bcc(channel: BlockingChannel, queue: Maker, exchange: Maker) -> None:
    source, with_bcc, with_cc = exchange("headers"), queue(), queue()
    channel.queue_bind(with_bcc, source, arguments={"BCC": None})
    channel.queue_bind(with_cc, source, arguments={"CC": None})
    publish(channel, source, "", CC=["x"], BCC=["y"])
    assert (ready(channel, with_bcc), ready(channel, with_cc)) == (0, 1)


def test_names_are_told_by_case_and_whole(channel: BlockingChannel, queue: Maker) -> None:
    name = queue()
    publish(channel, "", unique(), cc=[name], bcc=[name], XCC=[name], CCC=[name], BCCC=[name])
    publish(channel, "", unique(), other="CC", nested={"CC": [name]})
    assert ready(channel, name) == 0


def test_routing_key_stays_that_of_the_publish(channel: BlockingChannel, queue: Maker) -> None:
    name, key = queue(), unique("key")
    publish(channel, "", key, b"body", CC=[name])
    method, _, body = channel.basic_get(name, auto_ack=True)
    assert (method.exchange, method.routing_key, body) == ("", key, b"body")


def test_body_in_several_frames_is_copied_too(raw: Callable[..., WireClient], channel: BlockingChannel, queue: Maker) -> None:
    first, second = queue(), queue()
    client = raw().open(frame_max=4096)
    client.open_channel(1)
    client.call(1, amqp.Confirm.Select(), amqp.Confirm.SelectOk)
    body = bytes(range(256)) * 40
    client.method(1, amqp.Basic.Publish(exchange="", routing_key=first))
    table = field_table(("BCC", "A", array(string(second.encode()))))
    client.header(1, len(body), HEADERS_FLAG + table)
    for start in range(0, len(body), 4000):
        client.body(1, body[start : start + 4000])
    assert confirms(client, 1, 1) == [("ack", 1)]
    for name in (first, second):
        method, properties, found = channel.basic_get(name, auto_ack=True)
        assert (method is not None, properties.headers, found) == (True, {}, body)


# --- returns, transactions ----------------------------------------------------------------------------------------------


def test_mandatory_message_counts_as_routed_by_any_key(channel: BlockingChannel, queue: Maker) -> None:
    name = queue()
    publish(channel, "", unique("nowhere"), mandatory=True, CC=[name])
    assert ready(channel, name) == 1


def test_unroutable_message_comes_back_without_bcc(channel: BlockingChannel) -> None:
    with pytest.raises(pika.exceptions.UnroutableError) as caught:
        publish(channel, "", unique("nowhere"), mandatory=True, CC=["neither"], BCC=["hidden"])
    assert caught.value.messages[0].properties.headers == {"CC": ["neither"]}


def test_copies_of_a_transaction_come_with_its_commit(
    connect: Callable[..., pika.BlockingConnection], channel: BlockingChannel, queue: Maker
) -> None:
    first, second = queue(), queue()
    tx = connect().channel()
    tx.tx_select()
    publish(tx, "", first, CC=[second])
    fence(tx, first)
    assert (ready(channel, first), ready(channel, second)) == (0, 0)
    tx.tx_commit()
    assert (ready(channel, first), ready(channel, second)) == (1, 1)
    publish(tx, "", first, BCC=[second])
    tx.tx_rollback()
    tx.tx_commit()
    assert (ready(channel, first), ready(channel, second)) == (1, 1)


# --- bad headers ---------------------------------------------------------------------------------------------------------

WRONG_TYPES = {
    "bool": ("t", b"\x01"),
    "byte": ("b", b"\x01"),
    "unsignedbyte": ("B", b"\x01"),
    "short": ("s", b"\x00\x01"),
    "unsignedshort": ("u", b"\x00\x01"),
    "signedint": ("I", bytes(4)),
    "unsignedint": ("i", bytes(4)),
    "long": ("l", bytes(8)),
    "float": ("f", bytes(4)),
    "double": ("d", bytes(8)),
    "decimal": ("D", bytes(5)),
    "longstr": ("S", longstr(b"key")),
    "timestamp": ("T", bytes(8)),
    "table": ("F", bytes(4)),
    "void": ("V", b""),
    "binary": ("x", longstr(b"key")),
}


@pytest.mark.parametrize("header", ["CC", "BCC"])
@pytest.mark.parametrize("kind", WRONG_TYPES)
def test_it_must_be_an_array(wire: WireClient, header: str, kind: str) -> None:
    letter, value = WRONG_TYPES[kind]
    publish_raw(wire, "key", field_table(("first", "t", b"\x01"), (header, letter, value)))
    text = f'invalid message: {{unacceptable_type_in_header,"{header}",{kind}}}'
    wire.expect_channel_close(1, 406, text, 60, 40)


def test_cc_is_looked_at_first_and_bcc_even_when_cc_is_good(
    channel: BlockingChannel, connection: pika.BlockingConnection
) -> None:
    with closes_channel(406, 'invalid message: {unacceptable_type_in_header,"CC",signedint}'):
        publish(channel, "", "key", BCC=1, CC=1)
    with closes_channel(406, 'invalid message: {unacceptable_type_in_header,"BCC",signedint}'):
        publish(confirming(connection), "", "key", CC=["key"], BCC=1)


@pytest.mark.parametrize(
    "properties, text",
    [
        ({"expiration": "x"}, "invalid expiration 'x': no_integer"),
        ({"user_id": "x"}, "user_id property set to 'x' but authenticated user was 'guest'"),
        ({"reply_to": "amq.rabbitmq.reply-to", "expiration": "x", "user_id": "x"}, "fast reply consumer does not exist"),
        ({"delivery_mode": 7}, 'invalid message: {unacceptable_type_in_header,"CC",signedint}'),
    ],
)
def test_order_of_the_rules(channel: BlockingChannel, properties: dict[str, Any], text: str) -> None:
    with closes_channel(406, text):
        channel.basic_publish("", "key", b"", pika.BasicProperties(headers={"CC": 1}, **properties))


def test_rule_is_broken_at_the_publish_and_not_at_the_commit(connection: pika.BlockingConnection) -> None:
    tx = connection.channel()
    tx.tx_select()
    publish(tx, "", "key", CC=1)
    with closes_channel(406, 'invalid message: {unacceptable_type_in_header,"CC",signedint}'):
        tx.tx_rollback()


def test_what_is_no_string_in_the_array_is_left_out(wire: WireClient, channel: BlockingChannel, queue: Maker) -> None:
    name = queue()
    items = array(
        b"I" + struct.pack(">i", 5), b"V", b"F" + bytes(4), b"A" + array(string(name.encode())),
        string(b"\xff\xfe"), string(b"k" * 300), string(b""), string(name.encode()),
    )  # fmt: skip
    wire.call(1, amqp.Confirm.Select(), amqp.Confirm.SelectOk)
    publish_raw(wire, unique("nowhere"), field_table(("CC", "A", items)))
    assert confirms(wire, 1, 1) == [("ack", 1)]
    assert ready(channel, name) == 1


def test_empty_arrays_change_nothing(channel: BlockingChannel, queue: Maker) -> None:
    name = queue()
    publish(channel, "", name, CC=[], BCC=[])
    assert take(channel, name) == [{"CC": []}]


def test_thousands_of_keys_are_followed(channel: BlockingChannel, queue: Maker) -> None:
    name = queue()
    publish(channel, "", "", CC=[f"k{number}" for number in range(4_000)] + [name])
    assert ready(channel, name) == 1


@pytest.mark.differs("bounds the keys of one message; RabbitMQ follows as many as a header can hold")
def test_there_is_an_end_to_the_keys(channel: BlockingChannel) -> None:
    with closes_channel(406, "invalid message: more than 4096 routing keys in CC and BCC"):
        publish(channel, "", "", CC=[f"k{number}" for number in range(4_096)], BCC=["one more"])
