"""What the web UI costs its browser: 20,000 queues in Chromium.

    python -m perf.ui
    python -m perf.ui --queues 2000 --scroll 3

It drives the Chromium of the system with the scripts of `tests/ui`, whose packages npm installs once into a cache; node, npm
and chromium must be there. Reported are the bars that the UI is held to, and what was measured:

  first page     what the login and the overview weigh as they are sent, with headers
  first rows     from opening the table of queues to its first rows; the least of three
  table:sort, table:filter   the longest of several orders and filters, each the least of three
  frames         drawn per second while the table is scrolled without a pause, and the longest one
  heap           after ten minutes of figures (500 queues change each second), and by how much it has grown in them
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import click

from perf import brokers
from perf.management import make_queues

SCRIPTS = Path(__file__).resolve().parent.parent / "tests" / "ui"
sys.path += [str(SCRIPTS.parent), str(SCRIPTS.parent / "clients")]
CHROMIUM = "/usr/bin/chromium"
TIMEOUT_S = 600.0
# What each figure must be at most; of frames a second at least.
BARS = {
    "the login and the overview, kB with headers": 110.0,
    "first rows, ms": 1500.0,
    "table:sort": 50.0,
    "table:filter": 50.0,
    "frames a second while scrolling": 50.0,
    "heap of /queues, MB": 150.0,
    "growth of /queues in ten minutes, MB": 4.0,
    "growth of /overview in ten minutes, MB": 4.0,
}


def modules() -> Path:
    """The folder node_modules with what the tests pin."""
    from external import installed, run_install  # of tests/clients

    install = ["npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts"]
    pins = [SCRIPTS / "package.json", SCRIPTS / "package-lock.json"]
    return installed("ui", pins, lambda directory: run_install(install, directory)) / "node_modules"


@click.command(help=__doc__.partition("\n")[0])
@click.option("--queues", default=20_000, show_default=True)
@click.option("--scroll", default=5.0, show_default=True, help="Seconds of scrolling.")
@click.option("--broker", "command", default=brokers.DEFAULT_COMMAND, help="Command that starts rabbitpy-broker.")
def main(queues: int, scroll: float, command: str) -> None:
    (port,) = brokers.free_ports(1)
    with brokers.rabbitpy(f"{command} --management-listen 127.0.0.1:{port}"):
        make_queues(f"http://127.0.0.1:{port}/api", queues)
        settings = {
            "base": f"http://127.0.0.1:{port}/", "modules": str(modules()), "chromium": CHROMIUM, "sandbox": os.geteuid() != 0,
            "queues": queues, "scroll_s": scroll,
        }  # fmt: skip
        env = {**os.environ, "UI_TEST": json.dumps(settings)}
        done = subprocess.run(
            ["node", str(SCRIPTS / "table.mjs")], env=env, capture_output=True, text=True, timeout=TIMEOUT_S, check=True
        )
    for name, value in json.loads(done.stderr.strip().splitlines()[-1]).items():
        bar = BARS.get(name)
        kept = "" if bar is None else "kept" if (value >= bar) == name.startswith("frames") else "MISSED"
        click.echo(f"{name:46} {value:10.1f}  {'' if bar is None else f'bar {bar:g}':12} {kept}")
    for case, outcome in json.loads(done.stdout.strip().splitlines()[-1]).items():
        if outcome != "ok":
            click.echo(f"{case}: {outcome}")


if __name__ == "__main__":
    main()
