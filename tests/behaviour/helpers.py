"""Small things the behaviour tests of publishing and consuming share.

A test that says "nothing arrives" needs a fence: a round trip after which everything that was under way is there. A
delivery and the answer to a method may overtake each other once, on the way from the queue to the channel, so the fence
goes to the queue twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import pamqp.commands as amqp
import pika
from pamqp.base import Frame as Command
from pika.adapters.blocking_connection import BlockingChannel

from support import eventually
from wire_client import METHOD, Delivered, WireClient, decode

CAPABLE = {
    "capabilities": {
        "publisher_confirms": True,
        "basic.nack": True,
        "consumer_cancel_notify": True,
        "connection.blocked": True,
    }
}


class Delivery(NamedTuple):
    tag: int
    body: bytes
    redelivered: bool
    exchange: str
    routing_key: str
    properties: pika.BasicProperties
    consumer_tag: str


class Inbox:
    """What one consumer was given, in the order it came; nothing is acked."""

    def __init__(self, channel: BlockingChannel, queue: str, **consume: Any) -> None:
        self.channel = channel
        self.queue = queue
        self.deliveries: list[Delivery] = []
        self.tag = channel.basic_consume(queue, self._take, **consume)

    def _take(self, _: Any, method: Any, properties: pika.BasicProperties, body: bytes) -> None:
        self.deliveries.append(Delivery(method.delivery_tag, body, method.redelivered, method.exchange,
                                        method.routing_key, properties, method.consumer_tag))

    @property
    def bodies(self) -> list[bytes]:
        return [delivery.body for delivery in self.deliveries]

    @property
    def tags(self) -> list[int]:
        return [delivery.tag for delivery in self.deliveries]

    def wait_for(self, count: int, timeout: float = 10.0) -> list[bytes]:
        """The bodies, once there are at least `count`."""
        wait_until(lambda: len(self.deliveries) >= count, self.channel, timeout=timeout)
        return self.bodies

    def settled(self) -> list[bytes]:
        """The bodies, once everything that is under way has arrived."""
        fence(self.channel, self.queue)
        return self.bodies

    def ack(self, *tags: int) -> None:
        for tag in tags:
            self.channel.basic_ack(tag)


def wait_until(predicate: Callable[[], bool], *channels: BlockingChannel, timeout: float = 10.0) -> None:
    """Lets the connections of `channels` work until the predicate is true."""

    def look() -> bool:
        for channel in channels:
            channel.connection.process_data_events(0)
        return predicate()

    eventually(look, timeout)


def fence(channel: BlockingChannel, queue: str) -> None:
    """What the queue had to say to the channel has been said, and its callbacks have run."""
    for _ in range(2):
        channel.queue_declare(queue, passive=True)
    channel.connection.process_data_events(0)


def confirming(connection: pika.BlockingConnection) -> BlockingChannel:
    """A new channel in confirm mode: what it published has reached its queues when basic_publish returns."""
    channel = connection.channel()
    channel.confirm_delivery()
    return channel


def fill(channel: BlockingChannel, queue: str, count: int, start: int = 0) -> list[bytes]:
    """Publishes `count` numbered messages on a channel in confirm mode; returns their bodies."""
    bodies = [b"%d" % number for number in range(start, start + count)]
    for body in bodies:
        channel.basic_publish("", queue, body)
    return bodies


def ready(channel: BlockingChannel, queue: str) -> int:
    """Messages that wait for a consumer."""
    return int(channel.queue_declare(queue, passive=True).method.message_count)


def take_all(channel: BlockingChannel, queue: str) -> list[bytes]:
    """The bodies of all ready messages, which are gone from the queue then."""
    return [body for _, body in take_all_flagged(channel, queue)]


def take_all_flagged(channel: BlockingChannel, queue: str) -> list[tuple[bool, bytes]]:
    """The redelivered flags and bodies of all ready messages, which are gone from the queue then."""
    return list(_get_each(channel, queue))


def _get_each(channel: BlockingChannel, queue: str) -> Iterator[tuple[bool, bytes]]:
    while True:
        method, _, body = channel.basic_get(queue, auto_ack=True)
        if method is None:
            return
        yield method.redelivered, body


def wire_deliveries(client: WireClient, channel: int, count: int) -> list[Delivered]:
    return [client.expect_content(channel, amqp.Basic.Deliver) for _ in range(count)]


def confirms(client: WireClient, channel: int, upto: int) -> list[tuple[str, int]]:
    """Reads basic.ack and basic.nack until `upto` publishes are settled; ("ack" or "nack", tag) for each, sorted by tag.

    A tag that is settled twice fails the test.
    """
    outcome: dict[int, str] = {}
    while len(outcome) < upto:
        answer = client.read_command()[1]
        assert isinstance(answer, amqp.Basic.Ack | amqp.Basic.Nack), f"{answer.name} came"
        settle(outcome, answer)
    return [(outcome[tag], tag) for tag in sorted(outcome)]


def settle(outcome: dict[int, str], answer: amqp.Basic.Ack | amqp.Basic.Nack) -> None:
    """Notes the tags that one basic.ack or basic.nack of the broker settles."""
    name = "ack" if isinstance(answer, amqp.Basic.Ack) else "nack"
    tag = answer.delivery_tag
    tags: Iterable[int] = [tag]
    if answer.multiple:
        tags = [number for number in range(1, tag + 1) if number not in outcome]
        assert tags, f"{name} multiple up to {tag} settles nothing new"
    for number in tags:
        assert number not in outcome, f"publish {number} was settled twice"
        outcome[number] = name


def read_anything(client: WireClient, channel: int) -> Command | Delivered:
    """The next method on `channel`, with its content when it has one; frames of another kind in between fail the test."""
    frame = client.read_frame()
    assert (frame.type, frame.channel) == (METHOD, channel)
    command = decode(frame)
    if not isinstance(command, amqp.Basic.Deliver | amqp.Basic.Return | amqp.Basic.GetOk):
        return command
    header = client.read_frame()
    assert (header.type, header.channel) == (2, channel)
    size = int.from_bytes(header.payload[4:12], "big")
    frames, body = [header], b""
    while len(body) < size:
        frame = client.read_frame()
        assert (frame.type, frame.channel) == (3, channel)
        frames.append(frame)
        body += frame.payload
    return Delivered(command, header.payload, body, frames)
