"""No connection starves another, and what a slow reader has not read stays in its queue.

Bounds are loose, because the machine that runs the tests may be busy; without fair turns a flood delays others by
seconds.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator

import pamqp.commands as amqp
import pika
import pytest

from behaviour.helpers import Inbox, confirming, ready
from broker_process import BrokerProcess
from support import eventually
from wire_client import FRAME_END, METHOD, WireClient, method_payload

pytestmark = pytest.mark.own

Connect = Callable[..., pika.BlockingConnection]
Flood = Callable[..., None]

BOUND_S = 10.0  # who is starved waits for the flood's end


def framed(kind: int, payload: bytes) -> bytes:
    return struct.pack(">BHI", kind, 1, len(payload)) + payload + FRAME_END


@pytest.fixture
def own(own_broker: Callable[..., BrokerProcess]) -> BrokerProcess:
    return own_broker()


@pytest.fixture
def flood(own: BrokerProcess) -> Iterator[Flood]:
    """`flood(queue, size)` publishes at full speed until the test ends; it has begun when this returns."""
    stop = threading.Event()
    threads: list[threading.Thread] = []
    clients: list[WireClient] = []

    def start(queue: str, size: int = 12) -> None:
        client = own.wire(30)
        clients.append(client)
        client.open()
        client.open_channel(1)
        publish = framed(METHOD, method_payload(amqp.Basic.Publish(exchange="", routing_key=queue)))
        batch = (publish + framed(2, struct.pack(">HHQ", 60, 0, size) + b"\x00\x00") + framed(3, bytes(size))) * 500
        client.send(batch)

        def run() -> None:
            with contextlib.suppress(OSError):  # the broker may close first when the test is over
                while not stop.is_set():
                    client.send(batch)

        threads.append(threading.Thread(target=run))
        threads[-1].start()

    yield start
    stop.set()
    for thread in threads:
        thread.join(10)
    for client in clients:
        client.close()


def slowest(calls: int, work: Callable[[int], object]) -> float:
    """The longest of so many calls, in seconds; the first beyond the bound ends it."""
    longest = 0.0
    for number in range(calls):
        began = time.monotonic()
        work(number)
        longest = max(longest, time.monotonic() - began)
        if longest > BOUND_S:
            break
    return longest


@pytest.mark.parametrize("publishers", [1, 4])
def test_answers_come_while_others_publish_at_full_speed(
    own: BrokerProcess, connect: Connect, flood: Flood, publishers: int
) -> None:
    for _ in range(publishers):
        flood("nobody-is-called-that")
    channel = confirming(connect(to=own))

    def work(number: int) -> None:
        name = f"q{number}"
        channel.queue_declare(name)
        channel.basic_publish("", name, b"x")
        assert channel.basic_get(name, auto_ack=True)[2] == b"x"
        channel.queue_delete(name)

    assert slowest(10, work) < BOUND_S


def test_new_connections_are_taken_while_another_publishes_at_full_speed(
    own: BrokerProcess, connect: Connect, flood: Flood
) -> None:
    flood("nobody-is-called-that", 1000)
    assert slowest(10, lambda _: connect(to=own).channel()) < BOUND_S


def test_answers_come_while_another_queue_is_flooded_and_drained(
    own: BrokerProcess, connect: Connect, flood: Flood
) -> None:
    channel = confirming(connect(to=own))
    channel.queue_declare("busy")
    channel.queue_declare("quiet")
    reader = own.wire(10).open()
    reader.open_channel(1)
    reader.call(1, amqp.Basic.Consume(queue="busy", no_ack=True), amqp.Basic.ConsumeOk)
    received = 0
    stop = threading.Event()

    def read() -> None:
        nonlocal received
        with contextlib.suppress(OSError):
            while not stop.is_set():
                received += len(reader.socket.recv(262_144))

    thread = threading.Thread(target=read)
    thread.start()
    flood("busy", 100)

    def work(_: int) -> None:
        channel.basic_publish("", "quiet", b"x")
        assert channel.basic_get("quiet", auto_ack=True)[2] == b"x"

    longest = slowest(30, work)
    stop.set()
    reader.close()
    thread.join(10)
    assert longest < BOUND_S
    assert received > 0


def test_consumer_of_one_queue_gets_its_messages_while_another_is_flooded(
    own: BrokerProcess, connect: Connect, flood: Flood
) -> None:
    publishing, consuming = confirming(connect(to=own)), connect(to=own).channel()
    publishing.queue_declare("quiet")
    inbox = Inbox(consuming, "quiet", auto_ack=True)
    flood("nobody-is-called-that")

    def work(number: int) -> None:
        publishing.basic_publish("", "quiet", b"x")
        inbox.wait_for(number + 1)

    assert slowest(30, work) < BOUND_S


def test_health_and_metrics_answer_under_a_flood(own: BrokerProcess, connect: Connect, flood: Flood) -> None:
    flood("nobody-is-called-that")
    host, port = own.metrics.rsplit(":", 1)

    def ask(path: str) -> bytes:
        with socket.create_connection((host, int(port)), 10) as plain:
            plain.sendall(f"GET {path} HTTP/1.0\r\n\r\n".encode())
            answer = b""
            while chunk := plain.recv(65_536):
                answer += chunk
        return answer

    assert slowest(5, lambda _: ask("/health/live")) < BOUND_S
    assert ask("/health/ready").startswith((b"HTTP/1.0 200", b"HTTP/1.1 200"))
    assert b"rabbitmq_connections " in ask("/metrics")


# --- slow readers --------------------------------------------------------------------------------------------------------

COUNT, SIZE = 600, 65_536


def test_what_a_consumer_does_not_read_stays_in_its_queue(
    own_broker: Callable[..., BrokerProcess], connect: Connect
) -> None:
    """The broker may hold output_high_watermark_bytes for it, and the kernel its buffers; 39 MB are far more than both."""
    own = own_broker(config={"output_high_watermark_bytes": 131_072})
    channel = confirming(connect(to=own))
    channel.queue_declare("q")
    slow = own.wire(10)
    slow.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
    slow.open()
    slow.open_channel(1)
    slow.call(1, amqp.Basic.Consume(queue="q", no_ack=True), amqp.Basic.ConsumeOk)
    bodies = [struct.pack(">I", number) * (SIZE // 4) for number in range(COUNT)]
    for body in bodies:
        channel.basic_publish("", "q", body)
    assert ready(channel, "q") > COUNT // 2
    # Another consumer is not held up by the one that does not read.
    other = connect(to=own).channel()
    other.basic_qos(prefetch_count=1)
    inbox = Inbox(other, "q", arguments={"x-priority": 1})
    inbox.wait_for(1)
    # And when it reads, it gets its share, in order, nothing missing.
    bodies.remove(inbox.bodies[0])
    assert [slow.expect_content(1, amqp.Basic.Deliver).body for _ in bodies] == bodies
    eventually(lambda: ready(channel, "q") == 0)
    slow.close()
