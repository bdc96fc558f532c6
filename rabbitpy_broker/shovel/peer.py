"""One connection to a broker, as its client: what a shovel needs of AMQP and nothing more.

A `Peer` is one connection; a `PeerChannel` is one channel of it. Methods that are answered are coroutines (`call`); messages,
confirms and returns come by calls of the channel's `ChannelUser`, since they come by the hundred thousand. A message stays as
it came: its header payload and body are bytes that nobody takes apart.

What must stay true: after `lost` was told, nothing else comes; each `call` ends by its answer or by PeerClosed.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections import deque
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qs, unquote, urlsplit

from rabbitpy_broker.errors import BrokerError, FramingLost
from rabbitpy_broker.wire import methods
from rabbitpy_broker.wire.field_table import field_table
from rabbitpy_broker.wire.frames import BODY_FRAME, HEADER_FRAME, METHOD_FRAME, FrameReader

PROTOCOL_HEADER: Final = b"AMQP\x00\x00\x09\x01"
FRAME_MAX: Final = 131_072
HEARTBEAT_S: Final = 60
HEARTBEAT_FRAME: Final = b"\x08\x00\x00\x00\x00\x00\x00\xce"
CONNECT_S: Final = 10.0
MAX_BODY: Final = 1 << 62

DELIVER: Final = b"\x00\x3c\x00\x3c"
RETURN: Final = b"\x00\x3c\x00\x32"
ACK: Final = b"\x00\x3c\x00\x50"
NACK: Final = b"\x00\x3c\x00\x78"
PUBLISH: Final = b"\x00\x3c\x00\x28\x00\x00"

CONNECTION_METHODS: Final = ("Connection.Close", "Connection.CloseOk", "Connection.Blocked", "Connection.Unblocked")


class PeerClosed(BrokerError):
    """The connection, or a channel of it, is at its end; `code` is the reply code, 0 where there was none."""

    def __init__(self, text: str, code: int = 0) -> None:
        super().__init__(text)
        self.code = code


class Url(NamedTuple):
    """An AMQP URL, taken apart. `shown` is without the password."""

    host: str
    port: int
    user: str
    password: str
    vhost: str
    tls: ssl.SSLContext | None
    shown: str

    def __str__(self) -> str:
        return self.shown


def parse_url(text: str) -> Url:
    """amqp[s]://user:password@host:port/vhost?cacertfile=&certfile=&keyfile=&verify=verify_none; raises ValueError."""
    parts = urlsplit(text)
    if parts.scheme not in ("amqp", "amqps") or not parts.hostname:
        raise ValueError(f"not an AMQP URL: {parts.scheme}://{parts.hostname or ''}")
    options = {key: values[-1] for key, values in parse_qs(parts.query).items()}
    tls: ssl.SSLContext | None = None
    if parts.scheme == "amqps":
        tls = ssl.create_default_context(cafile=options.get("cacertfile"))
        if options.get("verify") == "verify_none":
            tls.check_hostname = False
            tls.verify_mode = ssl.CERT_NONE
        if "certfile" in options:
            tls.load_cert_chain(options["certfile"], options.get("keyfile"))
    port = parts.port or (5671 if tls else 5672)
    vhost = unquote(parts.path[1:]) if len(parts.path) > 1 else "/"
    user = unquote(parts.username or "guest")
    shown = f"{parts.scheme}://{parts.username or 'guest'}@{parts.hostname}:{port}/{parts.path[1:] or '%2F'}"
    return Url(parts.hostname, port, user, unquote(parts.password or "guest"), vhost, tls, shown)


class ChannelUser:
    """Whoever uses a channel, for what comes unasked."""

    def delivered(self, tag: int, redelivered: bool, address: bytes, header: bytes, body: bytes) -> None:
        """A message: `address` is exchange and routing key, as they stand in basic.deliver; `header` a header payload."""

    def returned(self, text: str) -> None:
        """A mandatory message had no queue; its confirm is still to come."""

    def confirmed(self, tag: int, multiple: bool, ok: bool) -> None:
        """A publish, or all up to it, is confirmed, or refused."""

    def cancelled(self) -> None:
        """The broker has cancelled the channel's consumer: its queue is gone."""

    def writable(self) -> None:
        """What was written has left, after `Peer.is_full`."""

    def lost(self, error: PeerClosed) -> None:
        """The channel is at its end."""


