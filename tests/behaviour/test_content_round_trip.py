"""What is published is what is delivered: properties octet for octet, bodies of every size, whatever the frames."""

from __future__ import annotations

import struct
from collections.abc import Callable

import pamqp.commands as amqp
import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from behaviour.helpers import confirming
from wire_client import (
    FRAME_END,
    METHOD,
    Delivered,
    WireClient,
    field_table,
    longstr,
    method_payload,
    shortstr,
)

Maker = Callable[..., str]
Raw = Callable[..., WireClient]

MIB = 1024 * 1024
FRAMING = 8  # octets of a frame that are not payload
DEFAULT_FRAME_MAX = 131_072

# Each property alone: the flag word, and the value behind it.
PROPERTIES = {
    "content-type": b"\x80\x00" + shortstr("text/plain; charset=utf-8"),
    "content-encoding": b"\x40\x00" + shortstr("gzip"),
    "headers": b"\x20\x00" + field_table(("key", "S", longstr("value"))),
    "delivery-mode": b"\x10\x00\x02",
    "priority": b"\x08\x00\x09",
    "correlation-id": b"\x04\x00" + shortstr("c" * 255),
    "reply-to": b"\x02\x00" + shortstr("answers"),
    "expiration": b"\x01\x00" + shortstr("3600000"),
    "message-id": b"\x00\x80" + shortstr(b"\xff\xfe not UTF-8"),
    "timestamp": b"\x00\x40" + struct.pack(">Q", 2**63),
    "type": b"\x00\x20" + shortstr(""),
    "user-id": b"\x00\x10" + shortstr("guest"),
    "app-id": b"\x00\x08" + shortstr("☃"),
    "cluster-id": b"\x00\x04" + shortstr("any"),
    "none": b"\x00\x00",
}
ALL_PROPERTIES = b"\xff\xfc" + b"".join(PROPERTIES[name][2:] for name in (
    "content-type", "content-encoding", "headers", "delivery-mode", "priority", "correlation-id", "reply-to",
    "expiration", "message-id", "timestamp", "type", "user-id", "app-id", "cluster-id",
))  # fmt: skip

FIELDS = {
    "S empty": ("S", longstr("")),
    "S text": ("S", longstr("grüße ☃")),
    "S not UTF-8": ("S", longstr(b"\x00\xff\xc3(")),
    "S long": ("S", longstr(b"x" * 70_000)),
    "I": ("I", struct.pack(">i", -(2**31))),
    "i": ("i", struct.pack(">I", 2**32 - 1)),
    "D": ("D", b"\x05" + struct.pack(">I", 314_159)),
    "D large": ("D", b"\xff" + struct.pack(">I", 2**32 - 1)),
    "T": ("T", struct.pack(">Q", 1_700_000_000)),
    "T far": ("T", struct.pack(">Q", 2**64 - 1)),
    "F empty": ("F", field_table()),
    "F nested": ("F", field_table(("in", "F", field_table(("deeper", "t", b"\x01"))))),
    "b": ("b", b"\x80"),
    "B": ("B", b"\xff"),
    "s": ("s", struct.pack(">h", -(2**15))),
    "u": ("u", struct.pack(">H", 2**16 - 1)),
    "l": ("l", struct.pack(">q", -(2**63))),
    "f": ("f", struct.pack(">f", 1.5)),
    "f negative zero": ("f", struct.pack(">f", -0.0)),
    "d": ("d", struct.pack(">d", 0.1)),
    "d negative zero": ("d", struct.pack(">d", -0.0)),
    "t true": ("t", b"\x01"),
    "t false": ("t", b"\x00"),
    "V": ("V", b""),
    "x": ("x", longstr(bytes(range(256)))),
    "A empty": ("A", longstr(b"")),
    "A mixed": ("A", longstr(b"I\x00\x00\x00\x01" + b"t\x01" + b"V" + b"F" + field_table(("k", "V", b"")))),
    "A nested": ("A", longstr(b"A" + longstr(b"A" + longstr(b"b\x01")))),
}  # fmt: skip


