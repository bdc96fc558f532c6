"""The source `rabbitpy-journal`: the records of an event journal as rows, for batch and streaming.

    spark.read.format("rabbitpy-journal").load("/var/lib/rabbitpy/events")
    spark.readStream.format("rabbitpy-journal").option("maxRecordsPerTrigger", 1_000_000).load(folder)

  path                    the folder of the segments, where the driver and all executors can read it
  startingOffsets         earliest (default), latest, or {"segment": 3, "record": 0}
  endingOffsets           of a batch: latest (default), or a position
  maxRecordsPerTrigger    of a stream, 1,000,000 by default
  recordsPerPartition     500,000 by default
  failOnDataLoss          true (default): segments that went before they were read end the query; false: it goes on with
                          what is there

A row is a record as it stands in its segment (SCHEMA): the codes of events, states and reasons are numbers, and
`events.py` gives them names. An offset is a position, the next record to be read; a partition is a range of records of
one segment, which is the same whenever it is read. So a query into an idempotent sink has every record exactly once.

What must stay true: `__init__` opens nothing, for the reader travels to the executors; `latestOffset` never goes back.
"""

from __future__ import annotations

import json
import mmap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from rabbitpy_broker.events.layout import HEADER_SIZE, RECORD_SIZE, segment_name
from rabbitpy_broker.pipeline.errors import PipelineError
from rabbitpy_broker.pipeline.journal import segments
from rabbitpy_broker.pipeline.journal.segments import Position, Range

NAME: Final = "rabbitpy-journal"
ROWS_PER_BATCH: Final = 65_536

SCHEMA: Final = (
    "boot BIGINT, segment BIGINT, record BIGINT, time TIMESTAMP, time_ns BIGINT, event TINYINT, seq_id BIGINT, aux BIGINT, "
    "queue INT, connection INT, channel INT, opening INT, size INT, flags TINYINT, state TINYINT, reason TINYINT, "
    "priority SMALLINT"
)
# layout.RECORD_FORMAT, as numpy says it.
RECORD: Final = np.dtype(
    [
        ("time_ns", "<i8"),
        ("seq_id", "<i8"),
        ("aux", "<i8"),
        ("queue", "<i4"),
        ("connection", "<i4"),
        ("size", "<i4"),
        ("channel", "<u2"),
        ("event", "u1"),
        ("flags", "u1"),
        ("state", "u1"),
        ("reason", "u1"),
        ("priority", "u1"),
        ("zero", "u1"),
        ("opening", "<i4"),
    ]
)
_FROM_RECORD: Final = (
    ("event", np.int8),
    ("seq_id", np.int64),
    ("aux", np.int64),
    ("queue", np.int32),
    ("connection", np.int32),
    ("channel", np.int32),
    ("opening", np.int32),
    ("size", np.int32),
    ("flags", np.int8),
    ("state", np.int8),
    ("reason", np.int8),
    ("priority", np.int16),
)
_ARROW: Final = pa.schema(
    [
        pa.field("boot", pa.int64()),
        pa.field("segment", pa.int64()),
        pa.field("record", pa.int64()),
        pa.field("time", pa.timestamp("us", tz="UTC")),
        pa.field("time_ns", pa.int64()),
        *(pa.field(name, pa.from_numpy_dtype(kind)) for name, kind in _FROM_RECORD),
    ]
)


class Options:
    """The options as they are given, checked. Raises PipelineError."""

    def __init__(self, options: Any) -> None:
        path = options.get("path")
        if not path:
            raise PipelineError(f"{NAME}: the folder of the event journal is missing: .load(FOLDER)")
        self.folder = Path(str(path).removeprefix("file://").removeprefix("file:"))
        self.records_per_partition = _positive(options, "recordsPerPartition", 500_000)
        self.records_per_trigger = _positive(options, "maxRecordsPerTrigger", 1_000_000)
        self.starting = str(options.get("startingOffsets", "earliest"))
        self.ending = str(options.get("endingOffsets", "latest"))
        loss = str(options.get("failOnDataLoss", "true")).lower()
        if loss not in {"true", "false"}:
            raise PipelineError(f"failOnDataLoss: true or false, not {loss!r}")
        self.fail_on_data_loss = loss == "true"

    def position(self, name: str, text: str) -> Position:
        """What startingOffsets or endingOffsets mean now."""
        if text == "earliest":
            return segments.begin(self.folder)
        if text == "latest":
            return segments.end(self.folder)
        try:
            found = json.loads(text)
            return Position(int(found["segment"]), int(found["record"]))
        except (ValueError, KeyError, TypeError):
            raise PipelineError(
                f'{name}: earliest, latest or {{"segment": 1, "record": 0}}, not {text!r}'
            ) from None

    def partitions(self, start: Position, end: Position) -> list[RecordRange]:
        """The ranges between two positions. Raises PipelineError when records are gone that must not be."""
        if start == end:
            return []
        if self.fail_on_data_loss:
            self._require(start)
        found = segments.ranges(self.folder, start, end, self.records_per_partition)
        return [RecordRange(str(self.folder), one, self.fail_on_data_loss) for one in found]

    def _require(self, start: Position) -> None:
        numbers = segments.numbers(self.folder)
        first = numbers[0] if numbers else 0
        if start.segment < first and start != Position(0, 0):
            raise PipelineError(
                f"{self.folder}: segment {start.segment} was removed before record {start.record} and those after it were "
                f"read; the first that is there is {first}. Keep more (event_journal_max_size), or set failOnDataLoss to false"
            )


