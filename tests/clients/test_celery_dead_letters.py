"""Celery over queues with a dead letter exchange: tasks that are refused, that expire, and that are too many."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from celery_worker import RESULT_TIMEOUT, Worker, lines
from pika.adapters.blocking_connection import BlockingChannel

from behaviour.helpers import ready
from support import eventually, unique

pytestmark = [pytest.mark.timeout(120), pytest.mark.filterwarnings("ignore::ResourceWarning")]

NewWorker = Callable[..., Worker]


def queue_with_dead_letters(prefix: str, **arguments: Any) -> dict[str, Any]:
    """Settings by which the tasks that the queue loses go to the queue `.dead`."""
    name = f"{prefix}.tasks"
    letters = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": f"{prefix}.dead"}
    return {"task_queues": {name: {"exchange": name, "routing_key": name, "queue_arguments": {**letters, **arguments}}}}


def test_refused_task_goes_to_the_dead_letters(new_worker: NewWorker, channel: BlockingChannel) -> None:
    prefix = unique("celery")
    channel.queue_declare(f"{prefix}.dead", durable=True)
    worker = new_worker(prefix=prefix, settings=queue_with_dead_letters(prefix)).start("--pool", "solo", "-c", "1")
    task_id = worker.task("refuse").delay().id
    eventually(lambda: ready(channel, f"{prefix}.dead") == 1, 20)
    _, properties, _ = channel.basic_get(f"{prefix}.dead", auto_ack=True)
    [death] = properties.headers["x-death"]
    assert (death["reason"], death["queue"], death["count"]) == ("rejected", worker.queue, 1)
    assert (death["exchange"], death["routing-keys"]) == ("", [worker.queue])  # Celery goes straight to a direct queue
    assert (properties.headers["id"], properties.headers["task"]) == (task_id, "refuse")


def test_task_refused_with_requeue_is_delivered_again(new_worker: NewWorker) -> None:
    worker = new_worker().start("--pool", "solo", "-c", "1")
    assert worker.task("refuse_once").delay().get(timeout=RESULT_TIMEOUT) is True


def test_expired_task_leaves_the_queue_without_a_worker(new_worker: NewWorker, channel: BlockingChannel) -> None:
    """`expires` is the message's expiration too: the broker drops it, here to the dead letters, and no worker sees it."""
    prefix = unique("celery")
    channel.queue_declare(f"{prefix}.dead", durable=True)
    worker = new_worker(prefix=prefix, settings=queue_with_dead_letters(prefix))
    expired = [worker.task("add").apply_async((number, 0), expires=0.2).id for number in range(3)]
    alive = worker.task("add").apply_async((1, 1), expires=60)
    eventually(lambda: ready(channel, f"{prefix}.dead") == 3)
    assert ready(channel, worker.queue) == 1
    for task_id in expired:
        _, properties, _ = channel.basic_get(f"{prefix}.dead", auto_ack=True)
        assert properties.headers["id"] == task_id
        [death] = properties.headers["x-death"]
        assert (death["reason"], death["original-expiration"]) == ("expired", "200")
        assert properties.expiration is None
    worker.start("--pool", "solo", "-c", "1")
    assert alive.get(timeout=RESULT_TIMEOUT) == 2
    assert not any(task_id in worker.log_text() for task_id in expired)


def test_queue_of_limited_length_keeps_the_latest_tasks(
    new_worker: NewWorker, channel: BlockingChannel, tmp_path: Path
) -> None:
    prefix = unique("celery")
    channel.queue_declare(f"{prefix}.dead", durable=True)
    worker = new_worker(prefix=prefix, settings=queue_with_dead_letters(prefix, **{"x-max-length": 5}))
    notes = tmp_path / "notes"
    results = [worker.task("note").delay(str(notes), str(number)) for number in range(12)]
    eventually(lambda: ready(channel, f"{prefix}.dead") == 7)
    worker.start("--pool", "solo", "-c", "1")
    for result in results[7:]:
        result.get(timeout=RESULT_TIMEOUT)
    assert lines(notes) == [str(number) for number in range(7, 12)]
