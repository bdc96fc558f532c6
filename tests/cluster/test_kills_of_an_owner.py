"""An owner that is killed, or loses its power, behind each thing that it does on its disk while it deletes a queue.

Another node owns the vhost meanwhile, with what the log says. When this one has it again, it has the queue with all that was
confirmed, as long as the log has no deletion of it, and none afterwards. The engine takes what it is told at once, or not before
the files of the queue are gone.
"""

from __future__ import annotations

import msgspec
import pytest
import zstandard

from cluster.memory_node import Left, NotedNode, NotedServers, running, until, without_threads
from rabbitpy_broker.cluster import blocks
from rabbitpy_broker.cluster.content import packed, unpacked
from rabbitpy_broker.cluster.memory_engine import MemoryServers
from rabbitpy_broker.definitions import Definitions, Rows
from rabbitpy_broker.message import Message
from rabbitpy_broker.queues.queue import Queue
from rabbitpy_broker.replicated_vhosts import SettledEpoch
from rabbitpy_broker.testing import watched_broker
from rabbitpy_broker.testing.watched_broker import WatchedBroker
from rabbitpy_broker.vhost import VHost
from rabbitpy_broker.wire.field_table import FieldTable

VHOST, QUEUE, OTHER = "orders", "invoices", "receipts"
COUNT = 20
JOURNAL_FILE = 3 * 4096  # so that those of before are soon used again: what is in segments is there alone


def numbered(number: int) -> Message:
    body = b"%0900d" % number
    header = b"\x00\x3c\x00\x00" + len(body).to_bytes(8, "big") + b"\x00\x00"
    head = len(header).to_bytes(4, "big") + header + b"\xce"
    content = head + b"\x03\x00\x00" + len(body).to_bytes(4, "big") + body + b"\xce"
    return Message(b"\x00\x01q", content, len(head), True)


def defined(servers: MemoryServers) -> Rows:
    """What the log says that there is."""
    found = Definitions(None)
    (log,) = servers.logs.values()
    for entry in log.entries:
        if entry.block[0] in (blocks.LAST, blocks.CHANGES, blocks.COMPRESSED):
            block = entry.block[1:]
            definitions = unpacked(zstandard.decompress(block) if entry.block[0] == blocks.COMPRESSED else block).definitions
            if isinstance(definitions, list):
                found.change_rows(VHOST, definitions)
            elif definitions is not None:
                found.replace_rows(VHOST, definitions)
    return found.rows_of(VHOST)


def has_queue(servers: MemoryServers) -> bool:
    return any(name == QUEUE for _, name, *_ in defined(servers)["queues"])


def owned_by_another(servers: NotedServers) -> MemoryServers:
    """Another node has taken over, with what the log says, and is gone again."""
    rows, found = defined(servers), servers.copy()
    (log,) = found.logs.values()
    (record,) = (name for name in found.values if name.startswith("owner/"))
    term = log.counting.term + 1
    for entry in (blocks.fence("b"), *blocks.parts(packed(rows, []), 1 << 20)):
        log.append(entry, term, None, conditional=True)
    found.put(record, msgspec.json.encode(("b", term)), None)
    return found


def tick(broker: WatchedBroker) -> None:
    for _ in broker._upkeep._ticking():
        pass


async def confirmed(vhost: VHost) -> None:
    """All of it is in the log."""
    waiter = SettledEpoch()
    vhost.store.journal.wait(waiter)
    assert await waiter.future


async def owned(broker: WatchedBroker) -> VHost:
    await until(lambda: VHOST in broker.node.vhosts)
    return broker.node.vhosts[VHOST]


async def publish(node: NotedNode, broker: WatchedBroker, queue: str) -> None:
    """A few in each epoch, some of which are moved to segments."""
    vhost = broker.node.vhosts[VHOST]
    for number in range(COUNT):
        vhost.queues[queue].publish(numbered(number))
        if number % 5 == 4:
            await confirmed(vhost)
            tick(broker)
            node.told = number + 1 if queue == OTHER else 0


def bodies(queue: Queue) -> list[bytes]:
    found = []
    while queue.ready_count():
        status = queue.get()
        assert status is not None
        assert status.message is not None
        found.append(status.message.body())
    return found


@pytest.mark.parametrize("is_late", [False, True], ids=["log at once", "log at last"])
async def test_a_queue_is_whole_as_long_as_the_log_has_it(monkeypatch: pytest.MonkeyPatch, is_late: bool):
    node = NotedNode("a", {"queue_index_max_journal_entries": 8})
    monkeypatch.setattr(watched_broker, "SMALL_FILE_BYTES", JOURNAL_FILE)
    without_threads(monkeypatch, node.servers, "a")
    async with running(node.ground) as broker:
        await broker.add_replicated_vhost(VHOST, '{"replicas": 1}', 1)
        vhost = broker.node.vhosts[VHOST]
        for name in (QUEUE, OTHER):
            vhost.declare_queue(name, True, False, False, FieldTable(), None)
        broker.commit()
        await publish(node, broker, QUEUE)
        path = f"{vhost.store.path}/queues"
        await until(lambda: tick(broker) or node.disk.list_dir(path))
        (folder,) = node.disk.list_dir(path)
        await until(lambda: not vhost.store.is_busy())

        node.is_noting = True
        if is_late:
            node.servers.cut("a")
        vhost.delete_queue(vhost.queues[QUEUE])
        broker.commit()
        if is_late:
            await until(lambda: tick(broker) or not node.disk.exists(f"{path}/{folder}"))
            node.servers.heal("a")
        await publish(node, broker, OTHER)
        await until(lambda: tick(broker) or node.disk.list_dir(path) not in ([folder], []))
        node.is_noting = False
    whats = [left.what for left in node.left]
    assert len(whats) > 20
    assert has_queue(node.left[0].servers)
    assert not has_queue(node.left[-1].servers)
    gone = whats.index(f"name {folder}")
    assert has_queue(node.left[gone].servers) or not is_late
    for left in node.left:
        for power_cut in (False, True):
            await check(monkeypatch, left, power_cut=power_cut)


async def check(monkeypatch: pytest.MonkeyPatch, left: Left, *, power_cut: bool) -> None:
    without_threads(monkeypatch, owned_by_another(left.servers), "a")
    async with running(left.ground("a", power_cut=power_cut)) as broker:
        vhost = await owned(broker)
        found = {name: bodies(queue) for name, queue in vhost.queues.items()}
    expected = [b"%0900d" % number for number in range(COUNT)]
    assert found.pop(QUEUE, None) == (expected if has_queue(left.servers) else None), (left.what, power_cut)
    others = found.pop(OTHER)
    assert others == expected[: len(others)]
    assert len(others) >= left.told
    assert not found
