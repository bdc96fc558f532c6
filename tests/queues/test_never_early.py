"""Nothing that takes a time takes less: times are kept in whole milliseconds, and are rounded so that none is over early.

The clock stands between two milliseconds when the time begins. One that is looked at in whole milliseconds has gone on by so many
when a part of the first and a part of the last have gone by, and that is less.
"""

from __future__ import annotations

import pytest
from pamqp.commands import Basic, Exchange, Queue

from cranked_clock import CrankedClock
from rabbitpy_broker.queues.deduplication import SeenKeys
from sans_io import Peer, SansIOBroker, method, publish

SPAN_MS = 5


def between_milliseconds(more_ns: int) -> Peer:
    broker = SansIOBroker()
    broker.time.clock.more_ns = more_ns
    peer = broker.connect()
    peer.open_channel()
    return peer


def go_on(peer: Peer, ns: int) -> None:
    clock = peer.broker.time.clock
    at = clock.now_ns() + ns
    clock.now, clock.more_ns = divmod(at, 1_000_000)
    if 0 < peer.broker.time.timers.next_ms() <= clock.now:
        peer.broker.time.timers.run()
    peer.broker.run()


def ready(peer: Peer, queue: str = "q") -> int:
    found = peer.broker.vhost.queues.get(queue)
    return -1 if found is None else int(found.backing.len)


def lasts_exactly(peer: Peer, there: int, gone: int) -> None:
    """A nanosecond before the span is over it is all still there; when it is over and the millisecond full, it is gone."""
    assert ready(peer) == there
    go_on(peer, SPAN_MS * 1_000_000 - 1)
    assert ready(peer) == there
    go_on(peer, 1_000_001)
    assert ready(peer) == gone


PARTS = [0, 1, 500_000, 999_999]


@pytest.mark.parametrize("more_ns", PARTS)
def test_time_to_live_of_a_queue(more_ns: int) -> None:
    peer = between_milliseconds(more_ns)
    peer.call(1, Queue.Declare(queue="q", arguments={"x-message-ttl": SPAN_MS}))
    peer.feed(publish(1, "", "q", b"x"))
    lasts_exactly(peer, 1, 0)


@pytest.mark.parametrize("more_ns", PARTS)
def test_time_to_live_of_a_message(more_ns: int) -> None:
    peer = between_milliseconds(more_ns)
    peer.call(1, Queue.Declare(queue="q"))
    header = b"\x02\x00\x01\x00\x00\x00\x10\x00\x3c\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x01\x00\x015\xce"
    peer.feed(method(1, Basic.Publish(routing_key="q")) + header)
    lasts_exactly(peer, 1, 0)


@pytest.mark.parametrize("more_ns", PARTS)
def test_expiry_of_a_queue(more_ns: int) -> None:
    peer = between_milliseconds(more_ns)
    peer.call(1, Queue.Declare(queue="q", arguments={"x-expires": SPAN_MS}))
    lasts_exactly(peer, 0, -1)


@pytest.mark.parametrize("more_ns", PARTS)
def test_delay_of_a_message(more_ns: int) -> None:
    peer = between_milliseconds(more_ns)
    peer.call(1, Queue.Declare(queue="q"))
    peer.call(1, Exchange.Declare(exchange="later", exchange_type="x-delayed-message", arguments={"x-delayed-type": "fanout"}))
    peer.call(1, Queue.Bind(queue="q", exchange="later", routing_key=""))
    table = b"\x07x-delayI\x00\x00\x00\x05"
    payload = b"\x00\x3c" + bytes(10) + b"\x20\x00" + len(table).to_bytes(4, "big") + table
    header = b"\x02\x00\x01" + len(payload).to_bytes(4, "big") + payload + b"\xce"
    peer.feed(method(1, Basic.Publish(exchange="later", routing_key="")) + header)
    lasts_exactly(peer, 0, 1)


@pytest.mark.parametrize("more_ns", PARTS)
def test_levels_of_delay_add_up(more_ns: int) -> None:
    """Three queues, each of which hands its messages on when their time to live is over."""
    peer = between_milliseconds(more_ns)
    peer.call(1, Queue.Declare(queue="q"))
    for queue, then in (("first", "second"), ("second", "third"), ("third", "q")):
        arguments = {"x-message-ttl": SPAN_MS, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": then}
        peer.call(1, Queue.Declare(queue=queue, arguments=arguments))
    began = peer.broker.time.clock.now_ns()
    peer.feed(publish(1, "", "first", b"x"))
    while ready(peer) == 0:
        go_on(peer, 300_000)
    took_ns = peer.broker.time.clock.now_ns() - began
    assert 3 * SPAN_MS * 1_000_000 <= took_ns < 3 * (SPAN_MS + 2) * 1_000_000


def test_no_time_to_live_is_over_at_once() -> None:
    peer = between_milliseconds(999_999)
    peer.call(1, Queue.Declare(queue="q", arguments={"x-message-ttl": 0}))
    peer.feed(publish(1, "", "q", b"x"))
    assert ready(peer) == 0


@pytest.mark.parametrize("more_ns", PARTS)
def test_memory_of_a_duplicate(more_ns: int) -> None:
    clock = CrankedClock()
    clock.more_ns = more_ns
    seen = SeenKeys(10, clock)
    seen.add(b"key", SPAN_MS)
    began = clock.now_ns()
    clock.now, clock.more_ns = divmod(began + SPAN_MS * 1_000_000 - 1, 1_000_000)
    assert b"key" in seen
    clock.now, clock.more_ns = divmod(began + (SPAN_MS + 1) * 1_000_000, 1_000_000)
    assert b"key" not in seen
