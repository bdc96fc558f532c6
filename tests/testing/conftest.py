"""Fixtures of the tests of `rabbitpy_broker.testing`: brokers in this process."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pika
import pika.exceptions
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from rabbitpy_broker.testing import Broker


@pytest.fixture
def tested() -> Iterator[Broker]:
    """A broker in memory, for this test."""
    with Broker() as broker:
        yield broker


@pytest.fixture
def open_channel(tested: Broker) -> Iterator[Callable[..., BlockingChannel]]:
    """`open_channel(heartbeat=..., confirms=True)` is a pika channel on a connection of its own."""
    connections: list[pika.BlockingConnection] = []

    def make(*, confirms: bool = False, **settings: Any) -> BlockingChannel:
        parameters = pika.URLParameters(tested.url)
        parameters.socket_timeout = 5
        parameters.blocked_connection_timeout = 5
        for name, value in settings.items():
            setattr(parameters, name, value)
        connections.append(pika.BlockingConnection(parameters))
        channel = connections[-1].channel()
        if confirms:
            channel.confirm_delivery()
        return channel

    yield make
    tested.trouble.end_all()
    for connection in connections:
        with contextlib.suppress(pika.exceptions.AMQPError):
            connection.close()
