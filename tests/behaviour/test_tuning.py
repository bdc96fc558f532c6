"""Negotiation of channel_max, frame_max and heartbeat, and what holds afterwards."""

from __future__ import annotations

import time
from collections.abc import Callable

import pamqp.commands as amqp
import pika
import pytest

from wire_client import BODY, HEADER, HEARTBEAT, WireClient, shortstr


def negotiate(client: WireClient, **tune: int) -> None:
    """Everything up to and with connection.open."""
    client.start()
    client.login()
    client.expect(0, amqp.Connection.Tune)
    client.tune_ok(**tune)
    client.method(0, (10, 40, shortstr("/") + b"\0\0"))


def test_server_offers_its_limits(raw: Callable[..., WireClient]) -> None:
    client = raw()
    client.start()
    client.login()
    tune = client.expect(0, amqp.Connection.Tune)
    assert (tune.channel_max, tune.frame_max, tune.heartbeat) == (2047, 131072, 60)


def test_client_may_lower_every_value(raw: Callable[..., WireClient]) -> None:
    client = raw()
    negotiate(client, channel_max=1, frame_max=4096, heartbeat=30)
    client.expect(0, amqp.Connection.OpenOk)
    client.open_channel(1)


@pytest.mark.parametrize(
    "tune",
    [{"frame_max": 4095}, {"frame_max": 131073}, {"frame_max": 0}, {"channel_max": 2048}, {"channel_max": 0}],
    ids=["frame_max too low", "frame_max too high", "no frame_max", "channel_max too high", "no channel_max"],
)
def test_value_outside_the_offer_ends_the_negotiation(
    raw: Callable[..., WireClient], tune: dict[str, int]
) -> None:
    """Zero means no limit, and that is more than was offered. RabbitMQ hangs up; a broker that says why is welcome."""
    client = raw()
    negotiate(client, **tune)
    client.expect_end(530)


def test_channel_beyond_channel_max_is_refused(raw: Callable[..., WireClient]) -> None:
    client = raw().open(channel_max=48)
    for number in range(1, 49):
        client.open_channel(number)
    client.method(49, amqp.Channel.Open())
    client.expect_close(530, "number of channels opened (48) has reached the negotiated channel_max (48)")


def test_channel_numbers_may_have_gaps(raw: Callable[..., WireClient]) -> None:
    client = raw().open(channel_max=48)
    client.open_channel(48)
    client.open_channel(7)


def test_closed_channels_do_not_count(raw: Callable[..., WireClient]) -> None:
    client = raw().open(channel_max=2)
    for _ in range(5):
        client.open_channel(1)
        client.open_channel(2)
        client.call(1, amqp.Channel.Close(200, "", 0, 0), amqp.Channel.CloseOk)
        client.call(2, amqp.Channel.Close(200, "", 0, 0), amqp.Channel.CloseOk)


def test_frame_above_frame_max_closes_the_connection(raw: Callable[..., WireClient]) -> None:
    """A frame has 8 octets around its payload, and 8 more are granted to clients that forget them."""
    client = raw().open(frame_max=8192)
    client.open_channel(1)
    client.method(1, amqp.Basic.Publish(routing_key="nowhere"))
    client.header(1, 8193)
    client.body(1, b"x" * 8193)
    client.expect_close(501, "type 3, all octets = <<>>: {frame_too_large,8193,8184}")


@pytest.mark.parametrize("size", [8184, 8192])
def test_frames_up_to_frame_max_are_taken(raw: Callable[..., WireClient], size: int) -> None:
    client = raw().open(frame_max=8192)
    client.open_channel(1)
    client.method(1, amqp.Basic.Publish(routing_key="nowhere"))
    client.header(1, size)
    client.body(1, b"x" * size)
    client.expect_silence(1)


def test_content_header_of_exactly_frame_max_is_taken(raw: Callable[..., WireClient]) -> None:
    client = raw().open(frame_max=4096)
    client.open_channel(1)
    value_size = 4096 - 8 - 12 - 2 - 4 - (1 + len("filler")) - 1 - 4
    table = shortstr("filler") + b"S" + value_size.to_bytes(4, "big") + b"x" * value_size
    properties = b"\x20\x00" + len(table).to_bytes(4, "big") + table
    client.method(1, amqp.Basic.Publish(routing_key="nowhere"))
    client.header(1, 0, properties)
    client.expect_silence(1)


def test_broker_splits_bodies_at_the_clients_frame_max(
    raw: Callable[..., WireClient], new_name: Callable[[str], str]
) -> None:
    name = new_name("split")
    client = raw().open(frame_max=4096)
    client.open_channel(1)
    client.call(1, amqp.Queue.Declare(queue=name), amqp.Queue.DeclareOk)
    client.method(1, amqp.Basic.Publish(routing_key=name))
    client.header(1, 10000)
    for start in range(0, 10000, 1000):
        client.body(1, bytes([start // 1000]) * 1000)
    client.method(1, amqp.Basic.Get(queue=name, no_ack=True))
    content = client.expect_content(1, amqp.Basic.GetOk)
    assert content.body == b"".join(bytes([part]) * 1000 for part in range(10))
    assert [len(frame.payload) for frame in content.frames if frame.type == BODY] == [4088, 4088, 1824]


def test_body_that_fits_one_frame_is_sent_as_one(
    raw: Callable[..., WireClient], new_name: Callable[[str], str]
) -> None:
    name = new_name("whole")
    client = raw().open()
    client.open_channel(1)
    client.call(1, amqp.Queue.Declare(queue=name), amqp.Queue.DeclareOk)
    client.publish(1, "", name, b"y" * 131064)
    client.method(1, amqp.Basic.Get(queue=name, no_ack=True))
    content = client.expect_content(1, amqp.Basic.GetOk)
    assert [frame.type for frame in content.frames] == [HEADER, BODY]


def test_broker_sends_heartbeats_every_half_interval(raw: Callable[..., WireClient]) -> None:
    """A client may hang up when it has read nothing for one interval, so all of them count, not every second one."""
    client = raw().open(heartbeat=2)
    last = time.monotonic()
    for _ in range(4):
        frame = client.read_frame()
        assert (frame.type, frame.channel, frame.payload) == (HEARTBEAT, 0, b"")
        assert time.monotonic() - last < 1.6
        last = time.monotonic()
        client.frame(HEARTBEAT, 0)


def test_silent_client_is_dropped_after_two_intervals(raw: Callable[..., WireClient]) -> None:
    client = raw(timeout=10).open(heartbeat=1)
    began = time.monotonic()
    with pytest.raises((EOFError, ConnectionResetError)):
        while True:
            assert client.read_frame().type == HEARTBEAT
    assert 1.0 < time.monotonic() - began < 5.0


def test_any_traffic_keeps_a_connection_alive(raw: Callable[..., WireClient]) -> None:
    client = raw().open(heartbeat=1)
    client.open_channel(1)
    until = time.monotonic() + 4
    while time.monotonic() < until:
        client.expect_silence(1)


def test_heartbeat_zero_means_none(raw: Callable[..., WireClient]) -> None:
    client = raw(timeout=2.5).open(heartbeat=0)
    with pytest.raises(TimeoutError):
        client.read_frame()


def test_pika_with_heartbeats_stays_connected(connect: Callable[..., pika.BlockingConnection]) -> None:
    connection = connect(heartbeat=1)
    connection.sleep(4)
    assert connection.channel().is_open
