"""The clients of a broker under test: their bytes pass through here, are noted in the history, and meet the trouble that was
asked for.

    socket --bytes--> WatchedClient --frames, held back, changed, lost--> Connection
           <--bytes-- WatchedSocket <--------------------------------- Connection

The broker below knows nothing of it: it gets another socket and other bytes. So what a client sees of a trouble is what the
broker says to such bytes: a refused login is one with another password, a publish that is nacked is routed to a queue that
refuses, an ack that gets lost is a requeue.

What must stay true: without trouble every byte arrives as it came, in order, each frame once it is whole; a half-open socket
looks alive to the client whatever the broker does with the connection; when its network is back, what either side has written
meanwhile arrives, as TCP sends again what was not acknowledged.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Final, cast

from rabbitpy_broker.net.flow import Flow
from rabbitpy_broker.net.moderation import Moderation
from rabbitpy_broker.net.transport import Client, Clients
from rabbitpy_broker.protocol.channel import Channel
from rabbitpy_broker.protocol.connection import Connection
from rabbitpy_broker.protocol.deliveries import queue_of
from rabbitpy_broker.protocol.node import Node
from rabbitpy_broker.queues.msg_status import MsgStatus
from rabbitpy_broker.routing.exchange import Routed
from rabbitpy_broker.routing.routes import Route
from rabbitpy_broker.testing.clock import SettableClock
from rabbitpy_broker.testing.frame_cutter import (
    ACK,
    BODY,
    HEADER,
    METHOD,
    NACK,
    PUBLISH,
    REJECT,
    START_OK,
    Frame,
    FrameCutter,
)
from rabbitpy_broker.testing.history import History, Published, Settled
from rabbitpy_broker.testing.plans import Plans

DELIVERY_TAG: Final = slice(11, 19)  # of a raw ack, nack or reject
FLAGS: Final = 19


class SlowPath:
    """Bytes on their way, each for some time, in order. While it is held nothing arrives."""

    def __init__(self, loop: asyncio.AbstractEventLoop, arrive: Callable[[bytes], None]) -> None:
        self._loop = loop
        self._arrive = arrive
        self._under_way: deque[tuple[float, bytes]] = deque()
        self._is_held = False

    def send(self, data: bytes, delay_s: float) -> None:
        """Has `data` arrive in `delay_s`, or behind what is under way."""
        if delay_s <= 0 and not self._under_way and not self._is_held:
            self._arrive(data)
            return
        due = self._loop.time() + delay_s
        if self._under_way:
            due = max(due, self._under_way[-1][0])
        self._under_way.append((due, data))
        self._loop.call_at(due, self._next)

    def left_s(self) -> float:
        """How long the last that is under way will take; 0: nothing is."""
        return max(0.0, self._under_way[-1][0] - self._loop.time()) if self._under_way else 0.0

    def _next(self) -> None:
        if self._under_way and not self._is_held:
            self._arrive(self._under_way.popleft()[1])

    def hold(self) -> None:
        """Keeps all that is under way, and what is sent from now on."""
        self._is_held = True

    def release(self) -> None:
        """Has all of it arrive."""
        self._is_held = False
        while self._under_way and not self._is_held:
            self._next()

    def lose(self) -> None:
        """What is under way never arrives."""
        self._under_way.clear()


class WatchedSocket(asyncio.Transport):
    """The socket as the broker sees it: `raw` is the real one."""

    def __init__(self, client: WatchedClient, raw: asyncio.Transport) -> None:
        super().__init__()
        self.raw = raw
        self.is_half_open = False
        self._client = client
        self._lost = False
        self._path = SlowPath(client.loop, self._out)

    def write(self, data: bytes | bytearray | memoryview[Any]) -> None:
        whole = bytes(data)
        plans = self._client.plans
        if plans.watches_output:
            whole = self._client.watch_output(whole)
        if whole:
            self._path.send(whole, plans.delay_of(self._client.names()))

    def _out(self, data: bytes) -> None:
        if self.raw.is_closing():
            return
        cut = self._client.plans.cut_of(self._client.names(), len(data))
        if cut < len(data):
            self.raw.write(data[:cut])
            self.raw.abort()
        else:
            self.raw.write(data)

    def half_open(self) -> None:
        """From now on nothing comes and nothing goes, and nobody is told."""
        self.is_half_open = True
        self._path.hold()
        if not self.raw.is_closing():
            self.raw.pause_reading()

    def heal(self) -> None:
        """Lets go of what the broker has given up meanwhile; else goes on."""
        if self.is_half_open:
            self.is_half_open = False
            if self._lost:
                self._path.lose()
                self.raw.abort()
            elif not self.raw.is_closing():
                self.raw.resume_reading()
            self._path.release()

    def _lose(self) -> None:
        if not self._lost:
            self._lost = True
            self._client.loop.call_soon(self._client.connection_lost, None)

    # -- as a transport ------------------------------------------------------------------------------------------------

    def close(self) -> None:
        if self.is_half_open:
            self._lose()
        else:
            left_s = self._path.left_s()
            if left_s:
                self._client.loop.call_later(left_s, self.raw.close)
            else:
                self.raw.close()

    def abort(self) -> None:
        if self.is_half_open:
            self._lose()
        else:
            self.raw.abort()

    def is_closing(self) -> bool:
        return self._lost or self.raw.is_closing()

    def get_write_buffer_size(self) -> int:
        return self.raw.get_write_buffer_size()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self.raw.set_write_buffer_limits(high, low)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self.raw.get_extra_info(name, default)

    def pause_reading(self) -> None:
        self.raw.pause_reading()

    def resume_reading(self) -> None:
        if not self.is_half_open:
            self.raw.resume_reading()


class WatchedClients(Clients):
    """The clients of one broker under test."""

    def __init__(
        self,
        node: Node,
        flow: Flow,
        moderation: Moderation,
        loop: asyncio.AbstractEventLoop,
        read_share_bytes: int,
        log: Any,
        *,
        plans: Plans,
        history: History,
        clock: SettableClock,
    ) -> None:
        super().__init__(node, flow, moderation, loop, read_share_bytes, log)
        self.plans = plans
        self.history = history
        self.clock = clock
        self.half_open: set[WatchedClient] = set()  # also those that the broker has given up

    def new_client(self, *, tls: bool) -> Client:
        return WatchedClient(self, tls=tls)

    def watched(self) -> list[WatchedClient]:
        """All that are open."""
        return [client for client in self.open if isinstance(client, WatchedClient)]

    def heal(self, clients: Iterable[WatchedClient] | None = None) -> None:
        """Half-open connections are whole again, or end where the broker has given them up; by default all of them."""
        for client in list(self.half_open if clients is None else clients):
            self.half_open.discard(client)
            client.heal()


class WatchedClient(Client):
    """One client. `is_silent`: its deadlines go by the broker's clock (clock.py); `due_ms` is the next one."""

    def __init__(self, clients: WatchedClients, *, tls: bool) -> None:
        super().__init__(clients, tls=tls)
        self._watched = clients
        self.loop = clients.loop
        self.plans = clients.plans
        self._clock = clients.clock
        self._history = clients.history
        self._cutter = FrameCutter(has_header=True)
        self._path = SlowPath(clients.loop, self._in)
        self._contents: dict[int, Content] = {}
        self.watched_socket: WatchedSocket
        self.is_silent = False
        self.due_ms = 0
        self._ahead_s = 0.0
        self._is_gone = False
        self._is_dropped = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.watched_socket = WatchedSocket(self, cast(asyncio.Transport, transport))
        super().connection_made(self.watched_socket)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._is_gone:  # a half-open one is lost twice, once for the broker and once for the client
            self._is_gone = True
            self._path.lose()
            super().connection_lost(exc)

    def names(self) -> tuple[str, ...]:
        """By which a trouble may be meant for this client: vhost, user, the name that it gave itself, its address."""
        session = self.connection.session
        vhost, user = session.vhost, session.user
        return (vhost.name if vhost else "", user.name if user else "", session.client_name, self.connection.name)

    def drop(self) -> None:
        """Ends the connection without a word; what it has sent and nobody has taken is lost."""
        self._is_dropped = True
        self.socket.abort()

    def half_open(self) -> None:
        """Cuts the network, and tells nobody."""
        self._watched.half_open.add(self)
        self._path.hold()
        self.watched_socket.half_open()
        self.is_silent = True

    def heal(self) -> None:
        """The network is back."""
        self.watched_socket.heal()
        self.is_silent = False
        self._path.release()

    # -- time ----------------------------------------------------------------------------------------------------------

    def set_timer(self, seconds: float) -> None:
        super().set_timer(seconds)
        self.due_ms = int(self._clock.now_ms()) + int(seconds * 1000)

    def deadline(self, now: float) -> None:
        if not self._is_gone:
            super().deadline(now + self._ahead_s)

    def next_ms(self) -> int:
        """See clock.py: a silent client's deadline; 0 for any other."""
        return self.due_ms if self.is_silent and not self._is_gone else 0

    def pass_time(self, now_ms: int) -> None:
        """Lets the broker notice a client that has been silent so long."""
        if self.is_silent and not self._is_gone and 0 < self.due_ms <= now_ms:
            self._ahead_s = self._clock.ahead_ns / 1e9
            self.due_ms = 0
            self.deadline(self.loop.time())

    # -- from the client -------------------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        self._path.send(bytes(data), self.plans.delay_of(self.names()))

    def _in(self, data: bytes) -> None:
        for frame in self._cutter.cut(data):
            if self._is_gone or self._is_dropped:
                return
            self._take(frame)

    def _take(self, frame: Frame) -> None:
        """Gives a frame to the broker, unless it meets some trouble."""
        drop = self.plans.drop_at(frame.name, "client", self.names()) if frame.kind == METHOD else None
        if drop is not None and drop.is_lost:
            self.drop()
            return
        method = frame.method
        if method == START_OK and self.plans.refuses_login():
            frame = frame._replace(raw=_other_password(frame.raw))
        content = self._contents.get(frame.channel)
        if method == PUBLISH:
            content = self._contents[frame.channel] = Content(frame, self.plans.next_publish(self.names()))
        elif frame.kind == METHOD:
            content = None
            self._contents.pop(frame.channel, None)
        if content is not None and frame.kind in (METHOD, HEADER, BODY):
            content.drops = content.drops or drop is not None
            self._take_content(content, frame)
            return
        if method in (ACK, NACK, REJECT):
            frame = self._settle(frame, method)
        self._give(frame.raw)
        if drop is not None:
            self.drop()

    def _give(self, data: bytes) -> None:
        super().data_received(data)

    def _take_content(self, content: Content, frame: Frame) -> None:
        content.add(frame)
        if not content.is_whole():
            if content.fate == "":
                self._give(frame.raw)
            return
        del self._contents[frame.channel]
        channel = self.connection.channels.get(frame.channel)
        published = int(channel.counters.published) if channel is not None else 0
        if content.fate and channel is not None:
            self._give_to_fate(channel, content)
        else:
            self._give(frame.raw if content.fate == "" else content.raw())
        if channel is not None and (channel.counters.published > published or channel.tx is not None or self.connection.blocked):
            self._history.published.append(content.published(self.connection))
        if content.drops:
            self.drop()

    def _give_to_fate(self, channel: Channel, content: Content) -> None:
        """Has a publish nacked or returned, by a route that leads to nobody who takes it."""
        access = channel.access
        address = content.address
        exchange = content.exchange_name()
        route = Route(address, exchange, content.routing_key(), channel.vhost.exchanges.get(exchange), Routed())
        if content.fate == "nack":
            route.queues.append(self.plans.refusing_queue(channel.vhost))
        before = access._routes.get(address)
        access._routes[address] = route
        access.last_route = None
        try:
            self._give(content.raw())
        finally:
            access.last_route = None
            if before is None:
                access._routes.pop(address, None)
            else:
                access._routes[address] = before

    def _settle(self, frame: Frame, method: int) -> Frame:
        """Notes what a settlement settles; gives the frame that the broker is to see."""
        channel = self.connection.channels.get(frame.channel)
        if channel is None or len(frame.raw) <= FLAGS:
            return frame
        statuses = _meant(channel, frame)
        how = "ack"
        if method != ACK:
            requeues = frame.raw[FLAGS] & (2 if method == NACK else 1)
            how = "requeue" if requeues else ("nack" if method == NACK else "reject")
        elif statuses and self.plans.loses_ack([queue_of(status).name for status in statuses], self.names()):
            nack = METHOD.to_bytes(1, "big") + frame.raw[1:7] + NACK.to_bytes(4, "big") + frame.raw[DELIVERY_TAG]
            return frame._replace(raw=nack + bytes([frame.raw[FLAGS] & 1 | 2, 0xCE]))
        for status in statuses:
            message = status.message
            body = message.body() if message is not None else None
            queue = queue_of(status)
            self._history.settled.append(Settled(queue.vhost, queue.name, how, body, self.connection.name))
        return frame

    # -- to the client ---------------------------------------------------------------------------------------------------

    def watch_output(self, data: bytes) -> bytes:
        """What of the broker's frames still goes out."""
        sent = b""
        for frame in FrameCutter(has_header=False).cut(data):
            drop = self.plans.drop_at(frame.name, "broker", self.names()) if frame.kind == METHOD else None
            if drop is None:
                sent += frame.raw
                continue
            if not drop.is_lost:
                sent += frame.raw
            self.loop.call_soon(self.drop)
            break
        return sent


