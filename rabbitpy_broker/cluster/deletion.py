"""Replicated vhosts that were deleted, in the registry: so that a node that was away removes its copy when it comes back.

Each vhost has an incarnation, a random name that stands in its record and in each node's copy. Its deletion leaves
`deleted/INCARNATION`, the nodes that still have a copy; the last of them takes it away.

What must stay true: a node removes a copy only if this says that its incarnation was deleted. A vhost that the engine does not
know (another engine, or one that has lost something) is left as it is.
"""

from __future__ import annotations

import msgspec

from rabbitpy_broker.cluster.checkpoints import Checkpoints, Reports
from rabbitpy_broker.cluster.engine import Engine
from rabbitpy_broker.cluster.log import OutcomeUnknown
from rabbitpy_broker.cluster.membership import VHostRecord
from rabbitpy_broker.cluster.ownership import OwnerRecord
from rabbitpy_broker.cluster.registry import Conflict, Registry


async def remove_from_engine(engine: Engine, vhost: str, incarnation: str) -> None:
    """Log, checkpoints and the like of a vhost that nobody can open any more. Raises ClusterError."""
    await engine.delete_log(VHostRecord("", [], incarnation).log_name(vhost))
    await Checkpoints(engine.objects, incarnation).remove()
    await Reports(engine.registry, incarnation).remove_all()
    await OwnerRecord(engine.registry, incarnation).remove()


class Deletions:
    """Of all vhosts; with another prefix, of those that one node has kept, of which the others remove their copies as well."""

    def __init__(self, registry: Registry, prefix: str = "deleted/") -> None:
        self._registry = registry
        self._prefix = prefix

    async def note(self, incarnation: str, nodes: list[str]) -> None:
        """These nodes are to remove their copies, once the vhost's record is gone. Raises `Unavailable`, `OutcomeUnknown`."""
        await self._registry.put(f"{self._prefix}{incarnation}", msgspec.json.encode(nodes))

    async def is_deleted(self, incarnation: str) -> bool:
        """Raises `Unavailable`."""
        return await self._registry.get(f"{self._prefix}{incarnation}") is not None

    async def forget(self, incarnation: str) -> None:
        """It was noted, and did not come to it. Raises `Unavailable`, `OutcomeUnknown`."""
        name = f"{self._prefix}{incarnation}"
        if await self._registry.get(name) is not None:
            await self._registry.delete(name)

    async def removed(self, incarnation: str, node: str) -> None:
        """The node has no copy any more. Raises `Unavailable`."""
        name = f"{self._prefix}{incarnation}"
        while True:
            found = await self._registry.get(name)
            if found is None:
                return
            nodes = msgspec.json.decode(found.value, type=list[str])
            left = [one for one in nodes if one != node]
            if left == nodes and left:
                return
            try:
                if left:
                    await self._registry.put(name, msgspec.json.encode(left), found.version)
                else:
                    await self._registry.delete(name, found.version)
            except (Conflict, OutcomeUnknown):
                continue  # what is there now tells
            return
