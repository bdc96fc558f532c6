"""Time on demand: hours and days pass in milliseconds, and what is due on the way happens in its order."""

from __future__ import annotations

import time
from collections.abc import Callable

import pika
import pika.exceptions
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from rabbitpy_broker.testing import Broker

HOUR = 3_600.0
DAY = 24 * HOUR

OpenChannel = Callable[..., BlockingChannel]


def depth(channel: BlockingChannel, queue: str) -> int:
    return channel.queue_declare(queue, passive=True).method.message_count


def test_a_message_expires_when_its_hour_is_over(tested: Broker, open_channel: OpenChannel):
    channel = open_channel()
    channel.queue_declare("short", arguments={"x-message-ttl": 3_600_000})
    channel.basic_publish("", "short", b"x")
    channel.connection.process_data_events(0)
    tested.assert_published("", "short")
    tested.clock.advance(HOUR - 5)
    assert depth(channel, "short") == 1
    tested.clock.advance(6)
    assert depth(channel, "short") == 0


def test_dead_letters_go_their_way_in_one_advance(tested: Broker, open_channel: OpenChannel):
    """Ten minutes here, twenty there: two queues deep, and each death has its own time."""
    channel = open_channel(confirms=True)
    channel.queue_declare("last")
    ways = {"first": ("second", 600_000), "second": ("last", 1_200_000)}
    for queue, (to, ttl) in ways.items():
        arguments = {"x-message-ttl": ttl, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": to}
        channel.queue_declare(queue, durable=True, arguments=arguments)
    channel.basic_publish("", "first", b"x", pika.BasicProperties(delivery_mode=2))
    began = tested.clock.now()
    tested.clock.advance(DAY)
    _, properties, body = channel.basic_get("last", auto_ack=True)
    assert body == b"x"
    deaths = [(death["queue"], death["reason"]) for death in properties.headers["x-death"]]
    assert deaths == [("second", "expired"), ("first", "expired")]
    times = [death["time"].timestamp() for death in properties.headers["x-death"]]
    assert times[1] == pytest.approx(began + 600, abs=2)
    assert times[0] == pytest.approx(began + 1_800, abs=2)
    tested.assert_dead_lettered("first", reason="expired")
    tested.assert_dead_lettered("second", reason="expired")


def test_a_queue_that_nobody_uses_expires(tested: Broker, open_channel: OpenChannel):
    channel = open_channel()
    channel.queue_declare("left", arguments={"x-expires": 7_200_000})
    tested.clock.advance(1 * HOUR)
    assert [queue.name for queue in tested.queues()] == ["left"]
    tested.clock.advance(1 * HOUR + 1)
    assert tested.queues() == []


def test_a_delayed_message_comes_when_it_is_due(tested: Broker, open_channel: OpenChannel):
    channel = open_channel(confirms=True)
    channel.exchange_declare("later", "x-delayed-message", durable=True, arguments={"x-delayed-type": "direct"})
    channel.queue_declare("due", durable=True)
    channel.queue_bind("due", "later", "key")
    for days in (3, 1):
        headers = {"x-delay": days * 86_400_000}
        channel.basic_publish("later", "key", b"%d" % days, pika.BasicProperties(headers=headers, delivery_mode=2))
    tested.clock.advance(2 * DAY)
    assert depth(channel, "due") == 1
    tested.clock.advance(2 * DAY)
    assert [channel.basic_get("due", auto_ack=True)[2] for _ in range(2)] == [b"1", b"3"]


def test_a_delivery_that_nobody_acks_times_out(tested: Broker, open_channel: OpenChannel):
    """RabbitMQ's half an hour."""
    channel = open_channel()
    channel.queue_declare("jobs")
    channel.basic_publish("", "jobs", b"x")
    assert channel.basic_get("jobs")[2] == b"x"
    tested.clock.advance(20 * 60)
    channel.connection.process_data_events(0)
    assert channel.is_open
    tested.clock.advance(20 * 60)
    with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="delivery acknowledgement on channel 1 timed out"):
        channel.basic_get("jobs")
    assert depth(channel.connection.channel(), "jobs") == 1


def test_clients_that_live_are_not_given_up(tested: Broker, open_channel: OpenChannel):
    channel = open_channel(heartbeat=10)
    tested.clock.advance(DAY)
    tested.clock.advance(DAY)
    channel.queue_declare("still there")


def test_clients_that_are_silent_are_given_up_by_their_heartbeats(tested: Broker, open_channel: OpenChannel):
    channel = open_channel(heartbeat=10)
    channel.queue_declare("mine", exclusive=True)
    tested.clock.advance(15, silent_clients=True)
    assert [queue.name for queue in tested.queues()] == ["mine"]
    tested.clock.advance(60, silent_clients=True)
    assert tested.queues() == []
    with pytest.raises(pika.exceptions.AMQPConnectionError):
        channel.queue_declare("again")


def test_a_half_open_client_is_given_up_and_its_messages_expire_afterwards(tested: Broker, open_channel: OpenChannel):
    """Within one advance: first the heartbeats are missed, then the message is back and its time goes on."""
    holder, other = open_channel(heartbeat=10, client_properties={"connection_name": "holder"}), open_channel()
    arguments = {"x-message-ttl": 600_000, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    other.queue_declare("jobs", arguments=arguments)
    other.queue_declare("dead")
    other.basic_publish("", "jobs", b"x")
    assert holder.basic_get("jobs")[2] == b"x"
    tested.trouble.half_open(of="holder")
    tested.clock.advance(20)
    assert tested.queues()[1].unacked == 1
    tested.clock.advance(60)
    assert tested.queues()[1].ready == 1
    tested.clock.advance(HOUR)
    assert depth(other, "dead") == 1


def test_a_month_passes_in_milliseconds(tested: Broker, open_channel: OpenChannel):
    channel = open_channel()
    channel.queue_declare("q", arguments={"x-message-ttl": 3_600_000})
    for _ in range(100):
        channel.basic_publish("", "q", b"x")
    channel.queue_declare("held")
    channel.basic_publish("", "held", b"x")
    assert depth(channel, "q") == 100
    began = time.perf_counter()
    tested.clock.advance(30 * DAY)
    assert time.perf_counter() - began < 5
    assert depth(channel, "q") == 0
    assert tested.clock.now() > time.time() + 29 * DAY


def test_time_does_not_go_back(tested: Broker):
    with pytest.raises(ValueError, match="only goes forward"):
        tested.clock.advance(-1)


def test_an_advance_survives_a_restart(tested: Broker, open_channel: OpenChannel):
    channel = open_channel(confirms=True)
    channel.queue_declare("q", durable=True, arguments={"x-message-ttl": 7_200_000})
    channel.basic_publish("", "q", b"x", pika.BasicProperties(delivery_mode=2))
    tested.clock.advance(HOUR)
    tested.restart()
    assert [queue.ready for queue in tested.queues()] == [1]
    tested.clock.advance(HOUR)
    assert [queue.ready for queue in tested.queues()] == [0]


async def test_in_the_loop_that_runs_an_advance_is_over_when_it_returns():
    import aio_pika

    async with Broker() as broker:
        connection = await aio_pika.connect(broker.url)
        async with connection:
            channel = await connection.channel()
            queue = await channel.declare_queue("q", arguments={"x-message-ttl": 3_600_000})
            await channel.default_exchange.publish(aio_pika.Message(b"x"), "q")
            assert broker.queues()[0].ready == 1
            broker.clock.advance(HOUR + 1)
            assert broker.queues()[0].ready == 0
            assert await queue.get(fail=False) is None
