"""Large objects in PostgreSQL: parts of a MiB, written one by one, which become an object in one last transaction.

Until then, and when another has taken the name, an object is not `complete`: nobody sees it, and its parts are removed, by
whoever wrote them or, a day later, by the next who stores something.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator
from typing import Any, Final

from rabbitpy_broker.cluster.log import NoSuchObject, ObjectInfo, ObjectStore
from rabbitpy_broker.cluster.postgres.connections import Connections

PART: Final = 1 << 20  # bytes
SLICE: Final = 64  # parts that are deleted in one transaction

BEGIN: Final = "INSERT INTO rabbitpy.object (name) VALUES ($1) RETURNING id"
# The last transaction waits for the standbys, and with it all before.
ADD: Final = """
INSERT INTO rabbitpy.object_part (object, number, part)
SELECT $1, $2, $3 WHERE set_config('synchronous_commit', 'local', true) <> ''
"""
FIND: Final = "SELECT id, size FROM rabbitpy.object WHERE name = $1 AND complete"
READ: Final = "SELECT part FROM rabbitpy.object_part WHERE object = $1 AND number = $2"
LIST: Final = 'SELECT name, size FROM rabbitpy.object WHERE complete AND starts_with(name, $1) ORDER BY name COLLATE "C"'
GIVE_UP: Final = "UPDATE rabbitpy.object SET complete = false WHERE name = $1 AND complete RETURNING id"
COMPLETE: Final = "UPDATE rabbitpy.object SET complete = true, size = $2 WHERE id = $1"
LEFT: Final = "SELECT id FROM rabbitpy.object WHERE NOT complete AND made < now() - interval '1 day'"
REMOVE: Final = """
DELETE FROM rabbitpy.object_part WHERE object = $1 AND number IN (
    SELECT number FROM rabbitpy.object_part WHERE object = $1 ORDER BY number LIMIT $2
) AND set_config('synchronous_commit', 'local', true) <> ''
"""


class PostgresObjects(ObjectStore):
    def __init__(self, connections: Connections) -> None:
        self._connections = connections

    async def put(self, name: str, parts: AsyncIterable[bytes]) -> int:
        for left in await self._connections.fetch(LEFT):
            await self._remove(left["id"])
        number = await self._connections.run(lambda connection: connection.fetchval(BEGIN, name), changes=True)
        try:
            size = await self._write(number, parts)
        except BaseException:
            await self._remove(number)
            raise

        async def complete(connection: Any) -> int | None:
            async with connection.transaction():
                await connection.execute("SELECT pg_advisory_xact_lock(hashtextextended($1, 0))", name)  # two may put one name
                former: int | None = await connection.fetchval(GIVE_UP, name)
                await connection.execute(COMPLETE, number, size)
                return former

        former = await self._connections.run(complete, changes=True)
        if former is not None:
            await self._remove(former)
        return size

    async def get(self, name: str) -> AsyncIterator[bytes]:
        found = await self._connections.fetch(FIND, name)
        if not found:
            raise NoSuchObject(f"no object {name!r}")
        for number in range(-(-found[0]["size"] // PART)):
            rows = await self._connections.fetch(READ, found[0]["id"], number)
            if not rows:
                raise NoSuchObject(f"object {name!r} was replaced or deleted")
            yield rows[0]["part"]

    async def list(self, prefix: str = "") -> list[ObjectInfo]:
        return [ObjectInfo(row["name"], row["size"]) for row in await self._connections.fetch(LIST, prefix)]

    async def delete(self, name: str) -> None:
        former = await self._connections.run(lambda connection: connection.fetchval(GIVE_UP, name), changes=True)
        if former is not None:
            await self._remove(former)

    async def _write(self, number: int, parts: AsyncIterable[bytes]) -> int:
        """Writes the parts of an object, each but the last of PART bytes, and returns their size."""
        rest = bytearray()
        written = size = 0

        async def add(part: bytes) -> None:
            nonlocal written
            await self._connections.execute(ADD, number, written, part)
            written += 1

        async for given in parts:
            size += len(given)
            rest += given
            while len(rest) >= PART:
                await add(bytes(rest[:PART]))
                del rest[:PART]
        if rest:
            await add(bytes(rest))
        return size

    async def _remove(self, number: int) -> None:
        """Removes an object that is not complete."""
        while await self._connections.execute(REMOVE, number, SLICE):
            pass
        await self._connections.execute("DELETE FROM rabbitpy.object WHERE id = $1 AND NOT complete", number)
