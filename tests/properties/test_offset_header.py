"""The offset goes into any content header, and takes nothing out of it."""

from __future__ import annotations

import struct
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from content_headers import payload_of
from rabbitpy_broker.message import Message
from rabbitpy_broker.wire.content_header import ContentHeader
from rabbitpy_broker.wire.edit_header import join_table, raw_headers, split_table, with_headers
from rabbitpy_broker.wire.offset_header import filter_value_in, with_offset
from rabbitpy_broker.wire.properties import HEADERS, TO_CHECK, check_header

KEYS = st.one_of(
    st.text(max_size=12),
    st.sampled_from(["x-stream-offset", "x-stream-filter-value", "x-stream-", "x-stream-offsets", "BCC"]),
)
VALUES = st.one_of(
    st.binary(max_size=20).map(lambda text: b"S" + struct.pack(">I", len(text)) + text),
    st.integers(-(1 << 63), (1 << 63) - 1).map(lambda number: b"l" + struct.pack(">q", number)),
    st.just(b"V"),
    st.just(b"t\x01"),
    st.just(b"A\x00\x00\x00\x02t\x00"),
    st.just(b"F\x00\x00\x00\x03\x01aV"),
    st.just(b"S\x00\x00\x00\x0fx-stream-offset"),  # the name as a value
)
PROPERTIES = st.fixed_dictionaries(
    {},
    optional={
        "content_type": st.text(max_size=10),
        "content_encoding": st.text(max_size=10),
        "delivery_mode": st.sampled_from([1, 2]),
        "priority": st.integers(0, 9),
        "correlation_id": st.text(max_size=10),
        "message_id": st.text(max_size=10),
        "timestamp": st.integers(0, 1 << 31),
        "app_id": st.just("x-stream-offset"),
    },
)
TABLES = st.one_of(st.none(), st.lists(st.tuples(KEYS, VALUES), max_size=6))


def without_headers(payload: bytes) -> bytes:
    """Everything but the headers table, which may be there or not."""
    empty = with_headers(payload, b"")
    return empty[:12] + (int.from_bytes(empty[12:14], "big") & ~HEADERS).to_bytes(2, "big") + empty[14:]


@given(PROPERTIES, TABLES, st.binary(max_size=50), st.integers(0, (1 << 62) - 1))
def test_everything_else_stays_as_it_was(
    properties: dict[str, Any], table: list[tuple[str, bytes]] | None, body: bytes, offset: int
) -> None:
    payload = payload_of(**properties)
    if table is not None:
        raw = b"".join(join_table({key: value}) for key, value in table)
        payload = with_headers(payload, raw)
    header = len(payload).to_bytes(4, "big") + payload + b"\xce"
    frame = b"\x03\x00\x01" + len(body).to_bytes(4, "big") + body + b"\xce" if body else b""
    stamped = with_offset(header + frame, len(header), offset)

    size = int.from_bytes(stamped.content[:4], "big")
    message = Message(b"", stamped.content, size + 5, True)
    changed = message.header_payload()
    assert check_header(changed, 0, len(changed)) & ~TO_CHECK == check_header(payload, 0, len(payload)) & ~TO_CHECK
    assert stamped.content[size + 5 :] == frame
    assert message.body() == body
    assert without_headers(changed) == without_headers(payload)

    before = split_table(raw_headers(payload))
    before.pop("x-stream-offset", None)
    after = split_table(raw_headers(changed))
    assert list(after)[-1] == "x-stream-offset"
    assert after.pop("x-stream-offset") == b"l" + offset.to_bytes(8, "big")
    assert after == before

    value = ContentHeader(payload).header(b"x-stream-filter-value")  # the first one, where there are two
    wanted = value[5:] if value[:1] == b"S" else None
    assert stamped.filter_value == wanted
    assert filter_value_in(b"before" + stamped.content, 6) == wanted
