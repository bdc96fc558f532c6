"""A raw AMQP 0-9-1 client: sends what a real client would not send, and shows every frame of the answer.

Methods go out as pamqp commands, or as `(class_id, method_id, argument bytes)` where pamqp would refuse to write them.
Nothing is checked on the way out. Every read has a timeout, so that a broker that stays silent fails the test.
"""

from __future__ import annotations

import contextlib
import socket
import struct
from typing import Any, NamedTuple, TypeVar

import pamqp.commands as amqp
import pamqp.exceptions
import pamqp.frame
from pamqp.base import Frame as Command

from support import full_text

METHOD, HEADER, BODY, HEARTBEAT = 1, 2, 3, 8
FRAME_END = b"\xce"
PROTOCOL_HEADER = b"AMQP\x00\x00\x09\x01"
BASIC = 60

C = TypeVar("C", bound=Command)
RawMethod = tuple[int, int, bytes]


class Frame(NamedTuple):
    type: int
    channel: int
    payload: bytes


class Delivered(NamedTuple):
    """One content: the method that announced it, the header payload and the body put together."""

    method: Command
    header: bytes
    body: bytes
    frames: list[Frame]


def shortstr(text: str | bytes) -> bytes:
    data = text.encode() if isinstance(text, str) else text
    return struct.pack(">B", len(data)) + data


def longstr(text: str | bytes) -> bytes:
    data = text.encode() if isinstance(text, str) else text
    return struct.pack(">I", len(data)) + data


def field_table(*fields: tuple[str, str, bytes]) -> bytes:
    """A field table of `(key, type letter, value octets)`, for types that pamqp would not choose by itself."""
    return longstr(b"".join(shortstr(key) + kind.encode() + value for key, kind, value in fields))


