"""What the answers for one queue, one channel and log-ins say beyond what lists do."""

from __future__ import annotations

import urllib.parse
from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from broker_process import BrokerProcess
from management.conftest import Http
from support import eventually

pytestmark = pytest.mark.own


def settled(http: Http, queue: str, **wanted: int) -> list[dict[str, Any]]:
    """The deliveries of a queue, once the counts of all its channels together are these."""

    def found() -> list[dict[str, Any]] | None:
        rows: list[dict[str, Any]] = http.get(f"queues/%2F/{queue}")["deliveries"]
        sums = {name: sum(row["stats"][name] for row in rows) for name in wanted}
        return rows if sums == wanted else None

    rows = eventually(found)
    assert rows is not None
    return rows


def take(channel: BlockingChannel, queue: str, count: int) -> list[int]:
    """Delivery tags of this many messages from a consumer that stays."""
    tags: list[int] = []
    channel.basic_consume(queue, lambda _channel, method, *_rest: tags.append(method.delivery_tag))
    eventually(lambda: channel.connection.process_data_events(0.01) or len(tags) >= count)
    return tags


def test_deliveries_are_told_by_channel_and_by_queue(http: Http, api_broker: BrokerProcess) -> None:
    with pika.BlockingConnection(api_broker.parameters()) as connection:
        publisher, first, second = connection.channel(), connection.channel(), connection.channel()
        publisher.queue_declare("q")
        for _ in range(6):
            publisher.basic_publish("", "q", b"x")
        assert http.get("queues/%2F/q")["deliveries"] == []
        tags = take(first, "q", 6)
        first.basic_ack(tags[0])
        first.basic_nack(tags[1], requeue=False)
        second.basic_qos(prefetch_count=1)
        second.basic_consume("q", lambda *_: None)
        first.basic_recover(requeue=True)
        rows = settled(http, "q", ack=1, redeliver=4, deliver=10)
        assert {row["channel_details"]["number"] for row in rows} == {int(first.channel_number), int(second.channel_number)}
        assert all(row["channel_details"]["connection_name"] for row in rows)
        name = next(row["channel_details"]["name"] for row in rows if row["stats"]["ack"])
        (of_queue,) = http.get(f"channels/{urllib.parse.quote(name)}")["deliveries"]
        assert of_queue["queue"] == {"name": "q", "vhost": "/"}
        (same,) = (row for row in rows if row["channel_details"]["name"] == name)
        assert of_queue["stats"]["deliver"] == same["stats"]["deliver"]
        totals = http.get("overview")["message_stats"]
        assert (totals["deliver"], totals["redeliver"], totals["ack"]) == (10, 4, 1)


def test_deliveries_without_acks_have_a_rate_and_stay_counted(http: Http, api_broker: BrokerProcess) -> None:
    with pika.BlockingConnection(api_broker.parameters()) as connection:
        channel = connection.channel()
        channel.queue_declare("q")
        tag = channel.basic_consume("q", lambda *_: None, auto_ack=True)
        other = channel.basic_consume("q", lambda *_: None, auto_ack=True)

        def has_rate() -> bool:
            channel.basic_publish("", "q", b"x")
            connection.process_data_events(0.01)
            (row,) = http.get("queues/%2F/q")["deliveries"]
            stats = row["stats"]
            assert (stats["deliver"], stats["ack"]) == (0, 0)
            return stats["deliver_no_ack"] > 1 and stats["deliver_no_ack_details"]["rate"] > 0

        eventually(has_rate)
        before = http.get("queues/%2F/q")["message_stats"]["deliver_no_ack"]
        channel.basic_cancel(tag)
        channel.basic_cancel(other)
        assert http.get("queues/%2F/q")["deliveries"] == []
        (shown,) = http.get("channels")
        assert shown["message_stats"]["deliver_no_ack"] == before
    assert eventually(lambda: http.get("channels") == [])
    assert http.get("overview")["message_stats"]["deliver_no_ack"] == before


KINDS: dict[str, dict[str, Any]] = {"classic": {}, "priorities": {"x-max-priority": 5}, "quorum": {"x-queue-type": "quorum"}}


@pytest.mark.parametrize("arguments", KINDS.values(), ids=KINDS)
def test_a_queue_says_when_its_next_message_is_from(http: Http, api_broker: BrokerProcess, arguments: dict[str, Any]) -> None:
    with pika.BlockingConnection(api_broker.parameters()) as connection:
        channel = connection.channel()
        channel.queue_declare("q", durable=True, arguments=arguments)

        def timestamp() -> int | None:
            found: int | None = http.get("queues/%2F/q")["head_message_timestamp"]
            return found

        assert timestamp() is None
        channel.confirm_delivery()
        for at, priority in ((1_000, 1), (2_000, 1), (None, 0)):
            channel.basic_publish("", "q", b"x", pika.BasicProperties(timestamp=at, priority=priority))
        assert timestamp() == 1_000
        assert http.get("queues?columns=head_message_timestamp") == [{"head_message_timestamp": 1_000}]
        method, _, _ = channel.basic_get("q")
        assert timestamp() == 2_000
        channel.basic_nack(method.delivery_tag)
        assert eventually(lambda: timestamp() == 1_000)
        for _ in range(2):
            channel.basic_get("q", auto_ack=True)
        assert timestamp() is None


def test_a_stream_has_no_next_message(http: Http) -> None:
    assert http("PUT", "queues/%2F/s", {"durable": True, "arguments": {"x-queue-type": "stream"}}).status == 201
    assert http.get("queues/%2F/s")["head_message_timestamp"] is None


def test_log_ins_are_told_by_protocol_and_forgotten(http: Http, api_broker: BrokerProcess) -> None:
    node = urllib.parse.quote(http.get("nodes")[0]["name"])

    def attempts(protocol: str) -> tuple[int, int]:
        (row,) = (row for row in http.get(f"auth/attempts/{node}") if row["protocol"] == protocol)
        assert row["auth_attempts"] == row["auth_attempts_failed"] + row["auth_attempts_succeeded"]
        return row["auth_attempts_failed"], row["auth_attempts_succeeded"]

    pika.BlockingConnection(api_broker.parameters()).close()
    assert attempts("amqp091") == (0, 1)
    assert http("GET", "whoami", user="nobody").status == 401
    assert attempts("http")[0] == 1
    assert http("DELETE", f"auth/attempts/{node}").status == 204
    assert attempts("amqp091") == (0, 0)
    assert attempts("http") == (0, 2)  # these two looks
