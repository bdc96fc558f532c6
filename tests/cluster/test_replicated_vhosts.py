"""A vhost on three nodes: what was confirmed is there, whoever has it; an owner that was taken for dead confirms nothing more."""

from __future__ import annotations

import json
import shutil
import signal
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pika
import pika.exceptions
import pytest

from broker_process import BrokerProcess
from cluster.engine_rigs import require
from perf.engines import postgres
from support import eventually, unique

NODES = 3


class Cluster:
    """Three brokers, and a vhost on all of them that one has made."""

    def __init__(self, folder: Path, url: str) -> None:
        self.vhost = unique("replicated")
        self.nodes: dict[str, BrokerProcess] = {}
        prefix = unique("node")
        for number in range(NODES):
            name = f"{prefix}-{number}"
            config = {"cluster": {"engine": url, "node": name, "lease": 3000}}
            (folder / name).mkdir()
            self.nodes[name] = BrokerProcess(folder / name, config)

    def start(self) -> None:
        for node in self.nodes.values():
            node.start()
        first = next(iter(self.nodes.values()))
        eventually(lambda: set(self.nodes) <= {row["name"] for row in self.status(first)})
        first.ctl("add_vhost", self.vhost, "--replicas", str(NODES))
        owner = self.owner()
        self.nodes[owner].ctl("set_permissions", "-p", self.vhost, "guest", ".*", ".*", ".*")

    def stop(self) -> None:
        for node in self.nodes.values():
            if node.alive():
                node.signal(signal.SIGCONT)
                node.stop()

    def status(self, node: BrokerProcess) -> list[dict[str, Any]]:
        return json.loads(node.ctl("cluster_status", "--formatter", "json"))  # type: ignore[no-any-return]

    def owner(self, *, other_than: str = "") -> str:
        """The node that has the vhost open, once there is one."""

        def found() -> str:
            for name, node in self.nodes.items():
                if name != other_than and node.alive() and self.is_open_at(name):
                    return name
            return ""

        return eventually(found, timeout=90)

    def is_open_at(self, name: str) -> bool:
        return self.vhost in self.nodes[name].ctl("list_vhosts", "-q").split()

    def connect(self, name: str) -> pika.BlockingConnection:
        return pika.BlockingConnection(self.nodes[name].parameters(vhost=self.vhost))


@pytest.fixture(scope="module")
def engine_url() -> Iterator[str]:
    require(postgres.is_installed(), "PostgreSQL's server (apt-get install postgresql)")
    folder = Path(tempfile.mkdtemp(prefix="rabbitpy-postgres-"))  # pytest's own is closed to the user of the servers
    with postgres.running(folder) as servers:
        yield servers.url
    shutil.rmtree(folder)


@pytest.fixture
def cluster(tmp_path: Path, engine_url: str) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path, engine_url)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


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


def test_what_was_confirmed_is_there_when_the_owner_is_killed(cluster: Cluster):
    owner = cluster.owner()
    connection = cluster.connect(owner)
    channel = connection.channel()
    channel.confirm_delivery()
    channel.exchange_declare("routes", "topic", durable=True)
    channel.queue_declare("orders", durable=True)
    channel.queue_bind("orders", "routes", "#.eu")
    publish(channel, "orders", range(20))
    large = b"x" * 200_000  # above what other vhosts keep apart from the journal
    channel.basic_publish("routes", "a.eu", b"20", pika.BasicProperties(delivery_mode=2))
    channel.queue_declare("large", durable=True)
    channel.basic_publish("", "large", large, pika.BasicProperties(delivery_mode=2))
    acked, _, _ = channel.basic_get("orders", auto_ack=False)
    assert acked is not None
    channel.basic_ack(acked.delivery_tag)
    publish(channel, "orders", range(21, 22))  # with an epoch that has the ack

    cluster.nodes[owner].crash()
    second = cluster.owner(other_than=owner)
    found = drained(cluster.connect(second), "orders")
    assert found == [(number, True) for number in range(1, 22)]
    body = cluster.connect(second).channel().basic_get("large", auto_ack=True)[2]
    assert body == large

    # It goes on there, and the first comes back as a follower.
    connection = cluster.connect(second)
    channel = connection.channel()
    channel.confirm_delivery()
    channel.basic_publish("routes", "b.eu", b"30", pika.BasicProperties(delivery_mode=2))
    cluster.nodes[owner].start()
    cluster.nodes[second].crash()
    third = cluster.owner(other_than=second)
    assert drained(cluster.connect(third), "orders") == [(30, True)]


def test_an_owner_that_slept_through_its_take_over_confirms_nothing(cluster: Cluster):
    owner = cluster.owner()
    channel = cluster.connect(owner).channel()
    channel.confirm_delivery()
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
    second = cluster.owner(other_than=owner)
    publisher = cluster.connect(second).channel()
    publisher.confirm_delivery()
    publish(publisher, "orders", range(10, 15))
    cluster.nodes[owner].signal(signal.SIGCONT)
    publishing.join(60)
    assert len(ended) == 1
    eventually(lambda: not cluster.is_open_at(owner))
    assert [number for number, _ in drained(cluster.connect(second), "orders")] == list(range(15))


def test_a_node_that_does_not_own_it_says_who_does(cluster: Cluster):
    owner = cluster.owner()
    other = next(name for name in cluster.nodes if name != owner)
    eventually(lambda: f"owned by node '{owner}'" in refusal(cluster, other))


def refusal(cluster: Cluster, name: str) -> str:
    with pytest.raises(pika.exceptions.ConnectionClosedByBroker) as closed:
        cluster.connect(name)
    return str(closed.value.reply_text)
