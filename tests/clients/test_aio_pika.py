"""aio-pika: robust connections, confirms, consumers, transactions and its RPC pattern."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Coroutine
from typing import Any

import aio_pika
import aiormq.exceptions
import pytest
from aio_pika.abc import AbstractIncomingMessage
from aio_pika.patterns import RPC, Master
from cutting_proxy import CuttingProxy
from pamqp.commands import Basic

from broker_process import BrokerAddress, BrokerProcess

NewName = Callable[[str], str]
TIMEOUT = 30.0


def run(scenario: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(scenario, TIMEOUT))


def test_publish_confirm_and_get(broker: BrokerAddress, new_name: NewName) -> None:
    name = new_name("aio")

    async def scenario() -> None:
        async with await aio_pika.connect(broker.url) as connection:
            channel = await connection.channel()
            queue = await channel.declare_queue(name)
            assert queue.name == name
            message = aio_pika.Message(b"body", headers={"a": [1, {"b": "c"}]}, message_id="m", expiration=60)
            confirm = await channel.default_exchange.publish(message, name)
            assert isinstance(confirm, Basic.Ack)
            got = await queue.get(timeout=5)
            assert got is not None
            assert (got.body, got.headers, got.message_id) == (b"body", {"a": [1, {"b": "c"}]}, "m")
            assert got.expiration == 60
            await got.ack()
            assert await queue.get(fail=False) is None

    run(scenario())


def test_five_hundred_publishes_in_flight_are_all_confirmed(broker: BrokerAddress, new_name: NewName) -> None:
    name = new_name("aio")

    async def scenario() -> None:
        async with await aio_pika.connect(broker.url) as connection:
            channel = await connection.channel()
            queue = await channel.declare_queue(name)
            confirms = await asyncio.gather(
                *(channel.default_exchange.publish(aio_pika.Message(b"%d" % number), name) for number in range(500)))
            assert all(isinstance(confirm, Basic.Ack) for confirm in confirms)
            assert (await channel.declare_queue(name, passive=True)).declaration_result.message_count == 500
            assert (await queue.purge()).message_count == 500

    run(scenario())


def test_unroutable_publish_comes_back(broker: BrokerAddress, new_name: NewName) -> None:
    """aio-pika publishes with mandatory and hands back the returned message, or raises with on_return_raises."""

    async def scenario() -> None:
        async with await aio_pika.connect(broker.url) as connection:
            channel = await connection.channel()
            returned = await channel.default_exchange.publish(aio_pika.Message(b"lost"), new_name("nowhere"))
            assert (getattr(returned, "body", None)) == b"lost"
            raising = await connection.channel(on_return_raises=True)
            with pytest.raises(aio_pika.exceptions.DeliveryError):
                await raising.default_exchange.publish(aio_pika.Message(b"lost"), new_name("nowhere"))

    run(scenario())


def test_topic_consumer_as_iterator(broker: BrokerAddress, new_name: NewName) -> None:
    exchange_name, queue_name = new_name("aio"), new_name("aio")

    async def scenario() -> None:
        async with await aio_pika.connect(broker.url) as connection:
            channel = await connection.channel()
            await channel.set_qos(prefetch_count=10)
            exchange = await channel.declare_exchange(exchange_name, aio_pika.ExchangeType.TOPIC, auto_delete=True)
            queue = await channel.declare_queue(queue_name, auto_delete=True)
            await queue.bind(exchange, "logs.#")
            for number in range(100):
                await exchange.publish(aio_pika.Message(b"%d" % number), f"logs.level.{number}")
            received = []
            async with queue.iterator(timeout=10) as messages:
                async for message in messages:
                    async with message.process():
                        received.append((message.routing_key, message.body))
                    if len(received) == 100:
                        break
            assert received == [(f"logs.level.{number}", b"%d" % number) for number in range(100)]

    run(scenario())


def test_processing_that_fails_requeues(broker: BrokerAddress, new_name: NewName) -> None:
    name = new_name("aio")

    async def scenario() -> None:
        async with await aio_pika.connect(broker.url) as connection:
            channel = await connection.channel()
            queue = await channel.declare_queue(name)
            seen: asyncio.Queue[bool] = asyncio.Queue()

            async def on_message(message: AbstractIncomingMessage) -> None:
                with pytest.raises(ValueError) if not message.redelivered else contextlib.nullcontext():
                    async with message.process(requeue=True):
                        await seen.put(bool(message.redelivered))
                        if not message.redelivered:
                            raise ValueError("first time")

            await queue.consume(on_message)
            await channel.default_exchange.publish(aio_pika.Message(b"x"), name)
            assert [await seen.get(), await seen.get()] == [False, True]

    run(scenario())


def test_transaction(broker: BrokerAddress, new_name: NewName) -> None:
    name = new_name("aio")

    async def scenario() -> None:
        async with await aio_pika.connect(broker.url) as connection:
            channel = await connection.channel(publisher_confirms=False)
            queue = await channel.declare_queue(name)
            with pytest.raises(RuntimeError):
                async with channel.transaction():
                    await channel.default_exchange.publish(aio_pika.Message(b"undone"), name)
                    raise RuntimeError("rolled back")
            async with channel.transaction():
                await channel.default_exchange.publish(aio_pika.Message(b"done"), name)
            got = await queue.get(timeout=5, no_ack=True)
            assert got is not None and got.body == b"done"

    run(scenario())


def test_rpc_pattern(broker: BrokerAddress, new_name: NewName) -> None:
    """RPC keeps its replies and dead-lettered calls apart by headers exchanges."""
    method = new_name("aio")

    async def multiply(x: int, y: int) -> int:
        return x * y

    async def fail() -> None:
        raise ValueError("as asked")

    async def scenario() -> None:
        async with (await aio_pika.connect_robust(broker.url) as serving,
                    await aio_pika.connect_robust(broker.url) as calling):
            server = await RPC.create(await serving.channel())
            await server.register(method, multiply, auto_delete=True)
            await server.register(f"{method}.fail", fail, auto_delete=True)
            client = await RPC.create(await calling.channel())
            results = await asyncio.gather(*(client.call(method, {"x": n, "y": 2}) for n in range(50)))
            assert results == [n * 2 for n in range(50)]
            with pytest.raises(ValueError, match="as asked"):
                await client.call(f"{method}.fail")
            await client.close()
            await server.close()

    run(scenario())


def test_master_worker_pattern(broker: BrokerAddress, new_name: NewName) -> None:
    name = new_name("aio")
    done: list[int] = []

    async def scenario() -> None:
        finished = asyncio.Event()

        async def work(*, number: int) -> None:
            done.append(number)
            if len(done) == 20:
                finished.set()

        async with await aio_pika.connect_robust(broker.url) as connection:
            channel = await connection.channel()
            await channel.set_qos(1)
            master = Master(channel)
            worker = await master.create_worker(name, work, auto_delete=True)
            for number in range(20):
                await master.create_task(name, {"number": number})
            await finished.wait()
            await worker.close()
        assert done == list(range(20))

    run(scenario())


def test_errors_have_their_class(broker: BrokerAddress, new_name: NewName) -> None:
    name = new_name("aio")

    async def scenario() -> None:
        async with await aio_pika.connect(broker.url) as connection:
            channel = await connection.channel()
            with pytest.raises(aiormq.exceptions.ChannelNotFoundEntity, match=f"no queue '{name}' in vhost '/'"):
                await channel.declare_queue(name, passive=True)
            channel = await connection.channel()
            await channel.declare_queue(name)
            with pytest.raises(aiormq.exceptions.ChannelPreconditionFailed, match="inequivalent arg 'durable'"):
                await channel.declare_queue(name, durable=True)
            exclusive = await (await connection.channel()).declare_queue(exclusive=True)
            async with await aio_pika.connect(broker.url) as other:
                with pytest.raises(aiormq.exceptions.ChannelLockedResource):
                    await (await other.channel()).declare_queue(exclusive.name, passive=True)
        with pytest.raises(aio_pika.exceptions.ProbableAuthenticationError):
            await aio_pika.connect(broker.url.replace("guest:guest", "guest:wrong"))

    run(scenario())


def test_robust_connection_restores_its_topology_and_consumer(proxy: CuttingProxy, new_name: NewName) -> None:
    """After a cut: the same connection object, an auto-delete queue declared and bound again, the consumer back."""
    exchange_name, queue_name = new_name("aio"), new_name("aio")

    async def scenario() -> None:
        async with await aio_pika.connect_robust(proxy.url, reconnect_interval=0.1) as connection:
            channel = await connection.channel()
            exchange = await channel.declare_exchange(exchange_name, aio_pika.ExchangeType.TOPIC)
            queue = await channel.declare_queue(queue_name, exclusive=True)
            await queue.bind(exchange, "k.*")
            received: asyncio.Queue[bytes] = asyncio.Queue()

            async def on_message(message: AbstractIncomingMessage) -> None:
                async with message.process():
                    await received.put(message.body)

            await queue.consume(on_message)
            for round_number in range(3):
                await exchange.publish(aio_pika.Message(b"%d" % round_number), "k.x")
                assert await received.get() == b"%d" % round_number
                reconnected = asyncio.Event()
                connection.reconnect_callbacks.add(lambda *_, event=reconnected: event.set())
                proxy.cut()
                await reconnected.wait()
            await exchange.publish(aio_pika.Message(b"last"), "k.x")
            assert await received.get() == b"last"
        assert proxy.accepted == 4

    run(scenario())


@pytest.mark.own
def test_robust_connection_survives_a_restart_of_the_broker(own_broker: Callable[..., BrokerProcess]) -> None:
    """A stopped broker closes with 320; the client comes back to the new one and makes its queue again."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    broker = own_broker(listen=f"127.0.0.1:{port}")

    async def scenario() -> None:
        async with await aio_pika.connect_robust(broker.url, reconnect_interval=0.1) as connection:
            channel = await connection.channel()
            queue = await channel.declare_queue("survivor")
            closed: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
            reconnected = asyncio.Event()
            connection.close_callbacks.add(lambda _, reason: closed.done() or closed.set_result(reason))
            connection.reconnect_callbacks.add(lambda *_: reconnected.set())
            await asyncio.get_running_loop().run_in_executor(None, broker.restart)
            assert "CONNECTION_FORCED" in str(await closed)
            await reconnected.wait()
            await channel.default_exchange.publish(aio_pika.Message(b"after"), "survivor")
            got = await queue.get(timeout=5, no_ack=True)
            assert got is not None and got.body == b"after"

    run(scenario())
