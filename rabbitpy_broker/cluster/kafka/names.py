"""The registry on Kafka: a part of the table (`table.py`), and the leases in it."""

from __future__ import annotations

import asyncio
import time

from rabbitpy_broker.cluster.kafka.table import State, Table
from rabbitpy_broker.cluster.registry import Change, Conflict, Registry, Versioned, Watch

SPACE = "name/"  # before each name, so that the objects can have names of their own in the table


def part(state: State, prefix: str) -> dict[str, Versioned]:
    """The names in the registry that begin with a prefix."""
    wanted = SPACE + prefix
    return {name.removeprefix(SPACE): one for name, one in state.names.items() if name.startswith(wanted)}


class KafkaRegistry(Registry):
    def __init__(self, table: Table) -> None:
        self._table = table

    async def get(self, name: str) -> Versioned | None:
        return (await self._table.mark()).names.get(SPACE + name)

    async def list(self, prefix: str = "") -> dict[str, Versioned]:
        return dict(sorted(part(await self._table.mark(), prefix).items()))

    async def put(self, name: str, value: bytes, version: int | None = None) -> int:
        return await self._change("put", name, value, version)

    async def delete(self, name: str, version: int | None = None) -> None:
        await self._change("delete", name, b"", version)

    def watch(self, prefix: str = "") -> Watch:
        return KafkaWatch(self._table, prefix)

    async def keep_alive(self, node: str, ttl: float, info: bytes = b"") -> None:
        await self._table.propose("lease", node, info, ttl=ttl)

    async def leave(self, node: str) -> None:
        await self._table.propose("leave", node)

    async def alive(self) -> dict[str, bytes]:
        leases = (await self._table.catch_up()).leases
        now = time.monotonic()
        return {node: info for node, (ends, info) in sorted(leases.items()) if ends > now}

    async def _change(self, kind: str, name: str, value: bytes, version: int | None) -> int:
        try:
            return await self._table.propose(kind, SPACE + name, value, expected=version)
        except Conflict as exc:
            raise Conflict(name, exc.version) from None


class KafkaWatch(Watch):
    def __init__(self, table: Table, prefix: str) -> None:
        self._table = table
        self._prefix = prefix
        self._seen: dict[str, Versioned] | None = None

    async def next(self, wait: float = 0) -> list[Change]:
        clock = asyncio.get_running_loop().time
        deadline = clock() + wait
        if self._seen is None:
            await self._table.mark()
        while not (changes := self._changes()) and (left := deadline - clock()) > 0:
            await self._table.wait_for_news(left)
        if not changes and self._table.trouble is not None:
            raise self._table.trouble
        return changes

    async def close(self) -> None:
        """Nothing is held for a watch."""

    def _changes(self) -> list[Change]:
        state = self._table.state
        if not state.whole:
            return []
        now, seen = part(state, self._prefix), self._seen or {}
        self._seen = now
        changes = [Change(name, one.value, one.version) for name, one in now.items() if seen.get(name) != one]
        changes += [Change(name, None, one.version) for name, one in seen.items() if name not in now]
        return sorted(changes, key=lambda change: change.version)
