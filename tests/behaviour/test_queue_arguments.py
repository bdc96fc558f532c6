"""The x-arguments of queue.declare: which values are refused, and which declarations are the same queue."""

from __future__ import annotations

import struct
from collections.abc import Callable

import pamqp.commands as amqp
import pytest

from wire_client import WireClient, field_table, longstr, shortstr

Maker = Callable[..., str]
Field = tuple[str, str, bytes]

DECLARE = (50, 10)
INTEGERS = ("x-message-ttl", "x-expires", "x-max-length", "x-max-length-bytes", "x-max-priority")

TEN_YEARS = 315_360_000_000  # milliseconds; what RabbitMQ takes at most

WIDTHS = {"b": ">b", "B": ">B", "s": ">h", "u": ">H", "I": ">i", "i": ">I", "l": ">q"}
WIDTH_NAMES = {"b": "byte", "B": "unsignedbyte", "s": "short", "u": "unsignedshort", "I": "signedint",
               "i": "unsignedint", "l": "long"}  # fmt: skip


def integer(key: str, value: int, letter: str = "I") -> Field:
    return key, letter, struct.pack(WIDTHS[letter], value)


def text(key: str, value: str) -> Field:
    return key, "S", longstr(value)


def double(key: str, value: float) -> Field:
    return key, "d", struct.pack(">d", value)


def boolean(key: str, value: bool) -> Field:
    return key, "t", bytes([value])


def array(key: str, *values: str) -> Field:
    return key, "A", longstr(b"".join(b"S" + longstr(value) for value in values))


def table(key: str) -> Field:
    return key, "F", longstr(b"")


def declare(wire: WireClient, name: str, *fields: Field, durable: bool = False) -> None:
    flags = b"\x02" if durable else b"\x00"
    wire.method(1, (*DECLARE, b"\x00\x00" + shortstr(name) + flags + field_table(*fields)))


def assert_refused(wire: WireClient, name: str, fields: list[Field], why: str) -> None:
    declare(wire, name, *fields)
    wire.expect_channel_close(1, 406, why.format(name=name), *DECLARE)


def assert_taken(wire: WireClient, name: str, *fields: Field) -> None:
    declare(wire, name, *fields)
    wire.expect(1, amqp.Queue.DeclareOk)


# --- values ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "field",
    [
        integer("x-message-ttl", 0),
        integer("x-message-ttl", TEN_YEARS, "l"),
        integer("x-expires", 60000),
        integer("x-expires", TEN_YEARS, "l"),
        integer("x-max-length", 0),
        integer("x-queue-version", 1),
        integer("x-queue-version", 2),
        integer("x-max-length-bytes", 0),
        integer("x-max-priority", 0),
        integer("x-max-priority", 255),
        text("x-overflow", "drop-head"),
        text("x-overflow", "reject-publish"),
        text("x-overflow", "reject-publish-dlx"),
        text("x-queue-type", "classic"),
        text("x-queue-mode", "default"),
        text("x-queue-mode", "lazy"),
        text("x-dead-letter-exchange", ""),
        text("x-dead-letter-exchange", "no-such-exchange"),
        boolean("x-single-active-consumer", True),
        boolean("x-single-active-consumer", False),
        text("x-queue-master-locator", "client-local"),
        text("x-queue-master-locator", "min-masters"),
        integer("x-nonsense", 5),
        array("x-nonsense", "a", "b"),
        text("x-cancel-on-ha-failover", "anything"),
    ],
    ids=lambda field: f"{field[0]}={field[2]!r}",
)
def test_value_is_taken(wire: WireClient, new_name: Maker, field: Field) -> None:
    assert_taken(wire, new_name("taken"), field)


@pytest.mark.parametrize("key", INTEGERS)
@pytest.mark.parametrize("letter", WIDTHS)
def test_every_width_of_integer_is_taken(wire: WireClient, new_name: Maker, key: str, letter: str) -> None:
    assert_taken(wire, new_name("width"), integer(key, 100, letter))


