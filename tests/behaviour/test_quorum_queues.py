"""Quorum queues: what may be declared, what comes back where and how often, and what is refused in RabbitMQ's words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import ChannelClosedByBroker, ConnectionClosedByBroker, NackError

from behaviour.helpers import Inbox, confirming, fence, fill, ready, take_all
from broker_process import BrokerProcess
from support import eventually

Maker = Callable[..., str]
Connect = Callable[..., pika.BlockingConnection]

OF_4 = "as in RabbitMQ 4"
REFUSED = "PRECONDITION_FAILED - "


@pytest.fixture
def channel(connection: pika.BlockingConnection) -> BlockingChannel:
    """In confirm mode: what was published has reached its queues when basic_publish returns."""
    return confirming(connection)


@pytest.fixture
def quorum(channel: BlockingChannel, new_name: Maker) -> Maker:
    """`quorum(x_delivery_limit=3)` declares a quorum queue under a fresh name."""

    def declare(**arguments: Any) -> str:
        name = new_name("quorum")
        declare_as(channel, name, **arguments)
        return name

    return declare


def declare_as(channel: BlockingChannel, name: str, /, **arguments: Any) -> None:
    given = {key.replace("_", "-"): value for key, value in arguments.items()}
    channel.queue_declare(name, durable=True, arguments={"x-queue-type": "quorum", **given})


def into(target: str) -> dict[str, Any]:
    return {"x_dead_letter_exchange": "", "x_dead_letter_routing_key": target}


def got(channel: BlockingChannel, queue: str) -> tuple[int, bytes, int | None]:
    """The next message: its delivery tag, its body and how often it came back."""
    found: list[Any] = []

    def get() -> bool:
        found[:] = channel.basic_get(queue)
        return found[0] is not None

    eventually(get)
    method, properties, body = found
    count = (properties.headers or {}).get("x-delivery-count") or None  # RabbitMQ 3.10 gives 0 to basic.get
    assert (count is not None) == method.redelivered
    return method.delivery_tag, body, count


def give_back(channel: BlockingChannel, queue: str, tag: int, **how: Any) -> None:
    channel.basic_nack(tag, **how)
    fence(channel, queue)


# --- declaring -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"x_max_length": 5, "x_overflow": "reject-publish"},
        {"x_max_length_bytes": 5, "x_overflow": "drop-head"},
        {"x_message_ttl": 5, "x_expires": 60_000},
        {"x_single_active_consumer": True},
        {"x_quorum_initial_group_size": 3, "x_queue_leader_locator": "balanced"},
        {"x_max_in_memory_length": 3, "x_max_in_memory_bytes": 3},
        {"x_delivery_limit": 3, "x_dead_letter_strategy": "at-least-once"},
        {"x_delivery_limit": -1},
    ],
    ids=str,
)
def test_declaration_is_taken_and_may_be_repeated(channel: BlockingChannel, quorum: Maker, arguments: dict[str, Any]) -> None:
    declare_as(channel, quorum(**arguments), **arguments)


@pytest.mark.parametrize(
    ("arguments", "key"),
    [
        ({"x_max_priority": 5}, "x-max-priority"),
        ({"x_queue_mode": "lazy"}, "x-queue-mode"),
        ({"x_queue_version": 2}, "x-queue-version"),
        ({"x_queue_master_locator": "random"}, "x-queue-master-locator"),
        ({"x_max_age": "1D"}, "x-max-age"),
        ({"x_initial_cluster_size": 3}, "x-initial-cluster-size"),
        ({"x_stream_max_segment_size_bytes": 3}, "x-stream-max-segment-size-bytes"),
    ],
)
def test_argument_of_another_type_is_refused(
    channel: BlockingChannel, new_name: Maker, arguments: dict[str, Any], key: str
) -> None:
    name = new_name("refused")
    with pytest.raises(ChannelClosedByBroker) as caught:
        declare_as(channel, name, **arguments)
    text = f"{REFUSED}invalid arg '{key}' for queue '{name}' in vhost '/' of queue type rabbit_quorum_queue"
    assert (caught.value.reply_code, caught.value.reply_text) == (406, text)


@pytest.mark.parametrize(
    ("arguments", "key", "why"),
    [
        ({"x_quorum_initial_group_size": 0}, "x-quorum-initial-group-size", "{value_zero,0}"),
        ({"x_quorum_initial_group_size": -1}, "x-quorum-initial-group-size", "{value_negative,-1}"),
        ({"x_quorum_initial_group_size": "a"}, "x-quorum-initial-group-size", '"expected integer, got longstr"'),
        ({"x_max_in_memory_length": -1}, "x-max-in-memory-length", "{value_negative,-1}"),
        ({"x_queue_leader_locator": "x"}, "x-queue-leader-locator", "invalid_queue_locator_arg"),
        ({"x_queue_leader_locator": 5}, "x-queue-leader-locator", "{unacceptable_type,signedint}"),
        ({"x_dead_letter_strategy": "x"}, "x-dead-letter-strategy", "invalid_dlx_strategy"),
        ({"x_expires": 0}, "x-expires", "{value_zero,0}"),
    ],
)
def test_bad_value_is_refused(
    channel: BlockingChannel, new_name: Maker, arguments: dict[str, Any], key: str, why: str
) -> None:
    name = new_name("refused")
    with pytest.raises(ChannelClosedByBroker) as caught:
        declare_as(channel, name, **arguments)
    assert caught.value.reply_text == f"{REFUSED}invalid arg '{key}' for queue '{name}' in vhost '/': {why}"


@pytest.mark.differs("RabbitMQ takes it, and drops the oldest message instead")
def test_reject_publish_dlx_is_refused(channel: BlockingChannel, new_name: Maker) -> None:
    with pytest.raises(ChannelClosedByBroker, match="reject-publish-dlx"):
        declare_as(channel, new_name("refused"), x_overflow="reject-publish-dlx")


@pytest.mark.own
def test_other_confirm_modes_are_refused(channel: BlockingChannel, new_name: Maker) -> None:
    with pytest.raises(ChannelClosedByBroker, match="x-confirm-mode"):
        declare_as(channel, new_name("refused"), x_confirm_mode="consumer-ack")


@pytest.mark.parametrize(
    ("properties", "why"),
    [
        ({"durable": False}, "non-durable"),
        ({"durable": True, "exclusive": True}, "exclusive-owner"),
        ({"durable": True, "auto_delete": True}, "auto-delete"),
        ({"exclusive": True, "auto_delete": True}, "auto-delete"),
    ],
    ids=str,
)
def test_property_that_it_cannot_have_is_refused(
    channel: BlockingChannel, new_name: Maker, properties: dict[str, bool], why: str
) -> None:
    name = new_name("refused")
    with pytest.raises(ChannelClosedByBroker) as caught:
        channel.queue_declare(name, arguments={"x-queue-type": "quorum"}, **properties)
    assert caught.value.reply_text == f"{REFUSED}invalid property '{why}' for queue '{name}' in vhost '/'"


def test_its_name_is_not_left_to_the_broker(channel: BlockingChannel) -> None:
    with pytest.raises(ChannelClosedByBroker) as caught:
        declare_as(channel, "")
    assert caught.value.reply_text == f"{REFUSED}Cannot declare a server-named queue for type rabbit_quorum_queue"


@pytest.mark.parametrize(
    ("again", "why"),
    [
        ({}, "received none but current is the value 'quorum' of type 'longstr'"),
        ({"x-queue-type": "classic"}, "received 'classic' but current is 'quorum'"),
    ],
    ids=["none", "classic"],
)
def test_another_type_is_not_equivalent(channel: BlockingChannel, quorum: Maker, again: dict[str, str], why: str) -> None:
    name = quorum()
    with pytest.raises(ChannelClosedByBroker) as caught:
        channel.queue_declare(name, durable=True, arguments=again)
    assert caught.value.reply_text == f"{REFUSED}inequivalent arg 'x-queue-type' for queue '{name}' in vhost '/': {why}"


@pytest.mark.parametrize("key", ["x_quorum_initial_group_size", "x_max_in_memory_length", "x_delivery_limit"])
def test_its_arguments_are_compared(channel: BlockingChannel, quorum: Maker, key: str) -> None:
    name = quorum()
    with pytest.raises(ChannelClosedByBroker, match="received the value '3' of type 'signedint' but current is none"):
        declare_as(channel, name, **{key: 3})


# --- the default type ----------------------------------------------------------------------------------------------------


@pytest.fixture
def quorum_vhost(ctl: Callable[..., str], own_vhost: str) -> str:
    """A vhost in which queues are quorum queues."""
    ctl("delete_vhost", own_vhost)
    ctl("add_vhost", own_vhost, "--default-queue-type", "quorum")
    ctl("set_permissions", "-p", own_vhost, "guest", ".*", ".*", ".*")
    return own_vhost


def test_queue_is_of_the_default_type_of_its_vhost_if_it_can_be(
    connect: Connect, ctl: Callable[..., str], quorum_vhost: str
) -> None:
    connection = connect(vhost=quorum_vhost)
    channel = connection.channel()
    channel.queue_declare("durable", durable=True)
    channel.queue_declare("durable", durable=True)
    channel.queue_declare("durable", durable=True, arguments={"x-queue-type": "quorum"})
    channel.queue_declare("classic", durable=True, arguments={"x-queue-type": "classic"})
    channel.queue_declare("transient")
    channel.queue_declare("exclusive", exclusive=True)
    channel.queue_declare("auto", durable=True, auto_delete=True)
    lines = ctl("-q", "list_queues", "-p", quorum_vhost, "name", "type", "--no-table-headers").split("\n")
    found = dict(line.split("\t") for line in lines if line)
    others = dict.fromkeys(("auto", "classic", "exclusive", "transient"), "classic")
    assert found == {"durable": "quorum", **others}
    assert f"{quorum_vhost}\tquorum" in ctl("-q", "list_vhosts", "name", "default_queue_type")
    with pytest.raises(ChannelClosedByBroker, match="Cannot declare a server-named queue"):
        channel.queue_declare("", durable=True)


@pytest.mark.own
def test_default_type_of_the_broker_gives_way_to_the_vhosts(own_broker: Callable[..., BrokerProcess], connect: Connect) -> None:
    broker = own_broker({"default_queue_type": "quorum"})
    broker.ctl("add_vhost", "old", "--default-queue-type", "classic")
    broker.ctl("set_permissions", "-p", "old", "guest", ".*", ".*", ".*")
    for vhost in ("/", "old"):
        connect(broker, vhost=vhost).channel().queue_declare("q", durable=True)
    for _ in range(2):
        kinds = [broker.ctl("-q", "list_queues", "-p", vhost, "type", "--no-table-headers").strip() for vhost in ("/", "old")]
        assert kinds == ["quorum", "classic"]
        broker.stop()
        broker.start()


# --- what comes back -------------------------------------------------------------------------------------------------------


def test_deliveries_are_counted(channel: BlockingChannel, quorum: Maker) -> None:
    name = quorum(x_delivery_limit=10)
    fill(channel, name, 1)
    counts = []
    for _ in range(4):
        tag, _, count = got(channel, name)
        counts.append(count)
        give_back(channel, name, tag)
    assert counts == [None, 1, 2, 3]


@pytest.mark.parametrize("how", ["reject", "nack all", "recover", "close the channel", "close the connection"])
def test_every_way_of_coming_back_counts(connect: Connect, channel: BlockingChannel, quorum: Maker, how: str) -> None:
    name = quorum(x_delivery_limit=10)
    fill(channel, name, 2)
    other = connect()
    away = other.channel()
    tags = [got(away, name)[0] for _ in range(2)]
    if how == "reject":
        for tag in tags:
            away.basic_reject(tag)
    elif how == "nack all":
        away.basic_nack(0, multiple=True)
    elif how == "recover":
        away.basic_recover(requeue=True)
    elif how == "close the channel":
        away.close()
    else:
        other.close()
    assert [got(channel, name)[1:] for _ in range(2)] == [(b"0", 1), (b"1", 1)]


def test_consumer_is_told_the_count_in_place_of_a_header_of_that_name(channel: BlockingChannel, quorum: Maker) -> None:
    name = quorum(x_delivery_limit=10)
    headers = {"x-delivery-count": "mine", "other": 1}
    channel.basic_publish("", name, b"x", pika.BasicProperties(headers=headers))
    inbox = Inbox(channel, name)
    inbox.wait_for(1)
    assert inbox.deliveries[0].properties.headers == headers
    channel.basic_nack(inbox.tags[0])
    inbox.wait_for(2)
    assert inbox.deliveries[1].properties.headers == {"x-delivery-count": 1, "other": 1}
    assert inbox.deliveries[1].redelivered


def test_dead_letter_has_the_headers_it_was_published_with(channel: BlockingChannel, queue: Maker, quorum: Maker) -> None:
    target = queue()
    name = quorum(x_delivery_limit=1, **into(target))
    channel.basic_publish("", name, b"x", pika.BasicProperties(headers={"x-delivery-count": "mine"}))
    for _ in range(2):
        eventually(lambda: ready(channel, name) == 1)
        give_back(channel, name, channel.basic_get(name)[0].delivery_tag)
    eventually(lambda: ready(channel, target) == 1)
    _, properties, _ = channel.basic_get(target)
    death = properties.headers["x-death"][0]
    assert (death["reason"], death["count"], death["queue"]) == ("delivery_limit", 1, name)
    assert properties.headers["x-delivery-count"] == "mine"


def test_with_a_limit_what_comes_back_is_next_in_the_order_in_which_it_came(channel: BlockingChannel, quorum: Maker) -> None:
    name = quorum(x_delivery_limit=10)
    fill(channel, name, 4)
    tags = [got(channel, name)[0] for _ in range(3)]
    for at in (2, 0, 1):
        give_back(channel, name, tags[at])
    assert [got(channel, name)[1] for _ in range(4)] == [b"2", b"0", b"1", b"3"]


@pytest.mark.differs(f"-1 is no limit {OF_4}; in 3.10 it gives up each message at once")
def test_without_a_limit_what_is_given_back_goes_behind_everything(channel: BlockingChannel, quorum: Maker) -> None:
    name = quorum(x_delivery_limit=-1)
    fill(channel, name, 4)
    tags = [got(channel, name)[0] for _ in range(3)]
    for at in (2, 0, 1):
        give_back(channel, name, tags[at])
    fill(channel, name, 1, start=4)
    assert [got(channel, name)[1] for _ in range(5)] == [b"3", b"2", b"0", b"1", b"4"]


@pytest.mark.differs(f"-1 is no limit {OF_4}; in 3.10 it gives up each message at once")
def test_without_a_limit_what_a_consumer_leaves_behind_is_next(connect: Connect, channel: BlockingChannel, quorum: Maker) -> None:
    name = quorum(x_delivery_limit=-1)
    fill(channel, name, 4)
    away = connect().channel()
    for _ in range(2):
        got(away, name)
    away.close()
    assert [got(channel, name)[1] for _ in range(4)] == [b"0", b"1", b"2", b"3"]


def test_message_over_the_limit_is_dropped_without_a_dead_letter_exchange(channel: BlockingChannel, quorum: Maker) -> None:
    name = quorum(x_delivery_limit=2)
    fill(channel, name, 1)
    for _ in range(3):
        give_back(channel, name, got(channel, name)[0])
    eventually(lambda: ready(channel, name) == 0)
    assert channel.basic_get(name)[0] is None


@pytest.mark.differs(f"the limit is 20 {OF_4}; 3.10 has none")
def test_the_limit_is_20_if_nobody_says_otherwise(channel: BlockingChannel, quorum: Maker) -> None:
    target = quorum()
    name = quorum(**into(target))
    fill(channel, name, 1)
    inbox = Inbox(channel, name)
    for number in range(21):
        inbox.wait_for(number + 1)
        channel.basic_nack(inbox.tags[-1])
    eventually(lambda: ready(channel, target) == 1)
    assert len(inbox.settled()) == 21


@pytest.mark.own
@pytest.mark.parametrize(("setting", "rounds"), [(1, 2), (-1, 30)])
def test_default_limit_is_a_setting(
    own_broker: Callable[..., BrokerProcess], connect: Connect, setting: int, rounds: int
) -> None:
    channel = confirming(connect(own_broker({"quorum_delivery_limit": setting})))
    declare_as(channel, "q")
    fill(channel, "q", 1)
    for _ in range(rounds):
        give_back(channel, "q", got(channel, "q")[0])
    assert ready(channel, "q") == (0 if setting > 0 else 1)


@pytest.mark.own
@pytest.mark.parametrize(
    ("argument", "policy", "limit"), [(None, 1, 1), (3, 1, 1), (1, 3, 1), (-1, 1, 1), (1, -1, 1)], ids=str
)
def test_limit_is_the_smaller_one_of_argument_and_policy(
    channel: BlockingChannel, quorum: Maker, ctl: Callable[..., str], argument: int | None, policy: int, limit: int
) -> None:
    name = quorum(**({} if argument is None else {"x_delivery_limit": argument}))
    ctl("set_policy", name, f"^{name}$", f'{{"delivery-limit":{policy}}}', "--apply-to", "quorum_queues")
    try:
        fill(channel, name, 1)
        for _ in range(limit + 1):
            give_back(channel, name, got(channel, name)[0])
        assert ready(channel, name) == 0
    finally:
        ctl("clear_policy", name)


# --- what else it promises -------------------------------------------------------------------------------------------------


def test_refuses_publishes_when_it_is_full(channel: BlockingChannel, quorum: Maker) -> None:
    name = quorum(x_max_length=2, x_overflow="reject-publish")
    with pytest.raises(NackError):
        fill(channel, name, 10)


def test_drops_the_oldest_when_it_is_full(channel: BlockingChannel, quorum: Maker) -> None:
    target = quorum()
    name = quorum(x_max_length=2, **into(target))
    fill(channel, name, 4)
    eventually(lambda: ready(channel, target) == 2)
    assert take_all(channel, name) == [b"2", b"3"]


def test_expired_messages_are_dead_lettered(channel: BlockingChannel, quorum: Maker) -> None:
    target = quorum()
    name = quorum(x_message_ttl=50, **into(target))
    fill(channel, name, 1)
    channel.basic_publish("", name, b"own", pika.BasicProperties(expiration="20"))
    eventually(lambda: ready(channel, target) == 2)


@pytest.mark.parametrize("strategy", ["at-most-once", "at-least-once"])
def test_both_ways_of_dead_lettering(channel: BlockingChannel, quorum: Maker, strategy: str) -> None:
    target = quorum()
    name = quorum(x_dead_letter_strategy=strategy, x_overflow="reject-publish", **into(target))
    fill(channel, name, 2)
    for _ in range(2):
        channel.basic_reject(got(channel, name)[0], requeue=False)
    eventually(lambda: ready(channel, target) == 2)


@pytest.mark.differs("RabbitMQ asks again after minutes")
def test_at_least_once_keeps_what_nobody_takes(channel: BlockingChannel, quorum: Maker, new_name: Maker) -> None:
    target = new_name("later")
    name = quorum(x_dead_letter_strategy="at-least-once", x_overflow="reject-publish", **into(target))
    fill(channel, name, 1)
    channel.basic_reject(got(channel, name)[0], requeue=False)
    declare_as(channel, target)
    eventually(lambda: ready(channel, target) == 1)


@pytest.mark.differs(f"two priorities, {OF_4}")
def test_two_urgent_messages_are_delivered_for_each_other_one(channel: BlockingChannel, quorum: Maker) -> None:
    name = quorum()
    for body, priority in ((b"a", None), (b"b", 4), (b"c", 0), (b"A", 5), (b"B", 9), (b"C", 255), (b"D", 5), (b"E", 5)):
        channel.basic_publish("", name, body, pika.BasicProperties(priority=priority))
    assert b"".join(take_all(channel, name)) == b"ABaCDbEc"


@pytest.mark.differs(f"two priorities, {OF_4}")
def test_urgent_message_that_was_published_first_comes_first_though_it_is_the_others_turn(
    channel: BlockingChannel, quorum: Maker
) -> None:
    name = quorum()
    for body in b"ABCa":
        priority = 5 if bytes([body]).isupper() else None
        channel.basic_publish("", name, bytes([body]), pika.BasicProperties(priority=priority))
    assert b"".join(take_all(channel, name)) == b"ABCa"


@pytest.mark.own
def test_priorities_are_a_setting(own_broker: Callable[..., BrokerProcess], connect: Connect) -> None:
    channel = confirming(connect(own_broker({"quorum_priorities": False})))
    declare_as(channel, "q")
    for number, priority in enumerate((0, 9, 0, 9)):
        channel.basic_publish("", "q", b"%d" % number, pika.BasicProperties(priority=priority))
    assert take_all(channel, "q") == [b"0", b"1", b"2", b"3"]


def test_single_active_consumer(connection: pika.BlockingConnection, channel: BlockingChannel, quorum: Maker) -> None:
    name = quorum(x_single_active_consumer=True)
    first, second = Inbox(channel, name, auto_ack=True), Inbox(connection.channel(), name, auto_ack=True)
    fill(channel, name, 3)
    first.wait_for(3)
    assert second.settled() == []
    channel.basic_cancel(first.tag)
    fill(channel, name, 1, start=3)
    assert second.wait_for(1) == [b"3"]


def test_consumer_priorities(connection: pika.BlockingConnection, channel: BlockingChannel, quorum: Maker) -> None:
    name = quorum()
    low = Inbox(connection.channel(), name, auto_ack=True)
    high = Inbox(channel, name, auto_ack=True, arguments={"x-priority": 5})
    fill(channel, name, 4)
    assert len(high.wait_for(4)) == 4
    assert low.settled() == []


def test_purge_and_delete_take_what_came_back_too(channel: BlockingChannel, quorum: Maker) -> None:
    name = quorum(x_delivery_limit=5)
    fill(channel, name, 3)
    tags = [got(channel, name)[0] for _ in range(2)]
    give_back(channel, name, tags[1])
    eventually(lambda: ready(channel, name) == 2)
    assert channel.queue_purge(name).method.message_count == 2
    give_back(channel, name, tags[0])
    eventually(lambda: ready(channel, name) == 1)
    assert channel.queue_delete(name).method.message_count == 1


# --- what is refused in use ------------------------------------------------------------------------------------------------


def test_global_qos_is_refused(channel: BlockingChannel, quorum: Maker) -> None:
    name = quorum()
    channel.basic_qos(prefetch_count=5, global_qos=True)
    with pytest.raises(ConnectionClosedByBroker) as caught:
        channel.basic_consume(name, lambda *_: None)
    text = f"NOT_IMPLEMENTED - queue '{name}' in vhost '/' does not support global qos"
    assert (caught.value.reply_code, caught.value.reply_text) == (540, text)


def test_get_from_a_queue_with_a_single_active_consumer_is_refused(channel: BlockingChannel, quorum: Maker) -> None:
    name = quorum(x_single_active_consumer=True)
    with pytest.raises(ChannelClosedByBroker) as caught:
        channel.basic_get(name)
    assert caught.value.reply_code == 405
    assert "basic.get operations are not supported by quorum queues with single active consumer" in caught.value.reply_text


@pytest.mark.parametrize("flag", ["if_empty", "if_unused"])
def test_conditional_delete_is_refused(channel: BlockingChannel, quorum: Maker, flag: str) -> None:
    name = quorum()
    with pytest.raises(ConnectionClosedByBroker) as caught:
        channel.queue_delete(name, **{flag: True})
    text = (
        f"NOT_IMPLEMENTED - cannot delete queue '{name}' in vhost '/'. queue.delete operations with {flag.replace('_', '-')} "
        "flag set are not supported by quorum queues"
    )
    assert (caught.value.reply_code, caught.value.reply_text) == (540, text)


def test_exclusive_consumers_are_consumers_like_others(channel: BlockingChannel, quorum: Maker) -> None:
    name = quorum()
    Inbox(channel, name, exclusive=True)
    Inbox(channel, name)


@pytest.mark.parametrize("key", ["x-stream-offset", "x-cancel-on-ha-failover"])
def test_consumer_argument_of_another_type_is_refused(channel: BlockingChannel, quorum: Maker, key: str) -> None:
    name = quorum()
    with pytest.raises(ChannelClosedByBroker) as caught:
        channel.basic_consume(name, lambda *_: None, arguments={key: True})
    text = f"{REFUSED}invalid arg '{key}' for queue '{name}' in vhost '/' of queue type rabbit_quorum_queue"
    assert caught.value.reply_text == text


# --- what an operator sees ---------------------------------------------------------------------------------------------------


def test_lists_say_that_it_has_one_member(ctl: Callable[..., str], quorum: Maker) -> None:
    name = quorum()
    columns = ("name", "type", "leader", "members", "online")
    lines = ctl("-q", "list_queues", *columns, "--no-table-headers").split("\n")
    found = next(line.split("\t") for line in lines if line.startswith(name))
    leader = found[2]
    assert leader.count("@") == 1
    assert found[1:] == ["quorum", leader, f"[{leader}]", f"[{leader}]"]


@pytest.mark.own
@pytest.mark.parametrize(
    ("definition", "applies"),
    [({"queue-mode": "lazy", "max-length": 5}, False), ({"ha-mode": "all"}, False), ({"queue-leader-locator": "balanced"}, True),
     ({"max-age": "1D"}, False), ({"queue-version": 2}, True), ({"max-in-memory-length": 5}, True)],
    ids=str,
)  # fmt: skip
def test_policy_with_a_key_for_another_type_does_not_apply(
    quorum: Maker, ctl: Callable[..., str], definition: dict[str, Any], applies: bool
) -> None:
    name = quorum()
    text = str(definition).replace("'", '"')
    ctl("set_policy", name, f"^{name}$", text, "--apply-to", "queues")
    try:
        lines = ctl("-q", "list_queues", "name", "policy", "--no-table-headers").split("\n")
        assert next(line.split("\t")[1] for line in lines if line.startswith(name)) == (name if applies else "")
    finally:
        ctl("clear_policy", name)
