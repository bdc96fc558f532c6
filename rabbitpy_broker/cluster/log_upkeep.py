"""What a replica does every few seconds so that the log stays short: it reports, makes a checkpoint when it is due, and trims.

A checkpoint is due when the log has grown by `checkpoint_bytes` since the last one, and by as much as that is large: so
that checkpoints write no more than the log does. The first living follower makes it, in the order of the vhost's record. With
each further multiple the next one does, in case that the first ones do not get to it, and at last the owner; it is the first
when nobody else lives. Two at the same time do no harm.

The owner trims. It waits a while for living followers that are behind the checkpoint, since they would have to load it.

What must stay true: checkpoints.py says it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Final

from rabbitpy_broker.cluster import blocks
from rabbitpy_broker.cluster.checkpoints import Checkpoint, Checkpoints, Reports, trim_position
from rabbitpy_broker.cluster.directory import DirectorySnapshot, VHostDirectory
from rabbitpy_broker.cluster.engine import Engine
from rabbitpy_broker.cluster.log import Counting, ReplicatedLog, Trimmed
from rabbitpy_broker.definitions import Rows
from rabbitpy_broker.errors import BrokerError

LOOK_S: Final = 2.0
IDLE_LOOK_S: Final = 60.0  # while the log does not grow
TRIM_PATIENCE_S: Final = 60.0
MOVES: Final = "the vhost is opened or closed on this node just now: ask again"


class Growth:
    """How many bytes the log has grown by since a checkpoint: counted since it is known, and guessed for what was before."""

    def __init__(self, position: int) -> None:
        self._begun = position
        self._checkpoint = -1
        self._from = (position, 0)  # position and bytes from which on it is counted

    def since(self, checkpoint: int, position: int, copied: int) -> int:
        """`copied` are the bytes that came since this was made, up to `position`."""
        if checkpoint != self._checkpoint:
            self.known(checkpoint, *((position, copied) if self._checkpoint >= 0 else self._from))
        mean = copied / (position - self._begun) if position > self._begun else 0.0
        return copied - self._from[1] + int(max(0, self._from[0] - checkpoint) * mean)

    def known(self, checkpoint: int, position: int, copied: int) -> None:
        """This is the newest checkpoint, and at this position so many bytes had come."""
        self._checkpoint = checkpoint
        self._from = (position, copied)


class LogUpkeep:
    """Of one replica, from the moment that its directory is open; `run` is told which part it has."""

    def __init__(
        self,
        engine: Engine,
        node: str,
        incarnation: str,
        log_name: str,
        replicas: Callable[[], list[str]],
        directory: VHostDirectory,
        rows: Callable[[], Rows],
        checkpoint_bytes: int,
        log: Any,
    ) -> None:
        self._engine = engine
        self._node = node
        self._entries: ReplicatedLog = engine.log(log_name)
        self._checkpoints = Checkpoints(engine.objects, incarnation)
        self._reports = Reports(engine.registry, incarnation)
        self._replicas = replicas
        self._directory = directory
        self._rows = rows
        self._checkpoint_bytes = checkpoint_bytes
        self.log = log
        self._growth = Growth(directory.position)
        self._reported = -1
        self._trimmed = 0
        self._looked_at = -1  # the position
        self._look_again = 0.0
        self._seen = (0, 0.0)  # the newest checkpoint, and when it was first seen
        self._wanted: asyncio.Future[DirectorySnapshot] | None = None
        self._taking: asyncio.Task[DirectorySnapshot] | None = None  # of the vhost that is open
        self._is_followed = True
        self._is_over = False
        self._snapshots = asyncio.Lock()  # there is room for one

    async def run(self, owner: Callable[[], str]) -> None:
        """Until it is cancelled. `owner` is the node that has the vhost."""
        while True:
            await asyncio.sleep(LOOK_S)
            try:
                await self._look(owner())
            except (BrokerError, OSError) as error:
                self.log.warning("upkeep of a replicated log", error=str(error))

    async def followed(self) -> None:
        """To be called by whoever follows, time and again, while it applies nothing: takes the snapshot that is wanted.

        Raises OSError for one that is not wanted any more and cannot be removed.
        """
        wanted, self._wanted = self._wanted, None
        if wanted is None or wanted.done():
            return
        try:
            snapshot = await self._directory.snapshot(self._rows)
        except OSError as error:
            if not wanted.done():
                wanted.set_exception(error)
            return
        if wanted.done():  # nobody waits for it any more
            await snapshot.remove()
        else:
            wanted.set_result(snapshot)

    def not_followed(self) -> None:
        """Nobody calls `followed` any more."""
        self._is_followed = False
        wanted, self._wanted = self._wanted, None
        if wanted is not None and not wanted.done():
            wanted.set_exception(BrokerError(MOVES))

    async def end(self) -> None:
        """To be called before the directory is closed: no snapshot of it is taken from now on."""
        self._is_over = True
        self.not_followed()
        if self._taking is not None:
            self._taking.cancel()
            await asyncio.wait([self._taking], timeout=1.0)

    async def has_all(self, end: int) -> bool:
        """Whether a snapshot would have everything that counts before the position `end`, which is there already.

        Raises ClusterError.
        """
        position, term = self._directory.reached()
        if position >= end:
            return True
        counting = Counting(term)
        reader = self._entries.reader(position)
        try:
            async for entry in reader.entries(end):
                if counting.counts(entry) and entry.block[0] not in (blocks.FENCE, blocks.GIVEN):
                    return False
        except Trimmed:  # until it has loaded a checkpoint
            return False
        finally:
            await reader.close()
        return True

    @asynccontextmanager
    async def snapshot(self) -> AsyncIterator[DirectorySnapshot]:
        """What is here now, until the end of the block; one after the other. Raises OSError, BrokerError."""
        async with self._snapshots:
            snapshot = await self._take()
            try:
                yield snapshot
            finally:
                await snapshot.remove()

    async def _take(self) -> DirectorySnapshot:
        if self._is_over:
            raise BrokerError(MOVES)
        if not self._directory.is_handed_over:
            if not self._is_followed:
                raise BrokerError(MOVES)
            self._wanted = asyncio.get_running_loop().create_future()
            return await self._wanted
        self._taking = asyncio.ensure_future(self._directory.snapshot(self._rows))
        try:
            return await self._taking
        except asyncio.CancelledError:
            if self._is_over:
                raise BrokerError(MOVES) from None
            raise
        finally:
            self._taking = None

    async def _look(self, owner: str) -> None:
        position, now = self._directory.synced_position(), time.monotonic()
        if position == self._looked_at and now < self._look_again:
            return
        newest = await self._checkpoints.newest()
        await self._report(position, newest)
        if owner == self._node and newest is not None and newest.position > self._trimmed:
            await self._trim(newest, position)
            self._looked_at = -1  # until it is trimmed
        elif await self._is_due(owner, position, newest):
            await self._save()
            self._looked_at = -1
        else:
            self._looked_at, self._look_again = position, now + IDLE_LOOK_S

    async def _report(self, position: int, newest: Checkpoint | None) -> None:
        """Once for each checkpoint, when it is passed; and at first, since a disk that was lost may have been reported of."""
        if newest is not None and (self._reported < 0 or position >= newest.position > self._reported):
            await self._reports.report(self._node, position)
            self._reported = position

    async def _trim(self, newest: Checkpoint, position: int) -> None:
        now = time.monotonic()
        if self._seen[0] != newest.position:
            self._seen = (newest.position, now)
        reports, replicas = await self._reports.read(), self._replicas()
        if now - self._seen[1] < TRIM_PATIENCE_S:
            alive = await self._engine.registry.alive()
            if any(reports.get(node, 0) < newest.position for node in replicas if node in alive):
                return
        below = trim_position(newest, reports, replicas, position)
        if below > self._trimmed:
            await self._entries.trim(below)
            self._trimmed = below

    async def _is_due(self, owner: str, position: int, newest: Checkpoint | None) -> bool:
        size, at = (newest.size, newest.position) if newest is not None else (0, 0)
        if self._snapshots.locked():
            return False
        grown = self._growth.since(at, position, self._directory.copied_bytes())
        wanted = max(self._checkpoint_bytes, size)
        if grown < wanted or position <= at:
            return False
        alive = await self._engine.registry.alive()
        order = [node for node in self._replicas() if node in alive and node != owner]
        order.append(owner)
        return self._node in order and grown >= wanted * (1 + order.index(self._node))

    async def _save(self) -> None:
        began = time.monotonic()
        copied = self._directory.copied_bytes()
        async with self.snapshot() as snapshot:
            saved = await self._checkpoints.save(snapshot, self._node)
        self._growth.known(saved.position, saved.position, copied)
        self.log.info(
            "checkpoint", position=saved.position, mb=round(saved.size / 1e6, 1), seconds=round(time.monotonic() - began, 1)
        )