def publish(
    client: WireClient,
    key: str,
    body: bytes,
    properties: bytes = b"\x00\x00",
    exchange: str = "",
    frame_max: int = DEFAULT_FRAME_MAX,
) -> None:
    """Publishes on channel 1, the body cut at `frame_max`, all in one write."""
    largest = frame_max - FRAMING
    frames = [frame(METHOD, method_payload(amqp.Basic.Publish(exchange=exchange, routing_key=key)))]
    frames.append(frame(2, struct.pack(">HHQ", 60, 0, len(body)) + properties))
    frames += [frame(3, body[start : start + largest]) for start in range(0, len(body), largest)]
    client.send(b"".join(frames))


def frame(kind: int, payload: bytes) -> bytes:
    return struct.pack(">BHI", kind, 1, len(payload)) + payload + FRAME_END


@pytest.fixture
def peer(raw: Raw) -> Callable[..., WireClient]:
    """`peer(frame_max=4096)` is a wire client that agreed on that, with channel 1 open."""

    def make(frame_max: int = DEFAULT_FRAME_MAX) -> WireClient:
        client = raw(timeout=20).open(frame_max=frame_max)
        client.open_channel(1)
        return client

    return make


def fetch(client: WireClient, queue: str) -> Delivered:
    """What basic.get gives; asks until there is something."""
    while True:
        client.method(1, amqp.Basic.Get(queue=queue, no_ack=True))
        answer = client.read_frame()
        if answer.payload[:4] == b"\x00\x3c\x00\x47":
            return read_content(client)
        assert answer.payload[:4] == b"\x00\x3c\x00\x48"


def read_content(client: WireClient) -> Delivered:
    """Header and bodies, after their method was read."""
    frames = [client.read_frame()]
    size = int.from_bytes(frames[0].payload[4:12], "big")
    pieces: list[bytes] = []
    while sum(map(len, pieces)) < size:
        frames.append(client.read_frame())
        assert frames[-1].type == 3
        pieces.append(frames[-1].payload)
    return Delivered(amqp.Basic.GetOk(), frames[0].payload, b"".join(pieces), frames)


# --- properties ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("properties", [*PROPERTIES.values(), ALL_PROPERTIES], ids=[*PROPERTIES, "all"])
def test_properties_arrive_octet_for_octet(peer: Callable[..., WireClient], queue: Maker, properties: bytes) -> None:
    name, client = queue(), peer()
    publish(client, name, b"body", properties)
    got = fetch(client, name)
    assert got.header == struct.pack(">HHQ", 60, 0, 4) + properties
    assert got.body == b"body"


@pytest.mark.parametrize("kind, value", FIELDS.values(), ids=list(FIELDS))
def test_header_field_arrives_octet_for_octet(
    peer: Callable[..., WireClient], queue: Maker, kind: str, value: bytes
) -> None:
    name, client = queue(), peer()
    properties = b"\x20\x00" + field_table(("before", "I", b"\x00\x00\x00\x01"), ("field", kind, value), ("after", "V", b""))
    publish(client, name, b"", properties)
    assert fetch(client, name).header[12:] == properties


@pytest.mark.parametrize(
    "table",
    [
        field_table(),
        field_table(("", "V", b"")),
        field_table(("k" * 128, "V", b""), ("K" * 255, "V", b"")),
        field_table(("z", "I", b"\x00\x00\x00\x01"), ("a", "I", b"\x00\x00\x00\x02"), ("m", "I", b"\x00\x00\x00\x03")),
        field_table(("twice", "b", b"\x01"), ("twice", "b", b"\x02")),
        field_table(*((f"key {number}", "S", longstr("value")) for number in range(2000))),
    ],
    ids=["empty", "empty key", "long keys", "unsorted", "repeated key", "2000 fields"],
)
def test_header_table_arrives_octet_for_octet(peer: Callable[..., WireClient], queue: Maker, table: bytes) -> None:
    name, client = queue(), peer()
    publish(client, name, b"x", b"\x20\x00" + table)
    assert fetch(client, name).header[12:] == b"\x20\x00" + table


