"""What the management API costs: a broker with many queues, and monitors, pages and clients at the same time.

    python -m perf.management                      20,000 queues, 500 of them changing each second, three monitors, five pages
    python -m perf.management --queues 2000 --seconds 5
    python -m perf.management --apart
    python -m perf.management --cpu --seconds 12

The load generator moves messages through one queue as fast as it can, without confirms and acks: nothing else keeps the loop
as busy. It does so in turns with nobody at the API and with the monitors and the pages. Reported are

  lost           of the messages a second, against the two turns beside, of which part is for the readers: they share the machine;
                 with --apart the broker has one core, and the load and the readers the others, as if they were elsewhere
  cpu            broker's CPU time in seconds for a second, of readers alone: what it would have for messages is less by that
  answer         how long a passive declaration on another connection takes, a hundred times a second, from a process that does
                 nothing else: with readers, and with changing queues alone; the longest ones are the longest turns of the loop,
                 and what the machine adds
  list, page     how long a full list of queues and a page of a hundred take meanwhile

With --turns a broker of its own (perf/turns.py) says which turns of its loop were longer than 10 ms of CPU time, and where. With
--cpu there is no load: reported is the CPU time of changing queues only, with pages, with monitors and with both, each in turns.

It is the compiled build that is to be measured; interpreted it only shows that all of it works.
"""

from __future__ import annotations

import asyncio
import base64
import json
import multiprocessing
import os
import shlex
import statistics
import sys
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import aiohttp
import click
import pika

from perf import brokers
from perf.load_run import load

LIST_EVERY_S = 5.0
PROBE_EVERY_S = 0.01
HOT = "-s 12 -a"
TURNS_S = 30.0
LET_GO_S = 25.0
LOGIN = {"Authorization": "Basic " + base64.b64encode(b"guest:guest").decode()}


def make_queues(api: str, count: int) -> None:
    """Through an import of definitions, which is quickest."""
    shape = {"vhost": "/", "durable": False, "auto_delete": False, "arguments": {}}
    body = json.dumps({"queues": [{"name": f"q{number}", **shape} for number in range(count)]}).encode()
    request = urllib.request.Request(f"{api}/definitions", body, method="POST")
    request.add_header("Authorization", LOGIN["Authorization"])
    ends = time.monotonic() + brokers.START_TIMEOUT
    while True:
        try:
            return urllib.request.urlopen(request, timeout=600).close()
        except urllib.error.URLError as error:  # it listens for AMQP first
            if not isinstance(error.reason, ConnectionRefusedError) or time.monotonic() > ends:
                raise
            time.sleep(0.1)


class Helper:
    """A process of its own that does `work(said, *given)` until it is told to stop, and then says what it found."""

    def __init__(self, work: Any, *given: Any) -> None:
        self._told, said = multiprocessing.Pipe()
        self._process = multiprocessing.get_context("spawn").Process(target=work, args=(said, *given), daemon=True)
        self._process.start()
        self._told.recv()  # it is under way

    def stop(self) -> Any:
        self._told.send("stop")
        found = self._told.recv()
        self._process.join()
        return found


