"""A daemon with two workers, and a single broker with the same in it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pika
import pika.exceptions
import pytest

from broker_process import BrokerProcess
from management.conftest import Http
from support import eventually
from workers.daemon_process import WorkersProcess

VHOSTS = ("/", "east", "north", "west")
QUEUES = ("alpha", "beta", "gamma", "delta")


def definitions() -> dict[str, Any]:
    """Some of everything in each vhost."""
    found: dict[str, Any] = {
        "users": [
            {"name": "eve", "password": "eve", "tags": "management"},
            {"name": "mona", "password": "mona", "tags": "monitoring"},
        ],
        "vhosts": [{"name": name, "metadata": {"description": f"in the {name}", "tags": ["t"]}} for name in VHOSTS],
        "permissions": [{"user": "eve", "vhost": "east", "configure": ".*", "write": ".*", "read": ".*"}],
        "topic_permissions": [{"user": "eve", "vhost": "east", "exchange": "amq.topic", "write": "a", "read": "b"}],
        "global_parameters": [{"name": "colour", "value": {"is": "red"}}],
        "parameters": [],
        "policies": [],
        "queues": [],
        "exchanges": [],
        "bindings": [],
    }
    for name in VHOSTS:
        found["permissions"].append({"user": "guest", "vhost": name, "configure": ".*", "write": ".*", "read": ".*"})
        found["parameters"].append({"vhost": name, "component": "vhost-limits", "name": "limits", "value": {"max-queues": 100}})
        policy = {"pattern": "^a", "apply-to": "queues", "definition": {"max-length": 50}, "priority": VHOSTS.index(name)}
        found["policies"].append({"vhost": name, "name": f"p-{VHOSTS.index(name)}", **policy})
        exchange = {"type": "topic", "durable": True, "auto_delete": False, "internal": False, "arguments": {}}
        found["exchanges"].append({"vhost": name, "name": "x", **exchange})
        for queue in QUEUES:
            found["queues"].append({"vhost": name, "name": queue, "durable": True, "auto_delete": False, "arguments": {}})
            binding = {"source": "x", "destination": queue, "destination_type": "queue", "routing_key": f"{queue}.#"}
            found["bindings"].append({"vhost": name, "arguments": {}, **binding})
    return found


def publish(port: int, vhost: str) -> pika.BlockingConnection:
    """So many messages in each queue as its name has letters; a consumer that takes one is left."""
    parameters = pika.ConnectionParameters("127.0.0.1", port, vhost, client_properties={"connection_name": f"of {vhost}"})
    connection = pika.BlockingConnection(parameters)
    channel = connection.channel()
    channel.confirm_delivery()
    for queue in QUEUES:
        for _ in queue:
            channel.basic_publish("x", f"{queue}.k", b"message", pika.BasicProperties(delivery_mode=2, message_id=queue))
    channel.basic_qos(prefetch_count=1)
    channel.basic_consume("beta", lambda *_: None, consumer_tag=f"tag {vhost}")
    eventually(lambda: connection.process_data_events(0) or not channel.get_waiting_message_count())
    return connection


def fill(http: Http, port_of: Any) -> list[pika.BlockingConnection]:
    """The same for each broker; returns what is connected to it."""
    reply = http("POST", "definitions", definitions())
    assert reply.status == 204, reply.body
    return [publish(port_of(vhost), vhost) for vhost in VHOSTS]


def leave(connection: pika.BlockingConnection) -> None:
    """Whose broker may have been killed."""
    with contextlib.suppress(pika.exceptions.AMQPError):
        connection.close()


def filled(process: WorkersProcess) -> Iterator[Any]:
    """The daemon with the same in it as the others, until the end of the tests."""
    with contextlib.ExitStack() as stack:
        stack.callback(process.stop)
        for connection in fill(process.http, lambda vhost: process.amqp_port(process.worker_of(vhost))):
            stack.callback(leave, connection)
        yield process


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkersProcess]:
    config = {"collect_statistics_interval": 250, "management.backup_dir": str(tmp_path_factory.mktemp("backups"))}
    process = WorkersProcess(tmp_path_factory.mktemp("workers"), config)
    process.start()
    yield from filled(process)


@pytest.fixture(scope="module")
def single(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    process = BrokerProcess(tmp_path_factory.mktemp("single"), {"collect_statistics_interval": 250}).start()
    with contextlib.ExitStack() as stack:
        stack.callback(process.stop)
        for connection in fill(Http(process.management), lambda _: process.port):
            stack.callback(leave, connection)
        yield process
