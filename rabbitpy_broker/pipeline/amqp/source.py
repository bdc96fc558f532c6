"""The format `amqp`: streaming and batch reading from a queue, batch and streaming writing to an exchange.

Mode `stream` stands in stream_source.py; what follows is about queues that a message leaves when it is acked.

Spark makes a reader of a stream several times. One lives as long as the query, in a process of its own on the driver's
machine; it alone has a receiver, from the first call that needs one. The copies that `read` in executors have nothing but the
options and a partition. So `__init__` opens nothing.

When a message is acked decides what a crash loses. What must stay true:

- In mode `direct` a message is acked when Spark has committed the batch that it was in. Spark tells that with the `start` of
  the next `latestOffset`, which comes even when nothing more is to be read; `commit` comes only when there is a next batch.
- In mode `spool` a message is acked when it is on disk; `start` then says which segments can go.
- `latestOffset` never goes back, and `partitions` gives the same for the same range as often as it is asked.
- After a restart Spark asks again for a range that it has planned but not committed. In mode `spool` that is on disk. In mode
  `direct` it is empty: those messages were never acked, so the broker sends them again, under later offsets.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, MutableMapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from rabbitpy_broker.pipeline.amqp import messages, spool
from rabbitpy_broker.pipeline.amqp.messages import Delivery
from rabbitpy_broker.pipeline.amqp.options import ReadOptions, StreamOptions, WriteOptions
from rabbitpy_broker.pipeline.amqp.receiver import Receiver, fitting, last_tag
from rabbitpy_broker.pipeline.amqp.spool import Spool, Spooler
from rabbitpy_broker.pipeline.amqp.stream_source import RangeReader, StreamReader, leave_on_sigterm
from rabbitpy_broker.pipeline.errors import PipelineError

if TYPE_CHECKING:
    from rabbitpy_broker.pipeline.amqp.sink import AmqpStreamWriter, AmqpWriter

NAME: Final = "amqp"
OFFSET: Final = "offset"
# Spark refuses a task, which holds its partition in mode `direct`, of more than spark.rpc.message.maxSize, 128 MiB.
PARTITION_BYTES: Final = 48 * 1024 * 1024
ROWS_PER_BATCH: Final = 10_000
# A bounded run gives up when the queue has messages and sends none for so long.
NOTHING_COMES_TIMEOUT_S: Final = 30.0


class AmqpSource(DataSource):
    """`spark.readStream.format("amqp").option("queue", "orders")`; options: see this package's docstring."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self.options = options

    def schema(self) -> str:
        is_stream = StreamOptions.asked_for(self.options)
        options = (StreamOptions if is_stream else ReadOptions).of(self.options)
        return messages.ddl(options.include_headers, options.headers_as, is_stream)

    def reader(self, schema: StructType) -> DataSourceReader:
        if StreamOptions.asked_for(self.options):
            return RangeReader(StreamOptions.of(self.options), schema)
        return PeekReader(ReadOptions.of(self.options), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        if StreamOptions.asked_for(self.options):
            return StreamReader(StreamOptions.of(self.options), schema)
        options = ReadOptions.of(self.options)
        return SpoolReader(options, schema) if options.mode == "spool" else DirectReader(options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> AmqpWriter:
        from rabbitpy_broker.pipeline.amqp.sink import AmqpWriter

        return AmqpWriter(WriteOptions.of(self.options), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> AmqpStreamWriter:
        from rabbitpy_broker.pipeline.amqp.sink import AmqpStreamWriter

        return AmqpStreamWriter(WriteOptions.of(self.options), schema)


def receiver_of(options: ReadOptions, prefetch_count: int | None = None) -> Receiver:
    """A receiver as the options describe it, not started."""
    return Receiver(
        options.address,
        options.queue,
        prefetch_count or options.prefetch_count,
        options.connection_attempts,
        options.retry_delay_ms / 1000,
        options.consumer_tag,
        options.consumer_priority,
    )


class QueueStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """What both modes have in common: the receiver's life, the limits, and when a bounded run is at its end."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._schema = messages.arrow_schema(schema)
        self._receiver: Receiver | None = None
        self._ready_at_start = 0
        self._is_bounded = False  # a run with trigger(availableNow=True)
        self._target: int | None = None  # its last offset, once it is known

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self._options.max_messages_per_trigger)

    def prepareForTriggerAvailableNow(self) -> None:
        self._is_bounded = True
        self._receiving()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        max_rows, max_bytes = self._limits(limit)
        receiver = self._receiving()
        receiver.check()
        first = int(start[OFFSET])
        begin = self._begin(first)
        self._committed(first)
        if self._is_bounded and self._target is None:
            self._target = begin + self._ready_at_start
        if self._target is not None:
            max_rows = min(max_rows, self._target - first)
        end = self._end_within(first, max_rows, max_bytes) if max_rows > 0 else first
        if end == first and self._target is not None:
            return {OFFSET: self._end_of_bounded_run(first, max_rows, max_bytes)}
        return {OFFSET: end}

    def reportLatestOffset(self) -> dict[str, Any] | None:
        return {OFFSET: self._known_end()} if self._receiver is not None else None

    def commit(self, end: dict[str, Any]) -> None:
        self._committed(int(end[OFFSET]))

    def stop(self) -> None:
        if self._receiver is not None:
            self._receiver.close()
            self._receiver = None

    def _receiving(self) -> Receiver:
        """The receiver, started when there is none yet. Only the long-lived process of a query comes here."""
        if self._receiver is None:
            leave_on_sigterm()
            receiver = receiver_of(self._options)
            self._ready_at_start = receiver.start()
            self._receiver = receiver
        return self._receiver

    def _limits(self, limit: ReadLimit) -> tuple[int, int]:
        """Rows and bytes."""
        match limit:
            case ReadMaxRows():
                return limit.max_rows, self._options.max_bytes_per_trigger
            case ReadMaxBytes():
                return self._options.max_messages_per_trigger, limit.max_bytes
            case ReadAllAvailable():
                raise PipelineError(
                    "trigger(once=True) would never ack what it has read; use trigger(availableNow=True)"
                )
        raise PipelineError(f"a limit that this source does not know: {limit}")

    def _end_of_bounded_run(self, first: int, max_rows: int, max_bytes: int) -> int:
        """Nothing came in time: either the broker is slow, or it has nothing more, though it had when the run began."""
        receiver = self._receiving()
        deadline = time.monotonic() + NOTHING_COMES_TIMEOUT_S
        while max_rows > 0:
            ready = receiver.ready()
            is_over = ready == 0 and self._has_planned_all()
            end = self._end_within(first, max_rows, max_bytes)
            if end > first:
                return end
            if is_over:  # the rest has expired, or another consumer has it
                break
            if time.monotonic() > deadline:
                raise PipelineError(
                    f"queue {self._options.queue!r} has {ready} messages ready and sends none of them here. Is there "
                    "another consumer of a higher priority, or a single active one?"
                )
        self._target = first
        receiver.ready()  # the broker has handled all acks before it answers; then this process may be ended
        return first

    # --- what the modes do each in its way -----------------------------------------------------------------------------------

    def _begin(self, start: int) -> int:
        """Called before anything else, each time, with the end of what Spark has committed.

        Returns the offset of the first message that this process has received, or will.
        """
        raise NotImplementedError

    def _committed(self, offset: int) -> None:
        """Everything below is done with."""
        raise NotImplementedError

    def _known_end(self) -> int:
        """The offset after the last message that has come in."""
        raise NotImplementedError

    def _has_planned_all(self) -> bool:
        """True when no message is here that `_end_within` does not know."""
        raise NotImplementedError

    def _end_within(self, start: int, max_rows: int, max_bytes: int) -> int:
        """The end of the next batch, after a wait of `maxWaitMs` at most; `start` when there is nothing."""
        raise NotImplementedError


# --- spool -------------------------------------------------------------------------------------------------------------------


@dataclass
class SpoolPartition(InputPartition):
    slices: list[spool.Slice]


class SpoolReader(QueueStreamReader):
    """Messages go to disk first, and from there to Spark."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        super().__init__(options, schema)
        self._spool: Spool | None = None
        self._spooler: Spooler | None = None
        self._first = 0

    def initialOffset(self) -> dict[str, Any]:
        return {OFFSET: self._locked().base or 0}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        first, last = int(start[OFFSET]), int(end[OFFSET])
        slices = self._locked().slices(first, last)
        found = sum(part.count for part in slices)
        if found != last - first and self._options.fail_on_data_loss:
            raise PipelineError(
                f"spoolDir {self._options.spool_dir}: of the messages {first} to {last} only {found} are there. Was the "
                "folder emptied, or is it not the one of this checkpoint? failOnDataLoss=false goes on without them"
            )
        return [SpoolPartition(part) for part in _spread(slices, self._options.num_partitions)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, SpoolPartition)
        return spool.read(partition.slices)

    def stop(self) -> None:
        if self._spooler is not None:
            self._spooler.stop()
        super().stop()
        if self._spool is not None:
            self._spool.unlock()

    def _locked(self) -> Spool:
        if self._spool is None:
            self._spool = Spool(self._options.spool_dir)
        self._spool.lock()
        return self._spool

    def _receiving(self) -> Receiver:
        self._locked()  # before anything is taken from the queue
        return super()._receiving()

    def _begin(self, start: int) -> int:
        if self._spooler is None:
            kept = self._locked()
            self._first = max(start, kept.end or 0)
            self._spooler = Spooler(
                self._receiving(),
                kept,
                self._first,
                self._options.queue,
                self._schema,
                min(self._options.segment_rows, self._options.prefetch_count),
                self._options.max_spool_bytes,
            )
        return self._first

    def _committed(self, offset: int) -> None:
        if self._spool is not None:
            self._spool.forget(offset)

    def _known_end(self) -> int:
        return self._spooler.end if self._spooler is not None else 0

    def _has_planned_all(self) -> bool:
        return self._spooler is not None and self._spooler.is_idle()

    def _end_within(self, start: int, max_rows: int, max_bytes: int) -> int:
        assert self._spooler is not None
        if self._spooler.wait(start + max_rows, self._options.max_wait_ms / 1000) <= start:
            return start
        return self._locked().limited(start, max_rows, max_bytes)


def _spread(slices: Sequence[spool.Slice], count: int) -> list[list[spool.Slice]]:
    """The slices in at most so many groups of about the same number of messages, in order."""
    total = sum(part.count for part in slices)
    groups: list[list[spool.Slice]] = []
    each = -(-total // count) or 1
    room = 0
    for part in slices:
        skip, left = part.skip, part.count
        while left:
            if not room:
                groups.append([])
                room = each
            taken = min(left, room)
            groups[-1].append(spool.Slice(part.path, skip, taken))
            skip, left, room = skip + taken, left - taken, room - taken
    return groups


# --- direct ------------------------------------------------------------------------------------------------------------------


@dataclass
class DirectPartition(InputPartition):
    stream: bytes  # Arrow IPC


@dataclass
class Chunk:
    """Deliveries of one generation that batches were planned with, from the offset `base` on."""

    generation: int
    base: int
    deliveries: list[Delivery]

    @property
    def end(self) -> int:
        return self.base + len(self.deliveries)


class DirectReader(QueueStreamReader):
    """Messages go to the executors inside their partitions, and stay in the queue unacked until Spark has committed them."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        super().__init__(options, schema)
        self._planned: list[Chunk] = []
        self._first = 0
        self._end = -1  # of what has been planned

    def initialOffset(self) -> dict[str, Any]:
        return {OFFSET: 0}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        first, last = int(start[OFFSET]), int(end[OFFSET])
        rows = -(-(last - first) // self._options.num_partitions) or 1
        made: list[InputPartition] = []
        for chunk in self._planned:
            deliveries = chunk.deliveries[max(first - chunk.base, 0) : max(last - chunk.base, 0)]
            base = max(first, chunk.base)
            while deliveries:
                taken = deliveries[: fitting(deliveries[:rows], PARTITION_BYTES)]
                made.append(DirectPartition(self._stream(taken, base)))
                deliveries, base = deliveries[len(taken) :], base + len(taken)
        return made

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, DirectPartition)
        with pa.ipc.open_stream(partition.stream) as reader:
            yield from reader

    def _stream(self, deliveries: Sequence[Delivery], base: int) -> bytes:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, self._schema) as writer:
            for position in range(0, len(deliveries), ROWS_PER_BATCH):
                part = deliveries[position : position + ROWS_PER_BATCH]
                writer.write_batch(messages.to_batch(part, self._options.queue, base + position, self._schema))
        stream: bytes = sink.getvalue().to_pybytes()
        return stream

    def _begin(self, start: int) -> int:
        if self._end < 0:
            self._first = self._end = start
        return self._first

    def _committed(self, offset: int) -> None:
        while self._planned and self._planned[0].base < offset:
            chunk = self._planned[0]
            done = chunk.deliveries[: offset - chunk.base]
            assert self._receiver is not None
            self._receiver.ack(chunk.generation, last_tag(done))
            if len(done) == len(chunk.deliveries):
                del self._planned[0]
            else:
                self._planned[0] = Chunk(chunk.generation, offset, chunk.deliveries[len(done) :])

    def _known_end(self) -> int:
        return max(self._end, 0)

    def _has_planned_all(self) -> bool:
        return self._receiver is not None and self._receiver.waiting() == 0

    def _end_within(self, start: int, max_rows: int, max_bytes: int) -> int:
        if self._end > start:  # planned, but Spark has not come so far
            return self._end
        receiver = self._receiving()
        receiver.wait(min(max_rows, self._options.prefetch_count), self._options.max_wait_ms / 1000)
        generation, deliveries = receiver.take(max_rows, max_bytes)
        if deliveries:
            self._planned.append(Chunk(generation, self._end, deliveries))
            self._end += len(deliveries)
        return self._end


# --- batch -------------------------------------------------------------------------------------------------------------------


class PeekReader(DataSourceReader):
    """A look at what is in the queue: at most `limit` messages, none of them acked; all are back in the queue afterwards.

    Spark never tells a batch reader that its job has succeeded, so there is no moment at which it could ack. One partition:
    a second one would see again what the first has put back.
    """

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._schema = messages.arrow_schema(schema)

    def partitions(self) -> Sequence[InputPartition]:
        return [InputPartition(None)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        receiver = receiver_of(self._options, prefetch_count=self._options.limit)
        try:
            offset = 0
            for _, deliveries in collected(receiver, self._options.limit):
                yield messages.to_batch(deliveries, self._options.queue, offset, self._schema)
                offset += len(deliveries)
        finally:
            receiver.close()


def collected(receiver: Receiver, limit: int) -> Iterator[tuple[int, list[Delivery]]]:
    """What the queue has ready now, up to the limit, in parts, each with its generation. Raises PipelineError.

    Starts the receiver, which the caller closes.
    """
    remaining = min(receiver.start(), limit)
    generation = receiver.generation
    while remaining > 0:
        if receiver.wait(min(remaining, ROWS_PER_BATCH), timeout_s=1.0) == 0:
            ready = receiver.ready()
            if ready == 0 and receiver.waiting() == 0:
                return  # the rest has expired, or another consumer has it
            continue
        taken_generation, deliveries = receiver.take(min(remaining, ROWS_PER_BATCH), spool.SEGMENT_BYTES)
        if taken_generation != generation:
            raise PipelineError("the connection was lost while messages came in; the broker has put them back")
        remaining -= len(deliveries)
        yield generation, deliveries
