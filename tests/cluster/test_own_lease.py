"""An owner whose lease has ended delivers nothing, since somebody else may do so; it goes on when it is still the owner."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pika
import pika.exceptions
import pytest

from broker_process import BrokerProcess
from cluster.replicated import PATIENCE, Cluster, Replicated, drained, publish
from rabbitpy_broker.cluster import own_lease
from rabbitpy_broker.cluster.own_lease import OwnLease
from rabbitpy_broker.management.api import messages
from rabbitpy_broker.questions import AnswerAwaited, Question
from support import eventually

only_postgres = pytest.mark.parametrize("engine_servers", ["postgres"], indirect=True, scope="module")


class Clock:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr(own_lease.time, "monotonic", lambda: self.now)


async def test_it_ends_at_the_latest_when_others_see_it_ended():
    """It counts from before the renewal was sent."""
    ended = asyncio.Event()
    lease = OwnLease(0.2, ended.set)
    lease.renewed(time.monotonic() - 0.1)
    assert lease.is_valid()
    await asyncio.wait_for(ended.wait(), PATIENCE)
    assert not lease.is_valid()


async def test_what_was_seen_while_it_was_broken_is_not_settled(monkeypatch: pytest.MonkeyPatch):
    loop = asyncio.get_running_loop()
    clock = Clock(monkeypatch)
    monkeypatch.setattr(loop, "call_later", lambda *_: asyncio.TimerHandle(0.0, lambda: None, (), loop))
    lease = OwnLease(5.0, lambda: None)
    assert not lease.is_valid()
    lease.renewed(clock.now)
    clock.now += 4.0
    lease.renewed(clock.now)
    assert lease.was_settled(clock.now)
    assert not lease.is_steady()
    clock.now += 1.0
    assert lease.is_steady()
    clock.now += 4.5
    assert not lease.is_valid()
    assert not lease.was_settled(clock.now)
    lease.renewed(clock.now)
    broken = clock.now
    clock.now += 2.0
    assert not lease.was_settled(broken + 0.5)
    assert lease.was_settled(broken + 1.5)
    assert not lease.is_steady()


async def test_messages_that_the_api_has_taken_are_answered(monkeypatch: pytest.MonkeyPatch):
    """When the lease ends in the middle of them; they may be acked already. Asked before anything is taken, it is asked again."""
    left = [True, True]

    def take(*_: object) -> bool:
        if not left:
            raise AnswerAwaited(Question())
        return left.pop()

    monkeypatch.setattr(messages, "take", take)
    monkeypatch.setattr(messages, "_row", lambda *_: {})
    assert len(await messages._get_on(None, "work", 5, None, "auto", None)) == 2
    with pytest.raises(AnswerAwaited):
        await messages._get_on(None, "work", 5, None, "auto", None)


@contextmanager
def asleep(node: BrokerProcess) -> Iterator[None]:
    node.signal(signal.SIGSTOP)
    try:
        yield
    finally:
        node.signal(signal.SIGCONT)


@only_postgres
def test_a_former_owner_that_wakes_delivers_nothing(cluster: Cluster, vhost: Replicated):
    """What the new owner has delivered, and what was acked there, does not come again from the one before.

    A client's ack waits in the socket of the owner that sleeps, and would be the reason for the next delivery.
    """
    queue = "work"
    publisher = vhost.publisher(vhost.owner)
    publisher.queue_declare(queue, durable=True)
    publish(publisher, queue, range(10))
    channel = vhost.connect(vhost.owner).channel()
    channel.basic_qos(prefetch_count=1)
    came: list[int] = []
    channel.basic_consume(queue, lambda _channel, _method, _properties, body: came.append(int(body)))
    eventually(lambda: channel.connection.process_data_events(0.05) or came)
    with asleep(cluster.nodes[vhost.owner]):
        channel.basic_ack(1)
        successor = vhost.find_owner(other_than=vhost.owner)
        assert [number for number, _ in drained(vhost.connect(successor), queue)] == list(range(10))
    with pytest.raises(pika.exceptions.ConnectionClosedByBroker) as closed:
        while True:
            channel.connection.process_data_events(1.0)
    assert closed.value.reply_code == 320
    assert came == [0]


@only_postgres
def test_an_owner_whose_lease_has_ended_goes_on_when_it_is_still_the_owner(cluster: Cluster, vhost: Replicated):
    """Without the engine for longer than a lease nothing is delivered, neither to who consumes nor to who asks for a message."""
    node = cluster.nodes[vhost.owner]
    publisher = vhost.publisher(vhost.owner)
    publisher.queue_declare("work", durable=True)
    publish(publisher, "work", range(4))
    there = vhost.connect(vhost.owner).channel()
    there.basic_qos(prefetch_count=1)
    came: list[int] = []
    there.basic_consume("work", lambda _channel, _method, _properties, body: came.append(int(body)))
    eventually(lambda: there.connection.process_data_events(0.05) or came)
    asking = vhost.connect(vhost.owner)
    stopped = list(cluster.servers.all)  # a lease may do without a quorum
    for server in stopped:
        server.pause()
    with ThreadPoolExecutor() as threads:
        try:
            eventually(lambda: vhost.name in [one["vhost"] for one in node.events("deliveries held")], timeout=PATIENCE)
            there.basic_ack(1)
            asked = threads.submit(drained, asking, "work")
            until = time.monotonic() + 1.0
            eventually(lambda: there.connection.process_data_events(0.05) or time.monotonic() > until)
            assert came == [0]
            assert not asked.done()
        finally:
            for server in stopped:
                server.resume()
        found = [number for number, _ in asked.result(PATIENCE)]
    eventually(lambda: there.connection.process_data_events(0.05) or sorted(came + found) == [0, 1, 2, 3])
