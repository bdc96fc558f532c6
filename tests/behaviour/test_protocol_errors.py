"""Hard errors: what the broker answers to a peer that breaks the protocol, with RabbitMQ's codes and texts.

The class and method in the close are those of the method that failed, or 0 where a frame failed and no method is known.
"""

from __future__ import annotations

from collections.abc import Callable

import pamqp.commands as amqp
import pytest

from wire_client import WireClient, longstr, method_payload, shortstr

PUBLISH = amqp.Basic.Publish(routing_key="nowhere")
UNEXPECTED_METHOD = "unexpected method in connection state running"
NOT_A_HEADER = "expected content header for class 60, got non content header frame instead"
NOT_A_BODY = "expected content body, got non content body frame instead"
NOT_A_METHOD = "expected method frame, got non method frame instead"


# --- frames ------------------------------------------------------------------------------------------------------------


def test_wrong_frame_end(wire: WireClient) -> None:
    wire.frame(1, 1, method_payload(amqp.Channel.Flow(active=True)), end=b"\x00")
    wire.expect_close(501, "type 1, all octets = <<0,20,0,20,1>>: {invalid_frame_end_marker,0}")


@pytest.mark.parametrize(
    "type, channel, payload, text",
    [
        (0, 1, b"1234567890\x0012345678",
         "type 0, first 16 octets = <<49,50,51,52,53,54,55,56,57,48,0,49,50,51,52,53>>: unknown_frame"),
        (4, 1, b"123", 'type 4, all octets = <<"123">>: unknown_frame'),
        (9, 0, b"123", 'type 9, all octets = <<"123">>: unknown_frame'),
        (8, 0, b"x", 'type 8, all octets = <<"x">>: unknown_frame'),
        (1, 1, b"\x00", "type 1, all octets = <<0>>: unknown_frame"),
    ],
    ids=["type 0", "type 4", "type 9", "heartbeat with payload", "method without ids"],
)  # fmt: skip
def test_unknown_frame(wire: WireClient, type: int, channel: int, payload: bytes, text: str) -> None:
    wire.frame(type, channel, payload)
    wire.expect_close(501, text)


def test_content_header_too_short(wire: WireClient) -> None:
    wire.method(1, PUBLISH)
    wire.frame(2, 1, b"\x00\x3c\x00\x00")
    wire.expect_close(501, "type 2, all octets = <<0,60,0,0>>: unknown_frame")


def test_frame_larger_than_agreed_is_refused_by_its_length_alone(wire: WireClient) -> None:
    wire.send(b"\x01\x00\x01\xff\xff\xff\xff")
    wire.expect_close(501, "type 1, all octets = <<>>: {frame_too_large,4294967295,131064}")


