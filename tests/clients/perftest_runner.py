"""Runs PerfTest, RabbitMQ's own load tool, and reads what it prints.

PerfTest ends with code 0 even when a producer or consumer failed in its thread, so the output is read for what loggers and
stack traces look like, beside the exit code and the rates at the end.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from external import HERE, installed, require_tools, run_client, run_install

MAIN = "com.rabbitmq.perf.PerfTest"
# small and quick to start: the broker is under test, not the JVM
JVM_FLAGS = ("-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto")

_TROUBLE = re.compile(r"\b(ERROR|WARN|FATAL)\b|Exception\b|reply-code|^\s+at [\w.$]+\(|^Main thread caught", re.MULTILINE)
_AVERAGE = re.compile(r"(sending|receiving) rate avg: ([\d.]+) msg/s")
_STOPPED = re.compile(r"test stopped \((.*)\)")
_INTERVAL = re.compile(r"time [\d.]+ s, (.*)$", re.MULTILINE)
_RATE = re.compile(r"(sent|returned|confirmed|nacked|received): ([\d.]+) msg/s")


@dataclass(frozen=True)
class Outcome:
    """One run: rates in messages per second, and the highest of each rate in any of the printed intervals."""

    exit_code: int
    output: str
    sent: float
    received: float
    stopped_by: str
    peaks: dict[str, float]

    def assert_clean(self) -> None:
        assert self.exit_code == 0, f"exit code {self.exit_code}:\n{self.output[-6000:]}"
        trouble = _TROUBLE.search(self.output)
        assert trouble is None, f"{trouble.group() if trouble else ''!r} in the output:\n{self.output[-6000:]}"


def install(directory: Path) -> None:
    run_install(["mvn", "-q", "-B", "dependency:copy-dependencies", "-DoutputDirectory=jars"], directory)


def perftest_jars() -> Path:
    """The directory of PerfTest's jars, fetched when they are not there yet; skips without Java and Maven."""
    require_tools("java", "mvn")
    return installed("perftest", [HERE / "perftest" / "pom.xml"], install) / "jars"


def run_perftest(jars: Path, url: str, options: Sequence[str], timeout: float = 90.0) -> Outcome:
    done = run_client(["java", *JVM_FLAGS, "-cp", f"{jars}/*", MAIN, "--uri", url, *options], timeout=timeout)
    output = done.stdout + done.stderr
    averages = {kind: float(rate) for kind, rate in _AVERAGE.findall(output)}
    stopped = _STOPPED.search(output)
    peaks: dict[str, float] = {}
    for interval in _INTERVAL.findall(output):
        for kind, rate in _RATE.findall(interval):
            peaks[kind] = max(peaks.get(kind, 0.0), float(rate))
    return Outcome(done.returncode, output, averages.get("sending", 0.0), averages.get("receiving", 0.0),
                   stopped.group(1) if stopped else "", peaks)
