"""Kafka in trouble: leaders that sleep, no quorum, topics with other settings; and the registry's log when it is trimmed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from aiokafka.protocol.admin import CreateTopicsRequest
from aiokafka.protocol.offset import OffsetRequest
from aiokafka.protocol.produce import ProduceRequest

from cluster.engine_rigs import KafkaRig, leader
from rabbitpy_broker.cluster.kafka import table
from rabbitpy_broker.cluster.kafka.connections import Address, Answer, Brokers, Trouble
from rabbitpy_broker.cluster.kafka.engine import KafkaEngine
from rabbitpy_broker.cluster.kafka.settings import parse
from rabbitpy_broker.cluster.log import ClusterError, Entry, OutcomeUnknown, ReplicatedLog, Unavailable
from rabbitpy_broker.errors import StartError
from support import unique

PATIENCE = 60.0


@pytest.fixture
def rig(kafka_rig: KafkaRig) -> KafkaRig:
    return kafka_rig


@pytest.fixture
async def connect(rig: KafkaRig) -> AsyncIterator[Callable[..., Awaitable[KafkaEngine]]]:
    """Starts an engine with options of the URL and another prefix, if one is given."""
    engines: list[KafkaEngine] = []

    async def connected(options: str = "", prefix: str = "rabbitpy") -> KafkaEngine:
        engine = KafkaEngine(rig.servers.url.replace("/rabbitpy", f"/{prefix}") + options)
        engines.append(engine)
        await engine.start()
        return engine

    yield connected
    for engine in engines:
        await engine.stop()


async def becomes(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not await condition():
            await asyncio.sleep(0.05)


async def contents(log: ReplicatedLog) -> list[Entry]:
    reader = log.reader(await log.first())
    try:
        return [entry async for entry in reader.entries(up_to=await log.end())]
    finally:
        await reader.close()


async def test_a_leader_that_sleeps_and_wakes_loses_doubles_and_mixes_nothing(
    rig: KafkaRig, connect: Callable[..., Awaitable[KafkaEngine]]
):
    """Appends go on while the leader is stopped (SIGSTOP), another takes its place, and the first wakes and follows."""
    engine = await connect("?timeout=12")
    name = unique("log")
    await engine.create_log(name)
    log, topic = engine.log(name), f"rabbitpy.log.{name}"
    told: list[bytes] = []
    last = asyncio.Event()

    async def owner() -> None:
        number = 0
        while not last.is_set():
            sent = [b"%d" % one for one in range(number, number + 8)]
            number += 8
            appends = [log.append(block, term=1) for block in sent]
            outcomes = await asyncio.gather(*appends, return_exceptions=True)
            for block, outcome in zip(sent, outcomes, strict=True):
                if isinstance(outcome, int):
                    told.append(block)
                else:
                    assert isinstance(outcome, (OutcomeUnknown, Unavailable))

    owning = asyncio.ensure_future(owner())

    async def more_told(count: int) -> None:
        wanted = len(told) + count

        async def enough() -> bool:
            return len(told) >= wanted

        await becomes(enough)

    await more_told(80)
    sleeper = await leader(rig.servers, topic)
    sleeper.pause()
    try:
        await leader(rig.servers, topic, before=sleeper)
        await more_told(80)
    finally:
        sleeper.resume()
    await more_told(80)
    last.set()
    await owning
    found = [entry.block for entry in await contents((await connect()).log(name))]
    there = set(told)
    assert [block for block in found if block in there] == told
    assert len(set(found)) == len(found)


async def test_the_end_is_not_what_a_former_leader_takes_for_it(connect: Callable[..., Awaitable[KafkaEngine]]):
    """It has woken, and has not heard yet that another one leads; nor has who asks it."""
    engine = await connect()
    name = unique("log")
    await engine.create_log(name)
    log, topic = engine.log(name), f"rabbitpy.log.{name}"
    assert [await log.append(b"%d" % number, term=1) for number in range(5)] == [0, 1, 2, 3, 4]
    brokers, send = engine._brokers, engine._brokers.send
    leads = await brokers.leader(topic)
    woken = next(address for address in brokers._addresses if address[1] != leads[1])

    async def stale(address: Address, request: Any, purpose: str) -> Answer:
        if address == woken and isinstance(request, OffsetRequest):
            return {"topics": [{"partitions": [{"error_code": 0, "offset": 2}]}]}
        return await send(address, request, purpose)

    brokers.send = stale  # type: ignore[method-assign]
    brokers._leaders[topic] = woken
    assert await log.leaders_end() == 2
    assert await log.end() == 5


async def test_appends_whose_answers_are_lost_are_asked_again_and_are_there_once(connect: Callable[..., Awaitable[KafkaEngine]]):
    engine = await connect()
    name = unique("log")
    await engine.create_log(name)
    send = engine._brokers.send
    lost: list[Answer] = []

    async def losing(address: Address, request: Any, purpose: str) -> Answer:
        """Every second answer to an append is lost with its connection."""
        answer = await send(address, request, purpose)
        if isinstance(request, ProduceRequest):
            lost.append(answer)
            if len(lost) % 2:
                engine._brokers.drop(address, purpose)
                raise Trouble("the connection is lost", unsure=True)
        return answer

    engine._brokers.send = losing  # type: ignore[method-assign]
    log = engine.log(name)
    for number in range(3):
        batch = range(10 * number, 10 * number + 10)
        assert await asyncio.gather(*(log.append(b"%d" % one, term=1, expected=one) for one in batch)) == list(batch)
    assert len(lost) == 6
    assert [entry.block for entry in await contents(log)] == [b"%d" % number for number in range(30)]


async def test_without_a_quorum_nothing_is_told_and_all_goes_on_with_one(
    rig: KafkaRig, connect: Callable[..., Awaitable[KafkaEngine]]
):
    engine = await connect("?timeout=2")
    name = unique("log")
    await engine.create_log(name)
    log = engine.log(name)

    async def appends() -> bool:
        try:
            await log.append(b"0", term=1)
        except ClusterError:
            return False
        return True

    await becomes(appends)
    version = await engine.registry.put(name, b"before")
    before = await contents(log)
    stopped = list(rig.servers.nodes.values())[:2]
    for node in stopped:
        node.pause()
    try:
        first, behind = log.append(b"1", term=1), log.append(b"2", term=1)
        with pytest.raises((OutcomeUnknown, Unavailable)):
            await first
        with pytest.raises((OutcomeUnknown, Unavailable)):
            await behind
        with pytest.raises(Unavailable):
            await engine.registry.get(name)
        with pytest.raises((OutcomeUnknown, Unavailable)):
            await engine.registry.put(name, b"without", version)
    finally:
        for node in stopped:
            node.resume()
    patient = await connect()
    await patient.log(name).append(b"fence", term=2)
    found = await contents(patient.log(name))
    assert found[: len(before)] == before
    assert [entry.block for entry in found].count(b"1") <= 1
    assert [entry.block for entry in found].count(b"fence") == 1
    now = await patient.registry.get(name)
    assert now is not None
    assert now.value in (b"before", b"without")


async def test_the_registry_is_the_same_when_its_log_was_trimmed(
    connect: Callable[..., Awaitable[KafkaEngine]], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(table, "SNAPSHOT_EVERY", 20)
    prefix = unique("trimmed")
    engine = await connect(prefix=prefix)
    other = await connect(prefix=prefix)
    await engine.registry.keep_alive("node", 10 * PATIENCE, b"info")
    versions: dict[str, int] = {}

    async def trimmed() -> bool:
        for number in range(5):
            name = f"name-{number}"
            versions[name] = await engine.registry.put(name, name.encode() * 100, versions.get(name, 0))
        return await engine._table._log.first() > 40

    await becomes(trimmed)
    assert await engine.registry.put("gone", b"x") > max(versions.values())
    await engine.registry.delete("gone")
    fresh = await connect(prefix=prefix)
    for one in (engine, other, fresh):
        assert await one.registry.list() == {name: (name.encode() * 100, versions[name]) for name in sorted(versions)}
        assert await one.registry.alive() == {"node": b"info"}


async def test_what_an_object_left_behind_unfinished_is_removed_after_a_day(connect: Callable[..., Awaitable[KafkaEngine]]):
    engine = await connect()
    orphan = "rabbitpy.object.1000-left"
    await engine._topics.create(orphan)

    async def parts() -> AsyncIterator[bytes]:
        yield b"x"

    await engine.objects.put(unique("object"), parts())
    left = await engine._topics.list("rabbitpy.object.")
    assert orphan not in left
    assert left


@pytest.mark.parametrize(
    "replicas, changed, said",
    [
        (3, {"min.insync.replicas": "1"}, "min.insync.replicas=1"),
        (3, {"unclean.leader.election.enable": "true"}, "unclean.leader.election.enable=true"),
        (3, {"retention.ms": "604800000"}, "retention.ms=604800000"),
        (1, {}, "has 1 replicas"),
    ],
)
async def test_a_topic_with_other_settings_is_refused_at_start(
    rig: KafkaRig, connect: Callable[..., Awaitable[KafkaEngine]], replicas: int, changed: dict[str, str], said: str
):
    settings = parse(rig.servers.url)
    prefix = unique("wrong")
    topic = f"{prefix}.log.x"
    brokers = Brokers(settings)
    configs = {**settings.topic_configs(), **changed}
    answer = await brokers.ask_any(CreateTopicsRequest([(topic, 1, replicas, [], list(configs.items()))], 10_000, False))
    assert answer["topic_errors"][0]["error_code"] == 0

    async def known() -> bool:
        return all([topic in await brokers.topics(prefix) for _ in settings.servers])

    await becomes(known)
    await brokers.stop()
    with pytest.raises(StartError, match=said) as caught:
        await connect(prefix=prefix)
    assert topic in str(caught.value)
    assert "\n" not in str(caught.value)


async def test_more_copies_than_brokers_are_refused_at_start(connect: Callable[..., Awaitable[KafkaEngine]]):
    with pytest.raises(StartError, match="fewer than 5 brokers"):
        await connect("?replication=5", unique("many"))


async def test_a_transport_that_was_closed_just_now_is_trouble(monkeypatch: pytest.MonkeyPatch):
    """uvloop raises RuntimeError for it; whoever asks goes on, as behind any connection that was lost."""

    class Closed:
        async def send(self, request: object) -> object:
            raise RuntimeError("unable to perform operation; the handler is closed")

    async def connection(address: object, purpose: str) -> Closed:
        return Closed()

    brokers = Brokers(parse("kafka://127.0.0.1:1/x"))
    monkeypatch.setattr(brokers, "_connection", connection)
    with pytest.raises(Trouble, match="the handler is closed") as caught:
        await brokers.send(("127.0.0.1", 1), None, "ask")
    assert caught.value.unsure
    await brokers.stop()
