"""Run it here, or on RabbitMQ: pytest --amqp-url amqp://guest:guest@localhost/"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from orders import EXCHANGE, PARKED, QUEUE, Publisher, Worker


@pytest.fixture
def publisher(amqp_url: str) -> Iterator[Publisher]:
    made = Publisher(amqp_url)
    yield made
    made.close()


@pytest.fixture
def worker(amqp_url: str) -> Iterator[Worker]:
    made = Worker(amqp_url)
    yield made
    made.close()


def work_until(worker: Worker, stored: list[str]) -> None:
    for _ in range(40):
        worker.work()
        if worker.stored == stored:
            return
    pytest.fail(f"stored {worker.stored}, not {stored}")


def test_an_order_is_stored(publisher: Publisher, worker: Worker) -> None:
    publisher.publish("17")
    work_until(worker, ["17"])


def test_a_lost_connection_loses_no_order(amqp_broker, publisher: Publisher, worker: Worker) -> None:
    amqp_broker.trouble.drop("basic.publish")
    publisher.publish("17")
    work_until(worker, ["17"])


def test_a_lost_confirm_doubles_no_order(amqp_broker, publisher: Publisher, worker: Worker) -> None:
    amqp_broker.trouble.drop("basic.publish", lost=False)
    publisher.publish("17")
    amqp_broker.assert_published(EXCHANGE, "order.new", body="17", count=2)
    work_until(worker, ["17"])
    amqp_broker.trouble.redeliver(1)
    publisher.publish("18")
    work_until(worker, ["17", "18"])


def test_a_bad_order_is_parked(amqp_broker, publisher: Publisher, worker: Worker) -> None:
    publisher.publish("seventeen")
    worker.work()
    amqp_broker.assert_dead_lettered(QUEUE, reason="rejected")
    amqp_broker.assert_drained(QUEUE)
    assert {queue.name: queue.ready for queue in amqp_broker.queues()}[PARKED] == 1


def test_an_order_that_waits_a_day_is_parked(amqp_broker, publisher: Publisher) -> None:
    publisher.publish("17")
    amqp_broker.clock.advance(86_401)
    amqp_broker.assert_dead_lettered(QUEUE, reason="expired")


def test_a_confirmed_order_survives_a_power_cut(amqp_broker, publisher: Publisher, amqp_url: str) -> None:
    publisher.publish("17")
    amqp_broker.kill()
    amqp_broker.start_again()
    worker = Worker(amqp_url)
    work_until(worker, ["17"])
    worker.close()
