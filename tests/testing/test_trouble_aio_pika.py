"""Each kind of trouble as aio-pika meets it, with a broker in the same loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeVar

import aio_pika
import aiormq.exceptions
import pytest

from rabbitpy_broker.testing import AsyncBroker, Broker

T = TypeVar("T")
ROBUST = {"reconnect_interval": 0.05}


@pytest.fixture
async def near() -> AsyncIterator[AsyncBroker]:
    async with Broker() as broker:
        yield broker


@pytest.fixture
async def robust(near: AsyncBroker) -> AsyncIterator[aio_pika.abc.AbstractRobustConnection]:
    connection = await aio_pika.connect_robust(near.url, **ROBUST)
    yield connection
    near.trouble.end_all()
    await connection.close()


async def until(condition: Callable[[], object], within: float = 30.0) -> None:
    async with asyncio.timeout(within):
        while not condition():
            await asyncio.sleep(0.005)


async def again(work: Callable[[], Awaitable[T]], within: float = 20.0) -> T:
    """What `work` gives once it works: a robust connection leaves it to its user when to try again."""
    async with asyncio.timeout(within):
        while True:
            try:
                return await work()
            except (aiormq.exceptions.AMQPError, aio_pika.exceptions.QueueEmpty, ConnectionError, RuntimeError, TimeoutError):
                await asyncio.sleep(0.01)


def persistent(body: bytes) -> aio_pika.Message:
    return aio_pika.Message(body, delivery_mode=2)


async def test_a_robust_connection_comes_back_after_a_drop(near, robust):
    channel = await robust.channel()
    queue = await channel.declare_queue("q", durable=True)
    near.trouble.drop("basic.publish")
    with pytest.raises((aiormq.exceptions.AMQPError, ConnectionError, asyncio.CancelledError)):
        await channel.default_exchange.publish(persistent(b"lost"), "q")
    await again(lambda: channel.default_exchange.publish(persistent(b"kept"), "q"))
    assert (await again(queue.get)).body == b"kept"


async def test_a_consumer_goes_on_after_a_drop(near, robust):
    channel = await robust.channel()
    queue = await channel.declare_queue("q", durable=True)
    seen: list[tuple[bytes, bool]] = []

    async def work(message: aio_pika.abc.AbstractIncomingMessage) -> None:
        seen.append((message.body, bool(message.redelivered)))
        if message.redelivered:
            await message.ack()

    await queue.consume(work)
    await channel.default_exchange.publish(persistent(b"x"), "q")
    await until(lambda: seen)
    near.trouble.drop()
    await until(lambda: len(seen) == 2)
    assert seen == [(b"x", False), (b"x", True)]
    await near.assert_drained("q")


async def test_a_half_open_connection_confirms_nothing_until_it_is_given_up(near, robust):
    channel = await robust.channel()
    queue = await channel.declare_queue("q", durable=True)
    near.trouble.half_open()
    with pytest.raises(asyncio.TimeoutError):
        await channel.default_exchange.publish(persistent(b"unheard"), "q", timeout=0.1)
    assert not channel.is_closed
    near.clock.advance(3_600)
    near.trouble.end_all()
    await again(lambda: channel.default_exchange.publish(persistent(b"heard"), "q"))
    assert (await again(queue.get)).body == b"heard"


async def test_bytes_that_take_their_time_or_break_off(near, robust):
    channel = await robust.channel()
    queue = await channel.declare_queue("q", durable=True)
    with near.trouble.delay(0.05):
        began = asyncio.get_running_loop().time()
        await channel.default_exchange.publish(persistent(b"slow"), "q")
        assert asyncio.get_running_loop().time() - began >= 0.095
    near.trouble.cut(after_bytes=30)
    with pytest.raises((aiormq.exceptions.AMQPError, ConnectionError, asyncio.CancelledError, asyncio.TimeoutError)):
        await queue.get(timeout=2)
    message = await again(queue.get)
    assert message.body == b"slow"


async def test_logins_are_refused(near):
    near.trouble.refuse_logins(1)
    with pytest.raises(aiormq.exceptions.ProbableAuthenticationError):
        await aio_pika.connect(near.url)
    connection = await aio_pika.connect(near.url)
    await connection.close()


async def test_publishes_are_nacked_or_returned(near, robust):
    channel = await robust.channel(on_return_raises=True)
    await channel.declare_queue("q")
    near.trouble.nack_publishes(1)
    with pytest.raises(aio_pika.exceptions.DeliveryError):
        await channel.default_exchange.publish(persistent(b"nacked"), "q")
    near.trouble.return_publishes(1)
    with pytest.raises(aio_pika.exceptions.DeliveryError):
        await channel.default_exchange.publish(persistent(b"returned"), "q")
    await channel.default_exchange.publish(persistent(b"taken"), "q")
    assert [queue.ready for queue in near.queues()] == [1]


@pytest.mark.parametrize("name", ["block", "fill_disk"])
async def test_a_blocked_publisher_waits(near, robust, name: str):
    channel = await robust.channel()
    await channel.declare_queue("q")
    trouble = getattr(near.trouble, name)()
    publishing = asyncio.create_task(channel.default_exchange.publish(aio_pika.Message(b"x"), "q"))
    await until(lambda: "is blocked" in near.report())
    assert not publishing.done()
    trouble.end()
    await publishing
    await near.assert_published("", "q")


async def test_a_consumer_is_cancelled(near, robust):
    channel = await robust.channel()
    queue = await channel.declare_queue("q")
    ended: list[bytes] = []

    async def iterate() -> None:
        async with queue.iterator() as messages:
            async for message in messages:
                ended.append(message.body)

    iterating = asyncio.create_task(iterate())
    await until(lambda: near.queues()[0].consumers)
    assert near.trouble.cancel_consumers("q") == 1
    assert near.queues()[0].consumers == []
    iterating.cancel()
    await asyncio.gather(iterating, return_exceptions=True)


async def test_an_acked_message_comes_again(near, robust):
    channel = await robust.channel()
    queue = await channel.declare_queue("q")
    near.trouble.redeliver(1)
    await channel.default_exchange.publish(aio_pika.Message(b"x"), "q")
    seen = []
    for _ in range(2):
        message = await queue.get(timeout=5)
        seen.append((message.body, message.redelivered))
        await message.ack()
    assert seen == [(b"x", False), (b"x", True)]
    await near.assert_acked("q")


async def test_a_robust_connection_comes_back_after_a_power_cut(near, robust):
    channel = await robust.channel()
    queue = await channel.declare_queue("q", durable=True)
    await channel.default_exchange.publish(persistent(b"confirmed"), "q")
    await near.kill()
    await near.start_again()
    message = await again(lambda: queue.get(timeout=1))  # one that is asked on the way back is never answered
    assert message.body == b"confirmed"
    await message.ack()
    await near.assert_drained("q")


async def test_a_robust_connection_comes_back_after_a_restart(near, robust):
    channel = await robust.channel()
    queue = await channel.declare_queue("q", durable=True)
    await channel.default_exchange.publish(persistent(b"confirmed"), "q")
    await near.restart()
    assert (await again(queue.get)).body == b"confirmed"
