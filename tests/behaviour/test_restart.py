"""Durable exchanges, queues and bindings are there again after a restart, just as they were; nothing else is."""

from __future__ import annotations

from collections.abc import Callable

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from behaviour.helpers import confirming, take_all
from broker_process import BrokerProcess
from support import closes_channel

pytestmark = pytest.mark.own

Connect = Callable[..., pika.BlockingConnection]


@pytest.fixture
def own(own_broker: Callable[..., BrokerProcess]) -> BrokerProcess:
    return own_broker()


@pytest.fixture
def restarted(own: BrokerProcess, connect: Connect) -> Callable[..., BlockingChannel]:
    """`restarted()` restarts the broker; a channel in confirm mode on it."""

    def restart(how: str = "stop") -> BlockingChannel:
        if how == "crash":
            own.crash()
            own.start()
        else:
            own.restart()
        return confirming(connect(to=own))

    return restart


@pytest.mark.parametrize("how", ["stop", "crash"])
def test_bindings_of_every_type_route_as_before(
    own: BrokerProcess, connect: Connect, restarted: Callable[..., BlockingChannel], how: str
) -> None:
    channel = connect(to=own).channel()
    channel.queue_declare("q", durable=True)
    for kind in ("direct", "fanout", "topic", "headers"):
        channel.exchange_declare(kind, kind, durable=True)
    channel.queue_bind("q", "direct", "key")
    channel.queue_bind("q", "fanout", "")
    channel.queue_bind("q", "topic", "a.*.#")
    channel.queue_bind("q", "headers", "", {"x-match": "all", "number": 1, "nested": {"list": ["a", True]}})
    channel = restarted(how)
    channel.basic_publish("direct", "key", b"direct")
    channel.basic_publish("direct", "other", b"lost")
    channel.basic_publish("fanout", "any", b"fanout")
    channel.basic_publish("topic", "a.b.c", b"topic")
    channel.basic_publish("topic", "b.a", b"lost")
    matching = pika.BasicProperties(headers={"number": 1, "nested": {"list": ["a", True]}})
    channel.basic_publish("headers", "", b"headers", matching)
    channel.basic_publish("headers", "", b"lost", pika.BasicProperties(headers={"number": 1}))
    assert take_all(channel, "q") == [b"direct", b"fanout", b"topic", b"headers"]


def test_bindings_between_exchanges_and_alternates_are_kept(
    own: BrokerProcess, connect: Connect, restarted: Callable[..., BlockingChannel]
) -> None:
    channel = connect(to=own).channel()
    channel.queue_declare("caught", durable=True)
    channel.queue_declare("routed", durable=True)
    channel.exchange_declare("catch", "fanout", durable=True, internal=True)
    channel.exchange_declare("outer", "topic", durable=True, arguments={"alternate-exchange": "catch"})
    channel.exchange_declare("inner", "fanout", durable=True)
    channel.exchange_bind("inner", "outer", "in.#")
    channel.queue_bind("routed", "inner")
    channel.queue_bind("caught", "catch")
    channel = restarted()
    channel.basic_publish("outer", "in.side", b"routed")
    channel.basic_publish("outer", "out.side", b"caught")
    assert (take_all(channel, "routed"), take_all(channel, "caught")) == ([b"routed"], [b"caught"])


def test_settings_are_compared_with_those_from_before(
    own: BrokerProcess, connect: Connect, restarted: Callable[..., BlockingChannel]
) -> None:
    arguments = {"x-max-length": 10, "x-message-ttl": 60_000, "x-something": [1, {"deep": None}]}
    channel = connect(to=own).channel()
    channel.queue_declare("q", durable=True, auto_delete=True, arguments=arguments)
    channel.exchange_declare("e", "topic", durable=True, auto_delete=True, internal=True)
    channel = restarted()
    channel.queue_declare("q", durable=True, auto_delete=True, arguments=arguments)
    channel.exchange_declare("e", "topic", durable=True, auto_delete=True, internal=True)
    text = "inequivalent arg 'x-max-length' for queue 'q' in vhost '/': received '11' but current is '10'"
    with closes_channel(406, text):
        channel.queue_declare("q", durable=True, auto_delete=True, arguments={**arguments, "x-max-length": 11})


def test_what_was_deleted_stays_deleted(
    own: BrokerProcess, connect: Connect, restarted: Callable[..., BlockingChannel]
) -> None:
    channel = connect(to=own).channel()
    channel.queue_declare("stays", durable=True)
    channel.exchange_declare("e", "direct", durable=True)
    channel.queue_bind("stays", "e", "kept")
    channel.queue_bind("stays", "e", "unbound")
    channel.queue_declare("deleted", durable=True)
    channel.queue_bind("deleted", "e", "kept")
    channel = restarted()
    channel.queue_unbind("stays", "e", "unbound")
    channel.queue_delete("deleted")
    channel = restarted()
    channel.basic_publish("e", "unbound", b"lost")
    channel.basic_publish("e", "kept", b"x")
    assert take_all(channel, "stays") == [b"x"]
    with closes_channel(404, "no queue 'deleted' in vhost '/'"):
        channel.queue_declare("deleted", passive=True)


@pytest.mark.parametrize(
    "declare, name",
    [
        (lambda channel: channel.queue_declare("gone", durable=True, exclusive=True), "queue 'gone'"),
        (lambda channel: channel.queue_declare("gone"), "queue 'gone'"),
    ],
    ids=["durable exclusive", "transient"],
)
@pytest.mark.parametrize("how", ["stop", "crash"])
def test_queues_that_cannot_outlive_it_are_gone(
    own: BrokerProcess,
    connect: Connect,
    restarted: Callable[..., BlockingChannel],
    declare: Callable[[BlockingChannel], object],
    name: str,
    how: str,
) -> None:
    channel = connect(to=own).channel()
    declare(channel)
    channel.queue_bind("gone", "amq.direct", "key")
    channel = restarted(how)
    channel.basic_publish("amq.direct", "key", b"lost")
    with closes_channel(404, f"no {name} in vhost '/'"):
        channel.queue_declare("gone", passive=True)


def test_binding_of_a_durable_queue_to_a_transient_exchange_goes_with_the_exchange(
    own: BrokerProcess, connect: Connect, restarted: Callable[..., BlockingChannel]
) -> None:
    channel = connect(to=own).channel()
    channel.queue_declare("q", durable=True)
    channel.exchange_declare("e", "direct")
    channel.queue_bind("q", "e", "key")
    channel = restarted()
    channel.exchange_declare("e", "direct")
    channel.basic_publish("e", "key", b"lost")
    assert take_all(channel, "q") == []


def test_predeclared_exchanges_are_there_once(
    own: BrokerProcess, connect: Connect, restarted: Callable[..., BlockingChannel]
) -> None:
    channel = connect(to=own).channel()
    channel.queue_declare("q", durable=True)
    channel.queue_bind("q", "amq.fanout")
    for _ in range(2):
        channel = restarted()
    channel.exchange_declare("amq.fanout", "fanout", durable=True)
    channel.basic_publish("amq.fanout", "", b"once")
    assert take_all(channel, "q") == [b"once"]
