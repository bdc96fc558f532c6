"""A client of a SansIOBroker in few words: declare, publish, get and settle, on one channel with confirms.

Messages carry raw bytes where a test wants bytes that no decent client would send.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from pamqp import header as pamqp_header
from pamqp.commands import Basic, Confirm, Exchange, Queue

from sans_io import BODY, HEADER, METHOD, Frame, Peer, SansIOBroker, content, method


class Got(NamedTuple):
    """A message as it came."""

    body: bytes
    properties: Any
    redelivered: bool
    tag: int
    exchange: str
    routing_key: str
    channel: int

    @property
    def deaths(self) -> list[tuple[str, str, int]]:
        """Queue, reason and count of each entry of x-death."""
        found = (self.properties.headers or {}).get("x-death", [])
        return [(one["queue"], one["reason"], one["count"]) for one in found]


def contents(frames: list[Frame]) -> list[Got]:
    """The messages in a list of frames."""
    found: list[Got] = []
    for at, one in enumerate(frames):
        if one.type != METHOD:
            continue
        command = one.command()
        if isinstance(command, (Basic.Deliver, Basic.GetOk)):
            head = frames[at + 1]
            assert head.type == HEADER
            decoded = pamqp_header.ContentHeader()
            decoded.unmarshal(head.payload)
            body = b"".join(part.payload for part in frames[at + 2 :] if part.type == BODY)[
                : decoded.body_size
            ]
            found.append(
                Got(
                    body,
                    decoded.properties,
                    command.redelivered,
                    command.delivery_tag,
                    command.exchange,
                    command.routing_key,
                    one.channel,
                )
            )
    return found


def raw_properties(
    headers: bytes = b"", *, expiration: str | None = None, priority: int | None = None
) -> bytes:
    """Flags and values of persistent messages; `headers` is a table without its length."""
    flags, values = 0x1000, b""
    if headers:
        flags |= 0x2000
        values += len(headers).to_bytes(4, "big") + headers
    values += b"\x02"
    if priority is not None:
        flags |= 0x0800
        values += bytes([priority])
    if expiration is not None:
        flags |= 0x0100
        values += bytes([len(expiration)]) + expiration.encode()
    return flags.to_bytes(2, "big") + values


class SmallClient:
    """Channel 1 of a connection of its own."""

    def __init__(self, broker: SansIOBroker) -> None:
        self.broker = broker
        self.peer: Peer = broker.connect()
        self.peer.open_channel(1)
        self.peer.call(1, Confirm.Select())
        self.delivered: list[Got] = []

    def declare(self, name: str, arguments: dict[str, Any] | None = None, *, durable: bool = True) -> str:
        answer = self.peer.call(1, Queue.Declare(queue=name, durable=durable, arguments=arguments or {}))
        assert isinstance(answer, Queue.DeclareOk), answer
        return name

    def bind(self, exchange: str, kind: str, queue: str, key: str = "") -> None:
        answer = self.peer.call(1, Exchange.Declare(exchange=exchange, exchange_type=kind, durable=True))
        assert isinstance(answer, Exchange.DeclareOk), answer
        self.peer.call(1, Queue.Bind(queue=queue, exchange=exchange, routing_key=key))

    def publish(
        self, queue: str, body: bytes = b"m", properties: bytes = b"\x10\x00\x02", *, exchange: str = ""
    ) -> bool:
        """Whether it was confirmed; False when it was refused."""
        command = Basic.Publish(exchange=exchange, routing_key=queue)
        frames = self.feed(method(1, command) + content(1, body, properties))
        answers = [one.command() for one in frames if one.type == METHOD and one.channel == 1]
        told = [one for one in answers if isinstance(one, (Basic.Ack, Basic.Nack))]
        assert len(told) == 1, f"a publish is settled once: {answers}"
        return isinstance(told[0], Basic.Ack)

    def feed(self, data: bytes) -> list[Frame]:
        frames = self.peer.feed(data)
        self.delivered.extend(one for one in contents(frames))
        return frames

    def get(self, queue: str, *, no_ack: bool = False) -> Got | None:
        found = contents(self.peer.feed(method(1, Basic.Get(queue=queue, no_ack=no_ack))))
        return found[0] if found else None

    def get_all(self, queue: str) -> list[Got]:
        """Everything that is ready, acked."""
        found: list[Got] = []
        while (one := self.get(queue, no_ack=True)) is not None:
            found.append(one)
        return found

    def bodies(self, queue: str) -> list[bytes]:
        return [one.body for one in self.get_all(queue)]

    def reject(self, got: Got, *, requeue: bool = False) -> None:
        self.feed(method(1, Basic.Reject(delivery_tag=got.tag, requeue=requeue)))

    def ack(self, got: Got) -> None:
        self.feed(method(1, Basic.Ack(delivery_tag=got.tag)))

    def ready(self, queue: str) -> int:
        """How many messages are ready."""
        return int(self.broker.vhost.queues[queue].backing.len)
