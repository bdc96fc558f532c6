"""Which of two faults is told: the order in which the methods of exchanges and queues are checked.

Each row of the tables has one method with two faults or more, and the close that comes. A name says what its user may
not do with it: the user of these tests may do anything but what `unconfigurable`, `unwritable` and `unreadable` in a
name forbid. The queue `theirs` is exclusive to another connection, `mine` to the one that asks.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pamqp.commands as amqp
import pytest

from broker_process import BrokerAddress
from support import unique
from wire_client import RawMethod, WireClient, field_table, longstr, shortstr

Ctl = Callable[..., str]
Field = tuple[str, str, bytes]
Row = tuple[RawMethod, int, str]

VHOST = unique("order")
FULL_VHOST = unique("full")
USER = unique("user")
PASSWORD = "secret"

EXCHANGES: dict[str, dict[str, Any]] = {
    "direct": {},
    "durable": {"durable": True},
    "automatic": {"auto_delete": True},
    "internal": {"internal": True},
    "with-alternate": {"arguments": {"alternate-exchange": "amq.fanout"}},
    "headers": {"exchange_type": "headers"},
    "topic": {"exchange_type": "topic"},
    "unwritable-exchange": {},
    "unreadable-exchange": {},
    "unconfigurable-exchange": {},
}
QUEUES: dict[str, dict[str, Any]] = {
    "plain": {},
    "durable": {"durable": True},
    "automatic": {"auto_delete": True},
    "theirs": {"exclusive": True},
    "unconfigurable-theirs": {"exclusive": True},
    "unreadable-theirs": {"exclusive": True},
    "unwritable-theirs": {"exclusive": True},
    "unconfigurable": {},
    "unwritable": {},
    "unreadable": {},
    "consumed": {},
}


@pytest.fixture(scope="module")
def world(shared_broker: BrokerAddress, ctl: Ctl) -> Iterator[None]:
    """The vhosts, the user, and what is declared in the first; the second may have no queue."""
    ctl("add_user", USER, PASSWORD)
    for vhost in (VHOST, FULL_VHOST):
        ctl("add_vhost", vhost)
        ctl("set_permissions", "-p", vhost, "guest", ".*", ".*", ".*")
        rights = [f"^(?!.*{word})" for word in ("unconfigurable", "unwritable", "unreadable")]
        ctl("set_permissions", "-p", vhost, USER, *rights)
    ctl("set_vhost_limits", "-p", FULL_VHOST, '{"max-queues": 0}')
    ctl("set_topic_permissions", "-p", VHOST, USER, "topic", "^good", "^good")
    owner = shared_broker.wire().open(vhost=VHOST)
    owner.open_channel(1)
    for name, settings in EXCHANGES.items():
        declare = amqp.Exchange.Declare(exchange=name, **{"exchange_type": "direct", **settings})
        owner.call(1, declare, amqp.Exchange.DeclareOk)
    for name, settings in QUEUES.items():
        owner.call(1, amqp.Queue.Declare(queue=name, **settings), amqp.Queue.DeclareOk)
    owner.call(1, amqp.Queue.Bind(queue="theirs", exchange="direct", routing_key="bound"), amqp.Queue.BindOk)
    owner.call(1, amqp.Basic.Consume(queue="consumed", exclusive=True), amqp.Basic.ConsumeOk)
    yield
    owner.close()
    for vhost in (VHOST, FULL_VHOST):
        ctl("delete_vhost", vhost)
    ctl("delete_user", USER)


@pytest.fixture
def asker(world: None, broker: BrokerAddress, raw: Callable[..., WireClient]) -> WireClient:
    """With channel 1 open, on which the exclusive queue `mine` was declared; "" is no queue's name on channel 2."""
    client = raw().open(user=USER, password=PASSWORD, vhost=VHOST)
    for channel in (1, 2):
        client.open_channel(channel)
    client.call(1, amqp.Queue.Declare(queue="mine", exclusive=True), amqp.Queue.DeclareOk)
    return client


