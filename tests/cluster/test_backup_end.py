"""Where the log ends for a backup, and whether a replica has all before that, on engines that refuse and on others."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest
import structlog

from rabbitpy_broker.cluster import blocks
from rabbitpy_broker.cluster.backup import marked_end
from rabbitpy_broker.cluster.conversion import Ending
from rabbitpy_broker.cluster.directory import VHostDirectory
from rabbitpy_broker.cluster.engine import Engine
from rabbitpy_broker.cluster.log import Counting
from rabbitpy_broker.cluster.log_upkeep import LogUpkeep
from rabbitpy_broker.cluster.memory_engine import MemoryServers
from rabbitpy_broker.cluster.ownership import Deposed, Owner, OwnerRecord
from rabbitpy_broker.cluster.transfer import HandOver
from rabbitpy_broker.cluster.writer import Writer

both = pytest.mark.parametrize("conditional", [True, False])


class At:
    """A directory that has everything before a position, of a term."""

    def __init__(self, position: int, term: int) -> None:
        self.position = position
        self.term = term

    def reached(self) -> tuple[int, int]:
        return self.position, self.term


class TakesLong:
    """A follower's directory whose one snapshot is there when `take` is told so."""

    is_handed_over = False
    position = 0

    def __init__(self) -> None:
        self.is_asked = asyncio.Event()
        self.take: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.removed = 0

    async def snapshot(self, rows: object) -> TakesLong:
        self.is_asked.set()
        await self.take
        return self

    async def remove(self) -> None:
        self.removed += 1


class World:
    """A log that has a fence of term 3 and one block of its owner."""

    def __init__(self, conditional: bool) -> None:
        self.engine = MemoryServers(conditional=conditional).connect("one")

    async def begin(self) -> None:
        await self.engine.start()
        await self.engine.create_log("log")
        self.log = self.engine.log("log")
        await self.log.append(blocks.fence("one"), term=3)
        self.record = OwnerRecord(self.engine.registry, "v")
        await self.record.name_first(Owner("one", 3))
        self.writer = Writer(self.log, self.record, "one", term=3, position=1, max_block=1000)
        assert await self.writer.append(b"first") == 2

    async def leave(self, last: int) -> HandOver:
        """The owner hands the vhost over, or keeps it for itself, by what its last entry is to be."""
        leaving = Ending("one") if last == blocks.ENDED else HandOver("two")
        await leaving.complete(self.record, self.writer, "one")
        return leaving

    async def counted(self) -> list[int]:
        """The kinds of the entries that count."""
        counting = Counting()
        async with asyncio.timeout(5):
            entries = self.log.reader(0).entries(await self.log.end())
            return [entry.block[0] async for entry in entries if counting.counts(entry)]

    async def has_all(self, position: int, term: int, end: int) -> bool:
        return await upkeep_of(self.engine, At(position, term)).has_all(end)


def upkeep_of(engine: Engine, directory: object) -> LogUpkeep:
    log: Any = structlog.get_logger()
    return LogUpkeep(engine, "one", "i", "log", lambda: ["one"], cast("VHostDirectory", directory), dict, 1_000, log)


@both
async def test_the_end_is_behind_what_has_returned(conditional: bool):
    """To ask for it disturbs nobody: the owner appends behind it, and is not deposed."""
    world = World(conditional)
    await world.begin()
    end = await marked_end(world.log, "two")
    assert end >= 2
    assert not await world.has_all(1, 3, end)
    assert await world.has_all(2, 3, end)
    behind = await world.writer.append(b"second")
    assert not world.writer.is_deposed
    end = await marked_end(world.log, "two")
    assert end >= behind
    assert not await world.has_all(2, 3, end)
    assert await world.has_all(behind, 3, end)


@both
@pytest.mark.parametrize("last", [blocks.GIVEN, blocks.ENDED])
async def test_an_owner_that_leaves_does_so_behind_a_mark(conditional: bool, last: int):
    """Its last entry counts: of a vhost that it hands over, and of one that it keeps for itself."""
    world = World(conditional)
    await world.begin()
    await marked_end(world.log, "two")
    leaving = await world.leave(last)
    assert leaving.done.result() == (Owner("one", 3) if last == blocks.ENDED else Owner("two", 4))
    assert await world.counted() == [blocks.FENCE, blocks.LAST, last]


@both
@pytest.mark.parametrize("last", [blocks.GIVEN, blocks.ENDED])
async def test_an_owner_that_was_taken_over_from_meanwhile_leaves_nothing(conditional: bool, last: int):
    world = World(conditional)
    await world.begin()
    await world.log.append(blocks.fence("two"), term=4)
    leaving = await world.leave(last)
    if last == blocks.ENDED:
        with pytest.raises(Deposed):
            leaving.done.result()
    assert await world.counted() == [blocks.FENCE, blocks.LAST, blocks.FENCE]


@both
async def test_fences_are_no_content(conditional: bool):
    """Of an owner that has not yet written, or one that gives the vhost away; what a deposed one appends counts for nobody."""
    world = World(conditional)
    await world.begin()
    await world.log.append(blocks.fence("two"), term=5)
    await world.log.append(blocks.given("one"), term=5)
    assert await world.has_all(2, 3, await marked_end(world.log, "three"))
    if not conditional:
        await world.log.append(blocks.parts(b"late", 1000)[0], term=3)
        assert await world.has_all(2, 3, await marked_end(world.log, "three"))
    await world.log.append(blocks.parts(b"next", 1000)[0], term=5)
    assert not await world.has_all(2, 3, await marked_end(world.log, "three"))


@both
async def test_of_a_log_that_nobody_has_owned(conditional: bool):
    """The mark itself may count there, and is nothing that a replica lacks."""
    world = World(conditional)
    await world.engine.start()
    await world.engine.create_log("log")
    end = await marked_end(world.engine.log("log"), "one")
    assert await world.has_all(0, 0, end)


@both
async def test_a_replica_that_is_behind_the_first_entry_has_not_all(conditional: bool):
    world = World(conditional)
    await world.begin()
    await world.writer.append(b"second")
    end = await marked_end(world.log, "two")
    await world.log.trim(2)
    assert not await world.has_all(1, 3, end)


@pytest.mark.parametrize("fails", [False, True])
async def test_a_snapshot_that_nobody_waits_for_any_more_is_removed(fails: bool):
    """A backup that is given up while a follower takes it: the follower goes on."""
    directory = TakesLong()
    upkeep = upkeep_of(MemoryServers(conditional=True).connect("one"), directory)

    async def back_up() -> None:
        async with upkeep.snapshot():
            raise AssertionError("it was given up")

    backing_up = asyncio.create_task(back_up())
    await asyncio.sleep(0)
    following = asyncio.create_task(upkeep.followed())
    await directory.is_asked.wait()
    backing_up.cancel()
    await asyncio.wait([backing_up])
    if fails:
        directory.take.set_exception(OSError("disk full"))
    else:
        directory.take.set_result(None)
    await following
    assert directory.removed == (0 if fails else 1)
