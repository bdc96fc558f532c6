"""A node that makes, restores or deletes a replicated vhost while another makes one of that name, or is killed meanwhile.

It is stopped between any two of its steps. The other does all of its work then, and owns the vhost, before the first goes on.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import suppress
from typing import Any, cast

import msgspec
import pytest
import structlog

from rabbitpy_broker.cluster import member
from rabbitpy_broker.cluster.backup import Backup, restore
from rabbitpy_broker.cluster.log import ClusterError
from rabbitpy_broker.cluster.making import take_back
from rabbitpy_broker.cluster.member import Home, Member
from rabbitpy_broker.cluster.membership import VHostRecord, record_key
from rabbitpy_broker.cluster.memory_engine import MemoryServers, Outcome, Step
from rabbitpy_broker.cluster.ownership import NOBODY, Owner, OwnerRecord

NAME = "orders"
ALL = 1 << 30
PATIENCE = 20.0
Work = Callable[[Member], Awaitable[None]]


class Quiet(Home):
    """A node that has nothing."""

    def incarnations(self) -> dict[str, str]:
        return {}

    def marks(self, kind: str) -> dict[str, str]:
        return {}


async def test_a_node_stays_alive_while_it_takes_back_what_it_had_begun(monkeypatch: pytest.MonkeyPatch):
    """Its lease is renewed, however long the engine takes to remove it."""
    monkeypatch.setattr(member, "RENEW_S", 0.0)
    servers = MemoryServers()
    engine = servers.connect("a")
    kept = VHostRecord("{}", [], "of the one before", origin="a")
    await engine.registry.put(record_key(NAME), msgspec.json.encode(kept), 0)
    is_asked, goes_on = asyncio.Event(), asyncio.Event()

    async def delete_log(name: str) -> None:
        is_asked.set()
        await goes_on.wait()

    monkeypatch.setattr(engine, "delete_log", delete_log)
    node = Member(engine, Quiet(), "a", bytes, 5.0, 5.0, 1_000_000, structlog.get_logger())
    await node.start()
    try:
        async with asyncio.timeout(PATIENCE):
            await is_asked.wait()
            for _ in range(3):
                before = servers.leases["a"]
                while servers.leases["a"] == before:
                    await asyncio.sleep(0)
            goes_on.set()
            while record_key(NAME) in servers.values:
                await asyncio.sleep(0)
    finally:
        await node.stop()


class File:
    """Stands for a backup."""

    term = 7

    def parts(self, number: int, vhost: str, metadata: str) -> Iterator[bytes]:
        yield b"all of it"


async def add(node: Member) -> None:
    await node.add(NAME, "{}", 1)


async def restored(node: Member) -> None:
    await restore(node, NAME, cast("Backup", File()), await node.new_record(NAME, "{}", 1))


async def delete(node: Member) -> None:
    await node.delete(NAME)


class World:
    """Two nodes of an engine, which takes their steps one by one."""

    def __init__(self) -> None:
        self.servers = MemoryServers(manual=True)  # without leases: nobody is asked for plain vhosts of the name

    def begin(self, node: str, work: Work) -> asyncio.Future[None]:
        engine = self.servers.connect(node)
        one = Member(engine, Home(), node, bytes, 5.0, 5.0, 1_000_000, structlog.get_logger())
        return asyncio.ensure_future(work(one))

    async def takes(self, node: str, task: asyncio.Future[None], steps: int = ALL) -> bool:
        """Has the node do so many steps; False: it is not at its end, and the next one was not taken."""
        while not task.done():
            mine = [step for step in self.servers.pending if step.node == node and not step.late]
            if mine:
                if not steps:
                    return False
                steps -= 1
                mine[0].take(Outcome.DONE)
            await asyncio.sleep(0)
        return True

    async def does(self, node: str, work: Work) -> bool:
        """All of it, or it is refused."""
        task = self.begin(node, work)
        await self.takes(node, task)
        with suppress(ClusterError, ValueError):
            task.result()
            return True
        return False

    async def kill(self, node: str, task: asyncio.Future[None]) -> list[Step[Any]]:
        """The result is what is on its way, and may be done later; nothing else of the node is."""
        self.servers.crash(node)
        on_its_way = list(self.servers.pending)
        while not task.done():
            for step in [one for one in self.servers.pending if one not in on_its_way]:
                step.take(Outcome.REFUSED)
            await asyncio.sleep(0)
        return on_its_way

    def record(self) -> VHostRecord | None:
        found = self.servers.values.get(record_key(NAME))
        return None if found is None else msgspec.json.decode(found.value, type=VHostRecord)

    def owner(self, incarnation: str) -> Owner:
        found = self.servers.values.get(f"owner/{incarnation}")
        return NOBODY if found is None else Owner(*msgspec.json.decode(found.value, type=tuple[str, int]))

    async def claims(self, node: str) -> str:
        """The node owns the vhost that there is; the result is its incarnation."""
        made = self.record()
        assert made is not None
        incarnation = made.incarnation

        async def claim(owner: Member) -> None:
            await OwnerRecord(owner.engine.registry, incarnation).claim(node, NOBODY)

        assert await self.does(node, claim)
        return incarnation

    def assert_whole(self) -> None:
        """There is a vhost, with its log, or nothing of one."""
        record = self.record()
        wanted = [] if record is None else [record.log_name(NAME)]
        assert list(self.servers.logs) == wanted
        assert record is None or record.replicas
        of_vhosts = [name for name in (*self.servers.values, *self.servers.objects) if name.startswith(("owner/", "checkpoint/"))]
        assert record is not None or not of_vhosts


async def worlds(first: Work, before: Work | None) -> AsyncIterator[tuple[World, asyncio.Future[None]]]:
    """In each the first node has done another number of its steps."""
    steps = 0
    while True:
        world = World()
        if before is not None:
            assert await world.does("b", before)
        task = world.begin("a", first)
        if await world.takes("a", task, steps):
            assert steps > 4
            return
        yield world, task
        await world.takes("a", task)
        with suppress(ClusterError, ValueError, asyncio.CancelledError):
            task.result()
        steps += 1


makers = pytest.mark.parametrize(("first", "before"), [(add, None), (restored, None), (delete, add)])


@makers
async def test_who_is_late_takes_nothing_from_who_was_faster(first: Work, before: Work | None):
    """The owner's record stays: terms are given out once."""
    async for world, task in worlds(first, before):
        is_made = await world.does("b", add)
        incarnation = await world.claims("b") if is_made else ""
        await world.takes("a", task)
        world.assert_whole()
        if is_made:
            record = world.record()
            assert record is not None and record.incarnation == incarnation
            assert world.owner(incarnation) == Owner("b", 1)


@pytest.mark.parametrize("first", [add, restored])
@pytest.mark.parametrize("is_late", [False, True])
async def test_one_that_is_killed_leaves_all_or_nothing(first: Work, is_late: bool):
    """Also if a change of the record was on its way, and arrives when the node has taken back what it had begun."""

    async def come_back(node: Member) -> None:
        record = world.record()
        if record is not None:
            await take_back(node.engine, NAME, record.incarnation)

    async for world, task in worlds(first, None):
        on_its_way = await world.kill("a", task)
        for step in on_its_way:
            if not (is_late and step.kind == "put" and step.detail[0] == record_key(NAME)):
                step.take(Outcome.DONE)
        await world.does("b", come_back)
        for step in list(world.servers.pending):
            step.take(Outcome.DONE)
        await world.does("b", come_back)
        world.assert_whole()
