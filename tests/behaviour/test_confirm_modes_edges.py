"""The confirm modes consumer-ack and consumer-ack-light at their edges: several queues, consumers and publishers that go.

Where both modes promise the same the test runs in both. The ordinary life of a message is in test_consumer_ack_confirms.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import aio_pika
import aiormq.exceptions
import pamqp.commands as amqp
import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from behaviour.helpers import Inbox, confirming, fence, ready, take_all
from behaviour.producer import BOTH, CONSUMER_ACK, LIGHT, Producer, in_mode
from broker_process import BrokerAddress
from support import eventually
from wire_client import WireClient

pytestmark = pytest.mark.own

Maker = Callable[..., str]
Connect = Callable[..., pika.BlockingConnection]
Raw = Callable[..., WireClient]

ONLY_ACK = "NOT_IMPLEMENTED - only basic.ack is possible in the confirm mode 'consumer-ack-light'"


@pytest.fixture
def producer(wire: WireClient) -> Producer:
    return Producer(wire)


@pytest.fixture(params=BOTH)
def mode(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def waiting(queue: Maker, mode: str) -> str:
    """A durable queue in `mode`."""
    return queue(durable=True, arguments=in_mode(mode))


@pytest.fixture
def light(queue: Maker) -> str:
    return queue(durable=True, arguments=in_mode(LIGHT))


def closed_with(channel: BlockingChannel, queue: str) -> tuple[int, str]:
    """With what the broker closes the channel."""
    with pytest.raises(pika.exceptions.ChannelClosedByBroker) as caught:
        fence(channel, queue)
    return caught.value.reply_code, caught.value.reply_text


# --- several queues ------------------------------------------------------------------------------------------------------


def test_message_for_queues_of_all_modes_waits_for_the_acks_of_those_that_promise_them(
    producer: Producer, connect: Connect, channel: BlockingChannel, exchange: Maker, queue: Maker
) -> None:
    source = exchange("fanout")
    names = [queue(durable=True, arguments=in_mode(each)) for each in ("persist", *BOTH, *BOTH)]
    names.append(queue())
    for name in names:
        channel.queue_bind(name, source)
    producer.publish(exchange=source)
    for name in names[1:5]:
        producer.waits()
        inbox = Inbox(connect().channel(), name)
        inbox.wait_for(1)
        producer.waits()
        inbox.ack(1)
        fence(inbox.channel, name)
    producer.ends_with("ack")


def test_durable_and_transient_queue_promise_the_same(
    producer: Producer, connect: Connect, channel: BlockingChannel, exchange: Maker, queue: Maker, mode: str
) -> None:
    source = exchange("fanout")
    names = [queue(durable=durable, arguments=in_mode(mode)) for durable in (True, False)]
    for name in names:
        channel.queue_bind(name, source)
    producer.publish(exchange=source)
    for name in names:
        producer.waits()
        inbox = Inbox(connect().channel(), name)
        inbox.wait_for(1)
        inbox.ack(1)
        fence(inbox.channel, name)
    producer.ends_with("ack")


def test_one_loss_is_told_when_the_last_queue_has_settled_it(
    producer: Producer, connect: Connect, channel: BlockingChannel, exchange: Maker, queue: Maker
) -> None:
    source = exchange("fanout")
    names = [queue(arguments=in_mode(each)) for each in BOTH]
    for name in names:
        channel.queue_bind(name, source)
    producer.publish(exchange=source)
    connection = connect()
    Inbox(connection.channel(), names[1]).wait_for(1)
    connection.close()
    producer.waits()
    inbox = Inbox(connect().channel(), names[0])
    inbox.wait_for(1)
    inbox.ack(1)
    producer.ends_with("nack")


# --- consumers -----------------------------------------------------------------------------------------------------------


def test_without_a_consumer_there_is_no_confirm(producer: Producer, waiting: str) -> None:
    producer.publish(waiting, count=5)
    producer.waits()
    producer.client.call(1, amqp.Queue.Purge(queue=waiting), amqp.Queue.PurgeOk)
    assert producer.next(5) == dict.fromkeys(range(1, 6), "nack")


@pytest.mark.parametrize("how", ["channel", "connection", "socket"])
def test_consumer_that_goes_before_its_ack(
    producer: Producer, raw: Raw, connect: Connect, waiting: str, mode: str, how: str
) -> None:
    """consumer-ack: the next consumer gets it. consumer-ack-light: nobody has it any more."""
    client = raw().open()
    client.open_channel(1)
    client.call(1, amqp.Basic.Consume(queue=waiting), amqp.Basic.ConsumeOk)
    producer.publish(waiting)
    client.expect_content(1, amqp.Basic.Deliver)
    producer.waits()
    if how == "channel":
        client.call(1, amqp.Channel.Close(200, "", 0, 0), amqp.Channel.CloseOk)
    elif how == "connection":
        client.call(0, amqp.Connection.Close(200, "", 0, 0), amqp.Connection.CloseOk)
    else:
        client.close()
    if mode == LIGHT:
        producer.ends_with("nack")
        assert take_all(connect().channel(), waiting) == []
        return
    again = Inbox(connect().channel(), waiting)
    again.wait_for(1)
    assert again.deliveries[0].redelivered
    producer.waits()
    again.ack(1)
    producer.ends_with("ack")


def test_consumer_that_goes_in_the_middle_of_its_acks(
    producer: Producer, raw: Raw, connect: Connect, waiting: str, mode: str
) -> None:
    """What it acked is acked, though it sent nothing after; the rest is as if it had acked nothing."""
    client = raw().open()
    client.open_channel(1)
    client.call(1, amqp.Basic.Consume(queue=waiting), amqp.Basic.ConsumeOk)
    producer.publish(waiting, count=6)
    for _ in range(6):
        client.expect_content(1, amqp.Basic.Deliver)
    client.method(1, amqp.Basic.Ack(2, multiple=True))
    client.method(1, amqp.Basic.Ack(5))
    client.frame(1, 1, b"\x00\x3c")  # cut off within the next method
    client.close()
    if mode == LIGHT:
        assert producer.next(6) == {1: "ack", 2: "ack", 3: "nack", 4: "nack", 5: "ack", 6: "nack"}
    else:
        assert producer.next(3) == {1: "ack", 2: "ack", 5: "ack"}
        producer.waits()
        again = Inbox(connect().channel(), waiting)
        again.wait_for(3)
        again.channel.basic_ack(3, multiple=True)
        assert producer.next(3) == {3: "ack", 4: "ack", 6: "ack"}
    producer.waits()


def test_consumer_that_goes_after_its_ack(producer: Producer, connect: Connect, waiting: str) -> None:
    connection = connect()
    inbox = Inbox(connection.channel(), waiting)
    producer.publish(waiting)
    inbox.wait_for(1)
    inbox.ack(1)
    connection.close()
    producer.ends_with("ack")
    assert take_all(connect().channel(), waiting) == []


def test_second_consumer_acks_what_the_first_gave_back(producer: Producer, connect: Connect, queue: Maker) -> None:
    name = queue(arguments=in_mode(CONSUMER_ACK))
    first = connect().channel()
    first.basic_qos(prefetch_count=1)
    giving_back = Inbox(first, name)
    producer.publish(name)
    giving_back.wait_for(1)
    second = Inbox(connect().channel(), name)
    first.basic_cancel(giving_back.tag)
    first.basic_nack(1, requeue=True)
    second.wait_for(1)
    assert second.deliveries[0].redelivered
    producer.waits()
    second.ack(1)
    producer.ends_with("ack")


def test_cancelled_consumer_may_still_ack(producer: Producer, connect: Connect, waiting: str) -> None:
    inbox = Inbox(connect().channel(), waiting)
    producer.publish(waiting)
    inbox.wait_for(1)
    inbox.channel.basic_cancel(inbox.tag)
    producer.waits()
    inbox.ack(1)
    producer.ends_with("ack")


@pytest.mark.parametrize("ready_first", [False, True])
def test_delivery_without_acks_counts_as_the_ack(
    producer: Producer, connect: Connect, waiting: str, ready_first: bool
) -> None:
    if ready_first:
        producer.publish(waiting)
        producer.waits()
    inbox = Inbox(connect().channel(), waiting, auto_ack=True)
    if not ready_first:
        producer.publish(waiting)
    inbox.wait_for(1)
    producer.ends_with("ack")


@pytest.mark.parametrize("auto_ack", [False, True])
def test_basic_get(producer: Producer, connect: Connect, waiting: str, auto_ack: bool) -> None:
    producer.publish(waiting)
    producer.waits()
    channel = connect().channel()
    method, _, body = channel.basic_get(waiting, auto_ack=auto_ack)
    assert body == b"x"
    if not auto_ack:
        producer.waits()
        channel.basic_ack(method.delivery_tag)
    producer.ends_with("ack")


def test_multiple_ack_of_some_and_prefetch(producer: Producer, connect: Connect, waiting: str) -> None:
    """Deliveries that the queue has forgotten count for the prefetch like any other."""
    channel = connect().channel()
    channel.basic_qos(prefetch_count=4)
    inbox = Inbox(channel, waiting)
    producer.publish(waiting, count=10)
    producer.waits()
    assert len(inbox.settled()) == 4
    channel.basic_ack(3, multiple=True)
    assert producer.next(3) == {1: "ack", 2: "ack", 3: "ack"}
    inbox.wait_for(7)
    assert len(inbox.settled()) == 7
    channel.basic_ack(0, multiple=True)
    inbox.wait_for(10)
    channel.basic_ack(10, multiple=True)
    assert set(producer.next(7).values()) == {"ack"}
    producer.waits()


# --- only basic.ack is possible in consumer-ack-light --------------------------------------------------------------------


@pytest.mark.parametrize("how", ["nack", "nack and requeue", "reject", "reject and requeue", "recover"])
def test_light_delivery_can_only_be_acked(producer: Producer, connect: Connect, light: str, how: str) -> None:
    channel = connect().channel()
    inbox = Inbox(channel, light)
    producer.publish(light, count=2)
    inbox.wait_for(2)
    if how == "recover":
        with pytest.raises(pika.exceptions.ChannelClosedByBroker) as caught:
            channel.basic_recover(requeue=True)
        assert (caught.value.reply_code, caught.value.reply_text) == (540, ONLY_ACK)
    else:
        refuse = channel.basic_nack if how.startswith("nack") else channel.basic_reject
        refuse(1, requeue="requeue" in how)
        assert closed_with(channel, light) == (540, ONLY_ACK)
    assert producer.next(2) == {1: "nack", 2: "nack"}
    producer.waits()


def test_refusing_a_light_delivery_gives_the_others_back(
    producer: Producer, connect: Connect, queue: Maker, light: str
) -> None:
    plain = queue(durable=True)
    producer.publish(plain, body=b"plain")
    producer.publish(light)
    assert producer.next() == {1: "ack"}
    channel = connect().channel()
    for name in (plain, light):
        channel.basic_get(name)
    channel.basic_nack(2, multiple=True, requeue=False)
    assert closed_with(channel, light) == (540, ONLY_ACK)
    producer.ends_with("nack")
    assert take_all(connect().channel(), plain) == [b"plain"]


def test_large_message_in_a_light_queue_may_be_refused(producer: Producer, connect: Connect, light: str) -> None:
    """It goes the way of persist, whole."""
    producer.publish(light, body=b"x" * 10_000)
    producer.ends_with("ack")
    channel = connect().channel()
    tag = channel.basic_get(light)[0].delivery_tag
    channel.basic_nack(tag, requeue=True)
    assert ready(channel, light) == 1


@pytest.mark.parametrize("body", [4_200, 100_000])
def test_large_message_is_confirmed_as_in_persist(producer: Producer, connect: Connect, waiting: str, body: int) -> None:
    producer.publish(waiting, body=b"x" * body)
    producer.ends_with("ack")
    assert [len(each) for each in take_all(connect().channel(), waiting)] == [body]


# --- purge and deletion --------------------------------------------------------------------------------------------------


def test_purge_leaves_alone_what_is_handed_out(producer: Producer, connect: Connect, waiting: str) -> None:
    channel = connect().channel()
    producer.publish(waiting, count=4)
    producer.waits()
    tag = channel.basic_get(waiting)[0].delivery_tag
    assert channel.queue_purge(waiting).method.message_count == 3
    assert producer.next(3) == {2: "nack", 3: "nack", 4: "nack"}
    producer.waits()
    channel.basic_ack(tag)
    producer.ends_with("ack")


def test_deleted_queue_loses_what_is_in_it(producer: Producer, connect: Connect, waiting: str) -> None:
    """What is handed out is settled by who has it: acked, or lost with the consumer, as there is no queue to return to."""
    connection = connect()
    channel = connection.channel()
    producer.publish(waiting, count=4)
    producer.waits()
    for _ in range(3):
        channel.basic_get(waiting)
    connection.channel().queue_delete(waiting)
    assert producer.next() == {4: "nack"}
    producer.waits()
    channel.basic_ack(2)
    assert producer.next() == {2: "ack"}
    connection.close()
    assert producer.next(2) == {1: "nack", 3: "nack"}
    producer.waits()


def test_exclusive_queue_goes_with_its_connection(
    producer: Producer, connect: Connect, new_name: Maker, mode: str
) -> None:
    name, connection = new_name("exclusive"), connect()
    connection.channel().queue_declare(name, exclusive=True, arguments=in_mode(mode))
    inbox = Inbox(connection.channel(), name)
    inbox.channel.basic_qos(prefetch_count=1)
    producer.publish(name, count=2)
    inbox.wait_for(1)
    connection.close()
    assert producer.next(2) == {1: "nack", 2: "nack"}
    producer.waits()


# --- who publishes -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["channel", "connection", "socket"])
def test_publisher_that_has_gone_changes_nothing_for_the_consumer(
    raw: Raw, connect: Connect, waiting: str, how: str
) -> None:
    client = raw().open()
    client.open_channel(1)
    gone = Producer(client)
    inbox = Inbox(connect().channel(), waiting)
    gone.publish(waiting, count=3)
    gone.waits()
    inbox.wait_for(3)
    if how == "channel":
        client.call(1, amqp.Channel.Close(200, "", 0, 0), amqp.Channel.CloseOk)
    elif how == "connection":
        client.call(0, amqp.Connection.Close(200, "", 0, 0), amqp.Connection.CloseOk)
    else:
        client.close()
    inbox.ack(1, 2, 3)
    fence(inbox.channel, waiting)
    assert inbox.bodies == [b"x"] * 3
    if how == "channel":  # the number is free again, and its confirms begin at 1
        client.open_channel(1)
        new = Producer(client)
        new.publish(waiting)
        inbox.wait_for(4)
        inbox.ack(4)
        new.ends_with("ack")


def test_ack_in_a_transaction(producer: Producer, connect: Connect, waiting: str) -> None:
    channel = connect().channel()
    channel.tx_select()
    inbox = Inbox(channel, waiting)
    producer.publish(waiting, count=2)
    inbox.wait_for(2)
    channel.basic_ack(1)
    fence(channel, waiting)
    producer.waits()
    channel.tx_rollback()
    producer.waits()
    channel.basic_ack(2, multiple=True)
    producer.waits()
    channel.tx_commit()
    assert producer.next(2) == {1: "ack", 2: "ack"}
    producer.waits()


def test_refusing_a_light_delivery_in_a_transaction(producer: Producer, connect: Connect, light: str) -> None:
    """It is refused at once, as an unknown delivery tag is; what was acked and not committed is not acked."""
    channel = connect().channel()
    channel.tx_select()
    inbox = Inbox(channel, light)
    producer.publish(light, count=2)
    inbox.wait_for(2)
    channel.basic_ack(1)
    channel.basic_nack(2)
    assert closed_with(channel, light) == (540, ONLY_ACK)
    assert producer.next(2) == {1: "nack", 2: "nack"}
    producer.waits()


def test_transaction_of_publishes_needs_no_consumer(connect: Connect, waiting: str) -> None:
    channel = connect().channel()
    channel.tx_select()
    for _ in range(3):
        channel.basic_publish("", waiting, b"x", pika.BasicProperties(delivery_mode=2))
    channel.tx_commit()
    assert ready(channel, waiting) == 3


def test_message_of_a_transaction_in_a_light_queue_may_be_refused(connect: Connect, light: str) -> None:
    """tx.commit-ok said that it is kept, so it is."""
    channel = connect().channel()
    channel.tx_select()
    channel.basic_publish("", light, b"x")
    channel.tx_commit()
    taker = connect().channel()
    taker.basic_nack(taker.basic_get(light)[0].delivery_tag, requeue=True)
    assert take_all(connect().channel(), light) == [b"x"]


def test_priorities(producer: Producer, connect: Connect, queue: Maker, mode: str) -> None:
    name = queue(durable=True, arguments=in_mode(mode, max_priority=3))
    publisher = connect().channel()
    for priority in (0, 3, 1):
        publisher.basic_publish("", name, b"%d" % priority, pika.BasicProperties(priority=priority))
    producer.publish(name, count=2)
    inbox = Inbox(connect().channel(), name)
    assert inbox.wait_for(5) == [b"3", b"1", b"0", b"x", b"x"]
    producer.waits()
    inbox.channel.basic_ack(5, multiple=True)
    assert producer.next(2) == {1: "ack", 2: "ack"}


def test_message_returned_too_often_is_lost(producer: Producer, connect: Connect, queue: Maker) -> None:
    name = queue(arguments=in_mode(CONSUMER_ACK, delivery_limit=1))
    producer.publish(name)
    channel = connect().channel()
    for _ in range(2):
        producer.waits()
        channel.basic_nack(channel.basic_get(name)[0].delivery_tag)
    producer.ends_with("nack")


# --- memory pressure -----------------------------------------------------------------------------------------------------


def test_paged_out_messages_are_confirmed_by_their_acks_too(
    producer: Producer, connect: Connect, ctl: Callable[..., str], queue: Maker, mode: str
) -> None:
    """A lazy queue keeps nothing in memory that it can page out: several segments of it go to delta and come back."""
    name = queue(durable=True, arguments=in_mode(mode, queue_mode="lazy"))
    count = 40_000
    producer.publish(name, count=count)
    producer.waits()

    def paged_out() -> int:
        rows = [line.split("\t") for line in ctl("-q", "-s", "list_queues", "name", "messages_paged_out").splitlines()]
        return int(dict(rows)[name])

    eventually(lambda: paged_out() > count // 2, timeout=20)
    channel = connect().channel()
    channel.basic_qos(prefetch_count=500)
    seen = 0
    for method, _, _ in channel.consume(name):
        seen += 1
        if seen % 100 == 0:
            channel.basic_ack(method.delivery_tag, multiple=True)
        if seen == count:
            break
    outcome = producer.next(count)
    assert set(outcome.values()) == {"ack"} and len(outcome) == count
    producer.waits()


# --- declaring -----------------------------------------------------------------------------------------------------------


def test_unknown_mode_is_refused_with_the_names_of_the_three(wire: WireClient, new_name: Maker) -> None:
    name = new_name("mode")
    method = amqp.Queue.Declare(queue=name, arguments={"x-confirm-mode": "whenever"})
    wire.method(1, method)
    wire.expect_channel_close(
        1,
        406,
        f"invalid arg 'x-confirm-mode' for queue '{name}' in vhost '/': \"unsupported confirm mode 'whenever', expected "
        'persist or consumer-ack or consumer-ack-light"',
        50,
        10,
    )


@pytest.mark.parametrize("other", [None, "persist", CONSUMER_ACK, LIGHT])
def test_mode_is_part_of_the_declaration(channel: BlockingChannel, waiting: str, mode: str, other: str | None) -> None:
    arguments = {} if other is None else in_mode(other)
    if other == mode:
        channel.queue_declare(waiting, durable=True, arguments=arguments)
        return
    with pytest.raises(pika.exceptions.ChannelClosedByBroker) as caught:
        channel.queue_declare(waiting, durable=True, arguments=arguments)
    received = "received none" if other is None else f"received '{other}'"
    assert caught.value.reply_code == 406
    assert f"inequivalent arg 'x-confirm-mode' for queue '{waiting}' in vhost '/': {received}" in caught.value.reply_text


# --- other clients -------------------------------------------------------------------------------------------------------


def test_aio_pika_awaits_the_consumers_ack(broker: BrokerAddress, new_name: Maker, mode: str) -> None:
    """Many publishes wait at once; one is lost with its consumer's connection in the light mode, none in the other."""
    name = new_name("aio")

    async def scenario() -> None:
        async with await aio_pika.connect(broker.url) as publishing, await aio_pika.connect(broker.url) as taking:
            channel = await publishing.channel()
            await channel.declare_queue(name, durable=True, arguments=in_mode(mode))
            waits = [
                asyncio.ensure_future(channel.default_exchange.publish(aio_pika.Message(b"%d" % number), name))
                for number in range(20)
            ]
            queue = await (await taking.channel()).get_queue(name)
            first = await queue.get(timeout=5)
            assert not any(each.done() for each in waits)
            await first.channel.close()
            again = await taking.channel()
            async with (await again.get_queue(name)).iterator() as messages:
                left = 19 if mode == LIGHT else 20
                async for message in messages:
                    await message.ack()
                    left -= 1
                    if left == 0:
                        break
            outcomes = await asyncio.gather(*waits, return_exceptions=True)
            lost = [each for each in outcomes if isinstance(each, aiormq.exceptions.DeliveryError)]
            assert len(lost) == (1 if mode == LIGHT else 0)
            assert len(outcomes) == 20

    asyncio.run(asyncio.wait_for(scenario(), 30))


def test_pika_blocks_until_the_consumer_has_acked(connect: Connect, waiting: str) -> None:
    """With a consumer on the same connection's other end that acks, a blocking publish just returns."""
    taking = connect().channel()
    publisher = confirming(connect())
    inbox = Inbox(taking, waiting, auto_ack=True)
    publisher.basic_publish("", waiting, b"x")
    assert inbox.wait_for(1) == [b"x"]
