"""One consumer of one queue, in a thread of its own: receives, acks, and connects again when the connection is lost.

The thread owns the connection and serves its heartbeats; all others talk to it through the methods below. Deliveries wait in
`_waiting`, in the order they came in. What must stay true:

- A delivery tag means something on its own connection only. Every connection is a generation; an ack of an earlier one is
  ignored, because the broker has put those messages back into the queue, and what was waiting of it is forgotten.
- There are never more than `prefetch_count` messages here that are not acked. That bounds the memory, and nothing else does.
- What cannot get better ends the receiver for good, and every method then raises PipelineError: the queue or the vhost does not
  exist, access is refused, or as many attempts to connect as are allowed have failed one after the other.
"""

from __future__ import annotations

import ssl
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

import pika
import pika.exceptions
from pika.adapters.utils.connection_workflow import AMQPConnectionWorkflowFailed, AMQPConnectorPhaseErrorBase
from pika.channel import Channel

from rabbitpy_broker.pipeline.amqp.messages import BODY, TAG, Delivery
from rabbitpy_broker.pipeline.amqp.options import Address
from rabbitpy_broker.pipeline.errors import PipelineError

# Closes that another attempt would only repeat: access refused, no such queue, locked, wrong argument, no such vhost.
FINAL_CODES: Final = {402, 403, 404, 405, 406, 530, 540}
# For an answer of the broker to a question on an open connection.
ANSWER_TIMEOUT_S: Final = 30.0
CLOSE_TIMEOUT_S: Final = 5.0


