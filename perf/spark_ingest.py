"""A day's worth of queues into a lake: is every message in a table, once, and what does it cost?

    python -m perf.spark_ingest --queues 100 --messages 200000
    python -m perf.spark_ingest --queues 1 --messages 500000 --codec json     how fast the job is with one queue

Fills so many durable queues, in turns JSON, MessagePack, Celery tasks, text and bytes, one body in a hundred broken; runs the job
`ingest` in a process of its own; fills them again, but for some that have gone and some that are new, and runs it again. Then
it counts, for each queue: rows in `messages` and in `quarantine`, and the acks that the broker's event journal has. It fails
unless they are what was published. Memory is the highest sum of the resident memory of Spark's processes, Java's and Python's.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import click
import msgspec
import pika
import pyarrow.parquet as pq
from rich.console import Console
from rich.table import Table

from perf import brokers
from rabbitpy_broker.events import layout
from rabbitpy_broker.pipeline.journal import segments
from rabbitpy_broker.pipeline.journal.source import RecordRange, read_range

CODECS = ("json", "msgpack", "celery", "text", "binary")
BROKEN = 100  # one in so many, but for bytes, which cannot be
PADDING = "x" * 900


def body_of(codec: str, number: int) -> tuple[bytes, dict[str, Any]]:
    """A sound body, and the properties that tell what it is."""
    value = {"id": number, "name": f"customer {number % 97}", "price": number / 7, "tags": ["a", "b"], "padding": PADDING}
    if codec == "json":
        return json.dumps(value).encode(), {"content_type": "application/json"}
    if codec == "msgpack":
        return msgspec.msgpack.encode(value), {"content_type": "application/x-msgpack"}
    if codec == "celery":
        body = json.dumps([[number], value, {"callbacks": None, "errbacks": None, "chain": None, "chord": None}]).encode()
        headers = {"task": "shop.tasks.ship", "id": f"{number:032x}", "lang": "py"}
        return body, {"content_type": "application/json", "content_encoding": "utf-8", "headers": headers}
    if codec == "text":
        return f"{number} {PADDING}".encode(), {"content_type": "text/plain"}
    return os.urandom(64) + number.to_bytes(8, "big"), {"content_type": "application/octet-stream"}


def fill(url: str, plan: dict[str, str], each: int, first: int) -> tuple[Counter[str], Counter[str]]:
    """Publishes to each queue by its codec; sound and broken messages by queue."""
    sound: Counter[str] = Counter()
    broken: Counter[str] = Counter()
    connection = pika.BlockingConnection(pika.URLParameters(url))
    channel = connection.channel()
    for queue, codec in plan.items():
        channel.queue_declare(queue, durable=True)
        for number in range(first, first + each):
            body, properties = body_of(codec, number)
            is_broken = codec != "binary" and number % BROKEN == 0
            if is_broken:
                body = b"\xff" + body[: len(body) // 2]
            (broken if is_broken else sound)[queue] += 1
            channel.basic_publish("", queue, body, pika.BasicProperties(delivery_mode=2, **properties))
        channel.queue_declare(queue, passive=True)
    connection.close()
    return sound, broken


def ingest(url: str, queues: list[str], lake: Path, parallel: int, batch: int, memory: str) -> tuple[float, int]:
    """Seconds, and the highest sum of resident memory in KiB."""
    command = [sys.executable, "-m", "rabbitpy_broker.pipeline.cli", "--master", "local[2]"]
    command += ["--conf", f"spark.driver.memory={memory}", "ingest", str(lake)]
    command += ["--url", url, "--queues", "-", "--parallel", str(parallel)]
    if batch:
        command += ["--option", f"maxMessagesPerTrigger={batch}"]
    began = time.monotonic()
    peak = 0
    log = lake.parent / "ingest.log"
    with log.open("ab") as output:
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=output, stderr=output, start_new_session=True)
        assert process.stdin is not None
        process.stdin.write("\n".join(queues).encode())
        process.stdin.close()
        while process.poll() is None:
            peak = max(peak, sum(map(rss_kib, brokers.session_members(process.pid))))
            time.sleep(0.2)
    if process.returncode != 0:
        raise click.ClickException(log.read_text(errors="replace")[-4000:])
    return time.monotonic() - began, peak


def rss_kib(process: int) -> int:
    try:
        return brokers.status_kib(process, "VmRSS")
    except (OSError, ValueError):  # it has just ended
        return 0


def acked(folder: Path) -> Counter[str]:
    """Acks by queue, as the broker's event journal says."""
    found: Counter[str] = Counter()
    names = {(one["boot"], one["id"]): one["name"] for one in segments.names(folder)}
    for piece in segments.ranges(folder, segments.begin(folder), segments.end(folder), 1 << 30):
        boot = segments.header(folder, piece.segment).boot
        for batch in read_range(RecordRange(str(folder), piece, must_be_there=True)):
            acks = batch.filter(batch.column("event").to_numpy() == int(layout.ACK))
            found.update(names[boot, queue] for queue in acks.column("queue").to_pylist())
    return found


