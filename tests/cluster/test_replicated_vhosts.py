"""A vhost on three nodes, on each engine: what was confirmed is there, whoever has it; an owner that was taken for dead confirms
nothing more.
"""

from __future__ import annotations

import asyncio
import json
import signal
import threading
from pathlib import Path
from typing import Any

import msgspec
import pika
import pika.exceptions
import pytest

from broker_process import BrokerProcess
from cluster.replicated import PATIENCE, Cluster, Replicated, drained, publish
from rabbitpy_broker.cluster.engines import engine_for
from rabbitpy_broker.cluster.membership import VHostRecord, record_key
from rabbitpy_broker.cluster.ownership import OwnerRecord
from support import eventually

LARGE = b"x" * 200_000  # above what other vhosts keep apart from the journal


def test_what_was_confirmed_is_there_when_the_owner_is_killed(cluster: Cluster, vhost: Replicated):
    """Definitions, a large message and an ack too; and again when the next owner is killed."""
    first = vhost.owner
    channel = vhost.publisher(first)
    channel.exchange_declare("routes", "topic", durable=True)
    channel.queue_declare("orders", durable=True)
    channel.queue_bind("orders", "routes", "#.eu")
    publish(channel, "orders", range(20))
    channel.basic_publish("routes", "a.eu", b"20", pika.BasicProperties(delivery_mode=2))
    channel.queue_declare("large", durable=True)
    channel.basic_publish("", "large", LARGE, pika.BasicProperties(delivery_mode=2))
    got, _, _ = channel.basic_get("orders", auto_ack=False)
    assert got is not None
    channel.basic_ack(got.delivery_tag)
    publish(channel, "orders", range(21, 22))  # its epoch has the ack

    cluster.nodes[first].crash()
    second = vhost.find_owner(other_than=first)
    assert drained(vhost.connect(second), "orders") == [(number, True) for number in range(1, 22)]
    assert vhost.connect(second).channel().basic_get("large", auto_ack=True)[2] == LARGE

    channel = vhost.publisher(second)
    channel.basic_publish("routes", "b.eu", b"30", pika.BasicProperties(delivery_mode=2))
    cluster.nodes[first].start()  # as a follower
    cluster.nodes[second].crash()
    third = vhost.find_owner(other_than=second)
    assert drained(vhost.connect(third), "orders") == [(30, True)]


def test_an_owner_that_slept_through_its_take_over_confirms_nothing(cluster: Cluster, vhost: Replicated):
    owner = vhost.owner
    channel = vhost.publisher(owner)
    channel.queue_declare("orders", durable=True)
    publish(channel, "orders", range(10))
    cluster.nodes[owner].signal(signal.SIGSTOP)
    ended: list[BaseException] = []

    def publish_to_the_sleeper() -> None:
        try:
            publish(channel, "orders", range(100, 200))
        except pika.exceptions.AMQPError as error:
            ended.append(error)

    publishing = threading.Thread(target=publish_to_the_sleeper)
    publishing.start()
    second = vhost.find_owner(other_than=owner)
    publish(vhost.publisher(second), "orders", range(10, 15))
    cluster.nodes[owner].signal(signal.SIGCONT)
    publishing.join(60)
    assert [type(one) for one in ended] == [pika.exceptions.ConnectionClosedByBroker]  # not nacked: it may be in the log
    assert "disk failed" not in cluster.nodes[owner].log_file.read_text()
    eventually(lambda: not cluster.is_open_at(vhost.name, owner))
    assert [number for number, _ in drained(vhost.connect(second), "orders")] == list(range(15))
    assert eventually(lambda: vhost.connect(owner)).is_open  # which passes clients on now


def test_followers_move_what_they_have_to_segments(cluster: Cluster, vhost: Replicated):
    """The journal's files are not all that there is, and the vhost is there when one of them takes over."""
    first = vhost.owner
    channel = vhost.publisher(first)
    channel.queue_declare("orders", durable=True)
    publish(channel, "orders", range(50))
    followers = [cluster.nodes[name] for name in cluster.nodes if name != first]
    for node in followers:
        eventually(lambda node=node: segments_of(node, vhost.name), timeout=60)
    publish(channel, "orders", range(50, 60))
    assert [number for number, _ in drained(vhost.connect(first), "orders")][:5] == list(range(5))
    publish(channel, "orders", range(60, 70))

    cluster.nodes[first].crash()
    second = vhost.find_owner(other_than=first)
    assert drained(vhost.connect(second), "orders") == [(number, True) for number in range(60, 70)]


