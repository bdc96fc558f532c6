"""Numbered messages: a publisher that writes a number into each body, and a consumer that sees whether each comes, in order.

perf.load's bodies carry a time and are alike otherwise, which tells how fast a broker is and not what it lost. Here the
body begins with the message's number in its queue: 0, 1, 2 …  So that this does not cost the broker's share of the
machine, though it is interpreted: the publisher encodes a batch with one `join`, and the consumer cuts all deliveries of
a read with one `struct`, for they all have the same size. That asks for one size of body, names of one length, and a
connection on which nothing but deliveries comes.

One connection and one channel each. The publisher goes round its queues, a batch to each in turn.
"""

from __future__ import annotations

import contextlib
import dataclasses
import select
import struct
import time
from collections.abc import Sequence
from typing import Any

from pamqp import base, commands, exceptions, frame
from pamqp.header import ContentHeader

from perf.load import encode
from perf.load.client import FRAME_MAX, Address, Client, Refused
from perf.load.engine import (
    BASIC_ACK,
    BASIC_NACK,
    CHANNEL_CLOSE,
    CONNECTION_CLOSE,
    FRAME_METHOD,
    PublishChannel,
)

NUMBER_BYTES = 8
LARGEST = FRAME_MAX - 8  # a body is one frame
BATCH_COUNT = 32
READ_BYTES = 1 << 20
CONNECTION_BLOCKED = 10 << 16 | 60
CONNECTION_UNBLOCKED = 10 << 16 | 61


@dataclasses.dataclass(frozen=True)
class Backlog:
    """What is to lie in the broker: `each` messages of `size` bytes in each of the queues."""

    name: str
    queues: int
    each: int
    size: int
    persistent: bool = True

    @property
    def queue_names(self) -> list[str]:
        return [f"{self.name}-{number:06}" for number in range(self.queues)]

    @property
    def messages(self) -> int:
        return self.queues * self.each


class BlockedAware(Client):
    """A client that wants to be told when the broker blocks it."""

    def send(self, channel: int, method: base.Frame) -> None:
        if isinstance(method, commands.Connection.StartOk):
            capabilities = (method.client_properties or {}).get("capabilities")
            assert isinstance(capabilities, dict)
            capabilities["connection.blocked"] = True
        super().send(channel, method)


