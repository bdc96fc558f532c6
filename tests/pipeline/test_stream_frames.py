"""The reader of a stream's frames, by itself: whatever way the bytes are cut, the same messages come out."""

from __future__ import annotations

import struct
from typing import Any

import pika
import pika.frame
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pika import spec

pytest.importorskip("pyspark")

from rabbitpy_broker.pipeline.amqp.stream_frames import CHANNEL, CONSUMER_TAG, Frames, Layout, tail_columns
from rabbitpy_broker.pipeline.errors import PipelineError

FRAME_MAX = 4096
MARK = b"\x0fx-stream-offsetl"  # how the header begins in its table


def frame(kind: int, payload: bytes) -> bytes:
    return struct.pack(">BHI", kind, CHANNEL, len(payload)) + payload + b"\xce"


def delivery(tag: int, offset: int, body: bytes, exchange: str = "", key: str = "orders", **properties: Any) -> bytes:
    """A message as a broker sends it, with the offset behind the publisher's own headers."""
    method = spec.Basic.Deliver(CONSUMER_TAG, tag, False, exchange, key)
    headers = {**properties.pop("headers", {}), "x-stream-offset": pika.data.long(offset)}
    encoded = b"".join(pika.BasicProperties(headers=headers, **properties).encode())
    parts = [body[at : at + FRAME_MAX - 8] for at in range(0, len(body), FRAME_MAX - 8)]
    return b"".join(
        [
            pika.frame.Method(CHANNEL, method).marshal(),
            frame(2, struct.pack(">HHQ", 60, 0, len(body)) + encoded),
            *(frame(3, part) for part in parts),
        ]
    )


def message_id(layout: Layout, tail: bytes) -> str | None:
    values = tail_columns(layout.flags, [tail]).get("message_id")
    return values[0].decode() if values else None


def rows(data: bytes, cut: int) -> list[tuple[Any, ...]]:
    """What is read of these bytes when so many come at a time."""
    frames = Frames()
    found: list[tuple[Any, ...]] = []
    for at in range(0, len(data), cut):
        frames.feed(data[at : at + cut])
        found += [
            (offset, body, each.exchange, each.routing_key, message_id(each, tail), each.headers)
            for offset, body, each, tail in zip(*frames.take(), strict=True)
        ]
    assert frames.received == len(found)
    return found


@pytest.mark.parametrize("cut", [1, 2, 3, 7, 19, 64, 257, 4096, 1 << 20])
def test_messages_are_the_same_however_they_are_cut(cut: int):
    """Alike and different, small, empty and of many frames, with a heartbeat and another method between them."""
    sent: list[tuple[Any, ...]] = []
    data: list[bytes] = []

    def send(body: bytes, exchange: str = "", key: str = "orders", **properties: Any) -> None:
        offset = 1000 + 3 * len(sent)
        data.append(delivery(len(sent) + 1, offset, body, exchange, key, **properties))
        sent.append(
            (offset, body, exchange, key, properties.get("message_id"), properties.get("headers"))
        )

    for number in range(20):
        send(b"%d" % number)
    send(b"")
    send(b"")
    data.append(b"\x08\x00\x00\x00\x00\x00\x00\xce")
    for number in range(6):
        send(b"own", message_id=str(number), delivery_mode=2)
        send(b"x" * 50, "topic", "a.b")
    data.append(pika.frame.Method(CHANNEL, spec.Basic.QosOk()).marshal())
    send(bytes(range(256)) * 40)
    for _ in range(3):
        send(b"y" * 5000, headers={"n": 1})
    send(b"behind")
    assert rows(b"".join(data), cut) == sent


