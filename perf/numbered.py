"""Numbered messages: a publisher that writes a number into each body, and a consumer that sees whether each comes, in order.

perf.load's bodies carry a time and are alike otherwise, which tells how fast a broker is and not what it lost. Here the
body begins with the message's number in its queue: 0, 1, 2 …  So that this does not cost the broker's share of the
machine, though it is interpreted: the publisher encodes a batch with one `join`, and the consumer cuts all deliveries of
a read with one `struct`, for they all have the same size. That asks for one size of body, names of one length, and a
connection on which nothing but deliveries comes.

One connection and one channel each. The publisher goes round its queues, a batch to each in turn.
"""

from __future__ import annotations

import dataclasses
import struct
import time
from collections.abc import Sequence
from typing import Any

from pamqp import base, commands, exceptions, frame
from pamqp.header import ContentHeader

from perf.driver import (
    BASIC_ACK,
    BASIC_NACK,
    CONNECTION_BLOCKED,
    CONNECTION_UNBLOCKED,
    FRAME_METHOD,
    BrokerClosed,
    Link,
    Unsettled,
)
from perf.load import encode
from perf.load.client import FRAME_MAX, Address, Client, Refused

NUMBER_BYTES = 8
LARGEST = FRAME_MAX - 8  # a body is one frame
BATCH_COUNT = 32
READ_BYTES = 1 << 20


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


class Publisher(Link):
    """Publishes a backlog with confirms, at most `window` of them unsettled. The counters may be read from other threads."""

    def __init__(self, url: str, backlog: Backlog, window: int) -> None:
        self.client = BlockedAware(Address.parse(url), "perf publisher")
        self.client.open_channel(1)
        self.client.call(1, commands.Confirm.Select(), commands.Confirm.SelectOk)
        super().__init__(*self.client.take(), READ_BYTES)
        self.backlog = backlog
        self.window = window
        self.batch_count = min(BATCH_COUNT, window, backlog.each)
        self.unsettled = Unsettled()
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
            body = encode.body_frames(bytes(backlog.size), 1, self.client.frame_max)[0]
            header = frame.marshal(ContentHeader(0, backlog.size, properties), 1)
            self._before.append(method + header + body[:7])
            self._after = body[7 + NUMBER_BYTES :]

    @property
    def settled(self) -> int:
        return self.confirmed + self.nacked

    def run(self, patience: float) -> bool:
        """Publishes all and waits for the confirms; False when nothing moved for `patience` seconds. Raises Refused."""
        try:
            return self._run(patience)
        except BrokerClosed as closed:
            raise Refused(str(closed)) from None

    def _run(self, patience: float) -> bool:
        self.started = moved = time.monotonic()
        while self.settled < self.backlog.messages:
            self._fill()
            before = (self.settled, len(self.unsent))
            self.serve(0.1)
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
            self.send(self._next_batch())

    def _next_batch(self) -> bytes:
        backlog = self.backlog
        lap, rest = divmod(self.published, self.batch_count * backlog.queues)
        first = lap * self.batch_count
        count = min(self.batch_count, backlog.each - first)  # the last lap's batches may be shorter
        before = self._before[rest // count]
        numbers = [number.to_bytes(NUMBER_BYTES, "big") for number in range(first, first + count)]
        self.published += count
        self.unsettled.published(count)
        return b"".join((before, (self._after + before).join(numbers), self._after))

    def take_frame(self, kind: int, payload: bytes) -> None:
        if kind != FRAME_METHOD:
            return
        method = int.from_bytes(payload[:4], "big")
        if method in {BASIC_ACK, BASIC_NACK}:
            count = self.unsettled.settle(int.from_bytes(payload[4:12], "big"), payload[12] & 1 == 1)
            if method == BASIC_ACK:
                self.confirmed += count
            else:
                self.nacked += count
        elif method == CONNECTION_BLOCKED:
            self.blocked_since = time.monotonic()
        elif method == CONNECTION_UNBLOCKED:
            self._end_of_block()
        else:
            self.other_method(method, payload, 4)

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
            self.client.unread = self.unread
            self.client.close()


class Consumer(Link):
    """Consumes a backlog with acks and checks the numbers. The counters may be read from other threads."""

    def __init__(self, url: str, backlog: Backlog, prefetch: int, ack_every: int) -> None:
        self.client = Client(Address.parse(url), "perf consumer")
        self.client.open_channel(1)
        self.client.call(1, commands.Basic.Qos(0, prefetch), commands.Basic.QosOk)
        super().__init__(*self.client.take(), READ_BYTES)
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
        self._places: dict[bytes, int] = {}  # how a delivery begins -> the queue it is of
        for number, queue in enumerate(backlog.queue_names):
            self._places[delivery_head(number, queue)] = number
            self._layout = delivery_layout(number, queue, backlog.size)

    def run(self, expected: int, patience: float) -> None:
        """Consumes that many and acks them all. Raises Refused when nothing comes any more."""
        start = time.monotonic()
        # Without an answer, which would come amidst the first queues' deliveries.
        consumes = [
            commands.Basic.Consume(0, queue, consumer_tag(number), nowait=True)
            for number, queue in enumerate(self.backlog.queue_names)
        ]
        self.send(b"".join(frame.marshal(method, 1) for method in consumes))
        heard = start
        while self.received < expected or self.unsent:
            before = self.received
            try:
                self.serve(patience)
            except BrokerClosed as closed:
                raise Refused(str(closed)) from None
            now = time.monotonic()
            if self.received > before:
                heard = now
                self.end_s = now - start
                if self.half_s is None and self.received >= expected / 2:
                    self.half_s = self.end_s
                self._ack(
                    self.received
                    if self.received >= expected
                    else self.received - self.received % self.ack_every
                )
            elif now - heard >= patience:
                text = f"; instead came {words(self.unread)}" if self.unread else ""
                raise Refused(
                    f"{self.received} of {expected} messages came, then none for {patience:g} s{text}"
                )
        self.client.unread = self.unread

    def parse(self, data: bytes, now: int) -> int:
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
        return whole

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
            self.send(b"".join(acks))

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
