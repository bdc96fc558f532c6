"""pika's callback connections: AsyncioConnection on an event loop, SelectConnection on pika's own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pika
import pytest
from cutting_proxy import CuttingProxy
from pika.adapters.asyncio_connection import AsyncioConnection
from pika.adapters.select_connection import SelectConnection
from pika.channel import Channel

from broker_process import BrokerAddress
from support import unique

NewName = Callable[[str], str]
TIMEOUT = 30.0


async def open_connection(parameters: pika.ConnectionParameters) -> tuple[AsyncioConnection, asyncio.Future[Exception]]:
    """An open connection, and a future that becomes the reason when it closes."""
    loop = asyncio.get_running_loop()
    opened: asyncio.Future[None] = loop.create_future()
    closed: asyncio.Future[Exception] = loop.create_future()
    connection = AsyncioConnection(
        parameters,
        on_open_callback=lambda _: opened.set_result(None),
        on_open_error_callback=lambda _, error: opened.set_exception(error),
        on_close_callback=lambda _, reason: closed.set_result(reason),
    )
    await opened
    return connection, closed


async def open_channel(connection: AsyncioConnection) -> tuple[Channel, asyncio.Future[Exception]]:
    loop = asyncio.get_running_loop()
    opened: asyncio.Future[Channel] = loop.create_future()
    closed: asyncio.Future[Exception] = loop.create_future()
    connection.channel(on_open_callback=opened.set_result)
    channel = await opened
    channel.add_on_close_callback(lambda _, reason: closed.set_result(reason))
    return channel, closed


async def done(method: Callable[..., Any], *arguments: Any, **settings: Any) -> Any:
    """The reply frame of one of pika's methods that take a callback."""
    reply: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    method(*arguments, callback=reply.set_result, **settings)
    return await reply


def run(scenario: Any) -> None:
    asyncio.run(asyncio.wait_for(scenario, TIMEOUT))


def test_asyncio_publish_confirm_consume(broker: BrokerAddress, new_name: NewName) -> None:
    """500 publishes at once: each is confirmed exactly once, and delivered in order under a prefetch limit."""
    name = new_name("asyncio")

    async def scenario() -> None:
        connection, closed = await open_connection(broker.parameters())
        channel, _ = await open_channel(connection)
        unconfirmed: set[int] = set(range(1, 501))
        all_confirmed = asyncio.Event()

        def on_confirm(frame: Any) -> None:
            assert isinstance(frame.method, pika.spec.Basic.Ack)
            tag = frame.method.delivery_tag
            settled = {seqno for seqno in unconfirmed if seqno <= tag} if frame.method.multiple else {tag}
            assert settled <= unconfirmed
            unconfirmed.difference_update(settled)
            if not unconfirmed:
                all_confirmed.set()

        await done(channel.queue_declare, name)
        await done(channel.confirm_delivery, on_confirm)
        for number in range(500):
            channel.basic_publish("", name, b"%d" % number)
        await all_confirmed.wait()

        received: list[bytes] = []
        all_received = asyncio.Event()

        def on_message(_channel: Channel, method: Any, _properties: Any, body: bytes) -> None:
            received.append(body)
            channel.basic_ack(method.delivery_tag)
            if len(received) == 500:
                all_received.set()

        await done(channel.basic_qos, prefetch_count=20)
        channel.basic_consume(name, on_message)
        await all_received.wait()
        assert received == [b"%d" % number for number in range(500)]
        connection.close()
        reason = await closed
        assert isinstance(reason, pika.exceptions.ConnectionClosedByClient)

    run(scenario())


def test_asyncio_channel_error_leaves_the_connection_open(broker: BrokerAddress, new_name: NewName) -> None:
    name = new_name("asyncio")

    async def scenario() -> None:
        connection, closed = await open_connection(broker.parameters())
        bad, bad_closed = await open_channel(connection)
        bad.basic_publish(name, "key", b"no such exchange")
        reason = await bad_closed
        assert isinstance(reason, pika.exceptions.ChannelClosedByBroker)
        assert (reason.reply_code, reason.reply_text) == (404, f"NOT_FOUND - no exchange '{name}' in vhost '/'")
        good, _ = await open_channel(connection)
        assert (await done(good.queue_declare, name)).method.queue == name
        connection.close()
        await closed

    run(scenario())


