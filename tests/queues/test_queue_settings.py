"""What arguments and policies make of a queue, at once and while messages wait in it."""

from __future__ import annotations

from typing import Any

import pytest
from pamqp.commands import Basic

from rabbitpy_broker.queues.queue_settings import QueueSettings
from rabbitpy_broker.wire.field_table import FieldTable, field_table
from sans_io import SansIOBroker, content, method
from small_client import SmallClient


def settings(arguments: dict[str, Any] | None = None, policy: dict[str, Any] | None = None) -> QueueSettings:
    return QueueSettings(field_table(arguments or {}), policy or {})


def set_policy(client: SmallClient, **definition: Any) -> None:
    named = {key.replace("_", "-"): value for key, value in definition.items()}
    client.broker.policies.set("p", ".*", "queues", 0, named)
    client.broker.run()


@pytest.mark.parametrize(
    ("arguments", "policy", "expected"),
    [
        ({}, {}, -1),
        ({"x-message-ttl": 5}, {}, 5),
        ({}, {"message-ttl": 7}, 7),
        ({"x-message-ttl": 5}, {"message-ttl": 7}, 5),
        ({"x-message-ttl": 9}, {"message-ttl": 0}, 0),
    ],
)
def test_of_two_numbers_the_smaller_counts(arguments, policy, expected):
    assert settings(arguments, policy).message_ttl == expected


def test_of_two_texts_the_argument_counts():
    found = settings(
        {"x-dead-letter-exchange": "mine"}, {"dead-letter-exchange": "theirs", "queue-mode": "lazy"}
    )
    assert found.dead_letter_exchange == "mine"
    assert found.lazy


def test_a_number_that_is_no_number_does_not_count():
    assert settings({"x-max-length": True, "x-message-ttl": "5"}).max_length == -1


def test_a_number_beyond_all_numbers_is_as_good_as_none():
    assert settings(policy={"message-ttl": 1 << 80}).message_ttl >= 1 << 61


@pytest.mark.parametrize(
    "lacking", ["x-dead-letter-strategy", "x-overflow", "x-dead-letter-exchange", "nothing"]
)
def test_at_least_once_takes_a_queue_that_refuses_and_somewhere_to_go(lacking):
    arguments = {
        "x-dead-letter-strategy": "at-least-once",
        "x-overflow": "reject-publish",
        "x-dead-letter-exchange": "",
    }
    arguments.pop(lacking, None)
    assert settings(arguments).at_least_once == (lacking == "nothing")


# -- limits ---------------------------------------------------------------------------------------------------------


def test_a_queue_that_refuses_does_not_drop_what_comes_back(client):
    client.declare("a", {"x-max-length": 1, "x-overflow": "reject-publish"})
    assert client.publish("a", b"1")
    got = client.get("a")
    assert client.publish("a", b"2")
    client.reject(got, requeue=True)
    assert client.bodies("a") == [b"1", b"2"]


def test_a_queue_that_refuses_and_is_too_long_for_a_new_policy_stays_as_long(client):
    client.declare("a")
    for number in range(3):
        client.publish("a", b"%d" % number)
    set_policy(client, max_length=1, overflow="reject-publish")
    assert client.ready("a") == 3
    assert not client.publish("a")


def test_what_comes_back_may_be_one_too_many(client):
    client.declare("a", {"x-max-length": 1})
    client.publish("a", b"1")
    got = client.get("a")
    client.publish("a", b"2")
    client.reject(got, requeue=True)
    assert client.bodies("a") == [b"2"]


def test_bytes_count_bodies_of_ready_messages_only(client):
    client.declare("a", {"x-max-length-bytes": 10})
    client.publish("a", b"12345")
    client.get("a")
    client.publish("a", b"1234567890")
    assert client.ready("a") == 1
    client.publish("a", b"1")
    assert client.bodies("a") == [b"1"]


def test_a_queue_of_length_zero_gives_to_a_consumer_that_is_ready_and_keeps_nothing(client):
    client.declare("a", {"x-max-length": 0})
    client.publish("a", b"lost")
    client.feed(method(1, Basic.Consume(queue="a", no_ack=True)))
    client.publish("a", b"found")
    assert [one.body for one in client.delivered] == [b"found"]