# --- what is asked, and what is told -----------------------------------------------------------------------------------


def text(value: str) -> tuple[str, bytes]:
    return "S", longstr(value)


def number(value: int) -> tuple[str, bytes]:
    return "I", value.to_bytes(4, "big", signed=True)


def declare_queue(name: str, *fields: Field, **flags: bool) -> RawMethod:
    bits = sum(1 << at for at, flag in enumerate(("passive", "durable", "exclusive", "auto_delete")) if flags.get(flag))
    return 50, 10, b"\x00\x00" + shortstr(name) + bytes([bits]) + field_table(*fields)


def declare_exchange(name: str, *fields: Field, type: str = "direct", **flags: bool) -> RawMethod:
    bits = sum(1 << at for at, flag in enumerate(("passive", "durable", "auto_delete", "internal")) if flags.get(flag))
    return 40, 10, b"\x00\x00" + shortstr(name) + shortstr(type) + bytes([bits]) + field_table(*fields)


def bind_queue(queue: str, exchange: str, *fields: Field, key: str = "key") -> RawMethod:
    names = shortstr(queue) + shortstr(exchange) + shortstr(key)
    return 50, 20, b"\x00\x00" + names + b"\x00" + field_table(*fields)


def unbind_queue(queue: str, exchange: str, *fields: Field, key: str = "key") -> RawMethod:
    return 50, 50, b"\x00\x00" + shortstr(queue) + shortstr(exchange) + shortstr(key) + field_table(*fields)


def bind_exchange(destination: str, source: str, *fields: Field, key: str = "key", method: int = 30) -> RawMethod:
    names = shortstr(destination) + shortstr(source) + shortstr(key)
    return 40, method, b"\x00\x00" + names + b"\x00" + field_table(*fields)


def unbind_exchange(destination: str, source: str, *fields: Field, key: str = "key") -> RawMethod:
    return bind_exchange(destination, source, *fields, key=key, method=40)


def delete_queue(name: str, if_unused: bool = False, if_empty: bool = False) -> RawMethod:
    return 50, 40, b"\x00\x00" + shortstr(name) + bytes([if_unused | if_empty << 1])


def delete_exchange(name: str, if_unused: bool = False) -> RawMethod:
    return 40, 20, b"\x00\x00" + shortstr(name) + bytes([if_unused])


def purge(name: str) -> RawMethod:
    return 50, 30, b"\x00\x00" + shortstr(name) + b"\x00"


def get(name: str) -> RawMethod:
    return 60, 70, b"\x00\x00" + shortstr(name) + b"\x00"


def consume(name: str, *fields: Field, tag: str = "", no_ack: bool = False, exclusive: bool = False) -> RawMethod:
    bits = no_ack << 1 | exclusive << 2
    return 60, 20, b"\x00\x00" + shortstr(name) + shortstr(tag) + bytes([bits]) + field_table(*fields)


def reserved(kind: str, name: str) -> tuple[int, str]:
    return 403, f"{kind} name '{name}' contains reserved prefix 'amq.*'"


def refused(kind: str, name: str) -> tuple[int, str]:
    return 403, f"access to {kind} '{name}' in vhost '{VHOST}' refused for user '{USER}'"


def absent(kind: str, name: str) -> tuple[int, str]:
    return 404, f"no {kind} '{name}' in vhost '{VHOST}'"


def locked(name: str) -> tuple[int, str]:
    return 405, (
        f"cannot obtain exclusive access to locked queue '{name}' in vhost '{VHOST}'. It could be originally declared on "
        "another connection or the exclusive property value does not match that of the original declaration."
    )


def differs(what: str, kind: str, name: str, received: str, current: str) -> tuple[int, str]:
    return 406, f"inequivalent arg '{what}' for {kind} '{name}' in vhost '{VHOST}': received {received} but current is {current}"


