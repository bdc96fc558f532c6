"""The management API's port: HTTP in, handlers, HTTP out. The one file here that knows aiohttp.

    path -> route -> 405 or OPTIONS -> who asks -> may it -> handler -> value, Answer, Listing, Made or Stream -> bytes

It runs in the broker's loop: no handler holds it for longer than a slice, and at most LISTS_AT_ONCE lists are made at a time.
What must stay true: every request below /api gets RabbitMQ's kind of answer; what a handler raises goes no further than here;
no write is done that another site's page may have asked for, or on a broker that is read-only here, and each is in the audit.
"""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import hashlib
import inspect
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qsl, unquote

import msgspec
from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from rabbitpy_broker.cluster.shared_table import NotShared
from rabbitpy_broker.config import Config, ManagementConfig, SslOptions, split_address
from rabbitpy_broker.errors import AmqpError, StartError
from rabbitpy_broker.management.admin import Admin, AdminError, NotWritten
from rabbitpy_broker.management.answers import answered
from rabbitpy_broker.management.api import nodes
from rabbitpy_broker.management.api.audit import audited
from rabbitpy_broker.management.api.auth import authenticate, is_allowed_origin, nobody
from rabbitpy_broker.management.api.backups import BackupJobs
from rabbitpy_broker.management.api.browser import Browser
from rabbitpy_broker.management.api.errors import ApiError, bad_request, login_failed, of_amqp
from rabbitpy_broker.management.api.events import Hub
from rabbitpy_broker.management.api.forwarded import adopt, forwarded
from rabbitpy_broker.management.api.history import FILE, History
from rabbitpy_broker.management.api.node_links import NodeLinks
from rabbitpy_broker.management.api.openapi import document
from rabbitpy_broker.management.api.packed_parts import HEADER, PackedParts, PackedStream
from rabbitpy_broker.management.api.paging import Columns, gathered, made
from rabbitpy_broker.management.api.request import Answer, Listing, Made, MadeForAll, Request, Stream
from rabbitpy_broker.management.api.routes import ROUTES, Endpoint, Route, Router
from rabbitpy_broker.management.api.sampler import Sampler, sampling
from rabbitpy_broker.management.api.sessions import Sessions
from rabbitpy_broker.management.api.shared_lists import COMPRESSION, SharedLists, compressed
from rabbitpy_broker.management.api.site import TOOLS_PAGE, Site, read_site, reference
from rabbitpy_broker.management.api.state import Api, Jobs
from rabbitpy_broker.management.api.ticker import Ticker
from rabbitpy_broker.management.api.whole_cluster import MISDIRECTED, Asked, WholeCluster, check_write
from rabbitpy_broker.management.control import rows_of_node
from rabbitpy_broker.management.managed import Listener, ManagedBroker
from rabbitpy_broker.net.listener import ServerTls
from rabbitpy_broker.questions import AnswerAwaited
from rabbitpy_broker.users import HASHING_ALGORITHM, User
from rabbitpy_broker.workers.fleet import listen_on

BODY_MAX_BYTES: Final = 33_554_432  # RabbitMQ's tests publish 25 MB
STREAM_FROM_BYTES: Final = 1_048_576
COMPRESS_FROM_BYTES: Final = 1_024
AWAY_FROM_BYTES: Final = 65_536  # are compressed in a thread; in the loop this many take up to 3 ms
LISTS_AT_ONCE: Final = 2
LISTS_WAITING_MAX: Final = 64
SEND_S: Final = 30.0  # for a client to take some of a long answer
SHUTDOWN_S: Final = 1.0
JSON: Final = "application/json"
TAKEN: Final = (  # what whoever takes it is given what there is: the monitors that ask for BERT take JSON
    "*/*", "application/*", JSON, "application/bert", "text/event-stream", "application/x-ndjson", "application/octet-stream",
)  # fmt: skip
NOBODY: Final = User("", "", HASHING_ALGORITHM, ())
COMMON_HEADERS: Final = {
    "Cache-Control": "no-cache",
    "Vary": "accept, accept-encoding, origin",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
}
CONTROL: Final = "/control"  # of a node, for others
REFERENCE: Final = ("/api", "/api/", "/api/index.html", "/doc/stats.html")
TOOLS: Final = ("/cli", "/cli/", "/cli/index.html")