class PeerChannel:
    """One open channel. `next_seqno` is the publish_seqno of the next publish, in confirm mode."""

    def __init__(self, peer: Peer, number: int, user: ChannelUser) -> None:
        self.peer = peer
        self.number = number
        self.user = user
        self.next_seqno = 1
        self.is_lost = False
        self._answers: deque[tuple[asyncio.Future[Any], tuple[str, ...]]] = deque()
        # tag, redelivered and address of a message that is coming; a tag of 0: it is returned
        self._open: tuple[int, bool, bytes] | None = None
        self._reason = ""
        self._header = b""
        self._missing = 0
        self._body: list[bytes] = []

    async def call(self, name: str, *answers: str, **arguments: object) -> Any:
        """Sends a method and returns its answer, one of these. Raises PeerClosed."""
        if self.is_lost:
            raise PeerClosed("the channel is closed")
        waiting: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._answers.append((waiting, answers))
        self.send(name, **arguments)
        return await waiting

    def send(self, name: str, **arguments: object) -> None:
        """Sends a method that has no answer."""
        self.peer.write(methods.encode_method(self.number, methods.make(name, **arguments)))

    def publish(self, address: bytes, header: bytes, body: bytes) -> int:
        """A mandatory publish of a header payload and a body; returns its publish_seqno."""
        number = self.number.to_bytes(2, "big")
        size = len(PUBLISH) + len(address) + 1
        parts = [b"\x01", number, size.to_bytes(4, "big"), PUBLISH, address, b"\x01\xce"]
        parts += [b"\x02", number, len(header).to_bytes(4, "big"), header, b"\xce"]
        limit = self.peer.frame_max - 8
        for at in range(0, len(body), limit):
            piece = body[at : at + limit]
            parts += [b"\x03", number, len(piece).to_bytes(4, "big"), piece, b"\xce"]
        self.peer.write(b"".join(parts))
        seqno = self.next_seqno
        self.next_seqno = seqno + 1
        return seqno

    def ack(self, tag: int, multiple: bool) -> None:
        """Settles a delivery, or all up to it."""
        frame = b"\x01" + self.number.to_bytes(2, "big") + b"\x00\x00\x00\x0d" + ACK + tag.to_bytes(8, "big")
        self.peer.write(frame + (b"\x01\xce" if multiple else b"\x00\xce"))

    # -- what comes -----------------------------------------------------------------------------------------------

    def take(self, kind: int, payload: bytes) -> None:
        """A frame of this channel."""
        if kind == METHOD_FRAME:
            self._take_method(payload)
        elif kind == HEADER_FRAME:
            self._header = payload
            self._missing = int.from_bytes(payload[4:12], "big")
            self._body = []
            if self._missing == 0:
                self._take_message(b"")
        elif kind == BODY_FRAME:
            self._missing -= len(payload)
            self._body.append(payload)
            if self._missing == 0:
                self._take_message(payload if len(self._body) == 1 else b"".join(self._body))

    def _take_method(self, payload: bytes) -> None:
        which = payload[:4]
        if which == DELIVER:
            at = 5 + payload[4]
            self._open = (int.from_bytes(payload[at : at + 8], "big"), payload[at + 8] != 0, payload[at + 9 :])
        elif which == ACK or which == NACK:
            bits = payload[12]
            self.user.confirmed(int.from_bytes(payload[4:12], "big"), bits & 1 != 0, which == ACK)
        elif which == RETURN:
            self._open = (0, False, b"")
            size = payload[6]
            self._reason = f"{int.from_bytes(payload[4:6], 'big')} {payload[7 : 7 + size].decode('utf-8', 'replace')}"
        else:
            self._take_other(methods.decode_method(payload))

    def _take_message(self, body: bytes) -> None:
        opened = self._open
        self._open = None
        if opened is None:
            raise PeerClosed("content came without its method")
        tag, redelivered, address = opened
        if tag == 0:
            self.user.returned(self._reason)
        else:
            self.user.delivered(tag, redelivered, address, self._header, body)

    def _take_other(self, method: Any) -> None:
        if method.name == "Channel.Close":
            self.send("Channel.CloseOk")
            self.end(PeerClosed(f"{method.reply_code} {method.reply_text}", method.reply_code))
        elif method.name == "Basic.Cancel":
            self.user.cancelled()
        elif self._answers and method.name in self._answers[0][1]:
            waiting, _ = self._answers.popleft()
            if not waiting.done():  # nobody waits for it any more
                waiting.set_result(method)
        else:
            raise PeerClosed(f"{method.name} came unasked")

    def end(self, error: PeerClosed) -> None:
        """The channel is at its end: everybody is told, once."""
        if self.is_lost:
            return
        self.is_lost = True
        self.peer.channels.pop(self.number, None)
        answers, self._answers = self._answers, deque()
        for waiting, _ in answers:
            if not waiting.done():
                waiting.set_exception(error)
        self.user.lost(error)


