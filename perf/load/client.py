"""A blocking AMQP client for everything off the hot path: logging in, declaring, and what the other tools here need.

One call, one answer. Content frames are not its business: a connection that publishes or consumes is handed to engine.py
once its channels are set up, with `take()`.
"""

from __future__ import annotations

import dataclasses
import socket
import urllib.parse
from types import TracebackType
from typing import Any, Self

from pamqp import base, body, commands, exceptions, frame, header
from pamqp.header import ProtocolHeader

FRAME_MAX = 131072
# A broker that does not answer a close in this time is left alone.
CLOSE_TIMEOUT = 2.0


class Refused(Exception):
    """The broker cannot be reached, or closed the connection or the channel; the text says why."""


@dataclasses.dataclass(frozen=True)
class Address:
    """What an AMQP URL says."""

    host: str
    port: int
    user: str
    password: str
    vhost: str

    @classmethod
    def parse(cls, url: str) -> Address:
        """Raises ValueError for what is not amqp://[user:password@]host[:port][/vhost]."""
        parts = urllib.parse.urlsplit(url)
        if parts.scheme != "amqp" or not parts.hostname:
            raise ValueError(f"{url!r} is not amqp://[user:password@]host[:port][/vhost]")
        vhost = urllib.parse.unquote(parts.path[1:]) if len(parts.path) > 1 else "/"
        user = urllib.parse.unquote(parts.username or "guest")
        password = urllib.parse.unquote(parts.password or "guest")
        return cls(parts.hostname, parts.port or 5672, user, password, vhost)


class Client:
    """An open connection; the constructor logs in. Raises Refused."""

    def __init__(self, address: Address, name: str = "perf.load", timeout: float = 30.0) -> None:
        self.unread = b""
        self.frame_max = FRAME_MAX
        self.server: dict[str, Any] = {}
        try:
            self.sock = socket.create_connection((address.host, address.port), timeout)
        except OSError as error:
            raise Refused(
                f"cannot connect to {address.host}:{address.port}: {error.strerror or error}"
            ) from None
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            self._log_in(address, name)
        except Refused:
            self.sock.close()
            raise

    def _log_in(self, address: Address, name: str) -> None:
        self._send_all(ProtocolHeader().marshal())
        start = self.receive(commands.Connection.Start)
        self.server = dict(start.server_properties or {})
        properties: dict[str, Any] = {
            "product": "perf.load",
            "connection_name": name,
            "capabilities": {"basic.nack": True, "publisher_confirms": True, "consumer_cancel_notify": True},
        }
        self.send(
            0,
            commands.Connection.StartOk(
                properties, "PLAIN", f"\0{address.user}\0{address.password}", "en_US"
            ),
        )
        tune = self.receive(commands.Connection.Tune)
        self.frame_max = min(tune.frame_max or FRAME_MAX, FRAME_MAX)
        # No heartbeats: while a window is full or a backlog drains, half of the connections say nothing on purpose.
        self.send(0, commands.Connection.TuneOk(tune.channel_max, self.frame_max, 0))
        self.send(0, commands.Connection.Open(address.vhost))
        self.receive(commands.Connection.OpenOk)

    @property
    def server_name(self) -> str:
        """Product and version, as the broker calls itself."""
        product, version = self.server.get("product", "unknown"), self.server.get("version", "")
        return f"{product} {version}".strip()

    def call(self, channel: int, method: base.Frame, answer: type[base.Frame]) -> Any:
        """Sends a method and returns the broker's answer to it."""
        self.send(channel, method)
        return self.receive(answer)

    def open_channel(self, channel: int) -> None:
        self.call(channel, commands.Channel.Open(), commands.Channel.OpenOk)

    def send(self, channel: int, method: base.Frame | header.ContentHeader | body.ContentBody) -> None:
        self._send_all(frame.marshal(method, channel))

    def _send_all(self, data: bytes) -> None:
        try:
            self.sock.sendall(data)
        except OSError as error:
            raise Refused(f"the connection broke: {error}") from None

    def receive(self, wanted: type[base.Frame]) -> Any:
        """The next `wanted` method, whatever comes before it; a close raises Refused."""
        while True:
            got = self._next_frame()
            if isinstance(got, wanted):
                return got
            if isinstance(got, commands.Connection.Close | commands.Channel.Close):
                raise Refused(f"{got.reply_code} {got.reply_text}")

    def _next_frame(self) -> object:
        while len(self.unread) < 7 or len(self.unread) < self._frame_size():
            try:
                data = self.sock.recv(65536)
            except OSError as error:
                raise Refused(f"no answer from the broker: {error}") from None
            if not data:
                raise Refused("the broker closed the connection without a word")
            self.unread += data
        size = self._frame_size()
        whole, self.unread = self.unread[:size], self.unread[size:]
        try:
            return frame.unmarshal(whole)[2]
        except exceptions.UnmarshalingException as error:
            raise Refused(f"not an AMQP 0-9-1 broker: {error}") from None

    def _frame_size(self) -> int:
        return int.from_bytes(self.unread[3:7], "big") + 8

    def take(self) -> tuple[socket.socket, bytes]:
        """The socket, and what has been read from it but not looked at; the client is done with both."""
        return self.sock, self.unread

    def close(self) -> None:
        """Closes as the protocol asks for, as far as the broker plays along."""
        self.sock.settimeout(CLOSE_TIMEOUT)
        try:
            self.call(0, commands.Connection.Close(200, "", 0, 0), commands.Connection.CloseOk)
        except Refused:
            pass  # closing was all that was wanted
        self.sock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
