"""The sink `amqp`: rows as messages, and which rows fail a task."""

from __future__ import annotations

import datetime as dt
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pika
import pytest

pytest.importorskip("pyspark")
pytest.importorskip("pyarrow")

from pyspark.errors import StreamingQueryException

from broker_process import BrokerAddress
from support import eventually

pytestmark = pytest.mark.timeout(180)


@pytest.fixture
def got(channel: Any, depth: Any) -> Callable[[str], list[tuple[Any, Any, bytes]]]:
    """`got(queue)` takes all messages out of a queue: method, properties, body."""

    def take(queue: str) -> list[tuple[Any, Any, bytes]]:
        return [channel.basic_get(queue, auto_ack=True) for _ in range(depth(queue)[0])]

    return take


def write(frame: Any, broker: BrokerAddress, **options: Any) -> None:
    frame.write.format("amqp").mode("append").options(url=broker.url, **options).save()


def numbered(spark: Any, count: int, **columns: str) -> Any:
    named = [f"{expression} AS {name}" for name, expression in columns.items()]
    return spark.range(count).selectExpr("CAST(id AS STRING) AS body", *named)


def test_rows_become_messages(spark: Any, broker: BrokerAddress, queue: Any, got: Any):
    name = queue(durable=True)
    write(numbered(spark, 5000), broker, routingKey=name)
    found = got(name)
    assert Counter(int(body) for _, _, body in found) == Counter(range(5000))
    assert {properties.delivery_mode for _, properties, _ in found} == {2}


def test_exchange_and_routing_key_may_be_columns(
    spark: Any, broker: BrokerAddress, queue: Any, exchange: Any, channel: Any, got: Any
):
    topic, first, second = exchange("topic"), queue(), queue()
    channel.queue_bind(first, topic, "even")
    channel.queue_bind(second, topic, "odd")
    rows = numbered(spark, 100, exchange=f"'{topic}'", routing_key="IF(id % 2 = 0, 'even', 'odd')")
    write(rows, broker)
    assert sorted(int(body) for _, _, body in got(first)) == list(range(0, 100, 2))
    assert sorted(int(body) for _, _, body in got(second)) == list(range(1, 100, 2))
    write(rows, broker, exchange="", routingKey=first)  # options go before columns
    assert len(got(first)) == 100


def test_every_property_and_header_goes_round(spark: Any, broker: BrokerAddress, queue: Any, got: Any, channel: Any):
    """Published by pika, read by the source, written by the sink, and read by pika."""
    source, target = queue(), queue()
    when = int(dt.datetime(2024, 5, 6, 7, 8, 9, tzinfo=dt.UTC).timestamp())
    given = {
        "content_type": "text/plain",
        "content_encoding": "utf-8",
        "delivery_mode": 1,
        "priority": 7,
        "correlation_id": "c",
        "reply_to": "r",
        "expiration": "600000",
        "message_id": "ä",
        "timestamp": when,
        "type": "t",
        "user_id": "guest",
        "app_id": "a",
        "headers": {"text": "ü", "number": 5, "list": ["a", True, {"b": 1}], "nothing": None},
    }
    channel.basic_publish("", source, b"\x00\xff", pika.BasicProperties(**given))
    options = {"url": broker.url, "queue": source}
    with_types = spark.read.format("amqp").options(**options, headersAs="json").load()
    write(with_types, broker, exchange="", routingKey=target)
    [(_, properties, body)] = got(target)
    assert {name: getattr(properties, name) for name in given} == given
    assert body == b"\x00\xff"
    write(spark.read.format("amqp").options(**options).load(), broker, exchange="", routingKey=target)
    [(_, properties, _)] = got(target)
    texts = {"text": "ü", "number": "5", "list": '["a", true, {"b": 1}]', "nothing": None}
    assert {name: getattr(properties, name) for name in given} == {**given, "headers": texts}


def test_a_row_without_properties_has_none(spark: Any, broker: BrokerAddress, queue: Any, got: Any):
    name = queue()
    rows = spark.sql("SELECT 'x' AS body, CAST(NULL AS STRING) AS type, CAST(NULL AS INT) AS delivery_mode")
    write(rows, broker, routingKey=name, deliveryMode=1)
    [(_, properties, _)] = got(name)
    assert (properties.type, properties.headers, properties.delivery_mode) == (None, None, 1)


def failure_of(frame: Any, broker: BrokerAddress, **options: Any) -> str:
    with pytest.raises(Exception) as caught:
        write(frame, broker, **options)
    return str(caught.value)


def test_unroutable_rows_fail_the_task(spark: Any, broker: BrokerAddress, queue: Any, got: Any):
    name = queue()
    rows = numbered(spark, 50, routing_key=f"IF(id % 10 = 3, concat('nowhere-', id), '{name}')").coalesce(1)
    text = failure_of(rows, broker)
    assert "5 of 50 rows" in text
    assert "5 unroutable" in text
    assert "routing key 'nowhere-3' of the default exchange: NO_ROUTE" in text
    assert len(got(name)) == 45


