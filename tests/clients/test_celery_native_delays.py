"""Celery's native delayed delivery: tasks for later wait in the broker, in queues with a time to live.

There are 28 queues whose times are the powers of two; the routing key, which is the delay in binary, chooses those that a
message goes through, from one dead letter exchange to the next. Celery switches it on when any of its queues is a quorum
queue, so the tests name one that nobody uses; the delay queues themselves are classic ones.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from celery_worker import RESULT_TIMEOUT, Worker
from pika.adapters.blocking_connection import BlockingChannel

from behaviour.helpers import ready
from support import eventually, unique

pytestmark = [pytest.mark.timeout(120), pytest.mark.filterwarnings("ignore::ResourceWarning")]

NewWorker = Callable[..., Worker]
DELAY_LEVELS = [f"celery_delayed_{level}" for level in range(28)]  # Celery's names; level n delays by 2**n seconds


def native_delays(prefix: str) -> dict[str, Any]:
    """Settings for native delayed delivery. A topic exchange is needed for it, and a direct one spares the quorum queue."""
    name = f"{prefix}.tasks"
    return {
        "task_default_exchange_type": "topic",
        "task_default_routing_key": name,
        "broker_native_delayed_delivery_queue_type": "classic",
        "task_queues": {
            name: {"exchange": name, "exchange_type": "topic", "routing_key": name},
            f"{prefix}.nobody": {"exchange": f"{prefix}.nobody", "queue_arguments": {"x-queue-type": "quorum"}},
        },
    }


@pytest.fixture
def delaying_worker(channel: BlockingChannel, new_worker: NewWorker) -> Iterator[Worker]:
    """A worker that has declared the delay queues, which are durable and would outlast the test."""
    prefix = unique("celery")
    yield new_worker(prefix=prefix, settings=native_delays(prefix)).start(
        "--pool", "threads", "-c", "2", "--queues", f"{prefix}.tasks")
    for name in DELAY_LEVELS:
        channel.queue_delete(name)
        channel.exchange_delete(name)
    channel.exchange_delete("celery_delayed_delivery")


def waiting_in_delay_queues(channel: BlockingChannel) -> dict[int, int]:
    """How many messages wait at which level, where there are any."""
    counts = {level: ready(channel, name) for level, name in enumerate(DELAY_LEVELS)}
    return {level: count for level, count in counts.items() if count}


def test_native_delayed_delivery(delaying_worker: Worker, channel: BlockingChannel) -> None:
    """A message visits the queue of each bit of its delay, the highest first: time to live, dead letter exchange, bindings."""
    clock = delaying_worker.task("clock")
    started = time.time()
    results = {(delay, number): clock.apply_async(countdown=delay) for delay in (1, 2, 3, 60) for number in range(5)}
    assert clock.delay().get(timeout=RESULT_TIMEOUT) < started + 1
    assert waiting_in_delay_queues(channel) == {0: 5, 1: 10, 5: 5}
    for (delay, _), result in results.items():
        if delay < 60:
            assert started + delay <= result.get(timeout=RESULT_TIMEOUT) < started + delay + 1.5
    assert waiting_in_delay_queues(channel) == {5: 5}
    assert delaying_worker.control().scheduled()[delaying_worker.name] == []


def test_retries_by_native_delayed_delivery(delaying_worker: Worker) -> None:
    """Each retry is a new way through the delay queues; the deaths of the ways before do not make it a circle."""
    started = time.time()
    results = [delaying_worker.task("flaky").delay(2, 1) for _ in range(10)]
    assert [result.get(timeout=RESULT_TIMEOUT) for result in results] == [2] * 10
    assert time.time() - started >= 2


def test_natively_delayed_tasks_wait_without_a_worker(
    delaying_worker: Worker, channel: BlockingChannel, new_worker: NewWorker
) -> None:
    """They reach the work queue when due, and whoever comes then runs them."""
    delaying_worker.stop()
    results = [delaying_worker.task("add").apply_async((number, 1), countdown=1) for number in range(20)]
    eventually(lambda: ready(channel, delaying_worker.queue) == 20)
    prefix = delaying_worker.prefix
    new_worker(prefix=prefix, settings=native_delays(prefix)).start(
        "--pool", "threads", "-c", "2", "--queues", f"{prefix}.tasks")
    assert [result.get(timeout=RESULT_TIMEOUT) for result in results] == [number + 1 for number in range(20)]
