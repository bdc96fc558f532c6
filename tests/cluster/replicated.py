"""Three brokers on one engine, and vhosts that are on all of them: what tests of replicated vhosts share.

The fixtures `cluster` and `vhost` are in conftest.py; a test that takes one of them runs for each engine.
"""

from __future__ import annotations

import contextlib
import json
import signal
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pika
import pika.exceptions
import pytest

from broker_process import BrokerProcess
from perf.engines.servers import Servers
from support import eventually, unique

CHECKPOINT_BYTES = 1_000_000
LAST_LINES = 40
PATIENCE = 90.0  # seconds for a take-over, or for an engine to come back


class Cluster:
    """Three brokers on one engine, whose servers are `servers`; `more` are settings of each."""

    def __init__(
        self, folder: Path, servers: Servers, url: str, names: Iterable[str] = ("one", "two", "three"),
        more: Mapping[str, Any] | None = None,
    ) -> None:  # fmt: skip
        self.servers = servers
        self.url = url
        self.nodes: dict[str, BrokerProcess] = {}
        for name in names:
            (folder / name).mkdir()
            config = {
                **(more or {}),
                "cluster": {
                    "engine": url, "node": name, "lease": 3000, "append_timeout": 300_000, "checkpoint_bytes": CHECKPOINT_BYTES
                },
            }  # fmt: skip
            self.nodes[name] = BrokerProcess(folder / name, config)

    def start(self) -> None:
        """Starts those that do not run."""
        starting = [node for node in self.nodes.values() if not node.alive()]
        with ThreadPoolExecutor() as threads:
            list(threads.map(BrokerProcess.start, starting))

    def stop(self) -> None:
        for node in self.nodes.values():
            if node.alive():
                node.signal(signal.SIGCONT)
                node.stop()

    def show_logs(self) -> None:
        """Prints what each node has logged last, for whoever reads of a test that failed."""
        for name, node in self.nodes.items():
            print(f"--- {name}", *node.log_text().splitlines()[-LAST_LINES:], sep="\n")

    def is_open_at(self, vhost: str, name: str) -> bool:
        return vhost in self.nodes[name].ctl("list_vhosts", "-q").split()


class Replicated:
    """A vhost on all nodes of a cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self.name = unique("replicated")
        self.cluster = cluster
        self.connections: list[pika.BlockingConnection] = []
        cluster.start()
        for name in cluster.nodes:
            eventually(lambda name=name: set(cluster.nodes) <= self.nodes_seen_by(name), timeout=PATIENCE)
        first = next(iter(cluster.nodes.values()))
        first.ctl("add_vhost", self.name, "--replicas", str(len(cluster.nodes)))
        self.owner = self.find_owner()
        cluster.nodes[self.owner].ctl("set_permissions", "-p", self.name, "guest", ".*", ".*", ".*")

    def nodes_seen_by(self, name: str) -> set[str]:
        status = json.loads(self.cluster.nodes[name].ctl("cluster_status", "--formatter", "json"))
        return set(status["running_nodes"])

    def position_at(self, name: str) -> int:
        """How far the node has the log; as the owner, what it has written. -1: it does not know yet that it has a replica."""
        status = json.loads(self.cluster.nodes[name].ctl("cluster_status", "--formatter", "json"))
        for one in status["replicated_vhosts"]:
            if one["name"] == self.name:
                positions = [int(replica["position"] or 0) for replica in one["replicas"] if replica["node"] == name]
                return max(positions, default=-1)
        return -1

    def find_owner(self, *, other_than: str = "") -> str:
        """The node that has the vhost open, once there is one."""
        names = [name for name, node in self.cluster.nodes.items() if node.alive() and name != other_than]
        try:
            return eventually(lambda: next((one for one in names if self.cluster.is_open_at(self.name, one)), ""), PATIENCE)
        except pytest.fail.Exception:
            self.cluster.show_logs()
            raise

    def connect(self, name: str) -> pika.BlockingConnection:
        connection = pika.BlockingConnection(self.cluster.nodes[name].parameters(vhost=self.name))
        self.connections.append(connection)
        return connection

    def publisher(self, name: str) -> Any:
        """A channel whose publishes wait for their confirms."""
        channel = self.connect(name).channel()
        channel.confirm_delivery()
        return channel

    def refusal(self, name: str) -> str:
        """What a client is told by a node that does not own the vhost."""
        with pytest.raises(pika.exceptions.ProbableAccessDeniedError) as closed:
            self.connect(name)
        return str(closed.value)

    def close(self) -> None:
        for connection in self.connections:
            with contextlib.suppress(pika.exceptions.AMQPError):  # of a node that is gone
                connection.close()


def publish(channel: Any, queue: str, numbers: Iterable[int]) -> None:
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
