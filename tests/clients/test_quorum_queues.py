"""Other people's clients on quorum queues, as they come: Celery with its delays, kombu, aio-pika, PerfTest."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import aio_pika
import kombu
import pytest
from celery import chord
from celery_worker import RESULT_TIMEOUT, Worker, marked
from perftest_runner import perftest_jars, run_perftest
from pika.adapters.blocking_connection import BlockingChannel

from behaviour.helpers import ready
from broker_process import BrokerAddress
from support import eventually, unique

pytestmark = [pytest.mark.timeout(300), pytest.mark.filterwarnings("ignore::ResourceWarning")]

NewWorker = Callable[..., Worker]
OPTIONS = ("--pool", "threads", "-c", "2")
DELAY_LEVELS = [f"celery_delayed_{level}" for level in range(28)]  # Celery's names; level n delays by 2**n seconds


def quorum_settings(prefix: str) -> dict[str, Any]:
    """What Celery's guide asks for: the type, and a topic exchange for the delays."""
    name = f"{prefix}.tasks"
    return {
        "task_default_queue_type": "quorum",
        "task_default_exchange_type": "topic",
        "task_default_routing_key": name,
        "task_default_exchange": name,
    }


@pytest.fixture
def quorum_worker(channel: BlockingChannel, new_worker: NewWorker) -> Iterator[Worker]:
    prefix = unique("celery")
    yield new_worker(prefix=prefix, settings=quorum_settings(prefix)).start(*OPTIONS)
    delete_delays(channel)


def delete_delays(channel: BlockingChannel) -> None:
    for name in DELAY_LEVELS:
        channel.queue_delete(name)
        channel.exchange_delete(name)
    channel.exchange_delete("celery_delayed_delivery")


def types(ctl: Callable[..., str]) -> dict[str, str]:
    lines = ctl("-q", "list_queues", "name", "type", "--no-table-headers").split("\n")
    return dict(line.split("\t") for line in lines if line)


def test_celery_runs_tasks_retries_and_delays(quorum_worker: Worker, ctl: Callable[..., str]) -> None:
    """The retries and countdowns go through quorum queues, one for each bit of the delay."""
    assert quorum_worker.task("add").delay(2, 3).get(timeout=RESULT_TIMEOUT) == 5
    found = types(ctl)
    assert found[quorum_worker.queue] == "quorum"
    assert {found[name] for name in DELAY_LEVELS} == {"quorum"}
    assert quorum_worker.task("flaky").delay(2, 1).get(timeout=RESULT_TIMEOUT) == 2
    started = time.time()
    clock = quorum_worker.task("clock")
    results = {(delay, number): clock.apply_async(countdown=delay) for delay in (1, 2, 3) for number in range(5)}
    for (delay, _), result in results.items():
        assert started + delay <= result.get(timeout=RESULT_TIMEOUT) < started + delay + 3


def test_celery_chord_with_an_eta(channel: BlockingChannel, new_worker: NewWorker, tmp_path: Path) -> None:
    """Part of the header and the tries to unlock the body go through the queues of the delays."""
    results = tmp_path / "results"
    results.mkdir()
    prefix = unique("celery")
    settings = {**quorum_settings(prefix), "result_chord_retry_interval": 1.0}  # Celery's; its delays are of whole seconds
    worker = new_worker(prefix=prefix, settings=settings, results=f"file://{results}").start(*OPTIONS)
    try:
        eta = datetime.now(UTC) + timedelta(seconds=2)
        header = [worker.task("add").s(number, 1).set(eta=eta if number == 0 else None) for number in range(10)]
        assert chord(header)(worker.task("total").s()).get(timeout=40) == sum(range(1, 11))
        assert datetime.now(UTC) >= eta
    finally:
        worker.stop()
        delete_delays(channel)


def test_celery_worker_that_is_killed_leaves_its_task_to_the_next(
    quorum_worker: Worker, new_worker: NewWorker, tmp_path: Path
) -> None:
    marker = tmp_path / "started"
    result = quorum_worker.task("run_to_death_once").delay(str(marker))
    marked(marker)
    quorum_worker.kill()
    new_worker(prefix=quorum_worker.prefix, settings=quorum_worker.settings).start("--pool", "solo")
    assert result.get(timeout=RESULT_TIMEOUT)["redelivered"] is True


def test_kombu_counts_deliveries(broker: BrokerAddress, new_name: Callable[[str], str]) -> None:
    with kombu.Connection(broker.url) as connection:
        queue = kombu.Queue(new_name("kombu"), queue_arguments={"x-queue-type": "quorum"}, durable=True)
        bound = queue(connection.channel())
        bound.declare()
        connection.Producer().publish({"n": 1}, routing_key=queue.name, delivery_mode="transient")
        counts: list[object] = []

        def look() -> bool:
            message = bound.get()
            if message is not None:
                counts.append(message.headers.get("x-delivery-count", 0))
                message.requeue()
            return len(counts) == 3

        eventually(look)
        assert counts == [0, 1, 2]
        bound.delete()


def test_aio_pika_counts_deliveries(broker: BrokerAddress, new_name: Callable[[str], str]) -> None:
    name = new_name("aio")

    async def talk() -> list[object]:
        counts: list[object] = []
        async with await aio_pika.connect_robust(broker.url) as connection:
            channel = await connection.channel()
            await channel.set_qos(prefetch_count=1)
            queue = await channel.declare_queue(name, durable=True, arguments={"x-queue-type": "quorum"})
            await channel.default_exchange.publish(aio_pika.Message(b"x"), routing_key=name)
            async with queue.iterator() as messages:
                async for message in messages:
                    counts.append(message.headers.get("x-delivery-count"))
                    if len(counts) == 3:
                        await message.ack()
                        return counts
                    await message.nack(requeue=True)
        return counts

    assert asyncio.run(asyncio.wait_for(talk(), 20)) == [None, 1, 2]


def test_perftest(broker: BrokerAddress, channel: BlockingChannel, new_name: Callable[[str], str]) -> None:
    name = new_name("perf")
    options = ["--quorum-queue", "-u", name, "-x", "2", "-y", "1", "-C", "2000", "-D", "4000", "-c", "100", "-q", "50"]
    outcome = run_perftest(perftest_jars(), broker.url, options)
    outcome.assert_clean()
    assert outcome.sent > 0 and outcome.received > 0
    assert ready(channel, name) == 0
