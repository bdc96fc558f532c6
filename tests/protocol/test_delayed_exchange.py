"""The delayed message exchange on a cranked clock: to the millisecond, without waiting."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from typing import Any

import pytest
from pamqp.commands import Basic, Confirm, Exchange, Queue

from rabbitpy_broker.queues.delayed_messages import DelayedMessages
from rabbitpy_broker.routing.delayed import DelayedExchange
from rabbitpy_broker.wire.field_table import encode_table
from sans_io import BODY, Peer, SansIOBroker, content, method, publish

DAY = 86_400_000


@pytest.fixture
def broker() -> Iterator[SansIOBroker]:
    broker = SansIOBroker()
    yield broker
    broker.audit()
    for queue in broker.vhost.delay_queues():
        queue.messages.check_with([])
    broker.close()


@pytest.fixture
def peer(broker: SansIOBroker) -> Peer:
    """A peer with a fanout exchange "x" that delays, and the queue "q" bound to it, which it consumes."""
    peer = broker.connect()
    peer.open_channel()
    declare(peer, "x")
    peer.call(1, Queue.Declare(queue="q", durable=True))
    peer.call(1, Queue.Bind(queue="q", exchange="x"))
    peer.feed(method(1, Basic.Consume(queue="q", no_ack=True)))
    return peer


def declare(peer: Peer, name: str, kind: str = "fanout", **arguments: Any) -> None:
    wanted = {"x-delayed-type": kind, **arguments}
    peer.call(
        1, Exchange.Declare(exchange=name, exchange_type="x-delayed-message", durable=True, arguments=wanted)
    )


def delayed(delay: object, body: bytes, exchange: str = "x", key: str = "", persistent: bool = True, **headers: Any) -> bytes:
    table = encode_table({"x-delay": delay, **headers})
    properties = (b"\x30\x00" + table + b"\x02") if persistent else (b"\x20\x00" + table)
    return with_properties(exchange, key, body, properties)


def with_properties(exchange: str, key: str, body: bytes, properties: bytes) -> bytes:
    return method(1, Basic.Publish(exchange=exchange, routing_key=key)) + content(1, body, properties)


def bodies(frames: list[Any]) -> list[bytes]:
    return [frame.payload for frame in frames if frame.type == BODY]


def delivered(broker: SansIOBroker, peer: Peer, ms: int) -> list[bytes]:
    """What comes within so many ms."""
    broker.advance(ms)
    return bodies(peer.output())


def test_a_message_comes_when_it_is_due_and_not_a_millisecond_before(broker: SansIOBroker, peer: Peer) -> None:
    assert bodies(peer.feed(delayed(5_000, b"late"))) == []
    assert delivered(broker, peer, 4_999) == []
    assert delivered(broker, peer, 1) == [b"late"]


def test_a_message_without_delay_does_not_wait(peer: Peer) -> None:
    peer.feed(delayed(5_000, b"late"))
    assert bodies(peer.feed(delayed(0, b"none"))) == [b"none"]
    assert bodies(peer.feed(publish(1, "x", "", b"no header"))) == [b"no header"]
    assert bodies(peer.feed(delayed(1 << 32, b"too long"))) == [b"too long"]


def test_they_come_in_the_order_of_their_times_and_of_publishing(broker: SansIOBroker, peer: Peer) -> None:
    for number, delay in enumerate((3_000, 1_000, 2_000, 1_000, DAY, 1_000)):
        peer.feed(delayed(delay, b"%d" % number))
    assert delivered(broker, peer, 2 * DAY) == [b"1", b"3", b"5", b"2", b"0", b"4"]


@pytest.mark.parametrize("persistent", [True, False])
def test_a_publisher_is_told_when_the_message_is_kept(broker: SansIOBroker, peer: Peer, persistent: bool) -> None:
    peer.call(1, Confirm.Select())
    frames = peer.feed(delayed(1_000, b"a", persistent=persistent))
    assert [frame.command().name for frame in frames] == ["Basic.Ack"]
    assert broker.vhost.store.journal.epochs == (1 if persistent else 0)


def test_more_than_a_turn_may_route_comes_in_order_all_the_same(broker: SansIOBroker, peer: Peer) -> None:
    peer.feed(b"".join([delayed(1_000 if number % 2 else 999, b"%d" % number) for number in range(3_000)]))
    expected = [b"%d" % number for number in [*range(0, 3_000, 2), *range(1, 3_000, 2)]]
    assert delivered(broker, peer, 1_000) == expected


def test_the_queue_takes_it_in_the_epoch_in_which_the_delay_is_done(broker: SansIOBroker, peer: Peer) -> None:
    peer.feed(method(1, Basic.Cancel(consumer_tag="nobody")))
    peer.call(1, Queue.Declare(queue="kept", durable=True))
    peer.call(1, Queue.Bind(queue="kept", exchange="x"))
    peer.feed(delayed(1_000, b"a"))
    before = broker.vhost.store.journal.epochs
    broker.advance(1_000)
    assert broker.vhost.queues["kept"].backing.len == 1
    assert broker.vhost.store.journal.epochs == before + 1
    for index in broker.vhost.store.journal.users.values():
        assert not index.dirty


def test_the_exchange_knows_how_many_wait(broker: SansIOBroker, peer: Peer) -> None:
    exchange = broker.vhost.exchanges["x"]
    assert isinstance(exchange, DelayedExchange)
    for delay in (1_000, 2_000, 2_000):
        peer.feed(delayed(delay, b"m"))
    assert exchange.messages_delayed() == 3
    broker.advance(1_000)
    assert exchange.messages_delayed() == 2
    broker.advance(1_000)
    assert exchange.messages_delayed() == 0


def test_what_a_deleted_exchange_has_delayed_is_gone(broker: SansIOBroker, peer: Peer) -> None:
    peer.feed(delayed(1_000, b"a") + delayed(1_000, b"b" * 10_000) + delayed(1_000, b"c", persistent=False))
    peer.call(1, Exchange.Delete(exchange="x"))
    declare(peer, "x")
    peer.call(1, Queue.Bind(queue="q", exchange="x"))
    assert delivered(broker, peer, DAY) == []
    assert broker.vhost.store.persistent_messages.counters()["messages"] == 0


def test_one_exchange_behind_another_does_not_delay_again(broker: SansIOBroker, peer: Peer) -> None:
    declare(peer, "first")
    peer.call(1, Exchange.Bind(source="first", destination="x"))
    peer.feed(delayed(1_000, b"a", exchange="first"))
    assert delivered(broker, peer, 1_000) == [b"a"]


def test_an_exchange_that_is_bound_to_another_delays(broker: SansIOBroker, peer: Peer) -> None:
    peer.call(1, Exchange.Declare(exchange="front", exchange_type="direct"))
    peer.call(1, Exchange.Bind(source="front", destination="x", routing_key="k"))
    peer.feed(delayed(1_000, b"a", exchange="front", key="k"))
    assert delivered(broker, peer, 999) == []
    assert delivered(broker, peer, 1) == [b"a"]


def test_expiration_counts_from_when_the_delay_is_over(broker: SansIOBroker, peer: Peer) -> None:
    peer.call(1, Queue.Declare(queue="slow"))
    peer.call(1, Queue.Bind(queue="slow", exchange="x"))
    table = encode_table({"x-delay": 1_000})
    peer.feed(with_properties("x", "", b"a", b"\x21\x00" + table + b"\x03500"))
    broker.advance(1_000)
    broker.advance(499)
    assert broker.vhost.queues["slow"].backing.len == 1
    broker.advance(1)
    assert broker.vhost.queues["slow"].backing.len == 0


@pytest.mark.parametrize("mode", ["consumer-ack", "consumer-ack-light"])
def test_a_queue_that_confirms_on_ack_keeps_the_message_as_a_persist_queue_does(
    broker: SansIOBroker, peer: Peer, mode: str
) -> None:
    """It was confirmed when the exchange had it: nobody would publish it again if a consumer's end took it away."""
    declare(peer, "y")
    peer.call(1, Queue.Declare(queue="careful", durable=True, arguments={"x-confirm-mode": mode}))
    peer.call(1, Queue.Bind(queue="careful", exchange="y"))
    peer.feed(delayed(1_000, b"a", exchange="y"))
    exchange = broker.vhost.exchanges["y"]
    assert isinstance(exchange, DelayedExchange)
    broker.advance(1_000)
    assert exchange.messages_delayed() == 0
    taker = broker.connect()
    taker.open_channel(1)
    taker.feed(method(1, Basic.Get(queue="careful")))
    queue = broker.vhost.queues["careful"]
    assert (queue.backing.len, queue.backing.unacked) == (0, 1)
    taker.lose()
    assert (queue.backing.len, queue.backing.unacked) == (1, 0)


