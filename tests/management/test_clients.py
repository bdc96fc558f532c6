"""Clients of RabbitMQ's API run against ours unchanged: rabbitmqadmin, where a RabbitMQ is installed, and AMQPStorm."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import amqpstorm
import pika
import pytest
from amqpstorm.management import ApiError, ManagementApi

from broker_process import BrokerProcess
from support import eventually

pytestmark = pytest.mark.own

PLACES = "/usr/lib/rabbitmq/lib/rabbitmq_server-*/plugins/rabbitmq_management-*/priv/www/cli/rabbitmqadmin"

Run = Callable[..., str]


def rabbitmqadmin() -> Path | None:
    """The script of an installed RabbitMQ, or the one that RABBITPY_TEST_RABBITMQADMIN names."""
    given = os.environ.get("RABBITPY_TEST_RABBITMQADMIN")
    found = [Path(given)] if given else sorted(Path("/").glob(PLACES[1:]))
    return found[-1] if found else None


@pytest.fixture
def admin(api_broker: BrokerProcess) -> Run:
    """`admin("list", "queues")` is what rabbitmqadmin prints."""
    script = rabbitmqadmin()
    if script is None:
        pytest.skip("no rabbitmqadmin: no RabbitMQ is installed, and RABBITPY_TEST_RABBITMQADMIN names none")
    host, port = api_broker.management.rsplit(":", 1)

    def run(*arguments: str) -> str:
        command = [sys.executable, "-W", "ignore", str(script), "-H", host, "-P", port, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, f"{arguments}: {done.stdout}{done.stderr}"
        return done.stdout

    return run


def test_rabbitmqadmin_has_no_command_that_is_not_tried_here(admin: Run) -> None:
    """Those of its own help; a parameter needs a plugin, as in RabbitMQ."""
    tried = Path(__file__).read_text()
    lines = admin("help", "subcommands").splitlines()
    commands = [line.split() for line in lines if re.match(r"  (?!where|rabbitmqadmin)[a-z]", line)]
    assert len(commands) > 30
    for verb, *what in commands:
        assert f'"{verb}"' in tried, verb
        if verb in ("list", "declare", "delete", "show", "close", "purge"):
            assert f'"{what[0]}"' in tried, (verb, what)
    assert "3.10.8" in admin("show", "overview")
    for verb, *given in (("declare", "component=none", "name=n", "value=1"), ("delete", "component=none", "name=n")):
        with pytest.raises(AssertionError, match=r"[Nn]ot [Ff]ound"):
            admin(verb, "parameter", *given)


def test_rabbitmqadmin_declares_and_deletes(admin: Run) -> None:
    for kind, *given in (
        ("vhost", "name=v", "tracing=true"),
        ("user", "name=u", "password=p", "tags=monitoring"),
        ("permission", "vhost=v", "user=u", "configure=.*", "write=.*", "read=.*"),
        ("queue", "name=q", "durable=true", 'arguments={"x-max-length": 10}'),
        ("exchange", "name=x", "type=topic", "auto_delete=false"),
        ("binding", "source=x", "destination=q", "routing_key=a.b"),
        ("policy", "name=p", "pattern=^q", 'definition={"message-ttl": 60000}', "priority=2", "apply-to=queues"),
        ("operator_policy", "name=o", "pattern=^q", 'definition={"max-length": 5}'),
        ("vhost_limit", "vhost=v", "name=max-queues", "value=10"),
    ):
        assert "declared" in admin("declare", kind, *given)
    for kind in (
        "connections", "channels", "consumers", "exchanges", "queues", "bindings", "users", "vhosts", "permissions", "nodes",
        "parameters", "policies", "operator_policies", "vhost_limits",
    ):  # fmt: skip
        admin("list", kind)
        admin("-f", "long", "-d", "3", "list", kind)  # as a table it fails on null, from RabbitMQ too
    assert "| q    | 0        |" in admin("list", "queues", "name", "messages")
    for kind, *given in (
        ("vhost_limit", "vhost=v", "name=max-queues"),
        ("operator_policy", "name=o"),
        ("policy", "name=p"),
        ("binding", "source=x", "destination_type=queue", "destination=q", "properties_key=a.b"),
        ("exchange", "name=x"),
        ("permission", "vhost=v", "user=u"),
        ("user", "name=u"),
        ("vhost", "name=v"),
        ("queue", "name=q"),
    ):
        assert "deleted" in admin("delete", kind, *given)


def test_rabbitmqadmin_publishes_gets_and_purges(admin: Run, tmp_path: Path) -> None:
    admin("declare", "queue", "name=q")
    for _ in range(3):
        assert "published" in admin("publish", "routing_key=q", "payload=hello", 'properties={"delivery_mode":2}')
    assert "NOT routed" in admin("publish", "routing_key=none", "payload=hello")
    assert "hello" in admin("get", "queue=q", "count=2", "ackmode=ack_requeue_true")
    admin("get", "queue=q", f"payload_file={tmp_path / 'payload'}", "ackmode=ack_requeue_false")
    assert (tmp_path / "payload").read_text() == "hello"
    assert "purged" in admin("purge", "queue", "name=q")


def test_rabbitmqadmin_exports_and_imports(admin: Run, tmp_path: Path) -> None:
    admin("declare", "queue", "name=q", "durable=true")
    admin("export", str(tmp_path / "all.json"))
    admin("delete", "queue", "name=q")
    admin("import", str(tmp_path / "all.json"))
    admin("-V", "/", "export", str(tmp_path / "vhost.json"))
    assert [queue["name"] for queue in json.loads((tmp_path / "vhost.json").read_text())["queues"]] == ["q"]
    admin("-V", "/", "import", str(tmp_path / "vhost.json"))


def test_rabbitmqadmin_closes_a_connection(admin: Run, api_broker: BrokerProcess) -> None:
    connection = pika.BlockingConnection(api_broker.parameters())
    (found,) = json.loads(admin("-f", "raw_json", "list", "connections", "name"))
    admin("close", "connection", f"name={found['name']}")
    with pytest.raises(pika.exceptions.ConnectionClosedByBroker):
        connection.process_data_events(time_limit=5)


@pytest.fixture
def storm(api_broker: BrokerProcess) -> ManagementApi:
    return ManagementApi(f"http://{api_broker.management}", "guest", "guest")


def test_amqpstorm_manages_everything(storm: ManagementApi, api_broker: BrokerProcess) -> None:
    assert storm.aliveness_test("/") == {"status": "ok"}
    assert storm.whoami()["name"] == "guest"
    assert storm.overview()["rabbitmq_version"] == "3.10.8"
    assert storm.cluster_name()["name"]
    assert storm.nodes()[0]["running"] is True
    assert storm.healthchecks.get()["status"] == "ok"
    storm.virtual_host.create("v")
    assert storm.virtual_host.get("v")["name"] == "v"
    storm.user.create("u", "p", tags="management")
    storm.user.set_permission("u", "v", ".*", ".*", ".*")
    assert storm.user.get_permission("u", "v")["read"] == ".*"
    assert storm.virtual_host.get_permissions("v")
    storm.queue.declare("q", virtual_host="v", durable=True)
    storm.exchange.declare("x", exchange_type="topic", virtual_host="v")
    storm.queue.bind("q", "x", "a.*", virtual_host="v")
    assert {binding["source"] for binding in storm.queue.bindings("q", virtual_host="v")} == {"", "x"}
    assert storm.basic.publish("hello", "a.b", "x", virtual_host="v") == {"routed": True}
    (message,) = storm.basic.get("q", virtual_host="v", requeue=True)
    assert message.body == "hello"
    assert storm.queue.get("q", virtual_host="v")["name"] == "q"
    storm.queue.purge("q", virtual_host="v")
    storm.queue.unbind("q", "x", "a.*", virtual_host="v")
    storm.exchange.delete("x", virtual_host="v")
    storm.queue.delete("q", virtual_host="v")
    with pytest.raises(ApiError, match="NOT-FOUND"):
        storm.queue.get("q", virtual_host="v")
    with amqpstorm.Connection(api_broker.host, "guest", "guest", port=api_broker.port) as connection:
        connection.channel()
        (found,) = eventually(storm.connection.list)
        assert storm.channel.list()[0]["connection_details"]["name"] == found["name"]
        storm.connection.close(found["name"])
        eventually(lambda: not storm.connection.list())
    storm.user.delete("u")
    storm.virtual_host.delete("v")
