"""The firehose: while a vhost is traced, amq.rabbitmq.trace gets a copy of each publish and of each delivery in it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from support import eventually, unique

Connect = Callable[..., pika.BlockingConnection]

TRACE = "amq.rabbitmq.trace"
ALL_PROPERTIES: dict[str, Any] = {
    "content_type": "text/plain",
    "content_encoding": "utf-8",
    "headers": {"number": 1, "text": "a", "list": [1, "b"], "table": {"flag": True}},
    "delivery_mode": 2,
    "priority": 3,
    "correlation_id": "correlation",
    "reply_to": "reply",
    "expiration": "60000",
    "message_id": "message",
    "timestamp": 1_700_000_000,
    "type": "type",
    "user_id": "guest",
    "app_id": "app",
    "cluster_id": "cluster",
}


class Copy(NamedTuple):
    routing_key: str
    headers: dict[str, Any]
    body: bytes
    properties: pika.BasicProperties


class Traced:
    """A vhost of its own: `channel` publishes and consumes in it, `copies` are what the firehose has told since."""

    def __init__(self, vhost: str, connection: pika.BlockingConnection) -> None:
        self.vhost = vhost
        self.connection = connection
        self.channel = connection.channel()
        self.channel.confirm_delivery()
        self._reader = connection.channel()
        self._queue = self._reader.queue_declare("", exclusive=True).method.queue
        self._reader.queue_bind(self._queue, TRACE, "#")

    def copies(self, count: int) -> list[Copy]:
        """The copies so far, oldest first; there must be `count`."""
        found: list[Copy] = []

        def read() -> bool:
            method, properties, body = self._reader.basic_get(self._queue, auto_ack=True)
            if method is not None:
                assert method.exchange == TRACE
                found.append(Copy(method.routing_key, properties.headers, body, properties))
            return len(found) >= count

        eventually(read)
        assert self._reader.basic_get(self._queue) == (None, None, None)
        return found

    def keys(self, count: int) -> list[str]:
        return [copy.routing_key for copy in self.copies(count)]


@pytest.fixture
def vhost(ctl: Callable[..., str]) -> Iterator[str]:
    """A vhost that guest may use."""
    name = unique("traced")
    ctl("add_vhost", name)
    ctl("set_permissions", "-p", name, "guest", ".*", ".*", ".*")
    yield name
    ctl("delete_vhost", name)


@pytest.fixture
def traced(vhost: str, ctl: Callable[..., str], connect: Connect) -> Traced:
    """Traced from now on, with the queues "a" and "b"."""
    ctl("trace_on", "-p", vhost)
    traced = Traced(vhost, connect(vhost=vhost))
    for name in ("a", "b"):
        traced.channel.queue_declare(name)
    return traced


def where(traced: Traced, channel: BlockingChannel) -> dict[str, Any]:
    """What the copies of that channel's doings say of it; the rest is up to the broker."""
    return {"vhost": traced.vhost, "channel": channel.channel_number, "user": "guest"}


def test_publish_is_copied_with_all_that_is_known_of_it(traced: Traced) -> None:
    channel = traced.channel
    channel.exchange_declare("x", "topic")
    channel.queue_bind("a", "x", "k.*")
    channel.queue_bind("b", "x", "k.*")
    channel.basic_publish("x", "k.1", b"body", pika.BasicProperties(**ALL_PROPERTIES))
    (copy,) = traced.copies(1)
    assert (copy.routing_key, copy.body) == ("publish.x", b"body")
    port = traced.connection._impl._transport._sock.getsockname()[1]
    assert copy.headers.pop("connection").startswith(f"127.0.0.1:{port} -> ")
    assert "@" in copy.headers.pop("node")
    copy.headers["routed_queues"].sort()
    assert copy.headers == {
        "exchange_name": "x",
        "routing_keys": ["k.1"],
        "properties": ALL_PROPERTIES,
        "routed_queues": ["a", "b"],
        **where(traced, channel),
    }


def test_headers_are_in_this_order_and_there_are_no_other_properties(traced: Traced) -> None:
    channel = traced.channel
    channel.basic_publish("", "a", b"", pika.BasicProperties(**ALL_PROPERTIES))
    channel.basic_get("a", auto_ack=True)
    publish, deliver = traced.copies(2)
    common = ["exchange_name", "routing_keys", "properties", "node"]
    rest = ["vhost", "connection", "channel", "user"]
    assert list(publish.headers) == [*common, *rest, "routed_queues"]
    assert list(deliver.headers) == [*common, "redelivered", *rest]
    assert list(publish.headers["properties"]) == list(reversed(ALL_PROPERTIES))
    for copy in (publish, deliver):
        others = {name for name, value in vars(copy.properties).items() if value is not None}
        assert others == {"headers"}


def test_get_is_copied_and_says_whether_it_is_a_redelivery(traced: Traced) -> None:
    channel = traced.channel
    channel.basic_publish("", "a", b"body", pika.BasicProperties(**ALL_PROPERTIES))
    method, _, _ = channel.basic_get("a")
    channel.basic_nack(method.delivery_tag)
    channel.basic_get("a", auto_ack=True)
    copies = traced.copies(3)
    assert [copy.routing_key for copy in copies] == ["publish.", "deliver.a", "deliver.a"]
    for copy, redelivered in zip(copies[1:], (0, 1), strict=True):
        assert copy.body == b"body"
        told = {key: value for key, value in copy.headers.items() if key not in ("node", "connection")}
        assert told == {
            "exchange_name": "",
            "routing_keys": ["a"],
            "properties": ALL_PROPERTIES,
            "redelivered": redelivered,
            **where(traced, channel),
        }


