"""A stock Celery worker as a process of its own: tasks, retries, countdowns, groups, chords, remote control, recovery.

Results go through the broker (`rpc://`). Celery itself refuses chords there, on any broker, and asks for another result
backend; so the chord runs with its results in files, while its header, its body and the retries of its unlocking task
go through the broker like every other task.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import celery
import celery_app
import pytest
from celery import chain, chord, group
from celery_worker import RESULT_TIMEOUT, Worker, clean_up
from cutting_proxy import CuttingProxy

from broker_process import BrokerAddress
from support import eventually

pytestmark = [pytest.mark.timeout(120), pytest.mark.filterwarnings("ignore::ResourceWarning")]


@pytest.fixture(scope="module")
def worker(shared_broker: BrokerAddress, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    """One worker with two threads for all tests that leave it running."""
    made = Worker(shared_broker.url, tmp_path_factory.mktemp("celery"))
    made.start("--pool", "threads", "-c", "2")
    yield made
    made.stop()
    made.app.close()
    clean_up(shared_broker, made.prefix)


def test_result_of_a_task(worker: Worker) -> None:
    assert worker.task("add").delay(2, 3).get(timeout=RESULT_TIMEOUT) == 5


def test_exception_of_a_task(worker: Worker) -> None:
    with pytest.raises(ValueError, match="as asked"):
        worker.task("fail").delay("as asked").get(timeout=RESULT_TIMEOUT)


def test_retries(worker: Worker) -> None:
    """Each retry is published again with a countdown, acked, held by the worker, and run when due."""
    assert worker.task("flaky").delay(2).get(timeout=RESULT_TIMEOUT) == 2


def test_retries_end(worker: Worker) -> None:
    with pytest.raises(ValueError, match="failure 4"):
        worker.task("flaky").delay(9).get(timeout=RESULT_TIMEOUT)


def test_countdown(worker: Worker) -> None:
    started = time.monotonic()
    assert worker.task("add").apply_async((1, 1), countdown=1).get(timeout=RESULT_TIMEOUT) == 2
    assert time.monotonic() - started >= 1


def test_countdowns_beyond_the_prefetch_limit(worker: Worker) -> None:
    """A worker of two threads takes 8 messages; it raises its limit for each one it holds for later, and lowers it after."""
    add = worker.task("add")
    results = [add.apply_async((number, 1), countdown=2) for number in range(30)]
    assert add.delay(40, 2).get(timeout=RESULT_TIMEOUT) == 42
    assert [result.get(timeout=RESULT_TIMEOUT) for result in results] == [number + 1 for number in range(30)]
    stats = worker.control().stats()
    eventually(lambda: worker.control().stats()[worker.name]["prefetch_count"] == 8)
    assert stats is not None


def test_expired_task_is_revoked(worker: Worker) -> None:
    with pytest.raises(celery.exceptions.TaskRevokedError):
        worker.task("add").apply_async((1, 1), countdown=0.5, expires=0.1).get(timeout=RESULT_TIMEOUT)


def test_task_that_expires_before_it_is_due_is_revoked(worker: Worker) -> None:
    eta, expires = (dt.datetime.now(dt.UTC) + dt.timedelta(seconds=each) for each in (1, 0.5))
    with pytest.raises(celery.exceptions.TaskRevokedError):
        worker.task("add").apply_async((1, 1), eta=eta, expires=expires).get(timeout=RESULT_TIMEOUT)


def test_eta_that_is_over_runs_at_once(worker: Worker) -> None:
    eta = dt.datetime.now(dt.UTC) - dt.timedelta(minutes=1)
    assert worker.task("add").apply_async((1, 1), eta=eta).get(timeout=RESULT_TIMEOUT) == 2
    assert worker.task("add").apply_async((2, 1), countdown=-1).get(timeout=RESULT_TIMEOUT) == 3


def test_retries_of_many_tasks_at_once(worker: Worker) -> None:
    results = [worker.task("flaky").delay(number % 4) for number in range(40)]
    assert [result.get(timeout=RESULT_TIMEOUT) for result in results] == [number % 4 for number in range(40)]


def test_chain(worker: Worker) -> None:
    add = worker.task("add")
    assert chain(add.s(1, 1), add.s(2), add.s(3)).delay().get(timeout=RESULT_TIMEOUT) == 7


def test_group(worker: Worker) -> None:
    add = worker.task("add")
    result = group(add.s(number, number) for number in range(50)).delay()
    assert result.get(timeout=RESULT_TIMEOUT) == [number * 2 for number in range(50)]


def test_chord_over_rpc_is_refused_by_celery(worker: Worker) -> None:
    with pytest.raises(NotImplementedError, match='The "rpc" result backend does not support chords!'):
        chord(worker.task("add").s(number, 1) for number in range(3))(worker.task("total").s())


@pytest.mark.parametrize("pool", ["solo", "threads"])
def test_chord(new_worker: Callable[..., Worker], tmp_path: Path, pool: str) -> None:
    """Twenty tasks, then the body with all their results; the unlocking task retries with a countdown in between."""
    results = tmp_path / "results"
    results.mkdir()
    worker = new_worker(results=f"file://{results}").start("--pool", pool, "-c", "2")
    add = worker.task("add")
    body = worker.task("total").s()
    header = [add.s(number, 1).set(countdown=0.5 if number == 0 else 0) for number in range(20)]
    assert chord(header)(body).get(timeout=40) == sum(range(1, 21))


def test_remote_control(worker: Worker) -> None:
    """Broadcasts through the pidbox fanout exchange; answers to a queue of the caller's."""
    assert worker.control().ping() == {worker.name: {"ok": "pong"}}
    assert worker.app.control.ping(timeout=2) == [{worker.name: {"ok": "pong"}}]
    queues = worker.control().active_queues()[worker.name]
    assert [queue["name"] for queue in queues] == [f"{worker.prefix}.tasks"]
    assert "add" in worker.control().registered()[worker.name]


