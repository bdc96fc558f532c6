"""A producer that publishes again what is not confirmed within a time, over broken connections too. It needs pika only.

    with ResendingProducer(pika.ConnectionParameters("localhost"), "orders") as producer:
        for order in orders:
            producer.send(order)
        producer.wait()                     # until everything is confirmed

Every message arrives at least once. Consumers must expect duplicates: each message has an id of its own, `message_id`.
The connection belongs to a thread of its own; `send` may be called from any other.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections import OrderedDict, deque
from types import TracebackType
from typing import Any, NamedTuple, Self

import pika
from pika.channel import Channel


class Outgoing(NamedTuple):
    """A message, and when it was published last."""

    id: str
    body: bytes
    sent_at: float


class ResendingProducer:
    """At most `window` messages wait for their confirms: more than the consumers hold unacked together, or they starve."""

    def __init__(
        self,
        parameters: pika.ConnectionParameters,
        queue: str,
        resend_after_s: float = 30.0,
        window: int = 1_000,
        retry_s: float = 0.5,
    ) -> None:
        self._parameters = parameters
        self._queue = queue
        self._resend_after_s = resend_after_s
        self._retry_s = retry_s
        self._room = threading.Semaphore(window)
        self._done = threading.Condition()
        self._open_sends = 0  # messages that `send` took and that are not confirmed
        self._unsent: deque[Outgoing] = deque()
        self._stopping = False
        # What follows belongs to the thread.
        self._connection: pika.SelectConnection | None = None
        self._channel: Channel | None = None
        self._seqno = 0  # of the last publish on the channel, as the broker counts
        self._unconfirmed: OrderedDict[int, Outgoing] = OrderedDict()  # by seqno, the longest waiting first
        self._nacked: list[Outgoing] = []
        self.resent = 0
        self._thread = threading.Thread(target=self._run, daemon=True)

    # -- from any thread ------------------------------------------------------------------------------------------

    def send(self, body: bytes) -> None:
        """Takes a message; waits while `window` messages are not confirmed."""
        self._room.acquire()
        with self._done:
            self._open_sends += 1
        self._unsent.append(Outgoing(str(uuid.uuid4()), body, 0.0))
        connection = self._connection
        if connection is not None:
            connection.ioloop.add_callback_threadsafe(self._publish_unsent)

    def wait(self, timeout_s: float | None = None) -> bool:
        """Returns when everything is confirmed, or False after `timeout_s`."""
        with self._done:
            return self._done.wait_for(lambda: self._open_sends == 0, timeout_s)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """What is not confirmed by now is given up."""
        self._stopping = True
        connection = self._connection
        if connection is not None:
            connection.ioloop.add_callback_threadsafe(connection.ioloop.stop)
        self._thread.join()

    # -- the connection's thread ----------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._stopping:
            connection = pika.SelectConnection(
                self._parameters,
                on_open_callback=lambda opened: opened.channel(on_open_callback=self._opened),
                on_open_error_callback=self._lost,
                on_close_callback=self._lost,
            )
            self._connection = connection
            connection.ioloop.call_later(self._retry_s, self._look)
            connection.ioloop.start()
            self._channel = None
            if not connection.is_closed:
                connection.close()
            time.sleep(0 if self._stopping else self._retry_s)

    def _lost(self, connection: Any, reason: object) -> None:
        connection.ioloop.stop()

    def _opened(self, channel: Channel) -> None:
        channel.add_on_close_callback(lambda closed, reason: self._lost(closed.connection, reason))
        channel.confirm_delivery(self._told, callback=lambda _: self._ready(channel))

    def _ready(self, channel: Channel) -> None:
        """A new channel: whatever the one before was not told of goes first."""
        self._channel, self._seqno = channel, 0
        self._resend(list(self._unconfirmed))

    def _publish_unsent(self) -> None:
        while self._channel is not None and self._channel.is_open and self._unsent:
            message = self._unsent.popleft()
            self._seqno += 1
            self._unconfirmed[self._seqno] = message._replace(sent_at=time.monotonic())
            properties = pika.BasicProperties(delivery_mode=2, message_id=message.id)
            self._channel.basic_publish("", self._queue, message.body, properties)

    def _look(self) -> None:
        """Now and then: publishes again what has waited too long, and what was nacked."""
        late = time.monotonic() - self._resend_after_s
        self._resend([seqno for seqno, message in self._unconfirmed.items() if message.sent_at < late])
        self.resent += len(self._nacked)
        self._unsent.extend(self._nacked)
        self._nacked = []
        self._publish_unsent()
        if self._connection is not None:
            self._connection.ioloop.call_later(self._retry_s, self._look)

    def _resend(self, seqnos: list[int]) -> None:
        """A confirm of the publish before may still come: it is passed over."""
        self.resent += len(seqnos)
        self._unsent.extendleft([self._unconfirmed.pop(seqno) for seqno in reversed(seqnos)])
        self._publish_unsent()

    def _told(self, frame: Any) -> None:
        """basic.ack: a consumer or the disk has it. basic.nack: perhaps nobody has it; `_look` publishes it again.

        It no longer counts as unconfirmed then: an ack with multiple=true that comes later does not mean it.
        """
        method = frame.method
        seqnos = [method.delivery_tag]
        if method.multiple:
            seqnos = [seqno for seqno in self._unconfirmed if seqno <= method.delivery_tag]
        for seqno in seqnos:
            message = self._unconfirmed.pop(seqno, None)
            if message is None:
                continue
            if isinstance(method, pika.spec.Basic.Nack):
                self._nacked.append(message)
                continue
            self._room.release()
            with self._done:
                self._open_sends -= 1
                self._done.notify_all()
