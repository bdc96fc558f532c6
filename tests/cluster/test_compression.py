"""Blocks of a log are compressed: what comes out is what went in, and nothing that is damaged passes for a block."""

from __future__ import annotations

import asyncio
import json
import threading
from types import SimpleNamespace

import pika
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from cluster.memory_node import ListSink
from cluster.replicated import Cluster, Replicated
from cluster.test_cluster_status import metric
from rabbitpy_broker.cluster import blocks, compression
from rabbitpy_broker.cluster.compression import AT_ONCE, LEAST, WORTH_IT, Compression, DamagedBlock
from rabbitpy_broker.cluster.follower import Follower
from rabbitpy_broker.cluster.log import ReplicatedLog
from rabbitpy_broker.cluster.memory_engine import MemoryServers
from rabbitpy_broker.cluster.nodes import NodeInfo
from rabbitpy_broker.cluster.owner_log import OwnerLog
from rabbitpy_broker.cluster.ownership import Deposed, OwnerRecord
from rabbitpy_broker.cluster.writer import Writer
from rabbitpy_broker.config import ClusterConfig, Config
from rabbitpy_broker.replicated_vhosts import ReplicatedVHosts

TEXT = b'{"order": 4711, "state": "paid"}, ' * 400
TEXT_OF_1_MB = TEXT * 100
APPENDED = "rabbitpy_replication_appended_bytes_total"


def frame_of(block: bytes) -> bytes:
    frame = asyncio.run(Compression().compressed(block))
    assert frame is not None
    return frame


@given(st.lists(st.binary(max_size=300), max_size=40), st.integers(1, 400))
def test_a_block_comes_out_as_it_went_in(pieces: list[bytes], times: int):
    block = b"".join(pieces) * times
    frame = asyncio.run(Compression().compressed(block))
    if frame is None:
        assert len(block) < LEAST or (len(zstandard.compress(block, 1)) + 4) * WORTH_IT > len(block)
    else:
        assert len(frame) * WORTH_IT <= len(block)
        assert asyncio.run(Compression().decompressed(frame)) == block


@given(st.data())
def test_a_frame_that_is_damaged_is_no_block(data: st.DataObject):
    frame = bytearray(frame_of(TEXT))
    match data.draw(st.sampled_from(["cut", "longer", "another byte"])):
        case "cut":
            del frame[data.draw(st.integers(0, len(frame) - 1)) :]
        case "longer":
            frame += data.draw(st.binary(min_size=1, max_size=9))
        case _:
            frame[data.draw(st.integers(0, len(frame) - 1))] ^= data.draw(st.integers(1, 255))
    try:
        found = asyncio.run(Compression().decompressed(bytes(frame)))
    except DamagedBlock:
        return
    assert found == TEXT  # a bit that means nothing


@pytest.mark.parametrize("size", [LEAST, 8192, 131_072, 256_000, 524_288, 1 << 20])
def test_no_bit_of_a_head_makes_a_block_another_one(size: int):
    """Zstd takes a frame that says that it has no bytes for whole."""
    block = (TEXT_OF_1_MB)[:size]
    frame = frame_of(block)
    for at in range(12):
        for bit in range(8):
            spoilt = bytearray(frame)
            spoilt[at] ^= 1 << bit
            try:
                found = asyncio.run(Compression().decompressed(bytes(spoilt)))
            except DamagedBlock:
                continue
            assert found == block


def test_a_frame_that_says_it_is_huge_is_refused_before_there_is_room_for_it():
    head = zstandard.FRAME_HEADER + b"\xe0" + (1 << 40).to_bytes(8, "little")
    with pytest.raises(DamagedBlock, match="1099511627776 bytes"):
        asyncio.run(Compression().decompressed(head + bytes(20)))


@pytest.mark.parametrize(("size", "is_here"), [(LEAST, True), (AT_ONCE, True), (AT_ONCE + 1, False)])
def test_large_blocks_hold_nobody_up(size: int, is_here: bool, monkeypatch: pytest.MonkeyPatch):
    """They are compressed in a thread, and decompressed in one."""
    threads: list[threading.Thread] = []
    one = Compression()

    def noting(data: bytes) -> bytes:
        threads.append(threading.current_thread())
        return zstandard.compress(data)

    monkeypatch.setattr(one, "_compressor", type("Noting", (), {"compress": staticmethod(noting)}))
    block = TEXT_OF_1_MB[:size]
    frame = asyncio.run(one.compressed(block))
    assert frame is not None
    whole = one._whole
    monkeypatch.setattr(one, "_whole", lambda data: (threads.append(threading.current_thread()), whole(data))[1])
    assert asyncio.run(one.decompressed(frame)) == block
    assert [thread is threading.current_thread() for thread in threads] == [is_here, is_here]


# -- the log --------------------------------------------------------------------------------------------------------------


async def log_and_writer() -> tuple[ReplicatedLog, Writer]:
    """An owner's, in parts of 400 bytes."""
    engine = MemoryServers().connect("a")
    await engine.create_log("orders")
    log = engine.log("orders")
    await log.append(blocks.fence("a"), term=1)
    return log, Writer(log, OwnerRecord(engine.registry, "orders"), "a", term=1, position=1, max_block=400)


async def append(writer: Writer, payload: bytes, *, compresses: bool = True) -> None:
    """As the owner's journal does. Raises what it is told."""
    owner = OwnerLog(writer, dict, list, lambda: None, lambda: None, lambda: True, lambda: compresses)
    told: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
    owner.begin()
    owner.append([payload], lambda _, error: told.set_result(error))
    error = await told
    if error is not None:
        raise error