# -- bodies that are on disk only -----------------------------------------------------------------------------------


def paged(broker: SansIOBroker, peer: Peer, count: int) -> DelayedMessages:
    """So many delayed messages, due one ms after the other from 1,000 ms on, whose bodies are on disk only."""
    peer.feed(b"".join([delayed(1_000 + number, b"%d" % number) for number in range(count)]))
    (queue,) = broker.vhost.delay_queues()
    queue.messages.set_ram_limit(0, 0)
    assert queue.messages.ram_count == 0
    return queue.messages


def numbers(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


def test_bodies_come_back_from_disk(broker: SansIOBroker, peer: Peer) -> None:
    messages = paged(broker, peer, 200)
    assert delivered(broker, peer, 1_200) == numbers(200)
    assert messages.paged_in == 200
    assert messages.index.segments.reads < 20


def test_what_cannot_be_read_is_tried_again(broker: SansIOBroker, peer: Peer) -> None:
    paged(broker, peer, 5)
    broker.disk.fail("read", errno.EIO, forever=True)
    assert delivered(broker, peer, 1_010) == []
    broker.disk.mend()
    assert delivered(broker, peer, 999) == []
    assert delivered(broker, peer, 2) == numbers(5)


def test_a_damaged_message_is_lost_alone(broker: SansIOBroker, peer: Peer) -> None:
    messages = paged(broker, peer, 5)
    next(place for place in messages.schedule.all() if place.seq_id == 2).size = 3
    assert delivered(broker, peer, 1_010) == [b"0", b"1", b"3", b"4"]
    assert messages.unacked == 0


def test_a_transient_message_is_written_to_make_room(broker: SansIOBroker, peer: Peer) -> None:
    (queue,) = broker.vhost.delay_queues()
    queue.messages.set_ram_limit(0, 0)
    for number, size in enumerate((10, 10_000)):
        peer.feed(delayed(1_000 + number, bytes(size), persistent=False))
    broker.run()
    queue.messages.tick(0.0)
    broker.run()
    queue.messages.tick(0.0)
    assert queue.messages.ram_count == 0
    assert delivered(broker, peer, 1_010) == [bytes(10), bytes(10_000)]
