"""What pages show of a stream: its ends, who reads where, offsets by name, and its messages from an offset or a time on."""

from __future__ import annotations

import time
from typing import Any

import pika
import pytest

from broker_process import BrokerProcess
from management.conftest import Http
from management.event_stream import EventStream
from support import eventually

pytestmark = pytest.mark.own

STREAM = "queues/%2F/log"
COUNT = 30


def offsets(page: dict[str, Any]) -> list[int]:
    return [item["seq_id"] for item in page["items"]]


def test_a_stream_and_its_readers(http: Http, api_broker: BrokerProcess) -> None:
    connection = pika.BlockingConnection(api_broker.parameters())
    channel = connection.channel()
    channel.queue_declare("log", durable=True, arguments={"x-queue-type": "stream", "x-max-age": "7D"})
    channel.confirm_delivery()
    for number in range(COUNT):
        channel.basic_publish("", "log", b"%d" % number)
    channel.basic_qos(prefetch_count=10)
    taken: list[int] = []
    first = {"x-stream-offset": "first"}
    channel.basic_consume("log", lambda _c, method, *_: taken.append(method.delivery_tag), consumer_tag="slow", arguments=first)
    while len(taken) < 10:
        connection.process_data_events(0.05)
    shown = http.get(f"{STREAM}/stream")
    assert (shown["first_offset"], shown["last_offset"], shown["max_age_ms"]) == (0, COUNT - 1, 7 * 86_400_000)
    assert shown["bytes"] > 0
    assert shown["first_timestamp"] <= shown["last_timestamp"] <= time.time() * 1000 + 1000
    (reader,) = shown["readers"]
    expected = {"consumer_tag": "slow", "user": "guest", "offset": 9, "lag": COUNT - 10, "delivered": 10, "credits": 0}
    assert expected.items() <= reader.items()
    api_broker.ctl("store_offset", "report", "log", "3")
    assert http.get(f"{STREAM}/stream")["offsets"] == [{"reference": "report", "offset": 3, "lag": COUNT - 1 - 3}]
    with EventStream(http, "queue:%2F/log") as stream:
        stream.until(lambda: stream.objects)
        told = stream.objects["queue:%2F/log"]
        assert told is not None
        assert told["stream"]["readers"][0]["lag"] == COUNT - 10
    connection.close()
    eventually(lambda: http.get(f"{STREAM}/stream")["readers"] == [])
    http("PUT", "queues/%2F/plain", {})
    assert http("GET", "queues/%2F/plain/stream").status == 400
    assert http("GET", "queues/%2F/nowhere/stream").status == 404


def test_messages_from_an_offset_or_a_time_on(http: Http, api_broker: BrokerProcess) -> None:
    connection = pika.BlockingConnection(api_broker.parameters())
    channel = connection.channel()
    channel.queue_declare("log", durable=True, arguments={"x-queue-type": "stream"})
    channel.confirm_delivery()
    for number in range(COUNT):
        channel.basic_publish("", "log", b"%d" % number)
    connection.close()
    page = http.get(f"{STREAM}/messages?offset=12&limit=3")
    assert offsets(page) == [12, 13, 14]
    assert offsets(http.get(f"{STREAM}/messages?limit=3&after={page['next']}")) == [15, 16, 17]
    assert offsets(http.get(f"{STREAM}/messages?limit=3&before={page['previous']}")) == [9, 10, 11]
    assert offsets(http.get(f"{STREAM}/messages?offset=0&limit=2")) == [0, 1]
    assert offsets(http.get(f"{STREAM}/messages?offset=4&limit=3&order=tail")) == [4, 3, 2]
    assert offsets(http.get(f"{STREAM}/messages?offset={COUNT + 5}")) == []
    stored = {item["seq_id"]: item["stored_at"] for item in http.get(f"{STREAM}/messages?limit=100")["items"]}
    for offset in (0, 11, COUNT - 1):
        found = http.get(f"{STREAM}/messages?time={stored[offset]}&limit=1")["items"][0]
        assert (found["seq_id"] <= offset, found["stored_at"]) == (True, stored[offset])
    assert offsets(http.get(f"{STREAM}/messages?time={stored[COUNT - 1] + 60_000}")) == []
    http("PUT", "queues/%2F/plain", {})
    for path in ("queues/%2F/plain/messages?offset=1", f"{STREAM}/messages?offset=-1", f"{STREAM}/messages?time=x"):
        assert http("GET", path).status == 400, path
