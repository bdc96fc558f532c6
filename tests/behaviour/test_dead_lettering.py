"""Dead letters: what a queue rejects, lets expire or drops over its limit is published anew by its dead letter exchange.

`x-death` tells the story: an entry per queue and reason, the newest first. The tests compare whole entries; `time` is
compared with the clock of the test.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import pamqp.commands as amqp
import pamqp.decode
import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from behaviour.helpers import Inbox, confirming, fence, fill, ready, take_all, wait_until
from broker_process import BrokerProcess
from support import eventually, unique
from wire_client import WireClient, field_table, longstr, shortstr

Maker = Callable[..., str]
Connect = Callable[..., pika.BlockingConnection]

LONG = 600_000


@pytest.fixture
def channel(connection: pika.BlockingConnection) -> BlockingChannel:
    """In confirm mode: what was published has reached its queues when basic_publish returns."""
    return confirming(connection)


def letters_to(target: str, **arguments: Any) -> dict[str, Any]:
    """The arguments of a queue whose dead letters go to the queue `target`; `max_length=1` is x-max-length."""
    limits = {"x-" + key.replace("_", "-"): value for key, value in arguments.items()}
    return {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": target, **limits}


class Letter(NamedTuple):
    body: bytes
    exchange: str
    routing_key: str
    properties: pika.BasicProperties

    @property
    def headers(self) -> dict[str, Any]:
        return self.properties.headers or {}

    @property
    def deaths(self) -> list[dict[str, Any]]:
        """x-death without the times."""
        return [{key: value for key, value in entry.items() if key != "time"} for entry in self.headers["x-death"]]


def next_letter(channel: BlockingChannel, queue: str, timeout: float = 10.0) -> Letter:
    """The next message of `queue`, once there is one."""

    def get() -> Letter | None:
        method, properties, body = channel.basic_get(queue, auto_ack=True)
        return None if method is None else Letter(body, method.exchange, method.routing_key, properties)

    letter = eventually(get, timeout)
    assert letter is not None
    return letter


def reject_next(channel: BlockingChannel, queue: str) -> None:
    """Rejects the next message of `queue`, once there is one."""
    method = eventually(lambda: channel.basic_get(queue)[0])
    channel.basic_reject(method.delivery_tag, requeue=False)
    fence(channel, queue)


def death(queue: str, reason: str, count: int = 1, exchange: str = "", keys: list[str] | None = None) -> dict[str, Any]:
    """An entry of x-death without its time; by default of a message published to the queue by its name."""
    return {"count": count, "reason": reason, "queue": queue, "exchange": exchange, "routing-keys": keys or [queue]}


# --- the three reasons -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["reject", "nack"])
def test_rejected_message_is_dead_lettered(channel: BlockingChannel, queue: Maker, how: str) -> None:
    target = queue()
    name = queue(arguments=letters_to(target))
    channel.basic_publish("", name, b"x")
    tag = channel.basic_get(name)[0].delivery_tag
    if how == "reject":
        channel.basic_reject(tag, requeue=False)
    else:
        channel.basic_nack(tag, requeue=False)
    letter = next_letter(channel, target)
    assert (letter.body, letter.exchange, letter.routing_key) == (b"x", "", target)
    assert letter.deaths == [death(name, "rejected")]


def test_requeued_message_is_not(channel: BlockingChannel, queue: Maker) -> None:
    target = queue()
    name = queue(arguments=letters_to(target))
    channel.basic_publish("", name, b"x")
    channel.basic_nack(channel.basic_get(name)[0].delivery_tag, requeue=True)
    method, properties, body = channel.basic_get(name, auto_ack=True)
    assert (body, method.redelivered, properties.headers) == (b"x", True, None)
    assert ready(channel, target) == 0


@pytest.mark.parametrize("act", ["ack", "purge", "delete"])
def test_acked_purged_and_deleted_messages_are_not(channel: BlockingChannel, queue: Maker, act: str) -> None:
    target = queue()
    name = queue(arguments=letters_to(target))
    fill(channel, name, 3)
    if act == "ack":
        for _ in range(3):
            channel.basic_ack(channel.basic_get(name)[0].delivery_tag)
        fence(channel, name)
    elif act == "purge":
        channel.queue_purge(name)
    else:
        channel.queue_delete(name)
    assert take_all(channel, target) == []


def test_nack_of_several_dead_letters_them_in_their_order(channel: BlockingChannel, queue: Maker) -> None:
    target = queue()
    name = queue(arguments=letters_to(target))
    bodies = fill(channel, name, 20)
    tags = [channel.basic_get(name)[0].delivery_tag for _ in range(20)]
    channel.basic_ack(tags[0])
    channel.basic_nack(tags[9], multiple=True, requeue=False)
    assert [next_letter(channel, target).body for _ in range(9)] == bodies[1:10]
    channel.basic_nack(0, multiple=True, requeue=False)
    assert [next_letter(channel, target).body for _ in range(10)] == bodies[10:]


@pytest.mark.parametrize("of_queue", [True, False], ids=["x-message-ttl", "expiration"])
def test_expired_message_is_dead_lettered(channel: BlockingChannel, queue: Maker, of_queue: bool) -> None:
    target = queue()
    name = queue(arguments=letters_to(target, **({"message_ttl": 100} if of_queue else {})))
    channel.basic_publish("", name, b"x", None if of_queue else pika.BasicProperties(expiration="100"))
    letter = next_letter(channel, target)
    extra = {} if of_queue else {"original-expiration": "100"}
    assert (letter.body, letter.deaths) == (b"x", [{**death(name, "expired"), **extra}])


def test_message_of_time_to_live_zero_is_dead_lettered(channel: BlockingChannel, queue: Maker) -> None:
    target = queue()
    name = queue(arguments=letters_to(target, message_ttl=0))
    channel.basic_publish("", name, b"x")
    assert next_letter(channel, target).deaths == [death(name, "expired")]


def test_message_of_time_to_live_zero_that_a_consumer_takes_is_not(channel: BlockingChannel, queue: Maker) -> None:
    target = queue()
    inbox = Inbox(channel, queue(arguments=letters_to(target, message_ttl=0)))
    fill(channel, inbox.queue, 3)
    inbox.wait_for(3)
    assert ready(channel, target) == 0


def test_message_dropped_over_the_limit_is_dead_lettered(channel: BlockingChannel, queue: Maker) -> None:
    target = queue()
    name = queue(arguments=letters_to(target, max_length=1))
    fill(channel, name, 3)
    letters = [next_letter(channel, target) for _ in range(2)]
    assert [letter.body for letter in letters] == [b"0", b"1"]
    assert [letter.deaths for letter in letters] == [[death(name, "maxlen")]] * 2
    assert take_all(channel, name) == [b"2"]


def test_message_over_the_limit_in_bytes_is_dead_lettered(channel: BlockingChannel, queue: Maker) -> None:
    target = queue()
    name = queue(arguments=letters_to(target, max_length_bytes=10))
    channel.basic_publish("", name, b"1234567")
    channel.basic_publish("", name, b"12345678")
    assert next_letter(channel, target).deaths == [death(name, "maxlen")]


def test_refused_publish_is_dead_lettered_when_asked_for(channel: BlockingChannel, queue: Maker) -> None:
    target = queue()
    name = queue(arguments=letters_to(target, max_length=1, overflow="reject-publish-dlx"))
    channel.basic_publish("", name, b"kept")
    with pytest.raises(pika.exceptions.NackError):
        channel.basic_publish("", name, b"refused")
    letter = next_letter(channel, target)
    assert (letter.body, letter.deaths) == (b"refused", [death(name, "maxlen")])
    assert take_all(channel, name) == [b"kept"]


def test_refused_publish_is_not_when_not_asked_for(channel: BlockingChannel, queue: Maker) -> None:
    target = queue()
    name = queue(arguments=letters_to(target, max_length=0, overflow="reject-publish"))
    with pytest.raises(pika.exceptions.NackError):
        channel.basic_publish("", name, b"refused")
    assert take_all(channel, target) == []


def test_expired_messages_keep_their_order(channel: BlockingChannel, queue: Maker) -> None:
    target = queue()
    name = queue(arguments=letters_to(target, message_ttl=200))
    inbox = Inbox(channel, target)
    bodies = fill(channel, name, 300)
    assert inbox.wait_for(300) == bodies


# --- where they go -----------------------------------------------------------------------------------------------------


def test_message_keeps_its_routing_key(channel: BlockingChannel, queue: Maker, exchange: Maker) -> None:
    source, dead = exchange("topic"), exchange("topic")
    target, name = queue(), queue(arguments={"x-dead-letter-exchange": dead})
    channel.queue_bind(name, source, "#")
    channel.queue_bind(target, dead, "a.*")
    channel.basic_publish(source, "a.b", b"x")
    reject_next(channel, name)
    letter = next_letter(channel, target)
    assert (letter.exchange, letter.routing_key) == (dead, "a.b")
    assert letter.deaths == [death(name, "rejected", exchange=source, keys=["a.b"])]


def test_routing_key_of_the_queue_replaces_the_messages(
    channel: BlockingChannel, queue: Maker, exchange: Maker
) -> None:
    dead, target = exchange("direct"), queue()
    name = queue(arguments={"x-dead-letter-exchange": dead, "x-dead-letter-routing-key": "dead"})
    channel.queue_bind(target, dead, "dead")
    channel.basic_publish("", name, b"x")
    reject_next(channel, name)
    letter = next_letter(channel, target)
    assert (letter.exchange, letter.routing_key, letter.deaths) == (dead, "dead", [death(name, "rejected")])


def test_dead_letter_reaches_every_queue_that_the_exchange_names(
    channel: BlockingChannel, queue: Maker, exchange: Maker
) -> None:
    dead, targets = exchange("fanout"), [queue() for _ in range(3)]
    name = queue(arguments={"x-dead-letter-exchange": dead})
    for target in targets:
        channel.queue_bind(target, dead)
    channel.basic_publish("", name, b"x")
    reject_next(channel, name)
    for target in targets:
        letter = next_letter(channel, target)
        assert (letter.body, letter.deaths) == (b"x", [death(name, "rejected")])


@pytest.mark.parametrize("way", ["rejected", "expired", "maxlen"])
def test_letter_to_an_absent_exchange_is_dropped(channel: BlockingChannel, queue: Maker, way: str) -> None:
    arguments: dict[str, Any] = {"x-dead-letter-exchange": unique("absent")}
    if way == "expired":
        arguments["x-message-ttl"] = 50
    elif way == "maxlen":
        arguments["x-max-length"] = 0
    name = queue(arguments=arguments)
    channel.basic_publish("", name, b"x")
    if way == "rejected":
        channel.basic_reject(channel.basic_get(name)[0].delivery_tag, requeue=False)
    eventually(lambda: ready(channel, name) == 0)
    channel.queue_delete(name, if_empty=True)


def test_letter_that_no_queue_wants_is_dropped(channel: BlockingChannel, queue: Maker) -> None:
    name = queue(arguments=letters_to(unique("absent")))
    channel.basic_publish("", name, b"x")
    reject_next(channel, name)
    channel.queue_delete(name, if_empty=True)


def test_alternate_of_the_dead_letter_exchange_gets_what_that_cannot_route(
    channel: BlockingChannel, queue: Maker, exchange: Maker
) -> None:
    alternate, target = exchange("fanout"), queue()
    channel.queue_bind(target, alternate)
    dead = exchange("direct", arguments={"alternate-exchange": alternate})
    name = queue(arguments={"x-dead-letter-exchange": dead})
    channel.basic_publish("", name, b"x")
    reject_next(channel, name)
    assert next_letter(channel, target).exchange == dead


def test_dead_letter_exchange_may_be_declared_later(
    channel: BlockingChannel, queue: Maker, new_name: Maker
) -> None:
    dead, target = new_name("later"), queue()
    name = queue(arguments={"x-dead-letter-exchange": dead})
    fill(channel, name, 2)
    reject_next(channel, name)
    channel.exchange_declare(dead, "fanout")
    channel.queue_bind(target, dead)
    reject_next(channel, name)
    assert next_letter(channel, target).body == b"1"
    assert take_all(channel, target) == []


def test_dead_letter_exchange_may_be_deleted(channel: BlockingChannel, queue: Maker, exchange: Maker) -> None:
    dead, target = exchange("fanout"), queue()
    name = queue(arguments={"x-dead-letter-exchange": dead})
    channel.queue_bind(target, dead)
    channel.exchange_delete(dead)
    channel.basic_publish("", name, b"x")
    reject_next(channel, name)
    assert (take_all(channel, name), take_all(channel, target)) == ([], [])


def test_internal_exchange_may_be_the_dead_letter_exchange(
    channel: BlockingChannel, queue: Maker, exchange: Maker
) -> None:
    dead, target = exchange("fanout", internal=True), queue()
    name = queue(arguments={"x-dead-letter-exchange": dead})
    channel.queue_bind(target, dead)
    channel.basic_publish("", name, b"x")
    reject_next(channel, name)
    assert next_letter(channel, target).body == b"x"


def test_waiting_consumer_gets_the_letter(channel: BlockingChannel, queue: Maker) -> None:
    target = queue()
    inbox = Inbox(channel, target)
    name = queue(arguments=letters_to(target, message_ttl=50))
    channel.basic_publish("", name, b"x")
    assert inbox.wait_for(1) == [b"x"]
    assert (inbox.deliveries[0].redelivered, inbox.deliveries[0].routing_key) == (False, target)


def test_target_may_be_full(channel: BlockingChannel, queue: Maker) -> None:
    target = queue(arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
    name = queue(arguments=letters_to(target))
    fill(channel, name, 3)
    for _ in range(3):
        reject_next(channel, name)
    eventually(lambda: ready(channel, target) == 1)
    assert take_all(channel, target) == [b"0"]


def chain(channel: BlockingChannel, queue: Maker, length: int) -> list[str]:
    """Queues whose messages expire into the next one; the last is where they stay."""
    names = [queue()]
    for _ in range(length):
        names.insert(0, queue(arguments=letters_to(names[0], message_ttl=20)))
    return names


def test_letters_pass_through_a_chain_of_queues(channel: BlockingChannel, queue: Maker) -> None:
    *passed, last = chain(channel, queue, 5)
    channel.basic_publish("", passed[0], b"x")
    deaths = next_letter(channel, last).deaths
    assert deaths[0] == death(passed[-1], "expired")
    assert sorted(entry["queue"] for entry in deaths) == sorted(passed)
    assert {(entry["reason"], entry["count"]) for entry in deaths} == {("expired", 1)}


@pytest.mark.differs("RabbitMQ 3.10 turns the older entries round at every death; only its first is always the newest")
def test_all_deaths_are_told_the_newest_first(channel: BlockingChannel, queue: Maker) -> None:
    *passed, last = chain(channel, queue, 5)
    channel.basic_publish("", passed[0], b"x")
    assert next_letter(channel, last).deaths == [death(name, "expired") for name in reversed(passed)]


# --- what they carry ---------------------------------------------------------------------------------------------------


def test_headers_name_the_first_death(channel: BlockingChannel, queue: Maker, exchange: Maker) -> None:
    """The first death stays the first when others follow."""
    source, last = exchange("fanout"), queue()
    middle = queue(arguments=letters_to(last, message_ttl=50))
    name = queue(arguments=letters_to(middle))
    channel.queue_bind(name, source)
    channel.basic_publish(source, "key", b"x")
    reject_next(channel, name)
    headers = next_letter(channel, last).headers
    first = {key: value for key, value in headers.items() if key != "x-death"}
    assert first == {
        "x-first-death-queue": name,
        "x-first-death-reason": "rejected",
        "x-first-death-exchange": source,
    }


def test_newest_death_comes_first(channel: BlockingChannel, queue: Maker) -> None:
    last = queue()
    middle = queue(arguments=letters_to(last, max_length=0))
    name = queue(arguments=letters_to(middle, message_ttl=50))
    channel.basic_publish("", name, b"x")
    assert next_letter(channel, last).deaths == [death(middle, "maxlen"), death(name, "expired")]


def test_time_of_a_death_is_a_timestamp_of_seconds(channel: BlockingChannel, queue: Maker) -> None:
    target = queue()
    name = queue(arguments=letters_to(target))
    channel.basic_publish("", name, b"x")
    before = time.time()
    reject_next(channel, name)
    letter = next_letter(channel, target)
    at = letter.headers["x-death"][0]["time"]
    assert isinstance(at, dt.datetime)
    assert int(before) <= at.replace(tzinfo=dt.UTC).timestamp() <= time.time()


def test_entry_has_these_fields_in_this_order_and_of_these_types(
    wire: WireClient, channel: BlockingChannel, queue: Maker
) -> None:
    target = queue()
    name = queue(arguments=letters_to(target))
    channel.basic_publish("", name, b"x", pika.BasicProperties(expiration="100"))
    eventually(lambda: ready(channel, target) == 1)
    wire.method(1, amqp.Basic.Get(queue=target, no_ack=True))
    header = wire.expect_content(1, amqp.Basic.GetOk).header
    start = header.index(b"\x07x-death")
    assert typed_keys(header[start + 8 :]) == [
        ("count", "l"),
        ("reason", "S"),
        ("queue", "S"),
        ("time", "T"),
        ("exchange", "S"),
        ("routing-keys", "A"),
        ("original-expiration", "S"),
    ]


def typed_keys(octets: bytes) -> list[tuple[str, str]]:
    """The keys and type letters of the first table of an array (`A`, size, `F`, size, fields)."""
    assert (octets[0:1], octets[5:6]) == (b"A", b"F")
    position, found = 10, []
    end = position + int.from_bytes(octets[6:10], "big")
    while position < end:
        size = octets[position]
        key = octets[position + 1 : position + 1 + size].decode()
        position += 1 + size
        found.append((key, chr(octets[position])))
        position += pamqp.decode.embedded_value(octets[position:])[0]
    return found


def test_count_grows_with_every_return(channel: BlockingChannel, new_name: Maker) -> None:
    """A retry queue: rejected here, expired there, and back again."""
    retry, name = new_name("retry"), new_name("work")
    channel.queue_declare(retry, arguments=letters_to(name, message_ttl=20))
    channel.queue_declare(name, arguments=letters_to(retry))
    channel.basic_publish("", name, b"x")
    for count in range(1, 5):
        reject_next(channel, name)
        eventually(lambda: ready(channel, name) == 1)
        method, properties, _ = channel.basic_get(name)
        deaths = [(entry["queue"], entry["reason"], entry["count"]) for entry in properties.headers["x-death"]]
        assert deaths == [(retry, "expired", count), (name, "rejected", count)]
        assert properties.headers["x-first-death-queue"] == name
        channel.basic_nack(method.delivery_tag, requeue=True)


def test_each_reason_has_an_entry_of_its_own_and_the_newest_moves_to_the_front(
    channel: BlockingChannel, queue: Maker
) -> None:
    target = queue()
    name = queue(arguments=letters_to(target))
    channel.basic_publish("", name, b"x")
    reject_next(channel, name)
    headers = next_letter(channel, target).headers
    channel.basic_publish("", name, b"x", pika.BasicProperties(headers=headers, expiration="50"))
    letter = next_letter(channel, target)
    expired = {**death(name, "expired"), "original-expiration": "50"}
    assert letter.deaths == [expired, death(name, "rejected")]
    channel.basic_publish("", name, b"x", pika.BasicProperties(headers=letter.headers))
    reject_next(channel, name)
    assert next_letter(channel, target).deaths == [death(name, "rejected", 2), expired]


def test_expiration_of_the_message_is_taken_off_and_told(channel: BlockingChannel, queue: Maker) -> None:
    target = queue()
    name = queue(arguments=letters_to(target))
    channel.basic_publish("", name, b"x", pika.BasicProperties(expiration="50"))
    letter = next_letter(channel, target)
    assert letter.properties.expiration is None
    assert letter.deaths == [{**death(name, "expired"), "original-expiration": "50"}]


def test_expiration_is_taken_off_a_rejected_message_as_well(channel: BlockingChannel, queue: Maker) -> None:
    target = queue()
    name = queue(arguments=letters_to(target))
    channel.basic_publish("", name, b"x", pika.BasicProperties(expiration=str(LONG)))
    reject_next(channel, name)
    letter = next_letter(channel, target)
    assert letter.properties.expiration is None
    assert letter.deaths == [{**death(name, "rejected"), "original-expiration": str(LONG)}]


def test_other_properties_headers_and_the_body_stay(channel: BlockingChannel, queue: Maker) -> None:
    target = queue()
    name = queue(arguments=letters_to(target))
    properties = pika.BasicProperties(
        content_type="text/plain",
        content_encoding="utf-8",
        headers={"mine": [1, {"deep": True}], "other": "text"},
        delivery_mode=2,
        priority=3,
        correlation_id="c",
        reply_to="r",
        message_id="m",
        timestamp=1_600_000_000,
        type="t",
        user_id="guest",
        app_id="a",
    )
    channel.basic_publish("", name, b"body", properties)
    reject_next(channel, name)
    letter = next_letter(channel, target)
    mine = {key: value for key, value in letter.headers.items() if key in ("mine", "other")}
    assert (letter.body, mine) == (b"body", properties.headers)
    for key in ("content_type", "content_encoding", "delivery_mode", "priority", "correlation_id", "reply_to",
                "message_id", "timestamp", "type", "user_id", "app_id"):  # fmt: skip
        assert getattr(letter.properties, key) == getattr(properties, key), key


@pytest.mark.parametrize("size", [0, 1, 131_072, 2_000_000])
def test_bodies_of_every_size_pass(channel: BlockingChannel, queue: Maker, size: int) -> None:
    target = queue()
    name = queue(arguments=letters_to(target, message_ttl=50))
    body = bytes(range(256)) * (size // 256) + bytes(size % 256)
    channel.basic_publish("", name, body)
    letter = next_letter(channel, target)
    assert letter.body == body
    assert letter.deaths == [death(name, "expired")]


@pytest.mark.parametrize("value", ["text", 5, {"count": 1}], ids=["text", "number", "table"])
def test_x_death_that_is_no_array_is_replaced(channel: BlockingChannel, queue: Maker, value: object) -> None:
    target = queue()
    name = queue(arguments=letters_to(target))
    channel.basic_publish("", name, b"x", pika.BasicProperties(headers={"x-death": value}))
    reject_next(channel, name)
    assert next_letter(channel, target).deaths == [death(name, "rejected")]


def test_x_death_of_the_publisher_is_carried_on(channel: BlockingChannel, queue: Maker) -> None:
    target = queue()
    name = queue(arguments=letters_to(target))
    elsewhere = {**death("elsewhere", "rejected", 7), "time": dt.datetime(2020, 1, 1, tzinfo=dt.UTC)}
    channel.basic_publish("", name, b"x", pika.BasicProperties(headers={"x-death": [elsewhere]}))
    reject_next(channel, name)
    letter = next_letter(channel, target)
    assert letter.deaths == [death(name, "rejected"), death("elsewhere", "rejected", 7)]


FORGED: dict[str, tuple[list[Any], list[dict[str, Any]]]] = {  # what the publisher wrote, and what is told behind the newest
    "empty": ([], []),
    "empty entry": ([{}], [{}]),
    "entry without a reason": ([{"queue": "q"}], [{"queue": "q"}]),
    "entry with a number for a queue": (
        [{"queue": 5, "reason": "rejected", "count": 1}],
        [{"queue": 5, "reason": "rejected", "count": 1}],
    ),
}


@pytest.mark.parametrize("forged, kept", FORGED.values(), ids=FORGED)
def test_strange_x_death_of_the_publisher_is_carried_on(
    channel: BlockingChannel, queue: Maker, forged: list[Any], kept: list[dict[str, Any]]
) -> None:
    target = queue()
    name = queue(arguments=letters_to(target))
    channel.basic_publish("", name, b"x", pika.BasicProperties(headers={"x-death": forged}))
    reject_next(channel, name)
    assert next_letter(channel, target).deaths == [death(name, "rejected"), *kept]


@pytest.mark.parametrize(
    "more, expected",
    [
        ({"count": 5}, {"count": 6}),
        ({}, {"count": 1}),
        ({"count": 5, "exchange": "e", "mine": 1}, {"count": 6, "exchange": "e", "mine": 1}),
    ],
    ids=["int count", "no count", "more fields"],
)
def test_entry_of_the_publisher_for_the_same_queue_and_reason_is_counted_on(
    channel: BlockingChannel, queue: Maker, more: dict[str, Any], expected: dict[str, Any]
) -> None:
    target = queue()
    name = queue(arguments=letters_to(target))
    forged = {"queue": name, "reason": "rejected"}
    channel.basic_publish("", name, b"x", pika.BasicProperties(headers={"x-death": [forged | more]}))
    reject_next(channel, name)
    assert next_letter(channel, target).deaths == [forged | expected]


# What a publisher wrote into x-death before the queue "@" rejected the message, and what it tells of that queue and of
# others afterwards. Entries of one queue and reason become one, when there is more than one entry at all: the first of
# them, with their number for a count where it has none.
OTHER = {"queue": "other", "reason": "expired"}
MINE = {"queue": "@", "reason": "rejected"}
GROUPS: dict[str, tuple[list[Any], dict[str, Any] | None, dict[str, Any] | None]] = {
    "two without a count": ([MINE, MINE], {**MINE, "count": 3}, None),
    "three, the first with more fields": ([{**MINE, "mine": 1}, MINE, MINE], {**MINE, "mine": 1, "count": 4}, None),
    "the first has a count": ([{**MINE, "count": 3}, MINE], {**MINE, "count": 4}, None),
    "only the second has a count": ([MINE, {**MINE, "count": 7}], {**MINE, "count": 3}, None),
    "both have a count": ([{**MINE, "count": 3}, {**MINE, "count": 7}], {**MINE, "count": 4}, None),
    "two of another queue": ([OTHER, OTHER], None, {**OTHER, "count": 2}),
    "two of another queue, counted": ([{**OTHER, "count": 3}, {**OTHER, "count": 7}], None, {**OTHER, "count": 3}),
    "one of another queue": ([OTHER], None, OTHER),
    "one of each": ([OTHER, MINE], {**MINE, "count": 2}, {**OTHER, "count": 1}),
    "two of each": ([OTHER, MINE, OTHER, MINE], {**MINE, "count": 3}, {**OTHER, "count": 2}),
    "another reason": (
        [{**MINE, "reason": "expired"}, MINE, {**MINE, "reason": "expired"}],
        {**MINE, "count": 2},
        {**MINE, "reason": "expired", "count": 2},
    ),
    "two empty ones": ([{}, {}], None, {"count": 2}),
    "two without a reason": ([{"queue": "@"}, {"queue": "@"}], None, {"queue": "@", "count": 2}),
    "two without a queue": ([{"reason": "expired"}] * 2, None, {"reason": "expired", "count": 2}),
    "no queue and void": ([{"queue": None, "reason": "x"}, {"reason": "x"}], None, {"queue": None, "reason": "x", "count": 2}),
    "numbers": (
        [{"queue": 5, "reason": 1 << 40}, {"queue": 5, "reason": 1 << 40}],
        None,
        {"queue": 5, "reason": 1 << 40, "count": 2},
    ),
    "a time for a count": ([{**MINE, "count": dt.datetime(1970, 1, 1, 0, 0, 5, tzinfo=dt.UTC)}], {**MINE, "count": 6}, None),
    "a negative count": ([{**MINE, "count": -5}], {**MINE, "count": -4}, None),
    "text counts of another": ([{**OTHER, "count": "x"}, OTHER], None, {**OTHER, "count": "x"}),
}  # fmt: skip


@pytest.mark.parametrize("forged, mine, other", GROUPS.values(), ids=GROUPS)
def test_entries_of_one_queue_and_reason_become_one(
    channel: BlockingChannel,
    queue: Maker,
    forged: list[Any],
    mine: dict[str, Any] | None,
    other: dict[str, Any] | None,
) -> None:
    target = queue()
    name = queue(arguments=letters_to(target))

    def named(entry: dict[str, Any]) -> dict[str, Any]:
        return {key: name if value == "@" else value for key, value in entry.items()}

    headers = {"x-death": [named(entry) for entry in forged]}
    channel.basic_publish("", name, b"x", pika.BasicProperties(headers=headers))
    reject_next(channel, name)
    first = death(name, "rejected") if mine is None else named(mine)
    assert next_letter(channel, target).deaths == [first, *([] if other is None else [named(other)])]


def test_entries_are_of_one_queue_by_the_octets_of_its_name(
    wire: WireClient, channel: BlockingChannel, queue: Maker
) -> None:
    """Whether they came as a string or as octets."""
    target = queue()
    name = queue(arguments=letters_to(target))
    entry = field_table(("queue", "x", longstr(name)), ("reason", "x", longstr("rejected")))
    wire.method(1, amqp.Basic.Publish(exchange="", routing_key=name))
    wire.header(1, 0, b"\x20\x00" + field_table(("x-death", "A", longstr(b"F" + entry))))
    eventually(lambda: ready(channel, name) == 1)
    reject_next(channel, name)
    found = next_letter(channel, target).deaths
    assert found == [{"count": 1, "queue": name.encode(), "reason": b"rejected"}]


@pytest.mark.differs("RabbitMQ's queue crashes over it, and the message is lost")
@pytest.mark.parametrize(
    "forged",
    [
        ["text"],
        ["text", {"queue": "q"}],
        [{"queue": "@", "reason": "rejected", "count": "text"}],
        [{"queue": "@", "reason": "rejected", "count": True}],
    ],
    ids=["no tables", "not only tables", "count that is no number", "count that is true"],
)
def test_malformed_x_death_does_not_keep_letters_from_being_published(
    channel: BlockingChannel, queue: Maker, forged: list[Any]
) -> None:
    """Nor those that are published together with it."""
    target = queue()
    name = queue(arguments=letters_to(target))
    forged = [{**entry, "queue": name} if isinstance(entry, dict) else entry for entry in forged]
    for headers in ({"x-death": forged}, {}):
        channel.basic_publish("", name, b"x", pika.BasicProperties(headers=headers))
        tag = channel.basic_get(name)[0].delivery_tag
    channel.basic_nack(tag, multiple=True, requeue=False)
    for _ in range(2):
        entry = next_letter(channel, target).headers["x-death"][0]
        assert (entry["queue"], entry["reason"]) == (name, "rejected")


@pytest.mark.differs("RabbitMQ puts the count beside the void, so that the table has the key twice")
def test_count_that_is_void_is_replaced(channel: BlockingChannel, queue: Maker) -> None:
    target = queue()
    name = queue(arguments=letters_to(target))
    entry = {"queue": name, "reason": "rejected", "count": None}
    channel.basic_publish("", name, b"x", pika.BasicProperties(headers={"x-death": [entry, entry]}))
    reject_next(channel, name)
    assert next_letter(channel, target).deaths == [{**entry, "count": 3}]


@pytest.mark.parametrize("value", [[], "text", None, {"count": 1}], ids=["empty", "text", "void", "table"])
def test_first_death_is_not_told_of_a_message_that_comes_with_an_x_death(
    channel: BlockingChannel, queue: Maker, value: object
) -> None:
    """Whatever that is."""
    target = queue()
    name = queue(arguments=letters_to(target))
    channel.basic_publish("", name, b"x", pika.BasicProperties(headers={"x-death": value}))
    reject_next(channel, name)
    assert list(next_letter(channel, target).headers) == ["x-death"]


def test_first_death_is_not_the_publishers_to_tell(channel: BlockingChannel, queue: Maker) -> None:
    target = queue()
    name = queue(arguments=letters_to(target))
    forged = {"x-first-death-queue": "forged", "x-first-death-reason": 5}
    channel.basic_publish("", name, b"x", pika.BasicProperties(headers=forged))
    reject_next(channel, name)
    headers = next_letter(channel, target).headers
    assert {key: value for key, value in headers.items() if key != "x-death"} == {
        "x-first-death-queue": name,
        "x-first-death-reason": "rejected",
        "x-first-death-exchange": "",
    }


def test_headers_are_in_the_order_of_their_names(channel: BlockingChannel, queue: Maker) -> None:
    """So are the fields of the newest entry of x-death, but in the first of all."""
    target = queue()
    name = queue(arguments=letters_to(target))
    channel.basic_publish("", name, b"x", pika.BasicProperties(headers={"z": 1, "B": 1, "a": 1, "y-": 1}))
    reject_next(channel, name)
    letter = next_letter(channel, target)
    first = ["x-first-death-exchange", "x-first-death-queue", "x-first-death-reason"]
    assert list(letter.headers) == ["B", "a", "x-death", *first, "y-", "z"]
    for headers in ({"x-death": letter.headers["x-death"]}, {"x-death": []}):
        channel.basic_publish("", name, b"x", pika.BasicProperties(headers=headers))
        reject_next(channel, name)
        entry = next_letter(channel, target).headers["x-death"][0]
        assert list(entry) == ["count", "exchange", "queue", "reason", "routing-keys", "time"]


def test_headers_keep_their_octets(wire: WireClient, channel: BlockingChannel, queue: Maker) -> None:
    target = queue()
    name = queue(arguments=letters_to(target, message_ttl=50))
    fields = [
        shortstr(f"mine-{letter}") + letter.encode() + octets
        for letter, octets in (
            ("b", b"\xfe"), ("B", b"\xfe"), ("s", b"\xff\xfe"), ("u", b"\xff\xfe"), ("I", b"\xff\xff\xff\xfe"),
            ("i", b"\xff\xff\xff\xfe"), ("l", b"\xff" * 8), ("d", b"\x40\x09\x21\xfb\x54\x44\x2d\x18"),
            ("f", b"\x40\x49\x0f\xdb"), ("t", b"\x01"), ("T", b"\x00" * 7 + b"\x05"), ("V", b""), ("S", longstr(b"\xff")),
            ("x", longstr(b"\xff\x00")), ("D", b"\x02\x00\x00\x01\x3a"), ("A", longstr(b"b\x01V")), ("F", field_table()),
        )
    ]  # fmt: skip
    wire.method(1, amqp.Basic.Publish(exchange="", routing_key=name))
    wire.header(1, 0, b"\x20\x00" + longstr(b"".join(fields)))
    eventually(lambda: ready(channel, target) == 1)
    wire.method(1, amqp.Basic.Get(queue=target, no_ack=True))
    header = wire.expect_content(1, amqp.Basic.GetOk).header
    assert [field for field in fields if field not in header] == []


def test_routing_keys_tell_cc_but_not_bcc(channel: BlockingChannel, queue: Maker, exchange: Maker) -> None:
    dead, target = exchange("fanout"), queue()
    name = queue(arguments={"x-dead-letter-exchange": dead})
    channel.queue_bind(target, dead)
    headers = {"CC": ["copy", "second"], "BCC": ["blind"]}
    channel.basic_publish("", name, b"x", pika.BasicProperties(headers=headers))
    reject_next(channel, name)
    letter = next_letter(channel, target)
    assert letter.deaths == [death(name, "rejected", keys=[name, "copy", "second"])]
    assert letter.headers["CC"] == ["copy", "second"]


def test_cc_is_routed_by_the_dead_letter_exchange_too(
    channel: BlockingChannel, queue: Maker, exchange: Maker
) -> None:
    dead, target = exchange("direct"), queue()
    name = queue(arguments={"x-dead-letter-exchange": dead})
    channel.queue_bind(target, dead, "copy")
    channel.basic_publish("", name, b"x", pika.BasicProperties(headers={"CC": ["copy"]}))
    reject_next(channel, name)
    assert next_letter(channel, target).routing_key == name


def test_bcc_is_routed_by_the_dead_letter_exchange_too_and_told_to_nobody(
    channel: BlockingChannel, queue: Maker, exchange: Maker
) -> None:
    """At every death, although nobody has seen the header since the publish."""
    dead, target, last = exchange("direct"), queue(), queue()
    second = queue(arguments={"x-dead-letter-exchange": ""})
    name = queue(arguments={"x-dead-letter-exchange": dead})
    channel.queue_bind(second, dead, "blind")
    channel.queue_bind(target, dead, "copy")
    headers = {"BCC": ["nowhere", "blind", last], "CC": ["copy"], "mine": 1}
    channel.basic_publish("", name, b"x", pika.BasicProperties(headers=headers))
    assert [properties.headers for properties in every(channel, last)] == [{"CC": ["copy"], "mine": 1}]
    reject_next(channel, name)
    assert next_letter(channel, target).routing_key == name
    reject_next(channel, second)
    letter = next_letter(channel, last)
    assert (letter.exchange, letter.routing_key) == ("", name)
    keys = [name, "copy"]
    assert letter.deaths == [death(second, "rejected", exchange=dead, keys=keys), death(name, "rejected", keys=keys)]
    assert (letter.headers["CC"], letter.headers["mine"], "BCC" in letter.headers) == (["copy"], 1, False)


def every(channel: BlockingChannel, queue: str) -> list[pika.BasicProperties]:
    """The properties of all messages in the queue, which is empty then."""
    found = []
    while True:
        method, properties, _ = channel.basic_get(queue, auto_ack=True)
        if method is None:
            return found
        found.append(properties)


@pytest.mark.parametrize("way", ["expired", "maxlen", "refused"])
def test_bcc_is_routed_whatever_the_message_died_of(
    channel: BlockingChannel, queue: Maker, exchange: Maker, way: str
) -> None:
    dead, target = exchange("direct"), queue()
    channel.queue_bind(target, dead, "blind")
    limits: dict[str, dict[str, Any]] = {
        "expired": {"x-message-ttl": 20},
        "maxlen": {"x-max-length": 0},
        "refused": {"x-max-length": 0, "x-overflow": "reject-publish-dlx"},
    }
    name = queue(arguments={"x-dead-letter-exchange": dead, **limits[way]})
    refused = pytest.raises(pika.exceptions.NackError) if way == "refused" else contextlib.nullcontext()
    with refused:
        channel.basic_publish("", name, b"x", pika.BasicProperties(headers={"BCC": ["blind"]}))
    assert next_letter(channel, target).routing_key == name


def test_bcc_is_forgotten_when_the_queue_sets_the_routing_key(
    channel: BlockingChannel, queue: Maker, exchange: Maker
) -> None:
    """At the deaths that follow as well."""
    dead, blind, last = exchange("direct"), queue(), queue()
    channel.queue_bind(blind, dead, "blind")
    channel.queue_bind(last, dead, "last")
    second = queue(arguments={"x-dead-letter-exchange": dead})
    channel.queue_bind(second, dead, "set")
    name = queue(arguments={"x-dead-letter-exchange": dead, "x-dead-letter-routing-key": "set"})
    channel.basic_publish("", name, b"x", pika.BasicProperties(headers={"BCC": ["blind"]}))
    reject_next(channel, name)
    reject_next(channel, second)
    channel.basic_publish(dead, "last", b"fence")
    assert (next_letter(channel, last).body, ready(channel, blind)) == (b"fence", 0)


def test_headers_exchange_for_dead_letters_does_not_see_bcc(
    channel: BlockingChannel, queue: Maker, exchange: Maker
) -> None:
    dead, with_bcc, without = exchange("headers"), queue(), queue()
    channel.queue_bind(with_bcc, dead, arguments={"BCC": None})
    channel.queue_bind(without, dead, arguments={"mine": None})
    name = queue(arguments={"x-dead-letter-exchange": dead})
    channel.basic_publish("", name, b"x", pika.BasicProperties(headers={"BCC": ["blind"], "mine": 1}))
    reject_next(channel, name)
    assert next_letter(channel, without).body == b"x"
    assert ready(channel, with_bcc) == 0


@pytest.mark.own
@pytest.mark.parametrize("end", ["stop", "crash"])
@pytest.mark.parametrize("size", [10, 50_000], ids=["in the index", "in the message store"])
def test_bcc_is_remembered_over_a_restart(
    own_broker: Callable[..., BrokerProcess], connect: Connect, end: str, size: int
) -> None:
    own = own_broker()
    channel = confirming(connect(to=own))
    channel.exchange_declare("dead", "direct", durable=True)
    channel.queue_declare("q", durable=True, arguments={"x-dead-letter-exchange": "dead"})
    channel.queue_declare("target", durable=True)
    channel.queue_bind("target", "dead", "blind")
    headers = {"nested": {"BCC": ["q"]}, "BCC": ["blind"], "CC": ["nobody"]}
    channel.basic_publish("", "q", b"x" * size, pika.BasicProperties(headers=headers, delivery_mode=2))
    del headers["BCC"]
    for _ in range(2):
        if end == "crash":
            own.crash()
            own.start()
        else:
            own.restart()
    channel = confirming(connect(to=own))
    method, properties, _ = channel.basic_get("q")
    assert properties.headers == headers
    channel.basic_reject(method.delivery_tag, requeue=False)
    letter = next_letter(channel, "target")
    assert (letter.body, letter.deaths) == (b"x" * size, [death("q", "rejected", keys=["q", "nobody"])])
    assert {key for key in letter.headers if not key.startswith("x-")} == {"nested", "CC"}
    own.assert_clean_log()


def test_cc_is_taken_off_when_the_queue_sets_the_routing_key(channel: BlockingChannel, queue: Maker) -> None:
    target, copied = queue(), queue()
    name = queue(arguments=letters_to(target))
    channel.basic_publish("", name, b"x", pika.BasicProperties(headers={"CC": [copied]}))
    assert take_all(channel, copied) == [b"x"]
    reject_next(channel, name)
    letter = next_letter(channel, target)
    assert "CC" not in letter.headers
    assert letter.deaths == [death(name, "rejected", keys=[name, copied])]
    assert take_all(channel, copied) == []


# --- circles -----------------------------------------------------------------------------------------------------------


def test_letter_that_would_return_to_its_queue_by_expiry_alone_is_dropped(
    channel: BlockingChannel, queue: Maker, new_name: Maker
) -> None:
    name = new_name("queue")
    channel.queue_declare(name, arguments=letters_to(name, message_ttl=50))
    channel.basic_publish("", name, b"x")
    eventually(lambda: ready(channel, name) == 0)
    channel.queue_delete(name, if_empty=True)


def test_circle_of_two_queues_by_expiry_alone_is_dropped(
    channel: BlockingChannel, queue: Maker, new_name: Maker
) -> None:
    first = new_name("queue")
    second = queue(arguments=letters_to(first, message_ttl=50))
    channel.queue_declare(first, arguments=letters_to(second, message_ttl=50))
    channel.basic_publish("", first, b"x")
    eventually(lambda: ready(channel, first) == 0)
    eventually(lambda: ready(channel, second) == 0)
    for name in (first, second):
        channel.queue_delete(name, if_empty=True)


def test_circle_by_length_alone_is_dropped(channel: BlockingChannel, new_name: Maker) -> None:
    name = new_name("queue")
    channel.queue_declare(name, arguments=letters_to(name, max_length=1))
    fill(channel, name, 3)
    fence(channel, name)
    assert take_all(channel, name) == [b"2"]


def test_circle_with_a_reject_in_it_goes_on(channel: BlockingChannel, new_name: Maker) -> None:
    name = new_name("queue")
    channel.queue_declare(name, arguments=letters_to(name))
    channel.basic_publish("", name, b"x")
    for _ in range(5):
        reject_next(channel, name)
    assert next_letter(channel, name).deaths == [death(name, "rejected", 5)]


@pytest.mark.differs("RabbitMQ 3.10 looks for the reject among entries it has turned round, and drops this one")
def test_long_circle_with_a_reject_in_it_goes_on(channel: BlockingChannel, queue: Maker, new_name: Maker) -> None:
    name = new_name("queue")
    third = queue(arguments=letters_to(name, message_ttl=20))
    second = queue(arguments=letters_to(third, message_ttl=20))
    first = queue(arguments=letters_to(second, message_ttl=20))
    channel.queue_declare(name, arguments=letters_to(first))
    channel.basic_publish("", name, b"x")
    for _ in range(4):
        reject_next(channel, name)
    deaths = next_letter(channel, name).deaths
    assert [entry["queue"] for entry in deaths] == [third, second, first, name]
    assert {entry["count"] for entry in deaths} == {4}


def test_circle_that_spares_other_queues_drops_the_copy_of_its_own_queue_only(
    channel: BlockingChannel, queue: Maker, exchange: Maker
) -> None:
    dead, target = exchange("fanout"), queue()
    name = queue(arguments={"x-dead-letter-exchange": dead, "x-message-ttl": 50})
    for bound in (name, target):
        channel.queue_bind(bound, dead)
    channel.basic_publish("", name, b"x")
    assert next_letter(channel, target).deaths == [death(name, "expired")]
    channel.queue_delete(name, if_empty=True)


# --- several channels, confirms, transactions --------------------------------------------------------------------------


def test_letters_are_acked_like_other_messages(channel: BlockingChannel, connect: Connect, queue: Maker) -> None:
    target = queue()
    name = queue(arguments=letters_to(target, message_ttl=50))
    consuming = connect().channel()
    consuming.basic_qos(prefetch_count=1)
    inbox = Inbox(consuming, target)
    bodies = fill(channel, name, 5)
    for count in range(1, 6):
        wait_until(lambda: len(inbox.bodies) >= count, consuming)  # noqa: B023  (called before count moves on)
        assert len(inbox.bodies) == count
        inbox.ack(inbox.deliveries[-1].tag)
    assert inbox.settled() == bodies


def test_reject_in_a_transaction_dead_letters_on_commit(
    channel: BlockingChannel, connect: Connect, queue: Maker
) -> None:
    target = queue()
    name = queue(arguments=letters_to(target))
    channel.basic_publish("", name, b"x")
    tx = connect().channel()
    tx.tx_select()
    tx.basic_reject(tx.basic_get(name)[0].delivery_tag, requeue=False)
    fence(tx, name)
    assert ready(channel, target) == 0
    tx.tx_commit()
    assert next_letter(channel, target).body == b"x"


def test_messages_of_a_transaction_are_dead_lettered(
    channel: BlockingChannel, connect: Connect, queue: Maker
) -> None:
    target = queue()
    name = queue(arguments=letters_to(target, max_length=1))
    tx = connect().channel()
    tx.tx_select()
    for body in (b"0", b"1", b"2"):
        tx.basic_publish("", name, body)
    tx.tx_commit()
    assert [next_letter(channel, target).body for _ in range(2)] == [b"0", b"1"]


def test_many_rejected_at_once(channel: BlockingChannel, connection: pika.BlockingConnection, queue: Maker) -> None:
    target = queue()
    name = queue(arguments=letters_to(target))
    publishing = connection.channel()
    bodies = [b"%d" % number for number in range(1000)]
    for body in bodies:
        publishing.basic_publish("", name, body)
    inbox = Inbox(channel, name)
    inbox.wait_for(1000)
    channel.basic_nack(inbox.tags[-1], multiple=True, requeue=False)
    eventually(lambda: ready(channel, target) == 1000, 20.0)
    assert take_all(channel, target) == bodies


# --- restarts ----------------------------------------------------------------------------------------------------------


@pytest.mark.own
@pytest.mark.parametrize("how", ["stop", "crash"])
def test_persistent_letters_are_there_after_a_restart(
    own_broker: Callable[..., BrokerProcess], connect: Connect, how: str
) -> None:
    own = own_broker()
    channel = confirming(connect(to=own))
    channel.queue_declare("target", durable=True)
    channel.queue_declare("q", durable=True, arguments=letters_to("target"))
    persistent = pika.BasicProperties(delivery_mode=2, headers={"mine": "x"})
    channel.basic_publish("", "q", b"big" * 100_000, persistent)
    channel.basic_publish("", "q", b"small", persistent)
    for _ in range(2):
        reject_next(channel, "q")
    eventually(lambda: ready(channel, "target") == 2)
    # confirmed behind the letters in the same queue, so that a crash finds them on disk
    channel.basic_publish("", "target", b"behind", persistent)
    if how == "crash":
        own.crash()
        own.start()
    else:
        own.restart()
    channel = confirming(connect(to=own))
    letters = [next_letter(channel, "target") for _ in range(3)]
    assert [letter.body for letter in letters] == [b"big" * 100_000, b"small", b"behind"]
    assert [letter.deaths for letter in letters[:2]] == [[death("q", "rejected")]] * 2
    assert letters[0].headers["mine"] == "x"
    assert ready(channel, "q") == 0


@pytest.mark.own
@pytest.mark.parametrize("how", ["stop", "crash"])
def test_what_expired_while_the_broker_was_down_is_dead_lettered(
    own_broker: Callable[..., BrokerProcess], connect: Connect, how: str
) -> None:
    own = own_broker()
    channel = confirming(connect(to=own))
    channel.queue_declare("target", durable=True)
    channel.queue_declare("q", durable=True, arguments=letters_to("target", message_ttl=300))
    for number in range(20):
        channel.basic_publish("", "q", b"%d" % number, pika.BasicProperties(delivery_mode=2))
    if how == "crash":
        own.crash()
        own.start()
    else:
        own.restart()
    channel = confirming(connect(to=own))
    letters = [next_letter(channel, "target") for _ in range(20)]
    assert [letter.body for letter in letters] == [b"%d" % number for number in range(20)]
    assert letters[0].deaths == [death("q", "expired")]
