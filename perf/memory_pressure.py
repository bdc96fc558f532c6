"""Does memory stay near the mark while a queue grows far beyond it? A backlog of 4 GiB against a watermark of 256 MiB.

    python -m perf.memory_pressure --mark 256MiB --backlog 4GiB

Publishes the backlog with confirms, then drains it, once with persistent and once with transient messages, each on a
broker of its own. Each second it puts down memory, disk, confirms and the broker's own counters of where its messages are
(/metrics). It tells the peak against the mark, how the publish rate went on, and when and for how long the broker blocked
the publisher (connection.blocked).

A broker that blocks for longer than `--patience` is taken by its word: publishing ends, and what was confirmed is drained.
Exit code 1 when a confirmed message does not come back or comes out of order; the peak is told and not judged.
"""

from __future__ import annotations

import contextlib
import http.client
import re
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from perf import backlog, brokers, numbered, watch
from perf.brokers import Broker, StartFailed
from perf.load.client import Address, Refused
from perf.numbered import Backlog, Consumer, Publisher
from perf.watch import Watch

LISTENING = "0A"
SCRAPE_TIMEOUT = 5.0
METRIC = re.compile(r"^(rabbitpy_(?:queue|store|journal|memory)_\w+)(?:\{[^}]*\})? (\S+)", re.MULTILINE)
QUICK_BYTES = 16 << 20
BYTES = re.compile(r"(\d+)(KiB|MiB|GiB|)")
UNITS = {"": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}


