"""The registry's table on Kafka: a state machine over one log, which every engine reads and applies by the same rule.

A change is an entry that names the version it expects. Whether it happens is decided by what stands before it in the log, so
everybody decides alike, and who proposed it learns it by reading its own entry. The version of a name is the position of the
entry that changed it, and one. Who wants to read appends a mark and waits until it is read: then all that returned before is
there.

A compacted topic would not do: compaction keeps the last record of a key, also one that was refused, and drops the one that
counted. Instead a snapshot of the table is appended when enough has changed, expected at exactly the position up to which it
holds, and the log is trimmed before it. A misplaced one is passed over. So a log that was trimmed begins with a snapshot, or
before one.

Leases are entries too. They end by the clock of whoever reads, counted from the reading: who has just begun takes a node for
alive for at most one lease too long.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

from rabbitpy_broker.cluster.kafka.blocks import KafkaLog
from rabbitpy_broker.cluster.kafka.connections import Brokers
from rabbitpy_broker.cluster.log import ClusterError, Entry, OutcomeUnknown, Trimmed, Unavailable
from rabbitpy_broker.cluster.registry import Conflict, Versioned

logger = logging.getLogger(__name__)

SNAPSHOT_EVERY: Final = 1000  # entries
PAUSE: Final = 0.5  # seconds after the log could not be read

Lease = tuple[float, bytes]  # when it ends by our clock, and its info


def encode(header: dict[str, Any], body: bytes = b"") -> bytes:
    return json.dumps(header, separators=(",", ":")).encode() + b"\n" + body


def decode(block: bytes) -> tuple[dict[str, Any], bytes]:
    header, _, body = block.partition(b"\n")
    return json.loads(header), body


class State:
    """The table at one position of the log. `position` is that of the next entry, `snapshot` that of the last snapshot."""

    def __init__(self, first: int) -> None:
        self.position = first
        self.snapshot = 0
        self.names: dict[str, Versioned] = {}
        self.leases: dict[str, Lease] = {}
        self.whole = first == 0  # else what stands before the next snapshot says nothing

    def apply(self, entry: Entry, now: float) -> tuple[str, int | Conflict] | None:
        """Applies the next entry, and returns its token and what became of it, if it was proposed by somebody."""
        self.position = entry.position + 1
        if entry.misplaced:
            return None
        header, body = decode(entry.block)
        kind = header["kind"]
        if kind == "snapshot":
            self._load(header, body, now)
            self.snapshot = entry.position
            return None
        if not self.whole:
            return None
        outcome: int | Conflict = self.position
        if kind in ("put", "delete"):
            outcome = self._change(header["name"], header["expected"], body if kind == "put" else None)
        elif kind == "lease":
            self.leases[header["name"]] = (now + header["ttl"], body)
        elif kind == "leave":
            self.leases.pop(header["name"], None)
        return header["token"], outcome

    def _change(self, name: str, expected: int | None, value: bytes | None) -> int | Conflict:
        there = self.names.get(name)
        version = there.version if there is not None else 0
        if expected is not None and expected != version:
            return Conflict(name, version)
        if value is None:
            self.names.pop(name, None)
        else:
            self.names[name] = Versioned(value, self.position)
        return self.position

    def encoded(self, now: float) -> bytes:
        leases = {node: lease for node, lease in self.leases.items() if lease[0] > now}
        header = {
            "kind": "snapshot",
            "names": [[name, one.version, len(one.value)] for name, one in self.names.items()],
            "leases": [[node, ends - now, len(info)] for node, (ends, info) in leases.items()],
        }
        return encode(header, b"".join([*(one.value for one in self.names.values()), *(info for _, info in leases.values())]))

    def _load(self, header: dict[str, Any], body: bytes, now: float) -> None:
        if self.whole:  # then it says nothing new
            return
        begin = 0
        for name, version, size in header["names"]:
            self.names[name] = Versioned(body[begin : begin + size], version)
            begin += size
        for node, left, size in header["leases"]:
            self.leases[node] = (now + left, body[begin : begin + size])
            begin += size
        self.whole = True


class Table:
    """One engine's copy of the table, which follows the log from `start` on."""

    def __init__(self, log: KafkaLog, brokers: Brokers) -> None:
        self._log = log
        self._brokers = brokers
        self._timeout = brokers.settings.timeout
        self.state = State(0)
        self.trouble: ClusterError | None = None  # why the log cannot be read at the moment
        self._proposed: dict[str, asyncio.Future[int | Conflict]] = {}
        self._news: asyncio.Future[None] | None = None
        self._snapshotting: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._brokers.spawn(self._follow())

    async def propose(self, kind: str, name: str = "", body: bytes = b"", **fields: Any) -> int:
        """Appends a change and returns the version that it made, when it has been read.

        Raises `Conflict`, `Unavailable`, `OutcomeUnknown`.
        """
        token = uuid.uuid4().hex
        outcome: asyncio.Future[int | Conflict] = asyncio.get_running_loop().create_future()
        self._proposed[token] = outcome
        try:
            await self._log.append(encode({"kind": kind, "token": token, "name": name, **fields}, body), term=0)
            async with asyncio.timeout(self._timeout):
                result = await outcome
        except OutcomeUnknown:
            if not outcome.done():
                raise
            result = outcome.result()
        except TimeoutError:
            raise OutcomeUnknown(f"kafka: the registry's log cannot be read: {self.trouble}") from None
        finally:
            del self._proposed[token]
        if isinstance(result, Conflict):
            raise result
        self._snapshot_if_due()
        return result

    async def mark(self) -> State:
        """The table with all that has returned before. Raises `Unavailable`."""
        try:
            await self.propose("mark")
        except OutcomeUnknown as exc:
            raise Unavailable(str(exc)) from exc
        return self.state

    async def catch_up(self) -> State:
        """The table as the leader of its log tells it: enough for leases. Raises `Unavailable`."""
        end = await self._log.leaders_end()
        try:
            async with asyncio.timeout(self._timeout):
                while self.state.position < end:
                    await self.wait_for_news(self._timeout)
        except TimeoutError:
            raise Unavailable(f"kafka: the registry's log cannot be read: {self.trouble}") from None
        return self.state

    async def wait_for_news(self, wait: float) -> None:
        """Returns when entries were read, or after so many seconds."""
        if self._news is None or self._news.done():
            self._news = asyncio.get_running_loop().create_future()
        await asyncio.wait({self._news}, timeout=wait)

    async def _follow(self) -> None:
        while True:
            try:
                async with self._reading() as reader:
                    self.trouble = None
                    while True:
                        self._apply(await reader.next(wait=self._timeout))
                        self.trouble = None
            except Trimmed:
                self.state = State(-1)  # it has fallen behind, and begins anew
            except ClusterError as exc:
                self.trouble = exc
                logger.warning("kafka: the registry's log cannot be read: %s", exc)
                await asyncio.sleep(PAUSE)

    @asynccontextmanager
    async def _reading(self) -> AsyncIterator[Any]:
        if not self.state.whole or self.state.position == 0:
            self.state = State(await self._log.first())
        reader = self._log.reader(self.state.position)
        try:
            yield reader
        finally:
            await reader.close()

    def _apply(self, entries: list[Entry]) -> None:
        now = time.monotonic()
        for entry in entries:
            told = self.state.apply(entry, now)
            if told is not None and (outcome := self._proposed.get(told[0])) is not None and not outcome.done():
                outcome.set_result(told[1])
        if entries and self._news is not None and not self._news.done():
            self._news.set_result(None)

    def _snapshot_if_due(self) -> None:
        due = self.state.position - self.state.snapshot >= SNAPSHOT_EVERY
        if due and (self._snapshotting is None or self._snapshotting.done()):
            self._snapshotting = self._brokers.spawn(self._snapshot())

    async def _snapshot(self) -> None:
        """Appends a snapshot and trims before it. If another's entry came in between, the next change tries again."""
        try:
            block = self.state.encoded(time.monotonic())
            position = await self._log.append(block, term=0, expected=self.state.position)
            await self._log.trim(position)
        except ClusterError as exc:
            logger.info("kafka: no snapshot of the registry this time: %s", exc)
