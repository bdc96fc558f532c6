"""x-priority on basic.consume: the highest consumer that has allowance left gets the message."""

from __future__ import annotations

import struct
from collections.abc import Callable

import pamqp.commands as amqp
import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from behaviour.helpers import Inbox, confirming, fill, wait_until
from wire_client import WireClient, field_table, longstr, shortstr

Maker = Callable[..., str]
Connect = Callable[..., pika.BlockingConnection]

CONSUME = (60, 20)


@pytest.fixture
def channel(connection: pika.BlockingConnection) -> BlockingChannel:
    """In confirm mode: what was published has reached its queues when basic_publish returns."""
    return confirming(connection)


def inbox(connection: pika.BlockingConnection, queue: str, priority: int | None, prefetch: int = 0) -> Inbox:
    channel = connection.channel()
    channel.basic_qos(prefetch_count=prefetch)
    return Inbox(channel, queue, arguments=None if priority is None else {"x-priority": priority})


def test_highest_priority_gets_everything_while_it_may(
    connection: pika.BlockingConnection, channel: BlockingChannel, queue: Maker
) -> None:
    name = queue()
    low, high, middle = (inbox(connection, name, priority) for priority in (-5, 10, 1))
    bodies = fill(channel, name, 50)
    assert high.wait_for(50) == bodies
    assert (low.settled(), middle.settled()) == ([], [])


def test_what_the_highest_may_not_take_goes_to_the_next(
    connection: pika.BlockingConnection, channel: BlockingChannel, queue: Maker
) -> None:
    name = queue()
    low, middle, high = inbox(connection, name, 0), inbox(connection, name, 5, 3), inbox(connection, name, 10, 2)
    bodies = fill(channel, name, 10)
    wait_until(lambda: len(low.bodies) == 5, channel)
    assert (high.bodies, middle.bodies, low.bodies) == (bodies[:2], bodies[2:5], bodies[5:])


def test_acking_brings_the_highest_back(
    connection: pika.BlockingConnection, channel: BlockingChannel, queue: Maker
) -> None:
    name = queue()
    low, high = inbox(connection, name, 0), inbox(connection, name, 1, 1)
    fill(channel, name, 2)
    wait_until(lambda: bool(low.bodies), channel)
    high.ack(high.deliveries[0].tag)
    high.settled()
    fill(channel, name, 2, start=2)
    wait_until(lambda: len(low.bodies) == 2, channel)
    assert (high.bodies, low.bodies) == ([b"0", b"2"], [b"1", b"3"])


def test_consumers_without_a_priority_have_zero(
    connection: pika.BlockingConnection, channel: BlockingChannel, queue: Maker
) -> None:
    name = queue()
    below, plain, above = inbox(connection, name, -1), inbox(connection, name, None, 1), inbox(connection, name, 1, 1)
    fill(channel, name, 3)
    wait_until(lambda: bool(below.bodies), channel)
    assert (above.bodies, plain.bodies, below.bodies) == ([b"0"], [b"1"], [b"2"])


def test_later_consumer_of_higher_priority_takes_over(
    connection: pika.BlockingConnection, channel: BlockingChannel, queue: Maker
) -> None:
    name = queue()
    low = inbox(connection, name, 1)
    fill(channel, name, 5)
    low.wait_for(5)
    high = inbox(connection, name, 2)
    fill(channel, name, 5, start=5)
    assert high.wait_for(5) == [b"5", b"6", b"7", b"8", b"9"]
    high.channel.basic_cancel(high.tag)
    fill(channel, name, 1, start=10)
    assert low.wait_for(6)[5:] == [b"10"]


def test_equal_priorities_take_turns(
    connection: pika.BlockingConnection, channel: BlockingChannel, queue: Maker
) -> None:
    name = queue()
    low = inbox(connection, name, 0)
    equals = [inbox(connection, name, 7) for _ in range(3)]
    fill(channel, name, 30)
    wait_until(lambda: sum(len(each.bodies) for each in equals) == 30, channel)
    assert [len(each.bodies) for each in equals] == [10, 10, 10]
    assert low.settled() == []


@pytest.mark.parametrize(
    "kind, octets",
    [("b", b"\x05"), ("B", b"\x05"), ("s", b"\x00\x05"), ("u", b"\x00\x05"), ("I", struct.pack(">i", 5)),
     ("i", struct.pack(">I", 5)), ("l", struct.pack(">q", 5))],
)  # fmt: skip
def test_every_width_of_integer_will_do(wire: WireClient, queue: Maker, kind: str, octets: bytes) -> None:
    arguments = field_table(("x-priority", kind, octets))
    wire.call(1, (60, 20, b"\x00\x00" + shortstr(queue()) + shortstr("t") + b"\x00" + arguments), amqp.Basic.ConsumeOk)


@pytest.mark.parametrize(
    "kind, octets, named",
    [
        ("S", longstr("5"), "longstr"),
        ("F", field_table(), "table"),
        ("A", longstr(b""), "array"),
        ("V", b"", "void"),
        ("t", b"\x01", "bool"),
        ("d", struct.pack(">d", 5.0), "double"),
        ("f", struct.pack(">f", 5.0), "float"),
        ("T", struct.pack(">Q", 5), "timestamp"),
        ("D", b"\x00" + struct.pack(">I", 5), "decimal"),
        ("x", longstr(b"5"), "binary"),
    ],
)
def test_anything_else_is_refused(wire: WireClient, queue: Maker, kind: str, octets: bytes, named: str) -> None:
    name = queue()
    arguments = field_table(("x-priority", kind, octets))
    wire.method(1, (60, 20, b"\x00\x00" + shortstr(name) + shortstr("t") + b"\x00" + arguments))
    text = f"invalid arg 'x-priority' for queue '{name}' in vhost '/': \"expected integer, got {named}\""
    wire.expect_channel_close(1, 406, text, *CONSUME)
