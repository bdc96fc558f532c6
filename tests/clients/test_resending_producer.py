"""The producer of docs/examples: every message arrives at least once, whatever breaks, in both consumer-ack modes."""

from __future__ import annotations

import importlib.util
import threading
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pika
import pika.exceptions
import pytest
from cutting_proxy import CuttingProxy

from broker_process import BrokerAddress, BrokerProcess
from support import eventually

pytestmark = [pytest.mark.own, pytest.mark.timeout(180)]

EXAMPLE = Path(__file__).parent.parent.parent / "docs" / "examples" / "resending_producer.py"
MESSAGES = 3_000


def load_example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("resending_producer", EXAMPLE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Taker(threading.Thread):
    """Consumes and acks one by one, and remembers what it has acked; comes back when it is cut off.

    `die` has it leave without a word, in the middle of what it holds.
    """

    def __init__(self, address: BrokerAddress, queue: str, got: set[bytes]) -> None:
        super().__init__(daemon=True)
        self.address = address
        self.queue = queue
        self.got = got
        self.ending = threading.Event()
        self.connection: pika.BlockingConnection | None = None

    def run(self) -> None:
        while not self.ending.is_set():
            try:
                self.consume()
            except (pika.exceptions.AMQPError, OSError):
                self.ending.wait(0.1)

    def consume(self) -> None:
        self.connection = pika.BlockingConnection(self.address.parameters())
        channel = self.connection.channel()
        channel.basic_qos(prefetch_count=50)
        for method, _, body in channel.consume(self.queue, inactivity_timeout=0.1):
            if self.ending.is_set():
                break
            if method is not None:
                self.got.add(body)
                channel.basic_ack(method.delivery_tag)

    def die(self) -> None:
        """The socket goes; nothing more is acked."""
        self.ending.set()
        connection = self.connection
        if connection is not None:
            socket = connection._impl._transport._sock
            socket.shutdown(2)
        self.join(10)


@pytest.mark.parametrize("mode", ["consumer-ack", "consumer-ack-light"])
def test_every_message_arrives_at_least_once(own_broker: Callable[..., BrokerProcess], mode: str) -> None:
    """A consumer dies, the producer's connection is cut, the broker is killed and started again, all under way."""
    broker = own_broker()
    listen = f"127.0.0.1:{broker.port}"
    setup = pika.BlockingConnection(broker.parameters())
    setup.channel().queue_declare("q", durable=True, arguments={"x-confirm-mode": mode})
    setup.close()
    got: set[bytes] = set()
    sent = {b"%d" % number for number in range(MESSAGES)}
    with CuttingProxy(broker) as proxy:
        producer: Any = load_example().ResendingProducer(
            proxy.parameters(), "q", resend_after_s=3.0, window=200, retry_s=0.1
        )
        takers = [Taker(broker, "q", got) for _ in range(3)]
        for taker in takers:
            taker.start()
        with producer:
            sending = threading.Thread(target=lambda: [producer.send(body) for body in sorted(sent)], daemon=True)
            sending.start()
            eventually(lambda: len(got) > MESSAGES // 6, timeout=60)
            takers[0].die()
            eventually(lambda: len(got) > MESSAGES // 3, timeout=60)
            proxy.cut()
            eventually(lambda: len(got) > MESSAGES // 2, timeout=60)
            broker.crash()
            broker.listen = listen
            broker.start()
            sending.join(90)
            assert not sending.is_alive() and producer.wait(90)
        for taker in takers[1:]:
            taker.ending.set()
            taker.join(10)
    assert got == sent
    assert producer.resent > 0
