"""/events: what has changed, told to pages in browsers as server-sent events, each second.

    tick -> trackers find what changed in the tables that somebody watches -> each view is encoded once -> its readers' queues

An id is `BOOT-TICK`: a browser that comes back with the last one that it saw gets what has changed since, if this is the same
broker and still knows; so does a page that opens another stream, for the topics that it names in `known`, with the id in `since`.
What must stay true: a reader gets each table as a snapshot or a delta to what it has, and every delta
after it, in order; one that does not take what it gets is let go; nobody is told what lists would not show it.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import deque
from collections.abc import AsyncGenerator, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import parse_qsl, unquote

import msgspec

from rabbitpy_broker.management.api.auth import may_enter
from rabbitpy_broker.management.api.errors import ApiError, bad_request, not_authorised
from rabbitpy_broker.management.api.internals import internals
from rabbitpy_broker.management.api.live_cells import QUEUES, changed_values
from rabbitpy_broker.management.api.overview import figures_row, overview_value
from rabbitpy_broker.management.api.packed_parts import SHARED_FROM_BYTES
from rabbitpy_broker.management.api.request import Request, Row, Stream, whole
from rabbitpy_broker.management.api.state import Api, Events
from rabbitpy_broker.management.api.stream import stream_row
from rabbitpy_broker.management.api.tables import LIVE, View, queue_cells, view
from rabbitpy_broker.management.api.tracker import Changes, Tracker
from rabbitpy_broker.questions import AnswerAwaited
from rabbitpy_broker.queues.stream_queue import StreamQueue
from rabbitpy_broker.slices import slices

PING_S: Final = 15.0
RETRY_MS: Final = 2_000
READERS_MAX: Final = 200
PENDING_MAX_BYTES: Final = 33_554_432  # for one reader
TOPICS_MAX: Final = 20
TAKEN_MAX_BYTES: Final = 262_144  # at once
DELTA_ROWS: Final = 1_000
TOGETHER: Final = 50  # changed rows in one step
PART_ROWS: Final = 1_000  # of a snapshot
KEPT_S: Final = 60.0  # that a table which nobody watches is remembered
FIRST_LINES: Final = 100  # of the log
UNTOLD: Final[Row] = {}  # an object of which a reader has not been told yet


@dataclass(frozen=True)
class Topic:
    """What a reader wants: `name` as it has written it, `kind` and what is behind it."""

    name: str
    kind: str
    of: tuple[str, ...] = ()
    choices: tuple[tuple[str, str], ...] = ()


class Reader:
    """One stream: what it wants, what it was told, and what waits for it to be taken."""

    def __init__(self, request: Request, topics: list[Topic]) -> None:
        self.request = request
        self.topics = topics
        self.views: dict[Topic, View] = {}
        self.values: dict[Topic, Row | None] = {}  # of objects, as they were told last
        self.line_id = 0  # of the log
        self.ended = False
        self.password_hash = request.user.password_hash
        self.tags = request.user.tags
        self._waiting: deque[bytes] = deque()
        self._size = 0
        self._taken = 0  # bytes, since others had their turn: what is taken in one turn of the loop goes out in one write
        self._woken = asyncio.Event()

    def push(self, event: bytes) -> None:
        """Has an event wait for the reader."""
        if self._size > PENDING_MAX_BYTES:
            self.end("the events are not taken")
            return
        self._waiting.append(event)
        self._size += len(event)
        self._woken.set()

    def end(self, reason: str) -> None:
        """The last that it is told."""
        self.ended = True
        self._waiting.append(b"event: end\ndata: " + msgspec.json.encode({"reason": reason}) + b"\n\n")
        self._woken.set()

    @property
    def has_news(self) -> bool:
        """Whether anything waits for it."""
        return bool(self._waiting)

    async def take(self) -> bytes:
        """What waits, or some of it; or a sign of life when nothing has for PING_S. A long event comes alone: all readers who are
        told it are given the same object, which is compressed once.
        """
        if not self._waiting:
            try:
                async with asyncio.timeout(PING_S):
                    await self._woken.wait()
                self._taken = 0
            except TimeoutError:
                return b": ping\n\n"
        taken = [self._waiting.popleft()]
        size = len(taken[0])
        if size < SHARED_FROM_BYTES:
            while self._waiting and len(self._waiting[0]) < SHARED_FROM_BYTES and size < TAKEN_MAX_BYTES:
                taken.append(self._waiting.popleft())
                size += len(taken[-1])
        self._size -= size
        self._taken += size
        if not self._waiting:
            self._woken.clear()
        elif self._taken >= TAKEN_MAX_BYTES:  # there may be many MB of it
            self._taken = 0
            await asyncio.sleep(0)
        return taken[0] if len(taken) == 1 else b"".join(taken)


class Hub(Events):
    """All readers of one broker, and the tables that they share."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._boot = secrets.token_hex(4)
        self._tick = 0
        self._readers: set[Reader] = set()
        self._trackers: dict[str, Tracker] = {}
        self._unwatched: dict[str, float] = {}  # kind -> since when nobody watches it
        self._lock = asyncio.Lock()

    def subscribe(self, request: Request) -> Stream:
        topics = [topic_of(text) for text in request.query.get("topics", "").split(",") if text]
        if not topics or len(topics) > TOPICS_MAX:
            raise bad_request(f"topics must name from 1 to {TOPICS_MAX}")
        reader = Reader(request, topics)
        for topic in topics:
            self._check(reader, topic)
        if len(self._readers) >= READERS_MAX:
            raise ApiError(503, "service_unavailable", "too many streams", {"Retry-After": "10"})
        return Stream("text/event-stream", self._stream(reader), is_shared=True)

    async def _stream(self, reader: Reader) -> AsyncGenerator[bytes | None, None]:
        self._readers.add(reader)
        self._api.sampler.watchers += 1
        try:
            yield b"retry: %d\n\n" % RETRY_MS
            async with self._lock:
                await self._begin(reader)
            while True:
                yield await reader.take()
                if reader.ended and not reader.has_news:
                    return
        finally:
            self._api.sampler.watchers -= 1
            self._readers.discard(reader)

    # -- topics ------------------------------------------------------------------------------------------------------

    def _check(self, reader: Reader, topic: Topic) -> None:
        """Raises ApiError for a topic that there is not, or that is not for this user."""
        request = reader.request
        if topic.kind == "table":
            reader.views[topic] = self._view(reader, topic)
        elif topic.kind == "queue":
            if len(topic.of) != 2:
                raise bad_request("a queue is queue:VHOST/NAME")
            if not may_enter(request.user, topic.of[0]) and not request.is_administrator:
                raise not_authorised("User not authorised to access virtual host")
        elif topic.kind == "nodes" and not request.is_monitor:
            raise not_authorised("Not monitor user")
        elif topic.kind == "log" and not request.is_administrator:
            raise not_authorised("Not administrator user")
        elif topic.kind not in ("overview", "alarms", "nodes", "log"):
            raise bad_request(f"there is no topic {topic.kind}")

    def _view(self, reader: Reader, topic: Topic) -> View:
        if len(topic.of) != 1 or topic.of[0] not in LIVE:
            raise bad_request(f"a table is table:KIND, one of {', '.join(LIVE)}")
        choices = dict(topic.choices)
        return view(self._api, reader.request, topic.of[0], choices.get("vhost"), choices.get("columns"))

    def _view_now(self, reader: Reader, topic: Topic) -> View:
        """The same later on; what it was, while who decides what the user may do is being asked."""
        try:
            return self._view(reader, topic)
        except AnswerAwaited:
            return reader.views[topic]

    def _value(self, reader: Reader, topic: Topic) -> Row | None:
        """What an object is now; None for one that there is not, or that the user may not see any more."""
        request = reader.request
        if topic.kind == "overview":
            return overview_value(self._api, request)
        if topic.kind == "alarms":
            reason = self._api.broker.node.blocked
            found = [{"resource": name, "reason": reason} for name in sorted(self._api.broker.alarms.active)]
            held = self._api.broker.alarms.held.items()
            return {"alarms": found + [{"resource": f"log of vhost '{name}'", "reason": why} for name, why in held]}
        if topic.kind == "nodes":
            return figures_row(self._api)
        vhost = self._api.vhosts.get(topic.of[0])
        queue = vhost.queues.get(topic.of[1]) if vhost is not None else None
        allowed = may_enter(request.user, topic.of[0]) or request.is_administrator
        cells = queue_cells(self._api, (vhost, queue)) if queue is not None and allowed else None
        if cells is None or queue is None:
            return None
        row = {**dict(zip(QUEUES, cells, strict=True)), "internals": internals(queue)}
        return {**row, "stream": stream_row(self._api, queue)} if isinstance(queue, StreamQueue) else row

    # -- telling -----------------------------------------------------------------------------------------------------

    async def _begin(self, reader: Reader) -> None:
        """Has a reader know all that it wants: as a snapshot, or as what has changed since it was last here."""
        last, known = self._last_tick(reader.request)
        for topic, seen in reader.views.items():
            tracker = await self._tracker(seen.kind)
            changes = await tracker.since(last) if last is not None and (known is None or topic.name in known) else None
            if changes is not None:
                for event in await self._deltas(topic.name, seen, changes):
                    reader.push(event)
            else:
                await self._snapshot(reader, topic, seen, tracker)
        self._tell_objects(reader, {})
        if any(topic.kind == "log" for topic in reader.topics):
            reader.line_id = max(reader.line_id, self._api.broker.recent_lines.last_id - FIRST_LINES)
            self._tell_log(reader)
        reader.push(self._mark())

    def _last_tick(self, request: Request) -> tuple[int | None, frozenset[str] | None]:
        """The last tick that the reader has seen, and the topics that it had then; None for all of them. A browser that comes
        back by itself says so in a header, a page that opens another stream in the query.
        """
        known = None
        given = request.headers.get("last-event-id", "")
        if not given and "since" in request.query:
            given, known = request.query["since"], frozenset(request.query.get("known", "").split(","))
        boot, _, tick = given.partition("-")
        return whole(tick) if boot == self._boot else None, known

    async def _tracker(self, kind: str) -> Tracker:
        """The rows of a kind as they are now."""
        tracker = self._trackers.get(kind)
        if tracker is None:
            tracker = self._trackers[kind] = Tracker(self._api, kind)
            await tracker.update(self._tick, whole=True)
        elif kind in self._unwatched:
            self._tick += 1
            await tracker.update(self._tick, whole=True)
        self._unwatched.pop(kind, None)
        return tracker

    async def _snapshot(self, reader: Reader, topic: Topic, seen: View, tracker: Tracker) -> None:
        head = {"topic": topic.name, "as_of": now_ms(), "key": tracker.table.key, "columns": seen.names}
        rows: list[bytes] = []
        part = 0
        encoded = (
            msgspec.json.encode(seen.of(row.cells)) for row in list(tracker.rows.values()) if seen.shows(row.cells)
        )
        async for more in slices(encoded):
            rows += more
            while len(rows) > PART_ROWS:
                reader.push(self._part(head, rows[:PART_ROWS], part, done=False))
                rows = rows[PART_ROWS:]
                part += 1
        reader.push(self._part(head, rows, part, done=True))

    def _part(self, head: Row, rows: list[bytes], part: int, *, done: bool) -> bytes:
        given = msgspec.json.encode({**head, "part": part, "done": done})
        return event_of("snapshot", given[:-1] + b',"rows":[' + b",".join(rows) + b"]}")

    def _mark(self) -> bytes:
        """The id of this tick: a reader that has it has all of the tick."""
        return b"id: %s-%d\n\n" % (self._boot.encode(), self._tick)

    async def _deltas(self, topic: str, seen: View, changes: Changes) -> list[bytes]:
        """No event when nothing that the view shows has changed, several of them for many rows."""
        events: list[bytes] = []
        value: dict[str, list[Any]] = {"gone": [], "added": [], "changed": []}
        rows = 0
        async for some in slices(_told(seen, changes)):
            for part, told in some:
                value[part] += told
                rows += len(told)
                if rows >= DELTA_ROWS:
                    events.append(event_of("delta", msgspec.json.encode({"topic": topic, "as_of": now_ms(), **value})))
                    value, rows = {"gone": [], "added": [], "changed": []}, 0
        if rows:
            events.append(event_of("delta", msgspec.json.encode({"topic": topic, "as_of": now_ms(), **value})))
        return events

    def _tell_objects(self, reader: Reader, shared: dict[object, Any]) -> None:
        """`shared` has what is the same for other readers of this tick: values by topic and user, events by what was and is."""
        for topic in reader.topics:
            if topic.kind in ("table", "log"):
                continue
            asked = topic, id(reader.request.user)
            if asked not in shared:
                try:
                    shared[asked] = self._value(reader, topic)
                except AnswerAwaited:  # of who decides what the user may do: at one of the next ticks it is there
                    continue
            value, before = shared[asked], reader.values.get(topic, UNTOLD)
            change = topic, id(before), id(value)
            if change not in shared:
                shared[change] = self._event(topic, before, value)
            if shared[change] is not None:
                reader.push(shared[change])
            reader.values[topic] = value

    def _event(self, topic: Topic, before: Row | None, value: Row | None) -> bytes | None:
        """What tells of an object that it has changed; None if it has not."""
        if value is None:
            return None if before is None else self._object("gone", topic, None)
        if before is None or before is UNTOLD:
            return self._object("snapshot", topic, value)
        changed = {key: new for key, new in value.items() if before.get(key) != new}
        changed |= dict.fromkeys(before.keys() - value.keys())
        return self._object("delta", topic, changed) if changed else None

    def _object(self, kind: str, topic: Topic, value: Row | None) -> bytes:
        data: Row = {"topic": topic.name, "as_of": now_ms()}
        if value is not None:
            data["value"] = value
        return event_of(kind, msgspec.json.encode(data))

    def _tell_log(self, reader: Reader) -> None:
        lines = list(self._api.broker.recent_lines.after(reader.line_id))
        if lines:
            reader.line_id = lines[-1].id
            data = {"topic": "log", "lines": [msgspec.to_builtins(line) for line in lines]}
            reader.push(event_of("log", msgspec.json.encode(data)))

    # -- each second -------------------------------------------------------------------------------------------------

    async def tick(self) -> None:
        """Tells each reader what has changed since the last tick."""
        if not self._readers and not self._trackers:
            return
        async with self._lock:
            self._tick += 1
            for reader in list(self._readers):
                if not reader.ended and not self._is_alive(reader):
                    reader.end("the session is over")
            readers = [reader for reader in self._readers if not reader.ended]
            for kind in list(self._trackers):
                await self._tick_table(kind, [reader for reader in readers if any(v.kind == kind for v in reader.views.values())])
            shared: dict[object, Any] = {}
            for reader in readers:
                self._tell_objects(reader, shared)
                if any(topic.kind == "log" for topic in reader.topics):
                    self._tell_log(reader)
                if reader.views and reader.has_news:
                    reader.push(self._mark())

    async def _tick_table(self, kind: str, readers: list[Reader]) -> None:
        if not readers:
            since = self._unwatched.setdefault(kind, time.monotonic())
            if time.monotonic() - since > KEPT_S:
                del self._trackers[kind], self._unwatched[kind]
            return
        tracker = self._trackers[kind]
        changes = await tracker.update(self._tick)
        encoded: dict[tuple[str, View], list[bytes]] = {}
        for reader in readers:
            for topic, seen in list(reader.views.items()):
                if seen.kind != kind:
                    continue
                now = self._view_now(reader, topic)
                if now != seen:  # its permissions have changed
                    reader.views[topic] = now
                    await self._snapshot(reader, topic, now, tracker)
                    continue
                place = topic.name, seen
                if place not in encoded:
                    encoded[place] = await self._deltas(topic.name, seen, changes)
                for event in encoded[place]:
                    reader.push(event)

    def _is_alive(self, reader: Reader) -> bool:
        """Whether who asked is still who it was, and may still ask."""
        request = reader.request
        if request.session is not None:
            return self._api.sessions.is_alive(request.session)
        user = request.user
        known = self._api.admin.users.get(user.name) if user.is_ours else user
        unchanged = known is user and user.tags == reader.tags and user.password_hash == reader.password_hash
        return unchanged and not user.expired(time.time())


