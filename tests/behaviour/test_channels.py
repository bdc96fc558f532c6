"""Channels: independent of each other, closed by soft errors, and their numbers free again afterwards."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pamqp.commands as amqp
import pika
import pytest

from wire_client import WireClient

CLOSE = amqp.Channel.Close(200, "", 0, 0)
ABSENT = amqp.Queue.Declare(queue="no-such-queue", passive=True)
ABSENT_TEXT = "no queue 'no-such-queue' in vhost '/'"


def test_soft_error_names_the_method_that_failed(wire: WireClient) -> None:
    wire.method(1, ABSENT)
    wire.expect_channel_close(1, 404, ABSENT_TEXT, 50, 10)


def test_soft_error_leaves_other_channels_alone(wire: WireClient) -> None:
    wire.open_channel(2)
    wire.method(1, ABSENT)
    wire.expect_channel_close(1, 404, ABSENT_TEXT, 50, 10)
    wire.expect_silence(2)


def test_methods_are_ignored_between_close_and_close_ok(
    wire: WireClient, new_name: Callable[[str], str]
) -> None:
    name = new_name("ignored")
    wire.open_channel(2)
    wire.method(1, ABSENT)
    wire.method(1, amqp.Queue.Declare(queue=name))
    wire.publish(1, "no-such-exchange", "", b"body")
    wire.expect_channel_close(1, 404, ABSENT_TEXT, 50, 10)
    wire.method(2, amqp.Queue.Declare(queue=name, passive=True))
    wire.expect_channel_close(2, 404, f"no queue '{name}' in vhost '/'", 50, 10)


def test_close_crossing_close_is_answered(wire: WireClient) -> None:
    """Both sides close at once: each answers the other."""
    wire.method(1, ABSENT)
    wire.method(1, CLOSE)
    close = wire.expect(1, amqp.Channel.Close)
    assert close.reply_code == 404
    wire.expect(1, amqp.Channel.CloseOk)
    wire.method(1, amqp.Channel.CloseOk())
    wire.open_channel(1)


def test_number_is_free_after_the_brokers_close(wire: WireClient) -> None:
    for _ in range(20):
        wire.method(1, ABSENT)
        wire.expect_channel_close(1, 404, ABSENT_TEXT, 50, 10)
        wire.open_channel(1)


def test_number_is_free_after_the_clients_close(wire: WireClient) -> None:
    wire.call(1, CLOSE, amqp.Channel.CloseOk)
    wire.open_channel(1)
    wire.expect_silence(1)


def test_content_in_flight_when_the_channel_closes_is_dropped(wire: WireClient) -> None:
    wire.open_channel(2)
    wire.method(1, ABSENT)
    wire.publish(1, "", "nowhere", b"body")
    wire.expect_channel_close(1, 404, ABSENT_TEXT, 50, 10)
    wire.open_channel(1)
    wire.expect_silence(1)


def test_half_sent_content_is_dropped_with_its_channel(wire: WireClient) -> None:
    """A method in place of a body is an error of the connection, so only other channels may go on."""
    wire.open_channel(2)
    wire.method(2, amqp.Basic.Publish(routing_key="nowhere"))
    wire.header(2, 10)
    wire.method(1, ABSENT)
    wire.expect_channel_close(1, 404, ABSENT_TEXT, 50, 10)
    wire.body(2, b"0123456789")
    wire.expect_silence(2)


def test_channel_opens_and_closes_a_thousand_times(wire: WireClient) -> None:
    for _ in range(1000):
        wire.call(2, amqp.Channel.Open(), amqp.Channel.OpenOk)
        wire.call(2, CLOSE, amqp.Channel.CloseOk)
    wire.expect_silence(1)


def test_channels_of_many_connections_open_and_close_in_parallel(
    connect: Callable[..., pika.BlockingConnection],
) -> None:
    connections = [connect() for _ in range(5)]
    opened: list[int] = []

    def churn(connection: pika.BlockingConnection) -> None:
        for _ in range(50):
            channel = connection.channel()
            channel.close()
            opened.append(channel.channel_number)

    threads = [threading.Thread(target=churn, args=(connection,)) for connection in connections]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(opened) == 250


def test_close_of_the_connection_closes_its_channels(raw: Callable[..., WireClient]) -> None:
    client = raw().open()
    for number in range(1, 11):
        client.open_channel(number)
    client.call(0, amqp.Connection.Close(200, "", 0, 0), amqp.Connection.CloseOk)


@pytest.mark.parametrize("number", [1, 255, 256, 2047])
def test_any_number_up_to_channel_max_may_be_opened(raw: Callable[..., WireClient], number: int) -> None:
    client = raw().open()
    client.open_channel(number)
    client.expect_silence(number)
