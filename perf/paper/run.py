"""Measures: brokers that run, one measurement after the other, each second's figures into the raw files."""

from __future__ import annotations

import statistics
import time
import uuid
from collections.abc import Callable, Mapping
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from perf.brokers import Broker, cpu_seconds, status_kib
from perf.machine import Stolen
from perf.paper.plan import CALM_TRIES, Job, Measurement, MeasurementFailed, Settings, groups
from perf.paper.raw import RunFolder
from perf.paper.topology import declared

Drive = Callable[[Job, Callable[[dict[str, Any]], None]], None]


class Meter:
    """CPU and memory of a broker's processes. They are looked up once: they do not change during a measurement."""

    def __init__(self, broker: Broker) -> None:
        self.processes = broker.processes()
        self.cpu_s: float | None = None

    def figures(self) -> dict[str, float | None]:
        """CPU time since the last call and resident memory now; before the first call the broker took connections."""
        before, self.cpu_s = self.cpu_s, sum(cpu_seconds(process) for process in self.processes)
        rss_kib = sum(status_kib(process, "VmRSS") for process in self.processes)
        return {
            "broker_cpu_s": None if before is None else round(self.cpu_s - before, 3),
            "broker_rss_mib": round(rss_kib / 1024, 1),
        }


class Evaluation:
    """A run: its settings, the brokers by name, the drivers by name, and the folder that takes the samples."""

    def __init__(
        self,
        settings: Settings,
        folder: RunFolder,
        brokers: Mapping[str, Broker],
        drives: Mapping[str, Drive],
        console: Console,
    ) -> None:
        self.settings = settings
        self.folder = folder
        self.brokers = brokers
        self.drives = drives
        self.console = console
        self.failed: list[Measurement] = []

    def run(self) -> None:
        """Measures what has not been measured yet. Failures are told, kept in `failed`, and do not end the run."""
        everything = self.settings.measurements()
        left = [measurement for measurement in everything if not self.folder.has(measurement)]
        # Without a thread that redraws: the load generator forks.
        with Progress(
            TextColumn("{task.description}"),
            BarColumn(20),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=self.console,
            auto_refresh=False,
        ) as progress:
            task = progress.add_task("", total=len(everything), completed=len(everything) - len(left))
            for measurement in left:
                title = title_of(measurement)

                def show(sample: dict[str, Any], title: str = title) -> None:
                    text = f"{title} {sample['second']:3.0f} s {sample['published']:>9,}/s"
                    progress.update(task, description=text, refresh=True)

                def tell(text: str, title: str = title) -> None:
                    progress.console.print(f"{title} {text}", highlight=False, soft_wrap=True)

                try:
                    tell(f"{self.measure_calmly(measurement, show, tell):>9,.0f} msg/s")
                except MeasurementFailed as error:
                    self.failed.append(measurement)
                    progress.console.print(
                        f"{title} failed: {error}", highlight=False, markup=False, soft_wrap=True
                    )
                progress.advance(task)
                progress.refresh()

    def measure_calmly(
        self, measurement: Measurement, on_sample: Callable[[dict[str, Any]], None], tell: Callable[[str], None]
    ) -> float:
        """Measures until the host left the machine as much in peace as the settings want it; the last try is kept."""
        mean = 0.0
        for _ in range(CALM_TRIES):
            mean, stolen = self.measure(measurement, on_sample)
            if self.settings.calm is None or 100 * stolen <= self.settings.calm:
                break
            tell(f"{mean:>9,.0f} msg/s while the host took {stolen:.1%} of the CPU time")
        return mean

    def measure(
        self, measurement: Measurement, on_sample: Callable[[dict[str, Any]], None]
    ) -> tuple[float, float]:
        """Returns the mean send rate after the warm-up, and the share of CPU time stolen then. Raises MeasurementFailed."""
        settings, target = self.settings, measurement.target
        broker = self.brokers[target.broker]
        parts = groups(measurement.queues, f"paper-{uuid.uuid4().hex[:8]}")
        job = Job(
            broker.url,
            parts,
            settings.warmup + settings.seconds,
            settings.confirm,
            settings.prefetch,
            settings.jvm_options,
        )
        rates: list[float] = []
        shares: list[float] = []
        with self.folder.recording(measurement) as write, declared(broker.url, parts, target.queue_arguments):
            meter, stolen = Meter(broker), Stolen()

            def on_figures(figures: dict[str, Any]) -> None:
                share = stolen.share()
                sample = {"time": round(time.time(), 3), **figures, **meter.figures(), "stolen": round(share, 4)}
                write(sample)
                on_sample(sample)
                if figures["second"] - figures["interval_s"] > settings.warmup - 0.1:
                    rates.append(figures["published"])
                    shares.append(share)

            self.drives[measurement.driver](job, on_figures)
            if not rates:
                raise MeasurementFailed("there was no sample after the warm-up")
        return statistics.mean(rates), statistics.mean(shares)


def title_of(measurement: Measurement) -> str:
    count = f"{measurement.queues} queue{'' if measurement.queues == 1 else 's'}"
    return f"{measurement.driver:8} {count:9} rep {measurement.repetition}  {measurement.target.title:27}"