async def appended(payload: bytes, *, compresses: bool = True) -> ReplicatedLog:
    """The log of an owner that has appended it."""
    log, writer = await log_and_writer()
    await append(writer, payload, compresses=compresses)
    return log


async def read(log: ReplicatedLog) -> tuple[list[bytes], list[int]]:
    """The epochs of the blocks that a follower gets, and the kinds of all entries behind the fence."""
    sink = ListSink()
    await Follower(log, sink).read()
    reader = log.reader(1)
    kinds = [entry.block[0] async for entry in reader.entries(await log.end())]
    return [block[4 + int.from_bytes(block[:4], "big") :] for block in sink.blocks], kinds


async def test_an_owner_compresses_what_becomes_smaller():
    epochs, kinds = await read(await appended(TEXT))
    assert epochs == [TEXT]
    assert kinds == [blocks.COMPRESSED]


async def test_a_frame_has_parts_too():
    data = b"".join(number.to_bytes(4, "big") for number in range(2_000))
    epochs, kinds = await read(await appended(data))
    assert epochs == [data]
    assert len(kinds) < len(data) // 400
    assert kinds == [blocks.PART] * (len(kinds) - 1) + [blocks.COMPRESSED]


async def test_it_compresses_nothing_when_it_is_told_not_to():
    home = ReplicatedVHosts(SimpleNamespace(config=Config(cluster=ClusterConfig(compression="none")), view=None))  # type: ignore[arg-type]
    epochs, kinds = await read(await appended(TEXT, compresses=home.compresses([])))
    assert epochs == [TEXT]
    assert kinds[-1] == blocks.LAST


@pytest.mark.parametrize(
    ("told", "compresses"), [({}, False), ({"b": NodeInfo(log_version=2)}, False), ({"b": NodeInfo(log_version=3)}, True)]
)
def test_blocks_are_compressed_when_each_replica_has_told_that_it_reads_them(told: dict[str, NodeInfo], compresses: bool):
    """What nobody has heard of yet may be an older one."""
    config = Config(cluster=ClusterConfig(engine="postgresql://one/two", node="a"))
    home = ReplicatedVHosts(SimpleNamespace(config=config, view=SimpleNamespace(last_told=told)))  # type: ignore[arg-type]
    assert home.compresses(["a", "b"]) is compresses
    assert home.compresses(["a"])


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("can't start new thread")])
async def test_what_cannot_be_compressed_goes_as_it_is(error: Exception, monkeypatch: pytest.MonkeyPatch):
    async def failing(*_: object) -> bytes:
        raise error

    monkeypatch.setattr(compression, "_made", failing)
    epochs, kinds = await read(await appended(TEXT))
    assert epochs == [TEXT]
    assert kinds[-1] == blocks.LAST


async def test_an_epoch_that_fails_before_its_append_is_the_last_one(monkeypatch: pytest.MonkeyPatch):
    """What comes behind it stands on it."""

    async def failing(*_: object) -> bytes:
        raise ZeroDivisionError

    monkeypatch.setattr(Compression, "compressed", failing)
    log, writer = await log_and_writer()
    monkeypatch.setattr(asyncio.get_running_loop(), "call_exception_handler", lambda _: None)  # to whom it is reported
    with pytest.raises(ZeroDivisionError):
        await append(writer, TEXT)
    with pytest.raises(Deposed):
        await writer.append(b"what stands on it")
    assert await log.end() == 1


async def test_a_node_of_version_2_stops_in_front_of_what_is_compressed(monkeypatch: pytest.MonkeyPatch):
    log = await appended(TEXT)
    sink = ListSink()
    monkeypatch.setattr(blocks, "NEWEST", blocks.CHANGES)
    with pytest.raises(blocks.NewerBlock, match=r"at position 1 .*upgrade this node"):
        await Follower(log, sink).read()
    assert sink.blocks == []


async def test_a_damaged_block_is_not_followed():
    """What is before it counts, and it stays at it."""
    log = await appended(TEXT)
    frame = bytearray(await Compression().compressed(TEXT) or b"")
    frame[-1] ^= 1
    await log.append(bytes((blocks.COMPRESSED,)) + frame, term=1)
    sink = ListSink()
    with pytest.raises(DamagedBlock, match="at position 2 of its log cannot be decompressed"):
        await Follower(log, sink).read()
    assert (len(sink.blocks), sink.position) == (1, 2)


# -- nodes ----------------------------------------------------------------------------------------------------------------


def test_texts_are_compressed_on_the_way_and_are_there_behind_a_take_over(cluster: Cluster, vhost: Replicated):
    owner = cluster.nodes[vhost.owner]
    bodies = [json.dumps([{"order": number, "line": line, "state": "paid"} for line in range(200)]) for number in range(40)]
    channel = vhost.publisher(vhost.owner)
    channel.queue_declare("orders", durable=True)
    before = metric(owner, APPENDED)
    for body in bodies:
        channel.basic_publish("", "orders", body.encode(), pika.BasicProperties(delivery_mode=2))
    assert metric(owner, APPENDED) - before < sum(map(len, bodies)) / 4
    owner.crash()
    taken = vhost.find_owner(other_than=vhost.owner)
    found = vhost.connect(taken).channel()
    for body in bodies:
        assert found.basic_get("orders", auto_ack=True)[2] == body.encode()
