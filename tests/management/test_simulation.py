"""Where a message would go: the queues that a publish finds, with reasons, and nothing is published."""

from __future__ import annotations

import random
from typing import Any

import pytest
from pika.adapters.blocking_connection import BlockingChannel

from broker_process import BrokerProcess
from management.conftest import Http
from rabbitpy_broker.management.api.moves import made
from rabbitpy_broker.management.api.properties import header_payload
from rabbitpy_broker.management.api.simulation import Simulation
from rabbitpy_broker.queues.dead_letter import address_of
from rabbitpy_broker.wire.field_table import FieldTable, field_table
from sans_io import SansIOBroker
from small_client import SmallClient

pytestmark = pytest.mark.own
WORDS = ("a", "b", "a.b", "b.c.d", "")


@pytest.mark.parametrize("seed", range(20))
def test_its_queues_are_those_that_a_publish_finds(seed: int) -> None:
    draw = random.Random(seed)
    broker = SansIOBroker()
    client = SmallClient(broker)
    vhost = broker.vhost
    kinds = ("direct", "topic", "fanout", "headers", "x-consistent-hash")
    names = [f"x{number}" for number in range(5)]
    for name in names:
        alternate = {"alternate-exchange": draw.choice([*names, "absent"])} if draw.random() < 0.4 else {}
        vhost.declare_exchange(name, draw.choice(kinds), True, False, False, field_table(alternate))
    for number in range(5):
        client.declare(f"q{number}")
    for _ in range(12):
        source = vhost.exchanges[draw.choice(names)]
        target: Any = draw.choice([*vhost.queues.values(), *(vhost.exchanges[name] for name in names)])
        key = draw.choice(("a", "a.#", "*.b", "#", "b")) if source.type != "x-consistent-hash" else "1"
        arguments = field_table({"x-match": draw.choice(("all", "any")), "h": draw.randint(0, 1)})
        vhost.bind(source, target, key, arguments if source.type == "headers" else FieldTable())
    for _ in range(30):
        exchange, key = draw.choice([*names, ""]), draw.choice([*WORDS, "q1"])
        headers: dict[str, Any] = {"h": draw.randint(0, 1)}
        if draw.random() < 0.3:
            headers["CC"] = [draw.choice(WORDS), "q2"]
        message = made(header_payload({"headers": headers}, 0), b"", address_of(exchange, key))
        user = broker.node.users.get("guest")
        before = [queue.published for queue in vhost.queues.values()]
        told = Simulation(user, vhost, message).run(exchange, key, mandatory=True)
        keys = [key, *headers.get("CC", [])]
        assert set(told["queues"]) == {queue.name for queue in vhost.find_queues(message, exchange, keys)}
        assert told["returned"] == (not told["queues"])
        assert [queue.published for queue in vhost.queues.values()] == before
    broker.close()


@pytest.fixture
def http(module_broker: BrokerProcess) -> Http:
    return Http(module_broker.management)


def test_reasons_are_told_step_by_step(http: Http, clean_channel: BlockingChannel) -> None:
    channel = clean_channel
    channel.exchange_declare("in", "topic", arguments={"alternate-exchange": "lost"})
    channel.exchange_declare("lost", "fanout")
    channel.exchange_declare("next", "direct")
    channel.exchange_bind("next", "in", "order.#")
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead", "x-message-ttl": 50}
    channel.queue_declare("orders", arguments=arguments)
    channel.queue_declare("dead")
    channel.queue_declare("full", arguments={"x-max-length": 0, "x-overflow": "reject-publish"})
    channel.queue_declare("unrouted")
    channel.queue_bind("orders", "next", "order.new")
    channel.queue_bind("full", "in", "*.new")
    channel.queue_bind("unrouted", "lost")
    told = http("POST", "route", {"exchange": "in", "routing_key": "order.new", "headers": {"a": 1}}).json
    assert (told["routed"], sorted(told["queues"]), told["allowed"], told["returned"]) == (True, ["full", "orders"], True, False)
    steps = {step["to"]["name"]: step for step in told["tree"]["steps"]}
    assert steps["next"]["reason"] == "'order.#' matches the routing key 'order.new'"
    assert steps["full"]["to"]["outcome"] == "refuse"
    (inner,) = steps["next"]["to"]["steps"]
    assert inner["reason"] == "the binding key is the routing key 'order.new'"
    orders = inner["to"]
    assert orders["outcome"] == "keep"
    assert "it expires after 50 ms" in orders["notes"]
    assert orders["dead_letter"]["queues"] == ["dead"]
    assert orders["dead_letter"]["reasons"] == ["rejected", "expired"]
    told = http("POST", "route", {"exchange": "in", "routing_key": "other"}).json
    assert told["queues"] == ["unrouted"]
    assert "alternate exchange (by argument)" in told["tree"]["steps"][0]["reason"]
    told = http("POST", "route", {"exchange": "next", "routing_key": "none", "mandatory": True}).json
    assert (told["routed"], told["returned"]) == (False, True)
    assert http.get("queues/%2F/orders")["messages"] == 0


def test_who_may_ask_and_for_what(http: Http, clean_channel: BlockingChannel) -> None:
    http("PUT", "vhosts/other")
    http("PUT", "users/reader", {"password": "reader", "tags": "management"})
    http("PUT", "permissions/%2F/reader", {"configure": "", "write": "^$", "read": ".*"})
    told = http("POST", "route", {"exchange": "amq.direct", "routing_key": "x"}, user="reader").json
    assert not told["allowed"]
    assert "refused for user 'reader'" in told["refusal"]
    assert http("POST", "route", {"vhost": "other"}, user="reader").status == 401
    assert http("POST", "route", {"vhost": "absent"}).status == 404
    assert http("POST", "route", {"exchange": "absent"}).status == 404
    for wrong in ({"properties": 1}, {"routing_key": "x" * 300}, {"headers": []}, {"payload_bytes": -1}):
        assert http("POST", "route", wrong).status in (200, 400), wrong
    http("DELETE", "vhosts/other")
