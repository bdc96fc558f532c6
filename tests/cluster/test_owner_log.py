"""An owner's definitions on their way to its log: who waits for them is told when the log has them, whoever took them there."""

from __future__ import annotations

import asyncio

import pytest

from rabbitpy_broker.cluster import blocks
from rabbitpy_broker.cluster.memory_engine import MemoryServers, Outcome
from rabbitpy_broker.cluster.owner_log import OwnerLog
from rabbitpy_broker.cluster.ownership import OwnerRecord
from rabbitpy_broker.cluster.writer import Writer
from rabbitpy_broker.definitions import Definitions
from rabbitpy_broker.storage.sync import EpochWaiter

VHOST = "orders"


class Epochs:
    """An owner's journal, of which an epoch is begun and on its way to the log when the test says so."""

    def __init__(self) -> None:
        self.servers = MemoryServers()
        self.definitions = Definitions(None)
        self.waiters: list[EpochWaiter] = []

    async def own(self) -> None:
        engine = self.servers.connect("a")
        await engine.create_log(VHOST)
        log = engine.log(VHOST)
        await log.append(blocks.fence("a"), term=1)
        self.servers.manual = True
        writer = Writer(log, OwnerRecord(engine.registry, VHOST), "a", term=1, position=1, max_block=1 << 20)
        found = self.definitions
        self.log = OwnerLog(
            writer, lambda: found.rows_of(VHOST), lambda: found.take_changes(VHOST), lambda: None, lambda: None,
            lambda: True, lambda: True,
        )  # fmt: skip
        self.commit()
        self.begin()
        assert await self.settled()

    def wait(self, waiter: EpochWaiter) -> None:
        self.waiters.append(waiter)

    def commit(self) -> None:
        """As the broker does."""
        self.definitions.commit()
        self.log.definitions_due(self)

    def begin(self) -> None:
        waiters, self.waiters = self.waiters, []

        def done(number: int, error: Exception | None) -> None:
            for waiter in waiters:
                waiter.epoch_settled(0, error is None)

        self.log.begin()
        self.log.append([b"messages"], done)

    async def settled(self) -> bool:
        """Lets the append that is under way be done; whether its definitions are there then."""
        asking = asyncio.ensure_future(self.log.settle())
        while not self.servers.pending:
            await asyncio.sleep(0)
        assert not asking.done()
        for step in list(self.servers.pending):
            step.take(Outcome.DONE)
        return await asking


@pytest.mark.parametrize("is_deposed", [False, True])
async def test_who_waits_for_definitions_that_an_epoch_took_before_their_commit_was_told(is_deposed: bool):
    epochs = Epochs()
    await epochs.own()
    epochs.definitions.put_queue(VHOST, "invoices", False, b"", 1)
    epochs.begin()  # for messages, while a file of definitions is taken in, step by step
    epochs.commit()
    if is_deposed:
        epochs.servers.logs[VHOST].append(blocks.fence("b"), 2, None, conditional=True)
    assert await epochs.settled() is not is_deposed


@pytest.mark.parametrize("is_deposed", [False, True])
async def test_who_waits_for_definitions_whose_epoch_has_not_begun(is_deposed: bool):
    epochs = Epochs()
    await epochs.own()
    epochs.definitions.put_queue(VHOST, "invoices", False, b"", 1)
    epochs.commit()
    epochs.begin()
    if is_deposed:
        epochs.servers.logs[VHOST].append(blocks.fence("b"), 2, None, conditional=True)
    assert await epochs.settled() is not is_deposed


async def test_who_waits_when_nothing_has_changed():
    epochs = Epochs()
    await epochs.own()
    epochs.begin()
    assert await epochs.log.settle()