class Content:
    """A publish, frame by frame. `fate` is "" for one that takes its way, else "nack" or "return"."""

    def __init__(self, method: Frame, fate: str) -> None:
        self.fate = fate
        self.drops = False
        self._frames: list[Frame] = []
        self._size = -1
        self._body = b""
        payload = method.payload
        self.address = payload[6:-1]
        self.is_mandatory = bool(payload[-1] & 1)

    def add(self, frame: Frame) -> None:
        """Takes the next frame."""
        self._frames.append(frame)
        if frame.kind == HEADER:
            self._size = int.from_bytes(frame.payload[4:12], "big")
        elif frame.kind == BODY:
            self._body += frame.payload

    def is_whole(self) -> bool:
        """True when header and body are there."""
        return 0 <= self._size <= len(self._body)

    def raw(self) -> bytes:
        """All its frames."""
        return b"".join(frame.raw for frame in self._frames)

    def exchange_name(self) -> str:
        return self.address[1 : 1 + self.address[0]].decode("utf-8", "replace")

    def routing_key(self) -> str:
        return self.address[2 + self.address[0] :].decode("utf-8", "replace")

    def published(self, connection: Connection) -> Published:
        """For the history."""
        vhost = connection.session.vhost
        header = next(frame.payload for frame in self._frames if frame.kind == HEADER)
        return Published(
            vhost.name if vhost is not None else "",
            self.exchange_name(),
            self.routing_key(),
            self._body,
            self.is_mandatory,
            connection.name,
            header,
        )


def _meant(channel: Channel, frame: Frame) -> list[MsgStatus]:
    """The deliveries that an ack, nack or reject is about."""
    tag = int.from_bytes(frame.raw[DELIVERY_TAG], "big")
    is_multiple = frame.method != REJECT and bool(frame.raw[FLAGS] & 1)
    unacked = channel.deliveries.unacked.all()
    if is_multiple:
        return [status for status in unacked if tag == 0 or status.delivery_tag <= tag]
    return [status for status in unacked if status.delivery_tag == tag]


def _other_password(raw: bytes) -> bytes:
    """connection.start-ok with another password: the last octet of the response is changed.

    method(4) table(4 + n) mechanism(1 + n) response(4 + n) locale(1 + n)
    """
    at = 7 + 4
    at += 4 + int.from_bytes(raw[at : at + 4], "big")
    at += 1 + raw[at]
    end = at + 4 + int.from_bytes(raw[at : at + 4], "big")
    return raw[: end - 1] + bytes([raw[end - 1] ^ 1]) + raw[end:] if end > at + 4 else raw
