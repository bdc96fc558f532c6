"""How many messages a second does Spark take out of a queue, and put into one?

    python -m perf.spark_amqp --messages 500000 --size 1024
    python -m perf.spark_amqp --mode direct --sink noop

Fills a durable queue with persistent messages of random bytes; reads all of them with trigger(availableNow=True) into a
Parquet table, or nowhere; and then publishes as many rows from a batch query into another queue, with confirms. Needs the extra
`spark`, and the broker's process shares the machine's cores with Spark.

  wall        messages by seconds from the query's start to its end, with the first batch's compiling
  sustained   the same from the second batch on
"""

from __future__ import annotations

import os
import time
from datetime import datetime
from pathlib import Path
from typing import Any

import click
import pika
from rich.console import Console

from perf import brokers
from rabbitpy_broker.pipeline.session import session


@click.command(help=__doc__.partition("\n")[0])
@click.option("--messages", default=500_000, show_default=True)
@click.option("--size", default=1024, show_default=True, help="bytes of a body")
@click.option("--mode", type=click.Choice(["spool", "direct"]), default="spool", show_default=True)
@click.option("--sink", type=click.Choice(["parquet", "noop"]), default="parquet", show_default=True)
@click.option("--batch", default=30_000, show_default=True, help="maxMessagesPerTrigger")
@click.option("--headers/--no-headers", default=False, show_default=True)
@click.option("--cores", default=2, show_default=True)
@click.option("--broker", "command", default="rabbitpy-broker", show_default=True)
def main(
    messages: int, size: int, mode: str, sink: str, batch: int, headers: bool, cores: int, command: str
) -> None:
    console = Console(highlight=False)
    with brokers.scratch() as folder, brokers.rabbitpy(command) as broker:
        fill(broker.url, messages, size, headers)
        spark = session("perf.spark_amqp", f"local[{cores}]", {"spark.driver.memory": "1g"})
        try:
            wall, sustained, rows = read(spark, broker.url, folder, mode, sink, batch)
            console.print(broker.build)
            console.print(f"read   {mode}, {sink}: {rows} messages, {wall:,.0f}/s wall, {sustained:,.0f}/s sustained")
            console.print(f"write  {messages} rows: {write(spark, broker.url, messages, size):,.0f}/s wall")
        finally:
            spark.stop()


def fill(url: str, messages: int, size: int, headers: bool) -> None:
    connection = pika.BlockingConnection(pika.URLParameters(url))
    channel = connection.channel()
    for queue in ("in", "out"):
        channel.queue_declare(queue, durable=True)
    properties = pika.BasicProperties(
        delivery_mode=2,
        content_type="application/octet-stream",
        message_id="m",
        headers={"tenant": "a", "attempt": 3, "tags": ["x", "y"]} if headers else None,
    )
    random = os.urandom(size + 4096)
    for number in range(messages):
        channel.basic_publish("", "in", random[number % 4096 : number % 4096 + size], properties)
    channel.queue_declare("in", passive=True)
    connection.close()


def read(spark: Any, url: str, folder: Path, mode: str, sink: str, batch: int) -> tuple[float, float, int]:
    """Takes all of the queue: as `streaming`."""
    options: dict[str, Any] = {"url": url, "queue": "in", "maxMessagesPerTrigger": batch}
    if mode == "spool":
        options["spoolDir"] = str(folder / "spool")
    return streaming(spark, options, folder, sink)


def streaming(spark: Any, options: dict[str, Any], folder: Path, sink: str) -> tuple[float, float, int]:
    """Messages a second with and without the first batch, and how many there were."""
    writer = spark.readStream.format("amqp").options(**options).load().writeStream.format(sink)
    writer = writer.option("checkpointLocation", str(folder / "checkpoint")).trigger(availableNow=True)
    began = time.monotonic()
    query = writer.start(str(folder / "out")) if sink == "parquet" else writer.start()
    query.awaitTermination()
    seconds = time.monotonic() - began
    batches = [progress for progress in query.recentProgress if progress["numInputRows"]]
    rows = sum(progress["numInputRows"] for progress in batches)
    first, second, last = batches[0], batches[1], batches[-1]
    sustained_s = started(last) + last["batchDuration"] / 1000 - started(second)
    return rows / seconds, (rows - first["numInputRows"]) / sustained_s, rows


def started(progress: Any) -> float:
    return datetime.fromisoformat(progress["timestamp"]).timestamp()


def write(spark: Any, url: str, messages: int, size: int) -> float:
    """Rows a second."""
    rows = spark.range(0, messages, numPartitions=2).selectExpr(f"CAST(repeat('x', {size}) AS BINARY) AS body")
    began = time.monotonic()
    rows.write.format("amqp").options(url=url, exchange="", routingKey="out").mode("append").save()
    return messages / (time.monotonic() - began)


if __name__ == "__main__":
    main()
