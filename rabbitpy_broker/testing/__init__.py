"""A broker inside a test suite: started in milliseconds, stopped without a trace, with time and trouble on demand.

    with Broker() as broker:                  # a thread and a loop of its own
        connect(broker.url)

    async with Broker() as broker:            # in the loop that runs
        await connect(broker.url)

docs/testing.md tells users how; `broker.py` is the door.
"""

from __future__ import annotations

from rabbitpy_broker.testing.assertions import AsyncAssertions
from rabbitpy_broker.testing.broker import AsyncBroker, Broker
from rabbitpy_broker.testing.history import DeadLettered, Published, Settled
from rabbitpy_broker.testing.queue_view import QueueView
from rabbitpy_broker.testing.trouble import Trouble, Troubles

__all__ = [
    "AsyncAssertions",
    "AsyncBroker",
    "Broker",
    "DeadLettered",
    "Published",
    "QueueView",
    "Settled",
    "Trouble",
    "Troubles",
]
