"""Transactions: what a commit and a rollback leave behind, whatever has happened to the queues and exchanges meanwhile."""

from __future__ import annotations

import pytest
from pamqp.commands import Basic, Channel, Exchange, Queue, Tx

from sans_io import BODY, SansIOBroker, method, publish


@pytest.fixture
def broker():
    broker = SansIOBroker()
    yield broker
    broker.audit()
    broker.close()


@pytest.fixture
def peer(broker):
    """A peer with a transactional channel and the queue "q" with one message."""
    peer = broker.connect()
    peer.open_channel()
    peer.call(1, Queue.Declare(queue="q"))
    peer.feed(publish(1, "", "q", b"first"))
    assert isinstance(peer.call(1, Tx.Select()), Tx.SelectOk)
    return peer


def bodies(broker, name="q"):
    backing = broker.vhost.queues[name].backing
    return [status.message.body() for status in backing._ring._items[backing._ring._head :]]


def get_and_ack(peer):
    peer.feed(method(1, Basic.Get(queue="q")))
    peer.feed(method(1, Basic.Ack(delivery_tag=1)))


def test_a_commit_publishes_and_acks(broker, peer):
    get_and_ack(peer)
    peer.feed(publish(1, "", "q", b"second"))
    assert (bodies(broker), broker.vhost.queues["q"].backing.unacked) == ([], 1)
    assert isinstance(peer.call(1, Tx.Commit()), Tx.CommitOk)
    assert (bodies(broker), broker.vhost.queues["q"].backing.unacked) == ([b"second"], 0)


def test_a_rollback_publishes_nothing_and_leaves_the_message_unacked(broker, peer):
    get_and_ack(peer)
    peer.feed(publish(1, "", "q", b"second"))
    assert isinstance(peer.call(1, Tx.Rollback()), Tx.RollbackOk)
    assert (bodies(broker), broker.vhost.queues["q"].backing.unacked) == ([], 1)
    peer.feed(method(1, Basic.Ack(delivery_tag=1)))
    peer.call(1, Tx.Commit())
    assert broker.vhost.queues["q"].backing.unacked == 0


def test_closing_the_channel_rolls_back_and_requeues(broker, peer):
    get_and_ack(peer)
    peer.call(1, Channel.Close(reply_code=200, class_id=0, method_id=0))
    assert (bodies(broker), broker.vhost.queues["q"].backing.unacked) == ([b"first"], 0)


def test_a_commit_whose_exchange_is_gone_does_all_the_rest(broker, peer):
    peer.call(1, Exchange.Declare(exchange="x"))
    peer.call(1, Queue.Declare(queue="gone"))
    for name in ("q", "gone"):
        peer.call(1, Queue.Bind(queue=name, exchange="x", routing_key="k"))
    get_and_ack(peer)
    peer.feed(publish(1, "x", "k", b"routed") + publish(1, "", "q", b"after"))
    peer.call(1, Exchange.Delete(exchange="x"))
    peer.call(1, Queue.Delete(queue="gone"))
    assert isinstance(peer.call(1, Tx.Commit()), Tx.CommitOk)
    assert bodies(broker) == [b"routed", b"after"]
    assert broker.vhost.queues["q"].backing.unacked == 0


def test_a_mandatory_message_is_returned_at_commit_when_its_queue_is_gone(broker, peer):
    peer.call(1, Queue.Declare(queue="gone"))
    assert peer.feed(publish(1, "", "gone", b"back", mandatory=True)) == []
    peer.call(1, Queue.Delete(queue="gone"))
    frames = peer.feed(method(1, Tx.Commit()))
    assert isinstance(frames[0].command(), Basic.Return)
    assert [one.payload for one in frames if one.type == BODY] == [b"back"]
    assert isinstance(frames[-1].command(), Tx.CommitOk)
