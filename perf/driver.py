"""What drives one AMQP connection: whole frames out of what arrives, output that waits for the socket, settled publishes.

The load generator (load/engine.py), the numbered messages (numbered.py), the delayed ones (delayed.py) and the peers of
perf.kill (kill/traffic.py) are Links: what they share is how bytes get in and out, what they differ in is what they make of a
frame. Whoever needs every frame's payload implements `take_frame`; whoever must spend next to nothing on a message
implements `parse` instead, and looks at the frames where they lie.

It is compiled together with the load generator's hot part (build.py), and runs uncompiled as well.

What must stay true:
- A Link's connection is open and its channels are set up before it comes here (load/client.py); nobody else reads its socket.
- Nothing is sent while something waits in `unsent`: bytes leave in the order in which they were handed over.
"""

from __future__ import annotations

import select
import socket
import time
from typing import Final

from librt.strings import read_i64_be
from mypy_extensions import i64, mypyc_attr

READ_BYTES: Final = 262144

FRAME_METHOD: Final = 1
FRAME_HEADER: Final = 2
FRAME_BODY: Final = 3
FRAME_END: Final = 0xCE

CONNECTION_CLOSE: Final = 10 << 16 | 50
CONNECTION_BLOCKED: Final = 10 << 16 | 60
CONNECTION_UNBLOCKED: Final = 10 << 16 | 61
CHANNEL_CLOSE: Final = 20 << 16 | 40
BASIC_QOS_OK: Final = 60 << 16 | 11
BASIC_CONSUME_OK: Final = 60 << 16 | 21
BASIC_CANCEL: Final = 60 << 16 | 30
BASIC_RETURN: Final = 60 << 16 | 50
BASIC_DELIVER: Final = 60 << 16 | 60
BASIC_ACK: Final = 60 << 16 | 80
BASIC_NACK: Final = 60 << 16 | 120


class BrokerClosed(Exception):
    """The broker closed a connection or a channel, or cancelled a consumer; the text says why."""


@mypyc_attr(allow_interpreted_subclasses=True)
class Link:
    """One open connection, whose socket never blocks."""

    def __init__(self, sock: socket.socket, unread: bytes, read_bytes: int = READ_BYTES) -> None:
        sock.setblocking(False)
        self.sock = sock
        self.unread = unread  # the start of a frame whose rest has not arrived
        self.unsent = memoryview(b"")
        self.read_bytes = read_bytes  # at most, by one `receive`

    def fileno(self) -> int:
        return self.sock.fileno()

    def receive(self) -> None:
        """Reads once and takes in every whole frame."""
        try:
            data = self.sock.recv(self.read_bytes)
        except BlockingIOError:
            return
        if data:
            self.take_in(data)
        else:
            self.ended()

    def take_in(self, data: bytes) -> None:
        """Takes in what has been read."""
        if self.unread:
            data = self.unread + data
        used: i64 = self.parse(data, time.monotonic_ns())
        self.unread = data[used:] if used < len(data) else b""

    def ended(self) -> None:
        """The broker has closed its end."""
        raise BrokerClosed("the broker closed the connection without a word")

    def parse(self, data: bytes, now: i64) -> i64:
        """Takes in the whole frames at the start of `data`, read at `now`; returns how many bytes they have."""
        end: i64 = len(data)
        at: i64 = 0
        while end - at >= 8:
            head: i64 = read_i64_be(data, at)
            size: i64 = (head >> 8) & 0xFFFFFFFF
            after: i64 = at + size + 8
            if after > end:
                break
            if data[after - 1] != FRAME_END:
                raise BrokerClosed("a frame without its end")
            self.take_frame(head >> 56, data[at + 7 : after - 1])
            at = after
        return at

    def take_frame(self, kind: i64, payload: bytes) -> None:
        raise NotImplementedError

    def send(self, data: bytes) -> None:
        """Sends, and keeps what the socket does not take for `flush`."""
        if self.unsent:
            self.unsent = memoryview(bytes(self.unsent) + data)
            return
        try:
            sent = self.sock.send(data)
        except BlockingIOError:
            sent = 0
        if sent < len(data):
            self.unsent = memoryview(data)[sent:]

    def flush(self) -> None:
        """Sends what waits, now that the socket is writable."""
        waiting = self.unsent
        try:
            sent = self.sock.send(waiting)
        except BlockingIOError:
            return
        self.unsent = waiting[sent:]

    def serve(self, seconds: float) -> bool:
        """Waits until something has arrived or what waits can leave, and sees to it; False: neither within the time."""
        poller = select.poll()
        poller.register(self.sock, select.POLLIN | (select.POLLOUT if self.unsent else 0))
        events = poller.poll(seconds * 1000)
        for _, mask in events:
            if mask & select.POLLOUT:
                self.flush()
            if mask & ~select.POLLOUT:
                self.receive()
        return bool(events)

    def other_method(self, method: i64, data: bytes, at: i64) -> None:
        """A method whose arguments start at `at` and that is none of those that its caller expects."""
        if method == CONNECTION_CLOSE or method == CHANNEL_CLOSE:
            size: i64 = data[at + 2]
            code = data[at] << 8 | data[at + 1]
            raise BrokerClosed(f"{code} {data[at + 3 : at + 3 + size].decode(errors='replace')}")
        if method == BASIC_CANCEL:
            raise BrokerClosed("the broker cancelled a consumer")


class Unsettled:
    """The publishes of a channel, and which of them the broker has settled. Whoever publishes calls `published`."""

    def __init__(self) -> None:
        self.publish_seqno: i64 = 0  # the last publish's
        self.settled_to: i64 = 0  # every publish up to here is settled
        self.settled_early: set[int] = set()  # settled ones beyond
        self.unsettled: i64 = 0

    def published(self, count: i64) -> None:
        self.publish_seqno += count
        self.unsettled += count

    def settle(self, publish_seqno: i64, multiple: bool) -> i64:
        """Returns how many publishes this newly settles."""
        before: i64 = self.unsettled
        if multiple:
            to: i64 = publish_seqno if publish_seqno else self.publish_seqno
            if to > self.settled_to:
                self.unsettled -= to - self.settled_to
                self.settled_to = to
                if self.settled_early:
                    known = {seqno for seqno in self.settled_early if seqno <= to}
                    self.unsettled += len(known)
                    self.settled_early -= known
        elif publish_seqno == self.settled_to + 1:
            self.settled_to = publish_seqno
            self.unsettled -= 1
        elif publish_seqno > self.settled_to and publish_seqno not in self.settled_early:
            self.settled_early.add(publish_seqno)
            self.unsettled -= 1
        if self.settled_early:
            while self.settled_to + 1 in self.settled_early:
                self.settled_to += 1
                self.settled_early.remove(self.settled_to)
        return before - self.unsettled