def bad(argument: str, name: str, why: str) -> tuple[int, str]:
    return 406, f"invalid arg '{argument}' for queue '{name}' in vhost '{VHOST}': {why}"


def row(method: RawMethod, close: tuple[int, str]) -> Row:
    return method, *close


NO_DEFAULT = (403, "operation not permitted on the default exchange")
BAD_TTL: Field = ("x-message-ttl", *number(-1))
LETTERS: Field = ("x-dead-letter-exchange", *text("amq.direct"))
LETTERS_REFUSED: Field = ("x-dead-letter-exchange", *text("unwritable-exchange"))
LETTERS_WRONG: Field = ("x-dead-letter-exchange", *number(1))
BAD_MATCH: Field = ("x-match", *text("none"))
BAD_MATCH_TEXT = (406, 'Invalid x-match field value <<"none">>; expected all, any, all-with-x, or any-with-x')
WRONG_LETTERS_TEXT = f"invalid type 'signedint' for arg 'x-dead-letter-exchange' in queue 'new' in vhost '{VHOST}'"

ON_CHANNEL_1: dict[str, Row] = {
    # a queue that is there: its name, the right, whose it is, then setting by setting
    "reserved name before right": row(declare_queue("amq.unconfigurable"), reserved("queue", "amq.unconfigurable")),
    "reserved name before dead letters": row(declare_queue("amq.new", LETTERS_REFUSED), reserved("queue", "amq.new")),
    "right before owner": row(
        declare_queue("unconfigurable-theirs", durable=True), refused("queue", "unconfigurable-theirs")
    ),
    "owner before durable": row(declare_queue("theirs", durable=True), locked("theirs")),
    "owner before auto_delete": row(declare_queue("theirs", auto_delete=True), locked("theirs")),
    "owner before arguments": row(declare_queue("theirs", BAD_TTL), locked("theirs")),
    "owner before dead letters": row(declare_queue("unreadable-theirs", LETTERS), locked("unreadable-theirs")),
    "shared before durable": row(declare_queue("durable", exclusive=True), locked("durable")),
    "shared before auto_delete": row(declare_queue("automatic", exclusive=True), locked("automatic")),
    "shared before arguments": row(declare_queue("plain", BAD_TTL, exclusive=True), locked("plain")),
    "exclusive before auto_delete": row(declare_queue("mine", auto_delete=True), locked("mine")),
    "exclusive before durable": row(declare_queue("mine", durable=True), locked("mine")),
    "durable before auto_delete": row(
        declare_queue("durable", auto_delete=True), differs("durable", "queue", "durable", "'false'", "'true'")
    ),
    "durable before dead letters": row(
        declare_queue("unreadable", LETTERS_REFUSED, durable=True),
        differs("durable", "queue", "unreadable", "'true'", "'false'"),
    ),
    "auto_delete before arguments": row(
        declare_queue("plain", BAD_TTL, auto_delete=True),
        differs("auto_delete", "queue", "plain", "'true'", "'false'"),
    ),
    "arguments of a queue that is there are compared and not judged": row(
        declare_queue("plain", BAD_TTL, LETTERS_REFUSED),
        differs("x-message-ttl", "queue", "plain", "the value '-1' of type 'signedint'", "none"),
    ),
    "no rights for dead letters of a queue that is there": row(
        declare_queue("unreadable", LETTERS_REFUSED),
        differs("x-dead-letter-exchange", "queue", "unreadable", "the value 'unwritable-exchange' of type 'longstr'", "none"),
    ),
    "passive asks for nothing but existence": row(
        declare_queue("unconfigurable-new", BAD_TTL, passive=True, exclusive=True), absent("queue", "unconfigurable-new")
    ),
    "passive and whose it is": row(
        declare_queue("unconfigurable-theirs", passive=True, durable=True), locked("unconfigurable-theirs")
    ),
    # a queue that is new: the right, dead letters, then argument by argument
    "right before dead letters": row(
        declare_queue("unconfigurable-new", LETTERS_WRONG), refused("queue", "unconfigurable-new")
    ),
    "type of the dead-letter exchange before arguments": row(
        declare_queue("new", BAD_TTL, LETTERS_WRONG), (406, WRONG_LETTERS_TEXT)
    ),
    "right to read it before right to write to the dead-letter exchange": row(
        declare_queue("unreadable-new", LETTERS_REFUSED), refused("queue", "unreadable-new")
    ),
    "dead letters before arguments": row(
        declare_queue("new", BAD_TTL, LETTERS_REFUSED), refused("exchange", "unwritable-exchange")
    ),
    # exchanges
    "default exchange before reserved": row(declare_exchange("\r\n", BAD_TTL), NO_DEFAULT),
    "right before reserved name of an exchange": row(
        declare_exchange("amq.unconfigurable"), refused("exchange", "amq.unconfigurable")
    ),
    "reserved name before alternate": row(
        declare_exchange("amq.new", ("alternate-exchange", *text("unwritable-exchange"))), reserved("exchange", "amq.new")
    ),
    "right to read it before right to write to the alternate": row(
        declare_exchange("unreadable-new", ("alternate-exchange", *text("unwritable-exchange"))),
        refused("exchange", "unreadable-new"),
    ),
    "right before type": row(
        declare_exchange("unconfigurable-exchange", type="fanout"), refused("exchange", "unconfigurable-exchange")
    ),
    "type before durable": row(
        declare_exchange("durable", type="fanout"), differs("type", "exchange", "durable", "'fanout'", "'direct'")
    ),
    "durable before auto_delete of an exchange": row(
        declare_exchange("automatic", durable=True), differs("durable", "exchange", "automatic", "'true'", "'false'")
    ),
    "auto_delete before internal": row(
        declare_exchange("internal", auto_delete=True),
        differs("auto_delete", "exchange", "internal", "'true'", "'false'"),
    ),
    "internal before alternate": row(
        declare_exchange("with-alternate", internal=True),
        differs("internal", "exchange", "with-alternate", "'true'", "'false'"),
    ),
    "no rights for the alternate of an exchange that is there": row(
        declare_exchange("unreadable-exchange", ("alternate-exchange", *text("unwritable-exchange"))),
        differs(
            "alternate-exchange", "exchange", "unreadable-exchange",
            "the value 'unwritable-exchange' of type 'longstr'", "none",
        ),
    ),
    "passive asks nothing else of an exchange": row(
        declare_exchange("unconfigurable-new", type="nonsense", passive=True, durable=True),
        absent("exchange", "unconfigurable-new"),
    ),
    # bindings: the destination, the source, the arguments, and last whose queue it is
    "right to the queue before the default exchange": row(bind_queue("unwritable", ""), refused("queue", "unwritable")),
    "default exchange before the queue's existence": row(bind_queue("nowhere", "\r"), NO_DEFAULT),
    "right to the queue before right to the exchange": row(
        bind_queue("unwritable", "unreadable-exchange"), refused("queue", "unwritable")
    ),
    "right to the exchange before the queue's existence": row(
        bind_queue("nowhere", "unreadable-exchange"), refused("exchange", "unreadable-exchange")
    ),
    "topic before the queue's existence": row(
        bind_queue("nowhere", "topic", key="bad"),
        (403, f"access to topic 'bad' in exchange 'topic' in vhost '{VHOST}' refused for user '{USER}'"),
    ),
    "exchange before queue": row(bind_queue("nowhere", "nowhere"), absent("exchange", "nowhere")),
    "exchange before owner": row(bind_queue("theirs", "nowhere"), absent("exchange", "nowhere")),
    "queue before arguments of the binding": row(bind_queue("nowhere", "headers", BAD_MATCH), absent("queue", "nowhere")),
    "arguments of the binding before owner": row(bind_queue("theirs", "headers", BAD_MATCH), BAD_MATCH_TEXT),
    "owner of a queue to be bound": row(bind_queue("theirs", "direct", key="bound"), locked("theirs")),
    "line feeds count for nothing in names": row(bind_queue("unwr\nitable", "direct"), refused("queue", "unwritable")),
    "right to the queue before the default exchange, unbinding": row(
        unbind_queue("unwritable", ""), refused("queue", "unwritable")
    ),
    "default exchange before the queue's existence, unbinding": row(unbind_queue("nowhere", "\n"), NO_DEFAULT),
    "right to the exchange before owner, unbinding": row(
        unbind_queue("theirs", "unreadable-exchange", key="bound"), refused("exchange", "unreadable-exchange")
    ),
    "owner of a binding to be undone": row(unbind_queue("theirs", "direct", key="bound"), locked("theirs")),
    "default destination before right to the source": row(bind_exchange("", "unreadable-exchange"), NO_DEFAULT),
    "right to the destination before default source": row(
        bind_exchange("unwritable-exchange", ""), refused("exchange", "unwritable-exchange")
    ),
    "default source before absent destination": row(bind_exchange("nowhere", "\r"), NO_DEFAULT),
    "source before destination": row(bind_exchange("nowhere", "nowhere-else"), absent("exchange", "nowhere-else")),
    "destination before arguments": row(bind_exchange("nowhere", "headers", BAD_MATCH), absent("exchange", "nowhere")),
    "right to the destination before default source, unbinding": row(
        unbind_exchange("unwritable-exchange", ""), refused("exchange", "unwritable-exchange")
    ),
    "default source before absent destination, unbinding": row(unbind_exchange("nowhere", "\r"), NO_DEFAULT),
    # the others
    "right to delete before owner": row(
        delete_queue("unconfigurable-theirs", if_unused=True), refused("queue", "unconfigurable-theirs")
    ),
    "owner before use": row(delete_queue("theirs", if_unused=True, if_empty=True), locked("theirs")),
    "reserved name before right to delete": row(
        delete_exchange("amq.unconfigurable"),
        (403, f"deletion of system exchange 'amq.unconfigurable' in vhost '{VHOST}' not allowed"),
    ),
    "right to delete before use": row(
        delete_exchange("unconfigurable-exchange", if_unused=True), refused("exchange", "unconfigurable-exchange")
    ),
    "right to purge before owner": row(purge("unreadable-theirs"), refused("queue", "unreadable-theirs")),
    "right to get before owner": row(get("unreadable-theirs"), refused("queue", "unreadable-theirs")),
    "right to consume before owner": row(consume("unreadable-theirs"), refused("queue", "unreadable-theirs")),
    "owner before arguments of a consumer": row(consume("theirs", ("x-priority", *text("high"))), locked("theirs")),
    "arguments of a consumer before exclusive use": row(
        consume("consumed", ("x-priority", *text("high"))),
        bad("x-priority", "consumed", '"expected integer, got longstr"'),
    ),
}  # fmt: skip

