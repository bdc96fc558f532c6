"""Mode `stream` of the format `amqp`: streams (x-queue-type=stream) as a source whose ranges can be read again.

An offset of Spark is the next offset of each stream: {"orders-0": 1200, "orders-1": 1187}. A partition is a range of one
stream, which an executor reads with a connection of its own. Nothing leaves a stream by being read, so nothing has to be acked
in time, and a batch that is tried again, by a task, after a crash or by another job, has the same rows: into a sink that
writes a repeated batch once, every message comes exactly once.

What must stay true:

- `__init__` opens nothing: the reader travels to the executors. `latestOffset` never goes back.
- The end of a range is the offset behind a message that was seen (`Tail`), so a range never waits for what does not come.
- A row that retention took before it was read is told: with failOnDataLoss as an error, else in the log of the task.
  Offsets may be missing for another reason, for RabbitMQ's own stream protocol uses some for itself; that is no loss.
"""

from __future__ import annotations

import datetime as dt
import itertools
import json
import re
import select
import signal
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from rabbitpy_broker.pipeline.amqp import messages, stream_client
from rabbitpy_broker.pipeline.amqp.options import StreamOptions
from rabbitpy_broker.pipeline.amqp.stream_client import Stream, Tail
from rabbitpy_broker.pipeline.errors import PipelineError

ROWS_PER_BATCH: Final = 10_000
# A batch of Arrow's holds less than 2 GiB in a column, and two of them wait here at most.
BYTES_PER_BATCH: Final = 32 * 1024 * 1024
_INTERVAL: Final = re.compile(r"\d+[YMDhms]")

Offsets = dict[str, int]


@dataclass
class Range(InputPartition):
    """The messages of a stream with the offsets from `first` to `end`, without `end`."""

    queue: str
    number: int  # of the stream, within what is read
    first: int
    end: int


