"""A model checker for the protocol of replicated vhosts: real coroutines over the engine in memory, in every order there is.

A `World` has nodes whose programs are started together. What they wait for are steps of the engine, which the checker takes one
at a time, each with every outcome, and syncs of their disks; a crash of a node is a choice as any other. All choices are gone
through depth first, each run from the beginning; where a run comes to a state that was seen before, it is over.

A node that sleeps and wakes later needs no choice of its own: it is one whose steps are not taken while those of others are.
That it is told of a step later than the step was done makes no difference to anybody but itself, since it only acts by steps;
what it confirms is judged as if it confirmed at once.

An owner's own files are written behind the log (`epoch`): when an epoch that was told gets there is a choice, too, and a crash
takes those that have not. Definitions change with each such epoch, on the owner's disk before the log hears of it. Who applies
its block must have what the owner had, unless it was ahead itself: a former owner until it reads of a later one, a follower
that has crashed until it is where it was.

The loop is none of asyncio's: it runs what is ready and nothing else, so that a run costs what its coroutines cost.
"""

from __future__ import annotations

import asyncio
import contextvars
import pickle
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Callable, Coroutine, Hashable, Iterable
from contextlib import suppress
from types import FrameType
from typing import Any, NamedTuple

import msgspec
import zstandard

from rabbitpy_broker.cluster import blocks
from rabbitpy_broker.cluster.checkpoints import Checkpoints, Reports, Restoring, Snapshot, trim_position
from rabbitpy_broker.cluster.content import packed, unmarked, unpacked
from rabbitpy_broker.cluster.conversion import Ending
from rabbitpy_broker.cluster.follower import Follower, Sink, take_over
from rabbitpy_broker.cluster.log import (
    ClusterError,
    Counting,
    Entry,
    NoSuchLog,
    NoSuchObject,
    OutcomeUnknown,
    Trimmed,
    Unavailable,
)
from rabbitpy_broker.cluster.memory_engine import LogState, MemoryServers, Outcome, Step
from rabbitpy_broker.cluster.owner_log import OwnerLog
from rabbitpy_broker.cluster.ownership import Deposed, Owner, OwnerRecord
from rabbitpy_broker.cluster.registry import Versioned
from rabbitpy_broker.cluster.transfer import HandOver
from rabbitpy_broker.cluster.writer import Writer
from rabbitpy_broker.definitions import Change, Rows

VHOST = "v"
MAX_BLOCK = 4  # bytes of an entry: the kind and three more, so that longer blocks have parts
PLAIN = (Outcome.DONE, Outcome.TIMED_OUT)
NAMES = "q"  # the only table
EVER = 1 << 40  # no position is there
SCALARS = (int, str, bytes, bool, type(None))


class TinyLoop(asyncio.AbstractEventLoop):
    """Runs callbacks that are ready, in order; knows no time and no IO."""

    def __init__(self) -> None:
        self._ready: deque[tuple[contextvars.Context | None, Callable[..., object], tuple[Any, ...]]] = deque()

    def call_soon(self, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None) -> Any:
        self._ready.append((context, callback, args))

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(self, coro: Coroutine[Any, Any, Any], **_: Any) -> asyncio.Task[Any]:
        return asyncio.Task(coro, loop=self)

    def get_debug(self) -> bool:
        return False

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        pass  # of tasks that a run leaves behind

    def drain(self) -> None:
        asyncio._set_running_loop(self)
        try:
            while self._ready:
                context, callback, args = self._ready.popleft()
                if context is None:
                    callback(*args)
                else:
                    context.run(callback, *args)
        finally:
            asyncio._set_running_loop(None)


class Broken(AssertionError):
    """An invariant does not hold."""


class Confirmed(NamedTuple):
    """A block that an owner of a term was told is written."""

    block: bytes
    term: int


class Written(NamedTuple):
    """An epoch on its way to the files of its owner: the block, and where the log is behind it."""

    block: bytes
    position: int
    term: int


