"""Celery's worker when the broker goes and comes back: every task is done, whatever state it was in.

The workers that lose a connection have processes, not threads, for their tasks: after a loss a pool's threads set the
worker's prefetch themselves, and with confirms wait for those of their events, each reading from a socket that another
thread reads from as well.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from pathlib import Path

import pika
import pytest
from celery_worker import Worker, lines

from behaviour.helpers import ready
from broker_process import BrokerProcess
from support import eventually

pytestmark = [
    pytest.mark.own,
    pytest.mark.timeout(120),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

NewWorker = Callable[..., Worker]
Connect = Callable[..., pika.BlockingConnection]


@pytest.mark.parametrize("how", ["stop", "crash"])
def test_broker_restarts_while_tasks_run_and_wait(
    own_broker: Callable[..., BrokerProcess], connect: Connect, new_worker: NewWorker, tmp_path: Path, how: str
) -> None:
    """Running, prefetched, held for later and still in the queue: the worker connects again and every one is done."""
    own = own_broker()
    own.listen = f"{own.host}:{own.port}"  # where the worker will look for it
    results = tmp_path / "results"
    results.mkdir()
    settings = {"broker_transport_options": {"confirm_publish": True}}  # what was not confirmed may be lost
    worker = new_worker(broker_url=own.url, results=f"file://{results}", settings=settings).start(
        "--pool", "prefork", "-c", "2")
    marker, notes = tmp_path / "go", tmp_path / "notes"
    eta = dt.datetime.now(dt.UTC) + dt.timedelta(seconds=3)
    later = [worker.task("clock").apply_async(eta=eta) for _ in range(20)]
    running = [worker.task("wait_for_file").delay(str(marker), 60.0) for _ in range(2)]
    eventually(lambda: worker.log_text().count("Task wait_for_file") == 2, 20)
    waiting = [worker.task("note").delay(str(notes), str(number)) for number in range(30)]
    if how == "crash":
        own.crash()
        own.start()
    else:
        own.restart()
    eventually(lambda: worker.log_text().count("Connected to amqp://") == 2, 40)
    marker.touch()
    for result in running + waiting:
        result.get(timeout=40)
    assert min(result.get(timeout=40) for result in later) >= eta.timestamp()
    assert set(map(int, lines(notes))) == set(range(30))
    channel = connect(to=own).channel()
    eventually(lambda: ready(channel, worker.queue) == 0)
    worker.finish()
