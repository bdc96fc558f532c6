"""What a quorum queue still knows after a stop and after a crash: every message, and how often each came back."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from behaviour.helpers import confirming, fence, fill, ready
from broker_process import BrokerProcess, broker_command
from support import eventually

pytestmark = pytest.mark.own

Connect = Callable[..., pika.BlockingConnection]
either_end = pytest.mark.parametrize("end", ["stop", "crash"])


def declare(channel: BlockingChannel, name: str, **arguments: Any) -> None:
    channel.queue_declare(name, durable=True, arguments={"x-queue-type": "quorum", **arguments})


def give_back(channel: BlockingChannel, queue: str, times: int) -> None:
    """Gets the next message and gives it back, so often; what is confirmed then is in an epoch behind that."""
    for _ in range(times):
        method, _, _ = channel.basic_get(queue)
        assert method is not None
        channel.basic_nack(method.delivery_tag)
        fence(channel, queue)
    channel.queue_declare("fence", durable=True)
    channel.basic_publish("", "fence", b"x", pika.BasicProperties(delivery_mode=2))


def again(broker: BrokerProcess, end: str, connect: Connect) -> BlockingChannel:
    if end == "crash":
        broker.crash()
    else:
        broker.stop()
    broker.start()
    return confirming(connect(broker))


def all_there(channel: BlockingChannel, queue: str) -> list[tuple[bytes, int | None]]:
    """Body and count of each message, none of which is acked."""
    found = []
    while True:
        method, properties, body = channel.basic_get(queue)
        if method is None:
            return found
        found.append((body, (properties.headers or {}).get("x-delivery-count")))


@either_end
def test_transient_messages_survive(own_broker: Callable[..., BrokerProcess], connect: Connect, end: str) -> None:
    broker = own_broker()
    channel = confirming(connect(broker))
    declare(channel, "q")
    for size in (10, 10_000):
        channel.basic_publish("", "q", b"x" * size, pika.BasicProperties(delivery_mode=1, priority=9))
    channel = again(broker, end, connect)
    for size in (10, 10_000):
        _, properties, body = channel.basic_get("q")
        assert (body, properties.delivery_mode, properties.priority) == (b"x" * size, 1, 9)


@either_end
def test_counts_do_not_begin_anew(own_broker: Callable[..., BrokerProcess], connect: Connect, end: str) -> None:
    broker = own_broker(args=["--check-invariants"])
    channel = confirming(connect(broker))
    declare(channel, "q", **{"x-delivery-limit": 4})
    fill(channel, "q", 3)
    give_back(channel, "q", 2)
    channel = again(broker, end, connect)
    give_back(channel, "q", 2)
    channel = again(broker, end, connect)
    assert all_there(channel, "q") == [(b"0", 4), (b"1", None), (b"2", None)]
    channel.basic_nack(0, multiple=True)
    eventually(lambda: ready(channel, "q") == 2)
    assert all_there(channel, "q") == [(b"1", 1), (b"2", 1)]


@either_end
def test_count_of_an_urgent_message_too(own_broker: Callable[..., BrokerProcess], connect: Connect, end: str) -> None:
    broker = own_broker()
    channel = confirming(connect(broker))
    declare(channel, "q")
    fill(channel, "q", 1)
    channel.basic_publish("", "q", b"urgent", pika.BasicProperties(priority=5))
    give_back(channel, "q", 3)
    channel = again(broker, end, connect)
    assert all_there(channel, "q") == [(b"urgent", 3), (b"0", None)]


def test_counts_outlive_the_journal_files_that_had_them(own_broker: Callable[..., BrokerProcess], connect: Connect) -> None:
    """Files of 32 MiB are written over, after all that was in them has gone elsewhere."""
    broker = own_broker()
    channel = confirming(connect(broker))
    declare(channel, "q")
    fill(channel, "q", 2)
    give_back(channel, "q", 5)
    channel.queue_declare("other", durable=True)
    plain = connect(broker).channel()
    for _ in range(90):
        for _ in range(700):
            plain.basic_publish("", "other", b"x" * 3_000, pika.BasicProperties(delivery_mode=2))
        fence(plain, "other")
        plain.queue_purge("other")
    channel.basic_publish("", "fence", b"x", pika.BasicProperties(delivery_mode=2))
    files = list((broker.data_dir / "vhosts" / "%2F" / "journal").iterdir())
    assert len(files) <= 7, "the files that were there first have been used again"
    channel = again(broker, "crash", connect)
    assert all_there(channel, "q") == [(b"0", 5), (b"1", None)]


@either_end
def test_dump_shows_the_counts(own_broker: Callable[..., BrokerProcess], connect: Connect, end: str) -> None:
    broker = own_broker()
    channel = confirming(connect(broker))
    declare(channel, "q")
    fill(channel, "q", 2)
    give_back(channel, "q", 3)
    if end == "crash":
        broker.crash()
    else:
        broker.stop()
    command = [*broker_command(), "dump", str(broker.data_dir), "--queue", "q"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(line["body"], line.get("delivery_count")) for line in lines] == [("0", 3), ("1", None)]


def test_directory_is_older_brokers_until_it_has_a_quorum_queue(
    own_broker: Callable[..., BrokerProcess], connect: Connect
) -> None:
    broker = own_broker()
    channel = connect(broker).channel()
    channel.queue_declare("classic", durable=True)
    assert (broker.data_dir / "format").read_text() == "1\n"
    declare(channel, "q")
    assert (broker.data_dir / "format").read_text() == "2\n"
    broker.stop()
    broker.start()
    assert (broker.data_dir / "format").read_text() == "2\n"
