"""A producer that publishes again what is not confirmed within a time, over broken connections too: pika, one thread.

    with ResendingProducer(pika.ConnectionParameters("localhost"), "orders") as producer:
        for order in orders:
            producer.send(order)
        producer.wait()                     # until everything is confirmed

Every message arrives at least once. Consumers must expect duplicates: each message has an id of its own, `message_id`.
"""

from __future__ import annotations

import time
import uuid
from collections import OrderedDict
from types import TracebackType
from typing import Any

import pika
import pika.exceptions

LOST = (pika.exceptions.AMQPError, OSError)


class ResendingProducer:
    """At most `window` messages wait for their confirms: more than the consumers hold unacked together, or they starve."""

    def __init__(
        self, parameters: Any, queue: str, resend_after_s: float = 30.0, window: int = 1_000, retry_s: float = 0.5
    ) -> None:
        self._parameters = parameters
        self._queue = queue
        self._resend_after_s = resend_after_s
        self._window = window
        self._retry_s = retry_s
        self._connection: pika.BlockingConnection | None = None
        self._channel: Any = None
        self._seqno = 0  # of the channel, as the broker counts
        self._unconfirmed: OrderedDict[int, tuple[str, bytes, float]] = OrderedDict()  # seqno: id, body, when it was sent
        self.resent = 0

    def send(self, body: bytes) -> None:
        """Publishes a message; waits while there are too many unconfirmed ones."""
        self._publish(str(uuid.uuid4()), body)
        while len(self._unconfirmed) >= self._window:
            self._work(0.05)
        self._work(0)

    def wait(self) -> None:
        """Returns when everything is confirmed."""
        while self._unconfirmed:
            self._work(0.05)

    def _publish(self, message_id: str, body: bytes) -> None:
        self._seqno += 1
        self._unconfirmed[self._seqno] = (message_id, body, time.monotonic())
        try:
            properties = pika.BasicProperties(delivery_mode=2, message_id=message_id)
            if self._channel is not None:
                self._channel.basic_publish("", self._queue, body, properties)
        except LOST:
            self._channel = None  # `_work` connects again, and publishes again what waits

    def _work(self, seconds: float) -> None:
        """Lets the connection read; publishes again what has waited too long, or whose connection is gone."""
        try:
            if self._channel is None or self._connection is None:
                self._connect()
            else:
                self._connection.process_data_events(seconds)
        except LOST:
            self._channel = None
            time.sleep(self._retry_s)
            return
        late = time.monotonic() - self._resend_after_s
        while self._unconfirmed and next(iter(self._unconfirmed.values()))[2] < late:
            self._resend([next(iter(self._unconfirmed))])

    def _connect(self) -> None:
        self._connection = pika.BlockingConnection(self._parameters)
        channel = self._connection.channel()
        # BlockingChannel.confirm_delivery waits for each confirm in turn; this is told of them as they come.
        channel._impl.confirm_delivery(self._confirmed)
        self._channel, self._seqno = channel, 0
        waiting, self._unconfirmed = self._unconfirmed, OrderedDict()
        for message_id, body, _ in waiting.values():
            self.resent += 1
            self._publish(message_id, body)

    def _resend(self, seqnos: list[int]) -> None:
        """A confirm of the earlier publish may still come: nobody waits for it any more."""
        for seqno in seqnos:
            message_id, body, _ = self._unconfirmed.pop(seqno)
            self.resent += 1
            self._publish(message_id, body)

    def _confirmed(self, frame: Any) -> None:
        """basic.ack: a consumer or the disk has it. basic.nack: nobody may have it, so it is published again."""
        tag = frame.method.delivery_tag
        told = [tag] if tag in self._unconfirmed else []
        if frame.method.multiple:
            told = [seqno for seqno in self._unconfirmed if seqno <= tag]
        if isinstance(frame.method, pika.spec.Basic.Nack):
            self._resend(told)
        else:
            for seqno in told:
                del self._unconfirmed[seqno]

    def __enter__(self) -> ResendingProducer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._connection is not None and self._connection.is_open:
            self._connection.close()
