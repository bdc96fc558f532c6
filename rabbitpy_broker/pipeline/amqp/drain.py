"""What is in a queue, as a DataFrame, taken out of the queue when all that is done with it has succeeded."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.types import StructType

from rabbitpy_broker.pipeline.amqp import messages
from rabbitpy_broker.pipeline.amqp.options import MAX_PREFETCH, ReadOptions
from rabbitpy_broker.pipeline.amqp.receiver import last_tag
from rabbitpy_broker.pipeline.amqp.source import collected, receiver_of
from rabbitpy_broker.pipeline.errors import PipelineError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@contextlib.contextmanager
def drain(spark: SparkSession, queue: str, limit: int = 10_000, **options: str) -> Iterator[DataFrame]:
    """The messages that the queue has ready, at most `limit` (up to 65,535, what a consumer may hold unacked).

        with drain(spark, "orders", host="broker.example") as messages:
            messages.write.mode("append").parquet("/data/orders")

    They are acked when the block ends, and put back when it raises: they leave the queue at least once. They come through
    this process; for more than fits there, read a stream with trigger(availableNow=True). Options are the source's. Raises
    PipelineError, also at the end of the block when the connection was lost in the meantime and the messages were put back.
    """
    if not 1 <= limit <= MAX_PREFETCH:
        raise PipelineError(f"limit: {limit} is not from 1 to {MAX_PREFETCH}")
    read = ReadOptions.of({**options, "queue": queue})
    schema = StructType.fromDDL(messages.ddl(read.include_headers, read.headers_as))
    assert isinstance(schema, StructType)
    arrow_schema = messages.arrow_schema(schema)
    receiver = receiver_of(read, prefetch_count=limit)
    try:
        batches: list[pa.RecordBatch] = []
        generation, tag, offset = 0, 0, 0
        for generation, deliveries in collected(receiver, limit):  # noqa: B007 - used after the loop
            batches.append(messages.to_batch(deliveries, queue, offset, arrow_schema))
            offset += len(deliveries)
            tag = last_tag(deliveries)
        # createDataFrame does not take an empty Arrow table
        yield spark.createDataFrame(pa.Table.from_batches(batches) if batches else [], schema)
        if tag:
            receiver.ack(generation, tag)
            # The answer comes after the acks were handled. In another generation they were not.
            if receiver.ready() is None or receiver.generation != generation:
                raise PipelineError(
                    f"queue {queue!r}: the connection was lost before the messages were acked; they are in the queue again"
                )
    finally:
        receiver.close()
