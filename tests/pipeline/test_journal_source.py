"""The source `rabbitpy-journal`: every record once, whatever happens to the query and to the segments."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("pyarrow")

from event_records import decode
from pipeline.journals import Boot
from rabbitpy_broker.events import layout
from rabbitpy_broker.pipeline.errors import PipelineError
from spark_driver import Driver

pytestmark = pytest.mark.timeout(240)


def written(folder: Path) -> list[tuple[int, ...]]:
    """(segment, record, *fields) of all that is there, as the layout says."""
    rows = []
    for path in sorted(folder.glob("*.events")):
        data = path.read_bytes()
        number = layout.unpack_header(data).segment
        for at, record in enumerate(decode(data[layout.HEADER_SIZE :])):
            rows.append((number, at, *record))
    return rows


COLUMNS = (
    "segment", "record", "time_ns", "seq_id", "aux", "queue", "connection", "size", "channel", "event", "flags", "state",
    "reason", "priority", "opening",
)  # fmt: skip


def rows(frame: Any) -> list[tuple[int, ...]]:
    return sorted(tuple(row) for row in frame.select(*COLUMNS).collect())


def fill(folder: Path, first: int, count: int, segment_size: int = 1 << 26, clean: bool = False) -> None:
    """A boot that publishes `count` messages, handed out and acked."""
    boot = Boot(folder, segment_size)
    queue = boot.queue("q")
    for at in range(first, first + count):
        boot.publish(queue, at)
        boot.deliver(queue, at)
        boot.ack(queue, at)
        if at % 50 == 0:
            boot.journal.flush()
    boot.stop(clean)


@pytest.fixture
def events(tmp_path: Path) -> Path:
    return tmp_path / "events"


@pytest.fixture
def stream(spark: Any, events: Path, tmp_path: Path) -> Any:
    """`stream(**options)` reads what there is into a table; returns the sizes of its batches."""

    def run(**options: str) -> list[int]:
        found = spark.readStream.format("rabbitpy-journal").options(**options).load(str(events))
        writer = found.writeStream.option("checkpointLocation", str(tmp_path / "checkpoint"))
        query = writer.format("parquet").option("path", str(tmp_path / "out")).trigger(availableNow=True).start()
        query.awaitTermination()
        return [progress.numInputRows for progress in query.recentProgress if progress.numInputRows]

    return run


def test_a_batch_has_every_field_of_every_record(spark: Any, events: Path):
    fill(events, 0, 120, segment_size=4896)
    fill(events, 0, 5)
    frame = spark.read.format("rabbitpy-journal").option("recordsPerPartition", "70").load(str(events))
    assert rows(frame) == written(events)
    assert frame.rdd.getNumPartitions() > 6
    boots = {row.boot for row in frame.select("boot").distinct().collect()}
    assert boots == {1, max(segment for segment, *_ in written(events))}
    row = frame.orderBy("segment", "record").first()
    assert row.time.timestamp() == pytest.approx(row.time_ns / 1e9, abs=2e-6)


def test_offsets_bound_a_batch(spark: Any, events: Path):
    fill(events, 0, 10)
    fill(events, 0, 10)
    reader = spark.read.format("rabbitpy-journal")
    part = reader.options(
        startingOffsets=json.dumps({"segment": 1, "record": 45}), endingOffsets=json.dumps({"segment": 2, "record": 3})
    ).load(str(events))
    assert [row[:2] for row in rows(part)] == [*((1, at) for at in range(45, 50)), *((2, at) for at in range(3))]
    assert spark.read.format("rabbitpy-journal").option("startingOffsets", "latest").load(str(events)).count() == 0


def test_a_record_that_is_half_written_is_left_out(spark: Any, events: Path):
    fill(events, 0, 3)
    with (events / layout.segment_name(1)).open("ab") as file:
        file.write(bytes(47))
    assert spark.read.format("rabbitpy-journal").load(str(events)).count() == 15


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"startingOffsets": "yesterday"}, "startingOffsets: earliest, latest or"),
        ({"recordsPerPartition": "0"}, "recordsPerPartition: a whole number above 0"),
        ({"failOnDataLoss": "perhaps"}, "failOnDataLoss: true or false"),
    ],
)
def test_wrong_options_are_told(spark: Any, events: Path, options: dict[str, str], text: str):
    fill(events, 0, 1)
    with pytest.raises(Exception, match=text):
        spark.read.format("rabbitpy-journal").options(**options).load(str(events)).count()


def test_a_folder_that_is_not_there_is_told(spark: Any, tmp_path: Path):
    with pytest.raises(Exception, match="No such file or directory"):
        spark.read.format("rabbitpy-journal").load(str(tmp_path / "absent")).count()


def test_a_newer_version_is_refused(events: Path):
    from rabbitpy_broker.pipeline.journal import segments

    fill(events, 0, 1)
    path = events / layout.segment_name(1)
    data = bytearray(path.read_bytes())
    data[8] = 2
    data[layout.HEADER_SIZE - 4 : layout.HEADER_SIZE] = int(layout.crc32c(bytes(data[:92]))).to_bytes(4, "little")
    path.write_bytes(data)
    with pytest.raises(PipelineError, match="version 2 of the event journal"):
        segments.header(events, 1)


def test_a_stream_goes_on_where_it_was(spark: Any, events: Path, stream: Any, tmp_path: Path):
    """In batches of the size that is asked for, over segments that grow and new boots."""
    fill(events, 0, 100)
    assert stream(maxRecordsPerTrigger="200") == [200, 200, 100]
    boot = Boot(events)
    queue = boot.queue("q")
    boot.publish(queue, 1)
    boot.journal.flush()
    assert stream() == [3]
    boot.publish(queue, 2)
    boot.stop()
    assert stream() == [3]
    assert stream() == []
    assert rows(spark.read.parquet(str(tmp_path / "out"))) == written(events)


def test_segments_that_went_before_they_were_read(events: Path, stream: Any):
    fill(events, 0, 10)
    assert stream() == [50]
    with (events / layout.segment_name(1)).open("ab") as file:
        file.write(bytes(48))
    fill(events, 0, 10)
    (events / layout.segment_name(1)).unlink()
    with pytest.raises(Exception, match="segment 1 was removed before record 50"):
        stream()
    assert stream(failOnDataLoss="false") == [50]


def test_a_driver_that_is_killed_misses_and_doubles_nothing(spark: Any, events: Path, tmp_path: Path):
    """Killed with all it has started, twice, while the broker writes, is killed too, and leaves half a record."""
    options = {"maxRecordsPerTrigger": "800", "recordsPerPartition": "500"}
    job = {"queries": [{"mode": "journal", "folder": str(events), "options": options, "slow_s": 0.1}]}
    fill(events, 0, 500, segment_size=40_000)
    running = Driver(tmp_path, None, job)
    for _ in range(2):
        running.wait_for_commits(2)
        running.kill()
        fill(events, 0, 300, segment_size=40_000)
        newest = max(events.glob("*.events"))
        with newest.open("ab") as file:
            file.write(b"half a record")
        running = Driver(tmp_path, None, job)
    running.wait_for_commits(1)
    running.kill()
    Driver(tmp_path, None, {**job, "bounded": True}).wait()
    found = Counter(row[:2] for row in rows(spark.read.parquet(str(tmp_path / "journal" / "out"))))
    assert set(found.values()) == {1}
    assert sorted(found) == [row[:2] for row in written(events)]
    assert len(found) == 5 * (500 + 2 * 300)
