"""Celery's priorities: `task_queue_max_priority`, with a worker that takes one message and no more until it is acked.

Late acks and a prefetch multiplier of 1 are what Celery's documentation asks for; else the worker has taken low ones before a
high one comes.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest
from celery_worker import RESULT_TIMEOUT, Worker, lines, marked
from pika.adapters.blocking_connection import BlockingChannel

from behaviour.helpers import ready
from support import eventually

pytestmark = [pytest.mark.timeout(120), pytest.mark.filterwarnings("ignore::ResourceWarning")]

NewWorker = Callable[..., Worker]

PRIORITIES = {"task_acks_late": True, "worker_prefetch_multiplier": 1, "task_queue_max_priority": 10}

@pytest.mark.parametrize("pool", ["solo", "threads"])
def test_backlog_is_worked_off_by_priority(new_worker: NewWorker, tmp_path: Path, pool: str) -> None:
    """Sent before there is a worker: the highest first, and within a priority as they were sent."""
    worker = new_worker(settings=PRIORITIES)
    notes = tmp_path / "notes"
    sent = [(random.Random(4).choice([0, 3, 5, 9]) if number % 2 else number % 10, number) for number in range(40)]
    results = [worker.task("note").apply_async((str(notes), str(number)), priority=priority)
               for priority, number in sent]
    worker.start("--pool", pool, "-c", "1")
    for result in results:
        result.get(timeout=RESULT_TIMEOUT)
    expected = [number for _, number in sorted(sent, key=lambda each: -each[0])]
    assert [int(line) for line in lines(notes)] == expected


def test_urgent_task_overtakes_those_that_wait(
    new_worker: NewWorker, channel: BlockingChannel, tmp_path: Path
) -> None:
    """The worker takes one message and no more until it is acked, so what comes next is decided then."""
    worker = new_worker(settings=PRIORITIES).start("--pool", "solo", "-c", "1")
    note, notes, marker = worker.task("note"), tmp_path / "notes", tmp_path / "go"
    busy = worker.task("wait_for_file").delay(str(marker), 60.0)
    eventually(lambda: "Task wait_for_file" in worker.log_text(), 20)
    slow = [note.apply_async((str(notes), f"slow {number}"), priority=1) for number in range(5)]
    urgent = [note.apply_async((str(notes), f"urgent {number}"), priority=9) for number in range(3)]
    eventually(lambda: ready(channel, worker.queue) == 8)
    marker.touch()
    for result in [busy, *urgent, *slow]:
        result.get(timeout=RESULT_TIMEOUT)
    assert lines(notes) == [*(f"urgent {number}" for number in range(3)), *(f"slow {number}" for number in range(5))]


def test_priority_stays_with_a_task_that_is_given_back(new_worker: NewWorker, tmp_path: Path) -> None:
    """A killed worker's task is requeued to its priority: before the lower ones, behind the higher ones."""
    first = new_worker(settings=PRIORITIES).start("--pool", "solo", "-c", "1")
    notes, marker = tmp_path / "notes", tmp_path / "started"
    result = first.task("run_to_death_once").apply_async((str(marker), str(notes)), priority=5)
    marked(marker)
    others = [first.task("note").apply_async((str(notes), str(priority)), priority=priority) for priority in (1, 4, 6, 9)]
    first.kill()
    new_worker(prefix=first.prefix, settings=PRIORITIES).start("--pool", "solo", "-c", "1")
    for each in [result, *others]:
        each.get(timeout=RESULT_TIMEOUT)
    assert lines(notes) == ["9", "6", "run_to_death_once", "4", "1"]


def test_default_priority_of_tasks(new_worker: NewWorker, tmp_path: Path) -> None:
    worker = new_worker(settings={**PRIORITIES, "task_default_priority": 5})
    note, notes = worker.task("note"), tmp_path / "notes"
    results = [note.apply_async((str(notes), "low"), priority=2), note.delay(str(notes), "default"),
               note.apply_async((str(notes), "high"), priority=8)]
    worker.start("--pool", "solo", "-c", "1")
    for result in results:
        result.get(timeout=RESULT_TIMEOUT)
    assert lines(notes) == ["high", "default", "low"]