def test_http_request_on_an_open_connection(wire: WireClient) -> None:
    wire.send(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    wire.expect_close(501, "type 71, all octets = <<>>: {frame_too_large,539959368,131064}")


def test_heartbeat_on_a_channel(wire: WireClient) -> None:
    wire.frame(8, 1)
    wire.expect_close(505, "type 8, all octets = <<>>")


# --- content -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("channel", [1, 7], ids=["open channel", "channel never opened"])
def test_header_or_body_where_a_method_is_due(raw: Callable[..., WireClient], channel: int) -> None:
    for kind in ("header", "body"):
        client = raw().open()
        client.open_channel(1)
        if kind == "header":
            client.header(channel, 0)
        else:
            client.body(channel, b"x")
        client.expect_close(505, NOT_A_METHOD)


def test_content_on_channel_zero(wire: WireClient) -> None:
    wire.header(0, 0)
    wire.expect_close(505, "type 2, all octets = <<0,60,0,0,0,0,0,0,0,0,0,0,0,0>>")


def test_method_where_a_header_is_due(wire: WireClient) -> None:
    wire.method(1, PUBLISH)
    wire.method(1, PUBLISH)
    wire.expect_close(505, NOT_A_HEADER, 60, 40)


def test_body_where_a_header_is_due(wire: WireClient) -> None:
    wire.method(1, PUBLISH)
    wire.body(1, b"x")
    wire.expect_close(505, NOT_A_HEADER, 60, 40)


def test_header_of_another_class(wire: WireClient) -> None:
    wire.method(1, PUBLISH)
    wire.header(1, 0, class_id=3106)
    wire.expect_close(505, "expected content header for class 60, got one for class 3106 instead", 60, 40)


def test_header_with_a_weight(wire: WireClient) -> None:
    wire.method(1, PUBLISH)
    wire.header(1, 0, weight=5)
    wire.expect_close(505, NOT_A_HEADER, 60, 40)


def test_method_where_a_body_is_due(wire: WireClient) -> None:
    wire.method(1, PUBLISH)
    wire.header(1, 10)
    wire.method(1, PUBLISH)
    wire.expect_close(505, NOT_A_BODY, 60, 40)


def test_header_where_a_body_is_due(wire: WireClient) -> None:
    wire.method(1, PUBLISH)
    wire.header(1, 10)
    wire.header(1, 10)
    wire.expect_close(505, NOT_A_BODY, 60, 40)


def test_body_after_an_empty_content(wire: WireClient) -> None:
    wire.method(1, PUBLISH)
    wire.header(1, 0)
    wire.body(1, b"")
    wire.expect_close(505, NOT_A_METHOD)


def test_contents_of_different_channels_may_interleave(wire: WireClient) -> None:
    wire.open_channel(2)
    for channel in (1, 2):
        wire.method(channel, PUBLISH)
    for channel in (2, 1):
        wire.header(channel, 2)
    for channel in (1, 2, 2, 1):
        wire.body(channel, b"x")
    wire.expect_silence(1)
    wire.expect_silence(2)


# --- methods -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "method, ids",
    [
        (amqp.Basic.Qos(), (60, 10)),
        (amqp.Channel.Close(200, "", 0, 0), (20, 40)),
        (amqp.Channel.CloseOk(), (20, 41)),
    ],
    ids=["qos", "close", "close-ok"],
)
def test_method_on_a_channel_that_is_not_open(
    wire: WireClient, method: amqp.Frame, ids: tuple[int, int]
) -> None:
    wire.method(7, method)
    wire.expect_close(504, "expected 'channel.open'", *ids)


def test_second_open_of_a_channel(wire: WireClient) -> None:
    wire.method(1, amqp.Channel.Open())
    wire.expect_close(504, "second 'channel.open' seen", 20, 10)


@pytest.mark.parametrize(
    "method, ids",
    [
        (amqp.Connection.TuneOk(), (10, 31)),
        (
            (
                10,
                11,
                b"\x00\x00\x00\x00" + shortstr("PLAIN") + longstr(b"\0guest\0guest") + shortstr("en_US"),
            ),
            (10, 11),
        ),
        ((10, 40, shortstr("/") + b"\x00\x00"), (10, 40)),
        (amqp.Basic.Qos(), (60, 10)),
        (amqp.Channel.Open(), (20, 10)),
    ],
    ids=["tune-ok", "start-ok", "open", "basic.qos", "channel.open"],
)
def test_method_out_of_place_on_channel_zero(
    wire: WireClient, method: amqp.Frame, ids: tuple[int, int]
) -> None:
    wire.method(0, method)
    wire.expect_close(504, UNEXPECTED_METHOD, *ids)


@pytest.mark.parametrize(
    "method, ids",
    [
        (amqp.Connection.Close(200, "", 0, 0), (10, 50)),
        (amqp.Connection.TuneOk(), (10, 31)),
        (amqp.Channel.OpenOk(), (20, 11)),
        (amqp.Queue.DeclareOk("q", 1, 1), (50, 11)),
        (amqp.Channel.FlowOk(active=True), (20, 21)),
    ],
    ids=["connection.close", "connection.tune-ok", "channel.open-ok", "queue.declare-ok", "channel.flow-ok"],
)
def test_method_a_client_has_no_business_to_send(
    wire: WireClient, method: amqp.Frame, ids: tuple[int, int]
) -> None:
    wire.method(1, method)
    wire.expect_close(503, "unimplemented method", *ids)


