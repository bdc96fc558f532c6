"""How nodes of a cluster speak to each other: who connects shows that it is a node, and so does who answers.

    owner   --> nonce, 32 bytes
    node    --> size of the hello, 4 bytes    its proof, 32 bytes    the hello, JSON
    owner   --> its own proof, 32 bytes
    node    --> what the client says; owner --> what the client is to hear

A proof is an HMAC-SHA256 with the cluster's secret of what both have said. The secret is made by whichever node comes first, and
is in the registry: whoever may read the engine's tables is a node, and nobody else. The bytes behind the proofs are as the client
has sent them, without encryption of their own; behind a hello without a client they are HTTP, a request of the node itself.

What must stay true: nothing is believed of a hello whose proof is wrong; no byte of a client goes to somebody who has not
shown that it is a node.
"""

from __future__ import annotations

import asyncio
import hmac
import secrets
import socket
from collections.abc import Callable
from typing import Any, Final, cast

import msgspec

from rabbitpy_broker.authentication import Credentials, Login
from rabbitpy_broker.cluster.link_life import LinkLife
from rabbitpy_broker.cluster.log import OutcomeUnknown
from rabbitpy_broker.cluster.registry import Conflict, Registry
from rabbitpy_broker.config import LOOPBACK, split_address
from rabbitpy_broker.errors import ConfigError
from rabbitpy_broker.net.listener import bind, shown
from rabbitpy_broker.net.transport import Clients
from rabbitpy_broker.users import Users
from rabbitpy_broker.workers.handover import ResumedClient, Told

SECRET: Final = "secret/link"
PROOF: Final = 32  # bytes of a nonce, a secret and a proof
HELLO_MAX: Final = 65_536
HELLO_S: Final = 5.0


class LinkError(OSError):
    """The other node does not take the client."""


class Hello(msgspec.Struct, frozen=True):
    """What a node says of a client that it passes on, None: the node itself asks. `user` has logged in there; "": the owner asks
    its own back ends.
    """

    node: str
    vhost: str
    user: str
    client: Told | None
    nonce: bytes


async def cluster_secret(registry: Registry) -> bytes:
    """What the nodes of a cluster know, and nobody else; made by the first that asks. Raises `Unavailable`."""
    while True:
        found = await registry.get(SECRET)
        if found is not None:
            return found.value
        try:
            await registry.put(SECRET, secrets.token_bytes(PROOF), 0)
        except (Conflict, OutcomeUnknown):
            continue


def proof(secret: bytes, who: bytes, nonce: bytes, hello: bytes) -> bytes:
    """Shows that the secret is known, by `who`: b"node" or b"owner"."""
    return hmac.digest(secret, who + nonce + hello, "sha256")


class _Introduction(asyncio.Protocol):
    """Our end of a connection until the owner has answered; then nothing is read until somebody else reads it."""

    def __init__(self, secret: bytes, said: bytes) -> None:
        self.answered: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._secret = secret
        self._said = said
        self._data = b""
        self._nonce = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._data += data
        if not self._nonce and len(self._data) >= PROOF:
            self._nonce, self._data = self._data[:PROOF], self._data[PROOF:]
            said = self._said
            self._transport.write(len(said).to_bytes(4, "big") + proof(self._secret, b"node", self._nonce, said) + said)
        if self._nonce and len(self._data) >= PROOF and not self.answered.done():
            self._transport.pause_reading()
            if hmac.compare_digest(self._data, proof(self._secret, b"owner", self._nonce, self._said)):
                self.answered.set_result(None)
            else:
                self.answered.set_exception(LinkError("it does not show that it is a node of this cluster"))

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.answered.done():
            self.answered.set_exception(LinkError("it does not take the client"))


async def introduce(address: str, secret: bytes, hello: Hello) -> asyncio.Transport:
    """Connects to an owner, and has it take a client: what is written to the transport is what the client says.

    The transport reads nothing until it is told to, by whoever has set its protocol. Raises OSError; TimeoutError is one.
    """
    host, port = split_address(address)
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(HELLO_S):
        transport, protocol = await loop.create_connection(
            lambda: _Introduction(secret, msgspec.json.encode(hello)), host, port
        )
        try:
            await protocol.answered
        except BaseException:
            transport.abort()
            raise
    return transport


class ForwardedClient(ResumedClient):
    """A client of another node, which has let it in."""

    def __init__(self, clients: Clients, client: Told, login: Login | None) -> None:
        super().__init__(clients, client, b"")
        self._login = login

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.connection.session.login = self._login


