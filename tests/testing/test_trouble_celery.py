"""Each kind of trouble that makes sense for it, as Celery meets it: a stock worker in a thread, tasks by `delay`."""

from __future__ import annotations

import collections
import contextlib
import threading
import time
from collections.abc import Iterator

import amqp.exceptions
import celery
import kombu.exceptions
import pytest
from celery.contrib.testing.worker import start_worker

from rabbitpy_broker.testing import Broker
from support import eventually

pytestmark = [pytest.mark.timeout(60), pytest.mark.filterwarnings("ignore::ResourceWarning")]

# Without kombu's event loop, which is one for the whole process: what the last test's worker leaves in it takes the sockets of
# the next one out of its poll, so that this one hears nothing any more.
WORKER = {"pool": "solo", "perform_ping_check": False, "shutdown_timeout": 20, "use_eventloop": False}

done: collections.Counter[str] = collections.Counter()


def note(text: str) -> str:
    done[text] += 1
    return text


def make_app(broker: Broker) -> celery.Celery:
    app = celery.Celery("trouble", broker=broker.url, set_as_current=False)
    app.conf.update(
        task_default_queue="tasks",
        task_acks_late=True,
        task_ignore_result=True,
        broker_connection_retry_on_startup=True,
        broker_transport_options={"confirm_publish": True},
        broker_heartbeat=0,
        worker_cancel_long_running_tasks_on_connection_loss=False,
        task_publish_retry=True,
        task_publish_retry_policy={"max_retries": 20, "interval_start": 0, "interval_step": 0.05, "interval_max": 0.05},
    )
    app.task(note, name="trouble.note")
    return app


@pytest.fixture(scope="module")
def near() -> Iterator[Broker]:
    with Broker() as broker:
        yield broker


@pytest.fixture(scope="module")
def app(near: Broker) -> Iterator[celery.Celery]:
    made = make_app(near)
    yield made
    made.close()


@pytest.fixture
def publisher(near: Broker, app: celery.Celery) -> Iterator[celery.Celery]:
    """The application without a worker, and an empty queue."""
    app.control.purge() if near.queues() else None
    done.clear()
    near.forget_history()
    yield app
    near.trouble.end_all()


@contextlib.contextmanager
def running_worker(app: celery.Celery) -> Iterator[None]:
    """A worker that hears something while it is told to stop: without its event loop it looks up every two seconds only."""
    over = threading.Event()

    def wake() -> None:
        while not over.wait(0.05):
            with contextlib.suppress(*app.connection().connection_errors, kombu.exceptions.OperationalError):
                app.control.broadcast("heartbeat")

    waking = threading.Thread(target=wake)
    try:
        with start_worker(app, **WORKER):
            yield
            waking.start()
    finally:
        over.set()
        if waking.ident is not None:
            waking.join()


@pytest.fixture
def worker(near: Broker, publisher: celery.Celery) -> Iterator[celery.Celery]:
    with running_worker(publisher):
        yield publisher
        near.trouble.end_all()  # a worker does not stop while its connection is half-open


def send(app: celery.Celery, text: str, **options: object) -> None:
    app.tasks["trouble.note"].apply_async((text,), **options)


def publish_from_elsewhere(broker: Broker, text: str) -> None:
    """By a connection of its own: the application's are the worker's too."""
    with make_app(broker) as other:
        other.conf.broker_url = broker.url.replace("127.0.0.1", "localhost")
        send(other, text)


def test_a_publish_is_tried_again_after_a_drop(near: Broker, publisher: celery.Celery):
    send(publisher, "before")
    near.trouble.drop("basic.publish")
    send(publisher, "dropped")
    near.assert_published("", "tasks", count=2)
    assert [queue.ready for queue in near.queues()] == [2]


def test_a_publish_whose_confirm_is_lost_arrives_twice(near: Broker, publisher: celery.Celery):
    send(publisher, "before")
    near.trouble.drop("basic.publish", lost=False)
    send(publisher, "twice")
    near.assert_published("", "tasks", count=3)


def test_a_nacked_publish_is_an_error(near: Broker, publisher: celery.Celery):
    send(publisher, "before")
    near.trouble.nack_publishes()
    with pytest.raises((amqp.exceptions.MessageNacked, kombu.exceptions.OperationalError)):
        send(publisher, "nacked", retry=False)


def test_a_refused_login_is_an_error(near: Broker):
    other = make_app(near)
    other.conf.broker_url = near.url.replace("127.0.0.1", "localhost")  # connections are kept for the whole process, by address
    with near.trouble.refuse_logins(), pytest.raises((amqp.exceptions.AccessRefused, kombu.exceptions.OperationalError)):
        send(other, "refused", retry=False)
    other.close()


def test_a_worker_comes_back_after_a_drop(near: Broker, worker: celery.Celery):
    send(worker, "one")
    eventually(lambda: done["one"])
    near.trouble.drop()
    send(worker, "two")
    eventually(lambda: done["two"])
    near.assert_drained("tasks", within=30)


