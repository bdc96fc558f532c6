"""Does the broker grow while consumers come and go? Queues in all confirm modes, and its memory each second.

    python -m perf.soak --secs 600

Each queue has a producer with a window of unconfirmed publishes, and consumers that live for a moment: they ack what they
can, then close their channel or their connection, drop the socket, or requeue what they hold. In the end they stay until
every publish has been told.

Exit code 1 when memory grew: the median of the last quarter is more than `--growth` MiB above that of the second (the first
warms up); or when a publish was told twice or never, or the broker still counts one as waiting.
"""

from __future__ import annotations

import contextlib
import json
import random
import select
import statistics
import threading
import time
from typing import Any

import click
from pamqp import body, commands, header

from perf import brokers, machine
from perf.brokers import Broker, StartFailed
from perf.load.client import Address, Client, Refused
from perf.memory_pressure import metrics_of
from perf.waiting_memory import MODES, encoded

WINDOW = 1_000
CONSUMERS = 3
PREFETCH = 100
END_PATIENCE_S = 60.0


class Producer(threading.Thread):
    """Publishes to one queue; every publish is told once, or `faults` says so."""

    def __init__(self, address: Address, queue: str, mode: str, size: int, stop: threading.Event) -> None:
        super().__init__(daemon=True)
        self.client = Client(address, f"producer of {queue}")
        self.client.open_channel(1)
        declare = commands.Queue.Declare(queue=queue, durable=True, arguments={"x-confirm-mode": mode})
        self.client.call(1, declare, commands.Queue.DeclareOk)
        self.client.call(1, commands.Confirm.Select(), commands.Confirm.SelectOk)
        self.one = encoded(1, size, queue)
        self.stop = stop
        self.published = 0
        self.unconfirmed: dict[int, None] = {}
        self.confirmed = 0
        self.nacked = 0
        self.faults: list[str] = []

    def run(self) -> None:
        try:
            while not self.stop.is_set() or self.unconfirmed:
                room = WINDOW - len(self.unconfirmed)
                if room > WINDOW // 10 and not self.stop.is_set():
                    self.publish(room)
                self.read()
        except Refused as error:
            self.faults.append(str(error))

    def publish(self, count: int) -> None:
        for _ in range(count):
            self.published += 1
            self.unconfirmed[self.published] = None
        self.client.sock.sendall(self.one * count)

    def read(self) -> None:
        """One confirm, or whatever comes in a tenth of a second."""
        if not self.client.unread:
            self.client.sock.settimeout(0.1)
            try:
                self.client.unread = self.client.sock.recv(65_536)
            except TimeoutError:
                return
            finally:
                self.client.sock.settimeout(30)
        while self.client.unread:
            self.take(self.client.receive(commands.Basic.Ack | commands.Basic.Nack))  # type: ignore[arg-type]

    def take(self, answer: Any) -> None:
        tags = [answer.delivery_tag]
        if answer.multiple:
            tags = [tag for tag in self.unconfirmed if tag <= answer.delivery_tag]
        elif answer.delivery_tag not in self.unconfirmed:
            self.faults.append(f"{answer.delivery_tag} was told twice")
        for tag in tags:
            self.unconfirmed.pop(tag, None)
        if isinstance(answer, commands.Basic.Ack):
            self.confirmed += len(tags)
        else:
            self.nacked += len(tags)


class Visitor(threading.Thread):
    """Consumers of one queue, one after the other; after `stop` they only ack, until `end`."""

    def __init__(self, address: Address, queue: str, mode: str, stop: threading.Event, end: threading.Event) -> None:
        super().__init__(daemon=True)
        self.address = address
        self.queue = queue
        self.mode = mode
        self.stop = stop
        self.end = end
        self.random = random.Random(queue)
        self.lives = 0
        self.acked = 0

    def run(self) -> None:
        while not self.end.is_set():
            with contextlib.suppress(Refused, OSError):
                self.live()

    def live(self) -> None:
        self.lives += 1
        client = Client(self.address, f"consumer of {self.queue}")
        client.open_channel(1)
        client.call(1, commands.Basic.Qos(prefetch_count=PREFETCH), commands.Basic.QosOk)
        client.call(1, commands.Basic.Consume(queue=self.queue), commands.Basic.ConsumeOk)
        until = time.monotonic() + self.random.uniform(0.2, 3.0)
        tag = acked = 0
        while not self.end.is_set() and (self.stop.is_set() or time.monotonic() < until):
            if not arrives(client, 0.1):
                client.send(1, commands.Basic.Ack(0, True))  # whatever is left of what it holds
                acked = tag
                continue
            tag = delivery_tag_of_next(client)
            if tag % 10 == 0:
                client.send(1, commands.Basic.Ack(tag, True))
                self.acked += tag - acked
                acked = tag
        self.leave(client)

    def leave(self, client: Client) -> None:
        how = self.random.choice(("channel", "connection", "socket", "requeue"))
        if how == "channel":
            client.call(1, commands.Channel.Close(200, "", 0, 0), commands.Channel.CloseOk)
        if how == "requeue":  # in the light mode that closes the channel
            client.send(1, commands.Basic.Nack(0, True, True))
        if how == "socket":
            client.sock.close()
        else:
            client.close()


