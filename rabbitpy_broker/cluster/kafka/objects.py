"""Large objects on Kafka: each is a topic of its own, and the registry's table says which topic has a name.

So a new one replaces the old one in one step, nobody sees a part of one, and deleting the topic gives its space back at once. In
one compacted topic the space would come back when the cleaner gets to it, and who wants one object would read all.
"""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections.abc import AsyncIterable, AsyncIterator
from typing import Final, Protocol

from rabbitpy_broker.cluster.kafka.blocks import KafkaLog
from rabbitpy_broker.cluster.kafka.connections import Brokers
from rabbitpy_broker.cluster.kafka.table import Table
from rabbitpy_broker.cluster.log import (
    NoSuchLog,
    NoSuchObject,
    ObjectInfo,
    ObjectStore,
    OutcomeUnknown,
    Trimmed,
)
from rabbitpy_broker.cluster.registry import Conflict, Versioned

SPACE: Final = "object/"
PART: Final = 1 << 20  # bytes
UNDER_WAY: Final = 8  # parts
ORPHAN_AFTER: Final = 24 * 3600.0  # seconds; nobody writes one object for so long


class TopicMaker(Protocol):
    async def create(self, topic: str) -> None: ...
    async def delete(self, topic: str) -> None: ...
    async def list(self, prefix: str) -> dict[str, int]: ...


class KafkaObjects(ObjectStore):
    def __init__(self, brokers: Brokers, topics: TopicMaker, table: Table, prefix: str) -> None:
        self._brokers = brokers
        self._topics = topics
        self._table = table
        self._prefix = prefix

    async def put(self, name: str, parts: AsyncIterable[bytes]) -> int:
        await self._remove_orphans()
        topic = f"{self._prefix}{int(time.time())}-{uuid.uuid4().hex}"
        await self._topics.create(topic)
        try:
            size, count = await self._write(KafkaLog(self._brokers, name, topic), parts)
            former = await self._name(name, json.dumps({"topic": topic, "size": size, "parts": count}).encode())
        except OutcomeUnknown:
            raise  # if the topic has no name in the end, it is an orphan
        except BaseException:
            await self._topics.delete(topic)
            raise
        if former is not None:
            await self._topics.delete(json.loads(former.value)["topic"])
        return size

    async def get(self, name: str) -> AsyncIterator[bytes]:
        found = (await self._table.mark()).names.get(SPACE + name)
        if found is None:
            raise NoSuchObject(f"no object {name!r}")
        told = json.loads(found.value)
        reader = KafkaLog(self._brokers, name, told["topic"]).reader(0)
        try:
            async for entry in reader.entries(up_to=told["parts"]):
                yield entry.block
        except (NoSuchLog, Trimmed) as exc:
            raise NoSuchObject(f"object {name!r} was replaced or deleted") from exc
        finally:
            await reader.close()

    async def list(self, prefix: str = "") -> list[ObjectInfo]:
        names = (await self._table.mark()).names
        return sorted(
            ObjectInfo(name.removeprefix(SPACE), json.loads(one.value)["size"])
            for name, one in names.items()
            if name.startswith(SPACE + prefix)
        )

    async def delete(self, name: str) -> None:
        former = await self._name(name, None)
        if former is not None:
            await self._topics.delete(json.loads(former.value)["topic"])

    async def _write(self, log: KafkaLog, parts: AsyncIterable[bytes]) -> tuple[int, int]:
        """Appends the parts and returns how many bytes and entries they are."""
        size = count = 0
        under_way: list[asyncio.Future[int]] = []
        rest = bytearray()

        async def add(part: bytes) -> None:
            under_way.append(log.append(part, term=0, expected=count))
            if len(under_way) >= UNDER_WAY:
                await under_way.pop(0)

        async for given in parts:
            size += len(given)
            rest += given
            while len(rest) >= PART:
                await add(bytes(rest[:PART]))
                count += 1
                del rest[:PART]
        if rest:
            await add(bytes(rest))
            count += 1
        for append in under_way:
            await append
        return size, count

    async def _name(self, name: str, value: bytes | None) -> Versioned | None:
        """Gives the name another value, or none, and returns what it had."""
        while True:
            former = (await self._table.mark()).names.get(SPACE + name)
            if former is None and value is None:
                return None
            try:
                await self._table.propose(
                    "delete" if value is None else "put", SPACE + name, value or b"", expected=former.version if former else 0
                )
            except Conflict:
                continue
            return former

    async def _remove_orphans(self) -> None:
        """Removes the topics of objects that were never finished, by a node that has ended."""
        old = [topic for topic in await self._topics.list(self._prefix) if self._age(topic) > ORPHAN_AFTER]
        if not old:
            return
        names = (await self._table.mark()).names
        named = {json.loads(one.value)["topic"] for name, one in names.items() if name.startswith(SPACE)}
        for topic in set(old) - named:
            await self._topics.delete(topic)

    def _age(self, topic: str) -> float:
        return time.time() - int(topic.removeprefix(self._prefix).partition("-")[0])
