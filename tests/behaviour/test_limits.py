"""Limits that protect the broker: connections, channels, queues, message and frame sizes, time to log in."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable

import pamqp.commands as amqp
import pika
import pika.exceptions
import pytest

from broker_process import BrokerAddress, BrokerProcess
from support import eventually, full_text, unique
from wire_client import PROTOCOL_HEADER, WireClient

Own = Callable[..., BrokerProcess]
Connect = Callable[..., pika.BlockingConnection]
Raw = Callable[..., WireClient]

LARGEST = 128 * 1024 * 1024
FRAME = 131072 - 8


@pytest.mark.own
def test_connection_beyond_connection_max_is_refused(own_broker: Own, connect: Connect) -> None:
    process = own_broker(config={"connection_max": 2})
    first, _ = connect(to=process), connect(to=process)
    with pytest.raises(pika.exceptions.ProbableAccessDeniedError) as caught:
        connect(to=process)
    text = "access to vhost '/' refused for user 'guest': node connection limit (2) is reached"
    assert full_text(530, text) in str(caught.value)
    first.close()

    def admitted() -> bool:
        try:
            return bool(connect(to=process).is_open)
        except pika.exceptions.ProbableAccessDeniedError:
            return False

    eventually(admitted)


@pytest.mark.own
def test_channel_max_of_the_config_is_offered_and_kept(own_broker: Own, raw: Raw) -> None:
    process = own_broker(config={"channel_max": 3})
    client = raw(to=process).open(channel_max=3)
    assert client.tune is not None
    assert client.tune.channel_max == 3
    for number in (1, 2, 3):
        client.open_channel(number)
    client.method(4, amqp.Channel.Open())
    client.expect_close(530, "number of channels opened (3) has reached the negotiated channel_max (3)")


@pytest.mark.own
def test_unlimited_channels_and_frames_may_be_offered(own_broker: Own, raw: Raw) -> None:
    process = own_broker(config={"channel_max": 0, "frame_max": 0})
    client = raw(to=process).open(channel_max=0, frame_max=0)
    assert client.tune is not None
    assert (client.tune.channel_max, client.tune.frame_max) == (0, 0)
    client.open_channel(65535)
    name = unique("frames")
    client.call(65535, amqp.Queue.Declare(queue=name), amqp.Queue.DeclareOk)
    client.publish(65535, "", name, b"x" * 1_000_000)
    client.method(65535, amqp.Basic.Get(queue=name, no_ack=True))
    assert client.expect_content(65535, amqp.Basic.GetOk).body == b"x" * 1_000_000


@pytest.mark.own
def test_queue_beyond_queue_max_is_refused(own_broker: Own, raw: Raw) -> None:
    process = own_broker(config={"queue_max": 2})
    client = raw(to=process).open()
    client.open_channel(1)
    for name in ("first", "second", "first"):
        client.call(1, amqp.Queue.Declare(queue=name), amqp.Queue.DeclareOk)
    client.method(1, amqp.Queue.Declare(queue="third"))
    text = "cannot declare queue 'third': queue limit in vhost '/' (2) is reached"
    client.expect_channel_close(1, 406, text, 50, 10)
    client.open_channel(1)
    client.call(1, amqp.Queue.Delete(queue="first"), amqp.Queue.DeleteOk)
    client.call(1, amqp.Queue.Declare(queue="third"), amqp.Queue.DeclareOk)


@pytest.mark.own
def test_message_beyond_max_message_size_is_refused_by_its_header(own_broker: Own, raw: Raw) -> None:
    process = own_broker(config={"max_message_size": 1000})
    client = raw(to=process).open()
    client.open_channel(1)
    client.publish(1, "", "nowhere", b"x" * 1000)
    client.expect_silence(1)
    client.method(1, amqp.Basic.Publish(routing_key="nowhere"))
    client.header(1, 1001)
    text = "message size 1001 is larger than configured max size 1000"
    client.expect_channel_close(1, 406, text, 60, 40)


@pytest.mark.own
def test_body_of_a_refused_message_is_passed_over(own_broker: Own, raw: Raw) -> None:
    """A client writes method, header and body in one go; it does not see the close in time."""
    process = own_broker(config={"max_message_size": 1000})
    client = raw(to=process).open()
    client.open_channel(1)
    client.open_channel(2)
    client.publish(1, "", "nowhere", b"x" * 5000)
    client.expect_channel_close(1, 406, "message size 5000 is larger than configured max size 1000", 60, 40)
    client.open_channel(1)
    client.expect_silence(1)
    client.expect_silence(2)


@pytest.mark.differs("a message that is too large is refused by its header, not after its whole body")
@pytest.mark.parametrize("size", [LARGEST + 1, 2**63, 2**64 - 1])
def test_announced_size_is_enough_to_refuse_a_message(wire: WireClient, size: int) -> None:
    wire.method(1, amqp.Basic.Publish(routing_key="nowhere"))
    wire.header(1, size)
    text = f"message size {size} is larger than configured max size {LARGEST}"
    wire.expect_channel_close(1, 406, text, 60, 40)


@pytest.mark.parametrize("size", [LARGEST, LARGEST + 1])
def test_largest_message_is_128_mebibytes(raw: Raw, size: int) -> None:
    client = raw(timeout=30).open()
    client.open_channel(1)
    client.method(1, amqp.Basic.Publish(routing_key="nowhere"))
    client.header(1, size)
    for start in range(0, size, FRAME):
        client.body(1, b"x" * min(FRAME, size - start))
    if size > LARGEST:
        text = f"message size {size} is larger than configured max size {LARGEST}"
        client.expect_channel_close(1, 406, text, 60, 40)
    else:
        client.expect_silence(1)


@pytest.mark.own
def test_frame_before_login_is_limited(own_broker: Own, raw: Raw) -> None:
    process = own_broker(config={"initial_frame_max": 8192})
    fits, too_large = raw(to=process), raw(to=process)
    fits.start()
    fits.login(client_properties={"comment": "x" * 6000})
    fits.expect(0, amqp.Connection.Tune)
    too_large.start()
    too_large.login(client_properties={"comment": "x" * 9000})
    too_large.expect_end(501)


@pytest.mark.parametrize("stage", ["connected", "header", "start-ok", "tune-ok"])
@pytest.mark.own
def test_client_that_does_not_log_in_is_dropped(own_broker: Own, raw: Raw, stage: str) -> None:
    process = own_broker(config={"handshake_timeout": 500})
    client = raw(to=process)
    began = time.monotonic()
    if stage == "connected":
        client.expect_eof()
    else:
        client.start()
        if stage != "header":
            client.login()
            client.expect(0, amqp.Connection.Tune)
        if stage == "tune-ok":
            client.tune_ok()
        client.expect_eof()
    assert 0.3 < time.monotonic() - began < 3


@pytest.mark.own
def test_slow_dribble_does_not_extend_the_time_to_log_in(own_broker: Own, raw: Raw) -> None:
    process = own_broker(config={"handshake_timeout": 1000})
    client = raw(to=process, timeout=0.6)
    began = time.monotonic()
    with contextlib.suppress(ConnectionError, EOFError):
        for octet in PROTOCOL_HEADER[:7]:
            client.send(bytes([octet]))
            with contextlib.suppress(TimeoutError):
                client.read_exactly(1)
        pytest.fail("still connected")
    assert 0.8 < time.monotonic() - began < 4


@pytest.mark.own
def test_logged_in_client_has_all_the_time_it_wants(own_broker: Own, raw: Raw) -> None:
    process = own_broker(config={"handshake_timeout": 500})
    client = raw(to=process, timeout=1.5).open()
    with pytest.raises(TimeoutError):
        client.read_frame()


@pytest.mark.own
def test_loopback_users_may_be_lifted(own_broker: Own, connect: Connect) -> None:
    assert connect(to=own_broker(config={"loopback_users": []})).is_open


def test_many_connections_come_and_go(broker: BrokerAddress, raw: Raw) -> None:
    clients = [raw().open() for _ in range(200)]
    for client in clients:
        client.open_channel(1)
    for client in clients:
        client.call(0, amqp.Connection.Close(200, "", 0, 0), amqp.Connection.CloseOk)