def arrives(client: Client, seconds: float) -> bool:
    """True when there is something to read within that time."""
    return bool(client.unread) or bool(select.select([client.sock], [], [], seconds)[0])


def delivery_tag_of_next(client: Client) -> int:
    """Reads a delivery to the end of its body, so that what is unread then is of another one."""
    tag: int = client.receive(commands.Basic.Deliver).delivery_tag
    left = client.receive(header.ContentHeader).body_size  # type: ignore[arg-type]
    while left > 0:
        left -= len(client.receive(body.ContentBody).value)  # type: ignore[arg-type]
    return tag


def measure(broker: Broker, secs: float, size: int) -> dict[str, Any]:
    address = Address.parse(broker.url)
    read_metrics = metrics_of(broker)
    stop, end = threading.Event(), threading.Event()
    producers = [Producer(address, f"soak {mode}", mode, size, stop) for mode in MODES]
    visitors = [
        Visitor(address, f"soak {mode}", mode, stop, end) for mode in MODES for _ in range(CONSUMERS)
    ]
    for thread in [*producers, *visitors]:
        thread.start()
    samples = []
    began = time.monotonic()
    while time.monotonic() - began < secs:
        time.sleep(min(1.0, secs / 20))
        samples.append(
            {
                "at_s": round(time.monotonic() - began, 1),
                "rss_kib": broker.rss_kib(),
                "confirmed": sum(each.confirmed for each in producers),
                "nacked": sum(each.nacked for each in producers),
                "consumers": sum(each.lives for each in visitors),
            }
        )
    stop.set()
    for producer in producers:
        producer.join(END_PATIENCE_S)
    end.set()
    for visitor in visitors:
        visitor.join(END_PATIENCE_S)
    faults = [fault for producer in producers for fault in producer.faults]
    faults += [f"{len(each.unconfirmed)} publishes were never told" for each in producers if each.unconfirmed]
    still_waiting = read_metrics()["rabbitpy_queue_publishes_waiting"]
    if still_waiting:
        faults.append(f"the broker still counts {still_waiting:.0f} publishes as waiting")
    return {"grown_mib": grown_mib(samples), "faults": faults, "samples": samples}


def grown_mib(samples: list[dict[str, Any]]) -> float:
    """From the second quarter to the last."""
    quarter = len(samples) // 4
    before = statistics.median(each["rss_kib"] for each in samples[quarter : 2 * quarter])
    after = statistics.median(each["rss_kib"] for each in samples[-quarter:])
    return round((after - before) / 1024, 2)


@click.command(context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
@click.option("--broker", "command", default=brokers.DEFAULT_COMMAND, help="Command that starts rabbitpy-broker.")
@click.option("--secs", type=click.FloatRange(4), default=600.0, help="How long consumers come and go.")
@click.option("--size", type=click.IntRange(1), default=100, help="Bytes of each body.")
@click.option("--growth", type=float, default=8.0, help="MiB by which memory may be larger in the end.")
@click.option("--save", is_flag=True, help="Write the result to perf/results as well.")
def main(command: str, secs: float, size: int, growth: float, save: bool) -> None:
    """Let consumers come and go, and see whether the broker grows."""
    try:
        with brokers.rabbitpy(command) as broker:
            result = {"broker": broker.build, "secs": secs, "body_bytes": size, **measure(broker, secs, size)}
    except (StartFailed, Refused) as error:
        raise click.ClickException(str(error)) from None
    if result["grown_mib"] > growth:
        result["faults"].append(f"memory grew by {result['grown_mib']} MiB")
    result |= machine.describe()
    if save:
        click.echo(f"written to {machine.save('soak', result)}", err=True)
    click.echo(json.dumps(result, indent=1))
    if result["faults"]:
        raise SystemExit(1)


if __name__ == "__main__":
    main(prog_name="python -m perf.soak")
