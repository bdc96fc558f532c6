"""One client connection: bytes in, calls to channels, bytes out. No IO and no event loop.

`receive_data` takes the bytes of the socket; `frames` (wire/frames.py) says where frames begin. Whole publishes and
acks, nearly all of the traffic, are taken at once. Every other frame goes the long way, through the assembler or
`decode_method`. The life of a connection is the table in `life.py`; this file only follows it.

The connection knows no clock. It has one timer, its transport's, and `tick` follows from the state: during the
handshake the timer ends it, later it is a look at the pulse (`pulse.py`), and at the end it limits how long the peer
may take to answer.

What must stay true: a frame is acted on only when it has arrived whole; an error ends one channel or this connection,
never the broker; `terminate` runs once, and after it nothing of the connection is left in any queue.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from librt.strings import read_i32_be, read_i64_be
from mypy_extensions import i64

from rabbitpy_broker.errors import (
    CHANNEL_ERROR,
    COMMAND_INVALID,
    FRAME_ERROR,
    INTERNAL_ERROR,
    NOT_ALLOWED,
    NOT_IMPLEMENTED,
    PRECONDITION_FAILED,
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
from rabbitpy_broker.protocol.access import Access
from rabbitpy_broker.protocol.channel import ACK, REJECT, REQUEUE, Channel
from rabbitpy_broker.protocol.channel_host import ChannelHost
from rabbitpy_broker.protocol.life import (
    BY_METHOD,
    CLOSING,
    DEAF,
    ENDING,
    GONE,
    HANDSHAKE,
    HEADER,
    LEADS_TO,
    RUNNING,
    SILENT,
    STARTING,
    after_fault,
)
from rabbitpy_broker.protocol.node import Node
from rabbitpy_broker.protocol.output import Output, Transport
from rabbitpy_broker.protocol.pulse import SILENT as PULSE_SILENT
from rabbitpy_broker.protocol.pulse import STUCK, Pulse
from rabbitpy_broker.protocol.session import Session
from rabbitpy_broker.protocol.turn import HeldInput
from rabbitpy_broker.questions import AnswerAwaited, Question
from rabbitpy_broker.wire import assembler, methods
from rabbitpy_broker.wire.frame_text import frame_text, octets_text
from rabbitpy_broker.wire.frames import BODY_FRAME, HEADER_FRAME, HEARTBEAT_FRAME, METHOD_FRAME, FrameReader
from rabbitpy_broker.wire.properties import PERSISTENT, TO_CHECK

PROTOCOL_HEADER: Final = b"AMQP\x00\x00\x09\x01"
BASIC_PUBLISH: Final[i64] = 0x003C0028
BASIC_ACK: Final[i64] = 0x003C0050
BASIC_ACK_SIZE: Final[i64] = 21  # bytes of the whole frame
METHOD_SIZE: Final[i64] = 12  # bytes of a method frame, at least
CHANNEL_OPEN: Final = 0x0014000A
CHANNEL_CLOSE: Final = 0x00140028
CHANNEL_CLOSE_OK: Final = 0x00140029
ACCESS_REQUEST: Final = 0x001E000A
ACCESS_REQUEST_OK: Final = b"\x00\x00\x00\x06\x00\x1e\x00\x0b\x00\x01\xce"  # from the size on; ticket 1
CONNECTION_CLOSE: Final = 0x000A0032
CONNECTION_CLOSE_OK: Final = 0x000A0033

HELD_OUTPUT: Final[i64] = 8_388_608  # bytes

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


class Connection(ChannelHost, HeldInput):
    """`name` is "peer -> our address"; `loopback` says that the peer is on this machine.

    `open_connections` are the open connections of the whole broker: this one adds and removes itself.

    Large, although frames, life, session and output are files of their own: every frame of a channel comes through it, each
    error ends in it, and a channel asks nobody else (ChannelHost). Cut again, both parts would have to call each other.
    """

    def __init__(
        self,
        node: Node,
        open_connections: dict[Connection, None],
        transport: Transport,
        name: str,
        *,
        loopback: bool,
        tls: bool,
        certificate_name: str = "",
    ) -> None:
        limits = node.limits
        node.next_connection_id += 1
        super().__init__(node.next_connection_id, name, limits.flow_high_water_mark)
        self.node = node
        self.log: Any = node.log.bind(connection=name)
        self.output = Output(node.turn, self, transport, limits.output_high_water_mark, limits.frame_max)
        self.frames = FrameReader(limits.initial_frame_max, limits.max_message_size)
        self.session = Session(node, self.frames, self.output, open_connections, loopback, tls, certificate_name, self.log)
        self.session.peer_ip = name.partition(" -> ")[0].rpartition(":")[0]
        self.access: Access | None = None
        self.state = HEADER
        self.close_reason = ""
        self.channels: dict[int, Channel] = {}
        self.event_id: i64 = 0  # its id in the event journal, from its first channel on
        self.received_bytes: i64 = 0
        self.reads: i64 = 0  # of the socket
        self.alarmed = node.blocked != ""  # the next publish blocks this connection
        self.blocked = False
        self.reading = True  # False while the transport reads nothing, for whatever reason
        self._open_connections = open_connections
        self._openings: i64 = 0  # channels that have an Origin
        self._deaf = False  # nothing is read any more
        self._holding_input = False
        self._awaited: Question | None = None  # input is held until it is answered
        self._held_publish: tuple[Channel, Message] | None = None  # that waits for the answer
        self._method_index: i64 = 0  # the method that is being carried out, which a close names; 0: none
        self._last_number: i64 = -1
        self._last_channel: Channel | None = None
        self._pulse = Pulse(0, 0.0)

    # -- input ----------------------------------------------------------------------------------------------------

    def receive_data(self, data: bytes) -> None:
        """Takes bytes from the socket. Never raises for what the peer sent: the answer is in the output."""
        if self._deaf:
            return
        self.received_bytes += len(data)
        if data:
            self.reads += 1
        if self.node.events is not None:
            self.node.events.stamp()
        access = self.access
        if access is not None:
            access.refresh()
        if self.blocked or self._awaited is not None:
            self.frames.keep_all(data)
            return
        joined = self.frames.join(data)
        if joined is None:
            return
        size: i64 = len(joined)
        pos: i64 = 0
        while True:
            try:
                pos = self._read_frames(joined, pos, size)
                break
            # One name for each: compiled code gives a name the type of its first use.
            except ChannelClosed as soft:
                pos = self.frames.after
                self._close_channel(self.channels[self.frames.number], soft)
            except FramingLost as lost:
                pos = size  # the beginning of the next frame is not known
                self.fail(lost)
            except ConnectionClosed as hard:
                pos = self.frames.after  # the peer's close-ok may stand behind it
                self.fail(hard)
            except Exception as fault:  # a fault of ours: this connection pays, the broker goes on
                self.log.exception("internal error", error=repr(fault))
                pos = size
                self.fail(ConnectionClosed(INTERNAL_ERROR, "internal error"))
        if not self._deaf:
            self.frames.keep(joined, pos)

    def _read_frames(self, data: bytes, pos: i64, size: i64) -> i64:
        """Acts on the whole frames in data[pos:]; returns where the first frame begins that was not acted on.

        Assumes: data[pos:] begins at a frame, or at the protocol header. Ensures: each frame before the returned
        position was acted on once, in order. It stops early when input is held, the connection is blocked, or an answer
        is awaited; the frame that needs it has had no effect then. On an exception `frames.number` is the channel of the
        frame that caused it and `frames.after` the position behind it; `_method_index` names its method.
        """
        frames = self.frames
        output = self.output
        if self.state == HEADER:
            if size - pos < len(PROTOCOL_HEADER):
                frames.need(len(PROTOCOL_HEADER))
                return pos
            self._take_protocol_header(data[pos : pos + 8])
            pos += 8
        try:
            if self._held_publish is not None:
                frames.after = pos
                self._publish_held()
                if self._awaited is not None:
                    return pos
            while not self._deaf:
                if len(output.out) + output.unsent > HELD_OUTPUT:
                    self._hold_input()
                    return pos
                if not frames.frame_at(data, pos, size):
                    return pos
                number = frames.number
                end = frames.after
                if frames.kind == METHOD_FRAME and number > 0 and end - pos >= METHOD_SIZE:
                    if number != self._last_number:
                        self._last_channel = self.channels.get(number)
                        self._last_number = number
                    channel = self._last_channel
                    if channel is not None and not channel.closing and channel.assembler.state == assembler.METHOD:
                        method: i64 = i64(read_i32_be(data, pos + 7))
                        if method == BASIC_PUBLISH:
                            if not self.alarmed and frames.publish_at(data, pos, size):
                                self._take_publish(channel, data, pos, end)
                                pos = frames.after
                                continue
                        elif method == BASIC_ACK and end - pos == BASIC_ACK_SIZE:
                            self._method_index = BASIC_ACK
                            channel.settle(read_i64_be(data, pos + 11), i64(data[pos + 19]) & 1 == 1, ACK)
                            pos = end
                            continue
                self._method_index = 0
                self._take_frame(frames.kind, number, data[pos + 7 : end - 1])
                pos = end
                if self.blocked or self._awaited is not None:
                    return pos
        except AnswerAwaited as awaited:  # nothing has come of the frame at `pos` yet: it is taken again
            self._await_answer(awaited.question)
            return pos
        return size

    def _await_answer(self, question: Question) -> None:
        """Holds the rest of the input until the question is answered."""
        self.frames.need(0)
        self._awaited = question
        self.output.transport.reading_wanted(False)
        question.when_done(self._answered)

    def _answered(self) -> None:
        question = self._awaited
        if question is not None and question.is_done:
            self._awaited = None
            if not self._deaf:
                self._read_again()

    def _read_again(self) -> None:
        """Takes what was kept at the end of the turn, and reads on if nothing else holds the input."""
        self.frames.need(0)
        self.output.turn.input_due(self)
        if not (self._holding_input or self.blocked or self._awaited is not None):
            self.output.transport.reading_wanted(True)

    def _hold_input(self) -> None:
        """Holds the rest of the input for the next turn: the answers to it would be too many for one turn.

        It waits longer when the peer does not read. (Deliveries stop much earlier, see `Output.is_full`.)
        """
        self.frames.need(0)
        self._holding_input = True
        self.output.transport.reading_wanted(False)

    def go_on(self) -> None:
        """Takes input that was held, once the transport has taken the output and no alarm is on."""
        if self.blocked or self._awaited is not None:
            return
        if self._holding_input:
            if not self.output.writable or self.output.marked:
                return
            self._holding_input = False
            self.output.transport.reading_wanted(True)
        self.receive_data(b"")

    def _take_publish(self, channel: Channel, data: bytes, pos: i64, end: i64) -> None:
        """Publishes the message that `frames` has found at `pos`; its method frame ends at `end`.

        Assumes: `publish_at` has just answered True for `pos`.
        """
        frames = self.frames
        access = channel.access
        self._method_index = BASIC_PUBLISH
        address = data[pos + 13 : end - 2]
        route = access.last_route
        if route is None or route.address != address or not route.valid:
            route = access.route(address)
        mode = frames.mode
        message = Message(
            route.address, data[end + 3 : frames.after], frames.header_end - end - 3, mode & PERSISTENT != 0
        )
        mandatory = i64(data[end - 2]) == 1
        if mode & TO_CHECK:
            channel.publish_checked(route, message, mandatory)
        else:
            channel.publish(route, message, mandatory)

    # -- frames, the long way -------------------------------------------------------------------------------------

    def _take_protocol_header(self, header: bytes) -> None:
        """Takes the first eight octets. A wrong header is answered with the right one and a hang-up (spec 4.2.2)."""
        if header == PROTOCOL_HEADER:
            handshake.start(self.session)
            self._enter(STARTING)
            return
        self.output.out.write(PROTOCOL_HEADER)
        self.log.warning("bad protocol header", header=header.hex())
        self.terminate("bad protocol header")
        self._end()

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
        if self.state == CLOSING:
            return
        if self.state != RUNNING or kind == HEARTBEAT_FRAME:
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
            self._method_index = BASIC_PUBLISH
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
        try:
            route = channel.access.route(message.address)
        except AnswerAwaited as awaited:  # the message is whole: it waits, without its frames
            self._held_publish = (channel, message)
            self._await_answer(awaited.question)
            return
        message.address = route.address
        if channel.assembler.to_check:
            channel.publish_checked(route, message, flags & 1 == 1)
            return
        channel.publish(route, message, flags & 1 == 1)

    def _publish_held(self) -> None:
        """Publishes a message whose route could not be known when its last frame came."""
        held = self._held_publish
        assert held is not None, "kept by: _read_frames"
        self._held_publish = None
        channel, message = held
        if not channel.closing:
            self.frames.number = channel.number
            self._method_index = BASIC_PUBLISH
            self._publish_assembled(channel, message)

    def _take_while_closing(self, channel: Channel, kind: i64, payload: bytes) -> None:
        """Takes a frame of a channel that we have closed: only close and close-ok count."""
        if kind != METHOD_FRAME or len(payload) < 4:
            return
        index = int.from_bytes(payload[:4], "big")
        if index == CHANNEL_CLOSE_OK:
            self._drop_channel(channel)
        elif index == CHANNEL_CLOSE:
            channel.send(methods.make("Channel.CloseOk"))

    def _take_method(self, channel: Channel | None, number: i64, payload: bytes) -> None:
        index = int.from_bytes(payload[:4], "big")
        if channel is None:
            self._open_channel(number, index, payload)
            return
        if channel.assembler.state != assembler.METHOD:
            self._method_index = BASIC_PUBLISH
        channel.assembler.expect_method()
        self._method_index = index
        if index == BASIC_PUBLISH:
            if len(payload) < 9:
                raise ConnectionClosed(SYNTAX_ERROR, "malformed basic.publish")
            channel.assembler.publish(payload[6:-1], i64(payload[-1]))
            return
        if index == ACCESS_REQUEST:  # of AMQP 0-8; clients of that age still ask, and take any answer
            self.output.out.write(b"\x01" + int(number).to_bytes(2, "big") + ACCESS_REQUEST_OK)
            self.output.due()
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
        """Makes the answer to a method wait for the commit, if the method has changed definitions."""
        changes = self.node.definition_changes()
        if changes != self.node.changes_seen:
            self.node.changes_seen = changes
            self.output.awaiting_commit = True
            self.output.turn.commit_due = True
            self.output.due()
            access = self.access
            if access is not None and access.vhost.syncs.is_replicated():
                self.output.keep(access.vhost.syncs)

    def _decode(self, index: int, payload: bytes) -> Any:
        self._method_index = index
        try:
            return methods.decode_method(payload)
        except KeyError:
            raise ConnectionClosed(COMMAND_INVALID, f"unknown method {index >> 16}.{index & 0xFFFF}") from None
        except UnicodeDecodeError:
            raise ConnectionClosed(FRAME_ERROR, "Malformed UTF-8 in shortstr", names_method=False) from None
        except ValueError:
            raise ConnectionClosed(FRAME_ERROR, f"cannot decode {octets_text(payload[4:])}") from None

    def _take_connection_frame(self, kind: i64, payload: bytes) -> None:
        if kind == HEARTBEAT_FRAME:
            return
        closing = self.state == CLOSING
        if kind != METHOD_FRAME:
            if not closing:
                raise ConnectionClosed(UNEXPECTED_FRAME, frame_text(kind, payload))
            return
        index = int.from_bytes(payload[:4], "big")
        if closing and index != CONNECTION_CLOSE and index != CONNECTION_CLOSE_OK:
            return
        self._take_connection_method(self._decode(index, payload))

    def _take_connection_method(self, method: Any) -> None:
        name: str = method.name
        following = BY_METHOD[self.state].get(name)
        if following is None:
            raise ConnectionClosed(CHANNEL_ERROR, f"unexpected method in connection state {self.state}")
        if name == "Connection.Close":
            self._closed_by_client(method)
        elif name == "Connection.CloseOk":
            self._end()
        else:
            try:
                handshake.HANDLERS[name](self.session, method)
            except ChannelClosed as error:
                raise ConnectionClosed(error.code, error.text) from None
            if following != self.state:
                self._enter(following)
                if following == RUNNING:
                    self._opened()

    # -- channels -------------------------------------------------------------------------------------------------

    def _open_channel(self, number: i64, index: int, payload: bytes) -> None:
        if index != CHANNEL_OPEN:
            self._decode(index, payload)
            raise ConnectionClosed(CHANNEL_ERROR, "expected 'channel.open'")
        limit = self.session.channel_max
        if limit > 0 and len(self.channels) >= limit:
            raise ConnectionClosed(
                NOT_ALLOWED,
                f"number of channels opened ({len(self.channels)}) has reached the negotiated channel_max ({limit})",
            )
        access = self.access
        assert access is not None, "kept by: _opened, the state is running"
        user = access.user
        elsewhere = self.node.elsewhere
        others = 0
        if user.max_channels >= 0 and elsewhere is not None:
            others = elsewhere.counts(self.session, user.name)[2]
        if 0 <= user.max_channels <= user.channels + others:
            raise ConnectionClosed(
                NOT_ALLOWED,
                f"number of channels opened for user '{user.name}' has reached the maximum allowed user limit of "
                f"({user.max_channels})",
            )
        channel = Channel(self, self.node, access, number, self._new_origin(access, number))
        self.channels[number] = channel
        user.channels += 1
        self._last_number = -1
        self.node.totals.channels_opened += 1
        self.log.debug("channel opened", channel=number)
        channel.send(methods.make("Channel.OpenOk", channel_id=""))

    def _new_origin(self, access: Access, number: i64) -> Origin | None:
        """The records, in the event journal, of the channel that is being opened; None without an event journal."""
        events = self.node.events
        if events is None:
            return None
        if self.event_id == 0:
            self.event_id = events.connection(access.vhost.name, self.name, access.user.name)
        self._openings += 1
        return Origin(events, self.event_id, number, self._openings)

    def _close_by_client(self, channel: Channel, method: Any) -> None:
        channel.close()
        self._note_commit()
        self._drop_channel(channel)
        self.log.debug("channel closed", channel=channel.number, code=method.reply_code, reason=method.reply_text)
        channel.send(methods.make("Channel.CloseOk"))

    def _drop_channel(self, channel: Channel) -> None:
        if self.channels.pop(channel.number, None) is not None:
            channel.access.user.channels -= 1
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
        _fill_close(close, error, self._method_index)
        channel.send(close)

    def fail_channel(self, number: i64, error: ChannelClosed) -> None:
        channel = self.channels.get(number)
        if channel is not None:
            self._method_index = 0
            self._close_channel(channel, error)

    def notify_cancelled(self, number: i64, tag: str) -> None:
        if self.session.capabilities.get("consumer_cancel_notify") is True:
            cancel = methods.make("Basic.Cancel")
            cancel.consumer_tag = tag
            cancel.nowait = True
            self.output.send(number, cancel)

    def close_overdue(self, now_ms: i64, timeout_ms: i64) -> None:
        """Closes each channel whose oldest delivery has waited for `timeout_ms`; to be called at ticks (ack_timeout.py)."""
        for channel in list(self.channels.values()):
            deliveries = channel.deliveries
            tag = deliveries.oldest_tag()
            waited = deliveries.ack_marks.tick(now_ms, tag, deliveries.next_tag)
            if tag == 0 or waited <= timeout_ms:  # both times are cut to a millisecond
                continue
            consumer, queue = deliveries.holder_of(tag)
            self.log.warning(
                "acknowledgement timed out",
                channel=channel.number,
                consumer=consumer,
                queue=queue,
                timeout_ms=timeout_ms,
            )
            text = (
                f"delivery acknowledgement on channel {channel.number} timed out. Timeout value used: {timeout_ms} ms. "
                "This timeout value can be configured, see consumers doc guide to learn more"
            )
            self.fail_channel(channel.number, ChannelClosed(PRECONDITION_FAILED, text))

    # -- output ---------------------------------------------------------------------------------------------------

    def written(self) -> None:
        output = self.output
        if output.starved and output.writable:
            self._wake()
        if self._holding_input:
            output.turn.input_due(self)

    def _wake(self) -> None:
        self.output.starved = False
        for channel in self.channels.values():
            channel.deliveries.wake_consumers()

    def writing_paused(self) -> None:
        """The transport's buffer went over its high-water mark."""
        self.output.writing_paused()
        if self.state == RUNNING:
            seconds = self._pulse.hurry_s()
            if seconds > 0.0:
                self.output.transport.set_timer(seconds)

    def writing_resumed(self) -> None:
        """The transport's buffer went under its low-water mark."""
        self.output.writing_resumed()
        self.written()

    def commit_failed(self) -> None:
        error = ConnectionClosed(INTERNAL_ERROR, "definitions could not be written")
        if self._deaf:
            self._end()
        elif self.state == CLOSING:
            self._send_close(error, 0)
        else:
            self.fail(error)

    def hold_deliveries(self, held: bool) -> None:
        """Nothing is delivered from now on, or again what there is."""
        self.output.hold_deliveries(held)
        if not held:
            self.written()

    # -- pressure -------------------------------------------------------------------------------------------------

    def blocked_by(self) -> str:
        """The reason of the alarm that is on for this connection, the node's or its vhost's; "" when none is."""
        vhost = self.session.vhost
        return self.node.blocked or (vhost.held if vhost is not None else "")

    def alarm_changed(self) -> None:
        """Follows a change of `node.blocked`, or of `held` of the vhost."""
        self.alarmed = self.blocked_by() != ""
        if self.blocked and not self.alarmed:
            self._unblock()
            if self.session.capabilities.get("connection.blocked") is True:
                self.output.send(0, methods.make("Connection.Unblocked"))

    def _block(self) -> None:
        """Takes nothing more from a connection that publishes while an alarm is on.

        As in RabbitMQ the frame at which that shows is the last one: between the header and the body of a message, or between
        two pieces of a body. Only a message without a body is still published.
        """
        if self.blocked or self.state != RUNNING:
            return
        self.blocked = True
        if self.session.capabilities.get("connection.blocked") is True:
            self.output.send(0, methods.make("Connection.Blocked", reason=self.blocked_by()))
        self.output.transport.reading_wanted(False)

    def _unblock(self) -> None:
        if self.blocked:
            self.blocked = False
            self._read_again()

    def _stop_waiting(self) -> None:
        """Takes input again, whatever was waited for: the connection ends."""
        self._unblock()
        if self._awaited is not None:
            self._awaited = None
            self._read_again()

    # -- life -----------------------------------------------------------------------------------------------------

    def _enter(self, state: str) -> None:
        """Changes the state. No other function does."""
        assert state in LEADS_TO[self.state], f"{self.state} does not lead to {state}"
        self.state = state
        if state in DEAF:
            self._deaf = True
            self.frames.drop()

    def _opened(self) -> None:
        """Ends the handshake: the connection counts from here on, and heartbeats begin."""
        session = self.session
        user, vhost = session.user, session.vhost
        assert user is not None, "kept by: handshake"
        assert vhost is not None, "kept by: handshake"
        self.access = Access(user, vhost)
        self.alarmed = self.blocked_by() != ""
        self._open_connections[self] = None
        vhost.connections += 1
        user.connections += 1
        self.node.totals.connections_opened += 1
        self.log.info(
            "connection opened",
            user=user.name,
            vhost=vhost.name,
            client_name=session.client_name,
            client_product=session.client_properties.get("product"),
            tls=session.tls,
        )
        self._pulse = Pulse(session.heartbeat, self.node.limits.send_timeout_s)
        seconds = self._pulse.period_s()
        if seconds > 0.0:
            self.output.transport.set_timer(seconds)

    def tick(self, now: float) -> float:
        """Does what the timer was set for; `now` is in seconds of any clock that only goes forward, and not 0.

        Returns the seconds until the next call (0: none), or GIVE_UP: the socket is to be closed at once, because the
        peer has taken too long for the handshake or for the end, or `pulse.py` has given it up.
        """
        if self.state in HANDSHAKE:
            self.log.warning("handshake timeout", state=self.state)
            self.terminate("handshake timeout")
            return GIVE_UP
        if self.state != RUNNING:
            return GIVE_UP
        pulse = self._pulse
        output = self.output
        waits_for_us = not self.reading and (self.blocked or not self._holding_input)
        seconds = pulse.look(now, self.received_bytes, waits_for_us, output.sent_bytes, output.transport.unsent())
        if pulse.verdict == PULSE_SILENT or pulse.verdict == STUCK:
            reason = "missed heartbeats from client" if pulse.verdict == PULSE_SILENT else "send timeout"
            self.log.warning(reason, heartbeat_s=int(self.session.heartbeat))
            self.terminate(reason)
            return GIVE_UP
        if pulse.heartbeat_due:
            output.out.write(HEARTBEAT)
            output.due()
        return seconds

    def fail(self, error: AmqpError) -> None:
        """Ends the connection with a hard error: gives everything back, tells the client, and leaves it time to say
        close-ok.

        A peer that is not logged in is not told, and waits for a while for the end.
        """
        state = self.state
        if state != RUNNING and state not in HANDSHAKE:
            return
        self._stop_waiting()
        text = error.reply_text()
        self.log.warning("connection error", code=error.code, reason=text, state=state)
        wants_refusals = self.session.capabilities.get("authentication_failure_close") is True
        following = after_fault(state, error, wants_refusals=wants_refusals)
        self.terminate(text)
        self._enter(following)
        if following == CLOSING:
            self._send_close(error, self._method_index)
        if following == SILENT or state == STARTING or isinstance(error, FramingLost):
            self.output.transport.set_timer(SILENT_CLOSE_DELAY_S)
        else:
            self.output.transport.set_timer(self._close_timeout_s())

    def force_close(self, error: AmqpError) -> None:
        """Closes from our side (shutdown, an operator): with connection.close, or at once during the handshake."""
        if self._deaf or self.state in HANDSHAKE:
            self.terminate(error.reply_text())
            self._end()
        elif self.state == RUNNING:
            self._stop_waiting()
            self.terminate(error.reply_text())
            self._enter(CLOSING)
            self._send_close(error, 0)
            self.output.transport.set_timer(self._close_timeout_s())

    def _close_timeout_s(self) -> float:
        heartbeat = self.session.heartbeat
        return min(float(heartbeat), CLOSE_TIMEOUT_S) if heartbeat > 0 else CLOSE_TIMEOUT_S

    def _send_close(self, error: AmqpError, index: i64) -> None:
        self.output.drop_kept()
        close = methods.make("Connection.Close")
        _fill_close(close, error, index)
        self.output.send(0, close)

    def _closed_by_client(self, method: Any) -> None:
        """Answers connection.close. The client may still be writing, so the socket stays open for a while, unless the
        client still owes the answer to our own close.
        """
        state = self.state
        self.terminate(f"closed by client: {method.reply_code} {method.reply_text}")
        self.output.send(0, methods.make("Connection.CloseOk"))
        if state != CLOSING:
            self._enter(SILENT)
            self.output.transport.set_timer(self._close_timeout_s() if state == RUNNING else SILENT_CLOSE_DELAY_S)

    def _end(self) -> None:
        """Writes what is due, then closes the socket; nothing is read any more."""
        if self.state == GONE:
            return
        self._enter(ENDING)
        self.output.end()
        self.output.transport.set_timer(CLOSE_TIMEOUT_S)

    def connection_lost(self, reason: str) -> None:
        """Ends the connection after its socket has gone."""
        self.terminate(reason)
        self._enter(GONE)
        self.output.lose()

    def terminate(self, reason: str) -> None:
        """Gives everything back: channels close in order, exclusive queues are deleted. Runs once.

        Ensures: no queue, user or vhost refers to this connection. The output is left to the caller.
        """
        if self.close_reason:
            return
        self.close_reason = reason or "closed"
        for channel in list(self.channels.values()):
            if not channel.closing:
                channel.close()
        session = self.session
        if session.user is not None:
            session.user.channels -= len(self.channels)
        self.channels.clear()
        self._last_channel = None
        self._last_number = -1
        vhost = session.vhost
        if vhost is not None:
            vhost.delete_exclusive_queues(self)
            self._note_commit()
        totals = self.node.totals
        totals.received_bytes += self.received_bytes
        totals.sent_bytes += self.output.sent_bytes
        access = self.access
        if access is not None:
            closed = totals.closed_of(access.vhost.name)
            closed.received_bytes += self.received_bytes
            closed.sent_bytes += self.output.sent_bytes
            access.forget()
            del self._open_connections[self]
            access.user.connections -= 1
            access.vhost.connections -= 1
            totals.connections_closed += 1
            events = self.node.events
            if events is not None and self.event_id > 0:
                events.connection_closed(int(self.event_id))
            self.log.info("connection closed", reason=self.close_reason)


def _fill_close(close: Any, error: AmqpError, index: i64) -> None:
    named = int(index) if error.names_method else 0
    close.reply_code = error.code
    close.reply_text = error.reply_text()
    close.class_id = named >> 16
    close.method_id = named & 0xFFFF


def _signed(tag: int) -> int:
    """A delivery tag as the signed 64-bit integer that channels count in; tags of the upper half are negative and never
    exist.
    """
    return tag - (1 << 64) if tag >> 63 else tag
