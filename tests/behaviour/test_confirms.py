"""Publisher confirms: each publish on a channel in confirm mode is settled exactly once, numbered from 1."""

from __future__ import annotations

from collections.abc import Callable

import pamqp.commands as amqp
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from behaviour.helpers import confirms, read_anything, settle
from support import unique
from wire_client import Delivered, WireClient, field_table

Maker = Callable[..., str]

PERSISTENT = b"\x10\x00\x02"


def all_acked(upto: int) -> list[tuple[str, int]]:
    return [("ack", tag) for tag in range(1, upto + 1)]


def publish_persistent(client: WireClient, exchange: str, key: str, body: bytes = b"x") -> None:
    client.method(1, amqp.Basic.Publish(exchange=exchange, routing_key=key))
    client.header(1, len(body), PERSISTENT)
    client.body(1, body)


@pytest.fixture
def publisher(wire: WireClient) -> WireClient:
    """Channel 1 is in confirm mode."""
    wire.call(1, amqp.Confirm.Select(), amqp.Confirm.SelectOk)
    return wire


def test_first_publish_is_number_one(publisher: WireClient, queue: Maker) -> None:
    publisher.publish(1, "", queue(), b"x")
    ack = publisher.expect(1, amqp.Basic.Ack)
    assert (ack.delivery_tag, ack.multiple) == (1, False)


def test_publishes_are_numbered_one_by_one(publisher: WireClient, queue: Maker) -> None:
    name = queue()
    for tag in range(1, 11):
        publisher.publish(1, "", name, b"x")
        assert publisher.expect(1, amqp.Basic.Ack).delivery_tag == tag


def test_publishes_before_confirm_select_do_not_count(wire: WireClient, queue: Maker) -> None:
    name = queue()
    for _ in range(5):
        wire.publish(1, "", name, b"x")
    wire.call(1, amqp.Confirm.Select(), amqp.Confirm.SelectOk)
    wire.publish(1, "", name, b"x")
    assert wire.expect(1, amqp.Basic.Ack).delivery_tag == 1


def test_confirm_mode_may_be_selected_again_and_counts_on(publisher: WireClient, queue: Maker) -> None:
    name = queue()
    publisher.publish(1, "", name, b"x")
    assert publisher.expect(1, amqp.Basic.Ack).delivery_tag == 1
    publisher.call(1, amqp.Confirm.Select(), amqp.Confirm.SelectOk)
    publisher.publish(1, "", name, b"x")
    assert publisher.expect(1, amqp.Basic.Ack).delivery_tag == 2


def test_no_wait_select_is_not_answered(wire: WireClient, queue: Maker) -> None:
    wire.method(1, amqp.Confirm.Select(nowait=True))
    wire.publish(1, "", queue(), b"x")
    assert wire.expect(1, amqp.Basic.Ack).delivery_tag == 1


def test_channel_that_did_not_select_is_told_nothing(wire: WireClient, queue: Maker) -> None:
    name = queue()
    wire.open_channel(2)
    wire.call(2, amqp.Confirm.Select(), amqp.Confirm.SelectOk)
    wire.publish(1, "", name, b"x")
    wire.publish(2, "", name, b"x")
    assert wire.expect(2, amqp.Basic.Ack).delivery_tag == 1
    wire.expect_silence(1)


def test_each_channel_counts_for_itself(publisher: WireClient, queue: Maker) -> None:
    name = queue()
    publisher.open_channel(2)
    publisher.call(2, amqp.Confirm.Select(), amqp.Confirm.SelectOk)
    for tag in (1, 2):
        for channel in (1, 2):
            publisher.publish(channel, "", name, b"x")
            assert publisher.expect(channel, amqp.Basic.Ack).delivery_tag == tag


