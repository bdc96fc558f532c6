"""What holds a worker and its supervisor together: a socket between the two, by which each asks the other.

    {"ask": NUMBER, "what": NAME, ...}     a question with its arguments, as a line of JSON
    {"answer": NUMBER, "value": VALUE}     what came of it; or "error" with the reason

What must stay true: a question is answered once, or the socket is gone; what is asked last may be answered first.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Awaitable, Callable
from typing import Any, Final

from rabbitpy_broker.errors import BrokerError

LINE_MAX_BYTES: Final = 16_777_216

Answerer = Callable[[str, dict[str, Any]], Awaitable[Any]]


class LeashError(BrokerError):
    """The other side could not do what it was asked, or is gone; the text says why."""


class Leash:
    """One end. `answer(what, arguments)` does what the other side asks; what it raises of BrokerError is told as the reason."""

    def __init__(self, answer: Answerer, log: Any) -> None:
        self._answer = answer
        self._log = log
        self._asked: dict[int, asyncio.Future[Any]] = {}
        self._number = 0
        self._answering: set[asyncio.Task[None]] = set()
        self._writer: asyncio.StreamWriter | None = None

    async def connect(self, connected: socket.socket) -> asyncio.StreamReader:
        """Questions may be asked from then on; `run` is to be called with what this returns."""
        reader, self._writer = await asyncio.open_unix_connection(sock=connected, limit=LINE_MAX_BYTES)
        return reader

    async def run(self, reader: asyncio.StreamReader) -> None:
        """Until the other side is gone, or this is cancelled."""
        writer = self._writer
        assert writer is not None, "kept by: connect"
        try:
            while line := await reader.readline():
                self._take(json.loads(line))
        except ConnectionError as error:
            self._log.debug("leash broken", reason=str(error))
        finally:
            self._writer = None
            for task in self._answering:
                task.cancel()
            for future in self._asked.values():
                if not future.done():
                    future.set_exception(LeashError("the process has ended"))
            self._asked.clear()
            writer.close()

    def _take(self, message: dict[str, Any]) -> None:
        if "ask" in message:
            task = asyncio.get_running_loop().create_task(self._answer_one(message.pop("ask"), message.pop("what"), message))
            self._answering.add(task)
            task.add_done_callback(self._answering.discard)
            return
        future = self._asked.pop(message["answer"], None)
        if future is None or future.done():
            return
        if "error" in message:
            future.set_exception(LeashError(message["error"]))
        else:
            future.set_result(message["value"])

    async def _answer_one(self, number: int, what: str, arguments: dict[str, Any]) -> None:
        try:
            told = {"answer": number, "value": await self._answer(what, arguments)}
        except BrokerError as error:
            told = {"answer": number, "error": str(error)}
        except Exception as fault:  # noqa: BLE001 -- a fault of ours in one question
            self._log.exception("internal error", question=what)
            told = {"answer": number, "error": f"internal error: {fault!r}"}
        self._send(told)

    def _send(self, message: dict[str, Any]) -> None:
        if self._writer is not None:
            self._writer.write(json.dumps(message).encode() + b"\n")

    async def ask(self, what: str, **arguments: Any) -> Any:
        """Raises LeashError."""
        if self._writer is None:
            raise LeashError("the process does not run")
        self._number += 1
        number = self._number
        future = self._asked[number] = asyncio.get_running_loop().create_future()
        self._send({"ask": number, "what": what, **arguments})
        try:
            return await future
        finally:
            self._asked.pop(number, None)
