"""Puts the same load on several brokers in turn, and prints medians and ratios.

    python -m perf.side_by_side --reps 3 --secs 4

It starts rabbitpy-broker and an installed rabbitmq-server; `NAME=HOST:PORT` adds a broker that runs already. Every
repetition of a scenario visits all brokers (A B A B), so that whatever else the machine does falls on each of them alike.
Absolute figures move with the machine's load: the ratios are what counts.

`--queue-type quorum` has the durable scenarios run on quorum queues. A broker whose NAME is a queue type keeps to that type: with
`classic=HOST:PORT` beside it, one daemon is measured with both types in one run.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import statistics
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from perf import brokers, machine
from perf.brokers import Broker, StartFailed
from perf.build import BuildFailed, compile_engine
from perf.load_run import RunFailed, load
from perf.perftest import PerfTestFailed, run_perftest

BACKLOG_MESSAGES = 200_000
BEGIN, END = "<!-- side_by_side: begin -->", "<!-- side_by_side: end -->"
PAPER = "-X 2 -Y 3 -s 1500 --persistent --durable -c 200 -Q 100 -e amq.direct"


@dataclasses.dataclass(frozen=True)
class Scenario:
    """A load, the figure that is taken from it, and what the first broker is to reach of the second's."""

    name: str
    title: str
    options: str
    figure: Callable[[dict[str, Any]], float]
    unit: str = "msg/s"
    at_least: float | None = None  # as a ratio to RabbitMQ's figure; where less is better, at most
    less_is_better: bool = False
    perftest: bool = False
    min_seconds: float = 0.0  # where a shorter run would not show the steady state


def received(result: dict[str, Any]) -> float:
    return float(result["received_per_s"])


def sent(result: dict[str, Any]) -> float:
    return float(result["sent_per_s"])


def p99(result: dict[str, Any]) -> float:
    return float(result["latency_us"].get("p99", math.nan))


def fairness(result: dict[str, Any]) -> float:
    """What the consumers got of what was published meanwhile, in per cent; above 100 while a backlog shrinks."""
    if not result["sent_per_s"]:
        raise RunFailed("nothing could be published during the measurement")
    return 100 * float(result["received_per_s"]) / float(result["sent_per_s"])


SCENARIOS = [
    Scenario("autoack-12B", "12 B, auto-ack, no confirms", "-s 12 -a", received, at_least=8),
    Scenario("confirm-12B", "12 B, confirms (500), ack each", "-s 12 -c 500 -Q 500", received, at_least=6),
    Scenario(
        "confirm-1500B", "1,500 B, confirms (500), ack each", "-s 1500 -c 500 -Q 500", received, at_least=6
    ),
    Scenario(
        "durable-1500B",
        "1,500 B, persistent, durable, confirms, ack each",
        "-s 1500 --persistent --durable -c 500 -Q 500",
        received,
        at_least=5,
    ),
    Scenario("paper-q1", "the paper's load, 1 queue", f"-q 1 -x 2 -y 3 {PAPER}", received, at_least=5),
    Scenario("paper-q4", "the paper's load, 4 queues", f"-q 4 -x 8 -y 12 {PAPER}", received, at_least=5),
    Scenario("paper-q15", "the paper's load, 15 queues", f"-q 15 -x 30 -y 45 {PAPER}", received, at_least=5),
    Scenario("paper-q30", "the paper's load, 30 queues", f"-q 30 -x 60 -y 90 {PAPER}", received, at_least=5),
    Scenario(
        "fanout-1to10",
        "fanout to 10 queues, 100 B, auto-ack",
        "-q 10 -y 10 -s 100 -a -e amq.fanout -t fanout",
        received,
    ),
    Scenario("topic-1to1", "topic exchange, 100 B, auto-ack", "-s 100 -a -e amq.topic -t topic", received),
    Scenario(
        "latency-10k",
        "10,000 msg/s of 1,000 B, persistent, confirms: p99 of the latency",
        "-s 1000 --persistent --durable -r 10000 -c 1000 -Q 1000",
        p99,
        "us",
        0.5,
        less_is_better=True,
    ),
    Scenario(
        "publish-backlog",
        f"publish {BACKLOG_MESSAGES:,} x 1,000 B, persistent, confirms, no consumer",
        f"-n {BACKLOG_MESSAGES} -y 0 -s 1000 --persistent --durable -c 1000",
        sent,
        at_least=4,
    ),
    Scenario(
        "drain-backlog",
        "drain that backlog, ack every 50",
        f"-n {BACKLOG_MESSAGES} -x 0 -s 1000 --durable -A 50 -Q 1000 --predeclared",
        received,
        at_least=4,
    ),
    Scenario(
        "fairness",
        "unlimited publisher, prefetch 500, ack every 100: received of sent",
        "-s 12 -Q 500 -A 100 --warmup 3",
        fairness,
        "%",
        min_seconds=8,
    ),
    Scenario(
        "perftest-1000B",
        "PerfTest: 1,000 B, confirms (500), prefetch 500",
        "-x 1 -y 1 -s 1000 -c 500 -q 500",
        received,
        perftest=True,
    ),
    Scenario(
        "perftest-paper-q1",
        "PerfTest: the paper's load, 1 queue",
        "-x 2 -y 3 -X 2 -Y 3 -s 1500 -f persistent -c 200 -q 100",
        received,
        perftest=True,
    ),
]
NAMES = [scenario.name for scenario in SCENARIOS]
TYPES = ("classic", "quorum")