def invalid(key: str, why: str) -> str:
    return f"invalid arg '{key}' for queue '{{name}}' in vhost '/': {why}"


@pytest.mark.parametrize("key", INTEGERS)
def test_negative_integer_is_refused(wire: WireClient, new_name: Maker, key: str) -> None:
    why = invalid(key, "{{value_negative,-10}}")
    assert_refused(wire, new_name("negative"), [integer(key, -10)], why)


@pytest.mark.parametrize("key", INTEGERS)
@pytest.mark.parametrize(
    "make, name_of_type",
    [
        (lambda key: text(key, "10"), "longstr"),
        (lambda key: double(key, 10.0), "double"),
        (lambda key: boolean(key, True), "bool"),
        (lambda key: array(key, "10"), "array"),
        (table, "table"),
        (lambda key: (key, "V", b""), "void"),
    ],
    ids=["longstr", "double", "bool", "array", "table", "void"],
)
def test_integer_of_another_type_is_refused(
    wire: WireClient, new_name: Maker, key: str, make: Callable[[str], Field], name_of_type: str
) -> None:
    assert_refused(
        wire, new_name("type"), [make(key)], invalid(key, f'"expected integer, got {name_of_type}"')
    )


@pytest.mark.parametrize(
    "fields, why",
    [
        ([integer("x-expires", 0)], invalid("x-expires", "{{value_zero,0}}")),
        ([integer("x-max-priority", 260)], invalid("x-max-priority", "{{max_value_exceeded,260}}")),
        (
            [integer("x-expires", TEN_YEARS + 1, "l")],
            invalid("x-expires", f"{{{{value_too_large,{TEN_YEARS + 1}}}}}"),
        ),
        (
            [integer("x-message-ttl", TEN_YEARS + 1, "l")],
            invalid("x-message-ttl", f"{{{{value_too_large,{TEN_YEARS + 1}}}}}"),
        ),
        ([text("x-overflow", "nonsense")], invalid("x-overflow", "invalid_overflow")),
        ([integer("x-overflow", 1)], invalid("x-overflow", "{{unacceptable_type,signedint}}")),
        ([text("x-queue-mode", "bad")], invalid("x-queue-mode", "\"unsupported queue mode 'bad'\"")),
        ([integer("x-queue-mode", 1)], invalid("x-queue-mode", "{{unacceptable_type,signedint}}")),
        (
            [text("x-single-active-consumer", "true")],
            invalid("x-single-active-consumer", "{{unacceptable_type,longstr}}"),
        ),
        (
            [integer("x-single-active-consumer", 1)],
            invalid("x-single-active-consumer", "{{unacceptable_type,signedint}}"),
        ),
        (
            [integer("x-dead-letter-exchange", 1)],
            "invalid type 'signedint' for arg 'x-dead-letter-exchange' in queue '{name}' in vhost '/'",
        ),
        (
            [text("x-dead-letter-exchange", "x"), integer("x-dead-letter-routing-key", 1)],
            invalid("x-dead-letter-routing-key", "{{unacceptable_type,signedint}}"),
        ),
        (
            [text("x-dead-letter-routing-key", "key")],
            invalid("x-dead-letter-routing-key", "routing_key_but_no_dlx_defined"),
        ),
        ([integer("x-queue-version", 3)], invalid("x-queue-version", "\"unsupported queue version '3'\"")),
        ([text("x-queue-version", "1")], invalid("x-queue-version", '"expected integer, got longstr"')),
        ([integer("x-queue-type", 1)], invalid("x-queue-type", "{{unacceptable_type,signedint}}")),
        (
            [text("x-queue-type", "nonsense")],
            invalid("x-queue-type", "\"unsupported queue type 'nonsense'\""),
        ),
    ],
    ids=lambda value: "+".join(f"{f[0]}={f[2]!r}" for f in value) if isinstance(value, list) else "",
)
def test_value_is_refused(wire: WireClient, new_name: Maker, fields: list[Field], why: str) -> None:
    assert_refused(wire, new_name("refused"), fields, why)


