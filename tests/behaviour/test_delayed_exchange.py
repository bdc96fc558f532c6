"""The delayed message exchange: `x-delayed-message`, `x-delayed-type`, `x-delay`. RabbitMQ has it as a plugin.

That a message does not come too early is shown by its own clock: the time from the publish to the delivery.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from behaviour.helpers import Inbox, confirming, take_all
from broker_process import BrokerProcess
from support import closes_channel, closes_connection, eventually, unique

pytestmark = pytest.mark.own

Maker = Callable[..., str]
Connect = Callable[..., pika.BlockingConnection]

TYPE = "x-delayed-message"
HOUR = 3_600_000


@pytest.fixture
def channel(connection: pika.BlockingConnection) -> BlockingChannel:
    """In confirm mode."""
    return confirming(connection)


@pytest.fixture
def delayed(exchange: Maker) -> Maker:
    """`delayed("topic")` declares a delayed message exchange of that inner type."""

    def declare(inner: str = "direct", **settings: object) -> str:
        arguments = {"x-delayed-type": inner, **settings.pop("arguments", {})}  # type: ignore[dict-item]
        return exchange(TYPE, arguments=arguments, **settings)

    return declare


def after(delay: object, persistent: bool = True, **headers: object) -> pika.BasicProperties:
    return pika.BasicProperties(headers={"x-delay": delay, **headers}, delivery_mode=2 if persistent else 1)


# --- declaring ---------------------------------------------------------------------------------------------------------


def test_it_needs_the_type_of_its_inner_exchange(channel: BlockingChannel) -> None:
    with closes_channel(406, "Invalid argument, 'x-delayed-type' must be an existing exchange type"):
        channel.exchange_declare(unique(), TYPE)


def test_an_inner_type_that_is_no_text_is_refused(channel: BlockingChannel) -> None:
    with closes_channel(406, "Invalid argument, 'x-delayed-type' must be an existing exchange type"):
        channel.exchange_declare(unique(), TYPE, arguments={"x-delayed-type": 5})


def test_it_does_not_delay_twice(channel: BlockingChannel) -> None:
    with closes_channel(406, f"Invalid argument, '{TYPE}' can't be used for 'x-delayed-type'"):
        channel.exchange_declare(unique(), TYPE, arguments={"x-delayed-type": TYPE})


def test_an_inner_type_that_does_not_exist_is_refused_like_any_such_type(channel: BlockingChannel) -> None:
    with closes_connection(503, "unknown exchange type 'x-nonsense'"):
        channel.exchange_declare(unique(), TYPE, arguments={"x-delayed-type": "x-nonsense"})


def test_bindings_are_those_of_the_inner_type(channel: BlockingChannel, delayed: Maker, queue: Maker) -> None:
    text = 'Invalid x-match field value <<"none">>; expected all, any, all-with-x, or any-with-x'
    name = delayed("headers")
    with closes_channel(406, text):
        channel.queue_bind(queue(), name, arguments={"x-match": "none"})


# --- delays ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("delay", [300, "300"])
def test_a_message_comes_after_its_delay_and_shows_it(
    channel: BlockingChannel, delayed: Maker, queue: Maker, delay: object
) -> None:
    exchange, name = delayed(), queue()
    channel.queue_bind(name, exchange, "key")
    inbox = Inbox(channel, name, auto_ack=True)
    start = time.time()
    channel.basic_publish(exchange, "key", b"m", after(delay, other="kept"))
    assert inbox.wait_for(1) == [b"m"]
    assert time.time() - start >= 0.299  # the broker counts whole milliseconds
    delivery = inbox.deliveries[0]
    assert delivery.properties.headers == {"x-delay": -300, "other": "kept"}
    assert delivery.properties.delivery_mode == 2
    assert (delivery.exchange, delivery.routing_key, delivery.redelivered) == (exchange, "key", False)


@pytest.mark.parametrize("delay", [0, -5, 1 << 32, "soon", True, None])
def test_what_is_no_delay_is_routed_at_once_as_it_is(
    channel: BlockingChannel, delayed: Maker, queue: Maker, delay: object
) -> None:
    exchange, name = delayed("fanout"), queue()
    channel.queue_bind(name, exchange)
    channel.basic_publish(exchange, "", b"m", after(delay))
    _, properties, body = channel.basic_get(name, auto_ack=True)
    assert body == b"m"
    assert properties.headers == {"x-delay": delay}


@pytest.mark.parametrize(
    "inner, key, arguments, headers",
    [
        ("direct", "a.b", {}, {}),
        ("fanout", "", {}, {}),
        ("topic", "a.*", {}, {}),
        ("headers", "", {"x-match": "all", "kind": "late"}, {"kind": "late"}),
    ],
)
def test_each_inner_type_routes_what_was_delayed(
    channel: BlockingChannel,
    delayed: Maker,
    queue: Maker,
    inner: str,
    key: str,
    arguments: dict[str, object],
    headers: dict[str, object],
) -> None:
    exchange, name, other = delayed(inner), queue(), queue()
    channel.queue_bind(name, exchange, key, arguments)
    if inner != "fanout":
        channel.queue_bind(other, exchange, "elsewhere", {"x-match": "all", "kind": "other"})
    inbox = Inbox(channel, name)
    channel.basic_publish(exchange, "a.b", b"late", after(100, **headers))
    assert inbox.wait_for(1) == [b"late"]
    assert take_all(channel, other) == []


def test_they_come_in_the_order_of_their_times(channel: BlockingChannel, delayed: Maker, queue: Maker) -> None:
    exchange, name = delayed("fanout"), queue()
    channel.queue_bind(name, exchange)
    inbox = Inbox(channel, name)
    for delay in (900, 300, 600, 300):
        channel.basic_publish(exchange, "", b"%d" % delay, after(delay))
    channel.basic_publish(exchange, "", b"now")
    assert inbox.wait_for(5) == [b"now", b"300", b"300", b"600", b"900"]


def test_what_is_bound_when_the_delay_is_over_counts(channel: BlockingChannel, delayed: Maker, queue: Maker) -> None:
    exchange, before, later = delayed("fanout"), queue(), queue()
    channel.queue_bind(before, exchange)
    channel.basic_publish(exchange, "", b"m", after(300))
    channel.queue_unbind(before, exchange)
    channel.queue_bind(later, exchange)
    inbox = Inbox(channel, later)
    inbox.wait_for(1)
    assert take_all(channel, before) == []


def test_an_alternate_exchange_gets_what_cannot_be_routed_when_it_is_due(
    channel: BlockingChannel, delayed: Maker, exchange: Maker, queue: Maker
) -> None:
    alternate, name = exchange("fanout"), queue()
    channel.queue_bind(name, alternate)
    source = delayed("direct", arguments={"alternate-exchange": alternate})
    inbox = Inbox(channel, name)
    channel.basic_publish(source, "nowhere", b"late", after(200))
    assert inbox.settled() == []
    assert inbox.wait_for(1) == [b"late"]


def test_a_delayed_message_is_not_returned(channel: BlockingChannel, delayed: Maker) -> None:
    exchange = delayed()
    channel.basic_publish(exchange, "nowhere", b"m", after(HOUR), mandatory=True)


def test_a_transaction_delays_at_its_commit(connect: Connect, delayed: Maker, queue: Maker) -> None:
    channel = connect().channel()
    exchange, name = delayed("fanout"), queue()
    channel.queue_bind(name, exchange)
    channel.tx_select()
    channel.basic_publish(exchange, "", b"rolled back", after(50))
    channel.tx_rollback()
    channel.basic_publish(exchange, "", b"committed", after(50))
    channel.tx_commit()
    inbox = Inbox(channel, name)
    assert inbox.wait_for(1) == [b"committed"]


def test_a_large_message_waits_as_well(channel: BlockingChannel, delayed: Maker, queue: Maker) -> None:
    exchange, name = delayed("fanout", durable=True), queue(durable=True)
    channel.queue_bind(name, exchange)
    body = bytes(range(256)) * 4_000
    channel.basic_publish(exchange, "", body, after(300))
    assert Inbox(channel, name).wait_for(1) == [body]


def test_deleting_the_exchange_drops_what_it_has_delayed(
    channel: BlockingChannel, delayed: Maker, queue: Maker
) -> None:
    name = queue(durable=True)
    exchange = delayed("fanout", durable=True)
    channel.queue_bind(name, exchange)
    channel.basic_publish(exchange, "", b"dropped", after(300))
    channel.exchange_delete(exchange)
    channel.exchange_declare(exchange, TYPE, durable=True, arguments={"x-delayed-type": "fanout"})
    channel.queue_bind(name, exchange)
    inbox = Inbox(channel, name)
    channel.basic_publish(exchange, "", b"kept", after(600))
    assert inbox.wait_for(1) == [b"kept"]


def test_keys_that_the_sender_has_added_are_known_when_it_is_due(
    channel: BlockingChannel, delayed: Maker, queue: Maker
) -> None:
    name, copied, blind = delayed(), queue(), queue()
    channel.queue_bind(copied, name, "copy")
    channel.queue_bind(blind, name, "blind")
    channel.basic_publish(name, "nowhere", b"x", after(20, CC=["copy"], BCC=["blind", "copy"]))
    for target in (copied, blind):
        inbox = Inbox(channel, target)
        inbox.wait_for(1)
        assert len(inbox.settled()) == 1
        assert inbox.deliveries[0].properties.headers == {"x-delay": -20, "CC": ["copy"]}


# --- restarts ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["stop", "crash"])
def test_persistent_messages_are_still_delayed_after_a_restart(
    own_broker: Callable[..., BrokerProcess], connect: Connect, how: str
) -> None:
    own = own_broker()
    channel = confirming(connect(to=own))
    channel.exchange_declare("x", TYPE, durable=True, arguments={"x-delayed-type": "fanout"})
    channel.exchange_declare("passing", TYPE, arguments={"x-delayed-type": "fanout"})
    channel.queue_declare("q", durable=True)
    for exchange in ("x", "passing"):
        channel.queue_bind("q", exchange)
    published = time.time()
    for number, delay in enumerate((3_000, 20, HOUR, 2_500)):
        channel.basic_publish("x", "", b"%d" % number, after(delay))
    channel.basic_publish("x", "", b"large" * 10_000, after(2_600))
    channel.basic_publish("x", "", b"transient", after(2_550, persistent=False))
    channel.basic_publish("passing", "", b"of a passing exchange", after(2_550))
    channel.connection.close()
    if how == "crash":
        own.crash()
        own.start()
    else:
        own.restart()
    channel = confirming(connect(to=own))
    inbox = Inbox(channel, "q", auto_ack=True)
    inbox.wait_for(4)
    assert time.time() - published >= 2.999
    assert inbox.settled() == [b"1", b"3", b"large" * 10_000, b"0"]
    own.assert_clean_log()


@pytest.mark.parametrize("how", ["stop", "crash"])
def test_the_senders_keys_are_known_after_a_restart(
    own_broker: Callable[..., BrokerProcess], connect: Connect, how: str
) -> None:
    own = own_broker()
    channel = confirming(connect(to=own))
    channel.exchange_declare("x", TYPE, durable=True, arguments={"x-delayed-type": "direct"})
    channel.queue_declare("q", durable=True)
    channel.queue_bind("q", "x", "blind")
    for body in (b"small", b"large" * 10_000):
        channel.basic_publish("x", "nowhere", body, after(1_500, BCC=["blind"]))
    if how == "crash":
        own.crash()
        own.start()
    else:
        own.restart()
    inbox = Inbox(confirming(connect(to=own)), "q")
    assert inbox.wait_for(2) == [b"small", b"large" * 10_000]
    assert [delivery.properties.headers for delivery in inbox.deliveries] == [{"x-delay": -1_500}] * 2
    own.assert_clean_log()


def test_a_confirmed_message_survives_kills_and_comes_once(
    own_broker: Callable[..., BrokerProcess], connect: Connect
) -> None:
    """The queue is not consumed before the end, so that whatever comes twice would be there twice."""
    own = own_broker()
    channel = confirming(connect(to=own))
    channel.exchange_declare("x", TYPE, durable=True, arguments={"x-delayed-type": "fanout"})
    channel.queue_declare("q", durable=True)
    channel.queue_bind("q", "x")
    sent: list[bytes] = []
    for life in range(3):
        for number in range(40):
            sent.append(b"%d-%d" % (life, number))
            channel.basic_publish("x", "", sent[-1], after(1 + 25 * (number % 20)))
        own.crash()
        own.start()
        channel = confirming(connect(to=own))
    found: list[bytes] = []

    def all_there() -> bool:
        found.extend(take_all(channel, "q"))
        return len(found) >= len(sent)

    eventually(all_there, timeout=20)
    assert sorted(found) == sorted(sent)
