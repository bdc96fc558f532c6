"""Methods that a client sends in one write: what came first is done first, and is seen by what comes behind it.

Ten messages are in the queue; the consumer `c` has the first five unacked, which is all that it may have.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import pamqp.commands as amqp
import pytest
from pamqp.base import Frame as Command

from behaviour.helpers import read_anything, wire_deliveries
from wire_client import FRAME_END, METHOD, Delivered, WireClient, method_payload

Maker = Callable[..., str]

CANCEL = amqp.Basic.Cancel(consumer_tag="c")


def ack(tag: int, multiple: bool = False) -> Command:
    return amqp.Basic.Ack(delivery_tag=tag, multiple=multiple)


def reject(tag: int, requeue: bool) -> Command:
    return amqp.Basic.Reject(delivery_tag=tag, requeue=requeue)


def send(client: WireClient, *methods: Command) -> None:
    """All of them in one write."""
    parts = [method_payload(method) for method in methods]
    client.send(b"".join(struct.pack(">BHI", METHOD, 1, len(part)) + part + FRAME_END for part in parts))


def answers(client: WireClient, count: int) -> list[Command | Delivered]:
    return [read_anything(client, 1) for _ in range(count)]


def bodies(found: list[Command | Delivered], kind: type[Command] = amqp.Basic.Deliver) -> list[bytes]:
    return [one.body for one in found if isinstance(one, Delivered) and isinstance(one.method, kind)]


def the(found: list[Command | Delivered], kind: type[Any]) -> Any:
    (one,) = [one for one in found if isinstance(one, kind)]
    return one


@pytest.fixture
def busy(wire: WireClient, queue: Maker) -> str:
    """The queue's name; the consumer is on channel 1 of `wire`."""
    name = queue()
    wire.call(1, amqp.Confirm.Select(), amqp.Confirm.SelectOk)
    for number in range(10):
        wire.publish(1, "", name, b"%d" % number)
    settled = 0
    while settled < 10:
        settled = wire.expect(1, amqp.Basic.Ack).delivery_tag
    wire.call(1, amqp.Basic.Qos(prefetch_count=5), amqp.Basic.QosOk)
    wire.call(1, amqp.Basic.Consume(queue=name, consumer_tag="c"), amqp.Basic.ConsumeOk)
    assert [one.body for one in wire_deliveries(wire, 1, 5)] == [b"%d" % number for number in range(5)]
    return name


@pytest.mark.parametrize(
    "before, filled",
    [
        ([ack(1), ack(2)], [b"5", b"6"]),
        ([ack(3, multiple=True)], [b"5", b"6", b"7"]),
        ([reject(1, requeue=False)], [b"5"]),
        ([reject(1, requeue=True)], [b"0"]),
        ([], []),
    ],
    ids=["acks", "ack of several", "reject", "requeue", "nothing"],
)
def test_places_that_were_freed_before_a_cancel_are_filled_before_its_answer(
    wire: WireClient, busy: str, before: list[Command], filled: list[bytes]
) -> None:
    send(wire, *before, CANCEL)
    found = answers(wire, len(filled) + 1)
    assert bodies(found) == filled
    assert isinstance(found[-1], amqp.Basic.CancelOk)
    wire.expect_silence(1)


def test_other_consumer_does_not_come_between_an_ack_and_a_cancel(
    wire: WireClient, raw: Callable[..., WireClient], busy: str
) -> None:
    other = raw().open()
    other.open_channel(1)
    send(wire, ack(1), ack(2), CANCEL)
    assert bodies(answers(wire, 3)) == [b"5", b"6"]
    other.call(1, amqp.Basic.Consume(queue=busy, no_ack=True), amqp.Basic.ConsumeOk)
    assert [one.body for one in wire_deliveries(other, 1, 3)] == [b"7", b"8", b"9"]


def test_cancel_of_nobody_fills_nothing_but_what_is_free(wire: WireClient, busy: str) -> None:
    send(wire, ack(1), amqp.Basic.Cancel(consumer_tag="nobody"))
    found = answers(wire, 2)
    assert bodies(found) == [b"5"]
    the(found, amqp.Basic.CancelOk)


def test_get_takes_what_the_consumer_may_not_have_yet(wire: WireClient, busy: str) -> None:
    send(wire, ack(1), ack(2), amqp.Basic.Get(queue=busy, no_ack=True))
    found = answers(wire, 3)
    assert (bodies(found), bodies(found, amqp.Basic.GetOk)) == ([b"5", b"6"], [b"7"])
    (got,) = [one.method for one in found if isinstance(one, Delivered) and isinstance(one.method, amqp.Basic.GetOk)]
    assert (got.redelivered, got.message_count) == (False, 2)


def test_requeued_message_is_the_consumers_again_before_a_get(wire: WireClient, busy: str) -> None:
    send(wire, reject(1, requeue=True), amqp.Basic.Get(queue=busy, no_ack=True))
    found = answers(wire, 2)
    assert (bodies(found), bodies(found, amqp.Basic.GetOk)) == ([b"0"], [b"5"])


def test_purge_leaves_what_the_consumer_may_have(wire: WireClient, busy: str) -> None:
    send(wire, ack(1), ack(2), amqp.Queue.Purge(queue=busy))
    found = answers(wire, 3)
    assert (bodies(found), the(found, amqp.Queue.PurgeOk).message_count) == ([b"5", b"6"], 3)


def test_delete_counts_what_the_consumer_may_not_have(wire: WireClient, busy: str) -> None:
    send(wire, ack(1), ack(2), amqp.Queue.Delete(queue=busy))
    found = answers(wire, 3)
    assert (bodies(found), the(found, amqp.Queue.DeleteOk).message_count) == ([b"5", b"6"], 3)


def test_queue_is_empty_for_a_delete_when_the_consumer_may_have_all(wire: WireClient, busy: str) -> None:
    send(wire, ack(5, multiple=True), amqp.Queue.Delete(queue=busy, if_empty=True))
    found = answers(wire, 6)
    assert (bodies(found), the(found, amqp.Queue.DeleteOk).message_count) == ([b"5", b"6", b"7", b"8", b"9"], 0)


@pytest.mark.own
def test_consumer_without_acks_that_is_cancelled_at_once_loses_nothing(
    wire: WireClient, raw: Callable[..., WireClient], busy: str
) -> None:
    """RabbitMQ ends the connection with an internal error."""
    client = raw().open()
    client.open_channel(1)
    send(client, amqp.Basic.Consume(queue=busy, consumer_tag="c", no_ack=True), CANCEL)
    client.expect(1, amqp.Basic.ConsumeOk)
    client.expect(1, amqp.Basic.CancelOk)
    count = wire.call(1, amqp.Queue.Declare(queue=busy, passive=True), amqp.Queue.DeclareOk).message_count
    assert count == 5
