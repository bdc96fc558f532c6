"""What a log need not keep: trimming behind what a quorum has, and checkpoints for those who come later.

Each node that follows a vhost, its owner too, reports the position before which it has everything on disk. What a quorum of
the vhost's replicas has reported may be trimmed: as many nodes as may be lost can be lost then. Who is further behind than the
log's first entry, or has lost its disk, loads a checkpoint, another node's sink as an object, and reads on from there.

What must stay true: a position is reported after the sink has synced it; the owner trims nothing that it has not passed
itself; the older checkpoint goes when the newer one is there.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple
from urllib.parse import quote

from rabbitpy_broker.cluster.follower import SavedSink
from rabbitpy_broker.cluster.log import ObjectStore
from rabbitpy_broker.cluster.registry import Registry


class Reports:
    """The positions that the replicas of a vhost have reported."""

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


def quorum_position(reports: Mapping[str, int], replicas: Collection[str]) -> int:
    """Before this position a majority of the replicas has everything."""
    positions = sorted((reports.get(node, 0) for node in replicas), reverse=True)
    return positions[len(positions) // 2] if positions else 0


class Checkpoint(NamedTuple):
    """A sink that was saved at a position, of a term."""

    position: int
    term: int
    name: str


class Checkpoints:
    """The checkpoints of one vhost: one, and for a moment two."""

    def __init__(self, objects: ObjectStore, vhost: str) -> None:
        self._objects = objects
        self._prefix = f"checkpoint/{quote(vhost, safe='')}/"

    async def newest(self) -> Checkpoint | None:
        """Raises `Unavailable`."""
        found = [self._checkpoint(info.name) for info in await self._objects.list(self._prefix)]
        return max(found, default=None)

    def _checkpoint(self, name: str) -> Checkpoint:
        position, term, _ = name.removeprefix(self._prefix).split("-", 2)
        return Checkpoint(int(position), int(term), name)

    async def save(self, sink: SavedSink, node: str) -> None:
        """Stores what the sink has, and removes older checkpoints. Raises `Unavailable`, `OutcomeUnknown`, OSError."""
        position, term = await sink.sync(), sink.term
        name = f"{self._prefix}{position:020d}-{term}-{node}"
        await self._objects.put(name, sink.save())
        for info in await self._objects.list(self._prefix):
            if self._checkpoint(info.name).position < position:
                await self._objects.delete(info.name)

    async def load(self, sink: SavedSink, first: int) -> bool:
        """Has the sink become the newest checkpoint, if that is at `first`, where the log begins, or later.

        Raises `Unavailable`, `NoSuchObject` (a newer one has replaced it: again), OSError.
        """
        newest = await self.newest()
        if newest is None or newest.position < max(first, sink.position):
            return False
        await sink.load(self._objects.get(newest.name), newest.position, newest.term)
        return True
