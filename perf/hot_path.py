"""What a message costs inside the broker, without sockets: one compiled tree beside another, in turns.

    python -m perf.hot_path OLD NEW

OLD and NEW are checkouts (or copies) in which the package has been compiled in place; see perf/README.md. Each is driven
in a process of its own through its own `tests/sans_io.py`: bytes go in by `Connection.receive_data`, and a turn follows.
The figure is the tenth percentile of the CPU time of some hundred turns of 256 messages, in ns a message; the best of the
repetitions counts, since whatever else runs on the machine can only add to it.

With --holes memory is as in a process that has lived: of objects of each small size one of twenty has been given back, all over.
What a message is made of then lies in as many places as it has parts.
"""

from __future__ import annotations

import functools
import gc
import json
import os
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

BATCH = 256
TURNS = 300
BACKLOG_TURNS = 20
HOLES_OF = range(48, 177, 16)  # bytes: the sizes of what messages are made of
HOLES_IN = 8 << 20  # bytes for each of the sizes
HOLE_EACH = 20


def with_holes() -> list[list[bytes | None]]:
    """What keeps the holes apart."""
    head = sys.getsizeof(b"")
    kept: list[list[bytes | None]] = []
    for size in HOLES_OF:
        objects: list[bytes | None] = [bytes(bytearray(size - head)) for _ in range(HOLES_IN // size)]
        objects[::HOLE_EACH] = [None] * len(objects[::HOLE_EACH])
        kept.append(objects)
    return kept


def drive(holes: bool = False) -> dict[str, float]:
    """Every scenario in the package that is on the path, with the `sans_io` of its tests."""
    from pamqp.commands import Basic, Confirm, Queue

    from sans_io import SansIOBroker, content, frame, method

    def publishes(size: int) -> bytes:
        return (method(1, Basic.Publish(exchange="", routing_key="q")) + content(1, b"x" * size)) * BATCH

    def through(confirms: bool, acks: bool, size: int, arguments: dict[str, str] | None = None) -> float:
        broker = SansIOBroker()
        producer, consumer = broker.connect(), broker.connect()
        producer.open_channel(1)
        consumer.open_channel(1)
        producer.call(1, Queue.Declare(queue="q", arguments=arguments))
        if confirms:
            producer.call(1, Confirm.Select())
        consumer.feed(method(1, Basic.Consume(queue="q", no_ack=not acks)))
        data = publishes(size)
        times = []
        for turn in range(TURNS):
            tags = range(turn * BATCH + 1, (turn + 1) * BATCH + 1) if acks else ()
            settles = b"".join(frame(1, 1, b"\x00\x3c\x00\x50" + struct.pack(">QB", tag, 0)) for tag in tags)
            began = time.process_time_ns()
            producer.connection.receive_data(data)
            broker.run()
            if settles:
                consumer.connection.receive_data(settles)
                broker.run()
            times.append(time.process_time_ns() - began)
            producer.transport.take()
            consumer.transport.take()
        return sorted(times)[TURNS // 10] / BATCH

    def backlog(size: int) -> tuple[float, float]:
        broker = SansIOBroker()
        producer = broker.connect()
        producer.open_channel(1)
        producer.call(1, Queue.Declare(queue="q"))
        queue = broker.vhost.queues["q"]
        data = publishes(size)
        published, fetched = [], []
        for _ in range(TURNS // 8):
            began = time.process_time_ns()
            for _ in range(BACKLOG_TURNS):
                producer.connection.receive_data(data)
                broker.run()
            half = time.process_time_ns()
            while (status := queue.get()) is not None:
                queue.ack(status)
            published.append(half - began)
            fetched.append(time.process_time_ns() - half)
        count = BATCH * BACKLOG_TURNS
        return sorted(published)[len(published) // 10] / count, sorted(fetched)[len(fetched) // 10] / count

    gc.disable()
    kept = with_holes() if holes else []
    found = {
        "12 B, auto-ack": through(False, False, 12),
        "12 B, confirms, ack each": through(True, True, 12),
        "1,500 B, confirms, ack each": through(True, True, 1_500),
        "1,500 B, confirms by consumers' acks": through(
            True, True, 1_500, {"x-confirm-mode": "consumer-ack"}
        ),
    }
    found["12 B, publish to a queue without consumers"], found["get and ack it"] = backlog(12)
    del kept
    return found


def measure(tree: Path, holes: bool = False) -> dict[str, float]:
    """`drive` in a process that imports from this tree."""
    path = os.pathsep.join(map(str, (tree, tree / "tests")))
    code = f"import runpy, json; print(json.dumps(runpy.run_path({str(Path(__file__).resolve())!r})['drive']({holes})))"
    environment = {**os.environ, "PYTHONPATH": path, "PYTHONSAFEPATH": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE, check=True, timeout=600
    )
    found: dict[str, float] = json.loads(done.stdout)
    return found


def compare(old: Path, new: Path, repetitions: int, measure: Callable[[Path], dict[str, float]] = measure) -> Table:
    """Both in turns; the best of each."""
    best: tuple[dict[str, float], dict[str, float]] = ({}, {})
    for repetition in range(repetitions):
        order = ((0, old), (1, new)) if repetition % 2 == 0 else ((1, new), (0, old))
        for which, tree in order:
            for name, nanoseconds in measure(tree).items():
                best[which][name] = min(best[which].get(name, nanoseconds), nanoseconds)
    table = Table("ns a message")
    for heading in ("old", "new", "new / old"):
        table.add_column(heading, justify="right")
    for name in best[0]:
        table.add_row(name, f"{best[0][name]:.0f}", f"{best[1][name]:.0f}", f"{best[1][name] / best[0][name]:.3f}")
    return table


@click.command()
@click.argument("old", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.argument("new", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--repetitions", default=5, show_default=True)
@click.option("--holes", is_flag=True, help="In memory as that of a process that has lived.")
def main(old: Path, new: Path, repetitions: int, holes: bool) -> None:
    """Compare what a message costs in two compiled trees."""
    Console().print(compare(old.resolve(), new.resolve(), repetitions, functools.partial(measure, holes=holes)))


if __name__ == "__main__":
    main()
