"""Heartbeats go on in both directions while the connection, or the broker, is busy with something else.

The idle case is in test_tuning.py.
"""

from __future__ import annotations

import contextlib
import struct
import threading
import time
from collections.abc import Callable, Iterator

import pamqp.commands as amqp
import pytest

from support import eventually
from wire_client import FRAME_END, HEARTBEAT, METHOD, WireClient, method_payload

Maker = Callable[..., str]


@pytest.fixture
def flood(raw: Callable[..., WireClient]) -> Iterator[Callable[[str], WireClient]]:
    """`flood(queue)` publishes to a queue at full speed until the test ends."""
    stop = threading.Event()
    threads: list[threading.Thread] = []

    def start(queue: str) -> WireClient:
        client = raw(timeout=30).open()
        client.open_channel(1)
        publish = framed(METHOD, method_payload(amqp.Basic.Publish(exchange="", routing_key=queue)))
        batch = (publish + framed(2, struct.pack(">HHQ", 60, 0, 100) + b"\x00\x00") + framed(3, bytes(100))) * 200

        def run() -> None:
            with contextlib.suppress(OSError):  # the broker may close first when the test is over
                while not stop.is_set():
                    client.send(batch)

        threads.append(threading.Thread(target=run))
        threads[-1].start()
        return client

    yield start
    stop.set()
    for thread in threads:
        thread.join()


def framed(kind: int, payload: bytes) -> bytes:
    return struct.pack(">BHI", kind, 1, len(payload)) + payload + FRAME_END


def beats(client: WireClient, count: int) -> float:
    """Reads so many heartbeats, passing over everything else; the longest time without one."""
    longest, last = 0.0, time.monotonic()
    while count:
        if client.read_frame().type == HEARTBEAT:
            count -= 1
            now = time.monotonic()
            longest, last = max(longest, now - last), now
    return longest


def test_idle_connection_has_its_heartbeats_while_another_floods_the_broker(
    raw: Callable[..., WireClient], flood: Callable[[str], WireClient]
) -> None:
    flood("nobody-is-called-that")
    client = raw().open(heartbeat=2)
    for _ in range(3):
        assert client.read_frame().type == HEARTBEAT
        client.frame(HEARTBEAT, 0)


def test_publisher_at_full_speed_has_its_heartbeats(raw: Callable[..., WireClient]) -> None:
    """It publishes to nowhere, so the broker has nothing else to say."""
    client = raw().open(heartbeat=2)
    client.open_channel(1)
    publish = framed(METHOD, method_payload(amqp.Basic.Publish(exchange="", routing_key="nobody-is-called-that")))
    batch = (publish + framed(2, struct.pack(">HHQ", 60, 0, 0) + b"\x00\x00")) * 100
    stop = threading.Event()

    def run() -> None:
        while not stop.is_set():
            client.send(batch)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        assert beats(client, 3) < 4.0
    finally:
        stop.set()
        thread.join()


def test_answer_does_not_put_the_next_heartbeat_off(raw: Callable[..., WireClient]) -> None:
    """Whenever it comes: the time between two frames stays near half the interval."""
    client = raw().open(heartbeat=2)
    client.open_channel(1)
    for pause in (0.2, 0.5, 0.9):
        client.socket.settimeout(pause)
        with contextlib.suppress(TimeoutError):
            client.read_frame()
        client.socket.settimeout(5)
        client.call(1, amqp.Basic.Qos(), amqp.Basic.QosOk)
        began = time.monotonic()
        assert client.read_frame().type == HEARTBEAT
        assert time.monotonic() - began < 1.6


def test_publisher_that_sends_no_heartbeats_of_its_own_lives_by_its_publishes(
    wire: WireClient, raw: Callable[..., WireClient]
) -> None:
    client = raw().open(heartbeat=1)
    client.open_channel(1)
    began = time.monotonic()

    def publish_for_a_while() -> bool:
        client.publish(1, "", "nobody-is-called-that", b"x")
        return time.monotonic() - began > 4

    eventually(publish_for_a_while, timeout=10, interval=0.3)
    client.call(1, amqp.Basic.Qos(), amqp.Basic.QosOk)


def test_half_a_frame_now_and_then_counts_as_life(raw: Callable[..., WireClient]) -> None:
    """A large content on a slow line is traffic, long before its frame is whole."""
    client = raw().open(heartbeat=1)
    client.open_channel(1)
    client.method(1, amqp.Basic.Publish(exchange="", routing_key="nobody-is-called-that"))
    client.header(1, 100)
    frame = iter(framed(3, bytes(100)))
    began = time.monotonic()

    def dribble() -> bool:
        client.send(bytes([next(frame)]))
        return time.monotonic() - began > 4

    eventually(dribble, timeout=10, interval=0.3)
    client.send(bytes(frame))
    client.call(1, amqp.Basic.Qos(), amqp.Basic.QosOk)


def test_silent_consumer_is_dropped_and_its_messages_come_back(
    raw: Callable[..., WireClient], wire: WireClient, queue: Maker
) -> None:
    name = queue()
    silent = raw().open(heartbeat=1)
    silent.open_channel(1)
    silent.call(1, amqp.Basic.Consume(queue=name), amqp.Basic.ConsumeOk)
    wire.publish(1, "", name, b"x")
    silent.expect_content(1, amqp.Basic.Deliver)

    def fetched() -> bool:
        wire.method(1, amqp.Basic.Get(queue=name, no_ack=True))
        answer = wire.read_frame()
        if answer.payload[:4] != b"\x00\x3c\x00\x47":
            return False
        assert [wire.read_frame().type, wire.read_frame().type] == [2, 3]
        return True

    eventually(fetched, timeout=10, interval=0.1)