class Publisher:
    """Publishes a backlog with confirms, at most `window` of them unsettled. The counters may be read from other threads."""

    def __init__(self, url: str, backlog: Backlog, window: int) -> None:
        self.client = BlockedAware(Address.parse(url), "perf publisher")
        self.client.open_channel(1)
        self.client.call(1, commands.Confirm.Select(), commands.Confirm.SelectOk)
        self.sock, self.rest = self.client.take()
        self.sock.setblocking(False)
        self.backlog = backlog
        self.window = window
        self.batch_count = min(BATCH_COUNT, window, backlog.each)
        self.unsettled = PublishChannel([], self.batch_count, [])
        self.unsent = memoryview(b"")
        self.published = 0
        self.confirmed = 0
        self.nacked = 0
        self.blocked_since: float | None = None
        self.blocked: list[dict[str, float]] = []  # when, in seconds from the start, and how long
        self.started = 0.0
        self.half_s: float | None = None  # when half of the backlog was settled
        self.end_s = 0.0  # when the last publish was
        self._before: list[bytes] = []
        self._after = b""
        for queue in backlog.queue_names:
            method = frame.marshal(commands.Basic.Publish(0, "", queue), 1)
            properties = commands.Basic.Properties(delivery_mode=2 if backlog.persistent else 1)
            body = encode.body_frames(backlog.size, 1, self.client.frame_max)[0]
            header = frame.marshal(ContentHeader(0, backlog.size, properties), 1)
            self._before.append(method + header + body[:7])
            self._after = body[7 + NUMBER_BYTES :]

    @property
    def settled(self) -> int:
        return self.confirmed + self.nacked

    def run(self, patience: float) -> bool:
        """Publishes all and waits for the confirms; False when nothing moved for `patience` seconds."""
        self.started = moved = time.monotonic()
        poller = select.poll()
        poller.register(self.sock)
        while self.settled < self.backlog.messages:
            self._fill()
            poller.modify(self.sock, select.POLLIN | (select.POLLOUT if self.unsent else 0))
            before = (self.settled, len(self.unsent))
            for _, mask in poller.poll(100):
                if mask & select.POLLOUT:
                    self._flush()
                if mask & ~select.POLLOUT:
                    self._receive()
            now = time.monotonic()
            if before != (self.settled, len(self.unsent)):
                moved = now
                self.end_s = now - self.started
                if self.half_s is None and self.settled >= self.backlog.messages / 2:
                    self.half_s = self.end_s
            elif now - moved > patience:
                return False
        return True

    def _fill(self) -> None:
        """Publishes as much as window, socket and broker allow."""
        while (
            self.published < self.backlog.messages
            and not self.unsent
            and self.blocked_since is None
            and self.published - self.settled + self.batch_count <= self.window
        ):
            self.unsent = memoryview(self._next_batch())
            self._flush()

    def _next_batch(self) -> bytes:
        backlog = self.backlog
        lap, rest = divmod(self.published, self.batch_count * backlog.queues)
        first = lap * self.batch_count
        count = min(self.batch_count, backlog.each - first)  # the last lap's batches may be shorter
        before = self._before[rest // count]
        numbers = [number.to_bytes(NUMBER_BYTES, "big") for number in range(first, first + count)]
        self.published += count
        self.unsettled.publish_seqno += count
        self.unsettled.unsettled += count
        return b"".join((before, (self._after + before).join(numbers), self._after))

    def _flush(self) -> None:
        with contextlib.suppress(BlockingIOError):
            self.unsent = self.unsent[self.sock.send(self.unsent) :]

    def _receive(self) -> None:
        arrived = self.sock.recv(READ_BYTES)
        if not arrived:
            raise Refused("the broker closed the connection without a word")
        data = self.rest + arrived
        at = 0
        while len(data) - at >= 8:
            end = at + 8 + int.from_bytes(data[at + 3 : at + 7], "big")
            if end > len(data):
                break
            if data[at] == FRAME_METHOD:
                self._method(int.from_bytes(data[at + 7 : at + 11], "big"), data[at:end])
            at = end
        self.rest = data[at:]

    def _method(self, method: int, whole: bytes) -> None:
        if method in {BASIC_ACK, BASIC_NACK}:
            count = self.unsettled.settle(int.from_bytes(whole[11:19], "big"), whole[19] & 1 == 1)
            if method == BASIC_ACK:
                self.confirmed += count
            else:
                self.nacked += count
        elif method == CONNECTION_BLOCKED:
            self.blocked_since = time.monotonic()
        elif method == CONNECTION_UNBLOCKED:
            self._end_of_block()
        elif method in {CONNECTION_CLOSE, CHANNEL_CLOSE}:
            raise Refused(words(whole))

    def _end_of_block(self) -> None:
        if self.blocked_since is not None:
            since, self.blocked_since = self.blocked_since, None
            self.blocked.append(
                {
                    "at_s": round(since - self.started, 2),
                    "seconds": round(time.monotonic() - since, 2),
                }
            )

    def close(self) -> None:
        """Ends the connection; a broker that still blocks it is not waited for."""
        still_blocked = self.blocked_since is not None
        self._end_of_block()
        if still_blocked or self.unsent:
            self.sock.close()
        else:
            self.client.unread = self.rest
            self.client.close()


class Consumer:
    """Consumes a backlog with acks and checks the numbers. The counters may be read from other threads."""

    def __init__(self, url: str, backlog: Backlog, prefetch: int, ack_every: int) -> None:
        self.client = Client(Address.parse(url), "perf consumer")
        self.client.open_channel(1)
        self.client.call(1, commands.Basic.Qos(0, prefetch), commands.Basic.QosOk)
        self.backlog = backlog
        self.ack_every = ack_every
        self.received = 0
        self.redelivered = 0
        self.missing = 0  # numbers that were skipped
        self.out_of_order = 0  # numbers that were behind: late, or there twice
        self.half_s: float | None = None  # when half of what was expected had come
        self.end_s = 0.0  # when the last one had
        self._due = [0] * backlog.queues
        self._acked = 0
        self._ack_head = encode.ack_head(1)
        self._rest = b""
        self._places: dict[bytes, int] = {}  # how a delivery begins -> the queue it is of
        for number, queue in enumerate(backlog.queue_names):
            self._places[delivery_head(number, queue)] = number
            self._layout = delivery_layout(number, queue, backlog.size)

    def run(self, expected: int, patience: float) -> None:
        """Consumes that many and acks them all. Raises Refused when nothing comes any more."""
        sock, self._rest = self.client.take()
        start = time.monotonic()
        for number, queue in enumerate(self.backlog.queue_names):
            # Without an answer, which would come amidst the first queues' deliveries.
            self.client.send(1, commands.Basic.Consume(0, queue, consumer_tag(number), nowait=True))
        sock.settimeout(patience)
        while self.received < expected:
            try:
                arrived = sock.recv(READ_BYTES)
            except TimeoutError:
                text = f"; instead came {words(self._rest)}" if self._rest else ""
                raise Refused(
                    f"{self.received} of {expected} messages came, then none for {patience:g} s{text}"
                ) from None
            if not arrived:
                raise Refused("the broker closed the connection without a word")
            self._take(self._rest + arrived)
            self.end_s = time.monotonic() - start
            if self.half_s is None and self.received >= expected / 2:
                self.half_s = self.end_s
            self._ack(self.received - self.received % self.ack_every)
        self._ack(self.received)
        self.client.unread = self._rest

    def _take(self, data: bytes) -> None:
        """Counts and checks the whole deliveries at the start of `data`."""
        layout, places, due = self._layout, self._places, self._due
        whole = len(data) - len(data) % layout.size
        received = redelivered = 0
        for head, again, number in layout.iter_unpack(memoryview(data)[:whole]):
            place = places.get(head)
            if place is None:
                raise Refused(words(data[received * layout.size :]))
            received += 1
            redelivered += again
            if number == due[place]:
                due[place] = number + 1
            else:
                self._astray(place, number)
        self.received += received
        self.redelivered += redelivered
        self._rest = data[whole:]

    def _astray(self, place: int, number: int) -> None:
        due = self._due[place]
        if number > due:
            self.missing += number - due
            self._due[place] = number + 1
        else:
            self.out_of_order += 1

    def _ack(self, to: int) -> None:
        """Acks every `ack_every`-th delivery up to `to`, and `to` itself, each with those before it."""
        tags = [*range(self._acked + self.ack_every, to, self.ack_every), to]
        if to > self._acked:
            self._acked = to
            acks = [self._ack_head + tag.to_bytes(8, "big") + b"\x01\xce" for tag in tags]
            self.client.sock.sendall(b"".join(acks))

    def close(self) -> None:
        self.client.close()


def consumer_tag(number: int) -> str:
    return f"c{number:06}"


def delivery_parts(number: int, queue: str, size: int) -> tuple[bytes, bytes]:
    """A delivery as it will come, up to its delivery tag and from there on to the body's start."""
    method = frame.marshal(commands.Basic.Deliver(consumer_tag(number), 0, False, "", queue), 1)
    tag_at = 7 + 4 + 1 + len(consumer_tag(number))
    header = frame.marshal(ContentHeader(0, size, commands.Basic.Properties(delivery_mode=2)), 1)
    return method[:tag_at], method[tag_at:] + header + bytes(7)


def delivery_head(number: int, queue: str) -> bytes:
    return delivery_parts(number, queue, 0)[0]


def delivery_layout(number: int, queue: str, size: int) -> struct.Struct:
    """Cuts a delivery into how it begins, its redelivered flag and its message's number."""
    head, middle = delivery_parts(number, queue, size)
    return struct.Struct(f">{len(head)}s8xB{len(middle) - 9}xQ{size - NUMBER_BYTES + 1}x")


def words(data: bytes) -> str:
    """The frame at the start of `data` in words: a close in the broker's own, anything else by its name."""
    try:
        got = frame.unmarshal(data)[2]
    except exceptions.UnmarshalingException:
        return f"something that is no frame: {data[:40].hex()}"
    if isinstance(got, commands.Connection.Close | commands.Channel.Close):
        return f"{got.reply_code} {got.reply_text}"
    return f"a {getattr(got, 'name', 'frame')} that nobody asked for"


def declare(url: str, backlog: Backlog, durable: bool, arguments: dict[str, Any] | None = None) -> None:
    with Client(Address.parse(url), "perf setup") as client:
        client.open_channel(1)
        for queue in backlog.queue_names:
            method = commands.Queue.Declare(0, queue, durable=durable, arguments=arguments or {})
            client.call(1, method, commands.Queue.DeclareOk)


def ready(url: str, queues: Sequence[str]) -> int:
    """How many messages the queues have ready, all together. Raises Refused where one is not there."""
    with Client(Address.parse(url), "perf count") as client:
        client.open_channel(1)
        counts = [
            client.call(1, commands.Queue.Declare(0, queue, passive=True), commands.Queue.DeclareOk)
            for queue in queues
        ]
    return sum(int(count.message_count) for count in counts)


def delete(url: str, queues: Sequence[str]) -> int:
    """Deletes the queues; returns how many messages were left in them."""
    with Client(Address.parse(url), "perf clean-up") as client:
        client.open_channel(1)
        counts = [
            client.call(1, commands.Queue.Delete(0, queue), commands.Queue.DeleteOk) for queue in queues
        ]
    return sum(int(count.message_count) for count in counts)
