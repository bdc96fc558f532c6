"""Logs of replicated vhosts are trimmed behind checkpoints, and a replica that has lost its directory begins with one."""

from __future__ import annotations

import asyncio
import shutil
import signal
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pika

from broker_process import BrokerProcess
from cluster.replicated import CHECKPOINT_BYTES, PATIENCE, Cluster, Replicated, drained
from rabbitpy_broker.cluster.checkpoints import Checkpoint, Checkpoints
from rabbitpy_broker.cluster.engines import engine_for
from rabbitpy_broker.cluster.log import Unavailable
from rabbitpy_broker.storage.vhost_store import vhost_folder
from support import eventually

BODY = 20_000  # bytes
ENOUGH = 2 * CHECKPOINT_BYTES // BODY  # messages, for a checkpoint


def publish(channel: Any, numbers: Iterable[int]) -> None:
    """Each with its confirm."""
    for number in numbers:
        channel.basic_publish("", "orders", str(number).encode().ljust(BODY), pika.BasicProperties(delivery_mode=2))


async def _first(cluster: Cluster, vhost: str) -> tuple[int, Checkpoint | None]:
    engine = engine_for(cluster.url)
    await engine.start()
    try:
        (name,) = [one for one in await engine.logs() if one.startswith(f"{vhost_folder(vhost)}.")]
        return await engine.log(name).first(), await Checkpoints(engine.objects, name.rpartition(".")[2]).newest()
    except Unavailable:
        return 0, None
    finally:
        await engine.stop()


def first_of_log(vhost: Replicated) -> int:
    """Where the log begins; never behind the newest checkpoint."""
    first, newest = asyncio.run(_first(vhost.cluster, vhost.name))
    if first:
        assert newest is not None
        assert newest.position >= first
    return first


def directory(node: BrokerProcess, vhost: Replicated) -> Path:
    return node.data_dir / "vhosts" / vhost.name


def is_loaded(node: BrokerProcess, vhost: Replicated) -> bool:
    return any(event.get("vhost") == vhost.name for event in node.events("checkpoint loaded"))


def test_a_log_is_trimmed_and_a_lost_replica_takes_over(cluster: Cluster, vhost: Replicated):
    """While messages are published and acked; what was confirmed is there, once and in order, and what was acked is not."""
    owner = vhost.owner
    lost, other = (name for name in cluster.nodes if name != owner)
    channel = vhost.publisher(owner)
    channel.queue_declare("orders", durable=True)
    publish(channel, range(ENOUGH))
    eventually(lambda: first_of_log(vhost), timeout=PATIENCE, interval=0.5)

    cluster.nodes[lost].crash()
    publish(channel, range(ENOUGH, ENOUGH + 10))
    shutil.rmtree(directory(cluster.nodes[lost], vhost))
    for _ in range(25):
        channel.basic_get("orders", auto_ack=True)
    cluster.nodes[lost].start()
    publish(channel, range(ENOUGH + 10, ENOUGH + 30))
    eventually(lambda: is_loaded(cluster.nodes[lost], vhost), timeout=PATIENCE)
    eventually(lambda: vhost.position_at(lost) >= vhost.position_at(owner), timeout=PATIENCE, interval=0.2)

    cluster.nodes[other].crash()
    cluster.nodes[owner].crash()
    assert vhost.find_owner() == lost
    assert drained(vhost.connect(lost), "orders") == [(number, True) for number in range(25, ENOUGH + 30)]


def kill_maker(followers: list[BrokerProcess], vhost: Replicated) -> BrokerProcess:
    """Kills the follower that is seen to make a checkpoint, in the middle of it, and returns it."""
    maker = eventually(
        lambda: next((node for node in followers if (directory(node, vhost) / "checkpoint").exists()), None),
        timeout=PATIENCE,
        interval=0.001,
    )
    maker.crash()
    return maker


def kill_loader(node: BrokerProcess, vhost: Replicated) -> bool:
    """Takes a node's directory away, and kills it in the middle of loading a checkpoint; False: it was too fast."""
    node.crash()
    shutil.rmtree(directory(node, vhost))
    loaded = len(node.events("checkpoint loaded"))
    node.start()
    restoring = directory(node, vhost) / "restoring"
    eventually(lambda: restoring.exists() or len(node.events("checkpoint loaded")) > loaded, timeout=PATIENCE, interval=0.001)
    node.crash()
    return restoring.exists()


def test_killed_in_the_middle_of_a_checkpoint(cluster: Cluster, vhost: Replicated):
    """Whoever makes one, and whoever loads one: what is left is removed, and the next one does it."""
    owner = vhost.owner
    followers = [cluster.nodes[name] for name in cluster.nodes if name != owner]
    channel = vhost.publisher(owner)
    channel.queue_declare("orders", durable=True)
    published = 0
    with ThreadPoolExecutor(1) as threads:
        killed = threads.submit(kill_maker, followers, vhost)
        while not killed.done():  # a checkpoint that was missed is followed by one that takes longer
            publish(channel, range(published, published + 10))
            published += 10
        maker = killed.result()
    maker.start()
    publish(channel, range(published, published + ENOUGH))
    published += ENOUGH
    eventually(lambda: first_of_log(vhost), timeout=PATIENCE, interval=0.5)
    eventually(lambda: not (directory(maker, vhost) / "checkpoint").exists(), timeout=PATIENCE)

    eventually(lambda: kill_loader(maker, vhost), timeout=PATIENCE)
    maker.start()
    name = next(name for name in cluster.nodes if cluster.nodes[name] is maker)
    eventually(lambda: vhost.position_at(name) >= vhost.position_at(owner), timeout=PATIENCE, interval=0.2)
    assert not (directory(maker, vhost) / "restoring").exists()
    for node in cluster.nodes.values():
        if node is not maker:
            node.crash()
    assert vhost.find_owner() == name
    assert [number for number, _ in drained(vhost.connect(name), "orders")] == list(range(published))


def test_a_follower_that_slept_while_the_log_was_trimmed(cluster: Cluster, vhost: Replicated):
    owner = vhost.owner
    name = next(name for name in cluster.nodes if name != owner)
    sleeper = cluster.nodes[name]
    channel = vhost.publisher(owner)
    channel.queue_declare("orders", durable=True)
    publish(channel, range(10))
    eventually(lambda: vhost.position_at(name) >= vhost.position_at(owner), timeout=PATIENCE, interval=0.2)
    sleeper.signal(signal.SIGSTOP)
    eventually(lambda: name not in vhost.nodes_seen_by(owner), timeout=PATIENCE)
    publish(channel, range(10, 10 + ENOUGH))
    eventually(lambda: first_of_log(vhost), timeout=PATIENCE, interval=0.5)
    sleeper.signal(signal.SIGCONT)
    eventually(lambda: is_loaded(sleeper, vhost), timeout=PATIENCE)
    eventually(lambda: vhost.position_at(name) >= vhost.position_at(owner), timeout=PATIENCE, interval=0.2)
    assert not sleeper.events("upkeep of a replicated log")
