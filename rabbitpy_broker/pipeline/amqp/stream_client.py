"""A connection to read streams with: a socket, one channel, one consumer, and the two questions that a source has.

    messages(stream, 1000, 2000, ...)    exactly the messages with these offsets, in order, then the end
    Tail(stream).read()                  where the stream ends now
    offset_of(stream, "first")           the first offset that an x-stream-offset leads to

pika's connection reads 10,000 to 30,000 messages a second, which is too slow for what a stream is read for; here only what pika
has for the other methods is used. No threads and no heartbeats: who reads slowly, because Spark takes its time with a batch,
is not cut off, and a connection that has died is seen because nothing comes from it for `SILENCE_S`.

How the end is found. queue.declare-ok has a count of messages, but RabbitMQ refreshes it every few seconds only, and counts
what retention has removed. So a consumer asks for x-stream-offset=last, which begins at the last chunk, and reads until the
broker answers a question and has sent no message before the answer: then it had none to send. From there on the same consumer
stays at the tail and a poll costs one question; when it falls behind, it asks for `last` again, and so does not read what the
executors read.
What `Tail.end` says is never too high, for a message with the offset before it has come.

What must stay true of `messages`: each offset at most once and in order, also over a lost connection, after which it goes on
behind the last; an ack gives the broker credit, and never for more than what is missing of the range, so nothing is sent in vain.
"""

from __future__ import annotations

import contextlib
import socket
import sys
import time
from collections.abc import Callable, Iterator
from typing import Final, TypeVar

import pika
import pika.frame
from pika import spec

from rabbitpy_broker.pipeline.amqp.options import MAX_PREFETCH
from rabbitpy_broker.pipeline.amqp.receiver import FINAL_CODES
from rabbitpy_broker.pipeline.amqp.receiver import place as place_of
from rabbitpy_broker.pipeline.amqp.stream_frames import CHANNEL, CONSUMER_TAG, Frames, Messages
from rabbitpy_broker.pipeline.errors import PipelineError

# Nothing from the broker for so long, where something has to come: the connection is lost.
SILENCE_S: Final = 60.0
CLOSE_TIMEOUT_S: Final = 2.0
NOT_FOUND: Final = 404
# A stream that has messages must show one; an empty one cannot, and RabbitMQ's count may still be 0 when there are some.
FIRST_S: Final = 30.0
EMPTY_S: Final = 2.0
# And so long for a message of a time or an offset that may lie behind the end.
LATER_S: Final = 10.0
RECEIVE_BYTES: Final = 1024 * 1024
# Unacked messages that the tail may have: more only means to read more of what others read.
TAIL_CREDIT: Final = 1000

SILENT: Final = "the stream has messages, and the broker sends none"
# So long the tail is followed while it grows faster than it can be read.
TAIL_S: Final = 0.1
# Messages of a chunk at most, in RabbitMQ: its header has 16 bits for them.
MAX_CHUNK: Final = 65_536

Answer = TypeVar("Answer", bound=spec.amqp_object.Method)


class LostError(Exception):
    """The connection is gone; another one may do better."""


class RefusedError(PipelineError):
    """The broker has closed connection or channel with a code, and would do so again."""

    def __init__(self, text: str, code: int) -> None:
        super().__init__(text)
        self.code = code


