"""How long publishes have waited for a consumer's ack, and the warning about it."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import pytest
from pamqp import commands

from rabbitpy_broker.protocol.connection import Connection
from rabbitpy_broker.protocol.publish_waits import WaitWatch, oldest_wait_s
from rabbitpy_broker.queues.queue import Queue
from rabbitpy_broker.storage.vhost_store import StoreSettings
from sans_io import Peer, SansIOBroker, method, parts_of, publish


class WarningLog:
    def __init__(self) -> None:
        self.warnings: list[dict[str, Any]] = []

    def warning(self, event: str, **fields: Any) -> None:
        self.warnings.append({"event": event, **fields})


class Waits:
    """A broker with a queue in one of the modes, a publisher and a consumer; `at` is the clock of the ticks."""

    def __init__(self, mode: str) -> None:
        small = StoreSettings()
        small.segment_entry_count = 8
        self.broker = SansIOBroker(settings=small)
        self.publisher = self.broker.connect()
        self.publisher.open_channel(1)
        self.publisher.call(1, commands.Confirm.Select())
        self.publisher.call(1, commands.Queue.Declare(queue="q", arguments={"x-confirm-mode": mode}))
        self.log = WarningLog()
        self.watch = WaitWatch(self.log)
        self.at(1_000)

    @property
    def queue(self) -> Queue:
        return self.broker.vhost.queues["q"]

    def at(self, seconds: int) -> None:
        self.broker.vhost.tick(seconds + 0.5)
        self.broker.run()

    def publish(self, count: int = 1) -> None:
        for _ in range(count):
            self.publisher.feed(publish(1, "", "q", b"x"))

    def consumer(self) -> Peer:
        taker = self.broker.connect()
        taker.open_channel(1)
        taker.feed(method(1, commands.Basic.Consume(queue="q")))
        return taker

    def oldest(self) -> int:
        return int(oldest_wait_s(self.queue, self.broker.connections))

    def warnings(self) -> list[dict[str, Any]]:
        for _ in self.watch.looking(self.broker.node.vhosts.values(), self.broker.connections):
            pass
        return self.log.warnings


@pytest.fixture(params=["consumer-ack", "consumer-ack-light"])
def waits(request: pytest.FixtureRequest) -> Iterator[Waits]:
    made = Waits(request.param)
    yield made
    made.broker.audit()
    made.broker.close()


def test_the_oldest_counts_ready_or_handed_out(waits: Waits) -> None:
    assert waits.oldest() == -1
    waits.publish()
    waits.at(1_010)
    waits.publish()
    assert waits.oldest() == 10
    taker = waits.consumer()
    waits.at(1_020)
    assert waits.oldest() == 20
    taker.feed(method(1, commands.Basic.Ack(1)))
    assert waits.oldest() == 10
    taker.feed(method(1, commands.Basic.Ack(2)))
    assert waits.oldest() == -1


def test_what_came_before_the_first_tick_came_then() -> None:
    made = Waits.__new__(Waits)
    made.broker = SansIOBroker()
    made.publisher = made.broker.connect()
    made.publisher.open_channel(1)
    made.publisher.call(1, commands.Queue.Declare(queue="q", arguments={"x-confirm-mode": "consumer-ack"}))
    made.publish()
    assert made.oldest() == 0
    made.at(5_000)
    assert made.oldest() == 0
    made.at(5_007)
    assert made.oldest() == 7
    made.broker.close()


def test_messages_in_delta_keep_their_time(waits: Waits) -> None:
    waits.publish(60)
    for part in parts_of(waits.queue.backing):
        part.set_ram_duration_target(0.0)
    waits.at(1_030)
    waits.publish()
    waits.at(1_040)
    assert waits.oldest() == 40
    taker = waits.consumer()
    for tag in range(1, 61):
        assert waits.oldest() == 40
        taker.feed(method(1, commands.Basic.Ack(tag)))
    assert waits.oldest() == 10


def test_one_warning_for_each_time_that_publishes_wait_long(waits: Waits) -> None:
    waits.publish(2)
    waits.at(1_059)
    assert waits.warnings() == []
    waits.at(1_060)
    expected = {
        "event": "publishes wait for acks", "vhost": "/", "queue": "q", "publishes": 2, "oldest_s": 60, "consumers": 0
    }  # fmt: skip
    assert waits.warnings() == [expected]
    waits.at(1_100)
    assert waits.warnings() == [expected]
    taker = waits.consumer()
    waits.at(1_110)
    assert waits.warnings() == [expected]
    taker.feed(method(1, commands.Basic.Ack(0, True)))
    assert waits.warnings() == [expected]
    waits.publish()
    waits.at(1_170)
    assert waits.warnings() == [expected, expected | {"publishes": 1, "consumers": 1}]


def test_a_persist_queue_owes_nothing() -> None:
    waits = Waits("persist")
    waits.publish(3)
    waits.at(2_000)
    assert waits.oldest() == -1
    assert waits.warnings() == []
    waits.broker.close()


def test_waiting_publishes_do_not_keep_a_connection_that_is_gone(waits: Waits) -> None:
    """Messages may wait for days, and publishers come and go."""
    waits.publish(3)
    gone = id(waits.publisher.connection)
    waits.publisher.lose()
    waits.publisher = waits.broker.connect()
    gc.collect()
    assert not [each for each in gc.get_objects() if id(each) == gone and isinstance(each, Connection)]
    assert waits.oldest() == 0
    taker = waits.consumer()
    taker.feed(method(1, commands.Basic.Ack(0, True)))
    assert waits.oldest() == -1


def test_light_deliveries_that_are_lost_leave_no_count_of_their_returns() -> None:
    broker = SansIOBroker()
    publisher = broker.connect()
    publisher.open_channel(1)
    arguments = {"x-confirm-mode": "consumer-ack-light", "x-delivery-limit": 3}
    publisher.call(1, commands.Queue.Declare(queue="q", arguments=arguments))
    publisher.feed(publish(1, "", "q", b"x"))
    taker = broker.connect()
    taker.open_channel(1)
    taker.feed(method(1, commands.Basic.Consume(queue="q")))
    taker.lose()
    queue = broker.vhost.queues["q"]
    assert queue._deliveries == {}
    assert queue.backing.publishes_waiting() == 0
    broker.audit()
    broker.close()
