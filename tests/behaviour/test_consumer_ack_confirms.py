"""x-confirm-mode=consumer-ack: the publisher's confirm is the consumer's ack.

The confirm waits while the message is ready, delivered, requeued; a message that is gone without an ack is nacked to
its publisher.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import pamqp.commands as amqp
import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from behaviour.helpers import Inbox, confirms, fence, ready, settle, wait_until
from broker_process import BrokerAddress
from support import eventually
from wire_client import WireClient

pytestmark = pytest.mark.own

Maker = Callable[..., str]
Connect = Callable[..., pika.BlockingConnection]

CONSUMER_ACK = {"x-confirm-mode": "consumer-ack"}


@pytest.fixture
def publisher(wire: WireClient) -> WireClient:
    """Channel 1 is in confirm mode."""
    wire.call(1, amqp.Confirm.Select(), amqp.Confirm.SelectOk)
    return wire


@pytest.fixture
def waiting(queue: Maker) -> str:
    """A queue whose confirms wait for acks."""
    return queue(arguments=CONSUMER_ACK)


def publish(client: WireClient, queue: str, count: int = 1) -> None:
    for number in range(count):
        client.publish(1, "", queue, b"%d" % number)
    client.expect_silence(1)


def settled(client: WireClient) -> tuple[str, int]:
    """The next confirm, which is of one publish."""
    answer = client.read_command()[1]
    assert isinstance(answer, amqp.Basic.Ack | amqp.Basic.Nack), f"{answer.name} came"
    outcome: dict[int, str] = {}
    settle(outcome, answer)
    return ("ack" if isinstance(answer, amqp.Basic.Ack) else "nack"), answer.delivery_tag


# --- the ack -------------------------------------------------------------------------------------------------------------


def test_ready_message_is_not_confirmed(publisher: WireClient, waiting: str) -> None:
    publish(publisher, waiting, 5)


def test_delivered_message_is_not_confirmed_before_its_ack(
    publisher: WireClient, connect: Connect, waiting: str
) -> None:
    inbox = Inbox(connect().channel(), waiting)
    publish(publisher, waiting)
    inbox.wait_for(1)
    publisher.expect_silence(1)
    inbox.ack(1)
    assert settled(publisher) == ("ack", 1)
    publisher.expect_silence(1)


def test_acks_out_of_order_are_told_while_an_earlier_message_waits(
    publisher: WireClient, connect: Connect, waiting: str
) -> None:
    """The second comes within the pause that the first has begun: it must not wait for more than its end."""
    publish(publisher, waiting, 20)
    inbox = Inbox(connect().channel(), waiting)
    inbox.wait_for(20)
    for number in (3, 5, 4, 9):
        inbox.ack(number)
        assert settled(publisher) == ("ack", number)
    publisher.expect_silence(1)


def test_backlog_is_confirmed_as_it_is_acked(publisher: WireClient, connect: Connect, waiting: str) -> None:
    publish(publisher, waiting, 3)
    inbox = Inbox(connect().channel(), waiting)
    inbox.wait_for(3)
    for tag in (1, 2, 3):
        inbox.ack(tag)
        assert settled(publisher) == ("ack", tag)


def test_acks_out_of_order_confirm_just_those(publisher: WireClient, connect: Connect, waiting: str) -> None:
    publish(publisher, waiting, 5)
    inbox = Inbox(connect().channel(), waiting)
    inbox.wait_for(5)
    outcome: dict[int, str] = {}
    for tag in (4, 2, 5, 1, 3):
        inbox.ack(tag)
        before = set(outcome)
        answer = publisher.expect(1, amqp.Basic.Ack)
        settle(outcome, answer)
        assert set(outcome) == before | {tag}


def test_multiple_ack_confirms_all_of_them(publisher: WireClient, connect: Connect, waiting: str) -> None:
    publish(publisher, waiting, 100)
    inbox = Inbox(connect().channel(), waiting)
    inbox.wait_for(100)
    inbox.channel.basic_ack(60, multiple=True)
    assert confirms(publisher, 1, 60) == [("ack", tag) for tag in range(1, 61)]
    publisher.expect_silence(1)


def test_message_fetched_by_get_is_confirmed_by_its_ack(
    publisher: WireClient, connect: Connect, waiting: str
) -> None:
    publish(publisher, waiting)
    getting = connect().channel()
    tag = getting.basic_get(waiting)[0].delivery_tag
    fence(getting, waiting)
    publisher.expect_silence(1)
    getting.basic_ack(tag)
    assert settled(publisher) == ("ack", 1)


@pytest.mark.parametrize("ready_first", [False, True])
def test_consumer_without_acks_confirms_by_taking(
    publisher: WireClient, connect: Connect, waiting: str, ready_first: bool
) -> None:
    """With no-ack the delivery is the ack."""
    if ready_first:
        publish(publisher, waiting)
    inbox = Inbox(connect().channel(), waiting, auto_ack=True)
    if not ready_first:
        publisher.publish(1, "", waiting, b"0")
    assert inbox.wait_for(1) == [b"0"]
    assert settled(publisher) == ("ack", 1)


def test_get_without_ack_confirms_by_taking(publisher: WireClient, connect: Connect, waiting: str) -> None:
    publish(publisher, waiting)
    assert connect().channel().basic_get(waiting, auto_ack=True)[2] == b"0"
    assert settled(publisher) == ("ack", 1)


def test_publishes_to_other_queues_are_confirmed_meanwhile(
    publisher: WireClient, connect: Connect, queue: Maker, waiting: str
) -> None:
    plain = queue()
    publish(publisher, waiting)
    publisher.publish(1, "", plain, b"x")
    publisher.publish(1, "", "nowhere-at-all", b"x")
    outcome: dict[int, str] = {}
    while len(outcome) < 2:
        answer = publisher.expect(1, amqp.Basic.Ack)
        assert not answer.multiple, "it would cover the one that waits"
        settle(outcome, answer)
    assert outcome == {2: "ack", 3: "ack"}
    inbox = Inbox(connect().channel(), waiting)
    inbox.wait_for(1)
    inbox.ack(1)
    assert settled(publisher) == ("ack", 1)


def test_all_queues_must_have_had_their_ack(
    publisher: WireClient, connect: Connect, channel: BlockingChannel, exchange: Maker, queue: Maker
) -> None:
    source = exchange("fanout")
    names = [queue(arguments=CONSUMER_ACK), queue(arguments=CONSUMER_ACK), queue()]
    for name in names:
        channel.queue_bind(name, source)
    publisher.publish(1, source, "", b"x")
    inboxes = [Inbox(connect().channel(), name) for name in names]
    for inbox in inboxes:
        inbox.wait_for(1)
    inboxes[0].ack(1)
    fence(inboxes[0].channel, names[0])
    publisher.expect_silence(1)
    inboxes[1].ack(1)
    assert settled(publisher) == ("ack", 1)
    inboxes[2].ack(1)
    fence(inboxes[2].channel, names[2])
    publisher.expect_silence(1)


def test_ack_in_a_transaction_counts_from_the_commit(publisher: WireClient, connect: Connect, waiting: str) -> None:
    publish(publisher, waiting)
    channel = connect().channel()
    channel.tx_select()
    channel.basic_ack(channel.basic_get(waiting)[0].delivery_tag)
    fence(channel, waiting)
    publisher.expect_silence(1)
    channel.tx_commit()
    assert settled(publisher) == ("ack", 1)


def test_thousands_of_messages_are_confirmed_once_each(
    publisher: WireClient, connect: Connect, waiting: str
) -> None:
    publish(publisher, waiting, 5000)
    channel = connect().channel()
    inbox = Inbox(channel, waiting)
    inbox.wait_for(5000)
    for tag in range(5000, 0, -2):
        channel.basic_ack(tag)
    for tag in range(1, 5000, 2):
        channel.basic_ack(tag)
    fence(channel, waiting)
    assert confirms(publisher, 1, 5000) == [("ack", tag) for tag in range(1, 5001)]
    publisher.expect_silence(1)


# --- requeueing keeps it waiting -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["nack", "reject", "recover", "close the channel", "close the connection"])
def test_requeued_message_waits_on(publisher: WireClient, connect: Connect, waiting: str, how: str) -> None:
    publish(publisher, waiting)
    connection = connect()
    channel = connection.channel()
    tag = channel.basic_get(waiting)[0].delivery_tag
    if how == "nack":
        channel.basic_nack(tag)
    elif how == "reject":
        channel.basic_reject(tag)
    elif how == "recover":
        channel.basic_recover(requeue=True)
    elif how == "close the channel":
        channel.close()
    else:
        connection.close()
    again = Inbox(connect().channel(), waiting)
    again.wait_for(1)
    assert again.deliveries[0].redelivered
    publisher.expect_silence(1)
    again.ack(1)
    assert settled(publisher) == ("ack", 1)


# --- gone without an ack -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["nack", "reject"])
def test_message_nobody_wanted_is_nacked(publisher: WireClient, connect: Connect, waiting: str, how: str) -> None:
    publish(publisher, waiting)
    channel = connect().channel()
    tag = channel.basic_get(waiting)[0].delivery_tag
    if how == "nack":
        channel.basic_nack(tag, requeue=False)
    else:
        channel.basic_reject(tag, requeue=False)
    assert settled(publisher) == ("nack", 1)
    publisher.expect_silence(1)


def test_purged_messages_are_nacked_and_unacked_ones_wait(
    publisher: WireClient, connect: Connect, waiting: str
) -> None:
    publish(publisher, waiting, 4)
    channel = connect().channel()
    tag = channel.basic_get(waiting)[0].delivery_tag
    assert channel.queue_purge(waiting).method.message_count == 3
    assert confirms_of(publisher, 3) == {2: "nack", 3: "nack", 4: "nack"}
    publisher.expect_silence(1)
    channel.basic_ack(tag)
    assert settled(publisher) == ("ack", 1)


def confirms_of(client: WireClient, count: int) -> dict[int, str]:
    """Reads until so many publishes are settled; none of the answers may be multiple over one that is not."""
    outcome: dict[int, str] = {}
    while len(outcome) < count:
        answer = client.read_command()[1]
        assert isinstance(answer, amqp.Basic.Ack | amqp.Basic.Nack), f"{answer.name} came"
        settle(outcome, answer)
    return outcome


def test_messages_of_a_deleted_queue_are_nacked(publisher: WireClient, connect: Connect, waiting: str) -> None:
    publish(publisher, waiting, 3)
    connect().channel().queue_delete(waiting)
    assert confirms_of(publisher, 3) == {1: "nack", 2: "nack", 3: "nack"}
    publisher.expect_silence(1)


def test_unacked_message_of_a_deleted_queue_is_settled_by_its_consumer(
    publisher: WireClient, connect: Connect, waiting: str
) -> None:
    publish(publisher, waiting, 3)
    connection = connect()
    channel = connection.channel()
    for _ in range(3):
        channel.basic_get(waiting)
    connection.channel().queue_delete(waiting)
    publisher.expect_silence(1)
    channel.basic_ack(1)
    assert settled(publisher) == ("ack", 1)
    channel.basic_reject(2, requeue=False)
    assert settled(publisher) == ("nack", 2)
    channel.basic_nack(3)  # there is no queue to go back to
    assert settled(publisher) == ("nack", 3)


def test_exclusive_queue_that_goes_with_its_connection_nacks(
    publisher: WireClient, connect: Connect, new_name: Maker
) -> None:
    name, connection = new_name("exclusive"), connect()
    connection.channel().queue_declare(name, exclusive=True, arguments=CONSUMER_ACK)
    publish(publisher, name, 2)
    connection.close()
    assert confirms_of(publisher, 2) == {1: "nack", 2: "nack"}


def test_one_queue_that_loses_it_makes_the_whole_a_nack(
    publisher: WireClient, connect: Connect, channel: BlockingChannel, exchange: Maker, queue: Maker
) -> None:
    source = exchange("fanout")
    names = [queue(arguments=CONSUMER_ACK) for _ in range(2)]
    for name in names:
        channel.queue_bind(name, source)
    publisher.publish(1, source, "", b"x")
    eventually(lambda: ready(channel, names[0]) == 1)
    channel.queue_purge(names[0])
    publisher.expect_silence(1)
    inbox = Inbox(connect().channel(), names[1])
    inbox.wait_for(1)
    inbox.ack(1)
    assert settled(publisher) == ("nack", 1)


def test_pika_sees_the_nack(connect: Connect, queue: Maker) -> None:
    name = queue(arguments=CONSUMER_ACK)
    channel, rejecting = connect().channel(), connect().channel()
    channel.confirm_delivery()
    rejecting.basic_consume(name, lambda ch, method, *_: ch.basic_reject(method.delivery_tag, requeue=False))
    stop = threading.Event()

    def serve() -> None:
        while not stop.is_set():
            rejecting.connection.process_data_events(0.05)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        with pytest.raises(pika.exceptions.NackError):
            channel.basic_publish("", name, b"x")
    finally:
        stop.set()
        thread.join()


# --- who publishes -------------------------------------------------------------------------------------------------------


def test_publisher_without_confirms_is_told_nothing(wire: WireClient, connect: Connect, waiting: str) -> None:
    inbox = Inbox(connect().channel(), waiting)
    wire.publish(1, "", waiting, b"x")
    inbox.wait_for(1)
    inbox.ack(1)
    fence(inbox.channel, waiting)
    wire.expect_silence(1)


def test_publisher_that_has_gone_does_not_stop_the_consumer(
    broker: BrokerAddress, raw: Callable[..., WireClient], connect: Connect, waiting: str
) -> None:
    client = raw().open()
    client.open_channel(1)
    client.call(1, amqp.Confirm.Select(), amqp.Confirm.SelectOk)
    publish(client, waiting, 3)
    client.close()
    channel = connect().channel()
    inbox = Inbox(channel, waiting)
    inbox.wait_for(3)
    inbox.ack(1)
    channel.basic_reject(2, requeue=False)
    inbox.ack(3)
    fence(channel, waiting)
    wait_until(lambda: channel.queue_declare(waiting, passive=True).method.message_count == 0, channel)


def test_mode_is_part_of_the_declaration(channel: BlockingChannel, waiting: str) -> None:
    channel.queue_declare(waiting, arguments=CONSUMER_ACK)
    with pytest.raises(pika.exceptions.ChannelClosedByBroker) as caught:
        channel.queue_declare(waiting)
    assert caught.value.reply_text == (
        f"PRECONDITION_FAILED - inequivalent arg 'x-confirm-mode' for queue '{waiting}' in vhost '/': "
        "received none but current is the value 'consumer-ack' of type 'longstr'"
    )


def test_persist_is_the_ordinary_mode(publisher: WireClient, queue: Maker) -> None:
    publisher.publish(1, "", queue(arguments={"x-confirm-mode": "persist"}), b"x")
    assert settled(publisher) == ("ack", 1)


def test_unknown_mode_is_refused(wire: WireClient, new_name: Maker) -> None:
    name = new_name("mode")
    wire.method(1, amqp.Queue.Declare(queue=name, arguments={"x-confirm-mode": "whenever"}))
    close = wire.expect(1, amqp.Channel.Close)
    assert close.reply_code == 406
    assert close.reply_text.startswith(f"PRECONDITION_FAILED - invalid arg 'x-confirm-mode' for queue '{name}' in vhost '/'")


def test_prefetch_and_the_next_message_work_as_ever(publisher: WireClient, connect: Connect, waiting: str) -> None:
    publish(publisher, waiting, 3)
    channel = connect().channel()
    channel.basic_qos(prefetch_count=1)
    inbox = Inbox(channel, waiting)
    for tag in (1, 2, 3):
        assert len(inbox.wait_for(tag)) == tag
        inbox.ack(tag)
        assert settled(publisher) == ("ack", tag)
    eventually(lambda: channel.queue_declare(waiting, passive=True).method.message_count == 0)