class Management:
    """The API, listening. Made by `start_management`."""

    def __init__(
        self,
        listeners: list[Listener],
        tls: ServerTls | None,
        runner: web.AppRunner,
        server: _Server,
        ticking: asyncio.Task[None],
        jobs: Jobs,
        ends: AsyncExitStack,
    ) -> None:
        self.listeners = listeners
        self.tls = tls
        self._runner = runner
        self._server = server
        self._ticking = ticking
        self._jobs = jobs
        self._ends = ends

    async def stop(self) -> None:
        tasks = [self._ticking, *self._server.streams]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._jobs.stop()
        await self._ends.aclose()
        await self._runner.cleanup()


async def start_management(broker: ManagedBroker, admin: Admin, config: Config, log: Any) -> Management:
    """Listens on the running loop. Raises StartError when an address cannot be had, and ConfigError for its certificates."""
    interval_s = config.node.collect_statistics_interval / 1000
    sampler = Sampler(broker, interval_s, lambda: nodes.read_figures(broker), sampling(config))
    cookie = f"rabbitpy_{hashlib.sha256(broker.cluster_id.encode()).hexdigest()[:8]}"
    sessions = Sessions(admin.users, config.management.login_session_timeout * 60.0, cookie)
    browser = Browser(config.management.browse.max_bytes_per_s)
    lists = SharedLists(interval_s, config.management.db_cache_multiplier)
    api = Api(broker, admin, _told(config), sampler, sessions, browser, lists)
    hub, history = Hub(api), History(config.node.data_path() / FILE, log)
    api.events, api.kept, api.jobs = hub, history, BackupJobs(log)
    await asyncio.to_thread(history.load)
    nodes.take_cluster_name(api)
    broker.figures = lambda: nodes.own_figures(api)
    ends = AsyncExitStack()
    cluster = None
    if config.cluster.engine:
        links = NodeLinks(broker, log)
        ends.push_async_callback(links.close)
        cluster = WholeCluster(api, links)
        broker.ask_nodes = partial(links.ask_all, "POST", CONTROL)
    server = _Server(api, await asyncio.to_thread(read_site) if config.management.ui else None, cluster, log)
    runner = _runner(server.handle, config)
    await runner.setup()
    try:
        if broker.sockets is not None:
            tls, listeners = None, []
            await _listen_as_worker(runner, broker.sockets.management)
        else:
            tls = server_tls(config)
            listeners = await listen(config, runner, tls)
        if cluster is not None:
            of_nodes = _runner(server.handle_of_node, config)
            await of_nodes.setup()
            ends.push_async_callback(of_nodes.cleanup)
            broker.http_of_nodes = of_nodes.server
    except BaseException:
        await ends.aclose()
        await runner.cleanup()
        raise
    ticking = asyncio.get_running_loop().create_task(Ticker(api, hub, history, interval_s, log).run())
    return Management(listeners, tls, runner, server, ticking, api.jobs, ends)


def _told(config: Config) -> ManagementConfig:
    """Whatever has no figures tells none."""
    if not config.management_agent.disable_metrics_collector:
        return config.management
    return msgspec.structs.replace(config.management, disable_stats=True)


def _runner(handle: Callable[[web.Request], Awaitable[web.StreamResponse]], config: Config) -> web.AppRunner:
    """What has all requests handled."""
    app = web.Application(client_max_size=BODY_MAX_BYTES)
    app.router.add_route("*", "/{path:(?s:.*)}", handle)  # a name may have a newline
    tell_policies(app, config)
    return web.AppRunner(
        app, access_log=None, handle_signals=False, shutdown_timeout=SHUTDOWN_S, logger=http_logger()
    )


def tell_policies(app: web.Application, config: Config) -> None:
    """Has each answer carry the headers that the configuration has for browsers."""
    policies = {
        "Content-Security-Policy": config.management.csp.policy,
        "Strict-Transport-Security": config.management.hsts.policy,
    }
    given = {name: policy for name, policy in policies.items() if policy}
    if not given:
        return

    async def add(_: web.Request, response: web.StreamResponse) -> None:
        response.headers.update(given)

    app.on_response_prepare.append(add)