class Peer(asyncio.Protocol):
    """One connection; `connect` makes it. `is_full`: write no more until `writable` is told. what is written
    meanwhile is kept. `is_broken`: it has ended, and not by `close` and the broker's answer.
    """

    def __init__(self, url: Url) -> None:
        self.url = url
        self.channels: dict[int, PeerChannel] = {}
        self.frame_max = 4096
        self.is_full = False
        self.is_broken = False
        self._is_paused = False
        self._transport: asyncio.Transport | None = None
        self._frames = FrameReader(FRAME_MAX, MAX_BODY)
        self._control: asyncio.Future[Any] | None = None
        self._greeting = asyncio.Event()
        self._inbox: deque[Any] = deque()
        self._error: PeerClosed | None = None
        self._heartbeat_s = 0
        self._last_read = time.monotonic()
        self._last_write = 0.0
        self._next_channel = 1
        self._beat: asyncio.TimerHandle | None = None
        self._closed = asyncio.get_running_loop().create_future()

    # -- life -----------------------------------------------------------------------------------------------------

    @classmethod
    async def connect(cls, url: Url, name: str) -> Peer:
        """An open connection, which shows that name. Raises PeerClosed or OSError."""
        loop = asyncio.get_running_loop()
        _, peer = await asyncio.wait_for(
            loop.create_connection(lambda: cls(url), url.host, url.port, ssl=url.tls), CONNECT_S
        )
        try:
            await asyncio.wait_for(peer._shake_hands(name), CONNECT_S)
        except TimeoutError:
            peer.abort()
            raise PeerClosed(f"{url} does not answer") from None
        except PeerClosed:
            peer.abort()
            raise
        return peer

    async def _shake_hands(self, name: str) -> None:
        self.write(PROTOCOL_HEADER)
        await self._expect("Connection.Start")
        capabilities = field_table(
            {"publisher_confirms": True, "basic.nack": True, "consumer_cancel_notify": True, "connection.blocked": True,
             "authentication_failure_close": True}
        )
        properties = field_table({"product": "rabbitpy-broker", "connection_name": name, "capabilities": capabilities})
        response = f"\0{self.url.user}\0{self.url.password}"
        self._send("Connection.StartOk", client_properties=properties, mechanism="PLAIN", response=response, locale="en_US")
        tune = await self._expect("Connection.Tune")
        frame_max = min(tune.frame_max or FRAME_MAX, FRAME_MAX)
        self._heartbeat_s = min(tune.heartbeat or HEARTBEAT_S, HEARTBEAT_S)
        self._send("Connection.TuneOk", channel_max=tune.channel_max, frame_max=frame_max, heartbeat=self._heartbeat_s)
        self.frame_max = frame_max
        self._send("Connection.Open", virtual_host=self.url.vhost, capabilities="", insist=False)
        await self._expect("Connection.OpenOk")
        self._tick()

    async def _expect(self, name: str) -> Any:
        while not self._inbox:
            if self._error is not None:
                raise self._error
            self._greeting.clear()
            await self._greeting.wait()
        method = self._inbox.popleft()
        if method.name != name:
            raise PeerClosed(f"{self.url} says {method.name} where {name} is due")
        return method

    def _tick(self) -> None:
        now = time.monotonic()
        if not self._is_paused and now - self._last_read > 2 * self._heartbeat_s:
            self._end(PeerClosed(f"{self.url} has been silent for {2 * self._heartbeat_s} s"))
            return
        if now - self._last_write >= self._heartbeat_s / 2:
            self.write(HEARTBEAT_FRAME)
        self._beat = asyncio.get_running_loop().call_later(self._heartbeat_s / 2, self._tick)

    async def channel(self, user: ChannelUser) -> PeerChannel:
        """A new open channel."""
        number = self._next_channel
        self._next_channel += 1
        channel = PeerChannel(self, number, user)
        self.channels[number] = channel
        await channel.call("Channel.Open", "Channel.OpenOk", out_of_band="0")
        return channel

    async def close(self) -> None:
        """Closes in order, and waits for it for a second."""
        if self._error is None:
            self._send("Connection.Close", reply_code=200, reply_text="", class_id=0, method_id=0)
            await asyncio.wait([self._closed], timeout=1.0)
        self.abort()

    def abort(self) -> None:
        """Ends at once."""
        self._end(PeerClosed("aborted"))

    def _end(self, error: PeerClosed, *, in_order: bool = False) -> None:
        if self._error is not None:
            return
        self._error = error
        self.is_broken = not in_order
        if self._beat is not None:
            self._beat.cancel()
        if self._transport is not None:
            self._transport.abort()
        self._greeting.set()
        for channel in list(self.channels.values()):
            channel.end(error)
        if not self._closed.done():
            self._closed.set_result(None)

    # -- bytes ----------------------------------------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        """Sends bytes; what is written to a lost connection is lost."""
        if self._error is None and self._transport is not None:
            self._last_write = time.monotonic()
            self._transport.write(data)

    def _send(self, name: str, **arguments: object) -> None:
        self.write(methods.encode_method(0, methods.make(name, **arguments)))

    def pause(self, paused: bool) -> None:
        """Stops reading from the socket, or goes on. Who is not read is not taken for silent."""
        transport = self._transport
        if transport is None or transport.is_closing() or paused == self._is_paused:
            return
        self._is_paused = paused
        if paused:
            transport.pause_reading()
        else:
            self._last_read = time.monotonic()
            transport.resume_reading()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport), "create_connection makes no other"
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(PeerClosed(f"the connection to {self.url} is lost: {exc or 'closed by the other side'}"))

    def pause_writing(self) -> None:
        self.is_full = True

    def resume_writing(self) -> None:
        self.is_full = False
        for channel in list(self.channels.values()):
            channel.user.writable()

    def data_received(self, data: bytes) -> None:
        self._last_read = time.monotonic()
        joined = self._frames.join(bytes(data))
        if joined is None:
            return
        try:
            self._take_frames(joined)
        except (FramingLost, ValueError, KeyError, IndexError) as error:
            self._end(PeerClosed(f"{self.url} sends what is no AMQP 0-9-1: {error}"))
        except PeerClosed as error:
            self._end(error)

    def _take_frames(self, data: bytes) -> None:
        frames, size, at = self._frames, len(data), 0
        if at == 0 and data[:4] == b"AMQP":
            raise PeerClosed(f"{self.url} does not speak AMQP 0-9-1")
        while at < size and frames.frame_at(data, at, size):
            after = frames.after
            payload = data[at + 7 : after - 1]
            number = frames.number
            if number:
                channel = self.channels.get(number)
                if channel is not None:
                    channel.take(frames.kind, payload)
            elif frames.kind == METHOD_FRAME:
                self._take_method(methods.decode_method(payload))
            at = after
            if self._error is not None:
                return
        frames.keep(data, at)

    def _take_method(self, method: Any) -> None:
        name = method.name
        if name not in CONNECTION_METHODS:
            self._inbox.append(method)
            self._greeting.set()
        elif name == "Connection.Close":
            self._send("Connection.CloseOk")
            self._end(PeerClosed(f"{method.reply_code} {method.reply_text}", method.reply_code))
        elif name == "Connection.CloseOk":
            self._end(PeerClosed("closed"), in_order=True)
