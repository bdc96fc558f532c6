"""Nodes of different versions: one that meets in a log what a later version has written stops in front of it, loses nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from urllib.parse import quote

import msgspec
import pytest

from cluster.memory_node import ListSink, NotedNode, running, until, without_threads
from cluster.replicated import Cluster, Replicated, drained, publish
from rabbitpy_broker.cluster import blocks
from rabbitpy_broker.cluster.compression import DamagedBlock
from rabbitpy_broker.cluster.content import Content, unpacked
from rabbitpy_broker.cluster.engines import engine_for
from rabbitpy_broker.cluster.follower import Follower
from rabbitpy_broker.cluster.log import ClusterError, ReplicatedLog
from rabbitpy_broker.cluster.membership import VHostRecord
from rabbitpy_broker.cluster.memory_engine import MemoryServers
from rabbitpy_broker.cluster.nodes import NodeInfo
from rabbitpy_broker.cluster.owner_log import OwnerLog
from rabbitpy_broker.cluster.ownership import OwnerRecord
from rabbitpy_broker.cluster.writer import Writer
from rabbitpy_broker.definitions import Change
from rabbitpy_broker.errors import BrokerError
from rabbitpy_broker.testing.watched_broker import WatchedBroker
from rabbitpy_broker.wire.field_table import field_table
from support import eventually

FIRST, SECOND = ["orders", "first"], ["orders", "invoices"]
INFINITE = float("inf")
NEWER = bytes((blocks.NEWEST + 1,)) + b"what nobody knows yet"
DAMAGED = bytes((blocks.COMPRESSED,)) + b"what is no frame"


def test_a_reader_stops_in_front_of_what_it_does_not_know(monkeypatch: pytest.MonkeyPatch):
    """And reads on from there when it does."""

    async def check() -> None:
        engine = MemoryServers().connect("a")
        await engine.start()
        await engine.create_log("orders")
        log = engine.log("orders")
        for entry in (blocks.fence("a"), *blocks.parts(b"one", 100), NEWER, *blocks.parts(b"two", 100)):
            await log.append(entry, term=1)
        sink = ListSink()
        with pytest.raises(blocks.NewerBlock, match=r"at position 2 .*upgrade this node"):
            await Follower(log, sink).read()
        assert (sink.blocks, sink.position) == ([b"one"], 2)
        for name in ("NEWEST", "GIVEN"):
            monkeypatch.setattr(blocks, name, NEWER[0])  # a version that knows it
        await Follower(log, sink).read()
        assert sink.blocks == [b"one", b"two"]

    asyncio.run(check())


class Gathering(ListSink):
    """Has what it was given when it is told that there is no more for now."""

    def __init__(self) -> None:
        super().__init__()
        self.gathered: list[bytes] = []

    async def apply(self, block: bytes, position: int, term: int) -> None:
        self.gathered.append(block)
        self.position, self.term = position, term

    async def flush(self) -> None:
        self.blocks += self.gathered
        self.gathered = []


@pytest.mark.parametrize(
    ("last", "error"), [(blocks.ended("a"), blocks.Ended), (NEWER, blocks.NewerBlock), (DAMAGED, DamagedBlock)]
)
def test_what_stands_in_front_of_what_ends_reading_counts(last: bytes, error: type[ClusterError]):
    async def check() -> None:
        engine = MemoryServers().connect("a")
        await engine.start()
        await engine.create_log("orders")
        log = engine.log("orders")
        for entry in (blocks.fence("a"), *blocks.parts(b"one", 100), last):
            await log.append(entry, term=1)
        sink = Gathering()
        with pytest.raises(error):
            await Follower(log, sink).read()
        assert (sink.blocks, sink.gathered) == ([b"one"], [])

    asyncio.run(check())


async def declared(*, reads_changes: bool) -> ReplicatedLog:
    """The log of an owner with a queue, one more behind its first block, and none in the third."""
    engine = MemoryServers().connect("a")
    await engine.start()
    await engine.create_log("orders")
    log = engine.log("orders")
    await log.append(blocks.fence("a"), term=1)
    writer = Writer(log, OwnerRecord(engine.registry, "orders"), "a", term=1, position=1, max_block=20)
    queues = [FIRST]
    due: list[list[Change]] = [[], [("queues", SECOND)], []]
    owner = OwnerLog(
        writer, lambda: {"queues": list(queues)}, lambda: due.pop(0), lambda: None, lambda: None, lambda: reads_changes,
        lambda: False,
    )  # fmt: skip
    for payload in (b"one", b"two", b"three"):
        told: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        owner.begin()
        owner.append([payload], lambda number, _, told=told: told.set_result(number))
        await told
        queues = [FIRST, SECOND]
    return log


async def read_by_version_1(log: ReplicatedLog, monkeypatch: pytest.MonkeyPatch) -> list[Content]:
    sink = ListSink()
    with monkeypatch.context() as patch, suppress(blocks.NewerBlock):
        patch.setattr(blocks, "NEWEST", blocks.ENDED)
        await Follower(log, sink).read()
    return [unpacked(block) for block in sink.blocks]


async def test_a_node_of_version_1_stops_in_front_of_changes_of_definitions(monkeypatch: pytest.MonkeyPatch):
    """And reads all other blocks, those with all definitions too."""
    log = await declared(reads_changes=True)
    sink = ListSink()
    await Follower(log, sink).read()
    found = [unpacked(block) for block in sink.blocks]
    assert [content.definitions for content in found] == [{"queues": [FIRST]}, [("queues", SECOND)], None]
    assert [bytes(content.epoch) for content in found] == [b"one", b"two", b"three"]
    assert await read_by_version_1(log, monkeypatch) == found[:1]


async def test_a_node_of_version_1_that_the_owner_knows_of_reads_all(monkeypatch: pytest.MonkeyPatch):
    found = await read_by_version_1(await declared(reads_changes=False), monkeypatch)
    assert [content.definitions for content in found] == [{"queues": [FIRST]}, {"queues": [FIRST, SECOND]}, None]
    assert [bytes(content.epoch) for content in found] == [b"one", b"two", b"three"]


async def test_an_owner_writes_for_the_oldest_of_its_replicas(monkeypatch: pytest.MonkeyPatch):
    """By what each has told last, also when it is away meanwhile, to be upgraded."""
    node = NotedNode("a", {})
    servers = node.servers
    without_threads(monkeypatch, servers, "a")

    async def declares(broker: WatchedBroker, name: str) -> int:
        """The kind of the entry that it makes."""
        vhost = broker.node.vhosts["orders"]
        vhost.declare_queue(name, True, False, False, field_table({"x-note": "all the same, " * 500}), None)
        broker.commit()
        assert broker.member is not None
        await broker.member.settle()
        (log,) = servers.logs.values()
        return log.entries[-1].block[0]

    def tells(ends: float, version: int) -> Callable[[], bool]:
        servers.leases["b"] = ends, NodeInfo(log_version=version, amqp=[str(version)]).packed()
        return lambda: broker.view is not None and broker.view.last_told.get("b", NodeInfo(log_version=0)).log_version == version

    async with running(node.ground) as broker:
        assert broker.member is not None
        await broker.add_replicated_vhost("orders", '{"replicas": 1}', 1)
        replica = broker.member.replicas["orders"]
        assert await declares(broker, "while there is no other") == blocks.COMPRESSED
        tells(INFINITE, 2)
        with pytest.raises(BrokerError, match=r"node 'b' reads logs of version 2, this one writes version 3: upgrade it first"):
            await broker.change_members("orders", "b", is_added=True)
        assert replica.record.replicas == ["a"]
        tells(INFINITE, 3)
        await broker.change_members("orders", "b", is_added=True)
        is_known = tells(INFINITE, 1)
        await until(lambda: "b" in replica.record.replicas and is_known())
        assert await declares(broker, "while the other is of version 1") == blocks.LAST
        tells(0, 1)
        await until(lambda: broker.view is not None and "b" not in broker.view.nodes)
        assert await declares(broker, "while it is away") == blocks.LAST
        await until(tells(INFINITE, 2))
        assert await declares(broker, "when it is of version 2") == blocks.CHANGES
        await until(tells(INFINITE, 3))
        assert await declares(broker, "when it is of version 3") == blocks.COMPRESSED


@pytest.mark.parametrize(
    ("entry", "why"), [(NEWER, "what a newer version has written"), (DAMAGED, "cannot be decompressed")], ids=["newer", "damaged"]
)
def test_a_node_that_cannot_read_an_entry_takes_nothing_over_and_says_so_once(
    cluster: Cluster, vhost: Replicated, entry: bytes, why: str
):
    """The owner goes on, and has everything after a kill; the others have one line in their logs."""
    owner = cluster.nodes[vhost.owner]
    older = [node for node in cluster.nodes.values() if node is not owner]
    channel = vhost.publisher(vhost.owner)
    channel.queue_declare("orders", durable=True)
    publish(channel, "orders", range(5))
    asyncio.run(append(cluster.url, vhost.name, entry))
    publish(channel, "orders", range(5, 15))
    for node in older:
        eventually(lambda node=node: of_vhost(node.events("replicated vhost not followed"), vhost.name), timeout=60)

    owner.crash()
    owner.start()
    assert vhost.find_owner() == vhost.owner
    assert [number for number, _ in drained(vhost.connect(vhost.owner), "orders")] == list(range(15))
    for node in older:
        told = of_vhost(node.events("replicated vhost not followed"), vhost.name)
        assert len(told) == 1
        assert why in str(told[0])


def of_vhost(lines: list[dict[str, object]], vhost: str) -> list[dict[str, object]]:
    return [line for line in lines if line["vhost"] == vhost]


async def append(url: str, vhost: str, entry: bytes) -> None:
    """As the owner would."""
    engine = engine_for(url)
    await engine.start()
    try:
        found = await engine.registry.get(f"vhost/{quote(vhost, safe='')}")
        assert found is not None
        record = msgspec.json.decode(found.value, type=VHostRecord)
        owner = await OwnerRecord(engine.registry, record.incarnation).read()
        await engine.log(record.log_name(vhost)).append(entry, term=owner.term)
    finally:
        await engine.stop()
