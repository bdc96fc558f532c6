"""Clients that have come to a node which does not own their vhost, and are passed on to the one that does.

    client --socket--> node             header, start-ok, tune-ok, open VHOST: it has logged in here
                       node  ---link--> owner      who it is, and what it has said
    client --socket--> node  ---link--> owner      its bytes, both ways

The owner hears the handshake again, leaves out what the client has heard already, and checks everything but the password
(`link.py`). From then on the node between copies bytes. What goes to the client goes on at the end of a frame, so that the node
can say connection.close by itself when the owner is gone, is another one, or when it stops itself.

A client that comes while its vhost goes from one node to another waits for a moment, at whichever node it is, in place of being
told that nobody has it; one that has been passed on to the former owner, and not been let in, is passed on to the new one.

What must stay true: no byte of a client is lost or said twice; a client is told 320 before its socket is closed, unless it has
heard or said that the connection ends.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine
from typing import Any, Final, NoReturn, cast

import msgspec

from rabbitpy_broker.cluster import link
from rabbitpy_broker.cluster.link_life import LinkLife
from rabbitpy_broker.cluster.other_nodes import OtherNodes
from rabbitpy_broker.cluster.view import View
from rabbitpy_broker.errors import CONNECTION_FORCED, ConnectionClosed
from rabbitpy_broker.net.transport import Client, SocketTransport
from rabbitpy_broker.protocol.session import Session
from rabbitpy_broker.questions import AnswerAwaited, Question
from rabbitpy_broker.wire import methods
from rabbitpy_broker.workers.handover import Pipe, all_sent, said_so_far, told_of

FAREWELL_S: Final = 5.0  # that a client has to say close-ok
STOP_S: Final = 1.0  # the same, when the node stops
LOOK_S: Final = 0.01
MOVE_S: Final = 3.0  # that a client waits for a vhost which is on its way
FRAME_HEAD: Final = 7
CONTROL: Final = b"\x01\x00\x00"  # how a method frame of channel 0 begins
CONNECTION: Final = b"\x00\x0a\x00"
CLOSING: Final = (50, 51)  # connection.close, close-ok
CLOSE_OK: Final = b"\x01\x00\x00\x00\x00\x00\x04\x00\x0a\x00\x33\xce"


class Frames:
    """Cuts what an owner says at the ends of frames. `is_closing`: connection.close or close-ok was among them."""

    def __init__(self) -> None:
        self.is_closing = False
        self._kept: list[bytes] = []  # of a frame that has begun
        self._kept_size = 0
        self._needed = 0

    def whole(self, data: bytes) -> bytes:
        """The frames that are whole now."""
        if self._kept:
            self._kept.append(data)
            self._kept_size += len(data)
            if self._kept_size < self._needed:
                return b""
            data = b"".join(self._kept)
            self._kept.clear()
        pos, size, self._needed = 0, len(data), FRAME_HEAD
        while size - pos >= FRAME_HEAD:
            end = pos + FRAME_HEAD + 1 + int.from_bytes(data[pos + 3 : pos + 7], "big")
            if end > size:
                self._needed = end - pos
                break
            if data[pos : pos + 3] == CONTROL and data[pos + 7 : pos + 10] == CONNECTION and data[pos + 10] in CLOSING:
                self.is_closing = True
            pos = end
        if pos < size:
            self._kept.append(data[pos:])
            self._kept_size = size - pos
        return data[:pos]


class FromOwner(Pipe):
    """What the owner says goes to the client, a frame at a time. `to` is the client's socket, `transport` the link.

    `said` is what the client has said, as long as the owner has not answered.
    """

    def __init__(self, forwarding: Forwarding, owner: str, hello: link.Hello, said: bytes) -> None:
        self.vhost = hello.vhost
        self.owner = owner
        self.hello = hello
        self.said = said
        self._forwarding = forwarding
        self._frames = Frames()
        self._is_over = False

    def data_received(self, data: bytes) -> None:
        whole = self._frames.whole(data)
        self.said = b""
        if whole and not self._is_over:
            self.to.write(whole)

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self.end(f"node '{self.owner}', which owns vhost '{self.vhost}', is gone")

    def leave(self) -> None:
        """Lets go of the owner, which has not answered, and keeps the client."""
        self._is_over = True
        self._forwarding.open.discard(self)
        self.to.pause_reading()
        self.transport.abort()

    def end(self, reason: str) -> None:
        """Tells the client, unless its connection has ended by itself, and lets go of both."""
        if self._is_over:
            return
        self._is_over = True
        self._forwarding.open.discard(self)
        self.transport.abort()
        if self._frames.is_closing:
            self.to.close()
        elif not self.to.is_closing():
            Farewell(self.to, self._forwarding.leaving).say(reason)


class Farewell(asyncio.Protocol):
    """A client that is told to close: what it says then is nobody's, until it hangs up or ends with close-ok."""

    def __init__(self, client: asyncio.Transport, leaving: set[Farewell]) -> None:
        self.client = client
        self._leaving = leaving
        self._last = b""
        self._timer = asyncio.get_running_loop().call_later(FAREWELL_S, client.abort)

    def say(self, reason: str) -> None:
        """Raises nothing."""
        self._leaving.add(self)
        error = ConnectionClosed(CONNECTION_FORCED, reason)
        close = methods.make(
            "Connection.Close", reply_code=error.code, reply_text=error.reply_text(), class_id=0, method_id=0
        )
        self.client.set_protocol(self)
        self.client.write(methods.encode_method(0, close))
        self.client.resume_reading()

    def data_received(self, data: bytes) -> None:
        self._last = (self._last + data)[-len(CLOSE_OK) :]
        if self._last == CLOSE_OK:
            self.client.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._timer.cancel()
        self._leaving.discard(self)