def measure(scenario: Scenario, broker: Broker, seconds: float, queue: str, queue_type: str) -> dict[str, Any]:
    if scenario.perftest:
        try:
            return run_perftest(broker.url, f"-u {queue} {scenario.options}", seconds)
        except PerfTestFailed as error:
            raise RunFailed(str(error)) from None
    options = f"{scenario.options} -u {queue}"
    options += " --keep" if scenario.name == "publish-backlog" else ""
    queue_type = broker.name if broker.name in TYPES else queue_type
    if queue_type != TYPES[0] and "--durable" in scenario.options:
        options += f" --queue-arg x-queue-type={queue_type}"
    result = load(broker, options, max(seconds, scenario.min_seconds))
    del result["samples"]
    return result


def run_all(
    scenarios: Sequence[Scenario], measured: Sequence[Broker], reps: int, seconds: float, queue_type: str = TYPES[0]
) -> dict[str, Any]:
    """{scenario: {broker: [result or {"error": text}, one for each repetition]}}"""
    found: dict[str, dict[str, list[dict[str, Any]]]] = {
        scenario.name: {broker.name: [] for broker in measured} for scenario in scenarios
    }
    # Draining takes what publishing left, so that the two are one visit.
    visits = [[s for s in scenarios if s.name.endswith("backlog")]] + [
        [s] for s in scenarios if "backlog" not in s.name
    ]
    for visit in sorted((v for v in visits if v), key=lambda v: scenarios.index(v[0])):
        for repetition in range(reps):
            for broker in measured:
                queue = f"perf-{uuid.uuid4().hex[:8]}"
                for scenario in visit:
                    try:
                        result = measure(scenario, broker, seconds, queue, queue_type)
                        result["figure"] = scenario.figure(result)
                        text = f"{result['figure']:,.0f} {scenario.unit}"
                    except RunFailed as error:
                        result, text = {"error": str(error)}, f"failed: {error}"
                    found[scenario.name][broker.name].append(result)
                    click.echo(f"{scenario.name:20}{repetition + 1}/{reps}  {broker.name:14}{text}", err=True)
    return found


def median(results: Sequence[dict[str, Any]], key: str = "figure") -> float:
    """The median of the runs that ended; nan when none did."""
    values = [float(result[key]) for result in results if result.get(key) is not None]
    return statistics.median(values) if values else math.nan


def cells(result: dict[str, Any]) -> list[list[str]]:
    """The table: a head and a line for each scenario, with each broker's median and the first one's ratio to it."""
    names = [broker["name"] for broker in result["brokers"]]
    first, others = names[0], names[1:]
    head = ["scenario", *names, *(f"{first} / {other}" for other in others), "at least"]
    if any(median(runs[first], "broker_rss_mib") > 0 for runs in result["scenarios"].values()):
        head.append("MiB")
    table = [head]
    for scenario in SCENARIOS:
        runs = result["scenarios"].get(scenario.name)
        if runs is None:
            continue
        figures = {name: median(runs[name]) for name in names}
        line = [scenario.title + (f" ({scenario.unit})" if scenario.unit != "msg/s" else "")]
        line += [number(figures[name]) for name in names]
        line += [
            "–" if math.isnan(figures[first] / figures[o]) else f"{figures[first] / figures[o]:.2f}"
            for o in others
        ]
        asked = scenario.at_least
        line.append(
            "" if asked is None else f"at most {asked:g}" if scenario.less_is_better else f"{asked:g}"
        )
        if head[-1] == "MiB":
            line.append(" / ".join(number(median(runs[name], "broker_rss_mib")) for name in names))
        table.append(line)
    return table


def number(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:,.0f}"


def as_text(result: dict[str, Any]) -> str:
    table = cells(result)
    widths = [max(len(line[column]) for line in table) for column in range(len(table[0]))]
    return "\n".join(
        "  ".join(
            text.rjust(width) if column else text.ljust(width)
            for column, (text, width) in enumerate(zip(line, widths, strict=True))
        )
        for line in table
    )


