"""Searching in a queue, and over queues for the copies of a message: answers that go on, a line of JSON for each match.

A search ends when it has found enough, looked at enough, taken long enough, or when its client has gone; each page that it looks
at waits its turn among the browses. How far it is it tells every PROGRESS_S, and how it ended in its last line.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, Final

import msgspec

from rabbitpy_broker.errors import ChannelClosed
from rabbitpy_broker.management.api.browse import Show, readable_queue, row
from rabbitpy_broker.management.api.errors import ApiError, bad_request
from rabbitpy_broker.management.api.matching import Where
from rabbitpy_broker.management.api.request import Request, Row, Stream, vhost_or_404
from rabbitpy_broker.management.api.selecting import Walk, milliseconds
from rabbitpy_broker.management.api.state import Api
from rabbitpy_broker.protocol.access import Access
from rabbitpy_broker.queues.queue import Queue
from rabbitpy_broker.vhost import VHost

NDJSON: Final = "application/x-ndjson"
LIMIT: Final = 100
LIMIT_MAX: Final = 1_000
SCAN: Final = 100_000
SCAN_MAX: Final = 1 << 40
COPIES_SCAN: Final = 10_000  # messages of each queue
TIMEOUT_MS: Final = 30_000
TIMEOUT_MAX_MS: Final = 600_000
PROGRESS_S: Final = 0.25
STATES: Final = {"ready": (True, False), "unacked": (False, True), "all": (True, True)}


def line(value: Any) -> bytes:
    return msgspec.json.encode(value) + b"\n"


def count(body: Row, key: str, default: int, most: int) -> int:
    """A number of things, from 1 on. Raises ApiError 400."""
    value = body.get(key, default)
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
        raise bad_request(f"{key} is from 1 to {most}")
    return value


def search(api: Api, request: Request) -> Stream:
    """POST /queues/V/Q/messages/search."""
    _, queue = readable_queue(api, request)
    return Stream(NDJSON, Search(api, request, queue).lines())


class Search:
    """One search, as its body asks for it. Raises ApiError 400 and 410."""

    def __init__(self, api: Api, request: Request, queue: Queue) -> None:
        body = request.json()
        self._api = api
        self._queue = queue
        self._name = api.browser.name_of(queue)
        self._where = Where(body.get("where", {}))
        self._show = Show(request)
        self._limit = count(body, "limit", LIMIT, LIMIT_MAX)
        self._max_scan = count(body, "max_scan", SCAN, SCAN_MAX)
        self._seconds = milliseconds(body.get("timeout_ms"), TIMEOUT_MS, TIMEOUT_MAX_MS) / 1000
        states = STATES.get(str(body.get("state", "all")))
        if states is None or body.get("order", "head") not in ("head", "tail"):
            raise bad_request("state is ready, unacked or all; order is head or tail")
        self._ready, self._unacked = states
        self._forward = body.get("order") != "tail"
        self._start = api.browser.position(self._name, body["after"]) if isinstance(body.get("after"), str) else None

    async def lines(self) -> AsyncGenerator[bytes | None, None]:
        where, deadline = self._where, time.monotonic() + self._seconds
        cut = max(where.body_bytes, self._show.cut)
        walk = Walk(
            self._api, self._queue, where, start=self._start, forward=self._forward, cut=cut, deadline=deadline
        )
        matched = 0
        told_at = time.monotonic()
        try:
            found = walk.found(ready=self._ready, unacked=self._unacked, max_scan=self._max_scan, up_to=None)
            async with aclosing(found) as walked:
                async for seen in walked:
                    if seen is not None:
                        matched += 1
                        yield line({"item": row(seen, self._name, self._show, int(self._queue.host.now_ms()))})
                        if matched == self._limit:
                            walk.end = "limit"
                            break
                    elif time.monotonic() - told_at > PROGRESS_S:
                        told_at = time.monotonic()
                        yield line({"progress": self._so_far(walk, matched)})
                    else:
                        yield None
        except ApiError as error:
            yield line({"error": error.body})
            return
        finally:
            if where.expression is not None:
                await where.expression.close()
        yield line({"end": {"reason": walk.end, **self._so_far(walk, matched)}})

    def _so_far(self, walk: Walk, matched: int) -> Row:
        at = f"{self._name}.{walk.at[0]}.{walk.at[1]}" if walk.at is not None else None
        return {"scanned": walk.scanned, "matched": matched, "at": at}


# -- copies over queues ---------------------------------------------------------------------------------------------


def copies(api: Api, request: Request) -> Stream:
    """POST /messages/V/copies: where else a message is, by message_id or correlation_id."""
    vhost = vhost_or_404(api.vhosts, request.names["vhost"])
    body = request.json()
    wanted = {key: body[key] for key in ("message_id", "correlation_id") if isinstance(body.get(key), str) and body[key]}
    if not wanted:
        raise bad_request("message_id or correlation_id is missing")
    where = Where({"properties": wanted})
    limit = count(body, "limit", LIMIT, LIMIT_MAX)
    max_scan = count(body, "max_scan_per_queue", COPIES_SCAN, SCAN_MAX)
    seconds = milliseconds(body.get("timeout_ms"), TIMEOUT_MS, TIMEOUT_MAX_MS) / 1000
    return Stream(NDJSON, _copies(api, request, vhost, where, (limit, max_scan, seconds)))


async def _copies(
    api: Api, request: Request, vhost: VHost, where: Where, limits: tuple[int, int, float]
) -> AsyncGenerator[bytes | None, None]:
    """In each queue that the user may read, the first messages."""
    limit, max_scan, seconds = limits
    deadline = time.monotonic() + seconds
    show = Show(request)
    access = Access(request.user, vhost)
    matched = scanned = queues = 0
    incomplete: list[str] = []
    told_at = time.monotonic()
    reason = "end"
    for queue in vhost.each_queue():
        if not _may_read(access, request, queue) or queue.ready_count() + queue.backing.unacked == 0:
            continue
        queues += 1
        walk = Walk(api, queue, where, start=None, forward=True, cut=show.cut, deadline=deadline)
        try:
            async with aclosing(walk.found(ready=True, unacked=True, max_scan=max_scan, up_to=None)) as walked:
                async for seen in walked:
                    if seen is not None:
                        matched += 1
                        shown = row(seen, api.browser.name_of(queue), show, int(queue.host.now_ms()))
                        yield line({"item": {"queue": queue.name, **shown}})
                        if matched == limit:
                            walk.end = "limit"
                            break
                    else:
                        yield None
        except ApiError as error:
            yield line({"error": error.body})
            return
        scanned += walk.scanned
        if walk.end == "max_scan":
            incomplete.append(queue.name)
        if walk.end in ("limit", "timeout"):
            reason = walk.end
            break
        if time.monotonic() - told_at > PROGRESS_S:
            told_at = time.monotonic()
            yield line({"progress": {"scanned": scanned, "matched": matched, "queues": queues, "queue": queue.name}})
    end = {"reason": reason, "scanned": scanned, "matched": matched, "queues": queues, "incomplete": incomplete[:100]}
    yield line({"end": end})


def _may_read(access: Access, request: Request, queue: Queue) -> bool:
    try:
        access.check("read", "queue", queue.name)
    except ChannelClosed:
        return False
    return queue.owner is None or request.is_administrator


