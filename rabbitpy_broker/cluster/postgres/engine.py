"""The engine on PostgreSQL: one primary, and standbys of which a quorum confirms each commit.

The URL names all of them, `postgresql://user:password@one,two,three/database`; the engine is connected to the one that takes
writes. That one of the standbys is promoted when the primary is gone, and that a primary that is replaced takes no more writes,
is the work of an operator or of a tool as Patroni.
"""

from __future__ import annotations

from rabbitpy_broker.cluster.engine import Engine
from rabbitpy_broker.cluster.log import ObjectStore, ReplicatedLog, Unavailable
from rabbitpy_broker.cluster.postgres.blocks import MAX_BLOCK, REMOVE, SLICE, PostgresLog
from rabbitpy_broker.cluster.postgres.connections import CONNECTION_ERRORS, Connections, connect, hosts
from rabbitpy_broker.cluster.postgres.names import PostgresRegistry
from rabbitpy_broker.cluster.postgres.notifications import Notifications
from rabbitpy_broker.cluster.postgres.objects import PostgresObjects
from rabbitpy_broker.cluster.postgres.promises import SETTINGS, broken_promise
from rabbitpy_broker.cluster.postgres.schema import bring_up_to_date
from rabbitpy_broker.cluster.registry import Registry
from rabbitpy_broker.errors import StartError

CREATE = """
WITH made AS (INSERT INTO rabbitpy.log (name) VALUES ($1) ON CONFLICT (name) DO NOTHING RETURNING id)
INSERT INTO rabbitpy.trimmed (log) SELECT id FROM made
"""
DELETE = """
WITH gone AS (DELETE FROM rabbitpy.log WHERE name = $1 RETURNING id),
     untrimmed AS (DELETE FROM rabbitpy.trimmed WHERE log IN (SELECT id FROM gone))
INSERT INTO rabbitpy.deleted (log) SELECT id FROM gone
"""
LAST = (1 << 63) - 1  # no position is behind it


class PostgresEngine(Engine):
    """`timeout`: seconds after which an answer is no longer waited for."""

    max_block = MAX_BLOCK

    def __init__(self, url: str, *, timeout: float = 10.0) -> None:
        self._url = url
        self._connections = Connections(url, timeout=timeout)
        self._notifications = Notifications(self._connections)
        self.registry: Registry = PostgresRegistry(self._connections, self._notifications)
        self.objects: ObjectStore = PostgresObjects(self._connections)

    async def start(self) -> None:
        await self._check_settings()

        await self._connections.run(bring_up_to_date, changes=False)

    async def stop(self) -> None:
        await self._connections.stop()

    async def create_log(self, name: str) -> None:
        await self._connections.execute(CREATE, name)

    async def delete_log(self, name: str) -> None:
        await self._connections.execute(DELETE, name)
        await self._remove_deleted()

    async def logs(self) -> list[str]:
        return [row["name"] for row in await self._connections.fetch('SELECT name FROM rabbitpy.log ORDER BY name COLLATE "C"')]

    def log(self, name: str) -> ReplicatedLog:
        return PostgresLog(self._connections, self._notifications, name)

    async def _check_settings(self) -> None:
        """Asked before anything else: a server without standbys may not answer a commit."""
        reasons = []
        for host, port in hosts(self._url):
            try:
                connection = await connect(self._url, host, port)
            except CONNECTION_ERRORS as exc:
                reasons.append(f"{host or 'default host'}:{port or ''} {str(exc) or type(exc).__name__}")
                continue
            try:
                rows = await connection.fetch("SELECT name, setting FROM pg_settings WHERE name = ANY ($1)", SETTINGS)
                version = int(await connection.fetchval("SELECT current_setting('server_version_num')"))
            finally:
                await connection.close()
            broken = broken_promise(version, {row["name"]: row["setting"] for row in rows})
            if broken is not None:
                raise StartError(f"postgresql: {broken}")
            return
        raise Unavailable(f"postgresql: {'; '.join(reasons)}")

    async def _remove_deleted(self) -> None:
        """Removes the entries of logs that were deleted, also those that another node had to leave."""
        for row in await self._connections.fetch("SELECT log FROM rabbitpy.deleted"):
            while await self._connections.execute(REMOVE, row["log"], LAST, SLICE):
                pass
            await self._connections.execute("DELETE FROM rabbitpy.deleted WHERE log = $1", row["log"])
