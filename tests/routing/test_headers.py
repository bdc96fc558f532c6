"""Headers: modes, presence tests, which values are equal, and the patterns that are refused.

The answers in the two tables of values are RabbitMQ 3.10.8's.
"""

from __future__ import annotations

import struct

import pytest

from content_headers import header_of
from rabbitpy_broker.destination import QUEUE, Destination
from rabbitpy_broker.errors import PRECONDITION_FAILED, ChannelClosed
from rabbitpy_broker.routing.headers import HeadersExchange
from rabbitpy_broker.wire.field_table import FieldTable, decode_table, field_table
from wire_client import field_table as encoded_table
from wire_client import longstr

NONE = FieldTable()
QUEUE_ONE = Destination(QUEUE, "one")


def exchange() -> HeadersExchange:
    return HeadersExchange("source", False, False, False, NONE)


def matches(arguments: FieldTable, headers: FieldTable | None) -> bool:
    source = exchange()
    source.bind(QUEUE_ONE, "ignored", arguments, False)
    found: dict[Destination, None] = {}
    source.match("another", header_of(headers), found)
    return QUEUE_ONE in found


AB: dict[str, object] = {"a": "1", "b": 2}
ANY: dict[str, object] = {"x-match": "any"}


@pytest.mark.parametrize(
    "arguments, headers, expected",
    [
        (AB, {"a": "1", "b": 2, "c": 3}, True),
        (AB, {"a": "1"}, False),
        (AB, {"a": "1", "b": 3}, False),
        (AB, None, False),
        ({}, None, True),
        ({}, {"a": 1}, True),
        ({"x-match": "all", **AB}, {"b": 2, "a": "1"}, True),
        ({"x-match": "all"}, None, True),
        ({**ANY, **AB}, {"b": 2}, True),
        ({**ANY, **AB}, {"a": "2", "b": 3}, False),
        ({**ANY, **AB}, None, False),
        (ANY, {"a": 1}, False),
        (ANY, None, False),
        ({"x-key": "v", "a": 1}, {"a": 1}, True),
        ({**ANY, "x-key": "v"}, {"x-key": "v"}, False),
        ({"x-match": "all-with-x", "x-key": "v", "a": 1}, {"a": 1}, False),
        ({"x-match": "all-with-x", "x-key": "v", "a": 1}, {"a": 1, "x-key": "v"}, True),
        ({"x-match": "any-with-x", "x-key": "v", "a": 1}, {"x-key": "v"}, True),
        ({"x-match": "any-with-x", "x-key": "v"}, {"x-key": "w"}, False),
        ({"x-match": "any-with-x", "a": 1}, {"x-match": "any-with-x"}, False),
        ({"a": None}, {"a": "whatever"}, True),
        ({"a": None}, {"a": None}, True),
        ({"a": None}, {"b": 1}, False),
        ({**ANY, "a": None, "b": 1}, {"a": 7}, True),
        ({"a": 1}, {"a": None}, False),
    ],
)
def test_modes(arguments: dict[str, object], headers: dict[str, object] | None, expected: bool) -> None:
    assert matches(field_table(arguments), None if headers is None else field_table(headers)) == expected


def test_queue_with_several_matching_bindings_is_found_once() -> None:
    source = exchange()
    for arguments in ({"a": 1}, {"b": 1}, {**ANY, "a": 1, "b": 1}):
        source.bind(QUEUE_ONE, "", field_table(arguments), False)
    found: dict[Destination, None] = {}
    source.match("", header_of(field_table({"a": 1, "b": 1})), found)
    assert list(found) == [QUEUE_ONE]


# -- values ---------------------------------------------------------------------------------------------------------


def typed(letter: str, octets: bytes) -> bytes:
    return letter.encode() + octets


def array(*items: bytes) -> bytes:
    return typed("A", longstr(b"".join(items)))


