"""Messages that are too old: `expiration` of one message, x-message-ttl of a queue.

An expired message leaves the queue from the head only. Where a test waits for an expiry it looks at the queue from
outside; that an expired message is *not* delivered is shown by what comes in its stead.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import pamqp.commands as amqp
import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from behaviour.helpers import Inbox, confirming, confirms, fence, fill, ready, take_all, wait_until
from broker_process import BrokerProcess
from support import closes_channel, eventually
from wire_client import WireClient

Maker = Callable[..., str]
Connect = Callable[..., pika.BlockingConnection]

LONG = 600_000
PUBLISH = (60, 40)


@pytest.fixture
def channel(connection: pika.BlockingConnection) -> BlockingChannel:
    """In confirm mode: what was published has reached its queues when basic_publish returns."""
    return confirming(connection)


def within(milliseconds: int, persistent: bool = False) -> pika.BasicProperties:
    """The properties of a message that expires in so many milliseconds."""
    return pika.BasicProperties(expiration=str(milliseconds), delivery_mode=2 if persistent else 1)


def wait_for_ready(channel: BlockingChannel, queue: str, count: int, timeout: float = 10.0) -> None:
    eventually(lambda: ready(channel, queue) == count, timeout)


# --- one message's expiration ------------------------------------------------------------------------------------------


def test_message_expires_after_its_expiration_and_not_before(channel: BlockingChannel, queue: Maker) -> None:
    name = queue()
    start = time.monotonic()
    channel.basic_publish("", name, b"x", within(300))
    wait_for_ready(channel, name, 0)
    assert time.monotonic() - start >= 0.29


def test_expiration_is_delivered_as_it_was_published(channel: BlockingChannel, queue: Maker) -> None:
    name = queue()
    channel.basic_publish("", name, b"x", within(LONG))
    assert channel.basic_get(name, auto_ack=True)[1].expiration == str(LONG)


def test_expired_message_is_not_given_to_a_get(channel: BlockingChannel, queue: Maker) -> None:
    name = queue()
    channel.basic_publish("", name, b"short", within(100))
    channel.basic_publish("", name, b"long")
    wait_for_ready(channel, name, 1)
    assert take_all(channel, name) == [b"long"]


def test_expired_message_is_not_given_to_a_consumer(channel: BlockingChannel, queue: Maker) -> None:
    name = queue()
    channel.basic_publish("", name, b"short", within(100))
    channel.basic_publish("", name, b"long")
    wait_for_ready(channel, name, 1)
    inbox = Inbox(channel, name)
    assert inbox.settled() == [b"long"]


def test_message_expires_at_the_head_only(channel: BlockingChannel, queue: Maker) -> None:
    """One that has expired behind one that has not is counted until it comes to the head; it is not delivered then."""
    name, probe = queue(), queue()
    channel.basic_publish("", name, b"long", within(LONG))
    channel.basic_publish("", name, b"short", within(50))
    channel.basic_publish("", probe, b"as long as the short one", within(50))
    wait_for_ready(channel, probe, 0)
    assert ready(channel, name) == 2
    assert channel.basic_get(name, auto_ack=True)[2] == b"long"
    wait_for_ready(channel, name, 0)
    assert take_all(channel, name) == []


def test_messages_behind_the_expired_head_expire_with_it(channel: BlockingChannel, queue: Maker) -> None:
    name = queue()
    for milliseconds in (200, 50, 100):
        channel.basic_publish("", name, b"x", within(milliseconds))
    channel.basic_publish("", name, b"stays")
    channel.basic_publish("", name, b"expired behind it", within(50))
    wait_for_ready(channel, name, 2)
    assert take_all(channel, name)[0] == b"stays"


def test_message_without_expiration_does_not_expire_in_a_plain_queue(channel: BlockingChannel, queue: Maker) -> None:
    name, probe = queue(), queue()
    channel.basic_publish("", name, b"stays")
    channel.basic_publish("", probe, b"x", within(100))
    wait_for_ready(channel, probe, 0)
    assert take_all(channel, name) == [b"stays"]


@pytest.mark.parametrize("milliseconds", [LONG, 315_360_000_000])
def test_far_expirations_are_kept(channel: BlockingChannel, queue: Maker, milliseconds: int) -> None:
    name = queue()
    channel.basic_publish("", name, b"x", within(milliseconds))
    assert take_all(channel, name) == [b"x"]


@pytest.mark.parametrize(
    "expiration, why",
    [
        ("foobar", "no_integer"),
        ("", "no_integer"),
        ("10000foobar", '{leftover_string,"foobar"}'),
        ("1.5", '{leftover_string,".5"}'),
        ("-10", "{value_negative,-10}"),
        ("315360000001", "{value_too_large,315360000001}"),
    ],
)
def test_expiration_that_is_no_time_is_refused(
    channel: BlockingChannel, queue: Maker, expiration: str, why: str
) -> None:
    name = queue()
    with closes_channel(406, f"invalid expiration '{expiration}': {why}"):
        channel.basic_publish("", name, b"x", pika.BasicProperties(expiration=expiration))


# --- the queue's x-message-ttl -----------------------------------------------------------------------------------------


def test_queue_gives_its_messages_a_time_to_live(channel: BlockingChannel, queue: Maker) -> None:
    name = queue(arguments={"x-message-ttl": 200})
    start = time.monotonic()
    fill(channel, name, 10)
    wait_for_ready(channel, name, 0)
    assert time.monotonic() - start >= 0.19


def test_time_to_live_counts_from_the_publish(channel: BlockingChannel, queue: Maker) -> None:
    name = queue(arguments={"x-message-ttl": 1500})
    start = time.monotonic()
    channel.basic_publish("", name, b"first")
    fence(channel, name)
    probe = queue()
    channel.basic_publish("", probe, b"half a second", within(500))
    wait_for_ready(channel, probe, 0)
    channel.basic_publish("", name, b"second")
    second_at = time.monotonic()
    eventually(lambda: ready(channel, name) < 2)
    assert time.monotonic() - start >= 1.49
    wait_for_ready(channel, name, 0)
    assert time.monotonic() - second_at >= 1.49


@pytest.mark.parametrize("of_queue, of_message", [(100, LONG), (LONG, 100)])
def test_smaller_of_both_times_wins(channel: BlockingChannel, queue: Maker, of_queue: int, of_message: int) -> None:
    name = queue(arguments={"x-message-ttl": of_queue})
    channel.basic_publish("", name, b"x", within(of_message))
    wait_for_ready(channel, name, 0)


def test_time_to_live_of_the_queue_is_not_written_into_the_message(channel: BlockingChannel, queue: Maker) -> None:
    name = queue(arguments={"x-message-ttl": LONG})
    channel.basic_publish("", name, b"x")
    assert channel.basic_get(name, auto_ack=True)[1].expiration is None


def test_same_message_expires_in_one_queue_and_stays_in_another(
    channel: BlockingChannel, queue: Maker, exchange: Maker
) -> None:
    fanout = exchange("fanout")
    short, long = queue(arguments={"x-message-ttl": 100}), queue()
    for name in (short, long):
        channel.queue_bind(name, fanout)
    channel.basic_publish(fanout, "", b"x")
    wait_for_ready(channel, short, 0)
    assert take_all(channel, long) == [b"x"]


def test_thousands_expire(channel: BlockingChannel, connection: pika.BlockingConnection, queue: Maker) -> None:
    name = queue(arguments={"x-message-ttl": 300})
    publishing = connection.channel()
    for number in range(5000):
        publishing.basic_publish("", name, b"%d" % number)
    publishing.queue_declare(name, passive=True)
    wait_for_ready(channel, name, 0, timeout=20.0)
    channel.queue_delete(name, if_empty=True)


def test_message_of_several_frames_expires(channel: BlockingChannel, queue: Maker) -> None:
    name = queue(arguments={"x-message-ttl": 200})
    channel.basic_publish("", name, bytes(500_000))
    wait_for_ready(channel, name, 0)


def test_lazy_queue_expires_its_messages(channel: BlockingChannel, queue: Maker) -> None:
    name = queue(durable=True, arguments={"x-message-ttl": 200, "x-queue-mode": "lazy"})
    for _ in range(20):
        channel.basic_publish("", name, bytes(10_000), pika.BasicProperties(delivery_mode=2))
    wait_for_ready(channel, name, 0)


# --- 0 -----------------------------------------------------------------------------------------------------------------

ZERO = [({"x-message-ttl": 0}, None), ({}, within(0))]
ZERO_IDS = ["of the queue", "of the message"]


@pytest.mark.parametrize("arguments, properties", ZERO, ids=ZERO_IDS)
def test_zero_expires_at_once_without_a_consumer(
    channel: BlockingChannel, queue: Maker, arguments: dict[str, int], properties: pika.BasicProperties | None
) -> None:
    name = queue(arguments=arguments)
    channel.basic_publish("", name, b"x", properties)
    wait_for_ready(channel, name, 0)
    assert take_all(channel, name) == []


@pytest.mark.parametrize("arguments, properties", ZERO, ids=ZERO_IDS)
def test_zero_reaches_a_consumer_that_waits(
    channel: BlockingChannel, queue: Maker, arguments: dict[str, int], properties: pika.BasicProperties | None
) -> None:
    name = queue(arguments=arguments)
    inbox = Inbox(channel, name)
    for body in (b"a", b"b", b"c"):
        channel.basic_publish("", name, body, properties)
    assert inbox.wait_for(3) == [b"a", b"b", b"c"]


@pytest.mark.parametrize("arguments, properties", ZERO, ids=ZERO_IDS)
def test_zero_does_not_wait_for_a_consumer_that_may_take_nothing(
    channel: BlockingChannel, queue: Maker, arguments: dict[str, int], properties: pika.BasicProperties | None
) -> None:
    name = queue(arguments=arguments)
    channel.basic_qos(prefetch_count=1)
    inbox = Inbox(channel, name)
    channel.basic_publish("", name, b"taken", properties)
    inbox.wait_for(1)
    channel.basic_publish("", name, b"lost", properties)
    wait_for_ready(channel, name, 0)
    inbox.ack(inbox.deliveries[0].tag)
    assert inbox.settled() == [b"taken"]


@pytest.mark.parametrize("requeue", ["nack", "close"])
def test_zero_is_gone_when_it_is_requeued(
    connect: Connect, channel: BlockingChannel, queue: Maker, requeue: str
) -> None:
    name = queue(arguments={"x-message-ttl": 0})
    consuming = connect().channel()
    inbox = Inbox(consuming, name)
    channel.basic_publish("", name, b"x")
    wait_until(lambda: bool(inbox.bodies), consuming)
    consuming.basic_cancel(inbox.tag)
    if requeue == "nack":
        consuming.basic_nack(inbox.deliveries[0].tag)
        fence(consuming, name)
    else:
        consuming.close()
    assert take_all(channel, name) == []


# --- unacked and requeued messages -------------------------------------------------------------------------------------


def test_unacked_message_does_not_expire(channel: BlockingChannel, queue: Maker) -> None:
    name, probe = queue(), queue()
    channel.basic_publish("", name, b"x", within(1000))
    inbox = Inbox(channel, name)
    inbox.wait_for(1)
    channel.basic_publish("", probe, b"x", within(1100))
    wait_for_ready(channel, probe, 0)
    inbox.ack(inbox.deliveries[0].tag)
    assert inbox.settled() == [b"x"]
    assert channel.is_open


@pytest.mark.parametrize("requeue", ["nack", "reject", "recover", "close"])
def test_message_that_expired_while_unacked_goes_when_it_is_requeued(
    connect: Connect, channel: BlockingChannel, queue: Maker, requeue: str
) -> None:
    name, probe = queue(arguments={"x-message-ttl": 500}), queue()
    getting = connect().channel()
    channel.basic_publish("", name, b"x")
    tag = getting.basic_get(name)[0].delivery_tag
    channel.basic_publish("", probe, b"x", within(600))
    wait_for_ready(channel, probe, 0)
    if requeue == "nack":
        getting.basic_nack(tag)
    elif requeue == "reject":
        getting.basic_reject(tag)
    elif requeue == "recover":
        getting.basic_recover(requeue=True)
    else:
        getting.close()
    if getting.is_open:
        fence(getting, name)
    wait_for_ready(channel, name, 0)
    assert take_all(channel, name) == []


def test_requeued_message_keeps_the_rest_of_its_time(channel: BlockingChannel, queue: Maker) -> None:
    """Requeueing does not start the time anew: a message that is requeued all the while expires as well."""
    name = queue(arguments={"x-message-ttl": 300})
    channel.basic_publish("", name, b"x")

    def given_back() -> bool:
        method = channel.basic_get(name)[0]
        if method is not None:
            channel.basic_nack(method.delivery_tag)
        return method is None

    eventually(given_back)


def test_requeued_message_expires_together_with_those_behind_it(channel: BlockingChannel, queue: Maker) -> None:
    name = queue(arguments={"x-message-ttl": 1000})
    fill(channel, name, 3)
    tag = channel.basic_get(name)[0].delivery_tag
    channel.basic_nack(tag)
    wait_for_ready(channel, name, 0)


def test_messages_expire_while_others_are_unacked(channel: BlockingChannel, queue: Maker) -> None:
    name = queue(arguments={"x-message-ttl": 300})
    channel.basic_qos(prefetch_count=2)
    inbox = Inbox(channel, name)
    fill(channel, name, 5)
    inbox.wait_for(2)
    wait_for_ready(channel, name, 0)
    inbox.ack(*inbox.tags)
    assert inbox.settled() == [b"0", b"1"]


def test_consumer_gets_only_what_has_not_expired(channel: BlockingChannel, queue: Maker) -> None:
    name = queue()
    channel.basic_qos(prefetch_count=1)
    inbox = Inbox(channel, name)
    fill(channel, name, 1)
    inbox.wait_for(1)
    for number in range(10):
        channel.basic_publish("", name, b"short", within(50))
        channel.basic_publish("", name, b"long %d" % number)
    probe = queue()
    channel.basic_publish("", probe, b"x", within(100))
    wait_for_ready(channel, probe, 0)
    for number in range(10):
        inbox.ack(inbox.deliveries[-1].tag)
        inbox.wait_for(number + 2)
    assert inbox.bodies[1:] == [b"long %d" % number for number in range(10)]


# --- with the rest of the protocol -------------------------------------------------------------------------------------


def test_expiring_message_is_confirmed(wire: WireClient, queue: Maker) -> None:
    name = queue(arguments={"x-message-ttl": 0})
    wire.call(1, amqp.Confirm.Select(), amqp.Confirm.SelectOk)
    for _ in range(10):
        wire.publish(1, "", name, b"x")
    assert confirms(wire, 1, upto=10) == [("ack", tag) for tag in range(1, 11)]


def test_persistent_message_that_expires_is_confirmed(channel: BlockingChannel, queue: Maker) -> None:
    name = queue(durable=True, arguments={"x-message-ttl": 0})
    for _ in range(10):
        channel.basic_publish("", name, b"x", pika.BasicProperties(delivery_mode=2))
    wait_for_ready(channel, name, 0)


def test_published_in_a_transaction_it_lives_from_the_commit_on(
    connect: Connect, channel: BlockingChannel, queue: Maker
) -> None:
    name, probe = queue(arguments={"x-message-ttl": 1000}), queue()
    tx = connect().channel()
    tx.tx_select()
    tx.basic_publish("", name, b"by the queue")
    tx.basic_publish("", name, b"by itself", within(1000))
    channel.basic_publish("", probe, b"x", within(1200))
    wait_for_ready(channel, probe, 0)
    committed_at = time.monotonic()
    tx.tx_commit()
    assert ready(channel, name) == 2 or time.monotonic() - committed_at > 0.9
    wait_for_ready(channel, name, 0)
    assert time.monotonic() - committed_at >= 0.99


def test_purge_of_an_expiring_queue_counts_what_is_there(channel: BlockingChannel, queue: Maker) -> None:
    name = queue(arguments={"x-message-ttl": LONG})
    fill(channel, name, 5)
    assert channel.queue_purge(name).method.message_count == 5
    fill(channel, name, 2)
    assert take_all(channel, name) == [b"0", b"1"]


def test_queue_goes_on_after_a_purge_of_what_would_have_expired(channel: BlockingChannel, queue: Maker) -> None:
    name = queue()
    channel.basic_publish("", name, b"x", within(200))
    channel.queue_purge(name)
    channel.basic_publish("", name, b"stays")
    channel.basic_publish("", name, b"x", within(100))
    probe = queue()
    channel.basic_publish("", probe, b"x", within(300))
    wait_for_ready(channel, probe, 0)
    assert take_all(channel, name) == [b"stays"]


def test_delete_counts_what_has_not_expired(channel: BlockingChannel, queue: Maker) -> None:
    name = queue()
    channel.basic_publish("", name, b"short", within(50))
    fill(channel, name, 3)
    wait_for_ready(channel, name, 3)
    assert channel.queue_delete(name).method.message_count == 3


def test_queue_whose_messages_expired_is_empty(channel: BlockingChannel, queue: Maker) -> None:
    name = queue(arguments={"x-message-ttl": 50})
    fill(channel, name, 3)
    wait_for_ready(channel, name, 0)
    assert channel.queue_delete(name, if_empty=True).method.message_count == 0


def test_get_counts_the_remaining_without_the_expired_head(channel: BlockingChannel, queue: Maker) -> None:
    name = queue()
    channel.basic_publish("", name, b"short", within(50))
    fill(channel, name, 3)
    wait_for_ready(channel, name, 3)
    method, _, body = channel.basic_get(name, auto_ack=True)
    assert (body, method.message_count, method.redelivered) == (b"0", 2, False)


def test_get_does_not_count_what_had_expired_behind_the_message(channel: BlockingChannel, queue: Maker) -> None:
    name, probe = queue(), queue()
    channel.basic_publish("", name, b"head")
    for _ in range(2):
        channel.basic_publish("", name, b"short", within(50))
    channel.basic_publish("", name, b"tail")
    channel.basic_publish("", probe, b"as long as the short ones", within(50))
    wait_for_ready(channel, probe, 0)
    assert ready(channel, name) == 4
    method, _, body = channel.basic_get(name, auto_ack=True)
    assert (body, method.message_count) == (b"head", 1)


# --- restarts ----------------------------------------------------------------------------------------------------------


def restarted(own: BrokerProcess, connect: Connect, how: str) -> BlockingChannel:
    """A channel in confirm mode, after `own` was stopped or killed and started again."""
    if how == "crash":
        own.crash()
        own.start()
    else:
        own.restart()
    return confirming(connect(to=own))


@pytest.mark.own
@pytest.mark.parametrize("how", ["stop", "crash"])
def test_what_expired_while_the_broker_was_down_is_gone(
    own_broker: Callable[..., BrokerProcess], connect: Connect, how: str
) -> None:
    own = own_broker()
    channel = confirming(connect(to=own))
    channel.queue_declare("by queue", durable=True, arguments={"x-message-ttl": 200})
    channel.queue_declare("by message", durable=True)
    channel.basic_publish("", "by queue", b"short", pika.BasicProperties(delivery_mode=2))
    channel.basic_publish("", "by message", b"short", within(200, persistent=True))
    channel.basic_publish("", "by message", b"long", within(LONG, persistent=True))
    channel = restarted(own, connect, how)
    wait_for_ready(channel, "by queue", 0)
    wait_for_ready(channel, "by message", 1)
    assert take_all(channel, "by message") == [b"long"]


@pytest.mark.own
@pytest.mark.parametrize("how", ["stop", "crash"])
def test_time_to_live_goes_on_over_a_restart(
    own_broker: Callable[..., BrokerProcess], connect: Connect, how: str
) -> None:
    own = own_broker()
    channel = confirming(connect(to=own))
    channel.queue_declare("q", durable=True, arguments={"x-message-ttl": 5000})
    start = time.monotonic()
    channel.basic_publish("", "q", b"x", pika.BasicProperties(delivery_mode=2))
    channel = restarted(own, connect, how)
    back_at = time.monotonic() - start
    assert ready(channel, "q") == 1 or back_at > 4.9
    wait_for_ready(channel, "q", 0)
    assert time.monotonic() - start >= 4.99


@pytest.mark.own
@pytest.mark.parametrize("how", ["stop", "crash"])
def test_queue_expires_messages_after_a_restart_as_before(
    own_broker: Callable[..., BrokerProcess], connect: Connect, how: str
) -> None:
    own = own_broker()
    channel = confirming(connect(to=own))
    channel.queue_declare("q", durable=True, arguments={"x-message-ttl": 300})
    channel = restarted(own, connect, how)
    start = time.monotonic()
    fill(channel, "q", 3)
    wait_for_ready(channel, "q", 0)
    assert time.monotonic() - start >= 0.29
