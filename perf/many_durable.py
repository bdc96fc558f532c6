"""What does a broker with fifty thousand durable queues cost whom: does anything that walks over all of them hold up the others?

    python -m perf.many_durable --queues 50000

First queues are declared one by one, each when the last is there, by one client and by fifty at once (`one_by_one_per_s_…`),
and deleted again. Then a client declares so many durable queues and puts a persistent message into each. Meanwhile, and then
while the broker idles, is scraped, lists its queues, exports its definitions and gets a policy, another client does one round
trip after the other: a basic.get on an empty queue. Its longest is as long as the loop's longest pause, and a round trip more;
`quiet` is the same on the same broker before it had a queue, so what is there too is the machine's. At the end the times of a
stop, of the start after it, and whether that was a clean one.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import multiprocessing
import os
import selectors
import shlex
import statistics
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from typing import Any

import click
from pamqp import commands, frame

from perf import brokers, machine, watch
from perf.kill.daemon import Daemon
from perf.kill.ledger import Violation
from perf.load.client import Address, Client, Refused
from perf.stop import publish, queue_names, start, stop
from rabbitpy_broker.ctl import ask

PROBED = "many-durable-probe"
DECLARED_TOGETHER = 100
ONE_BY_ONE = 5_000
MANY_CLIENTS = 50
PIECE = 1 << 16
PROBE_TIMEOUT = 300.0


# -- the client that is held up -----------------------------------------------------------------------------------------


def probe(address: Address, pipe: Pipe) -> None:
    """Does round trips until the pipe is closed; whenever something comes through it, answers with those since the last time."""
    with Client(address, "perf probe", PROBE_TIMEOUT) as client:
        client.open_channel(1)
        client.call(1, commands.Queue.Declare(0, PROBED, auto_delete=True), commands.Queue.DeclareOk)
        get = frame.marshal(commands.Basic.Get(0, PROBED, True), 1)
        took_s: list[float] = []
        with contextlib.suppress(EOFError):
            while True:
                began = time.perf_counter()
                client.sock.sendall(get)
                client.receive(commands.Basic.GetEmpty)
                took_s.append(time.perf_counter() - began)
                if pipe.poll():
                    pipe.recv()
                    pipe.send(took_s)
                    took_s = []


class Probe:
    """The client in a process of its own."""

    def __init__(self, pipe: Pipe) -> None:
        self._pipe = pipe

    def during(self, act: Callable[[], object]) -> dict[str, Any]:
        """The round trips while something is done, and how long that takes."""
        self._collect()
        began = time.monotonic()
        act()
        took_s = time.monotonic() - began
        trips_ms = [1000 * trip for trip in self._collect()]
        return {
            "longest_ms": round(max(trips_ms), 3),
            "p99_ms": round(statistics.quantiles(trips_ms, n=100)[98], 3) if len(trips_ms) > 1 else None,
            "median_ms": round(statistics.median(trips_ms), 3),
            "trips": len(trips_ms),
            "seconds": round(took_s, 2),
        }

    def _collect(self) -> list[float]:
        self._pipe.send(None)
        if not self._pipe.poll(PROBE_TIMEOUT):
            raise Refused(f"no round trip within {PROBE_TIMEOUT:.0f} s")
        trips: list[float] = self._pipe.recv()
        return trips


@contextlib.contextmanager
def probing(address: Address) -> Iterator[Probe]:
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=probe, args=(address, theirs), daemon=True)
    process.start()
    theirs.close()
    try:
        yield Probe(ours)
    finally:
        ours.close()
        process.join(PROBE_TIMEOUT)
        process.kill()
        process.join()


# -- what is done meanwhile ---------------------------------------------------------------------------------------------


def declare(address: Address, queues: int) -> None:
    """Declares so many durable queues, a few at a time."""
    names = queue_names(queues)
    with Client(address, "perf declarer", PROBE_TIMEOUT) as client:
        client.open_channel(1)
        for at in range(0, queues, DECLARED_TOGETHER):
            together = names[at : at + DECLARED_TOGETHER]
            client.sock.sendall(b"".join(frame.marshal(commands.Queue.Declare(0, name, durable=True), 1) for name in together))
            for _ in together:
                client.receive(commands.Queue.DeclareOk)


def declared_one_by_one(address: Address, clients: int, each: int) -> float:
    """So many clients declare durable queues, each the next when it has the answer to the last; returns queues a second."""
    names = [[f"one-by-one-{client}-{number}" for number in range(each)] for client in range(clients)]
    with contextlib.ExitStack() as stack, selectors.DefaultSelector() as selector:
        links = [stack.enter_context(Client(address, "perf declarer", PROBE_TIMEOUT)) for _ in range(clients)]
        for link in links:
            link.open_channel(1)
        began = time.monotonic()
        for link, own in zip(links, names, strict=True):
            left = iter(own)
            selector.register(link.sock, selectors.EVENT_READ, (link, left))
            link.sock.sendall(frame.marshal(commands.Queue.Declare(0, next(left), durable=True), 1))
        while selector.get_map():
            for key, _ in selector.select():
                link, left = key.data
                link.receive(commands.Queue.DeclareOk)
                name = next(left, None)
                if name is None:
                    selector.unregister(link.sock)
                else:
                    link.sock.sendall(frame.marshal(commands.Queue.Declare(0, name, durable=True), 1))
        took_s = time.monotonic() - began
        for name in [name for own in names for name in own]:
            links[0].call(1, commands.Queue.Delete(0, name), commands.Queue.DeleteOk)
    return clients * each / took_s


def scrape(daemon: Daemon, path: str) -> int:
    """Reads a page as it comes; returns its bytes."""
    client = http.client.HTTPConnection(daemon.events("broker started")[0]["metrics"], timeout=PROBE_TIMEOUT)
    with contextlib.closing(client):
        client.request("GET", path)
        answer = client.getresponse()
        if answer.status != http.HTTPStatus.OK:
            raise Refused(f"{path}: {answer.status}")
        size = 0
        while piece := answer.read(PIECE):
            size += len(piece)
        return size


def measure(folder: Path, command: list[str], queues: int, size: int, idle_s: float) -> dict[str, Any]:
    daemon = Daemon(command, folder)
    result: dict[str, Any] = {}
    faults: list[str] = []

    def note(name: str, found: dict[str, Any]) -> None:
        result[name] = found
        click.echo(f"{name}: {found}", err=True)

    def list_all() -> None:
        listed = [row["name"] for row in ask(daemon.data_dir, "list_queues", ["name", "messages"], {})]
        if sorted(listed) != sorted([PROBED, *queue_names(queues)]):
            faults.append(f"list_queues: {len(set(listed))} queues in {len(listed)} rows")

    def export() -> None:
        exported = [entry["name"] for section, entry in ask(daemon.data_dir, "export_definitions", [], {})
                    if section == "queues" and entry is not None]  # fmt: skip
        if len(exported) != queues + 1:
            faults.append(f"export_definitions: {len(exported)} queues")

    def apply_policy() -> None:
        ask(daemon.data_dir, "set_policy", ["perf", "^stop-", '{"max-length":1000}'], {})
        ask(daemon.data_dir, "clear_policy", ["perf"], {})

    try:
        start(daemon)
        with probing(daemon.address) as probed:
            note("quiet", probed.during(lambda: time.sleep(idle_s)))
            for clients in (1, MANY_CLIENTS):
                each = max(1, min(queues, ONE_BY_ONE) // clients)
                result[f"one_by_one_per_s_{clients}"] = round(declared_one_by_one(daemon.address, clients, each))
            note("declare", probed.during(lambda: declare(daemon.address, queues)))
            result["declared_per_s"] = round(queues / max(result["declare"]["seconds"], 0.01))
            note("publish", probed.during(lambda: publish(daemon, queues, 1, size)))
            note("settling", probed.during(lambda: time.sleep(idle_s)))
            note("idle", probed.during(lambda: time.sleep(idle_s)))
            note("scrape", probed.during(lambda: scrape(daemon, "/metrics")))
            note("scrape_per_object", probed.during(lambda: scrape(daemon, "/metrics/per-object")))
            note("list_queues", probed.during(list_all))
            note("export_definitions", probed.during(export))
            note("set_and_clear_policy", probed.during(apply_policy))
        note("stop", stop(daemon))
        note("start", start(daemon))
        if not result["start"]["clean"] or result["start"]["messages"] != queues:
            faults.append(f"start: {result['start']}")
        stop(daemon)
    finally:
        daemon.abandon()
    result["faults"] = faults
    return result


@click.command(context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
@click.option("--broker", "command", default=brokers.DEFAULT_COMMAND, help="Starts rabbitpy-broker.")
@watch.dir_option
@click.option("--queues", type=click.IntRange(1), default=50_000, help="Durable queues, with a message each.")
@click.option("--size", type=click.IntRange(1), default=100, help="Bytes of a body.")
@click.option(
    "--idle", "idle_s", type=click.FloatRange(0.1), default=12.0, help="Seconds of quiet, settling and idle."
)
@click.option("--quick", is_flag=True, help="20 queues: whether it works.")
@click.option("--save", is_flag=True, help="Write the result to perf/results as well.")
def main(command: str, folder: Path, queues: int, size: int, idle_s: float, quick: bool, save: bool) -> None:
    """Take the longest round trip beside everything that walks over many durable queues, and the times of a stop and a start."""
    queues, idle_s = (min(queues, 20), min(idle_s, 1.0)) if quick else (queues, idle_s)
    disk = watch.use_disk(folder)
    try:
        with brokers.scratch() as scratch:
            build = brokers.version_of(command, scratch, os.environ)
            measured = measure(scratch, shlex.split(command), queues, size, idle_s)
    except (Violation, Refused, brokers.StartFailed) as error:
        raise click.ClickException(str(error)) from None
    result = {"broker": build, "file_system": disk, "queues": queues, "size": size, **measured}
    if save:
        click.echo(f"written to {machine.save('many_durable', result)}", err=True)
    click.echo(json.dumps(result, indent=1))
    if result["faults"]:
        raise SystemExit(1)


if __name__ == "__main__":
    main(prog_name="python -m perf.many_durable")