class Forwarding(OtherNodes):
    """Passes clients on. `node` is our name; `secret` is b"" until it is known."""

    def __init__(self, node: str, view: View, life: LinkLife, log: Any) -> None:
        super().__init__(node, view)
        self.secret = b""
        self.open: set[FromOwner] = set()
        self.leaving: set[Farewell] = set()
        self._life = life
        self.log = log
        self._going: set[asyncio.Task[None]] = set()
        view.changed.append(self._close_moved)

    def ask(self, session: Session, vhost: str) -> None:
        """Raises AnswerAwaited; ConnectionClosed when it cannot be passed on."""
        if session.refusal:
            raise ConnectionClosed(CONNECTION_FORCED, session.refusal)
        owner = self._view.owner_of(vhost)
        if owner is None:
            return
        client = cast(SocketTransport, session.output.transport).client
        is_passed_on = isinstance(client, link.ForwardedClient)
        if owner in ("", self._node) or is_passed_on:
            self._begin(lambda question: self._wait(session, vhost, question, is_passed_on=is_passed_on))
        session.refusal = f"vhost '{vhost}' is owned by node '{owner}', which cannot be reached"
        info = self._view.nodes.get(owner)
        if info is None or not info.link or not self.secret:
            raise ConnectionClosed(CONNECTION_FORCED, session.refusal)
        self._begin(lambda question: self._pass_on(client, vhost, owner, info.link, question))

    def _begin(self, work: Callable[[Question], Coroutine[None, None, None]]) -> NoReturn:
        """Raises AnswerAwaited, for a question that the work finishes."""
        question = Question()
        self._start(work(question))
        raise AnswerAwaited(question)

    def _start(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._going.add(task)
        task.add_done_callback(self._going.discard)

    async def _wait(self, session: Session, vhost: str, question: Question, *, is_passed_on: bool) -> None:
        """Until the vhost is open here, or, unless the client comes from there, owned elsewhere; not for ever."""
        ends = asyncio.get_running_loop().time() + MOVE_S
        while vhost not in session.node.vhosts:
            owner = self._view.owner_of(vhost)
            if owner is None or (owner not in ("", self._node) and not is_passed_on):
                break
            if asyncio.get_running_loop().time() > ends:
                where = f"owned by node '{owner}'" if owner else "without an owner"
                session.refusal = f"vhost '{vhost}' is {where}"
                break
            await asyncio.sleep(LOOK_S)
        question.finish()

    async def _pass_on(self, client: Client, vhost: str, owner: str, address: str, question: Question) -> None:
        session = client.connection.session
        user = session.user
        assert user is not None, "kept by: handshake"
        name = user.name if user.is_ours else ""  # whom another back end knows is asked for again there
        hello = link.Hello(self._node, vhost, name, told_of(client), os.urandom(link.PROOF))
        try:
            transport = await link.introduce(address, self.secret, hello)
        except OSError as error:
            self.log.warning("client not passed on", vhost=vhost, owner=owner, reason=str(error) or type(error).__name__)
            question.finish()
            return
        await all_sent(client)
        if client.socket.is_closing():
            transport.abort()
            return
        client.connection.log.info("connection passed on", vhost=vhost, owner=owner, user=user.name)
        said = said_so_far(session, with_response=not name)
        client.let_go(f"passed on to node '{owner}'")
        self._join(client.socket, transport, FromOwner(self, owner, hello, said))

    def _join(self, client: asyncio.Transport, transport: asyncio.Transport, from_owner: FromOwner) -> None:
        from_client = Pipe()
        from_client.to, from_client.transport = transport, client
        from_owner.to, from_owner.transport = client, transport
        self.open.add(from_owner)
        self._life.add(transport)
        client.set_protocol(from_client)
        transport.set_protocol(from_owner)
        transport.write(from_owner.said)
        transport.resume_reading()
        client.resume_reading()
        self._close_moved()  # while it was introduced

    async def _pass_on_again(self, former: FromOwner, owner: str) -> None:
        """To another owner, who hears all from the beginning."""
        hello = msgspec.structs.replace(former.hello, nonce=os.urandom(link.PROOF))
        info = self._view.nodes.get(owner)
        try:
            if info is None:
                raise link.LinkError("it does not run")
            transport = await link.introduce(info.link, self.secret, hello)
        except OSError as error:
            self.log.warning("client not passed on", vhost=former.vhost, owner=owner, reason=str(error) or type(error).__name__)
            if not former.to.is_closing():
                Farewell(former.to, self.leaving).say(f"vhost '{former.vhost}' is owned by node '{owner}'")
            return
        if former.to.is_closing():
            transport.abort()
            return
        self._join(former.to, transport, FromOwner(self, owner, hello, former.said))

    def _close_moved(self) -> None:
        """An owner that was stopped and not killed has kept its sockets: its clients have nothing more to hear from it."""
        for one in list(self.open):
            owner = self._view.owner_of(one.vhost)
            if owner == one.owner:
                continue
            if owner and one.said:  # also to this node itself, which owns it now
                one.leave()
                self._start(self._pass_on_again(one, owner))
            else:
                where = f"owned by node '{owner}'" if owner else "without an owner"
                one.end(f"vhost '{one.vhost}' is {where}")

    async def stop(self) -> None:
        """Closes all; some are given time to say close-ok."""
        for task in self._going:
            task.cancel()
        for one in list(self.open):
            one.end("broker forced connection closure with reason 'shutdown'")
        ends = asyncio.get_running_loop().time() + STOP_S
        while self.leaving and asyncio.get_running_loop().time() < ends:  # noqa: ASYNC110 -- once, and soon over
            await asyncio.sleep(LOOK_S)
        for left in list(self.leaving):
            left.client.abort()