def as_markdown(result: dict[str, Any]) -> str:
    """The table with the command that made it and where it was made."""
    where = result["machine"]
    builds = ", ".join(f"{broker['name']}: {broker['build']}" for broker in result["brokers"])
    head, *lines = cells(result)
    rows = ["| " + " | ".join(line) + " |" for line in [head, ["---"] + ["--:"] * (len(head) - 1), *lines]]
    note = (
        f"Medians of {result['reps']} runs of {result['secs']:g} s, {result['date'][:10]}, commit {result['commit'] or '–'}. "
        f"{where['cpu']}, {where['cores']} cores, {where['memory_gib']} GiB, {where['system']}, {result['python']}. {builds}. "
        "Brokers and load generator share the machine."
    )
    return "\n".join([BEGIN, f"`{result['command']}`", "", *rows, "", note, END])


def replace_between(path: Path, markdown: str) -> None:
    """Puts the table in the place of the last one in a page; the markers show where that is."""
    page = path.read_text()
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise click.ClickException(f"{path} has no lines {BEGIN} and {END}")
    path.write_text(before + markdown + after)


def chosen(only: str | None, with_perftest: bool) -> list[Scenario]:
    if only is None:
        return [scenario for scenario in SCENARIOS if with_perftest or not scenario.perftest]
    wanted = only.split(",")
    unknown = set(wanted) - set(NAMES)
    if unknown:
        raise click.BadParameter(
            f"no scenario {', '.join(sorted(unknown))}; there are {', '.join(NAMES)}", param_hint="--only"
        )
    if "drain-backlog" in wanted and "publish-backlog" not in wanted:
        wanted.append("publish-backlog")
    return [scenario for scenario in SCENARIOS if scenario.name in wanted]


@click.command(context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
@click.argument("others", nargs=-1, metavar="[NAME=HOST:PORT]…")
@click.option(
    "--broker",
    "command",
    default=brokers.DEFAULT_COMMAND,
    help="Command that starts rabbitpy-broker; '' for none.",
)
@click.option("--interpreted", is_flag=True, help="Measure rabbitpy-broker uncompiled as well.")
@click.option("--no-rabbitmq", is_flag=True, help="Start no rabbitmq-server.")
@click.option("--reps", type=click.IntRange(1), default=3, help="Runs of each scenario on each broker.")
@click.option("--secs", type=click.FloatRange(0.5), default=4.0, help="Seconds of each run.")
@click.option("--only", metavar="NAME[,NAME…]", help=f"Of {', '.join(NAMES)}.")
@click.option("--queue-type", type=click.Choice(TYPES), default=TYPES[0], help="Of the durable scenarios' queues.")
@click.option(
    "--with-perftest", is_flag=True, help="The scenarios that PerfTest runs as well; needs Java and Maven."
)
@click.option(
    "--config",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="TOML file for rabbitpy-broker.",
)
@click.option(
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Result file.  [default: perf/results/…json]",
)
@click.option(
    "--into",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Page whose table between the side_by_side markers is replaced.",
)
@click.option(
    "--from",
    "source",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Measure nothing; print the table of this result file.",
)
@click.option("--markdown", is_flag=True, help="Print the table as Markdown.")
def main(
    others: tuple[str, ...],
    command: str,
    interpreted: bool,
    no_rabbitmq: bool,
    reps: int,
    secs: float,
    only: str | None,
    queue_type: str,
    with_perftest: bool,
    config: Path | None,
    output: Path | None,
    into: Path | None,
    source: Path | None,
    markdown: bool,
) -> None:
    """Measure brokers side by side. The first one's figures are divided by each other one's."""
    if source is not None:
        result = json.loads(source.read_text())
    else:
        scenarios = chosen(only, with_perftest)
        settings = config.read_text() if config else ""
        try:
            running = [brokers.parse_place(other) for other in others]
            for broker in running:
                brokers.ask_build(broker)
            compile_engine()  # not within the first measurement
            with contextlib.ExitStack() as stack:
                measured = []
                if command:
                    measured.append(stack.enter_context(brokers.rabbitpy(command, config=settings)))
                if interpreted:
                    measured.append(stack.enter_context(brokers.interpreted(config=settings)))
                if not no_rabbitmq:
                    measured.append(stack.enter_context(brokers.rabbitmq()))
                measured += running
                if not measured:
                    raise click.UsageError("no broker to measure")
                runs = run_all(scenarios, measured, reps, secs, queue_type)
        except (StartFailed, BuildFailed, ValueError) as error:
            raise click.ClickException(str(error)) from None
        path = machine.save(
            "side_by_side",
            {
                "command": machine.command("side_by_side"),
                "reps": reps,
                "secs": secs,
                "brokers": [{"name": broker.name, "build": broker.build} for broker in measured],
                "scenarios": runs,
            },
            output,
        )
        click.echo(f"written to {path}", err=True)
        result = json.loads(path.read_text())
    if into is not None:
        replace_between(into, as_markdown(result))
    click.echo(as_markdown(result) if markdown else as_text(result))


if __name__ == "__main__":
    main(prog_name="python -m perf.side_by_side")
