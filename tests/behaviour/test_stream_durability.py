"""What a stream still has after a stop and after a crash: every message that was confirmed, at its offset."""

from __future__ import annotations

from collections.abc import Callable

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from behaviour.helpers import confirming
from behaviour.test_streams import Reader, bodies, declare_as, publish
from broker_process import BrokerProcess
from support import eventually

pytestmark = pytest.mark.own

Connect = Callable[..., pika.BlockingConnection]
either_end = pytest.mark.parametrize("end", ["stop", "crash"])


def again(broker: BrokerProcess, end: str, connect: Connect) -> BlockingChannel:
    if end == "crash":
        broker.crash()
    else:
        broker.stop()
    broker.start()
    return confirming(connect(broker))


@either_end
def test_messages_stay_at_their_offsets(own_broker: Callable[..., BrokerProcess], connect: Connect, end: str) -> None:
    broker = own_broker()
    channel = confirming(connect(broker))
    declare_as(channel, "stream", x_max_age="1h", x_max_length_bytes=1_000_000)
    publish(channel, "stream", *bodies(100), delivery_mode=1)
    for round in (1, 2):
        channel = again(broker, end, connect)
        declare_as(channel, "stream", x_max_age="1h", x_max_length_bytes=1_000_000)
        reader = Reader(connect(broker), "stream", x_stream_offset="first", prefetch=1_000)
        publish(channel, "stream", *bodies(100, 100 * round))
        assert reader.wait(100 * (round + 1)).offsets == list(range(100 * (round + 1)))
        assert reader.bodies == bodies(100 * (round + 1))


@either_end
def test_deleted_stream_does_not_come_back(own_broker: Callable[..., BrokerProcess], connect: Connect, end: str) -> None:
    broker = own_broker()
    channel = confirming(connect(broker))
    declare_as(channel, "stream")
    publish(channel, "stream", *bodies(3))
    channel.queue_delete("stream")
    declare_as(channel, "stream")
    publish(channel, "stream", b"new")
    again(broker, end, connect)
    assert Reader(connect(broker), "stream", x_stream_offset="first").wait(1).bodies == [b"new"]


def test_a_policy_limits_what_is_kept(own_broker: Callable[..., BrokerProcess], connect: Connect) -> None:
    broker = own_broker()
    channel = confirming(connect(broker))
    declare_as(channel, "stream", x_max_length_bytes=1_000_000_000)
    broker.ctl("set_policy", "small", "^stream$", '{"max-length-bytes":20000,"stream-max-segment-size-bytes":5000}')
    published = 0

    def kept() -> int:
        return int(channel.queue_declare("stream", passive=True).method.message_count)

    def has_lost_some() -> bool:
        nonlocal published
        publish(channel, "stream", *[b"%5000d" % number for number in range(published, published + 5)])
        published += 5
        return kept() < published

    eventually(has_lost_some, timeout=15, interval=0.2)  # a segment is written about once a second
    channel = again(broker, "stop", connect)
    eventually(lambda: kept() * 5_000 <= 25_000)  # what was in memory before is in segments, and has met its limit as well
    first = published - kept()
    assert 0 < first < published
    reader = Reader(connect(broker), "stream", x_stream_offset="first").wait(published - first)
    assert reader.offsets == list(range(first, published))
    assert reader.bodies == [b"%5000d" % number for number in reader.offsets]