def test_reopened_channel_starts_again(publisher: WireClient, queue: Maker) -> None:
    name = queue()
    publisher.publish(1, "", name, b"x")
    publisher.expect(1, amqp.Basic.Ack)
    publisher.call(1, amqp.Channel.Close(reply_code=200, reply_text="", class_id=0, method_id=0), amqp.Channel.CloseOk)
    publisher.open_channel(1)
    publisher.publish(1, "", name, b"x")
    publisher.expect_silence(1)
    publisher.call(1, amqp.Confirm.Select(), amqp.Confirm.SelectOk)
    publisher.publish(1, "", name, b"x")
    assert publisher.expect(1, amqp.Basic.Ack).delivery_tag == 1


@pytest.mark.parametrize("exchange", ["", "amq.direct", "amq.fanout", "amq.topic", "amq.headers"])
def test_unroutable_message_is_acked(publisher: WireClient, exchange: str) -> None:
    publisher.publish(1, exchange, unique("nowhere"), b"x")
    assert confirms(publisher, 1, 1) == all_acked(1)


def test_empty_message_is_acked(publisher: WireClient, queue: Maker) -> None:
    publisher.publish(1, "", queue())
    assert confirms(publisher, 1, 1) == all_acked(1)


@pytest.mark.parametrize("durable", [False, True])
@pytest.mark.parametrize("persistent", [False, True])
def test_every_publish_of_a_burst_is_acked_once(
    publisher: WireClient, queue: Maker, durable: bool, persistent: bool
) -> None:
    name = queue(durable=durable)
    for _ in range(1000):
        if persistent:
            publish_persistent(publisher, "", name)
        else:
            publisher.publish(1, "", name, b"x")
    assert confirms(publisher, 1, 1000) == all_acked(1000)
    publisher.expect_silence(1)


def test_twenty_thousand_publishes_may_be_outstanding(
    raw: Callable[..., WireClient], channel: BlockingChannel, queue: Maker
) -> None:
    publisher = raw(timeout=30).open()
    publisher.open_channel(1)
    publisher.call(1, amqp.Confirm.Select(), amqp.Confirm.SelectOk)
    name = queue()
    for _ in range(20_000):
        publisher.publish(1, "", name, b"x")
    assert confirms(publisher, 1, 20_000) == all_acked(20_000)
    assert channel.queue_purge(name).method.message_count == 20_000


def test_mixture_of_routed_and_unroutable_is_acked_once_each(publisher: WireClient, queue: Maker) -> None:
    transient, durable = queue(), queue(durable=True)
    for number in range(600):
        if number % 3 == 0:
            publish_persistent(publisher, "", durable)
        else:
            publisher.publish(1, "", transient if number % 3 == 1 else "nowhere-at-all", b"x")
    assert confirms(publisher, 1, 600) == all_acked(600)
    publisher.expect_silence(1)


def test_message_for_several_queues_is_acked_once(
    publisher: WireClient, channel: BlockingChannel, queue: Maker, exchange: Maker
) -> None:
    source = exchange("fanout")
    names = [queue(durable=number % 2 == 0) for number in range(5)]
    for name in names:
        channel.queue_bind(name, source)
    for _ in range(50):
        publish_persistent(publisher, source, "")
    assert confirms(publisher, 1, 50) == all_acked(50)
    publisher.expect_silence(1)
    assert [channel.queue_purge(name).method.message_count for name in names] == [50] * 5


def test_acked_message_is_in_its_queue(publisher: WireClient, channel: BlockingChannel, queue: Maker) -> None:
    name = queue()
    for count in range(1, 51):
        publisher.publish(1, "", name, b"x")
        publisher.expect(1, amqp.Basic.Ack)
        assert channel.queue_declare(name, passive=True).method.message_count == count


def test_message_routed_by_headers_is_acked(
    publisher: WireClient, channel: BlockingChannel, queue: Maker, exchange: Maker
) -> None:
    source, name = exchange("headers"), queue()
    channel.queue_bind(name, source, arguments={"x-match": "all", "a": 1})
    publisher.method(1, amqp.Basic.Publish(exchange=source, routing_key=""))
    publisher.header(1, 1, b"\x20\x00" + field_table(("a", "I", b"\x00\x00\x00\x01")))
    publisher.body(1, b"x")
    assert confirms(publisher, 1, 1) == all_acked(1)
    assert channel.queue_purge(name).method.message_count == 1


