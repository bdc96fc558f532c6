"""A real worker, in a thread, on a real broker: no CELERY_TASK_ALWAYS_EAGER, and so acks, retries and lost connections too."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import kombu
import pytest
import tasks
from celery import Celery
from celery.contrib.testing.worker import start_worker


@pytest.fixture
def app(amqp_url: str) -> Iterator[Celery]:
    tasks.app.conf.broker_url = amqp_url
    tasks.app.conf.broker_heartbeat = 0  # the loop of a worker with heartbeats acks only when something else wakes it
    tasks.paid.clear()
    tasks.runs.clear()
    yield tasks.app
    tasks.app.pool.force_close_all()  # connections of this test's vhost
    tasks.app.amqp._producer_pool = None


@pytest.fixture
def worker(app: Celery) -> Iterator[None]:
    with start_worker(app, pool="solo", perform_ping_check=False, shutdown_timeout=20, use_eventloop=False):
        yield


def until(condition: Callable[[], object]) -> None:
    ends_at = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < ends_at, "it has not come true within 10 s"
        time.sleep(0.01)


def test_an_order_is_paid(app: Celery, worker: None) -> None:
    tasks.pay.delay("17")
    until(lambda: "17" in tasks.paid)


def test_an_order_is_paid_once_though_its_task_runs_twice(amqp_broker, app: Celery, worker: None) -> None:
    amqp_broker.trouble.redeliver(1, queue="shop")
    tasks.pay.delay("17")
    until(lambda: tasks.runs == ["17", "17"])
    assert tasks.paid == {"17"}
    amqp_broker.assert_drained("shop")


def test_a_task_survives_a_power_cut(amqp_broker, app: Celery) -> None:
    tasks.pay.delay("17")
    amqp_broker.kill()
    amqp_broker.start_again()
    with start_worker(app, pool="solo", perform_ping_check=False, shutdown_timeout=20, use_eventloop=False):
        until(lambda: "17" in tasks.paid)


def test_kombu_by_itself(amqp_url: str) -> None:
    with kombu.Connection(amqp_url) as connection:
        queue = connection.SimpleQueue("letters")
        queue.put({"to": "Ada"})
        message = queue.get(timeout=5)
        message.ack()
        queue.close()
    assert message.payload == {"to": "Ada"}
