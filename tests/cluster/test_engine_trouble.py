"""An engine that is slow, gone and back, below brokers that are fine: publishers go on soon after it, and the ledger is right.

What a publisher was told is confirmed is in the queue, nothing is there twice, and all in the order in which it was published.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator

import pika
import pika.exceptions
import pytest

from cluster.engine_rigs import leader
from cluster.replicated import PATIENCE, Cluster, Replicated, drained
from perf.engines.kafka import KafkaServers
from perf.engines.postgres import PostgresServers
from rabbitpy_broker.cluster.kafka.engine import KafkaEngine, escaped
from rabbitpy_broker.storage.vhost_store import vhost_folder
from support import eventually

QUEUE = "ledger"
BACK = 30.0  # seconds; one to five on a machine that does nothing else
SLEEP = 5.0  # seconds


class Ledger:
    """Publishes numbers, each once, and remembers which were confirmed; when its connection ends it looks for the owner."""

    def __init__(self, vhost: Replicated) -> None:
        self.confirmed: list[int] = []
        self._vhost = vhost
        self._number = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._over.is_set():
            for node in self._vhost.cluster.nodes.values():
                parameters = node.parameters(vhost=self._vhost.name, blocked_connection_timeout=PATIENCE)
                try:
                    with pika.BlockingConnection(parameters) as connection:
                        channel = connection.channel()
                        channel.confirm_delivery()
                        channel.queue_declare(QUEUE, durable=True)
                        self._publish(channel)
                except pika.exceptions.AMQPError:
                    continue  # it is not the owner, or not any more

    def _publish(self, channel: pika.adapters.blocking_connection.BlockingChannel) -> None:
        while not self._over.is_set():
            number, self._number = self._number, self._number + 1
            channel.basic_publish("", QUEUE, str(number).encode(), pika.BasicProperties(delivery_mode=2))
            self.confirmed.append(number)

    def goes_on(self, timeout: float = PATIENCE) -> float:
        """Returns when ten more are confirmed, and how long that took."""
        began, there = time.monotonic(), len(self.confirmed)
        eventually(lambda: len(self.confirmed) >= there + 10, timeout=timeout)
        return time.monotonic() - began

    def stop(self) -> None:
        self._over.set()
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive()

    def check(self) -> None:
        self.stop()
        found = [number for number, _ in drained(self._vhost.connect(self._vhost.find_owner()), QUEUE)]
        assert found == sorted(set(found))
        assert set(self.confirmed) - set(found) == set()


@pytest.fixture
def ledger(vhost: Replicated) -> Iterator[Ledger]:
    ledger = Ledger(vhost)
    ledger.goes_on()
    yield ledger
    ledger.stop()
    vhost.cluster.servers.start_again()


async def topic_of(cluster: Cluster, vhost: str) -> str:
    """The Kafka topic that is the vhost's log."""
    engine = KafkaEngine(cluster.url)
    await engine.start()
    try:
        names = [name for name in await engine.logs() if name.startswith(f"{vhost_folder(vhost)}.")]
    finally:
        await engine.stop()
    return f"{cluster.url.rpartition('/')[2].partition('?')[0]}.log.{escaped(names[0])}"


def test_servers_that_sleep_and_wake(cluster: Cluster, vhost: Replicated, ledger: Ledger):
    stopped = list(cluster.servers.quorum())
    for server in stopped:
        server.pause()
    try:
        there = len(ledger.confirmed)
        until = time.monotonic() + SLEEP
        eventually(lambda: time.monotonic() > until)
        assert len(ledger.confirmed) <= there + 1  # which was under way
    finally:
        for server in stopped:
            server.resume()
    ledger.goes_on(BACK)
    ledger.check()


def test_all_servers_are_killed_and_started_again(cluster: Cluster, vhost: Replicated, ledger: Ledger):
    for server in cluster.servers.all:
        server.kill()
    cluster.servers.start_again()
    ledger.goes_on(BACK)
    ledger.check()


def test_the_server_that_takes_appends_is_killed(cluster: Cluster, vhost: Replicated, ledger: Ledger):
    servers = cluster.servers
    if isinstance(servers, PostgresServers):
        servers.primary.kill()
        servers.promote()
    else:
        assert isinstance(servers, KafkaServers)
        asyncio.run(leader(servers, asyncio.run(topic_of(cluster, vhost.name)))).kill()
    ledger.goes_on(BACK)
    ledger.check()