ON_CHANNEL_2: dict[str, Row] = {
    name: row(method, (404, "no previously declared queue"))
    for name, method in {
        "bind before the default exchange": bind_queue("", ""),
        "unbind before the right to the exchange": unbind_queue("", "unreadable-exchange"),
        "consume before arguments": consume("", ("x-priority", *text("high"))),
        "delete before conditions": delete_queue("", if_unused=True),
        "purge": purge(""),
        "get": get(""),
    }.items()
}


@pytest.mark.parametrize("method, code, why", ON_CHANNEL_1.values(), ids=ON_CHANNEL_1)
def test_first_fault_is_told(asker: WireClient, method: RawMethod, code: int, why: str) -> None:
    asker.method(1, method)
    asker.expect_channel_close(1, code, why, *method[:2])


@pytest.mark.parametrize("method, code, why", ON_CHANNEL_2.values(), ids=ON_CHANNEL_2)
def test_name_that_stands_for_none_is_told_first(asker: WireClient, method: RawMethod, code: int, why: str) -> None:
    asker.method(2, method)
    asker.expect_channel_close(2, code, why, *method[:2])


@pytest.mark.parametrize("queue", ["unreadable", "nowhere", "theirs", "amq.rabbitmq.reply-to.nobody"])
def test_used_consumer_tag_is_told_first_of_all(asker: WireClient, queue: str) -> None:
    asker.call(1, amqp.Basic.Consume(queue="mine", consumer_tag="used"), amqp.Basic.ConsumeOk)
    asker.method(1, consume(queue, ("x-priority", *text("high")), tag="used"))
    asker.expect_close(530, "attempt to reuse consumer tag 'used'", 60, 20)


