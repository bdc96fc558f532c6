"""Do a million delayed messages come out in order and on time while the broker has other things to do?

    python -m perf.delayed --messages 1000000 --lead 90 --window 120

Publishes persistent messages with confirms to a durable delayed message exchange, due at random times in a window that
begins `--lead` seconds after the first publish, while a load with a steady rate runs over other queues; the same load
runs alone before. A consumer puts down when each message came.

The broker's clock starts when it takes a message, somewhere between sending and confirm. So a message is due between
the moment that is its delay after sending, and the one that is its delay after the confirm.

  late      when it came, less the first of these (at most) and the second (at least)
  early     it came before the first
  disorder  its second comes before the first of one that had come already

Exit code 1 when a message is missing, came twice, early or in disorder.
"""

from __future__ import annotations

import array
import json
import multiprocessing
import random
import struct
import sys
import threading
import time
import uuid
from multiprocessing.connection import Connection
from typing import Any

import click
from pamqp import commands, frame
from rich.console import Console
from rich.table import Table

from perf import brokers, machine
from perf.brokers import Broker, StartFailed
from perf.driver import BASIC_ACK, FRAME_METHOD, BrokerClosed, Link, Unsettled
from perf.load import encode
from perf.load.client import Address, Client, Refused
from perf.load_run import RunFailed, load
from perf.numbered import READ_BYTES, words

BATCH = 50
WINDOW = 1000
ACK_EVERY = 50
QUICK = {"messages": 1_000, "rate": 2_000.0, "lead": 0.6, "window": 1.0}
PATIENCE = 60.0
BASELINE_S = 3.0
TAG = "c"
PERCENTILES = (("p50", 0.5), ("p95", 0.95), ("p99", 0.99), ("p99.9", 0.999), ("max", 1.0))


def now_ms() -> float:
    return time.time() * 1000


class Names:
    """The exchange, and the queue that gets what it lets out."""

    def __init__(self) -> None:
        self.exchange = f"perf-delayed-{uuid.uuid4().hex[:8]}"
        self.queue = self.exchange


def declare(url: str, names: Names) -> None:
    with Client(Address.parse(url), "perf setup") as client:
        client.open_channel(1)
        arguments = {"x-delayed-type": "fanout"}
        exchange = commands.Exchange.Declare(
            0, names.exchange, "x-delayed-message", durable=True, arguments=arguments
        )
        client.call(1, exchange, commands.Exchange.DeclareOk)
        client.call(1, commands.Queue.Declare(0, names.queue, durable=True), commands.Queue.DeclareOk)
        client.call(1, commands.Queue.Bind(0, names.queue, names.exchange, ""), commands.Queue.BindOk)


def delete(url: str, names: Names) -> int:
    """Returns how many messages were left in the queue."""
    with Client(Address.parse(url), "perf clean-up") as client:
        client.open_channel(1)
        client.call(1, commands.Exchange.Delete(0, names.exchange), commands.Exchange.DeleteOk)
        left = client.call(1, commands.Queue.Delete(0, names.queue), commands.Queue.DeleteOk)
    return int(left.message_count)


# -- frames -----------------------------------------------------------------------------------------------------------


def header_frame(size: int) -> tuple[bytes, bytes]:
    """A content header with x-delay and delivery mode 2, up to the delay's value and behind it."""
    table = b"\x07x-delayI"
    before = (
        b"\x00\x3c\x00\x00"
        + size.to_bytes(8, "big")
        + b"\x30\x00"
        + (len(table) + 4).to_bytes(4, "big")
        + table
    )
    return b"\x02\x00\x01" + (len(before) + 5).to_bytes(4, "big") + before, b"\x02\xce"


def delivery_layout(names: Names, size: int) -> struct.Struct:
    """Cuts a delivery into how it begins and its message's number."""
    method = frame.marshal(commands.Basic.Deliver(TAG, 0, False, names.exchange, ""), 1)
    before, after = header_frame(size)
    head = 7 + 4 + 1 + len(TAG)
    to_body = len(method) + len(before) + 4 + len(after) + 7
    return struct.Struct(f">{head}s{to_body - head}xQ{size - 8 + 1}x")


# -- publisher --------------------------------------------------------------------------------------------------------


