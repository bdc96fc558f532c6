"""Transactions: publishes and settles count from tx.commit on, and tx.rollback forgets them."""

from __future__ import annotations

from collections.abc import Callable

import pamqp.commands as amqp
import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from behaviour.helpers import Inbox, confirming, fence, fill, ready, take_all, take_all_flagged, wait_until
from support import closes_channel, eventually, unique
from wire_client import WireClient

Maker = Callable[..., str]
Connect = Callable[..., pika.BlockingConnection]

CONFIRM_SELECT, SELECT, COMMIT, ROLLBACK = (85, 10), (90, 10), (90, 20), (90, 30)


@pytest.fixture
def channel(connection: pika.BlockingConnection) -> BlockingChannel:
    """In confirm mode, for what happens outside of the transaction."""
    return confirming(connection)


@pytest.fixture
def tx(connect: Connect) -> BlockingChannel:
    """A transactional channel on a connection of its own."""
    channel = connect().channel()
    channel.tx_select()
    return channel


# --- modes ---------------------------------------------------------------------------------------------------------------


def test_select_may_be_repeated(wire: WireClient) -> None:
    for _ in range(2):
        wire.call(1, amqp.Tx.Select(), amqp.Tx.SelectOk)
    wire.call(1, amqp.Tx.Commit(), amqp.Tx.CommitOk)


@pytest.mark.parametrize("method, ids", [(amqp.Tx.Commit(), COMMIT), (amqp.Tx.Rollback(), ROLLBACK)])
def test_commit_and_rollback_need_a_transaction(wire: WireClient, method: amqp.Frame, ids: tuple[int, int]) -> None:
    wire.method(1, method)
    wire.expect_channel_close(1, 406, "channel is not transactional", *ids)


def test_transactional_channel_cannot_confirm(wire: WireClient) -> None:
    wire.call(1, amqp.Tx.Select(), amqp.Tx.SelectOk)
    wire.method(1, amqp.Confirm.Select())
    wire.expect_channel_close(1, 406, "cannot switch from tx to confirm mode", *CONFIRM_SELECT)


def test_confirming_channel_cannot_be_transactional(wire: WireClient) -> None:
    wire.call(1, amqp.Confirm.Select(), amqp.Confirm.SelectOk)
    wire.method(1, amqp.Tx.Select())
    wire.expect_channel_close(1, 406, "cannot switch from confirm to tx mode", *SELECT)


# --- publishes -----------------------------------------------------------------------------------------------------------


def test_publishes_arrive_with_the_commit(tx: BlockingChannel, channel: BlockingChannel, queue: Maker) -> None:
    name = queue()
    for body in (b"a", b"b", b"c"):
        tx.basic_publish("", name, body)
    fence(tx, name)
    assert ready(channel, name) == 0
    tx.tx_commit()
    assert take_all(channel, name) == [b"a", b"b", b"c"]


def test_rolled_back_publishes_never_arrive(tx: BlockingChannel, channel: BlockingChannel, queue: Maker) -> None:
    name = queue()
    tx.basic_publish("", name, b"rolled back")
    tx.tx_rollback()
    tx.tx_commit()
    assert ready(channel, name) == 0
    tx.basic_publish("", name, b"committed")
    tx.tx_commit()
    assert take_all(channel, name) == [b"committed"]


def test_next_transaction_begins_with_the_commit(tx: BlockingChannel, channel: BlockingChannel, queue: Maker) -> None:
    name = queue()
    tx.basic_publish("", name, b"a")
    tx.tx_commit()
    tx.basic_publish("", name, b"b")
    fence(tx, name)
    assert take_all(channel, name) == [b"a"]
    tx.tx_commit()
    assert take_all(channel, name) == [b"b"]


@pytest.mark.parametrize("end", ["channel", "connection"])
def test_closing_rolls_back(tx: BlockingChannel, channel: BlockingChannel, queue: Maker, end: str) -> None:
    name = queue()
    tx.basic_publish("", name, b"x")
    if end == "channel":
        tx.close()
    else:
        tx.connection.close()
    fence(channel, name)
    assert ready(channel, name) == 0


def test_commit_after_the_queue_was_deleted_succeeds(
    tx: BlockingChannel, channel: BlockingChannel, queue: Maker
) -> None:
    gone, stays = queue(), queue()
    tx.basic_publish("", gone, b"x")
    tx.basic_publish("", stays, b"x")
    channel.queue_delete(gone)
    tx.tx_commit()
    assert take_all(channel, stays) == [b"x"]


def test_absent_exchange_is_noticed_at_once(wire: WireClient) -> None:
    name = unique("absent")
    wire.call(1, amqp.Tx.Select(), amqp.Tx.SelectOk)
    wire.publish(1, name, "key", b"x")
    wire.expect_channel_close(1, 404, f"no exchange '{name}' in vhost '/'", 60, 40)


def test_mandatory_message_comes_back_at_the_commit(wire: WireClient) -> None:
    wire.call(1, amqp.Tx.Select(), amqp.Tx.SelectOk)
    wire.publish(1, "", unique("nowhere"), b"x", mandatory=True)
    wire.expect_silence(1)
    wire.method(1, amqp.Tx.Commit())
    assert wire.expect_content(1, amqp.Basic.Return).body == b"x"
    wire.expect(1, amqp.Tx.CommitOk)


def test_commit_of_many_publishes_keeps_their_order(
    tx: BlockingChannel, channel: BlockingChannel, queue: Maker
) -> None:
    name = queue()
    bodies = [b"%d" % number for number in range(1000)]
    for body in bodies:
        tx.basic_publish("", name, body)
    tx.tx_commit()
    assert take_all(channel, name) == bodies


# --- settles -------------------------------------------------------------------------------------------------------------


