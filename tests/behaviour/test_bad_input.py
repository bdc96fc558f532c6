"""Whatever a peer sends, it gets a close or is hung up on, and everybody else is served on.

Each test ends with a healthy client that publishes and gets a message. The broker's log is checked for tracebacks by the
`broker` fixture.
"""

from __future__ import annotations

import contextlib
import random
import socket
import struct
import time
from collections.abc import Callable, Iterator

import pamqp.commands as amqp
import pika
import pytest

from broker_process import BrokerAddress
from support import unique
from wire_client import PROTOCOL_HEADER, WireClient, decode, field_table, longstr, method_payload, shortstr

Raw = Callable[..., WireClient]

PUBLISH = amqp.Basic.Publish(routing_key="nowhere")
CLOSES = (501, 502, 503, 504, 505, 530, 540, 541)


@pytest.fixture(autouse=True)
def broker_goes_on(broker: BrokerAddress) -> Iterator[None]:
    """Afterwards a healthy client is served promptly."""
    yield
    began = time.monotonic()
    connection = pika.BlockingConnection(broker.parameters())
    channel = connection.channel()
    channel.confirm_delivery()
    name = channel.queue_declare("", exclusive=True).method.queue
    channel.basic_publish("", name, b"healthy")
    assert channel.basic_get(name, auto_ack=True)[2] == b"healthy"
    connection.close()
    assert time.monotonic() - began < 5


def drain(client: WireClient) -> None:
    """Reads whatever comes, up to a close, the end or a moment's silence."""
    client.socket.settimeout(0.5)
    with contextlib.suppress(EOFError, OSError):
        while True:
            frame = client.read_frame()
            if frame.type == 1 and isinstance(decode(frame), amqp.Connection.Close):
                client.method(0, amqp.Connection.CloseOk())


def nested_table(depth: int) -> bytes:
    table = b""
    for _ in range(depth):
        table = shortstr("k") + b"F" + longstr(table)
    return longstr(table)


def nested_array(depth: int) -> bytes:
    array = b""
    for _ in range(depth):
        array = b"A" + longstr(array)
    return longstr(shortstr("k") + array)


# --- random octets -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(5))
def test_random_octets_instead_of_a_protocol_header(raw: Raw, seed: int) -> None:
    client = raw()
    client.send(random.Random(seed).randbytes(1000))
    with contextlib.suppress(ConnectionResetError):
        assert client.read_exactly(8) == PROTOCOL_HEADER
        client.expect_eof()


@pytest.mark.parametrize("seed", range(5))
def test_random_octets_after_the_protocol_header(raw: Raw, seed: int) -> None:
    client = raw()
    client.start()
    client.send(b"\x01" + random.Random(seed).randbytes(5000))
    client.expect_end(*CLOSES)


@pytest.mark.parametrize("seed", range(20))
def test_random_payloads_in_well_formed_frames(wire: WireClient, seed: int) -> None:
    rng = random.Random(seed)
    with contextlib.suppress(OSError):
        for _ in range(20):
            wire.frame(
                rng.choice((1, 1, 1, 2, 3, 8)), rng.choice((0, 1, 1, 2)), rng.randbytes(rng.randrange(60))
            )
    drain(wire)


@pytest.mark.parametrize("seed", range(20))
def test_random_arguments_of_known_methods(wire: WireClient, seed: int) -> None:
    rng = random.Random(seed)
    ids = [(20, 20), (40, 10), (40, 20), (40, 30), (50, 10), (50, 20), (50, 30), (50, 40), (50, 50), (60, 10), (60, 20),
           (60, 40), (60, 70), (60, 80), (60, 120), (85, 10), (90, 10)]  # fmt: skip
    with contextlib.suppress(OSError):
        for _ in range(10):
            class_id, method_id = rng.choice(ids)
            wire.method(1, (class_id, method_id, rng.randbytes(rng.randrange(40))))
    drain(wire)


@pytest.mark.parametrize("seed", range(20))
def test_good_conversation_with_one_octet_changed(raw: Raw, seed: int) -> None:
    rng = random.Random(seed)
    client = raw().open()
    conversation = bytearray()
    for payload_type, payload in (
        (1, method_payload(amqp.Channel.Open())),
        (1, method_payload(amqp.Queue.Declare(queue="", exclusive=True, arguments={"x-max-length": 5}))),
        (1, method_payload(PUBLISH)),
        (2, struct.pack(">HHQ", 60, 0, 5) + b"\x90\x00" + shortstr("text") + b"\x02"),
        (3, b"12345"),
        (1, method_payload(amqp.Basic.Qos(prefetch_count=1))),
    ):
        conversation += struct.pack(">BHI", payload_type, 1, len(payload)) + payload + b"\xce"
    conversation[rng.randrange(len(conversation))] ^= 1 << rng.randrange(8)
    client.send(bytes(conversation))
    drain(client)