def test_what_only_looks_like_the_offset_is_not_taken_for_it():
    """A publisher's header may hold the very bytes; theirs come first, and vary as an offset would."""
    data = b"".join(
        delivery(number + 1, 5 + number, b"x", headers={"a": (MARK + bytes([7, number] * 4)).decode()})
        for number in range(50)
    )
    assert [row[0] for row in rows(data, 1 << 20)] == list(range(5, 55))
    data = b"".join(  # the same bytes as the offset's own, once
        delivery(number + 1, 5 + number, b"x", headers={"a": (MARK + (6).to_bytes(8)).decode()}) for number in range(50)
    )
    assert [row[0] for row in rows(data, 1 << 20)] == list(range(5, 55))


def test_layouts_that_are_forgotten_are_read_again():
    data = b"".join(delivery(number + 1, number, b"x", message_id=str(number % 5000)) for number in range(10_000))
    assert [row[4] for row in rows(data, 1 << 16)] == [str(number % 5000) for number in range(10_000)]


TEXTS = st.text(max_size=12)
STRINGS = (
    "content_type", "content_encoding", "correlation_id", "reply_to", "expiration", "message_id", "type", "user_id", "app_id",
    "cluster_id",
)  # fmt: skip
PROPERTIES = st.fixed_dictionaries(
    {},
    optional={
        "headers": st.dictionaries(st.text(max_size=5), TEXTS | st.integers(0, 2**40), max_size=3),
        "delivery_mode": st.integers(1, 2),
        "priority": st.integers(0, 255),
        "timestamp": st.integers(0, 2**40),
        **dict.fromkeys(STRINGS, TEXTS),
    },
)


@given(st.lists(st.tuples(PROPERTIES, st.integers(1, 3)), min_size=1, max_size=20), st.integers(1, 400))
def test_properties_are_what_was_published(published: list[tuple[dict[str, Any], int]], cut: int):
    """Of messages that come several times, and so are read in the fast way, as of those that come once."""
    sent = [properties for properties, times in published for _ in range(times)]
    data = b"".join(delivery(number + 1, number, b"body", **properties) for number, properties in enumerate(sent))
    frames = Frames()
    found: list[dict[str, Any]] = []
    for at in range(0, len(data), cut):
        frames.feed(data[at : at + cut])
        for _, _, layout, tail in zip(*frames.take(), strict=True):
            of_layout = {name: getattr(layout, name) for name in ("content_type", "content_encoding", "headers")}
            in_tail = {name: value for name, [value] in tail_columns(layout.flags, [tail]).items()}
            texts = {name: value.decode() if isinstance(value, bytes) else value for name, value in in_tail.items()}
            found.append({name: value for name, value in {**of_layout, **texts}.items() if value is not None})
    assert found == [{name: value for name, value in each.items() if value != {}} for each in sent]


def test_a_tail_that_does_not_fit_its_flags_is_an_error():
    message_id_alone = 1 << 7
    assert tail_columns(message_id_alone, [b"\x02ab", b"\x00"]) == {"message_id": [b"ab", b""]}
    for tail in (b"", b"\x03ab", b"\x01ab"):
        with pytest.raises(PipelineError):
            tail_columns(message_id_alone, [tail])


def test_methods_are_kept_apart_from_deliveries():
    frames = Frames()
    frames.feed(pika.frame.Method(0, spec.Connection.Close(320, "CONNECTION_FORCED", 0, 0)).marshal())
    [method] = frames.methods
    assert (method.reply_code, method.reply_text) == (320, "CONNECTION_FORCED")


@pytest.mark.parametrize(
    "data",
    [
        b"\x01\x00\x01\x00\x00\x00\x04\x00\x3c\x00\x0b\x00",
        frame(1, b"\x00\xff\x00\xff"),
        frame(2, b"header"),
        frame(3, b"body"),
        pika.frame.Method(1, spec.Basic.Deliver(CONSUMER_TAG, 1, False, "", "q")).marshal()
        + frame(2, struct.pack(">HHQH", 60, 0, 0, 0)),
    ],
    ids=["no end", "unknown method", "a header first", "a body first", "no offset"],
)
def test_what_no_broker_sends_of_a_stream_is_an_error(data: bytes):
    with pytest.raises(PipelineError):
        Frames().feed(data)
