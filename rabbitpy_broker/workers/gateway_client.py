"""Asking one worker over its Unix sockets: HTTP for the management API and metrics, lines of JSON for the control socket.

What must stay true: whatever keeps a worker from answering is WorkerDown, and nothing else is; a socket's path may be longer than
a socket's address.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import aiohttp
import msgspec
from yarl import URL

from rabbitpy_broker.errors import BrokerError
from rabbitpy_broker.management.address import PATH_MAX_BYTES, SocketAddress
from rabbitpy_broker.management.admin import AdminError
from rabbitpy_broker.workers.fleet import WorkerSockets

CONNECT_S: Final = 5.0
LINE_MAX_BYTES: Final = 1_073_741_824  # of an answer of the control socket
AT_ONCE: Final = 0  # connections to one worker: no limit, there are as many as clients ask at once


class WorkerDown(BrokerError):
    """A worker does not answer."""


@dataclass
class Reply:
    """What a worker has answered."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        """The value in the body. Raises msgspec.DecodeError."""
        return msgspec.json.decode(self.body)


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
                raise WorkerDown(str(error)) from None
            session = self._http[path] = aiohttp.ClientSession(
                connector=connector,
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=False,
                timeout=aiohttp.ClientTimeout(total=None, connect=CONNECT_S, sock_connect=CONNECT_S),
                skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding", "Content-Type"),
            )
        return session

    async def open(
        self, method: str, path: str, headers: Mapping[str, str], body: Any = None, *, metrics: bool = False
    ) -> aiohttp.ClientResponse:
        """The beginning of an answer, whose rest is the caller's to read and to release. `path` is as it stands in a request's
        first line. Raises WorkerDown.
        """
        session = self._session(self._sockets.metrics if metrics else self._sockets.management)
        url = URL(f"http://worker{path}", encoded=True)
        try:
            return await session.request(method, url, headers=headers, data=body, allow_redirects=False)
        except (OSError, aiohttp.ClientError, TimeoutError) as error:
            raise WorkerDown(str(error)) from None

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
        """A whole answer, not compressed. Raises WorkerDown, also when it takes longer than `within_s`."""
        try:
            async with asyncio.timeout(within_s):
                response = await self.open(method, path, {**headers, "Accept-Encoding": "identity"}, body, metrics=metrics)
                async with response:
                    return Reply(response.status, response.headers, await response.read())
        except TimeoutError:
            raise WorkerDown(f"it has not answered within {within_s} s") from None
        except (OSError, aiohttp.ClientError) as error:
            raise WorkerDown(str(error)) from None

    async def command(self, name: str, arguments: list[Any], options: Mapping[str, Any]) -> Any:
        """The result of a command of the control socket. Raises AdminError as the worker does, and WorkerDown."""
        line = msgspec.json.encode({"command": name, "arguments": arguments, "options": options}) + b"\n"
        try:
            answer = await self._line(line)
        except (OSError, ValueError) as error:
            raise WorkerDown(str(error)) from None
        if not answer.endswith(b"\n"):
            raise WorkerDown("it has hung up")
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
