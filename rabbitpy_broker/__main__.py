"""The command line: the daemon and, as subcommands, what looks at a data directory that no daemon uses.

Exit codes: 0 after SIGTERM or SIGINT (`daemon.run` sees to that), 0 or 1 from a subcommand, or 2 with one line on
standard error when the configuration is wrong, the daemon cannot start or a subcommand cannot do its work.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NoReturn

import click

from rabbitpy_broker.build_info import describe
from rabbitpy_broker.config import Config, load_config
from rabbitpy_broker.errors import BrokerError, ConfigError, StartError


def _print_version(context: click.Context, _parameter: click.Parameter, wanted: bool) -> None:
    if wanted:
        click.echo(describe())
        context.exit()


@click.group(invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--config", "file", type=click.Path(path_type=Path), metavar="FILE", help="TOML file with the settings."
)
@click.option("--data-dir", metavar="DIR", help="Where the broker keeps its data; locked while in use.")
@click.option(
    "--listen",
    multiple=True,
    metavar="HOST:PORT",
    help="AMQP address; may be repeated. Port 0 picks a free one.",
)
@click.option("--workers", metavar="N|auto", help="Processes that share the vhosts. Default: 1; auto: one for each core.")
@click.option("--metrics-listen", metavar="HOST:PORT", help="Address of /metrics and /health.")
@click.option(
    "--management-listen", metavar="HOST:PORT", help='Address of the management API. "": none; default: port 15672 of --listen.'
)
@click.option(
    "--check-invariants",
    is_flag=True,
    help="Compare, after each turn, all that is in memory with what must be true of it. For tests: slow.",
)
@click.option("--log-level", metavar="LEVEL", help="debug, info, warning or error.")
@click.option("--log-format", metavar="console|json", help="Default: console on a terminal, else json.")
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Version and build.",
)
@click.pass_context
def main(
    context: click.Context,
    file: Path | None,
    data_dir: str | None,
    listen: tuple[str, ...],
    workers: str | None,
    metrics_listen: str | None,
    management_listen: str | None,
    check_invariants: bool,
    log_level: str | None,
    log_format: str | None,
) -> None:
    """Run an AMQP 0-9-1 broker until it is told to stop by SIGTERM or SIGINT; or COMMAND, on a stopped broker's data.

    Every setting can be given in a file, in the environment (RABBITPY_HEARTBEAT=30) and, for the ones below, here; the
    latter wins.
    """
    given = {
        "data_dir": data_dir,
        "listeners": listen or None,
        "workers": workers,
        "metrics_listen": metrics_listen,
        "management_listen": management_listen,
        "check_invariants": check_invariants or None,
        "log.level": log_level,
        "log.format": log_format,
    }
    if context.invoked_subcommand is not None:
        return
    overrides = {key: value for key, value in given.items() if value is not None}
    try:
        config = load_config(file, os.environ, overrides)
        _serve(config, file, overrides)
    except (ConfigError, StartError) as error:
        click.echo(f"rabbitpy-broker: {error}", err=True)
        sys.exit(2)


def _serve(config: Config, file: Path | None, overrides: Mapping[str, object]) -> NoReturn:
    """Imports no more than is needed, and not before the configuration is known to be good. Raises ConfigError or StartError."""
    workers = config.node.worker_count()
    if workers == 1:
        from rabbitpy_broker import daemon

        daemon.run(config)
    if config.events.event_journal != "off":
        raise ConfigError("event_journal: a daemon with several workers has none")
    from rabbitpy_broker.workers import supervisor

    supervisor.run(config, file, overrides, workers)


@main.command()
@click.argument("directory", metavar="DIR", type=click.Path(path_type=Path))
def check(directory: Path) -> None:
    """Verify a data directory that no broker uses.

    Reads every file, changes none, and prints what is damaged. Exit code 0: sound; 1: damaged; 2: it cannot be checked.
    """
    from rabbitpy_broker import inspect_cli  # as above: the daemon does not need it

    _run(lambda: inspect_cli.check(directory))


@main.command()
@click.argument("directory", metavar="DIR", type=click.Path(path_type=Path))
@click.option("--queue", required=True, metavar="NAME", help="A durable queue.")
@click.option("--vhost", default="/", show_default=True, metavar="NAME", help="The vhost that it is in.")
def dump(directory: Path, queue: str, vhost: str) -> None:
    """Print the messages of a queue as JSON lines.

    They are those that the next start would have, in the queue's order. Changes nothing. Exit code 0: all of them; 1:
    some are damaged; 2: there is no such queue, or DIR cannot be read.
    """
    from rabbitpy_broker import inspect_cli

    _run(lambda: inspect_cli.dump(directory, vhost, queue))


@main.command()
@click.argument("file", default="rabbitpy.toml", type=click.Path(path_type=Path, allow_dash=True), metavar="[FILE]")
@click.option("--force", is_flag=True, help="Write over a file that is there.")
def init(file: Path, force: bool) -> None:
    """Write a configuration with every setting in it, explained and at its default; - is standard output.

    FILE is rabbitpy.toml if it is not given. Each setting stands in a comment: take the # away from those that are to differ.
    """
    text = commented((Path(__file__).parent / "rabbitpy.toml").read_text(encoding="utf-8"))
    if str(file) == "-":
        click.echo(text, nl=False)
        return
    try:
        with file.open("w" if force else "x", encoding="utf-8") as out:
            out.write(text)
    except FileExistsError:
        _fail(f"{file} is there already: name another file, or --force")
    except OSError as error:
        _fail(f"{file} cannot be written: {error.strerror}")
    click.echo(f"{file} is written. Start the broker with: rabbitpy-broker --config {file}")


def commented(text: str) -> str:
    """A configuration of which only the comments say anything."""
    return "".join(line if line.startswith(("#", "\n")) else f"#{line}" for line in text.splitlines(keepends=True))


@main.command()
@click.option("--config", "file", type=click.Path(path_type=Path), metavar="FILE", help="The broker's settings.")
@click.option("--data-dir", metavar="DIR", help="The broker's data directory.")
@click.option("--all", "everything", is_flag=True, help="Say what is well, too.")
@click.pass_context
def doctor(context: click.Context, file: Path | None, data_dir: str | None, everything: bool) -> None:
    """Look at limits, memory, disk, clock, ports, permissions and kernel settings, and say what to change.

    Run it as the user that the broker runs as. Exit code 0: the broker can run; 1: it cannot, or not for long; 2: the settings
    are wrong.
    """
    from rabbitpy_broker import doctor as examination

    above = context.parent.params if context.parent is not None else {}
    file, data_dir = file or above.get("file"), data_dir or above.get("data_dir")
    try:
        config = load_config(file, os.environ, {"data_dir": data_dir} if data_dir else {})
    except ConfigError as error:
        _fail(str(error))
    findings = list(examination.examine(config, file))
    colours = {examination.GOOD: "green", examination.POOR: "yellow", examination.BAD: "red"}
    for level, topic, text, advice in findings:
        if level == examination.GOOD and not everything:
            continue
        click.echo(f"{click.style(level, fg=colours[level])}: {topic}: {text}")
        if advice:
            click.echo(f"    {advice}")
    levels = [finding.level for finding in findings]
    bad, poor = levels.count(examination.BAD), levels.count(examination.POOR)
    click.echo(f"{len(findings)} findings: {bad} errors, {poor} warnings")
    context.exit(1 if bad else 0)


@main.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print what has a shell complete the commands of rabbitpy-broker, rabbitpy-ctl and rabbitpy-pipeline.

    For this session: eval "$(rabbitpy-broker completion bash)"
    """
    from click.shell_completion import get_completion_class

    found = get_completion_class(shell)
    assert found is not None, "kept by: the argument's choices"
    for program in ("rabbitpy-broker", "rabbitpy-ctl", "rabbitpy-pipeline"):
        click.echo(found(main, {}, program, f"_{program.replace('-', '_').upper()}_COMPLETE").source())


def _fail(text: str) -> NoReturn:
    click.echo(f"rabbitpy-broker: {text}", err=True)
    sys.exit(2)


def _run(command: Callable[[], int]) -> None:
    try:
        exit_code = command()
    except BrokerError as error:
        click.echo(f"rabbitpy-broker: {error}", err=True)
        exit_code = 2
    sys.exit(exit_code)


if __name__ == "__main__":
    main(prog_name="rabbitpy-broker")
