"""The command line's jobs, from a broker to tables and back, and from a journal to a page."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pika
import pytest

pytest.importorskip("pyspark")
pytest.importorskip("pyarrow")

from click.testing import CliRunner

from broker_process import BrokerAddress, BrokerProcess
from event_records import segments
from support import eventually

pytestmark = pytest.mark.timeout(240)


@pytest.fixture
def pipeline(spark: Any) -> Callable[..., str]:
    """Runs a job in this process, in the session that there is; gives its output."""
    from rabbitpy_broker.pipeline.cli import main

    def run(*arguments: Any, code: int = 0) -> str:
        result = CliRunner().invoke(main, ["--master", "local[2]", *map(str, arguments)], catch_exceptions=False)
        assert result.exit_code == code, result.output
        return result.output

    return run


@pytest.fixture
def ingested(pipeline: Any, broker: BrokerAddress, tmp_path: Path) -> Callable[..., str]:
    def run(*queues: str, options: tuple[str, ...] = (), code: int = 0) -> str:
        named = [part for queue in queues for part in ("--queue", queue)]
        return pipeline("ingest", tmp_path / "lake", "--url", broker.url, *named, *options, code=code)

    return run


def json_message(channel: Any, queue: str, body: bytes, **properties: Any) -> None:
    channel.basic_publish("", queue, body, pika.BasicProperties(**{"content_type": "application/json", **properties}))


def test_queues_become_tables_and_what_does_not_decode_is_set_aside(
    ingested: Any, channel: Any, queue: Any, depth: Any, spark: Any, tmp_path: Path
):
    """A second run goes on after the first; nothing is left in the queues, and every row is in one of the tables."""
    orders, notes = queue(), queue()
    for number in range(20):
        json_message(channel, orders, json.dumps({"id": number, "price": number / 4}).encode(), message_id=str(number))
    json_message(channel, orders, b'{"id": 20')
    json_message(channel, orders, b'{"id": "twenty-one"}')
    channel.basic_publish("", notes, "grün".encode(), pika.BasicProperties(headers={"h": "x"}))
    options = ("--schema", "id BIGINT, price DOUBLE")
    assert "23 rows, 2 of them set aside; 2 queues" in ingested(orders, notes, options=options)
    json_message(channel, orders, b'{"id": 22, "more": [1]}')
    assert "1 rows, 0 of them set aside; 1 queues" in ingested(orders, options=options)
    assert depth(orders) == depth(notes) == (0, 0)
    messages = spark.read.parquet(str(tmp_path / "lake" / "messages")).orderBy("value.id").collect()
    by_queue = {name: [row for row in messages if row.queue == name] for name in (orders, notes)}
    assert [row.value.id for row in by_queue[orders]] == [*range(20), 22]
    assert [row.value.price for row in by_queue[orders][:3]] == [0.0, 0.25, 0.5]
    assert [json.loads(row.json) for row in by_queue[orders]][-1] == {"id": 22, "more": [1]}, "nothing is lost"
    note = by_queue[notes][0]
    assert (note.codec, note.text, note.value, note.headers) == ("text", "grün", None, {"h": "x"})
    quarantine = spark.read.parquet(str(tmp_path / "lake" / "quarantine"))
    assert [(bytes(row.body), row.reason) for row in quarantine.orderBy("offset").collect()] == [
        (b'{"id": 20', "no JSON: Input data was truncated"),
        (b'{"id": "twenty-one"}', "does not fit the schema"),
    ]


def test_a_schema_is_inferred_once_and_kept(ingested: Any, channel: Any, queue: Any, spark: Any, tmp_path: Path):
    name = queue()
    json_message(channel, name, b'{"a": 1, "b": {"c": [true]}}')
    ingested(name, options=("--schema", "infer"))
    json_message(channel, name, b'{"a": 2, "z": "not in the schema"}')
    json_message(channel, name, b'{"a": "no number"}')
    ingested(name, options=("--schema", "infer"))
    messages = spark.read.parquet(str(tmp_path / "lake" / "messages"))
    assert messages.schema["value"].dataType.simpleString() == "struct<a:bigint,b:struct<c:array<boolean>>>"
    assert sorted(row.value.a for row in messages.collect()) == [1, 2]
    kept = json.loads((tmp_path / "lake" / "_schema.json").read_text())
    assert [field["name"] for field in kept["fields"]] == ["a", "b"]


def test_a_queue_that_is_not_there_ends_the_job_with_one_line(ingested: Any, new_name: Any):
    said = ingested(new_name("absent"), code=2)
    assert re.search(r"rabbitpy-pipeline: .*no queue 'absent", said), said
    assert "Traceback" not in said


def test_a_queue_named_twice_is_refused(ingested: Any):
    assert "a queue is named twice" in ingested("q", "q", code=2)


def test_what_was_ingested_is_published_again_as_it_was(
    ingested: Any, pipeline: Any, channel: Any, queue: Any, broker: BrokerAddress, tmp_path: Path
):
    name, other = queue(), queue()
    sent = pika.BasicProperties(
        content_type="application/json", delivery_mode=2, priority=3, correlation_id="c", reply_to="r", message_id="m",
        timestamp=1_700_000_000, type="t", app_id="a", headers={"h": "x"},
    )  # fmt: skip
    for number in range(30):
        channel.basic_publish("", name, json.dumps({"n": number}).encode(), sent)
    ingested(name)
    table = tmp_path / "lake" / "messages"
    assert "30 messages" in pipeline("replay", table, "--url", broker.url)
    assert "3 messages" in pipeline(
        "replay", table, "--url", broker.url, "--routing-key", other, "--where", "offset < 3", "--rate", "1000"
    )
    found = [channel.basic_get(other, auto_ack=True) for _ in range(3)]
    assert [json.loads(body) for _, _, body in found] == [{"n": 0}, {"n": 1}, {"n": 2}], "oldest first"
    properties = found[0][1]
    assert {key: value for key, value in vars(properties).items() if value is not None} == {
        key: value for key, value in vars(sent).items() if value is not None
    }
    assert channel.queue_declare(name, passive=True).method.message_count == 30
    assert "rabbitpy-pipeline: " in pipeline("replay", table, "--url", broker.url, "--routing-key", "absent", code=2)


def test_small_files_are_compacted(ingested: Any, pipeline: Any, channel: Any, queue: Any, spark: Any, tmp_path: Path):
    name = queue()
    for _ in range(3):
        json_message(channel, name, b"[]")
        ingested(name)
    table = tmp_path / "lake" / "messages" / f"queue={name}"
    assert "3 files became larger ones" in pipeline("compact", table)
    assert spark.read.parquet(str(tmp_path / "lake" / "messages")).count() == 3
    json_message(channel, name, b"[]")
    ingested(name)
    assert spark.read.parquet(str(tmp_path / "lake" / "messages")).count() == 4


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    """Of a broker that did a little of everything, was stopped, started and stopped."""
    process = BrokerProcess(tmp_path / "broker", {"event_journal": "on"})
    (tmp_path / "broker").mkdir()
    process.start()
    with pika.BlockingConnection(process.parameters()) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_declare("dead", durable=True)
        arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead", "x-queue-mode": "lazy"}
        channel.queue_declare("q", durable=True, arguments=arguments)
        for number in range(200):
            channel.basic_publish("", "q", b"%d" % number, pika.BasicProperties(delivery_mode=2))
        events = process.data_dir / "events"
        eventually(lambda: any(record.what == "state" for one in segments(events) for record in one.records))
        for number in range(30):
            method, _, _ = channel.basic_get("q")
            if number % 10 == 0:
                channel.basic_reject(method.delivery_tag, requeue=False)
            elif number % 10 == 1:
                channel.basic_reject(method.delivery_tag, requeue=True)
            else:
                channel.basic_ack(method.delivery_tag)
    process.stop()
    process.start()
    process.stop()
    return process.data_dir / "events"


def test_a_journal_becomes_tables_and_a_page(pipeline: Any, journal: Path, spark: Any, tmp_path: Path):
    out = tmp_path / "report"
    assert str(out / "report.html") in pipeline("report", journal, out)
    rates = {row.queue: row for row in spark.read.parquet(str(out / "rates")).collect()}
    assert (rates["q"].dead_lettered, rates["q"].requeues, rates["q"].redelivered) == (3, 3, 3)
    assert rates["q"].consumed == 24
    throughput = spark.read.parquet(str(out / "throughput")).groupBy("event").sum("n").collect()
    records = [record for segment in segments(journal) for record in segment.records]
    for event in ("publish", "route", "deliver", "ack"):
        there = sum(record.what == event for record in records)
        assert {row.event: row["sum(n)"] for row in throughput}[event] == there
    spans = {(row.queue, row.span): row for row in spark.read.parquet(str(out / "latency")).collect()}
    assert spans["q", "publish to confirm"].n == 200
    assert 0 <= spans["q", "publish to confirm"].p50_us <= spans["q", "publish to confirm"].max_us
    states = {row.state for row in spark.read.parquet(str(out / "states")).where("queue = 'q'").collect()}
    assert {"alpha", "gamma"} <= states
    page = (out / "report.html").read_text()
    assert "Every promise was kept." in page
    images = re.findall(r'src="data:image/png;base64,([^"]+)"', page)
    assert len(images) == 3 and all(base64.b64decode(image).startswith(b"\x89PNG") for image in images)
    assert not re.search(r'(src|href)="(?!data:)', page), "nothing is fetched"


def test_the_audit_s_exit_code(pipeline: Any, journal: Path, tmp_path: Path):
    out = tmp_path / "audit"
    assert ": 0 violations" in pipeline("audit", journal, out)
    newest = max(journal.glob("*.events"))
    data = newest.read_bytes()
    newest.write_bytes(data[:96])  # as if nothing had been recovered
    assert re.search(r": [1-9]\d* violations", pipeline("audit", journal, out, code=1))


@pytest.mark.parametrize("job", ["throughput", "latency", "states", "rates"])
def test_each_table_by_itself(pipeline: Any, journal: Path, spark: Any, tmp_path: Path, job: str):
    assert str(tmp_path / job) in pipeline(job, journal, tmp_path)
    assert spark.read.parquet(str(tmp_path / job)).count() > 0


def test_a_journal_that_is_not_there(pipeline: Any, tmp_path: Path):
    said = pipeline("report", tmp_path / "absent", tmp_path / "out", code=2)
    assert f"rabbitpy-pipeline: {tmp_path / 'absent'}: No such file or directory" in said
