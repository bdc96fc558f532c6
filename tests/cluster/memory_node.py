"""Brokers of a cluster inside a test, on disks and an engine in memory, without threads; and what a kill leaves of one."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, NamedTuple, TypeVar

import pytest
import structlog

from rabbitpy_broker import replicated_vhosts
from rabbitpy_broker.cluster import conversion, joining, member, view
from rabbitpy_broker.cluster.follower import Sink
from rabbitpy_broker.cluster.memory_engine import MemoryServers, Outcome, Step
from rabbitpy_broker.storage.files import DiskFile
from rabbitpy_broker.storage.memory_disk import (
    MemoryContent,
    MemoryDisk,
    MemoryFile,
    MemoryFolder,
    NameChange,
)
from rabbitpy_broker.testing.disks import JobsInLoop
from rabbitpy_broker.testing.watched_broker import Ground, KeptDefinitions, WatchedBroker

T = TypeVar("T")
ENGINE = "memory"
PATIENCE = 20.0


class ListSink(Sink):
    """Blocks, in memory."""

    def __init__(self) -> None:
        self.blocks: list[bytes] = []
        self.position = 0
        self.term = 0

    async def apply(self, block: bytes, position: int, term: int) -> None:
        self.blocks.append(block)
        await self.pass_over(position, term)

    async def flush(self) -> None:
        pass  # each is applied at once

    async def pass_over(self, position: int, term: int) -> None:
        self.position, self.term = position, term

    async def sync(self) -> int:
        return self.position


def without_threads(patch: pytest.MonkeyPatch, servers: MemoryServers, node: str) -> None:
    """What is started from now on is this node of these servers, and looks around at once."""
    patch.setattr(joining, "engine_for", lambda _: servers.connect(node))
    patch.setattr(replicated_vhosts, "DiskThreads", lambda loop, report, _: JobsInLoop(loop, report))
    patch.setattr(view, "LOOK_S", 0.02)
    for module in (member, conversion):
        patch.setattr(module, "RENEW_S", 0.02)


async def until(look: Callable[[], T]) -> T:
    async with asyncio.timeout(PATIENCE):
        while not (found := look()):
            await asyncio.sleep(0)
    return found


@asynccontextmanager
async def running(ground: Ground) -> AsyncIterator[WatchedBroker]:
    broker = WatchedBroker(ground)
    await broker.start()
    try:
        yield broker
    finally:
        await broker.stop()


def ground(node: str, more: Mapping[str, object]) -> Ground:
    settings = {"cluster.engine": ENGINE, "cluster.node": node, **more}
    return Ground(None, 0, settings, structlog.get_logger())


class Left(NamedTuple):
    """What there is of a node, and of the engine, after something was done. `told`: how many messages had been confirmed."""

    what: str
    told: int
    disk: tuple[MemoryFolder, list[list[NameChange]]]
    definitions: bytes
    servers: NotedServers

    def ground(self, node: str, *, power_cut: bool) -> Ground:
        """For the node to start on."""
        left = ground(node, {})
        assert isinstance(left.disk, MemoryDisk)
        left.disk._root, left.disk._unsafe = copy.deepcopy(self.disk)
        if power_cut:
            left.disk.power_cut()
        left.definitions = KeptDefinitions()
        left.definitions._db.deserialize(self.definitions)
        left.definitions._open_deletions = {vhost for (vhost,) in left.definitions._rows("SELECT vhost FROM open_deletions")}
        return left


class NotedDisk(MemoryDisk):
    """Says what was done to it."""

    def __init__(self, note: Callable[[str], None]) -> None:
        super().__init__()
        self.note = note

    def _change(self, steps: list[NameChange], node: MemoryContent | MemoryFolder | None) -> None:
        super()._change(steps, node)
        self.note(f"name {steps[0].name}")

    def rename(self, old: str, new: str) -> None:
        super().rename(old, new)
        self.note(f"rename {old}")

    def sync_dir(self, path: str) -> None:
        super().sync_dir(path)
        self.note(f"sync_dir {path}")

    def remove_tree(self, path: str) -> None:
        """File by file, as a file system."""
        for name in self.list_dir(path):
            inner = f"{path}/{name}"
            if isinstance(self._find(inner), MemoryFolder):
                self.remove_tree(inner)
            else:
                self.remove(inner)
        super().remove_tree(path)

    def open(self, path: str, create: bool = False) -> DiskFile:
        file = super().open(path, create)
        assert isinstance(file, MemoryFile)
        assert file._content is not None
        return NotedFile(self, path, file._content)


class NotedFile(MemoryFile):
    """One open file of a NotedDisk."""

    _disk: NotedDisk

    def write_at(self, offset: int, data: bytes) -> None:
        super().write_at(offset, data)
        self._disk.note(f"write {self.path}")

    def allocate(self, size: int) -> None:
        super().allocate(size)
        self._disk.note(f"allocate {self.path}")

    def truncate(self, size: int) -> None:
        super().truncate(size)
        self._disk.note(f"truncate {self.path}")

    def sync(self) -> None:
        super().sync()
        self._disk.note(f"sync {self.path}")


class NotedDefinitions(KeptDefinitions):
    """Says when it has committed."""

    def __init__(self, note: Callable[[str], None]) -> None:
        super().__init__()
        self.note = note

    def commit(self) -> None:
        is_due = self.dirty
        super().commit()
        if is_due:
            self.note("commit")


class NotedServers(MemoryServers):
    """Says when a log has grown."""

    def __init__(self, note: Callable[[str], None]) -> None:
        super().__init__()
        self.note = note
        self.noted = 0

    def _take_what_can_be(self) -> None:
        super()._take_what_can_be()
        count = sum(len(log.entries) for log in self.logs.values())
        if count != self.noted:
            self.noted = count
            self.note("append")

    def copy(self) -> NotedServers:
        """What they have now, and nothing that is on its way."""
        found = NotedServers(lambda _: None)
        found.logs, found.objects, found.values = copy.deepcopy((self.logs, self.objects, self.values))
        found.version = self.version
        return found


class NotedNode:
    """A node of which `left` has what a kill would leave, behind each thing that is done while `is_noting`."""

    def __init__(self, node: str, settings: Mapping[str, object]) -> None:
        self.is_noting = False
        self.told = 0
        self.left: list[Left] = []
        self.servers = NotedServers(self.note)
        self.disk = NotedDisk(self.note)
        self.ground = ground(node, settings)
        self.ground.disk = self.disk
        self.definitions = self.ground.definitions = NotedDefinitions(self.note)

    def note(self, what: str) -> None:
        if self.is_noting:
            disk = copy.deepcopy((self.disk._root, self.disk._unsafe))
            self.left.append(Left(what, self.told, disk, self.definitions._db.serialize(), self.servers.copy()))


class Held:
    """The steps of a node behind so many. `count`: how many it has asked for."""

    def __init__(self, node: str, free: int) -> None:
        self.node = node
        self._free = free
        self._asked: list[Step[Any]] = []

    @property
    def count(self) -> int:
        return len(self._asked)

    def holds(self, step: Step[Any]) -> bool:
        if step.node != self.node:
            return False
        if step not in self._asked:
            self._asked.append(step)
        return self._asked.index(step) >= self._free


class HeldServers(MemoryServers):
    """Take each step as soon as it is asked, but for those of one node behind so many."""

    def __init__(self) -> None:
        super().__init__()
        self._held: Held | None = None

    def hold_behind(self, node: str, steps: int) -> Held:
        self._held = Held(node, steps)
        return self._held

    def let_go(self) -> None:
        self._held = None
        self._take_what_can_be()

    def _outcome_by_itself(self, step: Step[Any]) -> Outcome | None:
        if self._held is not None and self._held.holds(step):
            return None
        return super()._outcome_by_itself(step)


class Pair(NamedTuple):
    """Two nodes of an engine that know each other."""

    servers: MemoryServers
    a: WatchedBroker
    b: WatchedBroker


@asynccontextmanager
async def two_nodes(patch: pytest.MonkeyPatch, servers: MemoryServers) -> AsyncIterator[Pair]:
    without_threads(patch, servers, "a")
    async with running(ground("a", {})) as a:
        without_threads(patch, servers, "b")
        async with running(ground("b", {})) as b:
            await until(lambda: set(servers.leases) == {"a", "b"})
            yield Pair(servers, a, b)