def _positive(options: Any, name: str, default: int) -> int:
    text = str(options.get(name, default))
    if not text.isdecimal() or int(text) == 0:
        raise PipelineError(f"{name}: a whole number above 0, not {text!r}")
    return int(text)


class RecordRange(InputPartition):
    """One partition: where, which records, and whether it may be gone."""

    def __init__(self, folder: str, records: Range, must_be_there: bool) -> None:
        self.folder = folder
        self.records = records
        self.must_be_there = must_be_there


def read_range(partition: RecordRange) -> Iterator[pa.RecordBatch]:
    """The rows of a range. Raises PipelineError when the segment is gone and must not be."""
    folder = Path(partition.folder)
    number, first, end = partition.records
    try:
        boot = segments.header(folder, number).boot
        with (folder / segment_name(number)).open("rb") as file:
            data = mmap.mmap(file.fileno(), HEADER_SIZE + end * RECORD_SIZE, access=mmap.ACCESS_READ)
    except FileNotFoundError:
        if partition.must_be_there:
            raise PipelineError(f"{folder}: segment {number} was removed while it was read") from None
        return
    for at in range(first, end, ROWS_PER_BATCH):
        rows = min(ROWS_PER_BATCH, end - at)
        yield _batch(np.frombuffer(data, RECORD, rows, HEADER_SIZE + at * RECORD_SIZE), boot, number, at)


def _batch(records: np.ndarray[Any, Any], boot: int, number: int, first: int) -> pa.RecordBatch:
    rows = len(records)
    times = np.ascontiguousarray(records["time_ns"])
    columns = [
        pa.array(np.full(rows, boot, np.int64)),
        pa.array(np.full(rows, number, np.int64)),
        pa.array(np.arange(first, first + rows, dtype=np.int64)),
        pa.array(times // 1000).cast(_ARROW.field("time").type),
        pa.array(times),
        *(pa.array(records[name].astype(kind)) for name, kind in _FROM_RECORD),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=_ARROW)


class JournalSource(DataSource):
    """See the top of this file."""

    @classmethod
    def name(cls) -> str:
        """What `format` is given."""
        return NAME

    def schema(self) -> str:
        """Always the same."""
        return SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        """For spark.read."""
        return BatchReader(Options(self.options))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """For spark.readStream."""
        return StreamReader(Options(self.options))


class BatchReader(DataSourceReader):
    """All that is there between two positions."""

    def __init__(self, options: Options) -> None:
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        options = self._options
        start = options.position("startingOffsets", options.starting)
        return options.partitions(start, options.position("endingOffsets", options.ending))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_range(partition) if isinstance(partition, RecordRange) else iter(())  # None, where there are none


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Follows a growing journal."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._upto: Position | None = None  # of availableNow

    def initialOffset(self) -> dict[str, int]:
        return _offset(self._options.position("startingOffsets", self._options.starting))

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self._options.records_per_trigger)

    def prepareForTriggerAvailableNow(self) -> None:
        self._upto = segments.end(self._options.folder)

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
        begin = _position(start)
        most = None if isinstance(limit, ReadAllAvailable) else self._options.records_per_trigger
        if isinstance(limit, ReadMaxRows):
            most = limit.max_rows
        if begin == Position(0, 0):  # nothing was there when the query began
            begin = segments.begin(self._options.folder)
        found = segments.advance(self._options.folder, begin, most)
        if self._upto is not None:
            found = min(found, self._upto)
        return _offset(max(found, _position(start)))

    def reportLatestOffset(self) -> dict[str, int]:
        return _offset(segments.end(self._options.folder))

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        return self._options.partitions(_position(start), _position(end))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_range(partition) if isinstance(partition, RecordRange) else iter(())  # None, where there are none

    def commit(self, end: dict[str, int]) -> None:
        """Nothing is owed to the broker: it keeps its segments by size and age."""


def _offset(position: Position) -> dict[str, int]:
    return {"v": 1, "segment": position.segment, "record": position.record}


def _position(offset: dict[str, int]) -> Position:
    return Position(int(offset["segment"]), int(offset["record"]))
