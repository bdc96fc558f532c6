"""Celery Flower beside a Celery worker: it shows how many tasks wait, and asks the management API within two seconds for that.

In a vhost with a name: for `/` Flower asks for `queues//`, which is a 404, from RabbitMQ too.
"""

from __future__ import annotations

import base64
import json
import os
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from celery_worker import Worker
from external import HERE

from broker_process import BrokerProcess
from support import eventually

pytestmark = [pytest.mark.own, pytest.mark.timeout(120), pytest.mark.filterwarnings("ignore::ResourceWarning")]


@pytest.fixture
def flower(own_broker: Callable[..., BrokerProcess], tmp_path: Path) -> Iterator[tuple[str, Worker]]:
    """The address of a Flower, and a worker that it knows of."""
    broker = own_broker()
    broker.ctl("add_vhost", "tasks")
    broker.ctl("set_permissions", "guest", ".*", ".*", ".*", "--vhost", "tasks")
    url = f"amqp://guest:guest@{broker.host}:{broker.port}/tasks"
    worker = Worker(url, tmp_path, prefix="flower")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    env = {**os.environ, "CLIENT_TEST_BROKER": url, "CLIENT_TEST_PREFIX": "flower", "CLIENT_TEST_RESULTS": "rpc://",
           "FLOWER_UNAUTHENTICATED_API": "true", "PYTHONDONTWRITEBYTECODE": "1"}
    api = f"--broker-api=http://guest:guest@{broker.management}/api/"
    command = [sys.executable, "-m", "celery", "-A", "celery_app", "flower", "--address=127.0.0.1", f"--port={port}", api]
    with (tmp_path / "flower.log").open("wb") as log:
        process = subprocess.Popen(command, cwd=HERE, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        yield f"http://127.0.0.1:{port}", worker
    finally:
        worker.stop()
        process.terminate()
        process.wait(20)


def asked(address: str) -> Any:
    """What Flower's own API says; nothing while it does not listen yet."""
    request = urllib.request.Request(address)
    request.add_header("Authorization", "Basic " + base64.b64encode(b"guest:guest").decode())
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return json.loads(answer.read())
    except urllib.error.URLError:
        return None


def test_flower_shows_the_length_of_the_workers_queue(flower: tuple[str, Worker]) -> None:
    address, worker = flower
    worker.start("--pool", "solo", "-c", "1")
    eventually(lambda: (asked(f"{address}/api/queues/length") or {}).get("active_queues"), 60)
    worker.stop()
    for number in range(3):
        worker.task("add").delay(number, 1)

    def waiting() -> bool:
        queues = (asked(f"{address}/api/queues/length") or {}).get("active_queues", [])
        return [(queue["name"], queue["messages"]) for queue in queues] == [(worker.queue, 3)]

    eventually(waiting, 30)
