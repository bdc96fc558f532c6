"""What monitors, scalers and frameworks ask at their start or at each look: the requests they send, and the fields they read."""

from __future__ import annotations

import urllib.parse
from collections.abc import Iterator
from typing import Any

import pika
import pytest

from broker_process import BrokerProcess
from management.conftest import Http
from support import eventually

pytestmark = pytest.mark.own

RATES = ("messages_details", "messages_ready_details", "messages_unacknowledged_details")
DELIVERED = ("publish", "deliver", "deliver_no_ack", "deliver_get", "get", "get_no_ack", "redeliver", "ack")

# Telegraf, inputs.rabbitmq: an answer without one of these is an error of the plugin.
TELEGRAF: dict[str, tuple[str, ...]] = {
    "overview": (
        "message_stats.ack", "message_stats.deliver_get", "message_stats.publish", "object_totals.channels",
        "object_totals.connections", "object_totals.consumers", "object_totals.exchanges", "object_totals.queues",
        "queue_totals.messages", "queue_totals.messages_ready", "queue_totals.messages_unacknowledged", "listeners",
    ),
    "nodes": (
        "name", "disk_free", "disk_free_limit", "disk_free_alarm", "fd_total", "fd_used", "mem_limit", "mem_used", "mem_alarm",
        "proc_total", "proc_used", "run_queue", "sockets_total", "sockets_used", "uptime", "mnesia_disk_tx_count",
        "mnesia_ram_tx_count", "gc_num", "gc_bytes_reclaimed", "io_read_avg_time", "io_read_bytes", "io_write_avg_time",
        "io_write_bytes", "running", "partitions",
    ),
    "queues": (
        "name", "node", "vhost", "consumers", "consumer_utilisation", "memory", "durable", "auto_delete", "message_bytes",
        "message_bytes_ready", "message_bytes_unacknowledged", "message_bytes_ram", "message_bytes_persistent", "messages",
        "messages_ready", "messages_unacknowledged", "message_stats.publish_details.rate", "message_stats.ack_details.rate",
        "message_stats.deliver_get_details.rate", "message_stats.redeliver", "head_message_timestamp",
    ),
    "exchanges": (
        "name", "vhost", "type", "internal", "durable", "auto_delete", "message_stats.publish_in", "message_stats.publish_out",
        "message_stats.publish_in_details.rate",
    ),
}  # fmt: skip
# Datadog, rabbitmq: numbers that become gauges and rates.
DATADOG: dict[str, tuple[str, ...]] = {
    "overview": (
        "cluster_name", "rabbitmq_version", "node", "object_totals.connections", "queue_totals.messages_details.rate",
        "message_stats.publish_details.rate", "message_stats.return_unroutable_details.rate",
    ),
    "queues": (
        "name", "vhost", "policy", "consumers", "consumer_utilisation", "memory", "messages", "messages_details.rate",
        "messages_ready", "messages_ready_details.rate", "messages_unacknowledged", "messages_unacknowledged_details.rate",
        *(f"message_stats.{name}" for name in DELIVERED), *(f"message_stats.{name}_details.rate" for name in DELIVERED),
    ),
    "nodes": ("name", "fd_used", "disk_free", "mem_used", "run_queue", "sockets_used", "partitions", "running", "mem_alarm"),
    "exchanges": ("name", "vhost", "type", "message_stats.publish_in", "message_stats.publish_out_details.rate"),
    "connections": ("state", "user", "vhost", "node", "peer_host"),
    "vhosts": ("name",),
}  # fmt: skip
# Zabbix, "RabbitMQ cluster/node by HTTP": what its JSON paths name.
ZABBIX: dict[str, tuple[str, ...]] = {
    "overview": (
        "management_version", "rabbitmq_version", "object_totals.consumers", "object_totals.exchanges",
        "queue_totals.messages_ready", "message_stats.confirm", "message_stats.confirm_details.rate",
        "message_stats.return_unroutable", "message_stats.drop_unroutable", "message_stats.get_no_ack",
        "message_stats.disk_reads",
    ),
    "nodes": (
        "disk_free", "disk_free_limit", "disk_free_alarm", "mem_used", "mem_limit", "mem_alarm", "running", "partitions",
        "uptime", "fd_used", "sockets_used", "proc_used", "run_queue", "processors",
    ),
    "queues": ("name", "vhost", "node", "type", "messages", "messages_ready", "message_stats.publish", "memory", "state"),
}  # fmt: skip