def test_headers_that_the_broker_has_looked_at_arrive_octet_for_octet(
    peer: Callable[..., WireClient], channel: BlockingChannel, queue: Maker, exchange: Maker
) -> None:
    name, source, client = queue(), exchange("headers"), peer()
    channel.queue_bind(name, source, arguments={"x-match": "any", "field 0": None})
    fields = [(f"field {number}", kind, value) for number, (kind, value) in enumerate(FIELDS.values())]
    properties = b"\x20\x00" + field_table(*fields)
    publish(client, "key", b"x", properties, exchange=source)
    assert fetch(client, name).header[12:] == properties


def test_pika_reads_back_what_it_published(connection: pika.BlockingConnection, queue: Maker) -> None:
    name, channel = queue(), confirming(connection)
    properties = pika.BasicProperties(
        content_type="application/json",
        content_encoding="identity",
        headers={"int": 1, "text": "☃", "list": [1, "two", None, {"three": True}], "table": {"a": {"b": -1}}, "octets": b"\0"},
        delivery_mode=2,
        priority=3,
        correlation_id="correlation",
        reply_to="reply",
        expiration="3600000",
        message_id="id",
        timestamp=1_700_000_000,
        type="type",
        user_id="guest",
        app_id="app",
        cluster_id="cluster",
    )
    channel.basic_publish("", name, "grüße ☃".encode(), properties)
    _, got, body = channel.basic_get(name, auto_ack=True)
    assert got == properties
    assert body.decode() == "grüße ☃"


# --- bodies --------------------------------------------------------------------------------------------------------------

# A body of frame_max - 8 is the largest in one frame.
SIZES = [0, 1, 2, 4087, 4088, 4089, 8175, 8176, 8177, 131_063, 131_064, 131_065, 262_127, 262_128, 262_129, MIB, 10 * MIB]


