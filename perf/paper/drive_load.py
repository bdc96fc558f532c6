"""Drives a measurement with the project's own load generator, whose processes this one starts and adds up.

Importing this module settles which build of the generator's engine runs: call `perf.build.ensure_compiled()` before.
"""

from __future__ import annotations

import contextlib
import math
import multiprocessing
import os
from collections.abc import Callable
from typing import Any

from perf.load.plan import Plan
from perf.load.report import Row
from perf.load.run import Run, RunFailed, workers
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

INTERVAL_S = 1.0


def drive(job: Job, on_figures: Callable[[dict[str, Any]], None]) -> None:
    """Runs the job; hands over the figures of each second as they come. Raises MeasurementFailed."""
    processes = max(1, (os.cpu_count() or 1) // len(job.groups))
    plans = [plan_of(job, group, processes) for group in job.groups]
    try:
        with contextlib.ExitStack() as stack:
            pipes = [pipe for plan in plans for pipe in stack.enter_context(workers(plan))]
            try:
                Run(plans[0], pipes, True, lambda row: on_figures(figures(row))).report()
            except KeyboardInterrupt:
                for process in multiprocessing.active_children():
                    process.terminate()
                raise
    except RunFailed as error:
        raise MeasurementFailed(str(error)) from None


def plan_of(job: Job, group: Group, processes: int) -> Plan:
    return Plan(
        url=job.url,
        producers=PRODUCERS * group.queues,
        consumers=CONSUMERS * group.queues,
        queues=group.queues,
        producer_channels=PRODUCER_CHANNELS,
        consumer_channels=CONSUMER_CHANNELS,
        # a single queue's name gets no number from the generator
        queue=group.queue_names[0] if group.queues == 1 else group.queue_prefix,
        exchange=group.exchange,
        sizes=(SIZE,),
        persistent=True,
        durable=True,
        confirm=job.confirm,
        prefetch=job.prefetch,
        seconds=math.ceil(job.seconds),  # so that its last second is a whole one
        warmup=0.0,  # its samples are kept as well
        interval=INTERVAL_S,
        predeclared=True,
        keep=True,
        processes=processes,
    )


def figures(row: Row) -> dict[str, Any]:
    told = row.tally.figures(INTERVAL_S)
    latency, confirms = told["latency_us"], told["confirm_latency_us"]
    return {
        "second": row.end,
        "interval_s": INTERVAL_S,
        "published": told["sent_per_s"],
        "confirmed": told["confirmed_per_s"],
        "nacked": told["nacked"],
        "received": told["received_per_s"],
        **{f"latency_{point}_us": latency.get(point) for point in ("p50", "p95", "p99")},
        **{f"confirm_{point}_us": confirms.get(point) for point in ("p50", "p95", "p99")},
        "client_cpu_s": round(row.tally.cpu_s, 3),
    }
