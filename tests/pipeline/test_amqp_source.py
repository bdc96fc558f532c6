"""The source `amqp`: what it reads, when it acks, where it stops, and what it says when it cannot go on.

Bodies are numbers, so that what is missing and what came twice can be told.
"""

from __future__ import annotations

import datetime as dt
import sys
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pika
import pytest

pytest.importorskip("pyspark")
pytest.importorskip("pyarrow")

from pyspark import cloudpickle
from pyspark.errors import StreamingQueryException

from broker_process import BrokerAddress, BrokerProcess
from certificates import Authority
from rabbitpy_broker.pipeline.amqp.drain import drain
from rabbitpy_broker.pipeline.amqp.source import AmqpSource
from rabbitpy_broker.pipeline.errors import PipelineError
from spark_driver import command_line, descendants, kill
from support import eventually

pytestmark = pytest.mark.timeout(180)

# Sources that are made here must reach Spark's processes, which cannot import this file.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

NUMBER = "CAST(CAST(body AS STRING) AS INT) AS number"


class Stream:
    """A streaming query from a queue into a table, which may be started again."""

    def __init__(self, spark: Any, broker: BrokerAddress, folder: Path, mode: str, queue: str, **options: Any) -> None:
        self._spark = spark
        self._folder = folder
        self._options = {"url": broker.url, "queue": queue, **options}
        if mode == "spool":
            self._options |= {"spoolDir": str(folder / "spool")}
        self.format = "amqp"

    def start(self, bounded: bool = False, each: Callable[[Any, int], None] | None = None) -> Any:
        found = self._spark.readStream.format(self.format).options(**self._options).load()
        writer = found.writeStream.option("checkpointLocation", str(self._folder / "checkpoint"))
        if bounded:
            writer = writer.trigger(availableNow=True)
        if each is not None:
            return writer.foreachBatch(each).start()
        return writer.format("parquet").start(str(self._folder / "out"))

    def run(self) -> Any:
        """Reads what there is, and returns the query, which has ended."""
        query = self.start(bounded=True)
        query.awaitTermination()
        return query

    def table(self) -> Any:
        return self._spark.read.parquet(str(self._folder / "out"))

    def numbers(self) -> Counter[int]:
        """What has come, and how often."""
        if not (self._folder / "out" / "_spark_metadata").exists():
            return Counter()
        return Counter(row.number for row in self.table().selectExpr(NUMBER).collect())


@pytest.fixture
def stream(spark: Any, broker: BrokerAddress, tmp_path: Path) -> Iterator[Callable[..., Stream]]:
    """`stream("direct", queue, ...)` is a query on the broker under test; it is stopped after the test."""

    def make(mode: str, queue: str, to: BrokerAddress | None = None, **options: Any) -> Stream:
        return Stream(spark, to or broker, tmp_path, mode, queue, **options)

    yield make
    for query in spark.streams.active:
        query.stop()


@pytest.fixture
def filled(queue: Callable[..., str], publish: Callable[..., None]) -> Callable[..., str]:
    """`filled(100)` is a queue with the numbers 0 to 99."""

    def make(count: int, **properties: Any) -> str:
        name = queue(durable=True)
        publish(name, 0, count, **properties)
        return name

    return make


both_modes = pytest.mark.parametrize("mode", ["spool", "direct"])


def batch_sizes(query: Any) -> list[int]:
    return [progress["numInputRows"] for progress in query.recentProgress if progress["numInputRows"]]


# --- what is read --------------------------------------------------------------------------------------------------------


@both_modes
def test_a_bounded_run_reads_what_there_is_and_acks_all_of_it(stream: Any, filled: Any, depth: Any, mode: str):
    """The last batch as well, of which Spark says nothing more before it ends the source's process."""
    queue = filled(2500)
    query = stream(mode, queue, maxMessagesPerTrigger=1000)
    ended = query.run()
    assert batch_sizes(ended) == [1000, 1000, 500]
    assert query.numbers() == Counter(range(2500))
    assert depth(queue) == (0, 0)
    rows = query.table().select("offset", "queue", "routing_key", "exchange", "redelivered").collect()
    assert sorted(row.offset for row in rows) == list(range(2500))
    assert {(row.queue, row.routing_key, row.exchange, row.redelivered) for row in rows} == {(queue, queue, "", False)}


