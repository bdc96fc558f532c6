"""What the UI is shown with: queues, messages that are read in several ways, dead letters, unacked ones, a policy, a user.

Their names would be elements if a page took them for HTML.
"""

from __future__ import annotations

import base64
import contextlib
import gzip
import json
from collections.abc import Iterator
from typing import Any

import pika
import pika.exceptions
from pika.adapters.blocking_connection import BlockingChannel

from broker_process import BrokerProcess
from management.conftest import Http, quoted

EVIL = "<img src=x onerror=window.hacked=1>"
STREAM = f"{EVIL} log"
SUPER_STREAM = f"{EVIL} visits"
MSGPACK = b"\x82\xa4name\xa3Ada\xa5count\x07"


def fill(broker: BrokerProcess) -> contextlib.AbstractContextManager[None]:
    """Fills the broker; two connections stay open inside, one with a consumer that holds three messages, one to be closed."""
    declare(Http(broker.management))
    return _clients(broker)


def declare(http: Http) -> None:
    evil = quoted(EVIL)
    for method, path, body in (
        ("PUT", f"vhosts/{evil}", {"description": EVIL, "tags": EVIL}),
        ("PUT", f"users/{evil}", {"password": "x", "tags": f"monitoring,{EVIL}"}),
        ("PUT", f"permissions/%2F/{evil}", {"configure": ".*", "write": ".*", "read": ".*"}),
        ("PUT", f"topic-permissions/%2F/{evil}", {"exchange": "amq.topic", "write": EVIL, "read": ".*"}),
        ("PUT", "users/reader", {"password": "reader", "tags": "monitoring"}),
        ("PUT", "permissions/%2F/reader", {"configure": "^$", "write": "^$", "read": "^orders"}),
        ("PUT", f"policies/%2F/{evil}", {"pattern": f"^{EVIL}$", "definition": {"message-ttl": 86400000}}),
        ("PUT", f"vhost-limits/{evil}/max-queues", {"value": 100}),
        ("PUT", "user-limits/reader/max-connections", {"value": 10}),
        ("PUT", f"user-limits/{evil}/max-connections", {"value": 10}),
        ("PUT", f"operator-policies/%2F/{evil}", {"pattern": f"^{EVIL}$", "definition": {"max-length": 1000}}),
    ):
        reply = http(method, path, body)
        assert reply.status < 300, (path, reply.status, reply.body)


@contextlib.contextmanager
def _clients(broker: BrokerProcess) -> Iterator[None]:
    properties = {"connection_name": EVIL, "product": EVIL, "version": "1"}
    credentials = pika.PlainCredentials(EVIL, "x")
    # Nobody serves them while pages are looked at, which takes longer than two heartbeats where every core is busy.
    connection = pika.BlockingConnection(
        broker.parameters(client_properties=properties, credentials=credentials, heartbeat=0)
    )
    spare = pika.BlockingConnection(broker.parameters(client_properties={"connection_name": "spare"}, heartbeat=0))
    channel = connection.channel()
    _topology(channel)
    _messages(channel)
    held: list[Any] = []
    channel.basic_qos(prefetch_count=3)
    channel.basic_consume("held", lambda *delivery: held.append(delivery), consumer_tag=EVIL)
    first = {"x-stream-offset": "first"}
    channel.basic_consume(STREAM, lambda *delivery: held.append(delivery), consumer_tag=f"{EVIL} reader", arguments=first)
    while len(held) < 6:
        connection.process_data_events(0.1)
    broker.ctl("store_offset", EVIL, STREAM, "5")
    try:
        yield
    finally:
        connection.close()
        with contextlib.suppress(pika.exceptions.AMQPConnectionError):  # a test may have closed it
            spare.close()


def _topology(channel: BlockingChannel) -> None:
    letters = {"x-dead-letter-exchange": "dead", "x-dead-letter-routing-key": "orders"}
    for name, kind in (("orders", "topic"), ("events", "fanout"), ("dead", "direct"), (EVIL, "direct")):
        channel.exchange_declare(name, kind, durable=True)
    for name, arguments in (
        ("orders.eu", letters), ("dead.orders", {}), ("emails", {"x-message-ttl": 86400000}), ("held", {}), ("empty", {}),
        ("target", {}), ("scratch", {}), ("graves", {}),
        (EVIL, {"x-max-priority": 3, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "graves"}),
        ("payments", {"x-queue-type": "quorum"}), ("returned", {"x-queue-type": "quorum", "x-delivery-limit": 9}),
        ("log", {"x-queue-type": "stream"}), (STREAM, {"x-queue-type": "stream", "x-max-age": "7D"}),
    ):
        channel.queue_declare(name, durable=True, arguments=arguments)
    channel.exchange_declare(SUPER_STREAM, "x-super-stream", durable=True, arguments={"x-super-stream": True})
    for number in range(2):
        channel.queue_declare(f"{SUPER_STREAM}-{number}", durable=True, arguments={"x-queue-type": "stream"})
        channel.queue_bind(f"{SUPER_STREAM}-{number}", SUPER_STREAM, str(number), {"x-stream-partition-order": number})
    channel.queue_bind("orders.eu", "orders", "order.eu.#")
    channel.queue_bind("payments", "orders", "order.*.paid")
    channel.queue_bind("dead.orders", "dead", "orders")
    channel.queue_bind("emails", "events")
    channel.queue_bind(EVIL, EVIL, EVIL, {EVIL: EVIL})


def _messages(channel: BlockingChannel) -> None:
    def publish(exchange: str, key: str, body: bytes, **properties: Any) -> None:
        channel.basic_publish(exchange, key, body, pika.BasicProperties(**properties))

    channel.confirm_delivery()
    for number in range(120):
        body = {"id": number, "customer": {"name": "Ada", "country": "DE"}, "items": [{"sku": "A-1", "qty": 2}]}
        publish("orders", f"order.eu.{'paid' if number % 4 == 0 else 'new'}", json.dumps(body).encode(),
                content_type="application/json", message_id=f"m-{number}", headers={"tenant": f"t{number % 7}"}, delivery_mode=2)
    task = base64.b64encode(json.dumps([[1, 2], {"x": 3}, {"callbacks": None}]).encode())
    publish("", "emails", task, content_type="application/json", content_encoding="base64",
            headers={"task": "app.add", "id": "b1"})
    publish("", "emails", gzip.compress(b'{"subject": "packed"}'), content_type="application/json", content_encoding="gzip")
    publish("", "emails", MSGPACK, content_type="application/x-msgpack")
    publish("", "emails", bytes(range(256)))
    for number in range(6):
        publish("", "held", b"held %d" % number, delivery_mode=2)
    for number in range(8):
        publish("", "scratch", b"scratch %d" % number, delivery_mode=2)
    publish(EVIL, EVIL, EVIL.encode(), message_id=EVIL, headers={EVIL: EVIL, "list": [EVIL]})
    for number in range(110):
        publish("", "log", b"line %d" % number)
    for number in range(12):
        publish("", STREAM, b"%s %d" % (EVIL.encode(), number))
    publish("", "returned", b"returned")
    for _ in range(2):
        channel.basic_nack(channel.basic_get("returned")[0].delivery_tag, requeue=True)
    publish(EVIL, EVIL, b"dies", headers={EVIL: EVIL})
    for name, times in (("orders.eu", 3), (EVIL, 1)):
        for _ in range(times):
            channel.basic_nack(channel.basic_get(name)[0].delivery_tag, requeue=False)
