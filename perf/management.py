"""What the management API costs: a broker with many queues, and monitors, pages and clients at the same time.

    python -m perf.management                      20,000 queues, 500 of them changing each second, three monitors, five pages
    python -m perf.management --queues 2000 --seconds 5

The load generator moves messages through one queue as fast as it can, without confirms and acks: nothing else keeps the loop
as busy. It does so three times: with nobody at the API, with the monitors and the pages, and again with nobody. Reported are

  lost           of the messages a second, of which part is for the readers: they share the machine with the load
  cpu            broker's CPU time in seconds for a second, of readers alone: what it would have for messages is less by that
  answer         how long a passive declaration on another connection takes, a hundred times a second, from a process that does
                 nothing else: with readers, and with changing queues alone; the longest ones are the longest turns of the loop,
                 and what the machine adds
  list, page     how long a full list of queues and a page of a hundred take meanwhile

It is the compiled build that is to be measured; interpreted it only shows that all of it works.
"""

from __future__ import annotations

import asyncio
import base64
import json
import multiprocessing
import statistics
import time
import urllib.error
import urllib.request
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
ALONE_S = 10.0  # readers without load
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


def read(said: Connection, api: str, monitors: int, pages: int) -> None:
    said.send(asyncio.run(Readers(api).run(said, monitors, pages)))


class Readers:
    """Monitors and pages."""

    def __init__(self, api: str) -> None:
        self.found: dict[str, Any] = {"list_s": [], "page_s": [], "list_bytes": 0, "stream_bytes": 0}
        self._api = api

    async def run(self, said: Connection, monitors: int, pages: int) -> dict[str, Any]:
        """Until they are told to stop."""
        timeout = aiohttp.ClientTimeout(total=None)
        async with aiohttp.ClientSession(headers=LOGIN, timeout=timeout, read_bufsize=1 << 24) as http:
            tasks = [asyncio.create_task(self._monitor(http, number / monitors)) for number in range(monitors)]
            tasks += [asyncio.create_task(self._page(http)) for _ in range(pages)]
            said.send("begun")
            await asyncio.to_thread(said.recv)
            failed = [task for task in tasks if task.done()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            assert not failed, failed
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
            async for line in answer.content:
                self.found["stream_bytes"] += len(line)


def measure(
    broker: brokers.Broker, api: str, queues: int, changing: int, monitors: int, pages: int, seconds: float
) -> dict[str, Any]:
    changes = Helper(change, broker.url, queues, changing)

    def hot() -> tuple[float, list[float]]:
        probing = Helper(probe, broker.url)
        rate = float(load(broker, HOT, seconds)["received_per_s"])
        return rate, probing.stop()

    def cpu(seconds: float) -> float:
        before, began = broker.cpu_s(), time.monotonic()
        time.sleep(seconds)
        return (broker.cpu_s() - before) / (time.monotonic() - began)

    before, quiet = hot()
    idle_cpu = cpu(ALONE_S)
    reading = Helper(read, api, monitors, pages)
    during, busy = hot()
    hot_s, begun = seconds, time.monotonic()
    probing = Helper(probe, broker.url)
    readers_cpu = cpu(ALONE_S)
    alone = probing.stop()
    found = reading.stop()
    after, _ = hot()
    changes.stop()
    best = (before + after) / 2
    return {
        "queues": queues, "changing per s": changing, "monitors": monitors, "pages": pages,
        "msg/s with nobody at the API": round(best), "msg/s with all of them": round(during),
        "lost %": round(100 * (1 - during / best), 1),
        "cpu, changing queues only": round(idle_cpu, 3), "cpu, with all readers": round(readers_cpu, 3),
        "answer p50, p99, max ms, hot": in_ms(quiet), "answer, hot, with readers": in_ms(busy),
        "answer, readers only": in_ms(alone),
        "/api/queues s, median and max": [round(statistics.median(found["list_s"]), 3), round(max(found["list_s"]), 3)],
        "/api/queues MB": round(found["list_bytes"] / 1e6, 1),
        "page of 100, p50, p99, max ms": in_ms(found["page_s"]),
        "event stream KB/s and page": round(found["stream_bytes"] / 1e3 / (hot_s + time.monotonic() - begun) / max(pages, 1), 1),
    }  # fmt: skip


def in_ms(seconds: list[float]) -> list[float]:
    """Median, 99th percentile and maximum."""
    ordered = sorted(seconds)
    return [round(1000 * ordered[min(int(len(ordered) * part), len(ordered) - 1)], 2) for part in (0.5, 0.99, 1)]


@click.command(help=__doc__.partition("\n")[0])
@click.option("--queues", default=20_000, show_default=True)
@click.option("--changing", default=500, show_default=True, help="Queues that get a message each second.")
@click.option("--monitors", default=3, show_default=True, help="Clients that ask for all queues every 5 s.")
@click.option("--pages", default=5, show_default=True, help="Readers of the event stream with the table of queues.")
@click.option("--seconds", default=20.0, show_default=True, help="Of each of the three measurements.")
@click.option("--broker", "command", default=brokers.DEFAULT_COMMAND, help="Command that starts rabbitpy-broker.")
def main(queues: int, changing: int, monitors: int, pages: int, seconds: float, command: str) -> None:
    (port,) = brokers.free_ports(1)
    with brokers.rabbitpy(f"{command} --management-listen 127.0.0.1:{port}") as broker:
        api = f"http://127.0.0.1:{port}/api"
        make_queues(api, queues)
        found = measure(broker, api, queues, changing, monitors, pages, seconds)
    for name, value in found.items():
        click.echo(f"{name:32} {value}")


if __name__ == "__main__":
    main()
