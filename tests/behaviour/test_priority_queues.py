"""x-max-priority: the message of the highest priority is delivered first, and within a priority the oldest."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pika
import pika.exceptions
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from behaviour.helpers import Inbox, confirming, fence, ready, take_all, take_all_flagged
from broker_process import BrokerProcess
from support import eventually

Maker = Callable[..., str]
Connect = Callable[..., pika.BlockingConnection]


@pytest.fixture
def channel(connection: pika.BlockingConnection) -> BlockingChannel:
    """In confirm mode: what was published has reached its queues when basic_publish returns."""
    return confirming(connection)


def prioritised(highest: int = 10, **arguments: Any) -> dict[str, Any]:
    limits = {"x-" + key.replace("_", "-"): value for key, value in arguments.items()}
    return {"x-max-priority": highest, **limits}


def publish(channel: BlockingChannel, queue: str, *priorities: int | None, persistent: bool = False) -> None:
    """Messages of these priorities, each with its place in the row and its priority as its body: `0:5`."""
    for number, priority in enumerate(priorities):
        properties = pika.BasicProperties(priority=priority, delivery_mode=2 if persistent else 1)
        channel.basic_publish("", queue, b"%d:%s" % (number, str(priority).encode()), properties)


# --- the order ---------------------------------------------------------------------------------------------------------


def test_highest_priority_comes_first(channel: BlockingChannel, queue: Maker) -> None:
    name = queue(arguments=prioritised())
    publish(channel, name, 1, 5, 10, 3, 0)
    assert take_all(channel, name) == [b"2:10", b"1:5", b"3:3", b"0:1", b"4:0"]


def test_consumer_gets_them_in_that_order(channel: BlockingChannel, queue: Maker) -> None:
    name = queue(arguments=prioritised())
    publish(channel, name, 1, 5, 10, 3, 0)
    assert Inbox(channel, name).wait_for(5) == [b"2:10", b"1:5", b"3:3", b"0:1", b"4:0"]


def test_oldest_comes_first_within_a_priority(channel: BlockingChannel, queue: Maker) -> None:
    name = queue(arguments=prioritised())
    publish(channel, name, 1, 2, 1, 2, 1, 2)
    assert take_all(channel, name) == [b"1:2", b"3:2", b"5:2", b"0:1", b"2:1", b"4:1"]


def test_priority_above_the_highest_counts_as_the_highest(channel: BlockingChannel, queue: Maker) -> None:
    name = queue(arguments=prioritised(3))
    publish(channel, name, 2, 3, 200, 3)
    assert take_all(channel, name) == [b"1:3", b"2:200", b"3:3", b"0:2"]


def test_message_without_a_priority_has_zero(channel: BlockingChannel, queue: Maker) -> None:
    name = queue(arguments=prioritised())
    publish(channel, name, None, 0, 1, None)
    assert take_all(channel, name) == [b"2:1", b"0:None", b"1:0", b"3:None"]


def test_there_may_be_256_priorities(channel: BlockingChannel, queue: Maker) -> None:
    name = queue(arguments=prioritised(255))
    publish(channel, name, *range(256))
    assert take_all(channel, name) == [b"%d:%d" % (number, number) for number in reversed(range(256))]


@pytest.mark.parametrize("arguments", [{}, {"x-max-priority": 0}], ids=["absent", "0"])
def test_queue_of_one_priority_is_plain(channel: BlockingChannel, queue: Maker, arguments: dict[str, int]) -> None:
    name = queue(arguments=arguments)
    publish(channel, name, 1, 3, 2)
    assert take_all(channel, name) == [b"0:1", b"1:3", b"2:2"]


def test_priority_is_delivered_as_it_was_published(channel: BlockingChannel, queue: Maker) -> None:
    name = queue(arguments=prioritised(3))
    publish(channel, name, 200, None)
    assert [channel.basic_get(name, auto_ack=True)[1].priority for _ in range(2)] == [200, None]


def test_order_holds_between_publishes_and_gets(channel: BlockingChannel, queue: Maker) -> None:
    name = queue(arguments=prioritised())
    publish(channel, name, 1, 5)
    assert channel.basic_get(name, auto_ack=True)[2] == b"1:5"
    channel.basic_publish("", name, b"late", pika.BasicProperties(priority=3))
    assert take_all(channel, name) == [b"late", b"0:1"]


def test_consumer_that_may_take_one_gets_the_highest_each_time(channel: BlockingChannel, queue: Maker) -> None:
    name = queue(arguments=prioritised())
    channel.basic_qos(prefetch_count=1)
    inbox = Inbox(channel, name)
    publish(channel, name, 1, 2, 3, 4)
    for count in range(1, 5):
        inbox.wait_for(count)
        inbox.ack(inbox.deliveries[-1].tag)
    assert inbox.bodies == [b"0:1", b"3:4", b"2:3", b"1:2"]


def test_waiting_consumers_get_them_as_they_come(channel: BlockingChannel, queue: Maker) -> None:
    inbox = Inbox(channel, queue(arguments=prioritised()), auto_ack=True)
    publish(channel, inbox.queue, 1, 5, 3)
    assert inbox.wait_for(3) == [b"0:1", b"1:5", b"2:3"]


# --- requeued ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["nack", "recover", "close"])
def test_requeued_messages_return_to_their_places(
    channel: BlockingChannel, connect: Connect, queue: Maker, how: str
) -> None:
    name = queue(arguments=prioritised())
    publish(channel, name, 1, 3, 2, 3, 1)
    getting = connect().channel()
    for _ in range(4):
        tag = getting.basic_get(name)[0].delivery_tag
    channel.basic_publish("", name, b"new", pika.BasicProperties(priority=3))
    if how == "nack":
        getting.basic_nack(tag, multiple=True)
        fence(getting, name)
    elif how == "recover":
        getting.basic_recover(requeue=True)
        fence(getting, name)
    else:
        getting.close()
    eventually(lambda: ready(channel, name) == 6)
    assert take_all_flagged(channel, name) == [
        (True, b"1:3"), (True, b"3:3"), (False, b"new"), (True, b"2:2"), (True, b"0:1"), (False, b"4:1"),
    ]  # fmt: skip


def test_acks_and_requeues_of_mixed_priorities_find_their_messages(channel: BlockingChannel, queue: Maker) -> None:
    name = queue(arguments=prioritised())
    publish(channel, name, *[number % 4 for number in range(40)])
    tags = [channel.basic_get(name)[0].delivery_tag for _ in range(40)]
    for tag in tags[::2]:
        channel.basic_ack(tag)
    for tag in tags[1::2]:
        channel.basic_nack(tag)
    fence(channel, name)
    in_order = sorted(range(40), key=lambda number: (-(number % 4), number))
    assert take_all(channel, name) == [b"%d:%d" % (number, number % 4) for number in in_order[1::2]]


# --- counts ------------------------------------------------------------------------------------------------------------


def test_declare_purge_and_delete_count_all_priorities(channel: BlockingChannel, queue: Maker) -> None:
    name = queue(arguments=prioritised())
    publish(channel, name, 1, 2, 3, 3)
    assert ready(channel, name) == 4
    assert channel.basic_get(name)[0].message_count == 3
    assert channel.queue_purge(name).method.message_count == 3
    assert ready(channel, name) == 0
    publish(channel, name, 5, 0)
    assert channel.queue_delete(name).method.message_count == 2


def test_delete_if_empty_sees_every_priority(channel: BlockingChannel, queue: Maker) -> None:
    name = queue(arguments=prioritised())
    publish(channel, name, 7)
    with pytest.raises(pika.exceptions.ChannelClosedByBroker) as caught:
        channel.queue_delete(name, if_empty=True)
    assert caught.value.reply_code == 406


def test_messages_after_a_purge_are_in_order(channel: BlockingChannel, queue: Maker) -> None:
    name = queue(arguments=prioritised())
    publish(channel, name, 5, 5, 1)
    channel.queue_purge(name)
    publish(channel, name, 1, 5)
    assert take_all(channel, name) == [b"1:5", b"0:1"]


# --- with limits, times to live and dead letters ------------------------------------------------------------------------


def test_head_is_dropped_which_is_the_oldest_of_the_highest_priority(channel: BlockingChannel, queue: Maker) -> None:
    name = queue(arguments=prioritised(max_length=3))
    publish(channel, name, 5, 5, 1, 3)
    assert take_all(channel, name) == [b"1:5", b"3:3", b"2:1"]


def test_new_message_of_the_highest_priority_is_dropped_itself(channel: BlockingChannel, queue: Maker) -> None:
    name = queue(arguments=prioritised(max_length=2))
    publish(channel, name, 1, 3, 9)
    assert take_all(channel, name) == [b"1:3", b"0:1"]


def test_bytes_of_all_priorities_are_counted(channel: BlockingChannel, queue: Maker) -> None:
    name = queue(arguments=prioritised(max_length_bytes=6))
    publish(channel, name, 5, 1, 3)
    assert take_all(channel, name) == [b"2:3", b"1:1"]


def test_full_queue_refuses_publishes_of_any_priority(channel: BlockingChannel, queue: Maker) -> None:
    name = queue(arguments=prioritised(max_length=1, overflow="reject-publish"))
    publish(channel, name, 1)
    with pytest.raises(pika.exceptions.NackError):
        publish(channel, name, 9)
    assert take_all(channel, name) == [b"0:1"]


def test_dropped_message_is_dead_lettered(channel: BlockingChannel, queue: Maker) -> None:
    target = queue(arguments=prioritised())
    name = queue(
        arguments=prioritised(max_length=1, dead_letter_exchange="", dead_letter_routing_key=target)
    )
    publish(channel, name, 5, 1, 9, 3)
    eventually(lambda: ready(channel, target) == 3)
    assert take_all(channel, target) == [b"2:9", b"0:5", b"3:3"]
    assert take_all(channel, name) == [b"1:1"]


def test_lower_priority_does_not_expire_behind_a_higher_one_that_lives(channel: BlockingChannel, queue: Maker) -> None:
    """The queue has one head. What has expired behind it is not delivered when it comes there."""
    name, probe = queue(arguments=prioritised()), queue()
    publish(channel, name, 9)
    channel.basic_publish("", name, b"short", pika.BasicProperties(priority=1, expiration="50"))
    channel.basic_publish("", probe, b"as long as the short one", pika.BasicProperties(expiration="50"))
    eventually(lambda: ready(channel, probe) == 0)
    assert ready(channel, name) == 2
    assert channel.basic_get(name, auto_ack=True)[2] == b"0:9"
    eventually(lambda: ready(channel, name) == 0)


def test_expired_head_makes_way_for_the_lower_priorities(channel: BlockingChannel, queue: Maker) -> None:
    name = queue(arguments=prioritised())
    channel.basic_publish("", name, b"high", pika.BasicProperties(priority=9, expiration="300"))
    channel.basic_publish("", name, b"low", pika.BasicProperties(priority=1, expiration="100"))
    channel.basic_publish("", name, b"stays", pika.BasicProperties(priority=1))
    eventually(lambda: ready(channel, name) == 1)
    assert take_all(channel, name) == [b"stays"]


def test_queue_time_to_live_holds_for_all_priorities(channel: BlockingChannel, queue: Maker) -> None:
    target = queue()
    name = queue(
        arguments=prioritised(message_ttl=200, dead_letter_exchange="", dead_letter_routing_key=target)
    )
    publish(channel, name, 1, 5, None, 9)
    eventually(lambda: ready(channel, target) == 4)
    assert ready(channel, name) == 0
    assert sorted(take_all(channel, target)) == [b"0:1", b"1:5", b"2:None", b"3:9"]


def test_messages_of_a_transaction_are_in_order(channel: BlockingChannel, connect: Connect, queue: Maker) -> None:
    name = queue(arguments=prioritised())
    tx = connect().channel()
    tx.tx_select()
    publish(tx, name, 1, 9, 5)
    tx.tx_commit()
    assert take_all(channel, name) == [b"1:9", b"2:5", b"0:1"]


# --- durable -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["default", "lazy"])
def test_persistent_messages_come_in_order(channel: BlockingChannel, queue: Maker, mode: str) -> None:
    name = queue(durable=True, arguments=prioritised(queue_mode=mode))
    publish(channel, name, 1, 5, 3, 5, persistent=True)
    assert take_all(channel, name) == [b"1:5", b"3:5", b"2:3", b"0:1"]


@pytest.mark.own
@pytest.mark.parametrize("how", ["stop", "crash"])
def test_order_and_counts_survive_a_restart(
    own_broker: Callable[..., BrokerProcess], connect: Connect, how: str
) -> None:
    own = own_broker()
    channel = confirming(connect(to=own))
    channel.queue_declare("q", durable=True, arguments=prioritised())
    priorities = [1, 5, 3, 5, None, 9, 1]
    publish(channel, "q", *priorities, persistent=True)
    unacked = channel.basic_get("q")
    assert unacked[2] == b"5:9"
    channel.basic_ack(channel.basic_get("q")[0].delivery_tag)
    channel.basic_publish("", "q", b"late", pika.BasicProperties(priority=4, delivery_mode=2))
    if how == "crash":
        own.crash()
        own.start()
    else:
        own.restart()
    channel = confirming(connect(to=own))
    bodies = take_all(channel, "q")
    if how == "crash" and b"1:5" in bodies:  # its ack may not have reached the disk
        bodies.remove(b"1:5")
    assert bodies == [b"5:9", b"3:5", b"late", b"2:3", b"0:1", b"6:1", b"4:None"]


@pytest.mark.own
def test_deleted_priority_queue_does_not_come_back(
    own_broker: Callable[..., BrokerProcess], connect: Connect
) -> None:
    own = own_broker()
    channel = confirming(connect(to=own))
    channel.queue_declare("q", durable=True, arguments=prioritised())
    publish(channel, "q", 1, 5, 9, persistent=True)
    channel.queue_delete("q")
    channel.queue_declare("q", durable=True, arguments=prioritised())
    own.restart()
    channel = confirming(connect(to=own))
    assert take_all(channel, "q") == []
