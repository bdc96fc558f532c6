"""Celery's tasks for later, ETA and countdown: the worker takes the message and keeps it unacked until it is due.

It raises its prefetch limit by one for each message it keeps, and lowers it again when that one runs.
"""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Callable
from itertools import accumulate

import pytest
from celery_worker import RESULT_TIMEOUT, Worker
from pika.adapters.blocking_connection import BlockingChannel

from behaviour.helpers import ready
from support import eventually

pytestmark = [pytest.mark.timeout(120), pytest.mark.filterwarnings("ignore::ResourceWarning")]

NewWorker = Callable[..., Worker]


# Kombu reads two clocks, one after the other, to say by the second when a task is due. A worker may lose its core between.
READ_LATE = dt.timedelta(seconds=0.25)


def after(seconds: float) -> dt.datetime:
    return dt.datetime.now(dt.UTC) + dt.timedelta(seconds=seconds)


def test_tasks_run_at_their_eta(new_worker: NewWorker, channel: BlockingChannel) -> None:
    """A hundred of them on a limit of 4, sent in no order: all held unacked, each run when due and not before."""
    worker = new_worker().start("--pool", "solo", "-c", "1")
    clock = worker.task("clock")
    etas = [after(4 + number / 100) for number in range(100)]
    random.Random(7).shuffle(etas)
    results = [clock.apply_async(eta=eta) for eta in etas]
    eventually(lambda: len(worker.control().scheduled()[worker.name]) == 100, 10)
    assert ready(channel, worker.queue) == 0
    ran_at = [result.get(timeout=RESULT_TIMEOUT) for result in results]
    assert all(ran >= eta.timestamp() for ran, eta in zip(ran_at, etas, strict=True))
    in_order = [eta for _, eta in sorted(zip(ran_at, etas, strict=True))]
    assert all(latest - eta <= READ_LATE for latest, eta in zip(accumulate(in_order, max), in_order, strict=True))
    eventually(lambda: worker.control().stats()[worker.name]["prefetch_count"] == 4)


def test_held_tasks_return_when_their_worker_is_killed(new_worker: NewWorker, channel: BlockingChannel) -> None:
    """All at once, to the order they had; the next worker holds them again and runs them at their ETA."""
    first = new_worker().start("--pool", "threads", "-c", "2")
    eta = after(12)
    results = [first.task("clock").apply_async(eta=eta) for _ in range(60)]
    eventually(lambda: len(first.control().scheduled()[first.name]) == 60, 10)
    assert ready(channel, first.queue) == 0
    first.kill()
    eventually(lambda: ready(channel, first.queue) == 60)
    second = new_worker(prefix=first.prefix).start("--pool", "threads", "-c", "2")
    eventually(lambda: len(second.control().scheduled()[second.name]) == 60, 10)
    assert ready(channel, second.queue) == 0
    assert min(result.get(timeout=RESULT_TIMEOUT) for result in results) >= eta.timestamp()
