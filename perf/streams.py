"""How fast are streams? A backlog that one consumer reads, and many consumers at the tail beside a fanout to as many queues.

    python -m perf.streams --messages 300000 --size 1024 --consumers 10

The consumers only count bytes: all deliveries of a phase are equally long. They ack every 4,000 and have a prefetch of
20,000; the publisher has up to 6,000 messages unconfirmed. What counts is the broker's CPU time, since the clients share the
machine with it: `cpu_us` is for one delivery of a backlog, and for one publish with all its deliveries at the tail.
"""

from __future__ import annotations

import json
import multiprocessing
import select
import struct
import sys
import time
from pathlib import Path
from typing import Any

import click
from pamqp import commands

from perf import brokers, machine
from perf.backlog import new_name
from perf.brokers import Broker, StartFailed
from perf.load.client import Address, Client, Refused

PREFETCH = 20_000
ACK_EVERY = 4_000
WINDOW = 6_000
BATCH = 200
READ_BYTES = 1 << 20
PATIENCE = 60.0
QUICK_MESSAGES = 5_000
STREAM = {"x-queue-type": "stream"}
OFFSET_BYTES = 4 + 25  # a headers table with x-stream-offset


def frame(kind: int, payload: bytes) -> bytes:
    return struct.pack(">BHI", kind, 1, len(payload)) + payload + b"\xce"


def client(broker: Broker) -> Client:
    made = Client(Address.parse(broker.url))
    made.open_channel(1)
    return made


def publish(broker: Broker, exchange: str, key: str, messages: int, size: int) -> None:
    """Publishes with confirms; returns when all are confirmed. Raises Refused."""
    one = client(broker)
    one.call(1, commands.Confirm.Select(), commands.Confirm.SelectOk)
    method = b"\x00\x3c\x00\x28\x00\x00" + short(exchange) + short(key) + b"\x00"
    header = struct.pack(">HHQHB", 60, 0, size, 0x1000, 2)
    batch = (frame(1, method) + frame(2, header) + frame(3, b"x" * size)) * BATCH
    sock, unread = one.take()
    sent = confirmed = 0
    while confirmed < messages:
        while sent < messages and sent - confirmed < WINDOW:
            sock.sendall(batch)
            sent += BATCH
        data = sock.recv(65_536)
        if not data:
            raise Refused("the broker hung up on the publisher")
        unread += data
        while len(unread) >= 21:  # an ack or a nack
            confirmed = struct.unpack_from(">Q", unread, 11)[0]
            unread = unread[21:]
    sock.close()


def short(text: str) -> bytes:
    return bytes([len(text)]) + text.encode("ascii")


class Counter:
    """A consumer that counts the deliveries, of `size` bytes each."""

    def __init__(self, broker: Broker, queue: str, arguments: dict[str, Any], size: int) -> None:
        one = client(broker)
        one.call(1, commands.Basic.Qos(prefetch_count=PREFETCH), commands.Basic.QosOk)
        consume = commands.Basic.Consume(queue=queue, consumer_tag="c", arguments=arguments)
        one.call(1, consume, commands.Basic.ConsumeOk)
        self.sock, unread = one.take()
        self.size = size
        self.bytes = len(unread)
        self.acked = 0

    def fileno(self) -> int:
        return self.sock.fileno()

    def read(self, buffer: bytearray) -> int:
        """Reads once, and acks now and then; how many have come."""
        count = self.sock.recv_into(buffer)
        if not count:
            raise Refused("the broker hung up on a consumer")
        self.bytes += count
        received = self.bytes // self.size
        if received - self.acked >= ACK_EVERY:
            self.acked = received
            self.sock.sendall(frame(1, b"\x00\x3c\x00\x50" + struct.pack(">QB", received, 1)))
        return received


def delivery_bytes(exchange: str, key: str, size: int, added: int) -> int:
    method = 4 + 2 + 8 + 1 + 1 + len(exchange) + 1 + len(key)
    return (8 + method) + (8 + 15 + added) + (8 + size)


def count_all(counters: list[Counter], messages: int) -> None:
    """Returns when each has had so many. Raises Refused."""
    buffer = bytearray(READ_BYTES)
    left = set(counters)
    while left:
        ready, _, _ = select.select(left, [], [], PATIENCE)
        if not ready:
            raise Refused(f"nothing came for {PATIENCE:g} s")
        for counter in ready:
            if counter.read(buffer) >= messages:
                left.discard(counter)
    for counter in counters:
        counter.sock.close()