@pytest.mark.parametrize("no_ack", [False, True])
def test_deliveries_to_consumers_are_copied(traced: Traced, no_ack: bool) -> None:
    consumer = traced.connection.channel()
    got: list[bytes] = []
    consumer.basic_consume("a", lambda *delivery: got.append(delivery[3]), auto_ack=no_ack)
    traced.channel.basic_publish("", "a", b"body")
    eventually(lambda: traced.connection.process_data_events(0) or got)
    publish, deliver = traced.copies(2)
    assert (publish.routing_key, deliver.routing_key, deliver.body) == ("publish.", "deliver.a", b"body")
    assert publish.headers["channel"] == traced.channel.channel_number
    assert deliver.headers["channel"] == consumer.channel_number


def test_deliveries_of_a_stream_are_copied(traced: Traced) -> None:
    traced.channel.queue_declare("s", durable=True, arguments={"x-queue-type": "stream"})
    consumer = traced.connection.channel()
    consumer.basic_qos(prefetch_count=10)
    got: list[bytes] = []
    consumer.basic_consume("s", lambda *delivery: got.append(delivery[3]), arguments={"x-stream-offset": "first"})
    for number in range(3):
        traced.channel.basic_publish("", "s", b"%d" % number)
    eventually(lambda: traced.connection.process_data_events(0) or len(got) == 3)
    told = [(copy.routing_key, copy.body) for copy in traced.copies(6)]
    assert [body for key, body in told if key == "publish."] == got
    assert [body for key, body in told if key == "deliver.s"] == got


def test_message_that_leads_nowhere_is_copied(traced: Traced) -> None:
    traced.channel.basic_publish("amq.direct", "nowhere", b"body")
    (copy,) = traced.copies(1)
    assert copy.routing_key == "publish.amq.direct"
    assert (copy.headers["routed_queues"], copy.headers["properties"]) == ([], {})


def test_default_exchange_names_a_queue_even_if_there_is_none(traced: Traced) -> None:
    traced.channel.basic_publish("", "nobody", b"body")
    (copy,) = traced.copies(1)
    assert copy.headers["routed_queues"] == ["nobody"]


def test_keys_that_the_sender_has_added_are_told(traced: Traced) -> None:
    properties = pika.BasicProperties(headers={"CC": ["b", "c"], "BCC": ["d"]})
    traced.channel.basic_publish("", "a", b"body", properties)
    traced.channel.basic_get("b", auto_ack=True)
    publish, deliver = traced.copies(2)
    assert publish.headers["routing_keys"] == ["a", "b", "c", "d"]
    assert publish.headers["routed_queues"] == ["a", "b", "c", "d"]
    assert deliver.headers["routing_keys"] == ["a", "b", "c", "d"]
    for copy in (publish, deliver):
        assert copy.headers["properties"] == {"headers": {"CC": ["b", "c"]}}


def test_routed_queues_are_those_behind_bindings_and_alternates(traced: Traced) -> None:
    channel = traced.channel
    channel.exchange_declare("alternate", "fanout")
    channel.exchange_declare("main", "direct", arguments={"alternate-exchange": "alternate"})
    channel.exchange_declare("inner", "headers")
    channel.exchange_bind("inner", "alternate")
    channel.queue_bind("b", "inner", arguments={"wanted": True})
    channel.basic_publish("main", "k", b"", pika.BasicProperties(headers={"wanted": True}))
    channel.basic_publish("main", "k", b"", pika.BasicProperties(headers={"wanted": False}))
    taken, lost = traced.copies(2)
    assert (taken.headers["routed_queues"], lost.headers["routed_queues"]) == (["b"], [])


def test_publish_in_a_transaction_is_copied_before_the_commit(traced: Traced) -> None:
    channel = traced.connection.channel()
    channel.tx_select()
    channel.basic_publish("", "a", b"body")
    assert traced.keys(1) == ["publish."]
    channel.tx_commit()
    channel.basic_get("a", auto_ack=True)
    assert traced.keys(1) == ["deliver.a"]


def test_a_key_chooses_what_of_the_firehose_a_queue_gets(traced: Traced) -> None:
    channel = traced.channel
    chosen = channel.queue_declare("", exclusive=True).method.queue
    channel.exchange_declare("x.y", "fanout")
    channel.queue_bind(chosen, TRACE, "publish.x.*")
    channel.basic_publish("x.y", "", b"wanted")
    channel.basic_publish("", "a", b"unwanted")
    assert traced.keys(2) == ["publish.x.y", "publish."]
    assert [channel.basic_get(chosen, auto_ack=True)[2] for _ in range(2)] == [b"wanted", None]
    assert traced.copies(0) == [], "copies are not copied when they are delivered"


def test_other_vhosts_are_not_traced(
    traced: Traced, channel: BlockingChannel, queue: Callable[..., str]
) -> None:
    name = queue()
    here = channel.queue_declare("", exclusive=True).method.queue
    channel.queue_bind(here, TRACE, f"*.{name}")
    channel.confirm_delivery()
    channel.basic_publish("", name, b"body")
    channel.basic_get(name, auto_ack=True)
    traced.channel.basic_publish("", "a", b"body")
    assert traced.keys(1) == ["publish."]
    assert channel.basic_get(here) == (None, None, None)


def test_open_channels_see_it_go_on_and_off(vhost: str, ctl: Callable[..., str], connect: Connect) -> None:
    traced = Traced(vhost, connect(vhost=vhost))
    traced.channel.queue_declare("a")
    traced.channel.basic_publish("", "a", b"before")
    ctl("trace_on", "-p", vhost)
    traced.channel.basic_publish("", "a", b"traced")
    assert [copy.body for copy in traced.copies(1)] == [b"traced"]
    ctl("trace_off", "-p", vhost)
    traced.channel.basic_publish("", "a", b"after")
    assert traced.copies(0) == []
