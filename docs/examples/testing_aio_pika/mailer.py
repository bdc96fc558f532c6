"""Mails with aio-pika: `send` publishes on a robust connection and tries again, `Mailer` sends what comes."""

from __future__ import annotations

import asyncio

import aio_pika
import aiormq.exceptions
from aio_pika.abc import AbstractIncomingMessage, AbstractRobustConnection

QUEUE = "mails"
TRIES = 50
LOST = (aiormq.exceptions.AMQPError, ConnectionError, RuntimeError)  # what a lost connection may raise


async def connect(url: str) -> AbstractRobustConnection:
    """Comes back by itself."""
    return await aio_pika.connect_robust(url, reconnect_interval=0.05)


async def send(connection: AbstractRobustConnection, mail: str) -> None:
    """Returns when the broker has the mail: a robust connection does not publish again by itself."""
    for _ in range(TRIES):
        try:
            channel = await connection.channel(on_return_raises=True)
            await channel.declare_queue(QUEUE, durable=True)
            message = aio_pika.Message(mail.encode(), delivery_mode=aio_pika.DeliveryMode.PERSISTENT)
            await channel.default_exchange.publish(message, QUEUE)
            await channel.close()
        except LOST:
            await asyncio.sleep(0.05)
        else:
            return
    raise ConnectionError("the broker does not come back")


class Mailer:
    """Sends mails; in this example into a list."""

    def __init__(self) -> None:
        self.sent: asyncio.Queue[str] = asyncio.Queue()

    async def start(self, connection: AbstractRobustConnection) -> None:
        """Consumes from now on."""
        channel = await connection.channel()
        await channel.set_qos(prefetch_count=10)
        queue = await channel.declare_queue(QUEUE, durable=True)
        await queue.consume(self._work)

    async def _work(self, message: AbstractIncomingMessage) -> None:
        async with message.process():
            await self.sent.put(message.body.decode())
