"""The broker of `amqp_broker` runs in a thread of its own; its `aio` waits without holding this loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from aio_pika.abc import AbstractRobustConnection
from mailer import QUEUE, Mailer, connect, send


@pytest.fixture
async def connection(amqp_url: str) -> AsyncIterator[AbstractRobustConnection]:
    made = await connect(amqp_url)
    yield made
    await made.close()


@pytest.fixture
async def mailer(connection: AbstractRobustConnection) -> Mailer:
    made = Mailer()
    await made.start(connection)
    return made


async def test_a_mail_is_sent(connection: AbstractRobustConnection, mailer: Mailer) -> None:
    await send(connection, "hello")
    assert await asyncio.wait_for(mailer.sent.get(), 5) == "hello"


async def test_a_mail_is_sent_over_a_lost_connection(
    amqp_broker, connection: AbstractRobustConnection, mailer: Mailer
) -> None:
    amqp_broker.trouble.drop("basic.publish")
    await send(connection, "hello")
    assert await asyncio.wait_for(mailer.sent.get(), 5) == "hello"
    await amqp_broker.aio.assert_drained(QUEUE)


async def test_a_mail_waits_while_the_broker_is_short_of_memory(
    amqp_broker, connection: AbstractRobustConnection, mailer: Mailer
) -> None:
    with amqp_broker.trouble.block():
        sending = asyncio.create_task(send(connection, "hello"))
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(mailer.sent.get(), 0.1)
    await sending
    assert await asyncio.wait_for(mailer.sent.get(), 5) == "hello"