def test_asyncio_returned_before_confirmed(broker: BrokerAddress) -> None:
    """The return of an unroutable mandatory message comes before its confirm."""

    async def scenario() -> None:
        connection, closed = await open_connection(broker.parameters())
        channel, _ = await open_channel(connection)
        seen: list[str] = []
        confirmed = asyncio.Event()
        channel.add_on_return_callback(lambda *_: seen.append("return"))

        def on_confirm(_frame: Any) -> None:
            seen.append("confirm")
            confirmed.set()

        await done(channel.confirm_delivery, on_confirm)
        channel.basic_publish("", unique("nowhere"), b"x", mandatory=True)
        await confirmed.wait()
        assert seen == ["return", "confirm"]
        connection.close()
        await closed

    run(scenario())


def test_asyncio_open_error(broker: BrokerAddress) -> None:

    async def scenario() -> None:
        with pytest.raises(pika.exceptions.ProbableAuthenticationError):
            await open_connection(broker.parameters(user="nobody"))

    run(scenario())


def test_asyncio_cut_connection_is_reported_and_can_be_opened_again(proxy: CuttingProxy, new_name: NewName) -> None:
    name = new_name("asyncio")

    async def scenario() -> None:
        connection, closed = await open_connection(proxy.parameters())
        channel, _ = await open_channel(connection)
        await done(channel.queue_declare, name, exclusive=True)
        proxy.cut()
        assert isinstance(await closed, pika.exceptions.AMQPConnectionError)
        again, again_closed = await open_connection(proxy.parameters())
        channel, _ = await open_channel(again)
        # the exclusive queue went with the cut connection, so its name is free
        await done(channel.queue_declare, name, exclusive=True)
        again.close()
        await again_closed

    run(scenario())


class EchoThroughSelect:
    """Publishes `count` messages to a queue and consumes them, each step in the callback of the one before."""

    def __init__(self, parameters: pika.ConnectionParameters, queue: str, count: int) -> None:
        self.queue = queue
        self.count = count
        self.received: list[bytes] = []
        self.cancelled = False
        self.failure: Exception | None = None
        self.connection = SelectConnection(
            parameters,
            on_open_callback=self.on_open,
            on_open_error_callback=self.on_closed,
            on_close_callback=self.on_closed,
        )

    def run(self) -> None:
        self.connection.ioloop.call_later(TIMEOUT, self.connection.ioloop.stop)
        self.connection.ioloop.start()

    def on_open(self, connection: SelectConnection) -> None:
        connection.channel(on_open_callback=self.on_channel)

    def on_closed(self, _connection: SelectConnection, reason: Exception) -> None:
        if not isinstance(reason, pika.exceptions.ConnectionClosedByClient):
            self.failure = reason
        self.connection.ioloop.stop()

    def on_channel(self, channel: Channel) -> None:
        self.channel = channel
        channel.queue_declare(self.queue, callback=lambda _: self.on_declared())

    def on_declared(self) -> None:
        self.channel.basic_qos(prefetch_count=5, callback=lambda _: self.on_limited())

    def on_limited(self) -> None:
        self.tag = self.channel.basic_consume(self.queue, self.on_message)
        for number in range(self.count):
            self.channel.basic_publish("", self.queue, b"%d" % number)

    def on_message(self, _channel: Channel, method: Any, _properties: Any, body: bytes) -> None:
        self.received.append(body)
        self.channel.basic_ack(method.delivery_tag)
        if len(self.received) == self.count:
            self.channel.basic_cancel(self.tag, callback=lambda _: self.on_cancelled())

    def on_cancelled(self) -> None:
        self.cancelled = True
        self.connection.close()


def test_select_connection_publishes_and_consumes(broker: BrokerAddress, new_name: NewName) -> None:
    echo = EchoThroughSelect(broker.parameters(), new_name("select"), 200)
    echo.run()
    assert echo.failure is None
    assert echo.received == [b"%d" % number for number in range(200)]
    assert echo.cancelled


def test_select_connection_reports_a_refused_login(broker: BrokerAddress) -> None:
    echo = EchoThroughSelect(broker.parameters(password="wrong"), "unused", 1)
    echo.run()
    assert isinstance(echo.failure, pika.exceptions.ProbableAuthenticationError)
