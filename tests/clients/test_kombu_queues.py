"""kombu's queues with arguments, most of them through SimpleQueue: priorities, times to live, lengths, dead letters.

And kombu's native delayed delivery, the queues by which Celery delays tasks, under names of the test's own.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import amqp
import kombu
import pytest
from kombu.transport.native_delayed_delivery import (
    bind_queue_to_native_delayed_delivery_exchange,
    calculate_routing_key,
    declare_native_delayed_delivery_exchanges_and_queues,
    level_name,
)

from broker_process import BrokerAddress, BrokerProcess
from support import eventually, unique

NewName = Callable[[str], str]


@pytest.fixture
def connection(broker: BrokerAddress) -> Iterator[kombu.Connection]:
    """Every publish waits for its confirm, and raises when it is a nack."""
    with kombu.Connection(broker.url, connect_timeout=10, transport_options={"confirm_publish": True}) as opened:
        yield opened


@pytest.fixture
def make_simple(connection: kombu.Connection, new_name: NewName) -> Callable[..., Any]:
    """`make_simple(max_priority=5)` is a SimpleQueue on a queue with these settings and an exchange of its own."""

    def make(**settings: Any) -> Any:
        name = new_name("kombu")
        return connection.SimpleQueue(kombu.Queue(name, kombu.Exchange(name), name, **settings))

    return make


def payloads(simple: Any) -> list[Any]:
    """What is in the queue now, which is empty then."""
    found = []
    while True:
        try:
            message = simple.get_nowait()
        except simple.Empty:
            return found
        message.ack()
        found.append(message.payload)


def letters_to(simple: Any) -> dict[str, str]:
    return {"x-dead-letter-exchange": simple.queue.exchange.name, "x-dead-letter-routing-key": simple.queue.routing_key}


def next_deaths(simple: Any) -> tuple[Any, list[tuple[str, str, int]]]:
    """The payload of the next message, and where, why and how often it died."""
    message = simple.get(timeout=10)
    message.ack()
    return message.payload, [(each["queue"], each["reason"], each["count"]) for each in message.headers["x-death"]]


def test_priorities(make_simple: Callable[..., Any]) -> None:
    simple = make_simple(max_priority=5)
    for priority in (0, 3, 5, 1, 9, 3, None):
        simple.put(priority, priority=priority)
    # 9 is as good as 5, none is 0
    assert payloads(simple) == [5, 9, 3, 3, 1, 0, None]


def test_consumer_of_priorities(make_simple: Callable[..., Any], connection: kombu.Connection) -> None:
    simple = make_simple(max_priority=10)
    for priority in (1, 7, 4):
        simple.put(priority, priority=priority)
    simple.consumer.qos(prefetch_count=1)
    first = simple.get(timeout=5)
    simple.put(9, priority=9)
    received = [first.payload]
    first.ack()
    for _ in range(3):
        message = simple.get(timeout=5)
        received.append(message.payload)
        message.ack()
    assert received == [7, 9, 4, 1]


def test_message_expires(make_simple: Callable[..., Any]) -> None:
    """kombu's expiration is in seconds, the property in milliseconds."""
    dead = make_simple()
    dead.queue(dead.channel).declare()
    simple = make_simple(queue_arguments=letters_to(dead))
    simple.put("short", expiration=0.1)
    simple.put("long", expiration=60)
    assert next_deaths(dead) == ("short", [(simple.queue.name, "expired", 1)])
    message = simple.get(timeout=5)
    assert (message.payload, message.properties["expiration"]) == ("long", "60000")
    message.ack()


def test_messages_of_a_queue_expire(make_simple: Callable[..., Any]) -> None:
    dead = make_simple()
    dead.queue(dead.channel).declare()
    simple = make_simple(message_ttl=0.15, queue_arguments=letters_to(dead))
    simple.queue(simple.channel).declare()
    started = time.monotonic()
    for number in range(5):
        simple.put(number)
    assert [next_deaths(dead) for _ in range(5)] == [(number, [(simple.queue.name, "expired", 1)]) for number in range(5)]
    assert time.monotonic() - started >= 0.15
    assert simple.qsize() == 0


def test_rejected_message_is_dead_lettered(make_simple: Callable[..., Any]) -> None:
    dead = make_simple()
    simple = make_simple(queue_arguments=letters_to(dead))
    simple.put({"n": 1}, serializer="pickle", compression="zlib", headers={"mine": "x"})
    dead.consumer.accept = {"application/x-python-serialize"}
    simple.consumer.accept = {"application/x-python-serialize"}
    simple.get(timeout=5).reject()
    message = dead.get(timeout=5)
    # body and content type arrive as they were, so the payload can still be read
    assert message.payload == {"n": 1}
    assert message.headers["mine"] == "x"
    assert message.headers["x-first-death-reason"] == "rejected"
    message.ack()


def test_queue_expires(make_simple: Callable[..., Any], connection: kombu.Connection) -> None:
    simple = make_simple(expires=0.4)
    simple.put("x")
    assert simple.qsize() == 1

    def is_gone() -> bool:
        try:
            kombu.Queue(simple.queue.name)(connection.default_channel).queue_declare(passive=True)
        except amqp.exceptions.NotFound:
            return True
        return False

    def rested() -> bool:
        return time.monotonic() - started >= 0.6

    # declares are uses, so the queue is left alone for its time
    started = time.monotonic()
    eventually(rested)
    assert is_gone()