@both_modes
def test_a_second_run_goes_on_after_the_first(stream: Any, filled: Any, publish: Any, depth: Any, mode: str):
    queue = filled(300)
    query = stream(mode, queue)
    query.run()
    query.run()  # nothing has come
    publish(queue, 300, 500)
    query.run()
    assert query.numbers() == Counter(range(500))
    assert [row.offset for row in query.table().select("offset").sort("offset").collect()] == list(range(500))
    assert depth(queue) == (0, 0)


def test_every_property_and_header_is_read(stream: Any, channel: Any, queue: Any):
    name = queue()
    when = dt.datetime(2024, 5, 6, 7, 8, 9, tzinfo=dt.UTC)
    given = {
        "content_type": "text/plain",
        "content_encoding": "utf-8",
        "delivery_mode": 2,
        "priority": 7,
        "correlation_id": "c",
        "reply_to": "r",
        "expiration": "600000",
        "message_id": "ä",
        "type": "t",
        "user_id": "guest",
        "app_id": "a",
    }
    headers = {
        "text": "ü",
        "number": -(2**40),
        "yes": True,
        "nothing": None,
        "when": when,
        "bytes": b"\xff\xfe",
        "price": Decimal("1.25"),
        "table": {"inner": [1, "two", False]},
    }
    properties = pika.BasicProperties(timestamp=int(when.timestamp()), headers=headers, **given)
    channel.basic_publish("", name, b"\x00\xff", properties)
    channel.basic_publish("", name, b"")
    query = stream("spool", name)
    query.run()
    full, bare = query.table().sort("offset").collect()
    assert {name: full[name] for name in given} == given
    assert (bytes(full.body), bytes(bare.body)) == (b"\x00\xff", b"")
    assert full.timestamp.replace(tzinfo=dt.UTC) == when
    assert full.headers == {
        "text": "ü",
        "number": str(-(2**40)),
        "yes": "true",
        "nothing": None,
        "when": "2024-05-06T07:08:09+00:00",
        "bytes": "//4=",
        "price": "1.25",
        "table": '{"inner": [1, "two", false]}',
    }
    assert {bare[name] for name in given} == {None}
    assert (bare.headers, bare.timestamp) == (None, None)


def test_headers_may_be_json_or_left_out(stream: Any, spark: Any, broker: BrokerAddress, filled: Any):
    queue = filled(1, headers={"n": 1, "list": ["a", True]})
    peek = spark.read.format("amqp").options(url=broker.url, queue=queue)
    [row] = peek.option("headersAs", "json").load().collect()
    assert row.headers == '{"n": 1, "list": ["a", true]}'
    assert "headers" not in peek.option("includeHeaders", "false").load().columns


def test_names_that_are_not_utf_8_do_not_stop_the_stream(stream: Any, queue: Any, wire: Any, spark: Any, broker: Any):
    """pika hands them over as bytes."""
    from pyspark.sql.types import StructType

    from rabbitpy_broker.pipeline.amqp.messages import arrow_schema, ddl, to_batch

    schema = arrow_schema(StructType.fromDDL(ddl()))
    delivery = (1, False, "e", b"\xffkey", pika.BasicProperties(headers={b"\xfe": 1}), b"", 0)
    [row] = to_batch([delivery], "q", 0, schema).to_pylist()
    assert (row["routing_key"], row["headers"]) == ("\\xffkey", [("\\xfe", "1")])


@both_modes
def test_a_batch_is_limited_by_bytes_too(stream: Any, queue: Any, channel: Any, mode: str):
    name = queue()
    for _ in range(40):
        channel.basic_publish("", name, b"x" * 10_000)
    query = stream(mode, name, maxBytesPerTrigger=101_000, segmentRows=25)
    sizes = batch_sizes(query.run())
    assert sum(sizes) == 40
    assert 4 <= len(sizes) <= 6
    assert max(sizes) <= 10


@both_modes
def test_rows_are_spread_over_partitions(stream: Any, filled: Any, mode: str):
    counts: list[list[int]] = []

    def count(frame: Any, _id: int) -> None:
        counts.append(sorted(frame.rdd.mapPartitions(lambda rows: [sum(1 for _ in rows)]).collect()))

    queue = filled(101)
    stream(mode, queue, numPartitions=4).start(bounded=True, each=count).awaitTermination()
    assert [20, 27, 27, 27] in counts or [23, 26, 26, 26] in counts


# --- when it acks ---------------------------------------------------------------------------------------------------------


