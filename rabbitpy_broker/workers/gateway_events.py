r"""/events of the whole daemon: the event streams of all workers as one.

    worker 0: snapshot, delta, delta ...  \
    worker 1: snapshot, delta ...          >  rows of all workers; objects added up; the rest as it comes
    worker 2: (down)                      /

A reader's table is told as one snapshot once all workers that run have told theirs; from then on their deltas go on as they are,
since no row belongs to two workers. The rows of a worker that goes down are gone, and are added when it is back. What must stay
true: what a reader has of a table are the rows that the workers have told of, each once, also while a vhost moves from one to the
other; ids are not given, so that whoever comes back begins with a snapshot.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any, Final
from urllib.parse import quote

import msgspec
from aiohttp import ClientError

from rabbitpy_broker.management.api.asking import NoAnswer, Reply
from rabbitpy_broker.management.api.events import (
    PART_ROWS,
    PENDING_MAX_BYTES,
    PING_S,
    RETRY_MS,
    event_of,
    now_ms,
    topic_of,
)
from rabbitpy_broker.management.api.merging import added_up, line_id, one_alarms, one_overview
from rabbitpy_broker.management.api.request import Row, Stream
from rabbitpy_broker.workers.fleet import Member
from rabbitpy_broker.workers.gateway_front import Asked, Front, kept_headers

AGAIN_S: Final = 0.5  # until a worker that was lost is asked again
GATHERED_S: Final = 0.1  # in which what several workers tell of an object becomes one event
OBJECTS: Final = {"overview": one_overview, "alarms": one_alarms, "nodes": added_up}


class Outlet:
    """What waits for a reader to take it."""

    def __init__(self) -> None:
        self.is_over = False
        self._waiting: list[bytes] = []
        self._size = 0
        self._woken = asyncio.Event()

    def push(self, event: bytes) -> None:
        """Has an event wait. A reader that does not take them is let go, and comes back to a snapshot."""
        if self._size > PENDING_MAX_BYTES:
            self.close()
            return
        self._waiting.append(event)
        self._size += len(event)
        self._woken.set()

    def close(self) -> None:
        self.is_over = True
        self._woken.set()

    async def take(self) -> bytes:
        """What waits, or a sign of life when nothing has for PING_S."""
        if not self._waiting and not self.is_over:
            try:
                async with asyncio.timeout(PING_S):
                    await self._woken.wait()
            except TimeoutError:
                return b": ping\n\n"
        taken = b"".join(self._waiting)
        self._waiting, self._size = [], 0
        self._woken.clear()
        return taken


class TableTopic:
    """One table of all workers. `awaited` are those whose snapshot the first one of the reader still waits for."""

    def __init__(self, name: str, awaited: set[int], outlet: Outlet) -> None:
        self._name = name
        self._awaited = awaited
        self._outlet = outlet
        self._begun = False
        self._head: Row = {}
        self._parts: dict[int, list[list[Any]]] = {}  # of a snapshot that has not come to its end
        self._rows: dict[int, list[list[Any]]] = {}  # of snapshots that the reader has not been told
        self._late: dict[int, list[Row]] = {}  # deltas to those
        self._keys: dict[int, dict[tuple[Any, ...], None]] = {}  # of the rows that the reader has, by worker

    def event(self, number: int, kind: str, data: bytes) -> None:
        value = msgspec.json.decode(data)
        if kind == "snapshot":
            self._snapshot(number, value)
        elif not self._begun:
            self._late.setdefault(number, []).append(value)
        else:
            self._delta(number, value, event_of(kind, data))

    def lost(self, number: int) -> None:
        """That worker does not tell any more."""
        self._parts.pop(number, None)
        if not self._begun:
            self._rows.pop(number, None)
            self._late.pop(number, None)
            self._awaited.discard(number)
            self._begin()
            return
        self._tell_gone(number)

    def _snapshot(self, number: int, value: Row) -> None:
        parts = self._parts[number] = [] if value["part"] == 0 else self._parts.get(number, [])
        parts += value["rows"]
        if not value["done"]:
            return
        self._head = {key: value[key] for key in ("topic", "key", "columns")}
        rows = self._parts.pop(number)
        if not self._begun:
            self._rows[number] = rows
            self._awaited.discard(number)
            self._begin()
            return
        self._tell_gone(number)
        self._keep(number, rows)
        if rows:
            self._outlet.push(event_of("delta", msgspec.json.encode({**self._told(), "changed": [], "gone": [], "added": rows})))

    def _told(self) -> Row:
        return {"topic": self._name, "as_of": now_ms()}

    def _begin(self) -> None:
        """Tells the reader the rows of all, once all have told theirs."""
        if self._awaited or not self._head:
            return
        self._begun = True
        rows = [row for number in sorted(self._rows) for row in self._rows[number]]
        for number, theirs in self._rows.items():
            self._keep(number, theirs)
        self._rows = {}
        pieces = [rows[start : start + PART_ROWS] for start in range(0, len(rows), PART_ROWS)] or [[]]
        for part, piece in enumerate(pieces):
            told = {**self._head, "as_of": now_ms(), "part": part, "done": part == len(pieces) - 1, "rows": piece}
            self._outlet.push(event_of("snapshot", msgspec.json.encode(told)))
        late, self._late = self._late, {}
        for number, values in late.items():
            for value in values:
                self._delta(number, value, event_of("delta", msgspec.json.encode(value)))

    def _delta(self, number: int, value: Row, event: bytes) -> None:
        keys = self._keys.get(number)
        if keys is not None and value["gone"]:
            gone = [key for key in value["gone"] if _hashable(key) in keys]
            for key in gone:
                del keys[_hashable(key)]
            if gone != value["gone"]:  # the others are with another worker now, which has told of them first
                event = event_of("delta", msgspec.json.encode({**value, "gone": gone}))
        self._keep(number, value["added"])
        self._outlet.push(event)

    def _keep(self, number: int, rows: list[list[Any]]) -> None:
        columns = self._head["columns"]
        if set(self._head["key"]) <= set(columns):
            places = [columns.index(name) for name in self._head["key"]]
            added = [_hashable([row[place] for place in places]) for row in rows]
            for other, theirs in self._keys.items():
                if other != number:
                    for key in added:
                        theirs.pop(key, None)
            self._keys.setdefault(number, {}).update(dict.fromkeys(added))

    def _tell_gone(self, number: int) -> None:
        """A reader that has not asked for the columns that tell rows apart begins anew."""
        if not set(self._head["key"]) <= set(self._head["columns"]):
            self._outlet.close()
            return
        gone = list(self._keys.pop(number, {}))
        if gone:
            self._outlet.push(event_of("delta", msgspec.json.encode({**self._told(), "changed": [], "gone": gone, "added": []})))


def _hashable(key: list[Any]) -> tuple[Any, ...]:
    return tuple(key)


class ObjectTopic:
    """One object of all workers, added up when it is told."""

    def __init__(self, name: str, kind: str, awaited: set[int], outlet: Outlet) -> None:
        self.is_stale = False
        self._name = name
        self._sum = OBJECTS[kind]
        self._awaited = awaited
        self._outlet = outlet
        self._values: dict[int, Row] = {}
        self._last: Row | None = None

    def event(self, number: int, kind: str, data: bytes) -> None:
        value = msgspec.json.decode(data)["value"]
        self._values[number] = value if kind == "snapshot" else {**self._values.get(number, {}), **value}
        self._awaited.discard(number)
        self.is_stale = True

    def lost(self, number: int) -> None:
        self._values.pop(number, None)
        self._awaited.discard(number)
        self.is_stale = True

    def tell(self) -> None:
        """What has changed since the last time."""
        if self._awaited or not self._values:
            return
        self.is_stale = False
        value = self._sum([self._values[number] for number in sorted(self._values)])
        told: Row = {"topic": self._name, "as_of": now_ms()}
        if self._last is None:
            self._outlet.push(event_of("snapshot", msgspec.json.encode({**told, "value": value})))
        else:
            changed = {key: new for key, new in value.items() if self._last.get(key) != new}
            if changed:
                self._outlet.push(event_of("delta", msgspec.json.encode({**told, "value": changed})))
        self._last = value


class Merged:
    """One reader's stream."""

    def __init__(self, front: Front, asked: Asked) -> None:
        self._front = front
        self._asked = asked
        self._outlet = Outlet()
        self._topics = [topic_of(text) for text in asked.query.get("topics", "").split(",") if text]
        self._tables: dict[str, TableTopic] = {}
        self._objects: dict[str, ObjectTopic] = {}
        self._first: dict[int, Any] = {}  # answers that have begun
        self._owners = self._queue_owners()

    def _queue_owners(self) -> list[int | None]:
        placed = self._front.fleet.placed()
        return [placed.get(topic.of[0]) for topic in self._topics if topic.kind == "queue" and topic.of]

    def topics_for(self, member: Member) -> str:
        """What a worker is asked for: a queue only the one that has its vhost."""
        placed = self._front.fleet.placed()
        first = min((each.number for each in self._front.fleet.members() if each.ready), default=-1)
        return ",".join(
            topic.name
            for topic in self._topics
            if topic.kind != "queue" or placed.get(topic.of[0] if topic.of else "", first) == member.number
        )

    async def begin(self) -> Reply | None:
        """Opens all streams; what a worker says who refuses is the answer. Raises ApiError 503 and NoAnswer."""
        for member in self._front.ready():
            if not self.topics_for(member) and self._topics:
                continue
            response = await self._open(member)
            if response.status != 200:
                reply = Reply(response.status, response.headers, await response.read())
                await self.end()
                return reply
            self._first[member.number] = response
            self._asked.base = kept_headers(response.headers)
        asked = set(self._first)
        for topic in self._topics:
            if topic.kind == "table":
                self._tables[topic.name] = TableTopic(topic.name, set(asked), self._outlet)
            elif topic.kind in OBJECTS:
                self._objects[topic.name] = ObjectTopic(topic.name, topic.kind, set(asked), self._outlet)
        return None

    async def end(self) -> None:
        for response in self._first.values():
            response.close()
        self._first.clear()

    async def _open(self, member: Member) -> Any:
        path = f"events?topics={quote(self.topics_for(member), safe='')}"
        return await self._front.open(self._asked, member, path)

    async def stream(self) -> AsyncGenerator[bytes | None, None]:
        """What the reader is sent."""
        tasks = [asyncio.ensure_future(self._follow(member.number)) for member in self._front.fleet.members()]
        tasks.append(asyncio.ensure_future(self._tell_objects()))
        try:
            yield b"retry: %d\n\n" % RETRY_MS
            while True:
                yield await self._outlet.take()
                if self._outlet.is_over:
                    return
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self.end()

    async def _tell_objects(self) -> None:
        while True:
            await asyncio.sleep(GATHERED_S)
            for topic in self._objects.values():
                if topic.is_stale:
                    topic.tell()
            if self._queue_owners() != self._owners:  # the reader comes back, and is told by the new ones
                self._outlet.close()

    async def _follow(self, number: int) -> None:
        """One worker's stream, and the next one when it has ended, as long as the reader is there."""
        while not self._outlet.is_over:
            response = self._first.pop(number, None) or await self._opened(number)
            if response is not None:
                try:
                    async for kind, data in _events(response):
                        self._event(number, kind, data)
                except (OSError, ClientError, TimeoutError):
                    pass  # it is asked again
                finally:
                    response.close()
                topics: list[TableTopic | ObjectTopic] = [*self._tables.values(), *self._objects.values()]
                for topic in topics:
                    topic.lost(number)
            await asyncio.sleep(AGAIN_S)

    async def _opened(self, number: int) -> Any:
        """The stream of a worker that runs again; None as long as there is none."""
        member = next(each for each in self._front.fleet.members() if each.number == number)
        if not member.ready or not self.topics_for(member):
            return None
        try:
            response = await self._open(member)
        except NoAnswer:
            return None
        if response.status != 200:
            response.close()
            if response.status == 401:
                self._outlet.push(event_of("end", b'{"reason":"the session is over"}'))
                self._outlet.close()
            return None
        return response

    def _event(self, number: int, kind: str, data: bytes) -> None:
        if kind == "end":
            self._outlet.push(event_of(kind, data))
            self._outlet.close()
            return
        if kind == "log":
            value = msgspec.json.decode(data)
            for line in value["lines"]:
                line["id"] = line_id(number, line)
            self._outlet.push(event_of(kind, msgspec.json.encode(value)))
            return
        name = msgspec.json.decode(data, type=_Named).topic
        topic = self._tables.get(name) or self._objects.get(name)
        if topic is not None:
            topic.event(number, kind, data)
        else:
            self._outlet.push(event_of(kind, data))


class _Named(msgspec.Struct):
    topic: str


async def _events(response: Any) -> AsyncIterator[tuple[str, bytes]]:
    """Kind and data of each; those without either are left out."""
    rest = b""
    async for part in response.content.iter_any():
        *whole, rest = (rest + part).split(b"\n\n")
        for event in whole:
            fields = dict(line.split(b": ", 1) for line in event.split(b"\n") if b": " in line and not line.startswith(b":"))
            if b"event" in fields:
                yield fields[b"event"].decode(), fields.get(b"data", b"")


async def subscribe(front: Front, asked: Asked) -> Stream | Reply:
    """The stream of what a reader's topics are, of all workers. Raises ApiError 503 and NoAnswer."""
    merged = Merged(front, asked)
    refused = await merged.begin()
    if refused is not None:
        return refused
    return Stream("text/event-stream", merged.stream(), dict(asked.base))
