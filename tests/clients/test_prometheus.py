"""A real Prometheus scrapes the broker under load, and finds all that RabbitMQ's Overview dashboard and ours ask for."""

from __future__ import annotations

import json
import socket
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pika
import pytest
import yaml
from external import require_tools

from broker_process import BrokerProcess
from support import eventually

CONFIG = """
global: {{scrape_interval: 1s}}
scrape_configs:
- job_name: rabbitpy
  static_configs: [{{targets: ["{target}"]}}]
"""

# The forms of the dashboard's queries: a gauge joined with the node's names, a rate, and the top of the nodes table.
JOINED = "{series} * on(instance) group_left(rabbitmq_cluster, rabbitmq_node) rabbitmq_identity_info"
RATED = "rate({series}[60s]) * on(instance) group_left(rabbitmq_cluster, rabbitmq_node) rabbitmq_identity_info"
DASHBOARD = {
    JOINED: [
        "rabbitmq_queue_messages_ready",
        "rabbitmq_queue_messages_unacked",
        "rabbitmq_connections",
        "rabbitmq_channels",
        "rabbitmq_queues",
        "rabbitmq_consumers",
        "rabbitmq_build_info",
        "rabbitmq_resident_memory_limit_bytes",
        "rabbitmq_process_resident_memory_bytes",
        "rabbitmq_disk_space_available_bytes",
        "rabbitmq_process_max_fds",
        "rabbitmq_process_open_fds",
        "rabbitmq_process_max_tcp_sockets",
        "rabbitmq_process_open_tcp_sockets",
    ],
    RATED: [
        "rabbitmq_global_messages_received_total",
        "rabbitmq_global_messages_confirmed_total",
        "rabbitmq_global_messages_routed_total",
        "rabbitmq_global_messages_unroutable_dropped_total",
        "rabbitmq_global_messages_unroutable_returned_total",
        "rabbitmq_global_messages_redelivered_total",
        "rabbitmq_global_messages_delivered_total",
        "rabbitmq_global_messages_delivered_consume_manual_ack_total",
        "rabbitmq_global_messages_delivered_consume_auto_ack_total",
        "rabbitmq_global_messages_acknowledged_total",
        "rabbitmq_global_messages_delivered_get_auto_ack_total",
        "rabbitmq_global_messages_delivered_get_manual_ack_total",
        "rabbitmq_global_messages_get_empty_total",
        "rabbitmq_queues_declared_total",
        "rabbitmq_queues_created_total",
        "rabbitmq_queues_deleted_total",
        "rabbitmq_channels_opened_total",
        "rabbitmq_channels_closed_total",
        "rabbitmq_connections_opened_total",
        "rabbitmq_connections_closed_total",
    ],
}
EXAMPLES = Path(__file__).parent.parent.parent / "docs" / "examples" / "monitoring"
CHOSEN = {"$job": ".*", "$instance": ".*", "$__rate_interval": "60s"}  # by who looks at the dashboard


def queries_of_our_dashboard() -> list[str]:
    """With what is chosen in Grafana put in."""
    panels = json.loads((EXAMPLES / "grafana-dashboard.json").read_text())["panels"]
    found = [target["expr"] for panel in panels for target in panel["targets"]]
    for variable, value in CHOSEN.items():
        found = [query.replace(variable, value) for query in found]
    return found


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Prometheus:
    """The server's query API."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"

    def query(self, text: str) -> list[dict[str, object]]:
        """The series of an instant query."""
        url = f"{self.url}/api/v1/query?" + urllib.parse.urlencode({"query": text})
        with urllib.request.urlopen(url, timeout=5) as answer:
            return list(json.load(answer)["data"]["result"])

    def ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/-/ready", timeout=1) as answer:
                return bool(answer.status == 200)
        except urllib.error.HTTPError as error:
            error.close()  # it is an answer too
            return False
        except OSError:
            return False


@pytest.fixture
def scraped(own_broker: Callable[..., BrokerProcess], tmp_path: Path) -> Iterator[tuple[BrokerProcess, Prometheus]]:
    require_tools("prometheus", "promtool")
    process = own_broker()
    config = tmp_path / "prometheus.yml"
    config.write_text(CONFIG.format(target=process.metrics))
    port = free_port()
    with (tmp_path / "prometheus.log").open("wb") as log:
        server = subprocess.Popen(
            [
                "prometheus",
                f"--config.file={config}",
                f"--storage.tsdb.path={tmp_path / 'tsdb'}",
                f"--web.listen-address=127.0.0.1:{port}",
            ],
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    prometheus = Prometheus(port)
    try:
        eventually(prometheus.ready, 30)
        yield process, prometheus
    finally:
        server.terminate()
        server.wait(30)


def publish_and_consume(channel: pika.adapters.blocking_connection.BlockingChannel, queue: str) -> None:
    """A hundred messages through the queue, acked."""
    for number in range(100):
        channel.basic_publish("", queue, str(number).encode())
    for method, _, _ in channel.consume(queue, inactivity_timeout=5):
        assert method is not None
        channel.basic_ack(method.delivery_tag)
        if method.delivery_tag % 100 == 0:
            break
    channel.cancel()


@pytest.mark.own
@pytest.mark.timeout(120)
def test_the_dashboards_queries_find_their_series_under_load(scraped: tuple[BrokerProcess, Prometheus]) -> None:
    process, prometheus = scraped
    connection = pika.BlockingConnection(process.parameters())
    queue = connection.channel().queue_declare("", exclusive=True).method.queue

    def rates_are_seen() -> bool:
        publish_and_consume(connection.channel(), queue)
        seen = prometheus.query("rate(rabbitmq_global_messages_acknowledged_total[60s]) > 0")
        return bool(seen)

    eventually(rates_are_seen, 60)
    eventually(lambda: prometheus.query("up{job='rabbitpy'} == 1"), 10)  # a scrape that failed hides the series before it
    missing = [
        form.format(series=series)
        for form, names in DASHBOARD.items()
        for series in names
        if not prometheus.query(form.format(series=series))
    ]
    assert missing == []
    ours = queries_of_our_dashboard()
    assert len(ours) > 30 and not any("$" in query for query in ours)
    assert [query for query in ours if not prometheus.query(query)] == []
    for group in yaml.safe_load((EXAMPLES / "prometheus-rules.yml").read_text())["groups"]:
        for rule in group["rules"]:
            prometheus.query(rule["expr"])  # raises for what is no query; whether it holds now does not matter
    connection.close()


@pytest.mark.own
@pytest.mark.parametrize("path", ["/metrics", "/metrics/per-object"])
def test_promtool_finds_nothing_wrong_on_a_busy_broker(own_broker: Callable[..., BrokerProcess], path: str) -> None:
    require_tools("promtool")
    process = own_broker()
    connection = pika.BlockingConnection(process.parameters())
    channel = connection.channel()
    queue = channel.queue_declare("", exclusive=True).method.queue
    publish_and_consume(channel, queue)
    with urllib.request.urlopen(f"http://{process.metrics}{path}", timeout=10) as answer:
        text = answer.read()
    assert queue.encode() in text or path == "/metrics"
    checked = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, check=False, timeout=30)
    assert (checked.returncode, checked.stdout + checked.stderr) == (0, b"")
    connection.close()
