"""What monitors and pages of the management API cost of a busy broker's messages: one load without pause, beside which they are
there in every other window.

    python -m perf.with_readers                    20,000 queues, 500 of them changing each second, three monitors, five pages
    python -m perf.with_readers --pairs 20
    python -m perf.with_readers --load "-s 12 -c 500"

`perf.management` begins a load for each measurement, and what differs from one to the next is more than what readers take. Here
nothing but the readers changes, and each window with them is compared with the two beside it. Reported are, of the windows, and
of what was less with readers, each, the median, and the range of medians that 19 of 20 drawings from the same windows have:

  messages a second
  messages a CPU second     of the broker: what a core of it moves, whatever else runs

Both as they would be if these cores were nobody else's. Where others have the second thread of a core that this machine is
given, everything takes up to twice as long while they are busy, for tenths of seconds and for many seconds, which no number of
windows evens out soon. So the broker's core, and one of the load's, do a short sum every 10 ms. How their
speeds and what is moved go together is found from the tenths of a second without readers (a plane of least squares), and each
window is taken for what it moved of what such a load moves at the speeds that it had. With `--as-it-was` nothing is made of
speeds.

The broker has a core of its own. The load has the others, and readers run when it leaves one of them, as if they were elsewhere:
what their own processes take is not to be measured, and is little, for they unpack nothing. A window is an interval of the
monitors long; what is between two is for readers to begin, and for their first lists.
"""

from __future__ import annotations

import bisect
import os
import random
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, Final

import click

from perf import brokers
from perf.build import ensure_compiled
from perf.machine import process_cpu_s
from perf.management import HOT, LIST_EVERY_S, Helper, change, make_queues, read

SAMPLE_S: Final = 0.1
SETTLE: Final = round(3 / SAMPLE_S)  # samples from one window to the next
WINDOW: Final = round(LIST_EVERY_S / SAMPLE_S)
SUM_EVERY_S: Final = 0.01
SUMMANDS: Final = 1_500  # about 70 µs
ALONE: Final = 0.2  # of the sums, the quickest, are taken to be those of a core that is nobody else's at the time
DRAWINGS: Final = 2_000
SEED: Final = 1
SAME: Final = 1e-9  # a part of the variances, below which two speeds are one


@dataclass
class Sample:
    """What was moved in SAMPLE_S, up to a time of the monotonic clock."""

    ends_at: float
    messages: int
    cpu_s: float


Sums = list[tuple[float, int]]  # when each was done, by the monotonic clock, and the nanoseconds of CPU time that it took


class Windows:
    """One after the other, of a load that tells its figures for each sample; those of odd numbers have readers."""

    def __init__(self, broker: brokers.Broker, api: str, readers: tuple[int, int]) -> None:
        self.all: list[list[Sample]] = []
        self.readers_cpu: list[float] = []  # their own, in seconds a second
        assert broker.session is not None, "one that was started here"
        self._pid, self._api, self._readers = broker.session, api, readers
        self._reading: Helper | None = None
        self._sample = 0
        self._cpu_s = 0.0  # the broker's, at the last one

    def on_sample(self, received: int) -> None:
        """So many messages have come out since the last one."""
        cpu_s = process_cpu_s(self._pid)
        number, at = divmod(self._sample, SETTLE + WINDOW)
        if at == 0:
            self._switch(number)
        elif at >= SETTLE:
            if at == SETTLE:
                self.all.append([])
            self.all[-1].append(Sample(time.monotonic(), received, cpu_s - self._cpu_s))
        self._cpu_s = cpu_s
        self._sample += 1

    def _switch(self, number: int) -> None:
        if self._reading is not None:
            self.readers_cpu.append(self._reading.stop()["cpu"])
            self._reading = None
        if number % 2 == 1:
            self._reading = Helper(read_behind, self._api, *self._readers)


