"""Publishers and consumers on sockets that never block, all in one loop: fast enough to keep the store busy.

They write into the ledger what they do before they do it, and what they see when they see it. A connection ends when the
broker closes the socket: whatever it had sent until then has been read and counts.
"""

from __future__ import annotations

import random
import selectors
import struct
import time
import zlib
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from pamqp import commands, frame

from perf.driver import (
    BASIC_ACK,
    BASIC_DELIVER,
    BASIC_NACK,
    BASIC_QOS_OK,
    CHANNEL_CLOSE,
    CONNECTION_CLOSE,
    FRAME_BODY,
    FRAME_END,
    FRAME_HEADER,
    FRAME_METHOD,
    BrokerClosed,
    Link,
)
from perf.kill.ledger import Ledger, Message, Place, Violation
from perf.load.client import Address, Client

FRAME_HEAD = struct.Struct(">BHI")
FRAME_TAIL = bytes([FRAME_END])
CONNECTION_CLOSE_OK = frame.marshal(commands.Connection.CloseOk(), 0)
QOS = frame.marshal(commands.Basic.Qos(prefetch_count=0), 1)
# delivery-mode and message-id: all that the header of a message here has
PROPERTY_FLAGS = b"\x10\x80"
# The same, once a quorum queue has said how often it came back.
COUNTED_FLAGS = b"\x30\x80"
COUNT_HEADER = b"\x10x-delivery-countl"

POOL = random.Random(0).randbytes(1 << 20)
TIMEOUT = 30.0  # seconds for each answer until it publishes or consumes
OUTPUT_LIMIT = 1 << 18  # octets that wait for the socket; a publisher stops there


class Target(NamedTuple):
    exchange: str
    routing_key: str
    queues: tuple[str, ...]


class TrafficPeer(Link):
    """One connection with channel 1 open on it, taken over after the handshake."""

    def __init__(self, client: Client) -> None:
        super().__init__(*client.take())
        self.open = True
        self.stopping = False  # the broker may close the connection now
        self.answered = False  # the fence
        self.out = bytearray()  # what is to be handed over next

    @property
    def waiting(self) -> int:
        """The octets that have still to leave."""
        return len(self.out) + len(self.unsent)

    def close(self) -> None:
        self.open = False
        self.sock.close()

    def ended(self) -> None:
        self.close()

    def refill(self) -> None:
        """Puts into `out` what is to be sent next."""

    def method(self, method_id: int, payload: bytes) -> None:
        raise NotImplementedError

    def content(self, header: bytes, body: bytes) -> None:
        raise NotImplementedError

    def fence(self) -> None:
        """Asks something; `answered` tells when the broker has done all that was asked before."""
        self.answered = False
        self.out += QOS

    def write(self) -> None:
        if not self.waiting or not self.open:
            return
        try:
            if self.unsent:
                self.flush()
            if self.out and not self.unsent:
                handed_over = bytes(self.out)
                self.out.clear()
                self.send(handed_over)
        except (BrokenPipeError, ConnectionResetError):
            self.out.clear()  # what the broker said before is still to be read
            self.unsent = memoryview(b"")

    def read(self) -> None:
        try:
            self.receive()
        except ConnectionResetError:
            self.ended()
        except BrokerClosed as broken:
            raise Violation(str(broken)) from None

    def take_frame(self, kind: int, payload: bytes) -> None:
        if kind == FRAME_METHOD:
            method_id = int.from_bytes(payload[:4], "big")
            if method_id == BASIC_QOS_OK:
                self.answered = True
            elif method_id == CHANNEL_CLOSE or (method_id == CONNECTION_CLOSE and not self.stopping):
                raise Violation(f"the broker closed a channel or connection: {payload[4:]!r}")
            elif method_id == CONNECTION_CLOSE:
                self.out += CONNECTION_CLOSE_OK
            else:
                self.method(method_id, payload)
        elif kind == FRAME_HEADER:
            self._header, self._body = payload, b""
            self._body_size = int.from_bytes(payload[4:12], "big")
            if not self._body_size:
                self.content(self._header, b"")
        elif kind == FRAME_BODY:
            self._body += payload
            if len(self._body) == self._body_size:
                self.content(self._header, self._body)


