"""How many events a second does Spark read from the broker's event journal?

    python -m perf.spark_journal --messages 6000000

Writes a journal as the broker does: publish, route, confirm, deliver and ack of so many messages in one queue. Then it counts
them by event, twice, for Java compiles during the first time. Each time every column of every record is made into Arrow: Spark
asks a Python data source for all of them. Needs the extra `spark`, 240 bytes of disk for a message and, if the package is not
compiled, a minute for the writing of six million.
"""

from __future__ import annotations

import time
from pathlib import Path

import click
import structlog
from rich.console import Console

from perf import brokers
from rabbitpy_broker.events import layout
from rabbitpy_broker.events.files import EventFiles
from rabbitpy_broker.events.journal import EventJournal, Origin
from rabbitpy_broker.message import Message
from rabbitpy_broker.pipeline import register
from rabbitpy_broker.pipeline.session import session

BATCH = 500  # messages between two writes to the journal's file
BODY = 1_000
EVENTS = 5  # of a message


def write(folder: Path, messages: int) -> None:
    files = EventFiles(folder, 256 << 20, 0, 0, structlog.get_logger())
    files.open()
    journal = EventJournal(files)
    origin = Origin(journal, journal.connection("/", "127.0.0.1:40000 -> 127.0.0.1:5672", "guest"), 1, 1)
    exchange = journal.exchange("/", "")
    queue = journal.queue("/", "orders", True, 1)
    message = Message(b"\x06orders", bytes(21 + 7 + BODY + 1), 21, True)
    for number in range(1, messages + 1):
        origin.publish(exchange, message, False, number)
        queue.route(number, 0, BODY, True, True)
        origin.confirm(number, number, True)
        queue.deliver(origin, number, 0, BODY, False, 0)
        queue.settle(layout.ACK, number, 0, 0, 0)
        if number % BATCH == 0:
            journal.flush()
    journal.flush()
    files.close()


@click.command(help=__doc__.partition("\n")[0])
@click.option("--messages", default=6_000_000, show_default=True)
@click.option("--cores", default=2, show_default=True)
def main(messages: int, cores: int) -> None:
    console = Console(highlight=False)
    with brokers.scratch() as folder:
        write(folder / "events", messages)
        spark = session("perf.spark_journal", f"local[{cores}]", {"spark.driver.memory": "1g"})
        try:
            register(spark)
            for which in ("first", "second"):
                began = time.monotonic()
                events = spark.read.format("rabbitpy-journal").load(str(folder / "events"))
                total = sum(row["count"] for row in events.groupBy("event").count().collect())
                seconds = time.monotonic() - began
                assert total == messages * EVENTS, f"{total} events were read of {messages * EVENTS}"
                console.print(f"{which} time: {total} events in {seconds:.1f} s, {total / seconds:,.0f}/s")
        finally:
            spark.stop()


if __name__ == "__main__":
    main()
