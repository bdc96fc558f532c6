"""A table's messages to an exchange: the job `replay`.

The columns of the table are the properties of the messages, as the format `amqp` has them: what `ingest` wrote goes out as it
came in, but for what only says how it came (offset, received_at, redelivered, queue) and for user_id, which a broker takes from
that user only. A message that was sent has been
confirmed, and gone to a queue unless `mandatory` is off; a job that fails may have sent some, and sends them again when it
is run again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from rabbitpy_broker.pipeline import register
from rabbitpy_broker.pipeline.amqp.messages import PROPERTIES
from rabbitpy_broker.pipeline.errors import PipelineError

SENT: Final = ("body", "exchange", "routing_key", *(name for name, _ in PROPERTIES if name != "user_id"), "headers")
ORDER: Final = ("received_at", "offset")


def replay(
    spark: SparkSession, table: str, options: Mapping[str, str], where: str = "", rate: float = 0.0, table_format: str = "parquet"
) -> int:
    """Sends every row for which `where` is true, oldest first; gives their number. Raises PipelineError.

    `options` are the sink's. `rate` is in messages a second, 0 for as fast as can be; with a rate everything goes by one task.
    """
    register(spark)
    rows = spark.read.format(table_format).load(table)
    if where:
        rows = rows.where(where)
    if "body" not in rows.columns:
        raise PipelineError(f"{table}: there is no column body")
    order = [name for name in ORDER if name in rows.columns]
    total = rows.count()
    if rate > 0:
        rows = rows.orderBy(*order).coalesce(1) if order else rows.coalesce(1)
        rows = rows.mapInArrow(_throttled(rate), rows.schema)
    elif order:
        rows = rows.sortWithinPartitions(*order)
    _sent(rows, options).write.format("amqp").options(**options).mode("append").save()
    return total


def _throttled(rate: float) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """For mapInArrow: hands on what a tenth of a second has room for, and waits until it is over."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        size = max(1, int(rate / 10))
        sent = 0
        began = time.monotonic()
        for batch in batches:
            for at in range(0, batch.num_rows, size):
                part = batch.slice(at, size)
                yield part
                sent += part.num_rows
                time.sleep(max(0.0, began + sent / rate - time.monotonic()))

    return run


def _sent(rows: DataFrame, options: Mapping[str, str]) -> DataFrame:
    given = {"exchange": "exchange" in options, "routing_key": "routingKey" in options}
    return rows.select(*(name for name in SENT if name in rows.columns and not given.get(name)))
