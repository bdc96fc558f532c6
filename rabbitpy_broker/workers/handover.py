"""A connection on its way to the worker of its vhost, when it has asked for one that another worker has.

    client --socket--> worker that accepted it      header, start-ok, tune-ok, open VHOST
                         --where is VHOST?--> supervisor
                         --the socket, and what the client has said so far--> worker of VHOST
    client --socket--> worker of VHOST              open-ok, and all that follows

The worker of the vhost hears the whole handshake again and checks everything itself; what it would say that the client has
heard already is left out (`ResumedTransport`). A socket with TLS stays where it was accepted, since its keys cannot be
handed over: the other worker gets one end of a pair of sockets, and the plain bytes go through (`Pipe`).

What must stay true: a socket is read by one worker at a time, and no byte of the client is lost or taken twice; a worker that
has not said that it took a socket has answered nothing on it, or the connection ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypedDict, cast

from rabbitpy_broker.management.address import SocketAddress
from rabbitpy_broker.net.transport import Client, Clients, SocketTransport
from rabbitpy_broker.protocol.handshake import PROTOCOL_HEADER
from rabbitpy_broker.protocol.node import Elsewhere
from rabbitpy_broker.protocol.session import Session
from rabbitpy_broker.questions import AnswerAwaited, Question
from rabbitpy_broker.wire import methods
from rabbitpy_broker.wire.field_table import encode_table
from rabbitpy_broker.workers.counting import Counting
from rabbitpy_broker.workers.fleet import listen_on
from rabbitpy_broker.workers.leash import Leash, LeashError

BACKLOG: Final = 1_024
AGAIN_S: Final = 0.02  # between two tries to reach a worker that does not listen
SENT_S: Final = 0.001  # between two looks whether the client has been sent what it is to hear
TAKEN: Final = b"\x01"
SIZES: Final = struct.Struct("!II")  # of what is told of the connection, as JSON, and of what the client has said

START: Final = b"\x00\x0a\x00\x0a"
TUNE: Final = b"\x00\x0a\x00\x1e"


def said_so_far(session: Session, *, with_response: bool = True) -> bytes:
    """What a client says from the header to tune-ok that comes to this session, and what it has said since.

    Without a response, where whoever hears it is not to log in with it.
    """
    mechanism, response = session.mechanism.encode(), session.response if with_response else b""
    payload = b"\x00\x0a\x00\x0b" + encode_table(session.client_properties)
    payload += bytes([len(mechanism)]) + mechanism + len(response).to_bytes(4, "big") + response + b"\x05en_US"
    start_ok = b"\x01\x00\x00" + len(payload).to_bytes(4, "big") + payload + b"\xce"
    tune_ok = methods.make(
        "Connection.TuneOk",
        channel_max=int(session.channel_max),
        frame_max=int(session.output.frame_max),
        heartbeat=int(session.heartbeat),
    )
    return PROTOCOL_HEADER + start_ok + methods.encode_method(0, tune_ok) + session.frames.kept()


class Told(TypedDict):
    """What whoever accepted a connection tells of it: addresses as host and port."""

    peer: tuple[str, int]
    ours: tuple[str, int]
    tls: bool
    certificate_name: str
    connected_at_ms: int


def told_of(client: Client) -> Told:
    """What is told of this one."""
    return {
        "peer": client.peer,
        "ours": client.ours,
        "tls": client.is_tls,
        "certificate_name": client.connection.session.certificate_name,
        "connected_at_ms": client.connected_at_ms,
    }


async def all_sent(client: Client) -> None:
    """Returns when the client has been sent what it is to hear from here."""
    while client.connection.output.marked or client.socket.get_write_buffer_size():  # noqa: ASYNC110 -- rare, and soon over
        await asyncio.sleep(SENT_S)


class Where(Question):
    """The worker of a vhost is asked for; finished when there is none."""


class Others(Elsewhere):
    """The other workers. `place_of(number)` is where one takes connections; None for the one that asks.

    Where a vhost was found last is tried first. It may have moved, or be gone: then the worker that has had it gets the
    connection, and asks the supervisor, as for every one that was handed over. So a connection goes astray once at most.
    """

    def __init__(self, leash: Leash, place_of: Callable[[int], Path | None], counting: Counting, log: Any) -> None:
        self.handed_over = 0
        self._counting = counting
        self._leash = leash
        self._place_of = place_of
        self._log = log
        self._going: set[asyncio.Task[None]] = set()
        self._found: dict[str, int] = {}  # vhosts, and the workers that have had them

    def ask(self, session: Any, vhost: str) -> None:
        if session.missing_vhost == vhost:
            return
        where = Where()
        task = asyncio.get_running_loop().create_task(self._find(session, vhost, where))
        self._going.add(task)
        task.add_done_callback(self._going.discard)
        raise AnswerAwaited(where)

    def counts(self, session: Any, user: str) -> tuple[int, int, int]:
        return self._counting.ask(session, user)

    async def _find(self, session: Session, vhost: str, where: Where) -> None:
        client = cast(SocketTransport, session.output.transport).client
        try:
            while not client.socket.is_closing():
                number = None if session.is_resumed else self._found.get(vhost)
                if number is None:
                    number = await self._leash.ask("where", vhost=vhost)
                place = None if number is None else self._place_of(number)
                if number is None or place is None:
                    session.missing_vhost = vhost
                    where.finish()
                    return
                try:
                    taker = await self._reach(place)
                except OSError:  # it has just ended, and is started again
                    self._found.pop(vhost, None)
                    await asyncio.sleep(AGAIN_S)
                    continue
                self._found[vhost] = number
                await self._hand_over(client, taker)
                return
        except (OSError, LeashError) as error:
            self._log.warning("connection not handed over", vhost=vhost, reason=str(error))
            client.socket.abort()

    async def _reach(self, path: Path) -> socket.socket:
        """A connection to whoever takes connections there. Raises OSError."""
        taker = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        taker.setblocking(False)
        try:
            with SocketAddress(path) as address:
                taker.connect(address)
        except OSError:
            taker.close()
            raise
        return taker

    async def _hand_over(self, client: Client, taker: socket.socket) -> None:
        """Raises OSError."""
        loop = asyncio.get_running_loop()
        with taker:
            await all_sent(client)
            said = said_so_far(client.connection.session)
            text = json.dumps(told_of(client)).encode()
            if client.is_tls:
                kept, given = socket.socketpair()
                kept.setblocking(False)
            else:
                given = socket.socket(fileno=os.dup(client.socket.get_extra_info("socket").fileno()))
            with given:
                socket.send_fds(taker, [SIZES.pack(len(text), len(said))], [given.fileno()])
                await loop.sock_sendall(taker, text + said)
                if await loop.sock_recv(taker, 1) != TAKEN:
                    raise OSError("the other worker has ended")
        self.handed_over += 1
        client.connection.log.debug("connection handed over")
        if client.is_tls:
            client.let_go("handed over to another worker")
            await through(client.socket, kept)
        else:
            client.socket.abort()  # the other worker has the socket, too


class Pipe(asyncio.Protocol):
    """Bytes from one socket to another; `to` is set before anything is read."""

    to: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self.to.write(data)

    def eof_received(self) -> bool:
        self.to.close()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self.to.close()

    def pause_writing(self) -> None:
        self.to.pause_reading()

    def resume_writing(self) -> None:
        if not self.to.is_closing():
            self.to.resume_reading()


async def through(outer: asyncio.Transport, inner: socket.socket) -> None:
    """Has all bytes of the one go to the other, both ways, until one of them closes."""
    to_client, from_client = Pipe(), Pipe()
    to_client.to, to_client.transport = outer, outer
    transport, _ = await asyncio.get_running_loop().create_unix_connection(lambda: to_client, sock=inner)
    from_client.to, from_client.transport = transport, outer
    outer.set_protocol(from_client)
    if outer.is_closing():
        transport.close()
        return
    outer.resume_reading()


class ResumedTransport(SocketTransport):
    """Leaves out connection.start and connection.tune, which the client has heard from the worker that accepted it."""

    def __init__(self, client: Client) -> None:
        super().__init__(client)
        self._heard = 2

    def write(self, data: bytes) -> None:
        while self._heard and data:
            if data[7:11] not in (START, TUNE):
                self._heard = 0
                break
            self._heard -= 1
            data = data[8 + int.from_bytes(data[3:7], "big") :]
        if data:
            super().write(data)


class ResumedClient(Client):
    """The client of a socket that another worker has accepted, with what it told of it.

    What the client has said is taken when the loop has begun to read, which uvloop does behind `connection_made`, whatever that
    has said of it: a connection that is to be handed over once more would be read here, too.
    """

    def __init__(self, clients: Clients, told: Told, said: bytes) -> None:
        super().__init__(clients, tls=told["tls"])
        self.connected_at_ms = told["connected_at_ms"]
        self._told = told
        self._said: bytes | None = said

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.connection.session.is_resumed = True
        asyncio.get_running_loop().call_soon(self._say)

    def _say(self) -> None:
        said, self._said = self._said, None
        if said is not None and not self.socket.is_closing():
            self.data_received(said)

    def data_received(self, data: bytes) -> None:
        if self._said is None:
            super().data_received(data)
        else:
            self._said += data

    def addresses(self) -> tuple[tuple[str, int], tuple[str, int]]:
        peer, ours = self._told["peer"], self._told["ours"]
        return (peer[0], peer[1]), (ours[0], ours[1])

    def certificate_name(self) -> str:
        return str(self._told["certificate_name"])

    def make_transport(self) -> SocketTransport:
        return ResumedTransport(self)


class Taker:
    """Takes the connections that other workers hand over."""

    def __init__(self, clients: Clients, log: Any) -> None:
        self._clients = clients
        self._log = log
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, path: Path) -> None:
        """Raises OSError."""
        listening = listen_on(path)
        listening.listen(BACKLOG)
        listening.setblocking(False)
        self._go(self._accept(listening))

    def _go(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def stop(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        with listening:
            while True:
                giver, _ = await loop.sock_accept(listening)
                self._go(self._take(giver))

    async def _take(self, giver: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        with giver:
            try:
                giver.setblocking(False)
                sizes, given = await _receive_socket(giver)
                text, said = await _receive(giver, sizes[0]), await _receive(giver, sizes[1])
                await loop.sock_sendall(giver, TAKEN)
            except OSError as error:
                self._log.warning("connection not taken", reason=str(error))
                return
        given.setblocking(False)
        told: Told = json.loads(text)
        with contextlib.suppress(OSError):  # the client has gone meanwhile
            await loop.connect_accepted_socket(lambda: ResumedClient(self._clients, told, said), given)


async def _receive_socket(giver: socket.socket) -> tuple[tuple[int, int], socket.socket]:
    """What comes first: two sizes, and a socket. Raises OSError."""
    loop = asyncio.get_running_loop()
    readable = loop.create_future()
    loop.add_reader(giver.fileno(), _done, readable)
    try:
        await readable
    finally:
        loop.remove_reader(giver.fileno())
    data, fds, _, _ = socket.recv_fds(giver, SIZES.size, 1)
    if len(data) != SIZES.size or len(fds) != 1:
        for fd in fds:
            os.close(fd)
        raise OSError("the other worker has ended")
    return cast(tuple[int, int], SIZES.unpack(data)), socket.socket(fileno=fds[0])


def _done(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


async def _receive(giver: socket.socket, size: int) -> bytes:
    """Raises OSError."""
    loop = asyncio.get_running_loop()
    parts = []
    while size:
        part = await loop.sock_recv(giver, min(size, 262_144))
        if not part:
            raise OSError("the other worker has ended")
        parts.append(part)
        size -= len(part)
    return b"".join(parts)