def test_unroutable_rows_are_dropped_when_that_is_wanted(spark: Any, broker: BrokerAddress, new_name: Any):
    write(numbered(spark, 10), broker, routingKey=new_name("nowhere"), mandatory="false")


def test_rows_that_the_broker_refuses_fail_the_task(spark: Any, broker: BrokerAddress, queue: Any, got: Any):
    name = queue(arguments={"x-max-length": 10, "x-overflow": "reject-publish"})
    text = failure_of(numbered(spark, 30).coalesce(1), broker, routingKey=name)
    assert "refused (nack)" in text
    assert f"routing key '{name}' of the default exchange: nack" in text
    refused = int(text.partition(" refused (nack)")[0].rpartition("(")[2])
    assert len(got(name)) == 30 - refused
    assert refused >= 15  # RabbitMQ counts a little late


def test_an_exchange_that_does_not_exist(spark: Any, broker: BrokerAddress, new_name: Any):
    name = new_name("missing")
    text = failure_of(numbered(spark, 3).coalesce(1), broker, exchange=name, routingKey="k")
    assert f"NOT_FOUND - no exchange '{name}' in vhost '/'" in text
    assert "3 of 3 rows" in text


def test_a_wrong_password(spark: Any, broker: BrokerAddress):
    wrong = BrokerAddress(broker.host, broker.port, password="geheim")
    text = failure_of(numbered(spark, 3), wrong, routingKey="k")
    assert "ACCESS_REFUSED" in text


def test_a_routing_key_that_amqp_cannot_carry(spark: Any, broker: BrokerAddress):
    assert "ShortStringTooLong" in failure_of(numbered(spark, 3).coalesce(1), broker, routingKey="k" * 300)


@pytest.mark.own
def test_a_broker_that_confirms_nothing(spark: Any, broker: BrokerAddress, queue: Any):
    """Its confirms wait for a consumer's acks, which do not come."""
    name = queue(durable=True, arguments={"x-confirm-mode": "consumer-ack"})
    text = failure_of(numbered(spark, 3).coalesce(1), broker, routingKey=name, confirmTimeoutMs=500)
    assert "3 not confirmed" in text
    assert "confirmed nothing for 500 ms" in text


@pytest.mark.parametrize(
    ("sql", "options", "text"),
    [
        ("SELECT 1 AS body", {"routingKey": "k"}, "column body is int, and not binary or string"),
        ("SELECT 'x' AS routing_key", {}, "column body is missing"),
        ("SELECT 'x' AS body", {}, "routing_key"),
        ("SELECT 'x' AS body, 1 AS colour", {"routingKey": "k"}, "columns that no message has: colour"),
        ("SELECT 'x' AS body", {"routingKey": "k", "stampBatch": "true"}, "stampBatch"),
        ("SELECT 'x' AS body", {"routingKey": "k", "confirms": "true"}, "unknown option confirms"),
        ("SELECT CAST(NULL AS STRING) AS body", {"routingKey": "k"}, "row 0 has no body"),
        ("SELECT 'x' AS body, '[1]' AS headers", {"routingKey": "k"}, "row 0: headers are no JSON object"),
    ],
)
def test_rows_that_are_no_messages(spark: Any, broker: BrokerAddress, sql: str, options: dict[str, str], text: str):
    assert text in failure_of(spark.sql(sql), broker, **options)


def test_a_stream_is_stamped_with_its_batches(
    spark: Any, broker: BrokerAddress, queue: Any, publish: Any, got: Any, tmp_path: Path
):
    source, target = queue(durable=True), queue(durable=True)
    publish(source, 0, 250)
    found = spark.readStream.format("amqp").options(
        url=broker.url, queue=source, maxMessagesPerTrigger=100, spoolDir=str(tmp_path / "spool")
    )
    writer = found.load().select("body").writeStream.format("amqp").trigger(availableNow=True)
    query = (
        writer.options(url=broker.url, exchange="", routingKey=target, stampBatch="true")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .start()
    )
    query.awaitTermination()
    found = got(target)
    assert Counter(int(body) for _, _, body in found) == Counter(range(250))
    stamps = Counter(json.dumps(properties.headers, sort_keys=True) for _, properties, _ in found)
    assert len(stamps) == 250
    assert {properties.headers["x-spark-query"] for _, properties, _ in found} == {query.id}
    batches = Counter(properties.headers["x-spark-batch"] for _, properties, _ in found)
    assert sorted(batches.values()) == [50, 100, 100]
    assert {properties.headers["x-spark-partition"] for _, properties, _ in found} == {0, 1}


def test_a_stream_fails_when_its_rows_go_nowhere(
    spark: Any, broker: BrokerAddress, queue: Any, publish: Any, new_name: Any, depth: Any, tmp_path: Path
):
    """And has then lost nothing: they are in the queue that they came from."""
    source = queue(durable=True)
    publish(source, 0, 10)
    found = spark.readStream.format("amqp").options(url=broker.url, queue=source).load()
    writer = found.select("body").writeStream.format("amqp").options(url=broker.url, routingKey=new_name("nowhere"))
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    with pytest.raises(StreamingQueryException, match="unroutable"):
        query.awaitTermination(60)
    eventually(lambda: depth(source) == (10, 0), 10)