# --- frames ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cut", [1, 6, 7, 8, 10])
def test_frame_cut_short_by_a_hang_up(wire: WireClient, cut: int) -> None:
    data = struct.pack(">BHI", 1, 1, 5) + method_payload(amqp.Channel.Flow(active=True)) + b"\xce"
    wire.send(data[:cut])
    wire.close()


def test_frame_of_four_gigabytes(wire: WireClient) -> None:
    wire.send(struct.pack(">BHI", 3, 1, 0xFFFFFFFF))
    wire.expect_end(501)


def test_large_frame_before_login(raw: Raw) -> None:
    client = raw()
    client.start()
    client.send(struct.pack(">BHI", 1, 0, 1_000_000))
    client.expect_end(501)


def test_empty_frames(raw: Raw) -> None:
    for type in (1, 2, 3):
        client = raw().open()
        client.open_channel(1)
        client.frame(type, 1)
        client.expect_end(*CLOSES)


def test_flood_of_heartbeats(wire: WireClient) -> None:
    wire.send(b"\x08\x00\x00\x00\x00\x00\x00\xce" * 100_000)
    wire.expect_silence(1)


def test_content_of_a_hundred_thousand_empty_body_frames(wire: WireClient) -> None:
    """They bring the body no further, and hold nothing."""
    wire.method(1, PUBLISH)
    wire.header(1, 1)
    for _ in range(100):
        wire.send(b"\x03\x00\x01\x00\x00\x00\x00\xce" * 1000)
    wire.body(1, b"x")
    wire.expect_silence(1)


def test_body_longer_than_announced(wire: WireClient) -> None:
    """RabbitMQ takes it as it comes; a broker may also say that it is wrong."""
    wire.method(1, PUBLISH)
    wire.header(1, 5)
    wire.body(1, b"123456")
    wire.method(1, amqp.Basic.Qos())
    command = wire.read_command()[1]
    assert isinstance(command, (amqp.Basic.QosOk, amqp.Connection.Close))


# --- names, tables, properties -----------------------------------------------------------------------------------------


def test_invalid_utf8_in_a_routing_key_is_carried_or_refused(
    wire: WireClient, new_name: Callable[[str], str]
) -> None:
    wire.method(1, (60, 40, b"\x00\x00" + shortstr("") + shortstr(b"\xff\xfe") + b"\x00"))
    wire.header(1, 0)
    wire.method(1, amqp.Basic.Qos())
    command = wire.read_command()[1]
    assert isinstance(command, (amqp.Basic.QosOk, amqp.Connection.Close))


def test_invalid_utf8_in_names_of_the_handshake(raw: Raw) -> None:
    client = raw()
    client.start()
    client.login(response=b"\x00\xff\xfe\x00\xff")
    client.expect_end(403, 501)
    client = raw()
    client.start()
    client.login()
    client.expect(0, amqp.Connection.Tune)
    client.tune_ok()
    client.method(0, (10, 40, shortstr(b"\xff\xfe") + b"\x00\x00"))
    client.expect_end(501, 530)


@pytest.mark.parametrize("depth", [100, 5000, 15000])
@pytest.mark.parametrize("nested", [nested_table, nested_array])
def test_deeply_nested_arguments(wire: WireClient, depth: int, nested: Callable[[int], bytes]) -> None:
    """Taken or refused, but not by falling over."""
    wire.method(1, (50, 10, b"\x00\x00" + shortstr("") + b"\x04" + nested(depth)))
    command = wire.read_command()[1]
    assert isinstance(command, (amqp.Queue.DeclareOk, amqp.Channel.Close, amqp.Connection.Close))


@pytest.mark.parametrize("depth", [100, 5000, 15000])
def test_deeply_nested_headers(wire: WireClient, depth: int) -> None:
    """A message's headers are carried as they are; only a headers exchange looks inside."""
    name = wire.call(1, amqp.Queue.Declare(queue="", exclusive=True), amqp.Queue.DeclareOk).queue
    wire.call(1, amqp.Queue.Bind(queue=name, exchange="amq.headers", arguments={"k": "v"}), amqp.Queue.BindOk)
    for exchange in ("", "amq.headers"):
        wire.method(1, amqp.Basic.Publish(exchange=exchange, routing_key=name))
        wire.header(1, 0, properties=b"\x20\x00" + nested_table(depth))
    wire.method(1, amqp.Basic.Qos())
    command = wire.read_command()[1]
    assert isinstance(command, (amqp.Basic.QosOk, amqp.Channel.Close, amqp.Connection.Close))


