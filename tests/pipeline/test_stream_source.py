"""Mode `stream` of the source `amqp`: what it reads, where it begins and ends, and that every message comes exactly once.

Bodies are numbers, as their offsets are, so that what is missing and what came twice can be told.
"""

from __future__ import annotations

import datetime as dt
import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pika
import pytest

pytest.importorskip("pyspark")
pytest.importorskip("pyarrow")

from pyspark import cloudpickle
from pyspark.errors import StreamingQueryException

from broker_process import BrokerAddress
from clients.cutting_proxy import CuttingProxy
from rabbitpy_broker.pipeline.amqp import stream_client
from rabbitpy_broker.pipeline.amqp.options import StreamOptions
from rabbitpy_broker.pipeline.amqp.source import AmqpSource
from rabbitpy_broker.pipeline.amqp.stream_client import Stream, Tail
from rabbitpy_broker.pipeline.amqp.stream_source import Streams
from rabbitpy_broker.pipeline.errors import PipelineError
from support import eventually

pytestmark = pytest.mark.timeout(180)

# Functions that are made here must reach Spark's processes, which cannot import this file.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

NUMBER = "CAST(CAST(body AS STRING) AS INT) AS number"
STREAM = {"x-queue-type": "stream"}

Fill = Callable[..., str]


@pytest.fixture
def fill(connect: Callable[..., pika.BlockingConnection], new_name: Callable[[str], str]) -> Fill:
    """`fill(0, 100)` is a stream with the numbers 0 to 99, all of which are committed; `fill(100, 200, to=name)` adds some."""
    connection = connect(heartbeat=0)

    def publish(first: int, last: int, to: str = "", arguments: Mapping[str, Any] | None = None, **properties: Any) -> str:
        channel = connection.channel()
        name = to or new_name("stream")
        if not to:
            channel.queue_declare(name, durable=True, arguments={**STREAM, **(arguments or {})})
        for number in range(first, last):
            if number == last - 1:
                channel.confirm_delivery()  # the others come before it
            channel.basic_publish("", name, b"%d" % number, pika.BasicProperties(delivery_mode=2, **properties))
        channel.close()
        return name

    return publish


@pytest.fixture
def at(broker: BrokerAddress) -> Callable[..., Stream]:
    """`at(name)` is a stream for the client that is below the source."""
    return lambda name, to=None, attempts=3: Stream((to or broker).parameters(heartbeat=0), name, attempts, 0.1)


@pytest.fixture
def read(spark: Any, broker: BrokerAddress) -> Callable[..., Any]:
    """`read(queue=...)` is a frame by spark.read."""
    return lambda **options: (
        spark.read.format("amqp").options(url=broker.url, mode="stream", retryDelayMs=10, **options).load()
    )