def http_logger() -> logging.Logger:
    """For aiohttp's own faults. What is no HTTP is answered with 400, and is nothing that the log should say with a traceback."""
    logger = logging.getLogger("rabbitpy_broker.http")
    if not logger.filters:
        logger.addFilter(_is_no_bad_request)
    return logger


def _is_no_bad_request(record: logging.LogRecord) -> bool:
    return record.exc_info is None or not isinstance(record.exc_info[1], HttpProcessingError)


def server_tls(config: Config) -> ServerTls | None:
    """The certificates of the configuration. Raises ConfigError."""
    given = config.management.ssl
    if not given.certfile:
        return None
    options = SslOptions(
        certfile=given.certfile,
        keyfile=given.keyfile,
        cacertfile=given.cacertfile,
        verify="verify_peer" if given.cacertfile else "verify_none",
        fail_if_no_peer_cert=bool(given.cacertfile),
    )
    return ServerTls(options)


async def _listen_as_worker(runner: web.AppRunner, path: Path) -> None:
    """Raises StartError."""
    try:
        await web.SockSite(runner, listen_on(path)).start()
    except OSError as error:
        raise StartError(f"cannot listen for the management API on {path}: {error.strerror or error}") from None


async def listen(config: Config, runner: web.AppRunner, tls: ServerTls | None) -> list[Listener]:
    """Has the runner listen where the configuration says. Raises StartError."""
    listeners: list[Listener] = []
    for host, port in places(config):
        listeners += await _listen_on(runner, "http", host, port, None)
    if tls is not None:
        for host in dict.fromkeys(host for host, _ in places(config)):
            listeners += await _listen_on(runner, "https", host, config.management.ssl.port, tls)
    return listeners


def places(config: Config) -> list[tuple[str, int]]:
    """Host and port of each plain listener."""
    if config.net.management_listen != "auto":
        return [split_address(config.net.management_listen)]
    tcp = config.management.tcp
    if tcp.ip:
        return [(tcp.ip, tcp.port)]
    amqp = config.net.listeners or config.net.listeners_ssl
    return [(host, tcp.port) for host in dict.fromkeys(split_address(address)[0] for address in amqp)]


async def _listen_on(
    runner: web.AppRunner, protocol: str, host: str, port: int, tls: ServerTls | None
) -> list[Listener]:
    before = len(runner.addresses)
    try:
        await web.TCPSite(runner, host, port, ssl_context=tls).start()
    except OSError as error:
        raise StartError(f"cannot listen for the management API on {host}:{port}: {error.strerror or error}") from None
    return [Listener(protocol, str(address[0]), int(address[1])) for address in runner.addresses[before:]]


