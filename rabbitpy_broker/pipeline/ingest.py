"""Queues into tables: the job `ingest`.

    OUT/messages      what decoded: the columns of the source, codec, json, text and, with a schema, value; by queue, date, hour
    OUT/quarantine    what did not: the same columns and the reason
    OUT/_schema.json  the schema of `value`, as given or inferred
    OUT/_work/        for each queue the checkpoint and the spool

A row is in one of the two tables, once: in mode spool the batches of the source are the same when they are tried again, and
a batch is added once (table.py). What comes twice is what the broker delivers twice: a message that was on disk and not
yet acked when the job was killed. Its columns tell: it is redelivered.

date and hour are those at which the message was received, in UTC.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import quote

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn
from pyspark.sql.types import StructType

from rabbitpy_broker.pipeline import register
from rabbitpy_broker.pipeline.bodies import MAX_DECODED_BYTES, decode
from rabbitpy_broker.pipeline.errors import PipelineError
from rabbitpy_broker.pipeline.table import Files, add_batch

PARTITIONS: Final = ["queue", "date", "hour"]
BATCH: Final = 40_000  # messages, unless maxMessagesPerTrigger or maxBytesPerTrigger say less: a batch costs 0.7 s
SAMPLE: Final = 1_000  # messages of each queue, for a schema
NAME: Final = "ingest "  # how the names of the queries begin
_NOT_FITTING: Final = "_not_fitting"


@dataclass(frozen=True)
class Ingest:
    """What is wanted. `options` are the source's, without `queue`; `schema` is DDL, "infer", or "" for none."""

    queues: Sequence[str]
    out: str
    options: Mapping[str, str]
    codec: str = "auto"
    schema: str = ""
    continuous: bool = False
    parallel: int = 2
    mode: str = "spool"
    table_format: str = "parquet"
    table_options: Mapping[str, str] = field(default_factory=dict)
    max_decoded_bytes: int = MAX_DECODED_BYTES


def ingest(spark: SparkSession, job: Ingest, step: Callable[[str], Any]) -> Counts:
    """Takes the queues until each was empty once, or with `continuous` for ever; gives what it took.

    Each queue is a query of its own, with a process of its own that receives: so at most `parallel` run at a time. `step` is
    told what was done. Raises PipelineError, and what Spark raises when a query fails; the others have ended then.
    """
    register(spark)
    if len(set(job.queues)) < len(job.queues):
        raise PipelineError("a queue is named twice: its messages would be shared, not doubled")
    if not job.queues:
        raise PipelineError("there is no queue to ingest")
    schema = value_schema(spark, job)
    counts = Counts()
    try:
        waiting = deque(job.queues)
        running: list[Any] = []
        while waiting or running:
            while waiting and len(running) < job.parallel:
                running.append(_start(spark, job, waiting.popleft(), schema, counts))
            query = running.pop(0)
            query.awaitTermination()
            step(f"{counts}; {query.name} is done, {len(waiting) + len(running)} queues to go")
            if job.continuous:
                waiting.append(query.name.removeprefix(NAME))
    finally:
        for query in spark.streams.active:
            query.stop()
    return counts


@dataclass
class Counts:
    """Rows that were added to the tables, those that did not decode among them."""

    rows: int = 0
    set_aside: int = 0

    def __str__(self) -> str:
        return f"{self.rows} rows, {self.set_aside} of them set aside"


def _start(spark: SparkSession, job: Ingest, queue: str, schema: StructType | None, counts: Counts) -> Any:
    work = f"{job.out.rstrip('/')}/_work/{quote(queue, safe='')}"
    options = {**job.options, "queue": queue, "mode": job.mode}
    if not {"maxmessagespertrigger", "maxoffsetspertrigger"} & {name.lower() for name in options}:
        options["maxMessagesPerTrigger"] = str(BATCH)
    if job.mode == "spool":
        options["spoolDir"] = f"{work}/spool"
    messages = spark.readStream.format("amqp").options(**options).load()
    rows = split_columns(decode(messages, job.codec, job.max_decoded_bytes), schema)

    def add(batch: DataFrame, number: int) -> None:
        rows, set_aside = _add(batch, number, job, queue)
        counts.rows += rows
        counts.set_aside += set_aside

    writer = rows.writeStream.queryName(f"{NAME}{queue}").foreachBatch(add)
    return writer.option("checkpointLocation", f"{work}/checkpoint").trigger(availableNow=True).start()


