"""Which nodes have a replica of a replicated vhost: its record in the registry, `vhost/NAME`, changed by compare-and-set.

    add_member      the node has a replica from now on: it loads the newest checkpoint, and then follows the log
    delete_member   the node has none any more, and removes its copy when it learns of that

What must stay true: the owner is not removed, and neither is the last replica; a node removes its copy only when it stands among
those that are leaving, in the record of the very vhost that it has a copy of.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final
from urllib.parse import quote

import msgspec

from rabbitpy_broker.cluster.blocks import VERSION
from rabbitpy_broker.cluster.checkpoints import Reports
from rabbitpy_broker.cluster.log import OutcomeUnknown
from rabbitpy_broker.cluster.nodes import NodeInfo
from rabbitpy_broker.cluster.ownership import OwnerRecord
from rabbitpy_broker.cluster.registry import Conflict, Registry
from rabbitpy_broker.storage.vhost_store import vhost_folder

PREFIX: Final = "vhost/"


class VHostRecord(msgspec.Struct, frozen=True):
    """What the registry has of a replicated vhost. `leaving`: nodes that have no replica any more, and still a copy.

    Without replicas it only keeps the name: node `origin` is making a vhost of its own replicated (conversion.py).
    """

    metadata: str
    replicas: list[str]
    incarnation: str = ""  # another one of the same name has another
    leaving: list[str] = []
    origin: str = ""

    def log_name(self, vhost: str) -> str:
        return f"{vhost_folder(vhost)}.{self.incarnation}"

    def copies(self) -> list[str]:
        """The nodes that may have a copy."""
        return [*self.replicas, *self.leaving]


def record_key(vhost: str) -> str:
    """The record's name in the registry."""
    return PREFIX + quote(vhost, safe="")


async def add_member(registry: Registry, vhost: str, node: str) -> None:
    """Gives a replica to a node that lives, and that reads what this version writes. Raises ValueError, with the reason why not;
    `Unavailable`.
    """
    alive = await registry.alive()
    if node not in alive:
        raise ValueError(f"node '{node}' is not running")
    reads = NodeInfo.unpacked(alive[node]).log_version
    if reads < VERSION:
        raise ValueError(f"node '{node}' reads logs of version {reads}, this one writes version {VERSION}: upgrade it first")

    def added(record: VHostRecord) -> VHostRecord:
        if node in record.replicas:
            raise ValueError(f"node '{node}' is a member already")
        if not record.replicas:
            raise ValueError(f"node '{record.origin}' is making it replicated")
        leaving = [one for one in record.leaving if one != node]
        return msgspec.structs.replace(record, replicas=[*record.replicas, node], leaving=leaving)

    await _change(registry, vhost, added, lambda record: node in record.replicas)


async def delete_member(registry: Registry, vhost: str, node: str) -> None:
    """Takes the replica from a node, whether it lives or not. Raises ValueError, with the reason why not; `Unavailable`."""
    found = await registry.get(record_key(vhost))
    if found is not None:
        incarnation = msgspec.json.decode(found.value, type=VHostRecord).incarnation
        if (await OwnerRecord(registry, incarnation).read()).node == node:
            raise ValueError(f"node '{node}' owns the vhost; have another one own it first")

    def removed(record: VHostRecord) -> VHostRecord:
        if node not in record.replicas:
            raise ValueError(f"node '{node}' is no member")
        if record.replicas == [node]:
            raise ValueError(f"node '{node}' is the only member")
        left = [one for one in record.replicas if one != node]
        return msgspec.structs.replace(record, replicas=left, leaving=[*record.leaving, node])

    record = await _change(registry, vhost, removed, lambda record: node not in record.replicas)
    await Reports(registry, record.incarnation).remove(node)


async def has_left(registry: Registry, vhost: str, incarnation: str, node: str) -> None:
    """The node has removed its copy. Raises `Unavailable`."""

    def gone(record: VHostRecord) -> VHostRecord:
        if record.incarnation != incarnation:
            raise ValueError("it was deleted since")
        return msgspec.structs.replace(record, leaving=[one for one in record.leaving if one != node])

    try:
        await _change(registry, vhost, gone, lambda record: node not in record.leaving)
    except ValueError:
        return  # there is no record of it any more


async def _change(
    registry: Registry, vhost: str, change: Callable[[VHostRecord], VHostRecord], is_done: Callable[[VHostRecord], bool]
) -> VHostRecord:
    """Changes the record by compare-and-set, and returns what it is then. `is_done` tells of a change that may have been made."""
    is_unknown = False
    while True:
        found = await registry.get(record_key(vhost))
        if found is None:
            raise ValueError(f"there is no replicated vhost '{vhost}'")
        record = msgspec.json.decode(found.value, type=VHostRecord)
        if is_unknown and is_done(record):
            return record
        changed = change(record)
        try:
            await registry.put(record_key(vhost), msgspec.json.encode(changed), found.version)
        except Conflict:
            continue
        except OutcomeUnknown:
            is_unknown = True
            continue
        return changed
