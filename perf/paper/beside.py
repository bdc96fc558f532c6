"""A build beside the one before, from the samples of one run: what each message cost, and the ratio of the rates."""

from __future__ import annotations

import dataclasses
import json
import statistics
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console
from rich.table import Table

from perf.paper.plan import BEFORE, RABBITPY, Measurement, Settings, Target
from perf.paper.raw import RunFolder

TABLE_WIDTH = 110  # whatever the terminal has: a row is one line


@dataclasses.dataclass(frozen=True)
class Cost:
    """Of one measurement: messages received a second, and CPU time a message on either side in microseconds."""

    rate: float
    broker_us: float
    client_us: float


@dataclasses.dataclass(frozen=True)
class Pair:
    """The repetitions that both builds came through, at one queue count in one mode."""

    driver: str
    queues: int
    mode: str
    now: list[Cost]
    before: list[Cost]

    @property
    def ratios(self) -> list[float]:
        return [now.rate / before.rate for now, before in zip(self.now, self.before, strict=True)]

    @property
    def ratio(self) -> float:
        """The mean of the repetitions' ratios, build by build before."""
        return statistics.mean(self.ratios)

    @property
    def error(self) -> float | None:
        """Its standard error; None with a single repetition."""
        ratios = self.ratios
        return statistics.stdev(ratios) / len(ratios) ** 0.5 if len(ratios) > 1 else None


def cost(file: Path, warmup: float) -> Cost | None:
    """None where nothing was received after the warm-up."""
    samples = [json.loads(line) for line in file.read_text().splitlines()]
    counted = [sample for sample in samples if sample["second"] - sample["interval_s"] > warmup - 0.1]
    seconds = sum(sample["interval_s"] for sample in counted)
    received = sum(sample["received"] * sample["interval_s"] for sample in counted)
    if received == 0:
        return None

    def each_us(name: str) -> float:
        metered = [sample for sample in counted if sample[name] is not None]
        messages = sum(sample["received"] * sample["interval_s"] for sample in metered)
        return 1e6 * sum(sample[name] for sample in metered) / messages if messages else 0.0

    return Cost(received / seconds, each_us("broker_cpu_s"), each_us("client_cpu_s"))


def pairs(settings: Settings, folder: RunFolder) -> Iterator[Pair]:
    for driver in settings.drivers:
        for queues in settings.queues:
            for mode in settings.modes:
                found: list[tuple[Cost, Cost]] = []
                for repetition in range(1, settings.repetitions + 1):
                    both = [
                        folder.file_of(Measurement(Target(broker, mode), driver, queues, repetition))
                        for broker in (RABBITPY, BEFORE)
                    ]
                    costs = [cost(file, settings.warmup) for file in both if file.exists()]
                    match costs:
                        case [Cost() as now, Cost() as before]:
                            found.append((now, before))
                if found:
                    yield Pair(driver, queues, mode, [now for now, _ in found], [before for _, before in found])


def show(settings: Settings, folder: RunFolder) -> None:
    """Prints a row for each driver, queue count and mode: both builds and the ratio of the rates."""
    table = Table(title="This build / the one before; CPU time is of one message", title_justify="left")
    for header in ("driver", "queues", "mode", "msg/s", "broker µs", "client µs", "ratio"):
        table.add_column(header, justify="left" if header in ("driver", "mode") else "right", no_wrap=True)
    for pair in pairs(settings, folder):

        def both(name: str, form: str, pair: Pair = pair) -> str:
            means = [statistics.mean(getattr(cost, name) for cost in costs) for costs in (pair.now, pair.before)]
            return " / ".join(format(mean, form) for mean in means)

        error = "" if pair.error is None else f" ± {pair.error:.2f}"
        table.add_row(
            pair.driver,
            str(pair.queues),
            pair.mode,
            both("rate", ",.0f"),
            both("broker_us", ".1f"),
            both("client_us", ".1f"),
            f"{pair.ratio:.2f}{error}",
        )
    Console(width=TABLE_WIDTH).print(table)