class Node:
    """One node: what it has on disk, and what its program is about. `files`: what is to be written to its own files yet."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.sink = ModelSink(self)
        self.task: asyncio.Task[None] | None = None
        self.writer: Writer | None = None
        self.follower: Follower | None = None
        self.log: OwnerLog | None = None
        self.files: list[Written] = []
        self.written: asyncio.Future[None] | None = None  # waits for room in `files`
        self.names: set[bytes] = set()  # its definitions, which are on disk at once
        self.changes: list[Change] = []  # that the log has not heard of
        self.ownership = 0  # its last one; they are counted
        self.ahead = 0  # up to this position its definitions may be ahead of what it has applied
        self.is_plain = False  # the vhost is its own, and replicated no more
        self.world: World

    @property
    def tasks(self) -> list[asyncio.Task[None]]:
        """Those that are not done."""
        found = (self.task, self.log and self.log._appending)
        return [task for task in found if task is not None and not task.done()]

    def declare(self, name: bytes) -> None:
        """A name comes, and another one may go."""
        if len(self.names) > 1:
            gone = min(self.names)
            self.names.discard(gone)
            self.changes.append((NAMES, {"name": gone}))
        self.names.add(name)
        self.changes.append((NAMES, [name]))

    def definitions(self) -> Rows:
        return {NAMES: [[name] for name in sorted(self.names)]}

    def take_changes(self) -> list[Change]:
        changes, self.changes = self.changes, []
        return changes

    def define(self, definitions: Rows | list[Change]) -> None:
        """As whoever follows."""
        if isinstance(definitions, list):
            for _, what in definitions:
                if isinstance(what, dict):
                    self.names.discard(what["name"])
                else:
                    self.names.add(what[0])
        else:
            self.names = {name for (name,) in definitions[NAMES]}

    def state(self) -> Hashable:
        writer, follower, log = self.writer, self.follower, self.log
        return (
            self.name,
            self.sink.state(),
            tuple(frames(task.get_coro()) for task in self.tasks),
            writer and (writer.term, writer.position, writer.is_deposed),
            follower and (follower.position, follower.term, follower.given_to, tuple(follower._assembly._pieces)),
            log and (log._is_first, repr(log._due)),
            tuple(sorted(self.names)),
            repr(self.changes),
            self.ahead,
            self.ownership,
            tuple(self.files),
            self.written is not None,
            self.is_plain,
        )


class ModelSnapshot(Snapshot):
    """What a sink had, whatever it does since."""

    def __init__(self, sink: ModelSink) -> None:
        self.position, self.term = sink.position, sink.term
        self.whole = pickle.dumps((sink.blocks, sink.node.names, sink.node.ahead, sink.node.ownership))

    async def parts(self) -> AsyncIterator[bytes]:
        yield self.whole


class ModelSink(Sink, Restoring):
    """A list of blocks, of which a crash may take what was not synced."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.blocks: list[bytes] = []
        self.position = 0
        self.term = 0
        self.synced: tuple[tuple[bytes, ...], int, int] = ((), 0, 0)

    def state(self) -> Hashable:
        return (tuple(self.blocks), self.position, self.term, self.synced)

    async def apply(self, block: bytes, position: int, term: int) -> None:
        self.blocks.append(block)
        await self.pass_over(position, term)
        node = self.node
        if block not in node.world.had:
            return  # of an owner that has no definitions
        ownership, had = node.world.had[block]
        definitions, _ = unpacked(block)
        if definitions is not None:
            node.define(definitions)
        if ownership > node.ownership and node.ahead == EVER:
            node.ahead = 0
        if position >= node.ahead:
            require(node.names == had, f"{node.name} has {node.names} at {position}, and the owner had {set(had)}")

    async def flush(self) -> None:
        pass  # it applies each block at once

    async def pass_over(self, position: int, term: int) -> None:
        self.position, self.term = position, term

    async def sync(self) -> int:
        now = (tuple(self.blocks), self.position, self.term)
        if now != self.synced:
            await self.node.world.disk(self.node)
            self.synced = now
        return now[1]

    async def load(self, parts: AsyncIterable[bytes], position: int, term: int) -> None:
        """A crash in the middle leaves what there was."""
        loaded, names, ahead, ownership = pickle.loads(b"".join([part async for part in parts]))
        await self.node.world.disk(self.node)
        self.node.names, self.node.ahead, self.node.ownership = names, ahead, ownership
        self.blocks, self.position, self.term = loaded, position, term
        self.synced = (tuple(self.blocks), position, term)

    def crash(self, *, keeps: bool) -> None:
        if not keeps:
            self.node.ahead = max(self.node.ahead, self.position)
            self.blocks, self.position, self.term = list(self.synced[0]), self.synced[1], self.synced[2]
        self.synced = (tuple(self.blocks), self.position, self.term)