class Streams:
    """What is read, as the options say it; knows how to ask the broker for offsets."""

    def __init__(self, options: StreamOptions) -> None:
        self.options = options
        self._queues: tuple[str, ...] = options.queues

    def queues(self) -> tuple[str, ...]:
        """The streams, in order. Raises PipelineError when there are none of a super stream."""
        if not self._queues:
            self._queues = self._partitions()
        return self._queues

    def stream(self, queue: str) -> Stream:
        options = self.options
        return Stream(options.address.parameters(), queue, options.connection_attempts, options.retry_delay_ms / 1000)

    def offsets(self, name: str, text: str) -> Offsets:
        """What startingOffsets or endingOffsets mean now. Raises PipelineError."""
        if text.lstrip().startswith("{"):
            return self._each(name, text)
        return {queue: self._offset(name, queue, text) for queue in self.queues()}

    def ranges(self, start: Mapping[str, int], end: Mapping[str, int]) -> list[Range]:
        """What is between, in at least `minPartitions` parts of about the same number of messages."""
        counts = {queue: end[queue] - start.get(queue, 0) for queue in end}
        total = sum(count for count in counts.values() if count > 0)
        made = []
        for number, (queue, count) in enumerate(counts.items()):
            if count <= 0:
                continue
            first = start.get(queue, 0)
            parts = min(max(round(count * self.options.min_partitions / total), 1), count)
            edges = [first + count * part // parts for part in range(parts + 1)]
            made += [Range(queue, number, low, high) for low, high in itertools.pairwise(edges)]
        return made

    def _each(self, name: str, text: str) -> Offsets:
        try:
            given = json.loads(text)
        except ValueError:
            given = {}
        if set(given) != set(self.queues()):
            raise PipelineError(f"{name}: {text!r} is no object of JSON that has {', '.join(self.queues())}, and no others")
        return {queue: self._offset(name, queue, str(given[queue])) for queue in self.queues()}

    def _offset(self, name: str, queue: str, text: str) -> int:
        stream = self.stream(queue)
        if text.isdecimal():
            return int(text)
        if text in ("earliest", "first"):
            return stream_client.offset_of(stream, "first") or 0
        if text == "last":
            return stream_client.offset_of(stream, "last") or 0
        if text not in ("latest", "next"):
            found = stream_client.offset_of(stream, text if _INTERVAL.fullmatch(text) else _time(name, text))
            if found is not None:
                return found
        tail = Tail(stream)
        try:
            return tail.read_all()
        finally:
            tail.close()

    def _partitions(self) -> tuple[str, ...]:
        name = self.options.super_stream
        found: list[str] = []
        while stream_client.exists(self.stream(f"{name}-{len(found)}")):
            found.append(f"{name}-{len(found)}")
        if not found:
            raise PipelineError(
                f"superStream {name!r}: there is no stream {name}-0; are its partitions named otherwise? Then give their "
                "names with the option queues"
            )
        return tuple(found)


def _time(name: str, text: str) -> dt.datetime:
    try:
        found = dt.datetime.fromisoformat(text)
    except ValueError:
        raise PipelineError(
            f"{name}: {text!r} is none of earliest, latest, next, last, an offset, a time as 2026-01-31T12:00:00Z, "
            "an interval as 2h, and an object of JSON with one of these for each stream"
        ) from None
    return found if found.tzinfo is not None else found.replace(tzinfo=dt.UTC)


class RowReader:
    """`read` of both readers, in an executor: the rows of a range."""

    def __init__(self, options: StreamOptions, schema: StructType) -> None:
        self._options = options
        self._schema = messages.arrow_schema(schema)
        self._streams = Streams(options)

    def rows(self, part: Range) -> Iterator[pa.RecordBatch]:
        stream = self._streams.stream(part.queue)
        expected = part.first
        parts = stream_client.messages(
            stream, part.first, part.end, self._options.prefetch_count, ROWS_PER_BATCH, BYTES_PER_BATCH
        )
        for part_read in parts:
            offsets = part_read.offsets
            if offsets[0] != expected or offsets[-1] - offsets[0] != len(offsets) - 1:
                self._check_gaps(stream, expected, offsets)
            expected = offsets[-1] + 1
            yield messages.stream_batch(part_read, part.queue, part.number, self._schema)
        if expected < part.end:
            self._check_gaps(stream, expected, [part.end])

    def _check_gaps(self, stream: Stream, expected: int, offsets: Sequence[int]) -> None:
        """Some offset from `expected` on is not there: has retention taken it, or has there never been a message?"""
        kept = stream_client.offset_of(stream, "first") or 0
        for offset in offsets:
            if offset < expected:
                raise PipelineError(f"stream {stream.queue!r}: offset {offset} came after {expected - 1}")
            lost_to = min(offset, kept)
            if expected < lost_to and expected:  # a range from 0 on also stands for "nothing was there yet"
                text = (
                    f"stream {stream.queue!r}: offsets {expected} to {lost_to - 1} were removed by retention before they were "
                    f"read; the first that is there is {kept}"
                )
                if self._options.fail_on_data_loss:
                    raise PipelineError(
                        f"{text}. Keep more (x-max-age, x-max-length-bytes), or set failOnDataLoss to false"
                    )
                sys.stderr.write(f"{text}\n")  # which is where the log of a task is
            expected = offset + 1


class RangeReader(DataSourceReader, RowReader):
    """`spark.read`: all that is between two positions."""

    def partitions(self) -> Sequence[InputPartition]:
        options = self._options
        start = self._streams.offsets("startingOffsets", options.starting)
        end = self._streams.offsets("endingOffsets", options.ending)
        self._require(end)
        return self._streams.ranges(start, end) or [Range("", 0, 0, 0)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Range)
        return self.rows(partition)

    def _require(self, end: Offsets) -> None:
        """A range that ends behind the end of its stream would wait for it."""
        if self._options.ending in ("latest", "next"):
            return
        for queue, there in self._streams.offsets("endingOffsets", "latest").items():
            if end[queue] > there:
                raise PipelineError(f"endingOffsets: {end[queue]} is behind the end of stream {queue!r}, {there}")


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow, RowReader):
    """`spark.readStream`: follows growing streams. Only the copy in the long-lived process of a query has tails."""

    def __init__(self, options: StreamOptions, schema: StructType) -> None:
        super().__init__(options, schema)
        self._tails: dict[str, Tail] = {}
        self._upto: Offsets | None = None  # of a run with trigger(availableNow=True)

    def initialOffset(self) -> dict[str, Any]:
        return dict(self._streams.offsets("startingOffsets", self._options.starting))

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self._options.max_records_per_trigger)

    def prepareForTriggerAvailableNow(self) -> None:
        self._upto = {queue: tail.read_all() for queue, tail in self._following().items()}
        self._stop_following()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        match limit:
            case ReadMaxRows():
                rows = limit.max_rows
            case ReadAllAvailable():
                rows = sys.maxsize
            case _:
                rows = self._options.max_records_per_trigger
        begin = {queue: int(start.get(queue, 0)) for queue in self._streams.queues()}
        ends = self._upto if self._upto is not None else self._ends(begin, rows)
        return dict(_limited(begin, ends, rows))

    def reportLatestOffset(self) -> dict[str, Any] | None:
        if self._upto is not None:
            return dict(self._upto)
        return {queue: tail.end for queue, tail in self._tails.items()} or None

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        return self._streams.ranges(start, end)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Range)
        return self.rows(partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing is owed to the broker: it keeps its streams by size and age."""

    def stop(self) -> None:
        self._stop_following()

    def _following(self) -> dict[str, Tail]:
        if not self._tails:
            leave_on_sigterm()
            self._tails = {queue: Tail(self._streams.stream(queue)) for queue in self._streams.queues()}
        return self._tails

    def _stop_following(self) -> None:
        for tail in self._tails.values():
            tail.close()
        self._tails = {}

    def _ends(self, begin: Offsets, rows: int) -> Offsets:
        """Where the streams end now; waits `maxWaitMs` for them to grow when there is nothing to read."""
        ends = self._read_tails(begin, rows)
        if all(ends[queue] <= begin[queue] for queue in begin):
            connections = [tail.connection() for tail in self._tails.values()]
            select.select([each for each in connections if each], [], [], self._options.max_wait_ms / 1000)
            ends = self._read_tails(begin, rows)
        return ends

    def _read_tails(self, begin: Offsets, rows: int) -> Offsets:
        found = {queue: tail.read(begin[queue], begin[queue] + rows) for queue, tail in self._following().items()}
        for queue, end in found.items():
            if 0 < end < begin[queue]:
                raise PipelineError(
                    f"stream {queue!r} ends before offset {end}, and {begin[queue]} is to be read next: was it deleted and "
                    "declared again? Then the query needs a new checkpoint"
                )
        return found


def _limited(start: Offsets, ends: Mapping[str, int], rows: int) -> Offsets:
    """Ends of ranges that have so many offsets at most together, each stream as many as it has to give."""
    lags = {queue: max(ends.get(queue, 0) - first, 0) for queue, first in start.items()}
    total = sum(lags.values())
    if total <= rows:
        return {queue: first + lags[queue] for queue, first in start.items()}
    return {queue: first + -(-lags[queue] * rows // total) for queue, first in start.items()}


def leave_on_sigterm() -> None:
    """Spark ends a query's process with SIGTERM; leaving by an exception lets it call `stop`."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, _leave)


def _leave(_number: int, _frame: Any) -> None:
    sys.exit(0)
