"""Asks a running broker whether it is ready, for a container's HEALTHCHECK.

    python -m rabbitpy_broker.healthcheck [--config FILE]

Reads the same file and environment as the broker, so that a moved `metrics_listen` is followed. Exit code 0: ready; 1: not,
with the reason on standard error.
"""

from __future__ import annotations

import http.client
import os
import sys
from pathlib import Path

import click

from rabbitpy_broker.config import LOOPBACK, load_config, split_address
from rabbitpy_broker.errors import BrokerError


def ask(address: str, timeout: float = 4.0) -> tuple[bool, str]:
    """Whether the broker behind a `metrics_listen` address is ready, and what it said."""
    host, port = split_address(address)
    connection = http.client.HTTPConnection(LOOPBACK.get(host, host), port, timeout=timeout)
    try:
        connection.request("GET", "/health/ready")
        response = connection.getresponse()
        return response.status == http.client.OK, response.read().decode("utf-8", "replace").strip()
    except (OSError, http.client.HTTPException) as error:
        return False, f"{address}: {error}"
    finally:
        connection.close()


@click.command()
@click.option("--config", "file", type=click.Path(path_type=Path), metavar="FILE", help="The broker's settings.")
def main(file: Path | None) -> None:
    """Exit with 0 when the broker is ready and with 1 when it is not."""
    try:
        address = load_config(file, os.environ).net.metrics_listen
        is_ready, said = ask(address) if address else (False, "metrics_listen is empty: there is nothing to ask")
    except BrokerError as error:
        is_ready, said = False, str(error)
    click.echo(said, err=not is_ready)
    sys.exit(0 if is_ready else 1)


if __name__ == "__main__":
    main()