def test_deeply_nested_client_properties(raw: Raw) -> None:
    client = raw()
    client.start()
    arguments = nested_table(500) + shortstr("PLAIN") + longstr(b"\0guest\0guest") + shortstr("en_US")
    client.method(0, (10, 11, arguments))
    with contextlib.suppress(EOFError, ConnectionResetError):
        assert isinstance(client.read_command()[1], (amqp.Connection.Tune, amqp.Connection.Close))


@pytest.mark.parametrize(
    "table",
    [
        longstr(b"\x01aZ1234"),
        longstr(b"\x05ab"),
        longstr(b"\x01aS\xff\xff\xff\xff"),
        longstr(b"\x01aA\x00\x00\x00\x02S"),
        b"\xff\xff\xff\xff",
        field_table(("key", "I", b"\x00")),
    ],
    ids=[
        "unknown type",
        "key cut short",
        "string past the end",
        "array cut short",
        "table past the end",
        "value cut short",
    ],
)
def test_malformed_table(wire: WireClient, table: bytes) -> None:
    wire.method(1, (50, 10, b"\x00\x00" + shortstr(unique("never")) + b"\x08" + table))
    wire.expect_end(501, 502)


@pytest.mark.parametrize(
    "properties", [b"", b"\xff", b"\xff\xff\xff", b"\x80\x00\xffabc", b"\x20\x00\xff\xff\xff\xff"]
)
def test_malformed_properties(wire: WireClient, properties: bytes) -> None:
    """RabbitMQ fails with an internal error here, or carries what it does not look at."""
    name = wire.call(1, amqp.Queue.Declare(queue="", exclusive=True), amqp.Queue.DeclareOk).queue
    wire.method(1, amqp.Basic.Publish(routing_key=name))
    wire.header(1, 0, properties=properties)
    wire.method(1, amqp.Basic.Get(queue=name, no_ack=True))
    drain(wire)


# --- state -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "method",
    [
        amqp.Connection.TuneOk(),
        (10, 40, shortstr("/") + b"\x00\x00"),
        amqp.Channel.Open(),
        amqp.Connection.CloseOk(),
        amqp.Queue.Declare(queue="before-login"),
    ],
    ids=["tune-ok", "open", "channel.open", "close-ok", "queue.declare"],
)
@pytest.mark.parametrize("channel", [0, 1])
def test_method_before_login(raw: Raw, method: amqp.Frame, channel: int) -> None:
    client = raw()
    client.start()
    client.method(channel, method)
    client.expect_end(*CLOSES)


def test_content_before_login(raw: Raw) -> None:
    client = raw()
    client.start()
    client.header(1, 0)
    client.expect_end(*CLOSES)


def test_close_ok_that_nobody_asked_for(wire: WireClient) -> None:
    wire.method(0, amqp.Connection.CloseOk())
    drain(wire)


# --- slow and half-open peers ------------------------------------------------------------------------------------------


def test_half_open_connections_hold_nobody_up(raw: Raw) -> None:
    """Peers that connect and say nothing, or stop in the middle of a frame."""
    stalled = [raw() for _ in range(50)]
    for client in stalled[10:]:
        client.send(PROTOCOL_HEADER[:5])
    in_frame = raw().open()
    in_frame.send(b"\x01\x00")


def test_octet_by_octet(wire: WireClient) -> None:
    payload = method_payload(PUBLISH)
    header = struct.pack(">HHQ", 60, 0, 3) + b"\x00\x00"
    data = b"".join(
        struct.pack(">BHI", type, 1, len(part)) + part + b"\xce"
        for type, part in ((1, payload), (2, header), (3, b"abc"))
    )
    for octet in data:
        wire.send(bytes([octet]))
    wire.expect_silence(1)


def test_peer_that_never_reads_its_answers(raw: Raw) -> None:
    """Its answers pile up on its side of the wire; other clients are answered at once."""
    client = raw(timeout=0.5).open()
    client.open_channel(1)
    payload = method_payload(amqp.Basic.Qos())
    question = struct.pack(">BHI", 1, 1, len(payload)) + payload + b"\xce"
    with contextlib.suppress(TimeoutError):
        for _ in range(200):
            client.send(question * 1000)


def test_connections_reset_in_the_middle_of_everything(raw: Raw) -> None:
    for stage in range(20):
        client = raw().open()
        client.open_channel(1)
        client.method(1, amqp.Queue.Declare(queue="", exclusive=True))
        client.method(1, PUBLISH)
        if stage % 2:
            client.header(1, 100)
        client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.close()


def test_half_closed_socket(wire: WireClient) -> None:
    """A peer that shuts its sending side down is gone."""
    wire.method(1, amqp.Queue.Declare(queue="", exclusive=True))
    wire.socket.shutdown(socket.SHUT_WR)
    with contextlib.suppress(EOFError, ConnectionResetError):
        while True:
            wire.read_frame()