def pattern(size: int) -> bytes:
    """Octets that repeat with a period no frame has, so that a lost or swapped piece shows."""
    return (bytes(range(251)) * (size // 251 + 1))[:size]


def assert_frames(got: Delivered, body: bytes, frame_max: int) -> None:
    """The body came whole, in full frames but for the last, and in none when it is empty."""
    assert got.body == body
    full, rest = divmod(len(body), frame_max - FRAMING)
    assert [len(frame.payload) for frame in got.frames[1:]] == [frame_max - FRAMING] * full + [rest] * (rest > 0)


@pytest.mark.parametrize("size", SIZES)
def test_body_arrives_whole(peer: Callable[..., WireClient], queue: Maker, size: int) -> None:
    name, client, body = queue(), peer(), pattern(size)
    publish(client, name, body)
    assert_frames(fetch(client, name), body, DEFAULT_FRAME_MAX)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("publisher_max, consumer_max", [(4096, 131_072), (131_072, 4096), (4096, 4096), (10_007, 5003)])
def test_body_is_cut_to_the_frames_of_its_reader(
    peer: Callable[..., WireClient], queue: Maker, size: int, publisher_max: int, consumer_max: int
) -> None:
    name, body = queue(), pattern(size)
    publisher, consumer = peer(publisher_max), peer(consumer_max)
    consumer.call(1, amqp.Basic.Consume(queue=name, no_ack=True), amqp.Basic.ConsumeOk)
    publish(publisher, name, body, frame_max=publisher_max)
    consumer.expect(1, amqp.Basic.Deliver)
    assert_frames(read_content(consumer), body, consumer_max)


def test_empty_body_is_a_header_and_nothing_more(peer: Callable[..., WireClient], queue: Maker) -> None:
    name, client = queue(), peer()
    client.call(1, amqp.Basic.Consume(queue=name, no_ack=True), amqp.Basic.ConsumeOk)
    publish(client, name, b"")
    client.expect(1, amqp.Basic.Deliver)
    assert client.read_frame().payload == struct.pack(">HHQ", 60, 0, 0) + b"\x00\x00"
    client.expect_silence(1)


def test_body_in_many_small_frames_is_put_together(peer: Callable[..., WireClient], queue: Maker) -> None:
    name, client, body = queue(), peer(), pattern(5000)
    client.method(1, amqp.Basic.Publish(exchange="", routing_key=name))
    client.header(1, len(body))
    client.send(b"".join(frame(3, body[at : at + 1]) for at in range(len(body))))
    assert_frames(fetch(client, name), body, DEFAULT_FRAME_MAX)


def test_content_split_anywhere_on_the_way_arrives_whole(peer: Callable[..., WireClient], queue: Maker) -> None:
    name, client = queue(), peer()
    whole = b"".join(
        [
            frame(METHOD, method_payload(amqp.Basic.Publish(exchange="", routing_key=name))),
            frame(2, struct.pack(">HHQ", 60, 0, 10) + ALL_PROPERTIES),
            frame(3, b"01234"),
            frame(3, b"56789"),
        ]
    )
    for split in range(1, len(whole)):
        client.send(whole[:split])  # TCP_NODELAY is set: each part is a packet of its own
        client.send(whole[split:])
    for _ in range(1, len(whole)):
        got = fetch(client, name)
        assert (got.header[12:], got.body) == (ALL_PROPERTIES, b"0123456789")


def test_content_sent_octet_by_octet_arrives_whole(peer: Callable[..., WireClient], queue: Maker) -> None:
    name, client = queue(), peer()
    whole = b"".join(
        [
            frame(METHOD, method_payload(amqp.Basic.Publish(exchange="", routing_key=name))),
            frame(2, struct.pack(">HHQ", 60, 0, 10) + ALL_PROPERTIES),
            frame(3, b"0123456789"),
        ]
    )
    for at in range(len(whole)):
        client.send(whole[at : at + 1])
    got = fetch(client, name)
    assert (got.header[12:], got.body) == (ALL_PROPERTIES, b"0123456789")


def test_large_and_small_contents_in_one_stream_stay_apart(peer: Callable[..., WireClient], queue: Maker) -> None:
    name, publisher, consumer = queue(), peer(), peer(4096)
    consumer.call(1, amqp.Basic.Consume(queue=name, no_ack=True), amqp.Basic.ConsumeOk)
    bodies = [pattern(size) for size in (0, 300_000, 1, 131_064, 0, 131_065, 20, 4088, 4089, 0)] * 3
    for body in bodies:
        publish(publisher, name, body)
    for body in bodies:
        consumer.expect(1, amqp.Basic.Deliver)
        assert_frames(read_content(consumer), body, 4096)


def test_message_for_several_readers_is_the_same_for_each(
    peer: Callable[..., WireClient], channel: BlockingChannel, queue: Maker, exchange: Maker
) -> None:
    source, publisher, body = exchange("fanout"), peer(), pattern(200_000)
    readers = [(peer(frame_max), frame_max) for frame_max in (4096, 8192, 131_072)]
    for reader, _ in readers:
        name = queue()
        channel.queue_bind(name, source)
        reader.call(1, amqp.Basic.Consume(queue=name, no_ack=True), amqp.Basic.ConsumeOk)
    publish(publisher, "key", body, ALL_PROPERTIES, exchange=source)
    for reader, frame_max in readers:
        deliver = reader.expect(1, amqp.Basic.Deliver)
        assert (deliver.exchange, deliver.routing_key, deliver.redelivered) == (source, "key", False)
        got = read_content(reader)
        assert got.header[12:] == ALL_PROPERTIES
        assert_frames(got, body, frame_max)


def test_redelivered_message_is_the_same(peer: Callable[..., WireClient], queue: Maker) -> None:
    name, client, body = queue(), peer(), pattern(150_000)
    publish(client, name, body, ALL_PROPERTIES)
    client.call(1, amqp.Basic.Consume(queue=name), amqp.Basic.ConsumeOk)
    for redelivered in (False, True, True):
        deliver = client.expect(1, amqp.Basic.Deliver)
        assert deliver.redelivered is redelivered
        got = read_content(client)
        assert (got.header[12:], got.body) == (ALL_PROPERTIES, body)
        client.method(1, amqp.Basic.Reject(delivery_tag=deliver.delivery_tag, requeue=True))