class Receiver:
    """`start`, then `wait` and `take`, `ack`, and at last `close`."""

    def __init__(
        self,
        address: Address,
        queue: str,
        prefetch_count: int,
        attempts: int = 10,
        retry_delay_s: float = 1.0,
        consumer_tag: str = "",
        consumer_priority: int = 0,
    ) -> None:
        self._parameters = address.parameters()
        self._queue = queue
        self._prefetch_count = prefetch_count
        self._attempts = attempts
        self._retry_delay_s = retry_delay_s
        self._consumer_tag = consumer_tag
        self._arguments = {"x-priority": consumer_priority} if consumer_priority else None
        self._waiting: list[Delivery] = []
        self._wanted = 1  # `_arrived` is set when so many wait
        self._arrived = threading.Event()
        self._lock = threading.Lock()  # of `_generation` with `_waiting`, and of `_connection` with `_channel`
        self._generation = 0
        self._connection: pika.SelectConnection | None = None
        self._channel: Channel | None = None
        self._why_closed: BaseException | None = None
        self._failures = 0
        self._ready_at_start = -1
        self._started = threading.Event()
        self._closing = threading.Event()
        self._failed: PipelineError | None = None
        self._thread = threading.Thread(target=self._run, name="amqp receiver", daemon=True)

    # --- what others call ------------------------------------------------------------------------------------------------

    def start(self) -> int:
        """Connects and begins to receive; returns how many messages the queue had ready before. Raises PipelineError."""
        self._thread.start()
        self._started.wait()
        self.check()
        return self._ready_at_start

    def check(self) -> None:
        """Raises PipelineError when the receiver has ended for good."""
        if self._failed is not None:
            raise self._failed

    @property
    def generation(self) -> int:
        """The number of the connection. Deliveries that wait are always this generation's."""
        return self._generation

    def waiting(self) -> int:
        """How many deliveries may be taken."""
        return len(self._waiting)

    def wait(self, count: int, timeout_s: float) -> int:
        """Returns when so many deliveries wait, or after the time; how many there are. Raises PipelineError."""
        self._arrived.clear()
        self._wanted = count
        if len(self._waiting) < count and self._failed is None:
            self._arrived.wait(timeout_s)
        self.check()
        return len(self._waiting)

    def take(self, count: int, max_bytes: int) -> tuple[int, list[Delivery]]:
        """The oldest deliveries, within both limits but at least one, and their generation; they still have to be acked."""
        with self._lock:
            taken = self._waiting[:count]
            taken = taken[: fitting(taken, max_bytes)]
            del self._waiting[: len(taken)]
            return self._generation, taken

    def ack(self, generation: int, tag: int) -> None:
        """Acks everything up to this delivery tag, soon. Nothing happens when that connection is gone."""

        def send() -> None:
            if generation == self._generation and self._channel is not None and self._channel.is_open:
                self._channel.basic_ack(tag, multiple=True)

        self._call(send)

    def ready(self) -> int | None:
        """How many messages the queue has ready for others; None when the connection was lost before it answered.

        The broker has then handled every ack that was sent before, and what it delivered before has arrived.
        """
        answered = threading.Event()
        counts: list[int] = []
        generation = self._generation

        def ask() -> None:
            if self._channel is None or not self._channel.is_open:
                answered.set()
                return
            self._channel.queue_declare(self._queue, passive=True, callback=answer)

        def answer(frame: Any) -> None:
            counts.append(frame.method.message_count)
            answered.set()

        if not self._call(ask):
            return None
        deadline = time.monotonic() + ANSWER_TIMEOUT_S
        while not answered.wait(0.05):
            self.check()
            if generation != self._generation or time.monotonic() > deadline:
                return None
        return counts[0] if counts else None

    def close(self) -> None:
        """Ends connection and thread; the broker puts back what is not acked. May be called twice, and before `start`."""
        self._closing.set()
        self._call(self._close_connection)
        if self._thread.is_alive():
            self._thread.join(CLOSE_TIMEOUT_S)

    # --- the thread --------------------------------------------------------------------------------------------------------

    def _call(self, function: Callable[[], None]) -> bool:
        """Has the thread call this, unless it has no connection."""
        with self._lock:
            if self._connection is None:
                return False
            self._connection.ioloop.add_callback_threadsafe(function)
            return True

    def _run(self) -> None:
        try:
            while self._failed is None and not self._closing.is_set():
                why = self._serve()
                self._forget()
                if not self._closing.is_set():
                    self._failed = self._final_failure(why)
                if self._failed is None:
                    self._closing.wait(self._retry_delay_s)
        except Exception as error:  # noqa: BLE001 - raised in the threads that wait for this one
            self._failed = PipelineError(f"{self._where()}: {told(error)}")
            self._failed.__cause__ = error
        finally:
            self._forget()
            self._started.set()
            self._arrived.set()

    def _final_failure(self, why: BaseException | None) -> PipelineError | None:
        """What ends the receiver after a connection has ended so; None when another attempt is to be made."""
        self._failures += 1
        text = ""
        if is_final(why):
            text = told(why)
        elif self._failures >= self._attempts:
            text = f"lost, and {self._attempts} attempts to connect have failed; the last: {told(why)}"
        if not text:
            return None
        error = PipelineError(f"{self._where()}: {text}")
        error.__cause__ = why
        return error

    def _serve(self) -> BaseException | None:
        """One connection, from its beginning to its end; returns why it ended."""
        self._why_closed = None
        connection = pika.SelectConnection(
            self._parameters,
            on_open_callback=lambda opened: opened.channel(on_open_callback=self._on_channel),
            on_open_error_callback=self._on_closed,
            on_close_callback=self._on_closed,
        )
        with self._lock:
            self._connection = connection
        if self._closing.is_set():
            self._close_connection()
        try:
            connection.ioloop.start()
        finally:
            with self._lock:
                self._connection = self._channel = None
            connection.ioloop.close()
        return self._why_closed

    def _forget(self) -> None:
        with self._lock:
            self._generation += 1
            self._waiting.clear()

    def _on_channel(self, channel: Channel) -> None:
        channel.add_on_close_callback(self._on_channel_closed)
        channel.add_on_cancel_callback(self._on_cancelled)

        def on_declared(frame: Any) -> None:
            if self._ready_at_start < 0:
                self._ready_at_start = frame.method.message_count
            channel.basic_qos(prefetch_count=self._prefetch_count, callback=on_qos)

        def on_qos(_frame: Any) -> None:
            self._channel = channel
            tag = self._consumer_tag or None
            channel.basic_consume(
                self._queue, self._on_message, consumer_tag=tag, arguments=self._arguments, callback=on_consuming
            )

        def on_consuming(_frame: Any) -> None:
            self._failures = 0
            self._started.set()

        channel.queue_declare(self._queue, passive=True, callback=on_declared)

    def _on_message(self, _channel: Channel, method: Any, properties: pika.BasicProperties, body: bytes) -> None:
        waiting = self._waiting
        waiting.append(
            (
                method.delivery_tag,
                method.redelivered,
                method.exchange,
                method.routing_key,
                properties,
                body,
                time.time_ns() // 1000,
            )
        )
        if len(waiting) >= self._wanted:
            self._arrived.set()

    def _on_cancelled(self, _frame: Any) -> None:
        """The queue was deleted, or has moved: the next attempt will tell."""
        self._why_closed = pika.exceptions.ConsumerCancelled("the broker has cancelled the consumer")
        self._close_connection()

    def _on_channel_closed(self, _channel: Channel, why: BaseException) -> None:
        self._why_closed = self._why_closed or why
        self._close_connection()

    def _on_closed(self, connection: pika.SelectConnection, why: BaseException) -> None:
        self._why_closed = self._why_closed or why
        connection.ioloop.stop()

    def _close_connection(self) -> None:
        connection = self._connection
        if connection is not None and not (connection.is_closing or connection.is_closed):
            connection.close()

    def _where(self) -> str:
        return f"queue {self._queue!r} in {place(self._parameters)}"