def _add(batch: DataFrame, number: int, job: Ingest, queue: str) -> tuple[int, int]:
    """Both tables get their rows of this batch; how many there are, and how many of them do not decode."""
    batch.persist()
    try:
        total, set_aside = batch.agg(fn.count("*"), fn.count("reason")).collect()[0]
        good = batch.where("reason IS NULL").drop("reason")
        bad = batch.where("reason IS NOT NULL")
        for name, rows, count in (("messages", good, total - set_aside), ("quarantine", bad, set_aside)):
            if not count:
                continue
            table = f"{job.out.rstrip('/')}/{name}"
            if job.table_format == "parquet":
                # The partition of the queue is a table of its own: its batches have numbers of their own.
                part = f"{table}/queue={quote(queue, safe='')}"
                add_batch(rows.drop("queue"), number, part, PARTITIONS[1:])
            else:
                # What knows transactions takes a batch once by these two, as Delta does.
                once = {"txnAppId": f"{table} {queue}", "txnVersion": str(number)}
                rows.write.format(job.table_format).options(**{**once, **job.table_options}).partitionBy(
                    *PARTITIONS
                ).mode("append").save(table)
        return total, set_aside
    finally:
        batch.unpersist()


def split_columns(rows: DataFrame, schema: StructType | None) -> DataFrame:
    """Decoded rows with date and hour, and `value` where there is a schema; what does not fit it gets a reason."""
    rows = rows.withColumn("date", fn.to_date("received_at")).withColumn("hour", fn.hour("received_at"))
    if schema is None:
        return rows
    strict = StructType([*schema.fields]).add(_NOT_FITTING, "string")
    read = fn.from_json("json", strict, {"columnNameOfCorruptRecord": _NOT_FITTING})
    rows = rows.withColumn("_read", fn.when(fn.col("reason").isNull(), read))
    fits = fn.col(f"_read.{_NOT_FITTING}").isNull()
    reason = fn.when(fn.col("json").isNotNull() & ~fits, fn.lit("does not fit the schema"))
    value = fn.struct(*(fn.col("_read")[each.name].alias(each.name) for each in schema.fields))
    rows = rows.withColumn("reason", fn.coalesce("reason", reason))
    rows = rows.withColumn("value", fn.when(fn.col("json").isNotNull() & fits, value))
    others = [name for name in rows.columns if name not in {"_read", "reason"}]
    return rows.select(*others, "reason")


def value_schema(spark: SparkSession, job: Ingest) -> StructType | None:
    """The schema of `value`: that of the table if it has one, else the one that was given, else of a sample; written."""
    if not job.schema:
        return None
    files = Files(spark, job.out)
    if job.schema != "infer":
        given = StructType.fromDDL(job.schema)
        assert isinstance(given, StructType)
        files.write("_schema.json", json.loads(given.json()))
        return given
    if files.exists("_schema.json"):
        return StructType.fromJson(files.read("_schema.json"))
    texts: list[str] = []
    for queue in job.queues:
        options = {**job.options, "queue": queue, "limit": str(SAMPLE)}
        sample = decode(spark.read.format("amqp").options(**options).load(), job.codec, job.max_decoded_bytes)
        texts.extend(row.json for row in sample.where("json IS NOT NULL").select("json").collect())
    if not texts:
        raise PipelineError("there is nothing to infer a schema from: give one, or wait for messages")
    found = spark.read.json(spark.createDataFrame([(text,) for text in texts], "value STRING").rdd.map(_only)).schema
    files.write("_schema.json", json.loads(found.json()))
    return found


def _only(row: Any) -> str:
    return str(row[0])