def test_messages_that_are_paged_out_make_room_like_others(client):
    client.declare("a", {"x-max-length": 50, "x-queue-mode": "lazy"})
    for number in range(200):
        client.publish("a", b"%d" % number)
    for now in range(3):
        client.broker.vhost.tick(float(now))
        client.broker.run()
    assert client.bodies("a") == [b"%d" % number for number in range(150, 200)]


def test_a_policy_that_drops_very_many_does_it_in_turns_that_others_share(client):
    """With a dead-letter exchange and without one."""
    for name in ("a", "b", "other"):
        client.declare(name, durable=False)
    queues = client.broker.vhost.queues
    publish = method(1, Basic.Publish(routing_key="a")) + content(1, b"m")
    other = method(1, Basic.Publish(routing_key="b")) + content(1, b"m")
    client.feed((publish + other) * 20_000)
    client.broker.policies.set("p", "^[ab]$", "queues", 0, {"max-length": 10})
    lengths = []
    while client.broker.due:
        client.broker.due = False
        client.broker.turn.run()
        lengths.append((int(queues["a"].backing.len), int(queues["b"].backing.len)))
    assert lengths[-1] == (10, 10)
    assert lengths[0][0] > 10_000
    assert lengths[0][1] > 10_000


# -- delivery limit -------------------------------------------------------------------------------------------------


def test_what_comes_back_too_often_is_given_up(client):
    client.declare("t")
    arguments = {"x-delivery-limit": 2, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "t"}
    client.declare("a", arguments)
    client.publish("a", b"m")
    for _ in range(3):
        got = client.get("a")
        assert got is not None
        client.reject(got, requeue=True)
    assert client.get("a") is None
    (got,) = client.get_all("t")
    assert got.deaths == [("a", "delivery_limit", 1)]


@pytest.mark.parametrize("how", ["purge", "no_ack", "get", "expire", "maxlen"])
def test_the_count_of_deliveries_is_forgotten_with_the_message(client, how):
    client.declare("a", {"x-delivery-limit": 5, "x-message-ttl": 100})
    client.publish("a", b"m")
    client.reject(client.get("a"), requeue=True)
    queue = client.broker.vhost.queues["a"]
    assert len(queue._requeues) == 1
    if how == "purge":
        queue.purge()
    elif how == "no_ack":
        client.feed(method(1, Basic.Consume(queue="a", no_ack=True)))
    elif how == "get":
        client.get("a", no_ack=True)
    elif how == "expire":
        client.broker.advance(200)
    else:
        set_policy(client, max_length=0)
    assert client.ready("a") == 0
    assert not queue._requeues


# -- policies -------------------------------------------------------------------------------------------------------


def test_a_time_to_live_by_policy_is_for_what_is_published_from_then_on(client):
    client.declare("a")
    client.publish("a", b"before")
    set_policy(client, message_ttl=10)
    client.get("a", no_ack=True)
    client.publish("a", b"after")
    client.broker.policies.clear("p")
    client.publish("a", b"later")
    client.broker.advance(20)
    assert client.bodies("a") == [b"later"]


def test_a_dead_letter_goes_where_the_policy_says_when_it_is_published(client):
    client.declare("a")
    client.declare("t")
    client.publish("a", b"1")
    client.publish("a", b"2")
    client.reject(client.get("a"))
    set_policy(client, dead_letter_exchange="", dead_letter_routing_key="t")
    client.reject(client.get("a"))
    assert client.bodies("t") == [b"2"]


def test_policies_are_applied_one_at_a_time_while_queues_and_exchanges_come_and_go() -> None:
    vhost = SansIOBroker().vhost
    for name in ("first", "second", "third"):
        vhost.declare_queue(name, False, False, False, FieldTable(), None)
        vhost.declare_exchange(name, "fanout", False, False, False, FieldTable())
    vhost.policies.set("p", "", "all", 0, {"max-length": 1, "alternate-exchange": "amq.fanout"})
    steps = vhost.applying_policies()
    next(steps)
    gone = vhost.queues["second"]
    vhost.delete_queue(gone)
    vhost.delete_exchange("second", False)
    vhost.declare_queue("new", False, False, False, FieldTable(), None)
    assert vhost.queues["third"].settings.max_length == -1
    assert len(list(steps)) > 2
    assert {name: queue.settings.max_length for name, queue in vhost.queues.items()} == {"first": 1, "third": 1, "new": 1}
    assert gone.settings.max_length == -1
    assert vhost.exchanges["third"].alternate == "amq.fanout"
