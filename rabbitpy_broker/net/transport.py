"""A socket and its connection: asyncio's bytes go in, the connection's bytes go out.

Reading stops for any of three reasons and goes on when none is left:

  UNWANTED the connection says so: an alarm is on and the peer publishes, or it does not read what it asked for
  HELD     the peer outruns the consumers of its queues     until they have caught up (`flow.py`)
  YIELDED  one read gave it a share of the turn or more      until the next turn

YIELDED keeps one busy socket from starving the others: libuv would otherwise read it up to 32 times in a row.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable, Mapping
from typing import Any, Final, cast

from rabbitpy_broker.net.deadlines import Deadlines, HasDeadline
from rabbitpy_broker.net.flow import HELD, Flow
from rabbitpy_broker.net.moderation import Moderation
from rabbitpy_broker.protocol.connection import GIVE_UP, Connection
from rabbitpy_broker.protocol.node import Node
from rabbitpy_broker.protocol.output import Transport
from rabbitpy_broker.queues.queue import Queue

UNWANTED: Final = 1

YIELDED: Final = 4


class SocketTransport(Transport):
    """The socket as its connection sees it."""

    def __init__(self, client: Client) -> None:
        self._client = client

    @property
    def client(self) -> Client:
        return self._client

    def write(self, data: bytes) -> None:
        if not self._client.socket.is_closing():
            self._client.socket.write(data)

    def close(self) -> None:
        self._client.socket.close()

    def reading_wanted(self, wanted: bool) -> None:
        if wanted:
            self._client.go_on_reading(UNWANTED)
        else:
            self._client.stop_reading(UNWANTED)

    def unsent(self) -> int:
        """The bytes that wait for the socket. Of a TLS connection only those not yet encrypted: the last 64 KiB or so are
        not seen.
        """
        return self._client.socket.get_write_buffer_size()

    def set_timer(self, seconds: float) -> None:
        self._client.set_timer(seconds)


class Clients:
    """All open sockets, and the state that they share. `after_turn` is to be called at the end of each turn."""

    def __init__(
        self,
        node: Node,
        flow: Flow,
        moderation: Moderation,
        loop: asyncio.AbstractEventLoop,
        read_share_bytes: int,
        log: Any,
    ) -> None:
        self.node = node
        self.flow = flow
        self.moderation = moderation
        self.loop = loop
        self.read_share_bytes = read_share_bytes
        self.log = log
        self.handshake_timeout_s = 10.0
        self.deadlines = Deadlines(loop)
        self.open: set[Client] = set()
        self.connections: dict[Connection, None] = {}  # those whose handshake is over
        self.accepting = True
        self.certificate_name: Callable[[Mapping[str, Any]], str] | None = None  # None: certificates name nobody
        self._none = asyncio.Event()

    def new_client(self, *, tls: bool) -> Client:
        """A client for a socket that has just been accepted."""
        return Client(self, tls=tls)

    def after_turn(self) -> None:
        """Lets go of clients that flow control need not hold any more, and rests if that pays."""
        self.flow.after_turn()
        self.moderation.after_turn()

    def closed(self, client: Client) -> None:
        """Forgets a client whose socket is closed."""
        self.open.discard(client)
        self.deadlines.forget(client)
        if not self.open:
            self._none.set()

    def abort_all(self) -> None:
        """Closes every socket at once."""
        self.deadlines.stop()
        for client in list(self.open):
            client.socket.abort()

    async def wait_until_none(self) -> None:
        """Returns when no client is left."""
        while self.open:
            self._none.clear()
            await self._none.wait()


class Client(asyncio.Protocol, HasDeadline):
    """One socket as asyncio sees it."""

    socket: asyncio.Transport
    connection: Connection

    def __init__(self, clients: Clients, *, tls: bool) -> None:
        self._clients = clients
        self._tls = tls
        self._stopped_by = 0
        self.peer = self.ours = ("", 0)  # host and port
        self.connected_at_ms = time.time_ns() // 1_000_000

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.socket = cast(asyncio.Transport, transport)
        clients = self._clients
        peer, ours = self.addresses()
        raw = transport.get_extra_info("socket")
        if raw is not None and raw.family in (socket.AF_INET, socket.AF_INET6):
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        mark = clients.node.limits.output_high_water_mark
        self.socket.set_write_buffer_limits(high=int(mark), low=int(mark) // 4)
        loopback = peer[0].startswith("127.") or peer[0] in ("::1", "") or peer[0].startswith("::ffff:127.")
        self.peer, self.ours = peer, ours
        name = f"{peer[0]}:{peer[1]} -> {ours[0]}:{ours[1]}"
        self.connection = Connection(
            clients.node,
            clients.connections,
            self.make_transport(),
            name,
            loopback=loopback,
            tls=self._tls,
            certificate_name=self.certificate_name(),
        )
        clients.open.add(self)
        self.set_timer(clients.handshake_timeout_s)
        if not clients.accepting:
            self.socket.abort()

    def addresses(self) -> tuple[tuple[str, int], tuple[str, int]]:
        """The peer's and ours: host and port."""
        return _address(self.socket.get_extra_info("peername")), _address(self.socket.get_extra_info("sockname"))

    def certificate_name(self) -> str:
        """What the peer's certificate calls it; "" without one, or when nobody wants to know."""
        name_of = self._clients.certificate_name
        certificate = self.socket.get_extra_info("peercert") if self._tls and name_of is not None else None
        return name_of(certificate) if certificate and name_of is not None else ""

    def make_transport(self) -> SocketTransport:
        return SocketTransport(self)

    @property
    def is_tls(self) -> bool:
        return self._tls

    def set_timer(self, seconds: float) -> None:
        """Has `deadline` called in `seconds`, and no longer at the time that was set before."""
        self._clients.deadlines.set(self, seconds)

    def deadline(self, now: float) -> None:
        """Follows the end of the timer: passes it on to the connection."""
        try:
            seconds = self.connection.tick(now)
        except Exception:  # a fault ends this client; the others are called
            self.connection.log.exception("internal error")
            seconds = GIVE_UP
        if seconds < 0:
            self.socket.abort()
        elif seconds > 0:
            self.set_timer(seconds)

    def data_received(self, data: bytes) -> None:
        connection = self.connection
        self._clients.moderation.read(len(data))
        try:
            connection.receive_data(data)
        except Exception:  # a fault in the very answer to a fault: nothing is left to say
            connection.log.exception("internal error")
            self.socket.abort()
            return
        queue = connection.congested
        if queue is not None:
            connection.congested = None
            if isinstance(queue, Queue):
                self._clients.flow.consider(self, queue)
        if len(data) >= self._clients.read_share_bytes and not self._stopped_by & YIELDED:
            self.stop_reading(YIELDED)
            self._clients.loop.call_soon(self.go_on_reading, YIELDED)

    def eof_received(self) -> None:
        """Closes our side after the peer has closed its own (a half-open AMQP connection is of no use)."""

    def connection_lost(self, exc: Exception | None) -> None:
        self.let_go("client closed the socket" if exc is None else f"socket error: {exc}")

    def let_go(self, reason: str) -> None:
        """Ends the connection; the socket is gone, or somebody else's from now on."""
        self._clients.closed(self)
        self._clients.flow.forget(self)
        self.connection.connection_lost(reason)

    def pause_writing(self) -> None:
        self.connection.writing_paused()

    def resume_writing(self) -> None:
        self.connection.writing_resumed()

    def stop_reading(self, reason: int) -> None:
        """Stops reading for this reason."""
        if not self._stopped_by and not self.socket.is_closing():
            self.socket.pause_reading()
        self._stopped_by |= reason
        self.connection.reading = False

    def is_held(self) -> bool:
        """True while flow control holds the client."""
        return bool(self._stopped_by & HELD)

    def go_on_reading(self, reason: int) -> None:
        """Takes this reason back; reading goes on when it was the last."""
        if not self._stopped_by & reason:
            return
        self._stopped_by &= ~reason
        self.connection.reading = not self._stopped_by
        if not self._stopped_by and not self.socket.is_closing():
            self.socket.resume_reading()


def _address(address: Any) -> tuple[str, int]:
    """Host and port of a socket address, ("", 0) for an address without them."""
    return (str(address[0]), int(address[1])) if isinstance(address, tuple) else ("", 0)
