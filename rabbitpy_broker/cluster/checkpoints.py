"""What a log need not keep: checkpoints for those who come later, and trimming behind them.

A checkpoint is what one replica had of a vhost at a position of the log, as an object of the engine: as safe as the log itself.
Each node that follows a vhost, its owner too, reports the position before which it has everything on disk. The log is trimmed up
to the newest checkpoint, and no further than a quorum of the vhost's replicas has reported. The engine's copy alone would do;
but a checkpoint is made by one node, and should it turn out to be spoilt, as many nodes as may be lost can be lost and another
one has it all. Who is behind the log's first entry, or has lost its disk, loads the checkpoint, and reads on from there.

What must stay true: before the log's first entry is a checkpoint, whole; a position is reported after it was synced; the owner
trims nothing that it has not passed itself; the older checkpoint goes when the newer one is there.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterable, AsyncIterator, Collection, Mapping
from typing import Final, NamedTuple
from urllib.parse import quote

from rabbitpy_broker.cluster.log import ObjectStore
from rabbitpy_broker.cluster.registry import Registry

FIRST_PAUSE_S: Final = 1.0
LONGEST_PAUSE_S: Final = 60.0


class Snapshot(ABC):
    """What a replica had at `position`, of `term`, while it goes on."""

    position: int
    term: int

    @abstractmethod
    def parts(self) -> AsyncIterator[bytes]:
        """All of it, for `Restoring.load`. Raises OSError."""


class Restoring(ABC):
    """A replica that is to become what a snapshot had."""

    @abstractmethod
    async def load(self, parts: AsyncIterable[bytes], position: int, term: int) -> None:
        """Becomes it, synced; what was there is gone. Raises OSError, BrokerError; then it is as it was."""


class Reports:
    """The positions that the replicas of a vhost have reported; `vhost` is its incarnation."""

    def __init__(self, registry: Registry, vhost: str) -> None:
        self._registry = registry
        self._prefix = f"applied/{quote(vhost, safe='')}/"

    async def report(self, node: str, position: int) -> None:
        """The node has everything before `position` on disk. Raises `Unavailable`, `OutcomeUnknown`."""
        await self._registry.put(self._prefix + node, str(position).encode())

    async def read(self) -> dict[str, int]:
        """Raises `Unavailable`."""
        found = await self._registry.list(self._prefix)
        return {name.removeprefix(self._prefix): int(one.value) for name, one in found.items()}

    async def remove(self, node: str) -> None:
        """The node is no replica any more. Raises `Unavailable`, `OutcomeUnknown`."""
        await self._registry.delete(self._prefix + node)

    async def remove_all(self) -> None:
        """The vhost is deleted. Raises `Unavailable`, `OutcomeUnknown`."""
        for name in await self._registry.list(self._prefix):
            await self._registry.delete(name)


def quorum_position(reports: Mapping[str, int], replicas: Collection[str]) -> int:
    """Before this position a majority of the replicas has everything."""
    positions = sorted((reports.get(node, 0) for node in replicas), reverse=True)
    return positions[len(positions) // 2] if positions else 0


class Checkpoint(NamedTuple):
    """What a replica had at a position, of a term; `size` in bytes."""

    position: int
    term: int
    name: str
    size: int


def trim_position(newest: Checkpoint | None, reports: Mapping[str, int], replicas: Collection[str], own: int) -> int:
    """Up to where an owner that has everything before `own` on disk may trim the log."""
    if newest is None:
        return 0
    return min(newest.position, quorum_position(reports, replicas), own)


class BackOff:
    """When a checkpoint is loaded again that could not be: after a second, and each time after twice as long, up to a minute."""

    def __init__(self) -> None:
        self._name = ""
        self._pause_s = 0.0
        self._until = 0.0  # of `time.monotonic`

    def failed(self, name: str) -> float:
        """Returns the seconds until it may be loaded again."""
        self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S) if name == self._name else FIRST_PAUSE_S
        self._name, self._until = name, time.monotonic() + self._pause_s
        return self._pause_s

    def waits(self, name: str) -> bool:
        """Whether it is too early for this one; another one may be loaded at once."""
        return name == self._name and time.monotonic() < self._until


class Checkpoints:
    """The checkpoints of one vhost: one, and for a moment two; `vhost` is its incarnation."""

    def __init__(self, objects: ObjectStore, vhost: str) -> None:
        self._objects = objects
        self._prefix = f"checkpoint/{quote(vhost, safe='')}/"

    async def newest(self) -> Checkpoint | None:
        """Raises `Unavailable`."""
        return max(await self._all(), default=None)

    async def _all(self) -> list[Checkpoint]:
        found: list[Checkpoint] = []
        for info in await self._objects.list(self._prefix):
            position, term, _ = info.name.removeprefix(self._prefix).split("-", 2)
            found.append(Checkpoint(int(position), int(term), info.name, info.size))
        return found

    async def save(self, snapshot: Snapshot, node: str) -> Checkpoint:
        """Stores the snapshot, and removes older checkpoints. Raises `Unavailable`, `OutcomeUnknown`, OSError."""
        position, term = snapshot.position, snapshot.term
        name = f"{self._prefix}{position:020d}-{term}-{quote(node, safe='')}"
        size = await self._objects.put(name, snapshot.parts())
        for one in await self._all():
            if one.position < position:
                await self._objects.delete(one.name)
        return Checkpoint(position, term, name, size)

    async def load(self, into: Restoring, first: int, have: int) -> Checkpoint | None:
        """Has a replica that has everything before `have` become the newest checkpoint, if that has more, and what is before
        `first`, where the log begins. None: there is no such one.

        Raises `Unavailable`, `NoSuchObject` (a newer one has replaced it: again), OSError, BrokerError.
        """
        newest = await self.newest()
        if newest is None or newest.position < first or newest.position <= have:
            return None
        await into.load(self._objects.get(newest.name), newest.position, newest.term)
        return newest

    async def remove(self) -> None:
        """The vhost is deleted. Raises `Unavailable`, `OutcomeUnknown`."""
        for one in await self._all():
            await self._objects.delete(one.name)