def test_ack_counts_from_the_commit(tx: BlockingChannel, channel: BlockingChannel, queue: Maker) -> None:
    name = queue()
    fill(channel, name, 2)
    for _ in range(2):
        tx.basic_ack(tx.basic_get(name)[0].delivery_tag)
    tx.tx_commit()
    tx.close()
    fence(channel, name)
    assert ready(channel, name) == 0


@pytest.mark.parametrize("how", ["ack", "nack", "reject"])
def test_uncommitted_settle_is_undone_by_closing(
    tx: BlockingChannel, channel: BlockingChannel, queue: Maker, how: str
) -> None:
    name = queue()
    fill(channel, name, 1)
    tag = tx.basic_get(name)[0].delivery_tag
    if how == "ack":
        tx.basic_ack(tag)
    elif how == "nack":
        tx.basic_nack(tag, requeue=False)
    else:
        tx.basic_reject(tag, requeue=False)
    tx.close()
    eventually(lambda: ready(channel, name) == 1)
    assert take_all_flagged(channel, name) == [(True, b"0")]


@pytest.mark.parametrize("how", ["nack", "reject"])
def test_requeue_happens_at_the_commit(tx: BlockingChannel, channel: BlockingChannel, queue: Maker, how: str) -> None:
    name = queue()
    fill(channel, name, 1)
    tag = tx.basic_get(name)[0].delivery_tag
    if how == "nack":
        tx.basic_nack(tag)
    else:
        tx.basic_reject(tag)
    fence(tx, name)
    assert ready(channel, name) == 0
    tx.tx_commit()
    eventually(lambda: ready(channel, name) == 1)
    assert take_all_flagged(channel, name) == [(True, b"0")]


def test_rollback_leaves_messages_unacked_and_not_requeued(
    tx: BlockingChannel, channel: BlockingChannel, queue: Maker
) -> None:
    name = queue()
    fill(channel, name, 3)
    tags = [tx.basic_get(name)[0].delivery_tag for _ in range(3)]
    tx.basic_ack(tags[1])
    tx.basic_nack(tags[2])
    tx.tx_rollback()
    fence(tx, name)
    assert ready(channel, name) == 0
    # The same tags are known again.
    tx.basic_ack(tags[2], multiple=True)
    tx.tx_commit()
    tx.close()
    fence(channel, name)
    assert ready(channel, name) == 0


def test_rolled_back_acks_can_be_given_again_in_any_order(
    tx: BlockingChannel, channel: BlockingChannel, queue: Maker
) -> None:
    name = queue()
    fill(channel, name, 4)
    tags = [tx.basic_get(name)[0].delivery_tag for _ in range(4)]
    tx.basic_ack(tags[2])
    tx.basic_ack(tags[0])
    tx.tx_rollback()
    for tag in (tags[3], tags[0], tags[1]):
        tx.basic_ack(tag)
    tx.tx_commit()
    tx.close()
    eventually(lambda: ready(channel, name) == 1)
    assert take_all_flagged(channel, name) == [(True, b"2")]


def test_closing_after_a_rollback_requeues_in_the_old_order(
    tx: BlockingChannel, channel: BlockingChannel, queue: Maker
) -> None:
    name = queue()
    bodies = fill(channel, name, 5)
    tags = [tx.basic_get(name)[0].delivery_tag for _ in range(5)]
    for tag in (tags[3], tags[1]):
        tx.basic_ack(tag)
    tx.tx_rollback()
    tx.close()
    eventually(lambda: ready(channel, name) == 5)
    assert take_all(channel, name) == bodies


def test_unknown_tag_is_noticed_before_the_commit(tx: BlockingChannel, queue: Maker) -> None:
    name = queue()
    with closes_channel(406, "unknown delivery tag 7"):
        tx.basic_ack(7)
        fence(tx, name)


def test_tag_cannot_be_acked_twice_in_one_transaction(
    tx: BlockingChannel, channel: BlockingChannel, queue: Maker
) -> None:
    name = queue()
    fill(channel, name, 1)
    tag = tx.basic_get(name)[0].delivery_tag
    tx.basic_ack(tag)
    with closes_channel(406, f"unknown delivery tag {tag}"):
        tx.basic_ack(tag)
        fence(tx, name)


def test_uncommitted_ack_frees_no_prefetch(tx: BlockingChannel, channel: BlockingChannel, queue: Maker) -> None:
    name = queue()
    fill(channel, name, 2)
    tx.basic_qos(prefetch_count=1)
    inbox = Inbox(tx, name)
    inbox.wait_for(1)
    inbox.ack(1)
    assert inbox.settled() == [b"0"]
    tx.tx_commit()
    assert inbox.wait_for(2) == [b"0", b"1"]


def test_publishes_and_acks_are_committed_together(
    tx: BlockingChannel, channel: BlockingChannel, queue: Maker
) -> None:
    source, target = queue(), queue()
    fill(channel, source, 3)
    inbox = Inbox(tx, source)
    inbox.wait_for(3)
    for delivery in inbox.deliveries:
        tx.basic_publish("", target, delivery.body.upper())
        tx.basic_ack(delivery.tag)
    fence(tx, target)
    assert ready(channel, target) == 0
    tx.tx_commit()
    assert take_all(channel, target) == [b"0", b"1", b"2"]
    tx.close()
    fence(channel, source)
    assert ready(channel, source) == 0


def test_consumers_of_others_see_committed_messages(
    tx: BlockingChannel, channel: BlockingChannel, queue: Maker
) -> None:
    name = queue()
    inbox = Inbox(channel, name, auto_ack=True)
    tx.basic_publish("", name, b"x")
    fence(tx, name)
    assert inbox.settled() == []
    tx.tx_commit()
    wait_until(lambda: inbox.bodies == [b"x"], channel)