def frames(coro: Any) -> Hashable:
    """Where a coroutine stands: each of its frames with what is simple in it."""
    found: list[Hashable] = []
    while coro is not None and hasattr(coro, "cr_frame"):
        frame: FrameType | None = coro.cr_frame
        if frame is not None:
            simple = tuple((name, value) for name, value in frame.f_locals.items() if isinstance(value, SCALARS))
            lists = tuple((name, repr(value)) for name, value in frame.f_locals.items() if isinstance(value, list | tuple))
            found.append((frame.f_code.co_name, frame.f_lasti, simple, lists))
        coro = coro.cr_await
    return tuple(found)


class Scenario(NamedTuple):
    """What is gone through. `programs`: node -> its program. `faults`: how many steps of a run may go wrong, `kinds` how;
    `crashes`: which nodes may crash, once each, and `after_crash` what they do then; those of `loses` lose their disk with it.
    """

    programs: dict[str, Callable[[World, Node], Coroutine[Any, Any, None]]]
    conditional: bool = True
    faults: int = 0
    kinds: tuple[Outcome, ...] = (Outcome.LATE, Outcome.DONE_UNTOLD, Outcome.REFUSED)
    crashes: tuple[str, ...] = ()
    loses: tuple[str, ...] = ()
    after_crash: Callable[[World, Node], Coroutine[Any, Any, None]] | None = None
    max_block: int = MAX_BLOCK
    log: type[OwnerLog] = OwnerLog
    writer: type[Writer] = Writer
    follower: type[Follower] = Follower


