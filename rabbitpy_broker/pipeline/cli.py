"""`rabbitpy-pipeline`: the jobs, one command each. docs/pipeline.md tells what they make.

Exit codes: 0; 1 when the audit found violations; 2 with one line on standard error when a job cannot do its work.

Under spark-submit this file is the program: `spark-submit --master spark://host:7077 cli.py throughput JOURNAL OUT`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from rich.console import Console
from rich.status import Status
from rich.table import Table

from rabbitpy_broker.pipeline.errors import PipelineError
from rabbitpy_broker.pipeline.session import BRIEF, session

console = Console(stderr=True)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--master", metavar="URL", help="local[N], spark://HOST:PORT ...; default: this process, on all cores."
)
@click.option("--conf", multiple=True, metavar="KEY=VALUE", help="A setting of Spark; may be repeated.")
@click.pass_context
def main(context: click.Context, master: str | None, conf: tuple[str, ...]) -> None:
    """Messages and what happens to them, as data in Spark."""
    settings = _pairs(conf, "--conf")
    context.obj = lambda name, more: session(f"rabbitpy-pipeline {name}", master, {**more, **settings})


JOURNAL = click.argument("journal", metavar="JOURNAL")
OUT = click.argument("out", metavar="OUT")


@contextmanager
def running(
    context: click.Context, settings: Mapping[str, str] | None = None
) -> Iterator[tuple[SparkSession, Callable[[str], None]]]:
    """A session for a job, and whom to tell what is done next; what ends it is told in one line."""
    with Status("starting Spark", console=console) as status:
        try:
            yield context.obj(context.info_name, settings or {}), status.update
        except PipelineError as error:
            _end(str(error))
        except PySparkException as error:
            _end(cause(error))


def cause(error: PySparkException) -> str:
    """What our own code has said, where an error of Spark goes back to that; else Spark's first line."""
    lines = str(error).splitlines()
    ours = [line.partition("PipelineError: ")[2] for line in lines if "PipelineError: " in line]
    return ours[-1] if ours else (lines[0] if lines else repr(error))


def _end(text: str) -> None:
    click.echo(f"rabbitpy-pipeline: {text}", err=True)
    sys.exit(2)


def _table_job(name: str, help_text: str, needs_lives: bool) -> None:
    """A command that writes one table of a journal and shows its first rows."""

    @main.command(name, help=help_text)
    @JOURNAL
    @OUT
    @click.pass_context
    def job(context: click.Context, journal: str, out: str) -> None:
        with running(context) as (spark, step):
            from rabbitpy_broker.pipeline.journal.lifecycle import lifecycle, views
            from rabbitpy_broker.pipeline.journal.tables import TABLES

            if needs_lives:
                step("lives of messages")
                lifecycle(spark, journal, f"{out.rstrip('/')}/lifecycle")
            else:
                views(spark, journal)
            step(name)
            table = f"{out.rstrip('/')}/{name}"
            TABLES[name](spark).coalesce(1).write.mode("overwrite").parquet(table)
            show(spark.read.parquet(table).limit(20).collect())
            click.echo(table)


_table_job(
    "throughput", "Write OUT/throughput: what happened in each second, in each queue.", needs_lives=False
)
_table_job(
    "latency", "Write OUT/latency: percentiles of the time between two events of a message.", needs_lives=True
)
_table_job(
    "states", "Write OUT/states: how long messages were alpha, beta, gamma and delta.", needs_lives=True
)
_table_job(
    "rates", "Write OUT/rates: redelivered, dead-lettered, dropped and so on, by queue.", needs_lives=True
)


@main.command()
@JOURNAL
@OUT
@click.pass_context
def audit(context: click.Context, journal: str, out: str) -> None:
    """Name every promise that was not kept, with evidence. Exit code 1 if there is one.

    Writes OUT/audit, a row for each violation.
    """
    with running(context) as (spark, step):
        from rabbitpy_broker.pipeline.journal.audit import audit as judge

        step("lives of messages")
        found = judge(spark, journal, f"{out.rstrip('/')}/lifecycle")
        step("audit")
        table = f"{out.rstrip('/')}/audit"
        found.violations.coalesce(1).write.mode("overwrite").parquet(table)
        violations = spark.read.parquet(table)
        counts = found.counts.collect()[0]
        total = violations.count()
        show(violations.limit(20).collect())
    click.echo(
        f"{counts.messages} messages, {counts.confirmed} confirmed, {counts.unknown} of unknown fate: {total} violations"
    )
    sys.exit(1 if total else 0)


@main.command()
@JOURNAL
@click.argument("out", metavar="OUT", type=click.Path(path_type=Path))
@click.pass_context
def report(context: click.Context, journal: str, out: Path) -> None:
    """Write all tables, figures and OUT/report.html, a page that opens without a server."""
    with running(context) as (spark, step):
        from rabbitpy_broker.pipeline.journal.report import report as write

        write(spark, journal, out, step)
    click.echo(out / "report.html")


BROKER = [
    click.option(
        "--url", default="amqp://guest:guest@127.0.0.1:5672/%2F", show_default=True, help="The broker."
    ),
    click.option(
        "--option",
        "options",
        multiple=True,
        metavar="NAME=VALUE",
        help="An option of the format amqp; repeatable.",
    ),
]


def broker_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """--url and --option."""
    for option in reversed(BROKER):
        command = option(command)
    return command


