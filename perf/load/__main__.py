"""The load generator's command line."""

from __future__ import annotations

import json
import os
import sys
import uuid
from typing import TYPE_CHECKING, Any

import click

from perf.build import ensure_compiled

if TYPE_CHECKING:
    from perf.load.plan import Plan


def size_list(_context: click.Context, _parameter: click.Parameter, value: str) -> tuple[int, ...]:
    try:
        sizes = tuple(int(part) for part in value.split(","))
    except ValueError:
        raise click.BadParameter("a number of bytes, or several with commas between") from None
    if min(sizes) < 0:
        raise click.BadParameter("a size is not negative")
    return sizes


def argument_table(
    _context: click.Context, _parameter: click.Parameter, values: tuple[str, ...]
) -> dict[str, Any]:
    table: dict[str, Any] = {}
    for value in values:
        name, equals, text = value.partition("=")
        if not equals:
            raise click.BadParameter(f"{value!r} is not NAME=VALUE")
        try:
            table[name] = json.loads(text)
        except ValueError:
            table[name] = text
    return table


def plan_of(queue: str | None, auto_ack: bool, ack_every: int, seconds: float | None, given: dict[str, Any]) -> Plan:
    """What the options say; `given` are those that a plan has as they are."""
    from perf.load.plan import Plan

    by_messages = given["messages"] > 0
    return Plan(
        **given | {"warmup": 0.0 if by_messages else given["warmup"]},
        queue=queue or f"perf-{uuid.uuid4().hex[:8]}",
        ack_every=0 if auto_ack else ack_every,
        seconds=seconds or (600.0 if by_messages else 10.0),
    )


@click.command(context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
@click.option(
    "--url",
    default="amqp://guest:guest@127.0.0.1:5672/",
    help="The broker, amqp://user:password@host:port/vhost.",
)
@click.option("-x", "--producers", type=click.IntRange(0), default=1, help="Connections that publish.")
@click.option("-y", "--consumers", type=click.IntRange(0), default=1, help="Connections that consume.")
@click.option(
    "-q", "--queues", type=click.IntRange(1), default=1, help="Queues; connection i uses queue i modulo this."
)
@click.option(
    "-X", "--producer-channels", type=click.IntRange(1), default=1, help="Channels of each producer."
)
@click.option(
    "-Y", "--consumer-channels", type=click.IntRange(1), default=1, help="Channels of each consumer."
)
@click.option("--spread", is_flag=True, help="Each channel uses the next queue, instead of each connection.")
@click.option(
    "-u",
    "--queue",
    help="The queue's name; with several queues, names are NAME-0, NAME-1 …  [default: a new one]",
)
@click.option(
    "-e", "--exchange", default="", help="Exchange to publish to; declared unless it is one of amq.*"
)
@click.option(
    "-t", "--type", "exchange_type", default="direct", help="Its type: direct, fanout, topic, headers …"
)
@click.option("-k", "--routing-key", help="Routing key of every publish.  [default: the producer's queue]")
@click.option("-b", "--binding-key", help="Binding key of every queue.  [default: the queue's name]")
@click.option(
    "-s",
    "--size",
    "sizes",
    default="12",
    callback=size_list,
    metavar="BYTES[,BYTES…]",
    help="Size of a body; several take turns. From 8 bytes on bodies carry a timestamp and latency is measured.",
)
@click.option(
    "--bodies",
    type=click.Choice(["zeros", "text", "random"]),
    default="zeros",
    help="What is in them; texts are JSON, and differ.",
)
@click.option("--persistent", is_flag=True, help="Persistent messages.")
@click.option("--durable", is_flag=True, help="Durable queues and exchange.")
@click.option("--mandatory", is_flag=True, help="Publish as mandatory; returned messages are counted.")
@click.option(
    "-c",
    "--confirm",
    type=click.IntRange(0),
    default=0,
    metavar="N",
    help="Confirms, at most N unconfirmed publishes a channel; 0: no confirms.",
)
@click.option(
    "-Q",
    "--prefetch",
    type=click.IntRange(0, 65535),
    default=0,
    help="Prefetch count of a channel; 0: unlimited.",
)
@click.option("-a", "--auto-ack", is_flag=True, help="Consume without acks.")
@click.option(
    "-A", "--ack-every", type=click.IntRange(1), default=1, help="Ack each N-th message, with multiple."
)
@click.option(
    "-r",
    "--rate",
    type=click.FloatRange(0),
    default=0.0,
    help="Messages a second of each producer; 0: no limit.",
)
@click.option(
    "-n",
    "--messages",
    type=click.IntRange(0),
    default=0,
    help="Publish so many by each producer, or without producers consume so many, then end; no warm-up.",
)
@click.option(
    "-z",
    "--time",
    "seconds",
    type=click.FloatRange(0.1),
    help="Seconds to measure.  [default: 10; with -n 600 at most]",
)
@click.option("--warmup", type=click.FloatRange(0), default=1.0, help="Seconds before measuring.")
@click.option(
    "--interval", type=click.FloatRange(0.1), default=1.0, help="Seconds between two lines of figures."
)
@click.option(
    "--queue-arg",
    "queue_arguments",
    multiple=True,
    callback=argument_table,
    metavar="NAME=VALUE",
    help="Argument of the queues, VALUE as JSON or a plain string; may be repeated.",
)
@click.option("--predeclared", is_flag=True, help="Use queues and exchange as they are; nothing is declared.")
@click.option("--keep", is_flag=True, help="Leave the queues, and what is in them, at the end.")
@click.option(
    "--processes",
    type=click.IntRange(1),
    default=os.cpu_count() or 1,
    help="Processes for the producers, and as many for the consumers.",
)
@click.option("--interpreted", is_flag=True, help="Do not compile the generator.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, and no figures in between.")
@click.option("--quiet", is_flag=True, help="No figures in between.")
def main(
    queue: str | None,
    auto_ack: bool,
    ack_every: int,
    seconds: float | None,
    interpreted: bool,
    as_json: bool,
    quiet: bool,
    **given: Any,
) -> None:
    """Put load on an AMQP 0-9-1 broker and measure rates and latencies.

    Latency is from the publish call to the delivery's arrival and holds on one machine, where the clock is shared. With
    confirms, their latency is reported as well.
    """
    compiled = False if interpreted else ensure_compiled()
    # Not before the engine is compiled: importing it would settle which build of it runs.
    from perf.load.report import row_text
    from perf.load.run import RunFailed, run

    plan = plan_of(queue, auto_ack, ack_every, seconds, given)
    try:
        plan.address  # noqa: B018 -- a bad URL is told before anything starts
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--url") from None
    try:
        on_row = None if as_json or quiet else lambda row: click.echo(row_text(plan, row), err=True)
        report = run(plan, compiled, on_row)
    except RunFailed as error:
        click.echo(f"perf.load: {error}", err=True)
        sys.exit(1)
    click.echo(json.dumps(report.as_dict()) if as_json else report.as_text())


if __name__ == "__main__":
    main(prog_name="python -m perf.load")
