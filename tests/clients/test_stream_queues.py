"""Other people's clients on streams, as they come: pika, aio-pika, kombu, PerfTest.

amqplib, amqp091-go and the Java client have a case for streams among their own: node/main.js, go/main.go, java/Cases.java.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

import aio_pika
import kombu
import pika
import pytest
from cutting_proxy import CuttingProxy
from perftest_runner import perftest_jars, run_perftest
from pika.adapters.blocking_connection import BlockingChannel

from broker_process import BrokerAddress
from support import eventually

pytestmark = [pytest.mark.timeout(120), pytest.mark.filterwarnings("ignore::ResourceWarning")]

STREAM = {"x-queue-type": "stream"}


@pytest.fixture
def stream(channel: BlockingChannel, new_name: Callable[[str], str]) -> str:
    """A stream with the bodies 0 to 99, each of which is confirmed."""
    name = new_name("stream")
    channel.queue_declare(name, durable=True, arguments=STREAM)
    channel.confirm_delivery()
    for number in range(100):
        channel.basic_publish("", name, b"%d" % number)
    return name


def offset(properties: pika.BasicProperties) -> int:
    return int((properties.headers or {})["x-stream-offset"])


@pytest.mark.parametrize(
    ("where", "first"), [("first", 0), (40, 40), ("last", None), ("1h", 0), ("next", 100)], ids=str
)
def test_pika_reads_from_where_it_wants(connect: Any, stream: str, where: object, first: int | None) -> None:
    """As often as it wants: reading takes nothing out. An ack lets one more message come."""
    for _ in range(2):
        channel = connect().channel()
        channel.basic_qos(prefetch_count=7)
        got: list[tuple[int, bytes]] = []

        def take(channel: Any, method: Any, properties: Any, body: bytes, got: Any = got) -> None:
            got.append((offset(properties), body))
            channel.basic_ack(method.delivery_tag)

        channel.basic_consume(stream, take, arguments={"x-stream-offset": where})
        connection = channel.connection
        if where == "next":
            publisher = connect().channel()
            publisher.confirm_delivery()
            publisher.basic_publish("", stream, b"100")

        def is_done(got: Any = got, connection: Any = connection) -> bool:
            connection.process_data_events(0.01)
            return bool(got) and got[-1][0] >= (100 if where == "next" else 99)

        eventually(is_done)
        begin = got[0][0] if first is None else first
        if where == "next":
            assert [number for number, _ in got][-1] >= 100
            return
        assert got == [(number, b"%d" % number) for number in range(begin, 100)]


def test_pika_gets_no_more_than_its_prefetch(connect: Any, stream: str) -> None:
    channel = connect().channel()
    channel.basic_qos(prefetch_count=10)
    tags: list[int] = []
    channel.basic_consume(
        stream, lambda _channel, method, *_: tags.append(method.delivery_tag), arguments={"x-stream-offset": "first"}
    )

    def deliveries() -> int:
        channel.connection.process_data_events(0.01)
        channel.queue_declare(stream, passive=True)  # whatever came before its answer has arrived
        return len(tags)

    eventually(lambda: deliveries() == 10)
    assert deliveries() == 10
    channel.basic_ack(tags[4], multiple=True)
    eventually(lambda: deliveries() == 15)
    assert deliveries() == 15


def test_aio_pika_goes_on_at_the_offset_that_it_has_kept(broker: BrokerAddress, stream: str) -> None:
    """A consumer that was cut off names where it wants to go on; a broker keeps nothing for it."""

    async def read(url: str, first: int, count: int) -> list[int]:
        connection = await aio_pika.connect(url)
        channel = await connection.channel()
        await channel.set_qos(prefetch_count=5)
        queue = await channel.get_queue(stream)
        got: list[int] = []
        enough = asyncio.Event()

        async def take(message: aio_pika.abc.AbstractIncomingMessage) -> None:
            assert message.headers["x-stream-offset"] == int(message.body)
            if len(got) < count:
                got.append(int(message.body))
                await message.ack()
            if len(got) == count:
                enough.set()

        await queue.consume(take, arguments={"x-stream-offset": first})
        await enough.wait()
        await connection.close()
        return got

    async def both() -> list[int]:
        got = await read(broker.url, 0, 60)
        return got + await read(broker.url, got[-1] + 1, 40)

    assert asyncio.run(asyncio.wait_for(both(), 20)) == list(range(100))


def test_aio_pika_s_robust_connection_asks_again_for_its_offset(broker: BrokerAddress, stream: str) -> None:
    with CuttingProxy(broker) as proxy:
        got: list[int] = []

        async def read() -> None:
            connection = await aio_pika.connect_robust(proxy.url, reconnect_interval=0.05)
            channel = await connection.channel()
            await channel.set_qos(prefetch_count=200)
            queue = await channel.get_queue(stream)
            enough = asyncio.Event()

            async def take(message: aio_pika.abc.AbstractIncomingMessage) -> None:
                got.append(int(message.body))
                if len(got) in (50, 100):
                    enough.set()

            await queue.consume(take, arguments={"x-stream-offset": 50})
            await enough.wait()
            enough.clear()
            proxy.cut()
            await enough.wait()
            await connection.close()

        asyncio.run(asyncio.wait_for(read(), 20))
        assert got == [*range(50, 100), *range(50, 100)]


def test_kombu_reads_a_stream(broker: BrokerAddress, stream: str) -> None:
    got: list[tuple[int, object]] = []
    with kombu.Connection(broker.url) as connection:
        channel = connection.channel()
        channel.basic_qos(0, 10, False)
        queue = kombu.Queue(
            stream, queue_arguments=STREAM, consumer_arguments={"x-stream-offset": 90}, durable=True, no_declare=True
        )

        def take(body: object, message: kombu.Message) -> None:
            got.append((message.headers["x-stream-offset"], int(message.body)))
            message.ack()

        with kombu.Consumer(channel, [queue], callbacks=[take], accept=None):

            def is_done() -> bool:
                with contextlib.suppress(TimeoutError):
                    connection.drain_events(timeout=0.1)
                return len(got) == 10

            eventually(is_done)
    assert got == [(number, number) for number in range(90, 100)]


def test_perftest(broker: BrokerAddress, new_name: Callable[[str], str]) -> None:
    """Two consumers read all that one producer publishes, each from the first message on."""
    name = new_name("perf")
    options = ["--stream-queue", "-u", name, "-x", "1", "-y", "2", "-C", "3000", "-D", "3000", "-c", "100", "-q", "100"]
    outcome = run_perftest(perftest_jars(), broker.url, [*options, "--stream-consumer-offset", "first"])
    outcome.assert_clean()
    assert outcome.sent > 0 and outcome.received > 0