@both_modes
def test_a_batch_as_large_as_the_prefetch_is_acked_without_a_next_one(
    stream: Any, filled: Any, depth: Any, mode: str
):
    """Three batches: each is acked though the consumer is full, the last one while nothing more comes."""
    queue = filled(3000)
    query = stream(mode, queue, maxMessagesPerTrigger=1000, prefetchCount=1000, segmentRows=1000)
    running = query.start()
    eventually(lambda: sum(batch_sizes(running)) == 3000, 60)
    eventually(lambda: depth(queue) == (0, 0), 10, 0.1)
    running.stop()
    assert batch_sizes(running) == [1000, 1000, 1000]
    assert depth(queue) == (0, 0)
    assert query.numbers() == Counter(range(3000))


def test_direct_acks_nothing_before_the_batch_is_committed(stream: Any, filled: Any, depth: Any):
    queue = filled(50)
    during: list[tuple[int, int]] = []
    query = stream("direct", queue)
    query.start(bounded=True, each=lambda _frame, _id: during.append(depth(queue))).awaitTermination()
    assert during == [(0, 50)]
    assert depth(queue) == (0, 0)


def test_spool_acks_what_is_on_disk_though_nothing_is_committed(stream: Any, filled: Any, depth: Any, tmp_path: Path):
    queue = filled(50)
    during: list[tuple[int, int]] = []

    def look(_frame: Any, _id: int) -> None:
        during.append(eventually(lambda: depth(queue) == (0, 0) and (0, 0), 10))

    stream("spool", queue).start(bounded=True, each=look).awaitTermination()
    assert during == [(0, 0)]
    assert not list((tmp_path / "spool").glob("*.arrow"))  # committed, and so deleted


def test_a_full_spool_leaves_the_rest_in_the_queue(stream: Any, filled: Any, depth: Any, tmp_path: Path):
    """Until Spark has committed what is there."""
    queue = filled(1000)
    seen: list[tuple[int, int]] = []

    def look(frame: Any, _id: int) -> None:
        seen.append((len(list((tmp_path / "spool").glob("*.arrow"))), frame.count()))

    query = stream("spool", queue, segmentRows=100, prefetchCount=300, maxSpoolBytes=1)
    query.start(bounded=True, each=look).awaitTermination()
    assert [rows for _, rows in seen if rows] == [100] * 10
    assert {files for files, rows in seen if rows} == {1}
    assert depth(queue) == (0, 0)


@both_modes
def test_a_batch_that_failed_comes_again(stream: Any, filled: Any, depth: Any, mode: str):
    """Its rows were appended before the failure: none is missing, and the failed batch is there twice."""
    queue = filled(3000)
    got: Counter[int] = Counter()
    failures = iter([False, True])

    def append(frame: Any, _id: int) -> None:
        got.update(row.number for row in frame.selectExpr(NUMBER).collect())
        if next(failures, False):
            raise RuntimeError("after the append")

    query = stream(mode, queue, maxMessagesPerTrigger=1000)
    with pytest.raises(StreamingQueryException, match="after the append"):
        query.start(bounded=True, each=append).awaitTermination()
    query.start(bounded=True, each=append).awaitTermination()
    if depth(queue) != (0, 0):  # the broker had not put them back yet when the second run counted
        query.start(bounded=True, each=append).awaitTermination()
    assert set(got) == set(range(3000))
    assert sum(got.values()) == 4000
    assert depth(queue) == (0, 0)


@both_modes
def test_the_source_s_process_is_killed(stream: Any, filled: Any, publish: Any, depth: Any, spark: Any, mode: str):
    queue = filled(2000)
    query = stream(mode, queue, maxMessagesPerTrigger=1000)
    running = query.start()
    eventually(lambda: sum(batch_sizes(running)) >= 1000, 60)
    [runner] = [
        process
        for process in descendants(spark_jvm(spark))
        if "python_streaming_source_runner" in command_line(process)
    ]
    kill(runner)
    publish(queue, 2000, 4000)
    with pytest.raises(StreamingQueryException):
        running.awaitTermination(60)
    again = query.start()
    eventually(lambda: len(query.numbers()) == 4000, 60, 0.2)
    again.stop()
    numbers = query.numbers()
    assert set(numbers) == set(range(4000))
    assert sum(numbers.values()) == 4000
    assert depth(queue) == (0, 0)


def spark_jvm(spark: Any) -> int:
    return int(spark.sparkContext._jvm.java.lang.ProcessHandle.current().pid())


