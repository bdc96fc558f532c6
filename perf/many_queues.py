"""Does a broker keep its speed with many queues? 1,000 queues with a consumer each, against one.

    python -m perf.many_queues --queues 1000

The same load, over the same few connections, goes once to one queue for each connection and once to all the queues: only
their number differs. Producers and consumers use a channel for each queue.
"""

from __future__ import annotations

import json
from typing import Any

import click

from perf import brokers, machine
from perf.brokers import Broker, StartFailed
from perf.load.client import Refused
from perf.load_run import RunFailed, load


def measure(broker: Broker, queues: int, connections: int, options: str, seconds: float) -> dict[str, Any]:
    channels = -(-queues // connections)
    few = load(broker, f"-q {connections} -x {connections} -y {connections} {options}", seconds)
    empty_kib = broker.rss_kib()
    many = load(
        broker,
        f"-q {queues} -x {connections} -X {channels} -y {connections} -Y {channels} --spread {options}",
        seconds,
    )
    keys = ("sent_per_s", "received_per_s", "latency_us", "broker_rss_mib", "broker_cpu_s", "client_cpu_s")
    return {
        "broker": broker.build,
        "queues": queues,
        "connections": connections,
        "load": options,
        "few_queues": {key: few.get(key) for key in keys},
        "many_queues": {key: many.get(key) for key in keys},
        "rate_ratio": round(many["received_per_s"] / max(1, few["received_per_s"]), 3),
        "rss_growth_mib": round(many["broker_rss_mib"] - empty_kib / 1024, 1)
        if "broker_rss_mib" in many
        else None,
    }


@click.command(context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
@brokers.options
@click.option("--queues", type=click.IntRange(1), default=1000, help="Queues, with a consumer each.")
@click.option(
    "--connections",
    type=click.IntRange(1),
    default=10,
    help="Connections that publish, and as many that consume.",
)
@click.option("--secs", type=click.FloatRange(1), default=5.0, help="Seconds of each of the two runs.")
@click.option(
    "--load", "load_options", default="-s 100 -c 100 -Q 100", help="The load, as options of perf.load."
)
@click.option("--save", is_flag=True, help="Write the result to perf/results as well.")
def main(queues: int, connections: int, secs: float, load_options: str, save: bool, **which: Any) -> None:
    """Compare the rate over many queues with that over a few."""
    try:
        with brokers.one(**which) as broker:
            result = measure(broker, queues, connections, load_options, secs)
    except (StartFailed, Refused, RunFailed) as error:
        raise click.ClickException(str(error)) from None
    if save:
        click.echo(f"written to {machine.save('many_queues', result)}", err=True)
    click.echo(json.dumps(result, indent=1))


if __name__ == "__main__":
    main(prog_name="python -m perf.many_queues")
