"""A vhost on three nodes: what was confirmed is there, whoever has it; an owner that was taken for dead confirms nothing more."""

from __future__ import annotations

import contextlib
import json
import shutil
import signal
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pika
import pika.exceptions
import pytest

from broker_process import BrokerProcess
from cluster.engine_rigs import require
from perf.engines import postgres
from support import eventually, unique

LARGE = b"x" * 200_000  # above what other vhosts keep apart from the journal


class Cluster:
    """Three brokers on one engine."""

    def __init__(self, folder: Path, servers: postgres.PostgresServers) -> None:
        self.servers = servers
        self.nodes: dict[str, BrokerProcess] = {}
        for name in ("one", "two", "three"):
            (folder / name).mkdir()
            config = {"cluster": {"engine": servers.url, "node": name, "lease": 3000, "append_timeout": 300_000}}
            self.nodes[name] = BrokerProcess(folder / name, config)

    def start(self) -> None:
        with ThreadPoolExecutor() as threads:
            list(threads.map(BrokerProcess.start, self.nodes.values()))

    def stop(self) -> None:
        for node in self.nodes.values():
            if node.alive():
                node.signal(signal.SIGCONT)
                node.stop()

    def is_open_at(self, vhost: str, name: str) -> bool:
        return vhost in self.nodes[name].ctl("list_vhosts", "-q").split()


class Replicated:
    """A vhost on all nodes of a cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self.name = unique("replicated")
        self.cluster = cluster
        self.connections: list[pika.BlockingConnection] = []
        for node in cluster.nodes.values():
            if not node.alive():
                node.start()
        for name in cluster.nodes:
            eventually(lambda name=name: set(cluster.nodes) <= self._nodes_seen_by(name))
        first = next(iter(cluster.nodes.values()))
        first.ctl("add_vhost", self.name, "--replicas", str(len(cluster.nodes)))
        self.owner = self.find_owner()
        cluster.nodes[self.owner].ctl("set_permissions", "-p", self.name, "guest", ".*", ".*", ".*")

    def _nodes_seen_by(self, name: str) -> set[str]:
        rows = json.loads(self.cluster.nodes[name].ctl("cluster_status", "--formatter", "json"))
        return {row["name"] for row in rows if row["kind"] == "node"}

    def find_owner(self, *, other_than: str = "") -> str:
        """The node that has the vhost open, once there is one."""
        names = [name for name, node in self.cluster.nodes.items() if node.alive() and name != other_than]
        return eventually(lambda: next((one for one in names if self.cluster.is_open_at(self.name, one)), ""), timeout=90)

    def connect(self, name: str) -> pika.BlockingConnection:
        connection = pika.BlockingConnection(self.cluster.nodes[name].parameters(vhost=self.name))
        self.connections.append(connection)
        return connection

    def publisher(self, name: str) -> Any:
        """A channel whose publishes wait for their confirms."""
        channel = self.connect(name).channel()
        channel.confirm_delivery()
        return channel

    def close(self) -> None:
        for connection in self.connections:
            with contextlib.suppress(pika.exceptions.AMQPError):  # of a node that is gone
                connection.close()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    require(postgres.is_installed(), "PostgreSQL's server (apt-get install postgresql)")
    folder = Path(tempfile.mkdtemp(prefix="rabbitpy-postgres-"))  # pytest's own is closed to the user of the servers
    with postgres.running(folder) as servers:
        cluster = Cluster(tmp_path_factory.mktemp("nodes"), servers)
        try:
            cluster.start()
            yield cluster
        finally:
            cluster.stop()
    shutil.rmtree(folder)


@pytest.fixture
def vhost(cluster: Cluster) -> Iterator[Replicated]:
    vhost = Replicated(cluster)
    yield vhost
    vhost.close()


def publish(channel: Any, queue: str, numbers: range) -> None:
    """With a confirm for each."""
    for number in numbers:
        channel.basic_publish("", queue, str(number).encode(), pika.BasicProperties(delivery_mode=2))


def drained(connection: pika.BlockingConnection, queue: str) -> list[tuple[int, bool]]:
    """Number and redelivered flag of each message that there is."""
    channel = connection.channel()
    found: list[tuple[int, bool]] = []
    while True:
        method, _, body = channel.basic_get(queue, auto_ack=True)
        if method is None:
            return found
        found.append((int(body), method.redelivered))


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
    assert len(ended) == 1
    eventually(lambda: not cluster.is_open_at(vhost.name, owner))
    assert [number for number, _ in drained(vhost.connect(second), "orders")] == list(range(15))
    eventually(lambda: f"owned by node '{second}'" in refusal(vhost, owner))


def refusal(vhost: Replicated, name: str) -> str:
    with pytest.raises(pika.exceptions.ProbableAccessDeniedError) as closed:
        vhost.connect(name)
    return str(closed.value)


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


def segments_of(node: BrokerProcess, vhost: str) -> list[Path]:
    return list((node.data_dir / "vhosts" / vhost / "queues").glob("*/*.segment"))
