"""The load generator's hot part, without a broker."""

from __future__ import annotations

import importlib.util
import socket
import subprocess
import sys
import time
import zlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pamqp import commands, frame
from pamqp.header import ContentHeader

from perf.driver import BrokerClosed
from perf.load import encode
from perf.load.engine import (
    ConsumeChannel,
    Consumer,
    Latencies,
    Producer,
    PublishChannel,
    bucket_of,
    bucket_us,
)
from perf.load.plan import Plan
from perf.load.report import percentiles

FRAME_MAX = 131072


def publishing(published: int) -> PublishChannel:
    channel = PublishChannel([[b""]], 1, [b""])
    channel.publish_seqno = channel.unsettled = published
    return channel


def frames_of(data: bytes) -> list[object]:
    found = []
    while data:
        used, _, value = frame.unmarshal(data)
        found.append(value)
        data = data[used:]
    return found


def test_settling_multiple_counts_each_publish_once():
    channel = publishing(10)
    assert channel.settle(4, False) == 1
    assert channel.settle(2, False) == 1
    assert channel.settle(5, True) == 3  # 1, 3, 5
    assert channel.settle(5, True) == 0
    assert channel.settle(0, True) == 5  # 0 is all that there are
    assert (channel.unsettled, channel.settled_to) == (0, 10)


@given(st.permutations(range(1, 13)), st.lists(st.booleans(), min_size=12, max_size=12))
def test_settled_publishes_match_a_naive_model(order: list[int], multiples: list[bool]):
    channel = publishing(12)
    settled: set[int] = set()
    for seqno, multiple in zip(order, multiples, strict=True):
        now = set(range(1, seqno + 1)) if multiple else {seqno}
        assert channel.settle(seqno, multiple) == len(now - settled)
        settled |= now
        assert channel.unsettled == 12 - len(settled)
    assert channel.settled_to == 12


@given(st.integers(0, 10**13))
def test_bucket_is_exact_to_one_per_cent(latency_ns: int):
    assert bucket_us(bucket_of(latency_ns)) == pytest.approx(latency_ns / 1000, rel=0.01, abs=1)


def test_percentiles_of_known_latencies():
    latencies = Latencies()
    for milliseconds in range(1, 101):
        latencies.record(milliseconds * 1_000_000, 10)
    found = percentiles(latencies.counts, latencies.max_ns)
    assert found["p50"] == pytest.approx(50_000, rel=0.01)
    assert found["p99"] == pytest.approx(99_000, rel=0.01)
    assert found["max"] == 100_000


def test_batch_is_what_a_codec_reads():
    """A stamped batch is whole AMQP frames, with the stamp at the start of every body, bodies cut at frame_max."""
    plan = Plan("amqp://localhost", sizes=(12, 5000), persistent=True, exchange="amq.topic")
    stamp = (123456789).to_bytes(8, "big")
    found = frames_of(stamp.join(encode.batches(plan, 3, "a.b", 2, 4096)[0]))
    method, header, body, _, header_2, body_2, rest = found
    assert (method.exchange, method.routing_key) == ("amq.topic", "a.b")
    assert (header.body_size, header.properties.delivery_mode) == (12, 2)
    assert body.value == stamp + bytes(4)
    assert header_2.body_size == 5000
    assert body_2.value[:8] == stamp
    assert (len(body_2.value), len(rest.value)) == (4088, 912)


@pytest.mark.parametrize("kind", ["text", "random"])
def test_no_two_bodies_are_the_same(kind: str):
    """Of all channels of all connections: a broker that compresses has nothing of them twice."""
    plan = Plan("amqp://localhost", sizes=(1000, 200), bodies=kind, producer_channels=2)
    found = [
        value.value[8:]
        for connection, channel in ((0, 1), (0, 2), (1, 1))
        for pieces in encode.batches(plan, channel, "q", 64, FRAME_MAX, connection)
        for value in frames_of(bytes(8).join(pieces))[2::3]
    ]
    assert len(found) == len(set(found)) == 3 * encode.BODIES // 2
    share = len(zlib.compress(b"".join(found))) / sum(map(len, found))
    assert 0.3 < share < 0.5 if kind == "text" else share > 0.99


def test_body_without_room_for_a_stamp_is_sent_as_it_is():
    plan = Plan("amqp://localhost", sizes=(3,))
    ((pieces,),) = encode.batches(plan, 1, "q", 2, FRAME_MAX)
    assert [value.value for value in frames_of(pieces)[2::3]] == [bytes(3), bytes(3)]