@pytest.mark.parametrize("name", ["", "amq.new", "unconfigurable-exchange", "durable"])
def test_unknown_type_of_an_exchange_is_told_first_of_all(asker: WireClient, name: str) -> None:
    asker.method(1, declare_exchange(name, ("alternate-exchange", *number(1)), type="nonsense"))
    asker.expect_close(503, "unknown exchange type 'nonsense'", 40, 10)


def test_exchange_type_without_a_name_is_invalid(asker: WireClient) -> None:
    asker.method(1, declare_exchange("new", type=""))
    asker.expect_close(503, "invalid exchange type ''", 40, 10)


@pytest.mark.parametrize(
    "exchange, key, fields", [("direct", "not bound", []), ("headers", "key", [BAD_MATCH]), ("nowhere", "", [])]
)
def test_unbinding_what_is_not_bound_is_fine_whoever_owns_the_queue(
    asker: WireClient, exchange: str, key: str, fields: list[Field]
) -> None:
    asker.call(1, unbind_queue("theirs", exchange, *fields, key=key), amqp.Queue.UnbindOk)


def test_names_are_bound_and_unbound_without_line_feeds(asker: WireClient) -> None:
    asker.call(1, bind_queue("mi\rne", "dir\nect"), amqp.Queue.BindOk)
    asker.method(1, amqp.Basic.Publish(exchange="direct", routing_key="key"))
    asker.header(1, 0)
    asker.call(1, unbind_queue("mine\n", "\rdirect"), amqp.Queue.UnbindOk)
    asker.method(1, amqp.Basic.Publish(exchange="direct", routing_key="key"))
    asker.header(1, 0)
    assert asker.call(1, amqp.Queue.Purge(queue="mine"), amqp.Queue.PurgeOk).message_count == 1