class _Arrival(asyncio.Protocol):
    """A connection that has not shown yet whose it is."""

    def __init__(self, server: LinkServer) -> None:
        self._server = server
        self._nonce = secrets.token_bytes(PROOF)
        self._data = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.write(self._nonce)
        self._timer = asyncio.get_running_loop().call_later(HELLO_S, self._transport.abort)

    def data_received(self, data: bytes) -> None:
        self._data += data
        size = int.from_bytes(self._data[:4], "big")
        if len(self._data) >= 4 and size > HELLO_MAX:
            self._transport.abort()
        elif len(self._data) >= 4 + PROOF + size:
            self._timer.cancel()
            self._server.arrived(self._transport, self._nonce, self._data[4 : 4 + PROOF], self._data[4 + PROOF :])

    def connection_lost(self, exc: Exception | None) -> None:
        self._timer.cancel()


class LinkServer:
    """Takes the clients that other nodes pass on. `secret` is b"" until it is known: then nobody is believed.

    `http` makes what answers a node's own questions; None without the management API.
    """

    def __init__(self, clients: Clients, users: Users, life: LinkLife, log: Any) -> None:
        self.secret = b""
        self.address = ""  # by which others reach it
        self.http: Callable[[], asyncio.BaseProtocol] | None = None
        self._clients = clients
        self._users = users
        self._life = life
        self.log = log
        self._servers: list[asyncio.Server] = []

    async def start(self, listen: str, advertise: str) -> None:
        """Raises ConfigError, StartError."""
        for listening in bind([listen]):
            server = await asyncio.get_running_loop().create_server(lambda: _Arrival(self), sock=listening)
            self._servers.append(server)
            self.address = self.address or shown(listening)
        self.address = advertised(self.address, advertise)

    def stop(self) -> None:
        for server in self._servers:
            server.close()

    def arrived(self, transport: asyncio.Transport, nonce: bytes, shown_proof: bytes, said: bytes) -> None:
        """A hello is there."""
        expected = proof(self.secret, b"node", nonce, said)
        if not self.secret or not hmac.compare_digest(shown_proof, expected):
            self.log.warning("who connects is no node of the cluster", peer=transport.get_extra_info("peername"))
            transport.abort()
            return
        hello = msgspec.json.decode(said, type=Hello)
        protocol = self._protocol(hello)
        if protocol is None:
            transport.abort()
            return
        self._life.add(transport)
        transport.write(proof(self.secret, b"owner", nonce, said))
        transport.set_protocol(protocol)
        protocol.connection_made(transport)

    def _protocol(self, hello: Hello) -> asyncio.BaseProtocol | None:
        if hello.client is not None:
            return ForwardedClient(self._clients, hello.client, self._login(hello))
        return None if self.http is None else self.http()

    async def ask(self, node: str, address: str) -> asyncio.Transport:
        """A connection to another node, over which this one, `node`, asks its management API. It reads nothing until it is told
        to. Raises OSError.
        """
        if not self.secret:
            raise LinkError("the secret of the cluster is not known yet")
        transport = await introduce(address, self.secret, Hello(node, "", "", None, secrets.token_bytes(PROOF)))
        self._life.add(transport)
        return transport

    def _login(self, hello: Hello) -> Login | None:
        """The log-in that has happened at the other node."""
        if not hello.user:
            return None
        login = Login(Credentials(hello.user, None, from_loopback=False))
        login.user = self._users.get(hello.user)
        login.backend = f"node '{hello.node}'"
        login.reason = "" if login.user is not None else f"node '{hello.node}' knows '{hello.user}', and this one does not"
        login.finish()
        return login


def link_listen(listen: str, listeners: tuple[str, ...]) -> str:
    """Where to listen for other nodes: "auto" is a free port beside the first of the clients' listeners. Raises ConfigError."""
    if listen != "auto":
        return listen
    if not listeners:
        raise ConfigError("cluster.listen: needs an address where there are no listeners")
    host = listeners[0].rpartition(":")[0]
    return f"{host}:0"


def advertised(bound: str, advertise: str) -> str:
    """What others are told of a bound address: the host that is set, or the machine's name where it is bound to all addresses."""
    host, port = split_address(bound)
    if advertise:
        return f"{advertise}:{port}"
    return f"{socket.gethostname()}:{port}" if host in LOOPBACK else bound
