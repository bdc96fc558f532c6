"""How a replicated vhost is made, a new one or one of a backup, by one node at a time for a name.

    record WITHOUT replicas, which keeps the name (registry) --> all other nodes say that they have no plain vhost of the name
    --> log, and what else is to be there --> record WITH replicas

A node that has said so makes no plain one of the name for as long as that is kept.
Nobody opens a vhost without replicas, and nobody else can give it some: that is a change of the version that keeps the name. What
was cut short is taken back by the node that has begun it, at once or when it is there again:

    the record that keeps the name gets another version --> log and the like removed --> no record

What must stay true: nothing is removed in the engine before a change on its way, to have replicas, can only fail; the name is
kept for as long as something is there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

import msgspec

from rabbitpy_broker.cluster.deletion import remove_from_engine
from rabbitpy_broker.cluster.engine import Engine
from rabbitpy_broker.cluster.log import ClusterError, OutcomeUnknown, Unavailable
from rabbitpy_broker.cluster.membership import VHostRecord, record_key
from rabbitpy_broker.cluster.nodes import NodeInfo
from rabbitpy_broker.cluster.registry import Conflict, Registry
from rabbitpy_broker.cluster.takeover import short_pause

ANSWER_S: Final = 10.0  # that other nodes have to say whether they have a vhost of the name
LOOK_S: Final = 0.1


class NameUsed(ClusterError):
    """A node has a vhost of the name that is not replicated, or does not say whether it has."""


async def plain_at(registry: Registry, node: str, incarnation: str) -> list[str]:
    """The other nodes that have a plain vhost of the name that is kept for this incarnation. They say so about once a second.

    Raises `NameUsed` when one that runs does not say it, other ClusterErrors.
    """
    ends = asyncio.get_running_loop().time() + ANSWER_S
    while True:
        alive = {name: NodeInfo.unpacked(info) for name, info in (await registry.alive()).items() if name != node}
        said = {name: info.conversions.get(incarnation) for name, info in sorted(alive.items())}
        silent = [name for name, has_one in said.items() if has_one is None]
        if not silent:
            return [name for name, has_one in said.items() if has_one]
        if asyncio.get_running_loop().time() > ends:
            raise NameUsed(f"nodes that do not say whether they have a vhost of that name: {', '.join(silent)}")
        await asyncio.sleep(LOOK_S)


async def make(engine: Engine, node: str, vhost: str, record: VHostRecord, prepare: Callable[[], Awaitable[None]]) -> None:
    """Makes the vhost of this record, which is new; `prepare` makes what is to be in the engine besides its log.

    Raises `Conflict` when the name is used, other ClusterErrors, and what `prepare` raises: then `take_back` is to be called.
    """
    key = record_key(vhost)
    kept = msgspec.structs.replace(record, replicas=[], origin=node)
    version = await _put(engine.registry, key, msgspec.json.encode(kept), 0)
    await engine.create_log(record.log_name(vhost))
    await prepare()
    await _put(engine.registry, key, msgspec.json.encode(record), version)


async def take_back(engine: Engine, vhost: str, incarnation: str) -> None:
    """Leaves nothing of a vhost that was not made; one that was is left as it is. Raises ClusterError: then again."""
    key = record_key(vhost)
    found = await engine.registry.get(key)
    record = None if found is None else msgspec.json.decode(found.value, type=VHostRecord)
    if found is None or record is None or record.incarnation != incarnation or record.replicas:
        return
    version = await engine.registry.put(key, found.value, found.version)
    await remove_from_engine(engine, vhost, incarnation)
    await engine.registry.delete(key, version)


async def _put(registry: Registry, key: str, value: bytes, version: int) -> int:
    """Puts a record in the place of this version. Whether it is there is known in the end, however long that takes.

    Raises `Conflict`; `Unavailable` if it was never tried.
    """
    is_unknown = False
    while True:
        try:
            return await registry.put(key, value, version)
        except OutcomeUnknown:
            is_unknown = True
        except Unavailable:
            if not is_unknown:
                raise
        except Conflict:
            found = await registry.get(key)
            if found is None or found.value != value:
                raise
            return found.version
        await short_pause()