def at(value: Any, path: str) -> Any:
    """Raises KeyError where a field is not there."""
    for name in path.split("."):
        value = value[name]
    return value


@pytest.fixture
def busy(http: Http, api_broker: BrokerProcess) -> Iterator[Http]:
    """A broker with a queue that is used, and whose rates are known."""
    http("PUT", "queues/%2F/q", {"durable": True})
    http("POST", "bindings/%2F/e/amq.topic/q/q", {"routing_key": "#"})
    with pika.BlockingConnection(api_broker.parameters()) as connection:
        channel = connection.channel()
        channel.basic_consume("q", lambda used, method, *_: used.basic_ack(method.delivery_tag))

        def is_busy() -> bool:
            channel.basic_publish("amq.topic", "q", b"x")
            connection.process_data_events(0.01)
            stats = http.get("queues/%2F/q").get("message_stats", {})
            return bool(stats) and stats["ack_details"]["rate"] > 0

        eventually(is_busy)
        yield http


@pytest.mark.parametrize("fields", [TELEGRAF, DATADOG, ZABBIX], ids=["telegraf", "datadog", "zabbix"])
def test_a_monitor_finds_its_fields(busy: Http, fields: dict[str, tuple[str, ...]]) -> None:
    for path, names in fields.items():
        found = busy.get(path)
        if isinstance(found, list):
            (found,) = [one for one in found if one["name"] in ("q", "amq.topic") or path not in ("queues", "exchanges")]
        for name in names:
            value = at(found, name)
            if name.endswith("rate"):
                assert isinstance(value, int | float), f"{path}: {name}"
    node = busy.get("nodes")[0]
    assert all(node[f"{name}_total"] > 0 for name in ("fd", "sockets", "proc"))
    assert busy.get(f"nodes/{urllib.parse.quote(node['name'])}/memory")["memory"]["total"]["rss"] > 0
    assert busy("GET", "federation-links").status == 404
    assert busy("GET", "nodes", headers={"Accept": "application/bert, application/json;q=0.1"}).json


def test_checks_answer_as_zabbix_and_kubernetes_ask(busy: Http) -> None:
    for check in (
        "alarms", "local-alarms", "certificate-expiration/1/months", "virtual-hosts", "node-is-mirror-sync-critical",
        "node-is-quorum-critical",
    ):  # fmt: skip
        assert busy.get(f"health/checks/{check}")["status"] == "ok"
    assert busy.get("aliveness-test/%2F") == {"status": "ok"}


def test_keda_scales_by_length_and_by_rate(busy: Http) -> None:
    queue = busy.get("queues/%2F/q")
    assert queue["messages"] == queue["messages_ready"] + queue["messages_unacknowledged"]
    assert queue["message_stats"]["publish_details"]["rate"] > 0
    assert queue["message_stats"]["deliver_get_details"]["rate"] > 0
    page = busy.get("queues/%2F?page=1&use_regex=true&pagination=false&name=%5Eq&page_size=100")
    assert (page["page_count"], [one["name"] for one in page["items"]]) == (1, ["q"])
    assert busy("GET", "queues/%2F/none").status == 404


def test_nservicebus_starts(busy: Http) -> None:
    overview = busy.get("overview")
    assert tuple(map(int, overview["rabbitmq_version"].split("."))) >= (3, 10, 0)
    assert overview["disable_stats"] is False
    flags = {flag["name"]: flag["state"] for flag in busy.get("feature-flags")}
    assert (flags["stream_queue"], flags["quorum_queue"]) == ("enabled", "enabled")
    queue = busy.get("queues/%2F/q")
    assert (queue["type"], queue["arguments"], queue["effective_policy_definition"]) == ("classic", {}, {})
    assert busy.get("queues?page=1&page_size=500")["page_count"] == 1
    delivery = {"pattern": "^nsb", "definition": {"delivery-limit": -1}, "apply-to": "quorum_queues", "priority": 0}
    assert busy("PUT", "policies/%2F/nsb.delivery-limit", delivery).status in (201, 204)
    assert busy.get("bindings/%2F")


def test_spring_and_a_repeated_delete(busy: Http) -> None:
    assert "@" in busy.get("queues/%2F/q")["node"]
    assert busy("DELETE", "queues/%2F/gone").status == 404
    reply = busy("POST", "bindings/%2F/e/amq.topic/q/q", {"routing_key": "a/b", "arguments": {}})
    assert (reply.status, reply.headers["location"]) == (201, "q/a%252Fb")