class Publisher(Link):
    """Publishes in batches, each with the times at which its messages are wanted. Lists go by the message's number."""

    def __init__(self, url: str, names: Names, size: int) -> None:
        client = Client(Address.parse(url), "perf publisher")
        client.open_channel(1)
        client.call(1, commands.Confirm.Select(), commands.Confirm.SelectOk)
        super().__init__(*client.take(), READ_BYTES)
        before, after = header_frame(size)
        self._before = frame.marshal(commands.Basic.Publish(0, names.exchange, ""), 1) + before
        body = encode.body_frames(bytes(size), 1, client.frame_max)[0]
        self._middle = after + body[:7]
        self._after = body[15:]
        self._unsettled = Unsettled()
        self._sent: list[
            tuple[int, float]
        ] = []  # the last message of each batch that is not confirmed, when it was sent
        self.wanted = array.array("d")  # ms since 1970
        self.confirmed_after = array.array("d")  # ms from sending to the confirm, by batch
        self.nacked = 0

    def run(self, messages: int, rate: float, lead_s: float, window_s: float, seed: int) -> None:
        """Raises Refused when the broker says so, or nothing."""
        pick = random.Random(seed).random
        began_ms = now_ms()
        first_ms = began_ms + lead_s * 1000
        while len(self.wanted) < messages:
            while (wait_ms := began_ms + len(self.wanted) / rate * 1000 - now_ms()) > 0:
                self._serve(wait_ms / 1000)
            parts: list[bytes] = []
            began = now_ms()
            for number in range(len(self.wanted), min(len(self.wanted) + BATCH, messages)):
                delay = max(1, int(first_ms + pick() * window_s * 1000 - began))
                self.wanted.append(began + delay)
                parts += (
                    self._before, delay.to_bytes(4, "big"), self._middle, number.to_bytes(8, "big"), self._after
                )  # fmt: skip
            self._unsettled.published(len(parts) // 5)
            self._sent.append((len(self.wanted), began))
            self.send(b"".join(parts))
            while self._serve(0):
                pass
            while self.unsent or self._unsettled.unsettled > WINDOW - BATCH:
                self._serve_patiently()
        while self._unsettled.unsettled:
            self._serve_patiently()

    def _serve_patiently(self) -> None:
        if not self._serve(PATIENCE):
            raise Refused(f"no confirm for {PATIENCE:g} s")

    def _serve(self, seconds: float) -> bool:
        try:
            return self.serve(seconds)
        except BrokerClosed as closed:
            raise Refused(str(closed)) from None

    def take_in(self, data: bytes) -> None:
        super().take_in(data)
        now = now_ms()
        while self._sent and self._sent[0][0] <= self._unsettled.settled_to:
            self.confirmed_after.append(now - self._sent.pop(0)[1])

    def take_frame(self, kind: int, payload: bytes) -> None:
        method = int.from_bytes(payload[:4], "big") if kind == FRAME_METHOD else 0
        if method != BASIC_ACK:
            self.other_method(method, payload, 4)
            raise Refused(f"a frame of type {kind} that nobody asked for: {payload[:40].hex()}")
        self._unsettled.settle(int.from_bytes(payload[4:12], "big"), payload[12] & 1 == 1)

    def close(self) -> None:
        self.sock.close()


# -- consumer, in a process of its own --------------------------------------------------------------------------------


def consume(url: str, names: Names, size: int, expected: int, until_ms: float, pipe: Connection) -> None:
    """Sends down the pipe: that it consumes; the numbers and when they came; what went wrong."""
    numbers, came = array.array("Q"), array.array("d")
    fault = ""
    try:
        client = Client(Address.parse(url), "perf consumer")
        client.open_channel(1)
        client.call(1, commands.Basic.Qos(0, 1000), commands.Basic.QosOk)
        client.call(1, commands.Basic.Consume(0, names.queue, TAG), commands.Basic.ConsumeOk)
        consumer = Consumer(client, delivery_layout(names, size), numbers, came)
        pipe.send(True)
        consumer.run(expected, until_ms)
    except (Refused, BrokerClosed, OSError) as error:
        fault = str(error)
    pipe.send((numbers.tobytes(), came.tobytes(), fault))


class Consumer(Link):
    """Notes the numbers that come and when, and acks."""

    def __init__(
        self, client: Client, layout: struct.Struct, numbers: array.array[int], came: array.array[float]
    ) -> None:
        super().__init__(*client.take(), READ_BYTES)
        self._layout = layout
        self._numbers = numbers
        self._came = came
        self._ack_head = encode.ack_head(1)

    def run(self, expected: int, until_ms: float) -> None:
        """Returns when that many have come, or nothing more until then."""
        numbers = self._numbers
        acked = 0
        while len(numbers) < expected or self.unsent:
            if not self.serve(max(0.1, (until_ms - now_ms()) / 1000)):
                return
            if len(numbers) - acked >= ACK_EVERY or (len(numbers) == expected and acked < expected):
                acked = len(numbers)
                self.send(self._ack_head + acked.to_bytes(8, "big") + b"\x01\xce")

    def parse(self, data: bytes, _: int) -> int:
        now = now_ms()
        whole = len(data) - len(data) % self._layout.size
        for head, number in self._layout.iter_unpack(memoryview(data)[:whole]):
            if head[7:11] != b"\x00\x3c\x00\x3c":
                raise Refused(words(head))
            self._numbers.append(number)
            self._came.append(now)
        return whole


# -- what came of it --------------------------------------------------------------------------------------------------


def percentiles(values: list[float]) -> dict[str, float]:
    values = sorted(values) or [0.0]
    return {
        name: round(values[min(len(values) - 1, int(len(values) * part))], 2) for name, part in PERCENTILES
    }


def judge(
    wanted: array.array[float],
    confirmed_after: array.array[float],
    numbers: array.array[int],
    came: array.array[float],
) -> dict[str, Any]:
    """Compares what came with what was wanted."""
    seen = bytearray(len(wanted))
    twice = early = disorder = 0
    at_most: list[float] = []
    at_least: list[float] = []
    behind_ms = highest = 0.0
    for number, at in zip(numbers, came, strict=True):
        twice += seen[number]
        seen[number] = 1
        want = wanted[number]
        surely = want + confirmed_after[number // BATCH]
        at_most.append(at - want)
        at_least.append(max(0.0, at - surely))
        early += at < want - 1  # the broker counts whole milliseconds
        if highest > surely + 1:
            disorder += 1
        behind_ms = max(behind_ms, highest - want)
        highest = max(highest, want)
    return {
        "received": len(numbers),
        "missing": seen.count(0),
        "twice": twice,
        "early": early,
        "disorder": disorder,
        "furthest_behind_ms": round(behind_ms, 1),
        "late_at_least_ms": percentiles(at_least),
        "late_at_most_ms": percentiles(at_most),
        "confirm_ms": percentiles(list(confirmed_after)),
    }


def measure(
    broker: Broker,
    messages: int,
    size: int,
    rate: float,
    lead_s: float,
    window_s: float,
    load_options: str,
    seed: int,
) -> dict[str, Any]:
    names = Names()
    alone = _load(broker, load_options, min(BASELINE_S, window_s)) if load_options else {}
    declare(broker.url, names)
    ours, theirs = multiprocessing.get_context("fork").Pipe()
    until_ms = now_ms() + (lead_s + window_s + PATIENCE) * 1000
    consumer = multiprocessing.get_context("fork").Process(
        target=consume, args=(broker.url, names, size, messages, until_ms, theirs)
    )
    consumer.start()
    if not ours.poll(PATIENCE):
        raise Refused("the consumer does not begin")
    first = ours.recv()
    if first is not True:
        raise Refused(first[2])
    publisher = Publisher(broker.url, names, size)
    rss_before, cpu_before = broker.rss_kib(), broker.cpu_s()
    beside: dict[str, Any] = {}
    traffic = threading.Thread(target=_beside, args=(broker, load_options, lead_s + window_s, beside))
    if load_options:
        traffic.start()
    began = time.monotonic()
    publisher.run(messages, rate, lead_s, window_s, seed)
    publish_s = time.monotonic() - began
    rss_published = broker.rss_kib()
    numbers, came = array.array("Q"), array.array("d")
    raw_numbers, raw_came, fault = ours.recv()
    numbers.frombytes(raw_numbers)
    came.frombytes(raw_came)
    consumer.join()
    publisher.close()
    if load_options:
        traffic.join()
    result = {
        "broker": broker.build,
        "messages": messages,
        "size": size,
        "rate": rate,
        "lead_s": lead_s,
        "window_s": window_s,
        "publish_s": round(publish_s, 2),
        "publish_per_s": round(messages / publish_s),
        "rss_before_mib": round(rss_before / 1024, 1),
        "rss_published_mib": round(rss_published / 1024, 1),
        "ram_bytes_per_message": round((rss_published - rss_before) * 1024 / messages),
        "broker_cpu_s": round(broker.cpu_s() - cpu_before, 2),
        **judge(publisher.wanted, publisher.confirmed_after, numbers, came),
        "left": delete(broker.url, names),
        "load": load_options,
        "load_alone": alone,
        "load_beside": beside,
    }
    keys = ("missing", "twice", "early", "disorder", "left")
    faults = [f"{result[key]} {key}" for key in keys if result[key]]
    result["faults"] = faults + [text for text in (fault, beside.get("failed", "")) if text]
    return result


def _load(broker: Broker, options: str, seconds: float) -> dict[str, Any]:
    found = load(broker, options, seconds)
    return {key: found[key] for key in ("sent_per_s", "received_per_s", "latency_us", "confirm_latency_us")}


def _beside(broker: Broker, options: str, seconds: float, found: dict[str, Any]) -> None:
    try:
        found.update(_load(broker, options, seconds))
    except RunFailed as error:
        found["failed"] = str(error)


def table(result: dict[str, Any]) -> Table:
    made = Table(title=f"{result['messages']:,} delayed messages over {result['window_s']:g} s")
    made.add_column("ms")
    for name, _ in PERCENTILES:
        made.add_column(name, justify="right")
    for title, key in (
        ("late, at least", "late_at_least_ms"),
        ("late, at most", "late_at_most_ms"),
        ("publish to confirm", "confirm_ms"),
    ):
        made.add_row(title, *(f"{result[key][name]:,.1f}" for name, _ in PERCENTILES))
    for title, run in (
        ("other traffic, alone", result["load_alone"]),
        ("other traffic, beside", result["load_beside"]),
    ):
        figures = run.get("latency_us") or {}
        if figures:
            shown = [figures.get(name) for name, _ in PERCENTILES]
            made.add_row(title, *("" if value is None else f"{value / 1000:,.1f}" for value in shown))
    made.caption = (
        f"{result['missing']} missing, {result['twice']} twice, {result['early']} early, {result['disorder']} in disorder; "
        f"{result['publish_per_s']:,} published/s; {result['ram_bytes_per_message']} bytes of RAM a message"
    )
    return made


@click.command(context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
@brokers.options
@click.option("--messages", type=click.IntRange(1), default=1_000_000, help="Delayed messages.")
@click.option("--size", type=click.IntRange(8, 100_000), default=100, help="Bytes of a body.")
@click.option("--rate", type=click.FloatRange(1), default=15_000.0, help="Publishes a second, at most.")
@click.option(
    "--lead", type=click.FloatRange(0), default=90.0, help="Seconds from the first publish to the window."
)
@click.option("--window", type=click.FloatRange(0.1), default=120.0, help="Seconds over which they are due.")
@click.option(
    "--load",
    "load_options",
    default="-s 100 -c 100 -Q 100 -r 5000",
    help="The other traffic, as options of perf.load; empty for none.",
)
@click.option("--seed", type=int, default=1, help="Of the delays.")
@click.option(
    "--quick", is_flag=True, help=f"{QUICK['messages']:,} messages in a few seconds: whether it works."
)
@click.option("--save", is_flag=True, help="Write the result to perf/results as well.")
def main(
    messages: int,
    size: int,
    rate: float,
    lead: float,
    window: float,
    load_options: str,
    seed: int,
    quick: bool,
    save: bool,
    **which: Any,
) -> None:
    """Delay many messages, and see whether they come in order and on time."""
    if quick:
        messages, rate, lead, window = int(QUICK["messages"]), QUICK["rate"], QUICK["lead"], QUICK["window"]
    try:
        with brokers.one(**which) as broker:
            result = measure(broker, messages, size, rate, lead, window, load_options, seed)
    except (StartFailed, Refused, RunFailed) as error:
        raise click.ClickException(str(error)) from None
    if save:
        click.echo(f"written to {machine.save('delayed', result)}", err=True)
    Console(stderr=True).print(table(result))
    click.echo(json.dumps(result, indent=1))
    if result["faults"]:
        sys.exit(1)


if __name__ == "__main__":
    main(prog_name="python -m perf.delayed")
