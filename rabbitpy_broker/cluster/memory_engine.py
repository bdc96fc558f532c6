"""An engine in memory, with faults: what tests and the model checker run the cluster's protocol on.

`MemoryServers` is what a real engine's servers are together; each node has a `MemoryEngine` of its own on them (`connect`).
Everything that a node asks is a `Step`: it changes or reads the servers' state in one moment, `take` says when, and with which
`Outcome`. Two ways to run:

- *By itself* (the default): each step is taken as soon as it is asked, or when there is something to read. `plan` names
  outcomes for steps that are to come, `cut` and `heal` part a node from the servers. For tests in plain asyncio.
- *Manual*: steps gather in `pending`, and nothing happens until somebody takes one. `choices` lists the outcomes that a step
  may have now, so that whoever always takes every choice of every step goes through all that an engine can do. Nothing here
  depends on time, chance or the order of a set; `state` is all that there is, to tell whether one has been here before.

Both kinds of engines can be had: one that refuses an append that would not count, as PostgreSQL does, and one that appends it
and says so, as Kafka does (`conditional=False`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterable, AsyncIterator, Callable, Hashable, Iterable
from enum import Enum
from typing import Any, Final, Generic, TypeVar

from rabbitpy_broker.cluster.engine import Engine
from rabbitpy_broker.cluster.log import (
    Counting,
    Entry,
    Misplaced,
    NoSuchLog,
    NoSuchObject,
    ObjectInfo,
    ObjectStore,
    OutcomeUnknown,
    Reader,
    Refused,
    ReplicatedLog,
    Trimmed,
    Unavailable,
    asked_or_not,
)
from rabbitpy_broker.cluster.registry import Change, Conflict, Registry, Versioned, Watch

T = TypeVar("T")
PART_SIZE: Final = 1 << 20  # bytes of a part of an object that is read
BATCH_BYTES: Final = 1 << 20  # of blocks that a reader gets at once, the last one whole


class Outcome(Enum):
    """What becomes of a step. `changes` steps may have all of them, reads only those that report something."""

    DONE = "done, and the node is told"
    DONE_UNTOLD = "done, and the node is told that the outcome is unknown"
    LATE = "the node is told that the outcome is unknown; it is done or dropped later"
    DROPPED = "not done, and the node is told that the outcome is unknown, if it was not told so before"
    REFUSED = "not done: the node is told that the engine is unavailable"
    TIMED_OUT = "a read at the end has waited in vain"


UNTOLD: Final = (Outcome.DONE_UNTOLD, Outcome.LATE, Outcome.DROPPED)
ALL_FAULTS: Final = frozenset(Outcome) - {Outcome.DONE, Outcome.TIMED_OUT}


class Step(Generic[T]):
    """Something that a node has asked of the servers. `kind` and `detail` say what, `late` that the node waits for it no more."""

    def __init__(
        self,
        servers: MemoryServers,
        node: str,
        kind: str,
        detail: tuple[Hashable, ...],
        do: Callable[[], T],
        *,
        changes: bool = True,
        ready: Callable[[], bool] | None = None,
        nothing: T | None = None,
        queue: object = None,
    ) -> None:
        """`do`: what it does, in one moment. `ready`: whether there is something to read yet, `nothing`: what is read
        otherwise, when the wait is over. Steps with the same `queue` are taken in their order.
        """
        self.servers = servers
        self.node = node
        self.kind = kind
        self.detail = detail
        self.changes = changes
        self.ready = ready
        self.queue = queue
        self.late = False
        self.future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._do = do
        self._nothing = nothing

    def __repr__(self) -> str:
        return f"{self.node} {self.kind}{self.detail}{' late' if self.late else ''}"

    def choices(self) -> list[Outcome]:
        """The outcomes that it may have now; none while it waits for another step or for something to read."""
        if self.late:
            return [Outcome.DONE, Outcome.DROPPED]
        if self.queue is not None and any(one is not self and not one.late for one in self.servers.before(self)):
            return []
        chosen: list[Outcome] = []
        if self.node not in self.servers.parted:
            if self.ready is None or self.ready():
                chosen.append(Outcome.DONE)
            elif self.servers.waits_end:
                chosen.append(Outcome.TIMED_OUT)
            if self.changes:
                chosen += [Outcome.DONE_UNTOLD, Outcome.DROPPED]
        if self.changes:
            chosen.append(Outcome.LATE)
        chosen.append(Outcome.REFUSED)
        faults = self.servers.faults if self.node not in self.servers.parted else ALL_FAULTS
        return [one for one in chosen if one in faults or one in (Outcome.DONE, Outcome.TIMED_OUT)]

    def take(self, outcome: Outcome) -> None:
        """Lets the step have one of its outcomes. Futures are resolved; what waits for them runs when the loop does."""
        if outcome in UNTOLD and not self.late:
            self._fail(OutcomeUnknown(f"{self.kind}: the connection was lost"))
        if outcome is Outcome.LATE:
            self.late = True
            return
        self.servers.pending.remove(self)
        if outcome in (Outcome.DONE, Outcome.DONE_UNTOLD):
            self._carry_out()
        elif outcome is Outcome.REFUSED:
            self._fail(Unavailable(f"{self.kind}: no connection"))
        elif outcome is Outcome.TIMED_OUT and not self.future.done():
            assert self._nothing is not None
            self.future.set_result(self._nothing)

    def _carry_out(self) -> None:
        try:
            result = self._do()
        except (Refused, Misplaced, Trimmed, NoSuchLog, NoSuchObject, Conflict) as exc:
            self._fail(exc)
        else:
            if not self.future.done():
                self.future.set_result(result)

    def _fail(self, error: Exception) -> None:
        if not self.future.done():
            self.future.set_exception(error)


class LogState:
    """One log as the servers have it."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []  # all that were ever appended; those before `first` are read no more
        self.first = 0
        self.counting = Counting()

    def append(self, block: bytes, term: int, expected: int | None, *, conditional: bool) -> int:
        end = len(self.entries)
        misplaced = expected is not None and expected != end
        entry = Entry(end, term, misplaced, block)
        counts = self.counting.counts(entry)
        if conditional and not counts:
            raise Refused(self.counting.term, end)
        self.entries.append(entry)
        if misplaced:
            raise Misplaced(end)
        return end

    def read(self, position: int) -> list[Entry]:
        if position < self.first:
            raise Trimmed(self.first)
        batch: list[Entry] = []
        size = 0
        for entry in self.entries[position:]:
            batch.append(entry)
            size += len(entry.block)
            if size >= BATCH_BYTES:
                break
        return batch

    def trim(self, below: int) -> None:
        self.first = max(self.first, min(below, len(self.entries)))


