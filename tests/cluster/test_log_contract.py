"""What every engine of the cluster guarantees: one suite for all of them (rabbitpy_broker/cluster/log.py and registry.py)."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from cluster.engine_rigs import EngineRig
from rabbitpy_broker.cluster.engine import Engine
from rabbitpy_broker.cluster.log import (
    Counting,
    Entry,
    Misplaced,
    NoSuchLog,
    NoSuchObject,
    ObjectInfo,
    OutcomeUnknown,
    Refused,
    ReplicatedLog,
    Trimmed,
    Unavailable,
)
from rabbitpy_broker.cluster.registry import Change, Conflict
from support import unique

PATIENCE = 30.0  # seconds, for what comes at once on an idle machine


@pytest.fixture
async def rig(servers: EngineRig) -> AsyncIterator[EngineRig]:
    yield servers
    await servers.disconnect()


@pytest.fixture
async def engine(rig: EngineRig) -> Engine:
    return await rig.connect("a")


@pytest.fixture
async def log(engine: Engine) -> ReplicatedLog:
    name = unique("log")
    await engine.create_log(name)
    return engine.log(name)


async def contents(log: ReplicatedLog, position: int = 0) -> list[Entry]:
    """All entries from a position to the end."""
    reader = log.reader(position)
    found: list[Entry] = []
    while batch := await reader.next():
        found += batch
    await reader.close()
    return found


async def blocks(log: ReplicatedLog, position: int = 0) -> list[bytes]:
    """The blocks that count, from a position to the end."""
    counting = Counting()
    return [entry.block for entry in await contents(log, position) if counting.counts(entry)]


async def becomes(condition: Callable[[], Awaitable[bool]]) -> None:
    """Waits until the condition holds."""
    async with asyncio.timeout(PATIENCE):
        while not await condition():
            await asyncio.sleep(0.02)


# --- append and read -----------------------------------------------------------------------------------------------------


async def test_an_empty_log_begins_and_ends_at_0(log: ReplicatedLog):
    assert (await log.first(), await log.end(), await contents(log)) == (0, 0, [])


async def test_each_append_gets_the_position_behind_the_last(log: ReplicatedLog):
    assert [await log.append(b"%d" % number, term=1) for number in range(5)] == [0, 1, 2, 3, 4]
    assert await log.end() == 5
    assert await contents(log) == [Entry(number, 1, False, b"%d" % number) for number in range(5)]


async def test_appends_under_way_keep_the_order_of_the_calls(log: ReplicatedLog):
    under_way = [log.append(b"%d" % number, term=1, expected=number) for number in range(200)]
    assert await asyncio.gather(*under_way) == list(range(200))
    assert await blocks(log) == [b"%d" % number for number in range(200)]


async def test_blocks_of_any_size_come_back_as_they_were(log: ReplicatedLog):
    sent = [b"", b"\0", bytes(range(256)) * 300, b"x" * (3 << 20), b"end"]
    await asyncio.gather(*(log.append(block, term=1) for block in sent))
    assert await blocks(log) == sent


async def test_concurrent_writers_share_one_order_without_gaps(rig: EngineRig, log: ReplicatedLog):
    """Without an expected position; each sees its own blocks in its own order, and all see the same log."""
    handles = [(await rig.connect(node)).log(log.name) for node in "bcd"]
    positions = await asyncio.gather(
        *(handle.append(b"%d.%d" % (writer, number), term=1) for number in range(20) for writer, handle in enumerate(handles))
    )
    assert sorted(positions) == list(range(60))
    seen = [await contents(handle) for handle in handles]
    assert seen[0] == seen[1] == seen[2]
    for writer in range(3):
        assert [entry.block for entry in seen[0] if entry.block.startswith(b"%d." % writer)] == [
            b"%d.%d" % (writer, number) for number in range(20)
        ]


async def test_an_append_that_returned_is_seen_by_everybody_at_once(rig: EngineRig, log: ReplicatedLog):
    other = (await rig.connect("b")).log(log.name)
    reader = other.reader(0)
    for number in range(10):
        await log.append(b"%d" % number, term=1)
        assert await other.end() == number + 1
        assert [entry.block for entry in await reader.next()] == [b"%d" % number]
    await reader.close()


async def test_a_read_begins_anywhere(log: ReplicatedLog):
    await asyncio.gather(*(log.append(b"%d" % number, term=1) for number in range(10)))
    for position in range(11):
        assert [entry.position for entry in await contents(log, position)] == list(range(position, 10))


async def test_a_long_log_is_read_in_batches(log: ReplicatedLog):
    await asyncio.gather(*(log.append(bytes([number]) * (1 << 20), term=1) for number in range(12)))
    reader = log.reader(0)
    batch = await reader.next()
    assert 1 <= len(batch) < 12
    assert reader.position == len(batch)
    rest = [entry async for entry in reader.entries(up_to=11)]
    assert [entry.position for entry in batch + rest] == list(range(11))
    assert reader.position == 11
    await reader.close()


async def test_a_reader_waits_for_more(rig: EngineRig, log: ReplicatedLog):
    reader = (await rig.connect("b")).log(log.name).reader(0)
    for number in range(3):
        waiting = asyncio.ensure_future(reader.next(wait=PATIENCE))
        await log.append(b"%d" % number, term=1)
        assert [entry.block for entry in await waiting] == [b"%d" % number]
    assert await reader.next(wait=0.05) == []
    await reader.close()


async def test_logs_are_apart(engine: Engine, log: ReplicatedLog):
    other = unique("log")
    await engine.create_log(other)
    await log.append(b"one", term=1)
    assert await engine.log(other).append(b"other", term=1) == 0
    assert await blocks(log) == [b"one"]
    assert {log.name, other} <= set(await engine.logs())


async def test_a_log_is_created_once_and_deleted_with_its_entries(engine: Engine, log: ReplicatedLog):
    await log.append(b"one", term=4)
    await engine.create_log(log.name)
    assert await blocks(log) == [b"one"]
    await engine.delete_log(log.name)
    await engine.delete_log(log.name)
    assert log.name not in await engine.logs()
    await engine.create_log(log.name)
    assert await engine.log(log.name).append(b"new", term=1) == 0


async def test_a_log_that_is_not_there_is_named(engine: Engine):
    log = engine.log(unique("nowhere"))
    for call in (log.append(b"", term=1), log.end(), log.first(), log.reader(0).next(), log.trim(0)):
        with pytest.raises(NoSuchLog):
            await call


# --- what counts ---------------------------------------------------------------------------------------------------------


async def does_not_count(rig: EngineRig, append: asyncio.Future[int]) -> None:
    """The append is refused, or where the engine cannot do so, it is misplaced or of a lower term."""
    if rig.conditional:
        with pytest.raises(Refused):
            await append
    else:
        try:
            await append
        except Misplaced:
            pass


async def test_a_block_at_another_position_does_not_count(rig: EngineRig, log: ReplicatedLog):
    await log.append(b"0", term=1, expected=0)
    await does_not_count(rig, log.append(b"again", term=1, expected=0))
    await does_not_count(rig, log.append(b"too far", term=1, expected=7))
    end = await log.end()
    assert await log.append(b"1", term=1, expected=end) == end
    assert await blocks(log) == [b"0", b"1"]


async def test_a_former_owner_cannot_add_anything_that_counts(rig: EngineRig, log: ReplicatedLog):
    """The fence of a higher term: whatever the former owner expects, and had under way."""
    former = (await rig.connect("b")).log(log.name)
    await former.append(b"0", term=1, expected=0)
    fence = await log.append(b"fence", term=2)
    for expected in (fence, fence + 1, None):
        await does_not_count(rig, former.append(b"late", term=1, expected=expected))
    end = await log.end()
    assert await log.append(b"new owner", term=2, expected=end) == end
    assert await blocks(log) == [b"0", b"fence", b"new owner"]


async def test_a_refusal_tells_how_the_log_stands(rig: EngineRig, log: ReplicatedLog):
    await log.append(b"0", term=3)
    append = log.append(b"late", term=2)
    await does_not_count(rig, append)
    if rig.conditional:
        refused = append.exception()
        assert isinstance(refused, Refused)
        assert (refused.term, refused.end) == (3, 1)


async def test_what_is_under_way_behind_a_refusal_does_not_count_either(rig: EngineRig, log: ReplicatedLog):
    await log.append(b"0", term=1, expected=0)
    under_way = [log.append(b"%d" % number, term=1, expected=number) for number in range(5, 10)]
    for append in under_way:
        await does_not_count(rig, append)
    assert await blocks(log) == [b"0"]


# --- unknown outcomes ----------------------------------------------------------------------------------------------------


async def higher_term(log: ReplicatedLog, term: int) -> None:
    """Appends the fence of a term, as often as it takes."""

    async def fenced() -> bool:
        try:
            await log.append(b"fence %d" % term, term=term)
        except (OutcomeUnknown, Unavailable):
            return False
        return True

    await becomes(fenced)


async def test_an_unknown_outcome_is_closed_by_a_higher_term(rig: EngineRig):
    engine = await rig.connect_breakable()
    name = unique("log")
    await engine.create_log(name)
    log = engine.log(name)
    await log.append(b"0", term=1, expected=0)
    rig.break_append(b"the lost one")
    with pytest.raises(OutcomeUnknown):
        await log.append(b"the lost one", term=1, expected=1)
    await higher_term(log, 2)
    assert await blocks(log) == [b"0", b"the lost one", b"fence 2"]
    end = await log.end()
    assert await log.append(b"next", term=2, expected=end) == end


async def test_what_was_under_way_behind_an_unknown_outcome_counts_in_its_place_or_never(rig: EngineRig):
    engine = await rig.connect_breakable()
    name = unique("log")
    await engine.create_log(name)
    log = engine.log(name)
    rig.break_append(b"number 3")
    sent = [b"number %d" % number for number in range(20)]
    under_way = [log.append(block, term=1, expected=number) for number, block in enumerate(sent)]
    told: list[bytes] = []
    for block, append in zip(sent, under_way, strict=True):
        try:
            await append
        except (OutcomeUnknown, Unavailable, Refused, Misplaced):
            break
        told.append(block)
    assert len(told) < len(sent)
    await higher_term(log, 2)
    found = [block for block in await blocks(log) if block != b"fence 2"]
    assert found == sent[: len(found)]
    assert len(found) >= len(told)


# --- trim ----------------------------------------------------------------------------------------------------------------


async def test_a_trimmed_log_keeps_its_positions(log: ReplicatedLog):
    await asyncio.gather(*(log.append(b"%d" % number, term=1) for number in range(10)))
    await log.trim(4)

    async def trimmed() -> bool:
        return await log.first() == 4

    await becomes(trimmed)
    with pytest.raises(Trimmed) as caught:
        await log.reader(3).next()
    assert caught.value.first == 4
    assert await blocks(log, 4) == [b"%d" % number for number in range(4, 10)]
    assert await log.append(b"10", term=1, expected=10) == 10
    await log.trim(2)
    assert await log.first() == 4


async def test_a_reader_that_is_overtaken_says_so(rig: EngineRig, log: ReplicatedLog):
    await asyncio.gather(*(log.append(b"x" * (1 << 20), term=1) for _ in range(12)))
    reader = (await rig.connect("b")).log(log.name).reader(0)
    await reader.next()
    await log.trim(12)

    async def overtaken() -> bool:
        try:
            return not await reader.next()
        except Trimmed as trimmed:
            return trimmed.first == 12

    await becomes(overtaken)
    await reader.close()


async def test_a_log_that_is_trimmed_to_its_end_is_empty_and_goes_on(log: ReplicatedLog):
    await asyncio.gather(*(log.append(b"%d" % number, term=5) for number in range(3)))
    await log.trim(3)

    async def trimmed() -> bool:
        return await log.first() == 3

    await becomes(trimmed)
    assert (await log.end(), await contents(log, 3)) == (3, [])
    assert await log.append(b"3", term=5, expected=3) == 3
    assert await blocks(log, 3) == [b"3"]


# --- objects -------------------------------------------------------------------------------------------------------------


async def parts(count: int, size: int) -> AsyncIterator[bytes]:
    for number in range(count):
        yield bytes([number]) * size


async def test_an_object_of_20_mb_comes_back(rig: EngineRig, engine: Engine):
    name = unique("object")
    expected = hashlib.sha256()
    async for part in parts(20, 1_000_000):
        expected.update(part)
    assert await engine.objects.put(name, parts(20, 1_000_000)) == 20_000_000
    found = hashlib.sha256()
    async for part in (await rig.connect("b")).objects.get(name):
        assert part
        found.update(part)
    assert found.digest() == expected.digest()
    assert await engine.objects.list(name) == [ObjectInfo(name, 20_000_000)]


async def whole(engine: Engine, name: str) -> bytes:
    return b"".join([part async for part in engine.objects.get(name)])


async def test_objects_are_replaced_listed_and_deleted(engine: Engine):
    prefix = unique("objects") + "/"
    await engine.objects.put(prefix + "b", parts(1, 10))
    await engine.objects.put(prefix + "a", parts(0, 0))
    assert await engine.objects.put(prefix + "b", parts(2, 5)) == 10
    assert await whole(engine, prefix + "b") == b"\0" * 5 + b"\1" * 5
    assert await whole(engine, prefix + "a") == b""
    assert await engine.objects.list(prefix) == [ObjectInfo(prefix + "a", 0), ObjectInfo(prefix + "b", 10)]
    await engine.objects.delete(prefix + "b")
    await engine.objects.delete(prefix + "b")
    assert await engine.objects.list(prefix) == [ObjectInfo(prefix + "a", 0)]
    with pytest.raises(NoSuchObject):
        await whole(engine, prefix + "b")


async def test_an_object_that_could_not_be_finished_is_not_seen(engine: Engine):
    name = unique("object")
    await engine.objects.put(name, parts(1, 10))

    async def broken() -> AsyncIterator[bytes]:
        yield b"x" * 3_000_000
        raise OSError("the disk is gone")

    with pytest.raises(OSError, match="the disk is gone"):
        await engine.objects.put(name, broken())
    assert await whole(engine, name) == b"\0" * 10


# --- registry ------------------------------------------------------------------------------------------------------------


async def test_a_value_is_changed_by_compare_and_set(rig: EngineRig, engine: Engine):
    name, other = unique("name"), (await rig.connect("b")).registry
    assert await engine.registry.get(name) is None
    first = await engine.registry.put(name, b"one", 0)
    assert await other.get(name) == (b"one", first)
    with pytest.raises(Conflict) as caught:
        await other.put(name, b"mine", 0)
    assert caught.value.version == first
    second = await other.put(name, b"two", first)
    assert second > first
    with pytest.raises(Conflict):
        await engine.registry.put(name, b"late", first)
    with pytest.raises(Conflict):
        await engine.registry.delete(name, first)
    third = await engine.registry.put(name, b"three")
    await other.delete(name, third)
    assert await engine.registry.get(name) is None
    await engine.registry.delete(name)
    with pytest.raises(Conflict) as caught:
        await engine.registry.put(name, b"late", third)
    assert caught.value.version == 0
    assert await engine.registry.put(name, b"anew", 0) > third


async def test_of_many_who_compare_and_set_one_wins(rig: EngineRig):
    name = unique("name")
    registries = [(await rig.connect(node)).registry for node in "abcd"]
    outcomes = await asyncio.gather(
        *(one.put(name, b"%d" % number, 0) for number, one in enumerate(registries)), return_exceptions=True
    )
    won = [number for number, outcome in enumerate(outcomes) if not isinstance(outcome, BaseException)]
    assert len(won) == 1
    assert all(isinstance(outcome, Conflict) for number, outcome in enumerate(outcomes) if number != won[0])
    assert await registries[0].get(name) == (b"%d" % won[0], outcomes[won[0]])


async def test_names_are_listed_by_prefix(engine: Engine):
    prefix = unique("names") + "/%_"  # as it is, also where a database has patterns
    versions = [await engine.registry.put(prefix + name, name.encode()) for name in ("a", "b")]
    await engine.registry.put(prefix.replace("%", "x"), b"another")
    assert await engine.registry.list(prefix) == {prefix + "a": (b"a", versions[0]), prefix + "b": (b"b", versions[1])}


async def test_a_watch_shows_what_is_there_and_then_what_changes(rig: EngineRig, engine: Engine):
    prefix, registry = unique("watched") + "/", engine.registry
    version = await registry.put(prefix + "a", b"1")
    watch = (await rig.connect("b")).registry.watch(prefix)
    assert await watch.next() == [Change(prefix + "a", b"1", version)]
    assert await watch.next() == []
    waiting = asyncio.ensure_future(watch.next(wait=PATIENCE))
    await registry.put(unique("elsewhere"), b"")
    version = await registry.put(prefix + "b", b"2")
    assert await waiting == [Change(prefix + "b", b"2", version)]
    await registry.delete(prefix + "a")
    changed = await registry.put(prefix + "b", b"3")
    seen: dict[str, bytes | None] = {}

    async def settled() -> bool:
        seen.update({change.name: change.value for change in await watch.next(wait=0.1)})
        return seen == {prefix + "a": None, prefix + "b": b"3"}

    await becomes(settled)
    assert (await registry.get(prefix + "b")) == (b"3", changed)
    await watch.close()


async def test_a_lease_ends_unless_it_is_renewed(rig: EngineRig, engine: Engine):
    short, long, other = unique("node"), unique("node"), (await rig.connect("b")).registry
    await engine.registry.keep_alive(short, 0.3, b"here")
    await engine.registry.keep_alive(long, 0.3)
    await engine.registry.keep_alive(long, 100 * PATIENCE, b"there")

    async def ended() -> bool:
        alive = await other.alive()
        assert alive[long] == b"there"
        return short not in alive

    await becomes(ended)
    await engine.registry.keep_alive(short, 100 * PATIENCE, b"back")
    assert (await other.alive())[short] == b"back"
    await engine.registry.leave(long)
    await engine.registry.leave(long)
    assert long not in await other.alive()


# --- the servers ---------------------------------------------------------------------------------------------------------


async def test_what_has_returned_outlives_the_leader(rig: EngineRig, engine: Engine):
    """The last of the file, as one server less is left. Appends go on while the leader is killed and another takes its place."""
    name = unique("log")
    await engine.create_log(name)
    log = engine.log(name)
    version = await engine.registry.put(name, b"before", 0)
    await engine.objects.put(name, parts(3, 1_000_000))
    told: list[bytes] = []
    last = asyncio.Event()

    async def owner() -> None:
        """Appends with eight under way; after a failure with a higher term, behind all that is there."""
        term = number = 0
        while not last.is_set():
            term += 1
            await higher_term(log, term)
            expected = await log.end()
            under_way: deque[tuple[bytes, asyncio.Future[int]]] = deque()
            with contextlib.suppress(OutcomeUnknown, Unavailable, Refused, Misplaced):
                while not last.is_set():
                    while len(under_way) < 8:
                        block = b"%d" % number
                        under_way.append((block, log.append(block, term=term, expected=expected)))
                        number, expected = number + 1, expected + 1
                    block, append = under_way.popleft()
                    await append
                    told.append(block)

    owning = asyncio.ensure_future(owner())

    async def some() -> bool:
        return len(told) >= 50

    await becomes(some)
    await asyncio.to_thread(rig.kill_leader)
    before = len(told)

    async def more() -> bool:
        return len(told) >= before + 50

    await becomes(more)
    last.set()
    await owning
    other = await rig.connect("b")
    found = [block for block in await blocks(other.log(name)) if not block.startswith(b"fence")]
    assert [block for block in found if block in set(told)] == told
    assert len(set(found)) == len(found)
    assert await other.registry.get(name) == (b"before", version)
    assert len(await whole(other, name)) == 3_000_000