class DyingBeforeAck(AmqpSource):
    """Its process ends when a segment is on disk and not yet acked."""

    @classmethod
    def name(cls) -> str:
        return "amqp-dying"

    def streamReader(self, schema: Any) -> Any:  # noqa: N802 - Spark's
        import os

        from rabbitpy_broker.pipeline.amqp.receiver import Receiver

        Receiver.ack = lambda *_: os._exit(1)
        return super().streamReader(schema)


def test_a_crash_between_disk_and_ack_brings_one_segment_twice(stream: Any, filled: Any, depth: Any, spark: Any):
    spark.dataSource.register(DyingBeforeAck)
    queue = filled(2000)
    query = stream("spool", queue, segmentRows=500)
    query.format = "amqp-dying"
    with pytest.raises(StreamingQueryException):
        query.start().awaitTermination(60)
    query.format = "amqp"
    eventually(lambda: depth(queue) == (2000, 0), 10)
    query.run()
    numbers = query.numbers()
    assert set(numbers) == set(range(2000))
    assert sum(numbers.values()) == 2500
    # the second time they are marked
    twice = [number for number, times in numbers.items() if times == 2]
    marked = query.table().where("redelivered").selectExpr(NUMBER).collect()
    assert {row.number for row in marked} >= set(twice)


# --- when the connection is lost ------------------------------------------------------------------------------------------


@pytest.fixture
def restartable(broker: BrokerAddress, own_broker: Any, ctl: Any) -> tuple[BrokerAddress, Callable[[], object]]:
    """A broker that may be stopped and started again in its place, and what does so."""
    if isinstance(broker, BrokerProcess):
        own: BrokerProcess = own_broker(listen=f"127.0.0.1:{free_port()}")
        return own, own.restart
    return broker, lambda: [ctl("stop_app"), ctl("start_app")]


@both_modes
def test_it_connects_again_after_the_broker_was_restarted(
    stream: Any, restartable: Any, mode: str, connect: Any, new_name: Any
):
    """At most what was delivered and not acked comes twice."""
    broker, restart = restartable
    queue = new_name("numbers")
    publish_to(broker, connect, queue, 0, 3000)
    query = stream(mode, queue, to=broker, maxMessagesPerTrigger=1000, retryDelayMs=200, connectionAttempts=100)
    running = query.start()
    eventually(lambda: sum(batch_sizes(running)) >= 1000, 60)
    restart()
    publish_to(broker, connect, queue, 3000, 5000)
    eventually(lambda: len(query.numbers()) == 5000, 60, 0.2)
    assert running.isActive
    running.stop()
    assert sum(query.numbers().values()) <= 5000 + 2 * 1000 + 1000


@both_modes
def test_it_connects_again_after_its_connection_was_closed(
    stream: Any, filled: Any, publish: Any, ctl: Any, connect: Any, mode: str
):
    queue = filled(2000)
    query = stream(mode, queue, maxMessagesPerTrigger=1000, retryDelayMs=100)
    running = query.start()
    eventually(lambda: sum(batch_sizes(running)) >= 1000, 60)
    ctl("close_all_connections", "test")
    connection = connect()
    channel = connection.channel()
    for number in range(2000, 3000):
        channel.basic_publish("", queue, str(number).encode())
    eventually(lambda: len(query.numbers()) == 3000, 60, 0.2)
    running.stop()
    assert sum(query.numbers().values()) <= 3000 + 1000


def free_port() -> int:
    import socket

    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return int(bound.getsockname()[1])


def publish_to(broker: BrokerAddress, connect: Any, queue: str, first: int, last: int) -> None:
    channel = connect(to=broker).channel()
    channel.queue_declare(queue, durable=True)
    for number in range(first, last):
        channel.basic_publish("", queue, str(number).encode(), pika.BasicProperties(delivery_mode=2))
    channel.queue_declare(queue, passive=True)


# --- what it says when it cannot go on ------------------------------------------------------------------------------------


def failure_of(query: Stream) -> str:
    with pytest.raises(StreamingQueryException) as caught:
        query.start().awaitTermination(60)
    return str(caught.value)


def test_a_queue_that_does_not_exist(stream: Any, new_name: Any):
    name = new_name("missing")
    assert f"NOT_FOUND - no queue '{name}' in vhost '/'" in failure_of(stream("direct", name))


def test_a_wrong_password_is_told_without_it(stream: Any, filled: Any, broker: BrokerAddress):
    wrong = BrokerAddress(broker.host, broker.port, password="geheim")
    text = failure_of(stream("direct", filled(1), to=wrong))
    assert "ACCESS_REFUSED" in text
    assert "geheim" not in text