# --- the limit of a vhost ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("field", [BAD_TTL, LETTERS_WRONG, LETTERS_REFUSED], ids=["argument", "type", "dead letters"])
@pytest.mark.parametrize("name", ["new", "unreadable-new"])
def test_limit_comes_before_dead_letters_and_arguments(
    world: None, raw: Callable[..., WireClient], name: str, field: Field
) -> None:
    client = raw().open(user=USER, password=PASSWORD, vhost=FULL_VHOST)
    client.open_channel(1)
    client.method(1, declare_queue(name, field))
    why = f"cannot declare queue '{name}': queue limit in vhost '{FULL_VHOST}' (0) is reached"
    client.expect_channel_close(1, 406, why, 50, 10)


@pytest.mark.parametrize(
    "name, close",
    [
        ("amq.new", reserved("queue", "amq.new")),
        ("unconfigurable-new", (403, f"access to queue 'unconfigurable-new' in vhost '{FULL_VHOST}' refused for user '{USER}'")),
    ],
)
def test_limit_comes_behind_name_and_right(
    world: None, raw: Callable[..., WireClient], name: str, close: tuple[int, str]
) -> None:
    client = raw().open(user=USER, password=PASSWORD, vhost=FULL_VHOST)
    client.open_channel(1)
    client.method(1, declare_queue(name))
    client.expect_channel_close(1, *close, 50, 10)


