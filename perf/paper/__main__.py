"""The command line: run, analyse, report."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import click
from rich.console import Console

from perf import brokers, machine, perftest
from perf.brokers import Broker, StartFailed
from perf.build import ensure_compiled
from perf.paper import beside, plan, report
from perf.paper.plan import PRESETS, Settings
from perf.paper.raw import RunFolder

ROOT = Path(__file__).parents[2]
RAW = Path("build/paper/raw")
OUT = Path("build/paper/out")
INTERRUPTED = 130


def listed(known: tuple[Any, ...]) -> Any:
    """Reads VALUE[,VALUE…]; with `known` names only those, else numbers of queues."""

    def convert(
        _context: click.Context, _parameter: click.Parameter, text: str | None
    ) -> tuple[Any, ...] | None:
        if text is None:
            return None
        words = tuple(dict.fromkeys(text.split(",")))
        if not known:
            if not all(word.isdecimal() and int(word) > 0 for word in words):
                raise click.BadParameter("numbers of queues with commas between")
            return tuple(int(word) for word in words)
        if set(words) - set(known):
            raise click.BadParameter(f"of {', '.join(known)}")
        return words

    return convert


@click.group(context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
def main() -> None:
    """Repeat the paper's evaluation of confirms that wait for the consumer's ack."""


@main.command()
@click.option("--quick", "preset", flag_value="quick", help="5 queue counts, once, 4 s each: some minutes.")
@click.option(
    "--full", "preset", flag_value="full", help="The paper's: all queue counts, 3 times 10 minutes each."
)
@click.option(
    "--seconds", type=click.FloatRange(1), help="Of each measurement, after the warm-up.  [default: 10]"
)
@click.option(
    "--warmup", type=click.FloatRange(0), help="Seconds that the analysis leaves out.  [default: 3]"
)
@click.option("--reps", "repetitions", type=click.IntRange(1), help="Repetitions.  [default: 3]")
@click.option(
    "--calm",
    type=click.FloatRange(0, 100),
    metavar="PERCENT",
    help="Measure again, twice at most, where the machine's host took more of the CPU time for others.",
)
@click.option("--queues", callback=listed(()), metavar="N[,N…]", help="[default: 1,2,3,4,5,8,10,15,20,30]")
@click.option(
    "--drivers", callback=listed(plan.DRIVERS), metavar="NAME[,NAME]", help="[default: load,perftest]"
)
@click.option(
    "--modes", callback=listed(plan.MODES), metavar="MODE[,MODE…]", help="Of rabbitpy-broker.  [default: all]"
)
@click.option(
    "--confirm", type=click.IntRange(1), help="Unconfirmed publishes of a channel, at most.  [default: 200]"
)
@click.option(
    "--prefetch", type=click.IntRange(0, 65535), help="Of a consuming channel; 0: no limit.  [default: 100]"
)
@click.option("--no-rabbitmq", is_flag=True, help="Measure rabbitpy-broker only.")
@click.option(
    "--broker", "command", default=brokers.DEFAULT_COMMAND, help="Command that starts rabbitpy-broker."
)
@click.option(
    "--before",
    metavar="COMMAND",
    help="Starts another build, measured in turns with the first; what both cost is printed.",
)
@click.option(
    "--config", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="TOML file for it."
)
@click.option("--interpreted", is_flag=True, help="Do not compile the load generator.")
@click.option(
    "--raw", type=click.Path(file_okay=False, path_type=Path), default=RAW, help="Where samples go."
)
@click.option("--resume", metavar="RUN", help="Go on with a run that was stopped; it keeps its settings.")
@click.option(
    "--analyse",
    "analyse_to",
    type=click.Path(file_okay=False, path_type=Path),
    is_flag=False,
    flag_value=OUT,
    help="Analyse this run at its end, into a folder.  [build/paper/out when none is named]",
)
def run(raw: Path, resume: str | None, interpreted: bool, analyse_to: Path | None, **given: Any) -> None:
    """Measure. Ctrl-C stops it; what was measured is kept, and --resume goes on."""
    builds = Builds(given.pop("command"), given.pop("before"), given.pop("config"))
    chosen = {name: value for name, value in given.items() if value is not None and value is not False}
    folder = RunFolder(raw, resume or time.strftime("%Y%m%d-%H%M%S", time.gmtime()))
    settings, parts = resumed(folder, chosen, builds) if resume else (settings_of(chosen, builds), [])
    console = Console(stderr=True)
    console.print(
        f"run {folder.name}: {len(settings.measurements())} measurements, {duration(settings.estimated_s())}"
    )
    try:
        failed = measure(settings, folder, parts, builds, interpreted, console)
    except (StartFailed, perftest.PerfTestFailed) as error:
        raise click.ClickException(str(error)) from None
    console.print(f"samples in {folder.path}", highlight=False, soft_wrap=True)
    if failed is None:
        again = f"python -m perf.paper run --resume {folder.name} --raw {raw}"
        console.print(f"stopped; go on with: {again}", highlight=False)
        sys.exit(INTERRUPTED)
    if settings.before:
        beside.show(settings, folder)
    if analyse_to is not None:
        command = ["perf.paper", "analyse", str(raw), str(analyse_to), "--run", folder.name]
        failed += subprocess.run([sys.executable, "-m", *command], check=False).returncode
    sys.exit(1 if failed else 0)


class Builds(NamedTuple):
    """What of ours is measured: the commands that start it, and the earlier build beside it; the file that both read."""

    command: str
    before: str | None
    config: Path | None


def settings_of(chosen: dict[str, Any], builds: Builds) -> Settings:
    """The settings that the options ask for: those of the preset, but for what is given by itself."""
    rest = {name: value for name, value in chosen.items() if name not in {"preset", "no_rabbitmq"}}
    preset = PRESETS.get(chosen.get("preset", ""), {})
    rabbitmq = "no_rabbitmq" not in chosen
    return Settings(**{**preset, **rest}, rabbitmq=rabbitmq, before=builds.before is not None)


def resumed(folder: RunFolder, chosen: dict[str, Any], builds: Builds) -> tuple[Settings, list[dict[str, Any]]]:
    """The settings of an earlier run, and what is known of its parts so far."""
    if chosen:
        raise click.UsageError("a run that is resumed keeps its settings: no others with --resume")
    try:
        description = folder.description()
        settings, parts = Settings.from_dict(description["settings"]), description["parts"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise click.ClickException(
            f"there is no run {folder.name} to resume in {folder.path.parent}: {error}"
        ) from None
    if settings.before != (builds.before is not None):
        raise click.UsageError("a run with --before is resumed with --before, and another one without")
    return settings, parts


def measure(
    settings: Settings,
    folder: RunFolder,
    parts: list[dict[str, Any]],
    builds: Builds,
    interpreted: bool,
    console: Console,
) -> int | None:
    """Measures what is still to be measured; returns how much of it failed, or None where Ctrl-C came between."""
    # The load generator's engine is imported with drive_load; before that it is settled which build of it runs.
    if "load" in settings.drivers and not interpreted:
        interpreted = not ensure_compiled()
    from perf.paper import drive_load, drive_perftest
    from perf.paper.run import Evaluation

    drives = {"load": drive_load.drive, "perftest": drive_perftest.drive}
    try:
        fetch(settings)
        with started(settings, builds) as running:
            parts.append(
                {
                    "command": machine.command("paper"),
                    **machine.describe(),
                    "generator": "interpreted" if interpreted else "compiled",
                    "perftest": perftest.VERSION if "perftest" in settings.drivers else None,
                    "brokers": {name: broker.build for name, broker in running.items()},
                }
            )
            folder.describe({"settings": vars(settings), "parts": parts})
            evaluation = Evaluation(settings, folder, running, drives, console)
            evaluation.run()
            return len(evaluation.failed)
    except KeyboardInterrupt:
        return None


def duration(seconds: float) -> str:
    return f"about {seconds / 60:,.0f} minutes" if seconds < 7200 else f"about {seconds / 3600:,.1f} hours"


def fetch(settings: Settings) -> None:
    """PerfTest, so that it is not fetched within the first measurement."""
    if "perftest" in settings.drivers:
        perftest.jars()


@contextlib.contextmanager
def started(settings: Settings, builds: Builds) -> Iterator[dict[str, Broker]]:
    """The brokers by their names in the targets."""
    with contextlib.ExitStack() as stack:
        text = builds.config.read_text() if builds.config else ""
        running = {plan.RABBITPY: stack.enter_context(brokers.rabbitpy(builds.command, config=text))}
        if builds.before is not None:
            running[plan.BEFORE] = stack.enter_context(brokers.rabbitpy(builds.before, config=text))
        if settings.rabbitmq:
            running[plan.RABBITMQ] = stack.enter_context(brokers.rabbitmq())
        yield running


@main.command(
    context_settings={"ignore_unknown_options": True, "help_option_names": []},
    options_metavar="",
)
@click.argument("raw", default="build/paper/raw")
@click.argument("out", default="build/paper/out")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[OPTION]…")
def analyse(raw: str, out: str, arguments: tuple[str, ...]) -> None:
    """Tables, figures and the summary from raw samples: rabbitpy-pipeline sweep, with these places."""
    from rabbitpy_broker.pipeline.cli import (
        main as pipeline,  # needs the spark extra, which measuring does not
    )

    pipeline(["sweep", raw, out, *arguments], prog_name="rabbitpy-pipeline")


@main.command("report")
@click.argument("out", required=False, type=click.Path(exists=True, file_okay=False, path_type=Path))
def report_command(out: Path | None) -> None:
    """Put the tables into docs/paper.md and perf/results/paper-notes.md.

    With OUT, the folder of an analysis, its summary and figures are first copied to perf/results and docs/images. Without
    it the summary there is used as it is.
    """
    if out is not None:
        try:
            report.take(out, ROOT)
        except FileNotFoundError as error:
            raise click.ClickException(f"{out} is not an analysis: {error}") from None
    report.write_pages(ROOT)
    click.echo(f"written to {ROOT / report.PAGE} and {ROOT / report.NOTES}")


if __name__ == "__main__":
    main(prog_name="python -m perf.paper")