class _Server:
    """`streams` are the tasks of the answers that go on."""

    def __init__(self, api: Api, site: Site | None, cluster: WholeCluster | None, log: Any) -> None:
        self.streams: set[asyncio.Task[Any]] = set()
        self._api = api
        self._site = site
        self._cluster = cluster
        self._log = log
        self._router = Router()
        self._packed_parts = PackedParts()
        self._lists = asyncio.Semaphore(LISTS_AT_ONCE)
        self._waiting = 0
        self._prefix = api.config.path_prefix

    async def handle(self, http: web.Request) -> web.StreamResponse:
        return await self._handle(http, self._prefix, believes=self._api.broker.sockets is not None)

    async def handle_of_node(self, http: web.Request) -> web.StreamResponse:
        """Of another node of the cluster, which has shown that it is one."""
        if http.path == CONTROL and http.method == "POST":
            return await self._rows_of_node(http)
        return await self._handle(http, "", believes=True)

    async def _rows_of_node(self, http: web.Request) -> web.Response:
        """What this node has of a list that the control socket of another one is asked for."""
        if not self._api.broker.ready:
            return web.Response(status=503)
        try:
            return web.Response(body=await rows_of_node(self._api.admin, await http.read()), content_type=JSON)
        except AdminError as error:
            return web.Response(status=400, text=str(error))

    async def _handle(self, http: web.Request, prefix: str, *, believes: bool) -> web.StreamResponse:
        """`believes`: what is said of who asks is true."""
        raw_path, _, raw_query = http.raw_path.partition("?")
        path = raw_path.removeprefix(prefix)
        if prefix and path == raw_path:
            return web.Response(status=404, headers=COMMON_HEADERS)
        query: dict[str, str] = {}
        for key, value in parse_qsl(raw_query, keep_blank_values=True):
            query.setdefault(key, value)
        if path in REFERENCE or not path.startswith("/api/"):
            return self._page(http, path, query)
        cors = self._cors(http)
        if path == "/api/openapi.json":
            return web.json_response(document(), headers=COMMON_HEADERS)
        answer: Answer | Stream
        route: Route | None = None
        try:
            route, names = self._router.find(_segments(path), "GET" if http.method == "HEAD" else http.method)
            if http.method == "OPTIONS":
                return web.Response(headers={**COMMON_HEADERS, **cors, **_preflight(self._api, http, route, cors)})
            answer = await self._answer(http, route, names, query, believes=believes)
        except ApiError as error:
            answer = Answer(error.status, error.body, error.headers)
        except AmqpError as error:
            refusal = of_amqp(error)
            answer = Answer(refusal.status, refusal.body)
        except NotWritten as error:
            answer = Answer(503, {"error": "service_unavailable", "reason": str(error)})
        except AdminError as error:
            answer = Answer(400, {"error": "bad_request", "reason": str(error)})
        except web.HTTPRequestEntityTooLarge:
            answer = Answer(400, {"error": "bad_request", "reason": f"a body has at most {BODY_MAX_BYTES} bytes"})
        except Exception:  # noqa: BLE001 -- a fault of ours in one request; the others go on
            self._log.exception("internal error", method=http.method, path=route.path if route is not None else raw_path)
            answer = Answer(500, {"error": "internal_server_error", "reason": "see the broker's log"})
        headers = {**COMMON_HEADERS, **cors}
        if isinstance(answer, Stream):
            return await send_stream(http, answer, headers, self._packed_parts, self.streams, self._log)
        return await send(http, answer, headers)

    async def _answer(
        self, http: web.Request, route: Route, names: dict[str, str], query: dict[str, str], *, believes: bool
    ) -> Answer | Stream:
        """Raises ApiError, AmqpError or AdminError."""
        api = self._api
        method = "GET" if http.method == "HEAD" else http.method
        endpoint = route.methods.get(method)
        if not api.broker.ready:  # what a stop has closed is not to be changed any more
            raise ApiError(503, "service_unavailable", "the broker starts or stops")
        if endpoint is None:
            raise ApiError(405, headers={"Allow": _allowed(route)})
        headers = {key.lower(): value for key, value in http.headers.items()}
        peer, is_encrypted = http.remote or "", http.secure
        told = forwarded(headers) if believes else None
        if told is not None:
            peer, is_encrypted = told.peer, told.is_encrypted
            await adopt(api, told)
            headers["cookie"] = api.sessions.cookie_of(told.session) if told.session is not None else ""
        user, session = NOBODY, None
        if told is not None and told.user:
            user = _known(api, told.user)
        elif endpoint.check is not nobody:
            user, session = await authenticate(api, headers, query, peer)
        request = Request(method, names, query, headers, b"", user, peer, session, is_encrypted)
        if told is not None:
            request.is_forwarded, request.is_for_all = True, told.is_for_all
            if told.vhost is not None and told.vhost not in api.vhosts:
                raise ApiError(MISDIRECTED, "misdirected_request", f"vhost '{told.vhost}' is not here")

        async def here(request: Request) -> Answer | Stream:
            while True:
                try:
                    return await self._answer_user(http, route, endpoint, request)
                except AnswerAwaited as awaited:  # what the user may do; nothing has been done yet
                    await answered(awaited.question)

        if self._cluster is not None and told is None:
            found = await self._cluster.answer(Asked(request, route, endpoint, here, http.read))
            if found is not None:
                return found
        return await here(request)

    async def _answer_user(
        self, http: web.Request, route: Route, endpoint: Endpoint, request: Request
    ) -> Answer | Stream:
        """Raises as `_answer` does, and AnswerAwaited: then it is called again."""
        api, method, headers, names = self._api, request.method, request.headers, request.names
        endpoint.check(api, request)
        if method == "GET" and not _takes_json(headers):
            raise ApiError(406)
        changes = check_write(api, request, endpoint)
        if method != "GET":
            request.body = await http.read()
        api.sampler.asked()
        value = endpoint.handler(api, request)
        if inspect.isawaitable(value):
            value = await value
        if changes:
            try:
                await api.broker.share()
            except NotShared as error:
                raise ApiError(503, "not_shared", str(error)) from None
            audited(api, [names[part[1:]] if part.startswith(":") else part for part in route.segments], request, value)
        if isinstance(value, Listing):
            if request.is_for_all and api.broker.view is not None:
                value.node = api.node_name
            value = made(request, value, api.lists)
        if isinstance(value, Made | MadeForAll):
            return await self._in_turn(value, "gzip" in headers.get("accept-encoding", ""))
        if isinstance(value, Stream):
            return value
        if isinstance(value, Answer):
            if isinstance(value.body, dict):
                return Answer(value.status, Columns(request).of(value.body), value.headers)
            return value
        if isinstance(value, dict):
            value = Columns(request).of(value)
        return Answer(200, [msgspec.json.encode(value)])

    async def _in_turn(self, value: Made | MadeForAll, takes_gzip: bool) -> Answer:
        """A list, when it is its turn to be made. Raises ApiError 503 when many wait."""
        if self._waiting >= LISTS_WAITING_MAX:
            raise ApiError(503, "service_unavailable", "too many lists are asked for", {"Retry-After": "1"})
        self._waiting += 1
        try:
            await self._lists.acquire()
        finally:
            self._waiting -= 1
        try:
            if isinstance(value, Made):
                return Answer(200, [part async for part in value.parts])
            async with self._api.lists.lock:
                begun = time.monotonic()
                kept = self._api.lists.find(value.sharing, begun)
                if kept is None:
                    await self._api.lists.let_go()
                    kept = self._api.lists.keep(value.sharing, begun, await value.pieces())
                if takes_gzip and kept.size >= STREAM_FROM_BYTES:
                    return Answer(200, await kept.compressed(), {"Content-Encoding": "gzip"})
                return Answer(200, await gathered(kept.parts()))
        finally:
            self._lists.release()

    def _page(self, http: web.Request, path: str, query: Mapping[str, str]) -> web.Response:
        """What a browser finds outside the API."""
        if http.method not in ("GET", "HEAD"):
            return web.Response(status=405, headers={**COMMON_HEADERS, "Allow": "GET, HEAD"})
        if not path:  # of a prefix: the pages' links are relative
            return web.Response(status=301, headers={**COMMON_HEADERS, "Location": f"{self._prefix}/"})
        if path in REFERENCE or (path == "/" and self._site is None):
            rows = ((" ".join(route.methods), route.path, route.summary) for route in ROUTES)
            return web.Response(text=reference(rows), content_type="text/html", headers=COMMON_HEADERS)
        if path in TOOLS:
            return web.Response(text=TOOLS_PAGE, content_type="text/html", headers=COMMON_HEADERS)
        file = self._site.find(path[1:]) if self._site is not None else None
        if file is None:
            return web.Response(status=404, headers=COMMON_HEADERS)
        headers = file.headers(query.get("v"))
        if file.is_known(http.headers.get("If-None-Match", "")):
            return web.Response(status=304, headers=headers)
        compressed = file.compressed() if "gzip" in http.headers.get("Accept-Encoding", "") else None
        if compressed is not None:
            headers["Content-Encoding"] = "gzip"
        return web.Response(body=file.content if compressed is None else compressed, headers=headers)

    def _cors(self, http: web.Request) -> dict[str, str]:
        origin = http.headers.get("Origin")
        if origin is None or not is_allowed_origin(self._api, origin):
            return {}
        if origin in self._api.config.cors.allow_origins:
            return {"Access-Control-Allow-Origin": origin, "Access-Control-Allow-Credentials": "true"}
        return {"Access-Control-Allow-Origin": "*"}