@pytest.mark.parametrize("limit", [{"max_length": 3}, {"max_length_bytes": 9}], ids=["messages", "bytes"])
def test_oldest_messages_are_dropped(make_simple: Callable[..., Any], limit: dict[str, int]) -> None:
    dead = make_simple()
    dead.queue(dead.channel).declare()
    simple = make_simple(**limit, queue_arguments=letters_to(dead))
    for number in range(6):
        simple.put(f"m-{number}", serializer="raw")  # three bytes each
    assert [next_deaths(dead) for _ in range(3)] == [
        (f"m-{number}", [(simple.queue.name, "maxlen", 1)]) for number in range(3)]
    assert payloads(simple) == ["m-3", "m-4", "m-5"]


def test_full_queue_refuses(make_simple: Callable[..., Any]) -> None:
    simple = make_simple(max_length=2, queue_arguments={"x-overflow": "reject-publish"})
    for number in range(2):
        simple.put(number)
    with pytest.raises(amqp.exceptions.MessageNacked):
        simple.put(2)
    simple.get(timeout=5).ack()
    eventually(lambda: simple.qsize() == 0)  # the other one is prefetched
    simple.put(3)
    assert simple.get(timeout=5).payload == 1


def test_declared_with_other_arguments(connection: kombu.Connection, new_name: NewName) -> None:
    name = new_name("kombu")
    kombu.Queue(name, max_priority=5, message_ttl=1.5)(connection.default_channel).declare()
    kombu.Queue(name, max_priority=5, message_ttl=1.5)(connection.default_channel).declare()
    for changed, argument in ((kombu.Queue(name, max_priority=6, message_ttl=1.5), "x-max-priority"),
                              (kombu.Queue(name, max_priority=5, message_ttl=2), "x-message-ttl")):
        with pytest.raises(amqp.exceptions.PreconditionFailed, match=f"inequivalent arg '{argument}'"):
            changed(connection.channel()).declare()


def test_consumer_with_priority(broker: BrokerAddress, connection: kombu.Connection, new_name: NewName) -> None:
    name = new_name("kombu")
    received: list[tuple[str, Any]] = []

    def consumer(tag: str, queue: kombu.Queue) -> Any:
        return kombu.Consumer(connection.channel(), queue, no_ack=True,
                              on_message=lambda message: received.append((tag, message.payload)))

    low = consumer("low", kombu.Queue(name))
    high = consumer("high", kombu.Queue(name, consumer_arguments={"x-priority": 10}))
    with low, high:
        for number in range(5):
            connection.Producer().publish(number, routing_key=name)
        while len(received) < 5:
            connection.drain_events(timeout=5)
    assert received == [("high", number) for number in range(5)]


# --- native delayed delivery -------------------------------------------------------------------------------------------


def declare_delays(connection: kombu.Connection, prefix: str) -> kombu.Queue:
    """The delay queues, and a queue `PREFIX.work` whose topic exchange they deliver to."""
    declare_native_delayed_delivery_exchanges_and_queues(connection, "classic", prefix)
    work = kombu.Queue(f"{prefix}.work", kombu.Exchange(f"{prefix}.work", "topic"), f"{prefix}.work")
    work(connection.channel()).declare()
    bind_queue_to_native_delayed_delivery_exchange(connection, work, prefix)
    return work


def publish_later(connection: kombu.Connection, prefix: str, delay: int, body: Any) -> None:
    connection.Producer().publish(body, exchange=level_name(27, prefix),
                                  routing_key=calculate_routing_key(delay, f"{prefix}.work"))


def take(connection: kombu.Connection, queue: kombu.Queue) -> kombu.Message:
    """The next message, once there is one."""
    bound = queue(connection.default_channel)
    return eventually(lambda: bound.get(no_ack=True), 10)


@pytest.fixture
def delays(connection: kombu.Connection) -> Iterator[str]:
    """The prefix of the delay queues and exchanges that the test declares."""
    prefix = unique("kombu")
    yield prefix
    channel = connection.channel()
    for level in range(28):
        channel.queue_delete(level_name(level, prefix))
        channel.exchange_delete(level_name(level, prefix))
    channel.queue_delete(f"{prefix}.work")
    channel.exchange_delete(f"{prefix}.work")
    channel.exchange_delete(f"{prefix}_celery_delayed_delivery")


def test_delays(connection: kombu.Connection, delays: str) -> None:
    """From exchange to exchange down to the highest bit of the delay, through its queue, and on: 3 s are 2 s and 1 s."""
    work = declare_delays(connection, delays)
    started = time.monotonic()
    for delay in (3, 1, 2):
        publish_later(connection, delays, delay, delay)
    for delay, levels in ((1, [0]), (2, [1]), (3, [0, 1])):
        message = take(connection, work)
        assert message.payload == delay
        assert started + delay <= time.monotonic() < started + delay + 5
        assert [(death["queue"], death["reason"]) for death in message.headers["x-death"]] == [
            (level_name(level, delays), "expired") for level in levels]
        assert message.delivery_info["routing_key"] == calculate_routing_key(delay, f"{delays}.work")


@pytest.mark.own
@pytest.mark.parametrize("how", ["stop", "crash"])
def test_delays_go_on_over_a_restart(own_broker: Callable[..., BrokerProcess], how: str) -> None:
    """Delayed by 3 s, the broker is down in between: the topology is there again and nothing comes early, late or twice."""
    own = own_broker()
    confirmed = {"confirm_publish": True}
    with kombu.Connection(own.url, transport_options=confirmed) as before:
        work = declare_delays(before, "p")
        published_at = time.monotonic()
        for number in range(20):
            publish_later(before, "p", 3, number)
    if how == "crash":
        own.crash()
        own.start()
    else:
        own.restart()
    with kombu.Connection(own.url) as after:
        messages = [take(after, work) for _ in range(20)]
        assert time.monotonic() - published_at >= 3
        assert [message.payload for message in messages] == list(range(20))
        assert work(after.default_channel).get() is None
