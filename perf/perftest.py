"""Runs RabbitMQ's own load generator, PerfTest, against a broker and collects its figures as JSON.

    python -m perf.perftest --url amqp://127.0.0.1:5672 -- -x 2 -y 2 -u q -s 1000 -c 200 -q 100

It is the Java client that most users measure with. It costs far more CPU than perf.load, so on one machine its figures
say how a broker works with that client rather than what the broker can do. Needs Java, and Maven once, to fetch it.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import click

from perf import machine
from perf.build import cache_dir

VERSION = "2.22.1"
MAIN_CLASS = "com.rabbitmq.perf.PerfTest"
FETCH_TIMEOUT = 600
POM = f"""<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>rabbitpy</groupId>
  <artifactId>perftest-jars</artifactId>
  <version>1</version>
  <packaging>pom</packaging>
  <dependencies>
    <dependency>
      <groupId>com.rabbitmq</groupId>
      <artifactId>perf-test</artifactId>
      <version>{VERSION}</version>
    </dependency>
  </dependencies>
</project>
"""
PLUGIN = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy-dependencies"
# "id: t, sending rate avg: 20021 msg/s", the two lines at the end of a run
AVERAGE = re.compile(r"(sending|receiving) rate avg: ([\d.,]+) msg/s")
# "... consumer latency min/median/75th/95th/99th 1/2/3/4/5 µs": once a second, or at the end as a summary
LATENCY = re.compile(r"(consumer|confirm) latency (?:\(µs\) )?min/median/75th/95th/99th ([\d/]+) (µs|ms)")


class PerfTestFailed(Exception):
    """PerfTest cannot be had or did not come through; the text says why."""


def jars() -> Path:
    """The directory with PerfTest and what it depends on; fetched from Maven Central the first time."""
    target = cache_dir() / f"perftest-{VERSION}"
    if target.exists():
        return target
    maven = shutil.which("mvn")
    if maven is None:
        raise PerfTestFailed("Maven (mvn) is needed once, to fetch PerfTest")
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        Path(folder, "pom.xml").write_text(POM)
        command = [maven, "-q", "-B", PLUGIN, f"-DoutputDirectory={folder}/jars"]
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, timeout=FETCH_TIMEOUT, check=False
        )
        if done.returncode:
            raise PerfTestFailed(
                f"Maven could not fetch PerfTest: {(done.stdout + done.stderr).strip()[-300:]}"
            )
        Path(folder, "jars").rename(target)
    return target


def run_perftest(url: str, options: str, seconds: float) -> dict[str, Any]:
    """Runs PerfTest for so long; the names of the figures are perf.load's. Raises PerfTestFailed."""
    java = shutil.which("java")
    if java is None:
        raise PerfTestFailed("Java is needed to run PerfTest")
    command = [
        java,
        "-cp",
        f"{jars()}/*",
        MAIN_CLASS,
        "--uri",
        url.removesuffix("/"),  # to the Java client, a path of "/" is the vhost with the empty name
        *options.split(),
        "-z",
        str(max(1, round(seconds))),
    ]
    start = time.monotonic()
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds + 60, check=False)
    except subprocess.TimeoutExpired:
        raise PerfTestFailed(f"no end within {seconds + 60:.0f} s") from None
    result = figures(done.stdout)
    if done.returncode or not result:
        words = (done.stderr.strip() or done.stdout.strip() or f"exit code {done.returncode}").splitlines()
        raise PerfTestFailed(words[-1][:300])
    return {"perftest": VERSION, "options": options, "seconds": round(time.monotonic() - start, 1), **result}


def figures(output: str) -> dict[str, Any]:
    """The averages at the end of PerfTest's output and its last latencies; empty when it has none."""
    found: dict[str, Any] = {}
    for kind, rate in AVERAGE.findall(output):
        found["sent_per_s" if kind == "sending" else "received_per_s"] = float(rate.replace(",", ""))
    for kind, values, unit in LATENCY.findall(output):
        scale = 1000 if unit == "ms" else 1
        lowest, middle, p75, p95, p99 = (int(value) * scale for value in values.split("/"))
        name = "latency_us" if kind == "consumer" else "confirm_latency_us"
        found[name] = {"min": lowest, "p50": middle, "p75": p75, "p95": p95, "p99": p99}
    return found


@click.command(context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
@click.option("--url", default="amqp://guest:guest@127.0.0.1:5672", help="The broker.")
@click.option("-z", "--time", "seconds", type=click.FloatRange(1), default=10.0, help="Seconds to run.")
@click.option("--save", is_flag=True, help="Write the result to perf/results as well.")
@click.argument("options", nargs=-1, metavar="-- [PERFTEST OPTION]…")
def main(url: str, seconds: float, save: bool, options: tuple[str, ...]) -> None:
    """Run PerfTest with the options after -- and print its figures as JSON."""
    try:
        result = run_perftest(url, " ".join(options), seconds)
    except PerfTestFailed as error:
        raise click.ClickException(str(error)) from None
    if save:
        click.echo(f"written to {machine.save('perftest', result)}", err=True)
    click.echo(json.dumps(result))


if __name__ == "__main__":
    main(prog_name="python -m perf.perftest")
