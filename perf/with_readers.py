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

The broker has a core of its own. The load has the others, and readers run when it leaves one of them, as if they were elsewhere:
what their own processes take is not to be measured. A window is an interval of the monitors long; what is between two is for
readers to begin, and for their first lists.
"""

from __future__ import annotations

import os
import random
import statistics
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, Final

import click

from perf import brokers
from perf.build import ensure_compiled
from perf.machine import process_cpu_s
from perf.management import HOT, LIST_EVERY_S, Helper, change, make_queues, read

SETTLE: Final = 3  # seconds from one window to the next
WINDOW: Final = int(LIST_EVERY_S)
DRAWINGS: Final = 2_000
SEED: Final = 1


@dataclass
class Window:
    """What was moved in it."""

    messages: int = 0
    cpu_s: float = 0.0
    seconds: float = 0.0


class Windows:
    """One after the other, of a load that tells its figures each second; those of odd numbers have readers."""

    def __init__(self, broker: brokers.Broker, api: str, readers: tuple[int, int]) -> None:
        self.all: list[Window] = []
        self.readers_cpu: list[float] = []  # their own, in seconds a second
        assert broker.session is not None, "one that was started here"
        self._pid, self._api, self._readers = broker.session, api, readers
        self._reading: Helper | None = None
        self._second = 0
        self._last = 0.0, 0.0  # wall clock and the broker's

    def on_second(self, received: int) -> None:
        """So many messages have come out since the last time."""
        now = time.monotonic(), process_cpu_s(self._pid)
        number, second = divmod(self._second, SETTLE + WINDOW)
        if second == 0:
            self._switch(with_readers=number % 2 == 1)
        elif second >= SETTLE:
            if second == SETTLE:
                self.all.append(Window())
            window = self.all[-1]
            window.messages += received
            window.seconds += now[0] - self._last[0]
            window.cpu_s += now[1] - self._last[1]
        self._last = now
        self._second += 1

    def _switch(self, *, with_readers: bool) -> None:
        if self._reading is not None:
            self.readers_cpu.append(self._reading.stop()["cpu"])
            self._reading = None
        if with_readers:
            self._reading = Helper(read_behind, self._api, *self._readers)


def read_behind(said: Connection, api: str, monitors: int, pages: int) -> None:
    """Reads while the load leaves a core, as what runs on another machine would not be in its way."""
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    read(said, api, monitors, pages)


def measure(broker: brokers.Broker, windows: Windows, options: str, pairs: int) -> None:
    """A load as these options of `perf.load` say."""
    compiled = ensure_compiled()
    # Not before the engine is compiled: importing it would settle which build of it runs.
    from perf.load.__main__ import main as command
    from perf.load.__main__ import plan_of
    from perf.load.run import run

    seconds = (2 * pairs + 1) * (SETTLE + WINDOW)
    given = command.make_context("perf.load", ["--url", broker.url, *options.split(), "-z", str(seconds)]).params
    own = {name: given.pop(name) for name in ("queue", "auto_ack", "ack_every", "seconds")}
    for name in ("interpreted", "as_json", "quiet"):  # of the command itself
        del given[name]
    run(plan_of(**own, given=given), compiled, lambda row: windows.on_second(row.tally.received))


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
@click.option("--broker", "command", default=brokers.DEFAULT_COMMAND, help="Command that starts rabbitpy-broker.")
def main(queues: int, changing: int, monitors: int, pages: int, options: str, pairs: int, command: str) -> None:
    first, *others = sorted(os.sched_getaffinity(0))
    if not others:
        raise click.ClickException("the broker needs a core of its own")
    os.sched_setaffinity(0, others)
    (port,) = brokers.free_ports(1)
    api = f"http://127.0.0.1:{port}/api"
    with brokers.rabbitpy(f"taskset -c {first} {command} --management-listen 127.0.0.1:{port}") as broker:
        make_queues(api, queues)
        changes = Helper(change, broker.url, queues, changing)
        windows = Windows(broker, api, (monitors, pages))
        measure(broker, windows, options, pairs)
        changes.stop()
    every = windows.all
    found = {
        "messages a second": told([window.messages / window.seconds for window in every]),
        "messages a CPU second": told([window.messages / window.cpu_s for window in every]),
    }
    for name, figures in found.items():
        for what, value in figures.items():
            click.echo(f"{name:24} {what:18} {value}")
    click.echo(f"broker's CPU time a second {[round(window.cpu_s / window.seconds, 3) for window in every]}")
    click.echo(f"readers' own CPU time a second {round(statistics.median(windows.readers_cpu), 3)}")


if __name__ == "__main__":
    main()