def _told(seen: View, changes: Changes) -> Iterator[tuple[str, Sequence[Any]]]:
    """What a delta says of the rows that the view shows, in the order in which it is to be applied, some at a time."""
    table = LIVE[seen.kind]
    for cells in changes.gone:
        if seen.shows(cells):
            yield "gone", (table.key_of(cells),)
    for cells in changes.added:
        if seen.shows(cells):
            yield "added", (seen.of(cells),)
    for start in range(0, len(changes.changed), TOGETHER):
        some = changes.changed[start : start + TOGETHER]
        if seen.user is not None:
            some = [one for one in some if seen.shows(one[0])]
        yield "changed", changed_values(some, table.columns, table.of_key, seen.shown, seen.vhosts)


def event_of(kind: str, data: bytes) -> bytes:
    """An event as it is sent."""
    return b"event: %s\ndata: %s\n\n" % (kind.encode(), data)


def topic_of(text: str) -> Topic:
    """`KIND`, `KIND:OF` or `KIND:OF?CHOICES`, of which OF is one or two names, quoted."""
    name, _, choices = text.partition("?")
    kind, _, of = name.partition(":")
    parts = tuple(unquote(part) for part in of.split("/")) if of else ()
    return Topic(text, kind, parts, tuple(parse_qsl(choices, keep_blank_values=True)))


def now_ms() -> int:
    """Since 1970."""
    return int(time.time() * 1000)


def subscribe(api: Api, request: Request) -> Stream:
    return api.events.subscribe(request)


def lines(api: Api, request: Request) -> Row:
    """The last lines of the log."""
    found: Iterator[Any] = api.broker.recent_lines.after(0)
    limit = _limit(request)
    return {"lines": [msgspec.to_builtins(line) for line in list(found)[-limit:]]}


def _limit(request: Request) -> int:
    limit = whole(request.query.get("limit", "1000"))
    if not limit:
        raise bad_request("limit must be a number, and not 0")
    return limit