class Publisher(TrafficPeer):
    """Publishes with confirms, at most `window` messages unconfirmed, to a random one of its targets each time.

    `transient`: the share of messages that need not survive.
    """

    def __init__(
        self,
        address: Address,
        name: str,
        ledger: Ledger,
        targets: Sequence[Target],
        window: int,
        seed: str,
        transient: float = 0.0,
        timeout: float = TIMEOUT,
    ) -> None:
        client = Client(address, f"kill {name}", timeout)
        client.open_channel(1)
        client.call(1, commands.Confirm.Select(), commands.Confirm.SelectOk)
        super().__init__(client)
        self.name = name
        self.ledger = ledger
        self.targets = [(target, publish_method(target)) for target in targets]
        self.window = window
        self.transient = transient
        self.random = random.Random(seed)
        self.unconfirmed: OrderedDict[int, Message] = OrderedDict()
        self.sent = 0

    def refill(self) -> None:
        while len(self.unconfirmed) < self.window and self.waiting < OUTPUT_LIMIT:
            target, method = self.random.choice(self.targets)
            self.publish(target, method, message_size(self.random), self.random.random() >= self.transient)

    def publish(self, target: Target, method: bytes, size: int, persistent: bool) -> None:
        start = self.random.randrange(len(POOL) - size)
        body = POOL[start : start + size]
        message = self.ledger.publish(self.name, target.queues, size, zlib.crc32(body), persistent)
        self.sent += 1
        self.unconfirmed[self.sent] = message
        message_id = message.id.encode()
        mode = b"\2" if persistent else b"\1"
        header = struct.pack(">HHQ", 60, 0, size) + PROPERTY_FLAGS + mode
        header += struct.pack(">B", len(message_id)) + message_id
        self.out += method
        self.out += FRAME_HEAD.pack(FRAME_HEADER, 1, len(header)) + header + FRAME_TAIL
        if size:
            self.out += FRAME_HEAD.pack(FRAME_BODY, 1, size) + body + FRAME_TAIL

    def method(self, method_id: int, payload: bytes) -> None:
        if method_id not in {BASIC_ACK, BASIC_NACK}:
            return  # connection.blocked: nothing changes, since what is sent now is not read
        settle = self.ledger.confirm if method_id == BASIC_ACK else self.ledger.nack
        tag, multiple = int.from_bytes(payload[4:12], "big"), payload[12] & 1
        if tag not in self.unconfirmed and not (multiple and self.unconfirmed):
            raise Violation(f"{self.name}: publish {tag} was settled twice, or never sent")
        while multiple and self.unconfirmed and next(iter(self.unconfirmed)) < tag:
            settle(self.unconfirmed.popitem(last=False)[1])
        if tag in self.unconfirmed:
            settle(self.unconfirmed.pop(tag))