def deliveries(count: int, stamp: int) -> bytes:
    data = b""
    for tag in range(1, count + 1):
        data += frame.marshal(commands.Basic.Deliver("c1", tag, False, "", "queue"), 1)
        data += frame.marshal(ContentHeader(0, 12, commands.Basic.Properties()), 1)
        data += encode.body_frames(bytes(12), 1, FRAME_MAX)[0][:7] + stamp.to_bytes(8, "big") + bytes(4) + b"\xce"
    return data


@given(st.lists(st.integers(1, 400), max_size=8), st.integers(1, 4))
def test_consumer_counts_and_acks_at_any_split(splits: list[int], ack_every: int):
    ours, theirs = socket.socketpair()
    with ours, theirs:
        consumer = Consumer(ours, b"", [ConsumeChannel(1, encode.ack_head(1))], ack_every, True)
        data = deliveries(10, time.monotonic_ns())
        at = 0
        for size in [*splits, len(data)]:
            part = data[at : at + size]
            at += size
            if part:
                theirs.sendall(part)
                consumer.receive()
        consumer.ack_rest()
        acks = frames_of(theirs.recv(4096))
        assert (consumer.received, consumer.body_bytes) == (10, 120)
        assert sum(consumer.latencies.counts.values()) == 10
        assert consumer.latencies.max_ns < 10_000_000_000
        assert len(acks) == -(-10 // ack_every)
        assert acks[-1].delivery_tag == 10
        assert acks[-1].multiple == (ack_every > 1)


def test_producer_stops_at_its_window_and_goes_on_after_confirms():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        plan = Plan("amqp://localhost", confirm=10)
        channel = PublishChannel(
            encode.batches(plan, 1, "q", 5, FRAME_MAX), 5, encode.batches(plan, 1, "q", 1, FRAME_MAX)[0]
        )
        producer = Producer(ours, b"", [channel], 10, 0.0, 13)
        now = time.monotonic_ns()
        producer.start(now)
        assert producer.publish(now) == -1
        assert producer.published == 10
        theirs.sendall(frame.marshal(commands.Basic.Ack(10, True), 1))
        producer.receive()
        producer.publish(now)
        assert (producer.published, producer.confirmed, producer.is_done()) == (13, 10, False)
        theirs.sendall(frame.marshal(commands.Basic.Nack(13, True), 1))
        producer.receive()
        assert (producer.nacked, producer.is_done()) == (3, True)
        published = [
            value for value in frames_of(theirs.recv(65536)) if isinstance(value, commands.Basic.Publish)
        ]
        assert len(published) == 13


def test_producer_keeps_its_rate():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        plan = Plan("amqp://localhost", rate=1000)
        one = encode.batches(plan, 1, "q", 1, FRAME_MAX)
        producer = Producer(ours, b"", [PublishChannel(one, 1, one[0])], 0, 1000.0, 0)
        producer.start(1_000_000_000)
        assert producer.publish(1_004_500_000) == 1_005_000_000
        assert producer.published == 5


def test_close_by_the_broker_is_told_with_its_words():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        consumer = Consumer(ours, b"", [], 0, True)
        theirs.sendall(frame.marshal(commands.Channel.Close(404, "NOT_FOUND - no queue 'q'", 60, 20), 1))
        with pytest.raises(BrokerClosed, match="404 NOT_FOUND - no queue 'q'"):
            consumer.receive()


# More than a socket takes at once, in two pieces; what arrives must be the same, in order.
OUTPUT = """
import socket, sys
if sys.argv[1] == "compiled":
    from perf.build import ensure_compiled
    if not ensure_compiled():
        sys.exit("not compiled")
from perf.driver import Link

ours, theirs = socket.socketpair()
link = Link(ours, b"")
pieces = [bytes(range(256)) * 8_000, b"and the rest" * 1_000]
for piece in pieces:
    link.send(piece)
assert link.unsent, "the socket took everything: the test shows nothing"
wanted, arrived = b"".join(pieces), b""
while len(arrived) < len(wanted):
    arrived += theirs.recv(1 << 20)
    link.flush()
assert arrived == wanted
assert not link.unsent
"""


# mypyc comes with the extra `dev`.
BUILDS = ["interpreted", "compiled"] if importlib.util.find_spec("mypyc") else ["interpreted"]


@pytest.mark.parametrize("build", BUILDS)
def test_what_the_socket_does_not_take_leaves_later_and_in_order(build: str):
    done = subprocess.run(
        [sys.executable, "-c", OUTPUT, build],
        cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=150,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