def test_a_queue_that_may_not_be_read(stream: Any, filled: Any, make_user: Any, broker: BrokerAddress):
    queue = filled(1)
    user = make_user(f"writer-{uuid.uuid4().hex[:8]}", "secret", read="^$")
    address = BrokerAddress(broker.host, broker.port, user, "secret")
    text = failure_of(stream("direct", queue, to=address))
    assert f"ACCESS_REFUSED - access to queue '{queue}' in vhost '/' refused" in text


def test_a_broker_that_does_not_come_back(stream: Any, tmp_path: Path):
    nobody = BrokerAddress("127.0.0.1", free_port())
    text = failure_of(stream("direct", "q", to=nobody, connectionAttempts=3, retryDelayMs=10))
    assert "3 attempts to connect have failed" in text
    assert f"127.0.0.1:{nobody.port}" in text and "Connection refused" in text


def test_a_queue_that_is_deleted_while_it_is_read(stream: Any, filled: Any, channel: Any):
    queue = filled(10)
    running = stream("direct", queue, retryDelayMs=10).start()
    eventually(lambda: sum(batch_sizes(running)) == 10, 60)
    channel.queue_delete(queue)
    with pytest.raises(StreamingQueryException, match="NOT_FOUND"):
        running.awaitTermination(60)


def test_trigger_once_is_refused(stream: Any, filled: Any, spark: Any, depth: Any):
    queue = filled(10)
    query = stream("direct", queue)
    found = spark.readStream.format("amqp").options(**query._options).load()
    running = (
        found.writeStream.format("noop").option("checkpointLocation", str(query._folder / "c")).trigger(once=True).start()
    )
    with pytest.raises(StreamingQueryException, match="availableNow"):
        running.awaitTermination(60)
    eventually(lambda: depth(queue) == (10, 0))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({}, "option queue is missing"),
        ({"queue": "q", "prefetch": "1"}, "unknown option prefetch"),
        ({"queue": "q", "prefetchCount": "0"}, "0 is not from 1 to 65535"),
        ({"queue": "q", "maxWaitMs": "soon"}, "no whole number"),
        ({"queue": "q", "mode": "spool"}, "spoolDir"),
        ({"queue": "q", "headersAs": "xml"}, "not one of map, json"),
        ({"queue": "q", "url": "amqp://h", "host": "h"}, "either it or them"),
        ({"queue": "q", "url": "amqp://h:secret"}, "option url is not of the form"),
        ({"queue": "q", "url": "http://h"}, "option url is not of the form"),
        ({"queue": "q", "url": "amqp://h", "cacertfile": "ca.pem"}, "are for a URL with amqps://"),
        ({"queue": "q", "url": "amqps://h", "cacertfile": "none.pem"}, "No such file"),
    ],
)
def test_wrong_options_are_told_before_anything_is_opened(spark: Any, options: dict[str, str], text: str):
    with pytest.raises(Exception, match=text):
        spark.readStream.format("amqp").options(**options).load()


def test_an_address_is_a_url_or_its_parts():
    from rabbitpy_broker.pipeline.amqp.options import ReadOptions

    url = ReadOptions.of({"queue": "q", "url": "amqp://u:secret@h:1/v%2F1?heartbeat=7"})
    parts = ReadOptions.of(
        {"queue": "q", "HOST": "h", "port": "1", "vhost": "v/1", "user": "u", "password": "secret", "heartbeat": "7"}
    )
    for options in (url, parts):
        parameters = options.address.parameters()
        assert (parameters.host, parameters.port, parameters.virtual_host) == ("h", 1, "v/1")
        assert (parameters.credentials.username, parameters.credentials.password) == ("u", "secret")
        assert parameters.heartbeat == 7
        assert "secret" not in repr(options)
    assert ReadOptions.of({"queue": "q"}).address.parameters().heartbeat == 60