class Connection:
    """Open when it is made. Raises LostError, and PipelineError for what would be the same with the next connection."""

    def __init__(self, parameters: pika.ConnectionParameters) -> None:
        self.frames = Frames()
        self._where = place_of(parameters)
        try:
            self._socket = socket.create_connection((parameters.host, parameters.port), SILENCE_S)
        except OSError as error:
            raise LostError(f"{self._where}: {error}") from None
        try:
            self._open(parameters)
        except BaseException:
            self._socket.close()
            raise

    def call(self, method: spec.amqp_object.Method, answer: type[Answer], channel: int = CHANNEL) -> Answer:
        """Sends a method and returns its answer; deliveries that come before it are in `frames`."""
        self.send(method, channel)
        return self._await(answer)

    def send(self, method: spec.amqp_object.Method, channel: int = CHANNEL) -> None:
        try:
            self._socket.sendall(pika.frame.Method(channel, method).marshal())
        except OSError as error:
            raise LostError(f"{self._where}: {error}") from None

    def receive(self, timeout_s: float = SILENCE_S) -> bool:
        """Reads what comes; False when nothing came in a time shorter than `SILENCE_S`."""
        self._socket.settimeout(timeout_s)
        try:
            data = self._socket.recv(RECEIVE_BYTES)
        except TimeoutError:
            if timeout_s < SILENCE_S:
                return False
            raise LostError(f"{self._where}: nothing came for {SILENCE_S:.0f} s") from None
        except OSError as error:
            raise LostError(f"{self._where}: {error}") from None
        if not data:
            raise LostError(f"{self._where}: closed by the broker")
        self.frames.feed(data)
        for method in self.frames.methods:
            if isinstance(method, (spec.Connection.Close, spec.Channel.Close)):
                text = f"{self._where}: {method.reply_code} {method.reply_text}"
                raise RefusedError(text, method.reply_code) if method.reply_code in FINAL_CODES else LostError(text)
            if isinstance(method, spec.Basic.Cancel):
                raise LostError(f"{self._where}: the broker has cancelled the consumer; was the queue deleted?")
        return True

    def consume(self, queue: str, offset: object, credit: int) -> None:
        """The one consumer, from this x-stream-offset on, with so many messages to begin with."""
        self.call(spec.Basic.Qos(0, credit, False), spec.Basic.QosOk)
        consume = spec.Basic.Consume(0, queue, CONSUMER_TAG, arguments={"x-stream-offset": offset})
        self.call(consume, spec.Basic.ConsumeOk)

    def ack(self, tag: int) -> None:
        """Of all deliveries up to this one: so many more may come."""
        self.send(spec.Basic.Ack(tag, multiple=True))

    def renew_channel(self) -> None:
        """As if nothing had been consumed yet."""
        self.call(spec.Channel.Close(200, "", 0, 0), spec.Channel.CloseOk)
        self.frames.take()
        self.frames.received = 0
        self.call(spec.Channel.Open(), spec.Channel.OpenOk)

    def count(self, queue: str) -> int:
        """How many messages the broker says there are. Its answer comes behind all deliveries that were sent before it."""
        answer = self.call(spec.Queue.Declare(0, queue, passive=True), spec.Queue.DeclareOk)
        return int(answer.message_count)

    def first_delivery(self, timeout_s: float) -> bool:
        """Waits until something has been delivered."""
        deadline = time.monotonic() + timeout_s
        while not self.frames.received:
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                return False
            self.receive(remaining)
        return True

    def fileno(self) -> int:
        return self._socket.fileno()

    def close(self) -> None:
        """Says good-bye, so that no broker has to complain in its log, and waits a little for the answer."""
        with contextlib.suppress(LostError, PipelineError):
            self.send(spec.Connection.Close(200, "done", 0, 0), 0)
            deadline = time.monotonic() + CLOSE_TIMEOUT_S
            while time.monotonic() < deadline and self.receive(CLOSE_TIMEOUT_S):
                if any(isinstance(method, spec.Connection.CloseOk) for method in self.frames.methods):
                    break
        self._socket.close()

    def _open(self, parameters: pika.ConnectionParameters) -> None:
        if parameters.ssl_options is not None:
            tls = parameters.ssl_options
            try:
                self._socket = tls.context.wrap_socket(
                    self._socket, server_hostname=tls.server_hostname or parameters.host
                )
            except OSError as error:
                raise LostError(f"{self._where}: {error}") from None
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.sendall(pika.frame.ProtocolHeader().marshal())
        start = self._await(spec.Connection.Start)
        mechanism, response = parameters.credentials.response_for(start)
        properties = {
            **(parameters.client_properties or {}),
            "capabilities": {"authentication_failure_close": True, "consumer_cancel_notify": True},
        }
        self.send(spec.Connection.StartOk(properties, mechanism or "PLAIN", response or b"", "en_US"), 0)
        tune = self._await(spec.Connection.Tune)
        self.send(spec.Connection.TuneOk(tune.channel_max, tune.frame_max, 0), 0)
        self.call(spec.Connection.Open(parameters.virtual_host), spec.Connection.OpenOk, 0)
        self.call(spec.Channel.Open(), spec.Channel.OpenOk)

    def _await(self, answer: type[Answer]) -> Answer:
        while True:
            for at, found in enumerate(self.frames.methods):
                if isinstance(found, answer):
                    del self.frames.methods[at]
                    return found
            self.receive()


class Stream:
    """Where a queue is, and how patient we are with its broker."""

    def __init__(self, parameters: pika.ConnectionParameters, queue: str, attempts: int, retry_delay_s: float) -> None:
        self.parameters = parameters
        self.queue = queue
        self._attempts = attempts
        self._retry_delay_s = retry_delay_s
        self._failures = 0

    def connect(self) -> Connection:
        return Connection(self.parameters)

    def succeeded(self) -> None:
        self._failures = 0

    def failed(self, why: LostError) -> None:
        """Waits before the next attempt. Raises PipelineError when there is none."""
        self._failures += 1
        if self._failures >= self._attempts:
            text = f"stream {self.queue!r}: lost, and {self._attempts} attempts have failed; the last: {why}"
            raise PipelineError(text) from None
        time.sleep(self._retry_delay_s)


def messages(
    stream: Stream, first: int, end: int, credit: int, max_rows: int, max_bytes: int
) -> Iterator[Messages]:
    """The messages with the offsets from `first` to `end`, without `end`, in parts of about these limits at most.

    Some may be missing: retention has taken them, or their offsets hold no messages. Ends when `end` is reached or passed.
    Raises PipelineError.
    """
    position = first
    while position < end:
        try:
            for part in _received(stream, position, end, credit, max_rows, max_bytes):
                stream.succeeded()
                position = part.offsets[-1] + 1
                kept = _within(part, first, end)
                if kept.offsets:
                    yield kept
        except LostError as why:
            stream.failed(why)


