"""The Celery application of the tests: the worker process and the tests' client both import it.

The environment says which broker, which result backend, a prefix for every queue and exchange, so that runs on a shared
broker do not meet, and further settings of Celery as JSON.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

from celery import Celery, Task
from celery.exceptions import Reject

PREFIX = os.environ.get("CLIENT_TEST_PREFIX", "celery")
DEFAULT_QUEUE = f"{PREFIX}.tasks"


def make_app(
    broker_url: str, result_backend: str, prefix: str, settings: dict[str, Any] | None = None
) -> Celery:
    made = Celery("celery_app", broker=broker_url, backend=result_backend, set_as_current=False)
    made.conf.update(
        task_default_queue=f"{prefix}.tasks",
        task_default_exchange=f"{prefix}.tasks",
        control_exchange=f"{prefix}.control",
        event_exchange=f"{prefix}.events",
        event_queue_prefix=f"{prefix}.events",
        result_exchange=f"{prefix}.results",
        broker_connection_retry_on_startup=True,
        broker_heartbeat=10,
        result_chord_retry_interval=0.2,
        worker_hijack_root_logger=True,
        worker_cancel_long_running_tasks_on_connection_loss=False,
    )
    made.conf.update(settings or {})
    made.task(add, name="add")
    made.task(total, name="total")
    made.task(fail, name="fail")
    made.task(flaky, name="flaky", bind=True, max_retries=3)
    made.task(run_to_death_once, name="run_to_death_once", bind=True, acks_late=True, reject_on_worker_lost=True)
    made.task(run_to_death, name="run_to_death", acks_late=True)
    made.task(wait_for_file, name="wait_for_file", acks_late=True)
    made.task(note, name="note", acks_late=True)
    made.task(clock, name="clock")
    made.task(refuse, name="refuse", acks_late=True)
    made.task(refuse_once, name="refuse_once", bind=True, acks_late=True)
    return made


def add(x: int, y: int) -> int:
    return x + y


def total(numbers: list[int]) -> int:
    return sum(numbers)


def fail(text: str) -> None:
    raise ValueError(text)


def flaky(self: Task, failures: int, countdown: float = 0.1) -> int:
    """Retries itself, through the broker with a countdown, until it has failed `failures` times."""
    retries: int = self.request.retries
    if retries < failures:
        raise self.retry(countdown=countdown, exc=ValueError(f"failure {retries + 1}"))
    return retries


def run_to_death_once(self: Task, marker: str, notes: str | None = None) -> dict[str, Any]:
    """On its first delivery leaves a mark and never ends, for the worker to be killed; on a redelivery ends at once."""
    redelivered: bool = self.request.delivery_info["redelivered"]
    if not redelivered:
        Path(marker).write_text(str(os.getpid()))
        time.sleep(3600)
    if notes is not None:
        note(notes, "run_to_death_once")
    return {"redelivered": redelivered, "pid": os.getpid()}


def run_to_death(marker: str) -> None:
    Path(marker).write_text(str(os.getpid()))
    time.sleep(3600)


def wait_for_file(path: str, timeout: float) -> bool:
    deadline = time.monotonic() + timeout
    while not Path(path).exists():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def note(file: str, text: str, busy: float = 0.0) -> None:
    """Works for `busy` seconds, then adds a line to the file."""
    time.sleep(busy)
    with Path(file).open("a") as notes:
        notes.write(f"{text}\n")


def clock() -> float:
    return time.time()


def refuse() -> None:
    raise Reject("never", requeue=False)


def refuse_once(self: Task) -> bool:
    redelivered: bool = self.request.delivery_info["redelivered"]
    if not redelivered:
        raise Reject("not now", requeue=True)
    return redelivered


if "CLIENT_TEST_BROKER" in os.environ:
    app = make_app(os.environ["CLIENT_TEST_BROKER"], os.environ["CLIENT_TEST_RESULTS"], PREFIX,
                   json.loads(os.environ.get("CLIENT_TEST_SETTINGS", "{}")))
