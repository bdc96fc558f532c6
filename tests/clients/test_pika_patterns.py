"""What applications build of queues with arguments, as RabbitMQ's documentation shows it, with pika: retries through a queue
with a time to live, parking lots, priority work queues, a single active consumer, competing consumers of what expires.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from behaviour.helpers import Delivery, Inbox, confirming, fence, fill, ready, take_all, wait_until
from support import eventually

Connect = Callable[..., pika.BlockingConnection]
NewName = Callable[[str], str]
Maker = Callable[..., str]

RETRY_DELAY = 60
CLOCK_STEP_S = 0.002  # the broker counts whole milliseconds


@pytest.fixture
def channel(connection: pika.BlockingConnection) -> BlockingChannel:
    """In confirm mode: what was published has reached its queues when basic_publish returns."""
    return confirming(connection)


class RetryChain(NamedTuple):
    """`work` rejects into `retry`, which lets everything expire back into `work`, under the key it was published with."""

    work: str
    retry: str
    parking: str

    def publish(self, channel: BlockingChannel, key: str, body: bytes, properties: Any = None) -> None:
        channel.basic_publish(self.work, key, body, properties)


@pytest.fixture
def retry_chain(channel: BlockingChannel, new_name: NewName) -> RetryChain:
    """Each queue has an exchange of its name that it is bound to; no dead letter routing keys, so keys are kept."""
    chain = RetryChain(new_name("work"), new_name("retry"), new_name("parking"))
    for name in (chain.work, chain.retry):
        channel.exchange_declare(name, "topic")
    channel.queue_declare(chain.work, arguments={"x-dead-letter-exchange": chain.retry})
    channel.queue_declare(
        chain.retry, arguments={"x-dead-letter-exchange": chain.work, "x-message-ttl": RETRY_DELAY})
    channel.queue_declare(chain.parking)
    for name in (chain.work, chain.retry):
        channel.queue_bind(name, name, "#")
    return chain


def get(channel: BlockingChannel, queue: str) -> Delivery:
    """The next message of `queue`, once there is one, not acked yet."""
    method, properties, body = eventually(lambda: (got := channel.basic_get(queue))[0] and got, 10)
    return Delivery(method.delivery_tag, body, method.redelivered, method.exchange, method.routing_key, properties, "")


def deaths(delivery: Delivery) -> list[tuple[str, str, int]]:
    """Queue, reason and count of each entry of x-death, in its order."""
    headers = delivery.properties.headers or {}
    return [(entry["queue"], entry["reason"], entry["count"]) for entry in headers.get("x-death", [])]


def retries(delivery: Delivery, chain: RetryChain) -> int:
    return next((count for queue, reason, count in deaths(delivery) if (queue, reason) == (chain.work, "rejected")), 0)


# --- retries -----------------------------------------------------------------------------------------------------------


def test_delayed_retry_counts_its_rounds(channel: BlockingChannel, retry_chain: RetryChain) -> None:
    """Five rounds leave two entries in x-death, the later death first, and each counts its rounds."""
    work, retry, _ = retry_chain
    retry_chain.publish(channel, "order.new", b"x", pika.BasicProperties(headers={"mine": 1}, delivery_mode=2))
    first_seen = 0
    for rounds in range(6):
        delivery = get(channel, work)
        first_seen = first_seen or int(time.time())
        expected = [(retry, "expired", rounds), (work, "rejected", rounds)] if rounds else []
        assert deaths(delivery) == expected
        assert (delivery.exchange, delivery.routing_key, delivery.redelivered) == (work, "order.new", False)
        if rounds < 5:
            channel.basic_reject(delivery.tag, requeue=False)
    headers = delivery.properties.headers
    assert {key: headers[key] for key in headers if key != "x-death"} == {
        "mine": 1, "x-first-death-queue": work, "x-first-death-reason": "rejected", "x-first-death-exchange": work}
    expired, rejected = headers["x-death"]
    assert (expired["exchange"], rejected["exchange"]) == (retry, work)
    assert expired["routing-keys"] == rejected["routing-keys"] == ["order.new"]
    for entry in (expired, rejected):  # the time of its first death, not of the last
        assert abs(entry["time"].timestamp() - first_seen) <= 2
    channel.basic_ack(delivery.tag)
    fence(channel, work)
    assert (ready(channel, work), ready(channel, retry)) == (0, 0)


def test_no_retry_comes_before_its_time(channel: BlockingChannel, retry_chain: RetryChain) -> None:
    retry_chain.publish(channel, "k", b"x")
    for _ in range(5):
        delivery = get(channel, retry_chain.work)
        rejected_at = time.monotonic()
        channel.basic_reject(delivery.tag, requeue=False)
        delivery = get(channel, retry_chain.work)
        assert time.monotonic() - rejected_at >= RETRY_DELAY / 1000 - CLOCK_STEP_S
        channel.basic_nack(delivery.tag, requeue=True)


def test_parking_lot_after_three_retries(channel: BlockingChannel, connect: Connect, retry_chain: RetryChain) -> None:
    """Every third message never succeeds: it is tried four times and parked, with its history; the others are done at once."""
    work, retry, parking = retry_chain
    bodies = [b"%d" % number for number in range(30)]
    attempts: Counter[bytes] = Counter()
    done: list[bytes] = []
    working = connect().channel()
    working.basic_qos(prefetch_count=5)

    def on_message(_: Any, method: Any, properties: pika.BasicProperties, body: bytes) -> None:
        attempts[body] += 1
        delivery = Delivery(method.delivery_tag, body, False, "", "", properties, "")
        if int(body) % 3:
            done.append(body)
            working.basic_ack(method.delivery_tag)
        elif retries(delivery, retry_chain) < 3:
            working.basic_reject(method.delivery_tag, requeue=False)
        else:
            working.basic_publish("", parking, body, properties)
            working.basic_ack(method.delivery_tag)

    working.basic_consume(work, on_message)
    for body in bodies:
        retry_chain.publish(channel, "task." + body.decode(), body)
    wait_until(lambda: ready(channel, parking) == 10, working)
    fence(working, work)
    assert done == [body for body in bodies if int(body) % 3]
    assert attempts == {body: 1 if int(body) % 3 else 4 for body in bodies}
    assert (ready(channel, work), ready(channel, retry)) == (0, 0)
    parked = [get(channel, parking) for _ in range(10)]
    assert sorted(int(each.body) for each in parked) == list(range(0, 30, 3))
    assert all(deaths(each) == [(retry, "expired", 3), (work, "rejected", 3)] for each in parked)


def test_back_off_through_a_queue_for_each_delay(channel: BlockingChannel, new_name: NewName) -> None:
    """The worker publishes a failed task to the waiting queue of its next delay and acks it; x-death tells the way it went."""
    work = new_name("work")
    channel.queue_declare(work)
    waiting = {delay: new_name(f"wait-{delay}") for delay in (40, 80, 160)}
    for delay, name in waiting.items():
        channel.queue_declare(name, arguments={
            "x-message-ttl": delay, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": work})
    channel.basic_publish("", work, b"x")
    for delay, name in waiting.items():
        delivery = get(channel, work)
        published_at = time.monotonic()
        channel.basic_publish("", name, delivery.body, delivery.properties)
        channel.basic_ack(delivery.tag)
        eventually(lambda: ready(channel, work) == 1)
        assert time.monotonic() - published_at >= delay / 1000 - CLOCK_STEP_S
    delivery = get(channel, work)
    assert deaths(delivery)[0] == (waiting[160], "expired", 1)
    # RabbitMQ turns around at each death what is behind the newest.
    assert sorted(deaths(delivery)) == sorted((name, "expired", 1) for name in waiting.values())
    assert delivery.properties.headers["x-first-death-queue"] == waiting[40]


def test_back_off_by_expiration(channel: BlockingChannel, new_name: NewName) -> None:
    """One waiting queue, the delay in each message: `expiration` is gone after it, and in x-death as original-expiration."""
    work, waiting = new_name("work"), new_name("wait")
    channel.queue_declare(work)
    channel.queue_declare(waiting, arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": work})
    properties = pika.BasicProperties()
    for count, delay in enumerate((30, 60, 120), 1):
        properties.expiration = str(delay)
        channel.basic_publish("", waiting, b"x", properties)
        delivery = get(channel, work)
        channel.basic_ack(delivery.tag)
        properties = delivery.properties
        assert properties.expiration is None
        assert deaths(delivery) == [(waiting, "expired", count)]
        # of the first death, as the time is
        assert properties.headers["x-death"][0]["original-expiration"] == "30"


def test_loop_without_a_rejection_is_cut(channel: BlockingChannel, new_name: NewName) -> None:
    """Two queues that only let messages expire into each other would do so forever: the second visit is the end."""
    first, second, clock, witness = new_name("loop"), new_name("loop"), new_name("clock"), new_name("witness")
    for name, other in ((first, second), (second, first)):
        channel.queue_declare(name, arguments={
            "x-message-ttl": 30, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": other})
    channel.queue_declare(witness)
    channel.queue_declare(clock, arguments={
        "x-message-ttl": 300, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": witness})
    fill(channel, first, 5)
    channel.basic_publish("", clock, b"five rounds later")
    eventually(lambda: ready(channel, witness) == 1)
    assert (ready(channel, first), ready(channel, second)) == (0, 0)


def test_dead_letters_are_sorted_by_their_reason(channel: BlockingChannel, new_name: NewName) -> None:
    """A headers exchange as dead letter exchange matches x-first-death-reason, which the broker has just set."""
    sorter, work = new_name("sorter"), new_name("work")
    channel.exchange_declare(sorter, "headers")
    places = {reason: new_name(reason) for reason in ("rejected", "expired", "maxlen")}
    for reason, name in places.items():
        channel.queue_declare(name)
        channel.queue_bind(name, sorter, "", {"x-match": "any-with-x", "x-first-death-reason": reason})
    channel.queue_declare(work, arguments={"x-dead-letter-exchange": sorter, "x-max-length": 2})
    fill(channel, work, 3)
    channel.basic_reject(get(channel, work).tag, requeue=False)
    channel.basic_get(work, auto_ack=True)
    channel.basic_publish("", work, b"3", pika.BasicProperties(expiration="30"))
    for reason, body in (("maxlen", b"0"), ("rejected", b"1"), ("expired", b"3")):
        assert get(channel, places[reason]).body == body


# --- work queues -------------------------------------------------------------------------------------------------------


def test_priority_work_queue(channel: BlockingChannel, connect: Connect, queue: Maker) -> None:
    """A worker that takes one at a time: urgent work that comes in between is next, before all that waited longer."""
    name = queue(arguments={"x-max-priority": 9})
    working = connect().channel()
    working.basic_qos(prefetch_count=1)
    for number in range(5):
        channel.basic_publish("", name, b"slow %d" % number, pika.BasicProperties(priority=1))
    inbox = Inbox(working, name)
    inbox.wait_for(1)
    for number in range(2):
        channel.basic_publish("", name, b"urgent %d" % number, pika.BasicProperties(priority=9))
    channel.basic_publish("", name, b"someday")
    channel.basic_publish("", name, b"normal", pika.BasicProperties(priority=4))
    for count in range(1, 10):
        inbox.wait_for(count)
        inbox.ack(inbox.tags[-1])
    assert inbox.settled() == [b"slow 0", b"urgent 0", b"urgent 1", b"normal", b"slow 1", b"slow 2", b"slow 3", b"slow 4",
                               b"someday"]


def test_rejected_work_of_a_priority_queue_keeps_its_priority_in_the_retry(
    channel: BlockingChannel, new_name: NewName
) -> None:
    work, retry = new_name("work"), new_name("retry")
    channel.queue_declare(work, arguments={
        "x-max-priority": 5, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": retry})
    channel.queue_declare(retry, arguments={
        "x-message-ttl": 60, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": work})
    for priority in (3, 5, 1):
        channel.basic_publish("", work, b"%d" % priority, pika.BasicProperties(priority=priority))
    taken = [get(channel, work) for _ in range(3)]
    assert [delivery.body for delivery in taken] == [b"5", b"3", b"1"]
    for delivery in reversed(taken):
        channel.basic_reject(delivery.tag, requeue=False)
    eventually(lambda: ready(channel, work) == 3)
    assert take_all(channel, work) == [b"5", b"3", b"1"]


def test_competing_consumers_leave_what_expires(
    channel: BlockingChannel, connect: Connect, new_name: NewName
) -> None:
    """Two workers hold two messages each; the rest expires to the dead letters. Everything ends in exactly one place."""
    dead, work = new_name("dead"), new_name("work")
    channel.queue_declare(dead)
    channel.queue_declare(work, arguments={
        "x-message-ttl": 150, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead})
    workers = []
    for _ in range(2):
        working = connect().channel()
        working.basic_qos(prefetch_count=2)
        workers.append(Inbox(working, work))
    bodies = fill(channel, work, 20)
    wait_until(lambda: ready(channel, dead) == 16, *(worker.channel for worker in workers))
    for worker in workers:
        assert len(worker.settled()) == 2
        worker.ack(*worker.tags)
        fence(worker.channel, work)
    letters = take_all(channel, dead)
    assert letters == bodies[4:]
    assert sorted(workers[0].bodies + workers[1].bodies) == bodies[:4]
    fresh = fill(channel, work, 4, start=20)
    wait_until(lambda: sum(len(worker.bodies) for worker in workers) == 8, *(worker.channel for worker in workers))
    assert sorted(workers[0].bodies[2:] + workers[1].bodies[2:]) == fresh
    assert (ready(channel, work), ready(channel, dead)) == (0, 0)


def test_work_of_a_lost_worker_expires_when_it_comes_back_too_late(
    channel: BlockingChannel, connect: Connect, new_name: NewName
) -> None:
    dead, work = new_name("dead"), new_name("work")
    channel.queue_declare(dead)
    channel.queue_declare(work, arguments={
        "x-message-ttl": 100, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead})
    lost = connect()
    held = Inbox(lost.channel(), work)
    bodies = fill(channel, work, 3)
    held.wait_for(3)
    # after what came later is dead, so are those that are held
    channel.basic_cancel(Inbox(channel, work).tag)
    held.channel.basic_cancel(held.tag)
    channel.basic_publish("", work, b"late")
    eventually(lambda: ready(channel, dead) == 1)
    lost.close()
    eventually(lambda: ready(channel, dead) == 4)
    assert take_all(channel, dead) == [b"late", *bodies]


def test_latest_news_only(channel: BlockingChannel, queue: Maker, exchange: Maker) -> None:
    """A queue for each reader that keeps the last value, the ring buffer of one: who reads late reads the newest."""
    news = exchange("fanout")
    readers = [queue(arguments={"x-max-length": size}) for size in (1, 1, 3)]
    for name in readers:
        channel.queue_bind(name, news)
    for number in range(10):
        channel.basic_publish(news, "", b"%d" % number)
    assert [take_all(channel, name) for name in readers] == [[b"9"], [b"9"], [b"7", b"8", b"9"]]


def test_back_pressure_by_refused_publishes(channel: BlockingChannel, connect: Connect, queue: Maker) -> None:
    """A producer that publishes again what was nacked, and a consumer that makes room: all arrive, in order, once."""
    name = queue(arguments={"x-max-length": 5, "x-overflow": "reject-publish"})
    working = connect().channel()
    working.basic_qos(prefetch_count=1)
    inbox = Inbox(working, name)
    refused = 0
    for number in range(40):
        while True:
            try:
                channel.basic_publish("", name, b"%d" % number)
                break
            except pika.exceptions.NackError:
                refused += 1
                working.connection.process_data_events(0)
                inbox.ack(*inbox.tags[-1:])
                count = len(inbox.tags)
                inbox.wait_for(count + 1)
    while len(inbox.bodies) < 40:
        inbox.ack(inbox.tags[-1])
        inbox.wait_for(len(inbox.bodies) + 1)
    assert inbox.settled() == [b"%d" % number for number in range(40)]
    assert refused > 0


# --- a single active consumer ------------------------------------------------------------------------------------------


def test_single_active_consumer_takes_over(channel: BlockingChannel, connect: Connect, queue: Maker) -> None:
    """The active one of four goes with work unacked, by every way there is to go; the next continues where it was, in order.

    Each is on a connection of its own.
    """
    name = queue(arguments={"x-single-active-consumer": True})
    inboxes = []
    for _ in range(4):
        working = connect().channel()
        working.basic_qos(prefetch_count=10)
        inboxes.append(Inbox(working, name))
    bodies = fill(channel, name, 10)
    leave: list[Callable[[Inbox], object]] = [
        lambda inbox: inbox.channel.connection.close(),
        lambda inbox: inbox.channel.close(),
        lambda inbox: (inbox.channel.basic_cancel(inbox.tag), inbox.channel.basic_nack(0, multiple=True, requeue=True)),
    ]
    for position, go in enumerate(leave):
        active, waiting = inboxes[position], inboxes[position + 1 :]
        active.wait_for(10 - 2 * position)
        assert active.bodies == bodies[2 * position :]
        assert [inbox.settled() for inbox in waiting] == [[] for _ in waiting]
        assert [delivery.redelivered for delivery in active.deliveries] == [position > 0] * len(active.bodies)
        active.ack(*active.tags[:2])
        fence(active.channel, name)
        go(active)
    last = inboxes[-1]
    assert last.wait_for(4) == bodies[6:]
    last.ack(*last.tags)
    fence(last.channel, name)
    assert ready(channel, name) == 0


def test_standby_of_a_single_active_consumer_may_come_and_go(
    channel: BlockingChannel, connect: Connect, queue: Maker
) -> None:
    name = queue(arguments={"x-single-active-consumer": True})
    active, standby = (Inbox(connect().channel(), name, auto_ack=True) for _ in range(2))
    first = fill(channel, name, 3)
    active.wait_for(3)
    standby.channel.connection.close()
    second = fill(channel, name, 3, start=3)
    assert active.wait_for(6) == first + second
    late = Inbox(connect().channel(), name, auto_ack=True)
    assert late.settled() == []
    active.channel.basic_cancel(active.tag)
    third = fill(channel, name, 3, start=6)
    assert late.wait_for(3) == third
    assert active.settled() == first + second


def test_single_active_consumers_that_leave_hand_everything_on(
    channel: BlockingChannel, connect: Connect, queue: Maker
) -> None:
    """One worker at a time, and each leaves at its third message: every message is done once."""
    name = queue(arguments={"x-single-active-consumer": True})
    inboxes = []
    for _ in range(5):
        working = connect().channel()
        working.basic_qos(prefetch_count=1)
        inboxes.append(Inbox(working, name))
    bodies = fill(channel, name, 10)
    done: list[bytes] = []
    for inbox in inboxes:
        for count in (1, 2):
            inbox.wait_for(count)
            done.append(inbox.bodies[-1])
            inbox.ack(inbox.tags[-1])
        fence(inbox.channel, name)
        inbox.channel.connection.close()
    assert sorted(done) == bodies
    assert ready(channel, name) == 0


# --- requests and answers ----------------------------------------------------------------------------------------------


def test_request_expires_when_no_server_takes_it_in_time(
    channel: BlockingChannel, connect: Connect, queue: Maker
) -> None:
    """The server comes back after the caller has given up: the old request is gone, the new one is answered."""
    requests = queue()
    calling = connect().channel()
    answers = Inbox(calling, "amq.rabbitmq.reply-to", auto_ack=True)
    properties = pika.BasicProperties(reply_to="amq.rabbitmq.reply-to", expiration="50")
    calling.basic_publish("", requests, b"old", properties)
    eventually(lambda: ready(channel, requests) == 0)
    calling.basic_publish("", requests, b"new", pika.BasicProperties(reply_to="amq.rabbitmq.reply-to", expiration="60000"))
    request = get(channel, requests)
    assert request.body == b"new"
    channel.basic_publish("", request.properties.reply_to, b"answer")
    wait_until(lambda: answers.bodies == [b"answer"], calling)


def test_reply_queue_that_expires(channel: BlockingChannel, new_name: NewName) -> None:
    """A caller's queue is there while it looks for answers, and goes some time after it stopped, with what came late."""
    replies = new_name("replies")
    channel.queue_declare(replies, arguments={"x-expires": 300})
    deadline = time.monotonic() + 0.5

    def looked_for_long() -> bool:
        channel.basic_get(replies, auto_ack=True)
        return time.monotonic() >= deadline

    eventually(looked_for_long)
    channel.basic_publish("", replies, b"late", mandatory=True)

    def is_gone() -> bool:
        try:
            channel.basic_publish("", replies, b"later", mandatory=True)
        except pika.exceptions.UnroutableError:
            return True
        return False

    eventually(is_gone)
