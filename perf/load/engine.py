"""The hot part of the load generator: connections that publish or consume, and the loop that turns them.

It is compiled (see perf/build.py) and runs uncompiled as well. A message must cost next to nothing here, or the generator
measures itself when it shares the machine with the broker:

- What is published is encoded once, cut at the places of the timestamp. `stamp.join(pieces)` makes a whole batch in one
  call, and one `send` hands it over.
- What is received is parsed where it lies: of a frame only the head is read, of a method only what must be known.
- Acks gather in one buffer for each read; the clock is asked once for each read or batch.

What must stay true:
- All of a batch carries one timestamp, CLOCK_MONOTONIC in nanoseconds, taken as it is handed to the socket's buffer: so
  latency includes the wait in the kernel on both sides, and may be compared between processes of one machine.
- A counter counts a message once: `published` when encoded, `confirmed` and `nacked` when the broker settles it, `received`
  when its basic.deliver is seen.
"""

from __future__ import annotations

import select
import socket
import time
from collections import deque
from typing import Final

from librt.strings import BytesWriter, read_i32_be, read_i64_be, write_i64_be
from mypy_extensions import i64

from perf.driver import (
    BASIC_ACK,
    BASIC_CONSUME_OK,
    BASIC_DELIVER,
    BASIC_NACK,
    BASIC_RETURN,
    FRAME_BODY,
    FRAME_END,
    FRAME_METHOD,
    BrokerClosed,
    Link,
    Unsettled,
)

STAMP_BYTES: Final = 8
# A publisher that nothing slows goes on to the next connection after so many batches.
BATCHES_PER_TURN: Final = 8


class Latencies:
    """Counts by latency: exact to 1 us below 256 us, to 0.8 % above."""

    def __init__(self) -> None:
        self.counts: dict[int, int] = {}
        self.max_ns: i64 = 0

    def record(self, latency_ns: i64, count: i64) -> None:
        if latency_ns > self.max_ns:
            self.max_ns = latency_ns
        bucket: int = bucket_of(latency_ns)
        self.counts[bucket] = self.counts.get(bucket, 0) + count


def bucket_of(latency_ns: i64) -> i64:
    """128 buckets for each doubling: the bucket's number holds how often the value was halved, and what was left."""
    value: i64 = latency_ns // 1000
    halvings: i64 = 0
    while value >= 256:
        value >>= 1
        halvings += 1
    return halvings * 128 + value


def bucket_us(bucket: int) -> float:
    """The middle of the bucket, in microseconds."""
    if bucket < 256:
        return float(bucket)
    halvings = bucket // 128 - 1
    return (bucket - halvings * 128 + 0.5) * (1 << halvings)


class PublishChannel(Unsettled):
    """A publishing channel's encoded messages, and which of its publishes the broker has settled."""

    def __init__(self, encoded: list[list[bytes]], batch_count: int, single: list[bytes]) -> None:
        super().__init__()
        self.encoded = encoded  # batches, cut where the stamps belong, that take turns
        self.turn: i64 = 0
        self.batch_count: i64 = batch_count
        self.single = single  # likewise one message, for a rest that is smaller than a batch
        # (last publish_seqno, stamp) of each batch that is not settled, oldest first
        self.batches: deque[tuple[int, int]] = deque()


