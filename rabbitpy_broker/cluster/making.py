"""How a replicated vhost is made, a new one or one of a backup, by one node at a time for a name.

    record WITHOUT replicas, which keeps the name (registry) --> log, and what else is to be there --> record WITH replicas

Nobody opens a vhost without replicas, and nobody else can give it some: that is a change of the version that keeps the name. What
was cut short is taken back by the node that has begun it, at once or when it is there again:

    the record that keeps the name gets another version --> log and the like removed --> no record

What must stay true: nothing is removed in the engine before a change on its way, to have replicas, can only fail; the name is
kept for as long as something is there.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import msgspec

from rabbitpy_broker.cluster.deletion import remove_from_engine
from rabbitpy_broker.cluster.engine import Engine
from rabbitpy_broker.cluster.log import OutcomeUnknown, Unavailable
from rabbitpy_broker.cluster.membership import VHostRecord, record_key
from rabbitpy_broker.cluster.registry import Conflict, Registry
from rabbitpy_broker.cluster.takeover import short_pause


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
