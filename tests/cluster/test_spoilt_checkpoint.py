"""A checkpoint that cannot be loaded: it is not fetched from the engine each second."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterable, AsyncIterator
from typing import cast

import pytest
import structlog

from rabbitpy_broker.cluster import checkpoints, member
from rabbitpy_broker.cluster.checkpoints import BackOff, Checkpoints, Restoring, Snapshot
from rabbitpy_broker.cluster.directory import VHostDirectory
from rabbitpy_broker.cluster.member import Home, Member, Replica
from rabbitpy_broker.cluster.membership import VHostRecord
from rabbitpy_broker.cluster.memory_engine import MemoryServers
from rabbitpy_broker.storage.restoring import SnapshotError

PATIENCE = 20.0


class Taken(Snapshot):
    def __init__(self, position: int) -> None:
        self.position = position
        self.term = 1

    async def parts(self) -> AsyncIterator[bytes]:
        yield b"no snapshot"


class Nothing:
    """A directory in which nothing is yet."""

    position = 0

    async def open(self) -> None:
        pass

    async def close(self) -> None:
        pass


class Node(Home, Restoring):
    """`looked` is how often it was to follow, `loaded` which checkpoints it was given."""

    def __init__(self) -> None:
        self.looked = 0
        self.loaded: list[int] = []

    def new_directory(self, name: str) -> VHostDirectory:
        self.looked += 1
        return cast("VHostDirectory", Nothing())

    def restoring(self, name: str) -> Restoring:
        return self

    async def repair(self, name: str) -> bool:
        return False

    async def load(self, parts: AsyncIterable[bytes], position: int, term: int) -> None:
        self.loaded.append(position)
        raise SnapshotError("spoilt")

    async def looks(self, times: int) -> None:
        wanted = self.looked + times
        async with asyncio.timeout(PATIENCE):
            while self.looked < wanted:
                await asyncio.sleep(0)


async def test_it_is_loaded_again_later_and_a_newer_one_at_once(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(member, "RENEW_S", 0.0)
    monkeypatch.setattr(checkpoints, "FIRST_PAUSE_S", 1000.0)
    engine, node = MemoryServers().connect("a"), Node()
    one = Member(engine, node, "a", bytes, 5.0, 5.0, 1_000_000, structlog.get_logger())
    replica = Replica(one, "orders", VHostRecord("{}", ["a"], "i"))
    stored = Checkpoints(engine.objects, "i")
    await stored.save(Taken(5), "b")
    running = asyncio.ensure_future(replica.run())
    try:
        await node.looks(20)
        assert node.loaded == [5]
        await stored.save(Taken(9), "b")
        await node.looks(20)
        assert node.loaded == [5, 9]
    finally:
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running


def test_pauses(monkeypatch: pytest.MonkeyPatch):
    now = 1000.0
    monkeypatch.setattr(checkpoints.time, "monotonic", lambda: now)
    back_off = BackOff()
    assert not back_off.waits("first")
    assert [back_off.failed("first") for _ in range(8)] == [1, 2, 4, 8, 16, 32, 60, 60]
    assert back_off.waits("first")
    assert not back_off.waits("second")
    now += 60
    assert not back_off.waits("first")
    assert back_off.failed("second") == 1
