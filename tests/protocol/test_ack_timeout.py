"""The consumer timeout: how old the oldest delivery is found to be, and what becomes of its channel."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pamqp.commands import Basic, Channel, Queue

from rabbitpy_broker.protocol.ack_timeout import AckMarks, tick_ms
from sans_io import method, publish

TIMEOUT = 1_000
TEXT = (
    "PRECONDITION_FAILED - delivery acknowledgement on channel 1 timed out. Timeout value used: 1000 ms. "
    "This timeout value can be configured, see consumers doc guide to learn more"
)
STEPS = st.lists(
    st.tuples(st.sampled_from(["deliver", "settle", "settle_newest", "tick"]), st.integers(1, 40)),
    max_size=200,
)


@pytest.mark.parametrize(
    ("timeout_ms", "tick"), [(1, 100), (1_000, 100), (5_000, 500), (600_000, 60_000), (1_800_000, 60_000)]
)
def test_a_tick_is_a_tenth_of_the_timeout_within_bounds(timeout_ms, tick):
    assert tick_ms(timeout_ms) == tick


def test_a_delivery_is_as_old_as_the_first_mark_above_it():
    marks = AckMarks()
    assert marks.tick(100, 1, 2) == 0
    assert marks.tick(200, 1, 5) == 100
    assert marks.tick(300, 2, 5) == 100, "delivery 2 came between the ticks at 100 and 200"
    assert marks.tick(400, 2, 9) == 200


def test_what_was_settled_in_between_does_not_count():
    marks = AckMarks()
    marks.tick(100, 1, 2)
    assert marks.tick(200, 0, 2) == 0
    assert marks.tick(300, 2, 3) == 0
    assert marks.tick(400, 2, 3) == 100


@given(STEPS)
def test_the_age_found_counts_from_the_first_tick_that_saw_the_delivery(steps):
    marks, now, next_tag = AckMarks(), 0, 1
    unacked: dict[int, int] = {}  # tag -> when it was delivered
    ticks: list[int] = []
    for step, wait in steps:
        now += wait
        if step == "deliver":
            unacked[next_tag] = now
            next_tag += 1
        elif step == "settle" and unacked:
            del unacked[min(unacked)]
        elif step == "settle_newest" and unacked:
            del unacked[max(unacked)]
        elif step == "tick":
            oldest = min(unacked, default=0)
            waited = marks.tick(now, oldest, next_tag)
            ticks.append(now)
            if oldest:
                seen = min(at for at in ticks if at >= unacked[oldest])  # the first tick that saw it
                assert waited == now - seen
            else:
                assert waited == 0


@pytest.fixture
def peer(broker):
    """A peer with channel 1 open and the queue "q" with three messages."""
    peer = broker.connect()
    peer.open_channel()
    peer.call(1, Queue.Declare(queue="q"))
    for body in (b"0", b"1", b"2"):
        peer.feed(publish(1, "", "q", body))
    return peer


def closes_at(broker, peer, now_ms):
    """What a tick at that time tells the peer."""
    for connection in list(broker.connections):
        connection.close_overdue(now_ms, TIMEOUT)
    broker.run()
    return [one.command() for one in peer.output()]


def test_channel_is_closed_and_what_it_held_is_requeued(broker, peer):
    peer.feed(method(1, Basic.Consume(queue="q", consumer_tag="slow")))
    assert closes_at(broker, peer, 5_000) == []
    assert closes_at(broker, peer, 6_000) == [], "it may lack the part of a millisecond"
    (close,) = closes_at(broker, peer, 6_001)
    assert isinstance(close, Channel.Close)
    assert (close.reply_code, close.reply_text, close.class_id, close.method_id) == (406, TEXT, 0, 0)
    backing = broker.vhost.queues["q"].backing
    assert (backing.len, backing.unacked) == (3, 0)
    assert closes_at(broker, peer, 9_000) == [], "it is closed once"


@pytest.mark.parametrize("ack", [Basic.Ack(delivery_tag=3), Basic.Nack(delivery_tag=2, requeue=False)])
def test_only_the_oldest_delivery_counts(broker, peer, ack):
    peer.feed(method(1, Basic.Consume(queue="q")))
    closes_at(broker, peer, 0)
    peer.feed(method(1, ack))
    assert [type(one) for one in closes_at(broker, peer, 1_001)] == [Channel.Close]


def test_channel_that_acks_in_time_stays(broker, peer):
    peer.feed(method(1, Basic.Consume(queue="q")))
    for now_ms, tag in ((500, 1), (1_000, 2), (1_400, 3), (5_000, 0)):
        assert closes_at(broker, peer, now_ms) == []
        if tag:
            peer.feed(method(1, Basic.Ack(delivery_tag=tag)))


def test_what_basic_get_fetched_counts(broker, peer):
    peer.feed(method(1, Basic.Get(queue="q")))
    closes_at(broker, peer, 0)
    assert [type(one) for one in closes_at(broker, peer, 1_001)] == [Channel.Close]


def test_deliveries_without_acks_do_not_count(broker, peer):
    peer.feed(method(1, Basic.Consume(queue="q", no_ack=True)))
    closes_at(broker, peer, 0)
    assert closes_at(broker, peer, 5_000) == []


def test_other_channels_stay(broker, peer):
    peer.open_channel(2)
    peer.feed(method(1, Basic.Get(queue="q")))
    closes_at(broker, peer, 0)
    peer.feed(method(2, Basic.Get(queue="q")))
    assert len(closes_at(broker, peer, 1_001)) == 1
    assert broker.vhost.queues["q"].backing.unacked == 1
