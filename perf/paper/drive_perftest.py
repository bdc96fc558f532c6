"""Drives a measurement with RabbitMQ's PerfTest: a process for each exchange, since it publishes to one.

PerfTest prints a line a second. It has a clock before it has its connections, and at the end of its time its producers wait
for their confirms: neither is to be measured. So the time counts from when each process has printed a line, and they are
stopped when it is over. The lines of two processes are put together in their order: rates are added, and of two latencies
the larger one is taken, which is at least what all messages together had.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import selectors
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from perf import perftest
from perf.brokers import cpu_seconds
from perf.paper.plan import (
    CONSUMER_CHANNELS,
    CONSUMERS,
    PRODUCER_CHANNELS,
    PRODUCERS,
    SIZE,
    Group,
    Job,
    MeasurementFailed,
)

# What the JVM and 150 connections may take beside the run's time.
GRACE_S = 60.0
STOP_S = 10.0
KEPT_LINES = 40

# id: test-1, time 2.024 s, sent: 2276 msg/s, confirmed: 2582 msg/s, nacked: 0 msg/s, received: 2415 msg/s,
#   min/median/75th/95th/99th consumer latency: 10735/146434/222912/392861/582532 µs, confirm latency: 54315/…/1438351 µs
INTERVAL = re.compile(r"\btime ([\d.]+) s, (.*)")
RATE = re.compile(r"(sent|confirmed|nacked|received): ([\d.]+) msg/s")
LATENCY = re.compile(r"(consumer|confirm) latency: ([\d/]+) (µs|ms)")
TROUBLE = re.compile(r"Exception|ERROR|reply-code|[Cc]aught")
COLUMNS = {"sent": "published", "confirmed": "confirmed", "nacked": "nacked", "received": "received"}


@dataclasses.dataclass
class Interval:
    """One line: rates a second, latencies in microseconds; those are missing when nothing was measured in it."""

    end_s: float
    rates: dict[str, float]
    latencies: dict[str, float]


def parse(line: str) -> Interval | None:
    """The figures of a line; None for what is not an interval."""
    found = INTERVAL.search(line)
    if found is None:
        return None
    rates = {COLUMNS[name]: float(rate) for name, rate in RATE.findall(found[2])}
    latencies: dict[str, float] = {}
    for kind, values, unit in LATENCY.findall(found[2]):
        _, p50, _, p95, p99 = (float(value) * (1000 if unit == "ms" else 1) for value in values.split("/"))
        if p99:  # an interval that came late is followed by one with rates and with zeros for latencies
            name = "latency" if kind == "consumer" else "confirm"
            latencies |= {f"{name}_p50_us": p50, f"{name}_p95_us": p95, f"{name}_p99_us": p99}
    return Interval(float(found[1]), rates, latencies)


def combine(intervals: Sequence[Interval], began: Sequence[float], previous_s: float) -> dict[str, Any]:
    """The figures of one second of all processes, whose clocks stood at `began` when the time began to count."""
    second = max(interval.end_s - start for interval, start in zip(intervals, began, strict=True))
    merged: dict[str, Any] = {"second": round(second, 3), "interval_s": round(second - previous_s, 3)}
    for name in COLUMNS.values():
        merged[name] = round(sum(interval.rates.get(name, 0.0) for interval in intervals))
    for name in sorted({name for interval in intervals for name in interval.latencies}):
        merged[name] = max(interval.latencies.get(name, 0.0) for interval in intervals)
    return merged


def arguments(job: Job, group: Group) -> list[str]:
    counts = {
        "-x": PRODUCERS * group.queues,
        "-y": CONSUMERS * group.queues,
        "-X": PRODUCER_CHANNELS,
        "-Y": CONSUMER_CHANNELS,
        "-s": SIZE,
        "-c": job.confirm,
        "-q": job.prefetch,
        "-z": round(job.seconds + 2 * GRACE_S),  # only for the case that nobody is left to stop it
        "--queue-pattern-from": 0,
        "--queue-pattern-to": group.queues - 1,
    }
    words = ["--queue-pattern", f"{group.queue_prefix}-%d", "-e", group.exchange, "-t", "direct"]
    words += ["-f", "persistent", "--predeclared"]
    return words + [str(part) for pair in counts.items() for part in pair]


class Process:
    """A running PerfTest; `feed` takes what it printed, `intervals` are those that nobody has taken yet."""

    def __init__(self, command: Sequence[str]) -> None:
        # In a session of its own, so that Ctrl-C is this tool's to answer.
        self.popen = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
        )
        assert self.popen.stdout is not None
        self.output = self.popen.stdout.fileno()
        self.intervals: list[Interval] = []
        self.other_lines: list[str] = []
        self._unfinished = b""

    def feed(self, data: bytes) -> None:
        *lines, self._unfinished = (self._unfinished + data).split(b"\n")
        for line in lines:
            text = line.decode(errors="replace")
            interval = parse(text)
            if interval is not None:
                self.intervals.append(interval)
            elif text.strip():
                self.other_lines = [*self.other_lines[1 - KEPT_LINES :], text.strip()]

    def stop(self) -> None:
        """Ends it, politely at first: PerfTest closes its connections then."""
        self.popen.terminate()
        try:
            self.popen.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self.popen.kill()
            self.popen.wait()
        assert self.popen.stdout is not None
        self.popen.stdout.close()

    def trouble(self) -> str | None:
        """The first line that tells of a failure. PerfTest may go on when a producer or consumer has failed in its thread."""
        return next((line for line in self.other_lines if TROUBLE.search(line)), None)


def drive(job: Job, on_figures: Callable[[dict[str, Any]], None]) -> None:
    """Runs the job; hands over the figures of each second as they come. Raises MeasurementFailed."""
    java = shutil.which("java")
    if java is None:
        raise MeasurementFailed("Java is needed to run PerfTest")
    try:
        head = [java, *job.jvm_options, "-cp", f"{perftest.jars()}/*", perftest.MAIN_CLASS, "--uri", job.url]
    except perftest.PerfTestFailed as error:
        raise MeasurementFailed(str(error)) from None
    with contextlib.ExitStack() as stack:
        processes = []
        for group in job.groups:
            processes.append(Process([*head, *arguments(job, group)]))
            stack.callback(processes[-1].stop)
        moved, second = 0.0, 0.0
        for figures in follow(processes, time.monotonic() + job.seconds + GRACE_S):
            moved, second = moved + figures["received"], figures["second"]
            on_figures(figures)
            if second > job.seconds - 0.1:
                break
        for process in processes:
            trouble = process.trouble()
            if trouble or second <= job.seconds - 0.1:
                last_words = (process.other_lines or ["nothing was printed"])[-1]
                raise MeasurementFailed(f"PerfTest: {(trouble or last_words)[:300]}")
        if not moved:
            raise MeasurementFailed("PerfTest: nothing was received")


def follow(processes: Sequence[Process], end: float) -> Iterator[dict[str, Any]]:
    """The figures of each second from when all are at work, until one of them ends."""
    began: list[float] = []  # each one's clock then
    cpu = last_s = 0.0
    for _ in reading(processes, end):
        while all(process.intervals for process in processes):
            used = sum(cpu_seconds(process.popen.pid) for process in processes)
            if not began:
                began, cpu = [process.intervals[-1].end_s for process in processes], used
                for process in processes:
                    process.intervals.clear()
                continue
            intervals = [process.intervals.pop(0) for process in processes]
            merged = combine(intervals, began, last_s)
            if merged["interval_s"] <= 0:
                continue  # two lines with one time: the first has the figures
            merged["client_cpu_s"] = round(used - cpu, 3)
            last_s, cpu = merged["second"], used
            yield merged


def reading(processes: Sequence[Process], end: float) -> Iterator[None]:
    """Feeds the processes what they print; a turn after each piece, until an output is closed."""
    with selectors.DefaultSelector() as selector:
        for process in processes:
            selector.register(process.output, selectors.EVENT_READ, process)
        while True:
            if time.monotonic() > end:
                raise MeasurementFailed("PerfTest did not get through in time")
            for key, _ in selector.select(1.0):
                data = os.read(key.fd, 65536)
                if not data:
                    return
                key.data.feed(data)
                yield