@pytest.mark.parametrize(
    "key",
    [
        "x-max-age",
        "x-stream-max-segment-size-bytes",
        "x-quorum-initial-group-size",
        "x-max-in-memory-length",
        "x-max-in-memory-bytes",
        "x-queue-leader-locator",
        "x-initial-cluster-size",
    ],
)
def test_argument_of_another_queue_type_is_refused(wire: WireClient, new_name: Maker, key: str) -> None:
    why = f"invalid arg '{key}' for queue '{{name}}' in vhost '/' of queue type rabbit_classic_queue"
    assert_refused(wire, new_name("type"), [integer(key, 1)], why)


def test_refused_queue_does_not_exist(wire: WireClient, new_name: Maker) -> None:
    name = new_name("refused")
    declare(wire, name, integer("x-expires", -1))
    wire.expect(1, amqp.Channel.Close)
    wire.method(1, amqp.Channel.CloseOk())
    wire.open_channel(1)
    wire.method(1, amqp.Queue.Declare(queue=name, passive=True))
    wire.expect_channel_close(1, 404, f"no queue '{name}' in vhost '/'", *DECLARE)


# --- equivalence -------------------------------------------------------------------------------------------------------

VERIFIED = [
    integer("x-message-ttl", 60000),
    integer("x-expires", 60000),
    integer("x-max-length", 10),
    integer("x-max-length-bytes", 10),
    integer("x-max-priority", 5),
    text("x-dead-letter-exchange", "x"),
    text("x-overflow", "drop-head"),
    text("x-queue-mode", "lazy"),
    boolean("x-single-active-consumer", True),
]
SHOWN = {b"\x00\x00\xea\x60": "60000", b"\x00\x00\x00\x0a": "10", b"\x00\x00\x00\x05": "5", b"\x01": "true"}
TYPES = {"I": "signedint", "S": "longstr", "t": "bool"}


def shown(field: Field) -> str:
    _, letter, value = field
    return f"the value '{SHOWN.get(value) or value[4:].decode()}' of type '{TYPES[letter]}'"


@pytest.mark.parametrize("field", VERIFIED, ids=lambda field: field[0])
def test_same_argument_is_the_same_queue(wire: WireClient, new_name: Maker, field: Field) -> None:
    name = new_name("same")
    assert_taken(wire, name, field)
    assert_taken(wire, name, field)


@pytest.mark.parametrize("field", VERIFIED, ids=lambda field: field[0])
def test_leaving_an_argument_out_is_refused(wire: WireClient, new_name: Maker, field: Field) -> None:
    name = new_name("less")
    assert_taken(wire, name, field)
    why = f"inequivalent arg '{field[0]}' for queue '{name}' in vhost '/': received none but current is {shown(field)}"
    assert_refused(wire, name, [], why)


@pytest.mark.parametrize("field", VERIFIED, ids=lambda field: field[0])
def test_adding_an_argument_is_refused(wire: WireClient, new_name: Maker, field: Field) -> None:
    name = new_name("more")
    assert_taken(wire, name)
    why = f"inequivalent arg '{field[0]}' for queue '{name}' in vhost '/': received {shown(field)} but current is none"
    assert_refused(wire, name, [field], why)


def test_dead_letter_routing_key_belongs_to_the_queue(wire: WireClient, new_name: Maker) -> None:
    name, exchange = new_name("key"), text("x-dead-letter-exchange", "x")
    assert_taken(wire, name, exchange)
    why = (
        f"inequivalent arg 'x-dead-letter-routing-key' for queue '{name}' in vhost '/': "
        "received the value 'foo' of type 'longstr' but current is none"
    )
    assert_refused(wire, name, [exchange, text("x-dead-letter-routing-key", "foo")], why)


@pytest.mark.parametrize("letter", WIDTHS)
def test_integers_are_compared_by_value(wire: WireClient, new_name: Maker, letter: str) -> None:
    name = new_name("width")
    assert_taken(wire, name, integer("x-max-length", 10, letter))
    for other in WIDTHS:
        assert_taken(wire, name, integer("x-max-length", 10, other))