def change(said: Connection, url: str, queues: int, changing: int) -> None:
    """A message for so many other queues each second."""
    channel = pika.BlockingConnection(pika.URLParameters(url)).channel()
    said.send("begun")
    number = 0
    while not said.poll(0.1):
        for _ in range(changing // 10):
            number = (number + 37) % queues
            channel.basic_publish("", f"q{number}", b"")
    said.send(None)


def probe(said: Connection, url: str) -> None:
    """How long the loop takes to answer, in seconds, each time."""
    channel = pika.BlockingConnection(pika.URLParameters(url)).channel()
    channel.queue_declare("probe", exclusive=True)
    said.send("begun")
    found = []
    while not said.poll(PROBE_EVERY_S):
        began = time.monotonic()
        channel.queue_declare("probe", passive=True)
        found.append(time.monotonic() - began)
    said.send(found)


def read(said: Connection, api: str, monitors: int, pages: int, *, unpack: bool = True) -> None:
    said.send(asyncio.run(Readers(api).run(said, monitors, pages, unpack=unpack)))


class Readers:
    """Monitors and pages."""

    def __init__(self, api: str) -> None:
        self._began = time.monotonic(), time.process_time()
        self.found: dict[str, Any] = {"list_s": [], "page_s": [], "list_bytes": 0, "stream_bytes": 0}
        self._api = api

    async def run(self, said: Connection, monitors: int, pages: int, *, unpack: bool) -> dict[str, Any]:
        """Until they are told to stop. What they do not unpack they count as it comes."""
        timeout = aiohttp.ClientTimeout(total=None)
        async with aiohttp.ClientSession(headers=LOGIN, timeout=timeout, read_bufsize=1 << 24, auto_decompress=unpack) as http:
            tasks = [asyncio.create_task(self._monitor(http, number / monitors)) for number in range(monitors)]
            tasks += [asyncio.create_task(self._page(http)) for _ in range(pages)]
            said.send("begun")
            await asyncio.to_thread(said.recv)
            failed = [task for task in tasks if task.done()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            assert not failed, failed
        self.found["seconds"] = time.monotonic() - self._began[0]
        self.found["cpu"] = (time.process_time() - self._began[1]) / self.found["seconds"]
        return self.found

    async def _monitor(self, http: aiohttp.ClientSession, phase: float) -> None:
        await asyncio.sleep(phase * LIST_EVERY_S)
        while True:
            began = time.monotonic()
            async with http.get(f"{self._api}/queues") as answer:
                self.found["list_bytes"] = len(await answer.read())
            self.found["list_s"].append(time.monotonic() - began)
            began = time.monotonic()
            async with http.get(f"{self._api}/queues?page=1&page_size=100") as answer:
                await answer.read()
            self.found["page_s"].append(time.monotonic() - began)
            await asyncio.sleep(LIST_EVERY_S)

    async def _page(self, http: aiohttp.ClientSession) -> None:
        async with http.get(f"{self._api}/events?topics=overview,table:queues") as answer:
            async for part in answer.content.iter_any():
                self.found["stream_bytes"] += len(part)


@dataclass(frozen=True)
class Times:
    """In seconds: `seconds` is how long each measurement takes, `warm_s` how long the first lists and snapshots may."""

    seconds: float
    warm_s: float
    pairs: int


def measure(
    broker: brokers.Broker, api: str, queues: int, changing: int, monitors: int, pages: int, times: Times, options: str
) -> dict[str, Any]:
    """With a load as these `options` say."""
    changes = Helper(change, broker.url, queues, changing)

    def hot() -> tuple[float, list[float]]:
        probing = Helper(probe, broker.url)
        rate = float(load(broker, options, times.seconds)["received_per_s"])
        return rate, probing.stop()

    without, quiet = [], []
    with_all, busy = [], []
    found: dict[str, Any] = {}
    for number in range(times.pairs + 1):
        rate, answers = hot()
        without.append(rate)
        quiet += answers
        if number < times.pairs:
            reading = Helper(read, api, monitors, pages)
            time.sleep(times.warm_s)
            rate, answers = hot()
            with_all.append(rate)
            busy += answers
            found = reading.stop()
    lost = [1 - now / ((before + after) / 2) for now, before, after in zip(with_all, without, without[1:], strict=False)]
    probing = Helper(probe, broker.url)
    idle_cpu = cpu(broker, times.seconds)
    probing.stop()
    reading = Helper(read, api, monitors, pages)
    time.sleep(times.warm_s)
    probing = Helper(probe, broker.url)
    readers_cpu = cpu(broker, times.seconds)
    alone = probing.stop()
    found = reading.stop()
    changes.stop()
    return {
        "queues": queues, "changing per s": changing, "monitors": monitors, "pages": pages,
        "msg/s with nobody at the API": [round(rate) for rate in without],
        "msg/s with all of them": [round(rate) for rate in with_all],
        "lost %, each, median": [*(round(100 * part, 1) for part in lost), round(100 * statistics.median(lost), 1)],
        "cpu, changing queues only": round(idle_cpu, 3), "cpu, with all readers": round(readers_cpu, 3),
        "cpu for readers": round(readers_cpu - idle_cpu, 3), "cpu of the readers themselves": round(found["cpu"], 3),
        "answer p50, p99, max ms, hot": in_ms(quiet), "answer, hot, with readers": in_ms(busy),
        "answer, readers only": in_ms(alone),
        "/api/queues s, median and max": [round(statistics.median(found["list_s"]), 3), round(max(found["list_s"]), 3)],
        "/api/queues MB": round(found["list_bytes"] / 1e6, 1),
        "page of 100, p50, p99, max ms": in_ms(found["page_s"]),
        "event stream KB/s and page": round(found["stream_bytes"] / 1e3 / found["seconds"] / max(pages, 1), 1),
    }  # fmt: skip


def cpu(broker: brokers.Broker, seconds: float) -> float:
    """Of the broker, in seconds a second."""
    before, began = broker.cpu_s(), time.monotonic()
    time.sleep(seconds)
    return (broker.cpu_s() - before) / (time.monotonic() - began)


def measure_cpu(
    broker: brokers.Broker, api: str, queues: int, changing: int, monitors: int, pages: int, times: Times
) -> dict[str, Any]:
    """What each kind of reader costs."""
    kinds = {
        "changing queues only": (0, 0), "with pages": (0, pages), "with monitors": (monitors, 0), "with both": (monitors, pages)
    }  # fmt: skip
    found: dict[str, list[float]] = {kind: [] for kind in kinds}
    changes = Helper(change, broker.url, queues, changing)
    for _ in range(times.pairs):
        for kind, readers in kinds.items():
            reading = Helper(read, api, *readers)
            time.sleep(times.warm_s)
            found[kind].append(cpu(broker, times.seconds))
            reading.stop()
    changes.stop()
    return {f"cpu, {kind}": [round(one, 4) for one in each] for kind, each in found.items()}


def measure_turns(broker: brokers.Broker, api: str, queues: int, changing: int, monitors: int, pages: int) -> None:
    """With readers, for so long that rows and lists are let go of as well."""
    changes, reading = Helper(change, broker.url, queues, changing), Helper(read, api, monitors, pages)
    time.sleep(TURNS_S)
    reading.stop()
    time.sleep(LET_GO_S)
    changes.stop()


def in_ms(seconds: list[float]) -> list[float]:
    """Median, 99th percentile and maximum."""
    ordered = sorted(seconds)
    return [round(1000 * ordered[min(int(len(ordered) * part), len(ordered) - 1)], 2) for part in (0.5, 0.99, 1)]


@click.command(help=__doc__.partition("\n")[0])
@click.option("--queues", default=20_000, show_default=True)
@click.option("--changing", default=500, show_default=True, help="Queues that get a message each second.")
@click.option("--monitors", default=3, show_default=True, help="Clients that ask for all queues every 5 s.")
@click.option("--pages", default=5, show_default=True, help="Readers of the event stream with the table of queues.")
@click.option("--seconds", default=5.0, show_default=True, help="Of each measurement.")
@click.option("--warm", default=8.0, show_default=True, help="Seconds for the first lists and snapshots.")
@click.option("--load", "options", default=HOT, show_default=True, help="Options of the load generator.")
@click.option("--pairs", default=3, show_default=True, help="Measurements with readers, each between two without.")
@click.option("--turns", is_flag=True, help="Long turns of the loop instead, and where it was.")
@click.option("--cpu", "is_cpu", is_flag=True, help="CPU time of the broker instead, without load.")
@click.option("--apart", is_flag=True, help="A core for the broker, and the others for all else.")
@click.option("--broker", "command", default=brokers.DEFAULT_COMMAND, help="Command that starts rabbitpy-broker.")
def main(
    queues: int, changing: int, monitors: int, pages: int, seconds: float, warm: float, options: str, pairs: int, turns: bool,
    is_cpu: bool, apart: bool, command: str,
) -> None:  # fmt: skip
    if apart:
        first, *others = sorted(os.sched_getaffinity(0))
        if not others:
            raise click.ClickException("--apart needs a second core")
        os.sched_setaffinity(0, others)
        command = f"taskset -c {first} {command}"
    (port,) = brokers.free_ports(1)
    api = f"http://127.0.0.1:{port}/api"
    listen = f"--management-listen 127.0.0.1:{port}"
    if turns:
        with brokers.scratch() as folder:
            env = {"PERF_TURNS": str(folder / "turns"), "PYTHONPATH": os.pathsep.join(sys.path)}
            measured = f"{shlex.quote(sys.executable)} -m perf.turns {listen}"
            with brokers.rabbitpy(measured, env=env) as broker:
                make_queues(api, queues)
                click.echo("while queues were declared")
                click.echo((folder / "turns").read_text())
                measure_turns(broker, api, queues, changing, monitors, pages)
                click.echo("all")
                click.echo((folder / "turns").read_text())
        return
    with brokers.rabbitpy(f"{command} {listen}") as broker:
        make_queues(api, queues)
        times, readers = Times(seconds, warm, pairs), (monitors, pages)
        if is_cpu:
            found = measure_cpu(broker, api, queues, changing, *readers, times)
        else:
            found = measure(broker, api, queues, changing, *readers, times, options)
    for name, value in found.items():
        click.echo(f"{name:32} {value}")


if __name__ == "__main__":
    main()