def sums(said: Connection, core: int) -> None:
    """Does one again and again, on this core."""
    os.sched_setaffinity(0, {core})
    said.send("begun")
    found: Sums = []
    while not said.poll(SUM_EVERY_S):
        add_up()  # so that what it needs is at hand for the one that counts
        began = time.thread_time_ns()
        add_up()
        found.append((time.monotonic(), time.thread_time_ns() - began))
    said.send(found)


def add_up() -> int:
    total = 1
    for number in range(SUMMANDS):
        total = (total * 3 + number) & 0xFFFF
    return total


class Speeds:
    """Of a core, 1 when it is nobody else's, by the sums that it has done; those that took no time by the thread's clock, as was
    seen in a virtual machine, tell nothing.
    """

    def __init__(self, done: Sums) -> None:
        done = [(at, cpu_ns) for at, cpu_ns in done if cpu_ns > 0]
        alone = sorted(cpu_ns for _, cpu_ns in done)[int(ALONE * len(done))]
        self._times = [at for at, _ in done]
        self._speeds = [min(alone / cpu_ns, 1.0) for _, cpu_ns in done]

    def of(self, sample: Sample) -> float:
        """While it was taken: of the sums then, or of the last one before, if there was none."""
        first, behind = (bisect.bisect(self._times, at) for at in (sample.ends_at - SAMPLE_S, sample.ends_at))
        return statistics.fmean(self._speeds[min(first, max(behind - 1, 0)) : max(behind, 1)])


@dataclass
class Plane:
    """What a rate is at two speeds, but for a constant."""

    slopes: tuple[float, float]

    @classmethod
    def through(cls, speeds: list[tuple[float, float]], rates: list[float]) -> Plane:
        """The one of least squares; of the first speed alone, if the second says nothing besides."""
        (first, second), of = zip(*speeds, strict=True), statistics.covariance
        a, b, c = of(first, first), of(first, second), of(second, second)
        d, e = of(first, rates), of(second, rates)
        if a * c - b * b <= SAME * a * c:
            return cls((d / a if a else 0.0, 0.0))
        return cls(((d * c - e * b) / (a * c - b * b), (e * a - d * b) / (a * c - b * b)))

    def lost(self, speeds: tuple[float, float]) -> float:
        """Of the rate at full speed."""
        return sum(slope * (1 - speed) for slope, speed in zip(self.slopes, speeds, strict=True))


def at_full_speed(
    windows: list[list[Sample]], cores: tuple[Speeds, Speeds], rate: Callable[[Sample], float]
) -> list[float]:
    """The rates of windows, as they would be with all of both cores: see above."""

    def of(sample: Sample) -> tuple[float, float]:
        return cores[0].of(sample), cores[1].of(sample)

    alone = [sample for window in windows[::2] for sample in window]
    plane = Plane.through([of(sample) for sample in alone], list(map(rate, alone)))
    full = statistics.fmean(rate(sample) + plane.lost(of(sample)) for sample in alone)
    return [
        full * sum(map(rate, window)) / sum(full - plane.lost(of(sample)) for sample in window) for window in windows
    ]


def a_second(sample: Sample) -> float:
    return sample.messages / SAMPLE_S


def a_cpu_second(sample: Sample) -> float:
    return sample.messages / sample.cpu_s


def cpu_share(sample: Sample) -> float:
    return sample.cpu_s / SAMPLE_S


def read_behind(said: Connection, api: str, monitors: int, pages: int) -> None:
    """Reads while the load leaves a core, as what runs on another machine would not be in its way."""
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    read(said, api, monitors, pages, unpack=False)


def measure(broker: brokers.Broker, windows: Windows, options: str, pairs: int) -> None:
    """A load as these options of `perf.load` say."""
    compiled = ensure_compiled()
    # Not before the engine is compiled: importing it would settle which build of it runs.
    from perf.load.__main__ import main as command
    from perf.load.__main__ import plan_of
    from perf.load.run import run

    seconds = (2 * pairs + 1) * (SETTLE + WINDOW) * SAMPLE_S
    timed = ["-z", str(seconds), "--interval", str(SAMPLE_S)]
    given = command.make_context("perf.load", ["--url", broker.url, *options.split(), *timed]).params
    own = {name: given.pop(name) for name in ("queue", "auto_ack", "ack_every", "seconds")}
    for name in ("interpreted", "as_json", "quiet"):  # of the command itself
        del given[name]
    run(plan_of(**own, given=given), compiled, lambda row: windows.on_sample(row.tally.received))