def table(*fields: tuple[str, bytes]) -> bytes:
    return typed("F", encoded_table(*[(key, chr(value[0]), value[1:]) for key, value in fields]))


def string(text: bytes) -> bytes:
    return typed("S", longstr(text))


def decimal(scale: int, value: int) -> bytes:
    return typed("D", struct.pack(">Bi", scale, value))


def double(value: float) -> bytes:
    return typed("d", struct.pack(">d", value))


def under(key: str, value: bytes) -> FieldTable:
    return decode_table(encoded_table((key, chr(value[0]), value[1:])), 0)[0]


INT = typed("I", struct.pack(">i", 1))
LONG = typed("l", struct.pack(">q", 1))
OTHER_LONG = typed("L", struct.pack(">q", 1))
TRUE = typed("t", b"\x01")
NUMBERS = {
    "byte": typed("b", b"\x01"),
    "unsigned byte": typed("B", b"\x01"),
    "short": typed("s", b"\x00\x01"),
    "unsigned short": typed("u", b"\x00\x01"),
    "int": INT,
    "unsigned int": typed("i", struct.pack(">I", 1)),
    "long": LONG,
    "other long": OTHER_LONG,
    "float": typed("f", struct.pack(">f", 1.0)),
    "double": double(1.0),
    "timestamp": typed("T", struct.pack(">Q", 1)),
}
OTHERS = {
    "bool": TRUE,
    "decimal": decimal(0, 1),
    "digit": string(b"1"),
    "octet": string(b"\x01"),
    "void": b"V",
    "array": array(INT),
    "table": table(("k", INT)),
}


@pytest.mark.parametrize("wanted", NUMBERS)
def test_numbers_are_equal_to_numbers_of_any_type(wanted: str) -> None:
    pattern = under("a", NUMBERS[wanted])
    assert all(matches(pattern, under("a", given)) for given in NUMBERS.values())
    assert not any(matches(pattern, under("a", given)) for given in OTHERS.values())


@pytest.mark.parametrize("wanted", sorted(set(OTHERS) - {"void"}))
def test_other_values_are_equal_to_their_like_only(wanted: str) -> None:
    given = {name for name, value in {**NUMBERS, **OTHERS}.items() if matches(under("a", OTHERS[wanted]), under("a", value))}
    assert given == {wanted}


@pytest.mark.parametrize(
    "wanted, given, expected",
    [
        (string(b"a"), typed("x", longstr(b"a")), True),
        (typed("x", longstr(b"a")), string(b"a"), True),
        (string(b"\xff"), string(b"\xff"), True),
        (string(b"\xff"), string(b"\xfe"), False),
        (string(b"a"), string(b"A"), False),
        (string(b""), string(b""), True),
        (TRUE, typed("t", b"\x00"), False),
        (typed("f", struct.pack(">f", 0.1)), double(0.1), False),
        (double(-0.0), double(0.0), True),
        (typed("B", b"\xff"), typed("b", b"\xff"), False),
        (typed("i", b"\xff" * 4), typed("l", b"\x00" * 4 + b"\xff" * 4), True),
        (decimal(1, 10), decimal(1, 10), True),
        (decimal(1, 10), decimal(0, 1), False),
        (array(), array(), True),
        (array(b"V"), array(b"V"), True),
        (array(b"V"), array(INT), False),
        (array(INT), array(LONG), False),
        (array(INT), array(TRUE), False),
        (array(INT), array(double(1.0)), False),
        (array(string(b"a")), array(typed("x", longstr(b"a"))), False),
        (array(INT, LONG), array(LONG, INT), False),
        (array(array(INT)), array(array(INT)), True),
        (array(table(("k", INT))), array(table(("k", INT))), True),
        (table(), table(), True),
        (table(), table(("k", INT)), False),
        (table(("k", INT)), table(("k", LONG)), False),
        (table(("k", b"V")), table(("k", INT)), False),
        (table(("k", INT), ("j", INT)), table(("j", INT), ("k", INT)), False),
    ],
)
def test_value(wanted: bytes, given: bytes, expected: bool) -> None:
    assert matches(under("a", wanted), under("a", given)) == expected