def listening_ports(process: int) -> list[int]:
    """The TCP ports on which a process listens."""
    sockets = set()
    for link in Path(f"/proc/{process}/fd").iterdir():
        with contextlib.suppress(OSError):  # closed since it was listed
            sockets.add(str(link.readlink()))
    found = []
    for line in Path(f"/proc/{process}/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[3] == LISTENING and f"socket:[{fields[9]}]" in sockets:
            found.append(int(fields[1].rpartition(":")[2], 16))
    return found


def scrape(port: int) -> str:
    """The metrics page; empty where there is none, or none in time."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=SCRAPE_TIMEOUT) as page:
            return page.read().decode() if page.status == 200 else ""
    except (OSError, http.client.HTTPException):  # URLError is an OSError
        return ""


def metrics_of(broker: Broker) -> Callable[[], dict[str, float]]:
    """Reads the broker's counters of its messages and its store, summed over labels."""
    assert broker.session is not None
    amqp = Address.parse(broker.url).port
    port = next((port for port in listening_ports(broker.session) if port != amqp and scrape(port)), None)
    if port is None:
        raise StartFailed("the broker serves no metrics")

    def read() -> dict[str, float]:
        found: dict[str, float] = {}
        for name, value in METRIC.findall(scrape(port)):
            found[name] = found.get(name, 0) + float(value)
        return found

    return read


def measure(broker: Broker, load: Backlog, mark_bytes: int, patience: float) -> dict[str, Any]:
    """Publishes and drains one backlog."""
    read_metrics = metrics_of(broker)
    numbered.declare(broker.url, load, durable=load.persistent)
    publisher = Publisher(broker.url, load, backlog.WINDOW)
    broker_cpu = broker.cpu_s()

    def publishing() -> dict[str, Any]:
        return {
            "confirmed": publisher.confirmed,
            "blocked": publisher.blocked_since is not None,
            **read_metrics(),
        }

    with Watch(broker, publishing) as filling:
        whole = publisher.run(patience)
    broker_cpu = broker.cpu_s() - broker_cpu
    publisher.close()
    watch.add_rates(filling.rows, "confirmed")
    blocked_s = sum(block["seconds"] for block in publisher.blocked)
    mark_mib = watch.mib(mark_bytes)
    published = {
        "all_settled": whole,
        "confirmed": publisher.confirmed,
        "nacked": publisher.nacked,
        **backlog.rates(publisher.settled, publisher.half_s, publisher.end_s),
        "blocked_s": round(blocked_s, 2),
        "blocked": publisher.blocked,
        "rss_peak_mib": filling.peak_mib,
        "rss_end_mib": filling.end_mib,
        "peak_to_mark": round(filling.peak_mib / mark_mib, 3),
        "disk_mib": filling.rows[-1]["disk_mib"],
        "broker_cpu_s": round(broker_cpu, 2),
        "samples": filling.rows,
    }
    consumer = Consumer(broker.url, load, backlog.PREFETCH, backlog.ACK_EVERY)
    with Watch(broker, lambda: {"received": consumer.received, **read_metrics()}) as draining:
        consumer.run(publisher.confirmed, backlog.PATIENCE)
    consumer.close()
    watch.add_rates(draining.rows, "received")
    drained = {
        "received": consumer.received,
        "missing": consumer.missing,
        "out_of_order": consumer.out_of_order,
        # What a publisher that gave up had sent and the broker took later is no surplus.
        "left": numbered.delete(broker.url, load.queue_names),
        **backlog.rates(consumer.received, consumer.half_s, consumer.end_s),
        "rss_peak_mib": draining.peak_mib,
        "rss_end_mib": draining.end_mib,
        "peak_to_mark": round(draining.peak_mib / mark_mib, 3),
        "samples": draining.rows,
    }
    return {"publish": published, "drain": drained, "faults": faults(publisher, drained)}


def faults(publisher: Publisher, drained: dict[str, Any]) -> list[str]:
    """What is wrong with what came back. What was sent and never settled may be there or not."""
    found = []
    came = drained["received"] + drained["left"]
    if not publisher.confirmed <= came <= publisher.published:
        found.append(
            f"{came} messages of {publisher.confirmed} confirmed and {publisher.published} published"
        )
    if drained["missing"] > publisher.nacked:
        found.append(f"{drained['missing']} messages missing")
    if drained["out_of_order"]:
        found.append(f"{drained['out_of_order']} messages late or twice")
    return found


def said(form: str, result: dict[str, Any], mark_mib: float) -> str:
    publish, drain = result["publish"], result["drain"]
    ended = "" if publish["all_settled"] else "; publishing was given up"
    return (
        f"{form:10} {backlog.summary(publish)}; peak {publish['peak_to_mark']:.2f} of the mark of {mark_mib:,} MiB; "
        f"blocked {len(publish['blocked'])} times, {publish['blocked_s']} s{ended}\n"
        f"{'':10} drained {drain['per_s'] or 0:,} msg/s, memory at most {drain['rss_peak_mib']:,} MiB"
    )


def byte_count(_context: click.Context, _parameter: click.Parameter, value: str) -> int:
    match = BYTES.fullmatch(value)
    if match is None or match[1] == "0":
        raise click.BadParameter("bytes, or a number with KiB, MiB or GiB")
    return int(match[1]) * UNITS[match[2]]


@click.command(context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
@click.option(
    "--broker", "command", default=brokers.DEFAULT_COMMAND, help="Command that starts rabbitpy-broker."
)
@click.option(
    "--config",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="TOML file, without the mark.",
)
@click.option("--mark", "mark_bytes", default="256MiB", callback=byte_count, help="vm_memory_high_watermark.")
@click.option("--backlog", "backlog_bytes", default="4GiB", callback=byte_count, help="Bytes of all bodies.")
@click.option(
    "--size",
    type=click.IntRange(numbered.NUMBER_BYTES, numbered.LARGEST),
    default=1000,
    help="Bytes of a body.",
)
@click.option("--queues", type=click.IntRange(1), default=1, help="Queues that share the backlog.")
@click.option(
    "--form",
    type=click.Choice(["both", "persistent", "transient"]),
    default="both",
    help="Persistent messages in durable queues, or transient ones in transient queues.",
)
@click.option(
    "--patience", type=click.FloatRange(0.1), default=60.0, help="Seconds to wait for a broker that blocks."
)
@watch.dir_option
@click.option("--quick", is_flag=True, help=f"A backlog of {QUICK_BYTES >> 20} MiB: whether it works.")
@click.option("--save", is_flag=True, help="Write the result to perf/results as well.")
@click.option("--output", type=click.Path(dir_okay=False, path_type=Path), help="Write it to this file.")
def main(
    command: str,
    config: Path | None,
    mark_bytes: int,
    backlog_bytes: int,
    size: int,
    queues: int,
    form: str,
    patience: float,
    folder: Path,
    quick: bool,
    save: bool,
    output: Path | None,
) -> None:
    """Publish far more than the memory watermark allows, and drain it."""
    backlog_bytes = QUICK_BYTES if quick else backlog_bytes
    disk = watch.use_disk(folder)
    # A key of the top level: it goes before whatever tables the file has.
    settings = f"vm_memory_high_watermark = {mark_bytes}\n" + (config.read_text() if config else "")
    found: dict[str, dict[str, Any]] = {}
    try:
        for kind in ["persistent", "transient"] if form == "both" else [form]:
            each = max(1, backlog_bytes // size // queues)
            load = Backlog(backlog.new_name(), queues, each, size, persistent=kind == "persistent")
            with brokers.rabbitpy(command, config=settings) as broker:
                found[kind] = measure(broker, load, mark_bytes, patience)
                build = broker.build
            click.echo(said(kind, found[kind], watch.mib(mark_bytes)), err=True)
    except (StartFailed, Refused) as error:
        raise click.ClickException(str(error)) from None
    result = {
        "file_system": disk,
        "broker": build,
        "mark_mib": watch.mib(mark_bytes),
        "backlog_mib": watch.mib(backlog_bytes),
        "queues": queues,
        "size": size,
        "forms": found,
        "faults": [f"{kind}: {fault}" for kind, one in found.items() for fault in one["faults"]],
    }
    backlog.finish("memory_pressure", result, save, output)


if __name__ == "__main__":
    main(prog_name="python -m perf.memory_pressure")