class Producer(Link):
    """Publishes on its channels in turn, as fast as window, rate, limit and socket allow.

    window    how many unconfirmed publishes a channel may have; 0 means that the broker does not confirm
    rate      messages a second of the whole connection; 0 means no limit
    limit     messages to publish in all; 0 means no end
    """

    def __init__(
        self,
        sock: socket.socket,
        unread: bytes,
        channels: list[PublishChannel],
        window: int,
        rate: float,
        limit: int,
    ) -> None:
        super().__init__(sock, unread)
        self.latencies = Latencies()
        self.channels = channels
        self.window: i64 = window
        self.rate = rate
        self.limit: i64 = limit
        self.turn: i64 = 0
        self.started_ns: i64 = 0
        self.published: i64 = 0
        self.confirmed: i64 = 0
        self.nacked: i64 = 0
        self.returned: i64 = 0
        self.settled_ns: i64 = 0  # when the broker last settled a publish

    def start(self, now: i64) -> None:
        self.started_ns = now

    def is_done(self) -> bool:
        """Whether the limit is reached, everything is handed over and, with confirms, settled."""
        if self.limit == 0 or self.published < self.limit or self.unsent:
            return False
        return self.window == 0 or self.confirmed + self.nacked >= self.published

    def publish(self, now: i64) -> i64:
        """Publishes what is due; returns when to call again (0: at once; -1: when something has arrived or left)."""
        turns: i64 = BATCHES_PER_TURN
        while turns > 0:
            if self.unsent or (self.limit and self.published >= self.limit):
                return -1
            if self.rate > 0:
                due: i64 = self.started_ns + i64(float(self.published) * 1e9 / self.rate)
                if due > now:
                    return due
            channel = self._next_channel()
            if channel is None:
                return -1
            self._publish_batch(channel)
            turns -= 1
        return 0

    def _next_channel(self) -> PublishChannel | None:
        """The next channel in turn whose window takes another batch."""
        count: i64 = len(self.channels)
        tried: i64 = 0
        while tried < count:
            self.turn += 1
            if self.turn >= count:
                self.turn = 0
            channel = self.channels[self.turn]
            if self.window == 0 or channel.unsettled + channel.batch_count <= self.window:
                return channel
            tried += 1
        return None

    def _publish_batch(self, channel: PublishChannel) -> None:
        count = channel.batch_count
        if self.limit and self.limit - self.published < count:
            pieces = channel.single
            count = 1
        else:
            pieces = channel.encoded[channel.turn]
            channel.turn += 1
            if channel.turn == len(channel.encoded):
                channel.turn = 0
        now: int = time.monotonic_ns()
        self.send(now.to_bytes(STAMP_BYTES, "big").join(pieces))
        self.published += count
        if self.window:
            channel.published(count)
            channel.batches.append((channel.publish_seqno, now))

    def parse(self, data: bytes, now: i64) -> i64:
        end: i64 = len(data)
        at: i64 = 0
        while end - at >= 8:
            head: i64 = read_i64_be(data, at)
            size: i64 = (head >> 8) & 0xFFFFFFFF
            if end - at < size + 8:
                break
            if head >> 56 == FRAME_METHOD:
                method: i64 = i64(read_i32_be(data, at + 7))
                if method == BASIC_ACK or method == BASIC_NACK:
                    channel = self.channels[((head >> 40) & 0xFFFF) - 1]
                    self._settle(
                        channel, read_i64_be(data, at + 11), data[at + 19] & 1 == 1, method == BASIC_NACK, now
                    )
                elif method == BASIC_RETURN:
                    self.returned += 1
                else:
                    self.other_method(method, data, at + 11)
            at += size + 8
            if data[at - 1] != FRAME_END:
                raise BrokerClosed("a frame without its end")
        return at

    def _settle(
        self, channel: PublishChannel, publish_seqno: i64, multiple: bool, refused: bool, now: i64
    ) -> None:
        count = channel.settle(publish_seqno, multiple)
        self.settled_ns = now
        if refused:
            self.nacked += count
        else:
            self.confirmed += count
        batches = channel.batches
        while batches and batches[0][0] <= channel.settled_to:
            stamp: i64 = batches.popleft()[1]
            self.latencies.record(now - stamp, channel.batch_count)


class ConsumeChannel:
    """A consuming channel: what it has not acked yet, and how its ack begins."""

    def __init__(self, number: int, ack_head: bytes) -> None:
        self.number = number
        self.ack_head = ack_head  # a basic.ack up to the delivery tag
        self.last_tag: i64 = 0
        self.pending: i64 = 0


