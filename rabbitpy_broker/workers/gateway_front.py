"""One request to the gateway, and the ways to have it answered: passed on to one worker, or asked of all.

A request is passed on as it came, with what the gateway knows of who asks (`management/api/forwarded.py`), and its answer goes
back piece by piece, as it comes: also one that has no end. What must stay true: whether somebody may ask is each worker's to say,
and the gateway gives nothing of its own to whom no worker has answered.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
from aiohttp import ClientError, web

from rabbitpy_broker.config import Config
from rabbitpy_broker.errors import BrokerError
from rabbitpy_broker.management.api.asking import NoAnswer, Reply
from rabbitpy_broker.management.api.errors import ApiError
from rabbitpy_broker.management.api.forwarded import BEGUN, FORWARDED, Told, header_value
from rabbitpy_broker.management.api.request import Answer, Request, Row
from rabbitpy_broker.management.api.server import NOBODY, write_part
from rabbitpy_broker.management.managed import Listener
from rabbitpy_broker.workers.fleet import Fleet, Member
from rabbitpy_broker.workers.gateway_client import WorkerClient
from rabbitpy_broker.workers.gateway_sessions import GatewaySessions

DOWN: Final = "X-Rabbitpy-Workers-Down"  # of a list from which the numbers of these workers are missing
OF_ONE_HOP: Final = frozenset((
    "connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "te", "trailer", "transfer-encoding", "upgrade",
    "expect", FORWARDED.lower(), BEGUN.lower(),
))  # fmt: skip
OF_A_BODY: Final = frozenset(("content-length", "content-encoding", "content-type", "content-disposition", "set-cookie", "date"))
FOR_ALL_S: Final = 30.0  # for a worker to answer what all are asked; then the others' answers are enough


class Refused(BrokerError):
    """A worker has answered something else than was asked for: that is the answer."""

    def __init__(self, reply: Reply) -> None:
        super().__init__(f"answered with {reply.status}")
        self.reply = reply


@dataclass
class Asked:
    """A request: its path's decoded segments, and by the names of the route; its query; what is passed on of its headers.

    `base` are the headers of the answer that is being made, those of a worker's; `down` has the workers that are missing from it.
    """

    http: web.Request
    method: str
    segments: list[str]
    names: dict[str, str]
    query: dict[str, str]
    headers: dict[str, str]
    prefix: str
    told: Told
    base: dict[str, str] = field(default_factory=dict)
    down: set[int] = field(default_factory=set)

    async def body(self) -> bytes:
        return await self.http.read()

    def light(self, body: bytes = b"") -> Request:
        """For what the gateway does itself with lists and files."""
        headers = {key.lower(): value for key, value in self.headers.items()}
        return Request(self.method, self.names, self.query, headers, body, NOBODY, self.told.peer)


class Front:
    """What answers a gateway's requests. `listeners` are the gateway's own."""

    def __init__(self, fleet: Fleet, config: Config, log: Any) -> None:
        self.fleet = fleet
        self.config = config
        self.log = log
        self.sessions = GatewaySessions(config.management.login_session_timeout * 60.0)
        self.listeners: list[Listener] = []
        self.streams: set[asyncio.Task[Any]] = set()
        self._clients: dict[int, WorkerClient] = {}

    async def close(self) -> None:
        for task in list(self.streams):
            task.cancel()
        await asyncio.gather(*self.streams, return_exceptions=True)
        for client in self._clients.values():
            await client.close()

    @property
    def node_name(self) -> str:
        return self.config.node.cluster()

    def client(self, member: Member) -> WorkerClient:
        found = self._clients.get(member.number)
        if found is None:
            found = self._clients[member.number] = WorkerClient(member.sockets)
        return found

    # -- which worker ------------------------------------------------------------------------------------------------

    def ready(self) -> list[Member]:
        """Those that can be asked. Raises ApiError 503 when there are none."""
        found = [member for member in self.fleet.members() if member.ready]
        if not found:
            raise ApiError(503, "service_unavailable", "no worker is running", {"Retry-After": "1"})
        return found

    def first(self) -> Member:
        """The worker that is asked for what is the whole daemon's. Raises ApiError 503."""
        return self.ready()[0]

    def member(self, number: int, vhost: str) -> Member:
        """Raises ApiError 503 while it does not run."""
        for member in self.fleet.members():
            if member.number == number and member.ready:
                return member
        text = f"worker {number}, which has vhost '{vhost}', is not running"
        raise ApiError(503, "service_unavailable", text, {"Retry-After": "1"})

    def of_vhost(self, vhost: str) -> Member:
        """The worker of a vhost; of one that there is not, any. Raises ApiError 503."""
        number = self.fleet.placed().get(vhost)
        return self.first() if number is None else self.member(number, vhost)

    # -- asking ------------------------------------------------------------------------------------------------------

    def _headers(self, asked: Asked, *, is_for_all: bool = False) -> dict[str, str]:
        told = msgspec.structs.replace(asked.told, is_for_all=is_for_all) if is_for_all else asked.told
        return {**asked.headers, FORWARDED: header_value(told)}

    async def ask(
        self, asked: Asked, member: Member, method: str, path: str, body: bytes | None = None, *, is_for_all: bool = False
    ) -> Reply:
        """Asks a worker on behalf of whoever asks here; `path` is below /api. Raises NoAnswer."""
        given = self._headers(asked, is_for_all=is_for_all)
        headers = {key: value for key, value in given.items() if key.lower() not in ("content-length", "accept-encoding")}
        within_s = FOR_ALL_S if is_for_all else None
        return await self.client(member).ask(method, f"{asked.prefix}/api/{path}", headers, body, within_s=within_s)

    async def open(self, asked: Asked, member: Member, path: str) -> Any:
        """The beginning of an answer that has no end. Raises NoAnswer."""
        dropped = ("last-event-id", "accept-encoding")
        headers = {key: value for key, value in self._headers(asked).items() if key.lower() not in dropped}
        headers["Accept-Encoding"] = "identity"
        return await self.client(member).open("GET", f"{asked.prefix}/api/{path}", headers)

    async def ask_all(
        self, asked: Asked, path: str, *, needs_all: bool = False, lenient: bool = False, method: str = "GET"
    ) -> list[tuple[int, Reply]]:
        """What all workers answer, the lowest first, by their numbers; those that do not are in `asked.down`.

        Raises Refused for an answer that is none of what was asked for, if not `lenient`; and ApiError 503 when there is no
        worker or, with `needs_all`, when one is missing.
        """
        members = self.ready()
        numbers = {member.number for member in self.fleet.members()}
        replies = await asyncio.gather(*(self._ask_or_none(asked, member, method, path) for member in members))
        found = [(member.number, reply) for member, reply in zip(members, replies, strict=True) if reply is not None]
        good = [(number, reply) for number, reply in found if reply.status < 300]
        others = [reply for _, reply in found if 300 <= reply.status < 500]
        if others and not (lenient and good):
            raise Refused(others[0])
        asked.down |= numbers - {number for number, _ in found} | {number for number, reply in found if reply.status >= 500}
        if not good or (needs_all and asked.down):
            if found and not good:
                raise Refused(found[0][1])
            missing = ", ".join(map(str, sorted(asked.down)))
            raise ApiError(503, "service_unavailable", f"worker {missing} is not running", {"Retry-After": "1"})
        asked.base = kept_headers(good[0][1].headers)
        return good

    async def _ask_or_none(self, asked: Asked, member: Member, method: str, path: str) -> Reply | None:
        try:
            return await self.ask(asked, member, method, path, is_for_all=True)
        except NoAnswer as error:
            self.log.warning("worker not asked", worker=member.number, reason=str(error))
            return None

    async def check(self, asked: Asked) -> None:
        """Raises Refused for who may not use the API at all, and ApiError or NoAnswer when nobody can tell."""
        reply = await self.ask(asked, self.first(), "GET", "whoami")
        if reply.status != 200:
            raise Refused(reply)

    # -- answering ---------------------------------------------------------------------------------------------------

    async def pass_on(self, asked: Asked, member: Member, body: bytes | None = None) -> web.StreamResponse:
        """The whole request, as it came, and the answer of the worker as that comes. Raises NoAnswer before there is any."""
        http = asked.http
        if body is None:
            body = await http.read() if http.body_exists else None
        headers = self._headers(asked)
        response = await self.client(member).open(http.method, http.raw_path, headers, body)
        try:
            return await self._stream(http, response)
        finally:
            response.close() if http.transport is None or http.transport.is_closing() else response.release()

    async def _stream(self, http: web.Request, response: Any) -> web.StreamResponse:
        stream = web.StreamResponse(status=response.status, headers=_passed(response.headers))
        for cookie in response.headers.getall("Set-Cookie", []):
            stream.headers.add("Set-Cookie", cookie)
        task = asyncio.current_task()
        assert task is not None, "an HTTP server's handler is a task"
        self.streams.add(task)
        try:
            await stream.prepare(http)
            if http.method != "HEAD":
                async for part in _parts(response):
                    await write_part(http, stream, part)
                await stream.write_eof()
        except ConnectionError:  # the client has left: there is nobody to tell
            response.close()
        except (ClientError, TimeoutError):  # the worker has gone in the middle: nor is the answer to look whole
            if http.transport is not None:
                http.transport.abort()
        finally:
            self.streams.discard(task)
        return stream

    async def written(self, by: Member, reply: Reply) -> None:
        """Has all workers know what one has changed for the whole daemon."""
        if reply.status < 400:
            await self.fleet.tell(by.number)


def kept_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """Those of a worker's answer that say nothing of its body."""
    return {key: value for key, value in headers.items() if key.lower() not in OF_ONE_HOP | OF_A_BODY}


def _passed(headers: Mapping[str, str]) -> dict[str, str]:
    return {key: value for key, value in headers.items() if key.lower() not in OF_ONE_HOP | {"set-cookie"}}


async def _parts(response: Any) -> AsyncIterator[bytes]:
    async for part in response.content.iter_any():
        yield part


@dataclass
class Made(Answer):
    """An answer that the gateway has put together; `value` is what its body says."""

    value: Any = None


def as_answer(asked: Asked, value: Any, status: int = 200) -> Made:
    """A value that the gateway has made of what workers answered."""
    headers = dict(asked.base)
    if asked.down:
        headers[DOWN] = ", ".join(map(str, sorted(asked.down)))
    return Made(status, [msgspec.json.encode(value)], headers, value)


def rows_of(replies: Sequence[tuple[int, Reply]]) -> list[list[Row]]:
    """The lists that workers have answered with."""
    return [reply.json() for _, reply in replies]
