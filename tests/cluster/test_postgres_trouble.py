"""PostgreSQL in trouble: standbys that do not answer, commits that are cancelled, primaries that come back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import asyncpg
import pytest

from cluster.engine_rigs import PostgresRig
from perf.engines.postgres import PostgresServer
from rabbitpy_broker.cluster.log import OutcomeUnknown, ReplicatedLog, Unavailable
from rabbitpy_broker.cluster.postgres.engine import PostgresEngine
from rabbitpy_broker.errors import StartError
from support import eventually, unique

Connect = Callable[..., PostgresEngine]
IMPATIENT = 0.5  # seconds, where an answer does not come
PATIENT = 60.0


@pytest.fixture(scope="module")
def rig() -> Iterator[PostgresRig]:
    rig = PostgresRig()
    yield rig
    rig.close()


@pytest.fixture
async def engine(rig: PostgresRig) -> AsyncIterator[PostgresEngine]:
    engine = PostgresEngine(rig.servers.url, timeout=PATIENT)
    await engine.start()
    yield engine
    await engine.stop()


@pytest.fixture
async def log(engine: PostgresEngine) -> ReplicatedLog:
    name = unique("log")
    await engine.create_log(name)
    log = engine.log(name)
    await log.append(b"0", term=1)
    await asyncio.gather(*(log.end() for _ in range(4)))  # so that there are connections, and none is made in the trouble
    return log


@pytest.fixture
def paused_standbys(rig: PostgresRig) -> Iterator[list[PostgresServer]]:
    """Both standbys, which do not answer until they are resumed."""
    standbys = rig.servers.standbys
    for standby in standbys:
        standby.pause()
    yield standbys
    for standby in standbys:
        standby.resume()


async def blocks(log: ReplicatedLog) -> list[bytes]:
    return [entry.block for entry in await log.reader(0).next()]


async def waits_for_standbys(rig: PostgresRig) -> int:
    """The process of the primary whose commit waits for a standby, when there is one."""
    statement = "SELECT pid FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
    return int(await asyncio.to_thread(lambda: eventually(lambda: rig.servers.primary.sql(statement), timeout=PATIENT)))


async def test_connections_that_are_made_side_by_side_to_another_primary_are_all_used(engine: PostgresEngine):
    connections = engine._connections
    for connection in list(connections._all):
        connections.drop(connection)
    connections._home = "127.0.0.1", 1  # which is no more
    found = await asyncio.gather(*(engine.logs() for _ in range(6)))
    assert found == [found[0]] * 6
    assert len(connections._all) == 6


@pytest.mark.parametrize("step", ["_get_statement", "_do_execute"])
async def test_a_connection_that_is_dropped_between_two_steps_of_a_statement_is_lost_and_no_more(
    engine: PostgresEngine, log: ReplicatedLog, monkeypatch: pytest.MonkeyPatch, step: str
):
    """As those to the primary of before are, when there is another."""
    take = getattr(asyncpg.Connection, step)

    async def dropped(connection: asyncpg.Connection, *arguments: Any, **options: Any) -> Any:
        if step == "_do_execute":
            connection.terminate()
        found = await take(connection, *arguments, **options)
        connection.terminate()
        return found

    monkeypatch.setattr(asyncpg.Connection, step, dropped)
    for _ in range(6):  # the connections that there are, and new ones
        with pytest.raises(Unavailable):
            await engine.registry.get("name")
        with pytest.raises((OutcomeUnknown, Unavailable)):
            await engine.registry.put("name", b"value")
        with pytest.raises((OutcomeUnknown, Unavailable)):
            await log.append(b"1", term=1)
        with pytest.raises(Unavailable):
            await log.reader(1).next(1.0)
    monkeypatch.undo()
    assert (await blocks(log))[0] == b"0"
    await log.append(b"2", term=1)
    assert (await blocks(log))[-1] == b"2"


async def test_without_standbys_nothing_is_confirmed_and_nothing_is_seen(
    rig: PostgresRig, log: ReplicatedLog, paused_standbys: list[PostgresServer]
):
    append = log.append(b"1", term=1, expected=1)
    await waits_for_standbys(rig)
    assert await blocks(log) == [b"0"]
    assert not append.done()
    for standby in paused_standbys:
        standby.resume()
    assert await append == 1
    assert await blocks(log) == [b"0", b"1"]


async def test_an_append_without_an_answer_in_time_is_unknown_and_may_land_later(
    rig: PostgresRig, log: ReplicatedLog, paused_standbys: list[PostgresServer], monkeypatch: pytest.MonkeyPatch
):
    with monkeypatch.context() as impatient:
        impatient.setattr(log.connections, "timeout", IMPATIENT)
        with pytest.raises(OutcomeUnknown, match=r"no answer in 0\.5 s"):
            await log.append(b"1", term=1, expected=1)
    for standby in paused_standbys:
        standby.resume()
    assert await log.append(b"fence", term=2) == 2
    assert await blocks(log) == [b"0", b"1", b"fence"]


async def test_a_commit_whose_wait_was_cancelled_is_unknown(
    rig: PostgresRig, log: ReplicatedLog, paused_standbys: list[PostgresServer]
):
    append = log.append(b"1", term=1, expected=1)
    process = await waits_for_standbys(rig)
    rig.servers.primary.sql(f"SELECT pg_cancel_backend({process})")
    with pytest.raises(OutcomeUnknown, match="canceling wait for synchronous replication"):
        await append
    for standby in paused_standbys:
        standby.resume()
    assert await log.append(b"fence", term=2) == 2


async def test_what_a_crashed_primary_had_for_itself_is_not_seen_before_a_standby_has_it(
    rig: PostgresRig, log: ReplicatedLog, paused_standbys: list[PostgresServer]
):
    append = log.append(b"1", term=1, expected=1)
    await waits_for_standbys(rig)
    primary = rig.servers.primary
    await asyncio.to_thread(primary.kill)
    with pytest.raises(OutcomeUnknown):
        await append
    primary.start()
    await asyncio.to_thread(lambda: eventually(primary.is_ready, timeout=PATIENT))
    name = log.name
    assert primary.sql(f"SELECT next FROM rabbitpy.log WHERE name = '{name}'") == "2"  # it shows what no standby has
    other = PostgresEngine(f"postgresql://postgres@127.0.0.1:{primary.port}/postgres", timeout=IMPATIENT)
    with pytest.raises(Unavailable, match=r"its standbys do not confirm within 0\.5 s"):
        await other.start()
    await other.stop()
    for standby in paused_standbys:
        standby.resume()
    other = PostgresEngine(rig.servers.url, timeout=PATIENT)
    await other.start()
    assert await blocks(other.log(name)) == [b"0", b"1"]
    await other.stop()


async def test_leases_and_trims_do_not_wait_for_standbys(
    engine: PostgresEngine, log: ReplicatedLog, paused_standbys: list[PostgresServer]
):
    node = unique("node")
    await engine.registry.keep_alive(node, 60, b"here")
    assert (await engine.registry.alive())[node] == b"here"
    await log.trim(1)
    assert await log.first() == 1
    await engine.registry.leave(node)


async def test_what_is_under_way_when_the_engine_stops_is_unknown_or_undone(
    engine: PostgresEngine, log: ReplicatedLog, paused_standbys: list[PostgresServer]
):
    under_way = [log.append(b"%d" % number, term=number, expected=number) for number in range(1, 4)]
    await asyncio.sleep(0)
    await engine.stop()
    for append in under_way:
        with pytest.raises((OutcomeUnknown, Unavailable)):
            await append


async def test_connections_that_wait_for_standbys_do_not_pile_up(
    rig: PostgresRig, log: ReplicatedLog, paused_standbys: list[PostgresServer]
):
    """The server would not notice that nobody waits for them any more."""
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
    before = int(await asyncio.to_thread(rig.servers.primary.sql, waiting))
    other = PostgresEngine(f"postgresql://postgres@127.0.0.1:{rig.servers.primary.port}/postgres", timeout=IMPATIENT)
    for _ in range(6):
        with pytest.raises(Unavailable, match="its standbys do not confirm"):
            await other.registry.get("name")
    assert int(await asyncio.to_thread(rig.servers.primary.sql, waiting)) <= before + 1
    for standby in paused_standbys:
        standby.resume()
    patient = asyncio.get_running_loop().time() + PATIENT
    while True:
        try:
            assert await other.registry.get("name") is None
            break
        except Unavailable:
            assert asyncio.get_running_loop().time() < patient
    await other.stop()


async def test_connections_that_were_ended_are_made_anew(rig: PostgresRig, log: ReplicatedLog):
    ended = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name = 'rabbitpy-broker'"
    assert int(await asyncio.to_thread(rig.servers.primary.sql, ended)) > 0
    reading = asyncio.ensure_future(log.reader(1).next(wait=PATIENT))
    await asyncio.sleep(0)
    while True:
        try:
            position = await log.append(b"1", term=2)
        except (OutcomeUnknown, Unavailable):
            continue
        break
    try:
        assert (await reading)[0].position <= position
    except Unavailable:  # it may have met the end of a connection
        assert len(await blocks(log)) >= 2


async def test_settings_that_break_the_promise_are_refused_at_the_start_and_later(
    rig: PostgresRig, engine: PostgresEngine, log: ReplicatedLog
):
    weak = PostgresEngine(rig.servers.url + "?synchronous_commit=local")
    with pytest.raises(StartError, match=r"^postgresql: synchronous_commit is local, .* set it to on$"):
        await weak.start()
    primary = rig.servers.primary
    before = primary.sql("SHOW synchronous_standby_names")
    primary.sql("ALTER SYSTEM SET synchronous_standby_names = ''")
    primary.sql("SELECT pg_reload_conf()")
    try:
        await asyncio.to_thread(
            lambda: eventually(lambda: not primary.sql("SHOW synchronous_standby_names"), timeout=PATIENT)
        )
        with pytest.raises(StartError, match=r"^postgresql: synchronous_standby_names is empty .* set it to 'ANY 1 \("):
            await PostgresEngine(rig.servers.url).start()
        with pytest.raises(Unavailable, match="synchronous_standby_names is empty"):
            while True:  # its connection may not have read the new setting yet
                await log.append(b"unsafe", term=1)
    finally:
        primary.sql("ALTER SYSTEM RESET synchronous_standby_names")
        primary.sql("SELECT pg_reload_conf()")
        await asyncio.to_thread(
            lambda: eventually(lambda: primary.sql("SHOW synchronous_standby_names") == before, timeout=PATIENT)
        )


async def test_engines_that_start_together_make_the_schema_once(rig: PostgresRig):
    name = unique("db").replace("-", "_")
    rig.servers.primary.sql(f"CREATE DATABASE {name}")
    engines = [PostgresEngine(rig.servers.url.removesuffix("postgres") + name) for _ in range(4)]
    await asyncio.gather(*(one.start() for one in engines))
    await engines[0].create_log("log")
    assert await engines[1].logs() == ["log"]
    await asyncio.gather(*(one.stop() for one in engines))


async def test_a_newer_schema_is_refused(rig: PostgresRig, engine: PostgresEngine):
    rig.servers.primary.sql("UPDATE rabbitpy.format SET version = version + 100")
    other = PostgresEngine(rig.servers.url)
    with pytest.raises(StartError, match=r"the schema rabbitpy has format 10\d, this broker knows \d: use a newer one"):
        await other.start()
    await other.stop()
    rig.servers.primary.sql("UPDATE rabbitpy.format SET version = version - 100")


async def test_a_primary_that_slept_through_its_replacement_confirms_nothing(rig: PostgresRig, log: ReplicatedLog):
    """The last of the file. The former primary is woken and takes appends, which its standbys never confirm."""
    former = rig.servers.primary
    former.pause()
    await asyncio.to_thread(rig.servers.promote)
    former.resume()
    log.connections.timeout = 1.0
    other = PostgresEngine(rig.servers.url, timeout=PATIENT)
    told: list[bytes] = []
    try:
        for number in range(1, 100):
            try:
                await log.append(b"%d" % number, term=number, expected=None)
            except (OutcomeUnknown, Unavailable):
                continue
            told.append(b"%d" % number)
            break
        await asyncio.to_thread(former.kill)
        await other.start()
        found = await blocks(other.log(log.name))
        assert found[0] == b"0"
        assert [block for block in found if block in told] == told
        assert told
    finally:
        await other.stop()
