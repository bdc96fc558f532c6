"""Bytes into a connection: any split gives the same output, and what must never happen whatever comes."""

from __future__ import annotations

import random
import re
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pamqp.commands import Basic, Connection, Exchange, Queue

from fuzz.sessions import random_command
from sans_io import (
    BODY,
    CHANNEL_CLOSE,
    CONNECTION_CLOSE,
    HEADER,
    METHOD,
    SansIOBroker,
    content,
    frame,
    method,
    publish,
    split_frames,
)

GENERATED = re.compile(rb"amq\.(gen|ctag)-[\w-]{22}")
OPEN_TWO_CHANNELS = b"".join([frame(METHOD, channel, b"\x00\x14\x00\x0a\x00") for channel in (1, 2)])


@pytest.fixture
def peer(broker):
    """A peer with channel 1 open."""
    peer = broker.connect()
    peer.open_channel()
    return peer


def commands(seed: int) -> bytes:
    """Some commands, each of them well-formed, on two channels."""
    rng = random.Random(seed)
    parts = []
    while len(parts) < 12:
        frames = random_command(rng, rng.choice((1, 2)))
        if all(
            struct.unpack(">I", one[3:7])[0] == len(one) - 8 and one[0] in (METHOD, HEADER, BODY)
            for one in frames
        ):
            parts.append(b"".join(frames))
    return OPEN_TWO_CHANNELS + b"".join(parts)


