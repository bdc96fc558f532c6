"""CC and BCC among the rules for a message: whatever a publisher puts there, it is followed, left out or refused."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from content_headers import payload_of
from rabbitpy_broker.errors import PRECONDITION_FAILED, ChannelClosed
from rabbitpy_broker.message import Message
from rabbitpy_broker.protocol.message_rules import MAX_COPIES, check_properties
from rabbitpy_broker.users import User
from rabbitpy_broker.wire.content_header import ContentHeader
from rabbitpy_broker.wire.edit_header import shown_header, with_headers
from rabbitpy_broker.wire.properties import MALFORMED, TO_CHECK, check_header
from wire_client import longstr

quick = settings(derandomize=True, deadline=None, max_examples=300)


def message_of(table: bytes) -> Message:
    payload = with_headers(payload_of(message_id="m"), table)
    header = len(payload).to_bytes(4, "big") + payload + b"\xce"
    return Message(b"\x00\x03key", header + b"\x03\x00\x00" + longstr(b"body") + b"\xce", len(header), False)


def item(key: bytes, value: bytes) -> bytes:
    return bytes([len(key)]) + key + value


def array(*items: bytes) -> bytes:
    return b"A" + longstr(b"".join(items))


def string(octets: bytes) -> bytes:
    return b"S" + longstr(octets)


def checked(user: User, table: bytes) -> tuple[Message, list[str]]:
    copies: list[str] = []
    return check_properties(message_of(table), user, None, copies), copies


@pytest.fixture(scope="module")
def user() -> User:
    return User("somebody", "", "", ())


def test_keys_are_taken_in_order_and_once(user: User) -> None:
    table = item(b"BCC", array(string(b"c"), string(b"a"))) + item(b"CC", array(string(b"b"), string(b"a"), string(b"b")))
    message, copies = checked(user, table)
    assert copies == ["b", "a", "c"]
    assert ContentHeader(shown_header(message)).headers() == {"CC": ["b", "a", "b"]}
    assert (message.body(), message.address) == (b"body", b"\x00\x03key")


def test_no_bcc_is_shown(user: User) -> None:
    message, copies = checked(user, item(b"BCC", array(string(b"a"))) * 3 + item(b"x", b"V"))
    assert copies == ["a"]
    assert ContentHeader(shown_header(message)).headers() == {"x": None}


def test_message_without_them_is_left_as_it_is(user: User) -> None:
    table = item(b"ACCESS", string(b"CC")) + item(b"\xff", b"V")
    message, copies = checked(user, table)
    assert copies == []
    assert message.header_payload() == message_of(table).header_payload()


def test_number_of_keys_is_bounded_and_repetitions_do_not_count(user: User) -> None:
    many = [string(b"%d" % n) for n in range(MAX_COPIES)]
    assert len(checked(user, item(b"CC", array(*many, *many)))[1]) == MAX_COPIES
    with pytest.raises(ChannelClosed):
        checked(user, item(b"CC", array(*many)) + item(b"BCC", array(string(b"more"))))


WORDS = st.sampled_from([b"CC", b"BCC", b"", b"A", b"S", b"V", b"\x02CC", b"\x03BCC", b"\x00", b"\x00\x00\x00\x08", b"\xff"])
TABLES = st.lists(WORDS | st.binary(max_size=6), max_size=12).map(b"".join)
VALUES = st.sampled_from([b"V", b"t\x01", array(), array(string(b"key")), array(b"V", string(b"\xff")), string(b"key")])
ITEMS = st.lists(st.tuples(WORDS, VALUES).map(lambda pair: item(*pair)), max_size=5).map(b"".join)


@quick
@given(TABLES | ITEMS)
def test_no_table_that_passes_the_walk_does_harm(table: bytes) -> None:
    payload = message_of(table).header_payload()
    mode = check_header(payload, 0, len(payload))
    if mode == MALFORMED:
        return
    keys = [ContentHeader(payload).header(key) for key in (b"CC", b"BCC")]
    assert mode & TO_CHECK or keys == [b"", b""]
    copies: list[str] = []
    somebody = User("somebody", "", "", ())
    refused = [key for key in keys if key and key[:1] != b"A"]
    with contextlib.suppress(ChannelClosed) if refused else contextlib.nullcontext():
        message = check_properties(message_of(table), somebody, None, copies)
        changed = shown_header(message)
        assert not refused
        assert check_header(changed, 0, len(changed)) != MALFORMED
        assert ContentHeader(changed).header(b"BCC") == b""
        assert ContentHeader(changed).header(b"CC") == keys[0]
        assert all(len(key.encode()) <= 255 for key in copies)


def test_what_is_no_array_is_refused_with_its_type(user: User) -> None:
    with pytest.raises(ChannelClosed) as caught:
        checked(user, item(b"BCC", b"V"))
    text = 'invalid message: {unacceptable_type_in_header,"BCC",void}'
    assert (caught.value.code, caught.value.text) == (PRECONDITION_FAILED, text)