class MemoryServers:
    """The servers of an engine in memory, and what may happen on the way to them.

    `manual`: steps wait in `pending` to be taken. `faults`: the outcomes besides DONE that a manual step may choose while its
    node is connected; a node that is cut off may always be refused. `waits_end`: a manual read at the end may also time out.
    `clock`: seconds, for leases.
    """

    def __init__(
        self,
        *,
        conditional: bool = True,
        manual: bool = False,
        faults: Iterable[Outcome] = ALL_FAULTS,
        waits_end: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.conditional = conditional
        self.manual = manual
        self.faults = frozenset(faults)
        self.waits_end = waits_end
        self.clock = clock
        self.logs: dict[str, LogState] = {}
        self.objects: dict[str, bytes] = {}
        self.values: dict[str, Versioned] = {}
        self.version = 0  # of the last change of the registry
        self.leases: dict[str, tuple[float, bytes]] = {}  # node -> when it ends, info
        self.parted: set[str] = set()
        self.pending: list[Step[Any]] = []
        self.planned: list[tuple[str | None, str, Outcome]] = []

    def connect(self, node: str = "node") -> MemoryEngine:
        return MemoryEngine(self, node)

    # --- trouble ---------------------------------------------------------------------------------------------------------

    def cut(self, node: str) -> None:
        """Parts a node from the servers: what it asks is refused, what waits for something to read as well."""
        self.parted.add(node)
        self._take_what_can_be()

    def heal(self, node: str) -> None:
        self.parted.discard(node)
        self._take_what_can_be()

    def crash(self, node: str) -> None:
        """The node's process is gone: nobody waits for its steps any more, and those on their way are done or dropped later."""
        for step in [one for one in self.pending if one.node == node]:
            step.future.cancel()
            if step.changes:
                step.late = True
            else:
                self.pending.remove(step)

    def plan(self, kind: str, outcome: Outcome, *, node: str | None = None) -> None:
        """The next step of this kind (and node), of those that are taken by themselves, has this outcome. Late ones stay
        `pending`.
        """
        self.planned.append((node, kind, outcome))

    # --- steps -----------------------------------------------------------------------------------------------------------

    def ask(self, step: Step[T], wait: float | None = None) -> asyncio.Future[T]:
        """Takes the step by itself as soon as it can be, or leaves it to be taken. `wait`: seconds until a read at the end
        gives up.
        """
        self.pending.append(step)
        if self.manual:
            return step.future
        loop = asyncio.get_running_loop()
        loop.call_soon(self._take_what_can_be)
        if wait is not None:
            timer = loop.call_later(wait, self._time_out, step)
            step.future.add_done_callback(lambda _: timer.cancel())
        return step.future

    def before(self, step: Step[Any]) -> list[Step[Any]]:
        """The steps of the same queue that were asked before."""
        return [one for one in self.pending[: self.pending.index(step)] if one.queue is step.queue]

    def _take_what_can_be(self) -> None:
        if self.manual:
            return
        progress = True
        while progress:
            progress = False
            for step in list(self.pending):
                if step not in self.pending or step.late:
                    continue
                if step.future.done():  # cancelled: nobody waits for what it would read
                    self.pending.remove(step)
                elif (outcome := self._outcome_by_itself(step)) is not None:
                    step.take(outcome)
                    progress = True

    def _outcome_by_itself(self, step: Step[Any]) -> Outcome | None:
        for plan in self.planned:
            node, kind, outcome = plan
            if kind == step.kind and node in (None, step.node):
                self.planned.remove(plan)
                return outcome
        if step.node in self.parted:
            return Outcome.REFUSED
        return Outcome.DONE if step.ready is None or step.ready() else None

    def _time_out(self, step: Step[Any]) -> None:
        if step in self.pending:
            step.take(Outcome.TIMED_OUT)

    # --- what there is ---------------------------------------------------------------------------------------------------

    def log_state(self, name: str) -> LogState:
        state = self.logs.get(name)
        if state is None:
            raise NoSuchLog(f"no log {name!r}")
        return state

    def state(self) -> Hashable:
        """All that the servers have and all that is on its way, for comparing; of leases only which nodes have one that has not
        ended.
        """
        return (
            tuple((name, log.first, tuple(log.entries)) for name, log in sorted(self.logs.items())),
            tuple(sorted(self.objects.items())),
            tuple(sorted(self.values.items())),
            tuple(sorted(self.alive().items())),
            tuple(sorted(self.parted)),
            tuple((step.node, step.kind, step.detail, step.late) for step in self.pending),
        )

    def alive(self) -> dict[str, bytes]:
        now = self.clock()
        return {node: info for node, (ends, info) in sorted(self.leases.items()) if ends > now}

    def put(self, name: str, value: bytes | None, version: int | None) -> int:
        """Sets or removes (None) a value of the registry, and returns its version."""
        there = self.values.get(name)
        if version is not None and version != (there.version if there else 0):
            raise Conflict(name, there.version if there else 0)
        self.version += 1
        if value is None:
            self.values.pop(name, None)
        else:
            self.values[name] = Versioned(value, self.version)
        return self.version


class MemoryReader(Reader):
    def __init__(self, log: MemoryLog, position: int) -> None:
        self.position = position
        self._log = log

    async def next(self, wait: float = 0) -> list[Entry]:
        servers, name, position = self._log.servers, self._log.name, self.position

        def ready() -> bool:
            state = servers.logs.get(name)
            return state is None or position < max(state.first, len(state.entries))

        step: Step[list[Entry]] = Step(
            servers, self._log.node, "read", (name, position), lambda: servers.log_state(name).read(position),
            changes=False, ready=ready if wait else None, nothing=[],
        )  # fmt: skip
        batch = await servers.ask(step, wait)
        self.position = position + len(batch)
        return batch

    async def close(self) -> None:
        pass


class MemoryLog(ReplicatedLog):
    def __init__(self, servers: MemoryServers, node: str, name: str) -> None:
        self.servers = servers
        self.node = node
        self.name = name

    def append(self, block: bytes, *, term: int, expected: int | None = None) -> asyncio.Future[int]:
        servers, name = self.servers, self.name
        step = Step(
            servers, self.node, "append", (name, block, term, expected),
            lambda: servers.log_state(name).append(block, term, expected, conditional=servers.conditional), queue=self,
        )  # fmt: skip
        step.future.add_done_callback(asked_or_not)
        return servers.ask(step)

    async def end(self) -> int:
        return await self._read("end", lambda state: len(state.entries))

    async def first(self) -> int:
        return await self._read("first", lambda state: state.first)

    async def trim(self, below: int) -> None:
        servers, name = self.servers, self.name
        await servers.ask(Step(servers, self.node, "trim", (name, below), lambda: servers.log_state(name).trim(below)))

    def reader(self, position: int) -> Reader:
        return MemoryReader(self, position)

    async def _read(self, kind: str, do: Callable[[LogState], int]) -> int:
        servers, name = self.servers, self.name
        return await servers.ask(Step(servers, self.node, kind, (name,), lambda: do(servers.log_state(name)), changes=False))


class MemoryObjects(ObjectStore):
    def __init__(self, servers: MemoryServers, node: str) -> None:
        self._servers = servers
        self._node = node

    async def put(self, name: str, parts: AsyncIterable[bytes]) -> int:
        whole = b"".join([part async for part in parts])
        objects = self._servers.objects
        await self._servers.ask(
            Step(self._servers, self._node, "put object", (name, whole), lambda: objects.__setitem__(name, whole))
        )
        return len(whole)

    async def get(self, name: str) -> AsyncIterator[bytes]:
        def read() -> bytes:
            if name not in self._servers.objects:
                raise NoSuchObject(f"no object {name!r}")
            return self._servers.objects[name]

        whole = await self._servers.ask(Step(self._servers, self._node, "get object", (name,), read, changes=False))
        for start in range(0, len(whole), PART_SIZE):
            yield whole[start : start + PART_SIZE]

    async def list(self, prefix: str = "") -> list[ObjectInfo]:
        def read() -> list[ObjectInfo]:
            return [ObjectInfo(name, len(whole)) for name, whole in sorted(self._servers.objects.items()) if
            name.startswith(prefix)]

        return await self._servers.ask(Step(self._servers, self._node, "list objects", (prefix,), read, changes=False))

    async def delete(self, name: str) -> None:
        def remove() -> None:
            self._servers.objects.pop(name, None)

        await self._servers.ask(Step(self._servers, self._node, "delete object", (name,), remove))


class MemoryWatch(Watch):
    def __init__(self, servers: MemoryServers, node: str, prefix: str) -> None:
        self._servers = servers
        self._node = node
        self._prefix = prefix
        self._known: dict[str, int] = {}  # name -> version that was shown

    async def next(self, wait: float = 0) -> list[Change]:
        known = tuple(sorted(self._known.items()))
        step: Step[list[Change]] = Step(
            self._servers, self._node, "watch", (self._prefix, known), self._changes,
            changes=False, ready=(lambda: bool(self._changes())) if wait else None, nothing=[],
        )  # fmt: skip
        changes = await self._servers.ask(step, wait)
        for change in changes:
            if change.value is None:
                del self._known[change.name]
            else:
                self._known[change.name] = change.version
        return changes

    async def close(self) -> None:
        pass

    def _changes(self) -> list[Change]:
        there = {name: one for name, one in self._servers.values.items() if name.startswith(self._prefix)}
        gone = [Change(name, None, version) for name, version in self._known.items() if name not in there]
        changed = [Change(name, *one) for name, one in there.items() if self._known.get(name) != one.version]
        return sorted(gone + changed, key=lambda change: (change.version, change.name))


class MemoryRegistry(Registry):
    def __init__(self, servers: MemoryServers, node: str) -> None:
        self._servers = servers
        self._node = node

    async def get(self, name: str) -> Versioned | None:
        return await self._ask("get", (name,), lambda: self._servers.values.get(name), changes=False)

    async def list(self, prefix: str = "") -> dict[str, Versioned]:
        def read() -> dict[str, Versioned]:
            return {name: one for name, one in sorted(self._servers.values.items()) if name.startswith(prefix)}

        return await self._ask("list", (prefix,), read, changes=False)

    async def put(self, name: str, value: bytes, version: int | None = None) -> int:
        return await self._ask("put", (name, value, version), lambda: self._servers.put(name, value, version))

    async def delete(self, name: str, version: int | None = None) -> None:
        await self._ask("delete", (name, version), lambda: self._servers.put(name, None, version))

    def watch(self, prefix: str = "") -> Watch:
        return MemoryWatch(self._servers, self._node, prefix)

    async def keep_alive(self, node: str, ttl: float, info: bytes = b"") -> None:
        def renew() -> None:
            self._servers.leases[node] = (self._servers.clock() + ttl, info)

        await self._ask("keep alive", (node, info), renew)

    async def leave(self, node: str) -> None:
        def remove() -> None:
            self._servers.leases.pop(node, None)

        await self._ask("leave", (node,), remove)

    async def alive(self) -> dict[str, bytes]:
        return await self._ask("alive", (), self._servers.alive, changes=False)

    async def _ask(self, kind: str, detail: tuple[Hashable, ...], do: Callable[[], T], *, changes: bool = True) -> T:
        return await self._servers.ask(Step(self._servers, self._node, kind, detail, do, changes=changes))


class MemoryEngine(Engine):
    """A node's way to `MemoryServers`. What it asks before `start` and after `stop` is answered all the same."""

    max_block = 8 << 20

    def __init__(self, servers: MemoryServers, node: str) -> None:
        self._servers = servers
        self._node = node
        self.registry: Registry = MemoryRegistry(servers, node)
        self.objects: ObjectStore = MemoryObjects(servers, node)

    async def start(self) -> None:
        pass

    async def stop(self) -> None:
        pass

    async def create_log(self, name: str) -> None:
        def create() -> None:
            self._servers.logs.setdefault(name, LogState())

        await self._servers.ask(Step(self._servers, self._node, "create log", (name,), create))

    async def delete_log(self, name: str) -> None:
        def delete() -> None:
            self._servers.logs.pop(name, None)

        await self._servers.ask(Step(self._servers, self._node, "delete log", (name,), delete))

    async def logs(self) -> list[str]:
        return await self._servers.ask(
            Step(self._servers, self._node, "logs", (), lambda: sorted(self._servers.logs), changes=False)
        )

    def log(self, name: str) -> ReplicatedLog:
        return MemoryLog(self._servers, self._node, name)
