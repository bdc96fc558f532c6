"""Stopping: every client is told, the exit code is 0, and what is durable is there after the next start."""

from __future__ import annotations

import signal
import socket
import time
from collections.abc import Callable

import pamqp.commands as amqp
import pika
import pytest

from broker_process import BrokerProcess
from support import closes_channel, closes_connection, unique
from wire_client import WireClient

pytestmark = pytest.mark.own

Own = Callable[..., BrokerProcess]
Connect = Callable[..., pika.BlockingConnection]
Raw = Callable[..., WireClient]

SHUTDOWN = "broker forced connection closure with reason 'shutdown'"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_closes_connections_and_ends_with_zero(
    own_broker: Own, raw: Raw, number: signal.Signals
) -> None:
    process = own_broker()
    clients = [raw(to=process).open() for _ in range(3)]
    process.signal(number)
    for client in clients:
        client.expect_close(320, SHUTDOWN)
    assert process.wait() == 0
    process.process = None
    process.assert_clean_log()


def test_pika_sees_the_reason(own_broker: Own, connect: Connect) -> None:
    process = own_broker()
    connection = connect(to=process)
    channel = connection.channel()
    channel.basic_consume(channel.queue_declare("", exclusive=True).method.queue, lambda *_: None)
    process.signal(signal.SIGTERM)
    with closes_connection(320, SHUTDOWN):
        channel.start_consuming()


def test_client_in_the_middle_of_a_message_is_told_too(own_broker: Own, raw: Raw) -> None:
    process = own_broker()
    client = raw(to=process).open()
    client.open_channel(1)
    client.method(1, amqp.Basic.Publish(routing_key="nowhere"))
    client.header(1, 1000)
    client.body(1, b"half")
    process.signal(signal.SIGTERM)
    client.expect_close(320, SHUTDOWN)
    assert process.wait() == 0


def test_clients_that_do_not_answer_do_not_hold_it_up(own_broker: Own, raw: Raw) -> None:
    process = own_broker()
    silent, in_handshake, fresh = raw(to=process).open(), raw(to=process), raw(to=process)
    in_handshake.start()
    began = time.monotonic()
    process.signal(signal.SIGTERM)
    assert process.wait(timeout=10) == 0
    assert time.monotonic() - began < 10
    process.process = None
    assert silent.expect(0, amqp.Connection.Close).reply_code == 320
    fresh.expect_eof()


def test_client_that_does_not_read_does_not_hold_it_up(own_broker: Own, raw: Raw) -> None:
    process = own_broker()
    client = raw(to=process).open()
    client.open_channel(1)
    name = unique("flood")
    client.call(1, amqp.Queue.Declare(queue=name), amqp.Queue.DeclareOk)
    client.call(1, amqp.Basic.Consume(queue=name, no_ack=True), amqp.Basic.ConsumeOk)
    feeder = raw(to=process).open()
    feeder.open_channel(1)
    for _ in range(200):
        feeder.publish(1, "", name, b"x" * 100_000)
    feeder.expect_silence(1)
    process.signal(signal.SIGTERM)
    assert process.wait(timeout=10) == 0


def test_nobody_can_connect_afterwards(own_broker: Own) -> None:
    process = own_broker()
    process.stop()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((process.host, process.port), 1).close()


def test_second_signal_changes_nothing(own_broker: Own, raw: Raw) -> None:
    process = own_broker()
    raw(to=process).open()
    process.signal(signal.SIGTERM)
    process.signal(signal.SIGTERM)
    assert process.wait() == 0
    process.process = None
    process.assert_clean_log()


def test_durable_definitions_are_there_after_a_restart(own_broker: Own, connect: Connect) -> None:
    process = own_broker()
    channel = connect(to=process).channel()
    arguments = {"x-max-priority": 3, "x-nonsense": ["a", 1]}
    channel.exchange_declare("durable", "topic", durable=True, arguments={"alternate-exchange": "amq.fanout"})
    channel.exchange_declare("inner", "fanout", durable=True, internal=True, auto_delete=True)
    channel.queue_declare("durable", durable=True, arguments=arguments)
    channel.queue_bind("durable", "inner")
    channel.exchange_bind("inner", "durable", "a.*")
    process.restart()
    channel = connect(to=process).channel()
    channel.exchange_declare("durable", "topic", durable=True, arguments={"alternate-exchange": "amq.fanout"})
    channel.exchange_declare("inner", "fanout", durable=True, internal=True, auto_delete=True)
    channel.queue_declare("durable", durable=True, arguments=arguments)
    channel.confirm_delivery()
    channel.basic_publish("durable", "a.b", b"x")
    assert channel.basic_get("durable", auto_ack=True)[2] == b"x"


@pytest.mark.parametrize("how", ["stop", "crash"])
def test_transient_definitions_are_gone_after_a_restart(own_broker: Own, connect: Connect, how: str) -> None:
    process = own_broker()
    channel = connect(to=process).channel()
    channel.exchange_declare("transient", "fanout")
    channel.exchange_declare("durable", "fanout", durable=True)
    channel.queue_declare("transient")
    channel.queue_declare("durable", durable=True)
    channel.queue_declare("exclusive", durable=True, exclusive=True)
    channel.queue_bind("transient", "durable")
    channel.queue_bind("durable", "transient")
    getattr(process, how)()
    process.start()
    connection = connect(to=process)
    for name in ("transient", "exclusive"):
        with closes_channel(404, f"no queue '{name}' in vhost '/'"):
            connection.channel().queue_declare(name, passive=True)
    with closes_channel(404, "no exchange 'transient' in vhost '/'"):
        connection.channel().exchange_declare("transient", passive=True)
    channel = connection.channel()
    channel.queue_declare("durable", durable=True)
    channel.exchange_delete("durable", if_unused=True)


def test_declare_ok_is_a_promise_that_survives_a_crash(own_broker: Own, connect: Connect) -> None:
    process = own_broker()
    channel = connect(to=process).channel()
    channel.exchange_declare("durable", "direct", durable=True)
    channel.queue_declare("durable", durable=True)
    channel.queue_declare("deleted", durable=True)
    channel.queue_bind("durable", "durable", "key")
    channel.queue_delete("deleted")
    process.crash()
    process.start()
    connection = connect(to=process)
    with closes_channel(404, "no queue 'deleted' in vhost '/'"):
        connection.channel().queue_declare("deleted", passive=True)
    channel = connection.channel()
    channel.confirm_delivery()
    channel.basic_publish("durable", "key", b"x")
    assert channel.basic_get("durable", auto_ack=True)[2] == b"x"


@pytest.mark.own
def test_asking_again_and_again_changes_nothing(own_broker: Callable[..., BrokerProcess]) -> None:
    """SIGTERM until it is gone: the exit code is that of the one that was asked politely."""
    broker = own_broker()
    process = broker.process
    assert process is not None
    while process.poll() is None:
        process.terminate()
    assert broker.wait() == 0
    broker.process = None
    broker.assert_clean_log()