def less(rates: list[float]) -> list[float]:
    """By which part each with readers is below the two beside it."""
    return [1 - rates[at] / ((rates[at - 1] + rates[at + 1]) / 2) for at in range(1, len(rates) - 1, 2)]


def likely(values: list[float]) -> tuple[float, float]:
    """The medians of drawings from these, with replacement: where 19 of 20 lie."""
    draw = random.Random(SEED)
    medians = sorted(statistics.median(draw.choices(values, k=len(values))) for _ in range(DRAWINGS))
    return medians[DRAWINGS // 40], medians[-DRAWINGS // 40 - 1]


def told(rates: list[float]) -> dict[str, Any]:
    lost = less(rates)
    return {
        "windows": [round(rate) for rate in rates],
        "less %, each": [round(100 * part, 1) for part in lost],
        "less %, median": round(100 * statistics.median(lost), 2),
        "less %, 19 of 20": [round(100 * part, 2) for part in likely(lost)],
    }


@click.command(help=__doc__.partition("\n")[0])
@click.option("--queues", default=20_000, show_default=True)
@click.option("--changing", default=500, show_default=True, help="Queues that get a message each second.")
@click.option("--monitors", default=3, show_default=True, help="Clients that ask for all queues every 5 s.")
@click.option("--pages", default=5, show_default=True, help="Readers of the event stream with the table of queues.")
@click.option("--load", "options", default=HOT, show_default=True, help="Options of the load generator.")
@click.option("--pairs", default=100, show_default=True, help="Windows with readers.")
@click.option("--as-it-was", is_flag=True, help="Rates as they were, whatever part of its core the broker had.")
@click.option("--broker", "command", default=brokers.DEFAULT_COMMAND, help="Command that starts rabbitpy-broker.")
def main(
    queues: int, changing: int, monitors: int, pages: int, options: str, pairs: int, as_it_was: bool, command: str
) -> None:
    first, *others = sorted(os.sched_getaffinity(0))
    if not others:
        raise click.ClickException("the broker needs a core of its own")
    os.sched_setaffinity(0, others)
    (port,) = brokers.free_ports(1)
    api = f"http://127.0.0.1:{port}/api"
    with brokers.rabbitpy(f"taskset -c {first} {command} --management-listen 127.0.0.1:{port}") as broker:
        make_queues(api, queues)
        changes = Helper(change, broker.url, queues, changing)
        summing = [Helper(sums, core) for core in (first, others[0])]
        windows = Windows(broker, api, (monitors, pages))
        measure(broker, windows, options, pairs)
        speeds = Speeds(summing[0].stop()), Speeds(summing[1].stop())
        changes.stop()
    found = {}
    for name, rate in {"messages a second": a_second, "messages a CPU second": a_cpu_second}.items():
        if as_it_was:
            found[name] = told([statistics.fmean(map(rate, window)) for window in windows.all])
        else:
            found[name] = told(at_full_speed(windows.all, speeds, rate))
    for name, figures in found.items():
        for what, value in figures.items():
            click.echo(f"{name:24} {what:18} {value}")
    for name, part in {
        "broker's CPU time a second": cpu_share,
        "speed of its core": speeds[0].of,
        "speed of the load's": speeds[1].of,
    }.items():
        click.echo(f"{name:26} {[round(statistics.fmean(map(part, window)), 3) for window in windows.all]}")
    click.echo(f"readers' own CPU time a second {round(statistics.median(windows.readers_cpu), 3)}")


if __name__ == "__main__":
    main()