def test_an_acked_task_runs_again(near: Broker, worker: celery.Celery):
    near.trouble.redeliver(1, queue="tasks")
    send(worker, "again")
    eventually(lambda: done["again"] == 2)
    near.assert_acked("tasks", within=30)
    near.assert_drained("tasks", within=30)


def test_a_worker_whose_consumer_is_cancelled_consumes_again(near: Broker, worker: celery.Celery):
    send(worker, "before")
    eventually(lambda: done["before"])
    near.assert_drained("tasks", within=30)  # its ack has come: the cancel meets a consumer that has nothing under way
    near.trouble.cancel_consumers("tasks")
    send(worker, "after")
    eventually(lambda: done["after"])


@pytest.mark.parametrize("name", ["block", "fill_disk"])
def test_a_blocked_task_waits(near: Broker, worker: celery.Celery, name: str):
    sending = threading.Thread(target=send, args=(worker, "blocked"))
    with getattr(near.trouble, name)():
        sending.start()
        eventually(lambda: "is blocked" in near.report())
        assert not done["blocked"]
    sending.join(30)
    eventually(lambda: done["blocked"])


def test_a_half_open_worker_hears_of_its_task_when_the_network_is_back(near: Broker, worker: celery.Celery):
    send(worker, "before")
    eventually(lambda: done["before"])
    near.assert_drained("tasks", within=30)  # its ack has come: only the next task is held
    trouble = near.trouble.half_open()
    publish_from_elsewhere(near, "during")
    eventually(lambda: {queue.name: queue.unacked for queue in near.queues()}["tasks"] == 1)
    assert not done["during"]
    trouble.end()
    eventually(lambda: done["during"])
    near.assert_drained("tasks", within=30)


def test_a_task_takes_as_long_as_its_bytes(near: Broker, worker: celery.Celery):
    send(worker, "before")
    with near.trouble.delay(0.05):
        began = time.monotonic()
        send(worker, "slow")
        assert time.monotonic() - began >= 0.1  # there, and its confirm back
        eventually(lambda: done["slow"])
    near.assert_drained("tasks", within=30)


def test_a_confirm_that_breaks_off_has_the_task_arrive_twice(near: Broker, publisher: celery.Celery):
    send(publisher, "before")
    near.trouble.cut(after_bytes=10)
    send(publisher, "cut")
    near.assert_published("", "tasks", count=3)


def test_a_task_that_breaks_off_on_its_way_to_the_worker_comes_again(near: Broker, worker: celery.Celery):
    send(worker, "before")
    eventually(lambda: done["before"])
    near.trouble.cut(after_bytes=500)
    long = "long" * 1_000
    send(worker, long)
    eventually(lambda: done[long])
    near.assert_drained("tasks", within=30)


def test_a_returned_task_is_an_error_if_it_is_mandatory_and_lost_if_not(near: Broker, publisher: celery.Celery):
    send(publisher, "before")
    near.trouble.return_publishes(2)
    send(publisher, "lost")
    with pytest.raises((amqp.exceptions.ChannelError, kombu.exceptions.OperationalError)):
        send(publisher, "returned", mandatory=True, retry=False)
    near.assert_published("", "tasks", count=3)
    assert [queue.ready for queue in near.queues()] == [1]


def test_a_worker_comes_back_after_a_restart(near: Broker, worker: celery.Celery):
    send(worker, "before")
    eventually(lambda: done["before"])
    near.restart()
    send(worker, "after")
    eventually(lambda: done["after"])
    near.assert_drained("tasks", within=30)


def test_a_worker_comes_back_after_a_power_cut_with_its_tasks(near: Broker, publisher: celery.Celery):
    send(publisher, "kept")
    near.kill()
    near.start_again()
    with running_worker(publisher):
        eventually(lambda: done["kept"])
        near.kill()
        near.start_again()
        send(publisher, "after")
        eventually(lambda: done["after"])
        near.assert_drained("tasks", within=30)


def test_a_countdown_of_a_day_through_a_delayed_queue(near: Broker, publisher: celery.Celery):
    """A task that waits in the broker (here by a time to live) is due when the broker's clock says so."""
    with publisher.connection_for_write() as connection:
        channel = connection.channel()
        arguments = {"x-message-ttl": 86_400_000, "x-dead-letter-exchange": "tasks", "x-dead-letter-routing-key": "tasks"}
        channel.queue_declare("tomorrow", durable=True, auto_delete=False, arguments=arguments)
    send(publisher, "tomorrow", queue=kombu.Queue("tomorrow", exchange="", routing_key="tomorrow", no_declare=True))
    near.clock.advance(86_401)
    assert near.queues()[0].ready == 1
    assert near.queues()[0].name == "tasks"