def test_consuming_from_a_further_queue_on_command(worker: Worker) -> None:
    more = f"{worker.prefix}.more"
    [reply] = worker.app.control.add_consumer(more, reply=True, destination=[worker.name], timeout=5)
    assert "ok" in reply[worker.name]
    add = worker.task("add")
    assert add.apply_async((3, 4), queue=more).get(timeout=RESULT_TIMEOUT) == 7
    [reply] = worker.app.control.cancel_consumer(more, reply=True, destination=[worker.name], timeout=5)
    assert "ok" in reply[worker.name]
    assert [queue["name"] for queue in worker.control().active_queues()[worker.name]] == [f"{worker.prefix}.tasks"]


def test_revoked_while_it_waits(worker: Worker) -> None:
    result = worker.task("add").apply_async((1, 1), countdown=60)
    eventually(lambda: worker.control().scheduled()[worker.name], 10)
    result.revoke()
    eventually(lambda: result.id in worker.control().revoked()[worker.name], 10)
    eventually(lambda: "TaskRevokedError" in worker.log_text() or "Tasks flagged as revoked" in worker.log_text(), 10)


def test_events(worker: Worker) -> None:
    """Workers publish events to a topic exchange; a receiver binds a queue of its own with `#`."""
    seen: list[str] = []
    with worker.app.connection_for_read() as connection:
        receiver = worker.app.events.Receiver(
            connection, handlers={"task-succeeded": lambda event: seen.append(event["uuid"])})
        with receiver.consumer_context():
            result = worker.task("add").delay(1, 2)
            deadline = time.monotonic() + RESULT_TIMEOUT
            while result.id not in seen and time.monotonic() < deadline:
                with contextlib.suppress(TimeoutError):
                    connection.drain_events(timeout=1)
    assert result.id in seen
    assert result.get(timeout=RESULT_TIMEOUT) == 3


def test_killed_worker_gives_its_late_acked_task_to_the_next(
    new_worker: Callable[..., Worker], tmp_path: Path
) -> None:
    first = new_worker().start("--pool", "solo")
    marker = tmp_path / "started"
    result = first.task("run_to_death_once").delay(str(marker))
    eventually(lambda: marker.exists() and marker.read_text(), 20)
    first.kill()
    second = new_worker(prefix=first.prefix).start("--pool", "solo")
    outcome = result.get(timeout=RESULT_TIMEOUT)
    assert outcome["redelivered"] is True
    assert outcome["pid"] != int(marker.read_text())
    assert second.task("add").delay(1, 1).get(timeout=RESULT_TIMEOUT) == 2


def test_worker_comes_back_after_a_cut_connection(
    proxy: CuttingProxy, broker: BrokerAddress, new_worker: Callable[..., Worker]
) -> None:
    """The worker sits behind the relay, the client does not: tasks sent during the cut are run after it."""
    worker = new_worker(broker_url=proxy.url).start("--pool", "prefork", "-c", "2")
    client = celery_app.make_app(broker.url, "rpc://", worker.prefix)
    add = client.tasks["add"]
    assert add.delay(1, 1).get(timeout=RESULT_TIMEOUT) == 2
    for number in range(2):
        proxy.cut()
        assert add.delay(number, 1).get(timeout=40) == number + 1
    worker.finish()
    client.close()


def test_late_acked_task_interrupted_by_a_cut_is_run_again(
    proxy: CuttingProxy, broker: BrokerAddress, new_worker: Callable[..., Worker], tmp_path: Path
) -> None:
    """Its ack could not be sent any more, so the broker delivers it a second time, and only then is the queue empty."""
    worker = new_worker(broker_url=proxy.url).start("--pool", "prefork", "-c", "1")
    client = celery_app.make_app(broker.url, "rpc://", worker.prefix)
    marker = tmp_path / "go"
    result = client.tasks["wait_for_file"].delay(str(marker), 60.0)
    eventually(lambda: "Task wait_for_file" in worker.log_text(), 20)
    proxy.cut()
    eventually(lambda: worker.log_text().count("Task wait_for_file[") >= 2, 40)
    marker.touch()
    assert result.get(timeout=40) is True
    worker.finish()
    client.close()


def test_many_threads_call_through_one_app(worker: Worker) -> None:
    """The client's pool under threads: each has a reply queue of its own, and every call gets its own result."""
    add = worker.task("add")
    answers: dict[int, int] = {}

    def call(base: int) -> None:
        calls = {number: add.delay(number, 1) for number in range(base, base + 10)}
        for number, result in calls.items():
            answers[number] = result.get(timeout=RESULT_TIMEOUT)

    threads = [threading.Thread(target=call, args=(base,)) for base in range(0, 40, 10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(RESULT_TIMEOUT)
    assert answers == {number: number + 1 for number in range(40)}