class World:
    """The servers, and nodes of which "A" owns the vhost with term 1: its fence is the only entry."""

    def __init__(self, scenario: Scenario, loop: TinyLoop) -> None:
        self.scenario = scenario
        self.loop = loop
        self.faults_left = scenario.faults
        self.crashes_left = list(scenario.crashes)
        self.confirmed: list[Confirmed] = []
        self.had: dict[bytes, tuple[int, frozenset[bytes]]] = {}  # block -> ownership, and the names that it had then
        self.ownerships = 0
        self.syncs: list[tuple[Node, asyncio.Future[None]]] = []
        self.servers = MemoryServers(
            conditional=scenario.conditional, manual=True, faults=scenario.kinds, clock=self.clock
        )
        log = self.log = self.servers.logs[VHOST] = LogState()  # also when it is deleted
        log.append(blocks.fence("A"), 1, None, conditional=True)
        self.servers.values[f"owner/{VHOST}"] = Versioned(msgspec.json.encode(("A", 1)), 1)
        self.servers.version = 1
        self.nodes = {name: Node(name) for name in scenario.programs}
        for node in self.nodes.values():
            node.world = self
            self.start(node, scenario.programs[node.name])
        loop.drain()

    def clock(self) -> float:
        return 0.0  # nothing here depends on time, but leases in lease_model.py

    def start(self, node: Node, program: Callable[[World, Node], Coroutine[Any, Any, None]]) -> None:
        node.task = asyncio.Task(program(self, node), loop=self.loop)

    # -- what programs are made of ----------------------------------------------------------------------------------------

    async def disk(self, node: Node) -> None:
        future: asyncio.Future[None] = self.loop.create_future()
        self.syncs.append((node, future))
        await future

    def follow(self, node: Node) -> Follower:
        node.follower = self.scenario.follower(self.servers.connect(node.name).log(VHOST), node.sink)
        return node.follower

    def first_owner(self, node: Node) -> Writer:
        """"A", as it stands behind its take-over."""
        node.sink.position, node.sink.term = 1, 1
        node.sink.crash(keeps=True)
        engine = self.servers.connect(node.name)
        record = OwnerRecord(engine.registry, VHOST)
        node.writer = self.scenario.writer(
            engine.log(VHOST), record, node.name, term=1, position=1, max_block=self.scenario.max_block, pause=no_pause
        )
        return node.writer

    def record(self, node: Node) -> OwnerRecord:
        return OwnerRecord(self.servers.connect(node.name).registry, VHOST)

    async def successor(self, node: Node, after: Owner) -> Writer:
        engine = self.servers.connect(node.name)
        record = OwnerRecord(engine.registry, VHOST)
        follower = node.follower or self.follow(node)
        writer = await take_over(
            engine.log(VHOST), record, node.name, follower, after, max_block=self.scenario.max_block, pause=no_pause
        )
        writer.__class__ = self.scenario.writer
        node.writer = writer
        node.follower = None
        self.check_new_owner(node)
        return writer

    async def publish(self, node: Node, writer: Writer, block: bytes) -> None:
        position = await writer.append(block)
        self.confirmed.append(Confirmed(block, writer.term))
        await node.sink.apply(block, position, writer.term)

    def own(self, node: Node, writer: Writer) -> OwnerLog:
        """What a journal writes its epochs to."""
        node.changes = []
        self.ownerships += 1
        node.ownership = self.ownerships
        node.ahead = EVER  # it declares before the log has it
        node.log = self.scenario.log(
            writer, node.definitions, node.take_changes, lambda: None, lambda: None, lambda: True, lambda: True
        )  # fmt: skip
        return node.log

    async def epoch(self, node: Node, log: OwnerLog, payload: bytes) -> None:
        """As the journal does: confirmed when the log has it, to the files behind that, and one on its way to each of the two."""
        told: asyncio.Future[int] = self.loop.create_future()

        def done(number: int, error: Exception | None) -> None:
            if told.done():
                return
            if error is None:
                told.set_result(number)
            else:
                told.set_exception(error)

        node.declare(payload)
        log.begin()
        self.had[packed(log._building, [payload])] = node.ownership, frozenset(node.names)
        log.append([payload], done)
        term, position = unmarked(await told)
        before = [(of, block) for behind, of, block in self.counted() if behind <= position]  # a fence of its own may be between
        of, block = before[-1] if before else (0, b"")
        require(block.endswith(payload), f"{node.name} was told that {payload!r} is before {position}, and there is {block!r}")
        self.confirmed.append(Confirmed(block, of))
        await self.to_files(node, Written(block, position, term))

    async def to_files(self, node: Node, written: Written) -> None:
        while node.files:
            await self._room(node)
        node.files.append(written)

    async def close(self, node: Node) -> None:
        """All is in the files, and nothing more comes."""
        while node.files:
            await self._room(node)
        node.log = None
        node.follower = None

    async def _room(self, node: Node) -> None:
        node.written = self.loop.create_future()
        await node.written

    async def hand_over(self, node: Node, writer: Writer, to: str) -> bool:
        """Of a vhost that is closed."""
        return await HandOver(to).complete(self.record(node), writer, node.name)

    async def end(self, node: Node, writer: Writer) -> None:
        """Of a vhost that is closed, and that the node is to keep for itself."""
        await Ending(node.name).complete(self.record(node), writer, node.name)

    async def become_plain(self, node: Node) -> None:
        """The log has ended with this node: its metadata say so, and then the log goes."""
        await self.disk(node)
        node.is_plain = True
        with suppress(ClusterError):
            await self.servers.connect(node.name).delete_log(VHOST)

    async def report(self, node: Node) -> None:
        position = await node.sink.sync()
        try:
            await Reports(self.servers.connect(node.name).registry, VHOST).report(node.name, position)
        except (Unavailable, OutcomeUnknown):
            return

    async def trim(self, node: Node, writer: Writer, replicas: Iterable[str]) -> None:
        """As `LogUpkeep` does, but for its patience."""
        engine = self.servers.connect(node.name)
        try:
            newest = await Checkpoints(engine.objects, VHOST).newest()
            reports = await Reports(engine.registry, VHOST).read()
            below = trim_position(newest, reports, list(replicas), node.sink.synced[1])
            if below > self.log.first:
                await engine.log(VHOST).trim(below)
        except (Unavailable, OutcomeUnknown):
            return

    async def save(self, node: Node, snapshot: Snapshot | None = None) -> None:
        if snapshot is None:
            await node.sink.sync()
            snapshot = ModelSnapshot(node.sink)
        try:
            await Checkpoints(self.servers.connect(node.name).objects, VHOST).save(snapshot, node.name)
        except (Unavailable, OutcomeUnknown):
            return

    async def catch_up(self, node: Node, follower: Follower, first: int) -> bool:
        checkpoints = Checkpoints(self.servers.connect(node.name).objects, VHOST)
        try:
            loaded = await checkpoints.load(node.sink, first, node.sink.position)
        except (Unavailable, NoSuchObject):
            return False
        follower.begin()
        return loaded is not None

    # -- choices ----------------------------------------------------------------------------------------------------------

    def actions(self) -> list[Callable[[], None]]:
        found: list[Callable[[], None]] = []
        for step in self.servers.pending:
            for outcome in step.choices():
                free = outcome in PLAIN or step.late
                if free or self.faults_left:
                    found.append(lambda step=step, outcome=outcome, free=free: self._take(step, outcome, free))
        for one in self.syncs:
            found.append(lambda one=one: self._synced(one))
        for node in self.nodes.values():
            if node.files:
                found.append(lambda node=node: self._file_written(node))
        for name in self.crashes_left:
            node = self.nodes[name]
            if node.task is not None and not node.task.done():
                found.append(lambda node=node: self._crash(node, keeps=False))
                if name not in self.scenario.loses and node.sink.synced[1] != node.sink.position:
                    found.append(lambda node=node: self._crash(node, keeps=True))
        return found

    def _take(self, step: Step[Any], outcome: Outcome, free: bool) -> None:
        if not free:
            self.faults_left -= 1
        step.take(outcome)
        self.loop.drain()

    def _synced(self, one: tuple[Node, asyncio.Future[None]]) -> None:
        self.syncs.remove(one)
        one[1].set_result(None)
        self.loop.drain()

    def _file_written(self, node: Node) -> None:
        """Written and synced, as a block of the journal is."""
        one = node.files.pop(0)
        node.sink.blocks.append(one.block)
        node.sink.position, node.sink.term = one.position, one.term
        node.sink.crash(keeps=True)
        room, node.written = node.written, None
        if room is not None:
            room.set_result(None)
        self.loop.drain()

    def _crash(self, node: Node, *, keeps: bool) -> None:
        self.crashes_left.remove(node.name)
        self.servers.crash(node.name)
        self.syncs = [one for one in self.syncs if one[0] is not node]
        for task in node.tasks:
            task.cancel()
        self.loop.drain()
        node.log = node.written = None
        node.files.clear()
        if node.name in self.scenario.loses:
            node.sink = ModelSink(node)
            node.names, node.ahead = set(), 0
        node.sink.crash(keeps=keeps)
        node.writer = node.follower = node.task = None
        if self.scenario.after_crash is not None:
            self.start(node, self.scenario.after_crash)
        self.loop.drain()

    def state(self) -> Hashable:
        servers = self.servers
        log = self.log
        pending = sorted(((step.node, step.kind, step.detail, step.late) for step in servers.pending), key=repr)
        return (
            log.first,
            tuple(log.entries),
            VHOST in servers.logs,
            tuple(sorted(servers.values.items())),
            tuple(sorted(servers.objects.items())),
            tuple(pending),
            tuple(node.state() for node in self.nodes.values()),
            tuple(self.confirmed),
            tuple(node.name for node, _ in self.syncs),
            self.faults_left,
            tuple(self.crashes_left),
        )

    # -- what must be true ------------------------------------------------------------------------------------------------

    def counted(self) -> list[tuple[int, int, bytes]]:
        """(position behind it, term, block) of each block that counts, those that were trimmed too: told without `Follower`."""
        counting = Counting()
        found: list[tuple[int, int, bytes]] = []
        pieces: list[bytes] = []
        for entry in self.log.entries:
            if not counting.counts(entry):
                continue
            if entry.block[0] == blocks.FENCE:
                pieces = []
                continue
            pieces.append(entry.block[1:])
            if entry.block[0] in (blocks.LAST, blocks.CHANGES, blocks.COMPRESSED):
                block = b"".join(pieces)
                if entry.block[0] == blocks.COMPRESSED:
                    block = zstandard.decompress(block)
                found.append((entry.position + 1, entry.term, block))
                pieces = []
        return found

    def check(self) -> None:
        """In every state."""
        counted = self.counted()
        there = [block for _, _, block in counted]
        require(len(set(there)) == len(there), f"a block counts twice: {there}")
        told = [one.block for one in self.confirmed]
        require(len(set(told)) == len(told), f"a block was confirmed twice: {told}")
        for term in {one.term for one in self.confirmed}:
            ours = [one.block for one in self.confirmed if one.term == term]
            require(ours == [block for block in there if block in ours], f"confirmed {ours} of {term}, and there is {there}")
        for node in self.nodes.values():
            for applied, position in ((node.sink.blocks, node.sink.position), (node.sink.synced[0], node.sink.synced[1])):
                expected = [block for behind, _, block in counted if behind <= position]
                require(list(applied) == expected, f"{node.name} has {applied} at {position}, and there is {expected}")
        plain = [node for node in self.nodes.values() if node.is_plain]
        require(len(plain) <= 1, f"{[node.name for node in plain]} have it for themselves")
        for node in plain:
            lost = [one for one in self.confirmed if one.block not in node.sink.blocks]
            require(not lost, f"{node.name} has it for itself without {lost}")
        first = self.log.first
        if first:
            have = [node.sink.synced[1] for node in self.nodes.values()]
            quorum = sum(1 for position in have if position >= first) > len(have) // 2
            saved = [self.saved(name) for name in self.servers.objects]
            require(quorum or bool(self.scenario.loses), f"trimmed below {first}, and nodes have {have}")
            require(any(position >= first for position, _ in saved), f"trimmed below {first}, and there is {saved}")
        for position, there in map(self.saved, self.servers.objects):
            expected = [block for behind, _, block in counted if behind <= position]
            require(there == expected, f"a checkpoint at {position} has {there}, and there is {expected}")

    def saved(self, name: str) -> tuple[int, list[bytes]]:
        """Position and blocks of a checkpoint."""
        return int(name.split("/")[2].split("-", maxsplit=1)[0]), pickle.loads(self.servers.objects[name])[0]

    def check_new_owner(self, node: Node) -> None:
        """It has just taken over: what was confirmed by anybody is in what it has."""
        lost = [one for one in self.confirmed if one.block not in node.sink.blocks]
        require(not lost, f"{node.name} has taken over without {lost}")
        plain = [one.name for one in self.nodes.values() if one.is_plain]
        require(not plain, f"{node.name} has taken over what {plain} has for itself")


