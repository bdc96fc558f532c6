"""What assertions say when they fail, what they wait for, and which vhost they mean."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from rabbitpy_broker.testing import Broker

OpenChannel = Callable[..., BlockingChannel]
AT_ONCE = 0.02


def said(assertion: Callable[[], object]) -> str:
    with pytest.raises(AssertionError) as failed:
        assertion()
    return str(failed.value)


def test_a_message_that_was_not_published(tested: Broker, open_channel: OpenChannel):
    assert said(lambda: tested.assert_published("orders", "new", within=AT_ONCE)) == (
        "no message was published to exchange 'orders' with routing key 'new' within 0.02 s. Published in vhost '/':\n  nothing"
    )
    channel = open_channel(confirms=True)
    channel.queue_declare("q")
    channel.basic_publish("", "q", b'{"order": 17}')
    channel.basic_publish("", "q", bytes(500))
    text = said(lambda: tested.assert_published("", "q", body="18", count=2, within=AT_ONCE))
    assert text.startswith("0 of 2 messages were published to exchange '' with routing key 'q' and body '18' within 0.02 s.")
    assert """  exchange '', routing key 'q': {"order": 17}\n""" in text
    assert text.endswith("... (500 bytes)")


def test_a_message_is_waited_for(tested: Broker, open_channel: OpenChannel):
    channel = open_channel()
    channel.queue_declare("q")
    later = threading.Timer(0.05, lambda: channel.basic_publish("", "q", b"x", pika.BasicProperties(headers={"a": 1})))
    later.start()
    [message] = tested.assert_published("", "q", within=5)
    later.join()
    assert (message.body, message.headers, message.mandatory) == (b"x", {"a": 1}, False)


def test_a_publish_that_was_refused_is_none(tested: Broker, open_channel: OpenChannel):
    channel = open_channel(confirms=True)
    with pytest.raises(pika.exceptions.ChannelClosedByBroker):
        channel.basic_publish("no such exchange", "key", b"x")
    assert "  nothing" in said(lambda: tested.assert_published("no such exchange", "key", within=AT_ONCE))


def test_a_queue_that_is_not_drained(tested: Broker, open_channel: OpenChannel):
    channel = open_channel(confirms=True)
    channel.queue_declare("jobs")
    for body in (b"a", b"b"):
        channel.basic_publish("", "jobs", body)
    channel.basic_get("jobs")
    text = said(lambda: tested.assert_drained("jobs", within=AT_ONCE))
    assert text == (
        "queue 'jobs' is not drained within 0.02 s:\nqueue 'jobs': 1 ready, 1 unacked, no consumer\n  fetched by basic.get: a"
    )
    assert said(lambda: tested.assert_drained("job", within=AT_ONCE)) == (
        "there is no queue 'job' in vhost '/'; queues: 'jobs'"
    )


def test_a_message_that_was_not_acked(tested: Broker, open_channel: OpenChannel):
    channel = open_channel(confirms=True)
    channel.queue_declare("jobs")
    for body in (b"a", b"b", b"c"):
        channel.basic_publish("", "jobs", body)
    method, _, _ = channel.basic_get("jobs")
    channel.basic_nack(method.delivery_tag, requeue=False)
    for _ in range(2):
        method, _, _ = channel.basic_get("jobs")
    channel.basic_ack(method.delivery_tag, multiple=True)
    assert [one.body for one in tested.assert_acked("jobs", count=2)] == [b"b", b"c"]
    text = said(lambda: tested.assert_acked("jobs", body="a", within=AT_ONCE))
    assert text.startswith(
        "no message was acked in queue 'jobs' with body 'a' within 0.02 s. Settled there:\n  nack in 'jobs': a\n"
    )
    assert "  ack in 'jobs': b\n" in text


def test_a_message_that_was_not_dead_lettered(tested: Broker, open_channel: OpenChannel):
    channel = open_channel(confirms=True)
    channel.queue_declare("dead")
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead", "x-max-length": 1}
    channel.queue_declare("jobs", arguments=arguments)
    for body in (b"a", b"b"):
        channel.basic_publish("", "jobs", body)
    tested.assert_dead_lettered("jobs", reason="maxlen")
    text = said(lambda: tested.assert_dead_lettered("jobs", reason="rejected", within=AT_ONCE))
    assert text == (
        "no message was dead-lettered from queue 'jobs', because of 'rejected', within 0.02 s. Dead-lettered in vhost '/':\n"
        "  from 'jobs': maxlen"
    )
    method, _, _ = channel.basic_get("jobs")
    channel.basic_reject(method.delivery_tag, requeue=False)
    tested.assert_dead_lettered("jobs", reason="rejected")


def test_history_can_be_forgotten_and_belongs_to_a_vhost(tested: Broker, open_channel: OpenChannel):
    channel = open_channel(confirms=True)
    channel.queue_declare("q")
    channel.basic_publish("", "q", b"x")
    tested.assert_published("", "q")
    tested.add_vhost("other")
    said(lambda: tested.assert_published("", "q", vhost="other", within=AT_ONCE))
    tested.vhost = "other"
    said(lambda: tested.assert_published("", "q", within=AT_ONCE))
    tested.assert_published("", "q", vhost="/")
    tested.forget_history()
    said(lambda: tested.assert_published("", "q", vhost="/", within=AT_ONCE))


async def test_coroutines_hear_the_same():
    async with Broker() as broker:
        with pytest.raises(AssertionError, match="no message was published to exchange 'x'"):
            await broker.assert_published("x", "y", within=AT_ONCE)
        with pytest.raises(AssertionError, match="there is no queue 'q'"):
            await broker.assert_acked("q", within=AT_ONCE)
        with pytest.raises(AssertionError, match="no message was dead-lettered"):
            await broker.assert_dead_lettered("q", within=AT_ONCE)