def output_of(pieces: list[bytes]) -> list[bytes]:
    """What a fresh broker sends for these pieces in one turn, up to a connection.close."""
    broker = SansIOBroker()
    peer = broker.connect()
    for piece in pieces:
        peer.connection.receive_data(piece)
    broker.run()
    sent = []
    for one in split_frames(peer.transport.take()):
        sent.append(GENERATED.sub(b"amq.generated", frame(*one)))
        if one.index() == CONNECTION_CLOSE:
            break
    broker.audit()
    broker.close()
    return sent


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32), st.data())
def test_any_split_gives_the_same_output(seed, data):
    stream = commands(seed)
    cuts = sorted(data.draw(st.sets(st.integers(1, len(stream) - 1), max_size=12)))
    pieces = [stream[start:end] for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    assert output_of(pieces) == output_of([stream])


@settings(max_examples=5, deadline=None)
@given(st.integers(0, 2**32))
def test_single_bytes_give_the_same_output(seed):
    stream = commands(seed)
    assert output_of([stream[at : at + 1] for at in range(len(stream))]) == output_of([stream])


@pytest.mark.parametrize("behind", (b"", b"\xce", b"\xce" * 60))
@pytest.mark.parametrize("size", (-1, -2, -16, -50, -51, -2000, -(2**31), -(2**63)))
def test_a_body_of_negative_size_is_refused(peer, size, behind):
    peer.call(1, Queue.Declare(queue="q"))
    command = frame(METHOD, 1, struct.pack(">IH", 0x003C0028, 0) + b"\x00\x01q\x00")
    header = frame(HEADER, 1, struct.pack(">HHqH", 60, 0, size, 0))
    body = struct.pack(">BHI", BODY, 1, size & 0xFFFFFFFF)
    heartbeat = b"\x08\x00\x00\x00\x00\x00\x00\xce"
    peer.feed(heartbeat + command + header + body + behind)
    assert not peer.broker.vhost.queues["q"].backing.len
    assert peer.checker.closing_channels == {1} or peer.checker.closes


def test_a_body_of_negative_size_does_not_send_the_reader_back_to_where_it_was(peer):
    command = frame(METHOD, 1, struct.pack(">IH", 0x003C0028, 0) + b"\x00\x01q\x00")
    size = (
        -len(command) - 22 - 8
    )  # counted from behind the header's 22 octets, a body with its 8 ends before the command
    header = frame(HEADER, 1, struct.pack(">HHqH", 60, 0, size, 0))
    heartbeat = b"\x08\x00\x00\x00\x00\x00\x00\xce"
    peer.feed(heartbeat + command + header + struct.pack(">BHi", BODY, 1, size) + b"x")
    assert peer.checker.closing_channels == {1} or peer.checker.closes


@pytest.mark.parametrize("tag", (2**63 - 1, 2**63, 2**64 - 1))
@pytest.mark.parametrize(
    "index,end", ((0x003C0050, b"\x00"), (0x003C0050, b"\x01"), (0x003C0078, b"\x00"), (0x003C005A, b""))
)
def test_an_unknown_delivery_tag_closes_the_channel_however_large_it_is(peer, index, end, tag):
    payload = struct.pack(">IQ", index, tag) + (end or b"\x00")
    (close,) = [one.command() for one in peer.feed(frame(METHOD, 1, payload))]
    assert (close.reply_code, close.reply_text) == (406, f"PRECONDITION_FAILED - unknown delivery tag {tag}")


@pytest.mark.parametrize("cut", (None, 100, 530))
def test_a_close_ok_behind_frames_that_came_too_late_ends_the_connection(peer, cut):
    failing = method(1, Basic.Qos(prefetch_size=7))
    late = publish(1, "", "q", b"y" * 500)
    close_ok = method(0, Connection.CloseOk())
    stream = failing + late + close_ok
    cut = len(stream) if cut is None else len(failing) + cut
    frames = peer.feed(stream[:cut]) + peer.feed(stream[cut:])
    assert [one.command().reply_code for one in frames] == [540]
    assert peer.transport.closed


def test_a_connection_forgets_exclusive_queues_that_went_with_their_consumer(peer):
    for _ in range(3):
        peer.call(1, Queue.Declare(queue="reply", exclusive=True, auto_delete=True))
        peer.feed(method(1, Basic.Consume(queue="reply", consumer_tag="c")))
        peer.call(1, Basic.Cancel(consumer_tag="c"))
    assert not peer.broker.vhost.queues
    assert not peer.broker.vhost._exclusive.get(peer.connection)


def test_a_long_chain_of_auto_delete_exchanges_goes_at_once(peer):
    length = 1500
    for at in range(length):
        peer.feed(method(1, Exchange.Declare(exchange=f"x{at}", auto_delete=True, nowait=True)))
        if at:
            peer.feed(method(1, Exchange.Bind(destination=f"x{at}", source=f"x{at - 1}", nowait=True)))
    assert isinstance(peer.call(1, Exchange.Delete(exchange=f"x{length - 1}")), Exchange.DeleteOk)
    assert not [name for name in peer.broker.vhost.exchanges if name.startswith("x")]


def test_after_a_soft_error_the_rest_of_the_bytes_is_read(peer):
    peer.open_channel(2)
    frames = peer.feed(
        method(1, Queue.Declare(queue="absent", passive=True))
        + publish(1, "", "q", b"x")
        + method(2, Queue.Declare(queue="q"))
    )
    assert [(one.channel, one.index()) for one in frames] == [(1, CHANNEL_CLOSE), (2, 0x0032000B)]


def bodies_after(stream: bytes, cuts: list[int], alarms: list[bool]) -> list[bytes]:
    """Feeds the stream in pieces, before each of them an alarm on or off, and at the end off: what queue q holds."""
    broker = SansIOBroker()
    peer, other = broker.connect(frame_max=4096), broker.connect()
    peer.open_channel()
    other.open_channel()
    other.call(1, Queue.Declare(queue="q"))
    for start, end, alarm in zip([0, *cuts], [*cuts, len(stream)], [*alarms, False], strict=True):
        broker.node.blocked = "low on memory" if alarm else ""
        peer.connection.alarm_changed()
        peer.feed(stream[start:end])
    broker.audit()
    bodies = []
    while (got := other.feed(method(1, Basic.Get(queue="q", no_ack=True))))[0].type == METHOD and len(got) > 1:
        bodies.append(b"".join([one.payload for one in got[2:]]))
    broker.close()
    return bodies


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 9000), min_size=1, max_size=6), st.data())
def test_alarm_only_puts_off_what_comes(sizes, data):
    """Whatever is stopped in the middle goes on where it was stopped, and nothing overtakes it."""
    wanted = [bytes([at]) * size for at, size in enumerate(sizes)]
    stream = b"".join(
        [method(1, Basic.Publish(routing_key="q")) + content(1, body, frame_max=4096) for body in wanted]
    )
    cuts = sorted(data.draw(st.sets(st.integers(1, len(stream) - 1), max_size=12)))
    alarms = data.draw(st.lists(st.booleans(), min_size=len(cuts), max_size=len(cuts)))
    assert bodies_after(stream, cuts, alarms) == wanted


@pytest.mark.parametrize("cut", range(1, 60))
def test_alarm_lets_a_message_in_only_when_its_header_came_before(peer, cut):
    peer.call(1, Queue.Declare(queue="q"))
    stream = publish(1, "", "q", b"a body")
    header_end = len(method(1, Basic.Publish(routing_key="q"))) + 22
    peer.feed(stream[:cut])
    peer.broker.node.blocked = "low on memory"
    peer.connection.alarm_changed()
    peer.feed(stream[cut:])
    assert peer.broker.vhost.queues["q"].backing.len == (1 if cut >= header_end else 0)
    assert peer.connection.blocked is (cut < len(stream))