class Consumer(TrafficPeer):
    """Consumes from one queue and settles in one of several ways (STYLES)."""

    def __init__(
        self,
        address: Address,
        queue: str,
        ledger: Ledger,
        style: str,
        prefetch: int,
        seed: str,
        timeout: float = TIMEOUT,
    ) -> None:
        client = Client(address, f"kill {queue}", timeout)
        client.open_channel(1)
        client.call(1, commands.Basic.Qos(prefetch_count=prefetch), commands.Basic.QosOk)
        client.call(1, commands.Basic.Consume(queue=queue), commands.Basic.ConsumeOk)
        self.queue = queue
        self.ledger = ledger
        self.limit = prefetch or 500
        self.random = random.Random(seed)
        self.style = style
        self.held: list[tuple[int, Place]] = []
        self.last: dict[str, int] = {}
        super().__init__(client)
        self.take_in(b"")  # what came with the answer to basic.consume

    def method(self, method_id: int, payload: bytes) -> None:
        if method_id == BASIC_DELIVER:
            at = 5 + payload[4]
            self._tag = int.from_bytes(payload[at : at + 8], "big")
            self._redelivered = bool(payload[at + 8] & 1)

    def content(self, header: bytes, body: bytes) -> None:
        if header[12:14] == COUNTED_FLAGS and header[18 : 18 + len(COUNT_HEADER)] == COUNT_HEADER:
            header = header[:12] + PROPERTY_FLAGS + header[18 + int.from_bytes(header[14:18], "big") :]
        persistent = header[14:15] == b"\2"
        if header[12:14] != PROPERTY_FLAGS or header[15] != len(header) - 16:
            raise Violation(f"changed in {self.queue}: properties {header[12:]!r}")
        message_id = header[16:].decode(errors="replace")
        place = self.ledger.deliver(
            self.queue, message_id, len(body), zlib.crc32(body), self._redelivered, self.last
        )
        if place.message.persistent != persistent:
            raise Violation(f"changed in {self.queue}: delivery mode\n{self.ledger.history(place.message)}")
        self.held.append((self._tag, place))

    def refill(self) -> None:
        """Settles what is due; called after each read."""
        if self.held and self.waiting < OUTPUT_LIMIT:
            STYLES[self.style](self)

    def ack(self, index: int) -> None:
        tag, place = self.held.pop(index)
        self.ledger.ack(self.queue, place)
        self.out += settling(0x0050, tag, 0)

    def requeue(self, index: int) -> None:
        tag, place = self.held.pop(index)
        self.ledger.requeue(self.queue, place)
        self.out += settling(0x0078, tag, 2)

    def ack_all(self) -> None:
        for _, place in self.held:
            self.ledger.ack(self.queue, place)
        self.out += settling(0x0050, self.held[-1][0], 1)
        self.held.clear()


def publish_method(target: Target) -> bytes:
    return frame.marshal(commands.Basic.Publish(0, target.exchange, target.routing_key), 1)


def settling(method_id: int, tag: int, bits: int) -> bytes:
    """basic.ack or basic.nack on channel 1."""
    return struct.pack(">BHIHHQBB", FRAME_METHOD, 1, 13, 60, method_id, tag, bits, FRAME_END)


def prompt(consumer: Consumer) -> None:
    while consumer.held:
        consumer.ack(0)


def in_batches(consumer: Consumer) -> None:
    if len(consumer.held) >= (consumer.limit + 1) // 2:
        consumer.ack_all()