# --- arguments of queue.declare among each other -------------------------------------------------------------------------

JUDGED: dict[str, tuple[tuple[str, bytes], str]] = {  # in the order in which they are judged
    "x-expires": (number(0), "{value_zero,0}"),
    "x-message-ttl": (number(-1), "{value_negative,-1}"),
    "x-dead-letter-routing-key": (text("key"), "routing_key_but_no_dlx_defined"),
    "x-max-length": (number(-1), "{value_negative,-1}"),
    "x-max-length-bytes": (number(-1), "{value_negative,-1}"),
    "x-max-priority": (number(256), "{max_value_exceeded,256}"),
    "x-overflow": (text("none"), "invalid_overflow"),
    "x-queue-mode": (text("none"), "\"unsupported queue mode 'none'\""),
    "x-queue-version": (number(9), "\"unsupported queue version '9'\""),
    "x-single-active-consumer": (number(1), "{unacceptable_type,signedint}"),
}
OF_OTHER_TYPES = ("x-max-age", "x-max-in-memory-length", "x-initial-cluster-size", "x-queue-leader-locator")


@pytest.mark.parametrize("first, second", list(itertools.pairwise(JUDGED)))
def test_arguments_of_a_new_queue_are_judged_in_this_order(asker: WireClient, first: str, second: str) -> None:
    """Whatever order they come in."""
    asker.method(1, declare_queue("new", (second, *JUDGED[second][0]), (first, *JUDGED[first][0])))
    asker.expect_channel_close(1, *bad(first, "new", JUDGED[first][1]), 50, 10)


@pytest.mark.parametrize("first, second", list(itertools.permutations(OF_OTHER_TYPES, 2)))
def test_arguments_of_other_queue_types_are_refused_last_as_they_come(asker: WireClient, first: str, second: str) -> None:
    last = list(JUDGED)[-1]
    asker.method(1, declare_queue("new", (first, *number(1)), (second, *number(1)), (last, *JUDGED[last][0])))
    asker.expect_channel_close(1, *bad(last, "new", JUDGED[last][1]), 50, 10)
    asker.open_channel(3)
    asker.method(3, declare_queue("new", (first, *number(1)), (second, *number(1))))
    why = f"invalid arg '{first}' for queue 'new' in vhost '{VHOST}' of queue type rabbit_classic_queue"
    asker.expect_channel_close(3, 406, why, 50, 10)


COMPARED: dict[str, tuple[str, bytes]] = {  # in the order in which they are compared with those of a queue that is there
    "x-expires": number(1),
    "x-message-ttl": number(1),
    "x-dead-letter-exchange": text("1"),
    "x-dead-letter-routing-key": text("1"),
    "x-max-length": number(1),
    "x-max-length-bytes": number(1),
    "x-max-priority": number(1),
    "x-overflow": text("1"),
    "x-queue-mode": text("1"),
    "x-queue-version": number(1),
    "x-single-active-consumer": number(1),
    "x-queue-type": text("1"),
    "x-queue-master-locator": text("1"),
}


@pytest.mark.parametrize("first, second", list(itertools.pairwise([*COMPARED, "x-unknown"])))
def test_arguments_of_a_queue_that_is_there_are_compared_in_this_order(
    asker: WireClient, first: str, second: str
) -> None:
    asker.method(1, declare_queue("plain", (second, *COMPARED.get(second, number(1))), (first, *COMPARED[first])))
    kind = "longstr" if COMPARED[first][0] == "S" else "signedint"
    received = f"the value '1' of type '{kind}'"
    asker.expect_channel_close(1, *differs(first, "queue", "plain", received, "none"), 50, 10)