@pytest.mark.parametrize("value", [array(INT), table(("k", INT)), decimal(1, 10)])
def test_value_is_found_among_other_headers(value: bytes) -> None:
    fields = [("first", "S", longstr(b"x")), ("a", chr(value[0]), value[1:]), ("last", "F", encoded_table())]
    headers = decode_table(encoded_table(*fields), 0)[0]
    assert matches(under("a", value), headers)
    assert not matches(under("first", value), headers)


@pytest.mark.parametrize(
    "first, second, same",
    [
        (INT, INT, True),
        (LONG, OTHER_LONG, True),
        (INT, LONG, False),
        (INT, double(1.0), False),
        (INT, TRUE, False),
        (array(INT), array(TRUE), False),
        (array(INT), array(LONG), False),
        (table(("k", INT)), table(("k", LONG)), False),
        (table(("k", INT), ("j", INT)), table(("j", INT), ("k", INT)), False),
    ],
)
def test_bindings_are_the_same_when_types_and_values_are(first: bytes, second: bytes, same: bool) -> None:
    source = exchange()
    binding = source.bind(QUEUE_ONE, "", under("a", first), False)
    assert (source.bind(QUEUE_ONE, "", under("a", second), False) is None) == same
    assert (source.unbind(QUEUE_ONE, "", under("a", second)) is binding) == same
    assert (source.unbind(QUEUE_ONE, "", under("a", first)) is binding) == (not same)
    assert source.binding_count() == 0


# -- patterns that are refused ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["all", "any", "all-with-x", "any-with-x"])
def test_known_mode_is_accepted(mode: str) -> None:
    assert exchange().bind(QUEUE_ONE, "", field_table({"x-match": mode}), False) is not None


@pytest.mark.parametrize(
    "mode, shown",
    [
        (b"all or any I don't mind", "<<\"all or any I don't mind\">>"),
        (b"ALL", '<<"ALL">>'),
        (b"", "<<>>"),
        (b'q"u\\o', '<<"q\\"u\\\\o">>'),
        (b"a\nb", '<<"a\\nb">>'),
        ("hé".encode(), '<<"hé">>'),
        (b"a\x01", "<<97,1>>"),
    ],
)
def test_unknown_mode_is_refused(mode: bytes, shown: str) -> None:
    with pytest.raises(ChannelClosed) as caught:
        exchange().bind(QUEUE_ONE, "", under("x-match", string(mode)), False)
    assert caught.value.code == PRECONDITION_FAILED
    assert caught.value.text == f"Invalid x-match field value {shown}; expected all, any, all-with-x, or any-with-x"


@pytest.mark.parametrize(
    "mode, shown",
    [
        (typed("I", struct.pack(">i", 23)), "signedint (value 23)"),
        (typed("t", b"\x01"), "bool (value true)"),
        (typed("t", b"\x00"), "bool (value false)"),
        (b"V", "void (value undefined)"),
        (double(1.5), "double (value 1.5)"),
        (typed("x", longstr(b"all")), 'binary (value <<"all">>)'),
        (array(), "array (value [])"),
    ],
)
def test_mode_of_another_type_is_refused(mode: bytes, shown: str) -> None:
    with pytest.raises(ChannelClosed) as caught:
        exchange().bind(QUEUE_ONE, "", under("x-match", mode), False)
    assert caught.value.code == PRECONDITION_FAILED
    assert caught.value.text == f"Invalid x-match field type {shown}; expected longstr"


def test_refused_binding_leaves_nothing_behind() -> None:
    source, queue = exchange(), Destination(QUEUE, "queue")
    with pytest.raises(ChannelClosed):
        source.bind(queue, "", field_table({"x-match": "some"}), False)
    assert (source.binding_count(), source.had_binding, queue.incoming) == (0, False, {})