class WireClient:
    def __init__(self, host: str, port: int, timeout: float = 20.0) -> None:
        self.socket = socket.create_connection((host, port), timeout)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.server_properties: dict[str, Any] = {}
        self.tune: amqp.Connection.Tune | None = None

    # --- sending -------------------------------------------------------------------------------------------------

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def frame(self, type: int, channel: int, payload: bytes = b"", end: bytes = FRAME_END) -> None:
        """Sends one frame with the true length of its payload."""
        self.send(struct.pack(">BHI", type, channel, len(payload)) + payload + end)

    def method(self, channel: int, method: Command | RawMethod) -> None:
        self.frame(METHOD, channel, method_payload(method))

    def header(
        self,
        channel: int,
        body_size: int,
        properties: bytes = b"\x00\x00",
        class_id: int = BASIC,
        weight: int = 0,
    ) -> None:
        """Sends a content header; `properties` are the flag words and the values behind them."""
        self.frame(HEADER, channel, struct.pack(">HHQ", class_id, weight, body_size) + properties)

    def body(self, channel: int, payload: bytes) -> None:
        self.frame(BODY, channel, payload)

    def publish(
        self, channel: int, exchange: str, routing_key: str, body: bytes = b"", **flags: bool
    ) -> None:
        """A whole publish: method, header and, when there is one, one body frame."""
        self.method(channel, amqp.Basic.Publish(exchange=exchange, routing_key=routing_key, **flags))
        self.header(channel, len(body))
        if body:
            self.body(channel, body)

    def call(self, channel: int, method: Command | RawMethod, answer: type[C]) -> C:
        """Sends a method and returns its answer, which must be of the type `answer`."""
        self.method(channel, method)
        return self.expect(channel, answer)

    # --- opening -------------------------------------------------------------------------------------------------

    def start(self) -> amqp.Connection.Start:
        """Sends the protocol header; the answer is connection.start."""
        self.send(PROTOCOL_HEADER)
        start = self.expect(0, amqp.Connection.Start)
        self.server_properties = dict(start.server_properties or {})
        return start

    def login(
        self,
        user: str = "guest",
        password: str = "guest",
        mechanism: str = "PLAIN",
        response: bytes | None = None,
        client_properties: dict[str, Any] | None = None,
    ) -> None:
        """Sends connection.start-ok; the answer (tune, close, nothing) is left to the caller."""
        if response is None:
            response = b"\x00" + user.encode() + b"\x00" + password.encode()
        properties = pamqp.encode.field_table(client_properties or {})
        arguments = properties + shortstr(mechanism) + longstr(response) + shortstr("en_US")
        self.method(0, (10, 11, arguments))

    def tune_ok(self, channel_max: int = 2047, frame_max: int = 131072, heartbeat: int = 0) -> None:
        self.method(
            0, amqp.Connection.TuneOk(channel_max=channel_max, frame_max=frame_max, heartbeat=heartbeat)
        )

    def open(
        self,
        user: str = "guest",
        password: str = "guest",
        vhost: str = "/",
        channel_max: int = 2047,
        frame_max: int = 131072,
        heartbeat: int = 0,
        client_properties: dict[str, Any] | None = None,
    ) -> WireClient:
        """The whole handshake, up to connection.open-ok."""
        self.start()
        self.login(user, password, client_properties=client_properties)
        self.tune = self.expect(0, amqp.Connection.Tune)
        self.tune_ok(channel_max, frame_max, heartbeat)
        self.method(0, (10, 40, shortstr(vhost) + b"\x00\x00"))
        self.expect(0, amqp.Connection.OpenOk)
        return self

    def open_channel(self, channel: int = 1) -> int:
        self.method(channel, amqp.Channel.Open())
        self.expect(channel, amqp.Channel.OpenOk)
        return channel

    # --- reading -------------------------------------------------------------------------------------------------

    def read_exactly(self, count: int) -> bytes:
        """Raises EOFError when the broker closes the socket first."""
        data = b""
        while len(data) < count:
            chunk = self.socket.recv(count - len(data))
            if not chunk:
                raise EOFError(f"the broker closed the socket after {data!r}")
            data += chunk
        return data

    def read_frame(self) -> Frame:
        """The next frame, whatever it is."""
        type, channel, size = struct.unpack(">BHI", self.read_exactly(7))
        payload = self.read_exactly(size)
        end = self.read_exactly(1)
        assert end == FRAME_END, f"frame ends in {end!r}"
        return Frame(type, channel, payload)

    def read_command(self) -> tuple[int, Command]:
        """The next method and its channel; heartbeats are passed over, content is an error."""
        while True:
            frame = self.read_frame()
            if frame.type == HEARTBEAT:
                continue
            assert frame.type == METHOD, f"a method was expected, {frame} came"
            return frame.channel, decode(frame)

    def expect(self, channel: int, answer: type[C]) -> C:
        """The next method, which must be an `answer` on `channel`."""
        came_on, command = self.read_command()
        assert isinstance(command, answer), f"{answer.name} was expected, {dict(command)} {command.name} came"
        assert came_on == channel
        return command

    def expect_content(self, channel: int, announced_by: type[C]) -> Delivered:
        """The next content on `channel`: method, header and all of its body frames."""
        method = self.expect(channel, announced_by)
        frames = [self.read_frame()]
        header = frames[0]
        assert (header.type, header.channel) == (HEADER, channel)
        (size,) = struct.unpack(">Q", header.payload[4:12])
        body = b""
        while len(body) < size:
            frame = self.read_frame()
            assert (frame.type, frame.channel) == (BODY, channel)
            frames.append(frame)
            body += frame.payload
        return Delivered(method, header.payload, body, frames)

    def expect_close(self, code: int, text: str, class_id: int = 0, method_id: int = 0) -> None:
        """The next method closes the connection with exactly this; answers close-ok and sees the socket closed."""
        close = self.expect(0, amqp.Connection.Close)
        assert described(close) == (code, full_text(code, text), class_id, method_id)
        self.method(0, amqp.Connection.CloseOk())
        self.expect_eof()

    def expect_channel_close(
        self, channel: int, code: int, text: str, class_id: int = 0, method_id: int = 0
    ) -> None:
        """The next method closes `channel` with exactly this; answers close-ok, after which the number is free."""
        close = self.expect(channel, amqp.Channel.Close)
        assert described(close) == (code, full_text(code, text), class_id, method_id)
        self.method(channel, amqp.Channel.CloseOk())

    def expect_eof(self) -> None:
        """The broker closes the socket and sends nothing more before it."""
        with contextlib.suppress(ConnectionResetError):
            assert self.socket.recv(65536) == b""

    def expect_end(self, *codes: int) -> None:
        """The broker ends the connection: by a close with one of these codes, or by just closing the socket."""
        try:
            command = self.read_command()[1]
        except (EOFError, ConnectionResetError):
            return
        assert isinstance(command, amqp.Connection.Close), f"{command.name} came"
        assert command.reply_code in codes
        self.method(0, amqp.Connection.CloseOk())
        self.expect_eof()

    def expect_nothing_more(self, within: float = 0.3) -> None:
        """The broker sends nothing `within` seconds; it may close the socket."""
        self.socket.settimeout(within)
        with contextlib.suppress(TimeoutError, ConnectionResetError):
            assert self.socket.recv(65536) == b""

    def expect_silence(self, channel: int) -> None:
        """The broker has nothing to say: the answer to a synchronous method on `channel` is the next thing that comes."""
        self.call(channel, amqp.Basic.Qos(prefetch_count=0), amqp.Basic.QosOk)

    def close(self) -> None:
        """Closes the socket without a word, as a client that crashed."""
        self.socket.close()


def method_payload(method: Command | RawMethod) -> bytes:
    """The payload of a method frame: class id, method id, arguments."""
    if isinstance(method, tuple):
        class_id, method_id, arguments = method
        return struct.pack(">HH", class_id, method_id) + arguments
    return bytes(pamqp.frame.marshal(method, 0)[7:-1])


def decode(frame: Frame) -> Command:
    data = struct.pack(">BHI", frame.type, frame.channel, len(frame.payload)) + frame.payload + FRAME_END
    command = pamqp.frame.unmarshal(data)[2]
    assert isinstance(command, Command)
    return command


def described(close: amqp.Connection.Close | amqp.Channel.Close) -> tuple[int, str, int, int]:
    return close.reply_code, close.reply_text, close.class_id, close.method_id