def _known(api: Api, name: str) -> User:
    """Whom another node has let in. Raises ApiError 401."""
    user = api.admin.users.get(name)
    if user is None:
        raise login_failed(ask=False)
    return user


def _segments(path: str) -> list[str]:
    """Decoded; a slash at the end is nothing. Raises ApiError 404 and 400."""
    try:
        return [unquote(segment, errors="strict") for segment in path.removeprefix("/api/").removesuffix("/").split("/")]
    except UnicodeDecodeError:
        raise bad_request("the path is not UTF-8") from None


def _allowed(route: Route) -> str:
    methods = [*route.methods, "OPTIONS"]
    return ", ".join(["HEAD", *methods] if "GET" in methods else methods)


def _preflight(api: Api, http: web.Request, route: Route, cors: dict[str, str]) -> dict[str, str]:
    if not cors:
        return {"Allow": _allowed(route)}
    headers = {"Allow": _allowed(route), "Access-Control-Max-Age": str(api.config.cors.max_age)}
    if "Access-Control-Request-Method" in http.headers:
        headers["Access-Control-Allow-Methods"] = _allowed(route)
    if "Access-Control-Request-Headers" in http.headers:
        headers["Access-Control-Allow-Headers"] = http.headers["Access-Control-Request-Headers"]
    return headers