class Consumer(Link):
    """Counts deliveries and acks them.

    ack_every   0 with auto-ack; 1 acks each; more acks that many with `multiple`
    stamped     whether bodies begin with a Producer's timestamp
    """

    def __init__(
        self,
        sock: socket.socket,
        unread: bytes,
        channels: list[ConsumeChannel],
        ack_every: int,
        stamped: bool,
    ) -> None:
        super().__init__(sock, unread)
        self.latencies = Latencies()
        self.channels = channels
        self.ack_every: i64 = ack_every
        self.stamped = stamped
        self.received: i64 = 0
        self.body_bytes: i64 = 0
        self.received_ns: i64 = 0  # when the last message came
        self.consuming: i64 = 0  # how many of the channels' basic.consume the broker has answered
        self._stamp_follows = False

    def parse(self, data: bytes, now: i64) -> i64:
        acks = BytesWriter()
        end: i64 = len(data)
        at: i64 = 0
        received: i64 = 0
        last_stamp: i64 = 0
        same_stamp: i64 = 0  # messages in a row with last_stamp: most of a batch arrives in one read
        ack_every: i64 = self.ack_every
        stamp_follows: bool = self._stamp_follows
        stamped: bool = self.stamped
        while end - at >= 8:
            head: i64 = read_i64_be(data, at)
            size: i64 = (head >> 8) & 0xFFFFFFFF
            if end - at < size + 8:
                break
            kind: i64 = head >> 56
            if kind == FRAME_BODY:
                self.body_bytes += size
                if stamp_follows:
                    stamp_follows = False
                    stamp: i64 = read_i64_be(data, at + 7)
                    if stamp == last_stamp:
                        same_stamp += 1
                    else:
                        if same_stamp:
                            self.latencies.record(now - last_stamp, same_stamp)
                        last_stamp = stamp
                        same_stamp = 1
            elif kind == FRAME_METHOD:
                method: i64 = i64(read_i32_be(data, at + 7))
                if method == BASIC_DELIVER:
                    received += 1
                    stamp_follows = stamped
                    if ack_every:
                        channel = self.channels[((head >> 40) & 0xFFFF) - 1]
                        channel.last_tag = read_i64_be(data, at + 12 + i64(data[at + 11]))
                        channel.pending += 1
                        if channel.pending >= ack_every:
                            self._ack(channel, acks)
                elif method == BASIC_CONSUME_OK:
                    self.consuming += 1
                else:
                    self.other_method(method, data, at + 11)
            at += size + 8
            if data[at - 1] != FRAME_END:
                raise BrokerClosed("a frame without its end")
        self._stamp_follows = stamp_follows
        if same_stamp:
            self.latencies.record(now - last_stamp, same_stamp)
        if received:
            self.received += received
            self.received_ns = now
        if len(acks):
            self.send(acks.getvalue())
        return at

    def ack_rest(self) -> None:
        """Acks what has come since the last full `ack_every`, so that a queue at rest ends up empty."""
        acks = BytesWriter()
        for channel in self.channels:
            if channel.pending:
                self._ack(channel, acks)
        if len(acks):
            self.send(acks.getvalue())

    def _ack(self, channel: ConsumeChannel, acks: BytesWriter) -> None:
        acks.write(channel.ack_head)
        write_i64_be(acks, channel.last_tag)
        acks.append(1 if self.ack_every > 1 else 0)
        acks.append(FRAME_END)
        channel.pending = 0


class Loop:
    """Turns the connections of one process. Linux's epoll where there is one, else poll."""

    def __init__(self, producers: list[Producer], consumers: list[Consumer]) -> None:
        self.producers = producers
        self.consumers = consumers
        self.links: dict[int, Link] = {}
        self.writing: set[int] = set()  # those watched for being writable
        self.poller = select.epoll() if hasattr(select, "epoll") else select.poll()
        self.timeouts_per_second = (
            1.0 if hasattr(select, "epoll") else 1000.0
        )  # epoll counts seconds, poll milliseconds
        for producer in producers:
            self._add(producer)
        for consumer in consumers:
            self._add(consumer)

    def _add(self, link: Link) -> None:
        self.links[link.fileno()] = link
        self.poller.register(link.fileno(), select.POLLIN)

    def run(self, until_ns: i64) -> None:
        """Publishes and consumes until the clock shows `until_ns`, or every producer of this process is done."""
        while True:
            now: i64 = time.monotonic_ns()
            if now >= until_ns:
                return
            wake: i64 = until_ns
            is_done: bool = len(self.producers) > 0
            for producer in self.producers:
                due: i64 = producer.publish(now)
                if due >= 0 and due < wake:
                    wake = due
                if producer.unsent:
                    self._watch(producer)
                is_done = is_done and producer.is_done()
            if is_done and not self.consumers:
                return
            timeout: float = 0.0 if wake <= now else float(wake - now) * 1e-9 * self.timeouts_per_second
            for fd, mask in self.poller.poll(timeout):
                self._serve(self.links[fd], fd, mask)

    def consume(self, until_ns: i64) -> bool:
        """Serves the consumers alone until the broker has answered each basic.consume; False if that took too long."""
        while True:
            waiting = False
            for consumer in self.consumers:
                waiting = waiting or consumer.consuming < len(consumer.channels)
            if not waiting:
                return True
            if time.monotonic_ns() >= until_ns:
                return False
            for fd, mask in self.poller.poll(0.1 * self.timeouts_per_second):
                self._serve(self.links[fd], fd, mask)

    def _serve(self, link: Link, fd: int, mask: int) -> None:
        if mask & select.POLLOUT:
            link.flush()
        if mask & ~select.POLLOUT:
            link.receive()
        self._watch(link)

    def _watch(self, link: Link) -> None:
        """Watches for writability exactly while output waits."""
        fd = link.fileno()
        if link.unsent:
            if fd not in self.writing:
                self.writing.add(fd)
                self.poller.modify(fd, select.POLLIN | select.POLLOUT)
        elif fd in self.writing:
            self.writing.remove(fd)
            self.poller.modify(fd, select.POLLIN)
