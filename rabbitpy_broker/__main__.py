"""The command line: reads the configuration and runs the daemon.

Exit codes: what `daemon.run` returns (0 after SIGTERM or SIGINT), or 2 with one line on standard error when the
configuration is wrong or the daemon cannot start.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from rabbitpy_broker.build_info import describe
from rabbitpy_broker.config import load_config
from rabbitpy_broker.errors import ConfigError, StartError


def _print_version(context: click.Context, _parameter: click.Parameter, wanted: bool) -> None:
    if wanted:
        click.echo(describe())
        context.exit()


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--config", "file", type=click.Path(path_type=Path), metavar="FILE", help="TOML file with the settings."
)
@click.option("--data-dir", metavar="DIR", help="Where the broker keeps its data; locked while in use.")
@click.option(
    "--listen", multiple=True, metavar="HOST:PORT", help="AMQP address; may be repeated. Port 0 picks a free one."
)
@click.option("--metrics-listen", metavar="HOST:PORT", help="Address of /metrics and /health.")
@click.option("--log-level", metavar="LEVEL", help="debug, info, warning or error.")
@click.option("--log-format", metavar="console|json", help="Default: console on a terminal, else json.")
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_print_version, help="Version and build."
)
def main(
    file: Path | None,
    data_dir: str | None,
    listen: tuple[str, ...],
    metrics_listen: str | None,
    log_level: str | None,
    log_format: str | None,
) -> None:
    """Run an AMQP 0-9-1 broker until it is told to stop by SIGTERM or SIGINT.

    Every setting can be given in a file, in the environment (RABBITPY_HEARTBEAT=30) and, for the ones below, here; the
    latter wins.
    """
    given = {
        "data_dir": data_dir,
        "listeners": listen or None,
        "metrics_listen": metrics_listen,
        "log.level": log_level,
        "log.format": log_format,
    }
    overrides = {key: value for key, value in given.items() if value is not None}
    try:
        config = load_config(file, os.environ, overrides)
        from rabbitpy_broker import (
            daemon,  # not before the configuration is known to be good: it loads everything
        )

        exit_code = daemon.run(config)
    except (ConfigError, StartError) as error:
        click.echo(f"rabbitpy-broker: {error}", err=True)
        exit_code = 2
    sys.exit(exit_code)


if __name__ == "__main__":
    main(prog_name="rabbitpy-broker")
