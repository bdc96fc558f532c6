"""One client connection: bytes in, calls to channels, bytes out. No IO and no event loop.

`receive_data` takes whatever the socket gave. Whole publishes and acks, nearly all of the traffic, are taken in place;
every other frame goes the long way, through the assembler or `decode_method`. The life of a connection is the table in
`handshake.py`; this file only follows it.

  closing   connection.close was sent: everything but close and close-ok is ignored
  closed    nothing is read any more; the socket goes at once, or when the timer is over

The connection knows no clock. It has one timer, its transport's, and `tick` says what it was for: in the handshake its end,
later a look at the pulse (`pulse.py`), at the end how long the peer has to answer.

What must stay true: a frame is acted on only when it has arrived whole and ends with 0xCE; no payload may be larger
than `frame_limit`; an error ends one channel or this connection, never the broker; `terminate` runs once, and after it
nothing of the connection is left in any queue.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from librt.strings import BytesWriter, read_i16_be, read_i32_be, read_i64_be
from mypy_extensions import i64, mypyc_attr

from rabbitpy_broker.errors import (
    ACCESS_REFUSED,
    CHANNEL_ERROR,
    COMMAND_INVALID,
    FRAME_ERROR,
    INTERNAL_ERROR,
    NOT_ALLOWED,
    NOT_IMPLEMENTED,
    SYNTAX_ERROR,
    UNEXPECTED_FRAME,
    AmqpError,
    ChannelClosed,
    ConnectionClosed,
    FramingLost,
)
from rabbitpy_broker.events.journal import Origin
from rabbitpy_broker.message import Message
from rabbitpy_broker.protocol import (
    basic_methods,
    channel_methods,
    confirm_methods,
    exchange_methods,
    handshake,
    queue_methods,
    tx_methods,
)
from rabbitpy_broker.protocol.channel import ACK, REJECT, REQUEUE, Channel
from rabbitpy_broker.protocol.message_rules import check_properties
from rabbitpy_broker.protocol.node import Node
from rabbitpy_broker.protocol.pulse import SILENT, STUCK, Pulse
from rabbitpy_broker.protocol.turn import Writer
from rabbitpy_broker.queues.queue import Queue
from rabbitpy_broker.routing.exchange import Exchange
from rabbitpy_broker.users import User
from rabbitpy_broker.vhost import Route, VHost
from rabbitpy_broker.wire import assembler, methods
from rabbitpy_broker.wire.frame_text import frame_text, octets_text
from rabbitpy_broker.wire.properties import MALFORMED, PERSISTENT, TO_CHECK, check_header

METHOD_FRAME: Final[i64] = 1
HEADER_FRAME: Final[i64] = 2
BODY_FRAME: Final[i64] = 3
HEARTBEAT_FRAME: Final[i64] = 8
FRAME_END: Final[i64] = 0xCE

BASIC_PUBLISH: Final[i64] = 0x003C0028
BASIC_ACK: Final[i64] = 0x003C0050
BASIC_NACK: Final[i64] = 0x003C0078
CHANNEL_OPEN: Final = 0x0014000A
CHANNEL_CLOSE: Final = 0x00140028
CHANNEL_CLOSE_OK: Final = 0x00140029
ACCESS_REQUEST: Final = 0x001E000A
ACCESS_REQUEST_OK: Final = b"\x00\x00\x00\x06\x00\x1e\x00\x0b\x00\x01\xce"  # from the size on; ticket 1
CONNECTION_CLOSE: Final = 0x000A0032
CONNECTION_CLOSE_OK: Final = 0x000A0033

MAX_ROUTES: Final = 4_096
HELD_OUTPUT: Final[i64] = 8_388_608  # bytes
NOTHING: Final[i64] = 0x7FFF_FFFF_FFFF_FFFF  # of these many bytes not one frame is taken

# RabbitMQ's: how long a peer may take to answer connection.close, or to hang up when it was answered; and how long a stranger
# waits for the end of the connection, so that guessing passwords takes time.
CLOSE_TIMEOUT_S: Final = 30.0
SILENT_CLOSE_DELAY_S: Final = 3.0
GIVE_UP: Final = -1.0
HEARTBEAT: Final = b"\x08\x00\x00\x00\x00\x00\x00\xce"

HANDLERS: Final[dict[str, Callable[[Channel, Any], None]]] = {
    **channel_methods.HANDLERS,
    **exchange_methods.HANDLERS,
    **queue_methods.HANDLERS,
    **basic_methods.HANDLERS,
    **confirm_methods.HANDLERS,
    **tx_methods.HANDLERS,
}


@mypyc_attr(allow_interpreted_subclasses=True)
class Transport:
    """What a connection needs of its socket; net/transport.py implements it."""

    def write(self, data: bytes) -> None:
        """Sends, or keeps to be sent."""
        raise NotImplementedError

    def close(self) -> None:
        """Sends what was written, then closes."""
        raise NotImplementedError

    def reading_wanted(self, wanted: bool) -> None:
        """False: read nothing until it is True again."""
        raise NotImplementedError

    def unsent(self) -> int:
        """Bytes that were written and that the socket has not taken yet."""
        raise NotImplementedError

    def set_timer(self, seconds: float) -> None:
        """Has the connection's `tick` called in `seconds`, or a little later, and not before: there is one timer."""
        raise NotImplementedError


