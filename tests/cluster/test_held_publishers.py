"""An engine that takes nothing: publishers of the replicated vhost are held, told why, and let go; nobody else notices."""

from __future__ import annotations

import json
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.error import HTTPError

import pika
import pytest

from broker_process import CtlFailed
from cluster.engine_rigs import on_one_engine
from cluster.replicated import PATIENCE, Cluster, Replicated, drained
from support import eventually

pytestmark = on_one_engine


@contextmanager
def without_quorum(cluster: Cluster) -> Iterator[None]:
    paused = list(cluster.servers.quorum())
    for server in paused:
        server.pause()
    try:
        yield
    finally:
        for server in paused:
            server.resume()


class Publisher(threading.Thread):
    """Publishes with confirms until it is stopped, and notes what it is told."""

    def __init__(self, parameters: pika.ConnectionParameters, queue: str) -> None:
        super().__init__()
        parameters.blocked_connection_timeout = None
        self.told: list[str] = []
        self.confirmed: list[int] = []
        self._parameters = parameters
        self._queue = queue
        self._stop_it = threading.Event()
        self.start()

    def run(self) -> None:
        with pika.BlockingConnection(self._parameters) as connection:
            inner = connection._impl  # pika's own tells of it only between calls
            inner.add_on_connection_blocked_callback(lambda _, method: self.told.append(method.method.reason))
            inner.add_on_connection_unblocked_callback(lambda *_: self.told.append(""))
            channel = connection.channel()
            channel.queue_declare(self._queue, durable=True)
            channel.confirm_delivery()
            number = 0
            while not self._stop_it.is_set():
                channel.basic_publish("", self._queue, str(number).encode(), pika.BasicProperties(delivery_mode=2))
                self.confirmed.append(number)
                number += 1
                connection.process_data_events(0.005)

    def finish(self) -> None:
        self._stop_it.set()
        self.join(PATIENCE)
        assert not self.is_alive()


def health(address: str, check: str) -> tuple[int, dict[str, Any]]:
    url = f"http://{address}/api/health/checks/{check}"
    request = urllib.request.Request(url, headers={"Authorization": "Basic Z3Vlc3Q6Z3Vlc3Q="})
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return answer.status, json.load(answer)
    except HTTPError as error:
        return error.code, json.load(error)


def test_only_the_publishers_of_the_vhost_are_held(cluster: Cluster, vhost: Replicated):
    node = cluster.nodes[vhost.owner]
    why = f"the log of vhost '{vhost.name}' takes nothing"
    publisher = Publisher(node.parameters(vhost=vhost.name), "orders")
    waiting = Publisher(node.parameters(vhost=vhost.name), "more")
    plain = Publisher(node.parameters(), "plain")
    try:
        eventually(lambda: publisher.confirmed and waiting.confirmed and plain.confirmed)
        with without_quorum(cluster):
            eventually(lambda: why in node.ctl("alarms"), timeout=PATIENCE)
            confirmed = len(plain.confirmed)
            with pytest.raises(CtlFailed) as failed:
                node.ctl("check_virtual_hosts")
            assert vhost.name in failed.value.stdout + failed.value.stderr
            status, alarms = health(node.management, "alarms")
            assert (status, [(one["resource"], one["vhost"]) for one in alarms["alarms"]]) == (503, [("log", vhost.name)])
            late = Publisher(node.parameters(vhost=vhost.name), "more")  # which is there: a declaration waits
            eventually(lambda: late.told == [why])
            eventually(lambda: len(plain.confirmed) > confirmed + 10)
        eventually(lambda: late.confirmed, timeout=PATIENCE)
        eventually(lambda: late.told == [why, ""])
        late.finish()
        eventually(lambda: "no alarms" in node.ctl("alarms"))
        assert health(node.management, "alarms")[0] == 200
    finally:
        for one in (publisher, waiting, plain):
            one.finish()
    assert plain.told == []
    assert [number for number, _ in drained(vhost.connect(vhost.owner), "orders")] == publisher.confirmed
