"""Celery's late acks: a task is unacked while it runs, so whoever is killed with it gives it back to the queue.

The tests count what ran by the lines that the tasks add to a file.
"""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from billiard.exceptions import WorkerLostError
from celery_worker import RESULT_TIMEOUT, Worker, lines, marked
from pika.adapters.blocking_connection import BlockingChannel

from behaviour.helpers import ready
from support import eventually

pytestmark = [pytest.mark.timeout(120), pytest.mark.filterwarnings("ignore::ResourceWarning")]

NewWorker = Callable[..., Worker]

ONE_AT_A_TIME = {"task_acks_late": True, "worker_prefetch_multiplier": 1}

def wait_for_lines(notes: Path, count: int) -> None:
    eventually(lambda: len(lines(notes)) >= count, 20)


def test_task_of_a_killed_child_runs_again(new_worker: NewWorker, channel: BlockingChannel, tmp_path: Path) -> None:
    """`task_reject_on_worker_lost`: the worker lives on, notices, and rejects the message with requeue."""
    worker = new_worker(settings={"task_reject_on_worker_lost": True}).start("--pool", "prefork", "-c", "2")
    marker = tmp_path / "started"
    result = worker.task("run_to_death_once").delay(str(marker))
    child = marked(marker)
    os.kill(child, signal.SIGKILL)
    outcome = result.get(timeout=RESULT_TIMEOUT)
    assert outcome["redelivered"] is True
    assert outcome["pid"] != child
    assert worker.task("add").delay(1, 1).get(timeout=RESULT_TIMEOUT) == 2
    worker.stop()
    assert ready(channel, worker.queue) == 0


def test_task_of_a_killed_child_is_acked_unless_told_otherwise(
    new_worker: NewWorker, channel: BlockingChannel, tmp_path: Path
) -> None:
    worker = new_worker().start("--pool", "prefork", "-c", "1")
    marker = tmp_path / "started"
    result = worker.task("run_to_death").delay(str(marker))
    os.kill(marked(marker), signal.SIGKILL)
    with pytest.raises(WorkerLostError):
        result.get(timeout=RESULT_TIMEOUT)
    worker.stop()
    assert ready(channel, worker.queue) == 0


def test_everything_a_killed_worker_had_taken_comes_back(
    new_worker: NewWorker, channel: BlockingChannel, tmp_path: Path
) -> None:
    """One task runs and four times two are prefetched; the broker sees the connection end and has all of them again."""
    first = new_worker().start("--pool", "prefork", "-c", "2")
    notes, marker = tmp_path / "notes", tmp_path / "started"
    running = first.task("run_to_death_once").delay(str(marker))
    child = marked(marker)
    waiting = first.task("wait_for_file").delay(str(tmp_path / "go"), 60.0)
    eventually(lambda: "Task wait_for_file" in first.log_text(), 20)
    results = [first.task("note").delay(str(notes), str(number)) for number in range(20)]
    eventually(lambda: ready(channel, first.queue) == 14)
    first.kill()
    os.kill(child, signal.SIGKILL)  # nobody is left to end it
    eventually(lambda: ready(channel, first.queue) == 22, 20)
    (tmp_path / "go").touch()
    new_worker(prefix=first.prefix).start("--pool", "prefork", "-c", "2")
    assert running.get(timeout=RESULT_TIMEOUT)["redelivered"] is True
    assert waiting.get(timeout=RESULT_TIMEOUT) is True
    for result in results:
        result.get(timeout=RESULT_TIMEOUT)
    assert sorted(map(int, lines(notes))) == list(range(20))


def test_no_task_is_lost_to_workers_that_are_killed_in_turn(new_worker: NewWorker, tmp_path: Path) -> None:
    """A kill may let a task run twice, each of those that were under way and no other."""
    worker = new_worker(settings=ONE_AT_A_TIME)
    prefix, notes = worker.prefix, tmp_path / "notes"
    results = [worker.task("note").delay(str(notes), str(number), 0.05) for number in range(60)]
    kills = 2
    for _ in range(kills):
        worker.start("--pool", "threads", "-c", "2")
        wait_for_lines(notes, len(lines(notes)) + 15)
        worker.kill()
        worker = new_worker(prefix=prefix, settings=ONE_AT_A_TIME)
    worker.start("--pool", "threads", "-c", "2")
    for result in results:
        result.get(timeout=RESULT_TIMEOUT)
    runs = Counter(map(int, lines(notes)))
    assert sorted(runs) == list(range(60))
    assert runs.total() - 60 <= kills * 2
