"""What a publisher hears of a message that no consumer wanted, that was too many or too old: in both consumer-ack modes.

Without a dead-letter exchange it is a nack. With one the publisher waits for what becomes of the copy: it is acked when
the copy is on disk, or acked by a consumer, as the copy's queue promises; a copy that nobody took is a nack.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from behaviour.helpers import Inbox, fence, take_all
from behaviour.producer import BOTH, CONSUMER_ACK, LIGHT, Producer, in_mode
from wire_client import WireClient

pytestmark = pytest.mark.own

Maker = Callable[..., str]
Connect = Callable[..., pika.BlockingConnection]


@pytest.fixture
def producer(wire: WireClient) -> Producer:
    return Producer(wire)


@pytest.fixture(params=BOTH)
def mode(request: pytest.FixtureRequest) -> str:
    return str(request.param)


# How a message comes to its end in a queue: what the queue is declared with, and what is done. Only in consumer-ack can
# it be rejected.
ENDS: dict[str, tuple[dict[str, Any], str]] = {
    "too old, by the queue": ({"message_ttl": 1}, ""),
    "too old at once": ({"message_ttl": 0}, ""),
    "too old, by itself": ({}, "1"),
    "one too many": ({"max_length": 0}, ""),
    "too large": ({"max_length_bytes": 0}, ""),
    "pushed out by the next": ({"max_length": 1}, "next"),
    "rejected": ({}, "reject"),
    "nacked": ({}, "nack"),
    "returned too often": ({"delivery_limit": 0}, "requeue"),
}


BY_CONSUMERS = ("reject", "nack", "requeue")


class End(NamedTuple):
    """One of ENDS, in a queue of this mode."""

    mode: str
    name: str

    @property
    def arguments(self) -> dict[str, Any]:
        return ENDS[self.name][0]

    @property
    def how(self) -> str:
        return ENDS[self.name][1]


CASES = [End(mode, name) for mode in BOTH for name in ENDS if mode == CONSUMER_ACK or ENDS[name][1] not in BY_CONSUMERS]


@pytest.fixture(params=CASES, ids=lambda end: f"{end.mode}, {end.name}")
def end(request: pytest.FixtureRequest) -> End:
    found: End = request.param
    return found


@pytest.fixture
def lose(producer: Producer, connect: Connect) -> Callable[[str, End], int]:
    """`lose(queue, end)` publishes a message that comes to this end, as the first; returns how many were published."""

    def publish(name: str, end: End) -> int:
        how = end.how
        producer.publish(name, expiration=how if how.isdigit() else "")
        if how == "next":
            producer.publish(name, body=b"next")
        elif how in BY_CONSUMERS:
            producer.waits()
            channel = connect().channel()
            tag = channel.basic_get(name)[0].delivery_tag
            if how == "reject":
                channel.basic_reject(tag, requeue=False)
            else:
                channel.basic_nack(tag, requeue=how == "requeue")
            fence(channel, name)
        return producer.count

    return publish


def test_without_a_dead_letter_exchange_it_is_a_nack(
    producer: Producer, queue: Maker, lose: Callable[[str, End], int], end: End
) -> None:
    lose(queue(durable=True, arguments=in_mode(end.mode, **end.arguments)), end)
    assert producer.next() == {1: "nack"}
    producer.waits()


@pytest.mark.parametrize("durable", [True, False])
def test_copy_in_a_persist_queue_is_an_ack(
    producer: Producer, connect: Connect, queue: Maker, lose: Callable[[str, End], int], end: End, durable: bool
) -> None:
    dead = queue(durable=durable)
    arguments = in_mode(end.mode, dead_letter_exchange="", dead_letter_routing_key=dead, **end.arguments)
    lose(queue(durable=True, arguments=arguments), end)
    assert producer.next() == {1: "ack"}
    producer.waits()
    assert take_all(connect().channel(), dead) == [b"x"]


@pytest.mark.parametrize("dead_mode", BOTH)
@pytest.mark.parametrize("outcome", ["ack", "nack"])
def test_copy_in_a_consumer_ack_queue_is_what_becomes_of_it(
    producer: Producer,
    connect: Connect,
    queue: Maker,
    lose: Callable[[str, End], int],
    end: End,
    dead_mode: str,
    outcome: str,
) -> None:
    dead = queue(durable=True, arguments=in_mode(dead_mode))
    arguments = in_mode(end.mode, dead_letter_exchange="", dead_letter_routing_key=dead, **end.arguments)
    lose(queue(durable=True, arguments=arguments), end)
    producer.waits()
    channel = connect().channel()
    inbox = Inbox(channel, dead)
    inbox.wait_for(1)
    producer.waits()
    if outcome == "ack":
        inbox.ack(1)
    elif dead_mode == LIGHT:
        channel.close()
    else:
        channel.basic_reject(1, requeue=False)
    assert producer.next() == {1: outcome}
    producer.waits()


@pytest.mark.parametrize("dead_letter_exchange", ["", "no such exchange"])
def test_copy_without_a_queue_is_a_nack(
    producer: Producer, queue: Maker, lose: Callable[[str, End], int], end: End, dead_letter_exchange: str
) -> None:
    nowhere = in_mode(end.mode, dead_letter_exchange=dead_letter_exchange, dead_letter_routing_key="nowhere", **end.arguments)
    lose(queue(durable=True, arguments=nowhere), end)
    assert producer.next() == {1: "nack"}
    producer.waits()


def test_copy_that_is_refused_is_a_nack(
    producer: Producer, queue: Maker, lose: Callable[[str, End], int], end: End
) -> None:
    dead = queue(durable=True, arguments={"x-max-length": 0, "x-overflow": "reject-publish"})
    arguments = in_mode(end.mode, dead_letter_exchange="", dead_letter_routing_key=dead, **end.arguments)
    lose(queue(durable=True, arguments=arguments), end)
    assert producer.next() == {1: "nack"}
    producer.waits()


def test_copies_for_several_queues_must_all_be_safe(
    producer: Producer, connect: Connect, channel: BlockingChannel, exchange: Maker, queue: Maker, mode: str
) -> None:
    source = exchange("fanout")
    dead = [queue(durable=True), queue(durable=True, arguments=in_mode(CONSUMER_ACK)), queue(arguments=in_mode(LIGHT))]
    for name in dead:
        channel.queue_bind(name, source)
    producer.publish(queue(arguments=in_mode(mode, dead_letter_exchange=source, message_ttl=0)))
    for name in dead[1:]:
        producer.waits()
        inbox = Inbox(connect().channel(), name)
        inbox.wait_for(1)
        inbox.ack(1)
        fence(inbox.channel, name)
    producer.ends_with("ack")


def test_chain_of_dead_letters(producer: Producer, connect: Connect, queue: Maker, mode: str) -> None:
    """The publisher waits for the last of them."""
    last = queue(durable=True, arguments=in_mode(mode))
    name = last
    for _ in range(3):
        name = queue(arguments=in_mode(mode, dead_letter_exchange="", dead_letter_routing_key=name, message_ttl=0))
    producer.publish(name)
    producer.waits()
    inbox = Inbox(connect().channel(), last)
    inbox.wait_for(1)
    assert len(inbox.deliveries[0].properties.headers["x-death"]) == 3
    inbox.ack(1)
    producer.ends_with("ack")


def test_circle_of_dead_letters_is_a_nack(producer: Producer, new_name: Maker, channel: BlockingChannel, mode: str) -> None:
    first, second = new_name("first"), new_name("second")
    for name, other in ((first, second), (second, first)):
        arguments = in_mode(mode, dead_letter_exchange="", dead_letter_routing_key=other, message_ttl=0)
        channel.queue_declare(name, arguments=arguments)
    producer.publish(first)
    producer.ends_with("nack")


def test_light_delivery_lost_with_its_consumer_is_no_dead_letter(
    producer: Producer, connect: Connect, queue: Maker
) -> None:
    dead = queue()
    name = queue(arguments=in_mode(LIGHT, dead_letter_exchange="", dead_letter_routing_key=dead, delivery_limit=0))
    producer.publish(name)
    connection = connect()
    Inbox(connection.channel(), name).wait_for(1)
    connection.close()
    producer.ends_with("nack")
    assert take_all(connect().channel(), dead) == []


@pytest.mark.parametrize("overflow", ["reject-publish", "reject-publish-dlx"])
def test_full_queue_that_refuses_is_a_nack(
    producer: Producer, connect: Connect, queue: Maker, mode: str, overflow: str
) -> None:
    """With reject-publish-dlx the refused message is a dead letter besides; the publisher is told at once all the same."""
    dead = queue()
    name = queue(arguments=in_mode(mode, max_length=1, overflow=overflow, dead_letter_exchange="",
                                   dead_letter_routing_key=dead))  # fmt: skip
    producer.publish(name)
    producer.publish(name, body=b"refused")
    assert producer.next() == {2: "nack"}
    producer.waits()
    channel = connect().channel()
    assert take_all(channel, dead) == ([b"refused"] if overflow == "reject-publish-dlx" else [])
    channel.basic_get(name, auto_ack=True)
    producer.ends_with("ack")


def test_one_queue_that_refuses_makes_the_whole_a_nack(
    producer: Producer, connect: Connect, channel: BlockingChannel, exchange: Maker, queue: Maker, mode: str
) -> None:
    """It is told at once, and not again when the other queue's consumer acks."""
    source = exchange("fanout")
    names = [queue(arguments=in_mode(mode)), queue(arguments=in_mode(mode, max_length=0))]
    for name in names:
        channel.queue_bind(name, source)
    producer.publish(exchange=source)
    producer.ends_with("nack")
    assert take_all(connect().channel(), names[0]) == [b"x"]
    producer.waits()


def test_letters_that_are_kept_until_they_are_taken(
    producer: Producer, connect: Connect, channel: BlockingChannel, exchange: Maker, queue: Maker
) -> None:
    """at-least-once: a target that is full is asked again; the copies that others took meanwhile count too."""
    source = exchange("fanout")
    taking = queue(durable=True, arguments=in_mode(CONSUMER_ACK))
    full = queue(durable=True, arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
    for name in (taking, full):
        channel.queue_bind(name, source)
    channel.basic_publish("", full, b"in the way")
    name = queue(durable=True, arguments=in_mode(CONSUMER_ACK, dead_letter_exchange=source, overflow="reject-publish",
                                                 dead_letter_strategy="at-least-once"))  # fmt: skip
    producer.publish(name)
    taker = connect().channel()
    taker.basic_reject(taker.basic_get(name)[0].delivery_tag, requeue=False)
    inbox = Inbox(connect().channel(), taking)
    inbox.wait_for(1)
    producer.waits()
    assert take_all(taker, full) == [b"in the way"]
    Inbox(connect().channel(), full).wait_for(1)
    producer.waits()
    assert inbox.settled() == [b"x"], "taken once"
    inbox.ack(1)
    producer.ends_with("ack")
