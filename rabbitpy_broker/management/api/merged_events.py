r"""The event streams of several as one: of the workers of a daemon, or of the nodes of a cluster.

    source 0: snapshot, delta, delta ...  \
    source 1: snapshot, delta ...          >  rows of all; objects put together; the rest as it comes
    source 2: (down)                      /

A reader's table is told as one snapshot once all sources that run have told theirs; from then on their deltas go on as they are,
since no row belongs to two sources. The rows of a source that goes down are gone, and are added when it is back. What must stay
true: what a reader has of a table are the rows that the sources have told of, each once, also while a vhost moves from one to the
other; ids are not given, so that whoever comes back begins with a snapshot.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Final, Generic, Protocol, TypeVar

import msgspec
from aiohttp import ClientError, ClientResponse

from rabbitpy_broker.management.api.asking import NoAnswer, Reply
from rabbitpy_broker.management.api.events import (
    PART_ROWS,
    PENDING_MAX_BYTES,
    PING_S,
    RETRY_MS,
    Topic,
    event_of,
    now_ms,
)
from rabbitpy_broker.management.api.request import Row


class _Ordered(Protocol):
    def __lt__(self, other: Any, /) -> bool: ...


Source = TypeVar("Source", bound=_Ordered)  # a worker's number, a node's name
AGAIN_S: Final = 0.5  # until a source that was lost is asked again
GATHERED_S: Final = 0.1  # in which what several sources tell of an object becomes one event


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


class TableTopic(Generic[Source]):
    """One table of all sources. `awaited` are those whose snapshot the first one of the reader still waits for."""

    def __init__(self, name: str, awaited: set[Source], outlet: Outlet) -> None:
        self._name = name
        self._awaited = awaited
        self._outlet = outlet
        self._begun = False
        self._head: Row = {}
        self._parts: dict[Source, list[list[Any]]] = {}  # of a snapshot that has not come to its end
        self._rows: dict[Source, list[list[Any]]] = {}  # of snapshots that the reader has not been told
        self._late: dict[Source, list[Row]] = {}  # deltas to those
        self._keys: dict[Source, dict[tuple[Any, ...], None]] = {}  # of the rows that the reader has, by source

    def event(self, number: Source, kind: str, value: Row) -> None:
        """What a source tells of it."""
        if kind == "snapshot":
            self._snapshot(number, value)
        elif not self._begun:
            self._late.setdefault(number, []).append(value)
        else:
            self._delta(number, value)

    def lost(self, number: Source) -> None:
        """That source does not tell any more."""
        self._parts.pop(number, None)
        if not self._begun:
            self._rows.pop(number, None)
            self._late.pop(number, None)
            self._awaited.discard(number)
            self._begin()
            return
        self._tell_gone(number)

    def _snapshot(self, number: Source, value: Row) -> None:
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
                self._delta(number, value)

    def _delta(self, number: Source, value: Row) -> None:
        keys = self._keys.get(number)
        if keys is not None and value["gone"]:
            gone = [key for key in value["gone"] if _hashable(key) in keys]
            for key in gone:
                del keys[_hashable(key)]
            if gone != value["gone"]:  # the others are with another source now, which has told of them first
                value = {**value, "gone": gone}
        self._keep(number, value["added"])
        self._outlet.push(event_of("delta", msgspec.json.encode(value)))

    def _keep(self, number: Source, rows: list[list[Any]]) -> None:
        columns = self._head["columns"]
        if set(self._head["key"]) <= set(columns):
            places = [columns.index(name) for name in self._head["key"]]
            added = [_hashable([row[place] for place in places]) for row in rows]
            for other, theirs in self._keys.items():
                if other != number:
                    for key in added:
                        theirs.pop(key, None)
            self._keys.setdefault(number, {}).update(dict.fromkeys(added))

    def _tell_gone(self, number: Source) -> None:
        """A reader that has not asked for the columns that tell rows apart begins anew."""
        if not set(self._head["key"]) <= set(self._head["columns"]):
            self._outlet.close()
            return
        gone = list(self._keys.pop(number, {}))
        if gone:
            self._outlet.push(event_of("delta", msgspec.json.encode({**self._told(), "changed": [], "gone": gone, "added": []})))


def _hashable(key: list[Any]) -> tuple[Any, ...]:
    return tuple(key)


class ObjectTopic(Generic[Source]):
    """One object of all sources, put together when it is told."""

    def __init__(self, name: str, put_together: Callable[[Sequence[Row]], Row], awaited: set[Source], outlet: Outlet) -> None:
        self.is_stale = False
        self._name = name
        self._put_together = put_together
        self._awaited = awaited
        self._outlet = outlet
        self._values: dict[Source, Row] = {}
        self._last: Row | None = None

    def event(self, number: Source, kind: str, told: Row) -> None:
        """What a source tells of it."""
        value = told["value"]
        self._values[number] = value if kind == "snapshot" else {**self._values.get(number, {}), **value}
        self._awaited.discard(number)
        self.is_stale = True

    def lost(self, number: Source) -> None:
        self._values.pop(number, None)
        self._awaited.discard(number)
        self.is_stale = True

    def tell(self) -> None:
        """What has changed since the last time."""
        if self._awaited or not self._values:
            return
        self.is_stale = False
        value = self._put_together([self._values[number] for number in sorted(self._values)])
        told: Row = {"topic": self._name, "as_of": now_ms()}
        if self._last is None:
            self._outlet.push(event_of("snapshot", msgspec.json.encode({**told, "value": value})))
        else:
            changed = {key: new for key, new in value.items() if self._last.get(key) != new}
            if changed:
                self._outlet.push(event_of("delta", msgspec.json.encode({**told, "value": changed})))
        self._last = value


class Begun:
    """An answer that has begun and has no end. Whoever has it closes it, whether its parts were taken or not."""

    def parts(self) -> AsyncGenerator[bytes, None]:
        """Raises OSError, ClientError or TimeoutError when it breaks off."""
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError


class BegunReply(Begun):
    """That of another process."""

    def __init__(self, response: ClientResponse) -> None:
        self._response = response

    async def parts(self) -> AsyncGenerator[bytes, None]:
        async for part in self._response.content.iter_any():
            yield part

    def close(self) -> None:
        self._response.close()


class Sources(Generic[Source]):
    """Whose streams become one, and how."""

    objects: Mapping[str, Callable[[Sequence[Row]], Row]]  # by kind of topic: what makes one object of those of all

    def running(self) -> list[Source]:
        """Those that can be asked now."""
        raise NotImplementedError

    def topics_for(self, source: Source) -> list[str]:
        """What one is asked for, as the reader has written it."""
        raise NotImplementedError

    def places(self) -> object:
        """Where the queues are that the reader wants: when that changes, it comes back."""
        raise NotImplementedError

    async def open(self, source: Source, topics: str) -> Begun | Reply:
        """The stream of one, or what it refuses it with. Raises NoAnswer."""
        raise NotImplementedError

    def told(self, source: Source, topic: Topic, kind: str, value: Row) -> Row:
        """What a source tells of a table or an object, as the reader is told it."""
        return value

    def line_id(self, source: Source, line: Row) -> int:
        """The id of a line of the log, which no other source has."""
        return int(line["id"])


class Merged(Generic[Source]):
    """One reader's stream of what `topics` are."""

    def __init__(self, sources: Sources[Source], topics: Sequence[Topic]) -> None:
        self._sources = sources
        self._outlet = Outlet()
        self._topics = {topic.name: topic for topic in topics}
        self._tables: dict[str, TableTopic[Source]] = {}
        self._objects: dict[str, ObjectTopic[Source]] = {}
        self._first: dict[Source, Begun] = {}  # answers that have begun
        self._following: dict[Source, asyncio.Future[None]] = {}
        self._places = sources.places()

    async def begin(self, *, lenient: bool = False) -> Reply | None:
        """Opens all streams; what a source says who refuses is the answer. With `lenient` that of the first only: the others are
        asked again. Raises NoAnswer and ApiError of those that count.
        """
        opening = [source for source in self._sources.running() if self._sources.topics_for(source) or not self._topics]
        found = await asyncio.gather(*map(self._open, opening), return_exceptions=True)
        refused: list[Reply | BaseException] = []
        for number, (source, one) in enumerate(zip(opening, found, strict=True)):
            if isinstance(one, Begun):
                self._first[source] = one
            elif number == 0 or not lenient:
                refused.append(one)
        if refused:
            self.end()
            if isinstance(refused[0], BaseException):
                raise refused[0]
            return refused[0]
        asked = set(self._first)
        for name, topic in self._topics.items():
            if topic.kind == "table":
                self._tables[name] = TableTopic(name, set(asked), self._outlet)
            elif topic.kind in self._sources.objects:
                awaited = {source for source in asked if name in self._sources.topics_for(source)}
                self._objects[name] = ObjectTopic(name, self._sources.objects[topic.kind], awaited, self._outlet)
        return None

    def end(self) -> None:
        for one in self._first.values():
            one.close()
        self._first.clear()

    async def _open(self, source: Source) -> Begun | Reply:
        return await self._sources.open(source, ",".join(self._sources.topics_for(source)))

    async def stream(self) -> AsyncGenerator[bytes | None, None]:
        """What the reader is sent."""
        telling = asyncio.ensure_future(self._tell_objects())
        try:
            yield b"retry: %d\n\n" % RETRY_MS
            while True:
                yield await self._outlet.take()
                if self._outlet.is_over:
                    return
        finally:
            tasks = [telling, *self._following.values()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self.end()

    async def _tell_objects(self) -> None:
        while True:
            running = self._sources.running()
            for source in running:
                if source not in self._following:
                    self._following[source] = asyncio.ensure_future(self._follow(source))
            for source in [one for one in self._following if one not in running]:
                self._following.pop(source).cancel()
            for topic in self._objects.values():
                if topic.is_stale:
                    topic.tell()
            if self._sources.places() != self._places:  # the reader comes back, and is told by the new ones
                self._outlet.close()
            await asyncio.sleep(GATHERED_S)

    async def _follow(self, source: Source) -> None:
        """One's stream, and the next one when it has ended, as long as the reader is there."""
        while not self._outlet.is_over:
            begun = self._first.pop(source, None) or await self._opened(source)
            if begun is not None:
                try:
                    async with aclosing(_events(begun)) as events:
                        async for kind, data in events:
                            self._event(source, kind, data)
                except (OSError, ClientError, TimeoutError):
                    pass  # it is asked again
                finally:
                    begun.close()
                    topics: list[TableTopic[Source] | ObjectTopic[Source]] = [*self._tables.values(), *self._objects.values()]
                    for topic in topics:
                        topic.lost(source)
            await asyncio.sleep(AGAIN_S)

    async def _opened(self, source: Source) -> Begun | None:
        """The stream of one that runs again; None as long as there is none."""
        if not self._sources.topics_for(source):
            return None
        try:
            found = await self._open(source)
        except NoAnswer:
            return None
        if isinstance(found, Begun):
            return found
        if found.status == 401:
            self._outlet.push(event_of("end", b'{"reason":"the session is over"}'))
            self._outlet.close()
        return None

    def _event(self, source: Source, kind: str, data: bytes) -> None:
        if kind == "end":
            self._outlet.push(event_of(kind, data))
            self._outlet.close()
            return
        if kind == "log":
            value = msgspec.json.decode(data)
            for line in value["lines"]:
                line["id"] = self._sources.line_id(source, line)
            self._outlet.push(event_of(kind, msgspec.json.encode(value)))
            return
        name = msgspec.json.decode(data, type=_Named).topic
        topic = self._tables.get(name) or self._objects.get(name)
        if topic is None:
            self._outlet.push(event_of(kind, data))
        else:
            topic.event(source, kind, self._sources.told(source, self._topics[name], kind, msgspec.json.decode(data)))


class _Named(msgspec.Struct):
    topic: str


async def _events(begun: Begun) -> AsyncGenerator[tuple[str, bytes], None]:
    """Kind and data of each; those without either are left out."""
    rest = b""
    async with aclosing(begun.parts()) as parts:
        async for part in parts:
            *whole, rest = (rest + part).split(b"\n\n")
            for event in whole:
                fields = dict(line.split(b": ", 1) for line in event.split(b"\n") if b": " in line and not line.startswith(b":"))
                if b"event" in fields:
                    yield fields[b"event"].decode(), fields.get(b"data", b"")
