"""A TCP relay in front of a broker that cuts its connections on demand, as a failing network does.

Clients that reconnect are shown to do so through it, whichever broker stands behind: the broker sees the client vanish
without connection.close, and the client can come back to the same address at once.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from types import TracebackType
from typing import Self

from broker_process import BrokerAddress

CHUNK = 65536


class CuttingProxy(BrokerAddress):
    """Relays from a free loopback port to `target` while the `with` block runs; `cut` drops what is connected."""

    def __init__(self, target: BrokerAddress) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        host, port = self._listener.getsockname()
        super().__init__(host, port, target.user, target.password, target.vhost)
        self._target = (target.host, target.port)
        self._lock = threading.Lock()
        self._sockets: list[socket.socket] = []
        self.accepted = 0

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        # shutdown wakes the thread in accept(); close alone would leave it there
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()

    def cut(self) -> None:
        """Drops every connection there is; new ones are accepted as before."""
        with self._lock:
            sockets, self._sockets = self._sockets, []
        for each in sockets:
            # the peer may have gone first
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:  # the listener was closed
                return
            try:
                server = socket.create_connection(self._target)
            except OSError:  # the broker is down: so is the way to it
                client.close()
                continue
            with self._lock:
                self._sockets += [client, server]
                self.accepted += 1
            for source, sink in ((client, server), (server, client)):
                source.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                threading.Thread(target=self._relay, args=(source, sink), daemon=True).start()

    def _relay(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(CHUNK):
                sink.sendall(data)
        with contextlib.suppress(OSError):
            sink.shutdown(socket.SHUT_RDWR)
        source.close()
