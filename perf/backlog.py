"""What do ten million messages in a queue cost? Publishes a backlog with nobody consuming, then drains it.

    python -m perf.backlog --messages 10000000 --size 1000
    python -m perf.backlog --queues 1000 --messages-per-queue 1000

Publishing is with confirms, persistent, to durable queues; draining acks every 50. For both it tells the rate, that of
each half (does it fall as the queue grows?), memory and disk through time. Each message has a number: what comes back
is compared with what was confirmed, in count and order. Exit code 1 when they differ.
"""

from __future__ import annotations

import json
import sys
import time
import uuid
from pathlib import Path
from typing import Any

import click

from perf import brokers, machine, numbered, watch
from perf.brokers import Broker, StartFailed
from perf.load.client import Refused
from perf.numbered import Backlog, Consumer, Publisher
from perf.watch import Watch

# Confirms, prefetch and acks as in side_by_side's publish-backlog and drain-backlog.
WINDOW = 1000
PREFETCH = 1000
ACK_EVERY = 50
PATIENCE = 60.0
QUICK_MESSAGES = 20_000


def new_name() -> str:
    return f"perf-{uuid.uuid4().hex[:8]}"


def publish(
    broker: Broker, backlog: Backlog, window: int = WINDOW, patience: float = PATIENCE
) -> dict[str, Any]:
    """Publishes the backlog to queues that are there. Raises Refused when the broker stops taking any."""
    empty_mib = watch.mib(broker.rss_kib() << 10)
    publisher = Publisher(broker.url, backlog, window)
    cpu, broker_cpu = time.process_time(), broker.cpu_s()
    with Watch(broker, lambda: {"confirmed": publisher.confirmed}) as seen:
        whole = publisher.run(patience)
    cpu, broker_cpu = time.process_time() - cpu, broker.cpu_s() - broker_cpu
    publisher.close()
    if not whole:
        raise Refused(
            f"{publisher.settled} of {backlog.messages} publishes were settled, then none for {patience:g} s"
        )
    return {
        "confirmed": publisher.confirmed,
        "nacked": publisher.nacked,
        **rates(publisher.settled, publisher.half_s, publisher.end_s),
        "rss_before_mib": empty_mib,
        "rss_peak_mib": seen.peak_mib,
        "rss_end_mib": seen.end_mib,
        "disk_mib": seen.rows[-1]["disk_mib"],
        "broker_cpu_s": round(broker_cpu, 2),
        "client_cpu_s": round(cpu, 2),
        "samples": seen.rows,
    }


def drain(broker: Broker, backlog: Backlog, expected: int, patience: float = PATIENCE) -> dict[str, Any]:
    """Consumes and acks so many, deletes the queues, and says what was wrong with the messages. Raises Refused."""
    consumer = Consumer(broker.url, backlog, PREFETCH, ACK_EVERY)
    cpu, broker_cpu = time.process_time(), broker.cpu_s()
    with Watch(broker, lambda: {"received": consumer.received}) as seen:
        consumer.run(expected, patience)
    cpu, broker_cpu = time.process_time() - cpu, broker.cpu_s() - broker_cpu
    consumer.close()
    return {
        "received": consumer.received,
        "redelivered": consumer.redelivered,
        "missing": consumer.missing,
        "out_of_order": consumer.out_of_order,
        "left": numbered.delete(broker.url, backlog.queue_names),
        **rates(consumer.received, consumer.half_s, consumer.end_s),
        "rss_peak_mib": seen.peak_mib,
        "rss_end_mib": seen.end_mib,
        "disk_mib": seen.rows[-1]["disk_mib"],
        "broker_cpu_s": round(broker_cpu, 2),
        "client_cpu_s": round(cpu, 2),
        "samples": seen.rows,
    }


def rates(count: int, half_s: float | None, end_s: float) -> dict[str, Any]:
    """How fast `count` messages went, and each half of them; what took no time to speak of has no rate."""
    found = {"seconds": round(end_s, 2), "per_s": round(count / end_s) if end_s > 0 else None}
    if half_s is not None and 0 < half_s < end_s:
        found["first_half_per_s"] = round(count / 2 / half_s)
        found["second_half_per_s"] = round(count / 2 / (end_s - half_s))
    return found


