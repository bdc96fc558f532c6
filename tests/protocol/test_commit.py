"""Durable definitions: committed before any answer leaves, and what happens to whom when they cannot be."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pamqp.commands import Basic, Channel, Connection, Queue

from sans_io import Peer, SansIOBroker, method


@pytest.fixture
def broker() -> Iterator[SansIOBroker]:
    broker = SansIOBroker()
    yield broker
    broker.close()


@pytest.fixture
def peer(broker: SansIOBroker) -> Peer:
    peer = broker.connect()
    peer.call(1, Channel.Open())
    return peer


def names(frames: list) -> list[str]:
    return [frame.command().name for frame in frames]


def durable(name: str, **flags: bool) -> bytes:
    return method(1, Queue.Declare(queue=name, durable=True, **flags))


def on_disk(broker: SansIOBroker) -> list[str]:
    return [name for name, *_ in broker.definitions.queues("/")]


@pytest.mark.parametrize("end", ["close", "soft error"])
def test_a_queue_that_goes_with_its_channel_goes_from_the_disk(broker: SansIOBroker, peer: Peer, end: str) -> None:
    peer.feed(durable("d", auto_delete=True))
    peer.feed(method(1, Basic.Consume(queue="d", consumer_tag="c")))
    assert broker.definitions.dirty is False
    if end == "close":
        peer.feed(method(1, Channel.Close(reply_code=200, reply_text="", class_id=0, method_id=0)))
    else:
        peer.feed(method(1, Queue.Declare(queue="absent", passive=True)))
    assert broker.definitions.dirty is False
    assert on_disk(broker) == []


def test_what_was_not_committed_is_not_answered_with_ok(broker: SansIOBroker, peer: Peer) -> None:
    broker.commit_fails = True
    assert names(peer.feed(durable("d"))) == ["Connection.Close"]


def test_others_are_not_hit_by_a_commit_that_fails(broker: SansIOBroker, peer: Peer) -> None:
    other = broker.connect()
    other.call(1, Channel.Open())
    broker.commit_fails = True
    peer.feed(durable("d"))
    assert names(other.feed(method(1, Basic.Qos(prefetch_count=1)))) == ["Basic.QosOk"]


def test_a_good_bye_in_the_same_read_does_not_bring_the_ok_out(broker: SansIOBroker, peer: Peer) -> None:
    broker.commit_fails = True
    close = method(0, Connection.Close(reply_code=200, reply_text="", class_id=0, method_id=0))
    assert names(peer.feed(durable("d") + close)) == []
    assert peer.transport.closed


def test_a_hard_error_in_the_same_read_still_ends_in_a_close(broker: SansIOBroker, peer: Peer) -> None:
    broker.commit_fails = True
    assert names(peer.feed(durable("d") + method(1, Basic.Qos(prefetch_size=7)))) == ["Connection.Close"]


def test_what_could_not_be_committed_is_tried_again(broker: SansIOBroker, peer: Peer) -> None:
    broker.commit_fails = True
    peer.feed(durable("d"))
    broker.commit_fails = False
    other = broker.connect()
    other.call(1, Channel.Open())
    other.feed(method(1, Queue.Declare(queue="e", durable=True)))
    assert on_disk(broker) == ["d", "e"]
