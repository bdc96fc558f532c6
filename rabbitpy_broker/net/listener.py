"""Listening sockets, plain and TLS.

Certificates may be read again while sockets listen: who connects from then on gets the new ones, who is connected stays.
"""

from __future__ import annotations

import asyncio
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


class Listeners:
    """All listening sockets. `addresses` are those really bound, port 0 replaced."""

    def __init__(self, clients: Clients) -> None:
        self._clients = clients
        self._servers: list[asyncio.Server] = []
        self.addresses: list[str] = []
        self.tls_addresses: list[str] = []
        self.tls: ServerTls | None = None

    async def start(self, config: NetConfig) -> None:
        """Binds every address. Raises StartError for one that cannot be had."""
        backlog = config.tcp_listen_options.backlog
        await self._listen(config.listeners, backlog, None, self.addresses)
        if config.listeners_ssl:
            self.tls = ServerTls(config.ssl_options)
            await self._listen(config.listeners_ssl, backlog, self.tls, self.tls_addresses)

    async def _listen(
        self, addresses: Sequence[str], backlog: int, context: ssl.SSLContext | None, bound: list[str]
    ) -> None:
        clients = self._clients
        for address in addresses:
            host, port = split_address(address)
            try:
                server = await clients.loop.create_server(
                    lambda: clients.new_client(tls=context is not None),
                    host,
                    port,
                    backlog=backlog,
                    ssl=context,
                    ssl_handshake_timeout=clients.handshake_timeout_s if context else None,
                )
            except OSError as error:
                raise StartError(f"cannot listen on {address}: {error.strerror or error}") from None
            self._servers.append(server)
            for listening in server.sockets:
                name = listening.getsockname()
                shown = f"[{name[0]}]" if ":" in name[0] else name[0]
                bound.append(f"{shown}:{name[1]}")

    def stop(self) -> None:
        """Accepts nobody any more; the connections that are open go on."""
        self._clients.accepting = False
        for server in self._servers:
            server.close()