@pytest.mark.parametrize("letter", WIDTHS)
def test_refusal_names_the_type_of_the_current_value(wire: WireClient, new_name: Maker, letter: str) -> None:
    name = new_name("width")
    assert_taken(wire, name, integer("x-max-length", 1, letter))
    why = (
        f"inequivalent arg 'x-max-length' for queue '{name}' in vhost '/': "
        f"received none but current is the value '1' of type '{WIDTH_NAMES[letter]}'"
    )
    assert_refused(wire, name, [], why)


@pytest.mark.parametrize(
    "current, received, why",
    [
        (integer("x-max-length", 10), integer("x-max-length", 11), "received '11' but current is '10'"),
        (text("x-overflow", "drop-head"), text("x-overflow", "reject-publish"),
         "received 'reject-publish' but current is 'drop-head'"),
        (boolean("x-single-active-consumer", True), boolean("x-single-active-consumer", False),
         "received 'false' but current is 'true'"),
        (integer("x-max-length", 10), ("x-max-length", "V", b""), "received none but current is '10'"),
    ],
    ids=["integer", "string", "boolean", "void"],
)  # fmt: skip
def test_another_value_is_refused(
    wire: WireClient, new_name: Maker, current: Field, received: Field, why: str
) -> None:
    name = new_name("other")
    assert_taken(wire, name, current)
    assert_refused(
        wire, name, [received], f"inequivalent arg '{current[0]}' for queue '{name}' in vhost '/': {why}"
    )


@pytest.mark.parametrize(
    "kind, shown",
    [
        (("V", b""), "the value 'undefined' of type 'void'"),
        (("D", b"\x02\x00\x00\x00\x0a"), "the value '{{2,10}}' of type 'decimal'"),
    ],
    ids=["void", "decimal"],
)
def test_values_are_shown_as_terms(wire: WireClient, new_name: Maker, kind: tuple[str, bytes], shown: str) -> None:
    name = new_name("term")
    assert_taken(wire, name)
    why = f"inequivalent arg 'x-max-length' for queue '{name}' in vhost '/': received {shown} but current is none"
    assert_refused(wire, name, [("x-max-length", *kind)], why)


def test_timestamp_is_as_good_as_an_integer(wire: WireClient, new_name: Maker) -> None:
    name = new_name("time")
    assert_taken(wire, name, integer("x-max-length", 10))
    assert_taken(wire, name, ("x-max-length", "T", bytes(7) + b"\x0a"))


@pytest.mark.parametrize("kind", [text("x-queue-type", "quorum"), integer("x-queue-type", 1)], ids=["name", "number"])
def test_another_queue_type_is_refused(wire: WireClient, new_name: Maker, kind: Field) -> None:
    name = new_name("type")
    assert_taken(wire, name)
    value = "the value 'quorum' of type 'longstr'" if kind[1] == "S" else "the value '1' of type 'signedint'"
    why = f"inequivalent arg 'x-queue-type' for queue '{name}' in vhost '/': received {value} but current is none"
    assert_refused(wire, name, [kind], why)


def test_unknown_arguments_do_not_count(wire: WireClient, new_name: Maker) -> None:
    name = new_name("unknown")
    assert_taken(wire, name, integer("x-nonsense", 1))
    assert_taken(wire, name, text("x-nonsense", "other"))
    assert_taken(wire, name)


def test_queue_type_classic_is_the_default(wire: WireClient, new_name: Maker) -> None:
    name = new_name("classic")
    assert_taken(wire, name, text("x-queue-type", "classic"))
    assert_taken(wire, name)


@pytest.mark.differs("an unknown locator ends in an internal error of the connection there, in a 406 here")
def test_unknown_master_locator_is_refused(wire: WireClient, new_name: Maker) -> None:
    declare(wire, new_name("locator"), text("x-queue-master-locator", "nonsense"))
    assert wire.expect(1, amqp.Channel.Close).reply_code == 406