async def no_pause() -> None:
    pass


def require(holds: bool, text: str) -> None:
    if not holds:
        raise Broken(text)


class Result(NamedTuple):
    """How many states were visited, in how many runs, and at the ends of how many of them nothing was left to do."""

    states: int
    runs: int
    ends: int


def explore(scenario: Scenario, max_states: int = 0) -> Result:
    """Goes through all of it, or as many states as given. Raises Broken, with the choices that lead there as a note."""
    seen: set[int] = set()
    chosen: list[int] = []
    runs = ends = 0
    while True:
        runs += 1
        widths: list[int] = []
        loop = TinyLoop()
        asyncio._set_running_loop(loop)
        world = World(scenario, loop)
        try:
            while True:
                if len(widths) >= len(chosen):
                    judge(world)
                    key = hash(world.state())
                    if key in seen:
                        break
                    seen.add(key)
                actions = world.actions()
                if not actions:
                    ends += 1
                    break
                number = chosen[len(widths)] if len(widths) < len(chosen) else 0
                widths.append(len(actions))
                actions[number]()
        except Broken as broken:
            broken.add_note(f"choices: {chosen[: len(widths)]}")
            raise
        finally:
            give_up(world)
        chosen = chosen[: len(widths)] + [0] * (len(widths) - len(chosen))
        while chosen and chosen[-1] + 1 >= widths[len(chosen) - 1]:
            chosen.pop()
        if not chosen or (max_states and len(seen) >= max_states):
            return Result(len(seen), runs, ends)
        chosen[-1] += 1