def rows(table: Path) -> Counter[str]:
    """Rows by queue of a table."""
    found: Counter[str] = Counter()
    for file in table.glob("queue=*/**/*.parquet"):
        if not any(part.startswith("_") for part in file.relative_to(table).parts):
            found[file.relative_to(table).parts[0].removeprefix("queue=")] += pq.read_metadata(file).num_rows
    return found


@click.command(help=__doc__.partition("\n")[0])
@click.option("--queues", "count", default=100, show_default=True)
@click.option("--messages", default=200_000, show_default=True, help="in all, in each of the two rounds a half")
@click.option("--codec", type=click.Choice(["mixed", *CODECS]), default="mixed", show_default=True)
@click.option("--parallel", default=2, show_default=True)
@click.option("--batch", default=0, help="maxMessagesPerTrigger; default: the job's own")
@click.option("--memory", default="1g", show_default=True, help="of the driver's Java heap")
@click.option("--broker", "command", default="rabbitpy-broker", show_default=True)
def main(count: int, messages: int, codec: str, parallel: int, batch: int, memory: str, command: str) -> None:
    console = Console()
    codecs = CODECS if codec == "mixed" else (codec,)
    plans = {f"day-{at:03}": codecs[at % len(codecs)] for at in range(count + count // 5)}
    with brokers.scratch() as folder:
        config = f'event_journal = "on"\nevent_journal_dir = "{folder}/events"\n'
        with brokers.rabbitpy(command, config=config) as broker:
            names = list(plans)
            first = {name: plans[name] for name in names[:count]}
            later = {name: plans[name] for name in names[count // 5 :]}
            each = messages // 2 // count
            lake = folder / "lake"
            sound: Counter[str] = Counter()
            broken: Counter[str] = Counter()
            seconds, peaks = [], []
            for number, plan in enumerate((first, later)):
                good, bad = fill(broker.url, plan, each, number * each)
                sound, broken = sound + good, broken + bad
                took, peak = ingest(broker.url, list(plan), lake, parallel, batch, memory)
                seconds.append(took)
                peaks.append(peak)
                if number == 0:
                    with pika.BlockingConnection(pika.URLParameters(broker.url)) as connection:
                        for queue in first.keys() - later.keys():
                            connection.channel().queue_delete(queue)
            time.sleep(0.3)  # the journal is written every 100 ms
            table = Table("", "rows", title=f"{count} queues, {codec}")
            table.add_row("published, sound", str(sound.total()))
            table.add_row("in messages", str(rows(lake / "messages").total()))
            table.add_row("published, broken", str(broken.total()))
            table.add_row("in quarantine", str(rows(lake / "quarantine").total()))
            table.add_row("acked, as the broker says", str(acked(folder / "events").total()))
            table.add_row("seconds of the two rounds", ", ".join(f"{one:.0f}" for one in seconds))
            table.add_row("rows a second, with the start", ", ".join(f"{messages / 2 / one:,.0f}" for one in seconds))
            table.add_row("memory of Spark's processes (MiB)", ", ".join(f"{one / 1024:,.0f}" for one in peaks))
            console.print(table)
            assert rows(lake / "messages") == sound, "messages"
            assert rows(lake / "quarantine") == broken, "quarantine"
            assert acked(folder / "events") == sound + broken, "acks"


if __name__ == "__main__":
    main()
