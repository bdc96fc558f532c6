"""What the management API costs: a broker with many queues, and monitors, pages and clients at the same time.

    python -m perf.management                      20,000 queues, 500 of them changing each second, three monitors, five pages
    python -m perf.management --queues 2000 --seconds 5

Throughput of one publisher with confirms and one consumer is measured three times: with nobody at the API, with the monitors
and the pages, and again with nobody. Reported are the throughput and what is lost, how long a full list and a page of one take,
how much the event stream sends, and how late the loop was: a passive declaration on another connection fifty times a second, of
which the longest answers are the longest turns.

It is the compiled build that is to be measured; interpreted it only shows that all of it works.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

import aio_pika
import aiohttp

LIST_EVERY_S = 5.0
PROBE_EVERY_S = 0.02
MESSAGE = b"x" * 100
LOGIN = {"Authorization": "Basic " + base64.b64encode(b"guest:guest").decode()}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--queues", type=int, default=20_000)
    parser.add_argument("--changing", type=int, default=500, help="queues that get a message each second")
    parser.add_argument("--monitors", type=int, default=3, help="clients that ask for all queues every 5 s")
    parser.add_argument("--pages", type=int, default=5, help="readers of the event stream with the table of queues")
    parser.add_argument("--seconds", type=float, default=20.0, help="of each of the three measurements")
    parser.add_argument("--command", default=str(Path(sys.executable).with_name("rabbitpy-broker")))
    return parser.parse_args()


class Broker:
    """A broker of its own, and its addresses."""

    def __init__(self, command: str, directory: str) -> None:
        self.log = Path(directory) / "log"
        given = [command, "--data-dir", f"{directory}/data", "--listen", "127.0.0.1:0", "--metrics-listen", "",
                 "--management-listen", "127.0.0.1:0", "--log-format", "json"]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(given, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        started = self._started()
        self.amqp = f"amqp://guest:guest@{started['listeners'][0]}/"
        self.api = f"http://{started['management'][0]}/api"

    def _started(self) -> dict[str, Any]:
        while True:
            for line in self.log.read_text().splitlines():
                if '"broker started"' in line:
                    return dict(json.loads(line))
            if self.process.poll() is not None:
                sys.exit(self.log.read_text())
            time.sleep(0.05)

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(30)


def make_queues(broker: Broker, count: int) -> None:
    """Through an import of definitions, which is quickest."""
    shape = {"vhost": "/", "durable": False, "auto_delete": False, "arguments": {}}
    body = json.dumps({"queues": [{"name": f"q{number}", **shape} for number in range(count)]}).encode()
    request = urllib.request.Request(f"{broker.api}/definitions", body, method="POST")
    request.add_header("Authorization", LOGIN["Authorization"])
    urllib.request.urlopen(request, timeout=600).close()


class Load:
    """One publisher with confirms, one consumer, some messages to many queues, and the probe of the loop."""

    def __init__(self, broker: Broker, queues: int, changing: int) -> None:
        self.delivered = 0
        self.delays: list[float] = []
        self._broker = broker
        self._queues = queues
        self._changing = changing

    async def run(self, seconds: float) -> float:
        """Messages per second."""
        amqp = self._broker.amqp
        async with await aio_pika.connect(amqp) as connection, await aio_pika.connect(amqp) as other:
            channel = await connection.channel()
            queue = await channel.declare_queue("load", auto_delete=True)
            await queue.consume(self._take, no_ack=True)
            probe = await other.channel()
            self.delivered, self.delays = 0, []
            ends = time.monotonic() + seconds
            tasks = [self._publish(channel, ends), self._change(probe, ends), self._probe(other, ends)]
            began = time.monotonic()
            await asyncio.gather(*tasks)
            return self.delivered / (time.monotonic() - began)

    async def _take(self, message: aio_pika.abc.AbstractIncomingMessage) -> None:
        self.delivered += 1

    async def _publish(self, channel: Any, ends: float) -> None:
        while time.monotonic() < ends:
            message = aio_pika.Message(MESSAGE)
            await asyncio.gather(*(channel.default_exchange.publish(message, "load") for _ in range(200)))

    async def _change(self, channel: Any, ends: float) -> None:
        number = 0
        while time.monotonic() < ends:
            began = time.monotonic()
            for _ in range(self._changing // 10):
                number = (number + 37) % self._queues
                await channel.default_exchange.publish(aio_pika.Message(b""), f"q{number}")
            await asyncio.sleep(max(0.1 - (time.monotonic() - began), 0))

    async def _probe(self, connection: Any, ends: float) -> None:
        channel = await connection.channel()
        while time.monotonic() < ends:
            began = time.monotonic()
            await channel.declare_queue("load", passive=True)
            self.delays.append(time.monotonic() - began)
            await asyncio.sleep(PROBE_EVERY_S)


class Readers:
    """Monitors and pages, until they are told to stop."""

    def __init__(self, broker: Broker) -> None:
        self.list_s: list[float] = []
        self.list_bytes = 0
        self.page_s: list[float] = []
        self.stream_bytes = 0
        self.stream_events = 0
        self._broker = broker

    async def monitor(self, http: aiohttp.ClientSession) -> None:
        while True:
            began = time.monotonic()
            async with http.get(f"{self._broker.api}/queues") as answer:
                self.list_bytes = len(await answer.read())
            self.list_s.append(time.monotonic() - began)
            began = time.monotonic()
            async with http.get(f"{self._broker.api}/queues?page=1&page_size=100") as answer:
                await answer.read()
            self.page_s.append(time.monotonic() - began)
            await asyncio.sleep(LIST_EVERY_S)

    async def page(self, http: aiohttp.ClientSession) -> None:
        async with http.get(f"{self._broker.api}/events?topics=overview,table:queues") as answer:
            async for line in answer.content:
                self.stream_bytes += len(line)
                self.stream_events += line.startswith(b"event:")


async def measure(broker: Broker, given: argparse.Namespace) -> dict[str, Any]:
    load, readers = Load(broker, given.queues, given.changing), Readers(broker)
    before = await load.run(given.seconds)
    quiet = load.delays
    timeout = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(headers=LOGIN, timeout=timeout, read_bufsize=1 << 24) as http:
        tasks = [asyncio.create_task(readers.monitor(http)) for _ in range(given.monitors)]
        tasks += [asyncio.create_task(readers.page(http)) for _ in range(given.pages)]
        during = await load.run(given.seconds)
        failed = [task for task in tasks if task.done()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert not failed, failed
    busy = load.delays
    after = await load.run(given.seconds)
    alone = (before + after) / 2
    return {
        "queues": given.queues, "changing per s": given.changing, "monitors": given.monitors, "pages": given.pages,
        "msg/s with nobody at the API": round(alone), "msg/s with all of them": round(during),
        "throughput lost %": round(100 * (1 - during / alone), 1),
        "answer p99 ms, nobody": in_ms(quiet, 0.99), "answer p99 ms, all": in_ms(busy, 0.99),
        "answer max ms, nobody": in_ms(quiet, 1), "answer max ms, all": in_ms(busy, 1),
        "/api/queues s": round(statistics.median(readers.list_s), 3), "/api/queues MB": round(readers.list_bytes / 1e6, 1),
        "page of 100 ms": in_ms(readers.page_s, 0.5),
        "event stream KB/s and page": round(readers.stream_bytes / 1e3 / given.seconds / max(given.pages, 1), 1),
        "events": readers.stream_events,
    }  # fmt: skip


def in_ms(seconds: list[float], part: float) -> float:
    """The value that this part of them does not exceed."""
    ordered = sorted(seconds)
    return round(1000 * ordered[min(int(len(ordered) * part), len(ordered) - 1)], 2)


def main() -> None:
    given = arguments()
    with tempfile.TemporaryDirectory() as directory:
        broker = Broker(given.command, directory)
        try:
            make_queues(broker, given.queues)
            found = asyncio.run(measure(broker, given))
        finally:
            broker.stop()
    for name, value in found.items():
        print(f"{name:32} {value}")


if __name__ == "__main__":
    main()
