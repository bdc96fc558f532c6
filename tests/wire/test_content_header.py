"""A content header as routing sees it, and the search for one header in it."""

from __future__ import annotations

import struct

import pytest
from librt.strings import BytesWriter

from content_headers import payload_of
from rabbitpy_broker.message import Message
from rabbitpy_broker.storage.records import read_message, stored_size, write_message
from rabbitpy_broker.wire.content_header import ContentHeader
from rabbitpy_broker.wire.edit_header import blind_keys, shown, with_headers, without_header
from rabbitpy_broker.wire.field_table import encode_table
from rabbitpy_broker.wire.properties import CORRELATION_ID, MESSAGE_ID, TO_CHECK, check_header


def item(key: bytes, value: bytes) -> bytes:
    return bytes([len(key)]) + key + value


def test_nothing_is_there_in_an_empty_header() -> None:
    header = ContentHeader(payload_of())
    assert header.headers() is None
    assert header.header(b"a") == b""
    assert header.text(MESSAGE_ID) is None
    assert header.timestamp() is None


def test_properties_are_found_behind_others() -> None:
    header = ContentHeader(
        payload_of(content_type="t", headers={"a": "x"}, message_id="m", correlation_id="c", timestamp=12, app_id="z")
    )
    assert (header.text(MESSAGE_ID), header.text(CORRELATION_ID), header.timestamp()) == ("m", "c", 12)
    assert header.headers() == {"a": "x"}
    assert header.headers() is header.headers()


def test_one_header_is_found_with_its_type() -> None:
    table = item(b"first", b"A" + struct.pack(">I", 2) + b"t\x01") + item(b"n", b"I\x00\x00\x00\x07") + item(b"a", b"V")
    header = ContentHeader(with_headers(payload_of(), table))
    assert header.header(b"n") == b"I\x00\x00\x00\x07"
    assert header.header(b"a") == b"V"
    assert header.header(b"first") == b"A\x00\x00\x00\x02t\x01"
    assert header.header(b"firs") == header.header(b"") == b""


def test_keys_that_are_not_utf_8_stand_in_nobodys_way() -> None:
    header = ContentHeader(with_headers(payload_of(), item(b"\xff", b"V") + item(b"a", b"t\x01")))
    assert header.header(b"a") == b"t\x01"
    assert header.header(b"\xff") == b"V"
    with pytest.raises(ValueError, match="utf-8"):
        header.headers()


@pytest.mark.parametrize(
    "table", [b"", item(b"BCC", b"V"), item(b"a", b"V") + item(b"BCC", b"t\x00") + item(b"c", b"V") + item(b"BCC", b"V")]
)
def test_header_is_taken_away_wherever_it_stands(table: bytes) -> None:
    payload = with_headers(payload_of(content_type="t", message_id="m"), table)
    left = table.replace(item(b"BCC", b"t\x00"), b"").replace(item(b"BCC", b"V"), b"")
    assert without_header(payload, b"BCC") == with_headers(payload_of(content_type="t", message_id="m"), left)


def message(payload: bytes, has_bcc: bool) -> Message:
    header = len(payload).to_bytes(4, "big") + payload + b"\xce"
    made = Message(b"\x00\x01q", header + b"\x03\x00\x00\x00\x00\x00\x04\x03BCC\xce", len(header), True)
    made.has_bcc = has_bcc
    return made


def stored_and_read(sent: Message) -> Message:
    out = BytesWriter()
    write_message(out, sent)
    assert len(out) == stored_size(sent)
    return read_message(out.getvalue(), 0, len(out))


@pytest.mark.parametrize(
    "headers, keys",
    [
        ({"a": 1, "BCC": ["x", 5, "y"], "b": {"BCC": ["z"]}}, ["x", "y"]),
        ({"BCC": []}, []),
        ({"b": {"BCC": ["z"]}}, []),
        ({"CC": ["z"]}, []),
        ({}, []),
    ],
)
def test_bcc_is_remembered_on_disk_and_not_shown(headers: dict[str, object], keys: list[str]) -> None:
    payload = with_headers(payload_of(message_id="m"), encode_table(headers)[4:])
    seen = with_headers(payload_of(message_id="m"), encode_table({k: v for k, v in headers.items() if k != "BCC"})[4:])
    sent = message(payload, "BCC" in headers)
    for found in (sent, stored_and_read(sent), stored_and_read(stored_and_read(sent))):
        assert (found.header_payload(), blind_keys(found)) == (payload, keys)
        assert (shown(found).header_payload(), shown(found).body()) == (seen, b"\x03BCC")


def test_what_only_looks_like_bcc_is_shown_as_it_is() -> None:
    found = stored_and_read(message(payload_of(message_id="\x03BCC"), False))
    assert (blind_keys(found), shown(found).content) == ([], found.content)


@pytest.mark.parametrize("key", ["CC", "BCC"])
def test_copies_are_seen_by_the_walk(key: str) -> None:
    payload = with_headers(payload_of(), encode_table({"a": 1, key: ["b"]})[4:])
    assert check_header(payload, 0, len(payload)) & TO_CHECK
    plain = with_headers(payload_of(message_id="CC"), encode_table({"a": 1})[4:])
    assert not check_header(plain, 0, len(plain)) & TO_CHECK