class LostTransport(Transport):
    """The transport of a connection whose socket is gone.

    The real one and its connection hold each other; this breaks the cycle, for a broker that runs without the cyclic
    collector.
    """

    def write(self, data: bytes) -> None:
        pass

    def close(self) -> None:
        pass

    def reading_wanted(self, wanted: bool) -> None:
        pass

    def unsent(self) -> int:
        return 0

    def set_timer(self, seconds: float) -> None:
        pass


LOST: Final[Transport] = LostTransport()


class Connection(Writer):
    """`peer_host` and `name` are the peer's address and "peer -> our address"; `loopback` says that it is this machine."""

    def __init__(self, node: Node, transport: Transport, name: str, peer_host: str, loopback: bool, tls: bool) -> None:
        super().__init__(node.turn)
        self.node = node
        self.transport = transport
        self.name = name
        self.peer_host = peer_host
        self.loopback = loopback
        self.tls = tls
        node.next_connection_id += 1
        self.id: i64 = node.next_connection_id
        self.log: Any = node.log.bind(connection=name)
        self.state = "header"
        self.closing = False
        self.closed = False
        self.lost = False  # the socket is gone
        self.close_reason = ""
        self.user: User | None = None
        self.vhost: VHost | None = None
        self.mechanism = ""
        self.client_properties: dict[str, object] = {}
        self.capabilities: dict[str, object] = {}
        self.client_name = ""
        self.channel_max: i64 = node.limits.channel_max
        self.frame_max: i64 = node.limits.frame_max  # 0: unlimited, for what we send
        self.frame_limit: i64 = node.limits.initial_frame_max  # for what we take
        self.heartbeat: i64 = 0
        self.channels: dict[int, Channel] = {}
        self.event_id: i64 = 0  # in the event journal, from its first channel on
        self._openings: i64 = 0  # channels that have an Origin
        # input
        self._pending: list[bytes] = []
        self._pending_size: i64 = 0
        self._needed: i64 = 8
        self._next: i64 = 0  # where to go on after a channel error,
        self._error_number: i64 = 0  # and the channel
        self.error_index: i64 = 0  # and method that it came from
        self._last_number: i64 = -1
        self._last_channel: Channel | None = None
        self._routes: dict[bytes, Route] = {}
        self._last_route: Route | None = None
        self._user_version = 0
        self.received_bytes: i64 = 0
        self._pulse = Pulse(0, 0.0)
        # output
        self._output_mark: i64 = node.limits.output_high_water_mark
        self.writable = True
        self.holding_input = False
        self.starved = False  # a consumer was parked because the output is full
        self.sent_bytes: i64 = 0
        self._unsent: i64 = 0  # bytes written while the transport could not keep up
        self.close_after_flush = False
        self.awaiting_commit = False
        # pressure
        self.flow_mark: i64 = node.limits.flow_high_water_mark
        self.congested: Queue | None = None  # a queue that this connection filled beyond flow_mark
        self.alarmed = node.blocked != ""  # the next content blocks this connection
        self.blocked = False
        self.reading = True  # False while the transport reads nothing, for whatever reason

    # -- input ----------------------------------------------------------------------------------------------------

    def receive_data(self, data: bytes) -> None:
        """Takes bytes from the socket. Never raises for what the peer sent: the answer is in the output."""
        if self.closed:
            return
        size: i64 = len(data)
        self.received_bytes += size
        if self.node.events is not None:
            self.node.events.stamp()
        user = self.user
        if user is not None and user.version != self._user_version:
            self._user_version = user.version
            self._routes = {}  # looked up under other permissions
            self._last_route = None
        if self._pending_size > 0 or self.blocked:
            self._pending.append(data)
            self._pending_size += size
            if self._pending_size < self._needed:
                return
            data = b"".join(self._pending)
            self._pending = []
            self._pending_size = 0
            size = len(data)
        pos: i64 = 0
        while True:
            try:
                pos = self._read_frames(data, pos, size)
                break
            # One name for each: compiled code gives a name the type of its first use.
            except ChannelClosed as soft:
                pos = self._next
                self._close_channel(self.channels[self._error_number], soft)
            except ConnectionClosed as hard:
                pos = self._next  # the peer's close-ok may stand behind it
                self.fail(hard)
            except Exception as fault:  # a fault of ours: this connection pays, the broker goes on
                self.log.exception("internal error", error=repr(fault))
                pos = self._next = size
                self.fail(ConnectionClosed(INTERNAL_ERROR, "internal error"))
        if pos < size and not self.closed:
            rest = data[pos:] if pos > 0 else data
            self._pending = [rest]
            self._pending_size = size - pos

    def _read_frames(self, data: bytes, pos: i64, size: i64) -> i64:
        """Acts on every whole frame in data[pos:]; returns where the first that is not whole begins."""
        if self.state == "header":
            if size - pos < 8:
                self._needed = 8
                return pos
            handshake.protocol_header(self, data[pos : pos + 8])
            pos += 8
        while size - pos >= 7:
            if self.closed:
                return size
            if len(self.out) + self._unsent > HELD_OUTPUT:
                self._hold_input()
                return pos
            kind: i64 = i64(data[pos])
            number: i64 = i64(read_i16_be(data, pos + 1)) & 0xFFFF
            length: i64 = i64(read_i32_be(data, pos + 3)) & 0xFFFFFFFF
            if length > self.frame_limit:
                self.error_index = 0
                self._next = size  # where the next frame begins is not known
                raise FramingLost(
                    FRAME_ERROR,
                    f"type {kind}, all octets = <<>>: {{frame_too_large,{length},{self.frame_limit - 8}}}",
                )
            end: i64 = pos + length + 8
            if end > size:
                self._needed = end - pos
                return pos
            if i64(data[end - 1]) != FRAME_END:
                self.error_index = 0
                self._next = size
                text = frame_text(kind, data[pos + 7 : end - 1])
                raise FramingLost(FRAME_ERROR, f"{text}: {{invalid_frame_end_marker,{data[end - 1]}}}")
            if kind == METHOD_FRAME and number > 0:
                if number != self._last_number:
                    self._last_channel = self.channels.get(number)
                    self._last_number = number
                channel = self._last_channel
                if channel is not None and length >= 4 and not channel.closing and not self.closing:
                    method: i64 = i64(read_i32_be(data, pos + 7))
                    if method == BASIC_PUBLISH:
                        after = self._take_publish(channel, data, pos, end, size)
                        if after > 0:
                            pos = after
                            continue
                    elif method == BASIC_ACK and length == 13 and channel.assembler.state == assembler.METHOD:
                        self._next = end
                        self._error_number = number
                        self.error_index = BASIC_ACK
                        channel.settle(read_i64_be(data, pos + 11), i64(data[pos + 19]) & 1 == 1, ACK)
                        pos = end
                        continue
            self._next = end
            self.error_index = 0
            self._take_frame(kind, number, data[pos + 7 : end - 1])
            pos = end
            if self.blocked:
                self._needed = NOTHING
                return pos
        self._needed = 7
        return pos

    def _hold_input(self) -> None:
        """So much was asked for that the answers are too many for a turn: the rest of the input waits for the next.

        It waits longer when the peer does not read. (Deliveries stop much earlier, see `output_is_full`.)
        """
        self._needed = 0
        self.holding_input = True
        self.transport.reading_wanted(False)

    def go_on(self) -> None:
        """Takes input that was held, once the transport has taken the output and no alarm is on."""
        if self.blocked:
            return
        if self.holding_input:
            if not self.writable or self.output_marked:
                return
            self.holding_input = False
            self.transport.reading_wanted(True)
        self.receive_data(b"")

    def _take_publish(self, channel: Channel, data: bytes, pos: i64, end: i64, size: i64) -> i64:
        """Takes a publish whose method, header and one body frame lie whole in data.

        Returns the position behind it, or 0 when it is not of that simple kind; then nothing was done, and the long
        way finds out what it is.
        """
        if channel.assembler.state != assembler.METHOD or size - end < 22 or end - pos < 18 or self.alarmed:
            return 0
        number = channel.number
        bits: i64 = i64(data[end - 2])
        if bits > 1 or i64(data[end]) != HEADER_FRAME or (i64(read_i16_be(data, end + 1)) & 0xFFFF) != number:
            return 0
        length: i64 = i64(read_i32_be(data, end + 3))
        header_end: i64 = end + length + 8
        limit = self.frame_limit
        if length < 14 or length > limit - 8 or header_end > size or i64(data[header_end - 1]) != FRAME_END:
            return 0
        if i64(read_i32_be(data, end + 7)) != 0x003C0000:
            return 0
        body_size: i64 = read_i64_be(data, end + 11)
        after = header_end
        if body_size != 0:
            if body_size < 0 or size - header_end < 8 or body_size > limit - 8 or i64(data[header_end]) != BODY_FRAME:
                return 0
            if i64(read_i32_be(data, header_end + 3)) != body_size:
                return 0
            if (i64(read_i16_be(data, header_end + 1)) & 0xFFFF) != number:
                return 0
            after = header_end + body_size + 8
            if after > size or i64(data[after - 1]) != FRAME_END or body_size > self.node.limits.max_message_size:
                return 0
        mode = check_header(data, end + 7, header_end - 1)
        if mode == MALFORMED:
            return 0
        self._next = after
        self._error_number = number
        self.error_index = BASIC_PUBLISH
        address = data[pos + 13 : end - 2]
        route = self._last_route
        if route is None or route.address != address or not route.valid:
            route = self._routes.get(address)
            if route is None or not route.valid:
                route = self._route(address)
            self._last_route = route
        message = Message(route.address, data[end + 3 : after], header_end - end - 3, mode & PERSISTENT != 0)
        if mode & TO_CHECK:
            self._publish_checked(channel, route, message, bits == 1)
            return after
        channel.publish(route, message, bits == 1)
        return after

    def _publish_checked(self, channel: Channel, route: Route, message: Message, mandatory: bool) -> None:
        """Publishes a message that has properties with rules."""
        copies: list[str] = []
        message = check_properties(message, self._logged_in(), channel.reply_queue, copies)
        if copies:
            if route.exchange is not None:
                for routing_key in copies:
                    self.check_topic_permission("write", route.exchange, routing_key)
            route = Route(route.address, route.exchange_name, route.routing_key, route.exchange)
            route.copies = copies
            route.cacheable = False
        channel.publish(route, message, mandatory)

    def _route(self, address: bytes) -> Route:
        """Looks a route up the long way: names, permission, exchange."""
        vhost = self.vhost
        assert vhost is not None, "kept by: handshake, there are channels only once it is open"
        split: i64 = 1 + i64(address[0]) if address else 0
        if split == 0 or split >= len(address) or split + 1 + i64(address[split]) != len(address):
            raise ConnectionClosed(SYNTAX_ERROR, "malformed basic.publish")
        try:
            exchange_name = address[1:split].decode("utf-8")
            address[split + 1 :].decode("utf-8")
        except UnicodeDecodeError:
            raise ConnectionClosed(SYNTAX_ERROR, "exchange or routing key is not UTF-8") from None
        self.check_permission("write", "exchange", exchange_name)
        route = vhost.route(address)
        if route.exchange is not None and route.exchange.internal:
            raise ChannelClosed(
                ACCESS_REFUSED, f"cannot publish to internal exchange '{exchange_name}' in vhost '{vhost.name}'"
            )
        if route.exchange is not None:
            self.check_topic_permission("write", route.exchange, route.routing_key)
        if len(self._routes) >= MAX_ROUTES:
            self._routes = {}
        self._routes[address] = route
        return route

    # -- frames, the long way -------------------------------------------------------------------------------------

    def _take_frame(self, kind: i64, number: i64, payload: bytes) -> None:
        """Acts on one whole frame."""
        size: i64 = len(payload)
        if (
            (kind == METHOD_FRAME and size < 4)
            or (kind == HEADER_FRAME and size < 14)
            or (kind == HEARTBEAT_FRAME and size > 0)
            or (kind > BODY_FRAME and kind != HEARTBEAT_FRAME)
            or kind == 0
        ):
            raise ConnectionClosed(FRAME_ERROR, frame_text(kind, payload) + ": unknown_frame")
        if number == 0:
            self._take_connection_frame(kind, payload)
            return
        if self.closing:
            return
        if self.state != "running":
            raise ConnectionClosed(UNEXPECTED_FRAME, frame_text(kind, payload))
        self._error_number = number
        if kind == HEARTBEAT_FRAME:
            raise ConnectionClosed(UNEXPECTED_FRAME, frame_text(kind, payload))
        channel = self.channels.get(number)
        if channel is not None and channel.closing:
            self._take_while_closing(channel, kind, payload)
        elif kind == METHOD_FRAME:
            self._take_method(channel, number, payload)
        elif channel is None:
            raise ConnectionClosed(UNEXPECTED_FRAME, "expected method frame, got non method frame instead")
        else:
            self._take_content(channel, kind, payload)

    def _take_content(self, channel: Channel, kind: i64, payload: bytes) -> None:
        if channel.assembler.state != assembler.METHOD:
            self.error_index = BASIC_PUBLISH
        if kind == HEADER_FRAME:
            message = channel.assembler.header(payload, self.node.limits.max_message_size)
        else:
            message = channel.assembler.body(payload)
        if message is not None:
            self._publish_assembled(channel, message)
        if self.alarmed:
            self._block()

    def _publish_assembled(self, channel: Channel, message: Message) -> None:
        flags = channel.assembler.flags
        if flags & 2:
            raise ConnectionClosed(NOT_IMPLEMENTED, "immediate=true")
        route = self._routes.get(message.address)
        if route is None or not route.valid:
            route = self._route(message.address)
        message.address = route.address
        if channel.assembler.to_check:
            self._publish_checked(channel, route, message, flags & 1 == 1)
            return
        channel.publish(route, message, flags & 1 == 1)

    def _take_while_closing(self, channel: Channel, kind: i64, payload: bytes) -> None:
        """A channel that we have closed listens for close and close-ok only."""
        if kind != METHOD_FRAME or len(payload) < 4:
            return
        index = int.from_bytes(payload[:4], "big")
        if index == CHANNEL_CLOSE_OK:
            self._drop_channel(channel)
        elif index == CHANNEL_CLOSE:
            self._send(channel.number, methods.make("Channel.CloseOk"))

    def _take_method(self, channel: Channel | None, number: i64, payload: bytes) -> None:
        index = int.from_bytes(payload[:4], "big")
        if channel is None:
            self._open_channel(number, index, payload)
            return
        if channel.assembler.state != assembler.METHOD:
            self.error_index = BASIC_PUBLISH
        channel.assembler.expect_method()
        self.error_index = index
        if index == BASIC_PUBLISH:
            if len(payload) < 9:
                raise ConnectionClosed(SYNTAX_ERROR, "malformed basic.publish")
            channel.assembler.publish(payload[6:-1], i64(payload[-1]))
            return
        if index == ACCESS_REQUEST:  # of AMQP 0-8; clients of that age still ask, and take any answer
            self.out.write(b"\x01" + int(number).to_bytes(2, "big") + ACCESS_REQUEST_OK)
            self.output_due()
            return
        method = self._decode(index, payload)
        name: str = method.name
        if name == "Basic.Ack":
            channel.settle(_signed(method.delivery_tag), method.multiple, ACK)
        elif name == "Basic.Nack":
            channel.settle(_signed(method.delivery_tag), method.multiple, REQUEUE if method.requeue else REJECT)
        elif name == "Basic.Reject":
            channel.settle(_signed(method.delivery_tag), False, REQUEUE if method.requeue else REJECT)
        elif name == "Channel.Close":
            self._close_by_client(channel, method)
        else:
            handler = HANDLERS.get(name)
            if handler is None:
                raise ConnectionClosed(COMMAND_INVALID, "unimplemented method")
            try:
                handler(channel, method)
            finally:
                self._note_commit()

    def _note_commit(self) -> None:
        """What was just done may have changed definitions: then its answer waits for the commit."""
        changes = self.node.definition_changes()
        if changes != self.node.changes_seen:
            self.node.changes_seen = changes
            self.awaiting_commit = True
            self.turn.commit_due = True
            self.output_due()

    def _decode(self, index: int, payload: bytes) -> Any:
        self.error_index = index
        try:
            return methods.decode_method(payload)
        except KeyError:
            raise ConnectionClosed(COMMAND_INVALID, f"unknown method {index >> 16}.{index & 0xFFFF}") from None
        except UnicodeDecodeError:
            self.error_index = 0
            raise ConnectionClosed(FRAME_ERROR, "Malformed UTF-8 in shortstr") from None
        except ValueError:
            raise ConnectionClosed(FRAME_ERROR, f"cannot decode {octets_text(payload[4:])}") from None

    def _take_connection_frame(self, kind: i64, payload: bytes) -> None:
        if kind == HEARTBEAT_FRAME:
            return
        if self.closing and kind != METHOD_FRAME:
            return
        if kind != METHOD_FRAME:
            raise ConnectionClosed(UNEXPECTED_FRAME, frame_text(kind, payload))
        index = int.from_bytes(payload[:4], "big")
        if self.closing and index != CONNECTION_CLOSE and index != CONNECTION_CLOSE_OK:
            return
        handshake.take_method(self, self._decode(index, payload))

    # -- channels -------------------------------------------------------------------------------------------------

    def _open_channel(self, number: i64, index: int, payload: bytes) -> None:
        if index != CHANNEL_OPEN:
            self._decode(index, payload)
            raise ConnectionClosed(CHANNEL_ERROR, "expected 'channel.open'")
        limit = self.channel_max
        if limit > 0 and len(self.channels) >= limit:
            raise ConnectionClosed(
                NOT_ALLOWED,
                f"number of channels opened ({len(self.channels)}) has reached the negotiated channel_max ({limit})",
            )
        user = self._logged_in()
        if 0 <= user.max_channels <= user.channels:
            raise ConnectionClosed(
                NOT_ALLOWED,
                f"number of channels opened for user '{user.name}' has reached the maximum allowed user limit of "
                f"({user.max_channels})",
            )
        vhost = self.vhost
        assert vhost is not None, "kept by: handshake, the state is running"
        self.channels[number] = Channel(self, vhost, number)
        user.channels += 1
        self._last_number = -1
        self.node.totals.channels_opened += 1
        self.log.debug("channel opened", channel=number)
        self._send(number, methods.make("Channel.OpenOk", channel_id=""))

    def new_origin(self, number: i64) -> Origin | None:
        """The channel that is being opened, as the event journal is to know it; None when there is no journal."""
        events = self.node.events
        vhost = self.vhost
        user = self.user
        if events is None or vhost is None or user is None:
            return None
        if self.event_id == 0:
            self.event_id = events.connection(vhost.name, self.name, user.name)
        self._openings += 1
        return Origin(events, self.event_id, number, self._openings)

    def _close_by_client(self, channel: Channel, method: Any) -> None:
        channel.close()
        self._note_commit()
        self._drop_channel(channel)
        self.log.debug("channel closed", channel=channel.number, code=method.reply_code, reason=method.reply_text)
        self._send(channel.number, methods.make("Channel.CloseOk"))

    def _drop_channel(self, channel: Channel) -> None:
        if self.channels.pop(channel.number, None) is not None:
            self._logged_in().channels -= 1
        self._last_number = -1
        self._last_channel = None
        if not channel.closing:
            channel.close()

    def _close_channel(self, channel: Channel, error: ChannelClosed) -> None:
        """A soft error: tells the client and waits for its close-ok."""
        channel.close()
        self._note_commit()
        text = error.reply_text()
        self.log.warning("channel closed", channel=channel.number, code=error.code, reason=text)
        close = methods.make("Channel.Close")
        _fill_close(close, error, self.error_index)
        self._send(channel.number, close)

    def fail_channel(self, channel: Channel, error: ChannelClosed) -> None:
        """A soft error that no frame has caused."""
        self.error_index = 0
        self._close_channel(channel, error)

    def notify_cancelled(self, channel: Channel, tag: str) -> None:
        """basic.cancel to clients that know it: the consumer's queue is gone."""
        if self.capabilities.get("consumer_cancel_notify") is True:
            cancel = methods.make("Basic.Cancel")
            cancel.consumer_tag = tag
            cancel.nowait = True
            self._send(channel.number, cancel)

    def _logged_in(self) -> User:
        user = self.user
        assert user is not None, "kept by: handshake, there are channels only once it is open"
        return user

    # -- permissions ----------------------------------------------------------------------------------------------

    def check_permission(self, operation: str, kind: str, name: str) -> None:
        """Raises 403 when the user may not `operation` (configure, write, read) the queue or exchange."""
        user, vhost = self._logged_in(), self.vhost
        assert vhost is not None, "kept by: handshake, the state is running"
        permission = user.permissions.get(vhost.name)
        if permission is None or not permission.may(operation, name):
            shown = name if name else "amq.default"
            raise ChannelClosed(
                ACCESS_REFUSED, f"access to {kind} '{shown}' in vhost '{vhost.name}' refused for user '{user.name}'"
            )

    def check_topic_permission(self, operation: str, exchange: Exchange, key: str) -> None:
        """Raises 403 when the user may not publish (write) or bind (read) with this key at a topic exchange."""
        user, vhost = self._logged_in(), self.vhost
        assert vhost is not None, "kept by: handshake, the state is running"
        permissions = user.topic_permissions.get(vhost.name)
        if not permissions or exchange.type != "topic":
            return
        permission = permissions.get(exchange.name)
        if permission is not None and not permission.may(operation, key):
            raise ChannelClosed(
                ACCESS_REFUSED,
                f"access to topic '{key}' in exchange '{exchange.name}' in vhost '{vhost.name}' refused "
                f"for user '{user.name}'",
            )

    # -- output ---------------------------------------------------------------------------------------------------

    def output_is_full(self) -> bool:
        """True when no more should be delivered to this connection in this turn."""
        return not self.writable or len(self.out) >= self._output_mark

    def flush(self) -> None:
        self.output_marked = False
        self.awaiting_commit = False
        if self.lost:
            self.out = BytesWriter()
            return
        size: i64 = len(self.out)
        if size > 0:
            data = self.out.getvalue()
            self.out = BytesWriter()
            self.sent_bytes += size
            self.transport.write(data)
            if not self.writable:
                self._unsent += size
        if self.close_after_flush:
            self.transport.close()
            return
        if self.starved and self.writable:
            self._wake()
        if self.holding_input:
            self.turn.input_due(self)

    def _wake(self) -> None:
        self.starved = False
        for channel in self.channels.values():
            channel.wake_consumers()

    def writing_resumed(self, writable: bool) -> None:
        """The transport's buffer went over its high-water mark (False) or under its low one (True)."""
        self.writable = writable
        if writable:
            self._unsent = 0
        elif self.state == "running" and not self.closing:
            seconds = self._pulse.hurry_s()
            if seconds > 0.0:
                self.transport.set_timer(seconds)
        if writable and self.starved:
            self._wake()
        if writable and self.holding_input:
            self.turn.input_due(self)

    def _send(self, number: i64, method: Any) -> None:
        self.out.write(methods.encode_method(number, method))
        self.output_due()

    def send(self, method: Any) -> None:
        """Writes a method frame on channel 0."""
        self._send(0, method)

    def commit_failed(self) -> None:
        if not self.awaiting_commit or self.lost:
            return
        self.awaiting_commit = False
        self.out = BytesWriter()
        error = ConnectionClosed(INTERNAL_ERROR, "definitions could not be written")
        if self.closed:
            self.close_after_flush = True
        elif self.closing:
            self._send_close(error, 0)
        else:
            self.fail(error)

    # -- pressure -------------------------------------------------------------------------------------------------

    def alarm_changed(self) -> None:
        """`node.blocked` has changed."""
        self.alarmed = self.node.blocked != ""
        if self.blocked and not self.alarmed:
            self._unblock()
            if self.capabilities.get("connection.blocked") is True:
                self.send(methods.make("Connection.Unblocked"))

    def _block(self) -> None:
        """Takes nothing more from a connection that publishes while an alarm is on.

        As in RabbitMQ the frame at which that shows is the last one: between the header and the body of a message, or between
        two pieces of a body. Only a message without a body is still published.
        """
        if self.blocked or self.closing or self.closed:
            return
        self.blocked = True
        if self.capabilities.get("connection.blocked") is True:
            self.send(methods.make("Connection.Blocked", reason=self.node.blocked))
        self.transport.reading_wanted(False)

    def _unblock(self) -> None:
        if self.blocked:
            self.blocked = False
            self._needed = 0
            self.turn.input_due(self)
            if not self.holding_input:
                self.transport.reading_wanted(True)

    # -- the timer ------------------------------------------------------------------------------------------------

    def opened(self) -> None:
        """The handshake is over: from here on there are heartbeats."""
        self._pulse = Pulse(self.heartbeat, self.node.limits.send_timeout_s)
        seconds = self._pulse.period_s()
        if seconds > 0.0:
            self.transport.set_timer(seconds)

    def tick(self, now: float) -> float:
        """The timer is over; `now` is in seconds of any clock that only goes forward, and not 0.

        Returns in how many seconds to come again (0: never), or GIVE_UP: then the socket is to be closed at once, for the peer
        has taken too long for the handshake or for the end, or `pulse.py` has given it up.
        """
        if self.closing or self.closed:
            return GIVE_UP
        if self.state != "running":
            self.log.warning("handshake timeout", state=self.state)
            self.terminate("handshake timeout")
            return GIVE_UP
        pulse = self._pulse
        waits_for_us = not self.reading and (self.blocked or not self.holding_input)
        seconds = pulse.look(now, self.received_bytes, waits_for_us, self.sent_bytes, self.transport.unsent())
        if pulse.verdict == SILENT:
            self.log.warning("missed heartbeats from client", heartbeat_s=int(self.heartbeat))
            self.terminate("missed heartbeats from client")
            return GIVE_UP
        if pulse.verdict == STUCK:
            self.log.warning("send timeout", heartbeat_s=int(self.heartbeat))
            self.terminate("send timeout")
            return GIVE_UP
        if pulse.heartbeat_due:
            self.out.write(HEARTBEAT)
            self.output_due()
        return seconds

    # -- the end --------------------------------------------------------------------------------------------------

    def fail(self, error: AmqpError) -> None:
        """A hard error: everything of the connection is given back, the client is told, and has time to say close-ok.

        A stranger is not told, and is left waiting for a while.
        """
        if self.closing or self.closed:
            return
        self._unblock()
        text = error.reply_text()
        self.log.warning("connection error", code=error.code, reason=text, state=self.state)
        announced = handshake.may_send_close(self, error)
        self.terminate(text)
        self.closing = True
        if not announced:
            self._ignore_input()
            self.transport.set_timer(SILENT_CLOSE_DELAY_S)
            return
        self._send_close(error, self.error_index)
        if self.state == "starting" or isinstance(error, FramingLost):
            self.transport.set_timer(SILENT_CLOSE_DELAY_S)
        else:
            self.transport.set_timer(self._close_timeout_s())

    def force_close(self, error: AmqpError) -> None:
        """Closes from our side (shutdown, an operator): with connection.close, or at once where nobody waits for one."""
        if self.closed:
            self.close_after_flush = True
            self.output_due()
            return
        if self.closing:
            return
        if self.state != "running":
            self.terminate(error.reply_text())
            self.hang_up()
            return
        self.error_index = 0
        self._unblock()
        self.terminate(error.reply_text())
        self.closing = True
        self._send_close(error, 0)
        self.transport.set_timer(self._close_timeout_s())

    def _close_timeout_s(self) -> float:
        return min(float(self.heartbeat), CLOSE_TIMEOUT_S) if self.heartbeat > 0 else CLOSE_TIMEOUT_S

    def _send_close(self, error: AmqpError, index: int) -> None:
        close = methods.make("Connection.Close")
        _fill_close(close, error, index)
        self.send(close)

    def hang_up(self) -> None:
        """Writes what is due, then closes the socket; nothing is read any more."""
        self._ignore_input()
        self.close_after_flush = True
        self.output_due()
        self.transport.set_timer(CLOSE_TIMEOUT_S)

    def await_close(self) -> None:
        """The client has closed: it may still be writing, so its socket is left to it for a while."""
        self._ignore_input()
        self.closing = True
        self.transport.set_timer(self._close_timeout_s() if self.state == "running" else SILENT_CLOSE_DELAY_S)

    def _ignore_input(self) -> None:
        self.closed = True
        self._pending = []
        self._pending_size = 0

    def connection_lost(self, reason: str) -> None:
        """The socket is gone."""
        self.lost = True
        self.terminate(reason)
        self.closed = True
        self.transport = LOST

    def terminate(self, reason: str) -> None:
        """Gives back everything: channels close in order, exclusive queues are deleted. Runs once."""
        if self.close_reason:
            return
        self.close_reason = reason or "closed"
        for channel in list(self.channels.values()):
            if not channel.closing:
                channel.close()
        if self.user is not None:
            self.user.channels -= len(self.channels)
        self.channels.clear()
        self._last_channel = None
        self._last_number = -1
        vhost = self.vhost
        if vhost is not None:
            vhost.delete_exclusive_queues(self)
            self._note_commit()
        self._routes = {}
        self._last_route = None
        totals = self.node.totals
        totals.received_bytes += self.received_bytes
        totals.sent_bytes += self.sent_bytes
        if self in self.node.open_connections:
            del self.node.open_connections[self]
            self._logged_in().connections -= 1
            if vhost is not None:
                vhost.connections -= 1
            totals.connections_closed += 1
            events = self.node.events
            if events is not None and self.event_id > 0:
                events.connection_closed(int(self.event_id))
            self.log.info("connection closed", reason=self.close_reason)


def _fill_close(close: Any, error: AmqpError, index: int) -> None:
    close.reply_code = error.code
    close.reply_text = error.reply_text()
    close.class_id = index >> 16
    close.method_id = index & 0xFFFF


def _signed(tag: int) -> int:
    """A delivery tag as the 64-bit integer that channels count in; the upper half is negative and never given out."""
    return tag - (1 << 64) if tag >> 63 else tag