def _takes_json(headers: Mapping[str, str]) -> bool:
    accept = headers.get("accept", "*/*")
    return any(kind in accept for kind in TAKEN)


async def send_stream(
    http: web.Request,
    answer: Stream,
    headers: dict[str, str],
    packed_parts: PackedParts,
    streams: set[asyncio.Task[Any]],
    log: Any,
) -> web.StreamResponse:
    """Each part on its way at once, compressed for whoever takes that, until they end or the client has gone. Meanwhile the task
    is one of `streams`.
    """
    headers |= {"Content-Type": answer.content_type, "X-Accel-Buffering": "no", **answer.headers}
    packer = None
    if "gzip" in http.headers.get("Accept-Encoding", ""):
        packer = PackedStream(packed_parts, shared=answer.is_shared)
        headers["Content-Encoding"] = "gzip"
    response = web.StreamResponse(headers=headers)
    task = asyncio.current_task()
    assert task is not None, "an HTTP server's handler is a task"
    streams.add(task)
    try:
        async with contextlib.aclosing(answer.parts) as parts:
            with contextlib.suppress(ConnectionError):  # the client has left: there is nobody to tell
                await response.prepare(http)
                if http.method == "HEAD":
                    return response
                if packer is not None:
                    await write_part(http, response, HEADER)
                async for part in parts:
                    if http.transport is None or http.transport.is_closing():
                        break
                    if part:
                        await write_part(http, response, part if packer is None else packer.next(part))
                if packer is not None:
                    await write_part(http, response, packer.end())
                await response.write_eof()
    except Exception:
        log.exception("internal error", method=http.method, path=http.path)
    finally:
        streams.discard(task)
    return response


async def send(http: web.Request, answer: Answer, headers: dict[str, str]) -> web.StreamResponse:
    parts, headers = answer.parts(), {**headers, **answer.headers}
    if answer.body is None:
        return web.Response(status=answer.status, headers=headers)
    headers["Content-Type"] = JSON
    size = sum(map(len, parts))
    is_short = size < STREAM_FROM_BYTES
    is_done = size < COMPRESS_FROM_BYTES or "Content-Encoding" in headers
    if not is_done and "gzip" in http.headers.get("Accept-Encoding", ""):  # aiohttp's level takes three times as long
        in_loop = size < AWAY_FROM_BYTES
        parts = [gzip.compress(b"".join(parts), COMPRESSION, mtime=0)] if in_loop else await compressed(iter(parts))
        headers["Content-Encoding"], is_done = "gzip", True
    if is_short:
        response = web.Response(status=answer.status, body=b"".join(parts), headers=headers)
        if not is_done:
            response.enable_compression()
        return response
    stream = web.StreamResponse(status=answer.status, headers=headers)
    if is_done:
        stream.content_length = sum(map(len, parts))
    else:
        stream.enable_compression()
    with contextlib.suppress(ConnectionError):  # the client has left: there is nobody to tell
        await stream.prepare(http)
        if http.method != "HEAD":
            for part in parts:
                await write_part(http, stream, part)
        await stream.write_eof()
    return stream


async def write_part(http: web.Request, stream: web.StreamResponse, part: bytes) -> None:
    """Hangs up on a client that takes nothing: what it is to get costs memory."""
    try:
        async with asyncio.timeout(SEND_S):
            await stream.write(part)
    except TimeoutError:
        if http.transport is not None:
            http.transport.abort()
        raise ConnectionResetError("the client takes nothing of a long answer") from None