def explore_breadth_first(
    scenario: Scenario, of: Callable[[Scenario, TinyLoop], World], loops: type[TinyLoop], max_states: int = 0
) -> Result:
    """As `explore`, by shortest ways: for worlds whose runs have no end."""
    seen: set[int] = set()
    ways: deque[list[int]] = deque([[]])
    runs = ends = 0
    while ways and not (max_states and len(seen) >= max_states):
        way = ways.popleft()
        runs += 1
        loop = loops()
        asyncio._set_running_loop(loop)
        world = of(scenario, loop)
        try:
            for number in way:
                world.actions()[number]()
            judge(world)
            key = hash(world.state())
            if key not in seen:
                seen.add(key)
                count = len(world.actions())
                ends += not count
                ways.extend([*way, number] for number in range(count))
        except Broken as broken:
            broken.add_note(f"choices: {way}")
            raise
        finally:
            give_up(world)
    return Result(len(seen), runs, ends)


def judge(world: World) -> None:
    for node in world.nodes.values():
        task = node.task
        if task is not None and task.done() and not task.cancelled():
            error = task.exception()
            if error is not None and not isinstance(error, Deposed | Trimmed | NoSuchLog | blocks.Ended):
                raise error
    world.check()


def give_up(world: World) -> None:
    """Ends what is under way, so that nothing is reported of it."""
    asyncio._set_running_loop(None)
    for node in world.nodes.values():
        for task in node.tasks:
            task.cancel()
    for step in world.servers.pending:
        step.future.cancel()
    for _, future in world.syncs:
        future.cancel()
    world.loop.drain()


__all__ = ["Broken", "Confirmed", "Entry", "Node", "Result", "Scenario", "World", "explore", "explore_breadth_first"]