def _pairs(given: tuple[str, ...], hint: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for one in given:
        name, equals, value = one.partition("=")
        if not equals:
            raise click.BadParameter(f"NAME=VALUE, not {one!r}", param_hint=hint)
        found[name] = value
    return found


@main.command()
@click.argument("out", metavar="OUT")
@click.option("--queue", "queues", multiple=True, metavar="NAME", help="May be repeated.")
@click.option(
    "--queues", "file", type=click.File(), metavar="FILE", help="A queue in each line; - for standard input."
)
@click.option("--continuous", is_flag=True, help="Go on; else end when each queue was empty once.")
@click.option("--parallel", default=2, show_default=True, help="Queues that are read at the same time.")
@click.option(
    "--codec",
    type=click.Choice(["auto", "json", "msgpack", "celery", "text", "binary"]),
    default="auto",
    show_default=True,
)
@click.option("--schema", default="", metavar="DDL|infer", help="Of the column value; infer: from a sample.")
@click.option("--mode", type=click.Choice(["spool", "direct"]), default="spool", show_default=True)
@click.option(
    "--format",
    "table_format",
    default="parquet",
    show_default=True,
    help="parquet, or one that this Spark knows (delta, iceberg).",
)
@broker_options
@click.pass_context
def ingest(
    context: click.Context,
    out: str,
    queues: tuple[str, ...],
    file: Any,
    continuous: bool,
    parallel: int,
    codec: str,
    schema: str,
    mode: str,
    table_format: str,
    url: str,
    options: tuple[str, ...],
) -> None:
    """Take queues into OUT/messages, and what does not decode into OUT/quarantine."""
    named = [*queues, *([line.strip() for line in file if line.strip()] if file else [])]
    with running(context) as (spark, step):
        from rabbitpy_broker.pipeline.ingest import Ingest
        from rabbitpy_broker.pipeline.ingest import ingest as run

        given = {"url": url, **_pairs(options, "--option")}
        job = Ingest(named, out, given, codec, schema, continuous, parallel, mode, table_format)
        counts = run(spark, job, step)
    click.echo(f"{counts}; {len(named)} queues")


@main.command()
@click.argument("table", metavar="TABLE")
@click.option("--exchange", help="Default: each row's own.")
@click.option("--routing-key", help="Default: each row's own.")
@click.option("--where", default="", metavar="SQL", help="Which rows; default: all.")
@click.option("--rate", default=0.0, metavar="N", help="Messages a second; default: as fast as can be.")
@click.option("--format", "table_format", default="parquet", show_default=True)
@broker_options
@click.pass_context
def replay(
    context: click.Context,
    table: str,
    exchange: str | None,
    routing_key: str | None,
    where: str,
    rate: float,
    table_format: str,
    url: str,
    options: tuple[str, ...],
) -> None:
    """Publish the rows of TABLE, such as OUT/messages of an ingest."""
    given = {"url": url, **_pairs(options, "--option")}
    given |= {} if exchange is None else {"exchange": exchange}
    given |= {} if routing_key is None else {"routingKey": routing_key}
    with running(context) as (spark, step):
        from rabbitpy_broker.pipeline.replay import replay as run

        step("publishing")
        rows = run(spark, table, given, where, rate, table_format)
    click.echo(f"{rows} messages")


@main.command()
@click.argument("table", metavar="TABLE")
@click.option("--size", default=128, show_default=True, metavar="MIB", help="Of a file that is large enough.")
@click.pass_context
def compact(context: click.Context, table: str, size: int) -> None:
    """Make few large files of the many small ones in TABLE, a queue's folder; not while it is written to."""
    with running(context) as (spark, step):
        from rabbitpy_broker.pipeline.table import compact as run

        step("compacting")
        gone = run(spark, table, size << 20)
    click.echo(f"{gone} files became larger ones")


@main.command()
@click.argument("raw", metavar="RAW")
@click.argument("out", metavar="OUT")
@click.option("--run", "runs", multiple=True, metavar="ID", help="Only this run; may be repeated.")
@click.option("--warmup", type=float, metavar="S", help="Seconds to leave out; default: each run's own.")
@click.option("--local-out", metavar="FOLDER", help="For summary and figures; default: OUT, which is then local.")
@click.pass_context
def sweep(
    context: click.Context, raw: str, out: str, runs: tuple[str, ...], warmup: float | None, local_out: str | None
) -> None:
    """Analyse measurements of brokers (perf.paper): tables, figures, OUT/summary.json."""
    if local_out is None and "://" in out:
        raise click.UsageError("OUT is not a local folder: name one with --local-out")
    raw, out = (str(Path(place).resolve()) if "://" not in place else place.rstrip("/") for place in (raw, out))
    folder = Path(local_out or out)
    with running(context, BRIEF) as (spark, step):
        from rabbitpy_broker.pipeline.sweep.analysis import sweep as run

        step("analysing")
        summary = run(spark, raw, out, folder, runs, warmup)
    for problem in summary["problems"]:
        click.echo(f"{problem['file']}: {problem['problem']} ({problem['lines']} lines)", err=True)
    if not summary["rates"]:
        _end("no measurement is left to analyse")
    said = f"{len(summary['runs'])} runs, {len(summary['rates'])} combinations; tables, summary and figures in {folder}"
    click.echo(said)


def show(rows: list[Any]) -> None:
    """Rows of a result, as a table on the terminal."""
    if not rows:
        return
    table = Table(*rows[0].asDict())
    for row in rows:
        table.add_row(*("" if value is None else str(value) for value in row))
    Console().print(table)


if __name__ == "__main__":
    main(prog_name="rabbitpy-pipeline")
