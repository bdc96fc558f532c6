"""A proxy before a server's port that loses a connection at a moment of the test's choice."""

from __future__ import annotations

import asyncio


class BreakingProxy:
    """Passes bytes on, until a client has sent `trap`: then the server gets it, and the client loses its connection without an
    answer.
    """

    def __init__(self, host: str, port: int) -> None:
        self.port = 0
        self.trap = b""
        self._target = (host, port)
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.StreamWriter] = set()

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        for writer in self._open:
            writer.transport.abort()
        await asyncio.sleep(0)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            server_reader, server_writer = await asyncio.open_connection(*self._target)
        except OSError:
            writer.transport.abort()
            return
        self._open |= {writer, server_writer}
        answers = asyncio.ensure_future(self._pass_answers(server_reader, writer))
        seen = b""
        try:
            while data := await reader.read(1 << 16):
                server_writer.write(data)
                seen = (seen + data)[-(len(self.trap) + (1 << 16)) :]
                if self.trap and self.trap in seen:
                    self.trap = b""
                    answers.cancel()
                    await asyncio.wait({answers})
                    await server_reader.read(1)  # the server has done it
                    break
        except ConnectionError:
            pass
        finally:
            writer.transport.abort()
            server_writer.transport.abort()
            self._open -= {writer, server_writer}

    async def _pass_answers(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(1 << 16):
                writer.write(data)
        except ConnectionError:
            pass
        writer.transport.abort()
