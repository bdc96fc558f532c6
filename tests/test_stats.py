"""A look at the broker is a walk in slices: its counters never fall, whatever goes meanwhile, and are right in the end."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import structlog

from rabbitpy_broker import slices
from rabbitpy_broker.broker import Broker
from rabbitpy_broker.config import load_config
from rabbitpy_broker.metrics import BrokerStats
from rabbitpy_broker.vhost import VHost
from rabbitpy_broker.wire.field_table import FieldTable

QUEUES = 40


@pytest.fixture
async def broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Broker]:
    """Of which each look takes many turns of the loop, with some queues to which messages were published."""
    monkeypatch.setattr(slices, "SLICE_STEPS", 3)
    monkeypatch.setattr(slices, "SLICE_S", 60.0)  # what a slice has is the same on a machine that is busy
    settings = {"data_dir": str(tmp_path), "listeners": ("127.0.0.1:0",), "metrics_listen": "", "management_listen": ""}
    made = Broker(load_config(overrides=settings), structlog.get_logger())
    await made.start()
    for number in range(QUEUES):
        declare(made.node.vhosts["/"], f"q{number}", number)
    yield made
    await made.stop()


def declare(vhost: VHost, name: str, published: int) -> None:
    vhost.declare_queue(name, False, False, False, FieldTable(), None).published = published


@pytest.mark.parametrize("per_object", [False, True])
async def test_no_counter_falls_while_queues_are_deleted(broker: Broker, per_object: bool) -> None:
    chance = random.Random(1)
    vhost = broker.node.vhosts["/"]
    published = sum(range(QUEUES))
    shown = []
    while vhost.queues:
        look = asyncio.create_task(broker.stats(per_object))
        while not look.done():
            await asyncio.sleep(0)
            if vhost.queues and chance.random() < 0.2:
                vhost.delete_queue(vhost.queues[chance.choice(sorted(vhost.queues))])
        shown.append(look.result().queue_sum.published)
    assert shown == sorted(shown)
    assert len(shown) > 2
    assert set(shown) <= set(range(published + 1))
    assert (await broker.stats(per_object)).queue_sum.published == published


async def test_single_objects_are_those_that_were_there_all_the_while(broker: Broker) -> None:
    vhost = broker.node.vhosts["/"]
    look = asyncio.create_task(broker.stats(True))
    await asyncio.sleep(0)
    for number in (QUEUES - 1, QUEUES - 2):
        vhost.delete_queue(vhost.queues[f"q{number}"])
    declare(vhost, "new", 7)
    stats: BrokerStats = await look
    assert [queue.name for queue in stats.queues] == [f"q{number}" for number in range(QUEUES - 2)]
    assert [queue.published for queue in stats.queues] == list(range(QUEUES - 2))
