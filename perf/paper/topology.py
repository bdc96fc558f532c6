"""Exchanges, queues and bindings of a measurement: durable, declared before the driver starts and deleted after it.

Both drivers are told that everything is there already, so they put their load on the same queues.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from pamqp import commands

from perf.load.client import Address, Client, Refused
from perf.paper.plan import Group, MeasurementFailed


@contextlib.contextmanager
def declared(url: str, groups: Sequence[Group], queue_arguments: dict[str, Any]) -> Iterator[None]:
    """Raises MeasurementFailed when the broker refuses something."""
    try:
        with Client(Address.parse(url), "perf.paper setup") as client:
            client.open_channel(1)
            for group in groups:
                declare(client, group, queue_arguments)
    except Refused as error:
        raise MeasurementFailed(f"cannot declare: {error}") from None
    try:
        yield
    finally:
        with contextlib.suppress(Refused):  # a broker that has gone has nothing to delete
            delete(url, groups)


def declare(client: Client, group: Group, queue_arguments: dict[str, Any]) -> None:
    exchange = commands.Exchange.Declare(0, group.exchange, "direct", durable=True)
    client.call(1, exchange, commands.Exchange.DeclareOk)
    for name in group.queue_names:
        queue = commands.Queue.Declare(0, name, durable=True, arguments=queue_arguments)
        client.call(1, queue, commands.Queue.DeclareOk)
        client.call(1, commands.Queue.Bind(0, name, group.exchange, name), commands.Queue.BindOk)


def delete(url: str, groups: Sequence[Group]) -> None:
    with Client(Address.parse(url), "perf.paper clean-up") as client:
        client.open_channel(1)
        for group in groups:
            for name in group.queue_names:
                client.call(1, commands.Queue.Delete(0, name), commands.Queue.DeleteOk)
            client.call(1, commands.Exchange.Delete(0, group.exchange), commands.Exchange.DeleteOk)
