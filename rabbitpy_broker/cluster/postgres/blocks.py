"""Logs in PostgreSQL: a block is a row whose key is its position.

Appends to one log go one transaction at a time, as each holds the log's row until the standbys have confirmed it. What is
appended meanwhile gathers, and is one transaction together: so a log's throughput grows with what is asked of it, without a
timer. The row has the highest term and the next position, and a transaction whose term or expected position does not fit
changes nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from functools import partial
from typing import Any, Final, NamedTuple

from rabbitpy_broker.cluster.log import (
    Entry,
    NoSuchLog,
    Reader,
    Refused,
    ReplicatedLog,
    Trimmed,
    Unavailable,
    asked_or_not,
)
from rabbitpy_broker.cluster.postgres.connections import Connections
from rabbitpy_broker.cluster.postgres.notifications import POLL, Notifications, Subscription

MAX_BLOCK: Final = 16 << 20
GROUP_BYTES: Final = 8 << 20  # of blocks in one transaction, one block at least
GROUP_BLOCKS: Final = 1024
BATCH_BYTES: Final = 4 << 20  # of blocks that a reader gets at once, one block at least
BATCH_BLOCKS: Final = 1024
SLICE: Final = 256  # rows that are deleted in one transaction

# Nearly all appends are of one block, which the server copies less often as a value of its own than in an array.
APPEND: Final = """
WITH head AS (
    UPDATE rabbitpy.log SET next = next + 1, term = $2
    WHERE id = $1 AND term <= $2 AND ($3::bigint IS NULL OR next = $3) AND current_setting('synchronous_standby_names') <> ''
    RETURNING next - 1 AS start
), written AS (
    INSERT INTO rabbitpy.block (log, position, term, block) SELECT $1, head.start, $2, $4::bytea FROM head
)
SELECT start FROM head
"""
APPEND_GROUP: Final = """
WITH head AS (
    UPDATE rabbitpy.log SET next = next + cardinality($4::bytea[]), term = $2
    WHERE id = $1 AND term <= $2 AND ($3::bigint IS NULL OR next = $3) AND current_setting('synchronous_standby_names') <> ''
    RETURNING next - cardinality($4::bytea[]) AS start
), written AS (
    INSERT INTO rabbitpy.block (log, position, term, block)
    SELECT $1, head.start + ordinality - 1, $2, block FROM head, unnest($4::bytea[]) WITH ORDINALITY AS given (block, ordinality)
)
SELECT start FROM head
"""
REFUSED: Final = "SELECT term, next, current_setting('synchronous_standby_names') FROM rabbitpy.log WHERE id = $1"
BOUNDS: Final = "SELECT first, next FROM rabbitpy.log JOIN rabbitpy.trimmed ON log = id WHERE id = $1"
READ: Final = """
SELECT position, term, block FROM (
    SELECT *, sum(size) OVER (ORDER BY position) - size AS before FROM (
        SELECT position, term, block, octet_length(block) AS size FROM rabbitpy.block
        WHERE log = $1 AND position >= $2 AND EXISTS (SELECT FROM rabbitpy.trimmed WHERE log = $1 AND first <= $2)
        ORDER BY position LIMIT $4
    ) AS ahead
) AS measured WHERE before < $3 ORDER BY position
"""
TRIM: Final = """
UPDATE rabbitpy.trimmed SET first = LEAST($2, (SELECT next FROM rabbitpy.log WHERE id = $1))
WHERE log = $1 AND first < $2 AND set_config('synchronous_commit', 'local', true) <> ''
"""
# What is deleted need not be on a standby at once: a standby that is promoted before has a few rows more.
REMOVE: Final = """
DELETE FROM rabbitpy.block WHERE log = $1 AND position IN (
    SELECT position FROM rabbitpy.block WHERE log = $1 AND position < $2 ORDER BY position LIMIT $3
) AND set_config('synchronous_commit', 'local', true) <> ''
"""


class Append(NamedTuple):
    block: bytes
    term: int
    expected: int | None
    position: asyncio.Future[int]


class PostgresLog(ReplicatedLog):
    def __init__(self, connections: Connections, notifications: Notifications, name: str) -> None:
        self.name = name
        self.connections = connections
        self._notifications = notifications
        self._id: int | None = None  # of the log of this name, once it has been asked for
        self._waiting: deque[Append] = deque()
        self._appending: asyncio.Task[None] | None = None

    def append(self, block: bytes, *, term: int, expected: int | None = None) -> asyncio.Future[int]:
        if len(block) > MAX_BLOCK:
            raise ValueError(f"a block of {len(block)} bytes")
        position: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        position.add_done_callback(asked_or_not)
        self._waiting.append(Append(block, term, expected, position))
        if self._appending is None or self._appending.done():
            self._appending = self.connections.start(self._append_all())
        return position

    async def end(self) -> int:
        _, end = await self.bounds()
        return end

    async def first(self) -> int:
        first, _ = await self.bounds()
        return first

    async def trim(self, below: int) -> None:
        async def move(connection: Any) -> int:
            await connection.execute(TRIM, await self._known_id(connection), below)
            return (await self._bounds(connection))[0]

        first = await self.connections.run(move, changes=True)
        while await self.connections.execute(REMOVE, self._id, first, SLICE):
            pass

    def reader(self, position: int) -> Reader:
        return PostgresReader(self, position)

    async def bounds(self) -> tuple[int, int]:
        """The positions of the first entry and behind the last."""
        return await self.connections.run(self._bounds, changes=False)

    async def read(self, position: int) -> list[Entry]:
        """The entries from a position on, as many as one batch has."""

        async def rows(connection: Any) -> list[Any]:
            found: list[Any] = await connection.fetch(
                READ, await self._known_id(connection), position, BATCH_BYTES, BATCH_BLOCKS
            )
            if not found:
                first, _ = await self._bounds(connection)
                if position < first:
                    raise Trimmed(first)
            return found

        found = await self.connections.run(rows, changes=False)
        batch = [Entry(at, term, False, block) for at, term, block in found]
        assert [entry.position for entry in batch] == list(range(position, position + len(batch)))
        return batch

    async def subscribe(self) -> Subscription:
        """For news of this log."""
        if self._id is None:
            await self.bounds()
        return self._notifications.subscribe(f"rabbitpy_log_{self._id}")

    async def _known_id(self, connection: Any) -> int:
        if self._id is None:
            self._id = await connection.fetchval("SELECT id FROM rabbitpy.log WHERE name = $1", self.name)
            if self._id is None:
                raise NoSuchLog(f"no log {self.name!r}")
        return self._id

    async def _bounds(self, connection: Any) -> tuple[int, int]:
        row = await connection.fetchrow(BOUNDS, await self._known_id(connection))
        if row is None:
            raise self._gone()
        return row["first"], row["next"]

    def _gone(self) -> NoSuchLog:
        self._id = None  # there may be another of the same name some time
        return NoSuchLog(f"no log {self.name!r}")

    # --- appends -------------------------------------------------------------------------------------------------------------

    async def _append_all(self) -> None:
        while self._waiting:
            group = self._next_group()
            try:
                start = await self.connections.run_here(partial(self._insert, group), changes=True)
            except Exception as exc:  # noqa: BLE001 -- a fault of ours too: nobody waits for ever
                for one in group:
                    if not one.position.done():
                        one.position.set_exception(exc)
            else:
                self._notifications.announce(f"rabbitpy_log_{self._id}")
                for number, one in enumerate(group):
                    if not one.position.done():
                        one.position.set_result(start + number)

    def _next_group(self) -> list[Append]:
        """Those that can be one transaction: of one term, and each expected behind the one before, or none expected anywhere."""
        group = [self._waiting.popleft()]
        size = len(group[0].block)
        while self._waiting and len(group) < GROUP_BLOCKS:
            last, one = group[-1], self._waiting[0]
            follows = one.expected is None if last.expected is None else one.expected == last.expected + 1
            size += len(one.block)
            if one.term != last.term or not follows or size > GROUP_BYTES:
                break
            group.append(self._waiting.popleft())
        return group

    async def _insert(self, group: list[Append], connection: Any) -> int:
        log = await self._known_id(connection)
        term, expected = group[0].term, group[0].expected
        if len(group) == 1:
            start = await connection.fetchval(APPEND, log, term, expected, group[0].block)
        else:
            start = await connection.fetchval(APPEND_GROUP, log, term, expected, [one.block for one in group])
        if start is not None:
            return int(start)
        row = await connection.fetchrow(REFUSED, log)
        if row is None:
            raise self._gone()
        if not row["current_setting"]:
            raise Unavailable("postgresql: synchronous_standby_names is empty on the server: set it again")
        raise Refused(row["term"], row["next"])


class PostgresReader(Reader):
    def __init__(self, log: PostgresLog, position: int) -> None:
        self.position = position
        self._log = log
        self._subscription: Subscription | None = None
        self._news: asyncio.Event | None = None  # set when there may be something that the last read did not show

    async def next(self, wait: float = 0) -> list[Entry]:
        loop = asyncio.get_running_loop()
        until = loop.time() + wait
        if self._news is not None and wait > 0:
            await wait_for_news(self._news, until)
        batch = await self._read()
        while not batch and loop.time() < until:
            if self._news is None:
                self._subscription = self._subscription or await self._log.subscribe()
            else:
                await wait_for_news(self._news, until)
            batch = await self._read()
        self.position += len(batch)
        return batch

    async def _read(self) -> list[Entry]:
        """What there is; then `_news` are of what is behind it, if all of that was shown and somebody has subscribed."""
        self._news = None
        news = await self._subscription.listen() if self._subscription is not None else None
        batch = await self._log.read(self.position)
        if len(batch) < BATCH_BLOCKS and sum(len(entry.block) for entry in batch) < BATCH_BYTES:
            self._news = news
        return batch

    async def close(self) -> None:
        if self._subscription is not None:
            subscription, self._subscription = self._subscription, None
            await subscription.close()


async def wait_for_news(news: asyncio.Event, until: float) -> None:
    """Waits until there may be news, or it is time to look without; `until` is a time of the loop."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout_at(min(until, asyncio.get_running_loop().time() + POLL)):
            await news.wait()
