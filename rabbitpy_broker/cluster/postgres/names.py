"""The registry in PostgreSQL. A change locks the one row with the last version, so that versions grow in the order of commits."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from rabbitpy_broker.cluster.postgres.blocks import wait_for_news
from rabbitpy_broker.cluster.postgres.connections import Connections
from rabbitpy_broker.cluster.postgres.notifications import Notifications, Subscription
from rabbitpy_broker.cluster.registry import Change, Conflict, Registry, Versioned, Watch

CHANNEL: Final = "rabbitpy_registry"
NEXT_VERSION: Final = "UPDATE rabbitpy.registry_head SET version = version + 1 RETURNING version"
PUT: Final = """
INSERT INTO rabbitpy.registry (name, value, version) VALUES ($1, $2, $3)
ON CONFLICT (name) DO UPDATE SET value = $2, version = $3
"""
LIST: Final = 'SELECT name, value, version FROM rabbitpy.registry WHERE starts_with(name, $1) ORDER BY name COLLATE "C"'
NEWS: Final = """
SELECT name, version, CASE WHEN version > $2 THEN value END AS value FROM rabbitpy.registry WHERE starts_with(name, $1)
ORDER BY version
"""
# A lease need not survive the primary: whoever is alive renews it.
KEEP_ALIVE: Final = """
INSERT INTO rabbitpy.lease (node, ends, info)
SELECT $1, clock_timestamp() + make_interval(secs => $2), $3 WHERE set_config('synchronous_commit', 'local', true) <> ''
ON CONFLICT (node) DO UPDATE SET ends = EXCLUDED.ends, info = EXCLUDED.info
"""
LEAVE: Final = "DELETE FROM rabbitpy.lease WHERE node = $1 AND set_config('synchronous_commit', 'local', true) <> ''"
ALIVE: Final = 'SELECT node, info FROM rabbitpy.lease WHERE ends > clock_timestamp() ORDER BY node COLLATE "C"'


class PostgresRegistry(Registry):
    def __init__(self, connections: Connections, notifications: Notifications) -> None:
        self._connections = connections
        self._notifications = notifications

    async def get(self, name: str) -> Versioned | None:
        rows = await self._connections.fetch("SELECT value, version FROM rabbitpy.registry WHERE name = $1", name)
        return Versioned(rows[0]["value"], rows[0]["version"]) if rows else None

    async def list(self, prefix: str = "") -> dict[str, Versioned]:
        return {row["name"]: Versioned(row["value"], row["version"]) for row in await self._connections.fetch(LIST, prefix)}

    async def put(self, name: str, value: bytes, version: int | None = None) -> int:
        return await self._change(name, value, version)

    async def delete(self, name: str, version: int | None = None) -> None:
        await self._change(name, None, version)

    def watch(self, prefix: str = "") -> Watch:
        return PostgresWatch(self._connections, self._notifications.subscribe(CHANNEL), prefix)

    async def keep_alive(self, node: str, ttl: float, info: bytes = b"") -> None:
        await self._connections.execute(KEEP_ALIVE, node, ttl, info)

    async def leave(self, node: str) -> None:
        await self._connections.execute(LEAVE, node)

    async def alive(self) -> dict[str, bytes]:
        return {row["node"]: row["info"] for row in await self._connections.fetch(ALIVE)}

    async def _change(self, name: str, value: bytes | None, expected: int | None) -> int:
        async def change(connection: Any) -> int:
            async with connection.transaction():
                version: int = await connection.fetchval(NEXT_VERSION)
                there = await connection.fetchval("SELECT version FROM rabbitpy.registry WHERE name = $1", name) or 0
                if expected is not None and there != expected:
                    raise Conflict(name, there)
                if value is None:
                    await connection.execute("DELETE FROM rabbitpy.registry WHERE name = $1", name)
                else:
                    await connection.execute(PUT, name, value, version)
            return version

        version = await self._connections.run(change, changes=True)
        self._notifications.announce(CHANNEL)
        return version


class PostgresWatch(Watch):
    def __init__(self, connections: Connections, subscription: Subscription, prefix: str) -> None:
        self._connections = connections
        self._subscription = subscription
        self._prefix = prefix
        self._known: dict[str, int] = {}  # name -> version that was shown

    async def next(self, wait: float = 0) -> list[Change]:
        loop = asyncio.get_running_loop()
        until = loop.time() + wait
        changes = await self._changes()
        while not changes and loop.time() < until:
            news = await self._subscription.listen()
            changes = await self._changes()
            if not changes:
                await wait_for_news(news, until)
        for change in changes:
            if change.value is None:
                del self._known[change.name]
            else:
                self._known[change.name] = change.version
        return changes

    async def close(self) -> None:
        await self._subscription.close()

    async def _changes(self) -> list[Change]:
        """What is not as it was shown; all names come each time, values only of those that have changed."""
        shown = max(self._known.values(), default=0)
        rows = await self._connections.fetch(NEWS, self._prefix, shown)
        there = {row["name"] for row in rows}
        gone = [Change(name, None, version) for name, version in self._known.items() if name not in there]
        changed = [Change(row["name"], row["value"], row["version"]) for row in rows if row["value"] is not None]
        return sorted(gone + changed, key=lambda change: (change.version, change.name))
