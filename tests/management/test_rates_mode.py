"""Which rates and samples there are, as the configuration says: `rates_mode`, how long samples are kept, no collector at all."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from broker_process import BrokerProcess, broker_command
from management.conftest import Http, quoted
from management.event_stream import EventStream
from support import eventually

pytestmark = pytest.mark.own

Own = Callable[..., BrokerProcess]
SAMPLES = "&".join(f"{kind}_age=60&{kind}_incr=5" for kind in ("lengths", "msg_rates", "data_rates", "node_stats"))
POLICIES = "sample_retention_policies"
LISTS = ("overview", "nodes", "vhosts", "queues", "exchanges", "connections", "channels", "queues/%2F/orders", "vhosts/%2F")


def fields(value: Any) -> Iterator[str]:
    """The names of all fields, of inner objects too."""
    for inner in value if isinstance(value, list) else value.values() if isinstance(value, dict) else ():
        yield from fields(inner)
    if isinstance(value, dict):
        yield from value


def busy(channel: BlockingChannel) -> None:
    channel.queue_declare("orders")
    channel.basic_qos(prefetch_count=2)
    channel.basic_consume("orders", lambda *_: None)
    for _ in range(10):
        channel.basic_publish("", "orders", b"x")
        channel.basic_publish("amq.fanout", "", b"lost")


def test_basic_has_rates_and_the_samples_that_rabbitmq_keeps(own_broker: Own) -> None:
    broker = own_broker({"collect_statistics_interval": 250})
    http = Http(broker.management)
    with pika.BlockingConnection(broker.parameters()) as connection:
        busy(connection.channel())
        rates = eventually(lambda: http.get("queues/%2F/orders").get("message_stats", {}).get("publish_details"))
        assert rates.keys() == {"rate"}
        overview = http.get("overview")
        assert overview["rates_mode"] == "basic"
        assert overview["sample_retention_policies"] == {
            "global": [600, 3_600, 28_800, 86_400], "basic": [600, 3_600], "detailed": [600],
        }  # fmt: skip
        assert [node["rates_mode"] for node in http.get("nodes")] == ["basic"]
        assert len(http.get("queues/%2F/orders")["deliveries"]) == 1


def test_none_has_counts_and_no_rates(own_broker: Own) -> None:
    broker = own_broker({"management": {"rates_mode": "none"}, "collect_statistics_interval": 250})
    http = Http(broker.management)
    with pika.BlockingConnection(broker.parameters()) as connection:
        channel = connection.channel()
        busy(channel)
        eventually(lambda: http.get("queues/%2F/orders")["messages_unacknowledged"] == 2)
        for path in LISTS:
            found = http.get(f"{path}?{SAMPLES}")
            assert not {"rate", "samples", "messages_details", "recv_oct_details", "mem_used_details"} & {*fields(found)}
            assert path == "overview" or "message_stats" not in fields(found)
        name = quoted(http.get("channels")[0]["name"])
        for one in (http.get("queues/%2F/orders"), http.get(f"channels/{name}")):
            assert one["deliveries"] == []
            assert len(one["consumer_details"]) == 1
        overview = http.get("overview")
        assert (overview["rates_mode"], overview["message_stats"]) == ("none", {})
        assert overview["queue_totals"] == {"messages": 10, "messages_ready": 8, "messages_unacknowledged": 2}
        assert overview["churn_rates"]["connection_created"] == 1
        node = http.get("nodes")[0]
        assert (node["rates_mode"], node["mem_used"] > 0, node["fd_used"] > 0) == ("none", True, True)
        assert http.get("vhosts")[0]["recv_oct"] > 0
        assert set(http.get("history/node")["series"]["publish"]) == {None}
        assert set(http.get("history/queue/%2F/orders")["series"]["messages"]) == {None}


def test_none_tells_pages_what_changes(own_broker: Own) -> None:
    broker = own_broker({"management": {"rates_mode": "none"}})
    http = Http(broker.management)
    with EventStream(http, "table:queues", "overview", "nodes") as stream:
        with pika.BlockingConnection(broker.parameters()) as connection:
            stream.until(lambda: "table:queues" in stream.tables)
            busy(connection.channel())
            rows = stream.tables["table:queues"]
            stream.until(lambda: rows.get(("/", "orders"), {}).get("messages") == 10)
            row = rows["/", "orders"]
            assert (row["messages_unacknowledged"], row["publish_rate"]) == (2, 0)
            connection.channel().queue_purge("orders")
            stream.until(lambda: rows["/", "orders"]["messages"] == 2)
        overview: Any = stream.until(lambda: stream.objects["overview"])
        assert (overview["rates"], overview["node"]["mem_used"] > 0) == ({}, True)


def test_detailed_is_told(own_broker: Own) -> None:
    http = Http(own_broker({"management": {"rates_mode": "detailed"}}).management)
    assert http.get("overview")["rates_mode"] == http.get("nodes")[0]["rates_mode"] == "detailed"


def test_samples_are_kept_as_long_as_policies_say(own_broker: Own) -> None:
    policies = {"global": {"minute": 1, "hour": 60}, "basic": {"minute": 5}}
    broker = own_broker({"management": {"sample_retention_policies": policies}, "collect_statistics_interval": 250})
    http = Http(broker.management)
    told = {"global": [60, 3_600], "basic": [60], "detailed": [600]}
    assert http.get("overview")["sample_retention_policies"] == told
    http("PUT", "queues/%2F/orders", {})
    details = eventually(lambda: http.get(f"queues/%2F/orders?{SAMPLES}").get("messages_details"))
    assert len(details["samples"]) == 13


def test_without_a_collector_lists_tell_what_was_declared(own_broker: Own) -> None:
    http = Http((broker := own_broker({"management_agent": {"disable_metrics_collector": True}})).management)
    with pika.BlockingConnection(broker.parameters()) as connection:
        busy(connection.channel())
        overview = http.get("overview")
        assert (overview["disable_stats"], overview["object_totals"]["queues"]) == (True, 1)
        assert "message_stats" not in overview
        assert "messages" not in http.get("queues")[0]
        assert http.get("queues?enable_queue_totals=true")[0]["messages"] == 10
        assert [one.keys() for one in http.get("connections")] == [{"name", "vhost", "user", "node"}]
        assert "message_stats" not in fields(http.get("exchanges"))
        assert http("GET", "channels").json["reason"] == "Stats in management UI are disabled on this node"


@pytest.mark.parametrize(
    ("setting", "complaint"),
    [
        ("rates_mode = 'detailled'", "management.rates_mode: Invalid enum value 'detailled'"),
        (f"{POLICIES}.global.minute = 61", f"management.{POLICIES}.global.minute: Expected `int` <= 60"),
        (f"{POLICIES}.basic.day = -1", f"management.{POLICIES}.basic.day: Expected `int` >= 0"),
        (f"{POLICIES}.basic.week = 1", f"unknown key: management.{POLICIES}.basic.week"),
    ],
)
def test_what_is_no_setting_is_refused(tmp_path: Path, setting: str, complaint: str) -> None:
    file = tmp_path / "rabbitpy.toml"
    file.write_text(f"[management]\n{setting}\n")
    done = subprocess.run(
        [*broker_command(), "--config", str(file), "--data-dir", str(tmp_path / "data")],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode != 0
    assert done.stderr == f"rabbitpy-broker: {file}: {complaint}\n"