@pytest.fixture
def query(spark: Any, broker: BrokerAddress, tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """`query(queue=..., ...)` starts a query into the table `out`, which goes on where the one before it ended."""

    def start(bounded: bool = True, each: Callable[[Any, int], None] | None = None, **options: Any) -> Any:
        stream = spark.readStream.format("amqp").options(url=broker.url, mode="stream", maxWaitMs=20, **options).load()
        writer = stream.writeStream.option("checkpointLocation", str(tmp_path / "checkpoint"))
        writer = writer.trigger(availableNow=True) if bounded else writer
        writer = writer.foreachBatch(each) if each else writer.format("parquet").option("path", str(tmp_path / "out"))
        started = writer.start()
        if bounded:
            started.awaitTermination()
        return started

    yield start
    for running in spark.streams.active:
        running.stop()


@pytest.fixture
def numbers(spark: Any, tmp_path: Path) -> Callable[[], Counter[int]]:
    """What is in the table, and how often."""

    def count() -> Counter[int]:
        if not (tmp_path / "out" / "_spark_metadata").exists():
            return Counter()
        return Counter(row.number for row in spark.read.parquet(str(tmp_path / "out")).selectExpr(NUMBER).collect())

    return count


def batch_sizes(ended: Any) -> list[int]:
    return [progress["numInputRows"] for progress in ended.recentProgress if progress["numInputRows"]]


# --- what is read --------------------------------------------------------------------------------------------------------


def test_a_batch_has_every_message_with_its_properties(fill: Fill, read: Any, channel: Any, exchange: Any):
    name = fill(0, 500)
    topic = exchange("topic")
    channel.queue_bind(name, topic, "a.*")
    when = dt.datetime(2024, 5, 6, 7, 8, 9, tzinfo=dt.UTC)
    given = {"content_type": "text/plain", "message_id": "ä", "priority": 3, "type": "t"}
    channel.confirm_delivery()
    properties = pika.BasicProperties(timestamp=int(when.timestamp()), headers={"n": 1, "who": "ü"}, **given)
    channel.basic_publish(topic, "a.b", b"\x00\xff" * 100_000, properties)
    channel.basic_publish(topic, "a.c", b"")
    rows = {row.offset: row for row in read(queue=name, minPartitions=3).collect()}
    assert sorted(rows) == list(range(502))
    assert [bytes(rows[offset].body) for offset in range(500)] == [b"%d" % offset for offset in range(500)]
    plain, full, empty = rows[7], rows[500], rows[501]
    assert (plain.queue, plain.partition, plain.exchange, plain.routing_key, plain.redelivered) == (name, 0, "", name, False)
    assert (plain.delivery_mode, plain.headers, plain.message_id) == (2, None, None)
    assert {key: full[key] for key in given} == given
    assert full.timestamp.replace(tzinfo=dt.UTC) == when
    assert full.headers == {"n": "1", "who": "ü"}
    assert (bytes(full.body), full.exchange, full.routing_key) == (b"\x00\xff" * 100_000, topic, "a.b")
    assert (bytes(empty.body), empty.routing_key) == (b"", "a.c")


def test_a_batch_has_the_range_that_is_asked_for_as_often_as_it_is_asked(fill: Fill, read: Any):
    name = fill(0, 300)
    some = read(queue=name, startingOffsets="100", endingOffsets=json.dumps({name: 250})).selectExpr(NUMBER)
    for _ in range(2):
        assert sorted(row.number for row in some.collect()) == list(range(100, 250))
    assert read(queue=name, startingOffsets="latest").count() == 0
    assert read(queue=fill(0, 0)).count() == 0


def test_streams_of_a_super_stream_are_partitions(fill: Fill, read: Any, query: Any, new_name: Any, channel: Any):
    """By the names that they have by convention, or by those that are given; each keeps an offset of its own."""
    whole = new_name("super")
    names = [f"{whole}-{number}" for number in range(3)]
    for number, name in enumerate(names):
        channel.queue_declare(name, durable=True, arguments=STREAM)
        fill(0, 50 * (number + 1), to=name)
    counted = read(superStream=whole).groupBy("queue", "partition").count().collect()
    found = {(row.queue, row.partition, row["count"]) for row in counted}
    assert found == {(names[0], 0, 50), (names[1], 1, 100), (names[2], 2, 150)}
    assert read(queues=",".join(names[1:]), startingOffsets=json.dumps({names[1]: 90, names[2]: "earliest"})).count() == 160
    got: Counter[tuple[str, int]] = Counter()

    def add(frame: Any, _id: int) -> None:
        got.update((row.queue, row.offset) for row in frame.select("queue", "offset").collect())

    ended = query(each=add, superStream=whole, maxRecordsPerTrigger=120)
    assert batch_sizes(ended) == [120, 120, 60]
    assert got == Counter([(names[number], offset) for number in range(3) for offset in range(50 * (number + 1))])
    for name in names:
        channel.queue_delete(name)


# --- exactly once ---------------------------------------------------------------------------------------------------------


def test_a_run_goes_on_where_the_one_before_it_ended(fill: Fill, query: Any, numbers: Any):
    name = fill(0, 2500)
    assert batch_sizes(query(queue=name, maxRecordsPerTrigger=1000)) == [1000, 1000, 500]
    assert batch_sizes(query(queue=name)) == []
    fill(2500, 2600, to=name)
    query(queue=name)
    assert numbers() == Counter(range(2600))


def test_a_query_follows_its_stream(fill: Fill, query: Any, numbers: Any):
    """It begins with an empty one, and falls behind now and then."""
    name = fill(0, 0)
    running = query(bounded=False, queue=name)
    for first in range(0, 6000, 1500):
        fill(first, first + 1500, to=name)
        eventually(lambda wanted=first + 1500: sum(batch_sizes(running)) == wanted, 30)
    running.stop()
    assert numbers() == Counter(range(6000))


def test_a_batch_that_failed_comes_again_with_the_same_rows(fill: Fill, query: Any):
    name = fill(0, 2000)
    batches: list[tuple[int, list[tuple[int, int]]]] = []
    failures = iter([False, True])

    def append(frame: Any, number: int) -> None:
        batches.append((number, sorted((row.offset, row.number) for row in frame.selectExpr("offset", NUMBER).collect())))
        if next(failures, False):
            raise RuntimeError("after the append")

    with pytest.raises(StreamingQueryException, match="after the append"):
        query(each=append, queue=name, maxRecordsPerTrigger=1000)
    fill(2000, 2500, to=name)
    query(each=append, queue=name, maxRecordsPerTrigger=1000)
    assert batches[1] == batches[2]
    once = dict(batches)
    assert [row for number in sorted(once) for row in once[number]] == [(offset, offset) for offset in range(2500)]


def test_a_connection_that_is_lost_is_gone_on_with(fill: Fill, broker: BrokerAddress, at: Any):
    """No message twice, none missing, in order."""
    name = fill(0, 3000)
    with CuttingProxy(broker) as proxy:
        got: list[int] = []
        for offsets, bodies, _, _ in stream_client.messages(at(name, proxy), 10, 2990, 100, 50, 1 << 20):
            assert [int(body) for body in bodies] == offsets
            got += offsets
            if len(got) in range(1000, 1100) or len(got) in range(2000, 2100):
                proxy.cut()
        assert got == list(range(10, 2990))
        assert proxy.accepted > 1


def test_a_broker_that_does_not_come_back_is_an_error(fill: Fill, broker: BrokerAddress, at: Any):
    name = fill(0, 500)
    with CuttingProxy(broker) as proxy:
        stream = at(name, proxy, attempts=2)
    with pytest.raises(PipelineError, match="2 attempts have failed"):
        list(stream_client.messages(stream, 0, 500, 100, 100, 1 << 20))
    with pytest.raises(PipelineError, match=r"404 NOT_FOUND - no queue 'nobody'"):
        list(stream_client.messages(at("nobody"), 0, 500, 100, 100, 1 << 20))


def test_no_more_comes_than_a_range_has(fill: Fill, at: Any, monkeypatch: pytest.MonkeyPatch):
    """An ack is credit, and the broker sends what it has credit for."""
    made: list[stream_client.Connection] = []
    connect = Stream.connect
    monkeypatch.setattr(Stream, "connect", lambda stream: made.append(connect(stream)) or made[-1])
    parts = list(stream_client.messages(at(fill(0, 1000)), 100, 337, 64, 1000, 1 << 20))
    assert [offset for part in parts for offset in part.offsets] == list(range(100, 337))
    assert 237 <= made[0].frames.received < 237 + 10  # RabbitMQ may send a few more
    assert len(made) == 1


def test_the_tail_is_followed_without_reading_the_stream(fill: Fill, at: Any):
    name = fill(0, 300)
    tail = Tail(at(name))
    assert tail.read_all() == tail.read(300, 10**6) == 300
    for end in range(301, 305):
        fill(end - 1, end, to=name)
        assert tail.read(end - 1, 10**6) == end
    fill(304, 20_000, to=name)
    eventually(lambda: tail.read(tail.end, 10**6) == 20_000)
    tail.close()


# --- where it begins ------------------------------------------------------------------------------------------------------


def test_offsets_by_word_time_and_interval(fill: Fill, broker: BrokerAddress):
    name = fill(0, 100)
    # a chunk is of one time, and times are of whole seconds
    began = time.time()
    eventually(lambda: int(time.time()) > began + 1)
    between = dt.datetime.fromtimestamp(int(time.time()), dt.UTC)
    fill(100, 200, to=name)
    streams = Streams(StreamOptions.of({"mode": "stream", "queue": name, "url": broker.url}))

    def offset(text: str) -> int:
        return streams.offsets("startingOffsets", text)[name]

    assert [offset(text) for text in ("earliest", "first", "latest", "next", "17", "1h")] == [0, 0, 200, 200, 17, 0]
    assert 100 <= offset("last") < 200
    assert offset(between.isoformat()) == offset(between.replace(tzinfo=None).isoformat()) == 100
    assert offset("2001-02-03") == 0


# --- what is lost, and what is wrong --------------------------------------------------------------------------------------


def test_what_retention_took_is_an_error_or_is_left_out(fill: Fill, at: Any, query: Any, numbers: Any):
    name = fill(0, 10, arguments={"x-max-length-bytes": 2_000, "x-stream-max-segment-size-bytes": 1_000})
    query(queue=name)
    published = 10

    def first_kept() -> int | None:
        nonlocal published
        fill(published, published + 100, to=name)
        published += 100
        kept = stream_client.offset_of(at(name), "first")
        return kept if kept and kept > 10 else None

    first = eventually(first_kept, 20, 0.5)  # segments are written about once a second
    with pytest.raises(StreamingQueryException, match=r"offsets [0-9]+ to [0-9]+ were removed by retention"):
        query(queue=name, minPartitions=1)  # of several tasks any may be the first to fail
    query(queue=name, failOnDataLoss="false")
    got = numbers()
    rest = set(got) - set(range(10))
    assert min(rest) >= first
    assert set(got) == {*range(10), *range(min(rest), published)}
    assert max(got.values()) == 1


def test_a_stream_that_was_declared_again_needs_a_new_checkpoint(fill: Fill, query: Any, channel: Any):
    name = fill(0, 100)
    query(queue=name)
    channel.queue_delete(name)
    channel.queue_declare(name, durable=True, arguments=STREAM)
    fill(0, 50, to=name)
    running = query(bounded=False, queue=name)
    with pytest.raises(StreamingQueryException, match="declared again"):
        running.awaitTermination(60)


def test_what_cannot_be_meant_is_refused(fill: Fill, read: Any, queue: Any, broker: BrokerAddress):
    classic = queue()
    for options, text in (
        ({}, "one of the options queue, queues and superStream is needed"),
        ({"queue": "a", "superStream": "b"}, "one of the options queue, queues and superStream is needed"),
        ({"queues": "a,a"}, "each stream once"),
        ({"queues": "[a"}, "no list of JSON"),
        ({"queue": "a", "spoolDir": "/tmp"}, "unknown option spooldir"),
        ({"queue": "a", "minPartitions": "0"}, "minPartitions"),
    ):
        with pytest.raises(PipelineError, match=text):
            AmqpSource({"mode": "Stream", **options}).schema()
    name = fill(0, 5)
    made = Streams(StreamOptions.of({"mode": "stream", "queue": name, "url": broker.url}))
    for text in ("yesterday", "{", '{"other": 1}', json.dumps({name: "soon"})):
        with pytest.raises(PipelineError, match="startingOffsets: "):
            made.offsets("startingOffsets", text)
    with pytest.raises(PipelineError, match="no stream nobody-0"):
        Streams(StreamOptions.of({"mode": "stream", "superStream": "nobody", "url": broker.url})).queues()
    with pytest.raises(Exception, match="endingOffsets: 6 is behind the end of stream"):
        read(queue=name, endingOffsets="6").count()
    with pytest.raises(Exception, match="x-stream-offset"):
        fill(0, 1, to=classic)
        read(queue=classic).count()
