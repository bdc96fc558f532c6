"""x-delivery-limit: a message that was returned too often is dead-lettered, or dropped, instead of being requeued."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from behaviour.helpers import Inbox, confirming, fence, fill, ready, take_all, take_all_flagged, wait_until
from broker_process import BrokerProcess
from support import eventually
from wire_client import WireClient

pytestmark = pytest.mark.differs("RabbitMQ has x-delivery-limit on quorum queues only")

Maker = Callable[..., str]
Connect = Callable[..., pika.BlockingConnection]


@pytest.fixture
def channel(connection: pika.BlockingConnection) -> BlockingChannel:
    """In confirm mode: what was published has reached its queues when basic_publish returns."""
    return confirming(connection)


def limited(limit: int, target: str | None = None) -> dict[str, Any]:
    arguments: dict[str, Any] = {"x-delivery-limit": limit}
    if target is not None:
        arguments |= {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": target}
    return arguments


def returned(channel: BlockingChannel, queue: str) -> bool:
    """Gets the next message and gives it back; False when there is none."""
    method = channel.basic_get(queue)[0]
    if method is None:
        return False
    channel.basic_nack(method.delivery_tag)
    fence(channel, queue)
    return True


@pytest.mark.parametrize("limit", [1, 3])
def test_message_is_redelivered_as_often_as_the_limit_says_and_then_dropped(
    channel: BlockingChannel, queue: Maker, limit: int
) -> None:
    name = queue(arguments=limited(limit))
    fill(channel, name, 1)
    assert [returned(channel, name) for _ in range(limit + 2)] == [True] * (limit + 1) + [False]
    channel.queue_delete(name, if_empty=True)


def test_limit_zero_allows_no_redelivery(channel: BlockingChannel, queue: Maker) -> None:
    name = queue(arguments=limited(0))
    fill(channel, name, 1)
    assert [returned(channel, name) for _ in range(2)] == [True, False]


def test_message_over_the_limit_is_dead_lettered(channel: BlockingChannel, queue: Maker) -> None:
    target = queue()
    name = queue(arguments=limited(2, target))
    fill(channel, name, 1)
    for _ in range(3):
        assert ready(channel, target) == 0
        assert returned(channel, name)
    eventually(lambda: ready(channel, target) == 1)
    _, properties, body = channel.basic_get(target, auto_ack=True)
    entry = properties.headers["x-death"][0]
    assert (body, entry["reason"], entry["count"], entry["queue"]) == (b"0", "delivery_limit", 1, name)
    assert properties.headers["x-first-death-reason"] == "delivery_limit"


@pytest.mark.parametrize("how", ["reject", "recover", "close the channel", "close the connection"])
def test_every_way_of_returning_counts(connect: Connect, channel: BlockingChannel, queue: Maker, how: str) -> None:
    target = queue()
    name = queue(arguments=limited(2, target))
    fill(channel, name, 1)
    for _ in range(3):
        eventually(lambda: ready(channel, name) == 1)
        connection = connect()
        getting = connection.channel()
        tag = getting.basic_get(name)[0].delivery_tag
        if how == "reject":
            getting.basic_reject(tag, requeue=True)
        elif how == "recover":
            getting.basic_recover(requeue=True)
        elif how == "close the channel":
            getting.close()
        if how != "close the connection" and getting.is_open:
            fence(getting, name)
        connection.close()
    eventually(lambda: ready(channel, target) == 1)
    assert ready(channel, name) == 0


def test_consumer_that_dies_with_it_counts(
    raw: Callable[..., WireClient], connect: Connect, channel: BlockingChannel, queue: Maker
) -> None:
    target = queue()
    name = queue(arguments=limited(1, target))
    fill(channel, name, 1)
    for _ in range(2):
        connection = connect()
        inbox = Inbox(connection.channel(), name)
        inbox.wait_for(1)
        connection.close()
    eventually(lambda: ready(channel, target) == 1)


def test_consumer_that_nacks_sees_it_once_more_than_the_limit(channel: BlockingChannel, queue: Maker) -> None:
    target = queue()
    name = queue(arguments=limited(5, target))
    taken: list[bool] = []

    def nack(_: Any, method: Any, __: Any, ___: bytes) -> None:
        taken.append(method.redelivered)
        channel.basic_nack(method.delivery_tag)

    channel.basic_consume(name, nack)
    fill(channel, name, 1)
    wait_until(lambda: ready(channel, target) == 1, channel)
    assert taken == [False] + [True] * 5


def test_each_message_is_counted_by_itself(channel: BlockingChannel, queue: Maker) -> None:
    target = queue()
    name = queue(arguments=limited(1, target))
    fill(channel, name, 3)
    for _ in range(2):
        returned(channel, name)
    eventually(lambda: ready(channel, target) == 1)
    assert take_all(channel, target) == [b"0"]
    assert take_all_flagged(channel, name) == [(False, b"1"), (False, b"2")]


def test_several_returned_at_once_leave_in_their_order(channel: BlockingChannel, queue: Maker) -> None:
    target = queue()
    name = queue(arguments=limited(1, target))
    bodies = fill(channel, name, 20)
    for _ in range(2):
        for _ in range(20):
            tag = channel.basic_get(name)[0].delivery_tag
        channel.basic_nack(tag, multiple=True)
        fence(channel, name)
    eventually(lambda: ready(channel, target) == 20)
    assert take_all(channel, target) == bodies


def test_rejected_message_has_the_reason_rejected(channel: BlockingChannel, queue: Maker) -> None:
    target = queue()
    name = queue(arguments=limited(1, target))
    fill(channel, name, 1)
    returned(channel, name)
    channel.basic_nack(channel.basic_get(name)[0].delivery_tag, requeue=False)
    eventually(lambda: ready(channel, target) == 1)
    headers = channel.basic_get(target, auto_ack=True)[1].headers
    assert headers["x-death"][0]["reason"] == "rejected"


def test_letter_starts_to_count_anew_in_its_next_queue(channel: BlockingChannel, queue: Maker) -> None:
    target = queue(arguments=limited(1))
    name = queue(arguments=limited(1, target))
    fill(channel, name, 1)
    for _ in range(2):
        returned(channel, name)
    eventually(lambda: ready(channel, target) == 1)
    assert [returned(channel, target) for _ in range(3)] == [True, True, False]


def test_without_a_limit_it_goes_on_for_ever(channel: BlockingChannel, queue: Maker) -> None:
    name = queue()
    fill(channel, name, 1)
    assert all(returned(channel, name) for _ in range(50))
    assert take_all_flagged(channel, name) == [(True, b"0")]


def test_limit_holds_in_a_priority_queue(channel: BlockingChannel, queue: Maker) -> None:
    target = queue()
    name = queue(arguments={**limited(1, target), "x-max-priority": 5})
    channel.basic_publish("", name, b"low", pika.BasicProperties(priority=1))
    channel.basic_publish("", name, b"high", pika.BasicProperties(priority=5))
    for _ in range(2):
        returned(channel, name)
    eventually(lambda: ready(channel, target) == 1)
    assert (take_all(channel, target), take_all(channel, name)) == ([b"high"], [b"low"])


def test_other_dead_letters_of_the_queue_are_as_ever(channel: BlockingChannel, queue: Maker) -> None:
    target = queue()
    name = queue(arguments={**limited(5, target), "x-message-ttl": 100})
    fill(channel, name, 2)
    eventually(lambda: ready(channel, target) == 2)
    assert channel.basic_get(target, auto_ack=True)[1].headers["x-death"][0]["reason"] == "expired"


@pytest.mark.own
def test_limit_is_kept_over_a_restart(own_broker: Callable[..., BrokerProcess], connect: Connect) -> None:
    """The limit is; how often a message was returned is not promised, so it is returned as often as the limit says again."""
    own = own_broker()
    channel = confirming(connect(to=own))
    for name in ("target", "q"):
        channel.queue_declare(name, durable=True, arguments=limited(1, "target") if name == "q" else None)
    channel.basic_publish("", "q", b"x", pika.BasicProperties(delivery_mode=2))
    own.restart()
    channel = confirming(connect(to=own))
    eventually(lambda: not returned(channel, "q"))
    eventually(lambda: ready(channel, "target") == 1)
