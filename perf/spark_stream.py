"""How many messages a second does Spark read from a stream?

    python -m perf.spark_stream --messages 1000000 --size 1024
    python -m perf.spark_stream --sink parquet --cores 1
    python -m perf.spark_stream --url amqp://guest:guest@127.0.0.1:5672/%2F --messages 200000

Fills a stream with messages of random bytes, and reads all of them three times: in this process alone with the reader of frames
that the source has; with a batch query; and with trigger(availableNow=True). Needs the extra `spark`, and the broker's process
shares the machine's cores with Spark.

  reader      messages by seconds of one connection without Spark, and what of it was this process's own CPU time
  batch       messages by seconds of spark.read, the whole stream in one job, with the planning
  wall        messages by seconds from the streaming query's start to its end, with the first batch's compiling
  sustained   the same from the second batch on
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pika
from rich.console import Console

from perf import brokers
from perf.spark_amqp import streaming
from rabbitpy_broker.pipeline.amqp import stream_client
from rabbitpy_broker.pipeline.amqp.options import Address
from rabbitpy_broker.pipeline.session import session

QUEUE = "perf.spark_stream"
CREDIT = 5_000


@click.command(help=__doc__.partition("\n")[0])
@click.option("--messages", default=500_000, show_default=True)
@click.option("--size", default=1024, show_default=True, help="bytes of a body")
@click.option("--own-properties", is_flag=True, help="each message has a message_id of its own")
@click.option("--sink", type=click.Choice(["parquet", "noop"]), default="noop", show_default=True)
@click.option("--batch", default=200_000, show_default=True, help="maxRecordsPerTrigger")
@click.option("--partitions", default=2, show_default=True, help="minPartitions")
@click.option("--credit", default=CREDIT, show_default=True, help="prefetchCount")
@click.option("--cores", default=2, show_default=True)
@click.option("--broker", "command", default="rabbitpy-broker", show_default=True)
@click.option("--url", default="", help="a broker that runs already")
def main(
    messages: int, size: int, own_properties: bool, sink: str, batch: int, partitions: int, credit: int, cores: int,
    command: str, url: str,
) -> None:  # fmt: skip
    console = Console(highlight=False)
    with brokers.scratch() as folder, running(command, url) as (where, build):
        console.print(build)
        fill(where, messages, size, own_properties)
        rate, own = reader(where, messages, credit)
        console.print(f"reader {messages} messages: {rate:,.0f}/s, {own * 1e6:.2f} µs of CPU each")
        spark = session("perf.spark_stream", f"local[{cores}]", {"spark.driver.memory": "1g"})
        try:
            options = {
                "url": where, "queue": QUEUE, "mode": "stream", "maxRecordsPerTrigger": batch, "minPartitions": partitions,
                "prefetchCount": credit,
            }  # fmt: skip
            console.print(f"batch  {sink}: {in_a_batch(spark, options, folder, sink):,.0f}/s")
            wall, sustained, rows = streaming(spark, options, folder, sink)
            console.print(f"stream {sink}: {rows} messages, {wall:,.0f}/s wall, {sustained:,.0f}/s sustained")
            assert rows == messages
        finally:
            spark.stop()


@contextlib.contextmanager
def running(command: str, url: str) -> Iterator[tuple[str, str]]:
    """Where the broker is, and what it says of itself."""
    if url:
        yield url, url.rpartition("@")[2]
        return
    with brokers.rabbitpy(command) as broker:
        yield broker.url, broker.build


def fill(url: str, messages: int, size: int, own_properties: bool) -> None:
    connection = pika.BlockingConnection(pika.URLParameters(url))
    channel = connection.channel()
    channel.queue_delete(QUEUE)
    channel.queue_declare(QUEUE, durable=True, arguments={"x-queue-type": "stream"})
    properties = pika.BasicProperties(delivery_mode=2, content_type="application/octet-stream", message_id="m")
    random = os.urandom(size + 4096)
    for number in range(messages):
        if own_properties:
            properties.message_id = str(number)
        if number == messages - 1:
            channel.confirm_delivery()  # when the last is confirmed, all are
        channel.basic_publish("", QUEUE, random[number % 4096 : number % 4096 + size], properties)
    connection.close()


def reader(url: str, messages: int, credit: int) -> tuple[float, float]:
    """Messages a second, and seconds of CPU for each, of one connection that reads the whole stream."""
    stream = stream_client.Stream(Address(url=url).parameters(), QUEUE, attempts=1, retry_delay_s=0)
    began, used = time.monotonic(), time.process_time()
    count = sum(len(part.offsets) for part in stream_client.messages(stream, 0, messages, credit, 10_000, 1 << 24))
    assert count == messages
    return messages / (time.monotonic() - began), (time.process_time() - used) / messages


def in_a_batch(spark: Any, options: dict[str, Any], folder: Path, sink: str) -> float:
    """Messages a second of the second of two jobs; the first brings Spark's processes to life."""
    rate = 0.0
    for attempt in range(2):
        began = time.monotonic()
        writer = spark.read.format("amqp").options(**options).load().write.format(sink).mode("overwrite")
        writer.save(str(folder / f"batch{attempt}")) if sink == "parquet" else writer.save()
        rate = time.monotonic() - began
    return messages_of(options) / rate


def messages_of(options: dict[str, Any]) -> int:
    stream = stream_client.Stream(Address(url=options["url"]).parameters(), QUEUE, attempts=1, retry_delay_s=0)
    with contextlib.closing(stream_client.Tail(stream)) as tail:
        return tail.read_all()


if __name__ == "__main__":
    main()