class Phase:
    """Wall and CPU time from its making on."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.began, self.cpu = time.monotonic(), broker.cpu_s()

    def result(self, count: int) -> dict[str, Any]:
        seconds, cpu = time.monotonic() - self.began, self.broker.cpu_s() - self.cpu
        return {
            "per_s": round(count / seconds),
            "cpu_us": round(cpu / count * 1e6, 3),
            "rss_mib": self.broker.rss_kib() >> 10,
        }


def backlog(broker: Broker, messages: int, size: int) -> dict[str, Any]:
    """One consumer reads what is there, twice."""
    name = new_name()
    with client(broker) as admin:
        declare(admin, name, STREAM)
        phase = Phase(broker)
        publish(broker, "", name, messages, size)
        found = {"publish": phase.result(messages)}
        for label in ("read", "read_again"):
            phase = Phase(broker)
            one = Counter(broker, name, {"x-stream-offset": "first"}, delivery_bytes("", name, size, OFFSET_BYTES))
            count_all([one], messages)
            found[label] = phase.result(messages)
        admin.call(1, commands.Queue.Delete(queue=name), commands.Queue.DeleteOk)
    return found


def tail(broker: Broker, messages: int, size: int, consumers: int, is_stream: bool) -> dict[str, Any]:
    """So many consumers of one stream, or of a queue each, while somebody publishes."""
    name = new_name()
    queues = [name] if is_stream else [f"{name}-{number}" for number in range(consumers)]
    with client(broker) as admin:
        admin.call(1, commands.Exchange.Declare(exchange=name, exchange_type="fanout"), commands.Exchange.DeclareOk)
        for queue in queues:
            declare(admin, queue, STREAM if is_stream else {})
            admin.call(1, commands.Queue.Bind(queue=queue, exchange=name, routing_key=""), commands.Queue.BindOk)
        each = delivery_bytes(name, "k", size, OFFSET_BYTES if is_stream else 0)
        counters = [Counter(broker, queues[number % len(queues)], {}, each) for number in range(consumers)]
        publisher = multiprocessing.Process(target=publish, args=(broker, name, "k", messages, size))
        publisher.start()
        phase = Phase(broker)
        count_all(counters, messages)
        found = phase.result(messages)
        publisher.join()
        for queue in queues:
            admin.call(1, commands.Queue.Delete(queue=queue), commands.Queue.DeleteOk)
        admin.call(1, commands.Exchange.Delete(exchange=name), commands.Exchange.DeleteOk)
    return found


def declare(admin: Client, queue: str, arguments: dict[str, Any]) -> None:
    admin.call(1, commands.Queue.Declare(queue=queue, durable=True, arguments=arguments), commands.Queue.DeclareOk)


def measure(broker: Broker, messages: int, size: int, consumers: int) -> dict[str, Any]:
    """All phases. Raises Refused."""
    found = {"broker": broker.build, "messages": messages, "size": size, "consumers": consumers}
    found["backlog"] = backlog(broker, messages, size)
    found["tail"] = tail(broker, messages, size, consumers, True)
    found["fanout"] = tail(broker, messages, size, consumers, False)
    found["tail_to_fanout"] = round(found["tail"]["cpu_us"] / max(found["fanout"]["cpu_us"], 0.001), 2)
    return found


@click.command(context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
@brokers.options
@click.option("--messages", type=click.IntRange(BATCH), default=300_000, help="Messages of each phase.")
@click.option("--size", type=click.IntRange(1, 100_000), default=1_024, help="Bytes of a body.")
@click.option("--consumers", type=click.IntRange(1), default=10, help="Consumers at the tail, and queues beside them.")
@click.option("--quick", is_flag=True, help=f"{QUICK_MESSAGES:,} messages: whether it works.")
@click.option("--save", is_flag=True, help="Write the result to perf/results as well.")
@click.option("--output", type=click.Path(dir_okay=False, path_type=Path), help="Write it to this file.")
def main(
    messages: int, size: int, consumers: int, quick: bool, save: bool, output: Path | None, **which: Any
) -> None:
    """Prints what streams cost a broker, as JSON."""
    messages = (QUICK_MESSAGES if quick else messages) // BATCH * BATCH
    try:
        with brokers.one(**which) as broker:
            result = measure(broker, messages, size, consumers)
    except (StartFailed, Refused) as error:
        click.echo(f"streams: {error}", err=True)
        sys.exit(1)
    result = {"command": machine.command("streams"), **result, "machine": machine.describe()}
    if save or output is not None:
        click.echo(f"written to {machine.save('streams', result, output)}", err=True)
    click.echo(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