def test_a_change_of_metadata_leaves_it_replicated(cluster: Cluster, vhost: Replicated, tmp_path: Path):
    """Or a former owner would open it as a plain vhost of its own at its next start."""
    first = vhost.owner
    file = tmp_path / "definitions.json"
    file.write_text(json.dumps({"vhosts": [{"name": vhost.name, "description": "orders of all shops", "tags": []}]}))
    cluster.nodes[first].ctl("import_definitions", str(file))
    assert "orders of all shops" in cluster.nodes[first].ctl("list_vhosts", "name", "description")
    cluster.nodes[first].crash()
    vhost.find_owner(other_than=first)
    cluster.nodes[first].start()
    assert not cluster.is_open_at(vhost.name, first)


def test_a_claim_of_a_node_that_is_no_replica_does_not_last(cluster: Cluster, vhost: Replicated):
    """As of one that ceased to be a replica in the middle of a claim."""
    first = vhost.owner
    stranger = next(name for name in cluster.nodes if name != first)
    cluster.nodes[first].ctl("delete_vhost", vhost.name)
    eventually(lambda: not folder_of(cluster.nodes[first], vhost.name).exists(), timeout=60)
    eventually(lambda: not cluster.is_open_at(vhost.name, stranger), timeout=60)
    cluster.nodes[first].ctl("add_vhost", vhost.name, "--replicas", "2")
    owner = vhost.find_owner()
    stranger = next(name for name in cluster.nodes if not folder_of(cluster.nodes[name], vhost.name).exists())

    async def claim() -> int:
        engine = engine_for(cluster.url)
        await engine.start()
        try:
            found = await engine.registry.get(record_key(vhost.name))
            assert found is not None
            record = OwnerRecord(engine.registry, msgspec.json.decode(found.value, type=VHostRecord).incarnation)
            return await record.claim(stranger, await record.read())
        finally:
            await engine.stop()

    term = asyncio.run(claim())
    eventually(lambda: owner_row(cluster.nodes[owner], vhost.name)["term"] > term, timeout=PATIENCE)
    assert owner_row(cluster.nodes[owner], vhost.name)["owner"] != stranger
    assert vhost.find_owner() != stranger


def owner_row(node: BrokerProcess, vhost: str) -> dict[str, Any]:
    status = json.loads(node.ctl("cluster_status", "--formatter", "json"))
    return next(row for row in status["replicated_vhosts"] if row["name"] == vhost)


def segments_of(node: BrokerProcess, vhost: str) -> list[Path]:
    return list((node.data_dir / "vhosts" / vhost / "queues").glob("*/*.segment"))


def test_a_deleted_vhost_is_gone_everywhere(cluster: Cluster, vhost: Replicated):
    """At a node that was away, too, when it comes back; one that is made again under its name has nothing of it."""
    first = vhost.owner
    gone, name = (name for name in cluster.nodes if name != first)
    away, other = cluster.nodes[gone], cluster.nodes[name]
    channel = vhost.publisher(first)
    channel.queue_declare("orders", durable=True)
    publish(channel, "orders", range(20))
    eventually(lambda: folder_of(away, vhost.name).exists() and folder_of(other, vhost.name).exists())
    away.crash()
    eventually(lambda: gone not in vhost.nodes_seen_by(name), timeout=60)

    other.ctl("delete_vhost", vhost.name)
    for node in (cluster.nodes[first], other):
        eventually(lambda node=node: not folder_of(node, vhost.name).exists(), timeout=60)
    assert not cluster.is_open_at(vhost.name, first)
    with pytest.raises(pika.exceptions.AMQPError):
        publish(channel, "orders", range(20, 21))
    other.ctl("add_vhost", vhost.name, "--replicas", "2")
    assert vhost.find_owner()

    away.start()
    eventually(lambda: not folder_of(away, vhost.name).exists(), timeout=60)
    owner = vhost.find_owner()
    cluster.nodes[owner].ctl("set_permissions", "-p", vhost.name, "guest", ".*", ".*", ".*")
    channel = vhost.publisher(owner)
    assert channel.queue_declare("orders", durable=True).method.message_count == 0


def folder_of(node: BrokerProcess, vhost: str) -> Path:
    return node.data_dir / "vhosts" / vhost
