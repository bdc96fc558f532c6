"""Listening sockets, plain and TLS.

Certificates may be read again while sockets listen: who connects from then on gets the new ones, who is connected stays.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Sequence
from typing import Self

from rabbitpy_broker.config import NetConfig, SslOptions, split_address
from rabbitpy_broker.errors import ConfigError, StartError
from rabbitpy_broker.net.transport import Clients


class _AlertingTls(ssl.SSLObject):
    """TLS that tells a client by an alert why it is refused.

    The loop hangs up when a handshake fails, and drops the bytes that wait to be sent. Told to wait for more instead,
    it sends the alert first. Then the client hangs up, or the loop hangs up at its next bytes or when its time is over.
    """

    outgoing: ssl.MemoryBIO
    _failed: ssl.SSLError | None = None

    def do_handshake(self) -> None:
        if self._failed is not None:
            raise self._failed
        try:
            super().do_handshake()
        except ssl.SSLWantReadError:
            raise
        except ssl.SSLError as error:
            if not self.outgoing.pending:  # the client does not speak TLS
                raise
            self._failed = error
            raise ssl.SSLWantReadError from error


class _AlertingContext(ssl.SSLContext):
    sslobject_class = _AlertingTls

    def wrap_bio(
        self,
        incoming: ssl.MemoryBIO,
        outgoing: ssl.MemoryBIO,
        server_side: bool = False,
        server_hostname: str | bytes | None = None,
        session: ssl.SSLSession | None = None,
    ) -> ssl.SSLObject:
        tls = super().wrap_bio(incoming, outgoing, server_side, server_hostname, session)
        assert isinstance(tls, _AlertingTls)
        tls.outgoing = outgoing
        return tls


class ServerTls(ssl.SSLContext):
    """What listening sockets hold: for each client it has the context that was read last. Raises ConfigError."""

    options_given: SslOptions
    current: ssl.SSLContext

    def __new__(cls, options: SslOptions) -> Self:
        self = super().__new__(cls, ssl.PROTOCOL_TLS_SERVER)
        self.options_given = options
        self.current = tls_context(options)
        return self

    def __init__(self, options: SslOptions) -> None:
        """Everything is done: a context takes its protocol before this is called."""

    def reload(self) -> None:
        """Reads the files again. Raises ConfigError, and then goes on with what it has."""
        self.current = tls_context(self.options_given)

    def wrap_bio(
        self,
        incoming: ssl.MemoryBIO,
        outgoing: ssl.MemoryBIO,
        server_side: bool = False,
        server_hostname: str | bytes | None = None,
        session: ssl.SSLSession | None = None,
    ) -> ssl.SSLObject:
        return self.current.wrap_bio(incoming, outgoing, server_side, server_hostname, session)


def tls_context(options: SslOptions) -> ssl.SSLContext:
    """The server's TLS settings, RabbitMQ's where a client sees them. Raises ConfigError for certificates that cannot be read.

    No session tickets in TLS 1.3: they come after the handshake, when the Java client's NIO mode takes every record for data.
    TLS 1.2 has its tickets inside the handshake. Of the ciphers both sides have, the client's first choice is taken.
    """
    context = _AlertingContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.num_tickets = 0
    context.options &= ~ssl.OP_CIPHER_SERVER_PREFERENCE
    try:
        context.load_cert_chain(options.certfile, options.keyfile)
        if options.cacertfile:
            context.load_verify_locations(options.cacertfile)
        if options.crlfile:
            context.load_verify_locations(options.crlfile)
            context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"ssl_options: certificates cannot be loaded: {error}") from None
    if options.verify == "verify_peer":
        context.verify_mode = ssl.CERT_REQUIRED if options.fail_if_no_peer_cert else ssl.CERT_OPTIONAL
    return context


def bind(addresses: Sequence[str]) -> list[socket.socket]:
    """Sockets bound there; a name may have several addresses. Raises StartError for one that cannot be had."""
    bound: list[socket.socket] = []
    try:
        for address in addresses:
            bound += _bind(address)
    except BaseException:
        for listening in bound:
            listening.close()
        raise
    return bound


def _bind(address: str) -> list[socket.socket]:
    host, port = split_address(address)
    bound: list[socket.socket] = []
    try:
        found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, kind, protocol, _, place in dict.fromkeys(found):
            listening = socket.socket(family, kind, protocol)
            bound.append(listening)
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            listening.bind(place)
    except OSError as error:
        for listening in bound:
            listening.close()
        raise StartError(f"cannot listen on {address}: {error.strerror or error}") from None
    return bound


def shown(listening: socket.socket) -> str:
    """Its address as the configuration has addresses, port 0 replaced."""
    host, port = listening.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class Listeners:
    """All listening sockets. `addresses` are those really bound, port 0 replaced."""

    def __init__(self, clients: Clients) -> None:
        self._clients = clients
        self._servers: list[asyncio.Server] = []
        self.addresses: list[str] = []
        self.tls_addresses: list[str] = []
        self.tls: ServerTls | None = None
        self._suspended: tuple[list[str], list[str]] = [], []

    async def start(self, config: NetConfig) -> None:
        """Binds every address. Raises StartError for one that cannot be had, ConfigError for certificates."""
        await self.start_on(config, bind(config.listeners), bind(config.listeners_ssl))

    async def start_on(self, config: NetConfig, plain: Sequence[socket.socket], tls: Sequence[socket.socket]) -> None:
        """Listens on sockets that are bound; closes them if that cannot be. Raises StartError, ConfigError for certificates."""
        backlog = config.tcp_listen_options.backlog
        try:
            for listening in plain:
                await self._listen(listening, backlog, None, self.addresses)
            if tls:
                self.tls = ServerTls(config.ssl_options)
            for listening in tls:
                await self._listen(listening, backlog, self.tls, self.tls_addresses)
        except BaseException:
            self.stop()
            for listening in (*plain, *tls):
                listening.close()
            raise

    async def _listen(self, listening: socket.socket, backlog: int, context: ssl.SSLContext | None, bound: list[str]) -> None:
        clients = self._clients
        address = shown(listening)
        try:
            server = await clients.loop.create_server(
                lambda: clients.new_client(tls=context is not None),
                sock=listening,
                backlog=backlog,
                ssl=context,
                ssl_handshake_timeout=clients.handshake_timeout_s if context else None,
            )
        except OSError as error:  # somebody else has bound it in the same moment, and was first to listen
            raise StartError(f"cannot listen on {address}: {error.strerror or error}") from None
        self._servers.append(server)
        bound.append(address)

    def suspend(self) -> None:
        """Accepts nobody until `resume`: whoever connects is refused by the system."""
        for server in self._servers:
            server.close()
        self._servers.clear()
        self._suspended = self.addresses, self.tls_addresses
        self.addresses, self.tls_addresses = [], []

    async def resume(self, config: NetConfig) -> None:
        """Listens again where it did. Raises StartError, and may be asked again."""
        plain, tls = self._suspended
        bound: list[socket.socket] = []
        try:
            bound = bind(plain)
            secure = bind(tls)
        except BaseException:
            for listening in bound:
                listening.close()
            raise
        backlog = config.tcp_listen_options.backlog
        for listening in bound:
            await self._listen(listening, backlog, None, self.addresses)
        for listening in secure:
            await self._listen(listening, backlog, self.tls, self.tls_addresses)
        self._suspended = [], []

    def stop(self) -> None:
        """Accepts nobody any more; the connections that are open go on."""
        self._clients.accepting = False
        for server in self._servers:
            server.close()
