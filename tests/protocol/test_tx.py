"""Transactions: what a commit and a rollback leave behind, whatever has happened to the queues and exchanges meanwhile."""

from __future__ import annotations

import pytest
from pamqp.commands import Basic, Channel, Exchange, Queue, Tx

from fake_syncs import FakeSyncs
from sans_io import BODY, method, publish


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
    return [backing.q4.at(place).message.body() for place in range(backing.q4.count())]


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


@pytest.fixture
def syncs(broker):
    """Stands for the disk. That a commit had something to sync is said by `commit`."""
    broker.vhost.syncs = FakeSyncs()
    return broker.vhost.syncs


@pytest.fixture
def tx(broker, syncs):
    """A peer with a transactional channel."""
    peer = broker.connect()
    peer.open_channel()
    peer.call(1, Tx.Select())
    return peer


def commit(peer, syncing):
    peer.connection.channels[1].tx.answer(syncing)


def settle(broker, peer, syncs, ok):
    """What the peer is told when the oldest epoch under way is settled."""
    syncs.settle(ok)
    broker.run()
    return [frame.command().name for frame in peer.output()]


def test_a_commit_is_answered_when_its_messages_are_on_disk(broker, tx, syncs):
    commit(tx, syncing=True)
    assert tx.feed(b"") == []
    syncs.begin_if_due()
    assert settle(broker, tx, syncs, ok=True) == ["Tx.CommitOk"]


def test_commits_are_answered_in_their_order(broker, tx, syncs):
    """Three of one epoch, the second with nothing to sync; one of the next."""
    for syncing in (True, False, True):
        commit(tx, syncing)
    syncs.begin_if_due()
    commit(tx, syncing=True)
    syncs.begin_if_due()
    assert tx.feed(method(1, Tx.Commit())) == [], "it does not overtake"
    assert settle(broker, tx, syncs, ok=True) == ["Tx.CommitOk"] * 3
    assert settle(broker, tx, syncs, ok=True) == ["Tx.CommitOk"] * 2
    assert isinstance(tx.call(1, Tx.Commit()), Tx.CommitOk)


def test_other_methods_are_answered_while_a_commit_waits(broker, tx, syncs):
    commit(tx, syncing=True)
    assert isinstance(tx.call(1, Basic.Qos(prefetch_count=1)), Basic.QosOk)


def test_a_commit_that_may_be_lost_closes_the_channel(broker, tx, syncs):
    commit(tx, syncing=True)
    commit(tx, syncing=False)
    syncs.begin_if_due()
    commit(tx, syncing=True)
    syncs.begin_if_due()
    syncs.settle(False)
    broker.run()
    (close,) = [frame.command() for frame in tx.output()]
    assert isinstance(close, Channel.Close)
    assert (close.reply_code, close.reply_text) == (406, "PRECONDITION_FAILED - partial tx completion")
    assert settle(broker, tx, syncs, ok=True) == [], "the channel is closed"
    tx.feed(method(1, Channel.CloseOk()))
    tx.open_channel()


@pytest.mark.parametrize("ok", [True, False])
@pytest.mark.parametrize("end", ["channel", "connection"])
def test_nothing_is_answered_on_a_channel_that_is_closed(broker, tx, syncs, end, ok):
    commit(tx, syncing=True)
    syncs.begin_if_due()
    if end == "channel":
        tx.feed(method(1, Channel.Close(reply_code=200, class_id=0, method_id=0)))
    else:
        tx.lose()
    assert settle(broker, tx, syncs, ok) == []