@pytest.mark.parametrize("class_id, method_id", [(99, 10), (60, 99), (30, 99), (0, 0), (65535, 65535)])
def test_unknown_method_ends_the_connection(wire: WireClient, class_id: int, method_id: int) -> None:
    """RabbitMQ drops the socket without a word here; a broker that says why is welcome."""
    wire.method(1, (class_id, method_id, b""))
    wire.expect_end(501, 503, 540)


def test_access_request_of_old_clients_is_answered(wire: WireClient) -> None:
    wire.method(1, (30, 10, shortstr("/data") + b"\x1f"))
    frame = wire.read_frame()
    assert (frame.channel, frame.payload) == (1, b"\x00\x1e\x00\x0b\x00\x01")


def test_arguments_cut_short(wire: WireClient) -> None:
    wire.method(1, (50, 10, b"\x00\x00\x05ab"))
    wire.expect_close(501, "cannot decode <<0,0,5,97,98>>", 50, 10)


def test_arguments_too_long(wire: WireClient) -> None:
    wire.method(1, (60, 10, b"\x00" * 12))
    wire.expect_close(501, "cannot decode <<0,0,0,0,0,0,0,0,0,0,0,0>>", 60, 10)


@pytest.mark.parametrize(
    "method",
    [
        (50, 10, b"\x00\x00" + shortstr(b"\xff\xfe") + b"\x08" + longstr("")),
        (40, 10, b"\x00\x00" + shortstr(b"\xff\xfe") + shortstr("direct") + b"\x04" + longstr("")),
    ],
    ids=["queue", "exchange"],
)
def test_name_that_is_not_utf8(wire: WireClient, method: tuple[int, int, bytes]) -> None:
    wire.method(1, method)
    wire.expect_close(501, "Malformed UTF-8 in shortstr")


def test_unknown_exchange_type(wire: WireClient) -> None:
    wire.method(1, amqp.Exchange.Declare(exchange="unknown-type", exchange_type="ZZwwInvalid"))
    wire.expect_close(503, "unknown exchange type 'ZZwwInvalid'", 40, 10)


# --- what RabbitMQ does not implement ----------------------------------------------------------------------------------


def test_prefetch_size(wire: WireClient) -> None:
    wire.method(1, amqp.Basic.Qos(prefetch_size=1000))
    wire.expect_close(540, "prefetch_size!=0 (1000)", 60, 10)


def test_immediate_publish(wire: WireClient) -> None:
    wire.publish(1, "", "nowhere", immediate=True)
    wire.expect_close(540, "immediate=true", 60, 40)


@pytest.mark.parametrize("method_id", [110, 100], ids=["recover", "recover-async"])
def test_recover_to_the_same_consumer(wire: WireClient, method_id: int) -> None:
    wire.method(1, (60, method_id, b"\x00"))
    wire.expect_close(540, "requeue=false", 60, method_id)


def test_stopping_the_flow(wire: WireClient) -> None:
    wire.method(1, amqp.Channel.Flow(active=False))
    wire.expect_close(540, "active=false", 20, 20)


def test_starting_the_flow_is_answered(wire: WireClient) -> None:
    assert wire.call(1, amqp.Channel.Flow(active=True), amqp.Channel.FlowOk).active is True


# --- after the close ---------------------------------------------------------------------------------------------------


def test_everything_after_a_hard_error_is_ignored(wire: WireClient) -> None:
    wire.method(1, amqp.Channel.Open())
    wire.method(1, amqp.Queue.Declare(queue="no-such-queue", passive=True))
    wire.frame(1, 1, method_payload(amqp.Channel.Flow(active=True)))
    wire.expect_close(504, "second 'channel.open' seen", 20, 10)
