"""Messages watched as they come, of a queue and of an exchange; a tail leaves nothing behind."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from broker_process import BrokerProcess
from management.conftest import Http
from support import eventually

pytestmark = pytest.mark.own


class Tail:
    """The events of an answer that goes on."""

    def __init__(self, address: str, path: str, user: str = "guest") -> None:
        host, port = address.split(":")
        self.connection = http.client.HTTPConnection(host, int(port), timeout=20)
        headers = {"Authorization": "Basic Z3Vlc3Q6Z3Vlc3Q=", "Accept": "text/event-stream"}
        self.connection.request("GET", f"/api/{path}", headers=headers)
        self.answer = self.connection.getresponse()

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        name = ""
        while line := self.answer.readline():
            text = line.decode().rstrip("\n")
            if text.startswith("event: "):
                name = text[7:]
            elif text.startswith("data: "):
                yield name, json.loads(text[6:])

    def payloads(self, count: int) -> list[str]:
        """So many of them."""
        found: list[str] = []
        for name, value in self:
            assert name == "messages", value
            found += [item["payload"] for item in value["items"]]
            if len(found) >= count:
                return found
        return found

    def close(self) -> None:
        self.connection.close()


@pytest.fixture
def http_api(module_broker: BrokerProcess) -> Http:
    return Http(module_broker.management)


def test_what_comes_to_a_queue_is_seen(http_api: Http, module_broker: BrokerProcess, clean_channel: BlockingChannel) -> None:
    channel = clean_channel
    channel.queue_declare("q", arguments={"x-max-priority": 3})
    channel.basic_publish("", "q", b"before")
    eventually(lambda: http_api.get("queues/%2F/q")["messages_ready"] == 1)
    tail = Tail(module_broker.management, "queues/%2F/q/messages/tail")
    assert tail.answer.status == 200
    assert tail.answer.readline() == b"retry: 2000\n"
    for number in range(3):
        channel.basic_publish("", "q", b"%d" % number, pika.BasicProperties(priority=number))
    assert sorted(tail.payloads(3)) == ["0", "1", "2"]
    for number in range(200):
        channel.basic_publish("", "q", b"%d" % number)
    seen = unseen = 0
    for _, value in tail:
        seen += len(value["items"])
        unseen += value["unseen"]
        if seen + unseen == 200:
            break
    assert unseen > 0
    assert http_api.get("queues/%2F/q")["messages_ready"] == 204
    channel.queue_delete("q")
    assert [name for name, value in tail if value.get("reason") == "deleted"] == ["end"]
    tail.close()


def test_what_an_exchange_routes_is_seen_and_nothing_is_routed_otherwise(
    http_api: Http, module_broker: BrokerProcess, clean_channel: BlockingChannel
) -> None:
    channel = clean_channel
    channel.exchange_declare("lost", "fanout")
    channel.exchange_declare("x", "topic", arguments={"alternate-exchange": "lost"})
    channel.queue_declare("q")
    channel.queue_declare("unrouted")
    channel.queue_bind("q", "x", "a.#")
    channel.queue_bind("unrouted", "lost")
    tails = [Tail(module_broker.management, f"exchanges/%2F/x/tail{query}") for query in ("", "?routing_key=a.2")]
    for tail in tails:
        assert tail.answer.readline() == b"retry: 2000\n"
    assert len(http_api.get("exchanges/%2F/x/bindings/source")) == 1
    for key in ("a.1", "a.2", "other"):
        channel.basic_publish("x", key, key.encode())
    assert tails[0].payloads(2) == ["a.1", "a.2"]
    assert tails[1].payloads(1) == ["a.2"]
    eventually(lambda: http_api.get("queues/%2F/unrouted")["messages_ready"] == 1)
    assert http_api.get("queues/%2F/q")["messages_ready"] == 2
    channel.queue_bind("q", "x", "new")
    tails[0].close()
    eventually(lambda: [channel.basic_publish("x", "new", b"new")] and http_api.get("queues/%2F/q")["messages_ready"] > 2)
    tails[1].close()
    channel.queue_unbind("q", "x", "a.#")
    channel.queue_unbind("q", "x", "new")
    eventually(lambda: http_api.get("exchanges/%2F/x/bindings/source") == [])
    channel.basic_publish("x", "a.1", b"lost")
    eventually(lambda: http_api.get("queues/%2F/unrouted")["messages_ready"] == 2)


def test_an_exchange_that_goes_ends_its_tail(
    http_api: Http, module_broker: BrokerProcess, clean_channel: BlockingChannel
) -> None:
    clean_channel.exchange_declare("x", "fanout", auto_delete=True)
    clean_channel.queue_declare("q")
    clean_channel.queue_bind("q", "x")
    tail = Tail(module_broker.management, "exchanges/%2F/x/tail")
    assert tail.answer.readline() == b"retry: 2000\n"
    clean_channel.queue_delete("q")
    assert next(iter(tail)) == ("end", {"reason": "deleted"})
    assert http_api("GET", "exchanges/%2F/x").status == 404


def test_what_cannot_be_watched(http_api: Http, clean_channel: BlockingChannel) -> None:
    clean_channel.queue_declare("q")
    clean_channel.exchange_declare("hash", "x-consistent-hash")
    http_api("PUT", "users/writer", {"password": "writer", "tags": "administrator"})
    http_api("PUT", "permissions/%2F/writer", {"configure": "", "write": ".*", "read": "^$"})
    for path in ("queues/%2F/q/messages/tail", "exchanges/%2F/amq.topic/tail"):
        assert http_api("GET", path, user="writer").status == 401
    assert http_api("GET", "exchanges/%2F/hash/tail").status == 400
    assert http_api("GET", "exchanges/%2F/amq.default/tail").status == 400
    assert http_api("GET", "exchanges/%2F/absent/tail").status == 404
    assert http_api("GET", "queues/%2F/q/messages/tail?limit=1000").status == 400
