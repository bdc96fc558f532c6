"""What does a publish cost in memory while it waits for its consumer's ack? 100,000 of them, in each confirm mode.

    python -m perf.waiting_memory --messages 100000

Each measurement has a broker of its own. A producer in confirm mode publishes persistent messages to a durable queue; then
they are ready, or handed out to a consumer without prefetch limit that acks none of them. Told is the growth of the
broker's resident memory for each message, body and all, after a first tenth that warms it up. In `persist` the same
messages are confirmed and kept: what the other modes take more is what the waiting costs.
"""

from __future__ import annotations

import json
import time
from typing import Any

import click
from pamqp import commands, frame, header

from perf import brokers, machine
from perf.brokers import Broker, StartFailed
from perf.load.client import Address, Client, Refused

MODES = ("persist", "consumer-ack", "consumer-ack-light")
STATES = ("ready", "handed out")
BATCH = 500
SETTLE_S = 3.0  # what the broker does about what it has, after the last message


def encoded(count: int, size: int, queue: str = "q") -> bytes:
    """So many persistent publishes to a queue, on channel 1."""
    properties = commands.Basic.Properties(delivery_mode=2)
    one = frame.marshal(commands.Basic.Publish(routing_key=queue), 1)
    one += frame.marshal(header.ContentHeader(0, size, properties), 1)
    one += b"\x03\x00\x01" + size.to_bytes(4, "big") + b"x" * size + b"\xce"
    return one * count


def publish(producer: Client, count: int, size: int) -> None:
    """Returns when the broker has read all of them."""
    batch = encoded(BATCH, size)
    for _ in range(count // BATCH):
        producer.sock.sendall(batch)
        producer.call(1, commands.Queue.Declare(queue="q", passive=True), commands.Queue.DeclareOk)


def measure(broker: Broker, mode: str, state: str, messages: int, size: int) -> dict[str, Any]:
    address = Address.parse(broker.url)
    with Client(address) as producer, Client(address) as consumer:
        producer.open_channel(1)
        consumer.open_channel(1)
        producer.call(
            1,
            commands.Queue.Declare(queue="q", durable=True, arguments={"x-confirm-mode": mode}),
            commands.Queue.DeclareOk,
        )
        producer.call(1, commands.Confirm.Select(), commands.Confirm.SelectOk)
        warm_up = max(messages // 10, BATCH)
        publish(producer, warm_up, size)
        if state == "handed out":
            consumer.call(1, commands.Basic.Consume(queue="q"), commands.Basic.ConsumeOk)
            receive(consumer, warm_up)
        time.sleep(SETTLE_S)
        before_kib = broker.rss_kib()
        publish(producer, messages, size)
        if state == "handed out":
            receive(consumer, messages)
        time.sleep(SETTLE_S)
        grown_kib = broker.rss_kib() - before_kib
        waiting = producer.call(1, commands.Queue.Declare(queue="q", passive=True), commands.Queue.DeclareOk)
    expected = messages + warm_up if state == "ready" else 0
    if waiting.message_count != expected:
        raise Refused(f"{waiting.message_count} messages are ready, {expected} should be")
    return {"mode": mode, "state": state, "bytes_a_message": round(grown_kib * 1024 / messages)}


def receive(consumer: Client, count: int) -> None:
    """Reads so many deliveries."""
    for _ in range(count):
        consumer.receive(header.ContentHeader)  # type: ignore[arg-type]


@click.command(context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
@click.option("--broker", "command", default=brokers.DEFAULT_COMMAND, help="Command that starts rabbitpy-broker.")
@click.option("--messages", type=click.IntRange(BATCH), default=100_000, help="Publishes that wait.")
@click.option("--size", type=click.IntRange(1), default=100, help="Bytes of each body.")
@click.option("--save", is_flag=True, help="Write the result to perf/results as well.")
def main(command: str, messages: int, size: int, save: bool) -> None:
    """Measure what a waiting publish takes, in each mode."""
    messages -= messages % BATCH
    rows = []
    build = ""
    try:
        for mode in MODES:
            for state in STATES:
                with brokers.rabbitpy(command) as broker:
                    rows.append(measure(broker, mode, state, messages, size))
                    build = broker.build
                click.echo(f"{mode:20} {state:11} {rows[-1]['bytes_a_message']:6} bytes", err=True)
    except (StartFailed, Refused) as error:
        raise click.ClickException(str(error)) from None
    result = {"broker": build, "messages": messages, "body_bytes": size, "results": rows, **machine.describe()}
    if save:
        click.echo(f"written to {machine.save('waiting_memory', result)}", err=True)
    click.echo(json.dumps(result, indent=1))


if __name__ == "__main__":
    main(prog_name="python -m perf.waiting_memory")
