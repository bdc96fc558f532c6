"""Contents put together from frames: any cut gives the same message, anything out of order is a 505."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rabbitpy_broker.errors import ChannelClosed, ConnectionClosed
from rabbitpy_broker.wire.assembler import Assembler

ADDRESS = b"\x00\x01q"
MAX_SIZE = 1000


def header(size: int, class_id: int = 60, properties: bytes = b"\x00\x00") -> bytes:
    return struct.pack(">HHQ", class_id, 0, size) + properties


def opened() -> Assembler:
    assembler = Assembler()
    assembler.publish(ADDRESS, 1)
    return assembler


@given(st.lists(st.binary(max_size=20), max_size=6))
def test_a_body_is_the_same_however_it_is_cut(parts):
    body = b"".join(parts)
    assembler = opened()
    message = assembler.header(header(len(body)), MAX_SIZE)
    for part in parts:
        if message is None:
            message = assembler.body(part)
    assert message is not None and message.body() == body and message.body_size == len(body)
    assert message.header_payload() == header(len(body))
    assert (message.address, assembler.flags) == (ADDRESS, 1)
    assembler.expect_method()


def test_empty_body_frames_take_no_memory():
    assembler = opened()
    assembler.header(header(5), MAX_SIZE)
    for _ in range(1000):
        assert assembler.body(b"") is None
    assert len(assembler._parts) < 10
    message = assembler.body(b"hello")
    assert message is not None and message.body() == b"hello"


def test_persistence_is_read_from_the_header():
    assert opened().header(header(0, properties=b"\x10\x00\x02"), MAX_SIZE).persistent
    assert not opened().header(header(0, properties=b"\x10\x00\x01"), MAX_SIZE).persistent


def test_every_frame_out_of_order_is_an_error():
    fresh, publishing, receiving = Assembler(), opened(), opened()
    receiving.header(header(3), MAX_SIZE)
    for act in (
        lambda: fresh.header(header(0), MAX_SIZE),
        lambda: fresh.body(b"x"),
        publishing.expect_method,
        lambda: publishing.body(b"x"),
        receiving.expect_method,
        lambda: receiving.header(header(0), MAX_SIZE),
    ):
        with pytest.raises(ConnectionClosed) as caught:
            act()
        assert caught.value.code == 505


@pytest.mark.parametrize(
    "payload,code",
    (
        (header(0, 50), 505),
        (b"\x00\x3c\x00\x01" + b"\x00" * 10, 505),
        (header(0, properties=b"\x80\x00"), 502),
    ),
)
def test_a_bad_header_is_a_hard_error(payload, code):
    with pytest.raises(ConnectionClosed) as caught:
        opened().header(payload, MAX_SIZE)
    assert caught.value.code == code


@pytest.mark.parametrize("size", (MAX_SIZE + 1, 2**63, 2**64 - 1))
def test_a_body_that_would_be_too_large_is_refused_by_its_header(size):
    assembler = opened()
    with pytest.raises(
        ChannelClosed, match=f"message size {size} is larger than configured max size {MAX_SIZE}"
    ):
        assembler.header(header(size), MAX_SIZE)
    assembler.expect_method()


def test_more_body_than_announced_is_a_hard_error():
    assembler = opened()
    assembler.header(header(3), MAX_SIZE)
    with pytest.raises(ConnectionClosed) as caught:
        assembler.body(b"four")
    assert caught.value.code == 501
