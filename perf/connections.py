"""How much memory does an open connection cost? Opens many, each with a channel, and weighs the broker.

    python -m perf.connections --count 10000

The connections are held by several processes. They are opened one after the other in each of these, so the time is that of
whole handshakes, and are idle afterwards: no heartbeats, no messages.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import time
from multiprocessing.connection import Connection
from typing import Any

import click

from perf import brokers, machine
from perf.brokers import Broker, StartFailed
from perf.load.client import Address, Client, Refused

# What a process needs besides its connections.
OTHER_FILES = 50
SETTLE_TIMEOUT = 10.0


def hold(url: str, count: int, pipe: Connection) -> None:
    """A client process: opens its share, tells, and keeps them until it is told to end."""
    clients: list[Client] = []
    try:
        for _ in range(count):
            client = Client(Address.parse(url), "perf.connections")
            client.open_channel(1)
            clients.append(client)
        pipe.send("")
        pipe.recv()
    except Refused as error:
        pipe.send(f"after {len(clients)} connections: {error}")
    for client in clients:
        client.sock.close()


def settled_rss_kib(broker: Broker) -> int:
    """The broker's memory once it has stopped changing."""
    end = time.monotonic() + SETTLE_TIMEOUT
    before, now = -1, broker.rss_kib()
    while abs(now - before) > 256 and time.monotonic() < end:
        time.sleep(1)
        before, now = now, broker.rss_kib()
    return now


def measure(broker: Broker, count: int, processes: int) -> dict[str, Any]:
    context = multiprocessing.get_context("fork")
    empty_kib = settled_rss_kib(broker)
    start, cpu_before = time.monotonic(), broker.cpu_s()
    pipes = []
    for number in range(processes):
        ours, theirs = context.Pipe()
        share = len(range(number, count, processes))
        context.Process(target=hold, args=(broker.url, share, theirs), daemon=True).start()
        pipes.append(ours)
    failures = [text for text in (pipe.recv() for pipe in pipes) if text]
    seconds = time.monotonic() - start
    if failures:
        raise StartFailed(failures[0])
    cpu_s = broker.cpu_s() - cpu_before
    open_kib = settled_rss_kib(broker)
    one_more = time.monotonic()
    with Client(Address.parse(broker.url)) as client:
        client.open_channel(1)
        one_more_ms = (time.monotonic() - one_more) * 1000
    for pipe in pipes:
        pipe.send("end")
    for child in multiprocessing.active_children():
        child.join()
    return {
        "broker": broker.build,
        "connections": count,
        "open_seconds": round(seconds, 2),
        "opened_per_s": round(count / seconds),
        "broker_cpu_ms_per_connection": round(cpu_s * 1000 / count, 3) if broker.processes() else None,
        "one_more_ms": round(one_more_ms, 2),
        "rss_empty_kib": empty_kib,
        "rss_open_kib": open_kib,
        "kib_per_connection": round((open_kib - empty_kib) / count, 2) if open_kib else None,
        "rss_closed_kib": settled_rss_kib(broker),
    }


@click.command(context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
@brokers.options
@click.option("--count", type=click.IntRange(1), default=10_000, help="Connections to open.")
@click.option(
    "--processes",
    type=click.IntRange(1),
    help="Client processes.  [default: as many as cores, or files, ask for]",
)
@click.option("--save", is_flag=True, help="Write the result to perf/results as well.")
def main(count: int, processes: int | None, save: bool, **which: Any) -> None:
    """Open many connections with a channel each and print the broker's memory for each."""
    limit = brokers.raise_file_limit() - OTHER_FILES
    try:
        with brokers.one(**which) as broker:
            result = measure(broker, count, processes or max(os.cpu_count() or 1, -(-count // limit)))
    except (StartFailed, Refused) as error:
        raise click.ClickException(str(error)) from None
    if save:
        click.echo(f"written to {machine.save('connections', result)}", err=True)
    click.echo(json.dumps(result, indent=1))


if __name__ == "__main__":
    main(prog_name="python -m perf.connections")
