"""The gateway's port of the management API: HTTP in, a plan for the route, HTTP out.

The pages for browsers, and whatever no route is for, are the first worker's to answer.
"""

from __future__ import annotations

from typing import Final
from urllib.parse import parse_qsl, unquote

from aiohttp import web

from rabbitpy_broker.management.api.asking import NoAnswer, Reply
from rabbitpy_broker.management.api.errors import ApiError
from rabbitpy_broker.management.api.forwarded import Told
from rabbitpy_broker.management.api.packed_parts import PackedParts
from rabbitpy_broker.management.api.request import Answer, Stream
from rabbitpy_broker.management.api.routes import Route, Router
from rabbitpy_broker.management.api.server import BODY_MAX_BYTES, COMMON_HEADERS, send, send_stream
from rabbitpy_broker.workers.gateway_front import OF_ONE_HOP, Asked, Front, Refused, kept_headers
from rabbitpy_broker.workers.gateway_routes import answer

RETRY: Final = {"Retry-After": "1"}


class GatewayServer:
    """Answers whatever comes to the port."""

    def __init__(self, front: Front) -> None:
        self._front = front
        self._router = Router()
        self._packed_parts = PackedParts()
        self._prefix = front.config.management.path_prefix

    async def handle(self, http: web.Request) -> web.StreamResponse:
        front = self._front
        route: Route | None = None
        try:
            asked, route = self._asked(http)
            result = await answer(front, asked, route)
        except ApiError as error:
            result = Answer(error.status, error.body, error.headers)
        except Refused as refused:
            result = refused.reply
        except (NoAnswer, ConnectionError) as error:
            front.log.warning("worker not asked", reason=str(error))
            text = "the worker that has this does not answer"
            result = Answer(503, {"error": "service_unavailable", "reason": text}, dict(RETRY))
        except web.HTTPRequestEntityTooLarge:
            result = Answer(400, {"error": "bad_request", "reason": f"a body has at most {BODY_MAX_BYTES} bytes"})
        except Exception:
            front.log.exception("internal error", method=http.method, path=route.path if route is not None else http.path)
            result = Answer(500, {"error": "internal_server_error", "reason": "see the broker's log"})
        if isinstance(result, web.StreamResponse):
            return result
        if isinstance(result, Reply):
            return _replied(http, result)
        if isinstance(result, Stream):
            return await send_stream(http, result, dict(COMMON_HEADERS), self._packed_parts, front.streams, front.log)
        return await send(http, result, dict(COMMON_HEADERS))

    def _asked(self, http: web.Request) -> tuple[Asked, Route | None]:
        """The request, and its route if there is one."""
        raw_path, _, raw_query = http.raw_path.partition("?")
        path = raw_path.removeprefix(self._prefix)
        method = "GET" if http.method == "HEAD" else http.method
        query: dict[str, str] = {}
        for key, value in parse_qsl(raw_query, keep_blank_values=True):
            query.setdefault(key, value)
        headers = {key: value for key, value in http.headers.items() if key.lower() not in OF_ONE_HOP}
        if "auth" in query and "Authorization" not in http.headers:  # of a browser that downloads
            headers["Authorization"] = f"Basic {query['auth']}"
        session = self._front.sessions.find(http.headers.get("Cookie", ""))
        told = Told(http.remote or "", http.secure, session=session)
        route, names, segments = self._route(path, method)
        return Asked(http, method, segments, names, query, headers, self._prefix, told), route

    def _route(self, path: str, method: str) -> tuple[Route | None, dict[str, str], list[str]]:
        if not path.startswith("/api/") or path in ("/api/", "/api/index.html", "/api/openapi.json"):
            return None, {}, []
        try:
            given = path.removeprefix("/api/").removesuffix("/").split("/")
            segments = [unquote(segment, errors="strict") for segment in given]
            route, names = self._router.find(segments, method)
        except (UnicodeDecodeError, ApiError):
            return None, {}, []
        return route, names, segments


def _replied(http: web.Request, reply: Reply) -> web.Response:
    """A worker's whole answer, as it is."""
    headers = kept_headers(reply.headers)
    response = web.Response(status=reply.status, body=reply.body or None, headers=headers)
    for name in ("Content-Type", "Content-Disposition", "Set-Cookie"):
        if name in reply.headers:
            response.headers[name] = reply.headers[name]
    return response

