"""The registry in PostgreSQL. A change locks the one row with the last version, so that versions grow in the order of commits.

When a lease ends is told by the server's clock, and believed as far as our own, which only goes on, bears it out
(`SeenLeases`): a clock that is set, or another server's that is wrong, ends nobody's lease, and has none last for an hour.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

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
LEASES: Final = """
SELECT node, info, ends, extract(epoch FROM ends - clock_timestamp())::float8 AS left FROM rabbitpy.lease
ORDER BY node COLLATE "C"
"""


class SeenLease(NamedTuple):
    """A lease as it was when it was seen first: when it ends by the server's clock, and by ours."""

    ends: object
    until: float


class SeenLeases:
    """What one node has seen of all leases. `lasts_s`: how long they last, once that is known; the same for all nodes.

    A lease that is another one than when we looked last was renewed since. So it ends no earlier than if that had been at once,
    and no later than if it was now. If the server says something else its clock was set, and the latest counts.
    """

    def __init__(self) -> None:
        self.lasts_s = float("inf")
        self._seen: dict[str, SeenLease] = {}
        self._looked = 0.0

    def alive(self, rows: Iterable[Mapping[str, Any]], asked: float, now: float) -> dict[str, bytes]:
        """Of rows that were asked for and came at these times of `time.monotonic`."""
        seen: dict[str, SeenLease] = {}
        infos: dict[str, bytes] = {}
        for row in rows:
            before = self._seen.get(row["node"])
            if before is not None and before.ends == row["ends"]:
                lease = before
            else:
                lease = SeenLease(row["ends"], self._until(row["left"], now, is_renewed=before is not None))
            seen[row["node"]] = lease
            if lease.until > now:
                infos[row["node"]] = row["info"]
        self._seen, self._looked = seen, asked
        return infos

    def _until(self, left: float, now: float, *, is_renewed: bool) -> float:
        latest = now + self.lasts_s
        until = now + left
        if is_renewed and until < self._looked + self.lasts_s < latest:
            return latest
        return min(until, latest)


class PostgresRegistry(Registry):
    def __init__(self, connections: Connections, notifications: Notifications) -> None:
        self._connections = connections
        self._notifications = notifications
        self._leases = SeenLeases()

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
        self._leases.lasts_s = ttl
        await self._connections.execute(KEEP_ALIVE, node, ttl, info)

    async def leave(self, node: str) -> None:
        await self._connections.execute(LEAVE, node)

    async def alive(self) -> dict[str, bytes]:
        asked = time.monotonic()
        rows = await self._connections.fetch(LEASES)
        return self._leases.alive(rows, asked, time.monotonic())

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