@both_modes
def test_over_tls(
    stream: Any, spark: Any, own_broker: Any, connect: Any, tmp_path: Path, new_name: Any, mode: str
):
    """The broker's certificate is checked, and the client's is shown where the broker asks for one."""
    authority = Authority(tmp_path, "authority")
    (certificate, key), (own_certificate, own_key) = authority.issue("server"), authority.issue("client")
    asked = {"cacertfile": str(authority.file), "verify": "verify_peer", "fail_if_no_peer_cert": True}
    tls = {"certfile": certificate, "keyfile": key, **asked}
    broker = own_broker(config={"listeners_ssl": ["127.0.0.1:0"], "ssl_options": tls})
    queue = new_name("tls")
    publish_to(broker, connect, queue, 0, 100)
    url = "amqps://guest:guest@" + broker.started["tls_listeners"][0] + "/%2F"
    shown = {"certfile": own_certificate, "keyfile": own_key}
    with pytest.raises(Exception, match="CERTIFICATE_VERIFY_FAILED"):
        spark.read.format("amqp").options(url=url, queue=queue, **shown).load().collect()
    read = stream(mode, queue, url=url, cacertfile=str(authority.file), **shown)
    read.run()
    assert read.numbers() == Counter(range(100))


def test_a_spool_belongs_to_one_query(stream: Any, filled: Any, tmp_path: Path, monkeypatch: Any):
    from rabbitpy_broker.pipeline.amqp import spool

    monkeypatch.setattr(spool, "LOCK_TIMEOUT_S", 0.1)
    first, second = spool.Spool(str(tmp_path / "s")), spool.Spool(str(tmp_path / "s"))
    first.lock()
    with pytest.raises(PipelineError, match="another query uses it"):
        second.lock()
    first.unlock()
    second.lock()
    second.unlock()


def test_a_spool_that_was_emptied_is_told(stream: Any, filled: Any, tmp_path: Path):
    queue = filled(1000)
    query = stream("spool", queue, maxMessagesPerTrigger=500)

    def fail(frame: Any, _id: int) -> None:
        if not frame.isEmpty():  # the first batch may be empty
            raise RuntimeError("no")

    with pytest.raises(StreamingQueryException):
        query.start(each=fail).awaitTermination(60)
    for segment in (tmp_path / "spool").glob("*.arrow"):
        segment.unlink()
    with pytest.raises(StreamingQueryException, match="failOnDataLoss"):
        query.start(each=fail).awaitTermination(60)


# --- batch ----------------------------------------------------------------------------------------------------------------


def test_a_batch_read_leaves_the_queue_as_it_was(spark: Any, broker: BrokerAddress, filled: Any, depth: Any):
    queue = filled(1500)
    peek = spark.read.format("amqp").options(url=broker.url, queue=queue, limit="1000", numPartitions="4").load()
    for _ in range(2):
        assert {row.number for row in peek.selectExpr(NUMBER).collect()} == set(range(1000))
        eventually(lambda: depth(queue) == (1500, 0))
    assert peek.rdd.getNumPartitions() == 1


def test_a_batch_read_of_an_empty_queue_has_no_rows(spark: Any, broker: BrokerAddress, filled: Any):
    assert spark.read.format("amqp").options(url=broker.url, queue=filled(0)).load().count() == 0


def test_drain_takes_the_messages_when_its_block_succeeds(spark: Any, broker: BrokerAddress, filled: Any, depth: Any):
    queue = filled(1500)
    with drain(spark, queue, limit=1000, url=broker.url) as found:
        assert {row.number for row in found.selectExpr(NUMBER).collect()} == set(range(1000))
        assert depth(queue) == (500, 1000)
    assert depth(queue) == (500, 0)
    with drain(spark, queue, url=broker.url) as found:
        assert found.count() == 500
    with drain(spark, queue, url=broker.url) as found:
        assert found.count() == 0


def test_drain_puts_the_messages_back_when_its_block_fails(spark: Any, broker: BrokerAddress, filled: Any, depth: Any):
    queue = filled(100)
    with pytest.raises(ZeroDivisionError), drain(spark, queue, url=broker.url) as found:
        assert found.count() == 100
        raise ZeroDivisionError
    eventually(lambda: depth(queue) == (100, 0))


def test_drain_says_when_it_could_not_ack(spark: Any, broker: BrokerAddress, filled: Any, depth: Any, ctl: Any):
    queue = filled(100)
    with pytest.raises(PipelineError, match="in the queue again"), drain(spark, queue, url=broker.url) as found:
        assert found.count() == 100
        ctl("close_all_connections", "test")
        eventually(lambda: depth(queue)[0] == 100 or depth(queue) == (0, 100))
    eventually(lambda: depth(queue) == (100, 0))


def test_drain_of_a_queue_that_does_not_exist(spark: Any, broker: BrokerAddress, new_name: Any):
    with pytest.raises(PipelineError, match="NOT_FOUND"), drain(spark, new_name("missing"), url=broker.url):
        pass
