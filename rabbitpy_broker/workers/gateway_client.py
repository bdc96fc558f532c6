"""Asking one worker over its Unix sockets: HTTP for the management API and metrics, lines of JSON for the control socket.

What must stay true: whatever keeps a worker from answering is NoAnswer, and nothing else is; a socket's path may be longer than
a socket's address.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import aiohttp
import msgspec

from rabbitpy_broker.management.address import PATH_MAX_BYTES, SocketAddress
from rabbitpy_broker.management.admin import AdminError
from rabbitpy_broker.management.api.asking import NoAnswer, Reply, opened, session_of, whole
from rabbitpy_broker.workers.fleet import WorkerSockets

CONNECT_S: Final = 5.0
LINE_MAX_BYTES: Final = 1_073_741_824  # of an answer of the control socket
AT_ONCE: Final = 0  # connections to one worker: no limit, there are as many as clients ask at once


class WorkerClient:
    """Of one worker, by its sockets; `close` when it is not needed any more."""

    def __init__(self, sockets: WorkerSockets) -> None:
        self._sockets = sockets
        self._folder = -1
        self._http: dict[Path, aiohttp.ClientSession] = {}

    async def close(self) -> None:
        for session in self._http.values():
            await session.close()
        self._http.clear()
        if self._folder >= 0:
            os.close(self._folder)
            self._folder = -1

    def _address(self, path: Path) -> str:
        if len(os.fsencode(path)) <= PATH_MAX_BYTES:
            return str(path)
        if self._folder < 0:
            self._folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        return f"/proc/self/fd/{self._folder}/{path.name}"

    def _session(self, path: Path) -> aiohttp.ClientSession:
        session = self._http.get(path)
        if session is None:
            try:
                connector = aiohttp.UnixConnector(self._address(path), limit=AT_ONCE)
            except OSError as error:
                raise NoAnswer(str(error)) from None
            session = self._http[path] = session_of(connector, CONNECT_S)
        return session

    async def open(
        self, method: str, path: str, headers: Mapping[str, str], body: Any = None, *, metrics: bool = False
    ) -> aiohttp.ClientResponse:
        """The beginning of an answer, whose rest is the caller's to read and to release. `path` is as it stands in a request's
        first line. Raises NoAnswer.
        """
        return await opened(self._server(metrics=metrics), method, path, headers, body)

    async def ask(
        self,
        method: str,
        path: str,
        headers: Mapping[str, str],
        body: Any = None,
        *,
        metrics: bool = False,
        within_s: float | None = None,
    ) -> Reply:
        """A whole answer, not compressed. Raises NoAnswer, also when it takes longer than `within_s`."""
        return await whole(self._server(metrics=metrics), method, path, headers, body, within_s=within_s)

    def _server(self, *, metrics: bool) -> aiohttp.ClientSession:
        return self._session(self._sockets.metrics if metrics else self._sockets.management)

    async def command(self, name: str, arguments: list[Any], options: Mapping[str, Any]) -> Any:
        """The result of a command of the control socket. Raises AdminError as the worker does, and NoAnswer."""
        line = msgspec.json.encode({"command": name, "arguments": arguments, "options": options}) + b"\n"
        try:
            answer = await self._line(line)
        except (OSError, ValueError) as error:
            raise NoAnswer(str(error)) from None
        if not answer.endswith(b"\n"):
            raise NoAnswer("it has hung up")
        found = msgspec.json.decode(answer)
        if not found["ok"]:
            raise AdminError(found["error"], found["code"])
        return found["result"]

    async def _line(self, line: bytes) -> bytes:
        with SocketAddress(self._sockets.control) as address:
            reader, writer = await asyncio.open_unix_connection(address, limit=LINE_MAX_BYTES)
        try:
            writer.write(line)
            await writer.drain()
            return await reader.readline()
        finally:
            writer.close()
