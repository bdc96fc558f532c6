"""A consumer that is cancelled over the management API: who is told, what stays, who may."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from broker_process import BrokerProcess
from management.conftest import Http, quoted
from support import eventually

pytestmark = pytest.mark.own


@pytest.fixture
def channel(api_broker: BrokerProcess) -> Iterator[BlockingChannel]:
    connection = pika.BlockingConnection(api_broker.parameters())
    yield connection.channel()
    connection.close()


def path_of(http: Http, tag: str) -> str:
    """Where a consumer is, in the words of the list."""
    found: list[dict[str, Any]] = []

    def is_there() -> bool:
        found[:] = [one for one in http.get("consumers") if one["consumer_tag"] == tag]
        return bool(found)

    eventually(is_there)
    details = found[0]["channel_details"]
    parts = found[0]["queue"]["vhost"], details["connection_name"], str(details["number"]), tag
    return "consumers/" + "/".join(quoted(part) for part in parts)


def tags(http: Http) -> set[str]:
    return {one["consumer_tag"] for one in http.get("consumers")}


def test_a_consumer_is_cancelled_and_its_client_told(http: Http, channel: BlockingChannel) -> None:
    """What it holds stays with the channel, which may ack it; the other consumer goes on."""
    channel.queue_declare("work", durable=True)
    for number in range(4):
        channel.basic_publish("", "work", b"%d" % number)
    cancelled: list[str] = []
    channel.add_on_cancel_callback(lambda frame: cancelled.append(frame.method.consumer_tag))
    held: list[int] = []
    channel.basic_qos(prefetch_count=2)
    channel.basic_consume(
        "work", lambda _c, method, *_: held.append(method.delivery_tag), consumer_tag="a/b %"
    )
    while len(held) < 2:
        channel.connection.process_data_events(0.05)
    reply = http("DELETE", path_of(http, "a/b %"))
    assert (reply.status, reply.body) == (204, b"")
    while not cancelled:
        channel.connection.process_data_events(0.05)
    assert cancelled == ["a/b %"]
    queue = http.get("queues/%2F/work")
    assert (queue["messages_ready"], queue["messages_unacknowledged"], queue["consumers"]) == (2, 2, 0)
    others: list[bytes] = []
    channel.basic_consume("work", lambda _c, _m, _p, body: others.append(body), consumer_tag="other")
    while len(others) < 2:
        channel.connection.process_data_events(0.05)
    assert others == [b"2", b"3"]
    for tag in held:
        channel.basic_ack(tag)
    eventually(lambda: http.get("queues/%2F/work")["messages"] == 2)
    entry = next(one for one in http.get("audit")["items"] if one["path"].startswith("consumers/"))
    assert (entry["method"], entry["user"], entry["details"]) == ("DELETE", "guest", {"queue": "work"})


def test_an_auto_delete_queue_goes_with_its_last_consumer(http: Http, channel: BlockingChannel) -> None:
    channel.queue_declare("short", auto_delete=True)
    for tag in ("one", "two"):
        channel.basic_consume("short", lambda *_: None, consumer_tag=tag)
    first, second = path_of(http, "one"), path_of(http, "two")
    assert http("DELETE", first).status == 204
    assert http("GET", "queues/%2F/short").status == 200
    assert http("DELETE", second).status == 204
    eventually(lambda: http("GET", "queues/%2F/short").status == 404)


@pytest.mark.parametrize("kind", ["quorum", "stream"])
def test_consumers_of_other_types_are_cancelled_too(http: Http, channel: BlockingChannel, kind: str) -> None:
    channel.queue_declare("typed", durable=True, arguments={"x-queue-type": kind})
    channel.basic_qos(prefetch_count=5)
    channel.basic_consume("typed", lambda *_: None, consumer_tag="c")
    assert http("DELETE", path_of(http, "c")).status == 204
    eventually(lambda: tags(http) == set())
    channel.connection.process_data_events(0)  # the connection is well


def test_only_its_owner_and_administrators_may(
    http: Http, channel: BlockingChannel, api_broker: BrokerProcess
) -> None:
    for name, tag in (("owner", "management"), ("watcher", "monitoring")):
        http("PUT", f"users/{name}", {"password": name, "tags": tag})
        http("PUT", f"permissions/%2F/{name}", {"configure": ".*", "write": ".*", "read": ".*"})
    own = pika.BlockingConnection(api_broker.parameters(credentials=pika.PlainCredentials("owner", "owner")))
    theirs = own.channel()
    theirs.queue_declare("theirs")
    theirs.basic_consume("theirs", lambda *_: None, consumer_tag="theirs")
    path = path_of(http, "theirs")
    assert http("DELETE", path, user="watcher").status == 401
    assert http("DELETE", path.replace("/1/", "/x/")).status == 404
    assert http("DELETE", path + "x").status == 404
    assert "theirs" in tags(http)
    assert http("DELETE", path, user="owner").status == 204
    assert http("DELETE", path, user="owner").status == 404
    own.close()


def test_nothing_is_cancelled_where_the_api_only_reads(own_broker: Callable[..., BrokerProcess]) -> None:
    broker = own_broker({"management.read_only": True})
    http = Http(broker.management)
    connection = pika.BlockingConnection(broker.parameters())
    channel = connection.channel()
    channel.queue_declare("kept")
    channel.basic_consume("kept", lambda *_: None, consumer_tag="kept")
    assert http("DELETE", path_of(http, "kept")).status == 403
    assert tags(http) == {"kept"}
    connection.close()
