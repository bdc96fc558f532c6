"""FastStream on a real broker, where its own TestRabbitBroker has none: queues, acks and connections are the real ones."""

from __future__ import annotations

import asyncio

from faststream.rabbit import RabbitBroker
from service import ALARMS, TEMPERATURES, make_broker


async def listen(broker: RabbitBroker) -> asyncio.Queue[str]:
    heard: asyncio.Queue[str] = asyncio.Queue()

    @broker.subscriber(ALARMS)
    async def hear(text: str) -> None:
        await heard.put(text)

    await broker.start()
    return heard


async def test_a_high_temperature_is_told(amqp_url: str) -> None:
    broker = make_broker(amqp_url)
    heard = await listen(broker)
    await broker.publish(90.5, TEMPERATURES)
    assert await asyncio.wait_for(heard.get(), 5) == "too hot: 90.5"
    await broker.stop()


async def test_a_temperature_that_comes_twice_is_told_twice(amqp_broker, amqp_url: str) -> None:
    amqp_broker.trouble.redeliver(1, queue="temperatures")
    broker = make_broker(amqp_url)
    heard = await listen(broker)
    await broker.publish(90.5, TEMPERATURES)
    assert [await asyncio.wait_for(heard.get(), 5) for _ in range(2)] == ["too hot: 90.5"] * 2
    await amqp_broker.aio.assert_drained("temperatures")
    await broker.stop()