def _received(
    stream: Stream, first: int, end: int, credit: int, max_rows: int, max_bytes: int
) -> Iterator[Messages]:
    """The same over one connection; what is outside of the range is not yet cut off."""
    credit = min(credit, end - first, MAX_PREFETCH)
    connection = stream.connect()
    frames = connection.frames
    try:
        connection.consume(stream.queue, first, credit)
        last, acked = first - 1, 0
        while True:
            if frames.offsets:
                last = frames.offsets[-1]
                if last >= end - 1 or len(frames.offsets) >= max_rows or frames.bytes >= max_bytes:
                    yield frames.take()
            missing = end - 1 - last
            if missing <= 0:
                return
            # What is under way and what the ack lets come are together no more than what is missing.
            tag = min(frames.received, frames.received + missing - credit)
            # RabbitMQ may send a few more than it has credit for.
            if tag - acked >= credit // 2 or frames.received - acked >= credit:
                connection.ack(tag)
                acked = tag
            connection.receive()
    finally:
        connection.close()


def _within(part: Messages, first: int, end: int) -> Messages:
    offsets = part.offsets
    if offsets[0] >= first and offsets[-1] < end:
        return part
    kept = [at for at, offset in enumerate(offsets) if first <= offset < end]
    return Messages(
        [offsets[at] for at in kept],
        [part.bodies[at] for at in kept],
        [part.layouts[at] for at in kept],
        [part.tails[at] for at in kept],
    )


def offset_of(stream: Stream, where: object) -> int | None:
    """The offset of the first message that a consumer with this x-stream-offset gets; None when there is no such message yet.

    Raises PipelineError. A `where` that is "first" or "last" leads to a message unless the stream is empty.
    """

    def ask() -> int | None:
        with contextlib.closing(stream.connect()) as connection:
            connection.consume(stream.queue, where, 1)
            is_empty = connection.count(stream.queue) == 0
            is_sure = not is_empty and where in ("first", "last")
            if connection.first_delivery(EMPTY_S if is_empty else FIRST_S if is_sure else LATER_S):
                return connection.frames.offsets[0]
            if is_sure:
                raise LostError(SILENT)
            return None

    while True:
        try:
            return ask()
        except LostError as why:
            stream.failed(why)


def exists(stream: Stream) -> bool:
    """True when there is a queue of this name. Raises PipelineError when that cannot be found out."""
    while True:
        try:
            connection = stream.connect()
            with contextlib.closing(connection):
                connection.count(stream.queue)
        except LostError as why:
            stream.failed(why)
        except RefusedError as why:
            if why.code == NOT_FOUND:
                return False
            raise
        else:
            return True


class Tail:
    """Follows the end of a stream. `end` is the offset behind the last message that was seen; 0 when there was none yet."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._connection: Connection | None = None
        self._acked = 0
        self.end = 0

    def read(self, floor: int, wanted: int) -> int:
        """Looks how far the stream has come: to its end, to `wanted` or a little further, or for `TAIL_S` if that is above
        `floor`. Raises PipelineError.
        """
        return self._patiently(lambda: self._read(floor, wanted))

    def read_all(self) -> int:
        """An offset behind everything that is there now. Raises PipelineError."""
        return self._patiently(self._read_all)

    def connection(self) -> Connection | None:
        """To wait for with `select`: it has something to read when the stream has grown."""
        return self._connection

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _patiently(self, read: Callable[[], None]) -> int:
        while True:
            try:
                read()
            except LostError as why:
                self.close()
                self._stream.failed(why)
            else:
                self._stream.succeeded()
                return self.end

    def _read_all(self) -> None:
        frames = self._at_the_tail(afresh=True).frames
        # What was there now is in the last chunk, or before it.
        self._read(sys.maxsize, frames.offsets[0] + MAX_CHUNK if frames.offsets else 0)

    def _read(self, floor: int, wanted: int) -> None:
        connection = self._at_the_tail()
        frames = connection.frames
        patient_until = time.monotonic() + TAIL_S
        while True:
            self._see(frames)
            if self.end >= wanted or (self.end > floor and time.monotonic() > patient_until):
                return
            if frames.received - self._acked >= TAIL_CREDIT // 2:
                connection.ack(frames.received)
                self._acked = frames.received
            before = frames.received
            connection.count(self._stream.queue)
            if frames.received == before:
                return

    def _see(self, frames: Frames) -> None:
        offsets = frames.take().offsets
        if offsets:
            self.end = max(self.end, offsets[-1] + 1)

    def _at_the_tail(self, afresh: bool = False) -> Connection:
        """The connection, whose consumer has credit left."""
        connection = self._connection
        if connection is None:
            connection = self._connection = self._stream.connect()
        elif afresh or connection.frames.received - self._acked >= TAIL_CREDIT:
            self._see(connection.frames)
            connection.renew_channel()
        else:
            return connection
        self._acked = 0
        connection.consume(self._stream.queue, "last", TAIL_CREDIT)
        has_messages = connection.count(self._stream.queue) > 0 or self.end > 0
        if not connection.first_delivery(FIRST_S if has_messages else EMPTY_S) and has_messages:
            raise LostError(SILENT)
        return connection