def late(consumer: Consumer) -> None:
    """Holds all it may have, then acks half of it in any order."""
    if len(consumer.held) >= consumer.limit:
        for _ in range((len(consumer.held) + 1) // 2):
            consumer.ack(consumer.random.randrange(len(consumer.held)))


def with_requeues(consumer: Consumer) -> None:
    while consumer.held:
        if consumer.random.random() < 0.1:
            consumer.requeue(consumer.random.randrange(len(consumer.held)))
        else:
            consumer.ack(0)


def never(consumer: Consumer) -> None:
    """Leaves all that it gets unacked."""


STYLES = {
    "prompt": prompt,
    "batches": in_batches,
    "late": late,
    "requeues": with_requeues,
    "never": never,
}


def message_size(rng: random.Random) -> int:
    """On both sides of the size from which messages go to the message store (4,096 bytes); 0 and 100 KB too."""
    kind = rng.random()
    if kind < 0.05:
        return 0
    if kind < 0.75:
        return rng.randrange(20, 400)
    if kind < 0.92:
        return rng.randrange(3_900, 4_200)
    if kind < 0.99:
        return rng.randrange(4_200, 20_000)
    return 102_400


class Traffic:
    """The loop over all peers."""

    def __init__(self) -> None:
        self.peers: list[TrafficPeer] = []
        self._selector = selectors.DefaultSelector()

    def add(self, peer: TrafficPeer) -> None:
        self.peers.append(peer)
        self._selector.register(peer, selectors.EVENT_READ)

    def turn(self, timeout: float, refill: bool = True) -> None:
        """Sends what is due, and reads what is there within `timeout`."""
        for peer in self.peers:
            if not peer.open:
                raise Violation("the broker closed a connection without a word")
            if refill:
                peer.refill()
            peer.write()
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if peer.waiting else 0)
            if self._selector.get_key(peer).events != events:
                self._selector.modify(peer, events)
        for key, events in self._selector.select(timeout):
            if events & selectors.EVENT_READ:
                self._read(key.fileobj)  # type: ignore[arg-type]

    def _read(self, peer: TrafficPeer) -> None:
        fileno = peer.fileno()
        peer.read()
        if not peer.open:
            self._selector.unregister(fileno)

    def run(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            self.turn(min(left, 0.05))

    def settle(self, seconds: float = 30.0) -> None:
        """Publishing and settling stop; returns when the broker has done all that it was sent."""
        end = time.monotonic() + seconds
        for peer in self.peers:
            peer.fence()
        while not all(peer.answered for peer in self.peers):
            if time.monotonic() > end:
                raise Violation(f"the broker did not answer basic.qos within {seconds:.0f} s")
            self.turn(0.05, refill=False)

    def stopping(self) -> None:
        for peer in self.peers:
            peer.stopping = True

    def read_to_the_end(self, seconds: float = 60.0) -> None:
        """Reads what the broker had to say before it ended, until all sockets are closed."""
        end = time.monotonic() + seconds
        while left := [peer for peer in self.peers if peer.open]:
            if time.monotonic() > end:
                raise Violation("the broker has ended and its connections have not")
            for peer in left:
                peer.write()  # connection.close-ok
            for key, _ in self._selector.select(0.05):
                self._read(key.fileobj)  # type: ignore[arg-type]

    def close(self) -> None:
        for peer in self.peers:
            if peer.open:
                peer.close()
        self._selector.close()


def _arguments(kind: str, lazy: bool) -> dict[str, object]:
    """Quorum queues have no lazy mode, and never give up here; the one gives back to its end, the others to the front."""
    if kind == "quorum":
        return {"x-queue-type": kind, "x-delivery-limit": -1 if lazy else 1 << 30}
    return {"x-queue-mode": "lazy"} if lazy else {}


def topology(
    queues: Sequence[Target],
    lazy: Iterable[str],
    kind: str,
    fanout: str,
    streams: dict[str, dict[str, object]],
    address: Address,
) -> None:
    """Declares everything, durable; the queues of that type, the streams with their arguments."""
    lazy = set(lazy)
    with Client(address) as client:
        client.open_channel(1)
        client.call(1, commands.Exchange.Declare(exchange=fanout, exchange_type="fanout", durable=True),
                    commands.Exchange.DeclareOk)  # fmt: skip
        for target in queues:
            for queue in target.queues:
                arguments = streams.get(queue) or _arguments(kind, queue in lazy)
                client.call(1, commands.Queue.Declare(queue=queue, durable=True, arguments=arguments),
                            commands.Queue.DeclareOk)  # fmt: skip
                if target.exchange:
                    client.call(1, commands.Queue.Bind(queue=queue, exchange=target.exchange),
                                commands.Queue.BindOk)  # fmt: skip


def message_counts(queues: Iterable[str], address: Address) -> dict[str, int]:
    """Ready messages of each queue; Refused when a queue is not there."""
    with Client(address) as client:
        client.open_channel(1)
        return {
            queue: client.call(
                1, commands.Queue.Declare(queue=queue, passive=True), commands.Queue.DeclareOk
            ).message_count
            for queue in queues
        }
