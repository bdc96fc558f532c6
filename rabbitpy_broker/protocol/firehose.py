"""The firehose: copies of the messages that are published and delivered in a vhost, to its exchange amq.rabbitmq.trace.

While a vhost is `tracing`, channels report each publish and each delivery here. A copy has the body of its message, and
headers that tell the rest: the message's properties as a table, the user, the connection, the queues. Names, types and
order of the headers are RabbitMQ's, since tracing plug-ins read them.

Copies are kept until the turn has drained its queues, and published then: a delivery happens inside a queue's method,
from which nothing may be published. What must stay true: a copy is never traced itself, neither its publish (it goes by
`VHost.publish`, which nobody traces) nor its delivery (it is known by its exchange).
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from rabbitpy_broker.message import Message
from rabbitpy_broker.protocol.turn import Turn
from rabbitpy_broker.queues.dead_letter import split_address
from rabbitpy_broker.queues.queue import Queue
from rabbitpy_broker.queues.queue_host import HostedQueue, TurnPublisher
from rabbitpy_broker.routing.routes import Route
from rabbitpy_broker.vhost import REPLY_TO, VHost
from rabbitpy_broker.wire.edit_header import blind_keys, raw_headers, shown_header, split_table, texts
from rabbitpy_broker.wire.properties import HEADERS, TIMESTAMP, property_end

TRACE: Final = "amq.rabbitmq.trace"
_OF_TRACE: Final = bytes([len(TRACE)]) + TRACE.encode("ascii")  # how the address of a copy begins
_REPLY_QUEUE: Final = REPLY_TO + "."
_KEY_BYTES: Final = 255

_PROPERTIES: Final[tuple[tuple[int, str], ...]] = (  # by their flags
    (0x8000, "content_type"),
    (0x4000, "content_encoding"),
    (0x2000, "headers"),
    (0x1000, "delivery_mode"),
    (0x0800, "priority"),
    (0x0400, "correlation_id"),
    (0x0200, "reply_to"),
    (0x0100, "expiration"),
    (0x0080, "message_id"),
    (0x0040, "timestamp"),
    (0x0020, "type"),
    (0x0010, "user_id"),
    (0x0008, "app_id"),
    (0x0004, "cluster_id"),
)
_OCTETS: Final = frozenset({"delivery_mode", "priority"})


class Tapped:
    """The channel that copies name."""

    def __init__(self, vhost: VHost, connection: str, number: i64, user: str) -> None:
        self.vhost = vhost
        self.connection = connection
        self.number = number
        self.user = user


class Firehose(TurnPublisher):
    """The firehose of one broker, which the copies call `node_name`."""

    def __init__(self, turn: Turn, node_name: str) -> None:
        self._turn = turn
        self._node = _text("node", node_name)
        self._copies: list[tuple[VHost, str, Message]] = []

    def published(self, tapped: Tapped, route: Route, message: Message, queues: list[HostedQueue]) -> None:
        """Makes a copy of a message that a client publishes; `queues` are those that it is routed to."""
        exchange = route.exchange_name
        keys = [route.routing_key]
        if route.copies is not None:
            keys.extend(route.copies)
        if exchange:
            routed = [queue.name for queue in queues]
        else:  # which names queues that need not exist, and none for a direct reply
            routed = sorted({name for name in keys if not name.startswith(_REPLY_QUEUE)})
        self._keep(
            tapped, f"publish.{exchange}", message, exchange, keys, b"", _texts("routed_queues", routed)
        )

    def delivered(self, tapped: Tapped, message: Message, queue: Queue, redelivered: bool) -> None:
        """Makes a copy of a message on its way to a client, by basic.deliver or basic.get-ok."""
        if message.address.startswith(_OF_TRACE) or queue.name.startswith(_REPLY_QUEUE):
            return
        exchange, keys = _published_to(message)
        flag = _number("redelivered", 1 if redelivered else 0)
        self._keep(tapped, f"deliver.{queue.name}", message, exchange, keys, flag, b"")

    def _keep(
        self,
        tapped: Tapped,
        routing_key: str,
        message: Message,
        exchange: str,
        keys: list[str],
        before_vhost: bytes,
        last: bytes,
    ) -> None:
        table = b"".join(
            (
                _text("exchange_name", exchange),
                _texts("routing_keys", keys),
                _table("properties", _properties(shown_header(message))),
                self._node,
                before_vhost,
                _text("vhost", tapped.vhost.name),
                _text("connection", tapped.connection),
                _number("channel", int(tapped.number)),
                _text("user", tapped.user),
                last,
            )
        )
        short = routing_key.encode("utf-8")[:_KEY_BYTES].decode("utf-8", "ignore")
        if not self._copies:
            self._turn.publish_due(self)
        self._copies.append((tapped.vhost, short, _copy(message, short, table)))

    def publish_now(self) -> None:
        copies = self._copies
        self._copies = []
        for vhost, routing_key, copy in copies:
            vhost.publish(copy, TRACE, [routing_key])


def _copy(message: Message, routing_key: str, table: bytes) -> Message:
    """A transient message with the body of another."""
    payload = message.content[4:16] + b"\x20\x00" + len(table).to_bytes(4, "big") + table
    header = len(payload).to_bytes(4, "big") + payload + b"\xce"
    key = routing_key.encode("utf-8")
    address = _OF_TRACE + bytes([len(key)]) + key
    return Message(address, header + message.content[message.header_end :], len(header), False)


def _published_to(message: Message) -> tuple[str, list[str]]:
    """The exchange and the routing keys that a message was published with: its own, those in CC and those in BCC."""
    exchange, key = split_address(message.address)
    headers = split_table(raw_headers(message.header_payload()))
    return exchange, [key, *texts(headers.get("CC", b"")), *blind_keys(message)]


def _properties(payload: bytes) -> bytes:
    """The properties of a header payload as the items of a table, the last one first."""
    flags = int.from_bytes(payload[12:14], "big")
    at = 14
    items: list[bytes] = []
    for bit, name in _PROPERTIES:
        if not flags & bit:
            continue
        end = int(property_end(payload, bit, at))
        if bit == HEADERS:
            items.append(_name(name) + b"F" + payload[at:end])
        elif name in _OCTETS or bit == TIMESTAMP:
            items.append(_number(name, int.from_bytes(payload[at:end], "big")))
        else:
            items.append(_name(name) + _long_string(payload[at + 1 : end]))
        at = end
    items.reverse()
    return b"".join(items)


def _name(name: str) -> bytes:
    return bytes([len(name)]) + name.encode("ascii")


def _text(name: str, value: str) -> bytes:
    return _name(name) + _long_string(value.encode("utf-8"))


def _texts(name: str, values: list[str]) -> bytes:
    body = b"".join([_long_string(value.encode("utf-8")) for value in values])
    return _name(name) + b"A" + len(body).to_bytes(4, "big") + body


def _table(name: str, items: bytes) -> bytes:
    return _name(name) + b"F" + len(items).to_bytes(4, "big") + items


def _long_string(value: bytes) -> bytes:
    return b"S" + len(value).to_bytes(4, "big") + value


def _number(name: str, value: int) -> bytes:
    """An integer of 32 bits, or of 64 where these are too few."""
    return _name(name) + (
        b"I" + value.to_bytes(4, "big") if value < 1 << 31 else b"l" + value.to_bytes(8, "big")
    )
