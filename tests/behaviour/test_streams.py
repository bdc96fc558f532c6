"""Streams: what may be declared, where consumers begin, that reading takes nothing away, and what is refused.

RabbitMQ 3.10 is right, but where a test says otherwise.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from typing import Any

import pamqp.commands as amqp
import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import AMQPError, ChannelClosedByBroker, ConnectionClosedByBroker

from behaviour.helpers import confirming
from support import eventually
from wire_client import WireClient

Maker = Callable[..., str]
Connect = Callable[..., pika.BlockingConnection]

REFUSED = "PRECONDITION_FAILED - "
OF_4 = "as in RabbitMQ 4"
OFFSET = "x-stream-offset"


@pytest.fixture
def channel(connection: pika.BlockingConnection) -> BlockingChannel:
    """In confirm mode: what was published is in its stream, and may be shown, when basic_publish returns."""
    return confirming(connection)


@pytest.fixture
def stream(channel: BlockingChannel, new_name: Maker) -> Maker:
    """`stream(x_max_age="1h")` declares a stream under a fresh name."""

    def declare(**arguments: Any) -> str:
        name = new_name("stream")
        declare_as(channel, name, **arguments)
        return name

    return declare


def declare_as(channel: BlockingChannel, name: str, /, **arguments: Any) -> Any:
    given = {key.replace("_", "-"): value for key, value in arguments.items()}
    return channel.queue_declare(name, durable=True, arguments={"x-queue-type": "stream", **given})


def publish(channel: BlockingChannel, name: str, *bodies: bytes, **properties: Any) -> None:
    for body in bodies:
        channel.basic_publish("", name, body, pika.BasicProperties(**properties))


class Reader:
    """A consumer on a channel of its own. pika would reject what it did not show, so it is never cancelled here."""

    def __init__(self, connection: pika.BlockingConnection, name: str, prefetch: int = 100, **arguments: Any) -> None:
        self.connection = connection
        self.channel = connection.channel()
        self.channel.basic_qos(prefetch_count=prefetch)
        self.got: list[tuple[Any, Any, bytes]] = []
        self.cancelled: list[Any] = []
        self.channel.add_on_cancel_callback(self.cancelled.append)
        given = {key.replace("_", "-"): value for key, value in arguments.items()}
        self.tag = self.channel.basic_consume(name, self._take, arguments=given or None)

    def _take(self, channel: Any, method: Any, properties: Any, body: bytes) -> None:
        self.got.append((method, properties, body))

    def wait(self, count: int) -> Reader:
        """Until so many deliveries have come in all."""

        def have() -> bool:
            self.connection.process_data_events(0.01)
            return len(self.got) >= count

        eventually(have)
        return self

    @property
    def offsets(self) -> list[int]:
        return [int(properties.headers[OFFSET]) for _, properties, _ in self.got]

    @property
    def bodies(self) -> list[bytes]:
        return [body for _, _, body in self.got]

    @property
    def tags(self) -> list[int]:
        return [method.delivery_tag for method, _, _ in self.got]


def bodies(count: int, start: int = 0) -> list[bytes]:
    return [b"%d" % number for number in range(start, start + count)]


def refusal(action: Callable[[], Any]) -> tuple[int, str, bool]:
    """Code, text, and whether the connection ended."""
    with pytest.raises(AMQPError) as caught:
        action()
    error: Any = caught.value
    return error.reply_code, error.reply_text, isinstance(error, ConnectionClosedByBroker)


# --- declaring -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"x_max_length_bytes": 20_000_000},
        {"x_max_age": "7D"},
        {"x_max_age": "99999999999999999999Y"},
        {"x_stream_max_segment_size_bytes": 3_000_000_000},
        {"x_stream_filter_size_bytes": 32},
        {"x_queue_leader_locator": "least-leaders", "x_initial_cluster_size": 3},
    ],
    ids=str,
)
def test_declaration_is_taken_and_may_be_repeated(channel: BlockingChannel, stream: Maker, arguments: dict[str, Any]) -> None:
    declare_as(channel, stream(**arguments), **arguments)


@pytest.mark.parametrize(
    ("arguments", "key", "why"),
    [
        ({"x_max_length_bytes": -1}, "x-max-length-bytes", "{value_negative,-1}"),
        ({"x_max_length_bytes": "a"}, "x-max-length-bytes", '"expected integer, got longstr"'),
        ({"x_max_age": "1w"}, "x-max-age", "invalid_max_age"),
        ({"x_max_age": "0s"}, "x-max-age", "invalid_max_age"),
        ({"x_max_age": 5}, "x-max-age", "{unacceptable_type,signedint}"),
        ({"x_stream_max_segment_size_bytes": -1}, "x-stream-max-segment-size-bytes", "{value_negative,-1}"),
        ({"x_queue_leader_locator": "x"}, "x-queue-leader-locator", "invalid_queue_locator_arg"),
        ({"x_initial_cluster_size": 0}, "x-initial-cluster-size", "{value_zero,0}"),
        ({"x_initial_cluster_size": "a"}, "x-initial-cluster-size", '"expected integer, got longstr"'),
    ],
    ids=str,
)
def test_bad_value_is_refused(
    channel: BlockingChannel, new_name: Maker, arguments: dict[str, Any], key: str, why: str
) -> None:
    name = new_name("refused")
    text = f"{REFUSED}invalid arg '{key}' for queue '{name}' in vhost '/': {why}"
    assert refusal(lambda: declare_as(channel, name, **arguments)) == (406, text, False)


@pytest.mark.differs("RabbitMQ ends the connection with 541")
@pytest.mark.parametrize("age", ["h", "", "-1s", "1", "²s"])
def test_age_that_is_none_is_refused(channel: BlockingChannel, new_name: Maker, age: str) -> None:
    with pytest.raises(ChannelClosedByBroker, match="invalid_max_age"):
        declare_as(channel, new_name("refused"), x_max_age=age)


def test_largest_segment_has_its_limit(channel: BlockingChannel, new_name: Maker) -> None:
    refused = refusal(lambda: declare_as(channel, new_name("refused"), x_stream_max_segment_size_bytes=3_000_000_001))
    assert refused == (406, f"{REFUSED}Exceeded max value for x-stream-max-segment-size-bytes", False)


@pytest.mark.differs("as in RabbitMQ 3.13: 3.10 has no filters, and takes any value")
@pytest.mark.parametrize("size", [15, 256, "a"])
def test_filters_have_16_to_255_bytes(channel: BlockingChannel, new_name: Maker, size: object) -> None:
    with pytest.raises(ChannelClosedByBroker, match="x-stream-filter-size-bytes"):
        declare_as(channel, new_name("refused"), x_stream_filter_size_bytes=size)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("x-message-ttl", 1000),
        ("x-expires", 1000),
        ("x-dead-letter-exchange", "a"),
        ("x-max-length", 5),
        ("x-max-priority", 5),
        ("x-overflow", "drop-head"),
        ("x-queue-mode", "lazy"),
        ("x-queue-version", 1),
        ("x-single-active-consumer", True),
        ("x-queue-master-locator", "random"),
        ("x-delivery-limit", 5),
        ("x-dead-letter-strategy", "at-most-once"),
        ("x-max-in-memory-length", 5),
        ("x-quorum-initial-group-size", 1),
    ],
)
def test_argument_of_another_type_is_refused(
    channel: BlockingChannel, new_name: Maker, key: str, value: object
) -> None:
    name = new_name("refused")
    text = f"{REFUSED}invalid arg '{key}' for queue '{name}' in vhost '/' of queue type rabbit_stream_queue"
    assert refusal(lambda: declare_as(channel, name, **{key: value})) == (406, text, False)


@pytest.mark.parametrize("kind", ["classic", "quorum"])
@pytest.mark.parametrize(("key", "value"), [("x-max-age", "1h"), ("x-stream-max-segment-size-bytes", 5)])
def test_its_arguments_are_refused_by_other_types(
    channel: BlockingChannel, new_name: Maker, kind: str, key: str, value: object
) -> None:
    name = new_name("refused")
    text = f"{REFUSED}invalid arg '{key}' for queue '{name}' in vhost '/' of queue type rabbit_{kind}_queue"
    arguments = {"x-queue-type": kind, key: value}
    assert refusal(lambda: channel.queue_declare(name, durable=True, arguments=arguments)) == (406, text, False)


@pytest.mark.parametrize(
    ("properties", "why"),
    [
        ({"durable": False}, "non-durable"),
        ({"durable": True, "exclusive": True}, "exclusive-owner"),
        ({"durable": True, "auto_delete": True}, "auto-delete"),
    ],
)
def test_property_that_it_cannot_have_is_refused(
    channel: BlockingChannel, new_name: Maker, properties: dict[str, bool], why: str
) -> None:
    name = new_name("refused")
    refused = refusal(lambda: channel.queue_declare(name, arguments={"x-queue-type": "stream"}, **properties))
    assert refused == (406, f"{REFUSED}invalid property '{why}' for queue '{name}' in vhost '/'", False)


def test_its_name_is_the_clients_to_give(channel: BlockingChannel) -> None:
    text = f"{REFUSED}Cannot declare a server-named queue for type rabbit_stream_queue"
    assert refusal(lambda: declare_as(channel, "")) == (406, text, False)


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        (None, "received none but current is the value 'stream' of type 'longstr'"),
        ("quorum", "received 'quorum' but current is 'stream'"),
    ],
)
def test_another_type_is_another_queue(channel: BlockingChannel, stream: Maker, kind: str | None, why: str) -> None:
    name = stream()
    arguments = None if kind is None else {"x-queue-type": kind}
    text = f"{REFUSED}inequivalent arg 'x-queue-type' for queue '{name}' in vhost '/': {why}"
    assert refusal(lambda: channel.queue_declare(name, durable=True, arguments=arguments)) == (406, text, False)


def test_declaration_counts_what_is_kept(channel: BlockingChannel, connect: Connect, stream: Maker) -> None:
    name = stream()
    publish(channel, name, *bodies(3))
    Reader(connect(), name, x_stream_offset="first").wait(3).channel.basic_ack(0, multiple=True)
    eventually(lambda: channel.queue_declare(name, passive=True).method.message_count == 3)


# --- where consumers begin -----------------------------------------------------------------------------------------------


def test_reading_takes_nothing_away(channel: BlockingChannel, connect: Connect, stream: Maker) -> None:
    name = stream()
    publish(channel, name, *bodies(10))
    for _ in range(2):
        reader = Reader(connect(), name, x_stream_offset="first").wait(10)
        assert reader.bodies == bodies(10)
        assert reader.offsets == list(range(10))
        assert not any(method.redelivered for method, _, _ in reader.got)
        reader.channel.basic_ack(0, multiple=True)


@pytest.mark.parametrize(
    ("start", "first"),
    [
        ({}, 5),
        ({"x_stream_offset": "next"}, 5),
        ({"x_stream_offset": "first"}, 0),
        ({"x_stream_offset": "last"}, 4),
        ({"x_stream_offset": 0}, 0),
        ({"x_stream_offset": 3}, 3),
        ({"x_stream_offset": 5}, 5),
        ({"x_stream_offset": 7}, 7),
        ({"x_stream_offset": -1}, 0),
        ({"x_stream_offset": "7D"}, 0),
        ({"x_stream_offset": "1h"}, 0),
        ({"x_stream_offset": dt.datetime(2020, 1, 1, tzinfo=dt.UTC)}, 0),
        ({"x_stream_offset": dt.datetime(2099, 1, 1, tzinfo=dt.UTC)}, 5),
    ],
    ids=str,
)
def test_consumer_begins_where_it_asks_for(
    channel: BlockingChannel, connect: Connect, stream: Maker, start: dict[str, Any], first: int
) -> None:
    name = stream()
    publish(channel, name, *bodies(5))
    reader = Reader(connect(), name, **start)
    publish(channel, name, *bodies(5, 5))
    assert reader.wait(10 - first).offsets == list(range(first, 10))
    assert reader.bodies == bodies(10 - first, first)


@pytest.mark.parametrize("text", ["5", "0s", "1w"])
def test_text_that_is_no_offset_is_refused(channel: BlockingChannel, connect: Connect, stream: Maker, text: str) -> None:
    name = stream()
    value = f'{{invalid_stream_offset_arg,{{longstr,<<"{text}">>}}}}'
    refused = refusal(lambda: Reader(connect(), name, x_stream_offset=text))
    assert refused == (406, f"{REFUSED}invalid arg '{OFFSET}' for queue '{name}' in vhost '/': {value}", False)


@pytest.mark.differs("RabbitMQ ends the connection with 541")
@pytest.mark.parametrize("value", ["zz", "", "h", "-1h", True, None, [1], {"a": 1}], ids=str)
def test_value_that_is_no_offset_is_refused(connect: Connect, stream: Maker, value: object) -> None:
    name = stream()
    with pytest.raises(ChannelClosedByBroker, match="invalid_stream_offset_arg"):
        Reader(connect(), name, x_stream_offset=value)


@pytest.mark.parametrize("key", ["x-priority", "x-cancel-on-ha-failover"])
def test_consumer_argument_of_another_type_is_refused(connect: Connect, stream: Maker, key: str) -> None:
    name = stream()
    text = f"{REFUSED}invalid arg '{key}' for queue '{name}' in vhost '/' of queue type rabbit_stream_queue"
    assert refusal(lambda: Reader(connect(), name, **{key: 1})) == (406, text, False)


# --- credit --------------------------------------------------------------------------------------------------------------


def consuming(channel: BlockingChannel, name: str, **settings: Any) -> Callable[[], Any]:
    return lambda: channel.basic_consume(name, lambda *_: None, **settings)


def test_a_consumer_must_say_how_much_it_takes(channel: BlockingChannel, stream: Maker) -> None:
    name = stream()
    text = f"{REFUSED}consumer prefetch count is not set for 'queue '{name}' in vhost '/''"
    assert refusal(consuming(channel, name)) == (406, text, False)


def test_a_limit_for_the_channel_is_refused(channel: BlockingChannel, stream: Maker) -> None:
    name = stream()
    channel.basic_qos(prefetch_count=5)
    channel.basic_qos(prefetch_count=5, global_qos=True)
    text = f"NOT_IMPLEMENTED - queue '{name}' in vhost '/' does not support global qos"
    assert refusal(consuming(channel, name)) == (540, text, True)


def test_a_consumer_must_ack(channel: BlockingChannel, stream: Maker) -> None:
    name = stream()
    channel.basic_qos(prefetch_count=5)
    what = "automatic acknowledgement not supported by stream queues"
    refused = refusal(consuming(channel, name, auto_ack=True))
    assert refused == (540, f"NOT_IMPLEMENTED - {what} queue '{name}' in vhost '/'", True)


def test_acks_are_credit(channel: BlockingChannel, connect: Connect, stream: Maker) -> None:
    name = stream()
    publish(channel, name, *bodies(12))
    reader = Reader(connect(), name, prefetch=3, x_stream_offset="first").wait(3)
    reader.channel.basic_ack(2)
    assert reader.wait(4).offsets == [0, 1, 2, 3]
    reader.channel.basic_ack(3, multiple=True)
    assert reader.wait(6).offsets == [0, 1, 2, 3, 4, 5]
    reader.channel.basic_ack(0, multiple=True)
    assert reader.wait(9).offsets == list(range(9))
    assert reader.tags == list(range(1, 10))


@pytest.mark.differs(f"540 in RabbitMQ 3.10; {OF_4} here")
def test_whatever_way_a_delivery_is_settled_it_does_not_come_back(
    channel: BlockingChannel, connect: Connect, stream: Maker
) -> None:
    name = stream()
    publish(channel, name, *bodies(8))
    reader = Reader(connect(), name, prefetch=2, x_stream_offset="first").wait(2)
    reader.channel.basic_nack(1, requeue=True)
    reader.wait(3).channel.basic_reject(3, requeue=False)
    reader.wait(4).channel.basic_nack(4, multiple=True, requeue=False)
    reader.wait(6).channel.basic_recover(requeue=True)
    assert reader.wait(8).offsets == list(range(8))


def test_tag_that_was_never_given_is_refused(channel: BlockingChannel, connect: Connect, stream: Maker) -> None:
    name = stream()
    publish(channel, name, *bodies(2))
    reader = Reader(connect(), name, x_stream_offset="first").wait(2)
    reader.channel.basic_ack(2)
    reader.channel.basic_ack(2)
    refused = refusal(lambda: reader.channel.queue_declare(name, passive=True))
    assert refused == (406, f"{REFUSED}unknown delivery tag 2", False)


def test_streams_and_queues_share_a_channel(
    channel: BlockingChannel, connect: Connect, stream: Maker, queue: Maker
) -> None:
    name, other = stream(), queue()
    reader = Reader(connect(), name, prefetch=4, x_stream_offset="first")
    taken: list[bytes] = []
    reader.channel.basic_consume(other, lambda _c, _m, _p, body: taken.append(body))
    for number in range(4):
        publish(channel, name, b"%d" % number)
        publish(channel, other, b"%d" % number)

    def have() -> bool:
        reader.connection.process_data_events(0.01)
        return len(taken) == len(reader.got) == 4

    eventually(have)
    reader.channel.basic_ack(7, multiple=True)
    reader.channel.basic_ack(8)
    publish(channel, name, *bodies(4, 4))
    assert reader.wait(8).bodies == bodies(8)
    reader.channel.close()
    assert channel.queue_declare(other, passive=True).method.message_count == 0


@pytest.mark.differs("a rollback is a 541 in RabbitMQ 3.10")
def test_settles_in_a_transaction_count_when_it_is_committed(
    channel: BlockingChannel, connect: Connect, stream: Maker
) -> None:
    name = stream()
    publish(channel, name, *bodies(4))
    reader = Reader(connect(), name, prefetch=2, x_stream_offset="first").wait(2)
    reader.channel.tx_select()
    reader.channel.basic_ack(0, multiple=True)
    reader.channel.tx_rollback()
    reader.channel.basic_ack(2, multiple=True)
    assert reader.offsets == [0, 1]
    reader.channel.tx_commit()
    assert reader.wait(4).offsets == [0, 1, 2, 3]


# --- messages ------------------------------------------------------------------------------------------------------------


def test_message_comes_as_it_was_published_and_with_its_offset(
    channel: BlockingChannel, connect: Connect, stream: Maker
) -> None:
    name = stream()
    properties = pika.BasicProperties(
        content_type="a/b", content_encoding="gz", headers={"n": 1, OFFSET: "mine"}, priority=3, correlation_id="c",
        message_id="m", timestamp=5, type="t", app_id="a",
    )  # fmt: skip
    channel.basic_publish("", name, b"body", properties)
    channel.basic_publish("", name, b"", pika.BasicProperties())
    reader = Reader(connect(), name, x_stream_offset="first").wait(2)
    method, got, body = reader.got[0]
    assert (method.exchange, method.routing_key, body) == ("", name, b"body")
    assert got.headers == {"n": 1, OFFSET: 0}
    got.headers = properties.headers
    assert got == properties
    assert (reader.got[1][1].headers, reader.got[1][2]) == ({OFFSET: 1}, b"")


@pytest.mark.differs("RabbitMQ loses what its streams cannot have in a header")
def test_every_header_is_kept(channel: BlockingChannel, connect: Connect, stream: Maker) -> None:
    name = stream()
    headers = {"table": {"a": [1, "b"]}, "CC": [], "void": None, "flag": True}
    publish(channel, name, b"", headers={**headers, "BCC": ["nobody"]})
    assert Reader(connect(), name, x_stream_offset="first").wait(1).got[0][1].headers == {**headers, OFFSET: 0}


def test_large_bodies_are_cut_to_the_consumers_frames(channel: BlockingChannel, connect: Connect, stream: Maker) -> None:
    name = stream()
    sent = [bytes([65 + number]) * size for number, size in enumerate([1, 4_087, 4_088, 4_089, 300_000, 10])]
    publish(channel, name, *sent)
    assert Reader(connect(frame_max=4_096), name, x_stream_offset="first").wait(6).bodies == sent
    assert Reader(connect(), name, x_stream_offset="first").wait(6).bodies == sent


def test_an_exchange_leads_to_a_stream(
    channel: BlockingChannel, connect: Connect, stream: Maker, exchange: Maker
) -> None:
    name, fanout = stream(), exchange("fanout", durable=True)
    channel.queue_bind(name, fanout)
    channel.basic_publish(fanout, "key", b"routed")
    method, _, body = Reader(connect(), name, x_stream_offset="first").wait(1).got[0]
    assert (method.exchange, method.routing_key, body) == (fanout, "key", b"routed")


@pytest.mark.differs("RabbitMQ 3.10 loses it")
def test_a_dead_letter_goes_to_a_stream(channel: BlockingChannel, connect: Connect, stream: Maker, queue: Maker) -> None:
    name = stream()
    arguments = {"x-message-ttl": 1, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": name}
    dying = queue(durable=True, arguments=arguments)
    reader = Reader(connect(), name, x_stream_offset="first")
    publish(channel, dying, b"died", delivery_mode=2)
    method, _, body = reader.wait(1).got[0]
    assert (method.exchange, method.routing_key, body) == ("", name, b"died")


def test_a_transaction_publishes_to_a_stream(connect: Connect, stream: Maker) -> None:
    name = stream()
    transacting = connect().channel()
    transacting.tx_select()
    publish(transacting, name, b"rolled back")
    transacting.tx_rollback()
    publish(transacting, name, b"committed")
    transacting.tx_commit()
    assert Reader(connect(), name, x_stream_offset="first").wait(1).bodies == [b"committed"]


def test_expirations_mean_nothing(channel: BlockingChannel, connect: Connect, stream: Maker) -> None:
    name = stream()
    publish(channel, name, b"kept", expiration="0", delivery_mode=1)
    got = Reader(connect(), name, x_stream_offset="first").wait(1).got[0]
    assert (got[1].expiration, got[1].delivery_mode, got[2]) == ("0", 1, b"kept")


# --- consumers -----------------------------------------------------------------------------------------------------------


def test_an_exclusive_consumer_is_one_like_others(channel: BlockingChannel, connect: Connect, stream: Maker) -> None:
    name = stream()
    publish(channel, name, b"one")
    for _ in range(2):
        consumer = connect().channel()
        consumer.basic_qos(prefetch_count=5)
        got: list[bytes] = []
        consumer.basic_consume(
            name, lambda _c, _m, _p, body, got=got: got.append(body), exclusive=True, arguments={OFFSET: "first"}
        )
        consumer.connection.process_data_events(0.01)
        eventually(lambda consumer=consumer, got=got: consumer.connection.process_data_events(0.01) or got == [b"one"])


def test_many_consumers_each_get_everything_at_their_own_pace(
    channel: BlockingChannel, connect: Connect, stream: Maker
) -> None:
    name = stream()
    readers = [Reader(connect(), name, prefetch=prefetch, x_stream_offset="first") for prefetch in (1, 7, 1_000)]
    publish(channel, name, *bodies(50))
    for reader in readers:
        for count in range(1, 51):
            reader.wait(count)
            reader.channel.basic_ack(count)
        assert reader.bodies == bodies(50)


def test_deleting_a_stream_cancels_its_consumers(channel: BlockingChannel, connect: Connect, stream: Maker) -> None:
    name = stream()
    publish(channel, name, *bodies(3))
    reader = Reader(connect(), name, x_stream_offset="first").wait(3)
    channel.queue_delete(name)

    def is_cancelled() -> bool:
        reader.connection.process_data_events(0.01)
        return bool(reader.cancelled)

    eventually(is_cancelled)
    assert reader.cancelled[0].method.consumer_tag == reader.tag
    reader.channel.basic_ack(3, multiple=True)
    declare_as(channel, name)
    assert channel.queue_declare(name, passive=True).method.message_count == 0


def test_what_a_cancelled_consumer_holds_may_be_acked(wire: WireClient, channel: BlockingChannel, stream: Maker) -> None:
    name = stream()
    publish(channel, name, *bodies(5))
    wire.call(1, amqp.Basic.Qos(prefetch_count=2), amqp.Basic.QosOk)
    consume = amqp.Basic.Consume(queue=name, consumer_tag="one", arguments={OFFSET: "first"})
    wire.call(1, consume, amqp.Basic.ConsumeOk)
    tags = [wire.expect_content(1, amqp.Basic.Deliver).method.delivery_tag for _ in range(2)]
    wire.call(1, amqp.Basic.Cancel(consumer_tag="one"), amqp.Basic.CancelOk)
    wire.method(1, amqp.Basic.Ack(delivery_tag=tags[-1], multiple=True))
    wire.call(1, amqp.Queue.Declare(queue=name, passive=True), amqp.Queue.DeclareOk)


@pytest.mark.parametrize(
    ("what", "action"),
    [
        ("basic.get", lambda channel, name: channel.basic_get(name)),
        ("queue.purge", lambda channel, name: channel.queue_purge(name)),
    ],
)
def test_what_consumes_is_refused(
    channel: BlockingChannel, stream: Maker, what: str, action: Callable[[BlockingChannel, str], Any]
) -> None:
    name = stream()
    text = f"NOT_IMPLEMENTED - {what} not supported by stream queues queue '{name}' in vhost '/'"
    assert refusal(lambda: action(channel, name)) == (540, text, True)


@pytest.mark.differs("RabbitMQ deletes it all the same")
def test_deletion_may_depend_on_consumers_and_messages(connect: Connect, stream: Maker) -> None:
    name = stream()
    publish(confirming(connect()), name, b"one")
    with pytest.raises(ChannelClosedByBroker, match="not empty"):
        connect().channel().queue_delete(name, if_empty=True)
    reader = Reader(connect(), name)
    with pytest.raises(ChannelClosedByBroker, match="in use"):
        connect().channel().queue_delete(name, if_unused=True)
    assert not reader.cancelled


# --- filters -------------------------------------------------------------------------------------------------------------


@pytest.mark.differs("RabbitMQ filters since 3.13, by chunks: its consumers have to look again")
@pytest.mark.parametrize(
    ("wanted", "offsets"),
    [
        ({"x_stream_filter": "even"}, [0, 2, 4]),
        ({"x_stream_filter": ["even", "odd"]}, [0, 1, 2, 3, 4, 5]),
        ({"x_stream_filter": "even", "x_stream_match_unfiltered": True}, [0, 2, 4, 6]),
        ({"x_stream_filter": "none of them"}, []),
    ],
    ids=str,
)
def test_a_consumer_gets_what_its_filter_wants(
    channel: BlockingChannel, connect: Connect, stream: Maker, wanted: dict[str, Any], offsets: list[int]
) -> None:
    name = stream()
    for number in range(6):
        publish(channel, name, b"%d" % number, headers={"x-stream-filter-value": ("even", "odd")[number % 2]})
    publish(channel, name, b"6")
    reader = Reader(connect(), name, prefetch=1, x_stream_offset="first", **wanted)
    for count in range(1, len(offsets) + 1):
        reader.wait(count).channel.basic_ack(count)
    everything = Reader(reader.connection, name, x_stream_offset="first").wait(7)
    assert reader.offsets == offsets
    assert everything.offsets == list(range(7))


@pytest.mark.own
@pytest.mark.parametrize("wrong", [{"x_stream_filter": 1}, {"x_stream_filter": []}, {"x_stream_match_unfiltered": 1}], ids=str)
def test_filter_that_is_none_is_refused(connect: Connect, stream: Maker, wrong: dict[str, Any]) -> None:
    name = stream()
    with pytest.raises(ChannelClosedByBroker, match="unacceptable_type"):
        Reader(connect(), name, **wrong)