def faults(published: dict[str, Any], counted: int, drained: dict[str, Any]) -> list[str]:
    """What is wrong with what came back; nothing is wrong when this is empty. A nacked message may be there or not."""
    confirmed, nacked = published["confirmed"], published["nacked"]
    found = []
    if not confirmed <= counted <= confirmed + nacked:
        found.append(f"{counted} messages ready where {confirmed} were confirmed")
    if drained["received"] + drained["left"] != counted:
        found.append(f"{drained['received']} received and {drained['left']} left of {counted}")
    if drained["missing"] > nacked:
        found.append(f"{drained['missing']} messages missing")
    if drained["out_of_order"]:
        found.append(f"{drained['out_of_order']} messages late or twice")
    return found


def measure(broker: Broker, backlog: Backlog) -> dict[str, Any]:
    numbered.declare(broker.url, backlog, durable=True)
    published = publish(broker, backlog)
    click.echo(f"published: {summary(published)}", err=True)
    counted = numbered.ready(broker.url, backlog.queue_names)
    drained = drain(broker, backlog, counted)
    click.echo(f"drained:   {summary(drained)}", err=True)
    return {
        "broker": broker.build,
        "queues": backlog.queues,
        "messages": backlog.messages,
        "size": backlog.size,
        "publish": published,
        "ready": counted,
        "drain": drained,
        "faults": faults(published, counted, drained),
    }


def summary(phase: dict[str, Any]) -> str:
    """One line of a phase."""
    rate = "–" if phase["per_s"] is None else f"{phase['per_s']:,}"
    return (
        f"{rate} msg/s in {phase['seconds']:,} s; memory at most {phase['rss_peak_mib']:,} MiB, "
        f"at the end {phase['rss_end_mib']:,}; disk {phase['disk_mib']:,} MiB"
    )


def finish(tool: str, result: dict[str, Any], save: bool, output: Path | None) -> None:
    """Prints the result, writes it where that is wanted, and ends with 1 when it has faults."""
    result = {"command": machine.command(tool), **result}
    if save or output is not None:
        click.echo(f"written to {machine.save(tool, result, output)}", err=True)
    click.echo(json.dumps(result, indent=1))
    for fault in result["faults"]:
        click.echo(f"FAULT: {fault}", err=True)
    if result["faults"]:
        sys.exit(1)


@click.command(context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
@brokers.options
@watch.dir_option
@click.option("--messages", type=click.IntRange(1), default=1_000_000, help="Messages, over all queues.")
@click.option("--queues", type=click.IntRange(1), default=1, help="Queues, published to in turn.")
@click.option("--messages-per-queue", type=click.IntRange(1), help="Instead of --messages.")
@click.option(
    "--size",
    type=click.IntRange(numbered.NUMBER_BYTES, numbered.LARGEST),
    default=1000,
    help="Bytes of a body.",
)
@click.option("--quick", is_flag=True, help=f"{QUICK_MESSAGES:,} messages: whether it works.")
@click.option("--save", is_flag=True, help="Write the result to perf/results as well.")
@click.option("--output", type=click.Path(dir_okay=False, path_type=Path), help="Write it to this file.")
def main(
    folder: Path,
    messages: int,
    queues: int,
    messages_per_queue: int | None,
    size: int,
    quick: bool,
    save: bool,
    output: Path | None,
    **which: Any,
) -> None:
    """Publish a backlog, weigh the broker, drain it, and check what came."""
    brokers.raise_file_limit()
    messages = QUICK_MESSAGES if quick else messages
    backlog = Backlog(new_name(), queues, messages_per_queue or max(1, messages // queues), size)
    disk = watch.use_disk(folder)
    try:
        with brokers.one(**which) as broker:
            result = measure(broker, backlog)
    except (StartFailed, Refused) as error:
        raise click.ClickException(str(error)) from None
    finish("backlog", {"file_system": disk, **result}, save, output)


if __name__ == "__main__":
    main(prog_name="python -m perf.backlog")