def fitting(deliveries: Sequence[Delivery], max_bytes: int) -> int:
    """How many of these, from the first, have bodies within the limit together; at least one."""
    size = 0
    for position, delivery in enumerate(deliveries):
        size += len(delivery[BODY])
        if size > max_bytes and position:
            return position
    return len(deliveries)


def last_tag(deliveries: Sequence[Delivery]) -> int:
    """What to ack for all of these."""
    return deliveries[-1][TAG]


def beneath(why: BaseException | None) -> BaseException | None:
    """What happened while the connection was being opened, out of what pika wraps around it."""
    while True:
        if isinstance(why, AMQPConnectionWorkflowFailed) and why.exceptions:
            why = why.exceptions[-1]
        elif isinstance(why, AMQPConnectorPhaseErrorBase):
            why = why.exception
        elif isinstance(why, pika.exceptions.AMQPConnectionError) and why.args and isinstance(why.args[0], Exception):
            why = why.args[0]
        else:
            return why


def is_final(why: BaseException | None) -> bool:
    """True when the same would happen again."""
    why = beneath(why)
    refused = (
        pika.exceptions.ProbableAuthenticationError,
        pika.exceptions.ProbableAccessDeniedError,
        pika.exceptions.AuthenticationError,
        pika.exceptions.IncompatibleProtocolError,
        pika.exceptions.ProtocolSyntaxError,
        ssl.SSLCertVerificationError,
    )
    return getattr(why, "reply_code", None) in FINAL_CODES or isinstance(why, refused)


def told(why: BaseException | None) -> str:
    """The reason for a close in the broker's words, or pika's."""
    why = beneath(why)
    if why is None:
        return "closed"
    text = getattr(why, "reply_text", None)
    code = getattr(why, "reply_code", None)
    if text:
        return str(text) if str(text).startswith(str(code)) else f"{code} {text}"
    return f"{type(why).__name__}: {why}" if str(why) else type(why).__name__


def place(parameters: pika.ConnectionParameters) -> str:
    """Host, port and vhost; never who logs in."""
    return f"vhost {parameters.virtual_host!r} of {parameters.host}:{parameters.port}"