def test_message_that_went_straight_to_a_consumer_is_acked_once(publisher: WireClient, queue: Maker) -> None:
    name = queue(durable=True)
    publisher.open_channel(2)
    publisher.call(2, amqp.Basic.Consume(queue=name, no_ack=True), amqp.Basic.ConsumeOk)
    publish_persistent(publisher, "", name)
    came = set()
    while len(came) < 4:  # the confirm, and three frames of the delivery
        frame = publisher.read_frame()
        came.add((frame.channel, frame.type))
    assert came == {(1, 1), (2, 1), (2, 2), (2, 3)}
    publisher.expect_silence(1)


@pytest.mark.parametrize("end", ["purge", "delete"])
def test_messages_whose_queue_is_purged_or_deleted_are_acked(
    publisher: WireClient, channel: BlockingChannel, queue: Maker, end: str
) -> None:
    name = queue(durable=True)
    for _ in range(500):
        publish_persistent(publisher, "", name)
    if end == "purge":
        channel.queue_purge(name)
    else:
        channel.queue_delete(name)
    assert confirms(publisher, 1, 500) == all_acked(500)


def test_rejected_message_stays_confirmed(publisher: WireClient, channel: BlockingChannel, queue: Maker) -> None:
    name = queue(durable=True)
    publish_persistent(publisher, "", name)
    assert confirms(publisher, 1, 1) == all_acked(1)
    method, _, _ = channel.basic_get(name)
    channel.basic_reject(method.delivery_tag, requeue=False)
    publish_persistent(publisher, "", name)
    assert publisher.expect(1, amqp.Basic.Ack).delivery_tag == 2
    publisher.expect_silence(1)


def test_confirms_go_on_beside_other_methods(publisher: WireClient, queue: Maker) -> None:
    name = queue()
    for _ in range(20):
        publisher.publish(1, "", name, b"x")
        publisher.method(1, amqp.Basic.Get(queue=name, no_ack=True))
    got, outcome = 0, {}
    while got < 20 or len(outcome) < 20:
        came = read_anything(publisher, 1)
        if isinstance(came, Delivered):
            got += 1
        else:
            assert isinstance(came, amqp.Basic.Ack)
            settle(outcome, came)
    assert set(outcome.values()) == {"ack"}
    publisher.expect_silence(1)


def test_refused_publish_is_nacked(publisher: WireClient, channel: BlockingChannel, queue: Maker) -> None:
    name = queue(arguments={"x-max-length": 2, "x-overflow": "reject-publish"})
    outcome: dict[int, str] = {}
    for _ in range(4):
        publisher.publish(1, "", name, b"x")
        answer = publisher.read_command()[1]
        assert isinstance(answer, amqp.Basic.Ack | amqp.Basic.Nack)
        settle(outcome, answer)
    assert outcome == {1: "ack", 2: "ack", 3: "nack", 4: "nack"}
    assert channel.queue_purge(name).method.message_count == 2
    publisher.publish(1, "", name, b"x")
    assert publisher.expect(1, amqp.Basic.Ack).delivery_tag == 5


def test_refused_publishes_of_a_burst_are_nacked_once_each(
    publisher: WireClient, channel: BlockingChannel, queue: Maker
) -> None:
    name = queue(arguments={"x-max-length": 100, "x-overflow": "reject-publish"})
    for _ in range(500):
        publisher.publish(1, "", name, b"x")
    outcome = [how for how, _ in confirms(publisher, 1, 500)]
    publisher.expect_silence(1)
    assert outcome.count("ack") == channel.queue_purge(name).method.message_count >= 100
    assert "nack" in outcome
